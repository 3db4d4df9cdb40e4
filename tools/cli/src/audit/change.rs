//! Elements that change from one version of a tensor to the next, counted.

use crate::fail::{InOutput, Result};
use gcodec::TensorView;
use gcodec::internal::element::{bits_at, ulp_diff};
use rayon::prelude::*;
use serde::Serialize;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::AddAssign;
use tempfile::SpooledTempFile;

/// Classes of distances: 1, 2, 3 to 4, 5 to 8, 9 to 16 and so on, each to a power of two.
pub(super) const CLASSES: usize = 64;
/// Elements of a word of [`History`].
const WORD: usize = 64;
const WORD_BYTES: usize = 8;
/// Words that one thread compares at a time.
const WORDS: usize = 1024;
/// Bytes of a chunk of a [`History`]. The unit tests have small ones, to cut more.
const CHUNK: usize = if cfg!(test) { 32 } else { 1 << 20 };

/// Counts of the elements that changed in one step, or in several.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Change {
    /// Elements that were compared.
    pub(super) elements: u64,
    /// Elements whose bits changed.
    pub(super) changed: u64,
    /// Changed elements that changed in an earlier step, too.
    pub(super) again: u64,
    /// Changed elements that changed in the step before, too.
    pub(super) again_at_once: u64,
    /// Changed elements by their distance in units in the last place: 1, 2, 3 to 4, 5 to 8, ..
    #[serde(serialize_with = "until_last")]
    pub(super) ulps: [u64; CLASSES],
    /// Bytes of the step's blocks; null for files of tensors.
    pub(super) bytes: Option<f64>,
    /// Whether these are shares of blocks that span other tensors, too: divided by changed elements.
    pub(super) apportioned: bool,
}

impl Default for Change {
    fn default() -> Self {
        let (elements, changed, again, again_at_once) = (0, 0, 0, 0);
        let ulps = [0; CLASSES];
        Self { elements, changed, again, again_at_once, ulps, bytes: None, apportioned: false }
    }
}

impl AddAssign<&Self> for Change {
    fn add_assign(&mut self, other: &Self) {
        self.elements += other.elements;
        self.changed += other.changed;
        self.again += other.again;
        self.again_at_once += other.again_at_once;
        self.ulps.iter_mut().zip(&other.ulps).for_each(|(sum, count)| *sum += count);
        self.bytes = match (self.bytes, other.bytes) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.apportioned |= other.apportioned;
    }
}

impl Change {
    /// Returns the share of elements that changed.
    pub(super) fn density(&self) -> f64 {
        self.changed as f64 / self.elements.max(1) as f64
    }

    /// Returns the share of the changed elements that `count` is; `None` if none changed.
    pub(super) fn share(&self, count: u64) -> Option<f64> {
        (self.changed > 0).then(|| count as f64 / self.changed as f64)
    }

    /// Returns the bits of the blocks for each element that changed.
    pub(super) fn bits_per_change(&self) -> Option<f64> {
        self.bytes.filter(|_| self.changed > 0).map(|bytes| bytes * 8.0 / self.changed as f64)
    }
}

/// Writes the classes up to the last that is not empty.
fn until_last<S: serde::Serializer>(ulps: &[u64; CLASSES], serializer: S) -> Result<S::Ok, S::Error> {
    let len = ulps.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    ulps[..len].serialize(serializer)
}

/// The bits of all histories: few in memory, others in a temporary file. They are a quarter of a byte for
/// each element, and weights need not fit in memory.
pub(super) struct Bits {
    file: SpooledTempFile,
    len: u64,
}

impl Default for Bits {
    fn default() -> Self {
        Self { file: tempfile::spooled_tempfile(CHUNK), len: 0 }
    }
}

impl Bits {
    /// Calls `change` with bytes at an offset, and keeps what it makes of them.
    fn change<T>(&mut self, at: u64, bytes: &mut [u8], change: impl FnOnce(&mut [u8]) -> T) -> io::Result<T> {
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(bytes)?;
        let result = change(bytes);
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(bytes)?;
        Ok(result)
    }
}

/// Elements of a tensor that changed before, a bit for each: in the step before, and in any. A chunk has
/// words of the one, and as many of the other.
#[derive(Debug)]
pub(super) struct History {
    /// Offset of the first chunk.
    at: u64,
    /// Whether nothing changed in the step before, whatever the bits say.
    rested: bool,
    ever: u64,
}

impl History {
    /// Returns the history of a tensor that has not changed yet.
    pub(super) fn new(bits: &mut Bits, elements: u64) -> Result<Self> {
        let at = bits.len;
        bits.len += 2 * WORD_BYTES as u64 * elements.div_ceil(WORD as u64);
        bits.file.set_len(bits.len).in_output(&std::env::temp_dir())?;
        Ok(Self { at, rested: false, ever: 0 })
    }

    /// Returns the number of elements that changed at least once.
    pub(super) fn ever(&self) -> u64 {
        self.ever
    }

    /// Compares two versions of a tensor of one type and shape, and records what changed.
    pub(super) fn compare(
        &mut self,
        bits: &mut Bits,
        old: &TensorView<'_>,
        new: &TensorView<'_>,
    ) -> Result<Change> {
        let (bytes, rested) = (2 * WORD_BYTES * old.elements().div_ceil(WORD as u64) as usize, self.rested);
        let mut sum = Change { elements: old.elements(), ..Change::default() };
        let mut chunk = vec![0; bytes.min(CHUNK)];
        for start in (0..bytes).step_by(CHUNK) {
            let chunk = &mut chunk[..(bytes - start).min(CHUNK)];
            let compared = bits.change(self.at + start as u64, chunk, |chunk| {
                let (last, any) = chunk.split_at_mut(chunk.len() / 2);
                if rested {
                    last.fill(0);
                }
                compare_words(old, new, start / (2 * WORD_BYTES), last, any)
            });
            sum += &compared.in_output(&std::env::temp_dir())?;
        }
        self.ever += sum.changed - sum.again;
        self.rested = false;
        Ok(sum)
    }

    /// Records a step in which nothing changed.
    pub(super) fn rest(&mut self) {
        self.rested = true;
    }
}

/// Compares the elements of consecutive words, and records what changed.
fn compare_words(
    old: &TensorView<'_>,
    new: &TensorView<'_>,
    first: usize,
    last: &mut [u8],
    any: &mut [u8],
) -> Change {
    let (last, any) = (last.as_chunks_mut::<WORD_BYTES>().0, any.as_chunks_mut::<WORD_BYTES>().0);
    let parts = last.par_chunks_mut(WORDS).zip(any.par_chunks_mut(WORDS)).enumerate();
    let changes = parts.map(|(number, (last, any))| {
        let mut change = Change::default();
        for (i, (last, any)) in last.iter_mut().zip(any).enumerate() {
            let word = compare_word(old, new, first + number * WORDS + i, &mut change.ulps);
            let before = u64::from_le_bytes(*any);
            change.changed += u64::from(word.count_ones());
            change.again += u64::from((word & before).count_ones());
            change.again_at_once += u64::from((word & u64::from_le_bytes(*last)).count_ones());
            *last = word.to_le_bytes();
            *any = (before | word).to_le_bytes();
        }
        change
    });
    changes.reduce(Change::default, |mut a, b| {
        a += &b;
        a
    })
}

/// Compares the 64 elements of a word; returns a bit for each that changed.
fn compare_word(old: &TensorView<'_>, new: &TensorView<'_>, word: usize, ulps: &mut [u64; CLASSES]) -> u64 {
    let dtype = old.dtype();
    let bytes = WORD * dtype.bits() as usize / 8;
    let range = word * bytes..((word + 1) * bytes).min(old.data().len());
    if old.data()[range.clone()] == new.data()[range] {
        return 0;
    }
    let first = (word * WORD) as u64;
    let mut changed = 0;
    for i in 0..(old.elements() - first).min(WORD as u64) {
        let bits = bits_at(dtype, old.data(), first + i).zip(bits_at(dtype, new.data(), first + i));
        if let Some((a, b)) = bits.filter(|(a, b)| a != b) {
            changed |= 1 << i;
            ulps[class(ulp_diff(dtype, a, b).unsigned_abs())] += 1;
        }
    }
    changed
}

/// Returns the class of a distance of at least 1.
fn class(distance: u64) -> usize {
    (u64::BITS - distance.saturating_sub(1).leading_zeros()).min(CLASSES as u32 - 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcodec::{Dtype, TensorBuf};

    #[test]
    fn distances_have_classes() {
        let classes = [1, 2, 3, 4, 5, 8, 9, 16, 17, u64::MAX].map(class);
        assert_eq!(classes, [0, 1, 2, 2, 3, 3, 4, 4, 5, 63]);
    }

    #[test]
    fn changes_are_counted_with_what_changed_before() {
        // Three versions of 200 integers: 0 and 199 change first, then 199 and 70.
        let version = |changes: &[(usize, i16)]| {
            let mut values = vec![0i16; 200];
            changes.iter().for_each(|&(i, value)| values[i] = value);
            let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            TensorBuf::new(Dtype::I16, vec![200], data).unwrap()
        };
        let versions = [version(&[]), version(&[(0, 1), (199, -9)]), version(&[(0, 1), (199, 0), (70, 4)])];
        let mut bits = Bits::default();
        // Another tensor has the first bits.
        History::new(&mut bits, 100).unwrap();
        let mut history = History::new(&mut bits, 200).unwrap();
        let mut compare = |history: &mut History, old: usize, new: usize| {
            history.compare(&mut bits, &versions[old].view(), &versions[new].view()).unwrap()
        };
        let one = compare(&mut history, 0, 1);
        assert_eq!((one.elements, one.changed, one.again, one.ulps[0], one.ulps[4]), (200, 2, 0, 1, 1));
        let two = compare(&mut history, 1, 2);
        assert_eq!((two.changed, two.again, two.again_at_once, two.ulps[2], two.ulps[4]), (2, 1, 1, 1, 1));
        assert_eq!(history.ever(), 3);
        history.rest();
        let three = compare(&mut history, 2, 1);
        assert_eq!((three.changed, three.again, three.again_at_once), (2, 2, 0));
    }

    #[test]
    fn every_type_is_compared_by_its_bits() {
        for dtype in Dtype::ALL {
            let len = 65 * dtype.bits() as usize / 8 + usize::from(dtype.bits() == 4);
            let elements = if dtype.bits() == 4 { 66 } else { 65 };
            let a = TensorBuf::new(dtype, vec![elements], vec![0; len]).unwrap();
            let mut b = a.clone();
            // One in the last place of the last element.
            let at = (len - dtype.bits().div_ceil(8) as usize).min(len - 1);
            b.data_mut()[at] ^= if dtype.bits() == 4 { 0x10 } else { 1 };
            let mut bits = Bits::default();
            let mut history = History::new(&mut bits, elements).unwrap();
            let change = history.compare(&mut bits, &a.view(), &b.view()).unwrap();
            assert_eq!((change.changed, change.ulps[0]), (1, 1), "{dtype}");
        }
    }
}
