//! The conformance program, and the processor time of running programs.

use std::fs;
use std::process::{Child, Command, ExitCode};

use gcodec_packaging::programs::build;
use gcodec_packaging::{Result, root};

/// Arguments that are passed on to the conformance program.
#[derive(clap::Args)]
pub(crate) struct Forwarded {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<String>,
}

impl Forwarded {
    /// Runs a command of the conformance program and returns its exit code.
    pub(crate) fn run(&self, command: &str) -> Result<ExitCode> {
        self.start("gcodec-conformance", &[command])
    }

    /// Runs a program of the workspace, with these arguments first, and returns its exit code.
    pub(crate) fn start(&self, program: &str, first: &[&str]) -> Result<ExitCode> {
        let program = build(program)?;
        let status = Command::new(program).args(first).args(&self.args).current_dir(root()).status()?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
    }
}

/// Builds and runs `tools/conformance`; true if its command passed.
pub(crate) fn conformance(args: &[&str]) -> Result<bool> {
    let program = build("gcodec-conformance")?;
    Ok(Command::new(program).args(args).current_dir(root()).status()?.success())
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
