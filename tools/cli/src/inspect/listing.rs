//! Lists of tensors and of updates: as text, as JSON, as CSV.

use super::report::Report;
use super::tensor::Tensor;
use super::update::Update;
use super::view;
use crate::output::{Align, Table, thousands};
use crate::terminal::{Terminal, fit, sparkline};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeMap;

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

/// Sorts tensors.
pub(crate) fn sort(tensors: &mut [Tensor], by: Sort) {
    let descending = |key: fn(&Tensor) -> f64| move |a: &Tensor, b: &Tensor| key(b).total_cmp(&key(a));
    match by {
        Sort::Bytes => tensors.sort_by(descending(Tensor::bits)),
        Sort::Norm => tensors.sort_by(descending(|t| t.norm.unwrap_or(-1.0))),
        Sort::Density => tensors.sort_by(descending(|t| t.nonzero().unwrap_or(-1.0))),
        Sort::Name => tensors.sort_by(|a, b| a.name.cmp(&b.name)),
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
        return String::new();
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
    let mut table = Table::new(&order.iter().map(|&column| COLUMNS[column]).collect::<Vec<_>>());
    for row in &rows {
        table.row(order.iter().map(|&column| row[column].clone()).collect::<Vec<_>>());
    }
    table.to_string()
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
        view::share(tensor.nonzero()),
        view::number(tensor.norm),
        bad,
        if tensor.shape.is_empty() && tensor.elements != 1 {
            thousands(tensor.elements)
        } else {
            view::shape(&tensor.shape)
        },
        tensor.dtype.to_owned(),
        view::number(tensor.std),
        view::number(tensor.min),
        view::number(tensor.max),
        view::percent(tensor.bits() / all.max(1.0)),
        sparkline(&counts, 16),
    ]
}

/// The update of a tensor.
#[derive(Serialize)]
struct Of<'a> {
    file: &'a str,
    step: Option<u64>,
    sender: Option<u64>,
}

/// A tensor as JSON and CSV have it.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    of: Option<Of<'a>>,
    name: &'a str,
    dtype: &'a str,
    shape: String,
    elements: u64,
    updates: u64,
    bytes: f64,
    kept: Option<u64>,
    nonzero: Option<f64>,
    norm: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
    std: Option<f64>,
    zeros: Option<u64>,
    nan: u64,
    infinite: u64,
    first_nan: Option<u64>,
    first_infinite: Option<u64>,
}

impl<'a> Row<'a> {
    fn of(tensor: &'a Tensor, of: Option<(&'a Report, &'a Update)>) -> Self {
        Self {
            of: of.map(|(report, u)| Of {
                file: &report.file,
                step: u.numbered.0.then_some(u.step),
                sender: u.numbered.1.then_some(u.sender),
            }),
            name: &tensor.name,
            dtype: tensor.dtype,
            shape: match tensor.shape.is_empty() && tensor.elements != 1 {
                // A module has none.
                true => String::new(),
                false => view::shape(&tensor.shape),
            },
            elements: tensor.elements,
            updates: tensor.updates,
            bytes: tensor.bits() / 8.0,
            kept: tensor.kept,
            nonzero: tensor.nonzero(),
            norm: tensor.norm,
            min: tensor.min,
            max: tensor.max,
            mean: tensor.mean,
            std: tensor.std,
            zeros: tensor.zeros,
            nan: tensor.stats.nan,
            infinite: tensor.stats.infinite,
            first_nan: tensor.first_nan,
            first_infinite: tensor.first_infinite,
        }
    }
}

/// Formats tensors as JSON: an array of objects.
pub(crate) fn json(tensors: &[Tensor]) -> serde_json::Result<String> {
    let rows: Vec<Row<'_>> = tensors.iter().map(|tensor| Row::of(tensor, None)).collect();
    Ok(serde_json::to_string_pretty(&rows)? + "\n")
}

/// Formats tensors as CSV, one line for each.
pub(crate) fn csv(tensors: &[Tensor]) -> serde_json::Result<String> {
    lines(tensors.iter().map(|tensor| Row::of(tensor, None)))
}

/// Formats the tensors of each update as CSV, one line for each tensor of each update.
pub(crate) fn csv_of_updates(reports: &[Report]) -> serde_json::Result<String> {
    let updates = reports.iter().flat_map(|report| report.updates.iter().map(move |update| (report, update)));
    lines(updates.flat_map(|of| of.1.tensors.iter().map(move |tensor| Row::of(tensor, Some(of)))))
}

/// An update as CSV has it.
#[derive(Serialize)]
struct UpdateRow<'a> {
    file: &'a str,
    step: Option<u64>,
    sender: Option<u64>,
    label: &'a str,
    bytes: u64,
    source_bytes: u64,
    ratio: f64,
    elements: u64,
    kept: u64,
    nonzero: u64,
    norm: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    mean: f64,
    std: f64,
    nan: u64,
    infinite: u64,
    complete: bool,
}

/// Formats the updates as CSV, one line for each.
pub(crate) fn csv_updates(reports: &[Report]) -> serde_json::Result<String> {
    let updates = reports.iter().flat_map(|report| report.updates.iter().map(move |update| (report, update)));
    lines(updates.map(|(report, u)| UpdateRow {
        file: &report.file,
        step: u.numbered.0.then_some(u.step),
        sender: u.numbered.1.then_some(u.sender),
        label: &u.label,
        bytes: u.bytes,
        source_bytes: u.source_bytes,
        ratio: u.ratio,
        elements: u.elements,
        kept: u.kept,
        nonzero: u.stats.nonzero(),
        norm: u.norm,
        min: u.stats.min,
        max: u.stats.max,
        mean: u.stats.mean(),
        std: u.stats.std(),
        nan: u.nan,
        infinite: u.infinite,
        complete: u.complete,
    }))
}

/// The fields of a row, in their order.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

/// Formats rows as CSV with a line of names: a value without a number is empty.
pub(crate) fn lines<T: Serialize>(rows: impl Iterator<Item = T>) -> serde_json::Result<String> {
    let mut out = String::new();
    for row in rows {
        let Fields(fields) = serde_json::from_str(&serde_json::to_string(&row)?)?;
        if out.is_empty() {
            out += &(fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(",") + "\n");
        }
        out += &(fields.iter().map(|(_, value)| cell(value)).collect::<Vec<_>>().join(",") + "\n");
    }
    Ok(out)
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcodec::TensorBuf;
    use gcodec::reduce::stats::Options;

    fn tensor(name: &str, values: &[f32]) -> Tensor {
        let buffer = TensorBuf::from_f32(vec![values.len() as u64], values).unwrap();
        let mut tensor = Tensor::of_dense(name, &buffer.view(), &Options::default());
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
    fn csv_quotes_and_text_fits() {
        let all = [tensor("a,\"b\"", &[1.0, f32::NAN]), tensor("c", &[2.0])];
        let csv = csv(&all).unwrap();
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
