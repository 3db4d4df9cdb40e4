//! Sums of sparse blocks with different positions.

use super::linear::{Linear, quiet};
use crate::block::values::to_number;
use crate::block::{Block, IndexSpace, Sparse, Support};
use crate::error::{Error, Result};

/// Merges sparse blocks into one block on the union of their positions. Each value is the sum of the values
/// at its position, added in the order of `blocks`: pass them in the order of their senders' numbers.
///
/// All blocks must have the same scope, a [`Support::Sparse`] and numbers as values, without the flag `add`.
/// Values are added and stored as in [`add()`](crate::reduce::add()). A position whose values cancel stays,
/// with value zero. Memory besides the result: 24 bytes per value of all blocks, 32 for integers.
///
/// # Errors
/// [`InputErrorKind::CannotReduce`](crate::error::InputErrorKind::CannotReduce) with the reason, and as
/// sender the number of the block in `blocks`; other [`Error::Input`] for inconsistent blocks.
pub fn merge(blocks: &[&Block], space: &IndexSpace) -> Result<Block> {
    let Some(first) = blocks.first() else { return Err(Error::cannot_reduce("no block was given")) };
    let mut all: Vec<(u64, usize)> = Vec::new();
    let mut numbers: Option<Linear> = None;
    for (i, block) in blocks.iter().enumerate() {
        let (positions, values) =
            open(block, first, space).map_err(|e| e.of_sender(i as u64).in_tensor(first.scope.first()))?;
        let start = all.len();
        all.extend(positions.iter().enumerate().map(|(i, &p)| (p, start + i)));
        numbers = Some(match numbers {
            Some(numbers) => numbers.concat(values)?,
            None => values,
        });
    }
    // Places break ties: values of one position stay in the order of their blocks.
    all.sort_unstable();
    let (positions, sums) = match numbers.unwrap_or(Linear::F32(Vec::new())) {
        Linear::F32(x) => {
            let (positions, sums) = sum_runs(&all, &x, |a, b| to_number(f64::from(a + b)));
            (positions, Linear::F32(sums))
        }
        Linear::F64(x) => {
            let (positions, sums) = sum_runs(&all, &x, |a, b| quiet(a + b));
            (positions, Linear::F64(sums))
        }
        Linear::Int(x) => {
            let (positions, sums) = sum_runs(&all, &x, |a, b| a + b);
            (positions, Linear::Int(sums))
        }
    };
    let values = sums.into_values(space.dtype).map_err(|e| e.in_tensor(first.scope.first()))?;
    Ok(Block { scope: first.scope, add: false, support: Support::Sparse(Sparse { positions }), values })
}

fn open<'a>(block: &'a Block, first: &Block, space: &IndexSpace) -> Result<(&'a [u64], Linear)> {
    if block.scope != first.scope {
        return Err(Error::cannot_reduce("it has another scope"));
    }
    if block.add {
        return Err(Error::cannot_reduce("it adds to earlier blocks of its update"));
    }
    let Support::Sparse(Sparse { positions }) = &block.support else {
        return Err(Error::cannot_reduce("it is not sparse"));
    };
    block.support.check(space.len())?;
    Ok((positions, Linear::of_values(&block.values, space.dtype, positions.len() as u64)?))
}

/// Returns the distinct positions and the sums of their values.
fn sum_runs<T: Copy>(all: &[(u64, usize)], values: &[T], add: impl Fn(T, T) -> T) -> (Vec<u64>, Vec<T>) {
    let (mut positions, mut sums): (Vec<u64>, Vec<T>) = (Vec::new(), Vec::new());
    for &(position, place) in all {
        match sums.last_mut() {
            Some(sum) if positions.last() == Some(&position) => *sum = add(*sum, values[place]),
            _ => {
                positions.push(position);
                sums.push(values[place]);
            }
        }
    }
    (positions, sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Floats, Scope, Stored, Values};
    use crate::error::{InputError, InputErrorKind};
    use crate::tensor::Dtype;

    #[test]
    fn blocks_of_other_elements_are_refused_with_their_number() {
        let of = |tensor, add| Block {
            scope: Scope::Tensor(tensor),
            add,
            support: Support::Sparse(Sparse { positions: vec![0] }),
            values: Values::Floats(Floats { stored: Stored::F32, bytes: vec![0; 4] }),
        };
        let space = IndexSpace::flat(Dtype::F32, 8);
        for (other, why) in
            [(of(4, false), "it has another scope"), (of(3, true), "it adds to earlier blocks of its update")]
        {
            let refused = merge(&[&of(3, false), &other], &space).unwrap_err();
            let kind = InputErrorKind::CannotReduce { why, sender: Some(1) };
            assert!(matches!(refused, Error::Input(e) if e == InputError { kind, tensor: Some(3) }));
        }
    }
}
