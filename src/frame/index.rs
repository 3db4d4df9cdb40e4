//! Index of a segment: positions of all frames and blocks (spec, section 4.6).

use crate::bits::{Cursor, crc32, put_u32, put_varint};
use crate::block::Scope;
use crate::error::{Error, Result};
use crate::frame::{FrameKind, PREAMBLE_LEN, UpdatePart};
use crate::limits::in_memory;

/// Content of an index frame: every frame before it, and the blocks of every update.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// Frames, from the start of the stream.
    pub frames: Vec<IndexedFrame>,
    /// Parts of updates, in order.
    pub updates: Vec<IndexedUpdate>,
}

/// A frame as an index lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexedFrame {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Bytes in header and body.
    pub len: u64,
}

/// A part of an update as an index lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedUpdate {
    /// Step of the update.
    pub step: u64,
    /// Sender of the update.
    pub sender: u64,
    /// Bytes of the body before its first block.
    pub head_len: u64,
    /// CRC-32 of those bytes.
    pub head_crc: u32,
    /// Blocks of the part.
    pub blocks: Vec<IndexedBlock>,
}

/// A block as an index lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexedBlock {
    /// Number of the first tensor of its scope.
    pub first: u64,
    /// Number of tensors that its scope touches.
    pub tensors: u64,
    /// Bytes of the whole block.
    pub len: u64,
    /// CRC-32 of those bytes.
    pub crc: u32,
}

impl IndexedBlock {
    /// Returns the entry of a block of `len` bytes with this CRC-32.
    pub(crate) fn new(scope: Scope, len: u64, crc: u32) -> Self {
        Self { first: scope.first(), tensors: scope.tensors(), len, crc }
    }
}

impl IndexedUpdate {
    /// Returns the entry of a part whose body is `body`.
    pub(crate) fn of(part: &UpdatePart<'_>, body: &[u8]) -> Self {
        let head_len = body.len() as u64 - part.blocks.iter().map(|b| b.len).sum::<u64>();
        let (head, mut rest) = body.split_at(in_memory(head_len));
        let blocks = part.blocks.iter().map(|b| {
            let (bytes, later) = rest.split_at(in_memory(b.len));
            rest = later;
            IndexedBlock::new(b.scope, b.len, crc32(bytes))
        });
        let blocks = blocks.collect();
        let (step, sender) = (part.header.step, part.header.sender);
        Self { step, sender, head_len, head_crc: crc32(head), blocks }
    }

    /// Returns the places where a damaged body of this part differs: `None` for the bytes before the first
    /// block, otherwise the number of a block.
    pub fn damage(&self, body: &[u8]) -> Vec<Option<u64>> {
        let head = body.get(..in_memory(self.head_len));
        let head_differs = head.is_none_or(|head| crc32(head) != self.head_crc);
        let mut found = Vec::from_iter(head_differs.then_some(None));
        let mut start = self.head_len;
        for (number, block) in (0..).zip(&self.blocks) {
            let end = start.saturating_add(block.len);
            let bytes = body.get(in_memory(start)..in_memory(end));
            if bytes.is_none_or(|bytes| crc32(bytes) != block.crc) {
                found.push(Some(number));
            }
            start = end;
        }
        found
    }

    /// Returns the offset of a block in the body.
    pub fn block_offset(&self, block: u64) -> u64 {
        let before = self.blocks.iter().take(in_memory(block));
        before.fold(self.head_len, |sum, b| sum.saturating_add(b.len))
    }
}

impl Index {
    /// Returns each frame with the offset where it begins.
    pub(crate) fn frame_offsets(&self) -> impl Iterator<Item = (u64, IndexedFrame)> {
        self.frames.iter().scan(PREAMBLE_LEN as u64, |at, frame| {
            let offset = *at;
            *at = at.saturating_add(frame.len);
            Some((offset, *frame))
        })
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.frames.len() as u64);
        for frame in &self.frames {
            put_varint(&mut out, frame.kind.0.into());
            put_varint(&mut out, frame.len);
        }
        for update in &self.updates {
            [update.step, update.sender, update.head_len].iter().for_each(|&v| put_varint(&mut out, v));
            put_u32(&mut out, update.head_crc);
            put_varint(&mut out, update.blocks.len() as u64);
            for block in &update.blocks {
                [block.first, block.tensors, block.len].iter().for_each(|&v| put_varint(&mut out, v));
                put_u32(&mut out, block.crc);
            }
        }
        out
    }

    /// Reads a body at `offset`. Memory grows with the bytes: every entry takes at least two.
    pub(crate) fn read(body: &[u8], offset: u64) -> Result<Self> {
        let mut cursor = Cursor::new(body, offset, "index");
        let mut index = Self::default();
        for _ in 0..cursor.varint()? {
            let at = cursor.offset();
            let kind = cursor.varint()?;
            // The kind is invalid, so the entry cannot describe a frame.
            let other = Error::format(crate::error::FormatErrorKind::NotCanonical { field: "index" }, at);
            let kind = u16::try_from(kind).map_err(|_| other)?;
            index.frames.push(IndexedFrame { kind: FrameKind(kind), len: cursor.varint()? });
        }
        let updates = index.frames.iter().filter(|f| f.kind == FrameKind::UPDATE).count();
        for _ in 0..updates {
            let (step, sender, head_len) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
            let head_crc = cursor.u32()?;
            let mut blocks = Vec::new();
            for _ in 0..cursor.varint()? {
                let (first, tensors, len) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
                blocks.push(IndexedBlock { first, tensors, len, crc: cursor.u32()? });
            }
            index.updates.push(IndexedUpdate { step, sender, head_len, head_crc, blocks });
        }
        cursor.finish()?;
        Ok(index)
    }
}
