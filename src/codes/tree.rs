//! Segments whose symbols are in Huffman-shaped wavelet trees (spec, section 7.8): a node of a Huffman tree
//! has a bit for each symbol below it, which tells the child that the symbol is in.
//!
//! Bits of one node tell nothing of those of another, so that vector instructions merge 8 or 64 symbols at a
//! time, where rANS waits for a state. A symbol costs whole bits: usually a hundredth more.

use std::iter::Peekable;

use crate::arch::tree::{self as nodes, Child, ROW};
use crate::arch::{self, Form};
use crate::bits::{Cursor, PlaneReader, put_varint};
use crate::codes::cut::{Cost, bits};
use crate::codes::table::{Counts, Table};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// Symbols of a stretch, which has the bits of all nodes.
const STRETCH: usize = 1 << 15;

/// A child of a node, or the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// A symbol.
    Leaf(u8),
    /// A node, by its number.
    Node(u8),
}

/// The Huffman tree of a table.
pub(super) struct Tree {
    /// Both children of each node, left and right. Children have smaller numbers.
    nodes: Vec<[Link; 2]>,
    root: Link,
}

impl Tree {
    /// Joins the two lightest nodes until one is left. The weight of a symbol is its frequency. Of nodes with
    /// equal weights, symbols come before others, smaller symbols first, and others in the order in which
    /// they were made.
    pub(super) fn new(table: &Table) -> Self {
        let symbols = (0..=255).map(|symbol| (table.freq(symbol), symbol));
        let mut leaves: Vec<(u32, u8)> = symbols.filter(|(freq, _)| *freq > 0).collect();
        leaves.sort_unstable();
        let (mut nodes, mut weights): (Vec<[Link; 2]>, Vec<u32>) = Default::default();
        let mut leaves = leaves.into_iter().peekable();
        let mut oldest = 0;
        loop {
            let Some((weight, left)) = lightest(&mut leaves, &weights, &mut oldest) else {
                // A table has at least one symbol.
                return Self { nodes, root: Link::Leaf(0) };
            };
            let Some((more, right)) = lightest(&mut leaves, &weights, &mut oldest) else {
                return Self { nodes, root: left };
            };
            nodes.push([left, right]);
            weights.push(weight + more);
        }
    }

    /// Returns the cost of symbols with these counts, in 1/65536 bit.
    pub(super) fn cost(&self, counts: &Counts) -> Cost {
        let mut of_nodes: Vec<u64> = Vec::with_capacity(self.nodes.len());
        for children in &self.nodes {
            let of = |link: &Link| match link {
                Link::Leaf(symbol) => counts[usize::from(*symbol)],
                Link::Node(node) => of_nodes[usize::from(*node)],
            };
            of_nodes.push(children.iter().map(of).sum());
        }
        // The bits of a node end with a byte: four bits more.
        let stretches = counts.iter().sum::<u64>().div_ceil(STRETCH as u64);
        bits(of_nodes.iter().sum::<u64>() + 4 * stretches * self.nodes.len() as u64)
    }

    /// Returns the rank of each symbol, which is the number of symbols to its left, and the first rank below
    /// the right child of each node.
    fn ranks(&self) -> ([u8; 256], Vec<u8>) {
        let (mut ranks, mut pivots) = ([0; 256], vec![0; self.nodes.len()]);
        let mut next = 0u8;
        // Links from right to left, and nodes whose left child is done.
        let mut left = vec![(self.root, None)];
        while let Some((link, pivot_of)) = left.pop() {
            if let Some(node) = pivot_of {
                pivots[usize::from(node)] = next;
            }
            match link {
                Link::Leaf(symbol) => {
                    ranks[usize::from(symbol)] = next;
                    next = next.wrapping_add(1);
                }
                Link::Node(node) => {
                    let [first, second] = self.nodes[usize::from(node)];
                    left.extend([(second, Some(node)), (first, None)]);
                }
            }
        }
        (ranks, pivots)
    }
}

/// Takes the lightest node: a leaf, or the oldest of those that were made, whose weights ascend.
fn lightest(
    leaves: &mut Peekable<impl Iterator<Item = (u32, u8)>>,
    weights: &[u32],
    oldest: &mut usize,
) -> Option<(u32, Link)> {
    let made = weights.get(*oldest).copied();
    if let Some((weight, symbol)) = leaves.next_if(|(weight, _)| made.is_none_or(|made| *weight <= made)) {
        return Some((weight, Link::Leaf(symbol)));
    }
    *oldest += 1;
    // There are at most 255 nodes.
    made.map(|weight| (weight, Link::Node((*oldest - 1) as u8)))
}

/// The lists of nodes of a stretch: those of a node and of its children are in different ones, at the same
/// place.
#[derive(Default)]
struct Lists([Vec<u8>; 2]);

impl Lists {
    /// Returns both for `len` symbols, with the room that wide forms need.
    fn room(&mut self, len: usize) -> [&mut [u8]; 2] {
        self.0.each_mut().map(|list| {
            if list.len() < len + ROW {
                list.resize(len + ROW, 0);
            }
            list.as_mut_slice()
        })
    }
}

/// Memory that segments use one after another.
#[derive(Default)]
pub(super) struct Memory {
    lists: Lists,
    /// The planes of a segment.
    bytes: Vec<u8>,
}

/// Appends what follows the table of a segment.
pub(super) fn write(out: &mut Vec<u8>, table: &Table, symbols: &[u8], memory: &mut Memory) {
    let tree = Tree::new(table);
    let Memory { lists, bytes } = memory;
    bytes.clear();
    let (ranks, pivots) = tree.ranks();
    let writer = Writer { nodes: &tree.nodes, pivots: &pivots, form: arch::widest() };
    for stretch in symbols.chunks(STRETCH) {
        if let Link::Node(root) = tree.root {
            let [here, other] = lists.room(stretch.len());
            nodes::map(writer.form, &ranks, stretch, here);
            writer.node(root, stretch.len(), here, other, bytes);
        }
    }
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

struct Writer<'t> {
    nodes: &'t [[Link; 2]],
    pivots: &'t [u8],
    form: Form,
}

impl Writer<'_> {
    /// Appends the bits of a node, whose list of `len` ranks begins `here`, and those of all nodes below.
    fn node(&self, node: u8, len: usize, here: &mut [u8], other: &mut [u8], out: &mut Vec<u8>) {
        if len == 0 {
            return;
        }
        let start = out.len();
        out.resize(start + len.div_ceil(8), 0);
        let bits = &mut out[start..];
        let ones = nodes::divide(self.form, &here[..len], self.pivots[usize::from(node)], bits);
        let bits = &out[start..];
        let (zeros, children) = (len - ones, self.nodes[usize::from(node)]);
        let parts = [(0, zeros, false), (zeros, ones, true)];
        for (child, (at, len, wanted)) in children.iter().zip(parts) {
            if let Link::Node(_) = child {
                nodes::take(self.form, bits, wanted, &here[..zeros + ones], &mut other[at..at + len]);
            }
        }
        for (child, (at, len, _)) in children.iter().zip(parts) {
            if let Link::Node(child) = child {
                self.node(*child, len, &mut other[at..], &mut here[at..], out);
            }
        }
    }
}

/// A segment that is decoded piece by piece.
pub(super) struct Segment<'a> {
    tree: Tree,
    bytes: Cursor<'a>,
    /// Number of symbols in stretches that were not begun.
    left: u64,
    lists: Lists,
    /// The symbols of a stretch, and the number of those that were read.
    ahead: Vec<u8>,
    read: usize,
}

impl<'a> Segment<'a> {
    /// Reads what follows the table of a segment of `n` symbols.
    pub(super) fn read(cursor: &mut Cursor<'a>, table: &Table, n: u64) -> Result<Self> {
        let (tree, bytes) = (Tree::new(table), take_planes(cursor)?);
        Ok(Self { tree, bytes, left: n, lists: Lists::default(), ahead: Vec::new(), read: 0 })
    }

    /// Decodes the next symbols.
    pub(super) fn fill(&mut self, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            if self.read < self.ahead.len() {
                let (part, later) = out.split_at_mut(out.len().min(self.ahead.len() - self.read));
                part.copy_from_slice(&self.ahead[self.read..self.read + part.len()]);
                self.read += part.len();
                out = later;
                continue;
            }
            let len = in_memory(self.left.min(STRETCH as u64));
            self.left -= len as u64;
            if out.len() >= len {
                let (here, later) = out.split_at_mut(len);
                self.decode(here)?;
                out = later;
            } else {
                let mut ahead = std::mem::take(&mut self.ahead);
                ahead.resize(len, 0);
                self.decode(&mut ahead)?;
                (self.ahead, self.read) = (ahead, 0);
            }
        }
        Ok(())
    }

    /// Decodes a stretch.
    fn decode(&mut self, out: &mut [u8]) -> Result<()> {
        let [here, other] = self.lists.room(out.len());
        let mut reader = Reader { nodes: &self.tree.nodes, bytes: &mut self.bytes, form: arch::widest() };
        match self.tree.root {
            Link::Leaf(symbol) => out.fill(symbol),
            Link::Node(root) => {
                let parent = reader.parent(root, out.len(), here, other)?;
                reader.merge(&parent, here, out);
            }
        }
        Ok(())
    }

    /// Checks that the segment ends after the symbols decoded so far.
    pub(super) fn finish(self) -> Result<()> {
        match self.bytes.remaining() {
            0 => Ok(()),
            _ => Err(Error::format(FormatErrorKind::BadCode, self.bytes.offset())),
        }
    }
}

/// Takes the planes of a segment.
pub(super) fn take_planes<'a>(cursor: &mut Cursor<'a>) -> Result<Cursor<'a>> {
    let len = cursor.varint()?;
    cursor.sub(len, "tree")
}

struct Reader<'t, 'a> {
    nodes: &'t [[Link; 2]],
    bytes: &'t mut Cursor<'a>,
    form: Form,
}

/// A node whose children are decoded: their lists are one after another.
struct Parent<'a> {
    bits: &'a [u8],
    /// Symbols of the left child.
    zeros: usize,
    children: [Link; 2],
}

impl<'a> Reader<'_, 'a> {
    /// Decodes the children of a node of `len` symbols into `lists`. Their own children have their lists in
    /// `others`, and so on in turn.
    fn parent(&mut self, node: u8, len: usize, lists: &mut [u8], others: &mut [u8]) -> Result<Parent<'a>> {
        let offset = self.bytes.offset();
        if len.div_ceil(8) > self.bytes.remaining() {
            return Err(Error::format(FormatErrorKind::BadCode, offset));
        }
        let bits = self.bytes.take(len.div_ceil(8) as u64)?;
        PlaneReader::check_padding(bits, len as u64, 1, offset)?;
        let ones = nodes::count_ones(self.form, bits);
        let parent = Parent { bits, zeros: len - ones, children: self.nodes[usize::from(node)] };
        for (child, (at, len)) in parent.children.iter().zip([(0, parent.zeros), (parent.zeros, ones)]) {
            if let Link::Node(child) = *child
                && len > 0
            {
                let below = self.parent(child, len, &mut others[at..], &mut lists[at..])?;
                self.merge(&below, &others[at..], &mut lists[at..at + len]);
            }
        }
        Ok(parent)
    }

    /// Fills `out` with the symbols of a node, whose children's lists begin `lists`.
    fn merge(&self, parent: &Parent<'_>, lists: &[u8], out: &mut [u8]) {
        let Parent { bits, zeros, children: [left, right] } = *parent;
        let [left, right] = [(left, 0), (right, zeros)].map(|(child, at)| match child {
            Link::Leaf(symbol) => Child::Leaf(symbol),
            Link::Node(_) => Child::List(&lists[at..]),
        });
        nodes::merge(self.form, bits, left, right, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::count;
    use crate::random;

    /// Symbols whose likelihoods halve from one to the next.
    fn halving(len: u64) -> Vec<u8> {
        (0..len).map(|i| 100 + random::word(1, 0, i).leading_zeros() as u8).collect()
    }

    fn round_trip(symbols: &[u8]) -> (Vec<u8>, Table) {
        let table = Table::from_counts(&count(symbols)).unwrap();
        let mut out = Vec::new();
        write(&mut out, &table, symbols, &mut Default::default());
        for step in [1, 32, 1000, 4096, STRETCH, symbols.len()] {
            let mut cursor = Cursor::new(&out, 0, "tree");
            let mut segment = Segment::read(&mut cursor, &table, symbols.len() as u64).unwrap();
            let mut back = vec![0; symbols.len()];
            back.chunks_mut(step).try_for_each(|out| segment.fill(out)).unwrap();
            assert!(back == symbols, "{step}");
            segment.finish().unwrap();
            cursor.finish().unwrap();
        }
        (out, table)
    }

    #[test]
    fn trees_bring_symbols_back() {
        let noise: Vec<u8> = (0..5000).map(|i| random::word(2, 0, i) as u8).collect();
        for symbols in
            [&[7][..], &[7; 100], &[0, 255], &noise, &halving(3), &halving(2 * STRETCH as u64 + 77)]
        {
            round_trip(symbols);
        }
    }

    #[test]
    fn the_cost_is_that_of_the_bytes() {
        let symbols = halving(3 * STRETCH as u64);
        let (out, table) = round_trip(&symbols);
        let cost = in_memory(Tree::new(&table).cost(&count(&symbols)) / bits(8));
        assert!(out.len().abs_diff(cost) < 64, "{} {cost}", out.len());
        assert!(cost < symbols.len() / 4 + 300, "two bits for each symbol");
    }

    #[test]
    fn equal_weights_are_joined_in_order() {
        let mut counts = [0; 256];
        counts[10..14].fill(1);
        let tree = Tree::new(&Table::from_counts(&counts).unwrap());
        let leaves = |a, b| [Link::Leaf(a), Link::Leaf(b)];
        // The first symbol has the frequency that the others leave.
        let freq = |symbol| Table::from_counts(&counts).unwrap().freq(symbol);
        assert_eq!([freq(10), freq(11)], [1024, 1024]);
        assert_eq!(tree.nodes, [leaves(10, 11), leaves(12, 13), [Link::Node(0), Link::Node(1)]]);
        assert_eq!((tree.root, tree.ranks().1), (Link::Node(2), vec![1, 3, 2]));
    }

    /// TRE-1, and no wrong bit gives the same symbols.
    #[test]
    fn wrong_planes_are_refused() {
        let symbols = halving(1000);
        let (out, table) = round_trip(&symbols);
        let planes = take_planes(&mut Cursor::new(&out, 0, "tree")).unwrap().take_rest();
        let read = |planes: &[u8]| {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, planes.len() as u64);
            bytes.extend_from_slice(planes);
            let mut segment = Segment::read(&mut Cursor::new(&bytes, 0, "tree"), &table, 1000)?;
            let mut back = vec![0; 1000];
            segment.fill(&mut back)?;
            segment.finish().map(|()| back)
        };
        assert_eq!(read(planes).unwrap(), symbols);
        for len in 0..planes.len() {
            assert_eq!(read(&planes[..len]).unwrap_err().name(), "bad_code", "{len}");
        }
        assert_eq!(read(&[planes, &[0]].concat()).unwrap_err().name(), "bad_code");
        for bit in 0..8 * planes.len() {
            let mut wrong = planes.to_vec();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&wrong).map_or(true, |back| back != symbols), "{bit}");
        }
    }
}
