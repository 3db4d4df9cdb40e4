//! Writing an update: in parts of bounded size, blocks in parallel.

use rayon::prelude::*;

use crate::bits::put_varint;
use crate::block::space::Surroundings;
use crate::block::{Block, BlockOptions, Sets};
use crate::codes::{Coder, Counts, Role, Table};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::update::{BlockOrder, tables::shared_tables, write_head};
use crate::frame::{Delta, Manifest, UpdateHeader};

/// A block that weighs more than this has tables of its own: it is too long to gain from shared ones.
const LIGHT: u64 = 1 << 14;

/// A part's body and whether it is the last.
pub(crate) struct Part {
    pub(crate) body: Vec<u8>,
    pub(crate) last: bool,
}

/// Writes the parts of an update one after the other to `sink`; each holds blocks of about `part_bytes` before coding, and
/// at least one block.
///
/// # Errors
/// [`Error::Input`] if a block does not fit the manifest, is out of order, or is missing in the delta; those of `sink`.
pub(crate) fn write_parts(
    header: &UpdateHeader,
    manifest: &Manifest,
    sets: &Sets,
    blocks: &[(&Block, BlockOptions)],
    part_bytes: u64,
    mut sink: impl FnMut(Part) -> Result<()>,
) -> Result<()> {
    check(header, manifest, sets, blocks)?;
    let mut rest = blocks;
    for number in 0.. {
        let mut weight = 0u64;
        let fits = |(block, _): &&(&Block, BlockOptions)| {
            let first = weight == 0;
            weight = weight.saturating_add(block.weight()).saturating_add(1);
            first || weight <= part_bytes
        };
        let (part, others) = rest.split_at(rest.iter().take_while(fits).count());
        let last = others.is_empty();
        sink(Part { body: write_part(header, manifest, sets, part, number)?, last })?;
        if last {
            return Ok(());
        }
        rest = others;
    }
    Ok(())
}

fn check(
    header: &UpdateHeader,
    manifest: &Manifest,
    sets: &Sets,
    blocks: &[(&Block, BlockOptions)],
) -> Result<()> {
    let mut order = BlockOrder::default();
    for (block, _) in blocks {
        let tensor = block.scope.first();
        if manifest.space(block.scope, 0).is_err() {
            return Err(Error::inconsistent("scope outside the manifest").in_tensor(tensor));
        }
        if !order.accept(block.scope, block.add) {
            return Err(Error::inconsistent("blocks out of order or overlapping").in_tensor(tensor));
        }
        if let crate::block::Support::Set(id) = &block.support {
            let known = sets.get(id).is_some_and(|s| s.scope == block.scope && s.manifest == manifest.id().0);
            if !known {
                let head = std::array::from_fn(|i| id.0[i]);
                return Err(Error::input(InputErrorKind::MissingIndexSet { id: head }).in_tensor(tensor));
            }
        }
    }
    let delta = header.delta.as_deref().unwrap_or_default();
    if !delta.is_sorted_by(|a, b| a.tensor < b.tensor) {
        return Err(Error::bad_option("tensors of a delta must ascend"));
    }
    Ok(())
}

fn write_part(
    header: &UpdateHeader,
    manifest: &Manifest,
    sets: &Sets,
    blocks: &[(&Block, BlockOptions)],
    number: u64,
) -> Result<Vec<u8>> {
    let light: Vec<_> = blocks.iter().filter(|(block, _)| block.weight() <= LIGHT).collect();
    let mut segments: Vec<(Role, Counts)> = Vec::new();
    if light.len() > 1 {
        let recorded: Vec<Result<Vec<(Role, Counts)>>> = light
            .par_iter()
            .map(|(block, options)| {
                let mut record = Vec::new();
                write_block(block, *options, manifest, sets, &[], Some(&mut record))?;
                Ok(record)
            })
            .collect();
        for record in recorded {
            segments.append(&mut record?);
        }
    }
    let tables = shared_tables(&segments);
    let written: Vec<Result<Vec<u8>>> = blocks
        .par_iter()
        .map(|(block, options)| {
            let tables = if block.weight() <= LIGHT { tables.as_slice() } else { &[] };
            write_block(block, *options, manifest, sets, tables, None)
        })
        .collect();
    let mut body = Vec::new();
    write_head(&mut body, header, manifest.id(), number, touched(header, blocks)?.as_deref());
    put_varint(&mut body, tables.len() as u64);
    tables.iter().for_each(|t| t.write(&mut body));
    put_varint(&mut body, blocks.len() as u64);
    for block in written {
        body.append(&mut block?);
    }
    Ok(body)
}

/// The entries of the delta that the blocks of a part touch.
fn touched(header: &UpdateHeader, blocks: &[(&Block, BlockOptions)]) -> Result<Option<Vec<Delta>>> {
    let Some(delta) = &header.delta else {
        let ulp = blocks.iter().any(|(b, _)| matches!(b.values, crate::block::Values::Ulp { .. }));
        return if ulp {
            Err(Error::inconsistent("differences to a base without a delta"))
        } else {
            Ok(None)
        };
    };
    let mut entries = Vec::new();
    for (block, _) in blocks {
        for tensor in block.scope.first()..block.scope.first() + block.scope.tensors() {
            let found = delta.binary_search_by_key(&tensor, |d| d.tensor);
            let found =
                found.map_err(|_| Error::inconsistent("tensor missing in the delta").in_tensor(tensor))?;
            entries.push(delta[found]);
        }
    }
    entries.sort_by_key(|d| d.tensor);
    entries.dedup();
    Ok(Some(entries))
}

fn write_block(
    block: &Block,
    options: BlockOptions,
    manifest: &Manifest,
    sets: &Sets,
    tables: &[Table],
    record: Option<&mut Vec<(Role, Counts)>>,
) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let space = manifest.space(block.scope, 0)?;
    let around = Surroundings { space: &space, manifest: manifest.id().0, scope: block.scope, sets };
    let mut coder = Coder { entropy: options.entropy, tables, record };
    block.write(&mut out, &mut coder, options, &around).map_err(|e| e.in_tensor(block.scope.first()))?;
    Ok(out)
}
