//! `gcodec bench`: sizes, errors and speeds of codecs on real tensors, relative to the memory bandwidth.

use crate::assign::{self, fitting};
use crate::bandwidth::{BUFFER_BYTES, Bandwidth};
use crate::fail::{Failure, InFile, Outcome, Result};
use crate::options::check_one_stdin;
use crate::output::{Align, Table, human_bytes, print, real, thousands};
use crate::progress::Progress;
use crate::tensors::{Dump, NamedTensor};
use gcodec::compress::{Input, NonFinite, Options, pending};
use gcodec::frame::UpdateHeader;
use gcodec::internal::element::decode_f32s;
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Limits, TensorBuf};
use serde::Serialize;
use std::hint::black_box;
use std::path::PathBuf;
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
pub(crate) fn measure(dump: &Dump, codec: Codec, runs: u32) -> Result<Measured> {
    let manifest = assign::manifest_of(dump.tensors.iter().map(|t| (t.name(), t.view())))?;
    let inputs: Vec<Input<'_>> = dump
        .tensors
        .iter()
        .zip(0u64..)
        .map(|(t, tensor)| Input { tensor, name: t.name(), view: t.view(), base: None })
        .collect();
    let codecs: Vec<Codec> = inputs.iter().map(|input| fitting(codec, &input.view)).collect();
    let options = Options::default().with_non_finite(NonFinite::Zero);
    let header = UpdateHeader::default().with_label(codec.to_string());
    let encode = || -> Result<Vec<u8>> {
        let explained = |e| assign::explain(e, &manifest);
        let blocks = pending(&inputs, &codecs, &options).map_err(explained)?;
        let mut encoder = Encoder::new(EncodeOptions::default());
        let mut out = Vec::new();
        encoder.update(&mut out, &header, &manifest, blocks).map_err(explained)?;
        encoder.finish(&mut out);
        Ok(out)
    };
    let limits = Limits::default().with_max_alloc_bytes(u64::MAX).with_max_frame_bytes(u64::MAX);
    let (encoded, encode_time) = best(runs, encode)?;
    // Touches all of the buffers first. Otherwise the first access to new pages would be measured.
    let touched = inputs.iter().map(|input| {
        let data = vec![0xff; input.view.data().len()];
        Ok((input.tensor, TensorBuf::new(input.view.dtype(), input.view.shape().to_vec(), data)?))
    });
    let mut decoded = touched.collect::<Result<Vec<_>>>()?;
    let decode = || -> Result<()> {
        let mut assembler = Assembler::with_buffers(&manifest, std::mem::take(&mut decoded))?;
        for event in SliceReader::new(&encoded, limits.clone()) {
            if let Event::Frame(_, Body::Update(part)) = event? {
                assembler.apply(&part)?;
            }
        }
        decoded = assembler.finish()?;
        Ok(())
    };
    let ((), decode_time) = best(runs, decode)?;
    let (elements, bytes) = (elements(dump), bytes(dump));
    let speed = |time: Duration| bytes as f64 / 1e9 / time.as_secs_f64().max(1e-9);
    Ok(Measured {
        codec: codec.to_string(),
        bytes: encoded.len() as u64,
        bits_per_parameter: (elements > 0).then(|| encoded.len() as f64 * 8.0 / elements as f64),
        ratio: bytes as f64 / encoded.len() as f64,
        relative_l2: relative_l2(&dump.tensors, &decoded),
        encode_gb_per_s: speed(encode_time),
        decode_gb_per_s: speed(decode_time),
    })
}

/// Returns the last result and the shortest time.
fn best<T>(runs: u32, mut run: impl FnMut() -> Result<T>) -> Result<(T, Duration)> {
    let mut time = |()| {
        let start = Instant::now();
        let result = black_box(run()?);
        Ok::<_, Failure>((result, start.elapsed()))
    };
    let (mut result, mut shortest) = time(())?;
    for _ in 1..runs {
        // Frees the last result first, so that each run starts from the same state.
        drop(result);
        let took;
        (result, took) = time(())?;
        shortest = shortest.min(took);
    }
    Ok((result, shortest))
}

/// Returns the number of elements of all tensors.
pub(crate) fn elements(dump: &Dump) -> u64 {
    dump.tensors.iter().map(|t| t.view().elements()).sum()
}

/// Returns the bytes of the elements of all tensors.
pub(crate) fn bytes(dump: &Dump) -> u64 {
    dump.tensors.iter().map(|t| t.view().data().len() as u64).sum()
}

/// Returns `||a - b|| / ||a||` over the finite elements of all float tensors.
fn relative_l2(tensors: &[NamedTensor], decoded: &[(u64, TensorBuf)]) -> f64 {
    let (mut squares, mut errors) = (0f64, 0f64);
    for (tensor, (_, other)) in tensors.iter().zip(decoded) {
        let a = tensor.view();
        let (mut x, mut y) = ([0f32; 4096], [0f32; 4096]);
        for start in (0..a.elements()).step_by(x.len()) {
            let len = (a.elements() - start).min(x.len() as u64) as usize;
            let (x, y) = (&mut x[..len], &mut y[..len]);
            let decoded = decode_f32s(a.dtype(), a.data(), start, x)
                .and_then(|()| decode_f32s(a.dtype(), other.data(), start, y));
            if let Err(e) = decoded {
                debug_assert!(!a.dtype().is_float(), "{e}");
                break;
            }
            for (&x, &y) in x.iter().zip(&*y).filter(|(x, _)| x.is_finite()) {
                let (x, y) = (f64::from(x), f64::from(y));
                squares += x * x;
                errors += (x - y) * (x - y);
            }
        }
    }
    if errors == 0.0 { 0.0 } else { (errors / squares).sqrt() }
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
