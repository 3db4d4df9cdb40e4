//! SIDCo's threshold search for tensors that are not in the host's memory. Each step names the data that it
//! needs and then takes the result.

use crate::compress::codecs::sidco::{Goal, Refined, Refining, Staging};
use crate::compress::select::{self, LOWEST};
use crate::compress::state::Adaptation;
use crate::compress::{Fit, Stages};

pub use crate::compress::moments::{MomentQuery, Moments};

/// The search by fits for one tensor, in steps. [`Self::next`] returns the next step. [`Self::answer`] or
/// [`Self::collected`] takes its result.
///
/// ```text
/// guard:              Sample (0 to 7 times), Collect, Candidates (0 to 6 times), Keep
/// numbers of stages:  Tensor (once for each stage), Keep
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Fitting {
    len: u64,
    k: u64,
    fit: Fit,
    /// State of the authors' rule before this search.
    adaptation: Option<Adaptation>,
    rank: Option<u64>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Staging(Staging),
    Sample(Refining, bool),
    Collect(Least, u32),
    Candidates(Refining),
    Done(FitResult, bool),
}

/// The next step of a search by fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// Give the moments of the sample to [`Fitting::answer`]. The sample has 2^15 elements, those at `i n /
    /// 2^15 + (i * 0x9e3779b97f4a7c15 >> 32) mod (n /
    /// 2^15)` for `i` from 0 on. The product is taken modulo 2^64, and `i n / 2^15` is rounded down.
    Sample(MomentQuery),
    /// Give the moments of all elements to [`Fitting::answer`].
    Tensor(MomentQuery),
    /// Collect all elements that reach `least`. Give to [`Fitting::collected`] the number of these
    /// candidates, `least`, and the moments of the candidates in the order of the elements. The moments are
    /// not needed if there are more than [`Fitting::limit`] candidates.
    Collect {
        /// Lower limit of the candidates.
        least: Least,
        /// Query for the moments. `None` asks for the moments of the elements that exceed `least`.
        question: Option<MomentQuery>,
    },
    /// Give the moments of the candidates to [`Fitting::answer`].
    Candidates(MomentQuery),
    /// Keep these elements. The search is complete.
    Keep(FitResult),
}

/// The lower limit of the candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Least {
    /// This magnitude.
    At(f32),
    /// The n-th largest key of the sample, with n counted from 1.
    InSample(u64),
}

/// The set of elements that a search keeps in the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FitResult {
    /// All elements that reach this magnitude.
    Reached(f32),
    /// The `k` largest of the candidates. If there are fewer than `k` candidates, or more than the limit, the
    /// `k` largest of all elements.
    Largest,
}

impl Fitting {
    /// Returns the search in a tensor of `len` elements, of which about `k` are wanted.
    pub(super) fn new(fit: Fit, stages: Stages, len: u64, k: u64) -> Self {
        let mut fitting =
            Self { len, k, fit, adaptation: None, rank: None, state: State::Collect(Least::At(0.0), 0) };
        match stages {
            Stages::Fixed(stages) => fitting.state = State::Staging(Staging::new(fit, stages.into(), k)),
            Stages::Authors => fitting.resume(Adaptation::default()),
            Stages::Guard => {
                let least = f32::from_bits(LOWEST);
                fitting.rank = select::rank(k, len);
                fitting.state = match fitting.rank {
                    Some(rank) => State::Sample(Refining::new(fit, 0, least, Goal::of_sample(rank)), true),
                    None => State::Collect(Least::At(least), 0),
                };
            }
        }
        fitting
    }

    fn resume(&mut self, adaptation: Adaptation) {
        self.adaptation = Some(adaptation);
        self.state = State::Staging(Staging::new(self.fit, adaptation.stages, self.k));
    }

    /// Restores a state of the authors' rule that [`Self::adaptation`] returned. Other rules have no state.
    /// Call this before the first step.
    pub fn set_adaptation(&mut self, words: [i64; 3]) {
        if let (Some(_), Some(adaptation)) = (self.adaptation, Adaptation::from_words(words)) {
            self.resume(adaptation);
        }
    }

    /// Returns the state of the authors' rule after `kept` elements were kept.
    pub fn adaptation(&self, kept: u64) -> Option<[i64; 3]> {
        let before = self.adaptation?;
        let after = match self.state {
            State::Done(_, true) => {
                before.after(kept as f64 / self.k as f64, self.k as f64 / self.len as f64)
            }
            _ => before,
        };
        Some(after.to_words())
    }

    /// Whether the search begins with a sample.
    pub fn takes_sample(&self) -> bool {
        self.rank.is_some()
    }

    /// Returns the largest number of candidates that is worth collecting.
    pub fn limit(&self) -> u64 {
        select::limit(self.k) as u64
    }

    /// Returns the number of elements that are wanted.
    pub fn wanted(&self) -> u64 {
        self.k
    }

    /// Returns the next step.
    pub fn next(&self) -> Step {
        match self.state {
            State::Staging(staging) => Step::Tensor(staging.question()),
            State::Sample(refining, _) => Step::Sample(refining.question()),
            State::Collect(least, stage) => {
                let question = |at| Refining::new(self.fit, stage, at, Goal::of_all(self.k)).question();
                let question = match least {
                    Least::At(at) => Some(question(at)),
                    Least::InSample(_) => None,
                };
                Step::Collect { least, question }
            }
            State::Candidates(refining) => Step::Candidates(refining.question()),
            State::Done(kept, _) => Step::Keep(kept),
        }
    }

    /// Continues with the moments that the step asked for.
    pub fn answer(&mut self, moments: &Moments) {
        self.state = match self.state {
            // At least one element is not finite. It is kept, so that it causes the error.
            State::Staging(_) | State::Sample(..) if !moments.sum.is_finite() => {
                State::Done(FitResult::Reached(f32::INFINITY), false)
            }
            State::Staging(mut staging) => match staging.answer(moments) {
                Some(at) => State::Done(FitResult::Reached(at), staging.fitted),
                None => State::Staging(staging),
            },
            State::Sample(refining, true) if moments.count <= refining.goal.most => {
                State::Collect(Least::At(f32::from_bits(LOWEST)), 0)
            }
            State::Sample(mut refining, _) => match refining.answer(moments) {
                Some(Refined::Reached(at)) => State::Collect(Least::At(at), 1),
                Some(Refined::Exactly) => State::Collect(Least::InSample(refining.goal.wanted), 1),
                None => State::Sample(refining, false),
            },
            State::Candidates(mut refining) => match refining.answer(moments) {
                Some(Refined::Reached(at)) => State::Done(FitResult::Reached(at), true),
                Some(Refined::Exactly) => State::Done(FitResult::Largest, true),
                None => State::Candidates(refining),
            },
            state @ (State::Collect(..) | State::Done(..)) => state,
        };
    }

    /// Continues with the number of candidates. The candidates are all elements that reach `least`.
    pub fn collected(&mut self, candidates: u64, least: f32, moments: &Moments) {
        let State::Collect(_, stage) = self.state else { return };
        let goal = Goal::of_all(self.k);
        let enough = least.to_bits() == LOWEST || candidates >= self.k;
        self.state = if candidates > self.limit() {
            State::Done(FitResult::Largest, true)
        } else if enough && candidates <= goal.most {
            State::Done(FitResult::Reached(least), true)
        } else if !moments.sum.is_finite() {
            State::Done(FitResult::Reached(f32::INFINITY), false)
        } else if enough {
            State::Candidates(Refining::new(self.fit, stage, least, goal))
        } else {
            State::Done(FitResult::Largest, true)
        };
        if let State::Candidates(_) = self.state {
            self.answer(moments);
        }
    }
}
