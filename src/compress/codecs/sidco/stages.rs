//! Selection of the kept elements of one tensor by fitted thresholds.

use super::fit::Fit;
use crate::compress::moments::{MomentQuery, Moments};
use crate::compress::select::{self, Chosen, Cut, Found, LOWEST, Sample, Scratch, Side};
use crate::compress::source::{CHUNK, Source};
use crate::compress::state::Adaptation;
use crate::error::Result;

/// Rule that chooses the number of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stages {
    /// Fits until 0.9 to 1.1 times the target is kept. Equal magnitudes are cut at exactly the target.
    Guard,
    /// The authors' rule, which begins with one stage. It adapts when five steps are complete: one stage less
    /// if the mean of k'/k is more than 1.2, one more if it is less than 0.8. The range is 1 to
    /// ceil(log2(n/k)). The sender's [`Feedback`](crate::compress::Feedback) holds the state; without one
    /// every call starts from one stage.
    Authors,
    /// A fixed number of stages, 1 to 64.
    Fixed(u8),
}

/// Part of the elements that is to exceed the first of several thresholds (the authors' constant
/// `first_ratio`).
const FIRST: f64 = 0.25;
/// The guard's tolerances of k'/k. They are narrower because surplus elements cost more time and bytes than
/// another fit.
const GUARD: [f64; 2] = [0.9, 1.1];
/// Maximum number of the guard's fits before it counts exactly.
const FITS: u32 = 6;

/// Returns all elements whose magnitude reaches `at`, by chunk, or `None` if there are more than `limit`.
/// Reads the tensor once.
fn collect(source: &mut Source<'_>, at: f32, limit: usize) -> Option<Vec<Found>> {
    select::collect(&mut [source], |x| select::reaches(x.abs(), at), limit)?.pop()
}

fn keep(source: &mut Source<'_>, found: Vec<Found>, cut: Cut) -> Result<Chosen> {
    Ok(select::finish(&[source], Side::Both, &[found], cut)?.pop().unwrap_or_default())
}

/// Returns the cut that keeps all magnitudes that reach a threshold.
fn reached(at: f32) -> Cut {
    Cut { least: at.to_bits(), ties: u64::MAX }
}

/// Returns a threshold as a positive float that is at most the largest magnitude.
fn rounded(threshold: f64, moments: &Moments) -> f32 {
    (threshold as f32).clamp(f32::from_bits(LOWEST), moments.max)
}

/// Selects with a number of stages: keeps all elements that reach the last threshold. Reads the tensor once
/// for each stage and once to collect. Also returns whether anything was fitted, which is false if at most
/// `k` elements are non-zero.
fn staged(source: &mut Source<'_>, fit: Fit, stages: u32, k: u64) -> Result<(Chosen, bool)> {
    let mut staging = Staging::new(fit, stages, k);
    let at = loop {
        let moments = Moments::of_source(source, staging.question());
        if !moments.sum.is_finite() {
            return Err(source.non_finite());
        }
        if let Some(at) = staging.answer(&moments) {
            break at;
        }
    };
    let found = collect(source, at, usize::MAX).unwrap_or_default();
    Ok((keep(source, found, reached(at))?, staging.fitted))
}

/// Computes the threshold of the last stage from the moments of a tensor.
///
/// With several stages, a quarter of the non-zero elements is to exceed the first threshold. Each later stage
/// takes an equal share of the remaining reduction. A threshold beyond the largest magnitude is replaced by
/// that magnitude, so at least one element is kept unless all are zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::compress) struct Staging {
    fit: Fit,
    stages: u32,
    k: u64,
    /// Stage of the next fit.
    stage: u32,
    /// Part of the non-zero elements that is to exceed the last threshold.
    part: f64,
    at: f32,
    pub(in crate::compress) fitted: bool,
}

impl Staging {
    pub(in crate::compress) fn new(fit: Fit, stages: u32, k: u64) -> Self {
        Self { fit, stages, k, stage: 0, part: 1.0, at: f32::from_bits(LOWEST), fitted: false }
    }

    /// Returns the query for the next moments of the whole tensor.
    pub(in crate::compress) fn question(&self) -> MomentQuery {
        match self.stage {
            0 => MomentQuery::all(self.fit == Fit::GammaGp),
            _ => MomentQuery::exceeding(self.at),
        }
    }

    /// Takes the queried moments and returns the last threshold once it is known.
    pub(in crate::compress) fn answer(&mut self, here: &Moments) -> Option<f32> {
        let family = self.fit.family(self.stage);
        if self.stage == 0 {
            self.fitted = here.count > self.k;
            if !self.fitted {
                return Some(self.at);
            }
            self.part = self.k as f64 / here.count as f64;
            let several = self.stages > 1 && self.part < FIRST;
            self.stages = if several { self.stages } else { 1 };
            let first = if several { FIRST } else { self.part };
            self.at = rounded(here.threshold(family, first), here);
        } else {
            let each = (self.part / FIRST).powf(1.0 / f64::from(self.stages - 1));
            let above = here.threshold(family, each);
            self.at = rounded(f64::from(self.at) + above, here).max(self.at);
        }
        self.stage += 1;
        (self.stage == self.stages).then_some(self.at)
    }
}

/// Range of the number of magnitudes that a threshold is to leave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::compress) struct Goal {
    least: u64,
    pub(in crate::compress) wanted: u64,
    pub(in crate::compress) most: u64,
}

impl Goal {
    /// Returns the goal for a sample. A threshold that at least `rank` elements of the sample reach is to be
    /// reached by `k` elements of the whole tensor.
    pub(in crate::compress) fn of_sample(rank: u64) -> Self {
        Self { least: rank, wanted: rank + rank / 16, most: rank + rank / 8 }
    }

    /// Returns the goal for all elements.
    pub(in crate::compress) fn of_all(k: u64) -> Self {
        let [least, most] = GUARD.map(|factor| factor * k as f64);
        Self { least: least.ceil() as u64, wanted: k, most: most as u64 }
    }

    /// Whether no other number than that wanted will do: below ten elements.
    pub(super) fn is_exact(self) -> bool {
        self.least == self.most
    }
}

/// Selects a number of elements within the band. Reads the tensor once, or four times if the sample misled.
///
/// ```text
/// refine a sample, which is in the cache, so that somewhat more than k elements are to exceed the threshold
/// collect the elements that exceed it; if fewer than k or far too many do, select exactly k by counting
/// refine the collected elements, so that k elements exceed the threshold
///
/// refine: fit the exceedances of the current threshold to get the next threshold
///   count within the goal: done
///   too many exceed it:    fit those
///   too few exceed it:     select exactly the wanted number by counting
/// ```
///
/// Equal magnitudes that no threshold divides are also counted. The first ones are kept, up to exactly the
/// wanted number.
pub(super) fn guarded(source: &mut Source<'_>, fit: Fit, k: u64) -> Result<Chosen> {
    let (mut at, mut stage) = (f32::from_bits(LOWEST), 0);
    if let Some(Sample { bits, rank }) = select::sample(&[source], k) {
        let sample: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let refining = Refining::new(fit, 0, at, Goal::of_sample(rank as u64));
        let first = measure(&sample, refining.question());
        if !first.sum.is_finite() {
            return Err(source.non_finite());
        }
        if first.count > refining.goal.most {
            at = f32::from_bits(refine(&sample, refining, first).least);
            stage = 1;
        }
    }
    if stage == 0 && source.len <= CHUNK.min(select::limit(k)) {
        return guarded_whole(source, fit, k);
    }
    if let Some(found) = collect(source, at, select::limit(k)) {
        let here: usize = found.iter().map(Found::len).sum();
        let goal = Goal::of_all(k);
        let enough = at.to_bits() == LOWEST || here as u64 >= k;
        if enough && here as u64 <= goal.most {
            return keep(source, found, reached(at));
        }
        let mut candidates = Vec::with_capacity(here);
        for found in &found {
            candidates.extend(found.values());
        }
        let refining = Refining::new(fit, stage, at, goal);
        let first = measure(&candidates, refining.question());
        if !first.sum.is_finite() {
            return Err(source.non_finite());
        }
        if enough {
            return keep(source, found, refine(&candidates, refining, first));
        }
    }
    Ok(select::exactly(&mut [source], k)?.pop().unwrap_or_default())
}

/// Selects as [`guarded`] from a tensor of at most one chunk without a sample: its elements are refined where
/// they are, and only those that are kept are collected.
fn guarded_whole(source: &mut Source<'_>, fit: Fit, k: u64) -> Result<Chosen> {
    let mut values = Vec::new();
    let mut candidates = source.read_all(&mut values);
    let goal = Goal::of_all(k);
    let refining = Refining::new(fit, 0, f32::from_bits(LOWEST), goal);
    let mut first = measure(candidates, refining.question());
    let nonzero: Vec<f32>;
    if first.sum.is_finite() && first.count < candidates.len() as u64 {
        // Moments depend on the places of the elements: zeros have none.
        nonzero = candidates.iter().copied().filter(|&x| x != 0.0).collect();
        candidates = &nonzero;
        first = measure(candidates, refining.question());
    }
    if !first.sum.is_finite() {
        return Err(source.non_finite());
    }
    let cut = match first.count > goal.most {
        true => refine(candidates, refining, first),
        false => reached(f32::from_bits(LOWEST)),
    };
    let found = collect(source, f32::from_bits(cut.least), usize::MAX).unwrap_or_default();
    keep(source, found, cut)
}

fn measure(values: &[f32], question: MomentQuery) -> Moments {
    match question.logs {
        true => Moments::of::<true>(values, question),
        false => Moments::of::<false>(values, question),
    }
}

/// Returns the cut that selects the kept values.
fn refine(values: &[f32], mut refining: Refining, first: Moments) -> Cut {
    let mut moments = first;
    loop {
        match refining.answer(&moments) {
            Some(Refined::Reached(at)) => return reached(at),
            Some(Refined::Exactly) => {
                let (least, keys) =
                    (refining.at.to_bits(), values.iter().map(|x| Side::Both.key(x.to_bits())));
                let mut keys: Vec<u32> = keys.filter(|&key| key >= least).collect();
                return select::cut_of(&mut keys, refining.goal.wanted);
            }
            None => moments = measure(values, refining.question()),
        }
    }
}

/// Computes a threshold from the moments of magnitudes. Either at least `goal.least` magnitudes are present,
/// or no more exist.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::compress) struct Refining {
    fit: Fit,
    /// Stage of the next fit.
    stage: u32,
    fits: u32,
    pub(in crate::compress) goal: Goal,
    /// Largest threshold known to leave enough magnitudes.
    at: f32,
    /// Threshold of the next query.
    next: f32,
}

/// Result of a refinement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::compress) enum Refined {
    /// All magnitudes that reach this threshold are kept.
    Reached(f32),
    /// The largest magnitudes are kept, exactly the wanted number. The first ones win among equal magnitudes.
    Exactly,
}

impl Refining {
    /// Returns the state before the first fit. `stage` is the stage of that fit; all magnitudes reach `at`.
    pub(in crate::compress) fn new(fit: Fit, stage: u32, at: f32, goal: Goal) -> Self {
        Self { fit, stage, fits: 0, goal, at, next: at }
    }

    /// Returns the query for the next moments of the magnitudes.
    pub(in crate::compress) fn question(&self) -> MomentQuery {
        match self.stage {
            // The first stage fits all non-zero elements.
            0 => MomentQuery::all(self.fit == Fit::GammaGp),
            _ => MomentQuery::exceeding(self.next),
        }
    }

    /// Takes the queried moments and returns the result once it is known.
    pub(in crate::compress) fn answer(&mut self, here: &Moments) -> Option<Refined> {
        if self.fits > 0 && here.count < self.goal.least {
            return Some(Refined::Exactly);
        }
        self.at = self.next;
        if here.count <= self.goal.most {
            return Some(Refined::Reached(self.at));
        }
        if self.fits == FITS {
            return Some(Refined::Exactly);
        }
        let part = self.goal.wanted as f64 / here.count as f64;
        let location = if self.stage == 0 { 0.0 } else { f64::from(self.at) };
        let threshold = location + here.threshold(self.fit.family(self.stage), part);
        self.next = rounded(threshold, here).max(self.at.next_up());
        (self.stage, self.fits) = (self.stage + 1, self.fits + 1);
        None
    }
}

/// Returns the kept elements of a tensor and the state after the step.
pub(super) fn select(
    source: &mut Source<'_>,
    fit: Fit,
    stages: Stages,
    k: u64,
    state: Adaptation,
    scratch: &mut Scratch,
) -> Result<(Chosen, Adaptation)> {
    match stages {
        // Whatever the fits were, the guard would end with the largest.
        Stages::Guard if Goal::of_all(k).is_exact() => Ok((select::top_k_of(source, k, scratch)?, state)),
        Stages::Guard => Ok((guarded(source, fit, k)?, state)),
        Stages::Fixed(stages) => Ok((staged(source, fit, u32::from(stages), k)?.0, state)),
        Stages::Authors => {
            let (chosen, fitted) = staged(source, fit, state.stages, k)?;
            let ratio = chosen.positions.len() as f64 / k as f64;
            Ok((chosen, if fitted { state.after(ratio, k as f64 / source.len as f64) } else { state }))
        }
    }
}
