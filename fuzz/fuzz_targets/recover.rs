#![no_main]
//! What is recovered reads well, and holds every frame that was not damaged and whose companions were not.

use gcodec::block::{Set};
use gcodec::file::{Recovered, recover};
use gcodec::{Body, Event, SliceReader};
use gcodec_fuzz::frames;
use gcodec_fuzz::{allowance, begin, limits, memory};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/properties/arbitrary/mod.rs"]
mod arbitrary;
use arbitrary::Random;

gcodec_fuzz::mutate_streams!();

fuzz_target!(|bytes: &[u8]| {
    // Damage is what this is about: checksums work.
    begin(true);
    well(bytes);
    let Some(frames) = whole(bytes) else { return };
    let mut random = Random::of_seed(crc32fast::hash(bytes).into());
    let (damaged, hit) = damage(bytes, &frames, &mut random);
    let saved = well(&damaged);
    // In whatever order: what stood between the parts of an update stands before them then.
    let mut kept = frames::parse(&saved.stream);
    for frame in expected(&frames, &hit) {
        let raw = frames::parse(&[&[0; 16], &bytes[frame.at.clone()]].concat()).remove(0);
        let found = kept.iter().position(|k| *k == raw);
        let lost = || panic!("frame {} is lost, of {}; damaged: {hit:?}", frame.number, frames.len());
        kept.swap_remove(found.unwrap_or_else(lost));
    }
});

/// What is recovered, if it is well: it reads, it decodes, and recovered again it stays as it is.
fn well(bytes: &[u8]) -> Recovered {
    let limits = limits();
    // What is remembered, one decoded part, and the new stream.
    let allowed = allowance(2 * bytes.len(), 3);
    let saved =
        memory::within(allowed, "recovering", || recover(bytes, &limits)).expect("recovery does not fail");
    for event in SliceReader::new(&saved.stream, limits.clone()) {
        if let Event::Frame(_, Body::Update(part)) = event.expect("what was recovered reads well") {
            part.decode_all().expect("what was recovered decodes");
        }
    }
    let again = recover(&saved.stream, &limits).expect("recovery does not fail");
    assert_eq!(again.stream, saved.stream, "recovered twice");
    assert_eq!((again.frames_dropped, again.bytes_lost, again.had_end), (0, 0, true), "recovered twice");
    saved
}

/// A frame of a whole stream, and what it needs.
struct Whole {
    number: usize,
    at: std::ops::Range<usize>,
    kind: u16,
    /// The names of manifest and sets; for a definition, its own.
    needs: Vec<[u8; 32]>,
    defines: Option<[u8; 32]>,
    /// Number of the update that it is a part of.
    update: Option<usize>,
}

/// The frames of a stream in which all is well.
fn whole(bytes: &[u8]) -> Option<Vec<Whole>> {
    let mut frames = Vec::new();
    let mut updates = 0;
    for event in SliceReader::new(bytes, limits()) {
        let Event::Frame(info, body) = event.ok()? else { continue };
        let at = info.offset as usize..(info.offset + info.len()) as usize;
        let mut frame = Whole {
            number: frames.len(),
            at,
            kind: info.header.kind.0,
            needs: vec![],
            defines: None,
            update: None,
        };
        match body {
            Body::Manifest(manifest) => frame.defines = Some(manifest.id().0),
            Body::IndexSet(set, id, _) => {
                frame.needs.push(set.manifest.0);
                frame.defines = Some(id.0);
            }
            Body::Update(part) => {
                frame.needs.push(part.manifest.id().0);
                for block in part.decode_all().ok()? {
                    if let gcodec::Support::Set(Set { id }) = block.support {
                        frame.needs.push(id.0);
                    }
                }
                frame.update = Some(updates);
                updates += usize::from(part.last);
            }
            _ => {}
        }
        frames.push(frame);
    }
    Some(frames)
}

/// The stream damaged in up to three places, and which frames were hit.
fn damage(bytes: &[u8], frames: &[Whole], random: &mut Random<'_>) -> (Vec<u8>, Vec<usize>) {
    let mut hit = Vec::new();
    let mut pieces: Vec<Vec<u8>> = frames.iter().map(|f| bytes[f.at.clone()].to_vec()).collect();
    for _ in 0..1 + random.below(3) {
        let number = random.below(frames.len() as u64) as usize;
        let piece = &mut pieces[number];
        if piece.is_empty() || hit.contains(&number) {
            continue;
        }
        let at = random.below(piece.len() as u64) as usize;
        match random.below(5) {
            // Up to 32 bits in a row: a CRC notices all of that.
            0 => piece[at] ^= 1 << random.below(8),
            1 => {
                let end = piece.len().min(at + 4);
                let before = piece[at..end].to_vec();
                piece[at..end].fill(random.next() as u8);
                if piece[at..end] == before {
                    continue;
                }
            }
            2 => piece.truncate(at),
            3 => drop(piece.remove(at)),
            // Between frames: none is hit.
            _ => {
                let len = random.below(40);
                let garbage: Vec<u8> = random.bytes(len).into_iter().map(|b| b & 0x7f).collect();
                pieces[number].splice(0..0, garbage);
                continue;
            }
        }
        hit.push(number);
    }
    let damaged = bytes[..16].iter().copied().chain(pieces.into_iter().flatten()).collect();
    (damaged, hit)
}

/// The frames that must be there again: those that were not hit, whose definitions stand before them, and all parts of
/// whose update are there too.
fn expected<'f>(frames: &'f [Whole], hit: &[usize]) -> impl Iterator<Item = &'f Whole> {
    let mut known: Vec<[u8; 32]> = Vec::new();
    let mut broken = Vec::new();
    let mut kept = Vec::new();
    for frame in frames {
        if hit.contains(&frame.number) || !frame.needs.iter().all(|n| known.contains(n)) {
            broken.extend(frame.update);
            continue;
        }
        known.extend(frame.defines);
        // Index and end are made anew.
        if ![frames::INDEX, frames::END].contains(&frame.kind) {
            kept.push(frame);
        }
    }
    kept.into_iter().filter(move |frame| frame.update.is_none_or(|update| !broken.contains(&update)))
}
