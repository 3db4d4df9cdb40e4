#![no_main]
//! Deltas: the difference of a base and its successor applies bit for bit. With another base, or any other
//! error, it is refused without output.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gcodec::block::{Block, Scope, Target};
use gcodec::compress::{Input, Options, compress, deltas};
use gcodec::digest::SumDigest;
use gcodec::error::InputErrorKind;
use gcodec::file::File;
use gcodec::frame::{Delta, Manifest, UpdateHeader, tensor_digest};
use gcodec::internal::run_digest;
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Error, Limits, Result, TensorBuf};
use gcodec_fuzz::frames::{self, Repair, UPDATE};
use gcodec_fuzz::{allowance, begin, limits, memory};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/properties/arbitrary/mod.rs"]
mod arbitrary;
use arbitrary::{Random, Update};

fuzz_target!(|bytes: &[u8]| {
    begin(true);
    let mut random = Random::of_bytes(bytes);
    let manifest = arbitrary::manifest(&mut random);
    let base: Vec<TensorBuf> = manifest
        .tensors()
        .iter()
        .map(|t| {
            let data = random.elements(t.dtype, t.elements());
            TensorBuf::new(t.dtype, t.shape.clone(), data).expect("a tensor of the manifest")
        })
        .collect();
    let (update, result) = match random.below(2) {
        0 => difference(&mut random, &manifest, &base),
        _ => arbitrary_delta(&mut random, &manifest, &base),
    };
    let stream = encode(&update, random.one(&[1, 64 << 20]));
    let runs: Vec<(u64, u64)> = update.header.runs().collect();
    // The correct base.
    let applied = apply(&stream, &update, &base).expect("a delta on its base");
    assert!(applied == result, "a delta on its base gives its result");
    by_index(&stream, &update, &base, &result);
    let wrong = |e: Error| match e {
        Error::Input(e) => e.kind,
        e => panic!("a mistake of the caller, not {e}"),
    };
    // No base, and a wrong one.
    if !runs.is_empty() || !base.is_empty() {
        assert_eq!(apply(&stream, &update, &[]).map_err(wrong), Err(InputErrorKind::MissingBase));
    }
    let mut touched = runs.iter().flat_map(|(first, last)| *first as usize..=*last as usize);
    if let Some(touched) = touched.find(|&t| !base[t].data().is_empty()) {
        let mut other = base.clone();
        let data = other[touched].data_mut();
        let at = random.below(data.len() as u64) as usize;
        data[at] ^= 1 << random.below(update.manifest.tensors()[touched].dtype.bits().min(8).into());
        assert_eq!(apply(&stream, &update, &other).map_err(wrong), Err(InputErrorKind::BaseMismatch));
    }
    // Other blocks: correct digests, or no output.
    let damaged = damage(&mut random, &stream);
    if let Ok(applied) = apply(&damaged, &update, &base) {
        let right = "a result that is given out is the one that its sender had";
        for header in headers(&damaged) {
            for run in header.delta.iter().flatten() {
                let tensors = &applied[run.first as usize..=(run.first + run.more) as usize];
                let found: Vec<_> = tensors.iter().map(|t| tensor_digest(t.view())).collect();
                assert_eq!(run_digest(&found), run.result, "{right}");
            }
            for run in header.sums.iter().flatten() {
                let numbers = run.first as usize..=(run.first + run.more) as usize;
                let of = |n: usize| manifest.tensors()[n].sum_digest(applied[n].view()).expect("its tensor");
                assert_eq!(numbers.map(of).sum::<SumDigest>(), run.result, "{right}");
            }
        }
    }
});

/// Returns the delta between the base and a successor that shares some of its bytes.
fn difference(
    random: &mut Random<'_>,
    manifest: &Arc<Manifest>,
    base: &[TensorBuf],
) -> (Update, Vec<TensorBuf>) {
    let mut result = base.to_vec();
    for tensor in &mut result {
        for _ in 0..random.below(6) {
            let len = tensor.data().len() as u64;
            let half = tensor.view().dtype().bits() == 4;
            if let Some(byte) = tensor.data_mut().get_mut(random.below(len) as usize) {
                *byte ^= random.below(if half { 16 } else { 256 }) as u8;
            }
        }
    }
    let codec: Codec = random
        .one(&[
            "delta",
            "delta:positions=classed",
            "delta:positions=rice",
            "delta:values=overwrite",
            "lossless",
            "raw",
        ])
        .parse()
        .expect("ours");
    let inputs: Vec<Input<'_>> = manifest
        .tensors()
        .iter()
        .enumerate()
        .map(|(i, t)| Input {
            tensor: i as u64,
            name: &t.name,
            view: result[i].view(),
            base: Some(base[i].view()),
        })
        .collect();
    let codecs = vec![codec; inputs.len()];
    let blocks = compress(&inputs, &codecs, &Options::default(), None).expect("tensors and their bases");
    // Blocks of any codec may be a delta.
    let digests = random.one(&["delta", "delta:digest=blake3", "delta:digest=both"]).parse().expect("ours");
    let runs = deltas(manifest, &inputs, &[digests], &blocks).expect("tensors of this manifest");
    let header = UpdateHeader::default().with_runs(runs);
    let blocks = blocks.into_iter().map(|coded| (coded.block, coded.options)).collect();
    (Update { manifest: manifest.clone(), header, blocks }, result)
}

/// Returns blocks of any kind on the base, with the digests of applying them one by one.
fn arbitrary_delta(
    random: &mut Random<'_>,
    manifest: &Arc<Manifest>,
    base: &[TensorBuf],
) -> (Update, Vec<TensorBuf>) {
    let mut update = arbitrary::update(random, manifest, true);
    let mut result = base.to_vec();
    let mut touched = BTreeSet::new();
    let fits = |block: &Block| !matches!(block.values, gcodec::block::Values::Latent(_));
    update.blocks.retain(|(block, _)| fits(block));
    for (block, _) in &update.blocks {
        let space = manifest.space(block.scope, 0).expect("a scope of the manifest");
        let start = if let Scope::Range { start, .. } = block.scope { start } else { 0 };
        let first = block.scope.first() as usize;
        let mut targets: Vec<_> = result[first..]
            .iter_mut()
            .zip(&space.lens)
            .map(|(t, &len)| Target { data: t.data_mut(), start, len })
            .collect();
        let budget = gcodec::frame::Budget::new(&Limits::default());
        block.apply(&space, &Default::default(), &budget, &mut targets).expect("a block that fits");
        touched.extend(block.scope.first()..block.scope.first() + block.scope.tensors());
    }
    let digest = |tensors: &[TensorBuf], t: u64| tensor_digest(tensors[t as usize].view());
    let entries = touched.iter().map(|&tensor| Delta {
        first: tensor,
        more: 0,
        base: digest(base, tensor),
        result: digest(&result, tensor),
    });
    update.header.delta = Some(entries.collect());
    (update, result)
}

fn encode(update: &Update, part_bytes: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(part_bytes));
    let mut out = Vec::new();
    let blocks: Vec<_> = update.blocks.iter().map(|(b, o)| (b, *o)).collect();
    encoder.update(&mut out, &update.header, &update.manifest, &blocks).expect("blocks that hold together");
    encoder.finish(&mut out);
    out
}

/// Returns the tensors after the update, with the first of `base` as the base.
fn apply(stream: &[u8], update: &Update, base: &[TensorBuf]) -> Result<Vec<TensorBuf>> {
    let before = base.to_vec();
    let run = || {
        let mut assembler = Assembler::new(&update.manifest, &limits(), |_| true)?;
        for (info, tensor) in update.manifest.tensors().iter().zip(base) {
            assembler.base(&info.name, tensor.view())?;
        }
        for event in SliceReader::new(stream, limits()) {
            if let Event::Frame(_, Body::Update(part)) = event? {
                assembler.apply(&part)?;
            }
        }
        assembler.finish()
    };
    // Memory: the tensors, the blocks that are decoded at once, and the stored definitions.
    let applied = memory::within(allowance(stream.len(), 3), "applying a delta", run);
    assert!(base == before, "the base is unchanged");
    Ok(applied?.into_iter().map(|(_, tensor)| tensor).collect())
}

/// Does the same through the index, tensor by tensor.
fn by_index(stream: &[u8], update: &Update, base: &[TensorBuf], result: &[TensorBuf]) {
    let file = File::open(stream, limits()).expect("a file of ours");
    let names = update.manifest.tensors().iter().map(|t| t.name.clone());
    let base: BTreeMap<_, _> = names.zip(base.iter().map(TensorBuf::view)).collect();
    for (info, expected) in update.manifest.tensors().iter().zip(result) {
        let found = file.tensor(0, &info.name, &base).expect("a delta on its base");
        assert!(found == *expected, "one tensor of a delta");
    }
}

/// Returns the headers of the parts.
fn headers(stream: &[u8]) -> Vec<UpdateHeader> {
    let mut all = Vec::new();
    for event in SliceReader::new(stream, limits()) {
        if let Ok(Event::Frame(_, Body::Update(part))) = event {
            all.push(part.header);
        }
    }
    all
}

/// Returns the stream with some changed bytes in its updates, with correct checksums.
fn damage(random: &mut Random<'_>, stream: &[u8]) -> Vec<u8> {
    let mut frames = frames::parse(stream);
    for frame in frames.iter_mut().filter(|f| f.kind == UPDATE) {
        for _ in 0..random.below(4) {
            // After the manifest's id.
            let at = 32 + random.below(frame.body.len() as u64 - 32) as usize;
            frame.body[at] ^= 1 << random.below(8);
        }
    }
    frames::write(&frames, Repair::ALL)
}
