//! Checks of the compressors' papers, from tensors through an encoded stream to tensors.

use std::sync::Arc;

use gcodec::block::{Chunked, CodedBlock, Sparse};
use gcodec::compress::random::word;
use gcodec::compress::senders::{Dgc, DgcOptions};
use gcodec::compress::{Feedback, Input, Options, compress};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::element::{decode_f32s, encode_f32s};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, Dtype, TensorBuf};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn tensor(values: &[f32]) -> TensorBuf {
    TensorBuf::from_f32(vec![values.len() as u64], values).unwrap()
}

/// Normally distributed numbers, the same in every run.
fn normal(n: usize, tensor: u64) -> Vec<f32> {
    let uniform = |i: usize| (f64::from(word(9, tensor, i as u64)) + 0.5) / f64::from(u32::MAX);
    let draw = |i| (-2.0 * uniform(2 * i).ln()).sqrt() * (std::f64::consts::TAU * uniform(2 * i + 1)).cos();
    (0..n).map(|i| draw(i) as f32).collect()
}

/// Encodes the tensors as one update. Returns its blocks, the decoded tensors and the stream's length in
/// bytes.
fn send(
    tensors: &[TensorBuf],
    codec: &Codec,
    feedback: Option<&mut Feedback>,
) -> (Vec<CodedBlock>, Vec<Vec<f32>>, usize) {
    let named = || NAMES.iter().zip(tensors);
    let inputs: Vec<Input<'_>> = named()
        .enumerate()
        .map(|(i, (name, t))| Input { tensor: i as u64, name, view: t.view(), base: None })
        .collect();
    let codecs = vec![*codec; tensors.len()];
    let blocks = compress(&inputs, &codecs, &Options::default(), feedback).unwrap();
    let infos = named().map(|(name, t)| TensorInfo::new(*name, t.dtype(), t.shape())).collect();
    let manifest = Arc::new(Manifest::new(infos).unwrap());
    let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, &blocks).unwrap();
    encoder.finish(&mut bytes);
    let decoded = gcodec::decode(&bytes).unwrap();
    let decoded = decoded.iter().map(|(_, t)| floats(t)).collect();
    (blocks, decoded, bytes.len())
}

fn floats(tensor: &TensorBuf) -> Vec<f32> {
    let mut out = vec![0.0; tensor.view().elements() as usize];
    decode_f32s(tensor.dtype(), tensor.data(), 0, &mut out).unwrap();
    out
}

fn decoded(values: &[f32], spec: &str) -> Vec<f32> {
    send(&[tensor(values)], &spec.parse().unwrap(), None).1.remove(0)
}

/// Checks that residual + decoded tensor = residual before + tensor. The arithmetic is 32-bit, over three
/// steps of several tensors.
fn feeds_back(spec: &str) {
    let values = [normal(3000, 6), normal(100_000, 7), vec![], vec![1e-40; 10]];
    feeds_back_of(spec, values.each_ref().map(|v| tensor(v)));
    feeds_back_of(spec, values.each_ref().map(|v| bf16(v)));
}

fn bf16(values: &[f32]) -> TensorBuf {
    let mut data = vec![0; 2 * values.len()];
    encode_f32s(Dtype::Bf16, values, 0, &mut data).unwrap();
    TensorBuf::new(Dtype::Bf16, vec![values.len() as u64], data).unwrap()
}

fn feeds_back_of(spec: &str, tensors: [TensorBuf; 4]) {
    let (codec, mut feedback) = (spec.parse().unwrap(), Feedback::new());
    for step in 0..3 {
        let before = feedback.clone();
        let (_, arrived, _) = send(&tensors, &codec, Some(&mut feedback));
        for ((t, arrived), name) in tensors.iter().zip(arrived).zip(NAMES) {
            let zeros = vec![0.0; arrived.len()];
            let residual = before.get(name).unwrap_or(&zeros);
            let sums = floats(t).into_iter().zip(residual).map(|(x, r)| x + r);
            let after: Vec<f32> = sums.zip(&arrived).map(|(x, d)| x - d).collect();
            assert_eq!(feedback.get(name), Some(after.as_slice()), "{spec} step {step}");
        }
        let resumed = Feedback::load(feedback.save()).unwrap();
        assert_eq!(resumed, feedback);
    }
}

/// Checks that the mean over draws of each element of a bucket is within 5 standard errors of the element.
fn is_unbiased(spec: &str, bucket: &[f32], draws: usize) {
    let arrived = decoded(&bucket.repeat(draws), spec);
    for (i, &x) in bucket.iter().enumerate() {
        let drawn = || arrived.iter().skip(i).step_by(bucket.len()).map(|&y| f64::from(y));
        let mean = drawn().sum::<f64>() / draws as f64;
        let variance = drawn().map(|y| (y - mean).powi(2)).sum::<f64>() / draws as f64;
        let error = (mean - f64::from(x)).abs();
        // Two errors: that of the draws, and the last bit of the norm, a 32-bit float.
        let bound = 5.0 * (variance / draws as f64).sqrt() + f64::from(x.abs()) * 1e-6 + 1e-9;
        assert!(error <= bound, "{spec} {x}: mean {mean}, bound {bound}");
    }
}

const BUCKET: [f32; 4] = [0.3, -1.0, 0.001, 2.5];

#[test]
fn natural_dithering_is_unbiased() {
    for levels in [1, 2, 4, 8, 255] {
        for norm in ["l1", "l2", "max"] {
            is_unbiased(&format!("dither:levels={levels},bucket=4,norm={norm}"), &BUCKET, 100_000);
        }
    }
    feeds_back("dither:levels=4,bucket=64");
    feeds_back("terngrad:bucket=100");
}

/// Bound of the variance: E|C(x) - x|^2 <= omega |x|^2, omega = 1/8 + q min(1, q), q = d^(1/r) 2^(1-s), r =
/// min(p, 2) (arXiv 1905.10988).
#[test]
fn natural_dithering_is_within_its_variance() {
    for d in [16, 128, 512, 4096] {
        for levels in [2, 4, 8, 12] {
            for (norm, r) in [("l1", 1.0), ("l2", 2.0), ("max", 2.0)] {
                let values = normal(1 << 18, 50 + d as u64);
                let arrived = decoded(&values, &format!("dither:levels={levels},bucket={d},norm={norm}"));
                let ratios: Vec<f64> = values
                    .chunks(d)
                    .zip(arrived.chunks(d))
                    .map(|(x, y)| {
                        let error: f64 = x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum();
                        error / x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>()
                    })
                    .collect();
                let n = ratios.len() as f64;
                let mean = ratios.iter().sum::<f64>() / n;
                let sigma = (ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n / n).sqrt();
                let q = (d as f64).powf(1.0 / r) * 2f64.powi(1 - levels);
                let omega = 0.125 + q * q.min(1.0);
                assert!(mean <= omega + 5.0 * sigma, "{norm} d={d} s={levels}: {mean} +- {sigma}, {omega}");
            }
        }
    }
}

#[test]
fn levels_of_special_values() {
    for spec in ["dither:levels=8,bucket=4", "dither:levels=1,bucket=4,norm=l1", "terngrad:bucket=4"] {
        for zeros in [[0.0; 9], [-0.0; 9]] {
            assert!(decoded(&zeros, spec).iter().all(|&x| x == 0.0), "{spec}");
        }
        for x in [f32::MAX, 1e-45, 3e-39, -2.5] {
            let arrived = decoded(&[x, 0.0, -x, 0.0], spec);
            assert!(
                arrived.iter().all(|y| y.is_finite()) && arrived[1] == 0.0 && arrived[3] == 0.0,
                "{spec} {x}"
            );
        }
    }
    // An element that equals a level is unchanged: the norm is the largest magnitude.
    let powers = [1.0, 0.5, -0.25, 0.125, 0.0, -1.0];
    assert_eq!(decoded(&powers, "dither:levels=4,bucket=6,norm=max"), powers);
    assert_eq!(decoded(&[-3.0; 64], "terngrad:bucket=64"), [-3.0; 64]);
}

#[test]
fn terngrad_is_unbiased_after_its_clipping() {
    is_unbiased("terngrad:clip=inf,bucket=4", &BUCKET, 100_000);
    // No element is above 2.5 root mean squares here.
    is_unbiased("terngrad:clip=2.5,bucket=4", &BUCKET, 100_000);
    let values = normal(1 << 16, 60);
    let rms = (values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
    let arrived = decoded(&values, "terngrad:bucket=65536");
    let largest = (2.5 * rms) as f32;
    for (x, y) in values.iter().zip(arrived) {
        assert!(y == 0.0 || (y.abs() == largest && y.signum() == x.signum()));
        assert!(x.abs() <= largest || y.abs() == largest, "{x} {y}");
    }
}

#[test]
fn signs_times_mean_magnitudes() {
    let values = [1.0, -2.0, 0.0, -0.0, 3.0];
    assert_eq!(decoded(&values, "sign"), [1.2, -1.2, 1.2, -1.2, 1.2], "the sign of zero is its own");
    assert_eq!(decoded(&values, "sign:group=2"), [1.5, -1.5, 0.0, -0.0, 3.0]);
    assert!(decoded(&[0.0; 9], "sign").iter().all(|&x| x == 0.0));
    assert_eq!(decoded(&[f32::MAX; 3], "sign"), [f32::MAX; 3]);
    assert_eq!(decoded(&[-1e-45], "sign"), [-1e-45]);
    // One bit per element, and the headers.
    let values = normal(1 << 20, 70);
    let (_, _, bytes) = send(&[tensor(&values)], &"sign".parse().unwrap(), None);
    assert!(bytes as f64 * 8.0 / f64::from(1 << 20) <= 1.002, "{bytes}");
    let mean = values.iter().map(|x| f64::from(x.abs())).sum::<f64>() / values.len() as f64;
    for (x, y) in values.iter().zip(decoded(&values, "sign")) {
        assert!((f64::from(y.abs()) - mean).abs() < 1e-6 && y.signum() == x.signum());
    }
    // A tensor of several blocks has one scale.
    let long = normal((1 << 22) + 9, 71);
    let (blocks, arrived, _) = send(&[tensor(&long)], &"sign".parse().unwrap(), None);
    assert!(blocks.len() == 2 && arrived[0].iter().all(|y| y.abs() == arrived[0][0].abs()));
    feeds_back("sign");
    feeds_back("sign:group=100");
}

/// Size of one sign and one position per kept element: 1 + 8.11 bits at 1 % (arXiv 1903.02891). Entropy-coded
/// gaps take less.
#[test]
fn ternary_compression_sends_signs_and_one_mean() {
    let values = normal(1 << 20, 80);
    let (_, arrived, bytes) = send(&[tensor(&values)], &"stc:density=0.01".parse().unwrap(), None);
    let kept: Vec<(f32, f32)> =
        values.iter().copied().zip(arrived[0].iter().copied()).filter(|(_, y)| *y != 0.0).collect();
    assert_eq!(kept.len(), 10_486);
    let mean = kept.iter().map(|(x, _)| f64::from(x.abs())).sum::<f64>() / kept.len() as f64;
    let least = kept.iter().map(|(x, _)| x.abs()).fold(f32::MAX, f32::min);
    assert_eq!(values.iter().filter(|x| x.abs() >= least).count(), kept.len());
    assert!(kept.iter().all(|(x, y)| (f64::from(y.abs()) - mean).abs() < 1e-6 && x.signum() == y.signum()));
    // The bytes that a stream of one kept element also has are subtracted.
    let (_, _, around) = send(&[tensor(&values)], &"stc:k=1".parse().unwrap(), None);
    assert!((bytes - around) as f64 * 8.0 / f64::from(1 << 20) <= 0.0911 * 1.01, "{bytes} {around}");
    feeds_back("stc:density=0.02");
}

#[test]
fn random_elements_have_no_bias_and_no_positions() {
    let values = normal(1000, 90);
    let draws = 4000;
    let (mut sums, mut drawn) = (vec![0f64; 1000], vec![0u32; 1000]);
    for seed in 0..draws {
        let arrived = decoded(&values, &format!("randk:k=100,seed={seed}"));
        assert_eq!(arrived.iter().filter(|x| **x != 0.0).count(), 100);
        for (i, y) in arrived.iter().enumerate() {
            sums[i] += f64::from(*y);
            drawn[i] += u32::from(*y != 0.0);
            assert!(*y == 0.0 || *y == values[i] * 10.0);
        }
    }
    // Each x decodes to 10 x with probability 0.1, so the variance is 9 x^2.
    for (i, x) in values.iter().map(|&x| f64::from(x)).enumerate() {
        let bound = 5.0 * 3.0 * x.abs() / f64::from(draws).sqrt() + 1e-9;
        assert!((sums[i] / f64::from(draws) - x).abs() <= bound, "{i} {} {x}", drawn[i]);
    }
    // Equal seeds draw equal positions from any tensors of one manifest. The tensors of one update get
    // different positions.
    let (x, y) = (vec![1.0; 1000], vec![2.0; 1000]);
    let of = |values: &[Vec<f32>; 2], spec: &str| {
        let tensors = values.each_ref().map(|v| tensor(v));
        let (_, arrived, bytes) = send(&tensors, &spec.parse().unwrap(), None);
        (arrived.iter().map(|a| a.iter().map(|x| *x != 0.0).collect()).collect::<Vec<Vec<bool>>>(), bytes)
    };
    let (first, _) = of(&[x.clone(), y.clone()], "randk:k=100,seed=5");
    assert_eq!(of(&[y.clone(), x.clone()], "randk:k=100,scale=1,seed=5").0, first);
    assert_ne!(of(&[y, x.clone()], "randk:k=100,scale=1,seed=6").0, first);
    assert_ne!(first[0], first[1]);
    let big = [vec![1.0; 1 << 20], x];
    assert!(of(&big, "randk:density=0.01,values=f16").1 < 2 * 10_496 + 400);
    assert!(decoded(&[f32::MAX; 100], "randk:k=1").iter().all(|y| y.is_finite()));
    assert!(decoded(&[0.0; 100], "randk:k=7").iter().all(|&y| y == 0.0));
    feeds_back("randk:density=0.1,scale=1");
    feeds_back("randk:density=0.5,values=bf16");
}

#[test]
fn chunks_keep_their_largest_elements() {
    for (n, chunk, kept) in [(1 << 20, 4096, 64), (10_007, 100, 7), (1003, 100, 5), (5, 4096, 64), (1, 1, 1)]
    {
        let values = normal(n, 100);
        for kind in ["code2", "sign"] {
            let spec = format!("chunked:chunk={chunk},kept={kept},values={kind}");
            let (blocks, arrived, bytes) = send(&[tensor(&values)], &spec.parse().unwrap(), None);
            let positions = match &blocks[0].support {
                gcodec::block::Support::Sparse(Sparse { positions }) => positions.clone(),
                gcodec::block::Support::Chunked(Chunked { chunk_len, kept, positions }) => {
                    positions.iter().zip(0..).map(|(&p, i)| i / kept * chunk_len + u64::from(p)).collect()
                }
                gcodec::block::Support::All => (0..n as u64).collect(),
                other => panic!("{other:?}"),
            };
            let mut expected: Vec<u64> = Vec::new();
            for (part, start) in values.chunks(chunk).zip((0..).step_by(chunk)) {
                let mut order: Vec<usize> = (0..part.len()).collect();
                order.sort_by(|&a, &b| part[b].abs().total_cmp(&part[a].abs()).then(a.cmp(&b)));
                order.truncate(kept);
                order.sort_unstable();
                expected.extend(order.into_iter().map(|i| start + i as u64));
            }
            assert_eq!(positions, expected, "{spec}");
            let pairs = || values.iter().zip(&arrived[0]).filter(|(_, y)| **y != 0.0);
            assert_eq!(pairs().count(), expected.len());
            let mut distinct: Vec<u32> = pairs().map(|(_, y)| y.abs().to_bits()).collect();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.len() <= if kind == "sign" { 1 } else { 4 });
            // Values are means of bins. Their sum equals the sum of the kept elements, and their error is
            // smaller than that of signs.
            let sum = |f: fn((&f32, &f32)) -> f64| pairs().map(f).sum::<f64>();
            if kind == "code2" {
                let (sent, got) = (sum(|(x, _)| f64::from(*x)), sum(|(_, y)| f64::from(*y)));
                assert!((sent - got).abs() <= 1e-6 * sum(|(x, _)| f64::from(x.abs())), "{spec} {sent} {got}");
            }
            if n == 1 << 20 {
                // The entropy of 64 of 4096 independent positions is 7.43 bits each. The Rice code of their
                // gaps takes 7.53 bits (papers claim 12). A value takes 2 bits or 1. Frames and their fields
                // take less than 0.003 bits per element.
                let most = if kind == "sign" { 8.53 } else { 9.53 } / 64.0;
                assert!(bytes as f64 * 8.0 / n as f64 <= most + 0.003, "{spec} {bytes}");
            }
        }
    }
    // Ties are broken by position. Zeros are kept if a chunk has no other elements. Equal elements give one
    // value.
    let ties = [0.0, 2.0, -2.0, 2.0];
    assert_eq!(decoded(&ties, "chunked:chunk=4,kept=2"), [0.0, 2.0, -2.0, 0.0]);
    assert_eq!(decoded(&[0.0; 9], "chunked:chunk=4,kept=2"), [0.0; 9]);
    assert_eq!(decoded(&[-7.5; 4], "chunked:chunk=4,kept=4"), [-7.5; 4]);
    assert_eq!(decoded(&[f32::MAX; 4], "chunked:chunk=4,kept=4,values=sign"), [f32::MAX; 4]);
    assert!(decoded(&[f32::MAX, f32::MIN], "chunked").iter().all(|y| y.abs() == f32::MAX));
    feeds_back("chunked:chunk=128,kept=4");
    feeds_back("chunked:chunk=128,kept=4,values=sign");
}

/// Compares Deep Gradient Compression with its formulas, written out for dense vectors.
#[test]
fn momentum_is_corrected_and_masked() {
    let sizes = [500, 0, 300];
    let gradients = |step: u64| {
        (0..3).map(|t| tensor(&normal(sizes[t as usize], 200 + 3 * step + t))).collect::<Vec<_>>()
    };
    let mut options = DgcOptions::default();
    (options.density, options.warm_up_steps, options.clip, options.workers) = (0.01, 2, Some(8.0), 4);
    let mut dgc = Dgc::new(options.clone()).unwrap();
    let (mut u, mut v) = (vec![0f32; 800], vec![0f32; 800]);
    for step in 0..12 {
        let tensors = gradients(step);
        let inputs: Vec<Input<'_>> = NAMES
            .iter()
            .zip(&tensors)
            .zip(0..)
            .map(|((name, t), tensor)| Input { tensor, name, view: t.view(), base: None })
            .collect();
        let mut resumed = Dgc::load(options.clone(), dgc.steps(), dgc.save()).unwrap();
        let blocks = dgc.step(&inputs, &Options::default()).unwrap();
        assert_eq!(resumed.step(&inputs, &Options::default()).unwrap(), blocks);
        assert_eq!(resumed, dgc);

        let g: Vec<f32> = tensors.iter().flat_map(floats).collect();
        let squares = g.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        let scale = (8.0 / (4.0 * squares).sqrt()).min(1.0) as f32;
        let density = [0.25, 0.063, 0.015, 0.004].get(step as usize / 2).copied().unwrap_or(0.01);
        for i in 0..800 {
            u[i] = 0.9 * u[i] + scale * g[i];
            v[i] += u[i];
        }
        let mut expected = Vec::new();
        for range in [0..500, 500..800] {
            let k = (density * range.len() as f64).round().max(1.0) as usize;
            let mut order: Vec<usize> = range.collect();
            order.sort_by(|&a, &b| v[b].abs().total_cmp(&v[a].abs()).then(a.cmp(&b)));
            expected.extend_from_slice(&order[..k]);
        }
        expected.sort_unstable();
        for &i in &expected {
            (u[i], v[i]) = (0.0, 0.0);
        }
        let [block] = &blocks[..] else { panic!("{blocks:?}") };
        let gcodec::block::Support::Sparse(Sparse { positions }) = &block.support else { panic!() };
        assert_eq!(positions.iter().map(|&p| p as usize).collect::<Vec<_>>(), expected, "step {step}");
        let residuals = dgc.residuals();
        assert_eq!([residuals.get("a").unwrap(), residuals.get("c").unwrap()].concat(), v, "step {step}");
    }
    // A failed step leaves the state unchanged. Options outside their ranges are refused.
    let before = dgc.clone();
    let bad = [tensor(&[f32::NAN; 500])];
    let input = Input { tensor: 0, name: "a", view: bad[0].view(), base: None };
    assert!(dgc.step(&[input], &Options::default()).is_err() && dgc == before);
    for change in [
        |o: &mut DgcOptions| o.density = 0.0,
        |o: &mut DgcOptions| o.momentum = 1.0,
        |o: &mut DgcOptions| o.clip = Some(f32::NAN),
        |o: &mut DgcOptions| o.warm_up = vec![2.0],
        |o: &mut DgcOptions| o.workers = 0,
    ] {
        let mut options = DgcOptions::default();
        change(&mut options);
        assert!(Dgc::new(options).is_err());
    }
}

/// Compressors of this file, with settings that take different code paths.
const EVERY: [&str; 11] = [
    "dither",
    "dither:levels=3,bucket=100,norm=l1",
    "terngrad",
    "sign",
    "sign:group=300",
    "stc",
    "sidco:density=0.01",
    "randk",
    "randk:k=1,scale=1",
    "chunked",
    "chunked:chunk=1000,kept=10,values=sign",
];

#[test]
fn blocks_do_not_depend_on_the_number_of_threads() {
    let tensors = [tensor(&normal(600_001, 1)), tensor(&normal(7, 2)), tensor(&[])];
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (one, four) = (pool(1), pool(4));
    for spec in EVERY {
        let with = |pool: &rayon::ThreadPool| {
            let mut feedback = Feedback::new();
            let sent = pool.install(|| send(&tensors, &spec.parse().unwrap(), Some(&mut feedback)));
            (sent, feedback)
        };
        assert_eq!(with(&one), with(&four), "{spec}");
    }
}

#[test]
fn what_is_not_finite_is_an_error_wherever_it_is() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = normal(70_002, 3);
        values[70_001] = bad;
        let t = tensor(&values);
        for spec in EVERY {
            let error = gcodec::encode(&[("w", t.view())], &spec.parse().unwrap()).unwrap_err();
            let gcodec::Error::Input(e) = error else { panic!("{spec}") };
            assert_eq!(e.kind, gcodec::error::InputErrorKind::NonFinite { index: 70_001 }, "{spec}");
        }
    }
}
