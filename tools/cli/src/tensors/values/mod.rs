//! Values of element types that streams do not have: for statistics alone.

mod blocks;

use gcodec::internal::elements;
use gcodec::tensor::TensorBuf;

/// Computes the values of a block of bytes.
type Read = fn(&[u8], &mut [f32]);

/// How the elements of a type stand in its bytes: in blocks.
pub(super) struct Values {
    /// Elements of a block.
    len: usize,
    /// Bytes of a block.
    bytes: usize,
    read: Read,
}

impl Values {
    /// Returns the values of an element type, by the name that its format has for it.
    pub(super) fn of(dtype: &str) -> Option<Self> {
        let (len, bytes, read): (_, _, Read) = match dtype {
            "F8_E8M0" | "float8_e8m0fnu" => (1, 1, |b, out| out[0] = e8m0(b[0])),
            "F6_E2M3" => (4, 3, |b, out| f6(b, out, 3)),
            "F6_E3M2" => (4, 3, |b, out| f6(b, out, 2)),
            "C64" | "complex64" | "<c8" => (1, 8, |b, out| out[0] = f32_at(b, 0).hypot(f32_at(b, 4))),
            "complex128" | "<c16" => (1, 16, |b, out| out[0] = f64_at(b, 0).hypot(f64_at(b, 8)) as f32),
            "complex32" => (1, 4, |b, out| out[0] = f16(b, 0).hypot(f16(b, 2))),
            "q4_0" => (32, 18, blocks::q4_0),
            "q4_1" => (32, 20, blocks::q4_1),
            "q5_0" => (32, 22, blocks::q5_0),
            "q5_1" => (32, 24, blocks::q5_1),
            "q8_0" => (32, 34, blocks::q8_0),
            "q8_1" => (32, 36, blocks::q8_1),
            "q2_K" => (256, 84, blocks::q2_k),
            "q3_K" => (256, 110, blocks::q3_k),
            "q4_K" => (256, 144, blocks::q4_k),
            "q5_K" => (256, 176, blocks::q5_k),
            "q6_K" => (256, 210, blocks::q6_k),
            "q8_K" => (256, 292, blocks::q8_k),
            "iq4_nl" => (32, 18, blocks::iq4_nl),
            "iq4_xs" => (256, 136, blocks::iq4_xs),
            "tq1_0" => (256, 54, blocks::tq1_0),
            "tq2_0" => (256, 66, blocks::tq2_0),
            "mxfp4" => (32, 17, blocks::mxfp4),
            "nvfp4" => (64, 36, blocks::nvfp4),
            "q1_0" => (128, 18, blocks::q1_0),
            _ => return None,
        };
        Some(Self { len, bytes, read })
    }

    /// Whether so many bytes hold a tensor of this shape.
    pub(super) fn fits(&self, shape: &[u64], bytes: u64) -> bool {
        let Some(count) = elements(shape) else { return false };
        let len = self.len as u64;
        count.is_multiple_of(len) && (count / len).checked_mul(self.bytes as u64) == Some(bytes)
    }

    /// Returns where the block that begins with this element begins, in bytes.
    pub(super) fn place(&self, element: u64) -> u64 {
        element / self.len as u64 * self.bytes as u64
    }

    /// Returns the values of a tensor that [fits](Self::fits).
    pub(super) fn read(&self, shape: &[u64], data: &[u8]) -> Option<TensorBuf> {
        let mut values = vec![0f32; data.len() / self.bytes * self.len];
        for (block, out) in data.chunks_exact(self.bytes).zip(values.chunks_exact_mut(self.len)) {
            (self.read)(block, out);
        }
        TensorBuf::from_f32(shape.to_vec(), &values).ok()
    }
}

fn f32_at(b: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn f64_at(b: &[u8], at: usize) -> f64 {
    f64::from_le_bytes(std::array::from_fn(|i| b[at + i]))
}

/// Returns the half float at `at`.
fn f16(b: &[u8], at: usize) -> f32 {
    let bits = u16::from_le_bytes([b[at], b[at + 1]]);
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Returns a power of two of the OCP's Microscaling Formats.
fn e8m0(exponent: u8) -> f32 {
    match exponent {
        255 => f32::NAN,
        // Below the normal numbers of f32.
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// Reads four 6-bit floats of the OCP's Microscaling Formats from three bytes, the first in the lowest bits.
fn f6(b: &[u8], out: &mut [f32], fraction_bits: u32) {
    let word = u32::from_le_bytes([b[0], b[1], b[2], 0]);
    let steps = 2f32.powi(fraction_bits as i32);
    let bias = (1 << (4 - fraction_bits)) - 1;
    for (i, out) in out.iter_mut().enumerate() {
        let bits = word >> (6 * i) & 63;
        let (exponent, fraction) = ((bits & 31) >> fraction_bits, (bits & ((1 << fraction_bits) - 1)) as f32);
        let magnitude = match exponent {
            0 => fraction / steps * 2f32.powi(1 - bias),
            exponent => (1.0 + fraction / steps) * 2f32.powi(exponent as i32 - bias),
        };
        *out = if bits >> 5 == 1 { -magnitude } else { magnitude };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16 as half;

    fn values(dtype: &str, data: &[u8]) -> Vec<f32> {
        let values = Values::of(dtype).unwrap();
        let len = (data.len() / values.bytes * values.len) as u64;
        let bytes = data.len() as u64;
        assert!(values.fits(&[len], bytes) && !values.fits(&[len + 1], bytes));
        values.read(&[len], data).unwrap().view().to_f32().unwrap()
    }

    #[test]
    fn small_floats_are_those_of_their_definitions() {
        assert_eq!(values("F8_E8M0", &[0, 126, 127, 254]), [2f32.powi(-127), 0.5, 1.0, 2f32.powi(127)]);
        assert!(values("F8_E8M0", &[255])[0].is_nan());
        // The largest, the smallest, one, minus one.
        let packed = |codes: [u32; 4]| {
            let word = codes.iter().rev().fold(0, |word, code| word << 6 | code);
            word.to_le_bytes()[..3].to_vec()
        };
        assert_eq!(values("F6_E2M3", &packed([31, 1, 8, 40])), [7.5, 0.125, 1.0, -1.0]);
        assert_eq!(values("F6_E3M2", &packed([31, 1, 12, 44])), [28.0, 0.0625, 1.0, -1.0]);
        for bits in 0..=u16::MAX {
            let (mine, theirs) = (f16(&bits.to_le_bytes(), 0), half::from_bits(bits).to_f32());
            assert!(mine == theirs || (mine.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn complex_numbers_have_their_magnitude() {
        let c64: Vec<u8> = [3f32, -4.0, 0.0, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(values("C64", &c64), [5.0, 0.0]);
        let c128: Vec<u8> = [5f64, 12.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(values("<c16", &c128), [13.0]);
        assert_eq!(values("complex32", &[0, 0x3c, 0, 0]), [1.0]);
    }

    /// Bytes of a linear congruential generator.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
            (state >> 16) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// Element 1, the middle, the last, and the sum of all weighted by their places from 1 on: what
    /// `gguf.quants.dequantize` of llama.cpp's package gguf 0.19.0 gives for a block of noise. The half
    /// floats at `ones` are 1, those at `halves` are 1/2.
    #[test]
    fn quantised_blocks_have_the_values_of_llama_cpp() {
        type Case = (&'static str, &'static [usize], &'static [usize], [f32; 3], f64);
        let cases: [Case; 16] = [
            ("q4_0", &[0], &[], [3.0, 0.0, 3.0], 484.0),
            ("q4_1", &[0], &[2], [11.5, 4.5, 13.5], 4945.0),
            ("q5_0", &[0], &[], [-5.0, 14.0, 7.0], 1443.0),
            ("q5_1", &[0], &[2], [22.5, 5.5, 20.5], 10332.0),
            ("q8_0", &[0], &[], [107.0, 49.0, 86.0], 9181.0),
            ("q2_K", &[80], &[82], [12.0, 5.5, 3.0], 305_220.0),
            ("q3_K", &[108], &[], [-20.0, 44.0, -9.0], -109_789.0),
            ("q4_K", &[0], &[2], [155.0, 408.5, 357.0], 10_964_829.0),
            ("q5_K", &[0], &[2], [188.0, 240.5, 27.0], 22_655_123.0),
            ("q6_K", &[208], &[], [192.0, 2370.0, 2160.0], 2_254_399.0),
            ("iq4_nl", &[0], &[], [38.0, 1.0, 38.0], 7922.0),
            ("iq4_xs", &[0], &[], [110.0, 450.0, -113.0], -191_771.0),
            ("tq1_0", &[52], &[], [0.0, 0.0, -1.0], 735.0),
            ("tq2_0", &[64], &[], [1.0, 1.0, -1.0], 18_419.0),
            ("mxfp4", &[], &[], [0.5, 6.0, 0.0], -284.0),
            ("nvfp4", &[], &[], [-5.25, 0.007_812_5, 528.0], -35_722.619_140_625),
        ];
        for (name, ones, halves, expected, weighted) in cases {
            let Values { len, bytes, .. } = Values::of(name).unwrap();
            let mut block = noise(bytes);
            ones.iter().for_each(|at| block[*at..at + 2].copy_from_slice(&half::ONE.to_le_bytes()));
            halves.iter().for_each(|at| block[*at..at + 2].copy_from_slice(&[0, 0x38]));
            if name == "mxfp4" {
                block[0] = 127;
            }
            let found = values(name, &block);
            assert_eq!([found[1], found[len / 2], found[len - 1]], expected, "{name}");
            let sum: f64 = found.iter().zip(1..).map(|(x, place)| f64::from(*x) * f64::from(place)).sum();
            assert_eq!(sum, weighted, "{name}");
        }
        let signs = values("q1_0", &[&[0, 0x40][..], &[5; 16]].concat());
        assert_eq!(signs[..4], [2.0, -2.0, 2.0, -2.0]);
        let bytes = [&[0, 0x3c, 0, 0][..], &[1, 255], &[0; 30]].concat();
        assert_eq!(values("q8_1", &bytes)[..3], [1.0, -1.0, 0.0]);
        let bytes = [&2f32.to_le_bytes()[..], &[1, 255], &[0; 286]].concat();
        assert_eq!(values("q8_K", &bytes)[..3], [2.0, -2.0, 0.0]);
    }
}
