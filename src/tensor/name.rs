//! Names of tensors: what wrappers of modules add to them.

use std::borrow::Cow;

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
}
