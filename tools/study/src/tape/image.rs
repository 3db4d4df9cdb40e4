//! Layers of images: a row for each channel, with the pixels of each sample one after the other.

use ndarray::{Array2, Axis};

use super::{ROW_MAJOR, Tape, Var, row_major};

/// Images as a matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Images {
    /// Channels x (samples x side x side).
    pub(crate) var: Var,
    pub(crate) samples: usize,
    /// Pixels of a side.
    pub(crate) side: usize,
}

/// Taps of a kernel of 3 x 3.
const TAPS: usize = 9;

impl Tape {
    /// Returns the convolution with kernels of 3 x 3, with a border of zeros: as many pixels. `kernel`:
    /// outputs x (inputs x 3 x 3); `bias`: 1 x outputs.
    pub(crate) fn conv(&mut self, x: Images, kernel: Var, bias: Var) -> Images {
        let taps = gather(self.value(x.var), x.side);
        let mut y = self.value(kernel).dot(&taps);
        y += &self.value(bias).t();
        let var = self.computed(y, move |values, dy, gradients| {
            gradients.add(bias, dy.sum_axis(Axis(1)).insert_axis(Axis(0)));
            gradients.add(kernel, dy.dot(&taps.t()));
            gradients.add(x.var, scatter(&row_major(values[kernel].t().dot(dy)), x.side));
        });
        Images { var, ..x }
    }

    /// Returns the largest of each 2 x 2 pixels.
    pub(crate) fn max_pool(&mut self, x: Images) -> Images {
        let (value, half) = (self.value(x.var), x.side / 2);
        let mut best = Vec::with_capacity(value.len() / 4);
        for image in 0..value.len() / (x.side * x.side) {
            for pixel in 0..half * half {
                let corner = image * x.side * x.side + pixel / half * 2 * x.side + pixel % half * 2;
                best.push([corner, corner + 1, corner + x.side, corner + x.side + 1]);
            }
        }
        let from = value.as_slice().expect(ROW_MAJOR);
        // The first of equal pixels.
        let larger = |a: usize, b: usize| if from[b] > from[a] { b } else { a };
        let best: Vec<usize> =
            best.into_iter().map(|[a, b, c, d]| larger(larger(larger(a, b), c), d)).collect();
        let shape = (value.nrows(), value.ncols() / 4);
        let y = Array2::from_shape_fn(shape, |(row, column)| from[best[row * shape.1 + column]]);
        let var = self.computed(y, move |values, dy, gradients| {
            let mut dx = Array2::zeros(values[x.var].raw_dim());
            let to = dx.as_slice_mut().expect(ROW_MAJOR);
            dy.iter().zip(&best).for_each(|(d, &at)| to[at] += d);
            gradients.add(x.var, dx);
        });
        Images { var, samples: x.samples, side: half }
    }

    /// Returns a row for each sample, with its channels' pixels one after the other.
    pub(crate) fn flatten(&mut self, x: Images) -> Var {
        let pixels = x.side * x.side;
        let value = self.value(x.var);
        let channels = value.nrows();
        let place = move |sample: usize, i: usize| [i / pixels, sample * pixels + i % pixels];
        let y = Array2::from_shape_fn((x.samples, channels * pixels), |(s, i)| value[place(s, i)]);
        self.computed(y, move |_, dy, gradients| {
            let shape = (channels, x.samples * pixels);
            let dx = |(c, column)| dy[[column / pixels, c * pixels + column % pixels]];
            gradients.add(x.var, Array2::from_shape_fn(shape, dx));
        })
    }
}

/// Returns the runs of pixels that a tap meets in one image: from, to and length.
fn runs(side: usize, tap: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let (down, right) = (tap / 3, tap % 3);
    // A tap at 0 meets the pixel before, one at 2 the pixel after.
    let first = |shift: usize| 1usize.saturating_sub(shift);
    let last = move |shift: usize| side.min(side + 1 - shift);
    let (column, len) = (first(right), last(right) - first(right));
    (first(down)..last(down))
        .map(move |row| ((row + down - 1) * side + column + right - 1, row * side + column, len))
}

/// Returns the pixels that each tap meets: row c x 9 + k has what tap k meets in channel c, 0 outside.
fn gather(x: &Array2<f32>, side: usize) -> Array2<f32> {
    let mut taps = Array2::zeros((x.nrows() * TAPS, x.ncols()));
    for (row, mut to) in taps.rows_mut().into_iter().enumerate() {
        let (from, runs): (_, Vec<_>) = (x.row(row / TAPS), runs(side, row % TAPS).collect());
        let (from, to) = (from.to_slice().expect(ROW_MAJOR), to.as_slice_mut().expect(ROW_MAJOR));
        for (from, to) in from.chunks_exact(side * side).zip(to.chunks_exact_mut(side * side)) {
            runs.iter().for_each(|&(a, b, len)| to[b..b + len].copy_from_slice(&from[a..a + len]));
        }
    }
    taps
}

/// Returns the sum at each pixel over the taps that meet it: the adjoint of [`gather`].
fn scatter(taps: &Array2<f32>, side: usize) -> Array2<f32> {
    let mut x = Array2::zeros((taps.nrows() / TAPS, taps.ncols()));
    for (row, from) in taps.rows().into_iter().enumerate() {
        let (mut to, runs): (_, Vec<_>) = (x.row_mut(row / TAPS), runs(side, row % TAPS).collect());
        let (from, to) = (from.to_slice().expect(ROW_MAJOR), to.as_slice_mut().expect(ROW_MAJOR));
        for (from, to) in from.chunks_exact(side * side).zip(to.chunks_exact_mut(side * side)) {
            for &(a, b, len) in &runs {
                to[a..a + len].iter_mut().zip(&from[b..b + len]).for_each(|(sum, d)| *sum += d);
            }
        }
    }
    x
}
