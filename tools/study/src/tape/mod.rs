//! Gradients of the networks by reverse mode: a [`Tape`] computes each layer at once, and remembers how to
//! pass a gradient back through it.
//!
//! Every value is a matrix of f32. Products are ndarray's, which run in one thread and repeat bit for bit on
//! one machine.

mod attention;
mod image;
mod layers;

use ndarray::Array2;

pub(crate) use attention::Heads;
pub(crate) use image::Images;

/// Number of a value on its [`Tape`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Var(usize);

/// Takes the gradient of a value, and adds those of what it was computed from.
type Back = Box<dyn Fn(&Values, &Array2<f32>, &mut Gradients)>;

/// Values in the order in which they were computed.
#[derive(Default)]
struct Values(Vec<Array2<f32>>);

impl std::ops::Index<Var> for Values {
    type Output = Array2<f32>;

    fn index(&self, var: Var) -> &Array2<f32> {
        &self.0[var.0]
    }
}

/// Gradients of the values by number; nothing where a loss does not depend on a value.
struct Gradients(Vec<Option<Array2<f32>>>);

impl Gradients {
    fn add(&mut self, to: Var, gradient: Array2<f32>) {
        match &mut self.0[to.0] {
            Some(sum) => *sum += &gradient,
            none => *none = Some(row_major(gradient)),
        }
    }
}

/// Returns a matrix whose rows are slices, which every value and gradient is. ndarray's results can be
/// column-major.
fn row_major(matrix: Array2<f32>) -> Array2<f32> {
    if matrix.is_standard_layout() { matrix } else { matrix.as_standard_layout().into_owned() }
}

const ROW_MAJOR: &str = "values and gradients are row-major";

/// Values of one forward pass, and the way back to their gradients.
#[derive(Default)]
pub(crate) struct Tape {
    values: Values,
    backs: Vec<Option<Back>>,
}

impl Tape {
    /// Adds a value that is not computed: an input or a parameter.
    pub(crate) fn leaf(&mut self, value: Array2<f32>) -> Var {
        self.push(value, None)
    }

    pub(crate) fn value(&self, var: Var) -> &Array2<f32> {
        &self.values[var]
    }

    /// Returns the gradient of the sum of a value's elements by each of `leaves`, row-major; zeros by leaves
    /// on which it does not depend.
    pub(crate) fn gradients(&self, of: Var, leaves: &[Var]) -> Vec<Vec<f32>> {
        let mut gradients = Gradients(vec![None; self.backs.len()]);
        gradients.add(of, Array2::ones(self.value(of).raw_dim()));
        for (number, back) in self.backs.iter().enumerate().rev() {
            let Some(back) = back else { continue };
            // Nothing later than a value can still change its gradient.
            if let Some(gradient) = gradients.0[number].take() {
                back(&self.values, &gradient, &mut gradients);
            }
        }
        let row_major = |leaf: &Var| match gradients.0[leaf.0].take() {
            Some(gradient) => gradient.iter().copied().collect(),
            None => vec![0.0; self.value(*leaf).len()],
        };
        leaves.iter().map(row_major).collect()
    }

    fn computed(
        &mut self,
        value: Array2<f32>,
        back: impl Fn(&Values, &Array2<f32>, &mut Gradients) + 'static,
    ) -> Var {
        self.push(value, Some(Box::new(back)))
    }

    fn push(&mut self, value: Array2<f32>, back: Option<Back>) -> Var {
        self.values.0.push(row_major(value));
        self.backs.push(back);
        Var(self.backs.len() - 1)
    }
}

#[cfg(test)]
mod tests;
