//! An update of a report.

use super::report::{Totals, Wanted};
use super::tensor::Tensor;
use crate::origin::Origin;
use crate::tensors::Labels;
use gcodec::file::report::{TensorReport, UpdateReport};
use gcodec::frame::{IndexedBlock, Manifest, Reduction, TensorInfo, UpdateHeader};
use gcodec::reduce::stats::Stats;
use serde::Serialize;

/// An update with all its parts.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Update {
    /// Step, or the one that a file of tensors or its name says.
    pub(crate) step: u64,
    pub(crate) round: u64,
    pub(crate) sender: u64,
    /// Whether step or sender are from the name of a file or folder.
    pub(crate) guessed: bool,
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
    /// `None` without parameters.
    pub(crate) bits_per_parameter: Option<f64>,
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
    /// Whether its elements were read.
    #[serde(skip)]
    pub(crate) is_read: bool,
    /// Whether the step and the sender are known.
    #[serde(skip)]
    pub(crate) numbered: (bool, bool),
    /// Hash of the names and shapes of its tensors: only updates of one model can be compared.
    #[serde(skip)]
    pub(crate) model: u64,
}

impl Update {
    fn new(header: &UpdateHeader, manifest: &Manifest) -> Self {
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
            delta: header.is_delta(),
            elements: manifest.elements(),
            source_bytes: manifest.tensors().iter().map(TensorInfo::bytes).sum(),
            numbered: (true, true),
            model: u64::from_le_bytes(std::array::from_fn(|i| manifest.id().0[i])),
            ..Self::default()
        }
    }

    /// Returns an update of a stream, once all of its parts were read.
    pub(super) fn of(found: UpdateReport, wanted: &Wanted, labels: &Labels, totals: &mut Totals) -> Self {
        let infos = found.manifest.tensors();
        let tensor = |row: TensorReport| Tensor::of(&infos[row.number as usize], row);
        let mut update = Self {
            tensors: found.tensors.into_iter().map(tensor).collect(),
            frames: found.frames,
            tables: found.tables,
            blocks: found.blocks,
            bytes: found.bytes,
            header_bytes: found.header_bytes,
            kept: found.kept,
            complete: found.is_complete,
            is_read: true,
            ..Self::new(&found.header, &found.manifest)
        };
        update.name_opaque(labels);
        update.finish(wanted, totals);
        update
    }

    /// Returns the update that a file of tensors stands for.
    pub(crate) fn of_tensors(
        origin: Origin,
        bytes: u64,
        tensors: Vec<Tensor>,
        wanted: &Wanted,
        totals: &mut Totals,
    ) -> Self {
        let source_bytes = tensors.iter().map(|t| t.source_bytes).sum();
        let mut update = Self {
            step: origin.step.unwrap_or_default(),
            sender: origin.sender.unwrap_or_default(),
            guessed: origin.guessed,
            world: origin.world.unwrap_or_default(),
            reduction: "none",
            bytes,
            header_bytes: bytes.saturating_sub(source_bytes),
            elements: tensors.iter().map(|t| t.elements).sum(),
            source_bytes,
            kept: tensors.iter().filter_map(|t| t.kept).sum(),
            complete: true,
            is_read: !wanted.quick,
            numbered: (origin.step.is_some(), origin.sender.is_some()),
            model: model_of(tensors.iter().map(|t| (t.name.as_str(), &t.shape[..]))),
            tensors,
            ..Self::default()
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
        Some(update)
    }

    /// Names the rows of opaque tensors, which a stream has as bytes, for what they are.
    pub(super) fn name_opaque(&mut self, labels: &Labels) {
        for tensor in &mut self.tensors {
            let Some(label) = labels.of_row(&tensor.name, &tensor.dtype, &tensor.shape) else { continue };
            let (elements, kept) = (tensor.elements, tensor.kept);
            tensor.name_opaque(label);
            self.elements = self.elements.saturating_sub(elements).saturating_add(tensor.elements);
            let (kept, of_row) = (kept.unwrap_or(0), tensor.kept.unwrap_or(0));
            self.kept = self.kept.saturating_sub(kept).saturating_add(of_row);
        }
    }

    /// Computes what follows from the sums, once all parts were added.
    pub(super) fn finish(&mut self, wanted: &Wanted, totals: &mut Totals) {
        // Elements that nobody reads have no norm, and do not hide that of the others.
        let mut opaque = 0;
        for tensor in &mut self.tensors {
            tensor.finish();
            match tensor.opaque {
                Some(_) => opaque += tensor.elements,
                None => self.stats.merge(&tensor.stats),
            }
            if let (None, Some(index)) = (&self.first_bad, tensor.first_bad()) {
                self.first_bad = Some((tensor.name.clone(), index));
            }
        }
        if wanted.tensor.is_none() {
            self.stats = std::mem::take(&mut self.stats).with_elements(self.elements.saturating_sub(opaque));
        }
        let is_any_read = opaque == 0 || self.stats.elements > 0;
        self.norm = (self.stats.unread == 0 && !self.delta && is_any_read).then(|| self.stats.norm());
        (self.zeros, self.nan, self.infinite) = (self.stats.zeros, self.stats.nan, self.stats.infinite);
        self.density = self.kept as f64 / self.elements.max(1) as f64;
        // Without parameters, there are no bits of one.
        self.bits_per_parameter = (self.elements > 0).then(|| self.bytes as f64 * 8.0 / self.elements as f64);
        self.ratio = self.source_bytes as f64 / self.bytes as f64;
        if !wanted.each {
            totals.add(std::mem::take(&mut self.tensors));
        }
    }
}

/// Most blocks of several tensors for a tensor, on average, that are looked at in an index.
const MAX_SPANS: usize = 64;

/// Hashes the names and shapes of tensors, in any order.
fn model_of<'a>(tensors: impl Iterator<Item = (&'a str, &'a [u64])>) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    tensors.map(|tensor| hasher.hash_one(tensor)).fold(0, u64::wrapping_add)
}
