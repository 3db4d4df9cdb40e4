//! Drawings of the page, as SVG with texts for those who do not see them.

use super::Page;
use crate::inspect::against::Losses;
use crate::inspect::overview::Row;
use crate::inspect::tensor::Tensor;
use crate::inspect::update::Update;
use crate::inspect::view;
use crate::output::escape;
use std::collections::BTreeMap;

/// Most rectangles of the treemap, and most lines of a chart.
const MAX_AREAS: usize = 300;
const MAX_LINES: usize = 16;
/// Most points of a line.
const MAX_POINTS: usize = 500;
/// Most points of a line whose points are marked.
const MARKED: usize = 40;
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 360.0;

/// A rectangle: left, top, width, height.
type Area = [f64; 4];

/// The bytes of each tensor as areas; `order`: the largest first.
pub(super) fn treemap(page: &mut Page, order: &[&Tensor]) {
    page.section("bytes", "Bytes", "Each area is a tensor, as large as its share of the bytes.");
    let all: f64 = order.iter().map(|t| t.bits()).sum();
    let shown = &order[..order.len().min(MAX_AREAS)];
    let rest: f64 = order[shown.len()..].iter().map(|t| t.bits()).sum();
    let mut sizes: Vec<f64> = shown.iter().map(|t| t.bits()).filter(|bits| *bits > 0.0).collect();
    let drawn = sizes.len();
    sizes.extend((rest > 0.0).then_some(rest));
    let areas = squarified(&sizes, [0.0, 0.0, WIDTH, HEIGHT]);
    let largest = shown.first().map_or(String::new(), |t| {
        format!("The largest is {} with {}.", escape(&t.name), view::percent(t.bits() / all.max(1.0)))
    });
    page.put(format_args!(
        "<svg class=\"treemap\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Treemap of the bytes of {} \
         tensors. {largest} The table of tensors has all numbers.\">",
        order.len()
    ));
    let mut colours: BTreeMap<String, usize> = BTreeMap::new();
    for (number, (area, bits)) in areas.iter().zip(&sizes).enumerate() {
        let [x, y, width, height] = *area;
        let share = view::percent(bits / all.max(1.0));
        let (name, colour) = match shown.get(number).filter(|_| number < drawn) {
            Some(tensor) => {
                let next = colours.len() % 8;
                let colour = *colours.entry(module(&tensor.name)).or_insert(next);
                (escape(&tensor.name), format!("c{colour}"))
            }
            None => (format!("{} smaller tensors", order.len() - drawn), "rest".to_owned()),
        };
        let link = if number < drawn { format!("<a href=\"#t{number}\">") } else { "<a>".to_owned() };
        page.put(format_args!(
            "{link}<rect class=\"{colour}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
             <title>{name}: {}, {share}</title></rect>",
            view::bytes((bits / 8.0).round() as u64)
        ));
        let room = ((width - 6.0) / 6.5).max(0.0) as usize;
        if height >= 16.0 && room >= 6 {
            let label = crate::terminal::fit(shown.get(number).map_or("others", |t| t.name.as_str()), room);
            let (x, y) = (x + 4.0, y + 13.0);
            page.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(&label)));
        }
        page.put(format_args!("</a>"));
    }
    page.put(format_args!("</svg>\n"));
}

/// Returns the first two parts of a name: tensors of one module have one colour.
fn module(name: &str) -> String {
    name.split(['.', '/']).take(2).collect::<Vec<_>>().join(".")
}

/// Divides an area into areas of these sizes, descending, that are as square as possible (Bruls, Huizing and
/// van Wijk: Squarified Treemaps).
fn squarified(sizes: &[f64], whole: Area) -> Vec<Area> {
    let sum: f64 = sizes.iter().sum();
    let scale = whole[2] * whole[3] / sum.max(f64::MIN_POSITIVE);
    let (mut left, mut out, mut at) = (whole, Vec::with_capacity(sizes.len()), 0);
    while at < sizes.len() {
        let side = left[2].min(left[3]).max(f64::MIN_POSITIVE);
        let worst = |row: &[f64]| {
            let sum: f64 = row.iter().sum::<f64>() * scale;
            let of = |size: f64| {
                (side * side * size * scale / (sum * sum)).max(sum * sum / (side * side * size * scale))
            };
            f64::max(of(row[0]), of(row[row.len() - 1]))
        };
        let mut end = at + 1;
        while end < sizes.len() && worst(&sizes[at..=end]) <= worst(&sizes[at..end]) {
            end += 1;
        }
        let row = &sizes[at..end];
        let depth = row.iter().sum::<f64>() * scale / side;
        let mut along = 0.0;
        for size in row {
            let len = size * scale / depth.max(f64::MIN_POSITIVE);
            out.push(match left[2] >= left[3] {
                true => [left[0], left[1] + along, depth, len],
                false => [left[0] + along, left[1], len, depth],
            });
            along += len;
        }
        match left[2] >= left[3] {
            true => (left[0], left[2]) = (left[0] + depth, left[2] - depth),
            false => (left[1], left[3]) = (left[1] + depth, left[3] - depth),
        }
        at = end;
    }
    out
}

/// How many elements of all updates have which exponent and sign.
pub(super) fn exponents(page: &mut Page, rows: &[Row<'_>]) {
    let about = "Nonzero elements of all updates by magnitude: positive above, negative below the line. \
                 The scale is logarithmic.";
    page.section("exponents", "Exponents", about);
    let mut counts = BTreeMap::<u8, [u64; 2]>::new();
    for (negative, exponent, count) in rows.iter().flat_map(|row| row.update.stats.exponents.iter()) {
        counts.entry(exponent).or_default()[usize::from(negative)] += count;
    }
    let (Some((&low, _)), Some((&high, _))) = (counts.first_key_value(), counts.last_key_value()) else {
        page.put(format_args!("<p>No element is known and not zero.</p>\n"));
        return;
    };
    let most = counts.values().flatten().copied().max().unwrap_or(1);
    let bins = f64::from(high - low) + 1.0;
    let step = (WIDTH / bins).min(40.0);
    let height = |count: u64| match count {
        0 => 0.0,
        count => (80.0 * (count as f64).ln_1p() / (most as f64).ln_1p()).max(1.0),
    };
    page.put(format_args!(
        "<svg class=\"bars\" viewBox=\"0 0 {WIDTH} 190\" role=\"img\" aria-label=\"Histogram of exponents from 2^{} to \
         2^{}.\">",
        i32::from(low) - 127,
        i32::from(high) - 126
    ));
    for (&exponent, [positive, negative]) in &counts {
        let x = f64::from(exponent - low) * step;
        let (up, down) = (height(*positive), height(*negative));
        let power = i32::from(exponent) - 127;
        page.put(format_args!(
            "<g><title>2^{power} to 2^{}: {positive} positive, {negative} negative</title>\
             <rect class=\"c0\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{up:.1}\"/>\
             <rect class=\"c1\" x=\"{x:.1}\" y=\"85\" width=\"{:.1}\" height=\"{down:.1}\"/></g>",
            power + 1,
            85.0 - up,
            step - 1.0,
            step - 1.0,
        ));
    }
    for exponent in (low..=high).step_by(((60.0 / step).ceil() as usize).max(1)) {
        let x = f64::from(exponent - low) * step;
        page.put(format_args!("<text x=\"{x:.1}\" y=\"184\">2^{}</text>", i32::from(exponent) - 127));
    }
    page.put(format_args!("</svg>\n"));
}

/// Norm, ratio, density, and error where originals are given, over the steps, a line for each sender.
pub(super) fn trends(page: &mut Page, rows: &[Row<'_>], losses: Option<&Losses>) {
    page.section("trends", "Trends", "A line for each sender, over the steps.");
    let mut lines: BTreeMap<u64, Vec<&Update>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.update.numbered.0) {
        lines.entry(row.update.sender).or_default().push(row.update);
    }
    lines.values_mut().for_each(|line| line.sort_by_key(|update| update.step));
    if lines.values().all(|line| line.len() < 2) {
        page.put(format_args!("<p>There is one step only.</p>\n"));
        return;
    }
    let all = lines.len();
    let lines: Vec<(u64, Vec<&Update>)> = lines.into_iter().take(MAX_LINES).collect();
    if all > MAX_LINES {
        page.put(format_args!("<p>The first {MAX_LINES} of {all} senders.</p>\n"));
    }
    let norm = |u: &Update| u.norm;
    let ratio = |u: &Update| Some(u.ratio);
    let density = |u: &Update| Some(u.density);
    trend(page, "Norm", &lines, norm);
    trend(page, "Ratio", &lines, ratio);
    trend(page, "Share of kept elements", &lines, density);
    let errors = losses.map(Losses::by_update).unwrap_or_default();
    if errors.len() > 1 {
        trend(page, "Relative error", &lines, |u| errors.get(&(u.step, u.sender)).copied());
    }
    page.put(format_args!("<p class=\"legend\">"));
    for (number, (sender, _)) in lines.iter().enumerate() {
        page.put(format_args!("<span class=\"c{}\">sender {sender}</span> ", number % 8));
    }
    page.put(format_args!("</p>\n"));
}

fn trend(page: &mut Page, name: &str, lines: &[(u64, Vec<&Update>)], of: impl Fn(&Update) -> Option<f64>) {
    let of = &of;
    let points =
        || lines.iter().flat_map(|(_, line)| line.iter().filter_map(move |u| Some((u.step, of(u)?))));
    let finite = || points().filter(|(_, y)| y.is_finite());
    let (Some(first), Some(last)) = (finite().map(|p| p.0).min(), finite().map(|p| p.0).max()) else {
        return;
    };
    let top = finite().map(|(_, y)| y).fold(0.0, f64::max);
    let span = (last - first).max(1) as f64;
    let place = |step: u64, y: f64| {
        let x = 60.0 + (step - first) as f64 / span * (WIDTH - 80.0);
        (x, 130.0 - if top > 0.0 { y / top * 115.0 } else { 0.0 })
    };
    page.put(format_args!(
        "<figure><figcaption>{name}</figcaption><svg class=\"lines\" viewBox=\"0 0 {WIDTH} 155\" role=\"img\" \
         aria-label=\"{name} of {} senders from step {first} to {last}; the largest is {}.\">\
         <path class=\"axis\" d=\"M60 10V130H{}\"/><text x=\"4\" y=\"20\">{}</text><text x=\"4\" y=\"134\">0</text>\
         <text x=\"60\" y=\"150\">{first}</text><text class=\"end\" x=\"{}\" y=\"150\">{last}</text>",
        lines.len(),
        view::number(Some(top)),
        WIDTH - 20.0,
        view::number(Some(top)),
        WIDTH - 20.0,
    ));
    for (number, (sender, line)) in lines.iter().enumerate() {
        let every = line.len().div_ceil(MAX_POINTS).max(1);
        let (mut path, mut points) = (String::new(), String::new());
        for (at, update) in line.iter().enumerate() {
            let is_shown = at % every == 0 || at + 1 == line.len();
            let Some(y) = of(update).filter(|y| is_shown && y.is_finite()) else { continue };
            let (x, y) = place(update.step, y);
            path += &format!("{}{x:.1} {y:.1}", if path.is_empty() { "M" } else { "L" });
            if line.len() <= MARKED {
                points += &format!("<circle class=\"c{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>", number % 8);
            }
        }
        page.put(format_args!(
            "<path class=\"c{}\" d=\"{path}\"><title>sender {sender}</title></path>{points}",
            number % 8
        ));
    }
    page.put(format_args!("</svg></figure>\n"));
}

/// Draws counts as a small picture of at most 64 columns; the scale is logarithmic.
pub(super) fn spark(counts: &[u64]) -> String {
    let per = counts.len().div_ceil(64).max(1);
    let columns: Vec<u64> = counts.chunks(per).map(|part| part.iter().sum()).collect();
    let most = columns.iter().copied().max().unwrap_or(0);
    let height = |count: u64| match count {
        0 => 0,
        count => ((14.0 * (count as f64).ln_1p() / (most as f64).ln_1p()).round() as u64).max(1),
    };
    let path: String = columns.iter().map(|&count| format!("V{}h2", 15 - height(count))).collect();
    let width = columns.len() * 2;
    format!(
        "<svg class=\"spark\" width=\"{width}\" height=\"15\" aria-hidden=\"true\"><path d=\"M0 15{path}V15z\"/></svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_as_large_as_their_sizes() {
        let sizes = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0];
        let areas = squarified(&sizes, [0.0, 0.0, 6.0, 4.0]);
        for (area, size) in areas.iter().zip(&sizes) {
            assert!((area[2] * area[3] - size).abs() < 1e-9, "{area:?}");
            assert!(area[0] >= -1e-9 && area[1] >= -1e-9);
            assert!(area[0] + area[2] <= 6.0 + 1e-9 && area[1] + area[3] <= 4.0 + 1e-9, "{area:?}");
            assert!(area[2] / area[3] < 4.0 && area[3] / area[2] < 4.0, "{area:?}");
        }
        assert!(squarified(&[], [0.0; 4]).is_empty());
        assert_eq!(squarified(&[1.0; 1000], [0.0, 0.0, 10.0, 10.0]).len(), 1000);
    }
}
