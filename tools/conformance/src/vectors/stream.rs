//! Preamble, frame headers, segments (gcodec.md, sections 1, 3 and 4).

use super::Area;
use super::build::*;

pub(crate) fn add(area: &mut Area) {
    preambles(area);
    headers(area);
    segments(area);
}

fn preambles(area: &mut Area) {
    area.valid("empty", "STR-1 STR-2 STR-5 END-1 END-2 FRM-1", stream().done()).encoded();
    area.valid("empty-with-index", "IDX-1 END-2 CAN-1", stream().index().done()).encoded();
    area.valid("minor-7", "STR-4", Stream::after(preamble(1, 7, 0)).done())
        .notes("a later minor version whose kinds are all known");
    area.invalid("magic", "STR-1", "bad_magic", edited(|b| b[0] = 0x88));
    area.invalid("text-mode-damage", "STR-1", "bad_magic", edited(|b| b[4] = 0x0a))
        .notes("what a copy that changes line ends does");
    area.invalid("preamble-crc", "STR-2", "checksum_mismatch", edited(|b| b[12] ^= 1));
    area.invalid("major-2", "STR-3", "unsupported", Stream::after(preamble(2, 0, 0)).done());
    area.valid("minor-255", "STR-4", Stream::after(preamble(1, 255, 0)).done());
    for major in [0, 255] {
        let bytes = Stream::after(preamble(major, 0, 0)).done();
        area.invalid(&format!("major-{major}"), "STR-3", "unsupported", bytes);
    }
    area.invalid("preamble-flags", "CNV-5", "reserved_bits", Stream::after(preamble(1, 0, 1)).done());
    area.invalid("nothing", "STR-5", "truncated", Vec::new());
    area.invalid("half-a-magic", "STR-1 STR-5", "truncated", preamble(1, 0, 0).0[..5].to_vec());
    area.invalid("half-another-magic", "STR-1", "bad_magic", b"\x89PNG\r".to_vec())
        .notes("bytes that no stream begins with: not the beginning of one");
    area.invalid("half-a-preamble", "STR-5", "truncated", preamble(1, 0, 0).0[..9].to_vec());
    area.invalid("preamble-alone", "STR-5", "truncated", preamble(1, 0, 0).0);
}

/// Returns an empty stream with some changed bytes.
fn edited(edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = stream().done();
    edit(&mut bytes);
    bytes
}

fn headers(area: &mut Area) {
    let private = || bytes().raw(b"of no concern");
    area.valid("private-ancillary", "FRM-4", stream().frame(0xf00d, 0, private()).done()).encoded();
    area.valid("ancillary-of-a-later-version", "FRM-4 STR-4", stream().frame(0x8003, 0, private()).done());
    area.valid("ancillary-flags", "FRM-4", stream().frame(0x8003, 0xffff, private()).done())
        .notes("flags of a kind that the reader does not know are not its business");
    area.valid("ancillary-empty", "FRM-4", stream().frame(0xffff, 0, []).done()).encoded();
    area.invalid("ancillary-crc", "FRM-4 FRM-3", "checksum_mismatch", {
        let mut bytes = stream().frame(0x8003, 0, private()).done();
        bytes[16 + 24] ^= 0x20;
        bytes
    });
    area.invalid(
        "critical-of-a-later-version",
        "FRM-5 STR-4",
        "unsupported",
        stream().frame(6, 0, []).done(),
    );
    area.invalid("private-critical", "FRM-5", "unsupported", stream().frame(0x7000, 0, private()).done());
    area.invalid("kind-0", "FRM-5", "unsupported", stream().frame(0, 0, []).done());
    area.invalid("sync", "FRM-1", "bad_sync", edited(|b| b[16] = 0xd2));
    area.invalid("header-crc", "FRM-2", "checksum_mismatch", edited(|b| b[16 + 20] ^= 1));
    area.invalid("header-crc-before-kind", "FRM-2", "checksum_mismatch", edited(|b| b[16 + 4] = 0x66))
        .notes("the kind is unknown because it is damaged: that is not a question of versions");
    area.invalid("body-crc", "FRM-3", "checksum_mismatch", edited(|b| b[16 + 24] ^= 1));
    area.invalid("frame-flags", "CNV-5", "reserved_bits", stream().frame(MANIFEST, 1, bytes().v(0)).done());
    area.invalid("update-flags", "CNV-5", "reserved_bits", {
        let man = manifest(&[("w", F32, &[1])]);
        stream().manifest(&man).part(&update(&man, []), 3).done()
    });
    let body_of = |len: u64| {
        stream().frame_with(END, 0, [0; 24], |head| head[8..16].copy_from_slice(&len.to_le_bytes())).open()
    };
    // The default limit of a machine with 32 bits is lower.
    area.invalid("body-of-1-GiB", "FRM-6 STR-5", "truncated", body_of(1 << 30))
        .limit("max_frame_bytes", 1 << 30);
    area.invalid("body-of-one-byte-more", "FRM-6 STR-5", "truncated", body_of(25));
    area.invalid("cut-in-header", "STR-5", "truncated", stream().done()[..30].to_vec());
    area.invalid("cut-in-body", "STR-5", "truncated", stream().done()[..63].to_vec());
    area.invalid("no-end-frame", "STR-5", "truncated", stream().frame(0xf000, 0, []).open());
}

fn segments(area: &mut Area) {
    let text = |value: &str| bytes().u8(0).v(1).text("k").text(value);
    let two = || stream().frame(METADATA, 0, text("1")).end().frame(METADATA, 0, text("2"));
    area.valid("two-segments", "STR-6 END-1 END-2", two().done()).encoded();
    area.valid("two-segments-with-indexes", "STR-6 IDX-1 END-2", {
        stream().frame(METADATA, 0, text("1")).index().end().frame(METADATA, 0, text("2")).index().done()
    })
    .encoded()
    .notes("the second index lists the first one and the first end frame too");
    area.valid("second-segment-without-index", "STR-6 END-2", {
        stream().frame(METADATA, 0, text("1")).index().end().frame(METADATA, 0, text("2")).done()
    })
    .notes("index_offset is about its own segment");
    area.invalid("two-indexes-in-a-segment", "IDX-2", "misplaced", stream().index().index().done());
    area.invalid("frame-after-an-index", "IDX-2", "misplaced", {
        stream().index().frame(METADATA, 0, text("1")).done()
    });
    area.invalid("unknown-frame-after-an-index", "IDX-2", "misplaced", {
        stream().index().frame(0xf000, 0, []).done()
    });
    area.valid("segment-of-an-end-frame", "STR-6", stream().end().done()).encoded();
    area.invalid("byte-after-the-end", "STR-6", "bad_sync", stream().end().raw([0]).open());
    area.invalid("preamble-after-the-end", "STR-6", "bad_sync", stream().end().raw(stream().done()).open())
        .notes("two streams one after the other are not a stream");
    for cut in 1..4 {
        let bytes = stream().end().raw(&b"\xd3gcf"[..cut]).open();
        area.invalid(&format!("sync-cut-after-{cut}"), "STR-5 STR-6", "truncated", bytes);
    }
    area.invalid("other-sync-cut", "STR-6", "bad_sync", stream().end().raw(b"\xd3gd").open())
        .notes("no frame begins with these bytes");
    area.invalid("sync-cut-in-a-segment", "FRM-1 STR-5", "truncated", stream().raw(b"\xd3g").open());
    area.invalid("other-sync-cut-in-a-segment", "FRM-1", "bad_sync", stream().raw(b"\xd3h").open());
    area.invalid("second-segment-cut", "STR-5 STR-6", "truncated", two().open());
    let flip = |at: usize| move |b: &mut Vec<u8>| b[at] ^= 1;
    area.invalid("end-count", "END-1", "count_mismatch", stream().end_with(flip(0)).open());
    area.invalid("end-chain", "END-1", "checksum_mismatch", stream().end_with(flip(16)).open());
    area.invalid("end-index-offset", "END-2", "out_of_range", stream().end_with(flip(8)).open());
    area.invalid("end-forgets-index", "END-2", "out_of_range", {
        stream().index().end_with(|b| b[8..16].fill(0)).open()
    });
    area.invalid("end-tail", "CNV-4", "out_of_range", stream().end_with(flip(20)).open());
    area.invalid("end-long", "CNV-6", "length_mismatch", stream().end_with(|b| b.push(0)).open());
    area.invalid("end-short", "CNV-6", "length_mismatch", stream().end_with(|b| b.truncate(20)).open());
    area.invalid("frame-lost", "END-1", "count_mismatch", {
        let whole = stream().frame(METADATA, 0, text("1")).done();
        [&whole[..16], &whole[whole.len() - 48..]].concat()
    });
    area.invalid("frames-exchanged", "END-1", "checksum_mismatch", {
        let (one, two) = (stream().frame(0xf000, 0, [1]).open(), stream().frame(0xf000, 0, [2]).open());
        let whole = stream().frame(0xf000, 0, [1]).frame(0xf000, 0, [2]).done();
        [&whole[..16], &two[16..], &one[16..], &whole[whole.len() - 48..]].concat()
    });
}
