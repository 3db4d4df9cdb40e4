//! Learned decoders (spec, section 4.4).

use crate::bits::{Cursor, put_text, put_varint};
use crate::block::ModelId;
use crate::error::{Error, FormatErrorKind, Result};
use crate::frame::{deflate, inflate};
use crate::limits::Limits;

/// A learned decoder that latent values refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Hash of its weights.
    pub id: ModelId,
    /// Format of the weights.
    pub format: String,
    /// Name, for people.
    pub name: String,
    /// Bytes of the weights.
    pub weights_len: u64,
    /// Weights, or their location.
    pub weights: Weights,
}

/// Weights of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Weights {
    /// Location of the weights. A program that fetches them must compare their hash.
    At(String),
    /// The weights themselves.
    Inline(Vec<u8>),
}

impl Model {
    /// Returns a model that contains its weights.
    pub fn inline(format: impl Into<String>, name: impl Into<String>, weights: Vec<u8>) -> Self {
        Self {
            id: ModelId(*blake3::hash(&weights).as_bytes()),
            format: format.into(),
            name: name.into(),
            weights_len: weights.len() as u64,
            weights: Weights::Inline(weights),
        }
    }

    /// Returns the body, compressed if that is smaller and `compress` is set.
    pub(crate) fn body(&self, compress: bool) -> Vec<u8> {
        let mut out = self.id.0.to_vec();
        put_text(&mut out, &self.format);
        put_text(&mut out, &self.name);
        put_varint(&mut out, self.weights_len);
        match &self.weights {
            Weights::At(location) => {
                out.push(0);
                put_text(&mut out, location);
            }
            Weights::Inline(weights) => match deflate(weights).filter(|_| compress) {
                Some(mut compressed) => {
                    out.push(2);
                    out.append(&mut compressed);
                }
                None => {
                    out.push(1);
                    out.extend_from_slice(weights);
                }
            },
        }
        out
    }

    pub(crate) fn read(body: &[u8], offset: u64, limits: &Limits) -> Result<Self> {
        let mut cursor = Cursor::new(body, offset, "model");
        let id = ModelId(cursor.array()?);
        let (format, name) = (cursor.text()?.to_owned(), cursor.text()?.to_owned());
        let len_offset = cursor.offset();
        let weights_len = cursor.varint()?;
        let storage = cursor.u8_in("storage", 0, 2)?;
        let start = cursor.offset();
        let weights = match storage {
            0 => Weights::At(cursor.text()?.to_owned()),
            1 => Weights::Inline(cursor.take(weights_len)?.to_vec()),
            _ => {
                let len = (weights_len, len_offset);
                Weights::Inline(inflate(cursor.take_rest(), start, len, "model weights", limits)?)
            }
        };
        cursor.finish()?;
        if let Weights::Inline(weights) = &weights
            && *blake3::hash(weights).as_bytes() != id.0
        {
            return Err(Error::format(FormatErrorKind::NotCanonical { field: "model id" }, offset));
        }
        Ok(Self { id, format, name, weights_len, weights })
    }
}
