//! Writes an update: in parts of bounded size, blocks in parallel.

use std::ops::Range;

use crc32fast::Hasher;
use rayon::prelude::*;

use crate::bits::{Output, put_varint};
use crate::block::space::Surroundings;

use crate::block::{BlockOptions, Later, Pending, Scope, SetId, Sets, ValuesId, WireBlock, WrittenBlock};
use crate::codes::{Coder, Counts, Role, Scratch, Table};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::update::parallel::write_blocks;
use crate::frame::update::{BlockOrder, tables::shared_tables, write_head};
use crate::frame::{Delta, HEADER_LEN, Manifest, UpdateHeader};

/// Weight from which a block has its own tables: it is too long to gain from shared ones.
pub(super) const LIGHT: u64 = 1 << 14;

/// Range of a part's body, whether the part is the last, and a hasher for each block that has seen its bytes.
pub(crate) struct Part {
    pub(crate) body: Range<usize>,
    pub(crate) last: bool,
    pub(crate) hashers: Vec<Hasher>,
}

/// Appends the parts of an update, each after room for a frame's header. Each part holds blocks of about
/// `part_bytes` before coding, and at least one block.
///
/// # Errors
/// [`Error::Input`] if a block does not fit the manifest, is out of order, or is missing in the delta; `out`
/// then ends in unusable bytes.
pub(crate) fn write_parts(
    out: &mut dyn Output,
    header: &UpdateHeader,
    manifest: &Manifest,
    sets: &Sets,
    blocks: &[Unwritten<'_>],
    part_bytes: u64,
) -> Result<Vec<Part>> {
    check(header, manifest, sets, blocks)?;
    let weighed: Vec<Result<Weighed<'_>>> = blocks
        .par_iter()
        .map(|&block| {
            let scope = block.scope();
            let space = manifest.space(scope, 0)?;
            let around = Surroundings { space: &space, manifest: manifest.id().0, scope, sets };
            let weight = block.check(&around).map_err(|e| e.in_tensor(scope.first()))?;
            Ok(Weighed { block, weight })
        })
        .collect();
    let weighed = weighed.into_iter().collect::<Result<Vec<_>>>()?;
    let mut parts: Vec<Part> = Vec::new();
    let mut memory = Vec::new();
    let mut rest = weighed.as_slice();
    while !rest.is_empty() || parts.is_empty() {
        let (part, others) = rest.split_at(first_of_weight(rest, part_bytes));
        out.append(&[0; HEADER_LEN]);
        let start = out.bytes().len();
        let hashers = write_part(out, header, manifest, sets, part, parts.len() as u64, &mut memory)?;
        parts.push(Part { body: start..out.bytes().len(), last: others.is_empty(), hashers });
        rest = others;
    }
    Ok(parts)
}

/// Memory of earlier blocks, for later ones: new memory takes longer than most coding.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) payloads: Vec<Vec<u8>>,
    scratch: Scratch,
}

/// A block to write.
#[derive(Clone, Copy)]
pub(crate) enum Unwritten<'a> {
    Ready(&'a WireBlock<'a>, BlockOptions),
    Later(&'a Later<'a>),
}

impl<'a> From<&'a Pending<'a>> for Unwritten<'a> {
    fn from(block: &'a Pending<'a>) -> Self {
        match block {
            Pending::Made((block, options)) => Self::Ready(block, *options),
            Pending::Later(later) => Self::Later(later),
        }
    }
}

impl Unwritten<'_> {
    fn scope(self) -> Scope {
        match self {
            Self::Ready(block, _) => block.scope,
            Self::Later(later) => later.scope,
        }
    }

    fn adds(self) -> bool {
        matches!(self, Self::Ready(block, _) if block.add)
    }

    fn set(self) -> Option<SetId> {
        match self {
            Self::Ready(block, _) => block.set(),
            Self::Later(_) => None,
        }
    }

    fn is_based(self) -> bool {
        matches!(self, Self::Ready(block, _) if block.is_based())
    }

    fn values_id(self) -> ValuesId {
        match self {
            Self::Ready(block, _) => block.values_id(),
            Self::Later(later) => later.values_id(),
        }
    }

    /// Checks what needs no coding, and returns the block's weight. Pending values are checked when they are
    /// written.
    fn check(self, around: &Surroundings<'_>) -> Result<u64> {
        match self {
            Self::Ready(block, _) => block.check(around),
            Self::Later(later) => Ok(later.weight),
        }
    }
}

/// A block that was checked.
pub(super) struct Weighed<'a> {
    block: Unwritten<'a>,
    pub(super) weight: u64,
}

/// Returns the number of leading blocks that weigh at most `weight` together; at least one, if any.
pub(super) fn first_of_weight(blocks: &[Weighed<'_>], weight: u64) -> usize {
    let mut sum = 0u64;
    let fits = |block: &&Weighed<'_>| {
        let first = sum == 0;
        sum = sum.saturating_add(block.weight).saturating_add(1);
        first || sum <= weight
    };
    blocks.iter().take_while(fits).count()
}

fn check(header: &UpdateHeader, manifest: &Manifest, sets: &Sets, blocks: &[Unwritten<'_>]) -> Result<()> {
    let mut order = BlockOrder::default();
    for block in blocks {
        let scope = block.scope();
        let tensor = scope.first();
        if manifest.space(scope, 0).is_err() {
            return Err(Error::inconsistent("scope outside the manifest").in_tensor(tensor));
        }
        if !order.accept(scope, block.adds()) {
            return Err(Error::inconsistent("blocks out of order or overlapping").in_tensor(tensor));
        }
        if let Some(id) = block.set() {
            let known = sets.get(&id).is_some_and(|s| s.scope == scope && s.manifest == manifest.id().0);
            if !known {
                let head = std::array::from_fn(|i| id.0[i]);
                return Err(Error::input(InputErrorKind::MissingIndexSet { id: head }).in_tensor(tensor));
            }
        }
    }
    let delta = header.delta.as_deref().unwrap_or_default();
    if !delta.is_sorted_by(|a, b| a.last() < b.first) {
        return Err(Error::not_ascending("tensors of a delta"));
    }
    Ok(())
}

fn write_part(
    out: &mut dyn Output,
    header: &UpdateHeader,
    manifest: &Manifest,
    sets: &Sets,
    blocks: &[Weighed<'_>],
    number: u64,
    memory: &mut Vec<Memory>,
) -> Result<Vec<Hasher>> {
    let light: Vec<_> = blocks.iter().filter(|b| b.weight <= LIGHT).collect();
    let mut segments: Vec<(Role, Counts)> = Vec::new();
    if light.len() > 1 {
        let recorded: Vec<Result<Vec<(Role, Counts)>>> = light
            .par_iter()
            .map(|block| {
                let mut record = Vec::new();
                write_block(block, manifest, sets, &[], Some(&mut record), &mut Memory::default())?;
                Ok(record)
            })
            .collect();
        for record in recorded {
            segments.append(&mut record?);
        }
    }
    let tables = shared_tables(&segments);
    let mut head = Vec::new();
    write_head(&mut head, header, manifest.id(), number, touched(header, blocks)?.as_deref());
    put_varint(&mut head, tables.len() as u64);
    tables.iter().for_each(|t| t.write(&mut head));
    put_varint(&mut head, blocks.len() as u64);
    out.append(&head);
    write_blocks(out, manifest, sets, blocks, &tables, memory)
}

/// Returns the entries of the delta for the tensors that the blocks of a part touch.
fn touched(header: &UpdateHeader, blocks: &[Weighed<'_>]) -> Result<Option<Vec<Delta>>> {
    let Some(delta) = &header.delta else {
        let needs_base = blocks.iter().any(|b| b.block.values_id() == ValuesId::ULP || b.block.is_based());
        return match needs_base {
            true => Err(Error::inconsistent("differences from a base without a delta")),
            false => Ok(None),
        };
    };
    let mut entries: Vec<Delta> = Vec::new();
    for Weighed { block, .. } in blocks {
        let scope = block.scope();
        for tensor in scope.first()..scope.first() + scope.tensors() {
            if entries.last().is_some_and(|run| run.contains(tensor)) {
                continue;
            }
            let found = Delta::find(delta, tensor);
            let missing = || Error::inconsistent("tensor missing in the delta").in_tensor(tensor);
            entries.push(*found.ok_or_else(missing)?);
        }
        let last = scope.first() + scope.tensors().saturating_sub(1);
        if block.is_based()
            && !entries.last().is_some_and(|run| run.contains(scope.first()) && run.contains(last))
        {
            return Err(Error::inconsistent("a block classed by the base is in several runs of the delta")
                .in_tensor(last));
        }
    }
    entries.sort_by_key(|d| d.first);
    entries.dedup();
    Ok(Some(entries))
}

/// Writes a block. `record`: receives the counts of its segments.
pub(super) fn write_block(
    &Weighed { block, .. }: &Weighed<'_>,
    manifest: &Manifest,
    sets: &Sets,
    tables: &[Table],
    record: Option<&mut Vec<(Role, Counts)>>,
    memory: &mut Memory,
) -> Result<WrittenBlock> {
    let scope = block.scope();
    let space = manifest.space(scope, 0)?;
    let around = Surroundings { space: &space, manifest: manifest.id().0, scope, sets };
    let options = match block {
        Unwritten::Ready(_, options) => options,
        Unwritten::Later(later) => later.options,
    };
    let mut coder = Coder::new(options.entropy, tables, record);
    coder.scratch = std::mem::take(&mut memory.scratch);
    let payload = memory.payloads.pop().unwrap_or_default();
    let written = match block {
        Unwritten::Ready(block, options) => block.write(&mut coder, options, &around, payload),
        Unwritten::Later(later) => later.write(&mut coder, &around, payload),
    };
    memory.scratch = coder.scratch;
    written.map_err(|e| e.in_tensor(scope.first()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::block::{
        Affine, Based, Block, Constant, Floats, Groups, ScaleFormat, Scales, Set, Sparse, Stored, Support,
        Ulp, Values, Zero,
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
            encoder.update(&mut Vec::new(), &UpdateHeader::default(), manifest, &blocks).map_err(|e| e.name())
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
