//! Workers of the learned codec: the three phases, and training of the autoencoder in the second.

use std::sync::Arc;

use gcodec::block::SetId;
use gcodec::compress::Selection;
use gcodec::compress::codecs::TopK;
use gcodec::file::File;
use gcodec::frame::IndexSet;
use gcodec::stream::{Body, Event, SliceReader};
use gcodec::{Codec, Limits};
use gcodec_latent::protocol::{
    Begun, Class, Outcome, Phase, ProtocolOptions, Receiver, Variant, Worker, classes,
};
use gcodec_latent::training::{self, Signals, Trainer};
use gcodec_latent::{Architecture, CodeFormat, Error, Innovation, Model, Models, without_latent};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::decode::Bytes;
use crate::encode::{Encoded, parse};
use crate::feedback::{given_out, owned};
use crate::limits::PyLimits;
use crate::named::{Given, borrow, views};
use crate::sets::Frames;
use crate::tensor::Tensor;
use crate::{errors, threads};

/// A worker for all f32 tensors of a model, and its receiving half.
#[pyclass(module = "gcodec._native")]
pub(crate) struct Lgc {
    frames: Frames,
    settings: ProtocolOptions,
    world: u64,
    worker: Worker,
    receiver: Receiver,
    step: u64,
    set: Option<(Box<IndexSet>, SetId)>,
    outcome: Option<Outcome>,
    model: Option<Arc<Model>>,
    /// Networks in training, on the rank that trains.
    trainer: Option<Trainer>,
    /// Steps of the optimizer in the whole second phase.
    iterations: u64,
}

/// Settings from Python, with the names and ranges of `gcodec.torch.Lgc`.
#[derive(FromPyObject)]
pub(crate) struct Options {
    spec: String,
    paper_layers: bool,
    innovation: f64,
    feedback: bool,
    momentum: f32,
    full_steps: u64,
    top_k_steps: u64,
    iterations: u64,
    width: usize,
    lambda_sim: f64,
    seed: u64,
}

/// Returns the exception for an error of the learned codec.
fn raise(py: Python<'_>, error: Error, frames: Option<&Frames>) -> PyErr {
    match error {
        Error::Gcodec(e) => errors::raise(py, e, frames.map(|f| &*f.manifest)),
        e => errors::input(py, &e.to_string()),
    }
}

/// Returns the last update of a stream as a stream of its own, in which decoded values replace the latent
/// codes; nothing if it has none. `models`: those that the stream does not carry.
#[pyfunction]
pub(crate) fn without_codes<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    models: Vec<Bound<'py, PyAny>>,
    limits: PyLimits,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let bytes = Bytes::new(data)?;
    let given = models.iter().map(Bytes::new).collect::<PyResult<Vec<_>>>()?;
    let limits = limits.get();
    let found = threads::run(py, || replaced(bytes.as_slice(), &given, &limits))?;
    let found = found.map_err(|e| match e {
        Error::MissingModel(_) => errors::input(py, &format!("{e}: give its bytes in models")),
        e => raise(py, e, None),
    })?;
    Ok(found.map(|bytes| PyBytes::new(py, &bytes)))
}

fn replaced(bytes: &[u8], given: &[Bytes], limits: &Limits) -> gcodec_latent::Result<Option<Vec<u8>>> {
    let mut models = Models::new();
    for model in given {
        models.add(Model::from_bytes(model.as_slice(), &Default::default())?.into());
    }
    let file = File::scan(bytes, limits.clone())?;
    let mut reader = SliceReader::new(bytes, limits.clone());
    while let Some(event) = reader.next_event()? {
        let Event::Frame(_, Body::Model(frame)) = event else { continue };
        match Model::from_frame(&frame, &Default::default()) {
            Ok(model) => models.add(model.into()),
            // Another format, or only a location: its codes count as those of a missing model.
            Err(Error::Input(_) | Error::MissingModel(_)) => {}
            Err(e) => return Err(e),
        }
    }
    without_latent(&file.parts(file.last()?, |_| true)?, &models)
}

#[pymethods]
impl Lgc {
    #[new]
    fn new(
        py: Python<'_>,
        tensors: Vec<(String, Vec<u64>)>,
        rank: u64,
        world: u64,
        given: Options,
    ) -> PyResult<Self> {
        let Codec::TopK(TopK { amount, selection: Selection::Tensor, .. }) = parse(py, &given.spec)? else {
            return Err(errors::input(py, "the learned codec needs a topk codec for its choice"));
        };
        let made = || -> gcodec_latent::Result<Self> {
            let frames = Frames::new(tensors)?;
            let classes = match given.paper_layers {
                true => classes(&frames.manifest)?,
                false => vec![Class::Learned; frames.manifest.tensors().len()],
            };
            let settings = ProtocolOptions::new(Variant::Server, classes)
                .with_amount(amount)
                .with_innovation(given.innovation)
                .with_codes(CodeFormat::Int8)
                .with_momentum(given.momentum)
                .with_feedback(given.feedback)
                .with_full_steps(given.full_steps)
                .with_top_k_steps(given.top_k_steps);
            let worker = Worker::new(&frames.manifest, settings.clone(), rank, world)?;
            let receiver = Receiver::new(&frames.manifest, settings.clone(), world)?;
            let decoders = usize::try_from(world).map_err(|_| Error::Input("number of workers"))?;
            let architecture = Architecture::new(decoders, Innovation::Replace).with_width(given.width);
            let training = training::TrainerOptions::default()
                .with_lambda_sim(given.lambda_sim)
                .with_innovation(given.innovation)
                .with_seed(given.seed);
            // One rank trains, and the others get its model.
            let trainer = match rank {
                0 => Some(Trainer::new(&architecture.init(given.seed)?, training)?),
                _ => None,
            };
            let (set, outcome, model, iterations) = (None, None, None, given.iterations);
            Ok(Self {
                frames,
                settings,
                world,
                worker,
                receiver,
                step: 0,
                set,
                outcome,
                model,
                trainer,
                iterations,
            })
        };
        made().map_err(|e| raise(py, e, None))
    }

    /// Returns the bytes of the model: the one in use, or that of the trained networks; nothing on ranks that
    /// have neither.
    fn model<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let made = match (&self.model, &self.trainer) {
            (Some(model), _) => Some(Arc::clone(model)),
            (None, Some(trainer)) => Some(Arc::new(trainer.model().map_err(|e| raise(py, e, None))?)),
            _ => None,
        };
        Ok(made.map(|model| PyBytes::new(py, model.as_bytes())))
    }

    /// Takes the model of the third phase. The training is over then.
    fn set_model(&mut self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = Bytes::new(data)?;
        let mut taken = || -> gcodec_latent::Result<Arc<Model>> {
            let model = Arc::new(Model::from_bytes(bytes.as_slice(), &gcodec_latent::Limits::default())?);
            self.worker.set_model(Arc::clone(&model))?;
            self.receiver.add_model(Arc::clone(&model))?;
            Ok(model)
        };
        self.model = Some(taken().map_err(|e| raise(py, e, None))?);
        self.trainer = None;
        Ok(())
    }

    /// Begins a step with all gradients. `used`: whether each takes part. Returns the frame of the index set
    /// on the leader, and `None` on others and in the first phase.
    fn begin<'py>(
        &mut self,
        py: Python<'py>,
        step: u64,
        gradients: Given<'py>,
        used: Vec<bool>,
    ) -> PyResult<Option<Encoded>> {
        let mut gradients = borrow(gradients)?;
        let (worker, frames) = (&mut self.worker, &self.frames);
        let begun = threads::run(py, || {
            let views: Vec<_> = views(&mut gradients)?.into_iter().map(|(_, view)| view).collect();
            let Begun::Leader(set) = worker.begin_used(step, &views, &used)? else { return Ok(None) };
            frames.index_set(&set).map(Some).map_err(Error::from).inspect_err(|_| worker.abort())
        })?;
        self.step = step;
        Ok(begun.map_err(|e| raise(py, e, Some(&self.frames)))?.map(Encoded::of))
    }

    /// Takes the leader's index set.
    fn take_set<'py>(&mut self, py: Python<'py>, data: &Bound<'py, PyAny>, limits: PyLimits) -> PyResult<()> {
        let (bytes, limits) = (Bytes::new(data)?, limits.get());
        let (worker, frames) = (&mut self.worker, &self.frames);
        let taken = threads::run(py, || {
            let set = frames.read_set(bytes.as_slice(), &limits)?;
            let (set, id) = set.ok_or(Error::Input("the leader's frames have no index set"))?;
            worker.take_set(&set, id)?;
            Ok((set, id))
        })?;
        self.set = Some(taken.map_err(|e| raise(py, e, Some(&self.frames)))?);
        Ok(())
    }

    /// Returns the frames of this worker's updates.
    fn send(&self, py: Python<'_>) -> PyResult<Encoded> {
        let (worker, frames, set) = (&self.worker, &self.frames, self.set.as_ref());
        let sent = threads::run(py, || frames.written(set, |encoder, out| worker.send(encoder, out)))?;
        Ok(Encoded::of(sent.map_err(|e| raise(py, e, Some(&self.frames)))?))
    }

    /// Returns the mean of all workers' updates as dense tensors. `streams`: the frames of each worker.
    fn mean<'py>(
        &mut self,
        py: Python<'py>,
        streams: Vec<Bound<'py, PyAny>>,
        limits: PyLimits,
    ) -> PyResult<Vec<(String, Tensor)>> {
        let streams = streams.iter().map(Bytes::new).collect::<PyResult<Vec<_>>>()?;
        let (limits, step) = (limits.get(), self.step);
        let (receiver, frames, set) = (&mut self.receiver, &self.frames, self.set.as_ref());
        let received = threads::run(py, || {
            receiver.begin(step)?;
            if let Some((set, id)) = set {
                receiver.take_set(set, *id)?;
            }
            for stream in &streams {
                frames.updates(stream.as_slice(), set, &limits, |part| receiver.take(part))?;
            }
            receiver.finish()
        })?;
        let outcome = received.inspect_err(|_| self.receiver.abort());
        let outcome = outcome.map_err(|e| raise(py, e, Some(&self.frames)))?;
        let tensor = |(info, row): (&gcodec::frame::TensorInfo, &Vec<f32>)| {
            Ok((info.name.clone(), gcodec::TensorBuf::from_f32(info.shape.clone(), row)?))
        };
        let tensors = self.frames.manifest.tensors().iter().zip(&outcome.mean).map(tensor);
        let tensors = tensors.collect::<gcodec::Result<_>>().map_err(|e| errors::raise(py, e, None))?;
        self.outcome = Some(outcome);
        Ok(given_out(tensors))
    }

    /// Ends the step. In the second phase, the rank that trains takes its share of the training.
    fn finish(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(outcome) = self.outcome.take() else {
            return Err(errors::input(py, "no step is open: call mean first"));
        };
        let leader = (self.step % self.world) as usize;
        let (total, all) = (self.settings.top_k_steps, self.iterations);
        let before = self.step.saturating_sub(self.settings.full_steps);
        let (worker, trainer) = (&mut self.worker, &mut self.trainer);
        let finished = threads::run(py, || {
            worker.finish_with(&outcome)?;
            if let (Phase::TopK, Some(trainer)) = (outcome.phase, trainer) {
                trainer.push(&Signals { leader, values: outcome.signals })?;
                // The last step of the phase takes what the division leaves.
                let until = |steps: u64| u128::from(steps) * u128::from(all) / u128::from(total.max(1));
                let (from, to) = (until(before) as u64, until(before + 1) as u64);
                if trainer.steps() > 0 && to > from {
                    trainer.run(to - from, |i| (from + i) as f64 / all.max(1) as f64)?;
                }
            }
            Ok(())
        })?;
        self.set = None;
        finished.map_err(|e| raise(py, e, Some(&self.frames)))
    }

    /// Ends the open step without a result. The state is unchanged.
    fn abort(&mut self) {
        self.worker.abort();
        self.receiver.abort();
        (self.set, self.outcome) = (None, None);
    }

    fn save(&self) -> Vec<(String, Tensor)> {
        given_out(self.worker.save())
    }

    fn load(&mut self, py: Python<'_>, tensors: Given<'_>) -> PyResult<()> {
        self.worker.load(owned(py, tensors)?).map_err(|e| raise(py, e, None))
    }

    /// Returns the state of the training, on the rank that trains; nothing on others and after the training.
    fn save_training(&self, py: Python<'_>) -> PyResult<Vec<(String, Tensor)>> {
        let saved = self.trainer.as_ref().map(Trainer::save).transpose();
        Ok(given_out(saved.map_err(|e| raise(py, e, None))?.unwrap_or_default()))
    }

    /// Restores what `save_training` returned.
    fn load_training(&mut self, py: Python<'_>, tensors: Given<'_>) -> PyResult<()> {
        let Some(trainer) = &mut self.trainer else {
            return Err(errors::input(py, "the state of a training, and this rank does not train"));
        };
        trainer.load(owned(py, tensors)?).map_err(|e| raise(py, e, None))
    }
}
