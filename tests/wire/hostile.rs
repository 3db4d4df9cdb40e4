//! Hostile streams: their checksums are correct and their declarations are huge. Their cost in memory and
//! time is bounded.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use gcodec::block::{
    Block, BlockOptions, Constant, Dct, Floats, Groups, LowRank, Positions, Scope, Seeded, Set, Sparse,
    Stored, Support, Values,
};
use gcodec::file::report::Report;
use gcodec::file::{File, recover};
use gcodec::frame::{Delta, FrameKind, IndexSet, Manifest, TensorInfo, UpdateHeader};
use gcodec::reduce::{Sum, SumOptions};
use gcodec::stream::{Assembler, Body, Decoder, EncodeOptions, Encoder, Event, SliceReader, Writer};
use gcodec::{Dtype, Limits, Reader};

fn header(kind: FrameKind, body_len: u64, body_crc: u32) -> Vec<u8> {
    let mut out = b"\xd3gcf".to_vec();
    out.extend(kind.0.to_le_bytes());
    out.extend([0; 2]);
    out.extend(body_len.to_le_bytes());
    out.extend(body_crc.to_le_bytes());
    out.extend(crc32fast::hash(&out).to_le_bytes());
    out
}

fn preamble() -> Vec<u8> {
    Writer::new(Vec::new(), EncodeOptions::default()).finish().unwrap()[..16].to_vec()
}

fn manifest(tensors: impl IntoIterator<Item = (String, Dtype, Vec<u64>)>) -> Arc<Manifest> {
    let infos = tensors.into_iter().map(|(name, dtype, shape)| TensorInfo::new(name, dtype, shape));
    Arc::new(Manifest::new(infos.collect()).unwrap())
}

fn two(huge: u64) -> Arc<Manifest> {
    manifest([("small".into(), Dtype::F64, vec![4]), ("huge".into(), Dtype::F64, vec![huge])])
}

fn constant(scope: Scope, support: Support, add: bool) -> Block {
    Block {
        scope,
        add,
        support,
        values: Values::Constant(Constant { groups: Groups::Block, scales: crate::streams::scales(&[1.0]) }),
    }
}

fn stream(manifest: &Arc<Manifest>, options: EncodeOptions, blocks: &[Block]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(options);
    let blocks: Vec<_> = blocks.iter().map(|b| (b, BlockOptions::default())).collect();
    encoder.update(&mut out, &UpdateHeader::default(), manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    out
}

/// Returns the name of a reader's first error, and the number of bytes that the reader took before it.
fn first_error(bytes: impl Read, limits: Limits) -> (String, u64) {
    struct Counted<R>(R, u64);
    impl<R: Read> Read for Counted<R> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let n = self.0.read(into)?;
            self.1 += n as u64;
            Ok(n)
        }
    }
    let mut reader = Reader::new(Counted(bytes, 0), limits);
    loop {
        match reader.next_event() {
            Ok(Some(_)) => {}
            Ok(None) => return ("end".into(), reader.into_inner().1),
            Err(e) => return (e.name().into(), reader.into_inner().1),
        }
    }
}

#[test]
fn a_reader_does_not_wait_for_a_body_that_it_will_refuse() {
    let most = 64 << 20;
    for (kind, body_len, name) in [
        (FrameKind::UPDATE, 1 << 60, "limit"),
        (FrameKind::UPDATE, u64::MAX, "limit"),
        (FrameKind(0x0123), 1 << 28, "unsupported"),
    ] {
        let bytes = [preamble(), header(kind, body_len, 0)].concat();
        let (error, taken) = first_error(bytes.chain(std::io::repeat(0)).take(most), Limits::default());
        assert_eq!(error, name);
        assert!(taken < 1 << 20, "{taken} bytes");
        let mut decoder = Decoder::new(Limits::default());
        decoder.feed(&bytes);
        assert!(decoder.next_event().unwrap().is_some());
        assert_eq!(decoder.needed(), 0);
        assert!(decoder.next_event().is_err());
        assert_eq!(decoder.needed(), 0);
    }
    // A reader and a slice reader report the same error.
    let after_end = [crate::streams::sample(), b"x".to_vec()].concat();
    for (bytes, name) in [(&b"hello"[..], "bad_magic"), (&after_end, "bad_sync"), (b"\x89GC", "truncated")] {
        assert_eq!(first_error(bytes, Limits::default()).0, name);
        assert_eq!(SliceReader::new(bytes, Limits::default()).find_map(Result::err).unwrap().name(), name);
    }
}

#[test]
fn without_a_limit_a_huge_body_is_awaited_but_not_allocated() {
    let limits = Limits::default().with_max_frame_bytes(u64::MAX);
    let mut decoder = Decoder::new(limits);
    decoder.feed(&[preamble(), header(FrameKind::UPDATE, u64::MAX, 0)].concat());
    assert!(decoder.next_event().unwrap().is_some());
    assert!(decoder.next_event().unwrap().is_none());
}

#[test]
fn unselected_tensors_are_charged_too() {
    let manifest = two(1 << 35);
    let scope = Scope::Tensors { first: 0, count: 2 };
    let bytes = stream(
        &manifest,
        EncodeOptions::default(),
        &[constant(scope, Support::Sparse(Sparse { positions: vec![1] }), false)],
    );
    let mut assembler = Assembler::new(&manifest, &Limits::default(), |name| name == "small").unwrap();
    for event in SliceReader::new(&bytes, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
            assert_eq!(assembler.apply(&part).unwrap_err().name(), "limit");
        }
    }
}

/// Tensors that a 32-bit machine cannot allocate: by the default limits, and without a limit on memory.
#[cfg(target_pointer_width = "32")]
#[test]
fn tensors_beyond_the_address_space_are_refused() {
    let manifest = two(1 << 28);
    let scope = Scope::Tensors { first: 0, count: 2 };
    let sparse = Support::Sparse(Sparse { positions: vec![1] });
    let bytes = stream(&manifest, EncodeOptions::default(), &[constant(scope, sparse, false)]);
    assert_eq!(gcodec::decode(&bytes).unwrap_err().name(), "limit");

    let limits = Limits::default().with_max_alloc_bytes(u64::MAX);
    let refused = Assembler::new(&manifest, &limits, |_| true).err().unwrap();
    assert!(refused.to_string().contains("address space"), "{refused}");
    let mut assembler = Assembler::new(&manifest, &limits, |name| name == "small").unwrap();
    for event in SliceReader::new(&bytes, limits) {
        if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
            let refused = assembler.apply(&part).unwrap_err();
            assert!(refused.to_string().contains("address space"), "{refused}");
        }
    }
}

#[test]
fn a_file_counts_the_tensors_that_blocks_touch() {
    let many = 20_000;
    let manifest = manifest((0..many).map(|i| (format!("{i}"), Dtype::F32, vec![0])));
    let scope = Scope::Tensors { first: 0, count: many };
    let blocks = vec![constant(scope, Support::All, true); 50];
    let bytes = stream(&manifest, EncodeOptions::default(), &blocks);
    let file = File::open(&bytes, Limits::default().with_max_blocks(20 * many)).unwrap();
    assert_eq!(file.tensor(0, "7", &BTreeMap::new()).unwrap_err().name(), "limit");
}

#[test]
fn definitions_are_charged_together() {
    let manifest = manifest([("w".into(), Dtype::F32, vec![1 << 20])]);
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    let options = BlockOptions::default().with_positions(Positions::Tokens);
    for step in 0..50 {
        let support = Support::Sparse(Sparse { positions: (0..1 << 18).collect() });
        let set =
            IndexSet { manifest: manifest.id(), step, leader: 0, world: 0, scope: Scope::Tensor(0), support };
        encoder.index_set(&mut out, &set, &manifest, options).unwrap();
    }
    encoder.finish(&mut out);
    assert!(out.len() < 10_000);
    let limits = Limits::default().with_max_alloc_bytes(8 << 20);
    let error = SliceReader::new(&out, limits.clone()).find_map(Result::err).expect("a limit");
    assert_eq!(error.name(), "limit");
    assert_eq!(File::open(&out, limits).map(drop).unwrap_err().name(), "limit");
    assert!(File::open(&out, Limits::default()).is_ok());
}

#[test]
fn each_use_of_a_seeded_set_is_charged() {
    let manifest = manifest([("w".into(), Dtype::F32, vec![1 << 20])]);
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    let options = BlockOptions::default();
    let (scope, support) = (Scope::Tensor(0), Support::Seeded(Seeded { count: 1 << 16, seed: 1 }));
    let set = IndexSet { manifest: manifest.id(), step: 0, leader: 0, world: 0, scope, support };
    let id = encoder.index_set(&mut out, &set, &manifest, options).unwrap();
    let block = constant(scope, Support::Set(Set { id }), true);
    encoder.update(&mut out, &UpdateHeader::default(), &manifest, &[(&block, options); 3]).unwrap();
    encoder.finish(&mut out);
    for (bytes, enough) in [(2 << 20, false), (3 << 20, true)] {
        let limits = Limits::default().with_max_alloc_bytes(bytes);
        for event in SliceReader::new(&out, limits) {
            if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
                assert_eq!(part.decode_all().is_ok(), enough);
            }
        }
    }
}

#[test]
fn the_memory_limit_of_a_block_does_not_depend_on_the_number_of_threads() {
    let manifest = manifest([("w".into(), Dtype::F32, vec![1 << 20])]);
    let block = |i: u64| {
        let scope = Scope::Range { tensor: 0, start: i << 14, len: 1 << 14 };
        let bytes = (0..1u32 << 14).flat_map(|i| (i as f32).to_le_bytes()).collect();
        Block {
            scope,
            add: false,
            support: Support::All,
            values: Values::Floats(Floats { stored: Stored::F32, bytes }),
        }
    };
    let blocks: Vec<_> = (0..64).map(block).collect();
    let bytes = stream(&manifest, EncodeOptions::default(), &blocks);
    // Enough for the numbers of one block, but not of two.
    let limits = Limits::default().with_max_alloc_bytes(100_000);
    for threads in [1, 8] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut assembler = Assembler::new(&manifest, &Limits::default(), |_| true).unwrap();
            for event in SliceReader::new(&bytes, limits.clone()) {
                if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
                    assembler.apply(&part).unwrap();
                }
            }
            assembler.finish().unwrap();
        });
    }
}

#[test]
fn a_limit_exceeded_while_applying_names_the_block() {
    let manifest = manifest([("w".into(), Dtype::F32, vec![1 << 14])]);
    let block = constant(Scope::Tensor(0), Support::All, true);
    let bytes = stream(&manifest, EncodeOptions::default(), &[block.clone(), block]);
    let limits = Limits::default().with_max_alloc_bytes(40_000);
    let mut assembler = Assembler::new(&manifest, &Limits::default(), |_| true).unwrap();
    for event in SliceReader::new(&bytes, limits) {
        if let Event::Frame(info, Body::Update(part)) = event.unwrap() {
            let error = assembler.apply(&part).unwrap_err();
            let at = error.location().unwrap();
            assert_eq!((error.name(), at.block, at.tensor), ("limit", Some(0), Some(0)));
            assert_eq!(at.offset, part.blocks[0].offset);
            assert!(at.offset > info.offset);
        }
    }
}

#[test]
fn the_elements_of_all_blocks_are_charged_before_any_is_decoded() {
    let manifest = manifest([("w".into(), Dtype::F32, vec![1 << 24])]);
    let block = constant(Scope::Tensor(0), Support::Sparse(Sparse { positions: vec![1] }), true);
    let bytes = stream(&manifest, EncodeOptions::default(), &vec![block; 100]);
    for (blocks, limited) in [(99, true), (100, false)] {
        let limits = Limits::default().with_max_elements(blocks << 24);
        let error = SliceReader::new(&bytes, limits.clone()).find_map(|event| event.err());
        assert_eq!(error.map(|e| e.name()), limited.then_some("limit"));
        let mut decoder = Decoder::new(limits.clone());
        decoder.feed(&bytes);
        let error = std::iter::from_fn(|| decoder.next_event().map(|e| e.map(drop)).transpose());
        assert_eq!(error.filter_map(Result::err).next().map(|e| e.name()), limited.then_some("limit"));
        let tensors = File::open(&bytes, limits).unwrap().tensors(0, |_| true, &BTreeMap::new());
        assert_eq!(tensors.err().map(|e| e.name()), limited.then_some("limit"));
    }
}

#[test]
fn the_ranks_of_all_low_rank_blocks_are_charged_together() {
    let manifest = manifest([("w".into(), Dtype::F32, vec![64, 64])]);
    let zeros = |n: usize| Box::new(Values::Floats(Floats { stored: Stored::F16, bytes: vec![0; 2 * n] }));
    let block = Block {
        scope: Scope::Tensor(0),
        add: true,
        support: Support::All,
        values: Values::LowRank(LowRank {
            rows: 64,
            cols: 64,
            rank: 16,
            left: zeros(1024),
            right: zeros(1024),
        }),
    };
    let bytes = stream(&manifest, EncodeOptions::default(), &vec![block; 200]);
    // The limit allows the work of 100 blocks; there are 200, in batches of two.
    let limits = Limits::default().with_max_elements(100 * (4096 * 17 + 2048));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        let mut assembler = Assembler::new(&manifest, &Limits::default(), |_| true).unwrap();
        for event in SliceReader::new(&bytes, limits) {
            if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
                assert_eq!(assembler.apply(&part).unwrap_err().name(), "limit");
            }
        }
    });
}

#[test]
fn the_work_of_all_transforms_is_charged_together() {
    let manifest = manifest([("w".into(), Dtype::F32, vec![64, 64])]);
    let block = Block {
        scope: Scope::Tensor(0),
        add: true,
        support: Support::All,
        values: Values::Dct(Dct {
            rows: 64,
            cols: 64,
            chunk_rows: 64,
            chunk_cols: 64,
            support: Support::Sparse(Sparse { positions: vec![0] }),
            coefficients: Box::new(Values::Floats(Floats { stored: Stored::F16, bytes: vec![0, 0x3c] })),
        }),
    };
    let bytes = stream(&manifest, EncodeOptions::default(), &vec![block; 200]);
    // A block counts its elements once, and 128 multiplications per element, of which 16 count as one
    // element. The limit allows 100 blocks in the first case and 200 in the second; there are 200.
    for (times, limited) in [(100, true), (200, false)] {
        let limits = Limits::default().with_max_elements(times * 4096 * 9);
        let mut assembler = Assembler::new(&manifest, &Limits::default(), |_| true).unwrap();
        for event in SliceReader::new(&bytes, limits) {
            if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
                let applied = assembler.apply(&part);
                assert_eq!(applied.err().map(|e| e.name()), limited.then_some("limit"));
            }
        }
    }
}

/// Returns the errors of reading all blocks of a stream in every way, with several threads or one.
fn errors_with(threads: usize, bytes: &[u8], limits: &Limits) -> Vec<String> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let mut found = Vec::new();
    pool.install(|| {
        for event in SliceReader::new(bytes, limits.clone()) {
            let Event::Frame(_, Body::Update(part)) = event.unwrap() else { continue };
            found.extend(part.decode_all().err());
            let mut assembler = Assembler::new(&part.manifest, &Limits::default(), |_| true).unwrap();
            found.extend(assembler.apply(&part).err());
            let mut sum = Sum::new(&part.manifest, SumOptions::default().with_limits(limits.clone()));
            sum.add_later(*part, 1.0).unwrap();
            found.extend(sum.finish(false).err());
        }
        found.extend(Report::of(bytes, limits.clone(), &()).1);
    });
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn the_error_of_blocks_that_exceed_a_limit_together_is_that_of_one_thread() {
    // Blocks of many costs: which of them finds too little left depends on the order. Those of one tensor are
    // added one after another, those of several tensors replace elements at the same time.
    let low_rank = |tensor, rank: u64, add| {
        let zeros = || {
            let bytes = vec![0; 2 * 64 * rank as usize];
            Box::new(Values::Floats(Floats { stored: Stored::F16, bytes }))
        };
        let values = LowRank { rows: 64, cols: 64, rank, left: zeros(), right: zeros() };
        Block { scope: Scope::Tensor(tensor), add, support: Support::All, values: Values::LowRank(values) }
    };
    let manifest = manifest((0..96).map(|i| (format!("w{i}"), Dtype::F32, vec![64, 64])));
    for add in [true, false] {
        let blocks = (0..96).map(|i| low_rank(if add { 0 } else { i }, 1 + (i * 37) % 61, add));
        let bytes = stream(&manifest, EncodeOptions::default(), &blocks.collect::<Vec<_>>());
        let limits = Limits::default();
        let elements = limits.clone().with_max_elements(7_000_000);
        for limits in
            [elements.clone(), limits.with_max_alloc_bytes(300_000), elements.with_max_alloc_bytes(20_000)]
        {
            let expected = errors_with(1, &bytes, &limits);
            assert!(!expected.is_empty());
            for _ in 0..20 {
                assert_eq!(errors_with(8, &bytes, &limits), expected, "{limits:?}");
            }
        }
    }
}

#[test]
fn recovery_takes_time_linear_in_the_bytes() {
    // Each header declares a body up to the end of the input, and every body checksum is wrong.
    let count = 400_000u64;
    let bytes: Vec<u8> =
        (0..count).flat_map(|i| header(FrameKind(0xf000), 24 * (count - i - 1), 0x1234_5678)).collect();
    let started = std::time::Instant::now();
    let saved = recover(&bytes, &Limits::default(), Vec::new()).unwrap();
    // Without a bound, recovery would read two terabytes.
    assert!(started.elapsed().as_secs() < 15);
    assert!(saved.bytes_lost > 0);
}

#[test]
fn an_update_after_one_without_its_last_part_is_recovered() {
    let manifest = crate::streams::manifest();
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1));
    let block = |tensor| Block {
        scope: Scope::Tensor(tensor),
        add: false,
        support: Support::All,
        values: Values::Constant(Constant { groups: Groups::Block, scales: crate::streams::scales(&[1.0]) }),
    };
    let (first, second) = (block(0), block(1));
    let blocks = [(&first, BlockOptions::default()), (&second, BlockOptions::default())];
    for step in 0..2 {
        encoder.update(&mut out, &UpdateHeader::default().with_step(step), &manifest, &blocks).unwrap();
    }
    encoder.finish(&mut out);
    let mut updates = Vec::new();
    for event in SliceReader::new(&out, Limits::default()) {
        if let Event::Frame(info, Body::Update(_)) = event.unwrap() {
            updates.push(info.offset as usize);
        }
    }
    assert_eq!(updates.len(), 4);
    // The second part of the first update is corrupt.
    out[updates[1] + 30] ^= 1;
    let saved = recover(&out, &Limits::default(), Vec::new()).unwrap();
    assert_eq!((saved.updates_kept, saved.frames_dropped), (1, 1));
    assert_eq!(File::open(&saved.stream, Limits::default()).unwrap().updates()[0].header.step, 1);
}

#[test]
fn the_delta_of_an_update_in_parts_lists_each_tensor_once() {
    let manifest = crate::streams::manifest();
    let range = |start, len| Block {
        scope: Scope::Range { tensor: 0, start, len },
        add: false,
        support: Support::All,
        values: Values::Constant(Constant { groups: Groups::Block, scales: crate::streams::scales(&[1.0]) }),
    };
    let blocks: Vec<Block> = [(0, 8), (8, 8), (16, 16)].map(|(start, len)| range(start, len)).into();
    let delta = vec![Delta { first: 0, more: 0, base: [1; 16], result: [2; 16] }];
    let header = UpdateHeader::default().with_delta(Some(delta.clone()));
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1));
    let blocks: Vec<_> = blocks.iter().map(|b| (b, BlockOptions::default())).collect();
    encoder.update(&mut out, &header, &manifest, &blocks).unwrap();
    encoder.finish(&mut out);
    let file = File::open(&out, Limits::default()).unwrap();
    assert_eq!(file.updates().len(), 1);
    assert_eq!(file.updates()[0].header.delta, Some(delta));
}

#[test]
fn a_zstd_frame_with_a_huge_window_is_refused_before_allocation() {
    // A window of 2^(10 + exponent) bytes, then one raw block with a metadata body without entries.
    let framed = |exponent: u8, start: [u8; 4]| {
        let zstd = [&start[..], &[0, exponent << 3, 1 | 1 << 3, 0, 0, 0]].concat();
        let body = [&[1, 1], &zstd[..]].concat();
        let mut out = preamble();
        out.extend(header(FrameKind::METADATA, body.len() as u64, crc32fast::hash(&body)));
        out.extend(body);
        out
    };
    let magic = 0xfd2f_b528u32.to_le_bytes();
    let limits = |most: u64| Limits::default().with_max_inflated_bytes(most);
    assert_eq!(first_error(&framed(10, magic)[..], limits(1 << 20)).0, "truncated");
    assert_eq!(first_error(&framed(10, magic)[..], limits((1 << 20) - 1)).0, "limit");
    assert_eq!(first_error(&framed(17, magic)[..], Limits::default()).0, "limit");
    assert_eq!(first_error(&framed(31, magic)[..], Limits::default()).0, "limit");
    // A skippable frame is not accepted as a zstd frame.
    assert_eq!(
        first_error(&framed(10, 0x184d_2a50u32.to_le_bytes())[..], limits(1 << 20)).0,
        "length_mismatch"
    );
    // A content size of 2^40 bytes, where one byte is declared.
    let mut body = vec![1, 1];
    body.extend(magic);
    body.push(3 << 6 | 1 << 5);
    body.extend((1u64 << 40).to_le_bytes());
    body.extend([1 | 1 << 3, 0, 0, 0]);
    let mut stream = preamble();
    stream.extend(header(FrameKind::METADATA, body.len() as u64, crc32fast::hash(&body)));
    stream.extend(body);
    assert_eq!(first_error(&stream[..], Limits::default()).0, "length_mismatch");
}

#[test]
fn an_index_set_that_does_not_fit_its_manifest_is_refused() {
    let manifest = two(16);
    let set = |support| IndexSet {
        manifest: manifest.id(),
        step: 0,
        leader: 0,
        world: 0,
        scope: Scope::Tensor(0),
        support,
    };
    let id = gcodec::block::SetId([1; 32]);
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut decoder = Decoder::new(Limits::default());
    for support in [
        Support::Sparse(Sparse { positions: vec![4] }),
        Support::Sparse(Sparse { positions: vec![1, 1] }),
        Support::Set(Set { id }),
    ] {
        assert_eq!(encoder.add_index_set(id, &set(support.clone()), &manifest).unwrap_err().name(), "input");
        let (mut out, options) = (Vec::new(), BlockOptions::default());
        let written = encoder.index_set(&mut out, &set(support.clone()), &manifest, options);
        assert_eq!((written.unwrap_err().name(), out.len()), ("input", 0));
        assert_eq!(decoder.add_index_set(id, &set(support), &manifest).unwrap_err().name(), "input");
    }
    let fine = set(Support::Sparse(Sparse { positions: vec![3] }));
    assert_eq!(encoder.add_index_set(id, &fine, &two(17)).unwrap_err().name(), "input");
    encoder.add_index_set(id, &fine, &manifest).unwrap();
    decoder.add_index_set(id, &fine, &manifest).unwrap();
}
