//! Codec state kept for a tensor from one update to the next.

use std::collections::BTreeMap;

use super::powersgd::{Factor, PowerSgd};
use super::sidco::{Adaptation, Sidco};
use crate::compress::Codec;
use crate::error::Result;
use crate::tensor::{Dtype, TensorBuf};

/// Codec state kept for one tensor from one update to the next. Only the codecs read or change it.
///
/// Each codec with state has its own part, because a sender may change the codec of a tensor between updates.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::compress) struct CodecState {
    pub(super) sidco: Option<Adaptation>,
    pub(super) powersgd: Option<Factor>,
}

/// States of a sender's tensors, by tensor name.
pub(in crate::compress) type CodecStates = BTreeMap<String, CodecState>;

/// Suffix of the state of SIDCo's stage rule in a checkpoint.
pub const SIDCO: &str = "#sidco";
/// Suffix of a factor of PowerSGD in a checkpoint.
const POWERSGD: &str = "#powersgd";

/// Splits the name of a codec's state in a checkpoint into the name of its tensor and the codec. Returns
/// `None` for any other name.
pub fn split_state_name(name: &str) -> Option<(&str, Codec)> {
    let sidco = name.strip_suffix(SIDCO).map(|tensor| (tensor, Codec::Sidco(Sidco::default())));
    sidco.or_else(|| Some((name.strip_suffix(POWERSGD)?, Codec::PowerSgd(PowerSgd::default()))))
}

/// Returns all parts of all states as tensors for a checkpoint, by codec and then by tensor name.
pub(in crate::compress) fn save(states: &CodecStates) -> impl Iterator<Item = (String, TensorBuf)> {
    let sidco =
        states.iter().filter_map(|(name, state)| Some((format!("{name}{SIDCO}"), state.sidco?.to_tensor()?)));
    let powersgd = states.iter().filter_map(|(name, state)| {
        Some((format!("{name}{POWERSGD}"), state.powersgd.as_ref()?.to_tensor()?))
    });
    sidco.chain(powersgd)
}

/// Adds a tensor of a checkpoint to `states`. Returns `false` if name and element type do not belong to a
/// state.
///
/// # Errors
/// [`Error::Input`](crate::Error::Input) if the tensor has the name and type of a state but invalid content.
pub(in crate::compress) fn load(states: &mut CodecStates, name: &str, tensor: &TensorBuf) -> Result<bool> {
    if let (Dtype::I64, Some(name)) = (tensor.dtype(), name.strip_suffix(SIDCO)) {
        let sidco = Adaptation::from_tensor(tensor)?;
        states.entry(name.to_owned()).or_default().sidco = Some(sidco);
        return Ok(true);
    }
    if let (Dtype::U32, Some(name), &[_, rank]) =
        (tensor.dtype(), name.strip_suffix(POWERSGD), tensor.shape())
    {
        let powersgd = Factor::from_tensor(tensor, rank);
        states.entry(name.to_owned()).or_default().powersgd = Some(powersgd);
        return Ok(true);
    }
    Ok(false)
}
