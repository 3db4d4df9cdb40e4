//! Blocks of the elements that a selector kept.

use std::borrow::Cow;

use super::{natural, quantize};
use crate::arch::pages;
use crate::block::{
    Affine, Bits, Block, Floats, Groups, Pow2, ScaleFormat, Scales, Scope, Sign, Sparse, Stored, Support,
    Underflow, Values, Zero,
};
use crate::compress::extents::whole;
use crate::compress::options::Outline;
use crate::compress::select::Chosen;
use crate::compress::settings::Kept;
use crate::compress::source::Source;
use crate::error::Result;
use crate::random;
use crate::tensor::Dtype;
use crate::tensor::element::{decode_f32s, encode_f32s, max_finite};

/// Number of kept elements that share a scale with [`Kept::Q4`].
const Q4_GROUP: u64 = 256;

/// Returns the one block of a run of tensors. `chosen` has the kept elements of each tensor.
pub(in crate::compress) fn blocks(
    tensors: &mut [Source<'_>],
    chosen: Vec<Chosen>,
    kept: Kept,
    seed: u64,
) -> Result<Vec<Block>> {
    let outlines = outlines(tensors);
    let (values, decoded) = values(&outlines, &chosen, kept, seed)?;
    let mut decoded = &*decoded;
    for (tensor, chosen) in tensors.iter_mut().zip(&chosen) {
        let (mine, rest) = decoded.split_at(chosen.positions.len());
        tensor.subtract(&chosen.positions, mine)?;
        decoded = rest;
    }
    let (scope, support) = match <[Chosen; 1]>::try_from(chosen) {
        Ok([Chosen { positions, .. }]) => {
            (whole(outlines[0].tensor, 1), Support::Sparse(Sparse { positions }))
        }
        Err(several) => join(&outlines, &several),
    };
    Ok(vec![Block { scope, add: false, support, values }])
}

/// Returns the values of the kept elements of a run of tensors, and the floats that a receiver decodes. Both
/// are in the order of the tensors.
pub(in crate::compress) fn values<'a>(
    tensors: &[Outline],
    chosen: &'a [Chosen],
    kept: Kept,
    seed: u64,
) -> Result<(Values, Cow<'a, [f32]>)> {
    let joint: Cow<'a, [f32]> = match chosen {
        [one] => one.values.as_slice().into(),
        several => several.iter().flat_map(|c| &c.values).copied().collect(),
    };
    let (values, decoded) = match kept {
        Kept::F32 | Kept::F16 | Kept::Bf16 => match floats(tensors[0].dtype, kept, &joint)? {
            (values, Some(decoded)) => (values, decoded),
            (values, None) => return Ok((values, joint)),
        },
        Kept::Pow2 => {
            let words = |stream: u64| {
                let of_tensor = tensors.iter().zip(chosen).flat_map(move |(tensor, chosen)| {
                    chosen.positions.iter().map(move |&i| random::word(seed, tensor.tensor | stream, i))
                });
                of_tensor.collect::<Vec<u32>>()
            };
            let (first, top) = (words(0), natural::top(tensors[0].dtype));
            let exponents: Vec<i16> =
                joint.iter().zip(first).map(|(x, word)| natural::round(x.to_bits(), word, top)).collect();
            let (min_exponent, codes) = natural::codes(&exponents, || words(natural::SECOND_STREAM));
            let signed = |(&code, x): (&u8, &f32)| match code {
                0 => 0.0,
                code => natural::value(min_exponent, code).copysign(*x),
            };
            let decoded: Vec<f32> = codes.iter().zip(joint.iter()).map(signed).collect();
            let negative = decoded.iter().map(|x| x.is_sign_negative()).collect();
            (Values::Pow2(Pow2 { min_exponent, underflow: Underflow::Unbiased, codes, negative }), decoded)
        }
        Kept::Sign => signs(chosen),
        Kept::Q4 => {
            let (scales, codes) = quantize::affine(&joint, 4, Q4_GROUP);
            let decoded = quantize::affine_values(&scales, &codes, 4, Q4_GROUP);
            let scales = Scales::from_f32s(ScaleFormat::F32, &scales);
            let groups = Groups::Len(Q4_GROUP);
            (Values::Affine(Affine { bits: 4, groups, scales, zero: Zero::Centre, codes }), decoded)
        }
    };
    Ok((values, decoded.into()))
}

/// Returns the number, type and length of each tensor of a run.
pub(in crate::compress) fn outlines(tensors: &[Source<'_>]) -> Vec<Outline> {
    let outline = |t: &Source<'_>| Outline { tensor: t.tensor, dtype: t.dtype, len: t.len as u64 };
    tensors.iter().map(outline).collect()
}

/// Returns the scope of a run of tensors, and the kept positions in their joint index space.
pub(in crate::compress) fn join(tensors: &[Outline], chosen: &[Chosen]) -> (Scope, Support) {
    let mut positions = Vec::with_capacity(chosen.iter().map(|c| c.positions.len()).sum());
    let mut start = 0;
    for (tensor, chosen) in tensors.iter().zip(chosen) {
        positions.extend(chosen.positions.iter().map(|p| start + p));
        start += tensor.len;
    }
    (whole(tensors[0].tensor, tensors.len()), Support::Sparse(Sparse { positions }))
}

/// Returns the groups of values that share a scale if each tensor has its own scale.
pub(in crate::compress) fn tensor_groups(tensors: usize) -> Groups {
    if tensors == 1 { Groups::Block } else { Groups::Tensor }
}

/// Returns the values as they are stored, and the floats that the receiver decodes, unless they are `values`.
pub(in crate::compress) fn floats(
    dtype: Dtype,
    kept: Kept,
    values: &[f32],
) -> Result<(Values, Option<Vec<f32>>)> {
    // The tensor's own type is used if it is no wider than the requested one. The receiver rounds to it
    // anyway.
    let (stored, as_type) = match (kept, dtype) {
        (Kept::F32, Dtype::F64) => (Stored::F32, Dtype::F32),
        (Kept::F16, Dtype::F64 | Dtype::F32 | Dtype::Bf16) => (Stored::F16, Dtype::F16),
        (Kept::Bf16, Dtype::F64 | Dtype::F32 | Dtype::F16) => (Stored::Bf16, Dtype::Bf16),
        _ => (Stored::Source, dtype),
    };
    let mut bytes = pages::zeros(as_type.bytes_for(values.len() as u64).unwrap_or(0) as usize);
    let max = max_finite(as_type);
    let same = as_type == Dtype::F32 && values.iter().fold(true, |all, x| all & (x.abs() <= max));
    let mut decoded = None;
    if same {
        encode_f32s(as_type, values, 0, &mut bytes)?;
    } else {
        let decoded = decoded.insert(pages::with_room(values.len()));
        decoded.extend(values.iter().map(|x| x.clamp(-max, max)));
        encode_f32s(as_type, decoded, 0, &mut bytes)?;
        decode_f32s(as_type, &bytes, 0, decoded)?;
    }
    Ok((Values::Floats(Floats { stored, bytes }), decoded))
}

fn signs(chosen: &[Chosen]) -> (Values, Vec<f32>) {
    let scales: Vec<f32> = chosen.iter().map(|c| mean_magnitude(&c.values)).collect();
    let decoded =
        chosen.iter().zip(&scales).flat_map(|(c, s)| c.values.iter().map(|x| s.copysign(*x))).collect();
    let negative: Bits = chosen.iter().flat_map(|c| &c.values).map(|x| x.is_sign_negative()).collect();
    let scales = Scales::from_f32s(ScaleFormat::F32, &scales);
    (Values::Sign(Sign { groups: tensor_groups(chosen.len()), scales, negative }), decoded)
}

/// Returns the mean magnitude, summed in the order of the values. The mean of no values is 0.
pub(in crate::compress) fn mean_magnitude(values: &[f32]) -> f32 {
    mean(values.iter().map(|x| f64::from(x.abs())).sum(), values.len() as u64)
}

/// Returns the mean of `count` values with this sum. The mean of no values is 0.
pub(in crate::compress) fn mean(sum: f64, count: u64) -> f32 {
    if count == 0 { 0.0 } else { (sum / count as f64) as f32 }
}
