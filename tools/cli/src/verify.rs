//! `gcodec verify`: reads, checks and decodes whole streams.

use crate::fail::{Failure, InFile, Outcome, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::options::{LimitArgs, check_one_stdin};
use crate::output::{counted, human_bytes, note, print};
use crate::progress::Progress;
use crate::stream::{Names, explain};
use gcodec::Limits;
use gcodec::frame::UpdatePart;
use gcodec::stream::{Body, Event, SliceReader};
use rayon::prelude::*;
use std::path::PathBuf;

/// Check streams: every checksum, every rule of the format, every block
///
/// Exits with 3 if a stream is corrupt or invalid. Standard error has the byte offset, frame, block and
/// tensor of the error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The digests of a delta's base and result are not checked: `gcodec decode --base` does that.

Examples:
  gcodec verify run.gcu
  gcodec verify *.gcu && echo all valid")]
pub(crate) struct Args {
    /// Streams; `-` is standard input
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Totals of a valid stream.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    frames: u64,
    segments: u64,
    updates: u64,
    deltas: u64,
    blocks: u64,
    values: u64,
    elements: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    check_one_stdin(&args.inputs)?;
    let limits = args.limits.limits();
    let mut first: Option<Failure> = None;
    for path in &args.inputs {
        let verified = Input::open(path, DEFAULT_MAX_BYTES)
            .and_then(|input| verify(&input, &limits).in_file(path).map(|c| (c, input.len())));
        match verified {
            Ok((checked, len)) if !quiet => {
                print(format_args!("{}: ok: {}\n", path.display(), checked.text(len)))?
            }
            Ok(_) => {}
            // Checks all streams; the first failure sets the exit code.
            Err(failure) => match first {
                None => first = Some(failure),
                Some(_) => note(&failure),
            },
        }
    }
    first.map_or(Ok(Outcome::Well), Err)
}

impl Checked {
    fn text(&self, bytes: usize) -> String {
        let deltas = match self.deltas {
            0 => String::new(),
            n => format!(" ({})", counted(n, "delta")),
        };
        format!(
            "{}, {} in {}, {}{deltas}, {} with {} for {}",
            human_bytes(bytes as u64),
            counted(self.frames, "frame"),
            counted(self.segments, "segment"),
            counted(self.updates, "update"),
            counted(self.blocks, "block"),
            counted(self.values, "value"),
            counted(self.elements, "element"),
        )
    }
}

pub(crate) fn verify(bytes: &[u8], limits: &Limits) -> Result<Checked> {
    let mut checked = Checked::default();
    let mut names = Names::default();
    let mut damaged: Option<Failure> = None;
    let progress = Progress::new(bytes.len() as u64, "verifying", true);
    for event in SliceReader::new(bytes, limits.clone()) {
        let event = event.map_err(|e| names.explain(e));
        let event = match (event, damaged.is_some()) {
            (Err(failure), true) => {
                note(failure);
                break;
            }
            (event, _) => event?,
        };
        names.see(&event);
        let Event::Frame(info, body) = event else { continue };
        checked.frames += 1;
        match body {
            Body::Update(part) => {
                checked.updates += u64::from(part.last);
                checked.deltas += u64::from(part.last && part.header.delta.is_some());
                checked.blocks += part.blocks.len() as u64;
                checked.elements += part.blocks.iter().map(|b| b.space.len()).sum::<u64>();
                for result in decode_blocks(&part) {
                    match result {
                        Ok(values) => checked.values += values,
                        Err(e) => {
                            let failure =
                                explain(e, Some(&part.manifest)).about(format_args!("frame {}", info.number));
                            match damaged {
                                None => damaged = Some(failure),
                                Some(_) => note(failure),
                            }
                        }
                    }
                }
            }
            Body::End(_) => checked.segments += 1,
            _ => {}
        }
        progress.set(info.offset + info.len());
    }
    damaged.map_or(Ok(checked), Err)
}

/// Returns the number of values in each block, or its error.
fn decode_blocks(part: &UpdatePart<'_>) -> Vec<gcodec::Result<u64>> {
    let budget = part.budget();
    (0..part.blocks.len())
        .into_par_iter()
        .map(|i| {
            let block = part.decode(i, &budget.with_memory_renewed())?;
            crate::inspect::kept(&block, &part.blocks[i].space, part)
        })
        .collect()
}
