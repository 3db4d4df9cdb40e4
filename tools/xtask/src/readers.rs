//! Other readers of the format: the Kaitai Struct description, file(1) and the Wireshark dissector; and the packages that they and
//! the reference decoder need. These are installed once per machine, outside the tree (`$GCODEC_READERS`, or
//! `~/.cache/gcodec/readers`), and again when a version here changes.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{cli, target};
use crate::{Result, root};

/// From the Python package index.
const PIP: &[&str] = &["backports.zstd==1.8.0", "kaitaistruct==0.11"];
/// From npm.
const NPM: &[&str] = &["kaitai-struct-compiler@0.11.0", "js-yaml@4.1.0"];

/// Compiles spec/gcodec.ksy, parses every vector by it, and asks file(1).
pub(crate) fn kaitai() -> Result<()> {
    let (python, modules) = (python()?, node()?);
    let (root, place) = (root(), fresh("kaitai")?);
    let compile = root.join("tools/conformance/kaitai/compile.js");
    let source = root.join("spec/gcodec.ksy");
    run(Command::new("node").arg(compile).arg(source).arg(&place).env("NODE_PATH", modules))?;
    show(Command::new(python).arg(root.join("tools/conformance/kaitai/check.py")).arg(place))
}

/// Tests the Wireshark dissector with tshark.
pub(crate) fn wireshark() -> Result<()> {
    let (python, gcodec) = (python()?, cli()?);
    show(Command::new(python).arg(root().join("tools/conformance/wireshark/test_dissector.py")).arg(gcodec))
}

/// Why the Kaitai Struct description cannot be compiled here.
pub(crate) fn no_kaitai() -> Option<String> {
    python().err().or_else(|| node().err())
}

/// Why the dissector cannot be tested here.
pub(crate) fn no_wireshark() -> Option<String> {
    match is_there("tshark") {
        false => Some("tshark is not there (apt-get install tshark)".into()),
        true => python().err(),
    }
}

/// A Python that has the packages; or why there is none.
pub(crate) fn python() -> std::result::Result<PathBuf, String> {
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

/// The `node_modules` folder that has the packages; or why there is none.
fn node() -> std::result::Result<PathBuf, String> {
    if !is_there("node") || !is_there("npm") {
        return Err("node and npm are not there".into());
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

/// Whether a program starts.
fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// An empty folder for what is made on the way.
pub(crate) fn fresh(name: &str) -> Result<PathBuf> {
    let place = target().join(name);
    // What an earlier run left is not what is tested.
    match fs::remove_dir_all(&place) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    fs::create_dir_all(&place)?;
    Ok(place)
}

/// Runs a command that says itself what it finds.
fn show(command: &mut Command) -> Result<()> {
    match command.status().map_err(|e| format!("{command:?}: {e}"))?.success() {
        true => Ok(()),
        false => Err(format!("failed: {command:?}").into()),
    }
}

/// Runs a command; its output is an error's text.
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

fn place() -> std::result::Result<PathBuf, String> {
    let chosen = env::var_os("GCODEC_READERS").map(PathBuf::from);
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache/gcodec/readers"));
    chosen.or_else(home).ok_or_else(|| "neither GCODEC_READERS nor HOME says where packages are to be".into())
}

fn install<T>(place: &Path, packages: &[&str], how: impl FnOnce() -> Result<T>) -> Result<()> {
    let (marker, wanted) = (place.join("gcodec-packages"), packages.join("\n"));
    if fs::read_to_string(&marker).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    how()?;
    Ok(fs::write(marker, wanted)?)
}
