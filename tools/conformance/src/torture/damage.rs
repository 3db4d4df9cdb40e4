//! Truncated, changed and rearranged streams in every reader: refused with a position, or read unchanged.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use gcodec::block::{SetId, SupportId};
use gcodec::file::{File, recover};
use gcodec::frame::{FrameKind, ManifestId, UpdateHeader};
use gcodec::internal::{HEADER_LEN, PREAMBLE_LEN};
use gcodec::stream::{Body, Decoder, Event, SliceReader};
use gcodec::{Error, Limits, TensorBuf};
use rayon::prelude::*;

use super::{Section, sources, thousands};
use crate::Result;

/// Ways to corrupt a stream, in the order of the table.
const WAYS: &[&str] = &[
    "truncated after any byte",
    "any bit flipped",
    "bursts of 2 to 32 bits",
    "a frame dropped",
    "a frame repeated",
    "two frames exchanged",
    "a frame moved",
    "bodies of equal length exchanged",
    "bodies of different lengths exchanged",
];

/// Results of one reader, or of `recover`, for all cases of one way.
#[derive(Clone, Default)]
struct Tally {
    tried: u64,
    refused: u64,
    same: u64,
    /// Intact frames in the input, and saved ones.
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

/// A frame of the stream, and its dependencies.
struct Frame {
    bytes: Vec<u8>,
    at: usize,
    kind: FrameKind,
    /// The manifest that it defines or refers to.
    manifest: Option<ManifestId>,
    /// The index set that it defines.
    set: Option<SetId>,
    /// The index sets that its blocks use.
    on: Vec<SetId>,
    /// Step and number of a part of an update, and whether it is the last.
    part: Option<(u64, u64, bool)>,
}

/// A corrupt stream: its bytes, and its intact frames in order.
struct Case<'a> {
    name: String,
    bytes: Vec<u8>,
    frames: Vec<&'a Frame>,
}

/// Amount of testing.
struct Steps {
    /// Interval of the tested cases, except for bursts.
    cases: usize,
    /// Interval of the positions of bursts.
    bursts: usize,
    /// Number of patterns per burst.
    patterns: u64,
}

/// A stream, and its contents in each reader while it is intact.
struct Source {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    events: Vec<String>,
    /// Offsets of the ends of the segments.
    segments: Vec<usize>,
    updates: Vec<Content>,
}

/// An update in the index: its sender, manifest and tensors, or the reason why it has none.
type Content = (UpdateHeader, ManifestId, Result<Vec<(u64, TensorBuf)>, String>);

pub(crate) fn run(quick: bool) -> Result<Vec<Section>> {
    let mut readers = Section::new(
        "Corruption",
        format!(
            "Streams with every kind of frame, support and values are corrupted in every way, and \
             read from memory, in pieces of a few bytes, and through the index. *Detected*: refused \
             with a typed error that has a byte offset in the input and, after the preamble, the \
             frame. *Read unchanged*: read through the index, which does not touch the corrupt part; \
             or truncated just after an end frame, which is the stream before its last append. All \
             contents were compared. Bursts have each length from 2 to 32 bits: the first and the \
             last bit are flipped, and those between at random. {}.",
            if quick {
                "They begin at each 29th bit of the first stream and each 997th of the others; of \
                 the other cases of these, each 11th is tested"
            } else {
                "They begin at each bit of the first stream, with three patterns each, and at each \
                 7th bit of the others"
            }
        ),
        &["Stream", "Corruption", "tried", "detected", "read unchanged", "wrong"],
    );
    let mut saved = Section::new(
        "Recovery",
        "The same corrupt streams in `recover`. An intact frame was not touched, and neither were \
         its manifest, its index sets and the other parts of its update. All intact frames must be \
         saved, byte for byte and in order, and no others. The saved stream must be readable without \
         error.",
        &["Stream", "Corruption", "tried", "intact frames", "saved", "wrong"],
    );
    // Counts panics; the location of each is printed once.
    for (number, (name, bytes)) in sources::all()?.into_iter().enumerate() {
        let source = Source::new(bytes)?;
        println!("   {name}: {} bytes, {} frames", source.bytes.len(), source.frames.len());
        // The first stream has a frame of every kind: all cases are tested, in the quick form without most
        // bursts.
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

    /// Tests the cases of a way.
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
                        // Another start for each length, so that the steps miss nothing systematically.
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

    /// Returns the stream with some changed bytes.
    fn changed(&self, name: String, change: impl FnOnce(&mut [u8])) -> Case<'_> {
        let mut bytes = self.bytes.clone();
        change(&mut bytes);
        let whole = self.frames.iter().filter(|f| bytes[f.at..f.at + f.bytes.len()] == f.bytes).collect();
        Case { name, bytes, frames: whole }
    }

    /// Flips the first and the last bit, and the bits between with a generator that the position seeds.
    fn burst(&self, start: usize, len: usize, pattern: u64) -> Case<'_> {
        let middle = u64::from(gcodec::compress::random::word(pattern, len as u64, start as u64));
        let flips = (middle & ((1 << (len - 1)) - 1)) | 1 | 1 << (len - 1);
        self.changed(format!("{len} bits from {start}"), |bytes| {
            let flipped = (0..len).filter(|i| flips >> i & 1 == 1).map(|i| start + i);
            flipped.for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
        })
    }

    /// Returns the frames in another order; `None` if the stream stays the same.
    fn reordered(&self, name: String, order: impl IntoIterator<Item = usize>) -> Option<Case<'_>> {
        let frames: Vec<&Frame> = order.into_iter().map(|i| &self.frames[i]).collect();
        let mut bytes = self.bytes[..PREAMBLE_LEN].to_vec();
        frames.iter().for_each(|f| bytes.extend_from_slice(&f.bytes));
        (bytes != self.bytes).then_some(Case { name, bytes, frames })
    }

    /// Exchanges the bodies of two frames, with unchanged headers.
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

    /// Whether a case is the stream before its last segments were appended.
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

    /// Feeds pieces whose length depends on the case; the error must equal that of reading the whole.
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

    /// Returns the number of saved frames, which must be all that can be saved.
    fn recovered(&self, case: &Case<'_>) -> Result<u64, String> {
        let saved = recover(&case.bytes, &limits(), Vec::new()).map_err(|e| e.to_string())?;
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
            return Err(format!("{} frames saved, {} reported", found.len(), saved.frames_kept));
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

/// Returns true if the stream was refused with a position, false if it was read unchanged, or an error.
type Verdict = Result<bool, String>;

/// Checks that an error is typed and has a position within the input; after the preamble also a frame, for
/// sequential readers.
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

/// Reads a whole stream and decodes every block.
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

/// Reads all tensors of all updates through the index. Where a base or model is missing the error says so,
/// as with the intact stream.
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

/// Returns the frames of a corrupt stream that are complete: their definitions come before them, and the
/// parts of an update follow each other.
fn savable<'a>(whole: &[&'a Frame]) -> Vec<&'a Frame> {
    let (mut manifests, mut sets) = (HashSet::new(), HashSet::new());
    let mut out: Vec<&Frame> = Vec::new();
    // Parts of an update that may be complete.
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
