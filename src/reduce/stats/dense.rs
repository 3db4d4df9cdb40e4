//! Statistics of dense tensors.

use std::ops::Range;

use rayon::prelude::*;

use crate::limits::in_memory;
use crate::reduce::stats::chunk::{CHUNK, Collector};
use crate::reduce::stats::{Grid, Stats, StatsOptions};
use crate::tensor::element::decode_f64s;
use crate::tensor::{TensorBuf, TensorView};

/// Elements that one thread examines at a time.
const UNIT: u64 = 1 << 18;
/// Elements that are read at a time: whole units, so that the sums are made in the same order.
const PIECE: u64 = 4 * UNIT;

impl Stats {
    /// Returns the statistics of a tensor's elements. Integers are converted to the nearest binary64 number;
    /// bools are 0 and 1.
    pub fn of(tensor: &TensorView<'_>, options: &StatsOptions) -> Self {
        let grid = options.grid.then(|| Grid::new(tensor.shape()));
        let mut all = Collector::new(grid.clone()).finish();
        add(&mut all, tensor, 0, grid.as_ref());
        all
    }
}

/// Returns the statistics of a tensor that need not be in memory: `read` returns the elements of a range, as
/// a tensor of one dimension. They are those of [`Stats::of`] to the last bit.
///
/// # Errors
/// The errors of `read`.
pub fn stats_of_pieces<E>(
    shape: &[u64],
    options: &StatsOptions,
    mut read: impl FnMut(Range<u64>) -> Result<TensorBuf, E>,
) -> Result<Stats, E> {
    let elements = crate::tensor::elements(shape).unwrap_or(0);
    let grid = options.grid.then(|| Grid::new(shape));
    let mut all = Collector::new(grid.clone()).finish();
    let mut start = 0;
    while start < elements {
        let end = elements.min(start + PIECE);
        add(&mut all, &read(start..end)?.view(), start, grid.as_ref());
        start = end;
    }
    Ok(all)
}

/// Adds the statistics of elements that follow one another, of which the first has this index.
fn add(all: &mut Stats, tensor: &TensorView<'_>, first: u64, grid: Option<&Grid>) {
    let elements = tensor.elements();
    let units: Vec<u64> = (0..elements.div_ceil(UNIT)).collect();
    // Memory is bounded by a few units at a time; they are added in order.
    for batch in units.chunks(rayon::current_num_threads().max(1) * 2) {
        let parts: Vec<Stats> = batch
            .par_iter()
            .map(|unit| {
                let start = unit * UNIT;
                of_range(tensor, first, start..elements.min(start + UNIT), grid.cloned())
            })
            .collect();
        parts.iter().for_each(|part| all.merge(part));
    }
}

fn of_range(tensor: &TensorView<'_>, first: u64, range: Range<u64>, grid: Option<Grid>) -> Stats {
    let mut collector = Collector::new(grid);
    let mut values = [0.0; CHUNK];
    let mut start = range.start;
    while start < range.end {
        let values = &mut values[..in_memory(range.end - start).min(CHUNK)];
        let decoded = decode_f64s(tensor.dtype(), tensor.data(), start, values);
        debug_assert!(decoded.is_ok(), "a view has the bytes of its elements");
        collector.add(first + start, values);
        collector.place(first + start, values);
        start += values.len() as u64;
    }
    collector.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Dtype, TensorBuf};

    fn of(shape: &[u64], values: &[f32]) -> Stats {
        let tensor = TensorBuf::from_f32(shape.to_vec(), values).unwrap();
        Stats::of(&tensor.view(), &StatsOptions::default().with_grid(true))
    }

    #[test]
    fn special_values_are_counted_apart() {
        let stats =
            of(&[2, 4], &[0.0, -0.0, 3.0, f32::INFINITY, -4.0, f32::NAN, f32::NAN, f32::NEG_INFINITY]);
        assert_eq!((stats.elements, stats.kept, stats.zeros, stats.nan, stats.infinite), (8, 8, 2, 2, 2));
        assert_eq!((stats.first_nan, stats.first_infinite), (Some(5), Some(3)));
        assert_eq!((stats.min, stats.max, stats.norm(), stats.mean()), (Some(-4.0), Some(3.0), 5.0, -0.25));
        assert_eq!(stats.finite(), 4);
        assert_eq!((stats.exponents.count(false, 128), stats.exponents.count(true, 129)), (1, 1));
        let grid = stats.grid.unwrap();
        assert_eq!(
            (grid.height(), grid.width(), grid.cell(0, 0), grid.cell(1, 3)),
            (2, 4, Some((0, 1)), Some((1, 1)))
        );
        let nothing = of(&[0, 5], &[]);
        assert_eq!((nothing.elements, nothing.min, nothing.std(), nothing.norm()), (0, None, 0.0, 0.0));
        let bad = of(&[2], &[f32::NAN; 2]);
        assert_eq!((bad.min, bad.finite(), bad.mean()), (None, 0, 0.0));
    }

    #[test]
    fn pieces_have_the_statistics_of_the_whole() {
        let len = PIECE * 2 + 12_345;
        let mut values: Vec<f32> = (0..len).map(|i| ((i * 7919 % 10_007) as f32).sqrt() - 50.0).collect();
        values[PIECE as usize + 5] = f32::NAN;
        values[PIECE as usize * 2 + 7] = f32::INFINITY;
        let options = StatsOptions::default().with_grid(true);
        let tensor = TensorBuf::from_f32(vec![5, len / 5], &values[..(len / 5 * 5) as usize]).unwrap();
        let read = |range: Range<u64>| {
            assert!(range.end - range.start <= PIECE);
            let values = &values[range.start as usize..range.end as usize];
            TensorBuf::from_f32(vec![values.len() as u64], values)
        };
        let pieces = stats_of_pieces(&[5, len / 5], &options, read).unwrap();
        assert_eq!(pieces.first_nan, Some(PIECE + 5));
        assert_eq!(pieces, Stats::of(&tensor.view(), &options));
    }

    #[test]
    fn every_element_type_is_read() {
        for dtype in Dtype::ALL {
            let bytes = dtype.bytes_for(6).unwrap() as usize;
            let mut data = vec![0; bytes];
            data[0] = 1;
            let tensor = TensorBuf::new(dtype, vec![6], data).unwrap();
            let stats = Stats::of(&tensor.view(), &StatsOptions::default());
            assert_eq!((stats.elements, stats.zeros, stats.finite()), (6, 5, 6), "{dtype}");
            assert!(stats.max.is_some_and(|max| max > 0.0), "{dtype}");
        }
    }

    #[test]
    fn large_tensors_are_cut_and_joined() {
        let values: Vec<f32> = (0..UNIT as u32 * 3 + 77).map(|i| (i % 1001) as f32 - 500.0).collect();
        let stats = of(&[values.len() as u64], &values);
        let squares: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        assert!((stats.squares() / squares - 1.0).abs() < 1e-12);
        let zeros = values.iter().filter(|v| **v == 0.0).count() as u64;
        assert_eq!((stats.zeros, stats.min, stats.max), (zeros, Some(-500.0), Some(500.0)));
        assert_eq!(stats.exponents.iter().map(|(.., count)| count).sum::<u64>(), values.len() as u64 - zeros);
    }
}
