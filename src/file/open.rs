use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::bits::{self, crc32};
use crate::block::{RawBlock, Sets};
use crate::error::{Error, FormatErrorKind, InputErrorKind, Result};
use crate::frame::{
    BlockOrder, End, FrameHeader, FrameKind, HEADER_LEN, Index, IndexSet, IndexedBlock, IndexedUpdate,
    Manifest, ManifestId, PREAMBLE_LEN, Preamble, UpdateHeader, UpdatePart,
};
use crate::limits::Limits;
use crate::stream::{Assembler, Definitions, Parser, Progress};
use crate::tensor::{TensorBuf, TensorView};

/// Random access to a finished stream in memory, for instance a mapped file: lists everything from its index and reads
/// no more of the updates than what is asked for.
pub struct File<'a> {
    bytes: &'a [u8],
    limits: Limits,
    manifests: HashMap<ManifestId, Arc<Manifest>>,
    sets: Arc<Sets>,
    parts: Vec<PartEntry>,
    updates: Vec<UpdateEntry>,
}

/// An update of a file.
#[derive(Debug, Clone)]
pub struct UpdateEntry {
    /// Who says it, when, and for whom; from its first part.
    pub header: UpdateHeader,
    /// The tensors it refers to.
    pub manifest: Arc<Manifest>,
    /// Bytes of its frames.
    pub bytes: u64,
    parts: std::ops::Range<usize>,
}

/// A part of an update as the index lists it, and where its frame begins.
struct PartEntry {
    offset: u64,
    indexed: IndexedUpdate,
}

impl<'a> File<'a> {
    /// Opens a stream through its index: reads the end, the index, and the frames that updates refer to.
    ///
    /// # Errors
    /// [`Error::Format`] if the stream is damaged, cut off, or has no index: [`SliceReader`](crate::SliceReader) reads
    /// what is there without one.
    pub fn open(bytes: &'a [u8], limits: Limits) -> Result<Self> {
        let preamble = bytes.first_chunk::<PREAMBLE_LEN>();
        Preamble::read(preamble.ok_or(Error::format(FormatErrorKind::Truncated, bytes.len() as u64))?)?;
        let index = read_index(bytes)?;
        let mut file = Self {
            bytes,
            limits,
            manifests: HashMap::new(),
            sets: Arc::default(),
            parts: Vec::new(),
            updates: Vec::new(),
        };
        let mut definitions = Definitions::default();
        let mut updates = index.updates.iter();
        for (number, (offset, frame)) in index.frame_offsets().enumerate() {
            match frame.kind {
                FrameKind::MANIFEST => {
                    let (_, body) = file.frame(offset, frame.len).map_err(|e| e.in_frame(number as u64))?;
                    let manifest = Manifest::read(body, offset + HEADER_LEN as u64, &file.limits)?;
                    if !file.manifests.contains_key(&manifest.id()) {
                        definitions.manifest(&manifest, &file.limits, offset)?;
                        file.manifests.insert(manifest.id(), Arc::new(manifest));
                    }
                }
                FrameKind::INDEX_SET => {
                    let (_, body) = file.frame(offset, frame.len).map_err(|e| e.in_frame(number as u64))?;
                    let manifests = &file.manifests;
                    let (set, id, count) =
                        IndexSet::read(body, offset + HEADER_LEN as u64, &file.limits, |m| {
                            manifests.get(&m).map(Arc::as_ref)
                        })?;
                    if !file.sets.contains_key(&id) {
                        definitions.index_set(&set, &file.limits, offset)?;
                        Arc::make_mut(&mut file.sets).insert(id, Arc::new(set.shared(count)));
                    }
                }
                FrameKind::UPDATE => {
                    let indexed = updates
                        .next()
                        .ok_or(Error::format(FormatErrorKind::LengthMismatch { field: "index" }, offset))?;
                    file.add_part(offset, frame.len, indexed).map_err(|e| e.in_frame(number as u64))?;
                }
                _ => {}
            }
        }
        Ok(file)
    }

    fn add_part(&mut self, offset: u64, len: u64, indexed: &IndexedUpdate) -> Result<()> {
        let header = header_at(self.bytes, offset)?;
        let blocks = indexed.blocks.iter().fold(indexed.head_len, |sum, b| sum.saturating_add(b.len));
        let fits = header.kind == FrameKind::UPDATE
            && header.body_len == blocks
            && header.body_len.checked_add(HEADER_LEN as u64) == Some(len);
        if !fits {
            return Err(Error::format(FormatErrorKind::NotCanonical { field: "index" }, offset));
        }
        let head = self.head(offset, indexed)?;
        let body_offset = offset + HEADER_LEN as u64;
        let part = UpdatePart::read_head_only(head, body_offset, &self.limits, &self.sets, |id| {
            self.manifests.get(&id).map(Arc::clone)
        })?;
        let at = self.parts.len();
        self.parts.push(PartEntry { offset, indexed: indexed.clone() });
        match self.updates.last_mut() {
            Some(update) if part.part > 0 => {
                if let (Some(all), Some(more)) = (&mut update.header.delta, part.header.delta) {
                    // A tensor whose blocks lie in several parts is listed by each.
                    all.extend(more);
                    all.sort_by_key(|d| d.tensor);
                    all.dedup();
                }
                update.parts.end = at + 1;
                update.bytes += len;
            }
            _ => self.updates.push(UpdateEntry {
                header: part.header,
                manifest: part.manifest,
                bytes: len,
                parts: at..at + 1,
            }),
        }
        Ok(())
    }

    fn slice(&self, start: u64, len: u64) -> Result<&'a [u8]> {
        let end = start.checked_add(len);
        let range = end.and_then(|end| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?));
        range
            .and_then(|r| self.bytes.get(r))
            .ok_or(Error::format(FormatErrorKind::LengthMismatch { field: "index" }, start))
    }

    fn header(&self, offset: u64) -> Result<FrameHeader> {
        header_at(self.bytes, offset)
    }

    /// A frame's header and body, its CRCs checked.
    fn frame(&self, offset: u64, len: u64) -> Result<(FrameHeader, &'a [u8])> {
        let header = self.header(offset)?;
        let body = self.slice(offset + HEADER_LEN as u64, header.body_len)?;
        if header.body_len.checked_add(HEADER_LEN as u64) != Some(len) {
            return Err(Error::format(FormatErrorKind::NotCanonical { field: "index" }, offset));
        }
        header.check_body(body, offset + HEADER_LEN as u64)?;
        Ok((header, body))
    }

    /// The bytes of a part before its blocks, their CRC checked.
    fn head(&self, offset: u64, indexed: &IndexedUpdate) -> Result<&'a [u8]> {
        let head = self.slice(offset + HEADER_LEN as u64, indexed.head_len)?;
        check_crc(head, indexed.head_crc, offset + HEADER_LEN as u64)?;
        Ok(head)
    }

    /// The updates, in order.
    pub fn updates(&self) -> &[UpdateEntry] {
        &self.updates
    }

    /// The number of the update of this step, the last of several; of the last update if `step` is `None`.
    pub fn find(&self, step: Option<u64>) -> Option<usize> {
        self.updates.iter().rposition(|u| step.is_none_or(|s| u.header.step == s))
    }

    /// The dense tensors of an update whose names `wanted` accepts, with their numbers in its manifest. Only blocks that
    /// touch them are read and checked.
    ///
    /// # Errors
    /// As [`UpdatePart::decode`] and [`Assembler`]; [`Error::Input`] if there is no such update.
    pub fn tensors(
        &self,
        update: usize,
        wanted: impl Fn(&str) -> bool,
        base: &BTreeMap<String, TensorView<'_>>,
    ) -> Result<Vec<(u64, TensorBuf)>> {
        let entry = self
            .updates
            .get(update)
            .ok_or(Error::input(InputErrorKind::BadOption { what: "number of an update" }))?;
        let mut assembler = Assembler::new(&entry.manifest, &self.limits, &wanted)?;
        for (name, tensor) in base {
            assembler.base(name, *tensor)?;
        }
        // How many wanted tensors there are before each: a block is judged in constant time, whatever it says that it touches.
        let mut wanted_before = vec![0u64];
        for info in entry.manifest.tensors() {
            wanted_before.push(wanted_before[wanted_before.len() - 1] + u64::from(wanted(&info.name)));
        }
        let mut order = BlockOrder::default();
        for number in entry.parts.clone() {
            let part = &self.parts[number];
            let head = self.head(part.offset, &part.indexed)?;
            let mut at = part.offset + HEADER_LEN as u64 + part.indexed.head_len;
            let mut blocks = Vec::new();
            for block in &part.indexed.blocks {
                let bytes = self.slice(at, block.len)?;
                let is_wanted = touches_wanted(block, &wanted_before);
                if is_wanted {
                    check_crc(bytes, block.crc, at)?;
                }
                // What the index says of a block that is not read further must be so, or something would be left out.
                let (scope, add) = RawBlock::scope_of(bytes, at)?;
                if (scope.first(), scope.tensors()) != (block.first, block.tensors) {
                    return Err(Error::format(FormatErrorKind::NotCanonical { field: "index" }, at));
                }
                if !order.accept(scope, add) {
                    return Err(Error::format(FormatErrorKind::NotAscending, at));
                }
                if is_wanted {
                    blocks.push((bytes, at));
                }
                at = at.saturating_add(block.len);
            }
            let last = number + 1 == entry.parts.end;
            let body_offset = part.offset + HEADER_LEN as u64;
            let read =
                UpdatePart::read_blocks(head, body_offset, &blocks, last, &self.limits, &self.sets, |id| {
                    self.manifests.get(&id).map(Arc::clone)
                })?;
            assembler.apply(&read)?;
        }
        assembler.finish()
    }

    /// One dense tensor of an update.
    ///
    /// # Errors
    /// As [`Self::tensors`]; [`Error::Input`] if the update's manifest has no such tensor.
    pub fn tensor(
        &self,
        update: usize,
        name: &str,
        base: &BTreeMap<String, TensorView<'_>>,
    ) -> Result<TensorBuf> {
        let mut found = self.tensors(update, |n| n == name, base)?;
        found.pop().map(|(_, tensor)| tensor).ok_or(Error::input(InputErrorKind::NoSuchTensor))
    }
}

/// Whether a block touches a wanted tensor. `wanted_before` has an entry for each tensor of the manifest and one more.
fn touches_wanted(block: &IndexedBlock, wanted_before: &[u64]) -> bool {
    let before = |tensor: u64| {
        let last = wanted_before.len() - 1;
        wanted_before[usize::try_from(tensor).map_or(last, |t| t.min(last))]
    };
    before(block.first) < before(block.first.saturating_add(block.tensors))
}

fn check_crc(bytes: &[u8], stored: u32, offset: u64) -> Result<()> {
    bits::check_crc(stored, crc32(bytes), offset)
}

fn header_at(bytes: &[u8], offset: u64) -> Result<FrameHeader> {
    let start = usize::try_from(offset).ok();
    let header = start.and_then(|s| bytes.get(s..)).and_then(<[u8]>::first_chunk::<HEADER_LEN>);
    FrameHeader::read(header.ok_or(Error::format(FormatErrorKind::Truncated, offset))?, offset)
}

/// The end frame of a finished stream: its header's bytes, its offset and itself.
pub(super) fn read_end(bytes: &[u8]) -> Result<(&[u8; HEADER_LEN], u64, End)> {
    let len = bytes.len() as u64;
    let truncated = Error::format(FormatErrorKind::Truncated, len);
    let Some(start) = bytes.len().checked_sub(HEADER_LEN + End::BODY_LEN) else { return Err(truncated) };
    let offset = start as u64;
    // A file that was cut off ends in the middle of something: that is what a bad header here means.
    let header = header_at(bytes, offset)
        .ok()
        .filter(|h| h.kind == FrameKind::END && h.body_len == End::BODY_LEN as u64);
    let (Some(header), Some(header_bytes)) = (header, bytes[start..].first_chunk()) else {
        return Err(truncated);
    };
    let body = &bytes[start + HEADER_LEN..];
    header.check_body(body, offset + HEADER_LEN as u64)?;
    Ok((header_bytes, offset, End::read(body, offset + HEADER_LEN as u64)?))
}

/// The index of a finished stream.
pub(super) fn read_index(bytes: &[u8]) -> Result<Index> {
    let (_, end_offset, end) = read_end(bytes)?;
    let missing = Error::format(
        FormatErrorKind::OutOfRange { field: "index_offset", value: end.index_offset },
        end_offset,
    );
    if end.index_offset == 0 {
        return Err(missing);
    }
    let header = header_at(bytes, end.index_offset)?;
    let body_offset = end.index_offset + HEADER_LEN as u64;
    let body_end = body_offset.checked_add(header.body_len);
    if header.kind != FrameKind::INDEX || body_end != Some(end_offset) {
        return Err(missing);
    }
    let body = &bytes[body_offset as usize..end_offset as usize];
    header.check_body(body, body_offset)?;
    let index = Index::read(body, body_offset)?;
    let listed = index.frames.iter().try_fold(PREAMBLE_LEN as u64, |at, f| at.checked_add(f.len));
    if listed != Some(end.index_offset) {
        return Err(Error::format(FormatErrorKind::NotCanonical { field: "index" }, body_offset));
    }
    Ok(index)
}

/// The next event and the bytes it took; `None` if there are too few.
pub(super) fn parse_frame<'a>(
    parser: &mut Parser,
    bytes: &'a [u8],
) -> Result<Option<(usize, crate::stream::Event<'a>)>> {
    match parser.advance(bytes)? {
        Progress::NeedMore => Ok(None),
        Progress::Ready { consumed, event } => Ok(Some((consumed, event))),
    }
}
