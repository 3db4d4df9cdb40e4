use std::collections::HashMap;
use std::sync::Arc;

use crc32fast::Hasher;

use crate::bits::Output;
use crate::block::{BlockOptions, Coded, PendingBlock, SetId, Sets, WireBlock};
use crate::error::{Error, Result};
use crate::frame::{
    CHAINED_LEN, End, FrameHeader, FrameKind, HEADER_LEN, Index, IndexSet, IndexedFrame, IndexedUpdate,
    Manifest, ManifestId, Metadata, Model, PREAMBLE_LEN, Part, Preamble, Unwritten, UpdateHeader, UpdatePart,
    VERSION_MINOR, write_parts,
};
use crate::limits::Limits;

/// Choices of a writer that the format leaves open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncodeOptions {
    /// Approximate bytes of values, before coding, in one part of an update. A block is never split. Not
    /// stored. Default: 64 MiB.
    pub part_bytes: u64,
    /// Whether a segment ends in an index. Turn it off for segments that never end: an encoder keeps an entry
    /// for each block. Default: true.
    pub index: bool,
    /// Whether metadata and models may be compressed with zstd. Default: true.
    pub compress: bool,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { part_bytes: 64 << 20, index: true, compress: true }
    }
}

impl EncodeOptions {
    /// Sets [`EncodeOptions::part_bytes`].
    #[must_use]
    pub fn with_part_bytes(mut self, part_bytes: u64) -> Self {
        self.part_bytes = part_bytes;
        self
    }

    /// Sets [`EncodeOptions::index`].
    #[must_use]
    pub fn with_index(mut self, index: bool) -> Self {
        self.index = index;
        self
    }

    /// Sets [`EncodeOptions::compress`].
    #[must_use]
    pub fn with_compress(mut self, compress: bool) -> Self {
        self.compress = compress;
        self
    }
}

/// Encodes a stream without IO: each call appends whole frames to the caller's buffer, a `Vec<u8>` or another
/// [`Output`].
///
/// A call that fails appends nothing and does not change the encoder.
pub struct Encoder {
    options: EncodeOptions,
    started: bool,
    offset: u64,
    frames: u64,
    chain: crc32fast::Hasher,
    index: Index,
    manifests: HashMap<ManifestId, Arc<Manifest>>,
    sets: Sets,
}

impl Encoder {
    /// Returns an encoder at the beginning of a stream.
    pub fn new(options: EncodeOptions) -> Self {
        Self {
            options,
            started: false,
            offset: PREAMBLE_LEN as u64,
            frames: 0,
            chain: crc32fast::Hasher::new(),
            index: Index::default(),
            manifests: HashMap::new(),
            sets: Sets::new(),
        }
    }

    /// Returns an encoder that continues a stream of `offset` bytes after its end frame `end`, whose header
    /// is `end_header`. `index` lists all frames, `end` included.
    pub(crate) fn resume(
        options: EncodeOptions,
        end: End,
        end_header: &[u8; HEADER_LEN],
        offset: u64,
        index: Index,
    ) -> Self {
        let mut chain = crc32fast::Hasher::new_with_initial(end.chain);
        chain.update(&end_header[..CHAINED_LEN]);
        Self { started: true, offset, frames: end.frame_count + 1, chain, index, ..Self::new(options) }
    }

    /// Registers a manifest that the stream already contains.
    pub(crate) fn know_manifest(&mut self, manifest: Arc<Manifest>) {
        self.manifests.insert(manifest.id(), manifest);
    }

    /// Registers an index set that the reader has under this id.
    ///
    /// # Errors
    /// [`Error::Input`] if the set does not fit `manifest`, or refers to another set.
    pub fn add_index_set(&mut self, id: SetId, set: &IndexSet, manifest: &Manifest) -> Result<()> {
        self.sets.insert(id, Arc::new(set.checked(manifest)?));
        Ok(())
    }

    /// Returns the number of bytes written so far.
    pub fn offset(&self) -> u64 {
        if self.started { self.offset } else { 0 }
    }

    fn frame(&mut self, out: &mut dyn Output, kind: FrameKind, flags: u16, body: &[u8]) {
        self.start(out);
        out.append(&self.count(FrameHeader::of(kind, flags, body)));
        out.append(body);
    }

    /// Appends the preamble, once.
    fn start(&mut self, out: &mut dyn Output) {
        if !self.started {
            let mut preamble = Vec::with_capacity(PREAMBLE_LEN);
            Preamble { minor: VERSION_MINOR }.write(&mut preamble);
            out.append(&preamble);
            self.started = true;
        }
    }

    /// Registers a frame and returns its header.
    fn count(&mut self, header: FrameHeader) -> [u8; HEADER_LEN] {
        let (kind, len) = (header.kind, HEADER_LEN as u64 + header.body_len);
        let header = header.to_bytes();
        self.chain.update(&header[..CHAINED_LEN]);
        if self.options.index {
            self.index.frames.push(IndexedFrame { kind, len });
        }
        self.frames += 1;
        self.offset += len;
        header
    }

    /// Appends a manifest, unless the stream already contains it.
    pub fn manifest(&mut self, out: &mut dyn Output, manifest: &Arc<Manifest>) {
        if !self.manifests.contains_key(&manifest.id()) {
            self.frame(out, FrameKind::MANIFEST, 0, manifest.body());
            self.know_manifest(Arc::clone(manifest));
        }
    }

    /// Appends an update, preceded by its manifest unless the stream already contains it.
    ///
    /// `blocks` are in ascending order of their scopes and disjoint, unless flagged `add`.
    ///
    /// # Memory
    /// Besides `out`: the bytes of the blocks being written (a block of 4 Mi elements or 8 MiB of values per
    /// thread, and one more for every four threads), one byte per element of them while codes are chosen, and
    /// 32 bytes per position of a sparse block.
    ///
    /// # Errors
    /// [`Error::Input`] if a block is inconsistent or does not fit the manifest.
    pub fn update<B: Coded>(
        &mut self,
        out: &mut dyn Output,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: &[B],
    ) -> Result<()> {
        let blocks: Vec<_> =
            blocks.iter().map(|coded| (WireBlock::from(coded.block()), coded.options())).collect();
        self.update_wire(out, header, manifest, &blocks)
    }

    /// Appends an update as [`Self::update`] does, from blocks whose parts may be in wire form already.
    ///
    /// # Errors
    /// The errors of [`Self::update`]; [`Error::Format`] or [`Error::Unsupported`], with an offset inside the
    /// part, if a part in wire form fails the checks that [`WireBlock`] lists.
    pub fn update_wire(
        &mut self,
        out: &mut dyn Output,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: &[(WireBlock<'_>, BlockOptions)],
    ) -> Result<()> {
        let blocks: Vec<_> =
            blocks.iter().map(|(block, options)| Unwritten::Ready(block, *options)).collect();
        self.write_update(out, header, manifest, &blocks)
    }

    /// Appends an update as [`Self::update`] does, from blocks whose values may be made only now.
    ///
    /// # Memory
    /// As [`Self::update`]; in addition, one byte per element of the blocks being written.
    ///
    /// # Errors
    /// The errors of [`Self::update_wire`] and, for values that are made only now, those of
    /// [`compress()`](../compress/fn.compress.html).
    pub fn update_pending(
        &mut self,
        out: &mut dyn Output,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: &[PendingBlock<'_>],
    ) -> Result<()> {
        let blocks: Vec<_> = blocks.iter().map(|block| Unwritten::from(&block.0)).collect();
        self.write_update(out, header, manifest, &blocks)
    }

    fn write_update(
        &mut self,
        out: &mut dyn Output,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: &[Unwritten<'_>],
    ) -> Result<()> {
        // The parts are written to their final place. The encoder's own state, and the frames before them,
        // follow when nothing can fail any more.
        let start = out.bytes().len();
        let known = self.manifests.contains_key(&manifest.id());
        let preamble = if self.started { 0 } else { PREAMBLE_LEN };
        let before = preamble + if known { 0 } else { HEADER_LEN + manifest.body().len() };
        out.append(&vec![0; before]);
        let written = write_parts(out, header, manifest, &self.sets, blocks, self.options.part_bytes);
        let finish = |part: &Part| {
            let body = &out.bytes()[part.body.clone()];
            let flags = if part.last { FrameHeader::LAST } else { 0 };
            let (entry, body_crc) = self.entry(body, manifest, &part.hashers)?;
            let header =
                FrameHeader { kind: FrameKind::UPDATE, flags, body_len: body.len() as u64, body_crc };
            Ok((header, self.options.index.then_some(entry)))
        };
        let written = written.and_then(|parts| {
            let frames: Result<Vec<_>> = parts.iter().map(finish).collect();
            Ok((frames?, parts))
        });
        let (frames, parts) = match written {
            Ok(written) => written,
            Err(e) => {
                out.truncate(start);
                return Err(e);
            }
        };
        let mut head = Vec::with_capacity(before);
        self.start(&mut head);
        self.manifest(&mut head, manifest);
        out.bytes_mut()[start..start + before].copy_from_slice(&head);
        for (part, (header, entry)) in parts.into_iter().zip(frames) {
            self.index.updates.extend(entry);
            let header = self.count(header);
            out.bytes_mut()[part.body.start - HEADER_LEN..part.body.start].copy_from_slice(&header);
        }
        Ok(())
    }

    /// Returns the index entry of a part that was just written, and the checksum of its body. `hashers` have
    /// seen the bytes of its blocks.
    fn entry(
        &self,
        body: &[u8],
        manifest: &Arc<Manifest>,
        hashers: &[Hasher],
    ) -> Result<(IndexedUpdate, u32)> {
        let limits = Limits { max_blocks: u64::MAX, max_elements: u64::MAX, ..Limits::default() };
        let part = UpdatePart::read(body, 0, true, &limits, &Arc::default(), |_| Some(Arc::clone(manifest)))?;
        Ok(IndexedUpdate::with_checksum(&part, body, |number, _| hashers[number].clone()))
    }

    /// Appends an index set and returns its id, for blocks of later updates.
    ///
    /// # Errors
    /// [`Error::Input`] if the set does not fit the manifest.
    pub fn index_set(
        &mut self,
        out: &mut dyn Output,
        set: &IndexSet,
        manifest: &Arc<Manifest>,
        options: BlockOptions,
    ) -> Result<SetId> {
        let (body, id) = set.body(manifest, options)?;
        self.add_index_set(id, set, manifest)?;
        self.manifest(out, manifest);
        self.frame(out, FrameKind::INDEX_SET, 0, &body);
        Ok(id)
    }

    /// Appends a model.
    pub fn model(&mut self, out: &mut dyn Output, model: &Model) {
        let body = model.body(self.options.compress);
        self.frame(out, FrameKind::MODEL, 0, &body);
    }

    /// Appends metadata.
    pub fn metadata(&mut self, out: &mut dyn Output, metadata: &Metadata) {
        let body = metadata.body(self.options.compress);
        self.frame(out, FrameKind::METADATA, 0, &body);
    }

    /// Appends a frame of a private kind.
    ///
    /// # Errors
    /// [`Error::Input`] if `kind` is not in a private range.
    pub fn private(&mut self, out: &mut dyn Output, kind: FrameKind, body: &[u8]) -> Result<()> {
        if !kind.is_private() {
            return Err(Error::bad_option("kind of a private frame (0x7000-0x7fff or 0xf000-0xffff)"));
        }
        self.frame(out, kind, 0, body);
        Ok(())
    }

    /// Appends a frame of another stream whose definitions this encoder has: kind and flags of `header`, and
    /// the body.
    pub(crate) fn copy(
        &mut self,
        out: &mut dyn Output,
        header: &FrameHeader,
        body: &[u8],
        update: Option<IndexedUpdate>,
    ) {
        self.index.updates.extend(update.filter(|_| self.options.index));
        self.frame(out, header.kind, header.flags, body);
    }

    /// Ends the segment: appends the index, if enabled, and the end frame. Another segment may follow.
    pub fn finish(&mut self, out: &mut dyn Output) {
        let index_offset = match self.options.index {
            true => {
                let offset = self.offset;
                let body = self.index.body();
                self.frame(out, FrameKind::INDEX, 0, &body);
                offset
            }
            false => 0,
        };
        let end = End { frame_count: self.frames, index_offset, chain: self.chain.clone().finalize() };
        self.frame(out, FrameKind::END, 0, &end.body());
    }

    /// Returns a complete stream without content.
    pub fn finish_empty(mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.finish(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Block, Floats, Scope, Stored, Support, Values};
    use crate::frame::TensorInfo;
    use crate::tensor::Dtype;

    /// Appends metadata of 1000 equal letters.
    fn letters(encoder: &mut Encoder, out: &mut Vec<u8>) {
        let mut metadata = Metadata::default();
        metadata.entries.insert("letters".into(), "a".repeat(1000));
        encoder.metadata(out, &metadata);
    }

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let EncodeOptions { part_bytes, index, compress } = EncodeOptions::default();
        assert_eq!((part_bytes, index, compress), (64 * 1024 * 1024, true, true));
        for compress in [true, false] {
            let mut out = Vec::new();
            letters(&mut Encoder::new(EncodeOptions::default().with_compress(compress)), &mut out);
            assert_eq!(out.len() < 1000, compress);
        }
    }

    #[test]
    fn the_offset_is_that_of_the_next_frame_and_an_index_is_kept_only_if_enabled() {
        let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, [1])]).unwrap());
        let block = Block {
            scope: Scope::Tensor(0),
            add: false,
            support: Support::All,
            values: Values::Floats(Floats { stored: Stored::F32, bytes: vec![0; 4] }),
        };
        for index in [true, false] {
            let mut encoder = Encoder::new(EncodeOptions::default().with_index(index));
            assert_eq!(encoder.offset(), 0);
            let mut out = Vec::new();
            encoder.update(&mut out, &UpdateHeader::default(), &manifest, &[&block]).unwrap();
            assert_eq!(encoder.offset(), out.len() as u64);
            letters(&mut encoder, &mut out);
            assert_eq!(encoder.offset(), out.len() as u64);
            let listed = (encoder.index.frames.len(), encoder.index.updates.len());
            assert_eq!(listed, if index { (3, 1) } else { (0, 0) });
            encoder.finish(&mut out);
            assert_eq!(encoder.offset(), out.len() as u64);
        }
    }
}
