use super::*;
use crate::block::{Block, BlockOptions, Floats, Scope, Sparse, Support, Ulp, Values};
use crate::digest::SumDigest;
use crate::file::{index_start, ranges};
use crate::frame::{Delta, IndexedFrame, Metadata, TensorInfo, run_digest, tensor_digest};
use crate::stream::{EncodeOptions, Encoder, Writer};
use crate::tensor::Dtype;

/// Metadata, then two updates of two tensors each.
fn stream() -> Vec<u8> {
    let tensors = ["a", "b", "c"].map(|name| TensorInfo::new(name, Dtype::F32, [4]));
    let manifest = Arc::new(Manifest::new(tensors.to_vec()).unwrap());
    let block = |tensor, value: f32| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::Sparse(Sparse { positions: vec![tensor] }),
        values: Values::Floats(Floats {
            stored: crate::block::Stored::F32,
            bytes: value.to_le_bytes().to_vec(),
        }),
    };
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut out = Vec::new();
    encoder.metadata(&mut out, &Metadata { entries: [("k".to_owned(), "v".to_owned())].into() });
    for step in 0..2u8 {
        let blocks = [block(0, f32::from(step)), block(2, 3.0 + f32::from(step))];
        let header = UpdateHeader::default().with_step(step.into()).with_sender(7);
        encoder.update(&mut out, &header, &manifest, &blocks).unwrap();
    }
    encoder.finish(&mut out);
    out
}

/// Replaces the index of a stream; the rest is what a valid writer of that index would write.
fn with_index(bytes: &[u8], index: &Index) -> Vec<u8> {
    let (_, _, end) = read_end(bytes).unwrap();
    let frames = bytes[..end.index_offset as usize].to_vec();
    finished(frames, &read_index(bytes).unwrap(), index, end)
}

/// Appends an index and an end to the frames that `honest` lists.
fn finished(mut out: Vec<u8>, honest: &Index, index: &Index, end: End) -> Vec<u8> {
    let end = End { index_offset: out.len() as u64, ..end };
    let mut chain = crc32fast::Hasher::new();
    for (offset, _) in honest.frame_offsets() {
        chain.update(&out[offset as usize..][..CHAINED_LEN]);
    }
    let mut put = |out: &mut Vec<u8>, kind, body: &[u8]| {
        let header = FrameHeader::of(kind, 0, body).to_bytes();
        chain.update(&header[..CHAINED_LEN]);
        out.extend(header);
        out.extend(body);
        chain.clone().finalize()
    };
    let chain = put(&mut out, FrameKind::INDEX, &index.body());
    let end = End { frame_count: index.frames.len() as u64 + 1, chain, ..end };
    put(&mut out, FrameKind::END, &end.body());
    out
}

/// Reads all tensors of all updates.
fn read(bytes: &[u8]) -> Result<Vec<TensorBuf>> {
    let file = File::open(bytes, Limits::default())?;
    let mut all = Vec::new();
    for update in 0..file.updates().len() {
        for name in ["a", "b", "c"] {
            all.push(file.tensor(update, name, &BTreeMap::new())?);
        }
    }
    Ok(all)
}

#[test]
fn the_parts_of_an_update_share_their_manifest_and_header() {
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1));
    let mut bytes = Vec::new();
    for (tensors, step) in [(2, 0), (10, 0), (2, 1)] {
        let infos = (0..tensors).map(|i| TensorInfo::new(format!("t{i}"), Dtype::F32, [1]));
        let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
        let block = |tensor| Block {
            scope: Scope::Tensor(tensor),
            add: false,
            support: Support::All,
            values: Values::Floats(Floats { stored: crate::block::Stored::F32, bytes: vec![0; 4] }),
        };
        // Of the second update, the last part has a run that the first manifest does not have.
        let run = |first, more| Delta { first, more, base: [1; 16], result: [2; 16] };
        let delta = vec![run(0, 0), run(tensors - 1, 0)];
        let header = UpdateHeader::default().with_step(step).with_delta(Some(delta));
        encoder.update(&mut bytes, &header, &manifest, &[block(0), block(tensors - 1)]).unwrap();
    }
    encoder.finish(&mut bytes);
    let whole = read_index(&bytes).unwrap();
    let parts: Vec<usize> =
        (0..whole.frames.len()).filter(|&i| whole.frames[i].kind == FrameKind::UPDATE).collect();
    assert_eq!(parts.len(), 6);
    let offsets: Vec<(u64, IndexedFrame)> = whole.frame_offsets().collect();
    let (_, _, end) = read_end(&bytes).unwrap();
    // The first part of the first update, and the last part of another one.
    for (last, refused) in [(1, false), (3, true), (5, true)] {
        let (mut frames, mut index) = (bytes[..16].to_vec(), Index { frames: vec![], updates: vec![] });
        for (i, &(offset, frame)) in offsets.iter().enumerate() {
            if let Some(part) = parts.iter().position(|&p| p == i) {
                if ![0, last].contains(&part) {
                    continue;
                }
                index.updates.push(whole.updates[part].clone());
            }
            frames.extend(&bytes[offset as usize..][..frame.len as usize]);
            index.frames.push(frame);
        }
        let bytes = finished(frames, &index, &index, end);
        let opened = File::open(&bytes, Limits::default()).map(|file| file.updates().len());
        match refused {
            false => assert_eq!(opened.unwrap(), 1),
            true => assert_eq!(opened.unwrap_err().name(), "misplaced"),
        }
    }
}

#[test]
fn every_wrong_field_of_an_index_is_detected() {
    let bytes = stream();
    let honest = read_index(&bytes).unwrap();
    assert_eq!(with_index(&bytes, &honest), bytes);
    assert_eq!(read(&bytes).unwrap().len(), 6);
    let mut wrong = Vec::new();
    let mut change_with = |change: &dyn Fn(&mut Index)| {
        let mut index = honest.clone();
        change(&mut index);
        assert_ne!(index, honest);
        wrong.push(index);
    };
    for by in [1, u64::MAX, 1 << 40] {
        for update in 0..2 {
            change_with(&|i| i.updates[update].step = i.updates[update].step.wrapping_add(by));
            change_with(&|i| i.updates[update].sender = i.updates[update].sender.wrapping_add(by));
            change_with(&|i| i.updates[update].head_len = i.updates[update].head_len.wrapping_add(by));
            change_with(&|i| i.updates[update].head_crc ^= 1 << (by % 32));
            for block in 0..2 {
                let of = move |i: &mut Index, change: &dyn Fn(&mut IndexedBlock)| {
                    change(&mut i.updates[update].blocks[block]);
                };
                change_with(&|i| of(i, &|b| b.first = b.first.wrapping_add(by)));
                change_with(&|i| of(i, &|b| b.tensors = b.tensors.wrapping_add(by)));
                change_with(&|i| of(i, &|b| b.len = b.len.wrapping_add(by)));
                change_with(&|i| of(i, &|b| b.crc ^= 1 << (by % 32)));
                // The sum of the lengths stays right.
                change_with(&|i| {
                    of(i, &|b| b.len = b.len.wrapping_add(by));
                    i.updates[update].head_len = i.updates[update].head_len.wrapping_sub(by);
                });
            }
            change_with(&|i| i.updates[update].blocks.truncate(1));
            change_with(&|i| i.updates[update].blocks.reverse());
        }
        for frame in 0..honest.frames.len() {
            change_with(&|i| i.frames[frame].len = i.frames[frame].len.wrapping_add(by));
        }
    }
    change_with(&|i| i.updates.reverse());
    // An update listed as a frame that readers skip, or not listed.
    for (kind, update) in [(2, 0), (3, 1)] {
        change_with(&|i| {
            i.frames[kind].kind = FrameKind::METADATA;
            i.updates.remove(update);
        });
        change_with(&|i| {
            let removed = i.frames.remove(kind);
            i.frames[kind - 1].len += removed.len;
            i.updates.remove(update);
        });
    }
    for index in wrong {
        let error = read(&with_index(&bytes, &index)).unwrap_err();
        let at = error.location().unwrap_or_else(|| panic!("{error} has no place")).offset;
        assert!(matches!(error, Error::Format(_)) && at <= bytes.len() as u64, "{error}");
    }
}

/// Kind, flags and body of a frame.
type Frame = (FrameKind, u16, Vec<u8>);

/// Changes the frames of a stream and the entries of its updates; lengths and checksums are right again.
fn rebuilt(bytes: &[u8], change: impl FnOnce(&mut [Frame], &mut [IndexedUpdate])) -> Vec<u8> {
    let mut index = read_index(bytes).unwrap();
    let frame = |(offset, frame): (u64, IndexedFrame)| {
        let body = in_memory(offset) + HEADER_LEN..in_memory(offset + frame.len);
        (frame.kind, header_at(bytes, offset).unwrap().flags, bytes[body].to_vec())
    };
    let mut frames: Vec<Frame> = index.frame_offsets().map(frame).collect();
    change(&mut frames, &mut index.updates);
    let updates = frames.iter().filter(|(kind, ..)| *kind == FrameKind::UPDATE);
    for (entry, (.., body)) in index.updates.iter_mut().zip(updates) {
        let (head, mut rest) = body.split_at(in_memory(entry.head_len));
        entry.head_crc = crc32(head);
        for block in &mut entry.blocks {
            let own = rest.split_off(..in_memory(block.len)).unwrap();
            block.crc = crc32(own);
        }
    }
    let mut out = bytes[..PREAMBLE_LEN].to_vec();
    for (listed, (kind, flags, body)) in index.frames.iter_mut().zip(frames) {
        let header = FrameHeader::of(kind, flags, &body);
        *listed = IndexedFrame { kind, len: HEADER_LEN as u64 + header.body_len };
        out.extend(header.to_bytes());
        out.extend(body);
    }
    finished(out, &index, &index, read_end(bytes).unwrap().2)
}

/// Changes the end of a stream; its checksum is right again.
fn with_end(bytes: &[u8], change: impl FnOnce(&mut End)) -> Vec<u8> {
    let (_, offset, mut end) = read_end(bytes).unwrap();
    change(&mut end);
    let body = end.body();
    let header = FrameHeader::of(FrameKind::END, 0, &body).to_bytes();
    [&bytes[..in_memory(offset)], &header, &body].concat()
}

/// The number of updates of a file, or the kind and the offset of the error.
fn opened(bytes: &[u8]) -> Result<usize, (&'static str, u64)> {
    let opened = File::open(bytes, Limits::default()).map(|file| file.updates().len());
    opened.map_err(|e| (e.name(), e.location().unwrap().offset))
}

fn offsets(bytes: &[u8]) -> Vec<u64> {
    read_index(bytes).unwrap().frame_offsets().map(|(offset, _)| offset).collect()
}

/// Tensors of four elements: `a`, `b` and `c`.
fn manifest() -> Arc<Manifest> {
    let tensors = ["a", "b", "c"].map(|name| TensorInfo::new(name, Dtype::F32, [4]));
    Arc::new(Manifest::new(tensors.to_vec()).unwrap())
}

/// A block of four equal numbers.
fn filled(tensor: u64, value: f32) -> Block {
    let bytes = value.to_le_bytes().repeat(4);
    let values = Values::Floats(Floats { stored: crate::block::Stored::F32, bytes });
    Block { scope: Scope::Tensor(tensor), add: false, support: Support::All, values }
}

#[test]
fn a_file_begins_with_a_preamble_and_ends_with_an_end() {
    let bytes = stream();
    assert_eq!(opened(&bytes), Ok(2));
    let changed = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        opened(&bytes)
    };
    let (_, end, End { index_offset, .. }) = read_end(&bytes).unwrap();
    let body = |frame: u64| frame + HEADER_LEN as u64;
    assert_eq!(changed(0), Err(("bad_magic", 0)));
    assert_eq!(changed(in_memory(body(index_offset))), Err(("checksum_mismatch", body(index_offset))));
    assert_eq!(changed(in_memory(body(end))), Err(("checksum_mismatch", body(end))));
    // The bytes of an end, but not its kind or not its length.
    let start = || bytes[..PREAMBLE_LEN].to_vec();
    let private = FrameHeader::of(FrameKind(0xf000), 0, &[7; End::BODY_LEN]).to_bytes();
    let short = FrameHeader::of(FrameKind::END, 0, &[7; End::BODY_LEN - 1]).to_bytes();
    for header in [private, short] {
        let bytes = [start(), header.to_vec(), vec![7; End::BODY_LEN]].concat();
        assert_eq!(opened(&bytes), Err(("truncated", bytes.len() as u64)));
    }
}

#[test]
fn the_end_of_a_file_tells_where_its_index_is() {
    let bytes = stream();
    let (_, end, End { index_offset, .. }) = read_end(&bytes).unwrap();
    let missing = Err(("out_of_range", end));
    let pointing = |offset| with_end(&bytes, |end| end.index_offset = offset);
    assert_eq!(opened(&pointing(0)), missing);
    assert_eq!(opened(&pointing(offsets(&bytes)[1])), missing);
    assert_eq!(opened(&pointing(end)), missing);
    assert_eq!(opened(&pointing(1 << 40)), Err(("truncated", bytes.len() as u64)));
    assert_eq!(index_start(&bytes).unwrap(), index_offset);
    for offset in [0, 15, end, u64::MAX] {
        let e = index_start(&pointing(offset)).unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("out_of_range", end), "{offset}");
    }
    let empty = Writer::new(Vec::new(), EncodeOptions::default()).finish().unwrap();
    assert_eq!(index_start(&empty).unwrap(), PREAMBLE_LEN as u64);
    // A frame of another kind before the end, whose body is an index.
    let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
    let mut bytes = Vec::new();
    encoder.private(&mut bytes, FrameKind(0xf000), &Index::default().body()).unwrap();
    let end = bytes.len() as u64;
    encoder.finish(&mut bytes);
    let bytes = with_end(&bytes, |end| end.index_offset = PREAMBLE_LEN as u64);
    assert_eq!(opened(&bytes), Err(("out_of_range", end)));
    // The index of an earlier segment.
    let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.finish(&mut bytes);
    let first = read_end(&bytes).unwrap().2.index_offset;
    encoder.finish(&mut bytes);
    let end = read_end(&bytes).unwrap().1;
    assert_eq!(opened(&bytes), Ok(0));
    assert_eq!(opened(&with_end(&bytes, |end| end.index_offset = first)), Err(("out_of_range", end)));
}

#[test]
fn no_frame_is_missing_in_an_index() {
    let bytes = stream();
    let (_, end, End { index_offset, .. }) = read_end(&bytes).unwrap();
    let body = end + HEADER_LEN as u64;
    assert_eq!(opened(&with_end(&bytes, |end| end.frame_count += 1)), Err(("count_mismatch", body)));
    assert_eq!(opened(&with_end(&bytes, |end| end.chain ^= 1)), Err(("checksum_mismatch", body + 16)));
    // The last update is in the file, but neither in the index nor in the count and the chain of the end.
    let mut short = read_index(&bytes).unwrap();
    short.frames.pop();
    short.updates.pop();
    let frames = bytes[..in_memory(index_offset)].to_vec();
    let short = finished(frames, &short, &short, read_end(&bytes).unwrap().2);
    assert_eq!(opened(&short), Err(("not_canonical", index_offset + HEADER_LEN as u64)));
    // A block that is longer than the file.
    let mut long = read_index(&bytes).unwrap();
    long.updates[0].blocks[1].len += 1 << 40;
    let e = ranges(&with_index(&bytes, &long), &[0, 1, 2]).unwrap_err();
    assert_eq!((e.name(), e.location().unwrap().offset), ("length_mismatch", index_offset));
}

#[test]
fn errors_of_a_file_have_their_places() {
    let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
    let (manifest, scope) = (manifest(), Scope::Tensor(0));
    let support = Support::Sparse(Sparse { positions: vec![1] });
    let set = IndexSet { manifest: manifest.id(), step: 0, leader: 0, world: 0, scope, support };
    encoder.index_set(&mut bytes, &set, &manifest, BlockOptions::default()).unwrap();
    let blocks = [filled(0, 1.0), filled(1, 2.0)];
    encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, &blocks).unwrap();
    encoder.finish(&mut bytes);
    assert_eq!(opened(&bytes), Ok(1));
    let bodies: Vec<u64> = offsets(&bytes).iter().map(|offset| offset + HEADER_LEN as u64).collect();
    let place = |e: Error| {
        let at = e.location().unwrap();
        (e.name(), at.offset, at.frame, at.block)
    };
    // The set and the update refer to a manifest that does not exist.
    for number in [1, 2] {
        let bytes = rebuilt(&bytes, |frames, _| frames[number].2[0] ^= 1);
        let e = File::open(&bytes, Limits::default()).map(drop).unwrap_err();
        assert_eq!(place(e), ("unknown_reference", bodies[number], Some(number as u64), None));
    }
    let mut index = read_index(&bytes).unwrap();
    index.updates[0].head_crc ^= 1;
    let e = File::open(&with_index(&bytes, &index), Limits::default()).map(drop).unwrap_err();
    assert_eq!(place(e), ("checksum_mismatch", bodies[2], Some(2), None));
    // Numbers in a form that does not exist, before the 16 bytes at the end of the first block.
    let entry = &read_index(&bytes).unwrap().updates[0];
    let at = entry.block_offset(1) - 17;
    let wrong = rebuilt(&bytes, |frames, _| frames[2].2[in_memory(at)] = 9);
    let file = File::open(&wrong, Limits::default()).unwrap();
    let e = file.tensor(0, "a", &BTreeMap::new()).unwrap_err();
    assert_eq!(place(e), ("out_of_range", bodies[2] + at, Some(2), Some(0)));
    assert!(file.tensor(0, "b", &BTreeMap::new()).is_ok());
    // The same in the second block, whether or not the first is read, too.
    let at = entry.block_offset(1) + entry.blocks[1].len - 17;
    let wrong = rebuilt(&bytes, |frames, _| frames[2].2[in_memory(at)] = 9);
    for file in [File::open(&wrong, Limits::default()), File::scan(&wrong, Limits::default())] {
        let file = file.unwrap();
        for wanted in ["b", ""] {
            let found = file.tensors(0, |name| wanted.is_empty() || name == wanted, &BTreeMap::new());
            assert_eq!(place(found.unwrap_err()), ("out_of_range", bodies[2] + at, Some(2), Some(1)));
        }
    }
    // Blocks in the wrong order.
    let swapped = rebuilt(&bytes, |frames, entries| {
        let [first, second] = [0, 1].map(|block| in_memory(entries[0].block_offset(block)));
        frames[2].2[first..].rotate_left(second - first);
        entries[0].blocks.swap(0, 1);
    });
    let e = File::open(&swapped, Limits::default()).unwrap().parts(0, |_| true).unwrap_err();
    let second = read_index(&swapped).unwrap().updates[0].block_offset(1);
    assert_eq!(place(e), ("not_ascending", bodies[2] + second, Some(2), Some(1)));
}

#[test]
fn the_manifests_of_a_file_are_limited() {
    let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.manifest(&mut bytes, &manifest());
    let second = bytes.len() as u64;
    encoder.manifest(&mut bytes, &Arc::new(Manifest::new(vec![]).unwrap()));
    encoder.finish(&mut bytes);
    let open = |most| File::open(&bytes, Limits::default().with_max_definitions(most)).map(drop);
    assert!(open(2).is_ok());
    let e = open(1).unwrap_err();
    assert_eq!((e.name(), e.location().unwrap().offset), ("limit", second));
}

#[test]
fn the_parts_of_an_update_are_read_together() {
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1));
    let (mut bytes, manifest) = (Vec::new(), manifest());
    let values = [5.0, 6.0, 7.0];
    let blocks: Vec<Block> = (0..).zip(values).map(|(tensor, value)| filled(tensor, value)).collect();
    encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, &blocks).unwrap();
    // Added blocks in any order, so that the first part lists the second run of the delta.
    let run = |first| Delta { first, more: 0, base: [1; 16], result: [2; 16] };
    let delta = vec![run(0), run(1), run(2)];
    let sum = |first| Delta { first, more: 0, base: SumDigest::ZERO, result: SumDigest::ZERO };
    let sums = vec![sum(0), sum(1), sum(2)];
    let header = UpdateHeader::default().with_step(1);
    let header = header.with_delta(Some(delta.clone())).with_sums(Some(sums.clone()));
    let added = [1, 0, 1, 2].map(|tensor| Block { add: true, ..filled(tensor, 1.0) });
    encoder.update(&mut bytes, &header, &manifest, &added).unwrap();
    encoder.finish(&mut bytes);
    let scanned = File::scan(&bytes, Limits::default()).unwrap();
    let only = scanned.parts(0, |name| name == "b").unwrap();
    let only = only.iter().flat_map(|part| &part.blocks).map(|raw| raw.scope);
    assert_eq!(only.collect::<Vec<_>>(), [Scope::Tensor(1)]);
    let file = File::open(&bytes, Limits::default()).unwrap();
    assert_eq!(file.updates().len(), 2);
    assert_eq!(file.blocks(0).unwrap().iter().map(|b| b.first).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(file.blocks(1).unwrap().iter().map(|b| b.first).collect::<Vec<_>>(), [1, 0, 1, 2]);
    let tensors = file.tensors(0, |_| true, &BTreeMap::new()).unwrap();
    let expected = values.map(|value| TensorBuf::from_f32(vec![4], &[value; 4]).unwrap());
    assert_eq!(tensors, Vec::from_iter((0..).zip(expected)));
    for file in [&file, &scanned] {
        let header = &file.updates()[1].header;
        assert_eq!((&header.delta, &header.sums), (&Some(delta.clone()), &Some(sums.clone())));
    }
    let manifest_len = read_index(&bytes).unwrap().frames[0].len;
    let listed: u64 = file.updates().iter().map(|update| update.bytes).sum();
    assert_eq!(listed + manifest_len + PREAMBLE_LEN as u64, index_start(&bytes).unwrap());
}

#[test]
fn a_tensor_is_read_with_those_that_share_its_digest() {
    let manifest = manifest();
    let old = [1.0, 2.0, 3.0].map(|value| TensorBuf::from_f32(vec![4], &[value; 4]).unwrap());
    let new = old.clone().map(|mut tensor| {
        tensor.data_mut()[4] += 1;
        tensor
    });
    let digest = |tensors: &[TensorBuf]| {
        run_digest(&Vec::from_iter(tensors.iter().map(|tensor| tensor_digest(tensor.view()))))
    };
    let run = |first: usize, more: usize| Delta {
        first: first as u64,
        more: more as u64,
        base: digest(&old[first..=first + more]),
        result: digest(&new[first..=first + more]),
    };
    let block = |tensor| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::Sparse(Sparse { positions: vec![1] }),
        values: Values::Ulp(Ulp { diffs: vec![1] }),
    };
    let header = UpdateHeader::default().with_delta(Some(vec![run(0, 1), run(2, 0)]));
    let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut bytes, &header, &manifest, &[block(0), block(1), block(2)]).unwrap();
    encoder.finish(&mut bytes);
    let file = File::open(&bytes, Limits::default()).unwrap();
    let names = ["a", "b", "c"];
    let base = |numbers: &[usize]| -> BTreeMap<String, TensorView<'_>> {
        numbers.iter().map(|&i| (names[i].to_owned(), old[i].view())).collect()
    };
    for (number, needed) in [(0, &[0, 1][..]), (1, &[0, 1]), (2, &[2])] {
        assert_eq!(file.tensor(0, names[number], &base(needed)).unwrap(), new[number]);
        let e = file.tensor(0, names[number], &base(&needed[1..])).unwrap_err();
        assert_eq!(e.name(), "unknown_reference");
        assert_eq!(file.parts(0, |name| name == names[number]).unwrap()[0].blocks.len(), needed.len());
    }
}

#[test]
fn metadata_belongs_to_the_update_behind_it() {
    let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
    let entries = |keys: &[&str]| Metadata {
        entries: keys.iter().map(|&key| (key.to_owned(), "v".to_owned())).collect(),
    };
    let update = |encoder: &mut Encoder, bytes: &mut Vec<u8>| {
        encoder.update(bytes, &UpdateHeader::default(), &manifest(), &[filled(0, 1.0)]).unwrap();
    };
    encoder.metadata(&mut bytes, &entries(&["x"]));
    encoder.metadata(&mut bytes, &entries(&["y", "z"]));
    update(&mut encoder, &mut bytes);
    update(&mut encoder, &mut bytes);
    encoder.metadata(&mut bytes, &entries(&["u"]));
    update(&mut encoder, &mut bytes);
    encoder.finish(&mut bytes);
    let file = File::open(&bytes, Limits::default()).unwrap();
    let found = [0, 1, 2].map(|update| file.metadata(update).unwrap());
    assert_eq!(found, [entries(&["x", "y", "z"]), entries(&[]), entries(&["u"])]);
    assert_eq!(file.metadata(3).unwrap_err().name(), "input");
    // A form of metadata that does not exist.
    let wrong = rebuilt(&bytes, |frames, _| frames[1].2[0] = 9);
    let e = File::open(&wrong, Limits::default()).unwrap().metadata(0).unwrap_err();
    let at = e.location().unwrap();
    let body = offsets(&bytes)[1] + HEADER_LEN as u64;
    assert_eq!((e.name(), at.offset, at.frame), ("out_of_range", body, Some(1)));
}

#[test]
fn metadata_and_manifests_are_read_only_with_the_right_checksum() {
    let bytes = stream();
    let frames = read_index(&bytes).unwrap().frames;
    for (number, kind) in [(0, FrameKind::METADATA), (1, FrameKind::MANIFEST)] {
        assert_eq!(frames[number].kind, kind);
        let offset = offsets(&bytes)[number];
        let mut wrong = bytes.clone();
        wrong[in_memory(offset + frames[number].len) - 1] ^= 1;
        let e = File::open(&wrong, Limits::default()).and_then(|file| file.metadata(0)).unwrap_err();
        let (at, body) = (e.location().unwrap(), offset + HEADER_LEN as u64);
        assert_eq!((e.name(), at.offset, at.frame), ("checksum_mismatch", body, Some(number as u64)));
    }
}
