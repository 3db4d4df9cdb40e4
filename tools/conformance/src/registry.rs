//! The registry of ids: reads `spec/registry.toml`, and keeps the tables of `spec/gcodec.md` equal to it.

use std::fmt::Write;

use crate::{Result, root};

/// Action on the tables; `--check` if none is given.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(crate) struct Args {
    /// Writes the tables into spec/gcodec.md.
    #[arg(long)]
    write: bool,
    /// Fails if the tables in spec/gcodec.md are out of date.
    #[arg(long)]
    check: bool,
}

const PAGE: &str = "spec/gcodec.md";
const BEGIN: &str = "<!-- ids -->\n";
const END: &str = "<!-- end of ids -->\n";

pub(crate) fn run(args: &Args) -> Result<()> {
    let path = root().join(PAGE);
    let found = std::fs::read_to_string(&path)?;
    let text = with_tables(&found, &tables(&entries(&read()?)))?;
    if args.write {
        return Ok(std::fs::write(path, text)?);
    }
    match text == found {
        true => Ok(()),
        false => Err(format!("the tables in {PAGE} are out of date: cargo xtask ids --write").into()),
    }
}

/// Returns the text of the registry.
pub(crate) fn read() -> Result<String> {
    Ok(std::fs::read_to_string(root().join("spec/registry.toml"))?)
}

/// An id of the registry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Entry<'a> {
    pub(crate) table: &'a str,
    pub(crate) id: u64,
    pub(crate) name: &'a str,
    /// Bits of an element, if the table has them.
    bits: Option<u64>,
    /// Page that defines the kind, relative to `spec/`, if the table has one.
    page: Option<&'a str>,
    /// Version of the format that added the id.
    since: &'a str,
}

/// Returns the ids in the order of the registry. Reads only the part of TOML that the registry uses.
pub(crate) fn entries(registry: &str) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut open = None;
    for line in registry.lines() {
        if let Some(table) = line.strip_prefix('[') {
            // A single bracket begins a table without ids.
            open = table.strip_prefix('[').map(|table| table.trim_end_matches("]]"));
            if let Some(table) = open {
                entries.push(Entry { table, id: 0, name: "", bits: None, page: None, since: "" });
            }
        } else if let (Some((key, value)), Some(_), Some(entry)) =
            (line.split_once(" = "), open, entries.last_mut())
        {
            let text = value.trim_matches('"');
            match key {
                "id" => entry.id = number(text).unwrap_or(0),
                "name" => entry.name = text,
                "bits" => entry.bits = number(text),
                "page" => entry.page = Some(text),
                "since" => entry.since = text,
                _ => {}
            }
        }
    }
    entries
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns a Markdown table for each table of the registry.
fn tables(entries: &[Entry<'_>]) -> String {
    let mut out = String::new();
    for table in entries.chunk_by(|a, b| a.table == b.table) {
        let (bits, page) = (table[0].bits.is_some(), table[0].page.is_some());
        let _ = writeln!(out, "\n**{}**\n", table[0].table);
        let mut row = |cells: [&str; 5]| {
            let [id, name, of_bits, of_page, since] = cells;
            let wanted = [(id, true), (name, true), (of_bits, bits), (of_page, page), (since, true)];
            let cells: Vec<&str> = wanted.into_iter().filter(|(_, w)| *w).map(|(cell, _)| cell).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        };
        row(["id", "name", "bits", "page", "since"]);
        row(["---"; 5]);
        for entry in table {
            let id = if entry.id < 256 { entry.id.to_string() } else { format!("{:#06x}", entry.id) };
            let bits = entry.bits.map(|bits| bits.to_string()).unwrap_or_default();
            let page = entry.page.map(link).unwrap_or_default();
            row([&id, entry.name, &bits, &page, entry.since]);
        }
    }
    out.push('\n');
    out
}

/// Returns a link to a page of the spec from `spec/gcodec.md`.
fn link(page: &str) -> String {
    if PAGE.ends_with(page) { "this page".to_owned() } else { format!("[{page}]({page})") }
}

/// Returns the page with these tables between its marks.
fn with_tables(page: &str, tables: &str) -> Result<String> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or(format!("{PAGE} has no marks for the tables of ids"))?;
    Ok(format!("{before}{BEGIN}{tables}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTRY: &str = "[format]\nmajor = 1\n\n[[frame]]\nid = 0x8001\nname = \"a\"\npage = \"gcodec.md\"\n\
                            since = \"1.0\"\n\n[[dtype]]\nid = 9\nname = \"b\"\nbits = 4\nsince = \"1.1\"\n";

    #[test]
    fn entries_are_read() {
        let frame = Entry {
            table: "frame",
            id: 0x8001,
            name: "a",
            bits: None,
            page: Some("gcodec.md"),
            since: "1.0",
        };
        let dtype = Entry { table: "dtype", id: 9, name: "b", bits: Some(4), page: None, since: "1.1" };
        assert_eq!(entries(REGISTRY), [frame, dtype]);
    }

    #[test]
    fn tables_replace_what_is_between_the_marks() {
        let text = tables(&entries(REGISTRY));
        assert!(text.contains("| id | name | page | since |\n| --- | --- | --- | --- |\n"), "{text}");
        assert!(text.contains("| 0x8001 | a | this page | 1.0 |\n"), "{text}");
        assert!(text.contains("| 9 | b | 4 | 1.1 |\n"), "{text}");
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        assert_eq!(with_tables(&page, &text).unwrap(), format!("before\n{BEGIN}{text}{END}after\n"));
        assert!(with_tables("no marks", &text).is_err());
    }
}
