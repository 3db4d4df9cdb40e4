//! `gcodec gc`: deletes weights that no reader needs.

use super::{InStore, Place};
use crate::fail::{Outcome, Result};
use crate::output::{counted, human_bytes, note, print};
use gcodec_store::{Collection, Options};

/// Delete weights of a store that no reader needs
///
/// It keeps the latest versions, the objects that readers with leases need, and everything younger than the
/// store's grace period of one hour. If a collection is stopped, the next one continues it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Latest versions that stay available
    #[arg(long, value_name = "N", default_value_t = 1)]
    keep: u64,
    /// Delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    let store = args.place.open("collecting", Options::default())?;
    let collection = Collection::default().with_keep(args.keep).with_dry_run(args.dry_run);
    let collected = store.gc(&collection).in_store(&args.place)?;
    if args.json {
        let line = serde_json::json!({
            "oldest": collected.oldest, "kept": collected.kept, "deleted": collected.deleted,
            "bytes": collected.bytes, "dry_run": args.dry_run,
        });
        print(format_args!("{line}\n"))?;
    } else if !quiet {
        note(format_args!(
            "{}{}, {}; {} kept, versions from {} on",
            if args.dry_run { "would delete " } else { "deleted " },
            counted(collected.deleted, "object"),
            human_bytes(collected.bytes),
            collected.kept,
            collected.oldest
        ));
    }
    Ok(Outcome::Well)
}
