//! Workers of ScaleCom, which sum in the compressed domain.

use std::sync::Arc;

use gcodec::block::{Block, BlockOptions, Floats, Scope, SetId, Sets, Stored, Support, Target, Values};
use gcodec::compress::Selection;
use gcodec::compress::codecs::TopK;
use gcodec::compress::senders::scalecom::{Choice, Role, ScaleComOptions, ScaleComWorker};
use gcodec::frame::{Budget, IndexSet, Manifest, TensorInfo};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf};
use pyo3::prelude::*;

use crate::decode::Bytes;
use crate::encode::{Encoded, parse};
use crate::feedback::{given_out, owned};
use crate::limits::PyLimits;
use crate::named::{Given, borrow, views};
use crate::tensor::Tensor;
use crate::{errors, threads};

/// A worker for all f32 tensors of a model.
#[pyclass(module = "gcodec._native")]
pub(crate) struct ScaleCom {
    manifest: Arc<Manifest>,
    worker: ScaleComWorker,
    /// The index set of the open step, and its number of values.
    set: Option<(Box<IndexSet>, u64)>,
}

#[pymethods]
impl ScaleCom {
    /// `tensors`: names and shapes. `codec`: a top-k codec, for the number of elements and the scope of the
    /// choice. `chunk`: the number of elements of which one is chosen instead.
    #[new]
    #[pyo3(signature = (tensors, rank, world, codec, beta, chunk=None))]
    fn new(
        py: Python<'_>,
        tensors: Vec<(String, Vec<u64>)>,
        rank: u64,
        world: u64,
        codec: &str,
        beta: f32,
        chunk: Option<u64>,
    ) -> PyResult<Self> {
        let Codec::TopK(TopK { amount, selection, .. }) = parse(py, codec)? else {
            return Err(errors::input(py, "ScaleCom needs a topk codec for its choice"));
        };
        let choice = match (chunk, selection) {
            (Some(chunk), _) => Choice::PerChunk(chunk),
            (None, Selection::Global) => Choice::TopK(amount),
            (None, Selection::Tensor) => Choice::TopKOfEach(amount),
        };
        let infos: Vec<_> =
            tensors.into_iter().map(|(name, shape)| TensorInfo::new(name, Dtype::F32, shape)).collect();
        let scope = match infos.len() as u64 {
            0 | 1 => Scope::Tensor(0),
            count => Scope::Tensors { first: 0, count },
        };
        let made = || {
            let manifest = Arc::new(Manifest::new(infos)?);
            let worker = ScaleComWorker::new(
                &manifest,
                scope,
                rank,
                world,
                ScaleComOptions::new(choice).with_beta(beta),
            )?;
            Ok(Self { manifest, worker, set: None })
        };
        made().map_err(|e| errors::raise(py, e, None))
    }

    fn leader(&self, step: u64) -> u64 {
        self.worker.leader(step)
    }

    /// Begins a step with all gradients. `used`: whether each takes part. Returns the stream of the index set
    /// on the leader, `None` on others.
    fn begin<'py>(
        &mut self,
        py: Python<'py>,
        step: u64,
        gradients: Given<'py>,
        used: Vec<bool>,
    ) -> PyResult<Option<Encoded>> {
        let mut gradients = borrow(gradients)?;
        let (worker, manifest) = (&mut self.worker, &self.manifest);
        let begun = threads::run(py, || {
            let views: Vec<_> = views(&mut gradients)?.into_iter().map(|(_, view)| view).collect();
            let Role::Leader(set) = worker.begin_used(step, &views, &used)? else { return Ok(None) };
            let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
            let mut out = Vec::new();
            let written = encoder.index_set(&mut out, &set, manifest, BlockOptions::default());
            if let Err(e) = written {
                worker.abort();
                return Err(e);
            }
            encoder.finish(&mut out);
            Ok(Some(Encoded::of(out)))
        })?;
        begun.map_err(|e| errors::raise(py, e, Some(&self.manifest)))
    }

    /// Takes the leader's index set. Returns this worker's values on it.
    fn take_set<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        limits: PyLimits,
    ) -> PyResult<Tensor> {
        let (bytes, limits) = (Bytes::new(data)?, limits.get());
        let worker = &mut self.worker;
        let taken = threads::run(py, || {
            let Some((set, id)) = read_set(bytes.as_slice(), &limits)? else { return Ok(None) };
            worker.take_set(&set, id)?;
            Ok(Some((set, worker.values()?)))
        })?;
        let taken = taken.map_err(|e: gcodec::Error| errors::raise(py, e, Some(&self.manifest)))?;
        let (set, block) = taken.ok_or_else(|| errors::input(py, "the stream has no index set"))?;
        let Values::Floats(Floats { bytes, .. }) = block.values else {
            return Err(errors::input(py, "the values of ScaleCom are not floats"));
        };
        let count = bytes.len() as u64 / 4;
        let tensor = TensorBuf::new(Dtype::F32, vec![count], bytes);
        self.set = Some((set, count));
        Ok(Tensor::of(tensor.map_err(|e| errors::raise(py, e, None))?))
    }

    /// Ends the step with the sum or mean of all workers' values. Returns the dense tensors.
    fn finish<'py>(&mut self, py: Python<'py>, values: Given<'py>) -> PyResult<Vec<(String, Tensor)>> {
        let mut values = borrow(values)?;
        let Some((set, count)) = &self.set else {
            return Err(errors::input(py, "no step is open: call take_set first"));
        };
        let (worker, manifest) = (&mut self.worker, &self.manifest);
        let finished = threads::run(py, || {
            let views = views(&mut values)?;
            let [(_, view)] = views[..] else { return Ok(None) };
            if (view.dtype(), view.shape()) != (Dtype::F32, &[*count][..]) {
                return Ok(None);
            }
            let tensors = expand(manifest, set, view.data().to_vec())?;
            worker.finish()?;
            Ok(Some(tensors))
        })?;
        let finished = finished.map_err(|e: gcodec::Error| errors::raise(py, e, Some(&self.manifest)))?;
        let tensors = finished.ok_or_else(|| {
            errors::input(py, "finish needs one f32 tensor with a value for each element of the index set")
        })?;
        self.set = None;
        Ok(given_out(tensors))
    }

    /// Ends the open step without a result. The memory is unchanged.
    fn abort(&mut self) {
        self.worker.abort();
        self.set = None;
    }

    fn norm(&self) -> f64 {
        self.worker.memory().norm()
    }

    fn save(&self) -> Vec<(String, Tensor)> {
        given_out(self.worker.memory().save())
    }

    fn load(&mut self, py: Python<'_>, tensors: Given<'_>) -> PyResult<()> {
        let loaded = gcodec::compress::Feedback::load(owned(py, tensors)?);
        let loaded = loaded.and_then(|memory| self.worker.set_memory(memory));
        loaded.map_err(|e| errors::raise(py, e, None))
    }
}

/// Returns the index set of a whole stream, if it has one.
fn read_set(bytes: &[u8], limits: &Limits) -> gcodec::Result<Option<(Box<IndexSet>, SetId)>> {
    let (mut found, mut reader) = (None, SliceReader::new(bytes, limits.clone()));
    while let Some(event) = reader.next_event()? {
        if let Event::Frame(_, Body::IndexSet(set, id, _)) = event {
            found = Some((set, id));
        }
    }
    Ok(found)
}

/// Returns all tensors: zero, with the values at the positions of the set.
fn expand(manifest: &Manifest, set: &IndexSet, bytes: Vec<u8>) -> gcodec::Result<Vec<(String, TensorBuf)>> {
    let space = manifest.space(set.scope, 0)?;
    let support: Support = set.support.clone();
    let block = Block {
        scope: set.scope,
        add: false,
        support,
        values: Values::Floats(Floats { stored: Stored::F32, bytes }),
    };
    let mut data: Vec<Vec<u8>> = manifest.tensors().iter().map(|t| vec![0; t.bytes() as usize]).collect();
    let mut targets: Vec<_> =
        data.iter_mut().zip(&space.lens).map(|(data, &len)| Target { data, start: 0, len }).collect();
    block.apply(&space, &Sets::new(), &Budget::new(&Limits::default()), &mut targets)?;
    let infos = manifest.tensors().iter().zip(data);
    infos.map(|(t, data)| Ok((t.name.clone(), TensorBuf::new(t.dtype, t.shape.clone(), data)?))).collect()
}
