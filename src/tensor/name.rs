//! Names of tensors: what wrappers of modules add to them.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Modules that wrappers of PyTorch put into names, also of inner modules.
pub const WRAPPERS: [&str; 3] = ["_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."];

/// Returns a name without a prefix, if it has it; one of [`WRAPPERS`] is left out within the name, too. A
/// name never becomes empty.
pub fn without_prefix<'n>(name: &'n str, prefix: &str) -> Cow<'n, str> {
    let rest = name.strip_prefix(prefix).filter(|rest| !rest.is_empty()).unwrap_or(name);
    let within = format!(".{prefix}");
    match WRAPPERS.contains(&prefix) && rest.contains(&within) {
        true => Cow::Owned(rest.replace(&within, ".")),
        false => Cow::Borrowed(rest),
    }
}

/// Returns for each of `names` the one in `here` that is the same without the prefixes that `strip` leaves
/// out, if there is one.
///
/// The prefixes are left out on the side where more names match then, or on both. An inner name may begin
/// with one, too: `model.layers.0` here may be `model.model.layers.0` there.
///
/// # Errors
/// A name that two of `here` have without the prefixes.
pub fn counterparts<'n>(
    names: &[&'n str],
    here: &[&'n str],
    strip: impl Fn(&'n str) -> Cow<'n, str>,
) -> Result<HashMap<&'n str, &'n str>, String> {
    let plain: HashMap<Cow<'n, str>, &str> = here.iter().map(|&name| (Cow::Borrowed(name), name)).collect();
    let mut bare: HashMap<Cow<'n, str>, &str> = HashMap::new();
    for &name in here {
        let stripped = strip(name);
        if bare.get(&stripped).is_some_and(|other| *other != name) {
            return Err(stripped.into_owned());
        }
        bare.insert(stripped, name);
    }
    let mut best = HashMap::new();
    for (known, is_cut) in [(&plain, false), (&bare, false), (&plain, true), (&bare, true)] {
        let mut taken = HashSet::new();
        let find = |&name: &&'n str| {
            let key = if is_cut { strip(name) } else { Cow::Borrowed(name) };
            known.get(&key).map(|own| (name, *own))
        };
        let found: HashMap<&str, &str> = names.iter().filter_map(find).collect();
        // Two names that became one match nothing.
        if found.len() > best.len() && found.values().all(|own| taken.insert(*own)) {
            best = found;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_left_out_and_a_wrapper_everywhere() {
        let cases = [
            ("module.fc.w", "module.", "fc.w"),
            ("a.module.w", "module.", "a.module.w"),
            ("module.", "module.", "module."),
            ("_orig_mod.l._orig_mod.w", "_orig_mod.", "l.w"),
            ("my_orig_mod.w", "_orig_mod.", "my_orig_mod.w"),
            ("l._fsdp_wrapped_module.w", "_fsdp_wrapped_module.", "l.w"),
            ("w", "", "w"),
        ];
        for (name, prefix, bare) in cases {
            assert_eq!(without_prefix(name, prefix), bare, "{name} {prefix}");
        }
    }

    #[test]
    fn counterparts_are_found_on_either_side() {
        let find = |names: &[&'static str], here: &[&'static str], prefix: &'static str| {
            let found = counterparts(names, here, |name| without_prefix(name, prefix))?;
            let mut found: Vec<_> = found.into_iter().collect();
            found.sort_unstable();
            Ok::<_, String>(found)
        };
        let inner = ["lm_head", "model.layers.0"];
        let outer = ["model.lm_head", "model.model.layers.0"];
        let pairs = |a: [&'static str; 2], b: [&'static str; 2]| Ok(a.into_iter().zip(b).collect::<Vec<_>>());
        assert_eq!(find(&inner, &outer, "model."), pairs(inner, outer));
        assert_eq!(find(&outer, &inner, "model."), pairs(outer, inner));
        // A prefix stands before one name here, and before another there.
        assert_eq!(find(&["m.a", "b"], &["a", "m.b"], "m."), pairs(["b", "m.a"], ["m.b", "a"]));
        assert_eq!(find(&["a"], &["b"], "m."), Ok(vec![]));
        assert_eq!(find(&["a"], &["a", "m.a"], "m."), Err("a".to_owned()));
        // Of names that become one, those that are the same already match.
        assert_eq!(find(&["a", "m.a"], &["a"], "m."), Ok(vec![("a", "a")]));
    }
}
