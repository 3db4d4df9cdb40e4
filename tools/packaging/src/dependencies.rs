//! Checks the licences of all dependencies, and that nothing is shipped in two versions. Cargo fetches the
//! packages of other systems, which no build here needs, once per machine.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use spdx::{Expression, ParseMode};

use crate::Result;

/// Licences that allow use, change and redistribution in any product, and require only a notice.
const PERMISSIVE: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    // Of the root certificates that TLS trusts: data.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Licences that tools, which are not shipped, may also have.
const IN_TOOLS: &[&str] = &["MPL-2.0"];

/// Packages that a user builds or installs; the rest of the workspace are tools, studies and examples.
const SHIPPED: &[&str] = &[
    "gcodec",
    "gcodec-c",
    "gcodec-cli",
    "gcodec-cuda",
    "gcodec-latent",
    "gcodec-python",
    "gcodec-store",
    "gcodec-web",
];

/// Packages in two versions: `object_store` takes one; its `crc-fast`, `ratatui` or `ring` the other. Without
/// `ring`, TLS would take aws-lc, a C library that takes minutes to compile.
const TWICE: &[&str] = &["crypto-common", "digest", "getrandom", "itertools", "windows-sys"];

/// A third-party package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
}

/// Prints the licences and checks licences and versions; true if none is wrong.
pub fn run() -> Result<bool> {
    let (all, shipped) = (everything()?, shipped()?);
    let mut wrong = Vec::new();
    let mut licences = BTreeMap::<&str, usize>::new();
    for package in &all {
        *licences.entry(&package.licence).or_default() += 1;
        let in_tools = if shipped.contains(package) { &[] } else { IN_TOOLS };
        if !allows(&package.licence, &[PERMISSIVE, in_tools].concat()) {
            wrong.push(format!("{} {}: its licence is `{}`", package.name, package.version, package.licence));
        }
    }
    let mut versions = BTreeMap::<&str, Vec<&str>>::new();
    shipped.iter().for_each(|p| versions.entry(&p.name).or_default().push(&p.version));
    for (name, versions) in
        versions.iter().filter(|(name, versions)| versions.len() > 1 && !TWICE.contains(name))
    {
        wrong.push(format!("{name} is shipped in several versions: {}", versions.join(", ")));
    }
    for (licence, count) in &licences {
        println!("{count:>5}  {licence}");
    }
    println!("{} third-party packages, {} of them shipped", all.len(), shipped.len());
    wrong.iter().for_each(|line| println!("{line}"));
    Ok(wrong.is_empty() && !shipped.is_empty())
}

/// Whether a licence expression can be met by the named licences.
fn allows(expression: &str, names: &[&str]) -> bool {
    let met = |e: Expression| e.evaluate(|r| r.license.id().is_some_and(|id| names.contains(&id.name)));
    Expression::parse_mode(expression, ParseMode::LAX).is_ok_and(met)
}

/// Returns all packages that the workspace is built or tested with, on any system.
fn everything() -> Result<BTreeSet<Package>> {
    tree(&["--workspace", "--all-features", "--edges", "normal,build,dev"])
}

/// Returns the packages in the shipped ones, on any system, without those that only build or test them.
fn shipped() -> Result<BTreeSet<Package>> {
    let packages = SHIPPED.iter().flat_map(|name| ["--package", name]);
    tree(&packages.chain(["--all-features", "--edges", "normal,no-proc-macro"]).collect::<Vec<_>>())
}

fn tree(args: &[&str]) -> Result<BTreeSet<Package>> {
    let output = Command::new("cargo")
        .args(["tree", "--locked", "--target", "all", "--prefix", "none"])
        .args(["--format", "{p}|{l}|"])
        .args(args)
        .current_dir(crate::root())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let text = String::from_utf8(output.stdout)?;
    // A workspace package has its folder after its version.
    let others = text.lines().filter(|line| !line.is_empty() && !line.contains(" (/"));
    let package = |line: &str| {
        let (package, rest) = line.split_once('|')?;
        let (licence, _) = rest.split_once('|')?;
        let mut words = package.split(' ');
        let (name, version) = (words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned());
        Some(Package { name, version, licence: licence.to_owned() })
    };
    others.map(|line| package(line).ok_or_else(|| format!("not a package: {line}").into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_or_not() {
        for fine in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "Apache-2.0 WITH LLVM-exception OR GPL-2.0"] {
            assert!(allows(fine, PERMISSIVE), "{fine}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "MPL-2.0", ""] {
            assert!(!allows(bad, PERMISSIVE), "{bad}");
        }
    }

    #[test]
    fn what_only_builds_or_tests_is_not_shipped() {
        let (all, shipped) = (everything().unwrap(), shipped().unwrap());
        let has = |packages: &BTreeSet<Package>, name: &str| packages.iter().any(|p| p.name == name);
        for name in ["zstd", "clap", "pyo3"] {
            assert!(has(&shipped, name) && has(&all, name), "{name}");
        }
        for name in ["proptest", "plotters", "clap_derive"] {
            assert!(!has(&shipped, name) && has(&all, name), "{name}");
        }
        assert!(shipped.is_subset(&all));
    }
}
