//! The manifest: the list of tensors (spec, section 4.1).

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use crate::bits::{Cursor, put_varint};
use crate::block::space::{ShapeTable, Shapes};
use crate::block::{IndexSpace, Lens, Scope};
use crate::error::{Error, FormatErrorKind, InputErrorKind, Result};
use crate::limits::{Limits, check, in_memory};
use crate::tensor::{Dtype, elements};

/// Identifier of a manifest: the BLAKE3 hash of its frame's body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ManifestId(pub [u8; 32]);
crate::bits::debug_as_hex!(ManifestId);

/// Description of a tensor that updates refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Name of 1 to 4096 bytes, unique in the manifest.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, at most 32.
    pub shape: Vec<u64>,
    /// Rows and columns of a matrix view of the tensor. Stored.
    pub matrix: Option<(u64, u64)>,
    /// Place of this tensor in a larger one. Stored.
    pub shard: Option<Shard>,
}

impl TensorInfo {
    /// Describes a tensor without matrix view and shard.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u64>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into(), matrix: None, shard: None }
    }

    /// Returns the number of elements; 0 if the shape exceeds 64 bits, which no [`Manifest`] accepts.
    pub fn elements(&self) -> u64 {
        elements(&self.shape).unwrap_or(0)
    }

    /// Returns the bytes of the elements.
    pub fn bytes(&self) -> u64 {
        self.dtype.bytes_for(self.elements()).unwrap_or(0)
    }

    /// Returns the row lengths of matrix views of the elements, longest first.
    fn row_lens(&self) -> Vec<u64> {
        let suffixes = (1..self.shape.len()).map(|from| elements(&self.shape[from..]).unwrap_or(0));
        let mut lens: Vec<u64> =
            self.matrix.map(|(_, cols)| cols).into_iter().chain(suffixes).filter(|&l| l > 1).collect();
        lens.dedup();
        lens
    }
}

/// Place of a tensor in a larger one, by dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Dimensions of the larger tensor.
    pub global_shape: Vec<u64>,
    /// First index in each dimension.
    pub offsets: Vec<u64>,
}

/// The ordered tensors that updates refer to by number, and the hash that identifies them.
#[derive(Debug, Clone)]
pub struct Manifest {
    tensors: Vec<TensorInfo>,
    body: Vec<u8>,
    id: ManifestId,
    spans: Spans,
    /// Numbers of the tensors in the order of their names, built by the first look-up.
    by_name: OnceLock<Vec<usize>>,
}

/// Precomputed properties of tensor ranges, so that a block over many tensors takes no time for each of them.
#[derive(Debug, Clone)]
struct Spans {
    /// Number of elements of each tensor.
    lens: Arc<[u64]>,
    /// Number of elements of all tensors before each one, and of all tensors.
    before: Vec<u64>,
    /// Ends of runs of tensors with one element type, ascending.
    dtype_ends: Vec<usize>,
    shapes: Arc<ShapeTable>,
}

impl Spans {
    fn new(tensors: &[TensorInfo]) -> Self {
        let lens: Arc<[u64]> = tensors.iter().map(TensorInfo::elements).collect();
        let sums = lens.iter().scan(0, |sum, len| {
            *sum += len;
            Some(*sum)
        });
        let before = std::iter::once(0).chain(sums).collect();
        let changes = tensors.windows(2).zip(1..).filter(|(pair, _)| pair[0].dtype != pair[1].dtype);
        let dtype_ends = changes.map(|(_, end)| end).chain([tensors.len()]).collect();
        let mut shapes = ShapeTable::default();
        tensors.iter().for_each(|t| shapes.push(&t.shape, t.matrix));
        Self { lens, before, dtype_ends, shapes: shapes.into() }
    }

    fn lens(&self, range: std::ops::Range<usize>) -> Lens {
        let total = self.before[range.end] - self.before[range.start];
        Lens::shared(&self.lens, range, total)
    }

    /// Whether the tensors from `first` to `last` have one element type.
    fn have_one_dtype(&self, first: usize, last: usize) -> bool {
        let run = self.dtype_ends.partition_point(|&end| end <= first);
        self.dtype_ends.get(run).is_some_and(|&end| last < end)
    }
}

/// Manifests are equal if their bodies are.
impl PartialEq for Manifest {
    fn eq(&self, other: &Self) -> bool {
        self.body == other.body
    }
}

impl Eq for Manifest {}

const MAX_NAME: u64 = 4096;
const MAX_RANK: u64 = 32;

impl Manifest {
    /// Makes a manifest of `tensors` in this order.
    ///
    /// # Errors
    /// [`Error::Input`] with the tensor's number if a name repeats, is empty or too long, or if a shape,
    /// matrix view or shard is invalid.
    pub fn new(tensors: Vec<TensorInfo>) -> Result<Self> {
        let body = write(&tensors);
        let limits = Limits::default().with_max_tensors(u64::MAX);
        match Self::read(&body, 0, &limits) {
            Ok(manifest) if manifest.tensors == tensors => Ok(manifest),
            Err(Error::Format(e)) => {
                let error = Error::input(match e.kind {
                    FormatErrorKind::DuplicateName => InputErrorKind::DuplicateName,
                    FormatErrorKind::OutOfRange { field, .. } => InputErrorKind::BadTensor { what: field },
                    _ => InputErrorKind::BadTensor { what: "name, shape, matrix view or shard" },
                });
                Err(e.at.tensor.into_iter().fold(error, Error::in_tensor))
            }
            Err(e) => Err(e),
            // A shard of another rank than its tensor reads back as another tensor.
            Ok(_) => Err(Error::input(InputErrorKind::BadTensor { what: "shard" })),
        }
    }

    /// Returns the tensors.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the manifest's identifier.
    pub fn id(&self) -> ManifestId {
        self.id
    }

    /// Returns the number of the tensor called `name`.
    pub fn find(&self, name: &str) -> Option<u64> {
        let by_name = self.by_name.get_or_init(|| {
            let mut numbers: Vec<usize> = (0..self.tensors.len()).collect();
            numbers.sort_unstable_by_key(|&i| &self.tensors[i].name);
            numbers
        });
        let found = by_name.binary_search_by_key(&name, |&i| &self.tensors[i].name);
        found.ok().map(|i| by_name[i] as u64)
    }

    /// Returns the number of elements of all tensors.
    pub fn elements(&self) -> u64 {
        self.spans.before.last().copied().unwrap_or(0)
    }

    /// Returns the body of its frame.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns the index space of a scope. `offset` is the place for errors (BLK-1, BLK-2, BLK-3).
    ///
    /// # Errors
    /// [`Error::Format`] if the scope does not fit.
    pub fn space(&self, scope: Scope, offset: u64) -> Result<IndexSpace> {
        let outside = |value| Error::out_of_range("scope", value, offset);
        let tensor = |number: u64| {
            usize::try_from(number).ok().and_then(|i| self.tensors.get(i)).ok_or_else(|| outside(number))
        };
        match scope {
            Scope::Tensor(number) => {
                let tensor = tensor(number)?;
                let tensors = in_memory(number)..in_memory(number) + 1;
                Ok(IndexSpace {
                    dtype: tensor.dtype,
                    lens: self.spans.lens(tensors.clone()),
                    row_lens: tensor.row_lens(),
                    shapes: Shapes::shared(&self.spans.shapes, tensors, None),
                })
            }
            Scope::Tensors { first, count } => {
                let head = tensor(first)?;
                if count < 2 {
                    return Err(outside(count));
                }
                let last = first.checked_add(count - 1).ok_or_else(|| outside(count))?;
                tensor(last)?;
                // Both ends are in the manifest.
                let (start, last) = (in_memory(first), in_memory(last));
                if !self.spans.have_one_dtype(start, last) {
                    return Err(Error::out_of_range("element types of a scope", first, offset));
                }
                let lens = self.spans.lens(start..last + 1);
                let shapes = Shapes::shared(&self.spans.shapes, start..last + 1, None);
                Ok(IndexSpace { dtype: head.dtype, lens, row_lens: Vec::new(), shapes })
            }
            Scope::Range { tensor: number, start, len } => {
                let tensor = tensor(number)?;
                let fits = start.checked_add(len).is_some_and(|end| end <= tensor.elements());
                if len == 0 || !fits || len == tensor.elements() {
                    return Err(outside(len));
                }
                let mut row_lens = tensor.row_lens();
                row_lens.retain(|l| start % l == 0);
                let tensors = in_memory(number)..in_memory(number) + 1;
                let shapes = Shapes::shared(&self.spans.shapes, tensors, Some(start));
                Ok(IndexSpace { dtype: tensor.dtype, lens: vec![len].into(), row_lens, shapes })
            }
        }
    }

    /// Reads a manifest's body at `offset`.
    pub(crate) fn read(body: &[u8], offset: u64, limits: &Limits) -> Result<Self> {
        let mut cursor = Cursor::new(body, offset, "manifest");
        let count_offset = cursor.offset();
        let count = cursor.varint()?;
        check("max_tensors", count, limits.max_tensors, count_offset)?;
        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut total_bits = 0u128;
        let mut total = 0u64;
        let mut name_bytes = 0;
        for number in 0..count {
            let start = cursor.offset();
            let previous = tensors.last().map_or("", |t| t.name.as_str());
            let tensor = read_tensor(&mut cursor, previous, limits).map_err(|e| e.in_tensor(number))?;
            // Names share prefixes: their length can exceed their bytes on the wire.
            name_bytes += tensor.name.len() as u64;
            check("max_inflated_bytes", name_bytes, limits.max_inflated_bytes, start)?;
            total_bits += u128::from(tensor.elements()) * u128::from(tensor.dtype.bits());
            total = total
                .checked_add(tensor.elements())
                .filter(|_| total_bits < 1 << 64)
                .ok_or(Error::out_of_range("number of elements", tensor.elements(), start))
                .map_err(|e| e.in_tensor(number))?;
            tensors.push(tensor);
        }
        cursor.finish()?;
        let mut names = HashSet::with_capacity(tensors.len());
        if let Some(repeated) = tensors.iter().position(|t| !names.insert(t.name.as_str())) {
            return Err(Error::format(FormatErrorKind::DuplicateName, offset).in_tensor(repeated as u64));
        }
        Ok(Self {
            spans: Spans::new(&tensors),
            tensors,
            body: body.to_vec(),
            id: ManifestId(*blake3::hash(body).as_bytes()),
            by_name: OnceLock::new(),
        })
    }
}

fn common_prefix(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

fn write(tensors: &[TensorInfo]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, tensors.len() as u64);
    let mut previous = "";
    for tensor in tensors {
        let prefix = common_prefix(previous, &tensor.name);
        put_varint(&mut out, prefix as u64);
        put_varint(&mut out, (tensor.name.len() - prefix) as u64);
        out.extend_from_slice(&tensor.name.as_bytes()[prefix..]);
        out.push(tensor.dtype.id());
        put_varint(&mut out, tensor.shape.len() as u64);
        tensor.shape.iter().for_each(|&d| put_varint(&mut out, d));
        out.push(u8::from(tensor.matrix.is_some()) | u8::from(tensor.shard.is_some()) << 1);
        if let Some((rows, cols)) = tensor.matrix {
            put_varint(&mut out, rows);
            put_varint(&mut out, cols);
        }
        if let Some(Shard { global_shape, offsets }) = &tensor.shard {
            for (&global, &offset) in global_shape.iter().zip(offsets) {
                put_varint(&mut out, global);
                put_varint(&mut out, offset);
            }
        }
        previous = &tensor.name;
    }
    out
}

fn read_tensor(cursor: &mut Cursor<'_>, previous: &str, limits: &Limits) -> Result<TensorInfo> {
    let name = read_name(cursor, previous, limits)?;
    let offset = cursor.offset();
    let dtype = cursor.u8()?;
    let dtype = Dtype::from_id(dtype).ok_or(Error::unsupported("element type", dtype.into(), offset))?;
    let rank_offset = cursor.offset();
    let rank = cursor.varint_in("rank", 0, MAX_RANK)?;
    check("max_rank", rank, limits.max_rank, rank_offset)?;
    let shape = (0..rank).map(|_| cursor.varint()).collect::<Result<Vec<_>>>()?;
    let wrong = |value, offset| Error::out_of_range("number of elements", value, offset);
    let count = elements(&shape).ok_or_else(|| wrong(u64::MAX, rank_offset))?;
    if u128::from(count) * u128::from(dtype.bits()) >= 1 << 64 {
        return Err(wrong(count, rank_offset));
    }
    let extras = cursor.flags("tensor extras", 0b11)?;
    let matrix_offset = cursor.offset();
    let matrix = match extras & 1 {
        0 => None,
        _ => Some((cursor.varint()?, cursor.varint()?)),
    };
    if let Some((rows, cols)) = matrix
        && rows.checked_mul(cols) != Some(count)
    {
        return Err(Error::out_of_range("matrix view", rows, matrix_offset));
    }
    let shard = match extras & 2 {
        0 => None,
        _ => Some(read_shard(cursor, &shape)?),
    };
    Ok(TensorInfo { name, dtype, shape, matrix, shard })
}

fn read_name(cursor: &mut Cursor<'_>, previous: &str, limits: &Limits) -> Result<String> {
    let offset = cursor.offset();
    let prefix_len = cursor.varint_in("prefix_len", 0, previous.len() as u64)?;
    let suffix_len = cursor.varint()?;
    let name_len = prefix_len.saturating_add(suffix_len);
    if name_len == 0 || name_len > MAX_NAME {
        return Err(Error::out_of_range("name length", name_len, offset));
    }
    check("max_name_bytes", name_len, limits.max_name_bytes, offset)?;
    let suffix = cursor.take(suffix_len)?;
    // The exact capacity, because the limit counts the names' memory.
    let mut name = Vec::with_capacity(in_memory(name_len));
    name.extend_from_slice(&previous.as_bytes()[..in_memory(prefix_len)]);
    name.extend_from_slice(suffix);
    let name = String::from_utf8(name).map_err(|_| Error::format(FormatErrorKind::InvalidUtf8, offset))?;
    if common_prefix(previous, &name) as u64 != prefix_len {
        return Err(Error::format(FormatErrorKind::NotCanonical { field: "prefix_len" }, offset));
    }
    Ok(name)
}

fn read_shard(cursor: &mut Cursor<'_>, shape: &[u64]) -> Result<Shard> {
    let mut shard = Shard { global_shape: Vec::new(), offsets: Vec::new() };
    for &dim in shape {
        let at = cursor.offset();
        let (global, offset) = (cursor.varint()?, cursor.varint()?);
        if offset.checked_add(dim).is_none_or(|end| end > global) {
            return Err(Error::out_of_range("shard offset", offset, at));
        }
        shard.global_shape.push(global);
        shard.offsets.push(offset);
    }
    Ok(shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_share_prefixes_even_inside_a_character() {
        let tensors: Vec<_> =
            ["läyer.é", "läyer.è", "x"].map(|n| TensorInfo::new(n, Dtype::F32, [2, 3])).into();
        let manifest = Manifest::new(tensors).unwrap();
        assert_eq!(Manifest::read(manifest.body(), 0, &Limits::default()).unwrap(), manifest);
        assert_eq!(manifest.find("x"), Some(2));
    }

    #[test]
    fn impossible_tensors_are_refused() {
        let named = |n: &str| TensorInfo::new(n, Dtype::F32, [2]);
        assert!(Manifest::new(vec![named("a"), named("b"), named("a")]).is_err());
        assert!(Manifest::new(vec![named("")]).is_err());
        assert!(Manifest::new(vec![TensorInfo::new("a", Dtype::F64, [1 << 60])]).is_err());
        let mut matrix = named("a");
        matrix.matrix = Some((3, 1));
        assert!(Manifest::new(vec![matrix]).is_err());
        assert!(Manifest::new(vec![TensorInfo::new("a", Dtype::F32, [0, u64::MAX, u64::MAX])]).is_ok());
    }

    #[test]
    fn tensors_are_found_by_their_names() {
        let names = ["b", "a", "ab", "c"];
        let tensors = names.map(|n| TensorInfo::new(n, Dtype::F32, [2]));
        let manifest = Manifest::new(tensors.into()).unwrap();
        assert_eq!(names.map(|n| manifest.find(n)), [0, 1, 2, 3].map(Some));
        assert_eq!(["", "aa", "d"].map(|n| manifest.find(n)), [None; 3]);
    }

    #[test]
    fn a_scope_has_one_element_type() {
        let types = [Dtype::F32, Dtype::F32, Dtype::F16, Dtype::F16, Dtype::F32];
        let tensors = types.iter().enumerate().map(|(i, &t)| TensorInfo::new(i.to_string(), t, [i as u64]));
        let manifest = Manifest::new(tensors.collect()).unwrap();
        for first in 0..4 {
            for count in 2..=5 - first {
                let space = manifest.space(Scope::Tensors { first, count }, 0);
                assert_eq!(space.is_ok(), [(0, 2), (2, 2)].contains(&(first, count)), "{first} {count}");
            }
        }
        let space = manifest.space(Scope::Tensors { first: 0, count: 2 }, 0).unwrap();
        assert_eq!((&space.lens[..], space.len()), (&[0, 1][..], 1));
        assert_eq!(manifest.elements(), 1 + 2 + 3 + 4);
    }

    #[test]
    fn scopes_resolve() {
        let tensors = [[2u64, 3], [4, 1]].map(|s| TensorInfo::new(format!("{s:?}"), Dtype::F32, s));
        let manifest = Manifest::new(tensors.into()).unwrap();
        assert_eq!(manifest.space(Scope::Tensors { first: 0, count: 2 }, 0).unwrap().len(), 10);
        for scope in [
            Scope::Tensor(2),
            Scope::Tensors { first: 1, count: 2 },
            Scope::Range { tensor: 0, start: 4, len: 3 },
            Scope::Range { tensor: 0, start: 0, len: 6 },
            Scope::Range { tensor: 0, start: u64::MAX, len: 2 },
        ] {
            assert!(manifest.space(scope, 0).is_err(), "{scope:?}");
        }
    }

    /// Compares the bounds of scopes with 128-bit arithmetic, for all values near the end of a tensor, of a
    /// word or of the range.
    #[test]
    fn scopes_at_every_edge() {
        let huge = 1u64 << 58;
        let shapes = [vec![6], vec![huge], vec![0], vec![huge - 1], vec![huge >> 3]];
        let lens: Vec<u64> = shapes.iter().map(|s| s[0]).collect();
        let infos = shapes.into_iter().enumerate().map(|(i, s)| TensorInfo::new(i.to_string(), Dtype::U8, s));
        let manifest = Manifest::new(infos.collect()).unwrap();
        let edges: Vec<u64> = [0, 6, 1 << 32, huge, huge >> 3, 1 << 63, u64::MAX]
            .into_iter()
            .flat_map(|edge: u64| (0..5).map(move |by| edge.wrapping_add(by).wrapping_sub(2)))
            .collect();
        let mut fits = 0;
        for &first in &edges {
            let tensor = usize::try_from(first).ok().and_then(|t| lens.get(t)).copied();
            assert_eq!(manifest.space(Scope::Tensor(first), 0).ok().map(|s| s.len()), tensor);
            for &count in &edges {
                let end = u128::from(first) + u128::from(count);
                let space = manifest.space(Scope::Tensors { first, count }, 0);
                // At least two tensors: a single tensor has its own kind of scope.
                let whole = count >= 2 && end <= lens.len() as u128;
                assert_eq!(space.is_ok(), whole, "{first} {count}");
                if whole {
                    fits += 1;
                    let sum: u128 =
                        lens[first as usize..][..count as usize].iter().map(|&l| u128::from(l)).sum();
                    assert_eq!(u128::from(space.unwrap().len()), sum);
                }
                for (tensor, &own) in lens.iter().enumerate() {
                    let end = u128::from(first) + u128::from(count);
                    let part = count > 0 && end <= u128::from(own) && count < own;
                    let scope = Scope::Range { tensor: tensor as u64, start: first, len: count };
                    assert_eq!(manifest.space(scope, 0).is_ok(), part, "{scope:?}");
                    fits += usize::from(part);
                }
            }
        }
        assert!(fits > 100);
    }

    #[test]
    fn manifests_are_equal_if_their_tensors_are() {
        let of = |name: &str, len| Manifest::new(vec![TensorInfo::new(name, Dtype::F32, [len])]).unwrap();
        assert_eq!(of("a", 2), of("a", 2));
        assert_ne!(of("a", 2), of("a", 3));
        assert_ne!(of("a", 2), of("b", 2));
    }

    #[test]
    fn names_and_ranks_have_limits() {
        let name = |len| Manifest::new(vec![TensorInfo::new("n".repeat(len), Dtype::F32, [1])]);
        assert!(name(4096).is_ok());
        assert_eq!(name(4097).unwrap_err().name(), "input");
        let tensors =
            vec![TensorInfo::new("ab", Dtype::F32, [1, 2]), TensorInfo::new("abc", Dtype::F32, [3])];
        let manifest = Manifest::new(tensors).unwrap();
        let read = |limits: Limits| {
            let read = Manifest::read(manifest.body(), 100, &limits).map(drop);
            read.map_err(|e| (e.name(), e.location().map(|at| (at.offset, at.tensor)).unwrap()))
        };
        // The count of the tensors, the name of the first and its type take six bytes, its rest four.
        assert_eq!(read(Limits::default().with_max_rank(2)), Ok(()));
        assert_eq!(read(Limits::default().with_max_rank(1)), Err(("limit", (106, Some(0)))));
        assert_eq!(read(Limits::default().with_max_name_bytes(3)), Ok(()));
        assert_eq!(read(Limits::default().with_max_name_bytes(2)), Err(("limit", (110, Some(1)))));
    }

    #[test]
    fn rows_of_a_scope_begin_with_it() {
        let row_lens = |shape: &[u64], matrix, start: Option<u64>| {
            let mut info = TensorInfo::new("w", Dtype::F32, shape);
            info.matrix = matrix;
            let manifest = Manifest::new(vec![info]).unwrap();
            let range = |start| Scope::Range { tensor: 0, start, len: 2 };
            manifest.space(start.map_or(Scope::Tensor(0), range), 0).unwrap().row_lens
        };
        assert_eq!(row_lens(&[8, 4, 3, 3], None, None), [36, 9, 3]);
        assert_eq!(row_lens(&[8, 4, 3, 3], Some((6, 48)), None), [48, 36, 9, 3]);
        assert_eq!(row_lens(&[2, 1, 3, 1], None, None), [3]);
        assert!(row_lens(&[7], None, None).is_empty());
        for (start, expected) in [(0, &[36, 9, 3][..]), (9, &[9, 3]), (3, &[3]), (4, &[]), (72, &[36, 9, 3])]
        {
            assert_eq!(row_lens(&[8, 4, 3, 3], None, Some(start)), expected, "{start}");
        }
    }
}
