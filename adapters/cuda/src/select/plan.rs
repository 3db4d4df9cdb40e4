//! The searches of an update, as the kernels take them, and where their work memory lies.

use std::ops::Range;

use gcodec::compress::{NonFinite as NonFiniteRule, Options};
use gcodec::internal::device::{self as host, FitResult, Fitting, Least, MomentQuery, Search as Task, Step};

use super::Selected;
use crate::abi::action::{
    BEGIN_AT_KEY, BEGIN_AT_RANK, KEEP_FROM_KEY, SUM_CANDIDATES, SUM_SAMPLE, SUM_SIDES, SUM_TENSOR,
};
use crate::abi::{
    BINS, CHUNK_LEN, Directive, LOWEST, Moments, NO_SAMPLE, Piece, SAMPLE_LEN, Search, Select, State,
    THREADS, TILE_LEN, WARPS, bytes_of,
};
use crate::error::{Result, TensorError};
use crate::residuals::Source;
use crate::rice::Coding;

/// The most rows of blocks of a launch.
const MAX_ROWS: usize = 65_535;

/// The searches of one update.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) pieces: Vec<Piece>,
    /// The input of each piece, and the piece's first element in it.
    pub(crate) places: Vec<Place>,
    pub(crate) searches: Vec<Search>,
    pub(crate) fits: Vec<Fits>,
    /// Which positions the device writes in wire form.
    pub(crate) coding: Coding,
    /// Chunks that sums are taken over.
    pub(crate) chunks: u64,
    /// Inputs of `sbc` without elements.
    pub(crate) empty_sides: Vec<usize>,
    inputs: usize,
    tiles: u64,
    candidates: u64,
    samples: u32,
    /// Capacity of the ordered list of candidates of fits.
    listed: u64,
}

/// A search by fits.
#[derive(Debug)]
pub(crate) struct Fits {
    pub(crate) input: usize,
    /// `None` for an input without elements.
    pub(crate) search: Option<usize>,
    pub(crate) fitting: Fitting,
}

/// Where a piece lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) input: usize,
    pub(crate) start: u64,
}

/// Offsets in the work memory, in bytes.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The copy to the device: pieces, searches, rows, segments, directives.
    pub(crate) table: Range<u64>,
    pub(crate) rows: u64,
    pub(crate) segments: u64,
    pub(crate) directives: u64,
    /// Moments, then states.
    pub(crate) sums: Range<u64>,
    pub(crate) zeros: Range<u64>,
    /// The counts of each tile.
    pub(crate) tiles: Range<u64>,
    pub(crate) sizes: Range<u64>,
    pub(crate) bytes: u64,
}

impl Plan {
    /// `inputs`: those that the places in `tasks` refer to; `stages`: the state of SIDCo's adaptive stages by
    /// name.
    pub(crate) fn new(
        inputs: &[Source<'_>],
        tasks: &[Task],
        options: &Options,
        piece_len: u64,
        stages: impl Fn(&str) -> Option<[i64; 3]>,
    ) -> Result<Self> {
        let mut plan = Self { inputs: inputs.len(), ..Self::default() };
        let zero_non_finite = u32::from(options.non_finite == NonFiniteRule::Zero);
        for task in tasks {
            let among = match task {
                Task::Largest { among, .. } => among.as_slice(),
                Task::BothSides { of, .. } | Task::AtLeast { of, .. } | Task::Fitted { of, .. } => {
                    std::slice::from_ref(of)
                }
            };
            let (first_piece, first_tile) = (plan.pieces.len(), plan.tiles);
            let mut elements = 0;
            for &input in among {
                elements = plan.add_pieces(input, &inputs[input], elements, piece_len, zero_non_finite);
            }
            if let Task::Fitted { of, fitting } = task {
                let mut fitting = fitting.clone();
                if let Some(state) = stages(inputs[*of].input.name) {
                    fitting.set_adaptation(state);
                }
                let search = (elements > 0).then_some(plan.searches.len());
                plan.fits.push(Fits { input: *of, search, fitting });
            }
            match task {
                Task::BothSides { of, .. } if elements == 0 => plan.empty_sides.push(*of),
                _ if elements == 0 => {}
                _ => plan.add_search(
                    task,
                    Search {
                        elements,
                        candidates: plan.candidates,
                        sample: NO_SAMPLE,
                        least: LOWEST,
                        first_piece: first_piece as u32,
                        pieces: (plan.pieces.len() - first_piece) as u32,
                        first_tile: first_tile as u32,
                        tiles: (plan.tiles - first_tile) as u32,
                        sides: 1,
                        chunks: plan.chunks,
                        ..Search::default()
                    },
                ),
            }
        }
        let fits = plan.searches.len() <= MAX_ROWS && plan.pieces.len() <= MAX_ROWS;
        match fits && u32::try_from(plan.tiles).is_ok() {
            true => Ok(plan),
            false => Err(TensorError::TooMany { most: MAX_ROWS }.into()),
        }
    }

    /// Adds the pieces of an input; `start` and the result count the elements of the search before and after
    /// it.
    fn add_pieces(
        &mut self,
        input: usize,
        source: &Source<'_>,
        start: u64,
        piece_len: u64,
        zero_non_finite: u32,
    ) -> u64 {
        let data = source.input.data;
        let (size, elements) = (u64::from(data.dtype().bits() / 8), data.elements());
        let float_at = |base: u64, at: u64| if base == 0 { 0 } else { base + 4 * at };
        for at in (0..elements).step_by(piece_len as usize) {
            let len = piece_len.min(elements - at);
            self.pieces.push(Piece {
                data: data.address() + size * at,
                residual: float_at(source.residual, at),
                after: float_at(source.after, at),
                len,
                start: start + at,
                dtype: data.dtype().id().into(),
                search: self.searches.len() as u32,
                first_tile: self.tiles as u32,
                zero_non_finite,
            });
            self.places.push(Place { input, start: at });
            self.tiles += len.div_ceil(TILE_LEN);
        }
        start + elements
    }

    /// Adds a search over at least one element: `search` has everything that does not depend on the kind of
    /// `task`.
    fn add_search(&mut self, task: &Task, mut search: Search) {
        let elements = search.elements;
        let mut chunks = 0;
        match task {
            Task::AtLeast { at, .. } => {
                (search.least, search.exact, search.k) = (at.to_bits(), 1, elements);
                search.capacity = elements.min(elements / 16 + (1 << 16));
            }
            Task::Largest { k, .. } | Task::BothSides { k, .. } => {
                search.k = *k;
                if matches!(task, Task::BothSides { .. }) {
                    (search.sides, chunks) = (2, 2 * k.div_ceil(CHUNK_LEN));
                }
                let rank = host::sample_rank(*k, elements).map(|rank| rank as u32);
                // Twice the elements of each side that the sample promises above its cut, so that its error
                // hardly ever exceeds the room. If it does, all elements are read again.
                let in_sample = |rank: u32| 2 * u64::from(rank + 1) + 8;
                let reached = rank.map_or(0, in_sample).saturating_mul(elements.div_ceil(SAMPLE_LEN));
                let reached = reached.saturating_mul(search.sides.into());
                let room = k.saturating_mul(4).saturating_add(1 << 16).max(reached);
                search.capacity = elements.min(room);
                if let Some(rank) = rank {
                    (search.rank, search.sample) = (rank, self.take_sample());
                }
            }
            Task::Fitted { fitting, .. } => {
                search.k = fitting.wanted();
                search.capacity = elements.min(fitting.limit());
                if fitting.takes_sample() {
                    search.sample = self.take_sample();
                }
                if matches!(fitting.next(), Step::Tensor(_)) {
                    (search.fitted, chunks) = (2, elements.div_ceil(CHUNK_LEN));
                } else {
                    (search.fitted, chunks) = (1, search.capacity.div_ceil(CHUNK_LEN));
                    self.listed += search.capacity;
                }
            }
        }
        self.chunks += chunks;
        self.candidates += search.capacity;
        self.searches.push(search);
    }

    fn take_sample(&mut self) -> u32 {
        self.samples += 1;
        self.samples - 1
    }

    /// The number of inputs.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// The number of tiles of all pieces.
    pub(crate) fn tiles(&self) -> u64 {
        self.tiles
    }

    /// For each input the numbers of its pieces, and the first element of each.
    pub(crate) fn pieces_of_inputs(&self) -> Vec<Vec<(u32, u64)>> {
        let mut pieces = vec![Vec::new(); self.inputs];
        self.places.iter().zip(0..).for_each(|(place, piece)| pieces[place.input].push((piece, place.start)));
        pieces
    }

    /// The pieces of an input, and the first element of each.
    pub(crate) fn pieces_of(&self, input: usize) -> impl Iterator<Item = (&Piece, u64)> {
        let places = self.pieces.iter().zip(&self.places).filter(move |(_, place)| place.input == input);
        places.map(|(piece, place)| (piece, place.start))
    }

    /// The next state of SIDCo's adaptive stages, by input.
    pub(crate) fn adaptations(&self, selected: &Selected) -> impl Iterator<Item = (usize, [i64; 3])> {
        self.fits.iter().filter_map(|Fits { input, fitting, .. }| {
            let kept = selected.found[*input].positions().len() as u64;
            fitting.adaptation(kept).map(|state| (*input, state))
        })
    }

    /// Returns the layout of the work memory, and the kernels' arguments with offsets in it.
    pub(crate) fn layout(&self) -> (Layout, Select) {
        let mut end = 0u64;
        let mut take = |bytes: u64| {
            let start = end;
            end = (start + bytes).next_multiple_of(256);
            start
        };
        let (searches, pieces, tiles) = (self.searches.len() as u64, self.pieces.len() as u64, self.tiles);
        let mut select = Select {
            pieces: take(size_of::<Piece>() as u64 * pieces),
            searches: take(size_of::<Search>() as u64 * searches),
            n_pieces: pieces as u32,
            n_searches: searches as u32,
            n_tiles: tiles as u32,
            ..Select::default()
        };
        let rows = take(bytes_of(&self.coding.rows).len() as u64);
        let segments = take(bytes_of(&self.coding.segments).len() as u64);
        select.directives = take(size_of::<Directive>() as u64 * searches);
        let table = 0..take(0);
        select.moments = take(size_of::<Moments>() as u64 * self.chunks);
        select.states = take(size_of::<State>() as u64 * searches);
        select.counts = take(8 * 2 * BINS * searches);
        select.ticket = take(4);
        let zeros = select.states..take(0);
        let sums = select.moments..select.states + size_of::<State>() as u64 * searches;
        select.samples = take(4 * SAMPLE_LEN * u64::from(self.samples));
        select.tile_first = take(8 * tiles);
        select.tile_hits = take(4 * tiles);
        select.tile_above = take(4 * 2 * tiles);
        select.tile_equal = take(4 * 2 * tiles);
        select.tile_kept = take(8 * 2 * tiles);
        let tiles = select.tile_hits..take(0);
        select.candidate_places = take(4 * self.candidates);
        select.candidate_bits = take(4 * self.candidates);
        select.list = take(4 * self.listed);
        select.bases = take(8 * 2 * searches);
        // Adjacent, so that one copy takes both.
        select.totals = take(8 * 2 * (searches + pieces));
        select.piece_kept = select.totals + 8 * 2 * searches;
        let sizes = select.totals..select.piece_kept + 8 * 2 * pieces;
        let directives = select.directives;
        (Layout { table, rows, segments, directives, sums, zeros, tiles, sizes, bytes: take(0) }, select)
    }

    /// Returns the next request, or the decision, of each search.
    pub(crate) fn directives(&self) -> Vec<Directive> {
        let sum = |actions, q: MomentQuery| Directive {
            actions,
            key: q.at.to_bits(),
            location: q.location,
            logs: u32::from(q.logs),
            rank: 0,
        };
        let both_sides = Directive { actions: SUM_SIDES, key: LOWEST, ..Directive::default() };
        let first = |s: &Search| if s.sides == 2 { both_sides } else { Directive::default() };
        let mut directives: Vec<Directive> = self.searches.iter().map(first).collect();
        for Fits { search, fitting, .. } in &self.fits {
            let Some(search) = *search else { continue };
            directives[search] = match fitting.next() {
                Step::Sample(q) => sum(SUM_SAMPLE, q),
                Step::Tensor(q) => sum(SUM_TENSOR, q),
                Step::Candidates(q) => sum(SUM_CANDIDATES, q),
                Step::Collect { least: Least::At(_), question: Some(q) } => {
                    sum(SUM_CANDIDATES | BEGIN_AT_KEY, q)
                }
                Step::Collect { least: Least::InSample(rank), .. } => {
                    Directive { actions: SUM_CANDIDATES | BEGIN_AT_RANK, rank, ..Directive::default() }
                }
                Step::Collect { least: Least::At(at), question: None } => Directive {
                    actions: SUM_CANDIDATES | BEGIN_AT_KEY,
                    key: at.to_bits(),
                    location: at,
                    ..Directive::default()
                },
                Step::Keep(FitResult::Reached(at)) => {
                    Directive { actions: KEEP_FROM_KEY, key: at.to_bits(), ..Directive::default() }
                }
                Step::Keep(FitResult::Largest) => Directive::default(),
            };
        }
        directives
    }

    /// Whether the cut of some search has to be counted out.
    pub(crate) fn counts_digits(&self) -> bool {
        let largest = |f: &Fits| f.search.is_some() && f.fitting.next() == Step::Keep(FitResult::Largest);
        self.searches.iter().any(|s| s.exact == 0 && s.fitted == 0) || self.fits.iter().any(largest)
    }

    /// Blocks for each search of the kernel that counts digits.
    pub(crate) fn digit_blocks(&self, multiprocessors: u32) -> u32 {
        let most = self.searches.iter().map(|s| s.capacity).max().unwrap_or(0);
        // A block counts fewer than 2^32 elements, also where it reads the tensors.
        let least = self.searches.iter().map(|s| s.tiles >> 18).max().unwrap_or(0) + 1;
        least.max(most.div_ceil(8 * u64::from(THREADS)).min(u64::from(2 * multiprocessors)) as u32)
    }

    /// Blocks for each search of the kernel that takes sums.
    pub(crate) fn sum_blocks(&self, multiprocessors: u32) -> u32 {
        let chunks = self.searches.iter().map(|s| match s.fitted {
            0 => s.k.div_ceil(CHUNK_LEN),
            1 => s.capacity.div_ceil(CHUNK_LEN),
            _ => s.elements.div_ceil(CHUNK_LEN),
        });
        chunks.max().unwrap_or(0).clamp(1, u64::from(8 * multiprocessors)) as u32
    }

    /// Blocks of a kernel with one warp for each tile.
    pub(crate) fn tile_blocks(&self, multiprocessors: u32) -> u32 {
        self.tiles.div_ceil(WARPS).min(u64::from(8 * multiprocessors)) as u32
    }
}

impl Select {
    /// Turns offsets into addresses.
    pub(crate) fn place(&mut self, base: u64) {
        for field in [
            &mut self.pieces,
            &mut self.searches,
            &mut self.states,
            &mut self.counts,
            &mut self.samples,
            &mut self.tile_first,
            &mut self.tile_hits,
            &mut self.tile_above,
            &mut self.tile_equal,
            &mut self.tile_kept,
            &mut self.candidate_places,
            &mut self.candidate_bits,
            &mut self.totals,
            &mut self.piece_kept,
            &mut self.bases,
            &mut self.ticket,
            &mut self.directives,
            &mut self.moments,
            &mut self.list,
        ] {
            *field += base;
        }
    }
}
