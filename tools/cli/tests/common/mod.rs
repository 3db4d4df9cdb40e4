//! Test support for the binary.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Codecs of every kind of block.
pub const CODECS: [&str; 14] = [
    "raw",
    "lossless",
    "topk:density=0.01",
    "topk:k=5",
    "topk:density=0.01,scope=global,positions=rice",
    "topk:density=0.01,values=bf16,positions=tokens",
    "topk:density=0.1,values=f16,positions=bitmap",
    "topk:density=0.01,values=pow2",
    "topk:density=0.01,values=sign",
    "topk:density=0.01,values=q4",
    "threshold:at=0.01",
    "sbc:density=0.001",
    "natural",
    "qsgd:bits=4,bucket=512",
];

/// A directory of one test, removed with its contents when dropped.
pub struct Dir(tempfile::TempDir);

impl Dir {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the sorted names of the files.
    pub fn files(&self) -> Vec<String> {
        let names =
            std::fs::read_dir(self.0.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Runs the binary in the directory.
    pub fn run(&self, line: &str) -> Run {
        self.run_with(line, &[])
    }

    /// Runs the binary with an input; spaces separate the words.
    pub fn run_with(&self, line: &str, input: &[u8]) -> Run {
        self.start(line, input, &[])
    }

    /// Runs the binary with environment variables.
    pub fn run_as(&self, line: &str, environment: &[(&str, &str)]) -> Run {
        self.start(line, &[], environment)
    }

    fn start(&self, line: &str, input: &[u8], environment: &[(&str, &str)]) -> Run {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gcodec"))
            .args(line.split_whitespace())
            .env_remove("COLUMNS")
            .envs(environment.iter().copied())
            .current_dir(self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // A command that does not read its input closes the pipe.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        Run::of(line, output)
    }

    /// Runs the binary and expects success.
    pub fn well(&self, line: &str) -> Run {
        let run = self.run(line);
        assert_eq!(run.code, 0, "{line}: {}", run.err);
        run
    }

    /// Runs the binary and expects this exit code and a message that contains `text`.
    pub fn fails(&self, code: i32, text: &str, line: &str) -> Run {
        let run = self.run(line);
        assert_eq!(run.code, code, "{line}: {}{}", run.out(), run.err);
        assert!(run.err.contains(text), "{line}: {}", run.err);
        run
    }
}

/// Result of a run of the binary.
pub struct Run {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub err: String,
}

impl Run {
    fn of(line: &str, output: Output) -> Self {
        let code = output.status.code().unwrap_or_else(|| panic!("{line}: killed"));
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(!err.contains("panicked"), "{line}: {err}");
        Self { code, stdout: output.stdout, err }
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Returns the path of a file of the demo.
pub fn demo(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gradients").join(name);
    path.canonicalize().unwrap().display().to_string()
}

/// Returns the gradient of worker 0 or 1 at one step.
pub fn worker(number: u32) -> String {
    demo(&format!("digits_convnet_step0030_worker{number}.safetensors"))
}

/// Returns the gradient of one worker at step 15, 200 or 600.
pub fn step(number: u32) -> String {
    demo(&format!("resnet_head_step{number:04}_worker0.safetensors"))
}

/// Returns the gradients of two workers at one step, as inputs of a command.
pub fn workers() -> String {
    [0, 1].map(worker).join(" ")
}

/// Returns gradients of three steps, as inputs of a command.
pub fn steps() -> String {
    [15, 200, 600].map(step).join(" ")
}

/// Writes a safetensors file of tensors: name, dtype, shape, bytes.
pub fn write_tensors(path: &Path, tensors: &[(&str, &str, &[u64], &[u8])]) {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        data.extend_from_slice(bytes);
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(path, bytes).unwrap();
}

/// Returns the bytes of `f32` elements.
pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
