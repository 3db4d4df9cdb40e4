//! Updates, scopes and the elements of blocks (gcodec.md, sections 4.2 and 5).

use super::Area;
use super::build::*;

pub(crate) fn add(area: &mut Area) {
    updates(area);
    parts(area);
    scopes(area);
    order(area);
    elements(area);
}

fn man() -> Bytes {
    manifest(&[("a", F32, &[4]), ("b", F32, &[2, 3]), ("h", BF16, &[3]), ("n", I16, &[4]), ("z", F32, &[0])])
}

/// Returns a stream with the manifest and an update with these blocks.
fn of(blocks: impl IntoIterator<Item = Bytes>) -> Vec<u8> {
    with(update(&man(), blocks))
}

fn with(update: Update) -> Vec<u8> {
    stream().manifest(man()).update(&update).done()
}

/// Returns a constant over a scope.
fn over(scope: Bytes) -> Bytes {
    valued(scope, 1.0)
}

fn valued(scope: Bytes, value: f32) -> Bytes {
    block(scope, ALL(), (2, scale(value)))
}

fn updates(area: &mut Area) {
    area.valid("no-blocks", "UPD-1", of([])).tensors();
    area.valid("two-updates", "UPD-1 UPD-2", {
        let second = Update { step: 1, ..update(&man(), [valued(whole(1), -2.0)]) };
        stream().manifest(man()).update(&update(&man(), [over(whole(0))])).update(&second).done()
    })
    .tensors()
    .notes("the tensors are those of the last update alone");
    let body = bytes().raw(hash(man())).v(300).v(2).v(17).v(64).v(63).v(500).u8(2).v(0).v(0).v(0).v(0);
    area.valid("all-fields", "CNV-2", stream().manifest(man()).frame(UPDATE, LAST, body).done());
    area.valid("step-beyond-53-bits", "CNV-2", with(Update { step: (1 << 53) + 1, ..update(&man(), []) }))
        .notes("not a number of binary64");
    area.valid("reduction-sum", "CNV-4", with(Update { reduction: 1, ..update(&man(), []) }));
    area.valid("label", "UPD-7 UPD-4", with(update(&man(), []).attribute(1, bytes().raw("topk:größe"))))
        .encoded();
    area.valid("label-empty", "UPD-7", with(update(&man(), []).attribute(1, bytes())))
        .notes("the same as no label");
    let unknown = update(&man(), [over(whole(0))]).attribute(3, bytes().raw("?")).attribute(201, bytes());
    area.valid("attributes-unknown-odd", "UPD-5 UPD-4", with(unknown));
    area.valid("attributes-label-and-private", "UPD-5", {
        with(update(&man(), []).attribute(1, bytes().raw("l")).attribute(129, bytes().raw([0xff])))
    });
    let table = freqs_of(&[0, 1]).table();
    area.valid(
        "64-tables-unused",
        "CNV-4",
        with((0..64).fold(update(&man(), []), |u, _| u.table(table.clone()))),
    );

    area.invalid(
        "manifest-unknown",
        "UPD-1",
        "unknown_reference",
        stream().update(&update(&man(), [])).done(),
    );
    area.invalid(
        "manifest-later",
        "UPD-1",
        "unknown_reference",
        stream().update(&update(&man(), [])).manifest(man()).done(),
    );
    area.invalid("reduction-3", "CNV-4", "out_of_range", with(Update { reduction: 3, ..update(&man(), []) }));
    area.invalid(
        "65-tables",
        "CNV-4",
        "out_of_range",
        with((0..65).fold(update(&man(), []), |u, _| u.table(table.clone()))),
    );
    let attributes =
        |ids: &[u64]| with(ids.iter().fold(update(&man(), []), |u, &id| u.attribute(id, bytes())));
    area.invalid("attribute-0", "UPD-4", "out_of_range", attributes(&[0]));
    area.invalid("attribute-twice", "UPD-4", "not_ascending", attributes(&[1, 1]));
    area.invalid("attributes-descend", "UPD-4", "not_ascending", attributes(&[5, 3]));
    area.invalid("attribute-unknown-even-6", "UPD-5", "unsupported", attributes(&[6]));
    area.invalid("attribute-private-even", "UPD-5", "unsupported", attributes(&[128]));
    area.invalid(
        "label-not-utf8",
        "UPD-7",
        "invalid_utf8",
        with(update(&man(), []).attribute(1, bytes().raw([0xff]))),
    );
    area.invalid("attribute-beyond-the-body", "CNV-6", "length_mismatch", {
        let body = bytes().raw(hash(man())).raw([0; 8]).v(1).v(1).v(100);
        stream().manifest(man()).frame(UPDATE, LAST, body).done()
    });
    area.invalid("update-left-over", "CNV-6", "length_mismatch", {
        stream().manifest(man()).frame(UPDATE, LAST, update(&man(), []).body().u8(0)).done()
    });
    area.invalid("fewer-blocks", "CNV-6", "length_mismatch", {
        let body = bytes().raw(hash(man())).raw([0; 10]).v(1);
        stream().manifest(man()).frame(UPDATE, LAST, body).done()
    });
}

fn parts(area: &mut Area) {
    let a = || update(&man(), [over(whole(0))]);
    let b = || update(&man(), [valued(whole(1), 3.0)]).part(1);
    let two = || stream().manifest(man()).part(&a(), 0);
    area.valid("two-parts", "UPD-2 UPD-3", two().part(&b(), LAST).done()).tensors();
    area.valid("two-parts-index", "UPD-2 IDX-1", two().part(&b(), LAST).index().done());
    area.valid("three-parts-and-others-between", "UPD-2", {
        let metadata = bytes().u8(0).v(0);
        let other = manifest(&[("other", F32, &[1])]);
        let last = update(&man(), []).part(2).attribute(1, bytes().raw("only here"));
        two()
            .frame(METADATA, 0, metadata)
            .part(&b(), 0)
            .manifest(other)
            .frame(0xf000, 0, [])
            .part(&last, LAST)
            .done()
    })
    .tensors()
    .notes("labels may differ; frames that are neither updates nor ends may stand between parts");
    area.valid("add-across-parts", "UPD-2 UPD-6", {
        two().part(&update(&man(), [valued(adding(whole(0)), 0.5)]).part(1), LAST).done()
    })
    .tensors();
    let mut misplaced = |id: &str, requirements, bytes: Vec<u8>| {
        area.invalid(id, requirements, "misplaced", bytes);
    };
    misplaced("first-part-is-1", "UPD-2", stream().manifest(man()).part(&b(), LAST).done());
    misplaced("part-missing", "UPD-2", two().part(&b().part(2), LAST).done());
    misplaced("part-twice", "UPD-2", two().part(&b().part(0), LAST).done());
    misplaced("end-inside", "UPD-2", two().done());
    misplaced("part-after-last", "UPD-2", {
        stream().manifest(man()).part(&a(), LAST).part(&b(), LAST).done()
    });
    misplaced("parts-of-two-steps", "UPD-3", two().part(&Update { step: 1, ..b() }, LAST).done());
    misplaced("parts-of-two-senders", "UPD-3", two().part(&Update { sender: 1, ..b() }, LAST).done());
    misplaced("parts-of-two-reductions", "UPD-3", two().part(&Update { reduction: 1, ..b() }, LAST).done());
    let delta = |part: Update| part.attribute(2, bytes().v(0));
    misplaced("only-the-last-part-a-delta", "UPD-3", {
        two().part(&delta(update(&man(), []).part(1)), LAST).done()
    });
    misplaced("only-the-first-part-a-delta", "UPD-3", {
        stream().manifest(man()).part(&delta(update(&man(), [])), 0).part(&b(), LAST).done()
    });
    misplaced("parts-of-two-manifests", "UPD-3", {
        let other = manifest(&[("other", F32, &[1])]);
        stream().manifest(&other).manifest(man()).part(&a(), 0).part(&update(&other, []).part(1), LAST).done()
    });
    area.invalid("parts-overlap", "UPD-6", "not_ascending", two().part(&a().part(1), LAST).done());
}

fn scopes(area: &mut Area) {
    area.valid("several-tensors", "BLK-2 BLK-3", of([over(several(0, 2))])).tensors();
    area.valid("range-at-the-start", "BLK-1 BLK-2", of([over(range(0, 0, 3))])).tensors();
    area.valid("range-at-the-end", "BLK-1", of([over(range(0, 3, 1))])).tensors();
    area.valid("range-in-rows", "BLK-1", of([block(range(1, 1, 4), (4, bytes().u8(0b1001)), ones())]))
        .tensors();
    area.valid("empty-tensor", "BLK-1", of([block(whole(4), ALL(), (1, bytes().u8(0)))])).tensors();
    area.valid("empty-tensor-constant", "BLK-1", of([over(whole(4))])).tensors();
    let mut refuse = |id: &str, requirements, scope: Bytes| {
        area.invalid(id, requirements, "out_of_range", of([over(scope)]));
    };
    refuse("tensor-5-of-5", "BLK-1", whole(5));
    refuse("tensor-beyond-64-bits", "BLK-1", several(u64::MAX, 2));
    refuse("several-beyond", "BLK-1", several(4, 2));
    refuse("several-of-one", "BLK-2", several(0, 1));
    refuse("several-of-none", "BLK-2", several(0, 0));
    refuse("several-types", "BLK-3", several(1, 2));
    refuse("range-empty", "BLK-2", range(0, 1, 0));
    refuse("range-of-all", "BLK-2", range(0, 0, 4));
    refuse("range-beyond", "BLK-1", range(0, 2, 3));
    refuse("range-of-65-bits", "BLK-1", range(0, u64::MAX, 2));
    refuse("range-of-an-empty-tensor", "BLK-2 BLK-1", range(4, 0, 1));
    refuse("scope-3", "CNV-4", bytes().u8(3).v(0).v(0).v(1));
    area.invalid("scope-bit-3", "CNV-5", "reserved_bits", of([over(bytes().u8(8).v(0))]));
    for (id, kind) in [("0", 0), ("unassigned", 0x7fff), ("private", 0x8000)] {
        area.invalid(
            &format!("support-{id}"),
            "BLK-4",
            "unsupported",
            of([block(whole(0), (kind, bytes()), ones())]),
        );
    }
    for (id, kind) in [("0", 0), ("unassigned", 0x7fff), ("private", 0x8000)] {
        area.invalid(
            &format!("values-{id}"),
            "BLK-4",
            "unsupported",
            of([block(whole(0), ALL(), (kind, bytes()))]),
        );
    }
    area.invalid("block-longer-than-the-body", "CNV-6", "length_mismatch", of([bytes().v(50).raw(whole(0))]));
    area.invalid("block-too-short", "CNV-6", "length_mismatch", of([bytes().v(2).raw(whole(0))]));
    area.invalid("support-longer-than-the-block", "CNV-6", "length_mismatch", {
        of([bytes().text(whole(0).v(4).v(2).v(200).u8(1))])
    });
}

fn order(area: &mut Area) {
    area.valid(
        "order",
        "UPD-6",
        of([over(range(0, 0, 1)), over(range(0, 2, 1)), over(whole(1)), over(whole(2))]),
    )
    .tensors();
    area.valid("add-in-any-order", "UPD-6", {
        let more = |scope| valued(adding(scope), 0.25);
        of([
            over(whole(1)),
            more(whole(0)),
            more(several(0, 2)),
            over(whole(2)),
            more(range(1, 2, 2)),
            more(whole(2)),
        ])
    })
    .tensors();
    area.valid("add-between-ranges", "UPD-6", {
        of([over(range(0, 0, 1)), valued(adding(several(0, 2)), 0.25), over(range(0, 1, 3)), over(whole(1))])
    })
    .tensors()
    .notes("the order is that of the blocks without `add`");
    area.valid("empty-tensors-in-order", "UPD-6", {
        let man = manifest(&[("a", F32, &[0]), ("b", F32, &[2]), ("c", F32, &[0]), ("d", F32, &[0])]);
        let blocks = [over(whole(0)), over(whole(1)), over(several(2, 2))];
        stream().manifest(&man).update(&update(&man, blocks)).done()
    })
    .tensors();
    let mut refuse = |id: &str, blocks: Vec<Bytes>| {
        area.invalid(id, "UPD-6", "not_ascending", of(blocks));
    };
    refuse("blocks-descend", vec![over(whole(1)), over(whole(0))]);
    refuse("blocks-twice", vec![over(whole(0)), over(whole(0))]);
    refuse("ranges-overlap", vec![over(range(0, 0, 3)), over(range(0, 2, 2))]);
    refuse("whole-after-range", vec![over(range(0, 0, 3)), over(whole(0))]);
    refuse("range-after-whole", vec![over(whole(0)), over(range(0, 2, 1))]);
    refuse("several-overlap", vec![over(several(0, 2)), over(whole(1))]);
    refuse("empty-tensor-twice", vec![over(whole(4)), over(whole(4))]);
    let nothing = || (1, bytes().u8(0));
    refuse(
        "empty-supports-overlap",
        vec![
            block(whole(0), (4, bytes().u8(0)), nothing()),
            block(range(0, 2, 1), (4, bytes().u8(0)), nothing()),
        ],
    );
}

/// Numbers that test a conversion: all kinds of NaN, infinities, halves, subnormals, the largest number and
/// beyond.
pub(crate) const TRYING: [u32; 40] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0000,
    0x7f80_0001,
    0xff80_0001,
    0x7fbf_ffff,
    0x7fe0_1234,
    0xffa5_5aa5,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x477f_e000,
    0x477f_f000,
    0x477f_efff,
    0x3380_0000,
    0x3300_0000,
    0x3300_0001,
    0x3f80_8000,
    0x3f81_8000,
    0x3f80_8001,
    0x43e0_0000,
    0x43e8_0000,
    0x43e8_0001,
    0x4370_0000,
    0x4378_0000,
    0x4740_0000,
    0x4760_0000,
    0x4770_0000,
    0x3e80_0000,
    0x3f40_0000,
    0x40a0_0000,
    0xc1f0_0000,
];

/// Returns `floats` stored as f32.
pub(crate) fn stored_f32(patterns: &[u32]) -> (u64, Bytes) {
    (1, patterns.iter().fold(bytes().u8(2), |out, &p| out.u32(p)))
}

fn elements(area: &mut Area) {
    for dtype in 1..=9 {
        let n = TRYING.len() as u64;
        let name = gcodec::Dtype::from_id(dtype).map_or("", gcodec::Dtype::name);
        area.valid(&format!("numbers-to-{name}"), "BLK-5", dense(dtype, &[n], stored_f32(&TRYING)))
            .tensors()
            .notes("conversion from binary32: NaN payloads, ties, subnormals, overflow");
        let man = manifest(&[("w", dtype, &[n])]);
        let turned: Vec<u32> = TRYING.iter().cycle().skip(7).take(TRYING.len()).copied().collect();
        let blocks = [
            block(whole(0), ALL(), stored_f32(&TRYING)),
            block(adding(whole(0)), ALL(), stored_f32(&turned)),
        ];
        area.valid(
            &format!("add-to-{name}"),
            "BLK-5 UPD-6",
            stream().manifest(&man).update(&update(&man, blocks)).done(),
        )
        .tensors();
    }
    for (stored, patterns) in [
        (3, [0x0001u16, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0xfc00, 0x7c01, 0xfe01, 0x8000, 0x3c01]),
        (4, [0x0001, 0x007f, 0x0080, 0x7f7f, 0x7f80, 0xff80, 0x7f81, 0xffc1, 0x8000, 0x3f81]),
    ] {
        let values = patterns.iter().fold(bytes().u8(stored), |out, &p| out.u16(p));
        for dtype in [F64, F32, F16, BF16] {
            area.valid(
                &format!("stored-{stored}-to-dtype-{dtype}"),
                "BLK-5 FLT-1",
                dense(dtype, &[10], (1, values.clone())),
            )
            .tensors()
            .notes("a signalling NaN of another type becomes quiet");
        }
    }
    area.valid("replace-after-add", "UPD-6", {
        let man = manifest(&[("w", F32, &[2])]);
        let blocks = [valued(adding(whole(0)), 2.0), valued(whole(0), 1.0)];
        stream().manifest(&man).update(&update(&man, blocks)).done()
    })
    .tensors()
    .notes("blocks apply in order: the second replaces what was added");
    for (id, values) in [
        ("constant", ones()),
        ("pow2", (4, bytes().u16(0).u8(0).packed(1, &[1; 4]).u8(0).u8(0))),
        ("f32", stored_f32(&[0; 4])),
    ] {
        area.invalid(
            &format!("integers-from-{id}"),
            "BLK-5",
            "out_of_range",
            of([block(whole(3), ALL(), values)]),
        );
    }
    area.invalid("bool-from-numbers", "BLK-5", "out_of_range", dense(32, &[2], ones()));
    for (id, values) in [("source", (1, bytes().u8(0).raw([0; 16]))), ("planes", (9, bytes().raw([0; 20])))] {
        let scope = adding(whole(0));
        area.invalid(&format!("add-{id}"), "BLK-5", "out_of_range", of([block(scope, ALL(), values)]));
    }
}
