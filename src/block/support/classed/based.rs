//! Classes by the element of the base (spec, supports/classed.md, rule 1).

use crate::arch::{self, Kernel};
use crate::bits::Cursor;
use crate::block::Sets;
use crate::block::space::Surroundings;
use crate::block::support::{Facts, Kind, Positions, SupportId, Validated, is_ascending};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, InputErrorKind, Result};
use crate::limits::{Budget, Limits, in_memory};
use crate::tensor::Dtype;
use crate::tensor::element::bits_at;

use super::gaps::{self, Group, MAX_CLASSES};

/// Positions of changed elements, given the elements of the base that a delta changes.
///
/// An element's class is the number of `bounds` above its key: the eight bits below the sign of a float, or
/// the eight highest bits of another type. Positions are ranks inside classes; [`Based::positions`] finds
/// them in the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Based {
    /// Smallest key of each class but the last, strictly descending, at least 1.
    pub bounds: Vec<u8>,
    /// For each class, ranks of its positions among the elements of the class; strictly ascending.
    pub ranks: Vec<Vec<u64>>,
}

/// Elements of one tensor of the base that an index space covers.
#[derive(Debug, Clone, Copy)]
pub struct BaseElements<'a> {
    /// All of the tensor's bytes.
    pub data: &'a [u8],
    /// First element.
    pub start: u64,
    /// Number of elements.
    pub len: u64,
}

/// Elements whose classes are found in one step; their keys stay in the first-level cache.
const STEP: usize = 1 << 12;
const ROWS: usize = STEP / 64;

impl Based {
    /// Number of positions of each class.
    pub fn counts(&self) -> Vec<u64> {
        self.ranks.iter().map(|ranks| ranks.len() as u64).collect()
    }

    /// Smallest and largest key of each class.
    fn ranges(&self) -> Vec<(u8, u8)> {
        let lows = self.bounds.iter().copied().chain([0]);
        let highs = [255].into_iter().chain(self.bounds.iter().map(|b| b - 1));
        lows.zip(highs).collect()
    }

    /// The positions, each with the number of its value. They are about ascending, so a visit of their
    /// elements stays inside the caches.
    ///
    /// # Errors
    /// [`Error::Format`] if a class has fewer elements in the base than a rank needs (CLS-3).
    pub fn positions(&self, dtype: Dtype, base: &[BaseElements<'_>]) -> Result<Vec<(u64, usize)>> {
        let mut found = Vec::with_capacity(self.ranks.iter().map(Vec::len).sum());
        let mut first_value = 0;
        let mut classes: Vec<Class<'_>> = self
            .ranks
            .iter()
            .zip(self.ranges())
            .map(|(ranks, range)| {
                let value = first_value;
                first_value += ranks.len();
                Class { range, ranks, value, passed: 0 }
            })
            .collect();
        for_each_step(dtype, base, |position, keys, len| {
            for class in classes.iter_mut().filter(|class| !class.ranks.is_empty()) {
                let (low, high) = class.range;
                let mut masks = [0; ROWS];
                arch::ranges::in_range(arch::widest(), keys, low, high - low, &mut masks);
                limit(&mut masks, len);
                arch::run(Select { masks: &masks, class, position, found: &mut found });
            }
        });
        match classes.iter().find(|class| !class.ranks.is_empty()) {
            Some(&Class { ranks, passed, .. }) => {
                Err(Error::format(FormatErrorKind::PositionOutOfRange { position: ranks[0], len: passed }, 0))
            }
            None => Ok(found),
        }
    }

    /// Divides ascending positions into classes with these bounds, and returns the numbers of the positions
    /// in the order of classes and ranks.
    pub(crate) fn classify(
        bounds: Vec<u8>,
        dtype: Dtype,
        base: &[BaseElements<'_>],
        positions: &[u64],
    ) -> (Self, Vec<usize>) {
        let classes = bounds.len() + 1;
        let mut based = Self { bounds, ranks: vec![Vec::new(); classes] };
        let mut order = vec![Vec::new(); classes];
        let mut passed = vec![0u64; classes];
        let ranges = based.ranges();
        let mut next = 0;
        for_each_step(dtype, base, |position, keys, len| {
            // The positions of this step as masks, and the number of the first one in each row.
            let (mut changed, mut firsts) = ([0u64; ROWS], [0; ROWS]);
            for (row, (mask, first)) in changed.iter_mut().zip(&mut firsts).enumerate() {
                let start = position + 64 * row as u64;
                let end = start.saturating_add(64).min(position + len as u64);
                *first = next;
                while let Some(&changed) = positions.get(next).filter(|p| **p < end) {
                    *mask |= 1 << (changed - start);
                    next += 1;
                }
            }
            for (class, &(low, high)) in ranges.iter().enumerate() {
                let mut masks = [0; ROWS];
                arch::ranges::in_range(arch::widest(), keys, low, high - low, &mut masks);
                limit(&mut masks, len);
                arch::run(Rank {
                    masks: &masks,
                    changed: &changed,
                    firsts: &firsts,
                    passed: &mut passed[class],
                    ranks: &mut based.ranks[class],
                    order: &mut order[class],
                });
            }
        });
        (based, order.concat())
    }

    /// Reads all fields after the number of classes.
    pub(super) fn read_classes(
        cursor: &mut Cursor<'_>,
        decoder: &Decoder<'_>,
        classes: u8,
        n: u64,
    ) -> Result<Self> {
        let offset = cursor.offset();
        let bounds = cursor.take(u64::from(classes) - 1)?.to_vec();
        if !is_descending(&bounds) {
            return Err(Error::format(FormatErrorKind::NotAscending, offset));
        }
        let offset = cursor.offset();
        let heads = gaps::read_heads(cursor, classes, n)?;
        if let Some(head) = heads.iter().find(|h| h.classes != 1) {
            return Err(Error::out_of_range("classes of a group", head.classes.into(), offset));
        }
        // Without the base, only the number of all elements bounds a rank.
        let ranks = gaps::read_ranks(cursor, decoder, &heads, &vec![vec![n]; heads.len()])?;
        Ok(Self { bounds, ranks })
    }
}

impl Kind for Based {
    fn facts(&self) -> Facts {
        let positions: u64 = self.counts().iter().sum();
        Facts { weight: 2 * positions, memory: 8 * positions }
    }

    fn check(&self, n: u64) -> Result<()> {
        let fits = is_descending(&self.bounds)
            && self.bounds.len() < usize::from(MAX_CLASSES)
            && self.ranks.len() == self.bounds.len() + 1
            && self.ranks.iter().all(|ranks| is_ascending(ranks, n))
            && self.counts().iter().sum::<u64>() <= n;
        if fits { Ok(()) } else { Err(Error::inconsistent("classes do not fit the index space")) }
    }

    fn count(&self, _: &Surroundings<'_>) -> Result<u64> {
        Ok(self.counts().iter().sum())
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        coder: &mut Coder<'_>,
        around: &Surroundings<'_>,
        _: Positions,
    ) -> Result<SupportId> {
        out.extend([super::BASE, self.ranks.len() as u8]);
        out.extend_from_slice(&self.bounds);
        let ends = vec![around.space.len()];
        let group = |ranks: &Vec<u64>| Group { ends: ends.clone(), ranks: ranks.clone() };
        gaps::write_groups(out, coder, &self.ranks.iter().map(group).collect::<Vec<_>>());
        Ok(super::ID)
    }

    fn read(
        cursor: &mut Cursor<'_>,
        decoder: &mut Decoder<'_>,
        _: SupportId,
        around: &Surroundings<'_>,
    ) -> Result<Self> {
        cursor.u8_in("rule of classes", super::BASE, super::BASE)?;
        let classes = cursor.u8_in("number of classes", 1, MAX_CLASSES)?;
        Self::read_classes(cursor, decoder, classes, around.space.len())
    }

    fn validate(cursor: &mut Cursor<'_>, _: SupportId, around: &Surroundings<'_>) -> Result<Validated> {
        super::validate(cursor, around, &Budget::new(&Limits::default()))
    }

    fn for_each_run(&self, _: u64, _: &Sets, _: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        Err(Error::input(InputErrorKind::MissingBase))
    }
}

fn is_descending(bounds: &[u8]) -> bool {
    bounds.is_sorted_by(|a, b| a > b) && bounds.last() != Some(&0)
}

/// Clears the bits behind the first `len` elements of a step.
fn limit(masks: &mut [u64; ROWS], len: usize) {
    for (row, mask) in masks.iter_mut().enumerate().skip(len / 64) {
        let inside = len.saturating_sub(64 * row);
        *mask &= if inside >= 64 { u64::MAX } else { (1 << inside) - 1 };
    }
}

/// Calls `f` with each step of elements: its first position in the space, its keys, and its length.
fn for_each_step(dtype: Dtype, base: &[BaseElements<'_>], mut f: impl FnMut(u64, &[[u8; 64]], usize)) {
    let mut keys = [[0; 64]; ROWS];
    let mut position = 0u64;
    for part in base {
        let mut at = 0;
        while at < part.len {
            let len = in_memory(part.len - at).min(STEP);
            fill_keys(dtype, part.data, part.start + at, &mut keys.as_flattened_mut()[..len]);
            f(position, &keys, len);
            at += len as u64;
            position += len as u64;
        }
    }
}

/// Calls `f` with the keys of all elements, in steps.
pub(crate) fn for_each_keys(dtype: Dtype, base: &[BaseElements<'_>], mut f: impl FnMut(u64, &[u8])) {
    for_each_step(dtype, base, |position, keys, len| f(position, &keys.as_flattened()[..len]));
}

/// Writes the keys of the elements from `start` on.
fn fill_keys(dtype: Dtype, data: &[u8], start: u64, keys: &mut [u8]) {
    let bytes = |width: u64| data.get(in_memory(start * width)..).unwrap_or_default();
    match (dtype.is_float(), dtype.bits()) {
        (true, 16) => arch::run(Keys16 { elements: bytes(2).as_chunks().0, keys }),
        (true, 32) => arch::run(Keys32 { elements: bytes(4).as_chunks().0, keys }),
        (is_float, bits) => {
            let magnitude = if is_float { bits - 1 } else { bits };
            let mask = u64::MAX >> (64 - magnitude);
            for (key, at) in keys.iter_mut().zip(start..) {
                let element = bits_at(dtype, data, at).unwrap_or(0) & mask;
                *key = (element >> magnitude.saturating_sub(8)) as u8;
            }
        }
    }
}

struct Keys16<'a> {
    elements: &'a [[u8; 2]],
    keys: &'a mut [u8],
}

impl Kernel for Keys16<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (key, element) in self.keys.iter_mut().zip(self.elements) {
            *key = (u16::from_le_bytes(*element) >> 7) as u8;
        }
    }
}

struct Keys32<'a> {
    elements: &'a [[u8; 4]],
    keys: &'a mut [u8],
}

impl Kernel for Keys32<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (key, element) in self.keys.iter_mut().zip(self.elements) {
            *key = (u32::from_le_bytes(*element) >> 23) as u8;
        }
    }
}

/// A class whose positions are looked for.
struct Class<'a> {
    /// Smallest and largest key.
    range: (u8, u8),
    /// Ranks that are not found yet.
    ranks: &'a [u64],
    /// Number of the value of the first of them.
    value: usize,
    /// Elements of the class before the step.
    passed: u64,
}

/// Finds the positions of the ranks of a class inside one step.
struct Select<'a, 'b> {
    masks: &'a [u64; ROWS],
    class: &'a mut Class<'b>,
    /// First position of the step.
    position: u64,
    found: &'a mut Vec<(u64, usize)>,
}

impl Kernel for Select<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { masks, class, position, found } = self;
        let Class { ranks, value, passed, .. } = class;
        let mut taken = 0;
        let mut next = ranks.first().copied().unwrap_or(u64::MAX);
        let mut before = *passed;
        for (row, &mask) in masks.iter().enumerate() {
            let end = before + u64::from(mask.count_ones());
            let (mut mask, mut first) = (mask, before);
            while next < end {
                while first < next {
                    mask &= mask - 1;
                    first += 1;
                }
                found.push((position + 64 * row as u64 + u64::from(mask.trailing_zeros()), *value + taken));
                taken += 1;
                next = ranks.get(taken).copied().unwrap_or(u64::MAX);
            }
            before = end;
        }
        *passed = before;
        *ranks = &ranks[taken..];
        *value += taken;
    }
}

/// Finds the ranks of the positions of a class inside one step.
struct Rank<'a> {
    masks: &'a [u64; ROWS],
    changed: &'a [u64; ROWS],
    /// Number of the first position in each row.
    firsts: &'a [usize; ROWS],
    passed: &'a mut u64,
    ranks: &'a mut Vec<u64>,
    order: &'a mut Vec<usize>,
}

impl Kernel for Rank<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { masks, changed, firsts, passed, ranks, order } = self;
        for ((&mask, &changed), &first) in masks.iter().zip(changed).zip(firsts) {
            let mut hits = mask & changed;
            while hits != 0 {
                let below = (hits & hits.wrapping_neg()) - 1;
                ranks.push(*passed + u64::from((mask & below).count_ones()));
                order.push(first + in_memory((changed & below).count_ones().into()));
                hits &= hits - 1;
            }
            *passed += u64::from(mask.count_ones());
        }
    }
}
