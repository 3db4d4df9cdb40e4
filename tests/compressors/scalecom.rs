//! ScaleCom (arXiv 2104.11125): sums in the compressed domain, traffic that does not grow with the number of
//! workers, error feedback, and a protocol that refuses mismatched messages.

use std::path::Path;
use std::sync::Arc;

use gcodec::block::{
    Block, BlockOptions, Floats, Planes, Scope, Set, SetId, Sets, SharedSet, Sparse, Support, Values,
};
use gcodec::compress::senders::scalecom::{Choice, Role, ScaleComOptions, ScaleComWorker};
use gcodec::compress::{Amount, Feedback, Kept, random};
use gcodec::error::InputErrorKind;
use gcodec::frame::{Budget, IndexSet, Manifest, Reduction, TensorInfo, UpdateHeader};
use gcodec::reduce::add;
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Dtype, Error, Limits, TensorBuf};

const SHAPES: [[u64; 2]; 2] = [[40, 30], [7, 11]];
const BOTH: Scope = Scope::Tensors { first: 0, count: 2 };

fn manifest() -> Arc<Manifest> {
    let infos = SHAPES.iter().enumerate().map(|(i, s)| TensorInfo::new(format!("t{i}"), Dtype::F32, *s));
    Arc::new(Manifest::new(infos.collect()).unwrap())
}

/// Whole number of magnitude at most 2^20, so that f32 sums of 16 of them are exact.
fn whole(worker: u64, step: u64, i: u64) -> f32 {
    (random::word(worker, step, i) as i32 >> 12) as f32
}

/// Number from a wide range of magnitudes.
fn rough(worker: u64, step: u64, i: u64) -> f32 {
    whole(worker, step, i) * 1.000_1 * 2f32.powi((random::word(worker, step + 1000, i) % 30) as i32 - 25)
}

fn gradients(worker: u64, step: u64, of: fn(u64, u64, u64) -> f32) -> Vec<TensorBuf> {
    let tensor = |(t, shape): (usize, &[u64; 2])| {
        let numbers = (0..shape[0] * shape[1]).map(|i| of(worker, step, i + 10_000 * t as u64));
        TensorBuf::from_f32(shape.to_vec(), &numbers.collect::<Vec<_>>()).unwrap()
    };
    SHAPES.iter().enumerate().map(tensor).collect()
}

fn begin(worker: &mut ScaleComWorker, step: u64, tensors: &[TensorBuf]) -> gcodec::Result<Role> {
    worker.begin(step, &tensors.iter().map(TensorBuf::view).collect::<Vec<_>>())
}

fn group(world: u64, settings: ScaleComOptions) -> Vec<ScaleComWorker> {
    (0..world).map(|rank| ScaleComWorker::new(&manifest(), BOTH, rank, world, settings).unwrap()).collect()
}

fn joint(tensors: &[TensorBuf]) -> Vec<f32> {
    tensors.iter().flat_map(|t| f32s(t.data())).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Runs one step of a whole group. Returns the length of the set's frame in bytes, every worker's block in
/// order, and the set.
fn step(
    workers: &mut [ScaleComWorker],
    number: u64,
    of: fn(u64, u64, u64) -> f32,
) -> (u64, Vec<Block>, Sets) {
    let mut found = None;
    for (rank, worker) in workers.iter_mut().enumerate() {
        match begin(worker, number, &gradients(rank as u64, number, of)).unwrap() {
            Role::Leader(set) => {
                assert!(found.replace(set).is_none(), "two leaders");
                assert_eq!(rank as u64, worker.leader(number));
            }
            Role::Follower { leader } => assert_eq!(leader, number % worker_count(worker)),
        }
    }
    let set = found.expect("nobody leads");
    let (id, bytes) = encode_set(&set);
    let blocks = workers
        .iter_mut()
        .map(|worker| {
            worker.take_set(&set, id).unwrap();
            let block = worker.values().unwrap();
            worker.finish().unwrap();
            block
        })
        .collect();
    let count = positions(&set.support).len() as u64;
    let shared = SharedSet { manifest: set.manifest.0, scope: set.scope, support: set.support, count };
    (bytes, blocks, Sets::from([(id, Arc::new(shared))]))
}

fn worker_count(worker: &ScaleComWorker) -> u64 {
    (1..).find(|&s| worker.leader(s) == 0).unwrap()
}

fn encode_set(set: &IndexSet) -> (SetId, u64) {
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut out = Vec::new();
    encoder.manifest(&mut out, &manifest());
    let before = out.len();
    let id = encoder.index_set(&mut out, set, &manifest(), BlockOptions::default()).unwrap();
    (id, (out.len() - before) as u64)
}

fn positions(support: &Support) -> Vec<u64> {
    let block = Block {
        scope: BOTH,
        add: false,
        support: support.clone(),
        values: gcodec::block::Values::Planes(Planes { bytes: Vec::new() }),
    };
    let space = manifest().space(BOTH, 0).unwrap();
    block.positions(&space, &Sets::new(), &gcodec::frame::Budget::new(&gcodec::Limits::default())).unwrap()
}

fn numbers(block: &Block) -> Vec<f32> {
    match &block.values {
        gcodec::block::Values::Floats(Floats { bytes, .. }) => f32s(bytes),
        other => panic!("{other:?}"),
    }
}

fn sum(blocks: &[Block], sets: &Sets) -> Block {
    let space = manifest().space(BOTH, 0).unwrap();
    blocks[1..].iter().fold(blocks[0].clone(), |sum, block| add(&sum, block, &space, sets).unwrap())
}

#[test]
fn the_largest_of_each_tensor() {
    let count = 20;
    let mut workers = group(2, ScaleComOptions::new(Choice::TopKOfEach(Amount::Count(count))));
    let (_, _, sets) = step(&mut workers, 1, rough);
    let leader = gradients(1, 1, rough);
    let (mut expected, mut start) = (Vec::new(), 0);
    for tensor in &leader {
        let numbers = f32s(tensor.data());
        let mut order: Vec<usize> = (0..numbers.len()).collect();
        order.sort_by(|&a, &b| numbers[b].abs().total_cmp(&numbers[a].abs()));
        expected.extend(order[..count as usize].iter().map(|&i| start + i as u64));
        start += numbers.len() as u64;
    }
    expected.sort_unstable();
    assert_eq!(positions(&sets.values().next().unwrap().support), expected);
}

#[test]
fn the_sum_of_the_encoded_is_the_encoded_sum() {
    for choice in
        [Choice::TopK(Amount::Count(50)), Choice::TopKOfEach(Amount::Count(25)), Choice::PerChunk(32)]
    {
        for world in [2, 3, 8, 16] {
            for (of, exactly) in [(whole as fn(u64, u64, u64) -> f32, true), (rough, false)] {
                let (_, blocks, sets) = step(&mut group(world, ScaleComOptions::new(choice)), 1, of);
                let kept = positions(&sets.values().next().unwrap().support);
                let all: Vec<Vec<f32>> = (0..world).map(|w| joint(&gradients(w, 1, of))).collect();
                let found = numbers(&sum(&blocks, &sets));
                assert_eq!(found.len(), kept.len());
                for (&p, found) in kept.iter().zip(found) {
                    let terms = all.iter().map(|g| f64::from(g[p as usize]));
                    let exact: f64 = terms.clone().sum();
                    // Each of world - 1 additions has an error of half a unit of a partial sum. No partial
                    // sum exceeds the sum of all magnitudes.
                    let rounding = (world - 1) as f64 * terms.map(f64::abs).sum::<f64>() * 2f64.powi(-24);
                    let bound = if exactly { 0.0 } else { rounding * 1.001 };
                    assert!(
                        (f64::from(found) - exact).abs() <= bound,
                        "{world} workers: {found} for {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn traffic_does_not_grow_with_the_workers_and_leaders_rotate() {
    let mut sizes = Vec::new();
    for world in 2..=16 {
        let mut workers = group(world, ScaleComOptions::new(Choice::PerChunk(16)));
        for number in 0..3 * world {
            let (set_bytes, blocks, sets) = step(&mut workers, number, rough);
            let reduced = sum(&blocks, &sets);
            let update = |block: &Block, reduction| {
                let mut encoder = Encoder::new(EncodeOptions::default());
                let mut out = Vec::new();
                encoder.manifest(&mut out, &manifest());
                let (id, set) = sets.iter().next().unwrap();
                let set = IndexSet {
                    manifest: manifest().id(),
                    step: number,
                    leader: number % world,
                    world,
                    scope: BOTH,
                    support: set.support.clone(),
                };
                encoder.add_index_set(*id, &set, &manifest()).unwrap();
                let before = out.len();
                let header = UpdateHeader::default().with_step(number).with_world(world);
                let header = header.with_contributors(world).with_reduction(reduction);
                encoder.update(&mut out, &header, &manifest(), &[(block, BlockOptions::default())]).unwrap();
                out.len() - before
            };
            let largest = blocks.iter().map(|b| update(b, Reduction::None)).max();
            sizes.push((set_bytes, largest, update(&reduced, Reduction::Sum)));
        }
    }
    assert!(sizes.iter().all(|s| *s == sizes[0]), "{sizes:?}");
    assert_eq!(sizes[0].1, Some(sizes[0].2), "a sum is as large as one worker's update");
    println!("set {} bytes, update and sum {} bytes, 2 to 16 workers", sizes[0].0, sizes[0].2);
}

#[test]
fn memory_is_the_papers() {
    for (beta, values) in [(1.0, Kept::F32), (1.0, Kept::Bf16), (0.1, Kept::F32), (0.3, Kept::F16)] {
        let settings =
            ScaleComOptions::new(Choice::TopK(Amount::Density(0.05))).with_beta(beta).with_values(values);
        let mut workers = group(3, settings);
        let mut memories = vec![vec![0f32; joint(&gradients(0, 0, rough)).len()]; 3];
        for number in 0..7 {
            let (_, blocks, sets) = step(&mut workers, number, rough);
            let kept = positions(&sets.values().next().unwrap().support);
            for (rank, memory) in memories.iter_mut().enumerate() {
                let gradient = joint(&gradients(rank as u64, number, rough));
                let mut left: Vec<f32> = gradient.iter().zip(memory.iter()).map(|(g, m)| g + m).collect();
                let space = manifest().space(BOTH, 0).unwrap();
                // The values sent, as f32 whatever their stored type.
                let budget = gcodec::frame::Budget::new(&gcodec::Limits::default());
                let sent = match values {
                    Kept::F32 => numbers(&blocks[rank]),
                    _ => blocks[rank].numbers(&space, &sets, &budget).unwrap(),
                };
                kept.iter().zip(sent).for_each(|(&p, x)| left[p as usize] -= x);
                for (m, left) in memory.iter_mut().zip(left) {
                    *m = if beta == 1.0 { left } else { (1.0 - beta) * *m + beta * left };
                }
                let found: Vec<f32> = ["t0", "t1"]
                    .iter()
                    .flat_map(|n| workers[rank].memory().get(n).unwrap().to_vec())
                    .collect();
                assert_eq!(&found, memory, "beta {beta}, step {number}, worker {rank}");
                if (beta, values) == (1.0, Kept::F32) {
                    assert!(kept.iter().all(|&p| found[p as usize] == 0.0), "cleared on the shared set");
                }
            }
        }
        // A group restored from checkpoints continues as the original does.
        let mut resumed = group(3, settings);
        for (worker, old) in resumed.iter_mut().zip(&workers) {
            worker.set_memory(Feedback::load(old.memory().save()).unwrap()).unwrap();
        }
        assert_eq!(step(&mut resumed, 7, rough), step(&mut workers, 7, rough));
    }
}

#[test]
fn what_is_out_of_turn_is_refused_and_changes_nothing() {
    let settings = ScaleComOptions::new(Choice::TopK(Amount::Count(9)));
    let mut workers = group(3, settings);
    step(&mut workers, 0, rough);
    let Role::Leader(set) = begin(&mut workers[1], 1, &gradients(1, 1, rough)).unwrap() else { panic!() };
    let id = encode_set(&set).0;
    let follower = &mut workers[2];
    let what = |e: Error| match e {
        Error::Input(e) => match e.kind {
            InputErrorKind::OutOfTurn { what } | InputErrorKind::Mismatch { what } => what,
            InputErrorKind::InconsistentBlock { what } => what,
            other => panic!("{other:?}"),
        },
        other => panic!("{other}"),
    };
    let memory = follower.memory().clone();
    assert!(what(follower.take_set(&set, id).unwrap_err()).contains("outside a step"));
    assert!(what(follower.values().unwrap_err()).contains("no step"));
    assert_eq!(begin(follower, 1, &gradients(2, 1, rough)).unwrap(), Role::Follower { leader: 1 });
    assert!(what(begin(follower, 2, &gradients(2, 2, rough)).unwrap_err()).contains("before the last"));
    assert!(what(follower.values().unwrap_err()).contains("missing"));
    assert!(what(follower.finish().unwrap_err()).contains("missing"));
    let with = |f: fn(&mut IndexSet)| {
        let mut set = set.clone();
        f(&mut set);
        set
    };
    for (set, reason) in [
        (with(|s| s.step = 0), "earlier step"),
        (with(|s| s.step = 2), "later step"),
        (with(|s| s.world = 4), "number of workers"),
        (with(|s| s.leader = 2), "does not lead"),
        (with(|s| s.scope = Scope::Tensor(0)), "tensors of worker and index set"),
        (with(|s| s.manifest.0[0] ^= 1), "tensors of worker and index set"),
        (with(|s| s.support = Support::Sparse(Sparse { positions: vec![4, 4] })), "not ascending"),
        (with(|s| s.support = Support::Sparse(Sparse { positions: vec![1_277] })), "exceed"),
        (with(|s| s.support = Support::Set(Set { id: SetId([0; 32]) })), "refers to a set"),
    ] {
        let found = what(follower.take_set(&set, id).unwrap_err());
        assert!(found.contains(reason), "{found}");
    }
    assert_eq!(follower.memory(), &memory);
    follower.take_set(&set, id).unwrap();
    assert!(what(follower.take_set(&set, id).unwrap_err()).contains("second"));
    assert!(what(follower.set_memory(Feedback::new()).unwrap_err()).contains("inside"));
    let first = follower.values().unwrap();
    // A lost round leaves the memory unchanged and can be repeated.
    follower.abort();
    assert_eq!(follower.memory(), &memory);
    begin(follower, 1, &gradients(2, 1, rough)).unwrap();
    follower.take_set(&set, id).unwrap();
    assert_eq!(follower.values().unwrap(), first);
    // The leader accepts only the set that it chose.
    let other = with(|s| s.support = Support::Sparse(Sparse { positions: vec![0] }));
    assert!(what(workers[1].take_set(&other, id).unwrap_err()).contains("leader's own"));
}

#[test]
fn a_tensor_that_a_worker_does_not_use_keeps_its_memory() {
    for choice in
        [Choice::TopK(Amount::Count(40)), Choice::TopKOfEach(Amount::Count(9)), Choice::PerChunk(16)]
    {
        let mut workers = group(2, ScaleComOptions::new(choice).with_beta(0.5));
        step(&mut workers, 0, rough);
        let before: Vec<Feedback> = workers.iter().map(|w| w.memory().clone()).collect();
        // ScaleComWorker 1 leads and does not use tensor 0, whose gradient it has, as an error, all the same.
        let (mine, theirs) = (gradients(1, 1, rough), gradients(0, 1, rough));
        let views: Vec<_> = mine.iter().map(TensorBuf::view).collect();
        assert!(workers[1].begin_used(1, &views, &[false]).is_err());
        let Role::Leader(set) = workers[1].begin_used(1, &views, &[false, true]).unwrap() else { panic!() };
        begin(&mut workers[0], 1, &theirs).unwrap();
        let id = encode_set(&set).0;
        for worker in &mut workers {
            worker.take_set(&set, id).unwrap();
        }
        let sent = Block { support: set.support.clone(), ..workers[1].values().unwrap() };
        let (space, budget) = (manifest().space(BOTH, 0).unwrap(), Budget::new(&Limits::default()));
        let positions = sent.positions(&space, &Sets::new(), &budget).unwrap();
        assert!(positions.iter().any(|&p| p >= 1200));
        assert!(matches!(choice, Choice::PerChunk(_)) || positions.iter().all(|&p| p >= 1200));
        let Values::Floats(Floats { bytes, .. }) = sent.values else { panic!() };
        for (&position, value) in positions.iter().zip(f32s(&bytes)) {
            assert!(position >= 1200 || value == 0.0, "element {position} of an unused tensor is sent");
        }
        for worker in &mut workers {
            worker.finish().unwrap();
        }
        assert_eq!(workers[1].memory().get("t0"), before[1].get("t0"));
        assert_ne!(workers[1].memory().get("t1"), before[1].get("t1"));
        assert_ne!(workers[0].memory().get("t0"), before[0].get("t0"));
    }
}

#[test]
fn settings_and_gradients_are_checked() {
    let top = ScaleComOptions::new(Choice::TopK(Amount::Count(1)));
    let new = |scope, rank, settings| ScaleComWorker::new(&manifest(), scope, rank, 2, settings);
    for settings in [
        top.with_beta(0.0),
        top.with_beta(1.5),
        top.with_beta(f32::NAN),
        top.with_values(Kept::Pow2),
        ScaleComOptions::new(Choice::PerChunk(0)),
        ScaleComOptions::new(Choice::TopK(Amount::Count(0))),
    ] {
        assert!(new(BOTH, 0, settings).is_err(), "{settings:?}");
    }
    assert!(new(BOTH, 2, top).is_err());
    assert!(new(Scope::Range { tensor: 0, start: 0, len: 5 }, 0, top).is_err());
    assert!(new(Scope::Tensor(2), 0, top).is_err());
    let mut worker = new(Scope::Tensor(1), 1, top).unwrap();
    let mut gradient = vec![1.0; 77];
    gradient[5] = f32::NAN;
    let nan = TensorBuf::from_f32(vec![7, 11], &gradient).unwrap();
    assert_eq!(
        worker.begin(0, &[nan.view()]).unwrap_err().to_string(),
        "element 5 is NaN or infinite (tensor 1)"
    );
    assert!(worker.begin(0, &[]).is_err());
    let other = TensorBuf::from_f32(vec![77], &[1.0; 77]).unwrap();
    assert!(worker.begin(0, &[other.view()]).is_err());
    assert_eq!(worker.memory(), &Feedback::new());
}

/// Reads the f32 tensors of a safetensors file, in the order of their names.
fn dump(path: &Path) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let head: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let tensors = head.as_object().unwrap().iter().filter(|(_, t)| t["dtype"] == "F32");
    let range = |t: &serde_json::Value, i: usize| 8 + len + t["data_offsets"][i].as_u64().unwrap() as usize;
    tensors.map(|(_, t)| f32s(&bytes[range(t, 0)..range(t, 1)])).collect()
}

#[test]
fn a_choice_by_chunks_has_less_energy_than_the_exact_one_and_more_than_chance() {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/gradients");
    let folder = std::env::var_os("GCODEC_GRADIENTS").map_or_else(default, Into::into);
    for name in ["resnet_step0200_worker0", "gpt_step0300_worker0"] {
        let path = folder.join(format!("{name}.safetensors"));
        if !path.exists() {
            eprintln!("skipped: {} is not there", path.display());
            continue;
        }
        let numbers: Vec<f32> = dump(&path).concat();
        let n = numbers.len() as u64;
        let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("g", Dtype::F32, [n])]).unwrap());
        let gradient = TensorBuf::from_f32(vec![n], &numbers).unwrap();
        let energy = |choice| {
            let mut worker =
                ScaleComWorker::new(&manifest, Scope::Tensor(0), 0, 1, ScaleComOptions::new(choice)).unwrap();
            let Role::Leader(set) = worker.begin(0, &[gradient.view()]).unwrap() else { panic!() };
            worker.take_set(&set, SetId([0; 32])).unwrap();
            let sent = worker.values().unwrap();
            self::numbers(&sent).iter().map(|x| f64::from(*x).powi(2)).sum::<f64>()
        };
        let quasi = energy(Choice::PerChunk(100));
        let exact = energy(Choice::TopK(Amount::Count(n.div_ceil(100))));
        println!("{name}: one of 100 by chunks has {:.3} of the energy of the exact choice", quasi / exact);
        // No choice of equally many elements has more energy. A choice that ignores magnitudes would have
        // 1/100 of the total energy.
        let chance = numbers.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 100.0;
        assert!(quasi <= exact && quasi > 4.0 * chance, "{quasi} of {exact}, by chance {chance}");
    }
}
