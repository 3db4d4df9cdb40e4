//! `gcodec audit`: shows the changes of a run of deltas, step by step and layer by layer.

mod change;
mod table;

use crate::fail::{Failure, InFile, Outcome, Result};
use crate::fit::{self, Prefixes};
use crate::inspect::source;
use crate::learned::ModelArgs;
use crate::options::{LimitArgs, check_one_stdin};
use crate::order;
use crate::origin::Origin;
use crate::output::{print, warn};
use crate::progress::Progress;
use crate::stream::Updates;
use crate::tensors::versions;
use crate::tensors::{Any, Dump, Labels, NamedTensor, Outline, folder};
use change::{Bits, Change, History};
use gcodec::Limits;
use gcodec_latent::Models;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, hash_map::Entry};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Show how weights change in a training run: how many elements, by how much, how often, at which cost
///
/// Reads streams of deltas, and files of whole weights: each is compared with the one before. An update of a
/// stream that is not a delta counts as whole weights.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A change is an element whose bits differ. Its size is in units in the last place (ulp): 1 is the
next number of its type. `again` is the share of the changed elements that changed in an earlier step of
the run; `at once` is the share that changed in the step directly before. `bits` are bits of the
step's blocks for each changed element. The bytes of a block that spans several tensors are divided
among them by changed elements, and the bits of such tensors are marked with ~.

Examples:
  gcodec audit sync.gcu --base step0000.safetensors
  gcodec audit sync.gcu --base step0000.safetensors --group 2
  gcodec audit weights/ --csv > changes.csv")]
pub(crate) struct Args {
    /// Streams, files of whole weights, and folders, in the order of the run: one folder alone has the files
    /// of a run, each of several is a checkpoint
    #[arg(required = true, value_name = "CHAIN")]
    inputs: Vec<PathBuf>,
    /// Weights before the first delta
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// Add up the tensors of each module: names that agree in their first DEPTH parts
    #[arg(long, value_name = "DEPTH", value_parser = clap::value_parser!(u8).range(1..))]
    group: Option<u8>,
    /// Only the first N tensors
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV: a line for each tensor of each step
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    prefixes: Prefixes,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// A step of the run.
#[derive(Debug, Serialize)]
struct Step {
    file: String,
    step: Option<u64>,
    sender: Option<u64>,
    /// Whether step or sender are from the name of a file or folder.
    guessed: bool,
    #[serde(flatten)]
    change: Change,
    /// Tensors that changed.
    tensors: Vec<Row>,
}

/// A tensor or a module.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// Elements that changed in any step, where the row is of all steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    ever: Option<u64>,
    #[serde(flatten)]
    change: Change,
}

/// Changes of a run.
#[derive(Debug, Default, Serialize)]
struct Audit {
    elements: u64,
    /// Elements that changed in any step.
    ever: u64,
    steps: Vec<Step>,
    /// Tensors or modules over all steps.
    tensors: Vec<Row>,
    /// Whether the rows are modules.
    #[serde(skip)]
    is_grouped: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    check_one_stdin(args.inputs.iter().chain(&args.base))?;
    let limits = args.limits.limits();
    let models = args.models.models()?;
    let prefixes = args.prefixes.clone();
    let mut chain = Chain { group: args.group.map(usize::from), models, prefixes, ..Chain::default() };
    if let Some(path) = &args.base {
        let mut base = Dump::open_carrying(path)?;
        args.prefixes.rename(&mut base).in_file(path)?;
        chain.weights = base.tensors.into_iter().map(keyed).collect();
    }
    let files = files(&args.inputs)?;
    let progress = Progress::new(files.len() as u64, "comparing", false);
    for path in &files {
        chain.add_file(path, &limits)?;
        progress.add(1);
    }
    let fault = chain.fault.take();
    let audit = chain.finish();
    if audit.steps.is_empty() {
        return Err(Failure::usage("one version alone changes nothing; --base FILE is the one before"));
    }
    print(match (args.json, args.csv) {
        (true, _) => serde_json::to_string_pretty(&audit).map_err(std::io::Error::from)? + "\n",
        (_, true) => table::csv(&audit)?,
        _ => table::text(&audit, args.top),
    })?;
    fault.map_or(Ok(Outcome::Well), Err)
}

/// Returns the files of the run. Each of several folders is a checkpoint; one alone has those of a run.
fn files(inputs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    match inputs {
        [_] => source::files(inputs),
        _ => source::files(&inputs.iter().map(|path| checkpoint(path)).collect::<Vec<_>>()),
    }
}

/// Returns the file of a checkpoint for which a folder stands; another path stays.
fn checkpoint(path: &Path) -> PathBuf {
    let found = path.is_dir().then(|| folder::of(path).ok()).flatten();
    found.unwrap_or_else(|| path.to_owned())
}

fn keyed(tensor: NamedTensor) -> (String, NamedTensor) {
    (tensor.name().to_owned(), tensor)
}

/// The latest weights of a run, and what changed up to them.
#[derive(Default)]
struct Chain {
    group: Option<usize>,
    models: Models,
    prefixes: Prefixes,
    weights: BTreeMap<String, NamedTensor>,
    history: HashMap<String, History>,
    bits: Bits,
    totals: BTreeMap<String, Change>,
    steps: Vec<Step>,
    /// Step of the latest version, if it is known.
    step: Option<u64>,
    is_disordered: bool,
    /// The folder of the latest version, if it has the name of one.
    folder: Option<PathBuf>,
    /// The first version of which something is missing.
    fault: Option<Failure>,
}

impl Chain {
    fn add_file(&mut self, path: &Path, limits: &Limits) -> Result<()> {
        let opened = self.step(path).transpose().unwrap_or_else(|| Any::open_carrying(path));
        self.folder = versions::folder_with(path);
        let input = match opened {
            Ok(Any::Stream(input)) => input,
            Ok(Any::Tensors(mut dump)) => {
                self.prefixes.rename(&mut dump).in_file(path)?;
                self.drop_resized(path, &mut dump);
                let origin = Origin::of(&dump, path);
                // The rest is compared all the same.
                self.fault = self.fault.take().or(dump.fault().map(|failure| failure.in_file(path)));
                return self.add(path, origin, dump.tensors, None).in_file(path);
            }
            Err(failure) if failure.has_nothing() => {
                warn(format_args!("{failure}; left out"));
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        let updates = Updates::open(&input, limits).in_file(path)?.with_models(self.models.clone());
        let prefixes = self.prefixes.clone();
        for number in 0..updates.len() {
            let header = updates.header(number);
            let origin = Origin::of_update(header);
            let cost = match header.is_delta() {
                true => Some(Cost {
                    names: updates
                        .manifest(number)
                        .tensors()
                        .iter()
                        .map(|t| prefixes.strip(&t.name))
                        .collect(),
                    blocks: updates.blocks(number).in_file(path)?,
                }),
                false => None,
            };
            let base = self.prefixes.base(self.weights.values());
            let tensors = updates.decode(number, |_| true, &base).in_file(path)?;
            let mut dump = Dump { tensors, ..Dump::default() };
            self.prefixes.rename(&mut dump).in_file(path)?;
            self.add(path, origin, dump.tensors, cost.as_ref()).in_file(path)?;
        }
        Ok(())
    }

    /// Reads a version in a folder whose differences are from the version before, which is at hand.
    fn step(&self, path: &Path) -> Result<Option<Any>> {
        let Some(folder) = versions::folder_with(path) else { return Ok(None) };
        let step = versions::Step::at(&folder)?.filter(|_| self.prefixes.is_empty());
        let before = |base| folder.with_file_name(versions::folder_of(base));
        let is_next = |base| self.folder.as_ref() == Some(&before(base));
        let Some(step) = step.filter(|step| is_next(step.difference.base)) else { return Ok(None) };
        let tensors = self.weights.values().map(NamedTensor::copied).collect();
        step.resolve(Dump { tensors, ..Dump::default() }).map(|dump| Some(Any::Tensors(dump)))
    }

    /// Takes new opaque tensors, and those of another number of bytes, as they are: text may grow.
    fn drop_resized(&mut self, path: &Path, dump: &mut Dump) {
        let labels = Labels::of(&dump.metadata);
        if self.weights.is_empty() || labels.is_empty() {
            return;
        }
        for tensor in std::mem::take(&mut dump.tensors) {
            let outline = Outline::from(&tensor);
            let shape = |tensor: &NamedTensor| (tensor.view().dtype(), tensor.view().shape().to_vec());
            let old = self.weights.get(tensor.name());
            if labels.find(&outline).is_none() || old.is_some_and(|old| shape(old) == shape(&tensor)) {
                dump.tensors.push(tensor);
                continue;
            }
            let (path, dtype) = (path.display(), labels.dtype(&outline));
            warn(format_args!(
                "{path}: tensor {:?} ({dtype}) is opaque, and not as in the version before: not compared",
                tensor.name()
            ));
            self.history.remove(tensor.name());
            self.weights.insert(tensor.name().to_owned(), tensor);
        }
    }

    /// Adds a version. Tensors that it does not have stay as they are.
    fn add(
        &mut self,
        path: &Path,
        origin: Origin,
        tensors: Vec<NamedTensor>,
        cost: Option<&Cost<'_>>,
    ) -> Result<()> {
        if let (Some(before), Some(step)) = (self.step, origin.step)
            && step < before
            && !std::mem::replace(&mut self.is_disordered, true)
        {
            let path = path.display();
            warn(format_args!(
                "{path}: step {step} after step {before}; give the files in the order of the run"
            ));
        }
        self.step = origin.step.or(self.step);
        if self.weights.is_empty() {
            self.weights = tensors.into_iter().map(keyed).collect();
            return Ok(());
        }
        let mut rows: BTreeMap<String, Change> = BTreeMap::new();
        let mut new: BTreeMap<String, NamedTensor> = tensors.into_iter().map(keyed).collect();
        let before: Vec<_> = self.weights.values().map(Outline::from).collect();
        let here: Vec<_> = new.values().map(Outline::from).collect();
        if let Some(what) = fit::differences(&here, &before, "it") {
            return Err(Failure::usage(format_args!("the version before is of another model: {what}")));
        }
        for (name, old) in &mut self.weights {
            let elements = old.view().elements();
            let history = match self.history.entry(name.clone()) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(History::new(&mut self.bits, elements)?),
            };
            let mut change = match new.remove(name) {
                None => {
                    history.rest();
                    Change { elements, ..Change::default() }
                }
                Some(tensor) => {
                    let change = history.compare(&mut self.bits, &old.view(), &tensor.view())?;
                    *old = tensor;
                    change
                }
            };
            change.bytes = cost.map(|_| 0.0);
            rows.insert(name.clone(), change);
        }
        if let Some(cost) = cost {
            cost.divide(&mut rows);
        }
        let mut modules: BTreeMap<String, Change> = BTreeMap::new();
        for (name, change) in rows {
            *modules.entry(module(&name, self.group)).or_default() += &change;
        }
        let mut rows = modules;
        let mut sum = Change::default();
        for (name, change) in &rows {
            sum += change;
            *self.totals.entry(name.clone()).or_default() += change;
        }
        // A step's blocks span no tensor of another step.
        sum.apportioned = false;
        rows.retain(|_, change| change.changed > 0 || change.bytes > Some(0.0));
        let tensors = rows.into_iter().map(|(name, change)| Row { name, ever: None, change }).collect();
        let file = path.display().to_string();
        let Origin { step, sender, guessed, .. } = origin;
        self.steps.push(Step { file, step, sender, guessed, change: sum, tensors });
        Ok(())
    }

    fn finish(self) -> Audit {
        let mut ever: BTreeMap<String, u64> = BTreeMap::new();
        for (name, history) in &self.history {
            *ever.entry(module(name, self.group)).or_default() += history.ever();
        }
        let mut tensors: Vec<Row> = self
            .totals
            .into_iter()
            .map(|(name, change)| Row { ever: ever.get(&name).copied(), name, change })
            .collect();
        let cost = |row: &Row| (row.change.bytes.unwrap_or_default(), row.change.changed);
        tensors.sort_by(|row_a, row_b| {
            let ((a, changed_a), (b, changed_b)) = (cost(row_a), cost(row_b));
            let names = || order::compare(&row_a.name, &row_b.name);
            b.total_cmp(&a).then(changed_b.cmp(&changed_a)).then_with(names)
        });
        Audit {
            elements: self.weights.values().map(|t| t.view().elements()).sum(),
            ever: ever.values().sum(),
            steps: self.steps,
            tensors,
            is_grouped: self.group.is_some(),
        }
    }
}

/// Blocks of an update.
struct Cost<'a> {
    /// Names of all tensors.
    names: Vec<Cow<'a, str>>,
    /// Tensors that each block spans, and its bytes.
    blocks: Vec<(Range<u64>, u64)>,
}

impl Cost<'_> {
    /// Gives each tensor its bytes. Those of a block that spans several tensors are divided by changed
    /// elements, or by elements if none changed.
    fn divide(&self, rows: &mut BTreeMap<String, Change>) {
        for (span, bytes) in &self.blocks {
            let names = &self.names[span.start as usize..span.end as usize];
            let sum =
                |of: fn(&Change) -> u64| names.iter().filter_map(|n| rows.get(&**n)).map(of).sum::<u64>();
            let (of, all): (fn(&Change) -> u64, u64) = match sum(|row| row.changed) {
                0 => (|row| row.elements, sum(|row| row.elements)),
                changed => (|row| row.changed, changed),
            };
            for name in names {
                let Some(row) = rows.get_mut(&**name) else { continue };
                let share = of(row) as f64 / all.max(1) as f64;
                row.bytes = Some(row.bytes.unwrap_or_default() + *bytes as f64 * share);
                row.apportioned |= names.len() > 1;
            }
        }
    }
}

/// Returns the module of a tensor: the first parts of its name, or all of it.
fn module(name: &str, depth: Option<usize>) -> String {
    match depth {
        None => name.to_owned(),
        Some(depth) => name.split(['.', '/']).take(depth).collect::<Vec<_>>().join("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_each_block_are_those_of_its_tensors() {
        let names = ["a", "b", "c", "d"].map(Cow::Borrowed).into();
        let cost = Cost { names, blocks: vec![(0..2, 100), (2..3, 50), (2..4, 30)] };
        let row = |changed| Change { elements: 10, changed, ..Change::default() };
        let rows = [("a", row(1)), ("b", row(3)), ("c", row(0)), ("d", row(0))];
        let mut rows: BTreeMap<String, Change> = rows.map(|(name, row)| (name.to_owned(), row)).into();
        cost.divide(&mut rows);
        let bytes: Vec<_> = rows.values().map(|row| (row.bytes, row.apportioned)).collect();
        assert_eq!(bytes, [(Some(25.0), true), (Some(75.0), true), (Some(65.0), true), (Some(15.0), true)]);
    }
}
