//! `gcodec log`: lists the versions of a store.

use super::{InStore, Place};
use crate::fail::{Outcome, Result};
use crate::output::{Align, Table, human_bytes, print, printable};
use gcodec_store::Options;

/// List the versions of a store, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Versions to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    count: u64,
    /// Print one JSON object for each version
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let versions = args.place.open("reading", Options::default())?.log(args.count).in_store(&args.place)?;
    if args.json {
        for v in versions {
            let line = serde_json::json!({
                "version": v.version, "created_ms": v.created_ms, "meta": v.meta, "bytes": v.bytes,
                "delta_bytes": v.delta_bytes, "codec": v.codec, "anchor_bytes": v.anchor_bytes, "touched": v.touched,
                "state": v.state,
            });
            print(format_args!("{line}\n"))?;
        }
        return Ok(Outcome::Well);
    }
    let columns = ["version", "weights", "delta", "codec", "anchor", "changed", "state"];
    let mut table = Table::new(&columns.map(|c| (c, Align::Right)));
    let size = |bytes: Option<u64>| bytes.map_or_else(String::new, human_bytes);
    for v in versions {
        table.row([
            v.version.to_string(),
            human_bytes(v.bytes),
            size(v.delta_bytes),
            v.codec.as_deref().map_or_else(String::new, printable),
            size(v.anchor_bytes),
            v.touched.to_string(),
            // A stranger may have written it.
            printable(&v.state[..v.state.len().min(12)]),
        ]);
    }
    print(table)?;
    Ok(Outcome::Well)
}
