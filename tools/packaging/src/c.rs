//! The C library: its header, its installation below a prefix, and programs in C and C++ that use it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::programs::{SKIPPED, run, succeeds, target};
use crate::{Result, root};

/// Options of the task.
#[derive(clap::Args)]
pub struct Args {
    /// Builds the libraries for release, and installs them below this folder with headers, pkg-config file
    /// and CMake package.
    #[arg(long, value_name = "PREFIX")]
    install: Option<PathBuf>,
    /// Writes adapters/c/include/gcodec.h.
    #[arg(long)]
    header: bool,
}

/// Major number of the ABI: `GCODEC_ABI_VERSION >> 16`.
const SONAME: &str = "1";
/// Libraries that a program links with the static one, as `rustc --print native-static-libs` says for Linux.
const NATIVE: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";
const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Does what the arguments say; without any, tests programs with the sanitizers.
pub fn run_task(args: &Args) -> Result<ExitCode> {
    if args.header {
        run(cargo(&["test", "--workspace", "--all-features", "--test", "header"]).env("GCODEC_WRITE", "1"))?;
    }
    if let Some(prefix) = &args.install {
        run(&mut cargo(&["build", "--release", "--package", "gcodec-c"]))?;
        install(prefix, &target().join("release"))?;
        println!("installed: PKG_CONFIG_PATH={0}/lib/pkgconfig, CMAKE_PREFIX_PATH={0}", prefix.display());
    }
    match args.header || args.install.is_some() {
        true => Ok(ExitCode::SUCCESS),
        false => test(),
    }
}

fn cargo(args: &[&str]) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args(args).current_dir(root());
    cargo
}

/// Copies headers, the libraries of `built`, and the files for pkg-config and CMake to `prefix`.
fn install(prefix: &Path, built: &Path) -> Result<()> {
    if env::consts::OS != "linux" {
        return Err("files are installed on Linux only; the libraries are in the target folder".into());
    }
    let (source, lib) = (root().join("adapters/c"), prefix.join("lib"));
    let (include, cmake) = (prefix.join("include"), lib.join("cmake/gcodec"));
    let pkg_config = lib.join("pkgconfig");
    [&include, &cmake, &pkg_config].iter().try_for_each(fs::create_dir_all)?;
    for header in ["gcodec.h", "gcodec.hpp"] {
        fs::copy(source.join("include").join(header), include.join(header))?;
    }
    fs::copy(built.join("libgcodec_c.a"), lib.join("libgcodec_c.a"))?;
    let shared = format!("libgcodec_c.so.{SONAME}");
    // A new file: a program that runs with the old one keeps it.
    let new = lib.join(format!("{shared}.new"));
    fs::copy(built.join("libgcodec_c.so"), &new)?;
    fs::rename(&new, lib.join(&shared))?;
    let link = lib.join("libgcodec_c.so");
    let _ = fs::remove_file(&link);
    #[cfg(unix)]
    std::os::unix::fs::symlink(&shared, &link)?;
    let version = env!("CARGO_PKG_VERSION");
    let numbers = version.split('-').next().unwrap_or(version);
    let major = numbers.split('.').next().unwrap_or(numbers);
    let files = [
        ("gcodec.pc", &pkg_config),
        ("gcodec-config.cmake", &cmake),
        ("gcodec-config-version.cmake", &cmake),
    ];
    for (name, folder) in files {
        let template = fs::read_to_string(source.join("cmake").join(format!("{name}.in")))?;
        let text = template
            .replace("@VERSION@", version)
            .replace("@NUMBERS@", numbers)
            .replace("@MAJOR@", major)
            .replace("@SONAME@", SONAME)
            .replace("@NATIVE@", NATIVE);
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// A compiler, and the flags that find the installed library.
struct Programs {
    place: PathBuf,
    prefix: PathBuf,
    sanitizers: &'static [&'static str],
    /// From pkg-config, or `None` where it is missing.
    flags: Option<Vec<String>>,
}

/// Installs a development build, then compiles and runs all programs with it.
fn test() -> Result<ExitCode> {
    let (cc, cxx) = (compiler("CC", "cc"), compiler("CXX", "c++"));
    if !succeeds(&cc, &["--version"]) {
        println!("SKIPPED: no C compiler ({cc})");
        return Ok(ExitCode::from(SKIPPED));
    }
    // A test program needs the libraries: this builds them with the features of the whole workspace.
    run(&mut cargo(&["test", "--quiet", "--workspace", "--all-features", "--no-run", "--test", "header"]))?;
    let place = target().join("c");
    let prefix = place.join("prefix");
    install(&prefix, &target().join("debug/deps"))?;
    let mut programs = Programs { flags: pkg_config(&prefix)?, place, prefix, sanitizers: SANITIZERS };
    let nothing = programs.place.join("nothing.c");
    fs::write(&nothing, "int main(void) { return 0; }\n")?;
    if programs.compile(&cc, &nothing, &[]).is_err() {
        println!(
            "SKIPPED: {cc} has no AddressSanitizer or no UndefinedBehaviorSanitizer: programs run without"
        );
        programs.sanitizers = &[];
    }
    let sources = root().join("adapters/c/tests/programs");
    let vectors = root().join("spec/vectors/index.json");
    let c = ["-std=c11", "-D_POSIX_C_SOURCE=200809L"];
    programs.run(&cc, &sources.join("roundtrip.c"), &c, None)?;
    programs.run(&cc, &sources.join("misuse.c"), &c, None)?;
    programs.run(&cc, &sources.join("vectors.c"), &c, Some(&vectors))?;
    let has_cxx = succeeds(&cxx, &["--version"]);
    if has_cxx {
        programs.run(&cxx, &sources.join("raii.cpp"), &["-std=c++17"], None)?;
    } else {
        println!("SKIPPED: no C++ compiler ({cxx}): the wrapper was not tried");
    }
    for (number, (language, text)) in examples()?.into_iter().enumerate() {
        let source = programs.place.join(format!("example{number}.{language}"));
        fs::write(&source, text)?;
        match language {
            "c" => programs.run(&cc, &source, &["-std=c11"], None)?,
            _ if has_cxx => programs.run(&cxx, &source, &["-std=c++17"], None)?,
            _ => {}
        }
    }
    programs.cmake()?;
    Ok(ExitCode::SUCCESS)
}

fn compiler(variable: &str, default: &str) -> String {
    env::var(variable).unwrap_or_else(|_| default.to_owned())
}

/// Returns the flags of the package `gcodec` below `prefix`.
fn pkg_config(prefix: &Path) -> Result<Option<Vec<String>>> {
    if !succeeds("pkg-config", &["--version"]) {
        println!("SKIPPED: pkg-config is missing: gcodec.pc was not tried");
        return Ok(None);
    }
    let output = Command::new("pkg-config")
        .args(["--cflags", "--libs", "gcodec"])
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .output()?;
    match output.status.success() {
        true => Ok(Some(String::from_utf8(output.stdout)?.split_whitespace().map(str::to_owned).collect())),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

/// Returns the programs in C and C++ of docs/c.md, with the endings of their files.
fn examples() -> Result<Vec<(&'static str, String)>> {
    let text = fs::read_to_string(root().join("docs/c.md"))?;
    let mut found = Vec::new();
    for block in text.split("```").skip(1).step_by(2).filter(|block| block.contains("int main")) {
        let (language, program) = block.split_once('\n').unwrap_or_default();
        found.push((if language == "cpp" { "cpp" } else { "c" }, program.to_owned()));
    }
    match found.len() {
        0 | 1 => Err("docs/c.md has no program in C and one in C++".into()),
        _ => Ok(found),
    }
}

impl Programs {
    /// Compiles a program and returns its path.
    fn compile(&self, compiler: &str, source: &Path, flags: &[&str]) -> Result<PathBuf> {
        let out = self.place.join(source.file_name().unwrap_or_default()).with_extension("out");
        let lib = self.prefix.join("lib");
        let found = self.flags.clone().unwrap_or_else(|| {
            let include = self.prefix.join("include");
            vec![format!("-I{}", include.display()), format!("-L{}", lib.display()), "-lgcodec_c".into()]
        });
        let mut command = Command::new(compiler);
        command.args(["-g", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(self.sanitizers);
        command.args(flags).arg(source).arg("-o").arg(&out).args(found);
        command.args(["-pthread".to_owned(), format!("-Wl,-rpath,{}", lib.display())]);
        match command.output()? {
            output if output.status.success() => Ok(out),
            output => Err(format!("failed: {command:?}\n{}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }

    /// Compiles and runs a program.
    fn run(&self, compiler: &str, source: &Path, flags: &[&str], argument: Option<&Path>) -> Result<()> {
        let program = self.compile(compiler, source, flags)?;
        run(Command::new(program).args(argument).current_dir(&self.place))
    }

    /// Builds and runs the same program with CMake, with the shared library and with the static one.
    fn cmake(&self) -> Result<()> {
        if !succeeds("cmake", &["--version"]) {
            println!("SKIPPED: cmake is missing: its package was not tried");
            return Ok(());
        }
        let build = self.place.join("cmake");
        let _ = fs::remove_dir_all(&build);
        let prefix = format!("-DCMAKE_PREFIX_PATH={}", self.prefix.display());
        let source = root().join("adapters/c/tests/cmake");
        run(Command::new("cmake")
            .args(["--log-level=WARNING", &prefix, "-S"])
            .arg(source)
            .arg("-B")
            .arg(&build))?;
        let output = Command::new("cmake").arg("--build").arg(&build).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        run(&mut Command::new(build.join("shared")))?;
        run(&mut Command::new(build.join("static")))
    }
}
