//! Loops for elements of 16 bits. Their conversions are those of the crate `half`, without branches and
//! calls, so that loops of wide instructions contain them.

use crate::arch::Kernel;

/// Infinity as f32; magnitudes above it are NaN.
const INFINITE: u32 = 0xff << 23;

/// The bit that makes a NaN of f32 quiet. A signalling one becomes quiet in every conversion to another type.
const QUIET: u32 = 1 << 22;

/// The smallest normal number of f16, 2^-14, as f32.
const NORMAL: u32 = (127 - 14) << 23;

/// Converts each item.
pub(super) struct Each<'a, A, B, F> {
    pub(super) from: &'a [A],
    pub(super) to: &'a mut [B],
    pub(super) convert: F,
}

impl<A: Copy, B, F: Fn(A) -> B> Kernel for Each<'_, A, B, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.to.iter_mut().zip(self.from).for_each(|(to, from)| *to = (self.convert)(*from));
    }
}

#[inline(always)]
pub(super) fn from_bf16(element: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(element)) << 16;
    f32::from_bits(bits | if bits << 1 > INFINITE << 1 { QUIET } else { 0 })
}

#[inline(always)]
pub(super) fn to_bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = (bits | QUIET) >> 16;
    let element = if bits << 1 > INFINITE << 1 { nan } else { rounded };
    (element as u16).to_le_bytes()
}

#[inline(always)]
pub(super) fn from_f16(element: [u8; 2]) -> f32 {
    let element = u16::from_le_bytes(element);
    let (sign, magnitude) = (u32::from(element & 0x8000) << 16, u32::from(element & 0x7fff) << 13);
    // Exponents have a bias of 127 in place of 15. That of infinity and NaN is the largest of each type.
    let normal = magnitude + ((127 - 15) << 23);
    let special = magnitude + ((255 - 31) << 23);
    let quiet = if special > INFINITE { QUIET } else { 0 };
    // The mantissa m of a subnormal number is m * 2^-24: what m adds to 2^-14. Subnormal numbers of f32,
    // which a program may have told the processor to take for zero, do not occur.
    let subnormal = (f32::from_bits(magnitude + NORMAL) - f32::from_bits(NORMAL)).to_bits();
    let bits = if magnitude < 0x400 << 13 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= 0x7c00 << 13 { special | quiet } else { bits })
}

#[inline(always)]
pub(super) fn to_f16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    // What rounds to 2^16 and more is infinite.
    let normal = (magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1)).wrapping_sub((127 - 15) << 23) >> 13)
        .min(0x7c00);
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    // Next to 1/2, numbers are multiples of 2^-24, as the subnormal ones of f16 are.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    let element = sign | if magnitude > INFINITE { nan } else { finite };
    (element as u16).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch;
    use half::{bf16, f16};

    #[test]
    fn all_elements_are_decoded_as_by_the_crate() {
        for element in (0..=u16::MAX).map(u16::to_le_bytes) {
            let (x, f16) = (from_bf16(element), f16::from_le_bytes(element));
            // The crate keeps signalling NaNs of bf16.
            let quiet = if x.is_nan() { QUIET } else { 0 };
            assert_eq!(x.to_bits(), bf16::from_le_bytes(element).to_f32().to_bits() | quiet, "{element:?}");
            assert_eq!(from_f16(element).to_bits(), f16.to_f32().to_bits(), "{element:?}");
        }
    }

    #[test]
    fn values_are_rounded_as_by_the_crate() {
        let lows = [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff];
        for bits in (0..=0xffffu32).flat_map(|high| lows.map(|low| high << 16 | low)) {
            let x = f32::from_bits(bits);
            assert_eq!(to_bf16(x), bf16::from_f32(x).to_le_bytes(), "{bits:x}");
            assert_eq!(to_f16(x), f16::from_f32(x).to_le_bytes(), "{bits:x}");
        }
    }

    #[test]
    fn loops_of_every_width_give_the_same() {
        let elements: Vec<[u8; 2]> = (0..1000u16).map(|i| i.wrapping_mul(0x9e37).to_le_bytes()).collect();
        let values: Vec<f32> = elements.iter().map(|&element| from_f16(element)).collect();
        let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|x| x.to_bits()).collect() };
        for len in [0, 1, 31, 64, 1000] {
            let (elements, values) = (&elements[..len], &values[..len]);
            for form in arch::forms() {
                let mut decoded = vec![0.0; len];
                arch::run_as(form, Each { from: elements, to: &mut decoded, convert: from_f16 });
                assert_eq!(bits(&decoded), bits(values));
                let mut rounded = vec![[0; 2]; len];
                arch::run_as(form, Each { from: values, to: &mut rounded, convert: to_bf16 });
                assert!(rounded.iter().zip(values).all(|(element, x)| *element == to_bf16(*x)));
            }
        }
    }
}
