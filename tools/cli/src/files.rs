//! The files that inputs are: of the operating system. In a browser, `web/` has others in this place.

use crate::input::Input;
use gcodec::file::Map;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Whether there is a regular file at this path.
pub(crate) fn is_file(path: &Path) -> bool {
    path.is_file()
}

/// Whether there is a folder at this path.
pub(crate) fn is_folder(path: &Path) -> bool {
    path.is_dir()
}

/// Whether there is anything at this path.
pub(crate) fn exists(path: &Path) -> bool {
    path.exists()
}

/// Returns the paths of what is in a folder, in no order.
pub(crate) fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// Returns the number of bytes of a regular file.
pub(crate) fn len(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len())
}

/// A file that was opened.
pub(crate) enum Opened {
    /// A regular file.
    Input(Input),
    /// A pipe, or another file that cannot be mapped.
    Pipe(Box<dyn Read>),
}

/// Opens a file.
pub(crate) fn open(path: &Path) -> io::Result<Opened> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    // An empty file cannot be mapped; files of /proc claim to be empty and are not.
    match metadata.is_file() && metadata.len() > 0 {
        true => Map::open(path).map(|map| Opened::Input(Input::Mapped(map))),
        false => Ok(Opened::Pipe(Box::new(file))),
    }
}
