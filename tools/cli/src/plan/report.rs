//! The result of a plan: as a table and as JSON, with a recommendation.

use super::measured::Measurements;
use super::model::{self, Backend, Bottleneck, Candidate, Exchange, Fleet, Step};
use super::units::{show_rate, show_seconds};
use crate::output::{Align, Table, counted, human_bytes, printable, real, thousands};
use serde::Serialize;

/// A codec with its best exchange.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Choice {
    /// The codec; none for plain gradients.
    pub(super) codec: Option<String>,
    pub(super) exchange: Exchange,
    pub(super) relative_l2: f64,
    #[serde(flatten)]
    pub(super) step: Step,
}

impl Choice {
    /// Returns the codec's name.
    pub(super) fn name(&self) -> &str {
        self.codec.as_deref().unwrap_or(PLAIN)
    }

    /// Whether it sends all elements as they are.
    fn is_plain(&self) -> bool {
        self.codec.as_deref().is_none_or(|codec| codec == "raw")
    }
}

const PLAIN: &str = "(not compressed)";

/// The recommended choice.
#[derive(Debug, Serialize)]
pub(super) struct Recommended {
    /// The codec; none if compression gains little.
    pub(super) codec: Option<String>,
    pub(super) exchange: Exchange,
    /// The reason, as a sentence.
    pub(super) why: String,
}

/// Recommends a choice, with the reason.
pub(super) fn recommend(choices: &[Choice]) -> Option<Recommended> {
    let candidates: Vec<Candidate> = choices
        .iter()
        .map(|choice| Candidate {
            seconds: choice.step.seconds,
            relative_l2: choice.relative_l2,
            is_plain: choice.is_plain(),
        })
        .collect();
    let chosen = &choices[model::recommend(&candidates)?];
    let fastest = choices.iter().min_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds))?;
    let plain = choices.iter().filter(|choice| choice.is_plain());
    let plain = plain.min_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
    let (name, exchange) = (chosen.name(), chosen.exchange.name());
    let why = if chosen.is_plain() {
        let saved = 100.0 * (1.0 - fastest.step.seconds / chosen.step.seconds);
        let gains = match saved {
            saved if saved < 0.05 => "no codec makes a step shorter".to_owned(),
            saved => format!("the fastest codec saves {saved:.1} % of a step"),
        };
        format!("Do not compress: {gains}. The exchange of plain gradients: {exchange}.")
    } else {
        let than = plain.map_or(String::new(), |plain| {
            let times = plain.step.seconds / chosen.step.seconds;
            format!(", {times:.2} times as fast as without compression")
        });
        let least = match chosen.codec == fastest.codec {
            true => "the fastest".to_owned(),
            false => format!("of the smallest error within 10 % of the fastest, {}", fastest.name()),
        };
        let time = show_seconds(chosen.step.seconds);
        format!("Use {name} with the exchange {exchange}: {time} for a step{than}; {least}.")
    };
    Some(Recommended { codec: chosen.codec.clone(), exchange: chosen.exchange, why })
}

/// All results of one plan.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Measurements on the gradients as they are.
    #[serde(flatten)]
    pub(super) measurements: Measurements,
    /// Parameters of the model that is planned for.
    pub(super) parameters: u64,
    pub(super) fleet: Fleet,
    pub(super) choices: Vec<Choice>,
    pub(super) recommended: Option<Recommended>,
}

/// Titles of the table's columns.
pub(super) const COLUMNS: [&str; 10] = [
    "codec",
    "exchange",
    "step",
    "coding",
    "bandwidth",
    "latency",
    "sent",
    "received",
    "bottleneck",
    "rel L2",
];

impl Report {
    /// Returns the cells of the table, the fastest choice first.
    pub(super) fn rows(&self) -> Vec<[String; 10]> {
        let mut choices: Vec<&Choice> = self.choices.iter().collect();
        choices.sort_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
        choices.iter().map(|choice| row(choice)).collect()
    }

    /// Returns the plan's conditions, a sentence each.
    pub(super) fn conditions(&self) -> Vec<String> {
        let (fleet, on) = (&self.fleet, &self.measurements);
        let mut out = vec![format!(
            "{}: {} of {} in {}, {}",
            printable(&on.file),
            counted(on.gradients, "gradient"),
            counted(on.elements, "element"),
            counted(on.tensors, "tensor"),
            human_bytes(on.bytes)
        )];
        let model = match self.parameters == on.elements {
            true => String::new(),
            false => format!(", {} parameters", thousands(self.parameters)),
        };
        let groups = fleet.groups.map_or(String::new(), |groups| {
            format!(" for each group of {}, {} inside", groups.size, show_rate(groups.link.bits_per_second))
        });
        let every = if fleet.every == 1 {
            String::new()
        } else {
            format!(", an exchange every {} steps", fleet.every)
        };
        let overlap = if fleet.bucket.is_some() { ", overlapped with the backward pass" } else { "" };
        let gloo = if fleet.backend == Backend::GLOO { ", on gloo" } else { "" };
        out.push(format!(
            "{} workers{model}, links of {} with {} of latency{groups}, {} of compute{every}{overlap}{gloo}",
            thousands(fleet.workers),
            show_rate(fleet.link.bits_per_second),
            show_seconds(fleet.link.latency),
            show_seconds(fleet.compute)
        ));
        let sharing = match fleet.sharing {
            1 => String::new(),
            n => format!(", which {} workers share", thousands(n)),
        };
        let threads = counted(on.threads as u64, "thread");
        out.push(format!("times of coding: measured with {threads}{sharing}"));
        if on.gradients == 1 {
            out.push(
                "sums of sparse updates: as if no two workers chose the same position; gradients of more workers \
                 would tell"
                    .to_owned(),
            );
        }
        out
    }

    /// Returns the report as text.
    pub(super) fn text(&self) -> String {
        let columns: Vec<_> = COLUMNS
            .iter()
            .map(|title| {
                (
                    *title,
                    if matches!(*title, "codec" | "exchange" | "bottleneck") {
                        Align::Left
                    } else {
                        Align::Right
                    },
                )
            })
            .collect();
        let mut table = Table::new(&columns);
        self.rows().iter().for_each(|row| table.row(row));
        let why = self.recommended.as_ref().map_or("", |recommended| &recommended.why);
        format!("{}\n\n{table}\n{why}\n", self.conditions().join("\n"))
    }
}

fn row(choice: &Choice) -> [String; 10] {
    let step = &choice.step;
    let bottleneck = match step.bottleneck {
        Bottleneck::Compute => "compute",
        Bottleneck::Coding => "coding",
        Bottleneck::Bandwidth => "bandwidth",
        Bottleneck::Latency => "latency",
    };
    [
        choice.name().to_owned(),
        choice.exchange.name().to_owned(),
        show_seconds(step.seconds),
        show_seconds(step.coding),
        show_seconds(step.bandwidth),
        show_seconds(step.latency),
        human_bytes(step.sent as u64),
        human_bytes(step.received as u64),
        bottleneck.to_owned(),
        real(choice.relative_l2),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(codec: Option<&str>, seconds: f64, relative_l2: f64) -> Choice {
        let (codec, exchange) = (codec.map(str::to_owned), Exchange::Gather);
        let step = Step {
            seconds,
            coding: 0.0,
            bandwidth: 0.0,
            latency: 0.0,
            hidden: 0.0,
            sent: 0.0,
            received: 0.0,
            bottleneck: Bottleneck::Compute,
        };
        Choice { codec, exchange, relative_l2, step }
    }

    #[test]
    fn the_smallest_error_among_the_fastest_is_recommended() {
        let choices = [
            choice(None, 10.0, 0.0),
            choice(Some("sbc"), 1.0, 0.9),
            choice(Some("topk"), 1.05, 0.5),
            choice(Some("natural"), 1.2, 0.1),
        ];
        let chosen = recommend(&choices).unwrap();
        assert_eq!(chosen.codec.as_deref(), Some("topk"));
        assert!(
            chosen.why.contains("9.52 times as fast") && chosen.why.contains("fastest, sbc"),
            "{}",
            chosen.why
        );
    }

    #[test]
    fn plain_gradients_are_recommended_where_compression_gains_little() {
        let choices = [choice(None, 1.0, 0.0), choice(Some("sbc"), 0.96, 0.9)];
        let chosen = recommend(&choices).unwrap();
        assert_eq!(chosen.codec, None);
        assert!(chosen.why.contains("saves 4.0 %"), "{}", chosen.why);
        let slower = [choice(None, 1.0, 0.0), choice(Some("sbc"), 1.5, 0.9)];
        assert!(recommend(&slower).unwrap().why.contains("no codec makes a step shorter"));
        assert!(recommend(&[]).is_none());
    }
}
