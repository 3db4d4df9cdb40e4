//! The kernels of an update's searches, in their order, and the copies between them.

use std::ops::Range;

use super::Selector;
use super::collect::{Download, Payload, Selected, Sizes};
use super::plan::{Layout, Plan};
use crate::abi::action::SUM_SIDES;
use crate::abi::{Pack, Select, THREADS, TILE_LEN, bytes_of, items_of};
use crate::device::Kernel;
use crate::error::Result;
use crate::rice::{Layout as CodingLayout, Tables};
use crate::tensor::Stream;

/// Lowest bit and width of each digit of a key, the highest digit first.
const DIGITS: [(u32, u32); 3] = [(20, 11), (10, 10), (0, 10)];

impl Selector {
    /// Runs all searches and returns what they keep. The context is current, and no copy from `up` is under
    /// way.
    pub(crate) fn select(&mut self, plan: &mut Plan, stream: Stream) -> Result<Selected> {
        let mut selected = Selected::new(plan);
        if plan.searches.is_empty() {
            return Ok(selected);
        }
        let (layout, mut select) = plan.layout();
        self.upload(plan, &layout, &mut select, stream)?;
        self.search(plan, &layout, &mut select, stream)?;
        let sizes = self.download_sizes(plan, &layout, stream)?;
        selected.total = sizes.totals.iter().sum();
        if selected.total == 0 {
            selected.take(plan, &sizes, &Download::default());
            return Ok(selected);
        }
        self.emit(plan, &layout, select, &sizes, &mut selected, stream)?;
        Ok(selected)
    }

    /// Copies the tables to the device, and turns the offsets in `select` into addresses.
    #[expect(unsafe_code, reason = "writes pinned memory that the device reads")]
    fn upload(&mut self, plan: &Plan, layout: &Layout, select: &mut Select, stream: Stream) -> Result<()> {
        self.work.grow(layout.bytes)?;
        self.up.grow(layout.table.end)?;
        self.down.grow(len(&layout.sizes).max(len(&layout.sums)))?;
        // SAFETY: the caller waited for every copy from it.
        unsafe {
            self.up.write(0, bytes_of(&plan.pieces));
            self.up.write(select.searches, bytes_of(&plan.searches));
            self.up.write(select.directives, bytes_of(&plan.directives()));
            self.up.write(layout.rows, bytes_of(&plan.coding.rows));
            self.up.write(layout.segments, bytes_of(&plan.coding.segments));
        }
        select.place(self.work.address());
        self.work.copy_from(0, &self.up, layout.table.end, stream)?;
        self.work.fill(layout.zeros.start, 0, len(&layout.zeros), stream)?;
        if self.zeros_before > 0 {
            select.first_tile = (self.zeros_before / TILE_LEN) as u32;
            self.work.fill(layout.tiles.start, 0, len(&layout.tiles), stream)?;
        }
        Ok(())
    }

    /// Launches everything up to the places of kept elements.
    #[expect(unsafe_code, reason = "launches kernels")]
    fn search(
        &mut self,
        plan: &mut Plan,
        layout: &Layout,
        select: &mut Select,
        stream: Stream,
    ) -> Result<()> {
        let (multiprocessors, n) = (self.device.multiprocessors(), plan.searches.len() as u32);
        // SAFETY: the context is current; `select` points into `work`, which is as large as its layout, and
        // into borrowed tensors.
        unsafe { self.device.launch(Kernel::Sample, (n, 1), stream, select)? };
        self.fit_samples(plan, layout, select, stream)?;
        let blocks = (plan.tiles() as u32).min(8 * multiprocessors);
        // SAFETY: as above.
        unsafe { self.device.launch(Kernel::Collect, (blocks, 1), stream, select)? };
        self.fit_candidates(plan, layout, *select, stream)?;
        if plan.counts_digits() {
            for (shift, width) in DIGITS {
                (select.shift, select.width) = (shift, width);
                let grid = (plan.digit_blocks(multiprocessors), n);
                // SAFETY: as above.
                unsafe { self.device.launch(Kernel::Digits, grid, stream, select)? };
            }
        }
        // SAFETY: as above.
        unsafe {
            self.device.launch(Kernel::Count, (plan.tile_blocks(multiprocessors), 1), stream, select)?;
            self.device.launch(Kernel::Place, (n, 1), stream, select)
        }
    }

    /// Waits for the numbers of kept elements.
    #[expect(unsafe_code, reason = "reads pinned memory that the device wrote")]
    fn download_sizes(&mut self, plan: &Plan, layout: &Layout, stream: Stream) -> Result<Sizes> {
        let bytes = len(&layout.sizes);
        self.work.copy_to(layout.sizes.start, &mut self.down, bytes, stream)?;
        self.device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let words = items_of(unsafe { self.down.bytes(bytes) });
        Ok(Sizes::new(words, plan.searches.len()))
    }

    /// Emits the kept elements, writes positions in wire form, copies the result to the host and waits for
    /// it.
    #[expect(unsafe_code, reason = "launches kernels and reads pinned memory that the device wrote")]
    fn emit(
        &mut self,
        plan: &Plan,
        layout: &Layout,
        mut select: Select,
        sizes: &Sizes,
        selected: &mut Selected,
        stream: Stream,
    ) -> Result<()> {
        let payload = Payload::new(plan, sizes);
        let coded =
            plan.coding.layout(payload.end, |piece, side| sizes.kept(plan, piece as usize, side as usize));
        // Positions that the device codes stay there.
        let copied = if plan.coding.all() { payload.choices.start } else { 0 }..coded.copied;
        self.out.grow(if payload.is_packed() { 8 * selected.total } else { coded.bytes })?;
        select.out_places = self.out.address();
        select.out_bits = self.out.address() + 4 * selected.total;
        let blocks = plan.tile_blocks(self.device.multiprocessors());
        // SAFETY: as in `search`; `out` has room for the kept elements that the kernels counted.
        unsafe { self.device.launch(Kernel::Emit, (blocks, 1), stream, &select)? };
        self.down.grow(len(&copied))?;
        if payload.is_packed() {
            self.packed.grow(coded.bytes)?;
            self.pack(plan, &payload, select, stream)?;
        }
        self.code_positions(plan, layout, &payload, &coded, &select, stream)?;
        let source = if payload.is_packed() { &self.packed } else { &self.out };
        source.copy_to(copied.start, &mut self.down, len(&copied), stream)?;
        self.device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let down = unsafe { self.down.bytes(len(&copied)) };
        let part = |range: Range<u64>| {
            &down[(range.start - copied.start) as usize..(range.end - copied.start) as usize]
        };
        let download = Download {
            choices: items_of(part(payload.choices.clone())),
            places: if plan.coding.all() { &[] } else { part(payload.places.clone()).as_chunks().0 },
            bits: part(payload.bits.clone()).as_chunks().0,
        };
        selected.take(plan, sizes, &download);
        if !plan.coding.is_empty() {
            selected.supports = plan.coding.supports(&coded, part(coded.written..coded.copied));
        }
        Ok(())
    }

    /// Chooses the side of searches that have two, and gathers what goes to the host in `packed`.
    #[expect(unsafe_code, reason = "launches kernels")]
    fn pack(&mut self, plan: &Plan, payload: &Payload, mut select: Select, stream: Stream) -> Result<()> {
        let (multiprocessors, n) = (self.device.multiprocessors(), plan.searches.len() as u32);
        select.sum_actions = SUM_SIDES;
        let base = self.packed.address();
        let pack = Pack {
            searches: select.searches,
            totals: select.totals,
            bases: select.bases,
            moments: select.moments,
            out_places: select.out_places,
            out_bits: select.out_bits,
            choices: base + payload.choices.start,
            places: base + payload.places.start,
            bits: base + payload.bits.start,
            n_searches: n,
            reserved: 0,
        };
        let blocks = payload.most.div_ceil(4 * u64::from(THREADS)).clamp(1, u64::from(4 * multiprocessors));
        // SAFETY: the context is current; the pointers are into `work`, `out` and `packed`, which have room
        // for the counted elements.
        unsafe {
            self.device.launch(Kernel::Measure, (plan.sum_blocks(multiprocessors), n), stream, &select)?;
            self.device.launch(Kernel::Choose, (1, 1), stream, &pack)?;
            self.device.launch(Kernel::Pack, (blocks as u32, n), stream, &pack)
        }
    }

    /// Writes positions in wire form behind the payload.
    #[expect(unsafe_code, reason = "launches kernels")]
    fn code_positions(
        &mut self,
        plan: &Plan,
        layout: &Layout,
        payload: &Payload,
        coded: &CodingLayout,
        select: &Select,
        stream: Stream,
    ) -> Result<()> {
        if plan.coding.is_empty() {
            return Ok(());
        }
        let out = if payload.is_packed() { &self.packed } else { &self.out };
        let tables = Tables {
            rows: self.work.address() + layout.rows,
            segments: self.work.address() + layout.segments,
            choices: out.address() + payload.choices.start,
        };
        // SAFETY: the context is current; `out` has room for the layout, which was made of the counts that
        // `select` wrote.
        unsafe { plan.coding.launch(&self.device, out, coded, select, &tables, stream) }
    }
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}
