//! Input and options of [`compress`](super::compress()).

use crate::limits::setters;
use crate::tensor::{Dtype, TensorView};

/// A tensor to compress.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Number in the manifest.
    pub tensor: u64,
    /// Name in the manifest, by which [`Feedback`](super::Feedback) knows it.
    pub name: &'a str,
    /// Elements.
    pub view: TensorView<'a>,
    /// Elements of the tensor that it replaces, for [`Codec::Delta`](super::Codec::Delta).
    pub base: Option<TensorView<'a>>,
}

impl Input<'_> {
    pub(super) fn outline(&self) -> Outline {
        Outline { tensor: self.tensor, dtype: self.view.dtype(), len: self.view.elements() }
    }
}

/// Number, type and length of a tensor whose elements are elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    /// Number of the tensor in the manifest.
    pub tensor: u64,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Number of elements.
    pub len: u64,
}

/// The treatment of NaN and infinity by lossy codecs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NonFinite {
    /// The codec returns an error.
    #[default]
    Reject,
    /// The codec treats them as zero.
    Zero,
}

/// Options of [`compress`](super::compress()).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The largest number of elements, at least 1, of a dense block. Larger tensors take several blocks.
    /// Default: 4,194,304. Not stored.
    pub block_len: u64,
    /// The treatment of NaN and infinity by lossy codecs. Default: an error. Not stored.
    pub non_finite: NonFinite,
}

impl Default for Options {
    fn default() -> Self {
        Self { block_len: 1 << 22, non_finite: NonFinite::default() }
    }
}

setters! {
    Options {
        with_block_len(block_len: u64)
        with_non_finite(non_finite: NonFinite)
    }
}
