//! Requests and answers, without a browser.

use gcodec_web::{add, answer, clear};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The files are those of one page.
static ONE: Mutex<()> = Mutex::new(());

/// Adds files of the command line's fixtures.
fn given(files: &[(&str, Vec<u8>)]) -> MutexGuard<'static, ()> {
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    clear();
    for (path, bytes) in files.iter().cloned() {
        add(path, bytes.len() as u64, move |at, out| {
            out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]);
        });
    }
    guard
}

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/cli/fixtures");
    std::fs::read(folder.join(name)).unwrap()
}

fn ask(request: &Value) -> Value {
    serde_json::from_slice(&answer(request.to_string().as_bytes()).text).unwrap()
}

#[test]
fn a_file_is_reported_and_looked_into() {
    let _one = given(&[("state.pt", fixture("state.pt"))]);
    assert_eq!(ask(&json!({"do": "inputs"}))["value"], json!(["state.pt"]));
    let report = ask(&json!({"do": "report", "paths": ["state.pt"]}));
    let tensors = &report["value"]["reports"][0]["updates"][0]["tensors"];
    assert_eq!(tensors.as_array().unwrap().len(), 7);
    assert_eq!(
        serde_json::from_str::<Value>(report["value"]["json"].as_str().unwrap()).unwrap(),
        report["value"]["reports"][0]
    );
    let tensor = ask(&json!({"do": "tensor", "name": "model.weight"}));
    assert_eq!(tensor["value"]["grid"]["rows"], 2);
    let page = ask(&json!({"do": "html", "paths": ["state.pt"]}));
    assert!(page["value"].as_str().unwrap().contains("model.weight"));
    let data = answer(br#"{"do": "data", "path": "state.pt", "name": "model.half"}"#);
    assert_eq!(data.bytes.len(), 8);
}

#[test]
fn files_of_a_folder_stand_as_their_index() {
    let index = br#"{"weight_map": {"a": "x.safetensors"}}"#.to_vec();
    let _one = given(&[
        ("run/model.safetensors.index.json", index),
        ("run/x.safetensors", fixture("chunks.safetensors")),
        ("run/readme.txt", b"text".to_vec()),
    ]);
    let inputs = ask(&json!({"do": "inputs"}));
    assert_eq!(inputs["value"], json!(["run/model.safetensors.index.json"]));
    assert!(inputs["warnings"][0].as_str().unwrap().contains("1 left out"), "{inputs}");
    let report = ask(&json!({"do": "report", "paths": inputs["value"]}));
    // The index lists a tensor that the file does not have.
    assert_eq!(report["value"]["reports"][0]["ok"], false);
    assert!(report["value"]["failures"][0]["message"].as_str().unwrap().contains("\"a\""), "{report}");
}

#[test]
fn two_files_are_compared() {
    let _one = given(&[("a.npz", fixture("stored.npz")), ("b.npz", fixture("compressed.npz"))]);
    let diff = ask(&json!({"do": "diff", "a": "a.npz", "b": "b.npz"}));
    assert_eq!((&diff["value"]["equal"], &diff["value"]["total"]["tensors"]), (&json!(true), &json!(3)));
    let losses = ask(&json!({"do": "against", "paths": ["a.npz"], "original": "b.npz"}));
    assert_eq!(losses["value"]["all"]["cosine"], 1.0);
}

#[test]
fn wrong_requests_and_files_are_errors() {
    let _one = given(&[("x.bin", b"noise".to_vec())]);
    let of = |request: Value| ask(&request)["error"]["code"].clone();
    assert_eq!(of(json!({"do": "nothing"})), "usage");
    assert_eq!(of(json!([1])), "usage");
    assert_eq!(of(json!({"do": "report", "paths": ["x.bin"]})), "invalid");
    assert_eq!(of(json!({"do": "headers", "path": "missing"})), "io");
    assert_eq!(of(json!({"do": "data", "path": "x.bin", "name": "w"})), "invalid");
    assert_eq!(answer(b"\xff").bytes.len(), 0);
}
