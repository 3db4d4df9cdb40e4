//! Finds the tensors in a pickle, in containers, objects and modules.
//!
//! A module is what its `state_dict()` would have. Its other attributes come after all modules, and only what
//! was not there before: a pointer to the parent or a configuration that all layers share leads nowhere new.

use super::container::Storages;
use super::pickle::{Id, Node, Pickle};
use crate::fail::{Failure, Result};
use crate::input::Input;
use crate::tensors::{Dump, Plain};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Most containers around a tensor.
pub(super) const MAX_DEPTH: usize = 256;
/// Most visits of values in containers that were visited before, under another name.
const MAX_REPEATS: usize = 1 << 18;

/// Most integers and texts that are kept.
const MAX_PLAIN: usize = 1 << 20;
/// Steps of visiting an item of a container.
const STEPS_OF_ITEM: usize = 8;
/// Most bytes of all names.
const MAX_NAMES: usize = 512 << 20;

/// Dicts of a module with the entries of its `state_dict()`.
const PARTS: [&str; 3] = ["_parameters", "_buffers", "_modules"];

pub(super) struct Reader<'a> {
    pub(super) input: &'a Arc<Input>,
    pub(super) storages: &'a Storages,
    pub(super) pickle: &'a Pickle,
    pub(super) dump: Dump,
    /// Bytes of views that may still be copied.
    pub(super) copies: &'a mut u64,
    /// Names of all tensors, each with the number of further ones of that name.
    pub(super) names: HashMap<String, u64>,
    /// The containers around the value that is visited.
    way: HashSet<Id>,
    /// Containers, objects and tensors that were visited.
    seen: HashSet<Id>,
    /// Containers and objects that were visited and have no tensors.
    barren: HashSet<Id>,
    repeats: usize,
    /// Bytes of the names of all values.
    named: usize,
    /// Attributes of modules: the module's name, the attribute's, and its value.
    later: VecDeque<(String, String, Id)>,
    /// Whether such attributes are visited.
    is_later: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        input: &'a Arc<Input>,
        storages: &'a Storages,
        pickle: &'a Pickle,
        copies: &'a mut u64,
    ) -> Self {
        Self {
            input,
            storages,
            pickle,
            dump: Dump::default(),
            copies,
            names: HashMap::new(),
            way: HashSet::new(),
            seen: HashSet::new(),
            barren: HashSet::new(),
            repeats: 0,
            named: 0,
            later: VecDeque::new(),
            is_later: false,
        }
    }

    /// Collects the tensors of the whole pickle; `path` is the name of its root.
    pub(super) fn read(mut self, path: &str) -> Result<Dump> {
        self.walk(self.pickle.root(), &mut path.to_owned(), 0)?;
        self.is_later = true;
        while let Some((mut path, key, id)) = self.later.pop_front() {
            self.inside(&key, id, &mut path, 0)?;
        }
        self.pickle.check()?;
        if self.repeats > MAX_REPEATS {
            return Err(Failure::limit(format_args!(
                "its containers hold one another so often that their values have more than {MAX_REPEATS} names"
            )));
        }
        Ok(self.dump)
    }

    /// Collects the tensors of a value; `path` is its name.
    pub(super) fn walk(&mut self, id: Id, path: &mut String, depth: usize) -> Result<()> {
        let pickle = self.pickle;
        pickle.check()?;
        match pickle.node(id) {
            Node::Persistent(_) => self.whole(id, path),
            Node::Int(_) | Node::Text(_) if self.dump.plain.len() >= MAX_PLAIN => {}
            Node::Int(number) => _ = self.dump.plain.insert(path.clone(), Plain::Int(*number)),
            Node::Text(text) if pickle.spend(text.len()) => {
                self.dump.plain.insert(path.clone(), Plain::Text(text.clone()));
            }
            Node::Text(_)
            | Node::None
            | Node::Bool(_)
            | Node::Float(_)
            | Node::Bytes(_)
            | Node::Global(_) => {}
            Node::Dict(_) | Node::List(_) | Node::Tuple(_) | Node::Call(..) | Node::Filled(..) => {
                if depth > MAX_DEPTH {
                    return Err(Failure::limit(format_args!(
                        "more than {MAX_DEPTH} containers around a value"
                    )));
                }
                if self.enter(id) {
                    let before = self.names.len();
                    self.contents(id, path, depth)?;
                    self.way.remove(&id);
                    if self.names.len() == before {
                        self.barren.insert(id);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a container, an object or a tensor is to be visited here.
    fn enter(&mut self, id: Id) -> bool {
        if self.barren.contains(&id) || self.way.contains(&id) {
            return false;
        }
        if !self.seen.insert(id) {
            let is_object = matches!(self.pickle.node(id), Node::Filled(..)) && !self.is_container(id);
            let is_module = self.pickle.state(id).is_some_and(|state| self.is_module(state));
            self.repeats += 1;
            if self.is_later || (is_object && !is_module) || self.repeats > MAX_REPEATS {
                return false;
            }
        }
        self.way.insert(id);
        true
    }

    fn contents(&mut self, id: Id, path: &mut String, depth: usize) -> Result<()> {
        let pickle = self.pickle;
        match pickle.node(id) {
            // A container may be visited often, under several names.
            Node::Dict(items) | Node::List(items) | Node::Tuple(items)
                if !pickle.spend(items.len().saturating_mul(STEPS_OF_ITEM)) => {}
            Node::Dict(items) => {
                for (number, pair) in items.as_chunks::<2>().0.iter().enumerate() {
                    let key = self.key(pair[0], number);
                    self.inside(&key, pair[1], path, depth)?;
                }
            }
            Node::List(items) | Node::Tuple(items) => {
                for (number, item) in items.iter().enumerate() {
                    self.inside(&number.to_string(), *item, path, depth)?;
                }
            }
            Node::Call(callable, arguments) => match (pickle.name(*callable), pickle.items(*arguments)) {
                (Some(name), Some(arguments)) => self.call(name, arguments, path, depth)?,
                _ => {
                    self.walk(*callable, path, depth + 1)?;
                    self.walk(*arguments, path, depth + 1)?;
                }
            },
            Node::Filled(object, contents) => {
                if self.is_module(*contents) {
                    return self.module(*contents, path, depth);
                }
                if !self.array(*object, *contents, path) && !self.sharded(id, path, depth)? {
                    self.walk(*object, path, depth + 1)?;
                    self.walk(*contents, path, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether what was put into an object makes it a module.
    fn is_module(&self, state: Id) -> bool {
        PARTS.iter().all(|part| self.pickle.value(state, part).is_some())
    }

    /// Whether an object is a container of Python: its contents were put into it like attributes.
    fn is_container(&self, id: Id) -> bool {
        let class = self.pickle.class(id).unwrap_or_default();
        class.starts_with("collections.")
            || class.starts_with("builtins.")
            || class.starts_with("__builtin__.")
    }

    /// Collects what a module's `state_dict()` has; the other attributes come later.
    fn module(&mut self, attributes: Id, path: &mut String, depth: usize) -> Result<()> {
        let pickle = self.pickle;
        let transient = pickle.value(attributes, "_non_persistent_buffers_set");
        let transient = transient.map(|id| self.texts(id)).unwrap_or_default();
        for part in PARTS {
            let Some(dict) = pickle.value(attributes, part) else { continue };
            for (number, [key, value]) in pickle.pairs(dict).iter().enumerate() {
                let key = self.key(*key, number);
                if part != "_buffers" || !transient.contains(&*key) {
                    self.inside(&key, *value, path, depth)?;
                }
            }
        }
        for (number, [key, value]) in pickle.pairs(attributes).iter().enumerate() {
            let key = self.key(*key, number);
            if !PARTS.contains(&&*key) && pickle.spend(path.len()) {
                self.later.push_back((path.clone(), key, *value));
            }
        }
        Ok(())
    }

    /// Returns the texts of a list or a set.
    fn texts(&self, id: Id) -> HashSet<&'a str> {
        let items = match self.pickle.arguments(id) {
            Some([items]) => self.pickle.items(*items),
            _ => self.pickle.items(id),
        };
        items.unwrap_or_default().iter().filter_map(|id| self.pickle.text(*id)).collect()
    }

    /// Names an entry of a dict: its key, or its number if the key is empty or no plain value.
    pub(super) fn key(&self, id: Id, number: usize) -> String {
        let pickle = self.pickle;
        match pickle.node(id) {
            Node::Text(key) if key.is_empty() => number.to_string(),
            Node::Text(key) if pickle.spend(key.len()) => key.clone(),
            Node::Int(key) => key.to_string(),
            Node::Float(key) => key.to_string(),
            Node::Bool(true) => "True".to_owned(),
            Node::Bool(false) => "False".to_owned(),
            Node::None => "None".to_owned(),
            Node::Tuple(items) => {
                let plain = |id: &Id| match pickle.node(*id) {
                    Node::Text(key) if pickle.spend(key.len()) => Some(key.clone()),
                    Node::Int(key) => Some(key.to_string()),
                    _ => None,
                };
                let parts: Option<Vec<String>> = items.iter().map(plain).collect();
                parts.map_or_else(|| format!("entry{number}"), |parts| parts.join("."))
            }
            _ => format!("entry{number}"),
        }
    }

    /// Collects the tensors of a value under a key.
    pub(super) fn inside(&mut self, key: &str, id: Id, path: &mut String, depth: usize) -> Result<()> {
        let len = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
        self.named = self.named.saturating_add(path.len());
        if self.named > MAX_NAMES {
            return Err(Failure::limit(format_args!(
                "the names of its values have more than {MAX_NAMES} bytes"
            )));
        }
        self.walk(id, path, depth + 1)?;
        path.truncate(len);
        Ok(())
    }
}
