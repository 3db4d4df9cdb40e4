//! `gcodec bench`: sizes, errors and speeds of codecs on real tensors, relative to the memory bandwidth.

use crate::assign::{self, fitting};
use crate::bandwidth::{BUFFER_BYTES, Bandwidth};
use crate::fail::{Failure, InFile, Outcome, Result};
use crate::options::check_one_stdin;
use crate::output::{Align, Table, human_bytes, print, real, thousands};
use crate::progress::Progress;
use crate::spool::Spool;
use crate::tensors::Dump;
use gcodec::compress::{Input, NonFinite, Options, pending};
use gcodec::file::{File, Piece};
use gcodec::frame::{Manifest, UpdateHeader};
use gcodec::internal::element::decode_f32s;
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, Limits, TensorView};
use serde::Serialize;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measure codecs on tensors: size, error, and speed relative to the memory bandwidth
///
/// Speeds are GB/s of input (10^9 bytes), the best of several runs, on one thread unless --threads is given.
/// The columns /read and /fill are ratios to the speed at which one thread reads and fills memory, measured
/// in the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Encoding goes from dense tensors to bytes, and includes selection and quantisation. Decoding
goes from bytes to dense tensors, into memory that is already allocated. Both include all headers.
Neither includes the temporary file for an encoded update of many bytes. Tensors that are larger than
the memory are read from their file in each run.

Examples:
  gcodec bench grad.safetensors
  gcodec bench grad.safetensors --codec sbc:density=0.001 --codec natural --json
  gcodec --threads 8 bench grad.safetensors --runs 10")]
pub(crate) struct Args {
    /// Tensors: .safetensors, .npz or .npy; several files are measured one after another
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// Codec to measure; may be repeated [default: one of each]
    #[arg(long = "codec", value_name = "SPEC", value_parser = crate::naming::CODEC, hide_possible_values = true)]
    codecs: Vec<Codec>,
    /// Number of runs; the best one counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Codecs measured by default.
const CODECS: [&str; 20] = [
    "raw",
    "lossless",
    "topk:density=0.01",
    "topk:density=0.01,scope=global",
    "topk:density=0.01,values=bf16",
    "topk:density=0.01,values=pow2",
    "topk:density=0.01,values=sign",
    "topk:density=0.01,values=q4",
    "sbc:density=0.001",
    "sidco:density=0.001",
    "randk:density=0.01",
    "chunked:chunk=4096,kept=64,values=code2",
    "demo:chunk=64,kept=32,values=sign",
    "powersgd:rank=4",
    "natural",
    "qsgd:bits=4,bucket=512",
    "dither:levels=8,bucket=512",
    "terngrad",
    "sign",
    "int8:group=256",
];

#[derive(Debug, Serialize)]
struct Report {
    threads: usize,
    read_gb_per_s: f64,
    fill_gb_per_s: f64,
    inputs: Vec<InputReport>,
}

#[derive(Debug, Serialize)]
struct InputReport {
    file: String,
    tensors: u64,
    elements: u64,
    bytes: u64,
    codecs: Vec<Measured>,
}

/// Measurements of a codec.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) codec: String,
    pub(crate) bytes: u64,
    /// `None` without parameters.
    pub(crate) bits_per_parameter: Option<f64>,
    pub(crate) ratio: f64,
    /// Error over all elements as one vector.
    pub(crate) relative_l2: f64,
    pub(crate) encode_gb_per_s: f64,
    pub(crate) decode_gb_per_s: f64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    check_one_stdin(&args.inputs)?;
    let codecs = match args.codecs.as_slice() {
        [] => CODECS
            .iter()
            .map(|spec| spec.parse())
            .collect::<Result<Vec<Codec>, _>>()
            .map_err(Failure::usage)?,
        codecs => codecs.to_vec(),
    };
    if codecs.iter().any(|codec| matches!(codec, Codec::Delta { .. })) {
        return Err(Failure::usage("delta needs a base and is not measured here"));
    }
    let bandwidth = Bandwidth::measure(BUFFER_BYTES, args.runs);
    let mut report = Report {
        threads: rayon::current_num_threads(),
        read_gb_per_s: bandwidth.read,
        fill_gb_per_s: bandwidth.fill,
        inputs: Vec::new(),
    };
    for path in &args.inputs {
        let dump = Dump::open(path)?;
        let progress = Progress::new(codecs.len() as u64, "measuring", false);
        let mut measured = Vec::new();
        for codec in &codecs {
            measured.push(measure(&dump, *codec, args.runs).in_file(path)?);
            progress.add(1);
        }
        drop(progress);
        report.inputs.push(InputReport {
            file: path.display().to_string(),
            tensors: dump.tensors.len() as u64,
            elements: elements(&dump),
            bytes: bytes(&dump),
            codecs: measured,
        });
    }
    if args.json {
        let json = serde_json::to_string_pretty(&report).map_err(std::io::Error::from)?;
        print(format_args!("{json}\n"))?;
    } else {
        print(report.text())?;
    }
    Ok(Outcome::Well)
}

impl Report {
    fn text(&self) -> String {
        let mut out = format!(
            "{} thread{}; one thread reads memory at {} GB/s and fills it at {} GB/s\n",
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            real(self.read_gb_per_s),
            real(self.fill_gb_per_s),
        );
        for input in &self.inputs {
            out += &format!(
                "\n{}: {} tensors, {} elements, {}\n",
                crate::output::printable(&input.file),
                thousands(input.tensors),
                thousands(input.elements),
                human_bytes(input.bytes)
            );
            let right = ["bytes", "bits/par", "ratio", "rel L2", "enc GB/s", "/read", "dec GB/s", "/fill"];
            let columns: Vec<_> = std::iter::once(("codec", Align::Left))
                .chain(right.into_iter().map(|title| (title, Align::Right)))
                .collect();
            let mut table = Table::new(&columns);
            for m in &input.codecs {
                table.row([
                    m.codec.clone(),
                    thousands(m.bytes),
                    m.bits_per_parameter.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.4}")),
                    real(m.ratio),
                    real(m.relative_l2),
                    format!("{:.3}", m.encode_gb_per_s),
                    format!("{:.3}", m.encode_gb_per_s / self.read_gb_per_s),
                    format!("{:.3}", m.decode_gb_per_s),
                    format!("{:.3}", m.decode_gb_per_s / self.fill_gb_per_s),
                ]);
            }
            out += &table.to_string();
        }
        out
    }
}

/// Measures a codec on the tensors of a file.
///
/// # Memory
/// A part of the encoded update at a time, and then some decoded tensors, or those that share a block. The
/// stream goes through a [`Spool`].
pub(crate) fn measure(dump: &Dump, codec: Codec, runs: u32) -> Result<Measured> {
    let task = Task::new(dump, codec)?;
    let mut encode_time = Duration::MAX;
    for _ in 1..runs {
        encode_time = encode_time.min(task.encode(&mut |_| Ok(()))?);
    }
    let mut spool = Spool::new();
    encode_time = encode_time.min(task.encode(&mut |bytes| spool.add(bytes))?);
    let (encoded_bytes, encoded) = (spool.len(), spool.finish()?);
    // The first pass touches the memory of the tensors. Otherwise the first access to new pages would be
    // measured.
    let (mut memory, mut squares) = (Vec::new(), Squares::default());
    task.decode(&encoded, &mut memory, &mut |view, piece| squares.add(view, piece))?;
    let mut decode_time = Duration::MAX;
    for _ in 0..runs {
        decode_time = decode_time.min(task.decode(&encoded, &mut memory, &mut |_, _| ())?);
    }
    let (elements, bytes) = (elements(dump), bytes(dump));
    let speed = |time: Duration| bytes as f64 / 1e9 / time.as_secs_f64().max(1e-9);
    Ok(Measured {
        codec: codec.to_string(),
        bytes: encoded_bytes,
        bits_per_parameter: (elements > 0).then(|| encoded_bytes as f64 * 8.0 / elements as f64),
        ratio: bytes as f64 / encoded_bytes as f64,
        relative_l2: squares.relative_l2(),
        encode_gb_per_s: speed(encode_time),
        decode_gb_per_s: speed(decode_time),
    })
}

/// An update that is encoded and decoded again and again.
struct Task<'a> {
    manifest: Arc<Manifest>,
    header: UpdateHeader,
    inputs: Vec<Input<'a>>,
    codecs: Vec<Codec>,
}

impl<'a> Task<'a> {
    fn new(dump: &'a Dump, codec: Codec) -> Result<Self> {
        let manifest = assign::manifest_of(dump.tensors.iter().map(|t| (t.name(), t.view())))?;
        let header = UpdateHeader::default().with_label(codec.to_string());
        let tensors = dump.tensors.iter().zip(0u64..);
        let inputs: Vec<Input<'_>> =
            tensors.map(|(t, tensor)| Input { tensor, name: t.name(), view: t.view(), base: None }).collect();
        let codecs = inputs.iter().map(|input| fitting(codec, &input.view)).collect();
        Ok(Self { manifest, header, inputs, codecs })
    }

    /// Encodes the tensors, and calls `take` with the bytes of each part. Returns the time of encoding alone.
    fn encode(&self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<Duration> {
        let explained = |e| assign::explain(e, &self.manifest);
        let options = Options::default().with_non_finite(NonFinite::Zero);
        let (mut watch, mut out) = (Watch::default(), Vec::new());
        let mut encoder = Encoder::new(EncodeOptions::default());
        let blocks = watch.time(|| pending(&self.inputs, &self.codecs, &options)).map_err(explained)?;
        let parts = watch.time(|| encoder.parts(&self.header, &self.manifest, blocks));
        let mut parts = parts.map_err(explained)?;
        while watch.time(|| parts.write_next(&mut out)).map_err(explained)? {
            take(&out)?;
            out.clear();
        }
        parts.finish();
        watch.time(|| encoder.finish(&mut out));
        take(black_box(&out))?;
        Ok(watch.0)
    }

    /// Decodes the tensors into `memory`, and calls `take` with each tensor and a piece of the decoded one.
    /// Returns the time of decoding alone.
    fn decode(
        &self,
        encoded: &[u8],
        memory: &mut Vec<Vec<u8>>,
        take: &mut dyn FnMut(&TensorView<'_>, &Piece),
    ) -> Result<Duration> {
        let limits = Limits::default().with_max_alloc_bytes(u64::MAX).with_max_frame_bytes(u64::MAX);
        let (mut watch, base) = (Watch::default(), BTreeMap::new());
        let file = watch.time(|| File::open(encoded, limits))?;
        let mut pieces = watch.time(|| file.pieces(0, |_| true, &base))?;
        memory.drain(..).for_each(|memory| pieces.reuse(memory));
        while let Some(piece) = black_box(watch.time(|| pieces.next()).transpose()?) {
            take(&self.inputs[piece.tensor as usize].view, &piece);
            pieces.reuse(piece.data);
        }
        *memory = pieces.into_memory();
        Ok(watch.0)
    }
}

/// The sum of several times.
#[derive(Default)]
struct Watch(Duration);

impl Watch {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0 += start.elapsed();
        result
    }
}

/// Returns the number of elements of all tensors.
pub(crate) fn elements(dump: &Dump) -> u64 {
    dump.tensors.iter().map(|t| t.view().elements()).sum()
}

/// Returns the bytes of the elements of all tensors.
pub(crate) fn bytes(dump: &Dump) -> u64 {
    dump.tensors.iter().map(|t| t.view().data().len() as u64).sum()
}

/// Sums of squares over the finite elements of all float tensors.
#[derive(Default)]
struct Squares {
    elements: f64,
    errors: f64,
}

impl Squares {
    /// Adds the elements that a piece stands for.
    fn add(&mut self, tensor: &TensorView<'_>, piece: &Piece) {
        let dtype = tensor.dtype();
        let element = |bytes: u64| (bytes * 8 / u64::from(dtype.bits())).min(tensor.elements());
        let (first, end) = (element(piece.start), element(piece.start + piece.data.len() as u64));
        let (mut x, mut y) = ([0f32; 4096], [0f32; 4096]);
        for start in (first..end).step_by(x.len()) {
            let len = (end - start).min(x.len() as u64) as usize;
            let (x, y) = (&mut x[..len], &mut y[..len]);
            let decoded = decode_f32s(dtype, tensor.data(), start, x)
                .and_then(|()| decode_f32s(dtype, &piece.data, start - first, y));
            if let Err(e) = decoded {
                debug_assert!(!dtype.is_float(), "{e}");
                break;
            }
            for (&x, &y) in x.iter().zip(&*y).filter(|(x, _)| x.is_finite()) {
                let (x, y) = (f64::from(x), f64::from(y));
                self.elements += x * x;
                self.errors += (x - y) * (x - y);
            }
        }
    }

    /// Returns `||a - b|| / ||a||`.
    fn relative_l2(&self) -> f64 {
        if self.errors == 0.0 { 0.0 } else { (self.errors / self.elements).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_that_needs_no_threshold_or_base_is_measured() {
        let measured = |name: &&str| CODECS.iter().any(|spec| spec.split(':').next() == Some(name));
        let others: Vec<_> = Codec::NAMES.iter().copied().filter(|name| !measured(name)).collect();
        // `stc` is `topk` with signs.
        assert_eq!(others, ["stc", "threshold", "delta"]);
    }
}
