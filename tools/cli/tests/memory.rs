//! Files that are larger than the memory a command may have.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(missing_docs)]

use std::fs::File;
#[cfg(feature = "store")]
use std::io::Read;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Threads of each command, and elements of each tensor: four blocks of 4 Mi.
const THREADS: u64 = 2;
const LEN: u64 = 16 << 20;

/// Memory that is reserved and not used, which the limit of the system counts: stacks, ends of large buffers.
const RESERVED: u64 = 32 << 20;

/// Returns a limit on memory: 64 MB and four times the largest block for each thread.
fn limit(block_bytes: u64) -> u64 {
    64_000_000 + 4 * block_bytes * THREADS + RESERVED
}

/// A folder on a disk: in a file system in memory, a file without content can take memory when it is read.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Writes the header of a file of bf16 tensors with `len` elements, and returns where their elements begin.
fn begin(file: &mut File, tensors: u64, len: u64) -> u64 {
    let entry = |i: u64| {
        let (start, end) = (i * len * 2, (i + 1) * len * 2);
        format!("\"w{i}\":{{\"dtype\":\"BF16\",\"shape\":[{len}],\"data_offsets\":[{start},{end}]}}")
    };
    let mut header = format!("{{{}}}", (0..tensors).map(entry).collect::<Vec<_>>().join(","));
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    8 + header.len() as u64
}

/// Writes a file of tensors whose elements are holes, except for the first of each tensor. Returns its
/// length; `None` where the file system has no holes.
fn sparse(path: &Path, tensors: u64) -> Option<u64> {
    let mut file = File::create(path).unwrap();
    let data = begin(&mut file, tensors, LEN);
    for i in 0..tensors {
        file.seek(SeekFrom::Start(data + i * LEN * 2)).unwrap();
        file.write_all(&[0x80, 0x3f]).unwrap();
    }
    let len = data + tensors * LEN * 2;
    file.set_len(len).unwrap();
    let is_sparse = file.metadata().unwrap().blocks() * 512 < len / 8;
    if !is_sparse {
        eprintln!("skipped: the file system has no sparse files");
    }
    is_sparse.then_some(len)
}

/// Writes a file of tensors with the elements of a real gradient, over and over. `changed`: one element in so
/// many has another last bit.
fn filled(path: &Path, tensors: u64, changed: Option<usize>) {
    filled_with(path, tensors, LEN, changed);
}

/// As [`filled`], with tensors of `len` elements, a multiple of [`LEN`].
fn filled_with(path: &Path, tensors: u64, len: u64, changed: Option<usize>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gradients");
    let gradient = std::fs::read(folder.join("digits_convnet_step0030_worker0.safetensors")).unwrap();
    let header = u64::from_le_bytes(gradient[..8].try_into().unwrap()) as usize;
    // The upper halves of 32-bit floats.
    let once = gradient[8 + header..].chunks_exact(4).flat_map(|x| [x[2], x[3]]);
    let mut elements: Vec<u8> = once.cycle().take(2 * LEN as usize).collect();
    if let Some(changed) = changed {
        elements.iter_mut().step_by(2 * changed).for_each(|byte| *byte ^= 1);
    }
    let mut file = File::create(path).unwrap();
    begin(&mut file, tensors, len);
    (0..tensors * len / LEN).for_each(|_| file.write_all(&elements).unwrap());
}

/// Runs the binary with a limit on its data: allocations, and the stacks of its threads.
fn run(dir: &Path, line: &str, limit: u64) {
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -d {}; exec \"$0\" \"$@\"", limit / 1024))
        .arg(env!("CARGO_BIN_EXE_gcodec"))
        .args(line.split_whitespace())
        .env("RAYON_NUM_THREADS", THREADS.to_string())
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}, with {limit} bytes of memory: {}: {text}", output.status);
}

fn path(dir: &tempfile::TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}

#[test]
fn a_file_of_16_gb_is_encoded_and_decoded_in_little_memory() {
    let dir = folder();
    let Some(len) = sparse(&path(&dir, "a.safetensors"), 480) else { return };
    assert!(len > 16_000_000_000);
    let limit = limit(8 << 20);
    run(dir.path(), "encode a.safetensors -o a.gcu --codec lossless", limit);
    run(dir.path(), "verify a.gcu", limit);
    run(dir.path(), "inspect a.gcu", limit);
    // To nowhere: a file would not be sparse.
    run(dir.path(), "decode a.gcu -o -", limit);
}

#[test]
fn updates_larger_than_the_limit_are_encoded_compared_and_applied() {
    let dir = folder();
    filled(&path(&dir, "a.safetensors"), 16, None);
    // Many elements change, but fewer than those from which on all of them are sent.
    filled(&path(&dir, "b.safetensors"), 16, Some(6));
    for codec in ["raw", "natural", "int8", "sign", "lossless"] {
        run(dir.path(), &format!("encode b.safetensors -o b.gcu --codec {codec}"), limit(8 << 20));
    }
    run(dir.path(), "diff b.safetensors b.gcu", limit(8 << 20));
    run(dir.path(), "diff b.gcu b.gcu", limit(8 << 20));
    run(dir.path(), "digest b.safetensors", limit(8 << 20));
    run(dir.path(), "digest b.gcu", limit(8 << 20));
    run(dir.path(), "compress b.safetensors -o whole.gcu", limit(8 << 20));
    run(dir.path(), "decompress whole.gcu -o -", limit(8 << 20));
    run(dir.path(), "inspect b.gcu --against b.safetensors", limit(8 << 20));
    // Blocks of deltas have 16 Mi elements.
    let limit = limit(32 << 20);
    run(dir.path(), "encode b.safetensors -o d.gcu --codec delta --base a.safetensors", limit);
    run(dir.path(), "decode d.gcu -o - --base a.safetensors", limit);
    run(dir.path(), "diff b.safetensors d.gcu --base a.safetensors", limit);
    run(dir.path(), "digest d.gcu --base a.safetensors", limit);
}

#[test]
fn a_tensor_larger_than_the_limit_is_encoded_compared_and_applied() {
    let dir = folder();
    filled_with(&path(&dir, "a.safetensors"), 1, 16 * LEN, None);
    filled_with(&path(&dir, "b.safetensors"), 1, 16 * LEN, Some(6));
    let limit = limit(32 << 20);
    run(dir.path(), "encode b.safetensors -o d.gcu --codec delta --base a.safetensors", limit);
    run(dir.path(), "decode d.gcu -o - --base a.safetensors", limit);
    run(dir.path(), "diff b.safetensors d.gcu --base a.safetensors", limit);
}

#[test]
fn updates_larger_than_the_limit_are_measured() {
    let dir = folder();
    filled(&path(&dir, "a.safetensors"), 16, None);
    let codecs = ["raw", "natural", "int8", "sign", "lossless"].map(|codec| format!("--codec {codec}"));
    // The speed of the memory is measured with a buffer of 256 MiB.
    let line = format!("bench a.safetensors --runs 1 {}", codecs.join(" "));
    run(dir.path(), &line, limit(8 << 20) + (256 << 20));
}

#[test]
fn updates_with_residuals_larger_than_the_limit_are_encoded() {
    let dir = folder();
    filled(&path(&dir, "a.safetensors"), 16, None);
    // The blocks of one part, and the residual of one tensor in f32 and its successor.
    let limit = limit(8 << 20) + (64 << 20) + 2 * 4 * LEN;
    for codec in ["natural", "int8"] {
        let line = format!("encode a.safetensors -o a.gcu --codec {codec} --feedback {codec}.safetensors");
        run(dir.path(), &line, limit);
        run(dir.path(), &line, limit);
    }
}

#[test]
fn a_run_whose_weights_are_larger_than_the_limit_is_audited() {
    let dir = folder();
    for (name, changed) in [("a", None), ("b", Some(6)), ("c", Some(9))] {
        filled(&path(&dir, &format!("{name}.safetensors")), 16, changed);
    }
    let limit = limit(32 << 20);
    let encode = "encode b.safetensors c.safetensors -o run.gcu --codec delta --base a.safetensors";
    run(dir.path(), encode, limit);
    run(dir.path(), "audit run.gcu --base a.safetensors", limit);
    run(dir.path(), "audit a.safetensors b.safetensors c.safetensors", limit);
}

/// Compares the elements of two files, which are at their ends.
#[cfg(feature = "store")]
#[track_caller]
fn assert_equal(dir: &tempfile::TempDir, one: &str, other: &str) {
    let mut files = [one, other].map(|name| File::open(path(dir, &format!("{name}.safetensors"))).unwrap());
    let mut chunks = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let bytes = 16 * LEN * 2;
    files.iter_mut().for_each(|file| _ = file.seek(SeekFrom::End(-(bytes as i64))).unwrap());
    for at in 0..bytes >> 20 {
        files.iter_mut().zip(&mut chunks).for_each(|(file, chunk)| file.read_exact(chunk).unwrap());
        assert!(chunks[0] == chunks[1], "{one} and {other}, MiB {at}");
    }
}

/// Versions of 512 MB, in 16 tensors or in one.
#[cfg(feature = "store")]
#[test]
fn versions_larger_than_the_limit_are_published_pulled_and_folded() {
    for tensors in [16, 1] {
        let dir = folder();
        for (name, changed) in [("a", None), ("b", Some(6)), ("c", Some(9))] {
            let path = path(&dir, &format!("{name}.safetensors"));
            filled_with(&path, tensors, 16 / tensors * LEN, changed);
        }
        let limit = limit(32 << 20);
        run(dir.path(), "publish st a.safetensors", limit);
        // Without a base, the version before is built from the store.
        run(dir.path(), "publish st b.safetensors", limit);
        run(dir.path(), "pull st -o new.safetensors", limit);
        assert_equal(&dir, "new", "b");
        run(dir.path(), "publish st c.safetensors --base new.safetensors", limit);
        run(dir.path(), "fold st 1 3", limit);
        run(dir.path(), "pull st -o old.safetensors --version 1", limit);
        run(dir.path(), "pull st -o new.safetensors --base old.safetensors", limit);
        assert_equal(&dir, "new", "c");
        // The anchor and two deltas, one after the other.
        std::fs::remove_dir_all(path(&dir, "st").join("folds")).unwrap();
        run(dir.path(), "pull st -o new.safetensors", limit);
        assert_equal(&dir, "new", "c");
        run(dir.path(), "pull st -o one.safetensors --tensor w0", limit);
    }
}

#[test]
fn a_tensor_takes_little_memory_beside_its_elements() {
    const TENSORS: u64 = 200_000;
    let dir = folder();
    let mut file = File::create(path(&dir, "a.safetensors")).unwrap();
    begin(&mut file, TENSORS, 4);
    file.write_all(&(0..TENSORS).flat_map(u64::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let small = limit(8 << 20) + 1000 * TENSORS;
    run(dir.path(), "encode a.safetensors -o a.gcu --codec lossless", small);
    run(dir.path(), "verify a.gcu", small);
    run(dir.path(), "decode a.gcu -o b.safetensors", small);
    let report = limit(8 << 20) + 2000 * TENSORS;
    run(dir.path(), "diff a.safetensors b.safetensors", report);
    run(dir.path(), "diff a.gcu b.safetensors", report);
    run(dir.path(), "digest a.gcu", report);
    run(dir.path(), "inspect a.gcu", report);
}

#[test]
fn updates_larger_than_the_limit_are_summed() {
    let dir = folder();
    filled(&path(&dir, "a.safetensors"), 6, None);
    let methods = [
        ("natural", "dense"),
        ("topk:density=0.01", "dense"),
        ("topk:density=0.01", "sparse"),
        ("raw", "add"),
    ];
    // Blocks of sums have 4 Mi elements of f32.
    let limit = limit(16 << 20);
    for (codec, method) in methods {
        for sender in [0, 1] {
            let line = format!("encode a.safetensors -o {sender}.gcu --codec {codec} --sender {sender}");
            run(dir.path(), &line, limit);
        }
        let reduce = format!("reduce 0.gcu 1.gcu --method {method} -o");
        run(dir.path(), &format!("{reduce} sum.gcu"), limit);
        if method == "dense" {
            run(dir.path(), &format!("{reduce} sum.safetensors --mean"), limit);
            run(dir.path(), &format!("{reduce} down.gcu --mean --codec int8"), limit);
        }
    }
    // One sparse block, larger than the limit when it is expanded.
    filled_with(&path(&dir, "b.safetensors"), 1, 6 * LEN, None);
    for sender in [0, 1] {
        let line =
            format!("encode b.safetensors -o {sender}.gcu --codec topk:density=0.01 --sender {sender}");
        run(dir.path(), &line, limit);
    }
    run(dir.path(), "reduce 0.gcu 1.gcu -o sum.gcu", limit);
    run(dir.path(), "reduce 0.gcu 1.gcu -o sum.safetensors --mean", limit);
}
