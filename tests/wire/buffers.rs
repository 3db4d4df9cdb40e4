//! Decoding into existing buffers gives the same tensors as decoding into new ones, whatever the buffers
//! contained.

use std::sync::Arc;

use gcodec::block::{Block, CodedBlock, PendingBlock};
use gcodec::compress::{Input, Options, compress};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Limits, TensorBuf};

/// Returns the tensors of a stream's only update, in new memory or, if `dirty`, in buffers full of one bits.
fn assemble(stream: &[u8], manifest: &Arc<Manifest>, dirty: bool) -> Vec<(u64, TensorBuf)> {
    let mut assembler = match dirty {
        false => Assembler::new(manifest, &Limits::default(), |_| true).unwrap(),
        true => {
            let buffers = manifest.tensors().iter().enumerate().map(|(i, info)| {
                let data = vec![0xff; info.bytes() as usize];
                (i as u64, TensorBuf::new(info.dtype, info.shape.clone(), data).unwrap())
            });
            Assembler::with_buffers(manifest, buffers).unwrap()
        }
    };
    for event in SliceReader::new(stream, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
            assembler.apply(&part).unwrap();
        }
    }
    assembler.finish().unwrap()
}

fn encode<'a, B: Into<PendingBlock<'a>>>(
    manifest: &Arc<Manifest>,
    blocks: impl IntoIterator<Item = B>,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1000));
    encoder.update(&mut out, &UpdateHeader::default(), manifest, blocks.into_iter().map(B::into)).unwrap();
    encoder.finish(&mut out);
    out
}

#[test]
fn every_kind_of_block_zeroes_the_other_elements() {
    let manifest = crate::streams::manifest();
    for block in crate::streams::blocks() {
        let latent = matches!(block.values, gcodec::block::Values::Latent(_));
        if latent || crate::streams::needs_delta(&block) {
            continue;
        }
        for add in [false, true] {
            let block = Block { add: add && !block.values.gives_bits(), ..block.clone() };
            let stream = encode(&manifest, [&block]);
            assert_eq!(assemble(&stream, &manifest, true), assemble(&stream, &manifest, false), "{block:?}");
        }
    }
}

#[test]
fn ranges_and_parts_leave_no_gaps() {
    let shapes: [&[u64]; 4] = [&[70, 30], &[5], &[], &[40]];
    let tensors: Vec<TensorBuf> = shapes
        .iter()
        .map(|shape| {
            let n = gcodec::internal::elements(shape).unwrap();
            let values: Vec<f32> = (0..n).map(|i| ((i * 7919 % 101) as f32 - 50.0) * 0.01).collect();
            TensorBuf::from_f32(shape.to_vec(), &values).unwrap()
        })
        .collect();
    let infos =
        tensors.iter().enumerate().map(|(i, t)| TensorInfo::new(format!("t{i}"), t.dtype(), t.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let inputs: Vec<Input<'_>> = tensors
        .iter()
        .zip(manifest.tensors())
        .enumerate()
        .map(|(i, (t, info))| Input { tensor: i as u64, name: &info.name, view: t.view(), base: None })
        .collect();
    for codec in [
        "raw",
        "lossless",
        "natural",
        "int8:group=16",
        "qsgd:bits=4,bucket=16",
        "topk:density=0.1",
        "sbc:density=0.05",
    ] {
        let codecs = vec![codec.parse::<Codec>().unwrap(); inputs.len()];
        let blocks = compress(&inputs, &codecs, &Options::default().with_block_len(300), None).unwrap();
        // All blocks, then two of every three: elements without a block are zero.
        let some: Vec<CodedBlock> =
            blocks.iter().enumerate().filter(|(i, _)| i % 3 != 1).map(|(_, b)| b.clone()).collect();
        for blocks in [blocks, some] {
            let stream = encode(&manifest, &blocks);
            assert_eq!(assemble(&stream, &manifest, true), assemble(&stream, &manifest, false), "{codec}");
        }
    }
}

#[test]
fn buffers_of_another_shape_are_refused() {
    let manifest = crate::streams::manifest();
    let wrong = TensorBuf::from_f32(vec![5], &[0.0; 5]).unwrap();
    assert!(Assembler::with_buffers(&manifest, [(1, wrong.clone())]).is_err());
    assert!(Assembler::with_buffers(&manifest, [(99, wrong)]).is_err());
}
