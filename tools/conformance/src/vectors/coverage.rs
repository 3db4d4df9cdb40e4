//! Lists the requirements without a vector.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Vector;
use crate::{Result, root};

pub(crate) fn run(vectors: &[Vector]) -> Result<()> {
    let wanted = requirements(&root().join("spec"))?;
    let covered: BTreeSet<&str> = vectors.iter().flat_map(|v| v.requirements.iter().copied()).collect();
    let unknown: Vec<_> = covered.iter().filter(|r| !wanted.contains(**r)).copied().collect();
    let missing: Vec<_> = wanted.iter().filter(|r| !covered.contains(r.as_str())).cloned().collect();
    missing.iter().for_each(|r| println!("{r}"));
    if !unknown.is_empty() {
        return Err(format!("vectors name requirements that the spec does not have: {unknown:?}").into());
    }
    if !missing.is_empty() {
        return Err(format!("{} of {} requirements have no vector", missing.len(), wanted.len()).into());
    }
    Ok(())
}

/// Returns the identifiers in bold brackets on all pages below `folder`.
fn requirements(folder: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for page in pages(folder)? {
        let text = std::fs::read_to_string(page)?;
        let ids = text.split("**[").skip(1).filter_map(|rest| rest.split_once("]**"));
        found.extend(ids.map(|(id, _)| id.to_owned()).filter(|id| is_id(id)));
    }
    Ok(found)
}

fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            pages.append(&mut self::pages(&path)?);
        } else if path.extension().is_some_and(|e| e == "md") {
            pages.push(path);
        }
    }
    Ok(pages)
}

/// Whether a text is at least two capitals or digits, a hyphen, and a number.
fn is_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(area, number)| {
        area.len() >= 2
            && area.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
            && !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}
