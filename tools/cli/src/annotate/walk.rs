//! A walk over the bytes of a frame that records every field.

use gcodec::tensor::Dtype;
use std::fmt::Display;

/// Bytes and their meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    /// Offset of the first byte in the stream.
    pub(crate) offset: u64,
    /// Number of bytes.
    pub(crate) len: usize,
    /// Depth in the structure.
    pub(crate) depth: usize,
    /// Name in the spec.
    pub(crate) name: String,
    /// Value.
    pub(crate) value: String,
    /// Meaning of the value, where it needs an explanation.
    pub(crate) meaning: String,
}

/// A line of an annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// Heading of the fields after it.
    Heading {
        /// How deep in the structure.
        depth: usize,
        /// Text of the heading.
        text: String,
    },
    /// A field.
    Field(Field),
}

/// Reason why a walk ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stop(pub(crate) String);

pub(crate) type Result<T> = std::result::Result<T, Stop>;

/// A position in bytes, and the fields before it.
pub(crate) struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
    base: u64,
    depth: usize,
    lines: Vec<Line>,
}

impl<'a> Walk<'a> {
    /// Starts at the beginning of `bytes`, which lie at `offset` in the stream.
    pub(crate) fn new(bytes: &'a [u8], offset: u64) -> Self {
        Self { bytes, at: 0, end: bytes.len(), base: offset, depth: 0, lines: Vec::new() }
    }

    /// Returns the lines. The bytes after the position become one field.
    pub(crate) fn finish(mut self, result: Result<()>) -> Vec<Line> {
        self.end = self.bytes.len();
        let rest = self.end - self.at;
        let why = match result {
            Err(Stop(why)) => why,
            Ok(()) if rest > 0 => "bytes left over".into(),
            Ok(()) => return self.lines,
        };
        self.depth = 0;
        let field = self.field(self.at, rest, "not understood", format!("{rest} bytes"), why);
        self.lines.push(field);
        self.lines
    }

    /// Returns the number of bytes to the end of the innermost structure.
    pub(crate) fn rest(&self) -> usize {
        self.end - self.at
    }

    /// Returns the position.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the bytes of the innermost structure from the position on.
    pub(crate) fn ahead(&self) -> &'a [u8] {
        &self.bytes[self.at..self.end]
    }

    /// Walks a structure under a heading.
    pub(crate) fn under<T>(
        &mut self,
        heading: impl Display,
        walk: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.heading(heading);
        self.depth += 1;
        let result = walk(self);
        self.depth -= 1;
        result
    }

    /// Adds a heading without a structure.
    pub(crate) fn heading(&mut self, heading: impl Display) {
        self.lines.push(Line::Heading { depth: self.depth, text: heading.to_string() });
    }

    /// Walks a structure of `len` bytes, which it must fill.
    pub(crate) fn inside<T>(&mut self, len: usize, walk: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if len > self.rest() {
            return Err(Stop(format!("{len} bytes declared, {} remain", self.rest())));
        }
        let outer = std::mem::replace(&mut self.end, self.at + len);
        let result = walk(self);
        let over = self.rest();
        if result.is_ok() && over > 0 {
            return Err(Stop(format!("{over} bytes left over")));
        }
        self.end = outer;
        result
    }

    fn field(
        &self,
        at: usize,
        len: usize,
        name: impl Display,
        value: impl Display,
        meaning: impl Display,
    ) -> Line {
        Line::Field(Field {
            offset: self.base + at as u64,
            len,
            depth: self.depth,
            name: name.to_string(),
            value: value.to_string(),
            meaning: meaning.to_string(),
        })
    }

    /// Skips `len` bytes without recording them.
    fn pass(&mut self, len: usize, name: &str) -> Result<&'a [u8]> {
        if len > self.rest() {
            return Err(Stop(format!("{name} needs {len} bytes, {} are there", self.rest())));
        }
        let bytes = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    /// Records a field of `len` bytes; `say` returns its value and meaning.
    pub(crate) fn bytes<V: Display, M: Display>(
        &mut self,
        len: usize,
        name: impl Display,
        say: impl FnOnce(&'a [u8]) -> (V, M),
    ) -> Result<&'a [u8]> {
        let at = self.at;
        let name = name.to_string();
        let bytes = self.pass(len, &name)?;
        let (value, meaning) = say(bytes);
        let line = self.field(at, len, name, value, meaning);
        self.lines.push(line);
        Ok(bytes)
    }

    /// Records `len` bytes of payload, unless `len` is 0.
    pub(crate) fn payload(&mut self, len: u64, name: &str, meaning: impl Display) -> Result<&'a [u8]> {
        let len = usize::try_from(len).map_err(|_| Stop(format!("{name} needs {len} bytes")))?;
        if len == 0 {
            return Ok(&[]);
        }
        self.bytes(len, name, |_| (format!("{len} byte{}", if len == 1 { "" } else { "s" }), meaning))
    }

    /// Records a fixed number of bytes.
    pub(crate) fn array<const N: usize>(
        &mut self,
        name: impl Display,
        say: impl FnOnce([u8; N]) -> (String, String),
    ) -> Result<[u8; N]> {
        let mut array = [0; N];
        self.bytes(N, name, |bytes| {
            array.copy_from_slice(bytes);
            say(array)
        })?;
        Ok(array)
    }

    /// Records a byte; `meaning` explains its value.
    pub(crate) fn u8<M: Display>(&mut self, name: impl Display, meaning: impl FnOnce(u8) -> M) -> Result<u8> {
        Ok(self.bytes(1, name, |b| (b[0], meaning(b[0])))?[0])
    }

    /// Records a u32.
    pub(crate) fn u32(&mut self, name: impl Display, meaning: impl Display) -> Result<u32> {
        let bytes =
            self.array::<4>(name, |b| (format!("{:08x}", u32::from_le_bytes(b)), meaning.to_string()))?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Records a u64.
    pub(crate) fn u64(&mut self, name: impl Display, meaning: impl Display) -> Result<u64> {
        let bytes = self.array::<8>(name, |b| (u64::from_le_bytes(b).to_string(), meaning.to_string()))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Records a varint; `meaning` explains its value.
    pub(crate) fn varint<M: Display>(
        &mut self,
        name: impl Display,
        meaning: impl FnOnce(u64) -> M,
    ) -> Result<u64> {
        let name = name.to_string();
        let (mut value, mut len) = (0u64, 0usize);
        loop {
            let byte = *self.bytes[self.at..self.end]
                .get(len)
                .ok_or_else(|| Stop(format!("{name} is truncated")))?;
            if len == 10 {
                return Err(Stop(format!("{name} is not a varint")));
            }
            value |= u64::from(byte & 0x7f).checked_shl(7 * len as u32).unwrap_or(0);
            len += 1;
            if byte < 0x80 {
                break;
            }
        }
        self.bytes(len, name, |_| (value, meaning(value)))?;
        Ok(value)
    }

    /// Records a text: its length, then its bytes.
    pub(crate) fn text(&mut self, name: &str) -> Result<String> {
        let len = self.varint(format_args!("{name} length"), |_| "")?;
        let len = usize::try_from(len).map_err(|_| Stop(format!("{name} is too long")))?;
        if len == 0 {
            return Ok(String::new());
        }
        let bytes = self.bytes(len, name, |bytes| (format!("{:?}", String::from_utf8_lossy(bytes)), ""))?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Records a hash.
    pub(crate) fn hash(&mut self, name: &str, meaning: &str) -> Result<[u8; 32]> {
        self.array::<32>(name, |hash| (short_hex(&hash), meaning.to_owned()))
    }
}

/// Returns the first eight bytes of a hash as text.
pub(crate) fn short_hex(bytes: &[u8]) -> String {
    let head: String = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
    if bytes.len() > 8 { format!("{head}..") } else { head }
}

/// Returns the numbers in `bytes`, if they are few and of a float type.
pub(crate) fn few_floats(dtype: Dtype, bytes: &[u8]) -> String {
    let count = bytes.len() * 8 / dtype.bits() as usize;
    let mut values = vec![0.0; count.min(9)];
    match gcodec::internal::element::decode_f32s(dtype, bytes, 0, &mut values) {
        Ok(()) if count <= 8 => values.iter().map(f32::to_string).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}
