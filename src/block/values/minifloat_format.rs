//! Element formats of [`Minifloat`](crate::block::Minifloat) (spec, values/minifloat.md).

use crate::tensor::element::small::{
    self, F4E2M1, F4E3M0, F6E2M3, F6E3M2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, Overflow, SmallFloat,
};

/// A small float format (OCP FP8 and MX; e3m0 as in Streaming DiLoCo).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum MinifloatFormat {
    F8E4M3Fn = 5,
    F8E5M2 = 6,
    F8E4M3Fnuz = 7,
    F8E5M2Fnuz = 8,
    F4E2M1 = 9,
    F6E3M2 = 65,
    F6E2M3 = 66,
    F4E3M0 = 67,
    /// Two's complement with an implied 2^-6 (OCP MXINT8).
    Int8 = 68,
}

impl MinifloatFormat {
    /// Every format with its name in the registry.
    pub const REGISTERED: [(Self, &'static str); 9] = [
        (Self::F8E4M3Fn, "f8e4m3fn"),
        (Self::F8E5M2, "f8e5m2"),
        (Self::F8E4M3Fnuz, "f8e4m3fnuz"),
        (Self::F8E5M2Fnuz, "f8e5m2fnuz"),
        (Self::F4E2M1, "f4e2m1"),
        (Self::F6E3M2, "f6e3m2"),
        (Self::F6E2M3, "f6e2m3"),
        (Self::F4E3M0, "f4e3m0"),
        (Self::Int8, "int8"),
    ];

    pub(super) fn from_id(id: u8) -> Option<Self> {
        Self::REGISTERED.iter().map(|(f, _)| *f).find(|f| *f as u8 == id)
    }

    /// Name in the registry.
    pub fn name(self) -> &'static str {
        Self::REGISTERED.iter().find(|(f, _)| *f == self).map_or("", |(_, name)| name)
    }

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
    /// f4e3m0 has a sign and three exponent bits: 2^(e - 3), and zero for e = 0. int8 is two's complement
    /// times 2^-6.
    pub fn decode(self, code: u8) -> f32 {
        match self.float() {
            Some(float) => float.decode(code & ((1u16 << self.bits()) - 1) as u8),
            None => f32::from(code as i8) / 64.0,
        }
    }

    /// The code nearest to `x`, ties to the even code.
    ///
    /// Finite values beyond the largest become the largest. So does infinity, except in f8e5m2, which has
    /// infinities. NaN becomes the largest value of its sign in formats without NaN.
    pub fn encode(self, x: f32) -> u8 {
        match self.float() {
            Some(float) => small::encode(float, x, Overflow::Saturate),
            None if x.is_nan() => (127f32.copysign(x)) as i8 as u8,
            None => (x * 64.0).round_ties_even() as i8 as u8,
        }
    }

    /// The largest bit pattern.
    pub(super) fn max_code(self) -> u8 {
        (0xffu16 >> (8 - self.bits())) as u8
    }

    const fn float(self) -> Option<SmallFloat> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [MinifloatFormat; 9] = {
        let [a, b, c, d, e, f, g, h, i] = MinifloatFormat::REGISTERED;
        [a.0, b.0, c.0, d.0, e.0, f.0, g.0, h.0, i.0]
    };

    #[test]
    fn largest_and_smallest_of_each_format() {
        let largest =
            FORMATS.map(|f| (0..=255u8).map(|c| f.decode(c)).filter(|x| x.is_finite()).fold(0., f32::max));
        assert_eq!(largest, [448.0, 57344.0, 240.0, 57344.0, 6.0, 28.0, 7.5, 16.0, 127.0 / 64.0]);
        assert_eq!(MinifloatFormat::F8E4M3Fn.decode(1), 2f32.powi(-9));
        assert_eq!(MinifloatFormat::F8E5M2.decode(1), 2f32.powi(-16));
        assert_eq!(MinifloatFormat::F8E4M3Fnuz.decode(1), 2f32.powi(-10));
        assert_eq!(MinifloatFormat::F8E5M2Fnuz.decode(1), 2f32.powi(-17));
        assert_eq!(
            (0..8).map(|c| MinifloatFormat::F4E2M1.decode(c)).collect::<Vec<_>>(),
            [0., 0.5, 1., 1.5, 2., 3., 4., 6.]
        );
        assert_eq!(
            (0..4).map(|c| MinifloatFormat::F4E3M0.decode(c)).collect::<Vec<_>>(),
            [0., 0.25, 0.5, 1.]
        );
        assert!(
            MinifloatFormat::F8E4M3Fn.decode(0x7f).is_nan()
                && MinifloatFormat::F8E4M3Fnuz.decode(0x80).is_nan()
        );
        assert_eq!(MinifloatFormat::F8E5M2.decode(0xfc), f32::NEG_INFINITY);
    }

    #[test]
    fn encode_rounds_to_the_nearest_code() {
        for f in FORMATS {
            let codes = 0..=((1u16 << f.bits()) - 1) as u8;
            let finite: Vec<(u8, f32)> =
                codes.map(|c| (c, f.decode(c))).filter(|(_, x)| x.is_finite()).collect();
            for &(c, x) in &finite {
                assert_eq!(f.encode(x), c, "{f:?} {x}");
            }
            for i in 0..20_000u32 {
                let x = f32::from_bits(crate::random::word(1, 0, u64::from(i)) >> 8 << 8);
                // For larger numbers, the errors to all codes are equal in binary64.
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
        assert_eq!((MinifloatFormat::F4E3M0.encode(1.5), MinifloatFormat::F4E3M0.encode(3.0)), (4, 4));
        assert_eq!((MinifloatFormat::F4E2M1.encode(2.5), MinifloatFormat::F4E2M1.encode(5.0)), (4, 6));
        assert_eq!((MinifloatFormat::F4E3M0.encode(0.125), MinifloatFormat::Int8.encode(2.5 / 64.0)), (0, 2));
    }

    #[test]
    fn each_format_has_its_registered_name() {
        for (format, name) in MinifloatFormat::REGISTERED {
            assert_eq!(format.name(), name);
        }
    }

    #[test]
    fn nan_becomes_plus_or_minus_the_largest_value_in_formats_without_nan() {
        for (format, codes) in [
            (MinifloatFormat::F4E2M1, [7, 15]),
            (MinifloatFormat::F6E3M2, [31, 63]),
            (MinifloatFormat::F4E3M0, [7, 15]),
            (MinifloatFormat::Int8, [0x7f, 0x81]),
        ] {
            assert_eq!([f32::NAN, -f32::NAN].map(|x| format.encode(x)), codes, "{format:?}");
        }
    }

    #[test]
    fn encode_saturates() {
        assert_eq!(
            (MinifloatFormat::F8E4M3Fn.encode(1e9), MinifloatFormat::F8E5M2.encode(-1e9)),
            (0x7e, 0xfb)
        );
        assert_eq!((MinifloatFormat::Int8.encode(9.0), MinifloatFormat::Int8.encode(-9.0)), (0x7f, 0x80));
    }
}
