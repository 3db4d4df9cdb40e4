//! Prose of generated pages.

/// Widest line of prose, in characters.
const WIDTH: usize = 110;

/// Wraps a paragraph; it ends in a line feed.
pub(crate) fn paragraph(text: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        match width {
            0 => width = len,
            _ if width + 1 + len > WIDTH => {
                out.push('\n');
                width = len;
            }
            _ => {
                out.push(' ');
                width += 1 + len;
            }
        }
        out.push_str(word);
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_full_and_never_wider() {
        let text = paragraph(&"abc ".repeat(100));
        assert!(text.lines().all(|line| line.len() <= WIDTH));
        assert_eq!(text.lines().next().map(str::len), Some(107));
        assert_eq!(text.split_whitespace().count(), 100);
    }
}
