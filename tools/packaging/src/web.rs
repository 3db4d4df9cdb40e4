//! The page of `gcodec inspect` and the package for npm: `target/web/index.html` and `target/web/npm/`.

use std::fs;
use std::io::Write;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::programs::{self, SKIPPED, run, succeeds, target};
use crate::{Result, root};

/// Arguments of the task.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Builds without tests.
    #[arg(long)]
    no_tests: bool,
    /// Compiles with Debian's Rust, as where the installed one cannot (root on Debian).
    #[arg(long)]
    debian: bool,
    /// Writes the picture of the page for the README.
    #[arg(long)]
    write: bool,
}

const TARGET: &str = "wasm32-unknown-unknown";
/// The module in Cargo's folder for the target.
const MODULE: &str = "web/gcodec_web.wasm";
/// The browser of the tests, where Debian has it.
const BROWSER: &str = "/usr/bin/chromium";
/// Most bytes of the page, and of its compressed form.
const MAX_PAGE: usize = 3_000_000;
const MAX_COMPRESSED: usize = 1_000_000;

/// Builds the page and the package, and tests them in a browser and in node. Returns the exit code.
///
/// # Errors
/// A text that says which step failed.
pub fn run_task(args: &Args) -> Result<std::process::ExitCode> {
    let compiler = if args.debian { Compiler::debian() } else { Compiler::find() };
    let folder = match compiler {
        Ok(compiler) => build(compiler)?,
        Err(missing) => {
            println!("SKIPPED: {missing}");
            return Ok(SKIPPED.into());
        }
    };
    if args.no_tests {
        return Ok(0.into());
    }
    if let Some(missing) = missing_browser() {
        println!("SKIPPED: {missing}");
        return Ok(SKIPPED.into());
    }
    test(&folder, args.write)?;
    Ok(0.into())
}

/// A Rust with the standard library for WebAssembly.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Compiler {
    /// The one that compiled this program.
    Installed,
    /// Debian's, in a root of its own.
    Debian,
}

impl Compiler {
    /// Finds one; else says why the module cannot be compiled here. A toolchain of rustup gets what it needs.
    pub(crate) fn find() -> std::result::Result<Self, String> {
        let has_target = || {
            let libdir =
                Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
            libdir.is_ok_and(|out| Path::new(String::from_utf8_lossy(&out.stdout).trim()).is_dir())
        };
        if has_target() || (succeeds("rustup", &["target", "add", TARGET]) && has_target()) {
            return Ok(Self::Installed);
        }
        Self::debian().map_err(|e| {
            format!(
                "Rust has no standard library for {TARGET} here: `rustup target add {TARGET}`; Debian's: {e}"
            )
        })
    }

    /// Sets up the root with Debian's.
    fn debian() -> std::result::Result<Self, String> {
        let out = foreign("install").output().map_err(|e| e.to_string())?;
        match out.status.success() {
            true => Ok(Self::Debian),
            false => Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
        }
    }

    /// Compiles the module.
    fn module(self) -> Result<Vec<u8>> {
        let build = ["build", "--quiet", "--profile", "web", "--package", "gcodec-web"];
        let path = match self {
            Self::Installed => {
                run(Command::new("cargo").args(build).args(["--target", TARGET]).current_dir(root()))?;
                target().join(TARGET).join(MODULE)
            }
            Self::Debian => {
                run(foreign("run").arg("cargo").args(build))?;
                let out = foreign("built").arg(MODULE).output()?;
                PathBuf::from(String::from_utf8(out.stdout)?.trim_end())
            }
        };
        fs::read(&path).map_err(|e| format!("{}: {e}", path.display()).into())
    }
}

/// A task of the root with Debian's Rust for WebAssembly.
fn foreign(task: &str) -> Command {
    let mut command = Command::new(root().join("tools/foreign/foreign.sh"));
    command.args([task, "wasm32"]).current_dir(root());
    command
}

/// Says which program of the tests is missing. Root on Debian gets the browser.
fn missing_browser() -> Option<String> {
    if !succeeds("node", &["--version"]) || !succeeds("npm", &["--version"]) {
        return Some("node and npm are missing".to_owned());
    }
    let has_browser = || succeeds(BROWSER, &["--version"]);
    let install = ["install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"];
    let is_root = || succeeds("sh", &["-c", "test $(id -u) = 0"]);
    let has = has_browser()
        || (is_root() && succeeds("apt-get", &["update"]) && succeeds("apt-get", &install) && has_browser());
    (!has).then(|| "chromium is missing: `apt-get install chromium`".to_owned())
}

/// Builds the page and the package; returns their folder.
pub(crate) fn build(compiler: Compiler) -> Result<PathBuf> {
    let module = compiler.module()?;
    let folder = target().join("web");
    let package = folder.join("npm");
    if package.exists() {
        fs::remove_dir_all(&package)?;
    }
    fs::create_dir_all(&package)?;
    let page = page(&module)?;
    let compressed = compress(page.as_bytes())?.len();
    println!("page: {} bytes, compressed {compressed}; module: {} bytes", page.len(), module.len());
    if page.len() > MAX_PAGE || compressed > MAX_COMPRESSED {
        return Err(format!("the page has more than {MAX_PAGE} bytes, or {MAX_COMPRESSED} compressed").into());
    }
    fs::write(folder.join("index.html"), page)?;
    let of = |name: &str| read(&format!("web/npm/{name}"));
    for name in ["engine.mjs", "index.mjs", "index.d.ts", "README.md"] {
        fs::write(package.join(name), of(name)?)?;
    }
    fs::write(package.join("package.json"), of("package.json")?.replace("VERSION", &npm_version()))?;
    fs::write(package.join("gcodec.wasm"), module)?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root().join(licence), package.join(licence))?;
    }
    Ok(folder)
}

fn npm_version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}").into())
}

fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    out.write_all(bytes)?;
    Ok(out.finish()?)
}

/// As [`compress`], smaller and slower: for what is compressed once and read often.
fn compress_well(bytes: &[u8]) -> Result<Vec<u8>> {
    /// Rounds of the search: with 15, the module is less than a thousandth smaller.
    const ROUNDS: NonZeroU64 = NonZeroU64::new(3).unwrap();
    let options = zopfli::Options { iteration_count: ROUNDS, ..zopfli::Options::default() };
    let mut out = Vec::new();
    zopfli::compress(options, zopfli::Format::Gzip, bytes, &mut out)?;
    Ok(out)
}

/// Puts the parts of the page together: one file, which needs no other.
fn page(module: &[u8]) -> Result<String> {
    // One script of the worker and the module it imports: a page of a file cannot load another file.
    let worker =
        without_modules(&read("web/npm/engine.mjs")?) + &without_modules(&read("web/page/worker.mjs")?);
    let mut page = read("web/page/page.html")?;
    let parts = [
        ("/*STYLE*/", read("web/page/page.css")?),
        ("/*SCRIPT*/", read("web/page/page.js")?),
        ("/*WORKER*/", quoted(&worker)),
        ("/*WASM*/", STANDARD.encode(compress_well(module)?)),
    ];
    for (mark, part) in parts {
        if page.matches(mark).count() != 1 {
            return Err(format!("web/page/page.html does not have {mark} once").into());
        }
        page = page.replace(mark, &part);
    }
    Ok(page)
}

/// Returns a module as a plain script.
fn without_modules(script: &str) -> String {
    let lines = script.lines().filter(|line| !line.starts_with("import "));
    lines.map(|line| line.strip_prefix("export ").unwrap_or(line).to_owned() + "\n").collect()
}

/// Returns a text as a string of JSON that ends no element of HTML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '<' => out.push_str("\\u003c"),
            c => out.push(c),
        }
    }
    out + "\""
}

/// Tests the page in a browser, and the package in a browser and in node.
fn test(folder: &Path, write: bool) -> Result<()> {
    let gcodec = programs::build("gcodec")?;
    let tools = folder.join("tools");
    fs::create_dir_all(&tools)?;
    fs::write(tools.join("package.json"), "{\"private\": true, \"type\": \"module\"}\n")?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--silent", "playwright-core@1", "typescript@5"]);
    run(npm.current_dir(&tools))?;
    for name in ["browser.mjs", "package.mjs", "files.mjs", "use.ts"] {
        // Node finds packages beside the script.
        fs::copy(root().join("web/tests").join(name), tools.join(name))?;
    }
    let picture = root().join("docs/web.png");
    for script in ["browser.mjs", "package.mjs"] {
        let mut node = Command::new("node");
        node.arg(tools.join(script)).args([folder, &gcodec, &root()]);
        if write {
            node.arg(&picture);
        }
        run(&mut node)?;
    }
    Ok(())
}
