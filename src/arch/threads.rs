//! Work that threads share.

use rayon::prelude::*;

use crate::error::Result;

/// Integers that a thread handles at a time, where several threads share many.
pub(crate) const SHARE: usize = 1 << 17;

/// Returns the number of threads that share work: those of the pool that the caller is in, or the caller's
/// own. A forked process must not wait for threads of its parent.
pub(crate) fn count() -> usize {
    rayon::current_thread_index().map_or(1, |_| rayon::current_num_threads())
}

/// Returns `f` of each item, computed by [`count`] threads.
pub(crate) fn each<T: Send, R: Send>(
    items: impl Iterator<Item = T>,
    f: impl Fn(T) -> R + Send + Sync,
) -> Vec<R> {
    if count() == 1 {
        return items.map(f).collect();
    }
    items.collect::<Vec<T>>().into_par_iter().map(f).collect()
}

/// Collects all results, or the first error in their order. (Collecting into a `Result` directly would return
/// any of several errors.)
pub(crate) fn in_order<T: Send>(results: impl ParallelIterator<Item = Result<T>>) -> Result<Vec<T>> {
    results.collect::<Vec<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_threads_of_the_callers_pool_share_work() {
        let threads = |_| std::thread::current().id();
        let own = std::thread::current().id();
        assert_eq!((count(), each(0..100, threads)), (1, vec![own; 100]));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        assert_eq!(pool.install(count), 3);
        assert!(pool.install(|| each(0..100, threads)).iter().all(|id| *id != own));
        assert_eq!(pool.install(|| each(0..1000, |i| i * i)), Vec::from_iter((0..1000).map(|i| i * i)));
    }
}
