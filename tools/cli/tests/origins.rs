//! Steps and senders in names, and the order of names, in every command that reads files of tensors.

mod common;

use common::{Dir, f32s, write_tensors};
use serde_json::Value;

/// Writes one tensor of 64 elements; `seed` chooses them.
fn write(dir: &Dir, file: &str, seed: u32) {
    let path = dir.path(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let values: Vec<f32> = (0..64).map(|i| ((i * 37 + seed) % 11) as f32 - 5.0).collect();
    write_tensors(&path, &[("w", "F32", &[64], &f32s(&values))]);
}

/// Returns step and sender of each row of `inspect --csv`.
fn rows(text: &str) -> Vec<(String, String)> {
    let rows = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    rows.map(|row| (row[1].to_owned(), row[2].to_owned())).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn encode_takes_step_and_sender_as_inspect_does() {
    let dir = Dir::new();
    let names = [
        "grad_step1000_worker0.safetensors",
        "grad_step1000_worker1.safetensors",
        "grad_step200_worker0.safetensors",
        "grad_step200_worker1.safetensors",
        "grad_step200_worker10.safetensors",
        "grad_step200_worker2.safetensors",
    ];
    names.iter().zip(0..).for_each(|(name, seed)| write(&dir, name, seed));
    let expected =
        pairs(&[("200", "0"), ("200", "1"), ("200", "2"), ("200", "10"), ("1000", "0"), ("1000", "1")]);
    let of_files = dir.well(&format!("inspect {} --csv", names.join(" "))).out();
    assert_eq!(rows(&of_files), expected);
    let run = dir.well(&format!("encode {} -o r.gcu --codec topk:density=0.25", names.join(" ")));
    let note = "grad_step200_worker0.safetensors: step 200, sender 0, from its name; so 5 more inputs";
    assert!(run.err.contains(note), "{}", run.err);
    assert_eq!(rows(&dir.well("inspect r.gcu --csv").out()), expected);
    dir.well("inspect r.gcu --against .");
    // What the command line says is no guess.
    let line = format!("encode {} -o s.gcu --codec raw --step 7 --sender 3", names[0]);
    assert!(!dir.well(&line).err.contains("from its name"));
    assert_eq!(rows(&dir.well("inspect s.gcu --csv").out()), pairs(&[("7", "3")]));
    // Residuals of two senders are not one.
    let two = format!("encode {} {} -o t.gcu --codec topk --feedback f.safetensors", names[0], names[1]);
    dir.fails(2, "the residuals of one sender", &two);
}

#[test]
fn folders_say_the_step_that_a_file_does_not() {
    let dir = Dir::new();
    for step in [100, 1000, 200] {
        write(&dir, &format!("run/checkpoint-{step}/model.safetensors"), step);
        write(&dir, &format!("ranks/global_step{step}/rank_1/grad.safetensors"), step);
    }
    let glob = |of: &dyn Fn(u32) -> String| [100, 1000, 200].map(of).join(" ");
    let files = glob(&|step| format!("run/checkpoint-{step}/model.safetensors"));
    let text = dir.well(&format!("inspect {files}")).out();
    assert!(text.contains("steps 100 to 1000 (from names)"), "{text}");
    let column: Vec<&str> = text.lines().filter(|line| line.starts_with("checkpoint-")).collect();
    assert_eq!(column.len(), 3, "the rows differ: {text}");
    assert!(column[1].starts_with("checkpoint-200 ") && column[2].starts_with("checkpoint-1000 "), "{text}");
    assert_eq!(
        rows(&dir.well(&format!("inspect {files} --csv")).out()),
        pairs(&[("100", ""), ("200", ""), ("1000", "")])
    );
    let files = glob(&|step| format!("ranks/global_step{step}/rank_1/grad.safetensors"));
    dir.well(&format!("encode {files} -o r.gcu --codec delta"));
    assert_eq!(
        rows(&dir.well("inspect r.gcu --csv").out()),
        pairs(&[("100", "1"), ("200", "1"), ("1000", "1")])
    );
    let one = dir.well("inspect run/checkpoint-200/model.safetensors").out();
    assert!(one.contains("step 200 (from its name)"), "{one}");
    let json = dir.well("inspect run/checkpoint-200/model.safetensors --json").stdout;
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["updates"][0]["step"], &json["updates"][0]["guessed"]), (&200.into(), &true.into()));
}

#[test]
fn an_audit_is_in_the_order_of_the_numbers() {
    let dir = Dir::new();
    for step in [9, 10, 100] {
        write(&dir, &format!("iter_{step}.safetensors"), step);
    }
    // As a shell gives them, and as a folder has them.
    for inputs in ["iter_10.safetensors iter_100.safetensors iter_9.safetensors", "."] {
        let run = dir.well(&format!("audit {inputs} --json"));
        let audit: Value = serde_json::from_slice(&run.stdout).unwrap();
        let steps: Vec<_> = audit["steps"].as_array().unwrap().iter().map(|s| s["step"].as_u64()).collect();
        assert_eq!((steps, run.err.as_str()), (vec![Some(10), Some(100)], ""), "{inputs}");
    }
    // Another order is the user's own.
    let run = dir.well("audit iter_100.safetensors iter_9.safetensors iter_10.safetensors");
    assert!(run.err.contains("iter_9.safetensors: step 9 after step 100"), "{}", run.err);
    assert!(run.out().contains("step and sender are from names"), "{}", run.out());
}

#[test]
fn what_a_file_says_counts_before_its_name() {
    let dir = Dir::new();
    write(&dir, "a_step5.safetensors", 1);
    dir.well("encode a_step5.safetensors -o a.gcu --codec raw --meta step=77 --step 1");
    let bytes = std::fs::read(dir.path("a_step5.safetensors")).unwrap();
    let header = std::str::from_utf8(&bytes[8..bytes.len() - 256]).unwrap();
    let header = header.replacen('{', r#"{"__metadata__":{"step":"6","rank":"2"},"#, 1);
    let bytes =
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[bytes.len() - 256..]].concat();
    std::fs::write(dir.path("a_step5_worker9.safetensors"), bytes).unwrap();
    let run = dir.well("encode a_step5_worker9.safetensors -o b.gcu --codec raw");
    assert!(!run.err.contains("from its name"), "{}", run.err);
    assert_eq!(rows(&dir.well("inspect b.gcu --csv").out()), pairs(&[("6", "2")]));
    assert_eq!(rows(&dir.well("inspect a_step5_worker9.safetensors --csv").out()), pairs(&[("6", "2")]));
}

#[test]
fn tensors_are_listed_by_their_numbers() {
    let dir = Dir::new();
    let x = f32s(&[1.0]);
    let names = ["layers.10.w", "layers.2.w", "layers.1.w"];
    write_tensors(&dir.path("x.safetensors"), &names.map(|name| (name, "F32", &[1u64][..], &x[..])));
    let text = dir.well("inspect x.safetensors --tensors --sort name").out();
    let at = |name: &str| text.find(name).unwrap();
    assert!(at("layers.1.w") < at("layers.2.w") && at("layers.2.w") < at("layers.10.w"), "{text}");
}
