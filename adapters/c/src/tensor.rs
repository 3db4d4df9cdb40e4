//! Tensors, headers of updates and metadata, as structures of C.

use std::ffi::{c_char, c_void};

use gcodec::frame::{Reduction, UpdateHeader};
use gcodec::{Dtype, TensorView};

use crate::error::{Failure, Result};
use crate::given;

/// Element types, by their numbers on the wire.
#[allow(missing_docs)]
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gcodec_dtype {
    F64 = 1,
    F32 = 2,
    F16 = 3,
    Bf16 = 4,
    F8e4m3fn = 5,
    F8e5m2 = 6,
    F8e4m3fnuz = 7,
    F8e5m2fnuz = 8,
    /// Two elements per byte, the first in the low half.
    F4e2m1 = 9,
    I8 = 16,
    I16 = 17,
    I32 = 18,
    I64 = 19,
    U8 = 24,
    U16 = 25,
    U32 = 26,
    U64 = 27,
    Bool = 32,
}

/// A named tensor in memory that somebody else owns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gcodec_tensor {
    /// Name, UTF-8. The library's names end with a zero byte.
    pub name: *const c_char,
    /// Bytes of the name without a zero byte at its end; 0: the name ends with a zero byte.
    pub name_len: usize,
    /// Elements: row-major, little-endian.
    pub data: *const c_void,
    /// Bytes of the elements.
    pub bytes: usize,
    /// Dimensions.
    pub shape: *const u64,
    /// Number of dimensions.
    pub rank: usize,
    /// A `gcodec_dtype`.
    pub dtype: u32,
}

/// Borrows the caller's tensors.
///
/// # Safety
/// `tensors` is null, or points to `count` tensors; they, and all that they point to, stay in place and
/// unchanged for `'a`.
pub(crate) unsafe fn views<'a>(
    tensors: *const gcodec_tensor,
    count: usize,
) -> Result<Vec<(&'a str, TensorView<'a>)>> {
    // SAFETY: the caller's promise.
    let tensors: &'a [gcodec_tensor] = unsafe { given::items(tensors, count, "tensors") }?;
    let view = |(number, tensor): (usize, &gcodec_tensor)| {
        // SAFETY: the caller's promise.
        unsafe { view(tensor) }.map_err(|e| e.of_tensor(number))
    };
    tensors.iter().enumerate().map(view).collect()
}

/// Returns the name and the elements of a caller's tensor.
///
/// # Safety
/// The memory that `tensor` points to stays in place and unchanged for `'a`.
unsafe fn view<'a>(tensor: &gcodec_tensor) -> Result<(&'a str, TensorView<'a>)> {
    // SAFETY: the caller's promise.
    let (name, shape, data) = unsafe {
        let name = given::text(tensor.name, tensor.name_len, "the name of the tensor")?;
        let shape = given::items(tensor.shape, tensor.rank, "the shape of the tensor")?;
        (name, shape, given::items(tensor.data.cast::<u8>(), tensor.bytes, "the data of the tensor")?)
    };
    let dtype = u8::try_from(tensor.dtype).ok().and_then(Dtype::from_id);
    let dtype = dtype.ok_or_else(|| Failure::input(format!("no element type {}", tensor.dtype)))?;
    Ok((name, TensorView::new(dtype, shape, data)?))
}

/// Sender, step and kind of an update. All zeros say that nothing is known.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gcodec_header {
    /// Number of optimizer updates before this one.
    pub step: u64,
    /// Number of communication rounds before this one.
    pub round: u64,
    /// Number of the sender.
    pub sender: u64,
    /// Number of senders, 0 if unknown.
    pub world: u64,
    /// Number of senders whose updates are in this one, 0 if unknown.
    pub contributors: u64,
    /// Number of local steps that the update covers, 0 if unknown.
    pub inner_steps: u64,
    /// 0: one sender's own update; 1: a sum of several; 2: a mean of several.
    pub reduction: u32,
    /// 1 if the update is a delta. An encoder ignores it.
    pub is_delta: u32,
    /// Compression method, for people; ends with a zero byte. To an encoder, NULL means the codecs.
    pub label: *const c_char,
}

impl gcodec_header {
    /// Returns the header of an update whose codecs are `codecs`.
    ///
    /// # Safety
    /// `header` is null or points to a header whose label is null or ends with a zero byte.
    pub(crate) unsafe fn get(header: *const Self, codecs: String) -> Result<UpdateHeader> {
        // SAFETY: the caller's promise.
        let Some(given) = (unsafe { given::optional(header, "header") })? else {
            return Ok(UpdateHeader::default().with_label(codecs));
        };
        let reduction = match given.reduction {
            0 => Reduction::None,
            1 => Reduction::Sum,
            2 => Reduction::Mean,
            other => return Err(Failure::input(format!("reduction is {other}: use 0, 1 or 2"))),
        };
        let label = match given.label.is_null() {
            true => codecs,
            // SAFETY: the caller's promise.
            false => unsafe { given::text(given.label, 0, "the label") }?.to_owned(),
        };
        Ok(UpdateHeader::default()
            .with_step(given.step)
            .with_round(given.round)
            .with_sender(given.sender)
            .with_world(given.world)
            .with_contributors(given.contributors)
            .with_inner_steps(given.inner_steps)
            .with_reduction(reduction)
            .with_label(label))
    }

    /// Returns a header of a stream, with a label that ends with a zero byte.
    pub(crate) fn of(header: &UpdateHeader, label: &Text) -> Self {
        Self {
            step: header.step,
            round: header.round,
            sender: header.sender,
            world: header.world,
            contributors: header.contributors,
            inner_steps: header.inner_steps,
            reduction: header.reduction as u32,
            is_delta: header.is_delta().into(),
            label: label.as_ptr(),
        }
    }
}

/// A key and its value in metadata, UTF-8.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gcodec_entry {
    /// The key; ends with a zero byte.
    pub key: *const c_char,
    /// The value; ends with a zero byte.
    pub value: *const c_char,
}

/// A text with a zero byte at its end.
pub(crate) struct Text(Box<[u8]>);

impl Text {
    pub(crate) fn new(text: &str) -> Self {
        Self([text.as_bytes(), &[0]].concat().into_boxed_slice())
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }

    /// Returns the bytes before the last one.
    pub(crate) fn len(&self) -> usize {
        self.0.len() - 1
    }

    pub(crate) fn is(&self, text: &str) -> bool {
        &self.0[..self.len()] == text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_have_the_numbers_of_the_library() {
        use gcodec_dtype as C;
        let mirrored = [
            C::F64,
            C::F32,
            C::F16,
            C::Bf16,
            C::F8e4m3fn,
            C::F8e5m2,
            C::F8e4m3fnuz,
            C::F8e5m2fnuz,
            C::F4e2m1,
            C::I8,
            C::I16,
            C::I32,
            C::I64,
            C::U8,
            C::U16,
            C::U32,
            C::U64,
            C::Bool,
        ];
        let names = |d: Dtype| (u32::from(d.id()), d.name().to_owned());
        let ours = mirrored.map(|c| (c as u32, format!("{c:?}").to_lowercase()));
        assert_eq!(ours, Dtype::ALL.map(names));
    }
}
