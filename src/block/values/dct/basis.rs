//! The numbers of the orthonormal DCT-II (spec, values/dct.md).
//!
//! They are computed with integers and correctly rounded, so that they do not depend on a machine's cosine.

use std::sync::OnceLock;

/// The longest side of a chunk.
pub(crate) const MAX_SIDE: usize = 128;

/// Bits after the point of the fixed-point numbers in this file, all of which are less than 16.
const FRACTION: u32 = 124;
const PI: u128 = 0x3243_f6a8_885a_308d_3131_98a2_e037_0734;

/// The product of two numbers, rounded down.
fn mul(a: u128, b: u128) -> u128 {
    const LOW: u128 = u64::MAX as u128;
    let (a1, a0, b1, b0) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let low = a0 * b0;
    let middle = a1 * b0 + (low >> 64);
    let carried = a0 * b1 + (middle & LOW);
    let high = a1 * b1 + (middle >> 64) + (carried >> 64);
    high << (128 - FRACTION) | (carried << 64 | low & LOW) >> FRACTION
}

/// The square root of a number less than 4. The error is below two units of the last place, towards zero.
fn sqrt(square: u128) -> u128 {
    (0..=FRACTION).rev().map(|bit| 1 << bit).fold(0, |root, bit| {
        let next = root | bit;
        if mul(next, next) <= square { next } else { root }
    })
}

/// cos(pi k / 2n) for 0 <= k <= n, within 2^-117.
///
/// Sums at most 18 terms of the power series, each within a few units of the last place.
fn cosine(k: u128, n: u128) -> u128 {
    let x = PI / (2 * n) * k + PI % (2 * n) * k / (2 * n);
    let square = mul(x, x);
    let (mut term, mut even, mut odd) = (1 << FRACTION, 0, 0);
    for i in (0u128..).step_by(4) {
        even += term;
        term = mul(term, square) / ((i + 1) * (i + 2));
        odd += term;
        term = mul(term, square) / ((i + 3) * (i + 4));
        if term == 0 {
            break;
        }
    }
    even.saturating_sub(odd)
}

/// The nearest binary64 number.
fn nearest(x: u128) -> f64 {
    // The conversion of an integer rounds to nearest, ties to even; the division by a power of two is exact.
    x as f64 / (1u128 << FRACTION) as f64
}

/// sqrt(2/n) cos(pi k / 2n) before rounding, for 0 <= k < n.
fn scaled_cosine(k: usize, n: usize) -> u128 {
    mul(sqrt((2 << FRACTION) / n as u128), cosine(k as u128, n as u128))
}

/// The numbers of the spec's page for length n: sqrt(1/n), then sqrt(2/n) cos(pi k / 2n) for k = 0 .. n-1.
fn numbers(n: usize) -> Vec<f64> {
    let flat = nearest(sqrt((1 << FRACTION) / n as u128));
    std::iter::once(flat).chain((0..n).map(|k| nearest(scaled_cosine(k, n)))).collect()
}

/// Computes the table of [`basis`].
fn table(n: usize) -> Box<[f64]> {
    let numbers = numbers(n);
    let entry = |u: usize, i: usize| match u * (2 * i + 1) % (4 * n) {
        _ if u == 0 => numbers[0],
        k if k < n => numbers[1 + k],
        k if k == n || k == 3 * n => 0.0,
        k if k < 3 * n => -numbers[1 + k.abs_diff(2 * n)],
        k => numbers[1 + 4 * n - k],
    };
    (0..n * n).map(|at| entry(at / n, at % n)).collect()
}

/// The basis of length n, 1 to [`MAX_SIDE`]: row u holds c(u, i) for i = 0 .. n-1.
pub(super) fn basis(n: usize) -> &'static [f64] {
    // All lengths together take 5.6 MiB.
    static TABLES: [OnceLock<Box<[f64]>>; MAX_SIDE + 1] = [const { OnceLock::new() }; MAX_SIDE + 1];
    TABLES[n].get_or_init(|| table(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_rounded_down() {
        // A bit of the second factor after the other: halving rounds down once.
        let exact = |a: u128, b: u128| {
            (0..FRACTION).fold(0, |sum, bit| (sum + (b >> bit & 1) * a) >> 1) + a * (b >> 124)
        };
        let word = |i: u64| u128::from(crate::random::word(1, 0, i));
        let below_4 = |i: u64| (0..4).fold(0, |x, j| x << 32 | word(4 * i + j)) >> 2;
        let edges = [0, 1, 1 << 62, (1 << 64) - 1, 1 << 64, (1 << 124) - 1, 1 << 124, (1 << 126) - 1];
        let numbers: Vec<u128> = edges.into_iter().chain((0..50).map(below_4)).collect();
        for &a in &numbers {
            numbers.iter().for_each(|&b| assert_eq!(mul(a, b), exact(a, b), "{a:#x} {b:#x}"));
        }
    }

    #[test]
    fn roots_are_the_largest_whose_square_is_not_larger() {
        assert_eq!((sqrt(1 << 124), sqrt(1 << 122)), (1 << 124, 1 << 123));
        for n in 1..=MAX_SIDE as u128 {
            for square in [(1 << FRACTION) / n, (2 << FRACTION) / n] {
                let root = sqrt(square);
                assert!(mul(root, root) <= square && square < mul(root + 1, root + 1), "{n}");
            }
        }
    }

    /// cos^2 + sin^2 = 1 within 2^-120.
    #[test]
    fn cosines_are_accurate() {
        for n in 1..=MAX_SIDE as u128 {
            assert_eq!(cosine(0, n), 1 << FRACTION);
            for k in 0..=n {
                let (cos, sin) = (cosine(k, n), cosine(n - k, n));
                let error = (mul(cos, cos) + mul(sin, sin)).abs_diff(1 << FRACTION);
                assert!(error < 16, "{k} {n} {error}");
            }
        }
    }

    /// The digest of the spec's page covers the numbers of all lengths in little-endian bytes.
    /// spec/reference/test_decoder.py compares the reference decoder's numbers with the same digest.
    #[test]
    fn the_numbers_are_those_of_the_spec() {
        let bytes: Vec<u8> = (1..=MAX_SIDE).flat_map(numbers).flat_map(f64::to_le_bytes).collect();
        assert_eq!(bytes.len(), 8 * (128 * 129 / 2 + 128));
        let digest = blake3::hash(&bytes).to_hex();
        let page = include_str!("../../../../spec/values/dct.md");
        assert!(page.contains(digest.as_str()), "{digest} is not in the page");
    }

    /// No number lies so near to the middle between two binary64 numbers that the error could change the
    /// rounding.
    #[test]
    fn the_numbers_are_correctly_rounded() {
        // Each number is within 2^-115: the root within 2^-122, the cosine within 2^-117, both factors below
        // 1.5.
        const ERROR: u128 = 1 << (FRACTION - 115);
        let sure = |x: u128| assert_eq!(nearest(x - ERROR), nearest(x + ERROR));
        for n in 1..=MAX_SIDE {
            sure(sqrt((1 << FRACTION) / n as u128));
            (0..n).for_each(|k| sure(scaled_cosine(k, n)));
        }
    }

    #[test]
    fn numbers_are_near_the_cosine_of_the_machine() {
        for n in 1..=MAX_SIDE {
            for (at, &c) in table(n).iter().enumerate() {
                let (u, i) = ((at / n) as f64, (at % n) as f64);
                let scale = if at < n { 1.0 } else { 2.0 } / n as f64;
                let angle = std::f64::consts::PI * u * (2.0 * i + 1.0) / (2.0 * n as f64);
                assert!((c - scale.sqrt() * angle.cos()).abs() < 1e-13, "{n} {at}");
            }
        }
    }

    /// Rows are orthonormal up to rounding: the product of two rows sums n products, each within 2^-53 of its
    /// size.
    #[test]
    fn bases_are_orthonormal() {
        for n in [1, 2, 3, 5, 12, 64, 100, 127, 128] {
            let basis = basis(n);
            for (u, a) in basis.chunks(n).enumerate() {
                for (v, b) in basis.chunks(n).enumerate() {
                    let product: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    let wanted = f64::from(u8::from(u == v));
                    assert!(
                        (product - wanted).abs() < 4.0 * n as f64 * f64::EPSILON,
                        "{n} {u} {v} {product}"
                    );
                }
            }
        }
    }
}
