//! Comparison of the table of codecs in `docs/codecs.md` with the codecs.

use gcodec::Codec;

/// Returns the name cell and the options cell of each row of the page's first table.
fn rows(page: &str) -> Vec<(&str, &str)> {
    let table = page.lines().skip_while(|line| !line.starts_with("| codec |")).skip(2);
    table
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            (cells[1].trim_matches('`'), cells[4])
        })
        .collect()
}

/// Returns `key=default` of every option in a cell: the code spans with an equals sign.
fn defaults(cell: &str) -> String {
    let spans = cell.split('`').skip(1).step_by(2).filter(|span| span.contains('='));
    spans.collect::<Vec<_>>().join(",")
}

#[test]
fn every_codec_has_a_row_with_its_defaults() {
    let rows = rows(include_str!("../../docs/codecs.md"));
    for (name, cell) in &rows {
        let short: Codec = name.parse().unwrap();
        let long: Codec = format!("{name}:{}", defaults(cell)).parse().unwrap();
        assert_eq!(short, long, "{name}");
    }
    let mut listed: Vec<&str> = rows.iter().map(|(name, _)| *name).collect();
    let mut known = Codec::NAMES.to_vec();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known);
}

#[test]
fn every_option_of_a_codec_is_in_its_row() {
    for (name, cell) in rows(include_str!("../../docs/codecs.md")) {
        let error = format!("{name}:no-such-key=1").parse::<Codec>().unwrap_err().to_string();
        let keys = error.rsplit_once("allowed are ").unwrap().1;
        for key in keys.split(", ").filter(|key| *key != "none") {
            let listed = cell.contains(&format!("`{key}=")) || cell.contains(&format!("`{key}`"));
            assert!(listed, "{name} lacks {key}");
        }
    }
}
