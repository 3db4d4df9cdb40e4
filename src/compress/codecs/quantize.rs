//! Dense quantisers. Levels are drawn at random without bias (QSGD, arXiv 1610.02132; natural dithering,
//! arXiv 1905.10988, section 5; TernGrad, arXiv 1705.07878). Integers are rounded to nearest (int8).

use std::mem;
use std::ops::Range;

use crate::arch::{self, Kernel, pages};
use crate::block::values::{code_of, level_of, number_of};
use crate::block::{
    Affine, Block, Groups, LevelList, Levels, Norm, ScaleFormat, Scales, Spacing, Support, Values, ValuesId,
    Zero,
};
use crate::codes::Scratch;
use crate::compress::compressor::TensorRun;
use crate::compress::extents::{Sharing, extents, groups};
use crate::compress::source::{Chunk, RUN, Source};
use crate::compress::sums;
use crate::error::{Error, Result};
use crate::random;
use crate::tensor::element::{max_finite, round_f32s};

/// Settings of [`GroupQuantizer::Levels`].
#[derive(Clone, Copy)]
pub(crate) struct LevelOptions {
    pub(crate) spacing: Spacing,
    /// Number s of the largest level, within the wire format's range.
    pub(crate) max_level: u32,
    pub(crate) bucket: u64,
    pub(crate) norm: Norm,
    /// Limit of magnitudes, in root mean squares of their bucket, applied first; infinite for no limit.
    pub(crate) clip: f32,
    pub(crate) seed: u64,
}

/// A dense quantiser of groups of elements.
#[derive(Clone, Copy)]
pub(crate) enum GroupQuantizer {
    /// Each element becomes its bucket's norm times a level. The rounding is random and unbiased. Level l is
    /// l / s, or for natural spacing 2^(l - s) with 0 for l = 0.
    Levels(LevelOptions),
    /// Each element becomes the scale of its group, of this length, times an integer from -127 to 127.
    Int8(u64),
}

impl GroupQuantizer {
    /// Returns the kind of its values.
    pub(in crate::compress) fn values_id(self) -> ValuesId {
        match self {
            Self::Levels(_) => ValuesId::LEVELS,
            Self::Int8(_) => ValuesId::AFFINE,
        }
    }

    /// Returns the number of elements in a group.
    fn group(self) -> u64 {
        match self {
            Self::Levels(settings) => settings.bucket,
            Self::Int8(group) => group,
        }
    }

    /// Returns which small tensors share a block.
    pub(in crate::compress) fn sharing(self) -> Sharing {
        Sharing::Grouped(self.group())
    }

    /// Returns the values of a span of a tensor, in the memory of `scratch`.
    pub(in crate::compress) fn values(
        self,
        tensor: &mut Source<'_>,
        range: Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<Values> {
        let memory = mem::take(&mut scratch.codes);
        match self {
            Self::Levels(settings) if settings.max_level <= 127 => {
                levels(tensor, range, settings, memory, LevelList::from_codes)
            }
            Self::Levels(settings) => levels::<i32>(tensor, range, settings, Vec::new(), LevelList::from),
            Self::Int8(group) => int8(tensor, range, group, memory),
        }
    }
}

/// Returns dense blocks of a run of tensors.
pub(super) fn blocks(
    TensorRun { tensors, options, .. }: TensorRun<'_, '_>,
    quantizer: GroupQuantizer,
) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let lens: Vec<u64> = tensors.iter().map(|t| t.len as u64).collect();
    for extent in extents(&lens, options.block_len, quantizer.sharing()) {
        let scope = extent.scope(|i| tensors[i].tensor);
        let scratch = &mut Scratch::default();
        let values = match extent.span(&lens) {
            Some((i, range)) => quantizer.values(&mut tensors[i], range, scratch)?,
            None => {
                let run = extent.tensors();
                let each = tensors[run.clone()].iter_mut();
                let each = each.map(|tensor| quantizer.values(tensor, 0..tensor.len, scratch));
                in_one_block(each.collect::<Result<_>>()?, &lens[run], quantizer.group())?
            }
        };
        blocks.push(Block { scope, add: false, support: Support::All, values });
    }
    Ok(blocks)
}

/// Returns the values of a block that tensors of these lengths share, from those of each. `group`: the number
/// of elements in a group.
pub(in crate::compress) fn in_one_block(each: Vec<Values>, lens: &[u64], group: u64) -> Result<Values> {
    let groups = groups(lens, group);
    let mut each = each.into_iter().zip(lens).map(|(mut values, len)| {
        if let Values::Levels(Levels { groups: g, norms: scales, .. })
        | Values::Affine(Affine { groups: g, scales, .. }) = &mut values
        {
            *g = groups;
            if *len == 0 && groups == Groups::Tensor {
                // A tensor without elements is a group, too.
                *scales = Scales::from_f32s(scales.format, &[0.0]);
            }
        }
        values
    });
    let first = each.next().ok_or(Error::inconsistent("a block without tensors"))?;
    each.try_fold(first, |mut all, more| {
        match (&mut all, more) {
            (Values::Levels(all), Values::Levels(more)) => {
                all.norms.bytes.extend(more.norms.bytes);
                all.levels.append(more.levels);
            }
            (Values::Affine(all), Values::Affine(more)) => {
                all.scales.bytes.extend(more.scales.bytes);
                all.codes.extend(more.codes);
            }
            _ => return Err(Error::inconsistent("kinds of values in one block")),
        }
        Ok(all)
    })
}

/// A level in memory.
trait Level: Send + Copy + Default {
    fn of(level: i32) -> Self;
    fn level(self) -> i32;
}

impl Level for u8 {
    #[inline(always)]
    fn of(level: i32) -> Self {
        code_of(level)
    }

    #[inline(always)]
    fn level(self) -> i32 {
        level_of(self)
    }
}

impl Level for i32 {
    #[inline(always)]
    fn of(level: i32) -> Self {
        level
    }

    #[inline(always)]
    fn level(self) -> i32 {
        self
    }
}

fn levels<L: Level>(
    tensor: &mut Source<'_>,
    range: Range<usize>,
    settings: LevelOptions,
    memory: Vec<L>,
    list: impl Fn(Vec<L>) -> LevelList,
) -> Result<Values> {
    let LevelOptions { spacing, max_level, bucket, norm, clip, seed } = settings;
    let (norms, levels) = quantized(tensor, range, bucket, memory, |chunk, norms, levels: &mut [L]| {
        let (tensor, max) = (chunk.source.tensor, max_finite(chunk.source.dtype));
        let (first, mut limited) = (chunk.start, Vec::new());
        quantize(chunk, bucket, |start, values, decoded| {
            let values = match clip < f32::INFINITY {
                true => {
                    limited.clear();
                    limited.extend_from_slice(values);
                    limit(&mut limited, clip);
                    &limited
                }
                false => values,
            };
            // Any number that no element exceeds is a valid norm. This one never decodes to infinity.
            let norm = norm_of(norm, values).min(max);
            norms.push(norm);
            let levels = &mut levels[start - first..][..values.len()];
            let start = start as u64;
            arch::run(Draw { spacing, max_level, norm, seed, tensor, start, values, levels });
            if let Some(decoded) = decoded {
                let norm = f64::from(norm);
                let numbers = levels.iter().map(|level| number_of(spacing, max_level, norm, level.level()));
                decoded.iter_mut().zip(numbers).for_each(|(x, number)| *x = number);
            }
        })
    })?;
    let (groups, levels) = (Groups::Len(bucket), list(levels));
    Ok(Values::Levels(Levels { spacing, max_level, norm, groups, norms, levels }))
}

fn int8(tensor: &mut Source<'_>, range: Range<usize>, group: u64, memory: Vec<u8>) -> Result<Values> {
    let (scales, codes) = quantized(tensor, range, group, memory, |chunk, scales, codes: &mut [u8]| {
        let first = chunk.start;
        quantize(chunk, group, |start, values, decoded| {
            let codes = &mut codes[start - first..][..values.len()];
            let scale = arch::run(AffineGroup { values, bits: 8, codes });
            if let Some(decoded) = decoded {
                decoded.copy_from_slice(&affine_values(&[scale], codes, 8, group));
            }
            scales.push(scale);
        })
    })?;
    Ok(Values::Affine(Affine { bits: 8, groups: Groups::Len(group), scales, zero: Zero::Centre, codes }))
}

/// Returns a scale for each `group` of values, and the codes `round(x / scale) + 2^(bits-1)`.
pub(crate) fn affine(values: &[f32], bits: u8, group: u64) -> (Vec<f32>, Vec<u8>) {
    let group = usize::try_from(group).unwrap_or(usize::MAX);
    let mut codes = vec![0; values.len()];
    let groups = values.chunks(group).zip(codes.chunks_mut(group));
    let scales = groups.map(|(values, codes)| arch::run(AffineGroup { values, bits, codes })).collect();
    (scales, codes)
}

/// Computes the scale and the codes of a group of finite values.
struct AffineGroup<'a> {
    values: &'a [f32],
    bits: u8,
    codes: &'a mut [u8],
}

impl Kernel for AffineGroup<'_> {
    type Output = f32;

    #[inline(always)]
    fn call(self) -> f32 {
        let (centre, largest) = (1i32 << (self.bits - 1), (1i32 << (self.bits - 1)) - 1);
        let scale = affine_scale(largest_magnitude(self.values), largest as f32);
        let of = if scale == 0.0 { 1.0 } else { scale };
        for (x, code) in self.values.iter().zip(self.codes) {
            // The quotient is far below 2^22, so the low bits of the sum hold it rounded to an integer, ties
            // to even.
            let rounded = (x / of + ROUNDER).to_bits() as i32 - ROUNDER.to_bits() as i32;
            *code = (rounded.clamp(-largest, largest) + centre) as u8;
        }
        scale
    }
}

/// Rounding constant 1.5 * 2^23.
const ROUNDER: f32 = 12_582_912.0;

/// Returns the numbers that the receiver decodes from the codes of [`affine`].
pub(crate) fn affine_values(scales: &[f32], codes: &[u8], bits: u8, group: u64) -> Vec<f32> {
    let centre = 1 << (bits - 1);
    let groups = codes.chunks(usize::try_from(group).unwrap_or(usize::MAX)).zip(scales);
    groups
        .flat_map(|(codes, &scale)| {
            codes.iter().map(move |&c| (f64::from(scale) * f64::from(i32::from(c) - centre)) as f32)
        })
        .collect()
}

/// Returns the largest magnitude of finite values.
#[inline(always)]
fn largest_magnitude(values: &[f32]) -> f32 {
    // Magnitudes are in the order of their bits, and the maximum of integers has vector instructions.
    let mut max = 0;
    for x in values {
        max = (x.to_bits() & 0x7fff_ffff).max(max);
    }
    f32::from_bits(max)
}

#[inline(always)]
fn affine_scale(max: f32, largest: f32) -> f32 {
    if max == 0.0 {
        return 0.0;
    }
    // The scale is never zero. It is rounded down if the largest code would otherwise decode to infinity.
    let scale = (max / largest).max(f32::from_bits(1));
    if ((f64::from(scale) * f64::from(largest)) as f32).is_infinite() { scale.next_down() } else { scale }
}

/// Returns the norm rounded up, so that no element exceeds it.
fn norm_of(norm: Norm, values: &[f32]) -> f32 {
    if norm == Norm::Max {
        return arch::run(LargestMagnitude(values));
    }
    let exact = match norm {
        Norm::L1 => sums::magnitudes(values),
        _ => sums::squares(values).sqrt(),
    };
    let near = exact as f32;
    if f64::from(near) < exact { near.next_up() } else { near }
}

struct LargestMagnitude<'a>(&'a [f32]);

impl Kernel for LargestMagnitude<'_> {
    type Output = f32;

    #[inline(always)]
    fn call(self) -> f32 {
        largest_magnitude(self.0)
    }
}

/// Draws the levels of a group of finite values, none above the norm.
struct Draw<'a, L> {
    spacing: Spacing,
    max_level: u32,
    norm: f32,
    seed: u64,
    tensor: u64,
    /// Place of the first value in its tensor.
    start: u64,
    values: &'a [f32],
    levels: &'a mut [L],
}

/// 2^52: the low bits of its sum with a small integer hold that integer.
const INTEGER: f64 = (1u64 << 52) as f64;
/// Number of words.
const WORDS: f64 = (1u64 << 32) as f64;

impl<L: Level> Kernel for Draw<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { spacing, max_level, norm, seed, tensor, start, values, levels } = self;
        if norm == 0.0 {
            return levels.fill(L::default());
        }
        let near = Near::new(spacing, max_level, norm);
        let mut words = [0; BLOCK];
        for ((at, values), levels) in
            (start..).step_by(BLOCK).zip(values.chunks(BLOCK)).zip(levels.chunks_mut(BLOCK))
        {
            let words = &mut words[..values.len()];
            random::fill_words(seed, tensor, at, words);
            if near.is_some_and(|near| draw_surely(near, values, words, levels)) {
                continue;
            }
            let each = values.iter().zip(words.iter()).zip(levels);
            match spacing {
                Spacing::Uniform => {
                    let s = f64::from(max_level);
                    for ((x, word), level) in each {
                        *level = L::of(uniform_level(*x, f64::from(norm), s, *word));
                    }
                }
                Spacing::Natural => {
                    for ((x, word), level) in each {
                        *level = L::of(natural_level(*x, f64::from(norm), max_level, *word));
                    }
                }
            }
        }
    }
}

/// Elements of a block of [`draw_surely`].
const BLOCK: usize = 128;

/// How a draw is approximated.
#[derive(Clone, Copy)]
enum Near {
    /// A magnitude times this is a uniform level in units of 2^-16.
    Uniform(f32),
    /// A magnitude times `ratio` is its part of the norm. Natural levels are in units of 2^-23: those of the
    /// least power, which has the bits `least`, are the part times `of_least`.
    Natural { ratio: f32, least: i32, of_least: f32 },
}

impl Near {
    /// Returns the approximation for a norm; `None` if numbers of 32 bits do not suffice.
    #[inline(always)]
    fn new(spacing: Spacing, s: u32, norm: f32) -> Option<Self> {
        let near = match spacing {
            Spacing::Uniform if s < 64 => Self::Uniform((f64::from(s << 16) / f64::from(norm)) as f32),
            Spacing::Natural if s <= 100 => Self::Natural {
                ratio: (1.0 / f64::from(norm)) as f32,
                least: (128 - s as i32) << 23,
                of_least: f32::from_bits((127 + 23 + s - 1) << 23),
            },
            _ => return None,
        };
        let (Self::Uniform(factor) | Self::Natural { ratio: factor, .. }) = near;
        (factor < f32::INFINITY).then_some(near)
    }
}

/// Draws levels by numbers of 32 bits, in half the time, and returns whether all of them are surely those of
/// [`uniform_level`] and [`natural_level`].
///
/// The definition rounds the exact level y up if the random word w, as a part of 1, is less than the fraction
/// of y: the result is `ceil(y - w)`. In units of 2^-b, let q be an integer within e of y, and v the first b
/// bits of w. Then y - w is in (q - v - e - 1, q - v + e], and the result is sure if both ends have the same
/// one. Uniform levels: b = 16. Two roundings of 2^-24 move y by less than 64 * 2^16 * 2^-23 = 1/2, and the
/// rounding to an integer by 1/2 more: e < 2. Natural levels: b = 23, and q is what the bits of y as a float
/// are above those of the least power, a linear scale between powers; two roundings of 2^-24 are at most 2
/// units of the last place in the binade of y, 4 in the one below, and the same near the least power, below
/// which the scale continues with one slope: e < 6.
#[inline(always)]
fn draw_surely<L: Level>(near: Near, values: &[f32], words: &[u32], levels: &mut [L]) -> bool {
    let mut unsure = 0;
    match near {
        Near::Uniform(factor) => {
            for ((x, word), level) in values.iter().zip(words).zip(levels) {
                // The low bits of the sum hold the product rounded to an integer.
                let q = (x.abs() * factor + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
                let from = q - (word >> 16) as i32;
                unsure |= ceil(from - 3, 16) ^ ceil(from + 2, 16);
                *level = L::of(with_sign(ceil(from, 16), *x));
            }
        }
        Near::Natural { ratio, least, of_least } => {
            for ((x, word), level) in values.iter().zip(words).zip(levels) {
                let y = x.abs() * ratio;
                let small = (y * of_least + POWER_23).to_bits().wrapping_sub(POWER_23.to_bits()) as i32;
                let large = (y.to_bits() as i32).wrapping_sub(least).wrapping_add(1 << 23);
                let from = if (y.to_bits() as i32) < least { small } else { large } - (word >> 9) as i32;
                unsure |= ceil(from - 7, 23) ^ ceil(from + 6, 23);
                *level = L::of(with_sign(ceil(from, 23), *x));
            }
        }
    }
    unsure == 0
}

/// 2^23: the low bits of its sum with a smaller number hold that number rounded to an integer.
const POWER_23: f32 = 8_388_608.0;

/// Returns `x` / 2^`bits` rounded up.
#[inline(always)]
fn ceil(x: i32, bits: u32) -> i32 {
    (x + ((1 << bits) - 1)) >> bits
}

/// Returns `level` with the sign of `x`.
#[inline(always)]
fn with_sign(level: i32, x: f32) -> i32 {
    let sign = x.to_bits().cast_signed() >> 31;
    (level ^ sign) - sign
}

#[inline(always)]
fn uniform_level(x: f32, norm: f64, s: f64, word: u32) -> i32 {
    let y = f64::from(x.abs()) / norm * s;
    let y = if y < s { y } else { s };
    // The sum rounds to an integer, which may be the one above.
    let nearest = (y + INTEGER) - INTEGER;
    let below = if nearest > y { nearest - 1.0 } else { nearest };
    let up = f64::from(word) < (y - below) * WORDS;
    let level = (below + INTEGER).to_bits() as i32 + i32::from(up);
    with_sign(level, x)
}

/// Returns the natural level of `x`; 1 <= s <= 255.
#[inline(always)]
fn natural_level(x: f32, norm: f64, s: u32, word: u32) -> i32 {
    let y = f64::from(x.abs()) / norm;
    let y = if y < 1.0 { y } else { 1.0 };
    // 2^(1 - s) is a normal 64-bit float, so every y at or above it is normal too.
    let least = 1024 - u64::from(s);
    let bits = y.to_bits();
    let small = bits < least << 52;
    // Below the least power, the part of it; from there on, the mantissa.
    let of_least = y * f64::from_bits((2046 - least) << 52);
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1.0f64.to_bits()) - 1.0;
    let up = f64::from(word) < if small { of_least } else { mantissa } * WORDS;
    let below = if small { 0 } else { (bits >> 52) as i32 - least as i32 + 1 };
    with_sign(below + i32::from(up), x)
}

/// Limits magnitudes to `clip` times their root mean square.
fn limit(values: &mut [f32], clip: f32) {
    let square = sums::squares(values) / values.len().max(1) as f64;
    let most = (f64::from(clip) * square.sqrt()).min(f64::from(f32::MAX)) as f32;
    for x in values {
        *x = x.clamp(-most, most);
    }
}

/// Quantises the groups of a chunk and leaves the residual. `each` gets the place of a group's first element,
/// its elements, and with feedback the memory for the numbers that the receiver decodes. Returns false if an
/// element is not finite.
fn quantize(
    chunk: Chunk<'_, '_>,
    group: u64,
    mut each: impl FnMut(usize, &[f32], Option<&mut [f32]>),
) -> bool {
    let dtype = chunk.source.dtype;
    let group = usize::try_from(group).unwrap_or(usize::MAX);
    let step = group.saturating_mul((4 * RUN / group).max(1));
    chunk.pieces(step, |start, mut elements| {
        if !arch::run(AllFinite(&elements)) {
            return false;
        }
        let mut at = start;
        let Some(kept) = elements.kept() else {
            for values in elements.chunks(group) {
                each(at, values, None);
                at += values.len();
            }
            return true;
        };
        for values in kept.chunks_mut(group) {
            let before = values.to_vec();
            each(at, &before, Some(values));
            at += values.len();
            let rounded = round_f32s(dtype, values);
            debug_assert!(rounded.is_ok(), "sources are floats");
            values.iter_mut().zip(before).for_each(|(x, before)| *x = before - *x);
        }
        true
    })
}

struct AllFinite<'a>(&'a [f32]);

impl Kernel for AllFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn call(self) -> bool {
        largest_magnitude(self.0) < f32::INFINITY
    }
}

/// Quantises a span of a tensor. `visit` appends the scales and writes the codes of a chunk of whole groups.
fn quantized<C: Send + Copy + Default>(
    tensor: &mut Source<'_>,
    range: Range<usize>,
    group: u64,
    memory: Vec<C>,
    visit: impl Fn(Chunk<'_, '_>, &mut Vec<f32>, &mut [C]) -> bool + Sync,
) -> Result<(Scales, Vec<C>)> {
    let step = usize::try_from(group.saturating_mul((STEP / group).max(1))).unwrap_or(usize::MAX);
    let mut codes = pages::of_len(memory, range.len());
    let places = codes.chunks_mut(step).collect();
    let chunks = tensor.scan_into(range, step, places, |chunk, codes| {
        let mut scales = Vec::new();
        visit(chunk, &mut scales, codes).then_some(scales)
    });
    let mut scales = Vec::new();
    for chunk in chunks {
        let Some(chunk) = chunk else { return Err(tensor.non_finite()) };
        scales.extend(chunk);
    }
    Ok((Scales::from_f32s(ScaleFormat::F32, &scales), codes))
}

/// Approximate number of elements that a thread processes at a time.
const STEP: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// The levels as the papers define them, one at a time.
    fn plainly(spacing: Spacing, x: f32, norm: f32, s: u32, word: u32) -> i32 {
        let share = f64::from(x.abs()) / f64::from(norm);
        let (below, up) = match spacing {
            Spacing::Uniform => {
                let y = (share * f64::from(s)).min(f64::from(s));
                (y.floor() as i32, y - y.floor())
            }
            Spacing::Natural => {
                let (y, least) = (share.min(1.0), 2f64.powi(1 - s as i32));
                match y < least {
                    true => (0, y / least),
                    false => {
                        let exponent = y.log2().floor() as i32;
                        // The logarithm may round up to the next integer.
                        let exponent = if 2f64.powi(exponent) > y { exponent - 1 } else { exponent };
                        (exponent + s as i32, y / 2f64.powi(exponent) - 1.0)
                    }
                }
            }
        };
        let level = below + i32::from(f64::from(word) < up * 2f64.powi(32));
        if x.is_sign_negative() { -level } else { level }
    }

    #[test]
    fn every_form_draws_the_levels_of_the_papers() {
        let numbers = |i: u64| f32::from_bits(random::word(3, 1, i) & 0xbfff_ffff | 0x3000_0000);
        let edges =
            [0.0, -0.0, f32::from_bits(1), 1e-38, 0.25, 0.5f32.next_down(), 0.5, 1.0, -1.0, 2.0, 1.9999];
        let values: Vec<f32> = edges.into_iter().chain((0..2100).map(numbers)).collect();
        let norm = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        for (spacing, s) in [
            (Spacing::Uniform, 1),
            (Spacing::Uniform, 7),
            (Spacing::Uniform, 65_535),
            (Spacing::Natural, 1),
            (Spacing::Natural, 8),
            (Spacing::Natural, 255),
        ] {
            let (seed, tensor, start) = (5, 6, 3);
            let expected: Vec<i32> = (start..)
                .zip(&values)
                .map(|(i, &x)| plainly(spacing, x, norm, s, random::word(seed, tensor, i)))
                .collect();
            for form in arch::forms() {
                let (values, mut levels) = (&values, vec![0; values.len()]);
                let draw =
                    Draw { spacing, max_level: s, norm, seed, tensor, start, values, levels: &mut levels };
                arch::run_as(form, draw);
                assert_eq!(levels, expected, "{spacing:?} {s} {form:?}");
                let (codes, mut levels) = (levels, vec![0u8; values.len()]);
                let draw =
                    Draw { spacing, max_level: s, norm, seed, tensor, start, values, levels: &mut levels };
                arch::run_as(form, draw);
                let fits = |level: &i32| (-128..=127).contains(level);
                assert!(levels.iter().zip(codes).filter(|(_, l)| fits(l)).all(|(c, l)| level_of(*c) == l));
            }
        }
    }

    /// Elements that are next to the draw's decision, where an error of the approximation would show.
    #[test]
    fn sure_levels_are_those_of_the_definition() {
        let part = |stream: u64, i: u64| f64::from(random::word(9, stream, i)) / WORDS;
        for (spacing, s, unit) in [
            (Spacing::Uniform, 1, 65_536.0),
            (Spacing::Uniform, 7, 65_536.0),
            (Spacing::Uniform, 63, 65_536.0),
            (Spacing::Natural, 1, 8_388_608.0),
            (Spacing::Natural, 8, 8_388_608.0),
            (Spacing::Natural, 100, 8_388_608.0),
        ] {
            let (mut sure, mut unsure) = (0, 0);
            for i in 0..100_000 {
                let norm = f32::from_bits(random::word(9, 0, i) % (60 << 23) + (100 << 23));
                let word = random::word(9, 1, i);
                let near_word = f64::from(word) / WORDS + (40.0 * part(2, i) - 20.0) / unit;
                let level = (f64::from(random::word(9, 3, i) % s) + near_word).clamp(0.0, s.into());
                let of_norm = match spacing {
                    Spacing::Uniform => level / f64::from(s),
                    Spacing::Natural if level < 1.0 => level * 2f64.powi(1 - s as i32),
                    Spacing::Natural => (1.0 + level.fract()) * 2f64.powi(level as i32 - s as i32),
                };
                let x = ((of_norm * f64::from(norm)) as f32).min(norm).copysign(part(4, i) as f32 - 0.5);
                let (near, mut levels) = (Near::new(spacing, s, norm).unwrap(), [0i32]);
                if draw_surely(near, &[x], &[word], &mut levels) {
                    assert_eq!(
                        levels[0],
                        plainly(spacing, x, norm, s, word),
                        "{spacing:?} {s}: {x} of {norm}"
                    );
                    sure += 1;
                } else {
                    unsure += 1;
                }
            }
            assert!(sure > 20_000 && unsure > 10_000, "{spacing:?} {s}: {sure} sure, {unsure} not");
        }
        let tiny = f32::from_bits(1);
        assert!(
            Near::new(Spacing::Uniform, 1, tiny).is_none() && Near::new(Spacing::Natural, 1, tiny).is_none()
        );
        assert!(
            Near::new(Spacing::Uniform, 64, 1.0).is_none() && Near::new(Spacing::Natural, 101, 1.0).is_none()
        );
    }
}
