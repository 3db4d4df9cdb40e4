//! Headers of updates: whether they can be summed, and the header of their sum.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::frame::{Reduction, UpdateHeader};

/// Returns the header of the sum of updates with these headers, or with `mean` of their mean: step and round,
/// contributors, and local steps if all updates have the same number.
///
/// For sums that are not made by [`Sum`](super::Sum), which calls this itself. The updates must belong to one
/// manifest, which a header does not contain.
///
/// # Errors
/// [`InputErrorKind::CannotReduce`](crate::error::InputErrorKind::CannotReduce) with the sender and the
/// reason: a delta, a mean, a sum with an unknown number of contributors, another step, round or number of
/// senders, a repeated sender, a sum mixed with single updates, more contributors than senders; or no header.
pub fn header<'h>(headers: impl IntoIterator<Item = &'h UpdateHeader>, mean: bool) -> Result<UpdateHeader> {
    let mut first: Option<&UpdateHeader> = None;
    let (mut senders, mut contributors, mut same_steps) = (BTreeSet::new(), 0u64, true);
    for header in headers {
        let fail = |e: Error| e.of_sender(header.sender);
        alone(header).map_err(fail)?;
        let first = *first.get_or_insert(header);
        together(first, header).map_err(fail)?;
        if !senders.insert(header.sender) {
            return Err(fail(twice()));
        }
        contributors = contributors.saturating_add(match header.reduction {
            Reduction::None => 1,
            _ => header.contributors,
        });
        same_steps &= header.inner_steps == first.inner_steps;
    }
    let Some(first) = first else { return Err(Error::cannot_reduce("no update was given")) };
    if first.world > 0 && contributors > first.world {
        return Err(Error::cannot_reduce("more contributors than senders: some are counted twice"));
    }
    Ok(UpdateHeader::default()
        .with_step(first.step)
        .with_round(first.round)
        .with_world(first.world)
        .with_contributors(contributors)
        .with_inner_steps(if same_steps { first.inner_steps } else { 0 })
        .with_reduction(if mean { Reduction::Mean } else { Reduction::Sum }))
}

/// Checks that an update can be part of a sum.
pub(super) fn alone(header: &UpdateHeader) -> Result<()> {
    let why = match () {
        () if header.is_delta() => "it is a delta against a base, and deltas have no sum",
        () if header.reduction == Reduction::Mean => "it is a mean, and its divisor is unknown",
        () if header.reduction == Reduction::Sum && header.contributors == 0 => {
            "it is a sum of an unknown number of updates"
        }
        () => return Ok(()),
    };
    Err(Error::cannot_reduce(why))
}

/// Checks that an update can be summed with the first one.
pub(super) fn together(first: &UpdateHeader, header: &UpdateHeader) -> Result<()> {
    let why = match () {
        () if (header.step, header.round) != (first.step, first.round) => {
            "it belongs to another step or round"
        }
        () if header.world != first.world => "it has another number of senders",
        () if header.reduction != first.reduction => {
            "it is a sum and the other is not (or the reverse): a sender could be counted twice"
        }
        () => return Ok(()),
    };
    Err(Error::cannot_reduce(why))
}

/// Returns the error for a sender's second update.
pub(super) fn twice() -> Error {
    Error::cannot_reduce("this sender's update was added before")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InputErrorKind;

    fn of(sender: u64) -> UpdateHeader {
        UpdateHeader::default().with_step(3).with_round(1).with_world(2).with_sender(sender)
    }

    fn why(refused: Result<UpdateHeader>) -> (&'static str, Option<u64>) {
        match refused.unwrap_err() {
            Error::Input(e) => match e.kind {
                InputErrorKind::CannotReduce { why, sender } => (why, sender),
                kind => panic!("{kind}"),
            },
            e => panic!("{e}"),
        }
    }

    #[test]
    fn headers_without_a_sum_are_refused_with_their_sender() {
        for (other, reason) in [
            (of(7).with_delta(Some(Vec::new())), "a delta"),
            (of(7).with_reduction(Reduction::Mean), "a mean"),
            (of(7).with_reduction(Reduction::Sum), "unknown number"),
            (of(7).with_step(4), "another step"),
            (of(7).with_round(0), "another step"),
            (of(7).with_world(3), "another number of senders"),
            (of(7).with_reduction(Reduction::Sum).with_contributors(2), "counted twice"),
            (of(5), "added before"),
        ] {
            let (found, sender) = why(header([&of(5), &other], false));
            assert!(found.contains(reason), "{reason}: {found}");
            assert_eq!(sender, Some(other.sender), "{reason}");
        }
        assert_eq!(why(header([], false)), ("no update was given", None));
    }

    #[test]
    fn contributors_do_not_exceed_the_senders() {
        let header_of = |world, count| {
            let headers: Vec<_> = (0..count).map(|sender| of(sender).with_world(world)).collect();
            header(&headers, false)
        };
        // 0: the number of senders is not known.
        for (world, most) in [(0, 9), (1, 1), (2, 2)] {
            assert_eq!(header_of(world, most).unwrap().contributors, most);
        }
        for world in [1, 2] {
            assert!(why(header_of(world, world + 1)).0.starts_with("more contributors than senders"));
        }
    }

    #[test]
    fn local_steps_are_kept_if_all_updates_have_the_same_number() {
        for (steps, expected) in [([10, 10], 10), ([10, 20], 0), ([0, 10], 0)] {
            let [a, b] = [0, 1].map(|i| of(i as u64).with_inner_steps(steps[i]));
            let found = header([&a, &b], true).unwrap();
            assert_eq!(found.inner_steps, expected, "{steps:?}");
            assert_eq!((found.step, found.round, found.reduction), (3, 1, Reduction::Mean));
        }
    }
}
