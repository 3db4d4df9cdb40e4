//! Everything a contributor should run before a commit, and what CI runs: one list, here.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::{Result, cuda, fuzz, python, readers, root};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Runs only the steps whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

struct Step {
    name: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// Needed beside Cargo: without it the step is skipped, loudly.
    needs: Need,
}

enum Need {
    Nothing,
    Python,
    /// PyTorch, JAX and the others that the Python package's tests need.
    PythonPackages,
    /// The compiler of the kernels.
    CudaCompiler,
    Gradients,
    /// Rust's standard library for another kind of machine, and programs that link and run what is built for it.
    Target(&'static str, &'static [&'static str]),
    Miri,
    /// zstd for the reference decoder.
    ReaderPackages,
    Kaitai,
    Tshark,
    /// Nightly Rust and cargo-fuzz.
    Fuzzer,
}

const fn step(name: &'static str, program: &'static str, args: &'static [&'static str]) -> Step {
    Step { name, program, args, env: &[], needs: Need::Nothing }
}

/// The tests that say what bytes mean, on another kind of machine.
macro_rules! foreign {
    ($target:literal) => {
        &[
            "test",
            "-p",
            "gcodec",
            "--target",
            $target,
            "--lib",
            "--test",
            "wire",
            "--",
            "--skip",
            "buffers::",
            "--skip",
            "chunking::",
            "--skip",
            "damage::",
        ]
    };
}

const STEPS: &[Step] = &[
    step("format", "cargo", &["fmt", "--all", "--check"]),
    step("lints", "cargo", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    Step {
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        ..step("docs", "cargo", &["doc", "--workspace", "--no-deps", "--quiet"])
    },
    step("tests", "cargo", &["test", "--workspace"]),
    step("benchmarks, once", "cargo", &["bench", "--profile", "dev", "-p", "gcodec", "--", "--test"]),
    step("vectors are what the code makes", "cargo", &["xtask", "vectors", "--check"]),
    step("every requirement has a vector", "cargo", &["xtask", "vectors", "--uncovered"]),
    step("the worked example is what the tool prints", "cargo", &["xtask", "example", "--check"]),
    // About a minute; its long form is `cargo xtask torture`.
    step("torture, quick", "cargo", &["xtask", "torture", "--quick"]),
    Step {
        needs: Need::Python,
        ..step("reference decoder: its own tests", "python3", &["spec/reference/test_decoder.py"])
    },
    Step {
        needs: Need::Python,
        ..step("reference of lgc-conv1d", "python3", &["spec/reference/test_lgc_conv1d.py"])
    },
    Step {
        needs: Need::Python,
        ..step(
            "reference decoder: vectors",
            "python3",
            &["spec/reference/decoder.py", "--vectors", "spec/vectors"],
        )
    },
    Step {
        needs: Need::ReaderPackages,
        ..step("reference decoder: what the CLI writes", "cargo", &["xtask", "reference"])
    },
    Step { needs: Need::Kaitai, ..step("kaitai", "cargo", &["xtask", "kaitai"]) },
    Step { needs: Need::Tshark, ..step("wireshark", "cargo", &["xtask", "wireshark"]) },
    Step { needs: Need::Fuzzer, ..step("fuzz", "cargo", &["xtask", "fuzz", "--seconds", "30"]) },
    Step { needs: Need::PythonPackages, ..step("python package", "cargo", &["xtask", "python"]) },
    // Few machines have what these three need; the format's code is held to fixed widths and byte order by `tests/properties/layering.rs`.
    Step {
        needs: Need::Target("i686-unknown-linux-gnu", &["cc"]),
        ..step("a 32-bit machine", "cargo", foreign!("i686-unknown-linux-gnu"))
    },
    Step {
        needs: Need::Target("s390x-unknown-linux-gnu", &["s390x-linux-gnu-gcc", "qemu-s390x"]),
        env: &[
            ("CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_LINKER", "s390x-linux-gnu-gcc"),
            ("CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_RUNNER", "qemu-s390x -L /usr/s390x-linux-gnu"),
        ],
        ..step("a big-endian machine", "cargo", foreign!("s390x-unknown-linux-gnu"))
    },
    Step {
        needs: Need::Miri,
        env: &[("MIRIFLAGS", "-Zmiri-disable-isolation")],
        ..step(
            "Miri",
            "cargo",
            // What calls zstd, which is C, is beyond it.
            &[
                "+nightly", "miri", "test", "-p", "gcodec", "--lib", "--", "arch::", "bits::", "codes::",
                "block::",
            ],
        )
    },
    step("licences and duplicates of dependencies", "cargo", &["xtask", "dependencies"]),
    Step {
        needs: Need::CudaCompiler,
        ..step("cuda kernels compile", "cargo", &["xtask", "cuda", "--check"])
    },
    Step { needs: Need::Gradients, ..step("sizes on real gradients", "cargo", &["xtask", "measure"]) },
];

/// Runs the steps one after the other, all of them even if one fails; true if none failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root();
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), Vec::new());
    let wanted = |s: &&Step| args.only.as_ref().is_none_or(|only| s.name.contains(only.as_str()));
    for step in STEPS.iter().filter(wanted) {
        if let Some(why) = missing(&step.needs, &root) {
            println!("== {} == SKIPPED: {why}", step.name);
            skipped.push(step.name);
            continue;
        }
        println!("== {} == {} {}", step.name, step.program, step.args.join(" "));
        let start = Instant::now();
        let status = Command::new(step.program)
            .args(step.args)
            .envs(step.env.iter().copied())
            .current_dir(&root)
            .status()?;
        println!(
            "== {} == {} in {:.1?}",
            step.name,
            if status.success() { "ok" } else { "FAILED" },
            start.elapsed()
        );
        if status.success() {
            passed += 1;
        } else {
            failed.push(step.name);
        }
    }
    for name in &skipped {
        println!("skipped: {name}");
    }
    for name in &failed {
        println!("failed: {name}");
    }
    println!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len());
    Ok(failed.is_empty() && passed > 0)
}

fn missing(need: &Need, root: &Path) -> Option<String> {
    match need {
        Need::Nothing => None,
        Need::Python => {
            let found = Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success());
            (!found).then(|| "python3 is not there".to_owned())
        }
        Need::Target(target, programs) => {
            let output =
                Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
            let folder = output.ok().and_then(|o| String::from_utf8(o.stdout).ok());
            if !folder.is_some_and(|f| Path::new(f.trim()).is_dir()) {
                return Some(format!("Rust's standard library for {target} is not installed"));
            }
            let found = |program: &&str| Command::new(program).arg("--version").output().is_ok();
            programs.iter().find(|p| !found(p)).map(|program| format!("{program} is not there"))
        }
        Need::Miri => {
            let found = Command::new("cargo").args(["+nightly", "miri", "--version"]).output();
            (!found.is_ok_and(|o| o.status.success())).then(|| "Miri is not installed".to_owned())
        }
        Need::Fuzzer => fuzz::prepare().err(),
        Need::PythonPackages => python::prepare().err(),
        Need::ReaderPackages => readers::python().err(),
        Need::Kaitai => readers::no_kaitai(),
        Need::Tshark => readers::no_wireshark(),
        Need::CudaCompiler => cuda::prepare().err(),
        Need::Gradients => {
            let found = root.join("../shared/gradients").is_dir();
            (!found).then(|| "the public gradient set is not beside this checkout".to_owned())
        }
    }
}
