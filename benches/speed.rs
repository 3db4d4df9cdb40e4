//! Measures the throughput of encoding and decoding, from tensor to bytes and back, relative to the memory
//! bandwidth of this machine.
//!
//! `cargo bench --bench speed` runs on one thread with 64 Mi elements; `RAYON_NUM_THREADS` sets another
//! number of threads. `-- --elements N` sets another number of elements, `-- --repeats N` of repetitions,
//! `-- --only CODEC` selects a codec (several with several `--only`), `-- --only reduce` the mean of several
//! updates, `-- --only delta` deltas of bf16 weights, `-- --only small` updates of 500 small tensors, and
//! `-- --only sidco` compares SIDCo's thresholds with exact selection. `-- --cpu` measures processor time
//! instead of time, for one thread on a machine with other work (Linux). `GCODEC_WIDEST_FORM=avx2` or `plain`
//! leaves out wider instructions.
//!
//! The column "peak" is the most memory that a path takes at a time beyond what was in use before it, in
//! sizes of its tensor (Linux). A result below its floor is reported and fails the run. Under `cargo test
//! --benches` the program runs once on a small tensor and never fails for a floor.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use gcodec::block::{CodedBlock, Scope, Target};
use gcodec::compress::{Digests, Input, Options, compress, deltas, pending, random};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader, tensor_digest};
use gcodec::reduce::{Sum, SumOptions};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf, TensorView};

/// The baseline of a ratio.
#[derive(Clone, Copy)]
enum Against {
    Read,
    Fill,
    /// Exact top-k with the same number of elements.
    TopK,
}

/// Codecs of [`Bench::small`].
const SMALL: [&str; 3] = ["topk:density=0.01", "natural", "lossless"];

struct Bench {
    manifest: Arc<Manifest>,
    repeats: usize,
    read: f64,
    fill: f64,
    top_k: f64,
    missed: bool,
    only: Vec<String>,
}

fn main() -> ExitCode {
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        rayon::ThreadPoolBuilder::new().num_threads(1).build_global().expect("no pool was built before");
    }
    // On a thread of the pool, whose threads then also share checksums.
    rayon::join(run, || ()).0
}

fn run() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let full = args.iter().any(|a| a == "--bench") && !args.iter().any(|a| a == "--test");
    let options = |name| args.windows(2).filter(move |pair| pair[0] == name).map(|pair| pair[1].clone());
    let number = |name| options(name).find_map(|n| n.parse().ok());
    let only = options("--only").collect();
    let elements: usize = number("--elements").unwrap_or(if full { 64 << 20 } else { 1 << 16 });

    let columns = (elements as u64).min(4096);
    let shape = vec![elements as u64 / columns, columns];
    let elements = (shape[0] * shape[1]) as usize;
    let manifest = manifest_of(Dtype::F32, &shape);
    let repeats = number("--repeats").unwrap_or(if full { 5 } else { 1 });
    let mut bench = Bench { manifest, repeats, read: 0.0, fill: 0.0, top_k: 0.0, missed: false, only };
    println!("{elements} f32 elements, {} thread(s), best of {repeats}", rayon::current_num_threads());
    println!("{:<40}{:>9}{:>9}  {:<6}{:>6}{:>7}", "operation", "GB/s", "ratio", "of", "peak", "floor");

    let even = TensorBuf::from_f32(shape.clone(), &noise(elements, |_| 1.0)).expect("shape fits");
    bench.codec("topk:density=0.001", even.view(), Some(0.3), Some(0.5));
    bench.codec("sbc:density=0.001", even.view(), Some(0.3), Some(0.5));
    // The cost of writing positions with either code: `write` minus the cost of the frame.
    bench.codec("sbc:density=0.001,positions=rice", even.view(), None, None);
    bench.codec("sbc:density=0.001,positions=tokens", even.view(), None, None);
    bench.codec("topk:density=0.01", even.view(), Some(0.15), Some(0.2));
    bench.codec("topk:density=0.1", even.view(), Some(0.05), Some(0.05));
    bench.codec("natural", even.view(), Some(0.05), Some(0.05));
    bench.codec("lossless", even.view(), Some(0.05), Some(0.05));
    for codec in ["qsgd:bits=4", "dither", "terngrad"] {
        bench.codec(codec, even.view(), Some(0.035), Some(0.05));
    }
    bench.codec("int8", even.view(), Some(0.05), Some(0.05));
    bench.codec("sign", even.view(), Some(0.12), Some(0.12));
    bench.thresholds(even.view());
    bench.reduce(even.view());
    bench.small(even.view());
    let halves = even.view().data().as_chunks::<4>().0.iter().flat_map(|x| [x[2], x[3]]).collect();
    drop(even);
    bench.manifest = manifest_of(Dtype::Bf16, &shape);
    let halves = TensorBuf::new(Dtype::Bf16, shape.clone(), halves).expect("shape fits");
    println!("bf16:");
    bench.codec("lossless", halves.view(), Some(0.04), Some(0.03));
    drop(halves);
    bench.deltas(&shape);
    bench.manifest = manifest_of(Dtype::F32, &shape);
    // A tensor with a scale per row and column, like the gradient of a matrix.
    let scale = |i: usize| {
        let (row, column) = (i as u64 / columns, i as u64 % columns);
        0.5f32.powi((row * 0x9e37 / 64 % 7) as i32) * (1.0 + (column * 0x85eb / 32 % 5) as f32)
    };
    let scaled = TensorBuf::from_f32(shape, &noise(elements, scale)).expect("shape fits");
    println!("rows and columns of different scale:");
    bench.codec("topk:density=0.001", scaled.view(), None, None);
    for positions in ["classed", "tokens"] {
        bench.codec(&format!("topk:density=0.01,positions={positions}"), scaled.view(), None, None);
    }
    bench.codec("natural", scaled.view(), None, None);
    bench.codec("lossless", scaled.view(), None, None);
    if bench.missed && full { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Bench {
    /// Measures the baselines: summing a tensor, and filling a tensor whose memory was touched before. This
    /// is repeated before each codec and keeps the best result so far, because the speed of a shared machine
    /// varies.
    fn memory(&mut self, view: TensorView<'_>) {
        let words = view.data().as_chunks::<4>().0;
        let sum = |row: &[[u8; 4]; 64]| row.iter().fold(0u32, |s, w| s.wrapping_add(u32::from_le_bytes(*w)));
        let (rows, _) = words.as_chunks::<64>();
        let Cost { seconds, .. } = self.best(|| {
            black_box(rows.iter().fold(0u32, |s, row| s.wrapping_add(sum(row))));
        });
        self.read = self.read.max(view.data().len() as f64 / seconds);
        let mut buffer = view.data().to_vec();
        let Cost { seconds, .. } = self.best(|| black_box(&mut buffer).fill(0));
        self.fill = self.fill.max(view.data().len() as f64 / seconds);
        println!("read {:.1} GB/s, fill {:.1} GB/s", self.read / 1e9, self.fill / 1e9);
    }

    fn wants(&self, spec: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == spec)
    }

    fn codec(
        &mut self,
        spec: &str,
        view: TensorView<'_>,
        encode_floor: Option<f64>,
        decode_floor: Option<f64>,
    ) {
        if !self.wants(spec) {
            return;
        }
        self.memory(view);
        let codec: Codec = spec.parse().expect("a codec");
        let bytes = self.encode(&codec, view);
        let blocks = blocks(&codec, view);
        let name = |what| format!("{what} {spec}");
        let cost = self.best(|| drop(black_box(crate::blocks(&codec, view))));
        self.row(&name("compress"), view, cost, Against::Read, None);
        let cost = self.best(|| drop(black_box(write(&self.manifest, &UpdateHeader::default(), &blocks))));
        self.row(&name("write"), view, cost, Against::Read, None);
        drop(blocks);
        let cost = self.best(|| drop(black_box(self.encode(&codec, view))));
        self.row(&name("encode to new memory"), view, cost, Against::Read, None);
        let mut stream = bytes.clone();
        let cost = self.best(|| {
            stream.clear();
            self.encode_to(&mut stream, &codec, view);
        });
        drop(stream);
        self.row(&name("encode"), view, cost, Against::Read, encode_floor);
        let fresh = || Assembler::new(&self.manifest, &Limits::default(), |_| true).expect("within limits");
        let mut tensors = decode(&bytes, fresh());
        let cost = self.best(|| {
            let buffers = std::mem::take(&mut tensors);
            let assembler = Assembler::with_buffers(&self.manifest, buffers).expect("this manifest's");
            tensors = decode(&bytes, assembler);
        });
        drop(tensors);
        let new_memory = self.best(|| drop(black_box(decode(&bytes, fresh()))));
        self.row(&name("decode to new memory"), view, new_memory, Against::Fill, None);
        self.row(&name("decode"), view, cost, Against::Fill, decode_floor);
        println!("{:<40}{:>9.3} bits/element", "", bytes.len() as f64 * 8.0 / view.elements() as f64);
    }

    /// Measures updates of 500 tensors of one size, and of one tensor with the elements of all.
    fn small(&mut self, view: TensorView<'_>) {
        if !self.wants("small") {
            return;
        }
        println!("many tensors, nanoseconds per element:");
        println!(
            "{:<24}{:<12}{:>9}{:>9}{:>9}{:>9}",
            "codec", "tensors", "compress", "write", "encode", "decode"
        );
        let sizes = [1, 2, 4, 8, 16, 64].map(|kilo| kilo << 10);
        for (size, spec) in sizes.iter().flat_map(|size| SMALL.map(|spec| (*size, spec))) {
            let codec: Codec = spec.parse().expect("a codec");
            let count = 500.min(view.elements() as usize / size);
            for (count, size) in [(count, size), (1, count * size)] {
                let names: Vec<String> = (0..count).map(|i| format!("layers.{i}.weight")).collect();
                let shape = [size as u64];
                let infos = names.iter().map(|name| TensorInfo::new(name, Dtype::F32, shape.to_vec()));
                let manifest = Arc::new(Manifest::new(infos.collect()).expect("distinct names"));
                let parts: Vec<TensorView<'_>> = (0..count)
                    .map(|i| {
                        let data = &view.data()[4 * size * i..][..4 * size];
                        TensorView::new(Dtype::F32, &shape, data).expect("whole elements")
                    })
                    .collect();
                let each = parts.iter().zip(&names).enumerate();
                let inputs: Vec<Input<'_>> = each
                    .map(|(i, (&view, name))| Input { tensor: i as u64, name, view, base: None })
                    .collect();
                let codecs = vec![codec; count];
                let compress = || compress(&inputs, &codecs, &Options::default(), None).expect("finite");
                let header = UpdateHeader::default();
                let bytes = write(&manifest, &header, &compress());
                let blocks = compress();
                let fresh =
                    || Assembler::new(&manifest, &Limits::default(), |_| true).expect("within limits");
                let mut tensors = decode(&bytes, fresh());
                let costs = [
                    self.best(|| drop(black_box(compress()))),
                    self.best(|| drop(black_box(write(&manifest, &header, &blocks)))),
                    self.best(|| drop(black_box(write(&manifest, &header, &compress())))),
                    self.best(|| {
                        let held = std::mem::take(&mut tensors);
                        let held = Assembler::with_buffers(&manifest, held).expect("this manifest's");
                        tensors = decode(&bytes, held);
                    }),
                ];
                print!("{spec:<24}{:<12}", format!("{count} x {size}"));
                costs.iter().for_each(|cost| print!("{:>9.2}", cost.seconds * 1e9 / (count * size) as f64));
                println!();
            }
        }
    }

    /// Compares SIDCo's thresholds with exact top-k, and with the usual implementation of exact top-k: a
    /// quickselect of all magnitudes, and a pass that selects by the magnitude found. The measurements
    /// alternate, so that load from other programs affects all of them.
    fn thresholds(&mut self, view: TensorView<'_>) {
        if !self.wants("sidco") {
            return;
        }
        self.memory(view);
        println!("thresholds and exact selection (compress only):");
        for density in ["0.1", "0.01", "0.001"] {
            let k = (density.parse::<f64>().expect("a number") * view.elements() as f64) as usize;
            let mut rows = vec![(format!("topk:density={density}"), None)];
            for stages in ["guard", "1", "2", "3"] {
                let fits = if stages == "guard" { &["exp", "gp", "gamma-gp"][..] } else { &["gp"] };
                let spec = |fit| match stages {
                    "guard" => format!("sidco:density={density},fit={fit}"),
                    _ => format!("sidco:density={density},fit={fit},stages={stages}"),
                };
                // As fast as exact selection, within the variation between two measurements of the same code.
                let floor = (stages == "guard").then_some(0.9);
                rows.extend(fits.iter().map(|fit| (spec(fit), floor)));
            }
            let codecs: Vec<Codec> = rows.iter().map(|(spec, _)| spec.parse().expect("a codec")).collect();
            let (mut best, mut quickselect) = (vec![f64::INFINITY; rows.len()], f64::INFINITY);
            for _ in 0..3 * self.repeats {
                for (codec, best) in codecs.iter().zip(&mut best) {
                    *best = best.min(once(|| drop(black_box(crate::blocks(codec, view)))));
                }
                quickselect = quickselect.min(once(|| drop(black_box(quickselected(view, k)))));
            }
            self.top_k = view.data().len() as f64 / best[0];
            for ((spec, floor), seconds) in rows.iter().zip(best) {
                self.row(spec, view, Cost { seconds, peak: None }, Against::TopK, *floor);
            }
            let quickselect = Cost { seconds: quickselect, peak: None };
            self.row(&format!("quickselect of {density}"), view, quickselect, Against::TopK, None);
        }
    }

    /// Measures the mean of the top-k updates of 8 senders, from streams to a tensor.
    fn reduce(&mut self, view: TensorView<'_>) {
        if !self.wants("reduce") {
            return;
        }
        self.memory(view);
        let codec = "topk:density=0.01".parse().expect("a codec");
        let n = view.elements() as usize;
        let senders = (0..8u64).map(|sender| {
            // Each sender keeps other elements.
            let mut data = view.data().to_vec();
            data.rotate_left(4 * (sender as usize * 1009 % n));
            let turned = TensorView::new(view.dtype(), view.shape(), &data).expect("the same shape");
            let mut encoder = Encoder::new(EncodeOptions::default());
            let (mut out, header) = (Vec::new(), UpdateHeader::default().with_sender(sender));
            let blocks = blocks(&codec, turned);
            encoder.update(&mut out, &header, &self.manifest, &blocks).expect("blocks of this manifest");
            encoder.finish(&mut out);
            out
        });
        let streams: Vec<Vec<u8>> = senders.collect();
        let cost = self.best(|| drop(black_box(mean(&self.manifest, &streams))));
        self.row("reduce 8 x topk:density=0.01", view, cost, Against::Fill, None);
        println!("{:<40}{:>9.1} ms", "", 1e3 * cost.seconds);
    }

    /// Measures deltas of bf16 weights after a step that changes a share of them. Its size is the same for
    /// all weights, as a step of Adam is about, so large weights change seldom. Encoding reads base and
    /// result; applying writes the result.
    fn deltas(&mut self, shape: &[u64]) {
        if !self.wants("delta") {
            return;
        }
        let masters = noise((shape[0] * shape[1]) as usize, |_| 1.0);
        let rounded = |step: f32| -> Vec<u8> {
            let signed = |(i, &x): (usize, &f32)| if i.is_multiple_of(3) { x - step } else { x + step };
            let halves = masters.iter().enumerate().map(signed).map(|x| (x.to_bits() >> 16) as u16);
            halves.flat_map(u16::to_le_bytes).collect()
        };
        let tensor = |data| TensorBuf::new(Dtype::Bf16, shape.to_vec(), data).expect("shape fits");
        let base = tensor(rounded(0.0));
        self.memory(base.view());
        let cost = self.best(|| _ = black_box(tensor_digest(base.view())));
        self.row("digest of a tensor", base.view(), cost, Against::Read, None);
        for step in [2e-8, 3e-7, 1.6e-6, 6e-5] {
            let new = tensor(rounded(step));
            self.delta("delta", "", base.view(), new.view());
        }
        self.delta("delta:values=overwrite", "", base.view(), tensor(rounded(6e-5)).view());
        // Whatever their size, so that the base predicts nothing.
        let half = base.data().as_chunks::<2>().0.iter().zip(0..);
        let half = half.flat_map(|(&[low, high], i)| [low ^ (random::word(9, 0, i) & 1) as u8, high]);
        self.delta("delta", "evenly ", base.view(), tensor(half.collect()).view());
    }

    fn delta(&mut self, codec: &str, how: &str, base: TensorView<'_>, new: TensorView<'_>) {
        self.memory(new);
        let manifest = Arc::clone(&self.manifest);
        let name = codec;
        let codec: Codec = name.parse().expect("a codec");
        let input = |base, view| [Input { tensor: 0, name: "w", view, base: Some(base) }];
        let compressed =
            |from, to| compress(&input(from, to), &[codec], &Options::default(), None).expect("a base");
        let digests = |from, to, blocks: &[CodedBlock]| {
            UpdateHeader::default().with_delta(Some(deltas(&input(from, to), blocks)))
        };
        let encode = |from, to| {
            let blocks = compressed(from, to);
            write(&manifest, &digests(from, to, &blocks), &blocks)
        };
        let (there, back, blocks) = (encode(base, new), encode(new, base), compressed(base, new));
        let pairs = base.data().as_chunks::<2>().0.iter().zip(new.data().as_chunks::<2>().0);
        let changed = pairs.filter(|(base, new)| base != new).count();
        let n = new.elements() as f64;
        println!("{name}, {:.2} % of {n} bf16 elements {how}changed:", 100.0 * changed as f64 / n);
        let cost = self.best(|| drop(black_box(compressed(base, new))));
        self.row("compress delta", new, cost, Against::Read, None);
        let header = digests(base, new, &blocks);
        let cost = self.best(|| drop(black_box(write(&manifest, &header, &blocks))));
        self.row("write delta", new, cost, Against::Read, None);
        let cost = self.best(|| drop(black_box(encode(base, new))));
        self.row("encode delta, both digests computed", new, cost, Against::Read, None);
        let kept = tensor_digest(base);
        let cost = self.best(|| {
            let (blocks, mut digests) = (compressed(base, new), Digests::default());
            digests.keep_base(0, kept);
            let deltas = digests.deltas(&input(base, new), &blocks);
            drop(black_box(write(&manifest, &UpdateHeader::default().with_delta(Some(deltas)), &blocks)));
        });
        self.row("encode delta, base digest kept", new, cost, Against::Read, None);
        let mut held = base.data().to_vec();
        let mut streams = [&there, &back].into_iter().cycle();
        let cost = self.best(|| apply_in_place(streams.next().expect("a cycle"), &mut held));
        self.row("apply delta in place, without digests", new, cost, Against::Fill, None);
        let cost = self.best(|| {
            let mut assembler =
                Assembler::new(&manifest, &Limits::default(), |_| true).expect("within limits");
            assembler.base("w", base).expect("this manifest's");
            drop(black_box(decode(&there, assembler)));
        });
        self.row("apply delta to new memory, both digests", new, cost, Against::Fill, None);
        let copy =
            |view: TensorView<'_>| TensorBuf::new(view.dtype(), view.shape().to_vec(), view.data().to_vec());
        let mut staged = copy(base).expect("the same shape");
        let cost = self.best(|| {
            let buffer = std::mem::replace(&mut staged, TensorBuf::from_f32(vec![0], &[]).expect("nothing"));
            let mut assembler = Assembler::with_buffers(&manifest, [(0, buffer)]).expect("this manifest's");
            assembler.base_with_digest("w", base, kept).expect("this manifest's");
            apply(&there, &mut assembler);
            let mut tensors = assembler.finish_with_digests().expect("the base of this delta");
            staged = tensors.remove(0).1;
        });
        self.row("apply delta, base digest kept", new, cost, Against::Fill, None);
        println!("{:<40}{:>9.3} bits/changed element", "", there.len() as f64 * 8.0 / changed as f64);
    }

    fn encode(&self, codec: &Codec, view: TensorView<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_to(&mut out, codec, view);
        out
    }

    fn encode_to(&self, out: &mut Vec<u8>, codec: &Codec, view: TensorView<'_>) {
        let input = Input { tensor: 0, name: "w", view, base: None };
        let inputs = [input];
        let blocks = pending(&inputs, std::slice::from_ref(codec), &Options::default());
        let mut encoder = Encoder::new(EncodeOptions::default());
        let blocks = blocks.expect("a finite tensor");
        encoder
            .update(out, &UpdateHeader::default(), &self.manifest, blocks)
            .expect("blocks of this manifest");
        encoder.finish(out);
    }

    fn row(&mut self, name: &str, view: TensorView<'_>, cost: Cost, against: Against, floor: Option<f64>) {
        let bytes = view.data().len() as f64;
        let speed = bytes / cost.seconds;
        let peak = cost.peak.map_or("-".into(), |peak| format!("{:.2}", peak as f64 / bytes));
        let (of, base) = match against {
            Against::Read => ("read", self.read),
            Against::Fill => ("fill", self.fill),
            Against::TopK => ("top-k", self.top_k),
        };
        let ratio = speed / base;
        let verdict = floor.map_or(String::new(), |floor| {
            let met = ratio >= floor;
            self.missed |= !met;
            format!("{floor:>7.2}  {}", if met { "ok" } else { "FAIL" })
        });
        println!("{name:<40}{:>9.2}{ratio:>9.3}  {of:<6}{peak:>6}{verdict}", speed / 1e9);
    }

    /// Returns the seconds of the fastest repetition; with `--cpu` the mean, because Linux counts processor
    /// time in steps of milliseconds.
    fn best(&self, mut f: impl FnMut()) -> Cost {
        // Linux then counts the peak anew.
        let reset = std::fs::write("/proc/self/clear_refs", "5").ok();
        let before = reset.and_then(|()| memory_in_use("VmRSS:"));
        let seconds = match *CPU {
            true => once(|| (0..self.repeats).for_each(|_| f())) / self.repeats as f64,
            false => (0..self.repeats).map(|_| once(&mut f)).fold(f64::INFINITY, f64::min),
        };
        let peak = before.zip(memory_in_use("VmHWM:")).map(|(before, most)| most.saturating_sub(before));
        Cost { seconds, peak }
    }
}

/// Time and memory of a path.
#[derive(Clone, Copy)]
struct Cost {
    seconds: f64,
    /// The most memory in use at a time, in bytes above the memory in use before (Linux).
    peak: Option<u64>,
}

/// Returns the bytes in a field of the system's account of this process (Linux).
fn memory_in_use(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Whether to measure processor time.
static CPU: LazyLock<bool> = LazyLock::new(|| std::env::args().any(|arg| arg == "--cpu"));

/// Returns the seconds that `f` takes: on a clock, or with `--cpu` of processors.
fn once(f: impl FnOnce()) -> f64 {
    if *CPU {
        let start = processor_seconds();
        f();
        return processor_seconds() - start;
    }
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

/// Returns the seconds that processors have spent on all threads of this process (Linux).
fn processor_seconds() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux lists threads");
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| -> f64 {
        let path = thread.expect("a thread of this process").path().join("schedstat");
        let text = std::fs::read_to_string(path).expect("Linux counts processor time");
        text.split(' ').next().and_then(|nanoseconds| nanoseconds.parse().ok()).unwrap_or(0.0)
    };
    threads.map(of_thread).sum::<f64>() / 1e9
}

/// Returns the positions of the `k` largest magnitudes, and of all magnitudes equal to the smallest of these.
fn quickselected(view: TensorView<'_>, k: usize) -> Vec<u64> {
    let words = view.data().as_chunks::<4>().0;
    let magnitude = |word: &[u8; 4]| u32::from_le_bytes(*word) & 0x7fff_ffff;
    let mut magnitudes: Vec<u32> = words.iter().map(magnitude).collect();
    let place = magnitudes.len() - k.clamp(1, magnitudes.len());
    let (_, &mut least, _) = magnitudes.select_nth_unstable(place);
    (0..).zip(words).filter(|(_, word)| magnitude(word) >= least).map(|(i, _)| i).collect()
}

fn blocks(codec: &Codec, view: TensorView<'_>) -> Vec<CodedBlock> {
    let input = Input { tensor: 0, name: "w", view, base: None };
    compress(&[input], std::slice::from_ref(codec), &Options::default(), None).expect("a finite tensor")
}

fn manifest_of(dtype: Dtype, shape: &[u64]) -> Arc<Manifest> {
    Arc::new(Manifest::new(vec![TensorInfo::new("w", dtype, shape.to_vec())]).expect("one tensor"))
}

fn write(manifest: &Arc<Manifest>, header: &UpdateHeader, blocks: &[CodedBlock]) -> Vec<u8> {
    let mut out = Vec::new();
    write_to(&mut out, manifest, header, blocks);
    out
}

fn write_to(out: &mut Vec<u8>, manifest: &Arc<Manifest>, header: &UpdateHeader, blocks: &[CodedBlock]) {
    let mut encoder = Encoder::new(EncodeOptions::default());
    encoder.update(out, header, manifest, blocks).expect("blocks of this manifest");
    encoder.finish(out);
}

fn decode(bytes: &[u8], mut assembler: Assembler<'_>) -> Vec<(u64, TensorBuf)> {
    apply(bytes, &mut assembler);
    assembler.finish().expect("complete")
}

fn apply(bytes: &[u8], assembler: &mut Assembler<'_>) {
    let mut reader = SliceReader::new(bytes, Limits::default());
    while let Some(event) = reader.next_event().expect("an encoded stream decodes") {
        if let Event::Frame(_, Body::Update(part)) = event {
            assembler.apply(&part).expect("an encoded stream decodes");
        }
    }
}

/// Decodes the blocks of a delta of one tensor and changes its elements.
fn apply_in_place(bytes: &[u8], data: &mut [u8]) {
    let mut reader = SliceReader::new(bytes, Limits::default());
    while let Some(event) = reader.next_event().expect("an encoded stream decodes") {
        let Event::Frame(_, Body::Update(part)) = event else { continue };
        for (i, raw) in part.blocks.iter().enumerate() {
            let budget = part.budget();
            let block = part.decode(i, &budget).expect("an encoded stream decodes");
            let start = match raw.scope {
                Scope::Range { start, .. } => start,
                _ => 0,
            };
            let target = Target { data: &mut *data, start, len: raw.space.len() };
            block.apply(&raw.space, part.sets(), &budget, &mut [target]).expect("the base of this delta");
        }
    }
}

/// Returns the mean of the updates of several senders.
fn mean(manifest: &Arc<Manifest>, streams: &[Vec<u8>]) -> Vec<TensorBuf> {
    let mut sum = Sum::new(manifest, SumOptions::default());
    for stream in streams {
        let mut reader = SliceReader::new(stream, Limits::default());
        while let Some(event) = reader.next_event().expect("an encoded stream decodes") {
            if let Event::Frame(_, Body::Update(part)) = event {
                sum.add(&part, 1.0).expect("updates of one manifest");
            }
        }
    }
    sum.finish(true).expect("complete updates").into_tensors().expect("floats")
}

/// Returns approximately normal numbers, each times its scale: sums of four uniform numbers.
fn noise(elements: usize, scale: impl Fn(usize) -> f32) -> Vec<f32> {
    let mut words = vec![0; 2 << 16];
    let mut out = Vec::with_capacity(elements);
    for start in (0..elements).step_by(1 << 16) {
        random::words(7, 0, 2 * start as u64, &mut words);
        for (i, pair) in words.chunks(2).enumerate().take(elements - start) {
            let uniforms = [pair[0] & 0xffff, pair[0] >> 16, pair[1] & 0xffff, pair[1] >> 16];
            let sum = uniforms.iter().sum::<u32>() as f32 - 131_070.0;
            // A fraction of the sum's step, so that no number is zero.
            let fine = ((pair[0] ^ pair[1]) & 0xff) as f32 / 256.0 + 1.0 / 512.0;
            out.push((sum + fine) * 1e-6 * scale(start + i));
        }
    }
    out
}
