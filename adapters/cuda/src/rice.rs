//! Positions as Rice-coded gaps, written on the device by `adapters/cuda/kernels/rice.cu`, so that only coded
//! bytes cross the bus.

use std::ops::Range;

use gcodec::Codec;
use gcodec::block::Positions;
use gcodec::compress::Kept;
use gcodec::compress::codecs::{Threshold, TopK};
use gcodec::internal::device::Outline;

use crate::abi::{Plain, Select, structures};
use crate::device::{Device, Kernel};
use crate::error::Result;
use crate::memory::Memory;
use crate::tensor::Stream;

/// Gaps of a unit, which a block of threads codes at a time.
const UNIT_LEN: u64 = 1024;
/// The [`Segment::side`] of a search that chooses its side on the device.
const CHOSEN_SIDE: u32 = 2;

structures! {
    Segment(16) {
        start: u64,
        piece: u32,
        side: u32,
    }
    Row(16) {
        first_segment: u32,
        segments: u32,
        one: u32,
        reserved: u32,
    }
    /// Only the size of this and of the next structure matters here.
    RowState(48) {
        words: [u64; 6],
    }
    Unit(208) {
        words: [u64; 26],
    }
    Written(32) {
        at: u64,
        bytes: u64,
        count: u64,
        reserved: u64,
    }
    Rice(136) {
        pieces: u64,
        searches: u64,
        totals: u64,
        piece_kept: u64,
        bases: u64,
        places: u64,
        choices: u64,
        rows: u64,
        segments: u64,
        segment_first: u64,
        segment_from: u64,
        states: u64,
        units: u64,
        written: u64,
        payload: u64,
        tickets: u64,
        n_rows: u32,
        n_searches: u32,
    }
}

/// Whether the device writes the positions of a codec's blocks. It does not with powers of two as values: the
/// host draws these by position.
fn is_coded(codec: &Codec) -> bool {
    let values = match *codec {
        Codec::TopK(TopK { values, .. }) | Codec::Threshold(Threshold { values, .. }) => Some(values),
        Codec::Sbc { .. } => None,
        _ => return false,
    };
    matches!(codec.positions(), Positions::Rice | Positions::RiceOne) && values != Some(Kept::Pow2)
}

/// Addresses of the rows, of their segments, and of the chosen sides.
pub(crate) struct Tables {
    pub(crate) rows: u64,
    pub(crate) segments: u64,
    pub(crate) choices: u64,
}

/// The positions of an update that the device writes. Each block's positions are a row.
#[derive(Debug, Default)]
pub(crate) struct Coding {
    pub(crate) rows: Vec<Row>,
    pub(crate) segments: Vec<Segment>,
    /// Elements of each row's index space.
    lens: Vec<u64>,
    /// Whether the positions of an input are in a row.
    pub(crate) inputs: Vec<bool>,
    /// Whether each block has a row: rows are in the order of their blocks.
    blocks: Vec<bool>,
}

impl Coding {
    /// `joined`: the inputs of each block; `pieces`: for each input the numbers of its pieces and the first
    /// element of each, ascending.
    pub(crate) fn new(
        outlines: &[Outline],
        codecs: &[Codec],
        joined: &[Range<usize>],
        pieces: &[Vec<(u32, u64)>],
    ) -> Self {
        let mut coding = Self { inputs: vec![false; outlines.len()], ..Self::default() };
        for inputs in joined {
            let codec = &codecs[inputs.start];
            coding.blocks.push(is_coded(codec));
            if !is_coded(codec) {
                continue;
            }
            let first_segment = coding.segments.len() as u32;
            let side = if matches!(codec, Codec::Sbc { .. }) { CHOSEN_SIDE } else { 0 };
            let mut len = 0;
            for input in inputs.clone() {
                coding.inputs[input] = true;
                let segment = |&(piece, start): &(u32, u64)| Segment { start: len + start, piece, side };
                coding.segments.extend(pieces[input].iter().map(segment));
                len += outlines[input].len;
            }
            coding.lens.push(len);
            coding.rows.push(Row {
                first_segment,
                segments: coding.segments.len() as u32 - first_segment,
                one: u32::from(codec.positions() == Positions::RiceOne),
                reserved: 0,
            });
        }
        coding
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether the host needs the positions of no input.
    pub(crate) fn all(&self) -> bool {
        !self.is_empty() && self.inputs.iter().all(|coded| *coded)
    }

    /// Returns the most positions that each row can have. `kept`: the kept elements of a piece and side.
    fn most(&self, kept: impl Fn(u32, u32) -> u64) -> Vec<u64> {
        let of = |s: &Segment| match s.side {
            CHOSEN_SIDE => kept(s.piece, 0).max(kept(s.piece, 1)),
            side => kept(s.piece, side),
        };
        let row = |r: &Row| {
            let first = r.first_segment as usize;
            self.segments[first..first + r.segments as usize].iter().map(of).sum()
        };
        self.rows.iter().map(row).collect()
    }

    /// Returns the layout of memory whose first `first` bytes are in use.
    pub(crate) fn layout(&self, first: u64, kept: impl Fn(u32, u32) -> u64) -> Layout {
        if self.is_empty() {
            return Layout { copied: first, bytes: first, ..Layout::default() };
        }
        let most = self.most(kept);
        let units: u64 = most.iter().map(|m| m / UNIT_LEN + 1).sum();
        let mut end = first;
        let mut take = |bytes: u64| {
            end = end.next_multiple_of(16);
            let start = end;
            end += bytes;
            start
        };
        let (rows, segments) = (self.rows.len() as u64, self.segments.len() as u64);
        let written = take(size_of::<Written>() as u64 * rows);
        let payload = take(0);
        let bound = most.iter().zip(&self.lens).map(|(&m, &n)| most_bytes(m, n)).sum::<u64>();
        let copied = take(bound.next_multiple_of(4)) + bound;
        let tickets = take(8);
        let zeros = payload..tickets + 8;
        let segment_first = take(8 * segments);
        let segment_from = take(8 * segments);
        let states = take(size_of::<RowState>() as u64 * rows);
        let units_at = take(size_of::<Unit>() as u64 * units);
        let bytes = take(0);
        Layout {
            written,
            payload,
            copied,
            tickets,
            zeros,
            segment_first,
            segment_from,
            states,
            units: units_at,
            bytes,
            n_units: units,
        }
    }

    /// Writes the rows into `out`, from the places of kept elements.
    ///
    /// # Safety
    /// The context is current; `select` are the arguments of the kernel that emitted the places, and `layout`
    /// was made of its counts.
    #[expect(unsafe_code, reason = "launches kernels")]
    pub(crate) unsafe fn launch(
        &self,
        device: &Device,
        out: &Memory,
        layout: &Layout,
        select: &Select,
        tables: &Tables,
        stream: Stream,
    ) -> Result<()> {
        let base = out.address();
        let rice = Rice {
            pieces: select.pieces,
            searches: select.searches,
            totals: select.totals,
            piece_kept: select.piece_kept,
            bases: select.bases,
            places: select.out_places,
            choices: tables.choices,
            rows: tables.rows,
            segments: tables.segments,
            segment_first: base + layout.segment_first,
            segment_from: base + layout.segment_from,
            states: base + layout.states,
            units: base + layout.units,
            written: base + layout.written,
            payload: base + layout.payload,
            tickets: base + layout.tickets,
            n_rows: self.rows.len() as u32,
            n_searches: select.n_searches,
        };
        let blocks = layout.n_units.min(u64::from(8 * device.multiprocessors())) as u32;
        out.fill(layout.zeros.start, 0, layout.zeros.end - layout.zeros.start, stream)?;
        // SAFETY: the caller's promise; the kernels write inside of the layout.
        unsafe {
            device.launch(Kernel::RiceRows, (rice.n_rows, 1), stream, &rice)?;
            device.launch(Kernel::RiceMeasure, (blocks, 1), stream, &rice)?;
            device.launch(Kernel::RiceChoose, (rice.n_rows, 1), stream, &rice)?;
            device.launch(Kernel::RicePack, (blocks, 1), stream, &rice)
        }
    }

    /// Returns the supports of the blocks, from a copy of the device's memory from [`Layout::written`] on.
    pub(crate) fn supports(&self, layout: &Layout, copied: &[u8]) -> Vec<Option<Vec<u8>>> {
        let (written, payload) = copied.split_at((layout.payload - layout.written) as usize);
        let mut rows = written.as_chunks::<{ size_of::<Written>() }>().0.iter().map(|w| {
            let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|j| w[8 * i + j])) as usize;
            payload[word(0)..word(0) + word(1)].to_vec()
        });
        self.blocks.iter().map(|coded| coded.then(|| rows.next()).flatten()).collect()
    }

    /// Returns the supports of blocks without kept elements.
    pub(crate) fn empty(&self) -> Vec<Option<Vec<u8>>> {
        self.blocks.iter().map(|coded| coded.then(|| vec![0])).collect()
    }
}

/// Returns the most bytes that `m` positions among `n` elements take: in one chunk, or in chunks if they take
/// less.
///
/// With the parameter k = floor(log2(mean gap + 1)) the sum of gaps is below m * 2^(k + 1), so the quotients
/// sum to less than 2m. Each gap takes k + 1 further bits, which makes m * (k + 3) bits. The mean gap is at
/// most n/m - 1. One bit more for each gap, because `m` may exceed the actual number of positions, whose mean
/// gap then is larger.
fn most_bytes(m: u64, n: u64) -> u64 {
    // A varint, the length of chunks, the parameter, and the padding of two planes.
    let header = 10 + 1 + 1 + 2;
    let each = u128::from((n / m.max(1)).max(1).ilog2()) + 4;
    header + (u128::from(m) * each / 8) as u64
}

/// Offsets in the memory that kept elements are emitted to, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    pub(crate) written: u64,
    payload: u64,
    /// The end of the copy to the host.
    pub(crate) copied: u64,
    tickets: u64,
    zeros: Range<u64>,
    segment_first: u64,
    segment_from: u64,
    states: u64,
    units: u64,
    pub(crate) bytes: u64,
    n_units: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The best parameter takes at most [`most_bytes`], whatever the gaps.
    #[test]
    fn positions_fit_into_their_room() {
        let unary = |gaps: &[u64], k: u32| gaps.iter().map(|g| (g >> k) + 1).sum::<u64>();
        for seed in 0..300u64 {
            let mut words = vec![0; 200];
            gcodec::compress::random::words(seed, 0, 0, &mut words);
            let m = 1 + words[0] as usize % 199;
            let shift = words[1] % 32;
            // Similar gaps, or one much longer than all others.
            let gap = |(i, w): (usize, &u32)| match seed % 3 {
                0 => u64::from(*w >> shift),
                1 => u64::from(*w) << shift >> 8,
                _ => u64::from(i == m / 2) << (shift + 8),
            };
            let gaps: Vec<u64> = words[..m].iter().enumerate().map(gap).collect();
            let n = gaps.iter().sum::<u64>() + m as u64;
            let bytes = |k: u32| (m as u64 * u64::from(k)).div_ceil(8) + unary(&gaps, k).div_ceil(8) + 12;
            let least = (0..64).map(bytes).min().unwrap();
            for more in [0, m as u64 / 3, 1000] {
                let m = (m as u64 + more).min(n);
                assert!(least <= most_bytes(m, n), "{seed}: {least} {m} {n}");
            }
        }
        assert!(most_bytes(0, 0) > 0 && most_bytes(1, u64::MAX) > 0);
    }
}
