//! The terminal: its width, colours, and small drawings of text.

use std::io::IsTerminal;

/// Width of output that is no terminal.
const PIPE_WIDTH: usize = 100;
/// Narrowest and widest output.
const WIDTHS: std::ops::RangeInclusive<usize> = 40..=240;

/// How to print to standard output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    /// Columns.
    pub(crate) width: usize,
    colour: bool,
}

/// Meaning of a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ink {
    /// A heading.
    Bold,
    /// Less important text.
    Dim,
    /// A good result.
    Good,
    /// An odd value.
    Odd,
    /// An error or a loss.
    Bad,
}

impl Terminal {
    /// Looks at standard output. COLUMNS sets its width; NO_COLOR, pipes and dumb terminals have no colour.
    pub(crate) fn of_stdout() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        #[cfg(not(target_family = "wasm"))]
        let size = || terminal_size::terminal_size().filter(|_| is_terminal).map(|(width, _)| width.0.into());
        #[cfg(target_family = "wasm")]
        let size = || None;
        let width: usize = columns.or_else(size).unwrap_or(PIPE_WIDTH);
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour = is_terminal && !is_set("NO_COLOR") && !is_dumb;
        Self { width: width.clamp(*WIDTHS.start(), *WIDTHS.end()), colour }
    }

    /// Returns a terminal of this width without colours.
    #[cfg(test)]
    pub(crate) fn plain(width: usize) -> Self {
        Self { width, colour: false }
    }

    /// Colours a text that is already as wide as it must be.
    pub(crate) fn paint(&self, ink: Ink, text: &str) -> String {
        let code = match ink {
            _ if !self.colour || text.is_empty() => return text.to_owned(),
            Ink::Bold => 1,
            Ink::Dim => 2,
            Ink::Good => 32,
            Ink::Odd => 33,
            Ink::Bad => 31,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws counts as at most `width` columns, by the logarithm of each count: one element is as visible as it
/// must be. A column without elements is a space.
pub(crate) fn sparkline(counts: &[u64], width: usize) -> String {
    let per = counts.len().div_ceil(width.max(1)).max(1);
    let columns: Vec<u64> = counts.chunks(per).map(|part| part.iter().sum()).collect();
    let most = columns.iter().copied().max().unwrap_or(0);
    let height = |count: u64| {
        let share = (count as f64).ln_1p() / (most as f64).ln_1p();
        LEVELS[((share * 8.0).ceil() as usize).clamp(1, 8) - 1]
    };
    columns.iter().map(|&count| if count == 0 { ' ' } else { height(count) }).collect()
}

/// Draws a share of 0 to 1 as a bar of `width` columns, to an eighth of a column.
pub(crate) fn bar(share: f64, width: usize) -> String {
    let parts = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let mut out = "█".repeat(eighths / 8);
    out.extend((!eighths.is_multiple_of(8)).then(|| parts[eighths % 8 - 1]));
    out.extend(std::iter::repeat_n(' ', width.saturating_sub(out.chars().count())));
    out
}

/// Cuts the middle out of a text that is wider than `width`.
pub(crate) fn fit(text: &str, width: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= width {
        return text.to_owned();
    }
    let keep = width.saturating_sub(1);
    let (front, back) = (keep / 3, keep - keep / 3);
    chars[..front].iter().chain(&['…']).chain(&chars[chars.len() - back..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_have_their_width() {
        assert_eq!(sparkline(&[0, 1, 10, 1000], 10), " ▁▃█");
        assert_eq!(sparkline(&[1; 100], 10).chars().count(), 10);
        assert_eq!((sparkline(&[], 5), sparkline(&[0], 5)), (String::new(), " ".to_owned()));
        for share in [0.0, 0.01, 0.3, 0.999, 1.0, 7.0] {
            assert_eq!(bar(share, 12).chars().count(), 12);
        }
        assert_eq!(bar(0.5, 4), "██  ");
        assert_eq!(fit("layers.0.attention.weight", 12), "lay…n.weight");
        assert_eq!((fit("abc", 3), fit("abcd", 3)), ("abc".to_owned(), "…cd".to_owned()));
    }

    #[test]
    fn a_pipe_has_no_colour() {
        assert_eq!(Terminal::plain(80).paint(Ink::Bad, "x"), "x");
        let terminal = Terminal { width: 80, colour: true };
        assert_eq!(terminal.paint(Ink::Bad, "x"), "\x1b[31mx\x1b[0m");
    }
}
