//! Signs (spec, section 7.7): a plane of bits, or predictions from rows and columns with one residual bit per
//! sign.

mod matrix;
mod places;

use crate::bits::{Cursor, PlaneReader, PlaneWriter, put_packed, unpack};
use crate::block::Bits;
use crate::block::support::Support;
use crate::block::values::Elements;
use crate::block::views::{Grid, View, read_views};
use crate::codes::{
    Coder, Decoder, Entropy, PIECE, Profile, Role, count, log2, read_entropy_symbols, write_entropy_symbols,
    write_ints,
};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;
use matrix::{Matrix, Prediction, Signed};
use places::{Lists, Values};

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
        && coder.profile == Profile::Full
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

/// Returns the coding of the signs at the cursor, if it is not of the core profile.
pub(super) fn beyond_core(cursor: &Cursor<'_>) -> Result<Option<&'static str>> {
    Ok((cursor.clone().u8()? == PREDICTED).then_some("predicted signs"))
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

/// Appends predicted signs; nothing if no prediction helps.
fn write_predicted(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    signs: &Bits,
    elements: Elements<'_>,
    present: Option<&[u8]>,
) {
    let values = Values { elements, present };
    let Some(own) = values.signed(signs, &mut coder.scratch.matrix) else { return };
    let (grids, predicted): (Vec<Grid>, Vec<Lists>) =
        own.iter().enumerate().filter_map(|(i, own)| predict(&elements, i, own)).unzip();
    let count = own.len();
    if let Some(Signed::Many(memory)) = own.into_iter().find(|own| matches!(own, Signed::Many(_))) {
        coder.scratch.matrix = memory;
    }
    if grids.len() < count || grids.iter().all(|grid| grid.view == View::NONE) {
        return;
    }
    let mut has: Vec<Lists> = predicted.iter().map(Lists::cleared).collect();
    let Ok(mut wrong) = values.mark(&grids, &mut has).and_then(|()| values.plane(&grids, &predicted)) else {
        return;
    };
    out.push(PREDICTED);
    let views: Vec<u64> = grids.iter().map(|grid| grid.view.0.into()).collect();
    write_ints(out, coder, Role::Views, &views);
    let mut plane = PlaneWriter::new(out);
    for (predicted, has) in predicted.iter().zip(&has) {
        let bits = predicted.bits().zip(has.bits()).filter(|(_, has)| **has);
        bits.for_each(|(bit, _)| plane.put((*bit).into(), 1));
    }
    plane.finish();
    wrong.iter_mut().zip(signs.as_bytes()).for_each(|(wrong, sign)| *wrong ^= sign);
    let width = cheapest_width(coder, &wrong);
    let mut symbols = vec![0; in_memory(signs.len().div_ceil(width.into()))];
    unpack(&wrong, width.into(), &mut symbols);
    out.push(width);
    write_entropy_symbols(out, coder, Role::Signs, &symbols);
}

/// Returns the width of symbols in which these bits cost least. Bytes are counted once; the counts of parts
/// of them follow from these.
fn cheapest_width(coder: &Coder<'_>, bits: &[u8]) -> u8 {
    let bytes = count(bits);
    let of_width = |width: u8| {
        let mut counts = [0; 256];
        for (byte, n) in (0..=255u8).zip(bytes) {
            for part in (0..8).step_by(width.into()) {
                counts[usize::from(byte >> part & (u8::MAX >> (8 - width)))] += n;
            }
        }
        coder.segment_cost(&counts, bits.len() * usize::from(8 / width))
    };
    WIDTHS.into_iter().min_by_key(|&width| of_width(width)).unwrap_or(8)
}

/// Chooses the cheapest prediction of one tensor's signs, perhaps none.
///
/// A prediction costs one bit for each row and column that has signs, and the entropy of a bit for each sign
/// that says whether the prediction is wrong. For 64 x 64 signs, of which one in 20 is wrong, these are 128
/// and 0.29 x 4,096 = 1,173 bits instead of 4,096.
fn predict(elements: &Elements<'_>, tensor: usize, own: &Signed) -> Option<(Grid, Lists)> {
    let mut best = (Grid::new(elements.space, tensor, View::NONE, 0).ok()?, Lists::default());
    let count = own.count();
    let mut least = count << 16;
    // Fewer signs than these do not pay for the lists.
    let candidates = if count < 16 { Vec::new() } else { Grid::candidates(elements.space, tensor) };
    for grid in candidates {
        let Some(matrix) = Matrix::new(&grid, own) else { continue };
        let is_hopeless =
            |part: Matrix<'_>| predictions(&part).iter().all(|(_, cost)| *cost >= part.count() << 16);
        if matrix.part().is_some_and(is_hopeless) {
            continue;
        }
        for (Prediction { rows, columns, .. }, cost) in predictions(&matrix) {
            if cost < least {
                let view = grid.view.with_flags(!rows.is_empty(), !columns.is_empty());
                (least, best) = (cost, (Grid { view, ..grid }, Lists { rows, columns }));
            }
        }
    }
    Some(best)
}

/// Returns predictions, each with its cost in 1/65536 bit.
fn predictions(matrix: &Matrix<'_>) -> [(Prediction, u64); 3] {
    let (rows, columns) = matrix.active();
    let cost = |wrong, lists| binary_entropy(wrong, matrix.count()) + ((lists + FORM_BITS) << 16);
    let both = matrix.both(|wrong| cost(wrong, rows + columns) < matrix.count() << 16);
    let all = [(both, rows + columns), (matrix.rows_alone(), rows), (matrix.columns_alone(), columns)];
    all.map(|(prediction, lists)| {
        let cost = cost(prediction.wrong, lists);
        (prediction, cost)
    })
}

/// Bits that a prediction has to save: an allowance for the tensor's view and its share of the width, the
/// table and the state. The estimate only selects; `write` compares the bytes of the whole block.
const FORM_BITS: u64 = 32;

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
    let values = Values { elements, present };
    let grids = read_views(cursor, decoder, elements.space)?;
    let mut predicted = Vec::with_capacity(grids.len());
    for grid in &grids {
        let sizes = [(grid.view.has_rows(), grid.rows), (grid.view.has_columns(), grid.columns)];
        let mut lists = [Vec::new(), Vec::new()];
        for (list, (_, len)) in lists.iter_mut().zip(sizes).filter(|(_, (has, _))| *has) {
            decoder.budget.reserve_elements(len, offset)?;
            list.resize(decoder.budget.reserve_items::<bool>(len, offset)?, false);
        }
        let [rows, columns] = lists;
        predicted.push(Lists { rows, columns });
    }
    // Which rows and columns have signs, then the bits of these.
    values.mark(&grids, &mut predicted)?;
    let bits = predicted.iter().flat_map(Lists::bits).filter(|has| **has).count() as u64;
    let plane_offset = cursor.offset();
    let mut plane = PlaneReader::new(cursor.take(bits.div_ceil(8))?, plane_offset);
    for lists in &mut predicted {
        let bits = lists.rows.iter_mut().chain(&mut lists.columns).filter(|has| **has);
        bits.for_each(|bit| *bit = plane.get(1) == 1);
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
    let mut bytes = values.plane(&grids, &predicted)?;
    bytes.resize(in_memory(count.div_ceil(8)), 0);
    let mut wrong = Vec::new();
    for (symbols, bytes) in symbols.chunks(PIECE).zip(bytes.chunks_mut(PIECE / 8 * usize::from(width))) {
        wrong.clear();
        put_packed(&mut wrong, symbols, width.into());
        bytes.iter_mut().zip(&wrong).for_each(|(sign, wrong)| *sign ^= wrong);
    }
    Bits::from_bytes(count, bytes).ok_or(Error::inconsistent("number of signs"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::values::tests::budget;
    use crate::block::{IndexSpace, Scope};
    use crate::codes::write_symbols;
    use crate::frame::{Manifest, TensorInfo};
    use crate::random::word;
    use crate::tensor::Dtype;

    /// The space of a vector and a matrix.
    fn space(vector: u64, rows: u64, columns: u64) -> IndexSpace {
        let vector = TensorInfo::new("vector", Dtype::F32, [vector]);
        let matrix = TensorInfo::new("matrix", Dtype::F32, [rows, columns]);
        Manifest::new(vec![vector, matrix]).unwrap().space(Scope::Tensors { first: 0, count: 2 }, 0).unwrap()
    }

    /// Signs at random in the vector; in the matrix products of rows and columns, except for one in `wrong`.
    fn signs(space: &IndexSpace, columns: u64, wrong: u64) -> impl Iterator<Item = bool> {
        let vector = space.lens[0];
        let draw = |tensor, i| word(1, tensor, i) % 2 == 1;
        (0..space.len()).map(move |i| match i.checked_sub(vector) {
            None => draw(0, i),
            Some(i) => draw(1, i / columns) ^ draw(2, i % columns) ^ (i % wrong == wrong - 1),
        })
    }

    fn read_with(
        bytes: &[u8],
        memory: u64,
        count: u64,
        space: &IndexSpace,
        present: Option<&[u8]>,
    ) -> Result<Bits> {
        let (mut cursor, budget) = (Cursor::new(bytes, 0, "signs"), budget(memory));
        let elements = Elements { support: &Support::All, space };
        let decoder = Decoder { tables: &[], budget: &budget };
        let signs = read(&mut cursor, &decoder, count, Some(elements), present)?;
        cursor.finish()?;
        Ok(signs)
    }

    #[test]
    fn predicted_signs_of_several_tensors_and_many_symbols_come_back() {
        let space = space(100, 300, 300);
        let codes: Vec<u8> = (0..space.len()).map(|i| (i % 7) as u8).collect();
        for present in [None, Some(codes.as_slice())] {
            let all = signs(&space, 300, 97).zip(&codes);
            let signs: Bits =
                all.filter(|(_, code)| present.is_none() || **code != 0).map(|(sign, _)| sign).collect();
            let elements = Elements { support: &Support::All, space: &space };
            let mut out = Vec::new();
            write(&mut out, &mut Coder::new(Entropy::Auto, &[], None), &signs, Some(elements), present);
            assert_eq!(out[0], PREDICTED);
            assert!(out.len() < signs.as_bytes().len() / 4, "{} bytes", out.len());
            assert!(read_with(&out, u64::MAX, signs.len(), &space, present).unwrap() == signs);
        }
    }

    #[test]
    fn the_cheapest_width_is_that_of_the_pattern() {
        let coder = Coder::new(Entropy::Auto, &[], None);
        let bits = |pattern: fn(u64) -> u8| Vec::from_iter((0..4000).map(pattern));
        // Bits of which few are 1; pairs and halves of bytes that are equal; bytes of two values.
        let few = bits(|i| if word(1, 0, i).is_multiple_of(8) { 1 << (word(1, 1, i) % 8) } else { 0 });
        let pairs = bits(|i| (0..4).map(|p| (3 * ((word(1, 0, i) >> p & 1) as u8)) << (2 * p)).sum());
        let halves = bits(|i| [0x96, 0x69, 0x66, 0x99][word(1, 0, i) as usize % 4]);
        let bytes = bits(|i| [0x1d, 0xd4][word(1, 0, i) as usize % 2]);
        assert_eq!([few, pairs, halves, bytes].map(|bits| cheapest_width(&coder, &bits)), [1, 2, 4, 8]);
    }

    #[test]
    fn predictions_that_do_not_pay_leave_no_counts() {
        let (space, mut record) = (space(1, 16, 16), Vec::new());
        let signs: Bits = signs(&space, 16, 5).collect();
        let mut coder = Coder::new(Entropy::Auto, &[], Some(&mut record));
        let (mut out, elements) = (Vec::new(), Elements { support: &Support::All, space: &space });
        write_predicted(&mut out, &mut coder, &signs, elements, None);
        assert!(coder.recorded() > 0 && out.len() > 1 + signs.as_bytes().len(), "{} bytes", out.len());
        coder.take_recorded(0);
        out.clear();
        write(&mut out, &mut coder, &signs, Some(elements), None);
        assert_eq!((out[0], coder.recorded()), (PLANE, 0));
    }

    /// Views and grids take 104 bytes for each tensor; rows, columns and symbols a byte each; signs a bit.
    #[test]
    fn memory_for_predictions_counts_against_the_limit() {
        let space = space(3, 37, 50);
        let signs: Bits = signs(&space, 50, 97).collect();
        let (mut out, elements) = (Vec::new(), Elements { support: &Support::All, space: &space });
        write(&mut out, &mut Coder::new(Entropy::Packed, &[], None), &signs, Some(elements), None);
        assert_eq!(out[0], PLANE, "predictions need entropy coding");
        out.clear();
        write(&mut out, &mut Coder::new(Entropy::Auto, &[], None), &signs, Some(elements), None);
        // The coding, two views of 8 bits with two bytes before them, and 87 bits.
        let width = u64::from(out[1 + 4 + 11]);
        let needed = 2 * 104 + 37 + 50 + signs.len().div_ceil(width) + signs.len().div_ceil(8);
        read_with(&out, needed, signs.len(), &space, None).unwrap();
        let e = read_with(&out, needed - 1, signs.len(), &space, None).unwrap_err();
        assert_eq!(e.name(), "limit");
    }

    #[test]
    fn a_single_sign_may_be_predicted() {
        let (mut bytes, mut coder) = (vec![PREDICTED], Coder::new(Entropy::Auto, &[], None));
        write_symbols(&mut bytes, &mut coder, Role::Views, &[0, 0]);
        bytes.push(1);
        write_entropy_symbols(&mut bytes, &mut coder, Role::Signs, &[1]);
        let space = space(1, 0, 0);
        assert_eq!(read_with(&bytes, u64::MAX, 1, &space, None).unwrap().as_bytes(), [1]);
        assert_eq!(read_with(&bytes, u64::MAX, 0, &space, None).unwrap_err().name(), "out_of_range");
    }

    #[test]
    fn padding_of_a_plane_is_refused_at_its_byte() {
        let (bytes, space) = ([PLANE, 0xff, 0b1000], space(9, 1, 2));
        let read = read_with(&bytes, 0, 11, &space, None).unwrap_err();
        let validate = validate(&mut Cursor::new(&bytes, 0, "signs"), 11).unwrap_err();
        for e in [read, validate] {
            assert_eq!((e.name(), e.location().unwrap().offset), ("nonzero_padding", 2));
        }
    }
}
