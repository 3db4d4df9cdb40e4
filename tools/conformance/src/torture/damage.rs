//! Streams that were cut off, changed and put together wrongly, by every reader: refused with a place, or read as they were.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use gcodec::block::{SetId, SupportId};
use gcodec::file::recover;
use gcodec::frame::{FrameKind, HEADER_LEN, ManifestId, PREAMBLE_LEN};
use gcodec::{Body, Decoder, Error, Event, File, Limits, SliceReader, TensorBuf, UpdateHeader};
use rayon::prelude::*;

use super::{Section, sources, thousands};
use crate::Result;

/// Ways to damage a stream, in the order of the table.
const WAYS: &[&str] = &[
    "cut off after any byte",
    "any one bit flipped",
    "bursts of 2 to 32 bits",
    "a frame dropped",
    "a frame twice",
    "two frames exchanged",
    "a frame moved",
    "bodies of equal length exchanged",
    "bodies of other lengths exchanged",
];

/// What one reader, or `recover`, made of all cases of one way.
#[derive(Clone, Default)]
struct Tally {
    tried: u64,
    refused: u64,
    same: u64,
    /// Undamaged frames there were to save, and those saved.
    whole: u64,
    saved: u64,
    wrong: Vec<String>,
}

impl Tally {
    fn and(mut self, mut other: Self) -> Self {
        self.tried += other.tried;
        self.refused += other.refused;
        self.same += other.same;
        self.whole += other.whole;
        self.saved += other.saved;
        self.wrong.append(&mut other.wrong);
        self
    }
}

/// A frame of the stream, and what it needs.
struct Frame {
    bytes: Vec<u8>,
    at: usize,
    kind: FrameKind,
    /// The manifest that it is, or refers to.
    manifest: Option<ManifestId>,
    /// The index set that it is.
    set: Option<SetId>,
    /// The index sets that its blocks are on.
    on: Vec<SetId>,
    /// Step, number and whether it is the last, of a part of an update.
    part: Option<(u64, u64, bool)>,
}

/// One damaged stream: its bytes, and the undamaged frames in it, in order.
struct Case<'a> {
    name: String,
    bytes: Vec<u8>,
    frames: Vec<&'a Frame>,
}

/// How much of it all is tried.
struct Steps {
    /// Every so-manyth case, but for bursts.
    cases: usize,
    /// Every so-manyth place of a burst.
    bursts: usize,
    /// Patterns for each burst.
    patterns: u64,
}

/// A stream, and what its readers make of it while it is whole.
struct Source {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    events: Vec<String>,
    /// Bytes up to the end of each segment.
    segments: Vec<usize>,
    updates: Vec<Content>,
}

/// An update as the index gives it: whose it is, of which manifest, and its tensors, or why it has none.
type Content = (UpdateHeader, ManifestId, Result<Vec<(u64, TensorBuf)>, String>);

pub(crate) fn run(quick: bool) -> Result<Vec<Section>> {
    let mut readers = Section::new(
        "Damage",
        format!(
            "Streams of every kind of frame, of support and of values, damaged in every way; read from memory, in pieces of a few bytes, and through the index. Detected: \
             refused with a typed error that names a byte of the input and, behind the preamble, the frame. Read as it was: by the index, where what is damaged is not \
             asked for, and streams cut off just after an end frame, which are what they were before the last append; all contents were compared. Bursts have each length from 2 to 32, their first \
             and last bit flipped and those between by a generator; {}.",
            if quick {
                "they begin at each 29th bit of the first stream, each 997th of the others, of whose other cases each 11th is tried"
            } else {
                "they begin at each bit of the first stream, with three patterns each, and at each 7th of the others"
            }
        ),
        &["Stream", "Damage", "tried", "detected", "read as it was", "wrong"],
    );
    let mut saved = Section::new(
        "Recovery",
        "The same damaged streams by `recover`. Whole frames: those that were not touched, whose manifest, index sets and other parts were not touched \
         either. Saved must be all of them, byte for byte and in order, and nothing else; and what is saved must be read without error.",
        &["Stream", "Damage", "tried", "whole frames", "saved", "wrong"],
    );
    // Panics are caught and counted; where they came from is printed once.
    for (number, (name, bytes)) in sources::all()?.into_iter().enumerate() {
        let source = Source::new(bytes)?;
        println!("   {name}: {} bytes, {} frames", source.bytes.len(), source.frames.len());
        // Of the first stream, which has a frame of every kind, all is tried, in the quick form but for most bursts.
        let steps = match (quick, number) {
            (false, 0) => Steps { cases: 1, bursts: 1, patterns: 3 },
            (false, _) => Steps { cases: 1, bursts: 7, patterns: 1 },
            (true, 0) => Steps { cases: 1, bursts: 29, patterns: 1 },
            (true, _) => Steps { cases: 11, bursts: 997, patterns: 1 },
        };
        for (way, damage) in WAYS.iter().enumerate() {
            let stream_name = || format!("{name} ({} bytes)", thousands(source.bytes.len() as u64));
            let (reading, recovering) = source.all_cases(way, &steps);
            for (section, tally) in [(&mut readers, &reading), (&mut saved, &recovering)] {
                for wrong in tally.wrong.iter().take(5) {
                    section.wrong(format!("{name}: {damage}: {wrong}"));
                }
            }
            let wrong = |t: &Tally| thousands(t.wrong.len() as u64);
            let cells = [reading.tried, reading.refused, reading.same].map(thousands);
            readers
                .row([stream_name(), damage.to_string()].into_iter().chain(cells).chain([wrong(&reading)]));
            let cells = [recovering.tried, recovering.whole, recovering.saved].map(thousands);
            saved.row(
                [stream_name(), damage.to_string()].into_iter().chain(cells).chain([wrong(&recovering)]),
            );
        }
    }
    Ok(vec![readers, saved])
}

fn limits() -> Limits {
    Limits::default()
        .with_max_alloc_bytes(1 << 20)
        .with_max_elements(1 << 20)
        .with_max_inflated_bytes(1 << 20)
}

impl Source {
    fn new(bytes: Vec<u8>) -> Result<Self> {
        let (mut frames, mut segments) = (Vec::new(), Vec::new());
        for event in SliceReader::new(&bytes, limits()) {
            let Event::Frame(info, body) = event? else { continue };
            let range = info.offset as usize..(info.offset + info.len()) as usize;
            let mut frame = Frame {
                bytes: bytes[range.clone()].to_vec(),
                at: range.start,
                kind: info.header.kind,
                manifest: None,
                set: None,
                on: Vec::new(),
                part: None,
            };
            match body {
                Body::Manifest(manifest) => frame.manifest = Some(manifest.id()),
                Body::IndexSet(set, id, _) => (frame.manifest, frame.set) = (Some(set.manifest), Some(id)),
                Body::Update(part) => {
                    frame.manifest = Some(part.manifest.id());
                    frame.part = Some((part.header.step, part.part, part.last));
                    let on_sets = part.blocks.iter().filter(|b| b.support_id == SupportId::SET);
                    frame.on = on_sets.filter_map(|b| b.support.try_into().ok().map(SetId)).collect();
                }
                Body::End(_) => segments.push(range.end),
                _ => {}
            }
            frames.push(frame);
        }
        let events = read_all(&bytes).map_err(|e| format!("a source is refused: {e}"))?;
        let updates = contents(&bytes).map_err(|e| format!("a source is refused: {e}"))?;
        Ok(Self { bytes, frames, events, segments, updates })
    }

    /// Tries the cases of a way.
    fn all_cases<'a>(&'a self, way: usize, steps: &Steps) -> (Tally, Tally) {
        let Steps { cases, bursts: step, patterns } = *steps;
        let bits = self.bytes.len() * 8;
        let n = self.frames.len();
        let none = (Tally::default(), Tally::default());
        let both = |a: (Tally, Tally), b: (Tally, Tally)| (a.0.and(b.0), a.1.and(b.1));
        let each = |count: usize, case: &(dyn Fn(usize) -> Option<Case<'a>> + Sync)| {
            let tried = (0..count).into_par_iter().filter_map(case).map(|case| self.try_case(&case));
            tried.reduce(|| none.clone(), both)
        };
        let some = |count: usize, case: &(dyn Fn(usize) -> Option<Case<'a>> + Sync)| {
            each(count.div_ceil(cases), &|i| case(i * cases))
        };
        match way {
            0 => some(self.bytes.len(), &|len| Some(self.cut(len))),
            1 => {
                some(bits, &|bit| Some(self.changed(format!("bit {bit}"), |b| b[bit / 8] ^= 1 << (bit % 8))))
            }
            2 => (2..=32)
                .flat_map(|len| (0..patterns).map(move |p| (len, p)))
                .map(|(len, pattern)| {
                    // A burst of two bits has one pattern.
                    let pattern = if len == 2 && pattern > 0 { return none.clone() } else { pattern };
                    let starts = (bits - len + 1).div_ceil(step);
                    each(starts, &|i| {
                        // Another start for each length, so that steps miss nothing systematically.
                        let start = i * step + len * 7 % step;
                        (start + len <= bits).then(|| self.burst(start, len, pattern))
                    })
                })
                .fold(none.clone(), both),
            3 => some(n, &|i| self.reordered(format!("without {i}"), (0..n).filter(|&j| j != i))),
            4 => some(n, &|i| {
                self.reordered(format!("{i} twice"), (0..n).flat_map(|j| [j].repeat(1 + usize::from(i == j))))
            }),
            5 => some(n * n, &|ij| {
                let (a, b) = (ij / n, ij % n);
                let exchanged = |j| {
                    if j == a {
                        b
                    } else if j == b {
                        a
                    } else {
                        j
                    }
                };
                (a < b).then(|| self.reordered(format!("{a} and {b}"), (0..n).map(exchanged)))?
            }),
            6 => some(n * n, &|ij| {
                let (from, to) = (ij / n, ij % n);
                let mut order: Vec<usize> = (0..n).collect();
                let moved = order.remove(from);
                order.insert(to, moved);
                // Neighbours were exchanged already.
                (from.abs_diff(to) > 1).then(|| self.reordered(format!("{from} to {to}"), order))?
            }),
            _ => some(n * n, &|ij| self.bodies(ij / n, ij % n, way == 7)),
        }
    }

    fn cut(&self, len: usize) -> Case<'_> {
        let whole = self.frames.iter().filter(|f| f.at + f.bytes.len() <= len);
        Case { name: format!("{len} bytes"), bytes: self.bytes[..len].to_vec(), frames: whole.collect() }
    }

    /// The stream with some of its bytes changed in their places.
    fn changed(&self, name: String, change: impl FnOnce(&mut [u8])) -> Case<'_> {
        let mut bytes = self.bytes.clone();
        change(&mut bytes);
        let whole = self.frames.iter().filter(|f| bytes[f.at..f.at + f.bytes.len()] == f.bytes).collect();
        Case { name, bytes, frames: whole }
    }

    /// The first and the last bit flipped, those between as a generator says, seeded by the place.
    fn burst(&self, start: usize, len: usize, pattern: u64) -> Case<'_> {
        let middle = u64::from(gcodec::random::word(pattern, len as u64, start as u64));
        let flips = (middle & ((1 << (len - 1)) - 1)) | 1 | 1 << (len - 1);
        self.changed(format!("{len} bits from {start}"), |bytes| {
            let flipped = (0..len).filter(|i| flips >> i & 1 == 1).map(|i| start + i);
            flipped.for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
        })
    }

    /// The frames in another order; `None` if that makes no difference.
    fn reordered(&self, name: String, order: impl IntoIterator<Item = usize>) -> Option<Case<'_>> {
        let frames: Vec<&Frame> = order.into_iter().map(|i| &self.frames[i]).collect();
        let mut bytes = self.bytes[..PREAMBLE_LEN].to_vec();
        frames.iter().for_each(|f| bytes.extend_from_slice(&f.bytes));
        (bytes != self.bytes).then_some(Case { name, bytes, frames })
    }

    /// The bodies of two frames exchanged, their headers left.
    fn bodies(&self, a: usize, b: usize, equal: bool) -> Option<Case<'_>> {
        let (one, two) = (self.frames.get(a)?, self.frames.get(b)?);
        let bodies_differ = one.bytes[HEADER_LEN..] != two.bytes[HEADER_LEN..];
        if a >= b || !bodies_differ || (one.bytes.len() == two.bytes.len()) != equal {
            return None;
        }
        let mut bytes = self.bytes[..PREAMBLE_LEN].to_vec();
        for (i, frame) in self.frames.iter().enumerate() {
            let body = if i == a {
                two
            } else if i == b {
                one
            } else {
                frame
            };
            bytes.extend_from_slice(&frame.bytes[..HEADER_LEN]);
            bytes.extend_from_slice(&body.bytes[HEADER_LEN..]);
        }
        let whole = self.frames.iter().enumerate().filter(|(i, _)| *i != a && *i != b);
        Some(Case { name: format!("{a} and {b}"), bytes, frames: whole.map(|(_, f)| f).collect() })
    }

    fn try_case(&self, case: &Case<'_>) -> (Tally, Tally) {
        let mut reading = Tally::default();
        let readers: [(&str, &(dyn Fn() -> Verdict + Sync)); 3] = [
            ("from memory", &|| self.whole(case)),
            ("in pieces", &|| self.in_pieces(case)),
            ("by the index", &|| self.by_index(case)),
        ];
        for (name, reader) in readers {
            reading.tried += 1;
            match catch_unwind(AssertUnwindSafe(reader)) {
                Ok(Ok(true)) => reading.refused += 1,
                Ok(Ok(false)) => reading.same += 1,
                Ok(Err(wrong)) => reading.wrong.push(format!("{}: {name}: {wrong}", case.name)),
                Err(_) => reading.wrong.push(format!("{}: {name}: panicked", case.name)),
            }
        }
        let mut saving = Tally { tried: 1, ..Tally::default() };
        match catch_unwind(AssertUnwindSafe(|| self.recovered(case))) {
            Ok(Ok(frames)) => (saving.whole, saving.saved) = (frames, frames),
            Ok(Err(wrong)) => saving.wrong.push(format!("{}: {wrong}", case.name)),
            Err(_) => saving.wrong.push(format!("{}: panicked", case.name)),
        }
        (reading, saving)
    }

    /// Whether a case is the stream as it was before its last segments were appended.
    fn is_earlier(&self, case: &Case<'_>) -> bool {
        self.segments.contains(&case.bytes.len()) && self.bytes.starts_with(&case.bytes)
    }

    fn whole(&self, case: &Case<'_>) -> Verdict {
        match SliceReader::new(&case.bytes, limits()).find_map(gcodec::Result::err) {
            Some(error) => has_place(&error, case, true),
            None => match read_all(&case.bytes) {
                Ok(events) if self.is_earlier(case) && self.events.starts_with(&events) => Ok(false),
                Ok(_) => Err("accepted".into()),
                Err(error) => has_place(&error, case, true),
            },
        }
    }

    /// Pieces of a length that depends on the case; the error must be the one that a reader of the whole gives.
    fn in_pieces(&self, case: &Case<'_>) -> Verdict {
        let whole = SliceReader::new(&case.bytes, limits()).find_map(gcodec::Result::err);
        let piece = [1, 7, 23, 24, 25, 61][case.name.len() % 6] + case.bytes.len() % 5;
        let mut decoder = Decoder::new(limits());
        let mut read = || -> gcodec::Result<()> {
            for bytes in case.bytes.chunks(piece) {
                decoder.feed(bytes);
                while decoder.next_event()?.is_some() {}
            }
            decoder.finish()
        };
        match (read(), whole) {
            (Err(error), Some(whole)) if error.to_string() == whole.to_string() => {
                has_place(&error, case, true)
            }
            (Ok(()), None) if self.is_earlier(case) => Ok(false),
            (pieces, whole) => Err(format!("in pieces {pieces:?}, from memory {whole:?}")),
        }
    }

    fn by_index(&self, case: &Case<'_>) -> Verdict {
        match contents(&case.bytes) {
            Err(error) => has_place(&error, case, false),
            Ok(updates) if updates == self.updates => Ok(false),
            Ok(updates) if self.is_earlier(case) && self.updates.starts_with(&updates) => Ok(false),
            Ok(_) => Err("accepted with other contents".into()),
        }
    }

    /// How many frames were saved, which must be those that can be.
    fn recovered(&self, case: &Case<'_>) -> Result<u64, String> {
        let saved = recover(&case.bytes, &limits()).map_err(|e| e.to_string())?;
        let mut found = Vec::new();
        for event in SliceReader::new(&saved.stream, limits()) {
            let event = event.map_err(|e| format!("what was saved is refused: {e}"))?;
            let Event::Frame(info, body) = event else { continue };
            if let Body::Update(part) = &body {
                part.decode_all().map_err(|e| format!("what was saved does not decode: {e}"))?;
            }
            if !matches!(info.header.kind, FrameKind::INDEX | FrameKind::END) {
                found.push(&saved.stream[info.offset as usize..(info.offset + info.len()) as usize]);
            }
        }
        let expected = savable(&case.frames);
        if found.len() as u64 != saved.frames_kept {
            return Err(format!("{} frames saved, {} said", found.len(), saved.frames_kept));
        }
        if found.iter().ne(expected.iter().map(|f| &f.bytes)) {
            let kinds = expected.iter().map(|f| f.kind.name().unwrap_or("?"));
            return Err(format!(
                "{} frames saved, not these {}: {:?}",
                found.len(),
                expected.len(),
                kinds.collect::<Vec<_>>()
            ));
        }
        contents(&saved.stream).map_err(|e| format!("what was saved has no good index: {e}"))?;
        Ok(found.len() as u64)
    }
}

/// True: refused with a place; false: read as it was; an error: what is wrong.
type Verdict = Result<bool, String>;

/// An error must be typed and say where, inside the input; behind the preamble also in which frame, if a reader goes through
/// all of them.
fn has_place(error: &Error, case: &Case<'_>, in_order: bool) -> Verdict {
    let Some(at) = error.location() else { return Err(format!("no place: {error}")) };
    if at.offset > case.bytes.len() as u64 {
        return Err(format!("a place outside: {error}"));
    }
    if in_order && at.offset >= PREAMBLE_LEN as u64 && at.frame.is_none() {
        return Err(format!("no frame: {error}"));
    }
    Ok(true)
}

/// All that a stream says, and every block of it.
fn read_all(bytes: &[u8]) -> gcodec::Result<Vec<String>> {
    let mut events = Vec::new();
    for event in SliceReader::new(bytes, limits()) {
        let event = event?;
        events.push(format!("{event:?}"));
        if let Event::Frame(_, Body::Update(part)) = event {
            events.push(format!("{:?}", part.decode_all()?));
        }
    }
    Ok(events)
}

/// All tensors of all updates, through the index. What needs a base or a model says so, as it does when nothing is damaged.
fn contents(bytes: &[u8]) -> gcodec::Result<Vec<Content>> {
    let file = File::open(bytes, limits())?;
    let updates = file.updates().iter().enumerate().map(|(number, update)| {
        let tensors = match file.tensors(number, |_| true, &BTreeMap::new()) {
            Err(e @ Error::Input(_)) => Err(e.to_string()),
            tensors => Ok(tensors?),
        };
        Ok((update.header.clone(), update.manifest.id(), tensors))
    });
    updates.collect()
}

/// The frames of a damaged stream that are of use without the others: their definitions stand before them, and the parts of
/// an update follow each other.
fn savable<'a>(whole: &[&'a Frame]) -> Vec<&'a Frame> {
    let (mut manifests, mut sets) = (HashSet::new(), HashSet::new());
    let mut out: Vec<&Frame> = Vec::new();
    // The parts of an update that may be whole.
    let mut open: Vec<&Frame> = Vec::new();
    for &frame in whole {
        if matches!(frame.kind, FrameKind::INDEX | FrameKind::END) {
            continue;
        }
        if let (FrameKind::MANIFEST, Some(id)) = (frame.kind, frame.manifest) {
            manifests.insert(id);
        }
        let defined = frame.manifest.is_none_or(|id| manifests.contains(&id));
        let Some((step, number, last)) = frame.part else {
            if defined {
                sets.extend(frame.set);
                out.push(frame);
            }
            continue;
        };
        let begun = open.first().and_then(|f| Some((f.part?.0, f.manifest)));
        let follows = begun == Some((step, frame.manifest)) && number == open.len() as u64;
        if !defined || !(follows || number == 0) {
            continue;
        }
        if !follows {
            open.clear();
        }
        if !frame.on.iter().all(|id| sets.contains(id)) {
            open.clear();
            continue;
        }
        open.push(frame);
        if last {
            out.append(&mut open);
        }
    }
    out
}
