//! What updates say of themselves, so that they can be summed, and what their sum says.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::frame::{Reduction, UpdateHeader};

/// What an update says of itself that is the sum of those with these headers, or with `mean` their mean: step and round,
/// contributors, and local steps if all cover as many.
///
/// For sums that are not made by [`Sum`](super::Sum), which does this itself. Updates have a sum only if they are of one manifest,
/// which a header does not say.
///
/// # Errors
/// [`InputErrorKind::CannotReduce`](crate::error::InputErrorKind::CannotReduce) with the sender and the reason: a delta, a mean, a
/// sum that does not say of how many, another step, round or number of senders, one sender twice, a sum among senders' own
/// updates, more contributors than senders; or no header.
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
    let Some(first) = first else { return Err(Error::cannot_reduce("there is no update")) };
    if first.world > 0 && contributors > first.world {
        return Err(Error::cannot_reduce("more contributors than senders: some are in it twice"));
    }
    Ok(UpdateHeader::default()
        .with_step(first.step)
        .with_round(first.round)
        .with_world(first.world)
        .with_contributors(contributors)
        .with_inner_steps(if same_steps { first.inner_steps } else { 0 })
        .with_reduction(if mean { Reduction::Mean } else { Reduction::Sum }))
}

/// Whether an update has a sum with any.
pub(super) fn alone(header: &UpdateHeader) -> Result<()> {
    let why = match () {
        () if header.delta.is_some() => "it is a delta against a base, which has no sum",
        () if header.reduction == Reduction::Mean => {
            "it is a mean, which does not say what it was divided by"
        }
        () if header.reduction == Reduction::Sum && header.contributors == 0 => {
            "it is a sum that does not say of how many"
        }
        () => return Ok(()),
    };
    Err(Error::cannot_reduce(why))
}

/// Whether an update has a sum with the first of them.
pub(super) fn together(first: &UpdateHeader, header: &UpdateHeader) -> Result<()> {
    let why = match () {
        () if (header.step, header.round) != (first.step, first.round) => "it is of another step or round",
        () if header.world != first.world => "it counts another number of senders",
        () if header.reduction != first.reduction => {
            "a sum of several and one sender's own: who is in the sum twice cannot be told"
        }
        () => return Ok(()),
    };
    Err(Error::cannot_reduce(why))
}

/// A sender's second update.
pub(super) fn twice() -> Error {
    Error::cannot_reduce("this sender's update is in it already")
}
