//! Workers whose updates are late or lost, and workers that are gone for a while.

use gcodec::compress::random;

use crate::model::Tensors;

/// Shares of all updates.
const LATE: f64 = 0.05;
const LOST: f64 = 0.01;
/// Every worker of this many is gone for [`GONE`].
const ONE_OF: usize = 10;
/// The rounds in which it is gone.
const GONE: std::ops::Range<u64> = 50..100;

/// The fate of a worker's update in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives in its round.
    OnTime,
    /// It arrives in the next round, beside the one of that round.
    Late,
    /// It never arrives.
    Lost,
    /// The worker makes none.
    Gone,
}

/// A run with late and lost updates and workers that are gone for a while.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trouble {
    /// Whether a worker learns that its update was lost, and adds it to the next one.
    pub(crate) taken_back: bool,
}

impl Trouble {
    /// Returns the fate of an update, the same in all runs.
    pub(crate) fn fate(self, round: u64, worker: usize) -> Fate {
        if worker % ONE_OF == ONE_OF - 1 && GONE.contains(&round) {
            return Fate::Gone;
        }
        let drawn = random::word(0x7a5e, worker as u64, round) as f64 / 2f64.powi(32);
        match drawn {
            // The first update of a stream brings the names of the tensors.
            _ if round == 0 => Fate::OnTime,
            drawn if drawn < LATE => Fate::Late,
            drawn if drawn < LATE + LOST => Fate::Lost,
            _ => Fate::OnTime,
        }
    }
}

/// Adds `more` to an update.
pub(crate) fn add(update: &mut Tensors, more: &Tensors) {
    for (x, y) in update.iter_mut().flatten().zip(more.iter().flatten()) {
        *x += y;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_have_the_fates_that_the_shares_say() {
        let trouble = Trouble { taken_back: false };
        let all: Vec<Fate> =
            (0..200).flat_map(|round| (0..20).map(move |w| trouble.fate(round, w))).collect();
        let share = |fate| all.iter().filter(|one| **one == fate).count() as f64 / all.len() as f64;
        assert!((share(Fate::Gone) - 0.1 * 50.0 / 200.0).abs() < 1e-9);
        assert!((0.03..0.07).contains(&share(Fate::Late)), "{}", share(Fate::Late));
        assert!((0.005..0.02).contains(&share(Fate::Lost)), "{}", share(Fate::Lost));
    }
}
