//! The files that a command takes: one, or those of a folder.

use crate::fail::{Failure, InFile, InOutput, Result};
use crate::input::{Input, is_standard};
use crate::options::check_output_is_new;
use crate::order;
use crate::output::Output;
use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Options on files that are there.
#[derive(Debug, clap::Args)]
pub(super) struct Fates {
    /// Remove each input when its result is on the disk
    #[arg(long)]
    remove: bool,
    /// Replace a result that is there and is that of another file
    #[arg(long)]
    pub(super) force: bool,
}

/// A file, and where its result goes.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    /// Whether it is one of a folder, which has other files, too.
    pub(super) in_folder: bool,
}

impl Job {
    /// Returns the length of the input, for the progress bar.
    pub(super) fn bytes(&self) -> u64 {
        fs::metadata(&self.from).map_or(0, |input| input.len())
    }

    /// Makes the folder of the result, if that is one of a folder's.
    pub(super) fn make_folder(&self) -> Result<()> {
        match self.to.parent().filter(|folder| self.in_folder && !folder.as_os_str().is_empty()) {
            Some(folder) => fs::create_dir_all(folder).in_output(folder),
            None => Ok(()),
        }
    }

    /// Removes the input, if that is wanted: its result is on the disk.
    pub(super) fn end(&self, fates: &Fates) -> Result<()> {
        if fates.remove { fs::remove_file(&self.from).in_file(&self.from) } else { Ok(()) }
    }
}

/// Says how many of the results were there before.
pub(super) fn there(count: u64, of: u64) -> String {
    match count {
        0 => String::new(),
        all if all == of => "; there before, and compared".to_owned(),
        some => format!("; {some} were there before, and compared"),
    }
}

/// Says how many other files were copied.
pub(super) fn of_copied(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => "; 1 other file was copied".to_owned(),
        many => format!("; {many} other files were copied"),
    }
}

/// Copies to the folder of the results what else is in the folders of the inputs, such as an index and
/// `config.json`: the results are of use only with it. `done`: the inputs that have results. Returns the
/// number of files.
pub(super) fn copy_others(
    inputs: &[PathBuf],
    output: Option<&Path>,
    done: &[&Job],
    fates: &Fates,
) -> Result<u64> {
    let Some(output) = output else { return Ok(0) };
    let taken: HashSet<&Path> = done.iter().flat_map(|job| [&*job.from, &*job.to]).collect();
    let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (results, mut copied) = (whole(output), 0);
    for input in inputs.iter().filter(|input| input.is_dir()) {
        let mut files = Vec::new();
        walk(input, DEPTH, &mut files)?;
        for from in files {
            let Ok(within) = from.strip_prefix(input) else { continue };
            let to = output.join(within);
            // The folder of the results may be one of those within.
            let is_result =
                taken.contains(&*from) || taken.contains(&*to) || whole(&from).starts_with(&results);
            if is_result || !from.exists() {
                continue;
            }
            copy(&Job { from, to, in_folder: true }, fates)?;
            copied += 1;
        }
    }
    Ok(copied)
}

/// Copies a file, unless it is there.
fn copy(job: &Job, fates: &Fates) -> Result<()> {
    let file = Input::open(&job.from, 0)?;
    if job.to.is_file() {
        if Input::open(&job.to, 0)?[..] == file[..] {
            return Ok(());
        }
        if !fates.force {
            let what = "is there, and is another file; --force replaces it";
            return Err(Failure::usage(format_args!("{} {what}", job.to.display())));
        }
    }
    job.make_folder()?;
    let mut out = Output::create(&job.to)?;
    out.write_all(&file).in_output(&job.to)?;
    out.finish().in_output(&job.to)
}

/// Most folders within each other.
const DEPTH: usize = 32;

/// Returns the files of the inputs. `rename`: the name of a result, or `None` for a file that is not for this
/// command, of which `refusal` says what to do. Two files never have one result, nor one that is a file.
pub(super) fn jobs(
    inputs: &[PathBuf],
    output: Option<&Path>,
    fates: &Fates,
    rename: impl Fn(&Path) -> Option<PathBuf>,
    refusal: &str,
) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for input in inputs {
        if is_standard(input) {
            return Err(Failure::usage("a file is needed, not standard input"));
        }
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
    let mut results = HashSet::new();
    for job in &jobs {
        check_output_is_new(&job.to, [&job.from])?;
        // What is removed must not have gone into a pipe, where nobody can compare it.
        if fates.remove && (is_standard(&job.to) || fs::metadata(&job.to).is_ok_and(|to| !to.is_file())) {
            return Err(Failure::usage("--remove is for results in files").in_output(&job.to));
        }
        if !results.insert(&job.to) {
            return Err(Failure::usage("two files would have this result").in_output(&job.to));
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
