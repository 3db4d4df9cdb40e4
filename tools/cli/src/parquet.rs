//! Apache Parquet, written: flat tables of texts, integers, floats and truth values.
//!
//! ```text
//! "PAR1" | row groups | footer | u32 LE length of the footer | "PAR1"
//! row group: a page for each column: page header | page
//! page: u32 LE length of the levels | levels: 1 for a value, 0 for none | the values
//! ```
//! Source: the Apache Parquet format 2.x: `parquet.thrift` and `Encodings.md`. Pages are of version 1, PLAIN
//! and not compressed. Headers and footer are structs of Thrift's compact protocol.

use crate::fail::{Failure, Result};
use crate::records::{Cell, Cells, Column};
use std::io::Write;

const MAGIC: &[u8; 4] = b"PAR1";
/// Rows of a row group: bounds the memory of a page.
const GROUP: usize = 1 << 16;
/// Encodings PLAIN and RLE.
const PLAIN: i64 = 0;
const RLE: i64 = 3;

/// Writes rows as a Parquet file.
///
/// Integers are unsigned 64-bit numbers, floats are binary64, texts are UTF-8. Any value may be missing.
pub(crate) fn write<T>(out: &mut impl Write, columns: &[Column<T>], rows: &[T]) -> Result<()> {
    out.write_all(MAGIC)?;
    let mut offset = MAGIC.len() as u64;
    let mut groups = Vec::new();
    for rows in rows.chunks(GROUP) {
        let mut chunks = Vec::new();
        for column in columns {
            let bytes = page(column, rows)?;
            out.write_all(&bytes)?;
            chunks.push(Chunk { offset, len: bytes.len() as u64 });
            offset += bytes.len() as u64;
        }
        groups.push(Group { rows: rows.len(), chunks });
    }
    let footer = footer(columns, rows.len(), &groups);
    let len = u32::try_from(footer.len()).map_err(|_| Failure::limit("a footer of Parquet above 4 GiB"))?;
    out.write_all(&footer)?;
    out.write_all(&len.to_le_bytes())?;
    Ok(out.write_all(MAGIC)?)
}

/// Place of a column's page in the file.
struct Chunk {
    offset: u64,
    len: u64,
}

/// Rows that are stored together.
struct Group {
    rows: usize,
    chunks: Vec<Chunk>,
}

/// Returns the page of a column, with its header.
fn page<T>(column: &Column<T>, rows: &[T]) -> Result<Vec<u8>> {
    let cells: Vec<Option<Cell<'_>>> = rows.iter().map(|row| column.cells.of(row)).collect();
    let levels = levels(&cells);
    let mut page = (levels.len() as u32).to_le_bytes().to_vec();
    page.extend(levels);
    values(cells.iter().flatten(), &mut page);
    let len = i32::try_from(page.len())
        .map_err(|_| Failure::limit(format_args!("column {:?} has a page above 2 GiB", column.name)))?;
    let mut header = Struct::default();
    // A data page, its length, and its length before compression.
    header.number(1, I32, 0).number(2, I32, len.into()).number(3, I32, len.into());
    let mut data = Struct::default();
    data.number(1, I32, rows.len() as i64).number(2, I32, PLAIN).number(3, I32, RLE).number(4, I32, RLE);
    header.inner(5, data);
    let mut bytes = header.finish();
    bytes.extend(page);
    Ok(bytes)
}

/// Writes for each cell whether it has a value, as runs.
fn levels(cells: &[Option<Cell<'_>>]) -> Vec<u8> {
    let mut out = Vec::new();
    for run in cells.chunk_by(|a, b| a.is_some() == b.is_some()) {
        varint(&mut out, (run.len() as u64) << 1);
        out.push(run[0].is_some().into());
    }
    out
}

/// Writes the cells that have a value.
fn values<'a>(cells: impl Iterator<Item = &'a Cell<'a>>, out: &mut Vec<u8>) {
    let mut bits = 0;
    for cell in cells {
        match cell {
            Cell::Text(text) => {
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(text.as_bytes());
            }
            Cell::Integer(number) => out.extend(number.to_le_bytes()),
            Cell::Real(number) => out.extend(number.to_le_bytes()),
            Cell::Truth(truth) => {
                if bits % 8 == 0 {
                    out.push(0);
                }
                if let Some(last) = out.last_mut() {
                    *last |= u8::from(*truth) << (bits % 8);
                }
                bits += 1;
            }
        }
    }
}

/// Returns the schema and the places of all pages.
fn footer<T>(columns: &[Column<T>], rows: usize, groups: &[Group]) -> Vec<u8> {
    let mut root = Struct::default();
    root.text(4, "schema").number(5, I32, columns.len() as i64);
    let schema = std::iter::once(root).chain(columns.iter().map(|column| {
        let (kind, converted) = kind(&column.cells);
        let mut element = Struct::default();
        // 1: the value may be missing.
        element.number(1, I32, kind).number(3, I32, 1).text(4, column.name);
        if let Some(converted) = converted {
            element.number(6, I32, converted);
        }
        element
    }));
    let mut file = Struct::default();
    file.number(1, I32, 1);
    file.structs(2, schema.collect());
    file.number(3, I64, rows as i64);
    file.structs(4, groups.iter().map(|group| row_group(columns, group)).collect());
    file.text(6, "gcodec");
    file.finish()
}

fn row_group<T>(columns: &[Column<T>], group: &Group) -> Struct {
    let chunks = columns.iter().zip(&group.chunks).map(|(column, chunk)| {
        let mut data = Struct::default();
        data.number(1, I32, kind(&column.cells).0);
        data.numbers(2, &[PLAIN, RLE]);
        data.texts(3, &[column.name]);
        // Not compressed.
        data.number(4, I32, 0).number(5, I64, group.rows as i64);
        data.number(6, I64, chunk.len as i64).number(7, I64, chunk.len as i64);
        data.number(9, I64, chunk.offset as i64);
        let mut out = Struct::default();
        out.number(2, I64, chunk.offset as i64);
        out.inner(3, data);
        out
    });
    let mut out = Struct::default();
    out.structs(1, chunks.collect());
    out.number(2, I64, group.chunks.iter().map(|chunk| chunk.len as i64).sum());
    out.number(3, I64, group.rows as i64);
    out
}

/// Returns the physical type of a column, and what it stands for: UTF8 or UINT_64.
fn kind<T>(cells: &Cells<T>) -> (i64, Option<i64>) {
    match cells {
        Cells::Truth(_) => (0, None),
        Cells::Integer(_) => (2, Some(14)),
        Cells::Real(_) => (5, None),
        Cells::Text(_) => (6, Some(0)),
    }
}

/// Types of fields in Thrift's compact protocol.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Struct in Thrift's compact protocol. Its fields are added in ascending order.
#[derive(Default)]
struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    fn field(&mut self, id: u8, kind: u8) {
        // The numbers of fields differ by at most 15 here, which the short form holds.
        self.bytes.push((id - self.last) << 4 | kind);
        self.last = id;
    }

    fn number(&mut self, id: u8, kind: u8, number: i64) -> &mut Self {
        self.field(id, kind);
        zigzag(&mut self.bytes, number);
        self
    }

    fn text(&mut self, id: u8, text: &str) -> &mut Self {
        self.field(id, BINARY);
        binary(&mut self.bytes, text);
        self
    }

    fn inner(&mut self, id: u8, inner: Self) {
        self.field(id, STRUCT);
        self.bytes.extend(inner.finish());
    }

    fn list(&mut self, id: u8, kind: u8, len: usize) {
        self.field(id, LIST);
        match len {
            0..15 => self.bytes.push((len as u8) << 4 | kind),
            _ => {
                self.bytes.push(0xf0 | kind);
                varint(&mut self.bytes, len as u64);
            }
        }
    }

    fn numbers(&mut self, id: u8, numbers: &[i64]) {
        self.list(id, I32, numbers.len());
        numbers.iter().for_each(|number| zigzag(&mut self.bytes, *number));
    }

    fn texts(&mut self, id: u8, texts: &[&str]) {
        self.list(id, BINARY, texts.len());
        texts.iter().for_each(|text| binary(&mut self.bytes, text));
    }

    fn structs(&mut self, id: u8, structs: Vec<Self>) {
        self.list(id, STRUCT, structs.len());
        structs.into_iter().for_each(|inner| self.bytes.extend(inner.finish()));
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn binary(out: &mut Vec<u8>, text: &str) {
    varint(out, text.len() as u64);
    out.extend(text.as_bytes());
}

fn zigzag(out: &mut Vec<u8>, number: i64) {
    varint(out, ((number << 1) ^ (number >> 63)) as u64);
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    type Row = (Option<&'static str>, Option<u64>, Option<f64>, Option<bool>);

    fn columns() -> [Column<Row>; 4] {
        [
            Column::text("text", |row| row.0.map(Cow::Borrowed)),
            Column::integer("integer", |row| row.1),
            Column::real("real", |row| row.2),
            Column::truth("truth", |row| row.3),
        ]
    }

    const ROWS: [Row; 11] = [
        (Some("a"), Some(0), Some(-0.5), Some(true)),
        (None, Some(u64::MAX), Some(f64::NAN), Some(false)),
        (Some("\u{e4}, \"b\"\n"), None, Some(1e300), Some(true)),
        (Some(""), Some(1), None, None),
        (Some("e"), Some(2), Some(0.0), Some(false)),
        (Some("f"), Some(3), Some(1.0), Some(false)),
        (Some("g"), Some(4), Some(2.0), Some(false)),
        (Some("h"), Some(5), Some(3.0), Some(true)),
        (Some("i"), Some(6), Some(f64::INFINITY), Some(true)),
        (Some("j"), Some(7), Some(5.0), Some(true)),
        (None, None, None, None),
    ];

    #[test]
    fn the_bytes_are_those_that_other_readers_read() {
        // adapters/python/tests/test_parquet.py reads tables with DuckDB. PyArrow read this one, too.
        let mut bytes = Vec::new();
        write(&mut bytes, &columns(), &ROWS).unwrap();
        assert_eq!(blake3::hash(&bytes).to_hex()[..16], *"88f05fc485d0dd8e");
    }

    #[test]
    fn tables_have_any_number_of_rows() {
        for rows in [0, 1, GROUP, GROUP + 1] {
            let rows: Vec<Row> = ROWS.iter().cycle().take(rows).copied().collect();
            let mut bytes = Vec::new();
            write(&mut bytes, &columns(), &rows).unwrap();
            let (head, tail) = bytes.split_last_chunk::<8>().unwrap();
            let len = u32::from_le_bytes(*tail.first_chunk().unwrap()) as usize;
            assert!(len < head.len() && head.starts_with(MAGIC) && tail.ends_with(MAGIC));
            // Field 1 of the footer, an i32, is the version 1.
            assert_eq!(head[head.len() - len..][..2], [0x15, 2], "{}", rows.len());
        }
    }
}
