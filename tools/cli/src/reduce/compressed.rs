//! The methods `sparse` and `add`: sum the blocks of one turn without expanding them.

use super::turns::{self, SentSets, Update, explained};
use super::{Args, Method};
use crate::fail::{Failure, Result};
use crate::stream::explain;
use gcodec::block::{Block, BlockOptions, PendingBlock, RawBlock, SetId, Sets};
use gcodec::frame::{Manifest, UpdateHeader};
use gcodec::{Writer, reduce};
use rayon::prelude::*;
use std::cell::RefCell;
use std::io::Write;
use std::sync::Arc;

/// Sums one turn and writes its update, block by block: the update has the blocks that each sender's has.
pub(super) fn write<W: Write>(
    args: &Args,
    method: Method,
    updates: &[Update<'_>],
    sent: &SentSets,
    writer: &mut Writer<W>,
) -> Result<()> {
    let turn = Aligned::new(args, updates)?;
    let manifest = &turn.manifest;
    let named = |e| explain(e, Some(manifest));
    for id in &turn.set_ids {
        let set = sent.get(id).ok_or_else(|| Failure::invalid("an index set of the sum is missing"))?;
        writer.index_set(&set.0, manifest, BlockOptions::default()).map_err(named)?;
    }
    // Has the input of an error, which an error of the library cannot have.
    let failed = RefCell::new(None);
    let blocks = (0..turn.blocks()).map(|at| {
        turn.sum(method, at).map(PendingBlock::from).map_err(|(number, e)| {
            *failed.borrow_mut() = number;
            e
        })
    });
    writer.update(&turn.header, manifest, blocks).map_err(|e| match failed.take() {
        Some(number) => named(e).in_file(turn.order[number].path(args)),
        None => named(e),
    })
}

/// Updates whose blocks are summed one by one.
struct Aligned<'u, 'a> {
    /// By their senders.
    order: Vec<&'u Update<'a>>,
    manifest: Arc<Manifest>,
    /// Header of the sum.
    header: UpdateHeader,
    /// The index sets that blocks refer to, in the order of the blocks.
    set_ids: Vec<SetId>,
    sets: Sets,
}

impl<'u, 'a> Aligned<'u, 'a> {
    fn new(args: &Args, updates: &'u [Update<'a>]) -> Result<Self> {
        let mut order: Vec<&Update<'_>> = updates.iter().collect();
        order.sort_by_key(|update| update.header().sender);
        let manifest = Arc::clone(turns::check_manifests(args, updates)?);
        let blocks = |update: &Update<'_>| update.parts.iter().map(|part| part.blocks.len()).sum::<usize>();
        let header = reduce::header(order.iter().map(|update| update.header()), false);
        let header = header.map_err(|e| explained(args, e, &manifest))?;
        if let Some(update) = order.iter().find(|update| blocks(update) != blocks(order[0])) {
            let why = "its number of blocks differs from the first: use the method dense";
            return Err(Failure::usage(why).in_file(update.path(args)));
        }
        let (mut set_ids, mut sets) = (Vec::new(), Sets::new());
        for part in order.iter().flat_map(|update| &update.parts) {
            for id in part.blocks.iter().filter_map(RawBlock::set) {
                // A set that is missing is reported when its block is decoded.
                if let Some(set) = part.sets().get(&id)
                    && sets.insert(id, Arc::clone(set)).is_none()
                {
                    set_ids.push(id);
                }
            }
        }
        Ok(Self { order, manifest, header, set_ids, sets })
    }

    /// Number of blocks of each update.
    fn blocks(&self) -> usize {
        self.order[0].parts.iter().map(|part| part.blocks.len()).sum()
    }

    /// Returns the sum of one block of each update. An error has its update, if it is in one.
    fn sum(&self, method: Method, at: usize) -> Result<Block, (Option<usize>, gcodec::Error)> {
        let decoded = self
            .order
            .par_iter()
            .enumerate()
            .map(|(number, update)| decode(update, at).map_err(|e| (Some(number), e)));
        let blocks = decoded.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>, _>>()?;
        let sum = || {
            let space = self.manifest.space(blocks[0].scope, 0)?;
            match method {
                Method::Sparse => reduce::merge(&blocks.iter().collect::<Vec<_>>(), &space),
                _ => {
                    let first = blocks[0].clone();
                    blocks[1..]
                        .iter()
                        .try_fold(first, |sum, block| reduce::add(&sum, block, &space, &self.sets))
                }
            }
        };
        sum().map_err(|e| (None, e))
    }
}

/// Decodes a block of an update, by its number in all parts.
fn decode(update: &Update<'_>, mut number: usize) -> gcodec::Result<Block> {
    for part in &update.parts {
        match number.checked_sub(part.blocks.len()) {
            None => return part.decode(number, &part.budget()),
            Some(after) => number = after,
        }
    }
    unreachable!("the number of blocks was checked")
}
