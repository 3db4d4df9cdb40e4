//! The model against measured exchanges.

use std::fmt::Write as _;
use std::path::Path;

use crate::Result;
use crate::model::{Exchange, Fleet, Growth, Link, Parts, SharedSet, step};
use crate::page;
use crate::real::{Alone, Results, Row};

/// The share of rows, and the distance within which they must be.
const WANTED: f64 = 0.9;
const WITHIN: f64 = 0.15;
/// Names of rows that are no codec.
const PLAIN: &str = "none";
const SMALL: &str = "small";
/// A message of gloo waits for the receiver's notice that its buffer is ready.
const HANDSHAKE: f64 = 2.0;
/// All-gathers of a few bytes beside that of the updates, in `gcodec.torch.Average`: the ranks' tensors, the
/// sizes of updates, and whether all ranks have decoded them.
const CONTROL: u64 = 3;

/// Share of a step from which on the links dominate it: their rates and latencies, without any work of
/// processors.
const DOMINANT: f64 = 0.6;

/// A measured step beside that of the model, in seconds.
struct Compared<'r> {
    row: &'r Row,
    modelled: f64,
    /// Seconds of the links alone.
    links: f64,
}

impl Compared<'_> {
    /// Returns how much longer the model's step is than the measured one, as a share of that.
    fn error(&self) -> f64 {
        self.modelled / self.row.seconds - 1.0
    }

    /// Whether the links take most of the step. The rest depends on which of the processes, and of other
    /// programs, two cores run first.
    fn is_of_links(&self) -> bool {
        self.links >= DOMINANT * self.row.seconds
    }

    fn is_within(&self) -> bool {
        self.error().abs() <= WITHIN
    }
}

/// Compares, prints, and with `write` replaces the table of the page.
pub(crate) fn run(folder: &Path, cores: u32, write: bool) -> Result<()> {
    let results = Results::read(folder)?;
    let compared = compare(&results, cores, Coding::Measured)?;
    let alone = compare(&results, cores, Coding::Alone)?;
    let text = report(&results, &compared, &alone)?;
    println!("{text}");
    if write {
        page::replace("gcodec-scale check --write", &text)?;
    }
    let (of_links, _): (Vec<_>, Vec<_>) = compared.into_iter().partition(Compared::is_of_links);
    match within(&of_links) as f64 >= WANTED * of_links.len() as f64 && !of_links.is_empty() {
        true => Ok(()),
        false => Err(format!("fewer than {:.0} % of the steps are near the model", 100.0 * WANTED).into()),
    }
}

/// Where the time of coding comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    /// The measured steps themselves: the cores are shared with other programs, whose load changes.
    Measured,
    /// One process alone, times the processes of a core.
    Alone,
}

fn compare(results: &Results, cores: u32, coding: Coding) -> Result<Vec<Compared<'_>>> {
    let host = Host { results, cores: f64::from(cores), coding };
    let measured = results.rows.iter().filter(|row| row.codec != SMALL && !host.is_free(row));
    measured.map(|row| host.compare(row)).collect()
}

fn within(compared: &[Compared<'_>]) -> usize {
    compared.iter().filter(|one| one.is_within()).count()
}

/// The machine whose processes were measured.
struct Host<'r> {
    results: &'r Results,
    cores: f64,
    coding: Coding,
}

impl Host<'_> {
    /// Whether a row is of links that the machine does not fill.
    fn is_free(&self, row: &Row) -> bool {
        let fastest = self.results.rows.iter().map(|row| row.mbit).fold(0.0, f64::max);
        row.mbit == fastest
    }

    /// Returns the row of free links with this many workers.
    fn free(&self, row: &Row, codec: &str) -> Result<&Row> {
        let mut rows = self.results.rows.iter().filter(|one| self.is_free(one) && one.codec == codec);
        let found = rows.find(|one| one.workers == row.workers && (one.ms > 0.0) == (row.ms > 0.0));
        found.ok_or_else(|| format!("no row {codec} of {} workers on free links", row.workers).into())
    }

    fn compare<'r>(&self, row: &'r Row) -> Result<Compared<'r>> {
        let alone = |name: &str| self.results.alone.iter().find(|one| one.codec == name);
        let one = alone(&row.codec).ok_or_else(|| format!("parts.csv has no {}", row.codec))?;
        let plain = alone(PLAIN).ok_or("parts.csv has no row without compression")?;
        let parts = self.parts(one, row);
        let exchange = match (row.codec.as_str(), &parts.set) {
            (PLAIN, _) => Exchange::Ring,
            (_, Some(_)) => Exchange::SharedSet,
            _ => Exchange::Gather,
        };
        let fleet = Fleet {
            workers: row.workers,
            link: Link {
                bits_per_second: 1e6 * row.mbit.min(self.carried(row, plain)?),
                latency: self.latency(row)?,
            },
            groups: None,
            compute: 0.0,
            every: 1,
            overlap: false,
            control: CONTROL,
        };
        let missing = "an exchange that the model lacks";
        let modelled = step(&fleet, exchange, &parts).ok_or(missing)?.seconds;
        let link = Link { bits_per_second: 1e6 * row.mbit, latency: HANDSHAKE * row.ms / 1e3 };
        let alone = Parts { encode: 0.0, add: 0.0, sum: 0.0, ..parts };
        let links = step(&Fleet { link, ..fleet }, exchange, &alone).ok_or(missing)?.seconds;
        Ok(Compared { row, modelled, links })
    }

    /// Returns what a codec costs each of several processes on the cores of one machine.
    fn parts(&self, one: &Alone, row: &Row) -> Parts {
        let crowd = (row.workers as f64 / self.cores).max(1.0);
        let (encode, add, sum) = match self.coding {
            Coding::Measured => (row.coding, 0.0, 0.0),
            Coding::Alone => (crowd * one.encode, crowd * one.add, crowd * one.sum),
        };
        Parts {
            plain: one.plain,
            update: one.update,
            encode,
            add,
            sum,
            answer: 0.0,
            growth: Growth(vec![(1.0, 1.0)]),
            set: one.values.map(|values| SharedSet {
                positions: one.update - values,
                values,
                relative_l2: 0.0,
            }),
        }
    }

    /// Returns the seconds of a message without bytes: the latency of the link, twice, and the processors'
    /// time. An all-gather of 8 bytes on the same links shows it.
    fn latency(&self, row: &Row) -> Result<f64> {
        let mut rows = self.results.rows.iter().filter(|one| one.codec == SMALL);
        let small = rows.find(|one| (one.workers, one.mbit, one.ms) == (row.workers, row.mbit, row.ms));
        let small = small.ok_or("no all-gather of 8 bytes on the same links")?;
        Ok((small.seconds / (row.workers - 1) as f64).max(HANDSHAKE * row.ms / 1e3))
    }

    /// Returns the megabits a second that the processors carry for each worker, which plain gradients on free
    /// links show.
    fn carried(&self, row: &Row, plain: &Alone) -> Result<f64> {
        let (free, n) = (self.free(row, PLAIN)?, row.workers as f64);
        let waits = 2.0 * (n - 1.0) * self.latency(free)?;
        let bits = 8.0 * 2.0 * (n - 1.0) / n * plain.plain / crate::model::PAYLOAD;
        Ok(bits / (free.fastest - waits).max(1e-6) / 1e6)
    }
}

fn report(results: &Results, compared: &[Compared<'_>], alone: &[Compared<'_>]) -> Result<String> {
    let mut out = String::new();
    let count = |all: &[Compared<'_>], wanted: &dyn Fn(&Compared<'_>) -> bool| -> (usize, usize) {
        let of: Vec<&Compared<'_>> = all.iter().filter(|one| wanted(one)).collect();
        (of.iter().filter(|one| one.is_within()).count(), of.len())
    };
    let shown =
        |(near, all): (usize, usize)| format!("{near} of {all} ({:.1} %)", 100.0 * near as f64 / all as f64);
    let text = format!(
        "Within {:.0} % of the model are {} of the steps of which the links take at least {:.0} %, {} of the others, and {} \
         of all; with the coding of one process alone, {} of all. Measured {}.",
        100.0 * WITHIN,
        shown(count(compared, &|one| one.is_of_links())),
        100.0 * DOMINANT,
        shown(count(compared, &|one| !one.is_of_links())),
        shown(count(compared, &|_| true)),
        shown(count(alone, &|_| true)),
        results.about
    );
    writeln!(out, "\n{}\n", page::wrapped(&text))?;
    writeln!(out, "| workers | latency, ms | steps | within 15 % | middle error | largest error |")?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    let mut groups: Vec<(u64, f64)> = compared.iter().map(|one| (one.row.workers, one.row.ms)).collect();
    groups.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    groups.dedup();
    for (workers, ms) in groups {
        let of = compared.iter().filter(|one| (one.row.workers, one.row.ms) == (workers, ms));
        let mut errors: Vec<f64> = of.map(|one| one.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        let near = errors.iter().filter(|error| **error <= WITHIN).count();
        let (middle, largest) = (100.0 * errors[errors.len() / 2], 100.0 * errors[errors.len() - 1]);
        writeln!(out, "| {workers} | {ms} | {} | {near} | {middle:.1} % | {largest:.1} % |", errors.len())?;
    }
    writeln!(out, "\nThe steps beyond 15 %:\n")?;
    writeln!(
        out,
        "| workers | Mbit/s | ms | codec | measured | of which coding | links alone | model | error |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    for one in compared.iter().filter(|one| !one.is_within()) {
        let row = one.row;
        let times = [row.seconds, row.coding, one.links, one.modelled].map(|s| format!("{:.1} ms", 1e3 * s));
        writeln!(
            out,
            "| {} | {} | {} | `{}` | {} | {:+.0} % |",
            row.workers,
            row.mbit,
            row.ms,
            row.codec,
            times.join(" | "),
            100.0 * one.error()
        )?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_steps_are_near_the_model() {
        run(&crate::folder(), 2, false).unwrap();
    }

    #[test]
    fn on_three_links_the_best_codec_of_the_model_is_the_measured_one() {
        let results = Results::read(&crate::folder()).unwrap();
        let compared = compare(&results, 2, Coding::Measured).unwrap();
        for (workers, mbit, ms) in [(4, 10.0, 0.0), (8, 100.0, 0.0), (2, 1000.0, 50.0)] {
            let here = || {
                let on_link =
                    |one: &&Compared<'_>| (one.row.workers, one.row.mbit, one.row.ms) == (workers, mbit, ms);
                compared.iter().filter(on_link)
            };
            let fastest = here().map(|one| one.row.seconds).fold(f64::INFINITY, f64::min);
            let best = here().min_by(|a, b| a.modelled.total_cmp(&b.modelled)).unwrap();
            assert!(
                best.row.seconds <= 1.1 * fastest,
                "{workers} workers, {mbit} Mbit/s, {ms} ms: {} is not the fastest",
                best.row.codec
            );
        }
    }
}
