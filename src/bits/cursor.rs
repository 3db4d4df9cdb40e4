//! The reader of structures: integers, texts and bytes, with the stream offset of each error.

use nom::bytes::complete::take;
use nom::error::Error as NomError;
use nom::number::complete::{le_i16, le_u8, le_u16, le_u32, le_u64};
use nom::{IResult, Parser};

use crate::error::{Error, FormatErrorKind, Result};

/// A position in a byte slice that knows its stream offset and the name of its structure, so that every error
/// has both.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    offset: u64,
    structure: &'static str,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at the beginning of `bytes`, which start at `offset` and are all of `structure`.
    pub(crate) fn new(bytes: &'a [u8], offset: u64, structure: &'static str) -> Self {
        Self { rest: bytes, offset, structure }
    }

    /// Returns the stream offset of the next byte.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes left.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Runs a parser on the bytes left. A parser that needs more bytes gives a length mismatch.
    fn parse<O>(
        &mut self,
        mut parser: impl Parser<&'a [u8], Output = O, Error = NomError<&'a [u8]>>,
    ) -> Result<O> {
        let parsed: IResult<&'a [u8], O> = parser.parse(self.rest);
        let (rest, value) = parsed.map_err(|_| self.short())?;
        self.offset += (self.rest.len() - rest.len()) as u64;
        self.rest = rest;
        Ok(value)
    }

    fn short(&self) -> Error {
        Error::format(FormatErrorKind::LengthMismatch { field: self.structure }, self.offset)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.parse(le_u8)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.parse(le_u16)
    }

    pub(crate) fn i16(&mut self) -> Result<i16> {
        self.parse(le_i16)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.parse(le_u32)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.parse(le_u64)
    }

    /// Reads a varint: minimal, below 2^64 (CNV-2).
    pub(crate) fn varint(&mut self) -> Result<u64> {
        let start = self.offset;
        let bad = || Error::format(FormatErrorKind::BadVarint, start);
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            let group = u64::from(byte & 0x7f);
            if shift == 63 && group > 1 {
                return Err(bad());
            }
            value |= group << shift;
            if byte & 0x80 == 0 {
                return if byte == 0 && shift > 0 { Err(bad()) } else { Ok(value) };
            }
        }
        Err(bad())
    }

    /// Reads a varint in `low ..= high` (CNV-4).
    pub(crate) fn varint_in(&mut self, field: &'static str, low: u64, high: u64) -> Result<u64> {
        let start = self.offset;
        let value = self.varint()?;
        if value < low || value > high {
            return Err(Error::out_of_range(field, value, start));
        }
        Ok(value)
    }

    /// Reads a byte in `low ..= high` (CNV-4).
    pub(crate) fn u8_in(&mut self, field: &'static str, low: u8, high: u8) -> Result<u8> {
        let start = self.offset;
        let value = self.u8()?;
        if value < low || value > high {
            return Err(Error::out_of_range(field, value.into(), start));
        }
        Ok(value)
    }

    /// Reads a byte of flags of which only those in `known` may be set (CNV-5).
    pub(crate) fn flags(&mut self, field: &'static str, known: u8) -> Result<u8> {
        let start = self.offset;
        let value = self.u8()?;
        if value & !known != 0 {
            return Err(Error::format(FormatErrorKind::ReservedBits { field }, start));
        }
        Ok(value)
    }

    /// Reads the next `len` bytes.
    pub(crate) fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let len = usize::try_from(len).map_err(|_| self.short())?;
        self.parse(take(len))
    }

    /// Reads the next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N as u64)?;
        bytes.try_into().map_err(|_| self.short())
    }

    /// Reads all bytes left.
    pub(crate) fn take_rest(&mut self) -> &'a [u8] {
        let rest = std::mem::take(&mut self.rest);
        self.offset += rest.len() as u64;
        rest
    }

    /// Returns a cursor over the next `len` bytes, which are all of `structure`.
    pub(crate) fn sub(&mut self, len: u64, structure: &'static str) -> Result<Self> {
        let offset = self.offset;
        Ok(Self::new(self.take(len)?, offset, structure))
    }

    /// Reads a text: its length, then UTF-8 (CNV-3).
    pub(crate) fn text(&mut self) -> Result<&'a str> {
        let len = self.varint()?;
        let start = self.offset;
        std::str::from_utf8(self.take(len)?).map_err(|_| Error::format(FormatErrorKind::InvalidUtf8, start))
    }

    /// Checks that no byte is left (CNV-6).
    pub(crate) fn finish(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.short()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::put_varint;

    /// Each value has exactly one encoding, and each encoding at most one value: checked over all encodings
    /// of up to three bytes and all endings of the longest.
    #[test]
    fn varints_and_their_bytes_are_one_to_one() {
        let check = |bytes: &[u8]| {
            let mut cursor = Cursor::new(bytes, 0, "varint");
            if let Ok(value) = cursor.varint() {
                let used = bytes.len() - cursor.remaining();
                let mut again = Vec::new();
                crate::bits::put_varint(&mut again, value);
                assert_eq!(again, bytes[..used]);
                assert_eq!(crate::bits::varint_len(value), used as u64);
                return Some(value);
            }
            None
        };
        let mut values = 0u64;
        for word in 0..1u32 << 24 {
            let bytes = word.to_le_bytes();
            // Bytes after the end of a varint repeat the case of a shorter one.
            if bytes[0] >= 0x80 && bytes[1] >= 0x80 && bytes[2] < 0x80 {
                values += u64::from(check(&bytes[..3]).is_some());
            } else {
                check(&bytes[..3]);
            }
        }
        assert_eq!(values, (1 << 21) - (1 << 14));
        let longest = (0..=u16::MAX).filter(|end| {
            let mut bytes = [0xff; 10];
            bytes[8..].copy_from_slice(&end.to_le_bytes());
            check(&bytes).is_some_and(|value| value >> 63 == 1)
        });
        // Nine continuation bytes, then a tenth byte of 1.
        assert_eq!(longest.count(), 128);
    }

    #[test]
    fn varints_are_minimal_and_fit() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(Cursor::new(&bytes, 0, "t").varint().unwrap(), value);
        }
        for bad in
            [&[0x80, 0x00][..], &[0xff; 10], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]]
        {
            let e = Cursor::new(bad, 5, "t").varint().unwrap_err();
            assert_eq!((e.name(), e.location().unwrap().offset), ("bad_varint", 5));
        }
        assert_eq!(Cursor::new(&[0x80], 5, "t").varint().unwrap_err().name(), "length_mismatch");
    }
}
