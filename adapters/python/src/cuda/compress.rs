//! Compression of an update's tensors on their devices.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use gcodec::Codec;
use gcodec::block::PendingBlock;
use gcodec::compress::Options;
use gcodec_cuda::{Compressor, Input};

use super::lent::stream;
use super::{Lent, device, opened};
use crate::errors::Failure;

/// A tensor on a device, in an update.
pub(crate) struct Given<'a> {
    /// Its number in the manifest.
    pub(crate) number: u64,
    pub(crate) name: &'a str,
    pub(crate) lent: &'a Lent,
    pub(crate) codec: Codec,
}

/// Compressors by number of the device.
pub(crate) type Compressors = BTreeMap<i32, Compressor>;

/// Compresses tensors on devices with these compressors. `remember`: with error feedback; otherwise they lend
/// their memory.
pub(crate) fn compress_in(
    given: &[Given<'_>],
    options: &Options,
    compressors: &mut Compressors,
    remember: bool,
) -> Result<Vec<PendingBlock<'static>>, Failure> {
    let mut blocks = Vec::new();
    let mut done = Vec::new();
    for (ordinal, given) in by_device(given) {
        let made = compressor_of(compressors, ordinal).map_err(Failure::from);
        let made = made.and_then(|compressor| compress_on(&given, options, compressor, ordinal, remember));
        match made {
            Ok(made) => blocks.extend(made),
            Err(e) => {
                undo(compressors, &done);
                return Err(e);
            }
        }
        done.push(ordinal);
    }
    Ok(blocks)
}

/// Takes back the changes of the last update to the residuals of compressors.
pub(crate) fn undo(compressors: &mut Compressors, ordinals: &[i32]) {
    for ordinal in ordinals {
        if let Some(compressor) = compressors.get_mut(ordinal) {
            compressor.undo();
        }
    }
}

/// Compresses tensors on devices without error feedback.
pub(crate) fn compress(
    given: &[Given<'_>],
    options: &Options,
) -> Result<Vec<PendingBlock<'static>>, Failure> {
    let mut blocks = Vec::new();
    for (ordinal, given) in by_device(given) {
        let idle = opened().idle.remove(&ordinal);
        let mut compressor = match idle {
            Some(compressor) => compressor,
            None => Compressor::new(&device(ordinal)?)?,
        };
        let made = compress_on(&given, options, &mut compressor, ordinal, false);
        // If two threads had a compressor each, one is kept.
        let other = opened().idle.insert(ordinal, compressor);
        drop(other);
        blocks.extend(made?);
    }
    Ok(blocks)
}

/// Returns the numbers of the devices of these tensors.
pub(crate) fn ordinals(given: &[Given<'_>]) -> Vec<i32> {
    by_device(given).into_keys().collect()
}

fn by_device<'g, 'a>(given: &'g [Given<'a>]) -> BTreeMap<i32, Vec<&'g Given<'a>>> {
    let mut parts: BTreeMap<i32, Vec<&Given<'_>>> = BTreeMap::new();
    for one in given {
        parts.entry(one.lent.ordinal()).or_default().push(one);
    }
    parts
}

fn compressor_of(compressors: &mut Compressors, ordinal: i32) -> gcodec_cuda::Result<&mut Compressor> {
    match compressors.entry(ordinal) {
        Entry::Occupied(entry) => Ok(entry.into_mut()),
        Entry::Vacant(entry) => Ok(entry.insert(Compressor::new(&device(ordinal)?)?)),
    }
}

fn compress_on(
    given: &[&Given<'_>],
    options: &Options,
    compressor: &mut Compressor,
    ordinal: i32,
    remember: bool,
) -> Result<Vec<PendingBlock<'static>>, Failure> {
    let device = device(ordinal)?;
    let inputs = given.iter().map(|g| {
        let data = g.lent.view(&device).map_err(|e| Failure::Cuda(e, Some(g.number)))?;
        Ok(Input { tensor: g.number, name: g.name, data })
    });
    let inputs: Vec<Input<'_>> = inputs.collect::<Result<_, Failure>>()?;
    let codecs: Vec<Codec> = given.iter().map(|g| g.codec).collect();
    // All were borrowed for work in the same stream.
    let stream = given.first().map_or_else(|| stream(0), |g| g.lent.stream());
    let blocks = match remember {
        true => compressor.compress_wire_with_feedback(&inputs, &codecs, options, stream)?,
        false => compressor.compress_wire(&inputs, &codecs, options, stream)?,
    };
    Ok(blocks)
}

/// Returns new compressors with these residuals.
pub(crate) fn with_residuals(
    parts: BTreeMap<i32, Vec<(String, gcodec::TensorBuf)>>,
) -> Result<Compressors, Failure> {
    let mut compressors = Compressors::new();
    for (ordinal, tensors) in parts {
        let mut compressor = Compressor::new(&device(ordinal)?)?;
        compressor.set_residuals(&gcodec::compress::Feedback::load(tensors)?)?;
        compressors.insert(ordinal, compressor);
    }
    Ok(compressors)
}
