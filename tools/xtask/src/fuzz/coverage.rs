//! The share of the decode paths that the targets' inputs reach, by `cargo fuzz coverage`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Target, folder, triple};
use gcodec_packaging::{Result, root};

/// The library's modules that decode.
const MODULES: [&str; 6] = ["bits", "codes", "block", "frame", "stream", "file"];

/// Prints for each target how much of the modules its inputs reach, and for every file how much all of them
/// reach.
pub(super) fn run(targets: &[&Target]) -> Result<()> {
    let bin = tools()?;
    let (mut profiles, mut binaries) = (Vec::new(), Vec::new());
    for target in targets {
        let mut replay = Command::new("cargo");
        replay
            .args(["+nightly", "fuzz", "coverage", target.name])
            .arg(folder().join("corpus").join(target.name));
        let regressions = folder().join("regressions").join(target.name);
        replay.args(Some(&regressions).filter(|r| r.is_dir())).env_remove("CARGO_TARGET_DIR");
        output(replay.current_dir(root()))?;
        profiles.push(folder().join("coverage").join(target.name).join("coverage.profdata"));
        let triple = triple()?;
        let build = root().join("target").join(&triple).join("coverage").join(&triple);
        binaries.push(build.join("release").join(target.name));
    }
    let all = folder().join("coverage/all.profdata");
    output(
        Command::new(bin.join("llvm-profdata")).args(["merge", "--sparse", "-o"]).arg(&all).args(&profiles),
    )?;
    for (target, (profile, binary)) in targets.iter().zip(profiles.iter().zip(&binaries)) {
        let table = report(&bin, profile, &[binary])?;
        let mut lines = table.lines();
        let (header, total) = (lines.next().unwrap_or(""), lines.next_back().unwrap_or(""));
        println!("{}\n{header}\n{total}\n", target.name);
    }
    println!("all targets\n{}", report(&bin, &all, &binaries.iter().collect::<Vec<_>>())?);
    Ok(())
}

/// Returns the folder of nightly Rust's LLVM tools.
fn tools() -> Result<PathBuf> {
    let sysroot = output(Command::new("rustc").args(["+nightly", "--print", "sysroot"]))?;
    let bin = Path::new(sysroot.trim()).join("lib/rustlib").join(triple()?).join("bin");
    match bin.join("llvm-cov").exists() {
        true => Ok(bin),
        false => Err("llvm-cov is missing: rustup component add llvm-tools --toolchain nightly".into()),
    }
}

/// Returns the table of files, with lines and regions reached, of the decode paths.
fn report(bin: &Path, profile: &Path, binaries: &[&PathBuf]) -> Result<String> {
    let mut report = Command::new(bin.join("llvm-cov"));
    report.args(["report", "--show-functions=false", "--show-branch-summary=false", "--instr-profile"]);
    report.arg(profile).arg(binaries[0]);
    for binary in &binaries[1..] {
        report.arg("--object").arg(binary);
    }
    output(report.arg("--sources").args(MODULES.map(|module| root().join("src").join(module))))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("failed: {command:?}\n{}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}
