//! Sum digests of device tensors, where they are.

use gcodec::Dtype;
use gcodec_cuda::{DeviceView, SumDigester, SumInput};
use pyo3::prelude::*;

use super::{Lent, device, opened};
use crate::digests::{Lanes, lanes};
use crate::errors::{self, Failure};
use crate::threads;

/// A part of a tensor, the whole tensor's name and shape, and the first indices of the part.
type Part = (Py<Lent>, String, Vec<u64>, Vec<u64>);

/// Returns the element types of parts of tensors, and their shares in a sum over several tensors, as
/// `sum_share`. All were borrowed for work in one stream of one device.
#[pyfunction]
pub(crate) fn cuda_sum_shares(py: Python<'_>, parts: Vec<Part>) -> PyResult<Vec<(&'static str, Lanes)>> {
    let found = threads::run(py, || shares(&parts))?;
    found.map_err(|e| errors::raise_failure(py, e, None))
}

fn shares(parts: &[Part]) -> Result<Vec<(&'static str, Lanes)>, Failure> {
    let Some((first, ..)) = parts.first() else { return Ok(Vec::new()) };
    let (ordinal, stream) = (first.get().ordinal(), first.get().stream());
    let device = device(ordinal)?;
    let strides: Vec<Vec<i64>> = parts.iter().map(|(part, ..)| part.get().strides()).collect();
    let views = parts.iter().zip(&strides).zip(0..).map(|(((part, ..), strides), number)| {
        part.get().strided(&device, strides).map_err(|e| Failure::Cuda(e, Some(number)))
    });
    let views: Vec<DeviceView<'_>> = views.collect::<Result<_, _>>()?;
    let pairs = views.iter().zip(parts);
    let inputs: Vec<SumInput<'_>> =
        pairs.map(|(&data, (_, _, _, offsets))| SumInput { data, offsets }).collect();
    let idle = opened().idle_sums.remove(&ordinal);
    let mut digester = match idle {
        Some(digester) => digester,
        None => SumDigester::new(&device)?,
    };
    let made = digester.digests(&inputs, stream);
    // If two threads had one each, one is kept.
    let other = opened().idle_sums.insert(ordinal, digester);
    drop(other);
    let weighted = made?.into_iter().zip(parts).map(|(sum, (part, name, shape, _))| {
        let (dtype, _): (Dtype, _) = part.get().of();
        (dtype.name(), lanes(sum.weighted(name, dtype, shape)))
    });
    Ok(weighted.collect())
}
