//! PowerSGD (Vogels et al., arXiv 1905.13727): sends a matrix as two factors of few columns, found by one
//! step of subspace iteration.
//!
//! ```text
//! M = gradient + residual of earlier steps          first dimension x the product of the others
//! P = M Q, its columns orthonormalised               Q: from the last step, at first from the seed
//! Q = M^T P                                          the receiver computes P Q^T; the residual is M - P Q^T
//! ```
//!
//! [`Codec::PowerSgd`](crate::compress::Codec::PowerSgd) does this for one sender.
//! [`PowerSgdWorker`](crate::compress::senders::powersgd::PowerSgdWorker) does it for many senders, whose P
//! and Q are averaged directly. Vectors are sent uncompressed, as in the paper. The same holds for matrices
//! whose factors would take no fewer bytes.
//!
//! Sums are computed in binary64 in the order of the elements, so that nodes and threads agree. The paper
//! starts from normally distributed numbers. This code starts from uniform numbers between -1 and 1, which
//! need no logarithm; only the space that they span matters. The last step's Q is orthonormalised before use,
//! as in the authors' code. This does not change the space either.

use rayon::prelude::*;

use super::matrix::{finite, numbers_of};
use super::sparse;
use crate::arch::{self, Kernel, pages};
use crate::block::{Block, Floats, LowRank, Scope, Stored, Support, Values};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::options::Options;
use crate::compress::settings::{Kept, Setting, Visitor};
use crate::compress::source::{CHUNK, Source, all_finite};
use crate::compress::state::{CodecState, Factor};
use crate::error::Result;
use crate::random;
use crate::tensor::Dtype;
use crate::tensor::element::{max_finite, round_f32s};

const RANK: Setting<u64> = Setting::number("rank", "at least 1", |r| r >= 1);

/// `powersgd`: sends each matrix as two factors of few columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerSgd {
    /// `rank`: the number of columns of a factor, at least 1. Default: 4.
    pub rank: u64,
    /// `seed`: the seed of the columns that the first step starts from. Default: 1.
    pub seed: u64,
}

impl Default for PowerSgd {
    fn default() -> Self {
        Self { rank: 4, seed: 1 }
    }
}

impl Compressor for PowerSgd {
    const NAME: &'static str = "powersgd";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&RANK, &mut self.rank)?;
        visitor.seed(&mut self.seed)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let &Self { rank, seed } = self;
        let mut blocks = Vec::new();
        for (tensor, input) in run.tensors.iter_mut().zip(run.inputs).filter(|(tensor, _)| tensor.len > 0) {
            let Some((_, cols)) = matrix(input.view.shape(), tensor.dtype, rank) else {
                let sums = elements(tensor)?;
                plain(tensor, &sums, run.options, &mut blocks)?;
                continue;
            };
            let has_feedback = tensor.residual_after.is_some();
            let mut sums = taken_elements(tensor)?;
            let basis = basis(last_factor(&tensor.state, rank), cols, rank as usize, seed, tensor.tensor);
            let left = left_factor(times(&sums, cols, &basis), rank as usize);
            let right = numbers(&transposed_times(&sums, cols, &left, rank as usize));
            let (values, decoded) = product(left, right, rank, tensor.dtype)?;
            if has_feedback {
                sums.iter_mut().zip(&decoded).for_each(|(x, d)| *x = finite(*x - d));
                tensor.residual_after = Some(sums);
            }
            if let Values::LowRank(LowRank { right, .. }) = &values
                && let Values::Floats(Floats { bytes, .. }) = &**right
            {
                store_factor(&mut tensor.state, rank, floats(bytes));
            }
            let scope = Scope::Tensor(tensor.tensor);
            blocks.push(Block { scope, add: false, support: Support::All, values });
        }
        Ok(blocks)
    }
}

/// Returns the last Q of a tensor if `state` has one of this rank.
pub(crate) fn last_factor(state: &CodecState, rank: u64) -> Option<&[f32]> {
    state.powersgd.as_ref().filter(|f| f.rank == rank).map(|f| f.values.as_slice())
}

/// Stores the last Q of a tensor, cols x rank, row-major.
pub(crate) fn store_factor(state: &mut CodecState, rank: u64, values: Vec<f32>) {
    state.powersgd = Some(Factor { rank, values });
}

/// Returns the rows and columns of a tensor that is sent as factors, or `None` if it is sent uncompressed. A
/// tensor is sent uncompressed if it has fewer than two dimensions, or if its factors, at 32 bits per number,
/// would take as many bytes or more.
pub(crate) fn matrix(shape: &[u64], dtype: Dtype, rank: u64) -> Option<(usize, usize)> {
    let [rows, rest @ ..] = shape else { return None };
    let cols: u64 = rest.iter().product();
    let factors = rows.checked_add(cols)?.checked_mul(rank)?.checked_mul(32)?;
    let elements = rows.checked_mul(cols)?.checked_mul(dtype.bits().into())?;
    let smaller = !rest.is_empty() && factors < elements;
    smaller.then_some((usize::try_from(*rows).ok()?, usize::try_from(cols).ok()?))
}

/// Returns all elements of a tensor plus the residual. The sums must be finite.
pub(crate) fn elements(tensor: &mut Source<'_>) -> Result<Vec<f32>> {
    let mut sums = pages::zeros(tensor.len);
    let places = sums.chunks_mut(CHUNK).collect();
    let are_finite = tensor.scan_into(0..tensor.len, CHUNK, places, |chunk, place: &mut [f32]| {
        chunk.whole(|_, values| {
            place.copy_from_slice(values);
            all_finite(values)
        })
    });
    if are_finite.iter().all(|are| *are) { Ok(sums) } else { Err(tensor.non_finite()) }
}

/// Returns the elements as [`elements`]: with feedback in the memory of the residual, which is taken from the
/// tensor.
fn taken_elements(tensor: &mut Source<'_>) -> Result<Vec<f32>> {
    if tensor.residual_after.is_none() {
        return elements(tensor);
    }
    let are_finite = tensor.scan(0..tensor.len, CHUNK, |chunk| chunk.whole(|_, values| all_finite(values)));
    match tensor.residual_after.take() {
        Some(sums) if are_finite.iter().all(|are| *are) => Ok(sums),
        _ => Err(tensor.non_finite()),
    }
}

/// Appends blocks of the uncompressed elements, clamped to the range of the tensor's type.
fn plain(tensor: &mut Source<'_>, sums: &[f32], options: &Options, blocks: &mut Vec<Block>) -> Result<()> {
    let step = usize::try_from(options.block_len).unwrap_or(usize::MAX);
    for start in (0..sums.len()).step_by(step) {
        let part = &sums[start..sums.len().min(start.saturating_add(step))];
        let (values, decoded) = sparse::floats(tensor.dtype, Kept::F32, part)?;
        if let Some(after) = &mut tensor.residual_after {
            let decoded = decoded.as_deref().unwrap_or(part);
            after[start..].iter_mut().zip(decoded).for_each(|(x, d)| *x = finite(*x - d));
        }
        let scope = match part.len() == sums.len() {
            true => Scope::Tensor(tensor.tensor),
            false => Scope::Range { tensor: tensor.tensor, start: start as u64, len: part.len() as u64 },
        };
        blocks.push(Block { scope, add: false, support: Support::All, values });
    }
    Ok(())
}

/// Returns the columns that M is multiplied by, cols x rank: those of the last step, orthonormalised. A
/// missing, zero or non-finite column is drawn from the seed.
pub(crate) fn basis(before: Option<&[f32]>, cols: usize, rank: usize, seed: u64, tensor: u64) -> Vec<f64> {
    let before = before.filter(|b| b.len() == cols * rank);
    let mut basis = match before {
        Some(before) => before.iter().map(|&x| f64::from(x)).collect(),
        None => vec![0.0; cols * rank],
    };
    // The second pass handles columns that were linear combinations of others.
    for _ in 0..2 {
        for t in 0..rank {
            let column = || basis[t..].iter().step_by(rank);
            if column().all(|x| *x == 0.0) || !column().all(|x| x.is_finite()) {
                for (j, x) in basis[t..].iter_mut().step_by(rank).enumerate() {
                    let word = random::word(seed, tensor, (j * rank + t) as u64);
                    *x = (f64::from(word) + 0.5) / f64::from(1u32 << 31) - 1.0;
                }
            }
        }
        orthonormalise(&mut basis, rank);
    }
    basis
}

/// Relative size below which the rest of a projected column counts as rounding error.
const NOTHING: f64 = 1.0 / (1u64 << 40) as f64;

/// Makes the columns of a row-major matrix orthonormal by modified Gram-Schmidt. Each column is projected
/// twice, so that the second projection corrects the rounding of the first. A column that is zero or a linear
/// combination of earlier ones becomes zero.
fn orthonormalise(matrix: &mut [f64], rank: usize) {
    let dot = |matrix: &[f64], s: usize, t: usize| {
        matrix.chunks_exact(rank).fold(0.0, |sum, row| sum + row[s] * row[t])
    };
    for t in 0..rank {
        let before = dot(matrix, t, t).sqrt();
        for s in (0..t).chain(0..t) {
            let along = dot(matrix, s, t);
            matrix.chunks_exact_mut(rank).for_each(|row| row[t] -= along * row[s]);
        }
        let after = dot(matrix, t, t).sqrt();
        let is_there = after > NOTHING * before;
        matrix.chunks_exact_mut(rank).for_each(|row| row[t] = if is_there { row[t] / after } else { 0.0 });
    }
}

/// Columns of a factor, and rows of the matrix, whose sums are computed at once.
const WIDE: usize = 4;

/// Computes M Q, rows x rank. Each sum is in the order of the columns.
pub(crate) fn times(matrix: &[f32], cols: usize, basis: &[f64]) -> Vec<f64> {
    let rank = basis.len() / cols;
    let groups = groups(basis, rank);
    let rows = matrix.par_chunks(WIDE * cols).map(|rows| {
        let mut all = vec![0.0; rows.len() / cols * rank];
        for (basis, first) in groups.iter().zip((0..).step_by(WIDE)) {
            let sums = arch::run(Times { rows, basis });
            for (all, sums) in all.chunks_exact_mut(rank).zip(sums) {
                all[first..].iter_mut().zip(sums).for_each(|(all, sum)| *all = sum);
            }
        }
        all
    });
    rows.collect::<Vec<_>>().concat()
}

/// Computes M^T P, cols x rank. Each sum is in the order of the rows.
pub(crate) fn transposed_times(matrix: &[f32], cols: usize, left: &[f32], rank: usize) -> Vec<f64> {
    /// Number of columns that a thread processes at a time.
    const STRIP: usize = 256;
    let left: Vec<f64> = left.iter().map(|&x| f64::from(x)).collect();
    let groups = groups(&left, rank);
    let strips = (0..cols).into_par_iter().step_by(STRIP).map(|first| {
        let len = STRIP.min(cols - first);
        let mut all = vec![0.0; len * rank];
        for (left, column) in groups.iter().zip((0..).step_by(WIDE)) {
            let mut sums = [[0.0; WIDE]; STRIP];
            arch::run(TransposedTimes { matrix, cols, first, left, sums: &mut sums[..len] });
            for (all, sums) in all.chunks_exact_mut(rank).zip(sums) {
                all[column..].iter_mut().zip(sums).for_each(|(all, sum)| *all = sum);
            }
        }
        all
    });
    strips.collect::<Vec<_>>().concat()
}

/// Returns the rows of a factor by groups of columns; the last group may end with columns of zeros.
fn groups(factor: &[f64], rank: usize) -> Vec<Vec<[f64; WIDE]>> {
    let group = |first: usize| {
        let rows = factor.chunks_exact(rank);
        rows.map(|row| std::array::from_fn(|t| row.get(first + t).copied().unwrap_or(0.0))).collect()
    };
    (0..rank).step_by(WIDE).map(group).collect()
}

/// Sums of at most [`WIDE`] rows times a group of columns.
struct Times<'a> {
    rows: &'a [f32],
    basis: &'a [[f64; WIDE]],
}

impl Kernel for Times<'_> {
    type Output = [[f64; WIDE]; WIDE];

    #[inline(always)]
    fn call(self) -> Self::Output {
        let Self { rows, basis } = self;
        let cols = basis.len();
        // In place of a row that is not there, the first one, whose sums nobody takes.
        let rows: [&[f32]; WIDE] = std::array::from_fn(|row| {
            rows.get(row * cols..).and_then(|rest| rest.get(..cols)).unwrap_or(&rows[..cols])
        });
        let mut sums = [[0.0; WIDE]; WIDE];
        for (column, q) in basis.iter().enumerate() {
            for (row, sums) in rows.iter().zip(&mut sums) {
                let x = f64::from(row[column]);
                sums.iter_mut().zip(q).for_each(|(sum, q)| *sum += x * q);
            }
        }
        sums
    }
}

/// Adds a strip of columns, transposed, times a group of columns of P.
struct TransposedTimes<'a> {
    matrix: &'a [f32],
    cols: usize,
    /// First column of the strip.
    first: usize,
    left: &'a [[f64; WIDE]],
    sums: &'a mut [[f64; WIDE]],
}

impl Kernel for TransposedTimes<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { matrix, cols, first, left, sums } = self;
        let len = sums.len();
        let strip = |row: usize| &matrix[row * cols + first..][..len];
        let (fours, rest) = left.as_chunks::<WIDE>();
        // Of several rows at once, so that sums are loaded and stored less often.
        for (p, row) in fours.iter().zip((0..).step_by(WIDE)) {
            let [a, b, c, d]: [&[f32]; WIDE] = std::array::from_fn(|next| strip(row + next));
            for ((((sums, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                for (x, p) in [a, b, c, d].iter().zip(p) {
                    sums.iter_mut().zip(p).for_each(|(sum, p)| *sum += f64::from(**x) * p);
                }
            }
        }
        for (p, row) in rest.iter().zip(WIDE * fours.len()..) {
            for (x, sums) in strip(row).iter().zip(sums.iter_mut()) {
                sums.iter_mut().zip(p).for_each(|(sum, p)| *sum += f64::from(*x) * p);
            }
        }
    }
}

/// Returns P in the form that is sent, with orthonormal columns.
pub(crate) fn left_factor(mut product: Vec<f64>, rank: usize) -> Vec<f32> {
    orthonormalise(&mut product, rank);
    product.into_iter().map(|x| x as f32).collect()
}

/// Converts to binary32 numbers, clamped to the largest finite number.
pub(crate) fn numbers(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| finite(x as f32)).collect()
}

pub(crate) fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Returns the values P Q^T and the finite numbers that receivers with elements of this type decode from
/// them.
pub(crate) fn product(
    left: Vec<f32>,
    mut right: Vec<f32>,
    rank: u64,
    dtype: Dtype,
) -> Result<(Values, Vec<f32>)> {
    let factor =
        |numbers: &[f32]| Box::new(Values::Floats(Floats { stored: Stored::F32, bytes: bytes(numbers) }));
    let (rows, cols) = (left.len() as u64 / rank, right.len() as u64 / rank);
    loop {
        let (left, right_factor) = (factor(&left), factor(&right));
        let values = Values::LowRank(LowRank { rows, cols, rank, left, right: right_factor });
        let mut decoded = numbers_of(&values, rows * cols)?;
        let max = max_finite(dtype);
        if decoded.iter().fold(true, |all, x| all & (x.abs() <= max)) {
            round_f32s(dtype, &mut decoded)?;
            return Ok((values, decoded));
        }
        // A projection of large elements may be larger than the elements and exceed the range of the tensor's
        // type.
        right.iter_mut().for_each(|x| *x *= 0.5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_orthonormal_and_dependent_ones_zero() {
        let random = |i: u64| f64::from(random::word(3, 0, i)) / 4e9 - 0.5;
        // Column 2 is zero. Column 3 is column 0 plus twice column 1.
        let mut matrix: Vec<f64> = (0..50)
            .flat_map(|i| {
                let (a, b) = (random(2 * i), random(2 * i + 1));
                [a, b, 0.0, a + 2.0 * b, random(1000 + i)]
            })
            .collect();
        orthonormalise(&mut matrix, 5);
        for s in 0..5 {
            for t in 0..5 {
                let product: f64 = matrix.chunks(5).map(|row| row[s] * row[t]).sum();
                let wanted = if s == t && s != 2 && s != 3 { 1.0 } else { 0.0 };
                assert!((product - wanted).abs() < 1e-14, "{s} {t} {product}");
            }
        }
    }

    #[test]
    fn a_basis_has_no_column_that_is_zero() {
        for before in [None, Some(vec![0.0f32; 30]), Some([1.0, 1.0, f32::NAN].repeat(10))] {
            let basis = basis(before.as_deref(), 10, 3, 7, 0);
            for t in 0..3 {
                let norm: f64 = basis[t..].iter().step_by(3).map(|x| x * x).sum();
                assert!((norm - 1.0).abs() < 1e-14, "{before:?} {t} {norm}");
            }
        }
    }

    #[test]
    fn products_are_those_of_single_sums_in_their_order() {
        for (rows, cols, rank) in [(9, 300, 4), (1, 5, 1), (4, 256, 3), (6, 257, 9)] {
            let number = |i: usize| (random::word(9, 0, i as u64) as i32) as f32 / 1e5;
            let matrix: Vec<f32> = (0..rows * cols).map(number).collect();
            let basis: Vec<f64> = (0..cols * rank).map(|i| f64::from(number(i + 7)) / 3.0).collect();
            let left: Vec<f32> = (0..rows * rank).map(|i| number(i + 11)).collect();
            let (products, transposed) =
                (times(&matrix, cols, &basis), transposed_times(&matrix, cols, &left, rank));
            assert_eq!((products.len(), transposed.len()), (rows * rank, cols * rank));
            for t in 0..rank {
                for i in 0..rows {
                    let sum = (0..cols)
                        .fold(0.0, |sum, j| sum + f64::from(matrix[i * cols + j]) * basis[j * rank + t]);
                    assert_eq!(products[i * rank + t].to_bits(), sum.to_bits(), "{rows} x {cols}: {i} {t}");
                }
                for j in 0..cols {
                    let term = |i: usize| f64::from(matrix[i * cols + j]) * f64::from(left[i * rank + t]);
                    let sum = (0..rows).fold(0.0, |sum, i| sum + term(i));
                    assert_eq!(transposed[j * rank + t].to_bits(), sum.to_bits(), "{rows} x {cols}: {j} {t}");
                }
            }
        }
    }

    #[test]
    fn what_is_sent_as_factors() {
        assert_eq!(matrix(&[64, 3, 7, 7], Dtype::F32, 4), Some((64, 147)));
        assert_eq!(matrix(&[10, 10], Dtype::F32, 5), None);
        assert_eq!(matrix(&[10, 10], Dtype::F32, 4), Some((10, 10)));
        assert_eq!(matrix(&[10, 10], Dtype::Bf16, 4), None);
        assert_eq!(matrix(&[1000], Dtype::F32, 1), None);
        assert_eq!(matrix(&[], Dtype::F32, 1), None);
        assert_eq!(matrix(&[0, 5], Dtype::F32, 1), None);
    }
}
