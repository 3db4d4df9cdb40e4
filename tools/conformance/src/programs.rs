//! The command line that this program tests, built with the profile that built this program.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::{Result, root};

/// Builds `gcodec` and returns its path.
pub(crate) fn gcodec() -> Result<PathBuf> {
    let here = env::current_exe()?;
    let profile = here.parent().and_then(|folder| folder.file_name()).and_then(|name| name.to_str());
    let profile = match profile {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let mut build = Command::new("cargo");
    // `--workspace` rather than `--package`: with the features of the whole workspace, so that no dependency
    // is compiled a second time.
    build.args(["build", "--quiet", "--workspace", "--all-features", "--bin", "gcodec"]);
    build.args(["--profile", profile]);
    match build.current_dir(root()).status()?.success() {
        true => Ok(here.with_file_name("gcodec")),
        false => Err(format!("failed: {build:?}").into()),
    }
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
