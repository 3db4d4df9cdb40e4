//! Small floats with a scale per group (spec, values/minifloat.md).

use crate::bits::Cursor;
use crate::block::values::{
    Content, Facts, Kind, MinifloatFormat, Structure, Validated, ValueSpace, ValuesId, to_number,
};
use crate::block::{Groups, Scales};
use crate::codes::{Coder, Decoder, Role, read_symbols, validate_ints, write_symbols};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// Each element is a small float times its group's scale: FP8, FP4, OCP Microscaling (MX).
#[derive(Debug, Clone, PartialEq)]
pub struct Minifloat {
    /// The element format.
    pub format: MinifloatFormat,
    /// Which values share a scale.
    pub groups: Groups,
    /// The scales.
    pub scales: Scales,
    /// A bit pattern for each value, each < 2^bits of the format.
    pub codes: Vec<u8>,
}

impl Kind for Minifloat {
    const ID: ValuesId = ValuesId(8);

    fn facts(&self) -> Facts<'_> {
        Facts {
            content: Content::Numbers {
                no_sum: "each sender's codes are relative to its own scale, and few bits cannot hold a sum",
            },
            structure: Structure::Grouped(self.groups),
            weight: self.codes.len() as u64,
            memory: (self.codes.len() + 2 * self.scales.bytes.len()) as u64,
        }
    }

    fn label(&self) -> String {
        match self.format {
            MinifloatFormat::Int8 => "mxint8".to_owned(),
            format => format.name().to_owned(),
        }
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        let Self { format, groups, scales, codes } = self;
        if codes.len() as u64 != space.count || codes.iter().any(|&c| c > format.max_code()) {
            return Err(Error::inconsistent("minifloat codes"));
        }
        out.push(*format as u8);
        groups.write(out, space)?;
        scales.write(out, groups.count(space))?;
        write_symbols(out, coder, Role::Codes, codes);
        Ok(())
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let head = Self::read_head(cursor, space)?;
        let codes = read_symbols(cursor, decoder, space.count, head.format.max_code())?;
        Ok(Self { codes, ..head })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        Self::read_head(cursor, space)?;
        validate_ints(cursor, space.count)?;
        Ok(Validated::numbers(space.count))
    }

    fn numbers(&self, tensor_counts: &[u64], _: &Budget, out: &mut [f32]) -> Result<()> {
        let Self { format, groups, scales, codes } = self;
        let elements: [f64; 256] = std::array::from_fn(|code| match u8::try_from(code) {
            Ok(code) if code <= format.max_code() => f64::from(format.decode(code)),
            _ => 0.0,
        });
        groups.for_each(out.len(), tensor_counts, |g, range| {
            let scale = f64::from(scales.get(g));
            for (value, &code) in out[range.clone()].iter_mut().zip(&codes[range]) {
                *value = to_number(elements[usize::from(code)] * scale);
            }
        });
        Ok(())
    }
}

impl Minifloat {
    /// Reads the fields before the codes; `codes` stays empty.
    fn read_head(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let offset = cursor.offset();
        let id = cursor.u8()?;
        let format = MinifloatFormat::from_id(id);
        let format = format.ok_or(Error::unsupported("minifloat format", id.into(), offset))?;
        let groups = Groups::read(cursor, space)?;
        let scales = Scales::read(cursor, groups.count(space))?;
        Ok(Self { format, groups, scales, codes: Vec::new() })
    }
}
