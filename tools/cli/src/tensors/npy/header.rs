//! The header of a `.npy` file: a Python dictionary.

use crate::fail::{Failure, Result};

/// Deepest structures in structures.
const MAX_DEPTH: usize = 16;

/// The header's three entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// The element type as it stands there: a string in quotes, or a list of fields.
    pub(super) descr: String,
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<u64>,
}

impl Header {
    /// Parses `{'descr': .., 'fortran_order': .., 'shape': .., }`: the entries in any order, each once, then
    /// only white space.
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        Parser { rest: text }.header()
    }

    /// Returns the element type without quotes; `None` for a list of fields.
    pub(super) fn name(&self) -> Option<&str> {
        name(&self.descr)
    }

    /// Returns the bytes of an element; `None` if its type does not tell.
    pub(super) fn element_bytes(&self) -> Option<u64> {
        element_bytes(&self.descr, 0)
    }
}

/// Returns a type without quotes; `None` for a list of fields.
pub(super) fn name(descr: &str) -> Option<&str> {
    descr.strip_prefix(['\'', '"'])?.strip_suffix(['\'', '"'])
}

/// Returns the bytes of an element of a type: `'<f4'`, `[('x', '<f4', (3,)), ..]`.
fn element_bytes(descr: &str, depth: usize) -> Option<u64> {
    let Some(name) = name(descr) else { return fields_bytes(descr, depth) };
    let name = name.trim_start_matches(['<', '>', '|', '=']);
    let mut chars = name.chars();
    let (kind, rest) = (chars.next()?, chars.as_str());
    let number = || rest.parse::<u64>().ok();
    match kind {
        'U' => number()?.checked_mul(4),
        'b' | 'i' | 'u' | 'f' | 'c' | 'S' | 'a' | 'V' => number(),
        // 8 bytes, with a unit in brackets or none.
        'M' | 'm' if rest == "8" || rest.starts_with("8[") => Some(8),
        _ => None,
    }
}

fn fields_bytes(descr: &str, depth: usize) -> Option<u64> {
    if depth == MAX_DEPTH {
        return None;
    }
    let mut parser = Parser { rest: descr.as_bytes() };
    let mut sum = 0u64;
    parser.expect(b'[').ok()?;
    while !parser.take(b']') {
        parser.expect(b'(').ok()?;
        // A name, or a title and a name.
        parser.value(0).ok()?;
        parser.expect(b',').ok()?;
        let bytes = element_bytes(parser.value(0).ok()?, depth + 1)?;
        let mut count = 1u64;
        if parser.take(b',') && !parser.rest.trim_ascii_start().starts_with(b")") {
            count = parser.tuple().ok()?.into_iter().try_fold(1u64, u64::checked_mul)?;
            parser.take(b',');
        }
        parser.expect(b')').ok()?;
        sum = sum.checked_add(bytes.checked_mul(count)?)?;
        if !parser.take(b',') {
            parser.expect(b']').ok()?;
            break;
        }
    }
    Some(sum)
}

/// Parses the part of Python's syntax that headers use.
struct Parser<'a> {
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn header(mut self) -> Result<Header> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.take(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            match key.as_str() {
                "descr" if descr.is_none() => descr = Some(self.element_type()?),
                "fortran_order" if fortran_order.is_none() => fortran_order = Some(self.boolean()?),
                "shape" if shape.is_none() => shape = Some(self.tuple()?),
                _ => return Err(Failure::invalid(format_args!("unexpected key {key:?} in the .npy header"))),
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.skip_space();
        match (descr, fortran_order, shape) {
            (Some(descr), Some(fortran_order), Some(shape)) if self.rest.is_empty() => {
                Ok(Header { descr, fortran_order, shape })
            }
            _ => Err(malformed()),
        }
    }

    /// Returns the text of a string, or of a list or tuple of values.
    fn value(&mut self, depth: usize) -> Result<&'a str> {
        self.skip_space();
        let before = self.rest;
        let close = match before.first() {
            _ if depth > MAX_DEPTH => return Err(malformed()),
            Some(b'[') => b']',
            Some(b'(') => b')',
            Some(b'0'..=b'9') => {
                self.integer()?;
                0
            }
            _ => {
                self.string()?;
                0
            }
        };
        if close != 0 {
            self.rest = &before[1..];
            while !self.take(close) {
                self.value(depth + 1)?;
                if !self.take(b',') {
                    self.expect(close)?;
                    break;
                }
            }
        }
        let len = before.len() - self.rest.len();
        std::str::from_utf8(&before[..len]).map_err(|_| malformed())
    }

    /// Parses a string in either quotes, without escapes, which no key or type needs.
    fn string(&mut self) -> Result<String> {
        self.skip_space();
        let (&quote, rest) = self.rest.split_first().ok_or_else(malformed)?;
        if quote != b'\'' && quote != b'"' {
            return Err(malformed());
        }
        let len = rest.iter().position(|&b| b == quote || b == b'\\').ok_or_else(malformed)?;
        if rest[len] != quote {
            return Err(malformed());
        }
        self.rest = &rest[len + 1..];
        std::str::from_utf8(&rest[..len]).map(str::to_owned).map_err(|_| malformed())
    }

    /// Returns the text of an element type: a string or a list of fields.
    fn element_type(&mut self) -> Result<String> {
        self.skip_space();
        match self.rest.first() {
            Some(b'[') => self.value(0).map(str::to_owned),
            _ => self.string().map(|name| format!("'{name}'")),
        }
    }

    fn boolean(&mut self) -> Result<bool> {
        self.skip_space();
        for (text, value) in [(&b"True"[..], true), (b"False", false)] {
            if let Some(rest) = self.rest.strip_prefix(text) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(malformed())
    }

    /// `()`, `(1,)`, `(1, 2)`; Python 2 wrote an `L` after long integers.
    fn tuple(&mut self) -> Result<Vec<u64>> {
        let mut values = Vec::new();
        self.expect(b'(')?;
        while !self.take(b')') {
            values.push(self.integer()?);
            self.take(b'L');
            if !self.take(b',') {
                // `(3)` is no tuple but a number.
                if values.len() == 1 {
                    return Err(malformed());
                }
                self.expect(b')')?;
                break;
            }
        }
        Ok(values)
    }

    fn integer(&mut self) -> Result<u64> {
        self.skip_space();
        let len = self.rest.iter().position(|b| !b.is_ascii_digit()).ok_or_else(malformed)?;
        let (digits, rest) = self.rest.split_at(len);
        self.rest = rest;
        let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
        digits.parse().map_err(|_| Failure::invalid("a dimension in the .npy header is no 64-bit number"))
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(&[byte]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.take(byte) { Ok(()) } else { Err(malformed()) }
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }
}

fn malformed() -> Failure {
    Failure::invalid("malformed .npy header")
}
