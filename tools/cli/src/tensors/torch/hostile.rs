//! Tests of small files that would need hours or terabytes if each of their words counted.

use super::*;
use crate::fail::Code;
use crate::tensors::{Kind, Room, shards};
use crate::testing::TempDir;
use std::io::{Cursor, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// More references than could all be followed.
const MANY: usize = 50_000;
/// Length of a text or a container that all of them refer to.
const LONG: usize = 1 << 20;

fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    archive_as(CompressionMethod::Stored, entries)
}

fn archive_as(method: CompressionMethod, entries: &[(&str, &[u8])]) -> Vec<u8> {
    let stored = SimpleFileOptions::default().compression_method(method);
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Returns a file of `torch.save` with this program, and four bytes as the storage 0.
fn saved(parts: &[&[u8]]) -> Vec<u8> {
    archive(&[("a/data.pkl", &[b"\x80\x02", &parts.concat()[..]].concat()), ("a/data/0", b"abcd")])
}

fn parse(kind: Kind, bytes: Vec<u8>) -> Result<Dump> {
    let begun = Instant::now();
    let dump = Dump::parse(kind, Input::Owned(bytes), Path::new("x"));
    assert!(begun.elapsed() < Duration::from_secs(100));
    dump
}

fn text(text: &[u8]) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text].concat()
}

fn number(number: u64) -> Vec<u8> {
    [b"\x8a\x08", &number.to_le_bytes()[..]].concat()
}

fn tuple(numbers: &[u64]) -> Vec<u8> {
    [b"(", &numbers.iter().flat_map(|of| number(*of)).collect::<Vec<_>>()[..], b"t"].concat()
}

const REBUILD: &[u8] = b"ctorch._utils\n_rebuild_tensor_v2\n";
const STORAGE: &[u8] = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x01tQ";

/// Returns the program of a view on the storage 0.
fn view(shape: &[u64], strides: &[u64]) -> Vec<u8> {
    [REBUILD, b"(", STORAGE, b"K\0", &tuple(shape), &tuple(strides), b"\x89}tR"].concat()
}

#[test]
fn references_to_long_values_are_limited() {
    let long = [&text(&vec![b'm'; LONG])[..], b"q\x000"].concat();
    let list = |item: &[u8]| [b"(", &item.repeat(LONG)[..], b"lq\x000"].concat();
    let numbers = [b"(", &b"K\x01".repeat(LONG)[..], b"tq\x000"].concat();
    let dict = [b"}(", &b"NN".repeat(LONG)[..], b"uq\x000"].concat();
    let module =
        [&text(b"_parameters")[..], b"}", &text(b"_buffers"), b"}", &text(b"_modules"), b"}"].concat();
    let of_class = |class: &[u8]| [class, b"q\x010"].concat();
    let all = |item: &[u8]| [b"(", &item.repeat(MANY)[..], b"l."].concat();
    let cases: [(&str, Vec<u8>); 9] = [
        ("texts", saved(&[&long, &all(b"h\0")])),
        ("keys", saved(&[&long, b"}(", &b"h\0".repeat(MANY), b"tNs."])),
        ("attributes", saved(&[&long, b"}h\0cx\nY\n)R}(", &module, &b"h\0N".repeat(MANY), b"ubs."])),
        ("objects", saved(&[&dict, &of_class(b"cx\nY\n"), &all(b"h\x01)Rh\0b")])),
        (
            "shapes",
            saved(&[&numbers, &of_class(REBUILD), STORAGE, b"q\x020", &all(b"h\x01(h\x02K\0h\0h\0\x89}tR")]),
        ),
        (
            "states",
            saved(&[
                &list(b"N"),
                &of_class(b"ctorch._utils\n_rebuild_parameter_with_state\n"),
                &all(b"h\x01(NNNh\0tR"),
            ]),
        ),
        (
            "wrappers",
            saved(&[
                &list(b"N"),
                &of_class(b"ctorch._utils\n_rebuild_wrapper_subclass\n"),
                b"ctorch._tensor\n_rebuild_from_type_v2\nq\x020",
                &all(b"h\x02(h\x01N)}(X\x01\0\0\0ah\0utR"),
            ]),
        ),
        (
            "storages",
            saved(&[
                &long,
                &of_class(REBUILD),
                b"(X\x07\0\0\0storagectorch\nFloatStorage\nh\0X\x03\0\0\0cpuK\x01tQq\x020",
                &all(b"h\x01(h\x02K\0))\x89}tR"),
            ]),
        ),
        (
            "arrays",
            saved(&[
                &long,
                b"c_codecs\nencode\n(h\0X\x06\0\0\0latin1tRq\x020",
                &of_class(b"cnumpy.core.multiarray\n_reconstruct\n"),
                &all(b"h\x01)R(K\x01)NNh\x02tb"),
            ]),
        ),
    ];
    for (name, bytes) in cases {
        match parse(Kind::Torch, bytes) {
            Err(failure) => assert_eq!(failure.code, Code::Limit, "{name}: {failure}"),
            Ok(dump) => panic!("{name}: {} tensors", dump.names().count()),
        }
    }
}

#[test]
fn names_of_globals_are_limited() {
    let program = [&text(&vec![b'm'; LONG])[..], b"q\x000", &b"h\0h\0\x930".repeat(MANY), b"."];
    let failure = parse(Kind::Torch, saved(&program)).unwrap_err();
    assert!(failure.message.contains("too long names"), "{failure}");
}

#[test]
fn one_value_may_be_there_often() {
    // A hundred names of one tensor, and a text that a thousand lists have.
    let tensor = [&view(&[1], &[1])[..], b"q\x000("].concat();
    let lists = [b"}(", &text(b"a")[..], b"(", &b"h\0".repeat(100), b"l", &text(b"b"), b"("].concat();
    let program = [&tensor[..], &lists, &text(b"c"), b"q\x01", &b"]h\x01a".repeat(1000), b"lu."];
    let dump = parse(Kind::Torch, saved(&program)).unwrap();
    assert_eq!((dump.tensors.len(), dump.plain.len()), (100, 1001));
}

#[test]
fn dimensions_of_one_take_no_time() {
    let ones = b"K\x01".repeat(100_000);
    let program = [REBUILD, b"(", STORAGE, b"K\0(", &number(1 << 18), &ones, b"t(K\0", &ones, b"t\x89}tR."];
    let dump = parse(Kind::Torch, saved(&program)).unwrap();
    assert_eq!(dump.tensors[0].view().data(), b"abcd".repeat(1 << 18));
}

#[test]
fn views_share_one_room() {
    let room = || Room { views: 1 << 11, ..Room::default() };
    let view_of = |elements: u64| saved(&[&view(&[elements], &[0]), b"."]);
    let read = |bytes: Vec<u8>| {
        Dump::parse_within(Kind::Torch, Input::Owned(bytes), Path::new("x"), &mut room()).unwrap()
    };
    assert_eq!(read(view_of(256)).tensors.len(), 1);
    let dump = read(view_of(1024));
    assert!(dump.tensors.is_empty() && dump.opaque[0].reason.contains("save a contiguous copy"));
    // A model of torch.export with three views on one storage.
    let sizes = r#""sizes": [{"as_int": 256}], "strides": [{"as_int": 0}], "storage_offset": {"as_int": 0}"#;
    let entry = format!(r#"{{"path_name": "w", "tensor_meta": {{"dtype": 7, {sizes}}}}}"#);
    let config = format!(r#"{{"config": {{"a": {entry}, "b": {entry}, "c": {entry}}}}}"#);
    let entries = [
        ("archive_format", &b"pt2"[..]),
        ("data/weights/w", b"abcd"),
        ("data/weights/x_weights_config.json", config.as_bytes()),
    ];
    let dump = read(archive(&entries));
    assert_eq!((dump.tensors.len(), dump.opaque.len()), (2, 1), "{:?}", dump.opaque);
    // Files of a set.
    let dir = TempDir::new();
    for number in 1..=4 {
        let program = [b"}", &text(&[b'0' + number])[..], &view(&[256], &[0]), b"s."].concat();
        std::fs::write(dir.path(&format!("m-{number}-of-4.pt")), saved(&[&program])).unwrap();
    }
    let path = dir.path("m-*-of-4.pt");
    let index = Input::Owned(shards::index_of_set(&path).unwrap());
    let dump = Dump::parse_within(Kind::Shards, index, &path, &mut room()).unwrap();
    assert_eq!((dump.tensors.len(), dump.opaque.len()), (3, 1), "{:?}", dump.opaque);
}

#[test]
fn archives_are_not_nested() {
    let mut bytes = saved(&[&view(&[1], &[1]), b"."]);
    for depth in 0..3000 {
        bytes = archive(&[("archive_format", b"pt2"), ("data/weights/x.pt", &bytes)]);
        if depth == 0 {
            assert_eq!(parse(Kind::Torch, bytes.clone()).unwrap().tensors.len(), 1);
        }
    }
    assert_eq!(parse(Kind::Torch, bytes).unwrap_err().code, Code::Invalid);
}

#[test]
fn descriptions_of_checkpoints_are_limited() {
    let class = |name: &str| format!("ctorch.distributed.checkpoint.metadata\n{name}\n)R").into_bytes();
    let object = |name: &str, attributes: &[u8]| [&class(name)[..], b"}(", attributes, b"ub"].concat();
    let metadata = |before: &[u8], entries: &[u8], places: &[u8]| {
        let attributes = [
            &text(b"state_dict_metadata")[..],
            b"}(",
            entries,
            b"u",
            &text(b"storage_data"),
            b"}(",
            places,
            b"u",
        ];
        [b"\x80\x02", before, &object("Metadata", &attributes.concat()), b"."].concat()
    };
    let long = [&text(&vec![b'p'; LONG])[..], b"q\x000"].concat();
    let place = |number: u64| {
        let key = [&text(b"fqn")[..], &text(b"a"), &text(b"offset"), &tuple(&[number])].concat();
        let piece = [&text(b"relative_path")[..], b"h\0", &text(b"offset"), b"K\0", &text(b"length"), b"K\0"]
            .concat();
        [object("MetadataIndex", &key), object("_StorageInfo", &piece)].concat()
    };
    let places: Vec<u8> = (0..1000).flat_map(place).collect();
    let bytes = [class("BytesStorageMetadata"), b"q\x010".to_vec()].concat();
    let chunk = [&text(b"offsets")[..], &tuple(&[0]), &text(b"sizes"), &tuple(&[1])].concat();
    let chunks =
        [b"(", &object("ChunkStorageMetadata", &chunk)[..], b"q\x01", &b"h\x01".repeat(MANY), b"lq\x000"];
    let tensor = |number: u64| {
        let properties = [&class("TensorProperties")[..], b"(ctorch\nfloat32\ntb"].concat();
        let attributes =
            [&text(b"size")[..], &tuple(&[1]), &text(b"properties"), &properties, &text(b"chunks"), b"h\0"];
        [text(number.to_string().as_bytes()), object("TensorStorageMetadata", &attributes.concat())].concat()
    };
    let tensors: Vec<u8> = (0..1000).flat_map(tensor).collect();
    for (name, description) in
        [("paths", metadata(&long, b"", &places)), ("chunks", metadata(&chunks.concat(), &tensors, b""))]
    {
        let failure = parse(Kind::Distributed, description).unwrap_err();
        assert_eq!(failure.code, Code::Limit, "{name}: {failure}");
    }
    let names = metadata(&[&long[..], &bytes].concat(), &b"h\0h\x01".repeat(MANY), b"");
    assert!(parse(Kind::Distributed, names).unwrap_err().message.contains("two entries"));
    // A tensor that has one chunk many times.
    let dir = TempDir::new();
    let file = saved(&[&view(&[1], &[1]), b"."]);
    std::fs::write(dir.path("f"), &file).unwrap();
    let key = [&text(b"fqn")[..], &text(b"0"), &text(b"offset"), &tuple(&[0])].concat();
    let piece = [
        &text(b"relative_path")[..],
        &text(b"f"),
        &text(b"offset"),
        &number(0),
        &text(b"length"),
        &number(file.len() as u64),
    ];
    let place = [object("MetadataIndex", &key), object("_StorageInfo", &piece.concat())].concat();
    let read = |chunks: &[u8]| {
        let description = metadata(chunks, &tensor(0), &place);
        Dump::parse(Kind::Distributed, Input::Owned(description), &dir.path(".metadata")).unwrap()
    };
    let once = [b"(", &object("ChunkStorageMetadata", &chunk)[..], b"lq\x000"].concat();
    assert_eq!(read(&once).tensors[0].view().data(), b"abcd");
    assert_eq!(read(&chunks.concat()).opaque[0].reason, "its chunk at [0] is listed twice");
}

#[test]
fn a_storage_ends_with_its_entry() {
    let mut bytes = saved(&[&view(&[1], &[1]), b"."]);
    // The last entry of the directory: the size before it was compressed, which it was not.
    let at = bytes.windows(4).rposition(|bytes| bytes == b"PK\x01\x02").unwrap() + 24;
    bytes[at] = 200;
    let failure = parse(Kind::Torch, bytes).unwrap_err();
    assert!(failure.message.contains("an entry of 200 bytes is stored in 4"), "{failure}");
}

#[test]
fn compressed_pickles_are_short() {
    let nothing = |len: usize| [b"\x80\x02(", &b"N".repeat(len)[..], b"t."].concat();
    for (len, code) in [(1000, Code::Invalid), (2 << 20, Code::Limit)] {
        let entries = [("a/data.pkl", &nothing(len)[..])];
        let bytes = archive_as(CompressionMethod::Deflated, &entries);
        assert_eq!(parse(Kind::Torch, bytes).unwrap_err().code, code, "{len}");
        assert_eq!(parse(Kind::Torch, archive(&entries)).unwrap_err().code, Code::Invalid);
    }
}
