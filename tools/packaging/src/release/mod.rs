//! Checks before a release, as one command. It uploads nothing.

mod crates;
mod wheel;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::programs::{run, succeeds};
use crate::{Result, dependencies, links, root, web};

/// Options of the task.
#[derive(clap::Args)]
pub struct Args {
    /// Checks, and uploads nothing: the only thing that this task does.
    #[arg(long, required = true)]
    check: bool,
    /// Builds the wheel without optimisation: faster, but not the wheel to upload.
    #[arg(long)]
    debug: bool,
    /// Runs only the checks whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// The version of all packages of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Result of a check: what was found, or why it was skipped.
enum Found {
    Fine(String),
    Skipped(String),
}

type Check = fn(&Args) -> Result<Found>;

const CHECKS: &[(&str, Check)] = &[
    ("tree: everything is committed", |_| tree()),
    ("versions agree", |_| versions()),
    ("changelog has an entry", |_| changelog()),
    ("links of the pages", |_| passed(links::check()?, "a link leads nowhere")),
    ("licences of dependencies", |_| passed(dependencies::run()?, "a licence or a version is wrong")),
    ("licences in the crates", |_| crates::licences()),
    ("cargo binstall metadata", |_| crates::binstall()),
    ("C header", |_| header()),
    ("documentation of the crates", |_| crates::documentation()),
    ("cargo publish, dry run", |_| crates::publish()),
    ("cargo semver-checks", |_| crates::semver()),
    ("page of inspect, package for npm", |_| page()),
    ("wheel and sdist", wheel::check),
];

/// Runs all checks, also after a failure; true if none failed and at least one passed.
pub fn check(args: &Args) -> Result<bool> {
    debug_assert!(args.check);
    let mut rows: Vec<(&str, &str, String, Duration)> = Vec::new();
    let wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    for (name, check) in CHECKS.iter().filter(|(name, _)| wanted(name)) {
        println!("== {name}");
        let start = Instant::now();
        let (word, text) = match check(args) {
            Ok(Found::Fine(text)) => ("ok", text),
            Ok(Found::Skipped(text)) => ("SKIPPED", text),
            Err(e) => ("FAILED", e.to_string()),
        };
        rows.push((name, word, text, start.elapsed()));
    }
    println!();
    for (name, word, text, time) in &rows {
        println!("{word:<8}{:>5.0} s  {name}: {text}", time.as_secs_f64());
    }
    let count = |word: &str| rows.iter().filter(|row| row.1 == word).count();
    println!("{} ok, {} failed, {} skipped", count("ok"), count("FAILED"), count("SKIPPED"));
    Ok(count("FAILED") == 0 && count("ok") > 0)
}

fn fine(text: impl Into<String>) -> Result<Found> {
    Ok(Found::Fine(text.into()))
}

fn passed(passed: bool, what: &str) -> Result<Found> {
    if passed { fine("none is wrong") } else { Err(what.into()) }
}

fn page() -> Result<Found> {
    match web::Compiler::find() {
        Err(missing) => Ok(Found::Skipped(missing)),
        Ok(compiler) => fine(format!("both are in {}", web::build(compiler)?.display())),
    }
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}").into())
}

fn tree() -> Result<Found> {
    let output = Command::new("git").args(["status", "--porcelain"]).current_dir(root()).output()?;
    let changed = String::from_utf8(output.stdout)?;
    match output.status.success() && changed.is_empty() {
        true => fine("clean"),
        false => Err(format!("{} files differ from the commit", changed.lines().count()).into()),
    }
}

/// Every place that names the version, and the format's version in its text and in the library.
fn versions() -> Result<Found> {
    let spec = read("spec/gcodec.md")?;
    let format = spec.lines().next().and_then(|title| title.rsplit("version ").next()).unwrap_or_default();
    let (major, minor) = format.split_once('.').ok_or("spec/gcodec.md: its title has no version")?;
    let header = read("src/frame/header.rs")?;
    for (name, number) in [("MAJOR", major), ("MINOR", minor)] {
        if !header.contains(&format!("pub const VERSION_{name}: u8 = {number};")) {
            return Err(format!("the library does not write version {format}, as the spec says").into());
        }
    }
    if !read("README.md")?.contains(&format!("Version {VERSION}.")) {
        return Err(format!("README.md does not say `Version {VERSION}.`").into());
    }
    if !read("adapters/python/pyproject.toml")?.contains("dynamic = [\"version\"]") {
        return Err("pyproject.toml has a version of its own".into());
    }
    let mut manifests = 0;
    for path in crates::manifests()? {
        let text = read(&path)?;
        let package = text.split("[package]").nth(1).unwrap_or_default();
        if !package.split("\n[").next().unwrap_or_default().contains("version.workspace = true") {
            return Err(format!("{path} has a version of its own").into());
        }
        let paths = text.lines().filter(|line| line.contains("path = \"") && line.contains("version = \""));
        if let Some(line) = paths.into_iter().find(|line| !line.contains(&format!("version = \"{VERSION}\"")))
        {
            return Err(format!("{path}: not version {VERSION}: {line}").into());
        }
        manifests += 1;
    }
    fine(format!("{VERSION} in {manifests} packages, format {format}"))
}

/// The changelog has entries under this version, or under `Unreleased`, which the release renames.
fn changelog() -> Result<Found> {
    let text = read("CHANGELOG.md")?;
    let entries = |title: &str| {
        let part = text.split(&format!("\n## {title}\n")).nth(1).unwrap_or_default();
        part.split("\n## ").next().unwrap_or_default().lines().filter(|line| line.starts_with("- ")).count()
    };
    match (entries(VERSION), entries("Unreleased")) {
        (0, 0) => Err(format!("no entries under {VERSION} or Unreleased").into()),
        (released, 0) => fine(format!("{released} entries under {VERSION}")),
        (_, waiting) => {
            fine(format!("{waiting} entries under Unreleased, to be renamed with the next version"))
        }
    }
}

fn header() -> Result<Found> {
    let mut test = Command::new("cargo");
    test.args(["test", "--quiet", "--workspace", "--all-features", "--test", "header"]);
    run(test.current_dir(root()))?;
    fine("made from its sources")
}

/// Whether a subcommand of Cargo is installed.
fn has_subcommand(name: &str) -> bool {
    succeeds("cargo", &[name, "--version"])
}

/// Names of the licence files, which every package contains.
const LICENCES: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT"];

/// Checks that a package's list of files has both licences. `files`: paths, each on a line.
fn has_licences(package: &str, files: &str) -> Result<()> {
    let missing = LICENCES.iter().find(|name| {
        !files.lines().any(|line| Path::new(line.trim()).file_name().is_some_and(|file| file == **name))
    });
    missing.map_or(Ok(()), |name| Err(format!("{package} lacks {name}").into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_entries_are_found() {
        for check in [versions, changelog] {
            assert!(matches!(check().unwrap(), Found::Fine(_)));
        }
    }

    #[test]
    fn a_missing_licence_is_named() {
        assert!(has_licences("p", "a/LICENSE-MIT\nb/LICENSE-APACHE\n").is_ok());
        let error = has_licences("p", "a/LICENSE-MIT\nb/LICENSE-APACHE.txt\n").unwrap_err();
        assert_eq!(error.to_string(), "p lacks LICENSE-APACHE");
    }
}
