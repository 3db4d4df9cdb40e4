//! Tensors with the places of their elements in their file.

use super::kind::Kind;
use super::{Data, Dump, NamedTensor, Room, Stored};
use crate::fail::{Failure, Result};
use crate::input::Input;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Key of the metadata with the orders of dimensions, as JSON.
const KEY: &str = "gcodec-order";

/// A file, and those of its tensors whose elements lie in it as they are. Of tensors that share elements, it
/// has the first and longest.
pub(crate) struct Laid {
    pub(crate) bytes: Arc<Input>,
    /// Tensors in the order of the file; opaque ones as tensors of their bytes, and permuted ones with their
    /// dimensions as the file has them.
    pub(crate) tensors: Vec<NamedTensor>,
    /// Where their elements are in the file.
    pub(crate) places: Vec<Range<usize>>,
    /// With an entry on permuted tensors, if there are some: which of its source's dimensions each is.
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Laid {
    /// Reads the tensors of a file.
    pub(crate) fn read(kind: Kind, input: Input, path: &Path) -> Result<Self> {
        let bytes = Arc::new(input);
        let mut dump = Dump::of_input(kind, &bytes, path, &mut Room::default())?.whole(path)?;
        dump.carry();
        let found = dump.tensors.into_iter().filter_map(|tensor| as_stored(tensor, &bytes));
        let mut found: Vec<_> = found.filter(|found| !found.range.is_empty()).collect();
        found.sort_by_key(|found| (found.range.start, Reverse(found.range.end)));
        let mut end = 0;
        found.retain(|found| {
            let is_next = found.range.start >= end;
            if is_next {
                end = found.range.end;
            }
            is_next
        });
        let orders: BTreeMap<&str, &[usize]> =
            found.iter().filter_map(|found| Some((found.tensor.name(), found.order.as_deref()?))).collect();
        let mut metadata = dump.metadata;
        if !orders.is_empty() {
            metadata.insert(KEY.to_owned(), serde_json::to_string(&orders).map_err(Failure::invalid)?);
        }
        let (places, tensors) = found.into_iter().map(|found| (found.range, found.tensor)).unzip();
        Ok(Self { bytes, tensors, places, metadata })
    }
}

/// A tensor with its place.
struct Found {
    range: Range<usize>,
    tensor: NamedTensor,
    /// Which of its source's dimensions each is, if they are permuted.
    order: Option<Vec<usize>>,
}

/// Returns a tensor as it lies in the file.
fn as_stored(tensor: NamedTensor, bytes: &Arc<Input>) -> Option<Found> {
    let place = |range: &Range<u64>| range.start as usize..range.end as usize;
    match (&tensor.data, &tensor.stored) {
        (Data::Shared(shared), _) if Arc::ptr_eq(&shared.input, bytes) => {
            Some(Found { range: place(&shared.range), tensor, order: None })
        }
        (_, Some(Stored { input, range, order })) if Arc::ptr_eq(input, bytes) => {
            let (range, order) = (range.clone(), order.clone());
            let shape = order.iter().map(|dim| tensor.shape[*dim]).collect();
            let data = Data::shared(bytes, range.clone());
            let tensor = NamedTensor { shape, data, stored: None, ..tensor };
            Some(Found { range: place(&range), tensor, order: Some(order) })
        }
        _ => None,
    }
}
