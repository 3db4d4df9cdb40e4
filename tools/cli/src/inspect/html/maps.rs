//! Maps of where the elements of a tensor are that are not zero.

use super::Page;
use crate::inspect::tensor::Tensor;
use crate::inspect::view;
use crate::output::{escape, thousands};
use base64::Engine;
use gcodec::reduce::stats::Grid;

/// Most maps: the tensors with most bytes.
const MAX_MAPS: usize = 48;
/// Shades of a map.
const SHADES: u8 = 15;
/// Bytes of a bitmap's headers and palette.
const HEAD: u32 = 14 + 40 + 16 * 4;

/// The maps of the largest tensors; `order`: the largest first.
pub(super) fn all(page: &mut Page, order: &[&Tensor]) {
    let about = "Elements that are not zero by row and column, all updates together: the darkest shade is the \
                 fullest cell.";
    page.section("where", "Where", about);
    let sparse = |t: &&&Tensor| t.nonzero().is_some_and(|share| share < 1.0);
    let is_map = |grid: &&Grid| grid.height() > 1 && grid.width() > 1;
    let mapped =
        order.iter().filter(sparse).filter_map(|t| Some((*t, t.stats.grid.as_ref().filter(is_map)?)));
    let mapped: Vec<(&Tensor, &Grid)> = mapped.take(MAX_MAPS).collect();
    if mapped.is_empty() {
        page.put(format_args!("<p>No tensor of rows and columns has zeros.</p>\n"));
        return;
    }
    page.put(format_args!("<div class=\"maps\">"));
    for (tensor, grid) in mapped {
        let (least, most) = extremes(grid);
        page.put(format_args!(
            "<figure><img width=\"{}\" height=\"{}\" alt=\"Map of {}: of each cell, {} to {} of the elements are \
             not zero\" src=\"data:image/bmp;base64,{}\"><figcaption>{}<br>{} rows, {} columns, {}</figcaption></figure>\n",
            grid.width() * 3,
            grid.height() * 3,
            escape(&tensor.name),
            view::percent(least),
            view::percent(most),
            base64::engine::general_purpose::STANDARD.encode(bitmap(grid, most)),
            escape(&tensor.name),
            thousands(grid.rows()),
            thousands(grid.columns()),
            view::share(tensor.nonzero()),
        ));
    }
    page.put(format_args!("</div>\n"));
}

/// Returns the share of nonzero elements in a cell. Of several updates, a cell can be counted several times.
fn share(grid: &Grid, row: u64, column: u64) -> f64 {
    grid.cell(row, column).map_or(0.0, |(count, of)| count as f64 / of.max(1) as f64)
}

fn extremes(grid: &Grid) -> (f64, f64) {
    let cells = (0..grid.height()).flat_map(|row| (0..grid.width()).map(move |column| (row, column)));
    cells
        .map(|(row, column)| share(grid, row, column))
        .fold((1.0, 0.0), |(least, most), share| (f64::min(least, share), f64::max(most, share)))
}

/// Returns a bitmap of 16 colours, a pixel for each cell.
fn bitmap(grid: &Grid, most: f64) -> Vec<u8> {
    let (width, height) = (grid.width() as u32, grid.height() as u32);
    // A row of 4-bit pixels ends at a multiple of 4 bytes.
    let stride = width.div_ceil(8) * 4;
    let mut out = b"BM".to_vec();
    for number in [HEAD + stride * height, 0, HEAD, 40, width, height] {
        out.extend(number.to_le_bytes());
    }
    // One plane of 4 bits for each pixel, not compressed.
    out.extend([1, 0, 4, 0]);
    for number in [0, stride * height, 0, 0, 16, 0] {
        out.extend(u32::to_le_bytes(number));
    }
    for shade in 0..=SHADES {
        out.extend(colour(f64::from(shade) / f64::from(SHADES)));
    }
    for row in (0..u64::from(height)).rev() {
        let mut bytes = vec![0; stride as usize];
        for column in 0..u64::from(width) {
            let share = share(grid, row, column) / most.max(f64::MIN_POSITIVE);
            // No element has a colour of its own, and one element is visible.
            let shade = (share.clamp(0.0, 1.0) * f64::from(SHADES)).ceil() as u8;
            bytes[column as usize / 2] |= if column % 2 == 0 { shade << 4 } else { shade };
        }
        out.extend(bytes);
    }
    out
}

/// Returns a colour between white and dark blue: blue, green, red, 0.
fn colour(share: f64) -> [u8; 4] {
    let mix = |from: f64, to: f64| (from + (to - from) * share.sqrt()).round() as u8;
    [mix(255.0, 110.0), mix(252.0, 40.0), mix(247.0, 8.0), 0]
}
