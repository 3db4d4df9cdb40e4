//! Reports on streams, with the fields of `gcodec inspect --json` (docs/inspect.schema.json), and statistics
//! of tensors.

use gcodec::Error;
use gcodec::block::RawBlock;
use gcodec::frame::{Budget, Delta, TensorInfo, UpdatePart, VERSION_MAJOR};
use gcodec::reduce::stats::{Stats, StatsOptions};
use gcodec::stream::{Body, Event, SliceReader};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rayon::prelude::*;

use crate::decode::{Bytes, reduction_name};
use crate::limits::PyLimits;
use crate::named::{Given, borrow, views};
use crate::{errors, threads};

#[derive(Default)]
struct Report {
    minor: Option<u8>,
    segments: u64,
    has_index: bool,
    frames: Vec<(u64, String, u64, u64)>,
    metadata: Vec<(String, String)>,
    manifests: Vec<(u64, String, u64, u64)>,
    updates: Vec<Update>,
}

struct Update {
    header: gcodec::frame::UpdateHeader,
    frames: Vec<u64>,
    blocks: u64,
    bytes: u64,
    header_bytes: u64,
    elements: u64,
    source_bytes: u64,
    kept: u64,
    tensors: Vec<Row>,
}

/// Numbers of values of a block.
struct Counts {
    all: u64,
    /// By tensor of the scope; `None` if only the base of a delta tells.
    each: Option<Vec<u64>>,
    /// Statistics of the values, by tensor of the scope; empty if the block does not decode.
    stats: Vec<Stats>,
}

struct Row {
    info: TensorInfo,
    support: String,
    values: String,
    blocks: u64,
    kept: Option<u64>,
    position_bits: f64,
    value_bits: f64,
    overhead_bits: f64,
    stats: Stats,
    /// Whether its values change a base: then they alone are no tensor, and have no norm.
    delta: bool,
}

/// Returns the statistics of each tensor.
#[pyfunction]
pub(crate) fn stats<'py>(
    py: Python<'py>,
    tensors: Given<'py>,
) -> PyResult<Vec<(String, Bound<'py, PyDict>)>> {
    let mut named = borrow(tensors)?;
    let found = threads::run(py, || {
        let views = views(&mut named)?;
        let of = |(name, view): (&str, _)| (name.to_owned(), Stats::of(&view, &StatsOptions::default()));
        Ok(views.into_iter().map(of).collect::<Vec<_>>())
    })?;
    let found = found.map_err(|e: Error| errors::raise(py, e, None))?;
    found
        .into_iter()
        .map(|(name, stats)| {
            let dict = PyDict::new(py);
            put(&dict, &stats, true)?;
            dict.set_item("elements", stats.elements)?;
            dict.set_item("nan", stats.nan)?;
            dict.set_item("infinite", stats.infinite)?;
            dict.set_item("exponents", stats.exponents.iter().collect::<Vec<_>>())?;
            Ok((name, dict))
        })
        .collect()
}

/// Adds what the elements are: None where these values alone do not determine it.
fn put(dict: &Bound<'_, PyDict>, stats: &Stats, known: bool) -> PyResult<()> {
    dict.set_item("norm", known.then(|| stats.norm()))?;
    dict.set_item("mean", known.then(|| stats.mean()))?;
    dict.set_item("std", known.then(|| stats.std()))?;
    dict.set_item("min", stats.min.filter(|_| known))?;
    dict.set_item("max", stats.max.filter(|_| known))?;
    dict.set_item("zeros", known.then_some(stats.zeros))?;
    dict.set_item("first_nan", stats.first_nan)?;
    dict.set_item("first_infinite", stats.first_infinite)
}

/// Returns a report as nested dictionaries, and the first error as an exception.
#[pyfunction]
pub(crate) fn inspect<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    limits: PyLimits,
) -> PyResult<(Bound<'py, PyDict>, Option<Py<PyAny>>)> {
    let bytes = Bytes::new(data)?;
    let limits = limits.get();
    let (report, error) = threads::run(py, || {
        let mut report = Report::default();
        let error = report.read(SliceReader::new(bytes.as_slice(), limits)).err();
        (report, error)
    })?;
    let error = error.map(|e| errors::raise(py, e, None).into_value(py).into_any());
    Ok((report.to_dict(py, bytes.as_slice().len())?, error))
}

impl Report {
    /// Reads all whole frames. Returns the first error, also if later frames could be read.
    fn read(&mut self, mut reader: SliceReader<'_>) -> gcodec::Result<()> {
        let mut failure = None;
        loop {
            match reader.next_event() {
                Ok(Some(Event::Preamble(preamble))) => self.minor = Some(preamble.minor),
                Ok(Some(Event::Frame(info, body))) => {
                    self.frames.push((info.number, info.header.kind.to_string(), info.offset, info.len()));
                    failure = failure.or(self.add(info.number, info.len(), body).err());
                }
                Ok(Some(_)) => {}
                Ok(None) => return failure.map_or(Ok(()), Err),
                Err(e) => return Err(failure.unwrap_or(e)),
            }
        }
    }

    fn add(&mut self, number: u64, len: u64, body: Body<'_>) -> gcodec::Result<()> {
        match body {
            Body::End(_) => self.segments += 1,
            Body::Index(_) => self.has_index = true,
            Body::Metadata(metadata) => self.metadata.extend(metadata.entries),
            Body::Manifest(manifest) => {
                let id = manifest.id().0.iter().map(|b| format!("{b:02x}")).collect();
                let tensors = manifest.tensors().len() as u64;
                self.manifests.push((number, id, tensors, manifest.elements()));
            }
            Body::Update(part) => return self.add_part(number, len, &part),
            _ => {}
        }
        Ok(())
    }

    fn add_part(&mut self, number: u64, len: u64, part: &UpdatePart<'_>) -> gcodec::Result<()> {
        if part.part == 0 || self.updates.is_empty() {
            self.updates.push(Update {
                header: part.header.clone(),
                frames: Vec::new(),
                blocks: 0,
                bytes: 0,
                header_bytes: 0,
                elements: part.manifest.elements(),
                source_bytes: part.manifest.tensors().iter().map(TensorInfo::bytes).sum(),
                kept: 0,
                tensors: Vec::new(),
            });
        }
        let Some(update) = self.updates.last_mut() else { return Ok(()) };
        update.frames.push(number);
        update.blocks += part.blocks.len() as u64;
        update.bytes += len;
        update.header_bytes += len - part.blocks.iter().map(|b| b.len).sum::<u64>();
        let budget = part.budget();
        let counts: Vec<gcodec::Result<Counts>> = (0..part.blocks.len())
            .into_par_iter()
            .map(|i| count(part, i, &budget.with_memory_renewed()))
            .collect();
        let mut failure: Option<Error> = None;
        for (raw, counts) in part.blocks.iter().zip(counts) {
            let counts = counts.unwrap_or_else(|e| {
                failure.get_or_insert(e);
                Counts { all: 0, each: Some(vec![0; raw.space.lens.len()]), stats: Vec::new() }
            });
            update.add(part, raw, &counts);
        }
        failure.map_or(Ok(()), Err)
    }

    fn to_dict<'py>(&self, py: Python<'py>, len: usize) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        out.set_item("bytes", len)?;
        out.set_item("version", self.minor.map(|minor| (VERSION_MAJOR, minor)))?;
        out.set_item("segments", self.segments)?;
        out.set_item("has_index", self.has_index)?;
        out.set_item(
            "metadata",
            self.metadata.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        )?;
        let frames = PyList::empty(py);
        for (number, kind, offset, bytes) in &self.frames {
            let row = PyDict::new(py);
            row.set_item("number", number)?;
            row.set_item("kind", kind)?;
            row.set_item("offset", offset)?;
            row.set_item("bytes", bytes)?;
            frames.append(row)?;
        }
        out.set_item("frames", frames)?;
        let manifests = PyList::empty(py);
        for (frame, id, tensors, elements) in &self.manifests {
            let row = PyDict::new(py);
            row.set_item("frame", frame)?;
            row.set_item("id", id)?;
            row.set_item("tensors", tensors)?;
            row.set_item("elements", elements)?;
            manifests.append(row)?;
        }
        out.set_item("manifests", manifests)?;
        let updates = PyList::empty(py);
        for update in &self.updates {
            updates.append(update.to_dict(py)?)?;
        }
        out.set_item("updates", updates)?;
        Ok(out)
    }
}

impl Update {
    /// Adds a block to the tensors that it spans. The bits of a block of several tensors are divided by kept
    /// values.
    fn add(&mut self, part: &UpdatePart<'_>, raw: &RawBlock<'_>, counts: &Counts) {
        self.kept += counts.all;
        for (i, &len) in raw.space.lens.iter().enumerate() {
            let kept = counts.each.as_ref().map(|each| each[i]);
            let number = raw.scope.first() as usize + i;
            let info = &part.manifest.tensors()[number];
            let (support, values) = (raw.support_id.to_string(), raw.values_id.to_string());
            // Blocks are in the order of their tensors, so a tensor seen before is the last row.
            if self.tensors.last().is_none_or(|row| row.info.name != info.name) {
                self.tensors.push(Row {
                    info: info.clone(),
                    support: support.clone(),
                    values: values.clone(),
                    blocks: 0,
                    kept: Some(0),
                    position_bits: 0.0,
                    value_bits: 0.0,
                    overhead_bits: 0.0,
                    stats: Stats::default(),
                    delta: false,
                });
            }
            let Some(row) = self.tensors.last_mut() else { continue };
            let share = match (raw.space.lens.len(), kept, counts.all) {
                (1, ..) => 1.0,
                (_, None, _) | (_, _, 0) => len as f64 / raw.space.len().max(1) as f64,
                (_, Some(kept), all) => kept as f64 / all as f64,
            };
            for (text, other) in [(&mut row.support, support), (&mut row.values, values)] {
                if *text != other {
                    *text = "mixed".into();
                }
            }
            let runs = part.header.delta.as_ref();
            row.delta |= runs.is_some_and(|runs| Delta::find(runs, number as u64).is_some());
            match counts.stats.get(i) {
                // A sum with other blocks: its terms are not the tensor's elements.
                Some(stats) if raw.add => {
                    let mut unread = Stats::default();
                    (unread.elements, unread.unread) = (stats.elements, stats.elements);
                    row.stats.merge(&unread);
                }
                Some(stats) => row.stats.merge(stats),
                None => {}
            }
            row.blocks += 1;
            row.kept = row.kept.zip(kept).map(|(sum, kept)| sum + kept);
            row.position_bits += share * raw.support.len() as f64 * 8.0;
            row.value_bits += share * raw.values.len() as f64 * 8.0;
            row.overhead_bits += share * raw.header_len() as f64 * 8.0;
        }
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        out.set_item("step", self.header.step)?;
        out.set_item("round", self.header.round)?;
        out.set_item("sender", self.header.sender)?;
        out.set_item("world", self.header.world)?;
        out.set_item("contributors", self.header.contributors)?;
        out.set_item("inner_steps", self.header.inner_steps)?;
        out.set_item("reduction", reduction_name(self.header.reduction))?;
        out.set_item("label", &self.header.label)?;
        out.set_item("delta", self.header.delta.is_some())?;
        out.set_item("frames", &self.frames)?;
        out.set_item("blocks", self.blocks)?;
        out.set_item("bytes", self.bytes)?;
        out.set_item("header_bytes", self.header_bytes)?;
        out.set_item("elements", self.elements)?;
        out.set_item("source_bytes", self.source_bytes)?;
        out.set_item("kept", self.kept)?;
        let tensors = PyList::empty(py);
        let mut all = Stats::default();
        for row in &self.tensors {
            let dict = PyDict::new(py);
            dict.set_item("name", &row.info.name)?;
            dict.set_item("dtype", row.info.dtype.name())?;
            dict.set_item("shape", pyo3::types::PyTuple::new(py, &row.info.shape)?)?;
            dict.set_item("elements", row.info.elements())?;
            dict.set_item("support", &row.support)?;
            dict.set_item("values", &row.values)?;
            dict.set_item("blocks", row.blocks)?;
            dict.set_item("kept", row.kept)?;
            dict.set_item("position_bits", row.position_bits)?;
            dict.set_item("value_bits", row.value_bits)?;
            dict.set_item("overhead_bits", row.overhead_bits)?;
            let stats = row.stats.clone().with_elements(row.info.elements());
            let is_known = stats.unread == 0 && !row.delta;
            put(&dict, &stats, is_known)?;
            let counts = row.info.dtype.is_float() && stats.unread == 0;
            dict.set_item("nan", counts.then_some(stats.nan))?;
            dict.set_item("infinite", counts.then_some(stats.infinite))?;
            all.merge(&stats);
            tensors.append(dict)?;
        }
        all = all.with_elements(self.elements);
        let is_known = all.unread == 0 && self.header.delta.is_none();
        out.set_item("norm", is_known.then(|| all.norm()))?;
        out.set_item("zeros", all.zeros)?;
        out.set_item("nan", all.nan)?;
        out.set_item("infinite", all.infinite)?;
        out.set_item("tensors", tensors)?;
        Ok(out)
    }
}

/// Decodes a block, and counts and measures its values, also in each tensor of its scope if its support
/// tells.
fn count(part: &UpdatePart<'_>, number: usize, budget: &Budget) -> gcodec::Result<Counts> {
    let block = part.decode(number, budget)?;
    let space = &part.blocks[number].space;
    Ok(Counts {
        all: block.count(space, part.sets())?,
        each: block.tensor_counts(space, part.sets())?,
        stats: Stats::of_block(part, number, &block, budget, &StatsOptions::default())?,
    })
}
