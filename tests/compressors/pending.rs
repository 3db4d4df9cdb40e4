//! Blocks that are made while they are written: the same bytes as blocks that are made before.

use std::sync::Arc;

use gcodec::compress::random::word;
use gcodec::compress::{Digests, Input, NonFinite, Options, Pending, compress, deltas, pending};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::element::encode_f32s;
use gcodec::stream::{EncodeOptions, Encoder, Writer};
use gcodec::{Codec, Dtype, Error, TensorBuf};

/// Lengths of tensors around the length from which on blocks are pending, and around that of a block.
const LENS: [usize; 9] = [0, 5, 65_535, 65_536, 100_000, 3, 300_000, 4000, 200_001];
const BLOCK: u64 = 100_000;

fn tensors(dtype: Dtype) -> Vec<TensorBuf> {
    let number = |stream: usize, i: usize| {
        let bits = word(5, stream as u64, i as u64);
        // Exponents of a realistic spread, zeros, and subnormals in one tensor.
        let x = f32::from_bits(bits & 0x807f_ffff | (110 + (bits >> 23 & 15)) << 23);
        if bits.is_multiple_of(31) { if stream == 4 { 1e-40 } else { 0.0 } } else { x }
    };
    let tensor = |(stream, &len): (usize, &usize)| {
        let values: Vec<f32> = (0..len).map(|i| number(stream, i)).collect();
        let mut data = vec![0; dtype.bytes_for(len as u64).unwrap() as usize];
        encode_f32s(dtype, &values, 0, &mut data).unwrap();
        TensorBuf::new(dtype, vec![len as u64], data).unwrap()
    };
    LENS.iter().enumerate().map(tensor).collect()
}

/// Returns tensors of which some elements differ: none in the first, and more in each one.
fn bases(tensors: &[TensorBuf]) -> Vec<TensorBuf> {
    let base = |(number, tensor): (usize, &TensorBuf)| {
        let mut tensor = tensor.clone();
        let changed = (0..).zip(tensor.data_mut()).filter(|(i, _)| word(7, 0, *i) % 50 < number as u32);
        changed.for_each(|(_, byte)| *byte ^= 1);
        tensor
    };
    tensors.iter().enumerate().map(base).collect()
}

/// Both streams of an update of these tensors, each with this codec or the error.
fn both(tensors: &[TensorBuf], codecs: &[Codec], options: &Options) -> [Result<Vec<u8>, Error>; 2] {
    let is_delta = codecs.iter().any(|codec| matches!(codec, Codec::Delta(_)));
    let bases = bases(tensors);
    let names: Vec<String> = (0..tensors.len()).map(|i| format!("t{i}")).collect();
    let infos = names.iter().zip(tensors).map(|(name, t)| TensorInfo::new(name, t.dtype(), t.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let base = |tensor: u64| is_delta.then(|| bases[tensor as usize].view());
    let inputs: Vec<Input<'_>> = (0..)
        .zip(names.iter().zip(tensors))
        .map(|(tensor, (name, t))| Input { tensor, name, view: t.view(), base: base(tensor) })
        .collect();
    let header = UpdateHeader::default();
    // Several parts: memory of one is used again in the next.
    let encoder = || Encoder::new(EncodeOptions::default().with_part_bytes(1 << 20));
    let (mut at_once, mut at_writing) = (Vec::new(), Vec::new());
    let mut first = encoder();
    let made = compress(&inputs, codecs, options, None).and_then(|blocks| {
        let header = header.clone().with_runs(deltas(&manifest, &inputs, codecs, &blocks)?);
        first.update(&mut at_once, &header, &manifest, &blocks)
    });
    let mut second = encoder();
    let header_of = |pending: &mut Pending<'_>| -> gcodec::Result<UpdateHeader> {
        Ok(header.clone().with_runs(pending.deltas(&manifest, &mut Digests::default())?))
    };
    let written = pending(&inputs, codecs, options)
        .and_then(|mut blocks| second.update(&mut at_writing, &header_of(&mut blocks)?, &manifest, blocks));
    if written.is_err() {
        assert!(at_writing.is_empty(), "a failed update appends nothing");
        assert_eq!(second.offset(), 0);
    }
    first.finish(&mut at_once);
    second.finish(&mut at_writing);
    if let (Ok(()), Ok(mut blocks)) = (&written, pending(&inputs, codecs, options)) {
        let mut writer = Writer::new(Vec::new(), EncodeOptions::default().with_part_bytes(1 << 20));
        writer.update(&header_of(&mut blocks).unwrap(), &manifest, blocks).unwrap();
        assert!(writer.finish().unwrap() == at_writing, "a writer writes what an encoder does");
    }
    [made.map(|()| at_once), written.map(|()| at_writing)]
}

fn all_codecs() -> Vec<Codec> {
    let more = [
        "qsgd:bits=12",
        "dither:levels=200,bucket=1000",
        "int8:group=300",
        "natural:seed=9",
        "topk:density=0.02,scope=global",
        "delta:values=overwrite",
        "delta:positions=classed",
    ];
    Codec::NAMES.iter().copied().chain(more).map(|spec| spec.parse().unwrap()).collect()
}

#[test]
fn every_codec_has_the_same_bytes() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F4E2M1] {
        let tensors = tensors(dtype);
        let options = Options::default().with_block_len(BLOCK);
        for codec in all_codecs() {
            let codecs = vec![codec; tensors.len()];
            let [at_once, at_writing] = both(&tensors, &codecs, &options);
            assert!(at_once.unwrap() == at_writing.unwrap(), "{codec} {dtype}");
        }
        let codecs: Vec<Codec> = all_codecs().into_iter().cycle().skip(7).take(tensors.len()).collect();
        let [at_once, at_writing] = both(&tensors, &codecs, &options);
        assert!(at_once.unwrap() == at_writing.unwrap(), "{codecs:?} {dtype}");
    }
}

#[test]
fn values_that_are_not_finite_are_found_when_they_are_written() {
    let mut tensors = tensors(Dtype::F32);
    let at = 4 * 250_000;
    let mut data = tensors[6].data().to_vec();
    data[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    tensors[6] = TensorBuf::new(Dtype::F32, vec![300_000], data).unwrap();
    let options = Options::default().with_block_len(BLOCK);
    for codec in ["natural", "qsgd", "int8", "dither", "terngrad"] {
        let codecs = vec![codec.parse().unwrap(); tensors.len()];
        let [at_once, at_writing] = both(&tensors, &codecs, &options);
        let [at_once, at_writing] = [at_once, at_writing].map(|result| result.unwrap_err().to_string());
        assert_eq!(at_once, at_writing);
        assert!(at_once.contains("250000") && at_once.contains("tensor 6"), "{at_once}");
        let zero = options.clone().with_non_finite(NonFinite::Zero);
        let [at_once, at_writing] = both(&tensors, &codecs, &zero);
        assert!(at_once.unwrap() == at_writing.unwrap(), "{codec}");
    }
    let integers = TensorBuf::new(Dtype::I32, vec![70_000], vec![0; 280_000]).unwrap();
    let codecs = ["natural".parse().unwrap()];
    let [at_once, at_writing] = both(&[integers], &codecs, &options);
    assert_eq!(at_once.unwrap_err().to_string(), at_writing.unwrap_err().to_string());
}
