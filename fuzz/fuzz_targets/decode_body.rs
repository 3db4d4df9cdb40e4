#![no_main]
//! Any bodies of any kinds behind right checksums, after a manifest that updates can refer to.

use std::sync::{Arc, LazyLock};

use gcodec::frame::FrameKind;
use gcodec::{Assembler, Body, Dtype, EncodeOptions, Encoder, Event, Limits, Manifest, SliceReader, TensorInfo};
use libfuzzer_sys::fuzz_target;

static MANIFEST: LazyLock<Arc<Manifest>> = LazyLock::new(|| {
    let tensors = [
        ("f32", Dtype::F32, vec![8, 4]),
        ("scalar", Dtype::F32, vec![]),
        ("empty", Dtype::F32, vec![0]),
        ("huge", Dtype::Bf16, vec![1 << 33]),
        ("i64", Dtype::I64, vec![3]),
        ("f4", Dtype::F4E2M1, vec![7]),
    ];
    let tensors = tensors.into_iter().map(|(name, dtype, shape)| TensorInfo::new(name, dtype, shape));
    Arc::new(Manifest::new(tensors.collect()).expect("a manifest"))
});

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
    let kinds = [
        FrameKind::UPDATE,
        FrameKind::INDEX_SET,
        FrameKind::MANIFEST,
        FrameKind::MODEL,
        FrameKind::METADATA,
        FrameKind::INDEX,
        FrameKind::END,
        FrameKind(0xf000),
    ];
    let mut stream = Vec::new();
    Encoder::new(EncodeOptions::default()).manifest(&mut stream, &MANIFEST);
    for (kind, rest) in frames {
        let flags = u16::from(kind >> 7);
        let kind = kinds[usize::from(kind) % kinds.len()];
        let mut body = Vec::new();
        if matches!(kind, FrameKind::UPDATE | FrameKind::INDEX_SET) {
            body.extend(MANIFEST.id().0);
        }
        body.extend(rest);
        let mut header = b"\xd3gcf".to_vec();
        header.extend(kind.0.to_le_bytes());
        header.extend(flags.to_le_bytes());
        header.extend((body.len() as u64).to_le_bytes());
        header.extend(crc(&body));
        header.extend(crc(&header));
        stream.extend(header);
        stream.extend(body);
    }
    let limits = Limits::default().with_max_alloc_bytes(1 << 22).with_max_elements(1 << 22).with_max_inflated_bytes(1 << 20);
    let mut assembler = Assembler::new(&MANIFEST, &limits, |name| name != "huge").expect("small tensors");
    for event in SliceReader::new(&stream, limits) {
        match event {
            Ok(Event::Frame(_, Body::Update(part))) => {
                drop(std::hint::black_box(part.decode_all()));
                drop(std::hint::black_box(assembler.apply(&part)));
            }
            Ok(event) => drop(std::hint::black_box(event)),
            Err(_) => break,
        }
    }
});
