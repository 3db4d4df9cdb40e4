//! Parts of `docs/scale.md` that commands write.

use crate::{Result, root};

/// Replaces the part of the page that begins with the marker of this name.
pub(crate) fn replace(name: &str, text: &str) -> Result<()> {
    let path = root().join("docs/scale.md");
    let page = std::fs::read_to_string(&path)?;
    let (begin, end) = (format!("<!-- {name}: from here -->"), format!("<!-- {name}: to here -->"));
    let (head, rest) = page.split_once(&begin).ok_or_else(|| format!("docs/scale.md has no {begin}"))?;
    let (_, tail) = rest.split_once(&end).ok_or_else(|| format!("docs/scale.md has no {end}"))?;
    Ok(std::fs::write(path, format!("{head}{begin}\n{}\n{end}{tail}", text.trim_end()))?)
}

/// Wraps a paragraph at 110 columns.
pub(crate) fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 110 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_at_most_110_columns() {
        let text = "word ".repeat(60);
        let lines: Vec<usize> = wrapped(&text).lines().map(str::len).collect();
        assert_eq!(lines, [109, 109, 79]);
    }
}
