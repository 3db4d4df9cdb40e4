//! Compressors with state, from tensors through an encoded stream to tensors, over several steps.

use std::sync::Arc;

use gcodec::block::{
    Block, BlockOptions, CodedBlock, Constant, Positions, Scope, Set, Sparse, Support, SupportId, Values,
};
use gcodec::compress::random::words;
use gcodec::compress::senders::{SbcOptions, SbcSender, mask_momenta};
use gcodec::compress::{Amount, Input, Options, compress};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::element::decode_f32s;
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf, Writer};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn tensor(values: &[f32]) -> TensorBuf {
    TensorBuf::from_f32(vec![values.len() as u64], values).unwrap()
}

fn uniforms(n: usize, stream: u64) -> impl Iterator<Item = f64> {
    let mut drawn = vec![0; 2 * n];
    words(21, stream, 0, &mut drawn);
    let of = |high: u32, low: u32| {
        (f64::from(high >> 5) * 67_108_864.0 + f64::from(low >> 6) + 0.5) / 2f64.powi(53)
    };
    (0..n).map(move |i| of(drawn[2 * i], drawn[2 * i + 1]))
}

/// Normally distributed numbers, the same in every run.
fn normal(n: usize, stream: u64) -> Vec<f32> {
    let draw = |(u, v): (f64, f64)| ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32;
    uniforms(n, 2 * stream).zip(uniforms(n, 2 * stream + 1)).map(draw).collect()
}

fn inputs(tensors: &[TensorBuf]) -> Vec<Input<'_>> {
    let each = NAMES.iter().zip(tensors).zip(0..);
    each.map(|((name, t), tensor)| Input { tensor, name, view: t.view(), base: None }).collect()
}

/// Returns the bytes of an update.
fn write(tensors: &[TensorBuf], blocks: &[CodedBlock]) -> Vec<u8> {
    let infos = NAMES.iter().zip(tensors).map(|(name, t)| TensorInfo::new(*name, t.dtype(), t.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, blocks).unwrap();
    encoder.finish(&mut bytes);
    bytes
}

/// Encodes the blocks as an update and returns the decoded tensors.
fn arrived(tensors: &[TensorBuf], blocks: &[CodedBlock]) -> Vec<Vec<f32>> {
    let decoded = gcodec::decode(&write(tensors, blocks)).unwrap();
    decoded.iter().map(|(_, t)| floats(t)).collect()
}

fn floats(tensor: &TensorBuf) -> Vec<f32> {
    let mut out = vec![0.0; tensor.view().elements() as usize];
    decode_f32s(tensor.dtype(), tensor.data(), 0, &mut out).unwrap();
    out
}

// Sparse Binary Compression.

fn sbc(density: f64, delay: u64) -> SbcOptions {
    SbcOptions::default().with_amount(Amount::Density(density)).with_delay(delay)
}

/// arXiv 1805.08768, algorithm 2: R <- R + sum of local updates - message sent, once in `delay` steps.
#[test]
fn a_delayed_sender_keeps_what_it_did_not_send() {
    for delay in [1, 2, 5] {
        let mut sender = SbcSender::new(sbc(0.01, delay)).unwrap();
        let sizes = [3000, 0, 50_000, 1];
        let mut residuals: Vec<Vec<f32>> = sizes.map(|n| vec![0.0; n]).to_vec();
        for step in 0..3 * delay {
            let locals: Vec<TensorBuf> =
                sizes.iter().zip(0..).map(|(&n, t)| tensor(&normal(n, 100 + 4 * step + t))).collect();
            let mut resumed =
                SbcSender::load(sender.options().clone(), sender.steps(), sender.save()).unwrap();
            assert_eq!(resumed, sender);
            let sent = sender.step(&inputs(&locals), &Options::default()).unwrap();
            assert_eq!(resumed.step(&inputs(&locals), &Options::default()).unwrap(), sent);
            assert_eq!(resumed, sender);
            for (residual, local) in residuals.iter_mut().zip(&locals) {
                residual.iter_mut().zip(floats(local)).for_each(|(r, x)| *r += x);
            }
            assert_eq!(sent.is_some(), (step + 1) % delay == 0, "step {step} of delay {delay}");
            if let Some(blocks) = sent {
                for (i, arrived) in arrived(&locals, &blocks).iter().enumerate() {
                    let k = Amount::Density(0.01).of(sizes[i] as u64) as usize;
                    assert_eq!(arrived.iter().filter(|x| **x != 0.0).count(), k);
                    one_side(&residuals[i], arrived, k);
                    residuals[i].iter_mut().zip(arrived).for_each(|(r, x)| *r -= x);
                }
            }
            for (residual, name) in residuals.iter().zip(NAMES) {
                assert_eq!(sender.residuals().get(name).unwrap(), residual, "step {step} of delay {delay}");
            }
        }
    }
}

/// Checks that the elements of `sums` that were sent are the `k` largest of one sign, the sign with the
/// larger mean. Each is sent as their mean.
fn one_side(sums: &[f32], sent: &[f32], k: usize) {
    let Some(value) = sent.iter().copied().find(|x| *x != 0.0) else { return };
    let largest = |sign: f32| {
        let mut side: Vec<usize> = (0..sums.len()).filter(|&i| sums[i] * sign > 0.0).collect();
        side.sort_by(|&a, &b| (sums[b] * sign).total_cmp(&(sums[a] * sign)).then(a.cmp(&b)));
        side.truncate(k);
        side.sort_unstable();
        let sum: f64 = side.iter().map(|&i| f64::from(sums[i]).abs()).sum();
        (side, sum)
    };
    let (kept, sum) = largest(value.signum());
    assert!(sum >= largest(-value.signum()).1);
    let mean = (sum / kept.len() as f64) as f32;
    for (i, &x) in sent.iter().enumerate() {
        assert_eq!(x, if kept.binary_search(&i).is_ok() { mean.copysign(value) } else { 0.0 });
    }
}

#[test]
fn a_sender_of_special_tensors() {
    let of = |values: &[f32], amount: Amount| {
        let mut sender = SbcSender::new(SbcOptions::default().with_amount(amount)).unwrap();
        let tensors = [tensor(values)];
        let blocks = sender.step(&inputs(&tensors), &Options::default()).unwrap().unwrap();
        let arrived = arrived(&tensors, &blocks).remove(0);
        (arrived, sender.residuals().get("a").unwrap().to_vec())
    };
    assert_eq!(of(&[-2.5], Amount::Density(0.001)), (vec![-2.5], vec![0.0]));
    assert_eq!(of(&[0.0; 100], Amount::Density(0.1)), (vec![0.0; 100], vec![0.0; 100]));
    let (constant, left) = of(&[0.5; 100], Amount::Count(10));
    assert!(constant[..10].iter().all(|&x| x == 0.5) && constant[10..].iter().all(|&x| x == 0.0));
    assert!(left[..10].iter().all(|&x| x == 0.0) && left[10..].iter().all(|&x| x == 0.5));
    // At density 1 only the elements of one sign are sent.
    assert_eq!(of(&[3.0, -1.0, 1.0], Amount::Density(1.0)), (vec![2.0, 0.0, 2.0], vec![1.0, -1.0, -1.0]));
    assert_eq!(of(&[], Amount::Density(0.5)), (vec![], vec![]));
}

#[test]
fn a_failing_step_leaves_the_sender() {
    let mut sender = SbcSender::new(sbc(0.1, 2)).unwrap();
    let good = [tensor(&normal(50, 1)), tensor(&[f32::MAX])];
    for _ in 0..3 {
        let before = sender.clone();
        let shape = [TensorBuf::from_f32(vec![5, 11], &[0.0; 55]).unwrap()];
        let whole = [tensor(&normal(50, 2)), TensorBuf::new(Dtype::I64, vec![1], vec![0; 8]).unwrap()];
        let twice = Input { tensor: 1, ..inputs(&good)[0] };
        let (nan, over) = ([tensor(&[f32::NAN; 50])], [tensor(&normal(50, 3)), tensor(&[f32::MAX])]);
        let mut refused = vec![inputs(&nan), inputs(&whole), vec![inputs(&good)[0], twice]];
        if sender.steps() > 0 {
            refused.extend([inputs(&shape), inputs(&over)]);
        }
        for bad in refused {
            assert!(sender.step(&bad, &Options::default()).is_err());
            assert_eq!(sender, before);
        }
        if sender.steps() < 1 {
            sender.step(&inputs(&good), &Options::default()).unwrap();
        }
    }
    // With `NonFinite::Zero` an infinite element becomes zero and is not rejected.
    let zeroed = Options::default().with_non_finite(gcodec::compress::NonFinite::Zero);
    let mut bad = normal(50, 1);
    bad[7] = f32::INFINITY;
    let before = sender.residuals().get("a").unwrap()[7];
    sender.step(&inputs(&[tensor(&bad)]), &zeroed).unwrap().unwrap();
    assert!(sender.residuals().get("a").unwrap()[7] <= before);
    assert!(SbcSender::new(sbc(0.0, 1)).is_err() && SbcSender::new(sbc(0.1, 0)).is_err());
    let i64s = TensorBuf::new(Dtype::I64, vec![1], vec![0; 8]).unwrap();
    assert!(SbcSender::load(sbc(0.1, 1), 0, [("a".to_owned(), i64s)]).is_err());
}

#[test]
fn momenta_are_cleared_where_something_was_sent() {
    let sizes = [300, 0, 1000];
    let tensors: Vec<TensorBuf> = sizes.iter().zip(7..).map(|(&n, t)| tensor(&normal(n, t))).collect();
    for spec in [
        "sbc:density=0.05",
        "topk:k=3",
        "threshold:at=2",
        "chunked:chunk=64,kept=2",
        "randk:k=5,scale=1",
        "raw",
    ] {
        let codecs = vec![spec.parse::<Codec>().unwrap(); 3];
        let options = Options::default().with_block_len(640);
        let blocks = compress(&inputs(&tensors), &codecs, &options, None).unwrap();
        let mut momenta: Vec<Vec<f32>> = sizes.iter().map(|&n| vec![1.5; n]).collect();
        let mut by_number: Vec<(u64, &mut [f32])> =
            (0..).zip(momenta.iter_mut().map(Vec::as_mut_slice)).collect();
        mask_momenta(&blocks, &mut by_number).unwrap();
        for (momenta, arrived) in momenta.iter().zip(arrived(&tensors, &blocks)) {
            for (m, x) in momenta.iter().zip(arrived) {
                assert_eq!(*m, if x == 0.0 { 1.5 } else { 0.0 }, "{spec}");
            }
        }
    }
    let support = Support::Sparse(Sparse { positions: vec![0, 9] });
    let values = Values::Constant(Constant {
        groups: gcodec::block::Groups::Block,
        scales: gcodec::block::Scales::from_f32s(gcodec::block::ScaleFormat::F32, &[1.0]),
    });
    let block = |scope| Block { scope, add: false, support: support.clone(), values: values.clone() };
    let mut a = [1f32; 10];
    for scope in [
        Scope::Tensor(3),
        Scope::Tensor(9),
        Scope::Tensors { first: 4, count: 3 },
        Scope::Tensors { first: 4, count: u64::MAX },
        Scope::Range { tensor: 4, start: 1, len: 10 },
        Scope::Range { tensor: 4, start: u64::MAX, len: 10 },
        Scope::Range { tensor: 4, start: 0, len: 9 },
    ] {
        let blocks = [block(Scope::Tensor(4)), block(scope)];
        assert!(mask_momenta(&blocks, &mut [(4, &mut a), (6, &mut [1.0; 10])]).is_err(), "{scope:?}");
        assert_eq!(a, [1.0; 10], "{scope:?}");
    }
    assert!(mask_momenta::<Block>(&[], &mut [(2, &mut []), (1, &mut [])]).is_err());
    let set =
        Block { support: Support::Set(Set { id: gcodec::block::SetId([0; 32]) }), ..block(Scope::Tensor(4)) };
    assert!(mask_momenta(&[set], &mut [(4, &mut a)]).is_err());
    mask_momenta(&[block(Scope::Tensor(4))], &mut [(4, &mut a)]).unwrap();
    assert_eq!(a, [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
}

/// Program of the crate's front page. The codec's coding choices apply to the blocks of a stream as to those
/// of `encode`.
#[test]
fn a_stream_keeps_the_coding_that_its_codec_asks_for() {
    let codec: Codec = "sbc:density=0.02,positions=rice-one".parse().unwrap();
    // Half of the elements sent lie close together, so one Rice parameter for all gaps is not the smallest
    // code.
    let mut values = normal(60_000, 40);
    values[..800].iter_mut().for_each(|x| *x *= 100.0);
    let tensors = [tensor(&values), tensor(&normal(700, 41))];
    let named: Vec<_> = NAMES.into_iter().zip(tensors.iter().map(TensorBuf::view)).collect();
    let infos = named.iter().map(|(name, view)| TensorInfo::new(*name, view.dtype(), view.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let written = |codec: Codec| {
        let blocks = compress(&inputs(&tensors), &[codec; 2], &Options::default(), None).unwrap();
        let mut writer = Writer::new(Vec::new(), EncodeOptions::default());
        let header = UpdateHeader::default().with_label(codec.to_string());
        writer.update(&header, &manifest, &blocks).unwrap();
        writer.finish().unwrap()
    };
    assert_eq!(written(codec), gcodec::encode(&named, &codec).unwrap());
    let blocks = compress(&inputs(&tensors), &[codec; 2], &Options::default(), None).unwrap();
    assert!(blocks.iter().all(|coded| coded.options.positions == Positions::RiceOne));
    // The bytes differ without the setting, so this test fails if a layer loses it.
    assert_ne!(write(&tensors, &blocks), {
        let default: Vec<CodedBlock> = blocks.into_iter().map(|coded| coded.block.into()).collect();
        write(&tensors, &default)
    });
}

/// Probability p, b* and bits per position as arXiv 1805.08768 counts them: b* + 1 / (1 - (1 - p)^(2^b*)).
const ACCOUNT: [(f64, u8, f64); 10] = [
    (0.1, 3, 4.7558),
    (0.05, 4, 5.7861),
    (0.02, 5, 7.1003),
    (1.0 / 64.0, 5, 7.5262),
    (0.01, 6, 8.1079),
    (0.005, 7, 9.1117),
    (0.002, 8, 10.4937),
    (0.001, 9, 11.4947),
    (0.0005, 10, 12.4951),
    (0.0001, 13, 14.7882),
];

/// Size of the paper's classic code, on positions that are each kept with probability p. The index stream in
/// the written bytes has the number of bits that the paper counts.
///
/// Gaps between such positions are independent and geometric, so the test draws gaps, not the mask. The mask
/// ends with the last kept element. A position takes b + 1 + q bits, and q is geometric too. The variance of
/// q is r / (1 - r)^2 with r = (1 - p)^(2^b). The choice of b* holds r below 0.62, so the deviation is at
/// most 2.1 bits. The mean of K = 2^21 positions has a deviation of at most 0.0015 bits. Five deviations are
/// 0.0073 bits, within 0.2 % of the smallest number of bits here, 4.7558.
#[test]
fn classic_positions_cost_what_the_paper_counts() {
    let kept = 1 << 21;
    for (i, (p, b, bits)) in ACCOUNT.into_iter().enumerate() {
        let r = (1.0 - p).powi(1 << b);
        assert!((f64::from(b) + 1.0 / (1.0 - r) - bits).abs() < 1e-4 && r < 0.62, "{p}: the formula");
        let mut next = 0;
        let positions: Vec<u64> = uniforms(kept, 300 + i as u64)
            .map(|u| {
                let position = next + (u.ln() / (-p).ln_1p()) as u64;
                next = position + 1;
                position
            })
            .collect();
        let info = TensorInfo::new("w", Dtype::F32, [next]);
        let manifest = Arc::new(Manifest::new(vec![info]).unwrap());
        let scales = gcodec::block::Scales::from_f32s(gcodec::block::ScaleFormat::F32, &[0.5]);
        let values = Values::Constant(Constant { groups: gcodec::block::Groups::Block, scales });
        let support = Support::Sparse(Sparse { positions });
        let block = Block { scope: Scope::Tensor(0), add: false, support, values };
        let limits = Limits::default().with_max_elements(u64::MAX);
        let written = |choice: Positions| {
            let options = BlockOptions::default().with_positions(choice);
            let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
            encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, &[(&block, options)]).unwrap();
            encoder.finish(&mut bytes);
            let mut reader = SliceReader::new(&bytes, limits.clone());
            while let Some(event) = reader.next_event().unwrap() {
                if let Event::Frame(_, Body::Update(part)) = event {
                    assert_eq!(part.decode_all().unwrap(), std::slice::from_ref(&block));
                    return (part.blocks[0].support_id, part.blocks[0].support.to_vec());
                }
            }
            panic!("no update")
        };
        let (id, bytes) = written("sbc:positions=rice-one".parse::<Codec>().unwrap().positions());
        // The count in four bytes, a chunk length of 0, which means one chunk, and b (spec,
        // supports/gaps-rice.md).
        assert_eq!((id, &bytes[..6]), (SupportId::GAPS_RICE, &[0x80, 0x80, 0x80, 0x01, 0, b][..]), "{p}");
        let measured = (bytes.len() - 6) as f64 * 8.0 / kept as f64;
        println!("p {p:.6}: b* {b}, {measured:.4} bits for a position, {bits:.4} by the formula");
        assert!((measured / bits - 1.0).abs() <= 0.002, "{p}: {measured} {bits}");
        assert!(written(Positions::Auto).1.len() <= bytes.len(), "{p}");
    }
}
