//! An update of a report.

use super::report::{Totals, Wanted};
use super::tensor::Tensor;
use crate::annotate;
use crate::options::{NameGlob, is_wanted};
use crate::stream::Base;
use gcodec::block::{RawBlock, Scope, Values};
use gcodec::file::File;
use gcodec::frame::{Budget, Delta, IndexedBlock, Manifest, Reduction, TensorInfo, UpdateHeader, UpdatePart};
use gcodec::reduce::stats::{Stats, StatsOptions};
use gcodec::stream::Assembler;
use gcodec::{Limits, TensorBuf};
use gcodec_latent::{Error, Models, replace_codes, without_latent};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// An update with all its parts.
#[derive(Debug, Serialize)]
pub(crate) struct Update {
    /// Step, or the one that a file of tensors or its name says.
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
    /// L2 norm of the finite elements; null if the update alone does not determine them.
    pub(crate) norm: Option<f64>,
    pub(crate) zeros: u64,
    pub(crate) nan: u64,
    pub(crate) infinite: u64,
    /// Whether all of its parts were read, and all of its blocks decode.
    pub(crate) complete: bool,
    /// Tensors that a block covers.
    pub(crate) tensors: Vec<Tensor>,
    /// Statistics of all its elements.
    #[serde(skip)]
    pub(crate) stats: Stats,
    /// Tensor and index of the first element that is NaN or infinite.
    #[serde(skip)]
    pub(crate) first_bad: Option<(String, u64)>,
    /// Whether all blocks of the parts so far decode.
    #[serde(skip)]
    pub(super) complete_so_far: bool,
    /// Whether its elements were read.
    #[serde(skip)]
    pub(crate) is_read: bool,
    /// Whether the step and the sender are known.
    #[serde(skip)]
    pub(crate) numbered: (bool, bool),
    /// Hash of the names and shapes of its tensors: only updates of one model can be compared.
    #[serde(skip)]
    pub(crate) model: u64,
    /// Index in `tensors`, by number in the manifest.
    #[serde(skip)]
    rows: HashMap<usize, usize>,
}

impl Update {
    pub(super) fn new(header: &UpdateHeader, manifest: &Manifest) -> Self {
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
            elements: manifest.elements(),
            source_bytes: manifest.tensors().iter().map(gcodec::frame::TensorInfo::bytes).sum(),
            kept: 0,
            density: 0.0,
            bits_per_parameter: 0.0,
            ratio: 0.0,
            norm: None,
            zeros: 0,
            nan: 0,
            infinite: 0,
            complete: false,
            tensors: Vec::new(),
            stats: Stats::default(),
            first_bad: None,
            complete_so_far: true,
            is_read: true,
            numbered: (true, true),
            model: u64::from_le_bytes(std::array::from_fn(|i| manifest.id().0[i])),
            rows: HashMap::new(),
        }
    }

    /// Returns the update that a file of tensors stands for.
    pub(crate) fn of_tensors(
        step: Option<u64>,
        sender: Option<u64>,
        bytes: u64,
        tensors: Vec<Tensor>,
        wanted: &Wanted,
        totals: &mut Totals,
    ) -> Self {
        let is_read = !wanted.quick;
        let source_bytes = tensors.iter().map(|t| t.source_bytes).sum();
        let mut update = Self {
            step: step.unwrap_or_default(),
            round: 0,
            sender: sender.unwrap_or_default(),
            world: 0,
            contributors: 0,
            inner_steps: 0,
            reduction: "none",
            label: String::new(),
            delta: false,
            frames: Vec::new(),
            tables: 0,
            blocks: 0,
            bytes,
            header_bytes: bytes.saturating_sub(source_bytes),
            elements: tensors.iter().map(|t| t.elements).sum(),
            source_bytes,
            kept: tensors.iter().filter_map(|t| t.kept).sum(),
            density: 0.0,
            bits_per_parameter: 0.0,
            ratio: 0.0,
            norm: None,
            zeros: 0,
            nan: 0,
            infinite: 0,
            complete: true,
            stats: Stats::default(),
            first_bad: None,
            complete_so_far: true,
            is_read,
            numbered: (step.is_some(), sender.is_some()),
            model: model_of(tensors.iter().map(|t| (t.name.as_str(), &t.shape[..]))),
            tensors,
            rows: HashMap::new(),
        };
        update.finish(wanted, totals);
        update
    }

    /// Returns an update whose elements are not read: the index says where the bytes are. `None` if its
    /// blocks span far more tensors than there are.
    pub(super) fn of_index(
        header: &UpdateHeader,
        manifest: &Manifest,
        blocks: &[IndexedBlock],
    ) -> Option<Self> {
        let mut update = Self::new(header, manifest);
        let infos = manifest.tensors();
        let mut rows: Vec<Option<Tensor>> = vec![None; infos.len()];
        let mut left = MAX_SPANS * infos.len();
        for block in blocks {
            update.blocks += 1;
            let first = usize::try_from(block.first).ok()?;
            let range = first..first.checked_add(usize::try_from(block.tensors).ok()?)?;
            let infos = infos.get(range.clone())?;
            left = left.checked_sub(infos.len().saturating_sub(1))?;
            let elements: u64 = infos.iter().map(TensorInfo::elements).sum();
            for (info, row) in infos.iter().zip(&mut rows[range]) {
                let row = row.get_or_insert_with(|| Tensor::unread(&info.name, info.dtype, &info.shape));
                let share = info.elements() as f64 / elements.max(1) as f64;
                row.value_bits += block.len as f64 * 8.0 * share;
                row.blocks += 1;
                row.apportioned |= infos.len() > 1;
            }
        }
        update.tensors = rows.into_iter().flatten().collect();
        update.complete = true;
        update.is_read = false;
        Some(update)
    }

    /// Adds a block's numbers to the tensors that it spans.
    pub(super) fn add(
        &mut self,
        part: &UpdatePart<'_>,
        raw: &RawBlock<'_>,
        block: &BlockReport,
        error: Option<&Error>,
        wanted: Option<&NameGlob>,
    ) {
        self.kept += block.kept;
        let elements = raw.space.len();
        for (i, &len) in raw.space.lens.iter().enumerate() {
            let number = raw.scope.first() as usize + i;
            let info = &part.manifest.tensors()[number];
            if !is_wanted(wanted, &info.name) {
                continue;
            }
            let none = Stats::default();
            let stats = block.stats.get(i).unwrap_or(&none);
            let share = match (raw.space.lens.len(), stats.unplaced, block.kept) {
                (1, ..) => 1.0,
                (_, 1.., _) | (_, _, 0) => len as f64 / elements.max(1) as f64,
                (_, _, all) => stats.kept as f64 / all as f64,
            };
            let row = self.row(number, info, raw, block);
            row.delta |= is_delta(part, number as u64);
            row.add(raw, &block.values, &block.codes, stats, share);
            if let Some(error) = error {
                row.error.get_or_insert_with(|| error.to_string());
            }
        }
    }

    fn row(
        &mut self,
        number: usize,
        info: &TensorInfo,
        raw: &RawBlock<'_>,
        block: &BlockReport,
    ) -> &mut Tensor {
        let next = self.tensors.len();
        let row = *self.rows.entry(number).or_insert(next);
        if row == next {
            let mut tensor = Tensor::new(&info.name, info.dtype, &info.shape);
            tensor.support = raw.support_id.to_string().into();
            (tensor.values, tensor.codes) = (block.values.clone().into(), block.codes.clone());
            self.tensors.push(tensor);
        }
        &mut self.tensors[row]
    }

    /// Replaces the statistics of tensors that have added blocks by those of their sums. Where that needs
    /// more than this part, their values count as unread.
    pub(super) fn take_sums(
        &mut self,
        part: &UpdatePart<'_>,
        models: &Models,
        limits: &Limits,
        options: &StatsOptions,
    ) {
        let added: Vec<u64> =
            part.blocks.iter().filter(|raw| raw.add).flat_map(|raw| tensors_of(raw.scope)).collect();
        let infos = part.manifest.tensors();
        let names: HashSet<&str> = added.iter().map(|&t| infos[t as usize].name.as_str()).collect();
        let sums = match part.part == 0 && part.last {
            true => sum_blocks(part, models, limits, |name| names.contains(name)).unwrap_or_default(),
            false => Vec::new(),
        };
        let sums: HashMap<u64, TensorBuf> = sums.into_iter().collect();
        for number in added {
            let Some(&row) = self.rows.get(&(number as usize)) else { continue };
            let row = &mut self.tensors[row];
            row.stats = match sums.get(&number) {
                Some(tensor) => Stats::of(&tensor.view(), options),
                None => {
                    let mut unread = Stats::default();
                    let kept = row.kept.unwrap_or_default();
                    (unread.elements, unread.kept, unread.unread) = (kept, kept, kept);
                    unread
                }
            };
        }
    }

    /// Computes what follows from the sums, once all parts were added.
    pub(super) fn finish(&mut self, wanted: &Wanted, totals: &mut Totals) {
        if self.stats.elements > 0 {
            return;
        }
        for tensor in &mut self.tensors {
            tensor.finish();
            self.stats.merge(&tensor.stats);
            if let (None, Some(index)) = (&self.first_bad, tensor.first_bad()) {
                self.first_bad = Some((tensor.name.clone(), index));
            }
        }
        if wanted.tensor.is_none() {
            self.stats = std::mem::take(&mut self.stats).with_elements(self.elements);
        }
        self.norm = (self.stats.unread == 0 && !self.delta).then(|| self.stats.norm());
        (self.zeros, self.nan, self.infinite) = (self.stats.zeros, self.stats.nan, self.stats.infinite);
        self.density = self.kept as f64 / self.elements.max(1) as f64;
        self.bits_per_parameter = self.bytes as f64 * 8.0 / self.elements.max(1) as f64;
        self.ratio = self.source_bytes as f64 / self.bytes as f64;
        if !wanted.each {
            totals.add(std::mem::take(&mut self.tensors));
        }
        self.rows = HashMap::new();
    }
}

/// Most blocks of several tensors for a tensor, on average, that are looked at in an index.
const MAX_SPANS: usize = 64;

/// Whether a tensor's values change those of a base.
fn is_delta(part: &UpdatePart<'_>, number: u64) -> bool {
    part.header.delta.as_ref().is_some_and(|runs| Delta::find(runs, number).is_some())
}

/// Returns the numbers of a scope's tensors.
fn tensors_of(scope: Scope) -> std::ops::Range<u64> {
    scope.first()..scope.first() + scope.tensors()
}

/// Decodes the dense tensors of an update of one part.
fn sum_blocks(
    part: &UpdatePart<'_>,
    models: &Models,
    limits: &Limits,
    wanted: impl Fn(&str) -> bool,
) -> gcodec_latent::Result<Vec<(u64, TensorBuf)>> {
    if let Some(stream) = without_latent(std::slice::from_ref(part), models)? {
        return Ok(File::open(&stream, limits.clone())?.tensors(0, wanted, &Base::new())?);
    }
    let mut assembler = Assembler::new(&part.manifest, limits, wanted)?;
    assembler.apply(part)?;
    Ok(assembler.finish()?)
}

/// Hashes the names and shapes of tensors, in any order.
fn model_of<'a>(tensors: impl Iterator<Item = (&'a str, &'a [u64])>) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    tensors.map(|tensor| hasher.hash_one(tensor)).fold(0, u64::wrapping_add)
}

/// A block's contents for each tensor of its scope.
pub(super) struct BlockReport {
    values: String,
    codes: String,
    kept: u64,
    stats: Vec<Stats>,
}

impl BlockReport {
    /// Decodes a block; an error leaves the rest of the report empty.
    pub(super) fn of(
        part: &UpdatePart<'_>,
        number: usize,
        models: &Models,
        budget: &Budget,
        options: &StatsOptions,
    ) -> (Self, Option<Error>) {
        let raw = &part.blocks[number];
        let mut report =
            Self { values: raw.values_id.to_string(), codes: String::new(), kept: 0, stats: Vec::new() };
        let error = report.look(part, number, models, budget, options).err();
        (report, error)
    }

    fn look(
        &mut self,
        part: &UpdatePart<'_>,
        number: usize,
        models: &Models,
        budget: &Budget,
        options: &StatsOptions,
    ) -> gcodec_latent::Result<()> {
        let raw = &part.blocks[number];
        let block = part.decode(number, budget)?;
        self.values = block.values.label();
        self.codes = annotate::codes(raw, part);
        self.kept = block.count(&raw.space, part.sets())?;
        let block = match &block.values {
            Values::Latent(_) => match replace_codes(part, number, block.clone(), models) {
                // The values count as unread.
                Err(Error::MissingModel(_)) => block,
                replaced => replaced?,
            },
            _ => block,
        };
        self.stats = Stats::of_block(part, number, &block, budget, options)?;
        Ok(())
    }
}
