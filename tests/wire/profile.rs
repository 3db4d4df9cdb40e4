//! The core profile (spec, core.md): what an encoder of the profile writes for every codec, and of blocks
//! that were read.

use std::collections::BTreeSet;
use std::sync::Arc;

use gcodec::block::{PendingBlock, Profile, Scope, Support, SupportId, ValuesId};
use gcodec::compress::{Digests, Input, Options, pending};
use gcodec::error::{InputError, InputErrorKind};
use gcodec::file::File;
use gcodec::file::report::Report;
use gcodec::frame::{FrameKind, IndexSet, Manifest, Model, TensorInfo, UpdateHeader};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Error, Limits, TensorBuf};

use crate::describe::{limits, unhex};
use crate::vectors::vectors;

/// Reads the tensors of a safetensors file.
fn gradients(name: &str) -> Vec<(String, TensorBuf)> {
    let path = format!("{}/tools/cli/gradients/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let (head, data) = bytes[8..].split_at(u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    let head: serde_json::Value = serde_json::from_slice(head).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<u64> {
        value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
    };
    let tensors = head.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let read = |(name, tensor): (&String, &serde_json::Value)| {
        let dtype = match tensor["dtype"].as_str().unwrap() {
            "F32" => Dtype::F32,
            "BF16" => Dtype::Bf16,
            other => panic!("{other}"),
        };
        let range = numbers(&tensor["data_offsets"]);
        let data = data[range[0] as usize..range[1] as usize].to_vec();
        (name.clone(), TensorBuf::new(dtype, numbers(&tensor["shape"]), data).unwrap())
    };
    tensors.map(read).collect()
}

fn manifest(tensors: &[(String, TensorBuf)]) -> Arc<Manifest> {
    let infos = tensors.iter().map(|(name, t)| TensorInfo::new(name.as_str(), t.dtype(), t.shape()));
    Arc::new(Manifest::new(infos.collect()).unwrap())
}

/// Encodes tensors by a codec; deltas have a base of zeros.
fn encoded(tensors: &[(String, TensorBuf)], codec: Codec, profile: Profile) -> Result<Vec<u8>, Error> {
    let zeros: Vec<TensorBuf> = tensors
        .iter()
        .map(|(_, t)| TensorBuf::new(t.dtype(), t.shape().to_vec(), vec![0; t.data().len()]).unwrap())
        .collect();
    let is_delta = matches!(codec, Codec::Delta(_));
    let inputs: Vec<Input<'_>> = (0u64..)
        .zip(tensors.iter().zip(&zeros))
        .map(|(tensor, ((name, t), zeros))| Input {
            tensor,
            name,
            view: t.view(),
            base: is_delta.then(|| zeros.view()),
        })
        .collect();
    let codecs = vec![codec; inputs.len()];
    // Blocks of several elements, so that scopes are ranges, tensors and runs of tensors.
    let mut blocks = pending(&inputs, &codecs, &Options::default().with_block_len(5000))?;
    let runs = blocks.deltas(&manifest(tensors), &mut Digests::default())?;
    let mut encoder = Encoder::new(EncodeOptions::default().with_profile(profile).with_part_bytes(20_000));
    let mut out = Vec::new();
    encoder.update(&mut out, &UpdateHeader::default().with_runs(runs), &manifest(tensors), blocks)?;
    encoder.finish(&mut out);
    Ok(out)
}

/// The kinds of the profile, as its page lists them.
const SUPPORTS: [u64; 4] = [1, 2, 3, 4];
const VALUES: [u64; 6] = [1, 2, 3, 4, 5, 6];

/// Looks at every block, and returns how many there are.
fn blocks_of_the_profile(stream: &[u8]) -> usize {
    let mut blocks = 0;
    for event in SliceReader::new(stream, Limits::default()) {
        let Event::Frame(info, body) = event.unwrap() else { continue };
        let kinds = [FrameKind::MANIFEST, FrameKind::UPDATE, FrameKind::END, FrameKind::INDEX];
        assert!(kinds.contains(&info.header.kind), "{}", info.header.kind);
        let Body::Update(part) = body else { continue };
        assert!(!part.header.is_delta());
        for (number, raw) in part.blocks.iter().enumerate() {
            assert!(SUPPORTS.contains(&raw.support_id.0) && VALUES.contains(&raw.values_id.0) && !raw.add);
            assert_eq!(part.beyond_core(number, &part.budget()).unwrap(), None);
            // The coding of integers is the first byte behind the fields before it, where that is easy to
            // say: one group with a scale of 32 bits. No integers have no coding.
            let coding = match raw.values_id {
                ValuesId::POW2 => raw.values.get(3).copied(),
                ValuesId::AFFINE if raw.values[..4] == [8, 0, 0, 2] => raw.values.get(8).copied(),
                _ => None,
            };
            assert!(coding.is_none_or(|coding| coding <= 2), "{coding:?}");
        }
        blocks += part.blocks.len();
    }
    blocks
}

fn specs() -> impl Iterator<Item = Codec> {
    let more = [
        "topk:values=pow2,density=0.1",
        "topk:values=sign,density=0.1",
        "topk:values=q4,density=0.1",
        "topk:values=bf16,density=0.1",
        "topk:scope=global,density=0.2",
        "topk:positions=classed,density=0.1",
        "topk:positions=bitmap",
        "topk:positions=bitmap,values=pow2,density=0.1",
        "threshold:at=0.0001,values=f16",
        "sbc:density=0.05,positions=tokens",
        "randk:density=0.1,values=bf16",
        "chunked:chunk=64,kept=3",
        "chunked:chunk=64,kept=1,values=sign",
        "chunked:chunk=8,kept=8",
        "sign:group=64",
        "qsgd:bits=2",
        "qsgd:bits=10",
        "dither:levels=30",
        "terngrad:bucket=64",
        "delta:values=overwrite",
    ];
    Codec::NAMES.iter().copied().chain(more).map(|spec| spec.parse().unwrap())
}

/// Encodes tensors in both profiles, and compares their elements. Returns the streams, or what the core
/// profile does not have.
fn in_both_profiles(
    tensors: &[(String, TensorBuf)],
    codec: Codec,
) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
    let full = encoded(tensors, codec, Profile::Full).unwrap();
    let core = match encoded(tensors, codec, Profile::Core) {
        Ok(core) => core,
        Err(Error::Input(InputError { kind: InputErrorKind::BeyondCore { what }, .. })) => return Err(what),
        Err(other) => panic!("{codec}: {other}"),
    };
    assert!(blocks_of_the_profile(&core) > 0, "{codec}");
    let (report, error) = Report::of(&core, Limits::default(), &());
    assert_eq!((report.beyond_core, error.map(|e| e.to_string())), (None, None), "{codec}");
    assert!(elements(&core) == elements(&full), "{codec}: other elements");
    Ok((full, core))
}

/// Returns the tensors of step 0.
fn elements(stream: &[u8]) -> Vec<(u64, TensorBuf)> {
    let file = File::open(stream, Limits::default()).unwrap();
    file.tensors(0, |_| true, &Default::default()).unwrap()
}

/// Codecs that the core profile refuses, each with what it does not have.
const REFUSED: [(&str, &str); 3] = [("delta", "a delta"), ("demo", "dct"), ("powersgd", "low-rank")];

#[test]
fn every_codec_writes_its_elements_in_the_profile_or_says_why_not() {
    let (mut written, mut refused, mut differ) = (0, Vec::new(), 0);
    for name in ["digits_convnet_step0030_worker0", "gpt_attention_bf16_sync020"] {
        let tensors = gradients(name);
        for codec in specs() {
            match in_both_profiles(&tensors, codec) {
                Ok((full, core)) => (written, differ) = (written + 1, differ + u32::from(core != full)),
                Err(what) => refused.push((codec.name(), what)),
            }
        }
    }
    assert!(written > 50 && differ > 20, "{written} {differ}");
    refused.sort_unstable();
    refused.dedup();
    assert_eq!(refused, REFUSED);
}

#[test]
fn every_codec_writes_small_tensors_in_the_profile_or_says_why_not() {
    let gradient = gradients("digits_convnet_step0030_worker0");
    let all: Vec<u8> = gradient.iter().flat_map(|(_, tensor)| tensor.data()).copied().collect();
    let tensor = |(number, [rows, columns]): (usize, [u64; 2])| {
        let data = all[number * 4000..][..(rows * columns * 4) as usize].to_vec();
        (format!("t{number}"), TensorBuf::new(Dtype::F32, vec![rows, columns], data).unwrap())
    };
    let tensors: Vec<_> = [[8, 20], [1, 90], [30, 16]].into_iter().enumerate().map(tensor).collect();
    for codec in specs() {
        let refused = REFUSED.iter().find(|(name, _)| *name == codec.name()).map(|(_, what)| *what);
        assert_eq!(in_both_profiles(&tensors, codec).err(), refused, "{codec}");
    }
}

/// Writes one block as an update of its own.
fn alone(block: PendingBlock<'_>, manifest: &Arc<Manifest>, profile: Profile) -> Result<Vec<u8>, Error> {
    let mut encoder = Encoder::new(EncodeOptions::default().with_profile(profile));
    let mut out = Vec::new();
    encoder.update(&mut out, &UpdateHeader::default(), manifest, [block])?;
    encoder.finish(&mut out);
    Ok(out)
}

/// A block that was read, decoded or in wire form, is written in the profile with the same elements: as it
/// is, if it is of the profile already.
#[test]
fn blocks_that_were_read_are_written_in_the_profile_or_refused() {
    let (mut written, mut kept, mut refused) = (0, 0, BTreeSet::new());
    for vector in vectors().iter().filter(|vector| vector["result"] == "valid") {
        let (id, stream) = (&vector["id"], unhex(vector["hex"].as_str().unwrap()));
        for event in SliceReader::new(&stream, limits(vector)) {
            let Event::Frame(_, Body::Update(part)) = event.unwrap() else { continue };
            // Some vectors have tensors that no memory holds.
            let elements_of = part.manifest.tensors().iter().map(TensorInfo::elements);
            if part.header.is_delta() || elements_of.fold(0, u64::saturating_add) > 1 << 20 {
                continue;
            }
            for (number, raw) in part.blocks.iter().enumerate() {
                let beyond = part.beyond_core(number, &part.budget()).unwrap();
                assert_eq!(raw.add, beyond == Some("an added block"), "{id}");
                let decoded = || PendingBlock::from(part.decode(number, &part.budget()).unwrap());
                // Blocks with shared tables have no wire form.
                let in_wire_form = part.wire_block(number).ok().map(PendingBlock::from);
                for (block, is_wire) in [(Some(decoded()), false), (in_wire_form, true)] {
                    let Some(block) = block else { continue };
                    match alone(block, &part.manifest, Profile::Core) {
                        Ok(core) => {
                            assert_eq!(blocks_of_the_profile(&core), 1, "{id}");
                            let full = alone(decoded(), &part.manifest, Profile::Full).unwrap();
                            assert!(elements(&core) == elements(&full), "{id}: other elements");
                            let is_same = first_block(&core) == (raw.support.to_vec(), raw.values.to_vec());
                            assert!(!is_wire || beyond.is_some() || is_same, "{id}: other bytes");
                            (written, kept) = (written + 1, kept + u32::from(is_wire && is_same));
                        }
                        Err(Error::Input(InputError {
                            kind: InputErrorKind::BeyondCore { what }, ..
                        })) => {
                            assert!(beyond.is_some(), "{id}: {what}");
                            refused.insert(what);
                        }
                        // The stream has the set, the new one does not.
                        Err(other) => assert!(raw.set().is_some(), "{id}: {other}"),
                    }
                }
            }
        }
    }
    assert!(written > 300 && kept > 100, "{written} {kept}");
    let refused: Vec<_> = refused.into_iter().collect();
    assert_eq!(refused, ["an added block", "dct", "latent", "low-rank"]);
}

/// Returns the bytes of the support and of the values of the first block.
fn first_block(stream: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let first = SliceReader::new(stream, Limits::default()).find_map(|event| match event.unwrap() {
        Event::Frame(_, Body::Update(part)) => {
            Some((part.blocks[0].support.to_vec(), part.blocks[0].values.to_vec()))
        }
        _ => None,
    });
    first.unwrap()
}

#[test]
fn what_the_profile_leaves_out_is_named() {
    let tensors = gradients("digits_convnet_step0030_worker0");
    let cases = [
        ("lossless", Some("planes")),
        ("randk", Some("seeded")),
        ("chunked", Some("codebook")),
        ("chunked:chunk=64,kept=1,values=sign", Some("chunked")),
        ("demo", Some("dct")),
        ("delta", Some("a delta")),
        ("terngrad", Some("joined integers")),
        ("natural", Some("referenced integers")),
        ("raw", None),
        ("topk:positions=tokens", None),
        ("natural", Some("predicted signs")),
    ];
    for (codec, expected) in cases {
        let stream = encoded(&tensors, codec.parse().unwrap(), Profile::Full).unwrap();
        let (report, _) = Report::of(&stream, Limits::default(), &());
        // Others may come before.
        let all: Vec<&str> = SliceReader::new(&stream, Limits::default())
            .filter_map(|event| match event.unwrap() {
                Event::Frame(_, Body::Update(part)) => Some(part),
                _ => None,
            })
            .flat_map(|part| {
                let number = 0..part.blocks.len();
                number.filter_map(|n| part.beyond_core(n, &part.budget()).unwrap()).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(report.beyond_core, all.first().copied(), "{codec}");
        assert!(expected.is_none_or(|what| all.contains(&what)), "{codec}: {all:?}");
        assert_eq!(expected.is_none(), all.is_empty(), "{codec}: {all:?}");
    }
}

#[test]
fn definitions_that_the_profile_does_not_have_are_refused() {
    let manifest = manifest(&gradients("resnet_head_step0015_worker0"));
    let mut encoder = Encoder::new(EncodeOptions::default().with_profile(Profile::Core));
    let mut out = Vec::new();
    let what = |result: Result<(), Error>| match result {
        Err(Error::Input(InputError { kind: InputErrorKind::BeyondCore { what }, .. })) => what,
        other => panic!("{other:?}"),
    };
    let set = IndexSet {
        manifest: manifest.id(),
        step: 0,
        leader: 0,
        world: 1,
        scope: Scope::Tensor(0),
        support: Support::All,
    };
    let made = encoder.index_set(&mut out, &set, &manifest, Default::default()).map(drop);
    assert_eq!(what(made), "an index set");
    assert_eq!(what(encoder.model(&mut out, &Model::inline("f", "n", vec![1]))), "a model");
    assert_eq!(what(encoder.private(&mut out, FrameKind(0x7000), &[])), "a private critical frame");
    assert!(out.is_empty(), "a refused call appends nothing");
    encoder.private(&mut out, FrameKind(0xf000), &[1]).unwrap();
    encoder.metadata(&mut out, &Default::default());
    encoder.finish(&mut out);
    let (report, error) = Report::of(&out, Limits::default(), &());
    assert!(report.beyond_core.is_none() && error.is_none());
}

#[test]
fn the_kinds_of_the_profile_are_those_of_its_page() {
    let supports = SupportId::REGISTERED.iter().filter(|(id, _)| id.is_core()).map(|(id, _)| id.0);
    assert_eq!(supports.collect::<Vec<_>>(), SUPPORTS);
    let values = ValuesId::REGISTERED.iter().filter(|(id, _)| id.is_core()).map(|(id, _)| id.0);
    assert_eq!(values.collect::<Vec<_>>(), VALUES);
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/spec/core.md")).unwrap();
    let rows = SupportId::REGISTERED.iter().map(|(id, name)| (id.is_core(), *name));
    for (is_core, name) in rows.chain(ValuesId::REGISTERED.iter().map(|(id, name)| (id.is_core(), *name))) {
        assert_eq!(page.contains(&format!("/{name}.md)")), is_core, "{name}");
    }
    assert!(!SupportId(99).is_core() && !ValuesId(99).is_core());
}
