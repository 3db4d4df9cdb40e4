//! Error feedback: the values that are sent are subtracted from the sums, which become the residuals.

use gcodec::internal::device::{Found, Sent};

use super::Selector;
use super::collect::{Run, Selected};
use super::plan::Plan;
use crate::abi::{Subtract, THREADS, Taken, bytes_of};
use crate::device::Kernel;
use crate::error::Result;
use crate::memory::Event;
use crate::tensor::Stream;

impl Selector {
    /// Subtracts what is sent, and records the end of this work in `last`. The host does not wait for it.
    #[expect(unsafe_code, reason = "writes pinned memory that the device reads, and launches a kernel")]
    pub(crate) fn subtract(
        &mut self,
        plan: &Plan,
        selected: &Selected,
        sent: &[Sent],
        last: &mut Event,
        stream: Stream,
    ) -> Result<()> {
        let (mut taken, upload) = self.taken(plan, selected, sent);
        if taken.is_empty() {
            return last.record(stream);
        }
        let table = (taken.len() * size_of::<Taken>()) as u64;
        let bytes = table + upload.iter().map(|(_, values)| 4 * values.len() as u64).sum::<u64>();
        self.sent.grow(bytes)?;
        self.up.grow(bytes)?;
        let mut at = table;
        for (item, values) in upload {
            // The kernel adds `first` to the index of a value, as it does to that of a position.
            taken[item].values = (self.sent.address() + at).wrapping_sub(4 * taken[item].first);
            let floats: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            // SAFETY: the stream was waited for since the last copy from it.
            unsafe { self.up.write(at, &floats) };
            at += floats.len() as u64;
        }
        // SAFETY: as above.
        unsafe { self.up.write(0, bytes_of(&taken)) };
        self.sent.copy_from(0, &self.up, bytes, stream)?;
        let most = taken.iter().map(|t| t.len).max().unwrap_or(1);
        let blocks = most.div_ceil(4 * u64::from(THREADS)).min(u64::from(4 * self.device.multiprocessors()));
        let arguments = Subtract { taken: self.sent.address(), places: self.out.address() };
        let grid = (blocks as u32, taken.len() as u32);
        // SAFETY: the context is current; places are those of kept elements, which lie in the sums that
        // `after` points to.
        unsafe { self.device.launch(Kernel::Subtract, grid, stream, &arguments)? };
        last.record(stream)
    }

    /// Returns what is subtracted from each piece, and the values that have to be copied to the device for
    /// it: each with the index of its piece in the first list.
    fn taken<'a>(
        &self,
        plan: &Plan,
        selected: &Selected,
        sent: &'a [Sent],
    ) -> (Vec<Taken>, Vec<(usize, &'a [f32])>) {
        let kept_values = self.out.address() + 4 * selected.total;
        let (mut taken, mut upload) = (Vec::new(), Vec::new());
        // Values of each input that belong to earlier pieces.
        let mut done = vec![0; sent.len()];
        for Run { piece, kept } in selected.runs.iter().filter(|run| !run.kept.is_empty()) {
            let input = plan.places[*piece].input;
            let range = done[input]..done[input] + kept.len();
            done[input] = range.end;
            let mut item = Taken {
                after: plan.pieces[*piece].after,
                first: kept.start as u64,
                len: kept.len() as u64,
                ..Taken::default()
            };
            match (&selected.found[input], &sent[input]) {
                (_, Sent::All(value)) => item.value = *value,
                (Found::Elements(own), Sent::Each(sent)) => {
                    let (own, sent) = (&own.values[range.clone()], &sent[range]);
                    if own.iter().zip(sent).all(|(a, b)| a.to_bits() == b.to_bits()) {
                        // Sent unchanged: the device has these values.
                        item.values = kept_values;
                    } else if sent.iter().all(|x| x.to_bits() == sent[0].to_bits()) {
                        item.value = sent[0];
                    } else {
                        upload.push((taken.len(), sent));
                    }
                }
                (Found::Side { .. }, Sent::Each(sent)) => upload.push((taken.len(), &sent[range])),
            }
            taken.push(item);
        }
        (taken, upload)
    }
}
