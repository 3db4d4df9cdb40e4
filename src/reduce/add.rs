//! Sums in the compressed domain (ScaleCom, arXiv 2104.11125, section 3).

use super::linear::Linear;
use crate::block::space::Surroundings;
use crate::block::values::dct::coefficients_of;
use crate::block::{Block, IndexSpace, Sets, Stored, Values, support};
use crate::error::{Error, Result};
use crate::tensor::Dtype;

/// The sum of two blocks that speak of the same elements, without expanding them.
///
/// Both must have the same scope, flag and support, and numbers as they are: [`Values::Floats`](crate::Values::Floats) or
/// [`Values::Planes`](crate::Values::Planes), or [`Values::Dct`](crate::Values::Dct) of one layout with floats as coefficients
/// on one support: a transform is linear, but for rounding. `space` is their index space; `sets` must have the set that they refer to, if
/// they do. Both must be of one manifest, which a block does not know.
///
/// Integers are added exactly. Floats of 32 bits and fewer are added as 32-bit floats, each sum rounded once; the result is
/// stored as the tensor's own type if that is f32, else as f32, so that a sum of f16 numbers is not rounded to f16 at every
/// step. Where the tensor is f64 and one of the two is stored as such, so is the result. To add more than two, add in the
/// order of the senders' numbers, or nodes will differ.
///
/// # Errors
/// [`InputErrorKind::CannotReduce`](crate::error::InputErrorKind::CannotReduce) with the reason, if the sum is not a block of
/// these supports; other [`Error::Input`] for blocks that do not hold together and sets that are not known.
pub fn add(a: &Block, b: &Block, space: &IndexSpace, sets: &Sets) -> Result<Block> {
    let in_tensor = |e: Error| e.in_tensor(a.scope.first());
    if a.scope != b.scope {
        return Err(in_tensor(Error::cannot_reduce("they are of different tensors, or parts of one")));
    }
    if a.add != b.add {
        return Err(in_tensor(Error::cannot_reduce("one adds to earlier blocks, the other replaces them")));
    }
    if a.support != b.support {
        return Err(in_tensor(Error::cannot_reduce("they speak of different elements")));
    }
    let values = sum(a, b, space, sets).map_err(in_tensor)?;
    Ok(Block { scope: a.scope, add: a.add, support: a.support.clone(), values })
}

fn sum(a: &Block, b: &Block, space: &IndexSpace, sets: &Sets) -> Result<Values> {
    support::check(&a.support, space.len())?;
    let around = Surroundings { space, manifest: [0; 32], scope: a.scope, sets };
    let count = support::count(&a.support, space.len(), &around)?;
    if let (Values::Dct { .. }, Values::Dct { .. }) = (&a.values, &b.values) {
        return sum_of_transforms(&a.values, &b.values, space);
    }
    let numbers = |block: &Block| Linear::of_values(&block.values, space.dtype, count);
    numbers(a)?.add(numbers(b)?)?.into_values(space.dtype)
}

fn sum_of_transforms(a: &Values, b: &Values, space: &IndexSpace) -> Result<Values> {
    let (
        Values::Dct { rows, cols, chunk_rows, chunk_cols, support, coefficients },
        Values::Dct {
            rows: other_rows,
            cols: other_cols,
            chunk_rows: other_chunk_rows,
            chunk_cols: other_chunk_cols,
            support: other_support,
            coefficients: others,
        },
    ) = (a, b)
    else {
        return Err(Error::inconsistent("values kind"));
    };
    let layout = (rows, cols, chunk_rows, chunk_cols);
    if layout != (other_rows, other_cols, other_chunk_rows, other_chunk_cols) || support != other_support {
        return Err(Error::cannot_reduce("their coefficients are of different layouts or supports"));
    }
    let count = coefficients_of(a, space.len())?;
    let numbers = |values| Linear::of_values(values, Dtype::F32, count);
    let bytes = numbers(coefficients)?.add(numbers(others)?)?.to_elements(Dtype::F32)?;
    Ok(Values::Dct {
        rows: *rows,
        cols: *cols,
        chunk_rows: *chunk_rows,
        chunk_cols: *chunk_cols,
        support: support.clone(),
        coefficients: Box::new(Values::Floats { stored: Stored::F32, bytes }),
    })
}
