//! `.safetensors`: a length, a JSON header, and the data without gaps.
//!
//! ```text
//! u64 LE header length
//! | header: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {..}}
//! | data, which the tensors' ranges cover without gap or overlap
//! ```
//! This parser replaces the crate `safetensors`, which the tests compare it with: its errors name the
//! tensor, it refuses duplicate names, and tensors borrow from a shared map.

use super::kind;
use super::label::{Form, Labels};
use super::{Data, Dump, NamedTensor, Opaque, Outline, Source, check_unique, quoted};
use crate::fail::{Failure, Result};
use crate::input::Input;
use crate::output::warn;
use gcodec::tensor::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::sync::Arc;

/// Reads all tensors, in the order of their data; their bytes stay in `input`.
pub(crate) fn read(input: &Arc<Input>) -> Result<Dump> {
    let bytes = input.len();
    let head = input.slice(0..bytes.min(LEN_BYTES + 1));
    let Some((len, _)) = head.split_first_chunk() else {
        return Err(Failure::invalid(format_args!("{bytes} bytes are too few for a safetensors file")));
    };
    let header_bytes = u64::from_le_bytes(*len);
    if !looks_like(&head) {
        return Err(kind::not_safetensors(input));
    }
    if header_bytes > bytes - LEN_BYTES {
        let what = format!("header of {header_bytes} bytes in a file of {bytes}");
        return Err(Failure::invalid(what));
    }
    if header_bytes > MAX_HEADER_BYTES {
        let what = format!("header of {header_bytes} bytes, {MAX_HEADER_BYTES} allowed");
        return Err(Failure::limit(what));
    }
    let data_start = LEN_BYTES + header_bytes;
    let data_bytes = bytes - data_start;
    let header: Header = serde_json::from_slice(&input.slice(LEN_BYTES..data_start))
        .map_err(|e| Failure::invalid(e).about("safetensors header"))?;

    let mut entries = header.tensors;
    check_unique(entries.iter().map(|(name, _)| name.as_str()), Failure::invalid)?;
    // An empty tensor sorts before the one that begins where it ends.
    entries.sort_by_key(|(_, entry)| entry.data_offsets);

    let (mut tensors, mut opaque) = (Vec::with_capacity(entries.len()), Vec::new());
    let mut expected_begin = 0;
    for (name, Entry { dtype, shape, data_offsets: (begin, end) }) in entries {
        let fail = |what: &dyn fmt::Display| Err(Failure::invalid(what).about(quoted(&name)));
        if begin != expected_begin {
            let what = if begin < expected_begin { "overlaps" } else { "leaves a gap after" };
            return fail(&format_args!(
                "begins at {begin}: {what} the tensor before, which ends at {expected_begin}"
            ));
        }
        if end < begin || end > data_bytes {
            return fail(&format_args!("data offsets {begin}..{end} in {data_bytes} bytes of data"));
        }
        expected_begin = end;
        let data = Data::shared(input, data_start + begin..data_start + end);
        let Some(dtype) = dtype_from_name(&dtype) else {
            if bits_of(&dtype).is_some_and(|bits| bytes_of(bits, &shape) != Some(end - begin)) {
                return fail(&format_args!(
                    "{} bytes do not match the shape {shape:?} of {dtype}",
                    end - begin
                ));
            }
            let tensor = Opaque::new(name, dtype, Some(shape), end - begin, NOT_READ);
            opaque.push(tensor.with_data(data).with_form(Form::Safetensors));
            continue;
        };
        if dtype.bits() == 4 && gcodec::internal::elements(&shape).is_some_and(|n| n % 2 == 1) {
            return fail(&"an odd number of 4-bit elements");
        }
        tensors.push(NamedTensor::from_data(name, dtype, shape, data)?);
    }
    if expected_begin != data_bytes {
        let what = format!("{data_bytes} bytes of data, of which the tensors cover {expected_begin}");
        return Err(Failure::invalid(what));
    }
    Ok(Dump { tensors, opaque, metadata: header.metadata, ..Dump::default() })
}

/// Writes tensors in the order given.
pub(crate) fn write(
    out: &mut impl Write,
    tensors: &[Outline<'_>],
    metadata: &BTreeMap<String, String>,
    mut labels: Labels,
    source: &mut Source<'_>,
) -> Result<()> {
    check_unique(tensors.iter().map(|tensor| tensor.name), Failure::usage)?;
    for tensor in tensors {
        if tensor.name == METADATA {
            return Err(Failure::usage(format_args!("safetensors keeps the name {METADATA} for itself")));
        }
        if tensor.dtype.bits() == 4 && gcodec::internal::elements(tensor.shape).is_some_and(|n| n % 2 == 1) {
            let what = "safetensors cannot hold an odd number of 4-bit elements";
            return Err(Failure::usage(what).about(quoted(tensor.name)));
        }
    }
    let find = |tensor: &Outline<'_>| {
        let (dtype, shape) = labels.find(tensor)?.in_safetensors(tensor.bytes())?;
        Some((dtype.to_owned(), shape.to_owned()))
    };
    let restored: Vec<Option<(String, Vec<u64>)>> = tensors.iter().map(find).collect();
    for (tensor, _) in tensors.iter().zip(&restored).filter(|(_, restored)| restored.is_some()) {
        labels.take(tensor.name);
    }
    let metadata = &labels.put(metadata);
    let mut header = serde_json::to_vec(&HeaderToWrite { tensors, restored: &restored, metadata })
        .map_err(std::io::Error::from)?;
    // Pads with spaces, so that the data begins at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    source(&mut |_, bytes| Ok(out.write_all(bytes)?))
}

/// The header to write, in the order of the tensors.
struct HeaderToWrite<'a> {
    tensors: &'a [Outline<'a>],
    /// Element type and shape of those that are opaque.
    restored: &'a [Option<(String, Vec<u64>)>],
    metadata: &'a BTreeMap<String, String>,
}

impl Serialize for HeaderToWrite<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        let mut begin = 0u64;
        for (tensor, restored) in self.tensors.iter().zip(self.restored) {
            let end = begin.saturating_add(tensor.bytes());
            let known = || {
                let dtype = dtype_name(tensor.dtype).ok_or_else(|| {
                    serde::ser::Error::custom(format_args!(
                        "safetensors has no element type {}",
                        tensor.dtype
                    ))
                })?;
                Ok((dtype, tensor.shape))
            };
            let restored = restored.as_ref().map(|(dtype, shape)| Ok((dtype.as_str(), &shape[..])));
            let (dtype, shape) = restored.unwrap_or_else(known)?;
            let entry = EntryToWrite { dtype, shape, data_offsets: (begin, end) };
            map.serialize_entry(tensor.name, &entry)?;
            begin = end;
        }
        map.end()
    }
}

#[derive(serde::Serialize)]
struct EntryToWrite<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    data_offsets: (u64, u64),
}

/// The header as read. A map type would silently drop one of two tensors with the same name.
#[derive(Default)]
struct Header {
    tensors: Vec<(String, Entry)>,
    metadata: BTreeMap<String, String>,
}

#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                let mut metadata = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name != METADATA {
                        header.tensors.push((name, map.next_value()?));
                        continue;
                    }
                    if metadata.is_some() {
                        return Err(A::Error::duplicate_field(METADATA));
                    }
                    metadata = Some(
                        map.next_value::<Option<BTreeMap<String, Value>>>()
                            .map_err(|e| A::Error::custom(format_args!("{METADATA}: {e}")))?,
                    );
                }
                header.metadata = texts(metadata.flatten().unwrap_or_default());
                Ok(header)
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// Returns metadata as texts. Some programs write numbers there, which the format does not allow.
fn texts(metadata: BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let others = metadata.iter().filter(|(_, value)| !value.is_string());
    let others: Vec<String> = others.map(|(key, value)| format!("{key:?}: {value}")).collect();
    if let Some(first) = others.first() {
        let more = if others.len() > 1 { format!(" and {} more", others.len() - 1) } else { String::new() };
        warn(format_args!("{METADATA} of a safetensors file has values that are no texts: {first}{more}"));
    }
    let text = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    metadata.into_iter().map(|(key, value)| (key, text(value))).collect()
}

/// Whether bytes begin as a file of this format does: a length below 2^40, and a JSON object.
pub(super) fn looks_like(bytes: &[u8]) -> bool {
    matches!(bytes, [_, _, _, _, _, 0, 0, 0, b'{', ..])
}

/// Whether a file can have `bytes` bytes as an opaque tensor of this element type and shape.
pub(super) fn can_hold(dtype: &str, shape: &[u64], bytes: u64) -> bool {
    let is_opaque = dtype_from_name(dtype).is_none();
    is_opaque && bits_of(dtype).is_none_or(|bits| bytes_of(bits, shape) == Some(bytes))
}

/// Returns the bytes of a tensor whose elements have this many bits, if they are whole.
fn bytes_of(bits: u64, shape: &[u64]) -> Option<u64> {
    let bits = gcodec::internal::elements(shape)?.checked_mul(bits)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Returns the bits of an element of the format's types that streams do not have.
fn bits_of(dtype: &str) -> Option<u64> {
    match dtype {
        "F6_E2M3" | "F6_E3M2" => Some(6),
        "F8_E8M0" => Some(8),
        "C64" => Some(64),
        _ => None,
    }
}

fn dtype_from_name(name: &str) -> Option<Dtype> {
    DTYPES.iter().find(|(_, n)| *n == name).map(|(dtype, _)| *dtype)
}

fn dtype_name(dtype: Dtype) -> Option<&'static str> {
    DTYPES.iter().find(|(d, _)| *d == dtype).map(|(_, name)| *name)
}

/// Bytes of the header's length.
const LEN_BYTES: u64 = 8;

const METADATA: &str = "__metadata__";

/// Why elements are not read.
const NOT_READ: &str = "elements of this type are not read";

/// The limit of the format's own library.
const MAX_HEADER_BYTES: u64 = 100_000_000;

const DTYPES: [(Dtype, &str); 18] = [
    (Dtype::F64, "F64"),
    (Dtype::F32, "F32"),
    (Dtype::F16, "F16"),
    (Dtype::Bf16, "BF16"),
    (Dtype::F8E4M3Fn, "F8_E4M3"),
    (Dtype::F8E5M2, "F8_E5M2"),
    (Dtype::F8E4M3Fnuz, "F8_E4M3FNUZ"),
    (Dtype::F8E5M2Fnuz, "F8_E5M2FNUZ"),
    (Dtype::F4E2M1, "F4"),
    (Dtype::I8, "I8"),
    (Dtype::I16, "I16"),
    (Dtype::I32, "I32"),
    (Dtype::I64, "I64"),
    (Dtype::U8, "U8"),
    (Dtype::U16, "U16"),
    (Dtype::U32, "U32"),
    (Dtype::U64, "U64"),
    (Dtype::Bool, "BOOL"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::Code;
    use crate::tensors::with_source;
    use gcodec::tensor::TensorBuf;

    fn parse(bytes: Vec<u8>) -> Result<Dump> {
        read(&Arc::new(Input::Owned(bytes)))
    }

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    /// One tensor of each element type, six elements each.
    fn one_of_each() -> Vec<(String, TensorBuf)> {
        let tensor = |(i, dtype): (usize, Dtype)| {
            let len = dtype.bytes_for(6).unwrap() as usize;
            let data = (0..len).map(|b| (b * 31 + i) as u8).collect();
            (format!("{i:02}.{dtype}"), TensorBuf::new(dtype, vec![2, 3], data).unwrap())
        };
        Dtype::ALL.into_iter().enumerate().map(tensor).rev().collect()
    }

    fn written(tensors: &[(String, TensorBuf)], metadata: &BTreeMap<String, String>) -> Vec<u8> {
        let views: Vec<_> = tensors.iter().map(|(name, t)| (name.as_str(), t.view())).collect();
        let mut bytes = Vec::new();
        with_source(&views, |all, source| write(&mut bytes, all, metadata, Labels::default(), source))
            .unwrap();
        bytes
    }

    #[test]
    fn all_element_types_round_trip_in_order() {
        let tensors = one_of_each();
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let bytes = written(&tensors, &metadata);
        let dump = parse(bytes).unwrap();
        assert_eq!(dump.metadata, metadata);
        assert_eq!(dump.tensors.len(), tensors.len());
        for (read, (name, tensor)) in dump.tensors.iter().zip(&tensors) {
            assert_eq!((read.name(), read.view()), (name.as_str(), tensor.view()));
        }
    }

    #[test]
    fn the_reference_library_agrees() {
        let tensors = one_of_each();
        let bytes = written(&tensors, &BTreeMap::new());
        let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.len(), tensors.len());
        for (name, tensor) in &tensors {
            let view = theirs.tensor(name).unwrap();
            assert_eq!((view.data(), view.shape()), (tensor.data(), &[2, 3][..]), "{name}");
        }
        let rewritten = ::safetensors::serialize(theirs.tensors(), None).unwrap();
        let dump = parse(rewritten).unwrap();
        for (name, tensor) in &tensors {
            let read = dump.tensors.iter().find(|t| t.name() == name).unwrap();
            assert_eq!(read.view(), tensor.view());
        }
    }

    #[test]
    fn tensors_come_in_the_order_of_their_data() {
        let header = r#"{"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},
            "e":{"dtype":"F32","shape":[0],"data_offsets":[1,1]},
            "__metadata__":null, "a":{"dtype":"I8","shape":[],"data_offsets":[0,1],"more":[]}}  "#;
        let dump = parse(file(header, &[1, 2, 3])).unwrap();
        let names: Vec<_> = dump.tensors.iter().map(NamedTensor::name).collect();
        assert_eq!(names, ["a", "e", "b"]);
        assert_eq!(dump.tensors[2].view().data(), [2, 3]);
        assert!(parse(file("{}", &[])).unwrap().tensors.is_empty());
    }

    #[test]
    fn metadata_that_is_no_text_is_read_as_its_json() {
        let header = r#"{"__metadata__":{"epoch":3,"name":"x","list":[1,null],"none":null}}"#;
        let metadata = parse(file(header, &[])).unwrap().metadata;
        let found: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(found, [("epoch", "3"), ("list", "[1,null]"), ("name", "x"), ("none", "null")]);
    }

    #[test]
    fn every_prefix_is_refused() {
        let bytes = written(&one_of_each(), &BTreeMap::new());
        for len in 0..bytes.len() {
            assert_eq!(parse(bytes[..len].to_vec()).unwrap_err().code, Code::Invalid, "{len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(parse(longer).unwrap_err().message.contains("cover"));
    }

    #[test]
    fn flipped_bits_do_no_harm() {
        let bytes = written(&one_of_each()[..3], &BTreeMap::new());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(dump) = parse(damaged) {
                assert!(dump.tensors.iter().all(|t| t.view().data().len() <= bytes.len()));
            }
        }
    }

    #[test]
    fn hostile_headers_are_refused() {
        let tensor = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#""t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
        };
        let long = format!("[{}]", "18446744073709551615,".repeat(100) + "2");
        let cases = [
            ("", "not a safetensors file"),
            (" {}", "not a safetensors file"),
            ("[]", "not a safetensors file"),
            ("{", "EOF"),
            (&"{\"a\":".repeat(10_000), "header"),
            ("{}{}", "trailing"),
            (&format!("{{{}}}", tensor("F32", "[2]", "[0,7]")), "has 7 bytes"),
            (&format!("{{{}}}", tensor("F32", "[2]", "[0,8,9]")), "header"),
            (&format!("{{{}}}", tensor("F32", "[-1]", "[0,8]")), "header"),
            (&format!("{{{}}}", tensor("F32", "[1.5]", "[0,8]")), "header"),
            (&format!("{{{}}}", tensor("F32", "[1e3]", "[0,8]")), "header"),
            (&format!("{{{}}}", tensor("F32", "[18446744073709551616]", "[0,8]")), "header"),
            (&format!("{{{}}}", tensor("F32", "[18446744073709551615,2]", "[0,8]")), "2^64 or more"),
            (&format!("{{{}}}", tensor("F32", "[4611686018427387906]", "[0,8]")), "2^64 or more"),
            (&format!("{{{}}}", tensor("F32", &long, "[0,8]")), "2^64 or more"),
            (&format!("{{{}}}", tensor("F32", "[2]", "[1,9]")), "gap"),
            (&format!("{{{}}}", tensor("F32", "[2]", "[0,18446744073709551615]")), "data offsets"),
            (&format!("{{{}}}", tensor("F32", "[2]", "[8,0]")), "gap"),
            (&format!("{{{}}}", tensor("F4", "[15]", "[0,8]")), "odd"),
            (&format!("{{{0},{0}}}", tensor("F64", "[1]", "[0,8]")), "twice"),
            (&format!("{{{},{}}}", tensor("F32", "[1]", "[0,4]"), tensor("F32", "[1]", "[4,8]")), "twice"),
            (r#"{"__metadata__":[1]}"#, "__metadata__: invalid type"),
            (r#"{"__metadata__":{"a":1}}"#, "cover 0"),
            (r#"{"__metadata__":{},"__metadata__":{}}"#, "duplicate"),
            ("{}", "cover 0"),
        ];
        for (header, message) in cases {
            let failure = parse(file(header, &[0; 8])).unwrap_err();
            assert_eq!(failure.code, Code::Invalid, "{header}");
            assert!(failure.message.contains(message), "{header}: {failure}");
        }
        let overlap = r#"{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},
            "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
        assert!(parse(file(overlap, &[0; 8])).unwrap_err().message.contains("overlaps"));
        assert!(parse(file("{\"\x1b\":0}", &[])).is_err());
    }

    #[test]
    fn a_header_length_is_not_believed() {
        for len in [3, 1 << 32, u64::MAX - 8, u64::MAX] {
            let bytes = [&len.to_le_bytes()[..], b"{}"].concat();
            assert_eq!(parse(bytes).unwrap_err().code, Code::Invalid);
        }
        let bytes = [&(MAX_HEADER_BYTES + 1).to_le_bytes()[..], b"{", &vec![b' '; 100_000_000]].concat();
        assert_eq!(parse(bytes).unwrap_err().code, Code::Limit);
    }

    #[test]
    fn what_cannot_be_read_back_is_not_written() {
        let odd = TensorBuf::new(Dtype::F4E2M1, vec![3], vec![0, 0]).unwrap();
        let one = TensorBuf::new(Dtype::U8, vec![1], vec![0]).unwrap();
        for tensors in
            [&[("a", odd.view())][..], &[(METADATA, one.view())], &[("a", one.view()), ("a", one.view())]]
        {
            let mut bytes = Vec::new();
            let written = with_source(tensors, |all, source| {
                write(&mut bytes, all, &BTreeMap::new(), Labels::default(), source)
            });
            assert_eq!(written.unwrap_err().code, Code::Usage);
            assert!(bytes.is_empty());
        }
    }

    #[test]
    fn the_data_is_aligned() {
        let one = TensorBuf::from_f32(vec![1], &[1.0]).unwrap();
        for name in ["a", "ab", "abc", "\"\\\n"] {
            let mut bytes = Vec::new();
            with_source(&[(name, one.view())], |all, source| {
                write(&mut bytes, all, &BTreeMap::new(), Labels::default(), source)
            })
            .unwrap();
            assert_eq!((bytes.len() - 4) % 8, 0);
            assert_eq!(parse(bytes).unwrap().tensors[0].name(), name);
        }
    }
}
