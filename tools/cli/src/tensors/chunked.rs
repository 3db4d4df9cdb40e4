//! Tensors that are stored as boxes of their elements, in several files.

use super::Data;
use gcodec::internal::elements;
use std::borrow::Cow;
use std::sync::OnceLock;

/// Most chunks of a tensor.
const MAX_CHUNKS: usize = 1 << 16;

/// The elements of a tensor in chunks, put together when they are first read.
#[derive(Debug)]
pub(super) struct Chunked {
    /// Bytes of an element.
    width: usize,
    /// Without the dimensions of 1, as in the chunks.
    shape: Vec<u64>,
    chunks: Vec<Chunk>,
    whole: OnceLock<Vec<u8>>,
}

/// A box of elements.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) offsets: Vec<u64>,
    pub(super) sizes: Vec<u64>,
    /// Its elements, row-major.
    pub(super) data: Data,
}

impl Chunked {
    /// Checks that the chunks have all elements, each once.
    ///
    /// # Errors
    /// A text that names the chunk that is wrong, and why.
    pub(super) fn new(width: usize, shape: &[u64], mut chunks: Vec<Chunk>) -> Result<Self, String> {
        if chunks.len() > MAX_CHUNKS {
            return Err(format!("it has {} chunks, more than {MAX_CHUNKS}", chunks.len()));
        }
        let bytes = |shape: &[u64]| elements(shape)?.checked_mul(width as u64);
        let wrong = |chunk: &Chunk, what: &str| Err(format!("its chunk at {:?} {what}", chunk.offsets));
        let mut sum = 0u64;
        for chunk in &chunks {
            if chunk.offsets.len() != shape.len() || chunk.sizes.len() != shape.len() {
                return wrong(chunk, "has another number of dimensions");
            }
            let fits = |((offset, size), dim): ((&u64, &u64), &u64)| {
                offset.checked_add(*size).is_some_and(|end| end <= *dim)
            };
            if !chunk.offsets.iter().zip(&chunk.sizes).zip(shape).all(fits) {
                return wrong(chunk, "reaches out of its shape");
            }
            match bytes(&chunk.sizes).filter(|bytes| *bytes == chunk.data.len()) {
                Some(bytes) => sum = sum.saturating_add(bytes),
                None => return wrong(chunk, "has another number of bytes"),
            }
        }
        chunks.retain(|chunk| !chunk.sizes.contains(&0));
        if let Some([a, b]) = overlap(&mut chunks, shape.len()) {
            return Err(format!("its chunks at {a:?} and {b:?} overlap"));
        }
        match bytes(shape) {
            Some(bytes) if bytes == sum => {
                // Each of the other dimensions doubles the elements, so these are few.
                let long = |of: &[u64]| -> Vec<u64> {
                    of.iter().zip(shape).filter(|(_, dim)| **dim != 1).map(|(number, _)| *number).collect()
                };
                for Chunk { offsets, sizes, .. } in &mut chunks {
                    (*offsets, *sizes) = (long(offsets), long(sizes));
                }
                Ok(Self { width, shape: long(shape), chunks, whole: OnceLock::new() })
            }
            Some(bytes) => Err(format!("its chunks have {sum} of its {bytes} bytes")),
            None => Err("it has too many elements".to_owned()),
        }
    }

    /// Returns all elements, row-major.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.chunks[..] {
            [one] => &one.data,
            _ => self.whole.get_or_init(|| self.assemble()),
        }
    }

    /// Returns the number of bytes of all elements.
    pub(super) fn len(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.data.len()).sum()
    }

    /// Returns the bytes of the only chunk, if it is one.
    pub(super) fn alone(&self) -> Option<&Data> {
        match &self.chunks[..] {
            [one] => Some(&one.data),
            _ => None,
        }
    }

    /// As [`Self::bytes`], and keeps nothing.
    pub(super) fn read(&self) -> Cow<'_, [u8]> {
        match (self.whole.get(), &self.chunks[..]) {
            (Some(whole), _) => Cow::Borrowed(whole),
            (None, [one]) => one.data.read(),
            (None, _) => Cow::Owned(self.assemble()),
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        match (self.whole.get().is_some(), &self.chunks[..]) {
            (false, [one]) => one.data.read().into_owned(),
            (false, _) => self.assemble(),
            (true, _) => self.whole.into_inner().unwrap_or_default(),
        }
    }

    fn assemble(&self) -> Vec<u8> {
        // The chunks, which are in memory or in mapped files, have as many bytes together.
        let mut whole = vec![0; self.len() as usize];
        for chunk in &self.chunks {
            self.put(chunk, &mut whole);
        }
        whole
    }

    /// Copies a chunk into its place, in runs of elements that follow one another in both.
    fn put(&self, chunk: &Chunk, whole: &mut [u8]) {
        let (shape, sizes) = (&self.shape, &chunk.sizes);
        // From this dimension on, the chunk has all elements of the tensor.
        let full =
            (0..shape.len()).rev().take_while(|d| sizes[*d] == shape[*d]).last().unwrap_or(shape.len());
        let outer = full.saturating_sub(1);
        let run = sizes[outer..].iter().product::<u64>() as usize * self.width;
        let strides = strides(shape);
        let mut index = vec![0u64; outer];
        for piece in chunk.data.read().chunks_exact(run.max(1)) {
            let inner: u64 = (outer..shape.len()).map(|d| chunk.offsets[d] * strides[d]).sum();
            let at: u64 = (0..outer).map(|d| (chunk.offsets[d] + index[d]) * strides[d]).sum();
            let at = (at + inner) as usize * self.width;
            whole[at..at + piece.len()].copy_from_slice(piece);
            // Moves on like an odometer: the last dimension runs fastest.
            if let Some(turned) = (0..outer).rev().find(|&d| index[d] + 1 < sizes[d]) {
                index[turned] += 1;
                index[turned + 1..].fill(0);
            }
        }
    }
}

/// Returns the steps from one element to the next of each dimension.
fn strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

/// Returns the offsets of two chunks that share elements. Sorts the chunks.
fn overlap(chunks: &mut [Chunk], rank: usize) -> Option<[Vec<u64>; 2]> {
    // Sweeps along the dimension with the most offsets: few chunks meet there.
    let offsets = |d: usize| {
        let mut offsets: Vec<u64> = chunks.iter().map(|chunk| chunk.offsets[d]).collect();
        offsets.sort_unstable();
        offsets.dedup();
        offsets.len()
    };
    let along = (0..rank).max_by_key(|d| offsets(*d));
    let Some(along) = along else {
        // Without dimensions, there is one element.
        return chunks.get(..2).map(|two| [two[0].offsets.clone(), two[1].offsets.clone()]);
    };
    chunks.sort_by_key(|chunk| chunk.offsets[along]);
    let mut active: Vec<&Chunk> = Vec::new();
    for chunk in chunks.iter() {
        active.retain(|other| other.offsets[along] + other.sizes[along] > chunk.offsets[along]);
        let meets = |other: &&&Chunk| {
            (0..rank).all(|d| {
                chunk.offsets[d] < other.offsets[d] + other.sizes[d]
                    && other.offsets[d] < chunk.offsets[d] + chunk.sizes[d]
            })
        };
        if let Some(other) = active.iter().find(meets) {
            return Some([other.offsets.clone(), chunk.offsets.clone()]);
        }
        active.push(chunk);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(offsets: &[u64], sizes: &[u64], data: &[u8]) -> Chunk {
        Chunk { offsets: offsets.to_vec(), sizes: sizes.to_vec(), data: Data::Owned(data.to_vec()) }
    }

    #[test]
    fn chunks_become_the_whole() {
        let rows = vec![chunk(&[1, 0], &[2, 3], &[3, 4, 5, 6, 7, 8]), chunk(&[0, 0], &[1, 3], &[0, 1, 2])];
        let whole = Chunked::new(1, &[3, 3], rows).unwrap();
        assert_eq!(whole.bytes(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        // Columns, of elements of two bytes.
        let columns = vec![chunk(&[0, 0], &[2, 1], &[0, 0, 2, 2]), chunk(&[0, 1], &[2, 1], &[1, 1, 3, 3])];
        assert_eq!(Chunked::new(2, &[2, 2], columns).unwrap().into_bytes(), [0, 0, 1, 1, 2, 2, 3, 3]);
        // A pinwheel, which is no grid, around the middle; chunks without elements do not count.
        let pinwheel = vec![
            chunk(&[0, 0], &[1, 2], &[0, 1]),
            chunk(&[0, 2], &[2, 1], &[2, 5]),
            chunk(&[2, 1], &[1, 2], &[7, 8]),
            chunk(&[1, 0], &[2, 1], &[3, 6]),
            chunk(&[1, 1], &[1, 1], &[4]),
            chunk(&[3, 0], &[0, 3], &[]),
        ];
        assert_eq!(Chunked::new(1, &[3, 3], pinwheel).unwrap().bytes(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        // Three dimensions, cut in the second.
        let cut =
            vec![chunk(&[0, 0, 0], &[2, 1, 2], &[0, 1, 4, 5]), chunk(&[0, 1, 0], &[2, 1, 2], &[2, 3, 6, 7])];
        assert_eq!(Chunked::new(1, &[2, 2, 2], cut).unwrap().bytes(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Chunked::new(1, &[], vec![chunk(&[], &[], &[9])]).unwrap().bytes(), [9]);
        let rows = vec![chunk(&[0, 0, 0], &[1, 1, 2], &[0, 1]), chunk(&[0, 1, 0], &[1, 1, 2], &[2, 3])];
        assert_eq!(Chunked::new(1, &[1, 2, 2], rows).unwrap().bytes(), [0, 1, 2, 3]);
        assert!(Chunked::new(1, &[0, 2], vec![]).unwrap().bytes().is_empty());
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let wrong = |shape: &[u64], chunks: Vec<Chunk>| Chunked::new(1, shape, chunks).unwrap_err();
        let a = || chunk(&[0], &[2], &[0, 1]);
        assert!(wrong(&[3], vec![a()]).contains("2 of its 3 bytes"));
        assert!(wrong(&[3], vec![a(), chunk(&[1], &[2], &[1, 2])]).contains("[0] and [1] overlap"));
        assert!(wrong(&[4], vec![a(), a()]).contains("overlap"));
        assert!(wrong(&[1], vec![a()]).contains("reaches out"));
        assert!(wrong(&[9], vec![chunk(&[u64::MAX], &[2], &[0, 1])]).contains("reaches out"));
        assert!(wrong(&[9], vec![chunk(&[0], &[3], &[0, 1])]).contains("number of bytes"));
        assert!(wrong(&[2, 1], vec![a()]).contains("number of dimensions"));
        assert!(wrong(&[], vec![chunk(&[], &[], &[1]), chunk(&[], &[], &[1])]).contains("overlap"));
        assert!(wrong(&[u64::MAX, 2], vec![]).contains("too many"));
    }
}
