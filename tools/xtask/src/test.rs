//! All tests: what a contributor runs before a commit, and what CI runs. The list is here, nowhere else.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use gcodec_packaging::programs::{SKIPPED, succeeds, target};
use gcodec_packaging::{Result, python, root};

use wait4::Wait4;

use crate::{cuda, fuzz};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Runs only the steps whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// Names and values of environment variables.
type Variables = &'static [(&'static str, &'static str)];

struct Step {
    name: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    env: Variables,
    need: Need,
}

/// A tool or data without which a step is skipped.
#[derive(Clone, Copy)]
enum Need {
    Nothing,
    Python,
    /// PyTorch, JAX and the other packages for the tests of the Python package.
    PythonPackages,
    /// vLLM, installed already.
    Engines,
    /// The compiler of the kernels.
    CudaCompiler,
    Gradients,
    /// Minutes of compilation for another machine: the step runs by its own command only.
    Minutes,
    Miri,
    /// Nightly Rust and cargo-fuzz.
    Fuzzer,
}

const fn step(name: &'static str, program: &'static str, args: &'static [&'static str]) -> Step {
    Step { name, program, args, env: &[], need: Need::Nothing }
}

/// The task of this name, by this program: Cargo would wait for its lock while another step compiles.
const fn task(name: &'static str, args: &'static [&'static str]) -> Step {
    Step { name, program: TASK, args, env: &[], need: Need::Nothing }
}

/// Stands for this program in a step.
const TASK: &str = "cargo xtask";

/// Steps that compile for both cores: one after another, so that a mistake shows early.
///
/// Every step that builds a part of the workspace selects it with `--workspace --all-features`. With `-p`,
/// Cargo would resolve other features and compile the dependencies a second time.
const BUILDS: &[Step] = &[
    step("format", "cargo", &["fmt", "--all", "--check"]),
    step(
        "lints",
        "cargo",
        &["clippy", "--workspace", "--all-features", "--all-targets", "--quiet", "--", "-D", "warnings"],
    ),
    // The form that `cargo run -- demo` builds. Checking the library once more takes seconds, unlike a build.
    step(
        "lints of the command line without features",
        "cargo",
        &["clippy", "-p", "gcodec-cli", "--all-targets", "--quiet", "--", "-D", "warnings"],
    ),
    Step {
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        // `--examples` selects the features of the tests, which `lints` has checked the dependencies with.
        ..step(
            "docs",
            "cargo",
            &[
                "doc",
                "--workspace",
                "--all-features",
                "--no-deps",
                "--quiet",
                "--lib",
                "--examples",
                "--bin",
                "gcodec-conformance",
                "--bin",
                "gcodec-study",
                "--bin",
                "xtask",
            ],
        )
    },
    // Unlike `cargo build --all-targets`, this leaves out programs that no test runs.
    step("build", "cargo", &["test", "--workspace", "--all-features", "--no-run", "--quiet"]),
];

/// Steps that mostly keep one core busy: two at a time, the longest first.
const TESTS: &[Step] = &[
    Step { need: Need::PythonPackages, ..task("python package", &["python"]) },
    step("tests", "cargo", &["test", "--workspace", "--all-features", "--no-fail-fast"]),
    task("reference decoder: files of the CLI", &["reference"]),
    Step { need: Need::Engines, ..task("inference engines", &["engines"]) },
    Step {
        need: Need::Miri,
        env: &[("MIRIFLAGS", "-Zmiri-disable-isolation")],
        ..step(
            "Miri",
            "cargo",
            // Miri cannot call zstd, which is C.
            &[
                "+nightly", "miri", "test", "-p", "gcodec", "--lib", "--", "arch::", "bits::", "codes::",
                "block::",
            ],
        )
    },
    Step { need: Need::CudaCompiler, ..task("cuda kernels compile", &["cuda", "--check"]) },
    Step { need: Need::Gradients, ..task("sizes on real gradients", &["measure"]) },
    // `tests/properties/layering.rs` holds the code to fixed widths and byte order everywhere.
    Step { need: Need::Minutes, ..task("foreign machines", &["foreign"]) },
    task("C and C++ programs", &["c"]),
    task("page of inspect, package for npm", &["web"]),
    task("kaitai", &["kaitai"]),
    task("wireshark", &["wireshark"]),
    Step {
        need: Need::Python,
        ..step(
            "reference decoder: vectors",
            "python3",
            &["spec/reference/decoder.py", "--vectors", "spec/vectors"],
        )
    },
    Step {
        need: Need::Python,
        ..step("reference decoder: its own tests", "python3", &["spec/reference/test_decoder.py"])
    },
    Step {
        need: Need::Python,
        ..step("reference of lgc-conv1d", "python3", &["spec/reference/test_lgc_conv1d.py"])
    },
    step(
        "benchmarks, once",
        "cargo",
        &["test", "--workspace", "--all-features", "--bench", "speed", "--", "--test"],
    ),
    task("vectors are up to date", &["vectors", "--check"]),
    task("every requirement has a vector", &["vectors", "--uncovered"]),
    task("the tables of ids are up to date", &["ids", "--check"]),
    task("the worked example is up to date", &["example", "--check"]),
    task("the picture of sizes is up to date", &["picture", "--check"]),
    task("width of prose", &["prose"]),
    task("links of the pages", &["links"]),
    task("licences and duplicates of dependencies", &["dependencies"]),
];

/// Steps of low priority, beside [`BUILDS`] and [`TESTS`], which often wait: one after another. Each fuzz
/// target has a share of processor time, not of time.
const BESIDE: &[Step] = &[
    Step {
        need: Need::Fuzzer,
        ..step("fuzz targets compile", "nice", &["-n", "19", TASK, "fuzz", "--build"])
    },
    Step { need: Need::Fuzzer, ..step("fuzz", "nice", &["-n", "19", TASK, "fuzz", "--seconds", "30"]) },
];

/// Steps that measure time, alone.
const LAST: &[Step] = &[
    // About a minute; the long form is `cargo xtask torture`.
    task("torture, quick", &["torture", "--quick"]),
];

/// How many steps of [`TESTS`] run at once. Three took as long on two cores: the longest then ends later.
const AT_ONCE: usize = 2;

/// Result of a step.
struct Done {
    name: &'static str,
    end: End,
    wall: Duration,
    /// Seconds that the step's processes computed; `None` if it was skipped.
    cpu: Option<f64>,
}

#[derive(Clone, PartialEq)]
enum End {
    Passed,
    Failed,
    Skipped(Option<String>),
}

/// Runs all steps, also after a failure; true if none failed and at least one passed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let wanted = |step: &&Step| args.only.as_ref().is_none_or(|only| step.name.contains(only.as_str()));
    let start = Instant::now();
    let mut done = Vec::new();
    let shared = for_all_steps()?;
    // Installing packages mostly waits for the network. The step that needs them reports a failure.
    let needs_packages = |step: &Step| matches!(step.need, Need::PythonPackages);
    let packages = TESTS.iter().filter(wanted).any(needs_packages).then(|| thread::spawn(python::prepare));
    let beside: Vec<&Step> = BESIDE.iter().filter(wanted).collect();
    done.extend(thread::scope(|scope| -> Result<Vec<Done>> {
        let beside = scope.spawn(|| run_together(1, &beside, shared).map_err(|e| e.to_string()));
        let mut done = Vec::new();
        for step in BUILDS.iter().filter(wanted) {
            done.push(run_in_foreground(step, shared)?);
        }
        let _ = packages.map(thread::JoinHandle::join);
        done.extend(run_together(AT_ONCE, &TESTS.iter().filter(wanted).collect::<Vec<_>>(), shared)?);
        done.extend(beside.join().map_err(|_| "a thread panicked")??);
        Ok(done)
    })?);
    for step in LAST.iter().filter(wanted) {
        done.push(run_in_foreground(step, shared)?);
    }
    report(&done, start.elapsed());
    Ok(done.iter().all(|d| d.end != End::Failed) && done.iter().any(|d| d.end == End::Passed))
}

/// Returns the variables for all steps. Where the library is not compiled yet, it is compiled once: without
/// notes for a later compilation, which cost a fifth of the time, in one unit, because several repeat some of
/// each other's code, which costs a third, and without tables of lines, which cost a tenth.
fn for_all_steps() -> Result<Variables> {
    let incremental = match fs::read_dir(target().join("debug/incremental")) {
        Ok(entries) => entries.collect::<Result<Vec<_>, _>>()?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(e.into()),
    };
    let is_compiled = incremental.iter().any(|e| e.file_name().to_string_lossy().starts_with("gcodec-"));
    // The tasks and all dependencies have their number in `Cargo.toml`: this one would compile them again.
    const ONCE: Variables = &[
        ("CARGO_INCREMENTAL", "0"),
        ("CARGO_PROFILE_DEV_CODEGEN_UNITS", "1"),
        ("CARGO_PROFILE_DEV_DEBUG", "false"),
    ];
    Ok(if is_compiled { &[] } else { ONCE })
}

/// Runs a step whose output goes to the terminal.
fn run_in_foreground(step: &Step, shared: Variables) -> Result<Done> {
    println!("== {} == {} {}", step.name, step.program, step.args.join(" "));
    let done = step.run(shared, Stdio::inherit(), Stdio::inherit())?;
    println!("{}", done.line());
    Ok(done)
}

/// Runs the steps, `at_once` at a time; each step's output is printed when it ends.
fn run_together(at_once: usize, steps: &[&Step], shared: Variables) -> Result<Vec<Done>> {
    let logs = target().join("xtask");
    fs::create_dir_all(&logs)?;
    let (waiting, done) = (Mutex::new(steps.iter()), Mutex::new(Vec::new()));
    let work = || -> Result<(), String> {
        loop {
            let next = waiting.lock().map_err(|e| e.to_string())?.next();
            let Some(step) = next else { return Ok(()) };
            println!("-- started: {}", step.name);
            let one = run_into_log(step, shared, &logs.join(format!("{}.log", step.name)));
            let (one, text) = one.map_err(|e| format!("{}: {e}", step.name))?;
            let mut done = done.lock().map_err(|e| e.to_string())?;
            println!("== {} == {} {}", step.name, step.program, step.args.join(" "));
            print!("{text}");
            println!("{}", one.line());
            done.push(one);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)
    })?;
    Ok(done.into_inner()?)
}

/// Runs a step and returns what it printed.
fn run_into_log(step: &Step, shared: Variables, path: &Path) -> Result<(Done, String)> {
    let log = File::create(path)?;
    let done = step.run(shared, log.try_clone()?.into(), log.into())?;
    Ok((done, String::from_utf8_lossy(&fs::read(path)?).into_owned()))
}

/// Prints a line for each step, the longest first, and the totals.
fn report(done: &[Done], wall: Duration) {
    let mut rows: Vec<&Done> = done.iter().collect();
    rows.sort_by_key(|d| Reverse(d.wall));
    println!("\n| step | result | seconds | CPU seconds |\n|---|---|---:|---:|");
    for d in rows {
        let cpu = d.cpu.map_or_else(|| "?".to_owned(), |seconds| format!("{seconds:.0}"));
        println!("| {} | {} | {:.0} | {cpu} |", d.name, d.end.word(), d.wall.as_secs_f64());
    }
    let cpu: f64 = done.iter().filter_map(|d| d.cpu).sum();
    println!("| all | | {:.0} | {cpu:.0} |\n", wall.as_secs_f64());
    let count = |word: &str| done.iter().filter(|d| d.end.word() == word).count();
    println!("{} passed, {} failed, {} skipped", count("ok"), count("FAILED"), count("skipped"));
}

impl Step {
    fn run(&self, shared: Variables, stdout: Stdio, stderr: Stdio) -> Result<Done> {
        let start = Instant::now();
        if let Some(reason) = missing(self.need, &root()) {
            let end = End::Skipped(Some(reason));
            return Ok(Done { name: self.name, end, wall: start.elapsed(), cpu: None });
        }
        let itself = std::path::absolute(std::env::args_os().next().ok_or("this program has no name")?)?;
        let word = |word: &'static str| if word == TASK { itself.as_os_str() } else { word.as_ref() };
        let mut command = Command::new(word(self.program));
        command.args(self.args.iter().map(|arg| word(arg)));
        command.envs(shared.iter().chain(self.env).copied()).current_dir(root());
        let ended = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn()?.wait4()?;
        let (status, used) = (ended.status, ended.rusage);
        let cpu = Some((used.utime + used.stime).as_secs_f64());
        Ok(Done { name: self.name, end: End::of(status), wall: start.elapsed(), cpu })
    }
}

impl Done {
    fn line(&self) -> String {
        let reason = match &self.end {
            End::Skipped(Some(reason)) => format!(": {reason}"),
            _ => String::new(),
        };
        format!("== {} == {} in {:.1?}{reason}", self.name, self.end.word(), self.wall)
    }
}

impl End {
    fn of(status: ExitStatus) -> Self {
        match status.code() {
            Some(0) => Self::Passed,
            Some(code) if code == i32::from(SKIPPED) => Self::Skipped(None),
            _ => Self::Failed,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Failed => "FAILED",
            Self::Skipped(_) => "skipped",
        }
    }
}

/// Returns why a step cannot run on this machine.
fn missing(need: Need, root: &Path) -> Option<String> {
    match need {
        Need::Nothing => None,
        Need::Python => (!succeeds("python3", &["--version"])).then(|| "python3 is missing".to_owned()),
        Need::Minutes => Some("it compiles for minutes: run `cargo xtask foreign`".to_owned()),
        Need::Miri => (!succeeds("cargo", &["+nightly", "miri", "--version"]))
            .then(|| "Miri is not installed".to_owned()),
        Need::Fuzzer => fuzz::prepare().err(),
        Need::PythonPackages => python::prepare().err(),
        Need::Engines => python::engines_missing(),
        Need::CudaCompiler => cuda::prepare().err(),
        Need::Gradients => (!root.join("../shared/gradients").is_dir())
            .then(|| "the public gradient set is not beside this checkout".to_owned()),
    }
}
