//! `gcodec inspect`: shows the contents of a stream.

mod report;
pub(crate) mod text;

use crate::annotate;
use crate::fail::{Failure, InFile, Outcome, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input, is_standard};
use crate::options::{LimitArgs, NameGlob};
use crate::output::{note, print};
pub(crate) use report::{Report, kept};
use std::path::PathBuf;

/// Show the contents of a stream: its updates and a table of their tensors
///
/// Reads, checks and decodes the whole stream.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns of the table: kept values and their density; bits per parameter, split into positions,
values and overhead (headers of blocks); and the ratio to the tensor's own bytes. The bits of a
block that spans several tensors are divided among them by kept values, and the rows are marked
with ~. Where only the base of a delta tells how many are kept, the row has ?, and the bits are
divided by elements. The row `headers` counts the frame's header and the fields before the blocks.
`all` is the whole update.

docs/inspect.schema.json describes the output of --json.

--annotate prints for each field: offset, bytes, name, value and meaning. A field longer than
32 bytes is shortened.

Examples:
  gcodec inspect run.gcu
  gcodec inspect run.gcu --frame 3 --tensor '*.weight'
  gcodec inspect run.gcu --json | jq '.updates[].bits_per_parameter'
  gcodec inspect run.gcu --annotate --frame 1")]
pub(crate) struct Args {
    /// Stream; `-` is standard input
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Print JSON
    #[arg(long, conflicts_with = "annotate")]
    json: bool,
    /// Only this frame, counted from 0
    #[arg(long, value_name = "N")]
    frame: Option<u64>,
    /// Only tensors whose names match
    #[arg(long, value_name = "GLOB", conflicts_with = "annotate")]
    tensor: Option<NameGlob>,
    /// Print the bytes with the fields that they encode
    #[arg(long)]
    annotate: bool,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let input = Input::open(&args.input, DEFAULT_MAX_BYTES)?;
    let limits = args.limits.limits();
    if args.annotate {
        return annotated(args, &input).in_file(&args.input);
    }
    let (report, failure) = Report::of(&input, args.frame, args.tensor.as_ref(), &limits);
    if args.frame.is_some() && report.frames.is_empty() && failure.is_none() {
        return Err(no_frame(args)).in_file(&args.input);
    }
    let nothing = args.tensor.is_some() && report.updates.iter().all(|u| u.tensors.is_empty());
    if nothing && failure.is_none() {
        return Err(Failure::usage("no tensor of an update matches --tensor")).in_file(&args.input);
    }
    // Shows everything before an error. An input that is no stream has nothing to show.
    if args.json {
        let json = serde_json::to_string_pretty(&report).map_err(std::io::Error::from)?;
        print(format_args!("{json}\n"))?;
    } else if report.version.is_some() {
        let name = match is_standard(&args.input) {
            true => "standard input".to_owned(),
            false => args.input.display().to_string(),
        };
        print(text::render(&report, &name, args.frame.is_some()))?;
    }
    match failure {
        Some(failure) => Err(failure.in_file(&args.input)),
        None => Ok(Outcome::Well),
    }
}

fn annotated(args: &Args, bytes: &[u8]) -> Result<Outcome> {
    if bytes.len() > SMALL && args.frame.is_none() {
        note("a large stream: --frame N shows one frame of it");
    }
    let (pieces, error) = annotate::annotate(bytes, args.frame, &args.limits.limits());
    print(annotate::text(&pieces, bytes))?;
    match error {
        Some(error) => Err(crate::stream::explain(error, None)),
        None if pieces.is_empty() => Err(no_frame(args)),
        None => Ok(Outcome::Well),
    }
}

fn no_frame(args: &Args) -> Failure {
    Failure::usage(format_args!("there is no frame {}", args.frame.unwrap_or_default()))
}

/// Largest stream, in bytes, that is annotated as a whole without a note.
const SMALL: usize = 1 << 20;
