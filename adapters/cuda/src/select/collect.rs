//! The kept elements, as they come to the host.

use std::ops::Range;

use gcodec::internal::device::Chosen;
use gcodec::internal::device::{self as host, Found};

use super::plan::{Place, Plan};
use crate::abi::Choice;

/// The elements that an update keeps of each input.
#[derive(Debug)]
pub(crate) struct Selected {
    pub(crate) found: Vec<Found>,
    /// For each block its positions in wire form, if the device writes them.
    pub(crate) supports: Vec<Option<Vec<u8>>>,
    /// The kept elements of each piece, in device memory.
    pub(super) runs: Vec<Run>,
    /// The number of kept elements in device memory.
    pub(super) total: u64,
    /// Inputs with two sides of which an element is not finite: its value is not on the host.
    not_finite: Vec<usize>,
}

/// The kept elements of one piece.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) piece: usize,
    pub(super) kept: Range<usize>,
}

/// The numbers of kept elements.
pub(super) struct Sizes {
    /// For each search and side.
    pub(super) totals: Vec<u64>,
    /// For each piece and side the elements of its search before it.
    before: Vec<u64>,
}

/// The parts of the copy to the host, in bytes: positions; a [`Choice`] for each search if some search has
/// two sides; values of searches with one side. Without choices the kernel that emits kept elements leaves
/// them in this form.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) places: Range<u64>,
    pub(super) choices: Range<u64>,
    pub(super) bits: Range<u64>,
    pub(super) end: u64,
    /// The most elements of a search.
    pub(super) most: u64,
}

/// The payload on the host.
#[derive(Default)]
pub(super) struct Download<'a> {
    pub(super) choices: Vec<Choice>,
    pub(super) places: &'a [[u8; 4]],
    pub(super) bits: &'a [[u8; 4]],
}

impl Selected {
    /// Nothing yet.
    pub(super) fn new(plan: &Plan) -> Self {
        let mut found = vec![Found::Elements(Chosen::default()); plan.inputs()];
        for &input in &plan.empty_sides {
            found[input] = Found::Side { positions: Vec::new(), mean: 0.0 };
        }
        Self { found, supports: plan.coding.empty(), runs: Vec::new(), total: 0, not_finite: Vec::new() }
    }

    /// The inputs with a kept element that is not finite.
    pub(crate) fn not_finite(&self) -> impl Iterator<Item = usize> {
        let bad = |(input, found): (usize, &Found)| match found {
            Found::Elements(chosen) if chosen.values.iter().any(|x| !x.is_finite()) => Some(input),
            _ => None,
        };
        self.found.iter().enumerate().filter_map(bad).chain(self.not_finite.iter().copied())
    }

    /// Takes the kept elements of all searches from a download.
    pub(super) fn take(&mut self, plan: &Plan, sizes: &Sizes, download: &Download<'_>) {
        // For the current search: its first kept element in device memory, and its first position and value
        // in the download.
        let (mut first, mut place, mut value) = (0, 0, 0);
        for (i, (search, totals)) in plan.searches.iter().zip(sizes.totals.chunks(2)).enumerate() {
            let choice = download.choices.get(i).copied().unwrap_or_default();
            let (side, mean) = match search.sides {
                1 => (0, None),
                _ => {
                    let (side, mean) = host::larger_side(choice.sums, [totals[0], totals[1]]);
                    (side, Some(mean))
                }
            };
            let begin = (first + if side == 1 { totals[0] } else { 0 }) as usize;
            for piece in search.first_piece as usize..(search.first_piece + search.pieces) as usize {
                let here = sizes.before(piece, side) as usize;
                let next = here + sizes.kept(plan, piece, side) as usize;
                let Place { input, start } = plan.places[piece];
                let position = |p: &[u8; 4]| start + u64::from(u32::from_ne_bytes(*p));
                let coded = plan.coding.inputs.get(input).is_some_and(|coded| *coded);
                let places = if coded { &[] } else { &download.places[place + here..place + next] };
                let positions = places.iter().map(position);
                match (&mut self.found[input], mean) {
                    (Found::Elements(chosen), None) => {
                        chosen.positions.extend(positions);
                        let values = &download.bits[value + here..value + next];
                        chosen.values.extend(values.iter().map(|b| f32::from_ne_bytes(*b)));
                    }
                    (Found::Side { positions: all, .. }, Some(_)) => all.extend(positions),
                    (found, Some(mean)) => {
                        *found = Found::Side { positions: positions.collect(), mean };
                        if choice.sums.iter().any(|sum| !sum.is_finite()) {
                            self.not_finite.push(input);
                        }
                    }
                    (Found::Side { .. }, None) => {}
                }
                self.runs.push(Run { piece, kept: begin + here..begin + next });
            }
            first += totals[0] + totals[1];
            place += totals[side] as usize;
            value += if mean.is_none() { totals[side] as usize } else { 0 };
        }
    }
}

impl Sizes {
    /// `words`: two for each search, then two for each piece.
    pub(super) fn new(mut words: Vec<u64>, searches: usize) -> Self {
        let before = words.split_off(2 * searches);
        Self { totals: words, before }
    }

    fn before(&self, piece: usize, side: usize) -> u64 {
        self.before[2 * piece + side]
    }

    /// Elements kept of one side of a piece.
    pub(super) fn kept(&self, plan: &Plan, piece: usize, side: usize) -> u64 {
        let number = plan.pieces[piece].search as usize;
        let search = &plan.searches[number];
        let last = piece + 1 == (search.first_piece + search.pieces) as usize;
        let next = if last { self.totals[2 * number + side] } else { self.before(piece + 1, side) };
        next - self.before(piece, side)
    }
}

impl Payload {
    pub(super) fn new(plan: &Plan, sizes: &Sizes) -> Self {
        let (mut places, mut values, mut most) = (0, 0, 0);
        for (search, totals) in plan.searches.iter().zip(sizes.totals.chunks(2)) {
            let kept = totals[0].max(totals[1]);
            most = most.max(kept);
            places += kept;
            values += if search.sides == 1 { kept } else { 0 };
        }
        let places = 0..4 * places;
        let choices = match plan.searches.iter().any(|s| s.sides == 2) {
            true => {
                let start = places.end.next_multiple_of(16);
                start..start + (size_of::<Choice>() * plan.searches.len()) as u64
            }
            false => places.end..places.end,
        };
        let bits = choices.end..choices.end + 4 * values;
        Self { places, choices, end: bits.end, bits, most }
    }

    /// Whether its form is not that in which kept elements are emitted.
    pub(super) fn is_packed(&self) -> bool {
        !self.choices.is_empty()
    }
}
