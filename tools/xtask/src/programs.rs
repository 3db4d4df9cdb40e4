//! The workspace's own programs, built and run by the tasks.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};

use crate::{Result, root};

/// Exit code of a conformance command whose tools are missing on this machine.
pub(crate) const SKIPPED: i32 = 77;

/// Arguments that are passed on to the conformance program.
#[derive(clap::Args)]
pub(crate) struct Forwarded {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<String>,
}

impl Forwarded {
    /// Runs a command of the conformance program and returns its exit code.
    pub(crate) fn run(&self, command: &str) -> Result<ExitCode> {
        let program = build("gcodec-conformance")?;
        let status = Command::new(program).arg(command).args(&self.args).current_dir(root()).status()?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
    }
}

/// Builds and runs `tools/conformance`; true if its command passed.
pub(crate) fn conformance(args: &[&str]) -> Result<bool> {
    let program = build("gcodec-conformance")?;
    Ok(Command::new(program).args(args).current_dir(root()).status()?.success())
}

/// Builds a program of the workspace and returns its path.
pub(crate) fn build(name: &str) -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    // `--workspace` rather than `--package`: with the features of the whole workspace, so that no dependency
    // is compiled a second time.
    build.args(["build", "--quiet", "--workspace", "--bin", name]);
    match build.current_dir(root()).status()?.success() {
        true => Ok(target().join("debug").join(name)),
        false => Err(format!("failed: {build:?}").into()),
    }
}

/// Runs a command; an error if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    match command.status()?.success() {
        true => Ok(()),
        false => Err(format!("failed: {command:?}").into()),
    }
}

/// Whether a program is there, and succeeds without showing its output.
pub(crate) fn succeeds(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
}

/// Returns the seconds that a running process and its ended children have computed, as Linux counts them in
/// hundredths.
pub(crate) fn cpu_seconds(child: &Child) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    // The name stands in brackets. After it, the state is field 3; user and system time are fields 14 and 15,
    // those of ended children 16 and 17.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: Option<u64> = (11..15).map(|i| fields.get(i)?.parse::<u64>().ok()).sum();
    Some(ticks? as f64 / 100.0)
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
