//! The width of prose: comments, doc comments and Markdown are at most 110 columns wide.

use std::path::Path;
use std::process::Command;

use gcodec_packaging::{Result, root};

const WIDTH: usize = 110;

/// Prints each line of prose that is too wide; true if there is none.
pub(crate) fn check() -> Result<bool> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output()?;
    if !listed.status.success() {
        return Err("git does not list the files".into());
    }
    let (mut files, mut wide) = (0, 0);
    for name in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        let Some(language) = Language::of(name) else { continue };
        // A deleted file is still listed until the deletion is staged.
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        files += 1;
        for (number, line) in prose(language, &text) {
            let width = line.chars().count();
            if width > WIDTH && !line.contains("://") {
                println!("{name}:{number}: {width} columns");
                wide += 1;
            }
        }
    }
    println!("{files} files, {wide} lines of prose wider than {WIDTH} columns");
    Ok(wide == 0 && files > 0)
}

#[derive(Clone, Copy, PartialEq)]
enum Language {
    Markdown,
    Python,
    /// The marks that a comment begins with.
    Code(&'static [&'static str]),
}

impl Language {
    fn of(name: &str) -> Option<Self> {
        match Path::new(name).extension()?.to_str()? {
            "md" => Some(Self::Markdown),
            "py" | "pyi" => Some(Self::Python),
            "rs" | "cu" | "cuh" | "c" | "h" | "cpp" | "hpp" | "js" => Some(Self::Code(&["//", "/*", "* "])),
            "toml" | "txt" | "yml" | "cmake" | "in" => Some(Self::Code(&["# "])),
            "lua" => Some(Self::Code(&["--"])),
            _ => None,
        }
    }
}

/// Returns the lines of prose with their numbers, without tables and blocks of code.
fn prose(language: Language, text: &str) -> Vec<(usize, &str)> {
    let (mut fenced, mut quoted) = (false, false);
    let code = if language == Language::Markdown { "    " } else { "     " };
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let content = match language {
            Language::Markdown => Some(line),
            Language::Python => {
                let opens = trimmed.starts_with("\"\"\"") || quoted && line.contains("\"\"\"");
                let is_prose = quoted || opens || trimmed.starts_with("# ");
                quoted ^= opens && line.matches("\"\"\"").count() % 2 == 1;
                is_prose.then_some(trimmed)
            }
            Language::Code(marks) => {
                let mark = marks.iter().find(|mark| trimmed.starts_with(**mark));
                mark.map(|mark| trimmed[mark.len()..].trim_start_matches(['/', '!']))
            }
        };
        // A block of code in a comment ends with the comment.
        let Some(content) = content else {
            fenced = false;
            continue;
        };
        if content.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !content.trim_start().starts_with('|') && !content.starts_with(code) {
            lines.push((number, line));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(name: &str, text: &str) -> Vec<usize> {
        prose(Language::of(name).unwrap(), text).into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn prose_is_found_and_code_is_not() {
        assert_eq!(numbers("a.md", "a\n| b |\n```\nc\n```\n     d\ne"), [1, 7]);
        assert_eq!(numbers("a.rs", "let a; // b\n    /// c\n//! | d |\n// ```\n// e\nf\n// g"), [2, 7]);
        assert_eq!(numbers("a.py", "a = 1\n# b\n\"\"\"c\nd\n\"\"\"\ne = \"\"\"f\"\"\"\ng"), [2, 3, 4, 5]);
        assert_eq!(numbers("a.lua", "-- a\nb"), [1]);
        assert!(Language::of("a.csv").is_none());
    }
}
