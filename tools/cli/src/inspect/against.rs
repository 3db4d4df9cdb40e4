//! Loss of compression, tensor by tensor.

use super::report::Wanted;
use super::{source, view};
use crate::compare::{Errors, Sums};
use crate::fail::{Failure, InFile, Result};
use crate::fit;
use crate::naming::did_you_mean;
use crate::options::is_wanted;
use crate::origin::Origin;
use crate::output::{Align, Table, printable, thousands};
use crate::pairs::{self, Side};
use crate::stream::{Base, Updates};
use crate::tensors::{Any, Outline};
use gcodec::Limits;
use gcodec::frame::UpdateHeader;
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

/// An opaque tensor, whose bytes are compared: it has no values that could be lost.
#[derive(Debug, Serialize)]
pub(crate) struct OpaqueLoss {
    pub(crate) name: String,
    /// Element type, and that of the update if it is another.
    pub(crate) dtype: String,
    /// Bytes of the original.
    pub(crate) bytes: u64,
    /// Bytes that differ; `None` if type, shape or length is another.
    pub(crate) differing: Option<u64>,
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
    /// Opaque tensors of the originals, added up over the updates.
    pub(crate) opaque: Vec<OpaqueLoss>,
}

impl Losses {
    /// Returns the relative errors of the updates whose step and sender are known.
    pub(crate) fn by_update(&self) -> BTreeMap<(u64, u64), f64> {
        let error = |u: &UpdateLoss| Some(((u.step?, u.sender?), u.loss.errors.relative_l2));
        self.updates.iter().filter_map(error).collect()
    }
}

/// Compares updates of the files with their originals. A file is the original of one update, a folder has
/// those of several, each with its step and sender.
pub(crate) fn losses(paths: &[PathBuf], original: &Path, wanted: &Wanted, limits: &Limits) -> Result<Losses> {
    let files = source::files(paths)?;
    let mut compared = Compared::default();
    match (crate::files::is_folder(original), &files[..]) {
        (false, [path]) => {
            let (any, base) = (Any::open_carrying(original)?, Base::new());
            let a = Side::of(&any, original, None, &base, limits, &wanted.models)?;
            compared.update(&a, a.origin(original), path, wanted, limits)?;
        }
        (false, _) => {
            return Err(Failure::usage("one original is that of one file; a folder has those of several"));
        }
        (true, _) => {
            for original in source::files(&[original.to_owned()])? {
                let (any, base) = (Any::open_carrying(&original)?, Base::new());
                let a = Side::of(&any, &original, None, &base, limits, &wanted.models)?;
                let origin = a.origin(&original);
                if !wanted.update(origin.step, origin.sender) {
                    continue;
                }
                let of = Wanted { step: origin.step, sender: origin.sender, ..wanted.clone() };
                for path in &files {
                    if has_update(path, &of, limits)? {
                        compared.update(&a, origin, path, &of, limits)?;
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

/// Sums over the updates that were compared.
#[derive(Default)]
struct Compared {
    tensors: Vec<(String, Sums)>,
    rows: HashMap<String, usize>,
    updates: Vec<UpdateLoss>,
    opaque: BTreeMap<String, OpaqueLoss>,
}

impl Compared {
    /// Compares the one update of a file that is wanted with its original. Of several, it is the one of the
    /// original's step and sender.
    fn update(
        &mut self,
        original: &Side<'_>,
        origin: Origin,
        path: &Path,
        wanted: &Wanted,
        limits: &Limits,
    ) -> Result<()> {
        let (any, base) = (Any::open_carrying(path)?, Base::new());
        let (side, step, sender) = match &any {
            Any::Tensors(dump) => {
                let Origin { step, sender, .. } = Origin::of(dump, path);
                (Side::Tensors(dump), step, sender)
            }
            Any::Stream(input) => {
                let updates = Updates::open(input, limits).in_file(path)?.with_models(wanted.models.clone());
                let number = find(&updates, origin, wanted).in_file(path)?;
                let UpdateHeader { step, sender, .. } = *updates.header(number);
                let updates = Box::new(updates);
                (Side::Update { updates, number, base: &base, path }, Some(step), Some(sender))
            }
        };
        let all = self.add(original, &side, wanted).in_file(path)?;
        self.updates.push(UpdateLoss { step, sender, loss: all });
        Ok(())
    }

    /// Adds the losses of the tensors that both sides have. Returns that of all together.
    fn add(&mut self, a: &Side<'_>, b: &Side<'_>, wanted: &Wanted) -> Result<Loss> {
        let (of_a, of_b) = (a.outlines(), b.outlines());
        let (names_a, names_b) = (wanted.prefixes.names(&of_a)?, wanted.prefixes.names(&of_b)?);
        let (of_a, of_b) = (fit::named(of_a, &names_a), fit::named(of_b, &names_b));
        let in_b = of_b.iter().enumerate().filter(|(_, t)| is_wanted(wanted.tensor.as_ref(), t.name));
        let in_b: HashMap<&str, usize> = in_b.map(|(i, t)| (t.name, i)).collect();
        let bare = |name: &str| wanted.prefixes.strip(name).into_owned();
        let (labels_a, labels_b) = (a.labels()?.renamed(bare), b.labels()?.renamed(bare));
        let both: Vec<(usize, usize)> =
            of_a.iter().enumerate().filter_map(|(i, t)| Some((i, *in_b.get(t.name)?))).collect();
        if both.is_empty() {
            let first = of_b.iter().find(|t| in_b.contains_key(t.name));
            let hint = fit::advice(of_a.iter().map(|t| t.name), in_b.keys().copied());
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_else(|| {
                first.map_or(String::new(), |t| did_you_mean(t.name, of_a.iter().map(|t| t.name)))
            });
            return Err(Failure::usage(format_args!("it has no tensor of the original{hint}")));
        }
        let labels = |&(a, b): &(usize, usize)| [labels_a.find(&of_a[a]), labels_b.find(&of_b[b])];
        let (pairs, opaque): (Vec<_>, Vec<_>) =
            both.iter().copied().partition(|pair| labels(pair) == [None, None]);
        check_shapes(&of_a, &of_b, &pairs)?;
        // Of opaque tensors, the bytes are compared.
        let is_one_kind = |pair: &(usize, usize)| {
            of_a[pair.0].shape == of_b[pair.1].shape
                && matches!(labels(pair), [Some(a), Some(b)] if a.is_same(b))
        };
        let bytes: Vec<_> = opaque.iter().copied().filter(is_one_kind).collect();
        let (mut sums, mut differing) = (vec![Sums::default(); pairs.len()], vec![0; bytes.len()]);
        pairs::walk(a, b, &[&pairs[..], &bytes].concat(), &mut |number, a, b| match number
            .checked_sub(pairs.len())
        {
            None => sums[number].add(&Sums::of(a, b).unwrap_or_default()),
            Some(number) => differing[number] += unequal(a.data(), b.data()),
        })?;
        let differing: HashMap<usize, u64> = bytes.iter().map(|pair| pair.0).zip(differing).collect();
        for (i, j) in opaque {
            let dtypes = [labels_a.dtype(&of_a[i]), labels_b.dtype(&of_b[j])];
            self.add_opaque(of_a[i].name, dtypes, of_a[i].bytes(), differing.get(&i).copied());
        }
        let mut all = Sums::default();
        for (&(tensor, _), sum) in pairs.iter().zip(&sums) {
            all.add(sum);
            let name = of_a[tensor].name;
            let row = *self.rows.entry(name.to_owned()).or_insert(self.tensors.len());
            if row == self.tensors.len() {
                self.tensors.push((name.to_owned(), Sums::default()));
            }
            self.tensors[row].1.add(sum);
        }
        Ok(loss(format!("all {}", pairs.len()), &all))
    }

    fn add_opaque(&mut self, name: &str, dtypes: [&str; 2], bytes: u64, differing: Option<u64>) {
        let dtype = if dtypes[0] == dtypes[1] { dtypes[0].to_owned() } else { dtypes.join(" / ") };
        let new = || OpaqueLoss { name: name.to_owned(), dtype, bytes: 0, differing: Some(0) };
        let row = self.opaque.entry(name.to_owned()).or_insert_with(new);
        row.bytes = row.bytes.saturating_add(bytes);
        row.differing = row.differing.zip(differing).map(|(all, more)| all + more);
    }

    fn finish(self) -> Losses {
        let mut all = Sums::default();
        self.tensors.iter().for_each(|(_, sums)| all.add(sums));
        let name = format!("all {}", self.tensors.len());
        let tensors = self.tensors.into_iter().map(|(name, sums)| loss(name, &sums)).collect();
        let opaque = self.opaque.into_values().collect();
        Losses { tensors, all: loss(name, &all), updates: self.updates, opaque }
    }
}

/// Fails if a pair of tensors has two shapes.
fn check_shapes(of_a: &[Outline<'_>], of_b: &[Outline<'_>], pairs: &[(usize, usize)]) -> Result<()> {
    let other = |&&(a, b): &&(usize, usize)| of_a[a].shape != of_b[b].shape;
    let Some(&(i, j)) = pairs.iter().find(other) else { return Ok(()) };
    let more = match pairs.iter().filter(other).count() - 1 {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Err(Failure::usage(format_args!(
        "tensor {:?} has another shape than the original: {:?}, not {:?}{more}",
        of_a[i].name, of_b[j].shape, of_a[i].shape
    )))
}

/// Returns the number of bytes that differ.
fn unequal(a: &[u8], b: &[u8]) -> u64 {
    a.iter().zip(b).filter(|(a, b)| a != b).count() as u64
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

/// Returns the number of the one update that is wanted.
fn find(updates: &Updates<'_>, origin: Origin, wanted: &Wanted) -> Result<usize> {
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
        [one] => Ok(one),
        [] => Err(Failure::usage("no update has this step and sender")),
        _ => Err(Failure::usage(format_args!(
            "{} updates; --step and --sender select the one to compare",
            found.len()
        ))),
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
    if !losses.tensors.is_empty() {
        out += &table.to_string();
    }
    for line in opaque_lines(&losses.opaque, top) {
        out += &(line + "\n");
    }
    out
}

/// Returns a line for each opaque tensor, those that differ first.
pub(crate) fn opaque_lines(opaque: &[OpaqueLoss], top: Option<usize>) -> Vec<String> {
    let mut order: Vec<&OpaqueLoss> = opaque.iter().collect();
    order.sort_by_key(|tensor| (tensor.differing == Some(0), std::cmp::Reverse(tensor.differing)));
    let shown =
        order.iter().take(top.unwrap_or(usize::MAX)).map(|OpaqueLoss { name, dtype, bytes, differing }| {
            let what = match differing {
                None => "not compared, of another type or shape".to_owned(),
                Some(0) => format!("all {} bytes are equal", thousands(*bytes)),
                Some(some) => format!("{} of {} bytes differ", thousands(*some), thousands(*bytes)),
            };
            printable(&format!("opaque: {name} ({dtype}): {what}"))
        });
    shown.collect()
}
