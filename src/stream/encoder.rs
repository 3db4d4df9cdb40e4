use std::collections::HashMap;
use std::sync::Arc;

use crate::bits::Output;
use crate::block::{Block, BlockOptions, SetId, Sets, WireBlock};
use crate::error::{Error, Result};
use crate::frame::{
    CHAINED_LEN, End, FrameHeader, FrameKind, HEADER_LEN, Index, IndexSet, IndexedFrame, IndexedUpdate,
    Manifest, ManifestId, Metadata, Model, PREAMBLE_LEN, Part, Preamble, UpdateHeader, UpdatePart,
    VERSION_MINOR, write_parts,
};
use crate::limits::Limits;

/// How a stream is written, where the format leaves a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncodeOptions {
    /// About how many bytes of values, before coding, a part of an update holds; a block is never cut. Not stored.
    /// Default: 64 MiB.
    pub part_bytes: u64,
    /// Whether a segment ends in an index. An encoder of a segment that never ends had better do without, since it
    /// remembers an entry for each block. Default: true.
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

/// Encodes a stream without doing any IO: each call appends whole frames to the caller's buffer, a `Vec<u8>` or another
/// [`Output`].
///
/// A call that fails appends nothing and leaves the encoder as it was.
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
    /// An encoder at the beginning of a stream.
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

    /// An encoder behind the end frame `end`, whose header is `end_header`, of a stream that has `offset` bytes so far and
    /// whose frames `index` lists, `end` included.
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

    /// Makes a manifest known, so that it is not sent again.
    pub(crate) fn know_manifest(&mut self, manifest: Arc<Manifest>) {
        self.manifests.insert(manifest.id(), manifest);
    }

    /// Makes an index set known that the reader has by that id.
    ///
    /// # Errors
    /// [`Error::Input`] if the set does not fit `manifest`, or refers to another set.
    pub fn add_index_set(&mut self, id: SetId, set: &IndexSet, manifest: &Manifest) -> Result<()> {
        self.sets.insert(id, Arc::new(set.checked(manifest)?));
        Ok(())
    }

    /// Bytes that have been put out.
    pub fn offset(&self) -> u64 {
        if self.started { self.offset } else { 0 }
    }

    fn frame(&mut self, out: &mut dyn Output, kind: FrameKind, flags: u16, body: &[u8]) {
        self.start(out);
        out.append(&self.count(kind, flags, body));
        out.append(body);
    }

    /// Appends the preamble if it is still to come.
    fn start(&mut self, out: &mut dyn Output) {
        if !self.started {
            let mut preamble = Vec::with_capacity(PREAMBLE_LEN);
            Preamble { minor: VERSION_MINOR }.write(&mut preamble);
            out.append(&preamble);
            self.started = true;
        }
    }

    /// Takes a frame into account and gives its header.
    fn count(&mut self, kind: FrameKind, flags: u16, body: &[u8]) -> [u8; HEADER_LEN] {
        let header = FrameHeader::of(kind, flags, body).to_bytes();
        self.chain.update(&header[..CHAINED_LEN]);
        let len = (HEADER_LEN + body.len()) as u64;
        if self.options.index {
            self.index.frames.push(IndexedFrame { kind, len });
        }
        self.frames += 1;
        self.offset += len;
        header
    }

    /// Appends a manifest, unless the stream has it already.
    pub fn manifest(&mut self, out: &mut dyn Output, manifest: &Arc<Manifest>) {
        if !self.manifests.contains_key(&manifest.id()) {
            self.frame(out, FrameKind::MANIFEST, 0, manifest.body());
            self.know_manifest(Arc::clone(manifest));
        }
    }

    /// Appends an update, and its manifest before it unless the stream has it already.
    ///
    /// `blocks` are in ascending order of their scopes and disjoint, unless flagged `add`.
    ///
    /// # Memory
    /// Beside `out`: the bytes of the blocks that are being written, two blocks of 4 Mi elements or 8 MiB of values for
    /// each thread, and a byte for each of their elements while codes are chosen; 32 bytes for each position of a sparse
    /// block.
    ///
    /// # Errors
    /// [`Error::Input`] if a block does not hold together or does not fit the manifest.
    pub fn update(
        &mut self,
        out: &mut dyn Output,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: &[(&Block, BlockOptions)],
    ) -> Result<()> {
        let blocks: Vec<_> =
            blocks.iter().map(|&(block, options)| (WireBlock::from(block), options)).collect();
        self.update_wire(out, header, manifest, &blocks)
    }

    /// As [`Self::update`], of blocks whose parts may be in wire form already.
    ///
    /// # Errors
    /// Those of [`Self::update`]; [`Error::Format`] or [`Error::Unsupported`], with an offset inside of the part, if a part in wire form
    /// is not what [`WireBlock`] says is checked.
    pub fn update_wire(
        &mut self,
        out: &mut dyn Output,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: &[(WireBlock<'_>, BlockOptions)],
    ) -> Result<()> {
        // The parts are written where they stay; the encoder's own state, and what stands before them, follows once
        // nothing can fail any more.
        let start = out.bytes().len();
        let known = self.manifests.contains_key(&manifest.id());
        let preamble = if self.started { 0 } else { PREAMBLE_LEN };
        let before = preamble + if known { 0 } else { HEADER_LEN + manifest.body().len() };
        out.append(&vec![0; before]);
        let written = write_parts(out, header, manifest, &self.sets, blocks, self.options.part_bytes);
        let entries = |parts: &[Part]| match self.options.index {
            true => parts.iter().map(|part| self.entry(&out.bytes()[part.body.clone()], manifest)).collect(),
            false => Ok(Vec::new()),
        };
        let written = written.and_then(|parts| Ok((entries(&parts)?, parts)));
        let (entries, parts) = match written {
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
        self.index.updates.extend(entries);
        for part in parts {
            let flags = if part.last { FrameHeader::LAST } else { 0 };
            let header = self.count(FrameKind::UPDATE, flags, &out.bytes()[part.body.clone()]);
            out.bytes_mut()[part.body.start - HEADER_LEN..part.body.start].copy_from_slice(&header);
        }
        Ok(())
    }

    /// The index entry of a part that was just written.
    fn entry(&self, body: &[u8], manifest: &Arc<Manifest>) -> Result<IndexedUpdate> {
        let limits = Limits { max_blocks: u64::MAX, ..Limits::default() };
        let part = UpdatePart::read(body, 0, true, &limits, &Arc::default(), |_| Some(Arc::clone(manifest)))?;
        Ok(IndexedUpdate::of(&part, body))
    }

    /// Appends an index set and gives its id, which blocks of later updates may refer to.
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
            return Err(Error::bad_option("a private frame's kind is 0x7000-0x7fff or 0xf000-0xffff"));
        }
        self.frame(out, kind, 0, body);
        Ok(())
    }

    /// Appends a frame that stands in another stream of this writer's knowledge: its header's kind and flags, and its body.
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

    /// Ends the segment: appends the index, if the options ask for one, and the end frame. More frames may follow.
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

    /// The whole stream of an encoder that was given nothing.
    pub fn finish_empty(mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.finish(&mut out);
        out
    }
}
