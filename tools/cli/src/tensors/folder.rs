//! Folders as arguments: the file, or the shards, for which a folder stands.

use super::kind::{self, Kind};
use super::shards;
use super::torch::dcp;
use super::versions;
use crate::fail::{Failure, InFile, Result};
use crate::files;
use crate::input::{Input, Opened, Section};
use crate::order;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Names of models, as trainers write them beside the states of optimisers and schedules.
const MODELS: [&str; 8] = [
    "model.safetensors",
    "adapter_model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "consolidated.safetensors",
    "pytorch_model.bin",
    "adapter_model.bin",
    "diffusion_pytorch_model.bin",
    "model.pt",
];
/// Endings that promise tensors or updates, whatever the bytes are.
const ENDINGS: [&str; 7] = ["safetensors", "npz", "npy", "pt", "pth", "gguf", "gcu"];
/// Most names in a message.
const NAMES: usize = 4;

/// Opens the file at `path`, or for which the folder at `path` stands; returns its path, too.
pub(crate) fn open(path: &Path) -> Result<(Opened, PathBuf)> {
    let path = if files::is_folder(path) { of(path)? } else { path.to_owned() };
    let opened = match shards::index_of_set(&path) {
        Some(index) => Opened::Whole(Input::Owned(index)),
        None => Opened::open(&path)?,
    };
    Ok((opened, path))
}

/// Returns the file for which a folder stands: its index of shards, its model, its shards, or its one file.
pub(crate) fn of(folder: &Path) -> Result<PathBuf> {
    if let Some(index) = versions::index_in(folder) {
        return Ok(index);
    }
    if let Some(metadata) = dcp::of_folder(folder) {
        return Ok(metadata);
    }
    let Files { indices, known, .. } = Files::of(folder)?;
    let is_safetensors = |path: &&PathBuf| name(path).contains(".safetensors.");
    let found = match indices.iter().any(|path| is_safetensors(&path)) {
        // The same weights in two formats.
        true => indices.iter().filter(is_safetensors).cloned().collect(),
        false => indices,
    };
    let model = || MODELS.iter().find_map(|model| known.iter().find(|path| name(path) == *model).cloned());
    let found = match &found[..] {
        [] => model().map_or_else(
            || {
                let sets: Vec<PathBuf> = known.iter().filter(|path| is_set(path)).cloned().collect();
                if sets.is_empty() { known.clone() } else { sets }
            },
            |model| vec![model],
        ),
        _ => found,
    };
    match &found[..] {
        [one] => Ok(one.clone()),
        _ => Err(refusal(folder)),
    }
}

/// Returns the files of a folder that `inspect` shows, and the number of others. Shards stand as their index,
/// or as one path with `*` for their numbers. Of a run of versions, it returns their folders.
pub(crate) fn files_in(folder: &Path) -> Result<(Vec<PathBuf>, u64)> {
    let run = versions::folders_in(folder)?;
    if !run.is_empty() {
        return Ok((run, 0));
    }
    if let Some(index) = versions::index_in(folder) {
        return Ok((vec![index], 0));
    }
    let Files { indices, known, others } = Files::of(folder)?;
    let mut files = [indices, known].concat();
    files.sort_by(|a, b| order::compare_paths(a, b));
    match files.is_empty() {
        true => Err(refusal(folder)),
        false => Ok((files, others.len() as u64)),
    }
}

/// Returns the files of a folder that are beside its tensors, such as `config.json`.
pub(crate) fn others_in(folder: &Path) -> Result<Vec<PathBuf>> {
    Ok(Files::of(folder)?.others)
}

/// Says what to give in the place of a folder.
pub(crate) fn refusal(folder: &Path) -> Failure {
    let files = Files::of(folder).map(|files| [files.indices, files.known].concat()).unwrap_or_default();
    let mut folders = files::entries(folder).unwrap_or_default();
    folders.retain(|path| files::is_folder(path));
    folders.sort_by(|a, b| order::compare_paths(a, b));
    let listed = |paths: &[PathBuf]| {
        let names: Vec<String> = paths.iter().take(NAMES).map(|path| name(path)).collect();
        names.join(", ") + if paths.len() > NAMES { ", .." } else { "" }
    };
    let what = match (files.is_empty(), folders.is_empty()) {
        (false, _) => format!("a folder where one file is needed; give one of its files: {}", listed(&files)),
        (true, false) => {
            format!(
                "the folder has no file of tensors and no stream; give one of its folders: {}",
                listed(&folders)
            )
        }
        (true, true) => "the folder has no file of tensors and no stream".to_owned(),
    };
    Failure::usage(what).in_file(folder)
}

/// Files of a folder, in the order of their names.
struct Files {
    /// Indices of shards, and descriptions of distributed checkpoints.
    indices: Vec<PathBuf>,
    /// Other files of tensors and streams, but no shards of an index; shards without one are a set.
    known: Vec<PathBuf>,
    others: Vec<PathBuf>,
}

impl Files {
    fn of(folder: &Path) -> Result<Self> {
        let mut paths = files::entries(folder).in_file(folder)?;
        paths.retain(|path| files::is_file(path));
        paths.sort_by(|a, b| order::compare_paths(a, b));
        let (mut indices, mut known, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        let (mut others, mut in_index) = (Vec::new(), HashSet::new());
        for path in paths {
            let input = Input::open(&path, 0);
            let is_pointer =
                |input: &Input| kind::is_pointer(&Section::from(input).head(kind::POINTER_BYTES));
            let is_promised = is_promised(&path) || input.as_ref().is_ok_and(is_pointer);
            match input.and_then(|input| Ok((kind::of_file(&path, &input)?, input))) {
                Ok((kind @ (Kind::Shards | Kind::Distributed), input)) => {
                    let files =
                        if kind == Kind::Shards { shards::files_of(&input) } else { dcp::files_of(&input) };
                    // An index that cannot be read says so when it is opened.
                    let files = files.unwrap_or_default();
                    in_index.extend(files.into_iter().map(|file| shards::file_or_stream(folder.join(file))));
                    indices.push(path);
                }
                _ if dcp::is_part(&path) => parts.push(path),
                Ok(_) => known.push(path),
                // Says what is wrong with it when it is opened.
                Err(_) if is_promised => known.push(path),
                Err(_) => others.push(path),
            }
        }
        // Reading the checkpoint warns of its further parts.
        if !parts.is_empty() && dcp::of_folder(folder).is_none() {
            let what = "parts of a PyTorch distributed checkpoint without its file .metadata, which says what \
                        is where";
            return Err(Failure::invalid(what)).in_file(folder);
        }
        known.retain(|path| !in_index.contains(path));
        let mut sets: Vec<PathBuf> = known.iter().filter_map(|path| shards::set_of(path)).collect();
        sets.dedup();
        known.retain(|path| shards::set_of(path).is_none());
        known.extend(sets);
        known.sort_by(|a, b| order::compare_paths(a, b));
        Ok(Self { indices, known, others })
    }
}

fn is_set(path: &Path) -> bool {
    shards::index_of_set(path).is_some()
}

/// Whether the ending of a name says that there are tensors.
fn is_promised(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    ENDINGS.contains(&&*ending)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
