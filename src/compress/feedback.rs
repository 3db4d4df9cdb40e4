//! Error feedback: the part of an update that a lossy codec left out is added to the next update.

use std::collections::BTreeMap;

use super::state::{self, CodecState, CodecStates};
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::element::decode_f32s;
use crate::tensor::{TensorBuf, elements};

/// The residuals of a sender, by tensor name. They are never transmitted.
///
/// The residual of a tensor has one 32-bit float per element: the sum of all updates minus the sum of what
/// the receivers got. Codecs that adapt from step to step keep their state here too:
/// [`Stages::Authors`](super::Stages::Authors) its number of stages, and
/// [`Codec::PowerSgd`](super::Codec::PowerSgd) the last factor of each tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Feedback {
    residuals: BTreeMap<String, Residual>,
    states: CodecStates,
    /// The content that updates since [`Feedback::begin`] replaced; `None` if nothing is begun.
    replaced: Option<Replaced>,
}

/// The content from before a change, by tensor name; `None` where there was none.
#[derive(Debug, Clone, PartialEq, Default)]
struct Replaced {
    residuals: BTreeMap<String, Option<Residual>>,
    states: BTreeMap<String, Option<CodecState>>,
}

fn restore<T>(content: &mut BTreeMap<String, T>, before: BTreeMap<String, Option<T>>) {
    for (name, before) in before {
        match before {
            Some(before) => content.insert(name, before),
            None => content.remove(&name),
        };
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Residual {
    shape: Vec<u64>,
    values: Vec<f32>,
}

impl Feedback {
    /// Returns an empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the residual of the tensor `name`, row-major.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.residuals.get(name).map(|r| r.values.as_slice())
    }

    /// Returns the Euclidean norm of all residuals together, summed in the order of names and elements.
    pub fn norm(&self) -> f64 {
        let squares = self.residuals.values().flat_map(|r| &r.values).map(|&x| f64::from(x) * f64::from(x));
        squares.sum::<f64>().sqrt()
    }

    /// Removes all residuals and all codec state.
    pub fn reset(&mut self) {
        *self = Self::new();
    }

    /// Keeps what later updates replace, until [`Self::commit`] or [`Self::undo`]: for a sender that learns
    /// only later whether the receivers apply an update. It takes 4 bytes for each element that changes.
    /// Further calls before those two do nothing, so that several updates form a whole.
    pub fn begin(&mut self) {
        self.replaced.get_or_insert_default();
    }

    /// Accepts the updates since [`Self::begin`].
    pub fn commit(&mut self) {
        self.replaced = None;
    }

    /// Restores the content from before [`Self::begin`]. Without one, or after [`Self::commit`], it does
    /// nothing.
    pub fn undo(&mut self) {
        if let Some(Replaced { residuals, states }) = self.replaced.take() {
            restore(&mut self.residuals, residuals);
            restore(&mut self.states, states);
        }
    }

    /// Returns the content as tensors for a checkpoint, each group in the order of tensor names:
    ///
    /// 1. the residuals, under the names of their tensors;
    /// 2. the states of SIDCo's stage rule, three 64-bit integers each, under the tensor's name and `#sidco`;
    /// 3. the factors of PowerSGD, cols x rank, as the bit patterns of their 32-bit floats, under the
    ///    tensor's name and `#powersgd`.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        let residuals = self.residuals.iter().filter_map(|(name, r)| {
            Some((name.clone(), TensorBuf::from_f32(r.shape.clone(), &r.values).ok()?))
        });
        residuals.chain(state::save(&self.states)).collect()
    }

    /// Restores the content that [`Self::save`] returned.
    ///
    /// # Errors
    /// [`Error::Input`] if a tensor is neither a residual (floats) nor a valid codec state.
    pub fn load(tensors: impl IntoIterator<Item = (String, TensorBuf)>) -> Result<Self> {
        let mut feedback = Self::new();
        for (name, tensor) in tensors {
            if state::load(&mut feedback.states, &name, &tensor)? {
                continue;
            }
            let mut values = vec![0.0; elements(tensor.shape()).unwrap_or(0) as usize];
            decode_f32s(tensor.dtype(), tensor.data(), 0, &mut values)?;
            feedback.set(&name, tensor.shape(), values);
        }
        Ok(feedback)
    }

    /// Returns the residual of a tensor of this shape, `None` if there is none yet.
    pub(super) fn of(&self, name: &str, shape: &[u64]) -> Result<Option<&[f32]>> {
        match self.residuals.get(name) {
            Some(r) if r.shape != shape => {
                Err(Error::input(InputErrorKind::Mismatch { what: "shapes of tensor and residual" }))
            }
            residual => Ok(residual.map(|r| r.values.as_slice())),
        }
    }

    pub(super) fn set(&mut self, name: &str, shape: &[u64], values: Vec<f32>) {
        let before = self.residuals.insert(name.to_owned(), Residual { shape: shape.to_vec(), values });
        if let Some(replaced) = &mut self.replaced {
            replaced.residuals.entry(name.to_owned()).or_insert(before);
        }
    }

    /// Returns the codec state of a tensor, empty if there is none yet.
    pub(super) fn state(&self, name: &str) -> CodecState {
        self.states.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn set_state(&mut self, name: &str, state: CodecState) {
        if state != CodecState::default() {
            let before = self.states.insert(name.to_owned(), state);
            if let Some(replaced) = &mut self.replaced {
                replaced.states.entry(name.to_owned()).or_insert(before);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_residuals_come_back() {
        let mut feedback = Feedback::new();
        feedback.set("b", &[2], vec![3.0, -4.0]);
        feedback.set("a", &[], vec![0.0]);
        assert_eq!(feedback.norm(), 5.0);
        let saved = feedback.save();
        assert_eq!(saved.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(Feedback::load(saved).unwrap(), feedback);
        assert!(feedback.of("b", &[1, 2]).is_err());
        assert_eq!(feedback.of("c", &[1, 2]).unwrap(), None);
        feedback.reset();
        assert_eq!((feedback.norm(), feedback.get("b")), (0.0, None));
    }

    #[test]
    fn an_update_is_undone_as_a_whole() {
        let mut feedback = Feedback::new();
        feedback.set("a", &[1], vec![1.0]);
        feedback.undo();
        let before = feedback.clone();
        feedback.begin();
        feedback.set("a", &[1], vec![2.0]);
        feedback.begin();
        feedback.set("a", &[1], vec![3.0]);
        feedback.set("b", &[2], vec![4.0, 5.0]);
        assert_eq!(feedback.get("a"), Some(&[3.0][..]));
        feedback.undo();
        assert_eq!(feedback, before);
        feedback.begin();
        feedback.set("a", &[1], vec![6.0]);
        feedback.commit();
        feedback.undo();
        assert_eq!(feedback.get("a"), Some(&[6.0][..]));
    }
}
