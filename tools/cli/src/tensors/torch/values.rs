//! The meaning of a pickle's values: classes, attributes, numbers.
//!
//! Everything that takes longer for a larger value counts its steps.

use super::pickle::{Id, Node, Pickle};

impl Pickle {
    /// Returns the class of an object, or the function whose result it is.
    pub(super) fn class(&self, id: Id) -> Option<&str> {
        let call = match self.node(id) {
            Node::Filled(object, _) => *object,
            _ => id,
        };
        match self.node(call) {
            Node::Call(callable, _) => self.name(*callable),
            _ => None,
        }
    }

    /// Returns a name of Python.
    pub(super) fn name(&self, id: Id) -> Option<&str> {
        match self.node(id) {
            Node::Global(name) if self.spend(name.len()) => Some(name),
            _ => None,
        }
    }

    /// Returns what was put into an object.
    pub(super) fn state(&self, id: Id) -> Option<Id> {
        match self.node(id) {
            Node::Filled(_, state) => Some(*state),
            _ => None,
        }
    }

    /// Returns the keys and values of a dict, or of an object that is one.
    pub(super) fn pairs(&self, id: Id) -> &[[Id; 2]] {
        let dict = match self.node(id) {
            Node::Filled(_, contents) => *contents,
            _ => id,
        };
        match self.node(dict) {
            Node::Dict(items) if self.spend(items.len()) => items.as_chunks::<2>().0,
            _ => &[],
        }
    }

    /// Returns the value of a key in [`Pickle::pairs`], or of a slot of an object.
    pub(super) fn value(&self, id: Id, key: &str) -> Option<Id> {
        let is_key = |id: Id| matches!(self.node(id), Node::Text(text) if text == key);
        let find = |id: Id| self.pairs(id).iter().find(|pair| is_key(pair[0])).map(|pair| pair[1]);
        // The state of an object with slots is a pair of dicts.
        let slots = || self.items(self.state(id)?)?.iter().take(2).find_map(|state| find(*state));
        find(id).or_else(slots)
    }

    /// Returns the items of a tuple or a list.
    pub(super) fn items(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::Tuple(items) | Node::List(items) if self.spend(items.len()) => Some(items),
            _ => None,
        }
    }

    /// Returns the dicts of attributes of an object: one, or that of its slots behind it.
    pub(super) fn states<'a>(&'a self, id: &'a Id) -> &'a [Id] {
        let states = self.items(*id).unwrap_or(std::slice::from_ref(id));
        &states[..states.len().min(2)]
    }

    /// Returns the arguments of a call.
    pub(super) fn arguments(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::Call(_, arguments) => self.items(*arguments),
            _ => None,
        }
    }

    /// Returns a text.
    pub(super) fn text(&self, id: Id) -> Option<&str> {
        match self.node(id) {
            Node::Text(text) if self.spend(text.len()) => Some(text),
            _ => None,
        }
    }

    /// Returns a number that is not negative.
    pub(super) fn number(&self, id: Id) -> Option<u64> {
        match self.node(id) {
            Node::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Returns the numbers in a tuple, or in a `torch.Size` of one.
    pub(super) fn numbers(&self, id: Id) -> Option<Vec<u64>> {
        let items = match self.arguments(id) {
            Some([of]) => self.items(*of)?,
            _ => self.items(id)?,
        };
        // They are kept, each in several bytes.
        if !self.spend(items.len().saturating_mul(size_of::<u64>())) {
            return None;
        }
        items.iter().map(|id| self.number(*id)).collect()
    }
}
