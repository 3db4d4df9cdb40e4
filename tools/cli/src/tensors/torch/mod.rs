//! `.pt`, `.pth`, `.bin`: state dicts of `torch.save`, without executing their pickle.
//!
//! ```text
//! zip archive: NAME/data.pkl (a pickle of tensors and containers) | NAME/data/KEY (the bytes of a storage)
//!            | NAME/byteorder ("little" or "big"; little if missing)
//! ```
//! Tensors are found in any container and object. A sparse tensor becomes its parts, `NAME.indices` and
//! `NAME.values`. Tensors without elements here (complex, quantised, on the device meta, of NumPy) are named.
//!
//! The archive's entries are stored, so tensors borrow from the mapped file if their elements are contiguous.

pub(crate) mod dcp;
mod elements;
mod pickle;
mod strided;
mod values;

use super::archive::{self, Archive};
use super::{Data, Dump, NamedTensor, Opaque, Plain, check_unique, quoted};
use crate::fail::{Failure, Result};
use crate::input::Input;
use elements::Element;
use gcodec::tensor::Dtype;
use pickle::{Id, Node, Pickle};
use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use strided::{Place, Strided};
use zip::CompressionMethod;

/// Most bytes of the pickle: of names, shapes and offsets.
const MAX_PICKLE: u64 = 256 << 20;
/// Why elements are not read.
const NOT_READ: &str = "elements of this type are not read";
const NUMPY: &str = "an array of NumPy in a pickle is not read";
/// Most containers around a tensor.
const MAX_DEPTH: usize = 256;

/// Returns the prefix of the archive's names if it has a `data.pkl`.
pub(crate) fn prefix(archive: &Archive<'_>) -> Option<String> {
    let prefixes = archive.file_names().flatten().filter_map(|name| {
        let prefix = name.strip_suffix("data.pkl")?;
        (prefix.is_empty() || prefix.ends_with('/')).then(|| prefix.to_owned())
    });
    prefixes.min_by_key(|prefix| prefix.matches('/').count())
}

/// Reads all tensors, in the order of the pickle.
pub(crate) fn read(input: &Arc<Input>) -> Result<Dump> {
    read_range(input, 0..input.len())
}

/// Reads all tensors of the archive that is this part of the input.
fn read_range(input: &Arc<Input>, range: Range<usize>) -> Result<Dump> {
    let start = range.start;
    let mut archive = archive::open(&input[range])?;
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
        start,
        archive,
        prefix,
        pickle: &pickle,
        storages: HashMap::new(),
        dump: Dump::default(),
        left: 4 * pickle.len() + 64,
    };
    reader.walk(pickle.root(), &mut String::new(), 0)?;
    let dump = reader.dump;
    if dump.tensors.is_empty() && dump.opaque.is_empty() {
        return Err(Failure::without_tensors("a PyTorch file"));
    }
    check_unique(dump.names(), Failure::invalid)?;
    Ok(dump)
}

/// Returns the bytes of an archive's entry.
fn entry(archive: &mut Archive<'_>, name: &str, max_bytes: u64) -> Result<Vec<u8>> {
    let file = archive.by_name(name).map_err(|e| Failure::invalid(e).about(name))?;
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|e| Failure::invalid(e).about(name))?;
    match bytes.len() as u64 > max_bytes {
        true => Err(Failure::limit(format_args!("{name}: more than {max_bytes} bytes"))),
        false => Ok(bytes),
    }
}

/// Returns the name of the tensor at `path`, which is empty if the file is one tensor.
fn named(path: &str) -> String {
    if path.is_empty() { "tensor".to_owned() } else { path.to_owned() }
}

/// The bytes of a storage in the file.
#[derive(Debug, Clone)]
struct Storage {
    element: Element,
    range: Range<usize>,
}

struct Reader<'a> {
    input: &'a Arc<Input>,
    /// Where the archive begins in the input.
    start: usize,
    archive: Archive<'a>,
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
                for (number, pair) in items.as_chunks::<2>().0.iter().enumerate() {
                    let key = self.key(pair[0], number);
                    self.inside(&key, pair[1], path, depth)?;
                }
            }
            Node::List(items) | Node::Tuple(items) => {
                for (number, item) in items.iter().enumerate() {
                    self.inside(&number.to_string(), *item, path, depth)?;
                }
            }
            Node::Call(callable, arguments) => {
                if let (Node::Global(name), Node::Tuple(arguments)) =
                    (pickle.node(*callable), pickle.node(*arguments))
                {
                    self.call(name, arguments, path, depth)?;
                }
            }
            Node::Filled(object, contents) => match self.array(*object, *contents, path) {
                Some(array) => self.dump.opaque.push(array),
                None => {
                    self.walk(*object, path, depth + 1)?;
                    self.walk(*contents, path, depth + 1)?;
                }
            },
            Node::Persistent(_) => {
                let storage = self.storage(id).map_err(|e| e.about(quoted(path)))?;
                let name = named(path);
                match storage.element {
                    Element::Other(dtype, width) => {
                        let bytes = storage.range.len() as u64;
                        let data = Data::Shared { input: Arc::clone(self.input), range: storage.range };
                        let opaque = Opaque::new(name, dtype, Some(vec![bytes / width]), bytes, NOT_READ);
                        self.dump.opaque.push(opaque.with_data(data));
                    }
                    Element::Known(dtype) => self.whole(name, dtype, storage.range)?,
                    Element::Untyped => self.whole(name, Dtype::U8, storage.range)?,
                }
            }
            Node::Int(number) => _ = self.dump.plain.insert(path.clone(), Plain::Int(*number)),
            Node::Text(text) => _ = self.dump.plain.insert(path.clone(), Plain::Text(text.clone())),
            Node::None | Node::Bool(_) | Node::Float(_) | Node::Bytes(_) | Node::Global(_) => {}
        }
        Ok(())
    }

    /// Names an entry of a dict: its key, or its number if the key is no plain value.
    fn key(&self, id: Id, number: usize) -> String {
        match self.pickle.node(id) {
            Node::Text(key) if key.is_empty() => number.to_string(),
            Node::Text(key) => key.clone(),
            Node::Int(key) => key.to_string(),
            Node::Float(key) => key.to_string(),
            Node::Bool(true) => "True".to_owned(),
            Node::Bool(false) => "False".to_owned(),
            Node::None => "None".to_owned(),
            Node::Tuple(items) => {
                let plain = |id: &Id| match self.pickle.node(*id) {
                    Node::Text(key) => Some(key.clone()),
                    Node::Int(key) => Some(key.to_string()),
                    _ => None,
                };
                let parts: Option<Vec<String>> = items.iter().map(plain).collect();
                parts.map_or_else(|| format!("entry{number}"), |parts| parts.join("."))
            }
            _ => format!("entry{number}"),
        }
    }

    /// Collects the tensors of a call. One that is not known may have tensors among its arguments.
    fn call(&mut self, name: &str, arguments: &[Id], path: &mut String, depth: usize) -> Result<()> {
        let about = |e: Failure, path: &str| e.about(quoted(path));
        match (name.strip_prefix("torch._utils._rebuild_").unwrap_or(name), arguments) {
            ("tensor_v2" | "tensor_v3" | "qtensor", arguments) => {
                self.tensor(&named(path), arguments).map_err(|e| about(e, path))
            }
            ("parameter" | "parameter_with_state", [tensor, ..]) => self.walk(*tensor, path, depth + 1),
            ("meta_tensor_no_storage", [_, size, ..]) => {
                let shape = self.numbers(*size).map_err(|e| about(e, path))?;
                let reason = "a tensor on the device meta has no elements";
                self.dump.opaque.push(Opaque::new(named(path), "meta", Some(shape), 0, reason));
                Ok(())
            }
            ("sparse_tensor", [layout, parts]) => self.sparse(*layout, *parts, path, depth),
            ("torch._tensor._rebuild_from_type_v2", [function, _, inner, state]) => {
                match (self.pickle.node(*function), self.pickle.node(*inner)) {
                    (Node::Global(name), Node::Tuple(inner)) if depth < MAX_DEPTH => {
                        self.call(name, inner, path, depth + 1)?;
                    }
                    _ => self.walk(*inner, path, depth + 1)?,
                }
                self.walk(*state, path, depth + 1)
            }
            _ => arguments
                .iter()
                .enumerate()
                .try_for_each(|(number, item)| self.inside(&number.to_string(), *item, path, depth)),
        }
    }

    /// Collects the parts of a sparse tensor; its layout and shape go to the metadata.
    fn sparse(&mut self, layout: Id, parts: Id, path: &mut String, depth: usize) -> Result<()> {
        let layout = match self.pickle.node(layout) {
            Node::Call(_, arguments) => match self.pickle.node(*arguments) {
                Node::Tuple(arguments) => arguments.first().copied().unwrap_or(layout),
                _ => layout,
            },
            _ => layout,
        };
        let layout = self.key(layout, 0);
        let names = match layout.as_str() {
            "torch.sparse_coo" => &["indices", "values"][..],
            "torch.sparse_csr" | "torch.sparse_bsr" => &["crow_indices", "col_indices", "values"],
            "torch.sparse_csc" | "torch.sparse_bsc" => &["ccol_indices", "row_indices", "values"],
            _ => &[],
        };
        let Node::Tuple(parts) = self.pickle.node(parts) else { return self.walk(parts, path, depth + 1) };
        *path = named(path);
        for (number, part) in parts.iter().enumerate() {
            match names.get(number) {
                Some(name) => self.inside(name, *part, path, depth)?,
                None => self.inside(&number.to_string(), *part, path, depth)?,
            }
        }
        if let Some(Ok(shape)) = parts.get(names.len()).map(|size| self.numbers(*size)) {
            let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
            self.dump.metadata.insert(format!("{path}.layout"), format!("{layout} {}", shape.join("x")));
        }
        Ok(())
    }

    /// Describes an array of NumPy, if the object is one.
    fn array(&self, object: Id, contents: Id, path: &str) -> Option<Opaque> {
        let Node::Call(callable, _) = self.pickle.node(object) else { return None };
        let Node::Global(name) = self.pickle.node(*callable) else { return None };
        let Node::Tuple(state) = self.pickle.node(contents) else { return None };
        let [_, shape, _, _, data] = &state[..] else { return None };
        let shape = self.numbers(*shape).ok().filter(|_| name.ends_with("multiarray._reconstruct"))?;
        let bytes = match self.pickle.node(*data) {
            Node::Bytes(len) => *len,
            // Before the protocol 3, bytes were encoded as text.
            Node::Call(_, arguments) => match self.pickle.node(*arguments) {
                Node::Tuple(arguments) => match self.pickle.node(*arguments.first()?) {
                    Node::Text(text) => text.chars().count(),
                    _ => 0,
                },
                _ => 0,
            },
            _ => 0,
        };
        Some(Opaque::new(named(path), "numpy", Some(shape), bytes as u64, NUMPY))
    }

    /// Adds a storage as a tensor of one dimension.
    fn whole(&mut self, name: String, dtype: Dtype, range: Range<usize>) -> Result<()> {
        let shape = vec![range.len() as u64 * 8 / u64::from(dtype.bits())];
        let data = Data::Shared { input: Arc::clone(self.input), range };
        self.dump.tensors.push(NamedTensor::from_data(name, dtype, shape, data)?);
        Ok(())
    }

    /// Collects the tensors of a value under a key. A module keeps its own in dicts whose names state dicts
    /// leave out.
    fn inside(&mut self, key: &str, id: Id, path: &mut String, depth: usize) -> Result<()> {
        if matches!(key, "_parameters" | "_buffers" | "_modules") {
            return self.walk(id, path, depth + 1);
        }
        let len = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
        self.walk(id, path, depth + 1)?;
        path.truncate(len);
        Ok(())
    }

    /// Adds a tensor of the arguments of `_rebuild_tensor_v2(storage, offset, size, stride, ..)`; the third
    /// version has the element type behind two more.
    fn tensor(&mut self, name: &str, arguments: &[Id]) -> Result<()> {
        let [storage, offset, size, stride, rest @ ..] = arguments else {
            return Err(Failure::invalid("too few arguments"));
        };
        let storage = self.storage(*storage)?;
        let typed = rest.get(2).and_then(|id| match self.pickle.node(*id) {
            Node::Global(name) => Some(Element::of_type(name)),
            _ => None,
        });
        let element = match storage.element {
            Element::Untyped => typed.ok_or_else(|| Failure::invalid("it has no element type"))?,
            element => element,
        };
        let Node::Int(offset) = self.pickle.node(*offset) else { return Err(Failure::invalid("no offset")) };
        let (shape, strides) = (self.numbers(*size)?, self.numbers(*stride)?);
        let offset = u64::try_from(*offset).map_err(|_| Failure::invalid("a negative offset"))?;
        let dtype = match element {
            Element::Known(dtype) => dtype,
            Element::Other(dtype, width) => {
                let elements = gcodec::internal::elements(&shape).unwrap_or(0);
                let bytes = elements.saturating_mul(width).min(storage.range.len() as u64);
                self.dump.opaque.push(Opaque::new(name.to_owned(), dtype, Some(shape), bytes, NOT_READ));
                return Ok(());
            }
            Element::Untyped => return Err(Failure::invalid("it has no element type")),
        };
        let view = Strided { element: dtype.bits() as usize / 8, offset, shape: &shape, strides: &strides };
        let data = match view.find(storage.range.len())? {
            Place::Contiguous(range) => {
                let start = storage.range.start;
                Data::Shared { input: Arc::clone(self.input), range: start + range.start..start + range.end }
            }
            Place::Scattered => Data::Owned(view.gather(&self.input[storage.range])),
        };
        self.dump.tensors.push(NamedTensor::from_data(name.to_owned(), dtype, shape, data)?);
        Ok(())
    }

    /// Returns the dimensions in a tuple, or in a `torch.Size` of one.
    fn numbers(&self, id: Id) -> Result<Vec<u64>> {
        self.pickle.numbers(id).ok_or_else(|| Failure::invalid("its shape is no tuple of numbers"))
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
        let element = Element::of_storage(class);
        if let Some(range) = self.storages.get(key) {
            return Ok(Storage { element, range: range.clone() });
        }
        let name = format!("{}data/{key}", self.prefix);
        let file = self.archive.by_name(&name).map_err(|e| Failure::invalid(e).about(&name))?;
        if file.compression() != CompressionMethod::Stored {
            return Err(Failure::invalid(format_args!("{name} is compressed, which torch.save never does")));
        }
        let start = file.data_start().ok_or_else(wrong)?;
        let range = usize::try_from(start).ok().zip(usize::try_from(file.size()).ok());
        let range = range.and_then(|(start, len)| {
            let start = self.start.checked_add(start)?;
            Some(start..start.checked_add(len)?)
        });
        let range = range.filter(|r| r.end <= self.input.len()).ok_or_else(wrong)?;
        drop(file);
        self.storages.insert(key.clone(), range.clone());
        Ok(Storage { element, range })
    }
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
            gcodec::internal::element::decode_f64s(view.dtype(), view.data(), 0, &mut values).unwrap();
            values
        };
        assert_eq!(values(0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        // The same storage, transposed.
        assert_eq!(values(1), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(values(2), [0.5, 1.5, 2.5, 3.5]);
        assert_eq!((values(3), values(4)), (vec![1.0, -2.0], vec![1.0, 2.0]));
        assert_eq!((values(5), values(6)), (vec![7.0], vec![1.0, 0.0]));
    }

    const ODD: &[u8] = include_bytes!("../../../fixtures/odd.pt");

    #[test]
    fn nothing_is_left_out_silently() {
        let dump = parse(ODD).unwrap();
        let read: Vec<_> =
            dump.tensors.iter().map(|t| (t.name(), t.view().dtype(), t.shape.clone())).collect();
        let f32s = |name, shape: &[u64]| (name, Dtype::F32, shape.to_vec());
        let i64s = |name, shape: &[u64]| (name, Dtype::I64, shape.to_vec());
        assert_eq!(
            read,
            [
                f32s("dense", &[2, 3]),
                i64s("sparse.indices", &[2, 3]),
                f32s("sparse.values", &[3]),
                i64s("csr.crow_indices", &[3]),
                i64s("csr.col_indices", &[2]),
                f32s("csr.values", &[2]),
                ("storage", Dtype::U8, vec![12]),
                f32s("nested.0", &[5]),
                i64s("nested.1", &[2, 1]),
                i64s("nested.2", &[2, 1]),
                i64s("nested.3", &[2]),
                f32s("deque.0", &[1]),
                f32s("module.0.weight", &[3, 2]),
                f32s("module.0.bias", &[3]),
                f32s("module.1.weight", &[3]),
                f32s("module.1.bias", &[3]),
                f32s("module.1.running_mean", &[3]),
                f32s("module.1.running_var", &[3]),
                i64s("module.1.num_batches_tracked", &[]),
                f32s("group.0", &[1]),
                f32s("1.5", &[1]),
                f32s("None", &[0, 3]),
            ]
        );
        let named: Vec<_> = dump
            .opaque
            .iter()
            .map(|t| (t.name.as_str(), &*t.dtype, t.shape.as_deref().unwrap(), t.bytes))
            .collect();
        assert_eq!(
            named,
            [
                ("quantised", "qint8", &[3][..], 3),
                ("complex", "complex64", &[2], 16),
                ("meta", "meta", &[3, 4], 0),
                ("numpy", "numpy", &[4], 16),
            ]
        );
        assert_eq!(dump.metadata["sparse.layout"], "torch.sparse_coo 2x3");
        assert_eq!(dump.metadata["csr.layout"], "torch.sparse_csr 2x2");
    }

    #[test]
    fn every_cut_and_flipped_byte_ends_well() {
        for file in [STATE, ODD] {
            for len in (0..file.len()).step_by(3) {
                assert_eq!(parse(&file[..len]).unwrap_err().code, Code::Invalid, "{len}");
            }
            for at in 0..file.len() {
                let mut wrong = file.to_vec();
                wrong[at] ^= 0x11;
                let _ = parse(&wrong);
            }
        }
    }
}
