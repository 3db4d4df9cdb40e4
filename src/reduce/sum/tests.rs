use super::*;
use crate::block::{Floats, IndexSpace, RawBlock, Sparse, Stored, Support, ValuesId};
use crate::error::{InputErrorKind, LimitError, Location};
use crate::frame::TensorInfo;
use crate::random;
use crate::reduce::pieces::BLOCK_LEN;
use crate::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use crate::tensor::element::{decode_f64s, encode_f32s};
use crate::tensor::{Dtype, TensorBuf};

/// Elements of each tensor.
const N: u64 = 600;

fn manifest(dtypes: &[Dtype]) -> Arc<Manifest> {
    let infos = dtypes.iter().enumerate().map(|(i, &dtype)| TensorInfo::new(format!("t{i}"), dtype, [N]));
    Arc::new(Manifest::new(infos.collect()).unwrap())
}

fn block(scope: Scope, support: Support, stored: Stored, bytes: Vec<u8>) -> Block {
    Block { scope, add: false, support, values: Values::Floats(Floats { stored, bytes }) }
}

fn sparse(scope: Scope) -> Block {
    let support = Support::Sparse(Sparse { positions: vec![1] });
    block(scope, support, Stored::F32, 1f32.to_le_bytes().to_vec())
}

fn dense(scope: Scope, value: f32) -> Block {
    block(scope, Support::All, Stored::F32, value.to_le_bytes().repeat(N as usize))
}

fn take(sum: &mut Sum<'_>, header: &UpdateHeader, blocks: &[Block], weight: f64) -> Result<()> {
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut out, header, &sum.manifest, blocks).unwrap();
    encoder.finish(&mut out);
    for event in SliceReader::new(&out, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
            sum.add(&part, weight)?;
        }
    }
    Ok(())
}

fn of(sender: u64) -> UpdateHeader {
    UpdateHeader::default().with_sender(sender)
}

fn kind(error: Error) -> InputErrorKind {
    match error {
        Error::Input(e) => e.kind,
        e => panic!("{e}"),
    }
}

#[test]
fn only_sparse_updates_of_narrow_floats_are_added_without_expanding_them() {
    use Dtype::{Bf16, F32, F64};
    use Precision as P;
    let (one, two) = (Scope::Tensor(0), Scope::Tensor(1));
    let both = Scope::Tensors { first: 0, count: 2 };
    let range = Scope::Range { tensor: 0, start: 0, len: 9 };
    let adding = Block { add: true, ..sparse(one) };
    for (dtypes, precision, senders, expected) in [
        (&[F32][..], P::F32, vec![vec![sparse(one)], vec![sparse(one)]], &[true][..]),
        (&[F32], P::F64, vec![vec![sparse(one)]], &[false]),
        (&[Bf16], P::F32, vec![vec![sparse(one)]], &[true]),
        (&[F64], P::F32, vec![vec![sparse(one)]], &[false]),
        (&[F32], P::F32, vec![vec![sparse(one)], vec![dense(one, 1.0)]], &[false]),
        (&[F32], P::F32, vec![vec![sparse(range)]], &[false]),
        (&[F32], P::F32, vec![vec![sparse(one), adding]], &[false]),
        (&[F32, F64], P::F32, vec![vec![sparse(one), sparse(two)]], &[true, false]),
        (&[F32, F32], P::F32, vec![vec![sparse(one), dense(two, 1.0)]], &[true, false]),
        (&[F32, F32], P::F32, vec![vec![sparse(both)]], &[true, true]),
        (&[F32, F32], P::F32, vec![vec![sparse(both)], vec![dense(two, 1.0)]], &[false, false]),
    ] {
        let options = SumOptions::default().with_precision(precision);
        let mut sum = Sum::new(&manifest(dtypes), options);
        for (sender, blocks) in (0..).zip(&senders) {
            take(&mut sum, &of(sender), blocks, 1.0).unwrap();
        }
        for divisor in [None, Some(2.0)] {
            assert_eq!(
                sum.sparse(&Window::all(&sum.manifest), divisor),
                expected,
                "{dtypes:?} {precision:?} {senders:?}"
            );
        }
    }
}

#[test]
fn updates_of_every_float_type_are_scaled_added_and_divided() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F64] {
        for (precision, weights, mean, expected) in [
            (Precision::F32, [1.0, 1.0], false, 12.0),
            (Precision::F32, [1.0, 1.0], true, 6.0),
            (Precision::F32, [2.0, 1.0], false, 15.0),
            (Precision::F32, [2.0, 1.0], true, 5.0),
            (Precision::F64, [1.0, 1.0], false, 12.0),
            (Precision::F64, [2.0, 1.0], true, 5.0),
        ] {
            let options = SumOptions::default().with_precision(precision);
            let mut sum = Sum::new(&manifest(&[dtype]), options);
            for (sender, value, weight) in [(0, 3.0, weights[0]), (1, 9.0, weights[1])] {
                take(&mut sum, &of(sender), &[dense(Scope::Tensor(0), value)], weight).unwrap();
            }
            let tensor = sum.finish(mean).unwrap().into_tensors().unwrap().remove(0);
            let mut numbers = [0.0; N as usize];
            decode_f64s(dtype, tensor.data(), 0, &mut numbers).unwrap();
            assert_eq!(numbers, [expected; N as usize], "{dtype} {precision:?} {weights:?} {mean}");
        }
    }
}

#[test]
fn the_memory_of_a_sum_and_of_its_pieces_is_limited() {
    let manifest = manifest(&[Dtype::F32; 3]);
    // A sum of f32 and the elements of one update, for each tensor.
    let of_one = 2 * 4 * N;
    let sum = |most| {
        let limits = Limits::default().with_max_alloc_bytes(most);
        let mut sum = Sum::new(&manifest, SumOptions::default().with_limits(limits));
        for tensor in 0..3 {
            take(&mut sum, &of(tensor), &[dense(Scope::Tensor(tensor), 1.0)], 1.0).unwrap();
        }
        sum
    };
    let finish = |most| sum(most).finish(false).map(|_| ()).map_err(|e| e.name());
    let pieces = |most| {
        let mut pieces = sum(most).into_pieces(false).map_err(|e| e.name())?;
        pieces.try_for_each(|piece| piece.map(drop).map_err(|e| e.name()))
    };
    assert_eq!((finish(3 * of_one), pieces(3 * of_one)), (Ok(()), Ok(())));
    // Two windows: the pieces of one at a time need less than all tensors.
    assert_eq!((finish(3 * of_one - 1), pieces(3 * of_one - 1)), (Err("limit"), Ok(())));
    assert_eq!((finish(2 * of_one - 1), pieces(2 * of_one - 1)), (Err("limit"), Err("limit")));
}

#[test]
fn memory_of_a_replaced_tensor_is_zero_for_the_next() {
    let manifest = manifest(&[Dtype::F32, Dtype::Bf16]);
    let added = |tensor| Block { add: true, ..sparse(Scope::Tensor(tensor)) };
    // A dense block replaces what an earlier one added.
    let updates = [vec![added(0), dense(Scope::Tensor(0), 2.0)], vec![added(1)]];
    let encoded = |(sender, blocks)| {
        let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut out, &of(sender), &manifest, blocks).unwrap();
        encoder.finish(&mut out);
        out
    };
    let streams: Vec<Vec<u8>> = (0..).zip(&updates).map(encoded).collect();
    for is_later in [false, true] {
        let mut sum = Sum::new(&manifest, SumOptions::default());
        for part in streams.iter().flat_map(|stream| update_parts(stream)) {
            match is_later {
                true => sum.add_later(part, 1.0).unwrap(),
                false => sum.add(&part, 1.0).unwrap(),
            }
        }
        let tensors = sum.finish(false).unwrap().into_tensors().unwrap();
        let [first, second] = &tensors[..] else { panic!("two tensors") };
        assert_eq!(first.data(), 2f32.to_le_bytes().repeat(N as usize), "decoded late: {is_later}");
        let ones = second.data().as_chunks::<2>().0.iter().enumerate().filter(|(_, x)| **x != [0; 2]);
        assert_eq!(ones.map(|(i, _)| i).collect::<Vec<_>>(), [1], "decoded late: {is_later}");
    }
}

#[test]
fn weights_without_a_meaning_are_refused() {
    let add = |dtypes: &[Dtype], header: &UpdateHeader, weight| {
        let mut sum = Sum::new(&manifest(dtypes), SumOptions::default());
        take(&mut sum, header, &[dense(Scope::Tensor(0), 1.0)], weight)
    };
    for weight in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        let refused = kind(add(&[Dtype::F32], &of(0), weight).unwrap_err());
        assert_eq!(refused, InputErrorKind::BadOption { what: "weight" }, "{weight}");
    }
    let sum = of(0).with_reduction(Reduction::Sum).with_contributors(2);
    for (dtypes, header, why) in [
        (&[Dtype::F32][..], &sum, "it is a sum, which contains its weights already"),
        (&[Dtype::F32, Dtype::I32], &of(0), "a weight other than 1 has no meaning for integer tensors"),
    ] {
        let refused = kind(add(dtypes, header, 2.0).unwrap_err());
        assert_eq!(refused, InputErrorKind::CannotReduce { why, sender: Some(0) });
        add(dtypes, header, 1.0).unwrap();
    }
}

/// Checks that `result` is refused because of memory exactly if `limit` is less than `bytes`.
fn check_limit<T>(result: Result<T>, bytes: u64, limit: u64) {
    let at = Location::at(0);
    let expected = LimitError { limit: "max_alloc_bytes", asked: bytes, allowed: limit, at };
    match result {
        Ok(_) => assert!(bytes <= limit, "{bytes} bytes"),
        Err(Error::Limit(e)) => assert!(bytes > limit && e == expected, "{bytes} bytes: {e}"),
        Err(e) => panic!("{e}"),
    }
}

fn limited(limit: u64, precision: Precision) -> SumOptions {
    let limits = Limits::default().with_max_alloc_bytes(limit);
    SumOptions::default().with_precision(precision).with_limits(limits)
}

#[test]
fn waiting_updates_count_with_their_positions_and_values() {
    let double =
        block(Scope::Tensor(0), Support::Sparse(Sparse { positions: vec![1] }), Stored::Source, vec![0; 8]);
    for (dtype, block, each) in [
        // A position and its value in 8 bytes, where the tensor begins and ends, and what holds them.
        (Dtype::F32, sparse(Scope::Tensor(0)), 8 + 2 * 8 + size_of::<Entries>()),
        // A position, a value, and the block itself.
        (Dtype::F64, double, 8 + 8 + size_of::<Block>()),
    ] {
        for (senders, bytes) in [(1, each as u64), (2, 2 * each as u64)] {
            for limit in [bytes, bytes - 1] {
                let mut sum = Sum::new(&manifest(&[dtype]), limited(limit, Precision::F32));
                let taken =
                    (0..senders).try_for_each(|s| take(&mut sum, &of(s), std::slice::from_ref(&block), 1.0));
                check_limit(taken, bytes, limit);
            }
        }
    }
}

#[test]
fn accumulators_and_one_expanded_update_are_limited() {
    for (dtype, precision, accumulator) in [
        (Dtype::F32, Precision::F32, 4),
        (Dtype::F32, Precision::F64, 8),
        (Dtype::Bf16, Precision::F32, 4),
        (Dtype::F64, Precision::F32, 8),
        (Dtype::I8, Precision::F32, 16),
        (Dtype::I64, Precision::F64, 16),
    ] {
        let element = dtype.bytes_for(1).unwrap();
        let bytes = N * (accumulator + element);
        for limit in [bytes, bytes - 1] {
            let mut sum = Sum::new(&manifest(&[dtype]), limited(limit, precision));
            let support = Support::Sparse(Sparse { positions: vec![1] });
            let zero = block(Scope::Tensor(0), support, Stored::Source, vec![0; element as usize]);
            take(&mut sum, &of(0), &[zero], 1.0).unwrap();
            check_limit(sum.finish(false), bytes, limit);
        }
    }
}

#[test]
fn blocks_of_a_large_sum_hold_all_its_elements() {
    let n = BLOCK_LEN + 5;
    let mut data = pages::zeros(4 * n as usize);
    let (first, second) = (4 * BLOCK_LEN as usize - 2, 4 * BLOCK_LEN as usize + 2);
    data[first..second].copy_from_slice(&[1, 2, 3, 4]);
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [n])]).unwrap());
    let sums = vec![Total::Elements(data.clone())];
    let blocks = Reduced { header: of(0), manifest, sums }.blocks().unwrap();
    let ranges = [(0, BLOCK_LEN), (BLOCK_LEN, 5)];
    let scopes = ranges.map(|(start, len)| Scope::Range { tensor: 0, start, len });
    assert_eq!(blocks.iter().map(|b| b.scope).collect::<Vec<_>>(), scopes);
    let bytes = blocks.iter().map(|b| b.values.elements().unwrap()).collect::<Vec<_>>();
    assert!(bytes.concat() == data);
}

/// Tensors of several types, some larger than a block of a sum.
const LENS: [(Dtype, u64); 8] = [
    (Dtype::F32, 3 * BLOCK_LEN + 7),
    (Dtype::F32, 5),
    (Dtype::F32, 0),
    (Dtype::F32, 900),
    (Dtype::Bf16, 2 * BLOCK_LEN),
    (Dtype::I32, BLOCK_LEN + 1),
    (Dtype::F64, 40),
    (Dtype::F32, BLOCK_LEN + 300),
];

/// A stream of one sender's blocks for [`LENS`]: dense ones, sparse ones, those that join tensors, and those
/// that add to the same elements in an order that counts.
fn stream(sender: u64) -> Vec<u8> {
    let infos =
        LENS.iter().enumerate().map(|(i, &(dtype, len))| TensorInfo::new(format!("t{i}"), dtype, [len]));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let value = |x: u64| ((x * 37 + sender * 11) % 101) as f32 / 7.0 - 6.0;
    let floats = |from: u64, len: u64| (from..from + len).flat_map(|x| value(x).to_le_bytes()).collect();
    let part = |tensor, start, len, add| Block {
        add,
        ..block(Scope::Range { tensor, start, len }, Support::All, Stored::F32, floats(start, len))
    };
    let at = |scope, positions: Vec<u64>| {
        let bytes = floats(sender, positions.len() as u64);
        block(scope, Support::Sparse(Sparse { positions }), Stored::F32, bytes)
    };
    let integers = (0..LENS[5].1).flat_map(|x| ((x * 7 + sender) as i32).to_le_bytes()).collect();
    let blocks = [
        part(0, 0, BLOCK_LEN, false),
        part(0, BLOCK_LEN, BLOCK_LEN + 9, false),
        part(0, 2 * BLOCK_LEN + 9, BLOCK_LEN - 2, false),
        at(Scope::Tensors { first: 1, count: 3 }, vec![1, 4, 5 + sender, 800]),
        part(4, 0, BLOCK_LEN, false),
        // They come in any order, and the sums of the last two depend on it.
        part(4, BLOCK_LEN + 30, 50, true),
        part(4, 700, 300, true),
        part(4, 500, 300, true),
        block(Scope::Tensor(5), Support::All, Stored::Source, integers),
        at(Scope::Tensor(7), vec![sender, 7, 1020 + sender, 1320]),
    ];
    // Some senders leave some blocks out, or give a dense one in the place of a sparse one.
    let dense = Block { scope: Scope::Tensor(7), ..part(7, 0, LENS[7].1, false) };
    let blocks: Vec<&Block> = match sender {
        1 => blocks.iter().filter(|b| b.scope != Scope::Tensor(7)).collect(),
        2 => blocks[..9].iter().chain([&dense]).collect(),
        3 => blocks[3..].iter().collect(),
        _ => blocks.iter().collect(),
    };
    let options = EncodeOptions::default().with_part_bytes(3000);
    let (mut encoder, mut out) = (Encoder::new(options), Vec::new());
    encoder.update(&mut out, &of(sender), &manifest, blocks).unwrap();
    encoder.finish(&mut out);
    out
}

fn update_parts(stream: &[u8]) -> Vec<UpdatePart<'_>> {
    let parts = SliceReader::new(stream, Limits::default()).filter_map(|event| match event.unwrap() {
        Event::Frame(_, Body::Update(part)) => Some(*part),
        _ => None,
    });
    parts.collect()
}

#[test]
fn pieces_are_the_parts_of_the_whole_sum_whenever_blocks_are_decoded() {
    for senders in [vec![0, 3], vec![0, 1, 3], vec![0, 1, 2, 3]] {
        for precision in [Precision::F32, Precision::F64] {
            let streams: Vec<Vec<u8>> = senders.iter().map(|&sender| stream(sender)).collect();
            let manifest = Arc::clone(&update_parts(&streams[0])[0].manifest);
            let options = SumOptions::default().with_precision(precision);
            let sum = |is_later: bool| {
                let mut sum = Sum::new(&manifest, options.clone());
                for part in streams.iter().flat_map(|stream| update_parts(stream)) {
                    match is_later {
                        true => sum.add_later(part, 1.0).unwrap(),
                        false => sum.add(&part, 1.0).unwrap(),
                    }
                }
                sum
            };
            let whole = sum(false).finish(false).unwrap();
            let blocks = whole.blocks().unwrap();
            let expected: Vec<Vec<u8>> =
                whole.into_tensors().unwrap().into_iter().map(TensorBuf::into_data).collect();
            for is_later in [false, true] {
                let mut pieces = sum(is_later).into_pieces(false).unwrap();
                let (mut found, mut count) = (vec![Vec::new(); LENS.len()], 0);
                for piece in pieces.by_ref() {
                    let piece = piece.unwrap();
                    let number = piece.tensor as usize;
                    let bytes = LENS[number].0.bytes_for(piece.start).unwrap();
                    assert_eq!(found[number].len() as u64, bytes);
                    found[number].extend(piece.into_elements().unwrap());
                    count += 1;
                }
                assert!(found == expected, "{senders:?} {precision:?} {is_later}");
                assert!(count > LENS.len(), "large tensors come in pieces");

                let mut pieces = sum(is_later).into_pieces(false).unwrap();
                let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
                let header = pieces.header().clone();
                encoder.update(&mut out, &header, &manifest, pieces.blocks()).unwrap();
                let (mut encoder, mut same) = (Encoder::new(EncodeOptions::default()), Vec::new());
                encoder.update(&mut same, &header, &manifest, &blocks).unwrap();
                assert!(out == same);
            }
        }
    }
}

#[test]
fn a_block_that_is_decoded_late_fails_with_its_sender_and_ends_the_pieces() {
    let (good, bad) = (stream(0), stream(1));
    let manifest = Arc::clone(&update_parts(&good)[0].manifest);
    let mut sum = Sum::new(&manifest, SumOptions::default());
    update_parts(&good).into_iter().for_each(|part| sum.add_later(part, 1.0).unwrap());
    let mut parts = update_parts(&bad);
    let values = parts[0].blocks[0].values;
    parts[0].blocks[0].values = &values[..values.len() - 1];
    parts.into_iter().for_each(|part| sum.add_later(part, 1.0).unwrap());
    let mut pieces = sum.into_pieces(false).unwrap();
    assert!(pieces.next().unwrap().is_err());
    assert_eq!((pieces.sender(), pieces.next().is_none()), (Some(1), true));
}

#[test]
fn a_block_that_windows_cut_fails_with_its_sender_before_the_first_piece() {
    let streams = [0, 1].map(|sender| sparse_stream(Dtype::F32, sender, &[(0, 3)]));
    let mut parts = streams.each_ref().map(|stream| update_parts(stream));
    let values = parts[1][0].blocks[0].values;
    parts[1][0].blocks[0].values = &values[..values.len() - 1];
    let mut sum = Sum::new(&Arc::clone(&parts[0][0].manifest), SumOptions::default());
    parts.into_iter().flatten().for_each(|part| sum.add_later(part, 1.0).unwrap());
    let mut pieces = sum.into_pieces(false).unwrap();
    assert!(pieces.next().unwrap().is_err());
    assert_eq!((pieces.sender(), pieces.next().is_none()), (Some(1), true));
}

#[test]
fn elements_that_stay_where_they_are_are_checked_like_others() {
    let stream = sparse_stream(Dtype::F32, 0, &[(1, 1)]);
    let mut part = update_parts(&stream).remove(0);
    let whole = part.blocks[0].clone();
    let (positions, elements) = part.decode_in_place(0, &part.budget()).unwrap().unwrap();
    assert_eq!(4 * positions.len(), elements.len());
    // No more elements than the budget has.
    let few = Budget::new(&Limits::default().with_max_elements(69));
    assert_eq!(
        part.decode_in_place(0, &few).unwrap_err().to_string(),
        part.decode(0, &few).unwrap_err().to_string()
    );
    // Bytes are missing, or left.
    let longer = |bytes: &[u8]| [bytes, &[0]].concat();
    let (support, values) = (longer(whole.support), longer(whole.values));
    let mut offsets = Vec::new();
    for (support, values) in [
        (&support[..support.len() - 2], whole.values),
        (&support, whole.values),
        (whole.support, &values[..values.len() - 2]),
        (whole.support, &values),
    ] {
        (part.blocks[0].support, part.blocks[0].values) = (support, values);
        let error = part.decode_in_place(0, &part.budget()).unwrap_err();
        assert_eq!(error.to_string(), part.decode(0, &part.budget()).unwrap_err().to_string());
        offsets.push(error.location().unwrap().offset);
    }
    let end = whole.offset + whole.len;
    let middle = end - whole.values.len() as u64;
    assert!(offsets[..2].iter().all(|at| (whole.offset..=middle).contains(at)), "{offsets:?}");
    assert!(offsets[2..].iter().all(|at| (middle..=end).contains(at)), "{offsets:?}");
    // Values of another kind begin with any byte.
    part.blocks[0] = RawBlock { values_id: ValuesId::SIGN, ..whole };
    assert!(part.decode_in_place(0, &part.budget()).unwrap().is_none());
}

#[test]
fn positions_of_a_sum_have_32_bits() {
    let stream = sparse_stream(Dtype::F32, 0, &[(1, 1)]);
    let part = update_parts(&stream).remove(0);
    let takes = |len| {
        let space = IndexSpace::flat(Dtype::F32, len);
        scatter::takes(&RawBlock { space, ..part.blocks[0].clone() })
    };
    assert_eq!([1 << 32, (1 << 32) + 1].map(takes), [true, false]);
}

#[test]
fn a_tensor_beyond_the_limits_is_refused_before_the_first_piece() {
    let manifest = Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [1 << 40])]).unwrap();
    let manifest = Arc::new(manifest);
    let mut sum = Sum::new(&manifest, SumOptions::default());
    let one = sparse(Scope::Range { tensor: 0, start: 0, len: 9 });
    take(&mut sum, &of(0), &[one], 1.0).unwrap();
    assert_eq!(sum.into_pieces(false).err().unwrap().name(), "limit");
}

/// A stream of one sender's sparse blocks of three tensors, of which blocks join some, and its elements.
fn sparse_stream(dtype: Dtype, sender: u64, joined: &[(u64, u64)]) -> Vec<u8> {
    let infos = [2 * BLOCK_LEN + 9, 70, BLOCK_LEN + 1];
    let manifest = Manifest::new(
        infos.iter().enumerate().map(|(i, &len)| TensorInfo::new(i.to_string(), dtype, [len])).collect(),
    );
    let manifest = Arc::new(manifest.unwrap());
    let blocks = joined.iter().map(|&(first, count)| {
        let scope = if count == 1 { Scope::Tensor(first) } else { Scope::Tensors { first, count } };
        let n = infos[first as usize..][..count as usize].iter().sum();
        let word = |i: u64| random::word(sender, first, i);
        // Beside others, those at the edges of windows.
        let edges = [0, BLOCK_LEN - 1, BLOCK_LEN, 2 * BLOCK_LEN, n - 1];
        let positions: Vec<u64> =
            (0..n).filter(|i| word(*i).is_multiple_of(9) || edges.contains(i)).collect();
        // Some are beyond the range of narrow floats, and one is not a number.
        let number = |&i: &u64| match word(i) {
            word if word.is_multiple_of(89) => f32::NAN,
            word => f32::from_bits(word & 0x8fff_ffff | 0x3000_0000),
        };
        let numbers: Vec<f32> = positions.iter().map(number).collect();
        let (stored, as_type) = match (sender + first) % 2 {
            0 => (Stored::F32, Dtype::F32),
            _ => (Stored::Source, dtype),
        };
        let mut bytes = vec![0; as_type.bytes_for(numbers.len() as u64).unwrap() as usize];
        encode_f32s(as_type, &numbers, 0, &mut bytes).unwrap();
        block(scope, Support::Sparse(Sparse { positions }), stored, bytes)
    });
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut out, &of(sender), &manifest, &blocks.collect::<Vec<_>>()).unwrap();
    encoder.finish(&mut out);
    out
}

#[test]
fn sparse_updates_have_the_sums_of_their_elements() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::F8E4M3Fn] {
        let joined: [&[(u64, u64)]; 4] = [&[(0, 3)], &[(0, 1), (1, 2)], &[(0, 2), (2, 1)], &[(1, 1)]];
        let streams: Vec<_> = (0..).zip(joined).map(|(s, joined)| sparse_stream(dtype, s, joined)).collect();
        let manifest = Arc::clone(&update_parts(&streams[0])[0].manifest);
        let weights = [1.0, 0.5, 3.0, 1.0];
        // With one dense update, all are expanded.
        let elements = |stream: &[u8]| -> Vec<Block> {
            let file = crate::file::File::open(stream, Limits::default()).unwrap();
            let tensors = file.tensors(0, |_| true, &BTreeMap::new()).unwrap().into_iter();
            let dense = tensors.map(|(number, tensor)| {
                block(Scope::Tensor(number), Support::All, Stored::Source, tensor.into_data())
            });
            dense.collect()
        };
        for mean in [false, true] {
            let mut expanded = Sum::new(&manifest, SumOptions::default());
            for ((sender, stream), weight) in (0..).zip(&streams).zip(weights) {
                take(&mut expanded, &of(sender), &elements(stream), weight).unwrap();
            }
            let expected = expanded.finish(mean).unwrap();
            let blocks = expected.blocks().unwrap();
            let expected: Vec<TensorBuf> = expected.into_tensors().unwrap();
            for is_later in [false, true] {
                let sum = || {
                    let mut sum = Sum::new(&manifest, SumOptions::default());
                    for (stream, weight) in streams.iter().zip(weights) {
                        for part in update_parts(stream) {
                            match is_later {
                                true => sum.add_later(part, weight).unwrap(),
                                false => sum.add(&part, weight).unwrap(),
                            }
                        }
                    }
                    sum
                };
                let whole = sum().finish(mean).unwrap();
                assert!(whole.blocks().unwrap() == blocks, "{dtype} {mean} {is_later}");
                assert!(whole.into_tensors().unwrap() == expected, "{dtype} {mean} {is_later}");
                let pieces: Vec<_> = sum().into_pieces(mean).unwrap().map(Result::unwrap).collect();
                assert_eq!(pieces.iter().map(|piece| piece.len).max(), Some(BLOCK_LEN));
                let mut found = vec![Vec::new(); expected.len()];
                for piece in pieces {
                    let number = piece.tensor as usize;
                    found[number].extend(piece.into_elements().unwrap());
                }
                assert!(found.iter().zip(&expected).all(|(found, expected)| found == expected.data()));
            }
        }
    }
}

/// The blocks of a part are a caller's to change: where two overlap, one replaces the other.
#[test]
fn blocks_that_overlap_are_not_added_twice() {
    let len = BLOCK_LEN + 5;
    let infos = (0..6).map(|i| TensorInfo::new(i.to_string(), Dtype::F32, [len]));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    // A stream of a block with one element of each tensor of its scope.
    let ones = |first: u64, count: u64| {
        let positions: Vec<u64> = (0..count).map(|i| i * len + BLOCK_LEN + 2).collect();
        let bytes = 1f32.to_le_bytes().repeat(positions.len());
        let support = Support::Sparse(Sparse { positions });
        let block = block(Scope::Tensors { first, count }, support, Stored::F32, bytes);
        let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut out, &of(0), &manifest, [&block]).unwrap();
        encoder.finish(&mut out);
        out
    };
    let streams = [ones(0, 6), ones(1, 2), ones(3, 2)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let sum = || {
            let mut parts = order.map(|i: usize| update_parts(&streams[i]).remove(0));
            let [first, others @ ..] = &mut parts;
            first.blocks.extend(others.iter_mut().flat_map(|part| part.blocks.drain(..)));
            let [first, ..] = parts;
            let mut sum = Sum::new(&manifest, SumOptions::default());
            sum.add_later(first, 1.0).unwrap();
            sum
        };
        let element = |tensor: &[u8]| f32::from_le_bytes(tensor.as_chunks().0[BLOCK_LEN as usize + 2]);
        let tensors = sum().finish(false).unwrap().into_tensors().unwrap();
        let whole: Vec<f32> = tensors.iter().map(|tensor| element(tensor.data())).collect();
        let mut elements = vec![Vec::new(); 6];
        for piece in sum().into_pieces(false).unwrap().map(Result::unwrap) {
            elements[piece.tensor as usize].extend(piece.into_elements().unwrap());
        }
        let in_pieces: Vec<f32> = elements.iter().map(|elements| element(elements)).collect();
        assert_eq!((&*whole, &*in_pieces), (&[1.0; 6][..], &[1.0; 6][..]), "{order:?}");
    }
}

#[test]
fn blocks_that_several_windows_cut_are_decoded_once_and_given_back() {
    let streams = [0, 1].map(|sender| sparse_stream(Dtype::Bf16, sender, &[(0, 3)]));
    let manifest = Arc::clone(&update_parts(&streams[0])[0].manifest);
    let mut sum = Sum::new(&manifest, SumOptions::default());
    streams.iter().flat_map(|stream| update_parts(stream)).for_each(|p| sum.add_later(p, 1.0).unwrap());
    let (mut windows, mut spare, mut held) = (Windows::new(&sum), Spare::new(0), Vec::new());
    while let Some(window) = windows.next(&sum) {
        sum.totals(&window, None, &mut spare).unwrap();
        let entries = sum.waiting[&1].blocks.iter().map(Held::bytes).sum::<u64>();
        held.push(entries > 1000);
    }
    assert_eq!(held, [true, true, false]);
}
