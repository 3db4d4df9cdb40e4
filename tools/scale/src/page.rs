//! Parts of `docs/scale.md` that commands write.

use crate::model::Growth;
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

/// Returns the growth of sums of top-k updates of each density, which `gcodec-study --scale --write` has
/// measured.
pub(crate) fn growths() -> Result<Vec<(f64, Growth)>> {
    let page = std::fs::read_to_string(root().join("docs/scale.md"))?;
    let mut growths: Vec<(f64, Growth)> = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| topk:density=") && line.contains(", merged |"))
    {
        let wrong = || format!("docs/scale.md: no row of sums: {line}");
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, scheme, workers, _, _, factor, _] = cells.as_slice() else { return Err(wrong().into()) };
        let density = density(scheme).ok_or_else(wrong)?;
        let point = (workers.parse()?, factor.trim_end_matches('x').parse()?);
        match growths.iter_mut().find(|(other, _)| *other == density) {
            Some((_, Growth(points))) => points.push(point),
            None => growths.push((density, Growth(vec![(1.0, 1.0), point]))),
        }
    }
    Ok(growths)
}

/// Returns the density in the name of a codec.
pub(crate) fn density(codec: &str) -> Option<f64> {
    codec.split_once("density=")?.1.split([',', ' ']).next()?.parse().ok()
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
    fn the_sums_of_the_page_grow_with_workers() {
        let growths = growths().unwrap();
        assert_eq!(growths.iter().map(|(density, _)| *density).collect::<Vec<_>>(), [0.1, 0.01, 0.001]);
        for (density, Growth(points)) in growths {
            assert!(points.len() == 7 && points.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{density}");
        }
    }

    #[test]
    fn lines_have_at_most_110_columns() {
        let text = "word ".repeat(60);
        let lines: Vec<usize> = wrapped(&text).lines().map(str::len).collect();
        assert_eq!(lines, [109, 109, 79]);
    }
}
