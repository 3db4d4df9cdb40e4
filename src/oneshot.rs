//! One-shot encoding and decoding of tensors.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::arch::pages;
use crate::compress::{Codec, Input, Options, pending};
use crate::error::Result;
use crate::file::File;
use crate::frame::{Manifest, TensorInfo, UpdateHeader};
use crate::limits::Limits;
use crate::stream::{EncodeOptions, Encoder};
use crate::tensor::{TensorBuf, TensorView};

/// Encodes named tensors as a stream with one update, all with one codec.
///
/// # Errors
/// [`Error::Input`](crate::Error::Input) if names repeat, if the codec does not support a tensor's type, or
/// if a value is not finite and the codec cannot express it. Deltas need a base: use
/// [`compress()`](crate::compress::compress()) and [`Encoder`].
pub fn encode(tensors: &[(&str, TensorView<'_>)], codec: &Codec) -> Result<Vec<u8>> {
    let infos = tensors.iter().map(|(name, view)| TensorInfo::new(*name, view.dtype(), view.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect())?);
    let inputs: Vec<Input<'_>> = tensors
        .iter()
        .enumerate()
        .map(|(i, (name, view))| Input { tensor: i as u64, name, view: *view, base: None })
        .collect();
    let codecs = vec![*codec; inputs.len()];
    let blocks = pending(&inputs, &codecs, &Options::default())?;
    let header = UpdateHeader::default().with_label(codec.to_string());
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut out = Vec::new();
    let bytes = tensors.iter().map(|(_, view)| view.data().len()).fold(0, usize::saturating_add);
    // About as many bytes as lossless blocks have.
    let is_reserved = !codec.is_lossy() && pages::reserve(&mut out, bytes.saturating_add(bytes / 64));
    encoder.update(&mut out, &header, &manifest, blocks)?;
    encoder.finish(&mut out);
    if is_reserved {
        out.shrink_to_fit();
    }
    Ok(out)
}

/// Decodes the dense tensors of the last update of a stream, with the default limits.
///
/// # Errors
/// The errors of [`decode_with`].
pub fn decode(bytes: &[u8]) -> Result<Vec<(String, TensorBuf)>> {
    decode_with(bytes, &Limits::default())
}

/// Decodes the dense tensors of the last update of a stream. The whole stream is checked.
///
/// # Errors
/// The errors of [`File::scan`], [`File::last`] and [`File::tensors`]. An update that is a delta needs a
/// base, which [`File::tensors`] accepts.
pub fn decode_with(bytes: &[u8], limits: &Limits) -> Result<Vec<(String, TensorBuf)>> {
    let file = File::scan(bytes, limits.clone())?;
    let last = file.last()?;
    let infos = file.updates()[last].manifest.tensors();
    let named = file.tensors(last, |_| true, &BTreeMap::new())?.into_iter();
    Ok(named.map(|(number, tensor)| (infos[number as usize].name.clone(), tensor)).collect())
}
