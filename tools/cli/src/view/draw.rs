//! Draws the screen.

use super::app::{App, Bytes, TABS};
use super::tree::Node;
use crate::annotate::Line as Annotation;
use crate::inspect::{Tensor, view};
use crate::output::{human_bytes, printable, thousands};
use crate::terminal::{bar, fit, sparkline};
use gcodec::reduce::stats::Grid;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Tabs};

const KEYS: &str = "?: keys  q: quit  arrows: move, other update  enter: open  1..5: tab  /: filter  s: sort";
const HELP: [&str; 11] = [
    "up, down, j, k     select a module or a tensor",
    "enter, space       open or close a module",
    "left, right, [, ]  the update before, the next update",
    "1 to 5, tab        Stats, Where, Trend, Bytes, Damage",
    "/                  show tensors whose names contain a word; enter ends typing",
    "esc                forget the word",
    "s                  sort by bytes, norm, density or name",
    "n, p, page keys    move in the tab; in Bytes, from field to field",
    "home, end          the first, the last row",
    "?                  this help; any key closes it",
    "q, ctrl-c          quit",
];

/// Draws the whole screen.
pub(super) fn screen(frame: &mut Frame<'_>, app: &mut App) {
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    head(frame, app, top);
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(45), Constraint::Percentage(55)]).areas(middle);
    tree(frame, app, left);
    tab(frame, app, right);
    let text = match app.is_typing {
        true => format!("filter: {}_", printable(&app.filter)),
        false => KEYS.to_owned(),
    };
    frame.render_widget(Paragraph::new(text).dim(), bottom);
    if app.help {
        help(frame);
    }
}

fn head(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let (update, report) = (app.update(), app.report());
    let width = usize::from(area.width);
    let (step, sender) = (format!("step {}, ", update.step), format!("sender {}, ", update.sender));
    let place = match update.numbered {
        (false, false) => String::new(),
        (true, false) => step,
        (false, true) => sender,
        (true, true) => step + &sender,
    };
    let guess = if update.guessed { "from its name, " } else { "" };
    let text = format!(
        "update {} of {}: {place}{guess}{}, ratio {}, norm {}, {} NaN",
        app.current + 1,
        app.updates.len(),
        human_bytes(update.bytes),
        view::ratio(update.ratio),
        view::number(update.norm),
        thousands(update.nan),
    );
    let name = fit(&printable(&report.file), width);
    let style =
        if update.nan + update.infinite > 0 || !update.complete { Style::new().red() } else { Style::new() };
    frame.render_widget(Paragraph::new(vec![Line::from(name).bold(), Line::from(text).style(style)]), area);
}

fn tree(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let title = match app.filter.is_empty() {
        true => format!(" by {} ", app.order.name()),
        false => format!(" by {}, with \"{}\" ", app.order.name(), printable(&app.filter)),
    };
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    let height = usize::from(inner.height).max(1);
    let first = (app.selected + 1).saturating_sub(height);
    let most = app.rows.iter().map(|node| node.bits).fold(1.0, f64::max);
    let rows = app.rows.iter().enumerate().skip(first).take(height);
    let lines: Vec<Line<'_>> = rows
        .map(|(number, node)| {
            let line = row(node, most, usize::from(inner.width));
            if number == app.selected {
                line.style(Style::new().add_modifier(Modifier::REVERSED))
            } else {
                line
            }
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A module or a tensor: its name, its bytes, and a bar of its share.
fn row(node: &Node, most: f64, width: usize) -> Line<'static> {
    let sign = match (node.tensor, node.is_open) {
        (Some(_), _) => ' ',
        (None, true) => '-',
        (None, false) => '+',
    };
    let bytes = view::bytes((node.bits / 8.0).round() as u64);
    let left = width.saturating_sub(9);
    let bar_width = (left / 4).min(12);
    let indent = (node.depth * 2).min(left / 3);
    let name_width = left.saturating_sub(bar_width + indent + 3);
    let name = fit(&printable(&node.name), name_width);
    let text = format!("{:indent$}{sign} {name:<name_width$} ", "");
    let name = if node.is_bad { Span::from(text).red() } else { Span::from(text) };
    Line::from(vec![
        name,
        Span::from(bar(node.bits / most, bar_width)).blue(),
        Span::from(format!("{bytes:>9}")),
    ])
}

fn tab(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    let [titles, content] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let names = TABS.iter().enumerate().map(|(number, name)| format!("{} {name}", number + 1));
    frame.render_widget(Tabs::new(names).select(app.tab).padding("", "").divider("  "), titles);
    let width = usize::from(content.width).saturating_sub(2);
    let height = usize::from(content.height).saturating_sub(2);
    let first = app.line;
    let lines = match app.tab {
        0 => stats(app, width),
        1 => places(app, width),
        2 => trend(app, width),
        3 => match app.bytes() {
            Some(found) => bytes(found, first, width, height),
            None => vec![Line::from("a file of tensors has no frames")],
        },
        _ => damage(app, width),
    };
    // The tab Bytes scrolls by its selection.
    let skip = if app.tab == 3 { 0 } else { first.min(lines.len().saturating_sub(height)) };
    let lines: Vec<Line<'_>> = lines.into_iter().skip(skip).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered()), content);
}

/// The numbers of the selected module or tensor.
fn stats(app: &mut App, width: usize) -> Vec<Line<'static>> {
    let Some(node) = app.rows.get(app.selected).cloned() else {
        return vec![Line::from("no tensor has this word in its name")];
    };
    let mut lines = vec![Line::from(fit(&printable(&node.path), width)).bold()];
    let bytes = (node.bits / 8.0).round() as u64;
    let Some(tensor) = app.detail() else {
        let density = node.kept.map(|kept| kept as f64 / node.elements.max(1) as f64);
        lines.push(Line::from(format!("{} bytes, {} elements", thousands(bytes), thousands(node.elements))));
        lines.push(Line::from(format!("norm {}", view::number(node.squares.map(f64::sqrt)))));
        lines.push(Line::from(format!("{} of the elements are stored", view::share(density))));
        return lines;
    };
    let number = view::number;
    lines.push(Line::from(format!(
        "{} {}, {} bytes",
        tensor.dtype,
        view::shape(&tensor.shape),
        thousands(bytes)
    )));
    lines.push(Line::from(format!(
        "{} bits per element, ratio {}",
        view::bits(tensor.bits_per_parameter),
        view::ratio(tensor.ratio)
    )));
    if let Some(reason) = &tensor.opaque {
        lines.push(Line::from(format!("opaque: {}", printable(reason))));
        return lines;
    }
    let kept = tensor.kept.map_or_else(|| "?".to_owned(), thousands);
    lines.push(Line::from(format!("{kept} stored, {} not zero", view::share(tensor.nonzero()))));
    lines.push(Line::from(format!("{} {} {}", tensor.support, tensor.values, printable(&tensor.codes))));
    for (name, value) in [
        ("norm", tensor.norm),
        ("mean", tensor.mean),
        ("std", tensor.std),
        ("min", tensor.min),
        ("max", tensor.max),
    ] {
        lines.push(Line::from(format!("{name:<5} {}", number(value))));
    }
    let firsts =
        [("NaN", tensor.stats.nan, tensor.first_nan), ("Inf", tensor.stats.infinite, tensor.first_infinite)];
    for (what, count, first) in firsts {
        if let Some(first) = first {
            let place = view::place(first, &tensor.shape);
            lines.push(Line::from(format!("{} {what}, the first at {place}", thousands(count))).red());
        }
    }
    lines.extend(exponents(tensor, width));
    lines
}

/// The counts of exponents as bars.
fn exponents(tensor: &Tensor, width: usize) -> Vec<Line<'static>> {
    let (first, counts) = tensor.stats.exponents.range();
    let all: u64 = counts.iter().sum();
    let most = counts.iter().copied().max().unwrap_or(1);
    let bars = counts.iter().enumerate().rev().map(|(number, &count)| {
        let power = i32::from(first) + number as i32 - 127;
        let share = view::percent(count as f64 / all.max(1) as f64);
        let drawn = bar(count as f64 / most as f64, width.saturating_sub(20));
        Line::from(vec![Span::from(format!("2^{power:<5} {share:>8}  ")), Span::from(drawn).blue()])
    });
    std::iter::once(Line::from("magnitudes").dim()).chain(bars).collect()
}

/// Where the elements of the selected tensor are: two rows of cells in each line.
fn places(app: &mut App, width: usize) -> Vec<Line<'static>> {
    let Some(tensor) = app.detail() else { return vec![Line::from("select a tensor")] };
    let Some(grid) = &tensor.stats.grid else {
        return vec![Line::from("only the base of the delta tells where its elements are")];
    };
    let title = format!("{} rows, {} columns; not zero: ", thousands(grid.rows()), thousands(grid.columns()));
    let mut lines = vec![Line::from(title + &view::share(tensor.nonzero())).bold()];
    let across = grid.width().div_ceil(width.max(1) as u64).max(1);
    let share = |row: u64, column: u64| cells(grid, row, column, across);
    let columns = || (0..grid.width()).step_by(across as usize);
    let most = (0..grid.height())
        .flat_map(|row| columns().map(move |column| share(row, column)))
        .fold(0.0, f64::max);
    for row in (0..grid.height()).step_by(2) {
        let spans = columns().map(|column| {
            let colour = |row: u64| shade(share(row, column), most);
            Span::from("▀").fg(colour(row)).bg(colour(row + 1))
        });
        lines.push(Line::from(spans.collect::<Vec<_>>()));
    }
    lines
}

/// Returns the share of nonzero elements in `across` cells from one on; negative outside of the grid.
fn cells(grid: &Grid, row: u64, column: u64, across: u64) -> f64 {
    let found = (column..column + across).filter_map(|column| grid.cell(row, column));
    let (count, of) = found.fold((0, 0), |sum, cell| (sum.0 + cell.0, sum.1 + cell.1));
    if of == 0 { -1.0 } else { count as f64 / of as f64 }
}

fn shade(share: f64, most: f64) -> Color {
    match share {
        s if s < 0.0 => Color::Reset,
        0.0 => Color::Indexed(234),
        // The grey ramp of 256 colours, from 237 to 255.
        s => Color::Indexed(237 + ((s / most).clamp(0.0, 1.0).sqrt() * 18.0) as u8),
    }
}

/// Norm, ratio, density and, where originals are given, error of each update, by sender.
fn trend(app: &App, width: usize) -> Vec<Line<'static>> {
    let here = app.update().sender;
    let of_sender = |&&(report, update): &&(usize, usize)| app.reports[report].updates[update].sender == here;
    let updates: Vec<_> = app
        .updates
        .iter()
        .filter(of_sender)
        .map(|&(report, update)| &app.reports[report].updates[update])
        .collect();
    let most = updates.iter().filter_map(|u| u.norm).filter(|n| n.is_finite()).fold(0.0, f64::max);
    let senders: std::collections::BTreeSet<u64> =
        app.updates.iter().map(|&(report, update)| app.reports[report].updates[update].sender).collect();
    let title = format!("sender {here} of {}", thousands(senders.len() as u64));
    let with_errors = !app.errors.is_empty();
    let error = |text: &str| if with_errors { format!(" {text:>8}") } else { String::new() };
    let heads = format!("{:>8} {:>9} {:>7} {:>8}{}", "step", "norm", "ratio", "density", error("error"));
    let room = width.saturating_sub(if with_errors { 47 } else { 38 });
    let mut lines = vec![Line::from(title).bold(), Line::from(heads).dim()];
    for update in updates {
        let share = update.norm.map_or(0.0, |norm| if most > 0.0 { norm / most } else { 0.0 });
        let text = format!(
            "{:>8} {:>9} {:>7} {:>8}{}  ",
            update.step,
            view::number(update.norm),
            view::ratio(update.ratio),
            view::share(update.is_read.then_some(update.density)),
            error(&view::number(app.errors.get(&(update.step, update.sender)).copied())),
        );
        let line = Line::from(vec![Span::from(text), Span::from(bar(share, room)).blue()]);
        lines.push(if update.step == app.update().step { line.reversed() } else { line });
    }
    let (_, counts) = app.update().stats.exponents.range();
    lines.push(Line::from(format!(
        "exponents of this update: {}",
        sparkline(&counts, width.saturating_sub(27))
    )));
    lines
}

/// The bytes around the selected field, and the fields around it.
fn bytes(found: &Bytes, selected: usize, width: usize, height: usize) -> Vec<Line<'static>> {
    let fields: Vec<usize> =
        (0..found.lines.len()).filter(|&i| matches!(found.lines[i], Annotation::Field(_))).collect();
    let Some(&at) = fields.get(selected.min(fields.len().saturating_sub(1))) else { return Vec::new() };
    let Annotation::Field(field) = &found.lines[at] else { return Vec::new() };
    let from = (field.offset as usize).saturating_sub(found.start);
    let range = from..from + field.len;
    // As many bytes in a line as fit: 16 or 8.
    let row = if width >= 58 { 16 } else { 8 };
    let dump = height / 3;
    let mut lines =
        vec![Line::from(format!("frame {}; n and p: the next field, the one before", found.frame)).dim()];
    let first = (from / row).saturating_sub(1) * row;
    for start in (first..found.data.len()).step_by(row).take(dump) {
        let mut spans = vec![Span::from(format!("{:8x} ", found.start + start)).dim()];
        for (i, byte) in found.data[start..].iter().take(row).enumerate() {
            let span = Span::from(format!(" {byte:02x}"));
            spans.push(if range.contains(&(start + i)) { span.black().on_yellow() } else { span });
        }
        lines.push(Line::from(spans));
    }
    lines.push(Line::from(""));
    let room = height.saturating_sub(lines.len());
    let top = at.saturating_sub(room / 2);
    for (number, line) in found.lines.iter().enumerate().skip(top).take(room) {
        lines.push(match line {
            Annotation::Heading { depth, text } => {
                Line::from(format!("{:indent$}{}", "", printable(text), indent = depth * 2)).bold()
            }
            Annotation::Field(field) => {
                let value = printable(&field.value);
                let text = format!("{:indent$}{}  {value}  ", "", field.name, indent = field.depth * 2);
                let line = Line::from(vec![Span::from(text), Span::from(printable(&field.meaning)).dim()]);
                if number == at { line.black().on_yellow() } else { line }
            }
        });
    }
    lines
}

fn damage(app: &App, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for report in app.reports.iter().filter(|report| !report.ok) {
        let whole = report.whole.as_deref().unwrap_or_default();
        let summary = format!("{}: {}", printable(&report.file), printable(whole));
        lines.extend(wrapped(&summary, width).map(Line::red));
        for fault in &report.faults {
            lines.extend(wrapped(&printable(&fault.error), width));
        }
    }
    if lines.is_empty() {
        let is_read = app.updates.iter().all(|&(report, update)| app.reports[report].updates[update].is_read);
        lines.push(match (app.failures.first(), is_read) {
            (Some(failure), _) => Line::from(printable(&failure.message)).red(),
            (None, true) => Line::from("nothing is damaged").green(),
            (None, false) => Line::from("large inputs are not read to their end; use `gcodec verify`"),
        });
    }
    lines
}

/// Cuts a text into lines of this width.
fn wrapped(text: &str, width: usize) -> impl Iterator<Item = Line<'static>> {
    let text: Vec<char> = text.chars().collect();
    let lines: Vec<String> = text.chunks(width.max(1)).map(|part| part.iter().collect()).collect();
    lines.into_iter().map(Line::from)
}

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (82.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, place);
    let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::from(*line)).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), place);
}
