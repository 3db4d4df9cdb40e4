//! The faults of a stream, and what is whole in spite of them.

use crate::fail::{Code, Failure};
use crate::learned;
use crate::stream::{Names, explain};
use gcodec::frame::{FrameKind, Index, IndexedUpdate, UpdatePart};
use gcodec::internal::{HEADER_LEN, PREAMBLE_LEN};
use gcodec::stream::{Body, DamagedFrame, Event, Fault};
use gcodec_latent::Error;
use serde::Serialize;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

/// Most bytes of damaged frames that are kept until the index tells which of their blocks are damaged.
const MAX_KEPT: usize = 64 << 20;

/// Most such frames.
const MAX_PENDING: usize = 256;

/// A fault of a stream.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FaultReport {
    /// Offset of the first byte that cannot be read.
    pub(crate) offset: u64,
    /// Number of bytes that cannot be read.
    pub(crate) bytes: u64,
    /// Number of the frame, if it is known.
    pub(crate) frame: Option<u64>,
    /// Number of the block in its frame, if it is known.
    pub(crate) block: Option<u64>,
    /// First tensor of the block.
    pub(crate) tensor: Option<String>,
    /// Step and sender of the update that is lost, if the index has them.
    pub(crate) step: Option<u64>,
    pub(crate) sender: Option<u64>,
    /// Message and place of the fault.
    pub(crate) error: String,
    #[serde(skip)]
    code: Code,
}

/// An update's step and sender.
pub(crate) type Key = (u64, u64);

/// A damaged frame whose blocks the index can tell apart.
struct Pending {
    fault: usize,
    offset: u64,
    body: Vec<u8>,
}

/// Collects the faults of a stream.
#[derive(Default)]
pub(crate) struct Damage {
    faults: Vec<FaultReport>,
    names: Names,
    pending: Vec<Pending>,
    kept: usize,
    /// Updates that were read to their end, in order.
    whole: Vec<Key>,
    /// The update whose last part has not come, and whether all its blocks decode.
    open: Option<(Key, bool)>,
    lost: BTreeSet<Key>,
}

impl Damage {
    /// Returns the faults, in the order of the stream.
    pub(crate) fn faults(&self) -> &[FaultReport] {
        &self.faults
    }

    /// Returns the updates that are known to be lost, as far as the stream says.
    pub(crate) fn lost(&self) -> Vec<Key> {
        let whole: HashSet<Key> = self.whole.iter().copied().collect();
        self.lost.iter().copied().filter(|key| !whole.contains(key)).collect()
    }

    /// Returns the first fault as a failure; the others are only counted in it.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let first = self.faults.first()?;
        let more = match self.faults.len() {
            1 => String::new(),
            n => format!("; {} more fault{}", n - 1, if n == 2 { "" } else { "s" }),
        };
        Some(Failure::new(first.code, format_args!("{}{more}", first.error)))
    }

    /// Records an event. `sound` is whether the blocks of an update decode.
    pub(crate) fn see(&mut self, event: &Event<'_>, sound: bool) {
        self.names.see(event);
        match event {
            Event::Frame(_, Body::Update(part)) => self.see_part(part, sound),
            Event::Frame(_, Body::Index(index)) => self.locate(index),
            _ => {}
        }
    }

    fn see_part(&mut self, part: &UpdatePart<'_>, sound: bool) {
        let key = (part.header.step, part.header.sender);
        if part.part == 0 {
            self.drop_open();
        }
        let sound = sound && self.open.take().is_none_or(|(_, before)| before);
        match (part.last, sound) {
            (true, true) => self.whole.push(key),
            (true, false) => _ = self.lost.insert(key),
            (false, _) => self.open = Some((key, sound)),
        }
    }

    /// Gives up the update whose last part has not come.
    pub(crate) fn drop_open(&mut self) {
        if let Some((key, _)) = self.open.take() {
            self.lost.insert(key);
        }
    }

    /// Records that a block does not decode, number `index` of those that were read.
    pub(crate) fn see_block(&mut self, error: Error, index: usize, part: &UpdatePart<'_>, frame: u64) {
        let error = match error {
            Error::Gcodec(error) => error,
            // The hash of the model is right, so the codes are wrong.
            Error::Input(what) => return self.see_codes(Failure::invalid(what), index, part, frame),
            error => return self.see_codes(learned::failure(error), index, part, frame),
        };
        let at = error.location();
        let input = if let gcodec::Error::Input(e) = &error { e.tensor } else { None };
        let tensor = at.and_then(|at| at.tensor).or(input);
        let info = tensor.and_then(|t| part.manifest.tensors().get(usize::try_from(t).ok()?));
        let block = at.and_then(|at| at.block);
        let raw = part.blocks.get(index).filter(|_| block.is_some());
        let mut failure = explain(error, Some(&part.manifest));
        if !failure.message.contains("frame ") {
            failure = failure.about(format_args!("frame {frame}"));
        }
        self.faults.push(FaultReport {
            offset: raw.map_or_else(|| at.map_or(0, |at| at.offset), |raw| raw.offset),
            bytes: raw.map_or(0, |raw| raw.len),
            frame: Some(frame),
            block,
            tensor: info.map(|info| info.name.clone()),
            step: Some(part.header.step),
            sender: Some(part.header.sender),
            error: failure.message,
            code: failure.code,
        });
    }

    /// Records that a model does not decode the codes of a block, number `index` of those that were read.
    fn see_codes(&mut self, failure: Failure, index: usize, part: &UpdatePart<'_>, frame: u64) {
        let (raw, number) = (part.blocks.get(index), part.number_of(index));
        let info = raw.and_then(|raw| part.manifest.tensors().get(usize::try_from(raw.scope.first()).ok()?));
        let tensor = info.map(|info| info.name.clone());
        let place = format!("frame {frame}, block {number}, tensor {:?}", tensor.as_deref().unwrap_or("?"));
        let failure = failure.about(place);
        self.faults.push(FaultReport {
            offset: raw.map_or(0, |raw| raw.offset),
            bytes: raw.map_or(0, |raw| raw.len),
            frame: Some(frame),
            block: Some(number),
            tensor,
            step: Some(part.header.step),
            sender: Some(part.header.sender),
            error: failure.message,
            code: failure.code,
        });
    }

    /// Records bytes that cannot be read.
    pub(crate) fn see_fault(&mut self, fault: Fault<'_>) {
        let failure = self.names.explain(fault.error);
        if let Some(DamagedFrame { header, body, .. }) = fault.frame
            && header.kind == FrameKind::UPDATE
        {
            self.drop_open();
            let fits = self.kept + body.len() <= MAX_KEPT && self.pending.len() < MAX_PENDING;
            if !body.is_empty() && fits {
                self.kept += body.len();
                let (offset, body) = (fault.offset, body.to_vec());
                self.pending.push(Pending { fault: self.faults.len(), offset, body });
            }
        }
        self.faults.push(FaultReport {
            offset: fault.offset,
            bytes: fault.len,
            frame: fault.frame.map(|frame| frame.number),
            block: None,
            tensor: None,
            step: None,
            sender: None,
            error: failure.message,
            code: failure.code,
        });
    }

    /// Finds the updates and blocks that faults hide, by the index behind them.
    fn locate(&mut self, index: &Index) {
        let unknown: Vec<usize> = (0..self.faults.len()).filter(|&i| self.faults[i].step.is_none()).collect();
        let mut updates = index.updates.iter();
        let mut offset = PREAMBLE_LEN as u64;
        let mut found = Vec::new();
        for (number, frame) in (0..).zip(&index.frames) {
            let range = offset..offset.saturating_add(frame.len);
            offset = range.end;
            let update = if frame.kind == FrameKind::UPDATE { updates.next() } else { None };
            if let Some(update) = update
                && self.name_update(&unknown, number, &range, update)
            {
                found.push((number, range, update));
            }
        }
        // From the last fault to the first, since a frame's fault becomes one for each damaged block.
        for (number, range, update) in found.into_iter().rev() {
            self.locate_blocks(number, range.start, update);
        }
        self.pending.clear();
        self.kept = 0;
    }

    /// Adds step and sender to the faults in an update's frame; returns whether there are any.
    fn name_update(
        &mut self,
        unknown: &[usize],
        number: u64,
        range: &Range<u64>,
        update: &IndexedUpdate,
    ) -> bool {
        let end = |i: usize| self.faults[i].offset + self.faults[i].bytes;
        let first = unknown.partition_point(|&i| end(i) <= range.start);
        let mut hit = false;
        for &i in &unknown[first..] {
            let fault = &mut self.faults[i];
            if fault.offset >= range.end {
                break;
            }
            if fault.bytes > 0 && fault.step.is_none() {
                fault.frame.get_or_insert(number);
                (fault.step, fault.sender) = (Some(update.step), Some(update.sender));
            }
            hit |= fault.bytes > 0;
        }
        if hit {
            self.lost.insert((update.step, update.sender));
        }
        hit
    }

    /// Replaces the fault of a frame by those of its damaged blocks.
    fn locate_blocks(&mut self, number: u64, start: u64, update: &IndexedUpdate) {
        let Some(at) = self.pending.iter().position(|p| p.offset == start) else { return };
        let pending = self.pending.swap_remove(at);
        let manifest = self.names.manifest();
        let mut places = Vec::new();
        let old = &self.faults[pending.fault];
        for block in update.damage(&pending.body).into_iter().flatten() {
            let Some(indexed) = usize::try_from(block).ok().and_then(|b| update.blocks.get(b)) else {
                continue;
            };
            let info = manifest.and_then(|m| m.tensors().get(usize::try_from(indexed.first).ok()?));
            let offset = pending.offset + HEADER_LEN as u64 + update.block_offset(block);
            let name = info.map_or(String::new(), |info| format!(" {:?}", info.name));
            let more = match indexed.tensors {
                0 | 1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            let name = format!("tensor {}{name}{more}", indexed.first);
            places.push(FaultReport {
                offset,
                bytes: indexed.len,
                block: Some(block),
                tensor: info.map(|info| info.name.clone()),
                error: format!(
                    "wrong checksum of block {block} of {} at byte {offset:#x}, frame {number}, {name}",
                    update.blocks.len()
                ) + ADVICE,
                ..old.clone()
            });
        }
        if !places.is_empty() {
            self.faults.splice(pending.fault..=pending.fault, places);
        }
    }

    /// Says which updates are whole and which are lost: `steps 0, 2, 3 are whole; step 1 lost`.
    pub(crate) fn summary(&self) -> String {
        let lost = self.lost();
        let senders: BTreeSet<u64> = self.whole.iter().chain(&lost).map(|key| key.1).collect();
        let whole = match self.whole.len() {
            0 => "no update is whole".to_owned(),
            _ => format!("{} whole", steps(&self.whole, senders.len() > 1, true)),
        };
        match lost.len() {
            0 => whole,
            _ => format!("{whole}; {} lost", steps(&lost, senders.len() > 1, false)),
        }
    }
}

/// Advice of faults that the index locates, as [`explain`] gives it for others.
const ADVICE: &str = "; `gcodec recover` saves what is whole";
/// Most ranges of steps that a line lists.
const MAX_RANGES: usize = 8;

/// Lists steps: `steps 0, 2..5 are`; with senders if there are several.
fn steps(keys: &[Key], with_senders: bool, verb: bool) -> String {
    let verb = match (verb, keys.len()) {
        (false, _) => "",
        (true, 1) => " is",
        (true, _) => " are",
    };
    let mut shown: Vec<String> = if with_senders {
        keys.iter().map(|(step, sender)| format!("{step} of sender {sender}")).collect()
    } else {
        let mut numbers: Vec<u64> = keys.iter().map(|key| key.0).collect();
        numbers.dedup();
        let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
        let run = |run: &[u64]| match run {
            [one] => one.to_string(),
            [first, second] => format!("{first}, {second}"),
            [first, .., last] => format!("{first}..{last}"),
            [] => String::new(),
        };
        runs.map(run).collect()
    };
    if shown.len() > MAX_RANGES {
        let more = shown.len() - MAX_RANGES;
        shown.truncate(MAX_RANGES);
        shown.push(format!("and {more} more"));
    }
    format!("step{} {}{verb}", if keys.len() == 1 { "" } else { "s" }, shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_listed_in_runs() {
        let keys = |steps: &[u64]| steps.iter().map(|s| (*s, 0)).collect::<Vec<_>>();
        assert_eq!(steps(&keys(&[0, 2, 3, 4, 9]), false, true), "steps 0, 2..4, 9 are");
        assert_eq!(steps(&keys(&[7]), false, true), "step 7 is");
        assert_eq!(steps(&[(1, 0), (1, 3)], true, false), "steps 1 of sender 0, 1 of sender 3");
        let many: Vec<u64> = (0..40).map(|i| i * 3).collect();
        assert!(steps(&keys(&many), false, false).ends_with("21, and 32 more"));
    }
}
