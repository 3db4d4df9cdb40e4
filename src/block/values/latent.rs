//! Codes of a learned decoder (spec, values/latent.md; LGC, arXiv 2103.08870).

use crate::bits::{Cursor, put_varint};
use crate::block::values::nested::{self, Nested};
use crate::block::values::{Content, Facts, Kind, Structure, Validated, ValueSpace, Values, ValuesId};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, InputErrorKind, Result};
use crate::limits::Budget;
use crate::tensor::elements;

/// Codes from which a learned decoder makes the values.
#[derive(Debug, Clone, PartialEq)]
pub struct Latent {
    /// The model that decodes the codes.
    pub model: ModelId,
    /// Shape of the codes: at most 32 dimensions.
    pub shape: Vec<u64>,
    /// The codes: numbers of a kind that has a code for each value.
    pub codes: Box<Values>,
}

/// The hash that names a model: BLAKE3 of its weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub [u8; 32]);
crate::bits::debug_as_hex!(ModelId);

const MAX_RANK: u64 = 32;

impl Kind for Latent {
    const ID: ValuesId = ValuesId(11);

    fn facts(&self) -> Facts<'_> {
        let codes = self.codes.facts();
        Facts {
            content: Content::Numbers { no_sum: "latent codes have to be decoded by their model first" },
            structure: Structure::Flat,
            weight: codes.weight,
            memory: codes.memory,
        }
    }

    fn write(&self, out: &mut Vec<u8>, coder: &mut Coder<'_>, _: &ValueSpace<'_>) -> Result<()> {
        let Self { model, shape, codes } = self;
        let count = elements(shape).filter(|_| shape.len() as u64 <= MAX_RANK);
        let count = count.ok_or(Error::inconsistent("shape of latent codes"))?;
        out.extend_from_slice(&model.0);
        put_varint(out, shape.len() as u64);
        shape.iter().for_each(|&d| put_varint(out, d));
        let row_lens = &shape[shape.len().saturating_sub(1)..];
        nested::write_rest(out, coder, codes, nested::CODED, count, row_lens)
    }

    fn read(cursor: &mut Cursor<'_>, decoder: &mut Decoder<'_>, _: &ValueSpace<'_>) -> Result<Self> {
        let LatentHead { model, shape, count, offset } = LatentHead::read(cursor)?;
        decoder.budget.reserve_elements(count, offset)?;
        let codes = Nested::take_rest(cursor, "latent codes", nested::CODED, count)?.read(decoder)?;
        Ok(Self { model, shape, codes })
    }

    fn validate(cursor: &mut Cursor<'_>, _: &ValueSpace<'_>) -> Result<Validated> {
        let count = LatentHead::read(cursor)?.count;
        let codes = Nested::take_rest(cursor, "latent codes", nested::CODED, count)?;
        Ok(Validated::numbers(codes.validate()?))
    }

    fn numbers(&self, _: &[u64], _: &Budget, _: &mut [f32]) -> Result<()> {
        Err(self.missing_model())
    }
}

impl Latent {
    /// The error for a request of numbers without the model (LAT-2).
    pub(crate) fn missing_model(&self) -> Error {
        Error::input(InputErrorKind::MissingModel { id: std::array::from_fn(|i| self.model.0[i]) })
    }
}

/// The fields before the codes (LAT-3).
struct LatentHead {
    model: ModelId,
    shape: Vec<u64>,
    /// Number of codes.
    count: u64,
    /// Offset of the shape.
    offset: u64,
}

impl LatentHead {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let model = ModelId(cursor.array()?);
        let offset = cursor.offset();
        let rank = cursor.varint_in("rank", 0, MAX_RANK)?;
        let shape = (0..rank).map(|_| cursor.varint()).collect::<Result<Vec<_>>>()?;
        let count = elements(&shape).ok_or(Error::out_of_range("shape of latent codes", u64::MAX, offset))?;
        Ok(Self { model, shape, count, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::values::tests::space;
    use crate::block::{Bits, Pow2, Underflow};
    use crate::codes::Entropy;
    use crate::random::word;
    use crate::tensor::Dtype;

    #[test]
    fn rows_of_codes_have_references() {
        let code = |i| 16 + (word(1, 0, i / 48) % 200 + word(1, 1, i) % 4) as u8;
        let codes: Vec<u8> = (0..80 * 48).map(code).collect();
        let len = |shape: &[u64]| {
            let negative = Bits::from_bytes(80 * 48, vec![0; 80 * 6]).unwrap();
            let pow2 = Pow2 { min_exponent: -30, underflow: Underflow::Zero, codes: codes.clone(), negative };
            let codes = Box::new(Values::Pow2(pow2));
            let latent = Latent { model: ModelId([0; 32]), shape: shape.to_vec(), codes };
            let (mut out, mut coder) = (Vec::new(), Coder::new(Entropy::Auto, &[], None));
            latent.write(&mut out, &mut coder, &space(Dtype::F32, 1)).unwrap();
            out.len()
        };
        // They save more than two bits for each code.
        assert!(len(&[80, 48]) + 80 * 48 / 4 < len(&[80 * 48]));
    }
}
