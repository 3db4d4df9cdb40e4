//! Sums of the updates of several senders.

use std::sync::Arc;

use gcodec::file::File;
use gcodec::frame::{FrameHeader, FrameKind, Manifest, UpdateHeader, UpdatePart};
use gcodec::internal::{HEADER_LEN, PREAMBLE_LEN, element};
use gcodec::reduce::{Precision, Sum, SumOptions};
use gcodec::{Dtype, Limits, TensorBuf};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::decode::{Bytes, header_dict};
use crate::feedback::given_out;
use crate::limits::PyLimits;
use crate::tensor::Tensor;
use crate::{errors, threads};

/// Elements that are looked at together.
const RUN: usize = 1024;

/// The attributes of `_Settings` in `gcodec/reduction.py`.
#[derive(FromPyObject)]
pub(crate) struct SumSettings {
    mean: bool,
    f64: bool,
    by_input: bool,
}

type Tensors = Vec<(String, Tensor)>;
type Summed = (UpdateHeader, Vec<(String, TensorBuf)>);

/// The number of the stream with an error, or `None` for an error of all together, and the error.
pub(crate) type Fault = (Option<usize>, gcodec::Error);

/// Sums the last updates of whole streams. Returns the fields of the header, and the tensors by name.
#[pyfunction]
pub(crate) fn reduce<'py>(
    py: Python<'py>,
    streams: Vec<Bound<'py, PyAny>>,
    weights: Vec<f64>,
    settings: SumSettings,
    limits: PyLimits,
) -> PyResult<(Bound<'py, PyDict>, Tensors)> {
    let streams = streams.iter().map(Bytes::new).collect::<PyResult<Vec<_>>>()?;
    let limits = limits.get();
    let summed = threads::run(py, || {
        let streams: Vec<&[u8]> = streams.iter().map(Bytes::as_slice).collect();
        sum(&streams, &weights, &settings, &limits)
    })?;
    let summed = summed.map_err(|(stream, e)| errors::raise_in(py, e, stream))?;
    let (header, tensors) =
        summed.ok_or_else(|| errors::input(py, "reduce has no streams: give at least one"))?;
    Ok((header_dict(py, &header)?, given_out(tensors)))
}

fn sum(
    streams: &[&[u8]],
    weights: &[f64],
    settings: &SumSettings,
    limits: &Limits,
) -> Result<Option<Summed>, Fault> {
    let precision = if settings.f64 { Precision::F64 } else { Precision::F32 };
    let Some((sum, manifest)) = gathered(streams, weights, precision, settings.by_input, limits)? else {
        return Ok(None);
    };
    let reduced = sum.finish(settings.mean).map_err(|e| broken(streams, limits).unwrap_or((None, e)))?;
    let header = reduced.header.clone();
    let tensors = reduced.into_tensors().map_err(|e| (None, e))?;
    let names = manifest.tensors().iter().map(|t| t.name.clone());
    Ok(Some((header, names.zip(tensors).collect())))
}

/// Returns the last updates of streams, to be summed, and their manifest; `None` without streams.
pub(crate) fn gathered<'s>(
    streams: &[&'s [u8]],
    weights: &[f64],
    precision: Precision,
    by_input: bool,
    limits: &Limits,
) -> Result<Option<(Sum<'s>, Arc<Manifest>)>, Fault> {
    let options = SumOptions::default().with_precision(precision).with_limits(limits.clone());
    let mut sum = None;
    for (number, (bytes, &weight)) in streams.iter().zip(weights).enumerate() {
        let of_stream = |e| (Some(number), e);
        for mut part in last_update(bytes, limits).map_err(of_stream)? {
            if by_input {
                part.header.sender = number as u64;
            }
            let manifest = Arc::clone(&part.manifest);
            let (sum, _) = sum.get_or_insert_with(|| (Sum::new(&manifest, options.clone()), manifest));
            sum.add_later(part, weight).map_err(of_stream)?;
        }
    }
    Ok(sum)
}

/// Whether all of these elements are finite. Integers are.
pub(crate) fn is_finite(dtype: Dtype, elements: &[u8]) -> bool {
    let count = elements.len() as u64 * 8 / u64::from(dtype.bits());
    let mut run = [0.0; RUN];
    !dtype.is_float()
        || (0..count).step_by(RUN).all(|start| {
            let run = &mut run[..RUN.min((count - start) as usize)];
            element::decode_f64s(dtype, elements, start, run).is_ok()
                && run.iter().fold(true, |finite, x| finite & x.is_finite())
        })
}

fn last_update<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Vec<UpdatePart<'a>>, gcodec::Error> {
    let file = File::scan(bytes, limits.clone())?;
    file.last().and_then(|last| file.parts(last, |_| true))
}

/// Returns the first stream whose update cannot be decoded, with the error.
pub(crate) fn broken(streams: &[&[u8]], limits: &Limits) -> Option<Fault> {
    let decode =
        |bytes: &&[u8]| last_update(bytes, limits)?.iter().try_for_each(|part| part.decode_all().map(|_| ()));
    streams.iter().enumerate().find_map(|(number, bytes)| Some((Some(number), decode(bytes).err()?)))
}

/// Returns the size of the preamble and the manifests at the beginning of a stream, in bytes.
#[pyfunction]
pub(crate) fn head_bytes(data: &Bound<'_, PyAny>) -> PyResult<usize> {
    let bytes = Bytes::new(data)?;
    let (bytes, mut at) = (bytes.as_slice(), PREAMBLE_LEN);
    while let Some(header) =
        bytes.get(at..).and_then(<[u8]>::first_chunk).and_then(|h| FrameHeader::read(h, at as u64).ok())
        && header.kind == FrameKind::MANIFEST
    {
        at = at
            .saturating_add(HEADER_LEN)
            .saturating_add(usize::try_from(header.body_len).unwrap_or(usize::MAX));
    }
    Ok(at.min(bytes.len()))
}
