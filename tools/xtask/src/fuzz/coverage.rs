//! How much of the decode paths the targets' inputs reach, by rustc's own instrumentation and LLVM's tools.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::slice::from_ref;

use serde_json::Value;

use super::{Target, folder};
use crate::{Result, root};

/// What decodes.
const MODULES: [&str; 6] = ["bits", "codes", "block", "frame", "stream", "file"];

/// Lines, regions: all of them, and those reached.
type Counts = [[u64; 2]; 2];

pub(super) fn run(targets: &[&Target]) -> Result<()> {
    let tool = |variable: &str, name: &str| env::var(variable).unwrap_or_else(|_| name.to_owned());
    let cov = tool("LLVM_COV", "llvm-cov-22");
    let profdata = tool("LLVM_PROFDATA", "llvm-profdata-22");
    for tool in [&cov, &profdata] {
        let found = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
        found.map_err(|e| format!("{tool}, of the version of nightly Rust's LLVM, is needed: {e}"))?;
    }
    let place = folder().join("target/coverage");
    let mut build = Command::new("cargo");
    build.args([
        "+nightly",
        "build",
        "--quiet",
        "--release",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target-dir",
    ]);
    build.arg(&place).env("RUSTFLAGS", "--cfg fuzzing -Cinstrument-coverage -Copt-level=1");
    build.args(targets.iter().flat_map(|t| ["--bin", t.name]));
    run_quietly(build.current_dir(root()).env_remove("CARGO_TARGET_DIR"))?;
    let profiles = place.join("profiles");
    fs::create_dir_all(&profiles)?;
    println!("| target | lines of the decode paths | regions |\n|---|---|---|");
    let mut all = Vec::new();
    for target in targets {
        let raw = profiles.join(format!("{}.profraw", target.name));
        let binary = place.join("release").join(target.name);
        let mut replay = Command::new(&binary);
        replay.args(["-runs=0", "-rss_limit_mb=0"]).arg(folder().join("corpus").join(target.name));
        let regressions = folder().join("regressions").join(target.name);
        replay.args(Some(&regressions).filter(|r| r.is_dir())).env("LLVM_PROFILE_FILE", &raw);
        run_quietly(&mut replay)?;
        let counts = counts(&cov, &merge(&profdata, from_ref(&raw), target.name)?, from_ref(&binary))?;
        let sum = counts.values().fold([[0; 2]; 2], add);
        println!("| {} | {} | {} |", target.name, share(sum[0]), share(sum[1]));
        all.push((raw, binary));
    }
    let (raws, binaries): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let counts = counts(&cov, &merge(&profdata, &raws, "all")?, &binaries)?;
    println!("\n| file | lines reached by any | regions |\n|---|---|---|");
    for (file, c) in &counts {
        println!("| {file} | {} | {} |", share(c[0]), share(c[1]));
    }
    println!("\n| module | lines reached by any | regions |\n|---|---|---|");
    for module in MODULES {
        let of = counts.iter().filter(|(file, _)| file.starts_with(&format!("src/{module}/")));
        let sum = of.map(|(_, c)| c).fold([[0; 2]; 2], add);
        println!("| `src/{module}` | {} | {} |", share(sum[0]), share(sum[1]));
    }
    Ok(())
}

fn add(sum: Counts, more: &Counts) -> Counts {
    std::array::from_fn(|i| std::array::from_fn(|j| sum[i][j] + more[i][j]))
}

fn share([all, reached]: [u64; 2]) -> String {
    format!("{reached} of {all} ({:.1} %)", 100.0 * reached as f64 / all.max(1) as f64)
}

fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("failed: {command:?}\n{}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn merge(profdata: &str, raws: &[PathBuf], name: &str) -> Result<PathBuf> {
    let merged = folder().join("target/coverage/profiles").join(format!("{name}.profdata"));
    run_quietly(Command::new(profdata).args(["merge", "--sparse", "-o"]).arg(&merged).args(raws))?;
    Ok(merged)
}

/// Lines and regions of each file of the decode paths.
fn counts(cov: &str, profile: &PathBuf, binaries: &[PathBuf]) -> Result<BTreeMap<String, Counts>> {
    let mut export = Command::new(cov);
    export.args(["export", "--summary-only", "--instr-profile"]).arg(profile).arg(&binaries[0]);
    for binary in &binaries[1..] {
        export.arg("--object").arg(binary);
    }
    let output = export.output()?;
    if !output.status.success() {
        return Err(format!("{cov}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let root = fs::canonicalize(root())?;
    let mut out = BTreeMap::new();
    for file in report["data"][0]["files"].as_array().into_iter().flatten() {
        let name = file["filename"].as_str().unwrap_or_default();
        let Ok(inside) = std::path::Path::new(name).strip_prefix(&root) else { continue };
        let inside = inside.to_string_lossy().into_owned();
        if MODULES.iter().any(|m| inside.starts_with(&format!("src/{m}/"))) {
            let of =
                |what: &str| ["count", "covered"].map(|n| file["summary"][what][n].as_u64().unwrap_or(0));
            out.insert(inside, [of("lines"), of("regions")]);
        }
    }
    match out.is_empty() {
        true => Err("nothing of the decode paths was met".into()),
        false => Ok(out),
    }
}
