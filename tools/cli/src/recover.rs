//! `gcodec recover`: saves the intact updates of a corrupt stream.

use crate::fail::{Failure, InFile, InOutput, Outcome, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input, is_standard};
use crate::options::{LimitArgs, check_output_is_new};
use crate::output::{Counted, Output, counted, human_bytes, note};
use gcodec::Limits;
use gcodec::stream::{Event, SliceReader};
use std::path::PathBuf;

/// Save the intact updates of a corrupt or truncated stream
///
/// Copies to a new stream, with a new index, every frame that has correct checksums and whose manifest and
/// index sets are intact. Exits with 0 if nothing was lost, with 1 otherwise.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gcodec recover broken.gcu -o saved.gcu
  gcodec verify saved.gcu")]
pub(crate) struct Args {
    /// Stream; `-` is standard input
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// New stream; `-` is standard output
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    check_output_is_new(&args.output, [&args.input])?;
    let input = Input::open(&args.input, DEFAULT_MAX_BYTES)?;
    let limits = args.limits.limits();
    let out = Counted::new(Output::create(&args.output)?);
    let saved = gcodec::file::recover(&input, &limits, out).in_output(&args.output)?;
    let whole = is_whole(&input, &limits);
    if saved.frames_kept == 0 && !whole {
        return Err(Failure::invalid("it has no intact frames")).in_file(&args.input);
    }
    let bytes = saved.stream.finish().in_output(&args.output)?;
    let lost = saved.frames_dropped > 0 || saved.bytes_lost > 0 || !whole;
    if !quiet {
        note(format_args!(
            "{}: kept {} in {}, {} of {}",
            if is_standard(&args.output) {
                "standard output".into()
            } else {
                args.output.display().to_string()
            },
            counted(saved.updates_kept, "update"),
            counted(saved.frames_kept, "frame"),
            human_bytes(bytes),
            human_bytes(input.len()),
        ));
        if saved.frames_dropped > 0 {
            note(format_args!(
                "dropped {}: wrong inside, or the manifest, index set or other parts are lost",
                counted(saved.frames_dropped, "frame")
            ));
        }
        if saved.bytes_lost > 0 {
            note(format_args!("lost {} outside whole frames", counted(saved.bytes_lost, "byte")));
        }
        if lost && saved.frames_dropped == 0 && saved.bytes_lost == 0 {
            note(
                "the end of the stream was missing or wrong: what stood behind it, if anything did, is lost",
            );
        }
        if !lost {
            note("nothing was lost");
        }
    }
    Ok(if lost { Outcome::Differs } else { Outcome::Well })
}

/// Whether the stream can be read from its beginning to its end.
fn is_whole(bytes: &[u8], limits: &Limits) -> bool {
    SliceReader::new(bytes, limits.clone()).all(|event: gcodec::Result<Event<'_>>| event.is_ok())
}
