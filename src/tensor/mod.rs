//! Element types, shapes, names, borrowed and owned buffers of elements, and exact conversions of elements.
//! No IO, no codes.

pub(crate) mod element;
pub(crate) mod name;
pub(crate) mod shape;

pub(crate) use shape::elements;

use crate::arch::storage::Storage;
use crate::error::Result;
use shape::check_len;

/// Type of a tensor's elements, by its number on the wire (spec, registry `dtype`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Dtype {
    F64 = 1,
    F32 = 2,
    F16 = 3,
    Bf16 = 4,
    F8E4M3Fn = 5,
    F8E5M2 = 6,
    F8E4M3Fnuz = 7,
    F8E5M2Fnuz = 8,
    /// Two elements per byte, the first in the low half.
    F4E2M1 = 9,
    I8 = 16,
    I16 = 17,
    I32 = 18,
    I64 = 19,
    U8 = 24,
    U16 = 25,
    U32 = 26,
    U64 = 27,
    /// One byte, 0 or 1.
    Bool = 32,
}

impl Dtype {
    /// Every element type, in ascending order of numbers.
    pub const ALL: [Self; 18] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4M3Fn,
        Self::F8E5M2,
        Self::F8E4M3Fnuz,
        Self::F8E5M2Fnuz,
        Self::F4E2M1,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::Bool,
    ];

    /// Returns the element type with this number on the wire.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.id() == id)
    }

    /// Returns the type's number on the wire.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Returns the type's name in the registry, in `gcodec`'s output and in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4M3Fn => "f8e4m3fn",
            Self::F8E5M2 => "f8e5m2",
            Self::F8E4M3Fnuz => "f8e4m3fnuz",
            Self::F8E5M2Fnuz => "f8e5m2fnuz",
            Self::F4E2M1 => "f4e2m1",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::Bool => "bool",
        }
    }

    /// Returns the element type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Returns the bits of one element: 4, 8, 16, 32 or 64.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F4E2M1 => 4,
            Self::F8E4M3Fn | Self::F8E5M2 | Self::F8E4M3Fnuz | Self::F8E5M2Fnuz => 8,
            Self::I8 | Self::U8 | Self::Bool => 8,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 16,
            Self::F32 | Self::I32 | Self::U32 => 32,
            Self::F64 | Self::I64 | Self::U64 => 64,
        }
    }

    /// Whether the elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        (self as u8) < 16
    }

    /// Returns the bytes of `elements` elements, the last byte padded with zero bits; `None` if that exceeds
    /// 64 bits.
    pub fn bytes_for(self, elements: u64) -> Option<u64> {
        match self.bits() {
            4 => Some(elements.div_ceil(2)),
            bits => elements.checked_mul(u64::from(bits / 8)),
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A tensor's elements in little-endian bytes, row-major, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorView<'a> {
    dtype: Dtype,
    shape: &'a [u64],
    data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Borrows `data` as a tensor.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if the length of `data` does not match `dtype` and `shape`, or
    /// if the shape is too large.
    pub fn new(dtype: Dtype, shape: &'a [u64], data: &'a [u8]) -> Result<Self> {
        check_len(dtype, shape, data.len() as u64)?;
        Ok(Self { dtype, shape, data })
    }

    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the dimensions.
    pub fn shape(&self) -> &'a [u64] {
        self.shape
    }

    /// Returns the elements' bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        elements(self.shape).unwrap_or(0)
    }
}

/// A tensor's elements in little-endian bytes, row-major, owned. Decoded tensors may share large pages with
/// others, but no bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorBuf {
    dtype: Dtype,
    shape: Vec<u64>,
    data: Storage,
}

impl TensorBuf {
    /// Makes a tensor of `data`.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if the length of `data` does not match `dtype` and `shape`, or
    /// if the shape is too large.
    pub fn new(dtype: Dtype, shape: Vec<u64>, data: Vec<u8>) -> Result<Self> {
        Self::of(dtype, shape, data.into())
    }

    /// As [`Self::new`], of any memory.
    pub(crate) fn of(dtype: Dtype, shape: Vec<u64>, data: Storage) -> Result<Self> {
        check_len(dtype, &shape, data.len() as u64)?;
        Ok(Self { dtype, shape, data })
    }

    /// Makes a tensor of `f32` elements.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) if the number of `values` does not match `shape`.
    pub fn from_f32(shape: Vec<u64>, values: &[f32]) -> Result<Self> {
        Self::new(Dtype::F32, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Borrows the tensor.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: &self.shape, data: &self.data }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the dimensions.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the elements' bytes.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the elements' bytes, mutable.
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// Returns the elements' bytes, owned: a copy if the tensor shares its memory with others, as
    /// [`Assembler`](crate::stream::Assembler) makes them.
    pub fn into_data(self) -> Vec<u8> {
        self.data.into_vec()
    }

    /// Returns the memory of the elements.
    pub(crate) fn into_storage(self) -> Storage {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_counts() {
        assert_eq!(elements(&[]), Some(1));
        assert_eq!(elements(&[3, 0, u64::MAX, u64::MAX]), Some(0));
        assert_eq!(elements(&[1 << 33, 1 << 31]), None);
        assert_eq!(Dtype::F4E2M1.bytes_for(3), Some(2));
        assert_eq!(Dtype::F64.bytes_for(u64::MAX), None);
        for dtype in Dtype::ALL {
            for shift in 0..64 {
                for count in [(1u64 << shift) - 1, 1 << shift, !(1 << shift), u64::MAX - shift] {
                    let bytes = (u128::from(count) * u128::from(dtype.bits())).div_ceil(8);
                    assert_eq!(dtype.bytes_for(count).map(u128::from), (bytes < 1 << 64).then_some(bytes));
                }
            }
        }
        for d in Dtype::ALL {
            assert_eq!((Dtype::from_id(d.id()), Dtype::from_name(d.name())), (Some(d), Some(d)));
        }
        assert!(TensorView::new(Dtype::F32, &[2], &[0; 7]).is_err());
    }
}
