//! Two sets of tensors that should be those of one model: what differs, and prefixes of wrappers in names.

use crate::fail::{Failure, Result};
use crate::stream::Base;
use crate::tensors::{Dump, NamedTensor, Outline};
#[cfg(feature = "store")]
use gcodec::internal::counterparts;
use gcodec::internal::{WRAPPERS, without_prefix};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Prefixes of names that count for nothing.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Prefixes {
    /// Leave out PREFIX where names of tensors begin with it, such as `module.`; `_orig_mod.` and the modules
    /// of FSDP also within names
    #[arg(long = "strip-prefix", value_name = "PREFIX")]
    prefixes: Vec<String>,
}

/// Most names of each kind in a message.
const NAMED: usize = 3;

impl Prefixes {
    /// Returns a name without the prefixes.
    pub(crate) fn strip<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let mut name = Cow::Borrowed(name);
        for prefix in &self.prefixes {
            name = match name {
                Cow::Borrowed(name) => without_prefix(name, prefix),
                Cow::Owned(name) => Cow::Owned(without_prefix(&name, prefix).into_owned()),
            };
        }
        name
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// Returns the names of tensors without the prefixes.
    pub(crate) fn names<'n>(&self, tensors: &[Outline<'n>]) -> Result<Vec<Cow<'n, str>>> {
        let names: Vec<_> = tensors.iter().map(|tensor| self.strip(tensor.name)).collect();
        check_unique(names.iter().map(|name| &**name))?;
        Ok(names)
    }

    /// Gives the tensors of a file the names of `others` that are the same without the prefixes, on either
    /// side. Returns the file's names by those.
    #[cfg(feature = "store")]
    pub(crate) fn counterparts(&self, others: &[String], dump: &mut Dump) -> Result<HashMap<String, String>> {
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let here: Vec<&str> = dump.tensors.iter().map(NamedTensor::name).collect();
        let found = counterparts(&others, &here, |name| self.strip(name)).map_err(|name| twice(&name))?;
        let own: HashMap<String, String> =
            found.into_iter().map(|(name, own)| (name.to_owned(), own.to_owned())).collect();
        let back: HashMap<&str, &str> = own.iter().map(|(name, own)| (&**own, &**name)).collect();
        dump.rename(|name| back.get(name).map_or(name, |other| *other).to_owned())?;
        Ok(own)
    }

    /// Renames the tensors of a file.
    pub(crate) fn rename(&self, dump: &mut Dump) -> Result<()> {
        if self.prefixes.is_empty() { Ok(()) } else { dump.rename(|name| self.strip(name).into_owned()) }
    }

    /// Returns the tensors of a file as a base of deltas that have prefixes or have none.
    pub(crate) fn base<'d>(&self, tensors: impl Iterator<Item = &'d NamedTensor> + Clone) -> Base<'d> {
        let mut base = Base::new();
        for tensor in tensors.clone() {
            let bare = self.strip(tensor.name());
            for prefix in &self.prefixes {
                base.insert(format!("{prefix}{bare}"), tensor.view());
            }
            base.insert(bare.into_owned(), tensor.view());
        }
        // Its own names count first.
        base.extend(tensors.map(|tensor| (tensor.name().to_owned(), tensor.view())));
        base
    }
}

/// Fails if two names are one without the prefixes.
pub(crate) fn check_unique<'n>(mut names: impl Iterator<Item = &'n str>) -> Result<()> {
    let mut seen = HashSet::new();
    names.find(|name| !seen.insert(*name)).map_or(Ok(()), |name| Err(twice(name)))
}

/// Returns the failure of two names that are one without the prefixes.
fn twice(name: &str) -> Failure {
    Failure::usage(format_args!("without the prefixes of --strip-prefix, tensor {name:?} is there twice"))
}

/// Returns tensors under other names.
pub(crate) fn named<'n>(tensors: Vec<Outline<'n>>, names: &'n [Cow<'n, str>]) -> Vec<Outline<'n>> {
    tensors.into_iter().zip(names).map(|(tensor, name)| Outline { name, ..tensor }).collect()
}

/// Says without which prefix names of two sets agree, and how to leave it out. Names that agree already are
/// not needed.
pub(crate) fn advice<'n>(
    a: impl IntoIterator<Item = &'n str>,
    b: impl IntoIterator<Item = &'n str>,
) -> Option<String> {
    let (a, b): (HashSet<&'n str>, HashSet<&'n str>) = (a.into_iter().collect(), b.into_iter().collect());
    let (of_a, of_b): (HashSet<&'n str>, HashSet<&'n str>) = (&a - &b, &b - &a);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (names, others) in [(&of_a, &of_b), (&of_b, &of_a)] {
        for name in names {
            // From the longest rest on: the shortest prefix counts.
            let mut ends = name.match_indices('.').map(|(at, _)| at + 1);
            if let Some(end) = ends.find(|&end| others.contains(&name[end..])) {
                *counts.entry(&name[..end]).or_default() += 1;
            }
        }
    }
    let within = WRAPPERS.map(|prefix| {
        let bare = |names: &HashSet<&'n str>| -> HashSet<Cow<'n, str>> {
            names.iter().map(|name| without_prefix(name, prefix)).collect()
        };
        (prefix, bare(&of_a).intersection(&bare(&of_b)).count())
    });
    let (prefix, count) = counts.into_iter().chain(within).max_by_key(|(_, count)| *count)?;
    let all = of_a.len().max(of_b.len());
    match count {
        0 => None,
        count if count == all => Some(format!("all names match without {prefix}: --strip-prefix {prefix}")),
        1 => Some(format!("1 more name matches without {prefix}: --strip-prefix {prefix}")),
        count => Some(format!("{count} more names match without {prefix}: --strip-prefix {prefix}")),
    }
}

/// Says what differs where a set of tensors should be that of another: which ones are missing there, extra,
/// or of another type or shape, with counts and the first few. `None` if nothing does.
///
/// `there`: what the other set is, such as `the base`.
pub(crate) fn differences(here: &[Outline<'_>], others: &[Outline<'_>], there: &str) -> Option<String> {
    let of_others: HashMap<&str, &Outline<'_>> = others.iter().map(|t| (t.name, t)).collect();
    let names: HashSet<&str> = here.iter().map(|t| t.name).collect();
    let missing: Vec<String> =
        here.iter().filter(|t| !of_others.contains_key(t.name)).map(|t| format!("{:?}", t.name)).collect();
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("{there} lacks {}", some(&missing)));
    }
    let both = || here.iter().filter_map(|t| Some((t, *of_others.get(t.name)?)));
    let kinds = both().filter(|(a, b)| a.dtype != b.dtype);
    let kinds: Vec<String> =
        kinds.map(|(a, b)| format!("{:?} ({}, there {})", a.name, a.dtype, b.dtype)).collect();
    if !kinds.is_empty() {
        parts.push(format!("{there} has another type of {}", some(&kinds)));
    }
    let shapes = both().filter(|(a, b)| a.shape != b.shape);
    let shapes: Vec<String> =
        shapes.map(|(a, b)| format!("{:?} ({:?}, there {:?})", a.name, a.shape, b.shape)).collect();
    if !shapes.is_empty() {
        parts.push(format!("{there} has another shape of {}", some(&shapes)));
    }
    if parts.is_empty() {
        return None;
    }
    let extra = others.iter().filter(|t| !names.contains(t.name)).map(|t| format!("{:?}", t.name));
    let extra: Vec<String> = extra.collect();
    if !extra.is_empty() {
        parts.push(format!("{there} alone has {}", some(&extra)));
    }
    parts.extend(advice(names.iter().copied(), of_others.keys().copied()));
    Some(parts.join("; "))
}

/// Counts tensors, and names the first few.
fn some(names: &[String]) -> String {
    let first = names[..names.len().min(NAMED)].join(", ");
    match names.len() {
        1 => format!("tensor {first}"),
        len => format!("{len} tensors: {first}{}", if len > NAMED { ", .." } else { "" }),
    }
}

/// Fails if `base` lacks one of these tensors, or has it with another type or shape.
pub(crate) fn check_base(tensors: &[Outline<'_>], base: &Base<'_>) -> Result<()> {
    let bases = base.iter().map(|(name, view)| Outline { name, dtype: view.dtype(), shape: view.shape() });
    match differences(tensors, &bases.collect::<Vec<_>>(), "it") {
        None => Ok(()),
        Some(what) => Err(Failure::usage(format_args!("the base is of another model: {what}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcodec::Dtype;

    fn prefixes(of: &[&str]) -> Prefixes {
        Prefixes { prefixes: of.iter().map(|p| (*p).to_owned()).collect() }
    }

    #[test]
    fn prefixes_are_left_out() {
        let both = prefixes(&["module.", "_orig_mod."]);
        let cases = [
            ("module.fc.w", "fc.w"),
            ("module._orig_mod.fc.w", "fc.w"),
            ("model._orig_mod.layers.0._orig_mod.w", "model.layers.0.w"),
            ("a.module.w", "a.module.w"),
            ("module.", "module."),
            ("my_orig_mod.w", "my_orig_mod.w"),
            ("", ""),
        ];
        for (name, bare) in cases {
            assert_eq!(both.strip(name), bare, "{name}");
        }
    }

    #[test]
    fn advice_names_the_prefix() {
        let of = |a: &[&str], b: &[&str]| {
            let there = advice(a.iter().copied(), b.iter().copied());
            assert_eq!(there, advice(b.iter().copied(), a.iter().copied()), "it is the same from both sides");
            there.unwrap_or_default()
        };
        for prefix in ["module.", "_orig_mod.", "model.", "base_model.model.", "module._orig_mod."] {
            let wrapped = ["fc.w", "fc.b", "emb"].map(|name| format!("{prefix}{name}"));
            let wrapped: Vec<&str> = wrapped.iter().map(String::as_str).collect();
            let text = of(&["fc.w", "fc.b", "emb"], &wrapped);
            assert_eq!(text, format!("all names match without {prefix}: --strip-prefix {prefix}"));
        }
        // Some names have no prefix, and some are on one side alone.
        let text = of(&["model.a", "model.b", "head"], &["a", "b", "head"]);
        assert_eq!(text, "all names match without model.: --strip-prefix model.");
        assert_eq!(
            of(&["model.a", "c"], &["a", "d"]),
            "1 more name matches without model.: --strip-prefix model."
        );
        let text = of(&["l._orig_mod.a", "l._orig_mod.b"], &["l.a", "l.b"]);
        assert_eq!(text, "all names match without _orig_mod.: --strip-prefix _orig_mod.");
        assert_eq!(of(&["a", "b"], &["a", "b"]), "");
        assert_eq!(of(&["a"], &["xa"]), "");
        assert_eq!(of(&[], &["m.a"]), "");
    }

    #[test]
    fn differences_are_counted_and_named() {
        let of = |name, dtype, shape| Outline { name, dtype, shape };
        let here = ["a", "b", "c", "d"].map(|name| of(name, Dtype::F32, &[2]));
        assert_eq!(differences(&here, &here, "the base"), None);
        let there = [of("a", Dtype::Bf16, &[2]), of("b", Dtype::F32, &[2, 1]), of("x", Dtype::F32, &[2])];
        assert_eq!(
            differences(&here, &there, "the base").unwrap(),
            "the base lacks 2 tensors: \"c\", \"d\"; the base has another type of tensor \"a\" (f32, there bf16); \
             the base has another shape of tensor \"b\" ([2], there [2, 1]); the base alone has tensor \"x\""
        );
        let wrapped = ["m.a", "m.b", "m.c", "m.d"].map(|name| of(name, Dtype::F32, &[2]));
        let text = differences(&here, &wrapped, "the base").unwrap();
        assert!(text.contains("lacks 4 tensors: \"a\", \"b\", \"c\", ..;"), "{text}");
        assert!(text.ends_with("all names match without m.: --strip-prefix m."), "{text}");
        // What only the other set has does not matter by itself.
        assert_eq!(differences(&here[..1], &here, "the base"), None);
    }
}
