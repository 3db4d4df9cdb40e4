//! Lists the requirements without a vector, and checks their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::Vector;
use crate::{Result, root};

pub(crate) fn run(vectors: &[Vector]) -> Result<()> {
    let wanted = requirements(&root().join("spec"))?;
    in_order(&root().join("spec"))?;
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
        found.extend(ids(&std::fs::read_to_string(page)?).map(str::to_owned));
    }
    Ok(found)
}

/// Returns the identifiers in bold brackets in the order of a text.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    let ids = text.split("**[").skip(1).filter_map(|rest| rest.split_once("]**"));
    ids.map(|(id, _)| id).filter(|id| is_id(id))
}

/// Checks that the identifiers of a prefix are on one page, and numbered from 1 in the order of its text.
fn in_order(folder: &Path) -> Result<()> {
    let mut all = BTreeSet::new();
    for page in pages(folder)? {
        let text = std::fs::read_to_string(&page)?;
        let mut last: BTreeMap<&str, u32> = BTreeMap::new();
        for (prefix, number) in ids(&text).filter_map(|id| id.split_once('-')) {
            let last = last.entry(prefix).or_default();
            *last += 1;
            if number.parse() != Ok(*last) {
                let page = page.display();
                return Err(format!("{page}: {prefix}-{number} stands where {prefix}-{last} has to").into());
            }
        }
        if let Some(prefix) = last.into_keys().find(|prefix| !all.insert((*prefix).to_owned())) {
            return Err(format!("requirements {prefix} are on two pages").into());
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_numbered_in_the_order_of_the_text() {
        in_order(&root().join("spec")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let checked = |texts: [&str; 2]| {
            for (name, text) in ["a.md", "b.md"].iter().zip(texts) {
                std::fs::write(folder.path().join(name), text).unwrap();
            }
            in_order(folder.path()).map_err(|e| e.to_string())
        };
        checked(["**[AB-1]** **[CD-1]** **[AB-2]**", "**[EF-1]**"]).unwrap();
        let two = checked(["**[AB-2]** **[AB-1]**", ""]).unwrap_err();
        assert!(two.ends_with("AB-2 stands where AB-1 has to"), "{two}");
        let gap = checked(["**[AB-1]** **[AB-3]**", ""]).unwrap_err();
        assert!(gap.ends_with("AB-3 stands where AB-2 has to"), "{gap}");
        let twice = checked(["**[AB-1]**", "**[AB-1]**"]).unwrap_err();
        assert_eq!(twice, "requirements AB are on two pages");
    }
}
