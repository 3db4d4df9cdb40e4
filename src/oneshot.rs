//! One-shot encoding and decoding of tensors.

use std::sync::Arc;

use crate::compress::{Codec, Input, Options, pending};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{HEADER_LEN, Manifest, TensorInfo, UpdateHeader, UpdatePart};
use crate::limits::Limits;
use crate::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use crate::tensor::{TensorBuf, TensorView};

/// Encodes named tensors as a stream with one update, all with one codec.
///
/// # Errors
/// [`Error::Input`] if names repeat, if the codec does not support a tensor's type, or if a value is not
/// finite and the codec cannot express it. Deltas need a base: use
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
    encoder.update(&mut out, &header, &manifest, blocks)?;
    encoder.finish(&mut out);
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
/// [`Error::Format`], [`Error::Unsupported`] or [`Error::Limit`] if the bytes are not a complete stream
/// within the limits; [`Error::Input`] if the stream has no update, or if the update is a delta, whose base
/// [`Assembler`] accepts.
pub fn decode_with(bytes: &[u8], limits: &Limits) -> Result<Vec<(String, TensorBuf)>> {
    let mut reader = SliceReader::new(bytes, limits.clone());
    // Only the places of the parts and their index sets: blocks can take far more memory than bytes.
    let mut parts = Vec::new();
    let mut manifest = None;
    while let Some(event) = reader.next_event()? {
        if let Event::Frame(info, Body::Update(part)) = event {
            if part.part == 0 {
                parts.clear();
            }
            parts.push((info, part.last, part.shared_sets()));
            manifest = Some(part.manifest);
        }
    }
    let manifest = manifest.ok_or(Error::input(InputErrorKind::NoUpdate))?;
    let mut assembler = Assembler::new(&manifest, limits, |_| true)?;
    for (info, last, sets) in parts {
        let (start, end) = (info.offset + HEADER_LEN as u64, info.offset + info.len());
        let body = &bytes[start as usize..end as usize];
        let mut part = UpdatePart::read(body, start, last, limits, &sets, |_| Some(Arc::clone(&manifest)))?;
        part.frame = Some(info.number);
        assembler.apply(&part)?;
    }
    let named = assembler.finish()?.into_iter();
    Ok(named.map(|(number, tensor)| (manifest.tensors()[number as usize].name.clone(), tensor)).collect())
}
