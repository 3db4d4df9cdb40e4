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
