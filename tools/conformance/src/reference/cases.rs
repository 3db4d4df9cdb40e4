//! The commands that write streams, and the dumps that they encode.

use std::fs;
use std::path::{Path, PathBuf};

use gcodec::Codec;

use super::Args;
use super::dump::Dump;
use crate::{Result, root};

/// Elements that an excerpt keeps of a tensor, and of a file.
const CUT: (usize, usize) = (1500, 9000);
const LONG_CUT: (usize, usize) = (6000, 60_000);

/// One codec of each family, with settings for small tensors.
pub(super) const FAMILIES: &[&str] = &[
    "raw",
    "lossless",
    "topk:density=0.05",
    "stc:density=0.02",
    "threshold:at=0.0003,values=bf16",
    "sbc:density=0.01",
    "sidco:density=0.01",
    "randk:density=0.05",
    "chunked:chunk=512,kept=20",
    "demo:chunk=16,kept=5",
    "powersgd:rank=2",
    "natural",
    "qsgd",
    "dither",
    "terngrad",
    "sign",
    "int8",
];

/// Codecs for the tiny network's gradient.
const SPECS: &[&str] = &[
    "topk:density=0.1,values=f32,positions=rice",
    "topk:density=0.1,values=f16,positions=rice-one",
    "topk:density=0.3,values=bf16,positions=tokens",
    "topk:density=0.2,values=pow2,positions=bitmap",
    "topk:density=1,values=sign,positions=auto",
    "topk:density=0.05,values=sign,positions=classed",
    "topk:k=40,values=q4,seed=3",
    "topk:k=1,values=f32,scope=global",
    "topk:density=0.01,values=q4,scope=tensor",
    "topk:density=0.001,values=pow2,scope=global,positions=rice",
    "topk:density=0.5,values=sign,scope=global,positions=tokens",
    "stc:k=7,positions=tokens",
    "stc:density=0.03,positions=rice",
    "stc:density=0.002,positions=rice-one",
    "stc:density=0.6,positions=bitmap",
    "stc:density=0.03,positions=auto",
    "stc:density=0.03,positions=classed",
    "threshold:at=0.01,values=f32",
    "threshold:at=1e-30,values=f16,positions=tokens",
    "threshold:at=1000,values=sign",
    "threshold:at=0.02,values=pow2,positions=bitmap",
    "threshold:at=0.02,values=bf16,positions=rice",
    "threshold:at=0.003,values=sign,positions=rice-one",
    "threshold:at=0.003,values=pow2,positions=auto",
    "threshold:at=0.01,values=bf16,positions=classed",
    "threshold:at=0.05,values=q4,seed=9",
    "sbc:k=1",
    "sbc:density=0.9,positions=auto",
    "sbc:density=0.001,positions=rice-one",
    "sbc:density=0.1,positions=rice",
    "sbc:density=0.4,positions=bitmap",
    "sbc:density=0.02,positions=tokens",
    "sbc:density=0.05,positions=classed",
    "sidco:density=0.1,fit=exp,stages=guard,values=f32",
    "sidco:density=0.01,fit=gamma-gp,stages=authors,values=f16,positions=rice",
    "sidco:k=50,fit=gp,stages=3,values=bf16",
    "sidco:density=0.01,values=pow2,seed=5",
    "sidco:density=0.02,values=sign,positions=rice-one",
    "sidco:density=0.03,values=q4,positions=tokens",
    "sidco:density=0.3,values=pow2,positions=bitmap",
    "sidco:density=0.004,values=f32,positions=auto",
    "sidco:density=0.05,values=pow2,positions=classed",
    "randk:density=0.01,scale=n/k,values=f32",
    "randk:k=5,scale=1,values=bf16,seed=9",
    "randk:density=1,values=f16",
    "chunked:chunk=4096,kept=64,values=code2",
    "chunked:chunk=100,kept=100,values=sign",
    "chunked:chunk=1,kept=1",
    "demo:chunk=64,kept=32,values=sign",
    "demo:chunk=8,kept=3,values=f32",
    "demo:chunk=128,kept=9,values=bf16",
    "demo:chunk=1,kept=1,values=f16",
    "powersgd:rank=1,seed=3",
    "powersgd:rank=4",
    "natural:seed=18446744073709551615",
    "qsgd:bits=2,bucket=64,norm=max,seed=3",
    "qsgd:bits=8,bucket=100000,norm=l2",
    "qsgd:bits=16,bucket=512",
    "dither:levels=1,bucket=64,norm=l1,seed=4",
    "dither:levels=255,bucket=2,norm=max",
    "dither:levels=8,bucket=512,norm=l2",
    "terngrad:clip=inf,bucket=100,seed=4",
    "terngrad:clip=1,bucket=4096",
    "sign:group=64",
    "sign:group=tensor",
    "int8:group=2",
    "int8:group=100000",
];

const DELTAS: &[&str] = &[
    "delta:positions=auto",
    "delta:positions=rice",
    "delta:positions=rice-one",
    "delta:positions=tokens",
    "delta:positions=bitmap",
    "delta:positions=classed,values=ulp",
    "delta:values=overwrite",
    "delta:digest=sum",
    "delta:digest=blake3",
    "delta:digest=both",
];

/// Commands that write one stream, and the inputs for decoding it.
pub(super) struct Case {
    pub(super) name: String,
    /// Arguments of the command line, one command after another.
    pub(super) commands: Vec<Vec<String>>,
    /// Steps of the stream's updates.
    pub(super) steps: Vec<u64>,
    /// Tensors that the first update is a delta against; each later base is the result of the step before.
    pub(super) base: Option<PathBuf>,
    /// Updates after the first are deltas.
    pub(super) is_chain: bool,
    /// Other output of the commands that must have the same bytes.
    pub(super) twin: Option<String>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns a file name for a codec specification.
fn named(prefix: &str, spec: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "=.-".contains(c) { c } else { '_' };
    format!("{prefix}-{}", spec.chars().map(plain).collect::<String>())
}

/// Returns the command that encodes `inputs` with a codec.
fn encode(name: &str, spec: &str, inputs: &str, more: &str) -> Vec<String> {
    words(&format!("encode {inputs} -o {name}.gcu --codec {spec} {more}"))
}

/// Returns the case of one command and one update.
fn one(prefix: &str, spec: &str, inputs: &str, more: &str) -> Case {
    let name = named(prefix, spec);
    Case {
        commands: vec![encode(&name, spec, inputs, more)],
        name,
        steps: vec![0],
        base: None,
        is_chain: false,
        twin: None,
    }
}

/// Returns all cases, after writing their inputs to `place`.
pub(super) fn cases(args: &Args, place: &Path) -> Result<Vec<Case>> {
    let mut out = demo_cases(place)?;
    public(args, place, &mut out)?;
    Ok(out)
}

/// Returns the cases on the files of tools/cli/gradients/, after writing their inputs to `place`.
pub(super) fn demo_cases(place: &Path) -> Result<Vec<Case>> {
    let mut out = Vec::new();
    let demo = root().join("tools/cli/gradients");
    for worker in 0..2 {
        let from = demo.join(format!("digits_convnet_step0030_worker{worker}.safetensors"));
        // Without their metadata, which would give the updates other steps.
        Dump::read(&from)?.write(&place.join(format!("t{worker}.safetensors")))?;
    }
    let (t0, t1) = ("t0.safetensors", "t1.safetensors");
    out.extend(SPECS.iter().map(|spec| one("t0", spec, t0, "")));

    // Every element type, with infinities and NaN.
    Dump::read(&place.join(t0))?.as_all_types().write(&place.join("types.safetensors"))?;
    out.extend(
        [
            "raw",
            "lossless",
            "topk:density=0.1",
            "natural",
            "sign:group=64",
            "demo:chunk=8,kept=3",
            "powersgd",
            "lossless:effort=default",
            "lossless:effort=fast",
            "natural:effort=default",
            "natural:effort=fast",
        ]
        .map(|spec| one("types", spec, "types.safetensors", "--zero-non-finite")),
    );

    // Headers, metadata (short, and long enough for compression), rules, threads.
    let mut case =
        one("head", "natural", t0, "--step 7 --sender 3 --world 8 --meta run=a --meta b= --threads 1");
    case.steps = vec![7];
    out.push(case);
    let mut case = one("meta", "sbc", t0, "");
    case.commands[0].extend(["--meta".into(), format!("notes={}", "all the same ".repeat(50))]);
    out.push(case);
    let rules = "--rule *.bias=lossless --rule conv*=sbc:density=0.01 --rule *1.weight=demo:chunk=8,kept=4";
    let mut case = one("rules", "topk:density=0.05,positions=tokens", t0, &format!("{rules} --threads 4"));
    let twin = format!("{}-one-thread.gcu", case.name);
    let mut again = case.commands[0].clone();
    for word in &mut again {
        match word.as_str() {
            "4" => *word = "1".into(),
            w if w.ends_with(".gcu") => *word = twin.clone(),
            _ => {}
        }
    }
    case.commands.push(again);
    case.twin = Some(twin);
    out.push(case);

    // Several updates: several inputs, appended segments, error feedback.
    for spec in ["natural", "topk:density=0.02,values=q4"] {
        let mut case = one("row", spec, &format!("{t0} {t1} {t0}"), "");
        case.steps = vec![0, 1, 2];
        out.push(case);
    }
    let mut case = one("append", "sbc:density=0.01", t0, "--feedback append-residual.safetensors --meta a=b");
    for more in [
        format!("{t1} {t0} --feedback append-residual.safetensors"),
        format!("{t1} --step 40 --meta c=d"),
        "types.safetensors --rule *=raw".into(),
    ] {
        case.commands.push(encode(&case.name, "sbc:density=0.01", &more, "--append"));
    }
    case.steps = vec![0, 1, 2, 40, 41];
    out.push(case);

    // Deltas against a base, in a chain that begins losslessly, appended.
    for spec in DELTAS {
        let mut case = one("delta", spec, t1, &format!("--base {t0}"));
        case.base = Some(place.join(t0));
        out.push(case);
    }
    let mut case = one("chain", "delta", &format!("{t0} {t1} {t0}"), "");
    case.commands.push(encode(&case.name, "delta", t1, &format!("--base {t0} --append")));
    (case.steps, case.is_chain) = (vec![0, 1, 2, 3], true);
    out.push(case);
    let mut case = one("types-delta", "delta", "types.safetensors", "--base types-base.safetensors");
    let mut base = Dump::read(&place.join("types.safetensors"))?;
    for tensor in base.tensors.values_mut().filter(|t| t.dtype != "BOOL") {
        tensor.data.iter_mut().step_by(7).for_each(|b| *b ^= 0x21);
    }
    base.write(&place.join("types-base.safetensors"))?;
    case.base = Some(place.join("types-base.safetensors"));
    out.push(case);

    // Output of other commands: sums, means, and recovered streams.
    for (name, spec, method) in [
        ("sum", "topk:density=0.02", "--method sparse"),
        ("mean", "natural", "--mean --weight 3 --weight 1"),
        ("mean-again", "topk:density=0.05", "--mean --codec sbc:density=0.01"),
        ("sum-added", "raw", "--method add"),
    ] {
        let mut commands: Vec<_> = [t0, t1]
            .iter()
            .enumerate()
            .map(|(n, input)| encode(&format!("{name}-{n}"), spec, input, &format!("--sender {n} --world 2")))
            .collect();
        commands.push(words(&format!("reduce {name}-0.gcu {name}-1.gcu -o {name}.gcu {method}")));
        out.push(Case {
            commands,
            name: name.into(),
            steps: vec![0],
            base: None,
            is_chain: false,
            twin: None,
        });
    }
    let mut case = one("recovered", "sbc", &format!("{t0} {t1}"), "");
    let whole = format!("{}-whole.gcu", case.name);
    case.commands[0].iter_mut().filter(|w| w.ends_with(".gcu")).for_each(|w| *w = whole.clone());
    case.commands.push(words(&format!("recover {whole} -o {}.gcu", case.name)));
    case.steps = vec![0, 1];
    out.push(case);

    Ok(out)
}

/// Excerpts of the public set.
fn public(args: &Args, place: &Path, out: &mut Vec<Case>) -> Result<()> {
    if !args.gradients.is_dir() {
        println!(
            "SKIPPED: {} is missing: only the files of tools/cli/gradients/ are used",
            args.gradients.display()
        );
        return Ok(());
    }
    const SHORT: [&str; 5] = [
        "gpt_step0300_worker0",
        "gpt_diloco_h100_round1_worker0_bf16",
        "lstm_step0500_worker0",
        "resnet_step0200_worker0_fp16",
        "resnet_step0600_worker0",
    ];
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&args.gradients)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|e| e == "safetensors")
            && (args.long || SHORT.contains(&stem.as_ref()))
        {
            files.push(path);
        }
    }
    files.sort();
    for path in files {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = format!("{stem}.safetensors");
        Dump::read(&path)?.cut(if args.long { LONG_CUT } else { CUT }).write(&place.join(&name))?;
        // Their names would give the updates other steps.
        out.extend(FAMILIES.iter().map(|spec| one(&stem, spec, &name, "--step 0")));
    }
    // Only long tensors have trees.
    let name = "gpt_sgd_step0380_worker0.safetensors";
    Dump::read(&args.gradients.join(name))?.write(&place.join("whole.safetensors"))?;
    out.push(one("whole", "natural:effort=fast", "whole.safetensors", "--step 0"));
    let sync = ["gpt_bf16_sync020.safetensors", "gpt_bf16_sync021.safetensors"];
    for name in sync {
        let whole = Dump::read(&args.gradients.join("weight_sync").join(name))?;
        whole.cut(if args.long { LONG_CUT } else { CUT }).write(&place.join(name))?;
    }
    for spec in DELTAS {
        let mut case = one("sync", spec, sync[1], &format!("--base {}", sync[0]));
        case.base = Some(place.join(sync[0]));
        out.push(case);
    }
    Ok(())
}

/// Returns names, keys and choices of codec specifications that no case has, as listed by the parser's
/// errors.
pub(super) fn uncovered(cases: &[Case]) -> Vec<String> {
    let list = |spec: &str, before: &str| -> Vec<String> {
        let error = spec.parse::<Codec>().err().map(|e| e.to_string()).unwrap_or_default();
        let all = error.split_once(before).map(|(_, all)| all.split(", ").map(str::to_owned).collect());
        all.unwrap_or_default()
    };
    let specs: Vec<&str> = cases.iter().flat_map(|c| &c.commands).flatten().map(String::as_str).collect();
    let has = |name: &str, pair: &str| {
        specs.iter().any(|spec| {
            let (found, keys) = spec.split_once(':').unwrap_or((spec, ""));
            found == name && keys.split(',').any(|key| key.starts_with(pair))
        })
    };
    let mut out = Vec::new();
    for &name in Codec::NAMES {
        if !specs.iter().any(|s| s.split(':').next() == Some(name)) {
            out.push(name.to_owned());
        }
        for key in list(&format!("{name}:?=1"), "allowed are ").into_iter().filter(|key| key != "none") {
            let choices = list(&format!("{name}:{key}=?"), "one of ");
            let pairs = choices.iter().map(|choice| format!("{key}={choice}"));
            let pairs: Vec<_> = if choices.is_empty() { vec![format!("{key}=")] } else { pairs.collect() };
            out.extend(pairs.into_iter().filter(|pair| !has(name, pair)).map(|p| format!("{name}:{p}")));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_that_no_case_has_is_named() {
        let case = |spec: &str| Case {
            name: "x".into(),
            commands: vec![words(&format!("encode in -o out --codec {spec}"))],
            steps: vec![0],
            base: None,
            is_chain: false,
            twin: None,
        };
        let without = uncovered(&[case("int8"), case("sign:group=64"), case("raw")]);
        assert!(without.contains(&"natural".to_owned()) && without.contains(&"topk:values=q4".to_owned()));
        assert!(without.contains(&"int8:group=".to_owned()) && !without.contains(&"int8".to_owned()));
        assert!(!without.iter().any(|w| w.starts_with("sign") || w.starts_with("raw")));
    }
}
