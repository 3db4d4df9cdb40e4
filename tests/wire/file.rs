//! Finished files: random access, appending, and recovery after a failed append.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use gcodec::block::{Block, BlockOptions, Floats, Scope, Sparse, Stored, Support, Values};
use gcodec::file::{AtomicFile, File, append, index_start, ranges, recover};
use gcodec::frame::{Delta, Manifest, TensorInfo, UpdateHeader, tensor_digest};
use gcodec::internal::{HEADER_LEN, PREAMBLE_LEN, SYNC};
use gcodec::stream::{Assembler, Body, Decoder, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Dtype, Limits, TensorBuf};

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
    assert_eq!(recover(&cut, &Limits::default(), Vec::new()).unwrap().updates_kept, 5);
}

#[test]
fn only_a_finished_file_with_right_manifests_is_extended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gcu");
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let e = append(&path, EncodeOptions::default()).map(drop).unwrap_err();
        (e.name(), e.location().map(|at| at.offset))
    };
    assert_eq!(refused(&[]), ("truncated", Some(0)));
    assert_eq!(refused(b"x"), ("truncated", Some(1)));
    let mut stream = crate::streams::sample();
    let manifest = SliceReader::new(&stream, Limits::default()).find_map(|event| match event.unwrap() {
        Event::Frame(info, Body::Manifest(_)) => Some(info.offset),
        _ => None,
    });
    // The number of tensors and the first name, of twelve bytes, precede an element type.
    let dtype = manifest.unwrap() + HEADER_LEN as u64 + 15;
    stream[dtype as usize] = 0xff;
    assert_eq!(refused(&stream), ("unsupported", Some(dtype)));
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

#[test]
fn an_atomic_file_is_written_beside_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let path = folder.join("x");
    for contents in ["first", "second"] {
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(contents.as_bytes()).unwrap();
        assert_eq!(*file.written().unwrap(), *contents.as_bytes());
        // Where files need a name.
        if let Some(temporary) = file.temporary() {
            assert_eq!(temporary.parent().unwrap(), folder);
            let name = temporary.file_name().unwrap().to_str().unwrap();
            assert!(name.starts_with(".x.") && name.ends_with(".tmp"), "{name}");
        }
        file.commit().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), contents);
    }
    assert_eq!(AtomicFile::create(&folder).unwrap_err().kind(), std::io::ErrorKind::IsADirectory);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn an_atomic_file_has_the_permissions_of_the_old_file_or_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["x", "y"].map(|name| folder.path().join(name));
    std::fs::File::create(&other).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
    let replace = || AtomicFile::create(&path).unwrap().commit().unwrap();
    replace();
    assert_eq!(mode(&path), mode(&other));
    for kept in [0o600, 0o640] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(kept)).unwrap();
        replace();
        assert_eq!(mode(&path) & 0o777, kept);
    }
}

#[test]
fn the_ranges_of_tensors_are_all_that_a_file_reads() {
    let stream = crate::streams::sample();
    let file = File::open(&stream, Limits::default()).unwrap();
    let none = BTreeMap::new();
    let names: Vec<&str> =
        file.updates()[0].manifest.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    let start = index_start(&stream).unwrap() as usize;
    assert_eq!(stream[start..start + 4], SYNC);
    for (number, name) in (0..).zip(&names) {
        let ranges = ranges(&stream, &[number]).unwrap();
        // They ascend, and none touches the next.
        assert!(ranges.iter().all(|r| r.start < r.end) && ranges.is_sorted_by(|a, b| a.end < b.start));
        assert_eq!(ranges[0].start, 0);
        // Everything outside of them and before the index is lost.
        let mut fetched = vec![0xee; stream.len()];
        fetched[start..].copy_from_slice(&stream[start..]);
        for range in &ranges {
            let range = range.start as usize..range.end as usize;
            fetched[range.clone()].copy_from_slice(&stream[range]);
        }
        let partial = File::open(&fetched, Limits::default()).unwrap();
        for update in 0..file.updates().len() {
            let expected = file.tensor(update, name, &none);
            let found = partial.tensor(update, name, &none);
            assert_eq!(found.map_err(|e| e.to_string()), expected.map_err(|e| e.to_string()), "{name}");
        }
    }
    let all: Vec<u64> = (0..names.len() as u64).collect();
    let before_the_index = 0..start as u64;
    assert_eq!(ranges(&stream, &all).unwrap(), std::slice::from_ref(&before_the_index));
    // Of long blocks of other tensors, only the first bytes.
    let tensors = ["a", "b"].map(|name| TensorInfo::new(name, Dtype::F32, [1000]));
    let manifest = Arc::new(Manifest::new(tensors.to_vec()).unwrap());
    let block = |tensor| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::All,
        values: Values::Floats(Floats { stored: Stored::Source, bytes: vec![tensor as u8; 4000] }),
    };
    let (mut long, mut encoder) = (Vec::new(), Encoder::new(EncodeOptions::default()));
    let blocks = [block(0), block(1)];
    let blocks: Vec<_> = blocks.iter().map(|block| (block, BlockOptions::default())).collect();
    encoder.update(&mut long, &UpdateHeader::default(), &manifest, &blocks).unwrap();
    encoder.finish(&mut long);
    let bytes =
        |tensors: &[u64]| -> u64 { ranges(&long, tensors).unwrap().iter().map(|r| r.end - r.start).sum() };
    let none = bytes(&[]);
    assert!(none < 1000, "{none}");
    for tensors in [[0], [1]] {
        assert!((none + 3800..none + 4100).contains(&bytes(&tensors)), "{tensors:?}: {}", bytes(&tensors));
    }
    // The index must lie between the preamble and the end.
    let without =
        gcodec::stream::Writer::new(Vec::new(), EncodeOptions::default().with_index(false)).finish().unwrap();
    assert!(index_start(&without).is_err() && ranges(&without, &[0]).is_err());
}

#[test]
fn an_index_tells_which_blocks_of_a_body_are_damaged() {
    let stream = crate::streams::sample();
    let (mut index, mut bodies) = (None, Vec::new());
    for event in SliceReader::new(&stream, Limits::default()) {
        match event.unwrap() {
            Event::Frame(info, Body::Update(part)) => {
                let body = info.offset as usize + HEADER_LEN..(info.offset + info.len()) as usize;
                let blocks: Vec<_> =
                    part.blocks.iter().map(|b| (b.offset - body.start as u64, b.len)).collect();
                bodies.push((stream[body].to_vec(), blocks));
            }
            Event::Frame(_, Body::Index(found)) => index = Some(found),
            _ => {}
        }
    }
    let index = index.unwrap();
    assert_eq!(index.updates.len(), bodies.len());
    for (update, (body, blocks)) in index.updates.iter().zip(&bodies) {
        assert_eq!(update.damage(body), []);
        for at in 0..body.len() {
            let mut corrupt = body.clone();
            corrupt[at] ^= 1;
            let inside = |&(offset, len): &(u64, u64)| (offset..offset + len).contains(&(at as u64));
            let expected = blocks.iter().position(inside).map(|number| number as u64);
            assert_eq!(update.damage(&corrupt), [expected], "{at}");
        }
        for (number, (offset, _)) in (0..).zip(blocks) {
            assert_eq!(update.block_offset(number), *offset);
        }
        let (offset, _) = blocks[0];
        let cut = &body[..offset as usize];
        let all: Vec<Option<u64>> = (0..blocks.len() as u64).map(Some).collect();
        assert_eq!(update.damage(cut), all);
        assert_eq!(update.damage(&[]).len(), all.len() + 1);
    }
}

#[test]
fn definitions_from_outside_are_as_good_as_those_of_the_stream() {
    let stream = crate::streams::sample();
    let mut outside = stream[..PREAMBLE_LEN].to_vec();
    let mut set = None;
    for event in SliceReader::new(&stream, Limits::default()) {
        match event.unwrap() {
            Event::Frame(_, Body::IndexSet(found, id, _)) => set = Some((id, found)),
            Event::Frame(info, Body::Update(_)) => {
                outside.extend(&stream[info.offset as usize..(info.offset + info.len()) as usize]);
            }
            _ => {}
        }
    }
    let (id, set) = set.unwrap();
    let manifest = crate::streams::manifest();
    let error = |reader: &mut SliceReader<'_>| reader.find_map(Result::err).unwrap().name();
    let mut reader = SliceReader::new(&outside, Limits::default());
    assert_eq!(reader.offset(), 0);
    assert_eq!(error(&mut reader), "unknown_reference");
    let decoded = |reader: SliceReader<'_>| {
        let mut errors = Vec::new();
        for event in reader.map_while(Result::ok) {
            if let Event::Frame(_, Body::Update(part)) = event {
                errors.extend((0..part.blocks.len()).filter_map(|i| part.decode(i, &part.budget()).err()));
            }
        }
        errors.iter().map(|e| e.name()).collect::<Vec<_>>()
    };
    let mut reader = SliceReader::new(&outside, Limits::default());
    reader.add_manifest(manifest.clone());
    assert_eq!(decoded(reader), ["unknown_reference"]);
    let mut reader = SliceReader::new(&outside, Limits::default());
    reader.add_manifest(manifest.clone());
    reader.add_index_set(id, &set, &manifest).unwrap();
    assert_eq!(decoded(reader), [""; 0]);
    let mut reader = SliceReader::new(&outside, Limits::default());
    reader.add_manifest(manifest.clone());
    reader.add_index_set(id, &set, &manifest).unwrap();
    // All updates are read; then the end is missing.
    assert_eq!(error(&mut reader), "truncated");
    assert_eq!(reader.offset(), outside.len() as u64);
    let mut decoder = Decoder::new(Limits::default());
    decoder.add_manifest(manifest.clone());
    decoder.add_index_set(id, &set, &manifest).unwrap();
    decoder.feed(&outside);
    let mut updates = 0;
    while let Some(event) = decoder.next_event().unwrap() {
        updates += u32::from(matches!(event, Event::Frame(_, Body::Update(_))));
    }
    assert!(updates > 2, "{updates}");
}
