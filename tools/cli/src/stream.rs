//! Streams for the commands: updates to decode, and errors with the names of tensors.

use crate::fail::{Failure, Result};
use crate::fit;
use crate::learned;
use crate::output::warn;
use crate::tensors::{NamedTensor, Outline, Spooled};
use gcodec::Limits;
use gcodec::error::{Error, FormatErrorKind, InputErrorKind};
use gcodec::file::{File, Piece, Pieces};
use gcodec::frame::{FrameHeader, FrameKind, Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::{HEADER_LEN, PREAMBLE_LEN};
use gcodec::stream::{Body, Event, SliceReader};
use gcodec::tensor::TensorView;
use gcodec_latent::Models;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Tensors by name: the base of a delta.
pub(crate) type Base<'a> = BTreeMap<String, TensorView<'a>>;

/// The updates of a stream, ready to be decoded.
pub(crate) struct Updates<'a> {
    bytes: &'a [u8],
    models: Models,
    file: File<'a>,
}

impl<'a> Updates<'a> {
    /// Finds the updates of a stream. Without an index it is read from its beginning to its end.
    pub(crate) fn open(bytes: &'a [u8], limits: &Limits) -> Result<Self> {
        // Reading it whole gives the best error, if there is one.
        let file = File::open(bytes, limits.clone()).or_else(|_| File::scan(bytes, limits.clone()));
        let file = file.map_err(|e| explain_again(e, bytes, limits))?;
        Ok(Self { bytes, models: Models::new(), file })
    }

    /// Sets the models that latent codes may need, beside those in the stream.
    pub(crate) fn with_models(self, models: Models) -> Self {
        Self { models, ..self }
    }

    /// Returns the number of updates.
    pub(crate) fn len(&self) -> usize {
        self.file.updates().len()
    }

    /// Returns the header of an update.
    pub(crate) fn header(&self, number: usize) -> &UpdateHeader {
        &self.file.updates()[number].header
    }

    /// Returns the manifest of an update.
    pub(crate) fn manifest(&self, number: usize) -> &Arc<Manifest> {
        &self.file.updates()[number].manifest
    }

    /// Returns the metadata that stands before an update, behind the previous one.
    pub(crate) fn metadata(&self, number: usize) -> Result<BTreeMap<String, String>> {
        Ok(self.file.metadata(number)?.entries)
    }

    /// Returns the blocks of an update: the numbers of the tensors that each spans, and its bytes.
    pub(crate) fn blocks(&self, number: usize) -> Result<Vec<(Range<u64>, u64)>> {
        let blocks = self.file.blocks(number)?.into_iter();
        Ok(blocks.map(|b| (b.first..b.first + b.tensors, b.len)).collect())
    }

    /// Returns the last update of a step; the last of all if `step` is `None`.
    pub(crate) fn find(&self, step: Option<u64>) -> Result<usize> {
        let found = (0..self.len()).rev().find(|&i| step.is_none_or(|s| self.header(i).step == s));
        found.ok_or_else(|| {
            let steps: Vec<String> =
                (0..self.len()).take(20).map(|i| self.header(i).step.to_string()).collect();
            let more = if self.len() > 20 { ", .." } else { "" };
            match step {
                None => Failure::invalid("the stream has no update"),
                Some(step) => Failure::usage(format_args!(
                    "no update has step {step}; there are: {}{more}",
                    if steps.is_empty() { "none".into() } else { steps.join(", ") }
                )),
            }
        })
    }

    /// As [`Self::find`]; warns if there are several.
    pub(crate) fn choose(&self, step: Option<u64>) -> Result<usize> {
        let number = self.find(step)?;
        let found = (0..self.len()).filter(|&i| step.is_none_or(|s| self.header(i).step == s)).count();
        if found > 1 {
            let UpdateHeader { step, sender, .. } = self.header(number);
            warn(format_args!("{found} updates, of which the last is taken: step {step}, sender {sender}"));
        }
        Ok(number)
    }

    /// Decodes the dense tensors of an update whose names `wanted` accepts, to a temporary file.
    ///
    /// `base`: the tensors that a delta, or an earlier delta of the stream, was made against; all deltas
    /// from there on are applied in turn. A chain of deltas that starts with a full update needs no base.
    pub(crate) fn decode(
        &self,
        number: usize,
        wanted: impl Fn(&str) -> bool,
        base: &Base<'_>,
    ) -> Result<Vec<NamedTensor>> {
        let mut tensors = Spooled::new();
        self.decode_to(number, wanted, base, &mut |info, bytes| tensors.add(&Outline::from(info), bytes))?;
        tensors.finish()
    }

    /// Decodes as [`Self::decode`], and calls `take` with the elements of each tensor, in one or several
    /// pieces, in the order of the manifest. While it takes a piece, the next ones are decoded.
    pub(crate) fn decode_to(
        &self,
        number: usize,
        wanted: impl Fn(&str) -> bool,
        base: &Base<'_>,
        take: &mut dyn FnMut(&TensorInfo, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let manifest = self.manifest(number);
        check_bytes(manifest.tensors().iter().filter(|info| wanted(&info.name)), self.file.limits())?;
        if let Some(stream) = self.without_codes(number)? {
            let file = File::open(&stream, self.file.limits().clone())?;
            let base = Base::new();
            return take_pieces(file.pieces(0, wanted, &base)?, manifest, &Failure::from, take);
        }
        let explained = |e: Error| match &e {
            Error::Input(input) if matches!(input.kind, InputErrorKind::MissingModel { .. }) => {
                // Has the whole id of the model, and advice.
                let failed = self.file.parts(number, |_| true).map(|p| learned::decoded(&p, &self.models));
                failed.ok().and_then(Result::err).unwrap_or_else(|| explain(e, Some(manifest)))
            }
            _ => explain(e, Some(manifest)),
        };
        let pieces = self.file.pieces(number, wanted, base);
        take_pieces(pieces.map_err(explained)?, manifest, &explained, take)
    }

    /// Decodes the latent codes of an update: returns it as a stream of its own, if a model is there and the
    /// update has codes.
    fn without_codes(&self, number: usize) -> Result<Option<Vec<u8>>> {
        let mut models = self.models.clone();
        learned::add_inline(&mut models, self.bytes, self.file.limits())?;
        match models.is_empty() {
            true => Ok(None),
            false => learned::decoded(&self.file.parts(number, |_| true)?, &models),
        }
    }

    /// Fails if a base cannot be that of a delta: it lacks a tensor, or has it with another type or shape.
    pub(crate) fn check_base(&self, number: usize, base: &Base<'_>) -> Result<()> {
        let infos = self.manifest(number).tensors();
        let numbers = self.header(number).runs().flat_map(|(first, last)| first..=last);
        let infos = numbers.filter_map(|number| infos.get(usize::try_from(number).ok()?));
        fit::check_base(&infos.map(Outline::from).collect::<Vec<_>>(), base)
    }
}

/// Checks the bytes of tensors that a stream names: they need not fit in memory, but a few bytes of a stream
/// can fill a disk.
pub(crate) fn check_bytes<'a>(tensors: impl Iterator<Item = &'a TensorInfo>, limits: &Limits) -> Result<()> {
    let (bytes, most) = (tensors.map(TensorInfo::bytes).fold(0, u64::saturating_add), limits.max_alloc_bytes);
    match bytes > most {
        true => {
            let what = format!("its tensors have {bytes} bytes; --max-alloc allows more than {most}");
            Err(Failure::limit(what))
        }
        false => Ok(()),
    }
}

/// Calls `take` with each piece while the next ones are decoded.
fn take_pieces(
    mut pieces: Pieces<'_, '_>,
    manifest: &Manifest,
    explained: &dyn Fn(Error) -> Failure,
    take: &mut dyn FnMut(&TensorInfo, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut next = next_pieces(&mut pieces);
    while !next.is_empty() {
        let (mut found, mut taken) = (Vec::new(), Vec::new());
        let result = rayon::in_place_scope(|scope| {
            scope.spawn(|_| found = next_pieces(&mut pieces));
            next.into_iter().try_for_each(|piece| {
                let piece = piece.map_err(explained)?;
                let info =
                    usize::try_from(piece.tensor).ok().and_then(|number| manifest.tensors().get(number));
                let result = info.map_or(Ok(()), |info| take(info, &piece.data));
                taken.push(piece.data);
                result
            })
        });
        result?;
        taken.into_iter().for_each(|memory| pieces.reuse(memory));
        next = found;
    }
    Ok(())
}

/// Bytes of pieces that go together from one thread to another, which takes longer than to decode a few.
const HANDED: usize = 256 << 10;

/// Returns the next pieces, up to the first error.
fn next_pieces(pieces: &mut Pieces<'_, '_>) -> Vec<gcodec::Result<Piece>> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    while bytes < HANDED
        && let Some(next) = pieces.next()
    {
        bytes += next.as_ref().map_or(HANDED, |piece| size_of::<Piece>() + piece.data.len());
        found.push(next);
    }
    found
}

/// Returns the preamble and the frames of some kinds of a stream, up to an error.
pub(crate) fn only(bytes: &[u8], kinds: &[FrameKind]) -> Vec<u8> {
    let mut at = PREAMBLE_LEN.min(bytes.len());
    let mut out = bytes[..at].to_vec();
    while let Some(header) = bytes[at..].first_chunk().and_then(|h| FrameHeader::read(h, at as u64).ok()) {
        let len = usize::try_from(header.body_len).unwrap_or(usize::MAX).saturating_add(HEADER_LEN);
        let Some(frame) = bytes[at..].get(..len) else { break };
        if kinds.contains(&header.kind) {
            out.extend_from_slice(frame);
        }
        at += len;
    }
    out
}

/// Remembers the manifests of a stream, to name the tensor that an error is about.
#[derive(Debug, Default)]
pub(crate) struct Names {
    manifest: Option<Arc<Manifest>>,
}

impl Names {
    /// Records an event.
    pub(crate) fn see(&mut self, event: &Event<'_>) {
        match event {
            Event::Frame(_, Body::Manifest(manifest)) => self.manifest = Some(Arc::clone(manifest)),
            Event::Frame(_, Body::Update(part)) => self.manifest = Some(Arc::clone(&part.manifest)),
            _ => {}
        }
    }

    /// Returns the manifest of the last update, or the last manifest.
    pub(crate) fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_deref()
    }

    /// Converts an error to a failure for the user.
    pub(crate) fn explain(&self, error: Error) -> Failure {
        explain(error, self.manifest.as_deref())
    }
}

/// Converts an error of a stream that was read from its beginning, with the names of its tensors.
fn explain_again(error: Error, bytes: &[u8], limits: &Limits) -> Failure {
    let mut names = Names::default();
    SliceReader::new(bytes, limits.clone()).map_while(gcodec::Result::ok).for_each(|event| names.see(&event));
    names.explain(error)
}

/// Converts an error to a failure with the tensor's name and advice.
pub(crate) fn explain(error: Error, manifest: Option<&Manifest>) -> Failure {
    let tensor = match &error {
        Error::Input(e) => e.tensor,
        e => e.location().and_then(|at| at.tensor),
    };
    let info = manifest.zip(tensor).and_then(|(m, t)| m.tensors().get(usize::try_from(t).ok()?));
    let advice = match &error {
        Error::Format(e) => match e.kind {
            FormatErrorKind::Truncated
            | FormatErrorKind::BadSync
            | FormatErrorKind::ChecksumMismatch { .. } => "; `gcodec recover` saves what is whole",
            _ => "",
        },
        Error::Limit(e) if e.limit == "max_elements" => "; --max-elements allows more",
        Error::Limit(e) if e.limit == "max_alloc_bytes" => "; --max-alloc allows more",
        Error::Input(e) => match e.kind {
            InputErrorKind::MissingBase => "; give it with --base",
            _ => "",
        },
        _ => "",
    };
    let mut failure = Failure::from(error);
    if let (Some(info), Some(number)) = (info, tensor) {
        let number = format!("tensor {number}");
        match failure.message.rfind(&number) {
            Some(at) => failure.message.insert_str(at + number.len(), &format!(" {:?}", info.name)),
            None => failure = failure.about(format_args!("tensor {:?}", info.name)),
        }
    }
    failure.message.push_str(advice);
    failure
}
