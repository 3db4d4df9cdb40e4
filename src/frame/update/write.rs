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
