//! The site: all pages, the reference of the Rust crates, and the reference of the Python package, built
//! without a network once its tools are installed. Every link is checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::programs::{SKIPPED, run, succeeds, target};
use crate::python::Environment;
use crate::{Result, links, root};

const PACKAGES: Environment = Environment {
    variable: "GCODEC_SITE",
    name: "site",
    requirements: "tools/site/requirements.txt",
    alone: &[],
};

/// Options of the task.
#[derive(clap::Args)]
pub struct Args {
    /// Takes the reference of the Rust crates as an earlier `cargo doc` has left it.
    #[arg(long)]
    no_rust: bool,
}

/// Builds the site in `target/site/html`.
pub fn build(args: &Args) -> Result<ExitCode> {
    if !succeeds("python3", &["-c", "import venv"]) {
        println!("SKIPPED: python3 is missing");
        return Ok(ExitCode::from(SKIPPED));
    }
    let packages = PACKAGES.folder().ok_or("no place for packages: set GCODEC_SITE or HOME")?;
    PACKAGES.install(&packages)?;
    if !args.no_rust {
        // The same command as in `cargo xtask test`: nothing is built a second time.
        run(Command::new("cargo").args(["xtask", "test", "--only", "docs"]).current_dir(root()))?;
    }
    let reference = target().join("doc");
    if !reference.is_dir() {
        return Err(format!("{} is missing: run once without --no-rust", reference.display()).into());
    }
    let place = target().join("site");
    match fs::remove_dir_all(&place) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    let pages = gather(&place.join("pages"))?;
    copy(&reference, &place.join("pages/rust"))?;
    copy(&root().join("adapters/python/gcodec"), &place.join("python/gcodec"))?;
    fs::copy(root().join("tools/site/mkdocs.yml"), place.join("mkdocs.yml"))?;
    // `--strict`: a link that leads nowhere, also to a heading, is an error. With `--quiet` it would be none.
    let mut mkdocs = Command::new(packages.join("bin/mkdocs"));
    let output = mkdocs.args(["build", "--strict"]).current_dir(&place).output()?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_shown = |line: &&str| line.starts_with("WARNING") || line.starts_with("ERROR");
    log.lines().filter(is_shown).for_each(|line| println!("{line}"));
    if !output.status.success() {
        return Err("the site has links that lead nowhere".into());
    }
    println!("{pages} pages, no broken link: {}", place.join("html/index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Copies the pages and the files that they link to, with their folders. Returns the number of pages.
fn gather(out: &Path) -> Result<usize> {
    let root = root();
    let mut pages = links::pages(&root)?;
    // The page of a template, and not of the project.
    pages.retain(|page| !page.starts_with(root.join("tools/site")));
    let place = |path: &Path| -> Result<PathBuf> {
        let place = out.join(path.strip_prefix(&root)?);
        fs::create_dir_all(place.parent().unwrap_or(out))?;
        Ok(place)
    };
    for page in &pages {
        let text = fs::read_to_string(page)?;
        let folder = page.parent().unwrap_or(&root);
        for link in links::links(&text) {
            let Ok(linked) = folder.join(link).canonicalize() else { continue };
            if linked.is_file() && linked.starts_with(&root) && !link.ends_with(".md") {
                fs::copy(&linked, place(&linked)?)?;
            }
        }
        fs::write(place(page)?, without_folders(&text, folder))?;
    }
    fs::copy(root.join("tools/site/python-api.md"), out.join("python-api.md"))?;
    Ok(pages.len() + 1)
}

/// Replaces links to folders, which a site has no page for, by the folder's own page or by their text.
fn without_folders(text: &str, folder: &Path) -> String {
    let mut out = text.to_owned();
    for link in links::links(text).into_iter().filter(|link| folder.join(link).is_dir()) {
        let page = Path::new(link).join("README.md");
        let to = if folder.join(&page).is_file() { format!("]({})", page.display()) } else { "]".to_owned() };
        out = out.replace(&format!("]({link})"), &to);
    }
    out
}

/// Copies a folder with everything in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let place = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &place)?;
        } else if path.extension().is_none_or(|extension| extension != "lock" && extension != "pyc") {
            fs::copy(&path, place)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_replaced_by_their_page_or_their_text() {
        let text = "[a](docs) [b](src/) [c](docs/c.md) [d](docs/c.md#x)";
        let replaced = "[a](docs/README.md) [b] [c](docs/c.md) [d](docs/c.md#x)";
        assert_eq!(without_folders(text, &root()), replaced);
    }
}
