//! The copy of the tree that contains the mistakes.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gcodec_packaging::{Result, root};
use serde_json::Value;

use crate::MODULES;
use crate::rewrite::{Mutant, find, rewrite};

/// A mistake and its file.
pub(crate) struct Located {
    pub(crate) file: String,
    pub(crate) mutant: Mutant,
    /// Whether it does not compile.
    pub(crate) is_dropped: bool,
}

impl Located {
    /// The module of the library that contains it.
    pub(crate) fn module(&self) -> &str {
        self.file.split('/').nth(1).unwrap_or_default().trim_end_matches(".rs")
    }

    /// What names it in the list of explanations, which outlives changes of lines.
    pub(crate) fn key(&self) -> String {
        format!("{} | {} | {}", self.file, self.mutant.function, self.mutant.what)
    }
}

pub(crate) struct Tree {
    pub(crate) folder: PathBuf,
    pub(crate) mutants: Vec<Located>,
    /// The sources of the files with mistakes.
    sources: BTreeMap<String, String>,
}

/// The switch, as the copy's `src/mutant.rs`.
const SWITCH: &str = include_str!("switch.rs");

impl Tree {
    /// Copies the tracked files, and finds the mistakes in them.
    pub(crate) fn copy() -> Result<Self> {
        let folder = root().join("target/mutants");
        let (mut mutants, mut sources) = (Vec::new(), BTreeMap::new());
        for name in
            git(&["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?.split_terminator('\0')
        {
            // A file that was deleted, but not yet from the index.
            let Ok(contents) = fs::read(root().join(name)) else { continue };
            let module = name.strip_prefix("src/").and_then(|rest| rest.split(['/', '.']).next());
            let is_code = name.ends_with(".rs") && !name.contains("tests");
            if is_code && module.is_some_and(|module| MODULES.contains(&module)) {
                let text = String::from_utf8(contents)?;
                let found = find(&text).map_err(|e| format!("{name}: {e}"))?;
                mutants.extend(found.into_iter().map(|mutant| Located {
                    file: name.to_owned(),
                    mutant,
                    is_dropped: false,
                }));
                sources.insert(name.to_owned(), text);
                continue;
            }
            let contents = match name {
                "src/lib.rs" => with_switch(&String::from_utf8(contents)?).into_bytes(),
                _ => contents,
            };
            write(&folder.join(name), &contents)?;
        }
        let words = mutants.len().div_ceil(64).to_string();
        write(&folder.join("src/mutant.rs"), SWITCH.replace("WORDS_OF_ALL", &words).as_bytes())?;
        Ok(Self { folder, mutants, sources })
    }

    /// Writes the mistakes, leaving out those that do not compile.
    pub(crate) fn compile(&mut self) -> Result<()> {
        for round in 0.. {
            let places = self.write()?;
            let errors = self.errors()?;
            if errors.is_empty() {
                return Ok(());
            }
            let before = self.dropped();
            for error in &errors {
                let blamed = error.blamed(&places);
                if blamed.is_empty() {
                    return Err(format!("the copy does not compile: {}", error.text).into());
                }
                blamed.into_iter().for_each(|number| self.mutants[number].is_dropped = true);
            }
            println!("{} mistakes do not compile", self.dropped());
            if self.dropped() == before || round == 20 {
                return Err("the copy does not compile".into());
            }
        }
        Ok(())
    }

    fn dropped(&self) -> usize {
        self.mutants.iter().filter(|m| m.is_dropped).count()
    }

    fn write(&self) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        for (file, source) in &self.sources {
            let all = self.mutants.iter().enumerate();
            let own: Vec<_> = all
                .filter(|(_, m)| m.file == *file && !m.is_dropped)
                .map(|(number, m)| (number, &m.mutant))
                .collect();
            let rewritten = rewrite(source, &own);
            let place = |(number, own, all)| Place { file: file.clone(), number, own, all };
            places.extend(rewritten.places.into_iter().map(place));
            write(&self.folder.join(file), rewritten.text.as_bytes())?;
        }
        Ok(places)
    }

    /// Returns the errors of the compiler.
    fn errors(&self) -> Result<Vec<CompileError>> {
        let args = ["check", "--quiet", "-p", "gcodec", "--lib", "--message-format=json"];
        let output = self.cargo(&args).stderr(Stdio::null()).output()?;
        let mut errors = Vec::new();
        for line in String::from_utf8(output.stdout)?.lines() {
            let message: Value = serde_json::from_str(line)?;
            let message = &message["message"];
            let spans = message["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
            // The summary of all errors has no place.
            if message["level"] != "error" || spans.is_empty() {
                continue;
            }
            let span = |span: &Value| {
                let at = |key: &str| span[key].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
                (span["file_name"].as_str().unwrap_or_default().to_owned(), at("byte_start")..at("byte_end"))
            };
            let (first, others): (Vec<_>, Vec<_>) = spans.iter().partition(|s| s["is_primary"] == true);
            errors.push(CompileError {
                text: message["rendered"].as_str().unwrap_or_default().to_owned(),
                spans: [first, others].map(|spans| spans.into_iter().map(span).collect()),
            });
        }
        match errors.is_empty() && !output.status.success() {
            true => Err("the copy does not compile, without an error in a file".into()),
            false => Ok(errors),
        }
    }

    /// Returns the command that compiles in the copy.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command
            .args(["--config", "profile.dev.opt-level=1", "--config", "profile.dev.debug=false"])
            .args(args)
            .current_dir(&self.folder)
            // A mistake may be what a lint forbids.
            .env("RUSTFLAGS", "--cap-lints=allow")
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_TARGET_DIR", self.folder.join("target"));
        command
    }
}

/// An error of the compiler.
struct CompileError {
    text: String,
    /// Files and bytes: where it is, and what else it refers to.
    spans: [Vec<(String, Range<usize>)>; 2],
}

impl CompileError {
    /// Returns the mistakes whose own text the error is in; otherwise the smallest changed expression that it
    /// is in; otherwise those of the places that it refers to.
    fn blamed(&self, places: &[Place]) -> Vec<usize> {
        for spans in &self.spans {
            let meet = |range: &Range<usize>, other: &Range<usize>| {
                range.start < other.end && other.start < range.end
            };
            let own = |p: &&Place| spans.iter().any(|(file, range)| p.file == *file && meet(&p.own, range));
            let blamed: Vec<usize> = places.iter().filter(own).map(|p| p.number).collect();
            if !blamed.is_empty() {
                return blamed;
            }
            let all = |p: &&Place| spans.iter().any(|(file, range)| p.file == *file && meet(&p.all, range));
            if let Some(place) = places.iter().filter(all).min_by_key(|p| p.all.len()) {
                return vec![place.number];
            }
        }
        Vec::new()
    }
}

/// Where a mistake was written.
struct Place {
    file: String,
    number: usize,
    /// Its own text.
    own: Range<usize>,
    /// Its own text and the original.
    all: Range<usize>,
}

fn with_switch(library: &str) -> String {
    let first = library.find("\nmod ").or_else(|| library.find("\npub mod ")).unwrap_or(0);
    format!("{}\npub(crate) mod mutant;{}", &library[..first], &library[first..])
}

/// Writes a file, unless it has these contents: it is not compiled again then.
fn write(path: &Path, contents: &[u8]) -> Result<()> {
    if fs::read(path).ok().as_deref() != Some(contents) {
        fs::create_dir_all(path.parent().ok_or("a file without a folder")?)?;
        fs::write(path, contents)?;
    }
    Ok(())
}

fn git(args: &[&str]) -> Result<String> {
    let output = Command::new("git").args(args).current_dir(root()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// Returns the lines that differ from a commit: file and number.
pub(crate) fn changed_lines(commit: &str) -> Result<HashSet<(String, usize)>> {
    let mut lines = HashSet::new();
    let mut file = String::new();
    for line in git(&["diff", "--unified=0", "--no-color", "--no-ext-diff", commit, "--", "src"])?.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            name.clone_into(&mut file);
        } else if let Some(hunk) = line.strip_prefix("@@ ") {
            let new = hunk.split(' ').find_map(|part| part.strip_prefix('+')).unwrap_or("0,0");
            let (start, len) = new.split_once(',').unwrap_or((new, "1"));
            let (start, len): (usize, usize) = (start.parse()?, len.parse()?);
            lines.extend((start..start + len).map(|line| (file.clone(), line)));
        }
    }
    Ok(lines)
}
