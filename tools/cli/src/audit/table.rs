//! An audit as text and as CSV.

use super::change::Change;
use super::{Audit, Row, Step};
use crate::fail::Result;
use crate::inspect::view;
use crate::output::{Align, Table, counted, thousands};
use crate::records::{self, Column};

/// Distances with columns of their own: 1, 2, 3 to 4, 5 to 8. The last column has all others.
const SHOWN: usize = 4;
/// Most lines of steps.
const STEPS: usize = 16;

/// Formats an audit: a table of the steps, and one of the tensors over all steps.
pub(super) fn text(audit: &Audit, top: usize) -> String {
    let sum = audit.steps.iter().fold(Change::default(), |mut sum, step| {
        sum += &step.change;
        sum
    });
    let mut out = format!(
        "{}, {} elements; {} of them changed at least once{}\n\n",
        counted(audit.steps.len() as u64, "step"),
        thousands(audit.elements),
        view::percent(audit.ever as f64 / audit.elements.max(1) as f64),
        if audit.steps.iter().any(|step| step.guessed) { "; step and sender are from names" } else { "" },
    );
    let mut steps = Table::new(&[&[("step", Align::Right), ("sender", Align::Right)], &COLUMNS[..]].concat());
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let row = |step: &Step| [vec![number(step.step), number(step.sender)], cells(&step.change)].concat();
    // Of many steps, the first and the last.
    let (first, last) = match audit.steps.len() {
        len if len <= STEPS => (&audit.steps[..], &[][..]),
        len => (&audit.steps[..STEPS / 2], &audit.steps[len - STEPS / 2..]),
    };
    first.iter().for_each(|step| steps.row(row(step)));
    if !last.is_empty() {
        let mut gap = vec![String::new(); COLUMNS.len() + 2];
        gap[0] = "..".to_owned();
        steps.row(gap);
        last.iter().for_each(|step| steps.row(row(step)));
    }
    steps.row([vec!["all".to_owned(), String::new()], cells(&sum)].concat());
    out += &steps.to_string();
    let mut tensors =
        Table::new(&[&[("tensor", Align::Left)], &COLUMNS[..], &[("ever", Align::Right)]].concat());
    let of_one = (audit.steps.len() as u64).max(1);
    for row in audit.tensors.iter().filter(|row| row.change.changed > 0).take(top) {
        let elements = (row.change.elements / of_one).max(1);
        let ever = view::share(row.ever.map(|ever| ever as f64 / elements as f64));
        tensors.row([vec![row.name.clone()], cells(&row.change), vec![ever]].concat());
    }
    let changed = audit.tensors.iter().filter(|row| row.change.changed > 0).count();
    out += "\n";
    out += &tensors.to_string();
    let more = changed.saturating_sub(top);
    if more > 0 {
        out += &format!("{} more: --top N\n", thousands(more as u64));
    }
    let same = audit.tensors.len() - changed;
    if same > 0 {
        let what = if audit.is_grouped { "module" } else { "tensor" };
        out += &format!("{} did not change\n", counted(same as u64, what));
    }
    out
}

const COLUMNS: [(&str, Align); 11] = [
    ("changed", Align::Right),
    ("density", Align::Right),
    ("again", Align::Right),
    ("at once", Align::Right),
    ("bytes", Align::Right),
    ("bits", Align::Right),
    ("1 ulp", Align::Right),
    ("2", Align::Right),
    ("3..4", Align::Right),
    ("5..8", Align::Right),
    (">8", Align::Right),
];

fn cells(change: &Change) -> Vec<String> {
    let share = |count: u64| change.share(count).map_or_else(|| "-".to_owned(), view::percent);
    let none = || "-".to_owned();
    let mut cells = vec![
        thousands(change.changed),
        view::percent(change.density()),
        share(change.again),
        share(change.again_at_once),
        change.bytes.map_or_else(none, |bytes| view::bytes(bytes.round() as u64)),
        change.bits_per_change().map_or_else(none, |bits| match change.apportioned {
            true => format!("~{bits:.2}"),
            false => format!("{bits:.2}"),
        }),
    ];
    cells.extend(change.ulps[..SHOWN].iter().map(|&count| share(count)));
    cells.push(share(change.ulps[SHOWN..].iter().sum()));
    cells
}

/// Tensor of a step in a table for programs.
struct Line<'a> {
    step: &'a Step,
    row: &'a Row,
}

/// Formats an audit as CSV: a line for each tensor that changed in a step.
pub(super) fn csv(audit: &Audit) -> Result<String> {
    let of = |step| move |row| Line { step, row };
    let lines: Vec<_> = audit.steps.iter().flat_map(|step| step.tensors.iter().map(of(step))).collect();
    records::csv(&columns(), &lines)
}

fn columns<'a>() -> Vec<Column<Line<'a>>> {
    vec![
        Column::text("file", |line| Some((&line.step.file).into())),
        Column::integer("step", |line| line.step.step),
        Column::integer("sender", |line| line.step.sender),
        Column::text("name", |line| Some((&line.row.name).into())),
        Column::integer("elements", |line| Some(line.row.change.elements)),
        Column::integer("changed", |line| Some(line.row.change.changed)),
        Column::integer("again", |line| Some(line.row.change.again)),
        Column::integer("again_at_once", |line| Some(line.row.change.again_at_once)),
        Column::real("bytes", |line| line.row.change.bytes),
        Column::truth("apportioned", |line| Some(line.row.change.apportioned)),
        Column::integer("ulp_1", |line| Some(line.row.change.ulps[0])),
        Column::integer("ulp_2", |line| Some(line.row.change.ulps[1])),
        Column::integer("ulp_3_to_4", |line| Some(line.row.change.ulps[2])),
        Column::integer("ulp_5_to_8", |line| Some(line.row.change.ulps[3])),
        Column::integer("ulp_more", |line| Some(line.row.change.ulps[SHOWN..].iter().sum())),
    ]
}
