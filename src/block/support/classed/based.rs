//! Classes by the element of the base (spec, supports/classed.md, rule 1).

use crate::arch::masks::Rows;
use crate::arch::{self, Kernel, pages};
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
pub(crate) const STEP: usize = 64 * ROWS;
/// Rows of 64 elements in a step.
pub(crate) const ROWS: usize = 64;

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

    /// The positions, each with the number of its value. They are about ascending.
    ///
    /// # Errors
    /// [`Error::Format`] if a class has fewer elements in the base than a rank needs (CLS-4).
    pub fn positions(&self, dtype: Dtype, base: &[BaseElements<'_>]) -> Result<Vec<(u64, usize)>> {
        let mut found = Vec::with_capacity(self.ranks.iter().map(Vec::len).sum());
        let mut selector = Selector::new(self, dtype);
        let mut position = 0;
        for part in base {
            for (start, len) in steps(part.len) {
                selector.load(part.data, part.start + start, len);
                selector.find(|places, value| {
                    let positions = places.iter().map(|&place| position + start + u64::from(place));
                    found.extend(positions.zip(value..));
                });
            }
            position += part.len;
        }
        selector.finish()?;
        Ok(found)
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
        let n = [around.space.len()];
        let group = |class: usize| Group::new(std::slice::from_ref(&self.ranks[class]), &n);
        gaps::write_groups(out, coder, self.ranks.len(), group);
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

/// The steps of `len` elements: the first element of each, and the number of elements.
pub(crate) fn steps(len: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..len).step_by(STEP).map(move |start| (start, in_memory(len - start).min(STEP)))
}

/// Returns the key of an element.
pub(crate) fn key(dtype: Dtype, element: u64) -> u8 {
    let magnitude = dtype.bits() - u32::from(dtype.is_float());
    ((element & u64::MAX >> (64 - magnitude)) >> magnitude.saturating_sub(8)) as u8
}

/// Writes the keys of the elements from `start` on.
pub(crate) fn fill_keys(dtype: Dtype, data: &[u8], start: u64, keys: &mut [u8]) {
    let bytes = |width: u64| data.get(in_memory(start * width)..).unwrap_or_default();
    match (dtype.is_float(), dtype.bits()) {
        (true, 16) => arch::run(Keys16 { elements: bytes(2).as_chunks().0, keys }),
        (true, 32) => arch::run(Keys32 { elements: bytes(4).as_chunks().0, keys }),
        _ => {
            for (own, at) in keys.iter_mut().zip(start..) {
                *own = key(dtype, bits_at(dtype, data, at).unwrap_or(0));
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

/// Keys of the elements of a step.
type StepKeys = [[u8; 64]; ROWS];

/// Finds the elements of a step of `len` elements whose keys are in a range, and returns their number.
fn find_rows(keys: &StepKeys, len: usize, (low, high): (u8, u8), rows: &mut Rows) -> u64 {
    let found = arch::ranges::in_range(arch::widest(), keys, low, high - low, rows);
    if len == STEP {
        return found;
    }
    let (last, inside) = (len / 64, len % 64);
    rows.masks[last] &= (1 << inside) - 1;
    rows.masks[last + 1..].fill(0);
    let end = rows.before[last] + rows.masks[last].count_ones() as u16;
    rows.before[last + 1..].fill(end);
    end.into()
}

/// Finds positions in the base, step by step.
pub(crate) struct Selector<'a> {
    dtype: Dtype,
    keys: Box<StepKeys>,
    /// Number of elements in the step.
    len: usize,
    rows: Rows,
    /// Places of a class's elements in a step.
    places: Vec<u16>,
    classes: Vec<Class<'a>>,
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

impl<'a> Selector<'a> {
    pub(crate) fn new(based: &'a Based, dtype: Dtype) -> Self {
        let mut first_value = 0;
        let classes = based.ranks.iter().zip(based.ranges()).map(|(ranks, range)| {
            let value = first_value;
            first_value += ranks.len();
            Class { range, ranks, value, passed: 0 }
        });
        Self {
            dtype,
            keys: Box::new([[0; 64]; ROWS]),
            len: 0,
            rows: Rows::EMPTY,
            places: vec![0; STEP],
            classes: classes.filter(|class| !class.ranks.is_empty()).collect(),
        }
    }

    /// Takes the next elements of the base, at most [`STEP`]: those of `data` from `start` on.
    pub(crate) fn load(&mut self, data: &[u8], start: u64, len: usize) {
        fill_keys(self.dtype, data, start, &mut self.keys.as_flattened_mut()[..len]);
        self.len = len;
    }

    /// Finds the positions among the elements loaded last. `f` is called for each class with the places of
    /// its positions in the step, and with the number of the first one's value.
    pub(crate) fn find(&mut self, mut f: impl FnMut(&[u16], usize)) {
        let Self { keys, len, rows, places, classes, .. } = self;
        for class in classes.iter_mut().filter(|class| !class.ranks.is_empty()) {
            let in_step = find_rows(keys, *len, class.range, rows);
            let found = arch::masks::select(arch::widest(), rows, class.ranks, class.passed, in_step, places);
            f(&places[..found], class.value);
            class.passed += in_step;
            class.ranks = &class.ranks[found..];
            class.value += found;
        }
    }

    /// Checks that all positions were found.
    ///
    /// # Errors
    /// [`Error::Format`] if a class has fewer elements in the base than a rank needs (CLS-4).
    pub(crate) fn finish(self) -> Result<()> {
        match self.classes.iter().find(|class| !class.ranks.is_empty()) {
            Some(&Class { ranks, passed, .. }) => {
                Err(Error::format(FormatErrorKind::PositionOutOfRange { position: ranks[0], len: passed }, 0))
            }
            None => Ok(()),
        }
    }
}

/// Divides changed elements into classes.
pub(crate) struct Ranker {
    dtype: Dtype,
    class_of: [u8; 256],
    keys: Box<StepKeys>,
    /// The elements of each class in the current step.
    rows: Vec<Rows>,
    ranked: Vec<Ranked>,
    based: Based,
}

/// Changed elements of a class.
struct Ranked {
    ranks: Vec<u64>,
    values: Vec<i64>,
    /// Number of the class's elements before the step.
    passed: u64,
    /// Number of the class's elements up to the end of the step.
    end: u64,
}

impl Ranked {
    fn with_room(changed: u64) -> Self {
        // The number comes from a sample.
        let room = in_memory(changed + changed / 16 + 16);
        Self { ranks: pages::with_room(room), values: pages::with_room(room), passed: 0, end: 0 }
    }
}

impl Ranker {
    /// Returns a ranker of classes with these bounds. `changed`: about the number of changed elements in each
    /// class, for which it takes memory.
    pub(crate) fn new(dtype: Dtype, bounds: Vec<u8>, changed: &[u64]) -> Self {
        let classes = bounds.len() + 1;
        let based = Based { bounds, ranks: Vec::new() };
        let mut class_of = [0; 256];
        for (class, (low, high)) in (0..).zip(based.ranges()) {
            class_of[usize::from(low)..=usize::from(high)].fill(class);
        }
        Self {
            dtype,
            class_of,
            keys: Box::new([[0; 64]; ROWS]),
            rows: vec![Rows::EMPTY; classes],
            ranked: changed.iter().map(|&changed| Ranked::with_room(changed)).collect(),
            based,
        }
    }

    /// Adds the next elements of the base, at most [`STEP`]. `changed`: the numbers of those that change, in
    /// ascending order; `values`: a value of each of them; `ahead`: what the next call reads.
    pub(crate) fn add(
        &mut self,
        base: &[u8],
        len: usize,
        changed: &[u16],
        values: &[i64],
        ahead: [&[u8]; 2],
    ) {
        fill_keys(self.dtype, base, 0, &mut self.keys.as_flattened_mut()[..len]);
        let classes = self.rows.iter_mut().zip(&mut self.ranked).zip(self.based.ranges());
        // Between the classes, memory has time to answer: in one piece, the requests would have to wait.
        let part = ahead[0].len() / classes.len() + 1;
        let mut ahead = ahead.map(|bytes| bytes.chunks(part));
        for ((rows, ranked), range) in classes {
            ahead.iter_mut().filter_map(Iterator::next).for_each(arch::prefetch::prefetch);
            ranked.passed = ranked.end;
            ranked.end += find_rows(&self.keys, len, range, rows);
        }
        let Self { keys, class_of, rows, ranked, .. } = self;
        arch::run(Rank { keys, changed, values, class_of, rows, ranked });
    }

    /// Returns the positions by class, and the values in their order.
    pub(crate) fn finish(self) -> (Based, Vec<i64>) {
        let Self { mut based, ranked, .. } = self;
        let mut values = pages::with_room(ranked.iter().map(|r| r.values.len()).sum());
        for class in ranked {
            based.ranks.push(class.ranks);
            values.extend(class.values);
        }
        (based, values)
    }
}

/// Finds the ranks of the changed elements of one step.
struct Rank<'a> {
    keys: &'a StepKeys,
    changed: &'a [u16],
    values: &'a [i64],
    class_of: &'a [u8; 256],
    rows: &'a [Rows],
    ranked: &'a mut [Ranked],
}

impl Kernel for Rank<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { keys, changed, values, class_of, rows, ranked } = self;
        for (&at, &value) in changed.iter().zip(values) {
            let (row, bit) = (usize::from(at) / 64 % ROWS, usize::from(at) % 64);
            let class = usize::from(class_of[usize::from(keys[row][bit])]);
            let (rows, ranked) = (&rows[class], &mut ranked[class]);
            let below = rows.masks[row] & ((1 << bit) - 1);
            let inside = u64::from(rows.before[row]) + u64::from(below.count_ones());
            ranked.ranks.push(ranked.passed + inside);
            ranked.values.push(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_fit_their_space() {
        let check = |bounds: Vec<u8>, ranks: &[&[u64]], n| {
            Based { bounds, ranks: ranks.iter().map(|ranks| ranks.to_vec()).collect() }.check(n).is_ok()
        };
        assert!(check(vec![], &[&[0, 1, 2]], 3));
        assert!(check(vec![9, 1], &[&[0], &[], &[0, 1]], 3));
        let none: &[u64] = &[];
        assert!(check((1..64).rev().collect(), &[none; 64], 3));
        type Case<'a> = (Vec<u8>, &'a [&'a [u64]], u64);
        let wrong: [Case<'_>; 7] = [
            ((1..=64).rev().collect(), &[none; 65], 3),
            (vec![9, 0], &[&[0], &[], &[1]], 3),
            (vec![9, 9], &[&[0], &[], &[1]], 3),
            (vec![9, 1], &[&[0], &[]], 3),
            (vec![], &[&[1, 1]], 3),
            (vec![], &[&[3]], 3),
            (vec![9], &[&[0, 1], &[0, 1]], 3),
        ];
        for (bounds, ranks, n) in wrong {
            assert!(!check(bounds.clone(), ranks, n), "{bounds:?} {ranks:?}");
        }
    }

    #[test]
    fn positions_need_the_base() {
        let based = Based { bounds: vec![128], ranks: vec![vec![0], vec![0, 2]] };
        let e = based.for_each_run(8, &Sets::new(), &mut |_, _| Ok(())).unwrap_err();
        assert_eq!(e.to_string(), Error::input(InputErrorKind::MissingBase).to_string());
        let base = [BaseElements { data: &[1, 200, 3, 4], start: 0, len: 4 }];
        assert_eq!(based.positions(Dtype::U8, &base).unwrap(), [(1, 0), (0, 1), (3, 2)]);
    }

    #[test]
    fn an_error_names_the_first_rank_beyond_its_class() {
        let based = Based { bounds: vec![128], ranks: vec![vec![0], vec![0, 2, 5]] };
        let base = [BaseElements { data: &[1, 200, 3, 4], start: 0, len: 4 }];
        let e = based.positions(Dtype::U8, &base).unwrap_err();
        let kind = FormatErrorKind::PositionOutOfRange { position: 5, len: 3 };
        assert_eq!(e.to_string(), Error::format(kind, 0).to_string());
    }
}
