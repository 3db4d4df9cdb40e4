//! The assignment of codecs to tensors.

use crate::fail::{Failure, Result};
use crate::options::NameGlob;
use gcodec::frame::{Manifest, TensorInfo};
use gcodec::{Codec, TensorView};
use std::str::FromStr;
use std::sync::Arc;

/// `GLOB=SPEC`: another codec for the tensors that match a glob.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    text: String,
    glob: NameGlob,
    codec: Codec,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (glob, codec) = text.split_once('=').ok_or("not GLOB=SPEC")?;
        let codec = crate::naming::parse_codec(codec)?;
        Ok(Self { text: format!("{glob}={codec}"), glob: glob.parse()?, codec })
    }
}

/// The codecs of one command line.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    codec: Codec,
    rules: &'a [Rule],
}

impl<'a> Plan<'a> {
    /// Returns a plan: `codec` for all tensors that no rule matches; otherwise the last matching rule's
    /// codec.
    pub(crate) fn new(codec: Codec, rules: &'a [Rule]) -> Self {
        Self { codec, rules }
    }

    /// Notes for the user.
    pub(crate) fn label(&self) -> String {
        let rules = self.rules.iter().map(|rule| format!("; {}", rule.text));
        std::iter::once(self.codec.to_string()).chain(rules).collect()
    }

    /// Returns the rules that match none of the names.
    pub(crate) fn idle_rules<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Vec<&'a str> {
        let idle = self.rules.iter().filter(|rule| !names.clone().any(|name| rule.glob.matches(name)));
        idle.map(|rule| rule.text.as_str()).collect()
    }

    /// Whether a codec is `delta`.
    pub(crate) fn has_delta(&self) -> bool {
        let rules = self.rules.iter().map(|rule| rule.codec);
        std::iter::once(self.codec).chain(rules).any(|codec| matches!(codec, Codec::Delta { .. }))
    }

    /// Returns the codec of a tensor.
    pub(crate) fn codec(&self, name: &str) -> Codec {
        let rule = self.rules.iter().rev().find(|rule| rule.glob.matches(name));
        rule.map_or(self.codec, |rule| rule.codec)
    }
}

/// Returns the codec, or `lossless` for elements that it does not support.
pub(crate) fn fitting(codec: Codec, view: &TensorView<'_>) -> Codec {
    if codec.is_lossy() && !view.dtype().is_float() { Codec::LOSSLESS } else { codec }
}

/// Returns the manifest of named tensors.
pub(crate) fn manifest_of<'t>(
    tensors: impl Iterator<Item = (&'t str, TensorView<'t>)>,
) -> Result<Arc<Manifest>> {
    let infos = tensors.map(|(name, view)| TensorInfo::new(name, view.dtype(), view.shape()));
    Ok(Arc::new(Manifest::new(infos.collect())?))
}

/// Converts an error of [`gcodec::compress::compress()`] to a failure with the tensor's name and advice.
pub(crate) fn explain(error: gcodec::Error, manifest: &Manifest) -> Failure {
    use gcodec::error::{Error, InputError, InputErrorKind};
    let advice = match &error {
        Error::Input(InputError { kind: InputErrorKind::NonFinite { .. }, .. }) => {
            "; --zero-non-finite replaces it with zero, and `--rule NAME=lossless` keeps the tensor's bits"
        }
        Error::Input(InputError { kind: InputErrorKind::BeyondCore { .. }, .. }) => {
            "; --profile full writes it"
        }
        _ => "",
    };
    let mut failure = crate::stream::explain(error, Some(manifest));
    failure.message.push_str(advice);
    failure
}
