//! Folders and indices of shards as inputs of every command: what is there counts.

mod common;

use common::{Dir, f32s, worker, write_tensors};
use serde_json::{Value, json};

/// Writes a file of one tensor `name`.
fn write(dir: &Dir, file: &str, name: &str, values: &[f32]) {
    let path = dir.path(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    write_tensors(&path, &[(name, "F32", &[values.len() as u64], &f32s(values))]);
}

fn index(dir: &Dir, file: &str, map: Value) {
    std::fs::write(dir.path(file), json!({ "weight_map": map }).to_string()).unwrap();
}

/// Writes a checkpoint in two shards, with the files that trainers write beside it.
fn sharded(dir: &Dir, folder: &str, seed: f32) {
    write(dir, &format!("{folder}/model-00001-of-00002.safetensors"), "a", &[seed, 2.0]);
    write(dir, &format!("{folder}/model-00002-of-00002.safetensors"), "b", &[3.0]);
    let map = json!({"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"});
    index(dir, &format!("{folder}/model.safetensors.index.json"), map);
    std::fs::write(dir.path(&format!("{folder}/config.json")), "{}").unwrap();
}

#[test]
fn a_folder_stands_for_its_checkpoint() {
    let dir = Dir::new();
    sharded(&dir, "checkpoint-100", 1.0);
    sharded(&dir, "checkpoint-200", 7.0);
    write(&dir, "one/weights.safetensors", "a", &[1.0, 2.0]);
    let differs = dir.run("diff checkpoint-100 checkpoint-200");
    assert_eq!(differs.code, 1, "{}", differs.err);
    assert!(differs.out().contains("1 of 2 common tensors differ"), "{}", differs.out());
    dir.well("diff checkpoint-100 checkpoint-100/model.safetensors.index.json");
    dir.fails(1, "", "diff one checkpoint-100");
    dir.well("encode checkpoint-100 checkpoint-200 -o x.gcu --codec delta");
    dir.well("diff checkpoint-200 x.gcu --base checkpoint-100");
    let report: Value = serde_json::from_slice(&dir.well("inspect x.gcu --json").stdout).unwrap();
    assert_eq!((&report["updates"][1]["step"], &report["updates"][1]["delta"]), (&200.into(), &true.into()));
    dir.well("decode x.gcu -o y.safetensors --step 200 --base checkpoint-100");
    let audit = dir.well("audit checkpoint-100 checkpoint-200").out();
    assert!(audit.contains("1 step, 3 elements; 33.3% of them changed"), "{audit}");
    assert!(dir.well("inspect checkpoint-100").out().contains("sharded safetensors"));
}

#[test]
fn shards_without_an_index_are_a_set() {
    let dir = Dir::new();
    for (name, values) in [("a", 1.0), ("b", 2.0), ("c", 3.0)]
        .iter()
        .zip(1..)
        .map(|(pair, i)| (format!("set/model-0000{i}-of-00003.safetensors"), (pair.0, pair.1)))
    {
        write(&dir, &name, values.0, &[values.1]);
    }
    std::fs::write(dir.path("set/optimizer.bin"), "no tensors").unwrap();
    let text = dir.well("inspect set --tensors").out();
    assert!(["a ", "b ", "c "].iter().all(|name| text.contains(name)), "{text}");
    let report: Value = serde_json::from_slice(&dir.well("inspect set --json").stdout).unwrap();
    assert_eq!(report["file"].as_str().unwrap().replace('\\', "/"), "set/model-*-of-00003.safetensors");
    dir.well("encode set -o x.gcu --codec raw");
    dir.well("diff set x.gcu");
    std::fs::remove_file(dir.path("set/model-00002-of-00003.safetensors")).unwrap();
    let run = dir.fails(3, "model-00002-of-00003.safetensors: the file is missing", "inspect set --tensors");
    assert!(run.out().contains("a ") && run.out().contains("c "), "{}", run.out());
    dir.fails(3, "model-00002-of-00003.safetensors: the file is missing", "encode set -o y.gcu --codec raw");
}

#[test]
fn streams_stand_for_the_shards_that_they_are_of() {
    let dir = Dir::new();
    sharded(&dir, "plain", 1.0);
    sharded(&dir, "m", 1.0);
    let nan = &[f32::NAN];
    write(&dir, "m/model-00002-of-00002.safetensors", "b", nan);
    dir.well("compress m --remove");
    let report: Value = serde_json::from_slice(&dir.well("inspect m --json").stdout).unwrap();
    let update = &report["updates"][0];
    assert_eq!((&report["kind"], &update["nan"]), (&"sharded safetensors".into(), &1.into()));
    assert!(!report["metadata"].to_string().contains("gcodec-source"), "{}", report["metadata"]);
    assert!(dir.fails(1, "", "diff m plain").out().contains("1 of 2 common tensors differ"));
    dir.well("encode m -o x.gcu --codec lossless");
    dir.well("diff m x.gcu");
    // Without an index, by their names; beside the files that they are of, they do not count.
    std::fs::remove_file(dir.path("m/model.safetensors.index.json")).unwrap();
    let set = dir.well("inspect m").out();
    assert!(set.contains("m/model-*-of-00002.safetensors.gcu: sharded safetensors"), "{set}");
    dir.well("compress plain");
    dir.well("encode plain -o y.gcu --codec lossless");
    // One of two is damaged: the other one is shown.
    let path = dir.path("m/model-00001-of-00002.safetensors.gcu");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let run = dir.fails(3, "model-00001-of-00002.safetensors.gcu", "inspect m --tensors");
    assert!(run.out().contains("all NaN"), "{}", run.out());
    // Streams of other names, and of several updates, are no shards.
    write(&dir, "runs/a.safetensors", "a", &[1.0]);
    dir.well("encode runs/a.safetensors runs/a.safetensors -o runs/run-1-of-2.gcu --codec raw");
    assert!(dir.well("inspect runs").out().contains("3 updates"));
    dir.well("encode runs/a.safetensors -o runs/m-1-of-2.bin.gcu --codec raw");
    dir.well("encode runs/a.safetensors runs/a.safetensors -o runs/m-2-of-2.bin.gcu --codec raw");
    dir.fails(3, "m-2-of-2.bin.gcu: a stream of 2 updates, and not of one file", "inspect runs");
}

#[test]
fn a_folder_that_stands_for_nothing_says_what_to_give() {
    let dir = Dir::new();
    write(&dir, "run/step-9.safetensors", "a", &[1.0]);
    write(&dir, "run/step-10.safetensors", "a", &[1.0]);
    write(&dir, "runs/checkpoint-9/model.safetensors", "a", &[1.0]);
    write(&dir, "runs/checkpoint-10/model.safetensors", "a", &[1.0]);
    std::fs::create_dir(dir.path("none")).unwrap();
    let files = "run: a folder where one file is needed; give one of its files: step-9.safetensors, step-10";
    for line in [
        "diff run run/step-9.safetensors",
        "encode run -o x.gcu --codec raw",
        "verify run",
        "recover run -o x.gcu",
    ] {
        let run = dir.fails(2, files, line);
        assert!(!run.err.contains("os error"), "{}", run.err);
    }
    let folders = "give one of its folders: checkpoint-9, checkpoint-10";
    for line in ["inspect runs", "audit runs", "diff runs runs", "reduce runs -o x.gcu"] {
        dir.fails(2, folders, line);
    }
    dir.fails(2, "none: the folder has no file of tensors and no stream", "diff none none");
}

#[test]
fn what_an_index_lacks_is_a_row_and_the_rest_is_shown() {
    let dir = Dir::new();
    write(&dir, "m/1.safetensors", "a", &[1.0, 2.0]);
    write(&dir, "m/2.safetensors", "b", &[1.0]);
    std::fs::write(dir.path("m/pointer.safetensors"), "version https://git-lfs.github.com/spec/v1\noid")
        .unwrap();
    let bytes = std::fs::read(dir.path("m/1.safetensors")).unwrap();
    std::fs::write(dir.path("m/cut.safetensors"), &bytes[..bytes.len() - 3]).unwrap();
    std::fs::write(dir.path("m/empty.safetensors"), "").unwrap();
    let file = "m/model.safetensors.index.json";
    let cases = [
        ("z", "1.safetensors", "tensor \"z\": the index places it in 1.safetensors, which does not have it"),
        ("z", "3.safetensors", "3.safetensors: the file is missing; the index places 1 tensor there: \"z\""),
        ("z", "pointer.safetensors", "pointer.safetensors: a Git LFS pointer"),
        ("z", "cut.safetensors", "cut.safetensors: "),
        ("z", "empty.safetensors", "empty.safetensors: an empty file"),
    ];
    for (name, shard, message) in cases {
        index(&dir, file, json!({"a": "1.safetensors", "b": "2.safetensors", name: shard}));
        for line in ["inspect m", "inspect m --tensors", "inspect m/model.safetensors.index.json --json"] {
            let run = dir.fails(3, message, line);
            let row = if message.starts_with("tensor") { name } else { shard };
            assert!(run.out().contains("100%") || line.ends_with("json"), "{line}: {}", run.out());
            assert!(run.out().contains(row), "{line}: {}", run.out());
        }
        dir.fails(3, message, &format!("encode {file} -o x.gcu --codec raw"));
        // What is there is compared, and what is not there is not called equal.
        let run = dir.fails(3, message, &format!("diff {file} {file}"));
        assert!(run.out().contains("2 tensors, 3 elements"), "{}", run.out());
        let run = dir.fails(3, message, &format!("audit {file} {file}"));
        assert!(run.out().contains("1 step, 3 elements"), "{}", run.out());
    }
    assert_eq!(dir.files(), ["m"], "no output");
    // Tensors that the index does not list, or places in another file that lacks them, are shown.
    index(&dir, file, json!({"b": "1.safetensors", "c": "2.safetensors"}));
    let run = dir.fails(3, "\"c\": the index places it in 2.safetensors", "inspect m");
    assert!(
        run.err.contains("1.safetensors has 1 tensor that the index does not list: \"a\""),
        "{}",
        run.err
    );
    assert!(
        run.err.contains("2.safetensors has 1 tensor that the index places in other files"),
        "{}",
        run.err
    );
    index(&dir, file, json!({"b": "2.safetensors", "x": "../1.safetensors"}));
    dir.fails(3, "no file name", "inspect m");
    std::fs::write(dir.path(file), "{\"weight_map\": 3}").unwrap();
    dir.fails(3, "an index of shards that cannot be read", "inspect m");
}

#[test]
fn a_tensor_in_two_shards_is_that_of_the_index() {
    let dir = Dir::new();
    write(&dir, "m/1.safetensors", "a", &[1.0]);
    write(&dir, "m/2.safetensors", "a", &[2.0]);
    write(&dir, "two.safetensors", "a", &[2.0]);
    index(&dir, "m/i.index.json", json!({"a": "2.safetensors", "z": "1.safetensors"}));
    dir.fails(3, "tensor \"z\"", "diff m two.safetensors");
    write(&dir, "set/m-1-of-2.safetensors", "a", &[1.0]);
    write(&dir, "set/m-2-of-2.safetensors", "a", &[1.0]);
    dir.fails(3, "tensor \"a\" is in m-1-of-2.safetensors and in m-2-of-2.safetensors", "inspect set");
}

#[test]
fn shards_may_be_of_any_format() {
    let dir = Dir::new();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/state.pt");
    std::fs::create_dir(dir.path("m")).unwrap();
    std::fs::copy(fixture, dir.path("m/pytorch_model-1.bin")).unwrap();
    write(&dir, "m/2.safetensors", "extra", &[1.0]);
    dir.well(&format!("encode {fixture} -o state.gcu --codec raw"));
    let report: Value = serde_json::from_slice(&dir.well("inspect state.gcu --json").stdout).unwrap();
    let names =
        report["updates"][0]["tensors"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap());
    let map: serde_json::Map<String, Value> =
        names.map(|n| (n.to_owned(), "pytorch_model-1.bin".into())).collect();
    index(&dir, "m/pytorch_model.bin.index.json", map.clone().into());
    assert!(dir.well("inspect m/pytorch_model.bin.index.json").out().contains("sharded PyTorch"));
    dir.well(&format!("diff {fixture} m/pytorch_model.bin.index.json"));
    let both: serde_json::Map<String, Value> =
        map.into_iter().chain([("extra".to_owned(), "2.safetensors".into())]).collect();
    index(&dir, "m/pytorch_model.bin.index.json", both.into());
    dir.well("inspect m");
}

#[test]
fn files_of_a_folder_that_have_nothing_to_show_are_left_out() {
    let dir = Dir::new();
    write(&dir, "m/model.safetensors", "a", &[1.0]);
    let empty = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/nothing.pt");
    std::fs::copy(empty, dir.path("m/scheduler.pt")).unwrap();
    let run = dir.well("inspect m");
    assert!(run.err.contains("scheduler.pt: a PyTorch file without tensors; left out"), "{}", run.err);
    dir.well("audit m m");
    dir.fails(3, "a PyTorch file without tensors", "inspect m/scheduler.pt");
    // An unreadable file fails the command, and hides no other.
    std::fs::write(dir.path("m/other.safetensors"), "version https://git-lfs.github.com/spec/v1\n").unwrap();
    let run = dir.fails(3, "other.safetensors: a Git LFS pointer", "inspect m");
    assert!(run.out().contains("100%"), "{}", run.out());
    std::fs::copy(worker(0), dir.path("m/worker.safetensors")).unwrap();
    let run = dir.fails(3, "other.safetensors: a Git LFS pointer", "inspect m");
    assert!(run.out().contains("2 files"), "{}", run.out());
}
