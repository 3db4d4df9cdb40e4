//! Every block decodes to the block that was encoded: every kind, with every option, and arbitrary blocks.

use gcodec::block::{
    Affine, Block, BlockOptions, Chunked, Codebook, Constant, Dct, Entropy, Floats, Groups, Levels, LowRank,
    Minifloat, MinifloatFormat, Norm, Planes, Positions, Pow2, Rows, ScaleFormat, Scales, Scope, Seeded, Set,
    Sign, Spacing, Sparse, Stored, Support, Ulp, Underflow, Values, Zero,
};
use gcodec::frame::UpdateHeader;
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Error, Limits};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

fn encode(block: &Block, options: BlockOptions, header: &UpdateHeader) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    encoder.update(&mut out, header, &crate::streams::manifest(), &[(block, options)])?;
    encoder.finish(&mut out);
    Ok(out)
}

fn decode(bytes: &[u8]) -> Block {
    let mut found = None;
    for event in SliceReader::new(bytes, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
            let mut blocks = part.decode_all().unwrap();
            assert_eq!(blocks.len(), 1);
            found = blocks.pop();
        }
    }
    found.expect("an update")
}

fn every_option() -> Vec<BlockOptions> {
    let positions = Positions::ALL.map(|(p, _)| p);
    let all = positions.into_iter().flat_map(|p| [Entropy::Auto, Entropy::Packed].map(|e| (p, e)));
    all.map(|(p, e)| BlockOptions::default().with_positions(p).with_entropy(e)).collect()
}

#[test]
fn every_kind_round_trips_with_every_option() {
    for block in crate::streams::blocks() {
        for options in every_option() {
            let bytes = encode(&block, options, &crate::streams::header_for(&block)).unwrap();
            // NaN does not equal NaN, so the texts and the bytes are compared.
            let again = decode(&bytes);
            assert_eq!(format!("{again:?}"), format!("{block:?}"), "{options:?}");
            assert_eq!(encode(&again, options, &crate::streams::header_for(&again)).unwrap(), bytes);
        }
    }
}

#[test]
fn inconsistent_blocks_are_refused() {
    let halves = |n: usize| Values::Floats(Floats { stored: Stored::F16, bytes: vec![0; 2 * n] });
    let embed = Scope::Tensor(0);
    let all = |values| (embed, Support::All, values);
    let codes = |n: usize| vec![1u8; n];
    let wrong = [
        (embed, Support::Sparse(Sparse { positions: vec![3, 3] }), halves(2)),
        (embed, Support::Sparse(Sparse { positions: vec![32] }), halves(1)),
        (embed, Support::Sparse(Sparse { positions: vec![1] }), halves(2)),
        (embed, Support::Rows(Rows { row_len: 5, rows: vec![0] }), halves(5)),
        (embed, Support::Seeded(Seeded { count: 33, seed: 0 }), halves(33)),
        (embed, Support::Chunked(Chunked { chunk_len: 8, kept: 1, positions: vec![8, 0, 0, 0] }), halves(4)),
        (Scope::Tensor(8), Support::All, halves(0)),
        (Scope::Tensors { first: 3, count: 2 }, Support::All, halves(16)),
        (Scope::Range { tensor: 0, start: 30, len: 3 }, Support::All, halves(3)),
        (Scope::Tensor(5), Support::All, halves(3)),
        all(Values::Affine(Affine {
            bits: 2,
            groups: Groups::Block,
            scales: crate::streams::scales(&[1.0]),
            zero: Zero::Centre,
            codes: vec![4; 32],
        })),
        all(Values::Affine(Affine {
            bits: 9,
            groups: Groups::Block,
            scales: crate::streams::scales(&[1.0]),
            zero: Zero::Centre,
            codes: codes(32),
        })),
        all(Values::Affine(Affine {
            bits: 2,
            groups: Groups::Len(0),
            scales: crate::streams::scales(&[1.0]),
            zero: Zero::Centre,
            codes: codes(32),
        })),
        all(Values::Affine(Affine {
            bits: 2,
            groups: Groups::Len(1),
            scales: crate::streams::scales(&[1.0; 32]),
            zero: Zero::Centre,
            codes: codes(32),
        })),
        all(Values::Constant(Constant {
            groups: Groups::Block,
            scales: crate::streams::scales(&[1.0, 2.0]),
        })),
        all(Values::LowRank(LowRank {
            rows: 8,
            cols: 5,
            rank: 1,
            left: Box::new(halves(8)),
            right: Box::new(halves(5)),
        })),
        all(Values::LowRank(LowRank {
            rows: 8,
            cols: 4,
            rank: 1,
            left: Box::new(halves(7)),
            right: Box::new(halves(4)),
        })),
        all(transform([8, 5, 1, 5], Support::All, halves(40))),
        all(transform([8, 4, 3, 4], Support::All, halves(32))),
        all(transform([8, 4, 0, 4], Support::All, halves(32))),
        all(transform([8, 4, 4, 4], Support::Sparse(Sparse { positions: vec![3] }), halves(2))),
        all(transform([8, 4, 4, 4], Support::Sparse(Sparse { positions: vec![32] }), halves(1))),
        all(transform([8, 4, 4, 4], Support::Set(Set { id: gcodec::block::SetId([0; 32]) }), halves(32))),
        all(transform([8, 4, 4, 4], Support::All, transform([8, 4, 4, 4], Support::All, halves(32)))),
        all(transform(
            [8, 4, 4, 4],
            Support::All,
            Values::Floats(Floats { stored: Stored::Source, bytes: vec![0; 128] }),
        )),
        (
            embed,
            Support::Sparse(Sparse { positions: (0..32).collect() }),
            transform([8, 4, 4, 4], Support::All, halves(32)),
        ),
        all(Values::Ulp(Ulp { diffs: vec![0; 32] })),
    ];
    for (scope, support, values) in wrong {
        let block = Block { scope, add: false, support, values };
        let refused = encode(&block, BlockOptions::default(), &UpdateHeader::default());
        assert!(matches!(refused, Err(Error::Input(_))), "{block:?}: {refused:?}");
    }
}

fn transform(sizes: [u64; 4], support: Support, coefficients: Values) -> Values {
    let [rows, cols, chunk_rows, chunk_cols] = sizes;
    Values::Dct(Dct { rows, cols, chunk_rows, chunk_cols, support, coefficients: Box::new(coefficients) })
}

/// Returns a strategy for values of any kind, for `m` elements of type f32.
fn any_values(m: usize, tensors: usize) -> BoxedStrategy<Values> {
    let groups = prop_oneof![Just(Groups::Block), Just(Groups::Tensor), (2u64..40).prop_map(Groups::Len)];
    let grouped = groups.prop_flat_map(move |groups| {
        let count = match groups {
            Groups::Block => 1,
            Groups::Tensor => tensors,
            Groups::Len(len) => m.div_ceil(len as usize),
        };
        let f32s = vec(-1e3f32..1e3, count).prop_map(|v| Scales::from_f32s(ScaleFormat::F32, &v));
        let bytes = vec(0u8..255, count).prop_map(|bytes| Scales { format: ScaleFormat::E8M0, bytes });
        (Just(groups), prop_oneof![f32s, bytes], vec(any::<u8>(), count))
    });
    let signs = any::<u64>().prop_map(move |pattern| crate::streams::bits(pattern, m));
    let codes = (any::<u8>(), vec(any::<u8>(), m))
        .prop_map(|(mask, codes)| codes.into_iter().map(|c| c & mask).collect::<Vec<u8>>());
    prop_oneof![
        vec(any::<u32>(), m).prop_map(|v| Values::Floats(Floats {
            stored: Stored::Source,
            bytes: v.into_iter().flat_map(u32::to_le_bytes).collect()
        })),
        vec(any::<u16>(), m).prop_map(|v| Values::Floats(Floats {
            stored: Stored::Bf16,
            bytes: v.into_iter().flat_map(u16::to_le_bytes).collect()
        })),
        grouped.clone().prop_map(|(groups, scales, _)| Values::Constant(Constant { groups, scales })),
        (grouped.clone(), signs.clone()).prop_map(|((groups, scales, _), negative)| Values::Sign(Sign {
            groups,
            scales,
            negative
        })),
        (-1074i16..=1023, codes.clone(), signs).prop_map(|(min_exponent, codes, signs)| Values::Pow2(Pow2 {
            min_exponent,
            underflow: Underflow::Zero,
            // A zero has no sign bit.
            negative: codes.iter().enumerate().map(|(i, &code)| code != 0 && signs.get(i)).collect(),
            codes,
        })),
        (grouped.clone(), 1u32..=65_535, vec(any::<u32>(), m)).prop_map(
            |((groups, norms, _), max_level, raw)| Values::Levels(Levels {
                spacing: Spacing::Uniform,
                max_level,
                norm: Norm::L1,
                groups,
                norms,
                levels: raw
                    .into_iter()
                    .map(|r| (r % (2 * max_level + 1)) as i32 - max_level as i32)
                    .collect()
            })
        ),
        (grouped.clone(), 1u8..=8, codes.clone()).prop_map(|((groups, scales, points), bits, codes)| {
            let max = (0xffu16 >> (8 - bits)) as u8;
            Values::Affine(Affine {
                bits,
                groups,
                scales,
                zero: Zero::Point(points.into_iter().map(|p| p & max).collect()),
                codes: codes.into_iter().map(|c| c & max).collect(),
            })
        }),
        (grouped.clone(), codes.clone(), vec(-9f32..9.0, 256)).prop_map(
            |((groups, scales, _), codes, table)| Values::Codebook(Codebook {
                table,
                groups,
                scales: Some(scales.clone()),
                shifts: None,
                codes
            })
        ),
        (grouped, codes).prop_map(|((groups, scales, _), codes)| Values::Minifloat(Minifloat {
            format: MinifloatFormat::F8E4M3Fn,
            groups,
            scales,
            codes
        })),
        vec(any::<u32>(), m).prop_map(|v| Values::Planes(Planes {
            bytes: v.into_iter().flat_map(u32::to_le_bytes).collect()
        })),
    ]
    .boxed()
}

fn any_block() -> impl Strategy<Value = Block> {
    let scope = prop_oneof![
        Just((Scope::Tensor(0), 32u64, 1usize)),
        Just((Scope::Tensors { first: 0, count: 4 }, 37, 4)),
        (0u64..31, 1u64..31).prop_map(|(start, len)| {
            let len = len.min(32 - start);
            (Scope::Range { tensor: 0, start, len }, len, 1)
        }),
    ];
    scope
        .prop_flat_map(|(scope, n, tensors)| {
            let sparse = btree_set(0..n, 0..=n as usize)
                .prop_map(|p| Support::Sparse(Sparse { positions: p.into_iter().collect() }));
            let support = prop_oneof![
                Just(Support::All),
                sparse,
                (0..=n, any::<u64>()).prop_map(|(count, seed)| Support::Seeded(Seeded { count, seed })),
            ];
            (Just((scope, n, tensors)), support)
        })
        .prop_flat_map(|((scope, n, tensors), support)| {
            let m = match &support {
                Support::All => n as usize,
                Support::Sparse(Sparse { positions: p }) => p.len(),
                Support::Seeded(Seeded { count, .. }) => *count as usize,
                _ => unreachable!(),
            };
            any_values(m, tensors).prop_map(move |values| Block {
                scope,
                add: false,
                support: support.clone(),
                values,
            })
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn arbitrary_blocks_round_trip(block in any_block(), option in 0usize..10) {
        let options = every_option()[option];
        let bytes = encode(&block, options, &UpdateHeader::default()).unwrap();
        prop_assert_eq!(decode(&bytes), block);
    }
}
