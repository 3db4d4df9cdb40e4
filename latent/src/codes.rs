//! Conversion between codes and the values of a block (spec, values/latent.md).

use gcodec::Dtype;
use gcodec::block::{
    Affine, Block, Floats, Groups, IndexSpace, Latent, ScaleFormat, Scales, Scope, Sets, Stored, Support,
    Values, Zero,
};
use gcodec::frame::Budget;
use gcodec::internal::element::{encode_f32s, max_finite};

use crate::error::{Error, Result};
use crate::model::{Model, Models};

/// Format of codes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeFormat {
    /// 32-bit floats, unchanged.
    F32,
    /// Half precision: 16 bits. Magnitudes below 6e-5 lose precision, and those below 6e-8 become zero.
    /// Codes of a model without biases are as small as the gradients.
    F16,
    /// bfloat16: 16 bits.
    Bf16,
    /// 8 bits: a multiple, -127 to 127, of a scale (f32) per channel.
    Int8,
}

/// Returns numbers as float values of a type; numbers beyond its range become its largest.
pub(crate) fn floats(stored: Stored, numbers: &[f32]) -> Result<Values> {
    let dtype = stored.dtype(Dtype::F32);
    let max = max_finite(dtype);
    let clamped: Vec<f32> = numbers.iter().map(|x| x.clamp(-max, max)).collect();
    let mut bytes = vec![0; dtype.bits() as usize / 8 * numbers.len()];
    encode_f32s(dtype, &clamped, 0, &mut bytes)?;
    Ok(Values::Floats(Floats { stored, bytes }))
}

impl CodeFormat {
    /// Returns the codes, of shape `[channels, columns]`, as a reader gets them.
    pub(crate) fn rounded(self, codes: &[f32], shape: [u64; 2]) -> Result<Vec<f32>> {
        numbers(&self.pack(codes, shape)?, shape[0] * shape[1])
    }

    /// Returns the values for codes of shape `[channels, columns]`.
    fn pack(self, codes: &[f32], [_, columns]: [u64; 2]) -> Result<Values> {
        match self {
            Self::F32 => floats(Stored::F32, codes),
            Self::F16 => floats(Stored::F16, codes),
            Self::Bf16 => floats(Stored::Bf16, codes),
            Self::Int8 => {
                let len = if columns < 2 { codes.len() } else { columns as usize };
                let groups = if columns < 2 { Groups::Block } else { Groups::Len(columns) };
                let mut packed = Vec::with_capacity(codes.len());
                let mut scales = Vec::new();
                for group in codes.chunks(len.max(1)) {
                    let scale = group.iter().fold(0.0f32, |m, x| m.max(x.abs())) / 127.0;
                    scales.push(scale);
                    packed.extend(group.iter().map(|x| {
                        let level = if scale > 0.0 { (x / scale).round().clamp(-127.0, 127.0) } else { 0.0 };
                        (level as i16 + 128) as u8
                    }));
                }
                if scales.is_empty() {
                    scales.push(0.0); // a block has one group, even of nothing
                }
                let scales = Scales::from_f32s(ScaleFormat::F32, &scales);
                Ok(Values::Affine(Affine { bits: 8, groups, scales, zero: Zero::Centre, codes: packed }))
            }
        }
    }
}

/// Encodes `values` with a model, as latent values of a block.
///
/// # Errors
/// The errors of [`Model::encode`].
pub fn encode_latent(model: &Model, values: &[f32], format: CodeFormat) -> Result<Values> {
    let shape = model.code_shape(values.len());
    let codes = format.pack(&model.encode(values)?, shape)?;
    Ok(Values::Latent(Latent { model: model.id(), shape: shape.to_vec(), codes: Box::new(codes) }))
}

/// Returns the codes in latent values, for a block of `count` values, and the model that decodes them.
///
/// # Errors
/// [`Error::MissingModel`]; [`Error::Input`] if the values are not latent, or their shape does not match the
/// model and `count`.
pub fn codes<'m>(models: &'m Models, values: &Values, count: usize) -> Result<(&'m Model, Vec<f32>)> {
    let Values::Latent(Latent { model, shape, codes }) = values else {
        return Err(Error::Input("values that are no latent codes"));
    };
    let model = models.get(*model)?;
    let expected = model.code_shape(count);
    if *shape != expected {
        return Err(Error::Input("the shape of the codes does not fit the number of values"));
    }
    let codes = numbers(codes, expected[0] * expected[1])?;
    if !codes.iter().all(|x| x.is_finite()) {
        return Err(Error::Input("a code that is not finite"));
    }
    Ok((model, codes))
}

/// Returns the `len` numbers of packed codes.
fn numbers(codes: &Values, len: u64) -> Result<Vec<f32>> {
    let block = Block { scope: Scope::Tensor(0), add: false, support: Support::All, values: codes.clone() };
    let space = IndexSpace::flat(Dtype::F32, len);
    Ok(block.numbers(&space, &Sets::new(), &Budget::new(&gcodec::Limits::default()))?)
}

/// Decodes the `count` values of a sender from latent values, without an innovation.
///
/// # Errors
/// The errors of [`codes`] and [`Model::decode`].
pub fn decode_latent(models: &Models, values: &Values, count: usize, sender: u64) -> Result<Vec<f32>> {
    let (model, codes) = codes(models, values, count)?;
    model.decode(sender, &codes, count, &[])
}
