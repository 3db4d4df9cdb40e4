//! Index sets, models, metadata and indexes (gcodec.md, sections 4.3 to 4.6).

use std::sync::Arc;

use gcodec::Dtype;
use gcodec::block::{BlockOptions, Chunked, ModelId, Rows, Scope, Seeded, Sparse, Support};
use gcodec::frame::{IndexSet, Manifest, Metadata, Model, TensorInfo, Weights};
use gcodec::stream::{EncodeOptions, Encoder};

use super::Area;
use super::build::*;

pub(crate) fn add(area: &mut Area) {
    index_sets(area);
    models(area);
    metadata(area);
    indexes(area);
}

fn encoder() -> Encoder {
    Encoder::new(EncodeOptions::default().with_index(false))
}

fn finished(encode: impl FnOnce(&mut Encoder, &mut Vec<u8>)) -> Vec<u8> {
    let (mut encoder, mut out) = (encoder(), Vec::new());
    encode(&mut encoder, &mut out);
    encoder.finish(&mut out);
    out
}

/// Returns the body of an index set.
pub(crate) fn set(manifest: &Bytes, scope: Bytes, support: (u64, Bytes)) -> Bytes {
    bytes().raw(hash(manifest)).v(3).v(1).v(4).raw(scope).v(support.0).raw(support.1)
}

fn index_sets(area: &mut Area) {
    let man = manifest(&[("a", F32, &[8]), ("b", F32, &[2, 3]), ("n", I16, &[4])]);
    let with = |body: &Bytes| stream().manifest(&man).frame(SET, 0, body);
    let supports: [(&str, Support); 6] = [
        ("all", Support::All),
        ("sparse", Support::Sparse(Sparse { positions: vec![0, 3, 4] })),
        ("none", Support::Sparse(Sparse { positions: vec![] })),
        ("chunked", Support::Chunked(Chunked { chunk_len: 4, kept: 2, positions: vec![0, 3, 1, 2] })),
        ("rows", Support::Rows(Rows { row_len: 2, rows: vec![1, 3] })),
        ("seeded", Support::Seeded(Seeded { count: 3, seed: 7 })),
    ];
    for (id, support) in supports {
        let manifest =
            Arc::new(Manifest::new(vec![TensorInfo::new("a", Dtype::F32, [8])]).expect("a manifest"));
        let made = IndexSet {
            manifest: manifest.id(),
            step: 3,
            leader: 1,
            world: 4,
            scope: Scope::Tensor(0),
            support,
        };
        let bytes = finished(|encoder, out| {
            encoder.index_set(out, &made, &manifest, BlockOptions::default()).expect("an index set");
        });
        area.valid(&format!("set-{id}"), "ISF-1 ISF-2 CAN-1", bytes).encoded();
    }
    area.valid(
        "set-of-several-tensors",
        "ISF-1",
        with(&set(&man, several(0, 2), (4, bytes().u16(0x2081)))).done(),
    );
    area.valid("set-of-a-range", "ISF-1", with(&set(&man, range(0, 2, 5), (4, bytes().u8(0x11)))).done());
    area.valid("set-of-integers", "ISF-1", with(&set(&man, whole(2), (4, bytes().u8(0x0a)))).done());

    area.invalid("set-without-manifest", "UPD-1 ISF-1", "unknown_reference", {
        stream().frame(SET, 0, set(&man, whole(0), (4, bytes().u8(1)))).done()
    });
    let mut refuse = |id: &str, requirements, kind, body: Bytes| {
        area.invalid(id, requirements, kind, with(&body).done());
    };
    refuse("set-with-add", "ISF-1 CNV-5", "reserved_bits", set(&man, adding(whole(0)), (1, bytes())));
    refuse("set-scope-outside", "ISF-1 BLK-1", "out_of_range", set(&man, whole(3), (1, bytes())));
    refuse("set-scope-of-two-types", "ISF-1 BLK-3", "out_of_range", set(&man, several(1, 2), (1, bytes())));
    refuse("set-of-kind-set", "ISF-2", "out_of_range", set(&man, whole(0), (8, bytes().raw([7; 32]))));
    refuse("set-support-unknown", "BLK-4 CNV-4", "unsupported", set(&man, whole(0), (10, bytes())));
    refuse("set-support-0", "BLK-4", "unsupported", set(&man, whole(0), (0, bytes())));
    refuse("set-with-shared-table", "ISF-2", "unknown_reference", {
        let code = freqs_of(&[1, 2]).code(&[1, 2], 0);
        set(&man, whole(0), (3, bytes().v(2).u8(0).v(1).raw(code).raw([0])))
    });
    refuse("set-byte-left-over", "CNV-6", "length_mismatch", set(&man, whole(0), (1, bytes().u8(0))));
}

fn models(area: &mut Area) {
    let at = Model {
        id: ModelId(hash(b"far away")),
        format: "gcodec-latent/1".to_owned(),
        name: "lgc".to_owned(),
        weights_len: 1 << 40,
        weights: Weights::At("https://models.example/lgc.bin".to_owned()),
    };
    area.valid("model-by-reference", "CNV-3 CAN-1", finished(|e, out| e.model(out, &at).expect("a model")))
        .encoded();
    let inline = |weights: &[u8]| {
        finished(|e, out| {
            e.model(out, &Model::inline("gcodec-latent/1", "m", weights.to_vec())).expect("a model")
        })
    };
    area.valid("model-inline", "MOD-1 CAN-1", inline(b"weights")).encoded();
    area.valid("model-inline-empty", "MOD-1", inline(b"")).encoded();
    area.valid("model-zstd", "MOD-1 MET-2", inline(&[7; 300]))
        .notes("the compressed bytes depend on the library that wrote them");
    let of = |weights: &[u8], len: u64, storage: u8, rest: &[u8]| {
        let body = bytes().raw(hash(weights)).text("f").text("n").v(len).u8(storage).raw(rest);
        stream().frame(MODEL, 0, body).done()
    };
    area.invalid("model-short", "MOD-1", "length_mismatch", of(b"abc", 3, 1, b"ab"));
    area.invalid("model-long", "MOD-1", "length_mismatch", of(b"abc", 3, 1, b"abcd"));
    area.invalid("model-other-weights", "MOD-1", "not_canonical", of(b"abc", 3, 1, b"abd"));
    area.invalid("model-storage-3", "CNV-4", "out_of_range", of(b"abc", 3, 3, b"abc"));
    area.invalid("model-zstd-damaged", "MOD-1", "length_mismatch", of(b"abc", 3, 2, b"abc"));
    let referenced = bytes().raw(hash(b"abc")).text("g").text("another").v(5).u8(0).text("elsewhere");
    let contained = bytes().raw(hash(b"abc")).text("f").text("n").v(3).u8(1).raw(b"abc");
    area.valid("model-twice", "MOD-1", {
        stream().frame(MODEL, 0, referenced).frame(MODEL, 0, contained).done()
    })
    .notes("of one id, whose other fields differ");
    let location = |text: Bytes| of(b"abc", 3, 0, &text.0);
    area.invalid("model-location-not-utf8", "CNV-3", "invalid_utf8", location(bytes().text([0xff])));
    area.invalid("model-location-long", "CNV-6", "length_mismatch", location(bytes().text("x").u8(0)));
}

fn metadata(area: &mut Area) {
    let of = |entries: &[(&str, &str)]| {
        let entries = entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        finished(|e, out| e.metadata(out, &Metadata { entries }))
    };
    area.valid("metadata", "MET-1 CNV-3 CAN-1", of(&[("", "empty key"), ("run", "größer"), ("run2", "")]))
        .encoded();
    area.valid("metadata-empty", "MET-1", of(&[])).encoded();
    area.valid("metadata-zstd", "MET-2", of(&[("text", &"again and ".repeat(40))]));
    let plain = |entries: Bytes| stream().frame(METADATA, 0, bytes().u8(0).raw(entries)).done();
    let two = |a: &str, b: &str| plain(bytes().v(2).text(a).text("1").text(b).text("2"));
    area.invalid("keys-descend", "MET-1", "not_ascending", two("b", "a"));
    area.invalid("key-twice", "MET-1", "not_ascending", two("a", "a"));
    area.invalid("keys-by-bytes", "MET-1", "not_ascending", two("é", "z")).notes("U+00E9 is c3 a9, after z");
    area.invalid("value-not-utf8", "CNV-3", "invalid_utf8", plain(bytes().v(1).text("k").text([0xc0, 0x80])));
    area.invalid("metadata-count", "CNV-6 LIM-2", "length_mismatch", plain(bytes().v(2).text("k").text("v")));
    area.invalid("metadata-left-over", "CNV-6", "length_mismatch", plain(bytes().v(0).u8(0)));
    area.invalid(
        "metadata-storage-2",
        "CNV-4",
        "out_of_range",
        stream().frame(METADATA, 0, bytes().u8(2).v(0)).done(),
    );
    // A handmade zstd frame of one raw block: magic, descriptor (single segment, length in one byte),
    // dictionary, length, block.
    let with = |descriptor: u8, dictionary: &[u8], plain: &[u8]| {
        let head = bytes().u32(0xfd2f_b528).u8(0x20 | descriptor).raw(dictionary).u8(plain.len() as u8);
        let block = (plain.len() as u32) << 3 | 1;
        head.raw(&block.to_le_bytes()[..3]).raw(plain)
    };
    let zstd = |plain: &[u8]| with(0, &[], plain);
    let packed = |len: u64, frame: Bytes| stream().frame(METADATA, 0, bytes().u8(1).v(len).raw(frame)).done();
    let entries = bytes().v(1).text("key").text("value").0;
    let len = entries.len() as u64;
    area.valid("metadata-zstd-by-hand", "MET-2", packed(len, zstd(&entries))).notes("one raw block");
    area.invalid("zstd-grows-to-more", "MET-2", "length_mismatch", packed(len - 1, zstd(&entries)));
    area.invalid("zstd-grows-to-less", "MET-2", "length_mismatch", packed(len + 1, zstd(&entries)));
    area.invalid("zstd-and-more", "MET-2", "length_mismatch", packed(len, zstd(&entries).u8(0)));
    area.invalid("zstd-damaged", "MET-2", "length_mismatch", packed(len, bytes().u32(0)));
    let checked = |checksum: u32| packed(len, with(4, &[], &entries).u32(checksum));
    area.valid("zstd-checksum", "MET-2", checked(0x9c04_b951)).notes("the low half of the content's XXH64");
    area.invalid("zstd-other-checksum", "MET-2", "length_mismatch", checked(0x9c04_b950));
    area.valid("zstd-dictionary-0", "MET-2", packed(len, with(1, &[0], &entries)))
        .notes("a Dictionary_ID of 0 is no dictionary");
    area.invalid("zstd-dictionary-7", "MET-2", "length_mismatch", packed(len, with(1, &[7], &entries)));
    let skippable = bytes().u32(0x184d_2a50).u32(len as u32).raw(&entries);
    area.invalid("zstd-skippable", "MET-2", "length_mismatch", packed(len, skippable));
}

fn indexes(area: &mut Area) {
    let man = manifest(&[("a", F32, &[2]), ("b", F32, &[3])]);
    let one = update(&man, [block(whole(0), ALL(), ones()), block(whole(1), ALL(), ones())]);
    let two = Update { step: 1, sender: 5, ..update(&man, [block(several(0, 2), ALL(), ones())]) };
    let made = || stream().manifest(&man).update(&one).frame(0xf000, 0, [1]).update(&two);
    area.valid("index", "IDX-1 END-2", made().index().done());
    area.valid("index-without-blocks", "IDX-1", {
        stream().manifest(&man).update(&update(&man, [])).index().done()
    })
    .notes("head_len is the whole body");
    let first = stream().manifest(&man).update(&one).index().done();
    area.valid("index-as-encoded", "IDX-1 END-2 CAN-1", first).encoded();
    let listing = made().listing().0;
    let of = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut listing = listing.clone();
        edit(&mut listing);
        made().index_of(Bytes(listing)).done()
    };
    let last = listing.len() - 1;
    let mut refuse = |id: &str, edit: &dyn Fn(&mut Vec<u8>)| {
        area.invalid(id, "IDX-1", "not_canonical", of(edit));
    };
    refuse("index-other-length", &|b| b[2] += 1);
    refuse("index-other-kind", &|b| b[5] = 0xff);
    refuse("index-kind-beyond-16-bits", &|b| drop(b.splice(1..2, [0x81, 0x80, 4])));
    refuse("index-other-block-crc", &|b| b[last] ^= 1);
    refuse("index-other-step", &|b| {
        let at = b.len() - (4 + 1 + 1 + 1 + 1 + 4 + 1 + 1 + 1);
        assert_eq!(b[at..at + 2], [1, 5]);
        b[at] = 2;
    });
    area.invalid("index-byte-left-over", "CNV-6", "length_mismatch", of(&|b| b.push(0)));
}
