//! Memory of encoding and decoding beyond their input and output, measured by a counting allocator: a
//! constant plus a few bytes per kept element.

#![allow(unsafe_code)] // an allocator that counts

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use gcodec::block::{
    Block, BlockOptions, Constant, Floats, Groups, ScaleFormat, Scales, Scope, Sparse, Stored, Support,
    Values,
};
use gcodec::compress::{Input, Options, compress, random};
use gcodec::frame::{FrameKind, Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf};

/// An allocator that counts the bytes in use, and their maximum.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), SeqCst) + layout.size();
        MOST.fetch_max(used, SeqCst);
        // SAFETY: the caller fulfils the same conditions that `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), SeqCst) + layout.size();
        MOST.fetch_max(used, SeqCst);
        // SAFETY: the caller fulfils the same conditions that `System` requires.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller fulfils the same conditions that `System` requires.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the result of `f`, and the maximum of bytes in use during `f` above those in use before, including
/// its result.
fn measured<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = USED.load(SeqCst);
    MOST.store(before, SeqCst);
    let result = f();
    (result, MOST.load(SeqCst) - before)
}

const MIB: usize = 1 << 20;
const ELEMENTS: usize = 16 << 20;

fn manifest() -> Arc<Manifest> {
    let info = TensorInfo::new("w", Dtype::F32, vec![ELEMENTS as u64 / 4096, 4096]);
    Arc::new(Manifest::new(vec![info]).unwrap())
}

fn tensor() -> TensorBuf {
    let mut words = vec![0; ELEMENTS];
    random::words(5, 0, 0, &mut words);
    let values: Vec<f32> = words.iter().map(|&w| (w as f32 / 4294967296.0 - 0.4999).powi(3)).collect();
    TensorBuf::from_f32(vec![ELEMENTS as u64 / 4096, 4096], &values).unwrap()
}

fn encode(spec: &str, manifest: &Arc<Manifest>, tensor: &TensorBuf) -> Vec<u8> {
    let codec: Codec = spec.parse().unwrap();
    let input = Input { tensor: 0, name: "w", view: tensor.view(), base: None };
    let blocks = compress(&[input], &[codec], &Options::default(), None).unwrap();
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut out = Vec::new();
    encoder.update(&mut out, &UpdateHeader::default(), manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    out
}

fn decode(bytes: &[u8], manifest: &Arc<Manifest>, buffers: Vec<TensorBuf>) -> Vec<(u64, TensorBuf)> {
    let mut assembler = Assembler::with_buffers(manifest, (0..).zip(buffers)).unwrap();
    let mut reader = SliceReader::new(bytes, Limits::default());
    while let Some(event) = reader.next_event().unwrap() {
        if let Event::Frame(_, Body::Update(part)) = event {
            assembler.apply(&part).unwrap();
        }
    }
    assembler.finish().unwrap()
}

/// Encodes an update of `parts` parts, each with one block that touches `tensors` tensors without elements.
fn encode_wide(tensors: u64, parts: usize) -> Vec<u8> {
    let infos = (0..tensors).map(|i| TensorInfo::new(i.to_string(), Dtype::F32, [0]));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
    let block = Block {
        scope: Scope::Tensors { first: 0, count: tensors },
        add: true,
        support: Support::All,
        values: Values::Constant(Constant { groups: Groups::Block, scales }),
    };
    let blocks = vec![(&block, BlockOptions::default()); parts];
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1));
    let mut out = Vec::new();
    encoder.update(&mut out, &UpdateHeader::default(), &manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    out
}

/// Encodes an update of `blocks` sparse blocks with `kept` positions each, added to a tensor each; with its
/// manifest.
fn encode_sparse(blocks: u64, kept: u64) -> (Vec<u8>, Arc<Manifest>) {
    let infos = (0..blocks).map(|i| TensorInfo::new(i.to_string(), Dtype::F32, [16 * kept]));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let blocks: Vec<Block> = (0..blocks)
        .map(|tensor| Block {
            scope: Scope::Tensor(tensor),
            add: true,
            support: Support::Sparse(Sparse { positions: (0..kept).map(|i| 16 * i + i % 16).collect() }),
            values: Values::Floats(Floats { stored: Stored::F32, bytes: vec![1; 4 * kept as usize] }),
        })
        .collect();
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    encoder.update(&mut out, &UpdateHeader::default(), &manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    (out, manifest)
}

/// There is one test because the counters cover the whole process, and one thread because part of the
/// constant is per thread.
#[test]
fn memory_is_bounded_by_what_is_kept() {
    // A checksum uses only threads of a pool that its caller is in: the global pool does not exist yet.
    let mut encoder = Encoder::new(EncodeOptions::default());
    encoder.private(&mut Vec::new(), FrameKind(0xf000), &vec![7; 2 * MIB]).unwrap();
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
    // A thread decodes two sparse blocks at a time, however many there are.
    let [two, many] = [2, 16].map(|blocks| {
        let (bytes, manifest) = encode_sparse(blocks, 1 << 14);
        let buffer = || TensorBuf::from_f32(vec![16 << 14], &[0.0; 16 << 14]).unwrap();
        let buffers = (0..blocks).map(|_| buffer()).collect();
        measured(|| decode(&bytes, &manifest, buffers)).1
    });
    println!("sparse: decoding 2 blocks {two}, 16 blocks {many}");
    assert!(many <= two + two / 4, "decoding two blocks takes {two}, many {many}");
    let (manifest, tensor) = (manifest(), tensor());
    let kept = ELEMENTS / 1000;
    // (codec, bytes for encoding beyond the output, bytes for decoding beyond the tensor)
    let dense_block = 4 << 20;
    let cases = [
        ("topk:density=0.001", MIB + 64 * kept, MIB / 4 + 32 * kept),
        ("sbc:density=0.001", MIB + 64 * kept, MIB / 4 + 32 * kept),
        ("sidco:density=0.001", MIB + 64 * kept, MIB / 4 + 32 * kept),
        // `compress` returns a byte and a bit per element. Writing holds the bytes of two blocks at a time,
        // and the output vector grows by doubling.
        ("natural", ELEMENTS + ELEMENTS / 8 + 6 * dense_block, 3 * dense_block),
    ];
    for (spec, encode_most, decode_most) in cases {
        let (bytes, used) = measured(|| encode(spec, &manifest, &tensor));
        let encoding = used - bytes.len();
        let buffers = vec![tensor.clone()];
        let (decoded, decoding) = measured(|| decode(&bytes, &manifest, buffers));
        drop(decoded);
        println!("{spec}: {} bytes, encoding {encoding}, decoding {decoding}", bytes.len());
        assert!(encoding <= encode_most, "{spec}: encoding takes {encoding}, more than {encode_most}");
        assert!(decoding <= decode_most, "{spec}: decoding takes {decoding}, more than {decode_most}");
    }
    // The memory for the blocks of a part is released before the next part.
    let wide = encode_wide(10_000, 400);
    let (_, used) = measured(|| gcodec::decode(&wide).unwrap());
    assert!(used <= 8 * MIB, "decoding {} bytes takes {used}", wide.len());
}
