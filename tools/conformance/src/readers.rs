//! Other readers of the format: the Kaitai Struct description, file(1) and the Wireshark dissector.
//!
//! The packages that they and the reference decoder need are installed once per machine, outside the tree
//! (`$GCODEC_READERS`, or `~/.cache/gcodec/readers`), and again when a version here changes.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{gcodec, target};
use crate::{Outcome, Result, root};

/// Packages from the Python package index.
const PIP: &[&str] = &["backports.zstd==1.8.0", "kaitaistruct==0.11"];
/// Packages from npm.
const NPM: &[&str] = &["kaitai-struct-compiler@0.11.0", "js-yaml@4.1.0"];

/// Compiles spec/gcodec.ksy, parses every vector with it, and tests spec/gcodec.magic with file(1).
pub(crate) fn kaitai() -> Result<Outcome> {
    let (python, modules) = match python().and_then(|python| Ok((python, node()?))) {
        Ok(both) => both,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let (root, place) = (root(), fresh("kaitai")?);
    let compile = root.join("tools/conformance/kaitai/compile.js");
    let source = root.join("spec/gcodec.ksy");
    run(Command::new("node").arg(compile).arg(source).arg(&place).env("NODE_PATH", modules))?;
    show(Command::new(python).arg(root.join("tools/conformance/kaitai/check.py")).arg(place))
}

/// Tests the Wireshark dissector with tshark.
pub(crate) fn wireshark() -> Result<Outcome> {
    if !starts("tshark") {
        return Ok(Outcome::Skipped("tshark is missing (apt-get install tshark)".into()));
    }
    let python = match python() {
        Ok(python) => python,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let test = root().join("tools/conformance/wireshark/test_dissector.py");
    show(Command::new(python).arg(test).arg(gcodec()?))
}

/// Returns a Python that has the packages, or the reason why it cannot be made.
pub(crate) fn python() -> Result<PathBuf, String> {
    if !starts("python3") {
        return Err("python3 is missing".into());
    }
    let place = place()?.join("python");
    let python = place.join("bin/python");
    install(&place, PIP, || {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "2"];
        run(Command::new(&python).args(pip).args(PIP))
    })
    .map_err(|e| format!("{} cannot be installed: {e}", PIP.join(" and ")))?;
    Ok(python)
}

/// Returns the `node_modules` folder that has the packages, or the reason why it cannot be made.
fn node() -> Result<PathBuf, String> {
    if !starts("node") || !starts("npm") {
        return Err("node or npm is missing".into());
    }
    let place = place()?.join("node");
    install(&place, NPM, || {
        fs::create_dir_all(&place)?;
        let npm = ["install", "--silent", "--no-audit", "--no-fund", "--no-save", "--prefix"];
        run(Command::new("npm").args(npm).arg(&place).args(NPM))
    })
    .map_err(|e| format!("{} cannot be installed: {e}", NPM.join(" and ")))?;
    Ok(place.join("node_modules"))
}

/// Whether a program is installed.
fn starts(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// Returns an empty folder below cargo's target folder.
pub(crate) fn fresh(name: &str) -> Result<PathBuf> {
    let place = target().join(name);
    // Files of an earlier run must not be tested.
    match fs::remove_dir_all(&place) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    fs::create_dir_all(&place)?;
    Ok(place)
}

/// Runs a command that prints its own findings.
fn show(command: &mut Command) -> Result<Outcome> {
    match command.status().map_err(|e| format!("{command:?}: {e}"))?.success() {
        true => Ok(Outcome::Passed),
        false => Err(format!("failed: {command:?}").into()),
    }
}

/// Runs a command and returns its output, which on failure becomes the error's text.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let said = [output.stdout, output.stderr].concat();
            Err(format!("failed: {command:?}\n{}", String::from_utf8_lossy(&said)).into())
        }
    }
}

fn place() -> Result<PathBuf, String> {
    let chosen = env::var_os("GCODEC_READERS").map(PathBuf::from);
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache/gcodec/readers"));
    chosen.or_else(home).ok_or_else(|| "no place for packages: set GCODEC_READERS or HOME".into())
}

fn install<T>(place: &Path, packages: &[&str], how: impl FnOnce() -> Result<T>) -> Result<()> {
    let (marker, wanted) = (place.join("gcodec-packages"), packages.join("\n"));
    if fs::read_to_string(&marker).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    how()?;
    Ok(fs::write(marker, wanted)?)
}
