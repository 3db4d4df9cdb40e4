//! Integer codes: split-plane Rice, and tokens or symbols through an interleaved rANS coder (spec, section
//! 7). Every support and every values kind uses them. This layer knows nothing about tensors.

mod count;
mod cut;
mod integers;
mod ints;
mod joined;
mod lists;
mod rans;
mod read;
mod reference;
mod rice;
mod table;
mod tokens;
mod tree;

pub(crate) use count::{count, count_symbols};
pub(crate) use integers::Integers;
pub use ints::CODINGS;
pub(crate) use ints::{
    Coder, PACKED, Role, Scratch, SymbolPlan, TokenPlan, entropy_tokens, pays, write_entropy_symbols,
    write_entropy_tokens, write_exponents, write_grouped_ints, write_ints, write_small_ints, write_symbols,
};
pub(crate) use lists::{read_lists, write_lists};
pub(crate) use read::{
    Decoder, PIECE, SymbolReader, beyond_core, read_entropy_symbols, read_entropy_tokens, read_grouped_ints,
    read_ints, read_symbols, validate_entropy_tokens, validate_grouped_ints, validate_ints,
};
pub(crate) use rice::{RiceRun, best_parameter, read_run, validate_run, write_run};
pub(crate) use table::{Counts, Table, log2};
#[cfg(test)]
pub(crate) use tokens::token;
pub(crate) use tokens::{cost_of_counts, count_tokens, raw_cost, token_cost};

/// The kinds and codings that a stream has (spec, core.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Profile {
    /// Any.
    #[default]
    Full,
    /// Only the kinds and codings of the core profile, which a small reader knows.
    Core,
}

impl Profile {
    /// Each profile with its name on the command line.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Full, "full"), (Self::Core, "core")];

    /// The profile's name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(profile, _)| *profile == self).map_or("full", |(_, name)| name)
    }

    /// Returns the profile of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(profile, _)| *profile)
    }
}

/// How much time an encoder takes to find a smaller form. Every reader reads every form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Effort {
    /// Symbols are in trees also where these cost a hundredth more. Those of byte planes have no references
    /// to their rows and columns, and segments of at least 2^16.
    Fast,
    /// The smallest form that is found.
    #[default]
    Default,
}

impl Effort {
    /// Each effort with its name in codecs and on the command line.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Fast, "fast"), (Self::Default, "default")];

    /// Returns the effort of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(effort, _)| *effort)
    }
}

/// How the integers of a values kind are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Entropy {
    /// The smallest coding.
    #[default]
    Auto,
    /// Fields of fixed width: larger, but each field has a known position.
    Packed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_and_efforts_have_names() {
        for (profile, name) in [(Profile::Full, "full"), (Profile::Core, "core")] {
            assert_eq!((profile.name(), Profile::from_name(name)), (name, Some(profile)));
        }
        for (effort, name) in [(Effort::Fast, "fast"), (Effort::Default, "default")] {
            assert_eq!(Effort::from_name(name), Some(effort));
        }
        assert_eq!((Profile::from_name("other"), Effort::from_name("other")), (None, None));
    }
}
