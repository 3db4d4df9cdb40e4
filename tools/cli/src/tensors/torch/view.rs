//! Tensors as views of storages: borrowed where their elements lie in order, copied elsewhere.

use super::NOT_READ;
use super::elements::Element;
use super::strided::{Place, Strided};
use crate::fail::Failure;
use crate::input::Input;
use crate::tensors::{Data, NamedTensor, Opaque, Stored};
use gcodec::tensor::Dtype;
use std::ops::Range;
use std::sync::Arc;

/// A view of a storage.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) element: Element,
    /// In elements.
    pub(super) offset: u64,
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
    /// Whether its elements are those of the storage with the other sign.
    pub(super) is_negative: bool,
    /// Whether they are the conjugates.
    pub(super) is_conjugate: bool,
}

impl View {
    /// Returns the tensor whose storage lies at these bytes of the input. `copies`: bytes that may still be
    /// copied.
    pub(super) fn read(
        &self,
        input: &Arc<Input>,
        storage: Range<u64>,
        name: &str,
        copies: &mut u64,
    ) -> std::result::Result<NamedTensor, Box<Unread>> {
        let opaque = |bytes: u64, reason: String| {
            Opaque::new(name.to_owned(), self.element.name(), Some(self.shape.clone()), bytes, reason)
        };
        let data = match self.data(input, storage.clone(), copies) {
            Ok(data) => data,
            Err((reason, fault)) => {
                let opaque = opaque(storage.end - storage.start, reason);
                return Err(Box::new(Unread { opaque, fault }));
            }
        };
        match self.element {
            Element::Known(dtype) => NamedTensor::from_data(name.to_owned(), dtype, self.shape.clone(), data)
                .map(|tensor| NamedTensor { stored: self.stored(input, &storage), ..tensor })
                .map_err(|failure| {
                    Box::new(Unread { opaque: opaque(0, failure.message.clone()), fault: Some(failure) })
                }),
            _ => {
                let is_unknown = self.element.is_unknown();
                let bytes = if is_unknown { storage.end - storage.start } else { data.len() };
                let opaque = opaque(bytes, NOT_READ.to_owned());
                let opaque = if is_unknown { opaque } else { opaque.with_data(data) };
                Err(Box::new(Unread { opaque, fault: None }))
            }
        }
    }

    /// Says where the elements lie in the input, if they are a permutation of a range of it.
    fn stored(&self, input: &Arc<Input>, storage: &Range<u64>) -> Option<Stored> {
        let element = self.element.width() as usize;
        let view = Strided { element, offset: self.offset, shape: &self.shape, strides: &self.strides };
        let (order, range) = view.permuted().filter(|_| !self.is_negative && !self.is_conjugate)?;
        let range = storage.start + range.start..storage.start + range.end;
        Some(Stored { input: Arc::clone(input), range, order })
    }

    /// Returns the elements; the error is the reason why that cannot be, and a failure if the file is wrong.
    fn data(
        &self,
        input: &Arc<Input>,
        storage: Range<u64>,
        copies: &mut u64,
    ) -> std::result::Result<Data, (String, Option<Failure>)> {
        let width = self.element.width() as usize;
        let view =
            Strided { element: width, offset: self.offset, shape: &self.shape, strides: &self.strides };
        let len = storage.end - storage.start;
        let bytes = match view.find(len).map_err(|e| (e.message.clone(), Some(e)))? {
            Place::Contiguous(range) => {
                let range = storage.start + range.start..storage.start + range.end;
                if !self.is_negative && !self.is_conjugate {
                    return Ok(Data::shared(input, range));
                }
                range.end - range.start
            }
            Place::Scattered(bytes) => bytes,
        };
        *copies = copies.checked_sub(bytes).ok_or_else(|| {
            (format!("a view of {bytes} bytes on a storage of {len}: save a contiguous copy"), None)
        })?;
        // Whether its signs can be changed depends on the type alone.
        self.change_signs(&mut []).map_err(|reason| (reason, None))?;
        let view = self.clone();
        Ok(Data::made(input, bytes, move |input| view.gather(&input.slice(storage.clone()))))
    }

    /// Returns the elements of a storage in which they were found to lie.
    fn gather(&self, storage: &[u8]) -> Vec<u8> {
        let element = self.element.width() as usize;
        let view = Strided { element, offset: self.offset, shape: &self.shape, strides: &self.strides };
        let mut data = view.gather(storage);
        let changed = self.change_signs(&mut data);
        debug_assert!(changed.is_ok(), "it was tried without elements");
        data
    }

    fn change_signs(&self, data: &mut [u8]) -> std::result::Result<(), String> {
        if self.is_conjugate {
            conjugate(data, self.element)?;
        }
        if self.is_negative {
            negate(data, self.element)?;
        }
        Ok(())
    }
}

/// A tensor that is not read.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) opaque: Opaque,
    /// The damage of the file, if that is the reason.
    pub(super) fault: Option<Failure>,
}

/// Gives the imaginary part of each element the other sign.
fn conjugate(data: &mut [u8], element: Element) -> std::result::Result<(), String> {
    if !element.is_complex() {
        return Err("its elements have another sign than its storage's".to_owned());
    }
    let width = element.width() as usize;
    data.chunks_exact_mut(width).for_each(|bytes| bytes[width - 1] ^= 0x80);
    Ok(())
}

/// Gives each element the other sign.
fn negate(data: &mut [u8], element: Element) -> std::result::Result<(), String> {
    let width = element.width() as usize;
    let Element::Known(dtype) = element else {
        conjugate(data, element)?;
        // The sign of the real part.
        data.chunks_exact_mut(width).for_each(|bytes| bytes[width / 2 - 1] ^= 0x80);
        return Ok(());
    };
    for bytes in data.chunks_exact_mut(width) {
        let last = width - 1;
        match dtype {
            Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3Fn | Dtype::F8E5M2 => {
                bytes[last] ^= 0x80;
            }
            // Here, the sign of zero makes NaN.
            Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz if bytes[0] & 0x7f == 0 => {}
            Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz => bytes[0] ^= 0x80,
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 => {
                let mut carry = true;
                for byte in bytes {
                    (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
                }
            }
            _ => return Err("its elements have another sign than its storage's".to_owned()),
        }
    }
    Ok(())
}
