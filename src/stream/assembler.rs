use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use crate::block::{Block, Scope, Support, Target, ValuesId};
use crate::error::{Error, InputErrorKind, Result};
use crate::frame::{BlockOrder, Delta, Manifest, UpdateHeader, UpdatePart, tensor_digest};
use crate::limits::{Budget, Limits, MEMORY, check, in_memory};
use crate::tensor::{Dtype, TensorBuf, TensorView};

/// Puts the parts of one update together to dense tensors.
///
/// Elements that the update does not speak of are zero, or the base's if it is a delta. Nothing of the caller's is
/// changed: the tensors are given out by [`Assembler::finish`] only, after everything is decoded and every digest of a
/// delta is right.
///
/// Beside the tensors, assembling takes what two decoded blocks for each thread take: 9 bits for each element of dense
/// powers of two, 32 bytes for each position of a sparse block, and 256 KiB; and the bytes of tensors that are not wanted
/// but of which a block speaks together with wanted ones. One block may take [`Limits::max_alloc_bytes`], and so may those
/// that are decoded at once.
pub struct Assembler<'b> {
    manifest: Arc<Manifest>,
    /// Tensors that are wanted; `None` for those that are not.
    tensors: Vec<Option<Buffer>>,
    touched: Vec<bool>,
    base: BTreeMap<String, TensorView<'b>>,
    delta: BTreeMap<u64, Delta>,
    is_delta: bool,
    /// The first part's header, by which the others are known.
    begun: Option<UpdateHeader>,
    next_part: u64,
    order: BlockOrder,
    complete: bool,
}

/// The elements of a tensor that is being put together.
struct Buffer {
    data: Vec<u8>,
    dtype: Dtype,
    /// Elements before this one are what the update says, or zero; the others are anything.
    ready: u64,
}

impl Buffer {
    /// Makes the elements before `end` ready, but for those from `start` on if the caller overwrites them.
    fn prepare(&mut self, start: u64, end: u64, overwrite: bool) {
        let zeros = self.ready..if overwrite { start } else { end };
        let byte = |element| self.dtype.bytes_for(element).map_or(self.data.len(), in_memory);
        if zeros.start < zeros.end {
            let bytes = byte(zeros.start)..byte(zeros.end).min(self.data.len());
            self.data[bytes].fill(0);
        }
        self.ready = self.ready.max(end);
    }
}

impl<'b> Assembler<'b> {
    /// An assembler of those tensors of `manifest` that `wanted` accepts by name.
    ///
    /// # Errors
    /// [`Error::Limit`] if their bytes exceed [`Limits::max_alloc_bytes`].
    pub fn new(manifest: &Arc<Manifest>, limits: &Limits, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let wanted: Vec<bool> = manifest.tensors().iter().map(|t| wanted(&t.name)).collect();
        let sizes = manifest.tensors().iter().zip(&wanted).filter(|(_, w)| **w).map(|(t, _)| t.bytes());
        let bytes = sizes.fold(0, u64::saturating_add);
        check("max_alloc_bytes", bytes, limits.max_alloc_bytes, 0)?;
        let tensors = manifest.tensors().iter().zip(&wanted);
        Ok(Self {
            // Zeros come from the system lazily: a tensor that nothing is said of costs address space only.
            tensors: tensors
                .map(|(t, &w)| {
                    let data = w.then(|| vec![0; in_memory(t.bytes())])?;
                    Some(Buffer { data, dtype: t.dtype, ready: u64::MAX })
                })
                .collect(),
            touched: vec![false; wanted.len()],
            manifest: Arc::clone(manifest),
            base: BTreeMap::new(),
            delta: BTreeMap::new(),
            is_delta: false,
            begun: None,
            next_part: 0,
            order: BlockOrder::default(),
            complete: false,
        })
    }

    /// An assembler of the tensors that `buffers` are for, by their numbers in `manifest`, in the memory of these: what an
    /// earlier [`Assembler::finish`] gave out, for example. What they hold does not matter.
    ///
    /// This is the fast way to decode update after update: pages that the system has given once are not asked for again,
    /// which costs more than all the rest of decoding a sparse update.
    ///
    /// # Errors
    /// [`Error::Input`] if `manifest` has no such tensor or another type or shape for it.
    pub fn with_buffers(
        manifest: &Arc<Manifest>,
        buffers: impl IntoIterator<Item = (u64, TensorBuf)>,
    ) -> Result<Self> {
        let mut assembler = Self::new(manifest, &Limits::default(), |_| false)?;
        for (number, buffer) in buffers {
            let info = usize::try_from(number).ok().and_then(|n| manifest.tensors().get(n));
            if info.is_none_or(|i| i.dtype != buffer.dtype() || i.shape != buffer.shape()) {
                return Err(
                    Error::input(InputErrorKind::Mismatch { what: "buffer and manifest" }).in_tensor(number)
                );
            }
            let dtype = buffer.dtype();
            let mut buffer = Buffer { data: buffer.into_data(), dtype, ready: 0 };
            if dtype.bits() < 8 {
                // Parts may begin inside a byte.
                buffer.prepare(u64::MAX, u64::MAX, false);
            }
            assembler.tensors[in_memory(number)] = Some(buffer);
        }
        Ok(assembler)
    }

    /// Gives the base of a delta: a tensor by its name.
    ///
    /// # Errors
    /// [`Error::Input`] if the manifest has another type or shape for it; a name that it does not have is ignored.
    pub fn base(&mut self, name: &str, tensor: TensorView<'b>) -> Result<()> {
        let Some(number) = self.manifest.find(name) else { return Ok(()) };
        let info = &self.manifest.tensors()[in_memory(number)];
        if info.dtype != tensor.dtype() || info.shape != tensor.shape() {
            return Err(Error::input(InputErrorKind::Mismatch { what: "shapes or types of base and delta" })
                .in_tensor(number));
        }
        self.base.insert(name.to_owned(), tensor);
        Ok(())
    }

    /// Applies a part. Its blocks are decoded in parallel and applied in order.
    ///
    /// # Errors
    /// Those of [`UpdatePart::decode`]; [`Error::Input`] if the part is of another manifest or not the next of
    /// its update, its base is missing or not the
    /// one that it was made against, or its values need a model.
    pub fn apply(&mut self, part: &UpdatePart<'_>) -> Result<()> {
        if part.manifest.id() != self.manifest.id() {
            return Err(Error::input(InputErrorKind::Mismatch { what: "manifests" }));
        }
        self.follow(part)?;
        if let Some(delta) = &part.header.delta {
            self.take_base(delta)?;
        }
        let wanted: Vec<usize> =
            (0..part.blocks.len()).filter(|&i| self.wants(part.blocks[i].scope)).collect();
        let mut budget = part.budget();
        // A few blocks at a time, so that memory stays bounded by a few blocks.
        for batch in wanted.chunks(rayon::current_num_threads().max(1) * 2) {
            budget = budget.with_memory_renewed();
            let decoded: Vec<Result<Block>> = batch.par_iter().map(|&i| part.decode(i, &budget)).collect();
            for (&i, block) in batch.iter().zip(decoded) {
                let applied = block.and_then(|block| self.apply_block(&block, part, i, &budget));
                let applied = match applied {
                    // What blocks take together depends on the number of threads: what one may take must not.
                    Err(Error::Limit(e)) if e.limit == MEMORY => {
                        let alone = part.budget();
                        part.decode(i, &alone).and_then(|block| self.apply_block(&block, part, i, &alone))
                    }
                    applied => applied,
                };
                applied.map_err(|e| part.place(e, i))?;
            }
        }
        self.complete = part.last;
        Ok(())
    }

    /// Checks that a part is the next of the update that was begun, and that its blocks come after the earlier ones.
    fn follow(&mut self, part: &UpdatePart<'_>) -> Result<()> {
        let begun = self.begun.get_or_insert_with(|| part.header.without_details());
        let follows = !self.complete && part.part == self.next_part && begun.same_update(&part.header);
        if !follows || !part.blocks.iter().all(|b| self.order.accept(b.scope, b.add)) {
            return Err(Error::input(InputErrorKind::Mismatch {
                what: "the part and the update that was begun",
            }));
        }
        self.next_part += 1;
        Ok(())
    }

    fn wants(&self, scope: Scope) -> bool {
        (scope.first()..scope.first() + scope.tensors()).any(|t| self.tensors[in_memory(t)].is_some())
    }

    /// Starts the tensors of a delta from their bases.
    fn take_base(&mut self, delta: &[Delta]) -> Result<()> {
        self.is_delta = true;
        for entry in delta {
            let number = in_memory(entry.tensor);
            let Some(buffer) = self.tensors.get_mut(number).and_then(Option::as_mut) else { continue };
            if let Some(earlier) = self.delta.insert(entry.tensor, *entry) {
                if earlier != *entry {
                    return Err(Error::input(InputErrorKind::BaseMismatch).in_tensor(entry.tensor));
                }
                continue;
            }
            let base = self.base.get(&self.manifest.tensors()[number].name);
            let base = base.ok_or(Error::input(InputErrorKind::MissingBase).in_tensor(entry.tensor))?;
            if tensor_digest(*base) != entry.base {
                return Err(Error::input(InputErrorKind::BaseMismatch).in_tensor(entry.tensor));
            }
            buffer.data.copy_from_slice(base.data());
            buffer.ready = u64::MAX;
        }
        Ok(())
    }

    fn apply_block(
        &mut self,
        block: &Block,
        part: &UpdatePart<'_>,
        number: usize,
        budget: &Budget,
    ) -> Result<()> {
        let raw = &part.blocks[number];
        let first = in_memory(raw.scope.first());
        let start = match raw.scope {
            Scope::Range { start, .. } => start,
            _ => 0,
        };
        self.touched[first..first + raw.space.lens.len()].fill(true);
        // Tensors of the scope that are not wanted are decoded into buffers that are thrown away.
        for (buffer, &len) in self.tensors[first..].iter().zip(&raw.space.lens) {
            if buffer.is_none() {
                budget.reserve_bytes(raw.space.dtype.bytes_for(len).unwrap_or(u64::MAX), raw.offset)?;
            }
        }
        let buffers = &mut self.tensors[first..first + raw.space.lens.len()];
        let overwrites = block.support == Support::All && !block.add && raw.values_id != ValuesId::ULP;
        let ready: Vec<u64> = buffers.iter().flatten().map(|buffer| buffer.ready).collect();
        for (buffer, &len) in buffers.iter_mut().zip(&raw.space.lens) {
            if let Some(buffer) = buffer {
                buffer.prepare(start, start + len, overwrites);
            }
        }
        let mut spare: Vec<Vec<u8>> = buffers
            .iter()
            .zip(&raw.space.lens)
            .filter(|(buffer, _)| buffer.is_none())
            .map(|(_, &len)| vec![0; in_memory(raw.space.dtype.bytes_for(len).unwrap_or(0))])
            .collect();
        let mut spare = spare.iter_mut();
        let mut targets = Vec::with_capacity(raw.space.lens.len());
        for (buffer, &len) in buffers.iter_mut().zip(&raw.space.lens) {
            let data = buffer.as_mut().map(|b| &mut b.data).or_else(|| spare.next());
            let data = data.ok_or(Error::inconsistent("targets of a block"))?;
            targets.push(Target { data, start, len });
        }
        let applied = block.apply(&raw.space, part.sets(), budget, &mut targets);
        if applied.is_err() {
            // Nothing was overwritten then.
            buffers.iter_mut().flatten().zip(ready).for_each(|(buffer, ready)| buffer.ready = ready);
        }
        applied.map_err(|e| e.not_before(raw.offset))
    }

    /// Whether the last part has been applied.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Gives out the tensors: those wanted, with their numbers in the manifest.
    ///
    /// # Errors
    /// [`Error::Input`] if the last part is missing, or if a delta's result is not the one that its sender had.
    pub fn finish(mut self) -> Result<Vec<(u64, TensorBuf)>> {
        if !self.complete {
            return Err(Error::bad_option("the last part of the update is missing"));
        }
        let infos = Arc::clone(&self.manifest);
        let mut out = Vec::new();
        for (number, info) in infos.tensors().iter().enumerate() {
            let Some(mut buffer) = self.tensors[number].take() else { continue };
            buffer.prepare(u64::MAX, u64::MAX, false);
            let (number, mut data) = (number as u64, buffer.data);
            // A delta speaks of what changed: the other tensors are the base's.
            if self.is_delta && !self.delta.contains_key(&number) {
                let base = self.base.get(&info.name);
                data.copy_from_slice(
                    base.ok_or(Error::input(InputErrorKind::MissingBase).in_tensor(number))?.data(),
                );
            }
            let tensor = TensorBuf::new(info.dtype, info.shape.clone(), data)?;
            if let Some(entry) = self.delta.get(&number)
                && tensor_digest(tensor.view()) != entry.result
            {
                return Err(Error::input(InputErrorKind::ResultMismatch).in_tensor(number));
            }
            out.push((number, tensor));
        }
        Ok(out)
    }

    /// Whether any block spoke of a tensor.
    pub fn touches(&self, tensor: u64) -> bool {
        usize::try_from(tensor).ok().and_then(|t| self.touched.get(t)).copied().unwrap_or(false)
    }
}
