//! The crates that are published.

use std::process::Command;

use super::{Found, fine, has_licences, has_subcommand, read};
use crate::programs::run;
use crate::{Result, root};

/// Names and folders, in the order of their dependencies.
const PUBLISHED: &[(&str, &str)] = &[
    ("gcodec", ""),
    ("gcodec-latent", "latent/"),
    ("gcodec-store", "store/"),
    ("gcodec-cuda", "adapters/cuda/"),
    ("gcodec-cli", "tools/cli/"),
];

/// The archive of the command line that `cargo binstall` downloads.
const ARCHIVE: &str = "gcodec-{ target }.tar.gz";

fn cargo(args: &[&str]) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args(args).current_dir(root());
    cargo
}

fn packages() -> impl Iterator<Item = &'static str> {
    PUBLISHED.iter().flat_map(|(name, _)| ["--package", name])
}

/// Returns the manifests of the workspace's packages.
pub(super) fn manifests() -> Result<Vec<String>> {
    let output =
        Command::new("git").args(["ls-files", "*Cargo.toml", "Cargo.toml"]).current_dir(root()).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter(|path| !path.starts_with("fuzz/")).map(str::to_owned).collect())
}

/// Every published crate contains the licences, and every other one says that it is not published.
pub(super) fn licences() -> Result<Found> {
    for path in manifests()? {
        let folder = path.trim_end_matches("Cargo.toml");
        let is_listed = PUBLISHED.iter().any(|(_, listed)| *listed == folder);
        if read(&path)?.contains("publish = false") == is_listed {
            return Err(format!("{path}: `publish = false` and the list in crates.rs disagree").into());
        }
    }
    for (name, _) in PUBLISHED {
        let output = cargo(&["package", "--list", "--allow-dirty", "--package", name]).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        has_licences(name, &String::from_utf8(output.stdout)?)?;
    }
    fine(format!("{} crates have both", PUBLISHED.len()))
}

/// The command line's archive has the name that docs/releasing.md gives it, and the program every feature.
pub(super) fn binstall() -> Result<Found> {
    let manifest = read("tools/cli/Cargo.toml")?;
    let metadata = manifest.split("[package.metadata.binstall]").nth(1).ok_or("tools/cli has none")?;
    let metadata = metadata.split("\n[").next().unwrap_or_default();
    if !metadata.contains(ARCHIVE) || !metadata.contains("pkg-fmt = \"tgz\"") {
        return Err(format!("tools/cli/Cargo.toml: the archive is not {ARCHIVE}").into());
    }
    let page = read("docs/releasing.md")?;
    let example = ARCHIVE.replace("{ target }", "$TARGET");
    if !page.contains(&example) {
        return Err(format!("docs/releasing.md does not make {example}").into());
    }
    if !page.contains("cargo build --release -p gcodec-cli --features full ") {
        return Err("docs/releasing.md builds the command line without its features".into());
    }
    match read("Cargo.toml")?.contains("\nrepository = ") {
        true => fine(ARCHIVE),
        false => fine(format!("{ARCHIVE}; it works once `repository` is set in Cargo.toml")),
    }
}

/// The documentation of the published crates, as docs.rs builds it, without warnings.
pub(super) fn documentation() -> Result<Found> {
    // The same command as in `cargo xtask test`: nothing is built a second time.
    run(cargo(&["xtask", "test", "--only", "docs"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    fine("no warnings")
}

/// docs/releasing.md publishes every crate, in the order of their dependencies.
fn page_names_all() -> Result<()> {
    let all: Vec<String> = PUBLISHED.iter().map(|(name, _)| format!("-p {name}")).collect();
    let command = format!("cargo publish {}\n", all.join(" "));
    match read("docs/releasing.md")?.contains(&command) {
        true => Ok(()),
        false => Err(format!("docs/releasing.md does not say `{}`", command.trim_end()).into()),
    }
}

/// Packs the crates, and compiles each from its package alone.
pub(super) fn publish() -> Result<Found> {
    page_names_all()?;
    run(cargo(&["publish", "--quiet", "--dry-run", "--allow-dirty", "--all-features"]).args(packages()))?;
    fine(format!("{} crates compile from their packages", PUBLISHED.len()))
}

/// The library's interface, against the last tagged version.
pub(super) fn semver() -> Result<Found> {
    if !has_subcommand("semver-checks") {
        return Ok(Found::Skipped("cargo-semver-checks is not installed".into()));
    }
    let output = Command::new("git")
        .args(["describe", "--tags", "--abbrev=0", "--match", "v*"])
        .current_dir(root())
        .output()?;
    if !output.status.success() {
        return Ok(Found::Skipped("no tag v* to compare with".into()));
    }
    let tag = String::from_utf8(output.stdout)?.trim().to_owned();
    run(&mut cargo(&["semver-checks", "--package", "gcodec", "--baseline-rev", &tag]))?;
    fine(format!("compatible with {tag}, as its version says"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_publishes_every_crate() {
        page_names_all().unwrap();
    }
}
