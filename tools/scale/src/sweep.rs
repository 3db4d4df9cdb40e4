//! Steps of 2 to 10,000 workers, as tables and pictures.

use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

use crate::model::{
    self, BUCKET, Backend, Exchange, Exchanged, Fleet, Groups, Growth, HOOK_CONTROL, Link, Parts, Step,
};
use crate::{Result, folder, page, plot};

/// Numbers of workers.
pub(crate) const WORKERS: [u64; 12] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 10_000];
/// Rates of links, in bits per second.
pub(crate) const RATES: [f64; 13] =
    [1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10, 2.5e10, 5e10, 1e11, 2e11, 3e11, 4e11];
/// Numbers of parameters.
const PARAMETERS: [f64; 5] = [1e6, 1e8, 1e9, 7e9, 7e10];
/// Rates of the table.
const TABLE: [f64; 6] = [1e7, 1e8, 1e9, 1e10, 1e11, 4e11];
/// Seconds of compute of a step, at any size: batches are chosen so that a step takes about as long.
pub(crate) const COMPUTE: f64 = 1.0;
/// Workers and parameters of pictures that have one of each.
pub(crate) const CROWD: u64 = 64;
pub(crate) const MODEL: f64 = 1e8;

/// Name of plain gradients.
const PLAIN: &str = "not compressed";

/// A network between workers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) short: &'static str,
    pub(crate) latency: f64,
}

/// Networks: latencies from one worker to another.
pub(crate) const PLACES: [Place; 2] = [
    Place { name: "in a data centre, 50 us", short: "near", latency: 50e-6 },
    Place { name: "between sites, 20 ms", short: "far", latency: 0.02 },
];

/// Measurements of a codec, of those that `gcodec plan --json` prints.
#[derive(Debug, Clone, Deserialize)]
struct Measured {
    codec: Option<String>,
    relative_l2: f64,
    parts: Parts,
}

#[derive(Debug, Deserialize)]
struct Plan {
    file: String,
    elements: f64,
    threads: u64,
    measured: Vec<Measured>,
}

/// A codec of the sweep, for one parameter.
#[derive(Debug, Clone)]
pub(crate) struct Codec {
    /// Its name, as people write it.
    pub(crate) name: String,
    /// Whether it sends all elements as they are.
    is_plain: bool,
    relative_l2: f64,
    parts: Parts,
}

/// A codec with its best exchange.
#[derive(Debug, Clone)]
pub(crate) struct Best {
    pub(crate) codec: usize,
    pub(crate) exchange: Exchange,
    pub(crate) relative_l2: f64,
    pub(crate) step: Step,
}

/// All codecs.
#[derive(Debug)]
pub(crate) struct Sweep {
    pub(crate) codecs: Vec<Codec>,
    threads: u64,
    sources: [String; 2],
}

/// Computes, prints, and with `write` replaces the tables of the page and its pictures.
pub(crate) fn run(sizes: &Path, speeds: &Path, write: bool) -> Result<()> {
    let sweep = Sweep::read(sizes, speeds)?;
    let text = sweep.tables()?;
    println!("{text}");
    if write {
        plot::all(&sweep, &folder())?;
        page::replace("gcodec-scale sweep --write", &text)?;
    }
    Ok(())
}

/// Returns a growth that goes on like another one beyond its own last point.
fn continued(growth: &Growth, other: &Growth) -> Growth {
    let mut points = growth.0.clone();
    let Some(&(last, factor)) = points.last() else { return growth.clone() };
    let beyond = other.0.iter().filter(|(updates, _)| *updates > last);
    points.extend(beyond.map(|(updates, of_other)| (*updates, factor * of_other / other.at(last))));
    Growth(points)
}

impl Sweep {
    /// Reads sizes, growths and errors from one plan, and times of coding from another, by element.
    fn read(sizes: &Path, speeds: &Path) -> Result<Self> {
        let read = |path: &Path| -> Result<Plan> {
            let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
            Ok(serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?)
        };
        let (sizes, speeds) = (read(sizes)?, read(speeds)?);
        let growths = page::growths()?;
        let mut codecs = Vec::new();
        for one in &sizes.measured {
            let Some(fast) = speeds.measured.iter().find(|other| other.codec == one.codec) else { continue };
            let (sized, timed) =
                (one.parts.scaled(1.0 / sizes.elements), fast.parts.scaled(1.0 / speeds.elements));
            let known = one.codec.as_deref().and_then(page::density);
            let longer = growths.iter().find(|(density, _)| Some(*density) == known);
            let growth =
                longer.map_or_else(|| sized.growth.clone(), |(_, longer)| continued(&sized.growth, longer));
            let Parts { encode, add, sum, answer, .. } = timed;
            let parts = Parts { encode, add, sum, answer, growth, ..sized };
            let (relative_l2, is_plain) =
                (one.relative_l2, matches!(one.codec.as_deref(), None | Some("raw")));
            codecs.push(Codec {
                name: short(one.codec.as_deref().unwrap_or(PLAIN)),
                is_plain,
                relative_l2,
                parts,
            });
        }
        Ok(Self { codecs, threads: speeds.threads, sources: [sizes.file, speeds.file] })
    }

    /// Returns each codec with its best exchange.
    pub(crate) fn choices(&self, workers: u64, parameters: f64, rate: f64, place: Place) -> Vec<Best> {
        self.on(&fleet(workers, rate, place), parameters)
    }

    /// Returns each codec with its best exchange between these workers.
    fn on(&self, fleet: &Fleet, parameters: f64) -> Vec<Best> {
        let best = |(number, codec): (usize, &Codec)| {
            let parts = codec.parts.scaled(parameters);
            let usable = |exchange: &Exchange| {
                exchange.is_plain() == (codec.name == PLAIN) && *exchange != Exchange::Shards
            };
            let exchanges = Exchange::ALL.iter().map(|(exchange, _)| *exchange).filter(usable);
            let Exchanged { exchange, relative_l2, step } =
                model::best(fleet, exchanges, &parts, codec.relative_l2)?;
            Some(Best { codec: number, exchange, relative_l2, step })
        };
        self.codecs.iter().enumerate().filter_map(best).collect()
    }

    /// Returns the recommended choice, as `gcodec plan` recommends.
    pub(crate) fn recommended(&self, choices: &[Best]) -> Option<Best> {
        let candidates: Vec<model::Candidate> = choices
            .iter()
            .map(|best| model::Candidate {
                seconds: best.step.seconds,
                relative_l2: best.relative_l2,
                is_plain: self.codecs[best.codec].is_plain,
            })
            .collect();
        model::recommend(&candidates).map(|number| choices[number].clone())
    }

    /// Returns the step of plain gradients.
    pub(crate) fn plain(&self, choices: &[Best]) -> f64 {
        choices
            .iter()
            .find(|best| self.codecs[best.codec].is_plain)
            .map_or(f64::NAN, |best| best.step.seconds)
    }

    fn tables(&self) -> Result<String> {
        let mut out = String::new();
        let text = format!(
            "Sizes, sums and errors: {}. Times of coding: {}, {} threads.",
            self.sources[0], self.sources[1], self.threads
        );
        writeln!(out, "\n{}\n", page::wrapped(&text))?;
        for place in PLACES {
            self.winners(&mut out, place)?;
        }
        self.limits(&mut out)?;
        self.costs(&mut out)?;
        self.remedies(&mut out)?;
        Ok(out)
    }

    /// The recommended codec by size and rate.
    fn winners(&self, out: &mut String, place: Place) -> Result<()> {
        writeln!(out, "{CROWD} workers {} of latency:\n", place.name)?;
        write!(out, "| parameters |")?;
        TABLE.iter().try_for_each(|rate| write!(out, " {} |", show_rate(*rate)))?;
        writeln!(out, "\n|---|{}", "---|".repeat(TABLE.len()))?;
        for parameters in PARAMETERS {
            write!(out, "| {} |", show_count(parameters))?;
            for rate in TABLE {
                let choices = self.choices(CROWD, parameters, rate, place);
                let best = self.recommended(&choices).ok_or("no choice")?;
                let codec = &self.codecs[best.codec];
                match codec.is_plain {
                    true => write!(out, " do not compress, {} |", show_seconds(best.step.seconds))?,
                    false => {
                        let times = self.plain(&choices) / best.step.seconds;
                        let exchange = best.exchange.name();
                        write!(
                            out,
                            " `{}` {exchange}, {}, {times:.1}x |",
                            codec.name,
                            show_seconds(best.step.seconds)
                        )?;
                    }
                }
            }
            writeln!(out)?;
        }
        Ok(writeln!(out)?)
    }

    /// The slowest rate from which on compression is not recommended.
    fn limits(&self, out: &mut String) -> Result<()> {
        writeln!(out, "The rate of links from which on compression does not pay:\n")?;
        write!(out, "| latency, parameters |")?;
        let counts = [2, 8, 64, 512, 10_000];
        counts.iter().try_for_each(|workers| write!(out, " {workers} workers |"))?;
        writeln!(out, "\n|---|{}", "---|".repeat(counts.len()))?;
        for place in PLACES {
            for parameters in PARAMETERS {
                write!(out, "| {}, {} |", place.name, show_count(parameters))?;
                for workers in counts {
                    let pays = |rate: f64| {
                        let best = self.recommended(&self.choices(workers, parameters, rate, place));
                        best.is_some_and(|best| !self.codecs[best.codec].is_plain)
                    };
                    let last = RATES.iter().rposition(|rate| pays(*rate));
                    match last.map_or(Some(&RATES[0]), |last| RATES.get(last + 1)) {
                        Some(rate) if last.is_none() => write!(out, " below {} |", show_rate(*rate))?,
                        Some(rate) => write!(out, " {} |", show_rate(*rate))?,
                        None => write!(out, " above {} |", show_rate(RATES[RATES.len() - 1]))?,
                    }
                }
                writeln!(out)?;
            }
        }
        Ok(writeln!(out)?)
    }

    /// Steps of all codecs between sites, with and without what hides or avoids exchanges.
    fn remedies(&self, out: &mut String) -> Result<()> {
        let (rate, place) = (1e9, PLACES[1]);
        let inside = Link { bits_per_second: 4e11, latency: 5e-6 };
        let groups = Some(Groups { size: 8, link: inside });
        let often = fleet(CROWD, rate, place);
        let ways = [
            ("every step", often),
            ("overlapped", Fleet { bucket: Some(BUCKET), ..often }),
            ("every 20 steps", Fleet { every: 20, ..often }),
            ("every 500 steps", Fleet { every: 500, ..often }),
            ("groups of 8", Fleet { groups, ..often }),
            ("groups of 8, every 20 steps", Fleet { groups, every: 20, ..often }),
        ];
        let text = format!(
            "Steps of {CROWD} workers, {} parameters, links of {} between sites ({} ms), groups with {} inside:",
            show_count(MODEL),
            show_rate(rate),
            1e3 * place.latency,
            show_rate(inside.bits_per_second)
        );
        writeln!(out, "\n{}\n", page::wrapped(&text))?;
        writeln!(out, "| codec | {} |", ways.map(|(name, _)| name).join(" | "))?;
        writeln!(out, "|---|{}", "---|".repeat(ways.len()))?;
        let all = ways.map(|(_, fleet)| self.on(&fleet, MODEL));
        for (number, codec) in self.codecs.iter().enumerate() {
            write!(out, "| `{}` |", codec.name)?;
            for choices in &all {
                let best = choices.iter().find(|best| best.codec == number).ok_or("no choice")?;
                write!(out, " {} {} |", best.exchange.name(), show_seconds(best.step.seconds))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// Bytes and processor time of all codecs at one point.
    fn costs(&self, out: &mut String) -> Result<()> {
        let rate = 1e9;
        writeln!(
            out,
            "All codecs with {CROWD} workers, {} parameters and links of {}, {}:\n",
            show_count(MODEL),
            show_rate(rate),
            PLACES[0].name
        )?;
        writeln!(
            out,
            "| codec | exchange | step | sent | received | core-seconds of a worker | efficiency | rel L2 |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|")?;
        let mut choices = self.choices(CROWD, MODEL, rate, PLACES[0]);
        choices.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
        for best in choices {
            let step = best.step;
            writeln!(
                out,
                "| `{}` | {} | {} | {} | {} | {:.3} | {:.1} % | {:.3} |",
                self.codecs[best.codec].name,
                best.exchange.name(),
                show_seconds(step.seconds),
                show_bytes(step.sent),
                show_bytes(step.received),
                step.coding * self.threads as f64,
                100.0 * COMPUTE / step.seconds,
                best.relative_l2
            )?;
        }
        Ok(())
    }
}

/// Returns workers that exchange in every step.
fn fleet(workers: u64, rate: f64, place: Place) -> Fleet {
    let link = Link { bits_per_second: rate, latency: place.latency };
    let (groups, bucket, control, backend) = (None, None, HOOK_CONTROL, Backend::NCCL);
    Fleet { workers, link, groups, compute: COMPUTE, every: 1, bucket, control, backend, sharing: 1 }
}

/// Returns the name of a codec without settings that most readers do not need.
pub(crate) fn short(codec: &str) -> String {
    codec
        .replace(",values=f32", "")
        .replace("fit=gp,stages=guard,", "")
        .replace(",bucket=512", "")
        .replace(":group=256", "")
}

pub(crate) fn show_rate(bits: f64) -> String {
    if bits >= 1e9 { format!("{} Gbit/s", bits / 1e9) } else { format!("{} Mbit/s", bits / 1e6) }
}

pub(crate) fn show_count(count: f64) -> String {
    if count >= 1e9 { format!("{} G", count / 1e9) } else { format!("{} M", count / 1e6) }
}

pub(crate) fn show_seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 99.5 => format!("{s:.0} s"),
        s if s >= 9.95 => format!("{s:.1} s"),
        s => format!("{s:.2} s"),
    }
}

fn show_bytes(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.2} MB", b / 1e6),
        b => format!("{:.1} kB", b / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> Sweep {
        Sweep::read(&folder().join("sizes.json"), &folder().join("speeds.json")).unwrap()
    }

    #[test]
    fn slow_links_need_compression_and_fast_ones_do_not() {
        let sweep = sweep();
        for workers in WORKERS {
            let plain = |rate: f64| {
                let best = sweep.recommended(&sweep.choices(workers, MODEL, rate, PLACES[0])).unwrap();
                sweep.codecs[best.codec].is_plain
            };
            assert!(!plain(1e7), "{workers} workers");
            assert!(plain(4e11), "{workers} workers");
        }
    }

    #[test]
    fn the_page_has_the_tables_of_the_committed_measurements() {
        let page = std::fs::read_to_string(crate::root().join("docs/scale.md")).unwrap();
        assert!(page.contains(sweep().tables().unwrap().trim()), "run gcodec-scale sweep --write");
    }
}
