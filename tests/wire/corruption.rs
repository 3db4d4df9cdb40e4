//! Corrupt and truncated streams: always a typed error with an offset, never a wrong result, never a panic.

use gcodec::block::Sparse;
use std::sync::Arc;

use gcodec::block::{Block, BlockOptions, Floats, Scope, Stored, Support, Values};
use gcodec::file::recover;
use gcodec::frame::{FrameKind, IndexSet, Manifest, TensorInfo, UpdateHeader};
use gcodec::internal::{HEADER_LEN, SYNC};
use gcodec::stream::{Body, Decoder, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Dtype, Error, Limits};
use proptest::prelude::*;

/// Reads a stream and decodes all its blocks.
fn read_all(bytes: &[u8], limits: &Limits) -> Result<usize, Error> {
    let mut blocks = 0;
    for event in SliceReader::new(bytes, limits.clone()) {
        if let Event::Frame(_, Body::Update(part)) = event? {
            blocks += part.decode_all()?.len();
        }
    }
    Ok(blocks)
}

fn small_limits() -> Limits {
    Limits::default()
        .with_max_alloc_bytes(1 << 20)
        .with_max_elements(1 << 20)
        .with_max_inflated_bytes(1 << 20)
}

#[test]
fn every_truncation_is_an_error() {
    let stream = crate::streams::sample();
    assert_eq!(read_all(&stream, &small_limits()).unwrap(), 5);
    for len in 0..stream.len() {
        let e = read_all(&stream[..len], &small_limits()).unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("truncated", len as u64));
        let mut decoder = Decoder::new(small_limits());
        decoder.feed(&stream[..len]);
        while decoder.next_event().unwrap().is_some() {}
        assert_eq!(decoder.finish().unwrap_err().name(), "truncated");
    }
}

#[test]
fn every_flipped_bit_is_an_error() {
    let stream = crate::streams::sample();
    for bit in 0..stream.len() * 8 {
        let mut corrupt = stream.clone();
        corrupt[bit / 8] ^= 1 << (bit % 8);
        let e = read_all(&corrupt, &small_limits()).unwrap_err();
        let at = e.location().expect("an error in a stream has a location").offset;
        assert!(at <= stream.len() as u64, "bit {bit}: {e}");
    }
}

#[test]
fn exchanged_repeated_and_lost_frames_are_errors() {
    let stream = crate::streams::sample();
    let mut frames = Vec::new();
    for event in SliceReader::new(&stream, Limits::default()) {
        if let Event::Frame(info, _) = event.unwrap() {
            frames.push(stream[info.offset as usize..(info.offset + info.len()) as usize].to_vec());
        }
    }
    let build = |order: &[usize]| {
        let body = order.iter().flat_map(|&i| frames[i].clone());
        stream[..16].iter().copied().chain(body).collect::<Vec<u8>>()
    };
    let all: Vec<usize> = (0..frames.len()).collect();
    assert_eq!(build(&all), stream);
    for i in 0..all.len() - 1 {
        let mut lost = all.clone();
        lost.remove(i);
        assert!(read_all(&build(&lost), &small_limits()).is_err(), "lost {i}");
        let mut repeated = all.clone();
        repeated.insert(i, i);
        assert!(read_all(&build(&repeated), &small_limits()).is_err(), "repeated {i}");
        let mut exchanged = all.clone();
        exchanged.swap(i, i + 1);
        assert!(read_all(&build(&exchanged), &small_limits()).is_err(), "exchanged {i}");
    }
}

#[test]
fn intact_frames_are_recovered() {
    let stream = crate::streams::sample();
    let whole = recover(&stream, &Limits::default(), Vec::new()).unwrap();
    assert_eq!((whole.updates_kept, whole.frames_dropped, whole.bytes_lost), (2, 0, 0));
    let kept = whole.frames_kept;
    assert_eq!(read_all(&whole.stream, &small_limits()).unwrap(), 5);
    for len in 0..stream.len() {
        let saved = recover(&stream[..len], &Limits::default(), Vec::new()).unwrap();
        assert!(saved.frames_kept <= kept);
        read_all(&saved.stream, &small_limits()).unwrap();
    }
    for at in (0..stream.len()).step_by(7) {
        let mut corrupt = stream.clone();
        corrupt[at] ^= 0x10;
        let saved = recover(&corrupt, &Limits::default(), Vec::new()).unwrap();
        // One frame is lost, and with it all frames that refer to it.
        assert!(saved.frames_kept + 8 >= kept, "byte {at}: {saved:?}");
        read_all(&saved.stream, &small_limits()).unwrap();
    }
}

#[test]
fn recovery_counts_what_it_keeps_and_what_it_loses() {
    let (mut encoder, mut stream) = (Encoder::new(EncodeOptions::default()), Vec::new());
    for body in ["one", "two"] {
        encoder.private(&mut stream, FrameKind(0xf001), body.as_bytes()).unwrap();
    }
    encoder.finish(&mut stream);
    let (preamble, frames) = stream.split_at(16);
    let without_end = &stream[..stream.len() - HEADER_LEN - 24];
    for (bytes, lost, had_end) in [
        (stream.clone(), 0, true),
        (without_end.to_vec(), 0, false),
        ([&stream[..], &[7; 16]].concat(), 16, false),
        ([&stream[..], &[7; 15]].concat(), 15, false),
        // A corrupt preamble is written again; other bytes before the first frame are lost.
        ([&[7; 16], frames].concat(), 0, true),
        ([&[7; 15], frames].concat(), 15, true),
        ([preamble, &[7; 16], frames].concat(), 32, true),
        // A sync word without a frame, at the second byte, and 16 bytes before the next one.
        ([&[7], &SYNC[..], &[7; 12], frames].concat(), 17, true),
        ([&stream[..], &stream[16..]].concat(), 0, true),
    ] {
        let saved = recover(&bytes, &Limits::default(), Vec::new()).unwrap();
        let kept = 2 * bytes.windows(3).filter(|w| w == b"one").count() as u64;
        assert_eq!((saved.frames_kept, saved.frames_dropped), (kept, 0));
        assert_eq!((saved.bytes_lost, saved.had_end), (lost, had_end), "{bytes:?}");
        assert!(kept > 2 || saved.stream == stream);
    }
}

/// An update with a part of wrong content is dropped whole. The next update is kept.
#[test]
fn an_update_with_a_wrong_part_is_dropped() {
    let manifest = crate::streams::manifest();
    let block = |tensor: u64, len: usize| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::All,
        values: Values::Floats(Floats { stored: Stored::F32, bytes: vec![0; 4 * len] }),
    };
    let blocks = [block(0, 32), block(1, 4), block(3, 1)];
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1));
    let mut stream = Vec::new();
    for step in 0..2 {
        encoder.update(&mut stream, &UpdateHeader::default().with_step(step), &manifest, &blocks).unwrap();
    }
    encoder.finish(&mut stream);
    let mut parts = Vec::new();
    for event in SliceReader::new(&stream, Limits::default()) {
        if let Event::Frame(info, Body::Update(part)) = event.unwrap() {
            let values = part.blocks[0].offset + part.blocks[0].len - part.blocks[0].values.len() as u64;
            parts.push((info.offset as usize, (info.offset + info.len()) as usize, values as usize));
        }
    }
    assert_eq!(parts.len(), 6);
    for &(start, end, values) in &parts[..3] {
        let mut wrong = stream.clone();
        // Numbers in a form that does not exist, with right checksums.
        wrong[values] = 9;
        let crc = crc32fast::hash(&wrong[start + HEADER_LEN..end]);
        wrong[start + 16..start + 20].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32fast::hash(&wrong[start..start + 20]);
        wrong[start + 20..start + 24].copy_from_slice(&crc.to_le_bytes());
        let saved = recover(&wrong, &Limits::default(), Vec::new()).unwrap();
        // The manifest and the parts of the second update.
        assert_eq!((saved.updates_kept, saved.frames_kept, saved.frames_dropped), (1, 4, 3));
        assert_eq!(read_all(&saved.stream, &small_limits()).unwrap(), 3);
    }
}

/// Headers whose bodies are wrong and overlap take the time that recovery spends on such bodies. It then
/// skips them whole, but nothing behind them.
#[test]
fn frames_behind_overlapping_wrong_bodies_are_recovered() {
    let (mut encoder, mut stream) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.private(&mut stream, FrameKind(0xf001), b"kept").unwrap();
    encoder.finish(&mut stream);
    let count = 400;
    let header = |i: u64| {
        let mut header = SYNC.to_vec();
        header.extend([1, 0xf0, 0, 0]);
        header.extend((24 * (count - i - 1)).to_le_bytes());
        header.extend([7; 4]);
        header.extend(crc32fast::hash(&header).to_le_bytes());
        header
    };
    let mut bytes: Vec<u8> = (0..count).flat_map(header).collect();
    bytes.extend(SYNC);
    bytes.extend(&stream[16..]);
    let saved = recover(&bytes, &Limits::default(), Vec::new()).unwrap();
    assert_eq!((saved.frames_kept, saved.bytes_lost, saved.had_end), (1, 24 * count + 4, true));
    assert_eq!(saved.stream, stream);
}

/// A useless frame between the parts of an update does not prevent the recovery of the update. The useless
/// frame is a part that occurs twice, or an index set whose manifest is lost.
#[test]
fn an_update_is_recovered_around_a_useless_frame() {
    let stream = crate::streams::sample();
    let mut frames = Vec::new();
    for event in SliceReader::new(&stream, Limits::default()) {
        if let Event::Frame(info, body) = event.unwrap() {
            let bytes = &stream[info.offset as usize..(info.offset + info.len()) as usize];
            frames.push((bytes, matches!(&body, Body::Update(part) if part.part == 1)));
        }
    }
    let second = frames.iter().position(|(_, second)| *second).expect("an update in parts");
    let other = TensorInfo::new("other", Dtype::F32, [4]);
    let other = Arc::new(Manifest::new(vec![other]).unwrap());
    let (scope, support) = (Scope::Tensor(0), Support::Sparse(Sparse { positions: vec![1] }));
    let set = IndexSet { manifest: other.id(), step: 0, leader: 0, world: 0, scope, support };
    let mut lost = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    encoder.manifest(&mut lost, &other);
    let start = lost.len();
    encoder.index_set(&mut lost, &set, &other, BlockOptions::default()).unwrap();
    for useless in [frames[second].0, frames[second + 1].0, &lost[start..]] {
        let before = frames[..=second].iter().flat_map(|(bytes, _)| *bytes);
        let after = frames[second + 1..].iter().flat_map(|(bytes, _)| *bytes);
        let corrupt: Vec<u8> =
            stream[..16].iter().chain(before).chain(useless).chain(after).copied().collect();
        let saved = recover(&corrupt, &Limits::default(), Vec::new()).unwrap();
        assert_eq!((saved.updates_kept, saved.frames_dropped), (2, 1));
        assert_eq!(read_all(&saved.stream, &small_limits()).unwrap(), 5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Corrupts bodies and corrects their checksums, so that the corruption reaches the layers below the
    /// frames.
    #[test]
    fn corruption_with_correct_checksums_is_an_error_or_a_value(seed: u64, flips in 1usize..6) {
        let stream = crate::streams::sample();
        let mut corrupt = stream.clone();
        let mut at = 16;
        let mut state = seed;
        while at < stream.len() {
            let len = u64::from_le_bytes(stream[at + 8..at + 16].try_into().unwrap()) as usize;
            let body = at + 24..at + 24 + len;
            for _ in 0..flips {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if len > 0 && state >> 62 == 0 {
                    corrupt[body.start + (state >> 20) as usize % len] ^= 1 << (state >> 17 & 7);
                }
            }
            let crc = crc32fast::hash(&corrupt[body.clone()]);
            corrupt[at + 16..at + 20].copy_from_slice(&crc.to_le_bytes());
            let crc = crc32fast::hash(&corrupt[at..at + 20]);
            corrupt[at + 20..at + 24].copy_from_slice(&crc.to_le_bytes());
            at = body.end;
        }
        if let Err(e) = read_all(&corrupt, &small_limits()) {
            let at = e.location().expect("an error in a stream has a location");
            prop_assert!(at.frame.is_some() && at.offset <= stream.len() as u64, "{e}");
        }
        let saved = recover(&corrupt, &small_limits(), Vec::new()).unwrap();
        read_all(&saved.stream, &small_limits()).unwrap();
    }

    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read_all(&bytes, &small_limits()).is_err());
    }
}
