//! The model against measured exchanges.

use std::fmt::Write as _;
use std::path::Path;

use crate::Result;
use crate::model::{
    AVERAGE_CONTROL, Backend, Exchange, Fleet, Growth, HOOK_CONTROL, Link, NEARLY, Parts, SharedSet, step,
};
use crate::page;
use crate::real::{Alone, Results, Round, Row};

/// The share of rows, and the distance within which they must be.
const WANTED: f64 = 0.9;
const WITHIN: f64 = 0.15;
/// Names of rows that are no codec.
pub(crate) const PLAIN: &str = "none";
const SMALL: &str = "small";
/// Share of a step from which on it depends little on the work of these processors.
const DOMINANT: f64 = 0.6;

/// Kind of a measured step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An exchange alone.
    Exchange,
    /// A step with compute, and the exchange after it.
    After,
    /// A step with compute, during which buckets are exchanged.
    During,
    /// A round of the aggregator.
    Round,
}

impl Kind {
    const ALL: [(Self, &str); 4] = [
        (Self::Exchange, "exchange alone"),
        (Self::After, "exchange after compute"),
        (Self::During, "exchange during compute"),
        (Self::Round, "round of the aggregator"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// A measured step beside that of the model, in seconds.
struct Compared<'r> {
    kind: Kind,
    workers: u64,
    mbit: f64,
    /// Latency from one machine to another, in milliseconds.
    ms: f64,
    codec: &'r str,
    seconds: f64,
    /// Work of processors: coding, and in a round of the aggregator also compute.
    work: f64,
    modelled: f64,
    /// Seconds without that work: the links, and compute of another device.
    idle: f64,
}

impl Compared<'_> {
    /// Returns how much longer the model's step is than the measured one, as a share of that.
    fn error(&self) -> f64 {
        self.modelled / self.seconds - 1.0
    }

    /// Whether links, or compute elsewhere, take most of the step. The rest depends on which of the
    /// processes, and of other programs, two cores run first.
    fn is_of_links(&self) -> bool {
        self.idle >= DOMINANT * self.seconds
    }

    fn is_within(&self) -> bool {
        self.error().abs() <= WITHIN
    }
}

/// Folder, inside that of the results, of those whose settings the model had not seen when it was made.
const UNSEEN: &str = "unseen";

/// Compares, prints, and with `write` replaces the table of the page. `all_steps`: prints all, near or not.
pub(crate) fn run(folder: &Path, cores: u32, all_steps: bool, write: bool) -> Result<()> {
    let (mut text, mut are_near) = (String::new(), true);
    let unseen = folder.join(UNSEEN);
    for (title, folder) in [("", folder), ("\n### Unseen settings\n", &unseen)] {
        if !folder.exists() && !title.is_empty() {
            continue;
        }
        let results = Results::read(folder)?;
        let compared = compare(&results, cores, Coding::Measured)?;
        let alone = compare(&results, cores, Coding::Alone)?;
        writeln!(text, "{title}{}", report(&results, &compared, &alone, all_steps)?.trim_end())?;
        are_near &= within(&compared) as f64 >= WANTED * compared.len() as f64 && !compared.is_empty();
    }
    println!("{text}");
    if write {
        page::replace("gcodec-scale check --write", &text)?;
    }
    match are_near {
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
    let mut all = Vec::new();
    for rows in [&results.exchanges, &results.more, &results.overlaps] {
        let host = Host { rows, alone: &results.alone, cores: f64::from(cores), coding };
        all.extend(without_free(rows).map(|row| host.compare(row)).collect::<Result<Vec<_>>>()?);
    }
    let free = results.rounds.iter().map(|round| round.mbit).fold(0.0, f64::max);
    let measured = results.rounds.iter().filter(|round| round.mbit != free);
    all.extend(measured.map(|round| compare_round(results, round, free)).collect::<Result<Vec<_>>>()?);
    Ok(all)
}

fn within(compared: &[Compared<'_>]) -> usize {
    compared.iter().filter(|one| one.is_within()).count()
}

/// Compares a round of the aggregator. All work of the processors is that of a round on links that they do
/// not fill. They work for one worker while the updates and answers of others are on the link.
fn compare_round<'r>(results: &'r Results, round: &'r Round, free: f64) -> Result<Compared<'r>> {
    let same = |one: &&Round| (one.workers, one.mbit, &one.codec) == (round.workers, free, &round.codec);
    let work = results.rounds.iter().find(same).ok_or("no round on free links")?.seconds;
    let n = round.workers as f64;
    let parts = Parts {
        plain: f64::INFINITY,
        update: round.update,
        encode: 0.0,
        add: 0.0,
        sum: 0.0,
        answer: 0.0,
        growth: Growth(vec![(n, round.sum / round.update)]),
        set: None,
    };
    let fleet = Fleet {
        workers: round.workers,
        link: Link { bits_per_second: 1e6 * round.mbit, latency: round.ms / 1e3 },
        groups: None,
        compute: 0.0,
        every: 1,
        bucket: None,
        control: 0,
        backend: Backend::GLOO,
        sharing: 1,
    };
    let of_links = step(&fleet, Exchange::Aggregator, &parts).ok_or("an exchange that the model lacks")?;
    let (idle, modelled) = (of_links.seconds, of_links.latency + of_links.bandwidth.max(work));
    let Round { workers, mbit, ms, codec, seconds, .. } = round;
    let (workers, mbit, ms, seconds) = (*workers, *mbit, *ms, *seconds);
    Ok(Compared { kind: Kind::Round, workers, mbit, ms, codec, seconds, work, modelled, idle })
}

/// The machine whose processes were measured, and what they measured on the same connections.
struct Host<'r> {
    rows: &'r [Row],
    alone: &'r [Alone],
    cores: f64,
    coding: Coding,
}

impl<'r> Host<'r> {
    /// Whether a row is of links that the machine does not fill.
    fn is_free(&self, row: &Row) -> bool {
        let fastest = self.rows.iter().map(|row| row.mbit).fold(0.0, f64::max);
        row.mbit == fastest
    }

    /// Returns the row of free links with this many workers.
    fn free(&self, row: &Row, codec: &str) -> Result<&Row> {
        let mut rows = self.rows.iter().filter(|one| self.is_free(one) && one.codec == codec);
        let found = rows.find(|one| one.workers == row.workers && (one.ms > 0.0) == (row.ms > 0.0));
        found.ok_or_else(|| format!("no row {codec} of {} workers on free links", row.workers).into())
    }

    fn compare(&self, row: &'r Row) -> Result<Compared<'r>> {
        let alone = |name: &str| self.alone.iter().find(|one| one.codec == name);
        let one = alone(&row.codec).ok_or_else(|| format!("parts.csv has no {}", row.codec))?;
        let plain = alone(PLAIN).ok_or("parts.csv has no row without compression")?;
        let parts = self.parts(one, row);
        let exchange = match (row.codec.as_str(), &parts.set) {
            (PLAIN, _) => Exchange::Ring,
            (_, Some(_)) => Exchange::SharedSet,
            _ => Exchange::Gather,
        };
        let kind = match (row.compute > 0.0, row.buckets > 1) {
            (false, _) => Kind::Exchange,
            (true, false) => Kind::After,
            (true, true) => Kind::During,
        };
        // A little more than a bucket has, so that rounding makes no further bucket.
        let bucket = (kind == Kind::During).then_some(1.001 * one.plain / row.buckets as f64);
        // An all-gather shows all latencies of a message.
        let backend = Backend { latencies: 1, ..Backend::GLOO };
        let fleet = Fleet {
            workers: row.workers,
            link: Link {
                bits_per_second: 1e6 * row.mbit.min(self.carried(row, plain)?),
                latency: message(self.rows, row)?,
            },
            groups: None,
            compute: row.compute,
            every: 1,
            bucket,
            control: if kind == Kind::During { HOOK_CONTROL } else { AVERAGE_CONTROL },
            backend,
            sharing: 1,
        };
        let missing = "an exchange that the model lacks";
        let modelled = step(&fleet, exchange, &parts).ok_or(missing)?.seconds;
        let link = Link { bits_per_second: 1e6 * row.mbit, latency: row.ms / 1e3 };
        let without = Parts { encode: 0.0, add: 0.0, sum: 0.0, ..parts };
        let idle = step(&Fleet { link, backend: Backend::GLOO, ..fleet }, exchange, &without)
            .ok_or(missing)?
            .seconds;
        let Row { workers, mbit, ms, codec, seconds, coding, .. } = row;
        let (workers, mbit, ms, seconds, work) = (*workers, *mbit, *ms, *seconds, *coding);
        Ok(Compared { kind, workers, mbit, ms, codec, seconds, work, modelled, idle })
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

    /// Returns the megabits a second that the processors carry for each worker, which plain gradients on free
    /// links show.
    fn carried(&self, row: &Row, plain: &Alone) -> Result<f64> {
        let (free, n) = (self.free(row, PLAIN)?, row.workers as f64);
        let waits = 2.0 * (n - 1.0) * message(self.rows, free)?;
        let bits = 8.0 * 2.0 * (n - 1.0) / n * plain.plain / crate::model::PAYLOAD;
        Ok(bits / (free.fastest - waits).max(1e-6) / 1e6)
    }
}

/// Returns the seconds of a message without bytes on the link of a row: its latencies, and the processors'
/// time. An all-gather of 8 bytes on the same link shows it.
pub(crate) fn message(rows: &[Row], of: &Row) -> Result<f64> {
    let mut rows = rows.iter().filter(|one| one.codec == SMALL);
    let small = rows.find(|one| (one.workers, one.mbit, one.ms) == (of.workers, of.mbit, of.ms));
    let small = small.ok_or("no all-gather of 8 bytes on the same links")?;
    Ok((small.seconds / (of.workers - 1) as f64).max(Backend::GLOO.latencies as f64 * of.ms / 1e3))
}

/// The codecs on one kind of link, without overlap.
struct Race<'c, 'r> {
    /// The fastest by the model.
    chosen: &'c Compared<'r>,
    /// The fastest as measured.
    fastest: &'c Compared<'r>,
}

impl Race<'_, '_> {
    /// Whether the choice is nearly as fast as the fastest, in the words of `gcodec plan`.
    fn is_won(&self) -> bool {
        self.chosen.seconds <= NEARLY * self.fastest.seconds
    }
}

/// Returns the races of each number of workers, rate and latency.
fn races<'c, 'r>(compared: &'c [Compared<'r>]) -> Vec<Race<'c, 'r>> {
    let link = |one: &Compared<'_>| (one.workers, one.mbit, one.ms);
    let exchanges = || compared.iter().filter(|one| one.kind == Kind::Exchange);
    let race = |wanted| {
        let here = || exchanges().filter(move |one| link(one) == wanted);
        let chosen = here().min_by(|a, b| a.modelled.total_cmp(&b.modelled))?;
        let fastest = here().min_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
        Some(Race { chosen, fastest })
    };
    links(exchanges().map(link)).into_iter().filter_map(race).collect()
}

/// Returns numbers of workers, rates and latencies in order, each once.
pub(crate) fn links(all: impl Iterator<Item = (u64, f64, f64)>) -> Vec<(u64, f64, f64)> {
    let mut links: Vec<_> = all.collect();
    links.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    links.dedup();
    links
}

/// Returns the rows of codecs on links that the machine fills.
pub(crate) fn without_free(rows: &[Row]) -> impl Iterator<Item = &Row> {
    let free = rows.iter().map(|row| row.mbit).fold(0.0, f64::max);
    rows.iter().filter(move |row| row.mbit != free && row.codec != SMALL)
}

fn write_races(out: &mut String, races: &[Race<'_, '_>]) -> std::fmt::Result {
    let won = races.iter().filter(|race| race.is_won()).count();
    let (all, same) =
        (races.len(), races.iter().filter(|race| race.chosen.codec == race.fastest.codec).count());
    let text = format!(
        "Of exchanges alone, the fastest codec of the model, with the times of coding and messages of these steps, \
         is nearly the fastest, at most {:.0} % behind, on {won} of {all} kinds of links, and the fastest of all on \
         {same}.",
        100.0 * (NEARLY - 1.0)
    );
    writeln!(out, "\n{}\n", page::wrapped(&text))?;
    if won == all {
        return Ok(());
    }
    writeln!(out, "The others:\n")?;
    writeln!(out, "| workers | Mbit/s | ms | fastest of the model | measured | fastest | measured |")?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    for Race { chosen, fastest } in races.iter().filter(|race| !race.is_won()) {
        let Compared { workers, mbit, ms, .. } = chosen;
        let times = [chosen, fastest].map(|one| format!("`{}` | {:.1} ms", one.codec, 1e3 * one.seconds));
        writeln!(out, "| {workers} | {mbit} | {ms} | {} |", times.join(" | "))?;
    }
    Ok(())
}

fn report(
    results: &Results,
    compared: &[Compared<'_>],
    alone: &[Compared<'_>],
    all_steps: bool,
) -> Result<String> {
    let mut out = String::new();
    let count = |all: &[Compared<'_>], wanted: &dyn Fn(&Compared<'_>) -> bool| -> (usize, usize) {
        let of: Vec<&Compared<'_>> = all.iter().filter(|one| wanted(one)).collect();
        (of.iter().filter(|one| one.is_within()).count(), of.len())
    };
    let shown = |(near, all): (usize, usize)| {
        let share = 100.0 * near as f64 / all.max(1) as f64;
        if all == 0 { "none of 0".to_owned() } else { format!("{near} of {all} ({share:.1} %)") }
    };
    let text = format!(
        "Within {:.0} % of the model are {} of all steps: {} of those of which links and compute take at \
         least {:.0} %, and {} of the others. With the coding of one process alone, {} of all are. Measured {}.",
        100.0 * WITHIN,
        shown(count(compared, &|_| true)),
        shown(count(compared, &|one| one.is_of_links())),
        100.0 * DOMINANT,
        shown(count(compared, &|one| !one.is_of_links())),
        shown(count(alone, &|_| true)),
        results.about
    );
    writeln!(out, "\n{}\n", page::wrapped(&text))?;
    writeln!(out, "| step | workers | latency, ms | steps | within 15 % | middle error | largest error |")?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    for (kind, name) in Kind::ALL {
        let of_kind = || compared.iter().filter(|one| one.kind == kind);
        let mut groups: Vec<(u64, f64)> = of_kind().map(|one| (one.workers, one.ms)).collect();
        groups.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        groups.dedup();
        for (workers, ms) in groups {
            let of = of_kind().filter(|one| (one.workers, one.ms) == (workers, ms));
            let mut errors: Vec<f64> = of.map(|one| one.error().abs()).collect();
            errors.sort_by(f64::total_cmp);
            let (steps, near) = (errors.len(), errors.iter().filter(|error| **error <= WITHIN).count());
            let (middle, largest) = (100.0 * errors[steps / 2], 100.0 * errors[steps - 1]);
            writeln!(
                out,
                "| {name} | {workers} | {ms} | {steps} | {near} | {middle:.1} % | {largest:.1} % |"
            )?;
        }
    }
    if all_steps {
        writeln!(out, "\nEach step:\n")?;
        write_steps(&mut out, compared.iter())?;
    } else if within(compared) < compared.len() {
        writeln!(out, "\nThe steps beyond 15 %:\n")?;
        write_steps(&mut out, compared.iter().filter(|one| !one.is_within()))?;
    }
    write_races(&mut out, &races(compared))?;
    Ok(out)
}

/// Writes a table of steps.
fn write_steps<'c>(out: &mut String, steps: impl Iterator<Item = &'c Compared<'c>>) -> std::fmt::Result {
    writeln!(
        out,
        "| step | workers | Mbit/s | ms | codec | measured | of which work | without work | model | error |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
    for one in steps {
        let times = [one.seconds, one.work, one.idle, one.modelled].map(|s| format!("{:.1} ms", 1e3 * s));
        writeln!(
            out,
            "| {} | {} | {} | {} | `{}` | {} | {:+.0} % |",
            one.kind.name(),
            one.workers,
            one.mbit,
            one.ms,
            one.codec,
            times.join(" | "),
            100.0 * one.error()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_steps_are_near_the_model() {
        run(&crate::folder(), 2, false, false).unwrap();
    }

    #[test]
    fn on_most_links_the_best_codec_of_the_model_is_the_measured_one() {
        let results = Results::read(&crate::folder()).unwrap();
        let compared = compare(&results, 2, Coding::Measured).unwrap();
        let races = races(&compared);
        let won = races.iter().filter(|race| race.is_won()).count();
        assert!(races.len() >= 36 && 10 * won >= 9 * races.len(), "{won} of {}", races.len());
    }
}
