//! Signs (spec, section 7.7): a plane of bits, or predictions from rows and columns and whether they are
//! wrong.

mod matrix;

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
use matrix::Matrix;

/// Coding of signs as a plane of bits.
pub(super) const PLANE: u8 = 0;
const PREDICTED: u8 = 1;

/// Fewest and most signs for which predictions are tried.
const TRIED: std::ops::RangeInclusive<usize> = 128..=1 << 21;
/// Widths of symbols that the writer tries.
const WIDTHS: [u8; 4] = [1, 2, 4, 8];

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
        for (signed, (row, column)) in own.iter().zip(grid.places(own.iter().map(|signed| signed >> 1))) {
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

/// Chooses the cheapest prediction of one tensor's signs, perhaps none.
fn predict(elements: &Elements<'_>, tensor: usize, own: &[u64]) -> Option<Prediction> {
    let flat = Grid::new(elements.space, tensor, View::NONE, 0).ok()?;
    let mut best = Prediction::none(flat);
    let mut least = (own.len() as u64) << 16;
    // Fewer signs than these do not pay for the lists.
    let candidates = if own.len() < 16 { Vec::new() } else { Grid::candidates(elements.space, tensor) };
    for grid in candidates {
        let Some(matrix) = Matrix::new(&grid, own) else { continue };
        let (active_rows, active_columns) = matrix.active();
        let both = matrix.both();
        let tried = [
            (both.0, both.1, active_rows + active_columns),
            (matrix.of_rows(&[]), Vec::new(), active_rows),
            (Vec::new(), matrix.of_columns(&[]), active_columns),
        ];
        for (rows, columns, lists) in tried {
            let wrong = matrix.wrong(&rows, &columns);
            let cost = binary_entropy(wrong, own.len() as u64) + ((lists + 32) << 16);
            if cost < least {
                let view = grid.view.with_flags(!rows.is_empty(), !columns.is_empty());
                (least, best) = (cost, Prediction { grid: Grid { view, ..grid }, rows, columns });
            }
        }
    }
    Some(best)
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
