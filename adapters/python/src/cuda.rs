//! Tensors in the memory of CUDA devices: borrowed through DLPack or the CUDA Array Interface, compressed where they are, and written
//! to where they are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gcodec::block::{IndexSpace, Scope, Sets, WireBlock};
use gcodec::compress::Options;
use gcodec::{
    Assembler, Block, Body, Budget, Codec, Dtype, Event, Limits, Manifest, SliceReader, TensorInfo,
    UpdateHeader,
};
use gcodec_cuda::{
    Compressor, Device, DeviceTensor, Driver, Input, Part, Scatter, Stream, Target, TensorError,
};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::decode::{Bytes, header_dict, last_update_of};
use crate::dlpack::{Keeper, OnDevice, is_row_major};
use crate::encode::parse;
use crate::errors::{self, Failure};
use crate::limits::PyLimits;
use crate::threads;

/// What this process has opened.
struct Opened {
    /// Another driver than the system's.
    driver: Option<Arc<Driver>>,
    devices: BTreeMap<i32, Device>,
    /// For updates that nobody gave a compressor: its memory is kept for the next.
    idle: BTreeMap<i32, Compressor>,
    idle_scatters: BTreeMap<i32, Scatter>,
}

impl Opened {
    const fn new(driver: Option<Arc<Driver>>) -> Self {
        Self { driver, devices: BTreeMap::new(), idle: BTreeMap::new(), idle_scatters: BTreeMap::new() }
    }
}

/// Nothing here is freed when the process ends: the driver may be gone by then.
static OPENED: Mutex<Opened> = Mutex::new(Opened::new(None));

fn opened() -> MutexGuard<'static, Opened> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn driver() -> gcodec_cuda::Result<Arc<Driver>> {
    let chosen = opened().driver.clone();
    chosen.map_or_else(Driver::get, Ok)
}

fn device(ordinal: i32) -> gcodec_cuda::Result<Device> {
    if let Some(device) = opened().devices.get(&ordinal) {
        return Ok(device.clone());
    }
    // Not under the lock: it takes a while, and a second one does no harm.
    let device = Device::of(&driver()?, ordinal)?;
    Ok(opened().devices.entry(ordinal).or_insert(device).clone())
}

/// Takes the library in this file for the driver from now on; for tests, with the mock driver of `adapters/cuda/mock_driver`. `None`: the system's.
#[pyfunction]
#[pyo3(name = "_load_driver")]
pub(crate) fn load_driver(py: Python<'_>, path: Option<PathBuf>) -> PyResult<()> {
    // SAFETY: who calls this private function says that the file behaves like the driver.
    let driver = path.map(|path| unsafe { Driver::load(&path) });
    let driver = driver.transpose().map_err(|e| errors::raise_cuda(py, e, None))?;
    let mut opened = opened();
    *opened = Opened::new(driver);
    Ok(())
}

/// Raises what keeps CUDA devices from being used; of device `ordinal` too, which it opens, if one is given.
#[pyfunction]
#[pyo3(name = "cuda_open", signature = (ordinal=None))]
pub(crate) fn open(py: Python<'_>, ordinal: Option<i32>) -> PyResult<()> {
    let opened = py.detach(|| match ordinal {
        None => driver().map(drop),
        Some(ordinal) => device(ordinal).map(drop),
    });
    opened.map_err(|e| errors::raise_cuda(py, e, None))
}

/// Frees the memory that is kept for updates without a compressor of their own.
#[pyfunction]
#[pyo3(name = "cuda_release")]
pub(crate) fn release(py: Python<'_>) {
    let mut opened = opened();
    let idle = (std::mem::take(&mut opened.idle), std::mem::take(&mut opened.idle_scatters));
    drop(opened);
    py.detach(|| drop(idle));
}

#[pyfunction]
#[pyo3(name = "cuda_takes")]
pub(crate) fn takes(py: Python<'_>, spec: &str) -> PyResult<bool> {
    Ok(gcodec_cuda::takes(&parse(py, spec)?))
}

/// The device whose memory an address is in.
#[pyfunction]
#[pyo3(name = "cuda_device_of")]
pub(crate) fn device_of(py: Python<'_>, address: u64) -> PyResult<i32> {
    let driver = driver().map_err(|e| errors::raise_cuda(py, e, None))?;
    let outside = TensorError::Bounds { address };
    driver.device_of(address).ok_or_else(|| errors::raise_cuda(py, outside.into(), None))
}

/// A tensor of another library in device memory, borrowed.
#[pyclass(frozen, module = "gcodec._native")]
pub(crate) struct Lent {
    tensor: OnDevice,
    stream: usize,
}

/// A stream's number for the driver. The legacy stream has two. The calling thread's own, 2, is not that of the thread that will do the
/// work, and keeps step with the legacy one, as every blocking stream does: so work for it is done there.
fn raw_stream(number: usize) -> usize {
    if number <= 2 { 0 } else { number }
}

fn stream(raw: usize) -> Stream {
    // SAFETY: who gave the number says that there is such a stream, as with every CUDA library of Python.
    unsafe { Stream::from_raw(raw) }
}

/// Borrows `object`, which has `__dlpack__` or else `__cuda_array_interface__`, for work in the stream `number`. `device`: for what has
/// no elements and does not say where it is. `dtype`: what the elements are, where the interface has no name for that and gives
/// unsigned integers as wide.
#[pyfunction]
pub(crate) fn lend(
    object: &Bound<'_, PyAny>,
    number: usize,
    device: i32,
    dtype: Option<&str>,
) -> PyResult<Lent> {
    let py = object.py();
    let number = raw_stream(number);
    let mut tensor = match object.hasattr("__dlpack_device__")? {
        // DLPack's number of the legacy stream is 1.
        true => OnDevice::new(object, number.max(1))?,
        false => by_array_interface(object, number, device, dtype.is_some())?,
    };
    if let Some(text) = dtype {
        let dtype = Dtype::from_name(text);
        let dtype = dtype.ok_or_else(|| errors::input(py, &format!("no element type {text:?}")))?;
        let unsigned = matches!(tensor.dtype, Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64);
        if dtype != tensor.dtype && !(unsigned && dtype.bits() == tensor.dtype.bits()) {
            let given = tensor.dtype;
            return Err(PyTypeError::new_err(format!(
                "elements of type {given} cannot be taken for {dtype}"
            )));
        }
        tensor.dtype = dtype;
    }
    Ok(Lent { tensor, stream: number })
}

/// The CUDA Array Interface, version 2 or 3.
fn by_array_interface(
    object: &Bound<'_, PyAny>,
    number: usize,
    otherwise: i32,
    declared: bool,
) -> PyResult<OnDevice> {
    let py = object.py();
    let wrong = |what: &str| PyBufferError::new_err(format!("__cuda_array_interface__: {what}"));
    let given = object.getattr("__cuda_array_interface__")?;
    let given = given.cast::<PyDict>().map_err(|_| wrong("not a dict"))?;
    let field = |name: &str| given.get_item(name).map(|v| v.filter(|v| !v.is_none()));
    let needed = |name: &str| field(name)?.ok_or_else(|| wrong(&format!("no {name}")));
    if field("mask")?.is_some() {
        return Err(wrong("a mask, which has no place here"));
    }
    let shape: Vec<u64> = needed("shape")?.extract().map_err(|_| wrong("its shape"))?;
    let (address, read_only): (u64, bool) = needed("data")?.extract().map_err(|_| wrong("its data"))?;
    let typestr: String = needed("typestr")?.extract().map_err(|_| wrong("its typestr"))?;
    let dtype = dtype_of(&typestr, declared)?;
    let width = i64::from(dtype.bits() / 8);
    let strides: Option<Vec<i64>> = match field("strides")? {
        None => None,
        Some(strides) => Some(strides.extract().map_err(|_| wrong("its strides"))?),
    };
    let contiguous = match strides {
        None => true,
        Some(bytes) if bytes.len() == shape.len() => {
            let elements: Vec<i64> = bytes.iter().map(|b| b / width).collect();
            bytes.iter().all(|b| b % width == 0) && is_row_major(&shape, &elements)
        }
        Some(_) => return Err(wrong("its strides")),
    };
    let empty = shape.contains(&0);
    // Nothing of no elements is anywhere.
    let ordinal = if empty { otherwise } else { device_of(py, address)? };
    let producer: Option<usize> = match field("stream")? {
        Some(producer) => Some(producer.extract().map_err(|_| wrong("its stream"))?),
        // Before version 3 it could not be said: the legacy default stream is what every blocking one keeps step with.
        None => {
            let version: u32 = needed("version")?.extract().map_err(|_| wrong("its version"))?;
            (version < 3).then_some(1)
        }
    };
    if let Some(producer) = producer {
        if producer == 0 {
            return Err(wrong("stream 0, which does not say which default stream"));
        }
        if !empty {
            // This thread's own stream is that of this thread: it is named as it is.
            let earlier = stream(if producer == 1 { 0 } else { producer });
            let ordered = py.detach(|| device(ordinal)?.order(earlier, stream(number)));
            ordered.map_err(|e| errors::raise_cuda(py, e, None))?;
        }
    }
    let keeper = Keeper::of(object.clone().unbind());
    Ok(OnDevice { dtype, shape, address, ordinal, contiguous, read_only, keeper })
}

fn dtype_of(typestr: &str, declared: bool) -> PyResult<Dtype> {
    let dtype = match typestr.trim_start_matches(['<', '|', '=']) {
        "f8" => Dtype::F64,
        "f4" => Dtype::F32,
        "f2" => Dtype::F16,
        "i1" => Dtype::I8,
        "i2" => Dtype::I16,
        "i4" => Dtype::I32,
        "i8" => Dtype::I64,
        "u1" => Dtype::U8,
        "u2" => Dtype::U16,
        "u4" => Dtype::U32,
        "u8" => Dtype::U64,
        "b1" => Dtype::Bool,
        // Bytes without a meaning, but for the one that is declared.
        "V1" if declared => Dtype::U8,
        "V2" if declared => Dtype::U16,
        _ => return Err(PyTypeError::new_err(format!("gcodec has no element type for {typestr:?}"))),
    };
    Ok(dtype)
}

#[pymethods]
impl Lent {
    /// The number of its device.
    #[getter]
    fn device(&self) -> i32 {
        self.tensor.ordinal
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.tensor.dtype.name()
    }

    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.tensor.shape.clone()
    }

    /// Whether its elements lie row-major.
    #[getter]
    fn contiguous(&self) -> bool {
        self.tensor.contiguous
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.tensor.read_only
    }
}

impl Lent {
    pub(crate) fn of(&self) -> (Dtype, &[u64]) {
        (self.tensor.dtype, &self.tensor.shape)
    }

    pub(crate) fn bytes(&self) -> u64 {
        let elements = gcodec::tensor::elements(&self.tensor.shape).unwrap_or(0);
        self.tensor.dtype.bytes_for(elements).unwrap_or(0)
    }

    pub(crate) fn ordinal(&self) -> i32 {
        self.tensor.ordinal
    }

    /// The tensor, checked.
    pub(crate) fn view(&self, device: &Device) -> gcodec_cuda::Result<DeviceTensor<'_>> {
        let OnDevice { address, dtype, shape, .. } = &self.tensor;
        // SAFETY: the producer says that a row-major tensor of this type and shape is there as long as it is borrowed, and by
        // `lend` what wrote it is before the stream's work. That nobody writes to it meanwhile is its owner's to see to, as with tensors on the
        // host: then the bytes are those of either state.
        unsafe { DeviceTensor::from_raw(device, *address, *dtype, shape) }
    }
}

/// A tensor of an update, by its number in the manifest.
pub(crate) struct Given<'a> {
    pub(crate) number: u64,
    pub(crate) name: &'a str,
    pub(crate) lent: &'a Lent,
    pub(crate) codec: Codec,
}

/// Compressors by device.
pub(crate) type Compressors = BTreeMap<i32, Compressor>;

/// The blocks of tensors on devices, made by these compressors, which `remember` or lend their memory only.
pub(crate) fn compress_in(
    given: &[Given<'_>],
    options: &Options,
    compressors: &mut Compressors,
    remember: bool,
) -> Result<Vec<WireBlock<'static>>, Failure> {
    let mut blocks = Vec::new();
    let mut done = Vec::new();
    for (ordinal, given) in by_device(given) {
        let made = compressor_of(compressors, ordinal).map_err(Failure::from);
        let made = made.and_then(|compressor| compress_on(&given, options, compressor, ordinal, remember));
        match made {
            Ok(made) => blocks.extend(made),
            Err(e) => {
                undo(compressors, &done);
                return Err(e);
            }
        }
        done.push(ordinal);
    }
    Ok(blocks)
}

/// Takes back what the last update changed of what compressors remember.
pub(crate) fn undo(compressors: &mut Compressors, ordinals: &[i32]) {
    for ordinal in ordinals {
        if let Some(compressor) = compressors.get_mut(ordinal) {
            compressor.undo();
        }
    }
}

/// The same without memory of earlier updates.
pub(crate) fn compress(given: &[Given<'_>], options: &Options) -> Result<Vec<WireBlock<'static>>, Failure> {
    let mut blocks = Vec::new();
    for (ordinal, given) in by_device(given) {
        let idle = opened().idle.remove(&ordinal);
        let mut compressor = match idle {
            Some(compressor) => compressor,
            None => Compressor::new(&device(ordinal)?)?,
        };
        let made = compress_on(&given, options, &mut compressor, ordinal, false);
        // Where two threads had one each, one is kept.
        let other = opened().idle.insert(ordinal, compressor);
        drop(other);
        blocks.extend(made?);
    }
    Ok(blocks)
}

/// The devices on which these tensors are.
pub(crate) fn ordinals(given: &[Given<'_>]) -> Vec<i32> {
    by_device(given).into_keys().collect()
}

fn by_device<'g, 'a>(given: &'g [Given<'a>]) -> BTreeMap<i32, Vec<&'g Given<'a>>> {
    let mut parts: BTreeMap<i32, Vec<&Given<'_>>> = BTreeMap::new();
    for one in given {
        parts.entry(one.lent.ordinal()).or_default().push(one);
    }
    parts
}

fn compressor_of(compressors: &mut Compressors, ordinal: i32) -> gcodec_cuda::Result<&mut Compressor> {
    use std::collections::btree_map::Entry;
    match compressors.entry(ordinal) {
        Entry::Occupied(entry) => Ok(entry.into_mut()),
        Entry::Vacant(entry) => Ok(entry.insert(Compressor::new(&device(ordinal)?)?)),
    }
}

fn compress_on(
    given: &[&Given<'_>],
    options: &Options,
    compressor: &mut Compressor,
    ordinal: i32,
    remember: bool,
) -> Result<Vec<WireBlock<'static>>, Failure> {
    let device = device(ordinal)?;
    let inputs = given.iter().map(|g| {
        let data = g.lent.view(&device).map_err(|e| Failure::Cuda(e, Some(g.number)))?;
        Ok(Input { tensor: g.number, name: g.name, data })
    });
    let inputs: Vec<Input<'_>> = inputs.collect::<Result<_, Failure>>()?;
    let codecs: Vec<Codec> = given.iter().map(|g| g.codec).collect();
    // They were all lent for work in one stream.
    let stream = stream(given.first().map_or(0, |g| g.lent.stream));
    let blocks = match remember {
        true => compressor.compress_wire_with_feedback(&inputs, &codecs, options, stream)?,
        false => compressor.compress_wire(&inputs, &codecs, options, stream)?,
    };
    Ok(blocks)
}

/// Compressors that remember these residuals, in the place of whatever there was.
pub(crate) fn with_residuals(
    parts: BTreeMap<i32, Vec<(String, gcodec::TensorBuf)>>,
) -> Result<Compressors, Failure> {
    let mut compressors = Compressors::new();
    for (ordinal, tensors) in parts {
        let mut compressor = Compressor::new(&device(ordinal)?)?;
        compressor.set_residuals(&gcodec::Feedback::load(tensors)?)?;
        compressors.insert(ordinal, compressor);
    }
    Ok(compressors)
}

/// Puts the last update of a stream into device tensors: each in the place of what was there, or added to it.
#[pyfunction]
pub(crate) fn cuda_apply<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    limits: PyLimits,
    tensors: Vec<(String, Py<Lent>)>,
    add: bool,
    wait: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let bytes = Bytes::new(data)?;
    let limits = limits.get();
    let mut known = None;
    let applied = threads::run(py, || apply(bytes.as_slice(), &limits, &tensors, add, wait, &mut known))?;
    let header = applied.map_err(|e| errors::raise_failure(py, e, known.as_deref()))?;
    header_dict(py, &header)
}

/// A decoded block, and what it speaks of.
struct Decoded {
    block: Block,
    space: IndexSpace,
    sets: Arc<Sets>,
}

fn apply(
    bytes: &[u8],
    limits: &Limits,
    tensors: &[(String, Py<Lent>)],
    add: bool,
    wait: bool,
    known: &mut Option<Arc<Manifest>>,
) -> Result<UpdateHeader, Failure> {
    let last = last_update_of(bytes, limits)?;
    let (mut decoded, mut header, mut check) = (Vec::new(), None, None);
    let mut reader = SliceReader::new(bytes, limits.clone());
    while let Some(event) = reader.next_event()? {
        let Event::Frame(info, Body::Update(part)) = event else { continue };
        if info.number < last {
            continue;
        }
        let manifest = known.insert(Arc::clone(&part.manifest));
        if part.header.delta.is_some() {
            let message = "the update is a delta, whose base is needed: decode it on the host";
            return Err(Failure::Input(message.into()));
        }
        if part.part == 0 {
            // It wants no tensors, but knows what the parts of an update are.
            check = Some(Assembler::new(manifest, limits, |_| false)?);
            header = Some(part.header.clone());
        }
        check.as_mut().map_or(Ok(()), |check: &mut Assembler<'_>| check.apply(&part))?;
        let sets = Arc::new(part.sets().clone());
        for (raw, block) in part.blocks.iter().zip(part.decode_all()?) {
            decoded.push(Decoded { block, space: raw.space.clone(), sets: Arc::clone(&sets) });
        }
    }
    let (Some(check), Some(header), Some(manifest)) = (check, header, known.as_ref()) else {
        return Err(Failure::Input("the stream has no update".into()));
    };
    check.finish()?;
    let lent = in_order(manifest, tensors)?;
    let Some(first) = lent.first() else { return Ok(header) };
    let (ordinal, stream) = (first.ordinal(), stream(first.stream));
    let device = device(ordinal)?;
    let views: Vec<DeviceTensor<'_>> = lent
        .iter()
        .zip(0..)
        .map(|(lent, number)| lent.view(&device).map_err(|e| Failure::Cuda(e, Some(number))))
        .collect::<Result<_, _>>()?;
    let targets: Vec<Vec<Target<'_>>> = decoded
        .iter()
        .map(|Decoded { block, space, .. }| {
            let start = match block.scope {
                Scope::Range { start, .. } => start,
                _ => 0,
            };
            let tensors = views[block.scope.first() as usize..].iter().zip(&space.lens);
            tensors.map(|(&tensor, &len)| Target { tensor, start, len }).collect()
        })
        .collect();
    let parts: Vec<Part<'_>> = decoded
        .iter()
        .zip(&targets)
        .map(|(d, targets)| Part { block: &d.block, space: &d.space, sets: &d.sets, targets })
        .collect();
    let idle = opened().idle_scatters.remove(&ordinal);
    let mut scatter = match idle {
        Some(scatter) => scatter,
        None => Scatter::new(&device)?,
    };
    let zeros: &[DeviceTensor<'_>] = if add { &[] } else { &views };
    // SAFETY: who gave the tensors wants them written to, and they are held until this returns; if it does not wait for the stream then, it
    // is in the order of a stream that their owner chose.
    let put = unsafe { scatter.put_all(&parts, zeros, &Budget::new(limits), add, stream) };
    let put = put.and_then(|()| if wait { scatter.wait() } else { Ok(()) });
    let other = opened().idle_scatters.insert(ordinal, scatter);
    drop(other);
    put?;
    Ok(header)
}

/// The tensors of a manifest, in its order: the same names, types and shapes, all of them on one device and to be written to.
fn in_order<'a>(manifest: &Manifest, tensors: &'a [(String, Py<Lent>)]) -> Result<Vec<&'a Lent>, Failure> {
    let mut by_name: BTreeMap<&str, &Lent> =
        tensors.iter().map(|(name, lent)| (name.as_str(), lent.get())).collect();
    let mut out: Vec<&Lent> = Vec::new();
    for (info, number) in manifest.tensors().iter().zip(0u64..) {
        let Some(lent) = by_name.remove(info.name.as_str()) else {
            return Err(Failure::Input(format!(
                "the update has a tensor {:?}, which was not given",
                info.name
            )));
        };
        let (dtype, shape) = lent.of();
        if (dtype, shape) != (info.dtype, &info.shape[..]) {
            let TensorInfo { name, dtype: theirs, shape: other, .. } = info;
            return Err(Failure::Input(format!(
                "tensor {name:?} is {dtype} {shape:?}, in the update {theirs} {other:?}"
            )));
        }
        if let Some(first) = out.first().filter(|first| first.ordinal() != lent.ordinal()) {
            let (found, expected) = (lent.ordinal(), first.ordinal());
            return Err(Failure::Cuda(TensorError::Device { found, expected }.into(), Some(number)));
        }
        out.push(lent);
    }
    match by_name.keys().next() {
        None => Ok(out),
        Some(name) => Err(Failure::Input(format!("the update has no tensor {name:?}"))),
    }
}
