//! A corrupt stream is read to its end: a fault hides nothing else.

use std::ops::ControlFlow;

use gcodec::stream::{Body, Event, Finding, SliceReader, salvage};
use gcodec::{Error, Limits};

/// What [`salvage`] finds: events and faults as text, and the steps of the whole updates.
#[derive(Debug, Default)]
struct Found {
    events: Vec<String>,
    faults: Vec<(u64, u64, Error)>,
    steps: Vec<u64>,
}

fn read(bytes: &[u8]) -> Found {
    let mut found = Found::default();
    salvage(Slow(bytes), &Limits::default(), |finding| {
        match finding {
            Finding::Event(event) => {
                if let Event::Frame(_, Body::Update(part)) = &event
                    && part.last
                {
                    found.steps.push(part.header.step);
                }
                found.events.push(format!("{event:?}"));
            }
            Finding::Fault(fault) => found.faults.push((fault.offset, fault.len, fault.error)),
            _ => {}
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

/// Gives seven bytes at a time.
struct Slow<'a>(&'a [u8]);

impl std::io::Read for Slow<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = self.0.len().min(out.len()).min(7);
        out[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

/// The frames of a stream: first byte, last byte, step if it is an update.
fn frames(stream: &[u8]) -> Vec<(u64, u64, Option<u64>)> {
    let mut frames = Vec::new();
    for event in SliceReader::new(stream, Limits::default()) {
        if let Event::Frame(info, body) = event.unwrap() {
            let step = if let Body::Update(part) = &body { Some(part.header.step) } else { None };
            frames.push((info.offset, info.offset + info.len() - 1, step));
        }
    }
    frames
}

#[test]
fn a_whole_stream_gives_the_readers_events() {
    let stream = crate::streams::sample();
    let found = read(&stream);
    let events: Vec<String> =
        SliceReader::new(&stream, Limits::default()).map(|e| format!("{:?}", e.unwrap())).collect();
    assert!(found.faults.is_empty(), "{:?}", found.faults);
    assert_eq!(found.events, events);
    assert_eq!(found.steps, [1, 2]);
}

#[test]
fn a_flipped_bit_hides_only_its_frame() {
    let stream = crate::streams::sample();
    let frames = frames(&stream);
    for bit in 0..stream.len() * 8 {
        let mut corrupt = stream.clone();
        corrupt[bit / 8] ^= 1 << (bit % 8);
        let found = read(&corrupt);
        let at = (bit / 8) as u64;
        if at < 16 {
            // Another version is not read as this one; a wrong checksum of the preamble hides nothing.
            assert_eq!(found.faults.len(), 1, "bit {bit}: {:?}", found.faults);
            continue;
        }
        let (first, last, step) = *frames.iter().find(|f| f.0 <= at && at <= f.1).unwrap();
        assert!(!found.faults.is_empty(), "bit {bit}");
        let (offset, len, _) = &found.faults[0];
        assert!(*offset <= at && (at < offset + len || *len == 0), "bit {bit}: {:?}", found.faults);
        let lost = |other: u64| step == Some(other);
        // The manifest and the index set come first: without them the updates mean nothing.
        let defines = first < frames.iter().find(|f| f.2.is_some()).unwrap().0;
        if !defines {
            let whole: Vec<u64> = [1, 2].into_iter().filter(|s| !lost(*s)).collect();
            assert_eq!(found.steps, whole, "bit {bit} in {first}..={last}: {:?}", found.faults);
        }
    }
}

#[test]
fn every_cut_is_one_fault_at_its_place() {
    let stream = crate::streams::sample();
    for len in 0..stream.len() {
        let found = read(&stream[..len]);
        let [(offset, _, error)] = &found.faults[..] else { panic!("cut {len}: {:?}", found.faults) };
        assert_eq!((error.name(), error.location().unwrap().offset), ("truncated", len as u64));
        assert!(*offset <= len as u64);
    }
}

#[test]
fn lost_repeated_and_exchanged_frames_are_faults() {
    let stream = crate::streams::sample();
    let frames: Vec<&[u8]> = frames(&stream).iter().map(|f| &stream[f.0 as usize..=f.1 as usize]).collect();
    let build = |order: &[usize]| {
        let body = order.iter().flat_map(|&i| frames[i]);
        stream[..16].iter().chain(body).copied().collect::<Vec<u8>>()
    };
    let all: Vec<usize> = (0..frames.len()).collect();
    for i in 0..all.len() - 1 {
        let mut lost = all.clone();
        lost.remove(i);
        assert!(!read(&build(&lost)).faults.is_empty(), "lost {i}");
        let mut repeated = all.clone();
        repeated.insert(i, i);
        assert!(!read(&build(&repeated)).faults.is_empty(), "repeated {i}");
        let mut exchanged = all.clone();
        exchanged.swap(i, i + 1);
        assert!(!read(&build(&exchanged)).faults.is_empty(), "exchanged {i}");
    }
}

#[test]
fn missing_bytes_hide_only_their_frame() {
    let stream = crate::streams::sample();
    let frames = frames(&stream);
    let (first, last, _) = *frames.iter().find(|f| f.2 == Some(1)).unwrap();
    for at in first..last {
        let mut short = stream.clone();
        short.remove(at as usize);
        let found = read(&short);
        assert_eq!(found.steps, [2], "byte {at}: {:?}", found.faults);
    }
}

#[test]
fn what_is_no_stream_is_refused_at_its_first_bytes() {
    /// Zeros without end.
    struct Zeros(u64);
    impl std::io::Read for Zeros {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.0 += out.len() as u64;
            assert!(self.0 < 1 << 20, "reads on and on");
            out.fill(0);
            Ok(out.len())
        }
    }
    let mut faults = Vec::new();
    salvage(Zeros(0), &Limits::default(), |finding| {
        if let Finding::Fault(fault) = finding {
            faults.push(fault.error.name());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(faults, ["bad_magic"]);
}

#[test]
fn a_frame_beyond_the_limit_is_left_out() {
    let stream = crate::streams::sample();
    let frames = frames(&stream);
    let longest = frames.iter().map(|f| f.1 - f.0 + 1 - 24).max().unwrap();
    let limits = Limits::default().with_max_frame_bytes(longest - 1);
    let mut faults = Vec::new();
    let mut events = 0;
    salvage(&stream[..], &limits, |finding| {
        match finding {
            Finding::Event(_) => events += 1,
            Finding::Fault(fault) => faults.push(fault.error.name()),
            _ => {}
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(faults[0], "limit");
    assert!(events > 3, "{events}");
}
