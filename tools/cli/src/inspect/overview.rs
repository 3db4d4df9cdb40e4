//! The default output: a screen that answers the first questions on a dump.

use super::report::Report;
use super::tensor::Tensor;
use super::update::Update;
use super::view;
use super::{opaque, placement};
use crate::output::{counted, human_bytes, printable, real};
use crate::terminal::{Ink, Terminal, bar, fit, sparkline};
use gcodec::block::Profile;
use std::collections::{BTreeSet, HashMap};

/// Most lines of updates, and of tensors.
const UPDATES: usize = 9;
const TENSORS: usize = 6;
/// Width from which there is room for whole sentences.
const NARROW: usize = 100;
/// Columns that a file's name needs.
const NAME: usize = 14;
/// Columns of exponents, if there is room for them.
const SPARK: usize = 10;
/// Most lines of advice.
const ADVICE: usize = 2;
/// Ratio to the median norm from which an update is odd: among the senders of one step, and in a run.
const ODD_AT_STEP: f64 = 2.0;
const ODD_IN_RUN: f64 = 4.0;
/// Fewest updates that have a median.
const FEWEST: usize = 3;

/// An update, its file, and what is odd about it.
pub(crate) struct Row<'a> {
    pub(super) report: &'a Report,
    pub(super) update: &'a Update,
    pub(super) flags: Vec<(Ink, String)>,
}

/// Formats the overview of files.
pub(crate) fn render(reports: &[Report], tensors: &[Tensor], terminal: &Terminal) -> String {
    let rows = rows(reports, terminal.width < NARROW);
    let mut lines = head(reports, &rows, terminal);
    if !rows.is_empty() {
        lines.push(String::new());
        lines.extend(updates(&rows, reports.len() > 1, terminal));
    }
    // One tensor needs no comparison, and a stream that is lost has none.
    if tensors.len() > 1 || (rows.is_empty() && !tensors.is_empty()) {
        lines.push(String::new());
        lines.extend(costs(tensors, terminal));
    }
    lines.extend(placement::lines(tensors).iter().map(|line| fit(line, terminal.width)));
    lines.extend(opaque::lines(tensors).iter().map(|line| fit(line, terminal.width)));
    let advice = advice(reports, &rows, tensors);
    for (ink, text) in advice.into_iter().take(ADVICE) {
        lines
            .extend(in_lines(&printable(&text), terminal.width).iter().map(|line| terminal.paint(ink, line)));
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Returns an advice; what to see on a line of its own, where one is too short for both.
fn in_lines(text: &str, width: usize) -> Vec<String> {
    match text.split_once("; see ").filter(|_| text.chars().count() > width) {
        Some((what, see)) => vec![fit(what, width), fit(&format!("  see {see}"), width)],
        None => vec![fit(text, width)],
    }
}

/// `short`: whether flags must be short.
pub(crate) fn rows(reports: &[Report], short: bool) -> Vec<Row<'_>> {
    let all = || reports.iter().flat_map(|report| report.updates.iter().map(move |update| (report, update)));
    let mut at_step: HashMap<(u64, u64), Vec<f64>> = HashMap::new();
    let mut in_run: HashMap<u64, Vec<f64>> = HashMap::new();
    for (_, update) in all() {
        if let Some(norm) = update.norm {
            at_step.entry((update.model, update.step)).or_default().push(norm);
            in_run.entry(update.model).or_default().push(norm);
        }
    }
    at_step.values_mut().chain(in_run.values_mut()).for_each(|norms| norms.sort_by(f64::total_cmp));
    let median = |norms: Option<&Vec<f64>>| {
        let norms = norms.filter(|norms| norms.len() >= FEWEST)?;
        let middle = (norms[(norms.len() - 1) / 2] + norms[norms.len() / 2]) / 2.0;
        Some(middle).filter(|m| *m > 0.0)
    };
    let mut rows = Vec::new();
    for (report, update) in all() {
        let mut flags = Vec::new();
        for (count, what) in [(update.nan, "NaN"), (update.infinite, "Inf")] {
            if count > 0 {
                flags.push((Ink::Bad, format!("{} {what}", crate::output::thousands(count))));
            }
        }
        if !update.complete {
            flags.push((Ink::Bad, "damaged".to_owned()));
        }
        let here = median(at_step.get(&(update.model, update.step)).filter(|_| update.numbered.1));
        let (median, odd) = match here {
            Some(median) => (Some(median), ODD_AT_STEP),
            None => (median(in_run.get(&update.model)), ODD_IN_RUN),
        };
        if let (Some(median), Some(norm)) = (median, update.norm) {
            let ratio = norm / median;
            if ratio >= odd || ratio <= 1.0 / odd {
                let of = if short { "median" } else { "the median norm" };
                flags.push((Ink::Odd, format!("{}x {of}", times(ratio))));
            }
        }
        if update.stats.elements > 0 && update.stats.zeros == update.stats.elements {
            flags.push((Ink::Odd, "all zero".to_owned()));
        }
        rows.push(Row { report, update, flags });
    }
    rows
}

/// Formats a ratio with two digits or more.
fn times(ratio: f64) -> String {
    let decimals = match ratio {
        r if r < 1.0 => 2,
        r => usize::from(r < 10.0),
    };
    format!("{ratio:.decimals$}")
}

/// Names the files, and sums them up.
fn head(reports: &[Report], rows: &[Row<'_>], terminal: &Terminal) -> Vec<String> {
    let sum = |of: fn(&Update) -> u64| rows.iter().map(|row| of(row.update)).sum::<u64>();
    let faults: usize = reports.iter().map(|r| r.faults.len()).sum();
    let (name, kind) = match reports {
        [one] => (
            fit(&printable(&one.file), terminal.width - 1),
            match one.version {
                Some(version) => format!("gcodec {}.{}", version.major, version.minor),
                None => one.kind.to_owned(),
            },
        ),
        many => {
            let kinds: BTreeSet<&str> = many.iter().map(|r| r.kind).collect();
            (format!("{} files", many.len()), kinds.into_iter().collect::<Vec<_>>().join(", "))
        }
    };
    let mut parts = vec![kind];
    if rows.len() != 1 || reports.iter().any(|r| r.version.is_some()) {
        parts.push(counted(rows.len() as u64, "update"));
    }
    let numbers =
        |of: fn(&Update) -> Option<u64>| rows.iter().filter_map(|r| of(r.update)).collect::<BTreeSet<_>>();
    let steps = numbers(|u| u.numbered.0.then_some(u.step));
    parts.extend(range("step", &steps));
    parts.extend(range("sender", &numbers(|u| u.numbered.1.then_some(u.sender))));
    if rows.iter().any(|row| row.update.guessed)
        && let Some(last) = parts.last_mut()
    {
        *last += if rows.len() == 1 { " (from its name)" } else { " (from names)" };
    }
    parts.push(human_bytes(reports.iter().map(|r| r.bytes).sum()));
    if reports.iter().any(|r| r.version.is_some()) && sum(|u| u.bytes) > 0 {
        parts.push(format!("ratio {}", real(sum(|u| u.source_bytes) as f64 / sum(|u| u.bytes) as f64)));
    }
    let bad = sum(|u| u.nan) + sum(|u| u.infinite);
    let is_read = rows.iter().all(|row| row.update.is_read);
    parts.push(match bad {
        _ if !is_read => terminal.paint(Ink::Dim, "elements not read"),
        0 => terminal.paint(Ink::Good, "no NaN"),
        _ => terminal.paint(Ink::Bad, &format!("{} NaN, {} Inf", sum(|u| u.nan), sum(|u| u.infinite))),
    });
    if is_read && reports.iter().any(|r| r.version.is_some()) {
        parts.push(match faults {
            0 => terminal.paint(Ink::Good, "whole"),
            n => terminal.paint(Ink::Bad, &format!("DAMAGED: {}", counted(n as u64, "fault"))),
        });
    }
    let mut lines = wrap(&terminal.paint(Ink::Bold, &name), &parts, terminal.width);
    let mut labels: BTreeSet<&str> = rows.iter().map(|row| row.update.label.as_str()).collect();
    labels.remove("");
    if let Some(label) = labels.first() {
        let more = if labels.len() > 1 { format!(" and {} more", labels.len() - 1) } else { String::new() };
        let width = terminal.width.saturating_sub(9 + more.len());
        lines.push(format!("  codec: {}{more}", fit(&printable(label), width)));
    }
    lines.extend(profile(reports).map(|profile| fit(&format!("  profile: {profile}"), terminal.width)));
    lines
}

/// Names the profile of all streams, if they were read.
fn profile(reports: &[Report]) -> Option<String> {
    let streams = || reports.iter().filter(|report| report.version.is_some());
    if streams().next().is_none() || streams().any(|report| report.profile.is_none()) {
        return None;
    }
    Some(match streams().find_map(|report| report.beyond_core) {
        None => Profile::Core.name().to_owned(),
        Some(what) => format!("{}, with {what}", Profile::Full.name()),
    })
}

/// Names a number or a range of numbers.
fn range(what: &str, numbers: &BTreeSet<u64>) -> Option<String> {
    match (numbers.first(), numbers.last()) {
        (Some(first), Some(last)) if first == last => Some(format!("{what} {first}")),
        (Some(first), Some(last)) => Some(format!("{what}s {first} to {last}")),
        _ => None,
    }
}

/// Joins parts with commas, in lines of at most `width` columns.
fn wrap(name: &str, parts: &[String], width: usize) -> Vec<String> {
    let mut lines = vec![format!("{name}:")];
    for (number, part) in parts.iter().enumerate() {
        let text = if number + 1 < parts.len() { format!("{part},") } else { part.clone() };
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(&text) <= width => *line = format!("{line} {text}"),
            _ => lines.push(format!("  {text}")),
        }
    }
    lines
}

/// Returns the columns of a text without its colours.
fn columns(text: &str) -> usize {
    text.split('\x1b')
        .enumerate()
        .map(|(i, part)| {
            let part = if i == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) };
            part.chars().count()
        })
        .sum()
}

/// The line of each update; of many, the first, the odd and the last.
fn updates(rows: &[Row<'_>], several: bool, terminal: &Terminal) -> Vec<String> {
    let shown = chosen(rows);
    let files = rows.iter().filter(|_| several).map(|row| row.report.file.as_str()).collect();
    let files = view::file_names(&files);
    let name = |i: usize| files.get(&*rows[i].report.file).map_or_else(String::new, |name| printable(name));
    let flag_width = shown.iter().map(|&i| flags(&rows[i]).chars().count()).max().unwrap_or(0);
    let flag_width = if flag_width > 0 { flag_width + 2 } else { 0 };
    let with_ratio = rows.iter().any(|row| row.report.version.is_some());
    let ratio = |text: &str| if with_ratio { format!(" {text:>6}") } else { String::new() };
    let columns = |step: &str, sender: &str, bytes: &str, r: &str, density: &str, norm: &str| {
        format!("{step:>6} {sender:>6} {bytes:>8}{} {density:>8} {norm:>9}", ratio(r))
    };
    let titles = columns("step", "sender", "bytes", "ratio", "density", "norm");
    let left = terminal.width.saturating_sub(titles.len() + 2 + flag_width);
    let counts: Vec<(u8, Vec<u64>)> = shown.iter().map(|&i| rows[i].update.stats.exponents.range()).collect();
    let (low, high) = common_range(&counts);
    let names = shown.iter().map(|&i| name(i).chars().count()).max().unwrap_or(0);
    let number = |known: bool, number: u64| known.then_some(number);
    let key = |u: &Update| (number(u.numbered.0, u.step), number(u.numbered.1, u.sender));
    let keys: BTreeSet<_> = rows.iter().map(|row| key(row.update)).collect();
    let distinct = keys.len() == rows.len();
    let room = left.saturating_sub(SPARK + 2);
    let file_width = match several {
        true if room >= names.min(NAME) => names.max(4).min(room),
        // Step and sender say as much as the name.
        true if !distinct => names.clamp(4, NAME).min(left.saturating_sub(2)),
        _ => 0,
    };
    let several = file_width > 0;
    let file = |text: &str| {
        if several { format!("{:<file_width$}  ", fit(text, file_width)) } else { String::new() }
    };
    let left = left.saturating_sub(if several { file_width + 2 } else { 0 });
    let spark = left.min(usize::from(high - low) + 1).max(SPARK.min(left));
    let range = format!("2^{}..2^{}", i32::from(low) - 127, i32::from(high) - 126);
    let range = match spark + flag_width {
        room if room >= range.len() + 10 => format!("exponents {range}"),
        room if room >= range.len() => range,
        _ => String::new(),
    };
    let mut lines = vec![terminal.paint(Ink::Dim, &format!("{}{titles}  {range}", file("file")))];
    let mut before = None;
    for (&i, (first, counts)) in shown.iter().zip(&counts) {
        if before.is_some_and(|b| b + 1 < i) {
            lines.push(terminal.paint(Ink::Dim, &format!("{:>6}", "..")));
        }
        before = Some(i);
        let Row { update, .. } = &rows[i];
        let number = |known: bool, number: u64| if known { number.to_string() } else { "-".into() };
        let elements = update.stats.elements.max(1) as f64;
        let nonzero = match update.delta || update.stats.unplaced > 0 {
            true => update.kept as f64 / elements,
            false => (update.stats.nonzero() + update.stats.unread) as f64 / elements,
        };
        let mut aligned = vec![0; usize::from(first.saturating_sub(low))];
        aligned.extend(counts);
        aligned.resize(usize::from(high - low) + 1, 0);
        let picture = sparkline(&aligned, spark);
        let text = columns(
            &number(update.numbered.0, update.step),
            &number(update.numbered.1, update.sender),
            &view::bytes(update.bytes),
            &view::ratio(update.ratio),
            &view::share(update.is_read.then_some(nonzero)),
            &view::number(update.norm),
        );
        let text = format!("{}{text}  {picture:<spark$}", file(&name(i)));
        let room = terminal.width.saturating_sub(text.chars().count() + 2);
        lines.push(format!("{text}  {}", painted_flags(&rows[i], room, terminal)));
    }
    if shown.len() < rows.len() {
        let hidden = rows.len() - shown.len();
        lines.push(terminal.paint(
            Ink::Dim,
            &format!("  {} more updates; --csv lists all", crate::output::thousands(hidden as u64)),
        ));
    }
    lines
}

fn flags(row: &Row<'_>) -> String {
    row.flags.iter().map(|(_, flag)| flag.as_str()).collect::<Vec<_>>().join(", ")
}

/// Colours the flags; where there is no room for all, they have one colour.
fn painted_flags(row: &Row<'_>, room: usize, terminal: &Terminal) -> String {
    let plain = flags(row);
    match row.flags.first() {
        Some((ink, _)) if plain.chars().count() > room => terminal.paint(*ink, &fit(&plain, room)),
        _ => {
            let flags = row.flags.iter().map(|(ink, flag)| terminal.paint(*ink, flag));
            flags.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Returns the updates to show: all, or the first, the last and the odd ones.
fn chosen(rows: &[Row<'_>]) -> Vec<usize> {
    if rows.len() <= UPDATES {
        return (0..rows.len()).collect();
    }
    // Gaps take lines, too.
    let room = UPDATES / 2;
    let last = rows.len() - 1;
    let odd = (1..last).filter(|&i| !rows[i].flags.is_empty());
    let mut shown: BTreeSet<usize> = odd.take(room - 1).chain([0, last]).collect();
    for i in 1..last {
        // Each line more must not make a gap more.
        if shown.len() + gaps(&shown) + 2 > UPDATES {
            break;
        }
        shown.insert(i);
    }
    shown.into_iter().collect()
}

fn gaps(shown: &BTreeSet<usize>) -> usize {
    let numbers: Vec<usize> = shown.iter().copied().collect();
    numbers.windows(2).filter(|pair| pair[0] + 1 < pair[1]).count()
}

fn common_range(counts: &[(u8, Vec<u64>)]) -> (u8, u8) {
    let ranges = counts.iter().filter(|(_, counts)| !counts.is_empty());
    let ends =
        ranges.clone().map(|(first, counts)| first.saturating_add(counts.len().saturating_sub(1) as u8));
    (ranges.map(|(first, _)| *first).min().unwrap_or(0), ends.max().unwrap_or(0))
}

/// The tensors that cost most, as bars.
fn costs(tensors: &[Tensor], terminal: &Terminal) -> Vec<String> {
    let all: f64 = tensors.iter().map(Tensor::bits).sum();
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_by(|a, b| b.bits().total_cmp(&a.bits()));
    let shown = if order.len() <= TENSORS + 1 { order.len() } else { TENSORS };
    let columns = format!("{:>8} {:>6} {:>8} {:>9}", "bytes", "share", "density", "norm");
    let least = if shown < order.len() { 18 } else { 6 };
    let names =
        order[..shown].iter().map(|t| printable(&t.name).chars().count()).max().unwrap_or(0).max(least);
    let flags = order[..shown].iter().map(|t| t.flags().len()).max().unwrap_or(0);
    let rest = terminal.width.saturating_sub(columns.len() + 4 + if flags > 0 { flags + 2 } else { 0 });
    let name_width = names.min(rest * 2 / 3);
    let bar_width = rest.saturating_sub(name_width).min(40);
    let mut lines = vec![terminal.paint(Ink::Dim, &format!("{:<name_width$}  {columns}", "tensor"))];
    for tensor in &order[..shown] {
        let share = tensor.bits() / all.max(1.0);
        let most = order[0].bits() / all.max(1.0);
        let text = format!(
            "{:<name_width$}  {:>8} {:>6} {:>8} {:>9}  {}",
            fit(&printable(&tensor.name), name_width),
            view::bytes(tensor.bytes()),
            view::percent(share),
            view::density(tensor),
            view::number(tensor.norm),
            bar(share / most.max(f64::MIN_POSITIVE), bar_width),
        );
        lines.push(format!("{text}  {}", terminal.paint(Ink::Bad, &tensor.flags())));
    }
    if shown < order.len() {
        let bits: f64 = order[shown..].iter().map(|t| t.bits()).sum();
        lines.push(format!(
            "{:<name_width$}  {:>8} {:>6}",
            fit(&format!("{} more: --tensors", order.len() - shown), name_width.max(18)),
            view::bytes((bits / 8.0).round() as u64),
            view::percent(bits / all.max(1.0)),
        ));
    }
    lines
}

/// Says what is odd, and which command shows it.
pub(crate) fn advice(reports: &[Report], rows: &[Row<'_>], tensors: &[Tensor]) -> Vec<(Ink, String)> {
    let mut advice = Vec::new();
    for report in reports.iter().filter(|r| !r.faults.is_empty()) {
        let whole = report.whole.as_deref().unwrap_or_default();
        advice.push((Ink::Bad, format!("damage: {whole}; `gcodec verify` lists every fault")));
    }
    if let Some(row) = rows.iter().find(|row| row.update.first_bad.is_some())
        && let Some((name, index)) = &row.update.first_bad
    {
        let shape = tensors.iter().find(|t| t.name == *name).map(|t| &t.shape[..]).unwrap_or_default();
        advice.push((
            Ink::Bad,
            format!(
                "first NaN or Inf: {name}{}{}; see --tensor '{name}'",
                view::place(*index, shape),
                view::origin(row.update),
            ),
        ));
    }
    let odd = rows.iter().find(|row| {
        row.flags.iter().any(|(_, flag)| flag.contains("x the median") || flag.ends_with("x median"))
    });
    if let Some(row) = odd {
        let filter = match row.update.numbered {
            (true, true) => format!("--step {} --sender {} ", row.update.step, row.update.sender),
            (true, false) => format!("--step {} ", row.update.step),
            _ => String::new(),
        };
        let from = view::origin(row.update);
        advice.push((Ink::Odd, format!("odd norm{from}; see {filter}--tensors --sort norm")));
    }
    // The zeros of a delta are elements that stay as they are.
    let is_zero = |t: &&Tensor| t.stats.elements > 0 && t.stats.zeros == t.stats.elements && !t.delta;
    if let Some(tensor) = tensors.iter().find(is_zero) {
        advice.push((Ink::Odd, format!("{} is zero everywhere", tensor.name)));
    }
    advice.extend(whole_tensors(rows, tensors).map(|text| (Ink::Odd, text)));
    if rows.iter().any(|row| !row.update.is_read) {
        let what = "a large input, opened by its headers alone; --stats reads all: norms, NaN, damage";
        advice.push((Ink::Dim, what.to_owned()));
    }
    if rows.iter().any(|row| row.update.ratio < 0.97 && !row.update.label.is_empty()) {
        advice.push((
            Ink::Odd,
            "an update is larger than its tensors; --coding shows where the bits are".to_owned(),
        ));
    }
    advice
}

/// Names the few elements that take a large share of a small stream because they are stored whole: biases
/// that a rule keeps lossless, for instance.
fn whole_tensors(rows: &[Row<'_>], tensors: &[Tensor]) -> Option<String> {
    let sum = |of: fn(&Update) -> u64| rows.iter().map(|row| of(row.update)).sum::<u64>();
    if sum(|u| u.source_bytes) < SMALL_RATIO * sum(|u| u.bytes) {
        return None;
    }
    let count = |t: &Tensor| t.elements.saturating_mul(t.updates);
    let (bits, elements) = (tensors.iter().map(Tensor::bits).sum::<f64>(), tensors.iter().map(count).sum());
    let is_whole = |t: &&Tensor| t.kept == Some(count(t)) && t.bits_per_parameter >= Some(WHOLE_BITS);
    let whole: Vec<&Tensor> = tensors.iter().filter(is_whole).collect();
    let largest = whole.iter().max_by(|a, b| a.bits().total_cmp(&b.bits()))?;
    let bytes = whole.iter().map(|t| t.bits()).sum::<f64>() / bits.max(1.0);
    let share = whole.iter().map(|t| count(t)).sum::<u64>() as f64 / u64::max(elements, 1) as f64;
    let more = if whole.len() > 1 { format!(" and {} more", whole.len() - 1) } else { String::new() };
    (bytes >= 0.2 && share <= 0.1).then(|| {
        format!(
            "{} of the bytes hold {} of the elements, all kept: {}{more}",
            view::percent(bytes),
            view::percent(share),
            largest.name
        )
    })
}

/// Ratio from which a stream is small for its tensors.
const SMALL_RATIO: u64 = 4;
/// Bits of each element from which a tensor is as good as not compressed.
const WHOLE_BITS: f64 = 8.0;
