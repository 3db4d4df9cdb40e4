//! Settings of codecs: types that several codecs share, ranges, and the written form `name[:key=value,...]`.

use std::fmt;
use std::str::FromStr;

use crate::block::{Effort, Positions};

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

    pub(super) fn check(mut self) -> Result<(), OutOfRange> {
        Check.amount(&mut self)
    }
}

const DENSITY: Setting<f64> = Setting::number("density", "more than 0, at most 1", |d| d > 0.0 && d <= 1.0);
const COUNT: Setting<u64> = Setting::number("k", "at least 1", |k| k >= 1);

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
pub(super) const KEPT: Setting<Kept> = Setting::one_of(
    "values",
    &[
        (Kept::F32, "f32"),
        (Kept::F16, "f16"),
        (Kept::Bf16, "bf16"),
        (Kept::Pow2, "pow2"),
        (Kept::Sign, "sign"),
        (Kept::Q4, "q4"),
    ],
);

/// The range in which the elements of largest magnitude are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Selection {
    /// Each tensor.
    Tensor,
    /// All tensors of the update that have this codec.
    Global,
}

/// `bucket`: values that share a norm.
pub(super) const BUCKET: Setting<u64> = Setting::number("bucket", "at least 2", |b| b >= 2);

/// A setting outside its range.
#[derive(Debug)]
pub(super) struct OutOfRange {
    pub(super) key: &'static str,
    /// The range, for messages.
    pub(super) allowed: String,
}

/// A key of specifications, and the values that it may have: names, and numbers in a range.
pub(super) struct Setting<T: 'static> {
    pub(super) key: &'static str,
    /// The allowed values, for messages. Empty if they are the names.
    pub(super) allowed: &'static str,
    pub(super) names: &'static [(T, &'static str)],
    /// Reads a text that is not a name.
    pub(super) parse: fn(&str) -> Option<T>,
    /// Whether a value without a name is allowed.
    pub(super) fits: fn(T) -> bool,
    /// Writes a value without a name.
    pub(super) text: fn(T) -> String,
    /// A value that is not written.
    pub(super) unwritten: Option<T>,
}

impl<T: FromStr + ToString + Copy> Setting<T> {
    /// Returns a setting whose values are numbers.
    pub(super) const fn number(key: &'static str, allowed: &'static str, fits: fn(T) -> bool) -> Self {
        let (parse, text) = (|text: &str| text.parse().ok(), |number: T| number.to_string());
        Self { key, allowed, names: &[], parse, fits, text, unwritten: None }
    }
}

impl<T: Copy + PartialEq> Setting<T> {
    /// Returns a setting whose values have names.
    pub(super) const fn one_of(key: &'static str, names: &'static [(T, &'static str)]) -> Self {
        let (parse, fits, text) = (|_: &str| None, |_| false, |_| String::new());
        Self { key, allowed: "", names, parse, fits, text, unwritten: None }
    }

    /// Returns the setting, not written while it has this value.
    pub(super) const fn unless(self, value: T) -> Self {
        Self { unwritten: Some(value), ..self }
    }

    fn name(&self, value: T) -> Option<&'static str> {
        self.names.iter().find(|(named, _)| *named == value).map(|(_, name)| *name)
    }

    /// Returns the value that a text stands for.
    fn read(&self, text: &str) -> Result<T, OutOfRange> {
        let named = self.names.iter().find(|(_, name)| *name == text).map(|(value, _)| *value);
        named
            .or_else(|| (self.parse)(text).filter(|value| (self.fits)(*value)))
            .ok_or_else(|| self.out_of_range())
    }

    /// Returns the error for a value that is not allowed.
    pub(super) fn out_of_range(&self) -> OutOfRange {
        let names: Vec<&str> = self.names.iter().map(|(_, name)| *name).collect();
        let allowed = match self.allowed {
            "" => format!("one of {}", names.join(", ")),
            allowed => allowed.to_owned(),
        };
        OutOfRange { key: self.key, allowed }
    }
}

const SEED: Setting<u64> = Setting::number("seed", "0 to 2^64 - 1", |_| true).unless(1);
const EFFORT: Setting<Effort> = Setting::one_of("effort", &Effort::ALL).unless(Effort::Default);
const POSITIONS: Setting<Positions> = Setting::one_of("positions", &Positions::ALL).unless(Positions::Auto);

/// Visits the settings of a codec, in the order of its written form, to read, check or write them.
pub(super) trait Visitor {
    type Error;

    fn visit<T: Copy + PartialEq>(&mut self, setting: &Setting<T>, value: &mut T) -> Result<(), Self::Error>;

    fn amount(&mut self, amount: &mut Amount) -> Result<(), Self::Error> {
        match amount {
            Amount::Density(density) => self.visit(&DENSITY, density),
            Amount::Count(count) => self.visit(&COUNT, count),
        }
    }

    /// Sets the default of a setting that depends on another one. Only a reader does.
    fn default<T>(&mut self, _value: &mut T, _default: T) {}

    fn seed(&mut self, seed: &mut u64) -> Result<(), Self::Error> {
        self.visit(&SEED, seed)
    }

    fn effort(&mut self, effort: &mut Effort) -> Result<(), Self::Error> {
        self.visit(&EFFORT, effort)
    }

    fn positions(&mut self, positions: &mut Positions) -> Result<(), Self::Error> {
        self.visit(&POSITIONS, positions)
    }
}

/// Checks that every setting is in its range.
pub(super) struct Check;

impl Visitor for Check {
    type Error = OutOfRange;

    fn visit<T: Copy + PartialEq>(&mut self, setting: &Setting<T>, value: &mut T) -> Result<(), OutOfRange> {
        match setting.name(*value).is_some() || (setting.fits)(*value) {
            true => Ok(()),
            false => Err(setting.out_of_range()),
        }
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
}

impl Visitor for SpecWriter<'_, '_> {
    type Error = fmt::Error;

    fn visit<T: Copy + PartialEq>(&mut self, setting: &Setting<T>, value: &mut T) -> fmt::Result {
        if setting.unwritten == Some(*value) {
            return Ok(());
        }
        let text = setting.name(*value).map_or_else(|| (setting.text)(*value), str::to_owned);
        write!(self.f, "{}{}={text}", std::mem::replace(&mut self.separator, ','), setting.key)
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
    fn text(&self, key: &str) -> Option<&'a str> {
        self.given.iter().find(|(k, _)| *k == key).map(|(_, text)| *text)
    }

    /// Returns the message for a setting that is out of its range.
    pub(super) fn wrong(&self, OutOfRange { key, allowed }: OutOfRange) -> SpecError {
        let text = self.text(key).unwrap_or_default();
        SpecError(format!("key `{key}` of `{}` is `{text}`: {allowed}", self.codec))
    }

    fn take<T: Copy + PartialEq>(&mut self, setting: &Setting<T>) -> Result<Option<T>, SpecError> {
        self.known.push(setting.key);
        self.text(setting.key).map(|text| setting.read(text)).transpose().map_err(|e| self.wrong(e))
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

impl Visitor for Keys<'_> {
    type Error = SpecError;

    fn visit<T: Copy + PartialEq>(&mut self, setting: &Setting<T>, value: &mut T) -> Result<(), SpecError> {
        *value = self.take(setting)?.unwrap_or(*value);
        Ok(())
    }

    fn amount(&mut self, amount: &mut Amount) -> Result<(), SpecError> {
        *amount = match (self.take(&DENSITY)?, self.take(&COUNT)?) {
            (Some(_), Some(_)) => {
                let codec = self.codec;
                return Err(SpecError(format!("keys `density` and `k` of `{codec}` exclude each other")));
            }
            (_, Some(count)) => Amount::Count(count),
            (Some(density), _) => Amount::Density(density),
            (None, None) => *amount,
        };
        Ok(())
    }

    fn default<T>(&mut self, value: &mut T, default: T) {
        *value = default;
    }
}

#[cfg(test)]
mod tests {
    use crate::compress::Codec;

    #[test]
    fn specifications_come_back() {
        for spec in [
            "raw",
            "lossless",
            "lossless:effort=fast",
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
            "natural:seed=2,effort=fast",
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
        assert_eq!(unknown, format!("unknown codec `zip`: one of {}", Codec::NAMES.join(", ")));
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
