use super::*;
use crate::bits::crc32;
use crate::block::{Block, Floats, Scope, Stored, Support, Values};
use crate::frame::{Manifest, TensorInfo, UpdateHeader};
use crate::stream::{Body, EncodeOptions, Encoder, SliceReader};
use crate::tensor::Dtype;
use std::cell::Cell;
use std::sync::Arc;

/// A finding: for a frame its number, offset and step if it is an update; for a fault its error's name,
/// its offset and length, and the number and the bytes of its frame's body.
#[derive(Debug, Clone, PartialEq)]
enum Found {
    Preamble,
    Frame(u64, u64, Option<u64>),
    Fault(&'static str, u64, u64, Option<(u64, usize)>),
}

fn found(finding: &Finding<'_>) -> Found {
    match finding {
        Finding::Event(Event::Preamble(_)) => Found::Preamble,
        Finding::Event(Event::Frame(info, body)) => {
            let step = if let Body::Update(part) = body { Some(part.header.step) } else { None };
            Found::Frame(info.number, info.offset, step)
        }
        Finding::Fault(fault) => {
            let frame = fault.frame.map(|frame| (frame.number, frame.body.len()));
            Found::Fault(fault.error.name(), fault.offset, fault.len, frame)
        }
    }
}

fn salvaged(bytes: &[u8], limits: &Limits) -> Vec<Found> {
    let mut all = Vec::new();
    let visit = |finding: Finding<'_>| {
        all.push(found(&finding));
        ControlFlow::Continue(())
    };
    salvage(bytes, limits, visit).unwrap();
    all
}

/// A frame with a correct header, of a kind that a reader skips.
fn frame(body: &[u8]) -> Vec<u8> {
    of_kind(0xf001, body)
}

fn of_kind(kind: u16, body: &[u8]) -> Vec<u8> {
    [&FrameHeader::of(FrameKind(kind), 0, body).to_bytes()[..], body].concat()
}

/// Private frames with these bodies, an index and an end.
fn stream(bodies: &[&[u8]]) -> Vec<u8> {
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
    bodies.iter().for_each(|body| encoder.private(&mut out, FrameKind(0xf001), body).unwrap());
    encoder.finish(&mut out);
    out
}

/// Two updates of three parts each, steps 1 and 2, without an index.
fn updates() -> Vec<u8> {
    let infos = ["a", "b", "c"].map(|name| TensorInfo::new(name, Dtype::F32, [1]));
    let manifest = Arc::new(Manifest::new(infos.to_vec()).unwrap());
    let blocks = [0, 1, 2].map(|tensor| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::All,
        values: Values::Floats(Floats { stored: Stored::F32, bytes: vec![0; 4] }),
    });
    let options = EncodeOptions::default().with_part_bytes(1).with_index(false);
    let (mut encoder, mut out) = (Encoder::new(options), Vec::new());
    for step in [1, 2] {
        encoder.update(&mut out, &UpdateHeader::default().with_step(step), &manifest, &blocks).unwrap();
    }
    encoder.finish(&mut out);
    out
}

/// The first byte of each frame, and the end of the stream.
fn offsets(stream: &[u8]) -> Vec<usize> {
    let offset = |event| match event {
        Event::Frame(info, _) => Some(info.offset as usize),
        Event::Preamble(_) => None,
    };
    let frames = SliceReader::new(stream, Limits::default()).filter_map(|event| offset(event.unwrap()));
    frames.chain([stream.len()]).collect()
}

fn flipped(stream: &[u8], at: usize) -> Vec<u8> {
    let mut out = stream.to_vec();
    out[at] ^= 1;
    out
}

/// `stream` with `bytes` instead of those from `start` to `end`.
fn replaced(stream: &[u8], start: usize, end: usize, bytes: &[u8]) -> Vec<u8> {
    [&stream[..start], bytes, &stream[end..]].concat()
}

/// The findings that [`Found::Fault`] and the frames from number `frame` of a stream give, if the frames
/// that follow the fault are numbered from `number` on, and moved by `moved` bytes.
fn after(frames: &[usize], frame: usize, number: usize, moved: i64) -> Vec<Found> {
    let rest = frames[..frames.len() - 1].iter().enumerate().skip(frame);
    rest.map(|(i, &at)| Found::Frame((i - frame + number) as u64, (at as i64 + moved) as u64, None)).collect()
}

/// Corrupt streams of frames that are no updates, and what is found in them after the preamble and the
/// first frame.
fn corrupt() -> Vec<(&'static str, Vec<u8>, Vec<Found>)> {
    let whole = stream(&[b"first", b"second", b"third"]);
    let at = offsets(&whole);
    let (from, to, len) = (at[1], at[2], (at[2] - at[1]) as u64);
    let fault = |name, offset: usize, len: u64, frame| Found::Fault(name, offset as u64, len, frame);
    let (end, end_len) = (at[4], whole.len() - at[4]);
    let with = |fault: Found, rest: Vec<Found>| [vec![fault], rest].concat();
    let false_sync = [&SYNC[..], &[0; 30]].concat();
    let unknown = of_kind(0x0123, &frame(b"inner"));
    let cut = replaced(&whole, from, whole.len(), &of_kind(0x0123, &[1; 100])[..34]);
    vec![
        ("nothing", whole.clone(), after(&at, 1, 1, 0)),
        (
            "a body",
            flipped(&whole, to - 1),
            with(fault("checksum_mismatch", from, len, Some((1, 6))), after(&at, 2, 2, 0)),
        ),
        (
            "a header",
            flipped(&whole, from + 5),
            with(fault("checksum_mismatch", from, len, None), after(&at, 2, 1, 0)),
        ),
        (
            "a missing byte",
            replaced(&whole, to - 1, to, b""),
            with(fault("checksum_mismatch", from, len - 1, None), after(&at, 2, 1, -1)),
        ),
        (
            "bytes between frames",
            replaced(&whole, from, from, b"between"),
            with(fault("bad_sync", from, 7, None), after(&at, 1, 1, 7)),
        ),
        (
            "a false sync word",
            replaced(&whole, from, from, &false_sync),
            with(fault("checksum_mismatch", from, 34, None), after(&at, 1, 1, 34)),
        ),
        (
            "a false sync word after a byte",
            replaced(&whole, from, from, &[b"x", &false_sync[..]].concat()),
            with(fault("bad_sync", from, 35, None), after(&at, 1, 1, 35)),
        ),
        (
            "an unknown frame with a frame inside, and bytes behind it",
            replaced(&whole, from, from, &[&unknown[..], b"??"].concat()),
            [
                vec![
                    fault("unsupported", from, unknown.len() as u64, Some((1, unknown.len() - HEADER_LEN))),
                    fault("bad_sync", from + unknown.len(), 2, None),
                ],
                after(&at, 1, 2, unknown.len() as i64 + 2),
            ]
            .concat(),
        ),
        ("an unknown frame that is cut", cut, vec![fault("unsupported", from, 34, None)]),
        (
            "the end",
            flipped(&whole, whole.len() - 1),
            [
                after(&at[..5], 1, 1, 0),
                vec![fault("checksum_mismatch", end, end_len as u64, Some((4, end_len - HEADER_LEN)))],
            ]
            .concat(),
        ),
        (
            "no end",
            whole[..end].to_vec(),
            [after(&at[..5], 1, 1, 0), vec![fault("truncated", end, 0, None)]].concat(),
        ),
        (
            "a body, and no end",
            flipped(&whole[..end], to - 1),
            [
                vec![fault("checksum_mismatch", from, len, Some((1, 6)))],
                after(&at[..5], 2, 2, 0),
                vec![fault("truncated", end, 0, None)],
            ]
            .concat(),
        ),
        (
            "a part of the end",
            whole[..whole.len() - 2].to_vec(),
            [after(&at[..5], 1, 1, 0), vec![fault("truncated", end, end_len as u64 - 2, None)]].concat(),
        ),
        (
            "bytes behind the end",
            [&whole[..], b"xy", &SYNC, b"12345"].concat(),
            [after(&at, 1, 1, 0), vec![fault("bad_sync", whole.len(), 11, None)]].concat(),
        ),
    ]
}

#[test]
fn faults_and_the_frames_around_them_have_their_places() {
    for (what, bytes, expected) in corrupt() {
        let start = vec![Found::Preamble, Found::Frame(0, PREAMBLE_LEN as u64, None)];
        let expected = [start, expected].concat();
        assert_eq!(salvaged(&bytes, &Limits::default()), expected, "{what}");
    }
}

#[test]
fn a_corrupt_preamble_hides_no_frame() {
    let whole = stream(&[b"first", b"second"]);
    let start = vec![Found::Fault("checksum_mismatch", 0, 16, None)];
    let expected = [start, after(&offsets(&whole), 0, 0, 0)].concat();
    assert_eq!(salvaged(&flipped(&whole, 9), &Limits::default()), expected);
    // Another version, and other files: nothing is searched for.
    let mut other = [&whole[..8], &[2, 0, 0, 0]].concat();
    other.extend(crc32(&other).to_le_bytes());
    other.extend(&whole[PREAMBLE_LEN..]);
    for (bytes, name) in [(&other[..], "unsupported"), (b"another kind of file, without frames", "bad_magic")]
    {
        assert_eq!(salvaged(bytes, &Limits::default()), [Found::Fault(name, 0, 0, None)]);
    }
}

#[test]
fn a_lost_part_hides_only_its_update() {
    let whole = updates();
    let at = offsets(&whole);
    let parts = |frames: std::ops::Range<usize>, moved: i64| -> Vec<Found> {
        let step = |i: usize| Some(1 + (i as u64 - 1) / 3).filter(|step| *step < 3);
        let step = |i: usize| if i == 0 { None } else { step(i) };
        let frame = |i: usize| (at[i] as i64 + moved) as u64;
        frames.map(|i| Found::Frame(i as u64, frame(i), step(i))).collect()
    };
    let renumbered = |found: Vec<Found>, by: i64| -> Vec<Found> {
        let renumber = |found| match found {
            Found::Frame(number, offset, step) => Found::Frame((number as i64 + by) as u64, offset, step),
            other => other,
        };
        found.into_iter().map(renumber).collect()
    };
    let len = |i: usize| at[i + 1] - at[i];
    let fault = |name, offset: usize, len: usize, number: Option<u64>| {
        let frame = number.map(|number| (number, len - HEADER_LEN));
        vec![Found::Fault(name, offset as u64, len as u64, frame)]
    };
    let other = flipped(&frame(b"other"), HEADER_LEN);
    let moved = other.len() as i64;
    let back = -(len(3) as i64);
    for (what, bytes, expected) in [
        (
            "the last part is lost",
            replaced(&whole, at[3], at[4], b""),
            [parts(0..3, 0), fault("misplaced", at[3], 0, None), renumbered(parts(4..8, back), -1)],
        ),
        (
            "a part is corrupt",
            flipped(&whole, at[3] - 1),
            [
                parts(0..2, 0),
                [
                    fault("checksum_mismatch", at[2], len(2), Some(2)),
                    fault("misplaced", at[3], len(3), Some(3)),
                ]
                .concat(),
                parts(4..8, 0),
            ],
        ),
        (
            "a part is repeated",
            replaced(&whole, at[3], at[3], &whole[at[2]..at[3]]),
            [
                parts(0..3, 0),
                fault("misplaced", at[3], len(2), Some(3)),
                renumbered(parts(3..8, len(2) as i64), 1),
            ],
        ),
        (
            "a corrupt frame stands between two parts",
            replaced(&whole, at[2], at[2], &other),
            [
                parts(0..2, 0),
                fault("checksum_mismatch", at[2], other.len(), Some(2)),
                renumbered(parts(2..8, moved), 1),
            ],
        ),
    ] {
        let expected = [vec![Found::Preamble], expected.concat()].concat();
        assert_eq!(salvaged(&bytes, &Limits::default()), expected, "{what}");
    }
}

/// Frames longer than the limit, of several chunks and of one byte more than a chunk.
#[test]
fn a_frame_beyond_the_limit_is_not_held_in_memory() {
    let limits = Limits::default().with_max_frame_bytes(1000);
    let whole = stream(&[b"first", b"second"]);
    let at = offsets(&whole);
    for len in [1025, CHUNK + 1, 4 * CHUNK] {
        let long = frame(&vec![0; len - HEADER_LEN]);
        let bytes = replaced(&whole, at[1], at[1], &long);
        let start = vec![
            Found::Preamble,
            Found::Frame(0, at[0] as u64, None),
            Found::Fault("limit", at[1] as u64, len as u64, Some((1, 0))),
        ];
        let expected = [start, after(&at, 1, 2, len as i64)].concat();
        assert_eq!(salvaged(&bytes, &limits), expected, "{len}");
        // A cut inside it is the same fault.
        assert_eq!(salvaged(&bytes[..at[1] + len - 10], &limits), expected[..3], "{len}");

        let mut salvage = begin(&bytes[..], &limits, PATIENCE, |_| ControlFlow::Continue(()));
        let mut most = 0;
        while let Step::Goes = salvage.step().unwrap() {
            let Input::Read { queue, .. } = &salvage.input else { unreachable!() };
            most = most.max(queue.memory());
        }
        assert!(most < 3 * CHUNK, "{most} bytes");
    }
}

fn begin<R: Read, F: FnMut(Finding<'_>) -> ControlFlow<()>>(
    inner: R,
    limits: &Limits,
    patience: u64,
    visit: F,
) -> Salvage<'static, R, F> {
    let salvage = Salvage::new(Parser::new(limits.clone()), Input::read(inner), visit);
    Salvage { patience, ..salvage }
}

#[test]
fn frames_are_found_at_the_end_of_what_is_read_at_once() {
    let whole = stream(&[b"first", b"second"]);
    let at = offsets(&whole);
    for len in [CHUNK - 10, CHUNK - 4, CHUNK - 2, CHUNK, CHUNK + 5] {
        let bytes = replaced(&whole, at[1], at[1], &vec![0; len]);
        let start = vec![
            Found::Preamble,
            Found::Frame(0, at[0] as u64, None),
            Found::Fault("bad_sync", at[1] as u64, len as u64, None),
        ];
        let expected = [start, after(&at, 1, 1, len as i64)].concat();
        assert_eq!(salvaged(&bytes, &Limits::default()), expected, "{len}");
    }
}

#[test]
fn the_visitor_ends_it_at_any_finding() {
    let lost = updates();
    let at = offsets(&lost);
    let lost = replaced(&lost, at[3], at[4], b"");
    let long = stream(&[b"first", &[0; 1001], b"third"]);
    let limits = Limits::default().with_max_frame_bytes(1000);
    for bytes in corrupt().into_iter().map(|(_, bytes, _)| bytes).chain([lost, long]) {
        let all = salvaged(&bytes, &limits);
        for most in 1..=all.len() {
            let mut visited = Vec::new();
            let visit = |finding: Finding<'_>| {
                visited.push(found(&finding));
                if visited.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            salvage(&bytes[..], &limits, visit).unwrap();
            assert_eq!(visited, all[..most]);
        }
    }
}

/// Each body of a missing byte is searched while four times the bytes read, and what is left of the first
/// allowance, are not less than its frame.
#[test]
fn the_search_in_refused_bodies_is_bounded_by_the_bytes_read() {
    let missing = |len: usize| frame(&vec![7; len]).split_last().unwrap().1.to_vec();
    let (first, next) = (frame(b"first"), frame(b"next"));
    let preamble = &stream(&[])[..PREAMBLE_LEN];
    // Returns whether the frames behind the two damaged ones are found.
    let finds = |patience: u64, lens: [usize; 2]| {
        let [one, two] = lens.map(missing);
        let bytes = [preamble, &first, &one, &next, &two, &next].concat();
        let places = [PREAMBLE_LEN + first.len() + one.len(), bytes.len() - next.len()];
        let mut offsets = Vec::new();
        let visit = |finding: Finding<'_>| {
            if let Finding::Event(Event::Frame(info, _)) = finding {
                offsets.push(info.offset as usize);
            }
            ControlFlow::Continue(())
        };
        begin(&bytes[..], &Limits::default(), patience, visit).run().unwrap();
        places.map(|place| offsets.contains(&place))
    };
    let one = 1000;
    let enough = (one + HEADER_LEN - 4 * (PREAMBLE_LEN + first.len())) as u64;
    // The allowance is spent on the first damaged frame, then grows by that and the frame behind it.
    let two = 4 * (one + HEADER_LEN - 1 + next.len()) - HEADER_LEN;
    assert_eq!(finds(enough, [one, two]), [true, true]);
    assert_eq!(finds(enough, [one, two + 1]), [true, false]);
    assert!(!finds(enough - 1, [one, 0])[0]);
}

/// Counts the bytes that are taken from a slice. Every other call is interrupted.
struct Counted<'a> {
    rest: &'a [u8],
    taken: &'a Cell<u64>,
    interrupt: bool,
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.interrupt = !self.interrupt;
        if self.interrupt {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let read = self.rest.read(out)?;
        self.taken.set(self.taken.get() + read as u64);
        Ok(read)
    }
}

#[test]
fn no_more_is_read_than_the_next_event_needs() {
    let whole = stream(&[b"first", &[0; 2000], b""]);
    let taken = Cell::new(0);
    let mut ends = Vec::new();
    let visit = |finding: Finding<'_>| {
        let Finding::Event(Event::Frame(info, _)) = finding else { return ControlFlow::Continue(()) };
        assert_eq!(taken.get(), info.offset + info.len());
        ends.push(taken.get());
        ControlFlow::Continue(())
    };
    salvage(Counted { rest: &whole, taken: &taken, interrupt: false }, &Limits::default(), visit).unwrap();
    assert_eq!((ends.len(), ends.last()), (5, Some(&(whole.len() as u64))));
}

#[test]
fn consumed_bytes_leave_the_buffer() {
    let inner = std::io::repeat(7);
    let mut input = Input::read(inner);
    for _ in 0..100 {
        input.fill(100).unwrap();
        input.consume(100);
        let Input::Read { queue, .. } = &input else { unreachable!() };
        assert!(queue.memory() <= 400, "{} bytes", queue.memory());
    }
}
