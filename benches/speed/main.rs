//! Measures the throughput of encoding and decoding, from tensors to bytes and back, on a real gradient, on
//! real weights, and on noise, relative to a copy, and to a count of bytes, on this machine.
//!
//! `cargo bench --bench speed` runs on one thread with 16 Mi elements; `RAYON_NUM_THREADS` sets another
//! number of threads. `-- --elements N` sets another number of elements, `-- --repeats N` of repetitions,
//! `-- --only CODEC` selects a codec (several with several `--only`), `-- --only reduce` the mean of several
//! updates, `-- --only delta` deltas of bf16 weights, `-- --only digest` digests of weights,
//! `-- --only small` updates of 500 small tensors, `-- --only effort` both efforts of `lossless` and of
//! `natural` on each file of the public set (not without this argument), and `-- --only sidco` compares
//! SIDCo's thresholds with exact selection. `-- --data D` selects the data (`gradient`, `weights`, `noise`,
//! or several of them).
//! `-- --cpu` measures processor time instead of time, for one thread on a machine with other work (Linux).
//! `GCODEC_WIDEST_FORM=avx2` or `plain` leaves out wider instructions.
//!
//! The gradient and the weights are files of the public set, in `../shared/gradients` or the folder that
//! `GCODEC_GRADIENTS` names; where it is not there, small ones of the repository.
//!
//! The column "peak" is the most memory that a path takes at a time beyond what was in use before it, in
//! sizes of its tensor (Linux). A result below its floor is reported and fails the run. Under `cargo test
//! --benches` the program runs once on a small tensor and never fails for a floor.

mod data;
mod effort;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use data::Tensors;
use gcodec::block::{Block, CodedBlock, Scope, Target};
use gcodec::compress::{Digests, Input, Options, compress, pending, random};
use gcodec::digest::{SumChange, SumDigest, TensorDigests};
use gcodec::frame::{Delta, Manifest, TensorInfo, UpdateHeader, UpdatePart, tensor_digest};
use gcodec::reduce::{Sum, SumOptions, SumPiece};
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf, TensorView};

/// The baseline of a ratio.
#[derive(Clone, Copy)]
enum Against {
    /// Summing the bytes of the tensors.
    Read,
    /// Copying them to memory in use.
    Copy,
    /// Counting the highest bytes of their elements.
    Count,
    /// Exact top-k with the same number of elements.
    TopK,
    /// Hashing them.
    Hash,
}

/// Codecs of [`Bench::small`].
const SMALL: [&str; 3] = ["topk:density=0.01", "natural", "lossless"];

/// Codecs of [`Bench::small`] for one size: all that need no matrices and no base.
const SMALL_ALL: [&str; 19] = [
    "raw",
    "lossless",
    "lossless:effort=fast",
    "topk:density=0.01",
    "topk:density=0.1",
    "stc:density=0.01",
    "threshold:at=0.0001",
    "sbc:density=0.01",
    "sidco:density=0.01",
    "randk:density=0.01",
    "chunked",
    "demo",
    "natural",
    "natural:effort=fast",
    "qsgd:bits=4",
    "dither",
    "terngrad",
    "int8",
    "sign",
];

/// Measurements of an update of many tensors of one size, for each element.
struct OfSize {
    /// Times of compression, writing, both, and decoding.
    nanoseconds: [f64; 4],
    bits: f64,
}

struct Bench {
    repeats: usize,
    read: f64,
    copy: f64,
    count: f64,
    top_k: f64,
    hash: f64,
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
    let data: Vec<String> = options("--data").collect();
    let wants_data = |name: &str| data.is_empty() || data.iter().any(|data| data == name);
    let elements: usize = number("--elements").unwrap_or(if full { 16 << 20 } else { 1 << 16 });
    let repeats = number("--repeats").unwrap_or(if full { 5 } else { 1 });
    let mut bench =
        Bench { repeats, read: 0.0, copy: 0.0, count: 0.0, top_k: 0.0, hash: 0.0, missed: false, only };
    println!("{} thread(s), best of {repeats}", rayon::current_num_threads());
    println!("{:<40}{:>9}{:>9}  {:<6}{:>6}{:>7}", "operation", "GB/s", "ratio", "of", "peak", "floor");
    if bench.only.iter().any(|only| only == "effort") {
        effort::run(bench.repeats);
    }
    if wants_data("gradient") {
        bench.gradient(elements);
    }
    if wants_data("weights") {
        bench.weights(elements);
    }
    if wants_data("noise") {
        bench.noise(elements);
    }
    if bench.missed && full { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Bench {
    fn gradient(&mut self, elements: usize) {
        let (name, gradient) = data::gradient(elements);
        println!("gradient {name}, {} f32 elements:", gradient.elements());
        self.codec("topk:density=0.001", &gradient, Some([0.3, 0.5]));
        self.codec("sbc:density=0.001", &gradient, Some([0.25, 0.45]));
        // The cost of writing positions with either code: `write` minus the cost of the frame.
        self.codec("sbc:density=0.001,positions=rice", &gradient, None);
        self.codec("sbc:density=0.001,positions=tokens", &gradient, None);
        self.codec("topk:density=0.01", &gradient, Some([0.2, 0.25]));
        self.codec("topk:density=0.1", &gradient, Some([0.055, 0.08]));
        self.codec("raw", &gradient, Some([0.3, 0.25]));
        self.codec("natural", &gradient, Some([0.065, 0.085]));
        self.codec("lossless", &gradient, Some([0.075, 0.11]));
        for codec in ["qsgd:bits=4", "dither", "terngrad"] {
            self.codec(codec, &gradient, Some([0.09, 0.12]));
        }
        self.codec("int8", &gradient, Some([0.11, 0.15]));
        self.codec("sign", &gradient, Some([0.16, 0.23]));
        let flat = gradient.flat();
        println!("its tensors in one buffer:");
        for codec in ["natural", "lossless"] {
            self.codec(codec, &flat, None);
        }
        self.thresholds(&flat);
        self.reduce("topk:density=0.01", &flat);
        println!("its tensors, a few at a time:");
        for codec in ["topk:density=0.01", "natural", "int8", "raw"] {
            self.reduce(codec, &gradient);
        }
        self.small(&flat);
        let halves = gradient.to_bf16();
        println!("gradient {name}, {} bf16 elements:", halves.elements());
        self.codec("natural", &halves, Some([0.03, 0.025]));
        self.codec("lossless", &halves, Some([0.06, 0.055]));
    }

    fn weights(&mut self, elements: usize) {
        let (name, [old, new]) = data::weights(elements);
        println!("weights {name}, {} bf16 elements:", old.elements());
        self.codec("lossless", &old, Some([0.07, 0.065]));
        self.digests(&old.flat());
        if self.wants("delta") {
            self.delta("delta", "in a step of training ", &old.flat(), &new.flat());
        }
    }

    fn noise(&mut self, elements: usize) {
        let columns = elements.min(4096);
        let shape = [(elements / columns) as u64, columns as u64];
        let tensors = |scale: &dyn Fn(usize) -> f32| {
            let numbers = data::noise(elements / columns * columns, scale);
            Tensors::one(TensorBuf::from_f32(shape.to_vec(), &numbers).expect("shape fits"))
        };
        println!("noise, {elements} f32 elements:");
        let even = tensors(&|_| 1.0);
        for codec in ["topk:density=0.01", "natural", "lossless"] {
            self.codec(codec, &even, None);
        }
        self.reduce("topk:density=0.01", &even);
        drop(even);
        self.deltas(&shape);
        // A scale for each row and column, like the gradient of a matrix.
        let scaled = tensors(&|i| {
            let (row, column) = (i / columns, i % columns);
            0.5f32.powi((row * 0x9e37 / 64 % 7) as i32) * (1.0 + (column * 0x85eb / 32 % 5) as f32)
        });
        println!("rows and columns of different scale:");
        self.codec("topk:density=0.001", &scaled, None);
        for positions in ["classed", "tokens"] {
            self.codec(&format!("topk:density=0.01,positions={positions}"), &scaled, None);
        }
        self.codec("natural", &scaled, None);
        self.codec("lossless", &scaled, None);
    }

    /// Measures the baselines: summing, copying and counting. This is repeated before each codec and keeps
    /// the best result so far, because the speed of a shared machine varies.
    fn baselines(&mut self, tensors: &Tensors) {
        let bytes = tensors.bytes() as f64;
        let size = (bytes as u64 / tensors.elements()) as usize;
        let each = || tensors.tensors.iter().map(TensorBuf::data);
        let Cost { seconds, .. } = self.best(|| {
            black_box(each().map(sum).fold(0, u32::wrapping_add));
        });
        self.read = self.read.max(bytes / seconds);
        let mut copies: Vec<Vec<u8>> = each().map(<[u8]>::to_vec).collect();
        let Cost { seconds, .. } = self.best(|| {
            for (copy, data) in copies.iter_mut().zip(each()) {
                black_box(copy).copy_from_slice(data);
            }
        });
        self.copy = self.copy.max(bytes / seconds);
        let Cost { seconds, .. } = self.best(|| {
            let mut counts = [[0u32; 256]; 4];
            for data in each() {
                for elements in data.chunks_exact(4 * size) {
                    for (counts, element) in counts.iter_mut().zip(elements.chunks_exact(size)) {
                        counts[usize::from(element[size - 1])] += 1;
                    }
                }
            }
            black_box(counts);
        });
        self.count = self.count.max(bytes / seconds);
        let [read, copy, count] = [self.read, self.copy, self.count].map(|speed| speed / 1e9);
        println!("read {read:.1} GB/s, copy {copy:.1} GB/s, count {count:.2} GB/s");
    }

    fn wants(&self, spec: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == spec)
    }

    /// Measures a codec: each way to encode the tensors and to decode the stream. `floors`: the lowest ratios
    /// allowed of *encode* to the count, and of *decode* to the copy.
    fn codec(&mut self, spec: &str, tensors: &Tensors, floors: Option<[f64; 2]>) {
        if !self.wants(spec) {
            return;
        }
        self.baselines(tensors);
        let codec: Codec = spec.parse().expect("a codec");
        let bytes = encode(&codec, tensors);
        let blocks = blocks(&codec, tensors);
        let len = tensors.bytes();
        let name = |what| format!("{what} {spec}");
        let cost = self.best(|| drop(black_box(crate::blocks(&codec, tensors))));
        self.row(&name("compress"), len, cost, Against::Count, None);
        let header = UpdateHeader::default();
        let cost = self.best(|| drop(black_box(write(&tensors.manifest, &header, &blocks))));
        self.row(&name("write"), len, cost, Against::Count, None);
        drop(blocks);
        let cost = self.best(|| drop(black_box(encode(&codec, tensors))));
        self.row(&name("encode to new memory"), len, cost, Against::Count, None);
        let mut stream = bytes.clone();
        let cost = self.best(|| {
            stream.clear();
            encode_to(&mut stream, &codec, tensors);
        });
        drop(stream);
        self.row(&name("encode"), len, cost, Against::Count, floors.map(|[encode, _]| encode));
        let manifest = &tensors.manifest;
        let fresh = || Assembler::new(manifest, &Limits::default(), |_| true).expect("within limits");
        let mut decoded = decode(&bytes, fresh());
        let cost = self.best(|| {
            let buffers = std::mem::take(&mut decoded);
            let assembler = Assembler::with_buffers(manifest, buffers).expect("this manifest's");
            decoded = decode(&bytes, assembler);
        });
        drop(decoded);
        let new_memory = self.best(|| drop(black_box(decode(&bytes, fresh()))));
        self.row(&name("decode to new memory"), len, new_memory, Against::Copy, None);
        self.row(&name("decode"), len, cost, Against::Copy, floors.map(|[_, decode]| decode));
        println!("{:<40}{:>9.3} bits/element", "", bytes.len() as f64 * 8.0 / tensors.elements() as f64);
    }

    /// Measures updates of 500 tensors of one size, and of one tensor with the elements of all.
    fn small(&mut self, flat: &Tensors) {
        if !self.wants("small") {
            return;
        }
        let view = flat.tensors[0].view();
        println!("many tensors, nanoseconds per element:");
        println!(
            "{:<24}{:<12}{:>9}{:>9}{:>9}{:>9}{:>9}",
            "codec", "tensors", "compress", "write", "encode", "decode", "bits"
        );
        let sizes = [1, 2, 4, 8, 16, 64].map(|kilo| kilo << 10);
        for (size, spec) in sizes.iter().flat_map(|size| SMALL.map(|spec| (*size, spec))) {
            let count = 500.min(view.elements() as usize / size);
            for (count, size) in [(count, size), (1, count * size)] {
                let of_size = self.tensors_of_size(spec, view, count, size);
                print!("{spec:<24}{:<12}", format!("{count} x {size}"));
                of_size.nanoseconds.iter().for_each(|nanoseconds| print!("{nanoseconds:>9.2}"));
                println!("{:>9.3}", of_size.bits);
            }
        }
        let count = 500.min(view.elements() as usize / 4096);
        println!("{count} tensors of 4096 elements, as ratios to one tensor of as many:");
        println!("{:<24}{:>9}{:>9}{:>9}", "codec", "encode", "decode", "size");
        for spec in SMALL_ALL {
            let many = self.tensors_of_size(spec, view, count, 4096);
            let one = self.tensors_of_size(spec, view, 1, count * 4096);
            let [encode, decode] = [2, 3].map(|path| many.nanoseconds[path] / one.nanoseconds[path]);
            println!("{spec:<24}{encode:>9.2}{decode:>9.2}{:>9.3}", many.bits / one.bits);
        }
    }

    /// Measures an update of `count` tensors of `size` elements each.
    fn tensors_of_size(&self, spec: &str, view: TensorView<'_>, count: usize, size: usize) -> OfSize {
        let codec: Codec = spec.parse().expect("a codec");
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
        let inputs: Vec<Input<'_>> =
            each.map(|(i, (&view, name))| Input { tensor: i as u64, name, view, base: None }).collect();
        let codecs = vec![codec; count];
        let compress = || compress(&inputs, &codecs, &Options::default(), None).expect("finite");
        let header = UpdateHeader::default();
        let bytes = write(&manifest, &header, &compress());
        let blocks = compress();
        let fresh = || Assembler::new(&manifest, &Limits::default(), |_| true).expect("within limits");
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
        let elements = (count * size) as f64;
        OfSize {
            nanoseconds: costs.map(|cost| cost.seconds * 1e9 / elements),
            bits: 8.0 * bytes.len() as f64 / elements,
        }
    }

    /// Compares SIDCo's thresholds with exact top-k, and with the usual implementation of exact top-k: a
    /// quickselect of all magnitudes, and a pass that selects by the magnitude found. The measurements
    /// alternate, so that load from other programs affects all of them.
    fn thresholds(&mut self, flat: &Tensors) {
        if !self.wants("sidco") {
            return;
        }
        self.baselines(flat);
        let view = flat.tensors[0].view();
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
                    *best = best.min(once(|| drop(black_box(blocks(codec, flat)))));
                }
                quickselect = quickselect.min(once(|| drop(black_box(quickselected(view, k)))));
            }
            self.top_k = view.data().len() as f64 / best[0];
            for ((spec, floor), seconds) in rows.iter().zip(best) {
                self.row(spec, flat.bytes(), Cost { seconds, peak: None }, Against::TopK, *floor);
            }
            let quickselect = Cost { seconds: quickselect, peak: None };
            self.row(&format!("quickselect of {density}"), flat.bytes(), quickselect, Against::TopK, None);
        }
    }

    /// Measures the mean of the updates of 8 senders, from streams to a new tensor; that of several tensors
    /// piece by piece, into memory that is there.
    fn reduce(&mut self, spec: &str, tensors: &Tensors) {
        if !self.wants("reduce") {
            return;
        }
        self.baselines(tensors);
        let codec = spec.parse().expect("a codec");
        let streams: Vec<Vec<u8>> = (0..8u64)
            .map(|sender| {
                // Each sender keeps other elements.
                let turned = tensors.turned(1009 * sender as usize);
                let header = UpdateHeader::default().with_sender(sender);
                write(&tensors.manifest, &header, &blocks(&codec, &turned))
            })
            .collect();
        let mut memory = vec![0; tensors.bytes()];
        let cost = self.best(|| match tensors.tensors.len() {
            1 => drop(black_box(mean(&tensors.manifest, &streams))),
            _ => put_mean(&tensors.manifest, &streams, black_box(&mut memory)),
        });
        self.row(&format!("reduce 8 x {spec}"), tensors.bytes(), cost, Against::Copy, None);
        println!("{:<40}{:>9.1} ms", "", 1e3 * cost.seconds);
    }

    /// Measures digests of weights in rows of 8192 elements, unless a name says otherwise, beside a hash.
    fn digests(&mut self, flat: &Tensors) {
        if !self.wants("digest") {
            return;
        }
        self.baselines(flat);
        let view = flat.tensors[0].view();
        // Whole rows of each type and length: f32 has half as many elements in these bytes.
        let columns = 1 << (view.elements() / 2).clamp(1, 8192).ilog2();
        let count = view.elements() / (2 * columns) * (2 * columns);
        let data = &view.data()[..2 * count as usize];
        let shaped = |dtype: Dtype, columns: u64| {
            let rows = 8 * data.len() as u64 / u64::from(dtype.bits()) / columns;
            let bytes = (rows * columns * u64::from(dtype.bits()) / 8) as usize;
            TensorBuf::new(dtype, vec![rows, columns], data[..bytes].to_vec()).expect("whole rows")
        };
        let matrix = shaped(view.dtype(), columns);
        let (view, len) = (matrix.view(), matrix.data().len());
        let cost = self.best(|| _ = black_box(tensor_digest(view)));
        self.row("hash", len, cost, Against::Read, None);
        self.hash = len as f64 / cost.seconds;
        for (name, dtype, columns, floor) in [
            ("sum digest", Dtype::Bf16, columns, Some(1.3)),
            ("sum digest, f32", Dtype::F32, columns, None),
            ("sum digest, f8e4m3fn", Dtype::F8E4M3Fn, columns, None),
            ("sum digest, f4e2m1", Dtype::F4E2M1, columns, None),
            ("sum digest, one row", Dtype::Bf16, count, None),
            ("sum digest, rows of 1024", Dtype::Bf16, columns.min(1024), None),
            ("sum digest, rows of 768", Dtype::Bf16, columns.min(768), None),
            ("sum digest, rows of 128", Dtype::Bf16, columns.min(128), None),
            ("sum digest, rows of 64", Dtype::Bf16, columns.min(64), None),
            ("sum digest, rows of 16", Dtype::Bf16, columns.min(16), None),
            ("sum digest, f8e4m3fn, rows of 64", Dtype::F8E4M3Fn, columns.min(64), None),
        ] {
            let tensor = shaped(dtype, columns);
            let cost = self.best(|| _ = black_box(SumDigest::of(tensor.view())));
            self.row(name, tensor.data().len(), cost, Against::Hash, floor);
        }
        for (name, parts) in [("an eighth of the columns", 8), ("64 columns", (columns / 64).max(8))] {
            let shape = [view.shape()[0], columns / parts];
            let cost = self.best(|| _ = black_box(SumDigest::of_part(view, &shape, &[0, columns / parts])));
            let bytes = len / parts as usize;
            self.row(&format!("sum digest, {name}"), bytes, cost, Against::Hash, None);
            // A hash needs the bytes of a shard one after the other, so they are copied first.
            let (row, part) = (2 * columns as usize, 2 * (columns / parts) as usize);
            let mut together = Vec::with_capacity(bytes);
            let cost = self.best(|| {
                together.clear();
                view.data()
                    .chunks_exact(row)
                    .for_each(|row| together.extend_from_slice(&row[part..2 * part]));
                black_box(blake3::hash(&together));
            });
            self.row(&format!("hash, {name}"), bytes, cost, Against::Hash, None);
        }
        for permille in [1, 10, 50] {
            let is_changed = |i: &u64| u64::from(random::word(3, 0, *i)) % 1000 < permille;
            let changed: Vec<u64> = (0..count).filter(is_changed).collect();
            let mut new = matrix.clone();
            changed.iter().for_each(|&i| new.data_mut()[2 * i as usize] ^= 1);
            let word = |data: &[u8], i: u64| u16::from_le_bytes([0, 1].map(|j| data[2 * i as usize + j]));
            let words: Vec<(u32, u16, u16)> =
                changed.iter().map(|&i| (i as u32, word(matrix.data(), i), word(new.data(), i))).collect();
            let no_change = || SumChange::new(view.dtype(), view.shape(), &[0, 0]).expect("its shape");
            let cost = self.best(|| {
                let mut change = no_change();
                for &(i, old, new) in &words {
                    change.add(i.into(), old.into(), new.into()).expect("an element");
                }
                black_box(change.finish());
            });
            let share = permille as f64 / 10.0;
            let each = cost.seconds * 1e9 / changed.len() as f64;
            println!("{:<40}{each:>9.2} ns/changed element", format!("change of {share} % of the elements"));
            let cost = self.best(|| {
                let mut change = no_change();
                change.add_difference(view, new.view()).expect("one shape");
                black_box(change.finish());
            });
            self.row(&format!("change of {share} %, compared"), len, cost, Against::Hash, None);
        }
    }

    /// Measures deltas of bf16 weights after a step that changes a share of them. Its size is the same for
    /// all weights, as a step of Adam is about, so large weights change seldom. Encoding reads base and
    /// result; applying writes the result.
    fn deltas(&mut self, shape: &[u64]) {
        if !self.wants("delta") {
            return;
        }
        let masters = data::noise((shape[0] * shape[1]) as usize, |_| 1.0);
        let rounded = |step: f32| -> Vec<u8> {
            let signed = |(i, &x): (usize, &f32)| if i.is_multiple_of(3) { x - step } else { x + step };
            let halves = masters.iter().enumerate().map(signed).map(|x| (x.to_bits() >> 16) as u16);
            halves.flat_map(u16::to_le_bytes).collect()
        };
        let tensor =
            |data| Tensors::one(TensorBuf::new(Dtype::Bf16, shape.to_vec(), data).expect("shape fits"));
        let base = tensor(rounded(0.0));
        for step in [2e-8, 3e-7, 1.6e-6, 6e-5] {
            let new = tensor(rounded(step));
            self.delta("delta", "", &base, &new);
        }
        self.delta("delta:values=overwrite", "", &base, &tensor(rounded(6e-5)));
        // Whatever their size, so that the base predicts nothing.
        let half = base.tensors[0].data().as_chunks::<2>().0.iter().zip(0..);
        let half = half.flat_map(|(&[low, high], i)| [low ^ (random::word(9, 0, i) & 1) as u8, high]);
        self.delta("delta", "evenly ", &base, &tensor(half.collect()));
    }

    /// Measures a delta with sum digests, unless a row says otherwise.
    fn delta(&mut self, codec: &str, how: &str, base: &Tensors, new: &Tensors) {
        self.baselines(new);
        let (manifest, len) = (Arc::clone(&new.manifest), new.bytes());
        let (base, new) = (base.tensors[0].view(), new.tensors[0].view());
        let info = &manifest.tensors()[0];
        let cost = self.best(|| _ = black_box(tensor_digest(base)));
        self.row("hash of a tensor", len, cost, Against::Read, None);
        let cost = self.best(|| _ = black_box(info.sum_digest(base)));
        self.row("sum digest of a tensor", len, cost, Against::Read, None);
        let name = codec;
        let input = |base, view| [Input { tensor: 0, name: "w", view, base: Some(base) }];
        let codecs: [Codec; 3] = ["sum", "blake3", "both"].map(|digest| {
            let separator = if name.contains(':') { ',' } else { ':' };
            format!("{name}{separator}digest={digest}").parse().expect("a codec")
        });
        let [sums, hashes, _] = codecs;
        let compressed =
            |from, to| compress(&input(from, to), &[sums], &Options::default(), None).expect("a base");
        let encode = |from, to, codec, kept: &Digests| {
            let (inputs, codecs) = (input(from, to), [codec]);
            let mut blocks = pending(&inputs, &codecs, &Options::default()).expect("a base");
            let runs = blocks.deltas(&manifest, &mut kept.clone()).expect("this manifest's");
            let (mut encoder, mut out) = (Encoder::new(EncodeOptions::default()), Vec::new());
            let header = UpdateHeader::default().with_runs(runs);
            encoder.update(&mut out, &header, &manifest, blocks).expect("blocks of this manifest");
            encoder.finish(&mut out);
            out
        };
        let mut kept = Digests::default();
        let (there, back) = (encode(base, new, sums, &kept), encode(new, base, sums, &kept));
        let pairs = base.data().as_chunks::<2>().0.iter().zip(new.data().as_chunks::<2>().0);
        let changed = pairs.filter(|(base, new)| base != new).count();
        let n = new.elements() as f64;
        println!("{name}, {:.2} % of {n} bf16 elements {how}changed:", 100.0 * changed as f64 / n);
        let cost = self.best(|| drop(black_box(compressed(base, new))));
        self.row("compress delta", len, cost, Against::Read, None);
        let run = Delta { first: 0, more: 0, base: [0; 16], result: [0; 16] };
        let (header, blocks) = (UpdateHeader::default().with_delta(Some(vec![run])), compressed(base, new));
        let cost = self.best(|| drop(black_box(write(&manifest, &header, &blocks))));
        self.row("write delta", len, cost, Against::Read, None);
        for (codec, digest) in codecs.into_iter().zip(["sums", "hashes", "both"]) {
            let cost = self.best(|| drop(black_box(encode(base, new, codec, &kept))));
            self.row(&format!("encode delta, {digest}"), len, cost, Against::Read, None);
        }
        let known = TensorDigests { hash: Some(tensor_digest(base)), sum: info.sum_digest(base).ok() };
        known.hash.into_iter().for_each(|digest| kept.keep_base(0, digest));
        known.sum.into_iter().for_each(|sum| kept.keep_base_sum(0, sum));
        for (codec, digest) in codecs.into_iter().zip(["sum", "hash", "both"]) {
            let cost = self.best(|| drop(black_box(encode(base, new, codec, &kept))));
            self.row(&format!("encode delta, base's {digest} kept"), len, cost, Against::Read, None);
        }
        let mut held = base.data().to_vec();
        let mut streams = [&there, &back].into_iter().cycle();
        let cost = self.best(|| apply_in_place(streams.next().expect("a cycle"), &mut held));
        self.row("apply delta in place, without digests", len, cost, Against::Copy, None);
        let (mut sum, mut undo) = (known.sum.expect("its own sum"), Vec::new());
        held.copy_from_slice(base.data());
        let mut streams = [&there, &back].into_iter().cycle();
        let cost = self.best(|| {
            let stream = streams.next().expect("a cycle");
            sum = apply_in_place_with_sum(stream, &mut held, info, sum, &mut undo);
        });
        self.row("apply delta in place, base's sum kept", len, cost, Against::Copy, None);
        let streams = [(&there, "sum"), (&encode(base, new, hashes, &kept), "hash")];
        for (stream, digest) in streams {
            let cost = self.best(|| {
                let mut assembler =
                    Assembler::new(&manifest, &Limits::default(), |_| true).expect("within limits");
                assembler.base("w", base).expect("this manifest's");
                drop(black_box(decode(stream, assembler)));
            });
            let name = format!("apply delta to new memory, {digest}");
            self.row(&name, len, cost, Against::Copy, None);
        }
        let copy =
            |view: TensorView<'_>| TensorBuf::new(view.dtype(), view.shape().to_vec(), view.data().to_vec());
        let mut staged = copy(base).expect("the same shape");
        for (stream, digest) in streams {
            let cost = self.best(|| {
                let buffer =
                    std::mem::replace(&mut staged, TensorBuf::from_f32(vec![0], &[]).expect("nothing"));
                let mut assembler =
                    Assembler::with_buffers(&manifest, [(0, buffer)]).expect("this manifest's");
                assembler.base_with_digests("w", base, known).expect("this manifest's");
                apply(stream, &mut assembler);
                let mut tensors = assembler.finish_with_digests().expect("the base of this delta");
                staged = tensors.remove(0).1;
            });
            let name = format!("apply delta, base's {digest} kept");
            self.row(&name, len, cost, Against::Copy, None);
        }
        println!("{:<40}{:>9.3} bits/changed element", "", there.len() as f64 * 8.0 / changed as f64);
    }

    fn row(&mut self, name: &str, len: usize, cost: Cost, against: Against, floor: Option<f64>) {
        let bytes = len as f64;
        let speed = bytes / cost.seconds;
        let peak = cost.peak.map_or("-".into(), |peak| format!("{:.2}", peak as f64 / bytes));
        let (of, base) = match against {
            Against::Read => ("read", self.read),
            Against::Copy => ("copy", self.copy),
            Against::Count => ("count", self.count),
            Against::TopK => ("top-k", self.top_k),
            Against::Hash => ("hash", self.hash),
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

/// Returns the wrapping sum of the words of a tensor.
fn sum(data: &[u8]) -> u32 {
    let (rows, _) = data.as_chunks::<4>().0.as_chunks::<64>();
    let of_row = |row: &[[u8; 4]; 64]| row.iter().fold(0u32, |s, w| s.wrapping_add(u32::from_le_bytes(*w)));
    rows.iter().map(of_row).fold(0, u32::wrapping_add)
}

fn blocks(codec: &Codec, tensors: &Tensors) -> Vec<CodedBlock> {
    let inputs = tensors.inputs();
    compress(&inputs, &vec![*codec; inputs.len()], &Options::default(), None).expect("finite tensors")
}

fn encode(codec: &Codec, tensors: &Tensors) -> Vec<u8> {
    let mut out = Vec::new();
    encode_to(&mut out, codec, tensors);
    out
}

fn encode_to(out: &mut Vec<u8>, codec: &Codec, tensors: &Tensors) {
    let inputs = tensors.inputs();
    let codecs = vec![*codec; inputs.len()];
    let blocks = pending(&inputs, &codecs, &Options::default()).expect("finite tensors");
    let mut encoder = Encoder::new(EncodeOptions::default());
    let header = UpdateHeader::default();
    encoder.update(out, &header, &tensors.manifest, blocks).expect("blocks of this manifest");
    encoder.finish(out);
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

/// Decodes the blocks of a delta of one tensor, and changes its elements by `change`, which gets each block
/// with its part, its number in it, and its elements.
fn change_in_place(
    bytes: &[u8],
    data: &mut [u8],
    mut change: impl FnMut(&UpdatePart<'_>, usize, &Block, Target<'_>) -> gcodec::Result<()>,
) {
    let mut reader = SliceReader::new(bytes, Limits::default());
    while let Some(event) = reader.next_event().expect("an encoded stream decodes") {
        let Event::Frame(_, Body::Update(part)) = event else { continue };
        for (i, raw) in part.blocks.iter().enumerate() {
            let block = part.decode(i, &part.budget()).expect("an encoded stream decodes");
            let start = match raw.scope {
                Scope::Range { start, .. } => start,
                _ => 0,
            };
            let target = Target { data: &mut *data, start, len: raw.space.len() };
            change(&part, i, &block, target).expect("the base of this delta");
        }
    }
}

/// Changes the elements of a delta's tensor.
fn apply_in_place(bytes: &[u8], data: &mut [u8]) {
    change_in_place(bytes, data, |part, i, block, target| {
        block.apply(&part.blocks[i].space, part.sets(), &part.budget(), &mut [target])
    });
}

/// As [`apply_in_place`], for elements whose sum is kept: compares it with the base's, and that of the result
/// with the result's, and returns it. Keeps old elements in `undo`, as a receiver does to take a wrong result
/// back.
fn apply_in_place_with_sum(
    bytes: &[u8],
    data: &mut [u8],
    info: &TensorInfo,
    sum: SumDigest,
    undo: &mut Vec<(u32, u16)>,
) -> SumDigest {
    let (mut change, mut expected) = (info.sum_change().expect("its shape"), None);
    undo.clear();
    change_in_place(bytes, data, |part, i, block, target| {
        let run = part.header.sums.as_ref().and_then(|sums| sums.first()).expect("a sum");
        assert_eq!(run.base, sum, "the base of this delta");
        expected = Some(run.result);
        let noted = |_, element, old, new| {
            undo.push((element as u32, old as u16));
            change.add(element, old, new).expect("an element");
        };
        block.apply_noting(&part.blocks[i].space, part.sets(), &part.budget(), &mut [target], noted)
    });
    let sum = sum + info.weighted(change.finish());
    assert_eq!(Some(sum), expected, "the result of this delta");
    sum
}

/// Returns the mean of the updates of several senders.
fn mean(manifest: &Arc<Manifest>, streams: &[Vec<u8>]) -> Vec<TensorBuf> {
    summed(manifest, streams).finish(true).expect("complete updates").into_tensors().expect("floats")
}

/// Puts the mean of updates into memory, tensor after tensor.
fn put_mean(manifest: &Arc<Manifest>, streams: &[Vec<u8>], memory: &mut [u8]) {
    let mut pieces = summed(manifest, streams).into_pieces(true).expect("complete updates");
    let mut at = 0;
    while let Some(piece) = pieces.next() {
        let elements = piece.and_then(SumPiece::into_elements).expect("floats");
        memory[at..at + elements.len()].copy_from_slice(&elements);
        at += elements.len();
        pieces.reuse(elements);
    }
}

/// Returns the sum of the updates in streams, which are decoded when they are added.
fn summed<'s>(manifest: &Arc<Manifest>, streams: &'s [Vec<u8>]) -> Sum<'s> {
    let mut sum = Sum::new(manifest, SumOptions::default());
    for stream in streams {
        let mut reader = SliceReader::new(stream, Limits::default());
        while let Some(event) = reader.next_event().expect("an encoded stream decodes") {
            if let Event::Frame(_, Body::Update(part)) = event {
                sum.add_later(*part, 1.0).expect("updates of one manifest");
            }
        }
    }
    sum
}
