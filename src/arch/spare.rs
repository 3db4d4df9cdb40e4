//! Memory that is used again: new memory costs more than what is done with it.

use crate::arch::pages;

/// Memory of earlier buffers, for later ones.
#[derive(Default)]
pub(crate) struct Spare {
    /// By capacity, the smallest first.
    memory: Vec<Vec<u8>>,
    /// Bytes of all, and how many are held at most, but for the largest.
    held: u64,
    most: u64,
}

impl Spare {
    /// Fewest bytes that are lent: the allocator has fewer at hand, without the system, and a model may have
    /// a million tensors of so few.
    const LEAST: usize = 64 << 10;

    /// Returns no memory, of which at most `most` bytes will be held, and what is larger alone.
    pub(crate) fn new(most: u64) -> Self {
        pages::keep_heap();
        Self { most, ..Self::default() }
    }

    /// Lends memory, in place of the smallest if there is too much.
    pub(crate) fn give(&mut self, memory: Vec<u8>) {
        let capacity = memory.capacity();
        if capacity < Self::LEAST {
            return;
        }
        self.held += capacity as u64;
        self.memory.insert(self.memory.partition_point(|other| other.capacity() < capacity), memory);
        let mut surplus = 0;
        while self.held > self.most && surplus + 1 < self.memory.len() {
            self.held -= self.memory[surplus].capacity() as u64;
            surplus += 1;
        }
        self.memory.drain(..surplus);
    }

    /// Takes the smallest that has `len` bytes: a larger one may be needed for a later tensor.
    pub(crate) fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let found = self.memory.partition_point(|memory| memory.capacity() < len);
        if len < Self::LEAST || found == self.memory.len() {
            return None;
        }
        let memory = self.memory.remove(found);
        self.held -= memory.capacity() as u64;
        Some(memory)
    }

    /// Returns `len` bytes that have any values, in such memory if there is some.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        pages::of_len(self.take(len).unwrap_or_default(), len)
    }

    /// Returns `len` zeros, in such memory if there is some.
    pub(crate) fn zeros(&mut self, len: usize) -> Vec<u8> {
        let Some(mut used) = self.take(len) else { return pages::zeros(len) };
        used.clear();
        used.resize(len, 0);
        used
    }

    /// Returns all memory.
    pub(crate) fn into_memory(self) -> Vec<Vec<u8>> {
        self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_lent_has_a_bound() {
        const LEAST: usize = Spare::LEAST;
        let mut spare = Spare::new(4 * LEAST as u64);
        let give = |spare: &mut Spare, len| spare.give(Vec::with_capacity(len));
        // The allocator has such memory.
        give(&mut spare, LEAST - 1);
        assert!(spare.take(LEAST - 1).is_none());
        [3, 1, 2].into_iter().for_each(|n| give(&mut spare, n * LEAST));
        // The smallest made room; the smallest that suffices is taken.
        assert!(spare.take(LEAST).is_some_and(|memory| memory.capacity() == 3 * LEAST));
        assert!(spare.take(LEAST).is_none());
        // One that is larger than the bound is held alone.
        [2, 9, 2].into_iter().for_each(|n| give(&mut spare, n * LEAST));
        assert!(spare.take(3 * LEAST).is_some() && spare.take(LEAST).is_none());
    }

    #[test]
    fn lent_memory_has_zeros_at_any_length() {
        const LEAST: usize = Spare::LEAST;
        let mut spare = Spare::new(4 * LEAST as u64);
        for (room, len) in [(0, 9), (2, 1), (2, 2), (1, 2)] {
            let (room, len) = (room * LEAST, len * LEAST);
            let mut lent = vec![1; room];
            lent.truncate(LEAST + 5);
            spare.give(lent.clone());
            assert_eq!(spare.bytes(len).len(), len);
            spare.give(lent);
            assert_eq!(spare.zeros(len), vec![0; len], "{room} {len}");
        }
    }
}
