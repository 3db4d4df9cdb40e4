//! `gcodec publish`: adds a version to a store.

use super::{InStore, Place, held};
use crate::fail::{Failure, InFile, Outcome, Result};
use crate::fit::Prefixes;
use crate::naming::CODEC;
use crate::options::{NameGlob, parse_pair};
use crate::output::{human_bytes, note, print};
use crate::tensors::{Dump, Labels};
use gcodec::Codec;
use gcodec_store::{Options, Policy, Publisher};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Publish tensors as the next version of a store
///
/// The version is a delta against the one before. At least every --anchor-every versions, it is also an
/// anchor: the whole weights. If two publishers run at the same time, one of them fails, and nothing of its
/// version is visible.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --base, the version before is downloaded, to a temporary file in the store's folder or in
TMPDIR. With --codec delta:values=overwrite, the delta has the new elements instead of differences. It
is larger, but a receiver may apply it twice, or to elements that differ.

Examples:
  gcodec publish runs/7 step0001.safetensors --meta step=1
  gcodec publish s3://bucket/runs/7 new.safetensors --base old.safetensors")]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Tensors: a file, an index of shards, or the folder of a checkpoint; `-` is standard input
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The latest version or an earlier one, as `gcodec pull` wrote it; avoids a download
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// Leave out the tensors whose names match
    #[arg(long, value_name = "GLOB")]
    without: Vec<NameGlob>,
    #[command(flatten)]
    prefixes: Prefixes,
    /// Key and value for the version
    #[arg(long, value_name = "K=V", value_parser = parse_pair)]
    meta: Vec<(String, String)>,
    /// Versions from one anchor to the next, at most
    #[arg(long, value_name = "N", default_value_t = 64)]
    anchor_every: u64,
    /// Codec of the delta: `delta` with any of its keys
    #[arg(long, value_name = "SPEC", value_parser = CODEC, hide_possible_values = true, default_value = "delta")]
    codec: Codec,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, quiet: bool) -> Result<Outcome> {
    let mut meta: BTreeMap<_, _> = args.meta.iter().cloned().collect();
    if meta.len() != args.meta.len() {
        return Err(Failure::usage("a key of --meta is repeated"));
    }
    let mut dump = Dump::open_whole(&args.input, &args.without, quiet)?;
    args.prefixes.rename(&mut dump).in_file(&args.input)?;
    meta.extend(Labels::of(&dump.metadata).entry());
    let store = args.place.open_large("publishing", Options::default(), args.place.folder()?)?;
    let held = |path| held(&args.place, &store, &args.prefixes, Dump::open_carrying(path)?).in_file(path);
    let base = args.base.as_deref().map(held).transpose()?.map(|held| held.replica);
    let policy = Policy::default().with_anchor_every(args.anchor_every.max(1)).with_codec(args.codec);
    let publisher = Publisher::with_base(&store, policy, base).in_store(&args.place)?;
    let views: Vec<_> = dump.tensors.iter().map(|t| (t.name(), t.view())).collect();
    let published = publisher.publish_last(&views, meta).in_store(&args.place)?;
    if args.json {
        print(format_args!(
            "{}\n",
            serde_json::json!({
                "version": published.version, "touched": published.touched, "bytes": published.bytes,
                "delta_bytes": published.delta_bytes, "anchor_bytes": published.anchor_bytes,
            })
        ))?;
    } else if !quiet {
        let part = |what: &str, bytes: Option<u64>| {
            bytes.map_or_else(String::new, |bytes| format!(", {what} {}", human_bytes(bytes)))
        };
        note(format_args!(
            "version {}: {} of {} tensors changed, {}{}{}",
            published.version,
            published.touched,
            views.len(),
            human_bytes(published.bytes),
            part("delta", published.delta_bytes),
            part("anchor", published.anchor_bytes),
        ));
    }
    Ok(Outcome::Well)
}
