//! The report as one page of HTML: it needs no network and no script, and a script makes it sort and filter.

mod charts;
mod maps;
mod tables;

use super::against::Losses;
use super::overview::{self, Row};
use super::report::Report;
use super::tensor::Tensor;
use super::view;
use crate::output::{counted, escape, human_bytes, thousands};
use std::fmt::Write;

/// Most tensors of the table; the others are summed up.
const MAX_TENSORS: usize = 2000;
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A page that grows.
#[derive(Debug, Default)]
struct Page(String);

impl Page {
    /// Appends markup.
    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        let written = self.0.write_fmt(text);
        debug_assert!(written.is_ok(), "writing to a String does not fail");
    }

    /// Begins a section with this heading and the sentence below it.
    fn section(&mut self, id: &str, title: &str, about: &str) {
        self.put(format_args!("</section>\n<section id=\"{id}\"><h2>{title}</h2><p>{about}</p>\n"));
    }
}

/// Formats the page of files: `tensors` are added up over all updates.
pub(crate) fn render(reports: &[Report], tensors: &[Tensor], losses: Option<&Losses>) -> String {
    let rows = overview::rows(reports, false);
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_by(|a, b| b.bits().total_cmp(&a.bits()));
    let mut page = Page::default();
    head(&mut page, reports, losses.is_some());
    summary(&mut page, reports, &rows, tensors);
    tables::damage(&mut page, reports);
    charts::treemap(&mut page, &order);
    charts::exponents(&mut page, &rows);
    maps::all(&mut page, &order);
    tables::matrix(&mut page, &rows);
    charts::trends(&mut page, &rows, losses);
    if let Some(losses) = losses {
        tables::losses(&mut page, losses);
    }
    tables::tensors(&mut page, &order, MAX_TENSORS);
    page.put(format_args!("</section>\n</main>\n<script>{SCRIPT}</script>\n</body></html>\n"));
    page.0
}

fn title(reports: &[Report]) -> String {
    match reports {
        [one] => escape(&one.file),
        many => format!("{} files", many.len()),
    }
}

fn head(page: &mut Page, reports: &[Report], with_losses: bool) {
    let title = title(reports);
    page.put(format_args!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}: gcodec inspect</title>\n<style>{STYLE}</style></head>\n<body>\n<header><h1>{title}</h1>\n"
    ));
    page.put(format_args!("<nav aria-label=\"Sections\">"));
    let sections = ["damage", "bytes", "exponents", "where", "norms", "trends", "loss", "tensors"];
    for id in sections.into_iter().filter(|id| *id != "loss" || with_losses) {
        let name = format!("{}{}", id[..1].to_uppercase(), &id[1..]);
        page.put(format_args!("<a href=\"#{id}\">{name}</a> "));
    }
    page.put(format_args!("</nav></header>\n<main>\n<section id=\"summary\">"));
}

/// The numbers of all files together, and what is odd.
fn summary(page: &mut Page, reports: &[Report], rows: &[Row<'_>], tensors: &[Tensor]) {
    let sum = |of: fn(&super::update::Update) -> u64| rows.iter().map(|row| of(row.update)).sum::<u64>();
    let bytes: u64 = reports.iter().map(|r| r.bytes).sum();
    let faults: usize = reports.iter().map(|r| r.faults.len()).sum();
    let ratio = sum(|u| u.source_bytes) as f64 / sum(|u| u.bytes).max(1) as f64;
    let state = if faults == 0 { "whole".to_owned() } else { counted(faults as u64, "fault") };
    let facts = [
        ("Updates", thousands(rows.len() as u64), ""),
        ("Tensors", thousands(tensors.len() as u64), ""),
        ("Size", human_bytes(bytes), ""),
        ("Ratio", view::ratio(ratio), ""),
        ("NaN", thousands(sum(|u| u.nan)), if sum(|u| u.nan) > 0 { "bad" } else { "" }),
        ("Inf", thousands(sum(|u| u.infinite)), if sum(|u| u.infinite) > 0 { "bad" } else { "" }),
        ("State", state, if faults > 0 { "bad" } else { "" }),
    ];
    page.put(format_args!("<dl class=\"facts\">"));
    for (name, value, class) in facts {
        page.put(format_args!("<div class=\"{class}\"><dt>{name}</dt><dd>{value}</dd></div>"));
    }
    page.put(format_args!("</dl>\n"));
    let advice = overview::advice(reports, rows, tensors);
    if !advice.is_empty() {
        page.put(format_args!("<ul class=\"advice\">"));
        for (_, text) in advice {
            page.put(format_args!("<li>{}</li>", escape(&text)));
        }
        page.put(format_args!("</ul>\n"));
    }
}
