//! Tensors of element types that are not read: what commands show of them, and what they carry.

mod common;

use common::{Dir, f32s, write_tensors};
use serde_json::Value;

/// Files whose tensor `odd` is opaque, beside `w` of two floats, with the type of `odd`.
fn odd_files(dir: &Dir) -> Vec<(&'static str, &'static str)> {
    let w = f32s(&[3.0, 4.0]);
    let odd: [(&str, &[u64], &[u8]); 3] =
        [("U4X8", &[2], &[1, 2, 3, 4, 5, 6, 7, 8]), ("F128", &[1], &[7; 16]), ("Q2_9", &[5, 0], &[])];
    let names = ["packed.safetensors", "wide.safetensors", "empty.safetensors"];
    for (name, (dtype, shape, bytes)) in names.iter().zip(odd) {
        let tensors = [("odd", dtype, shape, bytes), ("w", "F32", &[2], &w[..])];
        write_tensors(&dir.path(name), &tensors);
    }
    names.into_iter().zip(odd.map(|(dtype, ..)| dtype)).collect()
}

#[test]
fn the_others_are_shown_and_the_opaque_ones_listed_with_their_reason() {
    let dir = Dir::new();
    for (file, dtype) in odd_files(&dir) {
        for line in ["inspect", "inspect --tensors", "inspect --stats", "inspect --coding"] {
            let run = dir.well(&format!("{line} {file}"));
            assert!(run.err.contains(&format!("tensor \"odd\" ({dtype}) is opaque")), "{line}: {}", run.err);
            assert!(run.out().contains("w "), "{line}: {}", run.out());
        }
        let text = dir.well(&format!("inspect {file} --tensors")).out();
        assert!(text.contains(&format!("opaque: odd ({dtype}): elements of this type")), "{text}");
        // The norm is that of the tensors that are read.
        let report: Value =
            serde_json::from_slice(&dir.well(&format!("inspect {file} --json")).stdout).unwrap();
        let update = &report["updates"][0];
        assert_eq!((&update["norm"], &report["ok"]), (&5.0.into(), &true.into()), "{file}");
        let odd = update["tensors"].as_array().unwrap().iter().find(|t| t["name"] == "odd").unwrap();
        assert!(odd["opaque"].is_string() && odd["dtype"] == dtype && odd["norm"].is_null(), "{odd}");
        let csv = dir.well(&format!("inspect {file} --tensors --csv")).out();
        assert!(csv.lines().next().unwrap().ends_with(",opaque"), "{csv}");
    }
    let one = dir.well("inspect wide.safetensors --tensor odd").out();
    assert!(one.contains("odd F128 1\n") && one.contains("opaque: elements of this type"), "{one}");
}

#[test]
fn without_parameters_there_are_no_bits_of_one() {
    let dir = Dir::new();
    write_tensors(&dir.path("none.safetensors"), &[]);
    write_tensors(&dir.path("empty.safetensors"), &[("w", "F32", &[0, 3], &[])]);
    for file in ["none", "empty"] {
        let encoded = dir.well(&format!("encode {file}.safetensors -o {file}.gcu --codec lossless"));
        assert!(!encoded.err.contains("per parameter"), "{}", encoded.err);
        for path in [format!("{file}.safetensors"), format!("{file}.gcu")] {
            let report = dir.well(&format!("inspect {path} --json"));
            let report: Value = serde_json::from_slice(&report.stdout).unwrap();
            assert!(report["updates"][0]["bits_per_parameter"].is_null(), "{report}");
            assert!(!dir.well(&format!("inspect {path}")).out().is_empty());
            assert!(!dir.well(&format!("inspect {path} --tensors")).out().trim().is_empty(), "{path}");
        }
    }
}
