//! A matrix by the coefficients of a blockwise cosine transform (spec, values/dct.md; DeMo, arXiv 2411.19870).

pub(crate) use super::basis::MAX_SIDE;
use super::basis::basis;
use crate::arch::{self, Kernel};
use crate::bits::{Cursor, put_varint};
use crate::block::space::Surroundings;
use crate::block::values::{
    ValueSpace, ValuesId, numbers as any_numbers, read_nested, to_number, write_nested,
};
use crate::block::{IndexSpace, Positions, Scope, Sets, Support, SupportId, Values, support};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::{Budget, in_memory};
use crate::tensor::Dtype;

/// The first kind that coefficients may have beside floats.
const LEAST: ValuesId = ValuesId::CONSTANT;

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    space: &ValueSpace<'_>,
) -> Result<()> {
    let Values::Dct { rows, cols, chunk_rows, chunk_cols, support, coefficients } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    let count = coefficients_of(values, space.count)?;
    for field in [rows, cols, chunk_rows, chunk_cols] {
        put_varint(out, *field);
    }
    let mut positions = Vec::new();
    let id = support::write(&mut positions, coder, support, space.count, Positions::Auto)?;
    put_varint(out, id.0);
    put_varint(out, positions.len() as u64);
    out.append(&mut positions);
    put_varint(out, coefficients.id().0);
    write_nested(out, coder, coefficients, LEAST, count, &[])
}

/// Checks a caller's fields.
fn check(rows: u64, cols: u64, chunk_rows: u64, chunk_cols: u64, support: &Support, n: u64) -> Result<()> {
    let sides = [(rows, chunk_rows), (cols, chunk_cols)];
    if sides.iter().any(|&(dim, side)| !(1..=MAX_SIDE as u64).contains(&side) || dim % side != 0) {
        return Err(Error::bad_option("chunk of a transform"));
    }
    if rows.checked_mul(cols) != Some(n) {
        return Err(Error::inconsistent("rows and columns of a transform"));
    }
    if matches!(support, Support::Set(_)) {
        return Err(Error::inconsistent("coefficients on an index set, which is of elements"));
    }
    support::check(support, n)
}

/// How many of `n` coefficients a support has that is no set.
fn count(support: &Support, n: u64) -> Result<u64> {
    let (space, sets) = (IndexSpace::flat(Dtype::F32, n), Sets::new());
    support::count(support, n, &surroundings(&space, &sets))
}

/// How many of its `n` coefficients these values of kind [`Values::Dct`] say, once their fields were checked.
pub(crate) fn coefficients_of(values: &Values, n: u64) -> Result<u64> {
    let Values::Dct { rows, cols, chunk_rows, chunk_cols, support, .. } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    check(*rows, *cols, *chunk_rows, *chunk_cols, support, n)?;
    count(support, n)
}

/// Coefficients are numbers whatever the tensor's element type, and have no scope of their own.
fn surroundings<'a>(space: &'a IndexSpace, sets: &'a Sets) -> Surroundings<'a> {
    Surroundings { space, manifest: [0; 32], scope: Scope::Tensor(0), sets }
}

/// Multiplications that count as one element: a transform's are vectorised, and nothing of it leaves the cache.
const STEPS: u64 = 16;

/// What transforming `n` elements back is charged: it takes up to chunk_rows + chunk_cols multiplications for each.
fn work(n: u64, chunk_rows: u64, chunk_cols: u64) -> u64 {
    n.saturating_mul(chunk_rows + chunk_cols).div_ceil(STEPS)
}

/// The fields before the support of the coefficients.
struct Head {
    rows: u64,
    cols: u64,
    chunk_rows: u64,
    chunk_cols: u64,
}

fn read_head(cursor: &mut Cursor<'_>, count: u64) -> Result<Head> {
    let offset = cursor.offset();
    let rows = cursor.varint()?;
    let cols = cursor.varint()?;
    if rows.checked_mul(cols) != Some(count) {
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
    Ok(Head { rows, cols, chunk_rows, chunk_cols })
}

/// The kind of the support of the coefficients, and its bytes.
fn take_support<'a>(cursor: &mut Cursor<'a>) -> Result<(SupportId, Cursor<'a>)> {
    let id_offset = cursor.offset();
    let id = SupportId(cursor.varint()?);
    if !(SupportId::ALL..=SupportId::SEEDED).contains(&id) {
        return Err(Error::out_of_range("support of coefficients", id.0, id_offset));
    }
    let len = cursor.varint()?;
    Ok((id, cursor.sub(len, "support of coefficients")?))
}

/// Goes over the fields up to the coefficients, and says which there are.
pub(super) fn skim_support(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<support::Skimmed> {
    read_head(cursor, space.count)?;
    let (id, inner) = take_support(cursor)?;
    let (of_coefficients, sets) = (IndexSpace::flat(Dtype::F32, space.count), Sets::new());
    support::skim(inner, id, &surroundings(&of_coefficients, &sets))
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let offset = cursor.offset();
    let Head { rows, cols, chunk_rows, chunk_cols } = read_head(cursor, space.count)?;
    decoder.budget.reserve_elements(work(space.count, chunk_rows, chunk_cols), offset)?;
    let (id, inner) = take_support(cursor)?;
    let (of_coefficients, sets) = (IndexSpace::flat(Dtype::F32, space.count), Sets::new());
    let around = surroundings(&of_coefficients, &sets);
    let (support, count) = support::read(inner, decoder, id, &around)?;
    let id = ValuesId(cursor.varint()?);
    let len = cursor.remaining() as u64;
    let coefficients = read_nested(cursor.sub(len, "coefficients")?, decoder, id, LEAST, count, &[])?;
    Ok(Values::Dct { rows, cols, chunk_rows, chunk_cols, support, coefficients })
}

pub(super) fn numbers(values: &Values, budget: &Budget, out: &mut [f32]) -> Result<()> {
    let Values::Dct { cols, chunk_rows, chunk_cols, support, coefficients, .. } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    let n = out.len() as u64;
    let mut kept = vec![0.0; budget.reserve_items::<f32>(coefficients_of(values, n)?, 0)?];
    any_numbers(coefficients, &[], budget, &mut kept)?;
    budget.reserve_items::<f64>(2 * chunk_rows * chunk_cols, 0)?;
    let layout = Layout::new(*cols, *chunk_rows, *chunk_cols);
    let mut chunk = vec![0.0; layout.area()];
    let (mut current, mut kept) = (None, kept.as_slice());
    support::for_each_run(support, n, &Sets::new(), &mut |start, len| {
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

/// A row-major matrix in chunks, and their transform.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    cols: usize,
    chunk_rows: usize,
    chunk_cols: usize,
}

impl Layout {
    /// `chunk_rows` and `chunk_cols`: 1 to [`MAX_SIDE`], divisors of the rows and of `cols`, which is not 0.
    pub(crate) fn new(cols: u64, chunk_rows: u64, chunk_cols: u64) -> Self {
        Self { cols: in_memory(cols), chunk_rows: in_memory(chunk_rows), chunk_cols: in_memory(chunk_cols) }
    }

    /// Elements of a chunk.
    pub(crate) fn area(&self) -> usize {
        self.chunk_rows * self.chunk_cols
    }

    /// Where the rows of chunk `number` lie in the matrix.
    fn rows(&self, number: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let across = self.cols / self.chunk_cols;
        let first = number / across * self.chunk_rows * self.cols + number % across * self.chunk_cols;
        let (cols, len) = (self.cols, self.chunk_cols);
        (0..self.chunk_rows).map(move |row| first + row * cols..first + row * cols + len)
    }

    /// Puts the elements of chunk `number` of a matrix that starts as zeros.
    fn put(&self, number: usize, coefficients: &[f32], matrix: &mut [f32]) {
        let elements = arch::run(Inverse { layout: *self, coefficients });
        for (row, elements) in self.rows(number).zip(elements.chunks_exact(self.chunk_cols)) {
            matrix[row].iter_mut().zip(elements).for_each(|(x, e)| *x = to_number(*e));
        }
    }

    /// The coefficients of chunk `number` of a matrix.
    pub(crate) fn coefficients(&self, number: usize, matrix: &[f32]) -> Vec<f32> {
        let elements: Vec<f32> = self.rows(number).flat_map(|row| &matrix[row]).copied().collect();
        arch::run(Forward { layout: *self, elements: &elements })
    }
}

/// The sums and products of the spec's page, in its order.
struct Inverse<'a> {
    layout: Layout,
    coefficients: &'a [f32],
}

impl Kernel for Inverse<'_> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn call(self) -> Vec<f64> {
        let (a, b) = (self.layout.chunk_rows, self.layout.chunk_cols);
        let (tall, wide) = (basis(a), basis(b));
        let (mut elements, mut sums) = (vec![0.0; a * b], vec![0.0; b]);
        for (coefficients, tall) in self.coefficients.chunks_exact(b).zip(tall.chunks_exact(a)) {
            // A zero adds zeros, which change no sum that begins as +0.
            if coefficients.iter().all(|x| *x == 0.0) {
                continue;
            }
            sums.fill(0.0);
            for (&x, wide) in coefficients.iter().zip(wide.chunks_exact(b)).filter(|(x, _)| **x != 0.0) {
                let x = f64::from(x);
                sums.iter_mut().zip(wide).for_each(|(s, c)| *s += x * c);
            }
            for (row, c) in elements.chunks_exact_mut(b).zip(tall) {
                row.iter_mut().zip(&sums).for_each(|(e, s)| *e += c * s);
            }
        }
        elements
    }
}

/// The transform itself, which only senders need.
struct Forward<'a> {
    layout: Layout,
    elements: &'a [f32],
}

impl Kernel for Forward<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn call(self) -> Vec<f32> {
        let (a, b) = (self.layout.chunk_rows, self.layout.chunk_cols);
        let (tall, wide) = (basis(a), basis(b));
        // Down the columns first: row u of the sums is the elements' rows, each times c(u, i).
        let mut out = Vec::with_capacity(a * b);
        let mut sums = vec![0.0; b];
        for tall in tall.chunks_exact(a) {
            sums.fill(0.0);
            for (row, c) in self.elements.chunks_exact(b).zip(tall) {
                sums.iter_mut().zip(row).for_each(|(s, x)| *s += c * f64::from(*x));
            }
            out.extend(wide.chunks_exact(b).map(|wide| {
                // Eight sums side by side, in an order that no thread changes.
                let (mut lanes, whole) = ([0.0; 8], b / 8 * 8);
                for (s, c) in sums[..whole].as_chunks::<8>().0.iter().zip(wide.as_chunks::<8>().0) {
                    (0..8).for_each(|i| lanes[i] += s[i] * c[i]);
                }
                let rest = sums[whole..].iter().zip(&wide[whole..]).map(|(s, c)| s * c);
                to_number(lanes.into_iter().chain(rest).sum())
            }));
        }
        out
    }
}
