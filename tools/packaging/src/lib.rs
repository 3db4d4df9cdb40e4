//! What leaves the tree: the Python wheel, the C library, the site, and the checks before a release.
//! `cargo xtask` calls these functions; each prints what it does.

pub mod c;
pub mod dependencies;
pub mod links;
pub mod peers;
pub mod programs;
pub mod python;
pub mod release;
pub mod site;
pub mod web;

use std::path::{Path, PathBuf};

/// Any error: a task prints it and stops.
pub type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Returns the project's folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}
