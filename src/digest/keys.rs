//! Arithmetic and keys of sum digests (spec, section 6.1).

use std::sync::OnceLock;

use crate::arch::sums::changes::Table;
use crate::tensor::Dtype;

/// The prime 2^31 - 1. Numbers are below it unless a name says otherwise.
pub(super) const P: u64 = (1 << 31) - 1;

/// Independent numbers in a digest.
pub(super) const LANES: usize = 4;

/// A number in each lane.
pub(super) type Lanes = [u64; LANES];

/// Number that is added to each unit, so that a unit of zero counts, too.
pub(super) const BIAS: u64 = 1 << 16;

/// Indices with one factor of the second level: an index has a factor for its low 16 bits and one for the
/// others.
pub(super) const LEVEL: u64 = 1 << 16;

/// Returns any `x` modulo p.
#[inline(always)]
pub(super) fn fold(x: u64) -> u64 {
    let x = (x & P) + (x >> 31);
    let x = (x & P) + (x >> 31);
    if x >= P { x - P } else { x }
}

/// Returns a signed number modulo p.
#[inline(always)]
pub(super) fn signed(x: i64) -> u64 {
    x.rem_euclid(P as i64) as u64
}

#[inline(always)]
pub(super) fn mul(a: Lanes, b: Lanes) -> Lanes {
    std::array::from_fn(|lane| fold(a[lane] * b[lane]))
}

#[inline(always)]
pub(super) fn add(a: Lanes, b: Lanes) -> Lanes {
    std::array::from_fn(|lane| fold(a[lane] + b[lane]))
}

/// Returns output `n` of SplitMix64 with the seed 0.
#[inline(always)]
fn splitmix(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a number from 1 to p - 1 from 64 random bits.
#[inline(always)]
fn nonzero(random: u64) -> u64 {
    1 + (random >> 1) % (P - 1)
}

/// Returns the factors of an axis (0 is the last) for a number of at most 56 bits: level 0 has those of the
/// low 16 bits of an index, level 1 those of the others.
fn factors(axis: usize, level: usize, number: u64) -> Lanes {
    // A rank is at most 32, so eight bits suffice.
    let stream = |lane| ((2 * axis + level) * LANES + lane) as u64;
    std::array::from_fn(|lane| nonzero(splitmix(stream(lane) << 56 | number)))
}

/// Returns the factors of the low 16 bits of an index.
pub(super) fn low(axis: usize, number: u64) -> Lanes {
    match lows(axis) {
        Some(table) => table[usize::from(number as u16)].map(u64::from),
        None => factors(axis, 0, number),
    }
}

/// Returns the factors of an index without its low 16 bits.
pub(super) fn high(axis: usize, number: u64) -> Lanes {
    factors(axis, 1, number)
}

/// Returns the keys of an index.
pub(super) fn key(axis: usize, index: u64) -> Lanes {
    mul(low(axis, index % LEVEL), high(axis, index / LEVEL))
}

/// Factors of all low halves, for the axes that have most indices: 1 MiB each.
static TABLES: [OnceLock<Vec<[u32; LANES]>>; 3] = [const { OnceLock::new() }; 3];

/// Returns the factors of the low 16 bits of an index on an axis, if there is a table of them.
pub(super) fn lows(axis: usize) -> Option<&'static Table> {
    let factors = |number| factors(axis, 0, number).map(|factor| factor as u32);
    TABLES.get(axis)?.get_or_init(|| (0..LEVEL).map(factors).collect()).first_chunk()
}

/// Returns the weight of a tensor.
pub(super) fn weight(name: &str, dtype: Dtype, shape: &[u64]) -> Lanes {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"gcodec sum digest 1");
    hasher.update(&[dtype.id()]);
    hasher.update(&(shape.len() as u64).to_le_bytes());
    shape.iter().for_each(|dim| _ = hasher.update(&dim.to_le_bytes()));
    hasher.update(name.as_bytes());
    let hash = *hasher.finalize().as_bytes();
    let words = hash.as_chunks::<8>().0;
    std::array::from_fn(|lane| nonzero(u64::from_le_bytes(words[lane])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_folded_below_the_prime() {
        for x in [0, 1, P - 1, P, P + 1, 2 * P, 1 << 62, u64::MAX - 1, u64::MAX] {
            assert_eq!(fold(x), x % P, "{x}");
        }
        assert_eq!([signed(-1), signed(0), signed(-(1 << 40))], [P - 1, 0, P - (1u64 << 40) % P]);
    }

    #[test]
    fn splitmix_has_its_published_outputs() {
        // The first outputs for the seed 0, of the generator's published code.
        assert_eq!([splitmix(0), splitmix(1)], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn tables_have_the_factors() {
        for axis in 0..4 {
            assert!([0, 1, 65_535].iter().all(|&number| low(axis, number) == factors(axis, 0, number)));
        }
        assert_eq!([0, 2, 3].map(|axis| lows(axis).is_some()), [true, true, false]);
        assert_eq!(key(1, 65_536 + 7), mul(factors(1, 0, 7), factors(1, 1, 1)));
        assert!((1..P).contains(&key(31, u64::MAX)[3]));
    }
}
