//! Small streams to corrupt: real tensors, every kind of support and of values, every kind of frame.

use std::sync::Arc;

use gcodec::block::{
    Block, BlockOptions, Entropy, Floats, Positions, Scope, Seeded, Set, Sparse, Stored, Support, Values,
};
use gcodec::compress::{Input, Options, compress, deltas};
use gcodec::frame::{IndexSet, Manifest, Metadata, Model, TensorInfo, UpdateHeader};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, TensorBuf};

use crate::{Result, root};

#[path = "../../../../tests/wire/streams/mod.rs"]
pub(crate) mod streams;

/// Returns floats from real images: rows of 64 pixels, after `skip` images.
pub(crate) fn digits(skip: usize, rows: u64) -> Result<TensorBuf> {
    let bytes = std::fs::read(root().join("tools/study/digits/digits.u8"))?;
    let pixels = bytes.get(skip * 64..(skip + rows as usize) * 64).ok_or("too few digits")?;
    // Differences of neighbours are small and of both signs, like gradients.
    let values: Vec<f32> =
        pixels.windows(2).map(|p| (f32::from(p[1]) - f32::from(p[0])) / 1024.0).chain([0.0]).collect();
    Ok(TensorBuf::from_f32(vec![rows, 64], &values)?)
}

/// Returns all streams by name.
pub(crate) fn all() -> Result<Vec<(&'static str, Vec<u8>)>> {
    Ok(vec![
        ("a frame of every kind", streams::sample()),
        ("every kind of support and of values, two segments", every_kind()?),
        ("real tensors by eight codecs, and a delta", real()?),
    ])
}

/// Returns every block of the tests as an update, sparse blocks in each coding of positions; index sets;
/// updates in parts.
fn every_kind() -> Result<Vec<u8>> {
    let manifest = streams::manifest();
    let options = BlockOptions::default();
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut metadata = Metadata::default();
    metadata.entries.insert("run".into(), "torture ".repeat(20));
    encoder.metadata(&mut out, &metadata);
    encoder.model(&mut out, &Model::inline("test/1", "none", vec![5; 100])).expect("a model");
    let mut step = 0;
    let mut put = |encoder: &mut Encoder, out: &mut Vec<u8>, blocks: &[(&Block, BlockOptions)]| {
        step += 1;
        let header = streams::header_for(blocks[0].0).with_step(step);
        encoder.update(out, &header, &manifest, blocks)
    };
    for block in &streams::blocks() {
        let sparse = matches!(block.support, Support::Sparse(_) | Support::Rows(_));
        let positions: &[Positions] = match sparse {
            true => &[Positions::Rice, Positions::Tokens, Positions::Bitmap],
            false => &[Positions::Auto],
        };
        for &positions in positions {
            let options = options.with_positions(positions).with_entropy(Entropy::Auto);
            put(&mut encoder, &mut out, &[(block, options)])?;
        }
    }
    encoder.finish(&mut out);
    for support in
        [Support::Sparse(Sparse { positions: vec![1, 2, 30] }), Support::Seeded(Seeded { count: 3, seed: 5 })]
    {
        let scope = Scope::Tensor(0);
        let set = IndexSet { manifest: manifest.id(), step: 1, leader: 2, world: 4, scope, support };
        let id = encoder.index_set(&mut out, &set, &manifest, options)?;
        let values =
            Values::Floats(Floats { stored: Stored::Bf16, bytes: vec![0x80, 0x3f, 0, 0, 0x80, 0xbf] });
        let block = Block { scope, add: false, support: Support::Set(Set { id }), values };
        put(&mut encoder, &mut out, &[(&block, options)])?;
    }
    encoder.finish(&mut out);
    Ok(out)
}

/// Returns two tensors of real data with several codecs, an update each in parts; then a delta.
fn real() -> Result<Vec<u8>> {
    let tensors = [("a", digits(0, 6)?), ("b", digits(40, 4)?)];
    let changed: Vec<TensorBuf> = tensors.iter().map(|(_, t)| nudged(t)).collect::<Result<_>>()?;
    let infos = tensors.iter().map(|(name, t)| TensorInfo::new(*name, t.dtype(), t.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect())?);
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(200));
    let codecs = [
        "lossless",
        "sbc:density=0.05",
        "natural",
        "qsgd:bits=4,bucket=64",
        "int8:group=64",
        "chunked:chunk=64,kept=4",
        "demo:chunk=8,kept=4",
        "powersgd:rank=2",
        "delta",
    ];
    for (step, spec) in codecs.into_iter().enumerate() {
        let codec: Codec = spec.parse()?;
        let inputs: Vec<Input<'_>> = (0..tensors.len())
            .map(|i| {
                let (name, old) = (tensors[i].0, tensors[i].1.view());
                let (view, base) = if spec == "delta" { (changed[i].view(), Some(old)) } else { (old, None) };
                Input { tensor: i as u64, name, view, base }
            })
            .collect();
        let codecs = vec![codec; inputs.len()];
        let blocks = compress(&inputs, &codecs, &Options::default(), None)?;
        let runs = deltas(&manifest, &inputs, &codecs, &blocks)?;
        let header = UpdateHeader::default().with_step(step as u64).with_label(spec.into()).with_runs(runs);
        encoder.update(&mut out, &header, &manifest, &blocks)?;
    }
    encoder.finish(&mut out);
    Ok(out)
}

/// Returns the tensor with every ninth element a little larger.
fn nudged(tensor: &TensorBuf) -> Result<TensorBuf> {
    let words = tensor.data().chunks_exact(4).zip(0u32..);
    let bytes = words.flat_map(|(w, i)| {
        let word = u32::from_le_bytes([w[0], w[1], w[2], w[3]]);
        (word + u32::from(i % 9 == 0)).to_le_bytes()
    });
    Ok(TensorBuf::new(tensor.dtype(), tensor.shape().to_vec(), bytes.collect())?)
}
