//! Momentum factor masking: the momentum of an element restarts at zero when the element is sent, so that
//! stale momentum does not move the element again (arXiv 1712.01887, section 3.3; arXiv 1805.08768 does the
//! same).

use std::ops::Range;

use crate::block::{Block, Scope, Sets};
use crate::error::{Error, InputErrorKind, Result};

/// Sets the momenta of all elements in the supports of `blocks` to zero.
///
/// `momenta`: one entry per tensor, in ascending order of tensor numbers: the tensor's number, and the
/// momentum of each element, row-major. A block of all elements of a tensor clears the whole tensor. Blocks
/// on index sets are refused, because this function does not have the sets.
///
/// # Errors
/// [`Error::Input`] if `momenta` lack a tensor of a block or have another length, or if a block is on an
/// index set. The momenta do not change then.
pub fn mask_momenta<B: AsRef<Block>>(blocks: &[B], momenta: &mut [(u64, &mut [f32])]) -> Result<()> {
    if !momenta.is_sorted_by(|(a, _), (b, _)| a < b) {
        return Err(Error::not_ascending("tensors of the momenta"));
    }
    let lens: Vec<(u64, u64)> = momenta.iter().map(|(tensor, m)| (*tensor, m.len() as u64)).collect();
    for block in blocks {
        visit(block.as_ref(), &lens, &mut |_, _| ())?;
    }
    for block in blocks {
        visit(block.as_ref(), &lens, &mut |i, range| momenta[i].1[range].fill(0.0))?;
    }
    Ok(())
}

/// Calls `f` with each run of elements in a block's support: the index in `lens`, and the range inside that
/// tensor.
fn visit(block: &Block, lens: &[(u64, u64)], f: &mut dyn FnMut(usize, Range<usize>)) -> Result<()> {
    let wrong = || Error::input(InputErrorKind::Mismatch { what: "tensors of blocks and momenta" });
    let wrong = || wrong().in_tensor(block.scope.first());
    let first = lens.partition_point(|(tensor, _)| *tensor < block.scope.first());
    let tensors = lens[first..].iter().zip(block.scope.first()..);
    let found = tensors.take_while(|((tensor, _), wanted)| tensor == wanted).count() as u64;
    if found < block.scope.tensors() {
        return Err(wrong());
    }
    let lens = &lens[first..first + block.scope.tensors() as usize];
    let (start, n) = match block.scope {
        Scope::Range { start, len, .. } if start.checked_add(len).is_none_or(|end| end > lens[0].1) => {
            return Err(wrong());
        }
        Scope::Range { start, len, .. } => (start, len),
        _ => (0, lens.iter().map(|(_, len)| len).sum()),
    };
    block.support.check(n).map_err(|_| wrong())?;
    let (mut at, mut base) = (0, 0);
    block.support.for_each_run(n, &Sets::new(), &mut |position, mut len| {
        let mut position = start + position;
        while len > 0 {
            while position - base >= lens[at].1 {
                base += lens[at].1;
                at += 1;
            }
            let here = len.min(lens[at].1 - (position - base));
            let from = (position - base) as usize;
            f(first + at, from..from + here as usize);
            position += here;
            len -= here;
        }
        Ok(())
    })
}
