//! What compression lost, tensor by tensor.

use super::report::Wanted;
use super::view;
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
use std::collections::HashMap;
use std::path::Path;

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

/// The losses of all tensors, and their sum.
#[derive(Debug, Serialize)]
pub(crate) struct Losses {
    pub(crate) tensors: Vec<Loss>,
    pub(crate) all: Loss,
}

/// Compares the wanted update of the file at `path` with the original at `original`.
pub(crate) fn losses(path: &Path, original: &Path, wanted: &Wanted, limits: &Limits) -> Result<Losses> {
    let a = Dump::open_any(original, None, limits, &Base::new())?;
    let name = original.file_name().unwrap_or_default().to_string_lossy();
    let origin = Origin::of(&a.metadata, &name);
    let b = decoded(path, origin, wanted, limits)?;
    let others: HashMap<&str, &NamedTensor> = b.iter().map(|t| (t.name(), t)).collect();
    let common: Vec<(&NamedTensor, &NamedTensor)> =
        a.tensors.iter().filter_map(|t| Some((t, *others.get(t.name())?))).collect();
    if common.is_empty() {
        let hint = b
            .first()
            .map_or(String::new(), |t| did_you_mean(t.name(), a.tensors.iter().map(NamedTensor::name)));
        return Err(Failure::usage(format_args!("it has no tensor of the original{hint}"))).in_file(path);
    }
    if let Some((t, _)) = common.iter().find(|(a, b)| a.view().shape() != b.view().shape()) {
        return Err(Failure::usage(format_args!(
            "tensor {:?} has another shape than the original",
            t.name()
        )))
        .in_file(path);
    }
    let sums: Vec<Sums> =
        common.par_iter().map(|(a, b)| Sums::of(&a.view(), &b.view()).unwrap_or_default()).collect();
    let mut all = Sums::default();
    sums.iter().for_each(|sum| all.add(sum));
    let tensors = common.iter().zip(&sums).map(|((t, _), sum)| loss(t.name().to_owned(), sum)).collect();
    Ok(Losses { tensors, all: loss(format!("all {}", common.len()), &all) })
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
fn decoded(path: &Path, origin: Origin, wanted: &Wanted, limits: &Limits) -> Result<Vec<NamedTensor>> {
    let input = Input::open(path, DEFAULT_MAX_BYTES)?;
    let is_name = |name: &str| is_wanted(wanted.tensor.as_ref(), name);
    if !is_stream(&input) {
        let dump = Dump::open(path)?;
        return Ok(dump.tensors.into_iter().filter(|t| is_name(t.name())).collect());
    }
    let updates = Updates::open(&input, limits).in_file(path)?;
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
        [one] => updates.decode(one, is_name, &Base::new()).in_file(path),
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
    table.to_string()
}
