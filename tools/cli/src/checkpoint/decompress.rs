//! `gcodec decompress`: the files of which `gcodec compress` made streams.

use super::around::Around;
use super::files::{self, Fates, Job, there};
use crate::fail::{Failure, InFile, InOutput, Outcome, Result};
use crate::input::Input;
use crate::options::LimitArgs;
use crate::output::{Output, counted, human_bytes, note, real};
use crate::progress::Progress;
use crate::stream::Updates;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Give back the files that `gcodec compress` compressed, byte for byte
///
/// A file appears under its name only when its length and its BLAKE3 hash are those of the file that was
/// compressed. What else is in a folder is copied to that of --output.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gcodec decompress model.safetensors.gcu
  gcodec decompress checkpoint-1000 --remove")]
pub(crate) struct Args {
    /// Streams of `gcodec compress`, or folders of them
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// File to write, or folder for those of a folder [default: beside each stream, without .gcu]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    #[command(flatten)]
    fates: Fates,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs the command; `quiet` suppresses the summary.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    let file_of = |path: &Path| {
        let is_stream = path.extension().is_some_and(|extension| extension == "gcu");
        is_stream.then(|| path.with_extension(""))
    };
    let jobs = files::jobs(
        &args.inputs,
        args.output.as_deref(),
        &args.fates,
        file_of,
        "its name does not end in .gcu; if it is a stream, -o names its file",
    )?;
    let (mut files, mut were_there, mut bytes, start) = (0, 0, 0, Instant::now());
    let mut done = Vec::new();
    let mut total: u64 = jobs.iter().map(Job::bytes).sum();
    let progress = Progress::new(total, "decompressing", true);
    for job in &jobs {
        let stream = job.bytes();
        // Until a stream was opened, its own length stands for that of its file.
        let opened = |file: u64| {
            total = total.saturating_sub(stream).saturating_add(file);
            progress.set_total(total);
        };
        if let Some((len, was_there)) = args.decompress(job, &progress, opened).in_file(&job.from)? {
            files += 1;
            were_there += u64::from(was_there);
            bytes += len;
            done.push(job);
        }
    }
    if files == 0 {
        return Err(Failure::usage("there is no stream of `gcodec compress`"));
    }
    let copied = files::copy_others(&args.inputs, args.output.as_deref(), &done, &args.fates)?;
    if !quiet {
        let others = files::of_copied(copied);
        let speed = real(bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
        let there = there(were_there, files);
        note(format_args!("{}: {}, {speed} GB/s{there}{others}", counted(files, "file"), human_bytes(bytes)));
    }
    Ok(Outcome::Well)
}

impl Args {
    /// Writes the file of a stream. Returns its length, and whether it was there before; `None` if a folder
    /// has a stream of another origin.
    fn decompress(
        &self,
        job: &Job,
        progress: &Progress,
        opened: impl FnOnce(u64),
    ) -> Result<Option<(u64, bool)>> {
        let stream = Input::open(&job.from, 0)?;
        let updates = Updates::open(&stream, &self.limits.limits())?;
        let Some(around) = Around::find(&updates)? else {
            return match job.in_folder {
                true => Ok(None),
                false => Err(Failure::usage("not of `gcodec compress`: `gcodec decode` decodes its updates")),
            };
        };
        opened(around.bytes);
        if !self.fates.force && job.to.is_file() {
            let is_there = is_there(&around, &job.to)?;
            progress.add(around.bytes);
            return match is_there {
                true => job.end(&self.fates).map(|()| Some((around.bytes, true))),
                false => {
                    let what = "is there, and is another file; --force replaces it";
                    Err(Failure::usage(format_args!("{} {what}", job.to.display())))
                }
            };
        }
        job.make_folder()?;
        let mut out = Output::create(&job.to)?;
        around.write(&updates, &mut |bytes| {
            progress.add(bytes.len() as u64);
            out.write_all(bytes).in_output(&job.to)
        })?;
        out.finish().in_output(&job.to)?;
        job.end(&self.fates)?;
        Ok(Some((around.bytes, false)))
    }
}

/// Whether the file at `path` is the one that was compressed.
fn is_there(around: &Around, path: &Path) -> Result<bool> {
    if fs::metadata(path).in_output(path)?.len() != around.bytes {
        return Ok(false);
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap_rayon(path).in_output(path)?;
    Ok(hasher.finalize().to_string() == around.blake3)
}
