//! `.npy`: an array after a header that is a Python dictionary.
//!
//! ```text
//! \x93NUMPY | version major, minor | header length: u16 LE (1.0), u32 LE (2.0, 3.0)
//! | {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } spaces \n | elements
//! ```
//! Column-major arrays and big-endian elements are converted to the order that gcodec uses.

mod header;

use super::label::{Form, Labels};
use super::{Data, Dump, NamedTensor, Opaque, Outline, Source, Stored};
use crate::fail::{Failure, Result};
use crate::input::{Input, Section};
use crate::output::warn;
use gcodec::internal::elements;
use gcodec::tensor::Dtype;
use header::Header;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

/// Reads the arrays of the input, one behind the other; their bytes stay there unless they must be reordered.
/// `name` is that of a single one, and more are numbered.
pub(crate) fn read(input: &Arc<Input>, name: &str) -> Result<Dump> {
    let mut dump = Dump::default();
    let (mut start, mut number) = (0, 0u64);
    while start < input.len() || number == 0 {
        let array = Array::parse(&input.section(start..input.len())).map_err(|e| {
            if number == 0 { e } else { e.about(format_args!("array {number} at byte {start:#x}")) }
        })?;
        let end = start + array.data.end;
        let is_one = number == 0 && end == input.len();
        let name = if is_one { name.to_owned() } else { format!("{name}.{number}") };
        array.add_to(&mut dump, name, input, start)?;
        (start, number) = (end, number + 1);
    }
    if number > 1 {
        warn(format_args!(
            "{name}: {number} arrays, one after another in a .npy file: more than numpy.load reads"
        ));
    }
    Ok(dump)
}

/// Adds the one array of an archive's entry, which lies in `range` of the input.
pub(super) fn read_entry(input: &Arc<Input>, range: Range<u64>, name: String, dump: &mut Dump) -> Result<()> {
    let array = Array::parse(&input.section(range.clone()))?;
    let len = range.end - range.start;
    if array.data.end != len {
        let more = len - array.data.end;
        return Err(Failure::invalid(format_args!("{more} bytes behind the elements of the array")));
    }
    array.add_to(dump, name, input, range.start)
}

/// Writes an array, in version 1.0 if its header fits.
pub(crate) fn write(
    out: &mut impl Write,
    tensor: &Outline<'_>,
    labels: &Labels,
    source: &mut Source<'_>,
) -> Result<()> {
    out.write_all(&header(tensor, labels)?)?;
    source(&mut |_, bytes| Ok(out.write_all(bytes)?))
}

/// An array with the file's byte order and element order.
#[derive(Debug)]
struct Array {
    header: Header,
    /// Element type, and whether it is big-endian; or why the elements are not read.
    dtype: std::result::Result<(Dtype, bool), &'static str>,
    /// Where its elements are, from the beginning of the array on.
    data: Range<u64>,
}

impl Array {
    /// Parses the array that a file begins with.
    fn parse(file: &Section<'_>) -> Result<Self> {
        let (header, start) = file.parse_head(|bytes| {
            let (text, rest) = split(bytes)?;
            Ok::<_, Failure>((Header::parse(text)?, (bytes.len() - rest.len()) as u64))
        })?;
        let rest = file.cut(start..file.len());
        let dtype = element_type(header.name());
        let wrong = || {
            let (descr, shape) = (&header.descr, &header.shape);
            let what =
                format!("{} bytes of elements do not match the shape {shape:?} of {descr}", rest.len());
            Failure::invalid(what)
        };
        let len = match header.element_bytes() {
            Some(bytes) => elements(&header.shape).and_then(|n| n.checked_mul(bytes)).ok_or_else(wrong)?,
            // A pickle tells its length only to those that run it.
            None => match rest.contains(MAGIC) {
                true => {
                    return Err(Failure::invalid(
                        "another array behind pickled objects, whose end is not known",
                    ));
                }
                false => rest.len(),
            },
        };
        if len > rest.len() {
            return Err(wrong());
        }
        // Behind an array there is another one, or nothing.
        let behind = rest.cut(len..rest.len());
        if behind.len() > 0 && *behind.head(MAGIC.len() as u64) != *MAGIC {
            return Err(wrong());
        }
        Ok(Self { header, dtype, data: start..start + len })
    }

    /// Adds the array, which begins at this byte of the input, to a dump.
    fn add_to(self, dump: &mut Dump, name: String, input: &Arc<Input>, start: u64) -> Result<()> {
        let (bytes, place) =
            (self.data.end - self.data.start, start + self.data.start..start + self.data.end);
        let element_bytes = match (self.dtype, self.header.element_bytes()) {
            (Ok((dtype, _)), _) => Some(dtype.bits() as usize / 8),
            (Err(_), bytes) => bytes.and_then(|bytes| usize::try_from(bytes).ok()),
        };
        let order = element_bytes.map(|width| self.order(width));
        // As numbers of the other byte order, elements are none.
        let is_transposed = order.is_some_and(|order| order.transpose && !order.swap);
        let stored = is_transposed.then(|| Stored {
            input: Arc::clone(input),
            range: place.clone(),
            order: (0..self.header.shape.len()).rev().collect(),
        });
        let data = match element_bytes.zip(order) {
            Some((width, order)) if order.changes() && bytes > 0 => {
                let shape = self.header.shape.clone();
                let make = move |input: &Input| order.apply(&input.slice(place.clone()), &shape, width);
                Some(Data::made(input, bytes, make))
            }
            Some(_) => Some(Data::shared(input, place)),
            // The order of pickled elements is in the pickle and in the header.
            None => (!self.header.fortran_order).then(|| Data::shared(input, place)),
        };
        let Header { descr, shape, .. } = self.header;
        match (self.dtype, data) {
            (Ok((dtype, _)), Some(data)) => {
                let tensor = NamedTensor::from_data(name, dtype, shape, data)?;
                dump.tensors.push(NamedTensor { stored, ..tensor });
            }
            (why, data) => {
                let reason = why.err().unwrap_or_default();
                let dtype = header::name(&descr).map(str::to_owned).unwrap_or(descr);
                let opaque = Opaque::new(name, dtype, Some(shape), bytes, reason);
                dump.opaque.push(match data {
                    Some(data) => opaque.with_data(data).with_form(Form::Npy),
                    None => opaque,
                });
            }
        }
        Ok(())
    }

    /// Returns what makes the elements row-major and little-endian.
    fn order(&self, element_bytes: usize) -> Order {
        // One dimension that is not 1 or none: both orders are the same.
        let transpose =
            self.header.fortran_order && self.header.shape.iter().filter(|&&d| d != 1).count() > 1;
        let swap = matches!(self.dtype, Ok((_, true))) && element_bytes > 1;
        Order { transpose, swap }
    }
}

/// What must be done with elements to have them row-major and little-endian.
#[derive(Debug, Clone, Copy)]
struct Order {
    transpose: bool,
    swap: bool,
}

impl Order {
    fn changes(self) -> bool {
        self.transpose || self.swap
    }

    fn apply(self, data: &[u8], shape: &[u64], element_bytes: usize) -> Vec<u8> {
        let mut data = match self.transpose {
            true => row_major(data, shape, element_bytes),
            false => data.to_vec(),
        };
        if self.swap {
            data.chunks_exact_mut(element_bytes).for_each(<[u8]>::reverse);
        }
        data
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

/// Returns an element type, and whether it is big-endian; or why its elements are not read.
fn element_type(name: Option<&str>) -> std::result::Result<(Dtype, bool), &'static str> {
    let Some(name) = name else { return Err("a structure of fields") };
    let mut chars = name.chars();
    let order = chars.next().unwrap_or_default();
    let kind = chars.as_str();
    let dtype = DTYPES.iter().find(|(_, name)| *name == kind).map(|(dtype, _)| *dtype);
    match (order, dtype) {
        ('<', Some(dtype)) => return Ok((dtype, false)),
        ('>', Some(dtype)) => return Ok((dtype, true)),
        ('|' | '=', Some(dtype)) if dtype.bits() == 8 => return Ok((dtype, false)),
        // NumPy does not know bf16, and writes it as two bytes without a type.
        ('<' | '|', None) if kind == "V2" => return Ok((Dtype::Bf16, false)),
        _ => {}
    }
    Err(match kind.chars().next() {
        Some('O') => "pickled Python objects can run any code",
        Some('U' | 'S' | 'a') => "text",
        Some('M' | 'm') => "dates or times",
        Some('c') => "complex numbers",
        Some('V') => {
            "bytes without a type, as NumPy writes the 8-bit floats of ml_dtypes; safetensors keeps types"
        }
        Some('f') => "floats of this size",
        _ => "elements of this type are not read",
    })
}

/// Converts elements from column-major to row-major order. The shape has as many elements as `data`, at
/// least one.
fn row_major(data: &[u8], shape: &[u64], element_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    // Each of the others doubles the elements, so these are few.
    let shape: Vec<u64> = shape.iter().copied().filter(|dim| *dim != 1).collect();
    let Some((&last, outer)) = shape.split_last() else { return data.to_vec() };
    if data.is_empty() {
        return out;
    }
    // Bytes from one element to the next along each dimension; the first dimension is contiguous.
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = element_bytes;
    for &dim in &shape {
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
pub(super) fn header(tensor: &Outline<'_>, labels: &Labels) -> Result<Vec<u8>> {
    let opaque = labels.find(tensor).and_then(|label| label.in_npy(tensor.bytes()));
    if let Some(opaque) = opaque {
        return Ok(opaque);
    }
    let dtype = tensor.dtype;
    let Some((_, name)) = DTYPES.iter().find(|(d, _)| *d == dtype) else {
        return Err(Failure::usage(format_args!(".npy has no element type {dtype}; .safetensors has")));
    };
    let order = if dtype.bits() == 8 { '|' } else { '<' };
    header_of(&format!("'{order}{name}'"), tensor.shape)
}

/// Returns the header of `bytes` bytes of this type and shape, if it is one that is read as that.
pub(super) fn opaque_header(descr: &str, shape: &[u64], bytes: u64) -> Option<Vec<u8>> {
    let header = header_of(descr, shape).ok()?;
    let (text, _) = split(&header).ok()?;
    let read = Header::parse(text).ok()?;
    let is_same = (read.descr.as_str(), &read.shape[..]) == (descr, shape);
    let len = read.element_bytes().map(|of_one| elements(shape)?.checked_mul(of_one));
    (is_same && len.is_none_or(|len| len == Some(bytes))).then_some(header)
}

/// Returns the header of a type, as it stands there, and a shape.
fn header_of(descr: &str, shape: &[u64]) -> Result<Vec<u8>> {
    let shape: String = match shape {
        [one] => format!("{one},"),
        shape => shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ({shape}), }}");
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

    fn written(tensor: &TensorBuf) -> Vec<u8> {
        let mut bytes = Vec::new();
        with_source(&[("", tensor.view())], |one, source| {
            write(&mut bytes, &one[0], &Labels::default(), source)
        })
        .unwrap();
        bytes
    }

    /// Both ways of reading must agree. Of an opaque array, it returns the reason as a failure.
    fn parse(bytes: &[u8]) -> Result<TensorBuf> {
        let shared = read(&Arc::new(Input::Owned(bytes.to_vec())), "t");
        let mut owned = Dump::default();
        let read = read_entry(
            &Arc::new(Input::Owned(bytes.to_vec())),
            0..bytes.len() as u64,
            "t".into(),
            &mut owned,
        );
        let owned = read.map(|()| owned);
        let mut dump = match (shared, owned) {
            (Ok(shared), Ok(owned)) => {
                assert_eq!(format!("{:?}", shared.opaque), format!("{:?}", owned.opaque));
                assert!(
                    shared
                        .tensors
                        .iter()
                        .map(NamedTensor::view)
                        .eq(owned.tensors.iter().map(NamedTensor::view))
                );
                shared
            }
            (shared, owned) => {
                assert_eq!(shared.as_ref().err(), owned.as_ref().err());
                return Err(shared.unwrap_err());
            }
        };
        match (dump.tensors.pop(), dump.opaque.pop()) {
            (Some(tensor), None) => Ok(tensor.into_parts().unwrap().1),
            (None, Some(opaque)) => {
                Err(Failure::invalid(format!("opaque {}: {}", opaque.dtype, opaque.reason)))
            }
            _ => panic!("one array"),
        }
    }

    const NUMPY_BIG_FORTRAN: &[u8] = include_bytes!("../../../fixtures/big_endian_fortran.npy");

    #[test]
    fn numpys_own_file_is_read() {
        let tensor = parse(NUMPY_BIG_FORTRAN).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::I16, &[2, 3][..]));
        assert_eq!(tensor.data(), [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
        let failure = parse(include_bytes!("../../../fixtures/object.npy")).unwrap_err();
        assert!(failure.message.contains("pickled"), "{failure}");
    }

    #[test]
    fn the_header_is_numpys() {
        let tensor = TensorBuf::from_f32(vec![3], &[1.0, 2.0, 3.0]).unwrap();
        let bytes = written(&tensor);
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
                let bytes = written(&tensor);
                assert_eq!(parse(&bytes).unwrap(), tensor, "{name}");
            }
        }
    }

    #[test]
    fn many_dimensions_need_version_2() {
        let tensor = TensorBuf::new(Dtype::U8, vec![1; 30_000], vec![9]).unwrap();
        let bytes = written(&tensor);
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
        let many = format!("(2, {}, {})", 1 << 17, "1, ".repeat(50_000));
        let tensor = parse(&file(2, &dict("|u1", "True", &many), &[1, 2].repeat(1 << 17))).unwrap();
        assert_eq!(tensor.data(), [[1; 1 << 17], [2; 1 << 17]].concat());
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
        let twice = read(&Arc::new(Input::Owned([&bytes[..], &bytes].concat())), "t").unwrap();
        assert_eq!(twice.tensors.iter().map(NamedTensor::name).collect::<Vec<_>>(), ["t.0", "t.1"]);
        let failure = read(&Arc::new(Input::Owned([&bytes[..], &bytes, MAGIC].concat())), "t").unwrap_err();
        assert!(failure.message.contains("array 2 at byte"), "{failure}");
    }

    #[test]
    fn types_that_are_not_read_are_opaque_and_come_back() {
        let names = [
            "|O", "|V1", "|V4", ">V2", "<c8", "<c16", "<f16", "<U2", "|S3", "<M8[ns]", "<m8", "|f4", "f4", "",
        ];
        let fields =
            ["[('a', '<f4', (2,)), (('title', 'b'), '|S3')]", "[('a', [('b', '<i2'), ('c', '|O')])]"];
        let quoted = names.iter().map(|name| format!("'{name}'"));
        for descr in quoted.chain(fields.map(str::to_owned)) {
            let header = Header { descr: descr.clone(), fortran_order: false, shape: vec![2] };
            let len = header.element_bytes().map_or(9, |bytes| 2 * bytes);
            let data: Vec<u8> = (0..len as u8).collect();
            let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}\n");
            let failure = parse(&file(1, &text, &data)).unwrap_err();
            assert!(
                failure.message.starts_with(&format!("opaque {}: ", header.name().unwrap_or(&descr))),
                "{failure}"
            );
            let header = opaque_header(&descr, &[2], len).unwrap();
            assert_eq!(parse(&[&header[..], &data].concat()).unwrap_err(), failure);
        }
        // A label comes from a stream, and must not become another header.
        for descr in ["'<c8', 'x': 1", "'<f4'}", "<c8", "[", ""] {
            assert_eq!(opaque_header(descr, &[2], 16), None, "{descr}");
        }
        assert_eq!(opaque_header("'<c8'", &[2], 15), None);
        assert_eq!(
            Header { descr: fields[0].into(), fortran_order: false, shape: vec![] }.element_bytes(),
            Some(11)
        );
    }

    #[test]
    fn opaque_elements_are_brought_into_row_major_order() {
        let text = "{'descr': '|S1', 'fortran_order': True, 'shape': (2, 3), }\n";
        let mut dump = read(&Arc::new(Input::Owned(file(1, text, b"adbecf"))), "t").unwrap();
        let (data, _) = dump.opaque[0].take_data().unwrap();
        assert_eq!(&data[..], b"abcdef");
        // The order of pickled elements is not in their bytes alone.
        let text = "{'descr': '|O', 'fortran_order': True, 'shape': (2, 3), }\n";
        let mut dump = read(&Arc::new(Input::Owned(file(1, text, b"pickle"))), "t").unwrap();
        assert!(dump.opaque[0].take_data().is_none());
    }

    #[test]
    fn bf16_is_what_numpy_writes_as_two_bytes() {
        for descr in ["|V2", "<V2"] {
            let tensor = parse(&file(1, &dict(descr, "False", "(2,)"), &[0x80, 0x3f, 0, 0x40])).unwrap();
            assert_eq!((tensor.dtype(), tensor.view().to_f32().unwrap()), (Dtype::Bf16, vec![1.0, 2.0]));
        }
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
            (dict("<c8", "False", "(1,)"), "do not match"),
            ("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}".into(), "do not match"),
            ("{'descr': [[[[[[[[[[[[[[[[[['<f4', 'fortran_order': False, 'shape': (1,)}".into(), "malformed"),
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
