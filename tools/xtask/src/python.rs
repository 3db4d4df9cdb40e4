//! The Python package: its wheel, built and installed into a fresh environment, and its tests there.
//!
//! PyTorch, JAX and the other packages of `adapters/python/requirements-test.txt` take gigabytes. They are
//! installed once per machine, outside the tree (`$GCODEC_VENV`, or `~/.cache/gcodec/venv`), and again when
//! the requirements change.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::programs::{build, run, target};
use crate::{Result, root};

const REQUIREMENTS: &str = "adapters/python/requirements-test.txt";
/// File in the environment of packages with the hash of its requirements.
const MARKER: &str = "gcodec-requirements";

/// A test of the wheel alone, without PyTorch, JAX and NumPy.
pub(crate) const ALONE: &str = "
import gcodec, sys
tensor = gcodec.Tensor('f32', (2, 2), bytes(range(16)))
data = gcodec.encode({'w': tensor}, gcodec.Lossless())
assert gcodec.decode(data)['w'].tobytes() == bytes(range(16))
assert not {'numpy', 'torch', 'jax'} & set(sys.modules)
print('the wheel works alone:', gcodec.inspect(data).updates[0].label)
";

/// Makes the environment of packages if it is missing, or returns the reason why it cannot.
pub(crate) fn prepare() -> std::result::Result<(), String> {
    let python =
        Command::new("python3").args(["-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).status();
    if !python.is_ok_and(|status| status.success()) {
        return Err("python3 of version 3.11 or later is missing".into());
    }
    let packages = packages().ok_or("no place for packages: set GCODEC_VENV or HOME")?;
    install(&packages, REQUIREMENTS)
        .map_err(|e| format!("the packages of {REQUIREMENTS} cannot be installed: {e}"))
}

/// Returns the folder of PyTorch and the others.
fn packages() -> Option<PathBuf> {
    let chosen = env::var_os("GCODEC_VENV").map(PathBuf::from);
    chosen.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/gcodec/venv")))
}

/// Returns the program maturin, of the packages or of the system.
pub(crate) fn maturin() -> Option<PathBuf> {
    let own = packages().map(|packages| packages.join("bin/maturin"));
    let on_path =
        env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    on_path.map(|folder| folder.join("maturin")).chain(own).find(|program| program.is_file())
}

/// Installs the packages of a file of requirements into an environment, unless they are there.
pub(crate) fn install(packages: &Path, requirements: &str) -> Result<()> {
    let path = root().join(requirements);
    let wanted = fs::read(&path)?;
    let wanted = blake3::hash(&wanted).to_hex().to_string();
    let marker = packages.join(MARKER);
    if fs::read_to_string(&marker).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    println!(
        "installing the packages of {requirements} into {}: once per machine, can take minutes",
        packages.display()
    );
    let start = Instant::now();
    if !packages.join("bin/python").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(packages))?;
    }
    // Python compiles the modules that a test imports; compiling all of them takes a minute.
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "-r"];
    run(Command::new(packages.join("bin/python")).args(pip).arg(&path))?;
    fs::write(marker, wanted)?;
    println!("installed in {:.0?}", start.elapsed());
    Ok(())
}

/// Builds the wheel, installs it into a fresh environment, and runs the tests there.
pub(crate) fn test() -> Result<()> {
    prepare()?;
    let packages = packages().ok_or("no place for the packages")?;
    let place = target().join("python");
    // Files of an earlier run must not be tested.
    match fs::remove_dir_all(&place) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    let (wheels, fresh) = (place.join("wheels"), place.join("env"));
    let (cli, federation) = (build("gcodec")?, build("gcodec-federation")?);
    run(Command::new(packages.join("bin/maturin"))
        .args([
            "build",
            "--profile",
            "dev",
            "--quiet",
            "--manifest-path",
            "adapters/python/Cargo.toml",
            "--out",
        ])
        .arg(&wheels)
        .arg("--interpreter")
        .arg(packages.join("bin/python"))
        .current_dir(root()))?;
    run(Command::new(packages.join("bin/python")).args(["-m", "venv"]).arg(&fresh))?;
    let python = fresh.join("bin/python");
    let wheel = fs::read_dir(&wheels)?.next().ok_or("maturin built no wheel")??.path();
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"];
    run(Command::new(&python).args(pip).arg(&wheel))?;
    run(Command::new(&python).args(["-c", ALONE]).current_dir(&place))?;
    // From here on the fresh environment also has the packages.
    let site = "import sysconfig; print(sysconfig.get_path('purelib'), end='')";
    let [own, theirs] =
        [&python, &packages.join("bin/python")].map(|p| text(Command::new(p).args(["-c", site])));
    fs::write(Path::new(&own?).join("packages.pth"), theirs?)?;
    run(Command::new(&python)
        .args(["-m", "pytest"])
        .env("GCODEC_CLI", cli)
        .env("GCODEC_FEDERATION", federation)
        .current_dir(root().join("adapters/python/tests")))
}

fn text(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("failed: {command:?}").into()),
    }
}
