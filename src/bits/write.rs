//! Little-endian integers, varints and texts, appended to a vector.

use byteorder::{LittleEndian, WriteBytesExt};

// Writing into a vector cannot fail: the results of `WriteBytesExt` are always `Ok`.
macro_rules! put {
    ($($name:ident $method:ident $type:ty),*) => { $(
        pub(crate) fn $name(out: &mut Vec<u8>, value: $type) {
            let _ = out.$method::<LittleEndian>(value);
        }
    )* };
}

put!(put_u16 write_u16 u16, put_i16 write_i16 i16, put_u32 write_u32 u32, put_u64 write_u64 u64, put_f32 write_f32 f32);

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns the number of bytes that [`put_varint`] writes.
pub(crate) fn varint_len(value: u64) -> u64 {
    u64::from((64 - (value | 1).leading_zeros()).div_ceil(7))
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_lengths() {
        for value in [0, 1, 127, 128, 16_383, 16_384, 1 << 35, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(bytes.len() as u64, varint_len(value));
        }
    }
}
