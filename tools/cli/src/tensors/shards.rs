//! `model.safetensors.index.json`: tensors in several files of one folder.

use super::{Dump, check_unique, quoted, safetensors};
use crate::fail::{Failure, InFile, Result};
use crate::input::Input;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::sync::Arc;

/// The part of the index that is read.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Returns the names of the files that an index lists.
pub(crate) fn files(index: &[u8]) -> Result<BTreeSet<String>> {
    let index: Index = serde_json::from_slice(index).map_err(Failure::invalid)?;
    let files: BTreeSet<String> = index.weight_map.into_values().collect();
    for file in &files {
        let mut parts = Path::new(file).components();
        // An index comes from outside: it must not lead to other folders.
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(Failure::invalid(format_args!("{file:?} is no file name")));
        }
    }
    Ok(files)
}

/// Reads the tensors of all files that the index at `path` lists.
pub(crate) fn read(path: &Path, index: &Input) -> Result<Dump> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut dump = Dump::default();
    for file in files(index)? {
        let path = folder.join(file);
        let input = Arc::new(Input::open(&path, super::DEFAULT_MAX_BYTES)?);
        let shard = safetensors::read(&input).in_file(&path)?;
        dump.tensors.extend(shard.tensors);
        dump.opaque.extend(shard.opaque);
        dump.metadata.extend(shard.metadata);
    }
    check_unique(dump.names(), Failure::invalid)?;
    let index: Index = serde_json::from_slice(index).map_err(Failure::invalid)?;
    let found: BTreeSet<&str> = dump.names().collect();
    match index.weight_map.keys().find(|name| !found.contains(name.as_str())) {
        Some(missing) => {
            Err(Failure::invalid(format_args!("{} is in no file of the index", quoted(missing))))
        }
        None => Ok(dump),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::NamedTensor;
    use crate::testing::TempDir;
    use gcodec::TensorBuf;

    #[test]
    fn shards_are_read_and_other_folders_are_not() {
        let dir = TempDir::new();
        let tensor = TensorBuf::from_f32(vec![2], &[1.0, 2.0]).unwrap();
        for (file, name) in [("a.safetensors", "x"), ("b.safetensors", "y")] {
            super::super::write(&dir.path(file), &[(name, tensor.view())], &BTreeMap::new()).unwrap();
        }
        let path = dir.path("model.safetensors.index.json");
        let index = |map: &str| {
            std::fs::write(&path, format!("{{\"weight_map\": {map}}}")).unwrap();
            Dump::open(&path)
        };
        let dump = index(r#"{"x": "a.safetensors", "y": "b.safetensors"}"#).unwrap();
        assert_eq!(dump.tensors.iter().map(NamedTensor::name).collect::<Vec<_>>(), ["x", "y"]);
        let missing = index(r#"{"x": "a.safetensors", "z": "b.safetensors"}"#).unwrap_err();
        assert!(missing.message.contains("\"z\""), "{missing}");
        for file in ["../a.safetensors", "/etc/passwd", "", ".", "x/y"] {
            let failure = index(&format!(r#"{{"x": {file:?}}}"#)).unwrap_err();
            assert!(failure.message.contains("no file name"), "{failure}");
        }
    }
}
