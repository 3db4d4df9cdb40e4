//! `gcodec fold`: stores one delta that replaces several.

use super::{InStore, Place};
use crate::fail::{Outcome, Result};
use crate::output::{human_bytes, note};
use gcodec_store::Options;

/// Store one delta that replaces several
///
/// A receiver at version FROM uses it if this is the smallest download. The result is the same, bit for bit.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Version that the delta applies to
    from: u64,
    /// Version that it results in
    to: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    let store = args.place.open_large("folding", Options::default(), args.place.folder()?)?;
    let folded = store.fold(args.from, args.to).in_store(&args.place)?;
    if !quiet {
        note(format_args!(
            "versions {} to {}: {} in the place of {}",
            folded.from,
            folded.to,
            human_bytes(folded.bytes),
            human_bytes(folded.replay_bytes)
        ));
    }
    Ok(Outcome::Well)
}
