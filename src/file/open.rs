use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::bits::{check_crc, crc32};
use crate::block::{RawBlock, Sets};
use crate::error::{Error, FormatErrorKind, InputErrorKind, Result};
use crate::frame::{
    BlockOrder, CHAINED_LEN, End, FrameHeader, FrameKind, HEADER_LEN, Index, IndexSet, IndexedBlock,
    IndexedFrame, IndexedUpdate, Manifest, ManifestId, Metadata, PREAMBLE_LEN, Preamble, UpdateHeader,
    UpdatePart,
};
use crate::limits::{Limits, in_memory};
use crate::stream::{Assembler, Definitions};
use crate::tensor::{TensorBuf, TensorView};

/// Random access to a finished stream in memory, for instance a mapped file. It lists the updates from the
/// index, and reads only the requested parts of them.
pub struct File<'a> {
    bytes: &'a [u8],
    limits: Limits,
    manifests: HashMap<ManifestId, Arc<Manifest>>,
    sets: Arc<Sets>,
    parts: Vec<PartEntry>,
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
    parts: std::ops::Range<usize>,
}

/// A part of an update, as the index lists it, and the offset of its frame.
struct PartEntry {
    /// Number of the frame.
    frame: u64,
    offset: u64,
    indexed: IndexedUpdate,
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
        let mut file = Self {
            bytes,
            limits,
            manifests: HashMap::new(),
            sets: Arc::default(),
            parts: Vec::new(),
            updates: Vec::new(),
            metadata: Vec::new(),
        };
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
        // A tensor with blocks in several parts is listed by each of them.
        for delta in file.updates.iter_mut().filter_map(|update| update.header.delta.as_mut()) {
            delta.sort_by_key(|d| d.first);
            delta.dedup();
        }
        Ok(file)
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
        let at = self.parts.len();
        self.parts.push(PartEntry { frame, offset, indexed: indexed.clone() });
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
    fn head(&self, offset: u64, indexed: &IndexedUpdate) -> Result<&'a [u8]> {
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

    /// Returns the blocks of an update as the index lists them, without reading them.
    ///
    /// # Errors
    /// [`Error::Input`] if the update does not exist.
    pub fn blocks(&self, update: usize) -> Result<impl Iterator<Item = &IndexedBlock>> {
        let parts = &self.parts[self.entry(update)?.parts.clone()];
        Ok(parts.iter().flat_map(|part| &part.indexed.blocks))
    }

    /// Returns the number of the last update of `step`, or of the last update if `step` is `None`.
    pub fn find(&self, step: Option<u64>) -> Option<usize> {
        self.updates.iter().rposition(|u| step.is_none_or(|s| u.header.step == s))
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
        for (name, tensor) in base {
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
        let tensors = entry.manifest.tensors().iter().zip(0..);
        let wanted: HashSet<&str> =
            tensors.filter(|(_, number)| assembler.is_wanted(*number)).map(|(info, _)| &*info.name).collect();
        for part in self.wanted_parts(entry, |name| wanted.contains(name)) {
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
        self.wanted_parts(self.entry(update)?, wanted).collect()
    }

    fn entry(&self, update: usize) -> Result<&UpdateEntry> {
        self.updates.get(update).ok_or(Error::out_of_bounds("update", update, self.updates.len()))
    }

    fn wanted_parts(
        &self,
        entry: &UpdateEntry,
        wanted: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = Result<UpdatePart<'a>>> {
        // Number of wanted tensors before each tensor: a block is tested in constant time, however many
        // tensors it claims.
        let mut wanted_before = vec![0u64];
        for needed in needed(entry, &wanted) {
            wanted_before.push(wanted_before[wanted_before.len() - 1] + u64::from(needed));
        }
        let mut order = BlockOrder::default();
        let numbers = entry.parts.clone();
        numbers
            .map(move |number| self.part(number, number + 1 == entry.parts.end, &wanted_before, &mut order))
    }

    /// Reads the wanted blocks of a part. The others must be where the index says.
    fn part(
        &self,
        number: usize,
        last: bool,
        wanted_before: &[u64],
        order: &mut BlockOrder,
    ) -> Result<UpdatePart<'a>> {
        let part = &self.parts[number];
        let head = self.head(part.offset, &part.indexed).map_err(|e| e.in_frame(part.frame))?;
        let mut at = part.offset + HEADER_LEN as u64 + part.indexed.head_len;
        let mut blocks = Vec::new();
        for (block_number, block) in (0..).zip(&part.indexed.blocks) {
            let place = |e: Error| e.in_frame(part.frame).in_block(block_number);
            let bytes = self.slice(at, block.len).map_err(place)?;
            let is_wanted = touches_wanted(block, wanted_before);
            if is_wanted {
                check_crc(block.crc, crc32(bytes), at).map_err(|e| place(e).in_tensor(block.first))?;
            }
            // The index entry of a skipped block must be true too, or data would be missing from the result.
            let (scope, add) = RawBlock::scope_of(bytes, at).map_err(place)?;
            if (scope.first(), scope.tensors()) != (block.first, block.tensors) {
                return Err(place(Error::format(FormatErrorKind::NotCanonical { field: "index" }, at)));
            }
            if !order.accept(scope, add) {
                return Err(place(Error::format(FormatErrorKind::NotAscending, at)));
            }
            if is_wanted {
                blocks.push((bytes, at));
            }
            at = at.saturating_add(block.len);
        }
        let body_offset = part.offset + HEADER_LEN as u64;
        let mut read =
            UpdatePart::read_blocks(head, body_offset, &blocks, last, &self.limits, &self.sets, |id| {
                self.manifests.get(&id).map(Arc::clone)
            })
            .map_err(|e| e.in_frame(part.frame))?;
        read.frame = Some(part.frame);
        Ok(read)
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

/// Returns for each tensor whether its blocks are needed: those of wanted tensors, and those of the tensors
/// that share a digest with one.
fn needed(entry: &UpdateEntry, wanted: impl Fn(&str) -> bool) -> Vec<bool> {
    let mut needed: Vec<bool> = entry.manifest.tensors().iter().map(|t| wanted(&t.name)).collect();
    for run in entry.header.delta.iter().flatten().filter(|run| run.more > 0) {
        let run = &mut needed[in_memory(run.first)..=in_memory(run.last())];
        let any = run.contains(&true);
        run.fill(any);
    }
    needed
}

/// Whether a block touches a wanted tensor. `wanted_before` has an entry for each tensor of the manifest and
/// one more.
fn touches_wanted(block: &IndexedBlock, wanted_before: &[u64]) -> bool {
    let before = |tensor: u64| {
        let last = wanted_before.len() - 1;
        wanted_before[usize::try_from(tensor).map_or(last, |t| t.min(last))]
    };
    before(block.first) < before(block.first.saturating_add(block.tensors))
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
mod tests {
    use super::*;
    use crate::block::{Block, BlockOptions, Floats, Scope, Sparse, Support, Ulp, Values};
    use crate::file::{index_start, ranges};
    use crate::frame::{Delta, IndexedFrame, Metadata, TensorInfo, run_digest, tensor_digest};
    use crate::stream::{EncodeOptions, Encoder};
    use crate::tensor::Dtype;

    /// Metadata, then two updates of two tensors each.
    fn stream() -> Vec<u8> {
        let tensors = ["a", "b", "c"].map(|name| TensorInfo::new(name, Dtype::F32, [4]));
        let manifest = Arc::new(Manifest::new(tensors.to_vec()).unwrap());
        let block = |tensor, value: f32| Block {
            scope: Scope::Tensor(tensor),
            add: false,
            support: Support::Sparse(Sparse { positions: vec![tensor] }),
            values: Values::Floats(Floats {
                stored: crate::block::Stored::F32,
                bytes: value.to_le_bytes().to_vec(),
            }),
        };
        let mut encoder = Encoder::new(EncodeOptions::default());
        let mut out = Vec::new();
        encoder.metadata(&mut out, &Metadata { entries: [("k".to_owned(), "v".to_owned())].into() });
        for step in 0..2u8 {
            let blocks = [block(0, f32::from(step)), block(2, 3.0 + f32::from(step))];
            let header = UpdateHeader::default().with_step(step.into()).with_sender(7);
            encoder.update(&mut out, &header, &manifest, &blocks).unwrap();
        }
        encoder.finish(&mut out);
        out
    }

    /// Replaces the index of a stream; the rest is what a valid writer of that index would write.
    fn with_index(bytes: &[u8], index: &Index) -> Vec<u8> {
        let (_, _, end) = read_end(bytes).unwrap();
        let frames = bytes[..end.index_offset as usize].to_vec();
        finished(frames, &read_index(bytes).unwrap(), index, end)
    }

    /// Appends an index and an end to the frames that `honest` lists.
    fn finished(mut out: Vec<u8>, honest: &Index, index: &Index, end: End) -> Vec<u8> {
        let end = End { index_offset: out.len() as u64, ..end };
        let mut chain = crc32fast::Hasher::new();
        for (offset, _) in honest.frame_offsets() {
            chain.update(&out[offset as usize..][..CHAINED_LEN]);
        }
        let mut put = |out: &mut Vec<u8>, kind, body: &[u8]| {
            let header = FrameHeader::of(kind, 0, body).to_bytes();
            chain.update(&header[..CHAINED_LEN]);
            out.extend(header);
            out.extend(body);
            chain.clone().finalize()
        };
        let chain = put(&mut out, FrameKind::INDEX, &index.body());
        let end = End { frame_count: index.frames.len() as u64 + 1, chain, ..end };
        put(&mut out, FrameKind::END, &end.body());
        out
    }

    /// Reads all tensors of all updates.
    fn read(bytes: &[u8]) -> Result<Vec<TensorBuf>> {
        let file = File::open(bytes, Limits::default())?;
        let mut all = Vec::new();
        for update in 0..file.updates().len() {
            for name in ["a", "b", "c"] {
                all.push(file.tensor(update, name, &BTreeMap::new())?);
            }
        }
        Ok(all)
    }

    #[test]
    fn the_parts_of_an_update_share_their_manifest_and_header() {
        let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1));
        let mut bytes = Vec::new();
        for (tensors, step) in [(2, 0), (10, 0), (2, 1)] {
            let infos = (0..tensors).map(|i| TensorInfo::new(format!("t{i}"), Dtype::F32, [1]));
            let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
            let block = |tensor| Block {
                scope: Scope::Tensor(tensor),
                add: false,
                support: Support::All,
                values: Values::Floats(Floats { stored: crate::block::Stored::F32, bytes: vec![0; 4] }),
            };
            // Of the second update, the last part has a run that the first manifest does not have.
            let run = |first, more| Delta { first, more, base: [1; 16], result: [2; 16] };
            let delta = vec![run(0, 0), run(tensors - 1, 0)];
            let header = UpdateHeader::default().with_step(step).with_delta(Some(delta));
            encoder.update(&mut bytes, &header, &manifest, &[block(0), block(tensors - 1)]).unwrap();
        }
        encoder.finish(&mut bytes);
        let whole = read_index(&bytes).unwrap();
        let parts: Vec<usize> =
            (0..whole.frames.len()).filter(|&i| whole.frames[i].kind == FrameKind::UPDATE).collect();
        assert_eq!(parts.len(), 6);
        let offsets: Vec<(u64, IndexedFrame)> = whole.frame_offsets().collect();
        let (_, _, end) = read_end(&bytes).unwrap();
        // The first part of the first update, and the last part of another one.
        for (last, refused) in [(1, false), (3, true), (5, true)] {
            let (mut frames, mut index) = (bytes[..16].to_vec(), Index { frames: vec![], updates: vec![] });
            for (i, &(offset, frame)) in offsets.iter().enumerate() {
                if let Some(part) = parts.iter().position(|&p| p == i) {
                    if ![0, last].contains(&part) {
                        continue;
                    }
                    index.updates.push(whole.updates[part].clone());
                }
                frames.extend(&bytes[offset as usize..][..frame.len as usize]);
                index.frames.push(frame);
            }
            let bytes = finished(frames, &index, &index, end);
            let opened = File::open(&bytes, Limits::default()).map(|file| file.updates().len());
            match refused {
                false => assert_eq!(opened.unwrap(), 1),
                true => assert_eq!(opened.unwrap_err().name(), "misplaced"),
            }
        }
    }

    #[test]
    fn every_wrong_field_of_an_index_is_detected() {
        let bytes = stream();
        let honest = read_index(&bytes).unwrap();
        assert_eq!(with_index(&bytes, &honest), bytes);
        assert_eq!(read(&bytes).unwrap().len(), 6);
        let mut wrong = Vec::new();
        let mut change_with = |change: &dyn Fn(&mut Index)| {
            let mut index = honest.clone();
            change(&mut index);
            assert_ne!(index, honest);
            wrong.push(index);
        };
        for by in [1, u64::MAX, 1 << 40] {
            for update in 0..2 {
                change_with(&|i| i.updates[update].step = i.updates[update].step.wrapping_add(by));
                change_with(&|i| i.updates[update].sender = i.updates[update].sender.wrapping_add(by));
                change_with(&|i| i.updates[update].head_len = i.updates[update].head_len.wrapping_add(by));
                change_with(&|i| i.updates[update].head_crc ^= 1 << (by % 32));
                for block in 0..2 {
                    let of = move |i: &mut Index, change: &dyn Fn(&mut IndexedBlock)| {
                        change(&mut i.updates[update].blocks[block]);
                    };
                    change_with(&|i| of(i, &|b| b.first = b.first.wrapping_add(by)));
                    change_with(&|i| of(i, &|b| b.tensors = b.tensors.wrapping_add(by)));
                    change_with(&|i| of(i, &|b| b.len = b.len.wrapping_add(by)));
                    change_with(&|i| of(i, &|b| b.crc ^= 1 << (by % 32)));
                    // The sum of the lengths stays right.
                    change_with(&|i| {
                        of(i, &|b| b.len = b.len.wrapping_add(by));
                        i.updates[update].head_len = i.updates[update].head_len.wrapping_sub(by);
                    });
                }
                change_with(&|i| i.updates[update].blocks.truncate(1));
                change_with(&|i| i.updates[update].blocks.reverse());
            }
            for frame in 0..honest.frames.len() {
                change_with(&|i| i.frames[frame].len = i.frames[frame].len.wrapping_add(by));
            }
        }
        change_with(&|i| i.updates.reverse());
        // An update listed as a frame that readers skip, or not listed.
        for (kind, update) in [(2, 0), (3, 1)] {
            change_with(&|i| {
                i.frames[kind].kind = FrameKind::METADATA;
                i.updates.remove(update);
            });
            change_with(&|i| {
                let removed = i.frames.remove(kind);
                i.frames[kind - 1].len += removed.len;
                i.updates.remove(update);
            });
        }
        for index in wrong {
            let error = read(&with_index(&bytes, &index)).unwrap_err();
            let at = error.location().unwrap_or_else(|| panic!("{error} has no place")).offset;
            assert!(matches!(error, Error::Format(_)) && at <= bytes.len() as u64, "{error}");
        }
    }

    /// Kind, flags and body of a frame.
    type Frame = (FrameKind, u16, Vec<u8>);

    /// Changes the frames of a stream and the entries of its updates; lengths and checksums are right again.
    fn rebuilt(bytes: &[u8], change: impl FnOnce(&mut [Frame], &mut [IndexedUpdate])) -> Vec<u8> {
        let mut index = read_index(bytes).unwrap();
        let frame = |(offset, frame): (u64, IndexedFrame)| {
            let body = in_memory(offset) + HEADER_LEN..in_memory(offset + frame.len);
            (frame.kind, header_at(bytes, offset).unwrap().flags, bytes[body].to_vec())
        };
        let mut frames: Vec<Frame> = index.frame_offsets().map(frame).collect();
        change(&mut frames, &mut index.updates);
        let updates = frames.iter().filter(|(kind, ..)| *kind == FrameKind::UPDATE);
        for (entry, (.., body)) in index.updates.iter_mut().zip(updates) {
            let (head, mut rest) = body.split_at(in_memory(entry.head_len));
            entry.head_crc = crc32(head);
            for block in &mut entry.blocks {
                let own = rest.split_off(..in_memory(block.len)).unwrap();
                block.crc = crc32(own);
            }
        }
        let mut out = bytes[..PREAMBLE_LEN].to_vec();
        for (listed, (kind, flags, body)) in index.frames.iter_mut().zip(frames) {
            let header = FrameHeader::of(kind, flags, &body);
            *listed = IndexedFrame { kind, len: HEADER_LEN as u64 + header.body_len };
            out.extend(header.to_bytes());
            out.extend(body);
        }
        finished(out, &index, &index, read_end(bytes).unwrap().2)
    }

    /// Changes the end of a stream; its checksum is right again.
    fn with_end(bytes: &[u8], change: impl FnOnce(&mut End)) -> Vec<u8> {
        let (_, offset, mut end) = read_end(bytes).unwrap();
        change(&mut end);
        let body = end.body();
        let header = FrameHeader::of(FrameKind::END, 0, &body).to_bytes();
        [&bytes[..in_memory(offset)], &header, &body].concat()
    }

    /// The number of updates of a file, or the kind and the offset of the error.
    fn opened(bytes: &[u8]) -> Result<usize, (&'static str, u64)> {
        let opened = File::open(bytes, Limits::default()).map(|file| file.updates().len());
        opened.map_err(|e| (e.name(), e.location().unwrap().offset))
    }

    fn offsets(bytes: &[u8]) -> Vec<u64> {
        read_index(bytes).unwrap().frame_offsets().map(|(offset, _)| offset).collect()
    }

    /// Tensors of four elements: `a`, `b` and `c`.
    fn manifest() -> Arc<Manifest> {
        let tensors = ["a", "b", "c"].map(|name| TensorInfo::new(name, Dtype::F32, [4]));
        Arc::new(Manifest::new(tensors.to_vec()).unwrap())
    }

    /// A block of four equal numbers.
    fn filled(tensor: u64, value: f32) -> Block {
        let bytes = value.to_le_bytes().repeat(4);
        let values = Values::Floats(Floats { stored: crate::block::Stored::F32, bytes });
        Block { scope: Scope::Tensor(tensor), add: false, support: Support::All, values }
    }

    #[test]
    fn a_file_begins_with_a_preamble_and_ends_with_an_end() {
        let bytes = stream();
        assert_eq!(opened(&bytes), Ok(2));
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            opened(&bytes)
        };
        let (_, end, End { index_offset, .. }) = read_end(&bytes).unwrap();
        let body = |frame: u64| frame + HEADER_LEN as u64;
        assert_eq!(changed(0), Err(("bad_magic", 0)));
        assert_eq!(changed(in_memory(body(index_offset))), Err(("checksum_mismatch", body(index_offset))));
        assert_eq!(changed(in_memory(body(end))), Err(("checksum_mismatch", body(end))));
        // The bytes of an end, but not its kind or not its length.
        let start = || bytes[..PREAMBLE_LEN].to_vec();
        let private = FrameHeader::of(FrameKind(0xf000), 0, &[7; End::BODY_LEN]).to_bytes();
        let short = FrameHeader::of(FrameKind::END, 0, &[7; End::BODY_LEN - 1]).to_bytes();
        for header in [private, short] {
            let bytes = [start(), header.to_vec(), vec![7; End::BODY_LEN]].concat();
            assert_eq!(opened(&bytes), Err(("truncated", bytes.len() as u64)));
        }
    }

    #[test]
    fn the_end_of_a_file_tells_where_its_index_is() {
        let bytes = stream();
        let (_, end, End { index_offset, .. }) = read_end(&bytes).unwrap();
        let missing = Err(("out_of_range", end));
        let pointing = |offset| with_end(&bytes, |end| end.index_offset = offset);
        assert_eq!(opened(&pointing(0)), missing);
        assert_eq!(opened(&pointing(offsets(&bytes)[1])), missing);
        assert_eq!(opened(&pointing(end)), missing);
        assert_eq!(opened(&pointing(1 << 40)), Err(("truncated", bytes.len() as u64)));
        assert_eq!(index_start(&bytes).unwrap(), index_offset);
        for offset in [0, 15, end, u64::MAX] {
            let e = index_start(&pointing(offset)).unwrap_err();
            assert_eq!((e.name(), e.location().unwrap().offset), ("out_of_range", end), "{offset}");
        }
        let empty = Encoder::new(EncodeOptions::default()).finish_empty();
        assert_eq!(index_start(&empty).unwrap(), PREAMBLE_LEN as u64);
        // A frame of another kind before the end, whose body is an index.
        let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
        let mut bytes = Vec::new();
        encoder.private(&mut bytes, FrameKind(0xf000), &Index::default().body()).unwrap();
        let end = bytes.len() as u64;
        encoder.finish(&mut bytes);
        let bytes = with_end(&bytes, |end| end.index_offset = PREAMBLE_LEN as u64);
        assert_eq!(opened(&bytes), Err(("out_of_range", end)));
        // The index of an earlier segment.
        let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.finish(&mut bytes);
        let first = read_end(&bytes).unwrap().2.index_offset;
        encoder.finish(&mut bytes);
        let end = read_end(&bytes).unwrap().1;
        assert_eq!(opened(&bytes), Ok(0));
        assert_eq!(opened(&with_end(&bytes, |end| end.index_offset = first)), Err(("out_of_range", end)));
    }

    #[test]
    fn no_frame_is_missing_in_an_index() {
        let bytes = stream();
        let (_, end, End { index_offset, .. }) = read_end(&bytes).unwrap();
        let body = end + HEADER_LEN as u64;
        assert_eq!(opened(&with_end(&bytes, |end| end.frame_count += 1)), Err(("count_mismatch", body)));
        assert_eq!(opened(&with_end(&bytes, |end| end.chain ^= 1)), Err(("checksum_mismatch", body + 16)));
        // The last update is in the file, but neither in the index nor in the count and the chain of the end.
        let mut short = read_index(&bytes).unwrap();
        short.frames.pop();
        short.updates.pop();
        let frames = bytes[..in_memory(index_offset)].to_vec();
        let short = finished(frames, &short, &short, read_end(&bytes).unwrap().2);
        assert_eq!(opened(&short), Err(("not_canonical", index_offset + HEADER_LEN as u64)));
        // A block that is longer than the file.
        let mut long = read_index(&bytes).unwrap();
        long.updates[0].blocks[1].len += 1 << 40;
        let e = ranges(&with_index(&bytes, &long), &[0, 1, 2]).unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("length_mismatch", index_offset));
    }

    #[test]
    fn errors_of_a_file_have_their_places() {
        let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
        let (manifest, scope) = (manifest(), Scope::Tensor(0));
        let support = Support::Sparse(Sparse { positions: vec![1] });
        let set = IndexSet { manifest: manifest.id(), step: 0, leader: 0, world: 0, scope, support };
        encoder.index_set(&mut bytes, &set, &manifest, BlockOptions::default()).unwrap();
        let blocks = [filled(0, 1.0), filled(1, 2.0)];
        encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, &blocks).unwrap();
        encoder.finish(&mut bytes);
        assert_eq!(opened(&bytes), Ok(1));
        let bodies: Vec<u64> = offsets(&bytes).iter().map(|offset| offset + HEADER_LEN as u64).collect();
        let place = |e: Error| {
            let at = e.location().unwrap();
            (e.name(), at.offset, at.frame, at.block)
        };
        // The set and the update refer to a manifest that does not exist.
        for number in [1, 2] {
            let bytes = rebuilt(&bytes, |frames, _| frames[number].2[0] ^= 1);
            let e = File::open(&bytes, Limits::default()).map(drop).unwrap_err();
            assert_eq!(place(e), ("unknown_reference", bodies[number], Some(number as u64), None));
        }
        let mut index = read_index(&bytes).unwrap();
        index.updates[0].head_crc ^= 1;
        let e = File::open(&with_index(&bytes, &index), Limits::default()).map(drop).unwrap_err();
        assert_eq!(place(e), ("checksum_mismatch", bodies[2], Some(2), None));
        // Numbers in a form that does not exist, before the 16 bytes at the end of the first block.
        let entry = &read_index(&bytes).unwrap().updates[0];
        let at = entry.block_offset(1) - 17;
        let wrong = rebuilt(&bytes, |frames, _| frames[2].2[in_memory(at)] = 9);
        let file = File::open(&wrong, Limits::default()).unwrap();
        let e = file.tensor(0, "a", &BTreeMap::new()).unwrap_err();
        assert_eq!(place(e), ("out_of_range", bodies[2] + at, Some(2), Some(0)));
        assert!(file.tensor(0, "b", &BTreeMap::new()).is_ok());
        // Blocks in the wrong order.
        let swapped = rebuilt(&bytes, |frames, entries| {
            let [first, second] = [0, 1].map(|block| in_memory(entries[0].block_offset(block)));
            frames[2].2[first..].rotate_left(second - first);
            entries[0].blocks.swap(0, 1);
        });
        let e = File::open(&swapped, Limits::default()).unwrap().parts(0, |_| true).unwrap_err();
        let second = read_index(&swapped).unwrap().updates[0].block_offset(1);
        assert_eq!(place(e), ("not_ascending", bodies[2] + second, Some(2), Some(1)));
    }

    #[test]
    fn the_manifests_of_a_file_are_limited() {
        let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.manifest(&mut bytes, &manifest());
        let second = bytes.len() as u64;
        encoder.manifest(&mut bytes, &Arc::new(Manifest::new(vec![]).unwrap()));
        encoder.finish(&mut bytes);
        let open = |most| File::open(&bytes, Limits::default().with_max_definitions(most)).map(drop);
        assert!(open(2).is_ok());
        let e = open(1).unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("limit", second));
    }

    #[test]
    fn the_parts_of_an_update_are_read_together() {
        let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1));
        let (mut bytes, manifest) = (Vec::new(), manifest());
        let values = [5.0, 6.0, 7.0];
        let blocks: Vec<Block> = (0..).zip(values).map(|(tensor, value)| filled(tensor, value)).collect();
        encoder.update(&mut bytes, &UpdateHeader::default(), &manifest, &blocks).unwrap();
        // Added blocks in any order, so that the first part lists the second run of the delta.
        let run = |first| Delta { first, more: 0, base: [1; 16], result: [2; 16] };
        let delta = vec![run(0), run(1), run(2)];
        let header = UpdateHeader::default().with_step(1).with_delta(Some(delta.clone()));
        let added = [1, 0, 1, 2].map(|tensor| Block { add: true, ..filled(tensor, 1.0) });
        encoder.update(&mut bytes, &header, &manifest, &added).unwrap();
        encoder.finish(&mut bytes);
        let file = File::open(&bytes, Limits::default()).unwrap();
        assert_eq!(file.updates().len(), 2);
        assert_eq!(file.blocks(0).unwrap().map(|b| b.first).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(file.blocks(1).unwrap().map(|b| b.first).collect::<Vec<_>>(), [1, 0, 1, 2]);
        let tensors = file.tensors(0, |_| true, &BTreeMap::new()).unwrap();
        let expected = values.map(|value| TensorBuf::from_f32(vec![4], &[value; 4]).unwrap());
        assert_eq!(tensors, Vec::from_iter((0..).zip(expected)));
        assert_eq!(file.updates()[1].header.delta, Some(delta));
        let manifest_len = read_index(&bytes).unwrap().frames[0].len;
        let listed: u64 = file.updates().iter().map(|update| update.bytes).sum();
        assert_eq!(listed + manifest_len + PREAMBLE_LEN as u64, index_start(&bytes).unwrap());
    }

    #[test]
    fn a_tensor_is_read_with_those_that_share_its_digest() {
        let manifest = manifest();
        let old = [1.0, 2.0, 3.0].map(|value| TensorBuf::from_f32(vec![4], &[value; 4]).unwrap());
        let new = old.clone().map(|mut tensor| {
            tensor.data_mut()[4] += 1;
            tensor
        });
        let digest = |tensors: &[TensorBuf]| {
            run_digest(&Vec::from_iter(tensors.iter().map(|tensor| tensor_digest(tensor.view()))))
        };
        let run = |first: usize, more: usize| Delta {
            first: first as u64,
            more: more as u64,
            base: digest(&old[first..=first + more]),
            result: digest(&new[first..=first + more]),
        };
        let block = |tensor| Block {
            scope: Scope::Tensor(tensor),
            add: false,
            support: Support::Sparse(Sparse { positions: vec![1] }),
            values: Values::Ulp(Ulp { diffs: vec![1] }),
        };
        let header = UpdateHeader::default().with_delta(Some(vec![run(0, 1), run(2, 0)]));
        let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
        encoder.update(&mut bytes, &header, &manifest, &[block(0), block(1), block(2)]).unwrap();
        encoder.finish(&mut bytes);
        let file = File::open(&bytes, Limits::default()).unwrap();
        let names = ["a", "b", "c"];
        let base = |numbers: &[usize]| -> BTreeMap<String, TensorView<'_>> {
            numbers.iter().map(|&i| (names[i].to_owned(), old[i].view())).collect()
        };
        for (number, needed) in [(0, &[0, 1][..]), (1, &[0, 1]), (2, &[2])] {
            assert_eq!(file.tensor(0, names[number], &base(needed)).unwrap(), new[number]);
            let e = file.tensor(0, names[number], &base(&needed[1..])).unwrap_err();
            assert_eq!(e.name(), "unknown_reference");
            assert_eq!(file.parts(0, |name| name == names[number]).unwrap()[0].blocks.len(), needed.len());
        }
    }

    #[test]
    fn metadata_belongs_to_the_update_behind_it() {
        let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
        let entries = |keys: &[&str]| Metadata {
            entries: keys.iter().map(|&key| (key.to_owned(), "v".to_owned())).collect(),
        };
        let update = |encoder: &mut Encoder, bytes: &mut Vec<u8>| {
            encoder.update(bytes, &UpdateHeader::default(), &manifest(), &[filled(0, 1.0)]).unwrap();
        };
        encoder.metadata(&mut bytes, &entries(&["x"]));
        encoder.metadata(&mut bytes, &entries(&["y", "z"]));
        update(&mut encoder, &mut bytes);
        update(&mut encoder, &mut bytes);
        encoder.metadata(&mut bytes, &entries(&["u"]));
        update(&mut encoder, &mut bytes);
        encoder.finish(&mut bytes);
        let file = File::open(&bytes, Limits::default()).unwrap();
        let found = [0, 1, 2].map(|update| file.metadata(update).unwrap());
        assert_eq!(found, [entries(&["x", "y", "z"]), entries(&[]), entries(&["u"])]);
        assert_eq!(file.metadata(3).unwrap_err().name(), "input");
        // A form of metadata that does not exist.
        let wrong = rebuilt(&bytes, |frames, _| frames[1].2[0] = 9);
        let e = File::open(&wrong, Limits::default()).unwrap().metadata(0).unwrap_err();
        let at = e.location().unwrap();
        let body = offsets(&bytes)[1] + HEADER_LEN as u64;
        assert_eq!((e.name(), at.offset, at.frame), ("out_of_range", body, Some(1)));
    }
}
