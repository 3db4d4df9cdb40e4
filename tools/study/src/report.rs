//! Writes `docs/study.md`. Every number in it is computed from measurements.

use std::fmt::Write as _;

use crate::model::Score;
use crate::runs::{UNCOMPRESSED, dense_steps, top_k_steps};
use crate::train::Outcome;
use crate::{Crowd, Row, Study, TRAFFIC_STEPS};

/// Mean and standard deviation over seeds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    /// Standard deviation of a sample; 0 for a single value.
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

    /// Formats the mean, and the deviation for more than one seed.
    fn show(self, digits: usize) -> String {
        match self.count {
            1 => format!("{:.digits$}", self.mean),
            _ => format!("{:.digits$} ± {:.digits$}", self.mean, self.deviation),
        }
    }

    /// Returns the standard error of the mean.
    fn error(self) -> f64 {
        self.deviation / (self.count as f64).sqrt()
    }
}

impl Study {
    /// Returns a score as the tables show it: per cent of digits, or bits per byte.
    pub(crate) fn shown(&self, score: Score) -> f64 {
        match self.bits {
            true => score.loss / std::f64::consts::LN_2,
            false => 100.0 * score.accuracy,
        }
    }

    pub(crate) fn test(&self, row: &Row) -> Spread {
        Spread::of(row.outcomes.iter().map(|o| self.shown(o.test)))
    }

    pub(crate) fn validation(&self, row: &Row) -> Spread {
        Spread::of(row.outcomes.iter().map(|o| self.shown(o.validated())))
    }

    fn digits(&self) -> usize {
        if self.bits { 3 } else { 2 }
    }

    fn unit(&self) -> &'static str {
        if self.bits { "bits per byte" } else { "%" }
    }

    /// Returns whether no other run is both smaller and better on the validation data.
    pub(crate) fn is_best_at_its_size(&self, row: &Row) -> bool {
        let loss = |row: &Row| {
            let mean = self.validation(row).mean;
            if self.bits { mean } else { -mean }
        };
        let beats = |other: &Row| {
            let (ratios, losses) = ((self.ratio(other), self.ratio(row)), (loss(other), loss(row)));
            ratios.0 >= ratios.1 && losses.0 <= losses.1 && (ratios.0 > ratios.1 || losses.0 < losses.1)
        };
        !row.outcomes.iter().any(|o| o.diverged.is_some()) && !self.rows.iter().any(beats)
    }

    pub(crate) fn parameters(&self) -> usize {
        self.task.parameters().iter().map(|p| p.elements()).sum()
    }

    /// Returns the ratio to 32-bit floats at every step.
    pub(crate) fn ratio(&self, row: &Row) -> f64 {
        let floats = 4.0 * self.parameters() as f64 * self.setting.steps as f64;
        floats / sent(row)
    }

    fn baseline(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.run.name == UNCOMPRESSED)
    }

    /// Returns the difference of a run's test to that of uncompressed training with the same seed, first
    /// weights and batches.
    fn distance(&self, row: &Row) -> Option<Spread> {
        let pairs = row.outcomes.iter().zip(&self.baseline()?.outcomes);
        Some(Spread::of(pairs.map(|(a, b)| self.shown(a.test) - self.shown(b.test))))
    }
}

/// Returns the bytes that a worker sent, the mean over workers and seeds.
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

/// Returns the page.
pub(crate) fn markdown(studies: &[Study], traffic: &[Crowd], cores: usize) -> String {
    let mut out = String::new();
    page(&mut out, studies, traffic, cores).expect("a string takes everything");
    out
}

fn page(out: &mut String, studies: &[Study], traffic: &[Crowd], cores: usize) -> std::fmt::Result {
    writeln!(out, "# Training through gcodec\n")?;
    let about = "How does training fare with each compressor? `cargo run --release -p gcodec-study \
                 -- --write` makes this page; `--help` lists its options. Several workers in one \
                 process train small networks on real data. In each step, every worker's update \
                 passes through a compressor, an encoder, whole frames, a decoder and a sum, and the \
                 weights follow the decoded sum. Compressed and uncompressed runs have the same \
                 steps, first weights, batches and learning rates, unless a line says otherwise.";
    writeln!(out, "{}\n", wrapped(about, ""))?;
    conclusions(out, studies, traffic)?;
    for study in studies {
        table(out, study)?;
    }
    crowd(out, traffic)?;
    notes(out, studies, cores)
}

fn conclusions(out: &mut String, studies: &[Study], traffic: &[Crowd]) -> std::fmt::Result {
    writeln!(out, "## Results\n")?;
    for study in studies {
        let unit = if study.bits { "bits per byte" } else { "points" };
        let line = |out: &mut String, row: &Row, what: &str, wanted: f64| -> std::fmt::Result {
            let Some(distance) = study.distance(row) else { return Ok(()) };
            let met = if study.ratio(row) >= wanted { "met" } else { "missed" };
            let text = format!(
                "{what}, {}: {} smaller than 32-bit floats, with all headers (target {}: {met}). The test score differs \
                 by {:+.3} {unit} from uncompressed (standard error {:.3}, {} {}){}.",
                study.title.to_lowercase(),
                times(study.ratio(row)),
                times(wanted),
                distance.mean,
                distance.error(),
                distance.count,
                if distance.count == 1 { "seed" } else { "seeds" },
                verdict(study, distance)
            );
            writeln!(out, "{}", wrapped(&text, "- "))
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
        let text = format!(
            "ScaleCom's traffic per worker from 2 to 16 workers: received bytes change by a factor of {:.3}, sent and \
             received bytes together by {:.3}. For top-k of the same number of elements, merged by a server, the factors \
             are {:.3} and {:.3}.",
            growth(&each("ScaleCom", |c| c.received)),
            growth(&each("ScaleCom", total)),
            growth(&each("topk", |c| c.received)),
            growth(&each("topk", total)),
        );
        writeln!(out, "{}", wrapped(&text, "- "))?;
    }
    let lossless = studies.iter().flat_map(|s| {
        let row = s.rows.iter().find(|r| r.run.name == "lossless")?;
        let mut pairs = row.outcomes.iter().zip(&s.baseline()?.outcomes);
        Some((s, pairs.all(|(a, b)| a.digest == b.digest)))
    });
    for (study, same) in lossless {
        let what = if same { "the same bits as" } else { "OTHER BITS THAN" };
        let title = study.title.to_lowercase();
        let text = format!("`lossless`, {title}: the final weights have {what} those of `raw`.");
        writeln!(out, "{}", wrapped(&text, "- "))?;
    }
    writeln!(out)
}

/// Interprets a difference to uncompressed training.
fn verdict(study: &Study, distance: Spread) -> String {
    // Chance exceeds two standard errors once in twenty cases with many seeds; with few seeds it is a rough
    // rule.
    let worse = if study.bits { distance.mean } else { -distance.mean };
    let noise = if distance.count < 2 {
        "one seed cannot show the noise"
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
    let about = format!(
        "Data: {}. {} parameters in {} tensors; {} workers with {} examples each per step, {} steps; maximum learning \
         rate {}.",
        study.about,
        thousands(study.parameters() as f64),
        study.task.parameters().len(),
        s.workers,
        study.task.batch_len(),
        s.steps,
        s.rate
    );
    writeln!(out, "{}\n", wrapped(&about, ""))?;
    if let Some(raw) = study.baseline().filter(|raw| raw.outcomes.iter().all(|o| o.validation.len() == 10)) {
        let after =
            |tenths: usize| Spread::of(raw.outcomes.iter().map(|o| study.shown(o.validation[tenths - 1])));
        let progress = [5, 8, 9, 10].map(|tenths| after(tenths).show(study.digits()));
        let text = format!(
            "Uncompressed, on the validation data, after 5, 8, 9 and 10 tenths of the steps: {} {}.",
            progress.join(", "),
            study.unit()
        );
        writeln!(out, "{}\n", wrapped(&text, ""))?;
    }
    let (what, unit) = (if study.bits { "" } else { " accuracy" }, study.unit());
    writeln!(
        out,
        "| compressor | train loss | validation{what}, {unit} | test{what}, {unit} | bytes sent per worker | ratio | compress + encode, ms | decode + sum, ms | train, ms | the scheme's paper |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
    for row in &study.rows {
        let mean = |of: &dyn Fn(&Outcome) -> f64| Spread::of(row.outcomes.iter().map(of)).mean;
        let rounds = s.steps as f64;
        let ms = |seconds: f64, of: usize| 1000.0 * seconds / of as f64 / rounds;
        let loss = Spread::of(row.outcomes.iter().map(Outcome::final_loss));
        if let Some(step) = row.outcomes.iter().find_map(|o| o.diverged) {
            writeln!(
                out,
                "| {} | diverged at step {step} | | | | | | | | {} |",
                row.run.name, row.run.claim
            )?;
            continue;
        }
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {:.2} | {:.2} | {:.1} | {} |",
            row.run.name,
            loss.show(4),
            study.validation(row).show(study.digits()),
            study.test(row).show(study.digits()),
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
    let about = format!(
        "The convolutional network's first {TRAFFIC_STEPS} steps, bytes per step. A server adds the \
         workers' updates and sends the sum to each worker. ScaleCom's sum stays in the compressed \
         domain (`reduce::add`) and has the leader's index set. The sum of top-k is the union of all \
         positions (`reduce::merge`). With ScaleCom only the leader sends positions, and a different \
         worker leads in each step, so the positions per worker decrease with the number of workers."
    );
    writeln!(out, "{}\n", wrapped(&about, ""))?;
    writeln!(out, "| compressor | workers | sent by a worker | received by a worker |")?;
    writeln!(out, "|---|---|---|---|")?;
    for c in traffic {
        writeln!(out, "| {} | {} | {} | {} |", c.name, c.workers, thousands(c.sent), thousands(c.received))?;
    }
    writeln!(out, "\n![Bytes against workers](study/workers.svg)\n")
}

fn notes(out: &mut String, studies: &[Study], cores: usize) -> std::fmt::Result {
    let receivers = studies.first().map_or(0, |s| s.setting.receivers);
    writeln!(out, "## Method\n")?;
    let receivers = format!(
        "**Receivers**: {receivers} of the workers decode everything, in different orders and \
         pieces, and have their own weights and optimiser, which the other workers share. In every \
         round their sums, and at the end of every run their weights, must have the same bits, or \
         the program fails. With `--quick` all workers decode everything."
    );
    let times = format!(
        "**Times** are processor time (on Linux) of one thread, per worker or receiver and step. The \
         program runs {cores} runs at once on {cores} cores."
    );
    let notes = [
        "**Bytes** are whole frames with all headers: preamble, manifest once, an update in each \
         round, index sets, the end frame. There is no index frame, which serves files. The \
         numerator of the ratio is 4 bytes per parameter and step.",
        "**Topology**: the sent bytes are those of one worker's stream. All receivers decode and sum \
         the streams of all workers (`reduce::Sum`, the mean). ScaleCom and 1-bit Adam use a server, \
         whose time counts as encoding.",
        &receivers,
        "**Optimisers**: the convolutional network uses SGD with momentum 0.9, and the language \
         model Adam, on the decoded mean. Schemes with local steps run the same optimiser on every \
         worker. The mean of their updates is applied directly (Sparse Binary Compression, with \
         error feedback and momentum masking) or with Nesterov's momentum 0.9 and rate 0.3 \
         (SparseLoCo). DeMo applies the sign of the mean, at 0.001 on the convolutional network and \
         0.0009 on the language model. 1-bit Adam uses a server like ScaleCom. DGC has its own \
         momentum, so its outer optimiser is plain SGD, with four warm-up stages in the first 4 % of \
         the steps. On the language model compare it with `raw, SGD with momentum`, both at 0.3 and \
         with gradients clipped to norm 1.",
        "**Learning rate**: it rises over the first twentieth of the steps, then falls to a \
         twentieth along a cosine, for all runs.",
        "**EF** is error feedback: the residual of a compressor is added to the next update.",
        "**Train loss** is the mean of the workers' batches over the last twentieth of the steps. ± \
         is the standard deviation over seeds, which share first weights and batches with those of \
         other lines.",
        "**Validation and test**: no step uses either. The choices of this page (the runs that a plot \
         names as best at their size) rest on the validation data, what it says of a run on the test data.",
        &times,
        "**The scheme's paper**: the authors' results on their own networks, or a consequence of the \
         format where stated. These are not results on the networks of this page.",
        "**Determinism**: on one machine a run repeats bit for bit (`cargo test --release -p \
         gcodec-study`). ndarray's matrix products depend on the instruction set, so another machine \
         may differ in the last bits and diverge from there on. The text of the language model is \
         that of the checkout: another commit has other text.",
    ];
    notes.iter().try_for_each(|note| writeln!(out, "{}", wrapped(note, "- ")))
}

/// Wraps a paragraph at 110 columns. `mark` begins the first line, and spaces of the same length the others.
fn wrapped(text: &str, mark: &str) -> String {
    let mut out = mark.to_owned();
    let mut width = mark.len();
    for word in text.split_whitespace() {
        let len = word.chars().count();
        let first = width == mark.len();
        if !first && width + 1 + len > 110 {
            out += "\n";
            out += &" ".repeat(mark.len());
            width = mark.len();
        } else if !first {
            out += " ";
            width += 1;
        }
        out += word;
        width += len;
    }
    out
}

/// Returns the tables of many workers and of workers in trouble.
pub(crate) fn scale(studies: &[Study], traffic: &[Crowd]) -> String {
    let mut out = String::new();
    let write = |out: &mut String| -> std::fmt::Result {
        studies.iter().try_for_each(|study| scale_table(out, study))?;
        union(out, traffic)
    };
    write(&mut out).expect("a string takes everything");
    out
}

fn scale_table(out: &mut String, study: &Study) -> std::fmt::Result {
    let s = study.setting;
    writeln!(out, "### {}\n", study.title)?;
    let about = format!(
        "{} parameters; {} workers with {} examples each per step, {} steps, maximum learning rate {}, {} seed{}.",
        thousands(study.parameters() as f64),
        s.workers,
        study.task.batch_len(),
        s.steps,
        s.rate,
        study.seeds,
        if study.seeds == 1 { "" } else { "s" }
    );
    writeln!(out, "{}\n", wrapped(&about, ""))?;
    writeln!(
        out,
        "| scheme | train loss | validation accuracy, % | test accuracy, % | sent in a step | received in a step |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for row in &study.rows {
        let mean = |of: &dyn Fn(&Outcome) -> f64| Spread::of(row.outcomes.iter().map(of)).mean;
        let steps = s.steps as f64;
        if let Some(step) = row.outcomes.iter().find_map(|o| o.diverged) {
            writeln!(out, "| {} | diverged at step {step} | | | | |", row.run.name)?;
            continue;
        }
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} |",
            row.run.name,
            Spread::of(row.outcomes.iter().map(Outcome::final_loss)).show(4),
            study.validation(row).show(2),
            study.test(row).show(2),
            thousands(mean(&|o| o.traffic.sent_each()) / steps),
            thousands(mean(&|o| o.traffic.received as f64) / steps)
        )?;
    }
    writeln!(out)
}

fn union(out: &mut String, traffic: &[Crowd]) -> std::fmt::Result {
    if traffic.is_empty() {
        return Ok(());
    }
    writeln!(out, "### Sums\n")?;
    let about = format!(
        "Bytes of a worker in each of the first {TRAFFIC_STEPS} steps, with a server that adds the updates."
    );
    writeln!(out, "{}\n", wrapped(&about, ""))?;
    writeln!(out, "| scheme | workers | sent | received | received, of one update |")?;
    writeln!(out, "|---|---|---|---|---|")?;
    for c in traffic {
        let (sent, received) = (thousands(c.sent), thousands(c.received));
        writeln!(out, "| {} | {} | {sent} | {received} | {:.2}x |", c.name, c.workers, c.received / c.sent)?;
    }
    writeln!(out)
}

/// Returns the tables of runs that are compared with the learned codec.
pub(crate) fn learned(studies: &[Study]) -> String {
    let mut out = String::new();
    studies.iter().try_for_each(|study| learned_table(&mut out, study)).expect("a string takes everything");
    out
}

fn learned_table(out: &mut String, study: &Study) -> std::fmt::Result {
    let s = study.setting;
    writeln!(out, "### {}\n", study.title)?;
    let about = format!(
        "{} parameters; {} workers with {} examples each per step, {} steps, of which the first {} are sent as `raw` in \
         all rows but `raw`, and the {} after them are the learned codec's second phase; {} seed{}.",
        thousands(study.parameters() as f64),
        s.workers,
        study.task.batch_len(),
        s.steps,
        dense_steps(s.steps),
        top_k_steps(s.steps),
        study.seeds,
        if study.seeds == 1 { "" } else { "s" }
    );
    writeln!(out, "{}\n", wrapped(&about, ""))?;
    let (what, unit) = (if study.bits { "" } else { " accuracy" }, study.unit());
    writeln!(
        out,
        "| scheme | train loss | validation{what}, {unit} | test{what}, {unit} | bytes of a worker in a late step | error on the set |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for row in &study.rows {
        let spread = |of: &dyn Fn(&Outcome) -> f64| Spread::of(row.outcomes.iter().map(of));
        let error = |o: &Outcome| o.learned.map_or(f64::NAN, |l| l.error());
        let error = match row.outcomes.iter().any(|o| o.learned.is_some()) {
            true => spread(&error).show(3),
            false => "-".to_owned(),
        };
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {error} |",
            row.run.name,
            spread(&Outcome::final_loss).show(4),
            study.validation(row).show(study.digits()),
            study.test(row).show(study.digits()),
            thousands(spread(&Outcome::late_bytes).mean)
        )?;
    }
    let models: Vec<_> = study.rows.iter().flat_map(|row| &row.outcomes).filter_map(|o| o.learned).collect();
    if let Some(size) = models.iter().map(|l| l.model_bytes).max() {
        let seconds = models.iter().map(|l| l.training.as_secs_f64()).fold(0.0, f64::max);
        let about = format!(
            "The model has {} bytes, which count only where it is trained again; its training took at most {seconds:.0} s of \
             processor time.",
            thousands(size as f64)
        );
        writeln!(out, "\n{}", wrapped(&about, ""))?;
    }
    writeln!(out)
}
