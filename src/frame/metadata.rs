//! Keys and values (spec, section 4.5).

use std::collections::BTreeMap;

use crate::bits::{Cursor, put_text, put_varint};
use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::{deflate, inflate};
use crate::limits::Limits;

/// Keys and values for people and tools. No reader needs them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Entries, in the byte order of their keys.
    pub entries: BTreeMap<String, String>,
}

impl Metadata {
    /// Returns the body, compressed if that is smaller and `compress` is set.
    pub(crate) fn body(&self, compress: bool) -> Vec<u8> {
        let mut plain = Vec::new();
        put_varint(&mut plain, self.entries.len() as u64);
        for (key, value) in &self.entries {
            put_text(&mut plain, key);
            put_text(&mut plain, value);
        }
        if let Some(mut compressed) = deflate(&plain).filter(|c| compress && c.len() + 8 < plain.len()) {
            let mut out = vec![1];
            put_varint(&mut out, plain.len() as u64);
            out.append(&mut compressed);
            return out;
        }
        plain.insert(0, 0);
        plain
    }

    pub(crate) fn read(body: &[u8], offset: u64, limits: &Limits) -> Result<Self> {
        let mut cursor = Cursor::new(body, offset, "metadata");
        if cursor.u8_in("storage", 0, 1)? == 0 {
            return Self::read_entries(cursor);
        }
        let len_offset = cursor.offset();
        let len = cursor.varint()?;
        let start = cursor.offset();
        let plain = inflate(cursor.take_rest(), start, (len, len_offset), "metadata", limits)?;
        // Offsets inside compressed text have no meaning in the stream: errors point at its beginning.
        Self::read_entries(Cursor::new(&plain, 0, "metadata")).map_err(|e| match e {
            Error::Format(e) => Error::format(e.kind, start),
            e => e,
        })
    }

    fn read_entries(mut cursor: Cursor<'_>) -> Result<Self> {
        let count = cursor.varint()?;
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let offset = cursor.offset();
            let key = cursor.text()?;
            if entries.last_key_value().is_some_and(|(last, _): (&String, _)| last.as_str() >= key) {
                return Err(Error::format(FormatErrorKind::NotAscending, offset));
            }
            let value = cursor.text()?;
            entries.insert(key.to_owned(), value.to_owned());
        }
        cursor.finish()?;
        Ok(Self { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_compressed_if_that_is_wanted_and_smaller() {
        // Letters that do not compress, and a growing tail that does.
        let letters: String = (0..150u32)
            .map(|i| char::from(b' ' + (i.wrapping_mul(2_654_435_761) >> 16) as u8 % 95))
            .collect();
        let mut compressed = 0;
        for tail in 0..60 {
            let value = letters.clone() + &"a".repeat(tail);
            let metadata = Metadata { entries: [("k".to_owned(), value)].into() };
            let [plain, small] = [false, true].map(|compress| metadata.body(compress));
            assert_eq!((plain[0], plain.len()), (0, 156 + tail));
            assert!(small.len() <= plain.len(), "{tail}");
            assert_eq!(small == plain, small[0] == 0);
            compressed += small[0];
            for body in [plain, small] {
                assert_eq!(Metadata::read(&body, 0, &Limits::default()).unwrap(), metadata);
            }
        }
        assert!((10..60).contains(&compressed), "{compressed}");
    }
}
