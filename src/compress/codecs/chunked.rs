//! Chunked top-k, as in SparseLoCo (Sarfi et al., arXiv 2508.15706): keeps the same number of largest
//! elements of each chunk of consecutive elements. The values are 2-bit codes or signs. A position is stored
//! as a gap, or as a fixed number of bits inside its chunk if that is smaller.
//!
//! The chunks are runs of the row-major elements; the authors' code uses 64 x 64 tiles of matrices. The
//! lowest index wins among equal magnitudes. Zeros are kept if a chunk has too few non-zero elements.

use super::sparse::mean_magnitude;
use crate::block::{
    self, Bits, Block, Codebook, Groups, ScaleFormat, Scales, Scope, Sparse, Support, Values,
};
use crate::codes::best_parameter;
use crate::compress::compressor::{Compressor, TensorRun};
use crate::compress::settings::{Check, OutOfRange, Setting, Visitor};
use crate::compress::source::{CHUNK, all_finite};
use crate::error::Result;
use crate::tensor::element::max_finite;

const CHUNK_LEN: Setting<u64> = Setting::number("chunk", "1 to 2^32", |c| (1..=1 << 32).contains(&c));
const KEPT: Setting<u64> = Setting::number("kept", "1 to the chunk", |k| k >= 1);
const VALUES: Setting<ChunkValues> =
    Setting::one_of("values", &[(ChunkValues::Sign, "sign"), (ChunkValues::Code2, "code2")]);

/// Form in which the kept elements of a chunk are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChunkValues {
    /// Sign of each element; a zero keeps its own sign. The mean magnitude of the tensor's kept elements is
    /// sent once.
    Sign,
    /// Index of one of four equal bins. The bins span three standard deviations below to three above the mean
    /// of the tensor's kept elements. An element decodes to the mean of the kept elements in its bin.
    Code2,
}

/// `chunked`: keeps the elements of largest magnitude of each chunk, the same number in each (SparseLoCo).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chunked {
    /// `chunk`: number of consecutive elements of a chunk, 1 to 2^32. Default: 4096.
    pub chunk: u64,
    /// `kept`: elements kept of each chunk, 1 to `chunk`. A shorter last chunk keeps at most all of its
    /// elements. Default: 64, or `chunk` if that is less.
    pub kept: u64,
    /// `values`: the form of the values, `sign` or `code2`. Default: `code2`.
    pub values: ChunkValues,
}

impl Default for Chunked {
    fn default() -> Self {
        Self { chunk: 4096, kept: 64, values: ChunkValues::Code2 }
    }
}

impl Compressor for Chunked {
    const NAME: &'static str = "chunked";

    fn settings<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        visitor.visit(&CHUNK_LEN, &mut self.chunk)?;
        let kept = self.kept.min(self.chunk);
        visitor.default(&mut self.kept, kept);
        visitor.visit(&KEPT, &mut self.kept)?;
        visitor.visit(&VALUES, &mut self.values)
    }

    fn check(&mut self) -> Result<(), OutOfRange> {
        match self.kept > self.chunk {
            true => Err(KEPT.out_of_range()),
            false => self.settings(&mut Check),
        }
    }

    fn blocks(&self, run: TensorRun<'_, '_>) -> Result<Vec<Block>> {
        let Self { chunk: chunk_len, kept, values } = *self;
        let len = usize::try_from(chunk_len).unwrap_or(usize::MAX);
        let step = len.saturating_mul((CHUNK / len).max(1));
        let mut blocks = Vec::with_capacity(run.tensors.len());
        for tensor in run.tensors {
            let found = tensor.scan(0..tensor.len, step, |chunk| {
                chunk.whole(|_, elements| {
                    all_finite(elements)
                        .then(|| elements.chunks(len).map(|c| largest(c, kept)).collect::<Vec<_>>())
                })
            });
            let (mut positions, mut numbers, mut start) = (Vec::new(), Vec::new(), 0);
            for part in found {
                let Some(chunks) = part else { return Err(tensor.non_finite()) };
                for (of_chunk, elements) in chunks {
                    positions.extend(of_chunk.iter().map(|&p| start + u64::from(p)));
                    numbers.extend(elements);
                    start += chunk_len;
                }
            }
            let max = max_finite(tensor.dtype);
            let (values, decoded) = match values {
                ChunkValues::Sign => signs(&numbers),
                ChunkValues::Code2 => codes(&numbers, max),
            };
            tensor.subtract(&positions, &decoded)?;
            let support = support_of(positions, kept, chunk_len, tensor.len as u64);
            blocks.push(Block { scope: Scope::Tensor(tensor.tensor), add: false, support, values });
        }
        Ok(blocks)
    }
}

/// Returns the smaller support: a fixed number of bits for each position, or one Rice parameter for all gaps.
/// The wire format may encode gaps in a smaller form. `positions` has `kept` positions in each chunk of
/// `chunk_len` of `n` elements.
pub(crate) fn support_of(positions: Vec<u64>, kept: u64, chunk_len: u64, n: u64) -> Support {
    if kept >= chunk_len {
        return Support::All;
    }
    let gaps: Vec<u64> =
        positions.iter().scan(0, |next, &p| Some(p - std::mem::replace(next, p + 1))).collect();
    let fixed = u128::from(u64::BITS - (chunk_len - 1).leading_zeros()) * positions.len() as u128;
    let (k, unary) = best_parameter(&gaps);
    let rice = unary + gaps.len() as u128 * u128::from(k);
    if rice.min(u128::from(n)) < fixed {
        return Support::Sparse(Sparse { positions });
    }
    let positions = positions.into_iter().map(|p| (p % chunk_len) as u32).collect();
    Support::Chunked(block::Chunked { chunk_len, kept, positions })
}

/// Returns the ascending positions of the `kept` largest magnitudes of a chunk, and the elements at them.
pub(crate) fn largest(chunk: &[f32], kept: u64) -> (Vec<u32>, Vec<f32>) {
    // Larger magnitudes come first, then lower positions. A chunk has at most 2^32 elements.
    let mut keys: Vec<(u32, u32)> = chunk.iter().map(|x| !(x.to_bits() & 0x7fff_ffff)).zip(0..).collect();
    let kept = usize::try_from(kept).unwrap_or(usize::MAX).min(keys.len());
    if kept < keys.len() {
        keys.select_nth_unstable(kept);
        keys.truncate(kept);
    }
    let mut positions: Vec<u32> = keys.into_iter().map(|(_, at)| at).collect();
    positions.sort_unstable();
    let elements = positions.iter().map(|&p| chunk[p as usize]).collect();
    (positions, elements)
}

fn signs(numbers: &[f32]) -> (Values, Vec<f32>) {
    let scale = mean_magnitude(numbers);
    let negative: Bits = numbers.iter().map(|x| x.is_sign_negative()).collect();
    let scales = Scales::from_f32s(ScaleFormat::F32, &[scale]);
    let decoded = numbers.iter().map(|x| scale.copysign(*x)).collect();
    (Values::Sign(block::Sign { groups: Groups::Block, scales, negative }), decoded)
}

/// Number of bins of a code.
const BINS: usize = 4;

fn codes(numbers: &[f32], max: f32) -> (Values, Vec<f32>) {
    let n = numbers.len().max(1) as f64;
    let mean = numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let square = numbers.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    let width = 6.0 * square.sqrt() / BINS as f64;
    let code = |x: f32| match width > 0.0 {
        // Casts saturate at 0.
        true => (((f64::from(x) - mean) / width + BINS as f64 / 2.0) as usize).min(BINS - 1),
        false => BINS / 2,
    };
    let codes: Vec<u8> = numbers.iter().map(|&x| code(x) as u8).collect();
    let (mut sums, mut counts) = ([0f64; BINS], [0u64; BINS]);
    for (&x, &c) in numbers.iter().zip(&codes) {
        sums[usize::from(c)] += f64::from(x);
        counts[usize::from(c)] += 1;
    }
    // An empty bin has no code; its entry is 0.
    let entry = |i: usize| if counts[i] == 0 { 0.0 } else { (sums[i] / counts[i] as f64) as f32 };
    let table: Vec<f32> = (0..BINS).map(|i| entry(i).clamp(-max, max)).collect();
    let decoded = codes.iter().map(|&c| table[usize::from(c)]).collect();
    (Values::Codebook(Codebook { table, groups: Groups::Block, scales: None, shifts: None, codes }), decoded)
}
