//! Loops for elements of 16 bits. Their conversions are those of the crate `half`, without branches and
//! calls, so that loops of wide instructions contain them.

use crate::arch::Kernel;

/// Infinity as f32; magnitudes above it are NaN.
const INFINITE: u32 = 0xff << 23;

/// The bit that makes a NaN of f32 quiet. A signalling one becomes quiet in every conversion to another type.
const QUIET: u32 = 1 << 22;

/// The smallest normal number of f16, 2^-14, as f32.
const NORMAL: u32 = (127 - 14) << 23;

/// Converts elements to f32.
pub(super) struct Decode<'a, D> {
    pub(super) elements: &'a [[u8; 2]],
    pub(super) out: &'a mut [f32],
    pub(super) decode: D,
}

impl<D: Fn(u16) -> f32> Kernel for Decode<'_, D> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (out, element) in self.out.iter_mut().zip(self.elements) {
            *out = (self.decode)(u16::from_le_bytes(*element));
        }
    }
}

/// Rounds values to elements.
pub(super) struct Encode<'a, E> {
    pub(super) values: &'a [f32],
    pub(super) out: &'a mut [[u8; 2]],
    pub(super) encode: E,
}

impl<E: Fn(f32) -> u16> Kernel for Encode<'_, E> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (out, value) in self.out.iter_mut().zip(self.values) {
            *out = (self.encode)(*value).to_le_bytes();
        }
    }
}

#[inline(always)]
pub(super) fn from_bf16(element: u16) -> f32 {
    let bits = u32::from(element) << 16;
    f32::from_bits(bits | if bits << 1 > INFINITE << 1 { QUIET } else { 0 })
}

#[inline(always)]
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = (bits | QUIET) >> 16;
    (if bits << 1 > INFINITE << 1 { nan } else { rounded }) as u16
}

#[inline(always)]
pub(super) fn from_f16(element: u16) -> f32 {
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
pub(super) fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    // What rounds to 2^16 and more is infinite.
    let normal = (magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1)).wrapping_sub((127 - 15) << 23) >> 13)
        .min(0x7c00);
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    // Next to 1/2, numbers are multiples of 2^-24, as the subnormal ones of f16 are.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    (sign | if magnitude > INFINITE { nan } else { finite }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch;
    use half::{bf16, f16};

    #[test]
    fn all_elements_are_decoded_as_by_the_crate() {
        for bits in 0..=u16::MAX {
            assert_eq!(
                from_bf16(bits).to_bits(),
                bf16::from_bits(bits).to_f32().to_bits() | quiet(from_bf16(bits)),
                "{bits:x}"
            );
            assert_eq!(from_f16(bits).to_bits(), f16::from_bits(bits).to_f32().to_bits(), "{bits:x}");
        }
    }

    /// The crate keeps signalling NaNs of bf16.
    fn quiet(x: f32) -> u32 {
        if x.is_nan() { QUIET } else { 0 }
    }

    #[test]
    fn values_are_rounded_as_by_the_crate() {
        let lows = [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff];
        for bits in (0..=0xffffu32).flat_map(|high| lows.map(|low| high << 16 | low)) {
            let x = f32::from_bits(bits);
            assert_eq!(to_bf16(x), bf16::from_f32(x).to_bits(), "{bits:x}");
            assert_eq!(to_f16(x), f16::from_f32(x).to_bits(), "{bits:x}");
        }
    }

    #[test]
    fn loops_of_every_width_give_the_same() {
        let elements: Vec<[u8; 2]> = (0..1000u16).map(|i| i.wrapping_mul(0x9e37).to_le_bytes()).collect();
        for len in [0, 1, 31, 64, 1000] {
            let elements = &elements[..len];
            for form in arch::forms() {
                let mut values = vec![0.0; len];
                arch::run_as(form, Decode { elements, out: &mut values, decode: from_f16 });
                assert!(
                    values
                        .iter()
                        .zip(elements)
                        .all(|(x, e)| { x.to_bits() == from_f16(u16::from_le_bytes(*e)).to_bits() })
                );
                let mut back = vec![[0; 2]; len];
                arch::run_as(form, Encode { values: &values, out: &mut back, encode: to_bf16 });
                assert!(back.iter().zip(&values).all(|(b, x)| u16::from_le_bytes(*b) == to_bf16(*x)));
            }
        }
    }
}
