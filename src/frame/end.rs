//! The end of a segment (spec, section 4.7).

use crate::bits::{Cursor, put_u32, put_u64};
use crate::error::{Error, Result};

/// Content of an end frame: a summary of the stream before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Number of frames from the start of the stream to this one, exclusive.
    pub frame_count: u64,
    /// Offset of the segment's index frame; 0 if the segment has none.
    pub index_offset: u64,
    /// CRC-32 of the headers of those frames, without their own CRCs.
    pub chain: u32,
}

/// Last four bytes of a finished file.
const TAIL: [u8; 4] = *b"GCUE";

impl End {
    /// Bytes in the body.
    pub(crate) const BODY_LEN: usize = 24;

    pub(crate) fn body(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BODY_LEN);
        put_u64(&mut out, self.frame_count);
        put_u64(&mut out, self.index_offset);
        put_u32(&mut out, self.chain);
        out.extend_from_slice(&TAIL);
        out
    }

    pub(crate) fn read(body: &[u8], offset: u64) -> Result<Self> {
        let mut cursor = Cursor::new(body, offset, "end");
        let end = Self { frame_count: cursor.u64()?, index_offset: cursor.u64()?, chain: cursor.u32()? };
        let tail_offset = cursor.offset();
        let tail = cursor.array::<4>()?;
        if tail != TAIL {
            return Err(Error::out_of_range("tail", u32::from_le_bytes(tail).into(), tail_offset));
        }
        cursor.finish()?;
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_no_bytes_behind_its_tail() {
        let end = End { frame_count: 3, index_offset: 70, chain: 9 };
        let body = end.body();
        assert_eq!(End::read(&body, 5).unwrap(), end);
        let refused = |body: &[u8]| End::read(body, 5).map_err(|e| (e.name(), e.location().unwrap().offset));
        assert_eq!(refused(&[&body[..], &[0]].concat()), Err(("length_mismatch", 29)));
        assert_eq!(refused(&body[..23]), Err(("length_mismatch", 25)));
        assert_eq!(refused(&[&body[..20], b"GCUX"].concat()), Err(("out_of_range", 25)));
    }
}
