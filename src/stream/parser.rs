use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::bits::check_crc;
use crate::block::{ModelId, SetId, Sets, SharedSet};
use crate::error::{Error, FormatErrorKind, Location, Result};
use crate::frame::{
    BlockOrder, CHAINED_LEN, End, FrameHeader, FrameKind, HEADER_LEN, Index, IndexSet, IndexedFrame,
    IndexedUpdate, MAGIC, Manifest, ManifestId, Metadata, Model, PREAMBLE_LEN, Preamble, SYNC, UpdateHeader,
    UpdatePart,
};
use crate::limits::{Limits, check};

/// What a decoder found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The beginning of the stream.
    Preamble(Preamble),
    /// A frame.
    Frame(FrameInfo, Body<'a>),
}

/// Where a frame stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameInfo {
    /// Its number, the first is 0.
    pub number: u64,
    /// Offset of its header in the stream.
    pub offset: u64,
    /// Its header.
    pub header: FrameHeader,
}

impl FrameInfo {
    /// Bytes of header and body.
    pub fn len(&self) -> u64 {
        self.header.body_len.saturating_add(HEADER_LEN as u64)
    }

    /// Never: a frame has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// What a frame says.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Body<'a> {
    /// Tensors that updates refer to.
    Manifest(Arc<Manifest>),
    /// A part of an update.
    Update(Box<UpdatePart<'a>>),
    /// A support with a name of its own, its name, and how many elements it has.
    IndexSet(Box<IndexSet>, SetId, u64),
    /// A learned decoder.
    Model(Box<Model>),
    /// Keys and values.
    Metadata(Metadata),
    /// Where everything is.
    Index(Index),
    /// The end of a segment.
    End(End),
    /// An ancillary frame of a kind that this reader does not know.
    Unknown(&'a [u8]),
}

/// What [`Parser::advance`] made of its input.
pub(crate) enum Progress<'a> {
    /// Nothing yet: more input is needed, [`Parser::needed`] says how much.
    NeedMore,
    /// The input's first `consumed` bytes are this.
    Ready { consumed: usize, event: Event<'a> },
}

/// The update whose last part has not come yet.
#[derive(Clone)]
pub(crate) struct OpenUpdate {
    header: UpdateHeader,
    manifest: ManifestId,
    next_part: u64,
    order: BlockOrder,
}

/// Reads a stream frame by frame and holds what later frames may refer to. It has no buffer: it is given the input from
/// where it stands, again and again until there is enough of it.
pub(crate) struct Parser {
    limits: Limits,
    offset: u64,
    frames: u64,
    started: bool,
    ended: bool,
    failed: bool,
    recovering: bool,
    chain: crc32fast::Hasher,
    manifests: HashMap<ManifestId, Arc<Manifest>>,
    sets: Arc<Sets>,
    models: HashSet<ModelId>,
    open: Option<OpenUpdate>,
    index_offset: u64,
    listed: Listed,
    definitions: Definitions,
}

/// What is remembered of a stream for later frames to refer to. A few bytes can define much: beside the number of the
/// definitions their memory is counted, that of all together.
#[derive(Default)]
pub(crate) struct Definitions {
    manifests: u64,
    index_sets: u64,
    bytes: u64,
}

impl Definitions {
    pub(crate) fn manifest(&mut self, manifest: &Manifest, limits: &Limits, offset: u64) -> Result<()> {
        self.manifests += 1;
        check("max_definitions", self.manifests, limits.max_definitions, offset)?;
        self.remember(manifest.tensors().iter().map(|t| t.name.len() as u64).sum(), limits, offset)
    }

    pub(crate) fn index_set(&mut self, set: &IndexSet, limits: &Limits, offset: u64) -> Result<()> {
        self.index_sets += 1;
        check("max_definitions", self.index_sets, limits.max_definitions, offset)?;
        self.remember(set.support.memory(), limits, offset)
    }

    fn remember(&mut self, bytes: u64, limits: &Limits, offset: u64) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        check("max_alloc_bytes", self.bytes, limits.max_alloc_bytes, offset)
    }
}

/// What an index frame must list, as a running hash: memory does not grow with the stream.
#[derive(Clone)]
struct Listed {
    frames: blake3::Hasher,
    updates: blake3::Hasher,
}

impl Listed {
    fn new() -> Self {
        Self { frames: blake3::Hasher::new(), updates: blake3::Hasher::new() }
    }

    fn frame(&mut self, frame: IndexedFrame) {
        self.frames.update(&frame.kind.0.to_le_bytes()).update(&frame.len.to_le_bytes());
    }

    fn update(&mut self, update: &IndexedUpdate) {
        let hasher = &mut self.updates;
        for field in
            [update.step, update.sender, update.head_len, update.head_crc.into(), update.blocks.len() as u64]
        {
            hasher.update(&field.to_le_bytes());
        }
        for block in &update.blocks {
            for field in [block.first, block.tensors, block.len, block.crc.into()] {
                hasher.update(&field.to_le_bytes());
            }
        }
    }

    fn agrees(&self, index: &Index) -> bool {
        let mut other = Self::new();
        index.frames.iter().for_each(|f| other.frame(*f));
        index.updates.iter().for_each(|u| other.update(u));
        other.frames.finalize() == self.frames.finalize()
            && other.updates.finalize() == self.updates.finalize()
    }
}

impl Parser {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            offset: 0,
            frames: 0,
            started: false,
            ended: false,
            failed: false,
            recovering: false,
            chain: crc32fast::Hasher::new(),
            manifests: HashMap::new(),
            sets: Arc::default(),
            models: HashSet::new(),
            open: None,
            index_offset: 0,
            listed: Listed::new(),
            definitions: Definitions::default(),
        }
    }

    /// A parser for frames that are given to it one by one, out of a damaged stream: it goes on after an error.
    pub(crate) fn recovering(limits: Limits) -> Self {
        Self { started: true, recovering: true, ..Self::new(limits) }
    }

    /// The update whose last part has not come.
    pub(crate) fn open_update(&self) -> Option<OpenUpdate> {
        self.open.clone()
    }

    /// Gives up on the update whose last part has not come, or takes one up again.
    pub(crate) fn set_open_update(&mut self, open: Option<OpenUpdate>) {
        self.open = open;
    }

    pub(crate) fn add_manifest(&mut self, manifest: Arc<Manifest>) {
        self.manifests.insert(manifest.id(), manifest);
    }

    pub(crate) fn add_index_set(&mut self, id: SetId, set: SharedSet) {
        Arc::make_mut(&mut self.sets).insert(id, Arc::new(set));
    }

    /// Offset of the input's first byte in the stream.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next event from the beginning of `input`.
    pub(crate) fn advance<'a>(&mut self, input: &'a [u8]) -> Result<Progress<'a>> {
        if self.failed {
            return Err(Error::bad_option("the stream was damaged: there is nothing more to read"));
        }
        let progress = match self.started {
            false => self.preamble(input),
            true => self.frame(input).map_err(|e| e.in_frame(self.frames)),
        };
        self.failed = progress.is_err() && !self.recovering;
        progress
    }

    /// How many bytes of input, from where the parser stands, make the next event or what is known of it so far; 0 if
    /// `input` is refused as it is.
    pub(crate) fn needed(&self, input: &[u8]) -> u64 {
        let begins = |with: &[u8]| input.iter().zip(with).all(|(a, b)| a == b);
        if self.failed || !begins(if self.started { &SYNC } else { &MAGIC }) {
            return 0;
        }
        match input.first_chunk::<HEADER_LEN>() {
            _ if !self.started => PREAMBLE_LEN as u64,
            None => HEADER_LEN as u64,
            Some(header) => self.header(header).map_or(0, |h| h.body_len.saturating_add(HEADER_LEN as u64)),
        }
    }

    /// Checks that the stream may end where the parser stands, with `rest` left unread (STR-5).
    pub(crate) fn finish(&self, rest: usize) -> Result<()> {
        if self.ended && rest == 0 {
            return Ok(());
        }
        let at = Location {
            offset: self.offset + rest as u64,
            frame: self.started.then_some(self.frames),
            ..Location::default()
        };
        Err(Error::Format(crate::error::FormatError { kind: FormatErrorKind::Truncated, at }))
    }

    fn preamble<'a>(&mut self, input: &'a [u8]) -> Result<Progress<'a>> {
        if !input.iter().zip(MAGIC).all(|(a, b)| *a == b) {
            return Err(Error::format(FormatErrorKind::BadMagic, self.offset));
        }
        let Some(bytes) = input.first_chunk() else { return Ok(Progress::NeedMore) };
        let preamble = Preamble::read(bytes)?;
        self.started = true;
        self.offset = PREAMBLE_LEN as u64;
        Ok(Progress::Ready { consumed: PREAMBLE_LEN, event: Event::Preamble(preamble) })
    }

    fn frame<'a>(&mut self, input: &'a [u8]) -> Result<Progress<'a>> {
        if !input.iter().zip(SYNC).all(|(a, b)| *a == b) {
            return Err(Error::format(FormatErrorKind::BadSync, self.offset));
        }
        let Some(header_bytes) = input.first_chunk::<HEADER_LEN>() else {
            return Ok(Progress::NeedMore);
        };
        let header = self.header(header_bytes)?;
        let info = FrameInfo { number: self.frames, offset: self.offset, header };
        let body = usize::try_from(info.len()).ok().and_then(|len| input.get(HEADER_LEN..len));
        let Some(body) = body else { return Ok(Progress::NeedMore) };
        let body_offset = self.offset + HEADER_LEN as u64;
        header.check_body(body, body_offset)?;
        let parsed = self.body(&info, body, body_offset)?;
        self.chain.update(&header_bytes[..CHAINED_LEN]);
        self.listed.frame(IndexedFrame { kind: header.kind, len: info.len() });
        self.frames += 1;
        self.offset += info.len();
        self.ended = matches!(parsed, Body::End(_));
        Ok(Progress::Ready { consumed: HEADER_LEN + body.len(), event: Event::Frame(info, parsed) })
    }

    /// Reads the header of the next frame and checks all that can be checked before its body is there.
    fn header(&self, bytes: &[u8; HEADER_LEN]) -> Result<FrameHeader> {
        let header = FrameHeader::read(bytes, self.offset)?;
        header.check(self.offset)?;
        check("max_frame_bytes", header.body_len, self.limits.max_frame_bytes, self.offset + 8)?;
        Ok(header)
    }

    fn body<'a>(&mut self, info: &FrameInfo, body: &'a [u8], offset: u64) -> Result<Body<'a>> {
        if self.index_offset != 0 && info.header.kind != FrameKind::END {
            let field = "frame between an index and its end";
            return Err(Error::format(FormatErrorKind::Misplaced { field }, info.offset));
        }
        Ok(match info.header.kind {
            FrameKind::MANIFEST => {
                let manifest = Arc::new(Manifest::read(body, offset, &self.limits)?);
                if !self.manifests.contains_key(&manifest.id()) {
                    self.definitions.manifest(&manifest, &self.limits, offset)?;
                    self.add_manifest(Arc::clone(&manifest));
                }
                Body::Manifest(manifest)
            }
            FrameKind::UPDATE => Body::Update(Box::new(self.update(info, body, offset)?)),
            FrameKind::INDEX_SET => {
                let (set, id, count) = IndexSet::read(body, offset, &self.limits, |id| {
                    self.manifests.get(&id).map(Arc::as_ref)
                })?;
                if !self.sets.contains_key(&id) {
                    self.definitions.index_set(&set, &self.limits, offset)?;
                    self.add_index_set(id, set.shared(count));
                }
                Body::IndexSet(Box::new(set), id, count)
            }
            FrameKind::MODEL => {
                let model = Model::read(body, offset, &self.limits)?;
                if !self.models.contains(&model.id) {
                    check(
                        "max_definitions",
                        self.models.len() as u64 + 1,
                        self.limits.max_definitions,
                        offset,
                    )?;
                    self.models.insert(model.id);
                }
                Body::Model(Box::new(model))
            }
            FrameKind::METADATA => Body::Metadata(Metadata::read(body, offset, &self.limits)?),
            FrameKind::INDEX => {
                let index = Index::read(body, offset)?;
                if !self.listed.agrees(&index) {
                    return Err(Error::format(FormatErrorKind::NotCanonical { field: "index" }, offset));
                }
                self.index_offset = info.offset;
                Body::Index(index)
            }
            FrameKind::END => Body::End(self.end(body, offset)?),
            _ => Body::Unknown(body),
        })
    }

    fn update<'a>(&mut self, info: &FrameInfo, body: &'a [u8], offset: u64) -> Result<UpdatePart<'a>> {
        let last = info.header.flags & FrameHeader::LAST != 0;
        let mut part = UpdatePart::read(body, offset, last, &self.limits, &self.sets, |id| {
            self.manifests.get(&id).map(Arc::clone)
        })?;
        part.frame = Some(info.number);
        let misplaced = Error::format(FormatErrorKind::Misplaced { field: "part of an update" }, offset);
        let manifest = part.manifest.id();
        let mut order = match self.open.take() {
            Some(open) if part.part != open.next_part || manifest != open.manifest => return Err(misplaced),
            Some(open) if !open.header.same_update(&part.header) => return Err(misplaced),
            None if part.part != 0 => return Err(misplaced),
            Some(open) => open.order,
            None => BlockOrder::default(),
        };
        for (number, block) in part.blocks.iter().enumerate() {
            if !order.accept(block.scope, block.add) {
                return Err(
                    Error::format(FormatErrorKind::NotAscending, block.offset).in_block(number as u64)
                );
            }
        }
        if !last {
            let next_part = part.part.saturating_add(1);
            let header = part.header.without_details();
            self.open = Some(OpenUpdate { header, manifest, next_part, order });
        }
        self.listed.update(&IndexedUpdate::of(&part, body));
        Ok(part)
    }

    fn end(&mut self, body: &[u8], offset: u64) -> Result<End> {
        let end = End::read(body, offset)?;
        if self.open.is_some() {
            return Err(Error::format(FormatErrorKind::Misplaced { field: "end inside an update" }, offset));
        }
        if end.frame_count != self.frames {
            return Err(Error::format(FormatErrorKind::CountMismatch { field: "frame_count" }, offset));
        }
        if end.index_offset != self.index_offset {
            return Err(Error::out_of_range("index_offset", end.index_offset, offset + 8));
        }
        check_crc(end.chain, self.chain.clone().finalize(), offset + 16)?;
        self.index_offset = 0;
        Ok(end)
    }
}
