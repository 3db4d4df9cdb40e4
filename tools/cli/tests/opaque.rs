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

/// Writes a .npy file: descr, shape, bytes.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n");
    let len = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &len[..], text.as_bytes(), data].concat()
}

/// Writes an archive of entries.
fn npz(path: &std::path::Path, entries: &[(&str, &[u8])]) {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in entries {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut zip, bytes).unwrap();
    }
    zip.finish().unwrap();
}

/// An archive with a text, a complex array, a structure, objects and a file that is no array.
fn odd_archive(dir: &Dir, words: &str) {
    let text: Vec<u8> = words.chars().flat_map(|c| (c as u32).to_le_bytes()).collect();
    let w = npy("'<f4'", "(2,)", &f32s(&[3.0, 4.0]));
    let entries: [(&str, &[u8]); 6] = [
        ("w.npy", &w),
        ("names.npy", &npy(&format!("'<U{}'", words.len()), "(1,)", &text)),
        ("z.npy", &npy("'<c8'", "(1, 1)", &f32s(&[1.0, -1.0]))),
        ("table.npy", &npy("[('i', '<i4'), ('f', '<f8', (2,))]", "(1,)", &[5; 20])),
        ("objects.npy", &npy("'|O'", "()", b"\x80\x04K\x01.")),
        ("about/readme.txt", b"made by hand"),
    ];
    npz(&dir.path(&format!("{words}.npz")), &entries);
}

#[test]
fn a_checkpoint_comes_back_whole() {
    let dir = Dir::new();
    for (file, dtype) in odd_files(&dir) {
        let run = dir.well(&format!("encode {file} -o x.gcu --codec topk:density=0.5 --no-metadata"));
        assert!(run.err.contains(&format!("\"odd\" ({dtype}) is opaque")), "{}", run.err);
        dir.well(&format!("encode {file} -o x.gcu --codec lossless"));
        dir.well("decode x.gcu -o back.safetensors");
        let odd = |file: &str| {
            let report = dir.well(&format!("inspect {file} --tensors --csv --tensor odd")).out();
            report.lines().nth(1).unwrap().split_once(',').unwrap().1.to_owned()
        };
        assert_eq!(odd(file), odd("back.safetensors"));
        for line in ["inspect x.gcu", "inspect x.gcu --coding", "inspect x.gcu --step 0"] {
            let run = dir.well(&format!("{line} --json"));
            let report: Value = serde_json::from_slice(&run.stdout).unwrap();
            let update = &report["updates"][0];
            let odd = update["tensors"].as_array().unwrap().iter().find(|t| t["name"] == "odd").unwrap();
            assert!(odd["dtype"] == dtype && odd["opaque"].is_string(), "{line}: {odd}");
            assert_eq!(update["norm"].as_f64(), Some(5.0), "{line}");
        }
        for pair in [format!("{file} x.gcu"), format!("x.gcu {file}"), format!("{file} back.safetensors")] {
            let run = dir.well(&format!("diff {pair} --all"));
            assert!(run.out().contains("odd") && run.out().contains(dtype), "{}", run.out());
        }
    }
}

#[test]
fn arrays_that_are_no_numbers_come_back_too() {
    let dir = Dir::new();
    odd_archive(&dir, "abc");
    let text = dir.well("inspect abc.npz --tensors").out();
    for part in ["names", "<U3", "text", "<c8", "a structure", "pickled", "about/readme.txt", "5.000"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    dir.well("encode abc.npz -o x.gcu --codec lossless");
    dir.well("decode x.gcu -o back.npz");
    dir.well("diff abc.npz back.npz");
    let shown = dir.well("inspect back.npz --tensors").out();
    assert_eq!(shown, text);
    // Another format keeps the bytes, and what they are.
    dir.well("decode x.gcu -o back.safetensors");
    dir.well("diff abc.npz back.safetensors");
    dir.well("encode back.safetensors -o y.gcu --codec lossless --no-metadata");
    dir.well("decode y.gcu -o again.npz");
    dir.well("diff abc.npz again.npz");
    let shown = dir.well("inspect back.safetensors --tensors").out();
    for part in ["C64", "<U3", "from a file of another format"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_difference_in_opaque_bytes_is_one() {
    let dir = Dir::new();
    for words in ["abc", "abd", "abcd"] {
        odd_archive(&dir, words);
    }
    for other in ["abd", "abcd"] {
        let run = dir.run(&format!("diff abc.npz {other}.npz"));
        assert_eq!(run.code, 1, "{}", run.out());
        assert!(run.out().contains("names") && run.out().contains("1 of 6"), "{}", run.out());
    }
    let run = dir.run("diff abc.npz abd.npz --json");
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    let names = report["tensors"].as_array().unwrap().iter().find(|t| t["name"] == "names").unwrap();
    assert_eq!((&names["differing"], &names["dtype_a"]), (&1.into(), &"<U3".into()), "{report}");
    // The same bytes under another type.
    write_tensors(&dir.path("a.safetensors"), &[("odd", "QX", &[2], &[1, 2])]);
    write_tensors(&dir.path("b.safetensors"), &[("odd", "U8", &[2], &[1, 2])]);
    write_tensors(&dir.path("c.safetensors"), &[("odd", "QX", &[1, 2], &[1, 2])]);
    for (a, b) in [("a", "b"), ("b", "a"), ("a", "c")] {
        assert_eq!(dir.run(&format!("diff {a}.safetensors {b}.safetensors --rtol 1")).code, 1);
    }
}

#[test]
fn losses_name_the_opaque_tensors() {
    let dir = Dir::new();
    for (file, dtype) in odd_files(&dir) {
        dir.well(&format!("encode {file} -o x.gcu --codec topk:k=1"));
        dir.well("decode x.gcu -o back.safetensors");
        for update in ["x.gcu", "back.safetensors"] {
            let line = format!("inspect {update} --against {file}");
            let text = dir.well(&line).out();
            assert!(text.contains(&format!("opaque: odd ({dtype}): all ")), "{text}");
            assert!(text.contains("bytes are equal") && text.contains("w "), "{text}");
            let losses: Value = serde_json::from_slice(&dir.well(&format!("{line} --json")).stdout).unwrap();
            let odd = &losses["opaque"][0];
            assert_eq!((&odd["name"], &odd["dtype"]), (&"odd".into(), &dtype.into()));
            assert_eq!(odd["differing"], 0, "{losses}");
            // It is no part of the loss.
            assert_eq!((&losses["all"]["name"], &losses["all"]["elements"]), (&"all 1".into(), &2.into()));
            assert!((losses["all"]["energy_kept"].as_f64().unwrap() - 16.0 / 25.0).abs() < 1e-6, "{losses}");
        }
    }
    // Other bytes, another type, and an opaque tensor alone.
    let cases: [(&str, &[u8], &str); 3] = [
        ("QX", &[1, 2, 9, 9], "opaque: odd (QX): 2 of 4 bytes differ"),
        ("QY", &[1, 2, 3, 4], "opaque: odd (QX / QY): not compared, of another type or shape"),
        ("U8", &[1, 2, 3, 4], "opaque: odd (QX / u8): not compared, of another type or shape"),
    ];
    write_tensors(&dir.path("a.safetensors"), &[("odd", "QX", &[4], &[1, 2, 3, 4])]);
    for (dtype, bytes, expected) in cases {
        write_tensors(&dir.path("b.safetensors"), &[("odd", dtype, &[4], bytes)]);
        dir.well("encode b.safetensors -o b.gcu --codec lossless");
        for update in ["b.safetensors", "b.gcu"] {
            let text = dir.well(&format!("inspect {update} --against a.safetensors")).out();
            assert_eq!(text, format!("{expected}\n"));
        }
    }
    dir.well("inspect b.gcu --against a.safetensors --html x.html");
    let page = std::fs::read_to_string(dir.path("x.html")).unwrap();
    assert!(page.contains("opaque: odd (QX / u8): not compared"));
    dir.fails(2, "no tensor of the original", "inspect b.gcu --against a.safetensors --tensor w");
}

#[test]
fn deltas_and_audits_take_opaque_tensors() {
    let dir = Dir::new();
    for words in ["abc", "abd", "abcd"] {
        odd_archive(&dir, words);
    }
    dir.well("encode abd.npz -o x.gcu --codec delta --base abc.npz");
    dir.well("decode x.gcu -o back.npz --base abc.npz");
    dir.well("diff abd.npz back.npz");
    let text = dir.well("audit abc.npz abd.npz").out();
    assert!(text.contains("names"), "{text}");
    let run = dir.well("audit abc.npz abcd.npz");
    assert!(run.err.contains("\"names\" (<U4) is opaque, and not as in"), "{}", run.err);
}

#[test]
fn what_is_left_out_is_named() {
    let dir = Dir::new();
    odd_archive(&dir, "abc");
    dir.well("encode abc.npz -o x.gcu --codec lossless --without names --without *.txt");
    let run = dir.run("diff abc.npz x.gcu");
    assert_eq!((run.code, run.out().contains("only in A: names")), (1, true), "{}", run.out());
    let run = dir.well("encode abc.npz -o x.gcu --codec lossless --without nmaes");
    assert!(run.err.contains("no tensor matches --without nmaes"), "{}", run.err);
    // Where the bytes are not all that a copy needs, the tensor is refused with the way out.
    let text = "{'descr': '|O', 'fortran_order': True, 'shape': (2, 3), }\n";
    let objects =
        [b"\x93NUMPY\x01\0", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), b"."].concat();
    npz(&dir.path("o.npz"), &[("a[0].npy", &objects), ("w.npy", &npy("'<f4'", "()", &f32s(&[1.0])))]);
    dir.fails(2, "--without 'a[[]0[]]' leaves it out", "encode o.npz -o x.gcu --codec lossless");
    dir.well("encode o.npz -o x.gcu --codec lossless --without a[[]0[]]");
    let run = dir.run("diff o.npz o.npz");
    assert!(run.out().contains("opaque, not compared: a[0]"), "{}", run.out());
    assert_eq!(run.code, 0);
}

#[test]
fn arrays_one_after_another_are_all_read() {
    let dir = Dir::new();
    let (a, b) = (npy("'<f4'", "(2,)", &f32s(&[3.0, 4.0])), npy("'<U1'", "()", &[97, 0, 0, 0]));
    std::fs::write(dir.path("two.npy"), [&a[..], &b, &a].concat()).unwrap();
    let run = dir.well("inspect two.npy --tensors");
    assert!(run.err.contains("two: 3 arrays, one after another"), "{}", run.err);
    for name in ["two.0", "two.1", "two.2"] {
        assert!(run.out().contains(name), "{}", run.out());
    }
    std::fs::write(dir.path("junk.npy"), [&a[..], b"junk"].concat()).unwrap();
    dir.fails(3, "do not match", "inspect junk.npy");
}

#[test]
fn types_with_a_definition_are_read() {
    let dir = Dir::new();
    let values: [(&str, &[u64], Vec<u8>, f64); 3] = [
        ("F8_E8M0", &[2, 1], vec![127, 128], 5f64.sqrt()),
        ("F6_E2M3", &[4], vec![8, 0, 0], 1.0),
        ("C64", &[2], f32s(&[3.0, -4.0, 0.0, 12.0]), 13.0),
    ];
    for (dtype, shape, bytes, norm) in &values {
        write_tensors(&dir.path("x.safetensors"), &[("scale", dtype, shape, bytes)]);
        let run = dir.well("inspect x.safetensors --json");
        assert!(run.err.is_empty(), "{}", run.err);
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        let tensor = &report["updates"][0]["tensors"][0];
        assert_eq!((&tensor["dtype"], tensor["nan"].as_u64()), (&(*dtype).into(), Some(0)), "{tensor}");
        assert!(
            (tensor["norm"].as_f64().unwrap() - norm).abs() < 1e-6 && tensor["opaque"].is_null(),
            "{tensor}"
        );
        dir.well("encode x.safetensors -o x.gcu --codec topk:density=0.1");
        dir.well("decode x.gcu -o y.safetensors");
        dir.well("diff x.safetensors y.safetensors");
    }
    write_tensors(&dir.path("n.safetensors"), &[("scale", "F8_E8M0", &[3], &[1, 255, 2])]);
    let text = dir.well("inspect n.safetensors --tensors").out();
    assert!(text.contains("1 NaN"), "{text}");
    // Bytes that do not hold the shape.
    write_tensors(&dir.path("n.safetensors"), &[("scale", "F8_E8M0", &[3], &[1, 255])]);
    dir.fails(3, "2 bytes do not match the shape [3] of F8_E8M0", "inspect n.safetensors");
}

#[test]
fn metadata_that_is_no_text_is_named_and_read() {
    let dir = Dir::new();
    let header = r#"{"__metadata__":{"step":7,"args":{"lr":0.1}},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[9]].concat();
    std::fs::write(dir.path("x.safetensors"), bytes).unwrap();
    let run = dir.well("inspect x.safetensors");
    assert!(run.err.contains("__metadata__") && run.err.contains("\"args\": {\"lr\":0.1}"), "{}", run.err);
    assert!(run.out().contains("step 7"), "{}", run.out());
}

#[test]
fn a_file_that_is_no_tensors_is_named_for_what_it_is() {
    let dir = Dir::new();
    let cases: [(&str, &str); 5] = [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        ("\n<!doctype html><html>", "error page"),
        ("<?xml version=\"1.0\"?><Error>", "error page"),
        ("Entry not found", "beginning with \"Entry not found\""),
        ("gr\u{fc}n\nist", "beginning with \"gr\u{fc}n\""),
    ];
    for (text, part) in cases {
        std::fs::write(dir.path("x.safetensors"), text).unwrap();
        for line in ["inspect", "encode -o x.gcu --codec lossless", "diff x.safetensors"] {
            let run = dir.fails(3, part, &format!("{line} x.safetensors"));
            assert!(!run.err.contains("header of"), "{}", run.err);
        }
    }
}
