//! Updates with arbitrary content, for tests and fuzz targets. The choices come from a seed, or from the
//! bytes of a fuzzer. The blocks of an update are consistent and fit its manifest.
#![allow(dead_code)] // each user needs only some of them

use std::sync::Arc;

use gcodec::Dtype;
use gcodec::block::{
    Affine, Bits, Block, BlockOptions, Chunked, Codebook, Constant, Dct, Entropy, Floats, Groups, Latent,
    Levels, LowRank, Minifloat, MinifloatFormat, ModelId, Norm, Planes, Positions, Pow2, Rows, ScaleFormat,
    Scales, Scope, Seeded, Sign, Spacing, Sparse, Stored, Support, Ulp, Underflow, Values, Zero,
};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};

/// A source of choices: first the given bytes, then words that depend only on the seed.
pub(crate) struct Random<'a> {
    bytes: &'a [u8],
    seed: u64,
    drawn: u64,
    /// Words that were drawn but not yet used; the next one is the last.
    words: Vec<u32>,
}

impl<'a> Random<'a> {
    pub(crate) fn of_seed(seed: u64) -> Self {
        Self { bytes: &[], seed, drawn: 0, words: Vec::new() }
    }

    pub(crate) fn of_bytes(bytes: &'a [u8]) -> Self {
        Self { bytes, ..Self::of_seed(0) }
    }

    /// Returns the next `len` bytes as a number. `len` is 1 to 8.
    fn take(&mut self, len: usize) -> u64 {
        if let Some((taken, rest)) = self.bytes.split_at_checked(len) {
            self.bytes = rest;
            return taken.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        }
        self.bytes = &[];
        let high = if len > 4 { u64::from(self.word()) << 32 } else { 0 };
        (high | u64::from(self.word())) & u64::MAX >> (64 - 8 * len)
    }

    /// Returns the next word that depends on the seed.
    fn word(&mut self) -> u32 {
        loop {
            if let Some(word) = self.words.pop() {
                return word;
            }
            self.words = vec![0; 256];
            gcodec::compress::random::words(self.seed, 1, self.drawn, &mut self.words);
            self.drawn += 256;
        }
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.take(4) as u32
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        let bytes = (64 - n.saturating_sub(1).leading_zeros()).div_ceil(8);
        if bytes == 0 { 0 } else { self.take(bytes as usize) % n }
    }

    /// Returns the bytes that are left, and leaves none.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    pub(crate) fn bytes(&mut self, count: u64) -> Vec<u8> {
        let taken = self.bytes.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        let (taken, rest) = self.bytes.split_at(taken);
        self.bytes = rest;
        let mut out = taken.to_vec();
        while (out.len() as u64) < count {
            out.extend(self.word().to_le_bytes());
        }
        out.truncate(count as usize);
        out
    }

    /// Returns numbers below `n`, drawn from one of four distributions: uniform, constant 0, or two in which
    /// small numbers are more frequent.
    pub(crate) fn symbols(&mut self, count: u64, n: u16) -> Vec<u8> {
        let shape = self.below(4);
        let n = u64::from(n);
        let one = |r: &mut Self| match shape {
            0 => r.below(n),
            1 => 0,
            2 => r.below(n).min(r.below(n)).min(r.below(n)),
            _ => u64::from(r.next().leading_zeros()) % n,
        };
        (0..count).map(|_| one(self) as u8).collect()
    }

    pub(crate) fn bits(&mut self, count: u64) -> Bits {
        (0..count).map(|_| self.below(2) == 1).collect()
    }

    /// Returns elements of a type, with arbitrary bit patterns.
    pub(crate) fn elements(&mut self, dtype: Dtype, count: u64) -> Vec<u8> {
        let mut bytes = self.bytes(dtype.bytes_for(count).unwrap_or(0));
        if dtype.bits() == 4 && count % 2 == 1 {
            bytes.iter_mut().last().into_iter().for_each(|b| *b &= 15);
        }
        bytes
    }
}

/// An update: its manifest, its header, and its blocks with the options for writing them.
pub(crate) struct Update {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) header: UpdateHeader,
    pub(crate) blocks: Vec<(Block, BlockOptions)>,
}

/// Returns a manifest of one to four tensors.
pub(crate) fn manifest(random: &mut Random<'_>) -> Arc<Manifest> {
    let infos = (0..1 + random.below(4)).map(|i| {
        let shape: Vec<u64> = (0..random.below(4)).map(|_| random.below(13)).collect();
        let dtype = if random.below(2) == 0 { random.one(&Dtype::ALL) } else { Dtype::F32 };
        TensorInfo::new(format!("tensor.{i}"), dtype, shape)
    });
    Arc::new(Manifest::new(infos.collect()).expect("a manifest"))
}

/// Returns an update of the tensors of a manifest. With `ulp`, it is a delta and may have `ulp` values.
pub(crate) fn update(random: &mut Random<'_>, manifest: &Arc<Manifest>, ulp: bool) -> Update {
    let infos = manifest.tensors();
    let tensors = infos.len() as u64;
    let mut blocks = Vec::new();
    let mut tensor = 0;
    while tensor < tensors {
        let info = &infos[tensor as usize];
        let n = info.elements();
        let alike = infos[tensor as usize..].iter().take_while(|t| t.dtype == info.dtype).count() as u64;
        let scope = match random.below(3) {
            0 if n > 1 => {
                let start = random.below(n - 1) + 1;
                Scope::Range { tensor, start, len: 1 + random.below(n - start) }
            }
            1 if alike > 1 => Scope::Tensors { first: tensor, count: 2 + random.below(alike - 1) },
            _ => Scope::Tensor(tensor),
        };
        tensor += scope.tensors();
        let space = manifest.space(scope, 0).expect("a scope inside the manifest");
        let (support, m) = support(random, space.len());
        let all = support == Support::All;
        let values = match ulp && random.below(2) == 0 {
            true => Values::Ulp(Ulp { diffs: (0..m).map(|_| difference(random, info.dtype)).collect() }),
            false => values(random, info.dtype, m, scope.tensors(), all),
        };
        let add = random.below(4) == 0 && !values.gives_bits();
        let options = options(random);
        blocks.push((Block { scope, add, support, values }, options));
    }
    let header = UpdateHeader::default().with_step(random.next().into());
    Update { manifest: Arc::clone(manifest), header, blocks }
}

/// Returns options for writing a block.
pub(crate) fn options(random: &mut Random<'_>) -> BlockOptions {
    let (positions, _) = random.one(&Positions::ALL);
    let entropy = random.one(&[Entropy::Auto, Entropy::Auto, Entropy::Packed]);
    BlockOptions::default().with_positions(positions).with_entropy(entropy)
}

/// Returns a valid difference in units of the last place between two elements of a type.
fn difference(random: &mut Random<'_>, dtype: Dtype) -> i64 {
    let number = if random.below(4) == 0 { random.take(8) } else { random.below(256).wrapping_sub(128) };
    let spare = 64 - dtype.bits();
    (number << spare) as i64 >> spare
}

/// Returns a support over `n` elements, and its number of positions.
pub(crate) fn support(random: &mut Random<'_>, n: u64) -> (Support, u64) {
    let some = |random: &mut Random<'_>, n: u64| -> Vec<u64> {
        let rarity = 1 + random.below(9);
        (0..n).filter(|_| random.below(rarity) == 0).collect()
    };
    let support = match random.below(5) {
        0 => Support::Sparse(Sparse { positions: some(random, n) }),
        1 => {
            let chunk_len = 1 + random.below(40);
            let kept = 1 + random.below(chunk_len);
            let mut positions = Vec::new();
            for start in (0..n).step_by(chunk_len as usize) {
                let len = chunk_len.min(n - start);
                let mut chosen: Vec<u32> = (0..len as u32).collect();
                while chosen.len() as u64 > kept {
                    chosen.remove(random.below(chosen.len() as u64) as usize);
                }
                positions.append(&mut chosen);
            }
            Support::Chunked(Chunked { chunk_len, kept, positions })
        }
        2 => {
            let row_len = (1..=n.max(1)).rev().find(|l| n.is_multiple_of(*l) && l * l <= n).unwrap_or(1);
            Support::Rows(Rows { row_len, rows: some(random, n / row_len) })
        }
        3 => Support::Seeded(Seeded { count: random.below(n + 1), seed: random.next().into() }),
        _ => Support::All,
    };
    let m = match &support {
        Support::Sparse(Sparse { positions }) => positions.len() as u64,
        Support::Chunked(Chunked { positions, .. }) => positions.len() as u64,
        Support::Rows(Rows { row_len, rows }) => row_len * rows.len() as u64,
        Support::Seeded(Seeded { count, .. }) => *count,
        _ => n,
    };
    (support, m)
}

fn scales(random: &mut Random<'_>, count: u64) -> Scales {
    let (format, _) = random.one(&ScaleFormat::REGISTERED);
    Scales { format, bytes: random.bytes(count * format.bytes() as u64) }
}

/// Returns groups of `m` values, and their number. `tensors` is 0 for nested values.
fn groups(random: &mut Random<'_>, m: u64, tensors: u64) -> (Groups, u64) {
    match random.below(3) {
        0 if tensors > 0 => (Groups::Tensor, tensors),
        1 => {
            let len = 2 + random.below(70);
            (Groups::Len(len), m.div_ceil(len))
        }
        _ => (Groups::Block, 1),
    }
}

/// Returns `m` values of any kind that is allowed for elements of `dtype`.
pub(crate) fn values(random: &mut Random<'_>, dtype: Dtype, m: u64, tensors: u64, all: bool) -> Values {
    if !dtype.is_float() || random.below(6) == 0 {
        let bytes = random.elements(dtype, m);
        return if random.below(2) == 0 {
            Values::Floats(Floats { stored: Stored::Source, bytes })
        } else {
            Values::Planes(Planes { bytes })
        };
    }
    let (groups, count) = groups(random, m, tensors);
    match random.below(10) {
        0 => Values::Constant(Constant { groups, scales: scales(random, count) }),
        1 => Values::Sign(Sign { groups, scales: scales(random, count), negative: random.bits(m) }),
        2 if random.below(2) == 0 => {
            let rank = 1 + random.below(3);
            let shape = vec![rank, random.below(6)];
            let codes = Box::new(numbers(random, shape.iter().product(), 0));
            Values::Latent(Latent { model: ModelId([random.next() as u8; 32]), shape, codes })
        }
        3 if all && m > 0 => {
            let rows = (1..=m).rev().find(|r| m.is_multiple_of(*r) && r * r <= m).unwrap_or(1);
            let (cols, rank) = (m / rows, 1 + random.below(3));
            let left = Box::new(numbers(random, rows * rank, 0));
            let right = Box::new(numbers(random, cols * rank, 0));
            Values::LowRank(LowRank { rows, cols, rank, left, right })
        }
        4 if all && m > 0 => {
            let rows = (1..=m).rev().find(|r| m.is_multiple_of(*r) && r * r <= m).unwrap_or(1);
            let side = |random: &mut Random<'_>, dim: u64| {
                let sides: Vec<u64> = (1..=dim.min(128)).filter(|s| dim.is_multiple_of(*s)).collect();
                random.one(&sides)
            };
            let cols = m / rows;
            let (chunk_rows, chunk_cols) = (side(random, rows), side(random, cols));
            let positions: Vec<u64> = (0..m).filter(|_| random.below(4) == 0).collect();
            let (support, count) = match random.below(3) {
                0 => (Support::All, m),
                _ => (Support::Sparse(Sparse { positions: positions.clone() }), positions.len() as u64),
            };
            let coefficients = Box::new(match random.below(2) {
                0 => Values::Sign(Sign {
                    groups: Groups::Block,
                    scales: scales(random, 1),
                    negative: random.bits(count),
                }),
                _ => numbers(random, count, 0),
            });
            Values::Dct(Dct { rows, cols, chunk_rows, chunk_cols, support, coefficients })
        }
        _ => numbers(random, m, tensors),
    }
}

/// Returns `m` values of a kind that can be nested.
fn numbers(random: &mut Random<'_>, m: u64, tensors: u64) -> Values {
    let (groups, count) = groups(random, m, tensors);
    match random.below(6) {
        0 => {
            let stored = random.one(&[Stored::F32, Stored::F16, Stored::Bf16]);
            Values::Floats(Floats { stored, bytes: random.elements(stored.dtype(Dtype::F32), m) })
        }
        1 => {
            let (codes, bits) = (random.symbols(m, 256), random.bits(m));
            Values::Pow2(Pow2 {
                min_exponent: random.below(2098) as i16 - 1074,
                underflow: random.one(&[Underflow::Unbiased, Underflow::Zero, Underflow::Smallest]),
                negative: codes.iter().enumerate().map(|(i, &c)| c != 0 && bits.get(i)).collect(),
                codes,
            })
        }
        2 => {
            let spacing = random.one(&[Spacing::Uniform, Spacing::Natural]);
            let max_level = 1 + random.below(if spacing == Spacing::Uniform { 65_535 } else { 255 }) as u32;
            let max_level = if random.below(2) == 0 { max_level } else { max_level.min(3) };
            let levels = (0..m).map(|_| random.below(2 * u64::from(max_level) + 1) as i32 - max_level as i32);
            let levels = levels.collect();
            let norm = random.one(&[Norm::L1, Norm::L2, Norm::Max]);
            Values::Levels(Levels { spacing, max_level, norm, groups, norms: scales(random, count), levels })
        }
        3 => {
            let bits = 1 + random.below(8) as u8;
            let zero = match random.below(3) {
                0 => Zero::Centre,
                1 => Zero::Point(random.symbols(count, 1 << bits)),
                _ => Zero::Offset(scales(random, count)),
            };
            Values::Affine(Affine {
                bits,
                groups,
                scales: scales(random, count),
                zero,
                codes: random.symbols(m, 1 << bits),
            })
        }
        4 => {
            let entries = 2 + random.below(255) as u16;
            let table = (0..entries).map(|_| f32::from_bits(random.next())).collect();
            let maybe = |random: &mut Random<'_>| (random.below(2) == 0).then(|| scales(random, count));
            let (scales, shifts) = (maybe(random), maybe(random));
            Values::Codebook(Codebook { table, groups, scales, shifts, codes: random.symbols(m, entries) })
        }
        _ => {
            let (format, _) = random.one(&MinifloatFormat::REGISTERED);
            let codes = random.symbols(m, 1 << format.bits());
            Values::Minifloat(Minifloat { format, groups, scales: scales(random, count), codes })
        }
    }
}
