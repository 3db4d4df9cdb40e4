//! In the place of the operating system's files: those that were dropped on the page, by relative paths.

use crate::input::{Input, Ranges};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Fills a buffer with the bytes of a file from an offset on.
type ReadAt = dyn Fn(u64, &mut [u8]) + Send + Sync;

#[derive(Clone)]
struct Dropped {
    len: u64,
    read_at: Arc<ReadAt>,
}

static FILES: Mutex<BTreeMap<PathBuf, Dropped>> = Mutex::new(BTreeMap::new());

fn with<T>(f: impl FnOnce(&mut BTreeMap<PathBuf, Dropped>) -> T) -> T {
    f(&mut FILES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Adds a file of `len` bytes; `read_at` is called with ranges that lie in it.
pub fn add(path: &str, len: u64, read_at: impl Fn(u64, &mut [u8]) + Send + Sync + 'static) {
    with(|files| files.insert(PathBuf::from(path), Dropped { len, read_at: Arc::new(read_at) }));
}

/// Forgets all files.
pub fn clear() {
    with(BTreeMap::clear);
}

/// Returns the paths of all files.
pub(crate) fn all() -> Vec<PathBuf> {
    with(|files| files.keys().cloned().collect())
}

pub(crate) fn is_file(path: &Path) -> bool {
    with(|files| files.contains_key(path))
}

pub(crate) fn is_folder(path: &Path) -> bool {
    with(|files| files.keys().any(|file| file != path && file.starts_with(path)))
}

pub(crate) fn exists(path: &Path) -> bool {
    is_file(path) || is_folder(path)
}

pub(crate) fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let inside = |file: &PathBuf| Some(folder.join(file.strip_prefix(folder).ok()?.components().next()?));
    let found: BTreeSet<PathBuf> = with(|files| files.keys().filter_map(inside).collect());
    Ok(found.into_iter().collect())
}

pub(crate) fn len(path: &Path) -> Option<u64> {
    with(|files| files.get(path).map(|file| file.len))
}

pub(crate) enum Opened {
    Input(Input),
    #[allow(dead_code, reason = "as of the tool's module of this name")]
    Pipe(Box<dyn Read>),
}

pub(crate) fn open(path: &Path) -> io::Result<Opened> {
    let file = with(|files| files.get(path).cloned());
    let file =
        file.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the file is not among those given"))?;
    let Dropped { len, read_at } = file;
    Ok(Opened::Input(Input::Ranges(Ranges::new(len, Box::new(move |at, out| read_at(at, out))))))
}
