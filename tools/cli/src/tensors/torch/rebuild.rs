//! Tensors from the calls that rebuild them.

use super::elements::Element;
use super::pickle::{Id, Node};
use super::view::{Unread, View};
use super::walk::Reader;
use crate::fail::{Failure, Result};
use crate::tensors::{NamedTensor, Opaque, quoted};
use gcodec::tensor::Dtype;
use std::ops::Range;

/// Why elements are not read.
const NUMPY: &str = "an array of NumPy in a pickle is not read";
const META: &str = "a tensor on the device meta has no elements";

/// Returns the name of the tensor at `path`, which is empty if the file is one tensor.
pub(super) fn named(path: &str) -> String {
    if path.is_empty() { "tensor".to_owned() } else { path.to_owned() }
}

impl Reader<'_> {
    /// Collects the tensors of a call. One that is not known may have tensors among its arguments.
    pub(super) fn call(
        &mut self,
        name: &str,
        arguments: &[Id],
        path: &mut String,
        depth: usize,
    ) -> Result<()> {
        let short = name.rsplit('.').next().unwrap_or_default();
        match (short.strip_prefix("_rebuild_").unwrap_or(name), arguments) {
            ("tensor" | "tensor_v2" | "tensor_v3", arguments) => {
                self.tensor(path, arguments);
                Ok(())
            }
            ("qtensor", arguments) => {
                self.tensor(path, arguments);
                match arguments.get(4).and_then(|id| self.pickle.items(*id)) {
                    Some([_, scales, zeros, _]) => {
                        self.inside("scales", *scales, path, depth)?;
                        self.inside("zero_points", *zeros, path, depth)
                    }
                    _ => Ok(()),
                }
            }
            (
                "parameter" | "device_tensor_from_cpu_tensor" | "device_tensor_from_numpy" | "xla_tensor",
                [data, ..],
            ) => self.walk(*data, path, depth + 1),
            ("parameter_with_state", [tensor, _, _, state]) => {
                self.walk(*tensor, path, depth + 1)?;
                self.attributes(*state, path, depth)
            }
            ("meta_tensor_no_storage", [dtype, size, ..]) => {
                let dtype = self.pickle.name(*dtype).map_or("meta", |name| Element::of_type(name).name());
                let opaque = Opaque::new(named(path), dtype, self.pickle.numbers(*size), 0, META);
                self.add_opaque(opaque);
                Ok(())
            }
            ("sparse_tensor", [layout, parts]) => self.sparse(*layout, *parts, path, depth),
            ("nested_tensor", parts) => {
                let names = ["values", "sizes", "strides", "offsets"];
                self.parts(&names, parts, path, depth)
            }
            ("njt", [parts]) => self.jagged(*parts, path, depth),
            ("wrapper_subclass", arguments) => self.wrapper(arguments, None, path, depth),
            ("from_type" | "from_type_v2", [function, _, inner, state]) => {
                let inner = self.pickle.items(*inner).unwrap_or_default();
                match self.pickle.name(*function) {
                    Some(name) if name.ends_with("_rebuild_wrapper_subclass") => {
                        self.wrapper(inner, Some(*state), path, depth)
                    }
                    Some(name) if name.ends_with("_rebuild_njt") => self.call(name, inner, path, depth),
                    Some(name) if depth < super::walk::MAX_DEPTH => {
                        self.call(name, inner, path, depth + 1)?;
                        self.attributes(*state, path, depth)
                    }
                    _ => self.positions(arguments, path, depth),
                }
            }
            ("collections.OrderedDict", [pairs]) if self.is_pairs(*pairs) => {
                for (number, pair) in self.pickle.items(*pairs).unwrap_or_default().iter().enumerate() {
                    if let Some([key, value]) = self.pickle.items(*pair) {
                        let key = self.key(*key, number);
                        self.inside(&key, *value, path, depth)?;
                    }
                }
                Ok(())
            }
            _ => self.positions(arguments, path, depth),
        }
    }

    /// Whether a value is a list of keys with their values, as Python 2 writes dicts.
    fn is_pairs(&self, id: Id) -> bool {
        let items = self.pickle.items(id).unwrap_or_default();
        items.iter().all(|pair| self.pickle.items(*pair).is_some_and(|pair| pair.len() == 2))
    }

    /// Collects the tensors of values under their positions.
    fn positions(&mut self, values: &[Id], path: &mut String, depth: usize) -> Result<()> {
        values
            .iter()
            .enumerate()
            .try_for_each(|(number, item)| self.inside(&number.to_string(), *item, path, depth))
    }

    /// Collects the tensors of the attributes of a tensor: of a dict, or of a pair of dicts.
    fn attributes(&mut self, state: Id, path: &mut String, depth: usize) -> Result<()> {
        for state in self.pickle.states(&state) {
            for (number, [key, value]) in self.pickle.pairs(*state).iter().enumerate() {
                let key = self.key(*key, number);
                self.inside(&key, *value, path, depth)?;
            }
        }
        Ok(())
    }

    /// Adds the tensor of the arguments of `_rebuild_tensor_v2(storage, offset, size, stride, ..)`. One that
    /// is not described as PyTorch does is opaque.
    fn tensor(&mut self, path: &str, arguments: &[Id]) {
        let name = named(path);
        let read =
            self.view(arguments).map(|(view, storage)| view.read(self.input, storage, &name, self.copies));
        match read {
            Ok(Ok(tensor)) => self.add(tensor),
            Ok(Err(unread)) => self.add_unread(*unread),
            Err(failure) => {
                let opaque = Opaque::new(name, "unknown", None, 0, failure.message.clone());
                self.add_unread(Unread { opaque, fault: Some(failure) });
            }
        }
    }

    /// Returns the view that the arguments describe, and its storage. The third version has the element type
    /// behind two more arguments, and then what else the tensor has.
    fn view(&self, arguments: &[Id]) -> Result<(View, Range<u64>)> {
        let pickle = self.pickle;
        let [storage, offset, size, stride, rest @ ..] = arguments else {
            return Err(Failure::invalid("too few arguments"));
        };
        let (element, range) = self.storage(*storage)?;
        let typed = rest.get(2).and_then(|id| pickle.name(*id)).map(Element::of_type);
        let element = match element {
            Element::Untyped => typed.ok_or_else(|| Failure::invalid("it has no element type"))?,
            element => element,
        };
        let numbers =
            |id: Id| pickle.numbers(id).ok_or_else(|| Failure::invalid("its shape is no tuple of numbers"));
        let offset = pickle.number(*offset).ok_or_else(|| Failure::invalid("it has no offset"))?;
        let is_set = |bit: &str| {
            let set = rest.iter().filter_map(|id| pickle.value(*id, bit));
            set.into_iter().any(|id| pickle.node(id) == &Node::Bool(true))
        };
        let (shape, strides) = (numbers(*size)?, numbers(*stride)?);
        let (is_negative, is_conjugate) = (is_set("neg"), is_set("conj"));
        Ok((View { element, offset, shape, strides, is_negative, is_conjugate }, range))
    }

    /// Finds the bytes of `('storage', type, key, location, elements)`.
    pub(super) fn storage(&self, id: Id) -> Result<(Element, Range<u64>)> {
        let wrong = || Failure::invalid("its storage is not described as torch.save does");
        let Node::Persistent(id) = self.pickle.node(id) else { return Err(wrong()) };
        let Some([_, class, key, _, _, view @ ..]) = self.pickle.items(*id) else { return Err(wrong()) };
        let class = self.pickle.name(*class).ok_or_else(wrong)?;
        let key = self.pickle.text(*key).ok_or_else(wrong)?;
        let (element, mut range) = (Element::of_storage(class), self.storages.find(key, self.input.len())?);
        // Before PyTorch 0.4, a storage could be a part of another: key, offset and elements.
        if let Some([_, offset, elements]) = view.first().and_then(|id| self.pickle.items(*id)) {
            let number = |id: &Id| self.pickle.number(*id)?.checked_mul(element.width());
            let part = number(offset).zip(number(elements));
            let part = part.and_then(|(offset, len)| {
                let start = range.start.checked_add(offset)?;
                Some(start..start.checked_add(len)?)
            });
            range = part.filter(|part| part.end <= range.end).ok_or_else(wrong)?;
        }
        Ok((element, range))
    }

    /// Adds a storage as a tensor of one dimension.
    pub(super) fn whole(&mut self, id: Id, path: &str) {
        let name = named(path);
        match self.storage(id) {
            Ok((element, range)) => {
                let element = if element == Element::Untyped { Element::Known(Dtype::U8) } else { element };
                let shape = vec![(range.end - range.start) / element.width()];
                let view = View {
                    element,
                    offset: 0,
                    shape,
                    strides: vec![1],
                    is_negative: false,
                    is_conjugate: false,
                };
                match view.read(self.input, range, &name, self.copies) {
                    Ok(tensor) => self.add(tensor),
                    Err(unread) => self.add_unread(*unread),
                }
            }
            Err(failure) => {
                let opaque = Opaque::new(name, "storage", None, 0, failure.message.clone());
                self.add_unread(Unread { opaque, fault: Some(failure) });
            }
        }
    }

    /// Collects the parts of a sparse tensor; its layout and shape go to the metadata.
    fn sparse(&mut self, layout: Id, parts: Id, path: &mut String, depth: usize) -> Result<()> {
        let layout = self.pickle.arguments(layout).and_then(|of| of.first().copied()).unwrap_or(layout);
        let layout = self.key(layout, 0);
        let names = match layout.as_str() {
            "torch.sparse_coo" => &["indices", "values"][..],
            "torch.sparse_csr" | "torch.sparse_bsr" => &["crow_indices", "col_indices", "values"],
            "torch.sparse_csc" | "torch.sparse_bsc" => &["ccol_indices", "row_indices", "values"],
            _ => &[],
        };
        let Some(parts) = self.pickle.items(parts) else { return self.walk(parts, path, depth + 1) };
        self.parts(names, &parts[..names.len().min(parts.len())], path, depth)?;
        if let Some(shape) = parts.get(names.len()).and_then(|size| self.pickle.numbers(*size)) {
            let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
            let key = format!("{}.layout", named(path));
            self.dump.metadata.insert(key, format!("{layout} {}", shape.join("x")));
        }
        Ok(())
    }

    /// Collects tensors of which another consists, under the names of its parts.
    pub(super) fn parts(&mut self, names: &[&str], parts: &[Id], path: &str, depth: usize) -> Result<()> {
        let mut path = named(path);
        for (number, part) in parts.iter().enumerate() {
            let number = number.to_string();
            let name = names.get(number.parse::<usize>().unwrap_or_default()).copied().unwrap_or(&number);
            self.inside(name, *part, &mut path, depth)?;
        }
        Ok(())
    }

    /// Collects the parts of a nested tensor with the layout jagged.
    fn jagged(&mut self, parts: Id, path: &str, depth: usize) -> Result<()> {
        for name in ["values", "offsets", "lengths"] {
            if let Some(part) = self.pickle.value(parts, name) {
                self.parts(&[name], &[part], path, depth)?;
            }
        }
        Ok(())
    }

    /// Describes an array of NumPy. Returns whether the object is one.
    pub(super) fn array(&mut self, object: Id, contents: Id, path: &str) -> bool {
        let pickle = self.pickle;
        let class = pickle.class(object).filter(|name| name.ends_with("multiarray._reconstruct"));
        let Some([_, shape, _, _, data]) = class.and_then(|_| pickle.items(contents)) else { return false };
        let Some(shape) = pickle.numbers(*shape) else { return false };
        let bytes = match pickle.node(*data) {
            Node::Bytes(len) => *len,
            // Before the protocol 3, bytes were encoded as text.
            Node::Call(..) => match pickle.arguments(*data).and_then(|of| pickle.text(*of.first()?)) {
                Some(text) => text.chars().count(),
                None => 0,
            },
            _ => 0,
        };
        self.add_opaque(Opaque::new(named(path), "numpy", Some(shape), bytes as u64, NUMPY));
        true
    }

    fn add(&mut self, mut tensor: NamedTensor) {
        tensor.name = self.unique(tensor.name);
        self.dump.tensors.push(tensor);
    }

    fn add_unread(&mut self, unread: Unread) {
        self.dump.faults.extend(unread.fault.map(|fault| fault.about(quoted(&unread.opaque.name))));
        self.add_opaque(unread.opaque);
    }

    pub(super) fn add_opaque(&mut self, mut opaque: Opaque) {
        opaque.name = self.unique(opaque.name);
        self.dump.opaque.push(opaque);
    }

    /// Returns the name, with a number if it is taken: nested dicts may spell one name in two ways.
    fn unique(&mut self, name: String) -> String {
        let mut own = name.clone();
        while self.names.contains_key(&own) {
            let count = self.names.entry(name.clone()).or_default();
            *count += 1;
            own = format!("{name}#{}", *count + 1);
        }
        self.names.insert(own.clone(), 0);
        own
    }
}
