//! Finished files: random access, appending, and recovery after a failed append.

use std::collections::BTreeMap;
use std::io::Write;

use gcodec::block::{Block, Floats, Scope, Sparse, Stored, Support, Values};
use gcodec::file::{AtomicFile, File, append, recover};
use gcodec::frame::{Delta, UpdateHeader, tensor_digest};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Limits, TensorBuf};

fn bias(value: f32) -> Block {
    Block {
        scope: Scope::Tensor(1),
        add: false,
        support: Support::Sparse(Sparse { positions: vec![1] }),
        values: Values::Floats(Floats { stored: Stored::F32, bytes: value.to_le_bytes().to_vec() }),
    }
}

#[test]
fn one_tensor_of_one_step_is_read_without_the_rest() {
    let mut stream = crate::streams::sample();
    let file = File::open(&stream, Limits::default()).unwrap();
    assert_eq!(file.updates().len(), 2);
    assert_eq!(file.updates()[1].header.label, "several parts");
    assert_eq!((file.find(Some(1)), file.find(None), file.find(Some(7))), (Some(0), Some(1), None));
    let none = BTreeMap::new();
    let bias = file.tensor(1, "embed.bias", &none).unwrap();
    assert_eq!(bias, TensorBuf::from_f32(vec![4], &[-0.25, 0.0, 0.0, 0.0]).unwrap());
    let on_set = file.tensor(0, "embed.weight", &none).unwrap();
    let mut expected = vec![0.0; 32];
    (expected[1], expected[30]) = (1.0, -1.0);
    assert_eq!(on_set, TensorBuf::from_f32(vec![8, 4], &expected).unwrap());
    // Corruption is reported if it is in the requested block, and does not matter in any other block.
    let blocks = SliceReader::new(&stream, Limits::default()).find_map(|event| match event.unwrap() {
        Event::Frame(_, Body::Update(part)) if part.header.step == 2 => {
            Some(part.blocks[0].offset + part.blocks[0].len - 1)
        }
        _ => None,
    });
    stream[blocks.unwrap() as usize] ^= 1;
    let file = File::open(&stream, Limits::default()).unwrap();
    let error = file.tensor(1, "embed.bias", &none).unwrap_err();
    let at = error.location().unwrap();
    // The error names the first tensor in the scope of the block.
    assert_eq!((error.name(), at.block, at.tensor), ("checksum_mismatch", Some(0), Some(0)));
    assert!(at.frame.is_some());
    assert!(file.tensor(1, "steps", &none).is_ok());
    assert!(file.tensor(1, "nothing", &none).is_err());
}

#[test]
fn parts_are_assembled_in_order_only() {
    let stream = crate::streams::sample();
    let mut parts = Vec::new();
    for event in SliceReader::new(&stream, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
            parts.push(part);
        }
    }
    // The first update has one part, the second several.
    assert!(parts.len() > 2 && parts[1].part == 0 && parts[2].part == 1);
    for wrong in [&[2, 1][..], &[1, 1], &[1, 3, 2], &[0, 1], &[0, 0]] {
        let mut assembler = Assembler::new(&parts[0].manifest, &Limits::default(), |_| true).unwrap();
        let refused = wrong.iter().any(|&i| parts.get(i).is_none_or(|p| assembler.apply(p).is_err()));
        assert!(refused, "{wrong:?}");
    }
}

#[test]
fn a_file_without_its_end_does_not_open() {
    let stream = crate::streams::sample();
    for len in 0..stream.len() {
        assert!(File::open(&stream[..len], Limits::default()).is_err(), "{len}");
    }
}

#[test]
fn append_extends_a_file_and_an_interrupted_append_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gcu");
    std::fs::write(&path, crate::streams::sample()).unwrap();
    let manifest = crate::streams::manifest();
    for step in 10..12 {
        let mut writer = append(&path, EncodeOptions::default()).unwrap();
        let header = UpdateHeader::default().with_step(step);
        writer.update(&header, &manifest, &[bias(step as f32)]).unwrap();
        writer.finish().unwrap();
    }
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.starts_with(&crate::streams::sample()));
    let file = File::open(&bytes, Limits::default()).unwrap();
    assert_eq!(file.updates().iter().map(|u| u.header.step).collect::<Vec<_>>(), [1, 2, 10, 11]);
    let tensor = file.tensor(3, "embed.bias", &BTreeMap::new()).unwrap();
    assert_eq!(tensor, TensorBuf::from_f32(vec![4], &[0.0, 11.0, 0.0, 0.0]).unwrap());
    let manifests = SliceReader::new(&bytes, Limits::default())
        .filter(|e| matches!(e.as_ref().unwrap(), Event::Frame(_, Body::Manifest(_))));
    assert_eq!(manifests.count(), 1);
    // Dropping the writer without `finish` stands for a process that dies while it appends.
    let mut writer = append(&path, EncodeOptions::default()).unwrap();
    writer.update(&UpdateHeader::default(), &manifest, &[bias(9.0)]).unwrap();
    drop(writer);
    let cut = std::fs::read(&path).unwrap();
    assert!(cut.starts_with(&bytes) && File::open(&cut, Limits::default()).is_err());
    assert!(append(&path, EncodeOptions::default()).is_err());
    assert_eq!(recover(&cut, &Limits::default()).unwrap().updates_kept, 5);
}

#[test]
fn a_delta_is_applied_completely_or_not_at_all() {
    let manifest = crate::streams::manifest();
    let base = TensorBuf::from_f32(vec![4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let next = TensorBuf::from_f32(vec![4], &[1.0, 2.5, 3.0, 4.0]).unwrap();
    let entry =
        Delta { first: 1, more: 0, base: tensor_digest(base.view()), result: tensor_digest(next.view()) };
    let encode = |delta: Delta| {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(EncodeOptions::default());
        let header = UpdateHeader::default().with_delta(Some(vec![delta]));
        encoder.update(&mut out, &header, &manifest, &[bias(2.5)]).unwrap();
        encoder.finish(&mut out);
        out
    };
    let apply = |stream: &[u8], base: Option<&TensorBuf>| {
        let mut assembler = Assembler::new(&manifest, &Limits::default(), |n| n == "embed.bias").unwrap();
        if let Some(base) = base {
            assembler.base("embed.bias", base.view())?;
        }
        for event in SliceReader::new(stream, Limits::default()) {
            if let Event::Frame(_, Body::Update(part)) = event? {
                assembler.apply(&part)?;
            }
        }
        assembler.finish()
    };
    let stream = encode(entry);
    assert_eq!(apply(&stream, Some(&base)).unwrap(), [(1, next.clone())]);
    assert_eq!(apply(&stream, None).unwrap_err().name(), "unknown_reference");
    assert_eq!(apply(&stream, Some(&next)).unwrap_err().name(), "checksum_mismatch");
    let wrong = encode(Delta { result: entry.base, ..entry });
    assert_eq!(apply(&wrong, Some(&base)).unwrap_err().name(), "checksum_mismatch");
    // A tensor without blocks in the update keeps the values of the base.
    let manifest = crate::streams::manifest();
    let mut assembler = Assembler::new(&manifest, &Limits::default(), |n| n == "scale").unwrap();
    let scale = TensorBuf::from_f32(vec![], &[7.0]).unwrap();
    assembler.base("scale", scale.view()).unwrap();
    for event in SliceReader::new(&stream, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
            assembler.apply(&part).unwrap();
        }
    }
    assert_eq!(assembler.finish().unwrap(), [(3, scale)]);
}

#[test]
fn an_atomic_file_replaces_the_old_file_completely_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, "old").unwrap();
    let mut file = AtomicFile::create(&path).unwrap();
    file.write_all(b"half").unwrap();
    drop(file);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    let mut file = AtomicFile::create(&path).unwrap();
    file.write_all(b"new").unwrap();
    file.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
