//! PowerSGD: its factors, the protocol between many workers, and the size of a step of a ResNet18.

use gcodec::block::{Block, CodedBlock, IndexSpace, PendingBlock, Sets, Values};
use gcodec::compress::senders::powersgd::{PowerSgdOptions, PowerSgdWorker};
use gcodec::compress::{Feedback, Input, Options, compress, random};
use gcodec::error::InputErrorKind;
use gcodec::frame::{Budget, Manifest, TensorInfo, UpdateHeader};
use gcodec::reduce::{Sum, SumOptions, add};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Error, Limits, TensorBuf};
use std::sync::Arc;

fn uniform(n: usize, seed: u64) -> Vec<f32> {
    (0..n as u64).map(|i| random::word(seed, 0, i) as i32 as f32 / 2e9).collect()
}

/// Sum of `rank` outer products, the t-th with weight 2^-t.
fn of_rank(rows: usize, cols: usize, rank: usize, seed: u64) -> Vec<f32> {
    let (p, q) = (uniform(rows * rank, seed), uniform(cols * rank, seed + 1000));
    let element = |i: usize, j: usize| -> f64 {
        (0..rank)
            .map(|t| f64::from(p[i * rank + t]) * f64::from(q[j * rank + t]) * 0.5f64.powi(t as i32))
            .sum()
    };
    (0..rows * cols).map(|at| element(at / cols, at % cols) as f32).collect()
}

fn send(
    shape: &[u64],
    values: &[f32],
    spec: &str,
    feedback: Option<&mut Feedback>,
) -> (Vec<CodedBlock>, Vec<f32>) {
    let tensor = TensorBuf::from_f32(shape.to_vec(), values).unwrap();
    let input = Input { tensor: 0, name: "w", view: tensor.view(), base: None };
    let blocks = compress(&[input], &[spec.parse().unwrap()], &Options::default(), feedback).unwrap();
    let space = IndexSpace::flat(Dtype::F32, tensor.view().elements());
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", Dtype::F32, shape.to_vec())]).unwrap());
    let decoded = gcodec::decode(&stream(&manifest, &blocks, 0)).unwrap().remove(0).1;
    assert_eq!(space.len(), decoded.view().elements());
    (blocks, decoded.view().to_f32().unwrap())
}

fn stream<'a, B: Into<PendingBlock<'a>>>(
    manifest: &Arc<Manifest>,
    blocks: impl IntoIterator<Item = B>,
    sender: u64,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
    let header = UpdateHeader::default().with_sender(sender);
    encoder.update(&mut out, &header, manifest, blocks.into_iter().map(B::into)).unwrap();
    encoder.finish(&mut out);
    out
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

fn error(a: &[f32], b: &[f32]) -> f64 {
    norm(a.iter().zip(b).map(|(a, b)| a - b)) / norm(b.iter().copied())
}

/// Recovers a matrix whose rank is at most that of the codec. The matrix is rounded to 24 bits. A start that
/// is nearly orthogonal to the factor sought multiplies this error by the inverse of their cosine: 400 for
/// the first case. The next step starts from the factor found.
#[test]
fn a_matrix_of_no_higher_rank_comes_back() {
    for (rank, true_rank) in [(1, 1), (4, 4), (4, 2), (8, 3), (3, 1)] {
        let matrix = of_rank(60, 90, true_rank, 5);
        let spec = format!("powersgd:rank={rank}");
        let mut feedback = Feedback::new();
        for bound in [1e-4, 2e-7] {
            let (blocks, decoded) = send(&[60, 90], &matrix, &spec, Some(&mut feedback));
            assert!(matches!(blocks[0].values, Values::LowRank(_)));
            let error = error(&decoded, &matrix);
            println!("rank {rank} of {true_rank}: {error:.1e}");
            assert!(error < bound, "{rank} {true_rank}: {error}");
            feedback = factors(&feedback);
        }
    }
    // The number of columns is the product of a convolution's other dimensions.
    let matrix = of_rank(32, 147, 2, 6);
    let (_, decoded) = send(&[32, 3, 7, 7], &matrix, "powersgd:rank=2", None);
    assert!(error(&decoded, &matrix) < 1e-4);
}

/// Returns the factors without the residuals.
fn factors(feedback: &Feedback) -> Feedback {
    Feedback::load(feedback.save().into_iter().filter(|(name, _)| name.ends_with("#powersgd"))).unwrap()
}

#[test]
fn zeros_stay_zeros_and_finite() {
    let mut feedback = Feedback::new();
    let zeros = vec![0.0; 40 * 50];
    for _ in 0..3 {
        let (_, decoded) = send(&[40, 50], &zeros, "powersgd:rank=4", Some(&mut feedback));
        assert_eq!(decoded, zeros);
        assert_eq!(feedback.norm(), 0.0);
    }
    // A zero factor starts anew, so the first nonzero matrix loses nothing.
    let matrix = of_rank(40, 50, 4, 7);
    let (_, decoded) = send(&[40, 50], &matrix, "powersgd:rank=4", Some(&mut feedback));
    assert!(error(&decoded, &matrix) < 1e-4);
    // Zero rows and columns, one nonzero column, tiny and huge elements.
    for scale in [1.0, 1e-36, 1e36] {
        let mut sparse = vec![0.0; 40 * 50];
        sparse[7 * 50 + 9] = scale;
        sparse[8 * 50 + 9] = -2.0 * scale;
        let (_, decoded) = send(&[40, 50], &sparse, "powersgd:rank=4", None);
        let relative = |values: &[f32]| values.iter().map(|x| x / scale).collect::<Vec<f32>>();
        assert!(error(&relative(&decoded), &relative(&sparse)) < 1e-5, "{scale}");
    }
}

#[test]
fn the_residual_is_what_did_not_arrive_and_the_start_is_warm() {
    // The matrix is fixed and its residual is not fed back: only the basis improves from step to step.
    let matrix: Vec<f32> =
        of_rank(64, 100, 12, 1).iter().zip(uniform(6400, 2)).map(|(a, b)| a + 0.01 * b).collect();
    let (mut feedback, mut errors) = (Feedback::new(), Vec::new());
    for _ in 0..6 {
        let (_, decoded) = send(&[64, 100], &matrix, "powersgd:rank=3", Some(&mut feedback));
        let left: Vec<f32> = matrix.iter().zip(&decoded).map(|(x, d)| x - d).collect();
        assert_eq!(feedback.get("w"), Some(left.as_slice()));
        assert_eq!(Feedback::load(feedback.save()).unwrap(), feedback);
        feedback = factors(&feedback);
        errors.push(error(&decoded, &matrix));
    }
    println!("relative error of rank 3 by step: {errors:.4?}");
    assert!(errors.windows(2).all(|e| e[1] <= e[0] + 1e-6), "{errors:?}");
    assert!(errors[5] < 0.97 * errors[0], "{errors:?}");
    // With feedback of the residual, the sum of the decoded matrices approaches the sum of the inputs.
    let (mut feedback, mut arrived) = (Feedback::new(), vec![0.0f64; 6400]);
    for step in 1..=40 {
        let (_, decoded) = send(&[64, 100], &matrix, "powersgd:rank=3", Some(&mut feedback));
        arrived.iter_mut().zip(decoded).for_each(|(a, d)| *a += f64::from(d));
        let missing: Vec<f32> =
            matrix.iter().zip(&arrived).map(|(x, a)| (f64::from(*x) * f64::from(step) - a) as f32).collect();
        let kept = feedback.get("w").unwrap();
        assert!(error(&missing, kept) < 1e-4, "step {step}");
    }
}

#[test]
fn vectors_and_small_matrices_go_as_they_are() {
    for shape in [&[100][..], &[], &[8, 8], &[2, 3, 1], &[1, 50]] {
        let n = shape.iter().product::<u64>() as usize;
        let values = uniform(n, 3);
        let (blocks, decoded) = send(shape, &values, "powersgd:rank=4", None);
        assert!(matches!(blocks[0].values, Values::Floats(_)), "{shape:?}");
        assert_eq!(decoded, values);
    }
    assert!(send(&[0, 5], &[], "powersgd", None).0.is_empty());
    let nan = TensorBuf::from_f32(vec![20, 20], &[f32::NAN; 400]).unwrap();
    let input = Input { tensor: 0, name: "w", view: nan.view(), base: None };
    let mut feedback = Feedback::new();
    let refused =
        compress(&[input], &["powersgd:rank=1".parse().unwrap()], &Options::default(), Some(&mut feedback));
    assert!(
        matches!(refused, Err(Error::Input(e)) if matches!(e.kind, InputErrorKind::NonFinite { index: 0 }))
    );
    assert_eq!(feedback, Feedback::new());
}

const SHAPES: [&[u64]; 4] = [&[48, 80], &[48], &[16, 3, 5, 5], &[4, 4]];

fn model() -> Arc<Manifest> {
    let infos = SHAPES
        .iter()
        .zip(["a", "b", "c", "d"])
        .map(|(s, name)| TensorInfo::new(name, Dtype::F32, s.to_vec()));
    Arc::new(Manifest::new(infos.collect()).unwrap())
}

fn gradients(worker: u64, step: u64) -> Vec<TensorBuf> {
    let tensor = |(t, shape): (u64, &&[u64])| {
        let n = shape.iter().product::<u64>() as usize;
        let values = uniform(n, 1000 * worker + 10 * step + t);
        TensorBuf::from_f32(shape.to_vec(), &values).unwrap()
    };
    (0..).zip(&SHAPES).map(tensor).collect()
}

fn views(tensors: &[TensorBuf]) -> Vec<gcodec::TensorView<'_>> {
    tensors.iter().map(TensorBuf::view).collect()
}

/// Computes the mean of the workers' messages, as a node that receives their streams does.
fn mean(manifest: &Arc<Manifest>, parts: &[Vec<Block>]) -> Vec<TensorBuf> {
    let mut sum = Sum::new(manifest, SumOptions::default());
    for (blocks, sender) in parts.iter().zip(0..) {
        for event in SliceReader::new(&stream(manifest, blocks, sender), Limits::default()) {
            if let Event::Frame(_, Body::Update(part)) = event.unwrap() {
                sum.add(&part, 1.0).unwrap();
            }
        }
    }
    sum.finish(true).unwrap().tensors().unwrap()
}

#[test]
fn workers_agree_bit_by_bit_and_lose_nothing() {
    let manifest = model();
    let mut workers = vec![PowerSgdWorker::new(&manifest, PowerSgdOptions::new(2).with_seed(9)).unwrap(); 3];
    let mut total = SHAPES.map(|s| vec![0.0f64; s.iter().product::<u64>() as usize]);
    for step in 0..4 {
        let mut given: Vec<Vec<TensorBuf>> = Vec::new();
        let mut ps = Vec::new();
        for (worker, rank) in workers.iter_mut().zip(0..) {
            given.push(gradients(rank, step));
            ps.push(worker.begin(&views(&given[rank as usize])).unwrap());
        }
        // The factors can be added without decoding.
        let space = IndexSpace::flat(Dtype::F32, 48 * 2);
        let sum = add(&ps[0][0], &ps[1][0], &space, &Sets::new()).unwrap();
        let budget = Budget::new(&Limits::default());
        assert!(sum.values.gives_bits() && sum.positions(&space, &Sets::new(), &budget).unwrap().len() == 96);
        let p_mean = mean(workers[0].p_manifest(), &ps);
        let qs: Vec<_> = workers.iter_mut().map(|w| w.take_p(&views(&p_mean)).unwrap()).collect();
        assert_eq!(qs[0].len(), 2);
        let q_mean = mean(workers[0].q_manifest(), &qs);
        let updates: Vec<_> = workers.iter_mut().map(|w| w.take_q(&views(&q_mean)).unwrap()).collect();
        assert!(updates.iter().all(|u| stream(&manifest, u, 0) == stream(&manifest, &updates[0], 0)));
        let update = gcodec::decode(&stream(&manifest, &updates[0], 0)).unwrap();
        // The new residual of a worker is its gradient plus its old residual, less the update that it
        // applies.
        for (worker, (given, rank)) in workers.iter_mut().zip(given.iter().zip(0u64..)) {
            let before = worker.memory().clone();
            worker.finish().unwrap();
            for ((name, update), gradient) in update.iter().zip(given) {
                let gradient = gradient.view().to_f32().unwrap();
                let zeros = vec![0.0; gradient.len()];
                let kept = before.get(name).unwrap_or(&zeros);
                let after: Vec<f32> = if matches!(name.as_str(), "b" | "d") {
                    zeros.clone()
                } else {
                    let sums = gradient.iter().zip(kept).map(|(g, e)| g + e);
                    sums.zip(update.view().to_f32().unwrap()).map(|(x, d)| x - d).collect()
                };
                assert_eq!(worker.memory().get(name), Some(after.as_slice()), "worker {rank} {name}");
            }
        }
        for (total, t) in total.iter_mut().zip(0..) {
            let applied = update[t].1.view().to_f32().unwrap();
            for (i, x) in total.iter_mut().enumerate() {
                let means =
                    given.iter().map(|g| f64::from(g[t].view().to_f32().unwrap()[i])).sum::<f64>() / 3.0;
                *x += means - f64::from(applied[i]);
            }
        }
    }
    // The mean gradients of all steps add up to the applied updates plus the mean residual.
    for (total, name) in total.iter().zip(["a", "b", "c", "d"]) {
        for (i, x) in total.iter().enumerate() {
            let kept: f64 =
                workers.iter().map(|w| f64::from(w.memory().get(name).unwrap()[i])).sum::<f64>() / 3.0;
            assert!((x - kept).abs() < 1e-5, "{name} {i}");
        }
    }
    // A worker restored from a checkpoint continues as the original would.
    let mut resumed = PowerSgdWorker::new(&manifest, PowerSgdOptions::new(2).with_seed(9)).unwrap();
    resumed.set_memory(Feedback::load(workers[1].memory().save()).unwrap()).unwrap();
    let next = gradients(1, 9);
    assert_eq!(resumed.begin(&views(&next)).unwrap(), workers[1].begin(&views(&next)).unwrap());
}

#[test]
fn calls_out_of_turn_and_wrong_tensors_are_refused() {
    let manifest = model();
    let mut worker = PowerSgdWorker::new(&manifest, PowerSgdOptions::new(2)).unwrap();
    let (given, mut nan) = (gradients(0, 0), gradients(0, 0));
    nan[0].data_mut()[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let kind = |e: Error| match e {
        Error::Input(e) => e.kind,
        other => panic!("{other}"),
    };
    let out_of_turn = |e: Error| assert!(matches!(kind(e), InputErrorKind::OutOfTurn { .. }));
    out_of_turn(worker.finish().unwrap_err());
    out_of_turn(worker.take_p(&views(&given)).unwrap_err());
    out_of_turn(worker.take_q(&views(&given)).unwrap_err());
    assert!(matches!(kind(worker.begin(&views(&nan)).unwrap_err()), InputErrorKind::NonFinite { index: 0 }));
    assert!(matches!(kind(worker.begin(&views(&given[..3])).unwrap_err()), InputErrorKind::Mismatch { .. }));
    let p = worker.begin(&views(&given)).unwrap();
    out_of_turn(worker.begin(&views(&given)).unwrap_err());
    out_of_turn(worker.take_q(&views(&given)).unwrap_err());
    out_of_turn(worker.finish().unwrap_err());
    out_of_turn(worker.set_memory(Feedback::new()).unwrap_err());
    assert!(matches!(kind(worker.take_p(&views(&given)).unwrap_err()), InputErrorKind::Mismatch { .. }));
    let p_mean = mean(worker.p_manifest(), std::slice::from_ref(&p));
    let mut broken = p_mean.clone();
    broken[2].data_mut()[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert!(matches!(kind(worker.take_p(&views(&broken)).unwrap_err()), InputErrorKind::NonFinite { .. }));
    let q = worker.take_p(&views(&p_mean)).unwrap();
    out_of_turn(worker.take_p(&views(&p_mean)).unwrap_err());
    out_of_turn(worker.finish().unwrap_err());
    let q_mean = mean(worker.q_manifest(), &[q]);
    assert!(matches!(kind(worker.take_q(&views(&p_mean)).unwrap_err()), InputErrorKind::Mismatch { .. }));
    let update = worker.take_q(&views(&q_mean)).unwrap();
    out_of_turn(worker.take_q(&views(&q_mean)).unwrap_err());
    assert_eq!(*worker.memory(), Feedback::new());
    worker.abort();
    assert_eq!(*worker.memory(), Feedback::new());
    // A restart gives the same messages. The update of a single worker equals the codec's.
    assert_eq!(worker.begin(&views(&given)).unwrap(), p);
    worker.take_p(&views(&p_mean)).unwrap();
    assert_eq!(worker.take_q(&views(&q_mean)).unwrap(), update);
    worker.finish().unwrap();
    assert!(worker.memory().norm() > 0.0);
    assert!(PowerSgdWorker::new(&manifest, PowerSgdOptions::new(0)).is_err());
    let ints = Arc::new(Manifest::new(vec![TensorInfo::new("i", Dtype::I32, [4])]).unwrap());
    assert!(PowerSgdWorker::new(&ints, PowerSgdOptions::new(1)).is_err());
}

/// Shapes of the gradients of a ResNet18 for CIFAR-10: convolutions, weights and biases of batch norms, the
/// classifier.
fn resnet18() -> Vec<Vec<u64>> {
    let mut shapes = vec![vec![64, 3, 3, 3], vec![64], vec![64]];
    let mut before = 64;
    for (stage, width) in [64, 128, 256, 512].into_iter().enumerate() {
        for block in 0..2 {
            shapes.extend([vec![width, before, 3, 3], vec![width], vec![width]]);
            shapes.extend([vec![width, width, 3, 3], vec![width], vec![width]]);
            if block == 0 && stage > 0 {
                shapes.extend([vec![width, before, 1, 1], vec![width], vec![width]]);
            }
            before = width;
        }
    }
    shapes.extend([vec![10, 512], vec![10]]);
    shapes
}

/// Size of a step: 32 r (n + m) bits per matrix, 32 bits per other number, and headers. The paper reports
/// 243x, 136x and 72x for ranks 1, 2 and 4.
#[test]
fn bits_of_a_resnet18() {
    let shapes = resnet18();
    let parameters: u64 = shapes.iter().map(|s| s.iter().product::<u64>()).sum();
    assert_eq!((shapes.len(), parameters), (62, 11_173_962));
    let tensors: Vec<TensorBuf> = shapes
        .iter()
        .zip(0..)
        .map(|(s, t)| {
            TensorBuf::from_f32(s.clone(), &uniform(s.iter().product::<u64>() as usize, t)).unwrap()
        })
        .collect();
    let names: Vec<String> = (0..tensors.len()).map(|t| format!("tensor{t}")).collect();
    let inputs: Vec<Input<'_>> = names
        .iter()
        .zip(&tensors)
        .zip(0..)
        .map(|((name, t), tensor)| Input { tensor, name, view: t.view(), base: None })
        .collect();
    let infos = inputs.iter().map(|i| TensorInfo::new(i.name, Dtype::F32, i.view.shape()));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    for (rank, paper) in [(1, 243), (2, 136), (4, 72)] {
        let codec: Codec = format!("powersgd:rank={rank}").parse().unwrap();
        let blocks = compress(&inputs, &vec![codec; inputs.len()], &Options::default(), None).unwrap();
        let bytes =
            (stream(&manifest, &blocks, 0).len() - stream(&manifest, [] as [Block; 0], 0).len()) as u64;
        let (mut matrices, mut others) = (0, 0);
        for shape in &shapes {
            let (n, m) = (shape[0], shape[1..].iter().product::<u64>());
            match shape.len() > 1 && rank * (n + m) < n * m {
                true => matrices += rank * (n + m),
                false => others += n * m,
            }
        }
        let ratio = |bytes: u64| 4.0 * parameters as f64 / bytes as f64;
        println!(
            "rank {rank}: {bytes} bytes, {:.1}x; factors alone {:.1}x, factors and vectors {:.1}x; paper {paper}x",
            ratio(bytes),
            ratio(4 * matrices),
            ratio(4 * (matrices + others))
        );
        let headers = bytes - 4 * (matrices + others);
        assert!(headers <= 24 * shapes.len() as u64, "{headers} bytes of headers");
    }
}
