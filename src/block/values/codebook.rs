//! Entries of a table, times a scale, plus a shift (spec, values/codebook.md).

use crate::bits::{Cursor, put_f32};
use crate::block::values::{Content, Facts, Kind, Structure, Validated, ValueSpace, ValuesId, to_number};
use crate::block::{Groups, Scales};
use crate::codes::{Coder, Decoder, Role, read_symbols, validate_ints, write_symbols};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// Each element is an entry of a table, times its group's scale, plus its group's shift: SparseLoCo (arXiv
/// 2508.15706).
#[derive(Debug, Clone, PartialEq)]
pub struct Codebook {
    /// The table: 2 to 256 entries.
    pub table: Vec<f32>,
    /// Which values share a scale and a shift.
    pub groups: Groups,
    /// The scales; `None` for 1.
    pub scales: Option<Scales>,
    /// The shifts; `None` for 0.
    pub shifts: Option<Scales>,
    /// A table index for each value.
    pub codes: Vec<u8>,
}

impl Kind for Codebook {
    const ID: ValuesId = ValuesId(7);

    fn facts(&self) -> Facts<'_> {
        Facts {
            content: Content::Numbers { no_sum: "codes of a table cannot be added" },
            structure: Structure::Grouped(self.groups),
            weight: self.codes.len() as u64,
            memory: (self.codes.len() + 2 * self.scales.as_ref().map_or(0, |s| s.bytes.len())) as u64,
        }
    }

    fn label(&self) -> String {
        format!("codebook {}", self.table.len())
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        let Self { table, groups, scales, shifts, codes } = self;
        if !(2..=256).contains(&table.len()) {
            return Err(Error::inconsistent("codebook entries"));
        }
        if codes.len() as u64 != space.count || codes.iter().any(|&c| usize::from(c) >= table.len()) {
            return Err(Error::inconsistent("codebook codes"));
        }
        out.push((table.len() - 1) as u8);
        table.iter().for_each(|&entry| put_f32(out, entry));
        out.push(u8::from(scales.is_some()) | u8::from(shifts.is_some()) << 1);
        groups.write(out, space)?;
        for numbers in [scales, shifts].into_iter().flatten() {
            numbers.write(out, groups.count(space))?;
        }
        write_symbols(out, coder, Role::Codes, codes);
        Ok(())
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let head = Self::read_head(cursor, space)?;
        // The table has 2 to 256 entries.
        let codes = read_symbols(cursor, decoder, space.count, (head.table.len() - 1) as u8)?;
        Ok(Self { codes, ..head })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        Self::read_head(cursor, space)?;
        validate_ints(cursor, space.count)?;
        Ok(Validated::numbers(space.count))
    }

    fn numbers(&self, tensor_counts: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        let Self { table, groups, scales, shifts, codes } = self;
        groups.for_each(out.len(), tensor_counts, |g, range| {
            for (value, &code) in out[range.clone()].iter_mut().zip(&codes[range]) {
                let mut number = f64::from(table[usize::from(code)]);
                if let Some(scales) = scales {
                    number *= f64::from(scales.get(g));
                }
                if let Some(shifts) = shifts {
                    number += f64::from(shifts.get(g));
                }
                *value = to_number(number);
            }
        });
        Ok(())
    }
}

impl Codebook {
    /// Reads the fields before the codes; `codes` stays empty.
    fn read_head(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let last = cursor.u8_in("codebook entries", 1, 255)?;
        let table = (0..=last).map(|_| Ok(f32::from_bits(cursor.u32()?))).collect::<Result<_>>()?;
        let flags = cursor.flags("codebook flags", 0b11)?;
        let groups = Groups::read(cursor, space)?;
        let count = groups.count(space);
        let mut numbers = |bit: u8| (flags & bit != 0).then(|| Scales::read(cursor, count)).transpose();
        let scales = numbers(1)?;
        let shifts = numbers(2)?;
        Ok(Self { table, groups, scales, shifts, codes: Vec::new() })
    }
}
