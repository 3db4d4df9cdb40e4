//! Distributed checkpoints of PyTorch, as every command sees them.

#[path = "common/torch.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod torch;

mod common;

use common::{Dir, f32s, write_tensors};
use torch::{Chunk, checkpoint};

/// A tensor in rows, one in columns of three files, and one that is whole.
fn write(dir: &Dir, name: &str, last: f32) {
    let chunk = |file, offsets, sizes, values| Chunk { file, offsets, sizes, values };
    checkpoint(
        &dir.path(name),
        &[
            (
                "rows",
                &[3, 2],
                vec![
                    chunk("__0_0.distcp", &[0, 0], &[2, 2], &[0.0, 1.0, 2.0, 3.0]),
                    chunk("__1_0.distcp", &[2, 0], &[1, 2], &[4.0, last]),
                ],
            ),
            (
                "columns",
                &[2, 3],
                vec![
                    chunk("__0_0.distcp", &[0, 0], &[2, 1], &[0.0, 3.0]),
                    chunk("__2_0.distcp", &[0, 2], &[2, 1], &[2.0, 5.0]),
                    chunk("__1_0.distcp", &[0, 1], &[2, 1], &[1.0, 4.0]),
                ],
            ),
            ("whole", &[], vec![chunk("__0_0.distcp", &[], &[], &[7.0])]),
        ],
    );
}

#[test]
fn every_command_reads_the_folder() {
    let dir = Dir::new();
    write(&dir, "a", 5.0);
    write(&dir, "b", 6.0);
    let six: Vec<f32> = (0..6u8).map(f32::from).collect();
    let (six, seven) = (f32s(&six), f32s(&[7.0]));
    let tensors: [(&str, &str, &[u64], &[u8]); 3] =
        [("rows", "F32", &[3, 2], &six), ("columns", "F32", &[2, 3], &six), ("whole", "F32", &[], &seven)];
    write_tensors(&dir.path("a.safetensors"), &tensors);

    assert!(dir.well("diff a a.safetensors").out().contains("equal: 3 tensors"));
    assert!(dir.well("diff a/.metadata a").out().contains("equal: 3 tensors"));
    assert_eq!(dir.run("diff a b").code, 1);
    dir.well("encode a -o a.gcu --codec lossless");
    assert!(dir.well("diff a.gcu a.safetensors").out().contains("equal: 3 tensors"));
    dir.well("encode b -o b.gcu --codec delta --base a");
    assert!(dir.well("diff b.gcu b --base a").out().contains("equal: 3 tensors"));
    let audit = dir.well("audit a b").out();
    assert!(audit.contains("1 step, 13 elements") && audit.contains("rows"), "{audit}");

    let run = dir.well("inspect a --tensors");
    for part in ["rows", "3x2", "columns", "2x3", "scalar", "1 chunk in __0_0.distcp"] {
        assert!(run.out().contains(part), "{part}: {}", run.out());
    }
    assert!(
        run.out().contains("columns: 3 chunks along dimension 1 in __0_0.distcp and 2 more"),
        "{}",
        run.out()
    );
    assert!(run.err.contains("\"step\" left out") && !run.err.contains("other file"), "{}", run.err);
    let json = dir.well("inspect a/.metadata --tensor rows --json").out();
    assert!(json.contains("2 chunks along dimension 0"), "{json}");
    // With files that are of no checkpoint, and of an earlier one.
    std::fs::write(dir.path("a/other.safetensors"), std::fs::read(dir.path("a.safetensors")).unwrap())
        .unwrap();
    std::fs::write(dir.path("a/__3_0.distcp"), "old").unwrap();
    let run = dir.well("inspect a --csv");
    assert_eq!(run.out().lines().count(), 3, "{}", run.out());
    assert!(run.err.contains("1 file .distcp left out"), "{}", run.err);
}

#[test]
fn what_is_missing_is_one_row_with_its_reason() {
    let dir = Dir::new();
    write(&dir, "a", 5.0);
    std::fs::remove_file(dir.path("a/__2_0.distcp")).unwrap();
    let missing =
        "tensor \"columns\": its chunk at [0, 2] in __2_0.distcp at byte 0x0: the file is not there";
    let run = dir.fails(3, missing, "inspect a --tensors");
    for part in ["rows", "whole", "opaque: columns (f32): its chunk at [0, 2] in __2_0.distcp"] {
        assert!(run.out().contains(part), "{part}: {}", run.out());
    }
    dir.fails(3, missing, "encode a -o x.gcu --codec raw");
    // A chunk that no place is given for, chunks that overlap, and one of another shape.
    let chunk = |offsets, sizes, values| Chunk { file: "__0_0.distcp", offsets, sizes, values };
    checkpoint(
        &dir.path("b"),
        &[
            ("short", &[3], vec![chunk(&[0], &[2], &[0.0, 1.0])]),
            ("twice", &[3], vec![chunk(&[0], &[2], &[0.0, 1.0]), chunk(&[1], &[2], &[1.0, 2.0])]),
            ("good", &[1], vec![chunk(&[0], &[1], &[8.0])]),
        ],
    );
    let json = dir.fails(3, "and 1 more fault", "inspect b --json").out();
    for part in ["its chunks have 8 of its 12 bytes", "its chunks at [0] and [1] overlap"] {
        assert!(json.contains(part), "{part}: {json}");
    }
}

#[test]
fn files_of_another_save_are_refused() {
    let dir = Dir::new();
    write(&dir, "a", 5.0);
    let part = dir.path("a/__1_0.distcp");
    let bytes = std::fs::read(&part).unwrap();
    for other in [&bytes[..bytes.len() - 1], &[&bytes[..], b"\0"].concat()] {
        std::fs::write(&part, other).unwrap();
        for command in ["inspect a", "diff a a", "encode a -o x.gcu --codec raw"] {
            dir.fails(3, "the files are of different saves, or damaged", command);
        }
    }
    dir.fails(3, "give its folder, or the file .metadata", "inspect a/__0_0.distcp");
    std::fs::remove_file(dir.path("a/.metadata")).unwrap();
    dir.fails(3, "without its file .metadata", "inspect a");
    // A path that leaves the folder.
    let chunk = Chunk { file: "../x.distcp", offsets: &[0], sizes: &[1], values: &[1.0] };
    std::fs::create_dir(dir.path("c")).unwrap();
    checkpoint(&dir.path("c"), &[("w", &[1], vec![chunk])]);
    dir.fails(3, "no file of the checkpoint's folder", "inspect c");
}

/// As `write`, in a stream.
fn write_streamed(dir: &Dir, name: &str, last: f32) {
    let chunk = |offsets, sizes| Chunk { file: "__0_0.gcu", offsets, sizes, values: &[] };
    checkpoint(
        &dir.path(name),
        &[
            ("rows", &[3, 2], vec![chunk(&[0, 0], &[2, 2]), chunk(&[2, 0], &[1, 2])]),
            (
                "columns",
                &[2, 3],
                vec![
                    chunk(&[0, 0], &[2, 1]),
                    chunk(&[0, 2], &[2, 1]),
                    Chunk { file: "__1_0.gcu", ..chunk(&[0, 1], &[2, 1]) },
                ],
            ),
            ("whole", &[], vec![chunk(&[], &[])]),
        ],
    );
    let tensors: [(&str, &[u64], &[f32]); 6] = [
        ("rows[0, 0]", &[2, 2], &[0.0, 1.0, 2.0, 3.0]),
        ("rows[2, 0]", &[1, 2], &[4.0, last]),
        ("columns[0, 0]", &[2, 1], &[0.0, 3.0]),
        ("columns[0, 2]", &[2, 1], &[2.0, 5.0]),
        ("whole[]", &[], &[7.0]),
        ("columns[0, 1]", &[2, 1], &[1.0, 4.0]),
    ];
    let bytes = tensors.map(|(.., values)| f32s(values));
    let all: Vec<(&str, &str, &[u64], &[u8])> = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape, _), bytes)| (*name, "F32", *shape, &bytes[..]))
        .collect();
    for (file, of) in [("__0_0.gcu", &all[..5]), ("__1_0.gcu", &all[5..])] {
        write_tensors(&dir.path("part.safetensors"), of);
        dir.well(&format!("encode part.safetensors -o {name}/{file} --codec lossless"));
    }
}

#[test]
fn tensors_in_streams_are_those_of_the_other_files() {
    let dir = Dir::new();
    write(&dir, "plain", 5.0);
    write_streamed(&dir, "a", 5.0);
    write_streamed(&dir, "b", 6.0);
    for equal in ["diff a plain", "diff plain a/.metadata", "diff a a"] {
        assert!(dir.well(equal).out().contains("equal: 3 tensors"), "{equal}");
    }
    assert_eq!(dir.run("diff a b").code, 1);
    let run = dir.well("inspect a --tensors");
    assert!(
        run.out().contains("columns: 3 chunks along dimension 1 in __0_0.gcu and 1 more"),
        "{}",
        run.out()
    );
    assert!(dir.well("inspect a --json").out().contains("\"PyTorch distributed checkpoint\""));
    dir.well("encode a -o again.gcu --codec raw");
    assert!(dir.well("diff again.gcu plain").out().contains("equal: 3 tensors"));
}

#[test]
fn streams_that_are_damaged_missing_or_of_another_save_are_told() {
    let dir = Dir::new();
    write_streamed(&dir, "a", 5.0);
    let path = dir.path("a/__0_0.gcu");
    let whole = std::fs::read(&path).unwrap();
    // Any byte: the whole is refused, or a tensor is a fault. Bytes of the index may not matter.
    let mut told = 0;
    for at in 0..whole.len() {
        let mut wrong = whole.clone();
        wrong[at] ^= 0x10;
        std::fs::write(&path, &wrong).unwrap();
        let run = dir.run("diff a a");
        assert!(matches!(run.code, 0 | 3 | 4), "{at}: {} {}", run.code, run.err);
        told += usize::from(run.code != 0);
    }
    assert!(told > whole.len() / 2, "{told} of {}", whole.len());
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    dir.fails(3, "__0_0.gcu", "inspect a");
    // A stream of other tensors: each chunk says so.
    std::fs::copy(dir.path("a/__1_0.gcu"), &path).unwrap();
    let what = "tensor \"rows\": its chunk at [0, 0] in __0_0.gcu, update 0: the stream has no such tensor";
    dir.fails(3, what, "inspect a");
    write_tensors(&dir.path("x.safetensors"), &[("whole[]", "F32", &[1], &f32s(&[7.0]))]);
    dir.well("encode x.safetensors -o a/__0_0.gcu --codec lossless");
    dir.fails(3, "and 2 more faults", "inspect a");
    std::fs::write(&path, &whole).unwrap();
    std::fs::remove_file(dir.path("a/__1_0.gcu")).unwrap();
    dir.fails(3, "in __1_0.gcu, update 0: the file is not there", "encode a -o x.gcu --codec raw");
}

#[test]
fn damaged_metadata_ends_well() {
    let dir = Dir::new();
    write(&dir, "a", 5.0);
    let whole = std::fs::read(dir.path("a/.metadata")).unwrap();
    for at in (60..whole.len()).step_by(whole.len() / 24) {
        let mut wrong = whole.clone();
        wrong[at] ^= 0x55;
        std::fs::write(dir.path("a/.metadata"), &wrong).unwrap();
        let code = dir.run("inspect a/.metadata").code;
        assert!(matches!(code, 0 | 3 | 4), "{at}: {code}");
    }
}
