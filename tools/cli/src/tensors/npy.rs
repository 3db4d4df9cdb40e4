//! `.npy`: one array after a header that is a Python dictionary.
//!
//! ```text
//! \x93NUMPY | version major, minor | header length: u16 LE (1.0), u32 LE (2.0, 3.0)
//! | {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } spaces \n | elements
//! ```
//! Column-major arrays and big-endian elements are converted to the order that gcodec uses.

use super::{Data, NamedTensor, Outline, Source};
use crate::fail::{Failure, Result};
use crate::input::Input;
use gcodec::internal::elements;
use gcodec::tensor::Dtype;
use std::io::Write;
use std::sync::Arc;

/// Reads the array of the input; its bytes stay there unless they must be reordered.
pub(crate) fn read(input: &Arc<Input>, name: String) -> Result<NamedTensor> {
    let array = Array::parse(input)?;
    let data = match array.reordered() {
        Some(data) => Data::Owned(data),
        None => {
            let range = input.len() - array.data.len()..input.len();
            Data::Shared { input: Arc::clone(input), range }
        }
    };
    NamedTensor::from_data(name, array.dtype, array.shape, data)
}

/// Reads the array of owned bytes.
pub(crate) fn read_owned(mut bytes: Vec<u8>, name: String) -> Result<NamedTensor> {
    let array = Array::parse(&bytes)?;
    let (dtype, shape, start) = (array.dtype, array.shape.clone(), bytes.len() - array.data.len());
    let data = match array.reordered() {
        Some(data) => data,
        None => {
            bytes.drain(..start);
            bytes
        }
    };
    NamedTensor::from_data(name, dtype, shape, Data::Owned(data))
}

/// Writes an array, in version 1.0 if its header fits.
pub(crate) fn write(out: &mut impl Write, tensor: &Outline<'_>, source: &mut Source<'_>) -> Result<()> {
    out.write_all(&header(tensor)?)?;
    source(&mut |_, bytes| Ok(out.write_all(bytes)?))
}

/// An array with the file's byte order and element order.
#[derive(Debug)]
struct Array<'a> {
    dtype: Dtype,
    big_endian: bool,
    fortran_order: bool,
    shape: Vec<u64>,
    data: &'a [u8],
}

impl<'a> Array<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (header, data) = split(bytes)?;
        let Header { descr, fortran_order, shape } = Parser { rest: header }.header()?;
        let (dtype, big_endian) = parse_descr(&descr)?;
        let expected = elements(&shape).and_then(|n| dtype.bytes_for(n));
        if expected != Some(data.len() as u64) {
            let what =
                format!("{} bytes of elements do not match the shape {shape:?} of {dtype}", data.len());
            return Err(Failure::invalid(what));
        }
        Ok(Self { dtype, big_endian, fortran_order, shape, data })
    }

    /// Converts the elements to row-major order and little-endian.
    fn reordered(&self) -> Option<Vec<u8>> {
        let element_bytes = self.dtype.bits() as usize / 8;
        // One dimension that is not 1 or none: both orders are the same.
        let transpose = self.fortran_order && self.shape.iter().filter(|&&d| d != 1).count() > 1;
        let swap = self.big_endian && element_bytes > 1;
        if !transpose && !swap {
            return None;
        }
        let mut data =
            if transpose { row_major(self.data, &self.shape, element_bytes) } else { self.data.to_vec() };
        if swap {
            data.chunks_exact_mut(element_bytes).for_each(<[u8]>::reverse);
        }
        Some(data)
    }
}

/// Splits a file into the header's text and the elements.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let cut = || Failure::invalid("the .npy header is truncated");
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| match MAGIC.starts_with(bytes) {
        true => cut(),
        false => Failure::invalid("not a .npy file: wrong magic"),
    })?;
    let ([major, minor], rest) = rest.split_first_chunk().ok_or_else(cut)?;
    let (len, rest) = match (major, minor) {
        (1, 0) => {
            let (len, rest) = rest.split_first_chunk().ok_or_else(cut)?;
            (u64::from(u16::from_le_bytes(*len)), rest)
        }
        // Version 3.0 is 2.0 with UTF-8 instead of Latin-1, which only names of fields need.
        (2 | 3, 0) => {
            let (len, rest) = rest.split_first_chunk().ok_or_else(cut)?;
            (u64::from(u32::from_le_bytes(*len)), rest)
        }
        _ => return Err(Failure::invalid(format_args!(".npy version {major}.{minor} is not supported"))),
    };
    usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len)).ok_or_else(cut)
}

/// Returns the element type of a `descr`, and whether it is big-endian.
fn parse_descr(descr: &str) -> Result<(Dtype, bool)> {
    let unsupported =
        |why: &str| Failure::invalid(format_args!("element type {descr:?} is not supported{why}"));
    let mut chars = descr.chars();
    let order = chars.next().unwrap_or_default();
    let kind = chars.as_str();
    let dtype = DTYPES.iter().find(|(_, name)| *name == kind).map(|(dtype, _)| *dtype);
    match (order, dtype) {
        ('<', Some(dtype)) => Ok((dtype, false)),
        ('>', Some(dtype)) => Ok((dtype, true)),
        ('|' | '=', Some(dtype)) if dtype.bits() == 8 => Ok((dtype, false)),
        _ if kind.starts_with('O') => Err(unsupported(": pickled objects are not read")),
        _ if kind.starts_with('V') => {
            Err(unsupported(": .npy loses bf16 and f8 types, safetensors keeps them"))
        }
        _ => Err(unsupported("")),
    }
}

/// Converts elements from column-major to row-major order. The shape has as many elements as `data`, at
/// least one.
fn row_major(data: &[u8], shape: &[u64], element_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    let Some((&last, outer)) = shape.split_last() else { return data.to_vec() };
    if data.is_empty() {
        return out;
    }
    // Bytes from one element to the next along each dimension; the first dimension is contiguous.
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = element_bytes;
    for &dim in shape {
        strides.push(stride);
        // A product of the dimensions of an existing array, so it does not overflow.
        stride *= dim as usize;
    }
    let last_stride = strides[outer.len()];
    let mut index = vec![0; outer.len()];
    loop {
        let start: usize = index.iter().zip(&strides).map(|(&i, &stride)| i as usize * stride).sum();
        for i in 0..last as usize {
            let at = start + i * last_stride;
            out.extend_from_slice(&data[at..at + element_bytes]);
        }
        // Moves to the next row like an odometer: the last outer dimension runs fastest.
        let Some(turned) = (0..outer.len()).rev().find(|&d| index[d] + 1 < outer[d]) else { return out };
        index[turned] += 1;
        index[turned + 1..].fill(0);
    }
}

/// Returns the bytes before the elements.
pub(crate) fn header(tensor: &Outline<'_>) -> Result<Vec<u8>> {
    let dtype = tensor.dtype;
    let Some((_, name)) = DTYPES.iter().find(|(d, _)| *d == dtype) else {
        return Err(Failure::usage(format_args!(".npy has no element type {dtype}; .safetensors has")));
    };
    let order = if dtype.bits() == 8 { '|' } else { '<' };
    let shape: String = match tensor.shape {
        [one] => format!("{one},"),
        shape => shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!("{{'descr': '{order}{name}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Pads with spaces and a line feed, so that the elements begin at a multiple of 64 bytes.
    let fits_v1 = text.len() + 64 < usize::from(u16::MAX);
    let before = MAGIC.len() + if fits_v1 { 4 } else { 6 };
    let padded = (before + text.len() + 1).next_multiple_of(64) - before;
    text.extend(std::iter::repeat_n(' ', padded - 1 - text.len()));
    text.push('\n');

    let mut out = MAGIC.to_vec();
    if fits_v1 {
        out.extend([1, 0]);
        out.extend((text.len() as u16).to_le_bytes());
    } else {
        out.extend([2, 0]);
        out.extend(
            u32::try_from(text.len()).map_err(|_| Failure::usage("too many dimensions"))?.to_le_bytes(),
        );
    }
    out.extend(text.into_bytes());
    Ok(out)
}

/// The header's three entries.
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Parses the part of Python's syntax that headers use.
struct Parser<'a> {
    rest: &'a [u8],
}

impl Parser<'_> {
    /// `{'descr': .., 'fortran_order': .., 'shape': .., }` in any order, each once, then only white space.
    fn header(mut self) -> Result<Header> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.take(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            match key.as_str() {
                "descr" if descr.is_none() => descr = Some(self.descr()?),
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

    fn descr(&mut self) -> Result<String> {
        self.skip_space();
        if self.rest.starts_with(b"[") {
            return Err(Failure::invalid("structured arrays are not supported"));
        }
        self.string()
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

const MAGIC: &[u8] = b"\x93NUMPY";

/// `descr` without the mark of byte order.
const DTYPES: [(Dtype, &str); 12] = [
    (Dtype::F64, "f8"),
    (Dtype::F32, "f4"),
    (Dtype::F16, "f2"),
    (Dtype::I8, "i1"),
    (Dtype::I16, "i2"),
    (Dtype::I32, "i4"),
    (Dtype::I64, "i8"),
    (Dtype::U8, "u1"),
    (Dtype::U16, "u2"),
    (Dtype::U32, "u4"),
    (Dtype::U64, "u8"),
    (Dtype::Bool, "b1"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::Code;
    use crate::tensors::with_source;
    use gcodec::tensor::TensorBuf;

    fn file(version: u8, text: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = [MAGIC, &[version, 0]].concat();
        match version {
            1 => bytes.extend((text.len() as u16).to_le_bytes()),
            _ => bytes.extend((text.len() as u32).to_le_bytes()),
        }
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn dict(descr: &str, fortran_order: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': {fortran_order}, 'shape': {shape}, }}\n")
    }

    /// Both ways of reading must agree.
    fn parse(bytes: &[u8]) -> Result<TensorBuf> {
        let shared = read(&Arc::new(Input::Owned(bytes.to_vec())), "t".into());
        let owned = read_owned(bytes.to_vec(), "t".into());
        match (shared, owned) {
            (Ok(shared), Ok(owned)) => {
                assert_eq!(shared.view(), owned.view());
                let view = shared.view();
                Ok(TensorBuf::new(view.dtype(), view.shape().to_vec(), view.data().to_vec()).unwrap())
            }
            (shared, owned) => {
                assert_eq!(shared.as_ref().err(), owned.as_ref().err());
                Err(shared.unwrap_err())
            }
        }
    }

    const NUMPY_BIG_FORTRAN: &[u8] = include_bytes!("../../fixtures/big_endian_fortran.npy");

    #[test]
    fn numpys_own_file_is_read() {
        let tensor = parse(NUMPY_BIG_FORTRAN).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::I16, &[2, 3][..]));
        assert_eq!(tensor.data(), [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
        let failure = parse(include_bytes!("../../fixtures/object.npy")).unwrap_err();
        assert!(failure.message.contains("pickled"), "{failure}");
    }

    #[test]
    fn the_header_is_numpys() {
        let tensor = TensorBuf::from_f32(vec![3], &[1.0, 2.0, 3.0]).unwrap();
        let mut bytes = Vec::new();
        with_source(&[("", tensor.view())], |one, source| write(&mut bytes, &one[0], source)).unwrap();
        let start = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }  ";
        assert!(bytes.starts_with(start) && bytes[127] == b'\n' && bytes.len() == 128 + 12);
    }

    #[test]
    fn element_types_round_trip() {
        for (dtype, name) in DTYPES {
            for shape in [vec![], vec![5], vec![0, 3], vec![2, 1, 3]] {
                let len = dtype.bytes_for(elements(&shape).unwrap()).unwrap();
                let data = (0..len).map(|b| b as u8).collect();
                let tensor = TensorBuf::new(dtype, shape, data).unwrap();
                let mut bytes = Vec::new();
                with_source(&[("", tensor.view())], |one, source| write(&mut bytes, &one[0], source))
                    .unwrap();
                assert_eq!(parse(&bytes).unwrap(), tensor, "{name}");
            }
        }
    }

    #[test]
    fn many_dimensions_need_version_2() {
        let tensor = TensorBuf::new(Dtype::U8, vec![1; 30_000], vec![9]).unwrap();
        let mut bytes = Vec::new();
        with_source(&[("", tensor.view())], |one, source| write(&mut bytes, &one[0], source)).unwrap();
        assert_eq!((bytes[6], (bytes.len() - 1) % 64), (2, 0));
        assert_eq!(parse(&bytes).unwrap(), tensor);
    }

    #[test]
    fn versions_quotes_and_order_of_keys() {
        let texts = [
            "{'descr': '<u2', 'fortran_order': False, 'shape': (2,)}",
            "{\"shape\":(2L,),'descr':\"<u2\",'fortran_order':True}   \n",
            " { 'fortran_order' : False , 'shape' : ( 2 , ) , 'descr' : '<u2' , } ",
        ];
        for text in texts {
            for version in 1..=3 {
                let tensor = parse(&file(version, text, &[1, 0, 2, 0])).unwrap();
                assert_eq!(
                    (tensor.dtype(), tensor.shape(), tensor.data()),
                    (Dtype::U16, &[2][..], &[1, 0, 2, 0][..])
                );
            }
        }
    }

    #[test]
    fn column_major_becomes_row_major() {
        let shape = [2u64, 3, 1, 4];
        let mut expected = Vec::new();
        let mut data = vec![0u8; 24];
        for i in 0..24usize {
            let (a, b, d) = (i / 12, i / 4 % 3, i % 4);
            expected.push(i as u8);
            data[a + 2 * (b + 3 * d)] = i as u8;
        }
        assert_eq!(row_major(&data, &shape, 1), expected);
        let tensor = parse(&file(1, &dict("|u1", "True", "(2, 3, 1, 4)"), &data)).unwrap();
        assert_eq!(tensor.data(), expected);
        // Without elements no dimension may be multiplied out.
        let huge = format!("({0}, {0}, 0)", u64::MAX);
        assert!(parse(&file(1, &dict("<f8", "True", &huge), &[])).unwrap().data().is_empty());
    }

    #[test]
    fn byte_order() {
        for (descr, data) in [("<f4", [0, 0, 128, 63]), (">f4", [63, 128, 0, 0])] {
            let tensor = parse(&file(1, &dict(descr, "False", "()"), &data)).unwrap();
            assert_eq!(tensor.data(), 1f32.to_le_bytes());
        }
        for descr in ["|b1", "<i1", ">u1", "|i1", "=u1"] {
            assert_eq!(parse(&file(1, &dict(descr, "False", "(1,)"), &[1])).unwrap().data(), [1]);
        }
    }

    #[test]
    fn every_prefix_is_refused() {
        let bytes = file(1, &dict("<f4", "False", "(2, 1)"), &[0; 8]);
        assert!(parse(&bytes).is_ok());
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]).unwrap_err().code, Code::Invalid, "{len}");
        }
        assert!(parse(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn flipped_bits_do_no_harm() {
        for bit in 0..NUMPY_BIG_FORTRAN.len() * 8 {
            let mut damaged = NUMPY_BIG_FORTRAN.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let _ = parse(&damaged);
        }
    }

    #[test]
    fn hostile_headers_are_refused() {
        let cases = [
            (dict("|O", "False", "(1,)"), "pickled objects are not read"),
            (dict("|V2", "False", "(1,)"), "safetensors"),
            (dict("<c8", "False", "(1,)"), "<c8"),
            (dict("<f16", "False", "(1,)"), "<f16"),
            (dict("<U4", "False", "(1,)"), "<U4"),
            (dict("|f4", "False", "(1,)"), "|f4"),
            (dict("f4", "False", "(1,)"), "f4"),
            (dict("", "False", "(1,)"), "not supported"),
            (dict("\u{e9}", "False", "(1,)"), "not supported"),
            (dict("<f4", "false", "(1,)"), "malformed"),
            (dict("<f4", "False", "(1)"), "malformed"),
            (dict("<f4", "False", "[1]"), "malformed"),
            (dict("<f4", "False", "(-1,)"), "64-bit"),
            (dict("<f4", "False", "(,)"), "64-bit"),
            (dict("<f4", "False", "(18446744073709551616,)"), "64-bit"),
            (dict("<f4", "False", "(18446744073709551615, 2)"), "do not match"),
            (dict("<f4", "True", "(4294967296, 4294967296)"), "do not match"),
            (dict("<f4", "False", "(4611686018427387905,)"), "do not match"),
            (dict("<f4", "False", "(2,)"), "do not match"),
            (dict("<f4", "False", "(1,"), "64-bit"),
            (dict("<f4", "False", "(1 1)"), "malformed"),
            (dict("<f4", "False", "(1,)") + "x", "malformed"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}".into(), "structured"),
            ("{'descr': '<f4', 'fortran_order': False}".into(), "malformed"),
            (
                "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}".into(),
                "unexpected key",
            ),
            ("{'more': 1}".into(), "unexpected key"),
            ("{'descr': '<f4\\'', 'fortran_order': False, 'shape': (1,)}".into(), "malformed"),
            ("".into(), "malformed"),
        ];
        for (text, message) in cases {
            let failure = parse(&file(1, &text, &[0; 4])).unwrap_err();
            assert_eq!(failure.code, Code::Invalid, "{text}");
            assert!(failure.message.contains(message), "{text}: {failure}");
        }
        let text = dict("<f4", "False", "(1,)");
        assert!(parse(&file(4, &text, &[0; 4])).unwrap_err().message.contains("version 4.0"));
        let endless = [MAGIC, &[2, 0, 255, 255, 255, 255], text.as_bytes()].concat();
        assert!(parse(&endless).unwrap_err().message.contains("truncated"));
        assert!(parse(b"NUMPY").unwrap_err().message.contains("magic"));
    }
}
