#![no_main]
//! The library against the reference decoder, which runs in a process: both accept a stream with the same
//! contents, or both refuse it. If both stop at the same byte outside updates and sets, the reasons must
//! agree.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use gcodec::{Error, Limits};
use gcodec_fuzz::{begin, frames, widest};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

#[path = "../../tests/wire/describe/mod.rs"]
#[allow(dead_code, reason = "others use more of it")]
mod describe;

gcodec_fuzz::mutate_streams!();

const ELEMENTS: u64 = 1 << 12;
const MEMORY: u64 = 1 << 20;

fn limits() -> Limits {
    Limits::default()
        .with_max_elements(ELEMENTS)
        .with_max_alloc_bytes(MEMORY)
        .with_max_inflated_bytes(1 << 16)
}

/// The process of the reference decoder.
struct Reference {
    _process: Child,
    input: ChildStdin,
    output: ChildStdout,
}

static REFERENCE: LazyLock<Mutex<Reference>> = LazyLock::new(|| {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/reference.py");
    let command = Command::new("python3").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = command.expect("python3");
    let (input, output) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
    let mut reference = Reference { _process: process, input, output };
    let limits = json!({
        "max_elements": ELEMENTS, "max_alloc_bytes": MEMORY, "max_inflated_bytes": 1 << 16,
        // The library's default limits.
        "max_definitions": 1024,
    });
    reference.send(limits.to_string().as_bytes());
    Mutex::new(reference)
});

impl Reference {
    fn send(&mut self, bytes: &[u8]) {
        let len = (bytes.len() as u32).to_le_bytes();
        self.input
            .write_all(&[&len, bytes].concat())
            .and_then(|()| self.input.flush())
            .expect("a pipe to python3");
    }

    fn ask(&mut self, stream: &[u8]) -> Value {
        self.send(stream);
        let mut len = [0; 4];
        self.output.read_exact(&mut len).expect("a pipe from python3");
        let mut answer = vec![0; u32::from_le_bytes(len) as usize];
        self.output.read_exact(&mut answer).expect("a pipe from python3");
        serde_json::from_slice(&answer).expect("an answer")
    }
}

fuzz_target!(|bytes: &[u8]| {
    begin(true);
    // Kernels of each width: what a processor decodes depends on its own.
    widest((bytes.len() % 3) as u8);
    let theirs = REFERENCE.lock().expect("one input at a time").ask(bytes);
    let ours = describe::describe(bytes, &limits());
    compare("stream", bytes, &ours, &theirs["stream"]);
    if ours.is_ok() && !theirs["tensors"].is_null() {
        let ours = describe::tensors(bytes, &limits(), None);
        compare("tensors", bytes, &ours, &theirs["tensors"]);
    }
});

fn compare(what: &str, bytes: &[u8], ours: &Result<Value, Error>, theirs: &Value) {
    assert!(theirs["crash"].is_null(), "the reference decoder crashed: {}", theirs["crash"]);
    // Limits are each reader's choice; the reference decoder has no zstd here.
    let is_too_much = ours.as_ref().is_err_and(|e| matches!(e, Error::Limit(_)));
    if is_too_much || theirs["error"] == "limit" || theirs["error"] == "unsupported_here" {
        return;
    }
    match (ours, theirs.get("value")) {
        (Ok(ours), Some(value)) => {
            assert!(ours == value, "another {what}\nours   {ours}\ntheirs {value}");
        }
        (Err(ours), None) => {
            // An error of the caller has no position: a missing base or model.
            let Some(at) = ours.location() else { return };
            let frame = at.frame.and_then(|n| frames::parse(bytes).into_iter().nth(n as usize));
            let is_nested = at.block.is_some()
                || frame.is_some_and(|f| [frames::UPDATE, frames::INDEX_SET].contains(&f.kind));
            // After one byte of an update or a set there can be two violations, of the structure and of its
            // context; the spec does not order them.
            if theirs["offset"] == at.offset && !is_nested {
                assert_eq!(theirs["error"], ours.name(), "{what}: ours {ours}, theirs {theirs}");
            }
        }
        (Ok(_), None) => panic!("the library takes the {what}, the reference decoder says {theirs}"),
        (Err(ours), Some(_)) => {
            panic!("the reference decoder takes the {what}, the library says {}: {ours}", ours.name())
        }
    }
}
