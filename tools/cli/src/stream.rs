//! Streams for the commands: updates to decode, and errors with the names of tensors.

use crate::fail::{Failure, Result};
use crate::learned;
use crate::output::warn;
use crate::tensors::{Dump, NamedTensor};
use gcodec::error::{Error, FormatErrorKind, InputErrorKind};
use gcodec::file::File;
use gcodec::frame::{
    Delta, FrameHeader, FrameKind, HEADER_LEN, Manifest, PREAMBLE_LEN, UpdateHeader, UpdatePart, run_digest,
    tensor_digest,
};
use gcodec::stream::{Assembler, Body, Event, SliceReader};
use gcodec::tensor::TensorView;
use gcodec::{Limits, TensorBuf};
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
    limits: Limits,
    source: Source<'a>,
}

enum Source<'a> {
    /// A finished stream with an index: only the requested updates are read.
    Indexed(File<'a>),
    /// Any other stream: read from its beginning to its end.
    Scanned(Vec<Scanned<'a>>),
}

struct Scanned<'a> {
    header: UpdateHeader,
    manifest: Arc<Manifest>,
    parts: Vec<UpdatePart<'a>>,
    metadata: BTreeMap<String, String>,
}

impl<'a> Updates<'a> {
    /// Finds the updates of a stream.
    pub(crate) fn open(bytes: &'a [u8], limits: &Limits) -> Result<Self> {
        let limits = limits.clone();
        if let Ok(file) = File::open(bytes, limits.clone()) {
            return Ok(Self { bytes, models: Models::new(), limits, source: Source::Indexed(file) });
        }
        // The sequential reader gives the best error, if there is one.
        let mut updates: Vec<Scanned<'a>> = Vec::new();
        let (mut names, mut metadata) = (Names::default(), BTreeMap::new());
        for event in SliceReader::new(bytes, limits.clone()) {
            let event = event.map_err(|e| names.explain(e))?;
            names.see(&event);
            let part = match event {
                Event::Frame(_, Body::Update(part)) => part,
                Event::Frame(_, Body::Metadata(found)) => {
                    metadata.extend(found.entries);
                    continue;
                }
                _ => continue,
            };
            match updates.last_mut() {
                Some(update) if part.part > 0 => update.parts.push(*part),
                _ => updates.push(Scanned {
                    header: part.header.clone(),
                    manifest: Arc::clone(&part.manifest),
                    parts: vec![*part],
                    metadata: std::mem::take(&mut metadata),
                }),
            }
        }
        Ok(Self { bytes, models: Models::new(), limits, source: Source::Scanned(updates) })
    }

    /// Sets the models that latent codes may need, beside those in the stream.
    pub(crate) fn with_models(self, models: Models) -> Self {
        Self { models, ..self }
    }

    /// Returns the number of updates.
    pub(crate) fn len(&self) -> usize {
        match &self.source {
            Source::Indexed(file) => file.updates().len(),
            Source::Scanned(updates) => updates.len(),
        }
    }

    /// Returns the header of an update.
    pub(crate) fn header(&self, number: usize) -> &UpdateHeader {
        match &self.source {
            Source::Indexed(file) => &file.updates()[number].header,
            Source::Scanned(updates) => &updates[number].header,
        }
    }

    /// Returns the manifest of an update.
    pub(crate) fn manifest(&self, number: usize) -> &Arc<Manifest> {
        match &self.source {
            Source::Indexed(file) => &file.updates()[number].manifest,
            Source::Scanned(updates) => &updates[number].manifest,
        }
    }

    /// Returns the metadata that stands before an update, behind the previous one.
    pub(crate) fn metadata(&self, number: usize) -> Result<BTreeMap<String, String>> {
        match &self.source {
            Source::Indexed(file) => Ok(file.metadata(number)?.entries),
            Source::Scanned(updates) => Ok(updates[number].metadata.clone()),
        }
    }

    /// Returns the blocks of an update: the numbers of the tensors that each spans, and its bytes.
    pub(crate) fn blocks(&self, number: usize) -> Result<Vec<(Range<u64>, u64)>> {
        Ok(match &self.source {
            Source::Indexed(file) => {
                file.blocks(number)?.map(|b| (b.first..b.first + b.tensors, b.len)).collect()
            }
            Source::Scanned(updates) => {
                let blocks = updates[number].parts.iter().flat_map(|part| &part.blocks);
                blocks
                    .map(|raw| (raw.scope.first()..raw.scope.first() + raw.scope.tensors(), raw.len))
                    .collect()
            }
        })
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

    /// Decodes the dense tensors of an update whose names `wanted` accepts.
    ///
    /// `base`: the tensors that a delta, or an earlier delta of the stream, was made against; all deltas
    /// from there on are applied in turn. A chain of deltas that starts with a full update needs no base.
    pub(crate) fn decode(
        &self,
        number: usize,
        wanted: impl Fn(&str) -> bool,
        base: &Base<'_>,
    ) -> Result<Vec<NamedTensor>> {
        let mut first = number;
        while first > 0 && self.header(first).delta.is_some() && !self.fits(first, base) {
            first -= 1;
        }
        if self.header(first).delta.is_some() && !self.fits(first, base) {
            // No update of the stream was made against it: the requested one reports the mismatch.
            first = number;
        }
        let mut tensors: Option<Vec<NamedTensor>> = None;
        for step in first..=number {
            let previous: Base<'_> = match &tensors {
                Some(tensors) => tensors.iter().map(|t| (t.name().to_owned(), t.view())).collect(),
                None => base.clone(),
            };
            let manifest = self.manifest(step);
            // The next delta of a chain may have a digest for several tensors: all of them are its base.
            let is_wanted = |name: &str| step < number || wanted(name);
            let decoded = match self.decode_one(step, &is_wanted, &previous) {
                Err(Error::Input(e)) if matches!(e.kind, InputErrorKind::MissingModel { .. }) => {
                    self.decode_latent(step, &is_wanted)?
                }
                decoded => decoded.map_err(|e| explain(e, Some(manifest)))?,
            };
            let name = |number: u64| manifest.tensors()[number as usize].name.clone();
            tensors = Some(decoded.into_iter().map(|(n, t)| NamedTensor::new(name(n), t)).collect());
        }
        Ok(tensors.unwrap_or_default())
    }

    fn decode_one(
        &self,
        number: usize,
        wanted: &impl Fn(&str) -> bool,
        base: &Base<'_>,
    ) -> gcodec::Result<Vec<(u64, TensorBuf)>> {
        match &self.source {
            Source::Indexed(file) => file.tensors(number, wanted, base),
            Source::Scanned(updates) => {
                let update = &updates[number];
                let mut assembler = Assembler::new(&update.manifest, &self.limits, wanted)?;
                for (name, tensor) in base {
                    assembler.base(name, *tensor)?;
                }
                for part in &update.parts {
                    assembler.apply(part)?;
                }
                assembler.finish()
            }
        }
    }

    /// Decodes an update that has latent codes.
    fn decode_latent(&self, number: usize, wanted: &impl Fn(&str) -> bool) -> Result<Vec<(u64, TensorBuf)>> {
        let mut models = self.models.clone();
        learned::add_inline(&mut models, self.bytes, &self.limits)?;
        let decoded = match &self.source {
            Source::Indexed(file) => learned::decoded(&file.parts(number, |_| true)?, &models)?,
            Source::Scanned(updates) => learned::decoded(&updates[number].parts, &models)?,
        };
        // Without codes, the error would not have been that of a missing model.
        let stream = decoded.unwrap_or_default();
        Ok(File::open(&stream, self.limits.clone())?.tensors(0, wanted, &Base::new())?)
    }

    /// Fails if a base cannot be that of a delta: it lacks a tensor, or has it with another type or shape.
    pub(crate) fn check_base(&self, number: usize, base: &Base<'_>) -> Result<()> {
        let infos = self.manifest(number).tensors();
        let runs = self.header(number).delta.iter().flatten();
        let numbers = runs.flat_map(|run| run.first..=run.last());
        for info in numbers.filter_map(|number| infos.get(usize::try_from(number).ok()?)) {
            let wrong = match base.get(&info.name) {
                None => "lacks this tensor".to_owned(),
                Some(t) if (t.dtype(), t.shape()) != (info.dtype, &info.shape[..]) => {
                    format!(
                        "has it as {} {:?}, the delta as {} {:?}",
                        t.dtype(),
                        t.shape(),
                        info.dtype,
                        info.shape
                    )
                }
                Some(_) => continue,
            };
            let message = format!("the base is of another model: tensor {:?}: it {wrong}", info.name);
            return Err(Failure::usage(message));
        }
        Ok(())
    }

    /// Whether a delta was made against this base; true for an update that is no delta.
    fn fits(&self, number: usize, base: &Base<'_>) -> bool {
        let Some(delta) = &self.header(number).delta else { return true };
        let infos = self.manifest(number).tensors();
        let is_base = |entry: &Delta| {
            let digest = |number| {
                let info = infos.get(usize::try_from(number).ok()?)?;
                base.get(&info.name).map(|tensor| tensor_digest(*tensor))
            };
            let digests: Option<Vec<_>> = (entry.first..=entry.last()).map(digest).collect();
            digests.is_some_and(|digests| run_digest(&digests) == entry.base)
        };
        // One run suffices here: the decoder compares them all.
        delta.first().is_none_or(is_base)
    }
}

/// Returns the tensors of one update of a stream, like those of a file.
pub(crate) fn dump(
    bytes: &[u8],
    step: Option<u64>,
    limits: &Limits,
    base: &Base<'_>,
    models: &Models,
) -> Result<Dump> {
    let updates = Updates::open(bytes, limits)?.with_models(models.clone());
    let number = updates.find(step)?;
    let others = (0..updates.len()).filter(|&i| step.is_none_or(|s| updates.header(i).step == s)).count() - 1;
    if others > 0 {
        let header = updates.header(number);
        warn(format_args!(
            "{} updates, of which the last is taken: step {}, sender {}",
            others + 1,
            header.step,
            header.sender
        ));
    }
    let tensors = updates.decode(number, |_| true, base)?;
    let metadata = updates.metadata(number)?;
    Ok(Dump { tensors, metadata, ..Dump::default() })
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
