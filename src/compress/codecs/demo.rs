//! DeMo (Peng et al., arXiv 2411.19870): keeps the largest coefficients of a cosine transform of each chunk.
//!
//! A matrix is cut into chunks. The sides of a chunk are the largest divisors of the matrix dimensions that
//! are at most `chunk`, as in the authors' code. A tensor of more than two dimensions becomes a matrix: its
//! first dimension by the product of the others. A vector is cut into runs. A dimension that is a large prime
//! gives chunks with a side of 1. A chunk then has one row, one column or one element, and at most all of its
//! elements are kept.

use super::chunked::{largest, support_of};
use super::matrix::{finite, numbers_of};
use super::sparse::{floats, mean_magnitude};
use crate::block::values::dct::{Layout, MAX_SIDE};
use crate::block::{
    Bits, Block, Dct, Floats, Groups, ScaleFormat, Scales, Scope, Sign, Stored, Support, Values,
};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::settings::{Kept, Setting, Visitor};
use crate::compress::source::{CHUNK, Source, all_finite};
use crate::error::Result;
use crate::tensor::Dtype;
use crate::tensor::element::{max_finite, round_f32s};

const CHUNK_SIDE: Setting<u64> = Setting::number("chunk", "1 to 128", |c| (1..=MAX_SIDE as u64).contains(&c));
const KEPT: Setting<u64> = Setting::number("kept", "at least 1", |k| k >= 1);
const VALUES: Setting<Kept> = Setting::one_of(
    "values",
    &[(Kept::Sign, "sign"), (Kept::F32, "f32"), (Kept::F16, "f16"), (Kept::Bf16, "bf16")],
);

/// `demo`: keeps the largest coefficients of a cosine transform of each chunk (DeMo).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demo {
    /// `chunk`: the longest side of a chunk, 1 to 128. Default: 64.
    pub chunk: u64,
    /// `kept`: coefficients kept of each chunk, at least 1. A smaller chunk keeps all. Default: 32.
    pub kept: u64,
    /// `values`: the form of the coefficients, `sign`, `f32`, `f16` or `bf16`. Default: `sign`.
    pub values: Kept,
}

impl Default for Demo {
    fn default() -> Self {
        Self { chunk: 64, kept: 32, values: Kept::Sign }
    }
}

impl Compressor for Demo {
    const NAME: &'static str = "demo";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&CHUNK_SIDE, &mut self.chunk)?;
        visitor.visit(&KEPT, &mut self.kept)?;
        visitor.visit(&VALUES, &mut self.values)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let mut blocks = Vec::new();
        for (tensor, input) in run.tensors.iter_mut().zip(run.inputs).filter(|(tensor, _)| tensor.len > 0) {
            // Each block covers whole rows of chunks.
            let view = View::new(input.view.shape(), self.chunk);
            let of_row = view.chunk_rows * view.cols;
            let step = of_row * (run.options.block_len / of_row).max(1);
            for start in (0..tensor.len as u64).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
                let len = step.min(tensor.len as u64 - start);
                blocks.push(block(tensor, view, start, len, self)?);
            }
        }
        Ok(blocks)
    }
}

/// Layout of a tensor as a matrix in chunks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct View {
    rows: u64,
    cols: u64,
    chunk_rows: u64,
    chunk_cols: u64,
}

impl View {
    /// Returns the layout of a non-empty tensor of this shape.
    fn new(shape: &[u64], chunk: u64) -> Self {
        let side = |dim: u64| (1..=chunk.min(dim)).rev().find(|s| dim.is_multiple_of(*s)).unwrap_or(1);
        match shape {
            [] => Self { rows: 1, cols: 1, chunk_rows: 1, chunk_cols: 1 },
            // Runs of a vector are rows, so that a long vector can be sent in several blocks.
            [n] => Self { rows: n / side(*n), cols: side(*n), chunk_rows: 1, chunk_cols: side(*n) },
            [rows, rest @ ..] => {
                let cols = rest.iter().product();
                Self { rows: *rows, cols, chunk_rows: side(*rows), chunk_cols: side(cols) }
            }
        }
    }

    fn area(&self) -> u64 {
        self.chunk_rows * self.chunk_cols
    }
}

/// Returns the block of the elements `start .. start + len`, which are whole rows of chunks.
fn block(tensor: &mut Source<'_>, view: View, start: u64, len: u64, settings: &Demo) -> Result<Block> {
    let range = start as usize..(start + len) as usize;
    let of_row = (view.chunk_rows * view.cols) as usize;
    let layout = Layout::new(view.cols, view.chunk_rows, view.chunk_cols);
    let found = tensor.scan(range.clone(), of_row * (CHUNK / of_row).max(1), |chunk| {
        chunk.whole(|_, elements| {
            let chunks = 0..elements.len() / layout.area();
            let kept = |number| largest(&layout.coefficients(number, elements), settings.kept);
            all_finite(elements).then(|| chunks.map(kept).collect::<Vec<_>>())
        })
    });
    let (mut positions, mut numbers, mut at) = (Vec::new(), Vec::new(), 0);
    for part in found {
        let Some(chunks) = part else { return Err(tensor.non_finite()) };
        for (of_chunk, coefficients) in chunks {
            positions.extend(of_chunk.iter().map(|&p| at + u64::from(p)));
            numbers.extend(coefficients.into_iter().map(finite));
            at += view.area();
        }
    }
    let support = support_of(positions, settings.kept, view.area(), len);
    let (values, mut decoded) = loop {
        let coefficients = Box::new(coefficients(settings.values, &numbers));
        let View { cols, chunk_rows, chunk_cols, .. } = view;
        let support = support.clone();
        let values =
            Values::Dct(Dct { rows: len / cols, cols, chunk_rows, chunk_cols, support, coefficients });
        if tensor.residual_after.is_none() && surely_fits(tensor.dtype, &numbers, settings.kept) {
            break (values, Vec::new());
        }
        let decoded = numbers_of(&values, len)?;
        let max = max_finite(tensor.dtype);
        if decoded.iter().all(|x| x.abs() <= max) {
            break (values, decoded);
        }
        // A partial sum may be larger than the whole sum and exceed the range of the tensor's type.
        numbers.iter_mut().for_each(|x| *x *= 0.5);
    };
    if let Some(after) = &mut tensor.residual_after {
        round_f32s(tensor.dtype, &mut decoded)?;
        after[range].iter_mut().zip(&decoded).for_each(|(x, d)| *x = finite(*x - d));
    }
    let scope = match len == tensor.len as u64 {
        true => Scope::Tensor(tensor.tensor),
        false => Scope::Range { tensor: tensor.tensor, start, len },
    };
    Ok(Block { scope, add: false, support: Support::All, values })
}

/// Whether no element can exceed the type's range. Each element is the sum of `kept` coefficients, each times
/// at most 2.
fn surely_fits(dtype: Dtype, numbers: &[f32], kept: u64) -> bool {
    let largest = numbers.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    // The mean magnitude and values rounded to 16 bits are at most twice the largest magnitude.
    f64::from(largest) * 4.0 * kept as f64 <= f64::from(max_finite(dtype))
}

fn coefficients(kept: Kept, numbers: &[f32]) -> Values {
    match kept {
        Kept::Sign => {
            let scales = Scales::from_f32s(ScaleFormat::F32, &[mean_magnitude(numbers)]);
            let negative: Bits = numbers.iter().map(|x| x.is_sign_negative()).collect();
            Values::Sign(Sign { groups: Groups::Block, scales, negative })
        }
        // Nested values have no element type to be stored as, so they are stored as for 64-bit elements.
        kept => match floats(Dtype::F64, kept, numbers) {
            Ok((values, _)) => values,
            Err(_) => Values::Floats(Floats { stored: Stored::F32, bytes: Vec::new() }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_those_of_the_authors() {
        let view = |shape: &[u64]| {
            let View { rows, cols, chunk_rows, chunk_cols } = View::new(shape, 64);
            [rows, cols, chunk_rows, chunk_cols]
        };
        assert_eq!(view(&[]), [1, 1, 1, 1]);
        assert_eq!(view(&[1000]), [20, 50, 1, 50]);
        assert_eq!(view(&[768, 3072]), [768, 3072, 64, 64]);
        assert_eq!(view(&[64, 3, 7, 7]), [64, 147, 64, 49]);
        assert_eq!(view(&[10, 67]), [10, 67, 10, 1]);
    }

    #[test]
    fn positions_take_the_smaller_form() {
        let spread =
            |kept: u64| (0..8).flat_map(move |c| (0..kept).map(move |i| c * 4096 + i * (4096 / kept)));
        let of = |kept| support_of(spread(kept).collect(), kept, 4096, 8 * 4096);
        assert!(matches!(of(1), Support::Chunked(_)));
        assert!(matches!(of(32), Support::Sparse(_)));
        assert_eq!(support_of((0..20).collect(), 10, 10, 20), Support::All);
    }
}
