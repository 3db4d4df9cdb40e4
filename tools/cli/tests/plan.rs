//! `gcodec plan`, run as a user runs it.

mod common;

use common::{Dir, demo, worker, workers};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn planned(dir: &Dir, line: &str) -> Value {
    serde_json::from_slice(&dir.well(&format!("plan {line} --json --runs 3")).stdout).unwrap()
}

fn choice<'a>(report: &'a Value, codec: &str) -> &'a Value {
    let named = |one: &&Value| one["codec"].as_str().unwrap_or("none").starts_with(codec);
    report["choices"].as_array().unwrap().iter().find(named).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn a_slow_link_needs_few_bytes_and_a_fast_one_no_codec() {
    let dir = Dir::new();
    let model = format!("{} --workers 16 --compute 100ms --parameters 100M", workers());
    let slow =
        planned(&dir, &format!("{model} --link 10Mbit --latency 10ms --exchange gather --exchange tree"));
    // Which sparse codecs are the fastest depends on measured times, and this machine has other work to do:
    // of those that are nearly as fast as the fastest, the one of the smallest error is recommended.
    let choices = slow["choices"].as_array().unwrap();
    let fastest = choices.iter().map(|one| number(&one["seconds"])).fold(f64::INFINITY, f64::min);
    let near = choices.iter().filter(|one| number(&one["seconds"]) <= 1.1 * fastest);
    let least = near.map(|one| number(&one["relative_l2"])).fold(f64::INFINITY, f64::min);
    let named = slow["recommended"]["codec"].as_str().unwrap();
    let [plain, recommended] = ["none", named].map(|codec| choice(&slow, codec));
    assert!(number(&recommended["seconds"]) <= 1.1 * fastest, "{recommended}: {fastest}");
    assert_eq!(number(&recommended["relative_l2"]), least, "{recommended}");
    assert!(number(&recommended["sent"]) < number(&plain["sent"]) / 50.0, "{recommended} against {plain}");
    // Where values are added on the way, only 2 of them pass each link, whatever the number of workers.
    let any = planned(&dir, &format!("{model} --link 10Mbit --latency 10ms"));
    assert_eq!(any["recommended"]["exchange"], "shared-set", "{}", any["recommended"]);
    // 100 M parameters of 4 bytes, twice, at 10 Mbit/s.
    assert_eq!(plain["exchange"], "tree");
    assert!((600.0..800.0).contains(&number(&plain["seconds"])), "{plain}");
    assert_eq!(plain["bottleneck"], "bandwidth");
    let fast = planned(&dir, &format!("{model} --link 100000Gbit"));
    assert_eq!(fast["recommended"]["codec"], Value::Null, "{}", fast["recommended"]);
    let text = dir.well(&format!("plan {model} --link 100000Gbit --runs 1 --codec natural")).out();
    assert!(text.contains("Do not compress") && text.contains("(not compressed)"), "{text}");
    assert!(
        text.contains("16 workers, 100,000,000 parameters, links of 100 Tbit/s with 0 s of latency"),
        "{text}"
    );
}

#[test]
fn sizes_errors_and_unions_are_those_of_the_gradients() {
    let dir = Dir::new();
    let line = format!("{} --workers 2 --link 1Gbit --compute 0 --codec topk:density=0.01", workers());
    let report = planned(&dir, &line);
    let measured = &report["measured"][1];
    let parts = &measured["parts"];
    dir.well(&format!(
        "encode {} -o x.gcu --codec topk:density=0.01 --sender 0 --world 4 --no-metadata",
        worker(0)
    ));
    let whole = std::fs::metadata(dir.path("x.gcu")).unwrap().len() as f64;
    // Without manifest and index.
    let update = number(&parts["update"]);
    assert!(update > 193.0 * 4.0 && update < whole, "{update} of {whole}");
    let growth: Vec<f64> = parts["growth"].as_array().unwrap().iter().map(|p| number(&p[1])).collect();
    assert!(growth.len() == 2 && growth[0] == 1.0 && growth[1] > 1.3 && growth[1] < 2.1, "{growth:?}");
    // Positions of another worker lose more than a worker's own.
    let error = number(&measured["relative_l2"]);
    assert!(number(&parts["set"]["relative_l2"]) > error && error > 0.3, "{parts}");
    // One gradient cannot tell.
    let alone = planned(&dir, &format!("{} --workers 2 --link 1Gbit --compute 0 --codec topk", worker(0)));
    assert_eq!(alone["measured"][1]["parts"]["set"], Value::Null);
    let text = dir
        .well(&format!("plan {} --workers 2 --link 1Gbit --compute 0 --codec sbc --runs 1", worker(0)))
        .out();
    assert!(text.contains("as if no two workers chose the same position"), "{text}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the options of a plan for the real exchanges of `tools/scale/real`: processes of one machine, on
/// gloo.
fn as_measured(workers: &str, mbit: &str, ms: &str) -> String {
    let codecs = measured(workers, mbit, ms).into_iter().map(|(codec, _)| codec);
    // ScaleCom is an exchange of top-k.
    let codecs = codecs.filter(|codec| codec != "none" && !codec.starts_with("scalecom"));
    let codecs: String = codecs.map(|codec| format!(" --codec {codec}")).collect();
    format!(
        "--workers {workers} --share-cores {workers} --link {mbit}Mbit --latency {ms}ms --compute 0 --backend gloo \
         --adapter average --exchange ring --exchange gather --exchange shared-set{codecs}"
    )
}

/// Returns the codecs that were measured on a link, with the seconds of a step.
fn measured(workers: &str, mbit: &str, ms: &str) -> Vec<(String, f64)> {
    let link = [workers, mbit, ms].map(|number| number.parse::<f64>().unwrap());
    let mut all = Vec::new();
    for file in ["real.csv", "more.csv"] {
        let table = std::fs::read_to_string(root().join("docs/scale").join(file)).unwrap();
        for line in table.lines().skip(2) {
            let cells: Vec<&str> = line.splitn(4, ',').collect();
            // A codec with commas is in quotation marks.
            let (codec, rest) = match cells[3].strip_prefix('"') {
                Some(quoted) => quoted.split_once("\",").unwrap(),
                None => cells[3].split_once(',').unwrap(),
            };
            if codec != "small" && (0..3).all(|i| cells[i].parse() == Ok(link[i])) {
                all.push((codec.to_owned(), rest.split(',').nth(1).unwrap().parse().unwrap()));
            }
        }
    }
    all
}

/// Returns the name of a recommendation in the results of real exchanges.
fn recommended(report: &Value) -> String {
    let recommended = &report["recommended"];
    let codec = recommended["codec"].as_str().unwrap_or("none");
    // Without the settings that every codec has.
    let codec =
        codec.replace(",values=f32", "").replace("fit=gp,stages=guard,", "").replace(":group=256", "");
    // ScaleCom is an exchange of top-k.
    if recommended["exchange"] == "shared-set" { codec.replace("topk", "scalecom") } else { codec }
}

/// Real exchanges on three links: `docs/scale/real.csv` and `more.csv`, of the gradients of four workers.
#[test]
fn the_measured_best_codec_is_recommended_on_three_links() {
    let gradients = root().join("../shared/gradients");
    if !gradients.is_dir() {
        eprintln!(
            "SKIPPED: {} is missing: real exchanges were measured with its gradients",
            gradients.display()
        );
        return;
    }
    let files = [0, 1, 2, 3].map(|n| format!("resnet_step0200_worker{n}.safetensors"));
    let files = files.map(|file| gradients.join(file).display().to_string()).join(" ");
    let dir = Dir::new();
    for [workers, mbit, ms] in [["4", "10", "10"], ["2", "100", "10"], ["4", "1000", "10"]] {
        let report = planned(&dir, &format!("{files} {}", as_measured(workers, mbit, ms)));
        let here = measured(workers, mbit, ms);
        let name = recommended(&report);
        let fastest = here.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
        let seconds = here.iter().find(|(codec, _)| *codec == name).map(|(_, seconds)| *seconds);
        assert!(
            seconds.is_some_and(|s| s <= 1.1 * fastest),
            "{workers} workers, {mbit} Mbit/s, {ms} ms: {name}, {seconds:?} of {fastest}"
        );
    }
}

/// `docs/scale.md` has what the command recommends on each link that was measured.
#[test]
fn the_page_has_the_recommendation_for_every_measured_link() {
    let page = std::fs::read_to_string(root().join("docs/scale.md")).unwrap();
    let (_, table) = page.split_once("<!-- gcodec-scale links --write: from here -->").unwrap();
    let (table, _) = table.split_once("<!-- gcodec-scale links --write: to here -->").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.ends_with(" ms |"))
        .map(|line| line.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect();
    assert_eq!(rows.len(), 36);
    let dir = Dir::new();
    let sizes = root().join("docs/scale/sizes.json").display().to_string();
    for row in &rows {
        let [workers, mbit, ms, codec] = [row[1], row[2], row[3], row[4]];
        let line = format!("plan --measured {sizes} {} --json", as_measured(workers, mbit, ms));
        let report = serde_json::from_slice(&dir.well(&line).stdout).unwrap();
        assert_eq!(recommended(&report), codec, "{workers} workers, {mbit} Mbit/s, {ms} ms");
    }
}

#[test]
fn exchanges_groups_and_rare_exchanges_are_chosen() {
    let dir = Dir::new();
    let line = format!(
        "{} --workers 64 --link 100Mbit --latency 5ms --compute 10ms --codec topk:density=0.1",
        workers()
    );
    for exchange in ["gather", "shared-set", "aggregator", "shards"] {
        let report = planned(&dir, &format!("{line} --exchange {exchange} --exchange ring"));
        assert_eq!(choice(&report, "topk")["exchange"], exchange);
        assert_eq!(choice(&report, "none")["exchange"], "ring");
    }
    let every = |h: u32| {
        number(&choice(&planned(&dir, &format!("{line} --every {h} --exchange ring")), "none")["sent"])
    };
    assert!((every(1) / every(10) - 10.0).abs() < 1e-9);
    let grouped = planned(&dir, &format!("{line} --group 8 --group-link 100Gbit --exchange ring"));
    // Twice 7 latencies of 5 ms between the groups, of which parts of 0.8 ms hide a little; none inside.
    let latency = number(&choice(&grouped, "none")["latency"]);
    assert!((0.062..0.07).contains(&latency), "{latency}");
}

#[test]
fn a_page_is_written_whole() {
    let dir = Dir::new();
    dir.well(&format!(
        "plan {} --workers 8 --link 1Gbit --compute 1ms --codec sbc --runs 1 --html p.html",
        worker(0)
    ));
    let page = std::fs::read_to_string(dir.path("p.html")).unwrap();
    assert!(page.contains("sbc:density=0.001") && page.contains("<svg") && page.ends_with("</html>\n"));
    assert_eq!(dir.files(), ["p.html"]);
}

#[test]
fn wrong_options_say_what_is_wrong() {
    let dir = Dir::new();
    let with = |options: &str| format!("plan {} {options}", worker(0));
    let fails = |text: &str, options: &str| dir.fails(2, text, &with(options));
    fails("--workers", "--link 1Gbit --compute 1s");
    fails("1 is not in 2..", "--workers 1 --link 1Gbit --compute 1s");
    fails("not a rate such as 100Mbit", "--workers 2 --link 1GB --compute 1s");
    fails("not a rate above 0", "--workers 2 --link 0Mbit --compute 1s");
    fails("not a duration such as 20ms", "--workers 2 --link 1Gbit --compute 350");
    fails("--group-link", "--workers 2 --link 1Gbit --compute 1s --group 2");
    fails("weights of which the receiver", "--workers 2 --link 1Gbit --compute 1s --codec delta");
    fails("none of these codecs", "--workers 2 --link 1Gbit --compute 1s --codec sbc --exchange shared-set");
    fails("cannot be used with", "--workers 2 --link 1Gbit --compute 1s --measured plan.json");
    fails("did you mean", "--workers 2 --link 1Gbit --compute 1s --codec topkk");
    dir.fails(
        2,
        "its tensors are not those of",
        &format!(
            "plan {} {} --workers 2 --link 1Gbit --compute 1s",
            worker(0),
            demo("resnet_head_step0015_worker0.safetensors")
        ),
    );
    common::write_tensors(&dir.path("empty.safetensors"), &[("a", "F32", &[0], &[])]);
    dir.fails(2, "no elements", "plan empty.safetensors --workers 2 --link 1Gbit --compute 1s");
}
