//! A sum as it is finished: whole, or piece by piece.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use super::sum::Sum;
use super::total::Total;
use super::windows::{BATCH, Window, Windows};
use crate::arch::spare::Spare;
use crate::block::{Block, PendingBlock, Scope, Support};
#[cfg(doc)]
use crate::error::InputErrorKind;
use crate::error::Result;
use crate::frame::{Manifest, TensorInfo, UpdateHeader};
use crate::tensor::{Dtype, TensorBuf};

/// Elements in one block of a sum; larger tensors take several. The unit tests and fuzz targets cut more.
pub(super) const BLOCK_LEN: u64 = if cfg!(any(test, fuzzing)) { 1 << 10 } else { 1 << 22 };

/// A sum or mean.
#[derive(Debug, Clone)]
pub struct Reduced {
    /// Header for an update that carries the result: step and round, contributors, sum or mean. The sender is
    /// 0 until the caller sets it.
    pub header: UpdateHeader,
    pub(super) manifest: Arc<Manifest>,
    pub(super) sums: Vec<Total>,
}

impl Reduced {
    /// Returns the tensors in the order of the manifest, in their own types, rounded to nearest, ties to
    /// even.
    ///
    /// # Errors
    /// [`InputErrorKind::CannotReduce`] with the tensor if an integer does not fit its type.
    pub fn tensors(&self) -> Result<Vec<TensorBuf>> {
        self.clone().into_tensors()
    }

    /// Returns what [`Self::tensors`] returns, without a copy of the sums.
    ///
    /// # Errors
    /// The errors of [`Self::tensors`].
    pub fn into_tensors(self) -> Result<Vec<TensorBuf>> {
        let tensors = (0u64..).zip(self.manifest.tensors()).zip(self.sums);
        tensors
            .map(|((tensor, info), sum)| {
                let data = sum.into_elements(info.dtype).map_err(|e| e.in_tensor(tensor))?;
                TensorBuf::new(info.dtype, info.shape.clone(), data)
            })
            .collect()
    }

    /// Returns dense blocks of the tensors, for an update with [`Reduced::header`]. Tensors of f32, f64 and
    /// integers are stored in their own types; narrower floats as f32, which a reader rounds, so that such
    /// sums can be summed again.
    ///
    /// # Errors
    /// The errors of [`Self::tensors`].
    pub fn blocks(&self) -> Result<Vec<Block>> {
        let sums = (0u64..).zip(self.manifest.tensors()).zip(&self.sums);
        let pieces = sums.flat_map(|((tensor, info), sum)| cut(tensor, info, 0, Cow::Borrowed(sum)));
        pieces.filter(|piece| piece.len > 0).map(SumPiece::into_block).collect()
    }
}

/// Consecutive elements of one tensor of a sum: all of them, unless the tensor is large.
#[derive(Debug)]
pub struct SumPiece {
    /// Number of the tensor in the manifest.
    pub tensor: u64,
    /// First element in the tensor.
    pub start: u64,
    /// Number of elements.
    pub len: u64,
    is_whole: bool,
    dtype: Dtype,
    total: Total,
}

impl SumPiece {
    /// Returns the elements in the tensor's own type, as [`Reduced::tensors`].
    ///
    /// # Errors
    /// The errors of [`Reduced::tensors`].
    pub fn into_elements(self) -> Result<Vec<u8>> {
        self.total.into_elements(self.dtype).map_err(|e| e.in_tensor(self.tensor))
    }

    fn into_block(self) -> Result<Block> {
        let Self { tensor, start, len, .. } = self;
        let scope = match self.is_whole {
            true => Scope::Tensor(tensor),
            false => Scope::Range { tensor, start, len },
        };
        let values = self.total.into_values(self.dtype).map_err(|e| e.in_tensor(tensor))?;
        Ok(Block { scope, add: false, support: Support::All, values })
    }
}

/// Returns the most bytes of memory that pieces keep for the next ones: the sum of a window and an update,
/// of at most [`BLOCK_LEN`] elements each.
fn most(manifest: &Manifest) -> u64 {
    let longest = manifest.tensors().iter().map(|info| info.bytes()).max().unwrap_or(0);
    let window = longest.min(4 * BLOCK_LEN);
    2 * window.max(BATCH)
}

/// Cuts the sum of the elements from `first` on into pieces, each for one block.
fn cut(tensor: u64, info: &TensorInfo, first: u64, total: Cow<'_, Total>) -> Vec<SumPiece> {
    let (dtype, count) = (info.dtype, total.len());
    let is_whole = info.elements() <= BLOCK_LEN;
    let piece = |start, len, total| SumPiece { tensor, start, len, is_whole, dtype, total };
    match count <= BLOCK_LEN {
        true => vec![piece(first, count, total.into_owned())],
        false => (0..count)
            .step_by(BLOCK_LEN as usize)
            .map(|at| (at, BLOCK_LEN.min(count - at)))
            .map(|(at, len)| piece(first + at, len, total.slice(at, len)))
            .collect(),
    }
}

/// A sum whose elements are added a few tensors at a time, as [`Sum::into_pieces`] returns it: the pieces in
/// the order of the manifest. After an error it ends.
///
/// # Memory
/// The memory of [`Sum`], for 2 MiB of tensors, or for one larger tensor; and up to 32 MiB that are kept for
/// the next ones. A larger tensor is summed 4 Mi elements at a time if its updates are sparse, or cut at the
/// same elements.
pub struct SumPieces<'a> {
    sum: Sum<'a>,
    header: UpdateHeader,
    divisor: Option<f64>,
    windows: Windows,
    ready: VecDeque<SumPiece>,
    sender: Option<u64>,
    spare: Spare,
}

impl<'a> SumPieces<'a> {
    pub(super) fn new(sum: Sum<'a>, mean: bool) -> Result<Self> {
        let header = sum.header(mean)?;
        let divisor = mean.then(|| sum.total_weight());
        let (windows, spare) = (Windows::new(&sum), Spare::new(most(sum.manifest())));
        Ok(Self { sum, header, divisor, windows, ready: VecDeque::new(), sender: None, spare })
    }

    /// Returns the header for an update that carries the result, as [`Reduced::header`].
    pub fn header(&self) -> &UpdateHeader {
        &self.header
    }

    /// Lends memory for later pieces, such as the elements of one that is no longer needed.
    pub fn reuse(&mut self, memory: Vec<u8>) {
        self.spare.give(memory);
    }

    /// Returns the sender whose update gave the error, if one did.
    pub fn sender(&self) -> Option<u64> {
        self.sender
    }

    /// Returns the blocks of the pieces that are left, as [`Reduced::blocks`], for
    /// [`Writer::update`](crate::stream::Writer::update).
    pub fn blocks(&mut self) -> impl Iterator<Item = Result<PendingBlock<'static>>> + use<'_, 'a> {
        let is_block = |piece: &Result<SumPiece>| !matches!(piece, Ok(SumPiece { len: 0, .. }));
        self.filter(is_block).map(|piece| piece.and_then(SumPiece::into_block).map(PendingBlock::from))
    }

    fn find(&mut self) -> Result<Option<SumPiece>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            let Some(window) = self.windows.next(&self.sum) else { return Ok(None) };
            self.ready = self.pieces(&window)?;
        }
    }

    fn pieces(&mut self, window: &Window) -> Result<VecDeque<SumPiece>> {
        let totals = self.sum.totals(window, self.divisor, &mut self.spare);
        let totals = totals.map_err(|(sender, e)| {
            self.sender = sender;
            e
        })?;
        let numbers = window.tensors.clone().zip(totals);
        let infos = self.sum.manifest().tensors();
        Ok(numbers
            .flat_map(|(number, total)| cut(number as u64, &infos[number], window.start(), Cow::Owned(total)))
            .collect())
    }
}

impl Iterator for SumPieces<'_> {
    type Item = Result<SumPiece>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.find();
        if found.is_err() {
            self.windows.end();
        }
        found.transpose()
    }
}
