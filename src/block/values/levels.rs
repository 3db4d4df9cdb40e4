//! Levels of a quantiser times a norm per group (spec, values/levels.md).

use crate::arch::{self, Kernel, lookup};
use crate::bits::{Cursor, put_varint, unzigzag, zigzag};
use crate::block::values::{
    Content, Facts, Kind, Packed, Structure, Validated, ValueSpace, ValuesId, WireValues, put_numbers,
    to_number,
};
use crate::block::{Groups, Part, Scales, Values};
use crate::codes::{
    Coder, Decoder, PIECE, Role, SymbolReader, beyond_core, read_ints, read_symbols, validate_ints,
    write_ints, write_small_ints,
};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// Each element is its group's norm times a fraction from -1 to 1, which an integer level selects: QSGD
/// (arXiv 1610.02132), TernGrad (arXiv 1705.07878), natural dithering (arXiv 1905.10988).
#[derive(Debug, Clone, PartialEq)]
pub struct Levels {
    /// How levels are spaced.
    pub spacing: Spacing,
    /// Number of the largest level, s: 1 to 65,535 for uniform spacing, 1 to 255 for natural.
    pub max_level: u32,
    /// The norm that the sender took.
    pub norm: Norm,
    /// Which values share a norm.
    pub groups: Groups,
    /// The norms.
    pub norms: Scales,
    /// A level for each value: -s to s.
    pub levels: LevelList,
}

/// A list of levels, in a byte each if all of them fit.
#[derive(Debug, Clone)]
pub struct LevelList(Numbers);

#[derive(Debug, Clone)]
enum Numbers {
    /// The codes of the wire form: 0, -1, 1, -2, .. are 0, 1, 2, 3, ..
    Codes(Vec<u8>),
    Wide(Vec<i32>),
}

impl LevelList {
    /// Takes the codes of levels from -128 to 127.
    pub(crate) fn from_codes(codes: Vec<u8>) -> Self {
        Self(Numbers::Codes(codes))
    }

    /// The number of levels.
    pub fn len(&self) -> usize {
        match &self.0 {
            Numbers::Codes(codes) => codes.len(),
            Numbers::Wide(levels) => levels.len(),
        }
    }

    /// Whether there are no levels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The levels.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = i32> + '_ {
        self.iter_from(0)
    }

    /// Levels from a number on. `iter().skip(start)` would make all levels before it.
    fn iter_from(&self, start: usize) -> impl ExactSizeIterator<Item = i32> + '_ {
        (start..self.len()).map(|i| match &self.0 {
            Numbers::Codes(codes) => level_of(codes[i]),
            Numbers::Wide(levels) => levels[i],
        })
    }

    /// The bytes in memory.
    fn memory(&self) -> usize {
        match &self.0 {
            Numbers::Codes(codes) => codes.len(),
            Numbers::Wide(levels) => 4 * levels.len(),
        }
    }

    /// The largest magnitude; 0 if there are no levels.
    fn largest(&self) -> u32 {
        match &self.0 {
            // The code of a negative level is one less than twice its magnitude.
            Numbers::Codes(codes) => {
                u32::from(codes.iter().fold(0, |most, &code| code.max(most))).div_ceil(2)
            }
            Numbers::Wide(levels) => levels.iter().fold(0, |most, level| level.unsigned_abs().max(most)),
        }
    }

    /// Appends levels.
    pub(crate) fn append(&mut self, more: Self) {
        match (&mut self.0, more.0) {
            (Numbers::Codes(codes), Numbers::Codes(more)) => codes.extend(more),
            (_, more) => *self = self.iter().chain(Self(more).iter()).collect(),
        }
    }

    /// Returns the memory of the codes, for other codes.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        match self.0 {
            Numbers::Codes(codes) => codes,
            Numbers::Wide(_) => Vec::new(),
        }
    }
}

/// Inverts [`code_of`].
#[inline(always)]
pub(crate) fn level_of(code: u8) -> i32 {
    i32::from(code >> 1) ^ -i32::from(code & 1)
}

/// The code of a level from -128 to 127.
#[inline(always)]
pub(crate) fn code_of(level: i32) -> u8 {
    (level << 1 ^ level >> 31) as u8
}

impl From<Vec<i32>> for LevelList {
    fn from(levels: Vec<i32>) -> Self {
        match levels.iter().all(|level| (-128..=127).contains(level)) {
            true => Self::from_codes(levels.into_iter().map(code_of).collect()),
            false => Self(Numbers::Wide(levels)),
        }
    }
}

impl FromIterator<i32> for LevelList {
    fn from_iter<I: IntoIterator<Item = i32>>(levels: I) -> Self {
        Vec::from_iter(levels).into()
    }
}

impl PartialEq for LevelList {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// How the levels of [`Levels`] are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Spacing {
    /// Level l is l / s: QSGD, TernGrad (s = 1).
    Uniform = 0,
    /// Level 0 is 0, level l is 2^(l - s): natural dithering.
    Natural = 1,
}

impl Spacing {
    fn max_level(self) -> u32 {
        match self {
            Self::Uniform => 65_535,
            Self::Natural => 255,
        }
    }
}

/// The norm that scales the levels. Readers need not use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Norm {
    /// Sum of magnitudes.
    L1 = 1,
    /// Square root of the sum of squares.
    L2 = 2,
    /// Largest magnitude.
    Max = 255,
}

impl Kind for Levels {
    const ID: ValuesId = ValuesId(5);
    const IS_CORE: bool = true;

    fn facts(&self) -> Facts<'_> {
        Facts {
            content: Content::Numbers { no_sum: "each sender's levels are relative to its own norm" },
            structure: Structure::Grouped(self.groups),
            weight: self.levels.len() as u64,
            memory: (self.norms.bytes.len() + self.levels.memory()) as u64,
        }
    }

    fn label(&self) -> String {
        let spacing = if self.spacing == Spacing::Natural { "natural " } else { "" };
        format!("{spacing}levels s={}", self.max_level)
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        let Self { spacing, max_level, norm, groups, norms, levels } = self;
        if levels.len() as u64 != space.count || levels.largest() > *max_level {
            return Err(Error::inconsistent("levels"));
        }
        write_head(out, *spacing, *max_level, *norm, *groups, norms, space)?;
        match &levels.0 {
            Numbers::Codes(codes) => write_small_ints(out, coder, Role::Levels, codes),
            Numbers::Wide(levels) => {
                let codes: Vec<u64> = levels.iter().map(|&l| zigzag(l.into())).collect();
                write_ints(out, coder, Role::Levels, &codes);
            }
        }
        Ok(())
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let head = Self::read_head(cursor, space)?;
        let max = u64::from(head.max_level) * 2;
        let levels = if head.max_level <= MAX_SMALL {
            LevelList::from_codes(read_symbols(cursor, decoder, space.count, max as u8)?)
        } else {
            let codes = read_ints(cursor, decoder, space.count, max)?;
            // Beside the codes, from which they are made.
            decoder.budget.reserve_items::<i32>(space.count, cursor.offset())?;
            codes.into_iter().map(|code| unzigzag(code) as i32).collect()
        };
        Ok(Self { levels, ..head })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        Self::read_head(cursor, space)?;
        validate_ints(cursor, space.count)?;
        Ok(Validated::numbers(space.count))
    }

    fn beyond_core(
        cursor: &mut Cursor<'_>,
        _: &Decoder<'_>,
        space: &ValueSpace<'_>,
    ) -> Result<Option<&'static str>> {
        Self::read_head(cursor, space)?;
        beyond_core(cursor, space.count)
    }

    fn numbers(&self, tensor_counts: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        self.groups.for_each(out.len(), tensor_counts, |g, range| {
            let norm = f64::from(self.norms.get(g));
            for (value, level) in out[range.clone()].iter_mut().zip(self.levels.iter_from(range.start)) {
                *value = self.number(norm, level);
            }
        });
        Ok(())
    }
}

/// Returns the number of a level of a group with this norm (spec, values/levels.md).
#[inline(always)]
pub(crate) fn number_of(spacing: Spacing, max_level: u32, norm: f64, level: i32) -> f32 {
    to_number(match (spacing, level) {
        (Spacing::Uniform, l) => norm * f64::from(l) / f64::from(max_level),
        (Spacing::Natural, 0) => 0.0,
        // At least 2^-254: a normal binary64 number.
        (Spacing::Natural, l) => {
            let exponent = i64::from(l.unsigned_abs()) - i64::from(max_level);
            f64::from(l.signum()) * norm * f64::from_bits(((exponent + 1023) as u64) << 52)
        }
    })
}

/// Computes the numbers of the first codes.
struct FirstNumbers<'a> {
    spacing: Spacing,
    max_level: u32,
    norm: f64,
    table: &'a mut [f32],
}

impl Kernel for FirstNumbers<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { spacing, max_level, norm, table } = self;
        // A condition outside of the loop leaves a loop of vectors.
        if spacing == Spacing::Uniform {
            for (number, code) in table.iter_mut().zip(0..) {
                *number = number_of(Spacing::Uniform, max_level, norm, level_of(code));
            }
        } else {
            for (number, code) in table.iter_mut().zip(0..) {
                *number = number_of(Spacing::Natural, max_level, norm, level_of(code));
            }
        }
    }
}

/// The largest `max_level` whose codes are read as bytes.
const MAX_SMALL: u32 = 127;

impl Levels {
    fn number(&self, norm: f64, level: i32) -> f32 {
        number_of(self.spacing, self.max_level, norm, level)
    }

    /// Reads the wire form, and stores the numbers as elements.
    pub(crate) fn read_into(
        cursor: &mut Cursor<'_>,
        decoder: &Decoder<'_>,
        space: &ValueSpace<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        let head = Self::read_head(cursor, space)?;
        let mut groups = head.groups.visit(space.lens());
        if head.max_level > MAX_SMALL {
            let codes = read_ints(cursor, decoder, space.count, u64::from(head.max_level) * 2)?;
            return put_numbers(space.dtype, out, |start, numbers| {
                groups.up_to(start + numbers.len(), |g, range| {
                    let norm = f64::from(head.norms.get(g));
                    for i in range {
                        numbers[i - start] = head.number(norm, unzigzag(codes[i]) as i32);
                    }
                });
                Ok(())
            });
        }
        let largest = (2 * head.max_level) as u8;
        let mut reader = SymbolReader::new(cursor, decoder, space.count, largest)?;
        let (mut codes, mut table) = ([0; PIECE], [0.0; 256]);
        let form = arch::widest();
        put_numbers(space.dtype, out, |start, numbers| {
            let codes = &mut codes[..numbers.len()];
            reader.fill(codes)?;
            groups.up_to(start + numbers.len(), |g, range| {
                let norm = f64::from(head.norms.get(g));
                let range = range.start - start..range.end - start;
                let (codes, numbers) = (&codes[range.clone()], &mut numbers[range]);
                let (spacing, max_level) = (head.spacing, head.max_level);
                let fill = |table: &mut [f32]| arch::run(FirstNumbers { spacing, max_level, norm, table });
                if usize::from(largest) < lookup::ENTRIES {
                    let Some(table) = table.first_chunk_mut() else { return };
                    fill(if largest < 16 { &mut table[..16] } else { &mut table[..] });
                    lookup::numbers(form, table, codes, numbers);
                } else if codes.len() <= usize::from(largest) / 4 {
                    // A table of vectors takes a quarter of the time for each number.
                    let number = |code: u8| head.number(norm, level_of(code));
                    numbers.iter_mut().zip(codes).for_each(|(n, &code)| *n = number(code));
                } else {
                    fill(&mut table[..=usize::from(largest)]);
                    numbers.iter_mut().zip(codes).for_each(|(n, &code)| *n = table[usize::from(code)]);
                }
            });
            Ok(())
        })
    }

    /// Reads the fields before the levels; `levels` stays empty.
    fn read_head(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let spacing = match cursor.u8_in("spacing", 0, 1)? {
            0 => Spacing::Uniform,
            _ => Spacing::Natural,
        };
        // At most 65,535.
        let max_level = cursor.varint_in("max_level", 1, spacing.max_level().into())? as u32;
        let offset = cursor.offset();
        let norm = match cursor.u8()? {
            1 => Norm::L1,
            2 => Norm::L2,
            255 => Norm::Max,
            other => return Err(Error::out_of_range("norm", other.into(), offset)),
        };
        let groups = Groups::read(cursor, space)?;
        let norms = Scales::read(cursor, groups.count(space))?;
        Ok(Self { spacing, max_level, norm, groups, norms, levels: Vec::new().into() })
    }
}

/// Appends the fields before the levels.
fn write_head(
    out: &mut Vec<u8>,
    spacing: Spacing,
    max_level: u32,
    norm: Norm,
    groups: Groups,
    norms: &Scales,
    space: &ValueSpace<'_>,
) -> Result<()> {
    if !(1..=spacing.max_level()).contains(&max_level) {
        return Err(Error::inconsistent("max_level"));
    }
    out.push(spacing as u8);
    put_varint(out, max_level.into());
    out.push(norm as u8);
    groups.write(out, space)?;
    norms.write(out, groups.count(space))
}

impl WireValues {
    /// Writes [`Levels`]: `codes` are the levels in zigzag order, 2l for l >= 0 and -2l - 1 for l < 0.
    ///
    /// # Errors
    /// As [`Self::sign`], and for a `max_level` out of range.
    pub fn levels(
        self,
        spacing: Spacing,
        max_level: u32,
        norm: Norm,
        groups: Groups,
        norms: &Scales,
        codes: Packed<'_>,
    ) -> Result<Part<'static, Values, ValuesId>> {
        let mut bytes = Vec::new();
        write_head(&mut bytes, spacing, max_level, norm, groups, norms, &self.space())?;
        self.ints(&mut bytes, codes)?;
        Ok(Part::Written { id: Levels::ID, bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::PlaneWriter;
    use crate::block::ScaleFormat;
    use crate::block::values::tests::{read, read_into, space};
    use crate::tensor::Dtype;

    #[test]
    fn lists_hold_their_levels_in_a_byte_each_if_all_fit() {
        let lists: [&[i32]; 8] =
            [&[], &[0], &[1], &[-1, 3, 2], &[-128, 127], &[5, 128], &[-129, 5], &[i32::MIN, 7]];
        for levels in lists {
            let list = LevelList::from(levels.to_vec());
            let wide = LevelList(Numbers::Wide(levels.to_vec()));
            assert_eq!((list.len(), list.is_empty()), (levels.len(), levels.is_empty()));
            assert!(list.iter().eq(levels.iter().copied()), "{levels:?}");
            let largest = levels.iter().map(|l| l.unsigned_abs()).max().unwrap_or(0);
            assert_eq!((list.largest(), wide.largest()), (largest, largest));
            let size = if levels.iter().all(|level| i8::try_from(*level).is_ok()) { 1 } else { 4 };
            assert_eq!(list.memory(), size * levels.len(), "{levels:?}");
            // The same levels in the other form.
            assert_eq!(list, wide);
            assert_ne!(list, LevelList::from([levels, &[0]].concat()));
        }
        assert_ne!(LevelList::from(vec![1, 2]), LevelList::from(vec![1, 3]));
    }

    /// Returns the bytes of 16 levels, all with this code.
    fn with_code(max_level: u32, code: u64) -> Vec<u8> {
        let width = 64 - code.leading_zeros();
        let mut plane = Vec::new();
        let mut writer = PlaneWriter::new(&mut plane);
        (0..16).for_each(|_| writer.put(code, width));
        writer.finish();
        let values = WireValues { count: 16, tensors: 1 };
        let packed = Packed { width: width as u8, plane: &plane };
        let norms = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
        match values.levels(Spacing::Uniform, max_level, Norm::L2, Groups::Block, &norms, packed).unwrap() {
            Part::Written { bytes, .. } => bytes.into_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn codes_beyond_the_largest_level_are_refused() {
        let space = space(Dtype::F32, 16);
        for max_level in [7, 127, 128, 300] {
            let largest = with_code(max_level, 2 * u64::from(max_level));
            read(&largest, Levels::ID, &space, 1 << 20).unwrap();
            let elements = read_into(&largest, Levels::ID, &space, 1 << 20).unwrap();
            assert_eq!(elements, 1f32.to_le_bytes().repeat(16), "{max_level}");
            let wrong = with_code(max_level, 2 * u64::from(max_level) + 1);
            let e = read(&wrong, Levels::ID, &space, 1 << 20).unwrap_err();
            assert_eq!(e.name(), "out_of_range", "{max_level}");
            let e = read_into(&wrong, Levels::ID, &space, 1 << 20).unwrap_err();
            assert_eq!(e.name(), "out_of_range", "{max_level}");
        }
    }

    /// Levels that fit a byte take a byte each; others take 8 as codes, and 4 more.
    #[test]
    fn memory_for_levels_counts_against_the_limit() {
        let space = space(Dtype::F32, 16);
        for (max_level, needed) in [(127, 16), (128, 16 * 12)] {
            let bytes = with_code(max_level, 3);
            read(&bytes, Levels::ID, &space, needed).unwrap();
            let e = read(&bytes, Levels::ID, &space, needed - 1).unwrap_err();
            assert_eq!(e.name(), "limit", "{max_level}");
        }
    }
}
