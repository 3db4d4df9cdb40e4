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
use crate::block::{Block, Floats, LowRank, Scope, Stored, Support, Values};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::options::Options;
use crate::compress::settings::{Kept, Setting, Visitor};
use crate::compress::source::{CHUNK, Source};
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
            let sums = elements(tensor)?;
            let Some((_, cols)) = matrix(input.view.shape(), tensor.dtype, rank) else {
                plain(tensor, &sums, run.options, &mut blocks)?;
                continue;
            };
            let basis = basis(last_factor(&tensor.state, rank), cols, rank as usize, seed, tensor.tensor);
            let left = left_factor(times(&sums, cols, &basis), rank as usize);
            let right = numbers(&transposed_times(&sums, cols, &left, rank as usize));
            let (values, decoded) = product(left, right, rank, tensor.dtype)?;
            if let Some(after) = &mut tensor.residual_after {
                after.iter_mut().zip(&decoded).for_each(|(x, d)| *x = finite(*x - d));
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
    let parts = tensor.scan(0..tensor.len, CHUNK, |chunk| chunk.whole(|_, values| values.to_vec()));
    let sums = parts.concat();
    if sums.iter().all(|x| x.is_finite()) { Ok(sums) } else { Err(tensor.non_finite()) }
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

/// Computes M Q, rows x rank. Each sum is in the order of the columns.
pub(crate) fn times(matrix: &[f32], cols: usize, basis: &[f64]) -> Vec<f64> {
    let rank = basis.len() / cols;
    let rows = matrix.par_chunks_exact(cols).map(|row| {
        let mut sums = vec![0.0; rank];
        for (x, q) in row.iter().zip(basis.chunks_exact(rank)) {
            sums.iter_mut().zip(q).for_each(|(s, q)| *s += f64::from(*x) * q);
        }
        sums
    });
    rows.collect::<Vec<_>>().concat()
}

/// Computes M^T P, cols x rank. Each sum is in the order of the rows.
pub(crate) fn transposed_times(matrix: &[f32], cols: usize, left: &[f32], rank: usize) -> Vec<f64> {
    /// Number of columns that a thread processes at a time.
    const STRIP: usize = 256;
    let strips = (0..cols).into_par_iter().step_by(STRIP).map(|first| {
        let len = STRIP.min(cols - first);
        let mut sums = vec![0.0; len * rank];
        for (row, p) in matrix.chunks_exact(cols).zip(left.chunks_exact(rank)) {
            for (x, sums) in row[first..first + len].iter().zip(sums.chunks_exact_mut(rank)) {
                sums.iter_mut().zip(p).for_each(|(s, p)| *s += f64::from(*x) * f64::from(*p));
            }
        }
        sums
    });
    strips.collect::<Vec<_>>().concat()
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
        if decoded.iter().all(|x| x.abs() <= max) {
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
