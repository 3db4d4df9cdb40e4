//! Compression of the tensors of one update.

use std::collections::HashSet;

use super::codec::{Codec, runs};
use super::codecs::TopK;
use super::compressor::TensorRun;
use super::feedback::Feedback;
use super::options::{Input, Options};
use super::select::{Chosen, top_k};
use super::settings::Selection;
use super::source::Source;
use crate::block::CodedBlock;
use crate::error::{Error, InputErrorKind, Result};

/// Compresses the tensors of one update. Returns blocks in ascending order of the elements that they span.
///
/// `inputs`: in ascending order of their numbers; `codecs`: one for each input. With `feedback`, lossy codecs
/// compress the sum of the tensor and its residual from earlier calls, and the new residual is stored there.
///
/// # Memory
/// The returned blocks are held at once:
///
/// | codec | bytes |
/// |---|---|
/// | sparse codecs | 12 for each element kept |
/// | `natural` | 9 bits for each element |
/// | `int8` | 1 for each element |
/// | `qsgd`, `dither`, `terngrad` | 1 for each element; 4 with more than 8 bits |
/// | `raw`, `lossless` | a copy of the elements |
/// | `demo` | 12 for each coefficient kept |
/// | `powersgd` | 4 for each element of the largest tensor |
///
/// Tensors of sparse codecs share a block, up to 16 Mi elements or one tensor: a reader of one of them holds
/// all. `demo` and `powersgd` take 4 bytes more for each element of a block, to reconstruct it. Beside this
/// and the residuals, sparse codecs take at most 1 MiB and, with the coding of
/// [`Encoder::update`](crate::stream::Encoder::update), 64 bytes for each element kept, as measured in
/// `tests/properties/memory.rs` at a density of 0.001. Dense codecs take a few tiles for each thread. A
/// sender that cannot hold this uses [`pending()`](super::pending()), which compresses some tensors at a
/// time.
///
/// # Errors
/// [`Error::Input`] with the number of the tensor: an integer tensor or a value that is not finite for a
/// lossy codec, a missing or different base for [`Codec::Delta`], a residual of another shape.
/// [`Error::Input`] without it: an option out of its range. `feedback` is unchanged then.
pub fn compress(
    inputs: &[Input<'_>],
    codecs: &[Codec],
    options: &Options,
    feedback: Option<&mut Feedback>,
) -> Result<Vec<CodedBlock>> {
    check(inputs, codecs, options, feedback.is_some())?;
    let mut sources = inputs
        .iter()
        .zip(codecs)
        .map(|(input, codec)| {
            Source::new(input, codec.is_lossy(), options, feedback.as_deref())
                .map_err(|e| e.in_tensor(input.tensor))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut chosen = global(&mut sources, codecs)?;
    let mut coded = Vec::new();
    for run in runs(codecs, |i| inputs[i].outline()) {
        let tensors = &mut sources[run.clone()];
        let codec = codecs[run.start];
        let (inputs, chosen) = (&inputs[run.clone()], &mut chosen[run]);
        let blocks = codec.blocks(TensorRun { inputs, tensors, chosen, options })?;
        let options = codec.block_options();
        coded.extend(blocks.into_iter().map(|block| CodedBlock { block, options }));
    }
    let after: Vec<_> = sources.into_iter().map(|s| (s.residual_after, s.state)).collect();
    if let Some(feedback) = feedback {
        for (input, (residual, state)) in inputs.iter().zip(after) {
            if let Some(residual) = residual {
                feedback.set(input.name, input.view.shape(), residual);
                feedback.set_state(input.name, state);
            }
        }
    }
    Ok(coded)
}

/// Checks that the inputs belong together, and every setting.
pub(super) fn check(inputs: &[Input<'_>], codecs: &[Codec], options: &Options, by_name: bool) -> Result<()> {
    if inputs.len() != codecs.len() {
        return Err(Error::input(InputErrorKind::Mismatch { what: "numbers of inputs and codecs" }));
    }
    if options.block_len == 0 {
        return Err(Error::bad_option("block_len"));
    }
    if !inputs.is_sorted_by(|a, b| a.tensor < b.tensor) {
        return Err(Error::not_ascending("tensors of the inputs"));
    }
    let mut names = HashSet::new();
    if by_name && !inputs.iter().all(|input| names.insert(input.name)) {
        return Err(Error::input(InputErrorKind::DuplicateName));
    }
    codecs.iter().try_for_each(Codec::check)
}

/// Returns the choice of each codec with [`Selection::Global`], one entry for each source. The entries of
/// sources with other codecs are empty.
fn global(sources: &mut [Source<'_>], codecs: &[Codec]) -> Result<Vec<Chosen>> {
    let mut all = vec![Chosen::default(); sources.len()];
    for (i, codec) in codecs.iter().enumerate() {
        let Codec::TopK(TopK { selection: Selection::Global, amount, .. }) = codec else { continue };
        if codecs[..i].contains(codec) {
            continue;
        }
        let (places, mut group): (Vec<_>, Vec<_>) = all
            .iter_mut()
            .zip(sources.iter_mut())
            .zip(codecs)
            .filter(|(_, c)| *c == codec)
            .map(|(pair, _)| pair)
            .unzip();
        let n: u64 = group.iter().map(|s| s.len as u64).sum();
        for (place, chosen) in places.into_iter().zip(top_k(&mut group, amount.of(n))?) {
            *place = chosen;
        }
    }
    Ok(all)
}
