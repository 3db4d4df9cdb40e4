//! Streams of a distributed checkpoint, as `gcodec.torch.checkpoint` writes them: each part of a tensor is a
//! tensor of an update.

use super::super::elements::Element;
use crate::fail::{Failure, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::tensors::Data;
use gcodec::Limits;
use gcodec::file::File;
use gcodec::internal::elements;
use gcodec::tensor::Dtype;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

self_cell::self_cell! {
    struct Opened {
        owner: Arc<Input>,
        #[covariant]
        dependent: File,
    }
}

/// A stream whose tensors are decoded one at a time.
pub(super) struct Stream {
    opened: Opened,
    /// Numbers of the tensors of each update, by name.
    tensors: Vec<HashMap<String, u64>>,
}

impl Stream {
    pub(super) fn open(input: Input) -> Result<Self> {
        // Of a file that is read by ranges, all bytes are held.
        if input.held().is_none() && input.len() > DEFAULT_MAX_BYTES {
            return Err(Failure::limit(format_args!(
                "{} bytes of a stream are too many to hold",
                input.len()
            )));
        }
        let limits = Limits::default().with_max_alloc_bytes(DEFAULT_MAX_BYTES);
        let opened = Opened::try_new(Arc::new(input), |input| {
            File::open(input, limits.clone()).or_else(|_| File::scan(input, limits.clone()))
        })?;
        let numbered = |infos: &[gcodec::frame::TensorInfo]| {
            infos.iter().zip(0..).map(|(info, number)| (info.name.clone(), number)).collect()
        };
        let updates = opened.borrow_dependent().updates();
        let tensors = updates.iter().map(|update| numbered(update.manifest.tensors())).collect();
        Ok(Self { opened, tensors })
    }

    /// Returns the number of bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.opened.borrow_owner().len()
    }

    /// Returns the elements of a tensor of this type and shape. Unless `unread`, they are decoded once to see
    /// that they can be. They are decoded again whenever they are read.
    pub(super) fn data(
        self: &Arc<Self>,
        (update, name): (usize, &str),
        as_bytes: bool,
        (element, shape): (Element, &[u64]),
        unread: bool,
    ) -> std::result::Result<Data, String> {
        let (number, dtype, found) = self.find(update, name).ok_or("the stream has no such tensor")?;
        let is_same = match (as_bytes, element) {
            (true, _) => {
                let bytes = elements(shape).and_then(|n| n.checked_mul(element.width()));
                dtype == Dtype::U8 && bytes.is_some_and(|bytes| found == [bytes])
            }
            (false, Element::Known(known)) => (dtype, found) == (known, shape),
            (false, _) => false,
        };
        let (all, len) = match (elements(found), self.bytes(update, number)) {
            (Some(all), Some(len)) if is_same => (all, len),
            _ => return Err(format!("it is not one tensor of {} with the shape {shape:?}", element.name())),
        };
        if !unread {
            self.decode(update, number, all).map_err(|e| e.message)?;
        }
        let stream = Arc::clone(self);
        // Only a file that was changed since does not give the elements again.
        let make = move || stream.decode(update, number, all).unwrap_or_else(|_| vec![0; len as usize]);
        Ok(Data::later(len, make))
    }

    /// Returns the bytes of a tensor of bytes.
    pub(super) fn read(&self, update: usize, name: &str) -> Option<Vec<u8>> {
        let (number, dtype, shape) = self.find(update, name)?;
        self.decode(update, number, elements(shape)?).ok().filter(|_| dtype == Dtype::U8)
    }

    fn find(&self, update: usize, name: &str) -> Option<(u64, Dtype, &[u64])> {
        let number = *self.tensors.get(update)?.get(name)?;
        let info =
            self.opened.borrow_dependent().updates()[update].manifest.tensors().get(number as usize)?;
        Some((number, info.dtype, &info.shape))
    }

    fn bytes(&self, update: usize, number: u64) -> Option<u64> {
        let info =
            self.opened.borrow_dependent().updates()[update].manifest.tensors().get(number as usize)?;
        info.dtype.bytes_for(info.elements())
    }

    fn decode(&self, update: usize, number: u64, all: u64) -> Result<Vec<u8>> {
        let file = self.opened.borrow_dependent();
        let mut found = file.elements(update, &[(number, 0..all)], &BTreeMap::new(), &|_| ())?;
        Ok(found.pop().unwrap_or_default())
    }
}
