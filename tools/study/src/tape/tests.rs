//! Gradients against difference quotients, and layers against their definitions.

use gcodec::compress::random;
use ndarray::Array2;

use super::{Heads, Images, Tape, Var};

/// Returns numbers between -1 and 1.
fn draw(seed: u64, rows: usize, columns: usize) -> Array2<f32> {
    let number = |i: usize| random::word(seed, 0, i as u64) as i32 as f32 / 2f32.powi(31);
    Array2::from_shape_fn((rows, columns), |(row, column)| number(row * columns + column))
}

/// Compares the gradient of the sum of a network's output with central difference quotients.
fn compare(leaves: &[Array2<f32>], network: impl Fn(&mut Tape, &[Var]) -> Var) {
    let sum = |leaves: &[Array2<f32>]| {
        let mut tape = Tape::default();
        let vars: Vec<Var> = leaves.iter().map(|leaf| tape.leaf(leaf.clone())).collect();
        let output = network(&mut tape, &vars);
        let sum: f64 = tape.value(output).iter().map(|&x| f64::from(x)).sum();
        (sum, tape.gradients(output, &vars))
    };
    let (_, gradients) = sum(leaves);
    const STEP: f32 = 1.0 / 128.0;
    for (number, of_leaf) in gradients.iter().enumerate() {
        for (i, &gradient) in of_leaf.iter().enumerate() {
            let moved = |by: f32| {
                let mut moved = leaves.to_vec();
                moved[number].as_slice_mut().unwrap()[i] += by;
                sum(&moved).0
            };
            let quotient = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
            let gradient = f64::from(gradient);
            let fault = (quotient - gradient).abs();
            assert!(
                fault <= 2e-3 + 2e-3 * gradient.abs(),
                "leaf {number}, {i}: {gradient}, quotient {quotient}"
            );
        }
    }
}

#[test]
fn gradients_of_dense_layers_are_difference_quotients() {
    let leaves = [draw(1, 4, 6), draw(2, 6, 5), draw(3, 1, 5), draw(4, 5, 3)];
    compare(&leaves, |tape, v| {
        let x = tape.linear(v[0], v[1], v[2]);
        let x = tape.gelu(x);
        let logits = tape.product(x, v[3]);
        tape.cross_entropy(logits, vec![2, 0, 1, 1])
    });
}

#[test]
fn gradients_of_a_residual_block_are_difference_quotients() {
    let heads = Heads { samples: 2, context: 3, heads: 2, width: 4 };
    let leaves = [
        draw(1, 5, 8),
        draw(2, 1, 8),
        draw(3, 1, 8),
        draw(4, 8, 24),
        draw(5, 1, 24),
        draw(6, 8, 8),
        draw(7, 1, 8),
    ];
    compare(&leaves, |tape, v| {
        // The first rows of the table are used twice, the last row never.
        let x = tape.rows(v[0], vec![0, 1, 0, 3, 2, 1]);
        let normed = tape.layer_norm(x, v[1], v[2]);
        let all = tape.linear(normed, v[3], v[4]);
        let mixed = tape.attention(all, heads);
        let mixed = tape.linear(mixed, v[5], v[6]);
        let x = tape.add(x, mixed);
        tape.cross_entropy(x, vec![0, 1, 2, 3, 4, 5])
    });
}

#[test]
fn gradients_of_a_convolutional_network_are_difference_quotients() {
    // Multiples of a step of 1/16 plus a part of its own for each pixel: no rectifier and no largest pixel
    // changes within the steps of the quotient.
    let image = Array2::from_shape_fn((1, 32), |(_, i)| ((i * 23) % 32) as f32 / 16.0 - 0.96);
    let kernel = |seed, outputs: usize, inputs: usize| draw(seed, outputs, inputs * 9);
    let leaves = [
        kernel(1, 3, 1),
        draw(2, 1, 3) * 0.1 + 2.0,
        kernel(3, 2, 3),
        draw(4, 1, 2),
        draw(5, 8, 4),
        draw(6, 1, 4),
    ];
    compare(&leaves, |tape, v| {
        let x = Images { var: tape.leaf(image.clone()), samples: 2, side: 4 };
        let x = tape.conv(x, v[0], v[1]);
        let x = Images { var: tape.relu(x.var), ..x };
        let x = tape.conv(x, v[2], v[3]);
        let x = tape.max_pool(x);
        let x = tape.flatten(x);
        let logits = tape.linear(x, v[4], v[5]);
        tape.cross_entropy(logits, vec![1, 3])
    });
}

#[test]
fn convolutions_and_pools_are_as_defined() {
    let (channels, samples, side, outputs) = (2, 3, 4, 5);
    let (x, kernel, bias) =
        (draw(1, channels, samples * 16), draw(2, outputs, channels * 9), draw(3, 1, outputs));
    let mut tape = Tape::default();
    let images = Images { var: tape.leaf(x.clone()), samples, side };
    let vars = (tape.leaf(kernel.clone()), tape.leaf(bias.clone()));
    let y = tape.conv(images, vars.0, vars.1);
    let pooled = tape.max_pool(y);
    let flat = tape.flatten(pooled);
    let pixel = |c: usize, sample: usize, row: isize, column: isize| {
        let inside = (0..4).contains(&row) && (0..4).contains(&column);
        if inside { x[[c, sample * 16 + (row * 4 + column) as usize]] } else { 0.0 }
    };
    let convolved = |o: usize, sample: usize, row: usize, column: usize| {
        let mut sum = bias[[0, o]];
        for c in 0..channels {
            for k in 0..9 {
                let (row, column) = ((row + k / 3) as isize - 1, (column + k % 3) as isize - 1);
                sum += kernel[[o, c * 9 + k]] * pixel(c, sample, row, column);
            }
        }
        sum
    };
    for o in 0..outputs {
        for sample in 0..samples {
            for (row, column) in (0..16).map(|i| (i / 4, i % 4)) {
                let (is, wanted) = (
                    tape.value(y.var)[[o, sample * 16 + row * 4 + column]],
                    convolved(o, sample, row, column),
                );
                assert!((is - wanted).abs() < 1e-5, "{is} {wanted}");
            }
            for (row, column) in (0..4).map(|i| (i / 2, i % 2)) {
                let four = (0..4).map(|i| convolved(o, sample, 2 * row + i / 2, 2 * column + i % 2));
                let (is, wanted) =
                    (tape.value(flat)[[sample, o * 4 + row * 2 + column]], four.fold(f32::MIN, f32::max));
                assert!((is - wanted).abs() < 1e-5, "{is} {wanted}");
            }
        }
    }
}

#[test]
fn a_row_attends_to_no_later_row() {
    let heads = Heads { samples: 1, context: 4, heads: 1, width: 2 };
    let run = |x: Array2<f32>| {
        let mut tape = Tape::default();
        let x = tape.leaf(x);
        let y = tape.attention(x, heads);
        tape.value(y).clone()
    };
    let x = draw(1, 4, 6);
    let mut changed = x.clone();
    changed.row_mut(3).fill(9.0);
    let (before, after) = (run(x.clone()), run(changed));
    assert_eq!(before.row(0), x.row(0).slice(ndarray::s![4..]), "the first row sees its own values alone");
    assert!((0..3).all(|row| before.row(row) == after.row(row)));
    assert_ne!(before.row(3), after.row(3));
}

#[test]
fn a_leaf_without_use_has_the_gradient_zero() {
    let mut tape = Tape::default();
    let (used, unused) = (tape.leaf(draw(1, 1, 3)), tape.leaf(draw(2, 2, 2)));
    let y = tape.add(used, used);
    assert_eq!(tape.gradients(y, &[used, unused]), [vec![2.0; 3], vec![0.0; 4]]);
}
