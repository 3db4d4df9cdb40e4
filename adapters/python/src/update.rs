//! Updates from Python: the arguments, checked and borrowed, and their compression on the host and on
//! devices.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gcodec::block::{CodedBlock, PendingBlock};
use gcodec::compress::{Input, NonFinite, Options, compress, pending};
use gcodec::error::InputErrorKind;
use gcodec::frame::{DeltaRuns, Manifest, Reduction, Shard, TensorInfo, UpdateHeader};
use gcodec::{Codec, TensorView};
use pyo3::prelude::*;

use crate::cuda::{self, Lent};
use crate::digests::Digests;
use crate::encode::parse;
use crate::errors::{self, Failure};
use crate::feedback::{Dgc, Feedback, Residuals};
use crate::flat::Layout;
use crate::named::{Given, Named, borrow, views};
use crate::reserved::Reserved;

/// The sender state of an update.
pub(crate) enum Memory<'a> {
    None,
    /// Device memory to work in, without residuals.
    Work(&'a mut Residuals),
    Feedback(&'a mut Residuals),
    Dgc(&'a mut gcodec::compress::senders::Dgc),
}

/// The tensors of an update: each for itself, or those of one flat buffer.
#[derive(FromPyObject)]
pub(crate) enum Tensors<'py> {
    #[pyo3(transparent)]
    Each(Given<'py>),
    Flat(PyRef<'py, Layout>, Bound<'py, PyAny>),
}

/// An update as Python gives it: tensors (those on devices as [`Lent`]), codecs (one for each tensor or one
/// for all), header, settings, bases of deltas, sender state, and whether a [`Feedback`] holds residuals or
/// only lends its device memory.
pub(crate) type Arguments<'py> = (
    Tensors<'py>,
    Vec<String>,
    Header,
    EncodeSettings,
    Given<'py>,
    Option<PyRef<'py, Feedback>>,
    Option<PyRef<'py, Dgc>>,
    bool,
);

/// [`Arguments`], checked and borrowed.
pub(crate) struct Prepared<'py> {
    pub(crate) contents: Contents,
    pub(crate) feedback: Option<PyRef<'py, Feedback>>,
    pub(crate) dgc: Option<PyRef<'py, Dgc>>,
    /// Whether the feedback holds residuals.
    pub(crate) remember: bool,
}

/// The part of an update that does not need the interpreter.
pub(crate) struct Contents {
    /// Tensors on the host.
    tensors: Vec<Named>,
    /// Number of each tensor on the host.
    numbers: Vec<u64>,
    /// Tensors on devices, with number and name.
    lent: Vec<(u64, String, Py<Lent>)>,
    base: Vec<Named>,
    /// Bases of the tensors on a device, if those are deltas, which are not among other tensors.
    lent_bases: HashMap<String, Py<Lent>>,
    codecs: Vec<Codec>,
    header: UpdateHeader,
    options: Options,
    /// Names of tensors that are in the manifest but not in the update.
    held: HashSet<String>,
    provisional: bool,
    /// Dimensions of the larger tensors that tensors are parts of, and first indices, by name.
    shards: HashMap<String, (Vec<u64>, Vec<u64>)>,
    /// Digests of the bases, which become those of the results.
    digests: Option<Py<Digests>>,
}

impl<'py> Prepared<'py> {
    pub(crate) fn new(py: Python<'py>, arguments: Arguments<'py>) -> PyResult<Self> {
        let (given, codecs, header, settings, base, feedback, dgc, remember) = arguments;
        let (mut numbers, mut lent) = (Vec::new(), Vec::new());
        let tensors = match given {
            Tensors::Flat(layout, flat) => {
                let tensors = layout.borrow(&flat)?;
                numbers.extend(0..tensors.len() as u64);
                tensors
            }
            Tensors::Each(given) => {
                let mut on_host = Vec::new();
                for (number, (name, object, dtype)) in (0u64..).zip(given) {
                    match object.cast::<Lent>() {
                        Ok(found) => lent.push((number, name, found.clone().unbind())),
                        Err(_) => {
                            on_host.push((name, object, dtype));
                            numbers.push(number);
                        }
                    }
                }
                borrow(on_host)?
            }
        };
        let (mut bases, mut lent_bases) = (Vec::new(), HashMap::new());
        for (name, object, dtype) in base {
            match object.cast::<Lent>() {
                Ok(found) => _ = lent_bases.insert(name, found.clone().unbind()),
                Err(_) => bases.push((name, object, dtype)),
            }
        }
        let non_finite = if settings.zero_non_finite { NonFinite::Zero } else { NonFinite::Reject };
        let contents = Contents {
            codecs: codecs.iter().map(|spec| parse(py, spec)).collect::<PyResult<Vec<_>>>()?,
            header: header.get(py)?,
            options: Options::default().with_block_len(settings.block_len).with_non_finite(non_finite),
            tensors,
            numbers,
            lent,
            base: borrow(bases)?,
            lent_bases,
            held: settings.held.into_iter().collect(),
            provisional: settings.provisional,
            shards: settings.shards,
            digests: settings.digests,
        };
        Ok(Self { contents, feedback, dgc, remember })
    }

    /// Reserves memory for the frames. They are at most a little larger than the tensors, and about as large
    /// if lossless.
    pub(crate) fn reserve(&self, py: Python<'_>) -> Reserved {
        let Contents { tensors, numbers, lent, codecs, .. } = &self.contents;
        let codec = |i: usize| if codecs.len() == 1 { codecs.first() } else { codecs.get(i) };
        let (mut most, mut likely) = (1usize << 12, 0usize);
        let on_host = tensors.iter().zip(numbers);
        let on_host = on_host.map(|(named, &i)| (i as usize, named.name.len(), named.tensor.bytes()));
        let on_devices = lent.iter().map(|(i, name, lent)| {
            (*i as usize, name.len(), usize::try_from(lent.get().bytes()).unwrap_or(usize::MAX))
        });
        for (i, name, bytes) in on_host.chain(on_devices) {
            most = most.saturating_add(bytes).saturating_add(bytes / 64).saturating_add(256 + name);
            if matches!(codec(i), Some(Codec::Raw | Codec::Lossless(_))) && self.dgc.is_none() {
                likely = likely.saturating_add(bytes);
            }
        }
        Reserved::new(py, most, likely)
    }
}

impl Contents {
    /// Returns the update with views of its tensors. `known`: gets the manifest, for errors.
    pub(crate) fn update(&mut self, known: &mut Option<Arc<Manifest>>) -> Result<Update<'_>, Failure> {
        let (views, bases) = (views(&mut self.tensors)?, views(&mut self.base)?);
        let bases: HashMap<&str, TensorView<'_>> = bases.into_iter().collect();
        let on_host = self.numbers.iter().zip(&views);
        let mut infos: Vec<(u64, TensorInfo)> = on_host
            .map(|(&number, (name, view))| (number, TensorInfo::new(*name, view.dtype(), view.shape())))
            .collect();
        infos.extend(self.lent.iter().map(|(number, name, lent)| {
            let (dtype, shape) = lent.get().of();
            (*number, TensorInfo::new(name.as_str(), dtype, shape))
        }));
        infos.sort_by_key(|(number, _)| *number);
        let placed = infos.into_iter().map(|(_, mut info)| {
            info.shard = self.shards.get(&info.name).map(|(global_shape, offsets)| Shard {
                global_shape: global_shape.clone(),
                offsets: offsets.clone(),
            });
            info
        });
        let manifest = Manifest::new(placed.collect())?;
        let manifest = Arc::clone(known.insert(Arc::new(manifest)));
        let all = manifest.tensors().len();
        let codecs = match self.codecs.as_slice() {
            &[one] => vec![one; all],
            codecs => codecs.to_vec(),
        };
        if codecs.len() != all {
            let what = "numbers of codecs and tensors";
            return Err(gcodec::Error::from(InputErrorKind::Mismatch { what }).into());
        }
        let sent = self.numbers.iter().zip(views).filter(|(_, (name, _))| !self.held.contains(*name));
        let inputs: Vec<Input<'_>> = sent
            .map(|(&tensor, (name, view))| Input { tensor, name, view, base: bases.get(name).copied() })
            .collect();
        Ok(Update {
            on_host: inputs.iter().map(|input| codecs[input.tensor as usize]).collect(),
            inputs,
            lent: self.lent.iter().filter(|(_, name, _)| !self.held.contains(name)).collect(),
            lent_bases: &self.lent_bases,
            codecs,
            header: self.header.clone(),
            manifest,
            options: &self.options,
            provisional: self.provisional,
            digests: self.digests.as_ref().map(|kept| kept.get().copied()).unwrap_or_default(),
            kept: self.digests.as_ref(),
        })
    }
}

/// The attributes of a `gcodec.UpdateHeader`.
#[derive(FromPyObject)]
pub(crate) struct Header {
    step: u64,
    round: u64,
    sender: u64,
    world: u64,
    contributors: u64,
    inner_steps: u64,
    reduction: String,
    label: String,
}

impl Header {
    fn get(self, py: Python<'_>) -> PyResult<UpdateHeader> {
        let reduction = match self.reduction.as_str() {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            _ => {
                return Err(errors::input(
                    py,
                    &format!("reduction is {:?}: use none, sum or mean", self.reduction),
                ));
            }
        };
        Ok(UpdateHeader::default()
            .with_step(self.step)
            .with_round(self.round)
            .with_sender(self.sender)
            .with_world(self.world)
            .with_contributors(self.contributors)
            .with_inner_steps(self.inner_steps)
            .with_reduction(reduction)
            .with_label(self.label))
    }
}

/// The attributes of `EncodeSettings` in `gcodec/_tensors/update.py`.
#[derive(FromPyObject)]
pub(crate) struct EncodeSettings {
    block_len: u64,
    zero_non_finite: bool,
    held: Vec<String>,
    provisional: bool,
    /// Names of tensors that are parts of larger ones: dimensions of those, and first indices.
    shards: HashMap<String, (Vec<u64>, Vec<u64>)>,
    digests: Option<Py<Digests>>,
}

/// An update with views of its tensors.
pub(crate) struct Update<'a> {
    /// Tensors on the host, and the codec of each.
    inputs: Vec<Input<'a>>,
    on_host: Vec<Codec>,
    lent: Vec<&'a (u64, String, Py<Lent>)>,
    lent_bases: &'a HashMap<String, Py<Lent>>,
    /// Codecs of all tensors in the manifest.
    codecs: Vec<Codec>,
    header: UpdateHeader,
    manifest: Arc<Manifest>,
    options: &'a Options,
    /// Whether the sender state can be restored after the update.
    provisional: bool,
    digests: gcodec::compress::Digests,
    kept: Option<&'a Py<Digests>>,
}

/// An update for an encoder. Its blocks are compressed, or are compressed when they are taken.
pub(crate) struct Compressed<'a> {
    pub(crate) header: UpdateHeader,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) blocks: Box<dyn Iterator<Item = gcodec::Result<PendingBlock<'a>>> + Send + 'a>,
    /// Time that compressing took, without that of blocks that are compressed when they are taken.
    pub(crate) time: Duration,
}

impl Update<'_> {
    /// Compresses the update.
    pub(crate) fn compressed(&mut self, memory: Memory<'_>) -> Result<Compressed<'_>, Failure> {
        let start = Instant::now();
        let manifest = Arc::clone(&self.manifest);
        if !self.lent_bases.is_empty() {
            let (blocks, runs) = self.changes()?;
            let header = self.header.clone().with_runs(runs);
            let blocks = Box::new(blocks.into_iter().map(|block| Ok(block.into())));
            return Ok(Compressed { header, manifest, blocks, time: start.elapsed() });
        }
        let codecs = &self.codecs;
        let is_delta = |codec: &Codec| matches!(codec, Codec::Delta(_));
        let is_apart = |input: &Input<'_>| {
            let number = input.tensor as usize;
            is_delta(&codecs[number]) && manifest.tensors()[number].shard.is_some()
        };
        let (apart, inputs): (Vec<_>, Vec<_>) = self.inputs.iter().copied().partition(is_apart);
        if let (Memory::None, true, true) = (&memory, self.lent.is_empty(), apart.is_empty()) {
            let mut blocks = pending(&self.inputs, &self.on_host, self.options)?;
            let runs = blocks.deltas(&manifest, &mut self.digests)?;
            let header = self.header.clone().with_runs(runs);
            return Ok(Compressed { header, manifest, blocks: Box::new(blocks), time: start.elapsed() });
        }
        let (on_devices, mut on_host) = match memory {
            Memory::Dgc(dgc) => {
                if self.provisional {
                    dgc.begin();
                }
                (Vec::new(), dgc.step(&inputs, self.options)?)
            }
            memory => self.compress(&inputs, memory)?,
        };
        let mut runs = self.digests.deltas(&manifest, &inputs, codecs, &on_host)?;
        // Shards of deltas have blocks and digests of their own, so that a receiver needs no other's base.
        for input in &apart {
            let one = std::slice::from_ref(input);
            let own = compress(one, &[codecs[input.tensor as usize]], self.options, None)?;
            runs = runs.with(self.digests.deltas(&manifest, one, codecs, &own)?);
            on_host.extend(own);
        }
        let time = start.elapsed();
        let header = self.header.clone().with_runs(runs);
        let mut blocks = on_devices;
        blocks.extend(on_host.into_iter().map(PendingBlock::from));
        // Blocks of each side are in order, and all blocks of a tensor are on one side.
        blocks.sort_by_key(|block| block.scope().first());
        Ok(Compressed { header, manifest, blocks: Box::new(blocks.into_iter().map(Ok)), time })
    }

    /// Keeps the digests for the next update, once this one is encoded.
    pub(crate) fn keep(self) {
        if let Some(kept) = self.kept {
            kept.get().keep(self.digests);
        }
    }

    /// Returns the blocks and digests of an update of deltas on a device.
    fn changes(&mut self) -> Result<(Vec<CodedBlock>, DeltaRuns), Failure> {
        let mut changed = Vec::with_capacity(self.lent.len());
        for (number, name, lent) in &self.lent {
            let base = self.lent_bases.get(name).ok_or(gcodec::Error::from(InputErrorKind::MissingBase))?;
            let codec = self.codecs[*number as usize];
            changed.push(cuda::Changed { number: *number, new: lent.get(), base: base.get(), codec });
        }
        cuda::changes(&self.manifest, &changed, &mut self.digests)
    }

    /// Returns the blocks of the tensors on devices and of `inputs`, on the host. All tensors of a codec
    /// are on one side, because they share blocks.
    fn compress(
        &self,
        inputs: &[Input<'_>],
        mut memory: Memory<'_>,
    ) -> Result<(Vec<PendingBlock<'static>>, Vec<CodedBlock>), Failure> {
        let on_host: Vec<Codec> = inputs.iter().map(|input| self.codecs[input.tensor as usize]).collect();
        let given: Vec<cuda::Given<'_>> = self
            .lent
            .iter()
            .map(|(number, name, lent)| cuda::Given {
                number: *number,
                name,
                lent: lent.get(),
                codec: self.codecs[*number as usize],
            })
            .collect();
        if let Memory::Feedback(kept) = &mut memory {
            let on_host = inputs.iter().map(|i| (i.name, None));
            let on_devices = given.iter().map(|g| (g.name, Some(g.lent.ordinal())));
            kept.settle(&on_host.chain(on_devices).collect::<Vec<_>>())?;
            if self.provisional {
                kept.begin();
            }
        }
        let on_devices = match &mut memory {
            _ if given.is_empty() => Vec::new(),
            Memory::Feedback(kept) => cuda::compress_in(&given, self.options, &mut kept.compressors, true)?,
            Memory::Work(kept) => cuda::compress_in(&given, self.options, &mut kept.compressors, false)?,
            _ => cuda::compress(&given, self.options)?,
        };
        let host = match &mut memory {
            Memory::Feedback(kept) => {
                let made = compress(inputs, &on_host, self.options, Some(&mut kept.host));
                let devices = cuda::ordinals(&given);
                match &made {
                    Ok(_) => kept.note(given.iter().map(|g| (g.name, g.lent.ordinal())), devices),
                    Err(_) => cuda::undo(&mut kept.compressors, &devices),
                }
                made?
            }
            _ => compress(inputs, &on_host, self.options, None)?,
        };
        Ok((on_devices, host))
    }
}
