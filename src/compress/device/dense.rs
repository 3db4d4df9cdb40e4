//! Quantisation of tensors that are not in the host's memory, for example on a device.
//!
//! [`tasks`] lists the computations. [`blocks`] turns their results into the same blocks that
//! [`compress`](super::super::compress()) would have made.
//!
//! The results are defined to the bit. An element x is read as for a [`Search`](super::Search). With
//! [`NonFinite::Zero`](super::super::NonFinite::Zero), an element that is not finite is 0. The *word* of an
//! element is [`random::word`](crate::random::word) of the seed, the number of its tensor, and its index in
//! the tensor. Unless stated otherwise, arithmetic uses 64-bit floats. Each operation is rounded to nearest
//! by itself.
//!
//! **Sums** of magnitudes or squares are taken in the order of `src/compress/sums.rs`, counted from the first
//! element of the sum.
//!
//! **Scales**: let m be the largest magnitude of the elements that share a scale. If m is 0, the scale is 0.
//! Otherwise it is:
//! - [`Quantizer::Levels`]: with [`Norm::Max`], m. With L1 the sum of magnitudes, with L2 the square root of
//!   the sum of squares. Both are rounded up to a 32-bit float. If `clip` is finite, the scale is at most
//!   `clip` times the square root of (the sum of squares / the number of elements). This limit is rounded to
//!   the nearest 32-bit float and is at most the largest finite one. In every case the scale is at most the
//!   largest finite number of the element type.
//! - [`Quantizer::Int8`]: m / 127 in 32 bits, at least 2^-149. If 127 times this number overflows a 32-bit
//!   float, the scale is the next lower 32-bit float.
//! - [`Quantizer::Sign`]: the 32-bit float nearest to the sum of magnitudes / the number of elements.
//!
//! **Codes** have `width` bits each. They form a bit plane, with the first code in the lowest bits (spec,
//! section 7.1):
//! - Uniform levels: y = |x| / scale * s, at most s. The level l is floor(y), plus 1 if word < (y - floor(y))
//!   2^32. It has the sign of x. Its code is 2l, or -2l - 1 if the level is negative. If the scale is 0, the
//!   level is 0.
//! - Natural levels: y = |x| / scale, at most 1. If y < 2^(1 - s), the level is 0, plus 1 if word < y /
//!   2^(1 - s) 2^32. Otherwise let 2^e be the largest power of two that is not above y. The level is e + s,
//!   plus 1 if word < (y / 2^e - 1) 2^32. Codes are made from levels as above.
//! - Int8: 128 + x / scale. The quotient is taken in 32 bits, rounded to an integer, ties to even, and
//!   limited to +-127. The code is 128 if the scale is 0.
//! - Sign: the sign bit of x.
//! - [`Quantizer::Natural`]: e is the exponent of the largest power of two not above |x|, plus 1 if
//!   `word >> 9` is less than the 23 bits of (|x| / 2^e - 1) 2^23. It is at most the exponent of the largest
//!   power of two of the element type. `min_exponent` is the greater of the smallest e and (the largest e -
//!   254), over all elements of the block that are not 0. It is 0 if all elements are 0. The code of an
//!   element that is 0 is 0. Otherwise the code is `e - min_exponent + 1` if e is at least `min_exponent`.
//!   For a lower e, the code is 1 if the element's second word < `2^(32 - (min_exponent - e))`, and 0
//!   otherwise. The second word is the word for tensor number + 2^63. Each element also has a sign bit, which
//!   is 0 where the code is 0.
//!
//! Error feedback subtracts the decoded value, rounded to the element type, from x. In natural compression
//! the decoded value of code 0 is a zero with the sign of x.

use std::iter;

use rayon::prelude::*;

use super::{Outline, check_order};
use crate::arch::threads::in_order;
use crate::bits::{PlaneReader, packed_bytes, unzigzag};
use crate::block::{
    Affine, Bits, Block, CodedBlock, Groups, Levels, Norm, Pow2, ScaleFormat, Scales, Scope, Sign, Spacing,
    Support, Underflow, Values, Zero,
};
use crate::compress::codecs::quantize::{GroupQuantizer, LevelOptions, in_one_block};
use crate::compress::codecs::{self, Natural};
use crate::compress::extents::{Extent, Sharing, alike, extents, whole};
use crate::compress::{Codec, Options, Share};
use crate::error::{Error, Result};

pub use crate::compress::extents::Span;

/// The quantiser of a block, with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantizer {
    /// Rounds to a power of two at random.
    Natural {
        /// Seed of the words.
        seed: u64,
    },
    /// Rounds to a level at random.
    Levels {
        /// Spacing of the levels.
        spacing: Spacing,
        /// Number s of the largest level.
        max_level: u32,
        /// Norm that the scale is computed from.
        norm: Norm,
        /// Upper limit of the scale, in root mean squares. Infinity means no limit.
        clip: f32,
        /// Seed of the words.
        seed: u64,
    },
    /// Rounds to an integer from -127 to 127.
    Int8,
    /// Keeps the sign.
    Sign,
}

/// The computation for one block, or for a tensor in one.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Scope of the block.
    pub scope: Scope,
    /// Quantiser of each element.
    pub quantizer: Quantizer,
    /// Elements that share a scale: runs that are counted from the first element of the block. With
    /// [`Share::Tensor`] the whole tensor shares one scale, including its elements outside of the block.
    /// `None` for natural compression, which has no scales.
    pub share: Option<Share>,
    /// Elements of the block, in this order. Only natural compression has more than one span, because it
    /// sends small neighbouring tensors together without scales.
    pub spans: Vec<Span>,
    /// Whether the result goes into the block of the task before, which has the next lower tensor.
    pub continues: bool,
}

impl Task {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.spans.iter().map(|span| span.len).sum()
    }

    /// Returns the number of scales.
    pub fn scales(&self) -> u64 {
        match self.share {
            None => 0,
            Some(Share::Tensor) => 1,
            Some(Share::Len(len)) => self.elements().div_ceil(len.max(1)),
        }
    }

    /// Returns the number of bits of a code. Returns `None` for natural compression, where the width is that
    /// of the largest code, at most 8 bits.
    pub fn width(&self) -> Option<u32> {
        match self.quantizer {
            Quantizer::Natural { .. } => None,
            Quantizer::Levels { max_level, .. } => Some(33 - max_level.leading_zeros()),
            Quantizer::Int8 => Some(8),
            Quantizer::Sign => Some(1),
        }
    }
}

/// The computed result for one block.
#[derive(Debug, Clone, Copy, Default)]
pub struct Packed<'a> {
    /// Exponent of code 1 in natural compression.
    pub min_exponent: i16,
    /// Bits of each code.
    pub width: u32,
    /// Bit plane of codes, padded with zeros to a whole byte.
    pub codes: &'a [u8],
    /// Bit plane of signs in natural compression: one bit for each element, 1 for minus, 0 where the code
    /// is 0. It is padded like `codes`.
    pub negative: &'a [u8],
    /// Scales, in the order of the groups.
    pub scales: &'a [f32],
}

/// Whether [`tasks`] accepts this codec.
pub fn takes(codec: &Codec) -> bool {
    matches!(
        codec,
        Codec::Natural { .. }
            | Codec::Qsgd { .. }
            | Codec::Dither { .. }
            | Codec::TernGrad { .. }
            | Codec::Sign { .. }
            | Codec::Int8 { .. }
    )
}

/// Returns the computations for the tensors whose codec is `natural`, `qsgd`, `dither`, `terngrad`, `sign` or
/// `int8`. Tensors with other codecs are skipped.
///
/// # Errors
/// Returns [`Error::Input`] if tensors are not in ascending order or not of floats, or if options are out of
/// range.
pub fn tasks(tensors: &[Outline], codecs: &[Codec], options: &Options) -> Result<Vec<Task>> {
    check_order(tensors, codecs)?;
    if options.block_len == 0 {
        return Err(Error::bad_option("block_len"));
    }
    let mut tasks = Vec::new();
    for run in alike(codecs, |i| (tensors[i].tensor, tensors[i].dtype)) {
        let (first, of_run) = (run.start, &tensors[run]);
        let (quantizer, share, sharing) = match codecs[first] {
            Codec::Natural(Natural { seed, .. }) => (Quantizer::Natural { seed }, None, Sharing::All),
            Codec::Sign(codecs::Sign { group }) => (Quantizer::Sign, Some(group), Sharing::None),
            codec => {
                let Some(of_groups) = codec.quantizer() else { continue };
                let (quantizer, group) = match of_groups {
                    GroupQuantizer::Levels(LevelOptions { spacing, max_level, bucket, norm, clip, seed }) => {
                        (Quantizer::Levels { spacing, max_level, norm, clip, seed }, bucket)
                    }
                    GroupQuantizer::Int8(group) => (Quantizer::Int8, group),
                };
                (quantizer, Some(Share::Len(group)), of_groups.sharing())
            }
        };
        let lens: Vec<u64> = of_run.iter().map(|t| t.len).collect();
        for extent in extents(&lens, options.block_len, sharing) {
            let span = |i: usize| Span { input: first + i, start: 0, len: lens[i] };
            let task = |scope, spans, continues| Task { scope, quantizer, share, spans, continues };
            match extent {
                Extent::Slice(i, range) => {
                    let (start, len) = (range.start, range.end - range.start);
                    let scope = Scope::Range { tensor: of_run[i].tensor, start, len };
                    tasks.push(task(scope, vec![Span { start, len, ..span(i) }], false));
                }
                Extent::Whole(of_extent) if share.is_some() => {
                    let start = of_extent.start;
                    let each =
                        of_extent.map(|i| task(Scope::Tensor(of_run[i].tensor), vec![span(i)], i > start));
                    tasks.extend(each);
                }
                Extent::Whole(of_extent) => {
                    let scope = whole(of_run[of_extent.start].tensor, of_extent.len());
                    tasks.push(task(scope, of_extent.map(span).collect(), false));
                }
            }
        }
    }
    Ok(tasks)
}

/// Returns the blocks of these tasks, in ascending order of their scopes.
///
/// # Errors
/// Returns [`Error::Input`] if a result does not fit its task: a plane has the wrong length or has bits
/// beyond its end, a code or scale is out of range, or a sign is set where the code is 0.
pub fn blocks(tasks: &[Task], packed: &[Packed<'_>]) -> Result<Vec<CodedBlock>> {
    if tasks.len() != packed.len() {
        return Err(Error::inconsistent("numbers of tasks and of what was computed"));
    }
    let mut made = in_order(tasks.par_iter().zip(packed).map(|(t, p)| block(t, p)))?.into_iter();
    let of_block = tasks.chunk_by(|_, next| next.continues);
    of_block.map(|tasks| Ok(one_block(tasks, made.by_ref().take(tasks.len()))?.into())).collect()
}

/// Returns the block of these tasks, from a block for each.
fn one_block(tasks: &[Task], mut each: impl Iterator<Item = Block>) -> Result<Block> {
    let (group, first) = match (tasks, each.next()) {
        ([_], Some(block)) => return Ok(block),
        ([Task { share: Some(Share::Len(group)), .. }, ..], Some(block)) => (*group, block),
        _ => return Err(Error::inconsistent("a task that continues another")),
    };
    let scope = whole(first.scope.first(), tasks.len());
    let values = iter::once(first).chain(each).map(|block| block.values).collect();
    let lens: Vec<u64> = tasks.iter().map(Task::elements).collect();
    let values = in_one_block(values, &lens, group)?;
    Ok(Block { scope, add: false, support: Support::All, values })
}

fn block(task: &Task, packed: &Packed<'_>) -> Result<Block> {
    let elements = task.elements();
    let wrong = |what| Err(Error::inconsistent(what));
    if packed.scales.len() as u64 != task.scales() {
        return wrong("number of scales");
    }
    if packed.scales.iter().any(|x| !(x.is_finite() && *x >= 0.0)) {
        return wrong("a scale that is negative or not finite");
    }
    let widest = task.width().unwrap_or(8);
    if packed.width > widest || task.width().is_some_and(|width| width != packed.width) {
        return wrong("width of codes");
    }
    if packed_bytes(elements, packed.width) != Some(packed.codes.len() as u64) {
        return wrong("length of the plane of codes");
    }
    let signs = if task.share.is_none() { elements.div_ceil(8) } else { 0 };
    if packed.negative.len() as u64 != signs {
        return wrong("length of the plane of signs");
    }
    let scales = || Scales::from_f32s(ScaleFormat::F32, packed.scales);
    let groups = match task.share {
        Some(Share::Len(len)) => Groups::Len(len),
        _ => Groups::Block,
    };
    let values = match task.quantizer {
        Quantizer::Natural { .. } => {
            let codes = fields(packed, elements, |code| code as u8)?;
            let most = i16::from(codes.iter().copied().max().unwrap_or(0));
            if !(-149..=127).contains(&packed.min_exponent) || packed.min_exponent + most > 128 {
                return wrong("an exponent that no 32-bit float has");
            }
            let Some(negative) = Bits::from_bytes(elements, packed.negative.to_vec()) else {
                return wrong("padding of the plane of signs");
            };
            let stray = |(codes, signs): (&[u8], &u8)| {
                codes.iter().enumerate().any(|(i, &code)| code == 0 && signs >> i & 1 != 0)
            };
            if codes.chunks(8).zip(packed.negative).any(stray) {
                return wrong("sign of a zero");
            }
            let min_exponent = packed.min_exponent;
            Values::Pow2(Pow2 { min_exponent, underflow: Underflow::Unbiased, codes, negative })
        }
        Quantizer::Levels { spacing, max_level, norm, .. } => {
            let levels = fields(packed, elements, |code| unzigzag(code) as i32)?;
            if levels.iter().any(|level| level.unsigned_abs() > max_level) {
                return wrong("levels");
            }
            let levels = levels.into();
            Values::Levels(Levels { spacing, max_level, norm, groups, norms: scales(), levels })
        }
        Quantizer::Int8 => {
            let codes = fields(packed, elements, |code| code as u8)?;
            if codes.contains(&0) {
                return wrong("an integer below -127");
            }
            Values::Affine(Affine { bits: 8, groups, scales: scales(), zero: Zero::Centre, codes })
        }
        Quantizer::Sign => {
            let Some(negative) = Bits::from_bytes(elements, packed.codes.to_vec()) else {
                return wrong("padding of the plane of signs");
            };
            Values::Sign(Sign { groups, scales: scales(), negative })
        }
    };
    Ok(Block { scope: task.scope, add: false, support: Support::All, values })
}

/// Returns the fields of a plane whose length has been checked.
fn fields<T>(packed: &Packed<'_>, elements: u64, make: impl Fn(u64) -> T) -> Result<Vec<T>> {
    if packed.width == 8 {
        return Ok(packed.codes.iter().map(|&code| make(code.into())).collect());
    }
    let mut plane = PlaneReader::new(packed.codes, 0);
    let fields = (0..elements).map(|_| make(plane.get(packed.width))).collect();
    plane.finish("codes").map_err(|_| Error::inconsistent("padding of the plane of codes"))?;
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::super::super::{Feedback, Input, compress, sums};
    use super::*;
    use crate::bits::{PlaneWriter, zigzag};
    use crate::random::word;
    use crate::tensor::element::{max_finite, round_f32s};
    use crate::tensor::{Dtype, TensorBuf};

    #[derive(Default)]
    struct Computed {
        min_exponent: i16,
        width: u32,
        codes: Vec<u8>,
        negative: Vec<u8>,
        scales: Vec<f32>,
    }

    fn plane(codes: impl Iterator<Item = u64>, width: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = PlaneWriter::new(&mut bytes);
        codes.for_each(|code| writer.put(code, width));
        writer.finish();
        bytes
    }

    fn least_power_not_above(x: f64) -> i32 {
        let mut e = 300;
        while 2f64.powi(e) > x {
            e -= 1;
        }
        e
    }

    /// Follows the definition literally. Also returns the decoded value of each element.
    fn compute(task: &Task, tensors: &[Outline], values: &[Vec<f32>]) -> (Computed, Vec<f32>) {
        let mut out = Computed::default();
        let mut decoded = Vec::new();
        let elements: Vec<(u64, u64, f32)> = task
            .spans
            .iter()
            .flat_map(|s| {
                (s.start..s.start + s.len).map(|i| (tensors[s.input].tensor, i, values[s.input][i as usize]))
            })
            .collect();
        let dtype = tensors[task.spans[0].input].dtype;
        if let Quantizer::Natural { seed } = task.quantizer {
            let top = least_power_not_above(max_finite(dtype).into());
            let exponents: Vec<Option<i32>> = elements
                .iter()
                .map(|&(tensor, i, x)| {
                    let x = f64::from(x.abs());
                    let e = least_power_not_above(x);
                    let mantissa = (x / 2f64.powi(e) - 1.0) * 2f64.powi(23);
                    (x != 0.0)
                        .then(|| (e + i32::from(f64::from(word(seed, tensor, i) >> 9) < mantissa)).min(top))
                })
                .collect();
            let (smallest, largest) = (exponents.iter().flatten().min(), exponents.iter().flatten().max());
            let least = smallest.map_or(0, |&e| e.max(largest.unwrap() - 254));
            let codes: Vec<u64> = exponents
                .iter()
                .zip(&elements)
                .map(|(e, &(tensor, i, _))| match *e {
                    None => 0,
                    Some(e) if e < least => {
                        u64::from(f64::from(word(seed, tensor | 1 << 63, i)) < 2f64.powi(32 - (least - e)))
                    }
                    Some(e) => (e - least + 1) as u64,
                })
                .collect();
            out.min_exponent = least as i16;
            out.width = 64 - codes.iter().max().unwrap_or(&0).leading_zeros();
            out.codes = plane(codes.iter().copied(), out.width);
            let minus =
                |(&code, &(_, _, x)): (&u64, &(u64, u64, f32))| u64::from(code != 0 && x.is_sign_negative());
            out.negative = plane(codes.iter().zip(&elements).map(minus), 1);
            let value = |&code: &u64| if code == 0 { 0.0 } else { 2f64.powi(least + code as i32 - 1) as f32 };
            decoded.extend(codes.iter().map(value).zip(&elements).map(|(d, &(_, _, x))| d.copysign(x)));
        } else {
            let all = &values[task.spans[0].input];
            let group = match task.share.unwrap() {
                Share::Len(len) => len as usize,
                Share::Tensor => usize::MAX,
            };
            let mut codes = Vec::new();
            out.width = task.width().unwrap();
            if task.share == Some(Share::Tensor) && elements.is_empty() {
                out.scales.push(0.0);
            }
            for group in elements.chunks(group.min(elements.len().max(1))) {
                let mut xs: Vec<f32> = group.iter().map(|e| e.2).collect();
                if task.share == Some(Share::Tensor) {
                    xs.clone_from(all);
                }
                let (m, n) = (xs.iter().fold(0f32, |m, x| m.max(x.abs())), xs.len() as f64);
                let scale = match task.quantizer {
                    Quantizer::Levels { norm, clip, .. } => {
                        let exact = match norm {
                            Norm::L1 => sums::magnitudes(&xs),
                            Norm::L2 => sums::squares(&xs).sqrt(),
                            Norm::Max => m.into(),
                        };
                        let mut scale = exact as f32;
                        if f64::from(scale) < exact {
                            scale = scale.next_up();
                        }
                        if clip.is_finite() {
                            let most = f64::from(clip) * (sums::squares(&xs) / n).sqrt();
                            scale = scale.min(most.min(f32::MAX.into()) as f32);
                        }
                        scale.min(max_finite(dtype))
                    }
                    Quantizer::Int8 if m == 0.0 => 0.0,
                    Quantizer::Int8 => (m / 127.0).max(f32::from_bits(1)),
                    _ => (sums::magnitudes(&xs) / n) as f32,
                };
                for &(tensor, i, x) in group {
                    let (wide, s) = (f64::from(scale), f64::from(x.abs()));
                    let (code, d) = match task.quantizer {
                        Quantizer::Sign => (u64::from(x.is_sign_negative()), scale.copysign(x)),
                        Quantizer::Int8 => {
                            let of = if scale == 0.0 { 1.0 } else { scale };
                            let code = (x / of).round_ties_even().clamp(-127.0, 127.0) as i32;
                            ((code + 128) as u64, (wide * f64::from(code)) as f32)
                        }
                        Quantizer::Levels { spacing, max_level, seed, .. } => {
                            let (max, word) = (f64::from(max_level), f64::from(word(seed, tensor, i)));
                            let (mut y, mut level, mut rest) = (s / wide, 0.0, 0.0);
                            if scale != 0.0 && spacing == Spacing::Uniform {
                                y = (y * max).min(max);
                                (level, rest) = (y.floor(), y - y.floor());
                            } else if scale != 0.0 {
                                y = y.min(1.0);
                                let least = 2f64.powi(1 - max_level as i32);
                                let e = least_power_not_above(y);
                                (level, rest) = match y < least {
                                    true => (0.0, y / least),
                                    false => (f64::from(e) + max, y / 2f64.powi(e) - 1.0),
                                };
                            }
                            level += f64::from(u8::from(word < rest * 2f64.powi(32)));
                            let value = match spacing {
                                Spacing::Uniform => wide * level / max,
                                Spacing::Natural if level == 0.0 => 0.0,
                                Spacing::Natural => wide * 2f64.powi((level - max) as i32),
                            };
                            let (signed, value) = match x.is_sign_negative() && level > 0.0 {
                                true => (-level, -value),
                                false => (level, value),
                            };
                            (zigzag(signed as i64), value as f32)
                        }
                        Quantizer::Natural { .. } => unreachable!("above"),
                    };
                    codes.push(code);
                    decoded.push(d);
                }
                out.scales.push(scale);
            }
            out.codes = plane(codes.into_iter(), out.width);
        }
        round_f32s(dtype, &mut decoded).unwrap();
        (out, decoded)
    }

    #[test]
    fn blocks_are_those_that_compress_makes() {
        let values: Vec<Vec<f32>> = [3000usize, 0, 4700, 1, 700]
            .iter()
            .zip(0..)
            .map(|(&n, t)| {
                // If `t` is 2: the exponents of all floats, and zeros of both signs.
                let value = |i: u64| {
                    let w = word(7, t, i);
                    let narrow = w & 0x80ff_ffff | (100 + w % 30) << 23;
                    if w.is_multiple_of(13) { f32::from_bits(w & 1 << 31) } else { f32::from_bits(narrow) }
                };
                (0..n as u64)
                    .map(|i| match f32::from_bits(word(8, t, i)) {
                        x if t == 2 && x.is_finite() => x,
                        _ => value(i),
                    })
                    .collect()
            })
            .collect();
        let names = ["a", "b", "c", "d", "e"];
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let tensors: Vec<TensorBuf> = values
                .iter()
                .map(|v| {
                    let most = max_finite(dtype);
                    let v: Vec<f32> = v.iter().map(|x| x.clamp(-most, most)).collect();
                    let mut data = vec![0; dtype.bytes_for(v.len() as u64).unwrap() as usize];
                    crate::tensor::element::encode_f32s(dtype, &v, 0, &mut data).unwrap();
                    TensorBuf::new(dtype, vec![v.len() as u64], data).unwrap()
                })
                .collect();
            let read: Vec<Vec<f32>> = tensors.iter().map(|t| t.view().to_f32().unwrap()).collect();
            // The last number is not consecutive, so there are two runs.
            let numbers = [0, 1, 2, 3, 9];
            let outlines: Vec<Outline> = numbers
                .iter()
                .zip(&tensors)
                .map(|(&tensor, t)| Outline { tensor, dtype, len: t.view().elements() })
                .collect();
            let inputs: Vec<Input<'_>> = numbers
                .iter()
                .zip(names)
                .zip(&tensors)
                .map(|((&tensor, name), t)| Input { tensor, name, view: t.view(), base: None })
                .collect();
            for spec in [
                "natural:seed=5",
                "qsgd:bits=4,bucket=512,seed=1",
                "qsgd:bits=16,bucket=33,norm=max,seed=2",
                "dither:levels=8,bucket=100,norm=l1",
                "dither:levels=255,bucket=3000,norm=l2",
                "terngrad:bucket=700,clip=1.5",
                "terngrad:bucket=64,clip=inf",
                "int8:group=256",
                "sign",
                "sign:group=100",
            ] {
                for block_len in [1 << 22, 1000] {
                    let codecs = vec![spec.parse::<Codec>().unwrap(); 5];
                    let options = Options::default().with_block_len(block_len);
                    let tasks = tasks(&outlines, &codecs, &options).unwrap();
                    let computed: Vec<_> = tasks.iter().map(|t| compute(t, &outlines, &read)).collect();
                    let packed: Vec<_> = computed
                        .iter()
                        .map(|(c, _)| Packed {
                            min_exponent: c.min_exponent,
                            width: c.width,
                            codes: &c.codes,
                            negative: &c.negative,
                            scales: &c.scales,
                        })
                        .collect();
                    let got = blocks(&tasks, &packed).unwrap();
                    let mut feedback = Feedback::new();
                    let expected = compress(&inputs, &codecs, &options, Some(&mut feedback)).unwrap();
                    assert!(got == expected, "{spec} {dtype} {block_len}");
                    let mut left = read.clone();
                    for (task, (_, decoded)) in tasks.iter().zip(&computed) {
                        let mut decoded = decoded.iter();
                        for span in &task.spans {
                            let left = &mut left[span.input][span.start as usize..][..span.len as usize];
                            left.iter_mut().zip(decoded.by_ref()).for_each(|(x, d)| *x -= d);
                        }
                    }
                    for (name, left) in names.iter().zip(&left) {
                        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                        assert!(
                            bits(feedback.get(name).unwrap()) == bits(left),
                            "{spec} {dtype} {block_len} {name}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let outline = Outline { tensor: 3, dtype: Dtype::F32, len: 5 };
        let task = |spec: &str| {
            let codec: Codec = spec.parse().unwrap();
            tasks(&[outline], &[codec], &Options::default()).unwrap().remove(0)
        };
        let good = |spec: &str, packed: Packed<'_>| {
            assert!(blocks(&[task(spec)], &[packed]).is_ok(), "{spec} {packed:?}");
        };
        let bad = |spec: &str, packed: Packed<'_>, why: &str| {
            let error = blocks(&[task(spec)], &[packed]).unwrap_err().to_string();
            assert!(error.contains(why), "{spec}: {error}");
        };
        let natural = Packed {
            min_exponent: 126,
            width: 2,
            codes: &[0b1001_0001, 0b01],
            negative: &[0b1],
            scales: &[],
        };
        good("natural", natural);
        bad("natural", Packed { min_exponent: 127, ..natural }, "exponent");
        bad("natural", Packed { min_exponent: -150, ..natural }, "exponent");
        bad("natural", Packed { width: 4, ..natural }, "length of the plane of codes");
        bad("natural", Packed { width: 9, codes: &[0; 6], ..natural }, "width");
        bad("natural", Packed { codes: &[0b1001_0001, 0b101], ..natural }, "padding of the plane of codes");
        bad("natural", Packed { negative: &[0b10], ..natural }, "sign of a zero");
        bad("natural", Packed { negative: &[0b10_0001], ..natural }, "padding of the plane of signs");
        bad("natural", Packed { negative: &[], ..natural }, "length of the plane of signs");
        bad("natural", Packed { scales: &[1.0], ..natural }, "number of scales");
        let levels = Packed { width: 3, codes: &[0b110_101, 0], scales: &[1.0; 3], ..Packed::default() };
        good("qsgd:bits=3,bucket=2", levels);
        bad("qsgd:bits=3,bucket=2", Packed { codes: &[0b111, 0], ..levels }, "levels");
        bad("qsgd:bits=3,bucket=2", Packed { scales: &[1.0, f32::NAN, 0.0], ..levels }, "scale");
        bad("qsgd:bits=3,bucket=2", Packed { scales: &[1.0, -1.0, 0.0], ..levels }, "scale");
        bad("qsgd:bits=3,bucket=2", Packed { negative: &[0], ..levels }, "length of the plane of signs");
        bad("qsgd:bits=4,bucket=2", levels, "width");
        let int8 = Packed { width: 8, codes: &[1, 255, 128, 7, 9], scales: &[0.5], ..Packed::default() };
        good("int8:group=5", int8);
        bad("int8:group=5", Packed { codes: &[0, 255, 128, 7, 9], ..int8 }, "below -127");
        let sign = Packed { width: 1, codes: &[0b1_1111], scales: &[0.5], ..Packed::default() };
        good("sign", sign);
        bad("sign", Packed { codes: &[0b11_1111], ..sign }, "padding");
        assert!(blocks(&[task("sign")], &[]).is_err());
        let tasks = |o: &[Outline], specs: &[&str], options: &Options| {
            let codecs: Vec<Codec> = specs.iter().map(|s| s.parse().unwrap()).collect();
            tasks(o, &codecs, options)
        };
        let options = Options::default();
        assert_eq!(tasks(&[outline], &["topk:k=3"], &options).unwrap(), []);
        assert!(tasks(&[outline, outline], &["sign"; 2], &options).is_err());
        assert!(tasks(&[outline], &["sign"], &options.clone().with_block_len(0)).is_err());
        assert!(tasks(&[Outline { dtype: Dtype::I32, ..outline }], &["sign"], &options).is_err());
    }
}
