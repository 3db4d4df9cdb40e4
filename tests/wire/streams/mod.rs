//! Streams and blocks that several tests use.
#![allow(dead_code)] // each test binary uses only some of them

use std::sync::Arc;

use gcodec::Dtype;
use gcodec::block::{
    Affine, Based, Bits, Block, BlockOptions, Chunked, Codebook, Constant, Dct, Entropy, Floats, Groups,
    Latent, Levels, LowRank, Minifloat, MinifloatFormat, ModelId, Norm, Planes, Positions, Pow2, Rows,
    ScaleFormat, Scales, Scope, Seeded, Set, Sign, Spacing, Sparse, Stored, Support, Ulp, Underflow, Values,
    Zero,
};
use gcodec::frame::{
    Delta, FrameKind, IndexSet, Manifest, Metadata, Model, Reduction, TensorInfo, UpdateHeader,
};
use gcodec::stream::{EncodeOptions, Encoder};

/// A manifest with tensors of several types and shapes, small enough for tests that flip every bit.
pub(crate) fn manifest() -> Arc<Manifest> {
    let tensors = vec![
        TensorInfo::new("embed.weight", Dtype::F32, [8, 4]),
        TensorInfo::new("embed.bias", Dtype::F32, [4]),
        TensorInfo::new("norm", Dtype::F32, [0]),
        TensorInfo::new("scale", Dtype::F32, []),
        TensorInfo::new("head", Dtype::Bf16, [3, 5]),
        TensorInfo::new("steps", Dtype::I64, [3]),
        TensorInfo::new("codes", Dtype::F4E2M1, [7]),
        TensorInfo::new("mask", Dtype::Bool, [9]),
    ];
    Arc::new(Manifest::new(tensors).unwrap())
}

pub(crate) fn scales(values: &[f32]) -> Scales {
    Scales::from_f32s(ScaleFormat::F32, values)
}

pub(crate) fn bits(pattern: u64, len: usize) -> Bits {
    (0..len).map(|i| pattern >> (i % 64) & 1 == 1).collect()
}

fn f32_bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Blocks with every kind of support and values. Each fits the manifest; together they are not a valid
/// update, because scopes repeat.
pub(crate) fn blocks() -> Vec<Block> {
    let block = |scope, support, values| Block { scope, add: false, support, values };
    let embed = Scope::Tensor(0);
    let sparse = Support::Sparse(Sparse { positions: vec![0, 3, 4, 17, 31] });
    let model = ModelId([7; 32]);
    let halves = |n: usize| Values::Floats(Floats { stored: Stored::F16, bytes: [0, 0x3c].repeat(n) });
    vec![
        block(
            embed,
            Support::All,
            Values::Floats(Floats {
                stored: Stored::Source,
                bytes: f32_bytes((0..32).map(|i| i as f32 - 7.5)),
            }),
        ),
        block(
            embed,
            sparse.clone(),
            Values::Floats(Floats {
                stored: Stored::F32,
                bytes: f32_bytes([1.0, -0.0, f32::NAN, f32::INFINITY, 1e-40]),
            }),
        ),
        block(embed, sparse.clone(), halves(5)),
        block(
            Scope::Tensors { first: 0, count: 4 },
            Support::Sparse(Sparse { positions: vec![5, 31, 32, 36] }),
            Values::Constant(Constant { groups: Groups::Tensor, scales: scales(&[0.5, -0.25, 0.0, 2.0]) }),
        ),
        block(
            embed,
            sparse.clone(),
            Values::Sign(Sign {
                groups: Groups::Block,
                scales: scales(&[0.125]),
                negative: bits(0b10110, 5),
            }),
        ),
        block(
            embed,
            Support::All,
            Values::Pow2(Pow2 {
                min_exponent: -20,
                underflow: Underflow::Unbiased,
                codes: (0..32).map(|i| 10 + i % 5).collect(),
                negative: bits(0xdead_beef, 32),
            }),
        ),
        block(
            embed,
            Support::All,
            Values::Levels(Levels {
                spacing: Spacing::Uniform,
                max_level: 7,
                norm: Norm::L2,
                groups: Groups::Len(16),
                norms: scales(&[1.0, 3.0]),
                levels: (0..32).map(|i| i % 15 - 7).collect(),
            }),
        ),
        block(
            embed,
            Support::All,
            Values::Levels(Levels {
                spacing: Spacing::Natural,
                max_level: 4,
                norm: Norm::Max,
                groups: Groups::Block,
                norms: scales(&[2.0]),
                levels: (0..32).map(|i| i % 9 - 4).collect(),
            }),
        ),
        block(
            embed,
            Support::All,
            Values::Affine(Affine {
                bits: 4,
                groups: Groups::Len(10),
                scales: scales(&[0.1, 0.2, 0.3, 0.4]),
                zero: Zero::Centre,
                codes: (0..32).map(|i| i % 16).collect(),
            }),
        ),
        block(
            embed,
            Support::All,
            Values::Affine(Affine {
                bits: 8,
                groups: Groups::Block,
                scales: scales(&[0.1]),
                zero: Zero::Point(vec![9]),
                codes: (0..32).map(|i| i * 7).collect(),
            }),
        ),
        block(
            embed,
            Support::All,
            Values::Affine(Affine {
                bits: 1,
                groups: Groups::Block,
                scales: scales(&[0.1]),
                zero: Zero::Offset(scales(&[-0.05])),
                codes: (0..32).map(|i| i % 2).collect(),
            }),
        ),
        block(
            embed,
            Support::Chunked(Chunked { chunk_len: 8, kept: 2, positions: vec![0, 7, 2, 3, 1, 6, 4, 5] }),
            Values::Codebook(Codebook {
                table: vec![-1.0, -0.25, 0.25, 1.0],
                groups: Groups::Block,
                scales: Some(scales(&[0.5])),
                shifts: Some(scales(&[0.01])),
                codes: vec![0, 1, 2, 3, 3, 2, 1, 0],
            }),
        ),
        block(
            embed,
            Support::All,
            Values::Minifloat(Minifloat {
                format: MinifloatFormat::F4E2M1,
                groups: Groups::Len(16),
                scales: Scales { format: ScaleFormat::E8M0, bytes: vec![120, 127] },
                codes: (0..32).map(|i| i % 16).collect(),
            }),
        ),
        block(Scope::Tensor(4), Support::All, Values::Planes(Planes { bytes: (0..30).collect() })),
        block(
            Scope::Tensor(4),
            Support::Sparse(Sparse { positions: vec![2, 9] }),
            Values::Ulp(Ulp { diffs: vec![1, -300] }),
        ),
        block(
            Scope::Tensor(4),
            // Without bits, a base has elements of the second class only.
            Support::Based(Based { bounds: vec![100], ranks: vec![vec![], vec![0, 3, 14]] }),
            Values::Ulp(Ulp { diffs: vec![2, -1, 70] }),
        ),
        block(Scope::Tensor(5), Support::All, Values::Planes(Planes { bytes: (0..24).collect() })),
        block(
            Scope::Tensor(6),
            Support::All,
            Values::Floats(Floats { stored: Stored::Source, bytes: vec![0x21, 0x43, 0x65, 0x07] }),
        ),
        block(
            Scope::Tensor(7),
            Support::Sparse(Sparse { positions: vec![8] }),
            Values::Ulp(Ulp { diffs: vec![1] }),
        ),
        block(embed, Support::Rows(Rows { row_len: 4, rows: vec![1, 6] }), halves(8)),
        block(embed, Support::Seeded(Seeded { count: 6, seed: 42 }), halves(6)),
        block(embed, sparse, Values::Latent(Latent { model, shape: vec![2, 2], codes: Box::new(halves(4)) })),
        block(
            embed,
            Support::All,
            Values::LowRank(LowRank {
                rows: 8,
                cols: 4,
                rank: 1,
                left: Box::new(halves(8)),
                right: Box::new(halves(4)),
            }),
        ),
        block(
            embed,
            Support::All,
            Values::Dct(Dct {
                rows: 8,
                cols: 4,
                chunk_rows: 4,
                chunk_cols: 2,
                support: Support::Sparse(Sparse { positions: vec![0, 1, 8, 31] }),
                coefficients: Box::new(Values::Sign(Sign {
                    groups: Groups::Len(3),
                    scales: scales(&[0.5, -3.0]),
                    negative: bits(0b1010, 4),
                })),
            }),
        ),
        block(
            Scope::Tensor(4),
            Support::All,
            Values::Dct(Dct {
                rows: 1,
                cols: 15,
                chunk_rows: 1,
                chunk_cols: 5,
                support: Support::Chunked(Chunked {
                    chunk_len: 5,
                    kept: 2,
                    positions: vec![0, 1, 0, 4, 2, 3],
                }),
                coefficients: Box::new(halves(6)),
            }),
        ),
        block(
            Scope::Range { tensor: 0, start: 4, len: 9 },
            Support::Sparse(Sparse { positions: vec![0, 8] }),
            halves(2),
        ),
        block(Scope::Tensor(2), Support::Sparse(Sparse { positions: vec![] }), halves(0)),
        block(Scope::Tensor(3), Support::All, halves(1)),
    ]
}

/// Whether a block is allowed only in a delta.
pub(crate) fn needs_delta(block: &Block) -> bool {
    matches!(block.values, Values::Ulp(_)) || matches!(block.support, Support::Based(_))
}

/// The header of an update that contains only `block`.
pub(crate) fn header_for(block: &Block) -> UpdateHeader {
    let delta = needs_delta(block).then(|| {
        let touched = block.scope.first()..block.scope.first() + block.scope.tensors();
        touched.map(|tensor| Delta { first: tensor, more: 0, base: [1; 16], result: [2; 16] }).collect()
    });
    UpdateHeader::default().with_step(9).with_delta(delta)
}

/// A stream with a frame of every kind and two updates, the second in several parts.
pub(crate) fn sample() -> Vec<u8> {
    let manifest = manifest();
    let blocks = blocks();
    let options = BlockOptions::default();
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(40));
    let mut metadata = Metadata::default();
    metadata.entries.insert("run".into(), "sample ü".into());
    encoder.metadata(&mut out, &metadata);
    encoder.model(&mut out, &Model::inline("test/1", "none", vec![1, 2, 3])).unwrap();
    let set = IndexSet {
        manifest: manifest.id(),
        step: 1,
        leader: 2,
        world: 4,
        scope: Scope::Tensor(0),
        support: Support::Sparse(Sparse { positions: vec![1, 2, 30] }),
    };
    let id = encoder.index_set(&mut out, &set, &manifest, options).unwrap();
    let on_set = Block {
        scope: Scope::Tensor(0),
        add: false,
        support: Support::Set(Set { id }),
        values: Values::Floats(Floats { stored: Stored::Bf16, bytes: vec![0x80, 0x3f, 0, 0, 0x80, 0xbf] }),
    };
    let header =
        UpdateHeader::default().with_step(1).with_sender(3).with_world(4).with_reduction(Reduction::Sum);
    encoder.update(&mut out, &header, &manifest, &[(&on_set, options)]).unwrap();
    encoder.private(&mut out, FrameKind(0xf001), b"private").unwrap();
    let tokens = options.with_positions(Positions::Tokens).with_entropy(Entropy::Auto);
    let second: Vec<_> = [3, 13, 16, 17].iter().map(|&i| (&blocks[i], tokens)).collect();
    let header = UpdateHeader::default().with_step(2).with_label("several parts".into());
    encoder.update(&mut out, &header, &manifest, &second).unwrap();
    encoder.finish(&mut out);
    out
}
