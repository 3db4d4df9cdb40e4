//! Compiles the device code of `adapters/cuda/kernels`, without a device. The compiler comes from NVIDIA's
//! Python packages (300 MB), installed once per machine outside the tree (`$GCODEC_CUDA`, or
//! `~/.cache/gcodec/cuda`).

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gcodec_packaging::programs::run;
use gcodec_packaging::{Result, root};

#[derive(clap::Args)]
#[group(required = true)]
pub(crate) struct Args {
    /// Writes adapters/cuda/kernels/gcodec.fatbin and gcodec.sum.
    #[arg(long)]
    write: bool,
    /// Fails if they are out of date, or if a kernel exceeds its budget.
    #[arg(long)]
    check: bool,
}

const REQUIREMENTS: &str = "adapters/cuda/requirements.txt";
const KERNELS: &str = "adapters/cuda/kernels";
const FLAGS: [&str; 14] = [
    "-std=c++17",
    "-O3",
    // Rounds products and sums separately, as on the host.
    "-fmad=false",
    "-fatbin",
    "--compress-mode=size",
    "-Xptxas",
    "-v",
    "-gencode",
    "arch=compute_80,code=sm_80",
    "-gencode",
    "arch=compute_90,code=sm_90",
    // For later devices.
    "-gencode",
    "arch=compute_80,code=compute_80",
    "-o",
];
/// Three blocks of 256 threads share the 65,536 registers of a multiprocessor.
const MOST_REGISTERS: u32 = 80;
/// Bytes that a thread may spill. Only the kernel with one block per search spills, and it is not limited by
/// bandwidth.
const MOST_SPILLED: u32 = 8;

/// Returns the compiler, installed if missing, or the reason why it cannot be installed.
pub(crate) fn prepare() -> std::result::Result<PathBuf, String> {
    let chosen = env::var_os("GCODEC_CUDA").map(PathBuf::from);
    let place = chosen.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/gcodec/cuda")));
    let place = place.ok_or("no place for the compiler: set GCODEC_CUDA or HOME")?;
    install(&place).map_err(|e| format!("the packages of {REQUIREMENTS} cannot be installed: {e}"))
}

fn install(place: &Path) -> Result<PathBuf> {
    let requirements = fs::read(root().join(REQUIREMENTS))?;
    let wanted = blake3::hash(&requirements).to_hex().to_string();
    let (venv, marker) = (place.join("venv"), place.join("gcodec-requirements"));
    if fs::read_to_string(&marker).unwrap_or_default() != wanted {
        fs::create_dir_all(place)?;
        if !venv.join("bin/python").exists() {
            run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        }
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "2", "-r"];
        run(Command::new(venv.join("bin/python")).args(pip).arg(root().join(REQUIREMENTS)))?;
        fs::write(&marker, wanted)?;
    }
    let site = "import sysconfig; print(sysconfig.get_path('purelib'), end='')";
    let output = Command::new(venv.join("bin/python")).args(["-c", site]).output()?;
    let nvcc = Path::new(&String::from_utf8(output.stdout)?).join("nvidia/cu13/bin/nvcc");
    match nvcc.exists() {
        true => Ok(nvcc),
        false => Err(format!("{} is missing", nvcc.display()).into()),
    }
}

pub(crate) fn compile(args: &Args) -> Result<()> {
    let (nvcc, kernels) = (prepare()?, root().join(KERNELS));
    let out = tempfile::Builder::new().suffix(".fatbin").tempfile()?.into_temp_path();
    let bin = nvcc.parent().unwrap_or(Path::new("."));
    let path = env::join_paths(
        std::iter::once(bin.to_owned()).chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )?;
    let output = Command::new(&nvcc)
        .args(FLAGS)
        .arg(&out)
        .arg("gcodec.cu")
        .env("PATH", path)
        .current_dir(&kernels)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("nvcc failed:\n{said}").into());
    }
    let image = fs::read(&out)?;
    let uses = uses(&said);
    println!("{:<8} {:<20} {:>9} {:>7} {:>7}", "for", "kernel", "registers", "stack", "spilled");
    for u in &uses {
        println!("{:<8} {:<20} {:>9} {:>7} {:>7}", u.architecture, u.kernel, u.registers, u.stack, u.spilled);
    }
    println!("{} bytes", image.len());
    let beyond = |u: &&Use| u.registers > MOST_REGISTERS || u.spilled > MOST_SPILLED;
    if let Some(u) = uses.iter().find(beyond) {
        let (kernel, architecture) = (&u.kernel, &u.architecture);
        return Err(format!(
            "{kernel} for {architecture} takes more than {MOST_REGISTERS} registers or {MOST_SPILLED} spilled bytes"
        )
        .into());
    }
    if uses.is_empty() || !uses.len().is_multiple_of(2) {
        return Err(format!("nvcc printed no resources for both architectures:\n{said}").into());
    }
    let sums = sums(&kernels, &image)?;
    if args.write {
        fs::write(kernels.join("gcodec.fatbin"), &image)?;
        fs::write(kernels.join("gcodec.sum"), &sums)?;
    }
    let same = fs::read(kernels.join("gcodec.fatbin")).is_ok_and(|found| found == image)
        && fs::read_to_string(kernels.join("gcodec.sum")).is_ok_and(|found| found == sums);
    match args.check && !same {
        true => Err(format!("{KERNELS}/gcodec.fatbin is out of date: cargo xtask cuda --write").into()),
        false => Ok(()),
    }
}

/// Resources of a kernel on one architecture.
struct Use {
    architecture: String,
    kernel: String,
    registers: u32,
    stack: u32,
    spilled: u32,
}

/// Parses the output of `ptxas -v`.
fn uses(said: &str) -> Vec<Use> {
    let mut uses: Vec<Use> = Vec::new();
    let before = |line: &str, what: &str| -> Option<u32> {
        line.split(what).next()?.trim().rsplit([' ', ',']).next()?.parse().ok()
    };
    for line in said.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let mut parts = rest.split('\'');
            let (kernel, architecture) = (parts.next().unwrap_or(""), parts.nth(1).unwrap_or(""));
            let (kernel, architecture) = (kernel.to_owned(), architecture.to_owned());
            uses.push(Use { architecture, kernel, registers: 0, stack: 0, spilled: 0 });
        } else if let Some(last) = uses.last_mut() {
            if line.contains("bytes stack frame") {
                last.stack = before(line, " bytes stack frame").unwrap_or(u32::MAX);
                last.spilled = before(line, " bytes spill stores").unwrap_or(u32::MAX);
            } else if line.contains("Used ") {
                last.registers = before(line, " registers").unwrap_or(u32::MAX);
            }
        }
    }
    uses
}

/// Returns hashes with which a test, without the compiler, checks that the image matches these sources.
fn sums(kernels: &Path, image: &[u8]) -> Result<String> {
    let mut names: Vec<_> = fs::read_dir(kernels)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<_>>>()?;
    names.retain(|name| name.ends_with(".cu") || name.ends_with(".cuh"));
    names.sort();
    let mut text = String::new();
    for name in names {
        writeln!(text, "{} {name}", blake3::hash(&fs::read(kernels.join(&name))?).to_hex())?;
    }
    writeln!(text, "{} gcodec.fatbin", blake3::hash(image).to_hex())?;
    Ok(text)
}
