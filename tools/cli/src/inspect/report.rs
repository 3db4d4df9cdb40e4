//! The report on a stream; docs/inspect.schema.json describes its JSON form.

use crate::annotate;
use crate::fail::Failure;
use crate::options::{NameGlob, is_wanted};
use crate::progress::Progress;
use crate::stream::{Names, explain};
use gcodec::Limits;
use gcodec::block::{Block, IndexSpace, RawBlock, Values};
use gcodec::frame::{Budget, FrameHeader, HEADER_LEN, Reduction, UpdatePart, VERSION_MAJOR};
use gcodec::stream::{Body, Event, SliceReader};
use gcodec::tensor::Dtype;
use gcodec::tensor::element::{bits_at, decode_f32s};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Report of `inspect`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) bytes: u64,
    pub(crate) version: Option<Version>,
    pub(crate) segments: u64,
    pub(crate) has_index: bool,
    /// Whether everything was read and is valid.
    pub(crate) ok: bool,
    pub(crate) frames: Vec<Frame>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) manifests: Vec<ManifestReport>,
    pub(crate) index_sets: Vec<IndexSetReport>,
    pub(crate) models: Vec<ModelReport>,
    pub(crate) updates: Vec<Update>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Version {
    pub(crate) major: u8,
    pub(crate) minor: u8,
}

#[derive(Debug, Serialize)]
pub(crate) struct Frame {
    pub(crate) number: u64,
    pub(crate) kind: String,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ManifestReport {
    pub(crate) frame: u64,
    pub(crate) id: String,
    pub(crate) tensors: u64,
    pub(crate) elements: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct IndexSetReport {
    pub(crate) frame: u64,
    pub(crate) id: String,
    pub(crate) step: u64,
    pub(crate) leader: u64,
    pub(crate) world: u64,
    pub(crate) kept: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelReport {
    pub(crate) frame: u64,
    pub(crate) id: String,
    pub(crate) format: String,
    pub(crate) name: String,
    pub(crate) weights_bytes: u64,
}

/// An update with all its parts.
#[derive(Debug, Serialize)]
pub(crate) struct Update {
    pub(crate) step: u64,
    pub(crate) round: u64,
    pub(crate) sender: u64,
    pub(crate) world: u64,
    pub(crate) contributors: u64,
    pub(crate) inner_steps: u64,
    pub(crate) reduction: &'static str,
    pub(crate) label: String,
    pub(crate) delta: bool,
    /// Numbers of the update's frames.
    pub(crate) frames: Vec<u64>,
    pub(crate) tables: u64,
    pub(crate) blocks: u64,
    /// Bytes of its frames.
    pub(crate) bytes: u64,
    /// Bytes of its frames without the blocks.
    pub(crate) header_bytes: u64,
    /// Elements of all tensors of its manifest.
    pub(crate) elements: u64,
    /// Bytes of all tensors of its manifest.
    pub(crate) source_bytes: u64,
    pub(crate) kept: u64,
    pub(crate) density: f64,
    pub(crate) bits_per_parameter: f64,
    pub(crate) ratio: f64,
    /// Tensors that a block covers.
    pub(crate) tensors: Vec<Tensor>,
    /// Index in `tensors`, by number in the manifest.
    #[serde(skip)]
    rows: HashMap<usize, usize>,
}

/// A tensor's part of an update.
#[derive(Debug, Serialize)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<u64>,
    pub(crate) elements: u64,
    pub(crate) support: String,
    pub(crate) values: String,
    /// Coding of the positions.
    pub(crate) codes: String,
    pub(crate) blocks: u64,
    /// `None` if only the base of a delta tells.
    pub(crate) kept: Option<u64>,
    pub(crate) density: Option<f64>,
    /// Whether blocks span other tensors too, so that bits are divided by kept values.
    pub(crate) apportioned: bool,
    pub(crate) position_bits: f64,
    pub(crate) value_bits: f64,
    pub(crate) overhead_bits: f64,
    pub(crate) bits_per_parameter: f64,
    pub(crate) ratio: f64,
    /// Counts of NaN and infinities, if the values are floats.
    pub(crate) finite: Option<u64>,
    pub(crate) nan: Option<u64>,
    pub(crate) infinite: Option<u64>,
    /// Error in its blocks.
    pub(crate) error: Option<String>,
}

impl Tensor {
    /// Returns the sum of all bits.
    pub(crate) fn bits(&self) -> f64 {
        self.position_bits + self.value_bits + self.overhead_bits
    }
}

impl Report {
    /// Reads a stream. An error ends the reading; everything before it is in the report.
    pub(crate) fn of(
        bytes: &[u8],
        frame: Option<u64>,
        tensor: Option<&NameGlob>,
        limits: &Limits,
    ) -> (Self, Option<Failure>) {
        let mut report = Self { bytes: bytes.len() as u64, ..Self::default() };
        let mut names = Names::default();
        let mut failure = None;
        let progress = Progress::new(bytes.len() as u64, "inspecting", true);
        for event in SliceReader::new(bytes, limits.clone()) {
            match event {
                Err(e) => {
                    // The stream ends here; an earlier failure takes precedence.
                    failure = failure.or(Some(names.explain(e)));
                    break;
                }
                Ok(event) => {
                    names.see(&event);
                    failure = failure.or(report.add(event, frame, tensor));
                }
            }
            progress.set(report.frames.last().map_or(0, |f| f.offset + f.bytes));
        }
        for update in &mut report.updates {
            update.finish(tensor);
        }
        report.ok = failure.is_none();
        (report, failure)
    }

    fn add(&mut self, event: Event<'_>, frame: Option<u64>, tensor: Option<&NameGlob>) -> Option<Failure> {
        let (info, body) = match event {
            Event::Frame(info, body) => (info, body),
            Event::Preamble(preamble) => {
                self.version = Some(Version { major: VERSION_MAJOR, minor: preamble.minor });
                return None;
            }
            _ => return None,
        };
        match &body {
            Body::End(_) => self.segments += 1,
            Body::Index(_) => self.has_index = true,
            _ => {}
        }
        if frame.is_some_and(|f| f != info.number) {
            return None;
        }
        let number = info.number;
        self.frames.push(Frame {
            number,
            kind: info.header.kind.to_string(),
            offset: info.offset,
            bytes: info.len(),
        });
        match body {
            Body::Metadata(metadata) => self.metadata.extend(metadata.entries),
            Body::Manifest(manifest) => self.manifests.push(ManifestReport {
                frame: number,
                id: hex(&manifest.id().0),
                tensors: manifest.tensors().len() as u64,
                elements: manifest.elements(),
            }),
            Body::IndexSet(set, id, count) => self.index_sets.push(IndexSetReport {
                frame: number,
                id: id.to_string(),
                step: set.step,
                leader: set.leader,
                world: set.world,
                kept: count,
            }),
            Body::Model(model) => self.models.push(ModelReport {
                frame: number,
                id: model.id.to_string(),
                format: model.format,
                name: model.name,
                weights_bytes: model.weights_len,
            }),
            Body::Update(part) => return self.add_part(&part, number, info.len(), &info.header, tensor),
            _ => {}
        }
        None
    }

    fn add_part(
        &mut self,
        part: &UpdatePart<'_>,
        number: u64,
        len: u64,
        header: &FrameHeader,
        tensor: Option<&NameGlob>,
    ) -> Option<Failure> {
        debug_assert_eq!(header.body_len + HEADER_LEN as u64, len);
        let continues =
            part.part > 0 && self.updates.last().is_some_and(|u| u.frames.last() == Some(&(number - 1)));
        if !continues {
            self.updates.push(Update::new(part));
        }
        let update = self.updates.last_mut()?;
        update.frames.push(number);
        update.tables += part.table_count() as u64;
        update.blocks += part.blocks.len() as u64;
        update.bytes += len;
        update.header_bytes += len - part.blocks.iter().map(|b| b.len).sum::<u64>();
        // Blocks are added one after another; the work on each is parallel.
        let budget = part.budget();
        let looked: Vec<(BlockReport, Option<gcodec::Error>)> = (0..part.blocks.len())
            .into_par_iter()
            .map(|i| BlockReport::of(part, i, &budget.with_memory_renewed()))
            .collect();
        let mut failure = None;
        for (raw, (block, error)) in part.blocks.iter().zip(looked) {
            let error = error.map(|e| explain(e, Some(&part.manifest)).about(format_args!("frame {number}")));
            update.add(part, raw, &block, error.as_ref(), tensor);
            failure = failure.or(error);
        }
        failure
    }
}

impl Update {
    fn new(part: &UpdatePart<'_>) -> Self {
        let header = &part.header;
        Self {
            step: header.step,
            round: header.round,
            sender: header.sender,
            world: header.world,
            contributors: header.contributors,
            inner_steps: header.inner_steps,
            reduction: match header.reduction {
                Reduction::None => "none",
                Reduction::Sum => "sum",
                Reduction::Mean => "mean",
            },
            label: header.label.clone(),
            delta: header.delta.is_some(),
            frames: Vec::new(),
            tables: 0,
            blocks: 0,
            bytes: 0,
            header_bytes: 0,
            elements: part.manifest.elements(),
            source_bytes: part.manifest.tensors().iter().map(gcodec::frame::TensorInfo::bytes).sum(),
            kept: 0,
            density: 0.0,
            bits_per_parameter: 0.0,
            ratio: 0.0,
            tensors: Vec::new(),
            rows: HashMap::new(),
        }
    }

    /// Adds a block's numbers to the tensors that it spans.
    fn add(
        &mut self,
        part: &UpdatePart<'_>,
        raw: &RawBlock<'_>,
        block: &BlockReport,
        error: Option<&Failure>,
        wanted: Option<&NameGlob>,
    ) {
        self.kept += block.kept;
        let elements = raw.space.len();
        for (i, (counts, &len)) in block.tensors.iter().zip(&raw.space.lens).enumerate() {
            let number = raw.scope.first() as usize + i;
            let info = &part.manifest.tensors()[number];
            if !is_wanted(wanted, &info.name) {
                continue;
            }
            let row = match self.rows.get(&number) {
                Some(&row) => &mut self.tensors[row],
                None => {
                    self.rows.insert(number, self.tensors.len());
                    self.tensors.push(Tensor {
                        name: info.name.clone(),
                        dtype: info.dtype.name(),
                        shape: info.shape.clone(),
                        elements: info.elements(),
                        support: raw.support_id.to_string(),
                        values: block.values.clone(),
                        codes: block.codes.clone(),
                        blocks: 0,
                        kept: Some(0),
                        density: None,
                        apportioned: false,
                        position_bits: 0.0,
                        value_bits: 0.0,
                        overhead_bits: 0.0,
                        bits_per_parameter: 0.0,
                        ratio: 0.0,
                        finite: None,
                        nan: None,
                        infinite: None,
                        error: None,
                    });
                    let last = self.tensors.len() - 1;
                    &mut self.tensors[last]
                }
            };
            let share = match (raw.space.lens.len(), counts.kept, block.kept) {
                (1, ..) => 1.0,
                (_, None, _) | (_, _, 0) => len as f64 / elements.max(1) as f64,
                (_, Some(kept), all) => kept as f64 / all as f64,
            };
            row.apportioned |= raw.space.lens.len() > 1;
            for (text, other) in
                [(&mut row.support, raw.support_id.to_string()), (&mut row.values, block.values.clone())]
            {
                if *text != other {
                    *text = "mixed".into();
                }
            }
            if row.codes != block.codes {
                row.codes.clear();
            }
            row.blocks += 1;
            row.kept = row.kept.zip(counts.kept).map(|(sum, kept)| sum + kept);
            row.position_bits += share * raw.support.len() as f64 * 8.0;
            row.value_bits += share * raw.values.len() as f64 * 8.0;
            row.overhead_bits += share * raw.header_len() as f64 * 8.0;
            if let (Some(numbers), Some(kept)) = (counts.numbers, counts.kept) {
                *row.finite.get_or_insert(0) += kept - numbers.nan - numbers.infinite;
                *row.nan.get_or_insert(0) += numbers.nan;
                *row.infinite.get_or_insert(0) += numbers.infinite;
            }
            if let Some(failure) = error {
                row.error.get_or_insert_with(|| failure.message.clone());
            }
        }
    }

    fn finish(&mut self, wanted: Option<&NameGlob>) {
        for row in &mut self.tensors {
            row.density = row.kept.map(|kept| kept as f64 / row.elements.max(1) as f64);
            row.bits_per_parameter = row.bits() / row.elements.max(1) as f64;
            let dtype = Dtype::from_name(row.dtype).and_then(|d| d.bytes_for(row.elements)).unwrap_or(0);
            row.ratio = dtype as f64 * 8.0 / row.bits();
        }
        let sum: Option<u64> = self.tensors.iter().map(|t| t.kept).sum();
        debug_assert!(wanted.is_some() || sum.is_none_or(|sum| sum == self.kept));
        self.density = self.kept as f64 / self.elements.max(1) as f64;
        self.bits_per_parameter = self.bytes as f64 * 8.0 / self.elements.max(1) as f64;
        self.ratio = self.source_bytes as f64 / self.bytes as f64;
    }
}

/// A block's numbers for each tensor of its scope.
struct BlockReport {
    values: String,
    codes: String,
    kept: u64,
    tensors: Vec<Counts>,
}

#[derive(Debug, Clone, Copy)]
struct Counts {
    kept: Option<u64>,
    numbers: Option<Numbers>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Numbers {
    nan: u64,
    infinite: u64,
}

impl BlockReport {
    fn of(part: &UpdatePart<'_>, number: usize, budget: &Budget) -> (Self, Option<gcodec::Error>) {
        let raw = &part.blocks[number];
        let mut report = Self {
            values: raw.values_id.to_string(),
            codes: String::new(),
            kept: 0,
            tensors: vec![Counts { kept: Some(0), numbers: None }; raw.space.lens.len()],
        };
        let error = report.look(part, number, budget).err();
        (report, error)
    }

    fn look(&mut self, part: &UpdatePart<'_>, number: usize, budget: &Budget) -> gcodec::Result<()> {
        let raw = &part.blocks[number];
        let block = part.decode(number, budget)?;
        self.values = block.values.label();
        self.codes = annotate::codes(raw, part);
        let counts = block.tensor_counts(&raw.space, part.sets())?;
        self.kept = kept(&block, &raw.space, part)?;
        for (i, tensor) in self.tensors.iter_mut().enumerate() {
            tensor.kept = counts.as_ref().map(|counts| counts[i]);
        }
        let has_numbers = !matches!(block.values, Values::Latent(_)) && !block.values.gives_bits();
        let mut start = 0;
        for tensor in &mut self.tensors {
            let range = start..start + tensor.kept.unwrap_or(0);
            start = range.end;
            tensor.numbers = match block.values.elements() {
                Some(bytes) => count_stored(raw.space.dtype, bytes, range),
                None => has_numbers.then(Numbers::default),
            };
        }
        if has_numbers {
            let numbers = block.numbers(&raw.space, part.sets(), &part.budget())?;
            let mut rest = numbers.as_slice();
            for tensor in &mut self.tensors {
                let (own, others) = rest.split_at(tensor.kept.unwrap_or(0) as usize);
                tensor.numbers = Some(Numbers::of(own));
                rest = others;
            }
        }
        Ok(())
    }
}

impl Numbers {
    fn of(values: &[f32]) -> Self {
        let count = |is: fn(f32) -> bool| values.iter().filter(|&&v| is(v)).count() as u64;
        Self { nan: count(f32::is_nan), infinite: count(f32::is_infinite) }
    }
}

/// Counts NaN and infinities among stored elements; `None` for elements that are no floats.
fn count_stored(dtype: Dtype, bytes: &[u8], range: std::ops::Range<u64>) -> Option<Numbers> {
    let mut all = Numbers::default();
    if dtype == Dtype::F64 {
        // Without a conversion to f32, where large ones would become infinite.
        for value in range.filter_map(|i| bits_at(dtype, bytes, i)).map(f64::from_bits) {
            all.nan += u64::from(value.is_nan());
            all.infinite += u64::from(value.is_infinite());
        }
        return Some(all);
    }
    let mut values = [0.0; 4096];
    for start in range.clone().step_by(values.len()) {
        let len = (range.end - start).min(values.len() as u64) as usize;
        decode_f32s(dtype, bytes, start, &mut values[..len]).ok()?;
        let chunk = Numbers::of(&values[..len]);
        all.nan += chunk.nan;
        all.infinite += chunk.infinite;
    }
    dtype.is_float().then_some(all)
}

/// Returns the number of values in a block.
pub(crate) fn kept(block: &Block, space: &IndexSpace, part: &UpdatePart<'_>) -> gcodec::Result<u64> {
    block.count(space, part.sets())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
