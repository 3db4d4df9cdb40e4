//! Sum digests of a manifest's tensors (spec, section 6.1).

use crate::digest::{SumChange, SumDigest};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::TensorInfo;
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

    /// Returns the share of `new`, given that of `old`, in time that depends on the number of changed
    /// elements if they are few.
    ///
    /// # Errors
    /// [`Error::Input`] if one of them has another type or shape.
    pub fn sum_after(&self, share: SumDigest, old: TensorView<'_>, new: TensorView<'_>) -> Result<SumDigest> {
        if !changes_few(old.data(), new.data()) {
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

/// Whether at most one in 16 words of a sample differs: then a sum of changes takes less time than a sum of
/// all elements.
fn changes_few(old: &[u8], new: &[u8]) -> bool {
    const WINDOW: usize = 1 << 10;
    let windows = old.chunks(WINDOW).zip(new.chunks(WINDOW));
    let (mut words, mut changed) = (0, 0);
    for (old, new) in windows.step_by((old.len() / WINDOW / 64).max(1)) {
        let pairs = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0);
        words += pairs.len();
        changed += pairs.filter(|(old, new)| old != new).count();
    }
    16 * changed <= words
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
            assert_eq!(changes_few(old.data(), new.data()), every > 32, "{every}");
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
