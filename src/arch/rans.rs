//! Rows of 32 symbols through 32 rANS states at once. In the plain form these functions do nothing, and the
//! coder's scalar loops, which give the same states and words, process all rows.
//!
//! ```text
//! encode a row:  f, s = frequencies and starts of 32 symbols
//!                lanes with x >> 20 >= f emit their low half     packed, stored before the later words
//!                q = x / f                                       by floats rounded down, then corrected by one
//!                x = q << 12 + s + x mod f
//! decode a row:  slot = slots[x mod 4096]
//!                x = f * (x >> 12) + distance
//!                lanes with x < 2^16 read a word                 loaded at once, moved to their lanes
//! ```

use super::{Form, Width};

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

/// Encodes the rows of `symbols`, the last row first. Words are written before `words[free..]`; `free` must
/// leave room for one row more than remains. Returns the new `free`; `None` in the plain form.
pub(crate) fn encode_rows(
    form: Form,
    symbols: &[[u8; LANES]],
    steps: &Steps,
    states: &mut [u32; LANES],
    words: &mut [u16],
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

/// Decodes rows while a full row of words is available at `words[taken..]`. Returns the number of rows and of
/// bytes read; no rows in the plain form.
///
/// Each slot holds the symbol (bits 0 to 7), its frequency minus one (8 to 19), and the slot's distance from
/// the symbol's first slot (20 to 31).
pub(crate) fn decode_rows(
    form: Form,
    slots: &[u32; 4096],
    states: &mut [u32; LANES],
    words: &[u8],
    out: &mut [[u8; LANES]],
) -> (usize, usize) {
    match form.0 {
        // SAFETY: a form exists only if the processor has all features that its functions enable.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { avx512::decode(slots, states, words, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { avx2::decode(slots, states, words, out) },
        _ => {
            let _ = (slots, states, words, out);
            (0, 0)
        }
    }
}
