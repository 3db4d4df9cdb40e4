//! `convert` and `audit`: updates of other projects, and what runs of deltas change.

mod common;

use common::{Dir, f32s, write_tensors};
use serde_json::Value;

fn fixture(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    path.display().to_string()
}

fn json(dir: &Dir, line: &str) -> Value {
    serde_json::from_slice(&dir.well(line).stdout).unwrap()
}

#[test]
fn updates_of_other_projects_keep_every_value() {
    let dir = Dir::new();
    for (name, options) in [("pairs", "--layout pairs"), ("chunks", "--layout demo --chunk 6")] {
        let (input, dense) = (fixture(&format!("{name}.pt")), fixture(&format!("{name}.safetensors")));
        let run = dir.well(&format!("convert {input} -o {name}.gcu {options} --like {dense} --step 3"));
        assert!(run.err.contains("1 update"), "{}", run.err);
        dir.well(&format!("decode {name}.gcu -o {name}.safetensors"));
        assert_eq!(dir.run(&format!("diff {dense} {name}.safetensors")).code, 0, "{name}");
        let update = &json(&dir, &format!("inspect {name}.gcu --json"))["updates"][0];
        assert_eq!((&update["step"], update["tensors"].as_array().unwrap().len()), (&3.into(), 2), "{name}");
    }
    let like = fixture("pairs.safetensors");
    // A dict of bf16 values: their type is kept.
    dir.well(&format!("convert {} -o dict.gcu --layout pairs --like {like}", fixture("dict.pt")));
    assert_eq!(json(&dir, "inspect dict.gcu --tensors --json")[0]["dtype"], "bf16");
    assert_eq!(json(&dir, "inspect dict.gcu --tensors --json")[0]["kept"], 5);
    // The coefficients' energy is that of what they stand for.
    let norm = |line: &str| {
        dir.well(&format!(
            "convert {} -o x.gcu --layout demo --like {like} --chunk 6 {line}",
            fixture("chunks.pt")
        ));
        json(&dir, "inspect x.gcu --json")["updates"][0]["norm"].as_f64().unwrap()
    };
    let (plain, undone) = (norm(""), norm("--dct"));
    assert!((plain - undone).abs() < 1e-6 * plain, "{plain} {undone}");
}

#[test]
fn updates_that_do_not_fit_are_refused() {
    let dir = Dir::new();
    let (pairs, chunks) = (fixture("pairs.pt"), fixture("chunks.pt"));
    write_tensors(&dir.path("small.safetensors"), &[("w", "F32", &[2], &f32s(&[0.0; 2]))]);
    write_tensors(&dir.path("one.safetensors"), &[("w", "F32", &[8, 12], &f32s(&[0.0; 96]))]);
    std::fs::write(dir.path("x.gcu"), "old").unwrap();
    for (line, text) in [
        (format!("convert {pairs} -o x.gcu --layout pairs"), "--like"),
        (format!("convert {pairs} -o x.gcu --layout pairs --like small.safetensors"), "in a tensor of 2"),
        (format!("convert {pairs} -o x.gcu --layout pairs --like one.safetensors"), "has no tensor \"1\""),
        (format!("convert {chunks} -o x.gcu --layout demo --like one.safetensors --chunk 4"), "--chunk"),
        (
            format!("convert {chunks} -o x.gcu --layout pairs --like one.safetensors"),
            "12 indices for 8 values",
        ),
        ("convert one.safetensors -o x.gcu --layout pairs --like one.safetensors".into(), "no indices"),
        ("convert one.safetensors -o x.gcu --layout slime --base one.safetensors".into(), "one.safetensors"),
    ] {
        let run = dir.run(&line);
        assert!([2, 3].contains(&run.code) && run.err.contains(text), "{line}: {} {}", run.code, run.err);
        assert_eq!(std::fs::read(dir.path("x.gcu")).unwrap(), b"old", "{line}");
    }
}

#[test]
fn values_replace_those_of_a_base() {
    let dir = Dir::new();
    let old: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let mut new = old.clone();
    (new[3], new[11]) = (0.0, -1.0);
    let bias = f32s(&[1.0, 2.0]);
    for (file, w) in [("old.safetensors", &old), ("new.safetensors", &new)] {
        write_tensors(&dir.path(file), &[("w", "F32", &[3, 4], &f32s(w)), ("b", "F32", &[2], &bias)]);
    }
    let places: Vec<u8> = [11i32, 3].iter().flat_map(|place| place.to_le_bytes()).collect();
    let patch = |values: &[f32]| {
        let (len, values) = ([values.len() as u64], f32s(values));
        let parts = [("w.indices", "I32", &[2u64][..], &places[..]), ("w.values", "F32", &len, &values)];
        write_tensors(&dir.path("patch.safetensors"), &parts);
    };
    patch(&[-1.0, 0.0]);
    // A value of zero replaces, too, and the update is a delta.
    dir.well("convert patch.safetensors -o patch.gcu --layout pairs --base old.safetensors --step 7");
    dir.well("decode patch.gcu -o got.safetensors --base old.safetensors -q");
    dir.well("diff got.safetensors new.safetensors");
    assert_eq!(json(&dir, "inspect patch.gcu --json")["updates"][0]["delta"], true);
    patch(&[-1.0]);
    dir.fails(
        3,
        "2 indices for 1 values",
        "convert patch.safetensors -o x.gcu --layout pairs --base old.safetensors",
    );
    write_tensors(&dir.path("half.safetensors"), &[("w", "F16", &[3, 4], &[0; 24])]);
    patch(&[-1.0, 0.0]);
    dir.fails(
        2,
        "values are f32",
        "convert patch.safetensors -o x.gcu --layout pairs --base half.safetensors",
    );
}

/// Writes a version as slime does: the bytes that changed, compressed, with the checksum of the result.
fn publish(dir: &Dir, version: usize, encoding: &str, old: &[u8], new: &[u8]) {
    let folder = format!("weight_v{version:06}");
    std::fs::create_dir(dir.path(&folder)).unwrap();
    let change: Vec<u8> = match encoding {
        "xor" => old.iter().zip(new).map(|(a, b)| a ^ b).collect(),
        _ => {
            let places: Vec<u32> =
                (0u32..).zip(old.iter().zip(new)).filter(|(_, (a, b))| a != b).map(|p| p.0).collect();
            let count = (places.len() as u32).to_le_bytes().to_vec();
            let positions = places.iter().flat_map(|place| place.to_le_bytes());
            count.into_iter().chain(positions).chain(places.iter().map(|&p| new[p as usize])).collect()
        }
    };
    let packed = zstd::encode_all(&change[..], 1).unwrap();
    let hash = blake3::hash(new).to_hex().to_string();
    let header = serde_json::json!({
        "__metadata__": {"w": hash},
        "w": {"dtype": "U8", "shape": [packed.len()], "data_offsets": [0, packed.len()]},
    })
    .to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &packed].concat();
    std::fs::write(dir.path(&folder).join("model.safetensors"), bytes).unwrap();
    let index = serde_json::json!({
        "metadata": {
            "version": format!("{version:06}"), "base_version": format!("{:06}", version - 1),
            "delta_encoding": encoding, "compression_format": "zstd", "checksum_format": "blake3",
        },
        "weight_map": {"w": "model.safetensors"},
    });
    std::fs::write(dir.path(&folder).join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn deltas_of_slime_become_a_chain_that_audit_reads() {
    let dir = Dir::new();
    let weights = |changes: &[(usize, f32)]| {
        let mut values: Vec<f32> = (0..500).map(|i| 1.0 + i as f32).collect();
        changes.iter().for_each(|&(i, value)| values[i] = value);
        f32s(&values)
    };
    let next = |x: f32| f32::from_bits(x.to_bits() + 1);
    let versions = [
        weights(&[]),
        weights(&[(3, next(4.0)), (9, 0.5)]),
        weights(&[(3, 4.0), (9, 0.5), (400, next(401.0))]),
    ];
    let bias = f32s(&[1.0, 2.0]);
    for (number, w) in versions.iter().enumerate() {
        let tensors = [("w", "F32", &[20u64, 25][..], &w[..]), ("b", "F32", &[2], &bias)];
        write_tensors(&dir.path(&format!("step{number}.safetensors")), &tensors);
    }
    publish(&dir, 1, "xor", &versions[0], &versions[1]);
    publish(&dir, 2, "overwrite", &versions[1], &versions[2]);
    dir.well("convert weight_v000001 weight_v000002 -o sync.gcu --layout slime --base step0.safetensors");
    dir.well("decode sync.gcu -o got.safetensors --base step0.safetensors -q");
    assert_eq!(dir.run("diff got.safetensors step2.safetensors").code, 0);
    let audit = json(&dir, "audit sync.gcu --base step0.safetensors --json");
    assert_eq!((&audit["elements"], &audit["ever"]), (&502.into(), &3.into()));
    let steps = audit["steps"].as_array().unwrap();
    for (step, expected) in steps.iter().zip([(1, 2, 0), (2, 2, 1)]) {
        assert_eq!(
            (&step["step"], &step["changed"], &step["again"]),
            (&expected.0.into(), &expected.1.into(), &expected.2.into())
        );
        assert_eq!(step["ulps"][0], if expected.0 == 1 { 1 } else { 2 }, "{step}");
        assert!(step["bytes"].as_f64().unwrap() > 0.0);
    }
    // Files of whole weights give the same, without the bytes of deltas.
    let files = json(&dir, "audit step0.safetensors step1.safetensors step2.safetensors --json");
    for (a, b) in steps.iter().zip(files["steps"].as_array().unwrap()) {
        assert_eq!((&a["changed"], &a["again"], &a["ulps"]), (&b["changed"], &b["again"], &b["ulps"]));
        assert!(b["bytes"].is_null());
    }
    let csv = dir.well("audit sync.gcu --base step0.safetensors --csv").out();
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.lines().nth(2).unwrap().starts_with("sync.gcu,2,0,w,500,2,1,1,"), "{csv}");
    let text = dir.well("audit sync.gcu --base step0.safetensors --group 1").out();
    for part in ["2 steps, 502 elements", "again", "1 module did not change", "1 ulp", "w  "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Nothing is taken for another version.
    dir.fails(3, "wrong checksum", "convert weight_v000002 -o x.gcu --layout slime --base step0.safetensors");
    dir.fails(2, "--base", "audit sync.gcu");
    dir.fails(2, "changes nothing", "audit step0.safetensors");
    write_tensors(&dir.path("other.safetensors"), &[("v", "F32", &[2], &bias)]);
    dir.fails(2, "another model", "audit step0.safetensors other.safetensors");
}

#[test]
fn opaque_tensors_are_carried_or_refused_by_name() {
    let dir = Dir::new();
    let versions: [&[u8]; 3] = [&[1, 2, 3, 4, 5, 6], &[1, 2, 3, 9, 5, 6], &[1, 7, 3, 9, 5, 8]];
    let bias = f32s(&[1.0, 2.0]);
    for (number, w) in versions.iter().enumerate() {
        let tensors =
            [("w", "U4X2", &[2u64, 3][..], *w), ("b", "F32", &[2], &bias), ("e", "Q9", &[2], b"ee")];
        write_tensors(&dir.path(&format!("step{number}.safetensors")), &tensors);
    }
    publish(&dir, 1, "xor", versions[0], versions[1]);
    publish(&dir, 2, "overwrite", versions[1], versions[2]);
    let convert = "convert weight_v000001 weight_v000002 -o sync.gcu --layout slime --base step0.safetensors";
    let run = dir.well(convert);
    assert!(
        run.err.contains("\"w\" (U4X2) is opaque") && run.err.contains("kept as they are"),
        "{}",
        run.err
    );
    for step in [1, 2] {
        dir.well(&format!("decode sync.gcu -o got.safetensors --base step0.safetensors --step {step} -q"));
        dir.well(&format!("diff got.safetensors step{step}.safetensors"));
        let listed = dir.well("inspect got.safetensors --tensors").out();
        assert!(listed.contains("U4X2") && listed.contains("Q9"), "{listed}");
    }
    // A list counts the tensors of the model, among which the opaque ones stand somewhere.
    let pairs = fixture("pairs.pt");
    let line = format!("convert {pairs} -o x.gcu --layout pairs --like step0.safetensors");
    let run = dir.fails(2, "of --like is opaque: elements of this type are not read", &line);
    assert!(run.err.contains("the numbers of tensors are not known"), "{}", run.err);
    let (places, values) = ([0u8; 4], f32s(&[1.0]));
    let update = [("w.indices", "I32", &[1u64][..], &places[..]), ("w.values", "F32", &[1], &values)];
    write_tensors(&dir.path("u.safetensors"), &update);
    let line = "convert u.safetensors -o x.gcu --layout pairs --like step0.safetensors";
    dir.fails(2, "tensor \"w\" (U4X2) of --like is opaque", line);
    write_tensors(&dir.path("u.safetensors"), &[update[0], ("w.values", "Q9", &[1], &[1])]);
    dir.fails(3, "tensor \"w.values\" (Q9) is opaque", line);
    assert!(!dir.path("x.gcu").exists());
}

#[test]
fn payloads_of_nemo_rl_become_deltas() {
    let dir = Dir::new();
    let (old, new) = (fixture("nemo_old.pt"), fixture("nemo_new.pt"));
    // A payload as it is, and a folder with one that is compressed.
    let payload = std::fs::read(fixture("nemo.pt")).unwrap();
    std::fs::create_dir(dir.path("sync")).unwrap();
    std::fs::write(dir.path("sync/000000.pt"), zstd::encode_all(&payload[..], 1).unwrap()).unwrap();
    for input in [fixture("nemo.pt"), "sync".to_owned()] {
        dir.well(&format!("convert {input} -o sync.gcu --layout nemo --base {old} --step 4"));
        dir.well(&format!("decode sync.gcu -o got.safetensors --base {old} -q"));
        assert_eq!(dir.run(&format!("diff got.safetensors {new}")).code, 0, "{input}");
        assert_eq!(dir.run(&format!("diff got.safetensors {old}")).code, 1, "{input}");
    }
    let audit = json(&dir, &format!("audit sync.gcu --base {old} --json"));
    assert_eq!((&audit["steps"][0]["changed"], &audit["steps"][0]["step"]), (&6.into(), &4.into()));
    // Another base, another layout, a payload that is cut.
    write_tensors(&dir.path("other.safetensors"), &[("w", "F32", &[20, 30], &f32s(&[0.0; 600]))]);
    let line = |base: &str, input: &str| format!("convert {input} -o x.gcu --layout nemo --base {base}");
    dir.fails(2, "unlike those of the base", &line("other.safetensors", &fixture("nemo.pt")));
    dir.fails(3, "no items as payloads of NeMo-RL do", &line(&old, &fixture("pairs.pt")));
    std::fs::write(dir.path("sync/000000.pt"), &payload[..payload.len() / 2]).unwrap();
    dir.fails(3, "000000.pt", &line(&old, "sync"));
    dir.fails(2, "--base", &format!("convert {} -o x.gcu --layout nemo", fixture("nemo.pt")));
    assert!(!dir.path("x.gcu").exists());
}

#[test]
fn versions_that_cannot_be_written_leave_no_folder() {
    let dir = Dir::new();
    write_tensors(&dir.path("w.safetensors"), &[("w", "F32", &[2], &[0; 8])]);
    dir.fails(2, "differences need the version before", "convert w.safetensors -o up --to xor");
    assert_eq!(dir.files(), ["w.safetensors"]);
    dir.well("convert w.safetensors -o up --to whole");
    assert_eq!(dir.files(), ["up", "w.safetensors"]);
}
