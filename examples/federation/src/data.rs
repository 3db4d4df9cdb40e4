//! The training data: handwritten digits, from `tools/study/digits`.

use std::path::{Path, PathBuf};

use crate::Result;

/// Pixels of a digit.
pub const PIXELS: usize = 64;
/// Number of classes.
pub const DIGITS: usize = 10;
/// Digits in one worker's batch of a round.
pub const BATCH: usize = 64;

/// A handwritten digit.
#[derive(Debug, Clone)]
pub struct Digit {
    /// 8 x 8 pixels, row-major, from 0 to 1.
    pub pixels: [f32; PIXELS],
    /// Label, 0 to 9.
    pub label: u8,
}

/// The training digits and the test digits.
#[derive(Debug, Clone)]
pub struct Digits {
    train: Vec<Digit>,
    test: Vec<Digit>,
}

/// Returns the checkout that this program was built from: it has the data and the Python workers.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Digits {
    /// Reads `tools/study/digits/digits.u8` (see the README there). Every fifth digit belongs to the test
    /// set.
    ///
    /// # Errors
    /// If the file is missing or does not match its README.
    pub fn read() -> Result<Self> {
        let path = root().join("tools/study/digits/digits.u8");
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let (records, rest) = bytes.as_chunks::<{ PIXELS + 1 }>();
        let valid = |r: &[u8; PIXELS + 1]| r[PIXELS] < 10 && r[..PIXELS].iter().all(|&p| p <= 16);
        if records.is_empty() || !rest.is_empty() || !records.iter().all(valid) {
            return Err(format!("{}: not records of 64 pixels up to 16 and a digit", path.display()).into());
        }
        let digit = |r: &[u8; PIXELS + 1]| Digit {
            pixels: std::array::from_fn(|p| f32::from(r[p]) / 16.0),
            label: r[PIXELS],
        };
        let part = |test: bool| {
            let chosen = records.iter().enumerate().filter(move |(i, _)| (i % 5 == 4) == test);
            chosen.map(|(_, r)| digit(r)).collect()
        };
        Ok(Self { train: part(false), test: part(true) })
    }

    /// Returns the test digits.
    pub fn test(&self) -> &[Digit] {
        &self.test
    }

    /// Returns part `shard` of `shards` of the training digits: every `shards`-th.
    ///
    /// # Errors
    /// If `shard` is not below `shards`.
    pub fn shard(&self, shard: usize, shards: usize) -> Result<Vec<Digit>> {
        if shard >= shards || shards > self.train.len() {
            return Err(format!("there is no shard {shard} of {shards}").into());
        }
        Ok(self.train.iter().skip(shard).step_by(shards).cloned().collect())
    }
}

/// Returns the batch of a round: the next [`BATCH`] digits of a shard, which wraps around at its end.
pub fn batch(shard: &[Digit], round: u64) -> Vec<Digit> {
    let len = shard.len().max(1) as u64;
    let at = |j: u64| (round % len * (BATCH as u64 % len) + j) % len;
    (0..BATCH as u64).filter_map(|j| shard.get(at(j) as usize).cloned()).collect()
}
