//! SIDCo's thresholds: the device takes sums, the host fits thresholds to them. Each exchange is one wait for
//! all tensors together.

use gcodec::internal::device::{Moments as HostMoments, Step};

use super::Selector;
use super::plan::{Fits, Layout, Plan};
use crate::abi::action::{SUM_CANDIDATES, SUM_SAMPLE, SUM_TENSOR};
use crate::abi::{CHUNK_LEN, LOWEST, Moments, Search, Select, State, bytes_of, items_of};
use crate::device::Kernel;
use crate::error::Result;
use crate::tensor::Stream;

impl Selector {
    /// Fits to samples and to whole tensors, before candidates are collected.
    #[expect(unsafe_code, reason = "launches a kernel")]
    pub(super) fn fit_samples(
        &mut self,
        plan: &mut Plan,
        layout: &Layout,
        select: &Select,
        stream: Stream,
    ) -> Result<()> {
        if plan.fits.is_empty() {
            return Ok(());
        }
        let before = |step: Step| matches!(step, Step::Sample(_) | Step::Tensor(_));
        let mut answered = false;
        while plan.fits.iter().any(|f| f.search.is_some() && before(f.fitting.next())) {
            if answered {
                self.upload_directives(plan, layout, stream)?;
            }
            let (sums, _) = self.measure(plan, layout, *select, SUM_SAMPLE | SUM_TENSOR, stream)?;
            for Fits { search, fitting, .. } in &mut plan.fits {
                let Some(search) = search.map(|i| &plan.searches[i]) else { continue };
                match fitting.next() {
                    Step::Sample(_) => fitting.answer(&total(&sums, search, 1)),
                    Step::Tensor(_) => {
                        fitting.answer(&total(&sums, search, search.elements.div_ceil(CHUNK_LEN)));
                    }
                    _ => {}
                }
            }
            answered = true;
        }
        if answered {
            self.upload_directives(plan, layout, stream)?;
        }
        // SAFETY: the context is current; `select` points into `work`.
        unsafe { self.device.launch(Kernel::Decide, (plan.searches.len() as u32, 1), stream, select) }
    }

    /// Puts candidates in the order of their elements, and fits to them.
    #[expect(unsafe_code, reason = "launches kernels")]
    pub(super) fn fit_candidates(
        &mut self,
        plan: &mut Plan,
        layout: &Layout,
        mut select: Select,
        stream: Stream,
    ) -> Result<()> {
        if !plan.fits.iter().any(|f| f.search.is_some() && matches!(f.fitting.next(), Step::Collect { .. })) {
            return Ok(());
        }
        let n = plan.searches.len() as u32;
        let blocks = plan.tile_blocks(self.device.multiprocessors());
        select.listing = 1;
        // SAFETY: the context is current; `select` points into `work`.
        unsafe {
            self.device.launch(Kernel::Count, (blocks, 1), stream, &select)?;
            self.device.launch(Kernel::Place, (n, 1), stream, &select)?;
            self.device.launch(Kernel::Emit, (blocks, 1), stream, &select)?;
        }
        loop {
            let (sums, states) = self.measure(plan, layout, select, SUM_CANDIDATES, stream)?;
            for Fits { search, fitting, .. } in &mut plan.fits {
                let Some(search) = *search else { continue };
                let (search, state) = (&plan.searches[search], &states[search]);
                // Only these searches have a list: for others a fit to the candidates does not help.
                let listed = state.candidates <= search.capacity
                    && (state.least[0] == LOWEST || state.candidates >= search.k);
                let chunks = if listed { state.candidates.div_ceil(CHUNK_LEN) } else { 0 };
                match fitting.next() {
                    Step::Collect { .. } => {
                        let least = f32::from_bits(state.least[0]);
                        fitting.collected(state.candidates, least, &total(&sums, search, chunks));
                    }
                    Step::Candidates(_) => fitting.answer(&total(&sums, search, chunks)),
                    _ => {}
                }
            }
            self.upload_directives(plan, layout, stream)?;
            if !plan.fits.iter().any(|f| matches!(f.fitting.next(), Step::Candidates(_))) {
                break;
            }
        }
        // SAFETY: as above.
        unsafe { self.device.launch(Kernel::Decide, (n, 1), stream, &select) }
    }

    /// Copies the directives to the device. The stream was waited for since the last copy from `up`.
    #[expect(unsafe_code, reason = "writes pinned memory that the device reads")]
    fn upload_directives(&mut self, plan: &Plan, layout: &Layout, stream: Stream) -> Result<()> {
        let directives = plan.directives();
        // SAFETY: the caller waited for the last copy from it.
        unsafe { self.up.write(0, bytes_of(&directives)) };
        let bytes = size_of_val(directives.as_slice()) as u64;
        self.work.copy_from(layout.directives, &self.up, bytes, stream)
    }

    /// Returns the sums of each chunk for directives with one of these actions, and the states of all
    /// searches.
    #[expect(unsafe_code, reason = "launches a kernel and reads pinned memory that the device wrote")]
    fn measure(
        &mut self,
        plan: &Plan,
        layout: &Layout,
        mut select: Select,
        actions: u32,
        stream: Stream,
    ) -> Result<(Vec<HostMoments>, Vec<State>)> {
        select.sum_actions = actions;
        let logs = plan.directives().iter().any(|d| d.actions & actions != 0 && d.logs != 0);
        let kernel = if logs { Kernel::MeasureLogs } else { Kernel::Measure };
        let grid = (plan.sum_blocks(self.device.multiprocessors()), plan.searches.len() as u32);
        // SAFETY: the context is current; `select` points into borrowed tensors and into `work`, which has
        // room for each chunk's sums.
        unsafe { self.device.launch(kernel, grid, stream, &select)? };
        let bytes = layout.sums.end - layout.sums.start;
        self.work.copy_to(layout.sums.start, &mut self.down, bytes, stream)?;
        self.device.synchronize(stream)?;
        // SAFETY: the stream was waited for.
        let bytes = unsafe { self.down.bytes(bytes) };
        let (sums, states) = bytes.split_at(bytes.len() - plan.searches.len() * size_of::<State>());
        let sums: Vec<Moments> = items_of(&sums[..plan.chunks as usize * size_of::<Moments>()]);
        Ok((sums.into_iter().map(HostMoments::from).collect(), items_of(states)))
    }
}

/// Returns the sums over the first `chunks` chunks of a search, in their order.
fn total(sums: &[HostMoments], search: &Search, chunks: u64) -> HostMoments {
    let chunks = sums.iter().skip(search.chunks as usize).take(chunks as usize);
    chunks.fold(HostMoments::default(), |sum, chunk| sum.and(*chunk))
}

impl From<Moments> for HostMoments {
    fn from(m: Moments) -> Self {
        let Moments { count, sum, squares, product, exponent, max, .. } = m;
        Self { count, sum, squares, product, exponent, max }
    }
}
