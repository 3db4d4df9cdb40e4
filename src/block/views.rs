//! Views: the rows and columns of a tensor (spec, section 7.6).

use crate::bits::Cursor;
use crate::block::IndexSpace;
use crate::block::space::{Shape, Shapes};
use crate::codes::{Decoder, read_ints};
use crate::error::{Error, FormatErrorKind, Result};

/// A division of a tensor's elements into rows and columns, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct View(pub(crate) u8);

/// Value of both fields of a view that stands for the matrix view of the manifest.
const MATRIX: u8 = 7;
const ROWS: u8 = 1 << 6;
const COLUMNS: u8 = 1 << 7;

impl View {
    /// No rows and no columns.
    pub(crate) const NONE: Self = Self(0);

    /// Whether something is stored for each row.
    pub(crate) fn has_rows(self) -> bool {
        self.0 & ROWS != 0
    }

    /// Whether something is stored for each column.
    pub(crate) fn has_columns(self) -> bool {
        self.0 & COLUMNS != 0
    }

    /// This division with other flags.
    pub(crate) fn with_flags(self, rows: bool, columns: bool) -> Self {
        let flags = if rows { ROWS } else { 0 } | if columns { COLUMNS } else { 0 };
        Self(self.0 & !(ROWS | COLUMNS) | flags)
    }
}

/// The rows and columns of one tensor of an index space, or of the part of it that the space covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) view: View,
    /// Number of rows.
    pub(crate) rows: u64,
    /// Number of columns.
    pub(crate) columns: u64,
    /// Number of elements in a cell.
    pub(crate) cell: u64,
}

impl Grid {
    /// A tensor of `len` elements without rows and columns.
    fn none(len: u64) -> Self {
        Self { view: View::NONE, rows: 1, columns: 1, cell: len }
    }

    /// Number of elements in a row.
    pub(crate) fn row_len(&self) -> u64 {
        self.columns * self.cell
    }

    /// Rows and columns of ascending elements.
    pub(crate) fn places(&self, elements: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, u64)> {
        let (row_len, cell) = (self.row_len(), self.cell);
        let (mut row, mut start) = (0, 0);
        elements.map(move |element| {
            // Most elements are in the row of the one before: no division.
            if element - start >= row_len {
                row = element / row_len;
                start = row * row_len;
            }
            let inside = element - start;
            (row, if cell == 1 { inside } else { inside / cell })
        })
    }

    /// Divides tensor `i` of a space.
    ///
    /// # Errors
    /// [`Error::Format`] at `offset` for a view that does not fit (VIW-1 to VIW-3).
    pub(crate) fn new(space: &IndexSpace, i: usize, view: View, offset: u64) -> Result<Self> {
        let len = space.lens[i];
        if view == View::NONE {
            return Ok(Self::none(len));
        }
        if len == 0 || !(view.has_rows() || view.has_columns()) {
            return Err(Error::format(FormatErrorKind::NotCanonical { field: "view" }, offset));
        }
        let outside = || Error::out_of_range("view", view.0.into(), offset);
        let (rows, columns, cell) = cut(&space.shapes, i, view).ok_or_else(outside)?;
        match space.shapes.start() {
            None => Ok(Self { view, rows, columns, cell }),
            Some(start) => {
                let row_len = columns * cell;
                match start.is_multiple_of(row_len) && len.is_multiple_of(row_len) {
                    true => Ok(Self { view, rows: len / row_len, columns, cell }),
                    false => Err(outside()),
                }
            }
        }
    }

    /// The divisions that a writer tries for tensor `i` of a space, with both flags.
    pub(crate) fn candidates(space: &IndexSpace, i: usize) -> Vec<Self> {
        let Some(Shape { dims, matrix }) = space.shapes.of(i) else { return Vec::new() };
        let rank = dims.len().min(usize::from(MATRIX) - 1) as u8;
        // A matrix; a stack of matrices; kernels as output x input channels.
        let cuts: &[(u8, u8)] = match rank {
            0 | 1 => &[],
            2 => &[(1, 2)],
            3 => &[(1, 3), (2, 3), (1, 2)],
            _ => &[(1, 2), (1, rank)],
        };
        let own = matrix.map(|_| (MATRIX, MATRIX));
        let views = own.into_iter().chain(cuts.iter().copied());
        let grids = views.filter_map(|(a, b)| {
            let view = View(a | b << 3).with_flags(true, true);
            Self::new(space, i, view, 0).ok().filter(|g| g.row_len() > 1 && g.rows > 1)
        });
        grids.collect()
    }
}

/// Returns the numbers of rows, columns and elements of a cell of a whole tensor that has elements.
fn cut(shapes: &Shapes, i: usize, view: View) -> Option<(u64, u64, u64)> {
    let Shape { dims, matrix } = shapes.of(i)?;
    let (a, b) = (view.0 & 7, view.0 >> 3 & 7);
    if a == MATRIX {
        let (rows, columns) = matrix.filter(|_| b == MATRIX)?;
        return Some((rows, columns, 1));
    }
    let (a, b) = (usize::from(a), usize::from(b));
    if a > b || b > dims.len() {
        return None;
    }
    // The product of all dims is the tensor's number of elements, which fits 64 bits and is not zero.
    let product = |dims: &[u64]| dims.iter().product::<u64>();
    Some((product(&dims[..a]), product(&dims[a..b]), product(&dims[b..])))
}

/// Reads views of all tensors of a space.
pub(crate) fn read_views(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    space: &IndexSpace,
) -> Result<Vec<Grid>> {
    let offset = cursor.offset();
    let tensors = space.lens.len() as u64;
    let views = read_ints(cursor, decoder, tensors, u8::MAX.into())?;
    // A grid, and what is stored for its rows and columns.
    decoder.budget.reserve_items::<[u64; 12]>(tensors, offset)?;
    let grids = views.iter().enumerate().map(|(i, &view)| Grid::new(space, i, View(view as u8), offset));
    grids.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Scope;
    use crate::codes::{Coder, Entropy, Role, write_ints};
    use crate::frame::{Manifest, TensorInfo};
    use crate::limits::{Budget, Limits};
    use crate::tensor::Dtype;

    fn manifest() -> Manifest {
        let mut conv = TensorInfo::new("conv", Dtype::F32, [8, 4, 3, 3]);
        conv.matrix = Some((36, 8));
        let bias = TensorInfo::new("bias", Dtype::F32, [5]);
        Manifest::new(vec![conv, bias, TensorInfo::new("empty", Dtype::F32, [1 << 40, 0])]).unwrap()
    }

    #[test]
    fn views_cut_tensors_into_rows_columns_and_cells() {
        let manifest = manifest();
        let space = manifest.space(Scope::Tensors { first: 0, count: 3 }, 0).unwrap();
        let grid = |i, view: u8| Grid::new(&space, i, View(view), 7);
        let sizes = |view| grid(0, view).map(|g| (g.rows, g.columns, g.cell));
        assert_eq!(sizes(0xc0 | 2 << 3 | 1).unwrap(), (8, 4, 9));
        assert_eq!(sizes(0xc0 | 4 << 3 | 1).unwrap(), (8, 36, 1));
        assert_eq!(sizes(0x40).unwrap(), (1, 1, 288));
        assert_eq!(sizes(0xff).unwrap(), (36, 8, 1));
        assert_eq!(sizes(0).unwrap(), (1, 1, 288));
        for (i, view, name) in [
            (0, 0xc0 | 1 << 3 | 2, "out_of_range"),
            (0, 0xc0 | 5 << 3 | 1, "out_of_range"),
            (0, 0xc0 | 7 << 3 | 1, "out_of_range"),
            (0, 2 << 3 | 1, "not_canonical"),
            (1, 0xff, "out_of_range"),
            (2, 0x40, "not_canonical"),
        ] {
            assert_eq!(grid(i, view).unwrap_err().name(), name, "{i} {view:x}");
        }
        assert_eq!(Grid::candidates(&space, 0).len(), 3);
        assert_eq!(Grid::candidates(&space, 1), []);
    }

    #[test]
    fn parts_of_a_tensor_have_whole_rows() {
        let part = |start, len| {
            let space = manifest().space(Scope::Range { tensor: 0, start, len }, 0).unwrap();
            Grid::new(&space, 0, View(0xc0 | 2 << 3 | 1), 0).map(|g| g.rows)
        };
        assert_eq!(part(36, 72).unwrap(), 2);
        assert_eq!(part(35, 72).unwrap_err().name(), "out_of_range");
        assert_eq!(part(36, 71).unwrap_err().name(), "out_of_range");
    }

    /// A matrix; a stack of matrices; kernels, whose first dims are channels.
    #[test]
    fn a_writer_tries_the_usual_divisions_of_a_shape() {
        let divisions = |shape: &[u64]| {
            let manifest = Manifest::new(vec![TensorInfo::new("w", Dtype::F32, shape)]).unwrap();
            let grids = Grid::candidates(&manifest.space(Scope::Tensor(0), 0).unwrap(), 0);
            Vec::from_iter(grids.iter().map(|g| (g.rows, g.columns, g.cell)))
        };
        assert_eq!(divisions(&[5, 4]), [(5, 4, 1)]);
        assert_eq!(divisions(&[2, 3, 4]), [(2, 12, 1), (6, 4, 1), (2, 3, 4)]);
        assert_eq!(divisions(&[8, 4, 3, 3]), [(8, 4, 9), (8, 36, 1)]);
        for rank in [7, 8] {
            let cells = 1 << (rank - 6);
            assert_eq!(divisions(&vec![2; rank]), [(2, 2, 1 << (rank - 2)), (2, 32, cells)]);
        }
        for single in [&[][..], &[4], &[1, 4], &[4, 1]] {
            assert!(divisions(single).is_empty(), "{single:?}");
        }
    }

    #[test]
    fn memory_of_views_is_limited() {
        let mut bytes = Vec::new();
        write_ints(&mut bytes, &mut Coder::new(Entropy::Packed, &[], None), Role::Views, &[0; 3]);
        let space = IndexSpace { lens: vec![4; 3].into(), ..IndexSpace::flat(Dtype::F32, 12) };
        let read = |most| {
            let budget = Budget::new(&Limits::default().with_max_alloc_bytes(most));
            let grids = read_views(
                &mut Cursor::new(&bytes, 7, "views"),
                &Decoder { tables: &[], budget: &budget },
                &space,
            );
            grids.map(|grids| grids.len()).map_err(|e| (e.name(), e.location().unwrap().offset))
        };
        // For each tensor its view, and twelve numbers.
        assert_eq!((read(3 * 8 * 13), read(3 * 8 * 13 - 1)), (Ok(3), Err(("limit", 7))));
    }
}
