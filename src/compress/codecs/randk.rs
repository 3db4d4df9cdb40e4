//! Random elements, the same for every sender that has the seed (random-k; Stich et al., arXiv 1809.07599, section 2.1):
//! positions cost nothing, and equal supports can be summed.

use crate::block::{Block, Scope, Seeded, Support};
use crate::compress::source::{CHUNK, Source};
use crate::compress::{Amount, Kept, sparse};
use crate::error::Result;
use crate::random;

/// What the kept elements are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// n/k: the mean over seeds of what arrives is the tensor. Not for error feedback, whose residuals it makes grow.
    Unbiased,
    /// 1: nothing is expected of what was not drawn; with error feedback it comes later.
    One,
}

/// One block for each tensor of a run.
pub(crate) fn blocks(
    tensors: &mut [Source<'_>],
    amount: Amount,
    scaling: Scaling,
    values: Kept,
    seed: u64,
    blocks: &mut Vec<Block>,
) -> Result<()> {
    for tensor in tensors {
        // Every element is looked at, so that an error does not depend on the draw.
        let finite = tensor.scan(0..tensor.len, CHUNK, |chunk| {
            let mut finite = true;
            chunk.tiles(|_, tile| finite &= tile.iter().all(|x| x.is_finite()));
            finite
        });
        if finite.contains(&false) {
            return Err(tensor.non_finite());
        }
        let n = tensor.len as u64;
        let (count, seed) = (amount.of(n), seed_of(seed, tensor.tensor));
        let positions = random::sample(n, count, seed);
        let factor = match scaling {
            Scaling::Unbiased => n as f64 / count.max(1) as f64,
            Scaling::One => 1.0,
        };
        let read = |&p: &u64| {
            let mut x = [0.0];
            tensor.read(p as usize, &mut x);
            // Not infinite: the largest number at most.
            (f64::from(x[0]) * factor).clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
        };
        let numbers: Vec<f32> = positions.iter().map(read).collect();
        let (values, decoded) = sparse::floats(tensor.dtype, values, &numbers)?;
        tensor.subtract(&positions, decoded)?;
        let support = Support::Seeded(Seeded { count, seed });
        blocks.push(Block { scope: Scope::Tensor(tensor.tensor), add: false, support, values });
    }
    Ok(())
}

/// The seed of a tensor, so that tensors of one length do not all get the same positions. Its generator's counter is
/// beyond those of elements and of draws.
fn seed_of(seed: u64, tensor: u64) -> u64 {
    let counter = [tensor as u32, (tensor >> 32) as u32, u32::MAX - 1, u32::MAX];
    let words = random::philox4x32_10(counter, random::key(seed));
    u64::from(words[0]) | u64::from(words[1]) << 32
}
