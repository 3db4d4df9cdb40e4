//! Random-k (Stich et al., arXiv 1809.07599, section 2.1): keeps random elements, the same for every sender
//! that has the seed. Positions cost no bytes, and equal supports can be summed.

use super::sparse;
use crate::block::{Block, Scope, Seeded, Support};
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::settings::{Amount, Kept, Setting, Visitor};
use crate::compress::source::{CHUNK, all_finite};
use crate::error::Result;
use crate::random;

const SCALE: Setting<Scaling> = Setting::one_of("scale", &[(Scaling::Unbiased, "n/k"), (Scaling::One, "1")]);
const FLOATS: Setting<Kept> =
    Setting::one_of("values", &[(Kept::F32, "f32"), (Kept::F16, "f16"), (Kept::Bf16, "bf16")]);

/// Factor by which kept elements are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// n/k: the mean of the decoded tensor over seeds is the tensor. Not for error feedback, because this
    /// factor makes residuals grow.
    Unbiased,
    /// 1: elements that were not drawn are not compensated for. With error feedback they are sent later.
    One,
}

/// `randk`: keeps elements drawn at random from a seed, which replaces their positions (arXiv 1809.07599).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandK {
    /// `density` or `k`: the number of elements to keep of each tensor. Default: density 0.01.
    pub amount: Amount,
    /// `scale`: the factor for kept elements, `n/k` or `1`. Default: `n/k`.
    pub scale: Scaling,
    /// `values`: the form in which kept elements are sent, `f32`, `f16` or `bf16`. Default: `f32`.
    pub values: Kept,
    /// `seed`: the seed of the draw. Use a different one for every step, and the same one on all senders
    /// whose updates are summed. Default: 1.
    pub seed: u64,
}

impl Default for RandK {
    fn default() -> Self {
        Self { amount: Amount::Density(0.01), scale: Scaling::Unbiased, values: Kept::F32, seed: 1 }
    }
}

impl Compressor for RandK {
    const NAME: &'static str = "randk";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.amount(&mut self.amount)?;
        visitor.visit(&SCALE, &mut self.scale)?;
        visitor.visit(&FLOATS, &mut self.values)?;
        visitor.seed(&mut self.seed)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let mut blocks = Vec::with_capacity(run.tensors.len());
        for tensor in run.tensors {
            // All elements are checked, so that an error does not depend on the draw.
            let finite = tensor.scan(0..tensor.len, CHUNK, |chunk| {
                let mut finite = true;
                chunk.runs(|_, run| finite &= all_finite(&run));
                finite
            });
            if finite.contains(&false) {
                return Err(tensor.non_finite());
            }
            let n = tensor.len as u64;
            let (count, seed) = (self.amount.of(n), seed_of(self.seed, tensor.tensor));
            let positions = random::sample(n, count, seed);
            let factor = match self.scale {
                Scaling::Unbiased => n as f64 / count.max(1) as f64,
                Scaling::One => 1.0,
            };
            let read = |&p: &u64| {
                let mut x = [0.0];
                tensor.read(p as usize, &mut x);
                // Clamped to the finite range, so that the product is never infinite.
                (f64::from(x[0]) * factor).clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
            };
            let numbers: Vec<f32> = positions.iter().map(read).collect();
            let (values, decoded) = sparse::floats(tensor.dtype, self.values, &numbers)?;
            tensor.subtract(&positions, decoded.as_deref().unwrap_or(&numbers))?;
            let support = Support::Seeded(Seeded { count, seed });
            blocks.push(Block { scope: Scope::Tensor(tensor.tensor), add: false, support, values });
        }
        Ok(blocks)
    }
}

/// Returns the seed of a tensor, so that tensors of equal length do not all get the same positions. The
/// generator's counter for this seed is beyond those of elements and draws.
fn seed_of(seed: u64, tensor: u64) -> u64 {
    let counter = [tensor as u32, (tensor >> 32) as u32, u32::MAX - 1, u32::MAX];
    let words = random::philox4x32_10(counter, random::key(seed));
    u64::from(words[0]) | u64::from(words[1]) << 32
}
