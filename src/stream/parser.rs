//! Frames to events: what may follow what, and what each refers to.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::bits::check_crc;
use crate::block::{ModelId, SetId, Sets, SharedSet};
use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::{
    BlockOrder, CHAINED_LEN, End, FrameHeader, FrameKind, HEADER_LEN, Index, IndexSet, IndexedFrame,
    IndexedUpdate, MAGIC, Manifest, ManifestId, Metadata, Model, PREAMBLE_LEN, Preamble, SYNC, UpdateHeader,
    UpdatePart,
};
use crate::limits::{Limits, check};

/// An event of a decoder.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Preamble of the stream.
    Preamble(Preamble),
    /// A frame and its body.
    Frame(FrameInfo, Body<'a>),
}

/// Position and header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameInfo {
    /// Number of the frame, the first is 0.
    pub number: u64,
    /// Offset of its header in the stream, in bytes.
    pub offset: u64,
    /// Header of the frame.
    pub header: FrameHeader,
}

#[expect(clippy::len_without_is_empty, reason = "a frame has a header")]
impl FrameInfo {
    /// Returns the bytes of header and body.
    pub fn len(&self) -> u64 {
        self.header.body_len.saturating_add(HEADER_LEN as u64)
    }
}

/// Content of a frame.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Body<'a> {
    /// Tensors that updates refer to.
    Manifest(Arc<Manifest>),
    /// A part of an update.
    Update(Box<UpdatePart<'a>>),
    /// A named support, its id, and its number of elements.
    IndexSet(Box<IndexSet>, SetId, u64),
    /// A learned decoder.
    Model(Box<Model>),
    /// Keys and values.
    Metadata(Metadata),
    /// Lengths and checksums of all frames and blocks.
    Index(Index),
    /// End of a segment.
    End(End),
    /// An ancillary frame of a kind that this reader does not know.
    Unknown(&'a [u8]),
}

/// Result of [`Parser::advance`].
pub(crate) enum Progress<'a> {
    /// More input is needed; [`Parser::needed`] returns how much.
    NeedMore,
    /// The first `consumed` bytes of the input are this event.
    Ready { consumed: usize, event: Event<'a> },
}

/// How far a stream has been read, with the data that only this position needs.
enum State {
    /// Nothing has been read: the preamble comes next.
    Start,
    /// Inside a segment: any frame comes next. `open` is the update whose last part has not come yet.
    Segment { open: Option<OpenUpdate> },
    /// Behind the index frame at `offset`: the end frame comes next.
    Indexed { offset: u64, open: Option<OpenUpdate> },
    /// Behind an end frame: the stream may end here, or another segment begins.
    Ended,
    /// The stream was refused with this error: nothing more can be read.
    Failed(Error),
}

impl State {
    fn open(&self) -> Option<&OpenUpdate> {
        match self {
            Self::Segment { open } | Self::Indexed { open, .. } => open.as_ref(),
            Self::Start | Self::Ended | Self::Failed(_) => None,
        }
    }

    fn take_open(&mut self) -> Option<OpenUpdate> {
        match self {
            Self::Segment { open } | Self::Indexed { open, .. } => open.take(),
            Self::Start | Self::Ended | Self::Failed(_) => None,
        }
    }
}

/// An update whose last part has not come yet.
pub(crate) struct OpenUpdate {
    header: UpdateHeader,
    manifest: ManifestId,
    next_part: u64,
    order: BlockOrder,
}

/// Reads a stream frame by frame and keeps the definitions that later frames may refer to. It has no buffer:
/// the caller passes the unread input until it is enough for the next event.
pub(crate) struct Parser {
    limits: Limits,
    offset: u64,
    frames: u64,
    state: State,
    chain: crc32fast::Hasher,
    manifests: HashMap<ManifestId, Arc<Manifest>>,
    sets: Arc<Sets>,
    models: HashSet<ModelId>,
    listed: Listed,
    definitions: Definitions,
    /// Whether frames were left out, so that the index and the end of the stream list more than was read.
    torn: bool,
    /// Whether each frame counts for itself: an index and an end are not read.
    pub(crate) is_recovering: bool,
}

/// Account of the definitions kept for later frames. A few bytes can define a lot, so both their number and
/// their total memory are limited.
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
        self.remember(set.support.facts().memory, limits, offset)
    }

    fn remember(&mut self, bytes: u64, limits: &Limits, offset: u64) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        check("max_alloc_bytes", self.bytes, limits.max_alloc_bytes, offset)
    }
}

/// Running hash of the entries that an index frame must contain: memory does not grow with the stream.
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
            state: State::Start,
            chain: crc32fast::Hasher::new(),
            manifests: HashMap::new(),
            sets: Arc::default(),
            models: HashSet::new(),
            listed: Listed::new(),
            definitions: Definitions::default(),
            torn: false,
            is_recovering: false,
        }
    }

    /// Returns a parser of the frames of a corrupt stream, without its preamble, index and end: these say
    /// nothing about other frames.
    pub(crate) fn recovering(limits: Limits) -> Self {
        Self { state: State::Segment { open: None }, is_recovering: true, ..Self::new(limits) }
    }

    /// Reads the next event as [`Self::advance`] does. After an error, [`Self::leave_out`] moves on.
    pub(crate) fn try_advance<'a>(&mut self, input: &'a [u8]) -> Result<Progress<'a>> {
        match &self.state {
            State::Start => self.preamble(input),
            _ => self.frame(input).map_err(|e| e.in_frame(self.frames)),
        }
    }

    /// Leaves out the next `bytes`, which are a whole frame or not. From here on, the counts and checksums of
    /// an index and of an end are not compared with what was read.
    pub(crate) fn leave_out(&mut self, bytes: u64, is_frame: bool) {
        self.torn = true;
        self.offset = self.offset.saturating_add(bytes);
        self.frames += u64::from(is_frame);
        if matches!(self.state, State::Start | State::Ended | State::Indexed { .. }) {
            let open = self.state.take_open();
            self.state = State::Segment { open };
        }
    }

    /// Whether the preamble has not been read yet.
    pub(crate) fn is_at_start(&self) -> bool {
        matches!(self.state, State::Start)
    }

    /// Returns the number of the next frame.
    pub(crate) fn next_frame(&self) -> u64 {
        self.frames
    }

    /// Takes out the update whose last part has not come, so that the next frame may begin another.
    pub(crate) fn suspend_update(&mut self) -> Option<OpenUpdate> {
        self.state.take_open()
    }

    /// Continues an update that [`Self::suspend_update`] took out.
    pub(crate) fn resume_update(&mut self, open: Option<OpenUpdate>) {
        self.state = State::Segment { open };
    }

    pub(crate) fn add_manifest(&mut self, manifest: Arc<Manifest>) {
        self.manifests.insert(manifest.id(), manifest);
    }

    pub(crate) fn add_index_set(&mut self, id: SetId, set: SharedSet) {
        Arc::make_mut(&mut self.sets).insert(id, Arc::new(set));
    }

    /// Returns the offset of the input's first byte in the stream.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next event from the beginning of `input`. After an error, every further call returns it
    /// again.
    pub(crate) fn advance<'a>(&mut self, input: &'a [u8]) -> Result<Progress<'a>> {
        let progress = match &self.state {
            State::Failed(error) => return Err(error.duplicate()),
            State::Start => self.preamble(input),
            _ => self.frame(input).map_err(|e| e.in_frame(self.frames)),
        };
        if let Err(error) = &progress {
            self.state = State::Failed(error.duplicate());
        }
        progress
    }

    /// Returns the length of the next event in bytes, as far as `input` shows it; 0 if `input` is refused
    /// already.
    pub(crate) fn needed(&self, input: &[u8]) -> u64 {
        let begins = |with: &[u8]| input.iter().zip(with).all(|(a, b)| a == b);
        match &self.state {
            State::Failed(_) => 0,
            State::Start if begins(&MAGIC) => PREAMBLE_LEN as u64,
            State::Start => 0,
            _ if !begins(&SYNC) => 0,
            _ => match input.first_chunk::<HEADER_LEN>() {
                None => HEADER_LEN as u64,
                Some(header) => {
                    self.header(header).map_or(0, |h| h.body_len.saturating_add(HEADER_LEN as u64))
                }
            },
        }
    }

    /// Checks that the stream may end where the parser stands, with `rest` bytes left unread (STR-5).
    pub(crate) fn finish(&self, rest: usize) -> Result<()> {
        let frame = match &self.state {
            State::Ended if rest == 0 => return Ok(()),
            State::Failed(error) => return Err(error.duplicate()),
            State::Start => None,
            State::Segment { .. } | State::Indexed { .. } | State::Ended => Some(self.frames),
        };
        let truncated = Error::format(FormatErrorKind::Truncated, self.offset + rest as u64);
        Err(frame.into_iter().fold(truncated, Error::in_frame))
    }

    fn preamble<'a>(&mut self, input: &'a [u8]) -> Result<Progress<'a>> {
        if !input.iter().zip(MAGIC).all(|(a, b)| *a == b) {
            return Err(Error::format(FormatErrorKind::BadMagic, self.offset));
        }
        let Some(bytes) = input.first_chunk() else { return Ok(Progress::NeedMore) };
        let preamble = Preamble::read(bytes)?;
        self.state = State::Segment { open: None };
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
        Ok(Progress::Ready { consumed: HEADER_LEN + body.len(), event: Event::Frame(info, parsed) })
    }

    /// Reads the header of the next frame and checks everything that does not need the body.
    fn header(&self, bytes: &[u8; HEADER_LEN]) -> Result<FrameHeader> {
        let header = FrameHeader::read(bytes, self.offset)?;
        header.check(self.offset)?;
        check("max_frame_bytes", header.body_len, self.limits.max_frame_bytes, self.offset + 8)?;
        Ok(header)
    }

    fn body<'a>(&mut self, info: &FrameInfo, body: &'a [u8], offset: u64) -> Result<Body<'a>> {
        match self.state {
            State::Indexed { .. } if info.header.kind != FrameKind::END => {
                let field = "frame between an index and its end";
                return Err(Error::format(FormatErrorKind::Misplaced { field }, info.offset));
            }
            State::Ended => self.state = State::Segment { open: None },
            _ => {}
        }
        Ok(match info.header.kind {
            FrameKind::INDEX | FrameKind::END if self.is_recovering => Body::Unknown(body),
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
                if !self.torn && !self.listed.agrees(&index) {
                    return Err(Error::format(FormatErrorKind::NotCanonical { field: "index" }, offset));
                }
                self.state = State::Indexed { offset: info.offset, open: self.state.take_open() };
                Body::Index(index)
            }
            FrameKind::END => {
                let end = self.end(body, offset)?;
                self.state = State::Ended;
                Body::End(end)
            }
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
        let mut order = match self.state.open() {
            Some(open) if part.part != open.next_part || manifest != open.manifest => return Err(misplaced),
            Some(open) if !open.header.same_update(&part.header) => return Err(misplaced),
            None if part.part != 0 => return Err(misplaced),
            Some(open) => open.order.clone(),
            None => BlockOrder::default(),
        };
        for (number, block) in part.blocks.iter().enumerate() {
            if !order.accept(block.scope, block.add) {
                return Err(
                    Error::format(FormatErrorKind::NotAscending, block.offset).in_block(number as u64)
                );
            }
        }
        let open = (!last).then(|| OpenUpdate {
            header: part.header.without_details(),
            manifest,
            next_part: part.part.saturating_add(1),
            order,
        });
        self.state = State::Segment { open };
        self.listed.update(&IndexedUpdate::of(&part, body));
        Ok(part)
    }

    /// Reads an end frame and checks what it says about the segment before it (END-1).
    fn end(&self, body: &[u8], offset: u64) -> Result<End> {
        let end = End::read(body, offset)?;
        if self.torn {
            return Ok(end);
        }
        if self.state.open().is_some() {
            return Err(Error::format(FormatErrorKind::Misplaced { field: "end inside an update" }, offset));
        }
        if end.frame_count != self.frames {
            return Err(Error::format(FormatErrorKind::CountMismatch { field: "frame_count" }, offset));
        }
        let index_offset = match self.state {
            State::Indexed { offset, .. } => offset,
            _ => 0,
        };
        if end.index_offset != index_offset {
            return Err(Error::out_of_range("index_offset", end.index_offset, offset + 8));
        }
        check_crc(end.chain, self.chain.clone().finalize(), offset + 16)?;
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{BlockOptions, Positions, Scope, Sparse, Support};
    use crate::error::LimitError;
    use crate::frame::TensorInfo;
    use crate::stream::{EncodeOptions, Encoder, SliceReader, Writer};
    use crate::tensor::Dtype;

    #[test]
    fn the_bytes_needed_are_those_of_the_next_event() {
        let stream = Writer::new(Vec::new(), EncodeOptions::default()).finish().unwrap();
        let mut parser = Parser::new(Limits::default());
        for input in [&[][..], &stream[..5], &stream[..16]] {
            assert_eq!(parser.needed(input), PREAMBLE_LEN as u64);
        }
        assert_eq!([b"\x89GCX", &b"x"[..]].map(|input| parser.needed(input)), [0, 0]);
        let (mut rest, mut frames) = (&stream[..], Vec::new());
        while !rest.is_empty() {
            assert_eq!(parser.offset(), (stream.len() - rest.len()) as u64);
            let Progress::Ready { consumed, event } = parser.advance(rest).unwrap() else { panic!("cut") };
            if let Event::Frame(info, _) = event {
                assert_eq!((info.offset, info.len()), (parser.offset() - info.len(), consumed as u64));
                frames.push(&rest[..consumed]);
            }
            rest = &rest[consumed..];
        }
        assert_eq!(frames.len(), 2);
        let frame = frames[0];
        for (len, needed) in [(0, HEADER_LEN), (3, HEADER_LEN), (23, HEADER_LEN), (24, frame.len())] {
            assert_eq!(parser.needed(&frame[..len]), needed as u64, "{len}");
        }
        // Input that is refused without more bytes: another sync word, a corrupt header, anything after an
        // error.
        let mut corrupt = frame.to_vec();
        corrupt[5] ^= 1;
        assert_eq!([b"\xd3gcx", &b"x"[..], &corrupt].map(|input| parser.needed(input)), [0; 3]);
        assert!(parser.advance(b"x").is_err());
        assert_eq!([&[], frame].map(|input| parser.needed(input)), [0; 2]);
    }

    #[test]
    fn definitions_are_limited_in_number_and_memory() {
        let manifests = ["a", "b"].map(|name| {
            let info = TensorInfo::new(name.repeat(100), Dtype::F32, [100]);
            Arc::new(Manifest::new(vec![info]).unwrap())
        });
        let encoder = || (Encoder::new(EncodeOptions::default()), Vec::new());
        let (mut two, mut names) = encoder();
        manifests.iter().for_each(|manifest| two.manifest(&mut names, manifest));
        two.finish(&mut names);
        let (mut two, mut sets) = encoder();
        for step in 0..2 {
            let positions = (0..50).map(|i| 2 * i).collect();
            let set = IndexSet {
                manifest: manifests[0].id(),
                step,
                leader: 0,
                world: 0,
                scope: Scope::Tensor(0),
                support: Support::Sparse(Sparse { positions }),
            };
            let options = BlockOptions::default().with_positions(Positions::Rice);
            two.index_set(&mut sets, &set, &manifests[0], options).unwrap();
        }
        two.finish(&mut sets);
        let limits = Limits::default;
        for (stream, limit, most, limits) in [
            (
                &names,
                "max_definitions",
                2,
                (limits().with_max_definitions(2), limits().with_max_definitions(1)),
            ),
            (
                &sets,
                "max_definitions",
                2,
                (limits().with_max_definitions(2), limits().with_max_definitions(1)),
            ),
            (
                &names,
                "max_alloc_bytes",
                200,
                (limits().with_max_alloc_bytes(200), limits().with_max_alloc_bytes(199)),
            ),
            // A name, and 50 positions in each set.
            (
                &sets,
                "max_alloc_bytes",
                900,
                (limits().with_max_alloc_bytes(900), limits().with_max_alloc_bytes(899)),
            ),
        ] {
            assert!(SliceReader::new(stream, limits.0).all(|event| event.is_ok()), "{limit}");
            match SliceReader::new(stream, limits.1).find_map(Result::err) {
                Some(Error::Limit(LimitError { limit: found, asked, allowed, .. })) => {
                    assert_eq!((found, asked, allowed), (limit, most, most - 1));
                }
                other => panic!("{limit}: {other:?}"),
            }
        }
    }
}
