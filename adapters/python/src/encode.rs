//! Tensors to the bytes of a stream.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gcodec::block::WireBlock;
use gcodec::compress::{Input, NonFinite, Options, compress, deltas};
use gcodec::error::InputErrorKind;
use gcodec::frame::{Metadata, Reduction};
use gcodec::{
    Block, BlockOptions, Codec, EncodeOptions, Manifest, Output, TensorInfo, TensorView, UpdateHeader,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cuda::{self, Lent};
use crate::errors::Failure;
use crate::feedback::{Dgc, Feedback, Kept};
use crate::named::{Given, Named, borrow, views};
use crate::reserved::Reserved;
use crate::{errors, threads};

pub(crate) fn parse(py: Python<'_>, spec: &str) -> PyResult<Codec> {
    spec.parse().map_err(|e: gcodec::compress::SpecError| errors::input(py, &e.to_string()))
}

/// A codec's specification, written out as the library does.
#[pyfunction]
pub(crate) fn canonical(py: Python<'_>, spec: &str) -> PyResult<String> {
    Ok(parse(py, spec)?.to_string())
}

#[pyfunction]
pub(crate) fn is_lossy(py: Python<'_>, spec: &str) -> PyResult<bool> {
    Ok(parse(py, spec)?.is_lossy())
}

/// The library's own `encode` and the seconds that it took, without the bytes unless `keep`: what the Python package is held
/// against.
#[pyfunction]
pub(crate) fn library_encode<'py>(
    py: Python<'py>,
    tensors: Given<'py>,
    codec: &str,
    keep: bool,
) -> PyResult<(Option<Bound<'py, PyBytes>>, f64)> {
    let codec = parse(py, codec)?;
    let mut tensors = borrow(tensors)?;
    let encoded = threads::run(py, || {
        let views = views(&mut tensors)?;
        let start = Instant::now();
        let bytes = gcodec::encode(&views, &codec)?;
        Ok((bytes, start.elapsed().as_secs_f64()))
    })?;
    let (bytes, seconds) = encoded.map_err(|e| errors::raise(py, e, None))?;
    Ok((keep.then(|| PyBytes::new(py, &bytes)), seconds))
}

/// The attributes of a `gcodec.UpdateHeader`.
#[derive(FromPyObject)]
pub(crate) struct Header {
    step: u64,
    round: u64,
    sender: u64,
    world: u64,
    contributors: u64,
    inner_steps: u64,
    reduction: String,
    label: String,
}

impl Header {
    fn get(self, py: Python<'_>) -> PyResult<UpdateHeader> {
        let reduction = match self.reduction.as_str() {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            _ => return Err(errors::input(py, "reduction is none, sum or mean")),
        };
        Ok(UpdateHeader::default()
            .with_step(self.step)
            .with_round(self.round)
            .with_sender(self.sender)
            .with_world(self.world)
            .with_contributors(self.contributors)
            .with_inner_steps(self.inner_steps)
            .with_reduction(reduction)
            .with_label(self.label))
    }
}

/// How to encode, apart from the codec: the attributes of a Python object.
#[derive(FromPyObject)]
pub(crate) struct Settings {
    block_len: u64,
    zero_non_finite: bool,
}

/// What remembers from one update to the next.
enum Memory<'a> {
    None,
    /// Memory on devices to work in, and nothing of earlier updates.
    Work(&'a mut Kept),
    Feedback(&'a mut Kept),
    Dgc(&'a mut gcodec::compress::senders::Dgc),
}

/// Frames that were encoded, with the buffer protocol: written to a file or a socket without a copy.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Encoded {
    bytes: Vec<u8>,
    seconds: (f64, f64),
}

impl Encoded {
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, seconds: (0.0, 0.0) }
    }
}

#[pymethods]
impl Encoded {
    /// How long compressing took, and coding what that gave.
    #[getter]
    fn seconds(&self) -> (f64, f64) {
        self.seconds
    }

    /// # Safety
    /// The interpreter's: `view` is to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        // SAFETY: the view is read-only and holds a reference to `slf`, which is frozen: its bytes stay where they are and
        // as they are until the view is released.
        let filled = unsafe {
            let data = bytes.as_ptr().cast_mut().cast();
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

#[pyclass(module = "gcodec._native")]
pub(crate) struct Encoder {
    inner: gcodec::Encoder,
}

#[pymethods]
impl Encoder {
    #[new]
    fn new(part_bytes: u64, index: bool, compress: bool) -> Self {
        let options = EncodeOptions::default().with_part_bytes(part_bytes);
        Self { inner: gcodec::Encoder::new(options.with_index(index).with_compress(compress)) }
    }

    #[getter]
    fn offset(&self) -> u64 {
        self.inner.offset()
    }

    /// The frames of an update; and of the stream's end, if `finish`.
    #[pyo3(signature = (update, finish=false))]
    fn update(&mut self, py: Python<'_>, update: Arguments<'_>, finish: bool) -> PyResult<Encoded> {
        let (mut bytes, update) = (Vec::new(), Prepared::new(py, update)?);
        let seconds = self.run(py, update, &mut bytes, finish)?;
        Ok(Encoded { bytes, seconds })
    }

    /// The same and the stream's end, as an object of its own.
    fn whole<'py>(&mut self, py: Python<'py>, update: Arguments<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let update = Prepared::new(py, update)?;
        let mut bytes = update.reserve(py);
        self.run(py, update, &mut bytes, true)?;
        bytes.finish(py)
    }

    fn metadata(&mut self, entries: BTreeMap<String, String>) -> Encoded {
        let mut out = Vec::new();
        self.inner.metadata(&mut out, &Metadata { entries });
        Encoded::of(out)
    }

    fn finish(&mut self) -> Encoded {
        let mut out = Vec::new();
        self.inner.finish(&mut out);
        Encoded::of(out)
    }
}

/// What an update is made of: tensors, those on devices as [`Lent`]; their codecs, one for each or one for all; the header; the
/// settings; the bases of deltas; what remembers; and whether a [`Feedback`] does, or is only lent for its memory on devices.
type Arguments<'py> = (
    Given<'py>,
    Vec<String>,
    Header,
    Settings,
    Given<'py>,
    Option<PyRef<'py, Feedback>>,
    Option<PyRef<'py, Dgc>>,
    bool,
);

/// [`Arguments`], checked and borrowed.
struct Prepared<'py> {
    /// Those on the host, and each one's number.
    tensors: Vec<Named>,
    numbers: Vec<u64>,
    /// Those on devices, with number and name.
    lent: Vec<(u64, String, Py<Lent>)>,
    base: Vec<Named>,
    codecs: Vec<Codec>,
    header: UpdateHeader,
    options: Options,
    feedback: Option<PyRef<'py, Feedback>>,
    dgc: Option<PyRef<'py, Dgc>>,
    remember: bool,
}

impl<'py> Prepared<'py> {
    fn new(py: Python<'py>, arguments: Arguments<'py>) -> PyResult<Self> {
        let (given, codecs, header, settings, base, feedback, dgc, remember) = arguments;
        let (mut tensors, mut numbers, mut lent) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (name, object, dtype)) in (0u64..).zip(given) {
            match object.cast::<Lent>() {
                Ok(found) => lent.push((number, name, found.clone().unbind())),
                Err(_) => {
                    tensors.push((name, object, dtype));
                    numbers.push(number);
                }
            }
        }
        let non_finite = if settings.zero_non_finite { NonFinite::Zero } else { NonFinite::Reject };
        Ok(Self {
            codecs: codecs.iter().map(|spec| parse(py, spec)).collect::<PyResult<Vec<_>>>()?,
            header: header.get(py)?,
            options: Options::default().with_block_len(settings.block_len).with_non_finite(non_finite),
            tensors: borrow(tensors)?,
            numbers,
            lent,
            base: borrow(base)?,
            feedback,
            dgc,
            remember,
        })
    }

    /// Memory for its frames. They take hardly more than the tensors, and about as much where nothing is lost.
    fn reserve(&self, py: Python<'_>) -> Reserved {
        let codec = |i: usize| if self.codecs.len() == 1 { self.codecs.first() } else { self.codecs.get(i) };
        let (mut most, mut likely) = (1usize << 12, 0usize);
        let on_host = self.tensors.iter().zip(&self.numbers);
        let on_host = on_host.map(|(named, &i)| (i as usize, named.name.len(), named.tensor.bytes()));
        let on_devices = self.lent.iter().map(|(i, name, lent)| {
            (*i as usize, name.len(), usize::try_from(lent.get().bytes()).unwrap_or(usize::MAX))
        });
        for (i, name, bytes) in on_host.chain(on_devices) {
            most = most.saturating_add(bytes).saturating_add(bytes / 64).saturating_add(256 + name);
            if matches!(codec(i), Some(Codec::Raw | Codec::Lossless)) && self.dgc.is_none() {
                likely = likely.saturating_add(bytes);
            }
        }
        Reserved::new(py, most, likely)
    }
}

impl Encoder {
    /// Encodes an update, and gives how many seconds compressing took and coding what that gave.
    fn run(
        &mut self,
        py: Python<'_>,
        update: Prepared<'_>,
        out: &mut (dyn Output + Send),
        finish: bool,
    ) -> PyResult<(f64, f64)> {
        let Prepared {
            mut tensors,
            numbers,
            lent,
            mut base,
            codecs,
            header,
            options,
            feedback,
            dgc,
            remember,
        } = update;
        let (feedback, dgc) = (feedback.as_deref(), dgc.as_deref());
        let pool = threads::pool()?;
        let inner = &mut self.inner;
        let mut known = None;
        let result = py.detach(|| {
            // Locked here and not on a thread of the pool: one that waits for its own work takes up other work meanwhile,
            // which may want the same lock.
            let (mut feedback, mut dgc) = (feedback.map(Feedback::lock), dgc.map(Dgc::lock));
            let memory = match (feedback.as_deref_mut(), dgc.as_deref_mut()) {
                (_, Some(dgc)) => Memory::Dgc(dgc),
                (Some(kept), None) if remember => Memory::Feedback(kept),
                (Some(kept), None) => Memory::Work(kept),
                (None, None) => Memory::None,
            };
            pool.install(|| -> Result<(f64, f64), Failure> {
                let start = Instant::now();
                let (views, bases) = (views(&mut tensors)?, views(&mut base)?);
                let mut infos: Vec<(u64, TensorInfo)> = numbers
                    .iter()
                    .zip(&views)
                    .map(|(&number, (name, view))| {
                        (number, TensorInfo::new(*name, view.dtype(), view.shape()))
                    })
                    .collect();
                infos.extend(lent.iter().map(|(number, name, lent)| {
                    let (dtype, shape) = lent.get().of();
                    (*number, TensorInfo::new(name.as_str(), dtype, shape))
                }));
                infos.sort_by_key(|(number, _)| *number);
                let manifest = Manifest::new(infos.into_iter().map(|(_, info)| info).collect())?;
                let manifest = known.insert(Arc::new(manifest));
                let update = Update {
                    views: &views,
                    numbers: &numbers,
                    lent: &lent,
                    bases: &bases,
                    codecs: &codecs,
                    header,
                    options: &options,
                };
                let compressing = update.encode(inner, manifest, memory, out)?;
                if finish {
                    inner.finish(out);
                }
                let coding = start.elapsed().saturating_sub(compressing);
                Ok((compressing.as_secs_f64(), coding.as_secs_f64()))
            })
        });
        result.map_err(|e| errors::raise_failure(py, e, known.as_deref()))
    }
}

/// An update that is about to be encoded.
struct Update<'a> {
    views: &'a [(&'a str, TensorView<'a>)],
    numbers: &'a [u64],
    lent: &'a [(u64, String, Py<Lent>)],
    bases: &'a [(&'a str, TensorView<'a>)],
    codecs: &'a [Codec],
    header: UpdateHeader,
    options: &'a Options,
}

impl Update<'_> {
    /// Gives how long compressing took.
    fn encode(
        self,
        encoder: &mut gcodec::Encoder,
        manifest: &Arc<Manifest>,
        memory: Memory<'_>,
        out: &mut dyn Output,
    ) -> Result<Duration, Failure> {
        let bases: HashMap<&str, TensorView<'_>> = self.bases.iter().copied().collect();
        let inputs: Vec<Input<'_>> = self
            .views
            .iter()
            .zip(self.numbers)
            .map(|(&(name, view), &tensor)| Input { tensor, name, view, base: bases.get(name).copied() })
            .collect();
        let all = self.views.len() + self.lent.len();
        let mut codecs = match self.codecs {
            [one] => vec![*one; all],
            all => all.to_vec(),
        };
        if codecs.len() != all {
            return Err(gcodec::Error::from(InputErrorKind::Mismatch {
                what: "numbers of codecs and tensors",
            })
            .into());
        }
        let start = Instant::now();
        let (on_devices, on_host) = match memory {
            Memory::Dgc(dgc) => {
                codecs = vec![dgc.codec(); all];
                (Vec::new(), dgc.step(&inputs, self.options)?)
            }
            memory => self.compress(&inputs, &codecs, memory)?,
        };
        let compressing = start.elapsed();
        let mut header = self.header;
        if codecs.iter().any(|codec| matches!(codec, Codec::Delta { .. })) {
            header = header.with_delta(Some(deltas(&inputs, &on_host)));
        }
        let with_options = |block: WireBlock<'static>| {
            let codec = codecs.get(block.scope.first() as usize);
            let positions = codec.map(Codec::positions).unwrap_or_default();
            (block, BlockOptions::default().with_positions(positions))
        };
        let blocks = on_devices.into_iter().chain(on_host.into_iter().map(WireBlock::from));
        let mut blocks: Vec<_> = blocks.map(with_options).collect();
        // Those of one side are in order, and blocks of one tensor are on one side.
        blocks.sort_by_key(|(block, _)| block.scope.first());
        encoder.update_wire(out, &header, manifest, &blocks)?;
        Ok(compressing)
    }

    /// The blocks of the tensors on devices, and of those on the host. A codec's tensors are all on one side, so that they share blocks
    /// as always.
    fn compress(
        &self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        mut memory: Memory<'_>,
    ) -> Result<(Vec<WireBlock<'static>>, Vec<Block>), Failure> {
        let on_host: Vec<Codec> = self.numbers.iter().map(|&n| codecs[n as usize]).collect();
        let given: Vec<cuda::Given<'_>> = self
            .lent
            .iter()
            .map(|(number, name, lent)| cuda::Given {
                number: *number,
                name,
                lent: lent.get(),
                codec: codecs[*number as usize],
            })
            .collect();
        if let Memory::Feedback(kept) = &mut memory {
            let on_host = inputs.iter().map(|i| (i.name, None));
            let on_devices = given.iter().map(|g| (g.name, Some(g.lent.ordinal())));
            kept.settle(&on_host.chain(on_devices).collect::<Vec<_>>())?;
        }
        let on_devices = match &mut memory {
            _ if given.is_empty() => Vec::new(),
            Memory::Feedback(kept) => cuda::compress_in(&given, self.options, &mut kept.compressors, true)?,
            Memory::Work(kept) => cuda::compress_in(&given, self.options, &mut kept.compressors, false)?,
            _ => cuda::compress(&given, self.options)?,
        };
        let host = match &mut memory {
            Memory::Feedback(kept) => {
                let made = compress(inputs, &on_host, self.options, Some(&mut kept.host));
                match &made {
                    Ok(_) => kept.note(given.iter().map(|g| (g.name, g.lent.ordinal()))),
                    Err(_) => cuda::undo(&mut kept.compressors, &cuda::ordinals(&given)),
                }
                made?
            }
            _ => compress(inputs, &on_host, self.options, None)?,
        };
        Ok((on_devices, host))
    }
}
