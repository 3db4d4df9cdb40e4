use super::*;
use crate::block::{
    Affine, Bits, BlockOptions, Entropy, Floats, Groups, Levels, Norm, PendingBlock, Planes, Pow2,
    ScaleFormat, Scales, Sign, Spacing, Sparse, Stored, Ulp, Underflow, Values, Zero,
};
use crate::error::{InputError, LimitError, Location};
use crate::frame::{Delta, TensorInfo};
use crate::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use crate::tensor::Dtype;

fn manifest(tensors: &[(Dtype, u64)]) -> Arc<Manifest> {
    let infos = tensors.iter().enumerate();
    let infos = infos.map(|(i, &(dtype, n))| TensorInfo::new(format!("t{i}"), dtype, [n]));
    Arc::new(Manifest::new(infos.collect()).unwrap())
}

fn all(_: &str) -> bool {
    true
}

fn block(scope: Scope, support: Support, values: Values) -> Block {
    Block { scope, add: false, support, values }
}

fn sparse(scope: Scope, position: u64, value: f32) -> Block {
    let values = Values::Floats(Floats { stored: Stored::F32, bytes: value.to_le_bytes().to_vec() });
    block(scope, Support::Sparse(Sparse { positions: vec![position] }), values)
}

/// Returns a stream of one update, in parts of one block if `cut`.
fn encode<'a, B: Into<PendingBlock<'a>>>(
    manifest: &Arc<Manifest>,
    header: &UpdateHeader,
    blocks: impl IntoIterator<Item = B>,
    cut: bool,
) -> Vec<u8> {
    let part_bytes = if cut { 1 } else { 1 << 20 };
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(part_bytes));
    let mut out = Vec::new();
    encoder.update(&mut out, header, manifest, blocks.into_iter().map(B::into)).unwrap();
    encoder.finish(&mut out);
    out
}

fn parts(stream: &[u8], limits: Limits) -> Vec<Box<UpdatePart<'_>>> {
    let update = |event| match event {
        Event::Frame(_, Body::Update(part)) => Some(part),
        _ => None,
    };
    SliceReader::new(stream, limits).filter_map(|event| update(event.unwrap())).collect()
}

fn apply_all(assembler: &mut Assembler<'_>, stream: &[u8]) -> Result<()> {
    parts(stream, Limits::default()).iter().try_for_each(|part| assembler.apply(part))
}

fn refused<T>(result: Result<T>) -> InputError {
    match result.err() {
        Some(Error::Input(e)) => e,
        other => panic!("{other:?}"),
    }
}

fn f32s(values: &[f32]) -> TensorBuf {
    TensorBuf::from_f32(vec![values.len() as u64], values).unwrap()
}

fn run(first: u64, before: &[TensorBuf], after: &[TensorBuf]) -> Delta {
    let digest = |tensors: &[TensorBuf]| {
        run_digest(&tensors.iter().map(|t| tensor_digest(t.view())).collect::<Vec<_>>())
    };
    Delta { first, more: before.len() as u64 - 1, base: digest(before), result: digest(after) }
}

/// A delta that sets the second element of a run of three tensors of zeros, and its result.
fn delta_of_three() -> (Arc<Manifest>, Vec<u8>, Vec<TensorBuf>, TensorBuf) {
    let manifest = manifest(&[(Dtype::F32, 4); 3]);
    let before = vec![f32s(&[0.0; 4]); 3];
    let changed = f32s(&[0.0, 5.0, 0.0, 0.0]);
    let after = [changed.clone(), before[1].clone(), before[2].clone()];
    let header = UpdateHeader::default().with_delta(Some(vec![run(0, &before, &after)]));
    let stream = encode(&manifest, &header, &[sparse(Scope::Tensor(0), 1, 5.0)], false);
    (manifest, stream, before, changed)
}

fn limit_error(asked: u64, allowed: u64) -> LimitError {
    LimitError { limit: MEMORY, asked, allowed, at: Location::at(0) }
}

#[test]
fn wanted_tensors_are_limited_together() {
    let manifest = manifest(&[(Dtype::F32, 10), (Dtype::F64, 5)]);
    for (wanted, bytes) in [("t", 80), ("t0", 40)] {
        let limits = |limit| Limits::default().with_max_alloc_bytes(limit);
        let of = |limit| Assembler::new(&manifest, &limits(limit), |name| name.starts_with(wanted));
        assert!(of(bytes).is_ok());
        let Err(Error::Limit(e)) = of(bytes - 1) else { panic!("{bytes} bytes are allowed") };
        assert_eq!(e, limit_error(bytes, bytes - 1));
    }
}

#[test]
fn tensors_for_a_common_digest_count_against_the_limit() {
    let (manifest, stream, base, changed) = delta_of_three();
    for limit in [48, 47] {
        let limits = Limits::default().with_max_alloc_bytes(limit);
        let mut assembler = Assembler::new(&manifest, &limits, |name| name == "t0").unwrap();
        for (name, tensor) in ["t0", "t1", "t2"].into_iter().zip(&base) {
            assembler.base(name, tensor.view()).unwrap();
        }
        match apply_all(&mut assembler, &stream) {
            Ok(()) if limit == 48 => assert_eq!(assembler.finish().unwrap(), [(0, changed.clone())]),
            Err(Error::Limit(e)) if limit == 47 => assert_eq!(e, limit_error(16, 15)),
            other => panic!("{limit}: {other:?}"),
        }
    }
}

#[test]
fn bases_of_another_type_or_shape_are_refused() {
    let manifest = manifest(&[(Dtype::F32, 4), (Dtype::F32, 4)]);
    let ints = TensorBuf::new(Dtype::I32, vec![4], vec![0; 16]).unwrap();
    let longer = f32s(&[0.0; 5]);
    let mut assembler = Assembler::new(&manifest, &Limits::default(), all).unwrap();
    let kind = InputErrorKind::BaseOfAnotherKind;
    for base in [&ints, &longer] {
        let expected = InputError { kind, tensor: Some(1) };
        assert_eq!(refused(assembler.base("t1", base.view())), expected);
        assert_eq!(
            refused(assembler.base_with_digests("t1", base.view(), TensorDigests::default())),
            expected
        );
        assembler.base("another", base.view()).unwrap();
    }
}

#[test]
fn digests_of_a_delta_come_back() {
    let manifest = manifest(&[(Dtype::F32, 2); 3]);
    let (before, after) = (f32s(&[0.0, 0.0]), f32s(&[0.0, 5.0]));
    let hashes = run(0, std::slice::from_ref(&before), std::slice::from_ref(&after));
    let [base, result] =
        [&before, &after].map(|tensor| manifest.tensors()[0].sum_digest(tensor.view()).unwrap());
    let sums = Delta { first: 0, more: 0, base, result };
    let block = sparse(Scope::Tensor(0), 1, 5.0);
    let delta = |hashed: bool, summed: bool| {
        let header = UpdateHeader::default().with_delta(hashed.then(|| vec![hashes]));
        header.with_sums(summed.then(|| vec![sums]))
    };
    let right = TensorDigests { hash: Some(hashes.base), sum: Some(base) };
    let changed = TensorDigests { hash: Some(hashes.result), sum: Some(result) };
    // The digests of a tensor that does not change are the caller's, all wrong.
    let wrong = TensorDigests { hash: Some([9; 16]), sum: SumDigest::from_bytes([9; 16]) };
    let none = TensorDigests::default();
    for (header, expected) in [
        (delta(true, true), [changed, wrong, none]),
        (delta(true, false), [TensorDigests { sum: None, ..changed }, wrong, none]),
        (delta(false, true), [TensorDigests { hash: None, ..changed }, wrong, none]),
        (delta(false, false), [none; 3]),
    ] {
        let stream = encode(&manifest, &header, [&block], false);
        for digests in [right, none] {
            let mut assembler = Assembler::new(&manifest, &Limits::default(), all).unwrap();
            assembler.base_with_digests("t0", before.view(), digests).unwrap();
            assembler.base_with_digests("t1", before.view(), wrong).unwrap();
            assembler.base("t2", before.view()).unwrap();
            apply_all(&mut assembler, &stream).unwrap();
            let found = assembler.finish_with_digests().unwrap();
            let tensors = [&after, &before, &before];
            for ((number, (found, expected)), tensor) in (0..).zip(found.iter().zip(expected)).zip(tensors) {
                assert_eq!(found, &(number, tensor.clone(), expected));
            }
        }
        // Digests are not computed again: wrong ones are of another base.
        if header.is_delta() {
            let mut assembler = Assembler::new(&manifest, &Limits::default(), all).unwrap();
            assembler.base_with_digests("t0", before.view(), wrong).unwrap();
            let applied = apply_all(&mut assembler, &stream);
            assert_eq!(refused(applied).kind, InputErrorKind::BaseMismatch);
        }
    }
}

#[test]
fn only_the_next_part_of_the_update_is_taken() {
    let this = manifest(&[(Dtype::F32, 2); 2]);
    let blocks = [sparse(Scope::Tensor(0), 1, 1.0), sparse(Scope::Tensor(1), 0, 2.0)];
    let streams = [1, 2].map(|step| encode(&this, &UpdateHeader::default().with_step(step), &blocks, true));
    let [one, two] = [0, 1].map(|i| parts(&streams[i], Limits::default()));
    let mut assembler = Assembler::new(&this, &Limits::default(), all).unwrap();
    let mismatch = |what| InputErrorKind::Mismatch { what };
    let another = manifest(&[(Dtype::F32, 3); 2]);
    let of_another = encode(&another, &UpdateHeader::default(), &blocks, true);
    let applied = apply_all(&mut assembler, &of_another);
    assert_eq!(refused(applied).kind, mismatch("manifests"));
    // The first part is missing; then a part of another update, and a repeated one.
    assert_eq!(refused(assembler.apply(&one[1])).kind, mismatch("part and update"));
    assembler.apply(&one[0]).unwrap();
    for wrong in [&two[1], &one[0]] {
        assert_eq!(refused(assembler.apply(wrong)).kind, mismatch("part and update"));
    }
    assembler.apply(&one[1]).unwrap();
    let expected = [(0, f32s(&[0.0, 1.0])), (1, f32s(&[2.0, 0.0]))];
    assert_eq!(assembler.finish().unwrap(), expected);
}

#[test]
fn tensors_with_a_block_are_touched() {
    let manifest = manifest(&[(Dtype::F32, 2); 3]);
    let planes = block(Scope::Tensor(1), Support::All, Values::Planes(Planes { bytes: vec![1; 8] }));
    let adding = Block { add: true, ..sparse(Scope::Tensor(1), 0, 1.0) };
    for block in [planes, adding, sparse(Scope::Tensor(1), 0, 1.0)] {
        let mut assembler = Assembler::new(&manifest, &Limits::default(), all).unwrap();
        apply_all(&mut assembler, &encode(&manifest, &UpdateHeader::default(), [&block], false)).unwrap();
        let touched = [0, 1, 2, 3, u64::MAX].map(|tensor| assembler.touches(tensor));
        assert_eq!(touched, [false, true, false, false, false], "{block:?}");
    }
}

#[test]
fn small_blocks_are_decoded_together_and_large_ones_a_few_at_a_time() {
    const THREADS: usize = 3;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().unwrap();
    // Blocks of tensors of these lengths, some of them dense: how many are decoded together, and their
    // elements and bytes.
    let batches = |lens: &[u64], is_dense: fn(usize) -> bool| {
        let manifest = manifest(&Vec::from_iter(lens.iter().map(|&len| (Dtype::F32, len))));
        let ones =
            |len| Values::Floats(Floats { stored: Stored::F32, bytes: 1f32.to_le_bytes().repeat(len) });
        let block = |(i, &len): (usize, &u64)| match is_dense(i) {
            true => block(Scope::Tensor(i as u64), Support::All, ones(len as usize)),
            false => sparse(Scope::Tensor(i as u64), 0, 1.0),
        };
        let blocks: Vec<Block> = lens.iter().enumerate().map(block).collect();
        let stream = encode(&manifest, &UpdateHeader::default(), &blocks, false);
        let part = parts(&stream, Limits::default()).remove(0);
        let (numbers, mut found) = (Vec::from_iter(0..part.blocks.len()), Vec::new());
        while found.iter().sum::<usize>() < numbers.len() {
            let rest = &numbers[found.iter().sum()..];
            found.push(pool.install(|| batch_len(&part, rest)));
        }
        (found, part.blocks.iter().map(|raw| raw.space.len() + raw.len).sum::<u64>())
    };
    let found = |lens: &[u64], is_dense| batches(lens, is_dense).0;
    assert_eq!(found(&[TOGETHER; 5 * THREADS], |_| false), [2 * THREADS, 2 * THREADS, THREADS]);
    assert_eq!(found(&[1 << 11; 10 * THREADS], |_| true), [8 * THREADS, 2 * THREADS]);
    assert_eq!(found(&[100; 9], |i| (2..5).contains(&i)), [2, 3, 4]);
    // Up to a number of elements and bytes, small blocks are one batch.
    let mut lens = vec![100; 20 * THREADS];
    let (_, weight) = batches(&lens, |_| false);
    lens[0] += TOGETHER - weight;
    assert_eq!(batches(&lens, |_| false), (vec![20 * THREADS], TOGETHER));
    lens[0] += 1;
    assert_eq!(found(&lens, |_| false), [20 * THREADS - 1, 1]);
    // A large block ends a batch of small ones.
    lens = vec![100; 8 * THREADS];
    lens.insert(4 * THREADS, TOGETHER);
    assert_eq!(found(&lens, |_| false), [4 * THREADS, 2 * THREADS, 2 * THREADS + 1]);
}

#[test]
fn each_dense_block_may_take_all_memory() {
    const N: u64 = 64;
    let manifest = manifest(&[(Dtype::F32, N); 4]);
    let blocks: Vec<Block> = (0..4)
        .map(|tensor| {
            let levels = Levels {
                spacing: Spacing::Uniform,
                max_level: 1000,
                norm: Norm::Max,
                groups: Groups::Block,
                norms: Scales::from_f32s(ScaleFormat::F32, &[1000.0]),
                levels: (0..N as i32).map(|i| i * 15 - 400 + tensor).collect(),
            };
            block(Scope::Tensor(tensor as u64), Support::All, Values::Levels(levels))
        })
        .collect();
    let options = BlockOptions::default().with_entropy(Entropy::Packed);
    let coded: Vec<_> = blocks.iter().map(|block| (block, options)).collect();
    let stream = encode(&manifest, &UpdateHeader::default(), &coded, false);
    // The codes of one block take 8 bytes each.
    for (limit, fits) in [(8 * N, true), (8 * N - 1, false)] {
        let mut assembler = Assembler::new(&manifest, &Limits::default(), all).unwrap();
        let parts = parts(&stream, Limits::default().with_max_alloc_bytes(limit));
        let [part] = &parts[..] else { panic!("one part") };
        match assembler.apply(part) {
            Ok(()) if fits => {
                let tensors = assembler.finish().unwrap();
                let level = |tensor: u64, i: u64| (i * 15 + tensor) as f32 - 400.0;
                for (number, tensor) in tensors {
                    let expected = (0..N).map(|i| level(number, i)).collect::<Vec<_>>();
                    assert_eq!(tensor, f32s(&expected), "{number}");
                }
            }
            Err(Error::Limit(e)) if !fits => assert_eq!((e.limit, e.asked), (MEMORY, 8 * N)),
            other => panic!("{limit}: {other:?}"),
        }
    }
}

/// Blocks that begin and end inside a byte.
/// A dense block of several tensors is decoded like one that is applied, whether all of them are wanted or
/// some.
#[test]
fn a_dense_block_of_several_tensors_is_decoded_into_each() {
    let lens = [5000, 0, 3, 4100];
    let n: u64 = lens.iter().sum();
    let scope = Scope::Tensors { first: 1, count: 4 };
    let word = |i: u64| crate::random::word(3, 0, i);
    let codes: Vec<u8> = (0..n).map(|i| (word(i) % 7) as u8).collect();
    let scales = |count: u64| {
        let scales: Vec<f32> = (0..count).map(|i| 1.0 + i as f32).collect();
        Scales::from_f32s(ScaleFormat::F32, &scales)
    };
    let negative: Bits = (0..n).map(|i| codes[i as usize] > 0 && word(i) >> 31 == 1).collect();
    let mut kinds = vec![
        Values::Planes(Planes { bytes: (0..4 * n).map(|i| word(i) as u8).collect() }),
        Values::Floats(Floats { stored: Stored::Source, bytes: (0..4 * n).map(|i| word(i) as u8).collect() }),
        Values::Pow2(Pow2 {
            min_exponent: -3,
            underflow: Underflow::Unbiased,
            codes: codes.clone(),
            negative: negative.clone(),
        }),
    ];
    for (groups, count) in [(Groups::Block, 1), (Groups::Tensor, 4), (Groups::Len(1000), n.div_ceil(1000))] {
        let levels = codes.iter().map(|&code| i32::from(code) - 3);
        let of_levels = |max_level| Levels {
            spacing: Spacing::Uniform,
            max_level,
            norm: Norm::L2,
            groups,
            norms: scales(count),
            levels: levels.clone().collect(),
        };
        let codes = codes.clone();
        let affine = Affine { bits: 3, groups, scales: scales(count), zero: Zero::Centre, codes };
        let sign = Sign { groups, scales: scales(count), negative: negative.clone() };
        kinds.extend([Values::Levels(of_levels(3)), Values::Levels(of_levels(300))]);
        kinds.extend([Values::Affine(affine), Values::Sign(sign)]);
    }
    let of = |len| (Dtype::F32, len);
    let manifest = manifest(&[of(2), of(lens[0]), of(lens[1]), of(lens[2]), of(lens[3])]);
    for values in kinds {
        let block = block(scope, Support::All, values);
        let mut expected: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; 4 * len as usize]).collect();
        let mut targets: Vec<Target<'_>> =
            expected.iter_mut().zip(lens).map(|(data, len)| Target { data, start: 0, len }).collect();
        let space = manifest.space(scope, 0).unwrap();
        let budget = Budget::new(&Limits::default());
        block.apply(&space, &Default::default(), &budget, &mut targets).unwrap();
        let stream = encode(&manifest, &UpdateHeader::default(), [&block], false);
        for wanted in [&["t1", "t2", "t3", "t4"][..], &["t1", "t4"], &["t3"]] {
            let mut assembler =
                Assembler::new(&manifest, &Limits::default(), |name| wanted.contains(&name)).unwrap();
            apply_all(&mut assembler, &stream).unwrap();
            for (number, tensor) in assembler.finish().unwrap() {
                let expected = &expected[number as usize - 1];
                assert!(tensor.view().data() == expected, "{:?} {number}", block.values.facts().structure);
            }
        }
    }
}

#[test]
fn half_a_byte_keeps_its_other_half() {
    let manifest = manifest(&[(Dtype::F4E2M1, 8)]);
    let buf = |data: [u8; 4]| TensorBuf::new(Dtype::F4E2M1, vec![8], data.to_vec()).unwrap();
    let range = |start, len, support, bytes: &[u8]| {
        let values = Values::Floats(Floats { stored: Stored::Source, bytes: bytes.to_vec() });
        block(Scope::Range { tensor: 0, start, len }, support, values)
    };
    let second = Support::Sparse(Sparse { positions: vec![0] });
    let blocks = [range(0, 3, Support::All, &[0x65, 0x07]), range(5, 2, second, &[0x09])];
    let (base, result) = (buf([0x11, 0x22, 0x33, 0x44]), buf([0x65, 0x27, 0x93, 0x44]));
    let entry = run(0, std::slice::from_ref(&base), std::slice::from_ref(&result));
    let delta = UpdateHeader::default().with_delta(Some(vec![entry]));
    for (header, expected) in [(UpdateHeader::default(), buf([0x65, 0x07, 0x90, 0])), (delta, result)] {
        let dirty = buf([0xff; 4]);
        let assemblers = [
            Assembler::new(&manifest, &Limits::default(), all).unwrap(),
            Assembler::with_buffers(&manifest, [(0, dirty)]).unwrap(),
        ];
        for mut assembler in assemblers {
            assembler.base("t0", base.view()).unwrap();
            apply_all(&mut assembler, &encode(&manifest, &header, &blocks, false)).unwrap();
            assert_eq!(assembler.finish().unwrap(), [(0, expected.clone())]);
        }
    }
}

/// Blocks of two tensors of which one is wanted.
#[test]
fn an_unwanted_tensor_of_a_scope_changes_nothing() {
    let manifest = manifest(&[(Dtype::F32, 2); 2]);
    let scope = Scope::Tensors { first: 0, count: 2 };
    let (ones, next) = (f32s(&[1.0; 2]), f32s(&[1.0 + f32::EPSILON; 2]));
    let entry = |tensor| {
        let (before, after) = (std::slice::from_ref(&ones), std::slice::from_ref(&next));
        run(tensor, before, after)
    };
    let ulps = block(scope, Support::All, Values::Ulp(Ulp { diffs: vec![1; 4] }));
    let delta = UpdateHeader::default().with_delta(Some(vec![entry(0), entry(1)]));
    let bytes = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let raw = Values::Floats(Floats { stored: Stored::Source, bytes });
    let plain = UpdateHeader::default();
    for (header, block, expected) in [
        (&plain, sparse(scope, 1, 5.0), f32s(&[0.0, 5.0])),
        (&plain, block(scope, Support::All, raw), f32s(&[1.0, 2.0])),
        (&delta, ulps, next.clone()),
    ] {
        let dirty = f32s(&[f32::NAN; 2]);
        let mut assembler = Assembler::with_buffers(&manifest, [(0, dirty)]).unwrap();
        assembler.base("t0", ones.view()).unwrap();
        apply_all(&mut assembler, &encode(&manifest, header, [&block], false)).unwrap();
        assert_eq!(assembler.finish().unwrap(), [(0, expected)], "{block:?}");
    }
}

/// A delta of three tensors, of which it changes the first, with runs of both kinds: hashes of the first two
/// together, sums of the last two together. Also returns its base and result.
fn delta_of_both() -> (Arc<Manifest>, Vec<u8>, Vec<TensorBuf>, Vec<TensorBuf>) {
    let (manifest, _, before, changed) = delta_of_three();
    let after = vec![changed, before[1].clone(), before[2].clone()];
    let sum = |range: std::ops::Range<usize>, tensors: &[TensorBuf]| {
        range.map(|i| manifest.tensors()[i].sum_digest(tensors[i].view()).unwrap()).sum()
    };
    let sums = [0..1, 1..3].map(|range| {
        let (base, result) = (sum(range.clone(), &before), sum(range.clone(), &after));
        Delta { first: range.start as u64, more: range.len() as u64 - 1, base, result }
    });
    let hashes = vec![run(0, &before[..2], &after[..2]), run(2, &before[2..], &after[2..])];
    let header = UpdateHeader::default().with_delta(Some(hashes)).with_sums(Some(sums.to_vec()));
    let blocks = [sparse(Scope::Tensor(0), 1, 5.0), sparse(Scope::Tensor(1), 0, 0.0)];
    (Arc::clone(&manifest), encode(&manifest, &header, &blocks, false), before, after)
}

#[test]
fn runs_of_both_kinds_are_compared_where_a_tensor_is_wanted() {
    let (manifest, stream, before, after) = delta_of_both();
    let assembled = |wanted: &str, bases: &[usize]| {
        let wanted = |name: &str| wanted.contains(name);
        let mut assembler = Assembler::new(&manifest, &Limits::default(), wanted)?;
        bases.iter().try_for_each(|&i| assembler.base(&format!("t{i}"), before[i].view()))?;
        apply_all(&mut assembler, &stream)?;
        assembler.finish()
    };
    let expected = |numbers: &[usize]| Vec::from_iter(numbers.iter().map(|&i| (i as u64, after[i].clone())));
    assert_eq!(assembled("t0 t1 t2", &[0, 1, 2]).unwrap(), expected(&[0, 1, 2]));
    // The first tensor shares a hash with the second, which shares a sum with the third: only runs with a
    // wanted tensor need their bases.
    assert_eq!(assembled("t0", &[0, 1]).unwrap(), expected(&[0]));
    assert_eq!(assembled("t1", &[0, 1, 2]).unwrap(), expected(&[1]));
    assert_eq!(assembled("t2", &[1, 2]).unwrap(), expected(&[2]));
    for (wanted, bases) in [("t0", &[0][..]), ("t1", &[0, 1]), ("t1", &[1, 2]), ("t2", &[2])] {
        assert_eq!(refused(assembled(wanted, bases)).kind, InputErrorKind::MissingBase, "{wanted} {bases:?}");
    }
    // Blocks of a file are found by the same rule.
    let file = crate::file::File::scan(&stream, Limits::default()).unwrap();
    let base: BTreeMap<String, TensorView<'_>> =
        before.iter().enumerate().map(|(i, t)| (format!("t{i}"), t.view())).collect();
    for (name, number) in [("t0", 0), ("t1", 1), ("t2", 2)] {
        assert_eq!(file.tensors(0, |n| n == name, &base).unwrap(), expected(&[number]));
    }
}

#[test]
fn a_base_with_another_sum_is_refused() {
    let (manifest, stream, mut before, _) = delta_of_both();
    before[2].data_mut()[0] ^= 1;
    let mut assembler = Assembler::new(&manifest, &Limits::default(), |name| name == "t1").unwrap();
    (0..3).for_each(|i| assembler.base(&format!("t{i}"), before[i].view()).unwrap());
    // The hash of the first two tensors agrees, the sum of the last two does not.
    let error = refused(apply_all(&mut assembler, &stream));
    assert_eq!((error.kind, error.tensor), (InputErrorKind::BaseMismatch, Some(1)));
}
