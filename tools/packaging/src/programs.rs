//! Programs that the tasks run: those of the workspace, and those of the machine.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::{Result, root};

/// Exit code of a task whose tools are missing on this machine.
pub const SKIPPED: u8 = 77;

/// Builds a program of the workspace and returns its path.
pub fn build(name: &str) -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    // `--workspace` rather than `--package`: with the features of the whole workspace, so that no dependency
    // is compiled a second time.
    build.args(["build", "--quiet", "--workspace", "--bin", name]);
    run(build.current_dir(root()))?;
    Ok(target().join("debug").join(name))
}

/// Runs a command; an error if it fails.
pub fn run(command: &mut Command) -> Result<()> {
    match command.status()?.success() {
        true => Ok(()),
        false => Err(format!("failed: {command:?}").into()),
    }
}

/// Whether a program is there, and succeeds; its output is not shown.
pub fn succeeds(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
}

/// Returns the folder where cargo builds.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
