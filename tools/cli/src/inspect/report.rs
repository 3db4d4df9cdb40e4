//! The report on a stream; docs/inspect.schema.json describes its JSON form.

use super::tensor::Tensor;
use super::update::{BlockReport, Update};
use crate::damage::{Damage, FaultReport};
use crate::fail::{Failure, Result};
use crate::options::{NameGlob, is_wanted};
use crate::progress::Progress;
use gcodec::Limits;
use gcodec::file::File;
use gcodec::frame::{HEADER_LEN, UpdatePart, VERSION_MAJOR};
use gcodec::reduce::stats::StatsOptions;
use gcodec::stream::{Body, Event, Finding, FrameInfo, salvage};
use gcodec_latent::Models;
use rayon::prelude::*;
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
    (&tensor.name, tensor.dtype, &tensor.shape)
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
        let mut report = Self { kind: "gcodec", ..Self::default() };
        let mut damage = Damage::default();
        let progress = Progress::new(len, "inspecting", true);
        let read = salvage(reader, limits, |finding| {
            match finding {
                Finding::Event(event) => {
                    let sound = report.add(&event, wanted, limits, &mut damage);
                    damage.see(&event, sound);
                }
                Finding::Fault(fault) => {
                    report.bytes = fault.offset + fault.len;
                    damage.see_fault(fault);
                }
                _ => {}
            }
            progress.set(report.bytes);
            ControlFlow::Continue(())
        });
        damage.drop_open();
        report.finish(wanted);
        let failure = read.err().map(Failure::from).or(damage.failure());
        report.ok = failure.is_none();
        report.whole = (!report.ok && report.version.is_some()).then(|| damage.summary());
        report.faults = damage.faults().to_vec();
        (report, failure)
    }

    /// Reads the wanted updates of a finished stream through its index. Other updates are not read.
    pub(crate) fn of_file(file: &File<'_>, bytes: &[u8], wanted: &Wanted, limits: &Limits) -> Result<Self> {
        let mut report = Self::of_finished(bytes);
        let mut damage = Damage::default();
        let is_tensor = |name: &str| is_wanted(wanted.tensor.as_ref(), name);
        for (number, entry) in file.updates().iter().enumerate() {
            if !wanted.update(Some(entry.header.step), Some(entry.header.sender)) {
                continue;
            }
            for part in file.parts(number, is_tensor)? {
                // Blocks of other tensors are not read: their bytes count as those of this part all the same.
                let len = match part.part {
                    0 => entry.bytes,
                    _ => 0,
                };
                report.add_part(&part, None, len, wanted, limits, &mut damage);
            }
        }
        report.finish(wanted);
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
                report.updates.push(update);
            }
        }
        report.finish(wanted);
        Some(report)
    }

    /// Returns the report of a stream with an index, without updates.
    fn of_finished(bytes: &[u8]) -> Self {
        let minor = bytes.get(9).copied().unwrap_or_default();
        let version = Some(Version { major: VERSION_MAJOR, minor });
        let bytes = bytes.len() as u64;
        Self { kind: "gcodec", bytes, version, has_index: true, ok: true, ..Self::default() }
    }

    fn finish(&mut self, wanted: &Wanted) {
        for update in &mut self.updates {
            update.finish(wanted, &mut self.totals);
        }
    }

    /// Adds an event; returns whether the blocks of an update decode.
    fn add(&mut self, event: &Event<'_>, wanted: &Wanted, limits: &Limits, damage: &mut Damage) -> bool {
        let (info, body) = match event {
            Event::Frame(info, body) => (info, body),
            Event::Preamble(preamble) => {
                self.version = Some(Version { major: VERSION_MAJOR, minor: preamble.minor });
                self.bytes = gcodec::frame::PREAMBLE_LEN as u64;
                return true;
            }
            _ => return true,
        };
        self.bytes = info.offset + info.len();
        match body {
            Body::End(_) => self.segments += 1,
            Body::Index(_) => self.has_index = true,
            _ => {}
        }
        if wanted.frame.is_some_and(|f| f != info.number) {
            return true;
        }
        self.add_frame(info, body, wanted, limits, damage)
    }

    fn add_frame(
        &mut self,
        info: &FrameInfo,
        body: &Body<'_>,
        wanted: &Wanted,
        limits: &Limits,
        damage: &mut Damage,
    ) -> bool {
        let number = info.number;
        self.frames.push(Frame {
            number,
            kind: info.header.kind.to_string(),
            offset: info.offset,
            bytes: info.len(),
        });
        match body {
            Body::Metadata(metadata) => self.metadata.extend(metadata.entries.clone()),
            Body::Manifest(manifest) => self.manifests.push(ManifestReport {
                frame: number,
                id: hex(&manifest.id().0),
                tensors: manifest.tensors().len() as u64,
                elements: manifest.elements(),
            }),
            Body::IndexSet(set, id, count) => self.index_sets.push(IndexSetReport {
                frame: number,
                id: id.to_string(),
                step: set.step,
                leader: set.leader,
                world: set.world,
                kept: *count,
            }),
            Body::Model(model) => self.models.push(ModelReport {
                frame: number,
                id: model.id.to_string(),
                format: model.format.clone(),
                name: model.name.clone(),
                weights_bytes: model.weights_len,
            }),
            Body::Update(part) if wanted.update(Some(part.header.step), Some(part.header.sender)) => {
                return self.add_part(part, Some(number), info.len(), wanted, limits, damage);
            }
            _ => {}
        }
        true
    }

    /// Adds a part of an update; returns whether its blocks decode.
    fn add_part(
        &mut self,
        part: &UpdatePart<'_>,
        number: Option<u64>,
        len: u64,
        wanted: &Wanted,
        limits: &Limits,
        damage: &mut Damage,
    ) -> bool {
        if part.part == 0 || self.updates.is_empty() {
            if let Some(before) = self.updates.last_mut() {
                before.finish(wanted, &mut self.totals);
            }
            self.updates.push(Update::new(&part.header, &part.manifest));
        }
        let Some(update) = self.updates.last_mut() else { return true };
        update.frames.extend(number);
        update.tables += part.table_count() as u64;
        update.blocks += part.blocks.len() as u64;
        update.bytes += len;
        update.header_bytes += part.head_len + HEADER_LEN as u64;
        // Grids take 32 KiB for each tensor.
        let grid = wanted.grid && part.manifest.tensors().len() <= MAX_GRIDS;
        let options = StatsOptions::default().with_grid(grid);
        let budget = part.budget();
        let mut sound = true;
        // Memory is bounded by a few blocks at a time; they are added one after another.
        let numbers: Vec<usize> = (0..part.blocks.len()).collect();
        for batch in numbers.chunks(rayon::current_num_threads().max(1) * 4) {
            let looked: Vec<_> = batch
                .par_iter()
                .map(|&i| BlockReport::of(part, i, &wanted.models, &budget.with_memory_renewed(), &options))
                .collect();
            for (&i, (block, error)) in batch.iter().zip(looked) {
                update.add(part, &part.blocks[i], &block, error.as_ref(), wanted.tensor.as_ref());
                if let Some(error) = error {
                    sound = false;
                    damage.see_block(error, i, part, number.unwrap_or_default());
                }
            }
        }
        if sound && part.blocks.iter().any(|raw| raw.add) {
            update.take_sums(part, &wanted.models, limits, &options);
        }
        update.complete = sound && part.last && (part.part == 0 || update.complete_so_far);
        update.complete_so_far = sound && (part.part == 0 || update.complete_so_far);
        sound
    }
}

/// Most tensors of a model whose elements are counted by row and column.
pub(super) const MAX_GRIDS: usize = 10_000;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
