//! The measurements of size.

use std::path::Path;
use std::sync::Arc;

use gcodec::block::{
    Block, BlockOptions, CodedBlock, Constant, Groups, Positions, ScaleFormat, Scales, Scope, Sparse,
    Support, Ulp, Values,
};
use gcodec::compress::{Input, Options, compress, deltas, random};
use gcodec::frame::UpdateHeader;
use gcodec::stream::{Assembler, Body, EncodeOptions, Encoder, Event, SliceReader};
use gcodec::{Codec, Dtype, Limits, TensorBuf};

use super::dumps::{Dump, load_chain};
use super::report::{Must, Report};
use super::shapes;
use crate::Result;

/// Size of an update.
#[derive(Default)]
pub(super) struct Cost {
    /// Bytes of the update's frames, headers included.
    pub(super) frames: u64,
    /// Bytes of preamble, manifest, index and end.
    container: u64,
    /// Bytes of all supports.
    support: u64,
    /// Bytes of all values.
    values: u64,
}

impl Cost {
    /// Bytes outside supports and values: frame headers, update heads, shared tables, block headers.
    fn overhead(&self) -> u64 {
        self.frames - self.support - self.values
    }
}

/// Writes an update and reads it back; returns its size and tensors.
fn measure(
    dump: &Dump,
    blocks: &[CodedBlock],
    header: &UpdateHeader,
    base: Option<&Dump>,
) -> Result<(Cost, Vec<TensorBuf>)> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(EncodeOptions::default());
    encoder.update(&mut bytes, header, &dump.manifest, blocks)?;
    encoder.finish(&mut bytes);
    let mut cost = Cost::default();
    let mut reader = SliceReader::new(&bytes, Limits::default());
    let mut assembler = Assembler::new(&dump.manifest, &Limits::default(), |_| true)?;
    for (info, tensor) in base.iter().flat_map(|b| b.manifest.tensors().iter().zip(&b.tensors)) {
        assembler.base(&info.name, tensor.view())?;
    }
    while let Some(event) = reader.next_event()? {
        if let Event::Frame(info, Body::Update(part)) = event {
            cost.frames += info.len();
            cost.support += part.blocks.iter().map(|b| b.support.len() as u64).sum::<u64>();
            cost.values += part.blocks.iter().map(|b| b.values.len() as u64).sum::<u64>();
            assembler.apply(&part)?;
        }
    }
    cost.container = bytes.len() as u64 - cost.frames;
    let tensors = assembler.finish()?.into_iter().map(|(_, t)| t).collect();
    Ok((cost, tensors))
}

/// Compresses a dump with one codec, then writes and reads it.
pub(super) fn measure_codec(
    dump: &Dump,
    codec: &str,
    positions: Positions,
) -> Result<(Cost, Vec<TensorBuf>)> {
    let codec: Codec = codec.parse()?;
    let inputs = dump.inputs();
    let mut blocks = compress(&inputs, &vec![codec; inputs.len()], &Options::default(), None)?;
    blocks.iter_mut().for_each(|coded| coded.options.positions = positions);
    measure(dump, &blocks, &UpdateHeader::default(), None)
}

pub(super) fn kept(tensors: &[TensorBuf]) -> u64 {
    let nonzero =
        |t: &TensorBuf| t.data().chunks_exact(4).filter(|e| e[..3] != [0; 3] || e[3] & 0x7f != 0).count();
    tensors.iter().map(|t| nonzero(t) as u64).sum()
}

/// Returns the bits per position of `positions` in a space of `n`, counting all bytes of the support.
fn position_bits(n: u64, positions: Vec<u64>, choice: Positions) -> Result<f64> {
    let count = positions.len() as f64;
    let dump =
        Dump::new("mask", vec![("mask".into(), TensorBuf::new(Dtype::Bool, vec![n], vec![0; n as usize])?)])?;
    let manifest = Arc::new(gcodec::frame::Manifest::new(vec![gcodec::frame::TensorInfo::new(
        "mask",
        Dtype::F32,
        [n],
    )])?);
    let dump = Dump { manifest, ..dump };
    let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
    let values = Values::Constant(Constant { groups: Groups::Block, scales });
    let block =
        Block { scope: Scope::Tensor(0), add: false, support: Support::Sparse(Sparse { positions }), values };
    let options = BlockOptions::default().with_positions(choice);
    let (cost, _) = measure(&dump, &[CodedBlock { block, options }], &UpdateHeader::default(), None)?;
    Ok(cost.support as f64 * 8.0 / count)
}

/// Elements of the dense index space for independent positions.
const MASK_LEN: u64 = 10_000_000;

/// Number of independent random positions.
fn bernoulli(n: u64, p: f64, seed: u64) -> Vec<u64> {
    let threshold = (p * 4_294_967_296.0) as u32;
    let mut words = vec![0; n as usize];
    random::words(seed, 0, 0, &mut words);
    (0..n).zip(words).filter(|(_, w)| *w < threshold).map(|(i, _)| i).collect()
}

pub(crate) fn independent_positions(report: &mut Report) -> Result<()> {
    report.section(
        "Independent positions",
        "Bernoulli masks over 10 million elements, mean of 8 masks. Bits of the support include its \
         count, parameters, tables and padding. Entropy H(p)/p: 8.079 and 11.408.",
    );
    for (p, limit) in [(0.01, 8.13), (0.001, 11.52)] {
        let masks: Vec<Vec<u64>> = (1..=8).map(|seed| bernoulli(MASK_LEN, p, seed)).collect();
        for choice in [Positions::RiceOne, Positions::Rice, Positions::Tokens, Positions::Auto] {
            let bits = masks
                .iter()
                .map(|mask| position_bits(MASK_LEN, mask.clone(), choice))
                .sum::<Result<f64>>()?
                / 8.0;
            let must = if matches!(choice, Positions::RiceOne | Positions::Rice) {
                Must::AtMost(limit)
            } else {
                Must::Be
            };
            report.row(format!("p = {p}, {}", choice.name()), bits, "bits/position", must);
        }
    }
    Ok(())
}

/// Maps a uniform word to a symmetric distribution with exponential tails.
fn laplace(word: u32) -> f32 {
    let magnitude = -(((word >> 1) as f64 + 0.5) / 2_147_483_648.0).ln();
    (if word & 1 == 1 { -magnitude } else { magnitude }) as f32
}

/// Returns independent Laplace values of these shapes.
fn noise(name: &str, shapes: Vec<shapes::Shape>) -> Result<Dump> {
    let mut named = Vec::new();
    for (t, (name, shape)) in shapes.into_iter().enumerate() {
        let mut words = vec![0; gcodec::internal::elements(&shape).unwrap_or(0) as usize];
        random::words(2, t as u64, 0, &mut words);
        let values: Vec<f32> = words.into_iter().map(laplace).collect();
        named.push((name, TensorBuf::from_f32(shape, &values)?));
    }
    Dump::new(name, named)
}

pub(crate) fn sbc_networks(report: &mut Report) -> Result<()> {
    report.section(
        "Sparse Binary Compression of updates of other shapes",
        "Networks of the papers with independent Laplace values, k per tensor: bytes of the gradients of all \
         steps from one exchange to the next, divided by those of an update with all headers. The paper's \
         networks: ResNet34 2370x, 3166x, 31664x; ResNet50 2569x, 3531x, 37208x; WordLSTM 2371x, 3165x, \
         31658x.",
    );
    let networks = [
        ("ResNet50", shapes::resnet50()),
        ("WideResNet-28-10", shapes::wide_resnet()),
        ("LSTM for words, 650 units", shapes::word_lstm()),
        ("BERT, base", shapes::bert()),
    ];
    for (name, shapes) in networks {
        let dump = noise(name, shapes)?;
        for (density, delays) in [(0.001, &[1][..]), (0.01, &[10, 100])] {
            let (cost, _) = measure_codec(&dump, &format!("sbc:density={density}"), Positions::Auto)?;
            for &every in delays {
                let steps = if every == 1 { "every step".to_owned() } else { format!("every {every} steps") };
                let ratio = (dump.bytes() * every) as f64 / cost.frames as f64;
                report.row(format!("{name}, p = {density}, {steps}"), ratio, "x", Must::Be);
            }
        }
    }
    Ok(())
}

pub(crate) fn sbc_resnet50(report: &mut Report) -> Result<()> {
    report.section(
        "Sparse Binary Compression of a ResNet50-shaped update",
        "161 tensors with torchvision's names, 25,557,032 parameters with independent Laplace values, k per \
         tensor, p = 0.001. Paper: 2569x, recalled rather than looked up.",
    );
    let dump = noise("resnet50", shapes::resnet50())?;
    assert_eq!((dump.elements(), dump.tensors.len()), (25_557_032, 161));
    for (choice, must) in [(Positions::RiceOne, Must::Be), (Positions::Auto, Must::AtLeast(2690.0))] {
        let (cost, tensors) = measure_codec(&dump, "sbc:density=0.001", choice)?;
        let k = kept(&tensors);
        let name = choice.name();
        report.row(
            format!("ratio, update with all headers, {name}"),
            dump.bytes() as f64 / cost.frames as f64,
            "x",
            must,
        );
        let per_tensor = (cost.overhead() + cost.values) as f64 / 161.0;
        report.row(
            format!("bytes per tensor besides positions, {name}"),
            per_tensor,
            "bytes",
            Must::AtMost(8.0),
        );
        report.row(
            format!("bits per position, {name}"),
            cost.support as f64 * 8.0 / k as f64,
            "bits",
            Must::Be,
        );
        let all = cost.frames + cost.container;
        report.row(
            format!("ratio, stream of one update with manifest, index and end, {name}"),
            dump.bytes() as f64 / all as f64,
            "x",
            Must::Be,
        );
    }
    Ok(())
}

fn f32_dumps(dumps: &[Dump]) -> impl Iterator<Item = &Dump> {
    dumps.iter().filter(|d| d.is(Dtype::F32))
}

/// Mean of the positions' bits over all dumps with the token coding, before rows and columns had classes.
const MEAN_OF_TOKENS: f64 = 5.4;

pub(crate) fn real_positions(report: &mut Report, dumps: &[Dump]) -> Result<()> {
    report.section(
        "Positions of the largest 1 % of a dump",
        "Top-k over the whole dump, k = 1 %. Bits of the support (with count, tables, lists, states and \
         padding) per kept position, as `positions=auto` writes it. The target of each dump is the smallest of \
         the encodings without classes. Independent positions take 8.079 bits.",
    );
    let (mut sums, mut count) = ([0.0; 2], 0.0);
    for dump in f32_dumps(dumps) {
        let bits = |choice| -> Result<f64> {
            let (cost, tensors) = measure_codec(dump, "topk:density=0.01,scope=global", choice)?;
            Ok(cost.support as f64 * 8.0 / kept(&tensors) as f64)
        };
        let (auto, tokens) = (bits(Positions::Auto)?, bits(Positions::Tokens)?);
        let (rice, bitmap) = (bits(Positions::Rice)?, bits(Positions::Bitmap)?);
        let best = tokens.min(rice).min(bitmap);
        report.row(&dump.name, auto, "bits/position", Must::AtMost((best * 1000.0).ceil() / 1000.0));
        if dump.name == "gpt_step0300_worker0" {
            let one = bits(Positions::RiceOne)?;
            for (what, bits) in [("tokens", tokens), ("one Rice parameter", one), ("Rice in chunks", rice)] {
                report.row(format!("{}, {what}", dump.name), bits, "bits/position", Must::Be);
            }
        }
        sums.iter_mut().zip([auto, tokens]).for_each(|(sum, bits)| *sum += bits);
        count += 1.0;
    }
    let [auto, tokens] = sums.map(|sum| sum / count);
    report.row("mean over all f32 dumps", auto, "bits/position", Must::AtMost(4.65));
    report.row("mean over all f32 dumps, tokens", tokens, "bits/position", Must::AtMost(MEAN_OF_TOKENS));
    Ok(())
}

pub(crate) fn real_signs(report: &mut Report, dumps: &[Dump]) -> Result<()> {
    report.section(
        "Signs of the largest 1 % of a dump",
        "Top-k over the whole dump, k = 1 %, with `values=sign`. Bits per kept element of the signs, with the \
         bits of rows and columns that predict them; of positions and signs; and of the whole update, with \
         headers and one f32 scale for each tensor, which weigh most in small dumps.",
    );
    let (mut sums, mut count) = ([0.0; 3], 0.0);
    for dump in f32_dumps(dumps) {
        let codec = "topk:density=0.01,scope=global,values=sign";
        let (cost, tensors) = measure_codec(dump, codec, Positions::Auto)?;
        // The fields before the scales, and the scales.
        let signs = cost.values - 2 - 4 * dump.tensors.len() as u64;
        let parts = [signs, signs + cost.support, cost.frames];
        let bits = parts.map(|bytes| bytes as f64 * 8.0 / kept(&tensors) as f64);
        report.row(format!("{}, signs", dump.name), bits[0], "bits/element", Must::Be);
        sums.iter_mut().zip(bits).for_each(|(sum, bits)| *sum += bits);
        count += 1.0;
    }
    let [signs, with_positions, whole] = sums.map(|sum| sum / count);
    report.row("mean over all f32 dumps, signs", signs, "bits/element", Must::Be);
    report.row("mean, positions and signs", with_positions, "bits/element", Must::AtMost(5.5));
    report.row("mean, whole update", whole, "bits/element", Must::Be);
    Ok(())
}

/// Whether `power` is one of the two powers of two around `x`, or 0 for 0.
fn is_neighbour(x: f32, power: f32) -> bool {
    if x == 0.0 {
        return power == 0.0;
    }
    let (x, power) = (f64::from(x), f64::from(power));
    let low = 2f64.powi(x.abs().log2().floor() as i32);
    x.signum() == power.signum() && (power.abs() == low || (power.abs() == 2.0 * low && x.abs() != low))
}

pub(crate) fn natural(report: &mut Report, dumps: &[Dump]) -> Result<()> {
    report.section(
        "Natural compression",
        "Bits per element of the whole update, with headers and signs. Paper: 9. Every decoded value \
         is checked to be a power of two next to its input.",
    );
    let (mut sum, mut count) = (0.0, 0.0);
    for dump in f32_dumps(dumps) {
        let (cost, tensors) = measure_codec(dump, "natural:seed=1", Positions::Auto)?;
        let f32s = |t: &TensorBuf| -> Vec<f32> {
            t.data().chunks_exact(4).map(|e| f32::from_le_bytes([e[0], e[1], e[2], e[3]])).collect()
        };
        for (before, after) in dump.tensors.iter().zip(&tensors) {
            let all = f32s(before).into_iter().zip(f32s(after)).all(|(x, p)| is_neighbour(x, p));
            if !all {
                return Err(
                    format!("{}: a value that is no power of two next to its input", dump.name).into()
                );
            }
        }
        let bits = cost.frames as f64 * 8.0 / dump.elements() as f64;
        report.row(&dump.name, bits, "bits/element", Must::AtMost(4.0));
        sum += bits;
        count += 1.0;
    }
    report.row("mean over all f32 dumps", sum / count, "bits/element", Must::AtMost(3.45));
    Ok(())
}

fn lossless_percent(dump: &Dump) -> Result<f64> {
    let (cost, tensors) = measure_codec(dump, "lossless", Positions::Auto)?;
    if tensors != dump.tensors {
        return Err(format!("{}: lossless is not", dump.name).into());
    }
    Ok(cost.frames as f64 * 100.0 / dump.bytes() as f64)
}

pub(crate) fn lossless(report: &mut Report, dumps: &[Dump]) -> Result<()> {
    report.section(
        "Lossless",
        "Bytes of the update as a share of the raw elements. The decoded bits \
                              are checked.",
    );
    for dump in dumps {
        let must = match () {
            () if dump.is(Dtype::F32) => Must::AtMost(84.5),
            () if dump.is(Dtype::Bf16) => Must::AtMost(68.5),
            () => Must::Be,
        };
        // A dump of several types has no bound: it only has a row.
        let first = dump.tensors.first().map_or(Dtype::F32, TensorBuf::dtype);
        let dtype = if dump.is(first) { first.name() } else { "mixed" };
        report.row(format!("{} ({dtype})", dump.name), lossless_percent(dump)?, "%", must);
    }
    Ok(())
}

pub(crate) fn random_bits(report: &mut Report) -> Result<()> {
    report.section(
        "Lossless, random bits",
        "4 MiB of random bits as f32, which cannot be compressed: the target bounds the overhead.",
    );
    let mut words = vec![0; 1 << 20];
    random::words(3, 0, 0, &mut words);
    let data = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let dump =
        Dump::new("random", vec![("random".into(), TensorBuf::new(Dtype::F32, vec![1 << 20], data)?)])?;
    report.row("random", lossless_percent(&dump)?, "%", Must::AtMost(100.1));
    Ok(())
}

/// Size of one delta.
pub(super) struct DeltaCost {
    pub(super) cost: Cost,
    pub(super) changed: u64,
}

impl DeltaCost {
    fn bits(&self, bytes: u64) -> f64 {
        bytes as f64 * 8.0 / self.changed as f64
    }
}

/// Encodes `next` as a delta of `base`, and checks that it comes back.
pub(super) fn measure_delta(base: &Dump, next: &Dump, codec: &str) -> Result<DeltaCost> {
    let with_base = next.inputs().into_iter().zip(&base.tensors);
    let inputs: Vec<Input<'_>> = with_base.map(|(i, b)| Input { base: Some(b.view()), ..i }).collect();
    let codecs = vec![codec.parse::<Codec>()?; inputs.len()];
    let blocks = compress(&inputs, &codecs, &Options::default(), None)?;
    let diffs = |coded: &CodedBlock| match &coded.block.values {
        Values::Ulp(Ulp { diffs }) => diffs.len() as u64,
        _ => 0,
    };
    let changed = blocks.iter().map(diffs).sum();
    let header = UpdateHeader::default().with_runs(deltas(&next.manifest, &inputs, &codecs, &blocks)?);
    let (cost, tensors) = measure(next, &blocks, &header, Some(base))?;
    if tensors != next.tensors {
        return Err(format!("{}: the result is not the new weights", next.name).into());
    }
    Ok(DeltaCost { cost, changed })
}

pub(crate) fn delta(report: &mut Report, gradients: &Path) -> Result<()> {
    let load = |name: &str| Dump::load(&gradients.join("weight_sync").join(format!("{name}.safetensors")));
    let (base, next) = (load("gpt_bf16_sync020")?, load("gpt_bf16_sync021")?);
    report.section(
        "Lossless delta of bf16 weights",
        "A trainer sends this to inference engines after one step. The update's bits per changed element, \
         with all headers. `positions=tokens` is what can be read without the base. For comparison, zstd -1 of \
         the XOR takes 18.5.",
    );
    let pair = measure_delta(&base, &next, "delta")?;
    report.row("changed elements", pair.changed as f64, "", Must::Be);
    report.row("whole update", pair.bits(pair.cost.frames), "bits/changed", Must::AtMost(6.1));
    report.row("positions", pair.bits(pair.cost.support), "bits/changed", Must::Be);
    report.row("differences", pair.bits(pair.cost.values), "bits/changed", Must::Be);
    report.row("headers and digests", pair.bits(pair.cost.overhead()), "bits/changed", Must::Be);
    let gaps = measure_delta(&base, &next, "delta:positions=tokens")?;
    report.row("whole update, positions=tokens", gaps.bits(gaps.cost.frames), "bits/changed", Must::Be);
    let chain = load_chain(&gradients.join("weight_sync/chain"))?;
    let (mut sums, mut gaps) = ([0.0; 4], 0.0);
    for pair in chain.windows(2) {
        let delta = measure_delta(&pair[0], &pair[1], "delta")?;
        let cost = &delta.cost;
        let parts = [cost.frames, cost.support, cost.values, cost.overhead()];
        sums.iter_mut().zip(parts).for_each(|(sum, bytes)| *sum += delta.bits(bytes));
        let tokens = measure_delta(&pair[0], &pair[1], "delta:positions=tokens")?;
        gaps += tokens.bits(tokens.cost.frames);
    }
    let syncs = (chain.len() - 1) as f64;
    let [whole, positions, differences, rest] = sums.map(|sum| sum / syncs);
    report.row("chain of 12, whole update, mean", whole, "bits/changed", Must::AtMost(7.5));
    report.row("chain of 12, positions, mean", positions, "bits/changed", Must::Be);
    report.row("chain of 12, differences, mean", differences, "bits/changed", Must::Be);
    report.row("chain of 12, headers and digests, mean", rest, "bits/changed", Must::Be);
    report.row("chain of 12, whole update, positions=tokens, mean", gaps / syncs, "bits/changed", Must::Be);
    Ok(())
}
