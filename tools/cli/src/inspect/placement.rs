//! Where tensors of distributed checkpoints lie.

use super::tensor::Tensor;
use crate::output::printable;
use std::collections::BTreeMap;

/// Most placements that are listed.
const PLACEMENTS: usize = 3;

/// Returns a line for each placement, the most frequent first: a tensor of it, how many more there are, and
/// their chunks and files.
pub(crate) fn lines(tensors: &[Tensor]) -> Vec<String> {
    let mut placements: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for tensor in tensors {
        if let Some(placement) = &tensor.placement {
            placements.entry(placement).or_default().push(&tensor.name);
        }
    }
    let mut placements: Vec<_> = placements.into_iter().collect();
    placements.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let shown = placements.iter().take(PLACEMENTS).map(|(placement, names)| {
        let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
        printable(&format!("placement: {}{more}: {placement}", names[0]))
    });
    let mut lines: Vec<String> = shown.collect();
    if placements.len() > PLACEMENTS {
        lines.push(format!("placement: {} more; --json has all", placements.len() - PLACEMENTS));
    }
    lines
}
