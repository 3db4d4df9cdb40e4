//! Sum digests of the tensors of an update.

use gcodec::compress::Digests;
use gcodec::digest::SumDigest;
use gcodec::error::InputErrorKind;
use gcodec::frame::{Manifest, TensorInfo};
use gcodec::internal::device::delta::{Digested, known_sum};

use super::DeltaInput;
use crate::device::Device;
use crate::error::{Error, Result, TensorError, inconsistent};
use crate::sums::{SumDigester, SumInput};
use crate::tensor::{DeviceTensor, Stream};

/// Computes the sums of bases and new tensors that are not known.
#[derive(Debug)]
pub(super) struct Summer {
    digester: SumDigester,
}

impl Summer {
    pub(super) fn new(device: &Device) -> Result<Self> {
        Ok(Self { digester: SumDigester::new(device)? })
    }

    /// Returns the sums of the base and of the new tensor of each input.
    pub(super) fn digested(
        &mut self,
        manifest: &Manifest,
        inputs: &[DeltaInput<'_>],
        digests: &Digests,
        stream: Stream,
    ) -> Result<Vec<Digested<SumDigest>>> {
        let places = inputs.iter().map(|input| Place::of(manifest, input));
        let places: Vec<Place<'_>> = places.collect::<Result<_>>()?;
        let mut missing = Vec::new();
        for (input, place) in inputs.iter().zip(&places) {
            let known = known_sum(digests, input.tensor);
            for (tensor, _) in [input.base, input.new].iter().zip(known).filter(|(_, known)| known.is_none())
            {
                missing.push(SumInput { data: tensor.view(&place.strides), offsets: &place.offsets });
            }
        }
        let mut computed = self.digester.digests(&missing, stream)?.into_iter();
        let mut digested = Vec::with_capacity(inputs.len());
        for (input, place) in inputs.iter().zip(&places) {
            let [base, result] = known_sum(digests, input.tensor);
            let mut take = |known: Option<SumDigest>| {
                known.or_else(|| Some(place.info.weighted(computed.next()?))).ok_or_else(inconsistent)
            };
            let bytes = usize::try_from(place.info.bytes()).map_err(|_| TensorError::Shape)?;
            digested.push(Digested { tensor: input.tensor, bytes, base: take(base)?, result: take(result)? });
        }
        Ok(digested)
    }
}

/// A tensor in its manifest.
struct Place<'a> {
    info: &'a TensorInfo,
    strides: Vec<i64>,
    /// First index of each dimension in the whole tensor.
    offsets: Vec<u64>,
}

impl<'a> Place<'a> {
    fn of(manifest: &'a Manifest, input: &DeltaInput<'_>) -> Result<Self> {
        let info = usize::try_from(input.tensor).ok().and_then(|number| manifest.tensors().get(number));
        let is_own = |info: &&TensorInfo| info.dtype == input.new.dtype() && info.shape == input.new.shape();
        let mismatch = || Error::from(InputErrorKind::Mismatch { what: "input and manifest" });
        let info = info.filter(is_own).ok_or_else(mismatch)?;
        let zeros = || vec![0; info.shape.len()];
        let offsets = info.shard.as_ref().map_or_else(zeros, |shard| shard.offsets.clone());
        Ok(Self { info, strides: DeviceTensor::strides(&info.shape), offsets })
    }
}
