//! Values in wire form, made from codes that a device has packed.

use crate::bits::packed_bytes;
use crate::block::values::ValueSpace;
use crate::codes::PACKED;
use crate::error::{Error, Result};
use crate::tensor::Dtype;

#[cfg(doc)]
use crate::block::{Part, Values};

/// Integers of fixed width (spec, section 7.1).
///
/// Integer i takes the bits `i * width` to `(i + 1) * width - 1` of `plane`, least significant bit of each
/// byte first. The last byte is padded with zeros. An encoder that writes packed integers takes the smallest
/// width that holds the largest of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed<'a> {
    /// Bits of an integer: 0 to 64.
    pub width: u8,
    /// The bits.
    pub plane: &'a [u8],
}

/// Writes the fields and bit planes of a values kind as a [`Part::Written`].
///
/// Each method takes the fields of the kind that it is named after ([`Values`]). Lengths are checked; the
/// contents of the planes are not ([`WireBlock`](crate::block::WireBlock) says what follows from that).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireValues {
    /// Number of values.
    pub count: u64,
    /// Number of tensors of the block's scope.
    pub tensors: u64,
}

impl WireValues {
    /// The space of the values. No kind that has a method here depends on the other properties.
    pub(super) fn space(self) -> ValueSpace<'static> {
        let Self { count, tensors } = self;
        ValueSpace {
            count,
            is_all: false,
            tensors: Some(tensors),
            dtype: Dtype::F32,
            row_lens: &[],
            group_counts: &[],
            elements: None,
        }
    }

    /// Appends `ints(N)`.
    pub(super) fn ints(self, out: &mut Vec<u8>, codes: Packed<'_>) -> Result<()> {
        let fits = packed_bytes(self.count, codes.width.into()) == Some(codes.plane.len() as u64);
        if codes.width > 64 || !fits {
            return Err(Error::inconsistent("length of packed integers"));
        }
        if self.count > 0 {
            out.extend([PACKED, codes.width]);
            out.extend_from_slice(codes.plane);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_integers_have_at_most_64_bits_and_no_fields_if_there_are_none() {
        let written = |count, width, len| {
            let (mut out, plane) = (Vec::new(), &vec![0xab; len]);
            WireValues { count, tensors: 1 }.ints(&mut out, Packed { width, plane })?;
            assert!(out.ends_with(plane));
            Ok::<_, Error>(out[..out.len() - len].to_vec())
        };
        for (count, width, len) in [(1, 0, 0), (1, 3, 1), (3, 3, 2), (8, 64, 64)] {
            assert_eq!(written(count, width, len).unwrap(), [PACKED, width], "{count} {width}");
        }
        assert!([0, 64].iter().all(|&width| written(0, width, 0).unwrap().is_empty()));
        for (count, width, len) in [(0, 3, 1), (3, 3, 1), (3, 3, 3), (8, 64, 63), (8, 65, 65)] {
            assert_eq!(written(count, width, len).unwrap_err().name(), "input", "{count} {width}");
        }
    }
}
