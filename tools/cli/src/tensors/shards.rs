//! Tensors in several files of one folder: by an index, such as `model.safetensors.index.json`, or by numbers
//! in the names of the files, such as `model-00001-of-00002.safetensors`.
//!
//! What is in the folder counts, whatever the index says: the rest is read where a file or a tensor is
//! missing. In the place of a file, its stream may be there, as `gcodec compress --remove` leaves it.

use super::kind::{self, Kind};
use super::streamed::Stream;
use super::versions::Difference;
use super::{DEFAULT_MAX_BYTES, Dump, Opaque, Room, quoted, versions};
use crate::fail::{Failure, Result};
use crate::files;
use crate::input::Input;
use crate::output::{counted, warn};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The part of the index that is read.
#[derive(Debug, serde::Deserialize, serde::Serialize)]
pub(super) struct Index {
    #[serde(default, skip_serializing)]
    pub(super) metadata: serde_json::Value,
    /// Names of tensors and the file of each.
    pub(super) weight_map: BTreeMap<String, String>,
    /// Further files: those of a set without an index.
    #[serde(default)]
    files: BTreeSet<String>,
}

/// The ending that `gcodec compress` puts behind the name of a file.
const STREAM: &str = ".gcu";
/// Most files of a set without an index.
const MAX_FILES: usize = 10_000;

/// Returns the names of the files that an index lists.
pub(crate) fn files_of(index: &[u8]) -> Result<BTreeSet<String>> {
    let index = Index::parse(index)?;
    Ok(index.weight_map.into_values().chain(index.files).collect())
}

/// Names the format of the files that an index lists, by their endings.
pub(crate) fn kind_name(index: &[u8]) -> &'static str {
    if let Some(name) = Index::parse(index).ok().and_then(|index| Difference::kind_name(&index)) {
        return name;
    }
    let files = files_of(index).unwrap_or_default();
    let has = |file: &str, ending: &str| file.strip_suffix(STREAM).unwrap_or(file).ends_with(ending);
    let all = |endings: &[&str]| files.iter().all(|file| endings.iter().any(|ending| has(file, ending)));
    match () {
        () if all(&[".safetensors"]) => "sharded safetensors",
        () if all(&[".bin", ".pt", ".pth"]) => "sharded PyTorch",
        () if all(&[".gguf"]) => "sharded GGUF",
        () => "shards",
    }
}

/// Returns the path that stands for the set of a file of several, with `*` in the place of its number.
pub(crate) fn set_of(path: &Path) -> Option<PathBuf> {
    let (stem, number, total, rest) = parts(path.file_name()?.to_str()?)?;
    let is_number = number.len() == total.len() && number.bytes().all(|b| b.is_ascii_digit());
    // Streams are updates of their own, unless they are those of files.
    (is_number
        && rest != STREAM
        && total.parse::<usize>().is_ok_and(|total| (2..=MAX_FILES).contains(&total)))
    .then(|| path.with_file_name(format!("{stem}-*-of-{total}{rest}")))
}

/// Returns an index of the files of a set, for a path that [`set_of`] gave.
pub(crate) fn index_of_set(path: &Path) -> Option<Vec<u8>> {
    let (stem, number, total, rest) = parts(path.file_name()?.to_str()?)?;
    let count = total.parse().ok().filter(|count| number == "*" && *count <= MAX_FILES)?;
    let width = total.len();
    let files = (1..=count).map(|number| format!("{stem}-{number:0width$}-of-{total}{rest}")).collect();
    let (metadata, weight_map) = Default::default();
    serde_json::to_vec(&Index { metadata, weight_map, files }).ok()
}

/// Divides `STEM-NUMBER-of-TOTAL.REST`.
fn parts(name: &str) -> Option<(&str, &str, &str, &str)> {
    let (front, back) = name.rsplit_once("-of-")?;
    let (stem, number) = front.rsplit_once('-')?;
    let (total, rest) = back.split_at(back.find('.')?);
    Some((stem, number, total, rest))
}

impl Index {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let index: Self = serde_json::from_slice(bytes)
            .map_err(|e| Failure::invalid(format_args!("an index of shards that cannot be read: {e}")))?;
        for file in index.weight_map.values().chain(&index.files) {
            let mut parts = Path::new(file).components();
            // An index comes from outside: it must not lead to other folders.
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                return Err(Failure::invalid(format_args!("{file:?} is no file name")));
            }
        }
        Ok(index)
    }

    /// Whether a tensor of a file counts. Of one in several files, it is that where the index places it.
    fn counts(&self, name: &str, file: &str, files: &BTreeSet<&str>) -> Result<bool> {
        match (files.len(), self.weight_map.get(name)) {
            (1, _) => Ok(true),
            (_, Some(listed)) if files.contains(listed.as_str()) => Ok(listed == file),
            _ => Err(Failure::invalid(format_args!(
                "{} is in {}, and no index says which counts",
                quoted(name),
                files.iter().copied().collect::<Vec<_>>().join(" and in ")
            ))),
        }
    }
}

/// Reads the tensors of all files that the index at `path` lists, or of the version whose differences they
/// are. What is missing is opaque, and a fault.
pub(super) fn read(path: &Path, index: &[u8], room: &mut Room) -> Result<Dump> {
    let index = Index::parse(index)?;
    match Difference::is_in(&index) {
        true => versions::read(path, index, room),
        false => {
            let dump = read_listed(path, &index, room)?;
            versions::check_whole(&dump)?;
            Ok(dump)
        }
    }
}

/// Reads the tensors as the files have them.
pub(super) fn read_listed(path: &Path, index: &Index, room: &mut Room) -> Result<Dump> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut listed: BTreeMap<&str, Vec<&str>> =
        index.files.iter().map(|file| (file.as_str(), Vec::new())).collect();
    for (name, file) in &index.weight_map {
        listed.entry(file).or_default().push(name);
    }
    let (mut dump, mut shards, mut lost) = (Dump::default(), Vec::new(), BTreeSet::new());
    for (file, names) in &listed {
        match open(&file_or_stream(folder.join(file)), room) {
            Ok(shard) => shards.push((*file, shard)),
            Err(failure) => {
                let reason = failure.message + &placed_there(names);
                dump.faults.push(Failure::new(failure.code, &reason).about(file));
                dump.opaque.push(Opaque::new((*file).to_owned(), "shard", None, 0, reason));
                lost.extend(names.iter().copied());
            }
        }
    }
    let mut places: HashMap<String, BTreeSet<&str>> = HashMap::new();
    for (file, shard) in &shards {
        for name in shard.names() {
            places.entry(name.to_owned()).or_default().insert(file);
        }
    }
    for (name, file) in &index.weight_map {
        if !places.contains_key(name) && !lost.contains(name.as_str()) {
            let reason = format!("the index places it in {file}, which does not have it");
            dump.faults.push(Failure::invalid(&reason).about(quoted(name)));
            dump.opaque.push(Opaque::new(name.clone(), "missing", None, 0, reason));
        }
    }
    for (file, shard) in shards {
        let counts = |name: &str| index.counts(name, file, &places[name]);
        let (mut unlisted, mut moved) = (Vec::new(), Vec::new());
        for name in shard.names().filter(|name| counts(name).unwrap_or(true)) {
            match index.weight_map.get(name) {
                _ if index.weight_map.is_empty() => {}
                None => unlisted.push(name.to_owned()),
                Some(other) if other != file => moved.push(name.to_owned()),
                Some(_) => {}
            }
        }
        let path = path.display();
        for (names, what) in [(unlisted, "does not list"), (moved, "places in other files")] {
            if let Some(first) = names.first() {
                let count = counted(names.len() as u64, "tensor");
                warn(format_args!(
                    "{path}: {file} has {count} that the index {what}: {first:?}{}",
                    more(&names)
                ));
            }
        }
        for tensor in shard.tensors {
            if counts(tensor.name())? {
                dump.tensors.push(tensor);
            }
        }
        for tensor in shard.opaque {
            if counts(&tensor.name)? {
                dump.opaque.push(tensor);
            }
        }
        dump.metadata.extend(shard.metadata);
        dump.faults.extend(shard.faults.into_iter().map(|fault| fault.about(file)));
    }
    Ok(dump)
}

/// Returns the path of a file, or of its stream if that is there alone.
pub(super) fn file_or_stream(path: PathBuf) -> PathBuf {
    let mut stream = path.clone().into_os_string();
    stream.push(STREAM);
    if !files::exists(&path) && files::is_file(Path::new(&stream)) { stream.into() } else { path }
}

/// Reads a file of any format of tensors, or the stream of one.
fn open(path: &Path, room: &mut Room) -> Result<Dump> {
    if !files::exists(path) {
        return Err(Failure::invalid("the file is missing"));
    }
    // A pipe or a device may have no end.
    if !files::is_file(path) {
        return Err(Failure::invalid("it is no regular file"));
    }
    let input = Input::open(path, DEFAULT_MAX_BYTES).map_err(|mut failure| {
        // The caller names the file.
        failure.message = failure.message.replace(&format!("{}: ", path.display()), "");
        failure
    })?;
    match kind::of_file(path, &input)? {
        Kind::Stream => Arc::new(Stream::open(input)?).dump(room.unread),
        Kind::Shards => Err(Failure::invalid("no file of tensors")),
        kind => Dump::parse_within(kind, input, path, room),
    }
}

/// Says which tensors the index places in a file.
fn placed_there(names: &[&str]) -> String {
    match names.first() {
        None => String::new(),
        Some(first) => {
            format!(
                "; the index places {} there: {first:?}{}",
                counted(names.len() as u64, "tensor"),
                more(names)
            )
        }
    }
}

fn more<T>(names: &[T]) -> &'static str {
    if names.len() > 1 { ", .." } else { "" }
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
        assert!(missing.message.contains("tensor \"z\": the index places it in b.safetensors"), "{missing}");
        for file in ["../a.safetensors", "/etc/passwd", "", ".", "x/y"] {
            let failure = index(&format!(r#"{{"x": {file:?}}}"#)).unwrap_err();
            assert!(failure.message.contains("no file name"), "{failure}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_may_have_no_end_is_no_shard() {
        let dir = TempDir::new();
        std::os::unix::fs::symlink("/dev/zero", dir.path("a.safetensors")).unwrap();
        let path = dir.path("model.safetensors.index.json");
        std::fs::write(&path, r#"{"weight_map": {"x": "a.safetensors"}}"#).unwrap();
        let failure = Dump::open(&path).unwrap_err();
        assert!(failure.message.contains("a.safetensors: it is no regular file"), "{failure}");
    }

    #[test]
    fn sets_are_told_by_their_names() {
        let set = |name: &str| set_of(Path::new(name)).map(|path| path.display().to_string());
        assert_eq!(set("a/m-00002-of-00003.safetensors").unwrap(), "a/m-*-of-00003.safetensors");
        assert_eq!(set("m.Q4-1-of-2.gguf").unwrap(), "m.Q4-*-of-2.gguf");
        let others = [
            "m-1-of-02.bin",
            "m-1-of-1.bin",
            "m-x-of-2.bin",
            "m-1-of-2",
            "m-00001-of-99999.bin",
            "-of-.",
            "",
        ];
        for other in others {
            assert_eq!(set(other), None, "{other}");
        }
        let index = index_of_set(Path::new("m-*-of-03.bin")).unwrap();
        let files: Vec<String> = files_of(&index).unwrap().into_iter().collect();
        assert_eq!(files, ["m-01-of-03.bin", "m-02-of-03.bin", "m-03-of-03.bin"]);
        assert_eq!(Kind::of(&index).unwrap(), Kind::Shards);
        assert_eq!(index_of_set(Path::new("m-*-of-99999999999.bin")), None);
    }
}
