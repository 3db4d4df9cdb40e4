//! How tensors that a receiver holds differ from those of a version.

use std::collections::{BTreeSet, HashMap, HashSet};

use gcodec::frame::TensorInfo;
use gcodec::internal::{WRAPPERS, without_prefix};

use crate::Store;
use crate::error::{Error, Result};
use crate::plan::plan;
use crate::tensor::Tensor;
use crate::weights::{Model, Replica};

/// Names that a message has, at most.
const NAMES: usize = 4;
/// Prefixes that wrappers of modules add to names.
const PREFIXES: [&str; 3] = ["module.", "_orig_mod.", "model."];

/// Checks that tensors have the names, types and shapes of a version's table.
pub(crate) fn check(model: &Model, version: u64, given: &[(String, Tensor)]) -> Result<()> {
    let mut seen = HashSet::new();
    if let Some((name, _)) = given.iter().find(|(name, _)| !seen.insert(name.as_str())) {
        return Err(Error::input(format!("two tensors have the name {name:?}")));
    }
    let extra: BTreeSet<&str> = seen.iter().copied().filter(|name| model.find(name).is_none()).collect();
    let names = model.infos.iter().map(|info| info.name.as_str());
    let missing: Vec<&str> = names.clone().filter(|name| !seen.contains(name)).collect();
    let mut wrong = Vec::new();
    if !extra.is_empty() {
        wrong.push(format!("not in the version: {}", list(extra)));
    }
    if !missing.is_empty() {
        wrong.push(format!("missing: {}", list(missing)));
    }
    let others = given.iter().filter_map(|(name, tensor)| {
        let wanted = &model.infos[model.find(name)?];
        let found = TensorInfo::new(name.as_str(), tensor.view().dtype(), tensor.view().shape());
        let form = |info: &TensorInfo| format!("{} {:?}", info.dtype, info.shape);
        (found != *wanted).then(|| format!("{name:?} is {}, in the version {}", form(&found), form(wanted)))
    });
    let others: Vec<String> = others.collect();
    wrong.extend(others.iter().take(NAMES).cloned());
    if others.len() > NAMES {
        wrong.push(format!("{} more have another type or shape", others.len() - NAMES));
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let hint = prefix(&seen, &names.collect()).map_or_else(String::new, |prefix| {
        let how = "strip_prefix in Python, --strip-prefix of `gcodec`";
        format!(": all names match without `{prefix}`; leave it out ({how})")
    });
    Err(Error::input(format!("the tensors are not those of version {version}: {}{hint}", wrong.join("; "))))
}

/// Returns the first names of a list, as a message has them.
fn list<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let first: Vec<String> = names.iter().take(NAMES).map(|name| format!("{name:?}")).collect();
    match names.len() > NAMES {
        true => format!("{}, .. ({} tensors)", first.join(", "), names.len()),
        false => first.join(", "),
    }
}

/// Returns the prefix without which two sets of names are the same, if there is one. One of both has it.
fn prefix(some: &HashSet<&str>, others: &HashSet<&str>) -> Option<String> {
    let (one, other) = (some.iter().min()?, others.iter().min()?);
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    let found = long.strip_suffix(*short).filter(|prefix| prefix.ends_with('.'));
    let pairs = PREFIXES.iter().flat_map(|a| PREFIXES.iter().map(move |b| format!("{a}{b}")));
    let known = PREFIXES.iter().chain(&WRAPPERS).map(|&prefix| prefix.to_owned()).chain(pairs);
    let mut all = found.map(str::to_owned).into_iter().chain(known);
    let all_cut = |names: &HashSet<&'_ str>, prefix: &str| -> BTreeSet<String> {
        names.iter().map(|name| without_prefix(name, prefix).into_owned()).collect()
    };
    let whole = |names: &HashSet<&'_ str>| all_cut(names, "");
    all.find(|prefix| {
        let cut = (all_cut(some, prefix), all_cut(others, prefix));
        let same = cut.0 == whole(others) || whole(some) == cut.1 || cut.0 == cut.1;
        same && (cut.0.len(), cut.1.len()) == (some.len(), others.len())
    })
}

impl Store {
    /// Returns the error for a replica whose tensors have other elements than its version. To name them, it
    /// builds the version: group by group, if the way to it has one table.
    pub(crate) fn other_values(&self, held: &Replica) -> Error {
        let version = held.version;
        match self.differing(held) {
            Ok(names) if !names.is_empty() => {
                let (count, all) = (names.len(), held.tensors.len());
                let names = list(names.iter().map(String::as_str));
                Error::input(format!(
                    "{count} of {all} tensors have other elements than in version {version}: {names}"
                ))
            }
            // The version cannot be built any more, or is not what its record says.
            _ => Error::input(format!("the tensors have other elements than in version {version}")),
        }
    }

    /// Returns the names of the tensors that have other elements than in the replica's version.
    fn differing(&self, held: &Replica) -> Result<Vec<String>> {
        let plan = plan(&self.remote, None, held.version, &HashSet::new())?;
        let mut digests = HashMap::new();
        for groups in self.runs(&[&plan], 0)? {
            let mut built = self.walk(&plan, self.start(&plan, None)?, &groups)?;
            built.digest();
            let known = built.digests.iter().enumerate();
            digests.extend(known.filter_map(|(n, digest)| Some((n, (*digest)?))));
        }
        let differs = |n: &usize| digests.get(n).is_some_and(|digest| *digest != held.digests[*n]);
        let names = (0..held.digests.len()).filter(differs).map(|n| held.model.infos[n].name.clone());
        Ok(names.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_found_on_either_side() {
        let find = |some: &[&str], others: &[&str]| {
            let (some, others) = (some.iter().copied().collect(), others.iter().copied().collect());
            let found = prefix(&some, &others);
            assert_eq!(prefix(&others, &some), found);
            found
        };
        assert_eq!(find(&["a.w", "b"], &["module.b", "module.a.w"]).as_deref(), Some("module."));
        assert_eq!(find(&["a", "b"], &["net.inner.a", "net.inner.b"]).as_deref(), Some("net.inner."));
        // Names that begin with the prefix themselves.
        let inner = ["model.layers.0", "lm_head"];
        assert_eq!(find(&inner, &["model.model.layers.0", "model.lm_head"]).as_deref(), Some("model."));
        // Only some have it.
        assert_eq!(find(&["layers.0", "lm_head"], &inner).as_deref(), Some("model."));
        assert_eq!(find(&["a", "b"], &["module.a", "module.c"]), None);
        assert_eq!(find(&["a"], &["xa"]), None);
        // An inner module was compiled.
        assert_eq!(find(&["a", "l.w"], &["a", "l._orig_mod.w"]).as_deref(), Some("_orig_mod."));
        assert_eq!(find(&["a"], &[]), None);
        assert_eq!(find(&["a", "module.a"], &["a", "b"]), None);
    }
}
