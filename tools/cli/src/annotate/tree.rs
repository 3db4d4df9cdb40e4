//! Huffman trees of frequency tables (spec, section 7.8).

use std::cmp::Reverse;

use super::ints::Table;
use super::walk::{Result, Stop};

/// A node of a tree.
pub(super) enum Node {
    Leaf(u8),
    Inner(Box<[Node; 2]>),
}

impl Node {
    /// Returns the root of the tree of a table.
    pub(super) fn root(table: &Table) -> Self {
        let leaf = |s: u8| (table.freq[usize::from(s)], usize::from(s), Self::Leaf(s));
        let mut nodes: Vec<_> = (0..=255).map(leaf).filter(|(freq, ..)| *freq > 0).collect();
        // The lightest ones are last.
        for number in 256.. {
            nodes.sort_by_key(|(weight, number, _)| Reverse((*weight, *number)));
            match (nodes.pop(), nodes.pop()) {
                (Some((a, _, left)), Some((b, _, right))) => {
                    nodes.push((a + b, number, Self::Inner(Box::new([left, right]))));
                }
                (Some((_, _, root)), None) => return root,
                _ => break,
            }
        }
        Self::Leaf(0)
    }

    /// Returns the next symbols that pass this node.
    pub(super) fn symbols(&self, count: usize, planes: &mut &[u8]) -> Result<Vec<u8>> {
        let [left, right] = match self {
            Self::Leaf(symbol) => return Ok(vec![*symbol; count]),
            Self::Inner(children) => &**children,
        };
        let plane = planes.split_off(..count.div_ceil(8)).ok_or(Stop("bits of a tree are missing".into()))?;
        let bits: Vec<bool> = (0..count).map(|i| plane[i / 8] >> (i % 8) & 1 == 1).collect();
        let ones = bits.iter().filter(|one| **one).count();
        let mut left = left.symbols(count - ones, planes)?.into_iter();
        let mut right = right.symbols(ones, planes)?.into_iter();
        Ok(bits.into_iter().filter_map(|one| if one { right.next() } else { left.next() }).collect())
    }
}
