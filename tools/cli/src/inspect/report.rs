//! The report on a stream; docs/inspect.schema.json describes its JSON form.

use super::tensor::Tensor;
use super::update::Update;
use crate::annotate;
use crate::damage::{Damage, FaultReport};
use crate::fail::{Failure, Result};
use crate::fit::Prefixes;
use crate::options::{NameGlob, is_wanted};
use crate::progress::Progress;
use crate::stream::Base;
use crate::tensors::Labels;
use gcodec::block::{Block, Profile, Values};
use gcodec::file::File;
use gcodec::file::report::{self, Detail};
use gcodec::frame::{TensorInfo, UpdateHeader, UpdatePart, VERSION_MAJOR};
use gcodec::reduce::stats::StatsOptions;
use gcodec::stream::{Body, Event, Finding, FrameInfo, salvage};
use gcodec::{Limits, TensorBuf};
use gcodec_latent::{Error, Models, replace_codes, without_latent};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::ops::ControlFlow;

/// Frames, updates and tensors that a command looks at, and how deep.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// Only this frame.
    pub(crate) frame: Option<u64>,
    /// Only updates of this step.
    pub(crate) step: Option<u64>,
    /// Only updates of this sender.
    pub(crate) sender: Option<u64>,
    /// Only tensors whose names match.
    pub(crate) tensor: Option<NameGlob>,
    /// Whether to count elements by row and column.
    pub(crate) grid: bool,
    /// Whether to look at no element: what is asked for stands in headers and indices.
    pub(crate) quick: bool,
    /// Whether to keep the tensors of each update. Otherwise only their sums are kept.
    pub(crate) each: bool,
    /// Models of latent codes. A stranger's model may take minutes, so those in the streams are not used.
    pub(crate) models: Models,
    /// Prefixes of names that count for nothing where an update is compared with its original.
    pub(crate) prefixes: Prefixes,
}

impl Wanted {
    /// Whether an update is wanted. An update without a number is not one that a filter asks for.
    pub(crate) fn update(&self, step: Option<u64>, sender: Option<u64>) -> bool {
        self.step.is_none_or(|s| step == Some(s)) && self.sender.is_none_or(|s| sender == Some(s))
    }

    /// Whether only some updates or tensors are wanted.
    pub(crate) fn is_part(&self) -> bool {
        self.step.is_some() || self.sender.is_some() || self.tensor.is_some()
    }
}

impl Detail for Wanted {
    type Error = Error;

    fn shows_frame(&self, info: &FrameInfo) -> bool {
        self.frame.is_none_or(|number| info.number == number)
    }

    fn shows_update(&self, header: &UpdateHeader) -> bool {
        self.update(Some(header.step), Some(header.sender))
    }

    fn shows_tensor(&self, info: &TensorInfo) -> bool {
        is_wanted(self.tensor.as_ref(), &info.name)
    }

    fn stats(&self, part: &UpdatePart<'_>) -> Option<StatsOptions> {
        // Grids take 32 KiB for each tensor.
        let grid = self.grid && part.manifest.tensors().len() <= MAX_GRIDS;
        Some(StatsOptions::default().with_grid(grid))
    }

    fn note(&self, part: &UpdatePart<'_>, number: usize) -> String {
        annotate::codes(&part.blocks[number], part)
    }

    fn block(&self, part: &UpdatePart<'_>, number: usize, block: Block) -> gcodec_latent::Result<Block> {
        if !matches!(block.values, Values::Latent(_)) {
            return Ok(block);
        }
        match replace_codes(part, number, block.clone(), &self.models) {
            // The values count as unread.
            Err(Error::MissingModel(_)) => Ok(block),
            replaced => replaced,
        }
    }

    fn dense(
        &self,
        part: &UpdatePart<'_>,
        limits: &Limits,
        wanted: &dyn Fn(&str) -> bool,
    ) -> gcodec_latent::Result<Vec<(u64, TensorBuf)>> {
        match without_latent(std::slice::from_ref(part), &self.models)? {
            Some(stream) => Ok(File::open(&stream, limits.clone())?.tensors(0, wanted, &Base::new())?),
            None => Ok(().dense(part, limits, wanted)?),
        }
    }
}

/// Report of `inspect`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Path of the file.
    pub(crate) file: String,
    /// Kind of the file.
    pub(crate) kind: &'static str,
    pub(crate) bytes: u64,
    pub(crate) version: Option<Version>,
    pub(crate) segments: u64,
    pub(crate) has_index: bool,
    /// Profile of the format, if every block was read and is valid.
    pub(crate) profile: Option<&'static str>,
    /// What the core profile does not have.
    pub(crate) beyond_core: Option<&'static str>,
    /// Whether everything was read and is valid.
    pub(crate) ok: bool,
    pub(crate) frames: Vec<Frame>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) manifests: Vec<ManifestReport>,
    pub(crate) index_sets: Vec<IndexSetReport>,
    pub(crate) models: Vec<ModelReport>,
    pub(crate) updates: Vec<Update>,
    /// Bytes that cannot be read, and blocks that do not decode.
    pub(crate) faults: Vec<FaultReport>,
    /// Which updates are whole, if there are faults.
    pub(crate) whole: Option<String>,
    /// Sums over the updates of each tensor, unless each update keeps its own.
    #[serde(skip)]
    pub(crate) totals: Totals,
}

/// Tensors of several updates, added up.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) tensors: Vec<Tensor>,
    /// Number in `tensors` by hash. Of those with one hash, all but the first stand under the next free hash.
    rows: HashMap<u64, usize>,
    hashes: RandomState,
}

impl Totals {
    /// Adds the tensors of an update, which all differ. One of another type or shape is another tensor.
    pub(crate) fn add(&mut self, tensors: Vec<Tensor>) {
        if self.tensors.is_empty() {
            self.tensors = tensors;
            return;
        }
        // One update alone needs no table.
        for row in self.rows.len()..self.tensors.len() {
            let (hash, _) = self.find(&self.tensors[row]);
            self.rows.insert(hash, row);
        }
        for tensor in tensors {
            match self.find(&tensor) {
                (_, Some(row)) => self.tensors[row].merge(&tensor),
                (hash, None) => {
                    self.rows.insert(hash, self.tensors.len());
                    self.tensors.push(tensor);
                }
            }
        }
    }

    /// Returns the number of a tensor, and its hash; of a new one, a free hash.
    fn find(&self, tensor: &Tensor) -> (u64, Option<usize>) {
        let mut hash = self.hashes.hash_one(key(tensor));
        while let Some(&row) = self.rows.get(&hash) {
            if key(&self.tensors[row]) == key(tensor) {
                return (hash, Some(row));
            }
            hash = hash.wrapping_add(1);
        }
        (hash, None)
    }
}

/// Returns what makes a tensor the same one in several updates.
fn key(tensor: &Tensor) -> (&str, &str, &[u64]) {
    (&tensor.name, &tensor.dtype, &tensor.shape)
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Version {
    pub(crate) major: u8,
    pub(crate) minor: u8,
}

#[derive(Debug, Serialize)]
pub(crate) struct Frame {
    pub(crate) number: u64,
    pub(crate) kind: String,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ManifestReport {
    pub(crate) frame: u64,
    pub(crate) id: String,
    pub(crate) tensors: u64,
    pub(crate) elements: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct IndexSetReport {
    pub(crate) frame: u64,
    pub(crate) id: String,
    pub(crate) step: u64,
    pub(crate) leader: u64,
    pub(crate) world: u64,
    pub(crate) kept: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelReport {
    pub(crate) frame: u64,
    pub(crate) id: String,
    pub(crate) format: String,
    pub(crate) name: String,
    pub(crate) weights_bytes: u64,
}

impl Report {
    /// Reads a stream to its end, past every fault. The failure is the first fault.
    pub(crate) fn of(
        reader: impl Read,
        len: u64,
        wanted: &Wanted,
        limits: &Limits,
    ) -> (Self, Option<Failure>) {
        let (mut report, mut found) = (Self::default(), report::Report::default());
        let mut damage = Damage::default();
        let progress = Progress::new(len, "inspecting", true);
        let read = salvage(reader, limits, |finding| {
            match finding {
                Finding::Event(event) => {
                    let errors = found.add(&event, wanted);
                    let sound = errors.is_empty();
                    match &event {
                        Event::Frame(info, Body::Update(part)) => {
                            for (number, error) in errors {
                                damage.see_block(error, number, part, info.number);
                            }
                            report.take_updates(&mut found, 1, wanted);
                        }
                        Event::Frame(info, body) if wanted.shows_frame(info) => {
                            report.define(info.number, body)
                        }
                        _ => {}
                    }
                    damage.see(&event, sound);
                }
                Finding::Fault(fault) => {
                    found.bytes = fault.offset + fault.len;
                    damage.see_fault(fault);
                }
                _ => {}
            }
            progress.set(found.bytes);
            ControlFlow::Continue(())
        });
        damage.drop_open();
        report.take(found, wanted);
        let failure = read.err().map(Failure::from).or(damage.failure());
        report.ok = failure.is_none();
        report.find_profile();
        report.whole = (!report.ok && report.version.is_some()).then(|| damage.summary());
        report.faults = damage.faults().to_vec();
        (report, failure)
    }

    /// Reads the wanted updates of a finished stream through its index. Other updates are not read.
    pub(crate) fn of_file(file: &File<'_>, bytes: &[u8], wanted: &Wanted) -> Result<Self> {
        let (mut report, mut found) = (Self::of_finished(bytes), report::Report::default());
        let mut damage = Damage::default();
        let is_tensor = |name: &str| is_wanted(wanted.tensor.as_ref(), name);
        for (number, entry) in file.updates().iter().enumerate() {
            if !wanted.update(Some(entry.header.step), Some(entry.header.sender)) {
                continue;
            }
            found.metadata.extend(file.metadata(number)?.entries);
            for part in file.parts(number, is_tensor)? {
                // Blocks of other tensors are not read: their bytes count as those of this part all the same.
                let len = if part.part == 0 { entry.bytes } else { 0 };
                for (number, error) in found.add_part(&part, None, len, wanted) {
                    damage.see_block(error, number, &part, 0);
                }
                report.take_updates(&mut found, 1, wanted);
            }
        }
        report.take_updates(&mut found, 0, wanted);
        report.beyond_core = found.beyond_core;
        report.find_profile();
        match damage.failure() {
            Some(failure) => Err(failure),
            None => Ok(report),
        }
    }

    /// Describes the wanted updates of a finished stream by its index alone. `None` if that is not possible.
    pub(crate) fn of_index(file: &File<'_>, bytes: &[u8], wanted: &Wanted) -> Option<Self> {
        let mut report = Self::of_finished(bytes);
        for (number, entry) in file.updates().iter().enumerate() {
            if wanted.update(Some(entry.header.step), Some(entry.header.sender)) {
                let blocks = file.blocks(number).ok()?;
                let mut update = Update::of_index(&entry.header, &entry.manifest, &blocks)?;
                update.bytes = entry.bytes;
                update.name_opaque(&Labels::of(&file.metadata(number).ok()?.entries));
                update.finish(wanted, &mut report.totals);
                report.updates.push(update);
            }
        }
        Some(report)
    }

    /// Returns the report of a stream with an index, without updates.
    fn of_finished(bytes: &[u8]) -> Self {
        let minor = bytes.get(9).copied().unwrap_or_default();
        let version = Some(Version { major: VERSION_MAJOR, minor });
        let bytes = bytes.len() as u64;
        Self { kind: "gcodec", bytes, version, has_index: true, ok: true, ..Self::default() }
    }

    /// Takes what was found in a stream.
    fn take(&mut self, mut found: report::Report, wanted: &Wanted) {
        self.take_updates(&mut found, 0, wanted);
        self.kind = "gcodec";
        self.version = found.minor.map(|minor| Version { major: VERSION_MAJOR, minor });
        (self.bytes, self.segments, self.has_index) = (found.bytes, found.segments, found.has_index);
        (self.metadata, self.beyond_core) = (found.metadata, found.beyond_core);
        let frame = |frame: FrameInfo| Frame {
            number: frame.number,
            kind: frame.header.kind.to_string(),
            offset: frame.offset,
            bytes: frame.len(),
        };
        self.frames = found.frames.into_iter().map(frame).collect();
        let manifest = |row: report::ManifestReport| ManifestReport {
            frame: row.frame,
            id: row.id.0.iter().map(|b| format!("{b:02x}")).collect(),
            tensors: row.tensors,
            elements: row.elements,
        };
        self.manifests = found.manifests.into_iter().map(manifest).collect();
    }

    /// Names the profile of a stream without faults.
    fn find_profile(&mut self) {
        let profile = if self.beyond_core.is_some() { Profile::Full } else { Profile::Core };
        self.profile = (self.ok && self.version.is_some()).then(|| profile.name());
    }

    /// Adds a definition that only this command lists.
    fn define(&mut self, frame: u64, body: &Body<'_>) {
        match body {
            Body::IndexSet(set, id, count) => self.index_sets.push(IndexSetReport {
                frame,
                id: id.to_string(),
                step: set.step,
                leader: set.leader,
                world: set.world,
                kept: *count,
            }),
            Body::Model(model) => self.models.push(ModelReport {
                frame,
                id: model.id.to_string(),
                format: model.format.clone(),
                name: model.name.clone(),
                weights_bytes: model.weights_len,
            }),
            _ => {}
        }
    }

    /// Takes all updates but the last `open`, whose parts may not have come yet.
    fn take_updates(&mut self, found: &mut report::Report, open: usize, wanted: &Wanted) {
        let labels = Labels::of(&found.metadata);
        for update in found.updates.drain(..found.updates.len().saturating_sub(open)) {
            self.updates.push(Update::of(update, wanted, &labels, &mut self.totals));
        }
    }
}

/// Most tensors of a model whose elements are counted by row and column.
pub(super) const MAX_GRIDS: usize = 10_000;
