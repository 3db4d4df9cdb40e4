//! Reports on streams: frames, definitions, and the tensors or blocks of every update.
//!
//! A [`Report`] takes the events of a stream in their order, from any reader. [`Detail`] chooses what it
//! shows. Its memory is some hundred bytes for each frame, and for each tensor or block of an update.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use crate::block::{Block, RawBlock, Scope, SupportId, ValuesId};
use crate::error::{Error, Result};
use crate::frame::{HEADER_LEN, Manifest, ManifestId, PREAMBLE_LEN, TensorInfo, UpdateHeader, UpdatePart};
use crate::limits::{Budget, Limits, in_memory};
use crate::reduce::stats::{Stats, StatsOptions};
use crate::stream::{Assembler, Body, Event, FrameInfo, SliceReader};
use crate::tensor::TensorBuf;

/// Choice of what a [`Report`] shows, and how it reads blocks. The defaults are those of `()`: all tensors of
/// all updates, with statistics.
pub trait Detail: Sync {
    /// Error of a block.
    type Error: From<Error> + Display + Send;

    /// Whether a frame is shown. It is counted in any case.
    fn shows_frame(&self, _info: &FrameInfo) -> bool {
        true
    }

    /// Whether an update is shown, so that its blocks are decoded.
    fn shows_update(&self, _header: &UpdateHeader) -> bool {
        true
    }

    /// Whether a tensor is shown.
    fn shows_tensor(&self, _info: &TensorInfo) -> bool {
        true
    }

    /// Returns the options of the statistics of tensors; `None` for rows of blocks in place of tensors.
    fn stats(&self, _part: &UpdatePart<'_>) -> Option<StatsOptions> {
        Some(StatsOptions::default())
    }

    /// Returns a note on block `number`, such as how its positions are coded.
    fn note(&self, _part: &UpdatePart<'_>, _number: usize) -> String {
        String::new()
    }

    /// Returns the block whose values are counted, for example one with a model's numbers in place of codes.
    ///
    /// # Errors
    /// The block counts as one that does not decode.
    fn block(&self, _part: &UpdatePart<'_>, _number: usize, block: Block) -> Result<Block, Self::Error> {
        Ok(block)
    }

    /// Returns the dense tensors of an update of one part whose names `wanted` accepts. Only they tell the
    /// elements where one block is added to another.
    ///
    /// # Errors
    /// The tensors count as unread.
    fn dense(
        &self,
        part: &UpdatePart<'_>,
        limits: &Limits,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<(u64, TensorBuf)>, Self::Error> {
        let mut assembler = Assembler::new(&part.manifest, limits, wanted)?;
        assembler.apply(part)?;
        Ok(assembler.finish()?)
    }
}

impl Detail for () {
    type Error = Error;
}

/// Contents of a stream.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Minor version of the format; `None` if there is no preamble.
    pub minor: Option<u8>,
    /// Bytes up to the end of the last event.
    pub bytes: u64,
    /// Segments that end.
    pub segments: u64,
    /// Whether there is an index.
    pub has_index: bool,
    /// The first thing found that the core profile does not have ([`UpdatePart::beyond_core`]). A stream
    /// without faults and without such things is of the core profile.
    pub beyond_core: Option<&'static str>,
    /// Frames that are shown.
    pub frames: Vec<FrameInfo>,
    /// Entries of all metadata; of those with one key, the last.
    pub metadata: BTreeMap<String, String>,
    /// Manifests.
    pub manifests: Vec<ManifestReport>,
    /// Updates that are shown, also those that lack parts. A caller may take those behind which another
    /// began.
    pub updates: Vec<UpdateReport>,
}

/// A manifest.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ManifestReport {
    /// Number of its frame.
    pub frame: u64,
    /// Its id.
    pub id: ManifestId,
    /// Number of tensors.
    pub tensors: u64,
    /// Elements of all tensors.
    pub elements: u64,
}

/// An update, as far as its parts were read.
#[derive(Debug)]
#[non_exhaustive]
pub struct UpdateReport {
    /// Header of its first part.
    pub header: UpdateHeader,
    /// Its manifest.
    pub manifest: Arc<Manifest>,
    /// Numbers of its frames.
    pub frames: Vec<u64>,
    /// Number of frequency tables that blocks share.
    pub tables: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of its frames.
    pub bytes: u64,
    /// Bytes of its frames without the blocks.
    pub header_bytes: u64,
    /// Number of values.
    pub kept: u64,
    /// Whether all blocks decode.
    pub is_sound: bool,
    /// Whether all parts were read, and all blocks decode.
    pub is_complete: bool,
    /// Tensors that are shown and that a block covers, in the order of their first blocks.
    pub tensors: Vec<TensorReport>,
    /// Blocks, if [`Detail::stats`] asks for them in place of tensors.
    pub block_rows: Vec<BlockReport>,
    /// Index in `tensors`, by number in the manifest.
    rows: HashMap<u64, usize>,
}

/// A tensor in an update.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct TensorReport {
    /// Number in the manifest.
    pub number: u64,
    /// Kind of its positions; `None` if blocks differ.
    pub support: Option<SupportId>,
    /// Kind of its values; `None` if blocks differ.
    pub kind: Option<ValuesId>,
    /// Kind of its values with their main setting, such as `levels s=7`; `None` if blocks differ.
    pub values: Option<String>,
    /// The note of [`Detail::note`]; empty if blocks differ.
    pub note: String,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of values; `None` if only the base of a delta tells.
    pub kept: Option<u64>,
    /// Whether blocks also span other tensors. The bits of such a block are divided by kept values, or by
    /// elements where these are not known.
    pub is_shared: bool,
    /// Bits of the positions.
    pub position_bits: f64,
    /// Bits of the values.
    pub value_bits: f64,
    /// Bits of the blocks' headers.
    pub overhead_bits: f64,
    /// Statistics of the values. [`Stats::with_elements`] adds the elements without a value.
    pub stats: Stats,
    /// Whether its values change a base.
    pub is_delta: bool,
    /// Error of its first block that does not decode.
    pub error: Option<String>,
}

/// A block of an update.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct BlockReport {
    /// Number of its frame.
    pub frame: u64,
    /// Tensors that it spans.
    pub scope: Scope,
    /// Number of elements that it spans.
    pub elements: u64,
    /// Number of values; `None` if it does not decode.
    pub kept: Option<u64>,
    /// Bytes of the block.
    pub bytes: u64,
    /// Bytes of its positions.
    pub support_bytes: u64,
    /// Bytes of its values.
    pub values_bytes: u64,
    /// Kind of its positions.
    pub support: SupportId,
    /// Kind of its values.
    pub values: ValuesId,
}

impl Report {
    /// Reads a stream up to the first frame that cannot be read. The error is the first, also that of a block
    /// behind which frames were read.
    pub fn of<D: Detail<Error = Error>>(bytes: &[u8], limits: Limits, detail: &D) -> (Self, Option<Error>) {
        let (mut report, mut error) = (Self::default(), None);
        for event in SliceReader::new(bytes, limits) {
            let found = match event {
                Ok(event) => report.add(&event, detail).into_iter().next().map(|(_, error)| error),
                Err(error) => Some(error),
            };
            error = error.or(found);
        }
        report.bytes = bytes.len() as u64;
        (report, error)
    }

    /// Adds the next event. Returns the numbers of the blocks that do not decode, and their errors.
    pub fn add<D: Detail>(&mut self, event: &Event<'_>, detail: &D) -> Vec<(usize, D::Error)> {
        let (info, body) = match event {
            Event::Frame(info, body) => (info, body),
            Event::Preamble(preamble) => {
                (self.minor, self.bytes) = (Some(preamble.minor), PREAMBLE_LEN as u64);
                return Vec::new();
            }
        };
        self.bytes = info.offset + info.len();
        self.segments += u64::from(matches!(body, Body::End(_)));
        self.has_index |= matches!(body, Body::Index(_));
        if !detail.shows_frame(info) {
            return Vec::new();
        }
        self.frames.push(*info);
        let frame = info.number;
        match body {
            Body::IndexSet(..) => self.beyond_core = self.beyond_core.or(Some("an index set")),
            Body::Model(_) => self.beyond_core = self.beyond_core.or(Some("a model")),
            Body::Metadata(metadata) => self.metadata.extend(metadata.entries.clone()),
            Body::Manifest(manifest) => self.manifests.push(ManifestReport {
                frame,
                id: manifest.id(),
                tensors: manifest.tensors().len() as u64,
                elements: manifest.elements(),
            }),
            Body::Update(part) if detail.shows_update(&part.header) => {
                return self.add_part(part, Some(frame), info.len(), detail);
            }
            _ => {}
        }
        Vec::new()
    }

    /// Adds a part of an update that has `len` bytes, also of one that is not to be shown. Returns the
    /// numbers of the blocks that do not decode, and their errors.
    pub fn add_part<D: Detail>(
        &mut self,
        part: &UpdatePart<'_>,
        frame: Option<u64>,
        len: u64,
        detail: &D,
    ) -> Vec<(usize, D::Error)> {
        if part.part == 0 || self.updates.is_empty() {
            self.updates.push(UpdateReport::new(part));
        }
        let Some(update) = self.updates.last_mut() else { return Vec::new() };
        update.frames.extend(frame);
        update.tables += part.table_count() as u64;
        update.blocks += part.blocks.len() as u64;
        update.bytes += len;
        update.header_bytes += part.head_len + HEADER_LEN as u64;
        // Also of a part without blocks.
        let delta = part.header.is_delta().then_some("a delta");
        self.beyond_core = self.beyond_core.or(delta);
        let (options, mut budget) = (detail.stats(part), part.budget());
        let mut errors = Vec::new();
        // A few blocks are decoded at a time, to bound memory. They are added one after another.
        let numbers: Vec<usize> = (0..part.blocks.len()).collect();
        for batch in numbers.chunks(rayon::current_num_threads().max(1) * 4) {
            let looked = budget.decode_each(batch, |&number, budget| {
                let mut found = Contents::default();
                let budget = budget.with_memory_renewed();
                let error = found.read(part, number, options.as_ref(), &budget, detail).err();
                (number, found, error)
            });
            for (number, found, error) in looked {
                let raw = &part.blocks[number];
                update.kept += found.kept.unwrap_or_default();
                self.beyond_core = self.beyond_core.or(found.beyond_core);
                match options {
                    Some(_) => update.add_block(part, raw, &found, error.as_ref(), detail),
                    None => update.block_rows.push(BlockReport {
                        frame: frame.unwrap_or_default(),
                        scope: raw.scope,
                        elements: raw.space.len(),
                        kept: found.kept,
                        bytes: raw.len,
                        support_bytes: raw.support.len() as u64,
                        values_bytes: raw.values.len() as u64,
                        support: raw.support_id,
                        values: raw.values_id,
                    }),
                }
                errors.extend(error.map(|error| (number, error)));
            }
        }
        update.is_sound &= errors.is_empty();
        update.is_complete = update.is_sound && part.last;
        if let Some(options) = options.filter(|_| errors.is_empty()) {
            update.take_sums(part, &options, detail);
        }
        errors
    }
}

/// Contents of a block, as far as it decodes.
#[derive(Default)]
struct Contents {
    values: Option<String>,
    note: String,
    kept: Option<u64>,
    beyond_core: Option<&'static str>,
    /// By tensor of the scope.
    stats: Vec<Stats>,
}

impl Contents {
    fn read<D: Detail>(
        &mut self,
        part: &UpdatePart<'_>,
        number: usize,
        options: Option<&StatsOptions>,
        budget: &Budget,
        detail: &D,
    ) -> Result<(), D::Error> {
        let block = part.decode(number, budget)?;
        self.beyond_core = part.beyond_core(number, &part.budget())?;
        self.kept = Some(block.count(&part.blocks[number].space, part.sets())?);
        let Some(options) = options else { return Ok(()) };
        (self.values, self.note) = (Some(block.values.label()), detail.note(part, number));
        let block = detail.block(part, number, block)?;
        self.stats = Stats::of_block(part, number, &block, budget, options)?;
        Ok(())
    }
}

impl UpdateReport {
    fn new(part: &UpdatePart<'_>) -> Self {
        Self {
            header: part.header.clone(),
            manifest: Arc::clone(&part.manifest),
            frames: Vec::new(),
            tables: 0,
            blocks: 0,
            bytes: 0,
            header_bytes: 0,
            kept: 0,
            is_sound: true,
            is_complete: false,
            tensors: Vec::new(),
            block_rows: Vec::new(),
            rows: HashMap::new(),
        }
    }

    /// Adds a block to the tensors that it spans.
    fn add_block<D: Detail>(
        &mut self,
        part: &UpdatePart<'_>,
        raw: &RawBlock<'_>,
        found: &Contents,
        error: Option<&D::Error>,
        detail: &D,
    ) {
        let values = found.values.clone().unwrap_or_else(|| raw.values_id.to_string());
        for (i, (number, &len)) in (raw.scope.first()..).zip(&raw.space.lens[..]).enumerate() {
            if !detail.shows_tensor(&part.manifest.tensors()[in_memory(number)]) {
                continue;
            }
            let none = Stats::default();
            let stats = found.stats.get(i).unwrap_or(&none);
            let share = match (raw.space.lens.len(), stats.unplaced, found.kept.unwrap_or_default()) {
                (1, ..) => 1.0,
                (_, 1.., _) | (_, _, 0) => len as f64 / raw.space.len().max(1) as f64,
                (_, _, all) => stats.kept as f64 / all as f64,
            };
            // An added block may come behind blocks of later tensors.
            let next = self.tensors.len();
            let row = *self.rows.entry(number).or_insert(next);
            if row == next {
                self.tensors.push(TensorReport {
                    number,
                    support: Some(raw.support_id),
                    kind: Some(raw.values_id),
                    values: Some(values.clone()),
                    note: found.note.clone(),
                    kept: Some(0),
                    ..TensorReport::default()
                });
            }
            let row = &mut self.tensors[row];
            row.add(raw, &values, &found.note, stats, share);
            row.is_delta |= part.header.lists(number);
            if let Some(error) = error {
                row.error.get_or_insert_with(|| error.to_string());
            }
        }
    }

    /// Replaces the statistics of tensors that have added blocks by those of their sums. Where that needs
    /// more than this part, their values count as unread.
    fn take_sums<D: Detail>(&mut self, part: &UpdatePart<'_>, options: &StatsOptions, detail: &D) {
        let scopes = part.blocks.iter().filter(|raw| raw.add).map(|raw| raw.scope);
        let added: Vec<u64> =
            scopes.flat_map(|scope| scope.first()..scope.first() + scope.tensors()).collect();
        if added.is_empty() {
            return;
        }
        let infos = part.manifest.tensors();
        let names: HashSet<&str> = added.iter().map(|&t| infos[in_memory(t)].name.as_str()).collect();
        let is_whole = part.part == 0 && part.last;
        let sums = is_whole.then(|| detail.dense(part, part.limits(), &|name| names.contains(name)).ok());
        let sums: HashMap<u64, TensorBuf> = sums.flatten().into_iter().flatten().collect();
        for number in added {
            let Some(&row) = self.rows.get(&number) else { continue };
            let row = &mut self.tensors[row];
            let kept = row.kept.unwrap_or_default();
            row.stats = sums.get(&number).map_or_else(Stats::default, |sum| Stats::of(&sum.view(), options));
            if !sums.contains_key(&number) {
                (row.stats.elements, row.stats.kept, row.stats.unread) = (kept, kept, kept);
            }
        }
    }
}

impl TensorReport {
    /// Adds a block; `share` of its bits are this tensor's.
    fn add(&mut self, raw: &RawBlock<'_>, values: &str, note: &str, stats: &Stats, share: f64) {
        self.support = self.support.filter(|id| *id == raw.support_id);
        self.kind = self.kind.filter(|id| *id == raw.values_id);
        self.values = self.values.take().filter(|text| text == values);
        if self.note != note {
            self.note.clear();
        }
        self.blocks += 1;
        let kept = (stats.unplaced == 0).then_some(stats.kept);
        self.kept = self.kept.zip(kept).map(|(sum, kept)| sum + kept);
        self.is_shared |= raw.space.lens.len() > 1;
        self.position_bits += share * raw.support.len() as f64 * 8.0;
        self.value_bits += share * raw.values.len() as f64 * 8.0;
        self.overhead_bits += share * raw.header_len() as f64 * 8.0;
        self.stats.merge(stats);
    }
}
