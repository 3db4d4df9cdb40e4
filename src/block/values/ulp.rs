//! Differences in units of the last place (spec, values/ulp.md).

use crate::arch::{self, Kernel};
use crate::bits::{Cursor, unzigzag};
use crate::block::values::{Content, Facts, Kind, Structure, Validated, ValueSpace, ValuesId};
use crate::codes::{
    Coder, Decoder, Integers, Role, read_grouped_ints, validate_grouped_ints, write_grouped_ints,
};
use crate::error::{Error, Result};
use crate::limits::in_memory;
use crate::tensor::Dtype;
use crate::tensor::element::{Ranks, bits_at, bits_of, set_bits_at};

/// The difference to a base tensor in units of the last place.
#[derive(Debug, Clone, PartialEq)]
pub struct Ulp {
    /// A difference for each value.
    pub diffs: Vec<i64>,
}

impl Kind for Ulp {
    const ID: ValuesId = ValuesId(10);

    fn facts(&self) -> Facts<'_> {
        let len = self.diffs.len() as u64;
        Facts {
            content: Content::Ulps(&self.diffs),
            structure: Structure::Flat,
            weight: len,
            memory: 8 * len,
        }
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, space: &ValueSpace<'_>) -> Result<()> {
        let codes = Integers::Zigzag(&self.diffs);
        if self.diffs.len() as u64 != space.count || codes.bits() > max_zigzag(space.dtype.bits()) {
            return Err(Error::inconsistent("differences"));
        }
        write_grouped_ints(out, coder, Role::Ulps, codes, space.group_counts);
        Ok(())
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, space: &ValueSpace<'_>) -> Result<Self> {
        let max = max_zigzag(space.dtype.bits());
        let codes = read_grouped_ints(cursor, decoder, space.count, max, space.group_counts)?;
        Ok(Self { diffs: codes.into_iter().map(unzigzag).collect() })
    }

    fn validate(cursor: &mut Cursor<'_>, space: &ValueSpace<'_>) -> Result<Validated> {
        validate_grouped_ints(cursor, space.count, space.group_counts)?;
        Ok(Validated::bits(space.count))
    }
}

/// The largest zigzag code of a signed number of `bits` bits.
fn max_zigzag(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// Moves the elements from `start` on by these differences of ranks, as [`Ranks::step`].
///
/// # Panics
/// Panics if `data` is too short.
pub(in crate::block) fn step_all(dtype: Dtype, data: &mut [u8], start: u64, diffs: &[i64]) {
    match dtype.bits() {
        8 => step_sized::<1>(dtype, data, start, diffs),
        16 => step_sized::<2>(dtype, data, start, diffs),
        32 => step_sized::<4>(dtype, data, start, diffs),
        64 => step_sized::<8>(dtype, data, start, diffs),
        _ => {
            let ranks = Ranks::new(dtype);
            for (at, &diff) in (start..).zip(diffs) {
                let old = bits_at(dtype, data, at).unwrap_or(0);
                set_bits_at(dtype, data, at, ranks.step(old, diff));
            }
        }
    }
}

fn step_sized<const SIZE: usize>(dtype: Dtype, data: &mut [u8], start: u64, diffs: &[i64]) {
    let start = in_memory(start);
    let elements = &mut data.as_chunks_mut::<SIZE>().0[start..start + diffs.len()];
    let kernel = StepAll { ranks: Ranks::new(dtype), elements, diffs };
    // The choice of a form costs more than a few elements.
    if diffs.len() < 16 { kernel.call() } else { arch::run(kernel) }
}

struct StepAll<'a, const SIZE: usize> {
    ranks: Ranks,
    elements: &'a mut [[u8; SIZE]],
    diffs: &'a [i64],
}

impl<const SIZE: usize> Kernel for StepAll<'_, SIZE> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (element, &diff) in self.elements.iter_mut().zip(self.diffs) {
            let new = self.ranks.step(bits_of(element), diff);
            element.copy_from_slice(&new.to_le_bytes()[..SIZE]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Values;
    use crate::block::values::tests::{read, space, write};

    #[test]
    fn differences_whose_codes_just_fit_a_byte_or_not_come_back() {
        for diffs in [[127, 0], [-128, 0], [128, 0], [-129, 0]] {
            let (values, space) = (Values::Ulp(Ulp { diffs: diffs.to_vec() }), space(Dtype::F32, 2));
            let bytes = write(&values, &space).unwrap();
            assert_eq!(read(&bytes, Ulp::ID, &space, u64::MAX).unwrap(), values, "{diffs:?}");
        }
    }
}
