//! Every byte is annotated exactly once, for every kind of the format.

use super::*;
use gcodec::Dtype;
use gcodec::block::{
    Affine, Based, Bits, Block, BlockOptions, Chunked, Codebook, Constant, Dct, Entropy, Floats, Groups,
    Latent, LevelList, Levels, LowRank, Minifloat, MinifloatFormat, ModelId, Norm, Planes, Positions, Pow2,
    Rows, ScaleFormat, Scales, Scope, Seeded, Set, SetId, Sign, Spacing, Sparse, Stored, Support, Ulp,
    Underflow, Values, ValuesId, Zero,
};
use gcodec::frame::{Delta, IndexSet, Metadata, Model, Shard, TensorInfo, UpdateHeader, Weights};
use gcodec::stream::{EncodeOptions, Encoder, Writer};
use std::collections::{BTreeMap, BTreeSet};

/// Elements of each tensor of the streams below.
const LEN: u64 = 4096;

/// Returns pseudo-random numbers.
fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
}

/// Skewed, so that entropy coding helps.
fn skewed(seed: u64, len: usize, max: u64) -> Vec<u64> {
    noise(seed).map(|x| (x % (max + 1)) * (x >> 32 & 1) * (x >> 33 & 1)).take(len).collect()
}

fn codes(seed: u64, len: usize, max: u64) -> Vec<u8> {
    skewed(seed, len, max).into_iter().map(|v| v as u8).collect()
}

fn signs(len: usize) -> Bits {
    noise(3).take(len).map(|x| x & 1 == 1).collect()
}

fn scales(format: ScaleFormat, count: usize) -> Scales {
    Scales::from_f32s(format, &vec![0.5; count])
}

fn floats(len: usize) -> Vec<u8> {
    noise(5).take(len).flat_map(|x| ((x % 1000) as f32 / 999.0).to_le_bytes()).collect()
}

/// Returns all kinds of values for `len` elements of f32; nested ones span `cols` columns.
fn all_values(len: usize) -> Vec<Values> {
    let groups = Groups::Len(64);
    let count = len.div_ceil(64);
    let levels: LevelList = skewed(7, len, 6).into_iter().map(|v| v as i32 - 3).collect();
    let affine = |zero| {
        Values::Affine(Affine {
            bits: 4,
            groups,
            scales: scales(ScaleFormat::Bf16, count),
            zero,
            codes: codes(8, len, 15),
        })
    };
    let of_levels = |spacing, max_level| {
        Values::Levels(Levels {
            spacing,
            max_level,
            norm: Norm::L2,
            groups,
            norms: scales(ScaleFormat::F32, count),
            levels: levels.clone(),
        })
    };
    let mut all = vec![
        Values::Floats(Floats { stored: Stored::Source, bytes: floats(len) }),
        Values::Floats(Floats { stored: Stored::F32, bytes: floats(len) }),
        Values::Floats(Floats { stored: Stored::F16, bytes: vec![1; 2 * len] }),
        Values::Floats(Floats { stored: Stored::Bf16, bytes: vec![1; 2 * len] }),
        Values::Constant(Constant { groups: Groups::Block, scales: scales(ScaleFormat::F32, 1) }),
        Values::Sign(Sign {
            groups: Groups::Tensor,
            scales: scales(ScaleFormat::F16, 1),
            negative: signs(len),
        }),
        Values::Pow2(Pow2 {
            min_exponent: -30,
            underflow: Underflow::Unbiased,
            // A zero has no sign.
            negative: codes(6, len, 12)
                .iter()
                .enumerate()
                .map(|(i, &c)| c != 0 && signs(len).get(i))
                .collect(),
            codes: codes(6, len, 12),
        }),
        of_levels(Spacing::Uniform, 7),
        of_levels(Spacing::Natural, 9),
        affine(Zero::Centre),
        affine(Zero::Point(vec![3; count])),
        affine(Zero::Offset(scales(ScaleFormat::F16, count))),
        Values::Planes(Planes { bytes: floats(len) }),
        Values::Ulp(Ulp { diffs: skewed(9, len, 1000).into_iter().map(|v| v as i64 - 2).collect() }),
        Values::Latent(Latent {
            model: ModelId([7; 32]),
            shape: vec![3, 8],
            codes: Box::new(Values::Floats(Floats { stored: Stored::F16, bytes: vec![0; 48] })),
        }),
    ];
    for (with_scales, with_shifts) in [(false, false), (true, false), (true, true)] {
        all.push(Values::Codebook(Codebook {
            table: vec![-1.0, 0.0, 0.25, 1.0],
            groups,
            scales: with_scales.then(|| scales(ScaleFormat::F32, count)),
            shifts: with_shifts.then(|| scales(ScaleFormat::Bf16, count)),
            codes: codes(11, len, 3),
        }));
    }
    for format in
        [MinifloatFormat::F8E4M3Fn, MinifloatFormat::F4E2M1, MinifloatFormat::F6E3M2, MinifloatFormat::Int8]
    {
        let (groups, scales) = (Groups::Len(32), scales(ScaleFormat::E8M0, len.div_ceil(32)));
        all.push(Values::Minifloat(Minifloat { format, groups, scales, codes: codes(12, len, 15) }));
    }
    all
}

fn low_rank() -> Values {
    let side = |count: usize| Box::new(Values::Floats(Floats { stored: Stored::F32, bytes: floats(count) }));
    let coded = Values::Affine(Affine {
        bits: 8,
        groups: Groups::Block,
        scales: scales(ScaleFormat::F32, 1),
        zero: Zero::Centre,
        codes: codes(13, 128, 255),
    });
    Values::LowRank(LowRank { rows: 64, cols: 64, rank: 2, left: Box::new(coded), right: side(128) })
}

fn transform() -> Values {
    let positions: Vec<u64> = (0..4096).filter(|p| p % 32 < 3).collect();
    let count = positions.len();
    let coefficients = Values::Sign(Sign {
        groups: Groups::Block,
        scales: scales(ScaleFormat::F32, 1),
        negative: signs(count),
    });
    Values::Dct(Dct {
        rows: 64,
        cols: 64,
        chunk_rows: 32,
        chunk_cols: 64,
        support: Support::Sparse(Sparse { positions }),
        coefficients: Box::new(coefficients),
    })
}

fn all_supports(set: SetId) -> Vec<(Support, Positions)> {
    let clustered: Vec<u64> = (0..LEN).filter(|p| p % 512 < 90 || p % 97 == 0).collect();
    let sparse = |positions| (Support::Sparse(Sparse { positions: clustered.clone() }), positions);
    vec![
        (Support::All, Positions::Auto),
        sparse(Positions::Rice),
        sparse(Positions::Tokens),
        sparse(Positions::Bitmap),
        (Support::Sparse(Sparse { positions: vec![] }), Positions::Rice),
        (Support::Sparse(Sparse { positions: vec![] }), Positions::Tokens),
        (Support::Sparse(Sparse { positions: vec![17] }), Positions::Rice),
        (
            Support::Chunked(Chunked { chunk_len: 64, kept: 2, positions: [3, 40].repeat(64) }),
            Positions::Auto,
        ),
        (Support::Rows(Rows { row_len: 64, rows: vec![1, 2, 50] }), Positions::Tokens),
        (Support::Rows(Rows { row_len: 64, rows: vec![1, 2, 50] }), Positions::Bitmap),
        (Support::Seeded(Seeded { count: 100, seed: 9 }), Positions::Auto),
        (Support::Set(Set { id: set }), Positions::Auto),
        sparse(Positions::Classed),
        (Support::Sparse(Sparse { positions: vec![] }), Positions::Classed),
    ]
}

fn kept(support: &Support, in_set: usize) -> usize {
    match support {
        Support::All => LEN as usize,
        Support::Sparse(Sparse { positions }) => positions.len(),
        Support::Chunked(Chunked { positions, .. }) => positions.len(),
        Support::Rows(Rows { row_len, rows }) => rows.len() * *row_len as usize,
        Support::Seeded(Seeded { count, .. }) => *count as usize,
        _ => in_set,
    }
}

/// Records the names of the fields and checks that they are contiguous.
fn check_cover(bytes: &[u8], names: &mut BTreeSet<String>) {
    let (pieces, error) = annotate(bytes, &Wanted::default(), &Limits::default());
    assert!(error.is_none(), "{error:?}");
    let mut at = 0;
    for piece in &pieces {
        assert_eq!(piece.offset, at, "pieces follow each other");
        for line in &piece.lines {
            if let Line::Field(field) = line {
                assert_ne!(field.name, "not understood", "{}", field.meaning);
                assert_eq!(field.offset, at, "{field:?}");
                assert!(field.len > 0, "{field:?}");
                at += field.len as u64;
                names.insert(field.name.clone());
            }
        }
        assert_eq!(at, piece.offset + piece.len);
    }
    assert_eq!(at, bytes.len() as u64, "the stream is covered");
    let text = text(&pieces, bytes);
    let bytes_shown =
        text.lines().filter(|line| line.get(..8).is_some_and(|hex| !hex.trim().is_empty())).count();
    assert!(bytes_shown >= pieces.len());
}

#[test]
fn every_byte_of_every_kind_is_covered_once() {
    let mut names = BTreeSet::new();
    for entropy in [Entropy::Auto, Entropy::Packed] {
        let probe = all_supports(SetId([0; 32]));
        let kinds = all_values(4).len();
        let count = probe.len() * kinds + 2;
        let infos: Vec<_> =
            (0..count).map(|i| TensorInfo::new(format!("tensor.{i}"), Dtype::F32, [LEN])).collect();
        let manifest = Arc::new(Manifest::new(infos).unwrap());
        let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1 << 20));
        let mut out = Vec::new();
        let mut blocks = Vec::new();
        for i in 0..count as u64 - 2 {
            let (support, values) = (i as usize / kinds, i as usize % kinds);
            let set = IndexSet {
                manifest: manifest.id(),
                step: 1,
                leader: 2,
                world: 3,
                scope: Scope::Tensor(i),
                support: Support::Sparse(Sparse { positions: (0..LEN).step_by(7).collect() }),
            };
            let options = BlockOptions::default().with_entropy(entropy);
            let id = match probe[support].0 {
                Support::Set(_) => encoder.index_set(&mut out, &set, &manifest, options).unwrap(),
                _ => SetId([0; 32]),
            };
            let (support, positions) = all_supports(id).swap_remove(support);
            let values = all_values(kept(&support, LEN.div_ceil(7) as usize)).swap_remove(values);
            let block = Block { scope: Scope::Tensor(i), add: false, support, values };
            blocks.push((block, options.with_positions(positions)));
        }
        for (tensor, values) in (count as u64 - 2..).zip([low_rank(), transform()]) {
            let block = Block { scope: Scope::Tensor(tensor), add: false, support: Support::All, values };
            blocks.push((block, BlockOptions::default().with_entropy(entropy)));
        }
        let written: BTreeSet<u64> = blocks.iter().map(|(block, _)| block.values.id().0).collect();
        let registered = ValuesId::REGISTERED.iter().map(|(id, _)| id.0);
        assert!(registered.eq(written.iter().copied()), "not all kinds of values: {written:?}");
        let delta = (0..count as u64)
            .map(|tensor| Delta { first: tensor, more: 0, base: [1; 16], result: [2; 16] })
            .collect();
        let header = UpdateHeader::default().with_step(300).with_label("all".into()).with_delta(Some(delta));
        let blocks: Vec<_> = blocks.iter().map(|(block, options)| (block, *options)).collect();
        encoder.update(&mut out, &header, &manifest, &blocks).unwrap();
        encoder.finish(&mut out);
        check_cover(&out, &mut names);
    }
    for name in [
        "label",
        "base digest",
        "seed",
        "bitmap",
        "unary plane",
        "low plane",
        "row_len",
        "chunk_len",
        "inner",
        "words",
        "raw bits",
        "frequency table",
        "fields",
        "signs",
        "min_exponent",
        "norm",
        "zero points",
        "offsets",
        "entries",
        "shifts",
        "symbols",
        "model id",
        "rank",
        "rows",
        "chunk_rows",
        "spacing",
        "format of scales",
        "numbers",
    ] {
        assert!(names.contains(name), "{name} of {names:?}");
    }
}

#[test]
fn chunks_segments_references_and_shared_tables_are_covered() {
    let mut names = BTreeSet::new();
    let n = 1u64 << 20;
    let infos =
        (0..8u64).map(|i| TensorInfo::new(format!("t{i}"), Dtype::F32, [if i < 2 { n } else { 2048 }]));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    // Increasing density, so that no single parameter or table fits all.
    let positions: Vec<u64> =
        noise(1).zip(0..n).filter(|(x, p)| x % (4 + 4000 * (n - p) / n) == 0).map(|(_, p)| p).collect();
    let sparse = |tensor| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::Sparse(Sparse { positions: positions.clone() }),
        values: Values::Constant(Constant { groups: Groups::Block, scales: scales(ScaleFormat::F32, 1) }),
    };
    let small = |tensor: u64| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::All,
        values: Values::Levels(Levels {
            spacing: Spacing::Uniform,
            max_level: 7,
            norm: Norm::Max,
            groups: Groups::Block,
            norms: scales(ScaleFormat::F32, 1),
            levels: skewed(tensor, 2048, 6).into_iter().map(|v| v as i32).collect(),
        }),
    };
    let blocks: Vec<Block> = (0..8).map(|t| if t < 2 { sparse(t) } else { small(t) }).collect();
    let with = |positions| BlockOptions::default().with_positions(positions);
    let pairs: Vec<_> = blocks
        .iter()
        .zip([Positions::Rice, Positions::Tokens].into_iter().chain([Positions::Auto; 6]))
        .map(|(block, positions)| (block, with(positions)))
        .collect();
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut out = Vec::new();
    encoder.update(&mut out, &UpdateHeader::default(), &manifest, &pairs).unwrap();
    encoder.finish(&mut out);
    check_cover(&out, &mut names);
    for name in ["k of chunk 1", "span", "length", "shared table 0"] {
        assert!(names.contains(name), "{name} of {names:?}");
    }
}

/// Returns the fields of the first update of a stream, without the annotations of other frames.
fn update_fields(bytes: &[u8]) -> Vec<Field> {
    let (pieces, _) = annotate(bytes, &Wanted::default(), &Limits::default());
    let update = pieces
        .into_iter()
        .map(|piece| piece.lines)
        .find(|lines| matches!(lines.first(), Some(Line::Heading { text, .. }) if text == "frame: update"));
    let fields = update.unwrap().into_iter().filter_map(|line| match line {
        Line::Field(field) => Some(field),
        Line::Heading { .. } => None,
    });
    fields.collect()
}

/// Encodes blocks, with a delta for all tensors if wanted.
fn encoded(infos: Vec<TensorInfo>, blocks: &[Block], options: BlockOptions, delta: bool) -> Vec<u8> {
    let run = Delta { first: 0, more: infos.len() as u64 - 1, base: [1; 16], result: [2; 16] };
    let manifest = Arc::new(Manifest::new(infos).unwrap());
    let header = UpdateHeader::default().with_delta(delta.then(|| vec![run]));
    let blocks: Vec<_> = blocks.iter().map(|block| (block, options)).collect();
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut out, &header, &manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    out
}

#[test]
fn classes_of_rows_and_columns_and_predicted_signs_are_covered() {
    let mut names = BTreeSet::new();
    let shapes = [vec![120u64, 160], vec![30, 20, 3, 3], vec![700], vec![0, 4]];
    let infos: Vec<_> = (0..)
        .zip(&shapes)
        .map(|(i, shape)| TensorInfo::new(format!("t{i}"), Dtype::F32, shape.clone()))
        .collect();
    let lens: Vec<u64> = infos.iter().map(TensorInfo::elements).collect();
    // Rows and columns of 160 elements, whatever the shape.
    let level = |i: u64| noise(i / 160 + 1).nth(4).unwrap() % 5 + noise(i % 160 + 900).nth(4).unwrap() % 5;
    let chosen = |n: u64| -> Vec<u64> {
        let (positions, odds) = ((0..n).zip(noise(6)), |i: u64| 1u64 << (9 - level(i).min(9)));
        positions.filter(|&(i, x)| x % odds(i) == 0).map(|(i, _)| i).collect()
    };
    let minus = |i: u64| (level(i / 160 * 160) ^ level(i % 160)) & 1 == 1;
    let blocks = [
        (Scope::Tensor(0), chosen(lens[0])),
        (Scope::Tensors { first: 0, count: 4 }, chosen(lens.iter().sum())),
        (Scope::Range { tensor: 0, start: 1600, len: 12_800 }, chosen(12_800)),
    ];
    let block = |scope, positions: &[u64], values| Block {
        scope,
        add: false,
        support: Support::Sparse(Sparse { positions: positions.to_vec() }),
        values,
    };
    let sign = |positions: &[u64]| {
        Values::Sign(Sign {
            groups: Groups::Block,
            scales: scales(ScaleFormat::F32, 1),
            negative: positions.iter().map(|&i| minus(i)).collect(),
        })
    };
    let pow2 = |positions: &[u64]| {
        let codes: Vec<u8> = positions.iter().map(|i| (i % 5) as u8).collect();
        let signs = positions.iter().zip(&codes).map(|(&i, &code)| code > 0 && minus(i));
        let negative = signs.collect();
        Values::Pow2(Pow2 { min_exponent: -9, underflow: Underflow::Zero, negative, codes })
    };
    let mut all = Vec::new();
    for (scope, positions) in &blocks {
        all.extend([sign(positions), pow2(positions)].map(|values| block(*scope, positions, values)));
    }
    for positions in [Positions::Classed, Positions::Auto] {
        let options = BlockOptions::default().with_positions(positions);
        let mut predicted = 0;
        for block in &all {
            let out = encoded(infos.clone(), std::slice::from_ref(block), options, false);
            check_cover(&out, &mut names);
            let fields = update_fields(&out);
            let of = |name: &str| fields.iter().filter(|f| f.name == name).collect::<Vec<_>>();
            let rule_2 = of("rule").iter().any(|f| f.value == "2");
            assert!(rule_2 || positions == Positions::Auto, "{:?}", block.scope);
            assert_eq!(of("coding of signs").len(), 1);
            predicted += of("predicted signs").len();
        }
        assert!(predicted >= 3, "{predicted} of {} blocks have predicted signs", all.len());
    }
    for name in ["table 0 of lists", "words of lists", "low bits", "classes of group 0"] {
        assert!(names.contains(name), "{name} of {names:?}");
    }
}

#[test]
fn classes_of_the_base_and_values_by_group_are_covered() {
    let mut names = BTreeSet::new();
    let infos =
        vec![TensorInfo::new("w", Dtype::Bf16, [1 << 16]), TensorInfo::new("v", Dtype::Bf16, [1 << 16])];
    // Each class is denser than the one before; the second has no positions.
    let ranks: Vec<Vec<u64>> = [64, u64::MAX, 16, 4]
        .iter()
        .map(|odds| (0..8000).zip(noise(*odds)).filter(|(_, x)| x % odds == 0).map(|(i, _)| i).collect())
        .collect();
    let m: usize = ranks.iter().map(Vec::len).sum();
    // Values of a class are about as large as its number tells.
    let diffs: Vec<i64> = (0..4)
        .zip(&ranks)
        .flat_map(|(class, ranks)| {
            noise(class + 50).take(ranks.len()).map(move |x| 1 + (x % (1 << (3 * class))) as i64)
        })
        .collect();
    let block = |tensor, values| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::Based(Based { bounds: vec![200, 100, 50], ranks: ranks.clone() }),
        values,
    };
    let bytes: Vec<u8> = (0..2 * m).map(|i| i as u8).collect();
    let blocks = [
        block(0, Values::Ulp(Ulp { diffs })),
        block(1, Values::Floats(Floats { stored: Stored::Source, bytes })),
    ];
    let out = encoded(infos, &blocks, BlockOptions::default(), true);
    check_cover(&out, &mut names);
    let fields = update_fields(&out);
    let of = |name: &str| fields.iter().filter(|f| f.name == name).collect::<Vec<_>>();
    assert_eq!(of("rule").iter().filter(|f| f.value == "1").count(), 2);
    assert_eq!(of("bounds").len(), 2);
    let counts: usize = of("count").iter().map(|f| f.value.parse::<usize>().unwrap()).sum();
    // That of the delta's runs, and those of the groups of both blocks.
    assert_eq!(counts, 1 + 2 * m);
    assert_eq!(of("segment_log").iter().filter(|f| f.value == "1").count(), 1, "{:?}", of("segment_log"));
}

#[test]
fn other_frames_are_covered() {
    let mut names = BTreeSet::new();
    let mut matrix = TensorInfo::new("läyer.é", Dtype::Bf16, [6, 4]);
    matrix.matrix = Some((3, 8));
    let mut shard = TensorInfo::new("läyer.è", Dtype::F4E2M1, [5]);
    shard.shard = Some(Shard { global_shape: vec![300], offsets: vec![200] });
    let manifest =
        Arc::new(Manifest::new(vec![matrix, shard, TensorInfo::new("step", Dtype::I64, [])]).unwrap());
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut out = Vec::new();
    let entries =
        |value: &str| BTreeMap::from([("k".to_owned(), value.to_owned()), (String::new(), String::new())]);
    encoder.metadata(&mut out, &Metadata { entries: entries("short") });
    encoder.metadata(&mut out, &Metadata { entries: entries(&"long ".repeat(100)) });
    encoder.model(&mut out, &Model::inline("raw", "tiny", vec![5; 1000])).unwrap();
    encoder.model(&mut out, &Model::inline("raw", "tiny", vec![5])).unwrap();
    encoder
        .model(
            &mut out,
            &Model { weights: Weights::At("https://example.org".into()), ..Model::inline("raw", "", vec![]) },
        )
        .unwrap();
    encoder.private(&mut out, gcodec::frame::FrameKind(0xf001), b"mine").unwrap();
    encoder.private(&mut out, gcodec::frame::FrameKind(0xf002), b"").unwrap();
    let block = |tensor, bytes| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::All,
        values: Values::Planes(Planes { bytes }),
    };
    let blocks = [block(0, vec![0; 48]), block(1, vec![0; 3]), block(2, vec![0; 8])];
    let pairs: Vec<_> = blocks.iter().map(|b| (b, BlockOptions::default())).collect();
    encoder.update(&mut out, &UpdateHeader::default(), &manifest, &pairs).unwrap();
    let half = Scope::Range { tensor: 0, start: 4, len: 8 };
    let added = Values::Floats(Floats { stored: Stored::F32, bytes: vec![0; 32] });
    let added = Block { scope: half, add: true, support: Support::All, values: added };
    encoder
        .update(
            &mut out,
            &UpdateHeader::default().with_step(1),
            &manifest,
            &[(&added, BlockOptions::default())],
        )
        .unwrap();
    encoder.finish(&mut out);
    encoder.finish(&mut out);
    check_cover(&out, &mut names);
    for name in
        ["zstd frame", "location", "weights", "body", "global_dim", "cols", "start", "tail", "head_crc"]
    {
        assert!(names.contains(name), "{name} of {names:?}");
    }
}

#[test]
fn what_cannot_be_read_is_shown_as_such() {
    let bytes = Writer::new(Vec::new(), EncodeOptions::default()).finish().unwrap();
    let (pieces, error) = annotate(&bytes[..bytes.len() - 1], &Wanted::default(), &Limits::default());
    assert!(error.is_some());
    assert_eq!(pieces.len(), 2, "the preamble and the index");
    let mut walk = Walk::new(&[1, 2, 3], 10);
    let result = walk.varint("a", |_| "").and_then(|_| walk.u64("b", "")).map(drop);
    let lines = walk.finish(result);
    let [Line::Field(first), Line::Field(rest)] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((first.offset, first.len, rest.offset, rest.len), (10, 1, 11, 2));
    assert_eq!(rest.name, "not understood");
}
