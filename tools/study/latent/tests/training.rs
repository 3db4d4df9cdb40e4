//! Training: burn agrees with the model's own inference, learns from real gradients, and repeats bit for
//! bit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gcodec::compress::{Amount, random};
use gcodec_latent::protocol::{Variant, classes};
use gcodec_latent::{Architecture, CodeFormat, Innovation, Layer, Model};
use gcodec_latent_train::autoencoder::{Loss, Optimizer, Training, burn_forward, train};
use gcodec_latent_train::digits::Digits;
use gcodec_latent_train::dumps::{Step, read, signals};
use gcodec_latent_train::experiment::{Experiment, gradients, measure, run, third_phase};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}

fn data() -> PathBuf {
    root().join("tools/study/digits/digits.u8")
}

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    (0..count as u64).map(|i| (random::word(seed, 0, i) as i32) as f32 / 2f32.powi(31)).collect()
}

#[test]
fn burn_computes_what_inference_does() {
    for (innovation, bias) in [(Innovation::None, false), (Innovation::Channel, true)] {
        let architecture = Architecture::new(2, innovation).with_width(12).with_bias(bias);
        let model = architecture.init(3).unwrap();
        // Initial biases are zero; these are not.
        let change = |layers: &[Layer]| -> Vec<Layer> {
            let mut layers = layers.to_vec();
            for layer in &mut layers {
                if let Layer::Conv(c) | Layer::Transposed(c) = layer {
                    c.bias = c.bias.as_ref().map(|b| numbers(7, b.len()));
                }
            }
            layers
        };
        let decoders = model.decoders().iter().map(|d| change(d.layers())).collect();
        let model = Model::new(innovation, change(model.encoder().layers()), decoders).unwrap();
        for m in [1, 15, 16, 17, 500] {
            let values = numbers(m as u64, m);
            let extra: Vec<(usize, f32)> = match innovation {
                Innovation::None => Vec::new(),
                _ => (0..m).step_by(5).map(|i| (i, values[i])).collect(),
            };
            let (codes, decoded) = burn_forward(&model, &values, &extra).unwrap();
            near(&codes, &model.encode(&values).unwrap());
            for (sender, burn) in decoded.iter().enumerate() {
                near(burn, &model.decode(sender as u64, &codes, m, &extra).unwrap());
            }
        }
    }
}

/// Five layers, each a binary32 sum of at most 3 x 48 products: an error of at most 5 x 144 x 2^-24 = 4e-5
/// of the sum of their magnitudes, which is a few times the largest result.
fn near(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 2e-4 * largest, "{worst} of {largest}");
}

fn small() -> Experiment {
    let training = Training { iterations: 60, batch: 8, window: 128, ..Training::default() };
    Experiment { skipped: 5, learned: 15, later: 20, densities: vec![0.01], width: 8, training }
}

fn steps() -> (Vec<Step>, Vec<Step>) {
    let digits = Digits::read(&data()).unwrap();
    let (learned, later, _) = gradients(&small(), &digits, |_, _| {}).unwrap();
    (learned, later)
}

#[test]
fn it_learns_and_does_the_same_twice() {
    let (learned, later) = steps();
    assert_eq!((learned.len(), later.len()), (15, 4));
    let amount = Amount::Density(0.01);
    let data: Vec<_> = learned.iter().map(|s| signals(s, amount).unwrap()).collect();
    let classes = classes(&learned[0].manifest).unwrap();
    for (variant, decoders, innovation) in
        [(Variant::Server, 4, Innovation::Channel), (Variant::Ring, 1, Innovation::None)]
    {
        let untrained = Architecture::new(decoders, innovation).with_width(8).init(1).unwrap();
        let mut losses: Vec<Loss> = Vec::new();
        let training = Training { iterations: 150, ..small().training };
        let trained = train(&untrained, &data, &training, |_, loss| losses.push(loss)).unwrap();
        let mean = |l: &[Loss]| l.iter().map(|l| l.rec).sum::<f64>() / l.len() as f64;
        let (first, last) = (mean(&losses[..10]), mean(&losses[losses.len() - 10..]));
        assert!(last < first, "{variant:?}: {first} to {last}");
        let settings = third_phase(variant, classes.clone(), 0.01, CodeFormat::Int8, 0.1);
        let before = measure(&later, &settings, Some(&Arc::new(untrained.clone()))).unwrap();
        let after = measure(&later, &settings, Some(&Arc::new(trained))).unwrap();
        assert_eq!(before.bytes, after.bytes);
        // Better than zeros, on steps outside the training.
        assert!(after.mean_error < 1.0 && after.mean_error < before.mean_error, "{before:?} {after:?}");
        if variant == Variant::Server {
            assert!(after.set_error < 1.0, "{after:?}");
        }
        let training = Training { iterations: 5, ..training };
        let again = || train(&untrained, &data, &training, |_, _| {}).unwrap().id();
        assert_eq!(again(), again());
    }
}

#[test]
fn the_gradients_are_the_same_twice() {
    let (first, second) = (steps().0, steps().0);
    assert!(first.iter().zip(&second).all(|(a, b)| a.workers == b.workers));
}

#[test]
fn the_experiment_writes_its_table() {
    let training = Training { iterations: 3, ..small().training };
    let experiment = Experiment { learned: 4, later: 6, training, ..small() };
    let text = run(&experiment, &data(), |_| {}).unwrap();
    for row in [
        "LGC-PS, int8",
        "innovation replaces",
        "LGC-ring",
        "no autoencoder",
        "top-k pow2",
        "top-k bf16",
        "top-k f32",
    ] {
        assert!(text.contains(row), "{row}: {text}");
    }
    assert!(!text.contains("NaN"), "{text}");
}

#[test]
fn the_papers_optimizer_runs_too() {
    let data: Vec<_> = steps().0.iter().map(|s| signals(s, Amount::Density(0.01)).unwrap()).collect();
    let model = Architecture::new(4, Innovation::Replace).with_width(4).init(1).unwrap();
    let training = Training { optimizer: Optimizer::Sgd, rate: 1e-3, iterations: 5, ..small().training };
    assert_ne!(train(&model, &data, &training, |_, _| {}).unwrap().id(), model.id());
    let three = Architecture::new(3, Innovation::Replace).with_width(4).init(1).unwrap();
    assert!(train(&three, &data, &training, |_, _| {}).is_err());
    assert!(train(&model, &[], &training, |_, _| {}).is_err());
}

#[test]
fn dumps_of_several_workers_are_trained_on() {
    let folder =
        std::env::var_os("GCODEC_GRADIENTS").map_or(root().join("../shared/gradients"), PathBuf::from);
    let paths: Vec<PathBuf> =
        (0..4).map(|w| folder.join(format!("resnet_step0200_worker{w}.safetensors"))).collect();
    if !paths.iter().all(|p| p.exists()) {
        println!("skipped: no gradients in {}", folder.display());
        return;
    }
    let steps = read(&paths, Some("conv1"), Some("fc")).unwrap();
    assert_eq!(steps.len(), 1);
    let data = signals(&steps[0], Amount::Density(0.001)).unwrap();
    assert_eq!((data.leader, data.values.len()), (0, 4));
    // The sum of max(1, n / 1000) over all tensors except those of the first and the last layer.
    assert_eq!(data.values[0].len(), 735);
    let model = Architecture::new(4, Innovation::Channel).with_width(4).init(1).unwrap();
    let training = Training { iterations: 3, ..small().training };
    train(&model, &[data], &training, |_, _| {}).unwrap();
    assert!(read(&paths[1..], None, None).is_err(), "worker 0 is missing");
    assert!(read(&[PathBuf::from("x.safetensors")], None, None).is_err());
}
