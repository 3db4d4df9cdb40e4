//! Names that a user may have meant, of tensors and of codecs.

use crate::learned::Chosen;
use clap::builder::{PossibleValue, TypedValueParser};
use gcodec::Codec;
use gcodec::compress::SpecError;
use std::str::FromStr;

/// Returns `; did you mean NAME?` for the known name that is most like `wrong`; empty if none is like it.
pub(crate) fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let scored = known.into_iter().take(MAX_NAMES).map(|name| (strsim::jaro_winkler(wrong, name), name));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > 0.8)
        .map_or_else(String::new, |(_, name)| format!("; did you mean {:?}?", crate::output::printable(name)))
}

/// Parser of codecs. Completions offer their names.
#[derive(Debug, Clone)]
pub(crate) struct CodecParser<T> {
    parse: fn(&str) -> Result<T, String>,
    /// Names beside those of the library.
    more: &'static [&'static str],
}

/// Parser of the codecs of the library.
pub(crate) const CODEC: CodecParser<Codec> = CodecParser { parse: parse_codec, more: &[] };
/// Parser of those and of the learned codec.
pub(crate) const CHOSEN: CodecParser<Chosen> = CodecParser { parse: Chosen::from_str, more: &["lgc"] };

impl<T: Clone + Send + Sync + 'static> TypedValueParser for CodecParser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<T, clap::Error> {
        self.parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Codec::NAMES.iter().chain(self.more).map(PossibleValue::new)))
    }
}

/// Parses a codec. The message for a wrong name or key suggests a right one.
pub(crate) fn parse_codec(text: &str) -> Result<Codec, String> {
    text.parse().map_err(|e: SpecError| {
        let message = e.to_string();
        // The library lists what it knows behind the name in backticks.
        let wrong = message.split('`').nth(1).unwrap_or_default();
        let known = message.split_once("one of ").or_else(|| message.split_once("allowed are "));
        let known = known.filter(|_| message.starts_with("unknown"));
        let hint = known.map_or(String::new(), |(_, known)| did_you_mean(wrong, known.split(", ")));
        message + &hint
    })
}

/// Most names that a wrong one is compared with.
const MAX_NAMES: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested() {
        assert_eq!(did_you_mean("fc.wieght", ["fc.bias", "fc.weight"]), "; did you mean \"fc.weight\"?");
        assert_eq!(did_you_mean("zzz", ["fc.bias"]), "");
        assert!(parse_codec("topkk").unwrap_err().ends_with("; did you mean \"topk\"?"));
        let key = parse_codec("topk:densty=1").unwrap_err();
        assert!(key.contains("did you mean \"density\""), "{key}");
    }
}
