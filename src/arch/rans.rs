//! Rows of 32 symbols through 32 rANS states at once, or rows of 4 through those of several segments. In the
//! plain form these functions do nothing, and the
//! coder's scalar loops, which give the same states and words, process all rows.
//!
//! ```text
//! encode a row:  f, s = frequencies and starts of 32 symbols
//!                lanes with x >> 20 >= f emit their low half     packed, stored before the later words
//!                q = x / f                                       by floats rounded down, then corrected by one
//!                x = q << 12 + s + x mod f
//! decode a row:  slot = slots[x mod 4096]                      or bisection, if symbols are few
//!                x = f * (x >> 12) + distance
//!                lanes with x < 2^16 read a word                 loaded at once, moved to their lanes
//! ```

use super::Form;
#[cfg(target_arch = "x86_64")]
use super::Width;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// Symbols per row; also the number of states.
pub(crate) const LANES: usize = 32;

/// Frequency of each symbol, and the sum of the frequencies of all smaller symbols.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only the vector forms read them"))]
pub(crate) struct Steps {
    pub(crate) freqs: [u16; 256],
    pub(crate) starts: [u16; 256],
    /// Smallest symbol with a frequency.
    pub(crate) first: u8,
    /// Largest symbol with a frequency.
    pub(crate) last: u8,
}

/// Encodes the rows of `symbols`, the last row first. Words, in little-endian bytes, are written before
/// `words[free..]`; `free` must leave room for one row more than remains. Returns the new `free`; `None` in
/// the plain form.
pub(crate) fn encode_rows(
    form: Form,
    symbols: &[[u8; LANES]],
    steps: &Steps,
    states: &mut [u32; LANES],
    words: &mut [[u8; 2]],
    free: usize,
) -> Option<usize> {
    match form.0 {
        // SAFETY: a form exists only if the processor has all features that its functions enable.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => Some(unsafe {
            match steps.last - steps.first {
                0..64 => avx512::encode::<1>(symbols, steps, states, words, free),
                _ => avx512::encode::<4>(symbols, steps, states, words, free),
            }
        }),
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => Some(unsafe { avx2::encode(symbols, steps, states, words, free) }),
        _ => {
            let _ = (symbols, steps, states, words, free);
            None
        }
    }
}

/// Lanes of a narrow segment.
pub(crate) const NARROW: usize = 4;

/// A narrow segment as the encoder of several sees it.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only the vector forms read it"))]
pub(crate) struct Narrow<'s, 'm> {
    /// The rows that are not encoded yet. The last one is encoded first.
    pub(crate) rows: &'s [[u8; NARROW]],
    /// For each symbol its frequency times 2^16, and the sum of the frequencies of all smaller symbols.
    pub(crate) steps: [u32; 256],
    pub(crate) states: [u32; NARROW],
    /// Words, in little-endian bytes, are written before `words[free..]`, which must leave room for one row
    /// more than remains.
    pub(crate) words: &'m mut [[u8; 2]],
    pub(crate) free: usize,
}

/// Most pairs of segments that [`encode_narrow`] takes.
pub(crate) const PAIRS: usize = 4;

/// Encodes rows of narrow segments in turn, as many of each as the shortest has, and returns this number;
/// none in the plain form. One segment alone would have to wait for its states.
pub(crate) fn encode_narrow(form: Form, pairs: &mut [[&mut Narrow<'_, '_>; 2]]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Width::Avx512 | Width::Avx2 = form.0 {
        // SAFETY: a form exists only if the processor has all features that its functions enable; the wider
        // one has those of the other.
        return unsafe {
            match pairs {
                [a] => avx2::encode_narrow([a]),
                [a, b] => avx2::encode_narrow([a, b]),
                [a, b, c] => avx2::encode_narrow([a, b, c]),
                [a, b, c, d] => avx2::encode_narrow([a, b, c, d]),
                _ => 0,
            }
        };
    }
    let _ = (form, pairs);
    0
}

/// Number of symbols that are few.
pub(crate) const FEW: usize = 64;

/// Decoding form of a table.
pub(crate) struct Slots {
    /// Each slot holds the symbol (bits 0 to 7), its frequency minus one (bits 8 to 19) and the slot's
    /// distance from the symbol's first slot (bits 20 to 31).
    pub(crate) all: Box<[u32; 4096]>,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only a vector form reads them"))]
    pub(crate) few: Few,
}

/// The symbols of a table in ascending order, if they are few.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only a vector form reads them"))]
pub(crate) struct Few {
    /// Number of symbols, also if they are not few.
    pub(crate) count: usize,
    pub(crate) symbols: [u16; FEW],
    pub(crate) freqs: [u16; FEW],
    /// First slot of each symbol; above all slots past the last symbol.
    pub(crate) starts: [u16; FEW],
}

/// A segment as the decoder of rows sees it.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only the vector forms read it"))]
pub(crate) struct Encoded<'a> {
    pub(crate) slots: &'a Slots,
    pub(crate) states: &'a mut [u32; LANES],
    /// The words that are left, in bytes.
    pub(crate) words: &'a [u8],
    /// Receives the number of bytes read.
    pub(crate) taken: usize,
}

/// Returns the number of rows of `L` lanes, at most `most`, whose words are sure to be there: a row takes at
/// most one for each lane.
#[cfg(target_arch = "x86_64")]
fn sure_rows<const L: usize, const N: usize>(words: &[&[u8]; N], taken: &[usize; N], most: usize) -> usize {
    let left = words.iter().zip(taken).map(|(words, taken)| (words.len() - taken) / (2 * L));
    left.min().unwrap_or(0).min(most)
}

/// Decodes rows of `N` segments, up to 4, while all of them have a full row of words. Returns the number of
/// rows of each; none in the plain form. A state depends on the one before: while one segment waits for it,
/// the processor works on another.
pub(crate) fn decode_rows<const N: usize>(
    form: Form,
    segments: &mut [Encoded<'_>; N],
    outs: &mut [&mut [[u8; LANES]]; N],
) -> usize {
    match form.0 {
        // SAFETY: a form exists only if the processor has all features that its functions enable.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 if N > 1 => unsafe {
            match segments.iter().map(|segment| segment.slots.few.count).max().unwrap_or(0) {
                0..=16 => avx512::decode::<4, N>(segments, outs),
                17..=32 => avx512::decode::<5, N>(segments, outs),
                33..=FEW => avx512::decode::<6, N>(segments, outs),
                _ => avx512::decode::<0, N>(segments, outs),
            }
        },
        // One segment alone waits for each of its rows: a look into memory is sooner back than a bisection.
        // SAFETY: as above; the wider form has the features of the other.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 | Width::Avx2 => unsafe { avx2::decode(segments, outs) },
        _ => {
            let _ = (segments, outs);
            0
        }
    }
}

/// Decodes rows of `N` narrow segments in turn, as [`decode_rows`] does. `N` is even.
pub(crate) fn decode_narrow<const N: usize>(
    form: Form,
    segments: &mut [Encoded<'_>; N],
    outs: &mut [&mut [[u8; NARROW]]; N],
) -> usize {
    match form.0 {
        // SAFETY: a form exists only if the processor has all features that its functions enable; the wider
        // one has those of the other.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 | Width::Avx2 => unsafe { avx2::decode_narrow(segments, outs) },
        _ => {
            let _ = (segments, outs);
            0
        }
    }
}
