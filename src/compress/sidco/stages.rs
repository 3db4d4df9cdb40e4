//! From fits to what is kept of one tensor. The tensor is read once for the fit and once to collect what exceeds the
//! first threshold; all later stages work on what was collected.

use super::Adaptation;
use super::fit::{Fit, Measure, Moments};
use crate::arch;
use crate::compress::select::{self, Chosen, Cut, Found, Side};
use crate::compress::source::{CHUNK, Chunk, Source};
use crate::error::Result;

/// The part that is to exceed the first of several thresholds (the authors' constant `first_ratio`).
const FIRST: f64 = 0.25;
/// The guard first collects what is to be this many times what is kept.
const WIDE: f64 = 8.0;
/// The authors' tolerances of k'/k, 1 - eps_L and 1 + eps_H; the guard keeps to them too.
pub(super) const BAND: [f64; 2] = [0.8, 1.2];
/// Fits of the guard before it bisects.
const FITS: u32 = 6;

/// The moments of a tensor: one read.
pub(super) fn measure(source: &mut Source<'_>, fit: Fit) -> Moments {
    let of_chunks = source.scan(0..source.len, CHUNK, |chunk| match fit {
        Fit::GammaGp => measure_chunk::<true>(chunk),
        _ => measure_chunk::<false>(chunk),
    });
    of_chunks.into_iter().fold(Moments::default(), Moments::and)
}

fn measure_chunk<const LOGS: bool>(chunk: Chunk<'_, '_>) -> Moments {
    if let Some(tile) = chunk.plain() {
        let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        return arch::run(Measure::<_, _, LOGS> { tile, value, location: 0.0 });
    }
    let mut moments = Moments::default();
    chunk.tiles(|_, tile| {
        let tile = arch::run(Measure::<_, _, LOGS> { tile: &*tile, value: |x: &f32| *x, location: 0.0 });
        moments = moments.and(tile);
    });
    moments
}

/// Elements whose magnitude reaches `at`, by their bits.
struct Tail {
    at: f32,
    found: Vec<Found>,
    magnitudes: Vec<f32>,
}

/// One read.
fn collect(source: &mut Source<'_>, at: f32) -> Tail {
    let found = select::collect(&mut [source], |x| select::reaches(x.abs(), at), usize::MAX);
    let found = found.and_then(|mut all| all.pop()).unwrap_or_default();
    let magnitudes = found.iter().flat_map(Found::values).map(f32::abs).collect();
    Tail { at, found, magnitudes }
}

impl Tail {
    fn moments(&self) -> Moments {
        arch::run(Measure::<_, _, false> {
            tile: self.magnitudes.as_slice(),
            value: |x: &f32| *x,
            location: self.at,
        })
    }

    fn count(&self, at: f32) -> u64 {
        self.magnitudes.iter().map(|&x| u64::from(x >= at)).sum()
    }

    fn raise(&mut self, at: f32) {
        self.at = at;
        self.magnitudes.retain(|&x| x >= at);
    }

    fn keep(self, source: &mut Source<'_>, cut: Cut) -> Result<Chosen> {
        let mut chosen = select::finish(&[source], Side::Both, &[self.found], cut)?;
        Ok(chosen.pop().unwrap_or_default())
    }
}

/// A threshold as a float that some magnitude reaches: positive, at most the largest.
fn rounded(threshold: f64, moments: &Moments) -> f32 {
    (threshold as f32).clamp(f32::from_bits(1), moments.max)
}

/// SIDCo with a number of stages: all elements that reach the last threshold. Two reads.
///
/// With several stages a quarter of the elements is to exceed the first threshold, and each later one takes an equal
/// share of the rest. A threshold beyond the largest magnitude becomes that, so something is kept unless all is zero.
pub(super) fn staged(
    source: &mut Source<'_>,
    moments: &Moments,
    fit: Fit,
    stages: u32,
    k: u64,
) -> Result<Chosen> {
    let part = k as f64 / moments.count as f64;
    let several = stages > 1 && part < FIRST;
    let first = if several { FIRST } else { part };
    let mut tail = collect(source, rounded(moments.threshold(fit.family(0), first), moments));
    for stage in 1..if several { stages } else { 1 } {
        let here = tail.moments();
        let each = (part / FIRST).powf(1.0 / f64::from(stages - 1));
        let above = here.threshold(fit.family(stage), each);
        let at = rounded(f64::from(tail.at) + above, &here).max(tail.at);
        tail.raise(at);
    }
    let least = tail.at.to_bits();
    tail.keep(source, Cut { least, ties: u64::MAX })
}

/// As many elements as the band allows. Two reads; three where a fit that is far off has to be given up for one of a
/// quarter of the elements; six where that fails, too.
///
/// ```text
/// collect what exceeds a threshold that 8 k elements are to exceed; if less than k do, a quarter of all; else count exactly
/// fit the exceedances, so that k of them exceed the new threshold
///   within the band: done;  too many: fit those;  too few: bisect between the last two thresholds
/// equal magnitudes that no threshold divides: the first ones, exactly k in all
/// ```
pub(super) fn guarded(source: &mut Source<'_>, moments: &Moments, fit: Fit, k: u64) -> Result<Chosen> {
    let part = k as f64 / moments.count as f64;
    let wide = (WIDE * part).min(0.5);
    let retry = (wide < FIRST).then_some(FIRST);
    for (part, family) in [(Some(wide), fit.family(0)), (retry, fit.family(0))] {
        let Some(first) = part else { continue };
        // No threshold leaves out a known part of less than twice what is kept.
        let at = if first < 0.5 { moments.threshold(family, first) } else { 0.0 };
        let mut tail = collect(source, rounded(at, moments));
        if tail.magnitudes.len() as u64 >= k.min(moments.count) {
            let cut = refine(&mut tail, fit, k);
            return tail.keep(source, cut);
        }
    }
    Ok(select::exactly(&mut [source], k)?.pop().unwrap_or_default())
}

fn refine(tail: &mut Tail, fit: Fit, k: u64) -> Cut {
    let fits = |count: u64| (BAND[0] * k as f64..=BAND[1] * k as f64).contains(&(count as f64));
    let reached = |at: f32| Cut { least: at.to_bits(), ties: u64::MAX };
    let mut above = f32::INFINITY;
    for stage in 1..=FITS {
        let count = tail.magnitudes.len() as u64;
        if count <= k || fits(count) {
            return reached(tail.at);
        }
        let moments = tail.moments();
        let threshold = moments.threshold(fit.family(stage), k as f64 / count as f64);
        let at = rounded(f64::from(tail.at) + threshold, &moments).max(tail.at.next_up());
        if tail.count(at) as f64 >= BAND[0] * k as f64 {
            tail.raise(at);
        } else {
            above = at;
            break;
        }
    }
    if fits(tail.magnitudes.len() as u64) {
        return reached(tail.at);
    }
    // Positive floats are ordered like their bits.
    let (mut low, mut high) = (tail.at.to_bits(), above.to_bits());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let count = tail.count(f32::from_bits(middle));
        if fits(count) {
            return reached(f32::from_bits(middle));
        }
        if count > k { low = middle } else { high = middle }
    }
    let mut keys: Vec<u32> = tail.magnitudes.iter().map(|x| x.to_bits()).collect();
    select::cut_of(&mut keys, k)
}

/// What is kept of a tensor, and the state after it.
pub(super) fn select(
    source: &mut Source<'_>,
    fit: Fit,
    stages: super::Stages,
    k: u64,
    state: Adaptation,
) -> Result<(Chosen, Adaptation)> {
    let moments = measure(source, fit);
    if !moments.sum.is_finite() {
        return Err(source.non_finite());
    }
    if moments.count <= k {
        // All that is not zero; nothing has to be fitted.
        let chosen = match moments.count {
            0 => Chosen::default(),
            _ => {
                let tail = collect(source, f32::from_bits(1));
                tail.keep(source, Cut { least: 1, ties: u64::MAX })?
            }
        };
        return Ok((chosen, state));
    }
    match stages {
        super::Stages::Guard => Ok((guarded(source, &moments, fit, k)?, state)),
        super::Stages::Fixed(stages) => Ok((staged(source, &moments, fit, u32::from(stages), k)?, state)),
        super::Stages::Authors => {
            let chosen = staged(source, &moments, fit, state.stages(), k)?;
            let ratio = chosen.positions.len() as f64 / k as f64;
            Ok((chosen, state.after(ratio, k as f64 / source.len as f64)))
        }
    }
}
