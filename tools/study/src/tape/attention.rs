//! Causal attention of several heads (arXiv 1706.03762).

use ndarray::{Array2, ArrayView2, s};

use super::layers::soft_max;
use super::{ROW_MAJOR, Tape, Var, row_major};

/// Shape of an attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) samples: usize,
    /// Rows of a sample.
    pub(crate) context: usize,
    pub(crate) heads: usize,
    /// Columns of a head.
    pub(crate) width: usize,
}

impl Heads {
    /// Returns the queries (0), keys (1) or values (2) of a head of a sample.
    fn part<'x>(
        &self,
        all: &'x Array2<f32>,
        sample: usize,
        which: usize,
        head: usize,
    ) -> ArrayView2<'x, f32> {
        let (row, column) = (sample * self.context, (which * self.heads + head) * self.width);
        all.slice(s![row..row + self.context, column..column + self.width])
    }

    fn each(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.samples).flat_map(move |sample| (0..self.heads).map(move |head| (sample, head)))
    }

    fn scale(&self) -> f32 {
        (self.width as f32).sqrt().recip()
    }
}

impl Tape {
    /// Returns each row's mean of the values of its sample's rows up to itself, weighted by the softmax of
    /// query times key. `x`: (samples x context) rows of the heads' queries, then their keys, then their
    /// values.
    pub(crate) fn attention(&mut self, x: Var, heads: Heads) -> Var {
        let all = self.value(x);
        let (mut weights, mut y) = (Vec::new(), Array2::zeros((all.nrows(), heads.heads * heads.width)));
        for (sample, head) in heads.each() {
            let part = |which| heads.part(all, sample, which, head);
            let mut scores = row_major(part(0).dot(&part(1).t()) * heads.scale());
            for (i, mut row) in scores.rows_mut().into_iter().enumerate() {
                let (seen, later) = row.as_slice_mut().expect(ROW_MAJOR).split_at_mut(i + 1);
                soft_max(seen);
                later.fill(0.0);
            }
            heads.out_mut(&mut y, sample, head).assign(&scores.dot(&part(2)));
            weights.push(scores);
        }
        self.computed(y, move |values, dy, gradients| {
            let all = &values[x];
            let mut dx = Array2::zeros(all.raw_dim());
            for ((sample, head), weights) in heads.each().zip(&weights) {
                let part = |which| heads.part(all, sample, which, head);
                let dy = heads.part(dy, sample, 0, head);
                let mut d = dy.dot(&part(2).t());
                for (mut d, weights) in d.rows_mut().into_iter().zip(weights.rows()) {
                    let mean = d.dot(&weights);
                    d.zip_mut_with(&weights, |d, w| *d = w * (*d - mean) * heads.scale());
                }
                for (which, d) in
                    [d.dot(&part(1)), d.t().dot(&part(0)), weights.t().dot(&dy)].iter().enumerate()
                {
                    heads.out_mut(&mut dx, sample, which * heads.heads + head).assign(d);
                }
            }
            gradients.add(x, dx);
        })
    }
}

impl Heads {
    /// Returns the rows of a sample and the columns of a head.
    fn out_mut<'y>(
        &self,
        y: &'y mut Array2<f32>,
        sample: usize,
        head: usize,
    ) -> ndarray::ArrayViewMut2<'y, f32> {
        let (row, column) = (sample * self.context, head * self.width);
        y.slice_mut(s![row..row + self.context, column..column + self.width])
    }
}
