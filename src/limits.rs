//! Resource limits for untrusted input: [`Limits`] is the policy, [`Budget`] the account of one decode.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rayon::prelude::*;

use crate::error::{Error, LimitError, Location, Result};

/// Limits of a reader. Every field is checked before the memory or the time is spent (spec, section 10).
///
/// The defaults suit a trainer that receives updates of models with up to tens of billions of parameters.
/// Where addresses have 32 bits, those in parentheses fit them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes in the body of one frame. Default: 1 GiB (256 MiB).
    pub max_frame_bytes: u64,
    /// Tensors in one manifest. Default: 1,048,576.
    pub max_tensors: u64,
    /// Dimensions of one tensor. Default: 32 (the spec's own maximum).
    pub max_rank: u64,
    /// Bytes in one tensor name. Default: 4096 (the spec's own maximum).
    pub max_name_bytes: u64,
    /// Elements spanned by all blocks of one update part together, or by one index set; low-rank factors,
    /// transforms and latent codes count extra (spec, LIM-3). Default: 2^36.
    pub max_elements: u64,
    /// Bytes of memory for decoding one frame, for declared sizes beyond the bytes that have arrived:
    /// positions, codes, values. As much again may be kept per stream, for the names of its manifests and the
    /// positions of its index sets together. Default: 4 GiB (512 MiB).
    pub max_alloc_bytes: u64,
    /// Blocks in one update part, each counted once for every tensor that its scope touches. Default:
    /// 1,048,576.
    pub max_blocks: u64,
    /// Bytes of a decompressed metadata or model payload, of the window of its zstd frame, or of all names of
    /// a manifest. Default: 64 MiB.
    pub max_inflated_bytes: u64,
    /// Manifests, index sets and models kept per stream, each. Default: 1024.
    pub max_definitions: u64,
}

/// Whether addresses have 32 bits or fewer.
const NARROW: bool = usize::BITS < 64;

/// The most bytes that one allocation can have.
const ALLOCATION: u64 = isize::MAX as u64;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_frame_bytes: if NARROW { 256 << 20 } else { 1 << 30 },
            max_tensors: 1 << 20,
            max_rank: 32,
            max_name_bytes: 4096,
            max_elements: 1 << 36,
            max_alloc_bytes: if NARROW { 512 << 20 } else { 4 << 30 },
            max_blocks: 1 << 20,
            max_inflated_bytes: 64 << 20,
            max_definitions: 1024,
        }
    }
}

/// Adds a setter for each of some fields of options.
macro_rules! setters {
    ($Options:ident { $($with:ident($field:ident: $type:ty))* }) => {
        impl $Options { $(
            #[doc = concat!("Sets [`", stringify!($Options), "::", stringify!($field), "`].")]
            #[must_use]
            pub fn $with(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )* }
    };
}
pub(crate) use setters;

setters! {
    Limits {
        with_max_frame_bytes(max_frame_bytes: u64)
        with_max_tensors(max_tensors: u64)
        with_max_rank(max_rank: u64)
        with_max_name_bytes(max_name_bytes: u64)
        with_max_elements(max_elements: u64)
        with_max_alloc_bytes(max_alloc_bytes: u64)
        with_max_blocks(max_blocks: u64)
        with_max_inflated_bytes(max_inflated_bytes: u64)
        with_max_definitions(max_definitions: u64)
    }
}

/// Converts a number that was compared with a length in memory to an index. The format counts in 64 bits on
/// every machine; this is the only conversion to the machine's width. A number that does not fit becomes an
/// index outside every slice.
#[inline]
pub(crate) const fn in_memory(value: u64) -> usize {
    if value > usize::MAX as u64 { usize::MAX } else { value as usize }
}

/// Returns [`Error::Limit`] if `asked > allowed`.
pub(crate) fn check(limit: &'static str, asked: u64, allowed: u64, offset: u64) -> Result<()> {
    if asked > allowed {
        return Err(Error::Limit(LimitError { limit, asked, allowed, at: Location::at(offset) }));
    }
    Ok(())
}

/// Checks that one allocation can have `bytes`.
pub(crate) fn check_allocation(bytes: u64, offset: u64) -> Result<()> {
    check("address space", bytes, ALLOCATION, offset)
}

/// Limit that [`Budget::reserve_bytes`] reports.
pub(crate) const MEMORY: &str = "max_alloc_bytes";

/// Limit that [`Budget::reserve_elements`] reports.
const ELEMENTS: &str = "max_elements";

impl Error {
    /// Whether a budget had too little memory left.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Self::Limit(e) if e.limit == MEMORY)
    }
}

/// Remaining allowance of one frame. Each allocation whose size a frame declares is reserved here first.
/// Threads that decode blocks of one frame share one budget.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    memory: Arc<Allowance>,
    elements: Arc<Allowance>,
    /// Elements that were taken by this budget.
    elements_taken: AtomicU64,
}

impl Budget {
    /// Returns a full allowance.
    pub fn new(limits: &Limits) -> Self {
        Self {
            memory: Allowance::of(limits.max_alloc_bytes),
            elements: Allowance::of(limits.max_elements),
            elements_taken: AtomicU64::new(0),
            limits: limits.clone(),
        }
    }

    /// Returns a budget with the full memory again, for blocks whose memory is freed before the next block is
    /// decoded. Both budgets take elements from the same allowance.
    #[must_use]
    pub fn with_memory_renewed(&self) -> Self {
        Self { memory: Allowance::of(self.limits.max_alloc_bytes), ..self.for_one() }
    }

    /// Returns a budget of the same allowances as they are now, from which this one takes nothing.
    pub(crate) fn copied(&self) -> Self {
        Self { memory: self.memory.copied(), elements: self.elements.copied(), ..self.for_one() }
    }

    /// Decodes items in parallel, which share this budget. The result does not depend on the number of
    /// threads, nor on their timing.
    pub(crate) fn decode_each<I: Sync, T: Send>(
        &mut self,
        items: &[I],
        decode: impl Fn(&I, &Self) -> T + Sync,
    ) -> Vec<T> {
        let before = self.copied();
        let decoded: Vec<T> = items.par_iter().map(|item| decode(item, self)).collect();
        // If all items together need too much, some item is refused in any order, but which one depends on
        // the order: then they are decoded again, one after another.
        if !self.memory.is_exceeded() && !self.elements.is_exceeded() {
            return decoded;
        }
        drop(decoded);
        *self = before;
        items.iter().map(|item| decode(item, self)).collect()
    }

    /// Returns the budget of one of the blocks that share this one.
    pub(crate) fn for_one(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            memory: Arc::clone(&self.memory),
            elements: Arc::clone(&self.elements),
            elements_taken: AtomicU64::new(0),
        }
    }

    /// Returns a budget with the full memory, for decoding the one block that had this budget
    /// ([`Self::for_one`]) again. The block takes its elements once.
    pub(crate) fn renewed(self) -> Self {
        self.elements.give_back(self.elements_taken.load(Ordering::Relaxed));
        self.with_memory_renewed()
    }

    /// Decodes one of the blocks that share this budget; if their memory is too little for it, again with
    /// memory of its own. The memory of several blocks depends on the number of threads, and the memory
    /// allowed for one block must not.
    pub(crate) fn decode_one<T>(&self, mut decode: impl FnMut(&Self) -> Result<T>) -> Result<T> {
        let own = self.for_one();
        match decode(&own) {
            Err(e) if e.is_memory() => decode(&own.renewed()),
            decoded => decoded,
        }
    }

    /// Whether more elements were asked for than there were.
    pub(crate) fn lacks_elements(&self) -> bool {
        self.elements.is_exceeded()
    }

    /// Takes `bytes` of memory, one allocation, from the allowance.
    pub(crate) fn reserve_bytes(&self, bytes: u64, offset: u64) -> Result<()> {
        self.memory.take(MEMORY, bytes, offset)?;
        check_allocation(bytes, offset)
    }

    /// Takes memory for `count` items of `T` from the allowance, and returns `count` as a `usize`.
    pub(crate) fn reserve_items<T>(&self, count: u64, offset: u64) -> Result<usize> {
        self.reserve_bytes(count.saturating_mul(size_of::<T>() as u64), offset)?;
        Ok(in_memory(count))
    }

    /// Takes the `elements` that a block spans from the allowance.
    pub(crate) fn reserve_elements(&self, elements: u64, offset: u64) -> Result<()> {
        self.elements.take(ELEMENTS, elements, offset)?;
        self.elements_taken.fetch_add(elements, Ordering::Relaxed);
        Ok(())
    }
}

/// The rest of one limit. Its numbers order no other memory: relaxed is enough.
#[derive(Debug)]
struct Allowance {
    left: AtomicU64,
    /// Whether more was asked for than was left.
    is_exceeded: AtomicBool,
}

impl Allowance {
    fn of(left: u64) -> Arc<Self> {
        Arc::new(Self { left: left.into(), is_exceeded: false.into() })
    }

    fn copied(&self) -> Arc<Self> {
        Self::of(self.left.load(Ordering::Relaxed))
    }

    /// Takes `asked` from the rest of a limit.
    fn take(&self, limit: &'static str, asked: u64, offset: u64) -> Result<()> {
        let less = |left: u64| left.checked_sub(asked);
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.map(drop).or_else(|left| {
            self.is_exceeded.store(true, Ordering::Relaxed);
            check(limit, asked, left, offset)
        })
    }

    fn give_back(&self, taken: u64) {
        self.left.fetch_add(taken, Ordering::Relaxed);
    }

    fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_allocation_exceeds_the_address_space() {
        let unlimited = Budget::new(&Limits::default().with_max_alloc_bytes(u64::MAX));
        assert_eq!(unlimited.reserve_items::<u64>(3, 0).unwrap(), 3);
        let e = unlimited.reserve_items::<u64>(1 << (usize::BITS - 4), 7).unwrap_err();
        assert!(matches!(&e, Error::Limit(limit) if limit.limit == "address space"), "{e}");
        assert_eq!((e.name(), e.location().unwrap().offset), ("limit", 7));
    }

    #[test]
    fn the_defaults_fit_the_address_space() {
        let limits = Limits::default();
        let most = [limits.max_frame_bytes, limits.max_alloc_bytes, limits.max_inflated_bytes];
        assert!(most.iter().sum::<u64>() < ALLOCATION);
    }
}
