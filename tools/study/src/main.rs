//! Trains small networks by several workers that exchange gcodec updates, one run for each compressor, and
//! writes `docs/study.md`.
//!
//! In each step, every worker's gradient (or the change of its local steps) passes through a compressor, an
//! encoder, real bytes, a decoder and a sum. The weights follow the decoded sum.

mod clock;
mod data;
mod group;
mod learned;
mod model;
mod optim;
mod plot;
mod predicted;
mod report;
mod runs;
mod senders;
mod shared;
mod table;
mod tape;
mod train;
mod trouble;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::{Parser, ValueEnum};

use model::Task;
use runs::Run;
use train::{Outcome, Setting, train};

/// Each step allocates and frees tensors of a megabyte and more. The system's allocator returns them to the
/// kernel each time, which costs a third of the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Any error, printed for the user.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Model {
    /// A convolutional network for digits.
    Conv,
    /// A transformer that predicts the next byte of text.
    Lm,
}

/// Trains small networks by several workers that exchange gcodec updates.
#[derive(Debug, Parser)]
struct Args {
    /// Runs only the runs whose name contains this, beside uncompressed training
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Trains only this network
    #[arg(long)]
    model: Option<Model>,
    /// Steps [default: 400 of the convolutional network, 240 of the language model]
    #[arg(long)]
    steps: Option<u64>,
    /// Workers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Seeds of each run [default: 3, with --quick 1]
    #[arg(long)]
    seeds: Option<u64>,
    /// Largest learning rate [default: 0.05 with momentum, 0.003 with Adam]
    #[arg(long)]
    rate: Option<f32>,
    /// Runs a few steps of a few compressors, with every worker decoding everything; fails if a check fails
    #[arg(long)]
    quick: bool,
    /// Writes docs/study.md and its plots, or with --learned the tables of docs/latent.md
    #[arg(long, conflicts_with_all = ["quick", "only", "model"])]
    write: bool,
    /// Runs the learned codec and what it is compared with, in place of all other runs
    #[arg(long, conflicts_with = "quick")]
    learned: bool,
    /// Runs 64 workers, and workers with late and lost updates, in place of all other runs; with --write, for
    /// docs/scale.md
    #[arg(long, conflicts_with_all = ["quick", "learned", "model", "workers"])]
    scale: bool,
    /// Number of parallel runs [default: the number of cores]
    #[arg(long)]
    jobs: Option<usize>,
}

/// A network with its runs.
pub(crate) struct Study {
    pub(crate) title: &'static str,
    pub(crate) short: &'static str,
    pub(crate) about: String,
    pub(crate) task: Box<dyn Task>,
    pub(crate) setting: Setting,
    pub(crate) seeds: u64,
    pub(crate) rows: Vec<Row>,
    /// Whether a score is in bits per byte rather than accuracy.
    pub(crate) bits: bool,
}

/// A run and its results by seed.
pub(crate) struct Row {
    pub(crate) run: Run,
    pub(crate) outcomes: Vec<Outcome>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn main() -> std::process::ExitCode {
    match run(&Args::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gcodec-study: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn studies(args: &Args) -> Result<Vec<Study>> {
    if args.scale {
        return scale_studies(args);
    }
    let mut studies = Vec::new();
    let receivers = if args.quick { args.workers.into() } else { 2 };
    let setting = |steps, rate| Setting {
        steps: args.steps.unwrap_or(if args.quick { 12 } else { steps }),
        workers: args.workers.into(),
        receivers,
        rate: args.rate.unwrap_or(rate),
    };
    let seeds = |n| args.seeds.unwrap_or(if args.quick { 1 } else { n });
    let wanted = |run: &Run| match (&args.only, args.quick) {
        (Some(only), _) => run.name == runs::UNCOMPRESSED || run.name.contains(only),
        (None, true) => QUICK.iter().any(|q| run.name.starts_with(q)),
        (None, false) => true,
    };
    let rows = |runs: Vec<Run>| -> Vec<Row> {
        runs.into_iter().filter(wanted).map(|run| Row { run, outcomes: Vec::new() }).collect()
    };
    if args.model != Some(Model::Lm) {
        let digits = data::Digits::read(&root())?;
        let learned = || [runs::learned(optim::MOMENTUM), runs::beyond(optim::MOMENTUM)].concat();
        studies.push(Study {
            title: "Convolutional network, digits",
            short: "conv",
            about: digits.about.clone(),
            task: Box::new(model::Convolutional::new(digits)),
            setting: setting(400, 0.05),
            seeds: seeds(3),
            rows: rows(if args.learned { learned() } else { runs::convolutional() }),
            bits: false,
        });
        if !args.quick && !args.learned && args.steps.is_none() {
            let digits = data::Digits::read(&root())?;
            studies.push(Study {
                title: "Convolutional network, digits, more steps",
                short: "conv-long",
                about: digits.about.clone(),
                task: Box::new(model::Convolutional::new(digits)),
                setting: setting(1000, 0.05),
                seeds: seeds(3),
                rows: rows(runs::long()),
                bits: false,
            });
        }
    }
    if args.model != Some(Model::Conv) {
        let text = data::Text::read(&root())?;
        studies.push(Study {
            title: "Language model, bytes of text",
            short: "lm",
            about: text.about.clone(),
            task: Box::new(model::Language::new(text)),
            setting: setting(240, 0.003),
            seeds: seeds(3),
            rows: rows(if args.learned { runs::learned(optim::Rule::Adam) } else { runs::language() }),
            bits: true,
        });
        if !args.quick && !args.learned && args.steps.is_none() {
            let text = data::Text::read(&root())?;
            studies.push(Study {
                title: "Language model, bytes of text, more steps",
                short: "lm-long",
                about: text.about.clone(),
                task: Box::new(model::Language::new(text)),
                setting: setting(LONG_LANGUAGE, 0.003),
                seeds: seeds(3),
                rows: rows(runs::language_long()),
                bits: true,
            });
        }
    }
    Ok(studies)
}

/// Returns the studies of `--scale`: many workers, and workers in trouble.
fn scale_studies(args: &Args) -> Result<Vec<Study>> {
    let study = |title, short, runs: Vec<Run>, workers, steps, rate| -> Result<Study> {
        let digits = data::Digits::read(&root())?;
        let wanted = |run: &Run| match &args.only {
            Some(only) => run.name == runs::UNCOMPRESSED || run.name.contains(only),
            None => true,
        };
        let setting = Setting {
            steps: args.steps.unwrap_or(steps),
            workers,
            receivers: 2,
            rate: args.rate.unwrap_or(rate),
        };
        Ok(Study {
            title,
            short,
            about: digits.about.clone(),
            task: Box::new(model::Convolutional::new(digits)),
            setting,
            seeds: args.seeds.unwrap_or(3),
            rows: runs.into_iter().filter(wanted).map(|run| Row { run, outcomes: Vec::new() }).collect(),
            bits: false,
        })
    };
    Ok(vec![
        study("64 workers", "crowd", runs::crowded(), 64, 100, CROWD_RATE)?,
        study("Late, lost and gone", "trouble", runs::troubled(), 20, 200, 0.05)?,
    ])
}

/// Learning rate of 64 workers, with 16 times the examples in a step. Of 0.05, 0.1, 0.2 and 0.4 it is the
/// best on the validation data (one seed: 96.5, 78, 39 and 8 %); neither the linear rule nor that of the
/// square root holds on this network without a longer warm-up.
const CROWD_RATE: f32 = 0.05;

/// Steps of the long form of the language model, half an hour on two cores.
const LONG_LANGUAGE: u64 = 4800;

/// The runs of `--quick`.
const QUICK: [&str; 8] = [
    "raw",
    "natural",
    "topk:density=0.01,values=pow2",
    "DGC",
    "sbc:density=0.001,",
    "sbc:density=0.01",
    "ScaleCom",
    "chunked",
];

fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(cores).max(1);
    let mut studies = studies(args)?;
    for study in &mut studies {
        let tasks: Vec<(usize, u64)> =
            (1..=study.seeds).flat_map(|seed| (0..study.rows.len()).map(move |row| (row, seed))).collect();
        let outcomes = parallel(jobs, &tasks, |&(row, seed)| {
            let run = &study.rows[row].run;
            let outcome = train(study.task.as_ref(), run, study.setting, seed)?;
            eprintln!(
                "{} {}, seed {seed}: loss {:.4}, validation {:.3}, test {:.3}, {:.0} bytes sent, {:.0} in a late step, \
                 weights {}",
                study.short,
                run.name,
                outcome.final_loss(),
                study.shown(outcome.validated()),
                study.shown(outcome.test),
                outcome.traffic.sent_each(),
                outcome.late_bytes(),
                outcome.digest
            );
            Ok(outcome)
        })?;
        for ((row, _), outcome) in tasks.into_iter().zip(outcomes) {
            study.rows[row].outcomes.push(outcome);
        }
    }
    let traffic = match studies.first() {
        Some(study) if study.short == "crowd" && args.only.is_none() => {
            traffic(study, runs::crowded_traffic(), jobs, &MANY)?
        }
        Some(study) if study.short == "conv" && !args.quick && !args.learned && args.only.is_none() => {
            traffic(study, runs::traffic(), jobs, &FEW)?
        }
        _ => Vec::new(),
    };
    let text = match (args.learned, args.scale) {
        (true, _) => report::learned(&studies),
        (_, true) => report::scale(&studies, &traffic),
        _ => report::markdown(&studies, &traffic, cores),
    };
    println!("{text}");
    eprintln!("{:.0} s", begin.elapsed().as_secs_f64());
    if args.quick {
        check(&studies)?;
    }
    if args.write && args.learned {
        return replace_measured(&root().join("docs/latent.md"), &text);
    }
    if args.write && args.scale {
        return replace_measured(&root().join("docs/scale.md"), &text);
    }
    if args.write {
        let docs = root().join("docs");
        std::fs::create_dir_all(docs.join("study"))?;
        plot::all(&studies, &traffic, &docs.join("study"))?;
        std::fs::write(docs.join("study.md"), text)?;
    }
    Ok(())
}

/// Replaces the measured part of a page.
fn replace_measured(path: &Path, text: &str) -> Result<()> {
    const BEGIN: &str = "<!-- measured -->";
    const END: &str = "<!-- end of measured -->";
    let page = std::fs::read_to_string(path)?;
    let (head, rest) = page.split_once(BEGIN).ok_or("no place for the measured part")?;
    let (_, tail) = rest.split_once(END).ok_or("no end of the measured part")?;
    Ok(std::fs::write(path, format!("{head}{BEGIN}\n\n{}\n\n{END}{tail}", text.trim_end()))?)
}

/// Traffic for different numbers of workers.
pub(crate) struct Crowd {
    pub(crate) name: String,
    pub(crate) workers: usize,
    /// Mean bytes that a worker sends in a step.
    pub(crate) sent: f64,
    /// Bytes that a worker receives in a step.
    pub(crate) received: f64,
}

/// Steps of each run of [`traffic`].
pub(crate) const TRAFFIC_STEPS: u64 = 32;

/// Numbers of workers whose traffic is counted.
const FEW: [usize; 4] = [2, 4, 8, 16];
const MANY: [usize; 6] = [2, 4, 8, 16, 32, 64];

fn traffic(study: &Study, runs: Vec<Run>, jobs: usize, counts: &[usize]) -> Result<Vec<Crowd>> {
    let tasks: Vec<(Run, usize)> =
        runs.into_iter().flat_map(|run| counts.iter().map(move |workers| (run.clone(), *workers))).collect();
    parallel(jobs, &tasks, |(run, workers)| {
        let setting = Setting { workers: *workers, steps: TRAFFIC_STEPS, receivers: 2, ..study.setting };
        let outcome = train(study.task.as_ref(), run, setting, 1)?;
        let each = |bytes: f64| bytes / TRAFFIC_STEPS as f64;
        Ok(Crowd {
            name: run.name.clone(),
            workers: *workers,
            sent: each(outcome.traffic.sent_each()),
            received: each(outcome.traffic.received as f64),
        })
    })
}

/// Runs `work` on every task with `jobs` threads, each with one thread for the library's parallel code, so
/// that runs do not disturb one another. The results are in the order of the tasks.
fn parallel<T: Sync, R: Send>(
    jobs: usize,
    tasks: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<R>)>> = Mutex::new(Vec::new());
    let pools = (0..jobs).map(|_| rayon::ThreadPoolBuilder::new().num_threads(1).build());
    let pools = pools.collect::<std::result::Result<Vec<_>, _>>()?;
    std::thread::scope(|scope| {
        for pool in &pools {
            let (next, results, work) = (&next, &results, &work);
            scope.spawn(move || {
                loop {
                    let task = next.fetch_add(1, Ordering::Relaxed);
                    let Some(at) = tasks.get(task) else { return };
                    let result = pool.install(|| work(at));
                    results.lock().unwrap_or_else(|e| e.into_inner()).push((task, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.sort_by_key(|(task, _)| *task);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Checks a quick run. Every run itself checks that receivers agree and that their streams end properly.
fn check(studies: &[Study]) -> Result<()> {
    for study in studies {
        for row in &study.rows {
            for outcome in &row.outcomes {
                let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
                let part = (outcome.losses.len() / 4).max(1);
                let (first, last) = outcome.losses.split_at(part);
                let last = &last[last.len().saturating_sub(part)..];
                if mean(last) >= mean(first) {
                    return Err(format!("{} {}: the loss does not fall", study.short, row.run.name).into());
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_study_learns_and_receivers_agree() {
        run(&Args::parse_from(["gcodec-study", "--quick"])).unwrap();
    }

    #[test]
    fn lost_updates_are_missing_unless_they_are_taken_back() {
        let args = Args::parse_from(["gcodec-study", "--scale", "--steps", "30", "--only", "raw"]);
        let study = &studies(&args).unwrap()[1];
        let loss = |name: &str| {
            let row = study.rows.iter().find(|row| row.run.name == name).unwrap();
            train(study.task.as_ref(), &row.run, study.setting, 1).unwrap().final_loss()
        };
        let losses = ["raw", "raw, late and lost", "raw, lost ones taken back"].map(loss);
        // 6 % of the updates are late or lost: all three learn a little, and no two are the same.
        assert!(losses.iter().all(|loss| *loss < std::f64::consts::LN_10), "{losses:?}");
        assert!(losses[0] != losses[1] && losses[1] != losses[2], "{losses:?}");
    }

    #[test]
    fn a_run_repeats_bit_for_bit() {
        let mut args = Args::parse_from(["gcodec-study", "--quick", "--model", "conv", "--steps", "3"]);
        args.only = Some("sbc".into());
        let study = &studies(&args).unwrap()[0];
        let row = &study.rows[1];
        let digest = || train(study.task.as_ref(), &row.run, study.setting, 1).unwrap().digest;
        assert_eq!(digest(), digest());
    }

    #[test]
    fn shared_sets_and_the_learned_codec_train() {
        let learned = ["gcodec-study", "--learned", "--model", "conv", "--steps", "20"];
        let study = &studies(&Args::parse_from(learned)).unwrap()[0];
        for name in [
            "shared set",
            "shared set, density 0.01, linear prediction",
            "shared set, density 0.018, linear prediction, signs",
            "shared set, density 0.01, tables of 4 by",
            "LGC, innovation replaces",
            "LGC, trained on rounded codes",
            "innovation alone, error fed back",
        ] {
            let row = study.rows.iter().find(|row| row.run.name.starts_with(name)).unwrap();
            let outcome = train(study.task.as_ref(), &row.run, study.setting, 1).unwrap();
            assert_eq!(outcome.diverged, None, "{name}");
            let (first, late) = (outcome.sent[0], outcome.late_bytes());
            assert!(100.0 * late < first, "{name}: {first} bytes, then {late}");
            assert!(outcome.learned.is_none_or(|l| l.error() < 1.0), "{name}");
        }
    }

    #[test]
    fn training_again_changes_the_model_and_counts_its_bytes() {
        let learned = ["gcodec-study", "--learned", "--model", "conv", "--steps", "20"];
        let study = &studies(&Args::parse_from(learned)).unwrap()[0];
        let mut row =
            study.rows.iter().find(|row| row.run.name.contains("trained again")).unwrap().run.clone();
        let mut run = |again| {
            if let runs::Scheme::Lgc(lgc) = &mut row.scheme {
                lgc.again = again;
            }
            train(study.task.as_ref(), &row, study.setting, 1).unwrap()
        };
        let once = run(None);
        // The third phase has steps 6 to 19: the model is trained again before step 16, on steps 13 to 15.
        let twice = run(Some(learned::Again { every: 10, steps: 3, iterations: 2 }));
        assert_eq!(once.losses[..17], twice.losses[..17]);
        assert_ne!(once.losses[17..], twice.losses[17..]);
        let at = |o: &Outcome, step: usize| o.sent[step] - o.sent[step - 1];
        assert_eq!(at(&once, 12), at(&twice, 12));
        let model = twice.learned.unwrap().model_bytes as f64;
        let values = at(&twice, 13) - at(&once, 13);
        assert!(values > 4.0 * 0.009 * study.parameters() as f64, "{values} bytes of values");
        let more = at(&twice, 16) - at(&once, 16);
        assert!((more - model).abs() < 1000.0, "{more} bytes, a model has {model}");
    }
}
