//! The index space of a block, and the sets that blocks may refer to.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::block::{Scope, SetId, Support};
use crate::error::{Error, FormatErrorKind, Result};
use crate::tensor::Dtype;

/// The elements that a block's positions count: those of one or more tensors, or of a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexSpace {
    /// The element type, the same for all tensors of the scope.
    pub dtype: Dtype,
    /// Number of elements of each tensor of the scope: one number unless the scope is [`Scope::Tensors`].
    pub lens: Lens,
    /// Row lengths of matrices that the elements may form, those of the tensor's view first. They help to
    /// choose codes and have no meaning for readers.
    pub row_lens: Vec<u64>,
    /// Shapes of the tensors of the scope: views of rows and columns refer to them.
    pub shapes: Shapes,
}

impl IndexSpace {
    /// A space of `len` elements without structure.
    pub fn flat(dtype: Dtype, len: u64) -> Self {
        Self { dtype, lens: vec![len].into(), row_lens: Vec::new(), shapes: Shapes::default() }
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.lens.total
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The numbers of elements of consecutive tensors, as a slice.
///
/// The scopes of a manifest share its memory, as a block of a few bytes may span a million tensors.
#[derive(Clone)]
pub struct Lens {
    all: Arc<[u64]>,
    range: Range<usize>,
    total: u64,
}

impl Lens {
    /// Takes the numbers in `range` of `all`, whose sum is `total`.
    pub(crate) fn shared(all: &Arc<[u64]>, range: Range<usize>, total: u64) -> Self {
        Self { all: Arc::clone(all), range, total }
    }
}

impl From<Vec<u64>> for Lens {
    fn from(lens: Vec<u64>) -> Self {
        let total = lens.iter().fold(0, |sum: u64, &len| sum.saturating_add(len));
        Self { range: 0..lens.len(), all: lens.into(), total }
    }
}

impl Deref for Lens {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.all[self.range.clone()]
    }
}

impl<'a> IntoIterator for &'a Lens {
    type Item = &'a u64;
    type IntoIter = std::slice::Iter<'a, u64>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Lens {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Lens {}

impl fmt::Debug for Lens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// The shapes of consecutive tensors, or of one tensor of which the space is a part.
///
/// The scopes of a manifest share its memory. The default knows no shapes: no view fits it.
#[derive(Clone, Default)]
pub struct Shapes {
    all: Arc<ShapeTable>,
    range: Range<usize>,
    /// First element of a part of one tensor.
    start: Option<u64>,
}

/// The shapes and matrix views of all tensors of a manifest.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShapeTable {
    dims: Vec<u64>,
    /// Number of dims of all tensors up to each one, inclusive.
    ends: Vec<usize>,
    /// Rows and columns of the matrix views that the manifest has, by tensor.
    matrices: BTreeMap<usize, (u64, u64)>,
}

/// The shape of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape<'a> {
    pub(crate) dims: &'a [u64],
    /// Rows and columns of its matrix view in the manifest.
    pub(crate) matrix: Option<(u64, u64)>,
}

impl ShapeTable {
    pub(crate) fn push(&mut self, dims: &[u64], matrix: Option<(u64, u64)>) {
        if let Some(matrix) = matrix {
            self.matrices.insert(self.ends.len(), matrix);
        }
        self.dims.extend_from_slice(dims);
        self.ends.push(self.dims.len());
    }
}

impl Shapes {
    /// Takes the shapes in `range` of `all`. `start` is the first element of a part of one tensor.
    pub(crate) fn shared(all: &Arc<ShapeTable>, range: Range<usize>, start: Option<u64>) -> Self {
        Self { all: Arc::clone(all), range, start }
    }

    /// The shape of tensor `i` of the scope.
    pub(crate) fn of(&self, i: usize) -> Option<Shape<'_>> {
        let tensor = self.range.start.checked_add(i).filter(|t| self.range.contains(t))?;
        let end = *self.all.ends.get(tensor)?;
        let start = tensor.checked_sub(1).map_or(0, |before| self.all.ends[before]);
        Some(Shape { dims: &self.all.dims[start..end], matrix: self.all.matrices.get(&tensor).copied() })
    }

    /// The first element of a part of one tensor.
    pub(crate) fn start(&self) -> Option<u64> {
        self.start
    }
}

impl PartialEq for Shapes {
    fn eq(&self, other: &Self) -> bool {
        let len = self.range.len();
        self.start == other.start && len == other.range.len() && (0..len).all(|i| self.of(i) == other.of(i))
    }
}

impl Eq for Shapes {}

impl fmt::Debug for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.range.len()).filter_map(|i| self.of(i))).finish()
    }
}

/// An index set that blocks may refer to.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedSet {
    /// Id of the manifest that the scope refers to.
    pub manifest: [u8; 32],
    /// The index space of the set.
    pub scope: Scope,
    /// The elements of the set.
    pub support: Support,
    /// Number of elements of the set.
    pub count: u64,
}

/// Index sets by their ids.
pub type Sets = BTreeMap<SetId, Arc<SharedSet>>;

/// The surroundings that the wire form of a block depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) space: &'a IndexSpace,
    /// Id of the manifest.
    pub(crate) manifest: [u8; 32],
    pub(crate) scope: Scope,
    pub(crate) sets: &'a Sets,
}

/// The surroundings that the wire form of values depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValueSpace<'a> {
    /// Number of values.
    pub(crate) count: u64,
    /// Whether they are all elements of the index space, as matrix kinds need.
    pub(crate) is_all: bool,
    /// Number of tensors of the scope; `None` for nested values, which have no scope.
    pub(crate) tensors: Option<u64>,
    /// Element type of the tensors.
    pub(crate) dtype: Dtype,
    /// Row lengths of matrices that the values may form.
    pub(crate) row_lens: &'a [u64],
    /// Number of values in each group of a support that is classed by the base; none for other supports.
    pub(crate) group_counts: &'a [u64],
    /// The elements that the values are for; `None` for nested values and for a support in wire form.
    pub(crate) elements: Option<Elements<'a>>,
}

/// Elements that values are for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elements<'a> {
    pub(crate) support: &'a Support,
    pub(crate) space: &'a IndexSpace,
}

impl ValueSpace<'_> {
    /// The number of elements of each tensor of the scope; none if the elements are not known.
    pub(crate) fn lens(&self) -> &[u64] {
        self.elements.as_ref().map_or(&[], |elements| &elements.space.lens)
    }

    /// Refuses a matrix at `offset` whose support is not all elements (LRK-1, DCT-1).
    pub(crate) fn check_is_all(&self, offset: u64) -> Result<()> {
        match self.is_all {
            true => Ok(()),
            false => {
                let kind = FormatErrorKind::CountMismatch { field: "support of a matrix" };
                Err(Error::format(kind, offset))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Manifest, TensorInfo};

    #[test]
    fn spaces_without_elements_are_empty() {
        let lens = [0, 1, 2].map(|len| IndexSpace::flat(Dtype::F32, len).is_empty());
        assert_eq!(lens, [true, false, false]);
    }

    #[test]
    fn lengths_are_equal_wherever_they_are_stored() {
        let all: Arc<[u64]> = [9, 1, 2, 3].into();
        let lens = |lens: &[u64]| Lens::from(lens.to_vec());
        assert_eq!(Lens::shared(&all, 1..3, 3), lens(&[1, 2]));
        for other in [&[1][..], &[1, 3], &[1, 2, 3], &[9, 1]] {
            assert_ne!(Lens::shared(&all, 1..3, 3), lens(other));
        }
    }

    #[test]
    fn shapes_are_equal_wherever_they_are_stored() {
        let shapes = |tensors: &[&[u64]], scope| {
            let infos = tensors.iter().enumerate();
            let infos = infos.map(|(i, &dims)| TensorInfo::new(i.to_string(), Dtype::F32, dims));
            Manifest::new(infos.collect()).unwrap().space(scope, 0).unwrap().shapes
        };
        let pair = |first| Scope::Tensors { first, count: 2 };
        let range = |start| Scope::Range { tensor: 0, start, len: 2 };
        let (a, b): (&[u64], &[u64]) = (&[2, 3], &[6]);
        assert_eq!(shapes(&[a, b], pair(0)), shapes(&[&[1], a, b], pair(1)));
        assert_eq!(shapes(&[a, b], range(2)), shapes(&[a], range(2)));
        let one = shapes(&[a], Scope::Tensor(0));
        for (left, right) in [
            (shapes(&[a, b], pair(0)), shapes(&[a, &[7]], pair(0))),
            (shapes(&[a, b], pair(0)), shapes(&[&[3, 2], b], pair(0))),
            (one.clone(), shapes(&[a, b], pair(0))),
            (one, shapes(&[a], range(2))),
            (shapes(&[a], range(2)), shapes(&[a], range(4))),
        ] {
            assert_ne!(left, right);
        }
    }
}
