//! The preamble and the fixed header of every frame (spec, sections 3 and 4).

use crate::bits::{Cursor, check_crc, crc32, put_u16, put_u32, put_u64};
use crate::error::{Error, FormatErrorKind, Result};

/// First eight bytes of a stream.
pub const MAGIC: [u8; 8] = *b"\x89GCU\r\n\x1a\n";
/// Major version of the format.
pub const VERSION_MAJOR: u8 = 1;
/// Minor version of the format.
pub const VERSION_MINOR: u8 = 0;
/// Bytes in the preamble.
pub const PREAMBLE_LEN: usize = 16;
/// First four bytes of a frame.
pub const SYNC: [u8; 4] = *b"\xd3gcf";
/// Bytes in a frame's header.
pub const HEADER_LEN: usize = 24;
/// Bytes of a frame's header that the chain of an end frame covers: all except its own CRC, because a CRC
/// over bytes and their CRC does not depend on the bytes.
pub(crate) const CHAINED_LEN: usize = 20;

/// First sixteen bytes of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// Minor version that the writer followed.
    pub minor: u8,
}

impl Preamble {
    /// Appends the preamble.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION_MAJOR, self.minor, 0, 0]);
        let crc = crc32(&out[start..]);
        put_u32(out, crc);
    }

    /// Reads a preamble.
    pub(crate) fn read(bytes: &[u8; PREAMBLE_LEN]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, 0, "preamble");
        if cursor.array::<8>()? != MAGIC {
            return Err(Error::format(FormatErrorKind::BadMagic, 0));
        }
        let [major, minor] = cursor.array()?;
        let flags = cursor.u16()?;
        check_crc(cursor.u32()?, crc32(&bytes[..12]), 12)?;
        if major != VERSION_MAJOR {
            return Err(Error::unsupported("version", major.into(), 8));
        }
        if flags != 0 {
            return Err(Error::format(FormatErrorKind::ReservedBits { field: "preamble flags" }, 10));
        }
        Ok(Self { minor })
    }
}

/// Number of a frame kind in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameKind(pub u16);

impl FrameKind {
    /// Tensors that updates refer to.
    pub const MANIFEST: Self = Self(0x0001);
    /// Update of a sender at a step.
    pub const UPDATE: Self = Self(0x0002);
    /// A named support.
    pub const INDEX_SET: Self = Self(0x0003);
    /// A learned decoder.
    pub const MODEL: Self = Self(0x0004);
    /// End of a segment.
    pub const END: Self = Self(0x0005);
    /// Keys and values.
    pub const METADATA: Self = Self(0x8001);
    /// Lengths and checksums of all frames and blocks.
    pub const INDEX: Self = Self(0x8002);

    /// Every registered kind with its name.
    pub const REGISTERED: [(Self, &'static str); 7] = [
        (Self::MANIFEST, "manifest"),
        (Self::UPDATE, "update"),
        (Self::INDEX_SET, "index_set"),
        (Self::MODEL, "model"),
        (Self::END, "end"),
        (Self::METADATA, "metadata"),
        (Self::INDEX, "index"),
    ];

    /// Returns the kind's name in the registry.
    pub fn name(self) -> Option<&'static str> {
        Self::REGISTERED.iter().find(|(kind, _)| *kind == self).map(|(_, name)| *name)
    }

    /// Whether a reader that does not know the kind skips it.
    pub fn is_ancillary(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether the kind lies in a private range.
    pub(crate) fn is_private(self) -> bool {
        matches!(self.0, 0x7000..=0x7fff | 0xf000..=0xffff)
    }

    /// Returns the flags that the kind defines.
    fn known_flags(self) -> u16 {
        if self == Self::UPDATE { FrameHeader::LAST } else { 0 }
    }
}

impl std::fmt::Display for FrameKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "frame kind {:#06x}", self.0),
        }
    }
}

/// Fixed header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of the body.
    pub kind: FrameKind,
    /// Flags, defined by the kind.
    pub flags: u16,
    /// Bytes in the body.
    pub body_len: u64,
    /// CRC-32 of the body.
    pub body_crc: u32,
}

impl FrameHeader {
    /// Flag of an update's last part.
    pub const LAST: u16 = 1;

    /// Returns the header of `body`.
    pub(crate) fn of(kind: FrameKind, flags: u16, body: &[u8]) -> Self {
        Self { kind, flags, body_len: body.len() as u64, body_crc: crc32(body) }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend_from_slice(&SYNC);
        put_u16(&mut out, self.kind.0);
        put_u16(&mut out, self.flags);
        put_u64(&mut out, self.body_len);
        put_u32(&mut out, self.body_crc);
        let crc = crc32(&out);
        put_u32(&mut out, crc);
        std::array::from_fn(|i| out[i])
    }

    /// Reads a header. `offset` is its place in the stream, for errors.
    ///
    /// # Errors
    /// [`Error::Format`] if the sync word or the header's checksum is wrong. The fields are not checked.
    pub fn read(bytes: &[u8; HEADER_LEN], offset: u64) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, offset, "frame header");
        if cursor.array::<4>()? != SYNC {
            return Err(Error::format(FormatErrorKind::BadSync, offset));
        }
        let header = Self {
            kind: FrameKind(cursor.u16()?),
            flags: cursor.u16()?,
            body_len: cursor.u64()?,
            body_crc: cursor.u32()?,
        };
        check_crc(cursor.u32()?, crc32(&bytes[..20]), offset + 20)?;
        Ok(header)
    }

    /// Checks everything that does not need the body (FRM-5, CNV-5).
    pub(crate) fn check(&self, offset: u64) -> Result<()> {
        if self.kind.name().is_none() {
            return match self.kind.is_ancillary() {
                true => Ok(()),
                false => Err(Error::unsupported("frame kind", self.kind.0.into(), offset + 4)),
            };
        }
        if self.flags & !self.kind.known_flags() != 0 {
            let kind = FormatErrorKind::ReservedBits { field: "frame flags" };
            return Err(Error::format(kind, offset + 6));
        }
        Ok(())
    }

    /// Checks the body's CRC.
    pub(crate) fn check_body(&self, body: &[u8], offset: u64) -> Result<()> {
        check_crc(self.body_crc, crc32(body), offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_preamble_is_checked() {
        let mut bytes = Vec::new();
        Preamble { minor: 7 }.write(&mut bytes);
        let bytes: [u8; PREAMBLE_LEN] = bytes.try_into().unwrap();
        assert_eq!(Preamble::read(&bytes).unwrap().minor, 7);
        let changed = |at: usize, is_summed: bool| {
            let mut bytes = bytes;
            bytes[at] ^= 0x40;
            if is_summed {
                let crc = crc32(&bytes[..12]);
                bytes[12..].copy_from_slice(&crc.to_le_bytes());
            }
            Preamble::read(&bytes).map_err(|e| (e.name(), e.location().unwrap().offset))
        };
        for at in 0..8 {
            assert_eq!(changed(at, true), Err(("bad_magic", 0)));
        }
        assert_eq!(changed(8, true), Err(("unsupported", 8)));
        assert_eq!(changed(9, true), Ok(Preamble { minor: 7 ^ 0x40 }));
        assert_eq!([10, 11].map(|at| changed(at, true)), [Err(("reserved_bits", 10)); 2]);
        assert_eq!([9, 15].map(|at| changed(at, false)), [Err(("checksum_mismatch", 12)); 2]);
    }

    #[test]
    fn a_header_begins_with_the_sync_word_and_ends_with_its_checksum() {
        let header = FrameHeader::of(FrameKind::UPDATE, FrameHeader::LAST, b"body");
        let bytes = header.to_bytes();
        assert_eq!(FrameHeader::read(&bytes, 50).unwrap(), header);
        let read =
            |bytes| FrameHeader::read(&bytes, 50).map_err(|e| (e.name(), e.location().unwrap().offset));
        for at in 0..HEADER_LEN {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            let expected = if at < 4 { ("bad_sync", 50) } else { ("checksum_mismatch", 70) };
            assert_eq!(read(wrong), Err(expected), "{at}");
        }
        // Another word with a right checksum.
        let mut other = bytes;
        other[..4].copy_from_slice(b"\xd3gcg");
        let crc = crc32(&other[..20]);
        other[20..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(read(other), Err(("bad_sync", 50)));
    }
}
