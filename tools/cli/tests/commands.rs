//! The commands, run as a user runs them.

mod common;

use common::{CODECS, Dir, demo, f32s, step, steps, worker, write_tensors};
use serde_json::Value;

#[test]
fn every_codec_goes_there_and_back() {
    let dir = Dir::new();
    let input = worker(0);
    for codec in CODECS.iter().chain(&["int8:group=256"]) {
        let run = dir.well(&format!("encode {input} -o x.gcu --codec {codec}"));
        assert!(run.err.contains("19,210 elements") && run.err.contains("bits per parameter"), "{}", run.err);
        dir.well("verify x.gcu");
        dir.well("decode x.gcu -o x.safetensors");
        // Both ways to decode agree.
        dir.well("diff x.safetensors x.gcu");
        let lossless = matches!(*codec, "raw" | "lossless");
        let code = dir.run(&format!("diff {input} x.safetensors")).code;
        assert_eq!(code, i32::from(!lossless), "{codec}");
        let bound = if codec.starts_with("qsgd") { 1.5 } else { 1.0 };
        dir.well(&format!("diff {input} x.gcu --rtol {bound}"));
    }
}

#[test]
fn streams_go_through_pipes() {
    let dir = Dir::new();
    let input = std::fs::read(worker(0)).unwrap();
    let encoded = dir.run_with("encode - -o - --codec lossless", &input);
    assert_eq!(encoded.code, 0, "{}", encoded.err);
    let decoded = dir.run_with("decode - -o -", &encoded.stdout);
    assert_eq!(decoded.code, 0, "{}", decoded.err);
    std::fs::write(dir.path("x.safetensors"), &decoded.stdout).unwrap();
    dir.well(&format!("diff {} x.safetensors", worker(0)));
    assert_eq!(dir.run_with("verify -", &encoded.stdout).code, 0);
    assert_eq!(dir.run_with("inspect -", &encoded.stdout).code, 0);
    assert_eq!(dir.run_with(&format!("diff {} -", worker(0)), &encoded.stdout).code, 0);
    assert_eq!(dir.run_with("--quiet encode - -o - --codec raw", &input).err, "");
    assert_eq!(dir.files(), ["x.safetensors"]);
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let dir = Dir::new();
    for (threads, file) in [(1, "a"), (2, "b"), (5, "c")] {
        dir.well(&format!("encode {} -o {file} --threads {threads} --codec topk:values=pow2", worker(0)));
    }
    let read = |file| std::fs::read(dir.path(file)).unwrap();
    assert!(read("a") == read("b") && read("b") == read("c"));
}

#[test]
fn several_inputs_become_steps() {
    let dir = Dir::new();
    let inputs = format!("{} {} {}", step(15), step(200), step(600));
    dir.well(&format!(
        "encode {inputs} -o run.gcu --codec lossless --step 100 --sender 3 --meta a=b --meta c= --no-metadata"
    ));
    for (number, original) in [(100, 15), (101, 200), (102, 600)] {
        dir.well(&format!("diff {} run.gcu --step {number}", step(original)));
    }
    let run = dir.well("decode run.gcu -o last.safetensors");
    assert!(
        run.err.contains("warning: 3 updates, of which the last is decoded (step 102, sender 3)"),
        "{}",
        run.err
    );
    dir.well(&format!("diff {} last.safetensors", step(600)));
    dir.fails(2, "100, 101, 102", "decode run.gcu -o x.safetensors --step 7");
    let report: Value = serde_json::from_slice(&dir.well("inspect run.gcu --json").stdout).unwrap();
    assert_eq!(report["metadata"], serde_json::json!({"a": "b", "c": ""}));
    assert_eq!(report["manifests"].as_array().unwrap().len(), 1, "one manifest for all");
    assert_eq!(report["updates"][2]["step"], 102);
    assert_eq!(report["updates"][0]["sender"], 3);

    // An input without metadata comes after the last update.
    dir.well(&format!("encode {} -o w.gcu --codec raw", worker(0)));
    dir.well("decode w.gcu -o w.npz");
    dir.well("encode w.npz -o run.gcu --codec raw --append");
    dir.well("verify run.gcu");
    dir.well(&format!("diff {} run.gcu", worker(0)));
    dir.well(&format!("diff {} run.gcu --step 103", worker(0)));
    dir.well(&format!("diff {} run.gcu --step 101", step(200)));

    // Steps go on by senders; a new one begins behind the stream. A step that is there is not there twice.
    let places = |line: &str, wanted: [u64; 2]| {
        dir.well(&format!("encode w.npz -o run.gcu --codec raw --append {line}"));
        let report: Value = serde_json::from_slice(&dir.well("inspect run.gcu --json").stdout).unwrap();
        let update = report["updates"].as_array().unwrap().last().unwrap();
        assert_eq!([&update["step"], &update["sender"]], wanted, "{line}");
    };
    places("--sender 3 --step 50", [50, 3]);
    places("--sender 3", [51, 3]);
    places("--sender 4", [104, 4]);
    places("--sender 3 --step 99", [99, 3]);
    // 100 to 102 are there.
    places("--sender 3", [103, 3]);
    dir.fails(
        2,
        "step 101 of sender 3 was already there: give another --step or --sender",
        "encode w.npz -o run.gcu --codec raw --append --step 101 --sender 3",
    );

    for name in ["rank0.npz", "rank1.npz"] {
        std::fs::copy(dir.path("w.npz"), dir.path(name)).unwrap();
    }
    for (steps, line) in [([0, 0], ""), ([5, 5], "--step 5")] {
        dir.well(&format!("encode rank0.npz rank1.npz -o ranks.gcu --codec raw {line}"));
        let report: Value = serde_json::from_slice(&dir.well("inspect ranks.gcu --json").stdout).unwrap();
        let updates = report["updates"].as_array().unwrap();
        assert_eq!(updates.iter().map(|u| u["step"].as_u64().unwrap()).collect::<Vec<_>>(), steps);
    }

    // A failure while appending leaves the file unchanged.
    let before = std::fs::read(dir.path("run.gcu")).unwrap();
    dir.fails(
        74,
        "nothing-here",
        &format!("encode {} nothing-here.npy -o run.gcu --codec raw --append", worker(1)),
    );
    assert_eq!(std::fs::read(dir.path("run.gcu")).unwrap(), before);
}

#[test]
fn random_roundings_differ_from_step_to_step() {
    let dir = Dir::new();
    dir.well(&format!("encode {0} {0} -o x.gcu --codec natural --step 0", worker(0)));
    dir.well("decode x.gcu -o 0.safetensors --step 0");
    dir.well("decode x.gcu -o 1.safetensors --step 1");
    assert_eq!(dir.run("diff 0.safetensors 1.safetensors").code, 1);
}

#[test]
fn the_last_rule_that_matches_counts() {
    let dir = Dir::new();
    let rules = "--rule *.weight=raw --rule fc.*=sbc:density=0.01 --rule nothing*=raw";
    let line = format!("encode {} -o x.gcu --codec lossless {rules}", step(15));
    dir.fails(2, "nothing*=raw matches no tensor", &line);
    assert!(dir.files().is_empty());
    let run = dir.well(&format!("{line} --allow-unused-rules"));
    assert!(run.err.contains("warning: the rule nothing*=raw matches no tensor"), "{}", run.err);
    let typed = format!("encode {} -o x.gcu --codec raw --rule fc.wieght=raw", step(15));
    dir.fails(2, "did you mean \"fc.weight\"", &typed);
    let report: Value = serde_json::from_slice(&dir.well("inspect x.gcu --json").stdout).unwrap();
    for tensor in report["updates"][0]["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let expected = match name {
            _ if name.starts_with("fc.") => "constant",
            _ if name.ends_with(".weight") => "raw",
            _ => "planes",
        };
        assert_eq!(tensor["values"], expected, "{name}");
    }
    dir.fails(2, "unknown codec", &format!("encode {} -o y.gcu --codec raw --rule a=zip", step(15)));
    dir.fails(2, "did you mean \"topk\"", &format!("encode {} -o y.gcu --codec topkk", step(15)));
    dir.fails(2, "did you mean \"density\"", &format!("encode {} -o y.gcu --codec topk:densty=1", step(15)));
}

#[test]
fn integers_and_odd_values_are_looked_after() {
    let dir = Dir::new();
    let floats = f32s(&[1.0, f32::NAN, -2.0, f32::INFINITY]);
    write_tensors(
        &dir.path("x.safetensors"),
        &[
            ("counter", "I64", &[], &7i64.to_le_bytes()),
            ("flags", "BOOL", &[3], &[1, 0, 1]),
            ("none", "F32", &[0, 5], &[]),
            ("w", "F32", &[4], &floats),
        ],
    );
    dir.fails(2, "\"w\"", "encode x.safetensors -o x.gcu --codec topk:k=1");
    assert_eq!(dir.files(), ["x.safetensors"], "nothing is left behind");
    let run = dir.well("encode x.safetensors -o x.gcu --codec topk:k=1 --rule w=lossless");
    assert!(run.err.contains("\"counter\" (i64) and 1 more"), "{}", run.err);
    dir.well("diff x.safetensors x.gcu");
    let text = dir.well("inspect x.gcu --coding").out();
    assert!(text.contains("  1 NaN, 1 Inf") && !text.contains("ok, 1 NaN"), "{text}");
    dir.well("encode x.safetensors -o x.gcu --codec topk:k=1 --zero-non-finite");
    dir.well("decode x.gcu -o y.safetensors --tensor w");
    let decoded = std::fs::read(dir.path("y.safetensors")).unwrap();
    assert!(decoded.ends_with(&f32s(&[0.0, 0.0, -2.0, 0.0])));
    dir.fails(2, "--tensor", "decode x.gcu -o y.safetensors --tensor nothing");
    // Output formats by extension, and an unknown extension.
    dir.well("decode x.gcu -o y.npz");
    dir.well("diff y.npz x.gcu");
    dir.well("decode x.gcu -o y.npy --tensor counter");
    dir.well("decode x.gcu -o counter.safetensors --tensor counter");
    dir.well("diff y.npy counter.safetensors");
    dir.fails(2, "one tensor", "decode x.gcu -o z.npy");
    dir.fails(2, "format", "decode x.gcu -o z.bin");
}

#[test]
fn deltas_need_the_right_base() {
    let dir = Dir::new();
    let (a, b, c) = (step(15), step(200), step(600));
    dir.well(&format!("encode {b} -o x.gcu --codec delta --base {a}"));
    dir.well(&format!("decode x.gcu -o x.safetensors --base {a}"));
    dir.well(&format!("diff {b} x.safetensors"));
    dir.well(&format!("diff {b} x.gcu --base {a}"));
    dir.fails(2, "--base", "decode x.gcu -o y.safetensors");
    dir.fails(2, "not the one", &format!("decode x.gcu -o y.safetensors --base {c}"));
    dir.fails(2, "\"", &format!("encode {b} -o y.gcu --codec delta --base {}", worker(0)));
    dir.fails(2, "needs --base", &format!("encode {b} -o y.gcu --codec delta"));
    dir.fails(2, "for the codec delta", &format!("encode {b} -o y.gcu --codec raw --base {a}"));
    dir.fails(2, "both", &format!("encode {b} -o y.gcu --codec delta --base {a} --rule fc.*=sbc"));

    // A chain of deltas applies from the given base, or from the first full update.
    dir.well(&format!("encode {a} {b} {c} -o run.gcu --codec delta --step 0"));
    for (number, original) in [(0, &a), (1, &b), (2, &c)] {
        dir.well(&format!("diff {original} run.gcu --step {number}"));
    }
    dir.well(&format!("encode {b} {c} -o run.gcu --codec delta --base {a}"));
    dir.well(&format!("diff {c} run.gcu --base {a}"));
    dir.well(&format!("diff {c} run.gcu --base {b}"));
    assert_eq!(dir.files(), ["run.gcu", "x.gcu", "x.safetensors"]);
}

#[test]
fn error_feedback_is_kept_from_run_to_run() {
    let dir = Dir::new();
    let encode = |input: &str, out: &str, feedback: &str| {
        dir.well(&format!("encode {input} -o {out} --codec topk:density=0.05 --feedback {feedback}"));
    };
    let (a, b) = (worker(0), worker(1));
    encode(&a, "a.gcu", "apart.safetensors");
    encode(&b, "b.gcu", "apart.safetensors");
    encode(&format!("{a} {b} --sender 0"), "both.gcu", "once.safetensors");
    dir.well("diff apart.safetensors once.safetensors");
    dir.well("diff b.gcu both.gcu");
    // The residual plus the update is the gradient.
    encode(&a, "a.gcu", "left.safetensors");
    let text = dir.run("diff left.safetensors a.gcu --json").out();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["total"]["cosine"], 0.0);
    // A command that fails leaves both files.
    let read = || ["left.safetensors", "a.gcu"].map(|name| std::fs::read(dir.path(name)).unwrap());
    let before = read();
    let line = format!("encode {b} missing.npz -o a.gcu --codec natural --feedback left.safetensors");
    dir.fails(74, "missing.npz", &line);
    assert!(read() == before);
}

#[test]
fn damage_is_found_and_what_is_whole_is_saved() {
    let dir = Dir::new();
    dir.well(&format!("encode {} -o x.gcu --codec lossless --step 0 --no-metadata", steps()));
    let whole = std::fs::read(dir.path("x.gcu")).unwrap();
    let report: Value = serde_json::from_slice(&dir.well("inspect x.gcu --json").stdout).unwrap();
    let offset = |frame: usize| report["frames"][frame]["offset"].as_u64().unwrap() as usize;

    dir.well("recover x.gcu -o saved.gcu");
    dir.well("diff x.gcu saved.gcu");

    // Truncated in the last update.
    std::fs::write(dir.path("cut.gcu"), &whole[..offset(3) + 100]).unwrap();
    for line in [
        "verify cut.gcu",
        "decode cut.gcu -o y.safetensors --step 0",
        "inspect cut.gcu",
        "diff cut.gcu x.gcu",
    ] {
        let run = dir.fails(3, "at byte 0x", line);
        assert!(run.err.contains("gcodec recover"), "{}", run.err);
    }
    assert_eq!(dir.run("recover cut.gcu -o saved.gcu").code, 1);
    dir.well("verify saved.gcu");
    dir.well(&format!("diff {} saved.gcu", step(200)));

    // Corrupt in the middle of the second update.
    let mut wrong = whole.clone();
    wrong[offset(2) + 1000] ^= 1;
    std::fs::write(dir.path("wrong.gcu"), &wrong).unwrap();
    dir.fails(3, "frame 2", "verify wrong.gcu");
    dir.fails(3, "checksum", "decode wrong.gcu -o y.safetensors --step 1");
    dir.well("decode wrong.gcu -o y.safetensors --step 2");
    std::fs::remove_file(dir.path("y.safetensors")).unwrap();
    let run = dir.run("recover wrong.gcu -o saved.gcu");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("kept 2 updates") && run.err.contains("lost"), "{}", run.err);
    dir.well(&format!("diff {} saved.gcu", step(600)));

    // With several streams, each message has its path.
    let run = dir.fails(3, "cut.gcu", "verify x.gcu cut.gcu wrong.gcu");
    assert!(run.err.contains("wrong.gcu") && run.out().contains("x.gcu: ok"), "{}", run.err);

    // An input that is no stream.
    std::fs::write(dir.path("noise.gcu"), "noise").unwrap();
    dir.fails(3, "not a gcodec stream", "verify noise.gcu");
    dir.fails(3, "no intact frames", "recover noise.gcu -o noise2.gcu");
    dir.fails(3, "", &format!("encode {} -o noise.gcu --codec raw --append", step(15)));
    assert_eq!(std::fs::read(dir.path("noise.gcu")).unwrap(), b"noise");
    assert_eq!(dir.files(), ["cut.gcu", "noise.gcu", "saved.gcu", "wrong.gcu", "x.gcu"]);
}

#[test]
fn every_update_is_decoded_into_its_file() {
    let dir = Dir::new();
    dir.well(&format!("encode {} -o run.gcu --codec lossless --step 7 --sender 0", worker(0)));
    dir.well(&format!("encode {} -o run.gcu --codec lossless --step 7 --sender 1 --append", worker(1)));
    dir.fails(2, "2 updates for one file", "decode run.gcu --all -o one.safetensors");
    dir.fails(2, "two updates for one file", "decode run.gcu --all -o out-{step}.npz");
    dir.well("decode run.gcu --all -o out-{step}-{sender}.safetensors");
    for number in [0, 1] {
        dir.well(&format!("diff {} out-7-{number}.safetensors", worker(number)));
    }
    dir.well("decode run.gcu --sender 0 -o first.safetensors");
    dir.well(&format!("diff {} first.safetensors", worker(0)));
    dir.fails(2, "no update has this step and sender", "decode run.gcu --sender 2 -o x.npz");
    dir.fails(2, "did you mean \"fc.bias\"", "decode run.gcu --sender 0 --tensor fc.biass -o x.npz");
    assert_eq!(dir.files(), ["first.safetensors", "out-7-0.safetensors", "out-7-1.safetensors", "run.gcu"]);
}

#[test]
fn every_cut_is_refused() {
    let dir = Dir::new();
    let input = f32s(&[1.0, 0.0, -3.0, 0.5]);
    write_tensors(&dir.path("x.safetensors"), &[("w", "F32", &[2, 2], &input)]);
    dir.well("encode x.safetensors -o x.gcu --codec topk:k=2");
    let whole = std::fs::read(dir.path("x.gcu")).unwrap();
    for len in (0..whole.len()).step_by(7) {
        std::fs::write(dir.path("cut.gcu"), &whole[..len]).unwrap();
        dir.fails(3, "at byte", "decode cut.gcu -o y.safetensors");
    }
    assert!(!dir.path("y.safetensors").exists());
}

/// The vectors whose limits the command has options for. `verify` charges blocks as every reader does.
#[test]
fn verify_keeps_the_limits_of_the_vectors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/vectors/index.json");
    let index: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let dir = Dir::new();
    let (mut kept, mut exceeded) = (0, 0);
    for vector in index["vectors"].as_array().unwrap() {
        let id = vector["id"].as_str().unwrap();
        let limits = vector["limits"].as_object().cloned().unwrap_or_default();
        let option = |(name, value): (&String, &Value)| match name.as_str() {
            "max_elements" => Some(format!("--max-elements {value}")),
            "max_alloc_bytes" => Some(format!("--max-alloc {value}")),
            _ => None,
        };
        let options: Option<Vec<String>> = limits.iter().map(option).collect();
        let (Some(options), true) = (options, id.starts_with("limits/")) else { continue };
        let hex = vector["hex"].as_str().unwrap();
        let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let run = dir.run_with(&format!("verify - {}", options.join(" ")), &bytes);
        let code = match vector["error"]["kind"].as_str() {
            None => 0,
            Some("limit") => 4,
            Some(_) => 3,
        };
        assert_eq!(run.code, code, "{id}: {}", run.err);
        kept += u32::from(code == 0);
        exceeded += u32::from(code == 4);
    }
    assert!(kept > 5 && exceeded > 15, "{kept} kept, {exceeded} exceeded");
}

#[test]
fn limits_and_missing_files_have_their_codes() {
    let dir = Dir::new();
    dir.well(&format!("encode {} -o x.gcu --codec natural", worker(0)));
    for line in ["verify x.gcu", "inspect x.gcu", "decode x.gcu -o y.npz", "diff x.gcu x.gcu"] {
        dir.fails(4, "--max-elements", &format!("{line} --max-elements 1000"));
        dir.fails(4, "--max-alloc", &format!("{line} --max-alloc 100"));
    }
    for line in
        ["verify no.gcu", "decode no.gcu -o y.npz", "encode no.npy -o y.gcu --codec raw", "bench no.npz"]
    {
        dir.fails(74, "no.", line);
    }
    dir.fails(74, "nowhere", &format!("encode {} -o nowhere/x.gcu --codec raw", worker(0)));
    dir.fails(2, "Usage", "encode");
    dir.well("verify x.gcu --max-alloc 1GiB --max-elements 1M");
    dir.fails(2, "not a size", "verify x.gcu --max-alloc 1X");
    // A full disk is the output's fault.
    if std::path::Path::new("/dev/full").exists() {
        let run =
            dir.fails(74, "error: /dev/full: ", &format!("encode {} -o /dev/full --codec raw", worker(0)));
        assert!(!run.err.contains("safetensors"), "{}", run.err);
        dir.fails(74, "error: /dev/full: ", "recover x.gcu -o /dev/full");
    }
    dir.fails(2, "once", "diff - -");
    dir.fails(2, "no frame 77", "inspect x.gcu --frame 77");
    dir.fails(2, "no frame 77", "inspect x.gcu --frame 77 --annotate");
    assert_eq!(dir.files(), ["x.gcu"]);
}

#[test]
fn an_output_is_whole_or_as_it_was() {
    let dir = Dir::new();
    std::fs::write(dir.path("x.gcu"), "old").unwrap();
    dir.fails(74, "no.npy", &format!("encode {} no.npy -o x.gcu --codec raw", worker(0)));
    assert_eq!(std::fs::read(dir.path("x.gcu")).unwrap(), b"old");
    assert_eq!(dir.files(), ["x.gcu"]);
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_no_temporary_file() {
    for (signal, code) in [("-INT", Some(130)), ("-TERM", Some(130)), ("-KILL", None)] {
        let dir = Dir::new();
        // Waits for the second input, which never comes: the first is written by then.
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_gcodec"))
            .args(["encode", &worker(0), "-", "-o", "x.gcu", "--codec", "raw"])
            .current_dir(dir.path(""))
            .stdin(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // `wait` would close it, and the end of the input might come before the signal.
        let second = child.stdin.take();
        let pid = child.id().to_string();
        let is_named = || dir.files().iter().any(|name| name.ends_with(".tmp"));
        // On Linux, an open file without a name is `FOLDER/#NUMBER (deleted)`.
        let is_unnamed = || {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
            let mut files = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
            files.any(|file| file.starts_with(dir.path("")) && file.to_string_lossy().contains("/#"))
        };
        let start = std::time::Instant::now();
        while !is_named() && !is_unnamed() {
            assert!(start.elapsed().as_secs() < 20, "no temporary file");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        if signal == "-KILL" && is_named() {
            eprintln!("skipped: a killed program leaves its file where files need a name");
            child.kill().unwrap();
            child.wait().unwrap();
            continue;
        }
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        drop(second);
        assert!(dir.files().is_empty(), "{signal}: {:?}", dir.files());
    }
}

#[test]
fn nothing_is_written_over_what_is_read() {
    let dir = Dir::new();
    std::fs::copy(worker(0), dir.path("w.safetensors")).unwrap();
    let before = std::fs::read(dir.path("w.safetensors")).unwrap();
    dir.fails(2, "also an input", "encode w.safetensors -o w.safetensors --codec raw");
    dir.fails(2, "also an input", "encode w.safetensors -o ./w.safetensors --codec sbc");
    dir.fails(2, "also an input", "decode w.safetensors -o w.safetensors");
    assert_eq!(std::fs::read(dir.path("w.safetensors")).unwrap(), before);
    std::fs::write(dir.path("x.gcu"), "broken").unwrap();
    dir.fails(2, "also an input", "recover x.gcu -o x.gcu");
    assert_eq!(dir.files(), ["w.safetensors", "x.gcu"]);
}

#[test]
fn codecs_are_measured() {
    let dir = Dir::new();
    let report: Value = serde_json::from_slice(
        &dir.well(&format!(
            "bench {} --codec raw --codec natural --runs 1 --json",
            demo("digits_convnet_step0030_worker0.safetensors")
        ))
        .stdout,
    )
    .unwrap();
    let codecs = report["inputs"][0]["codecs"].as_array().unwrap();
    assert_eq!(codecs[0]["relative_l2"], 0.0);
    assert!(codecs[1]["relative_l2"].as_f64().unwrap() < 0.4);
    assert!(codecs[1]["bits_per_parameter"].as_f64().unwrap() < 5.0);
    assert!(report["read_gb_per_s"].as_f64().unwrap() > 0.0);
    dir.fails(2, "delta", &format!("bench {} --codec delta", worker(0)));
}

#[test]
fn the_demo_runs_and_cleans_up() {
    let dir = Dir::new();
    let text = dir.well("demo").out();
    for part in ["sbc:density=0.001", "1805.08768", "$ gcodec verify", "equal: 10 tensors"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(dir.files().is_empty());
    dir.well("demo --keep kept");
    dir.well("verify kept/resnet.gcu kept/digits.gcu");
}

#[test]
fn help_has_examples() {
    let dir = Dir::new();
    for command in ["encode", "decode", "inspect", "verify", "recover", "diff", "bench", "demo"] {
        let help = dir.well(&format!("{command} --help")).out();
        assert!(help.contains("Examples:") || help.contains("Example:"), "{command}");
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{command}");
    }
}

#[test]
fn metadata_goes_through_and_places_updates() {
    let dir = Dir::new();
    let (a, b) = (worker(0), worker(1));
    dir.well(&format!("encode {a} {b} -o run.gcu --codec lossless"));
    let report: Value = serde_json::from_slice(&dir.well("inspect run.gcu --json").stdout).unwrap();
    let places: Vec<_> =
        report["updates"].as_array().unwrap().iter().map(|u| [&u["step"], &u["sender"]]).collect();
    assert_eq!(places, [[30, 0], [30, 1]]);
    dir.well("decode run.gcu --all -o out-{step}-{sender}.safetensors");
    for (input, output) in [(&a, "out-30-0.safetensors"), (&b, "out-30-1.safetensors")] {
        let metadata = |path: &std::path::Path| {
            let bytes = std::fs::read(path).unwrap();
            let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
            header.metadata().clone().unwrap()
        };
        assert_eq!(metadata(std::path::Path::new(input)), metadata(&dir.path(output)));
        dir.well(&format!("diff {input} {output}"));
    }
    // What the command line says comes first; an update that is already there is not hidden by another.
    dir.well(&format!("encode {a} -o one.gcu --codec raw --step 7 --sender 2 --world 4 --no-metadata"));
    let report: Value = serde_json::from_slice(&dir.well("inspect one.gcu --json").stdout).unwrap();
    let update = &report["updates"][0];
    assert_eq!([&update["step"], &update["sender"], &update["world"]], [7, 2, 4]);
    assert!(report["metadata"].as_object().unwrap().is_empty());
    let twice = dir.well(&format!("encode {a} {a} -o twice.gcu --codec raw"));
    assert!(twice.err.contains("step 30 of sender 0 was already there: it becomes step 31"), "{}", twice.err);
    dir.fails(2, "did you mean \"step\"", &format!("encode {a} -o x.gcu --codec raw --meta-step stepp"));
    let failed = dir.fails(2, "no step under", &format!("encode {a} -o x.gcu --codec raw --meta-step loss"));
    assert!(failed.err.contains("worker0.safetensors"), "{}", failed.err);
}

#[test]
fn a_base_of_another_model_is_called_that() {
    let dir = Dir::new();
    for (name, value) in [("old", 1.0), ("new", 2.0)] {
        write_tensors(&dir.path(&format!("{name}.safetensors")), &[("w", "F32", &[2], &f32s(&[value, 3.0]))]);
    }
    dir.well("encode new.safetensors --base old.safetensors -o x.gcu --codec delta");
    dir.well("decode x.gcu --base old.safetensors -o y.safetensors");
    dir.fails(2, "not the one", "decode x.gcu --base new.safetensors -o y.safetensors");
    write_tensors(&dir.path("shape.safetensors"), &[("w", "F32", &[1, 2], &f32s(&[1.0, 3.0]))]);
    let text = "the base is of another model: it has another shape of tensor \"w\" ([2], there [1, 2])";
    dir.fails(2, text, "decode x.gcu --base shape.safetensors -o y.safetensors");
    dir.fails(2, "it lacks tensor \"w\"", &format!("decode x.gcu --base {} -o y.safetensors", worker(0)));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_the_outputs_fault() {
    let dir = Dir::new();
    let input = worker(0);
    dir.well(&format!("encode {input} -o x.gcu --codec lossless"));
    std::os::unix::fs::symlink("/dev/full", dir.path("full.npz")).unwrap();
    for line in [
        format!("encode {input} -o full.npz --codec raw"),
        "decode x.gcu -o full.npz".into(),
        "recover x.gcu -o full.npz".into(),
        "reduce x.gcu -o full.npz".into(),
    ] {
        let failed = dir.fails(74, "error: full.npz: ", &line);
        assert!(!failed.err.contains("x.gcu") && failed.err.lines().count() == 1, "{line}: {}", failed.err);
    }
}

#[test]
fn help_explains_the_codecs() {
    let dir = Dir::new();
    let help = dir.well("encode --help").out();
    assert!(!help.contains("possible values: raw"));
    for name in gcodec::Codec::NAMES {
        assert!(help.lines().any(|line| line.trim_start().starts_with(name)), "no line for {name}: {help}");
    }
}
