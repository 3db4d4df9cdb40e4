//! Training data: scikit-learn's digits, and this project's own prose and source.

use std::path::{Path, PathBuf};

use gcodec::compress::random;

use crate::Result;

/// Pixels of a digit.
pub(crate) const PIXELS: usize = 64;
/// Number of test digits.
const TEST_DIGITS: usize = 500;
/// Number of validation digits.
const VALIDATION_DIGITS: usize = 200;

/// The part of the data that a score is of. Choices rest on the validation data, so that the test data
/// measure them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldOut {
    Validation,
    Test,
}

/// Pixels and label of a digit.
pub(crate) type Digit = ([u8; PIXELS], u8);

/// Digits, 8 x 8 pixels.
pub(crate) struct Digits {
    pub(crate) train: Vec<Digit>,
    validation: Vec<Digit>,
    test: Vec<Digit>,
    pub(crate) about: String,
}

impl Digits {
    /// Reads `tools/study/digits/digits.u8` (see its README) and splits it at random with a fixed seed.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let path = root.join("tools/study/digits/digits.u8");
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let (records, rest) = bytes.as_chunks::<{ PIXELS + 1 }>();
        if !rest.is_empty() || records.len() <= TEST_DIGITS + VALIDATION_DIGITS {
            return Err(
                format!("{}: {} bytes are not whole records of 65", path.display(), bytes.len()).into()
            );
        }
        let all: Vec<Digit> = shuffled(records.len(), 0, 0)
            .into_iter()
            .map(|i| (std::array::from_fn(|p| records[i][p]), records[i][PIXELS]))
            .collect();
        if all.iter().any(|(pixels, label)| *label > 9 || pixels.iter().any(|&p| p > 16)) {
            return Err(format!("{}: a pixel above 16 or a label above 9", path.display()).into());
        }
        let (test, rest) = all.split_at(TEST_DIGITS);
        let (validation, train) = rest.split_at(VALIDATION_DIGITS);
        let about = format!(
            "`tools/study/digits/digits.u8`: {} digits for training, {} for validation, {} for the test; {} bytes, BLAKE3 `{}`",
            train.len(),
            validation.len(),
            test.len(),
            bytes.len(),
            short_hash(&bytes)
        );
        Ok(Self { train: train.to_vec(), validation: validation.to_vec(), test: test.to_vec(), about })
    }

    pub(crate) fn held_out(&self, part: HeldOut) -> &[Digit] {
        match part {
            HeldOut::Validation => &self.validation,
            HeldOut::Test => &self.test,
        }
    }
}

/// Bytes of text.
pub(crate) struct Text {
    pub(crate) train: Vec<u8>,
    validation: Vec<u8>,
    test: Vec<u8>,
    pub(crate) about: String,
}

impl Text {
    /// This project's specification and source, in the order of paths. The last tenth of each file is
    /// test data, the tenth before it validation data.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        files(&root.join("spec"), "md", &mut paths)?;
        files(&root.join("src"), "rs", &mut paths)?;
        let (mut train, mut validation, mut test) = (Vec::new(), Vec::new(), Vec::new());
        let mut hash = blake3::Hasher::new();
        for path in &paths {
            let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
            hash.update(&bytes);
            let tenth = bytes.len() / 10;
            let (head, last) = bytes.split_at(bytes.len() - tenth);
            let (head, second) = head.split_at(head.len() - tenth);
            train.extend_from_slice(head);
            validation.extend_from_slice(second);
            test.extend_from_slice(last);
        }
        let about = format!(
            "the project's own text, `spec/**/*.md` and `src/**/*.rs`: {} files, {} bytes for training, {} for validation \
             and {} for the test (the last two tenths of each file); BLAKE3 of all files, in the order of their paths, `{}`",
            paths.len(),
            train.len(),
            validation.len(),
            test.len(),
            &hash.finalize().to_hex()[..16]
        );
        Ok(Self { train, validation, test, about })
    }

    pub(crate) fn held_out(&self, part: HeldOut) -> &[u8] {
        match part {
            HeldOut::Validation => &self.validation,
            HeldOut::Test => &self.test,
        }
    }
}

/// Returns the files below a folder whose names end in `.extension`, in the order of their paths.
fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut entries = entries.map(|e| e.map(|e| e.path())).collect::<std::result::Result<Vec<_>, _>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, extension, found)?;
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    Ok(())
}

fn short_hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

/// Returns a permutation of the numbers below `n` that `seed` and `stream` determine.
pub(crate) fn shuffled(n: usize, seed: u64, stream: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|&i| (random::word(seed, stream, i as u64), i));
    order
}
