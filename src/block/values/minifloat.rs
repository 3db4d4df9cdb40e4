//! Small floats with a scale per group (spec, values/minifloat.md; OCP FP8 and Microscaling).

use crate::bits::Cursor;
use crate::block::values::{ValueSpace, for_each_group, to_number};
use crate::block::{Groups, Minifloat, Scales, Values};
use crate::codes::{Coder, Decoder, Role, read_symbols, write_symbols};
use crate::element::small::{
    self, F4E2M1, F4E3M0, F6E2M3, F6E3M2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, Overflow, SmallFloat,
};
use crate::error::{Error, Result};

impl Minifloat {
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

    /// The largest bit pattern.
    fn max_code(self) -> u8 {
        (0xffu16 >> (8 - self.bits())) as u8
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
            Some(float) => small::encode(float, x, Overflow::Saturate),
            None if x.is_nan() => (127f32.copysign(x)) as i8 as u8,
            None => (x * 64.0).round_ties_even() as i8 as u8,
        }
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

pub(super) fn write(
    out: &mut Vec<u8>,
    coder: &mut Coder<'_>,
    values: &Values,
    space: &ValueSpace<'_>,
) -> Result<()> {
    let Values::Minifloat { format, groups, scales, codes } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    if codes.len() as u64 != space.count || codes.iter().any(|&c| c > format.max_code()) {
        return Err(Error::inconsistent("minifloat codes"));
    }
    out.push(*format as u8);
    groups.write(out, space)?;
    scales.write(out, groups.count(space))?;
    write_symbols(out, coder, Role::Codes, codes, &[]);
    Ok(())
}

pub(super) fn read_head(
    cursor: &mut Cursor<'_>,
    space: &ValueSpace<'_>,
) -> Result<(Minifloat, Groups, Scales)> {
    let offset = cursor.offset();
    let id = cursor.u8()?;
    let format = Minifloat::REGISTERED.iter().map(|(f, _)| *f).find(|f| *f as u8 == id);
    let format = format.ok_or(Error::unsupported("minifloat format", id.into(), offset))?;
    let groups = Groups::read(cursor, space)?;
    let scales = Scales::read(cursor, groups.count(space))?;
    Ok((format, groups, scales))
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    decoder: &mut Decoder<'_>,
    space: &ValueSpace<'_>,
) -> Result<Values> {
    let (format, groups, scales) = read_head(cursor, space)?;
    let codes = read_symbols(cursor, decoder, space.count, format.max_code())?;
    Ok(Values::Minifloat { format, groups, scales, codes })
}

pub(super) fn numbers(values: &Values, tensor_counts: &[u64], out: &mut [f32]) -> Result<()> {
    let Values::Minifloat { format, groups, scales, codes } = values else {
        return Err(Error::inconsistent("values kind"));
    };
    let elements: [f64; 256] = std::array::from_fn(|code| match u8::try_from(code) {
        Ok(code) if code <= format.max_code() => f64::from(format.decode(code)),
        _ => 0.0,
    });
    for_each_group(*groups, out.len(), tensor_counts, |g, range| {
        let scale = f64::from(scales.get(g));
        for (value, &code) in out[range.clone()].iter_mut().zip(&codes[range]) {
            *value = to_number(elements[usize::from(code)] * scale);
        }
    });
    Ok(())
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
    fn quantisers_saturate() {
        assert_eq!((Minifloat::F8E4M3Fn.encode(1e9), Minifloat::F8E5M2.encode(-1e9)), (0x7e, 0xfb));
        assert_eq!((Minifloat::Int8.encode(9.0), Minifloat::Int8.encode(-9.0)), (0x7f, 0x80));
    }
}
