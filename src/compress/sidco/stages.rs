//! From fits to what is kept of one tensor.

use super::Adaptation;
use super::fit::{Fit, Measure, Moments};
use crate::arch;
use crate::compress::select::{self, Chosen, Cut, Found, LOWEST, Sample, Side};
use crate::compress::source::{CHUNK, Chunk, Source};
use crate::error::Result;

/// The part that is to exceed the first of several thresholds (the authors' constant `first_ratio`).
const FIRST: f64 = 0.25;
/// The authors' tolerances of k'/k, 1 - eps_L and 1 + eps_H.
pub(super) const BAND: [f64; 2] = [0.8, 1.2];
/// The guard's: an element too many costs more, here and on the wire, than one more fit.
const GUARD: [f64; 2] = [0.9, 1.1];
/// Fits of the guard before it bisects.
const FITS: u32 = 6;

/// The moments of what reaches `at` in a tensor: one read.
fn measure<const LOGS: bool>(source: &mut Source<'_>, at: f32) -> Moments {
    let of_chunks = source.scan(0..source.len, CHUNK, |chunk| measure_chunk::<LOGS>(chunk, at));
    of_chunks.into_iter().fold(Moments::default(), Moments::and)
}

fn measure_chunk<const LOGS: bool>(chunk: Chunk<'_, '_>, location: f32) -> Moments {
    if let Some(tile) = chunk.plain() {
        let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        return arch::run(Measure::<_, _, LOGS> { tile, value, location });
    }
    let mut moments = Moments::default();
    chunk.tiles(|_, tile| moments = moments.and(measure_slice::<LOGS>(tile, location)));
    moments
}

fn measure_slice<const LOGS: bool>(tile: &[f32], location: f32) -> Moments {
    arch::run(Measure::<_, _, LOGS> { tile, value: |x: &f32| *x, location })
}

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

/// SIDCo with a number of stages: all elements that reach the last threshold. A read for each stage, and one to collect.
///
/// With several stages a quarter of the elements is to exceed the first threshold, and each later one takes an equal
/// share of the rest. A threshold beyond the largest magnitude becomes that, so something is kept unless all is zero.
/// Also tells whether anything was fitted: not if no more than `k` are not zero.
fn staged(source: &mut Source<'_>, fit: Fit, stages: u32, k: u64) -> Result<(Chosen, bool)> {
    let all = match fit {
        Fit::GammaGp => measure::<true>(source, 0.0),
        _ => measure::<false>(source, 0.0),
    };
    if !all.sum.is_finite() {
        return Err(source.non_finite());
    }
    let (mut at, fitted) = (f32::from_bits(LOWEST), all.count > k);
    if fitted {
        let part = k as f64 / all.count as f64;
        let several = stages > 1 && part < FIRST;
        let first = if several { FIRST } else { part };
        at = rounded(all.threshold(fit.family(0), first), &all);
        for stage in 1..if several { stages } else { 1 } {
            let here = measure::<false>(source, at);
            let each = (part / FIRST).powf(1.0 / f64::from(stages - 1));
            let above = here.threshold(fit.family(stage), each);
            at = rounded(f64::from(at) + above, &here).max(at);
        }
    }
    let found = collect(source, at, usize::MAX).unwrap_or_default();
    Ok((keep(source, found, reached(at))?, fitted))
}

/// How many magnitudes a threshold is to leave.
#[derive(Clone, Copy)]
struct Goal {
    least: u64,
    wanted: u64,
    most: u64,
}

/// As many elements as the band allows. One read, and three more where the sample misled.
///
/// ```text
/// of a sample, which is in the cache: refine, so that somewhat more than k of all are to exceed the threshold
/// collect what exceeds it; if less than k do, or far too many: the exact k by counting
/// refine what was collected, so that k of all exceed the threshold
///
/// refine: fit the exceedances of the threshold so far, for the next threshold
///   enough exceed that, and not too many: done;  too many: fit those;  too few: bisect between the last two thresholds
///   equal magnitudes that no threshold divides: the first ones, exactly as many as wanted
/// ```
fn guarded(source: &mut Source<'_>, fit: Fit, k: u64) -> Result<Chosen> {
    let (mut at, mut stage) = (f32::from_bits(LOWEST), 0);
    if let Some(Sample { bits, rank }) = select::sample(&[source], k) {
        let mut magnitudes: Vec<f32> = bits.into_iter().map(f32::from_bits).map(f32::abs).collect();
        magnitudes.retain(|&x| select::reaches(x, at));
        if !finite(&magnitudes) {
            return Err(source.non_finite());
        }
        let rank = rank as u64;
        let goal = Goal { least: rank, wanted: rank + rank / 16, most: rank + rank / 8 };
        if magnitudes.len() as u64 > goal.most {
            at = f32::from_bits(refine(magnitudes, at, fit, 0, goal).least);
            stage = 1;
        }
    }
    if let Some(found) = collect(source, at, select::limit(k)) {
        let here: usize = found.iter().map(Found::len).sum();
        let [least, most] = GUARD.map(|factor| factor * k as f64);
        let goal = Goal { least: least.ceil() as u64, wanted: k, most: most as u64 };
        let enough = at.to_bits() == LOWEST || here as u64 >= k;
        if enough && here as u64 <= goal.most {
            return keep(source, found, reached(at));
        }
        let mut magnitudes = Vec::with_capacity(here);
        for found in &found {
            magnitudes.extend(found.values().map(f32::abs));
        }
        if !finite(&magnitudes) {
            return Err(source.non_finite());
        }
        if enough {
            let cut = refine(magnitudes, at, fit, stage, goal);
            return keep(source, found, cut);
        }
    }
    Ok(select::exactly(&mut [source], k)?.pop().unwrap_or_default())
}

fn finite(magnitudes: &[f32]) -> bool {
    // Positive floats are ordered like their bits.
    magnitudes.iter().fold(0, |most, x| x.to_bits().max(most)) < f32::INFINITY.to_bits()
}

/// A threshold for magnitudes of which all reach `at` and no less than `goal.least` are there, or else no more are to be
/// had. `stage`: that of the next fit.
fn refine(mut magnitudes: Vec<f32>, mut at: f32, fit: Fit, stage: u32, goal: Goal) -> Cut {
    let count = |magnitudes: &[f32], at: f32| magnitudes.iter().map(|&x| u64::from(x >= at)).sum::<u64>();
    let mut above = f32::INFINITY;
    for stage in stage..stage + FITS {
        let here = magnitudes.len() as u64;
        if here <= goal.most {
            return reached(at);
        }
        let part = goal.wanted as f64 / here as f64;
        // The first stage fits all that is not zero.
        let moments = match stage {
            0 if fit == Fit::GammaGp => measure_slice::<true>(&magnitudes, 0.0),
            0 => measure_slice::<false>(&magnitudes, 0.0),
            _ => measure_slice::<false>(&magnitudes, at),
        };
        let location = if stage == 0 { 0.0 } else { f64::from(at) };
        let threshold = location + moments.threshold(fit.family(stage), part);
        let next = rounded(threshold, &moments).max(at.next_up());
        match count(&magnitudes, next) {
            enough if enough >= goal.least => {
                at = next;
                if enough <= goal.most {
                    return reached(at);
                }
                magnitudes.retain(|&x| x >= at);
            }
            _ => {
                above = next;
                break;
            }
        }
    }
    let (mut low, mut high) = (at.to_bits(), above.to_bits());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match count(&magnitudes, f32::from_bits(middle)) {
            here if here > goal.most => low = middle,
            here if here < goal.least => high = middle,
            _ => return reached(f32::from_bits(middle)),
        }
    }
    let mut keys: Vec<u32> = magnitudes.iter().map(|x| x.to_bits()).collect();
    select::cut_of(&mut keys, goal.wanted)
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
