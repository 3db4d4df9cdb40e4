//! The updates of all inputs, by step and round.

use super::Args;
use crate::fail::{Failure, InFile, Result};
use crate::fit;
use crate::input::Input;
use crate::learned;
use crate::stream::{Names, explain, only};
use crate::tensors::Outline;
use gcodec::Limits;
use gcodec::block::SetId;
use gcodec::frame::{FrameKind, IndexSet, Manifest, UpdateHeader, UpdatePart};
use gcodec::stream::{Body, Event, SliceReader};
use gcodec_latent::has_latent;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

/// All parts of one sender's update.
pub(super) struct Update<'a> {
    input: usize,
    pub(super) weight: f64,
    pub(super) parts: Vec<UpdatePart<'a>>,
}

impl<'a> Update<'a> {
    pub(super) fn header(&self) -> &UpdateHeader {
        &self.parts[0].header
    }

    pub(super) fn manifest(&self) -> &Arc<Manifest> {
        &self.parts[0].manifest
    }

    /// Returns the file of its input.
    pub(super) fn path<'p>(&self, args: &'p Args) -> &'p Path {
        &args.inputs[self.input]
    }
}

/// Updates by step and round: those of one turn are summed together.
pub(super) type Turns<'a> = BTreeMap<(u64, u64), Vec<Update<'a>>>;

/// Reads the updates of all inputs.
pub(super) fn all<'a>(
    args: &Args,
    inputs: &'a [Input],
    sets: &SentSets,
    limits: &Limits,
) -> Result<Vec<Update<'a>>> {
    let mut all = Vec::new();
    for (number, (bytes, path)) in inputs.iter().zip(&args.inputs).enumerate() {
        all.extend(updates(args, number, bytes, sets, limits).in_file(path)?);
    }
    Ok(all)
}

/// Sorts updates into their turns. `plain`: those with latent codes, without them.
pub(super) fn turns<'a>(
    args: &Args,
    all: Vec<Update<'a>>,
    plain: &'a [Option<Vec<u8>>],
    limits: &Limits,
) -> Result<Turns<'a>> {
    let mut turns = Turns::new();
    for (mut update, plain) in all.into_iter().zip(plain) {
        if let Some(stream) = plain {
            update.parts = parts(stream, limits)?;
        }
        if args.by_input {
            let sender = update.input as u64;
            update.parts.iter_mut().for_each(|part| part.header.sender = sender);
        }
        let header = update.header();
        turns.entry((header.step, header.round)).or_default().push(update);
    }
    if turns.is_empty() {
        let failure = match args.step {
            Some(step) => Failure::usage(format_args!("no update has step {step}")),
            None => Failure::invalid("there is no update"),
        };
        let names: Vec<String> = args.inputs.iter().map(|path| path.display().to_string()).collect();
        return Err(failure.about(names.join(", ")));
    }
    Ok(turns)
}

/// Index sets by their ids, each with its manifest.
pub(super) type SentSets = HashMap<SetId, (IndexSet, Arc<Manifest>)>;

/// Frames that index sets need.
const SETS: [FrameKind; 2] = [FrameKind::MANIFEST, FrameKind::INDEX_SET];

/// Reads the index sets of all inputs: only the leader of a step sends its set, the others refer to it.
pub(super) fn index_sets(inputs: &[Input], limits: &Limits) -> SentSets {
    let mut sets = SentSets::new();
    for bytes in inputs {
        let mut manifests = HashMap::new();
        // Sets need only their manifests; errors of an input are reported when its updates are read.
        for event in SliceReader::new(&only(bytes, &SETS), limits.clone()) {
            match event {
                Ok(Event::Frame(_, Body::Manifest(manifest))) => {
                    manifests.insert(manifest.id(), manifest);
                }
                Ok(Event::Frame(_, Body::IndexSet(set, id, _))) => {
                    let manifest = manifests.get(&set.manifest).map(Arc::clone);
                    sets.extend(manifest.map(|manifest| (id, (*set, manifest))));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
    sets
}

/// Reads the complete updates of one input.
fn updates<'a>(
    args: &Args,
    input: usize,
    bytes: &'a [u8],
    sets: &SentSets,
    limits: &Limits,
) -> Result<Vec<Update<'a>>> {
    let (mut all, mut names) = (Vec::<Update<'a>>::new(), Names::default());
    let mut reader = SliceReader::new(bytes, limits.clone());
    for (id, (set, manifest)) in sets {
        reader.add_index_set(*id, set, manifest)?;
    }
    for event in reader {
        let event = event.map_err(|e| names.explain(e))?;
        names.see(&event);
        let Event::Frame(_, Body::Update(part)) = event else { continue };
        if args.step.is_some_and(|step| part.header.step != step) {
            continue;
        }
        match all.last_mut() {
            Some(update) if part.part > 0 => update.parts.push(*part),
            _ => {
                let weight = args.weights.get(input).copied().unwrap_or(1.0);
                all.push(Update { input, weight, parts: vec![*part] });
            }
        }
    }
    Ok(all)
}

/// Returns each update with latent codes as a stream of its own, without them.
pub(super) fn without_codes(
    args: &Args,
    inputs: &[Input],
    updates: &[Update<'_>],
    limits: &Limits,
) -> Result<Vec<Option<Vec<u8>>>> {
    let mut models = args.models.models()?;
    for (number, (input, path)) in inputs.iter().zip(&args.inputs).enumerate() {
        if updates.iter().any(|update| update.input == number && has_latent(&update.parts)) {
            learned::add_inline(&mut models, input, limits).in_file(path)?;
        }
    }
    let plain = |update: &Update<'_>| {
        learned::decoded(&update.parts, &models).map_err(|f| f.in_file(update.path(args)))
    };
    updates.iter().map(plain).collect()
}

/// Returns the parts of the only update of a stream.
fn parts<'a>(stream: &'a [u8], limits: &Limits) -> Result<Vec<UpdatePart<'a>>> {
    let mut parts = Vec::new();
    for event in SliceReader::new(stream, limits.clone()) {
        if let Event::Frame(_, Body::Update(part)) = event? {
            parts.push(*part);
        }
    }
    Ok(parts)
}

/// Returns the manifest of the updates of one turn; says which tensors differ if they have several.
pub(super) fn check_manifests<'u>(args: &Args, updates: &'u [Update<'_>]) -> Result<&'u Arc<Manifest>> {
    let (first, manifest) = (&updates[0], updates[0].manifest());
    let Some(other) = updates.iter().find(|update| update.manifest().id() != manifest.id()) else {
        return Ok(manifest);
    };
    let outlines = |update: &'u Update<'_>| update.manifest().tensors().iter().map(Outline::from).collect();
    let (here, there): (Vec<_>, Vec<_>) = (outlines(other), outlines(first));
    let (path, of_first) = (other.path(args), first.path(args).display().to_string());
    let differ = fit::differences(&here, &there, &of_first)
        .or_else(|| fit::differences(&there, &here, &path.display().to_string()));
    let what = differ.unwrap_or_else(|| "the same tensors in another order".to_owned());
    let message = format!("it has another manifest than {of_first}: {what}");
    Err(Failure::usage(message).in_file(path))
}

/// Adds the tensor's name and advice to a failure.
pub(super) fn explained(args: &Args, error: gcodec::Error, manifest: &Manifest) -> Failure {
    let mut failure = explain(error, Some(manifest));
    if failure.message.contains("was added before") && !args.by_input {
        failure.message.push_str("; --by-input numbers senders by their inputs");
    }
    failure
}
