//! The report as a page of HTML, which needs no network and no script.

use super::report::{COLUMNS, Choice, Report};
use super::units::show_seconds;
use crate::output::escape;
use std::fmt::Write;

const STYLE: &str = include_str!("../inspect/html/page.css");
/// Width of the bars, in pixels.
const WIDTH: f64 = 720.0;
/// Where they begin: behind the names.
const LEFT: f64 = 340.0;

/// Formats the page.
pub(super) fn render(report: &Report) -> String {
    let mut page = String::new();
    let written = write(&mut page, report);
    debug_assert!(written.is_ok(), "writing to a String does not fail");
    page
}

fn write(page: &mut String, report: &Report) -> std::fmt::Result {
    let title = escape(&report.measurements.file);
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}: gcodec plan</title>\n<style>{STYLE}</style></head>\n<body>\n<header><h1>{title}</h1></header>\n<main>\n"
    )?;
    for condition in report.conditions() {
        writeln!(page, "<p>{}</p>", escape(&condition))?;
    }
    if let Some(recommended) = &report.recommended {
        writeln!(page, "<ul class=\"advice\"><li>{}</li></ul>", escape(&recommended.why))?;
    }
    bars(page, report)?;
    write!(page, "<h2>Numbers</h2>\n<div class=\"wide\"><table><thead><tr>")?;
    COLUMNS.iter().try_for_each(|title| write!(page, "<th>{title}</th>"))?;
    page.push_str("</tr></thead><tbody>\n");
    for row in report.rows() {
        write!(page, "<tr><th>{}</th>", escape(&row[0]))?;
        row[1..].iter().try_for_each(|cell| write!(page, "<td>{}</td>", escape(cell)))?;
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n</main>\n</body></html>\n");
    Ok(())
}

/// Draws the parts of each step: compute, coding, bandwidth, latency. What is hidden is not drawn.
fn bars(page: &mut String, report: &Report) -> std::fmt::Result {
    let mut choices: Vec<&Choice> = report.choices.iter().collect();
    choices.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    // The slowest are cut, so that the fast ones can be compared.
    let longest = choices.iter().map(|choice| choice.step.seconds).fold(0.0, f64::max);
    let shortest = choices.first().map_or(longest, |choice| choice.step.seconds);
    let scale = WIDTH / longest.min(20.0 * shortest);
    page.push_str(
        "<h2>Time of a step</h2><p class=\"legend\"><span class=\"c7\">compute</span><span class=\"c1\">coding</span>\
         <span class=\"c0\">bandwidth</span><span class=\"c3\">latency</span></p>\n",
    );
    let height = 22 * choices.len();
    writeln!(
        page,
        "<svg class=\"bars\" viewBox=\"0 0 1240 {height}\" role=\"img\" aria-label=\"Time of a step\">"
    )?;
    for (i, choice) in choices.iter().enumerate() {
        let (step, y) = (&choice.step, 22 * i);
        let exchange = step.coding + step.bandwidth + step.latency;
        let shown = if exchange > 0.0 { 1.0 - step.hidden / exchange } else { 0.0 };
        let parts = [
            ("c7", step.seconds - exchange * shown),
            ("c1", step.coding * shown),
            ("c0", step.bandwidth * shown),
            ("c3", step.latency * shown),
        ];
        writeln!(page, "<text x=\"0\" y=\"{}\">{}</text>", y + 14, escape(choice.name()))?;
        let mut x = 0.0;
        for (class, seconds) in parts {
            let width = (seconds * scale).min(WIDTH - x).max(0.0);
            writeln!(
                page,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"16\"/>",
                LEFT + x,
                y + 2
            )?;
            x += width;
        }
        let cut = if step.seconds * scale > WIDTH + 0.5 { " (longer than the bar)" } else { "" };
        writeln!(
            page,
            "<text x=\"{:.1}\" y=\"{}\">{}{cut}</text>",
            LEFT + 6.0 + x,
            y + 14,
            show_seconds(step.seconds)
        )?;
    }
    page.push_str("</svg>\n");
    Ok(())
}
