//! A tensor's row of a report.

use crate::tensors::{Label, NamedTensor, Opaque, Outline};
use gcodec::file::report::TensorReport;
use gcodec::frame::TensorInfo;
use gcodec::internal::elements;
use gcodec::reduce::stats::{Stats, StatsOptions};
use gcodec::tensor::Dtype;
use serde::Serialize;
use std::borrow::Cow;

/// A tensor's part of an update, or of several.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Cow<'static, str>,
    pub(crate) shape: Vec<u64>,
    pub(crate) elements: u64,
    pub(crate) support: Cow<'static, str>,
    pub(crate) values: Cow<'static, str>,
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
    /// `None` without elements.
    pub(crate) bits_per_parameter: Option<f64>,
    pub(crate) ratio: f64,
    /// Counts of NaN and infinities, if the values are floats.
    pub(crate) finite: Option<u64>,
    pub(crate) nan: Option<u64>,
    pub(crate) infinite: Option<u64>,
    /// Index of the first NaN and of the first infinity.
    pub(crate) first_nan: Option<u64>,
    pub(crate) first_infinite: Option<u64>,
    /// Statistics of the finite elements; null if the update alone does not determine them.
    pub(crate) norm: Option<f64>,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    pub(crate) mean: Option<f64>,
    pub(crate) std: Option<f64>,
    pub(crate) zeros: Option<u64>,
    /// Error in its blocks.
    pub(crate) error: Option<String>,
    /// Why its elements are not read, if it is a tensor of a type that is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) opaque: Option<String>,
    /// In how many chunks and which files it lies; only tensors of distributed checkpoints have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) placement: Option<String>,
    /// Bytes of the dense tensor.
    #[serde(skip)]
    pub(crate) source_bytes: u64,
    #[serde(skip)]
    pub(crate) stats: Stats,
    /// Number of updates that this row adds up.
    #[serde(skip)]
    pub(crate) updates: u64,
    /// Whether its values change a base: then they alone are no tensor, and have no norm.
    #[serde(skip)]
    pub(crate) delta: bool,
    /// Whether its values are floats that were made of those of a type that streams do not have.
    #[serde(skip)]
    is_converted: bool,
}

impl Tensor {
    /// Returns a row without blocks.
    pub(crate) fn new(name: &str, dtype: Dtype, shape: &[u64]) -> Self {
        let elements = elements(shape).unwrap_or(0);
        Self {
            name: name.to_owned(),
            dtype: dtype.name().into(),
            shape: shape.to_vec(),
            elements,
            source_bytes: dtype.bytes_for(elements).unwrap_or(0),
            kept: Some(0),
            updates: 1,
            ..Self::default()
        }
    }

    /// Returns the row of a tensor in a stream.
    pub(crate) fn of(info: &TensorInfo, row: TensorReport) -> Self {
        Self {
            support: row.support.map_or("mixed".into(), |id| id.to_string().into()),
            values: row.values.map_or("mixed".into(), Cow::Owned),
            codes: row.note,
            blocks: row.blocks,
            kept: row.kept,
            apportioned: row.is_shared,
            position_bits: row.position_bits,
            value_bits: row.value_bits,
            overhead_bits: row.overhead_bits,
            error: row.error,
            stats: row.stats,
            delta: row.is_delta,
            ..Self::new(&info.name, info.dtype, &info.shape)
        }
    }

    /// Returns the row of a dense tensor.
    pub(crate) fn of_dense(tensor: &NamedTensor, options: &StatsOptions) -> Self {
        let outline = Outline::from(tensor);
        let mut row = Self::new(outline.name, outline.dtype, outline.shape);
        (row.support, row.values) = ("all".into(), "dense".into());
        row.value_bits = outline.bytes() as f64 * 8.0;
        row.kept = Some(row.elements);
        row.stats = tensor.stats(options);
        row
    }

    /// Returns the row of a tensor whose elements are not read.
    pub(crate) fn of_opaque(tensor: &Opaque) -> Self {
        let shape = tensor.shape.as_deref();
        let elements = shape.and_then(elements).unwrap_or(0);
        let mut row = Self::new(&tensor.name, Dtype::U8, shape.unwrap_or_default());
        (row.elements, row.kept) = (elements, Some(elements));
        (row.support, row.values) = ("all".into(), tensor.dtype.clone());
        (row.dtype, row.source_bytes) = (tensor.dtype.clone(), tensor.bytes);
        row.value_bits = tensor.bytes as f64 * 8.0;
        (row.stats.elements, row.stats.kept, row.stats.unread) = (elements, elements, elements);
        // A quick look reads no values.
        row.opaque = (!tensor.has_values()).then(|| tensor.reason.clone().into_owned());
        row
    }

    /// Returns the row of a tensor whose values are known, although streams have no such type.
    pub(crate) fn of_values(tensor: &Opaque, stats: Stats) -> Self {
        let mut row = Self::of_opaque(tensor);
        (row.stats, row.is_converted) = (stats, true);
        row
    }

    /// Names the row of an opaque tensor, which a stream has as bytes, for what it is.
    pub(super) fn name_opaque(&mut self, label: &Label) {
        self.shape = label.shape.clone().unwrap_or_default();
        self.dtype = label.dtype.clone().into();
        self.elements = label.shape.as_deref().and_then(elements).unwrap_or(0);
        self.kept = self.kept.map(|_| self.elements);
        self.opaque = Some("the stream keeps its bytes".to_owned());
        let elements = self.elements;
        self.stats = Stats::default();
        (self.stats.elements, self.stats.kept, self.stats.unread) = (elements, elements, elements);
    }

    /// Returns the row of a tensor that is known by its place only.
    pub(crate) fn unread(name: &str, dtype: Dtype, shape: &[u64]) -> Self {
        let mut row = Self::new(name, dtype, shape);
        row.kept = None;
        let elements = row.elements;
        (row.stats.elements, row.stats.unplaced, row.stats.unread) = (elements, elements, elements);
        row
    }

    /// Returns the sum of all bits.
    pub(crate) fn bits(&self) -> f64 {
        self.position_bits + self.value_bits + self.overhead_bits
    }

    /// Returns the bytes, rounded.
    pub(crate) fn bytes(&self) -> u64 {
        (self.bits() / 8.0).round() as u64
    }

    /// Returns the share of elements that are not zero, or for a delta that may differ from the base's;
    /// `None` if only the base tells.
    pub(crate) fn nonzero(&self) -> Option<f64> {
        if self.delta || self.stats.unplaced > 0 {
            return self.density;
        }
        let elements = self.elements.saturating_mul(self.updates).max(1);
        Some((self.stats.nonzero() + self.stats.unread) as f64 / elements as f64)
    }

    /// Returns the index of the first element that is NaN, or else infinite.
    pub(crate) fn first_bad(&self) -> Option<u64> {
        self.stats.first_nan.or(self.stats.first_infinite)
    }

    /// Whether the update alone determines the elements.
    fn is_known(&self) -> bool {
        self.stats.unread == 0 && !self.delta && self.opaque.is_none()
    }

    /// Whether every value is NaN.
    pub(crate) fn is_all_nan(&self) -> bool {
        self.stats.nan > 0 && Some(self.stats.nan) == self.kept
    }

    /// Says what is wrong with the values; empty if nothing is.
    pub(crate) fn flags(&self) -> String {
        let (nan, infinite) = (self.stats.nan, self.stats.infinite);
        let mut flags = Vec::new();
        match nan {
            0 => {}
            _ if self.is_all_nan() => flags.push("all NaN".to_owned()),
            _ => flags.push(format!("{nan} NaN")),
        }
        if infinite > 0 {
            flags.push(format!("{infinite} Inf"));
        }
        if self.opaque.is_some() {
            flags.push("opaque".to_owned());
        }
        flags.join(", ")
    }

    /// Computes what follows from the sums, once all blocks were added.
    pub(crate) fn finish(&mut self) {
        let is_float = self.is_converted || Dtype::from_name(&self.dtype).is_some_and(Dtype::is_float);
        if is_float && self.stats.unread == 0 && self.opaque.is_none() {
            let (nan, infinite) = (self.stats.nan, self.stats.infinite);
            self.finite = self.kept.map(|kept| kept.saturating_sub(nan + infinite));
            (self.nan, self.infinite) = (Some(nan), Some(infinite));
        }
        (self.first_nan, self.first_infinite) = (self.stats.first_nan, self.stats.first_infinite);
        self.stats = std::mem::take(&mut self.stats).with_elements(self.elements);
        if self.is_known() {
            let stats = &self.stats;
            (self.norm, self.mean, self.std) = (Some(stats.norm()), Some(stats.mean()), Some(stats.std()));
            (self.min, self.max, self.zeros) = (stats.min, stats.max, Some(stats.zeros));
        }
        self.divide();
    }

    /// Adds the same tensor of another update, or another tensor of a group.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.kept = self.kept.zip(other.kept).map(|(sum, kept)| sum + kept);
        self.delta |= other.delta;
        self.updates += other.updates;
        self.apportioned |= other.apportioned;
        self.position_bits += other.position_bits;
        self.value_bits += other.value_bits;
        self.overhead_bits += other.overhead_bits;
        for (text, other) in [(&mut self.support, &other.support), (&mut self.values, &other.values)] {
            if text != other {
                *text = "mixed".into();
            }
        }
        self.stats.merge(&other.stats);
        let sum = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        self.finite = sum(self.finite, other.finite);
        self.nan = sum(self.nan, other.nan);
        self.infinite = sum(self.infinite, other.infinite);
        (self.first_nan, self.first_infinite) = (self.stats.first_nan, self.stats.first_infinite);
        let known = self.is_known();
        let stats = &self.stats;
        self.norm = known.then(|| stats.norm());
        (self.mean, self.std) = (known.then(|| stats.mean()), known.then(|| stats.std()));
        (self.min, self.max) = (stats.min.filter(|_| known), stats.max.filter(|_| known));
        self.zeros = known.then_some(stats.zeros);
        self.error = self.error.take().or_else(|| other.error.clone());
        self.opaque = self.opaque.take().or_else(|| other.opaque.clone());
        self.placement =
            self.placement.take().filter(|placement| Some(placement) == other.placement.as_ref());
        self.divide();
    }

    /// Turns the rows of a module's tensors into one.
    pub(crate) fn group(name: &str, tensors: &[&Self]) -> Self {
        let Some((first, rest)) = tensors.split_first() else { return Self::default() };
        let mut sum = (*first).clone();
        for tensor in rest {
            // Tensors of one module add up their elements, and those of several updates do not.
            let (elements, updates, bytes) = (sum.elements + tensor.elements, sum.updates, sum.source_bytes);
            sum.merge(tensor);
            (sum.elements, sum.updates) = (elements, updates);
            sum.source_bytes = bytes + tensor.source_bytes;
            if sum.dtype != tensor.dtype {
                sum.dtype = "mixed".into();
            }
        }
        sum.stats.grid = None;
        (sum.name, sum.shape) = (name.to_owned(), Vec::new());
        sum.divide();
        sum
    }

    fn divide(&mut self) {
        let elements = self.elements.saturating_mul(self.updates).max(1) as f64;
        self.density = self.kept.map(|kept| kept as f64 / elements);
        self.bits_per_parameter = (self.elements > 0).then(|| self.bits() / elements);
        self.ratio = self.source_bytes as f64 * self.updates as f64 * 8.0 / self.bits();
    }
}
