//! From device tensors to blocks.

use gcodec::Codec;
use gcodec::block::{CodedBlock, PendingBlock};
use gcodec::compress::codecs::TopK;
use gcodec::compress::{Feedback, Options, Selection};
use gcodec::internal::device::{self as host, Outline, Sent};

use crate::dense::{Dense, Outcome};
use crate::device::{Device, Quiet};
use crate::error::{Error, Result};
use crate::memory::Event;
use crate::residuals::{Residuals, Source};
use crate::rice::Coding;
use crate::select::{Plan, Selected, Selector};
use crate::tensor::{DeviceTensor, Stream};

/// A tensor to compress.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Its number in the manifest.
    pub tensor: u64,
    /// Its name in the manifest, which is the key of its residual.
    pub name: &'a str,
    /// Its elements.
    pub data: DeviceTensor<'a>,
}

/// Whether a [`Compressor`] supports this codec. The others run on the host.
pub fn takes(codec: &Codec) -> bool {
    let outline = Outline { tensor: 0, dtype: gcodec::Dtype::F32, len: 1 };
    host::dense::takes(codec) || host::searches(&[outline], &[*codec]).is_ok()
}

/// Compresses device tensors. Keeps its work memory from update to update.
///
/// [`Compressor::compress_with_feedback`] also keeps the residuals of error feedback on the device: two
/// 32-bit floats for each element, so that an update that fails leaves them unchanged. The state of SIDCo's
/// adaptive stages is kept on the host.
#[derive(Debug)]
pub struct Compressor {
    device: Device,
    selector: Selector,
    dense: Dense,
    residuals: Residuals,
    /// The end of the last work in a stream that the host did not wait for.
    last: Event,
}

impl Compressor {
    /// Returns a compressor without residuals.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(device: &Device) -> Result<Self> {
        let _current = device.enter()?;
        Ok(Self {
            device: device.clone(),
            selector: Selector::new(device)?,
            dense: Dense::new(device)?,
            residuals: Residuals::new(device),
            last: Event::new(device)?,
        })
    }

    /// Sets the length of the pieces in which a tensor is processed, in elements: rounded up to a multiple of
    /// 8192, at most the default of 2^31. The result does not depend on it.
    #[must_use]
    pub fn with_piece_len(mut self, elements: u64) -> Self {
        self.selector.set_piece_len(elements);
        self
    }

    /// Assumes that the first `elements`, rounded down to a multiple of 8192, of an update's single tensor
    /// are zero, and does not read them. For tests: positions beyond 2^32 are reached without the time to
    /// read 2^32 elements.
    #[doc(hidden)]
    #[must_use]
    pub fn with_zeros_before(mut self, elements: u64) -> Self {
        self.selector.set_zeros_before(elements);
        self
    }

    /// Sets the number added to an element's index where a random word is drawn for it. For tests with
    /// indices beyond 2^32.
    #[doc(hidden)]
    #[must_use]
    pub fn with_first_element(mut self, number: u64) -> Self {
        self.dense.first = number;
        self
    }

    /// Returns the blocks that [`gcodec::compress::compress()`] makes of these tensors.
    ///
    /// `inputs`: in ascending order of their numbers. `codecs`: one for each input, of `topk`, `stc`,
    /// `threshold`, `sbc`, `sidco`, `natural`, `qsgd`, `dither`, `terngrad`, `int8` and `sign`. All work is
    /// put into `stream`; the tensors are no longer in use when this returns.
    ///
    /// # Errors
    /// [`Error::Codec`] as [`gcodec::compress::compress()`], and for other codecs; [`Error::Tensor`],
    /// [`Error::OutOfMemory`], [`Error::Call`].
    pub fn compress(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<Vec<CodedBlock>> {
        self.run(inputs, codecs, options, stream, false)
    }

    /// Compresses with error feedback: the sum of each tensor and its residual from earlier calls. The rest
    /// that this call does not send is the new residual.
    ///
    /// # Errors
    /// As [`Self::compress`]; [`Error::Codec`] for a residual of another shape, and for
    /// two tensors of one name. Residuals are unchanged after an error.
    pub fn compress_with_feedback(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<Vec<CodedBlock>> {
        self.run(inputs, codecs, options, stream, true)
    }

    /// Returns the same blocks for [`Encoder::update`](gcodec::stream::Encoder::update), with the
    /// parts that the device writes already in wire form.
    ///
    /// These parts are the positions of codecs whose `positions` are `rice` or `rice-one`, except with powers
    /// of two as values, which are drawn by position on the host. Only the coded bytes of these positions
    /// cross the bus. All other parts are those of [`Self::compress`].
    ///
    /// The frames are byte for byte those of the blocks of [`Self::compress`].
    ///
    /// # Errors
    /// As [`Self::compress`].
    pub fn compress_wire(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<Vec<PendingBlock<'static>>> {
        self.run(inputs, codecs, options, stream, false)
    }

    /// Combines [`Self::compress_wire`] with the error feedback of [`Self::compress_with_feedback`].
    ///
    /// # Errors
    /// As [`Self::compress_with_feedback`].
    pub fn compress_wire_with_feedback(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<Vec<PendingBlock<'static>>> {
        self.run(inputs, codecs, options, stream, true)
    }

    fn run<T: BlockForm>(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
        feedback: bool,
    ) -> Result<Vec<T>> {
        let outlines = outlines(inputs);
        let dense_tasks = host::dense::tasks(&outlines, codecs, options)?;
        let sparse = Sparse::new(&outlines, codecs);
        let tasks = host::searches(&sparse.outlines, &sparse.codecs)?;
        inputs.iter().try_for_each(|i| i.data.check_device(&self.device))?;
        let device = self.device.clone();
        let _current = device.enter()?;
        // After this, staging and spare memory can be written again.
        self.last.wait()?;
        if feedback {
            self.residuals.prepare(inputs)?;
        }
        let sources = self.sources(inputs, feedback);
        let selected_sources: Vec<Source<'_>> = sparse.inputs.iter().map(|&i| sources[i]).collect();
        let stages = |name: &str| if feedback { self.residuals.stages(name) } else { None };
        let mut plan = Plan::new(&selected_sources, &tasks, options, self.selector.piece_len(), stages)?;
        if T::WIRE {
            let joined = host::joined(&sparse.outlines, &sparse.codecs)?;
            let pieces = plan.pieces_of_inputs();
            plan.coding = Coding::new(&sparse.outlines, &sparse.codecs, &joined, &pieces);
        }
        let quiet = Quiet { device: &device, stream };
        let begun = self.dense.begin(&device, dense_tasks, &sources, options, stream)?;
        let mut selected = self.selector.select(&mut plan, stream)?;
        let mut blocks = Vec::new();
        let mut dense_error = None;
        if let Some(begun) = begun {
            match self.dense.finish(&device, &begun, stream)? {
                Outcome::Blocks(dense) => blocks.extend(dense.into_iter().map(T::from)),
                Outcome::NotFinite { task } => {
                    dense_error = Some(self.dense.first_non_finite(&device, &begun, task, &sources, stream)?);
                }
            }
        }
        if let Some(error) = self.first_error(codecs, &sparse, &plan, &selected, dense_error, stream)? {
            return Err(error);
        }
        if !sparse.inputs.is_empty() {
            let (sparse_blocks, sent) = T::make(&sparse.outlines, &sparse.codecs, &mut selected)?;
            blocks.extend(sparse_blocks);
            // The sort is stable, and the blocks of one tensor are all dense or all sparse: they stay in
            // order.
            blocks.sort_by_key(T::first_tensor);
            if feedback {
                self.selector.subtract(&plan, &selected, &sent, &mut self.last, stream)?;
            }
        }
        if feedback {
            self.residuals.commit(inputs);
            for (input, state) in plan.adaptations(&selected) {
                self.residuals.set_stages(inputs[sparse.inputs[input]].name, state);
            }
        }
        quiet.done();
        Ok(blocks)
    }

    /// Returns the error that the library would find first: `dense_error`, with its input, or that of a
    /// selected element that is not finite.
    fn first_error(
        &mut self,
        codecs: &[Codec],
        sparse: &Sparse,
        plan: &Plan,
        selected: &Selected,
        dense_error: Option<(usize, Error)>,
        stream: Stream,
    ) -> Result<Option<Error>> {
        let rank = |input: usize| error_rank(codecs, input);
        let first = selected.not_finite().min_by_key(|&i| rank(sparse.inputs[i]));
        match (first, dense_error) {
            (Some(i), Some((input, error))) if rank(input) < rank(sparse.inputs[i]) => Ok(Some(error)),
            (Some(i), _) => self.selector.non_finite(plan, i, sparse.outlines[i].tensor, stream).map(Some),
            (None, error) => Ok(error.map(|(_, error)| error)),
        }
    }

    /// Restores the residuals from before the last call of [`Self::compress_with_feedback`], if that
    /// succeeded. Use it if another part of the update failed, for instance on the host. A second call does
    /// nothing.
    pub fn undo(&mut self) {
        self.residuals.undo();
    }

    /// Quantises without error feedback and without the copy to the host, and waits. For measurements.
    ///
    /// # Errors
    /// As [`Self::compress`], except for elements that are not finite.
    #[doc(hidden)]
    pub fn quantise_only(
        &mut self,
        inputs: &[Input<'_>],
        codecs: &[Codec],
        options: &Options,
        stream: Stream,
    ) -> Result<()> {
        let tasks = host::dense::tasks(&outlines(inputs), codecs, options)?;
        inputs.iter().try_for_each(|i| i.data.check_device(&self.device))?;
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        let quiet = Quiet { device: &device, stream };
        self.dense.begin(&device, tasks, &self.sources(inputs, false), options, stream)?;
        device.synchronize(stream)?;
        quiet.done();
        Ok(())
    }

    fn sources<'a>(&self, inputs: &[Input<'a>], feedback: bool) -> Vec<Source<'a>> {
        let without = |input: &Input<'a>| Source { input: *input, residual: 0, after: 0 };
        let source = |input| if feedback { self.residuals.source(input) } else { without(input) };
        inputs.iter().map(source).collect()
    }

    /// Returns a copy of the residuals, for a checkpoint or to continue on the host: [`Feedback::load`] takes
    /// its [`Feedback::save`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Call`].
    pub fn residuals(&mut self) -> Result<Feedback> {
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        self.residuals.download()
    }

    /// Replaces the residuals by copies of these.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Call`];
    /// [`Error::Codec`] if `feedback` has other state than residuals. Residuals are
    /// unchanged after an error.
    pub fn set_residuals(&mut self, feedback: &Feedback) -> Result<()> {
        let device = self.device.clone();
        let _current = device.enter()?;
        self.last.wait()?;
        self.residuals.upload(feedback)
    }
}

/// The form of an update's blocks.
trait BlockForm: From<CodedBlock> {
    /// Whether the device writes positions in wire form.
    const WIRE: bool;

    /// Returns the blocks of the selected elements, and the values that they send.
    fn make(
        outlines: &[Outline],
        codecs: &[Codec],
        selected: &mut Selected,
    ) -> gcodec::Result<(Vec<Self>, Vec<Sent>)>;

    fn first_tensor(&self) -> u64;
}

impl BlockForm for CodedBlock {
    const WIRE: bool = false;

    fn make(
        outlines: &[Outline],
        codecs: &[Codec],
        selected: &mut Selected,
    ) -> gcodec::Result<(Vec<Self>, Vec<Sent>)> {
        host::blocks(outlines, codecs, &selected.found)
    }

    fn first_tensor(&self) -> u64 {
        self.block.scope.first()
    }
}

impl BlockForm for PendingBlock<'static> {
    const WIRE: bool = true;

    fn make(
        outlines: &[Outline],
        codecs: &[Codec],
        selected: &mut Selected,
    ) -> gcodec::Result<(Vec<Self>, Vec<Sent>)> {
        host::wire_blocks(outlines, codecs, &selected.found, std::mem::take(&mut selected.supports))
    }

    fn first_tensor(&self) -> u64 {
        self.scope().first()
    }
}

/// The inputs whose codecs send some elements only.
struct Sparse {
    /// Their places among all inputs.
    inputs: Vec<usize>,
    outlines: Vec<Outline>,
    codecs: Vec<Codec>,
}

impl Sparse {
    fn new(outlines: &[Outline], codecs: &[Codec]) -> Self {
        let inputs: Vec<usize> = (0..outlines.len()).filter(|&i| !host::dense::takes(&codecs[i])).collect();
        let (outlines, codecs) = inputs.iter().map(|&i| (outlines[i], codecs[i])).unzip();
        Self { inputs, outlines, codecs }
    }
}

fn outlines(inputs: &[Input<'_>]) -> Vec<Outline> {
    let outline = |i: &Input<'_>| Outline { tensor: i.tensor, dtype: i.data.dtype(), len: i.data.elements() };
    inputs.iter().map(outline).collect()
}

/// Orders inputs by when the library, which takes choices among all tensors first, finds the error of one.
fn error_rank(codecs: &[Codec], input: usize) -> (Option<usize>, usize) {
    match codecs[input] {
        Codec::TopK(TopK { selection: Selection::Global, .. }) => {
            (codecs.iter().position(|c| *c == codecs[input]), input)
        }
        _ => (Some(codecs.len()), input),
    }
}
