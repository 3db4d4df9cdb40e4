use crate::error::{Error, FormatErrorKind, Result};

/// Bytes of a plane of `count` fields of `width` bits; `None` if that exceeds 64 bits.
pub(crate) fn packed_bytes(count: u64, width: u32) -> Option<u64> {
    let bits = u128::from(count) * u128::from(width);
    u64::try_from(bits.div_ceil(8)).ok()
}

/// Writes a bit plane, fields from the least significant bit on.
pub(crate) struct PlaneWriter<'a> {
    out: &'a mut Vec<u8>,
    word: u64,
    filled: u32,
}

impl<'a> PlaneWriter<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, word: 0, filled: 0 }
    }

    /// Appends the `width` <= 64 low bits of `value`; its other bits must be zero.
    #[inline]
    pub(crate) fn put(&mut self, value: u64, width: u32) {
        debug_assert!(width == 64 || value >> width == 0);
        self.word |= value << self.filled;
        let filled = self.filled + width;
        if filled >= 64 {
            self.out.extend_from_slice(&self.word.to_le_bytes());
            // The bits of `value` that did not fit; none if it began at a word's start.
            self.word = if self.filled == 0 { 0 } else { value >> (64 - self.filled) };
            self.filled = filled - 64;
        } else {
            self.filled = filled;
        }
    }

    /// Appends `zeros` zero bits and a one.
    #[inline]
    pub(crate) fn put_unary(&mut self, mut zeros: u64) {
        while zeros >= 63 {
            self.put(0, 63);
            zeros -= 63;
        }
        self.put(1 << zeros, zeros as u32 + 1);
    }

    /// Pads to a whole byte.
    pub(crate) fn finish(self) {
        let bytes = self.filled.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.word.to_le_bytes()[..bytes]);
    }
}

/// Reads a bit plane whose length is known to fit what is read from it.
pub(crate) struct PlaneReader<'a> {
    bytes: &'a [u8],
    bit: u64,
    offset: u64,
}

impl<'a> PlaneReader<'a> {
    /// A reader of all of `bytes`, which stand at `offset`.
    pub(crate) fn new(bytes: &'a [u8], offset: u64) -> Self {
        Self { bytes, bit: 0, offset }
    }

    /// The next `width` <= 64 bits; zeros beyond the end of the plane, which [`Self::finish`] reports.
    #[inline]
    pub(crate) fn get(&mut self, width: u32) -> u64 {
        if width == 0 {
            return 0;
        }
        let shift = (self.bit % 8) as u32;
        let start = (self.bit / 8) as usize;
        self.bit += u64::from(width);
        let tail = self.bytes.get(start..).unwrap_or_default();
        let value = match tail.first_chunk::<8>() {
            Some(chunk) => {
                let low = u64::from_le_bytes(*chunk) >> shift;
                if width + shift > 64 {
                    low | u64::from(tail.get(8).copied().unwrap_or(0)) << (64 - shift)
                } else {
                    low
                }
            }
            None => {
                let mut chunk = [0; 8];
                for (to, from) in chunk.iter_mut().zip(tail) {
                    *to = *from;
                }
                u64::from_le_bytes(chunk) >> shift
            }
        };
        if width == 64 { value } else { value & ((1 << width) - 1) }
    }

    /// Checks that the plane ends here, but for zero padding to a whole byte (CNV-1).
    pub(crate) fn finish(self, field: &'static str) -> Result<()> {
        let len = self.bytes.len() as u64;
        if self.bit.div_ceil(8) != len {
            return Err(Error::format(FormatErrorKind::LengthMismatch { field }, self.offset));
        }
        let used = self.bit % 8;
        match self.bytes.last() {
            Some(last) if used != 0 && last >> used != 0 => {
                Err(Error::format(FormatErrorKind::NonzeroPadding, self.offset + len - 1))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_width_come_back() {
        for width in 0..=64u32 {
            let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
            let fields: Vec<u64> = (0..50u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask).collect();
            let mut bytes = Vec::new();
            let mut writer = PlaneWriter::new(&mut bytes);
            writer.put(1, 1);
            fields.iter().for_each(|&f| writer.put(f, width));
            writer.put_unary(u64::from(width) * 3);
            writer.finish();
            let mut reader = PlaneReader::new(&bytes, 0);
            assert_eq!(reader.get(1), 1);
            fields.iter().for_each(|&f| assert_eq!(reader.get(width), f));
            (0..width * 3).for_each(|_| assert_eq!(reader.get(1), 0));
            assert_eq!(reader.get(1), 1);
            reader.finish("t").unwrap();
        }
    }

    #[test]
    fn padding_must_be_zero_and_length_exact() {
        let mut reader = PlaneReader::new(&[0b1000_0001], 7);
        reader.get(3);
        let e = reader.finish("t").unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("nonzero_padding", 7));
        let mut reader = PlaneReader::new(&[0, 0], 0);
        reader.get(3);
        assert_eq!(reader.finish("t").unwrap_err().name(), "length_mismatch");
        let mut reader = PlaneReader::new(&[], 0);
        assert_eq!(reader.get(64), 0);
        assert_eq!(reader.finish("t").unwrap_err().name(), "length_mismatch");
    }
}
