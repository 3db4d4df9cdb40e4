//! Split-plane Rice runs (spec, section 7.4): the low bits of all gaps at fixed width, then their high parts
//! in unary.

use crate::bits::{Cursor, PlaneReader, PlaneWriter, packed_bytes};
use crate::error::{Error, FormatErrorKind, Result};

/// Returns the bits of the unary plane of `gaps` with Rice parameter `k`.
fn unary_bits(gaps: &[u64], k: u8, are_small: bool) -> u128 {
    let quotients = match are_small {
        true => gaps.iter().map(|&g| g >> k).sum::<u64>().into(),
        false => gaps.iter().map(|&g| u128::from(g >> k)).sum::<u128>(),
    };
    quotients + gaps.len() as u128
}

/// Returns the Rice parameter with the fewest bits, the smallest if several have, and the bits of its unary
/// plane.
///
/// The number of bits is convex in k except for plateaus, and the best k differs from the logarithm of the
/// mean gap by at most two.
pub(crate) fn best_parameter(gaps: &[u64]) -> (u8, u128) {
    // Sums of 2^32 such gaps fit 64 bits, whose addition has wide instructions.
    let are_small = gaps.iter().fold(0, |or, g| or | g) < 1 << 32 && (gaps.len() as u64) < 1 << 32;
    let len = gaps.len() as u128;
    let mean = (unary_bits(gaps, 0, are_small) - len) / len.max(1);
    let middle = (mean + 1).ilog2().min(63) as u8;
    let candidates = middle.saturating_sub(3)..=(middle + 2).min(63);
    let unary = candidates.map(|k| (k, unary_bits(gaps, k, are_small)));
    unary.min_by_key(|&(k, unary)| unary + len * u128::from(k)).unwrap_or((0, 0))
}

/// Appends both planes of a run.
pub(crate) fn write_run(out: &mut Vec<u8>, gaps: &[u64], k: u8) {
    if k > 0 {
        let mut low = PlaneWriter::new(out);
        low.put_all(gaps, k.into());
        low.finish();
    }
    let mut high = PlaneWriter::new(out);
    high.put_all_unary(gaps, k.into());
    high.finish();
}

/// Parameters of a run that are known before it is read.
pub(crate) struct RiceRun {
    /// Number of gaps.
    pub(crate) len: usize,
    /// Rice parameter.
    pub(crate) k: u8,
    /// Bytes of the second plane; `None` if it extends to the end of the cursor.
    pub(crate) unary_len: Option<u64>,
    /// Position before the first gap, plus one.
    pub(crate) base: u64,
    /// Elements in the index space.
    pub(crate) n: u64,
}

/// Takes both planes of a run, each with its offset.
fn take_planes<'a>(cursor: &mut Cursor<'a>, run: &RiceRun) -> Result<[(&'a [u8], u64); 2]> {
    let mismatch = |offset| Error::format(FormatErrorKind::LengthMismatch { field: "rice run" }, offset);
    let low_offset = cursor.offset();
    let low_len = packed_bytes(run.len as u64, run.k.into()).ok_or_else(|| mismatch(low_offset))?;
    let low = cursor.take(low_len)?;
    let unary_offset = cursor.offset();
    let unary = match run.unary_len {
        Some(bytes) => cursor.take(bytes)?,
        None => cursor.take_rest(),
    };
    // Every gap needs at least one bit: memory is bounded by the bytes present.
    if run.len as u64 > unary.len() as u64 * 8 {
        return Err(mismatch(unary_offset));
    }
    Ok([(low, low_offset), (unary, unary_offset)])
}

/// Skips a run without decoding it.
pub(crate) fn validate_run(cursor: &mut Cursor<'_>, run: &RiceRun) -> Result<()> {
    take_planes(cursor, run).map(drop)
}

/// Reads a run and appends its positions; each is below `run.n` (RIC-2).
pub(crate) fn read_run(cursor: &mut Cursor<'_>, run: &RiceRun, positions: &mut Vec<u64>) -> Result<()> {
    let &RiceRun { len, k, base, n, .. } = run;
    let mismatch = |offset| Error::format(FormatErrorKind::LengthMismatch { field: "rice run" }, offset);
    let [(low, low_offset), (unary, unary_offset)] = take_planes(cursor, run)?;
    let mut low = PlaneReader::new(low, low_offset);
    positions.reserve(len);
    let end = positions.len() + len;
    let mut next = base; // smallest position that the next gap can give
    let mut zeros = 0u64; // zeros since the last one bit
    let mut gap = |quotient: u64, positions: &mut Vec<u64>| -> Result<()> {
        let outside =
            |position| Error::format(FormatErrorKind::PositionOutOfRange { position, len: n }, unary_offset);
        if quotient > n >> k {
            return Err(outside(u64::MAX));
        }
        let position =
            next.checked_add(quotient << k | low.get(k.into())).ok_or_else(|| outside(u64::MAX))?;
        if position >= n {
            return Err(outside(position));
        }
        positions.push(position);
        next = position + 1;
        Ok(())
    };
    let words = unary.chunks(8);
    for chunk in words {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        let mut word = u64::from_le_bytes(bytes);
        let mut from = 0; // bits of the word before the first unread one
        while word != 0 {
            if positions.len() == end {
                return Err(mismatch(unary_offset));
            }
            let one = u64::from(word.trailing_zeros());
            gap(zeros + one - from, positions)?;
            zeros = 0;
            from = one + 1;
            word &= word - 1;
        }
        zeros += chunk.len() as u64 * 8 - from;
    }
    // After the last gap only the padding of its byte may follow.
    if positions.len() != end || zeros >= 8 {
        return Err(mismatch(unary_offset));
    }
    low.finish("rice run")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run_bits(gaps: &[u64], k: u8) -> u128 {
        unary_bits(gaps, k, false) + gaps.len() as u128 * u128::from(k)
    }

    fn read(bytes: &[u8], len: usize, k: u8, n: u64) -> Result<Vec<u64>> {
        let mut positions = Vec::new();
        let run = RiceRun { len, k, unary_len: None, base: 0, n };
        read_run(&mut Cursor::new(bytes, 0, "run"), &run, &mut positions)?;
        Ok(positions)
    }

    #[test]
    fn a_run_by_hand() {
        // Gaps 5, 0, 2 with k = 1: low bits 1, 0, 0; quotients 2, 0, 1 -> 001 1 01.
        let mut bytes = Vec::new();
        write_run(&mut bytes, &[5, 0, 2], 1);
        assert_eq!(bytes, [0b001, 0b10_1100]);
        assert_eq!(read(&bytes, 3, 1, 10).unwrap(), [5, 6, 9]);
        assert_eq!(read(&bytes, 3, 1, 9).unwrap_err().name(), "position_out_of_range");
        assert_eq!(read(&bytes, 2, 1, 10).unwrap_err().name(), "length_mismatch");
        assert_eq!(read(&[0b001, 0b10_1100, 0], 3, 1, 10).unwrap_err().name(), "length_mismatch");
        assert_eq!(read(&[0b1001, 0b10_1100], 3, 1, 10).unwrap_err().name(), "nonzero_padding");
    }

    #[test]
    fn the_best_parameter_is_the_best() {
        for gaps in [
            vec![0; 9],
            vec![1000; 5],
            vec![3, 900, 17, 1, 1, 1 << 40],
            vec![u64::MAX >> 1; 3],
            vec![(1 << 32) - 1; 3],
            vec![1 << 32; 3],
            vec![],
        ] {
            let best = (0..=63).min_by_key(|&k| run_bits(&gaps, k)).unwrap();
            let (k, unary) = best_parameter(&gaps);
            assert_eq!(run_bits(&gaps, k), run_bits(&gaps, best), "{gaps:?}");
            assert_eq!(unary, unary_bits(&gaps, k, false), "{gaps:?}");
        }
    }

    /// Returns the gaps between the positions of the bits that are set.
    fn gaps_of(set: u32) -> Vec<u64> {
        let positions = (0..32u64).filter(|p| set >> p & 1 == 1);
        let mut next = 0;
        positions.map(|p| p - std::mem::replace(&mut next, p + 1)).collect()
    }

    #[test]
    fn every_set_of_twelve_positions_by_every_parameter() {
        for set in 0..1u32 << 12 {
            let gaps = gaps_of(set);
            let expected: Vec<u64> = (0..12).filter(|p| set >> p & 1 == 1).collect();
            let n = expected.last().map_or(0, |p| p + 1);
            let fewest = (0..=63).map(|k| run_bits(&gaps, k)).min().unwrap();
            assert_eq!(run_bits(&gaps, best_parameter(&gaps).0), fewest);
            for k in (0..=5).chain([31, 63]) {
                let mut bytes = Vec::new();
                write_run(&mut bytes, &gaps, k);
                let planes = (gaps.len() * usize::from(k)).div_ceil(8);
                let unary = run_bits(&gaps, k) - gaps.len() as u128 * u128::from(k);
                assert_eq!(bytes.len() as u128, planes as u128 + unary.div_ceil(8));
                assert_eq!(read(&bytes, gaps.len(), k, n).unwrap(), expected);
                if n > 0 {
                    assert_eq!(
                        read(&bytes, gaps.len(), k, n - 1).unwrap_err().name(),
                        "position_out_of_range"
                    );
                }
            }
        }
    }

    /// Every run that the reader accepts is exactly the run that the writer produces: the encoding is unique.
    #[test]
    fn every_string_of_two_bytes_is_refused_or_is_what_a_writer_writes() {
        let mut read_well = 0;
        for bytes in 0..=u16::MAX {
            for k in 0..4 {
                for len in 0..=8 {
                    for short in [1, 2] {
                        let bytes = &bytes.to_le_bytes()[..short];
                        let Ok(positions) = read(bytes, len, k, 12) else { continue };
                        read_well += 1;
                        assert!(positions.is_sorted_by(|a, b| a < b) && positions.iter().all(|&p| p < 12));
                        let mut next = 0;
                        let gaps: Vec<u64> =
                            positions.iter().map(|p| p - std::mem::replace(&mut next, p + 1)).collect();
                        let mut again = Vec::new();
                        write_run(&mut again, &gaps, k);
                        assert_eq!(again, bytes);
                    }
                }
            }
        }
        assert!(read_well > 1000);
    }

    #[test]
    fn malformed_runs_are_refused() {
        // Bytes, number of gaps, parameter, elements.
        for (bytes, len, k, n, error) in [
            // A whole byte of padding.
            (&[0x80, 0][..], 1, 0, 8, "length_mismatch"),
            // A gap of 2 x 2^63 must not wrap to 0.
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0b100], 1, 63, 11, "position_out_of_range"),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0b100], 1, 63, u64::MAX, "position_out_of_range"),
            // A gap of 2^63 is outside, too.
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0b10], 1, 63, 1 << 63, "position_out_of_range"),
        ] {
            assert_eq!(read(bytes, len, k, n).unwrap_err().name(), error, "{bytes:?}");
        }
        assert_eq!(read(&[0x80], 1, 0, 8).unwrap(), [7]);
        assert_eq!(read(&[0, 0, 0, 0, 0, 0, 0, 0, 0b10], 1, 63, (1 << 63) + 1).unwrap(), [1 << 63]);
    }

    /// LIM-2: each gap has at least one bit.
    #[test]
    fn bytes_bound_the_number_of_gaps() {
        for unary_len in [None, Some(1)] {
            let validate = |len| {
                let run = RiceRun { len, k: 0, unary_len, base: 0, n: 100 };
                validate_run(&mut Cursor::new(&[0xff], 0, "run"), &run)
            };
            validate(8).unwrap();
            assert_eq!(validate(9).unwrap_err().name(), "length_mismatch");
        }
    }

    proptest! {
        #[test]
        fn runs_come_back(gaps in proptest::collection::vec(0u64..5000, 1..300), k in 0u8..14) {
            let mut bytes = Vec::new();
            write_run(&mut bytes, &gaps, k);
            let mut next = 0;
            let expected: Vec<u64> = gaps.iter().map(|g| { let p = next + g; next = p + 1; p }).collect();
            prop_assert_eq!(read(&bytes, gaps.len(), k, next).unwrap(), expected);
        }

        #[test]
        fn any_bytes_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..60), len in 0usize..100, k in 0u8..64, n in any::<u64>()) {
            if let Ok(positions) = read(&bytes, len, k, n) {
                prop_assert!(positions.len() == len && positions.is_sorted_by(|a, b| a < b));
                prop_assert!(positions.iter().all(|&p| p < n));
            }
        }
    }
}
