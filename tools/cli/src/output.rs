//! Output of the commands: tables, numbers, and files that appear complete or not at all.

pub(crate) use crate::console::{note, print, warn};
use crate::fail::{InOutput, Result};
use crate::input::{Input, is_standard};
use crate::signals;
use comfy_table::CellAlignment;
use gcodec::file::AtomicFile;
use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text is aligned left.
    Left,
    /// Numbers are aligned right.
    Right,
}

/// A table of plain text: columns two spaces apart, no rules.
#[derive(Debug)]
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// Returns a table with these columns and no rows.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(columns.iter().map(|(title, _)| *title).collect::<Vec<_>>());
        for (column, (_, align)) in table.column_iter_mut().zip(columns) {
            column.set_padding((0, 2));
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        Self(table)
    }

    /// Adds a row; control characters are escaped.
    pub(crate) fn row(&mut self, cells: impl AsRef<[String]>) {
        self.0.add_row(cells.as_ref().iter().map(|cell| printable(cell)).collect::<Vec<_>>());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lines().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
    }
}

/// Escapes characters that control a terminal or the direction of text: names come from files, and must look
/// like what they are.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Whether a character has no width, ends a line or turns the direction of the text around it.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    )
}

/// Escapes a text for HTML, and characters that would not show what they are.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Formats a number of bytes with three digits: `999 B`, `1.23 MB`, `45.6 GB` (powers of 1000).
pub(crate) fn human_bytes(bytes: u64) -> String {
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut units = ["kB", "MB", "GB", "TB", "PB", "EB"].into_iter().peekable();
    // From 999.5 on, three digits round up to the next unit.
    while value >= 999.5 && units.len() > 1 {
        value /= 1000.0;
        units.next();
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {}", units.peek().unwrap_or(&"EB"))
}

/// Formats a number with commas between groups of three digits.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with its noun: `1 frame`, `2 frames`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// Formats a real number with four significant digits, in the shorter of the two notations.
pub(crate) fn real(value: f64) -> String {
    let mut out = String::new();
    let magnitude = value.abs();
    let plain = value == 0.0 || !value.is_finite() || (1e-3..1e5).contains(&magnitude);
    let written = match plain {
        true if value == 0.0 || !value.is_finite() => write!(out, "{value}"),
        // From 3 - 4 to 3 + 3 decimals, at least none.
        true => write!(out, "{value:.*}", (3.0 - magnitude.log10().floor()).max(0.0) as usize),
        false => write!(out, "{value:.3e}"),
    };
    debug_assert!(written.is_ok(), "writing to a String does not fail");
    out
}

/// Destination of a result: a file that appears complete or not at all, or a stream.
pub(crate) enum Output {
    /// Standard output, `-`.
    Stdout(BufWriter<StdoutLock<'static>>),
    /// An existing path that is no regular file: a pipe, a device.
    Stream(BufWriter<File>),
    /// A regular file, or a new one.
    File(AtomicFile),
}

impl Output {
    /// Opens the output at `path`; `-` is standard output.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        if is_standard(path) {
            return Ok(Self::Stdout(BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock())));
        }
        if fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
            let file = OpenOptions::new().write(true).open(path).in_output(path)?;
            return Ok(Self::Stream(BufWriter::with_capacity(BUFFER_BYTES, file)));
        }
        let file = AtomicFile::create(path).in_output(path)?;
        file.temporary().iter().for_each(|path| signals::begin(path));
        Ok(Self::File(file))
    }

    /// Returns what was written so far, if it can be read.
    pub(crate) fn written(&mut self) -> Result<Option<Input>> {
        let Self::File(file) = self else { return Ok(None) };
        Ok(Some(Input::Mapped(file.written()?)))
    }

    /// Flushes the buffer; a file is moved to its place.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Stdout(mut stdout) => stdout.flush(),
            Self::Stream(mut stream) => stream.flush(),
            Self::File(file) => {
                let temporary = file.temporary().map(Path::to_owned);
                let committed = file.commit();
                temporary.iter().for_each(|path| signals::end(path));
                committed
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stdout) => stdout.write(buf),
            Self::Stream(stream) => stream.write(buf),
            Self::File(file) => file.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.flush(),
            Self::Stream(stream) => stream.flush(),
            Self::File(file) => file.flush(),
        }
    }
}

/// An output that counts its bytes.
pub(crate) struct Counted {
    inner: Output,
    bytes: u64,
}

impl Counted {
    pub(crate) fn new(inner: Output) -> Self {
        Self { inner, bytes: 0 }
    }

    /// Like [`Output::finish`]; returns the number of bytes.
    pub(crate) fn finish(self) -> io::Result<u64> {
        self.inner.finish()?;
        Ok(self.bytes)
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

const BUFFER_BYTES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn sizes_have_three_digits() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9_994, "9.99 kB"),
            (9_996, "10.0 kB"),
            (99_960, "100 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (1_234_567, "1.23 MB"),
            (45_600_000_000, "45.6 GB"),
            (u64::MAX, "18.4 EB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn numbers() {
        assert_eq!([1, 2000].map(|n| counted(n, "frame")), ["1 frame", "2,000 frames"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        let cases = [0.0, -0.5, 0.001, 0.0009, 99_999.4, 100_000.0, f64::INFINITY, 12.345_6];
        assert_eq!(
            cases.map(real),
            ["0", "-0.5000", "0.001000", "9.000e-4", "99999", "1.000e5", "inf", "12.35"]
        );
        assert_eq!(real(f64::NAN), "NaN");
    }

    #[test]
    fn tables_are_aligned_and_harmless() {
        let mut table = Table::new(&[("tensor", Align::Left), ("elements", Align::Right)]);
        table.row(["a.weight".into(), "12".into()]);
        table.row(["\x1b[31mb\u{202e}".into(), "1,234,567".into()]);
        assert_eq!(
            table.to_string(),
            "tensor                elements\na.weight                    12\n\\u{1b}[31mb\\u{202e}  1,234,567\n"
        );
    }

    #[test]
    fn names_are_no_markup() {
        assert_eq!(escape("<b>&\"'\u{1b}\u{202e}"), "&lt;b&gt;&amp;&quot;&#39;\\u{1b}\\u{202e}");
    }

    #[test]
    fn a_file_appears_only_when_committed() {
        let dir = TempDir::new();
        let target = dir.path("out");
        fs::write(&target, "old").unwrap();

        let mut dropped = AtomicFile::create(&target).unwrap();
        dropped.write_all(b"half of the n").unwrap();
        let named = usize::from(dropped.temporary().is_some());
        assert_eq!(fs::read_dir(dir.root()).unwrap().count(), 1 + named);
        drop(dropped);
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.root()).unwrap().count(), 1);

        let mut output = Output::create(&target).unwrap();
        output.write_all(b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        output.finish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.root()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_is_no_target() {
        let dir = TempDir::new();
        assert!(Output::create(dir.root()).is_err());
        assert!(Output::create(&dir.path("missing/out")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link_and_permissions_stay() {
        use std::os::unix::fs::PermissionsExt;
        let dir = TempDir::new();
        let (real, link) = (dir.path("real"), dir.path("link"));
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let mut file = AtomicFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
