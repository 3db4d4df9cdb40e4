//! Commands in the pages: every word that selects tests selects at least one, so a renamed test cannot leave
//! a claim without the command that shows it.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Appends the files below `folder` with this extension, without build outputs.
fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                files(&path, extension, found);
            }
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

/// A name by which `cargo test` selects: a module of tests, or a function marked as a test.
struct Selectable {
    /// Path of its file, without extension.
    module: PathBuf,
    name: String,
}

fn selectable() -> Vec<Selectable> {
    let mut sources = Vec::new();
    files(root(), "rs", &mut sources);
    let mut found = Vec::new();
    for path in sources {
        let text = std::fs::read_to_string(&path).unwrap();
        let tests = text.split("#[test]").skip(1);
        let functions: Vec<&str> =
            tests.filter_map(|rest| rest.split_once("fn ")?.1.split('(').next()).collect();
        if functions.is_empty() {
            continue;
        }
        let module = path.strip_prefix(root()).unwrap().with_extension("");
        let parts: Vec<String> = module.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let names = parts.into_iter().chain(functions.into_iter().map(str::to_owned));
        found.extend(names.map(|name| Selectable { module: module.clone(), name }));
    }
    found
}

/// The programs of tests that a command runs.
enum Target<'a> {
    All,
    Library,
    Integration(&'a str),
}

impl Target<'_> {
    fn has(&self, module: &Path) -> bool {
        let mut parts = module.iter().map(|part| part.to_string_lossy());
        match self {
            Self::All => true,
            Self::Library => parts.any(|part| part == "src"),
            Self::Integration(name) => {
                parts.any(|part| part == "tests") && parts.next().is_some_and(|p| p == *name)
            }
        }
    }
}

/// Returns the programs that a command runs, and the words that select tests: neither options nor their
/// values.
fn selectors(arguments: &str) -> (Target<'_>, Vec<&str>) {
    let (mut target, mut found) = (Target::All, Vec::new());
    let mut words = arguments.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "--lib" => target = Target::Library,
            "--test" => target = words.next().map_or(Target::All, Target::Integration),
            "-p" | "--features" => _ = words.next(),
            option if option.starts_with('-') => {}
            word => found.push(word),
        }
    }
    (target, found)
}

/// Returns the arguments of `cargo test` in a line of a page: in code spans, and in lines that are commands.
fn commands(line: &str) -> Vec<&str> {
    let spans = line.split('`').skip(1).step_by(2).filter_map(|span| {
        let arguments = span.strip_prefix("cargo test ");
        arguments.or_else(|| Some(span).filter(|s| s.starts_with("--test ") || s.starts_with("--lib ")))
    });
    // A remark follows a command after two spaces.
    let command = line.strip_prefix("    cargo test ").and_then(|rest| rest.split("  ").next());
    spans.chain(command).collect()
}

#[test]
fn every_command_in_the_pages_selects_tests() {
    let names = selectable();
    let mut pages = Vec::new();
    files(root(), "md", &mut pages);
    let mut checked = 0;
    for page in pages {
        for line in std::fs::read_to_string(&page).unwrap().lines() {
            for (target, words) in commands(line).into_iter().map(selectors) {
                for word in words {
                    let found = names.iter().any(|n| target.has(&n.module) && n.name.contains(word));
                    assert!(found, "{}: `{word}` selects no test: {line}", page.display());
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 10, "{checked} selectors");
}
