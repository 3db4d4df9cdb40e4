//! Streams in the place of files of tensors: of `gcodec compress`, and of a distributed checkpoint, as
//! `gcodec.torch.checkpoint` writes them.

use super::{Data, Dump, NamedTensor, Opaque, quoted};
use crate::fail::{Failure, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::output::counted;
use gcodec::Limits;
use gcodec::file::File;
use gcodec::frame::TensorInfo;
use gcodec::internal::elements;
use gcodec::tensor::Dtype;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Key of the metadata with what is around the tensors of a file that was compressed.
pub(crate) const AROUND: &str = "gcodec-source";

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
        let numbered = |infos: &[TensorInfo]| {
            infos.iter().zip(0..).map(|(info, number)| (info.name.clone(), number)).collect()
        };
        let updates = opened.borrow_dependent().updates();
        let tensors = updates.iter().map(|update| numbered(update.manifest.tensors())).collect();
        Ok(Self { opened, tensors })
    }

    /// Returns the tensors of the only update, as those of a file. `unread`: as of [`Self::data`]. Those that
    /// cannot be decoded are opaque, and faults.
    pub(super) fn dump(self: &Arc<Self>, unread: bool) -> Result<Dump> {
        let file = self.opened.borrow_dependent();
        let [update] = file.updates() else {
            let updates = counted(file.updates().len() as u64, "update");
            return Err(Failure::invalid(format_args!("a stream of {updates}, and not of one file")));
        };
        if update.header.is_delta() {
            return Err(Failure::invalid("a stream of a delta, and not of a file"));
        }
        let mut dump = Dump { metadata: file.metadata(0)?.entries, ..Dump::default() };
        dump.metadata.remove(AROUND);
        for info in update.manifest.tensors() {
            let (name, dtype, shape) = (info.name.clone(), info.dtype, info.shape.clone());
            match self.data((0, &name), (dtype, &shape), unread) {
                Ok(data) => dump.tensors.push(NamedTensor { name, dtype, shape, data, stored: None }),
                Err(reason) => {
                    dump.faults.push(Failure::invalid(&reason).about(quoted(&name)));
                    dump.opaque.push(Opaque::new(name, dtype.name(), Some(shape), info.bytes(), reason));
                }
            }
        }
        dump.uncarry();
        Ok(dump)
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
        (dtype, shape): (Dtype, &[u64]),
        unread: bool,
    ) -> std::result::Result<Data, String> {
        let (number, found) = self.find(update, name).ok_or("the stream has no such tensor")?;
        let (all, len) = match (elements(shape), found.dtype.bytes_for(found.elements())) {
            (Some(all), Some(len)) if (found.dtype, &found.shape[..]) == (dtype, shape) => (all, len),
            _ => return Err(not_one(dtype.name(), shape)),
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
        let (number, info) = self.find(update, name)?;
        self.decode(update, number, info.elements()).ok().filter(|_| info.dtype == Dtype::U8)
    }

    fn find(&self, update: usize, name: &str) -> Option<(u64, &TensorInfo)> {
        let number = *self.tensors.get(update)?.get(name)?;
        let manifest = &self.opened.borrow_dependent().updates()[update].manifest;
        Some((number, manifest.tensors().get(number as usize)?))
    }

    fn decode(&self, update: usize, number: u64, all: u64) -> Result<Vec<u8>> {
        let file = self.opened.borrow_dependent();
        let mut found = file.elements(update, &[(number, 0..all)], &BTreeMap::new(), &|_| ())?;
        Ok(found.pop().unwrap_or_default())
    }
}

/// Says that a stream does not have a tensor as it should be.
pub(super) fn not_one(dtype: &str, shape: &[u64]) -> String {
    format!("it is not one tensor of {dtype} with the shape {shape:?}")
}
