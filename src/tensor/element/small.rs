//! Floats of at most eight bits: a sign, a few exponent bits, a few mantissa bits, gradual underflow.

/// Layout of a small float: a sign bit, `exponent` and `mantissa` bits, gradual underflow.
#[derive(Clone, Copy)]
pub(crate) struct SmallFloat {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    /// Code of the largest finite magnitude.
    pub(crate) max: u8,
    special: Special,
}

/// Codes that are not finite numbers.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Special {
    None,
    /// Magnitudes above `max` are NaN.
    NaN,
    /// The magnitude after `max` is infinity, and those above are NaN.
    Infinity,
    /// Minus zero is NaN.
    MinusZero,
}

/// Result for a number that rounds to more than the largest finite value.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Overflow {
    Saturate,
    NaN,
    Infinity,
}

const fn float(exponent: u32, mantissa: u32, bias: i32, max: u8, special: Special) -> SmallFloat {
    SmallFloat { exponent, mantissa, bias, max, special }
}

pub(crate) const F8E4M3FN: SmallFloat = float(4, 3, 7, 0x7e, Special::NaN);
pub(crate) const F8E5M2: SmallFloat = float(5, 2, 15, 0x7b, Special::Infinity);
pub(crate) const F8E4M3FNUZ: SmallFloat = float(4, 3, 8, 0x7f, Special::MinusZero);
pub(crate) const F8E5M2FNUZ: SmallFloat = float(5, 2, 16, 0x7f, Special::MinusZero);
pub(crate) const F4E2M1: SmallFloat = float(2, 1, 1, 0x07, Special::None);
pub(crate) const F6E3M2: SmallFloat = float(3, 2, 3, 0x1f, Special::None);
pub(crate) const F6E2M3: SmallFloat = float(2, 3, 1, 0x1f, Special::None);
pub(crate) const F4E3M0: SmallFloat = float(3, 0, 3, 0x07, Special::None);

impl SmallFloat {
    const fn sign(self) -> u8 {
        1 << (self.exponent + self.mantissa)
    }

    /// Returns the value of a code without bits above the sign.
    pub(crate) const fn decode(self, code: u8) -> f32 {
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

    /// Returns the values of all codes, ignoring bits above the sign.
    pub(crate) const fn table(self) -> [f32; 256] {
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

/// Returns 2^exponent, for the exponents of normal numbers.
const fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Returns the code nearest to `x`, ties to the even code.
pub(crate) fn encode(float: SmallFloat, x: f32, overflow: Overflow) -> u8 {
    let sign = if x.is_sign_negative() { float.sign() } else { 0 };
    if x.is_nan() {
        // f8e5m2 has two payload bits: the quiet bit, which is set, and the one after it.
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
    // With e the exponent, or the smallest normal one, |x| = r * 2^(e - mantissa) has the code r + (steps of
    // e above the smallest) * 2^mantissa. This holds for subnormals too, and a carry from rounding increments
    // the exponent.
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
