//! Tables of the page.

use super::Page;
use super::charts::spark;
use crate::inspect::against::{Loss, Losses, opaque_lines};
use crate::inspect::overview::Row;
use crate::inspect::report::Report;
use crate::inspect::tensor::Tensor;
use crate::inspect::view;
use crate::output::{escape, thousands};
use std::collections::{BTreeMap, BTreeSet};

/// Most rows and columns of the matrix.
const MAX_STEPS: usize = 400;
const MAX_SENDERS: usize = 64;
/// Most faults that are listed.
const MAX_FAULTS: usize = 1000;

/// Writes the section of damaged and whole parts.
pub(super) fn damage(page: &mut Page, reports: &[Report]) {
    page.section("damage", "Damage", "Every fault with its place, and what can be read in spite of it.");
    let faults: usize = reports.iter().map(|r| r.faults.len()).sum();
    if faults == 0 {
        page.put(format_args!("<p>Nothing is damaged.</p>\n"));
        return;
    }
    for report in reports.iter().filter(|r| !r.faults.is_empty()) {
        let whole = report.whole.as_deref().unwrap_or_default();
        page.put(format_args!("<p class=\"bad\">{}: {}</p>\n", escape(&report.file), escape(whole)));
    }
    page.put(format_args!(
        "<table><thead><tr><th>Byte</th><th>Bytes</th><th>Frame</th><th>Block</th><th>Step</th><th>Tensor</th>\
         <th>Fault</th></tr></thead><tbody>\n"
    ));
    let number = |number: Option<u64>| number.map_or(String::new(), |n| n.to_string());
    for fault in reports.iter().flat_map(|r| &r.faults).take(MAX_FAULTS) {
        page.put(format_args!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            fault.offset,
            fault.bytes,
            number(fault.frame),
            number(fault.block),
            number(fault.step),
            escape(fault.tensor.as_deref().unwrap_or_default()),
            escape(&fault.error),
        ));
    }
    page.put(format_args!("</tbody></table>\n"));
    if faults > MAX_FAULTS {
        page.put(format_args!("<p>{} more faults.</p>\n", thousands((faults - MAX_FAULTS) as u64)));
    }
}

/// Norms by step and sender.
pub(super) fn matrix(page: &mut Page, rows: &[Row<'_>]) {
    let about =
        "L2 norms by step and sender. A norm far from the median, and what else is odd, is marked with !.";
    page.section("norms", "Norms", about);
    let senders: BTreeSet<u64> = rows.iter().map(|row| row.update.sender).collect();
    let columns: Vec<u64> = senders.iter().copied().take(MAX_SENDERS).collect();
    let mut steps: BTreeMap<u64, BTreeMap<u64, Vec<&Row<'_>>>> = BTreeMap::new();
    for row in rows {
        steps.entry(row.update.step).or_default().entry(row.update.sender).or_default().push(row);
    }
    let most = rows.iter().filter_map(|row| row.update.norm).filter(|n| n.is_finite()).fold(0.0, f64::max);
    // Of many steps, those with something odd, and others at equal distances.
    let every = steps.len().div_ceil(MAX_STEPS / 2).max(1);
    let odd =
        |cells: &BTreeMap<u64, Vec<&Row<'_>>>| cells.values().flatten().any(|row| !row.flags.is_empty());
    let hidden = steps.len().saturating_sub(MAX_STEPS);
    page.put(format_args!(
        "<div class=\"wide\"><table class=\"matrix\"><thead><tr><th scope=\"col\">Step</th>"
    ));
    for sender in &columns {
        page.put(format_args!("<th scope=\"col\">sender {sender}</th>"));
    }
    page.put(format_args!("</tr></thead><tbody>\n"));
    let mut shown = 0;
    for (number, (step, cells)) in steps.iter().enumerate() {
        let is_shown = hidden == 0 || number % every == 0 || odd(cells);
        if !is_shown || shown >= MAX_STEPS {
            continue;
        }
        shown += 1;
        page.put(format_args!("<tr><th scope=\"row\">{step}</th>"));
        for sender in &columns {
            match cells.get(sender).map(Vec::as_slice) {
                Some(found) => cell(page, found, most),
                None => page.put(format_args!("<td></td>")),
            }
        }
        page.put(format_args!("</tr>\n"));
    }
    page.put(format_args!("</tbody></table></div>\n"));
    if shown < steps.len() || columns.len() < senders.len() {
        page.put(format_args!(
            "<p>{} of {} steps and {} of {} senders; --csv lists all.</p>\n",
            shown,
            steps.len(),
            columns.len(),
            senders.len()
        ));
    }
}

/// The norms of the updates of one step and sender.
fn cell(page: &mut Page, found: &[&Row<'_>], most: f64) {
    let largest = found.iter().filter_map(|row| row.update.norm).fold(0.0, f64::max);
    let share = if most > 0.0 { (largest / most).clamp(0.0, 1.0) } else { 0.0 };
    let flags: Vec<&str> =
        found.iter().flat_map(|row| row.flags.iter().map(|(_, flag)| flag.as_str())).collect();
    let exact = found.iter().filter_map(|row| row.update.norm).map(|norm| norm.to_string());
    let exact: Vec<String> = exact.collect();
    let texts: Vec<String> = found.iter().map(|row| view::number(row.update.norm)).collect();
    let mark = match flags.is_empty() {
        true => String::new(),
        false => format!("<span class=\"flag\">! {}</span>", escape(&flags.join(", "))),
    };
    page.put(format_args!(
        "<td data-v=\"{}\" style=\"--share:{share:.2}\">{}{mark}</td>",
        exact.join(" "),
        texts.join(", ")
    ));
}

/// Writes the section of what compression lost.
pub(super) fn losses(page: &mut Page, losses: &Losses) {
    let about = "What compression lost of the original: error relative to its norm, cosine, share of equal signs, and \
                 the share of its energy in elements that were kept.";
    page.section("loss", "Loss", about);
    page.put(format_args!(
        "<div class=\"wide\"><table class=\"sortable\"><thead><tr><th>Tensor</th><th>Elements</th><th>Norm</th>\
         <th>Relative error</th><th>Cosine</th><th>Signs</th><th>Energy</th></tr></thead><tbody>\n"
    ));
    let mut order: Vec<&Loss> = losses.tensors.iter().collect();
    let error = |loss: &Loss| loss.errors.relative_l2 * loss.norm;
    order.sort_by(|a, b| error(b).total_cmp(&error(a)));
    for loss in std::iter::once(&losses.all).chain(order.into_iter().take(super::MAX_TENSORS)) {
        let errors = &loss.errors;
        page.put(format_args!(
            "<tr><th scope=\"row\">{}</th><td data-v=\"{}\">{}</td>",
            escape(&loss.name),
            loss.elements,
            thousands(loss.elements)
        ));
        number(page, Some(loss.norm));
        number(page, Some(errors.relative_l2));
        number(page, Some(errors.cosine));
        for share in [errors.sign_agreement, loss.energy_kept] {
            page.put(format_args!("<td data-v=\"{share}\">{}</td>", view::percent(share)));
        }
        page.put(format_args!("</tr>\n"));
    }
    page.put(format_args!("</tbody></table></div>\n"));
    for line in opaque_lines(&losses.opaque, Some(super::MAX_TENSORS)) {
        page.put(format_args!("<p>{}</p>\n", escape(&line)));
    }
}

/// All tensors; `order`: the largest first.
pub(super) fn tensors(page: &mut Page, order: &[&Tensor], most: usize) {
    page.section(
        "tensors",
        "Tensors",
        "Sums over all updates. With a script, titles sort and the field filters.",
    );
    page.put(format_args!(
        "<p class=\"script\"><label>Filter <input id=\"filter\" type=\"search\" autocomplete=\"off\"></label> \
         <output id=\"found\"></output></p>\n\
         <div class=\"wide\"><table id=\"all\" class=\"sortable\"><thead><tr><th>Tensor</th><th>Type</th><th>Shape</th>\
         <th>Bytes</th><th>Share</th><th>Density</th><th>Norm</th><th>Mean</th><th>Std</th><th>Min</th><th>Max</th>\
         <th>NaN</th><th>Inf</th><th>Exponents</th></tr></thead><tbody>\n"
    ));
    let all: f64 = order.iter().map(|t| t.bits()).sum();
    for (number_of, tensor) in order.iter().take(most).enumerate() {
        let (share, bytes) = (tensor.bits() / all.max(1.0), tensor.bits() / 8.0);
        page.put(format_args!(
            "<tr id=\"t{number_of}\"><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td data-v=\"{bytes}\">{}</td>\
             <td data-v=\"{share:.6}\">{}</td>",
            escape(&tensor.name),
            tensor.dtype,
            view::shape(&tensor.shape),
            view::bytes(tensor.bytes()),
            view::percent(share),
        ));
        match tensor.nonzero() {
            Some(share) => page.put(format_args!("<td data-v=\"{share}\">{}</td>", view::percent(share))),
            None => page.put(format_args!("<td>?</td>")),
        }
        for value in [tensor.norm, tensor.mean, tensor.std, tensor.min, tensor.max] {
            number(page, value);
        }
        for count in [tensor.stats.nan, tensor.stats.infinite] {
            let class = if count > 0 { " class=\"bad\"" } else { "" };
            page.put(format_args!("<td data-v=\"{count}\"{class}>{}</td>", thousands(count)));
        }
        let (_, counts) = tensor.stats.exponents.range();
        page.put(format_args!("<td>{}</td></tr>\n", spark(&counts)));
    }
    page.put(format_args!("</tbody></table></div>\n"));
    if order.len() > most {
        let rest: f64 = order[most..].iter().map(|t| t.bits()).sum();
        page.put(format_args!(
            "<p>{} smaller tensors with {} of the bytes; --tensors --csv lists all.</p>\n",
            thousands((order.len() - most) as u64),
            view::percent(rest / all.max(1.0))
        ));
    }
}

/// A number, rounded to read and exact to sort and copy.
fn number(page: &mut Page, value: Option<f64>) {
    match value {
        Some(exact) => page.put(format_args!("<td data-v=\"{exact}\">{}</td>", view::number(value))),
        None => page.put(format_args!("<td>-</td>")),
    }
}
