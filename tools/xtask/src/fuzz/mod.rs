//! Fuzzing: builds the targets of `fuzz/`, writes their seeds and dictionary, runs them for a time, and
//! prints a table of results.

mod coverage;
mod planted;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::programs::{conformance, cpu_seconds};
use gcodec_packaging::programs::each_of;
use gcodec_packaging::{Result, root};

/// Version to install if cargo-fuzz is missing.
const CARGO_FUZZ: &str = "0.13.2";
/// Characters that are shown of a line of a finding's message.
const MOST_SHOWN: usize = 2000;
/// Number of targets that run at once.
const AT_ONCE: usize = 2;

/// A file of `fuzz/fuzz_targets`, and the longest input that it gets, in bytes.
struct Target {
    name: &'static str,
    max_len: u32,
}

const TARGETS: &[Target] = &[
    Target { name: "stream", max_len: 4096 },
    Target { name: "body", max_len: 512 },
    Target { name: "file", max_len: 4096 },
    Target { name: "roundtrip", max_len: 512 },
    Target { name: "inspect", max_len: 2048 },
    Target { name: "recover", max_len: 4096 },
    Target { name: "delta", max_len: 512 },
    Target { name: "reference", max_len: 2048 },
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Processor seconds of each target; elsewhere than on Linux, seconds
    #[arg(long, value_name = "N", default_value_t = 30)]
    seconds: u32,
    /// Only prints which share of the decode paths the corpus reaches; needs rustup's llvm-tools for nightly.
    #[arg(long)]
    coverage: bool,
    /// Only builds the targets.
    #[arg(long)]
    build: bool,
    /// Plants bugs in a copy of the tree, and prints after how many executions each target finds each.
    #[arg(long, conflicts_with_all = ["coverage", "build"])]
    planted: bool,
    /// With --planted: only the bug of this number, from 1
    #[arg(long, value_name = "N", requires = "planted")]
    bug: Option<usize>,
    /// Only writes fuzz/gcodec.dict, after a change to the registry.
    #[arg(long)]
    write: bool,
    /// Targets; all of them if none is given
    targets: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.write {
        return conformance(&["seeds", "--write"]);
    }
    if let Some(unknown) = args.targets.iter().find(|t| TARGETS.iter().all(|known| known.name != **t)) {
        let names: Vec<_> = TARGETS.iter().map(|t| t.name).collect();
        return Err(format!("there is no target {unknown}: {}", names.join(", ")).into());
    }
    let wanted = |t: &&Target| args.targets.is_empty() || args.targets.iter().any(|name| name == t.name);
    let targets: Vec<&Target> = TARGETS.iter().filter(wanted).collect();
    prepare()?;
    let seconds = f64::from(args.seconds);
    if args.planted {
        return planted::run(&targets, args.bug, seconds);
    }
    if args.build {
        return build(&root(), &targets).map(|()| true);
    }
    let names = targets.iter().map(|t| t.name);
    if !conformance(&["seeds"].into_iter().chain(names).collect::<Vec<_>>())? {
        return Ok(false);
    }
    if args.coverage {
        return coverage::run(&targets).map(|()| true);
    }
    build(&root(), &targets)?;
    let folders =
        Folders { tree: root(), corpus: folder().join("corpus"), artifacts: folder().join("artifacts") };
    let outcomes = each_of(AT_ONCE, &targets, |target| run_one(&folders, target, seconds, |_| ()))?;
    Ok(report(&outcomes))
}

fn folder() -> PathBuf {
    root().join("fuzz")
}

/// Checks that nightly Rust and cargo-fuzz are present, and installs the latter once; otherwise returns the
/// missing tool.
pub(crate) fn prepare() -> std::result::Result<(), String> {
    let says = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    says("cargo", &["+nightly", "--version"]).ok_or("nightly Rust is missing")?;
    says("c++", &["--version"]).ok_or("a C++ compiler is missing")?;
    if says("cargo", &["fuzz", "--version"]).is_none() {
        println!("installing cargo-fuzz {CARGO_FUZZ}: a minute");
        let install = ["install", "cargo-fuzz", "--version", CARGO_FUZZ, "--locked", "--quiet"];
        says("cargo", &install).ok_or("cargo-fuzz is missing and cannot be installed")?;
    }
    Ok(())
}

/// Builds the targets of a tree.
fn build(tree: &Path, targets: &[&Target]) -> Result<()> {
    let start = Instant::now();
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz", "build"]);
    // Cargo-fuzz builds one target or all.
    if let [target] = targets {
        command.arg(target.name);
    }
    // Cargo-fuzz asks for one codegen unit, which one core compiles. Flags from here come after its own.
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default() + " -Ccodegen-units=16";
    // The environment's target folder contains builds of other compilers.
    command.current_dir(tree).env_remove("CARGO_TARGET_DIR").env("RUSTFLAGS", flags);
    let built = command.stderr(Stdio::piped()).output()?;
    if !built.status.success() {
        return Err(format!("cargo fuzz build failed:\n{}", String::from_utf8_lossy(&built.stderr)).into());
    }
    println!("built in {:.0?}", start.elapsed());
    Ok(())
}

fn binary(tree: &Path, target: &Target) -> Result<PathBuf> {
    Ok(tree.join("fuzz/target").join(triple()?).join("release").join(target.name))
}

/// Returns the host's target triple.
fn triple() -> Result<String> {
    let said = Command::new("rustc").args(["+nightly", "-vV"]).output()?.stdout;
    let said = String::from_utf8(said)?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("rustc prints no host")?.to_owned())
}

/// Results of a target's run.
#[derive(Debug, Default)]
struct Outcome {
    name: &'static str,
    cpu_seconds: f64,
    seconds: f64,
    executions: u64,
    /// Reached edges, features, and kept inputs.
    edges: u64,
    features: u64,
    corpus: u64,
    findings: Vec<PathBuf>,
    /// Whether it ended before its time.
    failed: bool,
    /// What it printed about that, and where its log is.
    said: String,
}

/// Where targets run.
struct Folders {
    /// Tree whose targets were built.
    tree: PathBuf,
    /// Inputs, a folder for each target.
    corpus: PathBuf,
    /// Findings, a folder for each target, and logs.
    artifacts: PathBuf,
}

/// Runs a target for `seconds` of processor time, after `prepare` has completed its command.
fn run_one(
    folders: &Folders,
    target: &Target,
    seconds: f64,
    prepare: impl Fn(&mut Command),
) -> Result<Outcome> {
    let artifacts = folders.artifacts.join(target.name);
    fs::create_dir_all(&artifacts)?;
    let before = files(&artifacts)?;
    let log = folders.artifacts.join(format!("{}.log", target.name));
    let mut command = Command::new(binary(&folders.tree, target)?);
    let regressions = folder().join("regressions").join(target.name);
    let longest = longest_input(seconds);
    command
        .arg(folders.corpus.join(target.name))
        .args(Some(regressions).filter(|r| r.is_dir()))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-dict={}", folder().join("gcodec.dict").display()))
        .arg(format!("-max_len={}", target.max_len))
        .args(["-len_control=0", "-rss_limit_mb=2560", "-print_final_stats=1"])
        .args([format!("-timeout={longest}"), format!("-report_slow_units={}", longest / 2)]);
    prepare(&mut command);
    let output = File::create(&log)?;
    let mut child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()?;
    let start = Instant::now();
    let mut outcome = Outcome { name: target.name, ..Outcome::default() };
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        outcome.cpu_seconds = cpu_seconds(&child).unwrap_or_else(|| start.elapsed().as_secs_f64());
        if outcome.cpu_seconds >= seconds {
            // Like Ctrl-C: it prints its results and exits.
            Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
            break child.wait()?;
        }
        thread::sleep(Duration::from_millis(200));
    };
    outcome.seconds = start.elapsed().as_secs_f64();
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    outcome.take(&text);
    outcome.findings = files(&artifacts)?.into_iter().filter(|f| !before.contains(f)).collect();
    // libFuzzer exits with 72 when interrupted.
    outcome.failed = !matches!(status.code(), Some(0 | 72));
    outcome.said = format!("{}\nlog: {}", reason(&text), log.display());
    Ok(outcome)
}

/// Returns why a target ended before its time: the lines of the panic or of the sanitizer, each in part.
fn reason(log: &str) -> String {
    let mut lines = log.lines().skip_while(|l| !l.contains("panicked at") && !l.contains("ERROR: "));
    let first = lines.next().into_iter();
    let message = lines.take_while(|l| !l.starts_with("note: ") && !l.starts_with("stack backtrace"));
    let short = |l: &str| l.chars().take(MOST_SHOWN).collect::<String>();
    first.chain(message.take(4)).map(short).collect::<Vec<_>>().join("\n")
}

/// Prints why a target ended before its time, if it did.
fn report_failure(outcome: &Outcome) {
    if outcome.failed {
        println!("{}: {}", outcome.name, outcome.said);
    }
}

/// Returns the seconds, by the clock, after which an input counts as endless; after half of them it is
/// reported. A short run has low priority beside the tests, where five seconds of a core, which some inputs
/// take, can be minutes; and it is over before an endless input could reach the limit of a long run.
fn longest_input(seconds: f64) -> u32 {
    if seconds > 60.0 { 60 } else { 1200 }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    Ok(entries.map(|e| e.map(|e| e.path())).collect::<std::io::Result<_>>()?)
}

impl Outcome {
    /// Parses libFuzzer's output.
    fn take(&mut self, log: &str) {
        let number = |text: &str| text.split_whitespace().next()?.split('/').next()?.parse::<u64>().ok();
        let last =
            |key: &str| log.lines().rev().find_map(|line| number(line.split_once(key)?.1)).unwrap_or(0);
        let keys = ["stat::number_of_executed_units:", " cov: ", " ft: ", " corp: "];
        [self.executions, self.edges, self.features, self.corpus] = keys.map(last);
    }
}

/// Prints the table; true without findings.
fn report(outcomes: &[Outcome]) -> bool {
    outcomes.iter().for_each(report_failure);
    println!(
        "| target | CPU minutes | executions | per CPU second | edges | features | inputs kept | findings |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for o in outcomes {
        let rate = o.executions as f64 / o.cpu_seconds.max(0.01);
        println!(
            "| {} | {:.1} | {} | {rate:.0} | {} | {} | {} | {} |",
            o.name,
            o.cpu_seconds / 60.0,
            o.executions,
            o.edges,
            o.features,
            o.corpus,
            o.findings.len()
        );
    }
    for o in outcomes {
        for finding in &o.findings {
            println!("found by {}: {}", o.name, finding.display());
            // The file may be out of reach later, as on a machine that only tests.
            let hex: String =
                fs::read(finding).unwrap_or_default().iter().map(|b| format!("{b:02x}")).collect();
            hex.as_bytes().chunks(128).for_each(|line| println!("  {}", String::from_utf8_lossy(line)));
        }
        // A target that never ran has not passed.
        if o.executions == 0 && !o.failed {
            println!("{} ran nothing", o.name);
        }
    }
    outcomes.iter().all(|o| !o.failed && o.findings.is_empty() && o.executions > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_file_and_every_file_is_a_target() {
        let mut found: Vec<String> = files(&folder().join("fuzz_targets"))
            .unwrap()
            .iter()
            .filter_map(|f| Some(f.file_stem()?.to_string_lossy().into_owned()))
            .collect();
        let mut targets: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
        found.sort();
        targets.sort();
        assert_eq!(found, targets);
    }

    #[test]
    fn what_libfuzzer_prints_is_read() {
        let log = "#2 NEW cov: 11 ft: 12 corp: 3/9b exec/s: 0 L: 1/1 MS: 1\n#9 DONE cov: 13 ft: 14 corp: 5/7Kb lim: 4\n\
            stat::number_of_executed_units: 57\n";
        let mut outcome = Outcome::default();
        outcome.take(log);
        let found = (outcome.executions, outcome.edges, outcome.features, outcome.corpus);
        assert_eq!(found, (57, 13, 14, 5));
    }

    #[test]
    fn the_reason_of_a_failure_has_the_message() {
        let log = "#1 INITED\nthread '<unnamed>' (7) panicked at fuzz_targets/reference.rs:92:13:\nanother stream\n\
            ours   1\ntheirs 2\nnote: run with\n==7== ERROR: libFuzzer: deadly signal\n";
        let said = "thread '<unnamed>' (7) panicked at fuzz_targets/reference.rs:92:13:\nanother stream\nours   1\ntheirs 2";
        assert_eq!(reason(log), said);
        assert_eq!(reason("==7== ERROR: libFuzzer: timeout\n"), "==7== ERROR: libFuzzer: timeout");
    }
}
