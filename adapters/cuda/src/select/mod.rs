//! Codecs that send some elements: their selection on a device.
//!
//! `plan` lists the searches of an update, `launch` runs the kernels, `fit` exchanges SIDCo's sums and
//! thresholds with the host, `collect` reads what was kept, `subtract` takes what is sent from the residuals.

mod collect;
mod fit;
mod launch;
mod plan;
mod subtract;

use gcodec::internal::device as host;

pub(crate) use collect::Selected;
pub(crate) use plan::Plan;

use crate::abi::{NonFinite, Piece, TILE_LEN};
use crate::device::{Device, Kernel};
use crate::error::{Error, Result};
use crate::memory::{Memory, Pinned};
use crate::tensor::Stream;

/// The most elements of a piece: positions in a piece have 32 bits.
const MAX_PIECE_LEN: u64 = 1 << 31;

/// Runs searches on a device, in memory that it keeps from update to update.
#[derive(Debug)]
pub(crate) struct Selector {
    device: Device,
    work: Memory,
    /// The positions of kept elements, then their values.
    out: Memory,
    /// The copy to the host, where it is not all of `out`.
    packed: Memory,
    /// The sent values, which are subtracted from residuals.
    sent: Memory,
    up: Pinned,
    down: Pinned,
    piece_len: u64,
    zeros_before: u64,
}

impl Selector {
    /// The context is current.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            work: Memory::new(device, 0)?,
            out: Memory::new(device, 0)?,
            packed: Memory::new(device, 0)?,
            sent: Memory::new(device, 0)?,
            up: Pinned::new(device, 0)?,
            down: Pinned::new(device, 0)?,
            piece_len: MAX_PIECE_LEN,
            zeros_before: 0,
        })
    }

    pub(crate) fn piece_len(&self) -> u64 {
        self.piece_len
    }

    /// Rounds up to a multiple of a tile.
    pub(crate) fn set_piece_len(&mut self, elements: u64) {
        self.piece_len = elements.clamp(TILE_LEN, MAX_PIECE_LEN).next_multiple_of(TILE_LEN);
    }

    /// Rounds down to a multiple of a tile.
    pub(crate) fn set_zeros_before(&mut self, elements: u64) {
        self.zeros_before = elements / TILE_LEN * TILE_LEN;
    }

    /// Returns the library's error for an input with a kept element that is not finite.
    #[expect(unsafe_code, reason = "launches a kernel and reads pinned memory")]
    pub(crate) fn non_finite(
        &mut self,
        plan: &Plan,
        input: usize,
        tensor: u64,
        stream: Stream,
    ) -> Result<Error> {
        self.down.grow(8)?;
        self.work.fill(0, 0xff, 8, stream)?;
        let zeros = self.zeros_before;
        let pieces = plan.pieces_of(input).filter(|(piece, start)| start + piece.len > zeros);
        for (piece, start) in pieces {
            let blocks = self.blocks_for(piece);
            let arguments = NonFinite { piece: *piece, start, least: self.work.address() };
            // SAFETY: the context is current, the tensor is borrowed, and `work` has room for a word.
            unsafe { self.device.launch(Kernel::NonFinite, (blocks, 1), stream, &arguments)? };
        }
        self.work.copy_to(0, &mut self.down, 8, stream)?;
        self.device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let index = crate::abi::items_of::<u64>(unsafe { self.down.bytes(8) })[0];
        Ok(host::non_finite(tensor, index).into())
    }

    fn blocks_for(&self, piece: &Piece) -> u32 {
        piece.len.div_ceil(TILE_LEN).min(u64::from(8 * self.device.multiprocessors())) as u32
    }
}
