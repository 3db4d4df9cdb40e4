//! `gcodec compress` and `gcodec decompress`: files come back byte for byte.

mod common;
#[path = "common/torch.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod torch;

use common::{Dir, f32s, step, worker, write_tensors};
use std::path::Path;
use torch::{archive, dict, legacy, tensor, text};

fn numbers(count: usize, first: f32) -> Vec<u8> {
    f32s(&(0..count).map(|i| first + (i as f32 * 0.37).sin()).collect::<Vec<_>>())
}

/// Writes files of every kind that is compressed.
fn write_files(dir: &Dir) -> Vec<&'static str> {
    for (input, name) in [(worker(0), "worker.safetensors"), (step(15), "step.safetensors")] {
        std::fs::copy(input, dir.path(name)).unwrap();
    }
    // A tensor without elements, and types that gcodec does not read.
    let (w, more) = (numbers(300, 1.0), [1, 2, 3, 4, 5, 6]);
    let tensors =
        [("z", "F32", &[20, 15][..], &w[..]), ("none", "F32", &[0, 3], &[]), ("a", "F8_E8M0", &[6], &more)];
    write_tensors(&dir.path("opaque.safetensors"), &tensors);
    // Padding in the header, and metadata.
    let header = r#"{ "__metadata__": {"format":"pt", "step":"7"}, "w" : {"dtype":"F32","shape":[300],"data_offsets":[0,1200]}}       "#;
    let padded = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &w].concat();
    std::fs::write(dir.path("padded.safetensors"), padded).unwrap();
    for name in ["arrays.npz", "worker.npz"] {
        dir.well(&format!(
            "encode {} -o x.gcu --codec raw",
            if name == "worker.npz" { worker(1) } else { step(200) }
        ));
        dir.well(&format!("decode x.gcu -o {name}"));
    }
    let npy = dir.path("one.npy");
    write_tensors(&dir.path("one.safetensors"), &[("w", "F32", &[30, 10], &w)]);
    dir.well("encode one.safetensors -o x.gcu --codec raw");
    dir.well(&format!("decode x.gcu -o {}", npy.display()));
    // Two names of one tensor, a part of it, and a transposed one.
    let state = dict(vec![
        ("w", tensor("0", 300, 0, &[20, 15], &[15, 1])),
        ("tied", tensor("0", 300, 0, &[20, 15], &[15, 1])),
        ("rows", tensor("0", 300, 15, &[3, 15], &[15, 1])),
        ("t", tensor("1", 300, 0, &[15, 20], &[1, 15])),
        ("what", text("a checkpoint")),
    ]);
    let other = numbers(300, 5.0);
    std::fs::write(dir.path("state.pt"), archive(&state, &[("0", &w), ("1", &other)])).unwrap();
    let state = dict(vec![("w", tensor("7", 300, 0, &[20, 15], &[15, 1]))]);
    std::fs::write(dir.path("old.pt"), legacy(&state, &[("7", 4, &w)])).unwrap();
    std::fs::remove_file(dir.path("x.gcu")).unwrap();
    vec![
        "worker.safetensors",
        "step.safetensors",
        "opaque.safetensors",
        "padded.safetensors",
        "arrays.npz",
        "worker.npz",
        "one.npy",
        "one.safetensors",
        "state.pt",
        "old.pt",
    ]
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn files_of_every_kind_come_back_byte_for_byte() {
    let dir = Dir::new();
    for name in write_files(&dir) {
        let before = bytes(&dir.path(name));
        dir.well(&format!("compress {name} --remove"));
        assert!(!dir.path(name).exists(), "{name}");
        let stream = bytes(&dir.path(&format!("{name}.gcu"))).len();
        assert!(stream < before.len() || before.len() < 4096, "{name}: {stream} of {} bytes", before.len());
        dir.well(&format!("verify {name}.gcu"));
        assert_eq!(dir.well(&format!("decompress {name}.gcu -o -")).stdout, before, "{name}");
        dir.well(&format!("decompress {name}.gcu --remove"));
        assert_eq!(bytes(&dir.path(name)), before, "{name}");
        assert!(!dir.path(&format!("{name}.gcu")).exists(), "{name}");
    }
}

#[test]
fn streams_are_those_of_other_commands_too() {
    let dir = Dir::new();
    std::fs::copy(worker(0), dir.path("w.safetensors")).unwrap();
    dir.well("compress w.safetensors");
    dir.well("diff w.safetensors w.safetensors.gcu");
    // What is decoded is a file of its own, without what was around the tensors of the other one.
    dir.well("decode w.safetensors.gcu -o d.safetensors");
    let header = String::from_utf8_lossy(&bytes(&dir.path("d.safetensors"))[..2000]).into_owned();
    assert!(!header.contains("gcodec-source"), "{header}");
    write_tensors(
        &dir.path("o.safetensors"),
        &[("a", "F8_E8M0", &[3], &[1, 2, 3]), ("w", "F32", &[1], &[0; 4])],
    );
    dir.well("compress o.safetensors");
    let out = dir.well("inspect o.safetensors.gcu --tensors").out();
    assert!(out.contains("F8_E8M0"), "{out}");
}

/// `GCODEC_FILES=FOLDER:FILE:.. cargo test -p gcodec-cli --test checkpoints files_of_the_list -- --nocapture`
/// compresses real files, and those in real folders. Each comes back byte for byte, or is refused with a
/// reason and left.
#[test]
fn files_of_the_list_come_back_or_are_refused() {
    let Some(list) = std::env::var_os("GCODEC_FILES") else {
        return println!("skipped: GCODEC_FILES names no files");
    };
    let dir = Dir::new();
    let mut files = Vec::new();
    let paths = std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty());
    paths.for_each(|path| add_files(&path, &mut files));
    let (mut back, mut refused) = (0, 0);
    for file in &files {
        let command = |args: &[&std::ffi::OsStr]| {
            let mut gcodec = std::process::Command::new(env!("CARGO_BIN_EXE_gcodec"));
            let output = gcodec.args(args).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (stream, result) = (dir.path("stream.gcu"), dir.path("result"));
        let [stream_name, result_name] = [&stream, &result].map(|path| path.as_os_str());
        let before = bytes(file);
        let (code, error) = command(&["compress".as_ref(), file.as_os_str(), "-o".as_ref(), stream_name]);
        if code != Some(0) {
            assert!(matches!(code, Some(2 | 3)) && error.contains("error: "), "{}: {error}", file.display());
            assert!(!stream.exists(), "{}", file.display());
            println!("refused {} {}: {}", before.len(), file.display(), error.trim());
            refused += 1;
            continue;
        }
        let len = bytes(&stream).len();
        let (code, error) = command(&["decompress".as_ref(), stream_name, "-o".as_ref(), result_name]);
        assert_eq!(code, Some(0), "{}: {error}", file.display());
        assert!(bytes(&result) == before && bytes(file) == before, "{}", file.display());
        let share = len as f64 / before.len() as f64 * 100.0;
        println!("back {} -> {len} ({share:.1} %) {}", before.len(), file.display());
        [&stream, &result].iter().for_each(|path| std::fs::remove_file(path).unwrap());
        back += 1;
    }
    println!("{back} files came back byte for byte, {refused} were refused");
    assert!(back > 0, "no file of GCODEC_FILES was compressed");
}

/// Adds a file, or those of a folder, in the order of their names.
fn add_files(path: &Path, files: &mut Vec<std::path::PathBuf>) {
    let Ok(entries) = std::fs::read_dir(path) else { return files.push(path.to_owned()) };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().for_each(|path| add_files(path, files));
}

#[test]
fn elements_in_another_order_are_coded_as_they_lie() {
    let dir = Dir::new();
    // More elements than may lie around tensors, in Fortran order, and as channels_last has them.
    let (rows, columns) = (1500u32, 3000u32);
    let elements = numbers(4_500_000, 1.0);
    let text = format!("{{'descr': '<f4', 'fortran_order': True, 'shape': ({rows}, {columns}), }}\n");
    let head = [b"\x93NUMPY\x01\0", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
    std::fs::write(dir.path("f.npy"), [&head[..], &elements].concat()).unwrap();
    let (shape, strides) = ([300, 5, 1500, 2], [15_000, 1, 10, 5]);
    let state = dict(vec![("w", tensor("0", 4_500_000, 0, &shape, &strides))]);
    std::fs::write(dir.path("w.pt"), archive(&state, &[("0", &elements)])).unwrap();
    for (name, stored, order) in
        [("f.npy", "3000x1500", "{\"f\":[1,0]}"), ("w.pt", "300x1500x2x5", "{\"w\":[0,2,3,1]}")]
    {
        let before = bytes(&dir.path(name));
        dir.well(&format!("compress {name} --remove --effort fast"));
        let json = dir.well(&format!("inspect {name}.gcu --json")).out();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["metadata"]["gcodec-order"], order, "{json}");
        assert_eq!(json["updates"][0]["label"], "lossless:effort=fast", "{json}");
        let out = dir.well(&format!("inspect {name}.gcu --tensors")).out();
        assert!(out.contains(stored), "{out}");
        dir.well(&format!("decompress {name}.gcu"));
        assert!(bytes(&dir.path(name)) == before, "{name}");
    }
    let error = dir.fails(2, "possible values: fast, default", "compress f.npy --effort most").err;
    assert!(error.contains("--effort"), "{error}");
}

#[test]
fn folders_are_compressed_whole_and_can_be_repeated() {
    let dir = Dir::new();
    let names = write_files(&dir);
    std::fs::create_dir_all(dir.path("run/deep")).unwrap();
    let place =
        |name: &str| dir.path(if name.len().is_multiple_of(2) { "run" } else { "run/deep" }).join(name);
    for name in &names {
        std::fs::rename(dir.path(name), place(name)).unwrap();
    }
    std::fs::write(dir.path("run/config.json"), "{\"hidden\": 64}").unwrap();
    std::fs::write(dir.path("run/empty"), "").unwrap();
    // A file that was not copied to its end.
    let whole = bytes(&place("worker.safetensors"));
    std::fs::write(dir.path("run/cut.safetensors"), &whole[..whole.len() / 2]).unwrap();
    let before: Vec<_> = names.iter().map(|name| bytes(&place(name))).collect();
    let run = dir.well("compress run");
    assert!(
        run.err.contains("10 files") && run.err.contains("3 other files are left as they are"),
        "{}",
        run.err
    );
    assert!(run.err.contains("cut.safetensors: left as it is: "), "{}", run.err);
    dir.fails(3, "cut.safetensors", "compress run/cut.safetensors");
    // Again: each stream is compared with its file. A stopped command left some of them.
    std::fs::remove_file(dir.path("run/config.json")).unwrap();
    let stream = |name: &str| place(name).with_file_name(format!("{name}.gcu"));
    std::fs::remove_file(stream(names[3])).unwrap();
    let again = dir.well("compress run --remove").err;
    assert!(again.contains("GB/s; 9 were there before, and compared"), "{again}");
    assert!(names.iter().all(|name| !place(name).exists() && stream(name).exists()));
    dir.well("decompress run -o back");
    for (name, before) in names.iter().zip(&before) {
        let back = dir.path("back").join(place(name).strip_prefix(dir.path("run")).unwrap());
        assert!(bytes(&back) == *before, "{name}");
    }
    dir.well("decompress run --remove");
    assert!(names.iter().zip(&before).all(|(name, before)| bytes(&place(name)) == *before));
    dir.fails(2, "there is no stream of `gcodec compress`", "decompress run");
}

#[test]
fn a_folder_of_results_has_the_other_files_too() {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.path("m/deep")).unwrap();
    write_tensors(&dir.path("m/w.safetensors"), &[("w", "F32", &[300], &numbers(300, 1.0))]);
    std::fs::write(dir.path("m/config.json"), "{}").unwrap();
    std::fs::write(dir.path("m/deep/merges.txt"), "a b").unwrap();
    // The folder of the results may be one of those of the inputs.
    for out in ["small".to_owned(), "m/small".to_owned(), dir.path("m/small").display().to_string()] {
        let run = dir.well(&format!("compress m -o {out}"));
        assert!(
            run.err.contains("1 file: ") && run.err.contains("; 2 other files were copied"),
            "{}",
            run.err
        );
        let names = ["w.safetensors.gcu", "config.json", "deep/merges.txt"];
        assert!(names.iter().all(|name| dir.path(&out).join(name).is_file()), "{out}");
        assert_eq!(std::fs::read_dir(dir.path(&out)).unwrap().count(), 3);
    }
    std::fs::remove_dir_all(dir.path("m/small")).unwrap();
    let back = dir.well("decompress small -o back").err;
    assert!(back.contains("; 2 other files were copied"), "{back}");
    for name in ["w.safetensors", "config.json", "deep/merges.txt"] {
        assert_eq!(bytes(&dir.path("back").join(name)), bytes(&dir.path("m").join(name)), "{name}");
    }
    // Repeated, and with another file in the way.
    dir.well("compress m -o small");
    std::fs::write(dir.path("small/config.json"), "{\"other\": 1}").unwrap();
    dir.fails(2, "config.json is there, and is another file; --force", "compress m -o small");
    dir.well("compress m -o small --force");
    assert_eq!(bytes(&dir.path("small/config.json")), b"{}");
}

#[test]
fn nothing_is_lost_where_something_is_there() {
    let dir = Dir::new();
    write_tensors(&dir.path("w.safetensors"), &[("w", "F32", &[300], &numbers(300, 1.0))]);
    write_tensors(&dir.path("v.safetensors"), &[("w", "F32", &[300], &numbers(300, 2.0))]);
    dir.well("compress w.safetensors");
    // Another stream, and another file.
    let stream = bytes(&dir.path("w.safetensors.gcu"));
    let before = dir.files();
    let refusals = [
        (
            2,
            "is not the stream of this file; --force",
            "compress v.safetensors -o w.safetensors.gcu --remove",
        ),
        (2, "is another file; --force", "decompress w.safetensors.gcu -o v.safetensors --remove"),
        (2, "it is a stream by its name", "compress w.safetensors.gcu"),
        (2, "does not end in .gcu; if it is a stream, -o", "decompress w.safetensors"),
        (2, "a file is needed, not standard input", "compress - -o x.gcu"),
        (2, "two files would have this result", "compress v.safetensors w.safetensors -o x.gcu"),
        (2, "the output is also an input", "compress w.safetensors -o w.safetensors --force --remove"),
        (
            2,
            "the output is also an input",
            "decompress w.safetensors.gcu -o w.safetensors.gcu --force --remove",
        ),
        (2, "--remove is for results in files", "compress w.safetensors -o - --remove"),
        (2, "--remove is for results in files", "decompress w.safetensors.gcu -o /dev/null --remove"),
        (74, "nothing.npy", "compress nothing.npy"),
    ];
    for (code, words, line) in refusals {
        dir.fails(code, words, line);
        assert_eq!(dir.files(), before, "{line}");
        assert!(bytes(&dir.path("w.safetensors.gcu")) == stream, "{line}");
    }
    dir.well("decompress w.safetensors.gcu -o /dev/null");
    // Files of one name in two folders.
    for folder in ["a", "b"] {
        std::fs::create_dir(dir.path(folder)).unwrap();
        std::fs::copy(dir.path("v.safetensors"), dir.path(folder).join("v.safetensors")).unwrap();
    }
    dir.fails(2, "two files would have this result", "compress a b -o all --force --remove");
    assert!(dir.path("a/v.safetensors").exists() && dir.path("b/v.safetensors").exists());
    dir.well("compress v.safetensors -o w.safetensors.gcu --force");
    dir.well("decompress w.safetensors.gcu -o w.safetensors --force");
    assert!(bytes(&dir.path("w.safetensors")) == bytes(&dir.path("v.safetensors")));
    // A deflated archive, a file without tensors, a stream of `encode`.
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    zip.start_file("w.npy", options).unwrap();
    dir.well("encode v.safetensors -o v.gcu --codec raw");
    dir.well("decode v.gcu -o v.npy");
    std::io::Write::write_all(&mut zip, &bytes(&dir.path("v.npy"))).unwrap();
    std::fs::write(dir.path("deflated.npz"), zip.finish().unwrap().into_inner()).unwrap();
    std::fs::write(dir.path("note.txt"), "no tensors").unwrap();
    dir.fails(2, "they are deflated", "compress deflated.npz");
    dir.fails(3, "note.txt", "compress note.txt");
    dir.fails(2, "`gcodec decode` decodes its updates", "decompress v.gcu -o v2.safetensors");
}

#[test]
fn damaged_and_hostile_streams_leave_nothing() {
    let dir = Dir::new();
    write_tensors(&dir.path("w.safetensors"), &[("w", "F32", &[300], &numbers(300, 1.0))]);
    dir.well("compress w.safetensors -o good.gcu");
    let good = bytes(&dir.path("good.gcu"));
    for at in (0..good.len()).step_by(61) {
        let mut bad = good.clone();
        bad[at] ^= 4;
        std::fs::write(dir.path("bad.gcu"), bad).unwrap();
        let run = dir.run("decompress bad.gcu -o out");
        assert!(run.code == 3 || run.code == 2, "byte {at}: {} {}", run.code, run.err);
        assert!(!dir.path("out").exists(), "byte {at}");
    }
    let hash = "0".repeat(64);
    let around = |bytes: u64, gaps: &str, pieces: &str| {
        format!(r#"{{"bytes":{bytes},"blake3":"{hash}","gaps":{gaps},"pieces":{pieces}}}"#)
    };
    let most = u64::MAX;
    let hostile = [
        "7".to_owned(),
        "{}".to_owned(),
        around(1200, "[0,0]", r#"{"text":""}"#),
        around(1199, "[0,0]", r#"{"text":""}"#),
        around(1200, "[0]", r#"{"text":""}"#),
        around(1200, "[0,0,0]", r#"{"text":""}"#),
        around(1201, "[1,0]", r#"{"text":""}"#),
        around(most, &format!("[{most},{most}]"), r#"{"text":"abc"}"#),
        around(1200, "[0,0]", r#"{"base64":"%%"}"#),
        around(1200, "[0,0]", r#"{"other":"x"}"#),
        around(1200, "[-1,0]", r#"{"text":"x"}"#),
    ];
    for value in hostile {
        let words = ["encode", "w.safetensors", "-o", "h.gcu", "--codec", "raw", "--meta"];
        let value = format!("gcodec-source={value}");
        let made = std::process::Command::new(env!("CARGO_BIN_EXE_gcodec"))
            .current_dir(dir.path(""))
            .args(words)
            .arg(&value)
            .status();
        assert!(made.unwrap().success());
        dir.fails(3, "gcodec-source", "decompress h.gcu -o out");
        assert!(!dir.path("out").exists(), "{value}");
    }
}
