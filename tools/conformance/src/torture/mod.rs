//! Torture: corruption, kills, full disks, races, bombs, and time, with counted outcomes. `cargo xtask
//! torture` is the long form; `cargo xtask test` runs `--quick`.

mod bombs;
mod crash;
mod damage;
mod disk;
mod linear;
mod race;
mod scratch;
mod sources;

use std::fmt::Write;
use std::time::Instant;

use crate::page::paragraph;
use crate::{Result, root};

const PAGE: &str = "docs/torture.md";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Tests less of everything: about a minute
    #[arg(long)]
    quick: bool,
    /// Runs only the parts whose name contains this: damage, crash, disk, race, bombs, linear.
    #[arg(long)]
    only: Option<String>,
    /// Writes the parts that ran to docs/torture.md
    #[arg(long)]
    write: bool,
    /// Reads a bomb and prints its cost; `bombs` runs this in a separate process.
    #[arg(long, hide = true, num_args = 2)]
    read: Option<Vec<String>>,
}

/// One part of the page: its tables and violations.
pub(crate) struct Section {
    title: &'static str,
    about: String,
    columns: &'static [&'static str],
    rows: Vec<Vec<String>>,
    /// Violations as text; none is allowed.
    wrong: Vec<String>,
    /// Tests that this machine cannot run.
    skipped: Vec<String>,
}

impl Section {
    pub(crate) fn new(
        title: &'static str,
        about: impl Into<String>,
        columns: &'static [&'static str],
    ) -> Self {
        Self { title, about: about.into(), columns, rows: Vec::new(), wrong: Vec::new(), skipped: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        println!("   {}", cells.join(" | "));
        self.rows.push(cells);
    }

    pub(crate) fn wrong(&mut self, what: impl Into<String>) {
        let what = what.into();
        println!("   WRONG: {what}");
        self.wrong.push(what);
    }

    pub(crate) fn skipped(&mut self, why: impl Into<String>) {
        let why = why.into();
        println!("   SKIPPED: {why}");
        self.skipped.push(why);
    }

    fn table(&self) -> String {
        let mut out = format!("\n## {}\n\n{}\n", self.title, paragraph(&self.about));
        let _ = writeln!(out, "| {} |", self.columns.join(" | "));
        let rule = |column: &&str| if column.starts_with(char::is_uppercase) { "---" } else { "---:" };
        let _ = writeln!(out, "|{}|", self.columns.iter().map(rule).collect::<Vec<_>>().join("|"));
        for row in &self.rows {
            let _ = writeln!(out, "| {} |", row.join(" | "));
        }
        for why in &self.skipped {
            let _ = writeln!(out, "\nNot tested on this machine: {why}.");
        }
        for what in &self.wrong {
            let _ = writeln!(out, "\n**Wrong**: {what}");
        }
        out
    }
}

type Run = fn(quick: bool) -> Result<Vec<Section>>;

const PARTS: &[(&str, Run)] = &[
    ("damage", damage::run),
    ("crash", crash::run),
    ("disk", disk::run),
    ("race", race::run),
    ("bombs", bombs::run),
    ("linear", linear::run),
];

/// Runs all parts; true without violations.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if let Some(read) = &args.read {
        return bombs::read(&read[0], &read[1]).map(|()| true);
    }
    let (mut parts, mut wrong) = (Vec::new(), 0);
    for (name, run) in PARTS {
        if args.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let start = Instant::now();
        println!("-- {name}");
        let sections = run(args.quick)?;
        let form = if args.quick { "quick" } else { "long" };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let seconds = thousands(start.elapsed().as_secs());
        let mut part =
            format!("\n`{name}`, the {form} form, took {seconds} s on a machine of {cores} cores.\n");
        for section in sections {
            wrong += section.wrong.len();
            part += &section.table();
        }
        println!("-- {name}: {seconds} s");
        parts.push((*name, part));
    }
    println!("{wrong} wrong");
    if args.write && wrong == 0 {
        write_page(&parts)?;
    }
    Ok(wrong == 0)
}

/// Writes the page with these parts; other parts of the page stay.
fn write_page(parts: &[(&str, String)]) -> Result<()> {
    let path = root().join(PAGE);
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let mut page = format!(
        "# Faults, bombs and time\n\n{}",
        paragraph(
            "How does the library behave when things go wrong? `cargo xtask torture --write` makes this page, part \
             by part. `cargo xtask torture --quick` is a shorter form and a step of `cargo xtask test`. The command \
             fails if a row has a violation."
        )
    );
    // Not run from here: its tests are those of the crate gcodec-store.
    for name in PARTS.iter().map(|(name, _)| *name).chain(["store"]) {
        let mark = format!("\n<!-- {name} -->\n");
        let new = parts.iter().find(|(n, _)| *n == name).map(|(_, part)| part.as_str());
        let kept = || old.split_once(&mark).map(|(_, rest)| rest.split("\n<!-- ").next().unwrap_or(rest));
        if let Some(part) = new.or_else(kept) {
            page += &mark;
            page += part;
        }
    }
    Ok(std::fs::write(path, page)?)
}

/// Formats a number with commas between groups of three digits.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
