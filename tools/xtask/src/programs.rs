//! The workspace's own programs, built as the tasks run them.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::{Result, root};

/// `gcodec`.
pub(crate) fn cli() -> Result<PathBuf> {
    program("gcodec-cli", "gcodec")
}

/// The program `name` of a package.
pub(crate) fn program(package: &str, name: &str) -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--package", package]);
    match build.current_dir(root()).status()?.success() {
        true => Ok(target().join("debug").join(name)),
        false => Err(format!("failed: {build:?}").into()),
    }
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
