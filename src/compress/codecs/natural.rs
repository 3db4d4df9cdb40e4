//! Natural compression (Horvath et al., arXiv 1905.10988): rounds each element to one of the two powers of
//! two around its magnitude. The probability of the upper one is the mantissa, which makes the mean exact.

use std::mem;
use std::ops::Range;

use crate::arch::{self, Kernel, pages};
use crate::block::{Bits, Block, Effort, Pow2, Support, Underflow, Values};
use crate::codes::Scratch;
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::extents::{Sharing, extents};
use crate::compress::settings::Visitor;
use crate::compress::source::{Chunk, RUN, Source, all_finite};
use crate::error::Result;
use crate::random;
use crate::tensor::Dtype;
use crate::tensor::element::{max_finite, round_f32s};

/// `natural`: natural compression, which rounds each element at random to a power of two, without bias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Natural {
    /// `seed`: the seed for rounding. Use a different one for every step. Default: 1.
    pub seed: u64,
    /// `effort`: with `fast`, streams are decoded up to 1.4 times as fast, and are up to 1 % larger.
    /// Default: `default`.
    pub effort: Effort,
}

impl Default for Natural {
    fn default() -> Self {
        Self { seed: 1, effort: Effort::Default }
    }
}

impl Compressor for Natural {
    const NAME: &'static str = "natural";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.seed(&mut self.seed)?;
        visitor.effort(&mut self.effort)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let seed = self.seed;
        let TensorRun { tensors, options, .. } = run;
        let mut blocks = Vec::new();
        let lens: Vec<u64> = tensors.iter().map(|t| t.len as u64).collect();
        for extent in extents(&lens, options.block_len, Sharing::All) {
            let scope = extent.scope(|i| tensors[i].tensor);
            let mut spans: Vec<_> = match extent.span(&lens) {
                Some((i, range)) => vec![(range, &mut tensors[i])],
                None => tensors[extent.tensors()].iter_mut().map(|t| (0..t.len, t)).collect(),
            };
            let values = values(&mut spans, seed, &mut Scratch::default())?;
            blocks.push(Block { scope, add: false, support: Support::All, values });
        }
        Ok(blocks)
    }
}

/// Returns the exponent of the power of two that a finite float of these bits is rounded to, or [`ZERO`] for
/// zero. Magnitudes that would round to more than `2^top` become `2^top`.
pub(crate) fn round(bits: u32, word: u32, top: i16) -> i16 {
    let magnitude = bits & 0x7fff_ffff;
    if magnitude == 0 {
        return ZERO;
    }
    if magnitude < 1 << 23 {
        let exponent = 31 - magnitude.leading_zeros();
        let mantissa = magnitude << (23 - exponent) & 0x7f_ffff;
        return (exponent as i16 - 149 + i16::from(word >> 9 < mantissa)).min(top);
    }
    (biased(magnitude, word) as i16 - 127).min(top)
}

/// Returns the exponent of the largest power of two that elements of a type can hold.
pub(crate) fn top(dtype: Dtype) -> i16 {
    (max_finite(dtype).to_bits() >> 23) as i16 - 127
}

/// Result of [`round`] for zero.
pub(crate) const ZERO: i16 = i16::MIN;

/// Offset added to a tensor's number for the words of the second draw.
pub(crate) const SECOND_STREAM: u64 = 1 << 63;

/// Returns the smallest exponent that has a code, and a code for each exponent returned by [`round`]. `words`
/// draws a second word for each element. It is called only if the exponents span more than 255 values.
pub(crate) fn codes(exponents: &[i16], words: impl FnOnce() -> Vec<u32>) -> (i16, Vec<u8>) {
    let nonzero = || exponents.iter().copied().filter(|&e| e != ZERO);
    let (Some(smallest), Some(largest)) = (nonzero().min(), nonzero().max()) else {
        return (0, vec![0; exponents.len()]);
    };
    let least = smallest.max(largest - 254);
    let code = |e: i16| if e == ZERO { 0 } else { (e - least + 1) as u8 };
    if smallest == least {
        return (least, exponents.iter().map(|&e| code(e)).collect());
    }
    // 2^e below the least power becomes that power with probability 2^(e - least), and zero otherwise.
    let draw = |e: i16, word: u32| u8::from(u64::from(word) < (1u64 << 32) >> (least - e).min(63));
    let draws = exponents.iter().zip(words());
    (least, draws.map(|(&e, word)| if e != ZERO && e < least { draw(e, word) } else { code(e) }).collect())
}

/// Returns the magnitude of a code, for exponents within the range of 32-bit floats.
pub(crate) fn value(min_exponent: i16, code: u8) -> f32 {
    let exponent = i32::from(min_exponent) + i32::from(code) - 1;
    match code {
        0 => 0.0,
        _ if exponent < -126 => f32::from_bits(1 << (exponent + 149)),
        _ => f32::from_bits(((exponent + 127) as u32) << 23),
    }
}

/// Returns the biased exponent of a normal magnitude, plus one if a 23-bit uniform number is less than the
/// mantissa. Returns 255 beyond the largest power.
#[inline(always)]
fn biased(magnitude: u32, word: u32) -> u32 {
    // r < m if and only if m + (2^23 - 1 - r) carries, and !word >> 9 is that complement of r = word >> 9.
    (magnitude + (!word >> 9)) >> 23
}

/// Number of elements that a thread processes at a time; a multiple of [`RUN`].
const STEP: usize = 1 << 16;

/// Summary of elements whose codes are still biased exponents.
#[derive(Clone, Copy)]
struct Seen {
    /// Smallest code above 0, minus one.
    least: u8,
    subnormal: bool,
    non_finite: bool,
}

impl Seen {
    const NOTHING: Self = Self { least: 255, subnormal: false, non_finite: false };

    fn and(self, other: Self) -> Self {
        Self {
            least: self.least.min(other.least),
            subnormal: self.subnormal | other.subnormal,
            non_finite: self.non_finite | other.non_finite,
        }
    }
}

/// Returns the values of spans together. If all elements are normal numbers or zero, every code is a biased
/// exponent minus a common number. Only that number is known at the end of the pass.
pub(in crate::compress) fn values(
    spans: &mut [(Range<usize>, &mut Source<'_>)],
    seed: u64,
    scratch: &mut Scratch,
) -> Result<Values> {
    let len = spans.iter().map(|(range, _)| range.len()).sum();
    let mut codes = pages::of_len(mem::take(&mut scratch.codes), len);
    let mut negative = pages::of_len(mem::take(&mut scratch.signs), len.div_ceil(8));
    let (mut seen, mut at) = (Seen::NOTHING, 0);
    for (range, tensor) in spans.iter_mut() {
        let codes = &mut codes[at..at + range.len()];
        let of_span = match at % 8 {
            0 => round_span(range.clone(), tensor, seed, codes, &mut negative[at / 8..]),
            _ => {
                let mut signs = vec![0; range.len().div_ceil(8)];
                let of_span = round_span(range.clone(), tensor, seed, codes, &mut signs);
                append_bits(&mut negative, at, &signs);
                of_span
            }
        };
        if of_span.non_finite {
            return Err(tensor.non_finite());
        }
        seen = seen.and(of_span);
        at += range.len();
    }
    if seen.subnormal {
        return general(spans, seed);
    }
    // 255 means that all codes are 0.
    let shift = if seen.least == 255 { 126 } else { seen.least };
    codes.iter_mut().for_each(|c| *c = c.saturating_sub(shift));
    let negative = Bits::from_bytes(len as u64, negative).unwrap_or_default();
    let min_exponent = i16::from(shift) + 1 - 127;
    Ok(Values::Pow2(Pow2 { min_exponent, underflow: Underflow::Unbiased, codes, negative }))
}

/// Writes bits behind the first `at` of `out`. These end inside a byte, whose other bits are 0, and so are
/// those behind the new ones.
fn append_bits(out: &mut [u8], at: usize, bits: &[u8]) {
    let shift = at % 8;
    for (i, byte) in (at / 8..).zip(bits) {
        out[i] |= byte << shift;
        // Padding is 0.
        out.get_mut(i + 1).into_iter().for_each(|next| *next = byte >> (8 - shift));
    }
}

/// Writes biased exponents of a span, and the signs of those that are not zero.
fn round_span(
    range: Range<usize>,
    tensor: &mut Source<'_>,
    seed: u64,
    codes: &mut [u8],
    negative: &mut [u8],
) -> Seen {
    let places = codes.chunks_mut(STEP).zip(negative.chunks_mut(STEP / 8)).collect();
    let seen = tensor
        .scan_into(range, STEP, places, |chunk, (codes, negative)| round_chunk(chunk, seed, codes, negative));
    seen.into_iter().fold(Seen::NOTHING, Seen::and)
}

fn round_chunk(chunk: Chunk<'_, '_>, seed: u64, codes: &mut [u8], negative: &mut [u8]) -> Seen {
    let (first, source) = (chunk.start, chunk.source);
    let (tensor, dtype) = (source.tensor, source.dtype);
    let most = (top(dtype) + 127) as u8;
    let mut seen = Seen::NOTHING;
    chunk.runs(|start, mut run| {
        // The next run arrives while the words of this one are drawn, which takes longer than all else.
        source.prefetch(start + run.len());
        let codes = &mut codes[start - first..][..run.len()];
        let negative = &mut negative[(start - first) / 8..];
        seen = seen.and(arch::run(RoundRun { seed, tensor, start, run: &run, most, codes }));
        pack_signs(&run, codes, negative);
        if let Some(kept) = run.kept() {
            subtract(dtype, kept, codes);
        }
    });
    seen
}

/// Writes biased exponents, at most `most`.
struct RoundRun<'a> {
    seed: u64,
    tensor: u64,
    start: usize,
    run: &'a [f32],
    most: u8,
    codes: &'a mut [u8],
}

impl Kernel for RoundRun<'_> {
    type Output = Seen;

    #[inline(always)]
    fn call(self) -> Seen {
        let mut words = [0; RUN];
        let words = &mut words[..self.run.len()];
        random::fill_words(self.seed, self.tensor, self.start as u64, words);
        let (mut least, mut subnormal, mut non_finite) = (255, 0u32, 0u32);
        for ((x, word), code) in self.run.iter().zip(words).zip(self.codes.iter_mut()) {
            let magnitude = x.to_bits() & 0x7fff_ffff;
            // Sign bits mark magnitudes from 1 to 2^23 - 1, and magnitudes above the largest finite one.
            subnormal |= magnitude.wrapping_sub(1 << 23) & !magnitude.wrapping_sub(1);
            non_finite |= 0x7f7f_ffffu32.wrapping_sub(magnitude);
            *code = (biased(magnitude, *word) as u8).min(self.most);
            least = code.wrapping_sub(1).min(least);
        }
        Seen { least, subnormal: subnormal >> 31 != 0, non_finite: non_finite >> 31 != 0 }
    }
}

/// Packs the signs of the elements whose codes are not zero.
fn pack_signs(run: &[f32], codes: &[u8], out: &mut [u8]) {
    let (mut signs, mut nonzero) = ([0; RUN / 64], [0; RUN / 64]);
    let words = run.len().div_ceil(64);
    arch::masks::signs(arch::widest(), run, &mut signs[..words]);
    arch::masks::nonzero(arch::widest(), codes, &mut nonzero[..words]);
    let packed = signs.iter().zip(nonzero).flat_map(|(signs, nonzero)| (signs & nonzero).to_le_bytes());
    out[..run.len().div_ceil(8)].iter_mut().zip(packed).for_each(|(out, packed)| *out = packed);
}

fn subtract(dtype: Dtype, run: &mut [f32], codes: &[u8]) {
    let mut decoded = [0.0; RUN];
    let decoded = &mut decoded[..run.len()];
    for ((d, x), &code) in decoded.iter_mut().zip(run.iter()).zip(codes) {
        *d = f32::from_bits(u32::from(code) << 23).copysign(*x);
    }
    let rounded = round_f32s(dtype, decoded);
    debug_assert!(rounded.is_ok(), "sources are floats");
    for (x, d) in run.iter_mut().zip(decoded) {
        *x -= *d;
    }
}

/// Returns the values of spans together, also of those with subnormal elements.
///
/// The exponents of normal numbers, -126 to 127, fit the 255 codes above 0, so [`values`] makes codes as it
/// reads. Those of subnormal numbers begin at -149: too many for one block. This function first finds all
/// exponents, and then draws again for those below the least that has a code. Next to 2^127, the least is
/// 2^-127, and 2^-149 becomes 2^-127 with probability 2^-22, otherwise zero, so the mean stays exact. The
/// second word comes from a stream of its own (spec, values/pow2.md), because the first has already decided
/// between two powers.
fn general(spans: &mut [(Range<usize>, &mut Source<'_>)], seed: u64) -> Result<Values> {
    let mut exponents = Vec::new();
    let mut negative = Vec::new();
    for (range, tensor) in spans.iter_mut() {
        let (number, top) = (tensor.tensor, top(tensor.dtype));
        let rounded = tensor.scan(range.clone(), STEP, |chunk| {
            chunk.whole(|start, values| {
                let mut words = vec![0; values.len()];
                random::words(seed, number, start as u64, &mut words);
                let finite = all_finite(values);
                let exponents: Vec<i16> =
                    values.iter().zip(words).map(|(x, word)| round(x.to_bits(), word, top)).collect();
                let negative: Vec<bool> = values.iter().map(|x| x.is_sign_negative()).collect();
                finite.then_some((exponents, negative))
            })
        });
        for part in rounded {
            let Some((e, n)) = part else { return Err(tensor.non_finite()) };
            exponents.extend(e);
            negative.extend(n);
        }
    }
    let (min_exponent, codes) = codes(&exponents, || {
        let mut words = vec![0; exponents.len()];
        let mut rest = words.as_mut_slice();
        for (range, tensor) in spans.iter() {
            let (mine, others) = std::mem::take(&mut rest).split_at_mut(range.len());
            random::words(seed, tensor.tensor | SECOND_STREAM, range.start as u64, mine);
            rest = others;
        }
        words
    });
    let mut at = 0;
    for (range, tensor) in spans.iter_mut() {
        if let Some(after) = &mut tensor.residual_after {
            let codes = codes[at..].iter().zip(&negative[at..]);
            let signed =
                |(&c, &n): (&u8, &bool)| if n { -value(min_exponent, c) } else { value(min_exponent, c) };
            let mut decoded: Vec<f32> = codes.take(range.len()).map(signed).collect();
            round_f32s(tensor.dtype, &mut decoded)?;
            for (x, d) in after[range.clone()].iter_mut().zip(decoded) {
                *x -= d;
            }
        }
        at += range.len();
    }
    let negative = negative.into_iter().zip(&codes).map(|(negative, &code)| negative && code != 0).collect();
    Ok(Values::Pow2(Pow2 { min_exponent, underflow: Underflow::Unbiased, codes, negative }))
}
