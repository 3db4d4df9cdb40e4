//! One tensor of a version, without the others.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use gcodec::file;

use crate::Store;
use crate::error::{Error, Result};
use crate::layout::Object;
use crate::plan::plan;
use crate::scratch::Scratch;
use crate::tensor::Tensor;
use crate::weights::{Model, Staging};

/// Bytes that are read first: the end of a stream, and mostly its index.
const FIRST: u64 = 16 << 10;
/// Bytes that are read at a time into a temporary file.
const AT_ONCE: u64 = 16 << 20;

impl Store {
    /// Downloads one tensor of a version: of the anchor, only its own blocks, by the stream's index. `None`:
    /// the latest version. Between a version that added or dropped tensors and the next anchor, the whole
    /// version is downloaded.
    ///
    /// The blocks are checked by their CRC-32, and by the digests of the deltas that touch the tensor; not by
    /// the digest of the whole version.
    ///
    /// # Errors
    /// [`Error::Input`] if the version has no such tensor; otherwise as [`Store::stage`].
    pub fn tensor(&self, version: Option<u64>, name: &str) -> Result<Tensor> {
        let target = self.target(None, version)?;
        let plan = plan(&self.remote, None, target, &HashSet::new())?;
        let model = self.model(&plan.record.model)?;
        let tensor = model.find(name);
        let tensor =
            tensor.ok_or_else(|| Error::input(format!("version {target} has no tensor {name:?}")))?;
        if !plan.has_one_table() {
            let mut whole = self.pull(None, Some(target))?;
            return Ok(whole.tensors.swap_remove(tensor));
        }
        let group = model.group_of(tensor) as u64;
        let of_group = |objects: &[Object]| objects.iter().find(|object| object.group == group).cloned();
        let (anchors, deltas): (Vec<_>, Vec<_>) = plan.steps.iter().partition(|step| !step.is_delta());
        let anchor = anchors.first().and_then(|step| of_group(&step.objects));
        let anchor = anchor.ok_or(Error::Unreachable { version: target })?;
        let deltas: Vec<Object> = deltas.iter().filter_map(|step| of_group(&step.objects)).collect();
        let streams = self.remote.fetch(&deltas.iter().collect::<Vec<_>>())?;
        let needed = self.needed(&model, tensor, &deltas, &streams)?;
        let start = model.groups[group as usize].start;
        let numbers: Vec<u64> = needed.iter().map(|n| (n - start) as u64).collect();
        let sparse = self.sparse(&anchor, &numbers)?;
        let mut staging = Staging::new(Arc::clone(&model));
        let options = &self.remote.options;
        staging.apply(&anchor, &sparse, false, Some(&needed), options)?;
        for (object, bytes) in deltas.iter().zip(&streams) {
            staging.apply(object, bytes, true, Some(&needed), options)?;
        }
        let found = staging.tensors[tensor].take();
        let found = found.ok_or_else(|| Error::corrupt(&anchor.path, "the anchor lacks the tensor"))?;
        Ok(found)
    }

    /// Returns a tensor and those that share a digest with it in any of the deltas, directly or not.
    fn needed(
        &self,
        model: &Model,
        tensor: usize,
        deltas: &[Object],
        streams: &[Bytes],
    ) -> Result<HashSet<usize>> {
        let start = model.groups[model.group_of(tensor)].start;
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (object, bytes) in deltas.iter().zip(streams) {
            let stream = |source| Error::Stream { path: object.path.clone(), source };
            let opened = file::File::open(bytes, self.remote.options.limits.clone()).map_err(stream)?;
            let of_updates = opened.updates().iter().flat_map(|update| update.header.runs());
            runs.extend(of_updates.map(|(first, last)| start + first as usize..start + last as usize + 1));
        }
        let mut needed = HashSet::from([tensor]);
        loop {
            let before = needed.len();
            for run in &runs {
                if run.clone().any(|n| needed.contains(&n)) {
                    needed.extend(run.clone());
                }
            }
            if needed.len() == before {
                return Ok(needed);
            }
        }
    }

    /// Downloads what decoding some tensors of an anchor needs, to its place in as many zeros as the anchor
    /// has bytes. They take no room until they are written.
    fn sparse(&self, object: &Object, tensors: &[u64]) -> Result<Bytes> {
        let stream = |source| Error::Stream { path: object.path.clone(), source };
        let (limit, found) = (self.remote.options.limits.max_frame_bytes.saturating_mul(4), object.size);
        if found > limit {
            return Err(Error::Limit { path: object.path.clone(), what: "size of an object", found, limit });
        }
        if let Some(bytes) = self.remote.in_folder(object) {
            return Ok(bytes);
        }
        let mut bytes = Scratch::zeros(self.remote.options.scratch.as_deref(), object.size)?;
        let fill = |bytes: &mut Scratch, ranges: &[Range<u64>]| {
            let mut read = ranges.iter().zip(self.remote.ranges(object, ranges)?);
            read.try_for_each(|(range, part)| bytes.put_at(range.start, &part))
        };
        let tail = object.size.saturating_sub(FIRST);
        fill(&mut bytes, std::slice::from_ref(&(tail..object.size)))?;
        let index = bytes.with(file::index_start)?.map_err(stream)?;
        if index < tail {
            fill(&mut bytes, std::slice::from_ref(&(index..tail)))?;
        }
        let ranges = bytes.with(|bytes| file::ranges(bytes, tensors))?.map_err(stream)?;
        // What the tail has is not read again.
        let missing: Vec<Range<u64>> =
            ranges.into_iter().map(|r| r.start..r.end.min(tail)).filter(|r| r.start < r.end).collect();
        let cut = |range: Range<u64>| {
            let starts = range.clone().step_by(AT_ONCE as usize);
            starts.map(move |start| start..range.end.min(start + AT_ONCE))
        };
        match self.remote.options.scratch {
            None => fill(&mut bytes, &missing)?,
            Some(_) => missing.into_iter().flat_map(cut).try_for_each(|range| fill(&mut bytes, &[range]))?,
        }
        bytes.finish()
    }
}
