//! Shared sets: one worker's positions, every worker's own values, residuals and velocities.

use std::sync::Arc;

use gcodec::block::{BlockOptions, Scope, Values};
use gcodec::compress::senders::shared_set::{Choice, Role, SharedSetOptions, SharedSetWorker};
use gcodec::compress::{Amount, Kept, random};
use gcodec::error::InputErrorKind;
use gcodec::frame::{IndexSet, Manifest, TensorInfo, UpdateHeader};
use gcodec::reduce::{Sum, SumOptions};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Dtype, Error, Limits, TensorBuf};

const SHAPES: [[u64; 2]; 2] = [[40, 30], [7, 11]];
const BOTH: Scope = Scope::Tensors { first: 0, count: 2 };
const WORLD: u64 = 3;

fn manifest() -> Arc<Manifest> {
    let infos = SHAPES.iter().enumerate().map(|(i, s)| TensorInfo::new(format!("t{i}"), Dtype::F32, *s));
    Arc::new(Manifest::new(infos.collect()).unwrap())
}

fn settings(values: Kept, momentum: f32) -> SharedSetOptions {
    SharedSetOptions::new(Choice::TopKOfEach(Amount::Density(0.05)))
        .with_values(values)
        .with_momentum(momentum)
}

fn group(settings: SharedSetOptions) -> Vec<SharedSetWorker> {
    (0..WORLD).map(|rank| SharedSetWorker::new(&manifest(), BOTH, rank, WORLD, settings).unwrap()).collect()
}

fn gradients(worker: u64, step: u64) -> Vec<TensorBuf> {
    let number = |t: u64, i: u64| (random::word(worker, step, i + 10_000 * t) as i32 as f32 / 2e9).powi(3);
    let tensor = |(t, shape): (u64, &[u64; 2])| {
        let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(|i| number(t, i)).collect();
        TensorBuf::from_f32(shape.to_vec(), &numbers).unwrap()
    };
    (0..).zip(&SHAPES).map(tensor).collect()
}

fn joint(tensors: &[TensorBuf]) -> Vec<f32> {
    tensors.iter().flat_map(|t| t.view().to_f32().unwrap()).collect()
}

fn residual(worker: &SharedSetWorker) -> Vec<f32> {
    (0..SHAPES.len()).flat_map(|t| worker.residuals().get(&format!("t{t}")).unwrap().to_vec()).collect()
}

fn begin(worker: &mut SharedSetWorker, step: u64, tensors: &[TensorBuf]) -> gcodec::Result<Role> {
    worker.begin(step, &tensors.iter().map(TensorBuf::view).collect::<Vec<_>>())
}

/// Begins a step on all workers and returns the leader's set.
fn begin_all(workers: &mut [SharedSetWorker], step: u64) -> IndexSet {
    let mut led = Vec::new();
    for (rank, worker) in (0..).zip(workers) {
        if let Role::Leader(set) = begin(worker, step, &gradients(rank, step)).unwrap() {
            led.push((rank, set));
        }
    }
    let [(leader, set)] = led.try_into().unwrap();
    assert_eq!(leader, step % WORLD);
    set
}

/// Takes a step through real frames. Returns each worker's decoded tensors, and the length of the stream.
fn exchange(workers: &mut [SharedSetWorker], step: u64) -> (Vec<Vec<f32>>, u64) {
    let manifest = manifest();
    let set = begin_all(workers, step);
    let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default().with_index(false)), Vec::new());
    let id = encoder.index_set(&mut out, &set, &manifest, BlockOptions::default()).unwrap();
    for (rank, worker) in (0..).zip(workers.iter_mut()) {
        worker.take_set(&set, id).unwrap();
        let header = UpdateHeader::default().with_step(step).with_sender(rank).with_world(WORLD);
        let block = worker.values().unwrap();
        encoder.update(&mut out, &header, &manifest, &[(&block, BlockOptions::default())]).unwrap();
        worker.finish().unwrap();
    }
    encoder.finish(&mut out);
    let mut decoded = Vec::new();
    let mut reader = SliceReader::new(&out, Limits::default());
    while let Some(event) = reader.next_event().unwrap() {
        if let Event::Frame(_, Body::Update(part)) = event {
            let mut sum = Sum::new(&manifest, SumOptions::default());
            sum.add(&part, 1.0).unwrap();
            decoded.push(joint(&sum.finish(false).unwrap().tensors().unwrap()));
        }
    }
    (decoded, out.len() as u64)
}

#[test]
fn every_worker_sends_its_own_values_at_the_leaders_positions_and_keeps_the_rest() {
    for values in [Kept::Pow2, Kept::F32, Kept::Bf16, Kept::Sign, Kept::Q4] {
        let mut workers = group(settings(values, 0.0));
        let mut kept: Vec<Vec<f32>> = vec![vec![0.0; 1277]; WORLD as usize];
        for step in 0..4 {
            let (decoded, _) = exchange(&mut workers, step);
            for (rank, (worker, sent)) in workers.iter().zip(&decoded).enumerate() {
                let sums: Vec<f32> = joint(&gradients(rank as u64, step))
                    .iter()
                    .zip(&kept[rank])
                    .map(|(g, m)| g + m)
                    .collect();
                kept[rank] = residual(worker);
                let all = sums.iter().zip(sent).zip(&kept[rank]);
                assert!(all.clone().all(|((p, s), m)| (p - (s + m)).abs() < 1e-6), "{values:?}");
                if values == Kept::F32 {
                    assert!(all.clone().all(|((p, s), _)| *s == 0.0 || s == p));
                }
                if values == Kept::Pow2 {
                    assert!(sent.iter().all(|s| s.to_bits() & 0x7f_ffff == 0), "powers of two");
                }
            }
            let elsewhere = decoded.iter().flatten().filter(|x| **x != 0.0).count();
            // 60 of the first tensor and 4 of the second, on each of three workers.
            assert!(elsewhere <= 64 * WORLD as usize && elsewhere > 32 * WORLD as usize, "{elsewhere}");
            let places = |i: usize| decoded.iter().any(|d| d[i] != 0.0);
            assert!((0..1277).filter(|&i| places(i)).count() <= 64, "one set for all");
        }
    }
}

#[test]
fn powers_of_two_are_smaller_than_floats() {
    let bytes = |values| exchange(&mut group(settings(values, 0.0)), 0).1;
    let (pow2, f32s) = (bytes(Kept::Pow2), bytes(Kept::F32));
    // The streams have a manifest too.
    assert!(pow2 + 3 * 64 * 2 < f32s, "{pow2} {f32s}");
}

#[test]
fn velocities_accumulate_and_restart_where_they_were_sent() {
    let mut workers = group(settings(Kept::F32, 0.9));
    let (mut u, mut v) = (vec![0.0f32; 1277], vec![0.0f32; 1277]);
    for step in 0..5 {
        let (decoded, _) = exchange(&mut workers, step);
        for (i, g) in joint(&gradients(1, step)).into_iter().enumerate() {
            u[i] = g + 0.9 * u[i];
            v[i] += u[i];
        }
        for (i, (u, v)) in u.iter_mut().zip(&mut v).enumerate() {
            if decoded.iter().any(|d| d[i] != 0.0) {
                assert_eq!(decoded[1][i], *v, "step {step}, element {i}");
                (*u, *v) = (0.0, 0.0);
            }
        }
        assert_eq!(residual(&workers[1]), v, "step {step}");
    }
}

#[test]
fn a_saved_worker_goes_on_and_a_step_given_up_changes_nothing() {
    let mut workers = group(settings(Kept::Pow2, 0.5));
    exchange(&mut workers, 0);
    let saved: Vec<_> = workers.iter().map(SharedSetWorker::save).collect();
    assert_eq!(saved[0].len(), 4, "residuals and velocities of two tensors");
    begin_all(&mut workers, 1);
    assert!(workers[0].load(saved[0].clone()).is_err(), "inside a step");
    workers.iter_mut().for_each(SharedSetWorker::abort);
    let mut again = group(settings(Kept::Pow2, 0.5));
    again.iter_mut().zip(saved).for_each(|(w, saved)| w.load(saved).unwrap());
    for step in 1..4 {
        assert_eq!(exchange(&mut workers, step), exchange(&mut again, step));
    }
}

#[test]
fn a_tensor_without_part_keeps_its_residual_and_velocity() {
    let mut worker = SharedSetWorker::new(&manifest(), BOTH, 0, 1, settings(Kept::Pow2, 0.5)).unwrap();
    let mut step = |number: u64, used: [bool; 2]| {
        let tensors = gradients(0, number);
        let views: Vec<_> = tensors.iter().map(TensorBuf::view).collect();
        let Role::Leader(set) = worker.begin_used(number, &views, &used).unwrap() else { panic!() };
        let mut encoder = Encoder::new(EncodeOptions::default());
        let id = encoder.index_set(&mut Vec::new(), &set, &manifest(), BlockOptions::default()).unwrap();
        worker.take_set(&set, id).unwrap();
        let Values::Pow2(values) = worker.values().unwrap().values else { panic!() };
        worker.finish().unwrap();
        (values.codes.len(), worker.save())
    };
    let (both, before) = step(0, [true, true]);
    let (one, after) = step(1, [true, false]);
    assert_eq!((both, one), (64, 60));
    for (name, tensor) in before {
        let same = after.iter().any(|(n, t)| *n == name && t.data() == tensor.data());
        assert_eq!(same, name.starts_with("t1"), "{name}");
    }
}

#[test]
fn wrong_settings_turns_and_tensors_are_refused() {
    let new = |manifest: &Arc<Manifest>, rank, settings| {
        SharedSetWorker::new(manifest, BOTH, rank, WORLD, settings)
    };
    for momentum in [-0.1, 1.0, f32::NAN] {
        assert!(new(&manifest(), 0, settings(Kept::Pow2, momentum)).is_err());
    }
    assert!(new(&manifest(), WORLD, settings(Kept::Pow2, 0.0)).is_err());
    let infos = SHAPES.iter().enumerate().map(|(i, s)| TensorInfo::new(format!("t{i}"), Dtype::Bf16, *s));
    let narrow = Arc::new(Manifest::new(infos.collect()).unwrap());
    assert!(new(&narrow, 0, settings(Kept::Pow2, 0.5)).is_err());
    assert!(new(&narrow, 0, settings(Kept::Pow2, 0.0)).is_ok());

    let mut worker = new(&manifest(), 0, settings(Kept::Pow2, 0.5)).unwrap();
    let turn = |e: Error| matches!(e, Error::Input(e) if matches!(e.kind, InputErrorKind::OutOfTurn { .. }));
    assert!(turn(worker.values().unwrap_err()) && turn(worker.finish().unwrap_err()));
    let bad = TensorBuf::from_f32(SHAPES[0].to_vec(), &[f32::NAN; 1200]).unwrap();
    assert!(begin(&mut worker, 0, &[bad, gradients(0, 0).remove(1)]).is_err());
    assert!(begin(&mut worker, 0, &gradients(0, 0)[..1]).is_err());
    begin(&mut worker, 0, &gradients(0, 0)).unwrap();
    assert!(turn(begin(&mut worker, 1, &gradients(0, 1)).unwrap_err()));
}
