//! Steps and senders in metadata and in the names of files, and names that a user may have meant.

use crate::learned::Chosen;
use clap::builder::{PossibleValue, TypedValueParser};
use gcodec::Codec;
use gcodec::compress::SpecError;
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

/// Step, sender and number of senders of a file of tensors, as far as it says them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) step: Option<u64>,
    pub(crate) sender: Option<u64>,
    pub(crate) world: Option<u64>,
}

const STEP: [&str; 6] = ["step", "global_step", "iteration", "iter", "round", "epoch"];
const SENDER: [&str; 6] = ["sender", "worker", "rank", "client", "node", "replica"];
const WORLD: [&str; 4] = ["world", "world_size", "workers", "num_workers"];

impl Origin {
    /// Returns what the metadata alone says. `key`: the key of the step, if it has another name.
    pub(crate) fn of_metadata(metadata: &BTreeMap<String, String>, key: Option<&str>) -> Self {
        let find = |keys: &[&str]| keys.iter().find_map(|key| metadata.get(*key)?.trim().parse().ok());
        Self {
            step: key.map_or_else(|| find(&STEP), |key| find(&[key])),
            sender: find(&SENDER),
            world: find(&WORLD),
        }
    }

    /// Returns what the metadata says; where it says nothing, what the name of the file says, such as
    /// `grad_step0200_worker3`.
    pub(crate) fn of(metadata: &BTreeMap<String, String>, path: &Path) -> Self {
        let name = &*path.file_name().unwrap_or_default().to_string_lossy();
        let found = Self::of_metadata(metadata, None);
        Self {
            step: found.step.or_else(|| numbered(name, &STEP)),
            sender: found.sender.or_else(|| numbered(name, &SENDER)),
            ..found
        }
    }
}

/// Returns the number behind one of the words in a name, directly or after `-`, `_`, `=` or `.`.
fn numbered(name: &str, words: &[&str]) -> Option<u64> {
    let lower = name.to_ascii_lowercase();
    words.iter().find_map(|word| {
        lower.match_indices(word).find_map(|(at, _)| {
            let before = lower[..at].chars().next_back();
            let rest = &lower[at + word.len()..];
            let rest = rest.strip_prefix(['-', '_', '=', '.']).unwrap_or(rest);
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let whole_word = before.is_none_or(|c| !c.is_alphanumeric());
            if whole_word { rest[..digits].parse().ok() } else { None }
        })
    })
}

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
    fn origins_are_found() {
        let none = BTreeMap::new();
        let of = |name: &str| {
            let origin = Origin::of(&none, Path::new(name));
            (origin.step, origin.sender)
        };
        assert_eq!(of("resnet_step0200_worker3.safetensors"), (Some(200), Some(3)));
        assert_eq!(of("grad-iter_7.rank=12.pt"), (Some(7), Some(12)));
        assert_eq!(of("misstep9"), (None, None));
        assert_eq!(of("step"), (None, None));
        let metadata = [("step", "5"), ("worker", "1"), ("world_size", "4")];
        let metadata = metadata.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let origin = Origin::of(&metadata, Path::new("x_step9"));
        assert_eq!(origin, Origin { step: Some(5), sender: Some(1), world: Some(4) });
    }

    #[test]
    fn near_names_are_suggested() {
        assert_eq!(did_you_mean("fc.wieght", ["fc.bias", "fc.weight"]), "; did you mean \"fc.weight\"?");
        assert_eq!(did_you_mean("zzz", ["fc.bias"]), "");
        assert!(parse_codec("topkk").unwrap_err().ends_with("; did you mean \"topk\"?"));
        let key = parse_codec("topk:densty=1").unwrap_err();
        assert!(key.contains("did you mean \"density\""), "{key}");
    }
}
