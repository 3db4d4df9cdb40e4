//! Codec specifications as people write them: `name[:key=value,...]`.

use std::fmt;
use std::str::FromStr;

use super::demo::MAX_CHUNK;
use super::{Amount, ChunkValues, Codec, Fit, Kept, Scaling, Selection, Share, Stages};
use crate::block::Norm;
use crate::block::Positions;

/// A codec specification that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError(String);

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

const NAMES: &str = "raw, lossless, topk, stc, threshold, sbc, sidco, randk, chunked, demo, powersgd, natural, qsgd, dither, terngrad, sign, int8, delta";

impl FromStr for Codec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let (name, rest) = spec.split_once(':').unwrap_or((spec, ""));
        let mut keys = Keys::parse(name, rest)?;
        let codec = match name {
            "raw" => Self::Raw,
            "lossless" => Self::Lossless,
            "topk" => Self::TopK {
                amount: keys.amount(0.01)?,
                values: keys.choice("values", &KEPT)?.unwrap_or(Kept::F32),
                selection: keys.choice("scope", &SELECTIONS)?.unwrap_or(Selection::Tensor),
                seed: keys.seed()?,
                positions: keys.positions()?,
            },
            // Sparse ternary compression (Sattler et al., arXiv 1903.02891) is top-k with signs.
            "stc" => Self::TopK {
                amount: keys.amount(0.01)?,
                values: Kept::Sign,
                selection: Selection::Tensor,
                seed: 1,
                positions: keys.positions()?,
            },
            "threshold" => Self::Threshold {
                at: keys
                    .number("at", "a positive number", |x: &f32| x.is_finite() && *x > 0.0)?
                    .unwrap_or(1e-3),
                values: keys.choice("values", &KEPT)?.unwrap_or(Kept::F32),
                seed: keys.seed()?,
                positions: keys.positions()?,
            },
            "sbc" => Self::Sbc { amount: keys.amount(0.001)?, positions: keys.positions()? },
            "sidco" => Self::Sidco {
                amount: keys.amount(0.001)?,
                fit: keys.choice("fit", &FITS)?.unwrap_or(Fit::Gp),
                stages: keys.stages()?,
                values: keys.choice("values", &KEPT)?.unwrap_or(Kept::F32),
                seed: keys.seed()?,
                positions: keys.positions()?,
            },
            "randk" => Self::RandK {
                amount: keys.amount(0.01)?,
                scale: keys.choice("scale", &SCALINGS)?.unwrap_or(Scaling::Unbiased),
                values: keys.choice("values", &KEPT[..3])?.unwrap_or(Kept::F32),
                seed: keys.seed()?,
            },
            "chunked" => {
                let chunk = keys.number("chunk", "1 to 2^32", |c| (1..=1 << 32).contains(c))?.unwrap_or(4096);
                let kept = keys.number("kept", "1 to the chunk", |k| (1..=chunk).contains(k))?;
                Self::Chunked {
                    chunk,
                    kept: kept.unwrap_or(64.min(chunk)),
                    values: keys.choice("values", &CHUNK_VALUES)?.unwrap_or(ChunkValues::Code2),
                }
            }
            "demo" => Self::Demo {
                chunk: keys.number("chunk", "1 to 128", |c| (1..=MAX_CHUNK).contains(c))?.unwrap_or(64),
                kept: keys.number("kept", "at least 1", |&k| k >= 1)?.unwrap_or(32),
                values: keys.choice("values", &COEFFICIENTS)?.unwrap_or(Kept::Sign),
            },
            "powersgd" => Self::PowerSgd {
                rank: keys.number("rank", "at least 1", |&r| r >= 1)?.unwrap_or(4),
                seed: keys.seed()?,
            },
            "natural" => Self::Natural { seed: keys.seed()? },
            "qsgd" => Self::Qsgd {
                bits: keys.number("bits", "2 to 16", |b| (2..=16).contains(b))?.unwrap_or(4),
                bucket: keys.number("bucket", "at least 2", |&b| b >= 2)?.unwrap_or(512),
                norm: keys.choice("norm", &NORMS)?.unwrap_or(Norm::L2),
                seed: keys.seed()?,
            },
            "dither" => Self::Dither {
                levels: keys.number("levels", "1 to 255", |l| *l >= 1)?.unwrap_or(8),
                bucket: keys.number("bucket", "at least 2", |&b| b >= 2)?.unwrap_or(512),
                norm: keys.choice("norm", &ALL_NORMS)?.unwrap_or(Norm::L2),
                seed: keys.seed()?,
            },
            "terngrad" => Self::TernGrad {
                clip: keys.number("clip", "at least 1, or inf", |c: &f32| *c >= 1.0)?.unwrap_or(2.5),
                bucket: keys.number("bucket", "at least 2", |&b| b >= 2)?.unwrap_or(4096),
                seed: keys.seed()?,
            },
            "sign" => Self::Sign { group: keys.share()? },
            "int8" => Self::Int8 { group: keys.number("group", "at least 2", |&g| g >= 2)?.unwrap_or(256) },
            "delta" => Self::Delta { positions: keys.positions()? },
            _ => return Err(SpecError(format!("unknown codec `{name}`: one of {NAMES}"))),
        };
        keys.finish()?;
        Ok(codec)
    }
}

impl fmt::Display for Codec {
    /// The shortest specification that reads back as this codec, but for the amount and the values, which are
    /// always written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = Writer { f, separator: ':' };
        match *self {
            Self::Raw => out.f.write_str("raw")?,
            Self::Lossless => out.f.write_str("lossless")?,
            Self::TopK { amount, values, selection, seed, .. } => {
                out.f.write_str("topk")?;
                out.amount(amount)?;
                out.key("values", name_of(&KEPT, values))?;
                if selection != Selection::Tensor {
                    out.key("scope", name_of(&SELECTIONS, selection))?;
                }
                out.seed(seed)?;
            }
            Self::Threshold { at, values, seed, .. } => {
                out.f.write_str("threshold")?;
                out.key("at", at)?;
                out.key("values", name_of(&KEPT, values))?;
                out.seed(seed)?;
            }
            Self::Sbc { amount, .. } => {
                out.f.write_str("sbc")?;
                out.amount(amount)?;
            }
            Self::Sidco { amount, fit, stages, values, seed, .. } => {
                out.f.write_str("sidco")?;
                out.amount(amount)?;
                out.key("fit", name_of(&FITS, fit))?;
                match stages {
                    Stages::Fixed(stages) => out.key("stages", stages)?,
                    named => out.key("stages", name_of(&STAGES, named))?,
                }
                out.key("values", name_of(&KEPT, values))?;
                out.seed(seed)?;
            }
            Self::RandK { amount, scale, values, seed } => {
                out.f.write_str("randk")?;
                out.amount(amount)?;
                out.key("scale", name_of(&SCALINGS, scale))?;
                out.key("values", name_of(&KEPT, values))?;
                out.seed(seed)?;
            }
            Self::Chunked { chunk, kept, values } => {
                out.f.write_str("chunked")?;
                out.key("chunk", chunk)?;
                out.key("kept", kept)?;
                out.key("values", name_of(&CHUNK_VALUES, values))?;
            }
            Self::Demo { chunk, kept, values } => {
                out.f.write_str("demo")?;
                out.key("chunk", chunk)?;
                out.key("kept", kept)?;
                out.key("values", name_of(&COEFFICIENTS, values))?;
            }
            Self::PowerSgd { rank, seed } => {
                out.f.write_str("powersgd")?;
                out.key("rank", rank)?;
                out.seed(seed)?;
            }
            Self::Natural { seed } => {
                out.f.write_str("natural")?;
                out.seed(seed)?;
            }
            Self::Qsgd { bits, bucket, norm, seed } => {
                out.f.write_str("qsgd")?;
                out.key("bits", bits)?;
                out.key("bucket", bucket)?;
                if norm != Norm::L2 {
                    out.key("norm", name_of(&NORMS, norm))?;
                }
                out.seed(seed)?;
            }
            Self::Dither { levels, bucket, norm, seed } => {
                out.f.write_str("dither")?;
                out.key("levels", levels)?;
                out.key("bucket", bucket)?;
                if norm != Norm::L2 {
                    out.key("norm", name_of(&ALL_NORMS, norm))?;
                }
                out.seed(seed)?;
            }
            Self::TernGrad { clip, bucket, seed } => {
                out.f.write_str("terngrad")?;
                out.key("clip", clip)?;
                out.key("bucket", bucket)?;
                out.seed(seed)?;
            }
            Self::Sign { group } => {
                out.f.write_str("sign")?;
                if let Share::Len(len) = group {
                    out.key("group", len)?;
                }
            }
            Self::Int8 { group } => {
                out.f.write_str("int8")?;
                out.key("group", group)?;
            }
            Self::Delta { .. } => out.f.write_str("delta")?,
        }
        if self.positions() != Positions::Auto {
            out.key("positions", self.positions().name())?;
        }
        Ok(())
    }
}

const KEPT: [(&str, Kept); 6] = [
    ("f32", Kept::F32),
    ("f16", Kept::F16),
    ("bf16", Kept::Bf16),
    ("pow2", Kept::Pow2),
    ("sign", Kept::Sign),
    ("q4", Kept::Q4),
];
const SELECTIONS: [(&str, Selection); 2] = [("tensor", Selection::Tensor), ("global", Selection::Global)];
const FITS: [(&str, Fit); 3] = [("exp", Fit::Exp), ("gamma-gp", Fit::GammaGp), ("gp", Fit::Gp)];
const STAGES: [(&str, Stages); 2] = [("guard", Stages::Guard), ("authors", Stages::Authors)];
const SCALINGS: [(&str, Scaling); 2] = [("n/k", Scaling::Unbiased), ("1", Scaling::One)];
const CHUNK_VALUES: [(&str, ChunkValues); 2] = [("sign", ChunkValues::Sign), ("code2", ChunkValues::Code2)];
const COEFFICIENTS: [(&str, Kept); 4] =
    [("sign", Kept::Sign), ("f32", Kept::F32), ("f16", Kept::F16), ("bf16", Kept::Bf16)];
const NORMS: [(&str, Norm); 2] = [("l2", Norm::L2), ("max", Norm::Max)];
const ALL_NORMS: [(&str, Norm); 3] = [("l1", Norm::L1), ("l2", Norm::L2), ("max", Norm::Max)];

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, v)| *v == value).map_or("", |(name, _)| name)
}

struct Writer<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    separator: char,
}

impl Writer<'_, '_> {
    fn key(&mut self, key: &str, value: impl fmt::Display) -> fmt::Result {
        write!(self.f, "{}{key}={value}", std::mem::replace(&mut self.separator, ','))
    }

    fn amount(&mut self, amount: Amount) -> fmt::Result {
        match amount {
            Amount::Density(density) => self.key("density", density),
            Amount::Count(count) => self.key("k", count),
        }
    }

    fn seed(&mut self, seed: u64) -> fmt::Result {
        if seed == 1 { Ok(()) } else { self.key("seed", seed) }
    }
}

/// The keys of a specification that nobody asked for yet.
struct Keys<'a> {
    codec: &'a str,
    left: Vec<(&'a str, &'a str)>,
    known: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    fn parse(codec: &'a str, rest: &'a str) -> Result<Self, SpecError> {
        let mut left: Vec<(&str, &str)> = Vec::new();
        for pair in rest.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| SpecError(format!("`{pair}` of `{codec}` is not key=value")))?;
            if left.iter().any(|(k, _)| *k == key) {
                return Err(SpecError(format!("key `{key}` of `{codec}` is given twice")));
            }
            left.push((key, value));
        }
        Ok(Self { codec, left, known: Vec::new() })
    }

    fn take(&mut self, key: &'static str) -> Option<&'a str> {
        self.known.push(key);
        let at = self.left.iter().position(|(k, _)| *k == key)?;
        Some(self.left.remove(at).1)
    }

    fn wrong(&self, key: &str, value: &str, allowed: &str) -> SpecError {
        SpecError(format!("key `{key}` of `{}` is `{value}`: {allowed}", self.codec))
    }

    fn number<T: FromStr>(
        &mut self,
        key: &'static str,
        allowed: &str,
        fits: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, SpecError> {
        let Some(text) = self.take(key) else { return Ok(None) };
        match text.parse() {
            Ok(value) if fits(&value) => Ok(Some(value)),
            _ => Err(self.wrong(key, text, allowed)),
        }
    }

    fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Result<Option<T>, SpecError> {
        let Some(text) = self.take(key) else { return Ok(None) };
        if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text) {
            return Ok(Some(*value));
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        Err(self.wrong(key, text, &format!("one of {}", names.join(", "))))
    }

    fn amount(&mut self, default: f64) -> Result<Amount, SpecError> {
        let density = self.number("density", "more than 0, at most 1", |d: &f64| *d > 0.0 && *d <= 1.0)?;
        let count = self.number("k", "at least 1", |&k: &u64| k >= 1)?;
        match (density, count) {
            (Some(_), Some(_)) => {
                Err(SpecError(format!("keys `density` and `k` of `{}` exclude each other", self.codec)))
            }
            (_, Some(count)) => Ok(Amount::Count(count)),
            (density, _) => Ok(Amount::Density(density.unwrap_or(default))),
        }
    }

    fn seed(&mut self) -> Result<u64, SpecError> {
        Ok(self.number("seed", "0 to 2^64 - 1", |_| true)?.unwrap_or(1))
    }

    fn share(&mut self) -> Result<Share, SpecError> {
        match self.take("group") {
            None | Some("tensor") => Ok(Share::Tensor),
            Some(text) => match text.parse() {
                Ok(len @ 2..) => Ok(Share::Len(len)),
                _ => Err(self.wrong("group", text, "tensor, or at least 2")),
            },
        }
    }

    fn stages(&mut self) -> Result<Stages, SpecError> {
        let Some(text) = self.take("stages") else { return Ok(Stages::Guard) };
        if let Some((_, stages)) = STAGES.iter().find(|(name, _)| *name == text) {
            return Ok(*stages);
        }
        match text.parse() {
            Ok(stages @ 1..=64) => Ok(Stages::Fixed(stages)),
            _ => Err(self.wrong("stages", text, "guard, authors, or 1 to 64")),
        }
    }

    fn positions(&mut self) -> Result<Positions, SpecError> {
        Ok(self.choice("positions", &Positions::ALL.map(|(p, name)| (name, p)))?.unwrap_or_default())
    }

    fn finish(self) -> Result<(), SpecError> {
        let Some((key, _)) = self.left.first() else { return Ok(()) };
        let known = if self.known.is_empty() { "none".to_owned() } else { self.known.join(", ") };
        Err(SpecError(format!("unknown key `{key}` of `{}`: allowed are {known}", self.codec)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (spec, message) in [
            (
                "zip",
                "unknown codec `zip`: one of raw, lossless, topk, stc, threshold, sbc, sidco, randk, chunked, demo, powersgd, natural, qsgd, dither, terngrad, sign, int8, delta",
            ),
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
                "key `positions` of `sbc` is `x`: one of auto, rice, rice-one, tokens, bitmap",
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
