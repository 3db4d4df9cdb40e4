//! The order of names: numbers in them count as numbers, so that `checkpoint-200` comes before
//! `checkpoint-1000`.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// Compares two names by their numbers.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a, b);
    loop {
        let (Some(c), Some(d)) = (x.chars().next(), y.chars().next()) else {
            // Of equal numbers with zeros before them, the bytes decide: no two names are equal.
            return x.len().cmp(&y.len()).then_with(|| a.cmp(b));
        };
        if c.is_ascii_digit() && d.is_ascii_digit() {
            let (m, n) = (number(&mut x), number(&mut y));
            match m.len().cmp(&n.len()).then_with(|| m.cmp(n)) {
                Ordering::Equal => continue,
                other => return other,
            }
        }
        match c.cmp(&d) {
            Ordering::Equal => (x, y) = (&x[c.len_utf8()..], &y[d.len_utf8()..]),
            other => return other,
        }
    }
}

/// Takes the digits at the beginning; returns them without zeros before them.
fn number<'a>(text: &mut &'a str) -> &'a str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    digits.trim_start_matches('0')
}

/// Compares two paths, folder by folder.
pub(crate) fn compare_paths(a: &Path, b: &Path) -> Ordering {
    let (mut x, mut y) = (a.components(), b.components());
    loop {
        match (x.next(), y.next()) {
            (Some(c), Some(d)) => {
                let (c, d) = (c.as_os_str(), d.as_os_str());
                match compare(&c.to_string_lossy(), &d.to_string_lossy()).then_with(|| c.cmp(d)) {
                    Ordering::Equal => {}
                    other => return other,
                }
            }
            (x, y) => return x.is_some().cmp(&y.is_some()),
        }
    }
}

/// Puts the inputs of a command line that stand as a shell's `*` gives them, in the order of letters, in the
/// order of their numbers. What a user orders in another way stays so.
///
/// A shell orders each `*` for itself: inputs in a row whose names differ in numbers alone are such a group.
pub(crate) fn arranged(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = paths.to_vec();
    if is_of_letters(&paths) {
        paths.sort_by(|a, b| compare_paths(a, b));
        return paths;
    }
    for group in paths.chunk_by_mut(|a, b| pattern(a) == pattern(b)) {
        if is_of_letters(group) {
            group.sort_by(|a, b| compare_paths(a, b));
        }
    }
    paths
}

/// Whether paths stand in the order of bytes, or in that of most languages, which look at letters and
/// digits first.
fn is_of_letters(paths: &[PathBuf]) -> bool {
    let letters = |path: &PathBuf| -> String {
        path.to_string_lossy().to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect()
    };
    paths.is_sorted_by_key(|path| path.as_os_str()) || paths.is_sorted_by_key(letters)
}

/// Returns a path with `0` in the place of each number.
fn pattern(path: &Path) -> String {
    let text = path.to_string_lossy();
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        if !(c == '0' && pattern.ends_with('0')) {
            pattern.push(c);
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_as_numbers() {
        let sorted = [
            "",
            "a",
            "a1",
            "a01",
            "a2",
            "a10",
            "a10.b9",
            "a10.b10",
            "a99999999999999999999999",
            "a100000000000000000000000",
            "b",
            "é2",
            "é10",
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                // Names that differ in zeros alone are ordered by their bytes.
                if [a, b] != [&"a1", &"a01"] && [a, b] != [&"a01", &"a1"] {
                    assert_eq!(compare(a, b), i.cmp(&j), "{a} {b}");
                }
            }
        }
        assert_eq!(compare("a01", "a1"), Ordering::Less);
    }

    #[test]
    fn arguments_of_a_shell_are_arranged_and_others_are_not() {
        let check = |given: &[&str], expected: &[&str]| {
            let given: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(arranged(&given), expected);
        };
        // By bytes, and as in English.
        check(&["c-100/m", "c-1000/m", "c-200/m"], &["c-100/m", "c-200/m", "c-1000/m"]);
        check(&["c-1000/m", "c-100/m", "c-200/m"], &["c-100/m", "c-200/m", "c-1000/m"]);
        check(&["g10.pt", "g10_b.pt", "g9.pt"], &["g9.pt", "g10.pt", "g10_b.pt"]);
        // Two patterns, or a file before one.
        check(&["z.pt", "s1.pt", "s10.pt", "s2.pt"], &["z.pt", "s1.pt", "s2.pt", "s10.pt"]);
        check(&["b/10", "b/9", "a/10", "a/9"], &["b/9", "b/10", "a/9", "a/10"]);
        check(&["s2", "s10", "s1"], &["s2", "s10", "s1"]);
        check(&["new", "base"], &["new", "base"]);
        check(&[], &[]);
    }
}
