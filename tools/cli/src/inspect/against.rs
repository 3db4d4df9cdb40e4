//! Loss of compression, tensor by tensor.

use super::report::Wanted;
use super::{source, view};
use crate::compare::{Errors, Sums};
use crate::fail::{Failure, InFile, Result};
use crate::input::{DEFAULT_MAX_BYTES, Input};
use crate::naming::{Origin, did_you_mean};
use crate::options::is_wanted;
use crate::output::{Align, Table, thousands};
use crate::stream::{Base, Updates};
use crate::tensors::kind::is_stream;
use crate::tensors::{Dump, NamedTensor};
use gcodec::Limits;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Loss of one tensor.
#[derive(Debug, Serialize)]
pub(crate) struct Loss {
    pub(crate) name: String,
    pub(crate) elements: u64,
    /// L2 norm of the original.
    pub(crate) norm: f64,
    #[serde(flatten)]
    pub(crate) errors: Errors,
    /// Share of the original's energy (sum of squares) in elements that are not zero in the update.
    pub(crate) energy_kept: f64,
}

/// Loss of one update.
#[derive(Debug, Serialize)]
pub(crate) struct UpdateLoss {
    pub(crate) step: Option<u64>,
    pub(crate) sender: Option<u64>,
    #[serde(flatten)]
    pub(crate) loss: Loss,
}

/// The losses of all tensors, added up over the updates, and the loss of each update.
#[derive(Debug, Serialize)]
pub(crate) struct Losses {
    pub(crate) tensors: Vec<Loss>,
    pub(crate) all: Loss,
    pub(crate) updates: Vec<UpdateLoss>,
}

impl Losses {
    /// Returns the relative errors of the updates whose step and sender are known.
    pub(crate) fn by_update(&self) -> BTreeMap<(u64, u64), f64> {
        let error = |u: &UpdateLoss| Some(((u.step?, u.sender?), u.loss.errors.relative_l2));
        self.updates.iter().filter_map(error).collect()
    }
}

/// The tensors of an update that is compared with its original.
struct Decoded {
    step: Option<u64>,
    sender: Option<u64>,
    tensors: Vec<NamedTensor>,
}

/// Compares updates of the files with their originals. A file is the original of one update, a folder has
/// those of several, each with its step and sender.
pub(crate) fn losses(paths: &[PathBuf], original: &Path, wanted: &Wanted, limits: &Limits) -> Result<Losses> {
    let files = source::files(paths)?;
    let mut compared = Compared::default();
    match (original.is_dir(), &files[..]) {
        (false, [path]) => {
            let (a, origin) = opened(original, wanted, limits)?;
            let b = decoded(path, origin, wanted, limits)?;
            compared.add(&a, &b).in_file(path)?;
        }
        (false, _) => {
            return Err(Failure::usage("one original is that of one file; a folder has those of several"));
        }
        (true, _) => {
            for original in source::files(&[original.to_owned()])? {
                let (a, origin) = opened(&original, wanted, limits)?;
                if !wanted.update(origin.step, origin.sender) {
                    continue;
                }
                let of = Wanted { step: origin.step, sender: origin.sender, ..wanted.clone() };
                for path in &files {
                    if has_update(path, &of, limits)? {
                        let b = decoded(path, origin, &of, limits)?;
                        compared.add(&a, &b).in_file(path)?;
                    }
                }
            }
            if compared.updates.is_empty() {
                return Err(Failure::usage("no update has the step and sender of an original"));
            }
        }
    }
    Ok(compared.finish())
}

fn opened(original: &Path, wanted: &Wanted, limits: &Limits) -> Result<(Dump, Origin)> {
    let dump = Dump::open_any(original, limits, &wanted.models)?;
    let origin = Origin::of(&dump.metadata, original);
    Ok((dump, origin))
}

/// Sums over the updates that were compared.
#[derive(Default)]
struct Compared {
    tensors: Vec<(String, Sums)>,
    rows: HashMap<String, usize>,
    updates: Vec<UpdateLoss>,
}

impl Compared {
    fn add(&mut self, a: &Dump, b: &Decoded) -> Result<()> {
        let others: HashMap<&str, &NamedTensor> = b.tensors.iter().map(|t| (t.name(), t)).collect();
        let common: Vec<(&NamedTensor, &NamedTensor)> =
            a.tensors.iter().filter_map(|t| Some((t, *others.get(t.name())?))).collect();
        if common.is_empty() {
            let names = || a.tensors.iter().map(NamedTensor::name);
            let hint = b.tensors.first().map_or(String::new(), |t| did_you_mean(t.name(), names()));
            return Err(Failure::usage(format_args!("it has no tensor of the original{hint}")));
        }
        if let Some((t, _)) = common.iter().find(|(a, b)| a.view().shape() != b.view().shape()) {
            let what = format!("tensor {:?} has another shape than the original", t.name());
            return Err(Failure::usage(what));
        }
        let sums: Vec<Sums> =
            common.par_iter().map(|(a, b)| Sums::of(&a.view(), &b.view()).unwrap_or_default()).collect();
        let mut all = Sums::default();
        for ((tensor, _), sum) in common.iter().zip(&sums) {
            all.add(sum);
            let row = *self.rows.entry(tensor.name().to_owned()).or_insert(self.tensors.len());
            if row == self.tensors.len() {
                self.tensors.push((tensor.name().to_owned(), Sums::default()));
            }
            self.tensors[row].1.add(sum);
        }
        let loss = loss(format!("all {}", common.len()), &all);
        self.updates.push(UpdateLoss { step: b.step, sender: b.sender, loss });
        Ok(())
    }

    fn finish(self) -> Losses {
        let mut all = Sums::default();
        self.tensors.iter().for_each(|(_, sums)| all.add(sums));
        let name = format!("all {}", self.tensors.len());
        let tensors = self.tensors.into_iter().map(|(name, sums)| loss(name, &sums)).collect();
        Losses { tensors, all: loss(name, &all), updates: self.updates }
    }
}

/// Whether a file has an update of this step and sender.
fn has_update(path: &Path, wanted: &Wanted, limits: &Limits) -> Result<bool> {
    let of = Wanted { quick: true, tensor: None, ..wanted.clone() };
    Ok(!source::read(path, &of, limits)?.0.updates.is_empty())
}

fn loss(name: String, sums: &Sums) -> Loss {
    Loss {
        name,
        elements: sums.elements,
        norm: sums.norm_a(),
        errors: sums.errors(),
        energy_kept: sums.energy_kept(),
    }
}

/// Decodes the one update that is wanted. Of several, it is the one of the original's step and sender.
fn decoded(path: &Path, origin: Origin, wanted: &Wanted, limits: &Limits) -> Result<Decoded> {
    let input = Input::open(path, DEFAULT_MAX_BYTES)?;
    let is_name = |name: &str| is_wanted(wanted.tensor.as_ref(), name);
    if !is_stream(&input) {
        let dump = Dump::open(path)?;
        let Origin { step, sender, .. } = Origin::of(&dump.metadata, path);
        let tensors = dump.tensors.into_iter().filter(|t| is_name(t.name())).collect();
        return Ok(Decoded { step, sender, tensors });
    }
    let updates = Updates::open(&input, limits).in_file(path)?.with_models(wanted.models.clone());
    let matching = |step: Option<u64>, sender: Option<u64>| -> Vec<usize> {
        let of = Wanted { step, sender, ..Wanted::default() };
        (0..updates.len())
            .filter(|&i| of.update(Some(updates.header(i).step), Some(updates.header(i).sender)))
            .collect()
    };
    let mut found = matching(wanted.step, wanted.sender);
    if found.len() > 1 {
        let narrowed = matching(wanted.step.or(origin.step), wanted.sender.or(origin.sender));
        if !narrowed.is_empty() {
            found = narrowed;
        }
    }
    match found[..] {
        [one] => {
            let header = updates.header(one);
            let tensors = updates.decode(one, is_name, &Base::new()).in_file(path)?;
            Ok(Decoded { step: Some(header.step), sender: Some(header.sender), tensors })
        }
        [] => Err(Failure::usage("no update has this step and sender")).in_file(path),
        _ => Err(Failure::usage(format_args!(
            "{} updates; --step and --sender select the one to compare",
            found.len()
        )))
        .in_file(path),
    }
}

/// Formats the losses, the largest share of all error first.
pub(crate) fn text(losses: &Losses, top: Option<usize>) -> String {
    let columns = ["elements", "norm", "rel error", "cosine", "signs", "energy"].map(|c| (c, Align::Right));
    let mut table = Table::new(&[&[("tensor", Align::Left)], &columns[..]].concat());
    let mut order: Vec<&Loss> = losses.tensors.iter().collect();
    let error = |loss: &Loss| loss.errors.relative_l2 * loss.norm;
    order.sort_by(|a, b| error(b).total_cmp(&error(a)));
    let shown = top.unwrap_or(order.len()).min(order.len());
    for loss in order[..shown].iter().copied().chain((losses.tensors.len() > 1).then_some(&losses.all)) {
        table.row([
            loss.name.clone(),
            thousands(loss.elements),
            view::number(Some(loss.norm)),
            view::number(Some(loss.errors.relative_l2)),
            format!("{:.6}", loss.errors.cosine),
            view::percent(loss.errors.sign_agreement),
            view::percent(loss.energy_kept),
        ]);
    }
    let mut out = String::new();
    if losses.updates.len() > 1 {
        let columns = ["step", "sender", "norm", "rel error", "cosine", "energy"].map(|c| (c, Align::Right));
        let mut updates = Table::new(&columns);
        let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        for UpdateLoss { step, sender, loss } in &losses.updates {
            updates.row([
                number(*step),
                number(*sender),
                view::number(Some(loss.norm)),
                view::number(Some(loss.errors.relative_l2)),
                format!("{:.6}", loss.errors.cosine),
                view::percent(loss.energy_kept),
            ]);
        }
        out = format!("{updates}\n");
    }
    out + &table.to_string()
}
