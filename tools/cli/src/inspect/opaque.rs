//! Tensors that are listed and not read, with the reasons.

use super::tensor::Tensor;
use crate::output::printable;
use std::collections::BTreeMap;

/// Most element types that are listed.
const TYPES: usize = 6;

/// Returns a line for each element type that was not read: a tensor of it, how many more there are, and why.
pub(crate) fn lines(tensors: &[Tensor]) -> Vec<String> {
    let mut types: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for tensor in tensors {
        if let Some(reason) = &tensor.opaque {
            types.entry((&tensor.dtype, reason)).or_default().push(&tensor.name);
        }
    }
    let shown = types.iter().take(TYPES).map(|((dtype, reason), names)| {
        let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
        printable(&format!("opaque: {}{more} ({dtype}): {reason}", names[0]))
    });
    let mut lines: Vec<String> = shown.collect();
    if types.len() > TYPES {
        lines.push(format!("opaque: {} more element types; --json has all", types.len() - TYPES));
    }
    lines
}
