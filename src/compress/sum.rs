//! Sums of magnitudes and of squares, in the order that [`device`](super::device) defines, which any number of threads, any
//! vector and any device can take. [`moments`](super::moments) takes more sums at once, in the same order.

use super::source::{CHUNK, TILE as RUN};
use crate::arch::{self, Kernel};

/// Columns of a run: four for each thread of a warp.
const COLUMNS: usize = 128;
/// Elements of a tile.
const TILE: usize = 8 * RUN;
const TILES: usize = 32;

const _: () = assert!(TILES * TILE == CHUNK && RUN == 8 * COLUMNS);

/// The sum of magnitudes.
pub(super) fn magnitudes(values: &[f32]) -> f64 {
    in_order(values, f64::abs)
}

/// The sum of squares.
pub(super) fn squares(values: &[f32]) -> f64 {
    in_order(values, |x| x * x)
}

fn in_order(values: &[f32], term: impl Fn(f64) -> f64 + Copy) -> f64 {
    if values.len() <= RUN {
        return arch::run(Sum { run: values, term });
    }
    values.chunks(CHUNK).fold(0.0, |sum, chunk| {
        let mut runs = Runs::default();
        chunk.chunks(RUN).for_each(|run| runs.push(arch::run(Sum { run, term })));
        sum + runs.finish()
    })
}

/// The runs of a chunk, one after the other.
#[derive(Default)]
pub(super) struct Runs {
    tiles: [f64; TILES],
    runs: usize,
}

impl Runs {
    /// The magnitudes of the next run: 1024 elements, or fewer if it is the last.
    pub(super) fn push_magnitudes(&mut self, run: &[f32]) {
        self.push(arch::run(Sum { run, term: f64::abs }));
    }

    fn push(&mut self, run: f64) {
        self.tiles[self.runs / 8] += run;
        self.runs += 1;
    }

    /// The sum of the chunk.
    pub(super) fn finish(mut self) -> f64 {
        halve(&mut self.tiles, self.runs.div_ceil(8));
        self.tiles[0]
    }
}

/// Of sums of which only the first `used` are not zero, which added to others changes nothing.
#[inline(always)]
fn halve(sums: &mut [f64; 32], used: usize) {
    let mut half = used.next_power_of_two();
    while half > 1 {
        half /= 2;
        for i in 0..half {
            sums[i] += sums[half + i];
        }
    }
}

/// Of a run.
struct Sum<'a, T> {
    run: &'a [f32],
    term: T,
}

impl<T: Fn(f64) -> f64> Kernel for Sum<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        let Self { run, term } = self;
        let mut fours = [0.0f64; COLUMNS / 4];
        let used = run.len().min(COLUMNS).div_ceil(4);
        if run.len() <= COLUMNS {
            let (whole, rest) = run.as_chunks::<4>();
            for (four, of) in fours.iter_mut().zip(whole) {
                let [a, b, c, d] = of.map(|x| term(f64::from(x)));
                *four = (a + b) + (c + d);
            }
            let mut last = [0.0; 4];
            last.iter_mut().zip(rest).for_each(|(last, x)| *last = term(f64::from(*x)));
            if !rest.is_empty() {
                fours[whole.len()] = (last[0] + last[1]) + (last[2] + last[3]);
            }
            halve(&mut fours, used);
            return fours[0];
        }
        let mut columns = [0.0f64; COLUMNS];
        let (rows, rest) = run.as_chunks::<COLUMNS>();
        for row in rows {
            for (column, x) in columns.iter_mut().zip(row) {
                *column += term(f64::from(*x));
            }
        }
        for (column, x) in columns.iter_mut().zip(rest) {
            *column += term(f64::from(*x));
        }
        for (four, of) in fours.iter_mut().zip(columns.as_chunks::<4>().0).take(used) {
            *four = (of[0] + of[1]) + (of[2] + of[3]);
        }
        halve(&mut fours, used);
        fours[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order as the table has it.
    fn plainly(values: &[f32], term: fn(f64) -> f64) -> f64 {
        let at = |i: usize| values.get(i).map_or(0.0, |&x| term(f64::from(x)));
        let halves = |mut sums: Vec<f64>| {
            while sums.len() > 1 {
                let (first, second) = sums.split_at(sums.len() / 2);
                sums = first.iter().zip(second).map(|(a, b)| a + b).collect();
            }
            sums[0]
        };
        let of_run = |run: usize| {
            let column = |c: usize| (0..8).fold(0.0, |sum, row| sum + at(run + 128 * row + c));
            let four = |c: usize| (column(c) + column(c + 1)) + (column(c + 2) + column(c + 3));
            halves((0..32).map(|i| four(4 * i)).collect())
        };
        let of_tile = |tile: usize| (0..8).fold(0.0, |sum, run| sum + of_run(tile + 1024 * run));
        let of_chunk = |chunk: usize| halves((0..32).map(|i| of_tile(chunk + 8192 * i)).collect());
        (0..values.len()).step_by(1 << 18).fold(0.0, |sum, chunk| sum + of_chunk(chunk))
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
        let lens =
            [1, 2, 3, 4, 5, 17, 100, 127, 128, 129, 300, 1023, 1024, 1025, 8192, 8193, 70_000, 1 << 18];
        for len in lens.into_iter().chain([0, (1 << 18) + 1, values.len()]) {
            let values = &values[..len];
            assert_eq!(magnitudes(values).to_bits(), plainly(values, f64::abs).to_bits(), "{len}");
            assert_eq!(squares(values).to_bits(), plainly(values, |x| x * x).to_bits(), "{len}");
        }
        let mut runs = Runs::default();
        values[..70_000].chunks(1024).for_each(|run| runs.push_magnitudes(run));
        assert_eq!(runs.finish(), magnitudes(&values[..70_000]));
    }
}
