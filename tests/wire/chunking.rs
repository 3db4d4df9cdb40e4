//! The events of a stream do not depend on how its bytes are split into pieces.

use std::io::Read;

use gcodec::stream::{Decoder, SliceReader};
use gcodec::{Limits, Reader};
use proptest::prelude::*;

fn by_slice(bytes: &[u8]) -> Vec<String> {
    SliceReader::new(bytes, Limits::default()).map(|e| format!("{:?}", e.unwrap())).collect()
}

fn by_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut decoder = Decoder::new(Limits::default());
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        while let Some(event) = decoder.next_event().unwrap() {
            events.push(format!("{event:?}"));
        }
        assert!(decoder.needed() > 0);
    }
    decoder.finish().unwrap();
    events
}

/// A source that returns a few bytes at a time, with interruptions between them.
struct Trickle<'a>(&'a [u8], usize, bool);

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.2 = !self.2;
        if self.2 {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let len = self.1.min(self.0.len()).min(buffer.len());
        buffer[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

#[test]
fn pieces_of_every_size_give_the_same_events() {
    let stream = crate::streams::sample();
    let expected = by_slice(&stream);
    for size in [1, 2, 3, 7, 23, 24, 25, 31, 64, 1000, stream.len()] {
        assert_eq!(by_pieces(stream.chunks(size)), expected, "{size}");
        let mut reader = Reader::new(Trickle(&stream, size, false), Limits::default());
        let mut events = Vec::new();
        while let Some(event) = reader.next_event().unwrap() {
            events.push(format!("{event:?}"));
        }
        assert_eq!(events, expected, "{size}");
    }
}

/// A source that times out before each piece of a few bytes, like a socket.
struct Late<'a>(Trickle<'a>, bool);

impl Read for Late<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        loop {
            match self.0.read(buffer) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

#[test]
fn a_reader_continues_after_a_timeout() {
    let stream = crate::streams::sample();
    let mut reader = Reader::new(Late(Trickle(&stream, 1000, false), false), Limits::default());
    let (mut events, mut timeouts) = (Vec::new(), 0);
    loop {
        match reader.next_event() {
            Ok(Some(event)) => events.push(format!("{event:?}")),
            Ok(None) => break,
            Err(gcodec::Error::Io(e)) if e.kind() == std::io::ErrorKind::WouldBlock => timeouts += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(events, by_slice(&stream));
    assert_eq!(timeouts, stream.len().div_ceil(1000) + 1);
}

#[test]
fn a_reader_reports_a_truncated_stream() {
    let stream = crate::streams::sample();
    let mut reader = Reader::new(&stream[..stream.len() - 1], Limits::default());
    let error = loop {
        match reader.next_event() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a truncated stream was accepted"),
            Err(e) => break e,
        }
    };
    assert_eq!(error.name(), "truncated");
}

proptest! {
    #[test]
    fn random_pieces_give_the_same_events(cuts in proptest::collection::btree_set(0usize..3000, 0..40)) {
        let stream = crate::streams::sample();
        let mut rest = stream.as_slice();
        let mut pieces = Vec::new();
        let mut before = 0;
        for cut in cuts.into_iter().filter(|c| *c < stream.len()) {
            let (piece, others) = rest.split_at(cut - before);
            pieces.push(piece);
            rest = others;
            before = cut;
        }
        pieces.push(rest);
        prop_assert_eq!(by_pieces(pieces.into_iter()), by_slice(&stream));
    }
}
