//! Encoding of a stream without IO.

use std::collections::HashMap;
use std::sync::Arc;

use crate::bits::Output;
use crate::block::{BlockOptions, PendingBlock, Profile, SetId, Sets};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{
    CHAINED_LEN, End, FrameHeader, FrameKind, HEADER_LEN, Index, IndexSet, IndexedFrame, IndexedUpdate,
    Manifest, ManifestId, Metadata, Model, PREAMBLE_LEN, Preamble, UpdateHeader, UpdateWriter, VERSION_MINOR,
};

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
    /// The kinds and codings to write. With [`Profile::Core`], the encoder writes nothing that a reader of
    /// the core profile does not know. It writes blocks of other kinds in kinds of the profile that give the
    /// same elements, and refuses those without such a form, deltas, index sets and models. Not stored.
    /// Default: [`Profile::Full`].
    pub profile: Profile,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { part_bytes: 64 << 20, index: true, compress: true, profile: Profile::Full }
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

    /// Sets [`EncodeOptions::profile`].
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
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

/// State of an encoder before an update.
struct Mark {
    started: bool,
    offset: u64,
    frames: u64,
    chain: crc32fast::Hasher,
    indexed_frames: usize,
    indexed_updates: usize,
    knows_manifest: bool,
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
    /// `blocks` are in ascending order of their scopes and disjoint, unless flagged `add`. They are taken one
    /// after another while the parts of the update are written, so that work may make them only then; an
    /// error of this work is the error of the call.
    ///
    /// # Memory
    /// Besides `out`: the blocks of one part ([`EncodeOptions::part_bytes`]), and those of 4 Mi elements for
    /// each thread; the bytes of the blocks being written (a block of 4 Mi elements or 8 MiB of values per
    /// thread, and one more for every four threads), one byte per element of them while codes are chosen, and
    /// 32 bytes per position of a sparse block.
    ///
    /// # Errors
    /// [`Error::Input`] if a block is inconsistent or does not fit the manifest. [`Error::Format`] or
    /// [`Error::Unsupported`], with an offset inside the support or the values, if one in wire form fails the
    /// checks that [`WireBlock`](crate::block::WireBlock) lists. For values that are made only now, the
    /// errors of [`compress()`](../compress/fn.compress.html).
    pub fn update<'a, B>(
        &mut self,
        out: &mut dyn Output,
        header: &UpdateHeader,
        manifest: &Arc<Manifest>,
        blocks: impl IntoIterator<Item = B>,
    ) -> Result<()>
    where
        B: TryInto<PendingBlock<'a>, Error: Into<Error>>,
    {
        let start = out.bytes().len();
        let result = self.parts(header, manifest, blocks).and_then(|mut parts| {
            while parts.write_next(out)? {}
            parts.finish();
            Ok(())
        });
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    /// Begins an update whose parts the caller takes one by one, to write each before the next is made.
    /// [`Parts::finish`] ends it. The bytes are those of [`Self::update`], and so are the arguments.
    ///
    /// # Errors
    /// [`Error::Input`] if the runs of the header's delta are not in order.
    pub fn parts<'e, 'a, B>(
        &'e mut self,
        header: &'e UpdateHeader,
        manifest: &'e Arc<Manifest>,
        blocks: impl IntoIterator<Item = B>,
    ) -> Result<Parts<'e, 'a, impl Iterator<Item = Result<PendingBlock<'a>>>>>
    where
        B: TryInto<PendingBlock<'a>, Error: Into<Error>>,
    {
        let blocks = blocks.into_iter().map(|block| block.try_into().map_err(Into::into));
        let EncodeOptions { part_bytes, profile, .. } = self.options;
        let writer = UpdateWriter::new(header, manifest, part_bytes, profile)?;
        let mark = Some(self.mark(manifest));
        Ok(Parts { encoder: self, manifest, blocks, writer, mark, is_written: false })
    }

    /// Appends the next part of an update. Returns whether it is the last.
    fn part<'a>(
        &mut self,
        out: &mut dyn Output,
        manifest: &Arc<Manifest>,
        writer: &mut UpdateWriter<'_, 'a>,
        blocks: &mut dyn Iterator<Item = Result<PendingBlock<'a>>>,
    ) -> Result<bool> {
        self.start(out);
        self.manifest(out, manifest);
        let start = out.bytes().len();
        out.append(&[0; HEADER_LEN]);
        let part = writer.write_next(out, &self.sets, blocks)?;
        let body_len = (out.bytes().len() - start - HEADER_LEN) as u64;
        let flags = if part.last { FrameHeader::LAST } else { 0 };
        let header = FrameHeader { kind: FrameKind::UPDATE, flags, body_len, body_crc: part.crc };
        let header = self.count(header);
        out.bytes_mut()[start..start + HEADER_LEN].copy_from_slice(&header);
        self.index.updates.extend(self.options.index.then_some(part.entry));
        Ok(part.last)
    }

    /// Returns what a failed update of this manifest must not change.
    fn mark(&self, manifest: &Manifest) -> Mark {
        Mark {
            started: self.started,
            offset: self.offset,
            frames: self.frames,
            chain: self.chain.clone(),
            indexed_frames: self.index.frames.len(),
            indexed_updates: self.index.updates.len(),
            knows_manifest: self.manifests.contains_key(&manifest.id()),
        }
    }

    fn return_to(&mut self, mark: Mark, manifest: &Manifest) {
        (self.started, self.offset, self.frames) = (mark.started, mark.offset, mark.frames);
        self.chain = mark.chain;
        self.index.frames.truncate(mark.indexed_frames);
        self.index.updates.truncate(mark.indexed_updates);
        if !mark.knows_manifest {
            self.manifests.remove(&manifest.id());
        }
    }

    /// Appends an index set and returns its id, for blocks of later updates.
    ///
    /// # Errors
    /// [`Error::Input`] if the set does not fit the manifest, or if the profile has no index sets.
    pub fn index_set(
        &mut self,
        out: &mut dyn Output,
        set: &IndexSet,
        manifest: &Arc<Manifest>,
        options: BlockOptions,
    ) -> Result<SetId> {
        self.refuse_in_core("an index set")?;
        let (body, id) = set.body(manifest, options)?;
        self.add_index_set(id, set, manifest)?;
        self.manifest(out, manifest);
        self.frame(out, FrameKind::INDEX_SET, 0, &body);
        Ok(id)
    }

    /// Appends a model.
    ///
    /// # Errors
    /// [`Error::Input`] if the profile has no models.
    pub fn model(&mut self, out: &mut dyn Output, model: &Model) -> Result<()> {
        self.refuse_in_core("a model")?;
        let body = model.body(self.options.compress);
        self.frame(out, FrameKind::MODEL, 0, &body);
        Ok(())
    }

    fn refuse_in_core(&self, what: &'static str) -> Result<()> {
        match self.options.profile {
            Profile::Full => Ok(()),
            Profile::Core => Err(Error::input(InputErrorKind::BeyondCore { what })),
        }
    }

    /// Appends metadata.
    pub fn metadata(&mut self, out: &mut dyn Output, metadata: &Metadata) {
        let body = metadata.body(self.options.compress);
        self.frame(out, FrameKind::METADATA, 0, &body);
    }

    /// Appends a frame of a private kind.
    ///
    /// # Errors
    /// [`Error::Input`] if `kind` is not in a private range, or if it is critical and the profile has no such
    /// frames.
    pub fn private(&mut self, out: &mut dyn Output, kind: FrameKind, body: &[u8]) -> Result<()> {
        if !kind.is_private() {
            return Err(Error::bad_option("kind of a private frame (0x7000-0x7fff or 0xf000-0xffff)"));
        }
        if !kind.is_ancillary() {
            self.refuse_in_core("a private critical frame")?;
        }
        self.frame(out, kind, 0, body);
        Ok(())
    }

    /// Appends the header of a frame of another stream whose definitions this encoder has. The body, which
    /// the caller appends, follows.
    pub(crate) fn copy(&mut self, out: &mut dyn Output, header: FrameHeader, update: Option<IndexedUpdate>) {
        self.index.updates.extend(update.filter(|_| self.options.index));
        self.start(out);
        out.append(&self.count(header));
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
}

/// An update that [`Encoder::parts`] has begun.
///
/// Dropping it without [`Self::finish`] leaves the encoder as it was before the update, so that a part that
/// could not be sent, even the last, is none of the stream.
pub struct Parts<'e, 'a, I> {
    encoder: &'e mut Encoder,
    manifest: &'e Arc<Manifest>,
    blocks: I,
    writer: UpdateWriter<'e, 'a>,
    /// The encoder before the update; nothing once the update is finished or undone.
    mark: Option<Mark>,
    /// Whether the last part is written.
    is_written: bool,
}

impl<'a, I: Iterator<Item = Result<PendingBlock<'a>>>> Parts<'_, 'a, I> {
    /// Appends the next part, the first preceded by what [`Encoder::update`] puts before it, and returns
    /// whether another follows. Appends nothing after the last. An error appends nothing and undoes the
    /// update.
    ///
    /// # Errors
    /// As [`Encoder::update`].
    pub fn write_next(&mut self, out: &mut dyn Output) -> Result<bool> {
        if self.is_written || self.mark.is_none() {
            return Ok(false);
        }
        let start = out.bytes().len();
        match self.encoder.part(out, self.manifest, &mut self.writer, &mut self.blocks) {
            Ok(is_last) => self.is_written = is_last,
            Err(e) => {
                out.truncate(start);
                self.undo();
                return Err(e);
            }
        }
        Ok(!self.is_written)
    }
}

impl<I> Parts<'_, '_, I> {
    /// Keeps the update in the stream, if its last part is written; else undoes it.
    pub fn finish(mut self) {
        if self.is_written {
            self.mark = None;
        }
    }

    fn undo(&mut self) {
        if let Some(mark) = self.mark.take() {
            self.encoder.return_to(mark, self.manifest);
        }
    }
}

impl<I> Drop for Parts<'_, '_, I> {
    fn drop(&mut self) {
        self.undo();
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
        let EncodeOptions { part_bytes, index, compress, profile } = EncodeOptions::default();
        let expected = (64 * 1024 * 1024, true, true, Profile::Full);
        assert_eq!((part_bytes, index, compress, profile), expected);
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
            encoder.update(&mut out, &UpdateHeader::default(), &manifest, [&block]).unwrap();
            assert_eq!(encoder.offset(), out.len() as u64);
            letters(&mut encoder, &mut out);
            assert_eq!(encoder.offset(), out.len() as u64);
            let listed = (encoder.index.frames.len(), encoder.index.updates.len());
            assert_eq!(listed, if index { (3, 1) } else { (0, 0) });
            encoder.finish(&mut out);
            assert_eq!(encoder.offset(), out.len() as u64);
        }
    }

    #[test]
    fn the_parts_are_those_of_a_whole_update_and_one_that_stops_leaves_the_encoder_as_it_was() {
        let infos = ["a", "b", "c"].map(|name| TensorInfo::new(name, Dtype::F32, [1]));
        let manifest = Arc::new(Manifest::new(infos.to_vec()).unwrap());
        let block = |tensor| Block {
            scope: Scope::Tensor(tensor),
            add: false,
            support: Support::All,
            values: Values::Floats(Floats { stored: Stored::F32, bytes: vec![tensor as u8; 4] }),
        };
        let (blocks, header) = ([block(0), block(1), block(2)], UpdateHeader::default());
        let new = || Encoder::new(EncodeOptions::default().with_part_bytes(1));
        let (mut encoder, mut whole) = (new(), Vec::new());
        encoder.update(&mut whole, &header, &manifest, &blocks).unwrap();
        encoder.finish(&mut whole);

        let (mut encoder, mut out) = (new(), Vec::new());
        let mut parts = encoder.parts(&header, &manifest, &blocks).unwrap();
        assert!(parts.write_next(&mut out).unwrap());
        drop(parts);
        assert_eq!(encoder.offset(), 0, "dropped before its last part");
        let mut parts = encoder.parts(&header, &manifest, [&blocks[1], &blocks[0]]).unwrap();
        out.clear();
        assert!(parts.write_next(&mut out).is_err() && out.is_empty(), "blocks out of order");
        assert!(!parts.write_next(&mut out).unwrap(), "an error ends the update");
        parts.finish();
        assert_eq!(encoder.offset(), 0, "finished after an error");
        let mut parts = encoder.parts(&header, &manifest, &blocks).unwrap();
        while parts.write_next(&mut out).unwrap() {}
        drop(parts);
        assert_eq!(encoder.offset(), 0, "dropped after its last part");
        out.clear();
        let mut parts = encoder.parts(&header, &manifest, &blocks).unwrap();
        let mut next = || (parts.write_next(&mut out).unwrap(), out.len());
        let lens = [next(), next(), next(), next()];
        assert_eq!(lens.map(|(more, _)| more), [true, true, false, false]);
        assert!(lens[1].1 < lens[2].1 && lens[2] == lens[3], "nothing after the last part");
        parts.finish();
        encoder.finish(&mut out);
        assert_eq!(out, whole);
    }
}
