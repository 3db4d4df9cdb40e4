//! The elements' own bits by byte planes (spec, values/planes.md).

use std::ops::Range;

use crate::arch::{self, Form, Kernel, pages};
use crate::bits::Cursor;
use crate::block::Stored;
use crate::block::values::floats::has_padding;
use crate::block::values::{Content, Facts, Kind, Structure, Validated, ValueSpace, ValuesId};
use crate::codes::{Coder, Decoder, Entropy, PIECE, Role, SymbolPlan, SymbolReader, pays, validate_ints};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;
use crate::tensor::Dtype;
use crate::tensor::element::bits_of;

/// The elements' own bits, byte plane by byte plane, entropy coded.
#[derive(Debug, Clone, PartialEq)]
pub struct Planes {
    /// `m` elements of the tensor's type in little-endian bytes.
    pub bytes: Vec<u8>,
}

impl Kind for Planes {
    const ID: ValuesId = ValuesId(9);

    fn facts(&self) -> Facts<'_> {
        let (content, len) = (Content::Elements(Stored::Source, &self.bytes), self.bytes.len() as u64);
        Facts { content, structure: Structure::Flat, weight: len, memory: len }
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        Self::write_elements(&self.bytes, out, coder, space)
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let Sizes { total, .. } = Sizes::new(space, cursor.offset())?;
        let mut bytes = vec![0u8; decoder.budget.reserve_items::<u8>(total, cursor.offset())?];
        Self::read_into(cursor, decoder, space, &mut bytes)?;
        Ok(Self { bytes })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        let Sizes { planes, plane_len, total } = Sizes::new(space, cursor.offset())?;
        for _ in 0..planes {
            if take_plain(cursor, plane_len)?.is_none() {
                validate_ints(cursor, plane_len)?;
            }
        }
        Ok(Validated::bits(total))
    }
}

impl Planes {
    /// Appends the wire form of these elements.
    pub(crate) fn write_elements(
        bytes: &[u8],
        out: &mut Vec<u8>,
        coder: &mut Coder<'_>,
        space: &ValueSpace<'_>,
    ) -> Result<()> {
        if space.dtype.bytes_for(space.count) != Some(bytes.len() as u64)
            || has_padding(space.dtype, space.count, bytes)
        {
            return Err(Error::inconsistent("bytes of planes"));
        }
        let layout = Layout::of(space.dtype);
        let mut noise = [false; MAX_PLANES];
        for (plane, noise) in noise[..layout.size].iter_mut().enumerate() {
            *noise = is_noise(coder, bytes, layout, plane);
        }
        let (start, mut plane, mut memory) = (out.len(), 0, std::mem::take(&mut coder.scratch.symbols));
        while plane < layout.size {
            // One pass splits the planes of noise up to the next plane that may have a code, and that plane.
            let plain = noise[plane..layout.size].iter().take_while(|noise| **noise).count();
            let coded = (plane + plain < layout.size).then_some(plane + plain);
            let len = if coded.is_some() { bytes.len() / layout.size } else { 0 };
            let symbols = pages::reused(&mut memory, len);
            split_run(out, bytes, layout, plane..plane + plain, coded, symbols);
            if let Some(coded) = coded {
                let beside = out.len() - start;
                write_plane(out, coder, symbols, beside, layout.size - 1 - coded, space);
            }
            plane += plain + usize::from(coded.is_some());
        }
        coder.scratch.symbols = memory;
        Ok(())
    }

    /// Reads the wire form into `out`, which has the length of all elements.
    pub(crate) fn read_into(
        cursor: &mut Cursor<'_>,
        decoder: &Decoder<'_>,
        space: &ValueSpace<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        let offset = cursor.offset();
        let Sizes { plane_len, .. } = Sizes::new(space, offset)?;
        let layout = Layout::of(space.dtype);
        let step = in_memory(plane_len.min(STEP as u64));
        let mut planes = Vec::with_capacity(layout.size);
        for _ in 0..layout.size {
            planes.push(match take_plain(cursor, plane_len)? {
                Some(symbols) => Plane::Plain(symbols),
                None => {
                    let reader = SymbolReader::new(cursor, decoder, plane_len, 255)?;
                    Plane::Coded { reader: Box::new(reader), symbols: vec![0; step] }
                }
            });
        }
        let form = arch::widest();
        for out in out.chunks_mut(STEP * layout.size) {
            let len = out.len() / layout.size;
            let mut pieces = [[].as_slice(); MAX_PLANES];
            for (piece, plane) in pieces.iter_mut().zip(&mut planes) {
                *piece = plane.next(len)?;
            }
            join(form, layout, &pieces[..layout.size], out);
        }
        match has_padding(space.dtype, space.count, out) {
            true => Err(Error::format(FormatErrorKind::NonzeroPadding, offset)),
            false => Ok(()),
        }
    }
}

/// Symbols of each plane that are decoded before they are joined: those of a stretch of a tree, which are so
/// not copied.
const STEP: usize = 8 * PIECE;

/// A plane that is read.
enum Plane<'a> {
    /// The symbols that are left.
    Plain(&'a [u8]),
    Coded {
        reader: Box<SymbolReader<'a>>,
        /// Room for some of the symbols.
        symbols: Vec<u8>,
    },
}

impl Plane<'_> {
    /// Returns the next `len` symbols, at most [`STEP`].
    fn next(&mut self, len: usize) -> Result<&[u8]> {
        match self {
            Self::Plain(symbols) => {
                let (here, rest) = symbols.split_at(len);
                *symbols = rest;
                Ok(here)
            }
            Self::Coded { reader, symbols } => {
                reader.fill(&mut symbols[..len])?;
                Ok(&symbols[..len])
            }
        }
    }
}

/// Number of symbols from which on a segment has 32 lanes. Decoding 4 lanes takes several times as long, and
/// 28 more cost little beside the planes that are stored as they are.
const WIDE_FROM: usize = 1 << 14;

/// Appends the flag of a plane and its symbols, in the smallest form, or in trees. `beside`: the bytes of the
/// planes below. `significance` counts from the top plane.
fn write_plane(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    symbols: &[u8],
    beside: usize,
    significance: usize,
    space: &ValueSpace<'_>,
) {
    // Elements of a row have similar exponents: only the top plane gains from a reference per row.
    let row_lens = if significance == 0 && space.dtype.is_float() { space.row_lens } else { &[] };
    let usually_wide_from = std::mem::replace(&mut coder.wide_from, WIDE_FROM);
    match SymbolPlan::new(coder, symbols, row_lens) {
        plan if symbols.is_empty() || matches!(plan, SymbolPlan::Packed(8)) => {
            out.push(0);
            pages::append(out, symbols);
        }
        mut plan => {
            plan.prefer_trees(coder, symbols, beside);
            out.push(1);
            plan.write(out, coder, Role::Plane(significance as u8), symbols);
        }
    }
    coder.wide_from = usually_wide_from;
}

/// Symbols from which a plane is judged by a sample.
const SAMPLED: usize = 1 << 17;
/// Symbols of each piece of the sample.
const SAMPLE: usize = 1 << 14;
/// One of so many pieces is in the sample of a plane of at least 2^20 symbols; of a shorter one, at least
/// four.
const SAMPLE_STEP: usize = 16;

/// Whether pieces of a long plane save less than 1/256 by a code, each with a table; the plane may then save
/// up to a hundredth. A code of a few hundredths of a bit would cost most of the time of encoding and
/// decoding.
fn is_noise(coder: &Coder<'_>, bytes: &[u8], layout: Layout, plane: usize) -> bool {
    let len = bytes.len() / layout.size;
    if len < SAMPLED || coder.entropy == Entropy::Packed {
        return false;
    }
    let mut sample = vec![0; SAMPLE];
    let step = (len / SAMPLE / 4).min(SAMPLE_STEP);
    let mut pieces = bytes.chunks_exact(SAMPLE * layout.size).step_by(step);
    pieces.all(|piece| {
        let mut planes = [const { [].as_mut_slice() }; MAX_PLANES];
        planes[plane] = &mut sample;
        split(arch::widest(), layout, piece, &mut planes[..layout.size]);
        !pays(coder, &sample)
    })
}

/// Appends the flags and symbols of the planes `plain`, and stores the symbols of the plane `coded`.
fn split_run(
    out: &mut Vec<u8>,
    bytes: &[u8],
    layout: Layout,
    plain: Range<usize>,
    coded: Option<usize>,
    symbols: &mut [u8],
) {
    let len = bytes.len() / layout.size;
    let start = out.len();
    out.reserve(plain.len() * (1 + len));
    pages::prefer_large(out);
    out.resize(start + plain.len() * (1 + len), 0);
    let mut rest = out[start..].chunks_exact_mut(1 + len);
    let mut planes = [const { [].as_mut_slice() }; MAX_PLANES];
    for plane in plain {
        planes[plane] = rest.next().map(|flag_and_symbols| &mut flag_and_symbols[1..]).unwrap_or_default();
    }
    if let Some(coded) = coded {
        planes[coded] = symbols;
    }
    let form = arch::widest();
    // Steps whose elements stay in the first-level cache for each plane.
    for elements in bytes.chunks(PIECE * layout.size) {
        let mut pieces = [const { [].as_mut_slice() }; MAX_PLANES];
        for (piece, plane) in pieces.iter_mut().zip(&mut planes).filter(|(_, plane)| !plane.is_empty()) {
            let (here, rest) = std::mem::take(plane).split_at_mut(elements.len() / layout.size);
            (*piece, *plane) = (here, rest);
        }
        split(form, layout, elements, &mut pieces[..layout.size]);
    }
}

/// The bytes of an element.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Number of planes: the bytes of an element, or of a pair of 4-bit elements.
    size: usize,
    /// Whether the sign bit is moved to the low end.
    rotates: bool,
}

/// The largest number of planes.
const MAX_PLANES: usize = 8;

impl Layout {
    fn of(dtype: Dtype) -> Self {
        let size = in_memory((dtype.bits() / 8).max(1).into());
        Self { size, rotates: dtype.is_float() && size > 1 }
    }

    /// The bits by which an element is rotated to the left.
    fn turn(self) -> u32 {
        self.rotates.into()
    }

    /// Rotates an element in the low bits of a word. The other bits of the result have no meaning.
    #[inline(always)]
    fn rotated(self, word: u64) -> u64 {
        match self.rotates {
            true => word << 1 | word >> (8 * self.size - 1),
            false => word,
        }
    }

    /// Inverts [`Self::rotated`] of a word whose other bits are zero.
    #[inline(always)]
    fn turned_back(self, word: u64) -> u64 {
        match self.rotates {
            true => word >> 1 | word << (8 * self.size - 1),
            false => word,
        }
    }
}

/// Splits elements into their planes. An empty plane is left out.
fn split(form: Form, layout: Layout, elements: &[u8], planes: &mut [&mut [u8]]) {
    match layout.size {
        2 => split_sized::<2>(form, layout, elements, planes),
        4 => split_sized::<4>(form, layout, elements, planes),
        8 => split_sized::<8>(form, layout, elements, planes),
        _ => planes.iter_mut().filter(|p| !p.is_empty()).for_each(|plane| plane.copy_from_slice(elements)),
    }
}

/// Splits elements of `SIZE` bytes.
fn split_sized<const SIZE: usize>(form: Form, layout: Layout, elements: &[u8], planes: &mut [&mut [u8]]) {
    let elements = elements.as_chunks::<SIZE>().0;
    let done = arch::planes::split(form, layout.turn(), elements, planes);
    for (significance, plane) in planes.iter_mut().enumerate().filter(|(_, plane)| !plane.is_empty()) {
        let plane = &mut plane[done..];
        arch::run_as(form, SplitPlane { layout, elements: &elements[done..], significance, plane });
    }
}

/// Joins planes of equal length: the inverse of [`split`].
fn join(form: Form, layout: Layout, planes: &[&[u8]], out: &mut [u8]) {
    match layout.size {
        2 => join_sized::<2>(form, layout, planes, out),
        4 => join_sized::<4>(form, layout, planes, out),
        8 => join_sized::<8>(form, layout, planes, out),
        _ => out.copy_from_slice(planes[0]),
    }
}

/// Joins planes to elements of `SIZE` bytes.
fn join_sized<const SIZE: usize>(form: Form, layout: Layout, planes: &[&[u8]], out: &mut [u8]) {
    let out = out.as_chunks_mut::<SIZE>().0;
    let first = arch::planes::join(form, layout.turn(), planes, out);
    arch::run_as(form, JoinPlanes { layout, planes, first, out });
}

/// Splits off one plane.
struct SplitPlane<'a, const SIZE: usize> {
    layout: Layout,
    elements: &'a [[u8; SIZE]],
    significance: usize,
    plane: &'a mut [u8],
}

impl<const SIZE: usize> Kernel for SplitPlane<'_, SIZE> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { layout, elements, significance, plane } = self;
        for (symbol, element) in plane.iter_mut().zip(elements) {
            *symbol = (layout.rotated(bits_of(element)) >> (8 * significance)) as u8;
        }
    }
}

/// Joins the elements from `first` on.
struct JoinPlanes<'a, const SIZE: usize> {
    layout: Layout,
    planes: &'a [&'a [u8]],
    first: usize,
    out: &'a mut [[u8; SIZE]],
}

impl<const SIZE: usize> Kernel for JoinPlanes<'_, SIZE> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { layout, planes, first, out } = self;
        for (i, element) in out.iter_mut().enumerate().skip(first) {
            let mut word = 0;
            for (significance, plane) in planes.iter().enumerate() {
                word |= u64::from(plane[i]) << (8 * significance);
            }
            element.copy_from_slice(&layout.turned_back(word).to_le_bytes()[..SIZE]);
        }
    }
}

/// Sizes of the planes of some elements.
struct Sizes {
    planes: usize,
    /// Bytes of a plane.
    plane_len: u64,
    /// Bytes of all elements.
    total: u64,
}

impl Sizes {
    fn new(space: &ValueSpace<'_>, offset: u64) -> Result<Self> {
        let planes = Layout::of(space.dtype).size;
        let too_long = || Error::format(FormatErrorKind::LengthMismatch { field: "planes" }, offset);
        let total = space.dtype.bytes_for(space.count).ok_or_else(too_long)?;
        Ok(Self { planes, plane_len: total / planes as u64, total })
    }
}

/// Takes the flag of a plane, and its bytes if they are stored without a code.
fn take_plain<'a>(cursor: &mut Cursor<'a>, plane_len: u64) -> Result<Option<&'a [u8]>> {
    match cursor.u8_in("coded", 0, 1)? {
        0 => Ok(Some(cursor.take(plane_len)?)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::values::tests::space;
    use crate::codes::write_symbols;
    use crate::random;

    fn written(bytes: &[u8], coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        Planes::write_elements(bytes, &mut out, coder, space).unwrap();
        out
    }

    fn coder() -> Coder<'static> {
        Coder::new(Entropy::Auto, &[], None)
    }

    #[test]
    fn long_planes_that_gain_little_from_a_code_are_stored() {
        let mut words = vec![0; SAMPLED];
        random::words(1, 0, 0, &mut words);
        // A code saves 0.3 % of the low plane, whose top bit is set in 45 of 64 symbols. Half of the high
        // plane is zeros, of which the sample has some.
        let low = |word: u32| u8::from(word >> 26 < 45) << 7 | word as u8 >> 1;
        let high = |i: usize, word: u32| if i < SAMPLED / 2 { (word >> 8) as u8 } else { 0 };
        let bytes: Vec<u8> = words.iter().enumerate().flat_map(|(i, &w)| [low(w), high(i, w)]).collect();
        let low: Vec<u8> = bytes.iter().step_by(2).copied().collect();
        let out = written(&bytes, &mut coder(), &space(Dtype::U16, SAMPLED as u64));
        assert!(out[0] == 0 && out[1..=SAMPLED] == low, "the low plane is stored");
        assert_eq!(out[1 + SAMPLED], 1, "the high plane has a code");
        let stored = written(&low, &mut coder(), &space(Dtype::U8, SAMPLED as u64));
        assert!(stored[0] == 0 && stored[1..] == low, "the only plane is stored");
        // Shorter planes have the smallest form.
        let len = SAMPLED - 1;
        let short = written(&bytes[..2 * len], &mut coder(), &space(Dtype::U16, len as u64));
        assert_eq!(short[0], 1);
        let mut back = vec![0; bytes.len()];
        let budget = crate::block::values::tests::budget(u64::MAX);
        let (mut cursor, decoder) =
            (Cursor::new(&out, 0, "planes"), Decoder { tables: &[], budget: &budget });
        Planes::read_into(&mut cursor, &decoder, &space(Dtype::U16, SAMPLED as u64), &mut back).unwrap();
        assert!(back == bytes);
    }

    #[test]
    fn exponents_of_rows_have_references() {
        const ROWS: u64 = 80;
        const COLUMNS: u64 = 48;
        let number = |i: u64| {
            let exponent = 20 + random::word(1, 0, i / COLUMNS) % 200 + random::word(1, 1, i) % 4;
            exponent << 23 | random::word(1, 2, i) >> 9
        };
        let bytes: Vec<u8> = (0..ROWS * COLUMNS).flat_map(|i| number(i).to_le_bytes()).collect();
        let len = |row_lens| {
            let space = ValueSpace { row_lens, ..space(Dtype::F32, ROWS * COLUMNS) };
            written(&bytes, &mut coder(), &space).len() as u64
        };
        // They save more than two bits for each number.
        assert!(len(&[COLUMNS]) + ROWS * COLUMNS / 4 < len(&[]));
    }

    #[test]
    fn codes_after_planes_are_written_as_alone() {
        let codes: Vec<u8> =
            (0..20_000).map(|i| u8::from(random::word(1, 0, i).is_multiple_of(16))).collect();
        let after = |coder: &mut Coder<'_>| {
            let mut out = Vec::new();
            write_symbols(&mut out, coder, Role::Codes, &codes);
            out
        };
        let mut used = coder();
        written(&codes, &mut used, &space(Dtype::U8, codes.len() as u64));
        assert!(after(&mut used) == after(&mut coder()));
    }

    #[test]
    fn the_sign_goes_to_the_lowest_bit() {
        let rotated = (-1.5f32).to_bits().rotate_left(1).to_le_bytes();
        let mut planes = rotated.map(|_| [0]);
        let [a, b, c, d] = &mut planes;
        let layout = Layout::of(Dtype::F32);
        let elements = &(-1.5f32).to_le_bytes();
        split(arch::widest(), layout, elements, &mut [a, b, c, d]);
        assert_eq!(planes.as_flattened(), rotated);
    }

    #[test]
    fn every_form_splits_and_joins_elements() {
        // Not a whole number of rows for any type.
        let bytes: Vec<u8> = (0..16_040).map(|i| random::word(1, 0, i) as u8).collect();
        for dtype in Dtype::ALL {
            let layout = Layout::of(dtype);
            let len = bytes.len() / layout.size;
            for form in arch::forms() {
                let mut planes = vec![vec![0; len]; layout.size];
                let mut places: Vec<&mut [u8]> = planes.iter_mut().map(Vec::as_mut_slice).collect();
                split(form, layout, &bytes, &mut places);
                for (element, i) in bytes.chunks(layout.size).zip(0..) {
                    let mut word = [0; 8];
                    word[..layout.size].copy_from_slice(element);
                    let (word, bits) = (u64::from_le_bytes(word), 8 * layout.size);
                    let rotated = match layout.rotates {
                        true => word << 1 | word >> (bits - 1),
                        false => word,
                    };
                    let symbols: Vec<u8> = planes.iter().map(|plane| plane[i]).collect();
                    assert_eq!(symbols, rotated.to_le_bytes()[..layout.size], "{dtype} {form:?}");
                }
                for left_out in 0..layout.size {
                    let mut others = planes.clone();
                    others[left_out].clear();
                    others.iter_mut().for_each(|plane| plane.fill(0));
                    let mut places: Vec<&mut [u8]> = others.iter_mut().map(Vec::as_mut_slice).collect();
                    split(form, layout, &bytes, &mut places);
                    for (plane, expected) in others.iter().zip(&planes).filter(|(p, _)| !p.is_empty()) {
                        assert_eq!(plane, expected, "{dtype} {form:?} without plane {left_out}");
                    }
                }
                let planes: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
                let mut back = vec![0; bytes.len()];
                join(form, layout, &planes, &mut back);
                assert_eq!(back, bytes, "{dtype} {form:?}");
            }
        }
    }
}
