//! Changes of an update's tensors on their device.

use gcodec::Codec;
use gcodec::block::CodedBlock;
use gcodec::compress::Digests;
use gcodec::frame::{DeltaRuns, Manifest};
use gcodec_cuda::{DeltaCompressor, DeltaInput};

use super::{Lent, device, opened};
use crate::errors::Failure;

/// A tensor on a device, and its base there.
pub(crate) struct Changed<'a> {
    /// Its number in the manifest.
    pub(crate) number: u64,
    pub(crate) new: &'a Lent,
    pub(crate) base: &'a Lent,
    pub(crate) codec: Codec,
}

/// Compresses tensors of one device, all borrowed for work in one stream. Returns blocks and digests.
pub(crate) fn changes(
    manifest: &Manifest,
    changed: &[Changed<'_>],
    digests: &mut Digests,
) -> Result<(Vec<CodedBlock>, DeltaRuns), Failure> {
    let Some(first) = changed.first() else { return Ok((Vec::new(), DeltaRuns::default())) };
    let (ordinal, stream) = (first.new.ordinal(), first.new.stream());
    let device = device(ordinal)?;
    let mut inputs = Vec::with_capacity(changed.len());
    for &Changed { number: tensor, new, base, .. } in changed {
        let failed = |e| Failure::Cuda(e, Some(tensor));
        let (new, base) = (new.view(&device).map_err(failed)?, base.view(&device).map_err(failed)?);
        inputs.push(DeltaInput { tensor, new, base });
    }
    let codecs: Vec<Codec> = changed.iter().map(|one| one.codec).collect();
    let idle = opened().idle_deltas.remove(&ordinal);
    let mut compressor = match idle {
        Some(compressor) => compressor,
        None => DeltaCompressor::new(&device)?,
    };
    let made = compressor.compress_with_digests(manifest, &inputs, &codecs, digests, stream);
    // If two threads had a compressor each, one is kept.
    let other = opened().idle_deltas.insert(ordinal, compressor);
    drop(other);
    Ok(made?)
}
