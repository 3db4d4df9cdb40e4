//! Error feedback of `encode`: the residuals of a sender in files. Those of some tensors are in memory at a
//! time.

use crate::fail::{InFile, InOutput, Result};
use crate::output::Output;
use crate::tensors::{self, Dump, NamedTensor, Outline, Spooled};
use gcodec::block::CodedBlock;
use gcodec::compress::{Feedback, Input, Options, compress};
use gcodec::{Codec, Dtype};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The residuals and codec states of a sender, under the names that [`Feedback::save`] gives them.
pub(crate) struct Residuals {
    path: PathBuf,
    tensors: BTreeMap<String, NamedTensor>,
}

impl Residuals {
    /// Opens the residuals in the file at `path`; there are none if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let tensors = if path.exists() { Dump::open(path)?.tensors } else { Vec::new() };
        let mut residuals = Self { path: path.to_owned(), tensors: BTreeMap::new() };
        for tensor in tensors {
            if is_residual(&tensor) {
                residuals.tensors.insert(tensor.name().to_owned(), tensor);
                continue;
            }
            // A state, which is small, or residuals of another type, which another program wrote.
            let converted = tensor.into_parts().and_then(|parts| Ok(Feedback::load([parts])?.save()));
            let named = converted.in_file(path)?.into_iter();
            residuals.tensors.extend(named.map(|(name, t)| (name.clone(), NamedTensor::new(name, t))));
        }
        Ok(residuals)
    }

    /// Compresses the tensors of an update with their residuals, one of the ranges at a time while `write`
    /// takes the blocks. If it succeeds, the new residuals replace the old ones.
    pub(crate) fn update<T>(
        &mut self,
        ranges: Vec<Range<usize>>,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        write: impl FnOnce(&mut dyn Iterator<Item = gcodec::Result<CodedBlock>>) -> Result<T>,
    ) -> Result<T> {
        let (mut new, mut failure) = (Spooled::new(), None);
        let mut blocks = ranges.into_iter().flat_map(|range| {
            let (inputs, codecs) = (&inputs[range.clone()], &codecs[range]);
            let made = self.compress(inputs, codecs, options).and_then(|(blocks, feedback)| {
                // An error of the library cannot have that of a file.
                let kept = keep(&feedback, &mut new).map_err(|e| failure = Some(e));
                kept.map(|()| blocks).map_err(|()| io::Error::other("residuals that cannot be kept").into())
            });
            let (blocks, error) = made.map_or_else(|e| (Vec::new(), Some(e)), |blocks| (blocks, None));
            blocks.into_iter().map(Ok).chain(error.map(Err))
        });
        let written = write(&mut blocks);
        drop(blocks);
        let written = failure.map_or(written, Err)?;
        let new = new.finish()?.into_iter().map(|tensor| (tensor.name().to_owned(), tensor));
        self.tensors.extend(new);
        Ok(written)
    }

    /// Compresses some tensors with their residuals. Returns the new ones, too.
    fn compress(
        &self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
    ) -> gcodec::Result<(Vec<CodedBlock>, Feedback)> {
        let mut own: Vec<&NamedTensor> = Vec::new();
        for (input, _) in inputs.iter().zip(codecs).filter(|(_, codec)| codec.is_lossy()) {
            own.extend(self.tensors.get(input.name));
            let prefix = format!("{}#", input.name);
            let states =
                self.tensors.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
            // Those of a tensor whose name goes on with `#` are its own.
            let own_states =
                states.filter(|(name, state)| !is_residual(state) && !name[prefix.len()..].contains('#'));
            own.extend(own_states.map(|(_, state)| state));
        }
        // One copy at a time.
        let mut failure = None;
        let copies = own
            .into_iter()
            .map_while(|tensor| tensor.copied().into_parts().map_err(|e| failure = Some(e)).ok());
        let mut feedback = Feedback::load(copies)?;
        failure.map_or(Ok(()), Err)?;
        let blocks = compress(inputs, codecs, options, Some(&mut feedback))?;
        Ok((blocks, feedback))
    }

    /// Writes the file to take the place of the old one, which [`Saved::commit`] replaces.
    pub(crate) fn save(self) -> Result<Saved> {
        let mut tensors: Vec<&NamedTensor> = self.tensors.values().collect();
        // In the order of `Feedback::save`: groups, each in the order of the tensors that they are about.
        tensors.sort_by_key(|tensor| match Outline::from(*tensor) {
            Outline { dtype: Dtype::F32, name, .. } => (0, name),
            Outline { dtype, name, .. } => {
                (if dtype == Dtype::I64 { 1 } else { 2 }, name.rsplit_once('#').map_or(name, |(of, _)| of))
            }
        });
        let outlines: Vec<_> = tensors.iter().map(|tensor| Outline::from(*tensor)).collect();
        let output =
            tensors::prepare(&self.path, &outlines, &BTreeMap::new(), Some(&self.path), &mut |sink| {
                tensors.iter().try_for_each(|tensor| sink(tensor.name(), tensor.view().data()))
            })?;
        Ok(Saved { path: self.path, output })
    }
}

/// Whether a tensor is a residual as [`Feedback::save`] makes them, and no state.
fn is_residual(tensor: &NamedTensor) -> bool {
    Outline::from(tensor).dtype == Dtype::F32
}

/// A file of residuals that is not in its place.
pub(crate) struct Saved {
    path: PathBuf,
    output: Output,
}

impl Saved {
    /// Puts the file in its place.
    pub(crate) fn commit(self) -> Result<()> {
        self.output.finish().in_output(&self.path)
    }
}

/// Writes residuals and states to a temporary file.
fn keep(feedback: &Feedback, to: &mut Spooled) -> Result<()> {
    feedback.save().iter().try_for_each(|(name, tensor)| {
        to.add(&Outline { name, dtype: tensor.dtype(), shape: tensor.shape() }, tensor.data())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use gcodec::TensorBuf;
    use gcodec::internal::batches;

    #[test]
    fn files_have_what_feedback_in_memory_has() {
        let dir = TempDir::new();
        let path = dir.path("residuals.safetensors");
        // With suffixes, the names of states sort otherwise; and a state may seem to be another tensor's.
        let names = ["a#b", "a", "a b", "c"];
        let specs =
            ["sidco:density=0.1,stages=authors", "powersgd:rank=2", "sidco:density=0.1,stages=authors"];
        let codecs: Vec<Codec> =
            specs.iter().chain(&["lossless"]).map(|spec| spec.parse().unwrap()).collect();
        let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
        let tensor = TensorBuf::from_f32(vec![8, 8], &values).unwrap();
        let input = |i: usize| Input { tensor: i as u64, name: names[i], view: tensor.view(), base: None };
        let inputs: Vec<Input<'_>> = (0..4).map(input).collect();
        let (options, mut feedback) = (Options::default(), Feedback::new());
        for _ in 0..3 {
            let expected = compress(&inputs, &codecs, &options, Some(&mut feedback)).unwrap();
            let mut residuals = Residuals::open(&path).unwrap();
            let ranges = batches(&inputs, &codecs, &options).unwrap();
            let blocks = residuals.update(ranges, &inputs, &codecs, &options, |blocks| {
                Ok(blocks.collect::<gcodec::Result<Vec<_>>>()?)
            });
            assert_eq!(blocks.unwrap(), expected);
            residuals.save().unwrap().commit().unwrap();
            let saved = Dump::open(&path).unwrap().tensors.into_iter().map(|t| t.into_parts().unwrap());
            assert_eq!(saved.collect::<Vec<_>>(), feedback.save());
        }
    }
}
