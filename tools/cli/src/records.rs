//! Tables for programs: as CSV, as JSON, as Parquet.

use crate::fail::Result;
use serde::{Serialize, Serializer};
use std::borrow::Cow;

/// Column of a table whose rows are values of `T`.
pub(crate) struct Column<T> {
    /// Name of the column.
    pub(crate) name: &'static str,
    /// Type of its cells, and the function that finds them.
    pub(crate) cells: Cells<T>,
}

/// Cells of a column; `None` stands for a value that is not known.
pub(crate) enum Cells<T> {
    Text(for<'a> fn(&'a T) -> Option<Cow<'a, str>>),
    Integer(fn(&T) -> Option<u64>),
    Real(fn(&T) -> Option<f64>),
    Truth(fn(&T) -> Option<bool>),
}

/// Value of a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Cell<'a> {
    Text(Cow<'a, str>),
    Integer(u64),
    Real(f64),
    Truth(bool),
}

impl<T> Column<T> {
    /// Returns a column of texts.
    pub(crate) fn text(name: &'static str, of: for<'a> fn(&'a T) -> Option<Cow<'a, str>>) -> Self {
        Self { name, cells: Cells::Text(of) }
    }

    /// Returns a column of integers.
    pub(crate) fn integer(name: &'static str, of: fn(&T) -> Option<u64>) -> Self {
        Self { name, cells: Cells::Integer(of) }
    }

    /// Returns a column of numbers.
    pub(crate) fn real(name: &'static str, of: fn(&T) -> Option<f64>) -> Self {
        Self { name, cells: Cells::Real(of) }
    }

    /// Returns a column of truth values.
    pub(crate) fn truth(name: &'static str, of: fn(&T) -> Option<bool>) -> Self {
        Self { name, cells: Cells::Truth(of) }
    }
}

impl<T> Cells<T> {
    /// Returns the cell of a row. A number that is not finite is none.
    pub(crate) fn of<'a>(&self, row: &'a T) -> Option<Cell<'a>> {
        match self {
            Self::Text(of) => of(row).map(Cell::Text),
            Self::Integer(of) => of(row).map(Cell::Integer),
            Self::Real(of) => of(row).filter(|x| x.is_finite()).map(Cell::Real),
            Self::Truth(of) => of(row).map(Cell::Truth),
        }
    }
}

/// Formats rows as CSV with a line of names: a value that is not known is empty.
pub(crate) fn csv<T>(columns: &[Column<T>], rows: &[T]) -> Result<String> {
    let mut out = columns.iter().map(|column| column.name).collect::<Vec<_>>().join(",") + "\n";
    for row in rows {
        for (number, column) in columns.iter().enumerate() {
            if number > 0 {
                out.push(',');
            }
            match column.cells.of(row) {
                None => {}
                Some(Cell::Text(text)) if text.contains([',', '"', '\n', '\r']) => {
                    out += &format!("\"{}\"", text.replace('"', "\"\""));
                }
                Some(Cell::Text(text)) => out += &text,
                Some(number) => out += &serde_json::to_string(&number).map_err(std::io::Error::from)?,
            }
        }
        out.push('\n');
    }
    Ok(out)
}

/// Formats rows as JSON: an array with an object for each.
pub(crate) fn json<T>(columns: &[Column<T>], rows: &[T]) -> Result<String> {
    let objects: Vec<Object<'_, T>> = rows.iter().map(|row| Object { columns, row }).collect();
    Ok(serde_json::to_string_pretty(&objects).map_err(std::io::Error::from)? + "\n")
}

/// Row with its columns, as an object of JSON.
struct Object<'a, T> {
    columns: &'a [Column<T>],
    row: &'a T,
}

impl<T> Serialize for Object<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.columns.iter().map(|column| (column.name, column.cells.of(self.row))))
    }
}
