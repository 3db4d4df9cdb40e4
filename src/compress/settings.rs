//! Settings of codecs: types that several codecs share, ranges, and the written form `name[:key=value,...]`.

use std::fmt;
use std::str::FromStr;

use crate::block::Positions;

/// The number of elements that a selector keeps. Zeros are never kept, so fewer may be sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// A fraction of the elements, more than 0 and at most 1. The product is rounded to a whole number of at
    /// least 1.
    Density(f64),
    /// A number of elements, at least 1.
    Count(u64),
}

impl Amount {
    /// Returns the number of elements to keep of `n`.
    pub fn of(self, n: u64) -> u64 {
        match self {
            Self::Density(density) => ((density * n as f64).round() as u64).max(1).min(n),
            Self::Count(count) => count.min(n),
        }
    }

    pub(super) fn check(self) -> Result<(), OutOfRange> {
        match self {
            Self::Density(density) => DENSITY.check(density),
            Self::Count(count) => COUNT.check(count),
        }
    }
}

const DENSITY: Number<f64> =
    Number { key: "density", allowed: "more than 0, at most 1", fits: |d| d > 0.0 && d <= 1.0 };
const COUNT: Number<u64> = Number { key: "k", allowed: "at least 1", fits: |k| k >= 1 };

/// The form in which kept elements are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kept {
    /// 32-bit floats, or the element type if it is narrower.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Powers of two, rounded at random without bias.
    Pow2,
    /// Signs. The mean magnitude is sent once.
    Sign,
    /// Multiples, -7 to 7, of a scale that 256 kept elements share.
    Q4,
}

/// The `values` of codecs that send any form of kept elements.
pub(super) const KEPT: Choice<Kept> = Choice {
    key: "values",
    names: &[
        ("f32", Kept::F32),
        ("f16", Kept::F16),
        ("bf16", Kept::Bf16),
        ("pow2", Kept::Pow2),
        ("sign", Kept::Sign),
        ("q4", Kept::Q4),
    ],
};

/// The range in which the elements of largest magnitude are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Selection {
    /// Each tensor.
    Tensor,
    /// All tensors of the update that have this codec.
    Global,
}

/// `bucket`: values that share a norm.
pub(super) const BUCKET: Number<u64> = Number { key: "bucket", allowed: "at least 2", fits: |b| b >= 2 };

/// A setting outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutOfRange {
    pub(super) key: &'static str,
    /// The range, for messages.
    pub(super) allowed: &'static str,
}

/// The key and the range of a number.
pub(super) struct Number<T> {
    pub(super) key: &'static str,
    pub(super) allowed: &'static str,
    pub(super) fits: fn(T) -> bool,
}

impl<T: Copy> Number<T> {
    pub(super) fn check(&self, value: T) -> Result<(), OutOfRange> {
        match (self.fits)(value) {
            true => Ok(()),
            false => Err(OutOfRange { key: self.key, allowed: self.allowed }),
        }
    }
}

/// The key and the names of a choice.
pub(super) struct Choice<T: 'static> {
    pub(super) key: &'static str,
    pub(super) names: &'static [(&'static str, T)],
}

impl<T: Copy + PartialEq> Choice<T> {
    pub(super) fn check(&self, value: T) -> Result<(), OutOfRange> {
        match self.names.iter().any(|(_, v)| *v == value) {
            true => Ok(()),
            false => Err(OutOfRange { key: self.key, allowed: "one of its names" }),
        }
    }

    fn name(&self, value: T) -> &'static str {
        self.names.iter().find(|(_, v)| *v == value).map_or("", |(name, _)| name)
    }
}

/// A codec specification that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError(pub(super) String);

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

/// Writes a specification.
pub(super) struct SpecWriter<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    separator: char,
}

impl<'a, 'b> SpecWriter<'a, 'b> {
    /// Begins the specification of the codec `name`.
    pub(super) fn new(f: &'a mut fmt::Formatter<'b>, name: &str) -> Result<Self, fmt::Error> {
        f.write_str(name)?;
        Ok(Self { f, separator: ':' })
    }

    pub(super) fn key(&mut self, key: &str, value: impl fmt::Display) -> fmt::Result {
        write!(self.f, "{}{key}={value}", std::mem::replace(&mut self.separator, ','))
    }

    pub(super) fn choice<T: Copy + PartialEq>(&mut self, choice: &Choice<T>, value: T) -> fmt::Result {
        self.key(choice.key, choice.name(value))
    }

    pub(super) fn amount(&mut self, amount: Amount) -> fmt::Result {
        match amount {
            Amount::Density(density) => self.key(DENSITY.key, density),
            Amount::Count(count) => self.key(COUNT.key, count),
        }
    }

    pub(super) fn seed(&mut self, seed: u64) -> fmt::Result {
        if seed == 1 { Ok(()) } else { self.key("seed", seed) }
    }

    pub(super) fn positions(&mut self, positions: Positions) -> fmt::Result {
        if positions == Positions::Auto { Ok(()) } else { self.key("positions", positions.name()) }
    }
}

/// The keys of a specification.
pub(super) struct Keys<'a> {
    codec: &'a str,
    given: Vec<(&'a str, &'a str)>,
    /// The keys that the codec has read.
    known: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    /// Splits `rest`, the part of a specification behind `codec:`.
    pub(super) fn parse(codec: &'a str, rest: &'a str) -> Result<Self, SpecError> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for pair in rest.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| SpecError(format!("`{pair}` of `{codec}` is not key=value")))?;
            if given.iter().any(|(k, _)| *k == key) {
                return Err(SpecError(format!("key `{key}` of `{codec}` is given twice")));
            }
            given.push((key, value));
        }
        Ok(Self { codec, given, known: Vec::new() })
    }

    /// Returns the text of a key, if it is given.
    pub(super) fn take(&mut self, key: &'static str) -> Option<&'a str> {
        self.known.push(key);
        self.text(key)
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.given.iter().find(|(k, _)| *k == key).map(|(_, text)| *text)
    }

    pub(super) fn wrong(&self, key: &str, value: &str, allowed: &str) -> SpecError {
        SpecError(format!("key `{key}` of `{}` is `{value}`: {allowed}", self.codec))
    }

    /// Returns the message for a setting that is out of its range.
    pub(super) fn out_of_range(&self, e: OutOfRange) -> SpecError {
        self.wrong(e.key, self.text(e.key).unwrap_or_default(), e.allowed)
    }

    fn given_number<T: FromStr + Copy>(&mut self, number: &Number<T>) -> Result<Option<T>, SpecError> {
        let Some(text) = self.take(number.key) else { return Ok(None) };
        match text.parse() {
            Ok(value) if (number.fits)(value) => Ok(Some(value)),
            _ => Err(self.wrong(number.key, text, number.allowed)),
        }
    }

    pub(super) fn number<T: FromStr + Copy>(
        &mut self,
        number: &Number<T>,
        default: T,
    ) -> Result<T, SpecError> {
        Ok(self.given_number(number)?.unwrap_or(default))
    }

    pub(super) fn choice<T: Copy>(&mut self, choice: &Choice<T>, default: T) -> Result<T, SpecError> {
        let Some(text) = self.take(choice.key) else { return Ok(default) };
        if let Some((_, value)) = choice.names.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        let names: Vec<&str> = choice.names.iter().map(|(name, _)| *name).collect();
        Err(self.wrong(choice.key, text, &format!("one of {}", names.join(", "))))
    }

    pub(super) fn amount(&mut self, default: Amount) -> Result<Amount, SpecError> {
        match (self.given_number(&DENSITY)?, self.given_number(&COUNT)?) {
            (Some(_), Some(_)) => {
                Err(SpecError(format!("keys `density` and `k` of `{}` exclude each other", self.codec)))
            }
            (_, Some(count)) => Ok(Amount::Count(count)),
            (Some(density), _) => Ok(Amount::Density(density)),
            (None, None) => Ok(default),
        }
    }

    pub(super) fn seed(&mut self) -> Result<u64, SpecError> {
        let any = Number { key: "seed", allowed: "0 to 2^64 - 1", fits: |_: u64| true };
        self.number(&any, 1)
    }

    pub(super) fn positions(&mut self) -> Result<Positions, SpecError> {
        let Some(text) = self.take("positions") else { return Ok(Positions::default()) };
        if let Some((positions, _)) = Positions::ALL.iter().find(|(_, name)| *name == text) {
            return Ok(*positions);
        }
        let names: Vec<&str> = Positions::ALL.iter().map(|(_, name)| *name).collect();
        Err(self.wrong("positions", text, &format!("one of {}", names.join(", "))))
    }

    /// Refuses keys that the codec has not read.
    pub(super) fn finish(&self) -> Result<(), SpecError> {
        let Some((key, _)) = self.given.iter().find(|(key, _)| !self.known.contains(key)) else {
            return Ok(());
        };
        let known = if self.known.is_empty() { "none".to_owned() } else { self.known.join(", ") };
        Err(SpecError(format!("unknown key `{key}` of `{}`: allowed are {known}", self.codec)))
    }
}

#[cfg(test)]
mod tests {
    use crate::compress::codec::{Codec, NAMES};

    #[test]
    fn specifications_come_back() {
        for spec in [
            "raw",
            "lossless",
            "topk:density=0.01,values=f32",
            "topk:k=100,values=pow2,scope=global,seed=7,positions=rice",
            "threshold:at=0.001,values=q4,positions=bitmap",
            "sbc:density=0.001",
            "sbc:k=3,positions=tokens",
            "sbc:density=0.001,positions=rice-one",
            "sidco:density=0.001,fit=gp,stages=guard,values=f32",
            "sidco:k=9,fit=gamma-gp,stages=authors,values=pow2,seed=2,positions=rice",
            "sidco:k=9,fit=exp,stages=3,values=sign",
            "randk:density=0.01,scale=n/k,values=f32",
            "randk:k=5,scale=1,values=bf16,seed=9",
            "chunked:chunk=4096,kept=64,values=code2",
            "chunked:chunk=100,kept=100,values=sign",
            "demo:chunk=64,kept=32,values=sign",
            "demo:chunk=128,kept=9,values=bf16",
            "powersgd:rank=4",
            "powersgd:rank=1,seed=3",
            "natural",
            "natural:seed=18446744073709551615",
            "qsgd:bits=4,bucket=512",
            "qsgd:bits=2,bucket=64,norm=max,seed=3",
            "dither:levels=8,bucket=512",
            "dither:levels=255,bucket=2,norm=l1,seed=4",
            "terngrad:clip=2.5,bucket=4096",
            "terngrad:clip=inf,bucket=9,seed=4",
            "sign",
            "sign:group=64",
            "int8:group=256",
            "delta",
            "delta:positions=tokens",
            "delta:values=overwrite",
            "delta:values=overwrite,positions=rice",
        ] {
            assert_eq!(spec.parse::<Codec>().unwrap().to_string(), spec);
        }
        for (short, long) in [
            ("topk", "topk:density=0.01,values=f32"),
            ("topk:", "topk:density=0.01,values=f32"),
            ("threshold", "threshold:at=0.001,values=f32"),
            ("sbc", "sbc:density=0.001"),
            ("stc", "topk:density=0.01,values=sign"),
            ("stc:k=7,positions=rice", "topk:k=7,values=sign,positions=rice"),
            ("sidco", "sidco:density=0.001,fit=gp,stages=guard,values=f32"),
            ("demo", "demo:chunk=64,kept=32,values=sign"),
            ("powersgd", "powersgd:rank=4"),
            ("natural:seed=1", "natural"),
            ("qsgd", "qsgd:bits=4,bucket=512"),
            ("int8", "int8:group=256"),
        ] {
            assert_eq!(short.parse::<Codec>().unwrap().to_string(), long);
        }
    }

    #[test]
    fn errors_name_the_key_and_what_is_allowed() {
        let unknown = "zip".parse::<Codec>().unwrap_err().to_string();
        assert_eq!(unknown, format!("unknown codec `zip`: one of {NAMES}"));
        for (spec, message) in [
            ("raw:k=1", "unknown key `k` of `raw`: allowed are none"),
            (
                "topk:densty=1",
                "unknown key `densty` of `topk`: allowed are density, k, values, scope, seed, positions",
            ),
            ("topk:density=2", "key `density` of `topk` is `2`: more than 0, at most 1"),
            ("topk:density=nan", "key `density` of `topk` is `nan`: more than 0, at most 1"),
            ("topk:density=0.1,k=2", "keys `density` and `k` of `topk` exclude each other"),
            ("topk:values=q5", "key `values` of `topk` is `q5`: one of f32, f16, bf16, pow2, sign, q4"),
            (
                "sbc:positions=x",
                "key `positions` of `sbc` is `x`: one of auto, rice, rice-one, tokens, bitmap, classed",
            ),
            ("sidco:stages=0", "key `stages` of `sidco` is `0`: guard, authors, or 1 to 64"),
            ("sign:group=1", "key `group` of `sign` is `1`: tensor, or at least 2"),
            ("chunked:chunk=9,kept=10", "key `kept` of `chunked` is `10`: 1 to the chunk"),
            ("demo:chunk=129", "key `chunk` of `demo` is `129`: 1 to 128"),
            ("demo:values=q4", "key `values` of `demo` is `q4`: one of sign, f32, f16, bf16"),
            ("powersgd:rank=0", "key `rank` of `powersgd` is `0`: at least 1"),
            ("qsgd:bits=1", "key `bits` of `qsgd` is `1`: 2 to 16"),
            ("natural:seed=1,seed=2", "key `seed` of `natural` is given twice"),
            ("natural:seed", "`seed` of `natural` is not key=value"),
            ("threshold:at=0", "key `at` of `threshold` is `0`: a positive number"),
        ] {
            assert_eq!(spec.parse::<Codec>().unwrap_err().to_string(), message);
        }
    }
}
