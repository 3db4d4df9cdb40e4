//! Exact conversions of elements: bit patterns of every element type to and from `f32`, the small float formats of
//! [`Minifloat`], the formats of [`Scales`], and the order in which differences of the last place are counted.
//!
//! Everything rounds to nearest, ties to even. What happens beyond the largest finite value differs: an element type
//! follows its standard (infinity in f16, bf16 and f8e5m2; NaN in f8e4m3fn and the two `fnuz`; the largest value in
//! f4e2m1, which has neither), a [`Minifloat`] saturates, since a quantiser must not make NaN of a finite number.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::block::{Minifloat, ScaleFormat, Scales};
use crate::error::{Error, InputErrorKind, Result};
use crate::tensor::Dtype;

/// Converts the elements `start .. start + out.len()` of `data` to `f32`, which is exact but for f64.
///
/// # Errors
/// [`Error::Input`] if `dtype` is no float, or if `data` ends before the last of them.
pub fn decode_f32s(dtype: Dtype, data: &[u8], start: u64, out: &mut [f32]) -> Result<()> {
    float_only(dtype)?;
    let bytes = data.get(byte_range(dtype, start, out.len(), data.len())?).unwrap_or_default();
    match dtype {
        Dtype::F32 => {
            for (x, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*b);
            }
        }
        Dtype::F64 => {
            for (x, b) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *x = f64::from_le_bytes(*b) as f32;
            }
        }
        Dtype::Bf16 => {
            for (x, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                let bits = u32::from(u16::from_le_bytes(*b)) << 16;
                // A signalling NaN becomes quiet, as in every conversion to another type.
                let quiet = if bits << 1 > 0xff00_0000 { 1 << 22 } else { 0 };
                *x = f32::from_bits(bits | quiet);
            }
        }
        Dtype::F16 => {
            let mut halves = [f16::ZERO; 256];
            for (xs, bs) in out.chunks_mut(256).zip(bytes.chunks(512)) {
                for (h, b) in halves.iter_mut().zip(bs.as_chunks::<2>().0) {
                    *h = f16::from_le_bytes(*b);
                }
                halves[..xs.len()].convert_to_f32_slice(xs);
            }
        }
        Dtype::F4E2M1 => {
            let odd = (start % 2) as usize;
            for (i, x) in out.iter_mut().enumerate() {
                let nibble = bytes[(i + odd) / 2] >> (4 * ((i + odd) % 2));
                *x = TABLES[4][usize::from(nibble & 15)];
            }
        }
        _ => {
            let table = &TABLES[usize::from(dtype.id() - Dtype::F8E4M3Fn.id())];
            for (x, &b) in out.iter_mut().zip(bytes) {
                *x = table[usize::from(b)];
            }
        }
    }
    Ok(())
}

/// Converts `values` into the elements `start .. start + values.len()` of `data`.
///
/// # Errors
/// [`Error::Input`] if `dtype` is no float, or if `data` ends before the last of them.
pub fn encode_f32s(dtype: Dtype, values: &[f32], start: u64, data: &mut [u8]) -> Result<()> {
    float_only(dtype)?;
    let range = byte_range(dtype, start, values.len(), data.len())?;
    let bytes = data.get_mut(range).unwrap_or_default();
    match dtype {
        Dtype::F32 => {
            for (x, b) in values.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *b = x.to_le_bytes();
            }
        }
        Dtype::F64 => {
            for (x, b) in values.iter().zip(bytes.as_chunks_mut::<8>().0) {
                *b = f64::from(*x).to_le_bytes();
            }
        }
        Dtype::Bf16 => {
            for (x, b) in values.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *b = bf16::from_f32(*x).to_le_bytes();
            }
        }
        Dtype::F16 => {
            for (x, b) in values.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *b = f16::from_f32(*x).to_le_bytes();
            }
        }
        Dtype::F4E2M1 => {
            let odd = (start % 2) as usize;
            for (i, x) in values.iter().enumerate() {
                let (byte, shift) = (&mut bytes[(i + odd) / 2], 4 * ((i + odd) % 2));
                *byte = *byte & !(15 << shift) | encode(F4E2M1, *x, Overflow::Saturate) << shift;
            }
        }
        _ => {
            let (float, overflow) = match dtype {
                Dtype::F8E4M3Fn => (F8E4M3FN, Overflow::NaN),
                Dtype::F8E5M2 => (F8E5M2, Overflow::Infinity),
                Dtype::F8E4M3Fnuz => (F8E4M3FNUZ, Overflow::NaN),
                _ => (F8E5M2FNUZ, Overflow::NaN),
            };
            for (x, b) in values.iter().zip(bytes) {
                *b = encode(float, *x, overflow);
            }
        }
    }
    Ok(())
}

/// What is left of `values` once a tensor of this type holds them.
///
/// # Errors
/// [`Error::Input`] if `dtype` is no float.
pub fn round_f32s(dtype: Dtype, values: &mut [f32]) -> Result<()> {
    if matches!(dtype, Dtype::F32 | Dtype::F64) {
        return Ok(());
    }
    let mut bytes = vec![0; dtype.bytes_for(values.len() as u64).unwrap_or(0) as usize];
    encode_f32s(dtype, values, 0, &mut bytes)?;
    decode_f32s(dtype, &bytes, 0, values)
}

/// The largest finite `f32` that elements of this type hold; of an integer type, that of f32.
pub fn max_finite(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F16 => f16::MAX.to_f32(),
        Dtype::Bf16 => bf16::MAX.to_f32(),
        Dtype::F8E4M3Fn => F8E4M3FN.decode(F8E4M3FN.max),
        Dtype::F8E5M2 => F8E5M2.decode(F8E5M2.max),
        Dtype::F8E4M3Fnuz => F8E4M3FNUZ.decode(F8E4M3FNUZ.max),
        Dtype::F8E5M2Fnuz => F8E5M2FNUZ.decode(F8E5M2FNUZ.max),
        Dtype::F4E2M1 => F4E2M1.decode(F4E2M1.max),
        _ => f32::MAX,
    }
}

/// The bit pattern of element `index`; `None` beyond the end.
pub fn bits_at(dtype: Dtype, data: &[u8], index: u64) -> Option<u64> {
    if dtype.bits() == 4 {
        let byte = *data.get(usize::try_from(index / 2).ok()?)?;
        return Some(u64::from(byte >> (4 * (index % 2)) & 15));
    }
    let width = dtype.bits() as usize / 8;
    let at = usize::try_from(index).ok()?.checked_mul(width)?;
    let mut word = [0; 8];
    word[..width].copy_from_slice(data.get(at..at.checked_add(width)?)?);
    Some(u64::from_le_bytes(word))
}

/// Sets the bit pattern of element `index` to the low bits of `bits`; `None` beyond the end.
pub fn set_bits_at(dtype: Dtype, data: &mut [u8], index: u64, bits: u64) -> Option<()> {
    if dtype.bits() == 4 {
        let (byte, shift) = (data.get_mut(usize::try_from(index / 2).ok()?)?, 4 * (index % 2));
        *byte = *byte & !(15 << shift) | (bits as u8 & 15) << shift;
        return Some(());
    }
    let width = dtype.bits() as usize / 8;
    let at = usize::try_from(index).ok()?.checked_mul(width)?;
    data.get_mut(at..at.checked_add(width)?)?.copy_from_slice(&bits.to_le_bytes()[..width]);
    Some(())
}

/// The place of a bit pattern among all of its type, least first: neighbouring floats have neighbouring places, and
/// -0 stands right below +0. Bit patterns of integers and of bool stand for themselves.
pub fn ordered(dtype: Dtype, bits: u64) -> u64 {
    let (mask, sign) = masks(dtype);
    match (dtype.is_float(), bits & sign != 0) {
        (true, true) => !bits & mask,
        (true, false) => (bits | sign) & mask,
        (false, _) => bits & mask,
    }
}

/// The bit pattern at a place: the inverse of [`ordered`].
pub fn unordered(dtype: Dtype, place: u64) -> u64 {
    let (mask, sign) = masks(dtype);
    match (dtype.is_float(), place & sign != 0) {
        (true, true) => place & !sign & mask,
        (true, false) => !place & mask,
        (false, _) => place & mask,
    }
}

/// How many places up from `old` the bit pattern `new` lies, modulo the number of places.
pub fn ulp_diff(dtype: Dtype, old: u64, new: u64) -> i64 {
    let spare = 64 - dtype.bits();
    (ordered(dtype, new).wrapping_sub(ordered(dtype, old)) << spare) as i64 >> spare
}

/// The bit pattern that lies `diff` places up from `old`: the inverse of [`ulp_diff`].
pub fn ulp_step(dtype: Dtype, old: u64, diff: i64) -> u64 {
    unordered(dtype, ordered(dtype, old).wrapping_add(diff as u64) & masks(dtype).0)
}

impl Minifloat {
    /// Bits of one code: 4, 6 or 8.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F4E2M1 | Self::F4E3M0 => 4,
            Self::F6E3M2 | Self::F6E2M3 => 6,
            _ => 8,
        }
    }

    /// The value of a code; bits above [`Self::bits`] are ignored.
    ///
    /// f4e3m0 has a sign and three exponent bits: 2^(e - 3), and zero for e = 0. int8 is two's complement times 2^-6.
    pub fn decode(self, code: u8) -> f32 {
        match self.float() {
            Some(float) => float.decode(code & ((1u16 << self.bits()) - 1) as u8),
            None => f32::from(code as i8) / 64.0,
        }
    }

    /// The code nearest to `x`, ties to the even code. Finite values beyond the largest become the largest; so does
    /// infinity but in f8e5m2, which has it; and NaN becomes the largest of its sign where a format has no NaN.
    pub fn encode(self, x: f32) -> u8 {
        match self.float() {
            Some(float) => encode(float, x, Overflow::Saturate),
            None if x.is_nan() => (127f32.copysign(x)) as i8 as u8,
            None => (x * 64.0).round_ties_even() as i8 as u8,
        }
    }

    const fn float(self) -> Option<Float> {
        Some(match self {
            Self::F8E4M3Fn => F8E4M3FN,
            Self::F8E5M2 => F8E5M2,
            Self::F8E4M3Fnuz => F8E4M3FNUZ,
            Self::F8E5M2Fnuz => F8E5M2FNUZ,
            Self::F4E2M1 => F4E2M1,
            Self::F6E3M2 => F6E3M2,
            Self::F6E2M3 => F6E2M3,
            Self::F4E3M0 => F4E3M0,
            Self::Int8 => return None,
        })
    }
}

impl ScaleFormat {
    /// Bytes of one scale: 1, 2 or 4.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E8M0 => 1,
        }
    }
}

impl Scales {
    /// The number of scales.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.format.bytes()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Scale `index`.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn get(&self, index: usize) -> f32 {
        let width = self.format.bytes();
        let bytes = &self.bytes[index * width..(index + 1) * width];
        match *bytes {
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            [a, b] if self.format == ScaleFormat::F16 => f16::from_le_bytes([a, b]).to_f32(),
            [a, b] => bf16::from_le_bytes([a, b]).to_f32(),
            [x] => e8m0(x),
            _ => unreachable!("scales have 1, 2 or 4 bytes"),
        }
    }

    /// Stores `values` in `format`. E8M0 takes the nearest power of two, the larger one halfway between two; what is
    /// below 2^-127 becomes that, and NaN, infinity and negative numbers become NaN.
    pub fn from_f32s(format: ScaleFormat, values: &[f32]) -> Self {
        let mut bytes = Vec::with_capacity(values.len() * format.bytes());
        for &x in values {
            match format {
                ScaleFormat::F32 => bytes.extend(x.to_le_bytes()),
                ScaleFormat::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                ScaleFormat::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                ScaleFormat::E8M0 => bytes.push(to_e8m0(x)),
            }
        }
        Self { format, bytes }
    }
}

fn e8m0(x: u8) -> f32 {
    match x {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(x) << 23),
    }
}

fn to_e8m0(x: f32) -> u8 {
    if !x.is_finite() || x < 0.0 {
        return 255;
    }
    // Half of the mantissa added, a carry steps to the next power; below 2^-126 that step lies at 0.75 of it.
    let bits = x.to_bits();
    if bits < 1 << 23 { u8::from(bits >= 3 << 21) } else { ((bits + (1 << 22)) >> 23).min(254) as u8 }
}

/// A sign bit, `exponent` and `mantissa` bits, gradual underflow.
#[derive(Clone, Copy)]
struct Float {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    /// The largest finite magnitude's code.
    max: u8,
    special: Special,
}

/// Codes that are no finite numbers.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    None,
    /// Magnitudes above `max` are NaN.
    NaN,
    /// The magnitude after `max` is infinity, those above are NaN.
    Infinity,
    /// Minus zero is NaN.
    MinusZero,
}

/// What a number becomes that rounds to more than the largest.
#[derive(Clone, Copy, PartialEq)]
enum Overflow {
    Saturate,
    NaN,
    Infinity,
}

const fn float(exponent: u32, mantissa: u32, bias: i32, max: u8, special: Special) -> Float {
    Float { exponent, mantissa, bias, max, special }
}

const F8E4M3FN: Float = float(4, 3, 7, 0x7e, Special::NaN);
const F8E5M2: Float = float(5, 2, 15, 0x7b, Special::Infinity);
const F8E4M3FNUZ: Float = float(4, 3, 8, 0x7f, Special::MinusZero);
const F8E5M2FNUZ: Float = float(5, 2, 16, 0x7f, Special::MinusZero);
const F4E2M1: Float = float(2, 1, 1, 0x07, Special::None);
const F6E3M2: Float = float(3, 2, 3, 0x1f, Special::None);
const F6E2M3: Float = float(2, 3, 1, 0x1f, Special::None);
const F4E3M0: Float = float(3, 0, 3, 0x07, Special::None);

/// Decoded bit patterns of the element types from [`Dtype::F8E4M3Fn`] to [`Dtype::F4E2M1`], in the order of their ids.
static TABLES: [[f32; 256]; 5] =
    [F8E4M3FN.table(), F8E5M2.table(), F8E4M3FNUZ.table(), F8E5M2FNUZ.table(), F4E2M1.table()];

impl Float {
    const fn sign(self) -> u8 {
        1 << (self.exponent + self.mantissa)
    }

    const fn decode(self, code: u8) -> f32 {
        let (sign, magnitude) = (code & self.sign() != 0, code & (self.sign() - 1));
        let fields = (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        let value = match (fields, self.special) {
            ((0, 0), Special::MinusZero) if sign => return f32::NAN,
            _ if magnitude > self.max => {
                if matches!(self.special, Special::Infinity) && magnitude == self.max + 1 {
                    f32::INFINITY
                } else {
                    f32::NAN
                }
            }
            ((0, m), _) => m as f32 * power(1 - self.bias - self.mantissa as i32),
            ((e, m), _) => {
                (m + (1 << self.mantissa)) as f32 * power(e as i32 - self.bias - self.mantissa as i32)
            }
        };
        if sign { -value } else { value }
    }

    const fn table(self) -> [f32; 256] {
        let mut table = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            table[code] = self.decode((code as u16 & (self.sign() as u16 * 2 - 1)) as u8);
            code += 1;
        }
        table
    }

    const fn nan(self, sign: u8) -> u8 {
        match self.special {
            Special::None => sign | self.max,
            Special::NaN => sign | (self.max + 1),
            Special::Infinity => sign | (self.max + 3),
            Special::MinusZero => self.sign(),
        }
    }
}

/// 2^exponent, for the exponents of normal numbers.
const fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

fn encode(float: Float, x: f32, overflow: Overflow) -> u8 {
    let sign = if x.is_sign_negative() { float.sign() } else { 0 };
    if x.is_nan() {
        // f8e5m2 has room for two bits of payload: the quiet bit, which is set, and the one after it.
        let payload = if float.special == Special::Infinity { (x.to_bits() >> 21 & 1) as u8 } else { 0 };
        return float.nan(sign) | payload;
    }
    let beyond = match overflow {
        Overflow::Saturate => sign | float.max,
        Overflow::NaN => float.nan(sign),
        Overflow::Infinity => sign | (float.max + 1),
    };
    if x.is_infinite() {
        return if float.special == Special::Infinity { sign | (float.max + 1) } else { beyond };
    }
    // With e the exponent, or the least normal one, |x| = r * 2^(e - mantissa) has the code r + (steps of e above the
    // least) * 2^mantissa, for subnormals as well, and a carry of the rounding runs into the exponent by itself.
    let least = 1 - float.bias;
    let e = ((x.to_bits() >> 23 & 0xff) as i32 - 127).max(least);
    let r = f64::from(x.abs()) * f64::from_bits(((float.mantissa as i32 - e + 1023) as u64) << 52);
    let below = ((e - least) << float.mantissa) + r as i32;
    let rest = r - r.floor();
    let code = below + i32::from(rest > 0.5 || rest == 0.5 && below % 2 == 1);
    match code {
        0 if float.special == Special::MinusZero => 0,
        _ if code > i32::from(float.max) => beyond,
        _ => sign | code as u8,
    }
}

fn masks(dtype: Dtype) -> (u64, u64) {
    let sign = 1u64 << (dtype.bits() - 1);
    (sign | (sign - 1), sign)
}

fn float_only(dtype: Dtype) -> Result<()> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(Error::input(InputErrorKind::WrongDtype { what: "a conversion from or to floats" }))
}

fn byte_range(dtype: Dtype, start: u64, len: usize, found: usize) -> Result<std::ops::Range<usize>> {
    let bounds = start.checked_add(len as u64).and_then(|end| {
        let first = dtype.bytes_for(start)? - if dtype.bits() == 4 { start % 2 } else { 0 };
        Some((usize::try_from(first).ok()?, usize::try_from(dtype.bytes_for(end)?).ok()?))
    });
    match bounds {
        Some((first, end)) if end <= found => Ok(first..end),
        _ => Err(Error::input(InputErrorKind::LengthMismatch {
            expected: bounds.map_or(u64::MAX, |(_, end)| end as u64),
            found: found as u64,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIFLOATS: [Minifloat; 9] = [
        Minifloat::F8E4M3Fn,
        Minifloat::F8E5M2,
        Minifloat::F8E4M3Fnuz,
        Minifloat::F8E5M2Fnuz,
        Minifloat::F4E2M1,
        Minifloat::F6E3M2,
        Minifloat::F6E2M3,
        Minifloat::F4E3M0,
        Minifloat::Int8,
    ];

    fn one(dtype: Dtype, x: f32) -> u64 {
        let mut bytes = [0; 8];
        encode_f32s(dtype, &[x], 0, &mut bytes).unwrap();
        bits_at(dtype, &bytes, 0).unwrap()
    }

    #[test]
    fn largest_and_smallest_of_each_format() {
        let largest =
            MINIFLOATS.map(|f| (0..=255u8).map(|c| f.decode(c)).filter(|x| x.is_finite()).fold(0., f32::max));
        assert_eq!(largest, [448.0, 57344.0, 240.0, 57344.0, 6.0, 28.0, 7.5, 16.0, 127.0 / 64.0]);
        assert_eq!(Minifloat::F8E4M3Fn.decode(1), 2f32.powi(-9));
        assert_eq!(Minifloat::F8E5M2.decode(1), 2f32.powi(-16));
        assert_eq!(Minifloat::F8E4M3Fnuz.decode(1), 2f32.powi(-10));
        assert_eq!(Minifloat::F8E5M2Fnuz.decode(1), 2f32.powi(-17));
        assert_eq!(
            (0..8).map(|c| Minifloat::F4E2M1.decode(c)).collect::<Vec<_>>(),
            [0., 0.5, 1., 1.5, 2., 3., 4., 6.]
        );
        assert_eq!((0..4).map(|c| Minifloat::F4E3M0.decode(c)).collect::<Vec<_>>(), [0., 0.25, 0.5, 1.]);
        assert!(Minifloat::F8E4M3Fn.decode(0x7f).is_nan() && Minifloat::F8E4M3Fnuz.decode(0x80).is_nan());
        assert_eq!(Minifloat::F8E5M2.decode(0xfc), f32::NEG_INFINITY);
    }

    #[test]
    fn minifloats_round_to_the_nearest_code() {
        for f in MINIFLOATS {
            let codes = 0..=((1u16 << f.bits()) - 1) as u8;
            let finite: Vec<(u8, f32)> =
                codes.map(|c| (c, f.decode(c))).filter(|(_, x)| x.is_finite()).collect();
            for &(c, x) in &finite {
                assert_eq!(f.encode(x), c, "{f:?} {x}");
            }
            for i in 0..20_000u32 {
                let x = f32::from_bits(crate::random::word(1, 0, u64::from(i)) >> 8 << 8);
                // Beyond that the errors to all codes are equal in 64 bits.
                if x.is_nan() || x.abs() >= 1e6 {
                    continue;
                }
                let code = f.encode(x);
                let error = (f64::from(f.decode(code)) - f64::from(x)).abs();
                for &(c, y) in &finite {
                    let other = (f64::from(y) - f64::from(x)).abs();
                    assert!(
                        error < other || (error == other && (c == code || code % 2 == 0 || y == 0.0)),
                        "{f:?} {x}"
                    );
                }
            }
        }
    }

    #[test]
    fn ties_go_to_the_even_code() {
        // Between 2^0 (code 3) and 2^1 (code 4) of e3m0, and between 2^1 and 2^2 (code 5).
        assert_eq!((Minifloat::F4E3M0.encode(1.5), Minifloat::F4E3M0.encode(3.0)), (4, 4));
        assert_eq!((Minifloat::F4E2M1.encode(2.5), Minifloat::F4E2M1.encode(5.0)), (4, 6));
        assert_eq!((Minifloat::F4E3M0.encode(0.125), Minifloat::Int8.encode(2.5 / 64.0)), (0, 2));
    }

    #[test]
    fn beyond_the_largest() {
        assert_eq!([464.0, 465.0, -1e9].map(|x| one(Dtype::F8E4M3Fn, x)), [0x7e, 0x7f, 0xff]);
        assert_eq!([61439.0, 61440.0, -1e9].map(|x| one(Dtype::F8E5M2, x)), [0x7b, 0x7c, 0xfc]);
        assert_eq!([247.0, 248.0, -1e9, -0.0].map(|x| one(Dtype::F8E4M3Fnuz, x)), [0x7f, 0x80, 0x80, 0]);
        assert_eq!([1e9, -1e9, f32::NAN].map(|x| one(Dtype::F4E2M1, x)), [7, 15, 7]);
        assert_eq!(one(Dtype::F8E5M2, f32::NAN) & 0x7f, 0x7e);
        assert_eq!((one(Dtype::F16, 65520.0), one(Dtype::Bf16, f32::MAX)), (0x7c00, 0x7f80));
        assert_eq!((Minifloat::F8E4M3Fn.encode(1e9), Minifloat::F8E5M2.encode(-1e9)), (0x7e, 0xfb));
        assert_eq!((Minifloat::Int8.encode(9.0), Minifloat::Int8.encode(-9.0)), (0x7f, 0x80));
    }

    #[test]
    fn every_small_pattern_comes_back() {
        for dtype in Dtype::ALL.into_iter().filter(|d| d.is_float() && d.bits() <= 16) {
            let patterns = 1u64 << dtype.bits();
            let mut data = vec![0; dtype.bytes_for(patterns).unwrap() as usize];
            (0..patterns).for_each(|i| set_bits_at(dtype, &mut data, i, i).unwrap());
            let mut values = vec![0.0; patterns as usize];
            decode_f32s(dtype, &data, 0, &mut values).unwrap();
            let mut back = vec![0xa5; data.len()];
            encode_f32s(dtype, &values, 0, &mut back).unwrap();
            for i in 0..patterns {
                let nan = values[i as usize].is_nan();
                assert!(nan || bits_at(dtype, &back, i) == Some(i), "{dtype} {i:#x}");
            }
        }
    }

    #[test]
    fn parts_of_tensors() {
        for dtype in Dtype::ALL.into_iter().filter(|d| d.is_float()) {
            let values: Vec<f32> = (0..37).map(|i| (i % 4) as f32 / 2.0).collect();
            let mut data = vec![0; dtype.bytes_for(37).unwrap() as usize];
            for (start, part) in [(0usize, 5usize), (5, 20), (25, 12)] {
                encode_f32s(dtype, &values[start..start + part], start as u64, &mut data).unwrap();
            }
            for start in 0..37 {
                let mut out = vec![9.0; 37 - start];
                decode_f32s(dtype, &data, start as u64, &mut out).unwrap();
                assert_eq!(out, values[start..], "{dtype}");
            }
            assert!(decode_f32s(dtype, &data, 30, &mut [0.0; 9]).is_err());
            assert!(decode_f32s(dtype, &data, u64::MAX, &mut [0.0; 9]).is_err());
        }
        assert!(decode_f32s(Dtype::I8, &[0], 0, &mut [0.0]).is_err());
    }

    #[test]
    fn places_are_ordered_and_differences_come_back() {
        assert_eq!(ulp_diff(Dtype::F32, u64::from(1f32.to_bits()), u64::from(1f32.next_up().to_bits())), 1);
        assert_eq!(ulp_diff(Dtype::F32, 0, 0x8000_0000), -1);
        assert_eq!(ulp_diff(Dtype::I8, 0x7f, 0x80), 1);
        for dtype in Dtype::ALL.into_iter().filter(|d| d.bits() <= 8) {
            for (old, new) in
                (0..1u64 << dtype.bits()).flat_map(|a| (0..1u64 << dtype.bits()).map(move |b| (a, b)))
            {
                assert_eq!(ulp_step(dtype, old, ulp_diff(dtype, old, new)), new);
                assert_eq!(unordered(dtype, ordered(dtype, old)), old);
            }
        }
        for dtype in [Dtype::F64, Dtype::U64, Dtype::F16] {
            let mask = u64::MAX >> (64 - dtype.bits());
            for (old, new) in [(0, mask), (mask, 0), (mask / 3, mask / 2 + 1), (1, mask / 2)] {
                assert_eq!(ulp_step(dtype, old, ulp_diff(dtype, old, new)), new);
            }
        }
        let floats = [f32::NEG_INFINITY, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, f32::INFINITY];
        assert!(floats.map(|x| ordered(Dtype::F32, u64::from(x.to_bits()))).is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn scales_round_as_they_say() {
        let e8m0 =
            Scales::from_f32s(ScaleFormat::E8M0, &[1.0, 1.49, 1.5, 0.0, 1e-38, f32::MAX, -1.0, f32::NAN]);
        assert_eq!(e8m0.bytes, [127, 127, 128, 0, 1, 254, 255, 255]);
        assert_eq!((e8m0.len(), e8m0.get(2), e8m0.get(3)), (8, 2.0, 2f32.powi(-127)));
        assert!(e8m0.get(7).is_nan());
        for format in [ScaleFormat::F32, ScaleFormat::F16, ScaleFormat::Bf16] {
            let scales = Scales::from_f32s(format, &[0.5, -3.0]);
            assert_eq!((scales.len(), scales.get(0), scales.get(1)), (2, 0.5, -3.0));
        }
    }
}
