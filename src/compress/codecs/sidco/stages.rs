//! From fits to what is kept of one tensor.

use super::Adaptation;
use super::fit::Fit;
use crate::compress::moments::{MomentQuery, Moments};
use crate::compress::select::{self, Chosen, Cut, Found, LOWEST, Sample, Side};
use crate::compress::source::Source;
use crate::error::Result;

/// The part that is to exceed the first of several thresholds (the authors' constant `first_ratio`).
const FIRST: f64 = 0.25;
/// The authors' tolerances of k'/k, 1 - eps_L and 1 + eps_H.
pub(super) const BAND: [f64; 2] = [0.8, 1.2];
/// The guard's: an element too many costs more, here and on the wire, than one more fit.
const GUARD: [f64; 2] = [0.9, 1.1];
/// Fits of the guard before it counts.
const FITS: u32 = 6;

/// All elements whose magnitude reaches `at`, by chunk; `None` if there are more than `limit`: one read.
fn collect(source: &mut Source<'_>, at: f32, limit: usize) -> Option<Vec<Found>> {
    select::collect(&mut [source], |x| select::reaches(x.abs(), at), limit)?.pop()
}

fn keep(source: &mut Source<'_>, found: Vec<Found>, cut: Cut) -> Result<Chosen> {
    Ok(select::finish(&[source], Side::Both, &[found], cut)?.pop().unwrap_or_default())
}

/// What reaches a threshold.
fn reached(at: f32) -> Cut {
    Cut { least: at.to_bits(), ties: u64::MAX }
}

/// A threshold as a float that some magnitude reaches: positive, at most the largest.
fn rounded(threshold: f64, moments: &Moments) -> f32 {
    (threshold as f32).clamp(f32::from_bits(LOWEST), moments.max)
}

/// SIDCo with a number of stages: all elements that reach the last threshold. A read for each stage, and one
/// to collect. Also tells whether anything was fitted: not if no more than `k` are not zero.
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

/// From the moments of a tensor to the threshold of its last stage.
///
/// With several stages a quarter of the elements is to exceed the first threshold, and each later one takes
/// an equal share of the rest. A threshold beyond the largest magnitude becomes that, so something is kept
/// unless all is zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::compress) struct Staging {
    fit: Fit,
    stages: u32,
    k: u64,
    /// The stage whose fit is next.
    stage: u32,
    /// What is to exceed the last threshold, of all that is not zero.
    part: f64,
    at: f32,
    pub(in crate::compress) fitted: bool,
}

impl Staging {
    pub(in crate::compress) fn new(fit: Fit, stages: u32, k: u64) -> Self {
        Self { fit, stages, k, stage: 0, part: 1.0, at: f32::from_bits(LOWEST), fitted: false }
    }

    /// What has to be known next of the whole tensor.
    pub(in crate::compress) fn question(&self) -> MomentQuery {
        match self.stage {
            0 => MomentQuery::all(self.fit == Fit::GammaGp),
            _ => MomentQuery::exceeding(self.at),
        }
    }

    /// The last threshold, once it is known.
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

/// How many magnitudes a threshold is to leave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::compress) struct Goal {
    least: u64,
    pub(in crate::compress) wanted: u64,
    pub(in crate::compress) most: u64,
}

impl Goal {
    /// Of a sample of which the `rank` largest are to be exceeded by `k` of all.
    pub(in crate::compress) fn of_sample(rank: u64) -> Self {
        Self { least: rank, wanted: rank + rank / 16, most: rank + rank / 8 }
    }

    /// Of all.
    pub(in crate::compress) fn of_all(k: u64) -> Self {
        let [least, most] = GUARD.map(|factor| factor * k as f64);
        Self { least: least.ceil() as u64, wanted: k, most: most as u64 }
    }
}

/// As many elements as the band allows. One read, and three more where the sample misled.
///
/// ```text
/// of a sample, which is in the cache: refine, so that somewhat more than k of all are to exceed the threshold
/// collect what exceeds it; if less than k do, or far too many: the exact k by counting
/// refine what was collected, so that k of all exceed the threshold
///
/// refine: fit the exceedances of the threshold so far, for the next threshold
///   enough exceed that, and not too many: done;  too many: fit those;  too few: exactly as many as wanted, by counting
/// ```
///
/// Equal magnitudes that no threshold divides are counted too: the first ones are kept, exactly as many as
/// wanted.
fn guarded(source: &mut Source<'_>, fit: Fit, k: u64) -> Result<Chosen> {
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

fn measure(values: &[f32], question: MomentQuery) -> Moments {
    match question.logs {
        true => Moments::of::<true>(values, question),
        false => Moments::of::<false>(values, question),
    }
}

/// Which of these values are kept.
fn refine(values: &[f32], mut refining: Refining, first: Moments) -> Cut {
    let mut moments = first;
    loop {
        match refining.answer(&moments) {
            Some(Refined::Reached(at)) => return reached(at),
            Some(Refined::Exactly) => {
                let keys = values.iter().map(|x| Side::Both.key(x.to_bits()));
                let mut keys: Vec<u32> = keys.filter(|&key| key > 0).collect();
                return select::cut_of(&mut keys, refining.goal.wanted);
            }
            None => moments = measure(values, refining.question()),
        }
    }
}

/// From the moments of magnitudes of which no less than `goal.least` are there, or else no more are to be
/// had, to a threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::compress) struct Refining {
    fit: Fit,
    /// The stage whose fit is next.
    stage: u32,
    fits: u32,
    pub(in crate::compress) goal: Goal,
    /// The largest threshold known to leave enough.
    at: f32,
    /// What is asked about.
    next: f32,
}

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::compress) enum Refined {
    /// What reaches this.
    Reached(f32),
    /// The largest, as many as wanted; of equal magnitudes the first ones.
    Exactly,
}

impl Refining {
    /// `stage`: that of the first fit; `at`: what all reach.
    pub(in crate::compress) fn new(fit: Fit, stage: u32, at: f32, goal: Goal) -> Self {
        Self { fit, stage, fits: 0, goal, at, next: at }
    }

    /// What has to be known next of the magnitudes.
    pub(in crate::compress) fn question(&self) -> MomentQuery {
        match self.stage {
            // The first stage fits all that is not zero.
            0 => MomentQuery::all(self.fit == Fit::GammaGp),
            _ => MomentQuery::exceeding(self.next),
        }
    }

    /// What is kept, once it is known.
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

/// What is kept of a tensor, and the state after it.
pub(super) fn select(
    source: &mut Source<'_>,
    fit: Fit,
    stages: super::Stages,
    k: u64,
    state: Adaptation,
) -> Result<(Chosen, Adaptation)> {
    match stages {
        super::Stages::Guard => Ok((guarded(source, fit, k)?, state)),
        super::Stages::Fixed(stages) => Ok((staged(source, fit, u32::from(stages), k)?.0, state)),
        super::Stages::Authors => {
            let (chosen, fitted) = staged(source, fit, state.stages(), k)?;
            let ratio = chosen.positions.len() as f64 / k as f64;
            Ok((chosen, if fitted { state.after(ratio, k as f64 / source.len as f64) } else { state }))
        }
    }
}
