//! Residuals of error feedback, in device memory.

use std::collections::{BTreeMap, HashSet};

use gcodec::compress::Feedback;
use gcodec::error::InputErrorKind;
use gcodec::internal::device::SIDCO_STATE;
use gcodec::{Dtype, TensorBuf};

use crate::compressor::Input;
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::memory::{Memory, Pinned};
use crate::tensor::Stream;

/// A tensor and the addresses of its residual.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) input: Input<'a>,
    /// The residual that is added; 0 for none.
    pub(crate) residual: u64,
    /// Where the next residual is written; 0 for none.
    pub(crate) after: u64,
}

/// Residuals by the name of their tensor.
#[derive(Debug)]
pub(crate) struct Residuals {
    device: Device,
    tensors: BTreeMap<String, Residual>,
    /// The state of SIDCo's adaptive stages, by tensor.
    stages: BTreeMap<String, [i64; 3]>,
    /// The residuals that the last update changed, and whether each was known before.
    changed: Vec<(String, bool)>,
    /// The states before the last update.
    stages_before: BTreeMap<String, [i64; 3]>,
}

#[derive(Debug)]
struct Residual {
    shape: Vec<u64>,
    /// Whether there are values: not before the first update. A residual of zeros is not the same, as it
    /// turns -0 into 0.
    known: bool,
    values: Memory,
    /// Where the next residual is written.
    spare: Memory,
}

impl Residuals {
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            tensors: BTreeMap::new(),
            stages: BTreeMap::new(),
            changed: Vec::new(),
            stages_before: BTreeMap::new(),
        }
    }

    /// Begins an update: allocates the residuals of new inputs.
    ///
    /// Nothing in a stream uses the spare memory of residuals any more.
    pub(crate) fn prepare(&mut self, inputs: &[Input<'_>]) -> Result<()> {
        self.changed.clear();
        self.stages_before.clone_from(&self.stages);
        let mut names = HashSet::new();
        if !inputs.iter().all(|i| names.insert(i.name)) {
            return Err(InputErrorKind::DuplicateName.into());
        }
        for input in inputs {
            let residual = self.tensors.get(input.name);
            if residual.is_some_and(|r| r.known && r.shape != input.data.shape()) {
                return Err(InputErrorKind::Mismatch { what: "shapes of tensor and residual" }.into());
            }
        }
        for input in inputs {
            let fits = |r: &Residual| r.shape == input.data.shape();
            if !self.tensors.get(input.name).is_some_and(fits) {
                let residual = self.allocate(input.data.shape())?;
                self.tensors.insert(input.name.to_owned(), residual);
            }
        }
        Ok(())
    }

    /// Returns an input with the addresses of its residual.
    pub(crate) fn source<'a>(&self, input: &Input<'a>) -> Source<'a> {
        let residual = self.tensors.get(input.name);
        Source {
            input: *input,
            residual: residual.filter(|r| r.known).map_or(0, |r| r.values.address()),
            after: residual.map_or(0, |r| r.spare.address()),
        }
    }

    /// Ends an update: what it wrote becomes the residuals.
    pub(crate) fn commit(&mut self, inputs: &[Input<'_>]) {
        for input in inputs {
            if let Some(residual) = self.tensors.get_mut(input.name) {
                std::mem::swap(&mut residual.values, &mut residual.spare);
                self.changed.push((input.name.to_owned(), std::mem::replace(&mut residual.known, true)));
            }
        }
    }

    /// Restores what [`Self::commit`] and [`Self::set_stages`] changed since the last [`Self::prepare`].
    pub(crate) fn undo(&mut self) {
        for (name, known) in self.changed.drain(..) {
            if let Some(residual) = self.tensors.get_mut(&name) {
                std::mem::swap(&mut residual.values, &mut residual.spare);
                residual.known = known;
            }
        }
        self.stages.clone_from(&self.stages_before);
    }

    pub(crate) fn stages(&self, name: &str) -> Option<[i64; 3]> {
        self.stages.get(name).copied()
    }

    pub(crate) fn set_stages(&mut self, name: &str, state: [i64; 3]) {
        self.stages.insert(name.to_owned(), state);
    }

    fn allocate(&self, shape: &[u64]) -> Result<Residual> {
        let elements = gcodec::internal::elements(shape).ok_or(TensorError::Shape)?;
        let bytes = elements.checked_mul(4).ok_or(TensorError::Shape)?;
        let (values, spare) = (Memory::new(&self.device, bytes)?, Memory::new(&self.device, bytes)?);
        Ok(Residual { shape: shape.to_vec(), known: false, values, spare })
    }

    /// Copies all to the host. The context is current, and nothing in a stream writes residuals any more.
    #[expect(unsafe_code, reason = "reads pinned memory that the device wrote")]
    pub(crate) fn download(&self) -> Result<Feedback> {
        let mut tensors = Vec::new();
        for (name, residual) in self.tensors.iter().filter(|(_, r)| r.known) {
            let bytes = 4 * gcodec::internal::elements(&residual.shape).unwrap_or(0);
            let mut host = Pinned::new(&self.device, bytes)?;
            if bytes > 0 {
                residual.values.copy_to(0, &mut host, bytes, Stream::DEFAULT)?;
                self.device.synchronize(Stream::DEFAULT)?;
            }
            // SAFETY: the copy to it was waited for.
            let host = unsafe { host.bytes(bytes) };
            let floats: Vec<f32> = host.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
            tensors.push((name.clone(), TensorBuf::from_f32(residual.shape.clone(), &floats)?));
        }
        for (name, state) in &self.stages {
            let bytes = state.iter().flat_map(|word| word.to_le_bytes()).collect();
            tensors.push((format!("{name}{SIDCO_STATE}"), TensorBuf::new(Dtype::I64, vec![3], bytes)?));
        }
        Ok(Feedback::load(tensors)?)
    }

    /// Replaces all by copies of these. The context is current, and nothing in a stream uses residuals any
    /// more.
    #[expect(unsafe_code, reason = "writes pinned memory that the device reads")]
    pub(crate) fn upload(&mut self, feedback: &Feedback) -> Result<()> {
        let (mut tensors, mut stages) = (BTreeMap::new(), BTreeMap::new());
        for (name, tensor) in feedback.save() {
            if let (Dtype::I64, Some(of), ([a, b, c], [])) =
                (tensor.dtype(), name.strip_suffix(SIDCO_STATE), tensor.data().as_chunks::<8>())
            {
                stages.insert(of.to_owned(), [a, b, c].map(|word| i64::from_le_bytes(*word)));
                continue;
            }
            if feedback.get(&name).is_none() {
                return Err(InputErrorKind::BadState { what: "its codec does not run on a device" }.into());
            }
            let mut residual = self.allocate(tensor.view().shape())?;
            residual.known = true;
            let bytes: Vec<u8> = tensor.view().to_f32()?.iter().flat_map(|x| x.to_ne_bytes()).collect();
            if !bytes.is_empty() {
                let mut host = Pinned::new(&self.device, bytes.len() as u64)?;
                // SAFETY: it is new, so no copy from it is under way.
                unsafe { host.write(0, &bytes) };
                residual.values.copy_from(0, &host, bytes.len() as u64, Stream::DEFAULT)?;
                self.device.synchronize(Stream::DEFAULT)?;
            }
            tensors.insert(name, residual);
        }
        (self.tensors, self.stages) = (tensors, stages);
        (self.changed, self.stages_before) = (Vec::new(), self.stages.clone());
        Ok(())
    }
}
