//! The list of runs. A new codec is a line with its specification; a new sender or protocol is a [`Scheme`].

use std::sync::Arc;

use gcodec::Codec;
use gcodec::block::Positions;
use gcodec::compress::senders::scalecom::{Choice, ScaleComOptions};
use gcodec::compress::senders::{DeMo, DeMoOptions, DgcOptions, SbcOptions, SbcSender, onebit, shared_set};
use gcodec::compress::{Amount, Kept};
use gcodec::frame::Manifest;

use crate::Result;
use crate::group::{Gather, Group, OneBit, ScaleCom};
use crate::learned::{Again, Autoencoder, LearnedGroup, Lgc};
use crate::optim::{MOMENTUM, PLAIN, Rule};
use crate::predicted::{Predicted, Prediction, Remainder};
use crate::senders::{ByCodec, ByDeMo, ByDgc, BySbc, Sender};
use crate::shared::SharedSets;
use crate::table::Condition;
use crate::train::Setting;
use crate::trouble::Trouble;

/// The compression scheme of a run.
#[derive(Debug, Clone)]
pub(crate) enum Scheme {
    /// A codec by its specification.
    Codec { spec: String, feedback: bool },
    /// Sparse Binary Compression: residual and momentum masking.
    Sbc { density: f64, positions: Positions },
    /// Deep Gradient Compression.
    Dgc { density: f64 },
    /// DeMo, with this number of coefficients per chunk.
    DeMo { kept: u64 },
    /// 1-bit Adam.
    OneBit,
    /// ScaleCom's CLT-k.
    ScaleCom { choice: Choice, beta: f32 },
    /// The leader's positions, every worker's own values.
    SharedSet { density: f64, values: Kept, momentum: f32 },
    /// A shared set, with the followers' values predicted from the leader's.
    Predicted { density: f64, prediction: Prediction },
    /// The learned codec.
    Lgc(Lgc),
}

/// The workers run their own optimisers and send the change of their weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Local {
    pub(crate) rule: Rule,
    /// Steps between two exchanges.
    pub(crate) every: u64,
}

/// One run of the study.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) scheme: Scheme,
    pub(crate) local: Option<Local>,
    /// Optimiser that applies the mean.
    pub(crate) outer: Rule,
    /// Learning rate of `outer`, where `local` follows the schedule instead.
    pub(crate) outer_rate: f32,
    /// Factor of the learning rate.
    pub(crate) rate: f32,
    /// Clipping norm of one worker's gradient.
    pub(crate) clip: Option<f32>,
    /// Claim of the paper.
    pub(crate) claim: &'static str,
    /// Whether a server sums and answers; affects the received bytes.
    pub(crate) server: bool,
    /// Whether the first steps are sent as `raw`, like the learned codec's first phase.
    pub(crate) dense: bool,
    /// Late and lost updates.
    pub(crate) trouble: Option<Trouble>,
}

impl Run {
    pub(crate) fn group(&self, manifest: &Arc<Manifest>, setting: Setting) -> Result<Box<dyn Group>> {
        let dense = if self.dense { dense_steps(setting.steps) } else { 0 };
        let sender = |_| -> Result<Box<dyn Sender>> {
            match &self.scheme {
                Scheme::Codec { spec, feedback } => {
                    Ok(Box::new(ByCodec::new(spec.parse::<Codec>()?, *feedback).after(dense)))
                }
                Scheme::Sbc { density, positions } => {
                    let options = SbcOptions::default().with_amount(Amount::Density(*density));
                    Ok(Box::new(BySbc(SbcSender::new(options.with_positions(*positions))?)))
                }
                Scheme::DeMo { kept } => {
                    Ok(Box::new(ByDeMo(DeMo::new(DeMoOptions::default().with_kept(*kept))?)))
                }
                Scheme::Dgc { density } => {
                    let mut options = DgcOptions::default();
                    options.density = *density;
                    options.workers = setting.workers as u64;
                    // Four stages in the first 4 % of the steps, like the authors' four epochs of 90 and
                    // more.
                    options.warm_up_steps = setting.steps.div_ceil(100);
                    options.clip = self.clip;
                    Ok(Box::new(ByDgc::new(options)?))
                }
                Scheme::ScaleCom { .. }
                | Scheme::OneBit
                | Scheme::SharedSet { .. }
                | Scheme::Predicted { .. }
                | Scheme::Lgc(_) => Err("a protocol, not a sender".into()),
            }
        };
        if let Scheme::SharedSet { density, values, momentum } = self.scheme {
            let settings = shared_set::SharedSetOptions::new(Choice::TopKOfEach(Amount::Density(density)));
            let settings = settings.with_values(values).with_momentum(momentum);
            return Ok(Box::new(SharedSets::new(
                manifest,
                setting.workers,
                setting.receivers,
                dense,
                settings,
            )?));
        }
        let steps = (dense, top_k_steps(setting.steps));
        if let Scheme::Predicted { density, prediction } = self.scheme {
            return Ok(Box::new(Predicted::new(
                manifest,
                setting.workers,
                setting.receivers,
                steps,
                density,
                prediction,
            )?));
        }
        if let Scheme::Lgc(settings) = self.scheme {
            return Ok(Box::new(LearnedGroup::new(
                manifest,
                setting.workers,
                setting.receivers,
                steps,
                settings,
            )?));
        }
        if let Scheme::ScaleCom { choice, beta } = self.scheme {
            let settings = ScaleComOptions::new(choice).with_beta(beta);
            return Ok(Box::new(ScaleCom::new(manifest, setting.workers, setting.receivers, settings)?));
        }
        if let Scheme::OneBit = self.scheme {
            // The paper's warm-up is 15 to 25 % of the steps; the variance decays as in the study's own Adam.
            let settings =
                onebit::OneBitOptions::default().with_warm_up(setting.steps / 5).with_variance(0.99);
            return Ok(Box::new(OneBit::new(manifest, setting.workers, setting.receivers, settings)?));
        }
        let senders = (0..setting.workers).map(sender).collect::<Result<_>>()?;
        Ok(Box::new(Gather::new(manifest, senders, setting.receivers, self.server, self.trouble)))
    }

    /// Returns a run with a codec on gradients, whose mean `outer` applies.
    fn codec(spec: &str, feedback: bool, outer: Rule, claim: &'static str) -> Self {
        let name = if feedback { format!("{spec}, EF") } else { spec.to_owned() };
        Self {
            name,
            scheme: Scheme::Codec { spec: spec.to_owned(), feedback },
            local: None,
            outer,
            outer_rate: 1.0,
            rate: 1.0,
            clip: None,
            claim,
            server: false,
            dense: false,
            trouble: None,
        }
    }

    /// Sets another learning rate, and adds it to the name.
    fn slower(self, by: u16) -> Self {
        Self { name: format!("{}, rate / {by}", self.name), rate: self.rate / f32::from(by), ..self }
    }

    /// Sparse Binary Compression: local steps, residual, momentum masking.
    fn sbc(density: f64, positions: Positions, every: u64, rule: Rule, claim: &'static str) -> Self {
        let how = if positions == Positions::Auto { "" } else { ",positions=rice-one" };
        let steps = if every == 1 { "" } else { "s" };
        Self {
            name: format!("sbc:density={density}{how}, {every} local step{steps}"),
            scheme: Scheme::Sbc { density, positions },
            local: Some(Local { rule, every }),
            ..Self::codec("", true, PLAIN, claim)
        }
    }

    /// DeMo: the sign of the mean of what arrived.
    fn demo(kept: u64, rate: f32, claim: &'static str) -> Self {
        Self {
            name: format!("DeMo, {kept} of each 64 x 64"),
            scheme: Scheme::DeMo { kept },
            rate,
            ..Self::codec("", false, Rule::Sign, claim)
        }
    }

    fn one_bit(claim: &'static str) -> Self {
        Self { name: "1-bit Adam".into(), scheme: Scheme::OneBit, ..Self::codec("", false, PLAIN, claim) }
    }

    fn dgc(density: f64, rate: f32, claim: &'static str) -> Self {
        Self {
            name: format!("DGC, density {density}"),
            scheme: Scheme::Dgc { density },
            rate,
            ..Self::codec("", false, PLAIN, claim)
        }
    }

    /// SparseLoCo: local Adam or momentum, the mean followed with Nesterov's momentum.
    fn sparse_loco(spec: &str, every: u64, rule: Rule, claim: &'static str) -> Self {
        Self {
            name: format!("{spec}, {every} local steps"),
            local: Some(Local { rule, every }),
            outer: Rule::Sgd { momentum: 0.9, nesterov: true },
            outer_rate: 0.3,
            ..Self::codec(spec, true, PLAIN, claim)
        }
    }

    /// Sends the first steps as `raw`.
    fn after_dense(self) -> Self {
        Self { dense: true, ..self }
    }

    fn shared_set(density: f64, values: (&str, Kept), momentum: f32, outer: Rule) -> Self {
        let corrected = if momentum > 0.0 { ", momentum correction" } else { "" };
        Self {
            name: format!("shared set, density {density}, {}{corrected}", values.0),
            scheme: Scheme::SharedSet { density, values: values.1, momentum },
            // The workers have the momentum already.
            ..Self::codec("", true, if momentum > 0.0 { PLAIN } else { outer }, "").after_dense()
        }
    }

    fn predicted(density: f64, prediction: Prediction, outer: Rule) -> Self {
        let how = match prediction {
            Prediction::Linear(Remainder::Pow2) => "linear prediction, rest in powers of two".to_owned(),
            Prediction::Linear(Remainder::Sign) => "linear prediction, signs of the rest".to_owned(),
            Prediction::Table(levels, Condition::Leader) => {
                format!("tables of {levels} by the leader's value")
            }
            Prediction::Table(levels, Condition::Tensor) => format!("tables of {levels}"),
        };
        Self {
            name: format!("shared set, density {density}, {how}"),
            scheme: Scheme::Predicted { density, prediction },
            ..Self::codec("", true, outer, "").after_dense()
        }
    }

    fn lgc(name: &str, lgc: Lgc, outer: Rule) -> Self {
        Self {
            name: format!("{name}, density {}", lgc.density),
            scheme: Scheme::Lgc(lgc),
            ..Self::codec("", true, outer, "").after_dense()
        }
    }

    fn scalecom(density: f64, beta: f32, outer: Rule, claim: &'static str) -> Self {
        Self {
            name: format!("ScaleCom, density {density}, beta {beta}"),
            scheme: Scheme::ScaleCom { choice: Choice::TopK(Amount::Density(density)), beta },
            ..Self::codec("", false, outer, claim)
        }
    }

    /// The paper's cheaper selection: the largest element of each chunk.
    fn scalecom_of_chunks(chunk: u64, beta: f32, outer: Rule) -> Self {
        Self {
            name: format!("ScaleCom, one of each {chunk}, beta {beta}"),
            scheme: Scheme::ScaleCom { choice: Choice::PerChunk(chunk), beta },
            ..Self::codec("", false, outer, "")
        }
    }
}

/// Returns the steps of the learned codec's first phase, a twentieth of all.
pub(crate) fn dense_steps(steps: u64) -> u64 {
    steps / 20
}

/// Returns the steps of its second phase, in whose end the autoencoder is trained: a quarter of all.
pub(crate) fn top_k_steps(steps: u64) -> u64 {
    steps / 4
}

/// Name of the run that others are compared with.
pub(crate) const UNCOMPRESSED: &str = "raw";

// Claims about the papers' own networks. A claim that follows only from a formula says so.
const SBC: &str = "2,784x would be one Golomb-Rice code for each position and nothing else";
const SBC_DELAY: &str = "ResNet50: 3,531x at the uncompressed accuracy (abstract)";
const NATURAL: &str = "9 bits each: 3.56x (table 1)";
const DITHER: &str = "4.1 to 16x";
const QSGD: &str = "4.06 bits each, without entropy coding: 7.9x";
const TERNGRAD: &str = "1.58 bits each, with ideal coding: 20x";
const SIGN: &str = "1 bit each: 32x";
const POW2: &str = "ResNet18, 0.39 %: 208x, 93.72 -> 93.93 %";
const DGC: &str = "270 to 600x (abstract)";
const SCALECOM: &str = "47 to 400x, counting values; ResNet34: 92x, 93.78 -> 93.98 %";
const LOCO: &str = "more than 146x";
const POWER: &str = "ResNet18: 136x for rank 2";
const DEMO: &str = "85x with 8 of each 64 x 64";
const ONE_BIT: &str = "up to 5x less communication";

/// Returns the runs of the convolutional network.
pub(crate) fn convolutional() -> Vec<Run> {
    let codec = |spec, feedback, claim| Run::codec(spec, feedback, MOMENTUM, claim);
    vec![
        codec("raw", false, ""),
        codec("lossless", false, ""),
        codec("natural", false, NATURAL),
        codec("dither:levels=8", false, DITHER),
        codec("qsgd:bits=4", false, QSGD),
        codec("terngrad", false, TERNGRAD),
        codec("int8", false, ""),
        codec("sign", true, SIGN),
        codec("topk:density=0.01", true, ""),
        codec("topk:density=0.01,values=bf16", true, ""),
        codec("topk:density=0.01,values=pow2", true, POW2),
        codec("topk:density=0.01,scope=global", true, ""),
        codec("stc:density=0.01", true, ""),
        codec("sidco:density=0.01,values=pow2", true, ""),
        codec("sidco:density=0.01,values=pow2,stages=authors", true, ""),
        codec("randk:density=0.01,scale=1", true, ""),
        codec("randk:density=0.01,scale=1", true, "").slower(10),
        codec("randk:density=0.1", false, "").slower(10),
        codec("powersgd:rank=2", true, POWER),
        Run::demo(8, 0.02, DEMO),
        Run::dgc(0.001, 1.0, DGC),
        Run::sbc(0.001, Positions::Auto, 1, MOMENTUM, SBC),
        Run::sbc(0.001, Positions::RiceOne, 1, MOMENTUM, SBC),
        Run::sbc(0.01, Positions::Auto, 10, MOMENTUM, SBC_DELAY),
        Run::scalecom(0.01, 1.0, MOMENTUM, SCALECOM),
        Run::scalecom(0.01, 0.3, MOMENTUM, SCALECOM),
        Run::sparse_loco("chunked:kept=64,values=code2", 10, MOMENTUM, LOCO),
    ]
}

/// Returns the runs that test whether more steps close a gap: at the highest ratios, most of a gradient
/// stays in the residual for many steps.
pub(crate) fn long() -> Vec<Run> {
    let wanted = |run: &Run| run.name == UNCOMPRESSED || run.name.starts_with("sbc:density=0.001, ");
    convolutional().into_iter().filter(wanted).collect()
}

/// Returns the runs of the language model.
pub(crate) fn language() -> Vec<Run> {
    let codec = |spec, feedback, claim| Run::codec(spec, feedback, Rule::Adam, claim);
    vec![
        codec("raw", false, ""),
        codec("natural", false, NATURAL),
        codec("int8", false, ""),
        codec("qsgd:bits=4", false, QSGD),
        codec("sign", true, SIGN),
        codec("topk:density=0.01,values=pow2", true, POW2),
        Run::scalecom(0.01, 1.0, Rule::Adam, SCALECOM),
        codec("powersgd:rank=2", true, POWER),
        Run::demo(8, 0.3, DEMO),
        Run::one_bit(ONE_BIT),
        Run::sbc(0.001, Positions::Auto, 1, Rule::Adam, SBC),
        Run::sbc(0.01, Positions::Auto, 10, Rule::Adam, SBC_DELAY),
        Run::sparse_loco("chunked:kept=64,values=code2", 10, Rule::Adam, LOCO),
        Run {
            name: "raw, SGD with momentum".into(),
            clip: Some(1.0),
            rate: SGD,
            ..Run::codec("raw", false, MOMENTUM, "")
        },
        Run { clip: Some(1.0), ..Run::dgc(0.001, SGD, DGC) },
    ]
}

/// Returns the runs of the language model that show how a longer training ends.
pub(crate) fn language_long() -> Vec<Run> {
    let names = [UNCOMPRESSED, "topk:density=0.01,values=pow2, EF", "sbc:density=0.001, 1 local step"];
    language().into_iter().filter(|run| names.contains(&run.name.as_str())).collect()
}

/// Learning rate of SGD relative to that of Adam, on the language model.
const SGD: f32 = 100.0;

/// Returns the runs for 2 to 16 workers: ScaleCom, and top-k with the same number of elements, whose sum a
/// server sends back.
pub(crate) fn traffic() -> Vec<Run> {
    let topk = Run::codec("topk:density=0.01,scope=global", true, MOMENTUM, "");
    vec![
        Run::scalecom(0.01, 1.0, MOMENTUM, ""),
        Run { server: true, name: "topk:density=0.01,scope=global, merged".into(), ..topk },
    ]
}

/// Returns the runs of which the traffic of up to 64 workers is counted.
pub(crate) fn crowded_traffic() -> Vec<Run> {
    let merged = |density: f64| {
        let run = Run::codec(&format!("topk:density={density},scope=global"), true, MOMENTUM, "");
        Run { server: true, name: format!("topk:density={density},scope=global, merged"), ..run }
    };
    [vec![Run::scalecom(0.01, 1.0, MOMENTUM, "")], [0.1, 0.01, 0.001].map(merged).to_vec()].concat()
}

/// Returns the runs of many workers.
pub(crate) fn crowded() -> Vec<Run> {
    let codec = |spec, feedback| Run::codec(spec, feedback, MOMENTUM, "");
    let mut runs = vec![codec("raw", false), codec("natural", false)];
    for density in [0.1, 0.01, 0.001] {
        runs.push(Run::codec(&format!("topk:density={density},values=pow2"), true, MOMENTUM, ""));
        runs.push(Run::codec(&format!("sidco:density={density},values=pow2"), true, MOMENTUM, ""));
        runs.push(Run::scalecom(density, 1.0, MOMENTUM, ""));
    }
    runs.push(Run::scalecom(0.01, 0.1, MOMENTUM, ""));
    runs.push(Run::scalecom_of_chunks(100, 1.0, MOMENTUM));
    runs.push(Run::shared_set(0.01, POWERS, 0.0, MOMENTUM));
    runs.push(Run::sbc(0.001, Positions::Auto, 1, MOMENTUM, ""));
    runs.push(Run::sbc(0.01, Positions::Auto, 10, MOMENTUM, ""));
    runs.push(Run::lgc("LGC", lgc_of(Autoencoder::Paper, false), MOMENTUM));
    runs
}

/// Returns the runs with late and lost updates, each beside the same run without.
pub(crate) fn troubled() -> Vec<Run> {
    let codecs =
        [("raw", false), ("natural", false), ("topk:density=0.01", true), ("topk:density=0.001", true)];
    let plain = codecs.map(|(spec, feedback)| Run::codec(spec, feedback, MOMENTUM, ""));
    let with = |run: &Run, taken_back: bool| Run {
        name: format!("{}, {}", run.name, if taken_back { "lost ones taken back" } else { "late and lost" }),
        trouble: Some(Trouble { taken_back }),
        ..run.clone()
    };
    plain.iter().flat_map(|run| [run.clone(), with(run, false), with(run, true)]).collect()
}

const POWERS: (&str, Kept) = ("powers of two", Kept::Pow2);
const SIGNS: (&str, Kept) = ("signs", Kept::Sign);

fn lgc_of(autoencoder: Autoencoder, feedback: bool) -> Lgc {
    let (density, momentum, iterations) = (0.01, 0.0, 10);
    Lgc { autoencoder, density, momentum, feedback, iterations, rounded: false, again: None }
}

/// Returns the runs that compare the learned codec with shared sets and with top-k at equal bytes.
pub(crate) fn learned(outer: Rule) -> Vec<Run> {
    let topk = |density: f64| {
        Run::codec(&format!("topk:density={density},values=pow2"), true, outer, "").after_dense()
    };
    vec![
        Run::codec("raw", false, outer, ""),
        topk(0.01),
        // About the bytes of a shared set.
        topk(0.006),
        topk(0.005),
        Run::shared_set(0.01, POWERS, 0.0, outer),
        Run::shared_set(0.01, POWERS, 0.9, outer),
        Run::shared_set(0.01, SIGNS, 0.0, outer),
        Run::shared_set(0.02, SIGNS, 0.0, outer),
        Run::lgc("LGC", lgc_of(Autoencoder::Paper, false), outer),
        Run::lgc("LGC, innovation replaces, error fed back", lgc_of(Autoencoder::Replace, true), outer),
        Run::lgc("innovation alone", lgc_of(Autoencoder::Zero, false), outer),
        Run::lgc("innovation alone, error fed back", lgc_of(Autoencoder::Zero, true), outer),
    ]
}

/// Returns the runs that use what workers and steps have in common in other ways than the learned codec. The
/// densities of 0.015 to 0.02 have about the bytes of a shared set with powers of two at 0.01.
pub(crate) fn beyond(outer: Rule) -> Vec<Run> {
    let paper = lgc_of(Autoencoder::Paper, false);
    let rounded = Lgc { rounded: true, ..paper };
    let again = Lgc { again: Some(Again { every: 70, steps: 10, iterations: 100 }), ..paper };
    vec![
        // About the bytes of a shared set of density 0.01 with tables.
        Run::codec("topk:density=0.0035,values=pow2", true, outer, "").after_dense(),
        Run::predicted(0.01, Prediction::Linear(Remainder::Pow2), outer),
        Run::predicted(0.018, Prediction::Linear(Remainder::Sign), outer),
        Run::predicted(0.01, Prediction::Table(4, Condition::Tensor), outer),
        Run::predicted(0.01, Prediction::Table(4, Condition::Leader), outer),
        Run::predicted(0.015, Prediction::Table(4, Condition::Leader), outer),
        Run::predicted(0.02, Prediction::Table(2, Condition::Tensor), outer),
        Run::predicted(0.02, Prediction::Table(2, Condition::Leader), outer),
        Run::lgc("LGC, trained on rounded codes", rounded, outer),
        Run::lgc("LGC, trained again every 70 steps", again, outer),
    ]
}
