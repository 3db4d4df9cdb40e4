//! SIDCo (Abdelmoniem et al., arXiv 2101.10761): selects by a threshold instead of a sort. The threshold
//! comes from a distribution fitted to the magnitudes in stages.
//!
//! [`Stages`] has three ways to choose the number of stages. The first is a fixed number. The second is the
//! authors' rule, which adapts the number for each tensor to the counts kept in earlier steps. The third is a
//! guard of this library, which stays within 10 % of the target in every step for any distribution.
//!
//! Differences from the authors' code: exact zeros take no part in the fit, because row-sparse gradients have
//! many zeros. Exceedances are relative to the threshold that they exceed, as in the paper. Each tensor has
//! its own number of stages.
//!
//! A fixed number of stages and the authors' rule read the tensor once for each fit and once to collect. The
//! guard first fits a sample. It then reads the tensor once, collects somewhat more elements than the target,
//! and refines among them. Of targets below ten elements, its band has one number only: the guard keeps the
//! largest elements then, which a selection finds without a fit. `cargo bench --bench speed -- --only sidco`
//! measures it beside exact top-k.
//!
//! In every mode zeros are never kept, and all non-zero elements are kept if their number does not exceed the
//! target. NaN and infinity are errors at any position. If all magnitudes are equal, the guard keeps the
//! first ones up to the target; the other modes keep all.
//!
//! Thresholds rest on the logarithms and exponentials of the platform's mathematical library, whose last bit
//! differs between platforms. One platform keeps the same elements for any number of threads and any
//! instruction set; another may keep a few more or fewer.

mod fit;
mod stages;

use rayon::prelude::*;

pub use fit::Fit;
pub use stages::Stages;
pub(in crate::compress) use stages::{Goal, Refined, Refining, Staging};

use crate::arch::threads::in_order;
use crate::block::{Block, Positions};
use crate::compress::codecs::sparse;
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::select::Scratch;
use crate::compress::settings::{Amount, KEPT, Kept, Setting, Visitor};
use crate::error::Result;

const FIT: Setting<Fit> =
    Setting::one_of("fit", &[(Fit::Exp, "exp"), (Fit::GammaGp, "gamma-gp"), (Fit::Gp, "gp")]);
const STAGES: Setting<Stages> = Setting {
    key: "stages",
    allowed: "guard, authors, or 1 to 64",
    names: &[(Stages::Guard, "guard"), (Stages::Authors, "authors")],
    parse: |text| text.parse().ok().map(Stages::Fixed),
    fits: |stages| matches!(stages, Stages::Fixed(1..=64)),
    text: |stages| if let Stages::Fixed(stages) = stages { stages.to_string() } else { String::new() },
    unwritten: None,
};

/// `sidco`: keeps approximately the requested number of elements of largest magnitude, by a fitted threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sidco {
    /// `density` or `k`: the approximate number of elements to keep of each tensor. Default: density 0.001.
    pub amount: Amount,
    /// `fit`: the distribution fitted to the magnitudes, `exp`, `gamma-gp` or `gp`. Default: `gp`.
    pub fit: Fit,
    /// `stages`: `guard`, `authors`, or a number from 1 to 64. Default: `guard`.
    pub stages: Stages,
    /// `values`: the form in which kept elements are sent. Default: `f32`.
    pub values: Kept,
    /// `seed`: the seed for rounding to powers of two. Default: 1.
    pub seed: u64,
    /// `positions`: the encoding of positions. Default: `auto`.
    pub positions: Positions,
}

impl Default for Sidco {
    fn default() -> Self {
        Self {
            amount: Amount::Density(0.001),
            fit: Fit::Gp,
            stages: Stages::Guard,
            values: Kept::F32,
            seed: 1,
            positions: Positions::Auto,
        }
    }
}

impl Compressor for Sidco {
    const NAME: &'static str = "sidco";
    const SHARES_BLOCKS: bool = true;

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.amount(&mut self.amount)?;
        visitor.visit(&FIT, &mut self.fit)?;
        visitor.visit(&STAGES, &mut self.stages)?;
        visitor.visit(&KEPT, &mut self.values)?;
        visitor.seed(&mut self.seed)?;
        visitor.positions(&mut self.positions)
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let chosen = in_order(run.tensors.par_iter_mut().map_init(Scratch::default, |scratch, source| {
            let k = self.amount.of(source.len as u64);
            let state = source.state.sidco.unwrap_or_default();
            let (chosen, after) = stages::select(source, self.fit, self.stages, k, state, scratch)?;
            if self.stages == Stages::Authors {
                source.state.sidco = Some(after);
            }
            Ok(chosen)
        }))?;
        sparse::blocks(run.tensors, chosen, self.values, self.seed)
    }
}

#[cfg(test)]
mod tests;
