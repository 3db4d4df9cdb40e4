//! Integers to write, as they are held.

use std::ops::Range;

use crate::arch::threads::{SHARE, each};
use crate::arch::{self, Kernel, pages};
use crate::bits::zigzag;
use crate::codes::tokens::token;

/// Integers to write.
#[derive(Clone, Copy)]
pub(crate) enum Integers<'a> {
    /// Ones that stand for themselves.
    Plain(&'a [u64]),
    /// Signed ones, which stand for their zigzag codes.
    Zigzag(&'a [i64]),
}

impl<'a> Integers<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain(values) => values.len(),
            Self::Zigzag(values) => values.len(),
        }
    }

    /// Returns integer `i`.
    #[inline]
    pub(super) fn at(&self, i: usize) -> u64 {
        match self {
            Self::Plain(values) => values[i],
            Self::Zigzag(values) => values[i].integer(),
        }
    }

    pub(super) fn part(&self, range: Range<usize>) -> Integers<'a> {
        match self {
            Self::Plain(values) => Self::Plain(&values[range]),
            Self::Zigzag(values) => Self::Zigzag(&values[range]),
        }
    }

    /// The bits of all integers: none needs more bits than they do.
    pub(crate) fn bits(&self) -> u64 {
        match self {
            Self::Plain(values) => arch::run(Bits(values)),
            Self::Zigzag(values) => arch::run(Bits(values)),
        }
    }

    /// Returns the lowest byte of each integer.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Plain(values) => by_share(values, |values, out| arch::run(Bytes { values, out })),
            Self::Zigzag(values) => by_share(values, |values, out| arch::run(Bytes { values, out })),
        }
    }

    /// Returns the token of each integer.
    pub(super) fn tokens(&self) -> Vec<u8> {
        match self {
            Self::Plain(values) => by_share(values, |values, out| arch::run(Tokens { values, out })),
            Self::Zigzag(values) => by_share(values, |values, out| arch::run(Tokens { values, out })),
        }
    }

    /// Calls `f` with consecutive integers.
    pub(super) fn for_each_part(&self, mut f: impl FnMut(&[u64])) {
        match self {
            Self::Plain(values) => f(values),
            Self::Zigzag(values) => {
                let mut integers = [0; 256];
                for values in values.chunks(integers.len()) {
                    let integers = &mut integers[..values.len()];
                    integers.iter_mut().zip(values).for_each(|(own, value)| *own = value.integer());
                    f(integers);
                }
            }
        }
    }
}

/// Returns a byte for each of these values; `f` writes those of a share.
fn by_share<T: Integer>(values: &[T], f: impl Fn(&[T], &mut [u8]) + Sync) -> Vec<u8> {
    let mut out = pages::zeros(values.len());
    each(values.chunks(SHARE).zip(out.chunks_mut(SHARE)), |(values, out)| f(values, out));
    out
}

/// A number that stands for an integer: itself, or the one of which it is the zigzag decoding.
pub(super) trait Integer: Copy + Sync {
    fn integer(self) -> u64;
}

impl Integer for u64 {
    #[inline(always)]
    fn integer(self) -> u64 {
        self
    }
}

impl Integer for i64 {
    #[inline(always)]
    fn integer(self) -> u64 {
        zigzag(self)
    }
}

struct Bits<'a, T>(&'a [T]);

impl<T: Integer> Kernel for Bits<'_, T> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        self.0.iter().fold(0, |bits, value| bits | value.integer())
    }
}

struct Bytes<'a, T> {
    values: &'a [T],
    out: &'a mut [u8],
}

impl<T: Integer> Kernel for Bytes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.out.iter_mut().zip(self.values).for_each(|(out, value)| *out = value.integer() as u8);
    }
}

/// Writes the tokens of integers.
pub(super) struct Tokens<'a, T> {
    pub(super) values: &'a [T],
    pub(super) out: &'a mut [u8],
}

impl<T: Integer> Kernel for Tokens<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.out.iter_mut().zip(self.values).for_each(|(out, value)| *out = token(value.integer()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_integers_are_those_of_their_codes() {
        let word = |i: u64| u64::from(crate::random::word(6, 0, i)).cast_signed();
        let signed: Vec<i64> = (0..700).map(|i| (word(i) - (1 << 31)) >> (i % 40)).collect();
        let codes: Vec<u64> = signed.iter().map(|&value| zigzag(value)).collect();
        let (signed, plain) = (Integers::Zigzag(&signed), Integers::Plain(&codes));
        assert_eq!((signed.len(), signed.bits()), (plain.len(), plain.bits()));
        assert_eq!((signed.tokens(), signed.bytes()), (plain.tokens(), plain.bytes()));
        assert!((0..700).all(|i| signed.at(i) == codes[i]));
        let (mut parts, range) = (Vec::new(), 3..650);
        signed.part(range.clone()).for_each_part(|part| parts.extend_from_slice(part));
        assert_eq!(parts, codes[range.clone()]);
        parts.clear();
        plain.part(range.clone()).for_each_part(|part| parts.extend_from_slice(part));
        assert_eq!(parts, codes[range]);
    }
}
