//! Shards: parts of tensors as tensors of their own, for receivers that hold only these.

use std::borrow::Cow;

use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{Shard, TensorInfo};
use crate::limits::in_memory;
use crate::tensor::{Dtype, TensorView, elements};

impl TensorInfo {
    /// Describes `parts` shards of equal size, in order: ranges of indices of dimension `dim`. Each is a
    /// tensor of its own, so that a delta has digests of each, which the holder of the shard can check (spec,
    /// section 6). Names are as in `w[:,4:8]`.
    ///
    /// Choose `parts` for the largest number of ranks. Every number of ranks that divides it works, too: with
    /// 4 shards, each of 2 ranks holds two.
    ///
    /// # Errors
    /// [`InputErrorKind::BadTensor`] unless `parts` divides the dimension.
    pub fn shards(&self, dim: usize, parts: u64) -> Result<Vec<Self>> {
        let bad = || Error::input(InputErrorKind::BadTensor { what: "number of shards of a dimension" });
        let len = *self.shape.get(dim).ok_or_else(bad)?;
        let own = len.checked_div(parts).filter(|own| own * parts == len).ok_or_else(bad)?;
        let shard = |part: u64| {
            let (mut shape, mut offsets) = (self.shape.clone(), vec![0; self.shape.len()]);
            (shape[dim], offsets[dim]) = (own, part * own);
            let name = format!("{}[{}{}:{}]", self.name, ":,".repeat(dim), part * own, (part + 1) * own);
            let shard = Some(Shard { global_shape: self.shape.clone(), offsets });
            Self { name, dtype: self.dtype, shape, matrix: None, shard }
        };
        Ok((0..parts).map(shard).collect())
    }
}

impl Shard {
    /// Returns the place of a shard of this `shape` in another shard of the same tensor, which has the shape
    /// `outer_shape`; `None` if it is not inside.
    #[must_use]
    pub fn within(&self, shape: &[u64], outer: &Self, outer_shape: &[u64]) -> Option<Self> {
        let ranks = [shape, outer_shape, &self.offsets, &outer.offsets].map(<[u64]>::len);
        if self.global_shape != outer.global_shape || ranks != [self.global_shape.len(); 4] {
            return None;
        }
        let dims = self.offsets.iter().zip(shape).zip(outer.offsets.iter().zip(outer_shape));
        let offset = |((&own, &len), (&outer, &outer_len)): ((&u64, &u64), (&u64, &u64))| {
            let offset = own.checked_sub(outer)?;
            (offset.checked_add(len)? <= outer_len).then_some(offset)
        };
        let offsets = dims.map(offset).collect::<Option<Vec<u64>>>()?;
        Some(Self { global_shape: outer_shape.to_vec(), offsets })
    }

    /// Returns the elements of the shard of this `shape` in a larger tensor, in row-major order; without a
    /// copy if they follow each other there.
    ///
    /// # Errors
    /// [`InputErrorKind::Mismatch`] if the tensor has another shape than [`Shard::global_shape`], or the
    /// shard is not inside or, of 4-bit elements, begins or ends a row inside a byte.
    pub fn cut<'a>(&self, shape: &[u64], whole: TensorView<'a>) -> Result<Cow<'a, [u8]>> {
        let runs = self.runs(shape, whole.dtype(), whole.shape())?;
        let data = whole.data();
        if let [start] = runs.starts[..] {
            return Ok(Cow::Borrowed(&data[start..start + runs.len]));
        }
        let mut out = Vec::with_capacity(runs.starts.len() * runs.len);
        runs.starts.iter().for_each(|&start| out.extend_from_slice(&data[start..start + runs.len]));
        Ok(Cow::Owned(out))
    }

    /// Writes the elements of a shard to its place in the elements of a larger tensor.
    ///
    /// # Errors
    /// As [`Self::cut`]; nothing is written then.
    pub fn paste(&self, shard: TensorView<'_>, whole: &mut [u8]) -> Result<()> {
        let bytes = elements(&self.global_shape).and_then(|n| shard.dtype().bytes_for(n));
        if bytes != Some(whole.len() as u64) {
            return Err(mismatch());
        }
        let runs = self.runs(shard.shape(), shard.dtype(), &self.global_shape)?;
        for (&start, part) in runs.starts.iter().zip(shard.data().chunks(runs.len.max(1))) {
            whole[start..start + runs.len].copy_from_slice(part);
        }
        Ok(())
    }

    /// Finds the shard's elements in a tensor of the shape `whole`, whose elements can be counted.
    fn runs(&self, shape: &[u64], dtype: Dtype, whole: &[u64]) -> Result<Runs> {
        let ranks = [shape.len(), self.offsets.len()];
        let dims = || shape.iter().zip(&self.offsets).zip(whole);
        let is_inside = |((len, offset), whole): ((&u64, &u64), &u64)| {
            offset.checked_add(*len).is_some_and(|end| end <= *whole)
        };
        if self.global_shape != whole || ranks != [whole.len(); 2] || !dims().all(is_inside) {
            return Err(mismatch());
        }
        // All dimensions after the last one that is cut are whole: their elements follow each other.
        let last = dims().rposition(|((len, _), whole)| len != whole).unwrap_or(0);
        let inner: u64 = shape.iter().skip(last).product();
        if shape.contains(&0) {
            return Ok(Runs { starts: Vec::new(), len: 0 });
        }
        let bits = |elements: u64| elements * u64::from(dtype.bits());
        let (mut starts, mut stride) = (vec![0], whole.iter().product::<u64>());
        for (dim, ((&len, &offset), &whole)) in dims().enumerate().take(last + 1) {
            stride /= whole;
            let range = if dim == last { offset..offset + 1 } else { offset..offset + len };
            let next = |&start: &u64| range.clone().map(move |i| start + i * stride);
            starts = starts.iter().flat_map(next).collect();
        }
        if !starts.iter().all(|&start| bits(start).is_multiple_of(8)) || !bits(inner).is_multiple_of(8) {
            return Err(mismatch());
        }
        let starts = starts.iter().map(|&start| in_memory(bits(start) / 8)).collect();
        Ok(Runs { starts, len: in_memory(bits(inner) / 8) })
    }
}

/// Bytes of a shard in a larger tensor.
struct Runs {
    /// First byte of each run.
    starts: Vec<usize>,
    /// Bytes of each run.
    len: usize,
}

fn mismatch() -> Error {
    Error::input(InputErrorKind::Mismatch { what: "shard and tensor" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(global_shape: &[u64], offsets: &[u64]) -> Shard {
        Shard { global_shape: global_shape.to_vec(), offsets: offsets.to_vec() }
    }

    fn is_mismatch(e: Error) -> bool {
        e.to_string() == mismatch().to_string()
    }

    #[test]
    fn a_shard_is_within_shards_of_its_own_tensor_only() {
        let outer = shard(&[8, 6], &[4, 0]);
        let place = shard(&[8, 6], &[5, 2]).within(&[2, 4], &outer, &[4, 6]);
        assert_eq!(place, Some(shard(&[4, 6], &[1, 2])));
        for (own, shape) in [
            // Of another tensor; and of other ranks.
            (shard(&[8, 7], &[5, 2]), &[2, 4][..]),
            (shard(&[8, 6], &[5, 2]), &[2]),
            (shard(&[8, 6], &[5]), &[2, 4]),
            // Before the outer shard, behind it, and far behind it.
            (shard(&[8, 6], &[3, 2]), &[2, 4]),
            (shard(&[8, 6], &[7, 2]), &[2, 4]),
            (shard(&[8, 6], &[5, u64::MAX]), &[2, 4]),
        ] {
            assert_eq!(own.within(shape, &outer, &[4, 6]), None, "{own:?} {shape:?}");
        }
    }

    #[test]
    fn elements_that_follow_each_other_are_cut_without_a_copy() {
        let data: Vec<u8> = (0..48).collect();
        let whole = TensorView::new(Dtype::U8, &[8, 6], &data).unwrap();
        let rows = shard(&[8, 6], &[2, 0]).cut(&[3, 6], whole).unwrap();
        assert!(matches!(rows, Cow::Borrowed(_)));
        assert_eq!(*rows, data[12..30]);
        let columns = shard(&[8, 6], &[0, 4]).cut(&[8, 1], whole).unwrap();
        assert_eq!(columns, Vec::from_iter((4..48).step_by(6)));
    }

    #[test]
    fn shards_that_are_not_inside_are_refused_and_nothing_is_written() {
        let refused = |shard: &Shard, shape: &[u64], whole: &[u64], dtype: Dtype| {
            let count = |shape: &[u64]| elements(shape).and_then(|n| dtype.bytes_for(n)).unwrap();
            let mut data = vec![7; count(whole) as usize];
            let cut = shard.cut(shape, TensorView::new(dtype, whole, &data).unwrap()).map(drop);
            let part = vec![0; count(shape) as usize];
            let pasted = shard.paste(TensorView::new(dtype, shape, &part).unwrap(), &mut data);
            assert!(pasted.is_ok() || data.iter().all(|&byte| byte == 7));
            [cut, pasted].map(|result| result.is_err_and(is_mismatch))
        };
        let tall: [u64; 2] = [8, 6];
        assert_eq!(refused(&shard(&tall, &[2, 1]), &[3, 4], &tall, Dtype::U8), [false; 2]);
        // Empty shards are inside.
        assert_eq!(refused(&shard(&tall, &[2, 1]), &[0, 4], &tall, Dtype::U8), [false; 2]);
        for (offsets, shape) in [
            (&[6, 1][..], &[3, 4][..]),
            (&[2, 3], &[3, 4]),
            (&[6, 3], &[3, 4]),
            (&[u64::MAX, 1], &[3, 4]),
            (&[2], &[3, 4]),
            (&[2, 1, 0], &[3, 4]),
            (&[2, 1], &[3]),
        ] {
            let found = refused(&shard(&tall, offsets), shape, &tall, Dtype::U8);
            assert_eq!(found, [true; 2], "{offsets:?} {shape:?}");
        }
        // A tensor of another shape, whose buffer has the same length; and a buffer of another length.
        assert_eq!(refused(&shard(&tall, &[2, 1]), &[3, 4], &[6, 8], Dtype::U8), [true, false]);
        let part = [0; 12];
        let part = TensorView::new(Dtype::U8, &[3, 4], &part).unwrap();
        for len in [47, 49] {
            assert!(shard(&tall, &[2, 1]).paste(part, &mut vec![0; len]).is_err_and(is_mismatch));
        }
        // The first row begins at a byte, the second inside one.
        assert_eq!(refused(&shard(&[2, 3], &[0, 0]), &[2, 2], &[2, 3], Dtype::F4E2M1), [true; 2]);
        assert_eq!(refused(&shard(&[2, 4], &[0, 0]), &[2, 2], &[2, 4], Dtype::F4E2M1), [false; 2]);
    }
}
