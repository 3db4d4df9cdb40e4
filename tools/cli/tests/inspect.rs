//! `inspect` and `verify`: what they read, what they show, and what they find in spite of damage.

mod common;

use common::{CODECS, Dir, demo, f32s, step, steps, worker, workers, write_tensors};
use serde_json::Value;

/// Copies the demo's five dumps into the directory.
fn dumps(dir: &Dir) {
    let folder = dir.path("dumps");
    std::fs::create_dir(&folder).unwrap();
    for path in [worker(0), worker(1), step(15), step(200), step(600)] {
        let name = std::path::Path::new(&path).file_name().unwrap().to_owned();
        std::fs::copy(&path, folder.join(name)).unwrap();
    }
}

fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

/// Encodes three steps and returns the stream with the offsets of its frames.
fn three_steps(dir: &Dir) -> (Vec<u8>, Vec<(String, usize, usize)>) {
    dir.well(&format!(
        "encode {} -o run.gcu --codec lossless --rule *.conv2.weight=topk:density=0.5 --step 0 --no-metadata",
        steps()
    ));
    let report = json(&dir.well("inspect run.gcu --json").stdout);
    let number = |v: &Value| v.as_u64().unwrap() as usize;
    let frames = report["frames"].as_array().unwrap().iter();
    let frames = frames
        .map(|f| (f["kind"].as_str().unwrap().to_owned(), number(&f["offset"]), number(&f["bytes"])))
        .collect();
    (std::fs::read(dir.path("run.gcu")).unwrap(), frames)
}

#[test]
fn the_profile_is_found_in_blocks_and_chosen_by_encode() {
    let dir = Dir::new();
    let encode = |args: &str| dir.well(&format!("encode {} {args}", worker(0)));
    encode("-o full.gcu --codec natural");
    encode("-o core.gcu --codec natural --profile core");
    let profile = |file: &str| {
        let report = json(&dir.well(&format!("inspect {file} --json")).stdout);
        (report["profile"].clone(), report["beyond_core"].clone())
    };
    assert_eq!(profile("core.gcu"), ("core".into(), Value::Null));
    assert_eq!(profile("full.gcu"), ("full".into(), "referenced integers".into()));
    assert_eq!(profile(&worker(0)), (Value::Null, Value::Null), "a file of tensors has no profile");
    assert!(dir.well("inspect core.gcu").out().contains("\n  profile: core\n"));
    let both = dir.well("inspect core.gcu full.gcu").out();
    assert!(both.contains("\n  profile: full, with referenced integers\n"), "{both}");
    dir.well("verify core.gcu full.gcu");
    dir.well("verify core.gcu --profile core");
    let failed = dir.run("verify core.gcu full.gcu --profile core");
    assert_eq!(failed.code, 3);
    assert!(failed.err.contains("full.gcu: not of the core profile: referenced integers in frame 2"));
    let decoded = |file: &str| {
        dir.well(&format!("decode {file} -o {file}.safetensors"));
        std::fs::read(dir.path(&format!("{file}.safetensors"))).unwrap()
    };
    assert!(decoded("core.gcu") == decoded("full.gcu"), "the profile changes no element");

    // An update that cannot be written leaves the stream as it was.
    let before = std::fs::read(dir.path("core.gcu")).unwrap();
    for codec in ["demo", "powersgd"] {
        let line = format!("encode {} -o core.gcu --codec {codec} --profile core --append", worker(1));
        let refused = dir.run(&line);
        assert_eq!(refused.code, 2, "{}", refused.err);
        let why = "not in the core profile of the format";
        assert!(refused.err.contains(why) && refused.err.contains("--profile full"), "{}", refused.err);
        assert!(std::fs::read(dir.path("core.gcu")).unwrap() == before);
    }
    let delta = format!("encode {} -o d.gcu --codec delta --base {} --profile core", worker(0), worker(1));
    assert!(dir.run(&delta).err.contains("not in the core profile of the format: a delta"));
    assert!(!dir.path("d.gcu").exists());
    dir.well(&format!("encode {} -o core.gcu --codec lossless --profile core --append", worker(1)));
    dir.well("verify core.gcu --profile core");
}

#[test]
fn the_overview_is_a_screen() {
    let dir = Dir::new();
    dumps(&dir);
    dir.well(&format!("encode {} -o run.gcu --codec topk:density=0.1 --step 0 --sender 0", workers()));
    for columns in ["60", "80", "120", "200"] {
        for line in ["inspect run.gcu", "inspect dumps", &format!("inspect {}", worker(0))] {
            let run = dir.run_as(line, &[("COLUMNS", columns)]);
            assert_eq!(run.code, 0, "{}", run.err);
            let text = run.out();
            assert!(text.lines().count() <= 24, "{line}: {text}");
            let width: usize = columns.parse().unwrap();
            let widest = text.lines().map(|l| l.chars().count()).max().unwrap();
            assert!(widest <= width, "{line}: {widest} columns of {width}:\n{text}");
            assert!(!text.contains('\x1b'), "a pipe has no colour");
        }
    }
    let text = dir.well("inspect run.gcu").out();
    for part in ["2 updates", "steps 0 to 1", "sender 0", "no NaN", "whole", "codec: topk", "conv3.weight"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn large_inputs_open_at_once() {
    let dir = Dir::new();
    dir.well(&format!("encode {} -o run.gcu --codec topk:density=0.1 --step 0 --sender 0", workers()));
    // A file with a hole: 300 MB of zeros that no disk holds.
    write_tensors(&dir.path("large.safetensors"), &[("hole", "U8", &[300_000_000], &[])]);
    let text = String::from_utf8(std::fs::read(dir.path("large.safetensors")).unwrap()).unwrap();
    let header = &text[8..].replace("[0,0]", "[0,300000000]");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    std::fs::write(dir.path("large.safetensors"), &bytes).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(dir.path("large.safetensors")).unwrap();
    file.set_len(bytes.len() as u64 + 300_000_000).unwrap();
    let text = dir.well("inspect run.gcu large.safetensors").out();
    for part in ["3 updates", "elements not read", "hole", "300MB", "conv3.weight", "--stats reads all"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("no NaN") && !text.contains("whole"), "{text}");
    let listed = dir.well("inspect run.gcu large.safetensors --tensors --step 1").out();
    assert!(listed.contains("conv3.weight") && !listed.contains("hole"), "{listed}");
    // The bytes of the index are those of the blocks.
    let bytes = |line: &str| -> Vec<String> {
        let text = dir.well(line).out();
        text.lines()
            .find(|l| l.starts_with("conv3.weight"))
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    };
    let quick = bytes("inspect run.gcu large.safetensors --tensors --step 1");
    let read = bytes("inspect run.gcu --tensors --step 1");
    assert_eq!(quick[..4], read[..4]);
    assert!(dir.well("inspect run.gcu large.safetensors --step 1 --stats").out().contains("no NaN"));
}

#[test]
fn folders_give_steps_and_senders() {
    let dir = Dir::new();
    dumps(&dir);
    std::fs::write(dir.path("dumps/readme.md"), "not tensors").unwrap();
    let run = dir.well("inspect dumps --csv");
    assert!(run.err.contains("1 other file is left out"), "{}", run.err);
    let text = run.out();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(lines[0].starts_with("file,step,sender,label,bytes"), "{text}");
    assert!(lines[2].contains("digits_convnet_step0030_worker1.safetensors,30,1,"), "{text}");
    // Filters, and the sums of what they leave.
    let rows = json(&dir.well("inspect dumps --sender 1 --tensors --json --sort norm --top 2").stdout);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows[0]["norm"].as_f64().unwrap() >= rows[1]["norm"].as_f64().unwrap());
    assert_eq!(rows[0]["updates"], 1);
    let modules = json(&dir.well("inspect dumps --step 30 --group 1 --json").stdout);
    let names: Vec<&str> = modules.as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"conv3") && names.contains(&"fc") && names.len() == 6, "{names:?}");
    let csv = dir.well("inspect dumps --step 30 --tensors --csv").out();
    assert_eq!(csv.lines().count(), 1 + 2 * 10, "{csv}");
    dir.fails(2, "no update has this step and sender", "inspect dumps --step 31");
    dir.fails(2, "did you mean \"fc.weight\"", &format!("inspect {} --tensor fc.wieght", worker(0)));
}

#[test]
fn tables_go_to_parquet() {
    let dir = Dir::new();
    dumps(&dir);
    for (options, rows) in [("", 5), ("--tensors --step 30", 20), ("--group 1 --step 30", 6), ("--top 4", 4)]
    {
        let run = dir.well(&format!("inspect dumps --parquet out.parquet {options}"));
        assert!(
            run.err.contains(&format!("out.parquet: {rows} rows")) && run.out().is_empty(),
            "{}",
            run.err
        );
        let table = std::fs::read(dir.path("out.parquet")).unwrap();
        assert!(table.starts_with(b"PAR1") && table.ends_with(b"PAR1"), "{options}");
        let csv = dir.well(&format!("inspect dumps --csv {options}")).out();
        assert_eq!(csv.lines().count(), rows + 1, "{options}");
    }
    // Order and number of the rows of single updates.
    let csv = dir.well("inspect dumps --csv --tensors --step 30 --sort norm --top 3").out();
    let norm = |line: &str| line.split(',').nth(11).unwrap().parse::<f64>().unwrap();
    let norms: Vec<f64> = csv.lines().skip(1).map(norm).collect();
    assert!(norms.len() == 3 && norms.is_sorted_by(|a, b| a >= b), "{csv}");
    let piped = dir.well("inspect dumps --parquet - --group 1 -q");
    assert!(piped.stdout.starts_with(b"PAR1"));
    dir.fails(2, "--csv", "inspect dumps --parquet x.parquet --csv");
    let input = worker(0);
    std::fs::copy(&input, dir.path("x.safetensors")).unwrap();
    dir.fails(2, "x.safetensors", "inspect x.safetensors --parquet x.safetensors");
    assert_eq!(std::fs::read(dir.path("x.safetensors")).unwrap(), std::fs::read(input).unwrap());
}

#[test]
fn tensors_that_are_not_read_are_named() {
    let dir = Dir::new();
    std::fs::copy(demo("../fixtures/odd.pt"), dir.path("odd.pt")).unwrap();
    let text = dir.well("inspect odd.pt --tensors").out();
    for part in ["complex64", "qint8", "meta", "numpy", "sparse.values", "module.1.running_var"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // What has no bytes that could be kept is refused, by name.
    let run = dir.fails(2, "leaves it out", "encode odd.pt -o odd.gcu --codec lossless");
    assert!(run.err.contains("--without"), "{}", run.err);
    dir.well(
        "encode odd.pt -o odd.gcu --codec lossless --without meta --without numpy --without quantised --without complex",
    );
    dir.well("decode odd.gcu -o odd.safetensors");
    assert_eq!(dir.run("diff odd.pt odd.safetensors").code, 1);
}

#[test]
fn a_stream_and_its_tensors_have_the_same_statistics() {
    let dir = Dir::new();
    dir.well(&format!("encode {} -o x.gcu --codec topk:density=0.05,values=bf16", worker(0)));
    dir.well("decode x.gcu -o x.safetensors");
    let rows = |file: &str| json(&dir.well(&format!("inspect {file} --tensors --json --sort name")).stdout);
    let (sparse, dense) = (rows("x.gcu"), rows("x.safetensors"));
    for (a, b) in sparse.as_array().unwrap().iter().zip(dense.as_array().unwrap()) {
        for key in ["name", "dtype", "shape", "elements", "min", "max", "zeros", "nonzero", "nan"] {
            assert_eq!(a[key], b[key], "{key}");
        }
        let (x, y) = (a["norm"].as_f64().unwrap(), b["norm"].as_f64().unwrap());
        assert!((x - y).abs() <= 1e-12 * x, "{x} {y}");
    }
    // By its index, a finished stream gives the same as from its beginning to its end.
    let (all, one) = (rows("x.gcu"), rows("x.gcu --tensor fc.weight"));
    let fc = all.as_array().unwrap().iter().find(|t| t["name"] == "fc.weight").unwrap();
    assert_eq!(&one[0], fc);
    let detail = dir.well("inspect x.gcu --tensor fc.weight").out();
    for part in ["fc.weight f32 10x48", "magnitudes", "2^", "elements that are not zero", "│"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
}

#[test]
fn nan_is_named_with_its_place() {
    let dir = Dir::new();
    let mut values = vec![1.0; 12];
    values[7] = f32::NAN;
    write_tensors(
        &dir.path("bad_step3_worker1.safetensors"),
        &[("a", "F32", &[3, 4], &f32s(&values)), ("b", "F32", &[2], &f32s(&[f32::NAN; 2]))],
    );
    let file = "bad_step3_worker1.safetensors";
    let text = dir.well(&format!("inspect {file}")).out();
    for part in ["3 NaN", "first NaN or Inf: a[1, 3] in step 3, sender 1", "all NaN"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The place is never cut out for the sake of what to see.
    let name = "model.layers.11.block_sparse_moe.experts.weight";
    write_tensors(&dir.path("long.safetensors"), &[(name, "F32", &[3, 4], &f32s(&values))]);
    let text = dir.well("inspect long.safetensors").out();
    assert!(text.contains(&format!("first NaN or Inf: {name}[1, 3]\n  see --tensor '{name}'\n")), "{text}");
    dir.well(&format!("encode {file} -o x.gcu --codec lossless"));
    let coding = dir.well("inspect x.gcu --coding").out();
    let last = |name: &str| coding.lines().find(|l| l.starts_with(name)).unwrap().to_owned();
    assert!(last("a ").ends_with("  1 NaN") && last("b ").ends_with("  all NaN"), "{coding}");
    let report = json(&dir.well("inspect x.gcu --json").stdout);
    assert_eq!(report["updates"][0]["tensors"][0]["first_nan"], 7);
}

#[test]
fn a_worker_that_differs_is_flagged() {
    let dir = Dir::new();
    for sender in 0..4 {
        let scale = if sender == 3 { 2.7 } else { 1.0 + sender as f32 / 100.0 };
        let values: Vec<f32> = (0..64).map(|i| scale * ((i % 5) as f32 - 2.0)).collect();
        let path = dir.path(&format!("grad_step7_rank{sender}.safetensors"));
        write_tensors(&path, &[("w", "F32", &[8, 8], &f32s(&values))]);
    }
    let text = dir.well("inspect .").out();
    let flagged: Vec<&str> = text.lines().filter(|l| l.contains("x the median norm")).collect();
    assert!(
        flagged.len() == 1 && flagged[0].contains("rank3") && flagged[0].ends_with("2.7x the median norm"),
        "{text}"
    );
    assert!(text.contains("odd norm in step 7, sender 3; see --step 7 --sender 3 --tensors"), "{text}");
}

#[test]
fn tensors_that_a_delta_leaves_are_not_called_zero() {
    let dir = Dir::new();
    let tensors = |first: f32| {
        let values: Vec<f32> = (0..64).map(|i| if i == 0 { first } else { i as f32 }).collect();
        (f32s(&values), f32s(&[1.0; 16]))
    };
    for (name, first) in [("old", 1.0), ("new", 2.0)] {
        let (changing, same) = tensors(first);
        let path = dir.path(&format!("{name}.safetensors"));
        write_tensors(&path, &[("changing", "F32", &[64], &changing), ("same", "F32", &[16], &same)]);
    }
    for codec in ["delta", "delta:values=overwrite"] {
        dir.well(&format!("encode new.safetensors -o step.gcu --codec {codec} --base old.safetensors"));
        let text = dir.well("inspect step.gcu").out();
        assert!(text.contains(&format!("codec: {codec}\n")) && !text.contains("zero everywhere"), "{text}");
    }
    write_tensors(&dir.path("zero.safetensors"), &[("same", "F32", &[16], &f32s(&[0.0; 16]))]);
    let text = dir.well("inspect zero.safetensors").out();
    assert!(text.contains("same is zero everywhere"), "{text}");
}

#[test]
fn what_compression_lost_is_measured() {
    let dir = Dir::new();
    let input = worker(0);
    dir.well(&format!("encode {input} -o x.gcu --codec topk:density=0.1 --rule *.bias=lossless"));
    let losses = json(&dir.well(&format!("inspect x.gcu --against {input} --json")).stdout);
    let diff = json(&dir.run(&format!("diff {input} x.gcu --json")).stdout);
    assert_eq!(losses["all"]["relative_l2"], diff["total"]["relative_l2"]);
    let bias = losses["tensors"].as_array().unwrap().iter().find(|t| t["name"] == "fc.bias").unwrap();
    assert_eq!((&bias["relative_l2"], &bias["energy_kept"]), (&Value::from(0.0), &Value::from(1.0)));
    // With exact values, the energy kept and the squared error add up to all of it.
    let (error, kept) =
        (losses["all"]["relative_l2"].as_f64().unwrap(), losses["all"]["energy_kept"].as_f64().unwrap());
    assert!((error * error + kept - 1.0).abs() < 1e-9, "{error} {kept}");
    assert!(dir.well(&format!("inspect x.gcu --against {input}")).out().contains("all 10"));
    // Of several updates, the original's own step and sender are taken.
    let other = worker(1);
    dir.well(&format!("encode {other} -o run.gcu --codec topk:density=0.1 --step 30 --sender 1"));
    dir.well(&format!("encode {input} -o run.gcu --codec topk:density=0.1 --step 30 --sender 0 --append"));
    let one = json(&dir.well(&format!("inspect run.gcu --against {input} --tensor *.weight --json")).stdout);
    assert!(one["all"]["cosine"].as_f64().unwrap() > 0.7);
    dir.fails(2, "another shape than the original", &format!("inspect x.gcu --against {}", step(15)));
    write_tensors(&dir.path("other.npz.safetensors"), &[("fc.weigth", "F32", &[1], &f32s(&[1.0]))]);
    dir.fails(2, "no tensor of the original", "inspect x.gcu --against other.npz.safetensors");
}

#[test]
fn one_flipped_bit_hides_only_its_block() {
    let dir = Dir::new();
    let (whole, frames) = three_steps(&dir);
    let updates: Vec<_> = frames.iter().filter(|f| f.0 == "update").collect();
    let mut wrong = whole.clone();
    wrong[updates[1].1 + updates[1].2 - 40] ^= 4;
    std::fs::write(dir.path("wrong.gcu"), &wrong).unwrap();
    let verified = dir.fails(3, "wrong checksum of block", "verify wrong.gcu");
    assert!(verified.err.contains("frame 2, tensor "), "{}", verified.err);
    assert!(verified.out().contains("steps 0, 2 are whole; step 1 lost"), "{}", verified.out());
    let shown = dir.fails(3, "wrong checksum", "inspect wrong.gcu");
    assert!(
        shown.out().contains("DAMAGED: 1 fault") && shown.out().contains("step 1 lost"),
        "{}",
        shown.out()
    );
    let report = json(&dir.run("inspect wrong.gcu --json").stdout);
    assert_eq!(report["updates"].as_array().unwrap().len(), 2);
    let fault = &report["faults"][0];
    assert_eq!((&fault["frame"], &fault["step"], &fault["sender"]), (&2.into(), &1.into(), &0.into()));
    let last = fault["tensor"].as_str().unwrap();
    assert!(verified.err.contains(last) && fault["block"].as_u64().unwrap() > 0, "{fault}");
    // Two faults, and a pipe.
    wrong[updates[2].1 + 30] ^= 1;
    std::fs::write(dir.path("worse.gcu"), &wrong).unwrap();
    let verified = dir.run("verify worse.gcu");
    assert!(verified.out().contains("step 0 is whole; steps 1, 2 lost"), "{}", verified.out());
    let piped = dir.run_with("verify -", &wrong);
    assert_eq!((piped.code, piped.out().contains("steps 1, 2 lost")), (3, true), "{}", piped.out());
    // A filter for what is whole needs nothing else.
    dir.well("inspect wrong.gcu --step 2 --tensors");
    dir.fails(3, "checksum", "inspect wrong.gcu --step 1 --tensors");
}

#[test]
fn what_is_no_dump_is_named_and_pipes_are_not_read_to_their_end() {
    let dir = Dir::new();
    for (bytes, part) in [
        (&b"\x1f\x8b\x08\0"[..], "gunzip"),
        (b"\x80\x04\x95\0", "pickle of protocol 4"),
        (b"hello", "text"),
        (b"", "empty"),
    ] {
        std::fs::write(dir.path("x"), bytes).unwrap();
        dir.fails(3, part, "inspect x");
        dir.fails(3, part, "verify x");
    }
    let zeros = vec![0; 1 << 20];
    let run = dir.run_with("inspect -", &zeros);
    assert!(run.code == 3 && run.err.contains("zeros"), "{}", run.err);
    // A name says nothing about the kind.
    std::fs::copy(worker(0), dir.path("named.npz")).unwrap();
    assert!(dir.well("inspect named.npz").out().contains("safetensors"));
    std::fs::copy(demo("../fixtures/state.pt"), dir.path("pytorch_model.bin")).unwrap();
    let text = dir.well("inspect pytorch_model.bin --tensors").out();
    assert!(text.contains("model.weight") && text.contains("bf16"), "{text}");
    dir.well("encode pytorch_model.bin -o x.gcu --codec lossless");
    dir.well("diff pytorch_model.bin x.gcu");
}

#[test]
fn what_is_no_stream_is_not_described_as_one() {
    let dir = Dir::new();
    std::fs::write(dir.path("x.gcu"), [7; 5000]).unwrap();
    let shown = dir.fails(3, "not a gcodec stream", "inspect x.gcu");
    assert_eq!(shown.out(), "");
}

#[test]
fn inspection_follows_its_schema() {
    let dir = Dir::new();
    let schema = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/inspect.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    let inputs = workers();
    for codec in CODECS {
        dir.well(&format!("encode {inputs} -o x.gcu --codec {codec} --meta k=v"));
        let report: Value = serde_json::from_slice(&dir.well("inspect x.gcu --json").stdout).unwrap();
        check(&report, &schema, "report");
        let bytes = std::fs::metadata(dir.path("x.gcu")).unwrap().len();
        assert_eq!(report["bytes"], bytes);
        let frames = report["frames"].as_array().unwrap();
        assert_eq!(frames.iter().map(|f| f["bytes"].as_u64().unwrap()).sum::<u64>() + 16, bytes);
        for update in report["updates"].as_array().unwrap() {
            // Every bit of the update belongs to a tensor or to the headers.
            let tensors = update["tensors"].as_array().unwrap();
            let bits = |key: &str| tensors.iter().map(|t| t[key].as_f64().unwrap()).sum::<f64>();
            let all = bits("position_bits") + bits("value_bits") + bits("overhead_bits");
            let headers = update["header_bytes"].as_f64().unwrap() * 8.0;
            assert!((all + headers - update["bytes"].as_f64().unwrap() * 8.0).abs() < 1e-3, "{codec}");
            assert_eq!(tensors.iter().map(|t| t["kept"].as_u64().unwrap()).sum::<u64>(), update["kept"]);
        }
    }
    let one: Value =
        serde_json::from_slice(&dir.well("inspect x.gcu --json --frame 2 --tensor *.bias").stdout).unwrap();
    check(&one, &schema, "one frame");
    assert_eq!(one["frames"].as_array().unwrap().len(), 1);
    // A truncated stream is shown up to the error.
    let bytes = std::fs::read(dir.path("x.gcu")).unwrap();
    std::fs::write(dir.path("cut.gcu"), &bytes[..bytes.len() - 1]).unwrap();
    let cut: Value = serde_json::from_slice(&dir.run("inspect cut.gcu --json").stdout).unwrap();
    check(&cut, &schema, "cut off");
    assert_eq!(cut["ok"], false);
    let file: Value =
        serde_json::from_slice(&dir.well(&format!("inspect {} --json", worker(0))).stdout).unwrap();
    check(&file, &schema, "file of tensors");
}

/// Checks a value against the features of JSON Schema that the schema uses.
fn check(value: &Value, schema: &Value, at: &str) {
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|k| k.as_str().unwrap()).collect(),
        _ => panic!("{at}: the schema has no type"),
    };
    let fits = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        kind => panic!("{at}: unknown type {kind}"),
    };
    assert!(kinds.iter().any(fits), "{at}: {value} is no {kinds:?}");
    if let Some(choices) = schema["enum"].as_array() {
        assert!(choices.contains(value), "{at}: {value}");
    }
    if let Some(object) = value.as_object() {
        for key in schema["required"].as_array().into_iter().flatten() {
            assert!(object.contains_key(key.as_str().unwrap()), "{at}: {key} is missing");
        }
        for (key, value) in object {
            let inner = match (&schema["properties"][key], &schema["additionalProperties"]) {
                (Value::Null, Value::Object(_)) => &schema["additionalProperties"],
                (Value::Null, _) => panic!("{at}: {key} is not in the schema"),
                (inner, _) => inner,
            };
            check(value, inner, &format!("{at}.{key}"));
        }
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        check(item, &schema["items"], &format!("{at}[{i}]"));
    }
}

#[test]
fn annotations_show_every_byte() {
    let dir = Dir::new();
    write_tensors(&dir.path("x.safetensors"), &[("w", "F32", &[2, 2], &f32s(&[1.0, 0.0, -3.0, 0.5]))]);
    dir.well("encode x.safetensors -o x.gcu --codec topk:k=2");
    let bytes = std::fs::read(dir.path("x.gcu")).unwrap();
    let text = dir.well("inspect x.gcu --annotate").out();
    // All bytes of each field are shown here, except those of the label.
    let mut covered = 0;
    for line in text.lines().filter(|line| line.get(..8).is_some_and(|o| !o.trim().is_empty())) {
        let offset = usize::from_str_radix(line[..8].trim(), 16).unwrap();
        let hex: Vec<u8> = line[10..]
            .get(..23)
            .unwrap_or(&line[10..])
            .split_whitespace()
            .map_while(|h| u8::from_str_radix(h, 16).ok())
            .collect();
        assert_eq!(offset, covered, "{line}");
        assert_eq!(bytes[offset..offset + hex.len()], hex, "{line}");
        covered += hex.len();
    }
    assert_eq!(covered, bytes.len());
    for field in ["magic", "tensor_count", "support_id", "header_crc", "label", "\"w\"", "tail"] {
        assert!(text.contains(field), "{field}");
    }
    let frame = dir.well("inspect x.gcu --annotate --frame 1").out();
    assert!(text.contains(&frame) && frame.contains("block 0"), "{frame}");
}

#[test]
fn names_cannot_control_the_terminal() {
    let dir = Dir::new();
    let name = "evil\u{1b}[31m\u{202e}\n\u{200b}";
    write_tensors(&dir.path("x.safetensors"), &[(name, "F32", &[2], &f32s(&[f32::NAN, 3.0]))]);
    dir.well("encode x.safetensors -o x.gcu --codec lossless");
    for line in [
        "inspect x.safetensors",
        "inspect x.gcu --coding",
        "inspect x.gcu --tensors",
        "inspect x.gcu --tensor evil*",
        "inspect x.gcu --annotate",
        "inspect x.gcu --against x.safetensors",
        "diff x.safetensors x.gcu",
    ] {
        let run = dir.run(line);
        let all = run.out() + &run.err;
        assert!(!all.contains(['\u{1b}', '\u{202e}', '\u{200b}']), "{line}: {all:?}");
    }
    let failed = dir.run("encode x.safetensors -o y.gcu --codec int8");
    assert!(failed.code == 2 && !failed.err.contains(['\u{1b}', '\u{202e}']), "{:?}", failed.err);
}

#[test]
fn annotations_are_of_steps_and_tensors_and_json() {
    let dir = Dir::new();
    dir.well(&format!(
        "encode {} -o x.gcu --codec topk:density=0.1 --rule *.bias=lossless --step 4 --sender 0",
        workers()
    ));
    let all = dir.well("inspect x.gcu --annotate").out();
    let one = dir.well("inspect x.gcu --annotate --step 5 --tensor bn1.bias").out();
    let blocks = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("block ")).count();
    assert!(blocks(&all) > 10 && blocks(&one) == 1 && one.contains("block_count"), "{one}");
    assert!(one.lines().all(|line| all.contains(line)), "{one}");
    // The fields of JSON cover every byte of the stream, in order.
    let rows = json(&dir.well("inspect x.gcu --annotate --json").stdout);
    let mut covered = 0;
    for row in rows.as_array().unwrap() {
        assert_eq!(row["offset"], covered, "{row}");
        covered += row["bytes"].as_u64().unwrap();
    }
    assert_eq!(covered, std::fs::metadata(dir.path("x.gcu")).unwrap().len());
    let part = json(&dir.well("inspect x.gcu --annotate --json --step 5 --tensor bn1.bias").stdout);
    let part = part.as_array().unwrap();
    assert!(part.iter().all(|row| rows.as_array().unwrap().contains(row)), "{part:?}");
    assert!(part.iter().any(|row| row["path"][1] == "block 0" && row["name"] == "support_id"), "{part:?}");
    dir.fails(2, "no update has this step", "inspect x.gcu --annotate --step 9");
    dir.fails(2, "did you mean \"bn1.bias\"", "inspect x.gcu --annotate --tensor bn1.bais");
}

#[test]
fn a_stream_of_which_nothing_is_left_has_no_tables() {
    let dir = Dir::new();
    dir.well(&format!("encode {} -o x.gcu --codec raw --no-metadata", worker(0)));
    let mut bytes = std::fs::read(dir.path("x.gcu")).unwrap();
    bytes[20..].iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(dir.path("x.gcu"), bytes).unwrap();
    for line in ["inspect x.gcu", "inspect x.gcu --tensors"] {
        let run = dir.run(line);
        assert_eq!(run.code, 3, "{}", run.err);
        assert!(!run.out().contains("tensor  "), "{line}: {}", run.out());
    }
}

/// Returns the shortest of three times of a command, in seconds.
fn seconds(dir: &Dir, line: &str) -> f64 {
    let time = || {
        let start = std::time::Instant::now();
        dir.well(line);
        start.elapsed().as_secs_f64()
    };
    (0..3).map(|_| time()).fold(f64::MAX, f64::min)
}

#[test]
fn time_grows_with_tensors_and_steps_and_no_faster() {
    let dir = Dir::new();
    let bytes = f32s(&[1.0, 0.0, -2.0, 0.5]);
    for count in [3_000, 30_000] {
        let names: Vec<String> = (0..count).map(|i| format!("layers.{}.w{}", i / 100, i % 100)).collect();
        let tensors: Vec<_> =
            names.iter().map(|name| (name.as_str(), "F32", &[4u64][..], &bytes[..])).collect();
        write_tensors(&dir.path(&format!("{count}.safetensors")), &tensors);
        dir.well(&format!("encode {count}.safetensors -o {count}.gcu --codec topk:density=0.5 -q"));
    }
    write_tensors(&dir.path("s.safetensors"), &[("w", "F32", &[4], &bytes), ("b", "F32", &[4], &bytes)]);
    for count in [200, 2_000] {
        let inputs = " s.safetensors".repeat(count);
        dir.well(&format!("encode{inputs} -o steps{count}.gcu --codec lossless -q"));
    }
    // Ten times as many: ten times as long, and a hundred times if something were quadratic.
    for (small, large) in [
        ("3000.safetensors", "30000.safetensors"),
        ("3000.gcu", "30000.gcu"),
        ("steps200.gcu", "steps2000.gcu"),
    ] {
        for command in ["inspect FILE", "inspect FILE --json", "verify FILE"] {
            if command.starts_with("verify") && small.ends_with("safetensors") {
                continue;
            }
            let [a, b] = [small, large].map(|file| seconds(&dir, &command.replace("FILE", file)));
            assert!(b < 0.5 || b < 40.0 * a, "{command}: {small} {a} s, {large} {b} s");
        }
    }
}
