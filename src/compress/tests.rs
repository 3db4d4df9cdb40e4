use std::time::Instant;

use super::codecs::{Int8, Sbc, natural};
use super::*;
use crate::block::{
    Affine, Block, CodedBlock, Constant, Floats, Groups, Levels, Planes, Positions, Pow2, Scope, Sign,
    Sparse, Stored, Support, Values, Zero,
};
use crate::error::{Error, InputErrorKind, Result};
use crate::random::word;
use crate::tensor::element::{decode_f32s, round_f32s};
use crate::tensor::{Dtype, TensorBuf};

/// Returns normally distributed numbers, the same in every run.
pub(super) fn normal(n: usize, tensor: u64) -> Vec<f32> {
    let uniform = |i: usize| (f64::from(word(9, tensor, i as u64)) + 0.5) / f64::from(u32::MAX);
    let draw = |i| (-2.0 * uniform(2 * i).ln()).sqrt() * (std::f64::consts::TAU * uniform(2 * i + 1)).cos();
    (0..n).map(|i| draw(i) as f32).collect()
}

pub(super) fn tensor(values: &[f32]) -> TensorBuf {
    TensorBuf::from_f32(vec![values.len() as u64], values).unwrap()
}

pub(super) fn as_type(dtype: Dtype, values: &[f32]) -> TensorBuf {
    let mut data = vec![0; dtype.bytes_for(values.len() as u64).unwrap() as usize];
    crate::tensor::element::encode_f32s(dtype, values, 0, &mut data).unwrap();
    TensorBuf::new(dtype, vec![values.len() as u64], data).unwrap()
}

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

pub(super) fn inputs(tensors: &[TensorBuf]) -> Vec<Input<'_>> {
    let number = |(i, t): (usize, &'static str)| (i as u64, t);
    NAMES
        .into_iter()
        .enumerate()
        .map(number)
        .zip(tensors)
        .map(|((tensor, name), t)| Input { tensor, name, view: t.view(), base: None })
        .collect()
}

pub(super) fn run(
    tensors: &[TensorBuf],
    spec: &str,
    feedback: Option<&mut Feedback>,
) -> Result<Vec<CodedBlock>> {
    let codecs = vec![spec.parse::<Codec>().unwrap(); tensors.len()];
    compress(&inputs(tensors), &codecs, &Options::default(), feedback)
}

/// Returns the float tensors that a receiver decodes from the blocks. Elements that no block sends are zero.
fn decode(blocks: &[CodedBlock], tensors: &[TensorBuf]) -> Vec<Vec<f32>> {
    let lens: Vec<usize> = tensors.iter().map(|t| t.view().elements() as usize).collect();
    let mut all: Vec<Vec<f32>> = lens.iter().map(|&n| vec![0.0; n]).collect();
    for block in blocks {
        let places: Vec<(usize, usize)> = match block.scope {
            Scope::Tensor(t) => (0..lens[t as usize]).map(|i| (t as usize, i)).collect(),
            Scope::Range { tensor, start, len } => {
                (start..start + len).map(|i| (tensor as usize, i as usize)).collect()
            }
            Scope::Tensors { first, count } => (first..first + count)
                .flat_map(|t| (0..lens[t as usize]).map(move |i| (t as usize, i)))
                .collect(),
        };
        let kept: Vec<(usize, usize)> = match &block.support {
            Support::All => places,
            Support::Sparse(Sparse { positions }) => positions.iter().map(|&p| places[p as usize]).collect(),
            other => panic!("{other:?}"),
        };
        let dtype = tensors.first().unwrap().dtype();
        let mut values = decode_values(&block.values, &kept, dtype);
        assert_eq!(values.len(), kept.len());
        round_f32s(dtype, &mut values).unwrap();
        for ((t, i), x) in kept.into_iter().zip(values) {
            all[t][i] = x;
        }
    }
    all
}

/// Returns the decoded values. Blocks whose groups are tensors begin at tensor 0 here.
fn decode_values(values: &Values, kept: &[(usize, usize)], dtype: Dtype) -> Vec<f32> {
    let m = kept.len();
    let group = |groups: &Groups, i: usize| match groups {
        Groups::Block => 0,
        Groups::Len(len) => i / *len as usize,
        Groups::Tensor => kept[i].0,
    };
    match values {
        Values::Floats(Floats { stored, bytes }) => {
            let dtype = match stored {
                Stored::Source => dtype,
                Stored::F32 => Dtype::F32,
                Stored::F16 => Dtype::F16,
                Stored::Bf16 => Dtype::Bf16,
            };
            let mut out = vec![0.0; m];
            decode_f32s(dtype, bytes, 0, &mut out).unwrap();
            assert_eq!(bytes.len() as u64, dtype.bytes_for(m as u64).unwrap());
            out
        }
        Values::Planes(Planes { bytes }) => {
            let mut out = vec![0.0; m];
            decode_f32s(dtype, bytes, 0, &mut out).unwrap();
            out
        }
        Values::Constant(Constant { groups, scales }) => {
            (0..m).map(|i| scales.get(group(groups, i))).collect()
        }
        Values::Sign(Sign { groups, scales, negative }) => {
            (0..m).map(|i| scales.get(group(groups, i)) * if negative.get(i) { -1.0 } else { 1.0 }).collect()
        }
        Values::Pow2(Pow2 { min_exponent, codes, negative, .. }) => {
            assert_eq!((codes.len(), negative.len()), (m, m as u64));
            let value =
                |c: u8| if c == 0 { 0.0 } else { 2f64.powi(i32::from(*min_exponent) + i32::from(c) - 1) };
            (0..m).map(|i| (value(codes[i]) * if negative.get(i) { -1.0 } else { 1.0 }) as f32).collect()
        }
        Values::Levels(Levels { max_level, groups, norms, levels, .. }) => {
            let norm = |i| f64::from(norms.get(group(groups, i)));
            let value = |(i, l): (usize, i32)| (norm(i) * f64::from(l) / f64::from(*max_level)) as f32;
            levels.iter().enumerate().map(value).collect()
        }
        Values::Affine(Affine { bits, groups, scales, zero: Zero::Centre, codes }) => {
            let scale = |i| f64::from(scales.get(group(groups, i)));
            let centre = 1 << (bits - 1);
            let value = |(i, &c): (usize, &u8)| (scale(i) * f64::from(i32::from(c) - centre)) as f32;
            codes.iter().enumerate().map(value).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn naive_top_k(values: &[f32], k: usize) -> Vec<u64> {
    let mut order: Vec<usize> = (0..values.len()).filter(|&i| values[i] != 0.0).collect();
    order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
    order.truncate(k);
    order.sort_unstable();
    order.into_iter().map(|i| i as u64).collect()
}

pub(super) fn positions(block: &Block) -> &[u64] {
    match &block.support {
        Support::Sparse(Sparse { positions }) => positions,
        other => panic!("{other:?}"),
    }
}

/// Returns data of several distributions, which reach every path through the selection.
fn distributions(n: usize) -> Vec<(&'static str, Vec<f32>)> {
    let x = normal(n, 1);
    vec![
        ("normal", x.clone()),
        ("ties", x.iter().map(|x| (x * 4.0).round() / 4.0).collect()),
        ("equal", vec![-1.5; n]),
        ("zeros", vec![0.0; n]),
        ("few", x.iter().enumerate().map(|(i, x)| if i % 5000 == 7 { *x } else { -0.0 }).collect()),
        ("positive", x.iter().map(|x| x.abs() + 1.0).collect()),
        ("negative", x.iter().map(|x| -x.abs() * 1e-40).collect()),
        ("peak", x.iter().enumerate().map(|(i, x)| if i / 3000 == 9 { x * 1e6 } else { x * 1e-6 }).collect()),
        ("ramp", (0..n).map(|i| i as f32).collect()),
    ]
}

#[test]
fn top_k_equals_a_sort() {
    for n in [0, 1, 2, 63, 64, 65, 1000, 70_001, 400_000] {
        for (name, values) in distributions(n) {
            for density in [0.0001, 0.01, 0.3, 1.0] {
                let blocks = run(&[tensor(&values)], &format!("topk:density={density}"), None).unwrap();
                let k = Amount::Density(density).of(n as u64);
                let expected = naive_top_k(&values, k as usize);
                assert_eq!(positions(&blocks[0]), expected, "{name} {n} {density}");
                let kept: Vec<f32> = expected.iter().map(|&p| values[p as usize]).collect();
                let bytes = kept.iter().flat_map(|x| x.to_le_bytes()).collect();
                assert_eq!(blocks[0].values, Values::Floats(Floats { stored: Stored::Source, bytes }));
            }
        }
    }
}

#[test]
fn both_sides_of_small_tensors_equal_a_sort() {
    for n in [0, 1, 300, 5000, 70_001] {
        for (name, values) in distributions(n) {
            for k in [1, 20, n as u64 / 100 + 1] {
                let sorted = |sign: f32| {
                    let of_side = |&i: &usize| sign * values[i] > 0.0;
                    let mut places: Vec<usize> = (0..n).filter(of_side).collect();
                    places.sort_by(|&a, &b| (sign * values[b]).total_cmp(&(sign * values[a])));
                    places.truncate(k as usize);
                    places.sort_unstable();
                    places.into_iter().map(|i| i as u64).collect::<Vec<u64>>()
                };
                let tensors = [tensor(&values)];
                let input = &inputs(&tensors)[0];
                let mut source = source::Source::new(input, true, &Options::default(), None).unwrap();
                let sides = select::both_sides(&mut source, k, &mut select::Scratch::default()).unwrap();
                assert_eq!(sides.map(|side| side.positions), [sorted(1.0), sorted(-1.0)], "{name} {n} {k}");
            }
        }
    }
}

#[test]
fn top_k_of_small_tensors_that_have_to_be_read_equals_a_sort() {
    for n in [300, 5000, source::CHUNK, source::CHUNK + 1] {
        let k = Amount::Density(0.01).of(n as u64) as usize;
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F64] {
            let tensors = [as_type(dtype, &normal(n, 2))];
            let mut read = vec![0.0; n];
            decode_f32s(dtype, tensors[0].view().data(), 0, &mut read).unwrap();
            let blocks = run(&tensors, "topk:density=0.01", None).unwrap();
            assert_eq!(positions(&blocks[0]), naive_top_k(&read, k), "{dtype:?} {n}");
        }
        // Two tensors use the same buffers, one after the other.
        let mut feedback = Feedback::new();
        let mut left = vec![vec![0.0; n], vec![0.0; n / 2]];
        for step in 0..3 {
            let gradients: Vec<_> =
                left.iter().zip(0..).map(|(l, t)| normal(l.len(), 10 * step + t)).collect();
            let tensors: Vec<_> = gradients.iter().map(|g| tensor(g)).collect();
            let blocks = run(&tensors, "topk:density=0.01", Some(&mut feedback)).unwrap();
            let mut expected = Vec::new();
            for (left, (gradient, start)) in left.iter_mut().zip(gradients.iter().zip([0, n as u64])) {
                left.iter_mut().zip(gradient).for_each(|(l, g)| *l += g);
                let kept = naive_top_k(left, Amount::Density(0.01).of(left.len() as u64) as usize);
                kept.iter().for_each(|&p| left[p as usize] = 0.0);
                expected.extend(kept.iter().map(|p| start + p));
            }
            assert_eq!(positions(&blocks[0]), expected, "{n} {step}");
        }
        for (name, left) in ["a", "b"].into_iter().zip(&left) {
            assert_eq!(feedback.get(name), Some(left.as_slice()), "{n}");
        }
    }
}

#[test]
fn global_top_k_equals_a_sort_of_everything() {
    let parts: Vec<Vec<f32>> = [70_000, 0, 5, 40_000, 1]
        .into_iter()
        .zip(0..)
        .map(|(n, t)| normal(n, t).iter().map(|x| (x * 50.0).round() * (t + 1) as f32).collect())
        .collect();
    let tensors: Vec<TensorBuf> = parts.iter().map(|p| tensor(p)).collect();
    let blocks = run(&tensors, "topk:k=900,scope=global", None).unwrap();
    assert_eq!((blocks.len(), blocks[0].scope), (1, Scope::Tensors { first: 0, count: 5 }));
    assert_eq!(positions(&blocks[0]), naive_top_k(&parts.concat(), 900));

    // Another codec in between divides the same choice into two blocks.
    let global: Codec = "topk:k=900,scope=global".parse().unwrap();
    let codecs = [global, global, Codec::Raw, global, global];
    let blocks = compress(&inputs(&tensors), &codecs, &Options::default(), None).unwrap();
    let scopes: Vec<Scope> = blocks.iter().map(|b| b.scope).collect();
    let expected =
        [Scope::Tensors { first: 0, count: 2 }, Scope::Tensor(2), Scope::Tensors { first: 3, count: 2 }];
    assert_eq!(scopes, expected);
    let rest = [parts[0].clone(), parts[3].clone(), parts[4].clone()].concat();
    let both: Vec<u64> = positions(&blocks[0])
        .iter()
        .copied()
        .chain(positions(&blocks[2]).iter().map(|p| p + 70_000))
        .collect();
    assert_eq!(both, naive_top_k(&rest, 900));
}

#[test]
fn threshold_keeps_what_reaches_it() {
    let values = [0.5, -0.1, 0.1, f32::from_bits(0.1f32.to_bits() - 1), -3.0, 0.0];
    let blocks = run(&[tensor(&values), tensor(&values)], "threshold:at=0.1", None).unwrap();
    assert_eq!(positions(&blocks[0]), [0, 1, 2, 4, 6, 7, 8, 10]);
}

#[test]
fn sbc_keeps_one_side_and_its_mean() {
    for n in [1, 70, 70_000, 400_000] {
        for (name, values) in distributions(n) {
            for density in [0.001, 0.1] {
                let blocks = run(&[tensor(&values)], &format!("sbc:density={density}"), None).unwrap();
                let k = Amount::Density(density).of(n as u64) as usize;
                let side = |sign: f32| {
                    let side: Vec<f32> = values.iter().map(|x| (x * sign).max(0.0)).collect();
                    let kept = naive_top_k(&side, k);
                    let sum: f64 = kept.iter().map(|&p| f64::from(side[p as usize])).sum();
                    let mean = if kept.is_empty() { 0.0 } else { (sum / kept.len() as f64) as f32 * sign };
                    (kept, sum, mean)
                };
                let (plus, minus) = (side(1.0), side(-1.0));
                let (kept, _, mean) = if plus.1 >= minus.1 { plus } else { minus };
                assert_eq!(positions(&blocks[0]), kept, "{name} {n} {density}");
                let Values::Constant(Constant { groups: Groups::Block, scales }) = &blocks[0].values else {
                    panic!()
                };
                assert_eq!((scales.len(), scales.get(0)), (1, mean), "{name} {n} {density}");
            }
        }
    }
    let tensors = [tensor(&[1.0, -4.0, 2.0]), tensor(&[]), tensor(&[0.0, -0.0]), tensor(&[3.0])];
    let blocks = run(&tensors, "sbc:k=1", None).unwrap();
    assert_eq!((blocks.len(), positions(&blocks[0])), (1, &[1, 5][..]));
    let Values::Constant(Constant { groups: Groups::Tensor, scales }) = &blocks[0].values else { panic!() };
    assert_eq!((0..4).map(|i| scales.get(i)).collect::<Vec<_>>(), [-4.0, 0.0, 0.0, 3.0]);
}

/// Compresses a tensor of `n` copies of `x` with natural compression, and returns the decoded values.
fn natural_of(x: f32, n: usize) -> Vec<f32> {
    let tensors = [tensor(&vec![x; n])];
    decode(&run(&tensors, "natural:seed=5", None).unwrap(), &tensors).remove(0)
}

#[test]
fn natural_is_unbiased_and_takes_a_neighbour() {
    for x in [4.0f32 / 3.0, 1.0001, -1.9, 3e-39, -5e-45, 1.7e38, 1e-10] {
        let n = 100_000;
        let drawn = natural_of(x, n);
        let below = 2f64.powf(f64::from(x.abs()).log2().floor());
        assert!(
            drawn.iter().all(|&y| [below, 2.0 * below].contains(&f64::from(y.abs())) && y * x.signum() > 0.0)
        );
        let (mean, square) = drawn.iter().fold((0.0, 0.0), |(m, s), &y| {
            let y = f64::from(y) / f64::from(x);
            (m + y / n as f64, s + y * y / n as f64)
        });
        let p = (f64::from(x.abs()) - below) / below;
        let sigma = below * (p * (1.0 - p)).sqrt() / (n as f64).sqrt() / f64::from(x.abs());
        assert!((mean - 1.0).abs() <= 5.0 * sigma + 1e-9, "{x}: mean {mean}, sigma {sigma}");
        assert!(square <= 1.125 + 0.01, "{x}: second moment {square}");
    }
}

#[test]
fn natural_of_special_values() {
    for x in [1.0, -2.0, 0.0, f32::MIN_POSITIVE, 1e-45, 2f32.powi(127), -2f32.powi(-130)] {
        assert!(natural_of(x, 100).iter().all(|y| y.to_bits() == x.to_bits()), "{x}");
    }
    assert!(natural_of(-0.0, 100).iter().all(|y| y.to_bits() == 0), "zero has no sign");
    assert!(natural_of(f32::MAX, 1000).iter().all(|&y| y == 2f32.powi(127)));
    for (at, bad) in [(0, f32::NAN), (70_000, f32::INFINITY), (70_001, -f32::NAN)] {
        let mut values = normal(70_002, 3);
        values[at] = bad;
        for spec in [
            "natural",
            "topk",
            "topk:density=1",
            "sbc",
            "threshold",
            "qsgd",
            "int8",
            "topk:scope=global",
            "sidco",
        ] {
            let tensors = [tensor(&[1.0]), tensor(&values)];
            let Error::Input(e) = run(&tensors, spec, None).unwrap_err() else { panic!() };
            assert_eq!(e.kind, InputErrorKind::NonFinite { index: at as u64 }, "{spec}");
            assert_eq!(e.tensor, Some(1), "{spec}");
            let codecs = [spec.parse::<Codec>().unwrap(); 2];
            let options = Options::default().with_non_finite(NonFinite::Zero);
            let blocks = compress(&inputs(&tensors), &codecs, &options, None).unwrap();
            assert_eq!(decode(&blocks, &tensors)[1][at], 0.0, "{spec}");
        }
    }
}

#[test]
fn natural_of_exponents_that_do_not_fit_one_block() {
    // The largest exponent 127 leaves room down to 2^-127. 2^-128 becomes 2^-127 or zero, each half of the
    // time.
    let mut values = vec![2f32.powi(-128); 20_001];
    values[0] = 2f32.powi(127);
    let tensors = [tensor(&values)];
    let blocks = run(&tensors, "natural", None).unwrap();
    let Values::Pow2(Pow2 { min_exponent: -127, codes, .. }) = &blocks[0].values else { panic!() };
    let ups = codes[1..].iter().filter(|&&c| c == 1).count();
    assert!(codes[1..].iter().all(|&c| c <= 1) && ups.abs_diff(10_000) < 354, "{ups}");
    // The largest power of two in f16 is 2^15.
    let tensors = [as_type(Dtype::F16, &[65504.0; 50])];
    let blocks = run(&tensors, "natural", None).unwrap();
    assert_eq!(decode(&blocks, &tensors)[0], vec![32768.0; 50]);
}

#[test]
fn words_belong_to_their_elements() {
    let values = normal(10_000, 4);
    let tensors = [tensor(&values)];
    let whole = decode(&run(&tensors, "natural", None).unwrap(), &tensors);
    for (i, x) in whole[0].iter().enumerate() {
        let exponent = natural::round(values[i].to_bits(), word(1, 0, i as u64), 127);
        assert_eq!(x.abs(), 2f32.powi(i32::from(exponent)));
    }
    let codecs = ["natural".parse().unwrap()];
    let options = Options::default().with_block_len(999);
    let pieces = compress(&inputs(&tensors), &codecs, &options, None).unwrap();
    assert_eq!(pieces.len(), 11);
    assert_eq!(decode(&pieces, &tensors), whole);
    // Kept elements are rounded in the same way as those of a dense block.
    let sparse = decode(&run(&tensors, "topk:density=1,values=pow2", None).unwrap(), &tensors);
    assert_eq!(sparse, whole);
    // Small neighbours share a block, and each keeps its words.
    let small: Vec<TensorBuf> = (0..3).map(|i| tensor(&values[i * 100..][..100])).collect();
    let merged = run(&small, "natural", None).unwrap();
    assert_eq!(merged[0].scope, Scope::Tensors { first: 0, count: 3 });
    assert_eq!(decode(&merged, &small)[0], whole[0][..100]);
}

/// Small neighbours share a block if groups of elements do not span two of them, and each gets the elements
/// that it has in an update of its own.
#[test]
fn small_neighbours_share_a_block_and_keep_their_values() {
    let whole = |first, count| match count {
        1 => Scope::Tensor(first),
        _ => Scope::Tensors { first, count },
    };
    let quantizers = ["qsgd:bits=4,bucket=200", "qsgd:bits=12,bucket=200", "dither:bucket=200"];
    let quantizers = quantizers.into_iter().chain(["terngrad:bucket=200", "int8:group=200"]);
    let quantizers: Vec<&str> = quantizers.collect();
    let all = ["natural", "lossless", "raw"];
    for (lens, of_groups, of_all) in [
        // Each but the last ends with a group.
        (vec![400, 1000, 0, 301], vec![(0, 4)], vec![(0, 4)]),
        // None is longer than a group.
        (vec![200, 7, 0, 0, 130, 200], vec![(0, 6)], vec![(0, 6)]),
        (vec![0, 150], vec![(0, 2)], vec![(0, 2)]),
        // Neither; then again.
        (vec![301, 400, 200, 199, 3, 600], vec![(0, 1), (1, 3), (4, 1), (5, 1)], vec![(0, 6)]),
        (vec![7, 400, 5], vec![(0, 1), (1, 2)], vec![(0, 3)]),
        // Too large alone, or together.
        (vec![200, 1 << 14, 200, 200], vec![(0, 1), (1, 1), (2, 2)], vec![(0, 1), (1, 1), (2, 2)]),
        (vec![16_200; 8], vec![(0, 8)], vec![(0, 8)]),
        (vec![16_383; 8], (0..8).map(|i| (i, 1)).collect(), vec![(0, 8)]),
        // Of several thousand elements, only those of the same length.
        (
            vec![200, 4000, 4200, 4200, 200, 4400],
            vec![(0, 2), (2, 2), (4, 1), (5, 1)],
            vec![(0, 2), (2, 2), (4, 1), (5, 1)],
        ),
    ] {
        let tensors: Vec<TensorBuf> = lens.iter().zip(0..).map(|(&len, t)| tensor(&normal(len, t))).collect();
        for (specs, expected) in [(&quantizers[..], of_groups), (&all[..], of_all)] {
            for spec in specs {
                let mut feedback = Feedback::new();
                let blocks = run(&tensors, spec, Some(&mut feedback)).unwrap();
                let scopes: Vec<Scope> = blocks.iter().map(|block| block.scope).collect();
                let expected: Vec<Scope> =
                    expected.iter().map(|&(first, count)| whole(first, count)).collect();
                assert_eq!(scopes, expected, "{spec} {lens:?}");
                let decoded = decode(&blocks, &tensors);
                for (i, input) in inputs(&tensors).iter().enumerate() {
                    let mut own = Feedback::new();
                    let codecs = [spec.parse().unwrap()];
                    let alone =
                        compress(std::slice::from_ref(input), &codecs, &Options::default(), Some(&mut own));
                    assert_eq!(decoded[i], decode(&alone.unwrap(), &tensors)[i], "{spec} {lens:?} {i}");
                    assert_eq!(feedback.get(NAMES[i]), own.get(NAMES[i]), "{spec} {lens:?} {i}");
                }
            }
        }
    }
}

#[test]
fn qsgd_is_unbiased() {
    let bucket = [0.3f32, -1.0, 0.001, 2.5];
    let n = 25_000;
    let tensors = [tensor(&bucket.repeat(n))];
    for spec in ["qsgd:bits=3,bucket=4", "qsgd:bits=2,bucket=4,norm=max"] {
        let decoded = decode(&run(&tensors, spec, None).unwrap(), &tensors).remove(0);
        for (i, &x) in bucket.iter().enumerate() {
            let drawn: Vec<f64> = decoded.iter().skip(i).step_by(4).map(|&y| f64::from(y)).collect();
            let mean = drawn.iter().sum::<f64>() / n as f64;
            let sigma = (drawn.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / n as f64 / n as f64).sqrt();
            assert!((mean - f64::from(x)).abs() <= 5.0 * sigma + 1e-6, "{spec} {x}: {mean}, sigma {sigma}");
        }
    }
    let zeros = [tensor(&[0.0; 9])];
    let blocks = run(&zeros, "qsgd:bucket=4", None).unwrap();
    let Values::Levels(Levels { norms, levels, .. }) = &blocks[0].values else { panic!() };
    assert_eq!((norms.len(), norms.get(2), levels), (3, 0.0, &vec![0; 9].into()));
}

#[test]
fn int8_is_within_half_a_step() {
    let mut values = normal(1000, 5);
    values.extend([0.0; 300]);
    values.extend([f32::MAX, -f32::MAX, 1e-45, 60.0 * 1e-45]);
    let tensors = [tensor(&values)];
    let blocks = run(&tensors, "int8:group=100", None).unwrap();
    let Values::Affine(Affine { scales, codes, .. }) = &blocks[0].values else { panic!() };
    assert!(codes.iter().all(|&c| c >= 1));
    for (i, y) in decode(&blocks, &tensors)[0].iter().enumerate() {
        let error = (f64::from(values[i]) - f64::from(*y)).abs();
        assert!(y.is_finite() && error <= f64::from(scales.get(i / 100)) * 0.50001, "{i}");
    }
}

#[test]
fn residual_and_what_was_sent_make_the_sum() {
    let specs = [
        "topk:density=0.02",
        "topk:density=0.02,values=f16,scope=global",
        "topk:density=0.05,values=bf16",
        "topk:density=0.05,values=pow2",
        "topk:density=0.05,values=sign",
        "topk:density=0.05,values=q4",
        "threshold:at=0.5",
        "sbc:density=0.01",
        "sidco:density=0.01,values=bf16",
        "sidco:density=0.01,stages=authors",
        "natural",
        "qsgd:bits=4,bucket=64",
        "int8:group=64",
    ];
    let values = [normal(3000, 6), normal(100_000, 7), vec![], vec![1e-40; 10]];
    for (spec, dtype) in specs.iter().flat_map(|s| [Dtype::F32, Dtype::Bf16, Dtype::F64].map(|d| (s, d))) {
        let tensors: Vec<TensorBuf> = values.iter().map(|v| as_type(dtype, v)).collect();
        let mut feedback = Feedback::new();
        for round in 0..3 {
            let before = feedback.clone();
            let blocks = run(&tensors, spec, Some(&mut feedback)).unwrap();
            let decoded = decode(&blocks, &tensors);
            for ((t, decoded), name) in tensors.iter().zip(decoded).zip(NAMES) {
                let mut sum = vec![0.0; decoded.len()];
                decode_f32s(dtype, t.data(), 0, &mut sum).unwrap();
                if let Some(residual) = before.get(name) {
                    sum.iter_mut().zip(residual).for_each(|(x, r)| *x += r);
                }
                let after: Vec<f32> = sum.iter().zip(&decoded).map(|(x, d)| x - d).collect();
                assert_eq!(feedback.get(name), Some(after.as_slice()), "{spec} {dtype} round {round}");
            }
        }
    }
}

#[test]
fn a_failure_leaves_the_residuals() {
    let mut feedback = Feedback::new();
    let good = [tensor(&normal(100, 8)), tensor(&normal(100, 9))];
    run(&good, "topk", Some(&mut feedback)).unwrap();
    let before = feedback.clone();
    let bad = [tensor(&normal(100, 8)), tensor(&[f32::NAN; 100])];
    assert!(run(&bad, "topk", Some(&mut feedback)).is_err());
    let other_shape = [tensor(&normal(100, 8)), tensor(&normal(101, 9))];
    let Error::Input(e) = run(&other_shape, "natural", Some(&mut feedback)).unwrap_err() else { panic!() };
    assert_eq!(
        (e.kind, e.tensor),
        (InputErrorKind::Mismatch { what: "shapes of tensor and residual" }, Some(1))
    );
    assert_eq!(feedback, before);
    run(&good, "raw", Some(&mut feedback)).unwrap();
    assert_eq!(feedback, before);
}

#[test]
fn lossless_blocks_hold_the_elements() {
    let tensors = [tensor(&normal(10, 1)), tensor(&[]), tensor(&normal(5000, 2)), tensor(&normal(20, 3))];
    for spec in ["raw", "lossless"] {
        let codecs = [spec.parse::<Codec>().unwrap(); 4];
        let options = Options::default().with_block_len(4500);
        let blocks = compress(&inputs(&tensors), &codecs, &options, None).unwrap();
        let scopes: Vec<Scope> = blocks.iter().map(|b| b.scope).collect();
        let expected = [
            Scope::Tensors { first: 0, count: 2 },
            Scope::Range { tensor: 2, start: 0, len: 4500 },
            Scope::Range { tensor: 2, start: 4500, len: 500 },
            Scope::Tensor(3),
        ];
        assert_eq!(scopes, expected);
        for (got, t) in decode(&blocks, &tensors).iter().zip(&tensors) {
            assert_eq!(tensor(got).data(), t.data());
        }
    }
    let nibbles = [as_type(Dtype::F4E2M1, &[1.0, 2.0, 3.0]), as_type(Dtype::F4E2M1, &[-6.0, 0.5])];
    let blocks = run(&nibbles, "raw", None).unwrap();
    assert_eq!(
        blocks[0].values,
        Values::Floats(Floats { stored: Stored::Source, bytes: vec![0x42, 0xf5, 0x01] })
    );
    assert_eq!(decode(&blocks, &nibbles), [vec![1.0, 2.0, 3.0], vec![-6.0, 0.5]]);
}

const EVERY: [&str; 16] = [
    "raw",
    "lossless",
    "lossless:effort=fast",
    "topk:density=0.01,values=sign",
    "topk:density=0.01,values=pow2,scope=global",
    "topk:density=0.1,values=q4",
    "threshold:at=2",
    "sbc:density=0.01",
    "sidco:density=0.01",
    "sidco:density=0.01,fit=gamma-gp,stages=authors,values=bf16",
    "sidco:density=0.01,fit=exp,stages=2,values=sign",
    "natural",
    "qsgd",
    "qsgd:norm=max",
    "int8",
    "int8:group=2",
];

#[test]
fn tensors_of_nothing_and_of_zeros() {
    let scalar = TensorBuf::from_f32(vec![], &[2.5]).unwrap();
    let empty = TensorBuf::from_f32(vec![3, 0], &[]).unwrap();
    for spec in EVERY {
        for tensors in
            [vec![empty.clone()], vec![empty.clone(), scalar.clone()], vec![tensor(&[0.0; 40_000])]]
        {
            let blocks = run(&tensors, spec, None).unwrap();
            let zero = tensors[0].view().elements() > 0;
            let decoded = decode(&blocks, &tensors);
            assert!(
                decoded.iter().zip(&tensors).all(|(d, t)| d.len() as u64 == t.view().elements()),
                "{spec}"
            );
            assert!(!zero || decoded.iter().flatten().all(|&x| x == 0.0), "{spec}");
        }
        assert_eq!(compress(&[], &[], &Options::default(), None).unwrap(), []);
    }
}

#[test]
fn lossy_codecs_take_floats_only() {
    let tensors = [tensor(&[1.0]), TensorBuf::new(Dtype::I32, vec![1], vec![0; 4]).unwrap()];
    for spec in EVERY {
        match run(&tensors, spec, None) {
            Ok(_) => assert!(!spec.parse::<Codec>().unwrap().is_lossy(), "{spec}"),
            Err(Error::Input(e)) => {
                assert_eq!(
                    (e.tensor, e.kind),
                    (Some(1), InputErrorKind::WrongDtype { what: "a lossy codec" })
                );
            }
            Err(e) => panic!("{e}"),
        }
    }
    let bad = [
        Codec::Int8(Int8 { group: 1 }),
        Codec::Sbc(Sbc { amount: Amount::Count(0), positions: Positions::Auto }),
    ];
    for codec in bad {
        assert!(compress(&inputs(&tensors[..1]), &[codec], &Options::default(), None).is_err());
    }
}

#[test]
fn blocks_do_not_depend_on_the_number_of_threads() {
    let tensors =
        [tensor(&normal(600_001, 1)), as_type(Dtype::F32, &normal(7, 2)), tensor(&normal(300_000, 3))];
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (one, four) = (pool(1), pool(4));
    for spec in EVERY {
        let with = |pool: &rayon::ThreadPool| {
            let mut feedback = Feedback::new();
            let blocks = pool.install(|| run(&tensors, spec, Some(&mut feedback)).unwrap());
            (blocks, feedback)
        };
        assert_eq!(with(&one), with(&four), "{spec}");
    }
}

/// `RAYON_NUM_THREADS=1 cargo test --release -- --ignored --nocapture bench_`
#[test]
#[ignore = "a measurement"]
fn bench_bandwidth_of_the_front_end() {
    let n = 64 << 20;
    let mut words = vec![0u32; n];
    crate::random::words(1, 1, 0, &mut words);
    // Sums of four uniform numbers are roughly normal and cheap.
    let sum = |w: u32| (0..4).map(|i| (w >> (8 * i) & 0xff) as f32 - 127.5).sum::<f32>();
    let fine = |w: u32| (sum(w) + (w.wrapping_mul(0x9e37_79b9) >> 8) as f32 / 16_777_216.0) * 1e-4;
    let values: Vec<f32> = words.iter().map(|&w| fine(w)).collect();
    let tensors = [tensor(&values)];
    let best = |what: &str, run: &mut dyn FnMut()| {
        let seconds = (0..5).map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        });
        let rate = 4.0 * n as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9;
        println!("{what:32} {rate:7.2} GB/s");
        rate
    };
    let read = best("sum of an f32 array", &mut || {
        let sums = values.as_chunks::<64>().0.iter().fold([0f32; 64], |mut sums, x| {
            sums.iter_mut().zip(x).for_each(|(s, x)| *s += x);
            sums
        });
        std::hint::black_box(sums);
    });
    best("Philox words", &mut || crate::random::words(1, 2, 0, std::hint::black_box(&mut words)));
    for spec in ["topk:density=0.001", "topk:density=0.01", "sbc:density=0.001", "natural", "qsgd", "int8"] {
        let rate = best(spec, &mut || {
            std::hint::black_box(run(&tensors, spec, None).unwrap());
        });
        println!("{:32} {:7.3} of the read bandwidth", "", rate / read);
    }
}
