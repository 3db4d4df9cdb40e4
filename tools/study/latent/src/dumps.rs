//! Gradients of several workers: read from files, and as signals of the protocol's second phase.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gcodec::TensorBuf;
use gcodec::compress::Amount;
use gcodec::frame::{Manifest, TensorInfo};
use gcodec::stream::{EncodeOptions, Encoder, Event, SliceReader};
use gcodec_latent::protocol::{Begun, Outcome, Receiver, Settings, Variant, Worker, classes};
use safetensors::SafeTensors;

use crate::{Result, Signals};

/// Gradients of one step.
#[derive(Debug, Clone)]
pub struct Step {
    /// Number of the step.
    pub step: u64,
    /// Manifest of the tensors.
    pub manifest: Arc<Manifest>,
    /// Tensors of each worker, in the manifest's order.
    pub workers: Vec<Vec<TensorBuf>>,
}

/// Reads `<run>_step<number>_worker<number>.safetensors` files: one step for each run and number, with the
/// f32 tensors that all its workers' files have. They keep the order of the data, which is usually that of
/// the names. A layer given as `first` moves to the beginning and one given as `last` to the end; a layer is
/// the common prefix of its tensors' names up to a dot.
///
/// # Errors
/// If a file cannot be read or has an unexpected name, or a step lacks one of the workers 0, 1, ..
pub fn read(paths: &[PathBuf], first: Option<&str>, last: Option<&str>) -> Result<Vec<Step>> {
    let mut steps: BTreeMap<(String, u64), BTreeMap<u64, &Path>> = BTreeMap::new();
    for path in paths {
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let parsed = stem.rsplit_once("_worker").and_then(|(rest, worker)| {
            let (run, step) = rest.rsplit_once("_step")?;
            Some(((run.to_owned(), step.parse().ok()?), worker.parse().ok()?))
        });
        let (key, worker) = parsed.ok_or_else(|| {
            format!("{}: its name is not <run>_step<number>_worker<number>", path.display())
        })?;
        steps.entry(key).or_default().insert(worker, path);
    }
    let place = |name: &str| {
        let is =
            |layer: Option<&str>| layer.is_some() && layer == name.rsplit_once('.').map(|(layer, _)| layer);
        if is(first) {
            0
        } else if is(last) {
            2
        } else {
            1
        }
    };
    steps.into_iter().map(|((run, step), workers)| read_step(&run, step, &workers, place)).collect()
}

fn read_step(run: &str, step: u64, paths: &BTreeMap<u64, &Path>, place: impl Fn(&str) -> u8) -> Result<Step> {
    if !paths.keys().copied().eq(0..paths.len() as u64) {
        return Err(format!("{run}, step {step}: workers {:?} are not 0, 1, ..", paths.keys()).into());
    }
    let mut files = Vec::new();
    for path in paths.values() {
        let read = || -> Result<Vec<(String, TensorBuf)>> {
            let bytes = std::fs::read(path)?;
            let file = SafeTensors::deserialize(&bytes)?;
            let mut tensors: Vec<_> = file.iter().collect();
            tensors.sort_by_key(|(name, t)| (place(name), t.data().as_ptr()));
            let f32s = tensors.into_iter().filter(|(_, t)| t.dtype() == safetensors::Dtype::F32);
            f32s.map(|(name, t)| {
                let shape = t.shape().iter().map(|&d| d as u64).collect();
                Ok((name.to_owned(), TensorBuf::new(gcodec::Dtype::F32, shape, t.data().to_vec())?))
            })
            .collect()
        };
        files.push(read().map_err(|e| format!("{}: {e}", path.display()))?);
    }
    let names: Vec<String> = files[0].iter().map(|(name, _)| name.clone()).collect();
    let in_all = |name: &String| files.iter().all(|f| f.iter().any(|(n, _)| n == name));
    let names: Vec<String> = names.into_iter().filter(in_all).collect();
    for file in &mut files {
        file.retain(|(name, _)| names.contains(name));
    }
    let infos = files[0].iter().map(|(name, t)| TensorInfo::new(name, t.dtype(), t.shape())).collect();
    let workers = files.into_iter().map(|f| f.into_iter().map(|(_, t)| t).collect()).collect();
    Ok(Step { step, manifest: Arc::new(Manifest::new(infos)?), workers })
}

/// Sends a step's gradients through the protocol, without residual, in a stream that already has the
/// manifest and the models. Returns the outcome, and the bytes of all frames.
///
/// # Errors
/// The errors of the protocol.
pub fn exchange(
    step: &Step,
    settings: &Settings,
    model: Option<&Arc<gcodec_latent::Model>>,
) -> Result<(Outcome, u64)> {
    let world = step.workers.len() as u64;
    let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
    let mut out = Vec::new();
    encoder.manifest(&mut out, &step.manifest);
    let before = encoder.offset();
    let mut workers = Vec::new();
    let mut set = None;
    for (rank, tensors) in (0..).zip(&step.workers) {
        let mut worker = Worker::new(&step.manifest, settings.clone(), rank, world)?;
        if let Some(model) = model {
            worker.set_model(Arc::clone(model))?;
        }
        let views: Vec<_> = tensors.iter().map(TensorBuf::view).collect();
        if let Begun::Leader(own) = worker.begin(step.step, &views)? {
            set = Some(own);
        }
        workers.push(worker);
    }
    if let Some(set) = &set {
        let id = encoder.index_set(&mut out, set, &step.manifest, Default::default())?;
        workers.iter_mut().try_for_each(|w| w.take_set(set, id))?;
    }
    workers.iter().try_for_each(|w| w.send(&mut encoder, &mut out))?;
    let bytes = encoder.offset() - before;
    encoder.finish(&mut out);
    let mut receiver = Receiver::new(&step.manifest, settings.clone(), world)?;
    if let Some(model) = model {
        receiver.add_model(Arc::clone(model))?;
    }
    receiver.begin(step.step)?;
    let mut reader = SliceReader::new(&out, gcodec::Limits::default());
    while let Some(event) = reader.next_event()? {
        match event {
            Event::Frame(_, gcodec::stream::Body::IndexSet(set, id, _)) => receiver.take_set(&set, id)?,
            Event::Frame(_, gcodec::stream::Body::Update(part)) => receiver.take(&part)?,
            _ => {}
        }
    }
    Ok((receiver.finish()?, bytes))
}

/// Returns the signals of a step, which phase 2 of the protocol collects.
///
/// # Errors
/// The errors of the protocol.
pub fn signals(step: &Step, amount: Amount) -> Result<Signals> {
    let settings = Settings::new(Variant::Server, classes(&step.manifest)?)
        .with_amount(amount)
        .with_full_steps(0)
        .with_top_k_steps(u64::MAX);
    let (outcome, _) = exchange(step, &settings, None)?;
    let leader = (step.step % step.workers.len() as u64) as usize;
    Ok(Signals { leader, values: outcome.signals })
}
