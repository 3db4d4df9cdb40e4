//! `gcodec compress`: whole files of tensors as streams that give them back byte for byte.

use super::around::Around;
use super::files::{self, Fates, Job, there};
use crate::assign;
use crate::fail::{Code, Failure, InFile, InOutput, Outcome, Result};
use crate::input::Input;
use crate::options::{LimitArgs, efforts};
use crate::output::{Output, counted, human_bytes, note, real, warn};
use crate::progress::Progress;
use crate::stream::Updates;
use crate::tensors::Laid;
use crate::tensors::kind::{self, Kind};
use gcodec::block::{Effort, Scope};
use gcodec::compress::codecs::Lossless;
use gcodec::compress::{self, Options};
use gcodec::frame::{Manifest, Metadata, TensorInfo, UpdateHeader};
use gcodec::stream::EncodeOptions;
use gcodec::{Codec, Writer};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Compress whole files of tensors, so that `gcodec decompress` gives them back byte for byte
///
/// Each file becomes a stream beside it, named as it with `.gcu` behind. Its tensors are coded by the codec
/// lossless, and are read by every command like those of other streams; what is around them (names, order,
/// metadata, padding) is kept in the stream's metadata. A stream gets its name after the file was read back
/// from it and compared.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Files: .safetensors, .pt and other files of torch.save, .npy, .npz that is not deflated, .gguf. In
a folder, other files are left as they are, and are copied to the folder of --output. A file whose
stream is there already is compared with it and skipped, so that a stopped command can be repeated.

Examples:
  gcodec compress model.safetensors
  gcodec compress checkpoint-1000 --remove
  gcodec decompress checkpoint-1000 --remove")]
pub(crate) struct Args {
    /// Files, or folders of files
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// Stream to write, or folder for those of a folder [default: beside each file]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Search for a smaller form: `fast` takes about half of the time to encode, and streams are mostly up to
    /// 1 % larger
    #[arg(long, value_name = "EFFORT", value_parser = efforts(), default_value = "default")]
    effort: Effort,
    #[command(flatten)]
    fates: Fates,
}

/// Lengths of files and their streams.
#[derive(Debug, Default)]
struct Totals {
    files: u64,
    /// Files whose streams were there.
    there: u64,
    left: u64,
    bytes: u64,
    streams: u64,
}

/// A file that has its stream: the lengths of both.
struct Done {
    bytes: u64,
    stream: u64,
    /// Whether it had it before.
    was_there: bool,
}

/// Runs the command; `quiet` suppresses the summary.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    let stream_of = |path: &Path| {
        let is_stream = path.extension().is_some_and(|extension| extension == "gcu");
        let name = path.file_name()?.to_str()?;
        (!is_stream).then(|| path.with_file_name(format!("{name}.gcu")))
    };
    let jobs = files::jobs(
        &args.inputs,
        args.output.as_deref(),
        &args.fates,
        stream_of,
        "it is a stream by its name",
    )?;
    let (mut totals, mut done, start) = (Totals::default(), Vec::new(), Instant::now());
    let progress = Progress::new(jobs.iter().map(Job::bytes).sum(), "compressing", true);
    let mut finished = 0;
    for job in &jobs {
        // It may be removed.
        let bytes = job.bytes();
        match args.compress(job, &progress).in_file(&job.from)? {
            Some(Done { bytes, stream, was_there }) => {
                totals.files += 1;
                totals.there += u64::from(was_there);
                totals.bytes += bytes;
                totals.streams += stream;
                done.push(job);
            }
            None => totals.left += 1,
        }
        finished += bytes;
        progress.set(finished);
    }
    if totals.files == 0 {
        return Err(Failure::usage("there is no file of tensors"));
    }
    let copied = files::copy_others(&args.inputs, args.output.as_deref(), &done, &args.fates)?;
    if !quiet {
        let left = match (copied, totals.left) {
            (0, 0) => String::new(),
            (0, 1) => "; 1 other file is left as it is".to_owned(),
            (0, left) => format!("; {left} other files are left as they are"),
            (copied, _) => files::of_copied(copied),
        };
        let there = there(totals.there, totals.files);
        note(format_args!(
            "{}: {} -> {} ({} %), {} GB/s{there}{left}",
            counted(totals.files, "file"),
            human_bytes(totals.bytes),
            human_bytes(totals.streams),
            real(totals.streams as f64 / totals.bytes.max(1) as f64 * 100.0),
            real(totals.bytes as f64 / start.elapsed().as_secs_f64() / 1e9),
        ));
    }
    Ok(Outcome::Well)
}

impl Args {
    /// Compresses a file; `None` if it is left as it is.
    fn compress(&self, job: &Job, progress: &Progress) -> Result<Option<Done>> {
        let Some(original) = Original::read(job)? else { return Ok(None) };
        let file = &original.laid.bytes;
        if job.to.is_file() {
            let is_same = Input::open(&job.to, 0)
                .and_then(|stream| compare(file, &stream, &|bytes| progress.add(bytes)));
            if is_same.is_err() && !self.fates.force {
                let what = "is there, and is not the stream of this file; --force replaces it";
                return Err(Failure::usage(format_args!("{} {what}", job.to.display())));
            }
            if is_same.is_ok() {
                let stream = fs::metadata(&job.to).in_output(&job.to)?.len();
                job.end(&self.fates)?;
                return Ok(Some(Done { bytes: file.len(), stream, was_there: true }));
            }
        }
        job.make_folder()?;
        let mut out = write(&original, self.effort, Output::create(&job.to)?, progress).map_err(
            |failure| match failure.code {
                Code::Io => failure.in_output(&job.to),
                _ => failure,
            },
        )?;
        let written = out.written().in_output(&job.to)?;
        if let Some(written) = &written {
            compare(file, written, &|bytes| progress.add(bytes / 2))?;
        }
        let stream = written.map_or(0, |written| written.len());
        out.finish().in_output(&job.to)?;
        job.end(&self.fates)?;
        Ok(Some(Done { bytes: file.len(), stream, was_there: false }))
    }
}

/// A file that is compressed.
struct Original {
    laid: Laid,
    around: Around,
}

impl Original {
    /// Reads a file; `None` for one of a folder that is left as it is, with a warning if it has tensors.
    fn read(job: &Job) -> Result<Option<Self>> {
        let input = Input::open(&job.from, 0)?;
        let kind = match kind::of_file(&job.from, &input) {
            Ok(kind) if kind.is_alone() => kind,
            _ if job.in_folder => return Ok(None),
            Ok(kind) => {
                return Err(Failure::usage(format_args!("{} is not compressed as a file", kind.name())));
            }
            Err(failure) => return Err(failure),
        };
        match Self::of(kind, input, &job.from) {
            Err(failure) if job.in_folder && failure.code != Code::Io => {
                warn(format_args!("{}: left as it is: {}", job.from.display(), failure.message));
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    fn of(kind: Kind, input: Input, path: &Path) -> Result<Self> {
        let laid = Laid::read(kind, input, path)?;
        if laid.places.is_empty() {
            let what = "none of its tensors has elements that are coded as they lie: they are deflated, \
                        big-endian, in Fortran order and of a type that is not read, or there are none";
            return Err(Failure::usage(what));
        }
        let around = Around::of(&laid.bytes, &laid.places)?;
        Ok(Self { laid, around })
    }
}

/// Writes the stream of a file: half of the progress, the other half is reading it back.
fn write(original: &Original, effort: Effort, out: Output, progress: &Progress) -> Result<Output> {
    let file = &original.laid;
    let mut entries = file.metadata.clone();
    entries.extend([original.around.entry()?]);
    let named = || file.tensors.iter().map(|tensor| (tensor.name(), tensor.view()));
    let manifest = assign::manifest_of(named())?;
    let inputs: Vec<_> = named()
        .zip(0u64..)
        .map(|((name, view), tensor)| compress::Input { tensor, name, view, base: None })
        .collect();
    let codec = Codec::Lossless(Lossless { effort });
    let codecs = vec![codec; inputs.len()];
    let explained = |e| assign::explain(e, &manifest);
    let blocks = compress::pending(&inputs, &codecs, &Options::default()).map_err(explained)?;
    let mut writer = Writer::new(out, EncodeOptions::default());
    writer.metadata(&Metadata { entries })?;
    let header = UpdateHeader::default().with_label(codec.to_string());
    let blocks = blocks.inspect(|block| {
        let of_block = block.as_ref().map_or(0, |block| bytes_of(block.scope(), &manifest));
        progress.add(of_block / 2);
    });
    writer.update(&header, &manifest, blocks).map_err(explained)?;
    Ok(writer.finish()?)
}

/// Returns the bytes of the elements in the scope of a block.
fn bytes_of(scope: Scope, manifest: &Manifest) -> u64 {
    let tensors = manifest.tensors().iter().skip(scope.first() as usize);
    match scope {
        Scope::Range { len, .. } => tensors.take(1).filter_map(|tensor| tensor.dtype.bytes_for(len)).sum(),
        _ => tensors.take(scope.tensors() as usize).map(TensorInfo::bytes).sum(),
    }
}

/// Fails unless a stream gives back these bytes. `seen`: takes the number of bytes that were compared.
fn compare(file: &[u8], stream: &[u8], seen: &dyn Fn(u64)) -> Result<()> {
    let updates = Updates::open(stream, &LimitArgs::default().limits())?;
    let mut rest = file;
    let different = || Failure::invalid("the stream does not give the file back");
    Around::find(&updates)?.ok_or_else(different)?.write(&updates, &mut |bytes| match rest
        .split_at_checked(bytes.len())
    {
        Some((here, after)) if here == bytes => {
            rest = after;
            seen(here.len() as u64);
            Ok(())
        }
        _ => Err(different()),
    })
}
