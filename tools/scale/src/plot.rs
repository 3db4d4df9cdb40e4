//! Pictures of the sweep, as SVG.

use std::path::Path;

use plotters::coord::combinators::WithKeyPoints;
use plotters::prelude::*;

use crate::Result;
use crate::sweep::{
    Best, COMPUTE, CROWD, MODEL, PLACES, Place, RATES, Sweep, WORKERS, show_count, show_rate, show_seconds,
};

const SIZE: (u32, u32) = (1080, 620);
/// Width of the names beside a plot, in pixels.
const NAMES: i32 = 300;
/// Colours that are distinct also without colour vision, together with the markers.
const COLOURS: [RGBColor; 13] = [
    RGBColor(200, 200, 200),
    RGBColor(0, 0, 0),
    RGBColor(120, 94, 40),
    RGBColor(0, 158, 115),
    RGBColor(86, 180, 233),
    RGBColor(130, 60, 160),
    RGBColor(120, 120, 120),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 114, 178),
    RGBColor(170, 30, 60),
    RGBColor(80, 160, 40),
];
/// Rate of the plot against workers.
const RATE: f64 = 1e9;

/// Writes all pictures into a folder.
pub(crate) fn all(sweep: &Sweep, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for place in PLACES {
        let file = |what: &str| folder.join(format!("{what}-{}.svg", place.short));
        let title = format!(
            "{CROWD} workers {}, {} parameters, {COMPUTE} s of compute",
            place.name,
            show_count(MODEL)
        );
        let by_rate = |rate: f64| sweep.choices(CROWD, MODEL, rate, place);
        let seconds = |best: &Best| best.step.seconds;
        let rates = Axis { values: &RATES, name: "rate of each link", show: show_rate };
        lines(
            sweep,
            &file("bandwidth"),
            &format!("Time of a step: {title}"),
            &rates,
            &by_rate,
            &seconds,
            Kind::Time,
        )?;
        let share = |best: &Best| 100.0 * COMPUTE / best.step.seconds;
        lines(
            sweep,
            &file("efficiency"),
            &format!("Efficiency: {title}"),
            &rates,
            &by_rate,
            &share,
            Kind::Share,
        )?;
        let counts = WORKERS.map(|n| n as f64);
        let workers = Axis { values: &counts, name: "workers", show: |n| format!("{n}") };
        let by_workers = |n: f64| sweep.choices(n as u64, MODEL, RATE, place);
        let title = format!(
            "Time of a step: links of {}, {}, {} parameters",
            show_rate(RATE),
            place.name,
            show_count(MODEL)
        );
        lines(sweep, &file("workers"), &title, &workers, &by_workers, &seconds, Kind::Time)?;
        map(sweep, &file("map"), place)?;
    }
    Ok(())
}

/// A logarithmic axis.
struct Axis<'a> {
    values: &'a [f64],
    name: &'static str,
    show: fn(f64) -> String,
}

/// The quantity of a plot's vertical axis.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Time,
    /// Percent of an ideal network.
    Share,
}

fn logarithmic(values: &[f64], spread: f64) -> WithKeyPoints<LogCoord<f64>> {
    let (low, high) = (values[0] / spread, values[values.len() - 1] * spread);
    // Ticks that do not touch each other.
    let mut ticks: Vec<f64> = Vec::new();
    for value in values {
        if ticks.last().is_none_or(|last| value / last > 2.9) {
            ticks.push(*value);
        }
    }
    (low..high).log_scale().with_key_points(ticks)
}

fn lines(
    sweep: &Sweep,
    path: &Path,
    title: &str,
    x: &Axis<'_>,
    choices: &dyn Fn(f64) -> Vec<Best>,
    y: &dyn Fn(&Best) -> f64,
    kind: Kind,
) -> Result<()> {
    let all: Vec<Vec<Best>> = x.values.iter().map(|value| choices(*value)).collect();
    let highest = all.iter().flatten().map(y).fold(0.0, f64::max);
    let decades: Vec<f64> =
        (0..12).map(|e| 10f64.powi(e - 1)).filter(|tick| *tick <= highest * 3.0).collect();
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(SIZE.0 as i32 - NAMES);
    let mut builder = ChartBuilder::on(&left);
    builder.caption(title, ("sans-serif", 15)).margin(14).x_label_area_size(46).y_label_area_size(70);
    let across = logarithmic(x.values, 1.1);
    let line = |number: usize| -> Vec<(f64, f64)> {
        let of = |list: &Vec<Best>| list.iter().find(|best| best.codec == number).map(y);
        x.values.iter().zip(&all).filter_map(|(x, list)| Some((*x, of(list)?))).collect()
    };
    macro_rules! draw {
        ($chart:expr, $label:expr, $name:literal) => {{
            let mut chart = $chart;
            chart
                .configure_mesh()
                .x_desc(x.name)
                .y_desc($name)
                .x_label_formatter(&|value| (x.show)(*value))
                .y_label_formatter(&$label)
                .light_line_style(RGBColor(240, 240, 240))
                .label_style(("sans-serif", 12))
                .draw()?;
            for (number, codec) in sweep.codecs.iter().enumerate() {
                let (colour, wide) = (COLOURS[number % COLOURS.len()], if number == 0 { 5 } else { 2 });
                chart.draw_series(LineSeries::new(line(number), colour.stroke_width(wide)))?;
                let at = 40 + 20 * number as i32;
                right.draw(&PathElement::new([(4, at + 6), (22, at + 6)], colour.stroke_width(wide)))?;
                right.draw(&Text::new(codec.name.as_str(), (28, at), ("sans-serif", 12)))?;
            }
        }};
    }
    match kind {
        Kind::Time => {
            let up = (COMPUTE * 0.9..highest * 1.2).log_scale().with_key_points(decades);
            draw!(builder.build_cartesian_2d(across, up)?, |s: &f64| show_seconds(*s), "seconds of a step");
        }
        Kind::Share => {
            draw!(
                builder.build_cartesian_2d(across, 0.0..100.0)?,
                |s: &f64| format!("{s:.0} %"),
                "step of an ideal network, % of the step"
            );
        }
    }
    area.present()?;
    Ok(())
}

/// Draws the recommended codec over rates and workers.
fn map(sweep: &Sweep, path: &Path, place: Place) -> Result<()> {
    const LEFT: i32 = 90;
    const TOP: i32 = 50;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!(
        "Recommended codec: {}, {} parameters, {COMPUTE} s of compute",
        place.name,
        show_count(MODEL)
    );
    area.draw(&Text::new(title, (LEFT, 14), ("sans-serif", 16)))?;
    let (width, height) = (
        (SIZE.0 as i32 - LEFT - NAMES) / RATES.len() as i32,
        (SIZE.1 as i32 - TOP - 50) / WORKERS.len() as i32,
    );
    let mut used = Vec::new();
    for (row, workers) in WORKERS.iter().rev().enumerate() {
        let y = TOP + row as i32 * height;
        area.draw(&Text::new(format!("{workers}"), (LEFT - 50, y + height / 2 - 6), ("sans-serif", 12)))?;
        for (column, rate) in RATES.iter().enumerate() {
            let x = LEFT + column as i32 * width;
            let choices = sweep.choices(*workers, MODEL, *rate, place);
            let Some(best) = sweep.recommended(&choices) else { continue };
            let colour = COLOURS[best.codec % COLOURS.len()];
            area.draw(&Rectangle::new([(x, y), (x + width - 1, y + height - 1)], colour.mix(0.55).filled()))?;
            let times = sweep.plain(&choices) / best.step.seconds;
            let text = if times >= 99.5 { format!("{times:.0}x") } else { format!("{times:.1}x") };
            area.draw(&Text::new(text, (x + 5, y + height / 2 - 6), ("sans-serif", 11)))?;
            if !used.contains(&best.codec) {
                used.push(best.codec);
            }
        }
    }
    for (column, rate) in RATES.iter().enumerate() {
        let at = (LEFT + column as i32 * width, TOP + WORKERS.len() as i32 * height + 6);
        let text = show_rate(*rate).replace(" Gbit/s", " G").replace(" Mbit/s", " M");
        area.draw(&Text::new(text, (at.0 + 6, at.1), ("sans-serif", 12)))?;
    }
    let below = TOP + WORKERS.len() as i32 * height + 26;
    area.draw(&Text::new(
        "rate of each link, bit/s; in the cells: times as fast as without compression",
        (LEFT, below),
        ("sans-serif", 12),
    ))?;
    area.draw(&Text::new("workers", (8, TOP - 18), ("sans-serif", 12)))?;
    used.sort_unstable();
    for (line, number) in used.iter().enumerate() {
        let at = (SIZE.0 as i32 - NAMES + 20, TOP + 24 * line as i32);
        area.draw(&Rectangle::new(
            [at, (at.0 + 16, at.1 + 14)],
            COLOURS[number % COLOURS.len()].mix(0.55).filled(),
        ))?;
        area.draw(&Text::new(sweep.codecs[*number].name.as_str(), (at.0 + 24, at.1), ("sans-serif", 13)))?;
    }
    area.present()?;
    Ok(())
}
