//! Supports on the wire (spec, supports/).
//!
//! Each kind is a struct in a file of this folder and implements [`Kind`]. This file lists the kinds and is
//! the only place that chooses between them.

mod all;
mod chunked;
mod classed;
mod kind;
mod rows;
mod seeded;
mod set;
mod sparse;

pub use chunked::Chunked;
pub use classed::{BaseElements, Based};
pub(crate) use classed::{ROWS, Ranker, STEP, Selector, fill_keys, steps};
pub use rows::Rows;
pub use seeded::Seeded;
pub use set::{Set, SetId};
pub use sparse::{Positions, Sparse};

use all::All;
pub(crate) use kind::Validated;
use kind::{Facts, Kind};

use crate::arch::{self, Kernel};
use crate::bits::Cursor;
use crate::block::Sets;
use crate::block::space::Surroundings;
use crate::codes::{Coder, Decoder};
use crate::error::{Error, Result};
use crate::limits::Budget;

/// The elements that a block has values for, in an index space of `n` elements (spec, supports/).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Support {
    /// All elements.
    All,
    /// The elements at some positions.
    Sparse(Sparse),
    /// A fixed number of elements in each chunk.
    Chunked(Chunked),
    /// Whole rows.
    Rows(Rows),
    /// Positions drawn from a seed.
    Seeded(Seeded),
    /// The positions of an index set.
    Set(Set),
    /// Positions of changed elements, given the base.
    Based(Based),
}

impl SupportId {
    /// [`Support::All`]: `supports/all.md`
    pub const ALL: Self = All::ID;
    /// [`Sparse`]: `supports/gaps-rice.md`
    pub const GAPS_RICE: Self = Sparse::GAPS_RICE;
    /// [`Sparse`]: `supports/gaps-tokens.md`
    pub const GAPS_TOKENS: Self = Sparse::GAPS_TOKENS;
    /// [`Sparse`]: `supports/bitmap.md`
    pub const BITMAP: Self = Sparse::BITMAP;
    /// [`Chunked`]: `supports/chunked.md`
    pub const CHUNKED: Self = Chunked::ID;
    /// [`Rows`]: `supports/rows.md`
    pub const ROWS: Self = Rows::ID;
    /// [`Seeded`]: `supports/seeded.md`
    pub const SEEDED: Self = Seeded::ID;
    /// [`Set`]: `supports/set.md`
    pub const SET: Self = Set::ID;
    /// [`Sparse`] and [`Based`]: `supports/classed.md`
    pub const CLASSED: Self = classed::ID;

    /// Every registered kind with its name.
    pub const REGISTERED: [(Self, &'static str); 9] = [
        (Self::ALL, "all"),
        (Self::GAPS_RICE, "gaps-rice"),
        (Self::GAPS_TOKENS, "gaps-tokens"),
        (Self::BITMAP, "bitmap"),
        (Self::CHUNKED, "chunked"),
        (Self::ROWS, "rows"),
        (Self::SEEDED, "seeded"),
        (Self::SET, "set"),
        (Self::CLASSED, "classed"),
    ];

    /// Whether readers of the core profile know the kind (spec, core.md).
    pub fn is_core(self) -> bool {
        matches!(self, Self::ALL | Self::GAPS_RICE | Self::GAPS_TOKENS | Self::BITMAP)
    }
}

impl Support {
    /// The only choice between supports in memory; [`Self::read_kind`] and [`Self::validate_kind`] choose by
    /// an id.
    fn kind(&self) -> &dyn Kind {
        match self {
            Self::All => &All,
            Self::Sparse(support) => support,
            Self::Chunked(support) => support,
            Self::Rows(support) => support,
            Self::Seeded(support) => support,
            Self::Set(support) => support,
            Self::Based(support) => support,
        }
    }

    /// The properties that other layers need.
    pub(crate) fn facts(&self) -> Facts {
        self.kind().facts()
    }

    /// Checks that the support fits a space of `n` elements.
    ///
    /// # Errors
    /// [`Error::Input`] if it does not.
    pub(crate) fn check(&self, n: u64) -> Result<()> {
        self.kind().check(n)
    }

    /// The number of elements.
    ///
    /// # Errors
    /// [`Error::Input`] for a set that is not known, and for more rows than 64 bits count.
    pub(crate) fn count(&self, around: &Surroundings<'_>) -> Result<u64> {
        self.kind().count(around)
    }

    /// Appends the wire form of a checked support, and returns the kind that was chosen.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        coder: &mut Coder<'_>,
        around: &Surroundings<'_>,
        positions: Positions,
    ) -> Result<SupportId> {
        self.kind().write(out, coder, around, positions)
    }

    fn read_kind(
        cursor: &mut Cursor<'_>,
        decoder: &mut Decoder<'_>,
        id: SupportId,
        around: &Surroundings<'_>,
    ) -> Result<Self> {
        Ok(match id {
            All::ID => Self::All,
            Sparse::GAPS_RICE | Sparse::GAPS_TOKENS | Sparse::BITMAP => {
                Self::Sparse(Sparse::read(cursor, decoder, id, around)?)
            }
            Chunked::ID => Self::Chunked(Chunked::read(cursor, decoder, id, around)?),
            Rows::ID => Self::Rows(Rows::read(cursor, decoder, id, around)?),
            Seeded::ID => Self::Seeded(Seeded::read(cursor, decoder, id, around)?),
            Set::ID => Self::Set(Set::read(cursor, decoder, id, around)?),
            classed::ID => classed::read(cursor, decoder, around)?,
            SupportId(other) => return Err(Error::unsupported("support", other, cursor.offset())),
        })
    }

    fn validate_kind(
        cursor: &mut Cursor<'_>,
        id: SupportId,
        around: &Surroundings<'_>,
        budget: &Budget,
    ) -> Result<Validated> {
        match id {
            All::ID => All::validate(cursor, id, around),
            Sparse::GAPS_RICE | Sparse::GAPS_TOKENS | Sparse::BITMAP => Sparse::validate(cursor, id, around),
            Chunked::ID => Chunked::validate(cursor, id, around),
            Rows::ID => Rows::validate(cursor, id, around),
            Seeded::ID => Seeded::validate(cursor, id, around),
            Set::ID => Set::validate(cursor, id, around),
            classed::ID => classed::validate(cursor, around, budget),
            SupportId(other) => Err(Error::unsupported("support", other, cursor.offset())),
        }
    }

    /// Calls `f` with every position of a support over `n` elements, ascending, in runs: first position,
    /// number.
    ///
    /// # Errors
    /// The errors of `f`, and [`Error::Input`] for a set that is not known.
    pub(crate) fn for_each_run(
        &self,
        n: u64,
        sets: &Sets,
        f: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        self.kind().for_each_run(n, sets, f)
    }
}

impl Support {
    /// Whether the bytes of a support of kind `id` are positions classed by the base.
    pub(crate) fn needs_base(id: SupportId, bytes: &[u8]) -> bool {
        id == classed::ID && bytes.first() == Some(&classed::BASE)
    }

    /// Whether the bytes of a support of kind `id` are those of [`Support::Sparse`].
    pub(crate) fn is_sparse(id: SupportId, bytes: &[u8]) -> bool {
        let kinds = [SupportId::GAPS_RICE, SupportId::GAPS_TOKENS, SupportId::BITMAP, SupportId::CLASSED];
        kinds.contains(&id) && !Self::needs_base(id, bytes)
    }

    /// Returns the positions of a [`Support::Sparse`].
    pub(crate) fn into_positions(self) -> Option<Vec<u64>> {
        match self {
            Self::Sparse(sparse) => Some(sparse.positions),
            _ => None,
        }
    }

    /// The numbers of values in each group of positions classed by the base; none for other supports.
    pub(crate) fn group_counts(&self) -> Vec<u64> {
        match self {
            Self::Based(based) => based.counts(),
            _ => Vec::new(),
        }
    }

    /// Reads a support of kind `id` from all bytes of `cursor`, and returns it with the number of its
    /// elements.
    pub(crate) fn read(
        mut cursor: Cursor<'_>,
        decoder: &mut Decoder<'_>,
        id: SupportId,
        around: &Surroundings<'_>,
    ) -> Result<(Self, u64)> {
        let support = Self::read_kind(&mut cursor, decoder, id, around)?;
        cursor.finish()?;
        let count = support.count(around)?;
        Ok((support, count))
    }

    /// Checks a support of kind `id` in all bytes of `cursor` without decoding its codes, except those of
    /// classes, within `budget`.
    ///
    /// # Errors
    /// The errors of [`Self::read`] that show without decoding, and
    /// [`FormatErrorKind::UnknownReference`](crate::error::FormatErrorKind::UnknownReference) for codes that
    /// refer to a shared frequency table.
    pub(crate) fn validate(
        mut cursor: Cursor<'_>,
        id: SupportId,
        around: &Surroundings<'_>,
        budget: &Budget,
    ) -> Result<Validated> {
        let validated = Self::validate_kind(&mut cursor, id, around, budget)?;
        cursor.finish()?;
        Ok(validated)
    }
}

/// A support kind's number in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SupportId(pub u64);

impl SupportId {
    /// The kind's name in the registry.
    pub fn name(self) -> Option<&'static str> {
        Self::REGISTERED.iter().find(|(id, _)| *id == self).map(|(_, name)| *name)
    }
}

impl std::fmt::Display for SupportId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "support {:#x}", self.0),
        }
    }
}

/// Whether positions are strictly ascending and below `n`.
fn is_ascending(positions: &[u64], n: u64) -> bool {
    arch::run(Ascending(positions)) && positions.last().is_none_or(|&last| last < n)
}

/// Whether each number is above the one before.
struct Ascending<'a>(&'a [u64]);

impl Kernel for Ascending<'_> {
    type Output = bool;

    #[inline(always)]
    fn call(self) -> bool {
        // Without an early end, so that it takes vector instructions.
        self.0.array_windows().fold(true, |all, [before, after]| all & (before < after))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::block::{IndexSpace, Scope, SharedSet};
    use crate::codes::Entropy;
    use crate::limits::Limits;
    use crate::tensor::Dtype;

    const SET: SetId = SetId([7; 32]);

    /// A support of each kind in a space of 12 elements, the number of its elements, its weight, and the
    /// bytes of its positions in memory.
    fn supports() -> [(Support, u64, u64, u64); 7] {
        [
            (Support::All, 12, 0, 0),
            (Support::Sparse(Sparse { positions: vec![0, 5, 11] }), 3, 6, 24),
            // Chunks of 5, 5 and 2 elements.
            (
                Support::Chunked(Chunked { chunk_len: 5, kept: 2, positions: vec![0, 4, 1, 2, 0, 1] }),
                6,
                24,
                24,
            ),
            (Support::Rows(Rows { row_len: 4, rows: vec![0, 1, 2] }), 12, 6, 24),
            (Support::Seeded(Seeded { count: 5, seed: 9 }), 5, 0, 0),
            (Support::Set(Set { id: SET }), 2, 0, 0),
            (Support::Based(Based { bounds: vec![8], ranks: vec![vec![0, 2], vec![1, 3, 11]] }), 5, 10, 40),
        ]
    }

    /// Calls `f` with each of [`supports`], its kind on the wire, its bytes, and its surroundings.
    fn for_each_written(f: impl Fn(usize, &Support, SupportId, &[u8], &Surroundings<'_>)) {
        let support = Support::Sparse(Sparse { positions: vec![1, 4] });
        let set = SharedSet { manifest: [3; 32], scope: Scope::Tensor(5), support, count: 2 };
        let (space, sets) = (IndexSpace::flat(Dtype::F32, 12), Sets::from([(SET, Arc::new(set))]));
        let around = Surroundings { space: &space, manifest: [3; 32], scope: Scope::Tensor(5), sets: &sets };
        for (i, (support, ..)) in supports().iter().enumerate() {
            let mut bytes = Vec::new();
            let mut coder = Coder::new(Entropy::Auto, &[], None);
            let id = support.write(&mut bytes, &mut coder, &around, Positions::Auto).unwrap();
            f(i, support, id, &bytes, &around);
        }
    }

    fn validate(bytes: &[u8], id: SupportId, around: &Surroundings<'_>) -> Result<Validated> {
        Support::validate(Cursor::new(bytes, 0, "support"), id, around, &Budget::new(&Limits::default()))
    }

    fn read(bytes: &[u8], id: SupportId, around: &Surroundings<'_>) -> Result<(Support, u64)> {
        let budget = Budget::new(&Limits::default());
        let mut decoder = Decoder { tables: &[], budget: &budget };
        Support::read(Cursor::new(bytes, 0, "support"), &mut decoder, id, around)
    }

    #[test]
    fn each_kind_tells_its_elements_weight_and_memory() {
        for_each_written(|i, support, id, bytes, around| {
            let (_, count, weight, memory) = supports()[i];
            let facts = support.facts();
            assert_eq!((facts.weight, facts.memory), (weight, memory), "{support:?}");
            let validated = validate(bytes, id, around).unwrap();
            assert_eq!((validated.count, validated.weight), (count, weight), "{support:?}");
            assert_eq!(validated.group_counts, support.group_counts(), "{support:?}");
        });
    }

    #[test]
    fn each_kind_comes_back_from_all_of_its_bytes() {
        for_each_written(|i, support, id, bytes, around| {
            assert_eq!(read(bytes, id, around).unwrap(), (support.clone(), supports()[i].1));
            let longer = [bytes, &[0]].concat();
            assert_eq!(read(&longer, id, around).unwrap_err().name(), "length_mismatch", "{support:?}");
            assert_eq!(validate(&longer, id, around).unwrap_err().name(), "length_mismatch", "{support:?}");
        });
    }

    #[test]
    fn only_positions_classed_by_the_base_need_it() {
        for_each_written(|_, support, id, bytes, _| {
            assert_eq!(Support::needs_base(id, bytes), matches!(support, Support::Based(_)), "{support:?}");
        });
        assert!(!Support::needs_base(SupportId::CLASSED, &[2, 1]), "rows and columns");
    }
}
