//! The report as text.

use super::report::Report;
use super::tensor::Tensor;
use super::update::Update;
use super::view;
use crate::output::{Align, Table, human_bytes, printable, real, thousands};
use std::fmt::Write;

/// Formats the report of the stream `name`, or of one frame of it if `one_frame`.
pub(crate) fn render(report: &Report, name: &str, one_frame: bool) -> String {
    let mut out = String::new();
    let updates = report.updates.len();
    if one_frame {
        for frame in &report.frames {
            put(
                &mut out,
                format_args!(
                    "{name}: frame {}, {}, {} at byte {:#x}\n",
                    frame.number,
                    frame.kind,
                    human_bytes(frame.bytes),
                    frame.offset
                ),
            );
        }
    } else {
        put(
            &mut out,
            format_args!(
                "{name}: format {}.{}, {}, {} frame{} in {} segment{}, {updates} update{}, checks {}\n",
                report.version.map_or(0, |v| v.major),
                report.version.map_or(0, |v| v.minor),
                human_bytes(report.bytes),
                report.frames.len(),
                plural(report.frames.len() as u64),
                report.segments,
                plural(report.segments),
                plural(updates as u64),
                if report.ok { "ok" } else { "FAILED" },
            ),
        );
    }
    for (key, value) in &report.metadata {
        put(&mut out, format_args!("  {} = {}\n", printable(key), printable(value)));
    }
    for manifest in report.manifests.iter().filter(|_| one_frame || report.manifests.len() > 1) {
        put(
            &mut out,
            format_args!(
                "  manifest in frame {}: {} tensors, {} elements, id {:.16}\n",
                manifest.frame,
                thousands(manifest.tensors),
                thousands(manifest.elements),
                manifest.id
            ),
        );
    }
    for set in &report.index_sets {
        put(
            &mut out,
            format_args!(
                "  index set in frame {}: {} positions, step {}, leader {}, id {:.16}\n",
                set.frame,
                thousands(set.kept),
                set.step,
                set.leader,
                set.id
            ),
        );
    }
    for model in &report.models {
        put(
            &mut out,
            format_args!(
                "  model in frame {}: {} ({}), {}, id {:.16}\n",
                model.frame,
                printable(&model.name),
                printable(&model.format),
                human_bytes(model.weights_bytes),
                model.id
            ),
        );
    }
    for update in &report.updates {
        put_update(&mut out, update);
    }
    out
}

fn put_update(out: &mut String, update: &Update) {
    put(out, format_args!("\nupdate: step {}", update.step));
    let numbers = [
        ("round", update.round, true),
        ("sender", update.sender, false),
        ("world", update.world, true),
        ("contributors", update.contributors, true),
        ("inner steps", update.inner_steps, true),
    ];
    for (what, number, _) in numbers.iter().filter(|(_, number, optional)| !optional || *number > 0) {
        put(out, format_args!(", {what} {number}"));
    }
    if update.reduction != "none" {
        put(out, format_args!(", {}", update.reduction));
    }
    if update.delta {
        put(out, format_args!(", delta"));
    }
    let frames: Vec<String> = update.frames.iter().map(u64::to_string).collect();
    put(
        out,
        format_args!(
            ", {} in frame{} {}, {} block{}, {} shared table{}\n",
            human_bytes(update.bytes),
            plural(update.frames.len() as u64),
            frames.join(" "),
            update.blocks,
            plural(update.blocks),
            update.tables,
            plural(update.tables),
        ),
    );
    if !update.label.is_empty() {
        put(out, format_args!("  label: {}\n", printable(&update.label)));
    }
    put_table(out, update);
}

fn put_table(out: &mut String, update: &Update) {
    let numeric = ["kept", "density", "pos", "val", "ovh", "bits/par", "ratio"].map(|c| (c, Align::Right));
    let text = ["tensor", "dtype", "shape", "support", "values"].map(|c| (c, Align::Left));
    let mut table = Table::new(&[&text[..], &numeric[..], &[("checks", Align::Left)]].concat());
    for tensor in &update.tensors {
        table.row(row(tensor));
    }
    let per = |bits: f64| match update.elements {
        0 => "-".to_owned(),
        elements => format!("{:.4}", bits / elements as f64),
    };
    let sum = |bits: fn(&Tensor) -> f64| update.tensors.iter().map(bits).sum::<f64>();
    let header_bits = update.header_bytes as f64 * 8.0;
    let mut last = |name: &str, cells: [String; 7]| {
        let front = [name, "", "", "", ""].map(str::to_owned);
        table.row([&front[..], &cells[..], &[String::new()]].concat());
    };
    let none = String::new;
    last("headers", [none(), none(), none(), none(), per(header_bits), per(header_bits), none()]);
    last(
        "all",
        [
            thousands(update.kept),
            percent(update.density),
            per(sum(|t| t.position_bits)),
            per(sum(|t| t.value_bits)),
            per(sum(|t| t.overhead_bits) + header_bits),
            per(update.bytes as f64 * 8.0),
            real(update.ratio),
        ],
    );
    put(out, format_args!("{table}"));
}

fn row(tensor: &Tensor) -> Vec<String> {
    let shape = match tensor.shape.as_slice() {
        [] => "scalar".into(),
        dims => dims.iter().map(u64::to_string).collect::<Vec<_>>().join("x"),
    };
    let per = |bits: f64| view::bits((tensor.elements > 0).then(|| bits / tensor.elements as f64));
    let support = match tensor.codes.is_empty() {
        true => tensor.support.to_string(),
        false => format!("{} {}", tensor.support.replace("gaps-", ""), tensor.codes),
    };
    let checks = match (&tensor.error, tensor.flags()) {
        (Some(_), _) => "FAILED".into(),
        (None, flags) if flags.is_empty() => "ok".into(),
        (None, flags) => flags,
    };
    let unknown = || "?".to_owned();
    let mark = if tensor.apportioned { "~" } else { "" };
    vec![
        tensor.name.clone(),
        tensor.dtype.clone().into_owned(),
        shape,
        support,
        tensor.values.to_string(),
        tensor.kept.map_or_else(unknown, thousands),
        tensor.density.map_or_else(unknown, percent),
        per(tensor.position_bits),
        per(tensor.value_bits),
        per(tensor.overhead_bits),
        format!("{mark}{}", per(tensor.bits())),
        if tensor.bits() > 0.0 { real(tensor.ratio) } else { "-".into() },
        checks,
    ]
}

fn percent(part: f64) -> String {
    format!("{:.3}%", part * 100.0)
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "writing to a String does not fail");
}
