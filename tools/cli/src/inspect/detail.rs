//! One tensor: its numbers, its exponents, and where its elements are.

use super::tensor::Tensor;
use super::view;
use crate::output::{printable, thousands};
use crate::terminal::{Ink, Terminal, bar};
use gcodec::reduce::stats::Grid;

/// Most lines of exponents.
const EXPONENTS: usize = 16;
/// Shades of the map, from no element to all.
const SHADES: [char; 6] = [' ', '·', '░', '▒', '▓', '█'];

/// Formats a tensor.
pub(crate) fn text(tensor: &Tensor, terminal: &Terminal) -> String {
    let stats = &tensor.stats;
    let mut lines = vec![String::new()];
    let of = if tensor.updates > 1 { format!(" of {} updates", tensor.updates) } else { String::new() };
    let title = format!("{} {} {}{of}", printable(&tensor.name), tensor.dtype, view::shape(&tensor.shape));
    lines.push(terminal.paint(Ink::Bold, &title));
    let count = |number: u64| thousands(number);
    let differ = match tensor.delta || stats.unplaced > 0 {
        true => "may differ from the base's".to_owned(),
        false => format!("{} are not zero", count(stats.nonzero())),
    };
    lines.push(format!(
        "  {} bytes, {} bits per element; {} of {} elements are stored, {differ} ({})",
        count(tensor.bytes()),
        view::bits(tensor.bits_per_parameter),
        tensor.kept.map_or_else(|| "?".to_owned(), count),
        count(tensor.elements.saturating_mul(tensor.updates)),
        view::share(tensor.nonzero()),
    ));
    if let Some(placement) = &tensor.placement {
        lines.push(format!("  {}", printable(placement)));
    }
    if let Some(reason) = &tensor.opaque {
        lines.push(format!("  opaque: {}", printable(reason)));
        return lines.iter().map(|line| format!("{line}\n")).collect();
    }
    if stats.unread > 0 {
        lines.push(format!(
            "  {} values mean nothing without a base, a model or other blocks",
            count(stats.unread)
        ));
    }
    lines.push(format!(
        "  norm {}, mean {}, std {}, min {}, max {}",
        view::number(tensor.norm),
        view::number(tensor.mean),
        view::number(tensor.std),
        view::number(tensor.min),
        view::number(tensor.max),
    ));
    for (what, count, first) in
        [("NaN", stats.nan, stats.first_nan), ("Inf", stats.infinite, stats.first_infinite)]
    {
        if let Some(first) = first {
            let text =
                format!("  {} {what}, the first at {}", thousands(count), view::place(first, &tensor.shape));
            lines.push(terminal.paint(Ink::Bad, &text));
        }
    }
    lines.extend(exponents(tensor, terminal));
    lines.extend(stats.grid.iter().flat_map(map));
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The counts of magnitudes, as bars.
fn exponents(tensor: &Tensor, terminal: &Terminal) -> Vec<String> {
    let (first, counts) = tensor.stats.exponents.range();
    if counts.is_empty() {
        return Vec::new();
    }
    let negative: u64 =
        tensor.stats.exponents.iter().filter(|(negative, ..)| *negative).map(|(.., n)| n).sum();
    let all: u64 = counts.iter().sum();
    let mut lines =
        vec![format!("  magnitudes; {} are negative", view::percent(negative as f64 / all as f64))];
    let per = counts.len().div_ceil(EXPONENTS);
    let sums: Vec<u64> = counts.chunks(per).map(|part| part.iter().sum()).collect();
    let most = sums.iter().copied().max().unwrap_or(1);
    let width = terminal.width.saturating_sub(34).min(60);
    for (number, &sum) in sums.iter().enumerate().rev() {
        let low = i32::from(first) + (number * per) as i32 - 127;
        let range = format!("2^{low}..2^{}", low + per as i32);
        let share = view::percent(sum as f64 / all as f64);
        lines.push(format!("  {range:>14} {share:>8}  {}", bar(sum as f64 / most as f64, width)));
    }
    lines
}

/// A map of the elements that are not zero, two rows of cells in each line.
fn map(grid: &Grid) -> Vec<String> {
    if grid.height() * grid.width() < 2 {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "  elements that are not zero, by {} row{} and {} column{}",
        thousands(grid.rows()),
        if grid.rows() == 1 { "" } else { "s" },
        thousands(grid.columns()),
        if grid.columns() == 1 { "" } else { "s" },
    )];
    let shades = (SHADES.len() - 1) as f64;
    for row in (0..grid.height()).step_by(2) {
        let shade = |column: u64| {
            let cells = [row, row + 1].into_iter().filter_map(|row| grid.cell(row, column));
            let (count, of) = cells.fold((0, 0), |sum, cell| (sum.0 + cell.0, sum.1 + cell.1));
            // The root shows sparse places, too.
            let share = (count as f64 / (of.max(1)) as f64).min(1.0).sqrt();
            SHADES[(share * shades).ceil() as usize]
        };
        lines.push(format!("  │{}│", (0..grid.width()).map(shade).collect::<String>()));
    }
    lines
}
