//! Distance of two tensors.

use gcodec::internal::element::decode_f64s;
use gcodec::tensor::TensorView;
use rayon::prelude::*;
use serde::Serialize;
use std::ops::Range;

/// Distance of two vectors. In JSON, infinite and undefined numbers are null.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Errors {
    /// Largest `|a - b|`; infinite if exactly one of the two is NaN.
    pub(crate) max_abs: f64,
    /// `||a - b|| / ||a||`; 0 if both are 0.
    pub(crate) relative_l2: f64,
    /// `a * b / (||a|| ||b||)`; 1 if both are 0, 0 if one is.
    pub(crate) cosine: f64,
    /// Share of elements with `sign(a) == sign(b)`, where a sign is -1, 0 or 1; 1 if there are no elements.
    pub(crate) sign_agreement: f64,
}

/// Sums over the elements of one or more tensors.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    pub(crate) elements: u64,
    pub(crate) unequal_values: u64,
    same_sign: u64,
    max_abs: f64,
    error_squares: f64,
    a_squares: f64,
    b_squares: f64,
    products: f64,
    /// Squares of A where B is not zero.
    kept_squares: f64,
}

/// Elements that are compared at a time.
const CHUNK_LEN: usize = 4096;
/// Elements that one thread compares at a time.
pub(crate) const GROUP_LEN: u64 = 1 << 18;

impl Sums {
    /// Returns the sums over two tensors of one shape; `None` if their shapes differ.
    ///
    /// 64-bit integers beyond 2^53 are rounded; their bits decide whether they are equal.
    pub(crate) fn of(a: &TensorView<'_>, b: &TensorView<'_>) -> Option<Self> {
        let len = a.elements();
        // The type of an empty tensor is checked, too.
        let groups = 0..len.div_ceil(GROUP_LEN).max(1);
        let of_group = |group| Self::of_range(a, b, group * GROUP_LEN..len.min((group + 1) * GROUP_LEN));
        let groups: Vec<Self> = groups.into_par_iter().map(of_group).collect::<Option<_>>()?;
        let mut sums = Self::default();
        groups.iter().for_each(|group| sums.add(group));
        Some(sums)
    }

    fn of_range(a: &TensorView<'_>, b: &TensorView<'_>, range: Range<u64>) -> Option<Self> {
        let mut sums = Self::default();
        let (mut a_values, mut b_values) = ([0.0; CHUNK_LEN], [0.0; CHUNK_LEN]);
        let mut start = range.start;
        loop {
            let chunk_len = (range.end - start).min(CHUNK_LEN as u64) as usize;
            let (a_values, b_values) = (&mut a_values[..chunk_len], &mut b_values[..chunk_len]);
            decode_f64s(a.dtype(), a.data(), start, a_values).ok()?;
            decode_f64s(b.dtype(), b.data(), start, b_values).ok()?;
            // Sums chunks, so that rounding errors grow with the number of chunks only.
            let mut chunk = Self { elements: chunk_len as u64, ..Self::default() };
            for (&a, &b) in a_values.iter().zip(&*b_values) {
                chunk.push(a, b);
            }
            sums.add(&chunk);
            start += chunk_len as u64;
            if start == range.end {
                return Some(sums);
            }
        }
    }

    fn push(&mut self, a: f64, b: f64) {
        let same = a == b || (a.is_nan() && b.is_nan());
        // Equal infinities, and two NaN, have no error. A NaN against a number has an infinite one.
        let error = match (a - b).abs() {
            _ if same => 0.0,
            error if error.is_nan() => f64::INFINITY,
            error => error,
        };
        self.unequal_values += u64::from(!same);
        self.same_sign += u64::from(sign(a) == sign(b));
        self.max_abs = self.max_abs.max(error);
        self.error_squares += error * error;
        self.a_squares += a * a;
        self.b_squares += b * b;
        self.products += a * b;
        self.kept_squares += if b == 0.0 { 0.0 } else { a * a };
    }

    /// Adds the sums over other elements.
    pub(crate) fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.unequal_values += other.unequal_values;
        self.same_sign += other.same_sign;
        self.max_abs = self.max_abs.max(other.max_abs);
        self.error_squares += other.error_squares;
        self.a_squares += other.a_squares;
        self.b_squares += other.b_squares;
        self.products += other.products;
        self.kept_squares += other.kept_squares;
    }

    /// Returns the share of A's energy (sum of squares) in elements that are not zero in B; 1 if A is zero.
    pub(crate) fn energy_kept(&self) -> f64 {
        if self.a_squares == 0.0 { 1.0 } else { self.kept_squares / self.a_squares }
    }

    /// Returns the L2 norm of A.
    pub(crate) fn norm_a(&self) -> f64 {
        self.a_squares.sqrt()
    }

    /// Returns the distance of both.
    pub(crate) fn errors(&self) -> Errors {
        Errors {
            max_abs: self.max_abs,
            // Infinity by infinity, or NaN in A, has no ratio. Without error the ratio is 0, whatever A is.
            relative_l2: match self.error_squares {
                0.0 => 0.0,
                squares => (squares / self.a_squares).sqrt(),
            },
            cosine: match (self.a_squares == 0.0, self.b_squares == 0.0) {
                (true, true) => 1.0,
                (true, false) | (false, true) => 0.0,
                // Takes the roots first: the product of the squares can overflow where this does not.
                _ => (self.products / self.a_squares.sqrt() / self.b_squares.sqrt()).clamp(-1.0, 1.0),
            },
            sign_agreement: match self.elements {
                0 => 1.0,
                elements => self.same_sign as f64 / elements as f64,
            },
        }
    }
}

/// Returns -1, 0 or 1; 2 for NaN.
fn sign(x: f64) -> i8 {
    if x.is_nan() { 2 } else { i8::from(x > 0.0) - i8::from(x < 0.0) }
}
