//! DeMo: the coefficients that its codec keeps, the sender's momentum, the receivers' direction and the size
//! of a step.

use gcodec::block::{
    Block, CodedBlock, Dct, Floats, IndexSpace, Scope, Sets, Sparse, Stored, Support, Values,
};
use gcodec::compress::senders::{DeMo, DeMoOptions, demo};
use gcodec::compress::{Feedback, Input, Kept, Options, compress, random};
use gcodec::error::InputErrorKind;
use gcodec::frame::{Budget, Manifest, TensorInfo, UpdateHeader};
use gcodec::reduce::{Sum, SumOptions, add};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Error, Limits, TensorBuf};
use std::sync::Arc;

/// Normally distributed numbers, by the Box-Muller transform.
fn normal(n: usize, seed: u64) -> Vec<f32> {
    let uniform = |i: u64| (f64::from(random::word(seed, 0, i)) + 0.5) / 4_294_967_296.0;
    let value = |i: u64| {
        (-2.0 * uniform(2 * i).ln()).sqrt() * (2.0 * std::f64::consts::PI * uniform(2 * i + 1)).cos()
    };
    (0..n as u64).map(|i| value(i) as f32).collect()
}

fn blocks_of(shape: &[u64], values: &[f32], spec: &str) -> Vec<CodedBlock> {
    let tensor = TensorBuf::from_f32(shape.to_vec(), values).unwrap();
    let input = Input { tensor: 0, name: "w", view: tensor.view(), base: None };
    compress(&[input], &[spec.parse().unwrap()], &Options::default(), None).unwrap()
}

fn numbers(block: &Block, n: u64) -> Vec<f32> {
    let space = IndexSpace::flat(Dtype::F32, n);
    block.numbers(&space, &Sets::new(), &Budget::new(&Limits::default())).unwrap()
}

/// Returns the support and the coefficients of a block.
fn kept(block: &Block) -> (Vec<u64>, Vec<f32>) {
    let Values::Dct(Dct { support, coefficients, rows, cols, .. }) = &block.values else {
        panic!("{block:?}")
    };
    let inner =
        Block { scope: block.scope, add: false, support: support.clone(), values: (**coefficients).clone() };
    let space = IndexSpace::flat(Dtype::F32, rows * cols);
    let budget = Budget::new(&Limits::default());
    (
        inner.positions(&space, &Sets::new(), &budget).unwrap(),
        inner.numbers(&space, &Sets::new(), &budget).unwrap(),
    )
}

fn energy(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
}

/// Computes the chunk's DCT-II by its definition, with the machine's cosine.
fn by_definition(chunk: &[f32], rows: usize, cols: usize) -> Vec<f64> {
    let cosine = |n: usize, u: usize, i: usize| {
        let scale = if u == 0 { 1.0 } else { 2.0 } / n as f64;
        scale.sqrt() * (std::f64::consts::PI * u as f64 * (2.0 * i as f64 + 1.0) / (2.0 * n as f64)).cos()
    };
    let coefficient = |u: usize, v: usize| -> f64 {
        let terms = (0..rows * cols).map(|at| (at / cols, at % cols, f64::from(chunk[at])));
        terms.map(|(i, j, x)| x * cosine(rows, u, i) * cosine(cols, v, j)).sum()
    };
    (0..rows * cols).map(|at| coefficient(at / cols, at % cols)).collect()
}

#[test]
fn all_coefficients_give_the_tensor_back() {
    // Each number is rounded to 24 bits once by the transform and once by its inverse. The error is a sum of
    // 128 x 128 squares.
    for shape in [&[64, 64][..], &[6, 100], &[128, 128], &[127, 3], &[1000], &[7, 5, 3], &[], &[1]] {
        let n: u64 = shape.iter().product();
        let values = normal(n as usize, n);
        let spec = "demo:chunk=128,kept=16384,values=f32";
        let blocks = blocks_of(shape, &values, spec);
        let decoded = numbers(&blocks[0], n);
        let error: Vec<f32> = decoded.iter().zip(&values).map(|(d, x)| d - x).collect();
        assert!((energy(&error) / energy(&values)).sqrt() < 1e-7, "{shape:?}");
        let (positions, coefficients) = kept(&blocks[0]);
        assert_eq!(positions.len() as u64, n);
        assert!((energy(&coefficients) / energy(&values) - 1.0).abs() < 1e-6, "Parseval: {shape:?}");
    }
}

#[test]
fn the_largest_coefficients_of_each_chunk_are_kept() {
    let (rows, cols, side) = (24, 40, 8);
    let values = normal(rows * cols, 3);
    let block = &blocks_of(&[24, 40], &values, "demo:chunk=8,kept=5,values=f32")[0];
    let (positions, coefficients) = kept(block);
    assert_eq!(positions.len(), 15 * 5);
    for number in 0..15 {
        let (top, left) = (number / 5 * side, number % 5 * side);
        let chunk: Vec<f32> = (0..64).map(|at| values[(top + at / side) * cols + left + at % side]).collect();
        let exact = by_definition(&chunk, side, side);
        let mut order: Vec<usize> = (0..64).collect();
        order.sort_by(|&a, &b| exact[b].abs().total_cmp(&exact[a].abs()));
        order.truncate(5);
        order.sort_unstable();
        let mine = number * 5..number * 5 + 5;
        let places: Vec<usize> = positions[mine.clone()].iter().map(|p| *p as usize - number * 64).collect();
        assert_eq!(places, order, "chunk {number}");
        for (at, x) in places.iter().zip(&coefficients[mine]) {
            assert!((exact[*at] - f64::from(*x)).abs() < 1e-5);
        }
    }
}

/// Fixes the bits of a block's elements: sums of products in the order of the spec's page.
#[test]
fn exact_bits() {
    let mut hasher = blake3::Hasher::new();
    for (rows, cols, chunk_rows, chunk_cols) in [(128, 128, 64, 64), (90, 77, 45, 77), (1, 384, 1, 128)] {
        let numbers_in = normal(rows * cols, 11);
        let coefficients = Values::Floats(Floats {
            stored: Stored::F32,
            bytes: numbers_in.iter().flat_map(|x| x.to_le_bytes()).collect(),
        });
        let values = Values::Dct(Dct {
            rows: rows as u64,
            cols: cols as u64,
            chunk_rows,
            chunk_cols,
            support: Support::All,
            coefficients: Box::new(coefficients),
        });
        let block = Block { scope: Scope::Tensor(0), add: false, support: Support::All, values };
        for x in numbers(&block, (rows * cols) as u64) {
            hasher.update(&x.to_bits().to_le_bytes());
        }
    }
    assert_eq!(&hasher.finalize().to_hex()[..32], "8685f074efb55f6c15c32aeb474757e5");
}

/// Checks that m' + decoded tensor = decay m + g in 32-bit arithmetic, for tensors of several shapes and all
/// kinds of values.
#[test]
fn the_momentum_keeps_what_was_not_sent() {
    let shapes: [&[u64]; 5] = [&[128, 192], &[300], &[0, 4], &[], &[8, 3, 5]];
    for values in [Kept::Sign, Kept::F32, Kept::F16, Kept::Bf16] {
        let mut state = DeMo::new(DeMoOptions::default().with_values(values).with_kept(7)).unwrap();
        for step in 0..3 {
            let tensors: Vec<TensorBuf> = shapes
                .iter()
                .zip(0..)
                .map(|(s, t)| {
                    let n = s.iter().product::<u64>() as usize;
                    TensorBuf::from_f32(s.to_vec(), &normal(n, 10 * step + t)).unwrap()
                })
                .collect();
            let names = ["a", "b", "c", "d", "e"];
            let inputs: Vec<Input<'_>> = names
                .iter()
                .zip(&tensors)
                .zip(0..)
                .map(|((name, t), tensor)| Input { tensor, name, view: t.view(), base: None })
                .collect();
            let before = state.momenta.clone();
            let options = Options::default().with_block_len(5000);
            let blocks = state.step(&inputs, &options).unwrap();
            let infos = inputs.iter().map(|i| TensorInfo::new(i.name, i.view.dtype(), i.view.shape()));
            let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
            let arrived = gcodec::decode(&stream(&manifest, &blocks, 0)).unwrap();
            for (input, (_, arrived)) in inputs.iter().zip(arrived) {
                let gradient = input.view.to_f32().unwrap();
                let zeros = vec![0.0; gradient.len()];
                let momentum = before.get(input.name).unwrap_or(&zeros);
                let sums = gradient.iter().zip(momentum).map(|(g, m)| 0.999 * m + g);
                let left: Vec<f32> = sums.zip(arrived.view().to_f32().unwrap()).map(|(s, d)| s - d).collect();
                assert_eq!(state.momenta.get(input.name), Some(left.as_slice()), "{values:?} {}", input.name);
            }
            let saved = Feedback::load(state.momenta.save()).unwrap();
            assert_eq!(saved, state.momenta);
        }
        // Another shape and a NaN are refused, and the state is unchanged.
        let before = state.clone();
        for wrong in [
            TensorBuf::from_f32(vec![2, 2], &[0.0; 4]).unwrap(),
            TensorBuf::from_f32(vec![300], &[f32::NAN; 300]).unwrap(),
        ] {
            let input = Input { tensor: 0, name: "b", view: wrong.view(), base: None };
            assert!(matches!(state.step(&[input], &Options::default()), Err(Error::Input(_))));
            assert_eq!(state, before);
        }
    }
    for wrong in [
        DeMoOptions::default().with_decay(1.5),
        DeMoOptions::default().with_decay(f32::NAN),
        DeMoOptions::default().with_chunk(129),
        DeMoOptions::default().with_kept(0),
        DeMoOptions::default().with_values(Kept::Q4),
    ] {
        assert!(DeMo::new(wrong).is_err(), "{wrong:?}");
    }
}

/// Numbers near the largest of their type decode to finite numbers.
#[test]
fn large_numbers_arrive_finite() {
    for (dtype, large) in [(Dtype::F32, f32::MAX), (Dtype::F16, 65504.0), (Dtype::F8E4M3Fn, 448.0)] {
        let values: Vec<f32> = normal(4096, 5).iter().map(|x| large.copysign(*x)).collect();
        let mut data = vec![0; dtype.bytes_for(4096).unwrap() as usize];
        gcodec::internal::element::encode_f32s(dtype, &values, 0, &mut data).unwrap();
        let tensor = TensorBuf::new(dtype, vec![64, 64], data).unwrap();
        for spec in ["demo:chunk=64,kept=4,values=f32", "demo", "powersgd:rank=2"] {
            let codec: Codec = spec.parse().unwrap();
            let input = Input { tensor: 0, name: "w", view: tensor.view(), base: None };
            let mut feedback = Feedback::new();
            for feedback in [None, Some(&mut feedback)] {
                let blocks = compress(&[input], &[codec], &Options::default(), feedback).unwrap();
                let info = TensorInfo::new("w", dtype, [64, 64]);
                let manifest = Arc::new(Manifest::new(vec![info]).unwrap());
                let arrived = gcodec::decode(&stream(&manifest, &blocks, 0)).unwrap().remove(0).1;
                assert!(arrived.view().to_f32().unwrap().iter().all(|x| x.is_finite()), "{dtype} {spec}");
            }
            assert!(feedback.norm().is_finite(), "{dtype} {spec}");
        }
    }
}

fn stream(manifest: &Arc<Manifest>, blocks: &[CodedBlock], sender: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
    encoder.update(&mut out, &UpdateHeader::default().with_sender(sender), manifest, blocks).unwrap();
    encoder.finish(&mut out);
    out
}

/// Bits per kept coefficient, with everything in the block counted. The coefficients are independent and of
/// one size, which is the worst case. Bounds of papers.md: 12 bits of position and a sign at C = 4096, and
/// the enumerative floor log2 binomial(4096, k) / k.
#[test]
fn bits_for_each_kept() {
    let side = 1024;
    let values = normal(side * side, 8);
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [side as u64; 2])]).unwrap());
    for k in [1, 4, 8, 16, 32, 64] {
        let blocks = blocks_of(&[side as u64; 2], &values, &format!("demo:chunk=64,kept={k},values=sign"));
        let bytes = stream(&manifest, &blocks, 0).len() - stream(&manifest, &[], 0).len();
        let kept = (side * side / 4096 * k) as f64;
        let bits = 8.0 * bytes as f64 / kept;
        let floor = (0..k).map(|i| ((4096 - i) as f64 / (k - i) as f64).log2()).sum::<f64>() / k as f64 + 1.0;
        let p = k as f64 / 4096.0;
        let independent = -p.log2() - (1.0 - p) / p * (1.0 - p).log2() + 1.0;
        println!(
            "k = {k}: {bits:.3} bits for each kept, {:.4} bits per parameter; exactly k of 4096 {floor:.3}, independent \
             {independent:.3}, DeMo's fields 13",
            bits * p
        );
        // Headers take at most 32 bytes. The code makes no use of the fact that each chunk has exactly k
        // coefficients; otherwise the positions are independent. The Rice code costs up to 0.1 bit more than
        // the entropy of independent positions.
        let headers = 8.0 * 32.0 / kept;
        assert!(bits <= 13.0 + headers, "{k} {bits}");
        assert!(k < 4 || bits < independent + 0.1 + headers, "{k} {bits} {independent}");
    }
}

/// Covers every path through the receiver. Each coefficient is the mean over the senders that sent it. The
/// bits are the same everywhere.
#[test]
fn receivers_step_along_the_sign_of_the_mean() {
    let values = [normal(4096, 1), normal(4096, 2), normal(4096, 3)];
    let blocks: Vec<Block> =
        values.iter().map(|v| blocks_of(&[64, 64], v, "demo:kept=40,values=f32").remove(0).block).collect();
    let all: Vec<&Block> = blocks.iter().collect();
    let direction = demo::direction(&all).unwrap();
    // Expected direction: sums and counts of each coefficient, then the inverse transform of all means.
    let (mut sums, mut counts) = (vec![0.0f64; 4096], vec![0u32; 4096]);
    for block in &blocks {
        let (positions, numbers) = kept(block);
        for (p, x) in positions.into_iter().zip(numbers) {
            sums[p as usize] += f64::from(x);
            counts[p as usize] += 1;
        }
    }
    assert!(counts.contains(&1) && counts.contains(&2));
    let means: Vec<f32> = sums.iter().zip(&counts).map(|(s, &c)| (s / f64::from(c.max(1))) as f32).collect();
    let values = Values::Dct(Dct {
        rows: 64,
        cols: 64,
        chunk_rows: 64,
        chunk_cols: 64,
        support: Support::All,
        coefficients: Box::new(Values::Floats(Floats {
            stored: Stored::F32,
            bytes: means.iter().flat_map(|x| x.to_le_bytes()).collect(),
        })),
    });
    let dense = numbers(&Block { values, ..blocks[0].clone() }, 4096);
    let signs: Vec<f32> = dense.iter().map(|x| if *x == 0.0 { 0.0 } else { x.signum() }).collect();
    assert_eq!(direction, signs);
    assert_eq!(demo::direction(&[&Block { values: zeros(), ..blocks[0].clone() }]).unwrap(), [0.0; 4096]);
    let other = blocks_of(&[64, 64], &normal(4096, 1), "demo:chunk=32")[0].clone();
    for (wrong, sender) in [(vec![], 0), (vec![&blocks[0], &other], 1)] {
        let Error::Input(e) = demo::direction(&wrong).unwrap_err() else { panic!() };
        assert!(
            matches!(e.kind, InputErrorKind::CannotReduce { sender: Some(s), .. } if s == sender),
            "{e:?}"
        );
    }
}

fn zeros() -> Values {
    let coefficients = Box::new(Values::Floats(Floats { stored: Stored::F32, bytes: vec![] }));
    let (rows, cols, chunk_rows, chunk_cols) = (64, 64, 64, 64);
    Values::Dct(Dct {
        rows,
        cols,
        chunk_rows,
        chunk_cols,
        support: Support::Sparse(Sparse { positions: vec![] }),
        coefficients,
    })
}

#[test]
fn sums_are_taken_dense_and_between_equal_supports() {
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [64, 64])]).unwrap());
    let mut sum = Sum::new(&manifest, SumOptions::default());
    let mut expected = vec![0.0f64; 4096];
    for sender in 0..3 {
        let blocks = blocks_of(&[64, 64], &normal(4096, sender), "demo");
        let bytes = stream(&manifest, &blocks, sender);
        numbers(&blocks[0], 4096).iter().zip(&mut expected).for_each(|(x, s)| *s += f64::from(*x));
        for event in SliceReader::new(&bytes, Limits::default()) {
            if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
                sum.add(&part, 1.0).unwrap();
            }
        }
    }
    let total = sum.finish(false).unwrap().tensors().unwrap().remove(0).view().to_f32().unwrap();
    for (x, e) in total.iter().zip(&expected) {
        assert!((f64::from(*x) - e).abs() <= 1e-6 * e.abs().max(1.0), "{x} {e}");
    }
    let space = IndexSpace::flat(Dtype::F32, 4096);
    let of = |seed: u64, kept: &str| {
        blocks_of(&[64, 64], &normal(4096, seed), &format!("demo:kept={kept},values=f16")).remove(0)
    };
    let (a, b) = (of(1, "4096"), of(2, "4096"));
    let both = numbers(&add(&a, &b, &space, &Sets::new()).unwrap(), 4096);
    for ((x, a), b) in both.iter().zip(numbers(&a, 4096)).zip(numbers(&b, 4096)) {
        assert!((x - (a + b)).abs() < 1e-5);
    }
    let why = |a: &Block, b: &Block| add(a, b, &space, &Sets::new()).unwrap_err().to_string();
    assert!(why(&of(1, "32"), &of(2, "32")).contains("layouts or supports"));
    let signs = &blocks_of(&[64, 64], &normal(4096, 1), "demo")[0];
    assert!(why(signs, signs).contains("own scale"));
    assert!(why(signs, &streams_dense()).contains("layout"));
}

fn streams_dense() -> Block {
    let values = Values::Floats(Floats { stored: Stored::F32, bytes: vec![0; 4 * 4096] });
    Block { scope: Scope::Tensor(0), add: false, support: Support::All, values }
}
