//! Versions of slime and miles, one for each update: see `tensors::versions`.

use super::Foreign;
use crate::fail::{Failure, Result};
use crate::origin::Origin;
use crate::tensors::versions::{self, Step};
use crate::tensors::{Dump, NamedTensor};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads the version in a folder, or in the folder of an index. `base`: the version before.
pub(super) fn read(path: &Path, base: &Dump) -> Result<Foreign> {
    let step = Step::at(path)?;
    let (dump, encoding, version) = match step {
        Some(step) => {
            let (encoding, version) = (step.difference.encoding.name(), Some(step.difference.version));
            let copy = base.tensors.iter().map(NamedTensor::copied).collect();
            let base = Dump { tensors: copy, metadata: base.metadata.clone(), ..Dump::default() };
            (step.resolve(base)?, encoding, version)
        }
        None if path.is_dir() => (Dump::open_carrying(path)?, "whole", versions::version_of(path)),
        None => return Err(Failure::usage("neither the folder of a version nor an index of differences")),
    };
    if let Some(old) = base.tensors.iter().find(|old| dump.tensors.iter().all(|new| new.name() != old.name()))
    {
        return Err(Failure::usage(format_args!(
            "it has no tensor {:?}, which the version before has",
            old.name()
        )));
    }
    Ok(Foreign {
        tensors: dump.tensors,
        label: format!("converted from slime, {encoding}"),
        metadata: BTreeMap::new(),
        said: Origin { step: version, ..Origin::default() },
    })
}
