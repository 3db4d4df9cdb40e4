//! Error feedback: what a lossy codec left out is added to the next update.

use std::collections::BTreeMap;

use super::codecs::powersgd::Factor;
use super::codecs::sidco::Adaptation;
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::element::decode_f32s;
use crate::tensor::{Dtype, TensorBuf, elements};

/// The residuals of a sender, by tensor name: 32-bit floats, for each tensor the sum of what it was to send and what the
/// receivers did not get yet. It never travels.
///
/// Beside them, for tensors that [`Stages::Authors`](super::Stages::Authors) chose from, the state of that rule, and for those
/// that [`Codec::PowerSgd`](super::Codec::PowerSgd) sent as factors the last of them, which the next step begins with.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Feedback {
    residuals: BTreeMap<String, Residual>,
    stages: BTreeMap<String, Adaptation>,
    factors: BTreeMap<String, Factor>,
}

/// Ends the name of a state of the stage rule in a checkpoint.
const STAGES: &str = "#sidco";
/// Ends the name of a factor of PowerSGD in a checkpoint.
const FACTOR: &str = "#powersgd";

#[derive(Debug, Clone, PartialEq)]
struct Residual {
    shape: Vec<u64>,
    values: Vec<f32>,
}

impl Feedback {
    /// No residuals.
    pub fn new() -> Self {
        Self::default()
    }

    /// The residual of the tensor `name`, row-major.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.residuals.get(name).map(|r| r.values.as_slice())
    }

    /// The Euclidean norm of all residuals together, the sum taken in the order of names and elements.
    pub fn norm(&self) -> f64 {
        let squares = self.residuals.values().flat_map(|r| &r.values).map(|&x| f64::from(x) * f64::from(x));
        squares.sum::<f64>().sqrt()
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.residuals.clear();
        self.stages.clear();
        self.factors.clear();
    }

    /// All residuals as tensors, in the order of their names, for a checkpoint; then the states of the stage rule, as three
    /// 64-bit integers each under the tensor's name and `#sidco`; then the factors of PowerSGD, cols x rank, as the bit patterns of
    /// their 32-bit floats under the tensor's name and `#powersgd`.
    pub fn save(&self) -> Vec<(String, TensorBuf)> {
        let stages = self.stages.iter().filter_map(|(name, state)| {
            let data = state.to_words().iter().flat_map(|w| w.to_le_bytes()).collect();
            let state = TensorBuf::new(Dtype::I64, vec![3], data).ok()?;
            Some((format!("{name}{STAGES}"), state))
        });
        let factors = self.factors.iter().filter_map(|(name, factor)| {
            let data = factor.values.iter().flat_map(|x| x.to_le_bytes()).collect();
            let cols = (factor.values.len() as u64).checked_div(factor.rank)?;
            Some((format!("{name}{FACTOR}"), TensorBuf::new(Dtype::U32, vec![cols, factor.rank], data).ok()?))
        });
        self.residuals
            .iter()
            .filter_map(|(name, r)| {
                TensorBuf::from_f32(r.shape.clone(), &r.values).ok().map(|t| (name.clone(), t))
            })
            .chain(stages)
            .chain(factors)
            .collect()
    }

    /// The residuals that [`Self::save`] gave.
    ///
    /// # Errors
    /// [`Error::Input`] if a tensor is neither of floats nor a state of the stage rule or a factor.
    pub fn load(tensors: impl IntoIterator<Item = (String, TensorBuf)>) -> Result<Self> {
        let mut feedback = Self::new();
        for (name, tensor) in tensors {
            if let (Dtype::I64, Some(of)) = (tensor.dtype(), name.strip_suffix(STAGES)) {
                let words: Vec<i64> =
                    tensor.data().as_chunks().0.iter().map(|w| i64::from_le_bytes(*w)).collect();
                let state = words.try_into().ok().and_then(Adaptation::from_words);
                let state =
                    state.ok_or(Error::input(InputErrorKind::BadState { what: "stages of SIDCo" }))?;
                feedback.set_stages(of, state);
                continue;
            }
            if let (Dtype::U32, Some(of), &[_, rank]) =
                (tensor.dtype(), name.strip_suffix(FACTOR), tensor.shape())
            {
                let values = tensor.data().as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
                feedback.set_factor(of, Factor { rank, values });
                continue;
            }
            let mut values = vec![0.0; elements(tensor.shape()).unwrap_or(0) as usize];
            decode_f32s(tensor.dtype(), tensor.data(), 0, &mut values)?;
            feedback.set(&name, tensor.shape(), values);
        }
        Ok(feedback)
    }

    pub(super) fn of(&self, name: &str, shape: &[u64]) -> Result<Option<&[f32]>> {
        match self.residuals.get(name) {
            Some(r) if r.shape != shape => {
                Err(Error::input(InputErrorKind::Mismatch { what: "shapes of tensor and residual" }))
            }
            residual => Ok(residual.map(|r| r.values.as_slice())),
        }
    }

    pub(super) fn stages(&self, name: &str) -> Option<Adaptation> {
        self.stages.get(name).copied()
    }

    pub(super) fn set_stages(&mut self, name: &str, state: Adaptation) {
        self.stages.insert(name.to_owned(), state);
    }

    pub(super) fn factor(&self, name: &str) -> Option<&Factor> {
        self.factors.get(name)
    }

    pub(super) fn set_factor(&mut self, name: &str, factor: Factor) {
        self.factors.insert(name.to_owned(), factor);
    }

    pub(super) fn set(&mut self, name: &str, shape: &[u64], values: Vec<f32>) {
        self.residuals.insert(name.to_owned(), Residual { shape: shape.to_vec(), values });
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
}
