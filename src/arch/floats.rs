//! Rows of 32-bit floats where they are.

/// Returns the floats that these little-endian bytes are, without a copy; `None` if they are at an address
/// that floats cannot have, or if the processor stores floats in the other order.
pub(crate) fn floats(bytes: &[[u8; 4]]) -> Option<&[f32]> {
    // SAFETY: any four bytes are a float, and the floats live as long as the bytes.
    let (before, floats, after) = unsafe { bytes.as_flattened().align_to::<f32>() };
    let is_all = before.is_empty() && after.is_empty() && floats.len() == bytes.len();
    (is_all && cfg!(target_endian = "little")).then_some(floats)
}

/// As [`floats`], to be overwritten.
pub(crate) fn floats_mut(bytes: &mut [[u8; 4]]) -> Option<&mut [f32]> {
    let len = bytes.len();
    // SAFETY: any four bytes are a float, and any float is four bytes. The floats live as long as the bytes,
    // to which nothing else leads meanwhile.
    let (before, floats, after) = unsafe { bytes.as_flattened_mut().align_to_mut::<f32>() };
    let is_all = before.is_empty() && after.is_empty() && floats.len() == len;
    (is_all && cfg!(target_endian = "little")).then_some(floats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_those_of_their_bytes_wherever_they_lie() {
        let all: Vec<u8> = (0..=255).cycle().take(4099).collect();
        let mut found = 0;
        for start in 0..4 {
            for len in [0, 1, 7, 1023] {
                let bytes = all[start..start + 4 * len].as_chunks::<4>().0;
                let Some(floats) = floats(bytes) else { continue };
                found += usize::from(len > 0);
                let expected = bytes.iter().map(|b| f32::from_le_bytes(*b).to_bits());
                assert!(floats.iter().map(|x| x.to_bits()).eq(expected), "{start}, {len}");
                let mut copy = all.clone();
                let written = floats_mut(copy[start..start + 4 * len].as_chunks_mut().0);
                if let Some(written) = written {
                    written.iter_mut().rev().zip(floats).for_each(|(to, from)| *to = *from);
                    let turned: Vec<u8> = bytes.iter().rev().flatten().copied().collect();
                    assert_eq!(copy[start..start + 4 * len], turned, "{start}, {len}");
                }
            }
        }
        // One of four addresses in a row is one of a float.
        assert_eq!(found, if cfg!(target_endian = "little") { 3 } else { 0 });
    }
}
