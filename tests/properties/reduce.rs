//! Sums of the updates of several workers: their values, equal bits on every node, and refused combinations.

use std::sync::Arc;

use gcodec::block::{
    Bits, Block, Chunked, Floats, IndexSpace, Latent, PendingBlock, Pow2, Rows, Scope, Seeded, Set, Sets,
    Sparse, Stored, Support, Underflow, Values,
};
use gcodec::compress::{Input, Options, compress, random};
use gcodec::error::InputErrorKind;
use gcodec::frame::{Manifest, Reduction, TensorInfo, UpdateHeader};
use gcodec::reduce::{Precision, Sum, SumOptions, add, merge};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Dtype, Error, Limits, TensorBuf};

const N: usize = 600;

fn random_f32s(sender: u64) -> Vec<f32> {
    let word = |i: usize| random::word(7, sender, i as u64);
    (0..N).map(|i| (word(i) as i32 as f32) * 2f32.powi((word(i) % 40) as i32 - 50)).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn block(support: Support, values: Values) -> Block {
    Block { scope: Scope::Tensor(0), add: false, support, values }
}

fn floats(support: Support, values: &[f32]) -> Block {
    block(support, Values::Floats(Floats { stored: Stored::Source, bytes: bytes(values) }))
}

fn manifest(dtype: Dtype) -> Arc<Manifest> {
    Arc::new(Manifest::new(vec![TensorInfo::new("w", dtype, [N as u64])]).unwrap())
}

fn why(error: Error) -> (&'static str, Option<u64>) {
    match error {
        Error::Input(e) => match e.kind {
            InputErrorKind::CannotReduce { why, sender } => (why, sender),
            other => panic!("{other:?}"),
        },
        other => panic!("{other}"),
    }
}

/// Returns a stream with one update.
fn stream<'a, B: Into<PendingBlock<'a>>>(
    header: &UpdateHeader,
    manifest: &Arc<Manifest>,
    blocks: impl IntoIterator<Item = B>,
    part_bytes: u64,
) -> Vec<u8> {
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(part_bytes));
    let mut out = Vec::new();
    encoder.update(&mut out, header, manifest, blocks.into_iter().map(B::into)).unwrap();
    encoder.finish(&mut out);
    out
}

/// Adds every update part of a stream to the sum.
fn take(sum: &mut Sum<'_>, stream: &[u8], weight: f64) -> gcodec::Result<()> {
    for event in SliceReader::new(stream, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
            sum.add(&part, weight)?;
        }
    }
    Ok(())
}

/// The stream of a worker, and the numbers that a reader decodes from it.
type Sent = (Vec<u8>, Vec<f32>);

/// Returns the streams of three senders with different codecs.
fn workers() -> (Arc<Manifest>, Vec<Sent>) {
    let manifest = manifest(Dtype::F32);
    let codecs = ["topk:k=50", "natural:seed=3", "raw"];
    let of = |(sender, codec): (usize, &str)| {
        let tensor = TensorBuf::from_f32(vec![N as u64], &random_f32s(sender as u64)).unwrap();
        let input = Input { tensor: 0, name: "w", view: tensor.view(), base: None };
        let blocks = compress(&[input], &[codec.parse().unwrap()], &Options::default(), None).unwrap();
        let header = UpdateHeader::default().with_step(5).with_world(8).with_sender(sender as u64);
        let stream = stream(&header, &manifest, &blocks, 1 << 20);
        let decoded = f32s(gcodec::decode(&stream).unwrap()[0].1.data());
        (stream, decoded)
    };
    let workers = codecs.into_iter().enumerate().map(of).collect();
    (manifest, workers)
}

#[test]
fn a_sum_equals_the_sum_of_decoded_numbers_in_any_order_of_arrival() {
    let (manifest, workers) = workers();
    let reduced = |order: &[usize], options: SumOptions, mean| {
        let mut sum = Sum::new(&manifest, options);
        order.iter().for_each(|&i| take(&mut sum, &workers[i].0, 1.0).unwrap());
        assert_eq!(sum.senders().collect::<Vec<_>>(), [0, 1, 2]);
        sum.finish(mean).unwrap()
    };
    let first = reduced(&[0, 1, 2], SumOptions::default(), false);
    let expected: Vec<f32> = (0..N).map(|i| workers.iter().fold(0.0, |sum, w| sum + w.1[i])).collect();
    assert_eq!(f32s(first.tensors().unwrap()[0].data()), expected);
    for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let other = reduced(&order, SumOptions::default(), false);
        assert_eq!(other.blocks().unwrap(), first.blocks().unwrap(), "{order:?}");
        assert_eq!(other.header, first.header);
    }
    let header = &first.header;
    let fields = (header.step, header.world, header.contributors, header.reduction);
    assert_eq!(fields, (5, 8, 3, Reduction::Sum), "three of eight took part");

    let mean = reduced(&[2, 0, 1], SumOptions::default().with_precision(Precision::F64), true);
    let exact = |i: usize| (workers.iter().fold(0.0, |sum, w| sum + f64::from(w.1[i])) / 3.0) as f32;
    assert_eq!(f32s(mean.tensors().unwrap()[0].data()), (0..N).map(exact).collect::<Vec<_>>());
    assert_eq!(mean.header.reduction, Reduction::Mean);

    // A sum can be sent as an update, and sums can be added.
    let again = stream(&first.header, &manifest, first.blocks().unwrap(), 1 << 20);
    assert_eq!(f32s(gcodec::decode(&again).unwrap()[0].1.data()), expected);
    let mut sum = Sum::new(&manifest, SumOptions::default());
    take(&mut sum, &again, 1.0).unwrap();
    let other = first.header.clone().with_sender(1);
    take(&mut sum, &stream(&other, &manifest, first.blocks().unwrap(), 1 << 20), 1.0).unwrap();
    let twice = sum.finish(true).unwrap();
    assert_eq!(twice.header.contributors, 6);
    let sixth = |x: &f32| (f64::from(x + x) / 6.0) as f32;
    assert_eq!(f32s(twice.tensors().unwrap()[0].data()), expected.iter().map(sixth).collect::<Vec<_>>());
}

/// Returns an update decoded and sent again as raw elements.
fn as_raw(sent: &[u8], header: &UpdateHeader, manifest: &Arc<Manifest>) -> Vec<u8> {
    let decoded = gcodec::decode(sent).unwrap().into_iter().enumerate();
    let blocks = decoded.map(|(tensor, (_, decoded))| Block {
        scope: Scope::Tensor(tensor as u64),
        add: false,
        support: Support::All,
        values: Values::Floats(Floats { stored: Stored::Source, bytes: decoded.data().to_vec() }),
    });
    stream(header, manifest, blocks.collect::<Vec<_>>(), 1 << 20)
}

/// Sums the same numbers twice: as sparse updates, and each decoded and sent again as raw elements.
#[test]
fn sparse_updates_give_the_bits_of_dense_ones() {
    const LENS: [u64; 4] = [70_000, 3, 1, 40_000];
    let infos =
        |dtype| LENS.iter().enumerate().map(move |(i, &n)| TensorInfo::new(format!("t{i}"), dtype, [n]));
    let all: u64 = LENS.iter().sum();
    for (dtype, precision, mean, weighted) in [
        (Dtype::F32, Precision::F32, false, false),
        (Dtype::F32, Precision::F32, true, false),
        (Dtype::F32, Precision::F32, true, true),
        (Dtype::F32, Precision::F64, true, true),
        (Dtype::Bf16, Precision::F32, true, true),
    ] {
        let manifest = Arc::new(Manifest::new(infos(dtype).collect()).unwrap());
        let mut sums = [0; 2].map(|_| Sum::new(&manifest, SumOptions::default().with_precision(precision)));
        for sender in 0..5u64 {
            let chosen = |step| move |i: &u64| random::word(sender, u64::from(step), *i) % step < 2;
            let number = |&i: &u64| match random::word(sender, 9, i) {
                word if word % 97 == 0 => [f32::NAN, f32::INFINITY, -0.0, 1e-42][(word / 97 % 4) as usize],
                word => (word as i32 as f32) * 2f32.powi((word % 40) as i32 - 50),
            };
            let sparse = |scope, n, step| {
                let positions: Vec<u64> = (0..n).filter(chosen(step)).collect();
                let bytes = positions.iter().flat_map(|i| number(i).to_le_bytes()).collect();
                let values = Values::Floats(Floats { stored: Stored::F32, bytes });
                Block { scope, add: false, support: Support::Sparse(Sparse { positions }), values }
            };
            // Senders cut the tensors into blocks in different ways. One has two blocks for the last tensor.
            let mut blocks = match sender {
                0 => vec![sparse(Scope::Tensors { first: 0, count: 4 }, all, 50)],
                1 => vec![sparse(Scope::Tensors { first: 0, count: 2 }, 70_003, 9)],
                2 => vec![sparse(Scope::Tensor(0), 70_000, 300), sparse(Scope::Tensor(3), 40_000, 3)],
                3 => vec![sparse(Scope::Tensors { first: 1, count: 3 }, 40_004, 11)],
                _ => vec![sparse(Scope::Tensor(2), 1, 2)],
            };
            if sender == 2 && weighted {
                blocks.push(Block { add: true, ..sparse(Scope::Tensor(3), 40_000, 70) });
            }
            let header = UpdateHeader::default().with_sender(sender);
            let weight = if weighted { 0.3 * (sender + 1) as f64 } else { 1.0 };
            let sent = stream(&header, &manifest, &blocks, 1 << 20);
            take(&mut sums[0], &sent, weight).unwrap();
            take(&mut sums[1], &as_raw(&sent, &header, &manifest), weight).unwrap();
        }
        let [one, two] = sums.map(|sum| sum.finish(mean).unwrap());
        assert_eq!(one.blocks().unwrap(), two.blocks().unwrap(), "{dtype:?} {precision:?} {mean} {weighted}");
        let tensors = one.tensors().unwrap();
        assert_eq!(tensors, two.tensors().unwrap());
        assert_eq!(tensors, one.into_tensors().unwrap());
        assert!(tensors[0].data().iter().any(|&b| b != 0));
    }
}

#[test]
fn weights_scale_and_a_mean_divides_by_them() {
    let manifest = manifest(Dtype::F32);
    let mut sum = Sum::new(&manifest, SumOptions::default());
    for (sender, (value, weight)) in [(4.0, 3.0), (8.0, 1.0)].into_iter().enumerate() {
        let header = UpdateHeader::default().with_sender(sender as u64);
        let blocks = [floats(Support::All, &[value; N])];
        take(&mut sum, &stream(&header, &manifest, &blocks, 1 << 20), weight).unwrap();
    }
    assert_eq!(f32s(sum.finish(true).unwrap().tensors().unwrap()[0].data()), [5.0; N]);
}

#[test]
fn integers_are_exact_or_refused() {
    let manifest = manifest(Dtype::I8);
    let of = |values: i8| {
        block(Support::All, Values::Floats(Floats { stored: Stored::Source, bytes: vec![values as u8; N] }))
    };
    let total = |values: &[i8]| {
        let mut sum = Sum::new(&manifest, SumOptions::default());
        for (sender, &v) in values.iter().enumerate() {
            let header = UpdateHeader::default().with_sender(sender as u64);
            take(&mut sum, &stream(&header, &manifest, &[of(v)], 1 << 20), 1.0).unwrap();
        }
        sum.finish(false).unwrap().tensors()
    };
    // The running sum overflows the type and returns into its range.
    assert_eq!(total(&[100, 100, -128]).unwrap()[0].data(), [72; N]);
    assert!(why(total(&[100, 100]).unwrap_err()).0.contains("does not fit"));
    let space = IndexSpace::flat(Dtype::I8, N as u64);
    assert_eq!(add(&of(-100), &of(-28), &space, &Sets::new()).unwrap(), of(-128));
    assert!(why(add(&of(-100), &of(-29), &space, &Sets::new()).unwrap_err()).0.contains("does not fit"));
    let mut sum = Sum::new(&manifest, SumOptions::default());
    let one = stream(&UpdateHeader::default(), &manifest, &[of(1)], 1 << 20);
    assert!(why(take(&mut sum, &one, 0.5).unwrap_err()).0.contains("weight"));
    take(&mut sum, &one, 1.0).unwrap();
    assert!(why(sum.finish(true).unwrap_err()).0.contains("mean"));
}

#[test]
fn invalid_combinations_are_refused_and_change_nothing() {
    let manifest = manifest(Dtype::F32);
    let ones = || vec![floats(Support::All, &[1.0; N])];
    let base = || UpdateHeader::default().with_step(3).with_world(4);
    let mut sum = Sum::new(&manifest, SumOptions::default());
    take(&mut sum, &stream(&base(), &manifest, ones(), 1 << 20), 1.0).unwrap();
    let delta = gcodec::frame::Delta { first: 0, more: 0, base: [0; 16], result: [0; 16] };
    let one = || base().with_sender(1);
    for (header, reason) in [
        (base(), "added before"),
        (one().with_step(4), "another step"),
        (one().with_world(5), "number of senders"),
        (one().with_reduction(Reduction::Mean).with_contributors(2), "it is a mean"),
        (one().with_reduction(Reduction::Sum), "unknown number"),
        (one().with_reduction(Reduction::Sum).with_contributors(2), "twice"),
        (one().with_delta(Some(vec![delta])), "a delta"),
    ] {
        let sender = header.sender;
        let refused = take(&mut sum, &stream(&header, &manifest, ones(), 1 << 20), 1.0);
        let (found, who) = why(refused.unwrap_err());
        assert!(found.contains(reason) && who == Some(sender), "{found}");
    }
    let other = Arc::new(Manifest::new(vec![TensorInfo::new("v", Dtype::F32, [N as u64])]).unwrap());
    let refused = take(&mut sum, &stream(&one(), &other, ones(), 1 << 20), 1.0);
    let (found, who) = why(refused.unwrap_err());
    assert!(found.ends_with("another manifest") && who == Some(1), "{found}");
    let named = |names: [&str; 2]| {
        let infos = names.map(|name| TensorInfo::new(name, Dtype::F32, [N as u64]));
        Arc::new(Manifest::new(infos.to_vec()).unwrap())
    };
    let (sorted, turned) = (named(["a", "b"]), named(["b", "a"]));
    let refused =
        take(&mut Sum::new(&sorted, SumOptions::default()), &stream(&base(), &turned, ones(), 1 << 20), 1.0);
    let (found, _) = why(refused.unwrap_err());
    assert!(found.ends_with("the same tensors in another order"), "{found}");
    let latent = Values::Latent(Latent {
        model: gcodec::block::ModelId([1; 32]),
        shape: vec![2],
        codes: Box::new(Values::Floats(Floats { stored: Stored::F32, bytes: vec![0; 8] })),
    });
    let latent = stream(&one(), &manifest, &[block(Support::All, latent)], 1 << 20);
    assert_eq!(take(&mut sum, &latent, 1.0).unwrap_err().name(), "unknown_reference");
    assert!(take(&mut sum, &stream(&one(), &manifest, ones(), 1 << 20), f64::NAN).is_err());
    let reduced = sum.finish(false).unwrap();
    assert_eq!(f32s(reduced.tensors().unwrap()[0].data()), [1.0; N]);
    assert_eq!(reduced.header.contributors, 1);
    assert!(Sum::new(&manifest, SumOptions::default()).finish(false).is_err());
}

#[test]
fn parts_must_be_complete_and_in_order() {
    let manifest = manifest(Dtype::F32);
    let half = N as u64 / 2;
    let range = |start| Block {
        scope: Scope::Range { tensor: 0, start, len: half },
        ..floats(Support::All, &vec![start as f32 + 1.0; half as usize])
    };
    let bytes = stream(&UpdateHeader::default(), &manifest, &[range(0), range(half)], 1);
    let parts: Vec<_> = SliceReader::new(&bytes, Limits::default())
        .filter_map(|event| match event.unwrap() {
            Event::Frame(_, Body::Update(part)) => Some(part),
            _ => None,
        })
        .collect();
    assert_eq!(parts.len(), 2);
    let mut sum = Sum::new(&manifest, SumOptions::default());
    assert!(why(sum.add(&parts[1], 1.0).unwrap_err()).0.contains("first part"));
    sum.add(&parts[0], 1.0).unwrap();
    assert!(why(sum.add(&parts[0], 1.0).unwrap_err()).0.contains("a part of it is missing"));
    assert!(why(sum.add(&parts[1], 2.0).unwrap_err()).0.contains("weights"));
    sum.add(&parts[1], 1.0).unwrap();
    let sums = f32s(sum.finish(false).unwrap().tensors().unwrap()[0].data());
    assert_eq!((sums[0], sums[N - 1]), (1.0, half as f32 + 1.0));
    let mut sum = Sum::new(&manifest, SumOptions::default());
    sum.add(&parts[0], 1.0).unwrap();
    assert_eq!(why(sum.finish(false).unwrap_err()), ("its last part is missing", Some(0)));
}

#[test]
fn memory_is_bounded() {
    let manifest = manifest(Dtype::F32);
    let limits = Limits::default().with_max_alloc_bytes(5 * N as u64);
    let mut sum = Sum::new(&manifest, SumOptions::default().with_limits(limits));
    let of = |sender| UpdateHeader::default().with_sender(sender);
    let ones = [floats(Support::All, &[1.0; N])];
    take(&mut sum, &stream(&of(0), &manifest, &ones, 1 << 20), 1.0).unwrap();
    assert_eq!(take(&mut sum, &stream(&of(1), &manifest, &ones, 1 << 20), 1.0).unwrap_err().name(), "limit");
    assert_eq!(sum.finish(false).unwrap_err().name(), "limit", "accumulators and one expanded update");
}

#[test]
fn blocks_of_one_support_are_added_in_every_linear_storage() {
    let space = IndexSpace::flat(Dtype::F32, 8);
    let sets = Sets::new();
    let supports = [
        (Support::All, 8),
        (Support::Sparse(Sparse { positions: vec![1, 5] }), 2),
        (Support::Chunked(Chunked { chunk_len: 4, kept: 1, positions: vec![3, 0] }), 2),
        (Support::Rows(Rows { row_len: 2, rows: vec![0, 3] }), 4),
        (Support::Seeded(Seeded { count: 3, seed: 9 }), 3),
    ];
    for (support, count) in supports {
        let (a, b) = (floats(support.clone(), &vec![0.1; count]), floats(support.clone(), &vec![0.2; count]));
        let sum = add(&a, &b, &space, &sets).unwrap();
        assert_eq!(sum, floats(support, &vec![0.1 + 0.2; count]));
    }
    // The sum of these f16 numbers is not an f16 number. It is exact, stored as the f32 of the tensor.
    let half = |bits: u16| {
        block(
            Support::All,
            Values::Floats(Floats { stored: Stored::F16, bytes: bits.to_le_bytes().repeat(8) }),
        )
    };
    let sum = add(&half(0x3c00), &half(0x1000), &space, &sets).unwrap();
    let expected =
        Values::Floats(Floats { stored: Stored::Source, bytes: bytes(&[1.0 + 2f32.powi(-11); 8]) });
    assert_eq!(sum.values, expected);
}

#[test]
fn blocks_that_have_no_sum_are_refused_with_the_reason() {
    let space = IndexSpace::flat(Dtype::F32, 8);
    let all = floats(Support::All, &[1.0; 8]);
    let sums = |a: &Block, b: &Block| add(a, b, &space, &Sets::new());
    let elsewhere = Block { scope: Scope::Tensor(1), ..all.clone() };
    assert!(why(sums(&all, &elsewhere).unwrap_err()).0.contains("different tensors"));
    let adding = Block { add: true, ..all.clone() };
    assert!(why(sums(&all, &adding).unwrap_err()).0.contains("replaces"));
    let sparse = |p| floats(Support::Sparse(Sparse { positions: vec![p] }), &[1.0]);
    assert!(why(sums(&sparse(1), &sparse(2)).unwrap_err()).0.contains("different elements"));
    let negative: Bits = (0..8).map(|_| false).collect();
    let pow2 =
        Values::Pow2(Pow2 { min_exponent: 0, underflow: Underflow::Zero, codes: vec![1; 8], negative });
    let pow2 = block(Support::All, pow2);
    assert!(why(sums(&pow2, &pow2).unwrap_err()).0.contains("powers of two"));
    let short = floats(Support::All, &[1.0; 7]);
    assert_eq!(
        sums(&short, &short).unwrap_err().to_string(),
        "inconsistent block: number of floats (tensor 0)"
    );
    let set = floats(Support::Set(Set { id: gcodec::block::SetId([1; 32]) }), &[1.0; 8]);
    assert_eq!(sums(&set, &set).unwrap_err().name(), "unknown_reference");
}

#[test]
fn a_merge_is_the_union_and_sums_in_order() {
    let space = IndexSpace::flat(Dtype::F32, 8);
    let of = |positions: &[u64], values: &[f32]| {
        floats(Support::Sparse(Sparse { positions: positions.to_vec() }), values)
    };
    let (a, b, c) = (of(&[1, 5], &[1e8, 2.0]), of(&[0, 1], &[3.0, 1.0]), of(&[1, 7], &[-1e8, 4.0]));
    let merged = merge(&[&a, &b, &c], &space).unwrap();
    assert_eq!(merged, of(&[0, 1, 5, 7], &[3.0, (1e8 + 1.0) - 1e8, 2.0, 4.0]));
    let other = merge(&[&a, &c, &b], &space).unwrap();
    assert_eq!(other, of(&[0, 1, 5, 7], &[3.0, 1.0, 2.0, 4.0]), "another order, another sum");
    let dense = floats(Support::All, &[0.0; 8]);
    assert_eq!(why(merge(&[&a, &dense], &space).unwrap_err()), ("it is not sparse", Some(1)));
    assert!(merge(&[&of(&[5, 1], &[0.0, 0.0])], &space).is_err());
    assert!(merge(&[], &space).is_err());
}

/// Blocks of two senders join all tensors in a chain, and one dense block at its end decides for all of them.
#[test]
fn tensors_that_blocks_join_are_summed_alike() {
    const TENSORS: u64 = 20_000;
    let infos = (0..TENSORS).map(|i| TensorInfo::new(format!("t{i}"), Dtype::F32, [1]));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let pair = |first| Block {
        scope: Scope::Tensors { first, count: 2 },
        add: false,
        support: Support::Sparse(Sparse { positions: vec![0, 1] }),
        values: Values::Floats(Floats { stored: Stored::F32, bytes: bytes(&[1.0, 1.0]) }),
    };
    let last = Block { scope: Scope::Tensor(TENSORS - 1), ..floats(Support::All, &[5.0]) };
    let senders: [Vec<Block>; 3] = [
        (0..TENSORS).step_by(2).map(pair).collect(),
        (1..TENSORS - 2).step_by(2).map(pair).collect(),
        vec![last],
    ];
    let mut sum = Sum::new(&manifest, SumOptions::default());
    for (sender, blocks) in (0..).zip(&senders) {
        let header = UpdateHeader::default().with_sender(sender);
        take(&mut sum, &stream(&header, &manifest, blocks, 1 << 20), 1.0).unwrap();
    }
    let tensors = sum.finish(false).unwrap().into_tensors().unwrap();
    let found: Vec<f32> = tensors.iter().flat_map(|t| f32s(t.data())).collect();
    assert_eq!((found[0], found[1], found[19_998], found[19_999]), (1.0, 2.0, 2.0, 6.0));
    assert!(found[1..19_999].iter().all(|&x| x == 2.0));
}

#[test]
fn weighted_sparse_updates_of_a_large_tensor_give_the_bits_of_dense_ones() {
    // More elements than one thread sums at a time.
    const ELEMENTS: u64 = (1 << 20) + 70_000;
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [ELEMENTS])]).unwrap());
    for mean in [false, true] {
        let mut sums = [0; 2].map(|_| Sum::new(&manifest, SumOptions::default()));
        for (sender, weight) in [(0, 1.0), (1, 0.7), (2, 2.5)] {
            let chosen = |i: &u64| *i == ELEMENTS - 1 || random::word(sender, 1, *i) % 500 < 2;
            let positions: Vec<u64> = (0..ELEMENTS).filter(chosen).collect();
            let number = |&i: &u64| (random::word(sender, 2, i) as i32 as f32).to_le_bytes();
            let bytes = positions.iter().flat_map(number).collect();
            let values = Values::Floats(Floats { stored: Stored::Source, bytes });
            let blocks = [block(Support::Sparse(Sparse { positions }), values)];
            let header = UpdateHeader::default().with_sender(sender);
            let sent = stream(&header, &manifest, &blocks, 1 << 20);
            take(&mut sums[0], &sent, weight).unwrap();
            take(&mut sums[1], &as_raw(&sent, &header, &manifest), weight).unwrap();
        }
        let [one, two] = sums.map(|sum| sum.finish(mean).unwrap());
        assert!(one.tensors().unwrap() == two.tensors().unwrap(), "mean {mean}");
    }
}
