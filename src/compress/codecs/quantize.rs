//! Dense quantisers. Levels are drawn at random without bias (QSGD, arXiv 1610.02132; natural dithering,
//! arXiv 1905.10988, section 5; TernGrad, arXiv 1705.07878). Integers are rounded to nearest (int8).

use std::ops::Range;

use crate::block::{
    Affine, Block, Groups, Levels, Norm, ScaleFormat, Scales, Scope, Spacing, Support, Values, Zero,
};
use crate::compress::source::{Chunk, Source};
use crate::compress::{Options, Part, parts, sums};
use crate::error::Result;
use crate::random;
use crate::tensor::element::{max_finite, round_f32s};

/// Settings of [`levels`].
#[derive(Clone, Copy)]
pub(crate) struct LevelSettings {
    pub(crate) spacing: Spacing,
    /// Number s of the largest level, within the wire format's range.
    pub(crate) max_level: u32,
    pub(crate) bucket: u64,
    pub(crate) norm: Norm,
    /// Limit of magnitudes, in root mean squares of their bucket, applied first; infinite for no limit.
    pub(crate) clip: f32,
    pub(crate) seed: u64,
}

/// Quantises each element to its bucket's norm times a level. The rounding is random and unbiased. Level l is
/// l / s, or for natural spacing 2^(l - s) with 0 for l = 0.
pub(crate) fn levels(
    tensors: &mut [Source<'_>],
    settings: LevelSettings,
    options: &Options,
    blocks: &mut Vec<Block>,
) -> Result<()> {
    let LevelSettings { spacing, max_level, bucket, norm, clip, seed } = settings;
    each_block(
        tensors,
        bucket,
        options,
        blocks,
        |chunk, norms, levels: &mut Vec<i32>| {
            let (tensor, max) = (chunk.source.tensor, max_finite(chunk.source.dtype));
            quantize(chunk, bucket, |start, values| {
                if clip < f32::INFINITY {
                    limit(values, clip);
                }
                // Any number that no element exceeds is a valid norm. This one never decodes to infinity.
                let norm = norm_of(norm, values).min(max);
                let mut words = vec![0; values.len()];
                random::words(seed, tensor, start as u64, &mut words);
                norms.push(norm);
                for (x, word) in values.iter_mut().zip(words) {
                    let (level, decoded) = match spacing {
                        Spacing::Uniform => {
                            let level = level(*x, norm, max_level, word);
                            // This is the receiver's arithmetic.
                            (level, (f64::from(norm) * f64::from(level) / f64::from(max_level)) as f32)
                        }
                        Spacing::Natural => natural_level(*x, norm, max_level, word),
                    };
                    levels.push(level);
                    *x = decoded;
                }
            })
        },
        |norms, levels| {
            Values::Levels(Levels { spacing, max_level, norm, groups: Groups::Len(bucket), norms, levels })
        },
    )
}

/// Quantises each element to its group's scale times an integer from -127 to 127.
pub(crate) fn int8(
    tensors: &mut [Source<'_>],
    group: u64,
    options: &Options,
    blocks: &mut Vec<Block>,
) -> Result<()> {
    each_block(
        tensors,
        group,
        options,
        blocks,
        |chunk, scales, codes: &mut Vec<u8>| {
            let feedback = chunk.has_feedback();
            quantize(chunk, group, |_, values| {
                let (scale, new) = affine(values, 8, group);
                if feedback {
                    values.copy_from_slice(&affine_values(&scale, &new, 8, group));
                }
                scales.extend(scale);
                codes.extend(new);
            })
        },
        |scales, codes| {
            Values::Affine(Affine { bits: 8, groups: Groups::Len(group), scales, zero: Zero::Centre, codes })
        },
    )
}

/// Returns a scale for each `group` of values, and the codes `round(x / scale) + 2^(bits-1)`.
pub(crate) fn affine(values: &[f32], bits: u8, group: u64) -> (Vec<f32>, Vec<u8>) {
    let (centre, largest) = (1i32 << (bits - 1), (1i32 << (bits - 1)) - 1);
    let group = usize::try_from(group).unwrap_or(usize::MAX);
    let mut codes = vec![0; values.len()];
    let scales = values.chunks(group).zip(codes.chunks_mut(group)).map(|(values, codes)| {
        let scale = affine_scale(values, largest as f32);
        let of = if scale == 0.0 { 1.0 } else { scale };
        for (x, code) in values.iter().zip(codes) {
            // The quotient is far below 2^22, so the low bits of the sum hold it rounded to an integer, ties
            // to even.
            let rounded = (x / of + ROUNDER).to_bits() as i32 - ROUNDER.to_bits() as i32;
            *code = (rounded.clamp(-largest, largest) + centre) as u8;
        }
        scale
    });
    (scales.collect(), codes)
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

fn affine_scale(values: &[f32], largest: f32) -> f32 {
    let max = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
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
        return values.iter().fold(0.0, |max, x| max.max(x.abs()));
    }
    let exact = match norm {
        Norm::L1 => sums::magnitudes(values),
        _ => sums::squares(values).sqrt(),
    };
    let near = exact as f32;
    if f64::from(near) < exact { near.next_up() } else { near }
}

fn level(x: f32, norm: f32, max_level: u32, word: u32) -> i32 {
    if norm == 0.0 {
        return 0;
    }
    let y = (f64::from(x.abs()) / f64::from(norm) * f64::from(max_level)).min(f64::from(max_level));
    let below = y as i32;
    let up = f64::from(word) < (y - f64::from(below)) * (1u64 << 32) as f64;
    let level = below + i32::from(up);
    if x.is_sign_negative() { -level } else { level }
}

/// Returns the natural level of `x` and the number that the receiver decodes; 1 <= s <= 255.
fn natural_level(x: f32, norm: f32, s: u32, word: u32) -> (i32, f32) {
    if norm == 0.0 {
        return (0, 0.0);
    }
    let y = (f64::from(x.abs()) / f64::from(norm)).min(1.0);
    // 2^(1 - s) is a normal 64-bit float, so every y at or above it is normal too.
    let power = |e: i64| f64::from_bits(((e + 1023) as u64) << 52);
    let least = 1 - i64::from(s);
    let (below, up) = if y < power(least) {
        (0, y / power(least))
    } else {
        let exponent = (y.to_bits() >> 52) as i64 - 1023;
        (exponent - least + 1, y / power(exponent) - 1.0)
    };
    let level = below + i64::from(f64::from(word) < up * (1u64 << 32) as f64);
    if level == 0 {
        return (0, 0.0);
    }
    let decoded = f64::from(norm) * power(level - i64::from(s));
    let sign = if x.is_sign_negative() { -1.0 } else { 1.0 };
    (level as i32 * sign as i32, (sign * decoded) as f32)
}

/// Limits magnitudes to `clip` times their root mean square.
fn limit(values: &mut [f32], clip: f32) {
    let square = sums::squares(values) / values.len().max(1) as f64;
    let most = (f64::from(clip) * square.sqrt()).min(f64::from(f32::MAX)) as f32;
    for x in values {
        *x = x.clamp(-most, most);
    }
}

/// Quantises the groups of a chunk in place and leaves the residual. Returns false if an element is not
/// finite.
fn quantize(chunk: Chunk<'_, '_>, group: u64, mut each: impl FnMut(usize, &mut [f32])) -> bool {
    let (dtype, feedback) = (chunk.source.dtype, chunk.has_feedback());
    chunk.whole(|start, values| {
        if !values.iter().all(|x| x.is_finite()) {
            return false;
        }
        let group = usize::try_from(group).unwrap_or(usize::MAX);
        let mut at = start;
        for values in values.chunks_mut(group) {
            let before = if feedback { values.to_vec() } else { Vec::new() };
            each(at, values);
            at += values.len();
            if feedback {
                let rounded = round_f32s(dtype, values);
                debug_assert!(rounded.is_ok(), "sources are floats");
                for (x, before) in values.iter_mut().zip(before) {
                    *x = before - *x;
                }
            }
        }
        true
    })
}

/// Makes the dense blocks of a run of tensors. `visit` returns scales and codes of a chunk of whole groups.
/// `make` returns the values of the block.
fn each_block<C: Send>(
    tensors: &mut [Source<'_>],
    group: u64,
    options: &Options,
    blocks: &mut Vec<Block>,
    visit: impl Fn(Chunk<'_, '_>, &mut Vec<f32>, &mut Vec<C>) -> bool + Sync,
    make: impl Fn(Scales, Vec<C>) -> Values,
) -> Result<()> {
    let lens: Vec<u64> = tensors.iter().map(|t| t.len as u64).collect();
    let step = usize::try_from(group.saturating_mul((STEP / group).max(1))).unwrap_or(usize::MAX);
    for part in parts(&lens, options.block_len, false) {
        let (tensor, range, scope): (&mut Source<'_>, Range<usize>, Scope) = match part {
            Part::Whole(run) => {
                let tensor = &mut tensors[run.start];
                let (range, scope) = (0..tensor.len, Scope::Tensor(tensor.tensor));
                (tensor, range, scope)
            }
            Part::Slice(i, range) => {
                let tensor = &mut tensors[i];
                let len = range.end - range.start;
                let scope = Scope::Range { tensor: tensor.tensor, start: range.start, len };
                (tensor, range.start as usize..range.end as usize, scope)
            }
        };
        let chunks = tensor.scan(range.clone(), step, |chunk| {
            let (mut scales, mut codes) = (Vec::new(), Vec::with_capacity(chunk.len));
            visit(chunk, &mut scales, &mut codes).then_some((scales, codes))
        });
        let (mut scales, mut codes) = (Vec::new(), Vec::with_capacity(range.len()));
        for chunk in chunks {
            let Some((s, c)) = chunk else { return Err(tensor.non_finite()) };
            scales.extend(s);
            codes.extend(c);
        }
        let values = make(Scales::from_f32s(ScaleFormat::F32, &scales), codes);
        blocks.push(Block { scope, add: false, support: Support::All, values });
    }
    Ok(())
}

/// Approximate number of elements that a thread processes at a time.
const STEP: u64 = 1 << 16;
