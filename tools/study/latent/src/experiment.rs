//! The experiment: error and cost of later gradients, compared with plain top-k at the same cost.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gcodec::block::{Positions, Stored};
use gcodec::compress::codecs::TopK;
use gcodec::compress::{Amount, Input, Kept, Options, Selection, compress};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{EncodeOptions, Encoder};
use gcodec::{Codec, Dtype, TensorBuf};
use gcodec_latent::protocol::{Class, Phase, Settings, Variant, classes};
use gcodec_latent::{Architecture, CodeFormat, Innovation, Model};

use crate::autoencoder::{Loss, Training, train};
use crate::digits::{Digits, Net, SHAPES};
use crate::dumps::{Step, exchange, signals};
use crate::{Result, Signals};

/// Settings of the experiment.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Experiment {
    /// Steps of the workers' training before those for the autoencoders
    #[arg(long, default_value_t = 20)]
    pub skipped: u64,
    /// Steps that train the autoencoders
    #[arg(long, default_value_t = 100)]
    pub learned: u64,
    /// Steps after those; every fifth is measured
    #[arg(long, default_value_t = 60)]
    pub later: u64,
    /// Densities of the shared set
    #[arg(long, value_delimiter = ',', default_values_t = [0.002, 0.01, 0.05])]
    pub densities: Vec<f64>,
    /// Channels of the encoder's first layer; 64 in the paper
    #[arg(long, default_value_t = 16)]
    pub width: usize,
    /// Training of the autoencoders
    #[command(flatten)]
    pub training: Training,
}

impl Default for Experiment {
    fn default() -> Self {
        let densities = vec![0.002, 0.01, 0.05];
        Self { skipped: 20, learned: 100, later: 60, densities, width: 16, training: Training::default() }
    }
}

/// Number of workers.
const WORLD: u64 = 4;
/// Interval of the measured steps; coprime to [`WORLD`], so that every worker leads.
const STRIDE: u64 = 5;
const RATE: f32 = 0.005;

/// Cost and error of a scheme on the measured steps.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measured {
    /// Bytes of all frames of all workers, per step.
    pub bytes: f64,
    /// Distance between the receiver's and the workers' mean of the learned tensors, relative to the norm of
    /// the workers' mean.
    pub mean_error: f64,
    /// The same error for each worker's values on the set, over all workers; NaN where a receiver does not
    /// have them.
    pub set_error: f64,
}

/// Returns gradients of consecutive steps of a real training: those for training, then those to measure.
///
/// # Errors
/// If burn fails.
pub fn gradients(
    experiment: &Experiment,
    digits: &Digits,
    mut each: impl FnMut(u64, f64),
) -> Result<(Vec<Step>, Vec<Step>, f64)> {
    let infos = SHAPES.iter().map(|(name, shape)| {
        let shape: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
        TensorInfo::new(*name, Dtype::F32, shape)
    });
    let manifest = Arc::new(Manifest::new(infos.collect())?);
    let seed = experiment.training.seed;
    let mut net = Net::new(seed);
    let (mut learned, mut later) = (Vec::new(), Vec::new());
    let first_later = experiment.skipped + experiment.learned;
    for step in 0..first_later + experiment.later {
        let mut workers = Vec::new();
        let mut loss = 0.0;
        for worker in 0..WORLD {
            let (gradients, of_worker) = net.gradients(digits, worker, step, seed)?;
            loss += of_worker / WORLD as f64;
            workers.push(gradients);
        }
        each(step, loss);
        let keep = match step {
            _ if step < experiment.skipped => None,
            _ if step < first_later => Some(&mut learned),
            _ if (step - first_later).is_multiple_of(STRIDE) => Some(&mut later),
            _ => None,
        };
        if let Some(steps) = keep {
            let tensors = |rows: &Vec<Vec<f32>>| -> Result<Vec<TensorBuf>> {
                let shaped = manifest.tensors().iter().zip(rows);
                Ok(shaped
                    .map(|(i, row)| TensorBuf::from_f32(i.shape.clone(), row))
                    .collect::<gcodec::Result<_>>()?)
            };
            let workers = workers.iter().map(tensors).collect::<Result<_>>()?;
            steps.push(Step { step, manifest: Arc::clone(&manifest), workers });
        }
        let mean: Vec<Vec<f32>> = (0..SHAPES.len())
            .map(|t| {
                let sum = |i: usize| workers.iter().map(|w| w[t][i]).sum::<f32>() / WORLD as f32;
                (0..workers[0][t].len()).map(sum).collect()
            })
            .collect();
        net.step(&mean, RATE);
    }
    Ok((learned, later, net.accuracy(digits)?))
}

fn squares(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum()
}

/// Returns the mean of the workers' learned tensors, in binary64.
fn true_mean(step: &Step, classes: &[Class]) -> Result<Vec<f64>> {
    let mut sums: Vec<f64> = Vec::new();
    for tensors in &step.workers {
        let mut place = 0;
        for (tensor, class) in tensors.iter().zip(classes) {
            if *class != Class::Learned {
                continue;
            }
            for x in tensor.view().to_f32()? {
                if place == sums.len() {
                    sums.push(0.0);
                }
                sums[place] += f64::from(x) / WORLD as f64;
                place += 1;
            }
        }
    }
    Ok(sums)
}

/// Returns the settings of the third phase.
pub fn third_phase(
    variant: Variant,
    classes: Vec<Class>,
    density: f64,
    codes: CodeFormat,
    innovation: f64,
) -> Settings {
    Settings::new(variant, classes)
        .with_amount(Amount::Density(density))
        .with_values(Kept::Bf16)
        .with_innovation(innovation)
        .with_innovation_values(Stored::Bf16)
        .with_codes(codes)
        .with_full_steps(0)
        .with_top_k_steps(0)
}

/// Sends steps through the protocol and measures the result.
///
/// # Errors
/// The errors of the protocol.
pub fn measure(steps: &[Step], settings: &Settings, model: Option<&Arc<Model>>) -> Result<Measured> {
    let mut measured = Measured::default();
    let (mut lost, mut total, mut set_lost, mut set_total) = (0.0, 0.0, 0.0, 0.0);
    let n = steps.len() as f64;
    for step in steps {
        let (outcome, bytes) = exchange(step, settings, model)?;
        measured.bytes += bytes as f64 / n;
        let mean = true_mean(step, &settings.classes)?;
        let got = outcome.mean.iter().zip(&settings.classes).filter(|(_, c)| **c == Class::Learned);
        let got = got.flat_map(|(row, _)| row);
        lost += squares(got.zip(&mean).map(|(a, b)| f64::from(*a) - b));
        total += squares(mean.iter().copied());
        let truth = signals(step, settings.amount)?;
        for (w, values) in truth.values.iter().enumerate() {
            let Some(signal) = outcome.signals.get(w).filter(|_| outcome.signals.len() > 1) else {
                set_lost = f64::NAN;
                continue;
            };
            set_lost += squares(signal.iter().zip(values).map(|(a, b)| f64::from(*a) - f64::from(*b)));
            set_total += squares(values.iter().map(|x| f64::from(*x)));
        }
    }
    measured.mean_error = (lost / total).sqrt();
    measured.set_error = (set_lost / set_total).sqrt();
    Ok(measured)
}

/// Measures plain top-k on each worker alone, with the same classes: the first layer is sent dense.
///
/// # Errors
/// The errors of the codec.
pub fn plain(
    steps: &[Step],
    classes: &[Class],
    amount: Amount,
    values: Kept,
    last: Amount,
) -> Result<Measured> {
    let mut measured = Measured { set_error: f64::NAN, ..Measured::default() };
    let (mut lost, mut total) = (0.0, 0.0);
    for step in steps {
        let mut mean = true_mean(step, classes)?;
        total += squares(mean.iter().copied());
        let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
        let mut out = Vec::new();
        encoder.manifest(&mut out, &step.manifest);
        let before = encoder.offset();
        let top_k = |amount, values| {
            Codec::TopK(TopK {
                amount,
                values,
                selection: Selection::Tensor,
                seed: step.step,
                positions: Positions::Auto,
            })
        };
        let codecs: Vec<Codec> = classes
            .iter()
            .map(|class| match class {
                Class::Full => Codec::Raw,
                Class::TopK => top_k(last, Kept::Bf16),
                Class::Learned => top_k(amount, values),
            })
            .collect();
        let mut starts = vec![before];
        for (rank, tensors) in (0..).zip(&step.workers) {
            let inputs: Vec<Input<'_>> = (0..)
                .zip(step.manifest.tensors().iter().zip(tensors))
                .map(|(tensor, (info, t))| Input { tensor, name: &info.name, view: t.view(), base: None })
                .collect();
            let blocks = compress(&inputs, &codecs, &Options::default(), None)?;
            let header = UpdateHeader::default()
                .with_step(step.step)
                .with_round(step.step)
                .with_sender(rank)
                .with_world(WORLD)
                .with_contributors(1);
            encoder.update(&mut out, &header, &step.manifest, &blocks)?;
            starts.push(encoder.offset());
        }
        measured.bytes += (encoder.offset() - before) as f64 / steps.len() as f64;
        // Writes each worker's update as its own stream: preamble and manifest, update, end.
        encoder.finish(&mut out);
        let mut reader = gcodec::stream::SliceReader::new(&out, gcodec::Limits::default());
        while let Some(event) = reader.next_event()? {
            let gcodec::stream::Event::Frame(_, gcodec::stream::Body::Update(part)) = event else { continue };
            let mut assembler =
                gcodec::stream::Assembler::new(&step.manifest, &gcodec::Limits::default(), |_| true)?;
            assembler.apply(&part)?;
            let learned = assembler.finish()?;
            let learned = learned.iter().zip(classes).filter(|(_, c)| **c == Class::Learned);
            let mut place = 0;
            for ((_, tensor), _) in learned {
                for x in tensor.view().to_f32()? {
                    mean[place] -= f64::from(x) / WORLD as f64;
                    place += 1;
                }
            }
        }
        lost += squares(mean.into_iter());
    }
    measured.mean_error = (lost / total).sqrt();
    Ok(measured)
}

/// Returns the densest plain top-k that costs at most this many bytes per step, and its density.
fn plain_within(
    steps: &[Step],
    classes: &[Class],
    bytes: f64,
    values: Kept,
    last: Amount,
) -> Result<(f64, Measured)> {
    // Bytes grow with the density, so this bisects the logarithm of the density.
    let (mut low, mut high) = (1e-6f64.ln(), 0.0f64);
    let mut best = (0.0, plain(steps, classes, Amount::Count(1), values, last)?);
    for _ in 0..12 {
        let middle = (low + high) / 2.0;
        let density = middle.exp();
        let measured = plain(steps, classes, Amount::Density(density), values, last)?;
        if measured.bytes <= bytes {
            (low, best) = (middle, (density, measured));
        } else {
            high = middle;
        }
    }
    Ok(best)
}

/// Runs the whole experiment; `say` receives progress lines. Returns the measured part of `docs/latent.md`.
///
/// # Errors
/// If any step fails.
pub fn run(experiment: &Experiment, data: &Path, mut say: impl FnMut(&str)) -> Result<String> {
    let begun = Instant::now();
    let digits = Digits::read(data)?;
    let (learned, later, accuracy) = gradients(experiment, &digits, |step, loss| {
        if step % 20 == 0 {
            say(&format!("training the workers' net: step {step}, loss {loss:.4}"));
        }
    })?;
    let manifest = &learned.first().ok_or("no steps to learn from")?.manifest;
    let classes = classes(manifest)?;
    let of_learned = manifest.tensors().iter().zip(&classes).filter(|(_, c)| **c == Class::Learned);
    let elements: u64 = of_learned.map(|(t, _)| t.elements()).sum();
    let mut text = String::new();
    let steps: Vec<String> = later.iter().map(|s| s.step.to_string()).collect();
    writeln!(
        text,
        "{WORLD} workers, {} parameters, of which {elements} are learned. The autoencoders are trained on steps {} to {},\n\
         and measured on {} later steps: {}.\n\
         The network then recognises {:.1} % of the test digits. Width {}, {} iterations of {} windows of {} values,\n\
         seed {}.\n",
        manifest.elements(),
        experiment.skipped,
        experiment.skipped + experiment.learned - 1,
        steps.len(),
        steps.join(", "),
        100.0 * accuracy,
        experiment.width,
        experiment.training.iterations,
        experiment.training.batch,
        experiment.training.window,
        experiment.training.seed,
    )?;
    for &density in &experiment.densities {
        let amount = Amount::Density(density);
        let data: Vec<Signals> = learned.iter().map(|s| signals(s, amount)).collect::<Result<_>>()?;
        let count = data.iter().map(|s| s.values[0].len()).max().unwrap_or(0);
        writeln!(text, "### Density {density} of each tensor: {count} values on the set\n")?;
        writeln!(
            text,
            "| scheme | density | bytes/step | bits/element | error of the mean | error on the set |"
        )?;
        writeln!(text, "|---|---|---|---|---|---|")?;
        let mut row = |text: &mut String, name: &str, density: f64, m: &Measured| {
            let bits = 8.0 * m.bytes / (WORLD * elements) as f64;
            let set = if m.set_error.is_nan() { "-".to_owned() } else { format!("{:.3}", m.set_error) };
            let line = format!(
                "| {name} | {density:.5} | {:.0} | {bits:.4} | {:.4} | {set} |",
                m.bytes, m.mean_error
            );
            say(&line);
            writeln!(text, "{line}")
        };
        let mut models = Vec::new();
        let kinds = [
            ("LGC-PS", Variant::Server, Innovation::Channel, experiment.training.lambda_sim),
            ("LGC-PS, innovation replaces, lambda_sim 0", Variant::Server, Innovation::Replace, 0.0),
            ("LGC-ring", Variant::Ring, Innovation::None, 0.0),
        ];
        let mut budgets = Vec::new();
        for (name, variant, innovation, lambda_sim) in kinds {
            let decoders = if variant == Variant::Ring { 1 } else { WORLD as usize };
            let model = Architecture::new(decoders, innovation).with_width(experiment.width);
            let model = model.init(experiment.training.seed)?;
            let mut last = Loss { rec: 0.0, sim: 0.0 };
            let training = Training { lambda_sim, ..experiment.training.clone() };
            let model = train(&model, &data, &training, |_, loss| last = loss)?;
            let model = Arc::new(model);
            let part = experiment.training.innovation;
            for (codes, format) in [("int8", CodeFormat::Int8), ("bf16", CodeFormat::Bf16)] {
                let settings = third_phase(variant, classes.clone(), density, format, part);
                debug_assert_eq!(settings.phase(0), Phase::Learned);
                let measured = measure(&later, &settings, Some(&model))?;
                row(&mut text, &format!("**{name}, {codes} codes**"), density, &measured)?;
                if codes == "int8" && innovation != Innovation::Replace {
                    budgets.push((name, measured.bytes));
                }
            }
            models.push((name, model, last));
        }
        let shared = third_phase(Variant::Server, classes.clone(), density, CodeFormat::F32, 0.0)
            .with_top_k_steps(u64::MAX);
        let measured = measure(&later, &shared, None)?;
        row(&mut text, "shared set, f32 values: no autoencoder", density, &measured)?;
        for (name, bytes) in budgets {
            for (kind, values) in [("pow2", Kept::Pow2), ("bf16", Kept::Bf16), ("f32", Kept::F32)] {
                let (found, measured) = plain_within(&later, &classes, bytes, values, amount)?;
                row(&mut text, &format!("top-k {kind}, bytes of {name}"), found, &measured)?;
            }
        }
        writeln!(text, "\nModels (sent once, not in the bytes above):\n")?;
        for (name, model, loss) in models {
            writeln!(
                text,
                "- {name}: {} bytes, `{}`; last losses {:.4} (values), {:.4} (codes)",
                model.as_bytes().len(),
                model.id(),
                loss.rec,
                loss.sim
            )?;
        }
        writeln!(text)?;
    }
    say(&format!("{:.0} s", begun.elapsed().as_secs_f64()));
    Ok(text)
}
