//! Signs (spec, section 7.7): a plane of bits, or predictions from rows and columns and whether they are
//! wrong.

use crate::bits::{Cursor, PlaneReader, PlaneWriter};
use crate::block::support::Support;
use crate::block::values::Elements;
use crate::block::views::{Grid, View, read_views};
use crate::block::{Bits, Sets};
use crate::codes::{
    Coder, Decoder, Entropy, Role, entropy_symbol_cost, log2, read_entropy_symbols, write_entropy_symbols,
    write_ints,
};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// Coding of signs as a plane of bits.
pub(super) const PLANE: u8 = 0;
const PREDICTED: u8 = 1;

/// Fewest and most signs for which predictions are tried.
const TRIED: std::ops::RangeInclusive<usize> = 128..=1 << 21;
/// Times that the signs of rows are chosen anew from those of columns, and back.
const ROUNDS: usize = 6;
/// Widths of symbols that the writer tries.
const WIDTHS: [u8; 4] = [1, 2, 4, 8];

/// A sign and where its element stands.
#[derive(Clone, Copy)]
struct Placed {
    row: u32,
    column: u32,
    negative: bool,
}

/// Appends signs of elements. `present`: for each value, zero if it has no sign; all have one without it.
pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    signs: &Bits,
    elements: Option<Elements<'_>>,
    present: Option<&[u8]>,
) {
    let plane = 1 + signs.as_bytes().len();
    if let Some(elements) = elements.filter(|e| may_be_predicted(e.support))
        && coder.entropy == Entropy::Auto
        && TRIED.contains(&in_memory(signs.len()))
    {
        let mark = coder.recorded();
        let mut predicted = Vec::new();
        write_predicted(&mut predicted, coder, signs, elements, present);
        if !predicted.is_empty() && predicted.len() < plane {
            out.append(&mut predicted);
            return;
        }
        coder.take_recorded(mark);
    }
    out.push(PLANE);
    out.extend_from_slice(signs.as_bytes());
}

/// Whether readers know the positions of a support when they read its values.
fn may_be_predicted(support: &Support) -> bool {
    !matches!(support, Support::Seeded(_) | Support::Set(_) | Support::Based(_))
}

/// Reads `count` signs. `present` is as for [`write`].
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    count: u64,
    elements: Option<Elements<'_>>,
    present: Option<&[u8]>,
) -> Result<Bits> {
    let offset = cursor.offset();
    match (coding(cursor)?, elements) {
        (PLANE, _) => {
            let bytes = cursor.take(count.div_ceil(8))?;
            let last = cursor.offset().saturating_sub(1);
            let padding = || Error::format(FormatErrorKind::NonzeroPadding, last);
            Bits::from_bytes(count, bytes.to_vec()).ok_or_else(padding)
        }
        (_, Some(elements)) if count > 0 && may_be_predicted(elements.support) => {
            read_predicted(cursor, decoder, count, elements, present)
        }
        _ => Err(Error::out_of_range("coding of signs", PREDICTED.into(), offset)),
    }
}

fn coding(cursor: &mut Cursor<'_>) -> Result<u8> {
    let offset = cursor.offset();
    match cursor.u8()? {
        known @ (PLANE | PREDICTED) => Ok(known),
        other => Err(Error::unsupported("coding of signs", other.into(), offset)),
    }
}

/// Skips `count` signs, as far as that needs no positions.
pub(super) fn validate(cursor: &mut Cursor<'_>, count: u64) -> Result<()> {
    match coding(cursor)? {
        PLANE => {
            let bytes = cursor.take(count.div_ceil(8))?;
            match Bits::is_valid(count, bytes) {
                true => Ok(()),
                false => {
                    Err(Error::format(FormatErrorKind::NonzeroPadding, cursor.offset().saturating_sub(1)))
                }
            }
        }
        _ => {
            cursor.take_rest();
            Ok(())
        }
    }
}

/// Calls `f` with the tensor and the element inside it for each value that has a sign.
fn for_each_signed(
    elements: &Elements<'_>,
    present: Option<&[u8]>,
    mut f: impl FnMut(usize, u64),
) -> Result<()> {
    let (mut tensor, mut base, mut value) = (0, 0u64, 0);
    let lens = &elements.space.lens;
    elements.support.for_each_run(elements.space.len(), &Sets::new(), &mut |start, len| {
        for position in start..start + len {
            while position - base >= lens[tensor] {
                base += lens[tensor];
                tensor += 1;
            }
            if present.is_none_or(|codes| codes.get(value).is_some_and(|&code| code != 0)) {
                f(tensor, position - base);
            }
            value += 1;
        }
        Ok(())
    })
}

/// Signs of rows and columns of a tensor; nothing for those without a flag in the view.
struct Prediction {
    grid: Grid,
    rows: Vec<bool>,
    columns: Vec<bool>,
}

impl Prediction {
    fn none(grid: Grid) -> Self {
        Self { grid, rows: Vec::new(), columns: Vec::new() }
    }

    /// The predicted sign of a cell.
    fn at(&self, row: u64, column: u64) -> bool {
        let bit = |list: &[bool], at: u64| list.get(in_memory(at)).copied().unwrap_or(false);
        bit(&self.rows, row) ^ bit(&self.columns, column)
    }
}

/// Appends predicted signs; nothing if no prediction helps.
fn write_predicted(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    signs: &Bits,
    elements: Elements<'_>,
    present: Option<&[u8]>,
) {
    let tensors = elements.space.lens.len();
    // Twice the element, plus one for minus.
    let mut own: Vec<Vec<u64>> = vec![Vec::new(); tensors];
    let mut next = 0;
    let placed = for_each_signed(&elements, present, |tensor, element| {
        own[tensor].push(element << 1 | u64::from(signs.get(next)));
        next += 1;
    });
    if placed.is_err() || next as u64 != signs.len() {
        return;
    }
    let predictions: Option<Vec<Prediction>> =
        own.iter().enumerate().map(|(i, own)| predict(&elements, i, own)).collect();
    let Some(predictions) = predictions else { return };
    if predictions.iter().all(|p| p.grid.view == View::NONE) {
        return;
    }
    out.push(PREDICTED);
    let views: Vec<u64> = predictions.iter().map(|p| p.grid.view.0.into()).collect();
    write_ints(out, coder, Role::Views, &views);
    let mut plane = PlaneWriter::new(out);
    let mut wrong = Vec::with_capacity(in_memory(signs.len()));
    for (prediction, own) in predictions.iter().zip(&own) {
        let grid = &prediction.grid;
        if grid.view == View::NONE {
            wrong.extend(own.iter().map(|signed| signed & 1 == 1));
            continue;
        }
        let (mut rows, mut columns) =
            (vec![false; in_memory(grid.rows)], vec![false; in_memory(grid.columns)]);
        for signed in own {
            let (row, column) = grid.place(signed >> 1);
            (rows[in_memory(row)], columns[in_memory(column)]) = (true, true);
            wrong.push((signed & 1 == 1) ^ prediction.at(row, column));
        }
        let present = [(&prediction.rows, &rows), (&prediction.columns, &columns)];
        for (signs, present) in present {
            signs.iter().zip(present).filter(|(_, p)| **p).for_each(|(s, _)| plane.put((*s).into(), 1));
        }
    }
    plane.finish();
    let by_width = WIDTHS.map(|width| pack(&wrong, width));
    let best = WIDTHS.iter().zip(&by_width).min_by_key(|(_, symbols)| entropy_symbol_cost(coder, symbols));
    if let Some((&width, symbols)) = best {
        out.push(width);
        write_entropy_symbols(out, coder, Role::Signs, symbols);
    }
}

fn pack(wrong: &[bool], width: u8) -> Vec<u8> {
    let symbol =
        |bits: &[bool]| bits.iter().zip(0..).fold(0, |symbol, (&bit, at)| symbol | u8::from(bit) << at);
    wrong.chunks(width.into()).map(symbol).collect()
}

/// Chooses the cheapest prediction of one tensor's signs; `None` if its rows or columns exceed 32 bits.
fn predict(elements: &Elements<'_>, tensor: usize, own: &[u64]) -> Option<Prediction> {
    let flat = Grid::new(elements.space, tensor, View::NONE, 0).ok()?;
    let mut best = Prediction::none(flat);
    let mut least = (own.len() as u64) << 16;
    for grid in Grid::candidates(elements.space, tensor) {
        if own.len() < 16 || u32::try_from(grid.rows.max(grid.columns)).is_err() {
            continue;
        }
        let place = |signed: &u64| {
            let (row, column) = grid.place(signed >> 1);
            Placed { row: row as u32, column: column as u32, negative: signed & 1 == 1 }
        };
        let placed: Vec<Placed> = own.iter().map(place).collect();
        let (rows, columns) = (in_memory(grid.rows), in_memory(grid.columns));
        let active = |of: fn(&Placed) -> u32, len: usize| {
            let mut seen = vec![false; len];
            placed.iter().for_each(|p| seen[in_memory(of(p).into())] = true);
            seen.iter().filter(|s| **s).count() as u64
        };
        let (active_rows, active_columns) = (active(|p| p.row, rows), active(|p| p.column, columns));
        let both = alternate(&placed, rows, columns);
        let alone = |of: fn(&Placed) -> u32, len| majority(&placed, of, |_| false, len);
        let tried = [
            (both.0, both.1, active_rows + active_columns),
            (alone(|p| p.row, rows), Vec::new(), active_rows),
            (Vec::new(), alone(|p| p.column, columns), active_columns),
        ];
        for (rows, columns, lists) in tried {
            let view = grid.view.with_flags(!rows.is_empty(), !columns.is_empty());
            let prediction = Prediction { grid: Grid { view, ..grid }, rows, columns };
            let wrong =
                placed.iter().filter(|p| p.negative ^ prediction.at(p.row.into(), p.column.into())).count()
                    as u64;
            let cost = binary_entropy(wrong, placed.len() as u64) + ((lists + 32) << 16);
            if cost < least {
                (least, best) = (cost, prediction);
            }
        }
    }
    Some(best)
}

/// Chooses signs of rows and columns whose products agree with most signs, one after the other.
fn alternate(placed: &[Placed], rows: usize, columns: usize) -> (Vec<bool>, Vec<bool>) {
    // The row with the most signs gives the first signs of columns.
    let mut counts = vec![0u32; rows];
    placed.iter().for_each(|p| counts[in_memory(p.row.into())] += 1);
    let first = (0..rows).max_by_key(|&row| counts[row]).unwrap_or(0);
    let mut of_columns = vec![false; columns];
    for p in placed.iter().filter(|p| in_memory(p.row.into()) == first) {
        of_columns[in_memory(p.column.into())] = p.negative;
    }
    let mut of_rows = Vec::new();
    for _ in 0..ROUNDS {
        of_rows = majority(placed, |p| p.row, |p| of_columns[in_memory(p.column.into())], rows);
        of_columns = majority(placed, |p| p.column, |p| of_rows[in_memory(p.row.into())], columns);
    }
    (of_rows, of_columns)
}

/// For each row or column, whether more signs than not are negative after correction by the other list.
fn majority(
    placed: &[Placed],
    of: impl Fn(&Placed) -> u32,
    other: impl Fn(&Placed) -> bool,
    len: usize,
) -> Vec<bool> {
    let mut sums = vec![0i32; len];
    placed.iter().for_each(|p| sums[in_memory(of(p).into())] += if p.negative ^ other(p) { 1 } else { -1 });
    sums.into_iter().map(|sum| sum > 0).collect()
}

/// Bits that tell `hits` of `len` from the others, in 1/65536 bit.
fn binary_entropy(hits: u64, len: u64) -> u64 {
    let nats = |n: u64| n * u64::from(log2(n.max(1)));
    nats(len).saturating_sub(nats(hits)).saturating_sub(nats(len - hits))
}

fn read_predicted(
    cursor: &mut Cursor<'_>,
    decoder: &Decoder<'_>,
    count: u64,
    elements: Elements<'_>,
    present: Option<&[u8]>,
) -> Result<Bits> {
    let offset = cursor.offset();
    let grids = read_views(cursor, decoder, elements.space)?;
    let mut predictions = Vec::with_capacity(grids.len());
    for grid in grids {
        let sizes = [(grid.view.has_rows(), grid.rows), (grid.view.has_columns(), grid.columns)];
        let mut lists = [Vec::new(), Vec::new()];
        for (list, (_, len)) in lists.iter_mut().zip(sizes).filter(|(_, (has, _))| *has) {
            decoder.budget.reserve_elements(len, offset)?;
            list.resize(decoder.budget.reserve_items::<bool>(len, offset)?, false);
        }
        let [rows, columns] = lists;
        predictions.push(Prediction { grid, rows, columns });
    }
    // Which rows and columns have signs, then the bits of these.
    for_each_signed(&elements, present, |tensor, element| {
        let Prediction { grid, rows, columns } = &mut predictions[tensor];
        let (row, column) = grid.place(element);
        rows.get_mut(in_memory(row)).into_iter().for_each(|bit| *bit = true);
        columns.get_mut(in_memory(column)).into_iter().for_each(|bit| *bit = true);
    })?;
    let lists = || predictions.iter().flat_map(|p| p.rows.iter().chain(&p.columns));
    let bits = lists().filter(|has| **has).count() as u64;
    let plane_offset = cursor.offset();
    let mut plane = PlaneReader::new(cursor.take(bits.div_ceil(8))?, plane_offset);
    for prediction in &mut predictions {
        let lists = prediction.rows.iter_mut().chain(&mut prediction.columns);
        lists.filter(|has| **has).for_each(|bit| *bit = plane.get(1) == 1);
    }
    plane.finish("signs of rows and columns")?;
    let width = cursor.u8_in("width of symbols", 1, 8)?;
    let symbols_offset = cursor.offset();
    let symbols = read_entropy_symbols(cursor, decoder, count.div_ceil(width.into()))?;
    if let Some(&symbol) = symbols.iter().find(|&&s| u32::from(s) >> width != 0) {
        return Err(Error::out_of_range("symbol of signs", symbol.into(), symbols_offset));
    }
    let used = (count - 1) % u64::from(width) + 1;
    if symbols.last().is_some_and(|last| u64::from(*last) >> used != 0) {
        return Err(Error::format(FormatErrorKind::NonzeroPadding, symbols_offset));
    }
    decoder.budget.reserve_items::<u8>(count.div_ceil(8), symbols_offset)?;
    let mut bytes = vec![0u8; in_memory(count.div_ceil(8))];
    let mut next = 0;
    for_each_signed(&elements, present, |tensor, element| {
        let prediction = &predictions[tensor];
        let (row, column) = prediction.grid.place(element);
        let width = usize::from(width);
        let wrong = symbols.get(next / width).is_some_and(|symbol| symbol >> (next % width) & 1 == 1);
        if let Some(byte) = bytes.get_mut(next / 8) {
            *byte |= u8::from(wrong ^ prediction.at(row, column)) << (next % 8);
        }
        next += 1;
    })?;
    Bits::from_bytes(count, bytes).ok_or(Error::inconsistent("number of signs"))
}
