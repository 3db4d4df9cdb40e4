//! `.pt`, `.pth`, `.bin`: state dicts of `torch.save`, without executing their pickle.
//!
//! ```text
//! zip archive: NAME/data.pkl (a pickle of tensors and containers) | NAME/data/KEY (the bytes of a storage)
//!            | NAME/byteorder ("little" or "big"; little if missing)
//! ```
//! The archive's entries are stored, so tensors borrow from the mapped file if their elements are contiguous.

mod pickle;

use super::{Data, Dump, NamedTensor, check_unique, quoted};
use crate::fail::{Failure, Result};
use crate::input::Input;
use gcodec::tensor::Dtype;
use pickle::{Id, Node, Pickle};
use std::collections::HashMap;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::sync::Arc;
use zip::{CompressionMethod, ZipArchive};

/// Most bytes of the pickle: of names, shapes and offsets.
const MAX_PICKLE: u64 = 256 << 20;
/// Most containers around a tensor.
const MAX_DEPTH: usize = 64;

/// Returns the prefix of the archive's names if it has a `data.pkl`.
pub(crate) fn prefix(archive: &ZipArchive<Cursor<&[u8]>>) -> Option<String> {
    archive.file_names().flatten().find_map(|name| Some(name.strip_suffix("data.pkl")?.to_owned()))
}

/// Reads all tensors, in the order of the pickle.
pub(crate) fn read(input: &Arc<Input>) -> Result<Dump> {
    let mut archive = ZipArchive::new(Cursor::new(&input[..])).map_err(Failure::invalid)?;
    let prefix = prefix(&archive).ok_or_else(|| Failure::invalid("a zip archive without data.pkl"))?;
    let order = entry(&mut archive, &format!("{prefix}byteorder"), 16).ok();
    if order.is_some_and(|order| order.trim_ascii() == b"big") {
        return Err(Failure::invalid(
            "its elements are big-endian; load and save it on a little-endian machine",
        ));
    }
    let pickle = entry(&mut archive, &format!("{prefix}data.pkl"), MAX_PICKLE)?;
    let pickle = Pickle::read(&pickle).map_err(|e| e.about("data.pkl"))?;
    let mut reader = Reader {
        input,
        archive,
        prefix,
        pickle: &pickle,
        storages: HashMap::new(),
        dump: Dump::default(),
        left: 4 * pickle.len() + 64,
    };
    reader.walk(pickle.root(), &mut String::new(), 0)?;
    let dump = reader.dump;
    if dump.tensors.is_empty() {
        return Err(Failure::invalid("a PyTorch file without tensors"));
    }
    check_unique(dump.tensors.iter().map(NamedTensor::name), Failure::invalid)?;
    Ok(dump)
}

/// Returns the bytes of an archive's entry.
fn entry(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str, max_bytes: u64) -> Result<Vec<u8>> {
    let file = archive.by_name(name).map_err(|e| Failure::invalid(e).about(name))?;
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|e| Failure::invalid(e).about(name))?;
    match bytes.len() as u64 > max_bytes {
        true => Err(Failure::limit(format_args!("{name}: more than {max_bytes} bytes"))),
        false => Ok(bytes),
    }
}

/// The bytes of a storage in the file.
#[derive(Debug, Clone)]
struct Storage {
    /// `None` for untyped bytes.
    dtype: Option<Dtype>,
    range: Range<usize>,
}

struct Reader<'a> {
    input: &'a Arc<Input>,
    archive: ZipArchive<Cursor<&'a [u8]>>,
    prefix: String,
    pickle: &'a Pickle,
    storages: HashMap<String, Range<usize>>,
    dump: Dump,
    /// Values that may still be visited: a value that occurs in several containers is visited several times.
    left: usize,
}

impl Reader<'_> {
    /// Collects the tensors of a value; `path` is its name.
    fn walk(&mut self, id: Id, path: &mut String, depth: usize) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| Failure::limit("containers repeat too often"))?;
        if depth > MAX_DEPTH {
            return Err(Failure::limit(format_args!("more than {MAX_DEPTH} containers around a value")));
        }
        let pickle = self.pickle;
        match pickle.node(id) {
            Node::Dict(items) => {
                for pair in items.as_chunks::<2>().0 {
                    let key = match pickle.node(pair[0]) {
                        Node::Text(key) => key.clone(),
                        Node::Int(key) => key.to_string(),
                        _ => continue,
                    };
                    self.inside(&key, pair[1], path, depth)?;
                }
            }
            Node::List(items) | Node::Tuple(items) => {
                for (number, item) in items.iter().enumerate() {
                    self.inside(&number.to_string(), *item, path, depth)?;
                }
            }
            Node::Call(callable, arguments) => {
                let (Node::Global(name), Node::Tuple(arguments)) =
                    (pickle.node(*callable), pickle.node(*arguments))
                else {
                    return Ok(());
                };
                match (name.as_str(), &arguments[..]) {
                    ("torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor_v3", arguments) => {
                        let tensor = self.tensor(path, arguments).map_err(|e| e.about(quoted(path)))?;
                        self.dump.tensors.push(tensor);
                    }
                    (
                        "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state",
                        [tensor, ..],
                    ) => self.walk(*tensor, path, depth + 1)?,
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn inside(&mut self, key: &str, id: Id, path: &mut String, depth: usize) -> Result<()> {
        let len = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
        self.walk(id, path, depth + 1)?;
        path.truncate(len);
        Ok(())
    }

    /// Makes a tensor of the arguments of `_rebuild_tensor_v2(storage, offset, size, stride, ..)`; the third
    /// version has the element type behind two more.
    fn tensor(&mut self, name: &str, arguments: &[Id]) -> Result<NamedTensor> {
        let [storage, offset, size, stride, rest @ ..] = arguments else {
            return Err(Failure::invalid("too few arguments"));
        };
        let storage = self.storage(*storage)?;
        let typed = rest.get(2).and_then(|id| match self.pickle.node(*id) {
            Node::Global(name) => dtype(name.strip_prefix("torch.")?),
            _ => None,
        });
        let dtype =
            storage.dtype.or(typed).ok_or_else(|| Failure::invalid("an element type that is not read"))?;
        let Node::Int(offset) = self.pickle.node(*offset) else { return Err(Failure::invalid("no offset")) };
        let (shape, strides) = (self.numbers(*size)?, self.numbers(*stride)?);
        let offset = u64::try_from(*offset).map_err(|_| Failure::invalid("a negative offset"))?;
        let view = Strided { element: dtype.bits() as usize / 8, offset, shape: &shape, strides: &strides };
        let data = match view.find(storage.range.len())? {
            Place::Contiguous(range) => {
                let start = storage.range.start;
                Data::Shared { input: Arc::clone(self.input), range: start + range.start..start + range.end }
            }
            Place::Scattered => Data::Owned(view.gather(&self.input[storage.range])),
        };
        NamedTensor::from_data(name.to_owned(), dtype, shape, data)
    }

    /// Returns the dimensions in a tuple, or in a `torch.Size` of one.
    fn numbers(&self, id: Id) -> Result<Vec<u64>> {
        let wrong = || Failure::invalid("its shape is no tuple of numbers");
        let items = match self.pickle.node(id) {
            Node::Tuple(items) => items,
            Node::Call(_, arguments) => match self.pickle.node(*arguments) {
                Node::Tuple(arguments) if arguments.len() == 1 => match self.pickle.node(arguments[0]) {
                    Node::Tuple(items) | Node::List(items) => items,
                    _ => return Err(wrong()),
                },
                _ => return Err(wrong()),
            },
            _ => return Err(wrong()),
        };
        let number = |id: &Id| match self.pickle.node(*id) {
            Node::Int(number) => u64::try_from(*number).map_err(|_| wrong()),
            _ => Err(wrong()),
        };
        items.iter().map(number).collect()
    }

    /// Finds the bytes of `('storage', type, key, location, elements)`.
    fn storage(&mut self, id: Id) -> Result<Storage> {
        let wrong = || Failure::invalid("its storage is not described as torch.save does");
        let Node::Persistent(id) = self.pickle.node(id) else { return Err(wrong()) };
        let Node::Tuple(items) = self.pickle.node(*id) else { return Err(wrong()) };
        let [_, class, key, _, _] = &items[..] else { return Err(wrong()) };
        let (Node::Global(class), Node::Text(key)) = (self.pickle.node(*class), self.pickle.node(*key))
        else {
            return Err(wrong());
        };
        let class = class.rsplit('.').next().unwrap_or_default();
        let dtype = match class {
            "UntypedStorage" => None,
            class => match storage_dtype(class) {
                Some(dtype) => Some(dtype),
                None => return Err(Failure::invalid(format_args!("elements of {class:?} are not read"))),
            },
        };
        if let Some(range) = self.storages.get(key) {
            return Ok(Storage { dtype, range: range.clone() });
        }
        let name = format!("{}data/{key}", self.prefix);
        let file = self.archive.by_name(&name).map_err(|e| Failure::invalid(e).about(&name))?;
        if file.compression() != CompressionMethod::Stored {
            return Err(Failure::invalid(format_args!("{name} is compressed, which torch.save never does")));
        }
        let start = file.data_start().ok_or_else(wrong)?;
        let range = usize::try_from(start).ok().zip(usize::try_from(file.size()).ok());
        let range = range.and_then(|(start, len)| Some(start..start.checked_add(len)?));
        let range = range.filter(|r| r.end <= self.input.len()).ok_or_else(wrong)?;
        drop(file);
        self.storages.insert(key.clone(), range.clone());
        Ok(Storage { dtype, range })
    }
}

/// A view of a storage by strides in elements.
struct Strided<'a> {
    element: usize,
    offset: u64,
    shape: &'a [u64],
    strides: &'a [u64],
}

enum Place {
    Contiguous(Range<usize>),
    Scattered,
}

impl Strided<'_> {
    /// Checks that all elements lie in a storage of `len` bytes, and that they are not more than fit it.
    fn find(&self, len: usize) -> Result<Place> {
        let outside =
            || Failure::invalid(format_args!("its elements lie outside of its storage of {len} bytes"));
        if self.shape.len() != self.strides.len() {
            return Err(Failure::invalid("as many strides as dimensions are needed"));
        }
        let elements = gcodec::tensor::elements(self.shape).ok_or_else(outside)?;
        let available = (len / self.element) as u64;
        let start = self.offset;
        if elements == 0 {
            return Ok(Place::Contiguous(0..0));
        }
        if elements > available {
            return Err(Failure::invalid("it has more elements than its storage: save a contiguous copy"));
        }
        let reach = self
            .shape
            .iter()
            .zip(self.strides)
            .try_fold(start, |sum, (&dim, &stride)| sum.checked_add((dim - 1).checked_mul(stride)?));
        if reach.is_none_or(|last| last >= available) {
            return Err(outside());
        }
        let mut expected = 1;
        let contiguous = self.shape.iter().zip(self.strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == expected;
            expected *= dim;
            fits
        });
        let bytes = |elements: u64| elements as usize * self.element;
        Ok(match contiguous {
            true => Place::Contiguous(bytes(start)..bytes(start + elements)),
            false => Place::Scattered,
        })
    }

    /// Copies the elements, which were found to lie in `storage`, in the order of the shape.
    fn gather(&self, storage: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut index = vec![0u64; self.shape.len()];
        loop {
            let at = self.offset + index.iter().zip(self.strides).map(|(i, stride)| i * stride).sum::<u64>();
            let at = at as usize * self.element;
            out.extend_from_slice(&storage[at..at + self.element]);
            // Moves on like an odometer: the last dimension runs fastest.
            let Some(turned) = (0..index.len()).rev().find(|&d| index[d] + 1 < self.shape[d]) else {
                return out;
            };
            index[turned] += 1;
            index[turned + 1..].fill(0);
        }
    }
}

/// Returns the element type of a class of storages.
fn storage_dtype(class: &str) -> Option<Dtype> {
    let names = [
        ("DoubleStorage", Dtype::F64),
        ("FloatStorage", Dtype::F32),
        ("HalfStorage", Dtype::F16),
        ("BFloat16Storage", Dtype::Bf16),
        ("LongStorage", Dtype::I64),
        ("IntStorage", Dtype::I32),
        ("ShortStorage", Dtype::I16),
        ("CharStorage", Dtype::I8),
        ("ByteStorage", Dtype::U8),
        ("BoolStorage", Dtype::Bool),
    ];
    names.iter().find(|(name, _)| *name == class).map(|(_, dtype)| *dtype)
}

/// Returns the element type that PyTorch calls by this name.
fn dtype(name: &str) -> Option<Dtype> {
    let names = [
        ("float64", Dtype::F64),
        ("float32", Dtype::F32),
        ("float16", Dtype::F16),
        ("bfloat16", Dtype::Bf16),
        ("float8_e4m3fn", Dtype::F8E4M3Fn),
        ("float8_e5m2", Dtype::F8E5M2),
        ("float8_e4m3fnuz", Dtype::F8E4M3Fnuz),
        ("float8_e5m2fnuz", Dtype::F8E5M2Fnuz),
        ("int64", Dtype::I64),
        ("int32", Dtype::I32),
        ("int16", Dtype::I16),
        ("int8", Dtype::I8),
        ("uint64", Dtype::U64),
        ("uint32", Dtype::U32),
        ("uint16", Dtype::U16),
        ("uint8", Dtype::U8),
        ("bool", Dtype::Bool),
    ];
    names.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::Code;

    fn parse(bytes: &[u8]) -> Result<Dump> {
        read(&Arc::new(Input::Owned(bytes.to_vec())))
    }

    const STATE: &[u8] = include_bytes!("../../../fixtures/state.pt");

    #[test]
    fn a_state_dict_of_pytorch_is_read() {
        let dump = parse(STATE).unwrap();
        let names: Vec<_> =
            dump.tensors.iter().map(|t| (t.name(), t.view().dtype(), t.view().shape())).collect();
        assert_eq!(
            names,
            [
                ("model.weight", Dtype::F32, &[2, 3][..]),
                ("model.turned", Dtype::F32, &[3, 2]),
                ("model.half", Dtype::Bf16, &[4]),
                ("model.f8", Dtype::F8E4M3Fn, &[2]),
                ("model.parameter", Dtype::F64, &[2]),
                ("steps.0", Dtype::I64, &[]),
                ("steps.1", Dtype::Bool, &[2]),
            ]
        );
        let values = |number: usize| {
            let view = dump.tensors[number].view();
            let mut values = vec![0.0; view.elements() as usize];
            gcodec::tensor::element::decode_f64s(view.dtype(), view.data(), 0, &mut values).unwrap();
            values
        };
        assert_eq!(values(0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        // The same storage, transposed.
        assert_eq!(values(1), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(values(2), [0.5, 1.5, 2.5, 3.5]);
        assert_eq!((values(3), values(4)), (vec![1.0, -2.0], vec![1.0, 2.0]));
        assert_eq!((values(5), values(6)), (vec![7.0], vec![1.0, 0.0]));
    }

    #[test]
    fn views_stay_in_their_storage() {
        let find = |offset, shape: &[u64], strides: &[u64], len| {
            Strided { element: 4, offset, shape, strides }.find(len)
        };
        assert!(matches!(find(1, &[2, 3], &[3, 1], 28), Ok(Place::Contiguous(r)) if r == (4..28)));
        assert!(matches!(find(0, &[3, 2], &[1, 3], 24), Ok(Place::Scattered)));
        assert!(find(2, &[2, 3], &[3, 1], 28).is_err());
        assert!(find(0, &[1 << 40], &[0], 4).is_err());
        assert!(find(0, &[2], &[u64::MAX], 8).is_err());
        assert!(find(u64::MAX, &[1], &[1], 8).is_err());
        assert!(find(0, &[2, 2], &[1], 8).is_err());
        assert!(matches!(find(9, &[0, 3], &[3, 1], 0), Ok(Place::Contiguous(r)) if r == (0..0)));
    }

    #[test]
    fn every_cut_and_flipped_byte_ends_well() {
        for len in (0..STATE.len()).step_by(3) {
            assert_eq!(parse(&STATE[..len]).unwrap_err().code, Code::Invalid, "{len}");
        }
        for at in 0..STATE.len() {
            let mut wrong = STATE.to_vec();
            wrong[at] ^= 0x11;
            let _ = parse(&wrong);
        }
    }
}
