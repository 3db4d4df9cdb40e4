//! Blocks in wire form: the encoder writes the same frames for them as for the decoded blocks.

use std::borrow::Cow;
use std::sync::Arc;

use gcodec::block::{
    Affine, Bits, Block, BlockOptions, Chunked, Constant, Floats, Groups, Levels, Norm, Part, Planes,
    Positions, Pow2, Rows, ScaleFormat, Scales, Scope, Seeded, Sets, Sign, Spacing, Sparse, Stored, Support,
    SupportId, Underflow, Values, ValuesId, WireBlock, Zero,
};
use gcodec::frame::{Budget, Manifest, TensorInfo, UpdateHeader, UpdatePart};
use gcodec::internal::device::{Packed, WireValues};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Dtype, Error, Limits};
use proptest::prelude::*;
use serde_json::Value;

fn vectors() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/spec/vectors/index.json");
    let index: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    index["vectors"].as_array().unwrap().clone()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// Calls `f` with every readable update part, and with an encoder that knows the index sets of the stream.
fn each_part(bytes: &[u8], limits: &Limits, mut f: impl FnMut(&UpdatePart<'_>, Encoder)) {
    let mut manifests: Vec<Arc<Manifest>> = Vec::new();
    let mut sets = Vec::new();
    for event in SliceReader::new(bytes, limits.clone()).filter_map(Result::ok) {
        match event {
            Event::Frame(_, Body::Manifest(manifest)) => manifests.push(manifest),
            Event::Frame(_, Body::IndexSet(set, id, _)) => sets.push((id, set)),
            Event::Frame(_, Body::Update(part)) => {
                let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
                for (id, set) in &sets {
                    let manifest = manifests.iter().find(|m| m.id() == set.manifest).unwrap();
                    encoder.add_index_set(*id, set, manifest).unwrap();
                }
                f(&part, encoder);
            }
            _ => {}
        }
    }
}

/// Whether two blocks are equal, compared by their `Debug` text, in which a NaN equals itself.
fn same(a: &Block, b: &Block) -> bool {
    format!("{a:?}") == format!("{b:?}")
}

#[test]
fn blocks_of_every_vector_are_copied_unchanged() {
    let (mut handed, mut refused) = (0, 0);
    for vector in vectors().iter().filter(|v| v["result"] == "valid") {
        let (id, bytes) = (&vector["id"], unhex(vector["hex"].as_str().unwrap()));
        each_part(&bytes, &Limits::default(), |part, mut encoder| {
            let mut blocks = Vec::new();
            for i in 0..part.blocks.len() {
                // Decoding exceeds the limits of some vectors.
                let Ok(decoded) = part.decode(i, &part.budget()) else { continue };
                match part.wire_block(i) {
                    Ok(block) => {
                        let again = block.decode(&part.manifest, part.sets(), &part.budget()).unwrap();
                        assert!(same(&again, &decoded), "{id}, block {i}");
                        blocks.push((i, block));
                    }
                    Err(e) => {
                        assert!(part.table_count() > 0, "{id}, block {i}: {e}");
                        assert_eq!(e.name(), "unknown_reference", "{id}, block {i}");
                        refused += 1;
                    }
                }
            }
            let given: Vec<_> = blocks.iter().map(|(_, b)| (b.clone(), BlockOptions::default())).collect();
            let mut out = Vec::new();
            encoder.update(&mut out, &part.header, &part.manifest, &given).unwrap();
            each_part(&out, &Limits::default(), |again, _| {
                assert_eq!((again.blocks.len(), again.table_count()), (blocks.len(), 0), "{id}");
                for ((i, _), raw) in blocks.iter().zip(&again.blocks) {
                    let of = |raw: &gcodec::block::RawBlock<'_>| {
                        let parts = (raw.support.to_vec(), raw.values.to_vec());
                        (raw.scope, raw.add, raw.support_id, raw.values_id, raw.len, parts)
                    };
                    assert_eq!(of(raw), of(&part.blocks[*i]), "{id}, block {i}");
                }
                handed += blocks.len();
            });
        });
    }
    println!("{handed} handed on, {refused} refused");
    assert!(handed > 250 && refused > 2, "{handed} handed on, {refused} refused");
}

#[test]
fn invalid_blocks_are_refused_by_the_encoder_or_by_decode() {
    let (mut early, mut late) = (0, 0);
    for vector in vectors().iter().filter(|v| v["result"] == "invalid") {
        let (id, bytes) = (&vector["id"], unhex(vector["hex"].as_str().unwrap()));
        each_part(&bytes, &Limits::default(), |part, _| {
            for i in 0..part.blocks.len() {
                let Err(expected) = part.decode(i, &part.budget()) else { continue };
                match part.wire_block(i) {
                    Err(e) => {
                        early += 1;
                        // A shared table of the original stream does not exist in the new one.
                        let other = part.table_count() > 0 && e.name() == "unknown_reference";
                        // Parts that do not fit each other are an error of the caller.
                        let parts = matches!(e, Error::Input(_));
                        // Copying allocates nothing, so no limit applies.
                        let limit = matches!(expected, Error::Limit(_));
                        assert!(
                            other || parts || limit || e.name() == expected.name(),
                            "{id}: {e}, expected {expected}"
                        );
                    }
                    Ok(block) => {
                        late += 1;
                        let e = block.decode(&part.manifest, part.sets(), &part.budget()).unwrap_err();
                        assert_eq!(e.name(), expected.name(), "{id}: {e}, expected {expected}");
                    }
                }
            }
        });
    }
    println!("{early} refused before, {late} by decode");
    assert!(early > 50 && late > 20, "{early} refused before, {late} by decode");
}

fn manifest() -> Arc<Manifest> {
    let infos =
        [("a", Dtype::F32, 1000), ("b", Dtype::F32, 24), ("c", Dtype::I32, 8), ("d", Dtype::F32, 1 << 40)];
    let infos = infos.map(|(name, dtype, len)| TensorInfo::new(name, dtype, [len]));
    Arc::new(Manifest::new(infos.to_vec()).unwrap())
}

fn encoded(blocks: &[(WireBlock<'_>, BlockOptions)]) -> gcodec::Result<Vec<u8>> {
    encoded_by(EncodeOptions::default(), blocks)
}

fn encoded_by(options: EncodeOptions, blocks: &[(WireBlock<'_>, BlockOptions)]) -> gcodec::Result<Vec<u8>> {
    let (mut encoder, mut out) = (Encoder::new(options), Vec::new());
    let written = encoder.update(&mut out, &UpdateHeader::default(), &manifest(), blocks);
    if let Err(e) = written {
        assert!(out.is_empty() && encoder.offset() == 0, "a failed call changes nothing");
        return Err(e);
    }
    encoder.finish(&mut out);
    Ok(out)
}

fn budget() -> Budget {
    Budget::new(&Limits::default().with_max_elements(1 << 41))
}

fn floats(n: usize) -> Values {
    Values::Floats(Floats { stored: Stored::Source, bytes: vec![7; 4 * n] })
}

fn sparse(positions: Vec<u64>) -> Support {
    Support::Sparse(Sparse { positions })
}

fn part<'a, T: Clone, Id>(id: Id, bytes: &'a [u8]) -> Part<'a, T, Id> {
    Part::Written { id, bytes: Cow::Borrowed(bytes) }
}

/// Returns a block in wire form, as the encoder writes it.
fn as_bytes(block: &Block, options: BlockOptions) -> WireBlock<'static> {
    let stream = encoded(&[(block.into(), options)]).unwrap();
    let mut found = None;
    let limits = Limits::default().with_max_elements(1 << 41);
    each_part(&stream, &limits, |part, _| found = Some(part.wire_block(0).unwrap().into_owned()));
    found.unwrap()
}

/// Returns decoded blocks with supports and values of every kind that is written without tables, and their
/// options.
fn pairs(seed: u64) -> Vec<(Block, BlockOptions)> {
    let mut words = vec![0; 4000];
    gcodec::compress::random::words(seed, 0, 0, &mut words);
    let positions: Vec<u64> = (0..1000).filter(|&i| words[i as usize].is_multiple_of(3)).collect();
    let m = positions.len();
    let signs = |n: usize| words[..n].iter().map(|w| w % 2 == 1).collect::<Bits>();
    let ones = |n: usize| Scales::from_f32s(ScaleFormat::F32, &vec![1.5; n]);
    let codes = |n: usize, most: u32| words[..n].iter().map(|w| (w >> 8) % most).collect::<Vec<u32>>();
    let bytes = |n: usize, most: u32| codes(n, most).iter().map(|&c| c as u8).collect::<Vec<u8>>();
    let packed = BlockOptions::default().with_entropy(gcodec::block::Entropy::Packed);
    let rice = |p| packed.with_positions(p);
    let block = |scope, support, values| Block { scope, add: false, support, values };
    let a = Scope::Tensor(0);
    let pow2_codes = bytes(1000, 30);
    let negative = pow2_codes.iter().zip(&words).map(|(&c, w)| c > 0 && w % 2 == 1).collect();
    vec![
        (block(a, sparse(positions.clone()), floats(m)), rice(Positions::Rice)),
        (block(a, sparse(positions.clone()), floats(m)), rice(Positions::RiceOne)),
        (block(a, sparse(positions.clone()), floats(m)), rice(Positions::Bitmap)),
        (block(a, sparse(Vec::new()), floats(0)), rice(Positions::Rice)),
        (
            block(
                a,
                Support::All,
                Values::Pow2(Pow2 {
                    min_exponent: -9,
                    underflow: Underflow::Zero,
                    codes: pow2_codes,
                    negative,
                }),
            ),
            packed,
        ),
        (
            block(
                a,
                Support::All,
                Values::Levels(Levels {
                    spacing: Spacing::Uniform,
                    max_level: 7,
                    norm: Norm::L2,
                    groups: Groups::Len(100),
                    norms: ones(10),
                    levels: codes(1000, 15).iter().map(|&c| c as i32 - 7).collect(),
                }),
            ),
            packed,
        ),
        (
            block(
                a,
                Support::All,
                Values::Affine(Affine {
                    bits: 4,
                    groups: Groups::Len(300),
                    scales: ones(4),
                    zero: Zero::Offset(ones(4)),
                    codes: bytes(1000, 11),
                }),
            ),
            packed,
        ),
        (
            block(
                Scope::Tensors { first: 0, count: 2 },
                Support::All,
                Values::Sign(Sign { groups: Groups::Tensor, scales: ones(2), negative: signs(1024) }),
            ),
            packed,
        ),
        (
            block(
                Scope::Range { tensor: 1, start: 3, len: 20 },
                Support::Seeded(Seeded { count: 9, seed: 5 }),
                floats(9),
            ),
            packed,
        ),
        (
            block(
                Scope::Tensor(1),
                Support::Rows(Rows { row_len: 8, rows: vec![0, 2] }),
                Values::Constant(Constant { groups: Groups::Len(9), scales: ones(2) }),
            ),
            rice(Positions::Rice),
        ),
        (
            block(
                Scope::Tensor(1),
                Support::Chunked(Chunked { chunk_len: 10, kept: 2, positions: vec![1, 9, 0, 4, 2, 3] }),
                Values::Planes(Planes { bytes: vec![3; 24] }),
            ),
            packed,
        ),
    ]
}

/// Every mixture of decoded parts and parts in wire form gives the same frames, split into the same parts.
#[test]
fn decoded_parts_and_parts_in_wire_form_give_the_same_frames() {
    for (block, options) in pairs(1) {
        let bytes = as_bytes(&block, options);
        let expected = encoded(&[((&block).into(), options)]).unwrap();
        let both = [(&block).into(), bytes.clone()] as [WireBlock<'_>; 2];
        for support in 0..2 {
            for values in 0..2 {
                let mixed = WireBlock {
                    support: both[support].support.clone(),
                    values: both[values].values.clone(),
                    ..bytes.clone()
                };
                assert_eq!(encoded(&[(mixed, options)]).unwrap(), expected, "{block:?}");
            }
        }
        assert_eq!(bytes.decode(&manifest(), &Sets::new(), &budget()).unwrap(), block);
    }
    // Many blocks in update parts of different sizes; `add` allows several blocks of one tensor.
    let add = |(block, options): (Block, BlockOptions)| (Block { add: true, ..block }, options);
    let bits = |b: &Block| b.values.gives_bits();
    let many: Vec<_> = (0..6).flat_map(pairs).filter(|(b, _)| !bits(b)).map(add).collect();
    let decoded: Vec<(WireBlock<'_>, BlockOptions)> = many.iter().map(|(b, o)| (b.into(), *o)).collect();
    let bytes: Vec<_> = many.iter().map(|(b, o)| (as_bytes(b, *o), *o)).collect();
    let every_other: Vec<_> = decoded
        .iter()
        .zip(&bytes)
        .enumerate()
        .map(|(i, (a, b))| if i % 2 == 0 { a } else { b }.clone())
        .collect();
    for part_bytes in [1, 900, 3000, 1 << 20] {
        let options = EncodeOptions::default().with_part_bytes(part_bytes);
        let expected = encoded_by(options.clone(), &decoded).unwrap();
        assert_eq!(encoded_by(options.clone(), &bytes).unwrap(), expected, "{part_bytes}");
        assert_eq!(encoded_by(options, &every_other).unwrap(), expected, "{part_bytes}");
    }
}

/// Values built from given bit planes have the same bytes as values that the encoder packs.
#[test]
fn values_from_planes_equal_packed_values() {
    let plane = |codes: &[u64], width: u32| {
        let mut plane = vec![0u8; (codes.len() * width as usize).div_ceil(8)];
        for (i, code) in codes.iter().enumerate() {
            for bit in (0..width as usize).filter(|b| code >> b & 1 == 1) {
                plane[(i * width as usize + bit) / 8] |= 1 << ((i * width as usize + bit) % 8);
            }
        }
        plane
    };
    let mut seen = 0;
    for (block, options) in pairs(3) {
        let space = WireValues { count: 1000, tensors: 1 };
        let packed = |width, plane| Packed { width, plane };
        let values = match &block.values {
            Values::Sign(Sign { groups, scales, negative }) => {
                WireValues { count: 1024, tensors: 2 }.sign(*groups, scales, negative.as_bytes())
            }
            Values::Pow2(Pow2 { min_exponent, underflow, codes, negative }) => {
                let bits = (0..1000).filter(|&i| codes[i] > 0).map(|i| u64::from(negative.get(i)));
                let signs = plane(&bits.collect::<Vec<_>>(), 1);
                let codes = plane(&codes.iter().map(|&c| c.into()).collect::<Vec<_>>(), 5);
                space.pow2(*min_exponent, *underflow, packed(5, &codes), &signs)
            }
            Values::Levels(Levels { spacing, max_level, norm, groups, norms, levels }) => {
                let codes: Vec<u64> =
                    levels.iter().map(|l| if l < 0 { -2 * l - 1 } else { 2 * l } as u64).collect();
                space.levels(*spacing, *max_level, *norm, *groups, norms, packed(4, &plane(&codes, 4)))
            }
            Values::Affine(Affine { bits, groups, scales, zero, codes }) => {
                let codes = plane(&codes.iter().map(|&c| c.into()).collect::<Vec<_>>(), 4);
                space.affine(*bits, *groups, scales, zero, packed(4, &codes))
            }
            _ => continue,
        };
        seen += 1;
        let made = WireBlock { values: values.unwrap(), ..(&block).into() };
        assert_eq!(encoded(&[(made, options)]).unwrap(), encoded(&[((&block).into(), options)]).unwrap());
    }
    assert_eq!(seen, 4);
    let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
    let space = WireValues { count: 9, tensors: 1 };
    assert!(space.sign(Groups::Block, &scales, &[0; 2]).is_ok());
    assert!(space.sign(Groups::Block, &scales, &[0]).is_err());
    assert!(space.sign(Groups::Len(4), &scales, &[0; 2]).is_err());
    let codes = |width, plane| Packed { width, plane };
    assert!(space.affine(3, Groups::Block, &scales, &Zero::Centre, codes(3, &[0; 4])).is_ok());
    assert!(space.affine(3, Groups::Block, &scales, &Zero::Centre, codes(3, &[0; 3])).is_err());
    assert!(space.affine(9, Groups::Block, &scales, &Zero::Centre, codes(3, &[0; 4])).is_err());
    assert!(space.pow2(1024, Underflow::Zero, codes(0, &[]), &[]).is_err());
    let none = WireValues { count: 0, tensors: 1 };
    assert!(none.pow2(0, Underflow::Zero, codes(0, &[]), &[]).is_ok());
}

#[test]
fn inconsistent_parts_are_refused() {
    let a = Scope::Tensor(0);
    let block = |support, values| WireBlock { scope: a, add: false, support, values };
    let no_values = || Part::from(floats(0));
    let rice = |bytes| part(SupportId::GAPS_RICE, bytes);
    let refused = |block: WireBlock<'_>| match encoded(&[(block, BlockOptions::default())]) {
        Err(e) => e.name().to_owned(),
        Ok(_) => "accepted".to_owned(),
    };
    // Two gaps, 5 and 0, in one chunk with k = 1.
    let good = [2, 0, 1, 0b01, 0b1100];
    let two = || Part::from(floats(2));
    assert_eq!(refused(block(rice(&good), two())), "accepted");
    for (support, expected) in [
        (rice(&[]), "length_mismatch"),
        (rice(&[0, 0]), "length_mismatch"),
        (rice(&good[..4]), "length_mismatch"),
        (rice(&[2, 0, 64, 0, 0]), "out_of_range"),
        (rice(&[2, 5, 1, 0, 0]), "out_of_range"),
        (rice(&[2, 7, 1, 0, 0]), "not_canonical"),
        // 1001 positions in 1000 elements; then more positions than the bytes can hold.
        (rice(&[0xe9, 7, 0, 0, 255]), "count_mismatch"),
        (rice(&[0xe7, 7, 0, 0, 255]), "length_mismatch"),
        (part(SupportId(0x7fff), &good), "unsupported"),
        (part(SupportId(0), &good), "unsupported"),
        (part(SupportId(0x8000), &good), "unsupported"),
        (part(SupportId::ALL, &[0]), "length_mismatch"),
        (part(SupportId::BITMAP, &[1]), "length_mismatch"),
        (part(SupportId::BITMAP, &[1; 126]), "length_mismatch"),
        // An index set that the encoder does not know.
        (part(SupportId::SET, &[1; 32]), "unknown_reference"),
        (part(SupportId::SET, &[1; 31]), "length_mismatch"),
        (part(SupportId::CHUNKED, &[10, 11]), "out_of_range"),
        (part(SupportId::SEEDED, &[2, 0, 0, 0, 0, 0, 0, 0]), "length_mismatch"),
        (part(SupportId::ROWS, &[3, 2, 0]), "out_of_range"),
        // Tokens with a shared table.
        (part(SupportId::GAPS_TOKENS, &[2, 0, 1, 0]), "unknown_reference"),
    ] {
        assert_eq!(refused(block(support.clone(), two())), expected, "{support:?}");
    }
    // The number of values differs from the number of positions.
    assert_eq!(refused(block(rice(&good), floats(3).into())), "input");
    assert_eq!(refused(block(rice(&[0]), no_values())), "accepted");
    for (id, bytes, expected) in [
        (ValuesId::FLOATS, &[0, 1, 2, 3, 4, 5, 6, 7, 8][..], "accepted"),
        (ValuesId::FLOATS, &[0, 1, 2, 3, 4, 5, 6, 7], "length_mismatch"),
        (ValuesId::FLOATS, &[1, 1, 2, 3, 4, 5, 6, 7, 8], "out_of_range"),
        (ValuesId::CONSTANT, &[0, 3, 1, 2], "accepted"),
        (ValuesId::CONSTANT, &[0, 3, 1, 2, 3], "length_mismatch"),
        (ValuesId::SIGN, &[0, 3, 1, 2, 0, 3], "accepted"),
        (ValuesId::SIGN, &[0, 3, 1, 2, 0, 4], "nonzero_padding"),
        (ValuesId::SIGN, &[0, 3, 1, 2, 2, 3], "unsupported"),
        (ValuesId::SIGN, &[0, 3, 1, 2, 0], "length_mismatch"),
        (ValuesId::POW2, &[0, 0, 0, 0, 2, 0b1001, 0, 1], "accepted"),
        (ValuesId::POW2, &[0, 0, 0, 0, 2, 0b1001, 0, 1, 1], "length_mismatch"),
        (ValuesId::POW2, &[0, 0, 0, 0, 2, 0b11001, 0, 1], "nonzero_padding"),
        (ValuesId::POW2, &[0, 0, 0, 2, 0, 1], "unknown_reference"),
        (ValuesId::POW2, &[0, 0, 0, 9], "unsupported"),
        (ValuesId::ULP, &[0, 2, 0b1001], "input"), // no delta
        (ValuesId::LOW_RANK, &[1, 2, 1, 1, 5, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0], "input"),
        (ValuesId(0x7fff), &[0], "unsupported"),
        (ValuesId(0), &[0], "unsupported"),
    ] {
        assert_eq!(refused(block(rice(&good), part(id, bytes))), expected, "{id} {bytes:?}");
    }
    let with = |scope, add, values| WireBlock { scope, add, support: rice(&good), values };
    let constant = || part(ValuesId::CONSTANT, &[0, 3, 1, 2]);
    let source = || part(ValuesId::FLOATS, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(refused(with(a, true, constant())), "accepted");
    assert_eq!(refused(with(a, true, source())), "input");
    assert_eq!(refused(with(Scope::Tensor(2), false, source())), "accepted");
    assert_eq!(refused(with(Scope::Tensor(2), false, constant())), "out_of_range");
    assert_eq!(refused(with(Scope::Tensor(9), false, source())), "input");
    // Errors name the tensor.
    let wrong = with(Scope::Tensor(1), false, part(ValuesId::FLOATS, &[0]));
    let e = encoded(&[(wrong, BlockOptions::default())]).unwrap_err();
    assert_eq!(e.to_string(), "length of values does not match its bytes at byte 0x1, tensor 1");
    let wrong = block(rice(&[2, 7, 1, 0, 0]), two());
    let e = encoded(&[(wrong, BlockOptions::default())]).unwrap_err();
    assert_eq!(e.to_string(), "chunk_log is not in canonical form at byte 0x1, tensor 0");
}

/// Decoding finds what a copy does not need to know, and tells where it is in its part.
#[test]
fn decoding_checks_the_whole_block_within_its_budget() {
    let manifest = manifest();
    let decode = |block: &WireBlock<'_>, elements| {
        let budget = Budget::new(&Limits::default().with_max_elements(elements));
        let decoded = block.decode(&manifest, &Sets::new(), &budget);
        decoded.map(drop).map_err(|e| (e.name(), e.location().map(|at| at.offset)))
    };
    let all = WireBlock {
        scope: Scope::Tensor(1),
        add: false,
        support: Support::All.into(),
        values: floats(24).into(),
    };
    assert_eq!(decode(&all, 24), Ok(()));
    assert_eq!(decode(&all, 23), Err(("limit", Some(0))));
    assert_eq!(decode(&WireBlock { add: true, ..all.clone() }, 24), Err(("input", None)));
    // One gap of 31, where the tensor has 24 elements. Its unary part is the byte 4.
    let support = part(SupportId::GAPS_RICE, &[1, 0, 5, 31, 1]);
    let outside = WireBlock { support, values: floats(1).into(), ..all.clone() };
    assert!(encoded(&[(outside.clone(), BlockOptions::default())]).is_ok());
    assert_eq!(decode(&outside, 24), Err(("position_out_of_range", Some(4))));
    // The code 3 of a level, where 2 is the largest. Nine bytes precede the codes.
    let norms = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
    let codes = Packed { width: 2, plane: &[0xff; 6] };
    let space = WireValues { count: 24, tensors: 1 };
    let values = space.levels(Spacing::Uniform, 1, Norm::Max, Groups::Block, &norms, codes).unwrap();
    let too_large = WireBlock { values, ..all };
    assert!(encoded(&[(too_large.clone(), BlockOptions::default())]).is_ok());
    assert_eq!(decode(&too_large, 24), Err(("out_of_range", Some(9))));
}

proptest! {
    #[test]
    fn parts_of_random_bytes_are_refused_or_written(
        support in proptest::collection::vec(any::<u8>(), 0..40),
        values in proptest::collection::vec(any::<u8>(), 0..40),
        id in 0u64..10,
        kind in 0u64..15,
        tensor in 0u64..4,
        add: bool,
    ) {
        let block = WireBlock {
            scope: Scope::Tensor(tensor),
            add,
            support: part(SupportId(id), &support),
            values: part(ValuesId(kind), &values),
        };
        let decoded = block.decode(&manifest(), &Sets::new(), &budget());
        match encoded(&[(block.clone(), BlockOptions::default())]) {
            // A written block decodes as before; a refused block does not decode.
            Ok(stream) => {
                let mut again = None;
                each_part(&stream, &Limits::default(), |part, _| again = Some(part.decode(0, &part.budget())));
                match (decoded, again.unwrap()) {
                    (Ok(a), Ok(b)) => prop_assert!(same(&a, &b)),
                    (Err(a), Err(b)) => prop_assert_eq!(a.name(), b.name()),
                    (a, b) => prop_assert!(false, "{a:?} {b:?}"),
                }
            }
            Err(e) if kind == 10 => prop_assert_eq!(e.name() == "accepted", false),
            Err(e) => prop_assert!(decoded.is_err(), "{e}"),
        }
    }

    #[test]
    fn rice_positions_in_wire_form_equal_those_of_the_encoder(
        gaps in proptest::collection::vec(prop_oneof![0u64..4, 0u64..3000, 0u64..1 << 28], 0..900),
        one: bool,
    ) {
        let positions: Vec<u64> =
            gaps.iter().scan(0, |next, g| { let p = *next + g; *next = p + 1; Some(p) }).collect();
        let positions_option = if one { Positions::RiceOne } else { Positions::Rice };
        let options = BlockOptions::default().with_positions(positions_option);
        let values = floats(positions.len());
        let block = Block { scope: Scope::Tensor(3), add: false, support: sparse(positions), values };
        let bytes = as_bytes(&block, options);
        prop_assert_eq!(bytes.decode(&manifest(), &Sets::new(), &budget()).unwrap(), block.clone());
        prop_assert_eq!(encoded(&[(bytes, options)]).unwrap(), encoded(&[((&block).into(), options)]).unwrap());
    }
}

#[test]
fn levels_beyond_the_largest_and_missing_ones_are_refused() {
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [4])]).unwrap());
    let write = |levels: &[i32]| {
        let levels = Levels {
            spacing: Spacing::Uniform,
            max_level: 300,
            norm: Norm::L2,
            groups: Groups::Block,
            norms: Scales::from_f32s(ScaleFormat::F32, &[1.0]),
            levels: levels.iter().copied().collect(),
        };
        let (scope, values) = (Scope::Tensor(0), Values::Levels(levels));
        let block = Block { scope, add: false, support: Support::All, values };
        let mut out = Vec::new();
        let (mut encoder, blocks) =
            (Encoder::new(EncodeOptions::default()), [(&block, BlockOptions::default())]);
        encoder.update(&mut out, &UpdateHeader::default(), &manifest, &blocks)
    };
    write(&[300, -300, 0, 7]).unwrap();
    for levels in [&[301, 0, 0, 0][..], &[0, -301, 0, 0], &[1, 2, 3], &[1, 2, 3, 4, 5]] {
        assert!(matches!(write(levels), Err(Error::Input(_))), "{levels:?}");
    }
}
