//! One number per group (spec, section 5.1).

use half::{bf16, f16};

use crate::bits::Cursor;
use crate::error::{Error, Result};

/// One number per group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scales {
    /// How the numbers are stored.
    pub format: ScaleFormat,
    /// The numbers in little-endian bytes.
    pub bytes: Vec<u8>,
}

impl Scales {
    /// Stores `values` in `format`.
    ///
    /// E8M0 takes the nearest power of two, and the larger one halfway between two. A number below 2^-127
    /// becomes 2^-127; NaN, infinity and negative numbers become NaN.
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

    /// The number of scales.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.format.bytes()
    }

    /// Whether there are no scales.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Scale `index`.
    ///
    /// # Panics
    /// If `index` is not less than [`Self::len`].
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

    /// Appends the format and the numbers; `count` is the expected number of scales.
    pub(super) fn write(&self, out: &mut Vec<u8>, count: u64) -> Result<()> {
        if self.bytes.len() as u64 != count.saturating_mul(self.format.bytes() as u64) {
            return Err(Error::inconsistent("number of scales"));
        }
        out.push(self.format as u8);
        out.extend_from_slice(&self.bytes);
        Ok(())
    }

    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self> {
        let offset = cursor.offset();
        let id = cursor.u8()?;
        let format = ScaleFormat::from_id(id).ok_or(Error::unsupported("scale format", id.into(), offset))?;
        let bytes = cursor.take(count.saturating_mul(format.bytes() as u64))?.to_vec();
        Ok(Self { format, bytes })
    }
}

/// How scales are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum ScaleFormat {
    F32 = 2,
    F16 = 3,
    Bf16 = 4,
    /// A power of two by its biased exponent, 2^(x - 127); 255 is NaN (OCP MX).
    E8M0 = 64,
}

impl ScaleFormat {
    /// Every format with its name in the registry.
    pub const REGISTERED: [(Self, &'static str); 4] =
        [(Self::F32, "f32"), (Self::F16, "f16"), (Self::Bf16, "bf16"), (Self::E8M0, "e8m0")];

    /// Bytes of one scale: 1, 2 or 4.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E8M0 => 1,
        }
    }

    fn from_id(id: u8) -> Option<Self> {
        Self::REGISTERED.iter().map(|(f, _)| *f).find(|f| *f as u8 == id)
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
    // Adding half of the mantissa carries to the next power from 1.5 on. Below 2^-126, the step to it lies at
    // 0.75 of it.
    let bits = x.to_bits();
    if bits < 1 << 23 { u8::from(bits >= 3 << 21) } else { ((bits + (1 << 22)) >> 23).min(254) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_round_as_they_say() {
        let e8m0 =
            Scales::from_f32s(ScaleFormat::E8M0, &[1.0, 1.49, 1.5, 0.0, 1e-38, f32::MAX, -1.0, f32::NAN]);
        assert_eq!(e8m0.bytes, [127, 127, 128, 0, 1, 254, 255, 255]);
        assert_eq!((e8m0.len(), e8m0.get(2), e8m0.get(3)), (8, 2.0, 2f32.powi(-127)));
        assert!(e8m0.get(7).is_nan());
        // The nearest power of two, and the larger one halfway; below 2^-126, powers are subnormal floats.
        for power in [-126, -125, 0, 126] {
            let (low, half) = (2f32.powi(power), 1.5 * 2f32.powi(power));
            let below = f32::from_bits(half.to_bits() - 1);
            let codes = Scales::from_f32s(ScaleFormat::E8M0, &[low, below, half]).bytes;
            let code = (power + 127) as u8;
            assert_eq!(codes, [code, code, code + 1]);
        }
        let (half, least) = (3u32 << 21, 1u32 << 23);
        let subnormal = [half - 1, half, least - 1].map(f32::from_bits);
        assert_eq!(Scales::from_f32s(ScaleFormat::E8M0, &subnormal).bytes, [0, 1, 1]);
        for format in [ScaleFormat::F32, ScaleFormat::F16, ScaleFormat::Bf16] {
            let scales = Scales::from_f32s(format, &[0.5, -3.0]);
            assert_eq!((scales.len(), scales.get(0), scales.get(1)), (2, 0.5, -3.0));
            assert!(!scales.is_empty() && Scales::from_f32s(format, &[]).is_empty());
        }
    }
}
