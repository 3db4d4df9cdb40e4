//! A matrix by the coefficients of a blockwise cosine transform (spec, values/dct.md; DeMo, arXiv
//! 2411.19870).

mod basis;
mod transform;

use crate::bits::{Cursor, put_varint};
use crate::block::space::Surroundings;
use crate::block::values::nested::{self, Nested};
use crate::block::values::{Content, Facts, Kind, Structure, Validated, ValueSpace, Values, ValuesId};
use crate::block::{IndexSpace, Positions, Scope, Sets, Support, SupportId};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::{Budget, Limits, in_memory};
use crate::tensor::Dtype;

pub(crate) use basis::MAX_SIDE;
pub(crate) use transform::Layout;

/// A matrix by the coefficients of a blockwise orthonormal DCT-II; the support is all, rows * cols = n.
#[derive(Debug, Clone, PartialEq)]
pub struct Dct {
    /// Rows of the matrix.
    pub rows: u64,
    /// Columns of the matrix.
    pub cols: u64,
    /// Rows of a chunk: 1 to 128, a divisor of `rows`.
    pub chunk_rows: u64,
    /// Columns of a chunk: 1 to 128, a divisor of `cols`.
    pub chunk_cols: u64,
    /// Which of the n coefficients are not zero, chunk after chunk, row-major in each. Not a
    /// [`Support::Set`].
    pub support: Support,
    /// A number for each coefficient of `support`, of a kind that nests no other values.
    pub coefficients: Box<Values>,
}

impl Kind for Dct {
    const ID: ValuesId = ValuesId(13);

    fn facts(&self) -> Facts<'_> {
        let (support, coefficients) = (self.support.facts(), self.coefficients.facts());
        Facts {
            content: Content::Numbers { no_sum: "only coefficients of one layout and support are added" },
            structure: Structure::Matrix,
            weight: support.weight.saturating_add(coefficients.weight),
            memory: support.memory.saturating_add(coefficients.memory),
        }
    }

    fn label(&self) -> String {
        format!("dct of {}", self.coefficients.label())
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        let count = self.count(space.count)?;
        for field in [self.rows, self.cols, self.chunk_rows, self.chunk_cols] {
            put_varint(out, field);
        }
        let mut positions = Vec::new();
        let (coefficient_space, sets) = (IndexSpace::flat(Dtype::F32, space.count), Sets::new());
        let around = surroundings(&coefficient_space, &sets);
        let id = self.support.write(&mut positions, coder, &around, Positions::Auto)?;
        put_varint(out, id.0);
        put_varint(out, positions.len() as u64);
        out.append(&mut positions);
        nested::write_rest(out, coder, &self.coefficients, nested::FLAT, count, &[])
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let offset = cursor.offset();
        space.check_is_all(offset)?;
        let DctHead { rows, cols, chunk_rows, chunk_cols } = DctHead::read(cursor, space)?;
        decoder.budget.reserve_elements(work(space.count, chunk_rows, chunk_cols), offset)?;
        let (id, inner) = take_support(cursor)?;
        let (coefficient_space, sets) = (IndexSpace::flat(Dtype::F32, space.count), Sets::new());
        let around = surroundings(&coefficient_space, &sets);
        let (support, count) = Support::read(inner, decoder, id, &around)?;
        let coefficients = take_coefficients(cursor, count)?.read(decoder)?;
        Ok(Self { rows, cols, chunk_rows, chunk_cols, support, coefficients })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        DctHead::read(cursor, space)?;
        let (id, inner) = take_support(cursor)?;
        let (coefficient_space, sets) = (IndexSpace::flat(Dtype::F32, space.count), Sets::new());
        // No kind that may stand here is decoded.
        let budget = Budget::new(&Limits::default());
        let support = Support::validate(inner, id, &surroundings(&coefficient_space, &sets), &budget)?;
        let coefficients = take_coefficients(cursor, support.count)?.validate()?;
        Ok(Validated::matrix(support.weight.saturating_add(coefficients)))
    }

    fn numbers(&self, _: &[u64], budget: &Budget, out: &mut [f32]) -> Result<()> {
        let Self { cols, chunk_rows, chunk_cols, support, coefficients, .. } = self;
        let n = out.len() as u64;
        let mut kept = vec![0.0; budget.reserve_items::<f32>(self.count(n)?, 0)?];
        coefficients.numbers(&[], budget, &mut kept)?;
        budget.reserve_items::<f64>(2 * chunk_rows * chunk_cols, 0)?;
        let layout = Layout::new(*cols, *chunk_rows, *chunk_cols);
        let mut chunk = vec![0.0; layout.area()];
        let (mut current, mut kept) = (None, kept.as_slice());
        support.for_each_run(n, &Sets::new(), &mut |start, len| {
            let (mut start, mut len) = (in_memory(start), in_memory(len));
            while len > 0 {
                let (number, at) = (start / layout.area(), start % layout.area());
                if let Some(done) = current.filter(|&done| done != number) {
                    layout.put(done, &chunk, out);
                    chunk.fill(0.0);
                }
                current = Some(number);
                let here = len.min(layout.area() - at);
                let (mine, rest) = kept.split_at(here);
                chunk[at..at + here].copy_from_slice(mine);
                (start, len, kept) = (start + here, len - here, rest);
            }
            Ok(())
        })?;
        if let Some(done) = current {
            layout.put(done, &chunk, out);
        }
        Ok(())
    }
}

impl Dct {
    /// Checks the fields of a transform of `n` elements, and returns the number of its coefficients.
    pub(crate) fn count(&self, n: u64) -> Result<u64> {
        let sides = [(self.rows, self.chunk_rows), (self.cols, self.chunk_cols)];
        if sides.iter().any(|&(dim, side)| !(1..=MAX_SIDE as u64).contains(&side) || dim % side != 0) {
            return Err(Error::inconsistent("chunk of a transform"));
        }
        if self.rows.checked_mul(self.cols) != Some(n) {
            return Err(Error::inconsistent("rows and columns of a transform"));
        }
        if matches!(self.support, Support::Set(_) | Support::Based(_)) {
            return Err(Error::inconsistent("positions of elements, not of coefficients"));
        }
        self.support.check(n)?;
        let (space, sets) = (IndexSpace::flat(Dtype::F32, n), Sets::new());
        self.support.count(&surroundings(&space, &sets))
    }

    /// Whether the coefficients of both transforms have the same meaning.
    pub(crate) fn has_layout_of(&self, other: &Self) -> bool {
        let layout = |dct: &Self| (dct.rows, dct.cols, dct.chunk_rows, dct.chunk_cols);
        layout(self) == layout(other)
    }
}

/// The surroundings of coefficients: they are numbers, whatever the tensor's element type is, and have no
/// scope.
fn surroundings<'a>(space: &'a IndexSpace, sets: &'a Sets) -> Surroundings<'a> {
    Surroundings { space, manifest: [0; 32], scope: Scope::Tensor(0), sets }
}

/// Multiplications that are charged as one element: they run in vectors and in the cache.
const STEPS: u64 = 16;

/// The charge for the inverse transform of `n` elements, up to chunk_rows + chunk_cols multiplications each.
fn work(n: u64, chunk_rows: u64, chunk_cols: u64) -> u64 {
    n.saturating_mul(chunk_rows + chunk_cols).div_ceil(STEPS)
}

/// The fields before the support of the coefficients.
struct DctHead {
    rows: u64,
    cols: u64,
    chunk_rows: u64,
    chunk_cols: u64,
}

impl DctHead {
    fn read(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let offset = cursor.offset();
        let rows = cursor.varint()?;
        let cols = cursor.varint()?;
        if rows.checked_mul(cols) != Some(space.count) {
            return Err(Error::format(FormatErrorKind::CountMismatch { field: "rows and columns" }, offset));
        }
        let mut side = |field, dim: u64| {
            let offset = cursor.offset();
            let side = cursor.varint_in(field, 1, MAX_SIDE as u64)?;
            match dim.is_multiple_of(side) {
                true => Ok(side),
                false => Err(Error::out_of_range(field, side, offset)),
            }
        };
        let chunk_rows = side("chunk_rows", rows)?;
        let chunk_cols = side("chunk_cols", cols)?;
        Ok(Self { rows, cols, chunk_rows, chunk_cols })
    }
}

/// Takes the kind of the support of the coefficients, and its bytes.
fn take_support<'a>(cursor: &mut Cursor<'a>) -> Result<(SupportId, Cursor<'a>)> {
    let id_offset = cursor.offset();
    let id = SupportId(cursor.varint()?);
    if !(SupportId::ALL..=SupportId::SEEDED).contains(&id) {
        return Err(Error::out_of_range("support of coefficients", id.0, id_offset));
    }
    let len = cursor.varint()?;
    Ok((id, cursor.sub(len, "support of coefficients")?))
}

fn take_coefficients<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Nested<'a>> {
    Nested::take_rest(cursor, "coefficients", nested::FLAT, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::values::tests::{budget, read, space};
    use crate::block::{Floats, Rows, Sparse, Stored};

    /// The numbers of a matrix of 6 x 8 in chunks of 3 x 8, whose coefficients are 1, 2, ..
    fn numbers(support: Support, memory: u64) -> Result<[f32; 48]> {
        let count = match &support {
            Support::All => 48,
            Support::Sparse(sparse) => sparse.positions.len(),
            Support::Rows(rows) => rows.rows.len() * in_memory(rows.row_len),
            other => panic!("{other:?}"),
        };
        let bytes = (0..count).flat_map(|i| (1.0 + i as f32).to_le_bytes()).collect();
        let coefficients = Box::new(Values::Floats(Floats { stored: Stored::F32, bytes }));
        let dct = Dct { rows: 6, cols: 8, chunk_rows: 3, chunk_cols: 8, support, coefficients };
        let mut out = [0.0; 48];
        dct.numbers(&[], &budget(memory), &mut out)?;
        Ok(out)
    }

    #[test]
    fn runs_of_coefficients_reach_over_chunks() {
        for rows in [vec![0, 1, 2], vec![1], vec![1, 2]] {
            let positions = rows.iter().flat_map(|row| 16 * row..16 * row + 16).collect();
            let one_by_one = numbers(Support::Sparse(Sparse { positions }), u64::MAX).unwrap();
            assert_eq!(numbers(Support::Rows(Rows { row_len: 16, rows }), u64::MAX).unwrap(), one_by_one);
        }
    }

    /// The coefficients take 4 bytes each; the products of a chunk take 16 for each of its elements.
    #[test]
    fn memory_for_a_chunk_counts_against_the_limit() {
        let needed = 4 * 48 + 16 * 24;
        numbers(Support::All, needed).unwrap();
        let e = numbers(Support::All, needed - 1).unwrap_err();
        // There are no bytes that the error could point to.
        assert_eq!((e.name(), e.location().unwrap().offset), ("limit", 0));
    }

    #[test]
    fn chunks_have_rows_and_columns_also_in_an_empty_matrix() {
        let space = space(Dtype::F32, 0);
        // An empty matrix, the support all, and floats of 32 bits.
        let bytes = |chunk_rows, chunk_cols| [0, 0, chunk_rows, chunk_cols, 1, 0, 1, 2];
        let validate = |bytes: &[u8]| Values::validate(Cursor::new(bytes, 0, "values"), Dct::ID, &space);
        read(&bytes(1, 1), Dct::ID, &space, 0).unwrap();
        validate(&bytes(1, 1)).unwrap();
        for wrong in [bytes(0, 1), bytes(1, 0)] {
            assert_eq!(read(&wrong, Dct::ID, &space, 0).unwrap_err().name(), "out_of_range");
            assert_eq!(validate(&wrong).unwrap_err().name(), "out_of_range");
        }
    }
}
