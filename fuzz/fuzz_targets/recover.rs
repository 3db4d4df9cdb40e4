#![no_main]
//! A recovered stream is valid, and has every intact frame whose definitions and other parts are intact.

use gcodec::block::Set;
use gcodec::file::{Recovered, recover};
use gcodec::stream::{Body, Event, SliceReader};
use gcodec_fuzz::frames;
use gcodec_fuzz::{allowance, begin, limits, memory};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/properties/arbitrary/mod.rs"]
mod arbitrary;
use arbitrary::Random;

gcodec_fuzz::mutate_streams!();

fuzz_target!(|bytes: &[u8]| {
    // Checksums are verified here, since corruption is the subject.
    begin(true);
    well(bytes);
    let Some(frames) = whole(bytes) else { return };
    let mut random = Random::of_seed(crc32fast::hash(bytes).into());
    let (damaged, hit) = damage(bytes, &frames, &mut random);
    let saved = well(&damaged);
    // In any order: frames between the parts of an update come before them in the result.
    let mut kept = frames::parse(&saved.stream);
    for frame in expected(&frames, &hit) {
        let raw = frames::parse(&[&[0; 16], &bytes[frame.at.clone()]].concat()).remove(0);
        let found = kept.iter().position(|k| *k == raw);
        let lost = || panic!("frame {} is lost, of {}; damaged: {hit:?}", frame.number, frames.len());
        kept.swap_remove(found.unwrap_or_else(lost));
    }
});

/// Returns the recovered stream, if valid: it decodes, and recovering it again does not change it.
fn well(bytes: &[u8]) -> Recovered<Vec<u8>> {
    let limits = limits();
    // Memory: the stored definitions, one decoded part, and the new stream.
    let allowed = allowance(2 * bytes.len(), 3);
    let saved = memory::within(allowed, "recovering", || recover(bytes, &limits, Vec::new()))
        .expect("recovery does not fail");
    for event in SliceReader::new(&saved.stream, limits.clone()) {
        if let Event::Frame(_, Body::Update(part)) = event.expect("what was recovered reads well") {
            part.decode_all().expect("what was recovered decodes");
        }
    }
    let again = recover(&saved.stream, &limits, Vec::new()).expect("recovery does not fail");
    assert_eq!(again.stream, saved.stream, "recovered twice");
    assert_eq!((again.frames_dropped, again.bytes_lost, again.had_end), (0, 0, true), "recovered twice");
    saved
}

/// A frame of an intact stream, and its dependencies.
struct Whole {
    number: usize,
    at: std::ops::Range<usize>,
    kind: u16,
    /// Ids of the manifest and sets that it uses; for a definition, its own id.
    needs: Vec<[u8; 32]>,
    defines: Option<[u8; 32]>,
    /// Number of the update that it belongs to.
    update: Option<usize>,
}

/// Returns the frames of a valid stream.
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
                    if let gcodec::block::Support::Set(Set { id }) = block.support {
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

/// Corrupts the stream at up to three places; returns it and the affected frames.
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
            // A burst of up to 32 bits, which a CRC always detects.
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
            // Between frames: none is affected.
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

/// Returns the frames that must be recovered: intact ones whose definitions come before them and whose
/// updates have all their parts.
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
        // Index and end are rewritten.
        if ![frames::INDEX, frames::END].contains(&frame.kind) {
            kept.push(frame);
        }
    }
    kept.into_iter().filter(move |frame| frame.update.is_none_or(|update| !broken.contains(&update)))
}
