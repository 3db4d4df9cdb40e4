//! Lists of tensors and of updates: as text, and as tables for programs.

use super::report::Report;
use super::tensor::Tensor;
use super::update::Update;
use super::view;
use super::{opaque, placement};
use crate::fail::Result;
use crate::output::{self, Align, thousands};
use crate::parquet;
use crate::records::{self, Column};
use crate::terminal::{Terminal, fit, sparkline};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Write;

/// Order of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// The largest first
    Bytes,
    /// The largest L2 norm first
    Norm,
    /// The densest first
    Density,
    /// By name
    Name,
}

impl Sort {
    /// Compares two tensors.
    pub(crate) fn compare(self, a: &Tensor, b: &Tensor) -> Ordering {
        let descending = |key: fn(&Tensor) -> f64| key(b).total_cmp(&key(a));
        match self {
            Self::Bytes => descending(Tensor::bits),
            Self::Norm => descending(|t| t.norm.unwrap_or(-1.0)),
            Self::Density => descending(|t| t.nonzero().unwrap_or(-1.0)),
            Self::Name => crate::order::compare(&a.name, &b.name),
        }
    }
}

/// Sorts tensors.
pub(crate) fn sort(tensors: &mut [Tensor], by: Sort) {
    // Numbers move faster than tensors, which then move once.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| by.compare(&tensors[a], &tensors[b]));
    for start in 0..order.len() {
        // The tensor of `start` moves along its cycle, and each other one to its place.
        let mut place = start;
        loop {
            let from = std::mem::replace(&mut order[place], place);
            if from == start {
                break;
            }
            tensors.swap(place, from);
            place = from;
        }
    }
}

/// Adds up the tensors of each module: those whose names agree in their first `depth` parts.
pub(crate) fn group(tensors: &[Tensor], depth: usize) -> Vec<Tensor> {
    let mut modules: BTreeMap<String, Vec<&Tensor>> = BTreeMap::new();
    for tensor in tensors {
        let parts: Vec<&str> = tensor.name.split(['.', '/']).collect();
        // The last part names the tensor in its module.
        let parts = &parts[..parts.len().min(depth)];
        modules.entry(parts.join(".")).or_default().push(tensor);
    }
    modules.iter().map(|(name, tensors)| Tensor::group(name, tensors)).collect()
}

/// Columns of the text, the least important last: narrow terminals leave them out.
const COLUMNS: [(&str, Align); 12] = [
    ("tensor", Align::Left),
    ("bytes", Align::Right),
    ("density", Align::Right),
    ("norm", Align::Right),
    ("bad", Align::Left),
    ("shape", Align::Left),
    ("dtype", Align::Left),
    ("std", Align::Right),
    ("min", Align::Right),
    ("max", Align::Right),
    ("share", Align::Right),
    ("exponents", Align::Left),
];

/// Order in which the columns stand.
const PLACES: [usize; 12] = [0, 6, 5, 1, 10, 2, 3, 7, 8, 9, 11, 4];

/// Formats tensors as a table as wide as the terminal.
///
/// `all`: bits of all tensors, also of those that are not listed.
pub(crate) fn text(tensors: &[Tensor], all: f64, terminal: &Terminal) -> String {
    if tensors.is_empty() {
        return "no tensors\n".to_owned();
    }
    let rows: Vec<[String; 12]> = tensors.iter().map(|tensor| cells(tensor, all, terminal)).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| crate::output::printable(&row[column]).chars().count());
        cells.max().unwrap_or(0).max(COLUMNS[column].0.len()) + 2
    };
    let has_bad = rows.iter().any(|row| !row[4].is_empty());
    let mut used = 0;
    let mut shown = Vec::new();
    for column in (0..COLUMNS.len()).filter(|&column| column != 4 || has_bad) {
        used += width(column);
        if column > 3 && used > terminal.width + 2 {
            break;
        }
        shown.push(column);
    }
    let order: Vec<usize> = PLACES.into_iter().filter(|column| shown.contains(column)).collect();
    let mut table = output::Table::new(&order.iter().map(|&column| COLUMNS[column]).collect::<Vec<_>>());
    for row in &rows {
        table.row(order.iter().map(|&column| row[column].clone()).collect::<Vec<_>>());
    }
    let lines = placement::lines(tensors).into_iter().chain(opaque::lines(tensors));
    let lines = lines.map(|line| fit(&line, terminal.width) + "\n");
    table.to_string() + &lines.collect::<String>()
}

fn cells(tensor: &Tensor, all: f64, terminal: &Terminal) -> [String; 12] {
    let (_, counts) = tensor.stats.exponents.range();
    let bad = match &tensor.error {
        Some(_) => "damaged".to_owned(),
        None => tensor.flags(),
    };
    [
        fit(&tensor.name, (terminal.width / 2).max(24)),
        view::bytes(tensor.bytes()),
        view::density(tensor),
        view::number(tensor.norm),
        bad,
        Some(shape(tensor)).filter(|shape| !shape.is_empty()).unwrap_or_else(|| thousands(tensor.elements)),
        tensor.dtype.clone().into_owned(),
        view::number(tensor.std),
        view::number(tensor.min),
        view::number(tensor.max),
        view::percent(tensor.bits() / all.max(1.0)),
        sparkline(&counts, 16),
    ]
}

/// Table for programs.
pub(super) enum Table<'a> {
    Updates(Vec<UpdateRow<'a>>),
    Tensors(Vec<Column<Row<'a>>>, Vec<Row<'a>>),
}

impl<'a> Table<'a> {
    /// Returns a table with a row for each update.
    pub(super) fn of_updates(reports: &'a [Report]) -> Self {
        Self::Updates(updates(reports).collect())
    }

    /// Returns a table of tensors that are sums over updates.
    pub(super) fn of_sums(tensors: &'a [Tensor]) -> Self {
        let rows = tensors.iter().map(|tensor| Row { of: None, tensor }).collect();
        Self::Tensors(columns(false), rows)
    }

    /// Returns a table with a row for each tensor of each update, of which the first `top` are kept.
    pub(super) fn of_each(reports: &'a [Report], by: Option<Sort>, top: usize) -> Self {
        let row = |of: UpdateRow<'a>| move |tensor| Row { of: Some(of), tensor };
        let mut rows: Vec<_> =
            updates(reports).flat_map(|of| of.update.tensors.iter().map(row(of))).collect();
        if let Some(by) = by {
            rows.sort_by(|a, b| by.compare(a.tensor, b.tensor));
        }
        rows.truncate(top);
        Self::Tensors(columns(true), rows)
    }

    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Updates(rows) => rows.len(),
            Self::Tensors(_, rows) => rows.len(),
        }
    }

    /// Formats the rows as CSV.
    pub(super) fn csv(&self) -> Result<String> {
        match self {
            Self::Updates(rows) => records::csv(&update_columns(), rows),
            Self::Tensors(columns, rows) => records::csv(columns, rows),
        }
    }

    /// Formats the rows as JSON.
    pub(super) fn json(&self) -> Result<String> {
        match self {
            Self::Updates(rows) => records::json(&update_columns(), rows),
            Self::Tensors(columns, rows) => records::json(columns, rows),
        }
    }

    /// Writes the rows as Parquet.
    pub(super) fn parquet(&self, out: &mut impl Write) -> Result<()> {
        match self {
            Self::Updates(rows) => parquet::write(out, &update_columns(), rows),
            Self::Tensors(columns, rows) => parquet::write(out, columns, rows),
        }
    }
}

fn updates(reports: &[Report]) -> impl Iterator<Item = UpdateRow<'_>> {
    let of = |report| move |update| UpdateRow { report, update };
    reports.iter().flat_map(move |report| report.updates.iter().map(of(report)))
}

/// Tensor in a table for programs, with its update if it is of one.
pub(super) struct Row<'a> {
    of: Option<UpdateRow<'a>>,
    tensor: &'a Tensor,
}

/// Update in a table for programs, with the report that it stands in.
#[derive(Clone, Copy)]
pub(super) struct UpdateRow<'a> {
    report: &'a Report,
    update: &'a Update,
}

impl UpdateRow<'_> {
    fn step(&self) -> Option<u64> {
        self.update.numbered.0.then_some(self.update.step)
    }

    fn sender(&self) -> Option<u64> {
        self.update.numbered.1.then_some(self.update.sender)
    }
}

/// Returns the columns of updates.
fn update_columns<'a>() -> Vec<Column<UpdateRow<'a>>> {
    vec![
        Column::text("file", |row| Some((&row.report.file).into())),
        Column::integer("step", UpdateRow::step),
        Column::integer("sender", UpdateRow::sender),
        Column::text("label", |row| Some((&row.update.label).into())),
        Column::integer("bytes", |row| Some(row.update.bytes)),
        Column::integer("source_bytes", |row| Some(row.update.source_bytes)),
        Column::real("ratio", |row| Some(row.update.ratio)),
        Column::integer("elements", |row| Some(row.update.elements)),
        Column::integer("kept", |row| Some(row.update.kept)),
        Column::integer("nonzero", |row| Some(row.update.stats.nonzero())),
        Column::real("norm", |row| row.update.norm),
        Column::real("min", |row| row.update.stats.min),
        Column::real("max", |row| row.update.stats.max),
        Column::real("mean", |row| Some(row.update.stats.mean())),
        Column::real("std", |row| Some(row.update.stats.std())),
        Column::integer("nan", |row| Some(row.update.nan)),
        Column::integer("infinite", |row| Some(row.update.infinite)),
        Column::truth("complete", |row| Some(row.update.complete)),
        Column::truth("guessed", |row| Some(row.update.guessed)),
    ]
}

/// Returns the columns of tensors; `with_update`: and those of the update that each is of.
fn columns<'a>(with_update: bool) -> Vec<Column<Row<'a>>> {
    let mut columns = match with_update {
        true => vec![
            Column::text("file", |row: &Row<'_>| Some((&row.of?.report.file).into())),
            Column::integer("step", |row| row.of?.step()),
            Column::integer("sender", |row| row.of?.sender()),
        ],
        false => Vec::new(),
    };
    columns.extend([
        Column::text("name", |row: &Row<'_>| Some((&row.tensor.name).into())),
        Column::text("dtype", |row| Some((&*row.tensor.dtype).into())),
        Column::text("shape", |row| Some(shape(row.tensor).into())),
        Column::integer("elements", |row| Some(row.tensor.elements)),
        Column::integer("updates", |row| Some(row.tensor.updates)),
        Column::real("bytes", |row| Some(row.tensor.bits() / 8.0)),
        Column::integer("kept", |row| row.tensor.kept),
        Column::real("nonzero", |row| row.tensor.nonzero().filter(|_| row.tensor.opaque.is_none())),
        Column::real("norm", |row| row.tensor.norm),
        Column::real("min", |row| row.tensor.min),
        Column::real("max", |row| row.tensor.max),
        Column::real("mean", |row| row.tensor.mean),
        Column::real("std", |row| row.tensor.std),
        Column::integer("zeros", |row| row.tensor.zeros),
        Column::integer("nan", |row| Some(row.tensor.stats.nan)),
        Column::integer("infinite", |row| Some(row.tensor.stats.infinite)),
        Column::integer("first_nan", |row| row.tensor.first_nan),
        Column::integer("first_infinite", |row| row.tensor.first_infinite),
        Column::text("opaque", |row| row.tensor.opaque.as_deref().map(Into::into)),
    ]);
    columns
}

/// Formats a tensor's shape; a module has none.
fn shape(tensor: &Tensor) -> String {
    match tensor.shape.is_empty() && tensor.elements != 1 {
        true => String::new(),
        false => view::shape(&tensor.shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::NamedTensor;
    use gcodec::TensorBuf;
    use gcodec::reduce::stats::StatsOptions;

    fn tensor(name: &str, values: &[f32]) -> Tensor {
        let buffer = TensorBuf::from_f32(vec![values.len() as u64], values).unwrap();
        let mut tensor =
            Tensor::of_dense(&NamedTensor::new(name.to_owned(), buffer), &StatsOptions::default());
        tensor.finish();
        tensor
    }

    #[test]
    fn tensors_are_sorted_and_grouped() {
        let mut all = [tensor("a.x", &[3.0, 4.0]), tensor("a.y", &[0.0, 0.0, 12.0]), tensor("b.z", &[1.0])];
        sort(&mut all, Sort::Norm);
        assert_eq!(all.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a.y", "a.x", "b.z"]);
        sort(&mut all, Sort::Density);
        assert_eq!(all[2].name, "a.y");
        sort(&mut all, Sort::Bytes);
        assert_eq!(all[0].name, "a.y");
        let modules = group(&all, 1);
        assert_eq!(
            modules.iter().map(|t| (t.name.as_str(), t.elements)).collect::<Vec<_>>(),
            [("a", 5), ("b", 1)]
        );
        assert_eq!((modules[0].norm, modules[0].bytes(), modules[0].nonzero()), (Some(13.0), 20, Some(0.6)));
        assert_eq!(group(&all, 9).len(), 3);
    }

    #[test]
    fn many_tensors_are_sorted_as_their_names_are() {
        let mut all: Vec<Tensor> =
            (0..500u32).map(|i| tensor(&format!("{}", i * 37 % 500), &[1.0])).collect();
        let mut names: Vec<String> = all.iter().map(|t| t.name.clone()).collect();
        // A stable sort: tensors of equal size stay as they were.
        sort(&mut all, Sort::Bytes);
        assert!(all.iter().map(|t| &t.name).eq(&names));
        names.sort_by_key(|name| name.parse::<u32>().unwrap());
        sort(&mut all, Sort::Name);
        assert!(all.iter().map(|t| &t.name).eq(&names));
    }

    #[test]
    fn csv_quotes_and_text_fits() {
        let all = [tensor("a,\"b\"", &[1.0, f32::NAN]), tensor("c", &[2.0])];
        let csv = Table::of_sums(&all).csv().unwrap();
        let lines: Vec<&str> = csv.lines().collect();
        assert!(lines[0].starts_with("name,dtype,shape,elements") && lines.len() == 3, "{csv}");
        assert!(lines[1].starts_with("\"a,\"\"b\"\"\",f32,2,2,1,8.0,2,"), "{csv}");
        for width in [40, 80, 120, 200] {
            let text = text(&all, 160.0, &Terminal::plain(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
            assert!(width < 80 || text.contains("1 NaN"), "{text}");
        }
    }
}
