//! The results of `tools/scale/real/run.py`.

use std::collections::HashMap;
use std::path::Path;

use crate::Result;

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) workers: u64,
    pub(crate) mbit: f64,
    /// Latency from one machine to another, in milliseconds.
    pub(crate) ms: f64,
    pub(crate) codec: String,
    /// Seconds of the step of middle length.
    pub(crate) seconds: f64,
    /// Seconds of the shortest step.
    pub(crate) fastest: f64,
    /// Seconds of coding in the step of middle length.
    pub(crate) coding: f64,
}

/// Times of a codec in one process alone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Alone {
    pub(crate) codec: String,
    pub(crate) plain: f64,
    pub(crate) update: f64,
    /// Bytes of values on a shared set.
    pub(crate) values: Option<f64>,
    pub(crate) encode: f64,
    pub(crate) add: f64,
    pub(crate) sum: f64,
}

/// The results of one run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Results {
    /// Date and machine.
    pub(crate) about: String,
    pub(crate) rows: Vec<Row>,
    pub(crate) alone: Vec<Alone>,
}

impl Results {
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let (about, rows) = table(&folder.join("real.csv"))?;
        let (_, alone) = table(&folder.join("parts.csv"))?;
        let rows = rows.iter().map(|cells| {
            Ok(Row {
                workers: number(cells, "workers")? as u64,
                mbit: number(cells, "mbit")?,
                ms: number(cells, "ms")?,
                codec: text(cells, "codec")?.clone(),
                seconds: number(cells, "seconds")?,
                fastest: number(cells, "fastest")?,
                coding: number(cells, "coding")?,
            })
        });
        let alone = alone.iter().map(|cells| {
            Ok(Alone {
                codec: text(cells, "codec")?.clone(),
                plain: number(cells, "plain")?,
                update: number(cells, "update")?,
                values: Some(text(cells, "values")?)
                    .filter(|text| !text.is_empty())
                    .map(|text| text.parse())
                    .transpose()?,
                encode: number(cells, "encode")?,
                add: number(cells, "add")?,
                sum: number(cells, "sum")?,
            })
        });
        Ok(Self { about, rows: rows.collect::<Result<_>>()?, alone: alone.collect::<Result<_>>()? })
    }
}

type Cells = HashMap<String, String>;

/// Reads a table of plain cells below a comment and a line of titles.
fn table(path: &Path) -> Result<(String, Vec<Cells>)> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut lines = text.lines();
    let about =
        lines.next().and_then(|line| line.strip_prefix("# ")).ok_or("no comment in the first line")?;
    let titles: Vec<&str> = lines.next().ok_or("no titles")?.split(',').collect();
    let rows = lines.enumerate().map(|(number, line)| {
        let cells: Vec<&str> = line.split(',').collect();
        if cells.len() != titles.len() {
            return Err(format!("{}: row {} has {} cells", path.display(), number + 1, cells.len()).into());
        }
        Ok(titles.iter().zip(cells).map(|(title, cell)| ((*title).to_owned(), cell.to_owned())).collect())
    });
    Ok((about.to_owned(), rows.collect::<Result<_>>()?))
}

fn text<'c>(cells: &'c Cells, title: &str) -> Result<&'c String> {
    cells.get(title).ok_or_else(|| format!("no column {title}").into())
}

fn number(cells: &Cells, title: &str) -> Result<f64> {
    let text = text(cells, title)?;
    text.parse().map_err(|_| format!("{title} is {text:?}, not a number").into())
}
