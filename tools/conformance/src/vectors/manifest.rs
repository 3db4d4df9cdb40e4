//! Manifests (gcodec.md, section 4.1).

use gcodec::Dtype;
use gcodec::frame::{Manifest, Shard, TensorInfo};
use gcodec::stream::{EncodeOptions, Encoder};
use std::sync::Arc;

use super::Area;
use super::build::*;

fn of(body: impl AsRef<[u8]>) -> Vec<u8> {
    stream().manifest(body).done()
}

/// Returns a manifest of one tensor with these bytes for its name (prefix_len, suffix).
fn named(prefix_len: u64, suffix: impl AsRef<[u8]>) -> Vec<u8> {
    of(bytes().v(1).v(prefix_len).text(suffix).raw(tensor(F32, &[2])).u8(0))
}

/// Returns a manifest of one tensor with these bytes after its name.
fn ending(rest: Bytes) -> Vec<u8> {
    of(bytes().v(1).v(0).text("w").raw(rest))
}

pub(crate) fn add(area: &mut Area) {
    let encoded = |tensors: Vec<TensorInfo>| {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
        encoder.manifest(&mut out, &Arc::new(Manifest::new(tensors).expect("a manifest")));
        encoder.finish(&mut out);
        out
    };
    area.valid("no-tensors", "MAN-4", encoded(vec![])).encoded();
    let all = Dtype::ALL.iter().map(|d| TensorInfo::new(format!("tensor.{d}"), *d, [2, 3])).collect();
    area.valid("every-element-type", "MAN-5 MAN-3 CAN-1", encoded(all)).encoded();
    let shapes = [&[][..], &[0], &[1], &[5], &[2, 0, 3], &[0, u64::MAX, u64::MAX], &[1; 32]];
    let shapes =
        shapes.iter().enumerate().map(|(i, s)| TensorInfo::new(format!("{i}"), Dtype::F32, s.to_vec()));
    area.valid("shapes", "MAN-4", encoded(shapes.collect())).encoded();
    let mut view = TensorInfo::new("conv", Dtype::F16, [4, 3, 2]);
    view.matrix = Some((4, 6));
    view.shard = Some(Shard { global_shape: vec![8, 3, 2], offsets: vec![4, 0, 0] });
    let mut scalar = TensorInfo::new("scalar", Dtype::F64, []);
    scalar.shard = Some(Shard { global_shape: vec![], offsets: vec![] });
    area.valid("matrix-view-and-shard", "MAN-6", encoded(vec![view, scalar])).encoded();
    let names = ["läyer.é", "läyer.è", "läyer.èé", "x", "xy"].map(|n| TensorInfo::new(n, Dtype::F32, [2]));
    area.valid("shared-prefixes", "MAN-1 MAN-3 CAN-1", encoded(names.to_vec()))
        .encoded()
        .notes("the first two names part inside a character");
    area.valid("longest-name", "MAN-1", named(0, [b'a'; 4096]));
    let huge = TensorInfo::new("huge", Dtype::U8, [(1 << 61) - 1]);
    area.valid("as-many-bits-as-may-be", "MAN-4", encoded(vec![huge])).encoded();
    let twice = manifest(&[("w", F32, &[2])]);
    area.valid("manifest-twice", "UPD-1", {
        let one = update(&twice, [block(whole(0), ALL(), ones())]);
        stream().manifest(&twice).manifest(&twice).update(&one).done()
    })
    .notes("a manifest may be repeated");

    area.invalid("count-1-of-0", "CNV-6", "length_mismatch", of(bytes().v(1)));
    area.invalid("byte-left-over", "CNV-6", "length_mismatch", of(bytes().v(0).u8(0)));
    area.invalid("varint-too-long", "CNV-2", "bad_varint", of([0x80, 0x00]));
    area.invalid("varint-of-ten-bytes", "CNV-2", "bad_varint", of([0xff; 10]));
    area.invalid("varint-of-65-bits", "CNV-2", "bad_varint", {
        ending(bytes().u8(F32).v(1).raw([0x80; 9]).u8(2).u8(0))
    });
    area.invalid("varint-ends-early", "CNV-6", "length_mismatch", of([0x80]));
    area.invalid("name-empty", "MAN-1", "out_of_range", named(0, ""));
    area.invalid("name-of-4097-bytes", "MAN-1", "out_of_range", named(0, [b'a'; 4097]));
    area.invalid("name-not-utf8", "MAN-1", "invalid_utf8", named(0, [0xff]));
    area.invalid("name-a-surrogate", "MAN-1", "invalid_utf8", named(0, [0xed, 0xa0, 0x80]));
    area.invalid("name-half-a-character", "MAN-1", "invalid_utf8", named(0, [b'a', 0xc3]));
    area.invalid("prefix-of-no-name", "MAN-3", "out_of_range", named(1, "a"));
    let second = |prefix: u64, suffix: &str| {
        let first = bytes().v(2).v(0).text("ab").raw(tensor(F32, &[])).u8(0);
        of(first.v(prefix).text(suffix).raw(tensor(F32, &[])).u8(0))
    };
    area.invalid("prefix-beyond-the-name", "MAN-3", "out_of_range", second(3, "c"));
    area.invalid("prefix-too-short", "MAN-3", "not_canonical", second(1, "bc"));
    area.invalid("prefix-not-used", "MAN-3", "not_canonical", second(0, "ac"));
    area.invalid("name-twice", "MAN-2", "duplicate_name", second(2, ""));
    area.invalid("name-twice-apart", "MAN-2", "duplicate_name", {
        of(manifest(&[("a", F32, &[]), ("b", F32, &[]), ("a", F32, &[])]))
    });
    for dtype in [0, 10, 15, 28, 33, 255] {
        let id = format!("dtype-{dtype}");
        area.invalid(&id, "MAN-5 CNV-4", "unsupported", ending(tensor(dtype, &[2]).u8(0)));
    }
    area.invalid("rank-33", "CNV-4", "out_of_range", ending(tensor(F32, &[1; 33]).u8(0)));
    area.invalid(
        "elements-of-65-bits",
        "MAN-4",
        "out_of_range",
        ending(tensor(24, &[1 << 32, 1 << 32]).u8(0)),
    );
    area.invalid("bits-of-65-bits", "MAN-4", "out_of_range", ending(tensor(24, &[1 << 61]).u8(0)));
    area.invalid("bits-of-all-tensors", "MAN-4", "out_of_range", {
        of(manifest(&[("a", 24, &[1 << 60]), ("b", 24, &[1 << 60])]))
    });
    area.invalid("extras-bit-2", "CNV-5", "reserved_bits", ending(tensor(F32, &[2]).u8(4)));
    area.invalid(
        "matrix-of-another-size",
        "MAN-6",
        "out_of_range",
        ending(tensor(F32, &[2, 3]).u8(1).v(2).v(2)),
    );
    area.invalid("shard-beyond", "MAN-6", "out_of_range", ending(tensor(F32, &[4]).u8(2).v(8).v(5)));
    area.invalid("shard-of-65-bits", "MAN-6", "out_of_range", {
        ending(tensor(F32, &[4]).u8(2).v(u64::MAX).v(u64::MAX - 3))
    });
}
