//! A histogram of exponents.

use crate::arch::{self, Kernel};

/// Number of finite nonzero elements by sign and exponent.
///
/// Exponents are those of binary32: the number `e` counts magnitudes from `2^(e-127)` up to `2^(e-126)`; 0
/// counts all smaller ones, and 254 all larger ones. Only exponents that occur take memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exponents {
    /// Keys, ascending, with their counts.
    counts: Vec<(u16, u64)>,
}

/// Added to the exponent of a negative number.
const NEGATIVE: u16 = 256;
/// Number of keys.
pub(super) const KEYS: usize = 512;
/// Exponent of NaN and of infinities, which are not counted.
const SPECIAL: i32 = 255;

/// Returns the key of a number: its binary32 exponent, and 256 more if it is negative.
#[inline(always)]
pub(super) fn key(value: f64) -> u16 {
    let bits = value.to_bits();
    let exponent = (bits >> 52) as i32 & 0x7ff;
    let clamped = (exponent - 1023 + 127).clamp(0, SPECIAL - 1);
    let exponent = if exponent == 0x7ff { SPECIAL } else { clamped };
    exponent as u16 | ((bits >> 55) as u16 & NEGATIVE)
}

/// Whether numbers with this key are finite.
fn is_finite(key: u16) -> bool {
    i32::from(key % NEGATIVE) != SPECIAL
}

impl Exponents {
    /// Returns the number of elements with this sign and exponent.
    pub fn count(&self, negative: bool, exponent: u8) -> u64 {
        let key = u16::from(exponent) | if negative { NEGATIVE } else { 0 };
        self.counts.binary_search_by_key(&key, |&(key, _)| key).map_or(0, |at| self.counts[at].1)
    }

    /// Returns the exponents that occur, first of positive, then of negative elements, each ascending:
    /// whether it is negative, the exponent, the count.
    pub fn iter(&self) -> impl Iterator<Item = (bool, u8, u64)> {
        self.counts.iter().map(|&(key, count)| (key >= NEGATIVE, (key % NEGATIVE) as u8, count))
    }

    /// Returns the counts of both signs from the smallest exponent that occurs to the largest, and the
    /// smallest.
    pub fn range(&self) -> (u8, Vec<u64>) {
        let Some(low) = self.iter().map(|(_, exponent, _)| exponent).min() else { return (0, Vec::new()) };
        let high = self.iter().map(|(_, exponent, _)| exponent).max().unwrap_or(low);
        let mut counts = vec![0; usize::from(high - low) + 1];
        self.iter().for_each(|(_, exponent, count)| counts[usize::from(exponent - low)] += count);
        (low, counts)
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let mut merged = Vec::with_capacity(self.counts.len().max(other.counts.len()));
        let (mut a, mut b) = (self.counts.iter().peekable(), other.counts.iter().peekable());
        while let Some(&&(key, count)) = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if x.0 > y.0 => b.peek(),
            (None, _) => b.peek(),
            _ => a.peek(),
        } {
            let mine = a.next_if(|x| x.0 == key).map_or(0, |x| x.1);
            let others = b.next_if(|y| y.0 == key).map_or(0, |y| y.1);
            debug_assert_eq!(count, if mine > 0 { mine } else { others });
            merged.push((key, mine + others));
        }
        self.counts = merged;
    }
}

/// Counts keys: few of them in a list, many in tables.
pub(super) struct Counter {
    few: Vec<u16>,
    tables: Option<Box<Tables>>,
}

/// Counts of keys. Neighbours often have one exponent: with several tables in turn, they need not wait for
/// each other's counts.
type Tables = [[u64; KEYS]; 4];

/// Most keys in the list.
const FEW: usize = 192;
/// Keys that are found together.
const TOGETHER: usize = 256;
/// Key of zeros, which are not counted: that of positive NaN.
const UNCOUNTED: u16 = SPECIAL as u16;

/// Writes the key of each value. Both have the same length.
struct Keys<'a>(&'a [f64], &'a mut [u16]);

impl Kernel for Keys<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let key = |x: f64| if x == 0.0 { UNCOUNTED } else { key(x) };
        self.0.iter().zip(self.1).for_each(|(x, to)| *to = key(*x));
    }
}

impl Counter {
    pub(super) fn new() -> Self {
        Self { few: Vec::new(), tables: None }
    }

    /// Counts the keys of numbers that are finite and not zero.
    pub(super) fn add(&mut self, values: &[f64]) {
        if self.tables.is_none() && self.few.len() + values.len() <= FEW {
            self.few.extend(values.iter().filter(|v| **v != 0.0).map(|v| key(*v)));
            return;
        }
        let tables = self.tables.get_or_insert_with(|| Box::new([[0; KEYS]; 4]));
        let mut count = |keys: &[u16]| {
            let rows = keys.as_chunks::<4>();
            for row in rows.0 {
                for (table, key) in tables.iter_mut().zip(row) {
                    table[usize::from(*key) % KEYS] += 1;
                }
            }
            rows.1.iter().for_each(|key| tables[0][usize::from(*key) % KEYS] += 1);
        };
        count(&self.few);
        self.few.clear();
        let mut keys = [0; TOGETHER];
        for values in values.chunks(TOGETHER) {
            let keys = &mut keys[..values.len()];
            arch::run(Keys(values, keys));
            count(keys);
        }
    }

    pub(super) fn finish(mut self) -> Exponents {
        let mut counts: Vec<(u16, u64)> = match &self.tables {
            Some(tables) => {
                let sum = |key: u16| tables.iter().map(|table| table[usize::from(key)]).sum();
                (0..KEYS as u16).map(|key| (key, sum(key))).filter(|&(_, count)| count > 0).collect()
            }
            None => {
                self.few.sort_unstable();
                self.few.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u64)).collect()
            }
        };
        counts.retain(|&(key, _)| is_finite(key));
        counts.shrink_to_fit();
        Exponents { counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_top_bits_of_binary32() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let value = f32::from_bits(bits);
            // The exponent 0 counts everything below the smallest normal number.
            assert_eq!(key(value.into()), (bits >> 23) as u16, "{bits:#x}");
        }
        assert_eq!([1e300, -1e300, 1e-300, f64::NEG_INFINITY].map(key), [254, 510, 0, 511]);
    }

    #[test]
    fn few_and_many_are_counted_alike() {
        let values: Vec<f64> = (0..1000).map(|i| f64::from(i % 37 - 18) * 0.37).collect();
        let mut all = Counter::new();
        all.add(&values);
        let all = all.finish();
        let mut merged = Exponents::default();
        for part in values.chunks(50) {
            let mut counter = Counter::new();
            counter.add(part);
            merged.merge(&counter.finish());
        }
        assert_eq!(all, merged);
        let zeros = values.iter().filter(|v| **v == 0.0).count() as u64;
        assert_eq!(all.iter().map(|(.., count)| count).sum::<u64>(), 1000 - zeros);
        let (low, counts) = all.range();
        assert_eq!(counts[0], all.count(false, low) + all.count(true, low));
        let mut special = Counter::new();
        special.add(&[f64::NAN, f64::INFINITY, -0.0, -1.0]);
        assert_eq!(special.finish().iter().collect::<Vec<_>>(), [(true, 127, 1)]);
    }

    #[test]
    fn every_number_is_counted_once_however_it_is_cut() {
        let mut values: Vec<f64> = (0..600).map(|i| f64::from(i % 7 + 1)).collect();
        // These exponents occur once.
        (values[0], values[1], values[350], values[599]) = (-1e-300, 1e-300, -1e-30, 1e30);
        let mut expected = Exponents::default();
        for value in &values {
            let mut one = Counter::new();
            one.add(&[*value]);
            expected.merge(&one.finish());
        }
        assert_eq!(expected.iter().map(|(.., count)| count).sum::<u64>(), 600);
        assert_eq!([false, true].map(|negative| expected.count(negative, 0)), [1, 1]);
        for lens in [&[600][..], &[100, 300, 200], &[300, 100, 200], &[500, 100], &[192, 408]] {
            let (mut counter, mut rest) = (Counter::new(), &values[..]);
            for &len in lens {
                counter.add(rest.split_off(..len).unwrap());
                // The list stays short.
                assert!(counter.few.len() <= FEW, "{lens:?}");
            }
            assert_eq!(counter.finish(), expected, "{lens:?}");
        }
        assert_eq!(Exponents::default().range(), (0, Vec::new()));
    }
}
