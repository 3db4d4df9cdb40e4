//! The Python package: its sdist, the wheel that is built from it, and the wheel alone in an empty
//! environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Args, Found, fine, has_licences};
use crate::programs::{run, succeeds, target};
use crate::python::{ALONE, maturin};
use crate::{Result, root};

/// Files that the wheel contains beside the package's code.
const IN_WHEEL: &[&str] = &["gcodec/py.typed", "gcodec/_native.pyi", "gcodec/__init__.py"];

pub(super) fn check(args: &Args) -> Result<Found> {
    let Some(maturin) = maturin() else {
        return Ok(Found::Skipped(
            "maturin is not installed: `pip install maturin`, or `cargo xtask python`".into(),
        ));
    };
    if !succeeds("python3", &["-c", "import venv, tarfile, zipfile"]) {
        return Ok(Found::Skipped("python3 is missing".into()));
    }
    let place = target().join("release-check");
    match fs::remove_dir_all(&place) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
        _ => fs::create_dir_all(&place)?,
    }
    let sdist = place.join("sdist");
    run(Command::new(&maturin)
        .args(["sdist", "--manifest-path", "adapters/python/Cargo.toml", "--out"])
        .arg(&sdist)
        .current_dir(root()))?;
    let archive = only_file(&sdist)?;
    let files = contents("tarfile.open(sys.argv[1]).getnames()", &archive)?;
    has_licences("the sdist", &files)?;
    run(Command::new("python3").args(["-m", "tarfile", "-e"]).arg(&archive).arg(place.join("source")))?;
    let source = only_file(&place.join("source"))?;
    let (wheel, kind) = build(&maturin, args, &source, &place.join("wheels"))?;
    let files = contents("zipfile.ZipFile(sys.argv[1]).namelist()", &wheel)?;
    has_licences("the wheel", &files)?;
    if let Some(missing) = IN_WHEEL.iter().find(|name| !files.lines().any(|line| line == **name)) {
        return Err(format!("the wheel lacks {missing}").into());
    }
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !name.contains("-abi3-") {
        return Err(format!("{name} works with one version of Python only").into());
    }
    alone(&place, &wheel)?;
    fine(format!("{name} from the sdist{kind}: works in an empty environment"))
}

/// Builds the wheel from the unpacked sdist, for old systems where zig can link it.
fn build(maturin: &Path, args: &Args, source: &Path, out: &Path) -> Result<(PathBuf, &'static str)> {
    let python = maturin.with_file_name("python");
    let has_zig =
        succeeds(&python.to_string_lossy(), &["-c", "import ziglang"]) || succeeds("zig", &["version"]);
    let mut build = Command::new(maturin);
    build.args(["build", "--quiet", "--out"]).arg(out).current_dir(source);
    build.args(if args.debug { ["--profile", "dev"] } else { ["--profile", "release"] });
    if has_zig {
        build.args(["--zig", "--compatibility", "manylinux2014"]);
        if let (Some(folder), Some(path)) = (maturin.parent(), std::env::var_os("PATH")) {
            let folders = [folder.to_owned()].into_iter().chain(std::env::split_paths(&path));
            build.env("PATH", std::env::join_paths(folders)?);
        }
    }
    // Dependencies that are compiled already are not compiled again; the package's own code is.
    run(build.env("CARGO_TARGET_DIR", target()))?;
    let kind = if has_zig { "" } else { ", without zig (for this system's C library and later ones)" };
    Ok((only_file(out)?, kind))
}

/// Installs the wheel into an environment with nothing else, and uses it there.
fn alone(place: &Path, wheel: &Path) -> Result<()> {
    let fresh = place.join("env");
    run(Command::new("python3").args(["-m", "venv"]).arg(&fresh))?;
    let python = fresh.join("bin/python");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"];
    run(Command::new(&python).args(pip).arg(wheel))?;
    let version = "import gcodec, importlib.metadata as m, sys; v = m.version('gcodec'); \
        assert v == gcodec.__version__ and v.replace('rc', '-rc.') == sys.argv[1], v";
    run(Command::new(&python).args(["-c", version, super::VERSION]).current_dir(place))?;
    run(Command::new(&python).args(["-c", ALONE]).current_dir(place))
}

/// Returns the names in an archive, each on a line.
fn contents(names: &str, archive: &Path) -> Result<String> {
    let program = format!("import sys, tarfile, zipfile; print('\\n'.join({names}))");
    let output = Command::new("python3").args(["-c", &program]).arg(archive).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

/// Returns the only entry of a folder.
fn only_file(folder: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(folder)?;
    match (entries.next(), entries.next()) {
        (Some(only), None) => Ok(only?.path()),
        _ => Err(format!("{} does not have one entry", folder.display()).into()),
    }
}
