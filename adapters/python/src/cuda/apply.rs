//! Updates applied to device tensors.

use std::collections::BTreeMap;
use std::sync::Arc;

use gcodec::Limits;
use gcodec::block::{Block, IndexSpace, Scope, Sets};
use gcodec::file::{File, UpdateEntry};
use gcodec::frame::{Budget, Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::Assembler;
use gcodec_cuda::{DeviceTensor, Scatter, Target, TargetedBlock, TensorError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Lent, device, opened};
use crate::decode::{Bytes, header_dict};
use crate::errors::{self, Failure};
use crate::limits::PyLimits;
use crate::threads;

/// Writes the last update of a stream into device tensors, or adds it to them.
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

fn apply(
    bytes: &[u8],
    limits: &Limits,
    tensors: &[(String, Py<Lent>)],
    add: bool,
    wait: bool,
    known: &mut Option<Arc<Manifest>>,
) -> Result<UpdateHeader, Failure> {
    let (manifest, header, decoded) = decode(bytes, limits, known)?;
    let lent = in_order(&manifest, tensors)?;
    if !lent.is_empty() {
        scatter(&decoded, &lent, limits, add, wait)?;
    }
    Ok(header)
}

/// A decoded block with its index space and the index sets of its part.
struct Decoded {
    block: Block,
    space: IndexSpace,
    sets: Arc<Sets>,
}

/// Decodes the blocks of the last update. `known`: gets its manifest, for errors.
fn decode(
    bytes: &[u8],
    limits: &Limits,
    known: &mut Option<Arc<Manifest>>,
) -> Result<(Arc<Manifest>, UpdateHeader, Vec<Decoded>), Failure> {
    let file = File::scan(bytes, limits.clone())?;
    let last = file.last()?;
    let UpdateEntry { manifest, header, .. } = file.updates()[last].clone();
    *known = Some(Arc::clone(&manifest));
    if header.is_delta() {
        let message = "the update is a delta, which needs its base: decode it on the host";
        return Err(Failure::Input(message.into()));
    }
    // An assembler without wanted tensors, which checks that the parts form an update.
    let mut check = Assembler::new(&manifest, limits, |_| false)?;
    let mut decoded = Vec::new();
    for part in file.parts(last, |_| true)? {
        check.apply(&part)?;
        let sets = Arc::new(part.sets().clone());
        for (raw, block) in part.blocks.iter().zip(part.decode_all()?) {
            decoded.push(Decoded { block, space: raw.space.clone(), sets: Arc::clone(&sets) });
        }
    }
    check.finish()?;
    Ok((manifest, header, decoded))
}

/// Writes blocks to tensors, all on one device. `lent`: at least one.
#[expect(unsafe_code, reason = "device memory is written to")]
fn scatter(
    decoded: &[Decoded],
    lent: &[&Lent],
    limits: &Limits,
    add: bool,
    wait: bool,
) -> Result<(), Failure> {
    let (ordinal, stream) = (lent[0].ordinal(), lent[0].stream());
    let device = device(ordinal)?;
    let views: Vec<DeviceTensor<'_>> = lent
        .iter()
        .zip(0..)
        .map(|(lent, number)| lent.view(&device).map_err(|e| Failure::Cuda(e, Some(number))))
        .collect::<Result<_, _>>()?;
    let targets: Vec<Vec<Target<'_>>> = decoded.iter().map(|d| targets_of(d, &views)).collect();
    let parts: Vec<TargetedBlock<'_>> = decoded
        .iter()
        .zip(&targets)
        .map(|(d, targets)| TargetedBlock { block: &d.block, space: &d.space, sets: &d.sets, targets })
        .collect();
    let idle = opened().idle_scatters.remove(&ordinal);
    let mut scatter = match idle {
        Some(scatter) => scatter,
        None => Scatter::new(&device)?,
    };
    let zeros: &[DeviceTensor<'_>] = if add { &[] } else { &views };
    // SAFETY: the caller gave these tensors to be written to, and holds them until this returns. If it does
    // not wait for the stream, later work is ordered by that stream, which the tensors' owner chose.
    let put = unsafe { scatter.put_all(&parts, zeros, &Budget::new(limits), add, stream) };
    let put = put.and_then(|()| if wait { scatter.wait() } else { Ok(()) });
    let other = opened().idle_scatters.insert(ordinal, scatter);
    drop(other);
    Ok(put?)
}

/// Returns the ranges of tensors that a block covers.
fn targets_of<'a>(decoded: &Decoded, views: &[DeviceTensor<'a>]) -> Vec<Target<'a>> {
    let Decoded { block, space, .. } = decoded;
    let start = match block.scope {
        Scope::Range { start, .. } => start,
        _ => 0,
    };
    let tensors = views[block.scope.first() as usize..].iter().zip(&space.lens);
    tensors.map(|(&tensor, &len)| Target { tensor, start, len }).collect()
}

/// Returns the tensors in the order of the manifest. Names, types and shapes must agree, and all must be on
/// one device.
fn in_order<'a>(manifest: &Manifest, tensors: &'a [(String, Py<Lent>)]) -> Result<Vec<&'a Lent>, Failure> {
    let mut by_name: BTreeMap<&str, &Lent> =
        tensors.iter().map(|(name, lent)| (name.as_str(), lent.get())).collect();
    let mut out: Vec<&Lent> = Vec::new();
    for (info, number) in manifest.tensors().iter().zip(0u64..) {
        let Some(lent) = by_name.remove(info.name.as_str()) else {
            return Err(Failure::Input(format!(
                "the update has a tensor {:?}, which is not among the given tensors",
                info.name
            )));
        };
        let (dtype, shape) = lent.of();
        if (dtype, shape) != (info.dtype, &info.shape[..]) {
            let TensorInfo { name, dtype: theirs, shape: other, .. } = info;
            return Err(Failure::Input(format!(
                "tensor {name:?} is {dtype} {shape:?}, but in the update {theirs} {other:?}"
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
