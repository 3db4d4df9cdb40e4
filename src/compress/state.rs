//! Codec state kept for a tensor from one update to the next.

use std::collections::BTreeMap;

use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::{Dtype, TensorBuf};

/// Codec state kept for one tensor from one update to the next. Only the codecs read or change it.
///
/// Each codec with state has its own part, because a sender may change the codec of a tensor between updates.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct CodecState {
    pub(super) sidco: Option<Adaptation>,
    pub(super) powersgd: Option<Factor>,
}

/// States of a sender's tensors, by tensor name.
pub(super) type CodecStates = BTreeMap<String, CodecState>;

/// Suffix of the state of SIDCo's stage rule in a checkpoint.
pub const SIDCO: &str = "#sidco";
/// Suffix of a factor of PowerSGD in a checkpoint.
pub(super) const POWERSGD: &str = "#powersgd";

/// Returns all parts of all states as tensors for a checkpoint, by codec and then by tensor name.
pub(super) fn save(states: &CodecStates) -> impl Iterator<Item = (String, TensorBuf)> {
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
/// [`Error::Input`] if the tensor has the name and type of a state but invalid content.
pub(super) fn load(states: &mut CodecStates, name: &str, tensor: &TensorBuf) -> Result<bool> {
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

/// Steps between adaptations (the authors' Q).
const WINDOW: u32 = 5;
/// The authors' tolerances of k'/k, 1 - eps_L and 1 + eps_H.
const BAND: [f64; 2] = [0.8, 1.2];

/// State of the authors' rule of SIDCo for one tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Adaptation {
    pub(super) stages: u32,
    pub(super) steps: u32,
    pub(super) ratios: f64,
}

impl Default for Adaptation {
    fn default() -> Self {
        Self { stages: 1, steps: 0, ratios: 0.0 }
    }
}

impl Adaptation {
    /// Returns the state after a step that kept `ratio` times its target. The target is the part `density` of
    /// the tensor.
    pub(crate) fn after(mut self, ratio: f64, density: f64) -> Self {
        self.steps += 1;
        self.ratios += ratio;
        if self.steps < WINDOW {
            return self;
        }
        let mean = self.ratios / f64::from(self.steps);
        let most = ((-density.log2()).ceil() as u32).max(1);
        let stages = match mean {
            mean if mean > BAND[1] => self.stages - 1,
            mean if mean < BAND[0] => self.stages + 1,
            _ => self.stages,
        };
        Self { stages: stages.clamp(1, most), steps: 0, ratios: 0.0 }
    }

    /// Returns the state as a tensor of three 64-bit integers for a checkpoint.
    fn to_tensor(self) -> Option<TensorBuf> {
        let data = self.to_words().iter().flat_map(|w| w.to_le_bytes()).collect();
        TensorBuf::new(Dtype::I64, vec![3], data).ok()
    }

    /// Returns the state that [`Self::to_tensor`] wrote.
    ///
    /// # Errors
    /// [`Error::Input`] if the integers are not a valid state.
    fn from_tensor(tensor: &TensorBuf) -> Result<Self> {
        let words: Vec<i64> = tensor.data().as_chunks().0.iter().map(|w| i64::from_le_bytes(*w)).collect();
        let state = words.try_into().ok().and_then(Self::from_words);
        state.ok_or(Error::input(InputErrorKind::BadState { what: "stages of SIDCo" }))
    }

    /// Returns the state as three integers for a checkpoint.
    pub(crate) fn to_words(self) -> [i64; 3] {
        [i64::from(self.stages), i64::from(self.steps), self.ratios.to_bits() as i64]
    }

    /// Returns the state that [`Self::to_words`] wrote, or `None` if the words are not a valid state.
    pub(crate) fn from_words([stages, steps, ratios]: [i64; 3]) -> Option<Self> {
        let (stages, steps) = (u32::try_from(stages).ok()?, u32::try_from(steps).ok()?);
        let ratios = f64::from_bits(ratios as u64);
        let fits = (1..=64).contains(&stages) && steps < WINDOW && ratios.is_finite() && ratios >= 0.0;
        fits.then_some(Self { stages, steps, ratios })
    }
}

/// Last Q of PowerSGD of a tensor, cols x rank, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Factor {
    pub(super) rank: u64,
    pub(super) values: Vec<f32>,
}

impl Factor {
    /// Returns the bit patterns of the factor as a tensor, cols x rank, for a checkpoint.
    fn to_tensor(&self) -> Option<TensorBuf> {
        let cols = (self.values.len() as u64).checked_div(self.rank)?;
        TensorBuf::new(
            Dtype::U32,
            vec![cols, self.rank],
            self.values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        )
        .ok()
    }

    /// Returns the factor of this rank that [`Self::to_tensor`] wrote.
    fn from_tensor(tensor: &TensorBuf, rank: u64) -> Self {
        Self { rank, values: tensor.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect() }
    }
}
