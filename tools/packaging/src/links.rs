//! Checks that every relative link of a Markdown page, and every folder in the map of CONTRIBUTING.md,
//! exists.

use std::path::{Path, PathBuf};

use crate::{Result, root};

/// Prints each link that leads nowhere; true if there is none.
pub fn check() -> Result<bool> {
    let root = root();
    let pages = pages(&root)?;
    let mut broken = 0;
    for page in &pages {
        let text = std::fs::read_to_string(page)?;
        let shown = page.strip_prefix(&root).unwrap_or(page).display();
        let folder = page.parent().unwrap_or(&root);
        let mut targets: Vec<PathBuf> = links(&text).iter().map(|link| folder.join(link)).collect();
        if *page == root.join("CONTRIBUTING.md") {
            targets.extend(map(&text).iter().map(|path| root.join(path)));
        }
        for target in targets.iter().filter(|target| !target.exists()) {
            println!("{shown}: {} does not exist", target.strip_prefix(&root).unwrap_or(target).display());
            broken += 1;
        }
    }
    println!("{} pages, {broken} broken links", pages.len());
    Ok(broken == 0)
}

/// Returns the Markdown pages of the project.
pub(crate) fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    find(root, &mut pages)?;
    Ok(pages)
}

fn find(folder: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let foreign = name.starts_with('.')
            || ["target", "node_modules", "corpus", "artifacts"].contains(&name.as_str());
        match path.is_dir() {
            true if !foreign => find(&path, pages)?,
            false if name.ends_with(".md") => pages.push(path),
            _ => {}
        }
    }
    Ok(())
}

/// Relative links outside code, without fragments.
pub(crate) fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2).flat_map(|part| part.split("](").skip(1));
    let targets = prose.filter_map(|rest| rest.split(')').next());
    let relative =
        targets.filter(|link| !link.contains("://") && !link.starts_with('#') && !link.contains(' '));
    relative.filter_map(|link| link.split('#').next()).collect()
}

/// Paths in the first column of the map.
fn map(text: &str) -> Vec<&str> {
    let table = text.split("## Map").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap_or_default();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    cells.flat_map(|cell| cell.split(", ").map(|path| path.trim().trim_matches('`'))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_rows_are_found() {
        let text = "[a](b.md#c) [d](https://e) `x` ![f](g.svg)\n```\n[h](i)\n```\n## Map\n| `src/`, `t/` | u |\n## V\n| `w` | |\n";
        assert_eq!(links(text), ["b.md", "g.svg"]);
        assert_eq!(map(text), ["src/", "t/"]);
    }
}
