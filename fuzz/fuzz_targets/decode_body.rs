#![no_main]
//! Any bodies of any kinds behind right checksums.

use gcodec::{Body, Event, Limits, SliceReader};
use libfuzzer_sys::fuzz_target;

fn crc(bytes: &[u8]) -> [u8; 4] {
    let table = |mut c: u32| {
        for _ in 0..8 {
            c = if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 };
        }
        c
    };
    let sum = bytes.iter().fold(!0u32, |c, &b| table((c ^ u32::from(b)) & 0xff) ^ c >> 8);
    (!sum).to_le_bytes()
}

fuzz_target!(|frames: Vec<(u8, &[u8])>| {
    let kinds = [0x0001u16, 0x0002, 0x0003, 0x0004, 0x0005, 0x8001, 0x8002, 0xf000];
    let mut stream = b"\x89GCU\r\n\x1a\n\x01\x00\x00\x00".to_vec();
    stream.extend(crc(&stream));
    for (kind, body) in frames {
        let mut header = b"\xd3gcf".to_vec();
        header.extend(kinds[usize::from(kind) % kinds.len()].to_le_bytes());
        header.extend(u16::from(kind >> 7).to_le_bytes());
        header.extend((body.len() as u64).to_le_bytes());
        header.extend(crc(body));
        header.extend(crc(&header));
        stream.extend(header);
        stream.extend(body);
    }
    let limits = Limits::default().with_max_alloc_bytes(1 << 22).with_max_elements(1 << 22).with_max_inflated_bytes(1 << 20);
    for event in SliceReader::new(&stream, limits) {
        match event {
            Ok(Event::Frame(_, Body::Update(part))) => drop(std::hint::black_box(part.decode_all())),
            Ok(event) => drop(std::hint::black_box(event)),
            Err(_) => break,
        }
    }
});
