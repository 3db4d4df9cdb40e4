//! Tensors with the places of their elements in their file.

use super::kind::Kind;
use super::{Data, Dump, NamedTensor, Room};
use crate::fail::Result;
use crate::input::Input;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A file, and those of its tensors whose elements lie in it as they are. Of tensors that share elements, it
/// has the first and longest.
pub(crate) struct Laid {
    pub(crate) bytes: Arc<Input>,
    /// Tensors in the order of the file; opaque ones as tensors of their bytes.
    pub(crate) tensors: Vec<NamedTensor>,
    /// Where their elements are in the file.
    pub(crate) places: Vec<Range<usize>>,
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Laid {
    /// Reads the tensors of a file.
    pub(crate) fn read(kind: Kind, input: Input, path: &Path) -> Result<Self> {
        let bytes = Arc::new(input);
        let mut dump = Dump::of_input(kind, &bytes, path, &mut Room::default())?.whole(path)?;
        dump.carry();
        let place = |tensor: &NamedTensor| match &tensor.data {
            Data::Shared(shared) if Arc::ptr_eq(&shared.input, &bytes) => {
                Some(shared.range.start as usize..shared.range.end as usize)
            }
            _ => None,
        };
        let found = dump.tensors.into_iter().filter_map(|tensor| Some((place(&tensor)?, tensor)));
        let mut found: Vec<_> = found.filter(|(range, _)| !range.is_empty()).collect();
        found.sort_by_key(|(range, _)| (range.start, Reverse(range.end)));
        let mut end = 0;
        found.retain(|(range, _)| {
            let is_next = range.start >= end;
            if is_next {
                end = range.end;
            }
            is_next
        });
        let (places, tensors) = found.into_iter().unzip();
        Ok(Self { bytes, tensors, places, metadata: dump.metadata })
    }
}
