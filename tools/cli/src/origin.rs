//! Step and sender of a file of tensors: what the file says, else what its name says, else its folder's.

use crate::output::{counted, note};
use crate::tensors::{Dump, Plain};
use gcodec::frame::UpdateHeader;
use std::path::{Component, Path};

/// Step, sender and number of senders of a file of tensors, as far as it or its name says them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) step: Option<u64>,
    pub(crate) sender: Option<u64>,
    pub(crate) world: Option<u64>,
    /// Whether the step or the sender is a guess: from a name, not from what the file holds.
    pub(crate) guessed: bool,
}

/// Words before a step in metadata and names, the more exact first.
const STEP: [&str; 11] = [
    "step",
    "global_step",
    "iteration",
    "iter",
    "checkpoint",
    "ckpt",
    "batch",
    "ba",
    "round",
    "epoch",
    "weight_v",
];
/// Words before a sender.
const SENDER: [&str; 8] = ["sender", "worker", "rank", "client", "node", "replica", "peer", "site"];
/// Words before the number of senders.
const WORLD: [&str; 4] = ["world_size", "world", "num_workers", "workers"];
/// Words that give the next one another meaning: the rank of a matrix is no sender.
const OTHER_RANKS: [&str; 4] = ["lora", "dora", "low", "powersgd"];
/// Names that are looked at: the file's and those of two folders.
const NAMES: usize = 3;

impl Origin {
    /// Returns the origin of the tensors of the file at `path`.
    pub(crate) fn of(dump: &Dump, path: &Path) -> Self {
        Self::said(dump, None).or_named(path)
    }

    /// Returns the origin of an update of a stream.
    pub(crate) fn of_update(header: &UpdateHeader) -> Self {
        let (step, sender) = (Some(header.step), Some(header.sender));
        Self { step, sender, world: Some(header.world).filter(|world| *world > 0), guessed: false }
    }

    /// Returns what the file itself says. `key`: the key of the step, if it has another name.
    pub(crate) fn said(dump: &Dump, key: Option<&str>) -> Self {
        let number = |key: &str| {
            let text = |text: &str| text.trim().parse().ok();
            dump.metadata.get(key).and_then(|value| text(value)).or_else(|| match dump.plain.get(key)? {
                Plain::Int(number) => (*number).try_into().ok(),
                Plain::Text(value) => text(value),
            })
        };
        let find = |keys: &[&str]| keys.iter().find_map(|key| number(key));
        Self {
            step: key.map_or_else(|| find(&STEP), number),
            sender: find(&SENDER),
            world: find(&WORLD),
            guessed: false,
        }
    }

    /// Adds what is still unknown from the name of the file, such as `grad_step0200_worker3`, and from those
    /// of its folders, such as `checkpoint-200`.
    pub(crate) fn or_named(self, path: &Path) -> Self {
        let names: Vec<_> = path
            .components()
            .rev()
            .filter_map(|part| match part {
                Component::Normal(name) => Some(name.to_string_lossy()),
                _ => None,
            })
            .take(NAMES)
            .collect();
        let find = |words: &[&str]| names.iter().find_map(|name| numbered(name, words));
        let step = self.step.or_else(|| Some(find(&STEP)?.0));
        let named = find(&SENDER);
        let world = self.world.or_else(|| Some(find(&WORLD)?.0)).or(named.and_then(|(_, of)| of));
        let sender = self.sender.or(named.map(|(sender, _)| sender));
        Self { guessed: self.guessed || (step, sender) != (self.step, self.sender), step, sender, world }
    }
}

/// The inputs whose steps or senders are guesses, for one note.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    first: Option<String>,
    more: u64,
}

impl Guesses {
    /// Adds an input: what it says, and what its name adds.
    pub(crate) fn add(&mut self, said: Origin, named: Origin, path: &Path) {
        let parts = [("step", said.step, named.step), ("sender", said.sender, named.sender)];
        let guessed = parts.into_iter().filter(|(_, said, _)| said.is_none());
        let guessed = guessed.filter_map(|(what, _, named)| Some(format!("{what} {}", named?)));
        let guessed: Vec<String> = guessed.collect();
        match &self.first {
            _ if guessed.is_empty() => {}
            Some(_) => self.more += 1,
            None => self.first = Some(format!("{}: {}, from its name", path.display(), guessed.join(", "))),
        }
    }

    /// Prints the note.
    pub(crate) fn note(&self) {
        let Some(first) = &self.first else { return };
        let more = match self.more {
            0 => String::new(),
            more => format!("; so {}", counted(more, "more input")),
        };
        note(format_args!("{first}{more}"));
    }
}

/// Returns the number behind one of the words in a name, and the number of which it is one, as in
/// `rank0of4`.
///
/// A number stands directly behind its word or after one of `-_=. `; it ends its part of the name, or a
/// known word follows. So `node-7f3a9` has none.
fn numbered(name: &str, words: &[&str]) -> Option<(u64, Option<u64>)> {
    let lower = name.to_ascii_lowercase();
    let is_word = |at: usize, word: &str| {
        let front = &lower[..at];
        let (before, first) = (name[..at].chars().next_back(), name[at..].chars().next());
        let begins = before.is_none_or(|c| !c.is_alphabetic())
            || (before.is_some_and(char::is_lowercase) && first.is_some_and(char::is_uppercase));
        let front = front.trim_end_matches(SEPARATORS);
        begins && !(word == "rank" && OTHER_RANKS.iter().any(|other| front.ends_with(other)))
    };
    words.iter().find_map(|word| {
        let places = lower.match_indices(word).filter(|(at, _)| is_word(*at, word));
        places.filter_map(|(at, _)| number_at(&lower[at + word.len()..])).next()
    })
}

/// Reads the number at the beginning of the rest of a name.
fn number_at(rest: &str) -> Option<(u64, Option<u64>)> {
    let rest = rest.strip_prefix('s').unwrap_or(rest);
    let (number, rest) = digits(rest.strip_prefix(SEPARATORS).unwrap_or(rest))?;
    let (number, rest) = match rest.strip_prefix('k') {
        Some(rest) if ends(rest) => (number.checked_mul(1000)?, rest),
        _ => (number, rest),
    };
    let of = rest.strip_prefix(SEPARATORS).unwrap_or(rest).strip_prefix("of");
    let of = of.and_then(|rest| digits(rest.strip_prefix(SEPARATORS).unwrap_or(rest)));
    if let Some((of, rest)) = of.filter(|(_, rest)| ends(rest)) {
        return ends(rest).then_some((number, Some(of)));
    }
    ends(rest).then_some((number, None))
}

fn digits(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// Whether a number may end before this rest of a name.
fn ends(rest: &str) -> bool {
    let mut words = [&STEP[..], &SENDER, &WORLD].into_iter().flatten();
    !rest.starts_with(char::is_alphanumeric) || words.any(|word| rest.starts_with(word))
}

const SEPARATORS: [char; 5] = ['-', '_', '=', '.', ' '];

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &str) -> (Option<u64>, Option<u64>, Option<u64>) {
        let Origin { step, sender, world, guessed } = Origin::default().or_named(Path::new(path));
        assert_eq!(guessed, step.is_some() || sender.is_some(), "{path}");
        (step, sender, world)
    }

    #[test]
    fn names_of_files_say_step_and_sender() {
        let cases = [
            ("resnet_step0200_worker3.safetensors", Some(200), Some(3)),
            ("grad-iter_7.rank=12.pt", Some(7), Some(12)),
            ("grad_step100_worker0.pt", Some(100), Some(0)),
            ("epoch=3-step=1000.ckpt", Some(1000), None),
            ("checkpoint_epoch_3.pt", Some(3), None),
            ("ckpt-42.npz", Some(42), None),
            ("ep0-ba21-rank5.pt", Some(21), Some(5)),
            ("round12_client7.npz", Some(12), Some(7)),
            ("gradStep9Node2.npy", Some(9), Some(2)),
            ("step7rank3.npy", Some(7), Some(3)),
            ("step-10k.safetensors", Some(10_000), None),
            ("zero_pp_rank_0_mp_rank_01_optim_states.pt", None, Some(0)),
            ("steps_18446744073709551615", Some(u64::MAX), None),
        ];
        for (name, step, sender) in cases {
            assert_eq!(named(name), (step, sender, None), "{name}");
        }
        assert_eq!(named("model_world_size_8_rank_3.pt"), (None, Some(3), Some(8)));
        assert_eq!(named("grads.rank3-of-16.pt"), (None, Some(3), Some(16)));
    }

    #[test]
    fn other_names_say_nothing() {
        let names = [
            "misstep9",
            "step",
            "step_",
            "steps_18446744073709551616",
            "node-7f3a9.pt",
            "lora_rank16.safetensors",
            "low-rank-4.pt",
            "frank3.pt",
            "model-00001-of-00002.safetensors",
            "checkpoint.tar.7z",
            "-",
            "",
            "/",
            "ステップ9.pt",
        ];
        for name in names {
            assert_eq!(named(name), (None, None, None), "{name}");
        }
    }

    #[test]
    fn folders_say_what_the_file_does_not() {
        assert_eq!(named("checkpoint-200/model.safetensors"), (Some(200), None, None));
        assert_eq!(named("run/global_step100/rank_2/model.pt"), (Some(100), Some(2), None));
        assert_eq!(named("iter_0000100/worker1_step7.pt"), (Some(7), Some(1), None));
        assert_eq!(named("../step_000100/./x.npz"), (Some(100), None, None));
        assert_eq!(named("step9/a/b/model.pt"), (None, None, None), "three folders up");
    }

    #[test]
    fn the_file_itself_comes_first() {
        let metadata = [("step", "5"), ("worker", "1"), ("world_size", "4"), ("at", "77")];
        let metadata = metadata.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let dump = Dump { metadata, ..Dump::default() };
        let path = Path::new("step3/x_step9_rank2");
        let said = Origin { step: Some(5), sender: Some(1), world: Some(4), guessed: false };
        assert_eq!(Origin::of(&dump, path), said);
        assert_eq!(Origin::said(&dump, Some("at")).step, Some(77));
        let plain = [("iteration", Plain::Int(40)), ("rank", Plain::Int(-1))];
        let plain = plain.map(|(k, v)| (k.to_owned(), v)).into();
        let dump = Dump { plain, ..Dump::default() };
        let origin = Origin { step: Some(40), sender: Some(2), world: None, guessed: true };
        assert_eq!(Origin::of(&dump, path), origin);
    }
}
