//! The three phases over real frames: results, sizes, residuals, and refused messages.

use std::sync::Arc;

use gcodec::block::{Floats, Scope, SetId, Sparse, Stored, Support, Values, ValuesId};
use gcodec::compress::{Amount, random};
use gcodec::error::InputErrorKind;
use gcodec::frame::{IndexSet, Manifest, TensorInfo};
use gcodec::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Dtype, Reader, TensorBuf};
use gcodec_latent::protocol::{
    self, Begun, Class, Outcome, Phase, ProtocolOptions, Receiver, Variant, Worker, classes,
};
use gcodec_latent::{Architecture, CodeFormat, Error, Innovation, Model, Models, decode_latent};

const WORLD: u64 = 4;
const SHAPES: [(&str, &[u64]); 6] = [
    ("conv1.weight", &[4, 9]),
    ("conv1.bias", &[4]),
    ("body.weight", &[30, 20]),
    ("norm.weight", &[25]),
    ("body2.weight", &[17, 31]),
    ("head.weight", &[10, 12]),
];
/// Names of the body and norm layers.
const LEARNED: std::ops::Range<usize> = 2..5;

fn manifest() -> Arc<Manifest> {
    let infos = SHAPES.iter().map(|(name, shape)| TensorInfo::new(*name, Dtype::F32, *shape));
    Arc::new(Manifest::new(infos.collect()).unwrap())
}

/// Returns a worker's gradients: a shared part, and a third as much of the worker's own.
fn gradients(worker: u64, step: u64) -> Vec<TensorBuf> {
    let number =
        |seed: u64, t: usize, i: u64| random::word(seed, t as u64 + 10 * step, i) as i32 as f32 / 2e9;
    let tensor = |(t, (_, shape)): (usize, &(&str, &[u64]))| {
        let count: u64 = shape.iter().product();
        let numbers: Vec<f32> =
            (0..count).map(|i| number(99, t, i).powi(3) + number(worker, t, i).powi(3) / 3.0).collect();
        TensorBuf::from_f32(shape.to_vec(), &numbers).unwrap()
    };
    SHAPES.iter().enumerate().map(tensor).collect()
}

fn floats(tensor: &TensorBuf) -> Vec<f32> {
    tensor.view().to_f32().unwrap()
}

fn learned(tensors: &[TensorBuf]) -> Vec<f32> {
    tensors[LEARNED].iter().flat_map(floats).collect()
}

fn settings(variant: Variant) -> ProtocolOptions {
    ProtocolOptions::new(variant, classes(&manifest()).unwrap())
        .with_amount(Amount::Density(0.1))
        .with_full_steps(1)
        .with_top_k_steps(2)
}

fn model(variant: Variant) -> Arc<Model> {
    let (decoders, innovation) = match variant {
        Variant::Server => (WORLD as usize, Innovation::Channel),
        Variant::Ring => (1, Innovation::None),
    };
    Arc::new(Architecture::new(decoders, innovation).with_width(4).init(5).unwrap())
}

struct Group {
    manifest: Arc<Manifest>,
    workers: Vec<Worker>,
    receiver: Receiver,
    /// Whether each tensor takes part in a step.
    used: Vec<bool>,
}

impl Group {
    fn new(settings: &ProtocolOptions) -> Self {
        let manifest = manifest();
        let model = model(settings.variant);
        let workers = (0..WORLD).map(|rank| {
            let mut worker = Worker::new(&manifest, settings.clone(), rank, WORLD).unwrap();
            worker.set_model(Arc::clone(&model)).unwrap();
            worker
        });
        let workers = workers.collect();
        let mut receiver = Receiver::new(&manifest, settings.clone(), WORLD).unwrap();
        receiver.add_model(model).unwrap();
        Self { manifest, workers, receiver, used: vec![true; SHAPES.len()] }
    }

    /// Returns all frames of a step, and the set.
    fn stream(&mut self, step: u64) -> (Vec<u8>, Option<(IndexSet, SetId)>) {
        let (mut encoder, mut out, mut found) = (Encoder::new(EncodeOptions::default()), Vec::new(), None);
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            let tensors = gradients(rank as u64, step);
            let views: Vec<_> = tensors.iter().map(TensorBuf::view).collect();
            match worker.begin_used(step, &views, &self.used).unwrap() {
                Begun::Leader(set) => assert!(found.replace(set).is_none(), "two leaders"),
                Begun::Follower { leader } => assert_eq!(leader, step % WORLD),
                Begun::Full => assert!(step < 2),
            }
        }
        let set = found.map(|set| {
            let id = encoder.index_set(&mut out, &set, &self.manifest, Default::default()).unwrap();
            (set, id)
        });
        for worker in &mut self.workers {
            if let Some((set, id)) = &set {
                worker.take_set(set, *id).unwrap();
            }
            worker.send(&mut encoder, &mut out).unwrap();
        }
        encoder.finish(&mut out);
        (out, set)
    }

    fn receive(&mut self, step: u64, stream: &[u8]) -> Result<Outcome, Error> {
        self.receiver.begin(step)?;
        let mut reader = SliceReader::new(stream, gcodec::Limits::default());
        while let Some(event) = reader.next_event()? {
            match event {
                Event::Frame(_, Body::IndexSet(set, id, _)) => self.receiver.take_set(&set, id)?,
                Event::Frame(_, Body::Update(part)) => self.receiver.take(&part)?,
                _ => {}
            }
        }
        self.receiver.finish()
    }

    fn step(&mut self, step: u64) -> (Outcome, Vec<u8>, Option<IndexSet>) {
        let (stream, set) = self.stream(step);
        let outcome = self.receive(step, &stream).unwrap();
        self.workers.iter_mut().for_each(|w| w.finish().unwrap());
        (outcome, stream, set.map(|(set, _)| set))
    }
}

/// Returns the mean over the workers, summed in binary64 in their order.
fn mean<'a>(of: impl Iterator<Item = &'a [f32]>) -> Vec<f32> {
    let mut sums: Vec<f64> = Vec::new();
    for row in of {
        sums.resize(row.len(), 0.0);
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    sums.iter().map(|x| (x / WORLD as f64) as f32).collect()
}

fn positions(set: &IndexSet) -> Vec<usize> {
    let Support::Sparse(Sparse { positions }) = &set.support else { panic!("{:?}", set.support) };
    positions.iter().map(|&p| p as usize).collect()
}

#[test]
fn the_papers_classes() {
    use Class::{Full, Learned, TopK};
    assert_eq!(classes(&manifest()).unwrap(), [Full, Full, Learned, Learned, Learned, TopK]);
    let two = Manifest::new(vec![
        TensorInfo::new("a.weight", Dtype::F32, [2]),
        TensorInfo::new("b.weight", Dtype::F32, [2]),
    ]);
    assert!(classes(&two.unwrap()).is_err());
}

#[test]
fn phase_one_is_the_mean_of_everything() {
    let mut group = Group::new(&settings(Variant::Server));
    let (outcome, ..) = group.step(0);
    assert_eq!(outcome.phase, Phase::Full);
    let workers: Vec<Vec<TensorBuf>> = (0..WORLD).map(|w| gradients(w, 0)).collect();
    for t in 0..SHAPES.len() {
        let rows: Vec<Vec<f32>> = workers.iter().map(|w| floats(&w[t])).collect();
        assert_eq!(outcome.mean[t], mean(rows.iter().map(Vec::as_slice)));
    }
    assert!(outcome.signals.is_empty() && outcome.positions.is_empty());
}

#[test]
fn phase_two_gives_what_an_autoencoder_is_trained_on() {
    for variant in [Variant::Server, Variant::Ring] {
        let mut group = Group::new(&settings(variant));
        group.step(0);
        let (outcome, _, set) = group.step(1);
        let set = positions(&set.unwrap());
        assert_eq!(outcome.phase, Phase::TopK);
        // 10 % of 600, 25 and 527 elements.
        assert_eq!(set.len(), 60 + 3 + 53);
        assert_eq!(outcome.positions, set.iter().map(|&p| p as u64).collect::<Vec<_>>());
        let rows: Vec<Vec<f32>> = (0..WORLD).map(|w| learned(&gradients(w, 1))).collect();
        for (signal, row) in outcome.signals.iter().zip(&rows) {
            assert_eq!(*signal, set.iter().map(|&p| row[p]).collect::<Vec<_>>());
        }
        // The leader's largest elements of each tensor.
        let leader = &rows[1];
        let largest = |range: std::ops::Range<usize>, k: usize| {
            let mut order: Vec<usize> = range.collect();
            order.sort_by(|&a, &b| leader[b].abs().total_cmp(&leader[a].abs()));
            order.truncate(k);
            order.sort_unstable();
            order
        };
        assert_eq!(set, [largest(0..600, 60), largest(600..625, 3), largest(625..1152, 53)].concat());
        let all = mean(rows.iter().map(Vec::as_slice));
        let body: Vec<f32> = outcome.mean[LEARNED].concat();
        for p in 0..body.len() {
            assert_eq!(body[p], if set.contains(&p) { all[p] } else { 0.0 }, "element {p}");
        }
    }
}

#[test]
fn phase_three_decodes_for_each_worker_what_the_leader_coded() {
    for format in [CodeFormat::F32, CodeFormat::F16, CodeFormat::Bf16, CodeFormat::Int8] {
        let mut group = Group::new(&settings(Variant::Server).with_codes(format));
        (0..3).for_each(|step| drop(group.step(step)));
        // The workers' signal in step 3: gradient plus residual.
        let sums: Vec<Vec<f32>> =
            (0..WORLD).map(|w| with_residual(&group.workers[w as usize], w, 3)).collect();
        let (outcome, _, set) = group.step(3);
        let set = positions(&set.unwrap());
        let model = model(Variant::Server);
        let values: Vec<Vec<f32>> = sums.iter().map(|s| set.iter().map(|&p| s[p]).collect()).collect();
        let leader = &values[3];
        let latent = gcodec_latent::encode_latent(&model, leader, format).unwrap();
        let mut models = Models::new();
        models.add(Arc::clone(&model));
        let (_, codes) = gcodec_latent::codes(&models, &latent, set.len()).unwrap();
        for (w, mine) in values.iter().enumerate() {
            let mut order: Vec<usize> = (0..mine.len()).collect();
            order.sort_by(|&a, &b| mine[b].abs().total_cmp(&mine[a].abs()));
            order.truncate((mine.len() as f64 * 0.1).round() as usize);
            order.sort_unstable();
            let innovation: Vec<(usize, f32)> = order.iter().map(|&i| (i, mine[i])).collect();
            let expected = model.decode(w as u64, &codes, mine.len(), &innovation).unwrap();
            assert_eq!(outcome.signals[w], expected, "worker {w}");
        }
        let expected = mean(outcome.signals.iter().map(Vec::as_slice));
        let body = outcome.mean[LEARNED].concat();
        assert_eq!(set.iter().map(|&p| body[p]).collect::<Vec<_>>(), expected);
    }
}

/// Returns the gradient of a step plus a worker's residual before it.
fn with_residual(worker: &Worker, rank: u64, step: u64) -> Vec<f32> {
    let names = SHAPES[LEARNED].iter().map(|(name, _)| worker.residual().get(name).unwrap().to_vec());
    let residual: Vec<f32> = names.flatten().collect();
    learned(&gradients(rank, step)).iter().zip(residual).map(|(g, r)| g + r).collect()
}

#[test]
fn a_ring_decodes_the_mean_of_the_codes() {
    let mut group = Group::new(&settings(Variant::Ring));
    (0..3).for_each(|step| drop(group.step(step)));
    let sums: Vec<Vec<f32>> = (0..WORLD).map(|w| with_residual(&group.workers[w as usize], w, 3)).collect();
    let (outcome, stream, set) = group.step(3);
    let set = positions(&set.unwrap());
    let model = model(Variant::Ring);
    let codes: Vec<Vec<f32>> =
        sums.iter().map(|s| model.encode(&set.iter().map(|&p| s[p]).collect::<Vec<_>>()).unwrap()).collect();
    let expected = model.decode(0, &mean(codes.iter().map(Vec::as_slice)), set.len(), &[]).unwrap();
    assert_eq!(outcome.signals, std::slice::from_ref(&expected));
    let body = outcome.mean[LEARNED].concat();
    assert_eq!(set.iter().map(|&p| body[p]).collect::<Vec<_>>(), expected);
    // Only the leader sends positions of the learned tensors; all workers send codes.
    let kinds = kinds_of(&stream);
    assert_eq!(kinds.iter().filter(|k| **k == ValuesId::LATENT).count() as u64, WORLD);
}

fn kinds_of(stream: &[u8]) -> Vec<ValuesId> {
    let mut reader = SliceReader::new(stream, gcodec::Limits::default());
    let mut kinds = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        if let Event::Frame(_, Body::Update(part)) = event {
            kinds.extend(part.blocks.iter().map(|b| b.values_id));
        }
    }
    kinds
}

#[test]
fn the_residual_is_cleared_on_the_shared_set() {
    for variant in [Variant::Server, Variant::Ring] {
        let mut group = Group::new(&settings(variant));
        for step in 0..5 {
            let before: Option<Vec<Vec<f32>>> = (step > 1)
                .then(|| (0..WORLD).map(|w| with_residual(&group.workers[w as usize], w, step)).collect());
            let (.., set) = group.step(step);
            let Some(set) = set.map(|s| positions(&s)) else { continue };
            for w in 0..WORLD as usize {
                let names = SHAPES[LEARNED].iter().map(|(name, _)| group.workers[w].residual().get(name));
                let left: Vec<f32> = names.flat_map(|r| r.unwrap().to_vec()).collect();
                let sums = match &before {
                    Some(before) => before[w].clone(),
                    None => learned(&gradients(w as u64, step)),
                };
                // Cleared on all workers at the leader's positions only, even where this worker's own
                // elements were large.
                for p in 0..left.len() {
                    let expected = if set.contains(&p) { 0.0 } else { sums[p] };
                    assert_eq!(left[p], expected, "step {step}, worker {w}, element {p}");
                }
            }
        }
    }
}

#[test]
fn an_abandoned_step_changes_nothing() {
    let mut group = Group::new(&settings(Variant::Server));
    (0..3).for_each(|step| drop(group.step(step)));
    let residuals = |g: &Group| -> Vec<_> {
        g.workers.iter().map(|w| (w.residual().clone(), w.top_k_residual().clone())).collect()
    };
    let before = residuals(&group);
    let (first, _) = group.stream(3);
    group.workers.iter_mut().for_each(Worker::abort);
    assert_eq!(residuals(&group), before);
    let (second, _) = group.stream(3);
    assert_eq!(first, second);
}

#[test]
fn streams_are_ordinary_and_codes_can_be_read_alone() {
    let mut group = Group::new(&settings(Variant::Server).with_innovation_values(Stored::F16));
    (0..3).for_each(|step| drop(group.step(step)));
    let (outcome, _, _) = {
        let mut with_model = Vec::new();
        let mut encoder = Encoder::new(EncodeOptions::default());
        encoder.model(&mut with_model, &model(Variant::Server).frame("lgc")).unwrap();
        encoder.finish(&mut with_model);
        // A reader takes the model from the stream.
        let mut reader = Reader::new(with_model.as_slice(), gcodec::Limits::default());
        let mut taken = None;
        while let Some(event) = reader.next_event().unwrap() {
            if let Event::Frame(_, Body::Model(frame)) = event {
                taken = Some(Model::from_frame(&frame, &Default::default()).unwrap());
            }
        }
        assert_eq!(taken.as_ref(), Some(&*model(Variant::Server)));
        group.step(3)
    };
    let (stream, _) = group.stream(4);
    let kinds = kinds_of(&stream);
    assert_eq!(kinds.iter().filter(|k| **k == ValuesId::LATENT).count(), 1, "only the leader sends codes");
    // Any reader decodes the other workers' updates; for the codes it reports the missing model.
    let mut reader = SliceReader::new(&stream, gcodec::Limits::default());
    let mut models = Models::new();
    let mut decoded = 0;
    while let Some(event) = reader.next_event().unwrap() {
        let Event::Frame(_, Body::Update(part)) = event else { continue };
        for block in part.decode_all().unwrap() {
            let Values::Latent(_) = &block.values else { continue };
            let budget = part.budget();
            let error = block.numbers(&part.blocks[0].space, part.sets(), &budget).unwrap_err();
            let missing = |k: &InputErrorKind| matches!(k, InputErrorKind::MissingModel { .. });
            assert!(matches!(error, gcodec::Error::Input(e) if missing(&e.kind)));
            let count = outcome.positions.len();
            let sender = part.header.sender;
            let missing = decode_latent(&models, &block.values, count, sender).unwrap_err();
            assert_eq!(missing.to_string(), format!("missing model {}", model(Variant::Server).id()));
            models.add(model(Variant::Server));
            assert_eq!(decode_latent(&models, &block.values, count, sender).unwrap().len(), count);
            decoded += 1;
        }
    }
    assert_eq!(decoded, 1);
}

#[test]
fn the_codes_cost_what_they_should() {
    // 4 codes for 16 values: with bf16 codes 4 bits per value; an innovation of 10 %; only the leader sends
    // positions of all values. The learned part of a follower is little more than a tenth of a top-k update.
    let settings = settings(Variant::Server).with_codes(CodeFormat::Bf16);
    let mut group = Group::new(&settings);
    (0..3).for_each(|step| drop(group.step(step)));
    let (stream, _) = group.stream(3);
    let mut reader = SliceReader::new(&stream, gcodec::Limits::default());
    let mut lens = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        if let Event::Frame(_, Body::Update(part)) = event {
            for block in part.blocks.iter().filter(|b| b.scope == Scope::Tensors { first: 2, count: 3 }) {
                lens.push((block.values_id, block.values.len()));
            }
        }
    }
    let m = 116;
    // Id, rank, two dimensions, kind and storage, then the codes; storage, then the numbers.
    let codes = 32 + 1 + 1 + 1 + 1 + 1 + 2 * 4 * usize::div_ceil(m, 16);
    let innovation = 1 + 4 * 12;
    let mut expected = vec![(ValuesId::FLOATS, innovation); 4];
    expected.push((ValuesId::LATENT, codes));
    assert_eq!(lens, expected);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut group = Group::new(&settings(Variant::Server));
    (0..3).for_each(|step| drop(group.step(step)));
    let (stream, set) = group.stream(3);
    let (set, id) = set.unwrap();
    // Phase 3 without a model, on both sides.
    let mut worker = Worker::new(&group.manifest, settings(Variant::Server), 0, WORLD).unwrap();
    let tensors = gradients(0, 3);
    let views: Vec<_> = tensors.iter().map(TensorBuf::view).collect();
    assert!(matches!(worker.begin(3, &views), Err(Error::OutOfTurn(_))));
    let mut bare = Receiver::new(&group.manifest, settings(Variant::Server), WORLD).unwrap();
    std::mem::swap(&mut bare, &mut group.receiver);
    let error = group.receive(3, &stream).unwrap_err();
    assert_eq!(error.to_string(), format!("missing model {}", model(Variant::Server).id()));
    std::mem::swap(&mut bare, &mut group.receiver);
    // Models of the wrong kind.
    assert!(matches!(worker.set_model(model(Variant::Ring)), Err(Error::Input(_))));
    let two = Architecture::new(2, Innovation::Channel).with_width(1).init(0).unwrap();
    assert!(matches!(worker.set_model(two.into()), Err(Error::Input(_))), "two decoders for four workers");
    // Sets of another step, leader or group.
    worker.set_model(model(Variant::Server)).unwrap();
    worker.begin(3, &views).unwrap();
    assert!(matches!(
        worker.send(&mut Encoder::new(Default::default()), &mut Vec::new()),
        Err(Error::OutOfTurn(_))
    ));
    assert!(matches!(worker.finish(), Err(Error::OutOfTurn(_))));
    for wrong in [
        IndexSet { step: 2, ..set.clone() },
        IndexSet { leader: 0, ..set.clone() },
        IndexSet { world: 3, ..set.clone() },
    ] {
        assert!(matches!(worker.take_set(&wrong, id), Err(Error::OutOfTurn(_))));
    }
    let other = IndexSet { scope: Scope::Tensors { first: 2, count: 2 }, ..set.clone() };
    assert!(matches!(worker.take_set(&other, id), Err(Error::Peer { .. })));
    worker.take_set(&set, id).unwrap();
    assert!(matches!(worker.take_set(&set, id), Err(Error::OutOfTurn(_))));
    // Updates before the set, repeated, and of another step; the step can still be finished.
    group.receiver.begin(3).unwrap();
    let mut reader = SliceReader::new(&stream, gcodec::Limits::default());
    let mut updates = 0;
    while let Some(event) = reader.next_event().unwrap() {
        let Event::Frame(_, Body::Update(part)) = event else { continue };
        if updates == 0 {
            assert!(matches!(group.receiver.take(&part), Err(Error::OutOfTurn(_))));
            group.receiver.take_set(&set, id).unwrap();
        }
        assert!(matches!(group.receiver.finish(), Err(Error::OutOfTurn(_))));
        let mut late = part.clone();
        late.header.step = 2;
        assert!(matches!(group.receiver.take(&late), Err(Error::Peer { .. })));
        let mut stranger = part.clone();
        stranger.header.sender = WORLD;
        assert!(matches!(group.receiver.take(&stranger), Err(Error::Peer { .. })));
        group.receiver.take(&part).unwrap();
        assert!(matches!(group.receiver.take(&part), Err(Error::Peer { .. })), "twice");
        updates += 1;
    }
    assert_eq!(updates, WORLD + 1);
    let outcome = group.receiver.finish().unwrap();
    assert_eq!(outcome.signals.len() as u64, WORLD);
}

#[test]
fn an_innovation_off_the_set_is_refused() {
    let mut group = Group::new(&settings(Variant::Server));
    (0..3).for_each(|step| drop(group.step(step)));
    let (_, set) = group.stream(3);
    let (set, id) = set.unwrap();
    let inside = positions(&set);
    let outside = (0..).find(|p| !inside.contains(p)).unwrap() as u64;
    let block = gcodec::block::Block {
        scope: set.scope,
        add: false,
        support: Support::Sparse(Sparse { positions: vec![outside] }),
        values: Values::Floats(Floats { stored: Stored::F32, bytes: 1f32.to_le_bytes().to_vec() }),
    };
    let header = gcodec::frame::UpdateHeader::default().with_step(3).with_world(WORLD);
    let (mut encoder, mut out) = (Encoder::new(Default::default()), Vec::new());
    encoder.update(&mut out, &header, &group.manifest, [(&block, Default::default())]).unwrap();
    group.receiver.begin(3).unwrap();
    group.receiver.take_set(&set, id).unwrap();
    let mut reader = Reader::new(out.as_slice(), gcodec::Limits::default());
    while let Some(event) = reader.next_event().unwrap() {
        if let Event::Frame(_, Body::Update(part)) = event {
            let error = group.receiver.take(&part).unwrap_err();
            assert_eq!(error.to_string(), "the update of sender 0 is refused: an innovation off the set");
            break;
        }
    }
}

#[test]
fn with_feedback_nothing_is_lost() {
    for variant in [Variant::Server, Variant::Ring] {
        let settings = settings(variant).with_feedback(true).with_top_k_steps(1);
        let mut group = protocol::Group::new(&manifest(), &settings, WORLD).unwrap();
        group.set_model(&model(variant)).unwrap();
        let residuals = |group: &protocol::Group| -> Vec<f64> {
            let names = SHAPES[LEARNED].iter().flat_map(|(name, shape)| {
                let of = |w: &Worker| w.residual().get(name).map(<[f32]>::to_vec);
                let rows: Vec<_> = group.workers().iter().filter_map(of).collect();
                let sum = |i: usize| rows.iter().map(|row| f64::from(row[i])).sum::<f64>();
                (0..shape.iter().product::<u64>() as usize).map(sum).collect::<Vec<_>>()
            });
            names.collect()
        };
        for step in 0..6 {
            let before = residuals(&group);
            let all: Vec<Vec<TensorBuf>> = (0..WORLD).map(|w| gradients(w, step)).collect();
            let (outcome, _) = group.step(step, &all).unwrap();
            let (after, applied) = (residuals(&group), outcome.mean[LEARNED].concat());
            for (i, &applied) in applied.iter().enumerate() {
                let wanted = before[i] + all.iter().map(|g| f64::from(learned(g)[i])).sum::<f64>();
                let kept = f64::from(applied) * WORLD as f64 + after[i];
                assert!((wanted - kept).abs() < 1e-4, "{variant:?}, step {step}, {i}: {wanted} {kept}");
            }
        }
    }
}

#[test]
fn a_saved_worker_goes_on() {
    let settings = settings(Variant::Server).with_momentum(0.5).with_feedback(true);
    let mut group = Group::new(&settings);
    (0..4).for_each(|step| drop(group.step(step)));
    let mut again = Group::new(&settings);
    for (to, from) in again.workers.iter_mut().zip(&group.workers) {
        to.load(from.save()).unwrap();
    }
    for step in 4..6 {
        let (one, other) = (group.step(step), again.step(step));
        assert_eq!((one.0, one.1), (other.0, other.1));
    }
    let worker = &mut again.workers[0];
    let other = TensorBuf::from_f32(vec![2], &[0.0; 2]).unwrap();
    for name in ["body.weight", "body.weight#momentum", "unknown"] {
        let before = worker.save();
        assert!(matches!(worker.load([(name.to_owned(), other.clone())]), Err(Error::Input(_))), "{name}");
        assert!(before.iter().zip(worker.save()).all(|(a, b)| a.0 == b.0 && a.1.data() == b.1.data()));
    }
}

/// Returns what a worker keeps of a tensor. A state of zeros is as good as none.
fn kept(worker: &Worker, tensor: usize) -> Vec<(String, TensorBuf)> {
    let is_its = |name: &str| name.split('#').next() == Some(SHAPES[tensor].0);
    let is_zero = |tensor: &TensorBuf| floats(tensor).iter().all(|x| *x == 0.0);
    worker.save().into_iter().filter(|(name, tensor)| is_its(name) && !is_zero(tensor)).collect()
}

#[test]
fn tensors_that_a_step_does_not_use_keep_their_state() {
    for variant in [Variant::Server, Variant::Ring] {
        let settings = settings(variant).with_momentum(0.5).with_feedback(true).with_full_steps(2);
        let mut group = Group::new(&settings);
        // Every other step uses a part: nothing; one tensor of each class less; nothing of the learned ones.
        let everything: Vec<usize> = (0..SHAPES.len()).collect();
        let unused = [&[][..], &everything, &[], &[1, 3, 5], &[], &[2, 3, 4], &[], &everything, &[]];
        for (step, unused) in (0..).zip(unused) {
            let all = |group: &Group| -> Vec<_> {
                let workers = group.workers.iter();
                workers.flat_map(|w| unused.iter().map(|&t| kept(w, t))).collect()
            };
            group.used = (0..SHAPES.len()).map(|t| !unused.contains(&t)).collect();
            let before = all(&group);
            let (stream, _) = group.stream(step);
            let outcome = group.receive(step, &stream).unwrap();
            group.workers.iter_mut().for_each(|w| w.finish_with(&outcome).unwrap());
            assert_eq!(all(&group), before, "{variant:?}, step {step}");
            for (t, mean) in outcome.mean.iter().enumerate() {
                let is_zero = mean.iter().all(|x| *x == 0.0);
                assert_eq!(is_zero, unused.contains(&t), "{variant:?}, step {step}, tensor {t}");
            }
        }
    }
}
