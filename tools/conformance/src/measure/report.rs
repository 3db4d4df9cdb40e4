//! The table of measurements.

use std::fmt;

use crate::page::paragraph;

/// Target of a measurement.
#[derive(Clone, Copy)]
pub(crate) enum Must {
    AtMost(f64),
    AtLeast(f64),
    /// No target: a value for comparison.
    Be,
}

impl Must {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
            Self::Be => true,
        }
    }
}

struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    must: Must,
}

struct Section {
    title: &'static str,
    about: &'static str,
    rows: Vec<Row>,
}

#[derive(Default)]
pub(crate) struct Report {
    sections: Vec<Section>,
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn section(&mut self, title: &'static str, about: &'static str) {
        self.sections.push(Section { title, about, rows: Vec::new() });
    }

    pub(crate) fn row(&mut self, what: impl Into<String>, value: f64, unit: &'static str, must: Must) {
        if let Some(section) = self.sections.last_mut() {
            section.rows.push(Row { what: what.into(), value, unit, must });
        }
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn all_reached(&self) -> bool {
        self.sections.iter().flat_map(|s| &s.rows).all(|r| r.must.holds(r.value))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = "How large are encoded updates? `cargo xtask measure --write` makes this page. Every number counts \
                     bytes that were written and read back.";
        write!(f, "# Measured sizes\n\n{}", paragraph(about))?;
        for section in &self.sections {
            writeln!(
                f,
                "\n## {}\n\n{}\n| what | measured | unit | target | |\n|---|---:|---|---|---|",
                section.title,
                paragraph(section.about)
            )?;
            for row in &section.rows {
                let must = match row.must {
                    Must::AtMost(limit) => format!("<= {limit}"),
                    Must::AtLeast(limit) => format!(">= {limit}"),
                    Must::Be => String::new(),
                };
                let mark = match row.must {
                    Must::Be => "",
                    must if must.holds(row.value) => "ok",
                    _ => "**missed**",
                };
                writeln!(f, "| {} | {:.3} | {} | {must} | {mark} |", row.what, row.value, row.unit)?;
            }
        }
        for note in &self.notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}
