//! Sums of magnitudes and of squares in one order, which any number of threads, any vector and any device can take.
//!
//! Elements count from the beginning of what is summed. Of each tile of 1024 elements lane l sums the elements l, l + 128, l + 256, ..;
//! lanes 4k to 4k + 3 become one by pairs, and those 32 sums one by adding the upper half to the lower, five times. Tiles are added in
//! their order to the sum of their chunk of 2^18 elements, and chunks in theirs to the sum.

use super::source::{CHUNK, TILE};
use crate::arch::{self, Kernel};

/// Lanes of a tile's sum: four for each thread of a warp.
const LANES: usize = 128;

/// The sum of magnitudes.
pub(super) fn magnitudes(values: &[f32]) -> f64 {
    in_order(values, f64::abs)
}

/// The sum of squares.
pub(super) fn squares(values: &[f32]) -> f64 {
    in_order(values, |x| x * x)
}

/// The sum of a tile's magnitudes.
pub(super) fn tile_magnitudes(tile: &[f32]) -> f64 {
    arch::run(Sum { tile, term: f64::abs })
}

fn in_order(values: &[f32], term: impl Fn(f64) -> f64 + Copy) -> f64 {
    values.chunks(CHUNK).fold(0.0, |sum, chunk| {
        sum + chunk.chunks(TILE).fold(0.0, |sum, tile| sum + arch::run(Sum { tile, term }))
    })
}

/// Of no more elements than a tile has.
struct Sum<'a, T> {
    tile: &'a [f32],
    term: T,
}

impl<T: Fn(f64) -> f64> Kernel for Sum<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        let Self { tile, term } = self;
        let mut lanes = [0.0f64; LANES];
        let (rows, rest) = tile.as_chunks::<LANES>();
        for row in rows {
            for (lane, x) in lanes.iter_mut().zip(row) {
                *lane += term(f64::from(*x));
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane += term(f64::from(*x));
        }
        let mut fours = [0.0f64; LANES / 4];
        // What has no elements is +0, which changes no sum of magnitudes or squares.
        let mut used = tile.len().min(LANES).div_ceil(4).next_power_of_two();
        for (four, lanes) in fours.iter_mut().zip(lanes.as_chunks::<4>().0).take(used) {
            *four = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
        }
        while used > 1 {
            used /= 2;
            for k in 0..used {
                fours[k] += fours[k + used];
            }
        }
        fours[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order as the module's first lines have it.
    fn plainly(values: &[f32], term: fn(f64) -> f64) -> f64 {
        let mut sum = 0.0;
        for chunk in values.chunks(1 << 18) {
            let mut of_chunk = 0.0;
            for tile in chunk.chunks(1024) {
                let mut sums: Vec<f64> = (0..128)
                    .map(|l| tile.iter().skip(l).step_by(128).fold(0.0, |sum, &x| sum + term(f64::from(x))))
                    .collect();
                sums = sums.chunks(4).map(|l| (l[0] + l[1]) + (l[2] + l[3])).collect();
                while sums.len() > 1 {
                    let (low, high) = sums.split_at(sums.len() / 2);
                    sums = low.iter().zip(high).map(|(a, b)| a + b).collect();
                }
                of_chunk += sums[0];
            }
            sum += of_chunk;
        }
        sum
    }

    #[test]
    fn sums_are_taken_in_the_order_that_is_written() {
        let values: Vec<f32> = (0..(2 << 18) + 3000u32)
            .map(|i| {
                let word = crate::random::word(1, 2, i.into());
                // Exponents that differ, so that any other order gives other bits.
                f32::from_bits((word & 0x807f_ffff) | (100 + word % 53) << 23)
            })
            .collect();
        for len in (0..300).chain([1023, 1024, 1025, 5000, 1 << 18, (1 << 18) + 1, values.len()]) {
            let values = &values[..len];
            assert_eq!(magnitudes(values).to_bits(), plainly(values, f64::abs).to_bits(), "{len}");
            assert_eq!(squares(values).to_bits(), plainly(values, |x| x * x).to_bits(), "{len}");
        }
        assert_eq!(tile_magnitudes(&values[..1024]), magnitudes(&values[..1024]));
    }
}
