//! Supports on the wire (spec, supports/): each kind's two directions side by side.

mod chunked;
mod rows;
mod seeded;
mod sparse;

use crate::bits::Cursor;
use crate::block::space::Surroundings;
use crate::block::{SetId, Support};
use crate::codes::{Coder, Decoder};
use crate::error::{Error, FormatErrorKind, InputErrorKind, Result};
use crate::limits::in_memory;

pub use sparse::Positions;

/// A support kind's number in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SupportId(pub u64);

impl SupportId {
    /// `supports/all.md`
    pub const ALL: Self = Self(1);
    /// `supports/gaps-rice.md`
    pub const GAPS_RICE: Self = Self(2);
    /// `supports/gaps-tokens.md`
    pub const GAPS_TOKENS: Self = Self(3);
    /// `supports/bitmap.md`
    pub const BITMAP: Self = Self(4);
    /// `supports/chunked.md`
    pub const CHUNKED: Self = Self(5);
    /// `supports/rows.md`
    pub const ROWS: Self = Self(6);
    /// `supports/seeded.md`
    pub const SEEDED: Self = Self(7);
    /// `supports/set.md`
    pub const SET: Self = Self(8);

    /// Every registered kind with its name.
    pub const REGISTERED: [(Self, &'static str); 8] = [
        (Self::ALL, "all"),
        (Self::GAPS_RICE, "gaps-rice"),
        (Self::GAPS_TOKENS, "gaps-tokens"),
        (Self::BITMAP, "bitmap"),
        (Self::CHUNKED, "chunked"),
        (Self::ROWS, "rows"),
        (Self::SEEDED, "seeded"),
        (Self::SET, "set"),
    ];

    /// Its name in the registry.
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

/// How many elements a support has in a space of `n`.
pub(crate) fn count(support: &Support, n: u64, around: &Surroundings<'_>) -> Result<u64> {
    match support {
        Support::All => Ok(n),
        Support::Sparse(positions) => Ok(positions.len() as u64),
        Support::Chunked { positions, .. } => Ok(positions.len() as u64),
        Support::Rows { row_len, rows } => (rows.len() as u64)
            .checked_mul(*row_len)
            .ok_or(Error::inconsistent("more rows than the space has")),
        Support::Seeded { count, .. } => Ok(*count),
        Support::Set(id) => match around.sets.get(id) {
            Some(set) => Ok(set.count),
            None => Err(Error::input(InputErrorKind::MissingIndexSet { id: head(id) })),
        },
    }
}

impl Support {
    /// Bytes of its positions in memory.
    pub(crate) fn memory(&self) -> u64 {
        let bytes = match self {
            Self::Sparse(positions) => size_of_val(positions.as_slice()),
            Self::Chunked { positions, .. } => size_of_val(positions.as_slice()),
            Self::Rows { rows, .. } => size_of_val(rows.as_slice()),
            Self::All | Self::Seeded { .. } | Self::Set(_) => 0,
        };
        bytes as u64
    }
}

fn head(id: &SetId) -> [u8; 8] {
    std::array::from_fn(|i| id.0[i])
}

/// Appends a support over `n` elements and says which kind it took. The support has been checked.
pub(crate) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    support: &Support,
    n: u64,
    positions: Positions,
) -> Result<SupportId> {
    match support {
        Support::All => Ok(SupportId::ALL),
        Support::Sparse(list) => sparse::write(out, coder, list, n, positions),
        Support::Chunked { chunk_len, kept, positions } => {
            chunked::write(out, *chunk_len, *kept, positions, n)
        }
        Support::Rows { row_len, rows } => rows::write(out, coder, *row_len, rows, n, positions),
        Support::Seeded { count, seed } => seeded::write(out, *count, *seed, n),
        Support::Set(id) => {
            out.extend_from_slice(&id.0);
            Ok(SupportId::SET)
        }
    }
}

/// Reads a support of kind `id`, all of `cursor`, over `n` elements, and says how many elements it has.
pub(crate) fn read(
    mut cursor: Cursor<'_>,
    decoder: &mut Decoder<'_>,
    id: SupportId,
    around: &Surroundings<'_>,
) -> Result<(Support, u64)> {
    let n = around.space.len();
    let offset = cursor.offset();
    let support = match id {
        SupportId::ALL => Support::All,
        SupportId::GAPS_RICE | SupportId::GAPS_TOKENS | SupportId::BITMAP => {
            Support::Sparse(sparse::read(&mut cursor, decoder, id, n)?)
        }
        SupportId::CHUNKED => chunked::read(&mut cursor, decoder, n)?,
        SupportId::ROWS => rows::read(&mut cursor, decoder, n)?,
        SupportId::SEEDED => seeded::read(&mut cursor, decoder, n)?,
        SupportId::SET => {
            let id = SetId(cursor.array()?);
            let set = around.sets.get(&id);
            let set =
                set.ok_or(Error::format(FormatErrorKind::UnknownReference { field: "index set" }, offset))?;
            if set.scope != around.scope || set.manifest != around.manifest {
                return Err(Error::format(FormatErrorKind::CountMismatch { field: "index set" }, offset));
            }
            if let Support::Seeded { count, .. } = set.support {
                // Drawn anew by each block that refers to it.
                seeded::reserve(decoder, count, offset)?;
            }
            Support::Set(id)
        }
        SupportId(other) => return Err(Error::unsupported("support", other, offset)),
    };
    cursor.finish()?;
    let count = count(&support, n, around)?;
    Ok((support, count))
}

/// What can be told of a support in wire form without decoding its codes.
pub(crate) struct Skimmed {
    /// How many elements it has.
    pub(crate) count: u64,
    /// What it weighs decoded.
    pub(crate) weight: u64,
}

/// Checks what can be told of a support of kind `id`, all of `cursor`, without decoding its codes.
///
/// # Errors
/// Those of [`read`] that can be told, and [`FormatErrorKind::UnknownReference`] if it refers to a shared frequency table.
pub(crate) fn skim(mut cursor: Cursor<'_>, id: SupportId, around: &Surroundings<'_>) -> Result<Skimmed> {
    let n = around.space.len();
    let offset = cursor.offset();
    let (count, weight) = match id {
        SupportId::ALL => (n, 0),
        SupportId::GAPS_RICE | SupportId::GAPS_TOKENS | SupportId::BITMAP => {
            let count = sparse::skim(&mut cursor, id, n)?;
            (count, count.saturating_mul(2))
        }
        SupportId::CHUNKED => {
            let count = chunked::skim(&mut cursor, n)?;
            (count, count.saturating_mul(4))
        }
        SupportId::ROWS => {
            let (row_len, rows) = rows::skim(&mut cursor, n)?;
            (row_len.saturating_mul(rows), rows.saturating_mul(2))
        }
        SupportId::SEEDED => (seeded::skim(&mut cursor, n)?, 0),
        SupportId::SET => {
            let id = SetId(cursor.array()?);
            let fits = |set: &&std::sync::Arc<crate::block::SharedSet>| {
                set.scope == around.scope && set.manifest == around.manifest
            };
            let set = around.sets.get(&id).filter(fits);
            (set.ok_or(Error::input(InputErrorKind::MissingIndexSet { id: head(&id) }))?.count, 0)
        }
        SupportId(other) => return Err(Error::unsupported("support", other, offset)),
    };
    cursor.finish()?;
    Ok(Skimmed { count, weight })
}

/// Calls `f` with every position of a support over `n` elements, ascending, in runs: first position, number.
///
/// # Errors
/// Those of `f`, and [`Error::Input`] for a set that is not known.
pub(crate) fn for_each_run(
    support: &Support,
    n: u64,
    sets: &crate::block::Sets,
    f: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    match support {
        Support::All => f(0, n),
        Support::Sparse(positions) => positions.iter().try_for_each(|&p| f(p, 1)),
        Support::Chunked { chunk_len, kept, positions } => {
            let mut rest = positions.as_slice();
            let mut start = 0;
            while start < n && !rest.is_empty() {
                let here = chunked::kept_in(*chunk_len.min(&(n - start)), *kept).min(rest.len() as u64);
                let (chunk, others) = rest.split_at(in_memory(here));
                chunk.iter().try_for_each(|&p| f(start + u64::from(p), 1))?;
                rest = others;
                start += chunk_len;
            }
            Ok(())
        }
        Support::Rows { row_len, rows } => rows.iter().try_for_each(|&r| f(r * row_len, *row_len)),
        Support::Seeded { count, seed } => {
            crate::random::sample(n, *count, *seed).into_iter().try_for_each(|p| f(p, 1))
        }
        Support::Set(id) => match sets.get(id) {
            Some(set) => for_each_run(&set.support, n, sets, f),
            None => Err(Error::input(InputErrorKind::MissingIndexSet { id: head(id) })),
        },
    }
}

/// Checks that a caller's support fits a space of `n` elements.
pub(crate) fn check(support: &Support, n: u64) -> Result<()> {
    let ascending = |p: &[u64], n: u64| p.is_sorted_by(|a, b| a < b) && p.last().is_none_or(|&l| l < n);
    match support {
        Support::Sparse(positions) if !ascending(positions, n) => {
            Err(Error::inconsistent("positions are not ascending or exceed the index space"))
        }
        Support::Chunked { chunk_len, kept, positions } => chunked::check(*chunk_len, *kept, positions, n),
        Support::Rows { row_len, rows } => match n.checked_rem(*row_len) {
            Some(0) if ascending(rows, n / row_len) => Ok(()),
            _ => Err(Error::inconsistent("rows do not fit the index space")),
        },
        Support::Seeded { count, .. } if *count > n => {
            Err(Error::inconsistent("more positions than elements"))
        }
        _ => Ok(()),
    }
}
