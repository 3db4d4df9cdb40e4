//! Sum digests of a manifest's tensors (spec, section 6.1).

use crate::arch::widest;
use crate::digest::{SumChange, SumDigest};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::TensorInfo;
use crate::limits::in_memory;
use crate::tensor::TensorView;

impl TensorInfo {
    /// Returns the share of this tensor, or of its shard, in a sum over several tensors.
    ///
    /// # Errors
    /// [`Error::Input`] if `tensor` has another type or shape.
    pub fn sum_digest(&self, tensor: TensorView<'_>) -> Result<SumDigest> {
        if self.dtype != tensor.dtype() || self.shape != tensor.shape() {
            let what = "tensor and manifest";
            return Err(Error::input(InputErrorKind::Mismatch { what }));
        }
        Ok(self.weighted(SumDigest::of_shard(tensor, &self.offsets())?))
    }

    /// Returns the share of some consecutive elements of this tensor, in row-major order from element
    /// `first` on: large tensors come in pieces. The shares of all pieces add up to the tensor's.
    ///
    /// # Errors
    /// [`Error::Input`] if the elements are not of the tensor, or of a type of less than a byte and not all
    /// of the tensor.
    pub fn sum_of_elements(&self, first: u64, data: &[u8]) -> Result<SumDigest> {
        let mismatch = || Error::input(InputErrorKind::Mismatch { what: "elements and manifest" });
        if data.len() as u64 == self.bytes() && first == 0 {
            return self.sum_digest(TensorView::new(self.dtype, &self.shape, data)?);
        }
        let width = in_memory(u64::from(self.dtype.bits()) / 8);
        if width == 0 || !data.len().is_multiple_of(width) {
            return Err(mismatch());
        }
        let len = (data.len() / width) as u64;
        if first.checked_add(len).is_none_or(|end| end > self.elements()) {
            return Err(mismatch());
        }
        let mut sum = SumDigest::ZERO;
        let mut rest = data;
        for Block { shape, at } in blocks(&self.shape, first, len) {
            let count = crate::tensor::elements(&shape).map_or(0, in_memory);
            let own = rest.split_off(..count * width).ok_or_else(mismatch)?;
            let offsets: Vec<u64> = self.offsets().iter().zip(&at).map(|(a, b)| a.wrapping_add(*b)).collect();
            sum += SumDigest::of_shard(TensorView::new(self.dtype, &shape, own)?, &offsets)?;
        }
        Ok(self.weighted(sum))
    }

    /// Returns the name and the shape of the whole tensor: this one's, unless it is a shard.
    pub fn whole(&self) -> (&str, &[u64]) {
        match &self.shard {
            Some(shard) => (self.name_of_whole(), &shard.global_shape),
            None => (&self.name, &self.shape),
        }
    }

    /// Returns the share of `new`, given that of `old`, in time that depends on the number of changed
    /// elements if they are few.
    ///
    /// # Errors
    /// [`Error::Input`] if one of them has another type or shape.
    pub fn sum_after(&self, share: SumDigest, old: TensorView<'_>, new: TensorView<'_>) -> Result<SumDigest> {
        if !changes_at_most(few(self.shape.last()), old.data(), new.data()) {
            return self.sum_digest(new);
        }
        let mut change = self.sum_change()?;
        change.add_difference(old, new)?;
        Ok(share + self.weighted(change.finish()))
    }

    /// Returns the share of a digest of this tensor, or of a change of it, in a sum over several tensors.
    #[must_use]
    pub fn weighted(&self, digest: SumDigest) -> SumDigest {
        let shape = self.shard.as_ref().map_or(&self.shape, |shard| &shard.global_shape);
        digest.weighted(self.name_of_whole(), self.dtype, shape)
    }

    /// Returns no change of the tensor's elements, to which changes can be added.
    ///
    /// # Errors
    /// [`Error::Input`] if the shape is too large, which no [`Manifest`](crate::frame::Manifest) accepts.
    pub fn sum_change(&self) -> Result<SumChange> {
        SumChange::new(self.dtype, &self.shape, &self.offsets())
    }

    fn offsets(&self) -> Vec<u64> {
        self.shard.as_ref().map_or_else(|| vec![0; self.shape.len()], |shard| shard.offsets.clone())
    }

    /// Returns the name without an ending that says which part of the whole tensor a shard is, as in
    /// `w[:,4:8]`.
    fn name_of_whole(&self) -> &str {
        let Some(shard) = &self.shard else { return &self.name };
        let ending = self.name.strip_suffix(']').and_then(|name| name.rsplit_once('['));
        let Some((name, ranges)) = ending.filter(|(name, _)| !name.is_empty()) else { return &self.name };
        let mut dims = self.shape.iter().zip(&shard.global_shape).zip(&shard.offsets);
        let is_own = ranges.split(',').all(|range| {
            dims.next().is_some_and(|((len, whole), first)| match range {
                ":" => len == whole,
                _ => first.checked_add(*len).is_some_and(|end| range == format!("{first}:{end}")),
            })
        });
        if is_own { name } else { &self.name }
    }
}

/// A block of consecutive elements: its shape, and the indices of its first element.
struct Block {
    shape: Vec<u64>,
    at: Vec<u64>,
}

/// Divides `len` consecutive elements from `first` on into blocks, in order. At most two for each axis.
///
/// For example, elements 3 to 17 of a tensor of 4 x 5 are the end of row 0, rows 1 and 2, and the beginning
/// of row 3.
fn blocks(shape: &[u64], first: u64, len: u64) -> Vec<Block> {
    let [_, inner @ ..] = shape else {
        return vec![Block { shape: Vec::new(), at: Vec::new() }];
    };
    let slab: u64 = inner.iter().product::<u64>().max(1);
    let mut blocks = Vec::new();
    let (mut at, end) = (first, first + len);
    while at < end {
        let (index, skipped) = (at / slab, at % slab);
        let slabs = (end - at) / slab;
        if skipped == 0 && slabs > 0 {
            let zeros = inner.iter().map(|_| 0);
            let shape = std::iter::once(slabs).chain(inner.iter().copied()).collect();
            blocks.push(Block { shape, at: std::iter::once(index).chain(zeros).collect() });
            at += slabs * slab;
        } else {
            let part = (slab - skipped).min(end - at);
            blocks.extend(self::blocks(inner, skipped, part).into_iter().map(|mut block| {
                block.shape.insert(0, 1);
                block.at.insert(0, index);
                block
            }));
            at += part;
        }
    }
    blocks
}

/// Returns `n` for the share 1/n of changed words up to which a sum of changes takes less time than a sum of
/// all elements of rows of this length.
///
/// The sum of changes has to read both tensors, and takes about 3.3 ns for each: 12 GB/s with 0.1 % and
/// 5 with 1 %. Wide instructions sum 16-bit words at 8 to 19 GB/s, those of rows of less than 32 and without
/// such instructions at 2 to 6 (`cargo bench --bench speed -- --only digest`).
fn few(row: Option<&u64>) -> usize {
    let is_fast = !widest().is_plain() && row.is_some_and(|&len| len >= 32);
    if is_fast { 512 } else { 16 }
}

/// Whether at most one in `n` words of a sample differs.
fn changes_at_most(n: usize, old: &[u8], new: &[u8]) -> bool {
    let (changed, words) = sample(old, new, 64);
    n * changed <= words
}

/// Compares a sample of about this many KiB. Returns the number of different words of 16 bits, and of all.
pub(crate) fn sample(old: &[u8], new: &[u8], windows: usize) -> (usize, usize) {
    const WINDOW: usize = 1 << 10;
    let all = old.chunks(WINDOW).zip(new.chunks(WINDOW));
    let (mut words, mut changed) = (0, 0);
    for (old, new) in all.step_by((old.len() / WINDOW / windows.max(1)).max(1)) {
        let pairs = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0);
        words += pairs.len();
        changed += pairs.filter(|(old, new)| old != new).count();
    }
    (changed, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Shard;
    use crate::tensor::{Dtype, TensorBuf};

    #[test]
    fn a_shards_name_counts_without_its_place() {
        let named = |name: &str, shape: &[u64], offsets: &[u64]| {
            let mut info = TensorInfo::new(name, Dtype::F32, shape);
            info.shard = Some(Shard { global_shape: vec![8, 6], offsets: offsets.to_vec() });
            info.name_of_whole().to_owned()
        };
        assert_eq!(named("w[:,2:5]", &[8, 3], &[0, 2]), "w");
        assert_eq!(named("w[4:8]", &[4, 6], &[4, 0]), "w");
        assert_eq!(named("w[4:8,0:6]", &[4, 6], &[4, 0]), "w");
        assert_eq!(named("p['w'][4:8,:]", &[4, 6], &[4, 0]), "p['w']");
        for other in
            ["w", "w[0:4]", "w[:]", "w[4:8,:,:]", "w[04:8]", "w[4:8] ", "[4:8]", "p['w']", "w[]", "w]"]
        {
            assert_eq!(named(other, &[4, 6], &[4, 0]), other);
        }
        // Only a shard has a place.
        assert_eq!(TensorInfo::new("w[0:4]", Dtype::F32, [4]).name_of_whole(), "w[0:4]");
    }

    #[test]
    fn shares_of_pieces_add_up() {
        let data: Vec<u8> = (0..2 * 120u32).map(|i| (i * 37) as u8).collect();
        for shape in [&[120][..], &[10, 12], &[4, 5, 6], &[2, 3, 4, 5], &[5, 1, 24], &[1, 120]] {
            let mut info = TensorInfo::new("w", Dtype::Bf16, shape);
            for sharded in [false, true] {
                if sharded {
                    let global_shape = shape.iter().map(|d| 2 * d).collect();
                    info.shard = Some(Shard { global_shape, offsets: shape.to_vec() });
                }
                let whole = info.sum_digest(TensorView::new(Dtype::Bf16, shape, &data).unwrap()).unwrap();
                for (first, second) in [(0, 1), (3, 77), (24, 24), (59, 120), (60, 61), (1, 119)] {
                    let pieces = [0..first, first..second, second..120];
                    let share = |piece: std::ops::Range<usize>| {
                        info.sum_of_elements(piece.start as u64, &data[2 * piece.start..2 * piece.end])
                    };
                    let sum: SumDigest = pieces.map(|piece| share(piece).unwrap()).into_iter().sum();
                    assert_eq!(sum, whole, "{shape:?} {first} {second} {sharded}");
                }
            }
        }
        let info = TensorInfo::new("w", Dtype::Bf16, [10, 12]);
        for (first, bytes) in [(0, 242), (119, 4), (u64::MAX, 2), (0, 3)] {
            assert!(info.sum_of_elements(first, &vec![0; bytes]).is_err(), "{first} {bytes}");
        }
        assert_eq!(info.sum_of_elements(120, &[]).unwrap(), SumDigest::ZERO);
        let bytes = TensorInfo::new("w", Dtype::U8, [3]);
        let [whole, first, last] = [(0, &[1, 2, 3][..]), (0, &[1]), (1, &[2, 3])]
            .map(|(at, data)| bytes.sum_of_elements(at, data).unwrap());
        assert_eq!(first + last, whole);
        let nibbles = TensorInfo::new("w", Dtype::F4E2M1, [3]);
        assert!(nibbles.sum_of_elements(0, &[1]).is_err());
        let all = TensorView::new(Dtype::F4E2M1, &[3], &[1, 2]).unwrap();
        assert_eq!(nibbles.sum_of_elements(0, &[1, 2]).unwrap(), nibbles.sum_digest(all).unwrap());
        let (scalar, one) = (TensorInfo::new("s", Dtype::F32, []), [0, 0, 0x80, 0x3f]);
        let view = TensorView::new(Dtype::F32, &[], &one).unwrap();
        assert_eq!(scalar.sum_of_elements(0, &one).unwrap(), scalar.sum_digest(view).unwrap());
        let none = TensorInfo::new("n", Dtype::F32, [0, 3]);
        assert_eq!(none.sum_of_elements(0, &[]).unwrap(), SumDigest::ZERO);
    }

    #[test]
    fn a_share_follows_few_changes_and_many() {
        let info = TensorInfo::new("w", Dtype::Bf16, [64, 640]);
        let data: Vec<u8> = (0..2 * 64 * 640u64).map(|i| (i * 7 / 3) as u8).collect();
        let tensor = |data: &[u8]| TensorBuf::new(Dtype::Bf16, vec![64, 640], data.to_vec()).unwrap();
        let old = tensor(&data);
        let share = info.sum_digest(old.view()).unwrap();
        for every in [1, 2, 7, 1000, 70_000] {
            let mut data = data.clone();
            data.iter_mut().step_by(every).for_each(|byte| *byte ^= 0x40);
            let new = tensor(&data);
            assert_eq!(changes_at_most(16, old.data(), new.data()), every > 32, "{every}");
            let after = info.sum_after(share, old.view(), new.view()).unwrap();
            assert_eq!(after, info.sum_digest(new.view()).unwrap(), "{every}");
        }
        let other = TensorBuf::from_f32(vec![1], &[1.0]).unwrap();
        assert!(info.sum_after(share, old.view(), other.view()).is_err());
        assert!(info.sum_after(share, other.view(), other.view()).is_err());
    }

    #[test]
    fn shares_of_shards_add_up_to_the_tensors() {
        let values: Vec<f32> = (0..48).map(|i| i as f32 / 7.0 - 3.0).collect();
        let whole = TensorBuf::from_f32(vec![8, 6], &values).unwrap();
        let info = TensorInfo::new("w", Dtype::F32, [8, 6]);
        let expected = info.sum_digest(whole.view()).unwrap();
        for (dim, parts) in [(0, 4), (1, 3), (1, 1)] {
            let share = |part: TensorInfo| {
                let data = part.shard.as_ref().unwrap().cut(&part.shape, whole.view()).unwrap();
                let view = TensorView::new(Dtype::F32, &part.shape, &data).unwrap();
                part.sum_digest(view).unwrap()
            };
            let sum: SumDigest = info.shards(dim, parts).unwrap().into_iter().map(share).sum();
            assert_eq!(sum, expected, "{dim} {parts}");
        }
        let mut scalar = TensorInfo::new("s", Dtype::F32, []);
        scalar.shard = Some(Shard { global_shape: vec![], offsets: vec![] });
        let one = TensorBuf::from_f32(vec![], &[1.5]).unwrap();
        let plain = TensorInfo::new("s", Dtype::F32, []).sum_digest(one.view()).unwrap();
        assert_eq!(scalar.sum_digest(one.view()).unwrap(), plain);
        assert!(info.sum_digest(one.view()).is_err());
    }
}
