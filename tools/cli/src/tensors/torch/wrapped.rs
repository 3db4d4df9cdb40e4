//! Tensors of classes that wrap other tensors: distributed ones have a name and a placement, of others only
//! their class knows the elements.

use super::elements::Element;
use super::pickle::{Id, Node};
use super::rebuild::named;
use super::walk::Reader;
use crate::fail::Result;
use crate::tensors::Opaque;
use std::collections::HashSet;

/// Most inner tensors that a reason names.
const MAX_NAMED: usize = 4;
/// Steps of looking at a value once.
const STEPS_OF_VISIT: usize = 32;

impl Reader<'_> {
    /// Adds the tensor of a class that wraps others: `_rebuild_wrapper_subclass(class, type, size, ..)`.
    pub(super) fn wrapper(
        &mut self,
        arguments: &[Id],
        state: Option<Id>,
        path: &mut String,
        depth: usize,
    ) -> Result<()> {
        let pickle = self.pickle;
        let class = arguments.first().and_then(|id| pickle.name(*id)).unwrap_or_default();
        let class = class.rsplit('.').next().unwrap_or_default().to_owned();
        let dtype = arguments
            .get(1)
            .and_then(|id| pickle.name(*id))
            .map_or("unknown", |n| Element::of_type(n).name());
        let shape = arguments.get(2).and_then(|id| pickle.numbers(*id));
        let states = state.as_ref().map_or(&[][..], |state| pickle.states(state));
        if class == "ShardedTensor" && states.first().is_some_and(|shards| self.is_shards(*shards)) {
            return self.shards(states[0], path, depth);
        }
        let value = |key: &str| states.iter().find_map(|state| pickle.value(*state, key));
        // Of these, the inner tensor is what this process has of the elements.
        let inner = match class.as_str() {
            "DTensor" => value("_local_tensor"),
            "AsyncCollectiveTensor" => value("elem"),
            _ => None,
        };
        if let Some(inner) = inner {
            self.walk(inner, path, depth + 1)?;
            if let Some(placement) = value("_spec").and_then(|spec| self.placement(spec, shape.as_deref())) {
                self.dump.placements.insert(named(path), placement);
            }
            return Ok(());
        }
        let attributes = states.iter().flat_map(|state| pickle.pairs(*state));
        let attributes: Vec<(&str, u64)> = attributes
            .filter_map(|[key, value]| Some((pickle.text(*key)?, self.bytes_in(*value))))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        let names: Vec<&str> = attributes.iter().take(MAX_NAMED).map(|(name, _)| *name).collect();
        let reason = match &names[..] {
            [] => format!("a tensor of the class {class}, which alone knows its elements"),
            names => format!("a tensor of the class {class}, which computes it from {}", names.join(", ")),
        };
        let bytes = attributes.iter().map(|(_, bytes)| bytes).sum();
        self.add_opaque(Opaque::new(named(path), dtype, shape, bytes, reason));
        Ok(())
    }

    /// Says which part of a distributed tensor its inner tensor is.
    fn placement(&self, spec: Id, shape: Option<&[u64]>) -> Option<String> {
        let pickle = self.pickle;
        let placements = pickle.items(pickle.value(spec, "placements")?)?;
        let mut is_whole = true;
        let named = placements.iter().map(|id| {
            let class = pickle.class(*id).unwrap_or_default().rsplit('.').next().unwrap_or_default();
            is_whole &= class == "Replicate";
            match pickle.value(*id, "dim").and_then(|dim| pickle.number(dim)) {
                Some(dim) => format!("{class}({dim})"),
                None => class.to_owned(),
            }
        });
        let named = named.collect::<Vec<_>>().join(", ");
        let shape: Vec<String> = shape?.iter().map(u64::to_string).collect();
        match is_whole {
            true => Some(named),
            false => Some(format!("{named}: one rank's part of {}", shape.join("x"))),
        }
    }

    /// Collects the local parts of a `ShardedTensor` that is no tensor. Returns whether the object is one.
    pub(super) fn sharded(&mut self, id: Id, path: &mut String, depth: usize) -> Result<bool> {
        let pickle = self.pickle;
        let is_one = pickle.class(id).is_some_and(|class| class.ends_with(".ShardedTensor"));
        let shards = pickle.state(id).and_then(|state| pickle.items(state)?.first().copied());
        match shards.filter(|shards| is_one && self.is_shards(*shards)) {
            Some(shards) => self.shards(shards, path, depth).map(|()| true),
            None => Ok(false),
        }
    }

    /// Whether a value is a list of shards.
    fn is_shards(&self, id: Id) -> bool {
        let shards = self.pickle.items(id).unwrap_or_default();
        !shards.is_empty() && shards.iter().all(|shard| self.pickle.value(*shard, "tensor").is_some())
    }

    /// Collects the shards of a tensor: one has its name, several have their positions.
    fn shards(&mut self, shards: Id, path: &mut String, depth: usize) -> Result<()> {
        let shards = self.pickle.items(shards).unwrap_or_default();
        let tensors: Vec<Id> =
            shards.iter().filter_map(|shard| self.pickle.value(*shard, "tensor")).collect();
        match &tensors[..] {
            [one] => {
                self.walk(*one, path, depth + 1)?;
                self.dump.placements.insert(named(path), "one rank's part of a ShardedTensor".to_owned());
                Ok(())
            }
            parts => self.parts(&[], parts, path, depth),
        }
    }

    /// Returns the bytes of the storages in a value.
    fn bytes_in(&self, id: Id) -> u64 {
        let (mut seen, mut left, mut keys) = (HashSet::new(), vec![id], HashSet::new());
        let mut sum = 0;
        while let Some(id) = left.pop() {
            if !seen.insert(id) || !self.pickle.spend(STEPS_OF_VISIT) {
                continue;
            }
            match self.pickle.node(id) {
                Node::Persistent(_) => {
                    if let Ok((_, range)) = self.storage(id)
                        && keys.insert(range.start)
                    {
                        sum += range.end - range.start;
                    }
                }
                Node::Dict(items) | Node::List(items) | Node::Tuple(items)
                    if self.pickle.spend(items.len()) =>
                {
                    left.extend(items);
                }
                Node::Call(a, b) | Node::Filled(a, b) => left.extend([*a, *b]),
                _ => {}
            }
        }
        sum
    }
}
