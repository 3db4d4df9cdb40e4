//! Memory bandwidth of one thread on this machine, which codec speeds are compared with.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Buffer larger than the caches: 256 MiB.
pub(crate) const BUFFER_BYTES: usize = 256 << 20;

/// Bandwidths of one thread, in GB/s (10^9 bytes).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bandwidth {
    /// Summing a buffer.
    pub(crate) read: f64,
    /// Filling a buffer.
    pub(crate) fill: f64,
}

impl Bandwidth {
    /// Measures both with a buffer of `bytes`. The best of `runs` counts, since the others were disturbed.
    pub(crate) fn measure(bytes: usize, runs: u32) -> Self {
        // Nonzero, because pages that were never written may all map to one page of zeros.
        let mut buffer = vec![1u64; bytes.div_ceil(size_of::<u64>()).max(1)];
        let gigabytes = size_of_val(&buffer[..]) as f64 / 1e9;
        let fill = best(runs, |run| {
            buffer.fill(black_box(u64::from(run)));
            black_box(&mut buffer);
        });
        let read = best(runs, |_| {
            black_box(sum(black_box(&buffer)));
        });
        Self { read: gigabytes / read.as_secs_f64(), fill: gigabytes / fill.as_secs_f64() }
    }
}

/// Sums with one accumulator per lane of a few vector registers. With a single accumulator, each addition
/// would wait for the one before, and the latency of additions would be measured instead of the memory.
fn sum(values: &[u64]) -> u64 {
    const LANES: usize = 32;
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0u64; LANES];
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(value);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, &value| sum.wrapping_add(value))
}

fn best(runs: u32, mut run: impl FnMut(u32)) -> Duration {
    let time = |i| {
        let start = Instant::now();
        run(i);
        start.elapsed()
    };
    // A clock too coarse for a small buffer must not divide by zero.
    (0..runs.max(1)).map(time).min().unwrap_or_default().max(Duration::from_nanos(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_whole() {
        let values: Vec<u64> = (0..1000).map(|i| i * i).collect();
        for len in [0, 1, 31, 32, 33, 1000] {
            assert_eq!(sum(&values[..len]), values[..len].iter().sum::<u64>());
        }
        assert_eq!(sum(&[u64::MAX, 2]), 1);
    }

    #[test]
    fn bandwidths_are_numbers() {
        for bytes in [0, 1, 1 << 20] {
            let bandwidth = Bandwidth::measure(bytes, 2);
            assert!(bandwidth.read > 0.0 && bandwidth.read.is_finite(), "{bandwidth:?}");
            assert!(bandwidth.fill > 0.0 && bandwidth.fill.is_finite(), "{bandwidth:?}");
        }
    }

    #[test]
    #[ignore = "takes a second and measures the machine"]
    fn print_this_machine() {
        println!("{:?}", Bandwidth::measure(BUFFER_BYTES, 5));
    }
}
