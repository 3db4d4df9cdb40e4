//! State of a training in a checkpoint.

use std::collections::HashMap;

use gcodec::{Dtype, TensorBuf};
use ndarray::ArrayViewMut1;

use super::Trainer;
use super::batches::Scaled;
use super::graph::{Graph, Numbers};
use crate::{Error, Result};

/// Number of iterations that are done.
const ITERATIONS: &str = "iterations";
/// Leader of each step with signals.
const LEADERS: &str = "leaders";

/// Suffixes of the parameters and of their moments.
const QUANTITIES: [&str; 3] = ["", "#mean", "#square"];

impl Trainer {
    /// Returns weights, moments, signals and the number of iterations as tensors for a checkpoint.
    ///
    /// # Errors
    /// [`Error::Gcodec`] for a state too large for tensors.
    pub fn save(&self) -> Result<Vec<(String, TensorBuf)>> {
        let mut tensors = vec![
            (ITERATIONS.to_owned(), integers([self.iteration])?),
            (LEADERS.to_owned(), integers(self.signals.iter().map(|s| s.leader as u64))?),
        ];
        for (step, signal) in self.signals.iter().enumerate() {
            let values = signal.values.concat();
            let shape = vec![self.workers as u64, (values.len() / self.workers.max(1)) as u64];
            tensors.push((signals(step), TensorBuf::from_f32(shape, &values)?));
        }
        let graphs = std::iter::once(&self.encoder).chain(&self.decoders);
        let parameters = graphs.flat_map(|graph: &Graph| &graph.numbers);
        for (layer, (parameters, (mean, square))) in parameters.zip(&self.adam.means).enumerate() {
            for (quantity, numbers) in QUANTITIES.into_iter().zip([parameters, mean, square]) {
                for (name, row) in rows(layer, quantity, &mut numbers.clone()) {
                    tensors.push((name, TensorBuf::from_f32(vec![row.len() as u64], &row.to_vec())?));
                }
            }
        }
        Ok(tensors)
    }

    /// Restores what [`Self::save`] returned: the training goes on as if it had not been interrupted.
    ///
    /// # Errors
    /// [`Error::Input`] if the state is of other networks or another number of workers, is incomplete, or a
    /// number is not finite. The trainer is unchanged then.
    pub fn load(&mut self, tensors: impl IntoIterator<Item = (String, TensorBuf)>) -> Result<()> {
        let mut tensors = Tensors(tensors.into_iter().collect());
        let mut loaded = self.clone();
        let [iteration] = tensors.integers(ITERATIONS)?[..] else { return Err(WRONG) };
        (loaded.iteration, loaded.adam.step) = (iteration, i32::try_from(iteration).map_err(|_| WRONG)?);
        loaded.signals.clear();
        loaded.workers = 0;
        for (step, leader) in tensors.integers(LEADERS)?.into_iter().enumerate() {
            let (shape, values) = tensors.floats(&signals(step))?;
            let [workers, len] = shape[..] else { return Err(WRONG) };
            let (workers, len) = (workers as usize, len as usize);
            let leader = usize::try_from(leader).map_err(|_| WRONG)?;
            let fits = loaded.workers == 0 || workers == loaded.workers;
            if leader >= workers || len == 0 || !fits || !self.trains(workers) {
                return Err(WRONG);
            }
            loaded.workers = workers;
            let values = values.chunks_exact(len).map(<[f32]>::to_vec).collect();
            loaded.signals.push(Scaled::restored(leader, values, self.settings.innovation));
        }
        let graphs = std::iter::once(&mut loaded.encoder).chain(&mut loaded.decoders);
        let parameters = graphs.flat_map(|graph| &mut graph.numbers);
        for (layer, (parameters, (mean, square))) in parameters.zip(&mut loaded.adam.means).enumerate() {
            for (quantity, numbers) in QUANTITIES.into_iter().zip([parameters, mean, square]) {
                for (name, mut row) in rows(layer, quantity, numbers) {
                    let (_, values) = tensors.floats(&name)?;
                    if values.len() != row.len() {
                        return Err(WRONG);
                    }
                    row.iter_mut().zip(values).for_each(|(to, x)| *to = x);
                }
            }
        }
        if !tensors.0.is_empty() {
            return Err(WRONG);
        }
        *self = loaded;
        Ok(())
    }
}

const WRONG: Error = Error::Input("state of a training that does not fit the networks");

/// Returns the name of the signals of a step.
fn signals(step: usize) -> String {
    format!("signals.{step}")
}

/// Returns the parameters of a layer, or a moment of theirs, by name.
fn rows<'n>(
    layer: usize,
    quantity: &'static str,
    numbers: &'n mut Numbers,
) -> Vec<(String, ArrayViewMut1<'n, f32>)> {
    let count = numbers.weights.len();
    let weights = numbers.weights.view_mut().into_shape_with_order(count);
    let mut rows = Vec::new();
    rows.extend(weights.map(|row| (format!("weights.{layer}{quantity}"), row)));
    rows.extend(numbers.bias.as_mut().map(|bias| (format!("bias.{layer}{quantity}"), bias.view_mut())));
    rows
}

/// Tensors of a checkpoint that were not taken yet.
struct Tensors(HashMap<String, TensorBuf>);

impl Tensors {
    fn floats(&mut self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
        let tensor = self.0.remove(name).filter(|t| t.dtype() == Dtype::F32).ok_or(WRONG)?;
        let values = tensor.view().to_f32()?;
        if !values.iter().all(|x| x.is_finite()) {
            return Err(Error::Input("a number of a saved training that is not finite"));
        }
        Ok((tensor.shape().to_vec(), values))
    }

    fn integers(&mut self, name: &str) -> Result<Vec<u64>> {
        let tensor = self.0.remove(name).filter(|t| t.dtype() == Dtype::I64).ok_or(WRONG)?;
        Ok(tensor.data().as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
    }
}

/// Returns integers below 2^63 as a tensor.
fn integers(numbers: impl IntoIterator<Item = u64>) -> Result<TensorBuf> {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
    Ok(TensorBuf::new(Dtype::I64, vec![bytes.len() as u64 / 8], bytes)?)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{signals, trainer};
    use super::*;
    use crate::Innovation;
    use crate::training::TrainerOptions;

    #[test]
    fn a_saved_training_goes_on() {
        for (decoders, innovation) in [(3, Innovation::Replace), (1, Innovation::None)] {
            let settings = TrainerOptions::default().with_batch(3).with_window(64);
            let mut first = trainer(decoders, innovation, settings.clone());
            first.run(7, |_| 0.0).unwrap();
            let saved = first.save().unwrap();
            let mut second = trainer(decoders, innovation, settings);
            second.push(&signals(9, 30)).unwrap();
            second.load(saved.into_iter().rev()).unwrap();
            for trainer in [&mut first, &mut second] {
                trainer.push(&signals(5, 80)).unwrap();
                trainer.run(5, |_| 0.5).unwrap();
            }
            assert_eq!((first.steps(), first.baseline()), (second.steps(), second.baseline()));
            assert_eq!(first.model().unwrap().id(), second.model().unwrap().id());
        }
    }

    #[test]
    fn a_state_that_does_not_fit_changes_nothing() {
        let settings = TrainerOptions::default().with_batch(3).with_window(64);
        let mut other = trainer(3, Innovation::Channel, settings.clone());
        let mut ring = trainer(1, Innovation::None, settings);
        ring.run(1, |_| 0.0).unwrap();
        let (saved, before) = (ring.save().unwrap(), other.model().unwrap().id());
        assert!(matches!(other.load(saved.clone()), Err(Error::Input(_))), "another number of decoders");
        for (missing, (name, tensor)) in saved.iter().enumerate() {
            let mut rest = saved.clone();
            rest.remove(missing);
            assert!(matches!(ring.load(rest.clone()), Err(Error::Input(_))), "no {name}");
            let mut bytes = tensor.data().to_vec();
            bytes.extend(f32::NAN.to_le_bytes().repeat(2));
            let count = bytes.len() as u64 * 8 / u64::from(tensor.dtype().bits());
            rest.push((name.clone(), TensorBuf::new(tensor.dtype(), vec![count], bytes).unwrap()));
            assert!(matches!(ring.load(rest), Err(Error::Input(_))), "{name} with more numbers");
        }
        let more = saved.iter().cloned().chain([("more".to_owned(), saved[0].1.clone())]);
        assert!(matches!(ring.load(more), Err(Error::Input(_))));
        assert_eq!(other.model().unwrap().id(), before);
        assert_eq!(ring.save().unwrap(), saved);
    }
}
