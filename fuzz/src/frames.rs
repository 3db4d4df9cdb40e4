//! Splits any bytes into frames, and joins them again with correct lengths, checksums, ids and counts.
//! Written from the spec; it shares only the two hashes with the library.

/// A frame: its header without lengths and checksums, and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: u16,
    pub flags: u16,
    pub body: Vec<u8>,
}

pub const MANIFEST: u16 = 1;
pub const UPDATE: u16 = 2;
pub const INDEX_SET: u16 = 3;
pub const MODEL: u16 = 4;
pub const END: u16 = 5;
pub const INDEX: u16 = 0x8002;
/// Every kind, and some unknown ones.
pub const KINDS: [u16; 11] =
    [UPDATE, INDEX_SET, MANIFEST, MODEL, END, 0x8001, INDEX, 0x7001, 0xf001, 6, 0x8003];

pub const PREAMBLE: usize = 16;
pub const HEADER: usize = 24;
const SYNC: [u8; 4] = *b"\xd3gcf";

pub fn crc(bytes: &[u8]) -> [u8; 4] {
    crc32fast::hash(bytes).to_le_bytes()
}

/// Returns the frames of a stream. It ends where no header is; the last body may be truncated, and bytes
/// before the first header are skipped.
pub fn parse(bytes: &[u8]) -> Vec<Frame> {
    let mut rest = bytes.get(PREAMBLE..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_first_chunk::<HEADER>() {
        if header[..4] != SYNC {
            break;
        }
        let number = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let len = u64::from_le_bytes(std::array::from_fn(|i| header[8 + i]));
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(after.len());
        let (body, after) = after.split_at(len);
        frames.push(Frame { kind: number(4), flags: number(6), body: body.to_vec() });
        rest = after;
    }
    frames
}

/// Fields that [`write`] corrects.
#[derive(Debug, Clone, Copy)]
pub struct Repair {
    /// Ids of manifests, index sets and models: hashes of possibly changed bytes.
    pub names: bool,
    /// Counts, offsets and chains of end frames.
    pub ends: bool,
    /// Index frames list what there is.
    pub indexes: bool,
}

impl Repair {
    pub const ALL: Self = Self { names: true, ends: true, indexes: true };
}

/// Returns a stream of these frames; lengths and checksums are always correct.
pub fn write(frames: &[Frame], repair: Repair) -> Vec<u8> {
    let mut frames = frames.to_vec();
    if repair.names {
        rename(&mut frames);
    }
    let mut out = b"\x89GCU\r\n\x1a\n\x01\x00\x00\x00".to_vec();
    out.extend(crc(&out));
    let mut chain = crc32fast::Hasher::new();
    let mut index_offset = 0u64;
    for number in 0..frames.len() {
        match frames[number].kind {
            INDEX => {
                index_offset = out.len() as u64;
                if repair.indexes {
                    frames[number].body = index(&frames[..number]);
                }
            }
            END if repair.ends => {
                let mut body = (number as u64).to_le_bytes().to_vec();
                body.extend(index_offset.to_le_bytes());
                body.extend(chain.clone().finalize().to_le_bytes());
                body.extend(b"GCUE");
                frames[number].body = body;
                index_offset = 0;
            }
            _ => {}
        }
        let frame = &frames[number];
        let header = header(frame);
        chain.update(&header[..20]);
        out.extend(header);
        out.extend(&frame.body);
    }
    out
}

/// Returns a frame's header.
pub fn header(frame: &Frame) -> [u8; HEADER] {
    let mut header = SYNC.to_vec();
    header.extend(frame.kind.to_le_bytes());
    header.extend(frame.flags.to_le_bytes());
    header.extend((frame.body.len() as u64).to_le_bytes());
    header.extend(crc(&frame.body));
    header.extend(crc(&header));
    std::array::from_fn(|i| header[i])
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// Sets the ids in updates and index sets to those of definitions before them: the same id if it exists,
/// otherwise that of the last manifest or set. Models get the hash of their weights.
fn rename(frames: &mut [Frame]) {
    let (mut manifests, mut sets): (Vec<[u8; 32]>, Vec<[u8; 32]>) = (Vec::new(), Vec::new());
    for frame in frames {
        let refer = |body: &mut [u8], names: &[[u8; 32]]| {
            if let (Some(name), Some(last)) = (body.first_chunk_mut(), names.last())
                && !names.contains(name)
            {
                *name = *last;
            }
        };
        match frame.kind {
            MANIFEST => manifests.push(hash(&frame.body)),
            INDEX_SET => {
                refer(&mut frame.body, &manifests);
                sets.push(hash(&frame.body));
            }
            UPDATE => {
                refer(&mut frame.body, &manifests);
                if let Some(mut update) = Update::parse(&frame.body) {
                    for block in update.blocks.iter_mut().filter(|b| b.support_id == SET) {
                        refer(&mut block.support, &sets);
                    }
                    frame.body = update.write();
                }
            }
            MODEL => rename_model(&mut frame.body),
            _ => {}
        }
    }
}

const SET: u64 = 8;

fn rename_model(body: &mut [u8]) {
    let mut at = Cursor(body.get(32..).unwrap_or_default());
    let mut weights = || {
        for _ in 0..2 {
            let len = at.varint()?;
            at.take(len)?;
        }
        at.varint()?;
        (at.take(1)? == [1]).then_some(at.0.len())
    };
    if let Some(len) = weights() {
        let name = hash(&body[body.len() - len..]);
        body[..32].copy_from_slice(&name);
    }
}

/// Returns the body of an index of these frames.
fn index(frames: &[Frame]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, frames.len() as u64);
    for frame in frames {
        put_varint(&mut out, frame.kind.into());
        put_varint(&mut out, (HEADER + frame.body.len()) as u64);
    }
    for frame in frames.iter().filter(|f| f.kind == UPDATE) {
        let Some(update) = Update::parse(&frame.body) else { continue };
        put_varint(&mut out, update.step);
        put_varint(&mut out, update.sender);
        let head = &frame.body[..update.head.len() + varint_len(update.blocks.len() as u64)];
        put_varint(&mut out, head.len() as u64);
        out.extend(crc(head));
        put_varint(&mut out, update.blocks.len() as u64);
        for block in &update.blocks {
            let bytes = block.write();
            let [first, count] = block.tensors();
            put_varint(&mut out, first);
            put_varint(&mut out, count);
            put_varint(&mut out, bytes.len() as u64);
            out.extend(crc(&bytes));
        }
    }
    out
}

/// An update's body, split down to the parts of its blocks.
#[derive(Debug, Clone)]
pub struct Update {
    /// Everything before the number of blocks.
    pub head: Vec<u8>,
    pub step: u64,
    pub sender: u64,
    pub blocks: Vec<Block>,
}

#[derive(Debug, Clone, Default)]
pub struct Block {
    /// Scope: flags, and two or three numbers.
    pub scope: Vec<u8>,
    pub support_id: u64,
    pub values_id: u64,
    pub support: Vec<u8>,
    pub values: Vec<u8>,
}

impl Update {
    /// Returns `None` if its lengths are inconsistent.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let mut at = Cursor(body);
        at.take(32)?;
        let step = at.varint()?;
        at.varint()?;
        let sender = at.varint()?;
        for _ in 0..3 {
            at.varint()?;
        }
        at.take(1)?;
        at.varint()?;
        for _ in 0..at.varint()? {
            at.varint()?;
            let len = at.varint()?;
            at.take(len)?;
        }
        for _ in 0..at.varint()? {
            at.table()?;
        }
        let head = body[..body.len() - at.0.len()].to_vec();
        let count = at.varint()?;
        let mut blocks = Vec::new();
        for _ in 0..count {
            let len = at.varint()?;
            blocks.push(Block::parse(at.take(len)?)?);
        }
        at.0.is_empty().then_some(Self { head, step, sender, blocks })
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = self.head.clone();
        put_varint(&mut out, self.blocks.len() as u64);
        self.blocks.iter().for_each(|b| out.extend(b.write()));
        out
    }
}

impl Block {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut at = Cursor(bytes);
        let flags = at.take(1)?[0];
        for _ in 0..[1, 2, 3, 1][usize::from(flags & 3)] {
            at.varint()?;
        }
        let scope = bytes[..bytes.len() - at.0.len()].to_vec();
        let (support_id, values_id, len) = (at.varint()?, at.varint()?, at.varint()?);
        let support = at.take(len)?.to_vec();
        Some(Self { scope, support_id, values_id, support, values: at.0.to_vec() })
    }

    fn write(&self) -> Vec<u8> {
        let mut rest = self.scope.clone();
        put_varint(&mut rest, self.support_id);
        put_varint(&mut rest, self.values_id);
        put_varint(&mut rest, self.support.len() as u64);
        rest.extend(&self.support);
        rest.extend(&self.values);
        let mut out = Vec::new();
        put_varint(&mut out, rest.len() as u64);
        out.extend(rest);
        out
    }

    /// First tensor and number of tensors.
    fn tensors(&self) -> [u64; 2] {
        let mut at = Cursor(self.scope.get(1..).unwrap_or_default());
        let first = at.varint().unwrap_or_default();
        let count = if self.scope.first().is_some_and(|f| f & 3 == 1) { at.varint() } else { None };
        [first, count.unwrap_or(1)]
    }
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for i in 0..10 {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f).checked_shl(7 * i)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Skips a frequency table.
    fn table(&mut self) -> Option<()> {
        let bits = |from: usize, count: usize| -> Option<usize> {
            let bit = |i: usize| Some(usize::from(self.0.get(i / 8)? >> (i % 8) & 1));
            (0..count).try_fold(0, |n, i| Some(n | bit(from + i)? << i))
        };
        let (symbols, rest) = (bits(8, 8)?, bits(16, 8)?);
        let mut at = 24;
        for _ in (0..=symbols).filter(|s| *s != rest) {
            let x = bits(at, 4)?;
            at += 4 + x.saturating_sub(1).min(3);
        }
        self.take(at.div_ceil(8) as u64).map(drop)
    }
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}
