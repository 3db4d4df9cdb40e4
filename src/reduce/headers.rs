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
        () if header.delta.is_some() => "it is a delta against a base, and deltas have no sum",
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
