//! Plots, as SVG.

use std::path::Path;

use plotters::coord::combinators::WithKeyPoints;
use plotters::prelude::*;

use crate::runs::UNCOMPRESSED;
use crate::{Crowd, Result, Row, Study};

const SIZE: (u32, u32) = (1080, 620);
/// Width of the names beside a plot, in pixels.
const NAMES: i32 = 360;
/// Colours that are distinct also without colour vision, together with the markers' shapes.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 40),
    RGBColor(130, 60, 160),
    RGBColor(120, 120, 120),
];

/// Writes all plots into a folder.
pub(crate) fn all(studies: &[Study], traffic: &[Crowd], folder: &Path) -> Result<()> {
    for study in studies {
        loss(study, &folder.join(format!("{}-loss.svg", study.short)))?;
        ratio(study, &folder.join(format!("{}-ratio.svg", study.short)))?;
    }
    if !traffic.is_empty() {
        workers(traffic, &folder.join("workers.svg"))?;
    }
    Ok(())
}

/// Lines of the plot of losses: the main runs.
const LINES: [&str; 10] = [
    UNCOMPRESSED,
    "natural",
    "qsgd",
    "sign",
    "topk:density=0.01,values=pow2",
    "DGC",
    "sbc:density=0.001, ",
    "sbc:density=0.01",
    "ScaleCom",
    "chunked",
];

fn loss(study: &Study, path: &Path) -> Result<()> {
    let lines: Vec<(&Row, Vec<(f64, f64)>)> = LINES
        .iter()
        .filter_map(|line| {
            let wanted = |row: &&Row| match *line {
                UNCOMPRESSED => row.run.name == UNCOMPRESSED,
                line => row.run.name.starts_with(line),
            };
            study.rows.iter().find(wanted)
        })
        .map(|row| (row, smoothed(row)))
        .collect();
    let points = || lines.iter().flat_map(|(_, line)| line);
    let x = bounds(points().map(|p| p.0), 1.3);
    let y = bounds(points().map(|p| p.1), 1.2);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let caption = format!("{}: loss against bytes sent", study.title);
    let (left, right) = area.split_horizontally(SIZE.0 as i32 - NAMES);
    let mut chart = ChartBuilder::on(&left)
        .caption(caption, ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(70)
        .build_cartesian_2d(axis(x), axis(y))?;
    chart
        .configure_mesh()
        .x_desc("bytes sent, all headers counted (k, M, G: 10^3, 10^6, 10^9)")
        .y_desc("training loss, mean of seeds, of a window of a twentieth of the steps")
        .x_label_formatter(&|x| bytes(*x).replace([' ', 'B'], ""))
        .y_label_formatter(&|y| short(*y))
        .light_line_style(RGBColor(240, 240, 240))
        .label_style(("sans-serif", 14))
        .draw()?;
    for (i, (row, line)) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        chart.draw_series(LineSeries::new(line.iter().copied(), colour.stroke_width(2)))?;
        let y = 46 + 20 * i as i32;
        right.draw(&PathElement::new([(4, y + 6), (22, y + 6)], colour.stroke_width(3)))?;
        right.draw(&Text::new(row.run.name.as_str(), (28, y), ("sans-serif", 12)))?;
    }
    area.present()?;
    Ok(())
}

/// Returns bytes sent and loss, over windows of a twentieth of the steps, as means over the seeds.
fn smoothed(row: &Row) -> Vec<(f64, f64)> {
    let steps = row.outcomes.iter().map(|o| o.losses.len()).min().unwrap_or(0);
    let window = (steps / 20).max(1);
    let seeds = row.outcomes.len() as f64;
    let mean = |end: usize| {
        let losses =
            row.outcomes.iter().map(|o| o.losses[end - window..end].iter().sum::<f32>() / window as f32);
        let bytes: f64 = row.outcomes.iter().map(|o| o.sent[end - 1]).sum();
        (bytes / seeds, losses.map(f64::from).sum::<f64>() / seeds)
    };
    (window..=steps).step_by((window / 2).max(1)).map(mean).filter(|p| p.0 > 0.0 && p.1 > 0.0).collect()
}

fn ratio(study: &Study, path: &Path) -> Result<()> {
    let points: Vec<(f64, f64, &Row)> = study
        .rows
        .iter()
        .filter(|row| row.outcomes.iter().all(|o| o.diverged.is_none()))
        .map(|row| (study.ratio(row), worth(study, row), row))
        .collect();
    let x = bounds(points.iter().map(|p| p.0), 1.5);
    let y = bounds(points.iter().map(|p| p.1), 1.1);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let test = if study.bits { "test, bits per byte" } else { "test, % wrong" };
    // Long names: a number at each point, and the names beside the plot.
    let (left, right) = area.split_horizontally(SIZE.0 as i32 - NAMES);
    let mut chart = ChartBuilder::on(&left)
        .caption(format!("{}: ratio against the test", study.title), ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(axis(x), axis(y))?;
    chart
        .configure_mesh()
        .x_desc("times smaller than 32-bit floats")
        .y_desc(test)
        .x_label_formatter(&|x| format!("{}x", short(*x)))
        .y_label_formatter(&|y| short(*y))
        .light_line_style(RGBColor(240, 240, 240))
        .label_style(("sans-serif", 14))
        .draw()?;
    for (i, (x, y, row)) in points.iter().enumerate() {
        let (colour, at) = (COLOURS[i % COLOURS.len()], (*x, *y));
        let best = study.is_best_at_its_size(row);
        let (size, style) = if best { (6, colour.filled()) } else { (3, colour.stroke_width(1)) };
        chart.draw_series([Circle::new(at, size, style)])?;
        let label = Text::new(format!("{}", i + 1), (6, -6), ("sans-serif", 12));
        chart.draw_series([EmptyElement::at(at) + label])?;
        let at = (6, 46 + 20 * i as i32);
        right.draw(&Circle::new((at.0, at.1 + 6), size, style))?;
        let name = format!("{} {}{}", i + 1, row.run.name, if best { " (best)" } else { "" });
        right.draw(&Text::new(name, (at.0 + 10, at.1), ("sans-serif", 12)))?;
    }
    let note = "best: no other run is both smaller and better on the validation data";
    right.draw(&Text::new(note, (6, 46 + 20 * points.len() as i32 + 8), ("sans-serif", 12)))?;
    area.present()?;
    Ok(())
}

fn workers(traffic: &[Crowd], path: &Path) -> Result<()> {
    let mut names: Vec<&str> = traffic.iter().map(|c| c.name.as_str()).collect();
    names.dedup();
    let most = traffic.iter().map(|c| c.sent.max(c.received)).fold(0.0, f64::max);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Bytes of one worker in a step, against the number of workers", ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(80)
        .build_cartesian_2d(
            (1.8f64..17.5).log_scale().with_key_points(vec![2.0, 4.0, 8.0, 16.0]),
            0.0..most * 1.15,
        )?;
    chart
        .configure_mesh()
        .x_desc("workers")
        .y_desc("bytes per step")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| bytes(*y))
        .light_line_style(RGBColor(240, 240, 240))
        .label_style(("sans-serif", 14))
        .draw()?;
    let mut colours = COLOURS[1..].iter().copied();
    for name in names {
        for (what, of) in [("sent", (|c| c.sent) as fn(&Crowd) -> f64), ("received", |c| c.received)] {
            let colour = colours.next().unwrap_or(BLACK);
            let line: Vec<(f64, f64)> =
                traffic.iter().filter(|c| c.name == name).map(|c| (c.workers as f64, of(c))).collect();
            chart
                .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(4))?
                .label(format!("{name}: {what}"))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(180, 180, 180))
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()?;
    Ok(())
}

fn bounds(values: impl Iterator<Item = f64>, factor: f64) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |b, x| (b.0.min(x), b.1.max(x)));
    (low / factor, high * factor)
}

/// Returns a run's test score on a logarithmic axis, where less is better. The minimum is one digit
/// in a million.
fn worth(study: &Study, row: &Row) -> f64 {
    let test = study.test(row).mean;
    if study.bits { test } else { (100.0 - test).max(1e-4) }
}

/// Returns a logarithmic axis with ticks at 1, 2 and 5 times powers of ten, or at equal distances where fewer
/// than three of those are in range.
fn axis(range: (f64, f64)) -> WithKeyPoints<LogCoord<f64>> {
    let decades = (range.0.log10().floor() as i32 - 1)..=(range.1.log10().ceil() as i32);
    let steps = decades.flat_map(|d| [1.0, 2.0, 5.0].map(|s| s * 10f64.powi(d)));
    let mut ticks: Vec<f64> = steps.clone().filter(|tick| (range.0..=range.1).contains(tick)).collect();
    if ticks.len() < 3 {
        let multiples = |step: f64| -> Vec<f64> {
            let (first, last) = ((range.0 / step).ceil() as u32, (range.1 / step).floor() as u32);
            (first..=last).map(|i| f64::from(i) * step).collect()
        };
        ticks = steps.map(multiples).find(|ticks| ticks.len() <= 10).unwrap_or_default();
    }
    (range.0..range.1).log_scale().with_key_points(ticks)
}

fn bytes(x: f64) -> String {
    match x {
        x if x >= 1e9 => format!("{} GB", short(x / 1e9)),
        x if x >= 1e6 => format!("{} MB", short(x / 1e6)),
        x if x >= 1e3 => format!("{} kB", short(x / 1e3)),
        x => format!("{} B", short(x)),
    }
}

/// Formats a number with as few digits as possible.
fn short(x: f64) -> String {
    let digits = (2 - x.abs().max(1e-9).log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{x:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
