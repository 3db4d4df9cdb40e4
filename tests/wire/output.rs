//! An encoder writes the same bytes to any kind of output, and removes the bytes of a call that fails.

use std::cell::Cell;
use std::sync::Arc;

use gcodec::block::{
    Block, BlockOptions, Floats, PendingBlock, Scope, Sparse, Stored, Support, Values, WireBlock,
};
use gcodec::frame::{FrameKind, IndexSet, Manifest, Metadata, Model, TensorInfo, UpdateHeader};
use gcodec::stream::{EncodeOptions, Encoder, Output, Writer};
use gcodec::{Dtype, Error};

/// An output of fixed size, like a buffer of another language's object.
struct Fixed {
    memory: Box<[u8]>,
    len: usize,
}

impl Output for Fixed {
    fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }

    fn append(&mut self, bytes: &[u8]) {
        self.memory[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

/// Writes each block as an update in parts, with failing updates in between, and the end of the stream.
fn write(out: &mut dyn Output) {
    let manifest = crate::streams::manifest();
    let blocks = crate::streams::blocks();
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1000));
    let mut written = 0;
    for block in &blocks {
        let options = BlockOptions::default();
        let before = out.bytes().len();
        let header = UpdateHeader::default();
        match encoder.update(out, &header, &manifest, &[(block, options)]) {
            Ok(()) => written += 1,
            Err(_) => assert_eq!(out.bytes().len(), before),
        }
        let (len, offset) = (out.bytes().len(), encoder.offset());
        let out_of_order = [(block, options), (block, options)];
        assert!(encoder.update(out, &header, &manifest, &out_of_order).is_err() || block.add);
        assert!(block.add || (out.bytes().len(), encoder.offset()) == (len, offset));
    }
    assert!(written > 10);
    encoder.finish(out);
}

#[test]
fn any_output_gets_the_same_bytes() {
    let mut expected = vec![7; 3];
    write(&mut expected);
    let mut fixed = Fixed { memory: vec![0; expected.len()].into(), len: 0 };
    fixed.append(&[7; 3]);
    write(&mut fixed);
    assert_eq!(fixed.bytes(), expected);
    assert_eq!(
        gcodec::stream::SliceReader::new(&expected[3..], Default::default()).filter(Result::is_err).count(),
        0
    );
}

#[test]
fn a_writer_writes_the_bytes_of_its_encoder() {
    let manifest = crate::streams::manifest();
    let blocks = crate::streams::blocks();
    let options = BlockOptions::default();
    let (header, mut metadata) = (UpdateHeader::default(), Metadata::default());
    metadata.entries.insert("run".into(), "3".into());
    let model = Model::inline("test/1", "none", vec![1, 2, 3]);
    let set = IndexSet {
        manifest: manifest.id(),
        step: 1,
        leader: 2,
        world: 4,
        scope: Scope::Tensor(0),
        support: Support::Sparse(Sparse { positions: vec![1, 2, 30] }),
    };
    let wire = || [(WireBlock::from(&blocks[2]), options)];
    let mut encoder = Encoder::new(EncodeOptions::default());
    // The length after each call.
    let (mut out, mut lens) = (Vec::new(), Vec::new());
    let mut note = |out: &Vec<u8>| lens.push(out.len());
    encoder.manifest(&mut out, &manifest);
    note(&out);
    encoder.metadata(&mut out, &metadata);
    note(&out);
    encoder.model(&mut out, &model).unwrap();
    note(&out);
    let id = encoder.index_set(&mut out, &set, &manifest, options).unwrap();
    note(&out);
    encoder.update(&mut out, &header, &manifest, [(&blocks[0], options)]).unwrap();
    note(&out);
    encoder.update(&mut out, &header, &manifest, wire()).unwrap();
    note(&out);
    encoder.private(&mut out, FrameKind(0xf001), b"private").unwrap();
    note(&out);
    assert!(encoder.private(&mut out, FrameKind::UPDATE, b"private").is_err());
    encoder.finish(&mut out);
    note(&out);
    assert!(lens.is_sorted_by(|a, b| a < b), "each call writes a frame: {lens:?}");
    let mut writer = Writer::new(Vec::new(), EncodeOptions::default());
    writer.manifest(&manifest).unwrap();
    assert_eq!(writer.get_ref().len(), lens[0]);
    writer.metadata(&metadata).unwrap();
    assert_eq!(writer.get_ref().len(), lens[1]);
    writer.model(&model).unwrap();
    assert_eq!(writer.get_ref().len(), lens[2]);
    assert_eq!(writer.index_set(&set, &manifest, options).unwrap(), id);
    assert_eq!(writer.get_ref().len(), lens[3]);
    writer.update(&header, &manifest, [(&blocks[0], options)]).unwrap();
    assert_eq!(writer.get_ref().len(), lens[4]);
    writer.update(&header, &manifest, wire()).unwrap();
    assert_eq!(writer.get_ref().len(), lens[5]);
    writer.private(FrameKind(0xf001), b"private").unwrap();
    assert!(writer.private(FrameKind::UPDATE, b"private").is_err());
    assert_eq!(writer.finish().unwrap(), out);
}

/// Counts calls of `flush`.
#[derive(Default)]
struct Flushed(u32);

impl std::io::Write for Flushed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0 += 1;
        Ok(())
    }
}

#[test]
fn a_writer_flushes_when_it_is_told_and_at_the_end() {
    let mut writer = Writer::new(Flushed::default(), EncodeOptions::default());
    writer.metadata(&Metadata::default()).unwrap();
    assert_eq!(writer.get_ref().0, 0);
    writer.flush().unwrap();
    assert_eq!(writer.get_ref().0, 1);
    assert_eq!(writer.finish().unwrap().0, 2);
}

/// A sink that takes some bytes and then fails.
struct Full {
    taken: Vec<u8>,
    room: usize,
}

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.taken.len() + bytes.len() > self.room {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.taken.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Tensors of 1000 elements, and a raw block for each.
fn raw_blocks(count: u64) -> (Arc<Manifest>, Vec<Block>) {
    let infos = (0..count).map(|i| TensorInfo::new(i.to_string(), Dtype::F32, [1000]));
    let block = |i| Block {
        scope: Scope::Tensor(i),
        add: false,
        support: Support::All,
        values: Values::Floats(Floats { stored: Stored::F32, bytes: vec![i as u8; 4000] }),
    };
    (Arc::new(Manifest::new(infos.collect()).unwrap()), (0..count).map(block).collect())
}

/// Counts the bytes that it takes, and the largest number at a time.
#[derive(Default)]
struct Counted {
    sum: Cell<usize>,
    largest: Cell<usize>,
}

impl std::io::Write for &Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.sum.set(self.sum.get() + bytes.len());
        self.largest.set(self.largest.get().max(bytes.len()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_holds_one_part_and_takes_blocks_when_it_writes_them() {
    let (manifest, blocks) = raw_blocks(10_000);
    let sink = Counted::default();
    let mut writer = Writer::new(&sink, EncodeOptions::default().with_part_bytes(40_000));
    writer.manifest(&manifest).unwrap();
    let before = sink.sum.replace(0);
    assert_eq!(before, sink.largest.replace(0));
    let (mut taken, mut ahead) = (0, 0);
    let given = blocks.iter().inspect(|_| {
        taken += 1;
        ahead = ahead.max(taken - sink.sum.get() / 4100);
    });
    writer.update(&UpdateHeader::default(), &manifest, given).unwrap();
    assert_eq!(taken, blocks.len());
    assert!(sink.largest.get() < 50_000, "{} bytes at a time", sink.largest.get());
    assert!(ahead < 2000, "{ahead} blocks were taken before they were written");
}

#[test]
fn an_error_between_blocks_leaves_an_encoder_as_it_was_and_ends_a_stream_that_was_begun() {
    let (manifest, blocks) = raw_blocks(40);
    let header = UpdateHeader::default();
    let options = EncodeOptions::default().with_part_bytes(20_000);
    let failing = |after: usize| {
        let failure = std::iter::once(Err(Error::from(std::io::Error::other("no more tensors"))));
        blocks.iter().take(after).map(|block| Ok(PendingBlock::from(block))).chain(failure)
    };
    let (mut encoder, mut out) = (Encoder::new(options.clone()), Vec::new());
    let (mut other, mut expected) = (Encoder::new(options.clone()), Vec::new());
    for after in [0, 3, 40] {
        let error = encoder.update(&mut out, &header, &manifest, failing(after)).unwrap_err();
        assert_eq!((error.to_string().as_str(), out.len()), ("no more tensors", expected.len()));
        encoder.update(&mut out, &header, &manifest, &blocks[..after]).unwrap();
        other.update(&mut expected, &header, &manifest, &blocks[..after]).unwrap();
    }
    encoder.finish(&mut out);
    other.finish(&mut expected);
    assert!(out == expected);

    // Nothing was written before the error: the stream goes on.
    let mut writer = Writer::new(Vec::new(), options.clone());
    assert!(writer.update(&header, &manifest, failing(3)).is_err());
    writer.update(&header, &manifest, &blocks).unwrap();
    assert!(gcodec::decode(&writer.finish().unwrap()).is_ok());

    // The sink is full in the second part: the stream cannot go on.
    let mut writer = Writer::new(Full { taken: Vec::new(), room: 30_000 }, options);
    assert_eq!(writer.update(&header, &manifest, &blocks).unwrap_err().name(), "io");
    let error = writer.update(&header, &manifest, &blocks).unwrap_err();
    assert_eq!(error.to_string(), "an earlier write to this stream failed");
    assert!((10_000..30_000).contains(&writer.get_ref().taken.len()));
    assert!(writer.finish().is_err());
}
