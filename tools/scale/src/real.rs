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
    /// Seconds of compute of a step.
    pub(crate) compute: f64,
    /// Number of buckets whose exchange begins during the compute; one: after it.
    pub(crate) buckets: u64,
}

/// One measurement of rounds of the aggregator.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Round {
    pub(crate) workers: u64,
    pub(crate) mbit: f64,
    /// Latency from one machine to another, in milliseconds.
    pub(crate) ms: f64,
    pub(crate) codec: String,
    /// Seconds of the round of middle length.
    pub(crate) seconds: f64,
    /// Bytes of a worker's update.
    pub(crate) update: f64,
    /// Bytes of the sum, which each worker receives.
    pub(crate) sum: f64,
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
    /// Exchanges alone.
    pub(crate) exchanges: Vec<Row>,
    /// The same of more codecs.
    pub(crate) more: Vec<Row>,
    /// Steps with compute.
    pub(crate) overlaps: Vec<Row>,
    /// Rounds of the aggregator.
    pub(crate) rounds: Vec<Round>,
    pub(crate) alone: Vec<Alone>,
}

impl Results {
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let (about, exchanges) = table(&folder.join("real.csv"))?;
        let more = part(folder, "more.csv")?;
        let overlaps = part(folder, "overlap.csv")?;
        let rounds = part(folder, "aggregator.csv")?;
        let (_, alone) = table(&folder.join("parts.csv"))?;
        let rounds = rounds.iter().map(|cells| {
            Ok(Round {
                workers: number(cells, "workers")? as u64,
                mbit: number(cells, "mbit")?,
                ms: number(cells, "ms")?,
                codec: text(cells, "codec")?.clone(),
                seconds: number(cells, "seconds")?,
                update: number(cells, "update")?,
                sum: number(cells, "sum")?,
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
        Ok(Self {
            about,
            exchanges: exchanges.iter().map(row).collect::<Result<_>>()?,
            more: more.iter().map(row).collect::<Result<_>>()?,
            overlaps: overlaps.iter().map(row).collect::<Result<_>>()?,
            rounds: rounds.collect::<Result<_>>()?,
            alone: alone.collect::<Result<_>>()?,
        })
    }
}

/// Reads a row of exchanges, alone or with compute.
fn row(cells: &Cells) -> Result<Row> {
    let has_compute = cells.contains_key("compute");
    Ok(Row {
        workers: number(cells, "workers")? as u64,
        mbit: number(cells, "mbit")?,
        ms: number(cells, "ms")?,
        codec: text(cells, "codec")?.clone(),
        seconds: number(cells, "seconds")?,
        fastest: number(cells, "fastest")?,
        coding: number(cells, "coding")?,
        compute: if has_compute { number(cells, "compute")? } else { 0.0 },
        buckets: if has_compute { number(cells, "buckets")? as u64 } else { 1 },
    })
}

type Cells = HashMap<String, String>;

/// Reads the table of a part that a run may leave out: without its file, no rows.
fn part(folder: &Path, name: &str) -> Result<Vec<Cells>> {
    let path = folder.join(name);
    if path.exists() { Ok(table(&path)?.1) } else { Ok(Vec::new()) }
}

/// Reads a table below a comment and a line of titles.
fn table(path: &Path) -> Result<(String, Vec<Cells>)> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut lines = text.lines();
    let about =
        lines.next().and_then(|line| line.strip_prefix("# ")).ok_or("no comment in the first line")?;
    let titles: Vec<&str> = lines.next().ok_or("no titles")?.split(',').collect();
    let rows = lines.enumerate().map(|(number, line)| {
        let cells = cells(line);
        if cells.len() != titles.len() {
            return Err(format!("{}: row {} has {} cells", path.display(), number + 1, cells.len()).into());
        }
        Ok(titles.iter().zip(cells).map(|(title, cell)| ((*title).to_owned(), cell)).collect())
    });
    Ok((about.to_owned(), rows.collect::<Result<_>>()?))
}

/// Returns the cells of a line. Codecs with commas are in quotation marks.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match (c, cells.last_mut()) {
            ('"', _) => is_quoted = !is_quoted,
            (',', _) if !is_quoted => cells.push(String::new()),
            (c, Some(cell)) => cell.push(c),
            (_, None) => {}
        }
    }
    cells
}

fn text<'c>(cells: &'c Cells, title: &str) -> Result<&'c String> {
    cells.get(title).ok_or_else(|| format!("no column {title}").into())
}

fn number(cells: &Cells, title: &str) -> Result<f64> {
    let text = text(cells, title)?;
    text.parse().map_err(|_| format!("{title} is {text:?}, not a number").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_may_have_commas() {
        assert_eq!(
            cells("2,\"topk:density=0.1,values=pow2\",0.5"),
            ["2", "topk:density=0.1,values=pow2", "0.5"]
        );
        assert_eq!(cells("none,"), ["none", ""]);
    }
}
