//! `docs/study.md`: every number in it is computed from what was measured.

use std::fmt::Write as _;

use crate::runs::UNCOMPRESSED;
use crate::train::Outcome;
use crate::{Crowd, Row, Study, TRAFFIC_STEPS};

/// Mean and standard deviation over seeds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    /// Of a sample; 0 of one.
    pub(crate) deviation: f64,
    count: usize,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        Self { mean, deviation: (squares / (count.max(2) - 1) as f64).sqrt(), count }
    }

    /// As the table has it: nothing is said of the spread of one.
    fn show(self, digits: usize) -> String {
        match self.count {
            1 => format!("{:.digits$}", self.mean),
            _ => format!("{:.digits$} ± {:.digits$}", self.mean, self.deviation),
        }
    }

    /// The standard error of the mean.
    fn error(self) -> f64 {
        self.deviation / (self.count as f64).sqrt()
    }
}

impl Study {
    /// What the table shows of a run's test: per cent of digits, or bits for each byte.
    pub(crate) fn test_of(&self, outcome: &Outcome) -> f64 {
        match self.bits {
            true => outcome.score.loss / std::f64::consts::LN_2,
            false => 100.0 * outcome.score.accuracy,
        }
    }

    pub(crate) fn test(&self, row: &Row) -> Spread {
        Spread::of(row.outcomes.iter().map(|o| self.test_of(o)))
    }

    pub(crate) fn parameters(&self) -> usize {
        self.task.parameters().iter().map(|p| p.elements()).sum()
    }

    /// How many times smaller than bare 32-bit floats at every step.
    pub(crate) fn ratio(&self, row: &Row) -> f64 {
        let floats = 4.0 * self.parameters() as f64 * self.setting.steps as f64;
        floats / sent(row)
    }

    fn baseline(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.run.name == UNCOMPRESSED)
    }

    /// How a run's test differs from that of uncompressed training with the same seed: the same first weights and batches.
    fn distance(&self, row: &Row) -> Option<Spread> {
        let pairs = row.outcomes.iter().zip(&self.baseline()?.outcomes);
        Some(Spread::of(pairs.map(|(a, b)| self.test_of(a) - self.test_of(b))))
    }
}

/// Bytes that a worker sent, the mean over workers and seeds.
pub(crate) fn sent(row: &Row) -> f64 {
    Spread::of(row.outcomes.iter().map(|o| o.traffic.sent_each())).mean
}

fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn times(ratio: f64) -> String {
    match ratio {
        r if r >= 100.0 => format!("{}x", thousands(r)),
        r if r >= 10.0 => format!("{r:.1}x"),
        r => format!("{r:.2}x"),
    }
}

/// The page.
pub(crate) fn markdown(studies: &[Study], traffic: &[Crowd], cores: usize) -> String {
    let mut out = String::new();
    page(&mut out, studies, traffic, cores).expect("a string takes everything");
    out
}

fn page(out: &mut String, studies: &[Study], traffic: &[Crowd], cores: usize) -> std::fmt::Result {
    writeln!(out, "# Training through gcodec\n")?;
    writeln!(
        out,
        "Written by `cargo run --release -p gcodec-study -- --write`; `--help` has more. Small networks, trained on real data by \
         several workers in one process: each step, every worker's update goes through a \
         compressor, an encoder, whole frames, a decoder and a sum, and the weights follow what was decoded. Compressed \
         and uncompressed runs have the same steps, first weights, batches and learning rates, unless a line says otherwise.\n"
    )?;
    conclusions(out, studies, traffic)?;
    for study in studies {
        table(out, study)?;
    }
    crowd(out, traffic)?;
    notes(out, studies, cores)
}

fn conclusions(out: &mut String, studies: &[Study], traffic: &[Crowd]) -> std::fmt::Result {
    writeln!(out, "## What was found\n")?;
    for study in studies {
        let unit = if study.bits { "bits per byte" } else { "points" };
        let line = |out: &mut String, row: &Row, what: &str, wanted: f64| -> std::fmt::Result {
            let Some(distance) = study.distance(row) else { return Ok(()) };
            let met = if study.ratio(row) >= wanted { "met" } else { "missed" };
            writeln!(
                out,
                "- {what}, {}: {} smaller than 32-bit floats, all headers counted (target {}: {met}); the test is {:+.3} {unit} \
                 from uncompressed (standard error {:.3}, {} seeds){}.",
                study.title.to_lowercase(),
                times(study.ratio(row)),
                times(wanted),
                distance.mean,
                distance.error(),
                distance.count,
                verdict(study, distance)
            )
        };
        for row in &study.rows {
            match row.run.name.as_str() {
                name if name.starts_with("sbc:density=0.001, ") => {
                    line(out, row, "Sparse Binary Compression, p = 0.001", 1500.0)?;
                }
                "natural" => line(out, row, "Natural compression", 8.0)?,
                _ => {}
            }
        }
    }
    let each = |name: &str, of: fn(&Crowd) -> f64| -> Vec<f64> {
        traffic.iter().filter(|c| c.name.starts_with(name)).map(of).collect()
    };
    let growth = |values: &[f64]| match (values.first(), values.last()) {
        (Some(first), Some(last)) => last / first,
        _ => f64::NAN,
    };
    if !traffic.is_empty() {
        let total = |c: &Crowd| c.sent + c.received;
        writeln!(
            out,
            "- ScaleCom's traffic from 2 to 16 workers: what a worker receives in a step grows {:.3} times, sent and received \
             together {:.3} times. Top-k of as many elements, merged by a server: {:.3} times and {:.3} times.",
            growth(&each("ScaleCom", |c| c.received)),
            growth(&each("ScaleCom", total)),
            growth(&each("topk", |c| c.received)),
            growth(&each("topk", total)),
        )?;
    }
    let lossless = studies.iter().flat_map(|s| {
        let row = s.rows.iter().find(|r| r.run.name == "lossless")?;
        let mut pairs = row.outcomes.iter().zip(&s.baseline()?.outcomes);
        Some((s, pairs.all(|(a, b)| a.digest == b.digest)))
    });
    for (study, same) in lossless {
        let what = if same { "the same bits as" } else { "OTHER BITS THAN" };
        writeln!(
            out,
            "- `lossless`, {}: the final weights have {what} those of `raw`.",
            study.title.to_lowercase()
        )?;
    }
    writeln!(out)
}

/// What a distance from uncompressed training means.
fn verdict(study: &Study, distance: Spread) -> String {
    // Two standard errors: about what chance does in one of twenty, were there many seeds; with few it is a rough rule.
    let worse = if study.bits { distance.mean } else { -distance.mean };
    let noise = if distance.count < 2 {
        "one seed does not say how large the noise is"
    } else if worse <= 2.0 * distance.error() {
        "within two standard errors, or better"
    } else {
        "worse by more than two standard errors"
    };
    let point = match (study.bits, worse <= 1.0) {
        (true, _) => "",
        (false, true) => ", within 1 point",
        (false, false) => ", more than 1 point",
    };
    format!(": {noise}{point}")
}

fn table(out: &mut String, study: &Study) -> std::fmt::Result {
    let s = study.setting;
    writeln!(out, "## {}\n", study.title)?;
    writeln!(
        out,
        "Data: {}. {} parameters in {} tensors; {} workers with {} examples each in a step, {} steps; learning \
         rate {} at most.\n",
        study.about,
        thousands(study.parameters() as f64),
        study.task.parameters().len(),
        s.workers,
        study.task.batch_len(),
        s.steps,
        s.rate
    )?;
    let test = if study.bits { "test, bits per byte" } else { "test, % right" };
    writeln!(
        out,
        "| compressor | train loss | {test} | bytes sent per worker | ratio | compress + encode, ms | decode + sum, ms | train, ms | the scheme's paper |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    for row in &study.rows {
        let mean = |of: &dyn Fn(&Outcome) -> f64| Spread::of(row.outcomes.iter().map(of)).mean;
        let rounds = s.steps as f64;
        let ms = |seconds: f64, of: usize| 1000.0 * seconds / of as f64 / rounds;
        let loss = Spread::of(row.outcomes.iter().map(Outcome::final_loss));
        let (test, digits) = (study.test(row), if study.bits { 3 } else { 2 });
        if let Some(step) = row.outcomes.iter().find_map(|o| o.diverged) {
            writeln!(out, "| {} | diverged at step {step} | | | | | | | {} |", row.run.name, row.run.claim)?;
            continue;
        }
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {:.2} | {:.2} | {:.1} | {} |",
            row.run.name,
            loss.show(4),
            test.show(digits),
            thousands(sent(row)),
            times(study.ratio(row)),
            ms(mean(&|o| o.traffic.encoding.as_secs_f64()), s.workers),
            ms(mean(&|o| o.traffic.decoding.as_secs_f64()), s.receivers),
            ms(mean(&|o| o.training.as_secs_f64()), s.workers),
            row.run.claim
        )?;
    }
    writeln!(out, "\n![Loss against bytes sent](study/{}-loss.svg)\n", study.short)?;
    writeln!(out, "![Ratio against the test](study/{}-ratio.svg)\n", study.short)
}

fn crowd(out: &mut String, traffic: &[Crowd]) -> std::fmt::Result {
    if traffic.is_empty() {
        return Ok(());
    }
    writeln!(out, "## Traffic against workers\n")?;
    writeln!(
        out,
        "The convolutional network's first {TRAFFIC_STEPS} steps, bytes per step. A server adds what the workers send and sends the \
         sum to each: ScaleCom's as it is, in the compressed domain (`reduce::add`), with the leader's index set; top-k's as the \
         union of all positions (`reduce::merge`). With ScaleCom only the leader, another one each step, sends positions, so the \
         share of them that falls on one worker becomes smaller with the number of workers.\n"
    )?;
    writeln!(out, "| compressor | workers | sent by a worker | received by a worker |")?;
    writeln!(out, "|---|---|---|---|")?;
    for c in traffic {
        writeln!(out, "| {} | {} | {} | {} |", c.name, c.workers, thousands(c.sent), thousands(c.received))?;
    }
    writeln!(out, "\n![Bytes against workers](study/workers.svg)\n")
}

fn notes(out: &mut String, studies: &[Study], cores: usize) -> std::fmt::Result {
    let receivers = studies.first().map_or(0, |s| s.setting.receivers);
    writeln!(out, "## How it was done\n")?;
    writeln!(
        out,
        "- **Bytes** are whole frames with all headers: preamble, manifest once, an update in each round, index sets, the end \
         frame. No index frame, which is for files. The ratio's numerator is 4 bytes for each parameter and step.\n\
         - **Topology**: what is counted as sent is one worker's stream; all receivers decode and sum the streams of all (`reduce::Sum`, \
         the mean). ScaleCom and 1-bit Adam go by a server, which runs in the column of encoding.\n\
         - **Receivers**: {receivers} of the workers really decode everything, in different orders and pieces, and have weights \
         and an optimiser of their own, which the other workers share; every round their sums, and at the end of every run their weights, must be the same bits, or the \
         program fails. With `--quick` all workers do.\n\
         - **Optimisers**: the convolutional network has SGD with momentum 0.9, the language model Adam, on the decoded mean. \
         Schemes with local steps have the same optimiser on every worker, and the mean of what they send is applied as it is \
         (Sparse Binary Compression, with error feedback and momentum masking) or with Nesterov's momentum 0.9 and rate 0.3 (SparseLoCo). \
         DeMo's mean is followed by its sign, at 0.001 on the convolutional network and 0.0009 on the language model. 1-bit Adam goes by a server like ScaleCom. DGC brings its own momentum, so its outer optimiser is plain SGD, with four warm-up stages in the first 4 % of the steps; \
         on the language model compare it with `raw, SGD with momentum`, both at 0.3 and with gradients clipped to norm 1.\n\
         - **Learning rate**: up over the first twentieth of the steps, down to a twentieth along a cosine, for all runs.\n\
         - **EF** is error feedback: what a compressor left out is added to the next update.\n\
         - **Train loss** is the mean of the workers' batches over the last twentieth of the steps; ± is the standard deviation over 3 seeds (2 of the language model), the lines without it have one.\n\
         - **Times** are processor time (on Linux), per worker or receiver and step, of one thread; the program runs {cores} runs at once on {cores} cores.\n\
         - **The scheme's paper**: what its authors report of their own networks, or what follows from its format, as said; not of these networks.\n\
         - **Determinism**: on one machine a run repeats bit for bit (`cargo test --release -p gcodec-study`); burn's matrix products \
         depend on the instruction set, so another machine may differ in the last bits and from there on. The text of the language model is that of the checkout: another commit has other text."
    )
}
