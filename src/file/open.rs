//! Random access to whole streams.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use crate::bits::{check_crc, crc32};
use crate::block::Sets;
use crate::error::{Error, FormatErrorKind, InputErrorKind, Result};
use crate::frame::{
    CHAINED_LEN, Delta, End, FrameHeader, FrameKind, HEADER_LEN, Index, IndexSet, IndexedBlock, IndexedFrame,
    IndexedUpdate, Manifest, ManifestId, Metadata, PREAMBLE_LEN, Preamble, UpdateHeader, UpdatePart,
};
use crate::limits::{Limits, in_memory};
use crate::stream::{Assembler, Body, Definitions, Event, SliceReader};
use crate::tensor::{TensorBuf, TensorView};

/// Random access to a whole stream in memory, for instance a mapped file: it lists the updates, and reads
/// only the requested parts of them.
pub struct File<'a> {
    pub(super) bytes: &'a [u8],
    limits: Limits,
    pub(super) manifests: HashMap<ManifestId, Arc<Manifest>>,
    pub(super) sets: Arc<Sets>,
    pub(super) parts: Vec<PartEntry>,
    updates: Vec<UpdateEntry>,
    /// Offset and number of each metadata frame, and the number of updates that began before it.
    metadata: Vec<(u64, u64, usize)>,
}

/// An update of a file.
#[derive(Debug, Clone)]
pub struct UpdateEntry {
    /// Header of the update's first part.
    pub header: UpdateHeader,
    /// Manifest that the update refers to.
    pub manifest: Arc<Manifest>,
    /// Bytes of its frames.
    pub bytes: u64,
    pub(super) parts: std::ops::Range<usize>,
    /// Set when all blocks were found where the index has them, in order.
    pub(super) index_is_true: OnceLock<()>,
}

/// A part of an update.
pub(super) struct PartEntry {
    /// Number and offset of its frame.
    pub(super) frame: u64,
    pub(super) offset: u64,
    pub(super) listed: Listed,
}

/// Places of the blocks of a part, as far as they are known.
pub(super) enum Listed {
    /// As the index lists them: each is checked when it is read.
    ByIndex(IndexedUpdate),
    /// The stream was read from its beginning: the whole body was checked. Its blocks are located when they
    /// are read, because a list of them can take more memory than the bytes.
    Read { body_len: u64, sets: Arc<Sets> },
}

impl<'a> File<'a> {
    /// Opens a stream through its index: reads the end, the index, and the frames that updates refer to.
    ///
    /// # Errors
    /// [`Error::Format`] if the stream is corrupt, truncated, or has no index.
    /// [`SliceReader`](crate::stream::SliceReader) reads streams without an index.
    pub fn open(bytes: &'a [u8], limits: Limits) -> Result<Self> {
        let preamble = bytes.first_chunk::<PREAMBLE_LEN>();
        Preamble::read(preamble.ok_or(Error::format(FormatErrorKind::Truncated, bytes.len() as u64))?)?;
        let index = read_index(bytes)?;
        check_frames(bytes, &index)?;
        let mut file = Self::empty(bytes, limits);
        let mut definitions = Definitions::default();
        let mut updates = index.updates.iter();
        for (number, (offset, frame)) in index.frame_offsets().enumerate() {
            match frame.kind {
                FrameKind::MANIFEST => {
                    let (_, body) = file.frame(offset).map_err(|e| e.in_frame(number as u64))?;
                    let manifest = Manifest::read(body, offset + HEADER_LEN as u64, &file.limits)
                        .map_err(|e| e.in_frame(number as u64))?;
                    if !file.manifests.contains_key(&manifest.id()) {
                        definitions.manifest(&manifest, &file.limits, offset)?;
                        file.manifests.insert(manifest.id(), Arc::new(manifest));
                    }
                }
                FrameKind::INDEX_SET => {
                    let (_, body) = file.frame(offset).map_err(|e| e.in_frame(number as u64))?;
                    let manifests = &file.manifests;
                    let (set, id, count) =
                        IndexSet::read(body, offset + HEADER_LEN as u64, &file.limits, |m| {
                            manifests.get(&m).map(Arc::as_ref)
                        })
                        .map_err(|e| e.in_frame(number as u64))?;
                    if !file.sets.contains_key(&id) {
                        definitions.index_set(&set, &file.limits, offset)?;
                        Arc::make_mut(&mut file.sets).insert(id, Arc::new(set.shared(count)));
                    }
                }
                FrameKind::METADATA => file.metadata.push((offset, number as u64, file.updates.len())),
                FrameKind::UPDATE => {
                    let indexed = updates
                        .next()
                        .ok_or(Error::format(FormatErrorKind::LengthMismatch { field: "index" }, offset))?;
                    let number = number as u64;
                    file.add_part(number, offset, frame.len, indexed).map_err(|e| e.in_frame(number))?;
                }
                _ => {}
            }
        }
        file.merge_runs();
        Ok(file)
    }

    /// Reads a stream from its beginning to its end, with or without an index. Every frame is checked.
    ///
    /// # Errors
    /// The errors of [`SliceReader::next_event`].
    pub fn scan(bytes: &'a [u8], limits: Limits) -> Result<Self> {
        let mut reader = SliceReader::new(bytes, limits.clone());
        let mut file = Self::empty(bytes, limits);
        while let Some(event) = reader.next_event()? {
            let Event::Frame(info, body) = event else { continue };
            match body {
                Body::Manifest(manifest) => _ = file.manifests.insert(manifest.id(), manifest),
                Body::Metadata(_) => file.metadata.push((info.offset, info.number, file.updates.len())),
                Body::Update(part) => {
                    let listed = Listed::Read { body_len: info.header.body_len, sets: part.shared_sets() };
                    file.push(
                        *part,
                        info.len(),
                        PartEntry { frame: info.number, offset: info.offset, listed },
                    )?;
                }
                _ => {}
            }
        }
        file.merge_runs();
        Ok(file)
    }

    fn empty(bytes: &'a [u8], limits: Limits) -> Self {
        Self {
            bytes,
            limits,
            manifests: HashMap::new(),
            sets: Arc::default(),
            parts: Vec::new(),
            updates: Vec::new(),
            metadata: Vec::new(),
        }
    }

    /// Lists each run of a delta once: a tensor with blocks in several parts is listed by each of them.
    fn merge_runs(&mut self) {
        fn merge<D: PartialEq>(runs: &mut Vec<Delta<D>>) {
            runs.sort_by_key(|run| run.first);
            runs.dedup();
        }
        for header in self.updates.iter_mut().map(|update| &mut update.header) {
            header.delta.iter_mut().for_each(merge);
            header.sums.iter_mut().for_each(merge);
        }
    }

    fn add_part(&mut self, frame: u64, offset: u64, len: u64, indexed: &IndexedUpdate) -> Result<()> {
        let header = self.header(offset)?;
        let blocks = indexed.blocks.iter().fold(indexed.head_len, |sum, b| sum.saturating_add(b.len));
        let wrong = Error::format(FormatErrorKind::NotCanonical { field: "index" }, offset);
        if header.body_len != blocks {
            return Err(wrong);
        }
        let head = self.head(offset, indexed)?;
        let body_offset = offset + HEADER_LEN as u64;
        let part = UpdatePart::read_head_only(head, body_offset, &self.limits, &self.sets, |id| {
            self.manifests.get(&id).map(Arc::clone)
        })?;
        if (part.header.step, part.header.sender) != (indexed.step, indexed.sender) {
            return Err(wrong);
        }
        let listed = Listed::ByIndex(indexed.clone());
        self.push(part, len, PartEntry { frame, offset, listed })
    }

    /// Adds a part, whose frame has `len` bytes.
    fn push(&mut self, part: UpdatePart<'_>, len: u64, entry: PartEntry) -> Result<()> {
        let (at, offset) = (self.parts.len(), entry.offset);
        self.parts.push(entry);
        match self.updates.last_mut() {
            Some(update) if part.part > 0 => {
                let is_same =
                    update.manifest.id() == part.manifest.id() && update.header.same_update(&part.header);
                if !is_same {
                    let field = "part of another update";
                    return Err(Error::format(FormatErrorKind::Misplaced { field }, offset));
                }
                if let (Some(all), Some(more)) = (&mut update.header.delta, part.header.delta) {
                    all.extend(more);
                }
                if let (Some(all), Some(more)) = (&mut update.header.sums, part.header.sums) {
                    all.extend(more);
                }
                update.parts.end = at + 1;
                update.bytes += len;
            }
            _ => self.updates.push(UpdateEntry {
                header: part.header,
                manifest: part.manifest,
                bytes: len,
                parts: at..at + 1,
                index_is_true: OnceLock::new(),
            }),
        }
        Ok(())
    }

    pub(super) fn slice(&self, start: u64, len: u64) -> Result<&'a [u8]> {
        let end = start.checked_add(len);
        let range = end.and_then(|end| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?));
        range.and_then(|r| self.bytes.get(r)).ok_or(Error::format(
            FormatErrorKind::LengthMismatch { field: "index" },
            start.min(self.bytes.len() as u64),
        ))
    }

    fn header(&self, offset: u64) -> Result<FrameHeader> {
        header_at(self.bytes, offset)
    }

    /// Returns a frame's header and body, after checking both CRCs.
    fn frame(&self, offset: u64) -> Result<(FrameHeader, &'a [u8])> {
        let header = self.header(offset)?;
        let body = self.slice(offset + HEADER_LEN as u64, header.body_len)?;
        header.check_body(body, offset + HEADER_LEN as u64)?;
        Ok((header, body))
    }

    /// Returns the bytes of a part before its blocks, after checking their CRC.
    pub(super) fn head(&self, offset: u64, indexed: &IndexedUpdate) -> Result<&'a [u8]> {
        let head = self.slice(offset + HEADER_LEN as u64, indexed.head_len)?;
        check_crc(indexed.head_crc, crc32(head), offset + HEADER_LEN as u64)?;
        Ok(head)
    }

    /// Returns the updates, in order.
    pub fn updates(&self) -> &[UpdateEntry] {
        &self.updates
    }

    /// Reads the metadata between the previous update and this one; for the first update, all before it.
    ///
    /// # Errors
    /// [`Error::Format`] if a metadata frame is corrupt; [`Error::Input`] if the update does not exist.
    pub fn metadata(&self, update: usize) -> Result<Metadata> {
        self.entry(update)?;
        let mut all = Metadata::default();
        for &(offset, number, _) in self.metadata.iter().filter(|(.., before)| *before == update) {
            let (_, body) = self.frame(offset).map_err(|e| e.in_frame(number))?;
            let found = Metadata::read(body, offset + HEADER_LEN as u64, &self.limits);
            all.entries.extend(found.map_err(|e| e.in_frame(number))?.entries);
        }
        Ok(all)
    }

    /// Returns the blocks of an update as an index lists them.
    ///
    /// # Errors
    /// [`Error::Input`] if the update does not exist.
    pub fn blocks(&self, update: usize) -> Result<Vec<IndexedBlock>> {
        let entry = self.entry(update)?;
        let mut blocks = Vec::new();
        for (part, number) in self.parts[entry.parts.clone()].iter().zip(entry.parts.clone()) {
            match &part.listed {
                Listed::ByIndex(indexed) => blocks.extend(&indexed.blocks),
                Listed::Read { body_len, sets } => {
                    let last = number + 1 == entry.parts.end;
                    for raw in self.read_again(part, *body_len, sets, last)?.blocks {
                        let crc = crc32(self.slice(raw.offset, raw.len)?);
                        blocks.push(IndexedBlock::new(raw.scope, raw.len, crc));
                    }
                }
            }
        }
        Ok(blocks)
    }

    /// Returns the number of the last update of `step`, or of the last update if `step` is `None`.
    pub fn find(&self, step: Option<u64>) -> Option<usize> {
        self.updates.iter().rposition(|u| step.is_none_or(|s| u.header.step == s))
    }

    /// Returns the number of the last update.
    ///
    /// # Errors
    /// [`Error::Input`] if there is none.
    pub fn last(&self) -> Result<usize> {
        self.find(None).ok_or(Error::input(InputErrorKind::NoUpdate))
    }

    /// Returns the dense tensors of an update whose names `wanted` accepts, with their numbers in its
    /// manifest. Only blocks that contain them are read and checked.
    ///
    /// # Errors
    /// The errors of [`UpdatePart::decode`] and [`Assembler`]; [`Error::Input`] if the update does not exist.
    pub fn tensors(
        &self,
        update: usize,
        wanted: impl Fn(&str) -> bool,
        base: &BTreeMap<String, TensorView<'_>>,
    ) -> Result<Vec<(u64, TensorBuf)>> {
        let entry = self.entry(update)?;
        let mut assembler = Assembler::new(&entry.manifest, &self.limits, wanted)?;
        for (name, tensor) in base.iter().filter(|_| entry.header.is_delta()) {
            assembler.base(name, *tensor)?;
        }
        self.apply(update, &mut assembler)?;
        assembler.finish()
    }

    /// Applies an update to the tensors of an assembler. Only blocks that contain them are read and checked.
    ///
    /// # Errors
    /// The errors of [`UpdatePart::decode`] and [`Assembler::apply`]; [`Error::Input`] if the update does not
    /// exist.
    pub fn apply(&self, update: usize, assembler: &mut Assembler<'_>) -> Result<()> {
        let entry = self.entry(update)?;
        let wanted: Vec<bool> =
            (0..entry.manifest.tensors().len() as u64).map(|number| assembler.is_wanted(number)).collect();
        for part in self.wanted_parts(entry, wanted) {
            assembler.apply(&part?)?;
        }
        Ok(())
    }

    /// Returns the parts of an update with the blocks that contain tensors whose names `wanted` accepts. Only
    /// these blocks are read and checked.
    ///
    /// # Errors
    /// The errors of [`UpdatePart::decode`]; [`Error::Input`] if the update does not exist.
    pub fn parts(&self, update: usize, wanted: impl Fn(&str) -> bool) -> Result<Vec<UpdatePart<'a>>> {
        let entry = self.entry(update)?;
        let wanted = entry.manifest.tensors().iter().map(|info| wanted(&info.name)).collect();
        self.wanted_parts(entry, wanted).collect()
    }

    /// Returns the limits that the file was opened with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn entry(&self, update: usize) -> Result<&UpdateEntry> {
        self.updates.get(update).ok_or(Error::out_of_bounds("update", update, self.updates.len()))
    }

    /// Returns one dense tensor of an update.
    ///
    /// # Errors
    /// The errors of [`Self::tensors`]; [`Error::Input`] if the update's manifest has no such tensor.
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

fn header_at(bytes: &[u8], offset: u64) -> Result<FrameHeader> {
    let start = usize::try_from(offset).ok();
    let header = start.and_then(|s| bytes.get(s..)).and_then(<[u8]>::first_chunk::<HEADER_LEN>);
    // An index may place a frame past the end.
    let truncated = Error::format(FormatErrorKind::Truncated, offset.min(bytes.len() as u64));
    FrameHeader::read(header.ok_or(truncated)?, offset)
}

/// Returns the end frame of a finished stream: the bytes of its header, its offset and the frame.
pub(super) fn read_end(bytes: &[u8]) -> Result<(&[u8; HEADER_LEN], u64, End)> {
    let len = bytes.len() as u64;
    let truncated = Error::format(FormatErrorKind::Truncated, len);
    let Some(start) = bytes.len().checked_sub(HEADER_LEN + End::BODY_LEN) else { return Err(truncated) };
    let offset = start as u64;
    // A truncated file ends in the middle of a frame, which gives a bad header here.
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

/// Returns the index of a finished stream.
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
    let body = &bytes[in_memory(body_offset)..in_memory(end_offset)];
    header.check_body(body, body_offset)?;
    let index = Index::read(body, body_offset)?;
    let listed = index.frames.iter().try_fold(PREAMBLE_LEN as u64, |at, f| at.checked_add(f.len));
    if listed != Some(end.index_offset) {
        return Err(Error::format(FormatErrorKind::NotCanonical { field: "index" }, body_offset));
    }
    Ok(index)
}

/// Compares the headers of all frames with the index, and with count and chain of the end frame (END-1), so
/// that no frame is omitted or exchanged.
fn check_frames(bytes: &[u8], index: &Index) -> Result<()> {
    let (_, end_offset, end) = read_end(bytes)?;
    let mut chain = crc32fast::Hasher::new();
    let index_frame = IndexedFrame { kind: FrameKind::INDEX, len: end_offset - end.index_offset };
    let frames = index.frame_offsets().chain([(end.index_offset, index_frame)]);
    for (number, (offset, frame)) in frames.enumerate() {
        let header = header_at(bytes, offset).map_err(|e| e.in_frame(number as u64))?;
        let len = header.body_len.checked_add(HEADER_LEN as u64);
        if (header.kind, len) != (frame.kind, Some(frame.len)) {
            let wrong = Error::format(FormatErrorKind::NotCanonical { field: "index" }, offset);
            return Err(wrong.in_frame(number as u64));
        }
        chain.update(&header.to_bytes()[..CHAINED_LEN]);
    }
    let at = end_offset + HEADER_LEN as u64;
    if end.frame_count != index.frames.len() as u64 + 1 {
        return Err(Error::format(FormatErrorKind::CountMismatch { field: "frame_count" }, at));
    }
    check_crc(end.chain, chain.finalize(), at + 16)
}

#[cfg(test)]
mod tests;
