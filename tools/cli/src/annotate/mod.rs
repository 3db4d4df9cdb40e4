//! Annotates the bytes of a stream with the fields that they encode. Written from the spec's text alone: it
//! shares no code with the library's readers, so that tests can compare the two.

mod block;
mod classed;
mod ints;
mod tree;
mod walk;

use crate::inspect::Wanted;
use crate::options::is_wanted;
use block::{Around, Over, block, digest};
use gcodec::Limits;
use gcodec::block::{RawBlock, SupportId};
use gcodec::frame::{FrameHeader, FrameKind, Manifest, UpdatePart};
use gcodec::internal::{HEADER_LEN, PREAMBLE_LEN};
use gcodec::stream::{Body, Event, SliceReader};
use ints::table;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
pub(crate) use walk::{Field, Line};
use walk::{Result, Stop, Walk, short_hex};

/// A piece of a stream: the preamble or a frame.
pub(crate) struct Annotated {
    /// Number of the frame; `None` for the preamble.
    pub(crate) frame: Option<u64>,
    /// Offset of its first byte.
    #[cfg_attr(not(test), expect(dead_code, reason = "compared with the annotations by tests"))]
    pub(crate) offset: u64,
    /// Number of its bytes.
    #[cfg_attr(not(test), expect(dead_code, reason = "compared with the annotations by tests"))]
    pub(crate) len: u64,
    /// Annotations of its bytes: of all, or of those that are asked for.
    pub(crate) lines: Vec<Line>,
}

/// Annotates a stream, or the parts of it that are wanted: of these, an update's headers and the blocks of
/// the wanted tensors. An error ends it, and comes with the annotations up to there.
pub(crate) fn annotate(
    bytes: &[u8],
    wanted: &Wanted,
    limits: &Limits,
) -> (Vec<Annotated>, Option<gcodec::Error>) {
    let frame = wanted.frame;
    let mut out = Vec::new();
    let mut known = Known::default();
    for event in SliceReader::new(bytes, limits.clone()) {
        match event {
            Err(error) => return (out, Some(error)),
            Ok(Event::Preamble(_)) if frame.is_none() && !wanted.is_part() => {
                let mut walk = Walk::new(&bytes[..PREAMBLE_LEN], 0);
                let result = preamble(&mut walk);
                let (len, lines) = (PREAMBLE_LEN as u64, walk.finish(result));
                out.push(Annotated { frame: None, offset: 0, len, lines });
            }
            Ok(Event::Frame(info, body)) => {
                known.see(&body);
                if frame.is_none_or(|f| f == info.number) && is_shown(&body, wanted) {
                    let start = info.offset as usize;
                    let slice = &bytes[start..start + info.len() as usize];
                    let mut walk = Walk::new(slice, info.offset);
                    let result = known.frame(&mut walk, &info.header);
                    let mut lines = walk.finish(result);
                    if let (Some(_), Body::Update(part)) = (&wanted.tensor, &body) {
                        lines = only_tensors(lines, part, wanted);
                    }
                    out.push(Annotated {
                        frame: Some(info.number),
                        offset: info.offset,
                        len: info.len(),
                        lines,
                    });
                }
                if frame == Some(info.number) {
                    break;
                }
            }
            Ok(_) => {}
        }
    }
    (out, None)
}

/// Whether a frame is wanted: where steps, senders or tensors are asked for, only updates are.
fn is_shown(body: &Body<'_>, wanted: &Wanted) -> bool {
    match body {
        Body::Update(part) => {
            let header = &part.header;
            let has = |name: &str| is_wanted(wanted.tensor.as_ref(), name);
            wanted.update(Some(header.step), Some(header.sender))
                && part.blocks.iter().any(|raw| names(part, raw).any(has))
        }
        _ => !wanted.is_part(),
    }
}

/// Returns the names of a block's tensors.
fn names<'a>(part: &'a UpdatePart<'_>, raw: &RawBlock<'_>) -> impl Iterator<Item = &'a str> {
    let infos = part.manifest.tensors().iter();
    infos.skip(raw.scope.first() as usize).take(raw.space.lens.len()).map(|info| info.name.as_str())
}

/// Leaves out the blocks of an update that hold none of the wanted tensors.
fn only_tensors(lines: Vec<Line>, part: &UpdatePart<'_>, wanted: &Wanted) -> Vec<Line> {
    let mut blocks = part.blocks.iter();
    let mut is_kept = true;
    let keeps = |line: &Line| {
        if let Line::Heading { depth, text } = line {
            match depth {
                0 => is_kept = true,
                1 if text.starts_with("block ") => {
                    is_kept = blocks.next().is_some_and(|raw| {
                        names(part, raw).any(|name| is_wanted(wanted.tensor.as_ref(), name))
                    });
                }
                _ => {}
            }
        }
        is_kept
    };
    lines.into_iter().filter(keeps).collect()
}

/// A field as JSON has it.
#[derive(Serialize)]
struct FieldRow<'a> {
    /// Number of the frame; null for the preamble.
    frame: Option<u64>,
    offset: u64,
    bytes: usize,
    /// Headings that the field stands under.
    path: &'a [&'a str],
    name: &'a str,
    value: &'a str,
    meaning: &'a str,
}

/// Formats annotations as JSON: an array of fields in the order of the stream, one in a line.
pub(crate) fn json(annotated: &[Annotated]) -> serde_json::Result<String> {
    let mut rows = Vec::new();
    for piece in annotated {
        let mut path: Vec<&str> = Vec::new();
        for line in &piece.lines {
            match line {
                Line::Heading { depth, text } => {
                    path.truncate(*depth);
                    path.push(text);
                }
                Line::Field(field) => {
                    path.truncate(field.depth);
                    rows.push(serde_json::to_string(&FieldRow {
                        frame: piece.frame,
                        offset: field.offset,
                        bytes: field.len,
                        path: &path,
                        name: &field.name,
                        value: &field.value,
                        meaning: &field.meaning,
                    })?);
                }
            }
        }
    }
    Ok(format!("[{}]\n", rows.join(",\n")))
}

/// Formats annotations as text: offset, bytes, field, value, meaning. `bytes` are the whole stream.
pub(crate) fn text(annotated: &[Annotated], bytes: &[u8]) -> String {
    let mut out = String::new();
    for piece in annotated {
        if !out.is_empty() {
            out.push('\n');
        }
        for line in &piece.lines {
            match line {
                Line::Heading { depth, text } => {
                    let text = crate::output::printable(text);
                    put(&mut out, format_args!("{:34}{:indent$}{text}\n", "", "", indent = depth * 2));
                }
                Line::Field(field) => put_field(&mut out, field, bytes),
            }
        }
    }
    out
}

/// Longest field whose bytes are shown in full.
const SHOWN: usize = 32;
/// Bytes per line.
const ROW: usize = 8;

fn put_field(out: &mut String, field: &Field, bytes: &[u8]) {
    let start = field.offset as usize;
    let all = &bytes[start..start + field.len];
    let shown = if all.len() > SHOWN { &all[..ROW - 1] } else { all };
    for (i, row) in shown.chunks(ROW).enumerate() {
        let mut hex: Vec<String> = row.iter().map(|b| format!("{b:02x}")).collect();
        if all.len() > SHOWN {
            hex.push("..".into());
        }
        let hex = hex.join(" ");
        if i > 0 {
            put(out, format_args!("{:8x}  {hex}\n", start + i * ROW));
            continue;
        }
        let name = format!("{:indent$}{}", "", field.name, indent = field.depth * 2);
        let value = crate::output::printable(&field.value);
        let meaning = crate::output::printable(&field.meaning);
        let line = format!("{start:8x}  {hex:<23} {name:<24}  {value:<18}  {meaning}");
        put(out, format_args!("{}\n", line.trim_end()));
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "writing to a String does not fail");
}

/// Describes how a block's integers are coded: Rice parameters, kinds of codes, tables.
pub(crate) fn codes(raw: &RawBlock<'_>, part: &UpdatePart<'_>) -> String {
    if ![SupportId::GAPS_RICE, SupportId::GAPS_TOKENS, SupportId::CLASSED].contains(&raw.support_id) {
        return String::new();
    }
    // None of these refers to an index set. Shared tables are unavailable here: the walk stops where a code
    // uses one, after naming it.
    let sets = HashMap::new();
    let around = Around { manifest: Some(&part.manifest), tables: &[], sets: &sets };
    let mut walk = Walk::new(raw.support, 0);
    let over = Over { n: raw.space.len(), tensors: raw.scope.tensors() };
    let result = block::support(&mut walk, &around, raw.support_id, over).map(drop);
    let lines = walk.finish(result);
    let values = |name: &str| {
        let fields = lines.iter().filter_map(|line| match line {
            Line::Field(field) if field.name.starts_with(name) => Some(field.value.as_str()),
            _ => None,
        });
        fields.filter_map(|v| v.parse::<u64>().ok()).collect::<Vec<_>>()
    };
    match raw.support_id {
        SupportId::GAPS_RICE => {
            let ks: Vec<u64> = lines
                .iter()
                .filter_map(|line| match line {
                    Line::Field(f) if f.name == "k" || f.name.starts_with("k of chunk") => {
                        f.value.parse().ok()
                    }
                    _ => None,
                })
                .collect();
            match (ks.iter().min(), ks.iter().max()) {
                (Some(min), Some(max)) if min == max => format!("k={min}"),
                (Some(min), Some(max)) => format!("k={min}..{max}, {} chunks", ks.len()),
                _ => String::new(),
            }
        }
        SupportId::GAPS_TOKENS => match values("table").as_slice() {
            [] => String::new(),
            [0] => "own table".into(),
            [_] => "shared table".into(),
            tables => format!("{} tables", tables.len()),
        },
        SupportId::CLASSED => match (values("rule").as_slice(), values("C").as_slice()) {
            ([1], [classes]) => format!("base C={classes}"),
            ([2], [classes]) => format!("C={classes}"),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

/// Definitions that frames refer to.
#[derive(Default)]
struct Known {
    manifests: HashMap<[u8; 32], Arc<Manifest>>,
    sets: HashMap<[u8; 32], u64>,
}

impl Known {
    fn see(&mut self, body: &Body<'_>) {
        match body {
            Body::Manifest(manifest) => {
                self.manifests.insert(manifest.id().0, Arc::clone(manifest));
            }
            Body::IndexSet(_, id, count) => {
                self.sets.insert(id.0, *count);
            }
            _ => {}
        }
    }

    fn frame(&self, w: &mut Walk<'_>, header: &FrameHeader) -> Result<()> {
        w.under(format_args!("frame: {}", header.kind), |w| {
            w.array::<4>("sync", |_| ("\"\\xd3gcf\"".into(), String::new()))?;
            w.array::<2>("kind", |b| {
                let kind = FrameKind(u16::from_le_bytes(b));
                let class = if kind.is_ancillary() { "ancillary" } else { "critical" };
                (format!("{:#06x}", kind.0), format!("{kind}, {class}"))
            })?;
            w.array::<2>("flags", |b| {
                let flags = u16::from_le_bytes(b);
                let last = header.kind == FrameKind::UPDATE && flags & FrameHeader::LAST != 0;
                (flags.to_string(), if last { "last part".into() } else { String::new() })
            })?;
            w.u64("body_len", "bytes of the body")?;
            w.u32("body_crc", "CRC-32 of the body")?;
            w.u32("header_crc", "CRC-32 of the 20 bytes before").map(drop)
        })?;
        debug_assert_eq!(w.at(), HEADER_LEN);
        match header.kind {
            FrameKind::MANIFEST => w.under("manifest", manifest),
            FrameKind::UPDATE => w.under("update", |w| self.update(w)),
            FrameKind::INDEX_SET => w.under("index set", |w| self.index_set(w)),
            FrameKind::MODEL => w.under("model", model),
            FrameKind::METADATA => w.under("metadata", metadata),
            FrameKind::INDEX => w.under("index", index),
            FrameKind::END => w.under("end", end),
            _ => w.payload(w.rest() as u64, "body", "of an unknown kind").map(drop),
        }
    }

    fn update(&self, w: &mut Walk<'_>) -> Result<()> {
        let id = w.hash("manifest id", "BLAKE3 of the manifest's body")?;
        w.varint("step", |_| "optimizer updates before")?;
        w.varint("round", |_| "communication rounds before")?;
        w.varint("sender", |_| "")?;
        let unknown = |v: u64| if v == 0 { "unknown" } else { "" };
        w.varint("world", unknown)?;
        w.varint("contributors", unknown)?;
        w.varint("inner_steps", unknown)?;
        w.u8("reduction", |r| match r {
            0 => "none: the sender's own",
            1 => "sum",
            2 => "mean",
            _ => "out of range",
        })?;
        w.varint("part", |_| "")?;
        let attributes = w.varint("attribute_count", |_| "")?;
        for _ in 0..attributes {
            attribute(w)?;
        }
        let table_count = w.varint("table_count", |_| "")?;
        let mut tables = Vec::new();
        for number in 0..table_count {
            tables.push(table(w, &format!("shared table {number}"))?);
        }
        let block_count = w.varint("block_count", |_| "")?;
        let manifest = self.manifests.get(&id).map(Arc::as_ref);
        let around = Around { manifest, tables: &tables, sets: &self.sets };
        for number in 0..block_count {
            w.under(format_args!("block {number}"), |w| block(w, &around))?;
        }
        Ok(())
    }

    fn index_set(&self, w: &mut Walk<'_>) -> Result<()> {
        let id = w.hash("manifest id", "BLAKE3 of the manifest's body")?;
        w.varint("step", |_| "at which the set was chosen")?;
        w.varint("leader", |_| "the sender that chose it")?;
        w.varint("world", |_| "")?;
        let manifest = self.manifests.get(&id).map(Arc::as_ref);
        let around = Around { manifest, tables: &[], sets: &self.sets };
        let (scope, space) = block::scope(w, &around)?;
        let over = Over { n: space.len(), tensors: scope.tensors() };
        let support = SupportId(w.varint("support_id", |id| SupportId(id).to_string())?);
        w.under(format_args!("support {support}"), |w| block::support(w, &around, support, over)).map(drop)
    }
}

fn preamble(w: &mut Walk<'_>) -> Result<()> {
    w.under("preamble", |w| {
        w.array::<8>("magic", |_| ("\"\\x89GCU\\r\\n\\x1a\\n\"".into(), String::new()))?;
        w.u8("major", |_| "version")?;
        w.u8("minor", |_| "")?;
        w.array::<2>("flags", |b| (u16::from_le_bytes(b).to_string(), "reserved".into()))?;
        w.u32("crc", "CRC-32 of the 12 bytes before").map(drop)
    })
}

fn manifest(w: &mut Walk<'_>) -> Result<()> {
    let count = w.varint("tensor_count", |_| "")?;
    let mut previous: Vec<u8> = Vec::new();
    for number in 0..count {
        w.heading(format_args!("tensor {number}"));
        let prefix = w.varint("prefix_len", |_| "bytes of the name before")?;
        let len = w.varint("suffix length", |_| "")?;
        let prefix = usize::try_from(prefix).ok().filter(|&p| p <= previous.len());
        let prefix = prefix.ok_or(Stop("a prefix longer than the name before".into()))?;
        let len = usize::try_from(len).map_err(|_| Stop("a name is too long".into()))?;
        previous.truncate(prefix);
        if len > 0 {
            let suffix = w.bytes(len, "suffix", |suffix| {
                let whole = [&previous, suffix].concat();
                let value = format!("{:?}", String::from_utf8_lossy(suffix));
                (
                    value,
                    if prefix > 0 {
                        format!("name {:?}", String::from_utf8_lossy(&whole))
                    } else {
                        String::new()
                    },
                )
            })?;
            previous.extend_from_slice(suffix);
        }
        w.u8("dtype", |d| gcodec::Dtype::from_id(d).map_or("unknown", gcodec::Dtype::name))?;
        let rank = w.varint("rank", |_| "dimensions")?;
        for _ in 0..rank {
            w.varint("dim", |_| "")?;
        }
        let extras = w.u8("extras", |e| match e {
            0 => "none",
            1 => "matrix view",
            2 => "shard",
            3 => "matrix view, shard",
            _ => "reserved bits",
        })?;
        if extras & 1 != 0 {
            w.varint("rows", |_| "of the matrix view")?;
            w.varint("cols", |_| "of the matrix view")?;
        }
        if extras & 2 != 0 {
            for _ in 0..rank {
                w.varint("global_dim", |_| "")?;
                w.varint("offset", |_| "")?;
            }
        }
    }
    Ok(())
}

fn attribute(w: &mut Walk<'_>) -> Result<()> {
    let id = w.varint("attribute id", |id| match id {
        1 => "label",
        2 => "delta",
        4 => "sum delta",
        _ if id % 2 == 1 => "unknown, ancillary",
        _ => "unknown",
    })?;
    let len = w.varint("attribute length", |_| "")?;
    let len = usize::try_from(len).map_err(|_| Stop("an attribute is too long".into()))?;
    w.inside(len, |w| match id {
        1 if len > 0 => {
            w.bytes(len, "label", |b| (format!("{:?}", String::from_utf8_lossy(b)), "")).map(drop)
        }
        2 | 4 => {
            let (base, result) = match id {
                2 => ("base digest", "result digest"),
                _ => ("base sum", "result sum"),
            };
            let count = w.varint("count", |_| "runs of tensors of the delta")?;
            for _ in 0..count {
                w.varint("first", |_| "tensor")?;
                w.varint("more", |_| "further tensors")?;
                digest(w, base)?;
                digest(w, result)?;
            }
            Ok(())
        }
        _ => w.payload(len as u64, "attribute", "").map(drop),
    })
}

fn model(w: &mut Walk<'_>) -> Result<()> {
    w.hash("model id", "BLAKE3 of the weights")?;
    w.text("format")?;
    w.text("name")?;
    w.varint("weights_len", |_| "bytes")?;
    let storage = w.u8("storage", |s| match s {
        0 => "by reference",
        1 => "inline",
        2 => "inline, zstd",
        _ => "out of range",
    })?;
    match storage {
        0 => w.text("location").map(drop),
        _ => w.payload(w.rest() as u64, "weights", "").map(drop),
    }
}

fn metadata(w: &mut Walk<'_>) -> Result<()> {
    if w.u8("storage", |s| if s == 0 { "plain" } else { "zstd" })? != 0 {
        w.varint("plain_len", |_| "bytes that it grows to")?;
        return w.payload(w.rest() as u64, "zstd frame", "").map(drop);
    }
    let count = w.varint("count", |_| "keys")?;
    for _ in 0..count {
        w.text("key")?;
        w.text("value")?;
    }
    Ok(())
}

fn index(w: &mut Walk<'_>) -> Result<()> {
    let count = w.varint("frame_count", |_| "frames before this one")?;
    let mut updates = 0;
    for number in 0..count {
        let named = |kind: u64| u16::try_from(kind).map(|k| FrameKind(k).to_string()).unwrap_or_default();
        let kind = w.varint(format_args!("kind of frame {number}"), named)?;
        w.varint("length", |_| "bytes of header and body")?;
        updates += u64::from(kind == u64::from(FrameKind::UPDATE.0));
    }
    for number in 0..updates {
        w.heading(format_args!("update part {number}"));
        w.varint("step", |_| "")?;
        w.varint("sender", |_| "")?;
        w.varint("head_len", |_| "bytes before the first block")?;
        w.u32("head_crc", "CRC-32 of those")?;
        let blocks = w.varint("block_count", |_| "")?;
        for _ in 0..blocks {
            w.varint("first tensor", |_| "")?;
            w.varint("tensor count", |_| "")?;
            w.varint("length", |_| "bytes of the whole block")?;
            w.u32("crc", "CRC-32 of the whole block")?;
        }
    }
    Ok(())
}

fn end(w: &mut Walk<'_>) -> Result<()> {
    w.u64("frame_count", "frames before this one")?;
    w.u64("index_offset", "where the index begins")?;
    w.u32("chain", "CRC-32 of the headers of those frames")?;
    w.array::<4>("tail", |b| (format!("{:?}", String::from_utf8_lossy(&b)), short_hex(&b))).map(drop)
}

#[cfg(test)]
mod tests;
