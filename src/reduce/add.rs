//! Sums in the compressed domain (ScaleCom, arXiv 2104.11125, section 3).

use super::linear::Linear;
use crate::block::space::Surroundings;
use crate::block::{Block, Dct, Floats, IndexSpace, Sets, Stored, Values};
use crate::error::{Error, Result};
use crate::tensor::Dtype;

/// Adds two blocks with the same elements, without expanding them.
///
/// Both blocks must belong to one manifest (the caller's responsibility), and have the same scope, flags and
/// support. Their values must be numbers: [`Values::Floats`](crate::block::Values::Floats),
/// [`Values::Planes`](crate::block::Values::Planes), or [`Values::Dct`](crate::block::Values::Dct) of one
/// layout with floats as coefficients on one support (the transform is linear except for rounding). `space`
/// is their index space; `sets` must contain the index set that they refer to, if any.
///
/// Integers are added exactly. Floats of at most 32 bits are added as 32-bit floats, and each sum is rounded
/// once. The result is stored in the tensor's type if that is f32, else as f32, so that a sum of f16 numbers
/// is not rounded to f16 at every step. For f64 tensors, the result is f64 if one of the two is stored as
/// f64. Add more than two blocks in the order of the senders' numbers, or nodes get different results.
///
/// # Errors
/// [`InputErrorKind::CannotReduce`](crate::error::InputErrorKind::CannotReduce) with the reason, if the sum
/// is not a block with these supports; other [`Error::Input`] for inconsistent blocks and unknown sets.
pub fn add(a: &Block, b: &Block, space: &IndexSpace, sets: &Sets) -> Result<Block> {
    let in_tensor = |e: Error| e.in_tensor(a.scope.first());
    if a.scope != b.scope {
        return Err(in_tensor(Error::cannot_reduce("they belong to different tensors, or to parts of one")));
    }
    if a.add != b.add {
        return Err(in_tensor(Error::cannot_reduce("one adds to earlier blocks, the other replaces them")));
    }
    if a.support != b.support {
        return Err(in_tensor(Error::cannot_reduce("they have different elements")));
    }
    let values = sum(a, b, space, sets).map_err(in_tensor)?;
    Ok(Block { scope: a.scope, add: a.add, support: a.support.clone(), values })
}

fn sum(a: &Block, b: &Block, space: &IndexSpace, sets: &Sets) -> Result<Values> {
    a.support.check(space.len())?;
    let around = Surroundings { space, manifest: [0; 32], scope: a.scope, sets };
    let count = a.support.count(&around)?;
    if let (Values::Dct(a), Values::Dct(b)) = (&a.values, &b.values) {
        return sum_of_transforms(a, b, space);
    }
    let numbers = |block: &Block| Linear::of_values(&block.values, space.dtype, count);
    numbers(a)?.add(numbers(b)?)?.into_values(space.dtype)
}

fn sum_of_transforms(a: &Dct, b: &Dct, space: &IndexSpace) -> Result<Values> {
    if !a.has_layout_of(b) || a.support != b.support {
        return Err(Error::cannot_reduce("their coefficients have different layouts or supports"));
    }
    let count = a.count(space.len())?;
    let numbers = |values| Linear::of_values(values, Dtype::F32, count);
    let bytes = numbers(&a.coefficients)?.add(numbers(&b.coefficients)?)?.to_elements(Dtype::F32)?;
    Ok(Values::Dct(Dct {
        support: a.support.clone(),
        coefficients: Box::new(Values::Floats(Floats { stored: Stored::F32, bytes })),
        ..*a
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Scope, Sparse, Support};
    use crate::error::{InputError, InputErrorKind};

    #[test]
    fn supports_that_do_not_fit_the_elements_are_refused() {
        let space = IndexSpace::flat(Dtype::F32, 8);
        for positions in [[1, 1], [5, 1], [1, 8]] {
            let block = Block {
                scope: Scope::Tensor(3),
                add: false,
                support: Support::Sparse(Sparse { positions: positions.to_vec() }),
                values: Values::Floats(Floats { stored: Stored::F32, bytes: vec![0; 8] }),
            };
            let refused = add(&block, &block, &space, &Sets::new()).unwrap_err();
            let Error::Input(InputError { kind, tensor }) = refused else { panic!("{refused}") };
            assert!(matches!(kind, InputErrorKind::InconsistentBlock { .. }), "{positions:?}: {kind}");
            assert_eq!(tensor, Some(3));
        }
    }
}
