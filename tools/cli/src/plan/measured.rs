//! Measurements of codecs, and the reader of those of an earlier plan.

use super::model::{Growth, Parts};
use crate::fail::{Failure, InFile, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::output::printable;
use gcodec::Codec;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Measurements of several codecs on the same gradients: the part of a plan's JSON that other plans read.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Measurements {
    pub(super) file: String,
    /// Gradients of workers.
    pub(super) gradients: u64,
    pub(super) tensors: u64,
    /// Elements of one gradient.
    pub(super) elements: u64,
    /// Bytes of one gradient.
    pub(super) bytes: u64,
    /// Threads that the measurements used.
    pub(super) threads: usize,
    pub(super) measured: Vec<Measured>,
}

impl Measurements {
    /// Reads the JSON of a plan.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let input = Input::open(path, DEFAULT_MAX_BYTES)?;
        Self::parse(&input).in_file(path)
    }

    fn parse(json: &[u8]) -> Result<Self> {
        let mut all: Self = serde_json::from_slice(json)
            .map_err(|e| Failure::invalid(format_args!("not the output of `gcodec plan --json`: {e}")))?;
        if all.elements == 0 || all.gradients == 0 {
            return Err(Failure::invalid("measurements of no elements"));
        }
        for one in &mut all.measured {
            let name = printable(one.codec.as_deref().unwrap_or("plain gradients"));
            if !one.is_sound() {
                return Err(Failure::invalid("a size, time or error that none can have").about(name));
            }
            // Spelled as here, with all settings.
            if let Some(codec) = &mut one.codec {
                let parsed = codec.parse::<Codec>();
                *codec = parsed.map_err(|e| Failure::invalid(e).about(name))?.to_string();
            }
        }
        Ok(all)
    }

    /// Keeps plain gradients and these codecs; all, if there are none.
    pub(super) fn only(mut self, codecs: &[Codec]) -> Result<Self> {
        let wanted: Vec<String> = codecs.iter().map(Codec::to_string).collect();
        let is_there = |codec: &&String| self.measured.iter().any(|one| one.codec.as_ref() == Some(codec));
        if let Some(missing) = wanted.iter().find(|codec| !is_there(codec)) {
            return Err(Failure::usage(format_args!("{missing} was not measured")));
        }
        if !wanted.is_empty() {
            self.measured.retain(|one| one.codec.as_ref().is_none_or(|codec| wanted.contains(codec)));
        }
        Ok(self)
    }
}

/// Measurements of a codec.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Measured {
    /// The codec; none for plain gradients.
    pub(super) codec: Option<String>,
    /// Error of one worker's update, over all elements as one vector.
    pub(super) relative_l2: f64,
    /// Sizes and times.
    pub(super) parts: Parts,
}

impl Measured {
    /// Returns the measurements for a model that is `factor` times as large: all in proportion.
    pub(super) fn scaled(&self, factor: f64) -> Self {
        Self { parts: self.parts.scaled(factor), ..self.clone() }
    }

    /// Whether all numbers are such as a measurement gives.
    fn is_sound(&self) -> bool {
        let Parts { plain, update, encode, add, sum, answer, growth: Growth(points), set } = &self.parts;
        let of_set = set.map_or([0.0; 3], |set| [set.positions, set.values, set.relative_l2]);
        let numbers = [*plain, *update, *encode, *add, *sum, *answer, self.relative_l2];
        let is_size = |n: &f64| n.is_finite() && *n >= 0.0;
        numbers.iter().chain(&of_set).all(is_size)
            && *plain > 0.0
            && points.first().is_some_and(|(updates, _)| *updates > 0.0)
            && points
                .iter()
                .all(|(updates, factor)| updates.is_finite() && factor.is_finite() && *factor > 0.0)
            && points.windows(2).all(|two| two[0].0 < two[1].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurements() -> serde_json::Value {
        let parts = serde_json::json!({
            "plain": 4e6, "update": 1e5, "encode": 1e-3, "add": 1e-4, "sum": 1e-3, "answer": 1e-3,
            "growth": [[1, 1], [2, 1.9]], "set": null
        });
        let measured = ["topk:density=0.01", "natural"]
            .map(|codec| serde_json::json!({ "codec": codec, "relative_l2": 0.5, "parts": parts }));
        serde_json::json!({
            "file": "a.npz", "gradients": 2, "tensors": 3, "elements": 1000000, "bytes": 4000000, "threads": 2,
            "measured": measured, "workers": "is of no interest"
        })
    }

    fn parse(json: &serde_json::Value) -> Result<Measurements> {
        Measurements::parse(json.to_string().as_bytes())
    }

    #[test]
    fn codecs_get_all_their_settings_and_may_be_chosen() {
        let all = parse(&measurements()).unwrap();
        let names: Vec<_> = all.measured.iter().map(|one| one.codec.as_deref().unwrap()).collect();
        assert_eq!(names, ["topk:density=0.01,values=f32", "natural"]);
        let codec = |spec: &str| spec.parse::<Codec>().unwrap();
        let chosen = all.only(&[codec("topk:density=0.01")]).unwrap();
        assert_eq!(chosen.measured.len(), 1);
        let missing = chosen.only(&[codec("sign")]).unwrap_err();
        assert_eq!(missing.message, "sign was not measured");
    }

    #[test]
    fn what_no_measurement_gives_is_refused() {
        let refused = |path: &str, value: serde_json::Value, why: &str| {
            let mut json = measurements();
            *json.pointer_mut(path).unwrap() = value;
            let message = parse(&json).unwrap_err().message;
            assert!(message.contains(why), "{path}: {message}");
        };
        let none = "that none can have";
        refused("/elements", 0.into(), "of no elements");
        refused("/gradients", 0.into(), "of no elements");
        refused("/measured/0/codec", "topkk".into(), "topkk");
        refused("/measured/1/relative_l2", (-0.5).into(), none);
        for part in ["update", "encode", "add", "sum", "answer"] {
            refused(&format!("/measured/0/parts/{part}"), (-1).into(), none);
        }
        refused("/measured/0/parts/plain", 0.into(), none);
        refused("/measured/0/parts/growth", serde_json::json!([]), none);
        refused("/measured/0/parts/growth", serde_json::json!([[2, 1.9], [1, 1]]), none);
        refused("/measured/0/parts/growth", serde_json::json!([[1, 0]]), none);
        refused("/measured", 3.into(), "not the output of `gcodec plan --json`");
    }
}
