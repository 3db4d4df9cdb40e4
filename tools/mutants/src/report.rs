//! Prints the table of mistakes by module, and the survivors.

use std::collections::BTreeMap;
use std::fs;

use gcodec_packaging::{Result, root};

use crate::MODULES;
use crate::run::{End, Results, names};
use crate::tree::Tree;

const PAGE: &str = "docs/mutants.md";
const EXPLAINED: &str = "tools/mutants/explained.txt";
const MARKS: [&str; 2] = ["<!-- table -->", "<!-- end of the table -->"];

/// Prints the results; true if every survivor is explained. `write`: also writes the page.
pub(crate) fn report(tree: &Tree, results: &Results, write: bool) -> Result<bool> {
    let explained = explained()?;
    let mut rows: BTreeMap<&str, Row> = MODULES.iter().map(|module| (*module, Row::default())).collect();
    let (mut unexplained, mut survivors) = (0, Vec::new());
    for (mutant, name) in tree.mutants.iter().zip(names(tree)) {
        let row = rows.entry(mutant.module()).or_default();
        let Some(end) = results.get(&name) else { continue };
        row.ends[*end as usize] += 1;
        if matches!(end, End::Survived | End::NotReached) {
            let key = mutant.key();
            let is_explained = explained.iter().any(|pattern| matches(pattern, &key));
            row.explained += usize::from(is_explained);
            if !is_explained {
                unexplained += 1;
                let what = if *end == End::NotReached { "not reached" } else { "survived" };
                println!("{what}: {}:{} | {}", mutant.file, mutant.mutant.line, key);
            }
            survivors.push(key);
        }
    }
    let text = table(&rows);
    println!("\n{text}\n{unexplained} survivors without an explanation in {EXPLAINED}");
    let is_used = |pattern: &&String| survivors.iter().any(|key| matches(pattern, key));
    explained.iter().filter(|p| write && !is_used(p)).for_each(|p| println!("explains no survivor: {p}"));
    if write {
        let page = fs::read_to_string(root().join(PAGE))?;
        let (head, rest) = page.split_once(MARKS[0]).ok_or("docs/mutants.md has no mark")?;
        let (_, tail) = rest.split_once(MARKS[1]).ok_or("docs/mutants.md has no second mark")?;
        let all = format!("{head}{}\n\n{text}\n{}{tail}", MARKS[0], MARKS[1]);
        fs::write(root().join(PAGE), all)?;
    }
    Ok(unexplained == 0)
}

#[derive(Default)]
struct Row {
    ends: [usize; 5],
    explained: usize,
}

fn table(rows: &BTreeMap<&str, Row>) -> String {
    let mut text =
        "| module | mistakes | a test fails | a test takes too long | survive | of these explained |\n\
                    |---|---:|---:|---:|---:|---:|\n"
            .to_owned();
    let mut line = |name: &str, row: &Row| {
        let [killed, slow, survived, not_reached, _] = row.ends;
        let survived = survived + not_reached;
        let all = killed + slow + survived;
        let explained = row.explained;
        text += &format!("| {name} | {all} | {killed} | {slow} | {survived} | {explained} |\n");
    };
    let mut sum = Row::default();
    for (module, row) in rows {
        line(&format!("`{module}`"), row);
        sum.ends.iter_mut().zip(row.ends).for_each(|(sum, n)| *sum += n);
        sum.explained += row.explained;
    }
    line("all", &sum);
    text
}

/// Returns the results of mistakes that a test noticed or that are explained.
pub(crate) fn settled(mut results: Results) -> Result<Results> {
    let explained = explained()?;
    let is_explained = |key: &str| explained.iter().any(|pattern| matches(pattern, key));
    results.retain(|(key, _), end| matches!(end, End::Killed | End::Slow) || is_explained(key));
    Ok(results)
}

/// Returns the patterns of the survivors that are explained.
fn explained() -> Result<Vec<String>> {
    let text = fs::read_to_string(root().join(EXPLAINED))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let pattern = |line: &str| match line.rsplit_once(" | ") {
        Some((pattern, _)) => Ok(pattern.to_owned()),
        None => Err(format!("{EXPLAINED}: no reason: {line}").into()),
    };
    lines.map(pattern).collect()
}

/// Whether a key matches a pattern, in which `*` stands for any text.
fn matches(pattern: &str, key: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| key.strip_prefix(first)) else { return false };
    let mut ends = rest.is_empty();
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
        ends = part.is_empty() || rest.is_empty() || pattern.ends_with(part) && key.ends_with(part);
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, key) in
            [("a | b", "a | b"), ("a*", "a | b"), ("*b", "a | b"), ("a*|*b", "a | x | b"), ("*b", "b b")]
        {
            assert!(matches(pattern, key), "{pattern} {key}");
        }
        for (pattern, key) in [("a", "a | b"), ("b*", "a | b"), ("*a", "a | b"), ("a*x*", "a | b")] {
            assert!(!matches(pattern, key), "{pattern} {key}");
        }
    }

    #[test]
    fn every_explanation_has_a_reason() {
        explained().unwrap();
    }
}
