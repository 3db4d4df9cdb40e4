//! Latent values in ordinary updates, without a protocol between workers.

use std::sync::Arc;

use gcodec::block::{Block, CodedBlock, Floats, Scope, Sparse, Stored, Support, Values, ValuesId};
use gcodec::frame::{Manifest, UpdatePart};
use gcodec::internal::element::decode_f32s;
use gcodec::stream::{EncodeOptions, Encoder};

use crate::codes::{CodeFormat, codes, encode_latent, floats};
use crate::error::{Error, Result};
use crate::model::{Model, Models};
use crate::protocol::largest;

/// Settings of [`encode_blocks`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Encoding {
    /// Model of the codes.
    pub model: Arc<Model>,
    /// Storage of codes. Default: [`CodeFormat::Int8`].
    pub codes: CodeFormat,
    /// Share of the values that are sent exactly, 0 to 1: the largest. Default: 0.1.
    pub innovation: f64,
    /// Number of the sender, which selects the decoder. Default: 0.
    pub sender: u64,
}

impl Encoding {
    /// Returns the defaults with this model.
    pub fn new(model: Arc<Model>) -> Self {
        Self { model, codes: CodeFormat::Int8, innovation: 0.1, sender: 0 }
    }

    /// Sets [`Encoding::codes`].
    #[must_use]
    pub fn with_codes(mut self, codes: CodeFormat) -> Self {
        self.codes = codes;
        self
    }

    /// Sets [`Encoding::innovation`].
    #[must_use]
    pub fn with_innovation(mut self, innovation: f64) -> Self {
        self.innovation = innovation;
        self
    }

    /// Sets [`Encoding::sender`].
    #[must_use]
    pub fn with_sender(mut self, sender: u64) -> Self {
        self.sender = sender;
        self
    }
}

/// Replaces the sparse float values of blocks by latent codes. Other blocks stay.
///
/// Blocks of consecutive tensors of one type become one block, whose values are one signal. The largest
/// values follow in a block that adds what the decoded ones lack, in bf16. A reader of such an update needs
/// only the model.
///
/// # Errors
/// [`Error::Input`] for an innovation out of range, or a sender for which the model has no decoder; the
/// errors of [`encode_latent`].
pub fn encode_blocks(
    blocks: Vec<CodedBlock>,
    manifest: &Manifest,
    how: &Encoding,
) -> Result<Vec<CodedBlock>> {
    if !(0.0..=1.0).contains(&how.innovation) {
        return Err(Error::Input("part of the values that is the innovation"));
    }
    how.model.decoder_of(how.sender)?;
    let mut out = Vec::new();
    let mut run: Option<Run> = None;
    for block in blocks {
        let Some(next) = Run::of(&block.block, manifest)? else {
            if let Some(run) = run.take() {
                run.encode(how, &mut out)?;
            }
            out.push(block);
            continue;
        };
        run = Some(match run {
            Some(run) if run.goes_on_with(&next) => run.join(next),
            Some(run) => {
                run.encode(how, &mut out)?;
                next
            }
            None => next,
        });
    }
    if let Some(run) = run {
        run.encode(how, &mut out)?;
    }
    Ok(out)
}

/// Sparse floats of consecutive tensors of one type.
struct Run {
    first: u64,
    count: u64,
    dtype: gcodec::Dtype,
    len: u64,
    positions: Vec<u64>,
    values: Vec<f32>,
}

impl Run {
    /// Returns nothing for a block of another kind.
    fn of(block: &Block, manifest: &Manifest) -> Result<Option<Self>> {
        let (Support::Sparse(Sparse { positions }), Values::Floats(Floats { stored, bytes })) =
            (&block.support, &block.values)
        else {
            return Ok(None);
        };
        if matches!(block.scope, Scope::Range { .. }) || block.add {
            return Ok(None);
        }
        let space = manifest.space(block.scope, 0)?;
        let mut values = vec![0.0; positions.len()];
        decode_f32s(stored.dtype(space.dtype), bytes, 0, &mut values)?;
        let (first, count) = (block.scope.first(), block.scope.tensors());
        let (dtype, len, positions) = (space.dtype, space.len(), positions.clone());
        Ok(Some(Self { first, count, dtype, len, positions, values }))
    }

    fn goes_on_with(&self, next: &Self) -> bool {
        self.first + self.count == next.first && self.dtype == next.dtype
    }

    fn join(mut self, next: Self) -> Self {
        self.positions.extend(next.positions.iter().map(|p| self.len + p));
        self.values.extend(next.values);
        Self { count: self.count + next.count, len: self.len + next.len, ..self }
    }

    fn encode(self, how: &Encoding, out: &mut Vec<CodedBlock>) -> Result<()> {
        let scope = match self.count {
            1 => Scope::Tensor(self.first),
            count => Scope::Tensors { first: self.first, count },
        };
        let sparse = |positions| Support::Sparse(Sparse { positions });
        let latent = encode_latent(&how.model, &self.values, how.codes)?;
        let mut own = Models::new();
        own.add(Arc::clone(&how.model));
        let decoded = decode(&own, &latent, self.values.len(), how.sender)?;
        let exact = largest(&self.values, how.innovation);
        let block = |add, positions, values| {
            let block = Block { scope, add, support: sparse(positions), values };
            CodedBlock { block, options: Default::default() }
        };
        out.push(block(false, self.positions.clone(), latent));
        if !exact.is_empty() {
            let missing: Vec<f32> = exact.iter().map(|&i| self.values[i] - decoded[i]).collect();
            let positions = exact.iter().map(|&i| self.positions[i]).collect();
            out.push(block(true, positions, floats(Stored::Bf16, &missing)?));
        }
        Ok(())
    }
}

/// Returns the values that codes alone stand for: a decoder with an innovation has an empty one.
fn decode(models: &Models, values: &Values, count: usize, sender: u64) -> Result<Vec<f32>> {
    let (model, codes) = codes(models, values, count)?;
    model.decode(sender, &codes, count, &[])
}

/// Whether a block of the parts of an update has latent codes.
#[must_use]
pub fn has_latent(parts: &[UpdatePart<'_>]) -> bool {
    parts.iter().flat_map(|part| &part.blocks).any(|raw| raw.values_id == ValuesId::LATENT)
}

/// Returns `block`, which is block `number` of `part`, with the values that its latent codes stand for, in
/// f32. A block of other values stays as it is.
///
/// # Errors
/// [`Error::MissingModel`]; [`Error::Input`] if the part has no such block; the errors of [`codes`] and
/// [`Model::decode`].
pub fn replace_codes(
    part: &UpdatePart<'_>,
    number: usize,
    mut block: Block,
    models: &Models,
) -> Result<Block> {
    if matches!(block.values, Values::Latent(_)) {
        let raw = part.blocks.get(number).ok_or(Error::Input("a block that the part does not have"))?;
        let count = block.count(&raw.space, part.sets())?;
        let count = usize::try_from(count).map_err(|_| Error::Input("number of values"))?;
        let numbers = decode(models, &block.values, count, part.header.sender)?;
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        block.values = Values::Floats(Floats { stored: Stored::F32, bytes });
    }
    Ok(block)
}

/// Returns an update as a stream of its own, in which decoded values replace the latent codes, so that any
/// reader can read it. Returns nothing if the update has no codes. `parts`: all parts of the update, in their
/// order.
///
/// # Errors
/// [`Error::MissingModel`]; the errors of [`codes`] and [`Model::decode`], and of decoding a block.
pub fn without_latent(parts: &[UpdatePart<'_>], models: &Models) -> Result<Option<Vec<u8>>> {
    let (Some(first), true) = (parts.first(), has_latent(parts)) else { return Ok(None) };
    let mut blocks = Vec::new();
    for part in parts {
        let budget = part.budget();
        for i in 0..part.blocks.len() {
            let mut block = replace_codes(part, i, part.decode(i, &budget)?, models)?;
            let space = &part.blocks[i].space;
            if matches!(block.support, Support::Set(_)) {
                // The new stream does not have the set.
                let positions = block.positions(space, part.sets(), &budget)?;
                block.support = Support::Sparse(Sparse { positions });
            }
            blocks.push(block);
        }
    }
    let mut encoder = Encoder::new(EncodeOptions::default());
    let mut out = Vec::new();
    encoder.update(&mut out, &first.header, &first.manifest, &blocks)?;
    encoder.finish(&mut out);
    Ok(Some(out))
}
