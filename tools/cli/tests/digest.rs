//! Digests of tensors: one number for the same elements, in whatever file.

mod common;

use common::{Dir, f32s, write_tensors};
use serde_json::Value;

/// Writes tensors of 6 x 4 elements; `seed` chooses them.
fn write(dir: &Dir, file: &str, names: &[&str], seed: f32) {
    let data = f32s(&(0..24).map(|i| i as f32 * seed).collect::<Vec<_>>());
    let tensors: Vec<_> = names.iter().map(|name| (*name, "F32", &[6u64, 4][..], &data[..])).collect();
    write_tensors(&dir.path(file), &tensors);
}

fn json(dir: &Dir, command: &str) -> Value {
    serde_json::from_slice(&dir.well(command).stdout).unwrap()
}

#[test]
fn files_streams_and_shards_have_the_same_digests() {
    let dir = Dir::new();
    write(&dir, "all.safetensors", &["a", "b", "c"], 1.5);
    let expected = json(&dir, "digest all.safetensors --json");
    assert_eq!(expected["tensors"].as_object().unwrap().len(), 3);
    write(&dir, "one.safetensors", &["a"], 1.5);
    write(&dir, "others.safetensors", &["c", "b"], 1.5);
    dir.well("encode all.safetensors -o all.gcu --codec lossless");
    dir.well("decode all.gcu -o all.npz");
    for same in ["all.gcu", "all.npz", "one.safetensors others.safetensors"] {
        assert_eq!(json(&dir, &format!("digest {same} --json")), expected, "{same}");
    }
    write(&dir, "wrapped.safetensors", &["module.a", "module.b", "module.c"], 1.5);
    assert_eq!(json(&dir, "digest wrapped.safetensors --strip-prefix module. --json"), expected);
    assert_ne!(json(&dir, "digest wrapped.safetensors --json")["sum"], expected["sum"]);
    // A delta, applied to its base.
    write(&dir, "old.safetensors", &["a", "b", "c"], 1.25);
    dir.well("encode all.safetensors --base old.safetensors -o delta.gcu --codec delta");
    assert_eq!(json(&dir, "digest delta.gcu --base old.safetensors --json"), expected);
    let text = dir.well("digest all.safetensors").out();
    let sum = expected["sum"].as_str().unwrap();
    assert!(text.ends_with(&format!("{sum}  sum of 3 tensors\n")), "{text}");
    assert!(text.contains(expected["tensors"]["b"]["sum"].as_str().unwrap()), "{text}");
    let run = dir.run("digest all.safetensors one.safetensors");
    assert!(run.code == 3 && run.err.contains("\"a\" is here twice"), "{}", run.err);
}

#[test]
fn verify_names_the_tensors_that_differ() {
    let dir = Dir::new();
    write(&dir, "right.safetensors", &["a", "b", "c"], 1.5);
    let digests = dir.well("digest right.safetensors --json").stdout;
    std::fs::write(dir.path("digests.json"), &digests).unwrap();
    let against = |files: &str| dir.run(&format!("verify --against-digests digests.json {files}"));
    dir.well("encode right.safetensors -o right.gcu --codec lossless");
    for right in ["right.safetensors", "right.gcu"] {
        let run = against(right);
        assert_eq!((run.code, run.out()), (0, "ok: 3 tensors with the same digests\n".into()));
    }
    // One bit of one element.
    let mut bytes = std::fs::read(dir.path("right.safetensors")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(dir.path("bit.safetensors"), bytes).unwrap();
    let run = against("bit.safetensors");
    assert!(run.code == 1 && run.out().contains("c: other elements\n1 difference from"), "{}", run.out());
    // Swapped names, a missing and an extra tensor, another shape.
    write(&dir, "ab.safetensors", &["a", "b", "d"], 1.5);
    let run = against("ab.safetensors");
    assert!(run.out().contains("c: missing\nd: not in the digests\n2 differences"), "{}", run.out());
    write_tensors(
        &dir.path("flat.safetensors"),
        &[("a", "F32", &[24], &f32s(&(0..24).map(|i| i as f32 * 1.5).collect::<Vec<_>>()))],
    );
    assert!(against("flat.safetensors").out().contains("a: f32 [24] in place of f32 [6, 4]"));
    // Digests that are damaged, or of something else.
    for wrong in ["{}", "[]", "{\"format\":\"gcodec-digests 9\",\"sum\":\"\",\"tensors\":{}}"] {
        std::fs::write(dir.path("wrong.json"), wrong).unwrap();
        let run = dir.run("verify --against-digests wrong.json right.safetensors");
        assert_eq!(run.code, 3, "{wrong}: {}", run.err);
    }
    let mut lost: Value = serde_json::from_slice(&digests).unwrap();
    lost["tensors"].as_object_mut().unwrap().remove("b");
    std::fs::write(dir.path("wrong.json"), lost.to_string()).unwrap();
    let run = dir.run("verify --against-digests wrong.json right.safetensors");
    assert!(run.code == 3 && run.err.contains("the sum is not that"), "{}", run.err);
    assert_eq!(dir.run("verify right.gcu --step 3").code, 2);
}
