//! The files that a command takes: one, or those of a folder.

use crate::fail::{Failure, InFile, Result};
use crate::order;
use std::fs;
use std::path::{Path, PathBuf};

/// A file, and where its result goes.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    /// Whether it is one of a folder, which has other files, too.
    pub(super) in_folder: bool,
}

/// Most folders within each other.
const DEPTH: usize = 32;

/// Returns the files of the inputs. `rename`: the name of a result, or `None` for a file that is not for this
/// command, of which `refusal` says what to do.
pub(super) fn jobs(
    inputs: &[PathBuf],
    output: Option<&Path>,
    rename: impl Fn(&Path) -> Option<PathBuf>,
    refusal: &str,
) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for input in inputs {
        if !fs::metadata(input).in_file(input)?.is_dir() {
            let to = output.map(Path::to_owned).or_else(|| rename(input));
            let to = to.ok_or_else(|| Failure::usage(refusal).in_file(input))?;
            jobs.push(Job { from: input.clone(), to, in_folder: false });
            continue;
        }
        let mut files = Vec::new();
        walk(input, DEPTH, &mut files)?;
        for from in order::arranged(&files) {
            let Some(to) = rename(&from) else { continue };
            let to = match (output, to.strip_prefix(input)) {
                (Some(folder), Ok(within)) => folder.join(within),
                _ => to,
            };
            jobs.push(Job { from, to, in_folder: true });
        }
    }
    Ok(jobs)
}

/// Adds the files of a folder and of those within. Links to folders are not followed: they may go round.
fn walk(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).in_file(folder)? {
        let entry = entry.in_file(folder)?;
        let (path, kind) = (entry.path(), entry.file_type().in_file(folder)?);
        match kind.is_dir() {
            true if depth == 0 => {
                return Err(Failure::usage("too many folders within each other")).in_file(&path);
            }
            true => walk(&path, depth - 1, files)?,
            // A link to a file counts as the file, as in the caches of model hubs.
            false if path.is_file() => files.push(path),
            false => {}
        }
    }
    Ok(())
}
