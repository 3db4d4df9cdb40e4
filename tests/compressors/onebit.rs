//! 1-bit Adam (arXiv 2102.02888): workers and a server that exchange encoded updates.

use std::sync::Arc;

use gcodec::block::{CodedBlock, Values};
use gcodec::compress::random::words;
use gcodec::compress::senders::onebit::{OneBitOptions, OneBitServer, OneBitWorker};
use gcodec::compress::{Feedback, Input, Options, Share};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::reduce::{Sum, SumOptions};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn tensor(values: &[f32]) -> TensorBuf {
    TensorBuf::from_f32(vec![values.len() as u64], values).unwrap()
}

fn tensors(rows: &[Vec<f32>]) -> Vec<TensorBuf> {
    rows.iter().map(|row| tensor(row)).collect()
}

fn inputs(tensors: &[TensorBuf]) -> Vec<Input<'_>> {
    let each = NAMES.iter().zip(tensors).zip(0..);
    each.map(|((name, t), tensor)| Input { tensor, name, view: t.view(), base: None }).collect()
}

/// Normally distributed numbers, the same in every run.
fn normal(n: usize, stream: u64) -> Vec<f32> {
    let mut drawn = vec![0; 2 * n];
    words(22, stream, 0, &mut drawn);
    let uniform = |w: u32| (f64::from(w) + 0.5) / 2f64.powi(32);
    let draw = |u: &[u32]| (-2.0 * uniform(u[0]).ln()).sqrt() * (std::f64::consts::TAU * uniform(u[1])).cos();
    drawn.chunks(2).map(|u| draw(u) as f32).collect()
}

fn write(manifest: &Arc<Manifest>, sender: u64, blocks: &[CodedBlock]) -> Vec<u8> {
    let header = UpdateHeader::default().with_sender(sender);
    let (mut encoder, mut bytes) = (Encoder::new(EncodeOptions::default()), Vec::new());
    encoder.update(&mut bytes, &header, manifest, blocks).unwrap();
    encoder.finish(&mut bytes);
    bytes
}

/// Computes the mean of updates as dense tensors.
fn mean(manifest: &Arc<Manifest>, updates: &[Vec<u8>]) -> Vec<TensorBuf> {
    let mut sum = Sum::new(manifest, SumOptions::default());
    for bytes in updates {
        let mut reader = SliceReader::new(bytes, Limits::default());
        while let Some(event) = reader.next_event().unwrap() {
            if let Event::Frame(_, Body::Update(part)) = event {
                sum.add(&part, 1.0).unwrap();
            }
        }
    }
    sum.finish(true).unwrap().tensors().unwrap()
}

/// Group of workers and a server, with the weights of each worker.
struct Group {
    manifest: Arc<Manifest>,
    workers: Vec<OneBitWorker>,
    server: OneBitServer,
    weights: Vec<Vec<Vec<f32>>>,
}

impl Group {
    fn new(settings: OneBitOptions, start: &[Vec<f32>], workers: usize) -> Self {
        let infos =
            NAMES.iter().zip(start).map(|(n, row)| TensorInfo::new(*n, Dtype::F32, [row.len() as u64]));
        Self {
            manifest: Arc::new(Manifest::new(infos.collect()).unwrap()),
            workers: vec![OneBitWorker::new(settings).unwrap(); workers],
            server: OneBitServer::new(settings).unwrap(),
            weights: vec![start.to_vec(); workers],
        }
    }

    /// Runs one step and returns the length of one worker's message in bytes. `gradients` has one row for
    /// each tensor of each worker.
    fn step(&mut self, gradients: &[Vec<Vec<f32>>], rate: f32) -> usize {
        let options = Options::default();
        let mut updates = Vec::new();
        for ((worker, rows), i) in self.workers.iter_mut().zip(gradients).zip(0..) {
            let blocks = worker.message(&inputs(&tensors(rows)), &options).unwrap();
            updates.push(write(&self.manifest, i, &blocks));
        }
        let means = mean(&self.manifest, &updates);
        let blocks = self.server.message(&inputs(&means), &options).unwrap();
        let answer = write(&self.manifest, 0, &blocks);
        for (worker, weights) in self.workers.iter_mut().zip(&mut self.weights) {
            let decoded: Vec<TensorBuf> =
                gcodec::decode(&answer).unwrap().into_iter().map(|(_, t)| t).collect();
            let moves = worker.apply(&inputs(&decoded)).unwrap();
            for (x, d) in weights.iter_mut().flatten().zip(moves.iter().flatten()) {
                *x -= rate * d;
            }
        }
        updates[0].len()
    }
}

#[test]
fn workers_stay_equal_and_resume() {
    let sizes = [1000, 0, 77];
    for group in [Share::Tensor, Share::Len(64)] {
        let settings = OneBitOptions::default().with_warm_up(5).with_group(group);
        let start: Vec<Vec<f32>> = sizes.iter().zip(0..).map(|(&n, t)| normal(n, t)).collect();
        let mut all = Group::new(settings, &start, 3);
        let mut bytes = Vec::new();
        for step in 0..15 {
            let gradients: Vec<Vec<Vec<f32>>> = (0..3)
                .map(|w| sizes.iter().zip(0..).map(|(&n, t)| normal(n, 100 + 9 * step + 3 * w + t)).collect())
                .collect();
            for worker in &mut all.workers {
                let resumed = OneBitWorker::load(settings, worker.steps(), worker.save()).unwrap();
                assert_eq!(resumed, *worker);
                *worker = resumed;
            }
            let resumed = OneBitServer::load(settings, all.server.steps(), all.server.save()).unwrap();
            assert_eq!(resumed, all.server);
            all.server = resumed;
            // A step whose answer was lost is started again.
            all.workers[1].message(&inputs(&tensors(&gradients[0])), &Options::default()).unwrap();
            bytes.push(all.step(&gradients, 1e-3));
            for other in 1..3 {
                assert_eq!(all.weights[other], all.weights[0], "step {step}");
                assert_eq!(all.workers[other].momenta(), all.workers[0].momenta());
            }
            let compressed = step >= 5;
            assert_eq!(all.server.residuals().get("a").is_some(), compressed);
            assert_eq!(all.workers[0].residuals().get("a").is_some(), compressed);
        }
        println!("bytes of a message: {} in the warm-up, then {}", bytes[0], bytes[14]);
        assert_ne!(all.weights[0], start);
    }
}

/// Checks that residual after + decoded message = residual before + message, for workers and server, in
/// 32-bit arithmetic.
#[test]
fn what_a_message_leaves_over_is_in_the_next() {
    let settings = OneBitOptions::default().with_warm_up(2);
    let mut all = Group::new(settings, &[vec![0.0; 500]], 2);
    for step in 0..8 {
        let gradients: Vec<Vec<Vec<f32>>> = (0..2).map(|w| vec![normal(500, 300 + 2 * step + w)]).collect();
        let (workers, server) = (all.workers.clone(), all.server.clone());
        all.step(&gradients, 1e-3);
        let codec = settings.codec(step);
        assert_eq!(codec == Codec::Raw, step < 2);
        if step < 2 {
            continue;
        }
        let left = |f: &Feedback| f.get("a").map_or_else(|| vec![0.0; 500], <[f32]>::to_vec);
        let arrived = |sums: &[f32]| {
            let bytes = gcodec::encode(&[("a", tensor(sums).view())], &codec).unwrap();
            gcodec::decode(&bytes).unwrap()[0].1.view().to_f32().unwrap()
        };
        let add = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f32>>();
        let less = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f32>>();
        let mut sent = Vec::new();
        for w in 0..2 {
            let m = workers[w].momenta().get("a").unwrap();
            let own: Vec<f32> =
                m.iter().zip(&gradients[w][0]).map(|(m, g)| 0.9 * m + (1.0 - 0.9f32) * g).collect();
            let sums = add(&own, &left(workers[w].residuals()));
            sent.push(arrived(&sums));
            assert_eq!(left(all.workers[w].residuals()), less(&sums, &sent[w]), "worker {w} step {step}");
        }
        let mean: Vec<f32> = add(&sent[0], &sent[1]).iter().map(|x| x / 2.0).collect();
        let sums = add(&mean, &left(server.residuals()));
        let answer = arrived(&sums);
        assert_eq!(left(all.server.residuals()), less(&sums, &answer), "server step {step}");
        assert_eq!(all.workers[0].momenta().get("a").unwrap(), answer);
    }
}

/// An element without gradient has no variance. The value of its sign must not be divided by epsilon.
#[test]
fn an_element_without_gradient_does_not_move() {
    let settings = OneBitOptions::default().with_warm_up(3);
    let mut all = Group::new(settings, &[vec![0.5; 100], vec![0.5; 10]], 2);
    for step in 0..50 {
        let gradients: Vec<Vec<Vec<f32>>> = (0..2)
            .map(|w| {
                let mut row = normal(100, 500 + 2 * step + w);
                (row[7], row[8]) = (0.0, if step < 3 { 0.0 } else { 1.0 });
                vec![row, vec![0.0; 10]]
            })
            .collect();
        all.step(&gradients, 1e-3);
        let [a, b] = &all.weights[0][..] else { panic!() };
        assert_eq!((a[7], a[8]), (0.5, 0.5), "step {step}");
        assert_eq!(*b, [0.5; 10]);
        // The other elements move. A division by epsilon would move an element by 10^4 in one step.
        assert!(a.iter().all(|x| (x - 0.5).abs() < 2.5));
        assert!(a.iter().enumerate().all(|(i, &x)| i == 7 || i == 8 || x != 0.5));
        // The residual of such an element stays within the error feedback of its neighbours.
        let largest = |f: &Feedback| f.get("a").map_or(0.0, |r| r.iter().fold(0f32, |m, x| m.max(x.abs())));
        assert!(largest(all.workers[0].residuals()) < 20.0 && largest(all.server.residuals()) < 20.0);
    }
}

#[test]
fn a_refused_step_changes_nothing() {
    let settings = OneBitOptions::default().with_warm_up(1);
    let mut worker = OneBitWorker::new(settings).unwrap();
    let (good, options) = (tensors(&[normal(20, 1)]), Options::default());
    assert!(worker.apply(&inputs(&good)).is_err(), "no step is open");
    for _ in 0..3 {
        let refuse = |worker: &mut OneBitWorker, bad: &[Input<'_>]| {
            let before = worker.clone();
            assert!(worker.message(bad, &options).is_err() && *worker == before);
        };
        refuse(&mut worker, &inputs(&tensors(&[vec![f32::NAN; 20]])));
        refuse(&mut worker, &inputs(&[TensorBuf::new(Dtype::Bf16, vec![20], vec![0; 40]).unwrap()]));
        if worker.steps() > 0 {
            refuse(&mut worker, &inputs(&[TensorBuf::from_f32(vec![4, 5], &[1.0; 20]).unwrap()]));
        }
        worker.message(&inputs(&good), &options).unwrap();
        let before = worker.clone();
        assert!(worker.apply(&inputs(&tensors(&[vec![f32::INFINITY; 20]]))).is_err() && worker == before);
        if worker.steps() == 0 {
            // The square of 1e30 is too large for a variance.
            assert!(worker.apply(&inputs(&tensors(&[vec![1e30; 20]]))).is_err() && worker == before);
        }
        worker.apply(&inputs(&good)).unwrap();
        assert!(worker.apply(&inputs(&good)).is_err(), "no step is open");
    }
    let mut server = OneBitServer::new(settings).unwrap();
    for _ in 0..2 {
        let before = server.clone();
        assert!(
            server.message(&inputs(&tensors(&[vec![f32::NAN; 20]])), &options).is_err() && server == before
        );
        let blocks = server.message(&inputs(&good), &options).unwrap();
        let signs = matches!(blocks[0].values, Values::Sign(_));
        assert_eq!(signs, server.steps() == 2);
    }
    for wrong in [
        settings.with_warm_up(0),
        settings.with_momentum(1.0),
        settings.with_variance(-0.1),
        settings.with_epsilon(0.0),
        settings.with_epsilon(f32::NAN),
        settings.with_group(Share::Len(1)),
    ] {
        assert!(OneBitWorker::new(wrong).is_err() && OneBitServer::new(wrong).is_err());
    }
}

/// Logistic regression with a quadratic penalty. The loss is strongly convex, so the gradient at a point
/// bounds the excess over the minimum: f(x) - min f <= |grad f(x)|^2 / (2 mu), where mu is the factor of the
/// penalty.
struct Regression {
    features: Vec<Vec<f32>>,
    labels: Vec<f32>,
}

const FEATURES: usize = 60;
const MU: f64 = 0.01;

impl Regression {
    fn new(samples: usize) -> Self {
        let truth = normal(FEATURES, 900);
        let features: Vec<Vec<f32>> = (0..samples)
            .map(|s| {
                // Features of different scales, one of them always zero.
                let scale = |i: usize| if i == 5 { 0.0 } else { 0.25 + i as f32 / 20.0 };
                normal(FEATURES, 1000 + s as u64).iter().enumerate().map(|(i, x)| x * scale(i)).collect()
            })
            .collect();
        let noise = normal(samples, 901);
        let label = |(x, noise): (&Vec<f32>, &f32)| {
            (x.iter().zip(&truth).map(|(x, w)| x * w).sum::<f32>() + 3.0 * noise).signum()
        };
        let labels = features.iter().zip(&noise).map(label).collect();
        Self { features, labels }
    }

    /// Computes the mean loss of some samples and its gradient.
    fn loss(&self, samples: std::ops::Range<usize>, w: &[f32]) -> (f64, Vec<f32>) {
        let n = samples.len() as f64;
        let squares: f64 = w.iter().map(|&w| f64::from(w).powi(2)).sum();
        let mut loss = 0.5 * MU * squares;
        let mut gradient: Vec<f64> = w.iter().map(|&w| MU * f64::from(w)).collect();
        for s in samples {
            let dot: f64 = self.features[s].iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let label = f64::from(self.labels[s]);
            loss += (-label * dot).exp().ln_1p() / n;
            let factor = -label / (1.0 + (label * dot).exp()) / n;
            gradient.iter_mut().zip(&self.features[s]).for_each(|(g, x)| *g += factor * f64::from(*x));
        }
        (loss, gradient.iter().map(|&g| g as f32).collect())
    }

    /// Computes the loss of all samples and an upper bound of its excess over the minimum.
    fn excess(&self, w: &[f32]) -> (f64, f64) {
        let (loss, gradient) = self.loss(0..self.labels.len(), w);
        (loss, gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>() / (2.0 * MU))
    }
}

/// Compares Adam and 1-bit Adam on the same schedule. The error that signs add is at most the scale, a mean
/// of magnitudes, times the rate. The rate falls, so both must end near the one minimum: closer than a
/// thousandth of the possible gain, by the bound above. When the variance is frozen, the distance is at least
/// ten times as large, so the sign steps cover the rest. With a constant rate the error of the signs does not
/// fall either; that case is printed, not asserted.
#[test]
fn it_minimises_what_adam_minimises() {
    let (samples, steps, warm_up) = (512, 600, 30);
    let problem = Regression::new(samples);
    let start = vec![vec![0.0; FEATURES]];
    let run = |warm_up: u64, steps: u64, rate: f32, decay: f32| {
        let settings = OneBitOptions::default().with_warm_up(warm_up).with_variance(0.99);
        let mut all = Group::new(settings, &start, 2);
        for step in 0..steps {
            let half = |w: usize| w * samples / 2..(w + 1) * samples / 2;
            let gradients: Vec<Vec<Vec<f32>>> =
                (0..2).map(|w| vec![problem.loss(half(w), &all.weights[w][0]).1]).collect();
            all.step(&gradients, rate * decay.powi(step as i32));
        }
        assert_eq!(all.weights[0], all.weights[1]);
        problem.excess(&all.weights[0][0])
    };
    let (begin, _) = problem.excess(&start[0]);
    println!("loss, and what it is above the minimum at most: {begin:.6} at first");
    for (rate, decay) in [(0.01, 1.0), (0.05, 0.99)] {
        // An endless warm-up is Adam.
        let adam = run(u64::MAX, steps, rate, decay);
        let (frozen, one_bit) = (run(warm_up, warm_up, rate, decay), run(warm_up, steps, rate, decay));
        println!(
            "rate {rate} * {decay}^step: Adam {adam:.6?}, 1-bit Adam {frozen:.6?} after its warm-up, {one_bit:.6?}"
        );
        if decay < 1.0 {
            let bound = 1e-3 * (begin - adam.0);
            assert!(adam.1 < bound && one_bit.1 < bound, "{adam:?} {one_bit:?}");
            assert!(frozen.1 > 10.0 * bound, "{frozen:?}");
        }
    }
}
