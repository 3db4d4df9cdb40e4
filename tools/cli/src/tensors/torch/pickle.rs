//! The values of a pickle, of which one may refer to another any number of times.

use super::machine;
use crate::fail::{Failure, Result};
use std::cell::Cell;

/// Number of a node.
pub(super) type Id = u32;

/// A value of a pickle.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// None, or a value whose contents do not matter here.
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// The length of a byte string.
    Bytes(usize),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    /// Keys and values in turn.
    Dict(Vec<Id>),
    /// A name of Python: `module.name`.
    Global(String),
    /// An object that is stored outside of the pickle.
    Persistent(Id),
    /// The result of a call: callable, arguments.
    Call(Id, Id),
    /// An object, and what was put into it afterwards: its attributes or its items.
    Filled(Id, Id),
}

/// All values of a pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    nodes: Vec<Node>,
    root: Id,
    /// Steps that may still be spent on reading the values.
    steps: Cell<usize>,
}

/// Steps for a pickle of any length: most have fewer values.
const FREE_STEPS: usize = 1 << 26;
/// Further steps for each value, and for each byte of the pickle.
const STEPS_OF_NODE: usize = 64;
const STEPS_OF_BYTE: usize = 8;

impl Pickle {
    /// Returns a value.
    pub(super) fn node(&self, id: Id) -> &Node {
        // Numbers of nodes come from this pickle only.
        &self.nodes[id as usize]
    }

    /// Returns the value of the whole pickle.
    pub(super) fn root(&self) -> Id {
        self.root
    }

    /// Returns what names the objects that are stored outside of the pickle.
    pub(super) fn persistent(&self) -> impl Iterator<Item = Id> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Persistent(id) => Some(*id),
            _ => None,
        })
    }

    /// Reads a pickle of protocol 2 to 5.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let (pickle, len) = Self::read_first(bytes)?;
        match bytes.len() - len {
            0 => Ok(pickle),
            rest => Err(Failure::invalid(format_args!("{rest} bytes behind the pickle, at {len:#x}"))),
        }
    }

    /// Reads the pickle at the beginning of the bytes, and returns it with its length.
    pub(super) fn read_first(bytes: &[u8]) -> Result<(Self, usize)> {
        let (nodes, root, len) = machine::run(bytes)?;
        let of_nodes = nodes.len().saturating_mul(STEPS_OF_NODE);
        let steps = len.saturating_mul(STEPS_OF_BYTE).saturating_add(of_nodes).saturating_add(FREE_STEPS);
        Ok((Self { nodes, root, steps: Cell::new(steps) }, len))
    }

    /// Counts steps of reading: items that are looked at, bytes of texts that are copied. Returns false once
    /// more were made than the pickle is worth: few bytes can refer to a large value very often. From then
    /// on, containers are empty, and [`Self::check`] fails.
    pub(super) fn spend(&self, steps: usize) -> bool {
        let left = self.steps.get().checked_sub(steps);
        self.steps.set(left.unwrap_or(0));
        left.is_some()
    }

    /// Fails if more steps were made than the pickle is worth, so that what was read is not complete.
    pub(super) fn check(&self) -> Result<()> {
        match self.steps.get() {
            0 => Err(Failure::limit("its values refer to one another too often to be read")),
            _ => Ok(()),
        }
    }
}
