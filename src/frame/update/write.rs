//! Writes an update: in parts of bounded size, blocks in parallel.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::arch::threads;
use crate::bits::{Checksums, Output, put_varint};
use crate::block::space::Surroundings;
use crate::block::{PendingBlock, Profile, Scope, Sets, WrittenBlock};
use crate::codes::{Coder, Counts, Role, Scratch, Table};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::update::parallel::write_blocks;
use crate::frame::update::{BlockOrder, DeltaRuns, tables::shared_tables, write_head};
use crate::frame::{Delta, IndexedUpdate, Manifest, UpdateHeader};

/// Weight from which a block has its own tables: it is too long to gain from shared ones.
pub(super) const LIGHT: u64 = 1 << 14;

/// Weight of the light blocks whose symbols are counted for shared tables. More would hardly change a table,
/// and takes as long as writing the blocks.
const COUNTED: u64 = 1 << 18;

/// The golden ratio's part behind the point, times 2^64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Elements that the blocks of one look ahead span, for each thread, and the number of blocks in it. Threads
/// check the blocks of a look ahead together.
const AHEAD_ELEMENTS: u64 = 1 << 22;
const AHEAD_BLOCKS: usize = 1024;

/// Writes the parts of an update, one after another, from blocks that come one after another. It holds the
/// blocks of one part and of one look ahead.
pub(crate) struct UpdateWriter<'b, 'a> {
    header: &'b UpdateHeader,
    manifest: &'b Manifest,
    part_bytes: u64,
    profile: Profile,
    order: BlockOrder,
    /// Checked blocks of this part and of later ones, and the sum of their weights.
    queue: VecDeque<Queued<'a>>,
    weight: u64,
    /// Whether there are no more blocks than those in the queue.
    is_all: bool,
    /// Number of the next part.
    number: u64,
    memory: Vec<Memory>,
}

/// Manifest, sets and profile of an update: the same for all its blocks.
#[derive(Clone, Copy)]
pub(super) struct Context<'c> {
    pub(super) manifest: &'c Manifest,
    pub(super) sets: &'c Sets,
    pub(super) profile: Profile,
}

/// A checked block.
pub(super) struct Queued<'a> {
    pub(super) scope: Scope,
    pub(super) weight: u64,
    is_based: bool,
    needs_base: bool,
    pub(super) form: Form<'a>,
}

/// Form of a queued block.
pub(super) enum Form<'a> {
    Pending(PendingBlock<'a>),
    /// Its bytes, if it shares no tables with others.
    Written(WrittenBlock),
}

/// A part that was written.
pub(crate) struct WrittenPart {
    pub(crate) last: bool,
    pub(crate) crc: u32,
    pub(crate) entry: IndexedUpdate,
}

/// Memory of earlier blocks, for later ones: new memory takes longer than most coding.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) payloads: Vec<Vec<u8>>,
    scratch: Scratch,
}

impl Memory {
    /// Takes the memory of blocks that were appended: all that holds the bytes of blocks is used again before
    /// there is more of it, whether they are written early or late.
    fn take_payloads(all: &mut [Self]) -> Vec<Vec<u8>> {
        all.iter_mut().flat_map(|memory| memory.payloads.drain(..)).collect()
    }

    /// Gives the memory back, to several threads.
    fn give_payloads(all: &mut Vec<Self>, payloads: Vec<Vec<u8>>) {
        if all.is_empty() {
            all.push(Self::default());
        }
        let count = all.len();
        payloads.into_iter().enumerate().for_each(|(i, payload)| all[i % count].payloads.push(payload));
    }
}

impl<'b, 'a> UpdateWriter<'b, 'a> {
    /// # Errors
    /// [`Error::Input`] if the runs of the delta are not in order, or if `profile` has no deltas.
    pub(crate) fn new(
        header: &'b UpdateHeader,
        manifest: &'b Manifest,
        part_bytes: u64,
        profile: Profile,
    ) -> Result<Self> {
        if profile == Profile::Core && header.is_delta() {
            return Err(Error::input(InputErrorKind::BeyondCore { what: "a delta" }));
        }
        fn ascend<D>(runs: &Option<Vec<Delta<D>>>) -> bool {
            runs.iter().all(|runs| runs.is_sorted_by(|a, b| a.last() < b.first))
        }
        if !ascend(&header.delta) || !ascend(&header.sums) {
            return Err(Error::not_ascending("tensors of a delta"));
        }
        let (order, queue, memory) = Default::default();
        let (weight, is_all, number) = (0, false, 0);
        Ok(Self { header, manifest, part_bytes, profile, order, queue, weight, is_all, number, memory })
    }

    /// Appends the body of the next part. The caller stops after the last. A part holds blocks of about
    /// `part_bytes` before coding, and at least one block unless the update has none. `blocks`: those that
    /// earlier parts have not taken.
    ///
    /// # Errors
    /// The errors of the blocks; [`Error::Input`] if a block does not fit the manifest, is out of order, or
    /// is missing in the delta; `out` then ends in unusable bytes.
    pub(crate) fn write_next(
        &mut self,
        out: &mut dyn Output,
        sets: &Sets,
        blocks: &mut dyn Iterator<Item = Result<PendingBlock<'a>>>,
    ) -> Result<WrittenPart> {
        while !self.is_all && self.weight <= self.part_bytes {
            self.look_ahead(sets, blocks)?;
        }
        let part = self.queue.drain(..first_of_weight(&self.queue, self.part_bytes)).collect();
        self.weight = self.queue.iter().map(Queued::share).fold(0, u64::saturating_add);
        let last = self.is_all && self.queue.is_empty();
        let (entry, crc) = self.write_part(out, sets, part)?;
        self.number += 1;
        Ok(WrittenPart { last, crc, entry })
    }

    /// Adds some blocks to the queue.
    fn look_ahead(
        &mut self,
        sets: &Sets,
        blocks: &mut dyn Iterator<Item = Result<PendingBlock<'a>>>,
    ) -> Result<()> {
        let most = AHEAD_ELEMENTS.saturating_mul(rayon::current_num_threads() as u64);
        let (mut elements, mut ahead) = (0u64, Vec::new());
        while elements < most && ahead.len() < AHEAD_BLOCKS {
            let Some(block) = blocks.next().transpose()? else {
                self.is_all = true;
                break;
            };
            elements = elements.saturating_add(self.accept(&block, sets)?);
            ahead.push(block);
        }
        let (manifest, context) = (self.manifest, self.context(sets));
        let spare = Mutex::new(Memory::take_payloads(&mut self.memory));
        let checked = ahead.into_par_iter().map_init(Memory::default, |memory, block| {
            let scope = block.scope();
            let space = manifest.space(scope, 0)?;
            let around = Surroundings { space: &space, manifest: manifest.id().0, scope, sets };
            let weight = block.check(&around).map_err(|e| e.in_tensor(scope.first()))?;
            let (is_based, needs_base) = (block.is_based(), block.needs_base());
            // Bytes take less memory than a block that waits for the rest of its part.
            let form = match weight > LIGHT && block.holds_values() {
                true => {
                    memory.payloads.extend(spare.lock().unwrap_or_else(PoisonError::into_inner).pop());
                    Form::Written(write_block(&block, context, &[], None, memory)?)
                }
                false => Form::Pending(block),
            };
            Ok(Queued { scope, weight, is_based, needs_base, form })
        });
        let checked = threads::in_order(checked)?;
        Memory::give_payloads(&mut self.memory, spare.into_inner().unwrap_or_else(PoisonError::into_inner));
        for queued in checked {
            self.weight = self.weight.saturating_add(queued.share());
            self.queue.push_back(queued);
        }
        Ok(())
    }

    fn context<'c>(&self, sets: &'c Sets) -> Context<'c>
    where
        'b: 'c,
    {
        Context { manifest: self.manifest, sets, profile: self.profile }
    }

    /// Checks the place of the next block, and returns the number of elements that its scope spans.
    fn accept(&mut self, block: &PendingBlock<'_>, sets: &Sets) -> Result<u64> {
        let (scope, manifest) = (block.scope(), self.manifest);
        let tensor = scope.first();
        let Ok(space) = manifest.space(scope, 0) else {
            return Err(Error::inconsistent("scope outside the manifest").in_tensor(tensor));
        };
        if !self.order.accept(scope, block.adds()) {
            return Err(Error::inconsistent("blocks out of order or overlapping").in_tensor(tensor));
        }
        if let Some(id) = block.set() {
            let known = sets.get(&id).is_some_and(|s| s.scope == scope && s.manifest == manifest.id().0);
            if !known {
                let head = std::array::from_fn(|i| id.0[i]);
                return Err(Error::input(InputErrorKind::MissingIndexSet { id: head }).in_tensor(tensor));
            }
        }
        Ok(space.len())
    }

    /// Appends the body of a part. Returns its entry in an index, and its checksum.
    fn write_part(
        &mut self,
        out: &mut dyn Output,
        sets: &Sets,
        mut blocks: Vec<Queued<'a>>,
    ) -> Result<(IndexedUpdate, u32)> {
        let (header, manifest) = (self.header, self.manifest);
        if !header.is_delta() && blocks.iter().any(|queued| queued.needs_base) {
            return Err(Error::inconsistent("differences from a base without a delta"));
        }
        let hashed = header.delta.as_ref().map(|runs| touched(runs, &blocks)).transpose()?;
        let summed = header.sums.as_ref().map(|runs| touched(runs, &blocks)).transpose()?;
        let context = self.context(sets);
        let tables = choose_tables(context, &mut blocks)?;
        let mut head = Vec::new();
        write_head(&mut head, header, manifest.id(), self.number, &DeltaRuns { hashed, summed });
        put_varint(&mut head, tables.len() as u64);
        tables.iter().for_each(|t| t.write(&mut head));
        put_varint(&mut head, blocks.len() as u64);
        out.append(&head);
        let mut checksums = Checksums::default();
        let (head_len, head_crc) = (head.len() as u64, checksums.part(&head));
        let blocks = write_blocks(out, context, blocks, &tables, &mut self.memory, &mut checksums)?;
        let (step, sender) = (header.step, header.sender);
        Ok((IndexedUpdate { step, sender, head_len, head_crc, blocks }, checksums.whole()))
    }
}

impl Queued<'_> {
    /// The share of a part that the block fills. A block without elements fills some, too.
    pub(super) fn share(&self) -> u64 {
        self.weight.saturating_add(1)
    }
}

/// Returns the number of leading blocks that weigh at most `weight` together; at least one, if any.
pub(super) fn first_of_weight(blocks: &VecDeque<Queued<'_>>, weight: u64) -> usize {
    let mut sum = 0u64;
    let fits = |queued: &&Queued<'_>| {
        let first = sum == 0;
        sum = sum.saturating_add(queued.share());
        first || sum <= weight
    };
    blocks.iter().take_while(fits).count()
}

/// Chooses the frequency tables that the blocks of a part share. Counts the symbols of a sample of the light
/// blocks for it, and keeps the bytes of those without symbols if there is no such table.
fn choose_tables(context: Context<'_>, blocks: &mut [Queued<'_>]) -> Result<Vec<Table>> {
    let light: Vec<_> = blocks.iter_mut().filter(|queued| queued.weight <= LIGHT).collect();
    if light.len() < 2 {
        return Ok(Vec::new());
    }
    let light = sample(light);
    let written = threads::in_order(light.par_iter().map_init(Memory::default, |memory, queued| {
        let Form::Pending(block) = &queued.form else { return Ok(Default::default()) };
        let mut record = Vec::new();
        let written = write_block(block, context, &[], Some(&mut record), memory)?;
        Ok((Some(written), record))
    }))?;
    let (written, records): (Vec<_>, Vec<_>) = written.into_iter().unzip();
    let coded: Vec<bool> = records.iter().map(|record: &Vec<_>| !record.is_empty()).collect();
    let segments: Vec<_> = records.into_iter().flatten().collect();
    let tables = shared_tables(&segments);
    if tables.is_empty() {
        // With tables, any light block may be smaller, also one whose smallest form had no table before.
        let written = light.into_iter().zip(written.into_iter().zip(coded));
        for (queued, written) in
            written.filter_map(|(queued, (w, coded))| Some((queued, w.filter(|_| !coded)?)))
        {
            queued.form = Form::Written(written);
        }
    }
    Ok(tables)
}

/// Returns those of the light blocks whose symbols are counted: all of them up to the weight [`COUNTED`], and
/// as much of more.
///
/// Multiples of the golden ratio spread evenly between integers, in whatever period kinds of tensors return.
fn sample<'q, 'a>(light: Vec<&'q mut Queued<'a>>) -> Vec<&'q mut Queued<'a>> {
    let all = light.iter().map(|queued| queued.share()).fold(0, u64::saturating_add);
    let limit = u64::MAX / all.max(1);
    let limit = limit.saturating_mul(COUNTED);
    let is_taken = |i: u64| i.wrapping_mul(GOLDEN) <= limit;
    (0..).zip(light).filter(|(i, _)| is_taken(*i)).map(|(_, queued)| queued).collect()
}

/// Returns the runs of a delta with the tensors that the blocks of a part touch.
fn touched<D: Copy + PartialEq>(delta: &[Delta<D>], blocks: &[Queued<'_>]) -> Result<Vec<Delta<D>>> {
    let mut entries: Vec<Delta<D>> = Vec::new();
    for &Queued { scope, is_based, .. } in blocks {
        for tensor in scope.first()..scope.first() + scope.tensors() {
            if entries.last().is_some_and(|run| run.contains(tensor)) {
                continue;
            }
            let found = Delta::find(delta, tensor);
            let missing = || Error::inconsistent("tensor missing in the delta").in_tensor(tensor);
            entries.push(*found.ok_or_else(missing)?);
        }
        let last = scope.first() + scope.tensors().saturating_sub(1);
        if is_based && !entries.last().is_some_and(|run| run.contains(scope.first()) && run.contains(last)) {
            return Err(Error::inconsistent("a block classed by the base is in several runs of the delta")
                .in_tensor(last));
        }
    }
    entries.sort_by_key(|d| d.first);
    entries.dedup();
    Ok(entries)
}

/// Writes a block. `record`: receives the counts of its segments, whose bytes are then left out.
pub(super) fn write_block(
    block: &PendingBlock<'_>,
    Context { manifest, sets, profile }: Context<'_>,
    tables: &[Table],
    record: Option<&mut Vec<(Role, Counts)>>,
    memory: &mut Memory,
) -> Result<WrittenBlock> {
    let scope = block.scope();
    let space = manifest.space(scope, 0)?;
    let around = Surroundings { space: &space, manifest: manifest.id().0, scope, sets };
    let mut coder = Coder::new(block.options().entropy, tables, record);
    coder.effort = block.options().effort;
    (coder.profile, coder.dry) = (profile, coder.record.is_some());
    coder.scratch = std::mem::take(&mut memory.scratch);
    let written = block.write(&mut coder, &around, memory.payloads.pop().unwrap_or_default());
    memory.scratch = coder.scratch;
    written.map_err(|e| e.in_tensor(scope.first()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::block::{
        Affine, Based, Block, Constant, Floats, Groups, ScaleFormat, Scales, Scope, Set, SetId, Sparse,
        Stored, Support, Ulp, Values, Zero,
    };
    use crate::frame::{IndexSet, TensorInfo};
    use crate::limits::Limits;
    use crate::stream::{Body, EncodeOptions, Encoder, Event, SliceReader};
    use crate::tensor::Dtype;

    /// Tensors of `len` elements.
    fn manifest(tensors: u64, len: u64) -> Arc<Manifest> {
        let infos = (0..tensors).map(|i| TensorInfo::new(i.to_string(), Dtype::F32, [len]));
        Arc::new(Manifest::new(infos.collect()).unwrap())
    }

    fn block(scope: Scope, support: Support, values: Values) -> Block {
        Block { scope, add: false, support, values }
    }

    fn constant(scope: Scope, support: Support) -> Block {
        let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
        block(scope, support, Values::Constant(Constant { groups: Groups::Block, scales }))
    }

    fn delta(runs: &[(u64, u64)]) -> Vec<Delta> {
        let run = |&(first, more): &(u64, u64)| Delta { first, more, base: [1; 16], result: [2; 16] };
        runs.iter().map(run).collect()
    }

    /// The headers of the parts of an update.
    fn headers(
        encoder: &mut Encoder,
        manifest: &Arc<Manifest>,
        delta: Option<Vec<Delta>>,
        blocks: &[Block],
    ) -> Result<Vec<UpdateHeader>, &'static str> {
        let (mut out, header) = (Vec::new(), UpdateHeader::default().with_delta(delta));
        encoder.update(&mut out, &header, manifest, blocks).map_err(|e| e.name())?;
        encoder.finish(&mut out);
        let mut reader = SliceReader::new(&out, Limits::default());
        reader.add_manifest(Arc::clone(manifest));
        let mut headers = Vec::new();
        while let Some(event) = reader.next_event().map_err(|e| e.name())? {
            if let Event::Frame(_, Body::Update(part)) = event {
                headers.push(part.header);
            }
        }
        Ok(headers)
    }

    fn encoder() -> Encoder {
        Encoder::new(EncodeOptions::default())
    }

    #[test]
    fn a_block_on_an_index_set_has_the_scope_and_the_manifest_of_the_set() {
        let (manifest, other) = (manifest(2, 4), manifest(3, 4));
        let support = Support::Sparse(Sparse { positions: vec![1] });
        let (id, scope) = (SetId([3; 32]), Scope::Tensor(0));
        let set = IndexSet { manifest: manifest.id(), step: 0, leader: 0, world: 0, scope, support };
        let written = |manifest: &Arc<Manifest>, scope, id| {
            let mut encoder = encoder();
            encoder.add_index_set(SetId([3; 32]), &set, &self::manifest(2, 4)).unwrap();
            let blocks = [constant(scope, Support::Set(Set { id }))];
            encoder.update(&mut Vec::new(), &UpdateHeader::default(), manifest, blocks).map_err(|e| e.name())
        };
        assert_eq!(written(&manifest, scope, id), Ok(()));
        assert_eq!(written(&manifest, Scope::Tensor(1), id), Err("unknown_reference"));
        assert_eq!(written(&other, scope, id), Err("unknown_reference"));
        assert_eq!(written(&manifest, scope, SetId([4; 32])), Err("unknown_reference"));
    }

    #[test]
    fn a_part_lists_each_run_that_it_touches_once() {
        let based = |tensor| {
            let support = Support::Based(Based { bounds: vec![], ranks: vec![vec![0]] });
            block(Scope::Tensor(tensor), support, Values::Ulp(Ulp { diffs: vec![1] }))
        };
        // An added block need not be in the order of the others.
        let added = Block { add: true, ..constant(Scope::Tensor(5), Support::All) };
        let blocks = [based(0), added, based(1)];
        let runs = delta(&[(0, 1), (2, 0), (5, 0)]);
        let headers = headers(&mut encoder(), &manifest(6, 4), Some(runs), &blocks).unwrap();
        assert_eq!(headers.len(), 1);
        assert_eq!(headers[0].delta, Some(delta(&[(0, 1), (5, 0)])));
    }

    #[test]
    fn a_block_that_is_classed_by_the_base_needs_one_run_for_its_tensors() {
        let support = Support::Based(Based { bounds: vec![], ranks: vec![vec![5]] });
        let values = Values::Floats(Floats { stored: Stored::Source, bytes: vec![0; 4] });
        let blocks = [block(Scope::Tensors { first: 0, count: 2 }, support, values)];
        let written =
            |delta| headers(&mut encoder(), &manifest(2, 4), delta, &blocks).map(|headers| headers.len());
        assert_eq!(written(Some(delta(&[(0, 1)]))), Ok(1));
        assert_eq!(written(Some(delta(&[(0, 0), (1, 0)]))), Err("input"));
        assert_eq!(written(None), Err("input"));
    }

    /// Small blocks with codes of few kinds, then a large one.
    fn coded(small: u64) -> (Arc<Manifest>, Vec<Block>) {
        let codes =
            |len| (0..len as u64).map(|i| (crate::random::word(4, 0, i).leading_zeros()) as u8).collect();
        let coded = |tensor, len: usize| {
            let scales = Scales::from_f32s(ScaleFormat::F32, &[1.0]);
            let values =
                Affine { bits: 6, groups: Groups::Block, scales, zero: Zero::Centre, codes: codes(len) };
            block(Scope::Tensor(tensor), Support::All, Values::Affine(values))
        };
        let infos = (0..=small).map(|i| {
            let len = if i < small { 300 } else { 2 * LIGHT };
            TensorInfo::new(i.to_string(), Dtype::F32, [len])
        });
        let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
        let blocks = (0..small).map(|i| coded(i, 300)).chain([coded(small, 2 * LIGHT as usize)]).collect();
        (manifest, blocks)
    }

    fn bytes(manifest: &Arc<Manifest>, blocks: &[Block]) -> usize {
        let mut out = Vec::new();
        encoder().update(&mut out, &UpdateHeader::default(), manifest, blocks).unwrap();
        out.len()
    }

    #[test]
    fn small_blocks_share_frequency_tables() {
        let (manifest, blocks) = coded(40);
        let of_update = |blocks: &[Block]| bytes(&manifest, blocks);
        let (empty, large) = (of_update(&[]), of_update(&blocks[40..]));
        let each = of_update(&blocks[..1]) - empty;
        let all = of_update(&blocks[..40]) - empty;
        assert!(all < 40 * each - 40 * 8, "{all} bytes of 40 blocks, {each} of one");
        assert!(of_update(&blocks).abs_diff(all + large) < 8, "large blocks have their own");
    }

    #[test]
    fn symbols_are_counted_of_some_of_many_light_blocks() {
        let taken = |count: usize, weight| {
            let values = Values::Floats(Floats { stored: Stored::Source, bytes: vec![] });
            let block = block(Scope::Tensor(0), Support::All, values);
            let queued = |i: usize| Queued {
                scope: Scope::Tensor(i as u64),
                weight,
                is_based: false,
                needs_base: false,
                form: Form::Pending((&block).into()),
            };
            let mut all: Vec<Queued<'_>> = (0..count).map(queued).collect();
            let taken = sample(all.iter_mut().collect());
            taken.iter().map(|queued| queued.scope.first()).collect::<Vec<u64>>()
        };
        assert_eq!(taken(16, LIGHT - 1), (0..16).collect::<Vec<u64>>());
        assert_eq!(taken(1 << 18, 0).len(), 1 << 18);
        let of_many = taken(1600, LIGHT - 1);
        assert!((15..=17).contains(&of_many.len()), "{of_many:?}");
        // About as many in each part of the blocks, and of those in each place of a period.
        assert!((0..4).all(|part| of_many.iter().filter(|i| *i / 400 == part).count().abs_diff(4) <= 1));
        let of_more = taken(16_000, LIGHT / 10 - 1);
        let of_period = |place| of_more.iter().filter(|i| *i % 10 == place).count();
        assert!((0..10).all(|place| of_period(place) >= 8), "{of_more:?}");
    }

    #[test]
    fn any_number_of_threads_writes_all_blocks_in_order() {
        let (manifest, blocks) = coded(40);
        let written = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (mut out, mut encoder) = (Vec::new(), encoder());
            let header = UpdateHeader::default();
            pool.install(|| encoder.update(&mut out, &header, &manifest, &blocks)).unwrap();
            encoder.finish(&mut out);
            out
        };
        let one = written(1);
        assert!([2, 5, 9].iter().all(|&threads| written(threads) == one));
        let mut reader = SliceReader::new(&one, Limits::default());
        while let Some(event) = reader.next_event().unwrap() {
            if let Event::Frame(_, Body::Update(part)) = event {
                assert_eq!(part.blocks.len(), blocks.len());
                let decoded = (0..blocks.len()).map(|i| part.decode(i, &part.budget()).unwrap());
                assert!(decoded.zip(&blocks).all(|(decoded, block)| decoded == *block));
            }
        }
    }

    #[test]
    fn blocks_without_elements_fill_parts_too() {
        let values = || Values::Floats(Floats { stored: Stored::Source, bytes: vec![] });
        let blocks = [0, 1, 2].map(|tensor| block(Scope::Tensor(tensor), Support::All, values()));
        for (part_bytes, parts) in [(1, 3), (2, 2), (3, 1)] {
            let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(part_bytes));
            assert_eq!(headers(&mut encoder, &manifest(3, 0), None, &blocks).unwrap().len(), parts);
        }
    }
}
