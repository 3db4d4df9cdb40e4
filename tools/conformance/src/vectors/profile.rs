//! The core profile (core.md): its vectors, and which of all vectors are of it.

use gcodec::Limits;
use gcodec::stream::{Body, Event, SliceReader};

use super::Area;
use super::build::*;

pub(crate) fn add(area: &mut Area) {
    let man = manifest(&[("a", F32, &[8]), ("b", BF16, &[4]), ("c", F32, &[6]), ("n", I16, &[3])]);
    let floats = |count: usize| (1, (0..count).fold(bytes().u8(2), |out, i| out.f32(i as f32 - 0.5)));
    let source = (1, bytes().u8(0).u16(7).u16(8).u16(9));
    let tokens = (3, bytes().v(3).raw(token_entropy(&[1, 0, 2], 0)));
    let pow2 = (4, bytes().u16(0xfffe).u8(0).u8(2).raw(entropy(&[1, 0, 3, 1], 0)).u8(0).u8(0b101));
    let first = || {
        let blocks = [
            block(range(0, 0, 6), tokens.clone(), floats(3)),
            block(whole(1), ALL(), pow2.clone()),
            block(whole(2), rice(&[1, 4], 1), (3, scale(0.25).u8(0).u8(0b10))),
            block(whole(3), ALL(), source.clone()),
        ];
        update(&man, blocks).attribute(1, bytes().raw("core")).attribute(131, bytes().raw("private"))
    };
    area.valid("kinds", "PRF-1", {
        stream().manifest(&man).frame(METADATA, 0, bytes().u8(0).v(0)).update(&first()).index().done()
    })
    .tensors()
    .notes("metadata and the index may be skipped");
    let levels = |coded: Bytes| (5, bytes().u8(0).v(3).u8(255).raw(scale(1.5)).raw(coded));
    area.valid("levels-and-affine", "PRF-1", {
        let affine = (6, bytes().u8(2).u8(1).raw(scale(0.5)).u8(1).packed(2, &[3, 0, 2]));
        let blocks = [
            block(whole(0), (4, bytes().u8(0b1001_0100)), levels(bytes().packed(3, &[1, 6, 0]))),
            block(whole(2), rice(&[0, 1, 5], 0), affine),
        ];
        stream().manifest(&man).update(&update(&man, blocks)).done()
    })
    .tensors();
    let two = |second: Bytes| {
        let blocks = [block(whole(0), rice(&[1, 2, 6], 1), floats(3)), second];
        stream().manifest(&man).update(&update(&man, blocks)).done()
    };
    let planes = || block(whole(3), ALL(), (9, bytes().u8(0).raw([1, 2, 3]).u8(0).raw([0, 0, 0])));
    area.valid("one-block-more", "PRF-2", two(planes()))
        .tensors()
        .notes("a core reader gives no element of the update, not even those of the first block");
    area.valid("an-update-more", "PRF-2", {
        let second = Update { step: 1, ..update(&man, [planes()]) };
        stream().manifest(&man).update(&first()).update(&second).done()
    })
    .notes("a core reader may give the first update");
    area.valid("add", "PRF-1", two(block(adding(whole(0)), ALL(), ones()))).tensors();
    area.valid("joined", "PRF-1", {
        two(block(whole(2), ALL(), levels(bytes().u8(4).u8(2).raw(entropy(&[0x21, 0x43, 0x65], 0)))))
    });
    area.valid("tree", "PRF-1", {
        let codes = [1, 2, 3, 4, 5, 6];
        two(block(whole(2), ALL(), levels(bytes().u8(5).u8(2).u8(0).raw(freqs_of(&codes).tree(&codes)))))
    });
}

/// Whether a reader of the core profile gives the result of a vector. `error`: the kind of the vector's
/// error. Of a frame that cannot be read, what can be read is looked at.
pub(super) fn is_core(bytes: &[u8], limits: &Limits, error: Option<&str>, requirements: &[&str]) -> bool {
    // A core reader skips metadata and indexes.
    if error.is_some() && requirements.iter().any(|id| ["END-2", "IDX-2"].contains(id)) {
        return false;
    }
    let mut at = 16;
    for event in SliceReader::new(bytes, limits.clone()) {
        let Ok(event) = event else { return failed_in_core(&bytes[bytes.len().min(at)..], error) };
        let Event::Frame(info, body) = event else { continue };
        at = (info.offset + info.len()) as usize;
        let beyond = match body {
            Body::IndexSet(..) | Body::Model(_) => true,
            Body::Update(part) => {
                let beyond = |n| matches!(part.beyond_core(n, &part.budget()), Ok(Some(_)));
                part.header.is_delta() || (0..part.blocks.len()).any(beyond)
            }
            _ => false,
        };
        if beyond {
            return false;
        }
    }
    true
}

/// Whether a frame that cannot be read shows nothing that is not of the core profile.
fn failed_in_core(frame: &[u8], error: Option<&str>) -> bool {
    let Some((header, body)) = frame.split_at_checked(24) else { return true };
    match u16::from_le_bytes([header[4], header[5]]) {
        METADATA | INDEX => false,
        // Whatever else is in the frame, the answer of both readers is the same.
        _ if error == Some("unsupported") => true,
        SET | MODEL => false,
        UPDATE => !shows_beyond(&mut Fields(body)).unwrap_or(false),
        _ => true,
    }
}

/// The fields of a body, up to one that is missing.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

/// Whether the body of an update has a critical attribute or a block that is not of the core profile.
fn shows_beyond(body: &mut Fields<'_>) -> Option<bool> {
    body.take(32)?;
    (0..6).try_for_each(|_| body.varint().map(drop))?;
    body.take(1)?;
    body.varint()?;
    for _ in 0..body.varint()? {
        if body.varint()?.is_multiple_of(2) {
            return Some(true);
        }
        let len = body.varint()?;
        body.take(len)?;
    }
    // No vector with an error has both shared tables and blocks of other kinds.
    if body.varint()? > 0 {
        return Some(false);
    }
    for _ in 0..body.varint()? {
        let len = body.varint()?;
        let mut block = Fields(body.take(len)?);
        let flags = block.take(1)?[0];
        (0..[1, 2, 3, 1][usize::from(flags & 3)]).try_for_each(|_| block.varint().map(drop))?;
        let is_core = (1..5).contains(&block.varint()?) && (1..7).contains(&block.varint()?);
        if flags & 4 != 0 || !is_core {
            return Some(true);
        }
    }
    Some(false)
}
