//! The tree of modules.

use super::app::Order;
use crate::inspect::Tensor;
use std::collections::{BTreeMap, BTreeSet};

/// A row of the tree that is shown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    /// Names of the modules from the root, joined with dots.
    pub(super) path: String,
    /// Last part of the name.
    pub(super) name: String,
    pub(super) depth: usize,
    pub(super) bits: f64,
    /// Square of the norm, if it is known.
    pub(super) squares: Option<f64>,
    pub(super) kept: Option<u64>,
    pub(super) elements: u64,
    /// Number of the tensor, or `None` for a module.
    pub(super) tensor: Option<usize>,
    pub(super) is_open: bool,
    /// Whether a value is NaN or infinite.
    pub(super) is_bad: bool,
}

impl Node {
    fn of(name: &str, path: &str, depth: usize) -> Self {
        Self {
            path: path.to_owned(),
            name: name.to_owned(),
            depth,
            bits: 0.0,
            squares: Some(0.0),
            kept: Some(0),
            elements: 0,
            tensor: None,
            is_open: false,
            is_bad: false,
        }
    }

    fn add(&mut self, tensor: &Tensor) {
        self.bits += tensor.bits();
        if tensor.opaque.is_some() {
            self.elements += tensor.elements;
            self.kept = self.kept.zip(tensor.kept).map(|(sum, kept)| sum + kept);
            return;
        }
        self.squares = self.squares.zip(tensor.norm).map(|(sum, norm)| sum + norm * norm);
        self.kept = self.kept.zip(tensor.kept).map(|(sum, kept)| sum + kept);
        self.elements += tensor.elements;
        self.is_bad |= tensor.first_bad().is_some() || tensor.error.is_some();
    }
}

/// Returns the rows to show: the open modules and their content, or all tensors whose names contain `filter`.
pub(super) fn rows(tensors: &[Tensor], open: &BTreeSet<String>, filter: &str, order: Order) -> Vec<Node> {
    let mut found = Vec::new();
    if !filter.is_empty() {
        let word = filter.to_lowercase();
        for (number, tensor) in
            tensors.iter().enumerate().filter(|(_, t)| t.name.to_lowercase().contains(&word))
        {
            let mut node = Node::of(&tensor.name, &tensor.name, 0);
            node.add(tensor);
            node.tensor = Some(number);
            found.push(node);
        }
        sort(&mut found, order);
        return found;
    }
    let all: Vec<usize> = (0..tensors.len()).collect();
    level(tensors, &all, "", 0, open, order, &mut found);
    found
}

/// Most modules inside each other.
const MAX_DEPTH: usize = 32;

fn level(
    tensors: &[Tensor],
    numbers: &[usize],
    prefix: &str,
    depth: usize,
    open: &BTreeSet<String>,
    order: Order,
    out: &mut Vec<Node>,
) {
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for &number in numbers {
        let rest = tensors[number].name.get(prefix.len()..).unwrap_or_default();
        // Deeper names are not divided any more.
        let end = if depth < MAX_DEPTH { rest.find(['.', '/']).filter(|&at| at > 0) } else { None };
        groups.entry(&rest[..end.unwrap_or(rest.len())]).or_default().push(number);
    }
    let mut nodes = Vec::new();
    for (name, members) in groups {
        let path = format!("{prefix}{name}");
        let mut node = Node::of(name, &path, depth);
        members.iter().for_each(|&number| node.add(&tensors[number]));
        match members[..] {
            // A module of one tensor needs no level of its own.
            [one] => {
                node.tensor = Some(one);
                node.name = tensors[one].name[prefix.len()..].to_owned();
                node.path = tensors[one].name.clone();
            }
            _ => node.is_open = open.contains(&path),
        }
        nodes.push((node, members));
    }
    nodes.sort_by(|a, b| compare(&a.0, &b.0, order));
    for (node, members) in nodes {
        let inner = (node.is_open && node.tensor.is_none()).then(|| node.path.clone());
        out.push(node);
        if let Some(path) = inner {
            // The separator is one byte, whichever it is.
            let same = members.iter().filter(|&&m| tensors[m].name.len() > path.len());
            let same: Vec<usize> = same.copied().collect();
            let prefix = same.first().map_or(path.clone(), |&m| tensors[m].name[..=path.len()].to_owned());
            level(tensors, &same, &prefix, depth + 1, open, order, out);
        }
    }
}

fn sort(nodes: &mut [Node], order: Order) {
    nodes.sort_by(|a, b| compare(a, b, order));
}

fn compare(a: &Node, b: &Node, order: Order) -> std::cmp::Ordering {
    let density = |n: &Node| n.kept.map_or(-1.0, |kept| kept as f64 / n.elements.max(1) as f64);
    match order {
        Order::Bytes => b.bits.total_cmp(&a.bits),
        Order::Norm => b.squares.unwrap_or(-1.0).total_cmp(&a.squares.unwrap_or(-1.0)),
        Order::Density => density(b).total_cmp(&density(a)),
        Order::Name => crate::order::compare(&a.path, &b.path),
    }
}
