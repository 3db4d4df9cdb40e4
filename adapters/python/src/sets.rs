//! Workers whose leader's positions all others use: of shared sets, and of the learned codec.

use std::sync::Arc;

use gcodec::block::{BlockOptions, Scope, SetId};
use gcodec::compress::Selection;
use gcodec::compress::codecs::TopK;
use gcodec::compress::senders::shared_set::{Choice, Role, SharedSetOptions, SharedSetWorker};
use gcodec::frame::{IndexSet, Manifest, TensorInfo, UpdateHeader, UpdatePart};
use gcodec::reduce::{Sum, SumOptions};
use gcodec::stream::{Body, Decoder, EncodeOptions, Encoder, Event};
use gcodec::{Codec, Dtype, Limits, TensorBuf};
use pyo3::prelude::*;

use crate::decode::Bytes;
use crate::encode::{Encoded, parse};
use crate::feedback::{given_out, owned};
use crate::limits::PyLimits;
use crate::named::{Given, borrow, views};
use crate::tensor::Tensor;
use crate::{errors, threads};

/// Frames of one model's ranks: the preamble and the manifest are the same on all, so they do not travel.
pub(crate) struct Frames {
    pub(crate) manifest: Arc<Manifest>,
    head: Vec<u8>,
}

impl Frames {
    /// `tensors`: names and shapes of f32 tensors.
    pub(crate) fn new(tensors: Vec<(String, Vec<u64>)>) -> gcodec::Result<Self> {
        let infos = tensors.into_iter().map(|(name, shape)| TensorInfo::new(name, Dtype::F32, shape));
        let manifest = Arc::new(Manifest::new(infos.collect())?);
        let mut head = Vec::new();
        encoder().manifest(&mut head, &manifest);
        Ok(Self { manifest, head })
    }

    /// Returns the frames that `write` adds to a stream with the manifest and the set.
    pub(crate) fn written<E: From<gcodec::Error>>(
        &self,
        set: Option<&(Box<IndexSet>, SetId)>,
        write: impl FnOnce(&mut Encoder, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let (mut encoder, mut out) = (encoder(), Vec::new());
        encoder.manifest(&mut out, &self.manifest);
        if let Some((set, id)) = set {
            encoder.add_index_set(*id, set, &self.manifest)?;
        }
        out.clear();
        write(&mut encoder, &mut out)?;
        Ok(out)
    }

    pub(crate) fn index_set(&self, set: &IndexSet) -> gcodec::Result<Vec<u8>> {
        self.written(None, |encoder, out| {
            encoder.index_set(out, set, &self.manifest, BlockOptions::default()).map(drop)
        })
    }

    /// Returns the index set in a leader's frames, if there is one.
    pub(crate) fn read_set(
        &self,
        frames: &[u8],
        limits: &Limits,
    ) -> gcodec::Result<Option<(Box<IndexSet>, SetId)>> {
        let (mut found, mut decoder) = (None, Decoder::new(limits.clone()));
        decoder.feed(&self.head);
        decoder.feed(frames);
        while let Some(event) = decoder.next_event()? {
            if let Event::Frame(_, Body::IndexSet(set, id, _)) = event {
                found = Some((set, id));
            }
        }
        Ok(found)
    }

    /// Passes each part of the updates in a rank's frames to `take`. Returns their number.
    pub(crate) fn updates<E: From<gcodec::Error>>(
        &self,
        frames: &[u8],
        set: Option<&(Box<IndexSet>, SetId)>,
        limits: &Limits,
        mut take: impl FnMut(&UpdatePart<'_>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let (mut count, mut decoder) = (0, Decoder::new(limits.clone()));
        decoder.feed(&self.head);
        if let Some((set, id)) = set {
            decoder.add_index_set(*id, set, &self.manifest)?;
        }
        decoder.feed(frames);
        while let Some(event) = decoder.next_event()? {
            if let Event::Frame(_, Body::Update(part)) = event {
                take(&part)?;
                count += 1;
            }
        }
        Ok(count)
    }
}

fn encoder() -> Encoder {
    Encoder::new(EncodeOptions::default().with_index(false))
}

/// Returns the scope of all tensors of a manifest.
fn all(manifest: &Manifest) -> Scope {
    match manifest.tensors().len() as u64 {
        0 | 1 => Scope::Tensor(0),
        count => Scope::Tensors { first: 0, count },
    }
}

/// A worker of shared sets, for all f32 tensors of a model.
#[pyclass(module = "gcodec._native")]
pub(crate) struct SharedSet {
    frames: Frames,
    worker: SharedSetWorker,
    rank: u64,
    world: u64,
    step: u64,
    /// Index set of the open step.
    set: Option<(Box<IndexSet>, SetId)>,
}

#[pymethods]
impl SharedSet {
    /// `tensors`: names and shapes. `codec`: a top-k codec, for the number of elements, the scope of the
    /// choice, and the form of the values.
    #[new]
    fn new(
        py: Python<'_>,
        tensors: Vec<(String, Vec<u64>)>,
        rank: u64,
        world: u64,
        codec: &str,
        momentum: f32,
    ) -> PyResult<Self> {
        let Codec::TopK(TopK { amount, selection, values, .. }) = parse(py, codec)? else {
            return Err(errors::input(py, "a shared set needs a topk codec for its choice"));
        };
        let choice = match selection {
            Selection::Global => Choice::TopK(amount),
            Selection::Tensor => Choice::TopKOfEach(amount),
        };
        let settings = SharedSetOptions::new(choice).with_values(values).with_momentum(momentum);
        let made = || {
            let frames = Frames::new(tensors)?;
            let worker =
                SharedSetWorker::new(&frames.manifest, all(&frames.manifest), rank, world, settings)?;
            Ok(Self { frames, worker, rank, world, step: 0, set: None })
        };
        made().map_err(|e| errors::raise(py, e, None))
    }

    /// Begins a step with all gradients. `used`: whether each takes part. Returns the frame of the index set
    /// on the leader, `None` on others.
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
            let Role::Leader(set) = worker.begin_used(step, &views, &used)? else { return Ok(None) };
            frames.index_set(&set).map(Some).inspect_err(|_| worker.abort())
        })?;
        self.step = step;
        let begun = begun.map_err(|e| errors::raise(py, e, Some(&self.frames.manifest)))?;
        Ok(begun.map(Encoded::of))
    }

    /// Takes the leader's index set.
    fn take_set<'py>(&mut self, py: Python<'py>, data: &Bound<'py, PyAny>, limits: PyLimits) -> PyResult<()> {
        let (bytes, limits) = (Bytes::new(data)?, limits.get());
        let (worker, frames) = (&mut self.worker, &self.frames);
        let taken = threads::run(py, || {
            let Some(set) = frames.read_set(bytes.as_slice(), &limits)? else { return Ok(None) };
            worker.take_set(&set.0, set.1)?;
            Ok(Some(set))
        })?;
        let taken = taken.map_err(|e: gcodec::Error| errors::raise(py, e, Some(&self.frames.manifest)))?;
        self.set = Some(taken.ok_or_else(|| errors::input(py, "the leader's frames have no index set"))?);
        Ok(())
    }

    /// Returns the frames of this worker's update.
    fn send(&self, py: Python<'_>) -> PyResult<Encoded> {
        let header = UpdateHeader::default().with_step(self.step).with_sender(self.rank);
        let header = header.with_world(self.world).with_label("shared-set".into());
        let (worker, frames, set) = (&self.worker, &self.frames, self.set.as_ref());
        let sent = threads::run(py, || {
            let block = worker.values()?;
            frames.written(set, |encoder, out| {
                encoder.update(out, &header, &frames.manifest, [(&block, BlockOptions::default())])
            })
        })?;
        Ok(Encoded::of(sent.map_err(|e| errors::raise(py, e, Some(&self.frames.manifest)))?))
    }

    /// Returns the mean of all workers' updates as dense tensors. `streams`: the frames of each worker.
    fn mean<'py>(
        &mut self,
        py: Python<'py>,
        streams: Vec<Bound<'py, PyAny>>,
        limits: PyLimits,
    ) -> PyResult<Vec<(String, Tensor)>> {
        let streams = streams.iter().map(Bytes::new).collect::<PyResult<Vec<_>>>()?;
        let (limits, frames, set) = (limits.get(), &self.frames, self.set.as_ref());
        let summed = threads::run(py, || {
            let mut sum = Sum::new(&frames.manifest, SumOptions::default());
            for (rank, stream) in streams.iter().enumerate() {
                if frames.updates(stream.as_slice(), set, &limits, |part| sum.add(part, 1.0))? == 0 {
                    return Ok(Err(rank));
                }
            }
            Ok(Ok(sum.finish(true)?.tensors()?))
        })?;
        let summed = summed.map_err(|e: gcodec::Error| errors::raise(py, e, Some(&self.frames.manifest)))?;
        let tensors: Vec<TensorBuf> =
            summed.map_err(|rank| errors::input(py, &format!("the frames of rank {rank} have no update")))?;
        let names = self.frames.manifest.tensors().iter().map(|info| info.name.clone());
        Ok(given_out(names.zip(tensors).collect()))
    }

    /// Ends the step: what was sent leaves the residuals.
    fn finish(&mut self, py: Python<'_>) -> PyResult<()> {
        let worker = &mut self.worker;
        threads::run(py, || worker.finish())?.map_err(|e| errors::raise(py, e, None))?;
        self.set = None;
        Ok(())
    }

    /// Ends the open step without a result. The state is unchanged.
    fn abort(&mut self) {
        self.worker.abort();
        self.set = None;
    }

    fn save(&self) -> Vec<(String, Tensor)> {
        given_out(self.worker.save())
    }

    fn load(&mut self, py: Python<'_>, tensors: Given<'_>) -> PyResult<()> {
        let loaded = self.worker.load(owned(py, tensors)?);
        loaded.map_err(|e| errors::raise(py, e, None))
    }
}
