//! Positions and signs that are coded given what the receiver knows: rows, columns, and the base.

use std::sync::Arc;

use gcodec::block::{
    Bits, Block, BlockOptions, Groups, Positions, ScaleFormat, Scales, Scope, Sign, Sparse, Support,
    SupportId, Ulp, Values,
};
use gcodec::compress::random::word;
use gcodec::compress::{Input, Options, compress, deltas};
use gcodec::frame::{Delta, Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::element::{set_bits_at, ulp_step};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf};
use proptest::prelude::*;

fn encoded(manifest: &Arc<Manifest>, header: &UpdateHeader, block: &Block, positions: Positions) -> Vec<u8> {
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    let options = BlockOptions::default().with_positions(positions);
    encoder.update(&mut out, header, manifest, &[(block, options)]).unwrap();
    encoder.finish(&mut out);
    out
}

/// Returns the first block of a stream, the kind of its support, and its bytes of support and values.
fn first_block(bytes: &[u8]) -> (Block, SupportId, [usize; 2]) {
    let mut reader = SliceReader::new(bytes, Limits::default());
    loop {
        let event = reader.next_event().unwrap().expect("an update");
        if let Event::Frame(_, Body::Update(part)) = event {
            let raw = &part.blocks[0];
            return (
                part.decode(0, &part.budget()).unwrap(),
                raw.support_id,
                [raw.support.len(), raw.values.len()],
            );
        }
    }
}

/// A matrix whose elements are likelier in some rows and columns, with signs that are products.
fn product(rows: u64, columns: u64, cell: u64, seed: u64) -> (Vec<u64>, Vec<bool>) {
    let of = |list: u64, i: u64| word(seed, list, i);
    let chosen = (0..rows * columns * cell).filter(|&i| {
        let (row, column) = (i / (columns * cell), i / cell % columns);
        let level = of(1, row) % 5 + of(2, column) % 5;
        of(3, i) >> 16 < (1 << 16) >> (9 - level)
    });
    let positions: Vec<u64> = chosen.collect();
    let sign = |i: u64| {
        of(1, i / (columns * cell)) ^ of(2, i / cell % columns) ^ u32::from(of(4, i).is_multiple_of(20))
    };
    let signs = positions.iter().map(|&i| sign(i) & 1 == 1).collect();
    (positions, signs)
}

#[test]
fn rows_and_columns_make_positions_and_signs_smaller() {
    // A matrix, kernels, and a stack of matrices.
    let shapes = [(vec![120u64, 160], 120, 1), (vec![40, 24, 3, 3], 40, 9), (vec![6, 60, 80], 360, 1)];
    for (shape, rows, cell) in shapes {
        let columns = shape.iter().product::<u64>() / rows / cell;
        let (positions, signs) = product(rows, columns, cell, 7);
        let manifest =
            Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, shape.clone())]).unwrap());
        let block = Block {
            scope: Scope::Tensor(0),
            add: false,
            support: Support::Sparse(Sparse { positions: positions.clone() }),
            values: Values::Sign(Sign {
                groups: Groups::Block,
                scales: Scales::from_f32s(ScaleFormat::F32, &[0.5]),
                negative: signs.iter().copied().collect::<Bits>(),
            }),
        };
        let header = UpdateHeader::default();
        let [tokens, classed, auto] = [Positions::Tokens, Positions::Classed, Positions::Auto]
            .map(|choice| first_block(&encoded(&manifest, &header, &block, choice)));
        for (decoded, ..) in [&tokens, &classed, &auto] {
            assert_eq!(decoded, &block, "{shape:?}");
        }
        assert_eq!((classed.1, auto.1), (SupportId::CLASSED, SupportId::CLASSED));
        // Signs are predicted only where positions are chosen freely: devices send plain ones.
        assert_eq!(tokens.2[1], 6 + 1 + signs.len().div_ceil(8), "{shape:?}");
        let saved = 1.0 - classed.2[0] as f64 / tokens.2[0] as f64;
        assert!(saved > 0.02, "{shape:?}: {saved}");
        // A twentieth of the signs is wrong: 0.29 bits each, and one bit for each row and column.
        let bits = 8.0 * classed.2[1] as f64 / signs.len() as f64;
        assert!(bits < 0.75, "{shape:?}: {bits} bits for each sign");
    }
}

#[test]
fn noise_is_not_classed() {
    let positions: Vec<u64> = (0..100_000).filter(|&i| word(5, 5, i).is_multiple_of(100)).collect();
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [250, 400])]).unwrap());
    let block = Block {
        scope: Scope::Tensor(0),
        add: false,
        values: Values::Sign(Sign {
            groups: Groups::Block,
            scales: Scales::from_f32s(ScaleFormat::F32, &[0.5]),
            negative: positions.iter().map(|&i| word(6, 6, i) & 1 == 1).collect(),
        }),
        support: Support::Sparse(Sparse { positions: positions.clone() }),
    };
    let (decoded, id, [_, values]) =
        first_block(&encoded(&manifest, &UpdateHeader::default(), &block, Positions::Auto));
    assert_eq!(decoded, block);
    assert_ne!(id, SupportId::CLASSED);
    // The head, the coding, and a bit for each.
    assert_eq!(values, 6 + 1 + positions.len().div_ceil(8));
}

/// A base, and what an optimiser makes of it: small weights change their last bits more often.
fn step(dtype: Dtype, count: u64, seed: u64) -> [TensorBuf; 2] {
    let mut base = vec![0; dtype.bytes_for(count).unwrap() as usize];
    let width = dtype.bits();
    for i in 0..count {
        let random = u64::from(word(seed, 1, i)) << 32 | u64::from(word(seed, 2, i));
        set_bits_at(dtype, &mut base, i, random >> (64 - width)).unwrap();
    }
    let mut new = base.clone();
    for i in 0..count {
        let bits = gcodec::internal::element::bits_at(dtype, &base, i).unwrap();
        let large = bits >> (width - 2) & 1 == 1;
        if word(seed, 3, i) % 40 < if large { 1 } else { 20 } {
            let diff = [1, -1, 2, 1][word(seed, 4, i) as usize % 4];
            set_bits_at(dtype, &mut new, i, ulp_step(dtype, bits, diff)).unwrap();
        }
    }
    [base, new].map(|data| TensorBuf::new(dtype, vec![count], data).unwrap())
}

/// Encodes the step from one list of tensors to another with a codec.
fn delta(base: &[TensorBuf], new: &[TensorBuf], spec: &str) -> Vec<u8> {
    let names: Vec<String> = (0..new.len()).map(|i| format!("t{i}")).collect();
    let infos = names.iter().zip(new).map(|(n, t)| TensorInfo::new(n, t.dtype(), t.shape())).collect();
    let manifest = Arc::new(Manifest::new(infos).unwrap());
    let inputs: Vec<Input<'_>> = (0..new.len())
        .map(|i| Input { tensor: i as u64, name: &names[i], view: new[i].view(), base: Some(base[i].view()) })
        .collect();
    let codecs = vec![spec.parse::<Codec>().unwrap(); new.len()];
    let blocks = compress(&inputs, &codecs, &Options::default(), None).unwrap();
    let header = UpdateHeader::default().with_runs(deltas(&manifest, &inputs, &codecs, &blocks).unwrap());
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut out, &header, &manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    out
}

/// Applies the update of a stream to a base, for the tensors that are wanted.
fn applied(
    bytes: &[u8],
    base: &[TensorBuf],
    wanted: impl Fn(&str) -> bool,
) -> gcodec::Result<Vec<(u64, TensorBuf)>> {
    let mut reader = SliceReader::new(bytes, Limits::default());
    loop {
        let event = reader.next_event()?.expect("an update");
        if let Event::Frame(_, Body::Update(part)) = event {
            let mut assembler = Assembler::new(&part.manifest, &Limits::default(), &wanted)?;
            for (i, tensor) in base.iter().enumerate() {
                assembler.base(&format!("t{i}"), tensor.view())?;
            }
            assembler.apply(&part)?;
            return assembler.finish();
        }
    }
}

#[test]
fn deltas_of_every_type_are_classed_by_the_base() {
    for dtype in Dtype::ALL {
        let steps = [step(dtype, 9001, 1), step(dtype, 130, 2), step(dtype, 0, 3), step(dtype, 4500, 4)];
        let [base, new] = [0, 1].map(|i| steps.iter().map(|s| s[i].clone()).collect::<Vec<_>>());
        let bytes = delta(&base, &new, "delta");
        let plain = delta(&base, &new, "delta:positions=tokens");
        if dtype.is_float() && dtype.bits() > 4 {
            assert_eq!(first_block(&bytes).1, SupportId::CLASSED, "{dtype}");
            assert!(bytes.len() < plain.len(), "{dtype}");
        }
        for bytes in [&bytes, &plain] {
            let arrived: Vec<TensorBuf> =
                applied(bytes, &base, |_| true).unwrap().into_iter().map(|t| t.1).collect();
            assert_eq!(arrived, new, "{dtype}");
        }
    }
}

#[test]
fn one_tensor_of_a_run_is_assembled_alone() {
    let steps = [step(Dtype::Bf16, 700, 1), step(Dtype::Bf16, 800, 2), step(Dtype::Bf16, 900, 3)];
    let [base, new] = [0, 1].map(|i| steps.iter().map(|s| s[i].clone()).collect::<Vec<_>>());
    let bytes = delta(&base, &new, "delta");
    let arrived = applied(&bytes, &base, |name| name == "t1").unwrap();
    assert_eq!(arrived, [(1, new[1].clone())]);
    // The digest covers all three tensors: each of them must be there, and right.
    let missing = applied(&bytes, &base[..2], |name| name == "t1").unwrap_err();
    assert!(missing.to_string().contains("tensor 2"), "{missing}");
    let mut wrong = base.clone();
    wrong[0] = new[0].clone();
    assert!(applied(&bytes, &wrong, |name| name == "t1").unwrap_err().to_string().contains("base"));
}

#[test]
fn one_large_tensor_is_assembled_alone() {
    // 5 MB each: too large for one digest, so no block spans both.
    let many = |seed| {
        step(Dtype::Bf16, 10_000, seed)
            .map(|t| TensorBuf::new(Dtype::Bf16, vec![2_500_000], t.data().repeat(250)).unwrap())
    };
    let steps = [many(1), many(2)];
    let [base, new] = [0, 1].map(|i| steps.iter().map(|s| s[i].clone()).collect::<Vec<_>>());
    let bytes = delta(&base, &new, "delta:positions=classed");
    assert_eq!(first_block(&bytes).0.scope, Scope::Tensor(0));
    assert_eq!(applied(&bytes, &base, |name| name == "t1").unwrap(), [(1, new[1].clone())]);
    // Nothing of the other tensor is needed.
    let other = [new[0].clone(), base[1].clone()];
    assert_eq!(applied(&bytes, &other, |name| name == "t1").unwrap(), [(1, new[1].clone())]);
}

#[test]
fn a_very_large_tensor_has_several_blocks() {
    const PIECE: u64 = 16 << 20;
    let large = |seed, copies: u64| {
        step(Dtype::F8E5M2, 10_000, seed).map(|t| {
            TensorBuf::new(Dtype::F8E5M2, vec![10_000 * copies], t.data().repeat(copies as usize)).unwrap()
        })
    };
    // One that changes everywhere, one that changes in its last elements, and one that does not change.
    let (changed, [same, _]) = (large(1, 3400), large(2, 1700));
    let mut end = same.data().to_vec();
    end.last_mut().into_iter().for_each(|last| *last ^= 1);
    let base = [changed[0].clone(), same.clone(), same.clone()];
    let new = [changed[1].clone(), TensorBuf::new(same.dtype(), same.shape().to_vec(), end).unwrap(), same];
    let bytes = delta(&base, &new, "delta:positions=classed");
    let mut reader = SliceReader::new(&bytes, Limits::default());
    let mut scopes = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        if let Event::Frame(_, Body::Update(part)) = event {
            scopes.extend(part.blocks.iter().map(|raw| raw.scope));
        }
    }
    let range = |tensor, start, end| Scope::Range { tensor, start, len: end - start };
    let expected = [
        range(0, 0, PIECE),
        range(0, PIECE, 2 * PIECE),
        range(0, 2 * PIECE, 34_000_000),
        range(1, 0, PIECE),
        range(1, PIECE, 17_000_000),
        range(2, 0, PIECE),
    ];
    assert_eq!(scopes, expected);
    let arrived = applied(&bytes, &base, |_| true).unwrap();
    assert!(arrived.into_iter().map(|t| t.1).eq(new));
}

#[test]
fn positions_need_the_right_base() {
    let [base, new] = step(Dtype::Bf16, 5000, 9);
    let bytes = delta(std::slice::from_ref(&base), std::slice::from_ref(&new), "delta:positions=classed");
    let (block, id, _) = first_block(&bytes);
    assert_eq!(id, SupportId::CLASSED);
    let Support::Based(based) = &block.support else { panic!("{:?}", block.support) };
    let Values::Ulp(Ulp { diffs }) = &block.values else { panic!("{:?}", block.values) };
    assert_eq!(based.counts().iter().sum::<u64>(), diffs.len() as u64);
    let short = [gcodec::block::BaseElements { data: &[0; 64], start: 0, len: 32 }];
    assert_eq!(based.positions(Dtype::Bf16, &short).unwrap_err().name(), "position_out_of_range");
    let whole = [gcodec::block::BaseElements { data: base.data(), start: 0, len: 5000 }];
    let mut positions: Vec<u64> =
        based.positions(Dtype::Bf16, &whole).unwrap().into_iter().map(|(p, _)| p).collect();
    positions.sort_unstable();
    let changed = |i: &u64| base.data()[2 * *i as usize..][..2] != new.data()[2 * *i as usize..][..2];
    assert_eq!(positions, (0..5000).filter(changed).collect::<Vec<u64>>());
}

#[test]
fn the_encoder_refuses_what_readers_refuse() {
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::Bf16, [4])]).unwrap());
    let based = |bounds: Vec<u8>, ranks: Vec<Vec<u64>>| Block {
        scope: Scope::Tensor(0),
        add: false,
        support: Support::Based(gcodec::block::Based { bounds, ranks }),
        values: Values::Ulp(Ulp { diffs: vec![1] }),
    };
    let run = Delta { first: 0, more: 0, base: [1; 16], result: [2; 16] };
    let encode = |block: &Block, delta: Option<Vec<Delta>>| {
        let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut out, &UpdateHeader::default().with_delta(delta), &manifest, [block])
    };
    let good = based(vec![9], vec![vec![], vec![3]]);
    encode(&good, Some(vec![run])).unwrap();
    assert!(encode(&good, None).is_err(), "no delta");
    for (bounds, ranks) in [
        (vec![0], vec![vec![], vec![3]]),
        (vec![9, 9], vec![vec![], vec![], vec![3]]),
        (vec![9], vec![vec![3]]),
        (vec![9], vec![vec![], vec![4]]),
        (vec![], vec![vec![3, 3]]),
    ] {
        assert!(
            encode(&based(bounds.clone(), ranks.clone()), Some(vec![run])).is_err(),
            "{bounds:?} {ranks:?}"
        );
    }
    let added = Block { add: true, ..good.clone() };
    assert!(encode(&added, Some(vec![run])).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_positions_come_back(
        shapes in prop::collection::vec(prop::collection::vec(0u64..9, 0..5), 1..5),
        density in 1u32..100,
        seed in any::<u64>(),
        skewed in any::<bool>(),
    ) {
        let info = |(i, shape): (usize, &Vec<u64>)| TensorInfo::new(format!("t{i}"), Dtype::F32, shape.clone());
        let infos: Vec<_> = shapes.iter().enumerate().map(info).collect();
        let n: u64 = infos.iter().map(TensorInfo::elements).sum();
        let likely = |i: &u64| {
            let limit = if skewed { density * (1 + (*i / 7 % 9) as u32 * 3) / 10 } else { density };
            word(seed, 1, *i) % 100 < limit
        };
        let positions: Vec<u64> = (0..n).filter(likely).collect();
        let scope = match infos.len() {
            1 => Scope::Tensor(0),
            count => Scope::Tensors { first: 0, count: count as u64 },
        };
        let manifest = Arc::new(Manifest::new(infos).unwrap());
        let negative = positions.iter().map(|&i| word(seed, 2, i).is_multiple_of(4)).collect();
        let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
        let values = Values::Sign(Sign { groups: Groups::Block, scales, negative });
        let block = Block { scope, add: false, support: Support::Sparse(Sparse { positions }), values };
        for choice in [Positions::Classed, Positions::Auto] {
            let bytes = encoded(&manifest, &UpdateHeader::default(), &block, choice);
            prop_assert_eq!(&first_block(&bytes).0, &block);
        }
    }
}
