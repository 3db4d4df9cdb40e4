//! The file `.metadata` of a distributed checkpoint: a pickle of which tensors there are, of which chunks
//! each consists, and where each chunk lies.

use super::super::elements::Element;
use super::super::pickle::{Id, Node, Pickle};
use crate::fail::{Failure, Result};
use crate::tensors::quoted;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Component, Path};

/// Tensors and other entries of a checkpoint, and the places of their pieces.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    /// In the order of the pickle.
    pub(super) tensors: Vec<Tensor>,
    /// Entries that are no tensors: their names, and the numbers of their places.
    pub(super) others: Vec<(String, Option<usize>)>,
    /// All stored pieces, also of entries that are no tensors.
    pub(super) stored: Vec<Stored>,
}

/// A tensor and its chunks.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) element: Element,
    pub(super) shape: Vec<u64>,
    pub(super) chunks: Vec<Chunk>,
}

/// A box of a tensor's elements.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) offsets: Vec<u64>,
    pub(super) sizes: Vec<u64>,
    /// Number of its place in [`Metadata::stored`]; `None` if no place is given.
    pub(super) stored: Option<usize>,
}

/// A piece of a file.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) file: String,
    pub(super) part: Part,
}

/// The content of a piece.
#[derive(Debug)]
pub(super) enum Part {
    /// Bytes, and the names of the compressions that were applied to them, in order.
    Bytes(Range<u64>, Vec<String>),
    /// A tensor of an update of a gcodec stream; `as_bytes` if the stream has the bytes of its elements.
    OfStream { update: usize, name: String, as_bytes: bool },
}

impl Metadata {
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let pickle = Pickle::read(bytes)?;
        let found = Reader(&pickle).metadata(pickle.root());
        pickle.check()?;
        found.ok_or_else(|| {
            Failure::invalid("not the .metadata of a distributed checkpoint as PyTorch writes it")
        })?
    }
}

struct Reader<'a>(&'a Pickle);

impl Reader<'_> {
    /// Returns `None` if the root is another kind of object.
    fn metadata(&self, root: Id) -> Option<Result<Metadata>> {
        let pickle = self.0;
        pickle.class(root).filter(|class| class.ends_with(".Metadata"))?;
        let entries = pickle.value(root, "state_dict_metadata")?;
        let storage = pickle.value(root, "storage_data")?;
        Some(self.places(storage).and_then(|(stored, places)| self.tensors(entries, stored, &places)))
    }

    fn tensors(
        &self,
        entries: Id,
        stored: Vec<Stored>,
        places: &HashMap<Place<'_>, usize>,
    ) -> Result<Metadata> {
        let pickle = self.0;
        let mut found = Metadata { stored, ..Metadata::default() };
        let mut names = HashSet::new();
        for [key, entry] in pickle.pairs(entries) {
            let name = pickle.text(*key).ok_or_else(|| Failure::invalid("an entry without a name"))?;
            // Before their chunks are read, each time.
            if !names.insert(name) {
                return Err(Failure::invalid("it has two entries").about(quoted(name)));
            }
            if pickle.class(*entry).is_some_and(|class| class.ends_with(".BytesStorageMetadata")) {
                found.others.push((name.to_owned(), places.get(&(name, None)).copied()));
                continue;
            }
            let tensor = self.tensor(name, *entry, places);
            found.tensors.push(tensor.ok_or_else(|| {
                Failure::invalid("its size, type or chunks are not described as PyTorch does")
                    .about(quoted(name))
            })?);
        }
        Ok(found)
    }

    fn tensor(&self, name: &str, entry: Id, places: &HashMap<Place<'_>, usize>) -> Option<Tensor> {
        let pickle = self.0;
        let shape = pickle.numbers(pickle.value(entry, "size")?)?;
        // The state of the properties is a tuple, whose first item is the element type.
        let properties = pickle.state(pickle.value(entry, "properties")?)?;
        let dtype = pickle.name(*pickle.items(properties)?.first()?)?;
        let chunks = pickle.items(pickle.value(entry, "chunks")?)?;
        let alone = chunks.len() == 1;
        let chunk = |id: &Id| {
            let offsets = pickle.numbers(pickle.value(*id, "offsets")?)?;
            let sizes = pickle.numbers(pickle.value(*id, "sizes")?)?;
            let place = places.get(&(name, Some(offsets.clone())));
            let stored = place.or_else(|| places.get(&(name, None)).filter(|_| alone)).copied();
            Some(Chunk { offsets, sizes, stored })
        };
        let chunks = chunks.iter().map(chunk).collect::<Option<Vec<_>>>()?;
        Some(Tensor { name: name.to_owned(), element: Element::of_type(dtype), shape, chunks })
    }

    /// Returns the stored pieces, and the number of each by the chunk that it is.
    fn places(&self, storage: Id) -> Result<(Vec<Stored>, HashMap<Place<'_>, usize>)> {
        let pickle = self.0;
        let (mut stored, mut places) = (Vec::new(), HashMap::new());
        for [key, value] in pickle.pairs(storage) {
            let place = self.place(*key).zip(self.stored(*value));
            let ((name, offsets), piece) =
                place.ok_or_else(|| Failure::invalid("a place that is not described as PyTorch does"))?;
            check(&piece.file)?;
            if places.insert((name, offsets), stored.len()).is_some() {
                return Err(Failure::invalid("a chunk has two places").about(quoted(name)));
            }
            stored.push(piece);
        }
        Ok((stored, places))
    }

    fn place(&self, key: Id) -> Option<Place<'_>> {
        let pickle = self.0;
        let name = pickle.text(pickle.value(key, "fqn")?)?;
        match pickle.value(key, "offset") {
            Some(id) if pickle.node(id) != &Node::None => Some((name, Some(pickle.numbers(id)?))),
            _ => Some((name, None)),
        }
    }

    fn stored(&self, value: Id) -> Option<Stored> {
        let pickle = self.0;
        let file = pickle.text(pickle.value(value, "relative_path")?)?.to_owned();
        let part = match pickle.value(value, "update") {
            Some(update) => Part::OfStream {
                update: usize::try_from(pickle.number(update)?).ok()?,
                name: pickle.text(pickle.value(value, "name")?)?.to_owned(),
                as_bytes: pickle
                    .value(value, "as_bytes")
                    .is_some_and(|id| pickle.node(id) == &Node::Bool(true)),
            },
            None => self.bytes(value)?,
        };
        Some(Stored { file, part })
    }

    fn bytes(&self, value: Id) -> Option<Part> {
        let pickle = self.0;
        let offset = pickle.number(pickle.value(value, "offset")?)?;
        let length = pickle.number(pickle.value(value, "length")?)?;
        let transforms = match pickle.value(value, "transform_descriptors") {
            Some(id) => pickle.items(id).unwrap_or_default(),
            None => &[],
        };
        let transforms = transforms.iter().filter_map(|id| Some(pickle.text(*id)?.to_owned())).collect();
        Some(Part::Bytes(offset..offset.checked_add(length)?, transforms))
    }
}

/// Name and offsets of a chunk.
type Place<'a> = (&'a str, Option<Vec<u64>>);

/// Refuses a path that leads to other folders: it comes from outside.
fn check(file: &str) -> Result<()> {
    let mut parts = Path::new(file).components().peekable();
    let inside = parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)));
    match inside {
        true => Ok(()),
        false => Err(Failure::invalid(format_args!("{file:?} is no file of the checkpoint's folder"))),
    }
}
