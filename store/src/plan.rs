//! The cheapest way to a version: from what the receiver holds, or from an anchor.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::{Error, Result};
use crate::layout::{self, Object, Record};
use crate::remote::Remote;

/// Cost of a request in bytes: about as many as arrive in the time of a round trip.
const REQUEST: u64 = 16 << 10;
/// Records that are read at a time.
const BATCH: u64 = 16;

/// A step from one version to another.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// 0 for an anchor.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) objects: Vec<Object>,
    /// The table of tensors of version `to`.
    pub(crate) model: Object,
}

impl Step {
    pub(crate) fn is_delta(&self) -> bool {
        self.from > 0
    }

    fn cost(&self) -> u64 {
        let requests = self.objects.len() as u64 + 1;
        layout::size(&self.objects).saturating_add(requests.saturating_mul(REQUEST))
    }
}

/// A way to a version.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) record: Record,
}

impl Plan {
    /// Whether an object is one of its.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.steps.iter().flat_map(|step| &step.objects).any(|object| object.path == path)
    }

    /// Whether all its steps have the table of tensors of the version that it leads to.
    pub(crate) fn has_one_table(&self) -> bool {
        self.steps.iter().all(|step| step.model == self.record.model)
    }

    /// Returns the bytes of its objects.
    pub(crate) fn bytes(&self) -> u64 {
        self.steps.iter().map(|step| layout::size(&step.objects)).fold(0, u64::saturating_add)
    }
}

/// Records of versions, read when they are needed.
pub(crate) struct Records<'r> {
    remote: &'r Remote,
    known: HashMap<u64, Record>,
}

impl<'r> Records<'r> {
    pub(crate) fn new(remote: &'r Remote) -> Self {
        Self { remote, known: HashMap::new() }
    }

    /// Returns a record. Those of the versions down to `least` are read ahead.
    pub(crate) fn get(&mut self, version: u64, least: u64) -> Result<&Record> {
        if !self.known.contains_key(&version) {
            let first = least.max(version.saturating_sub(BATCH - 1)).max(1).min(version);
            let wanted: Vec<u64> = (first..=version).filter(|v| !self.known.contains_key(v)).collect();
            let names: Vec<String> = wanted.iter().map(|v| layout::version_path(*v)).collect();
            for ((number, name), record) in
                wanted.iter().zip(&names).zip(self.remote.texts::<Record>(&names)?)
            {
                let record = record.ok_or_else(|| Error::Missing { path: name.clone() })?;
                self.known.insert(*number, record.check(name, *number)?);
            }
        }
        self.known.get(&version).ok_or_else(|| Error::Missing { path: layout::version_path(version) })
    }
}

/// The cheapest known way from a version to the target.
#[derive(Clone)]
struct Way {
    cost: u64,
    step: Option<Step>,
}

/// Finds the cheapest way to `target` from `held`, or from an anchor. Objects in `dead` are not used.
pub(crate) fn plan(remote: &Remote, held: Option<u64>, target: u64, dead: &HashSet<String>) -> Result<Plan> {
    let held = held.filter(|&held| held <= target);
    let mut records = Records::new(remote);
    let record = records.get(target, target)?.clone();
    let far = held.is_none_or(|held| target - held > 2);
    let folds = if far { folds_into(remote, held, target) } else { HashMap::new() };
    let alive = |objects: &[Object]| objects.iter().all(|object| !dead.contains(&object.path));
    // Ways that are not walked yet, by the version where they begin. Every step leads to a lower version.
    let mut open = BTreeMap::from([(target, Way { cost: 0, step: None })]);
    let mut done: BTreeMap<u64, Way> = BTreeMap::new();
    let mut best: Option<(u64, u64, Option<Step>)> = None;
    while let Some((version, way)) = open.pop_last() {
        let is_cheaper =
            |best: &Option<(u64, u64, Option<Step>)>, cost| best.as_ref().is_none_or(|b| cost < b.0);
        if !is_cheaper(&best, way.cost) {
            continue;
        }
        done.insert(version, way.clone());
        if held == Some(version) {
            best = Some((way.cost, version, None));
            continue;
        }
        let record = records.get(version, if far { held.unwrap_or(0) + 1 } else { version })?;
        if let Some(anchor) = record.anchor.as_ref().filter(|anchor| alive(anchor)) {
            let (objects, model) = (anchor.clone(), record.model.clone());
            let step = Step { from: 0, to: version, objects, model };
            let cost = way.cost.saturating_add(step.cost());
            if is_cheaper(&best, cost) {
                best = Some((cost, version, Some(step)));
            }
        }
        let mut steps = Vec::new();
        if let Some(delta) = &record.delta {
            let (from, objects, model) = (record.parent, delta.clone(), record.model.clone());
            steps.push(Step { from, to: version, objects, model });
        }
        for &from in folds.get(&version).into_iter().flatten() {
            let path = layout::fold_path(from, version);
            if let Some(fold) = remote.text::<Record>(&path)? {
                let fold = fold.check(&path, version)?;
                if let Some(objects) = fold.delta.filter(|_| fold.parent == from) {
                    steps.push(Step { from, to: version, objects, model: fold.model });
                }
            }
        }
        for step in steps.into_iter().filter(|step| alive(&step.objects)) {
            let cost = way.cost.saturating_add(step.cost());
            let known = open.get(&step.from).is_none_or(|known| cost < known.cost);
            if known && held.is_none_or(|held| step.from >= held || best.is_none()) {
                open.insert(step.from, Way { cost, step: Some(step) });
            }
        }
    }
    let (_, mut at, anchor) = best.ok_or(Error::Unreachable { version: target })?;
    let mut steps: Vec<Step> = anchor.into_iter().collect();
    while at < target {
        let step =
            done.get(&at).and_then(|way| way.step.clone()).ok_or(Error::Unreachable { version: target })?;
        at = step.to;
        steps.push(step);
    }
    Ok(Plan { steps, record })
}

/// Returns the folds that end between `held` and `target`: for each end, where they begin.
fn folds_into(remote: &Remote, held: Option<u64>, target: u64) -> HashMap<u64, Vec<u64>> {
    let mut folds: HashMap<u64, Vec<u64>> = HashMap::new();
    // A server of files over HTTP has no listing. The fold of exactly these versions can be asked for.
    let listed = remote.list(layout::FOLDS).unwrap_or_default();
    let mut names: Vec<String> = listed.into_iter().map(|object| object.name).collect();
    let exact = held.map(|held| layout::fold_path(held, target));
    names.extend(exact.filter(|exact| !names.contains(exact)).into_iter().collect::<Vec<_>>());
    for (from, to) in names.iter().filter_map(|name| layout::parse_fold(name)) {
        if from < to && to <= target && held.is_none_or(|held| from >= held) {
            folds.entry(to).or_default().push(from);
        }
    }
    folds
}
