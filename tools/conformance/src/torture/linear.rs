//! Checks that time is proportional to the input, along every axis on which an input can grow.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use gcodec::block::{
    Block, BlockOptions, Constant, Floats, Groups, Positions, ScaleFormat, Scales, Scope, Set, Sparse,
    Stored, Support, Values,
};
use gcodec::file::{File, recover};
use gcodec::frame::{Delta, FrameKind, IndexSet, Manifest, Model, TensorInfo, UpdateHeader, tensor_digest};
use gcodec::stream::{Assembler, Body, Decoder, EncodeOptions, Encoder, Event, SliceReader, Writer};
use gcodec::{Dtype, Limits, TensorView};

use super::scratch::Scratch;
use super::{Section, thousands};
use crate::Result;
use crate::programs::gcodec;

/// Makes a stream of a given size. Bases of deltas are zeros, four for each tensor.
type Make = fn(u64) -> Result<Vec<u8>>;

/// An axis: its name, its size at 1x, and the function that makes the input.
const AXES: &[(&str, u64, Make)] = &[
    ("elements of a dense tensor", 20_000, elements),
    (SPARSE, 10_000, positions),
    ("blocks of an update", 1_000, blocks),
    ("parts of an update", 400, parts),
    ("updates", 300, updates),
    ("tensors of a manifest", 1_000, tensors),
    ("tensors, and blocks that span all of them", 200, spanning),
    ("tensors of a delta, listed by each of 10 parts", 300, delta),
    ("tensors and parts of a delta", 300, delta_parts),
    ("manifests", 10, manifests),
    ("index sets", 10, sets),
    ("models", 10, models),
    ("private frames", 1_000, private),
    ("segments", 4, segments),
    ("frames whose bodies span the rest of the input", 600, promising),
];

/// Readers, each with the axes that it leaves out.
const WAYS: &[(&str, Way, &[&str])] = &[
    ("read and decode all blocks", read, &["frames whose bodies span the rest of the input"]),
    ("read in pieces of 1000 bytes", in_pieces, &["frames whose bodies span the rest of the input"]),
    (
        "assembled to dense tensors",
        assemble,
        &["frames whose bodies span the rest of the input", SPARSE, SPANNING],
    ),
    (
        "open by the index, last update",
        by_index,
        &["frames whose bodies span the rest of the input", SPARSE, SPANNING],
    ),
    ("recover", recovered, &[]),
];

/// Axes whose assembled tensors are far larger than the input: 200 bytes of tensor per byte, or blocks times
/// tensors.
const SPARSE: &str = "positions of a sparse tensor";
const SPANNING: &str = "tensors, and blocks that span all of them";

type Way = fn(&[u8]) -> Result<()>;

/// Maximum ratio of the time per byte at 100x to that at 10x. Quadratic time has a ratio of ten. Linear time
/// has up to about 1.5, when its memory exceeds a level of cache. The rest is a margin for a machine with
/// other work.
const MOST: f64 = 2.0;
/// Minimum time per byte; less counts as this much. Below it, only caches and first page accesses are
/// measured, which differ by more than the margin between 1 MB and 10 MB. Nothing quadratic stays below it
/// with 10^5 items.
const LEAST_NANOSECONDS: f64 = 2.0;
/// Processes for each size whose times are added: where the kernel counts ticks, the time of a short process
/// is wrong by several milliseconds.
const PROCESSES: [u32; 3] = [8, 8, 1];
/// Time below which the start and end of a process dominate.
const LEAST_PROCESS_SECONDS: f64 = 0.005;

pub(crate) fn run(quick: bool) -> Result<Vec<Section>> {
    let mut section = Section::new(
        "Time",
        format!(
            "Inputs of 1x, 10x and 100x the size along each axis. The columns are nanoseconds of one \
             thread's time per byte of input, the best of 3 turns (of 7 where those were too slow). \
             Target: the time per byte at 100x is at most {MOST} times that at 10x; quadratic time \
             would be 10 times. Less than {LEAST_NANOSECONDS} ns per byte, the speed of memory, \
             counts as this much. `gcodec inspect` runs as a process, whose start time is \
             subtracted; less than {} ms counts as this much.",
            LEAST_PROCESS_SECONDS * 1e3
        ),
        &["Grows", "Read by", "bytes at 100x", "ns/byte at 1x", "at 10x", "at 100x", "100x to 10x"],
    );
    // In a pool of one thread all work runs on that thread, whose clock counts only its own time.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    for (axis, base, make) in AXES {
        let inputs = [1, 10, 100].map(|times| make(base * times));
        let [one, ten, hundred] = inputs;
        let inputs = [one?, ten?, hundred?];
        for (name, way, without) in WAYS {
            if without.contains(axis) {
                continue;
            }
            let measured = || measure(&inputs, *way, quick).map_err(|e| e.to_string());
            let times = pool.install(measured)?;
            judge(&mut section, axis, name, &inputs, times);
        }
    }
    command_line(&mut section, quick)?;
    Ok(vec![section])
}

/// Measures `gcodec inspect` in a process: its processor time minus that of a process without work.
fn command_line(section: &mut Section, quick: bool) -> Result<()> {
    if !has_bash() {
        section.skipped("a process's own time is measured by bash");
        return Ok(());
    }
    let scratch = Scratch::new("linear")?;
    let program = gcodec()?;
    scratch.write("empty.gcu", &Writer::new(Vec::new(), EncodeOptions::default()).finish()?)?;
    let inspect = |file: &str, processes: u32| -> Result<f64> {
        let mut bash = Command::new("bash");
        let script = "TIMEFORMAT='%3U %3S'; run() { for ((i = 0; i < COUNT; i++)); do \"$@\" || exit; done; }; \
                      time run \"$@\" > /dev/null";
        bash.args(["-c", script, "bash"]).arg(&program).env("COUNT", processes.to_string());
        bash.args(["inspect", "--threads", "1", file]).current_dir(scratch.root());
        let output = bash.output()?;
        let text = String::from_utf8(output.stderr)?;
        let times = text.split_whitespace().map(str::parse::<f64>).collect::<Result<Vec<_>, _>>();
        match (output.status.success(), times) {
            (true, Ok(times)) if times.len() == 2 => Ok(times.iter().sum::<f64>() / f64::from(processes)),
            _ => Err(format!("gcodec inspect {file}: {text}").into()),
        }
    };
    let empty = (0..5).map(|_| inspect("empty.gcu", PROCESSES[0])).collect::<Result<Vec<_>>>()?;
    let empty = empty.into_iter().fold(f64::MAX, f64::min);
    let axes = ["blocks of an update", "updates", "tensors of a manifest", "index sets", "segments"];
    for (axis, base, make) in AXES.iter().filter(|(axis, ..)| axes.contains(axis)) {
        let [one, ten, hundred] = [1, 10, 100].map(|times| make(base * times));
        let inputs = [one?, ten?, hundred?];
        for (number, input) in inputs.iter().enumerate() {
            scratch.write(&format!("{number}.gcu"), input)?;
        }
        let mut times = [f64::MAX; 3];
        for round in 0..7 {
            if round >= if quick { 1 } else { 3 } && ratio(&inputs, &times) <= MOST {
                break;
            }
            for (number, best) in times.iter_mut().enumerate() {
                let seconds = inspect(&format!("{number}.gcu"), PROCESSES[number])? - empty;
                *best = best.min(seconds.max(LEAST_PROCESS_SECONDS));
            }
        }
        judge(section, axis, "gcodec inspect", &inputs, times);
    }
    Ok(())
}

/// Returns the seconds for each input: the best of several turns, with more turns if those miss the target.
/// A turn repeats the reading until the ticks of the scheduler's clock do not matter.
fn measure(inputs: &[Vec<u8>; 3], way: Way, quick: bool) -> Result<[f64; 3]> {
    let turn = if quick { 0.01 } else { 0.03 };
    let mut best = [f64::MAX; 3];
    for round in 0..7 {
        if round >= if quick { 1 } else { 3 } && ratio(inputs, &best) <= MOST {
            break;
        }
        for (input, best) in inputs.iter().zip(&mut best) {
            // Runs once to allocate its memory.
            way(input)?;
            let start = cpu_seconds()?;
            let (mut times, mut taken) = (0, 0.0);
            while taken < turn && times < 1000 {
                way(input)?;
                times += 1;
                taken = cpu_seconds()? - start;
            }
            *best = best.min(taken / f64::from(times));
        }
    }
    Ok(best)
}

/// Returns the time per byte at 100x divided by that at 10x.
fn ratio(inputs: &[Vec<u8>; 3], seconds: &[f64; 3]) -> f64 {
    let per_byte = |i: usize| (seconds[i] * 1e9 / inputs[i].len() as f64).max(LEAST_NANOSECONDS);
    per_byte(2) / per_byte(1)
}

fn judge(section: &mut Section, axis: &str, way: &str, inputs: &[Vec<u8>; 3], seconds: [f64; 3]) {
    let per_byte = |i: usize| format!("{:.2}", seconds[i] * 1e9 / inputs[i].len() as f64);
    let ratio = ratio(inputs, &seconds);
    let cells =
        [axis.into(), way.into(), thousands(inputs[2].len() as u64), per_byte(0), per_byte(1), per_byte(2)];
    section.row(cells.into_iter().chain([format!("{ratio:.2}")]));
    if ratio > MOST {
        section.wrong(format!("{axis}, {way}: {ratio:.2} times the time per byte"));
    }
}

fn has_bash() -> bool {
    Command::new("bash").arg("--version").output().is_ok_and(|o| o.status.success())
}

/// Returns the processor seconds of this thread.
fn cpu_seconds() -> Result<f64> {
    match std::fs::read_to_string("/proc/thread-self/schedstat") {
        Ok(text) => {
            let nanoseconds: f64 = text.split_whitespace().next().ok_or("an empty schedstat")?.parse()?;
            Ok(nanoseconds / 1e9)
        }
        // Other systems: elapsed time.
        Err(_) => {
            static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
            Ok(START.get_or_init(Instant::now).elapsed().as_secs_f64())
        }
    }
}

// Readers.

fn read(bytes: &[u8]) -> Result<()> {
    for event in SliceReader::new(bytes, Limits::default()) {
        if let Event::Frame(_, Body::Update(part)) = event? {
            part.decode_all()?;
        }
    }
    Ok(())
}

fn in_pieces(bytes: &[u8]) -> Result<()> {
    let mut decoder = Decoder::new(Limits::default());
    for piece in bytes.chunks(1000) {
        decoder.feed(piece);
        while decoder.next_event()?.is_some() {}
    }
    Ok(decoder.finish()?)
}

fn assemble(bytes: &[u8]) -> Result<()> {
    let mut open: Option<Assembler<'_>> = None;
    for event in SliceReader::new(bytes, Limits::default()) {
        let Event::Frame(_, Body::Update(part)) = event? else { continue };
        if part.part == 0 {
            let mut assembler = Assembler::new(&part.manifest, &Limits::default(), |_| true)?;
            if part.header.is_delta() {
                for info in part.manifest.tensors() {
                    assembler.base(&info.name, TensorView::new(Dtype::F32, &[4], &[0; 16])?)?;
                }
            }
            open = Some(assembler);
        }
        if let Some(assembler) = &mut open {
            assembler.apply(&part)?;
        }
        if part.last
            && let Some(done) = open.take()
        {
            done.finish()?;
        }
    }
    Ok(())
}

fn by_index(bytes: &[u8]) -> Result<()> {
    let file = File::open(bytes, Limits::default())?;
    let Some(last) = file.find(None) else { return Ok(()) };
    let mut base = BTreeMap::new();
    if file.updates()[last].header.is_delta() {
        for info in file.updates()[last].manifest.tensors() {
            base.insert(info.name.clone(), TensorView::new(Dtype::F32, &[4], &[0; 16])?);
        }
    }
    file.tensors(last, |_| true, &base)?;
    Ok(())
}

fn recovered(bytes: &[u8]) -> Result<()> {
    recover(bytes, &Limits::default(), std::io::sink())?;
    Ok(())
}

// Streams.

fn named(count: u64, shape: &[u64]) -> Result<Arc<Manifest>> {
    let infos = (0..count).map(|i| TensorInfo::new(format!("layer.{i}.weight"), Dtype::F32, shape));
    Ok(Arc::new(Manifest::new(infos.collect())?))
}

fn ones(scope: Scope, support: Support) -> Block {
    let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
    Block { scope, add: false, support, values: Values::Constant(Constant { groups: Groups::Block, scales }) }
}

/// Returns a stream of updates, each with these blocks.
fn stream(manifest: &Arc<Manifest>, part_bytes: u64, updates: &[Vec<Block>]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(part_bytes));
    for (step, blocks) in (0..).zip(updates) {
        let blocks: Vec<_> = blocks.iter().map(|b| (b, BlockOptions::default())).collect();
        encoder.update(&mut out, &UpdateHeader::default().with_step(step), manifest, &blocks)?;
    }
    encoder.finish(&mut out);
    Ok(out)
}

fn elements(n: u64) -> Result<Vec<u8>> {
    let mut words = vec![0; n as usize];
    gcodec::compress::random::words(1, 0, 0, &mut words);
    let bytes = words.iter().flat_map(|w| (*w as f32 / 2e9 - 1.0).to_le_bytes()).collect();
    let block = Block {
        scope: Scope::Tensor(0),
        add: false,
        support: Support::All,
        values: Values::Floats(Floats { stored: Stored::F32, bytes }),
    };
    stream(&named(1, &[n])?, 1 << 26, &[vec![block]])
}

fn positions(n: u64) -> Result<Vec<u8>> {
    let block = ones(
        Scope::Tensor(0),
        Support::Sparse(Sparse { positions: gcodec::compress::random::sample(50 * n, n, 3) }),
    );
    stream(&named(1, &[50 * n])?, 1 << 26, &[vec![block]])
}

fn ranges(n: u64) -> Vec<Block> {
    (0..n)
        .map(|i| {
            ones(
                Scope::Range { tensor: 0, start: i * 8, len: 8 },
                Support::Sparse(Sparse { positions: vec![i % 8] }),
            )
        })
        .collect()
}

fn blocks(n: u64) -> Result<Vec<u8>> {
    stream(&named(1, &[8 * n + 8])?, 1 << 26, &[ranges(n)])
}

fn parts(n: u64) -> Result<Vec<u8>> {
    stream(&named(1, &[8 * n + 8])?, 1, &[ranges(n)])
}

fn updates(n: u64) -> Result<Vec<u8>> {
    let updates: Vec<_> = (0..n)
        .map(|i| vec![ones(Scope::Tensor(0), Support::Sparse(Sparse { positions: vec![i % 16] }))])
        .collect();
    stream(&named(1, &[16])?, 1 << 26, &updates)
}

fn tensors(n: u64) -> Result<Vec<u8>> {
    let blocks = (0..n).map(|i| ones(Scope::Tensor(i), Support::Sparse(Sparse { positions: vec![i % 4] })));
    stream(&named(n, &[2, 2])?, 1 << 26, &[blocks.collect()])
}

fn spanning(n: u64) -> Result<Vec<u8>> {
    let block = Block {
        add: true,
        ..ones(Scope::Tensors { first: 0, count: n }, Support::Sparse(Sparse { positions: vec![0] }))
    };
    stream(&named(n, &[1])?, 1, &[vec![block; n as usize]])
}

fn delta_stream(tensors: u64, part_bytes: u64) -> Result<Vec<u8>> {
    let manifest = named(tensors, &[4])?;
    let digest =
        |byte| -> Result<[u8; 16]> { Ok(tensor_digest(TensorView::new(Dtype::F32, &[4], &[byte; 16])?)) };
    let (base, result) = (digest(0)?, digest(1)?);
    let delta = (0..tensors).map(|tensor| Delta { first: tensor, more: 0, base, result }).collect();
    let values = Values::Floats(Floats { stored: Stored::Source, bytes: vec![1; 16] });
    let block =
        |i| Block { scope: Scope::Tensor(i), add: false, support: Support::All, values: values.clone() };
    let blocks: Vec<_> = (0..tensors).map(block).collect();
    let blocks: Vec<_> = blocks.iter().map(|b| (b, BlockOptions::default())).collect();
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(part_bytes));
    encoder.update(&mut out, &UpdateHeader::default().with_delta(Some(delta)), &manifest, &blocks)?;
    encoder.finish(&mut out);
    Ok(out)
}

fn delta(n: u64) -> Result<Vec<u8>> {
    delta_stream(n, n * 16 / 10)
}

fn delta_parts(n: u64) -> Result<Vec<u8>> {
    delta_stream(n, 16)
}

/// Returns a stream of frames that `add` writes.
fn frames(count: u64, put: impl Fn(&mut Encoder, &mut Vec<u8>, u64) -> Result<()>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    (0..count).try_for_each(|i| put(&mut encoder, &mut out, i))?;
    encoder.finish(&mut out);
    Ok(out)
}

fn manifests(n: u64) -> Result<Vec<u8>> {
    frames(n, |encoder, out, i| {
        let infos = (0..20).map(|j| TensorInfo::new(format!("{i}.{j}"), Dtype::F32, [3]));
        encoder.manifest(out, &Arc::new(Manifest::new(infos.collect())?));
        Ok(())
    })
}

/// Index sets, each followed by an update that uses it.
fn sets(n: u64) -> Result<Vec<u8>> {
    let manifest = named(1, &[1 << 16])?;
    frames(n, |encoder, out, i| {
        let (scope, support) = (
            Scope::Tensor(0),
            Support::Sparse(Sparse { positions: gcodec::compress::random::sample(1 << 16, 50, i) }),
        );
        let set = IndexSet { manifest: manifest.id(), step: i, leader: 0, world: 0, scope, support };
        let options = BlockOptions::default().with_positions(Positions::Rice);
        let id = encoder.index_set(out, &set, &manifest, options)?;
        let block = ones(scope, Support::Set(Set { id }));
        let header = UpdateHeader::default().with_step(i);
        Ok(encoder.update(out, &header, &manifest, &[(&block, options)])?)
    })
}

fn models(n: u64) -> Result<Vec<u8>> {
    frames(n, |encoder, out, i| {
        encoder.model(out, &Model::inline("test/1", "none", i.to_le_bytes().repeat(50))).expect("a model");
        Ok(())
    })
}

fn private(n: u64) -> Result<Vec<u8>> {
    frames(n, |encoder, out, i| Ok(encoder.private(out, FrameKind(0xf000), &i.to_le_bytes())?))
}

fn segments(n: u64) -> Result<Vec<u8>> {
    let manifest = named(1, &[16])?;
    let mut out = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    for i in 0..n {
        let block = ones(Scope::Tensor(0), Support::Sparse(Sparse { positions: vec![i % 16] }));
        let header = UpdateHeader::default().with_step(i);
        encoder.update(&mut out, &header, &manifest, &[(&block, BlockOptions::default())])?;
        encoder.finish(&mut out);
    }
    Ok(out)
}

/// Frame headers with correct checksums, whose bodies have wrong ones.
fn promising(n: u64) -> Result<Vec<u8>> {
    let mut out = Writer::new(Vec::new(), EncodeOptions::default()).finish()?[..16].to_vec();
    for i in 0..n {
        let mut head = b"\xd3gcf\x00\xf0\x00\x00".to_vec();
        head.extend((24 * (n - i - 1)).to_le_bytes());
        head.extend(0x1234_5678u32.to_le_bytes());
        head.extend(crc32fast::hash(&head).to_le_bytes());
        out.extend(head);
    }
    Ok(out)
}
