//! The recommendations of `gcodec plan` on the links of measured exchanges.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::model::{Backend, Exchange, NEARLY};
use crate::real::{Results, Row};
use crate::{Result, check, page, sweep};

/// Recommendations beside the measured exchanges of one link.
struct OnLink<'r> {
    /// Codec recommended for the latency of the link.
    by_link: &'r Row,
    /// Codec recommended for the latency of a small message between these processes.
    by_message: &'r Row,
    /// Fastest codec as measured.
    fastest: &'r Row,
}

impl OnLink<'_> {
    /// Returns how much longer a codec's step is than the fastest one, as a share.
    fn longer(&self, row: &Row) -> f64 {
        row.seconds / self.fastest.seconds - 1.0
    }

    /// Whether a codec is nearly as fast as the fastest, in the words of `gcodec plan`.
    fn is_near(&self, row: &Row) -> bool {
        self.longer(row) <= NEARLY - 1.0
    }
}

#[derive(Debug, Deserialize)]
struct Answer {
    recommended: Recommended,
}

#[derive(Debug, Deserialize)]
struct Recommended {
    codec: Option<String>,
    exchange: Exchange,
}

/// Asks, compares, prints, and with `write` replaces the table of the page.
pub(crate) fn run(gcodec: &Path, results: &Path, measured: &Path, write: bool) -> Result<()> {
    let results = Results::read(results)?;
    let rows: Vec<&Row> =
        check::without_free(&results.exchanges).chain(check::without_free(&results.more)).collect();
    let links = check::links(rows.iter().map(|row| (row.workers, row.mbit, row.ms)));
    let mut all = Vec::new();
    for link in links {
        let here: Vec<&Row> =
            rows.iter().filter(|row| (row.workers, row.mbit, row.ms) == link).copied().collect();
        let fastest = here.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds)).ok_or("no rows")?;
        let message = check::message(&results.exchanges, fastest)? / Backend::GLOO.latencies as f64;
        let asked = [fastest.ms / 1e3, message].map(|latency| ask(gcodec, measured, &here, latency));
        let [by_link, by_message] = asked;
        all.push(OnLink { by_link: by_link?, by_message: by_message?, fastest });
    }
    let text = table(&all)?;
    println!("{text}");
    if write {
        page::replace("gcodec-scale links --write", &text)?;
    }
    Ok(())
}

/// Runs `gcodec plan` for the link of these rows, with the codecs and exchanges that were measured on it and
/// this latency of a message.
fn ask<'r>(gcodec: &Path, measured: &Path, here: &[&'r Row], latency: f64) -> Result<&'r Row> {
    let first = here.first().ok_or("a link without rows")?;
    let mut command = Command::new(gcodec);
    command.arg("plan").arg("--measured").arg(measured).args(["--json", "--compute", "0"]);
    command.args(["--backend", "gloo", "--adapter", "average"]);
    command.args(["--exchange", "ring", "--exchange", "gather", "--exchange", "shared-set"]);
    let workers = first.workers.to_string();
    // All workers are processes of one machine.
    command.args(["--workers", &workers, "--share-cores", &workers]);
    command.args(["--link", &format!("{}Mbit", first.mbit), "--latency", &format!("{latency}s")]);
    // ScaleCom is an exchange of top-k.
    let codecs = here.iter().filter(|row| row.codec != check::PLAIN && !row.codec.starts_with("scalecom"));
    codecs.for_each(|row| {
        command.args(["--codec", &row.codec]);
    });
    let output = command.output().map_err(|e| format!("{}: {e}", gcodec.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let Recommended { codec, exchange } = serde_json::from_slice::<Answer>(&output.stdout)?.recommended;
    let name = match codec {
        None => check::PLAIN.to_owned(),
        Some(codec) if exchange == Exchange::SharedSet => sweep::short(&codec).replace("topk", "scalecom"),
        Some(codec) => sweep::short(&codec),
    };
    here.iter().find(|row| row.codec == name).copied().ok_or_else(|| format!("no row of {name}").into())
}

fn table(compared: &[OnLink<'_>]) -> Result<String> {
    let by_link = compared.iter().filter(|one| one.is_near(one.by_link)).count();
    let by_message = compared.iter().filter(|one| one.is_near(one.by_message)).count();
    let text = format!(
        "The recommended codec is the fastest or at most {:.0} % behind it on {by_link} of {} links with the \
         latency of the link, and on {by_message} with that of a small message.",
        100.0 * (NEARLY - 1.0),
        compared.len(),
    );
    let mut out = format!("\n{}\n\n", page::wrapped(&text));
    writeln!(
        out,
        "| workers | Mbit/s | ms | by the link | measured | by a message | measured | fastest | measured |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    for one in compared {
        let Row { workers, mbit, ms, .. } = one.fastest;
        let cell = |row: &Row| {
            let longer = match 100.0 * one.longer(row) {
                0.0 => String::new(),
                longer if one.is_near(row) => format!(", {longer:+.0} %"),
                longer => format!(", **{longer:+.0} %**"),
            };
            format!("`{}` | {:.1} ms{longer}", row.codec, 1e3 * row.seconds)
        };
        let cells = [one.by_link, one.by_message, one.fastest].map(cell).join(" | ");
        writeln!(out, "| {workers} | {mbit} | {ms} | {cells} |")?;
    }
    Ok(out)
}
