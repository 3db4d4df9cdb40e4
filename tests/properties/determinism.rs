//! Results do not depend on the number of threads (CAN-1) and do not change from run to run.

use gcodec::block::{Block, BlockOptions, Scope, Sparse, Support};
use gcodec::compress::{Feedback, Input, Options, compress, random};
use gcodec::frame::{Delta, IndexSet, Manifest, TensorInfo, UpdateHeader, tensor_digest};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf, TensorView};
use std::sync::Arc;

fn tensors(seed: u64) -> Vec<(String, TensorBuf)> {
    let shapes: [&[u64]; 6] = [&[300, 700], &[3000], &[17], &[], &[0, 4], &[64, 33, 5]];
    let tensor = |(t, shape): (usize, &&[u64])| {
        let mut words = vec![0; gcodec::internal::elements(shape).unwrap() as usize];
        random::words(seed, t as u64, 0, &mut words);
        let values: Vec<f32> = words
            .iter()
            .map(|&w| (w as i32) as f32 / 2e9 * ((w >> 3 & 0xff) as f32 / 255.0).powi(4))
            .collect();
        (format!("t{t}"), TensorBuf::from_f32(shape.to_vec(), &values).unwrap())
    };
    shapes.iter().enumerate().map(tensor).collect()
}

fn encode(codec: &str, threads: usize) -> Vec<u8> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let codec: Codec = codec.parse().unwrap();
        let (base, next) = (tensors(1), tensors(2));
        let infos = next.iter().map(|(n, t)| TensorInfo::new(n, t.dtype(), t.shape()));
        let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
        let pairs = next.iter().zip(&base).enumerate();
        let inputs: Vec<Input<'_>> = pairs
            .clone()
            .map(|(i, ((name, t), (_, b)))| Input {
                tensor: i as u64,
                name,
                view: t.view(),
                base: Some(b.view()),
            })
            .collect();
        let mut feedback = Feedback::new();
        let mut out = Vec::new();
        let mut encoder = Encoder::new(EncodeOptions::default());
        let delta: Vec<_> = pairs
            .map(|(i, ((_, t), (_, b)))| Delta {
                first: i as u64,
                more: 0,
                base: tensor_digest(b.view()),
                result: tensor_digest(t.view()),
            })
            .collect();
        for step in 0..2 {
            let feedback = codec.is_lossy().then_some(&mut feedback);
            let options = Options::default().with_block_len(50_000);
            let blocks = compress(&inputs, &vec![codec; inputs.len()], &options, feedback).unwrap();
            let delta = (codec.to_string().starts_with("delta")).then(|| delta.clone());
            let header = UpdateHeader::default().with_step(step).with_delta(delta);
            encoder.update(&mut out, &header, &manifest, &blocks).unwrap();
        }
        encoder.finish(&mut out);
        out
    })
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    for codec in [
        "raw",
        "lossless",
        "topk:density=0.01",
        "topk:density=0.01,scope=global,values=q4",
        "topk:density=0.02,values=pow2,positions=rice",
        "threshold:at=0.4,values=sign",
        "sbc:density=0.005",
        "demo:chunk=20,kept=9,values=f16",
        "powersgd:rank=3",
        "natural:seed=3",
        "qsgd:bits=4,bucket=512",
        "int8:group=256",
        "delta",
        "delta:values=overwrite",
    ] {
        let one = encode(codec, 1);
        for threads in [2, 4] {
            assert!(one == encode(codec, threads), "{codec} with {threads} threads");
        }
    }
}

/// Floats are read where they are if their address allows it.
#[test]
fn the_address_of_a_tensor_does_not_change_its_bytes() {
    let mut words = vec![0; 70_000];
    random::words(6, 0, 0, &mut words);
    let data: Vec<u8> = words.iter().flat_map(|&w| ((w as i32) as f32 / 2e9).to_le_bytes()).collect();
    for codec in [
        "topk:density=0.01",
        "sidco:density=0.01",
        "sbc:density=0.005",
        "demo:chunk=20,kept=9",
        "powersgd:rank=3",
        "natural",
        "sign",
        "sign:group=1000",
        "qsgd:bits=4",
        "terngrad",
        "terngrad:clip=2.5",
        "dither",
        "int8",
    ] {
        let encode = |start: usize| {
            let mut memory = vec![0; start];
            memory.extend_from_slice(&data);
            let view = TensorView::new(Dtype::F32, &[100, 700], &memory[start..]).unwrap();
            gcodec::encode(&[("w", view)], &codec.parse().unwrap()).unwrap()
        };
        let first = encode(0);
        assert!((1..4).all(|start| encode(start) == first), "{codec}");
    }
}

/// A block of so many positions has several segments and shares, which threads write and read in parallel.
#[test]
fn threads_write_and_read_one_block_together() {
    let mut words = vec![0; 1_200_000];
    random::words(5, 0, 0, &mut words);
    // Dense at first, sparse later, so that segments have tables of their own.
    let kept = |(i, &w): (usize, &u32)| w % if i < 400_000 { 2 } else { 40 } == 0;
    let values = words.iter().enumerate().map(|(i, w)| if kept((i, w)) { *w as f32 + 1.0 } else { 0.0 });
    let tensor = TensorBuf::from_f32(vec![words.len() as u64], &values.collect::<Vec<_>>()).unwrap();
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("t", Dtype::F32, tensor.shape())]).unwrap());
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let encode = || {
        let input = Input { tensor: 0, name: "t", view: tensor.view(), base: None };
        let codec = "topk:density=0.25,positions=tokens".parse().unwrap();
        let blocks = compress(&[input], &[codec], &Options::default(), None).unwrap();
        let (mut out, mut encoder) = (Vec::new(), Encoder::new(EncodeOptions::default()));
        encoder.update(&mut out, &UpdateHeader::default(), &manifest, &blocks).unwrap();
        encoder.finish(&mut out);
        out
    };
    let stream = pool(1).install(encode);
    for threads in [1, 2, 3] {
        assert!(stream == pool(threads).install(encode), "{threads} threads");
        let decoded = pool(threads).install(|| gcodec::decode(&stream).unwrap());
        assert!(decoded[0].1 == tensor, "{threads} threads");
    }
}

/// If a codec cannot compress several tensors, the error names the first of them. Threads reach the errors of
/// the others sooner, because the first tensor is long and has its error at the end.
#[test]
fn the_first_error_is_reported_whatever_the_threads() {
    let mut values = vec![0.5; 1 << 19];
    values.push(f32::NAN);
    let long = TensorBuf::from_f32(vec![values.len() as u64], &values).unwrap();
    let short = TensorBuf::from_f32(vec![2], &[f32::NAN, f32::INFINITY]).unwrap();
    let names: Vec<String> = (0..16).map(|i| format!("t{i}")).collect();
    let input = |(i, name)| {
        let view = if i == 0 { long.view() } else { short.view() };
        Input { tensor: i as u64, name, view, base: None }
    };
    let inputs: Vec<Input<'_>> = names.iter().map(String::as_str).enumerate().map(input).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    for codec in ["topk", "sbc", "sidco"] {
        let codecs = vec![codec.parse().unwrap(); inputs.len()];
        for _ in 0..20 {
            let error = pool.install(|| compress(&inputs, &codecs, &Options::default(), None)).unwrap_err();
            assert!(error.to_string().ends_with("(tensor 0)"), "{codec}: {error}");
        }
    }
}

/// The `Debug` text of a part must not change from run to run, because errors and logs contain it.
#[test]
fn a_part_names_its_sets_in_the_same_order_each_time() {
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [100])]).unwrap());
    let (mut encoder, mut stream) = (Encoder::new(EncodeOptions::default()), Vec::new());
    for step in 0..8 {
        let (scope, support) = (Scope::Tensor(0), Support::Sparse(Sparse { positions: vec![step] }));
        let set = IndexSet { manifest: manifest.id(), step, leader: 0, world: 0, scope, support };
        encoder.index_set(&mut stream, &set, &manifest, BlockOptions::default()).unwrap();
    }
    encoder.update(&mut stream, &UpdateHeader::default(), &manifest, &[] as &[Block]).unwrap();
    encoder.finish(&mut stream);
    let debug = || {
        let mut reader = SliceReader::new(&stream, Limits::default());
        while let Some(event) = reader.next_event().unwrap() {
            if let Event::Frame(_, Body::Update(part)) = event {
                return format!("{part:?}");
            }
        }
        panic!("the stream has no update")
    };
    let first = debug();
    (0..8).for_each(|_| assert_eq!(debug(), first));
}
