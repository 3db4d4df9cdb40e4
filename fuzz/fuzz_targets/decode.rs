#![no_main]
//! Any bytes, in any pieces: the slice reader and the push decoder agree.

use gcodec::{Body, Decoder, Event, Limits, SliceReader};
use libfuzzer_sys::fuzz_target;

fn limits() -> Limits {
    Limits::default().with_max_alloc_bytes(1 << 22).with_max_elements(1 << 22).with_max_inflated_bytes(1 << 20)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let mut by_slice = Vec::new();
    for event in SliceReader::new(bytes, limits()) {
        match event {
            Ok(Event::Frame(_, Body::Update(part))) => by_slice.push(format!("{:?}", part.decode_all())),
            Ok(event) => by_slice.push(format!("{event:?}")),
            Err(_) => break,
        }
    }
    let mut decoder = Decoder::new(limits());
    let mut by_pieces = Vec::new();
    'pieces: for piece in bytes.chunks(usize::from(size) + 1) {
        decoder.feed(piece);
        loop {
            match decoder.next_event() {
                Ok(None) => break,
                Ok(Some(Event::Frame(_, Body::Update(part)))) => by_pieces.push(format!("{:?}", part.decode_all())),
                Ok(Some(event)) => by_pieces.push(format!("{event:?}")),
                Err(_) => break 'pieces,
            }
        }
    }
    assert_eq!(by_slice, by_pieces);
});
