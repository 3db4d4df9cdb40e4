//! State that senders keep between steps: saving, loading and reading it.
//!
//! A sender's state is one [`Feedback`] for each quantity that it keeps for every element. In a checkpoint,
//! the name of a tensor is followed by the suffix of the quantity. The residuals have no suffix.

use crate::compress::{Feedback, Input};
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::TensorBuf;

/// Suffix of momenta in a checkpoint.
pub(super) const MOMENTUM: &str = "#momentum";
/// Suffix of variances in a checkpoint.
pub(super) const VARIANCE: &str = "#variance";

/// Returns the residuals, and the other quantities of a sender with their suffixes, as tensors for a
/// checkpoint.
pub(super) fn save<const N: usize>(
    residuals: &Feedback,
    others: [(&str, &Feedback); N],
) -> Vec<(String, TensorBuf)> {
    let mut tensors = residuals.save();
    for (suffix, other) in others {
        tensors.extend(other.save().into_iter().map(|(name, tensor)| (name + suffix, tensor)));
    }
    tensors
}

/// Restores the residuals, and the quantities with these suffixes, from the tensors that [`save`] returned.
///
/// # Errors
/// The errors of [`Feedback::load`].
pub(super) fn load<const N: usize>(
    suffixes: [&str; N],
    tensors: impl IntoIterator<Item = (String, TensorBuf)>,
) -> Result<(Feedback, [Feedback; N])> {
    let (mut residuals, mut others) = (Vec::new(), [const { Vec::new() }; N]);
    for (mut name, tensor) in tensors {
        match suffixes.iter().position(|suffix| name.ends_with(suffix)) {
            Some(i) => {
                name.truncate(name.len() - suffixes[i].len());
                others[i].push((name, tensor));
            }
            None => residuals.push((name, tensor)),
        }
    }
    let residuals = Feedback::load(residuals)?;
    let mut loaded = std::array::from_fn(|_| Feedback::new());
    for (to, from) in loaded.iter_mut().zip(others) {
        *to = Feedback::load(from)?;
    }
    Ok((residuals, loaded))
}

/// Replaces the memory of a worker by that of a checkpoint.
///
/// # Errors
/// [`InputErrorKind::OutOfTurn`] if a step is open.
pub(super) fn replace(memory: &mut Feedback, loaded: Feedback, step_is_open: bool) -> Result<()> {
    if step_is_open {
        return Err(out_of_turn("the memory cannot change inside a step"));
    }
    *memory = loaded;
    Ok(())
}

/// Returns the values that `memory` has for the tensor of an input, `None` if it has none yet.
///
/// # Errors
/// [`InputErrorKind::Mismatch`], with the number of the tensor, if its shape changed.
pub(super) fn of<'a>(memory: &'a Feedback, input: &Input<'_>) -> Result<Option<&'a [f32]>> {
    memory.of(input.name, input.view.shape()).map_err(|e| e.in_tensor(input.tensor))
}

/// Returns the error for a call in the wrong phase of a step.
pub(super) fn out_of_turn(what: &'static str) -> Error {
    Error::input(InputErrorKind::OutOfTurn { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_saved_under_their_suffixes() {
        let memory = |value: f32| {
            let mut memory = Feedback::new();
            memory.set("w", &[1], vec![value]);
            memory
        };
        let (residuals, momenta, variances) = (memory(1.0), memory(2.0), memory(3.0));
        let saved = save(&residuals, [(MOMENTUM, &momenta), (VARIANCE, &variances)]);
        let names: Vec<_> = saved.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["w", "w#momentum", "w#variance"]);
        let loaded = load([MOMENTUM, VARIANCE], saved.into_iter().rev()).unwrap();
        assert_eq!(loaded, (residuals, [momenta, variances]));
    }
}
