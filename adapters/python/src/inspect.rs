//! Reports on streams, with the fields of `gcodec inspect --json` (docs/inspect.schema.json), and statistics
//! of tensors.

use gcodec::Error;
use gcodec::file::report::{Report, UpdateReport};
use gcodec::frame::{TensorInfo, VERSION_MAJOR};
use gcodec::reduce::stats::{Stats, StatsOptions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::decode::{Bytes, reduction_name};
use crate::limits::PyLimits;
use crate::named::{Given, borrow, views};
use crate::{errors, threads};

/// Adds fields to a dictionary under their own names.
macro_rules! put {
    ($dict:expr, $from:expr, $($field:ident)*) => {
        $($dict.set_item(stringify!($field), &$from.$field)?;)*
    };
}

/// Returns the statistics of each tensor.
#[pyfunction]
pub(crate) fn stats<'py>(
    py: Python<'py>,
    tensors: Given<'py>,
) -> PyResult<Vec<(String, Bound<'py, PyDict>)>> {
    let mut named = borrow(tensors)?;
    let found = threads::run(py, || {
        let views = views(&mut named)?;
        let of = |(name, view): (&str, _)| (name.to_owned(), Stats::of(&view, &StatsOptions::default()));
        Ok(views.into_iter().map(of).collect::<Vec<_>>())
    })?;
    let found = found.map_err(|e: Error| errors::raise(py, e, None))?;
    found
        .into_iter()
        .map(|(name, stats)| {
            let dict = PyDict::new(py);
            put_stats(&dict, &stats, true)?;
            put!(dict, stats, elements nan infinite);
            dict.set_item("exponents", stats.exponents.iter().collect::<Vec<_>>())?;
            Ok((name, dict))
        })
        .collect()
}

/// Adds what the elements are: None where these values alone do not determine it.
fn put_stats(dict: &Bound<'_, PyDict>, stats: &Stats, known: bool) -> PyResult<()> {
    dict.set_item("norm", known.then(|| stats.norm()))?;
    dict.set_item("mean", known.then(|| stats.mean()))?;
    dict.set_item("std", known.then(|| stats.std()))?;
    dict.set_item("min", stats.min.filter(|_| known))?;
    dict.set_item("max", stats.max.filter(|_| known))?;
    dict.set_item("zeros", known.then_some(stats.zeros))?;
    put!(dict, stats, first_nan first_infinite);
    Ok(())
}

/// Returns a report as nested dictionaries, and the first error as an exception.
#[pyfunction]
pub(crate) fn inspect<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    limits: PyLimits,
) -> PyResult<(Bound<'py, PyDict>, Option<Py<PyAny>>)> {
    let bytes = Bytes::new(data)?;
    let limits = limits.get();
    let (report, error) = threads::run(py, || Report::of(bytes.as_slice(), limits, &()))?;
    let error = error.map(|e| errors::raise(py, e, None).into_value(py).into_any());
    Ok((to_dict(py, report)?, error))
}

fn to_dict(py: Python<'_>, report: Report) -> PyResult<Bound<'_, PyDict>> {
    let out = PyDict::new(py);
    put!(out, report, bytes segments has_index beyond_core metadata);
    out.set_item("version", report.minor.map(|minor| (VERSION_MAJOR, minor)))?;
    let frames = PyList::empty(py);
    for frame in &report.frames {
        let row = PyDict::new(py);
        put!(row, frame, number offset);
        row.set_item("kind", frame.header.kind.to_string())?;
        row.set_item("bytes", frame.len())?;
        frames.append(row)?;
    }
    out.set_item("frames", frames)?;
    let manifests = PyList::empty(py);
    for manifest in &report.manifests {
        let row = PyDict::new(py);
        put!(row, manifest, frame tensors elements);
        row.set_item("id", manifest.id.0.iter().map(|b| format!("{b:02x}")).collect::<String>())?;
        manifests.append(row)?;
    }
    out.set_item("manifests", manifests)?;
    let updates = PyList::empty(py);
    for update in report.updates {
        updates.append(update_to_dict(py, update)?)?;
    }
    out.set_item("updates", updates)?;
    Ok(out)
}

fn update_to_dict(py: Python<'_>, update: UpdateReport) -> PyResult<Bound<'_, PyDict>> {
    let out = PyDict::new(py);
    put!(out, update.header, step round sender world contributors inner_steps label);
    put!(out, update, frames blocks bytes header_bytes kept);
    let (infos, elements) = (update.manifest.tensors(), update.manifest.elements());
    out.set_item("reduction", reduction_name(update.header.reduction))?;
    out.set_item("delta", update.header.is_delta())?;
    out.set_item("elements", elements)?;
    out.set_item("source_bytes", infos.iter().map(TensorInfo::bytes).sum::<u64>())?;
    let tensors = PyList::empty(py);
    let mut all = Stats::default();
    for row in update.tensors {
        let (dict, info) = (PyDict::new(py), &infos[row.number as usize]);
        put!(dict, info, name);
        put!(dict, row, blocks kept position_bits value_bits overhead_bits);
        dict.set_item("dtype", info.dtype.name())?;
        dict.set_item("shape", pyo3::types::PyTuple::new(py, &info.shape)?)?;
        dict.set_item("elements", info.elements())?;
        dict.set_item("support", row.support.map_or("mixed".into(), |id| id.to_string()))?;
        dict.set_item("values", row.kind.map_or("mixed".into(), |id| id.to_string()))?;
        let stats = row.stats.with_elements(info.elements());
        put_stats(&dict, &stats, stats.unread == 0 && !row.is_delta)?;
        let counts = info.dtype.is_float() && stats.unread == 0;
        dict.set_item("nan", counts.then_some(stats.nan))?;
        dict.set_item("infinite", counts.then_some(stats.infinite))?;
        all.merge(&stats);
        tensors.append(dict)?;
    }
    let all = all.with_elements(elements);
    let is_known = all.unread == 0 && !update.header.is_delta();
    out.set_item("norm", is_known.then(|| all.norm()))?;
    put!(out, all, zeros nan infinite);
    out.set_item("tensors", tensors)?;
    Ok(out)
}
