//! Limits (gcodec.md, section 10). A vector has its reader's limits; the stream exceeds them by far, or by
//! one where the spec defines the exact count.

use super::Area;
use super::build::*;

pub(crate) fn add(area: &mut Area) {
    let man = manifest(&[("a", F32, &[8]), ("b", F32, &[8])]);
    let constant = |scope: Bytes| block(scope, ALL(), ones());
    let two = stream().manifest(&man).update(&update(&man, [constant(whole(0)), constant(whole(1))])).done();
    area.invalid("frame-bytes", "LIM-1 FRM-6", "limit", {
        stream()
            .frame_with(METADATA, 0, [], |head| head[8..16].copy_from_slice(&u64::to_le_bytes(1 << 50)))
            .open()
    })
    .notes("refused at the header, though the input ends there");
    area.valid("frame-bytes-just-so", "LIM-1", stream().frame(0xf000, 0, [7; 100]).done())
        .limit("max_frame_bytes", 100);
    area.invalid("frame-bytes-one-more", "LIM-1", "limit", stream().frame(0xf000, 0, [7; 101]).done())
        .limit("max_frame_bytes", 100);
    area.valid("tensors-just-so", "LIM-1", two.clone()).limit("max_tensors", 2);
    area.invalid("tensors-one-more", "LIM-1", "limit", two.clone()).limit("max_tensors", 1);
    area.invalid("tensors-2-to-the-60", "LIM-1 LIM-2", "limit", stream().manifest(bytes().v(1 << 60)).done());
    area.valid("elements-just-so", "LIM-1", two.clone()).limit("max_elements", 16);
    area.invalid("elements-one-more", "LIM-1", "limit", two.clone()).limit("max_elements", 15);
    area.valid("blocks-just-so", "LIM-1", two.clone()).limit("max_blocks", 2);
    area.invalid("blocks-one-more", "LIM-1", "limit", two).limit("max_blocks", 1);
    charges(area, &man);
    let other = manifest(&[("c", F32, &[1])]);
    let definitions = || {
        let chosen = super::frames::set(&man, whole(0), (4, bytes().u8(1)));
        let model = bytes().raw([1; 32]).text("f").text("n").v(1).u8(0).text("x");
        stream().manifest(&man).manifest(&man).frame(SET, 0, chosen).frame(MODEL, 0, model)
    };
    area.valid("definitions-of-each-kind", "LIM-1", definitions().done())
        .limit("max_definitions", 1)
        .notes("one manifest twice, one index set, one model");
    area.invalid("manifests-one-more", "LIM-1", "limit", definitions().manifest(&other).done())
        .limit("max_definitions", 1);
    area.invalid("sets-one-more", "LIM-1", "limit", {
        definitions().frame(SET, 0, super::frames::set(&man, whole(1), ALL())).done()
    })
    .limit("max_definitions", 1);
    area.invalid("models-one-more", "LIM-1", "limit", {
        definitions().frame(MODEL, 0, bytes().raw([2; 32]).text("f").text("n").v(1).u8(0).text("x")).done()
    })
    .limit("max_definitions", 1);
    area.invalid("zstd", "LIM-1", "limit", stream().frame(METADATA, 0, bytes().u8(1).v(1 << 50)).done());
    let window = bytes().u8(1).v(1).u32(0xfd2f_b528).u8(0).u8(0xff).raw([9, 0, 0]).u8(0);
    area.invalid("zstd-window", "LIM-1", "limit", stream().frame(METADATA, 0, window).done())
        .notes("one byte, in a zstd frame that asks for a window of 3.75 TiB");
    let model = bytes().raw([1; 32]).text("f").text("n").v(1 << 50).u8(2);
    area.invalid("zstd-model", "LIM-1", "limit", stream().frame(MODEL, 0, model).done());

    // A tensor of 2^50 elements, in values of a few bytes.
    let n = 1 << 50;
    let symbols = bytes().u8(2).raw(entropy(&[7], 0));
    let expanding = [
        ("all-constant", ALL(), ones()),
        ("packed-width-0", ALL(), (4, bytes().u16(0).u8(0).packed(0, &[]).u8(0))),
        ("transform", ALL(), (13, bytes().v(1 << 25).v(1 << 25).v(1).v(1).v(1).v(0).v(2).raw(scale(1.0)))),
        ("one-symbol", ALL(), (4, bytes().u16(0).u8(0).raw(symbols).u8(0))),
        ("gaps-of-one-token", (3, bytes().v(n).raw(entropy(&[0], 0))), ones()),
        ("seeded", (7, bytes().v(n).u64(1)), ones()),
        ("chunks-of-one", (5, bytes().v(1).v(1)), ones()),
        ("rows", (6, bytes().v(n / 8).v(4).u8(0xff)), ones()),
    ];
    for (id, support, values) in expanding {
        area.invalid(&format!("expanding-{id}"), "LIM-1 LIM-2", "limit", one(F32, &[n], support, values))
            .notes("few bytes that declare 2^50 elements");
    }
    let transform = |m: u64| bytes().v(m).v(128).v(128).v(128).v(4).v(16 * m).raw(vec![0; 16 * m as usize]);
    let of = |m: u64| one(F32, &[128 * m], ALL(), (13, transform(m).v(2).raw(scale(1.0))));
    area.valid("transform-just-so", "LIM-2", of(128)).limit("max_elements", 17 << 14);
    area.invalid("transform-one-more", "LIM-2", "limit", of(128))
        .limit("max_elements", (17 << 14) - 1)
        .notes("128 x 128 elements, and as many again for every 16 of 256 multiplications");
    let alloc = [
        ("gaps-of-one-token", (3, bytes().v(1 << 38).raw(entropy(&[0], 0)))),
        ("seeded", (7, bytes().v(1 << 38).u64(1))),
    ];
    for (id, support) in alloc {
        area.invalid(&format!("alloc-{id}"), "LIM-2", "limit", one(F32, &[1 << 39], support, ones()))
            .limit("max_elements", 1 << 40)
            .notes("the elements are allowed, the memory for the positions is not");
    }
    area.invalid(
        "bitmap-of-2-to-the-39",
        "LIM-2",
        "length_mismatch",
        one(F32, &[1 << 39], (4, bytes()), ones()),
    )
    .limit("max_elements", 1 << 40);
    area.invalid("packed-of-2-to-the-39", "LIM-2", "length_mismatch", {
        one(F32, &[1 << 39], ALL(), (4, bytes().u16(0).u8(0).packed(3, &[])))
    })
    .limit("max_elements", 1 << 40);
    area.invalid("rice-of-2-to-the-38", "LIM-2", "length_mismatch", {
        one(F32, &[1 << 39], (2, bytes().v(1 << 38).u8(0).u8(0)), ones())
    })
    .limit("max_elements", 1 << 40);
}

/// Adds vectors of the counts of elements, blocks and names (LIM-3): each stream with a limit that it
/// just keeps, and with one less.
fn charges(area: &mut Area, man: &Bytes) {
    let of = |blocks: Vec<Bytes>| stream().manifest(man).update(&update(man, blocks)).done();
    let two = super::frames::set(man, several(0, 2), ALL());
    area.valid("set-of-several-tensors", "LIM-3", stream().manifest(man).frame(SET, 0, two).done())
        .limit("max_blocks", 1)
        .notes("the tensors of a set are no blocks");
    let mut exact = |id: &str, limit: &str, most: u64, bytes: Vec<u8>, notes: &str| {
        area.valid(&format!("{id}-just-so"), "LIM-3", bytes.clone()).limit(limit, most).notes(notes);
        area.invalid(&format!("{id}-one-more"), "LIM-3", "limit", bytes).limit(limit, most - 1);
    };
    let constant = |scope: Bytes| block(scope, ALL(), ones());
    exact(
        "elements-added",
        "max_elements",
        24,
        of((0..3).map(|_| constant(adding(whole(0)))).collect()),
        "blocks with `add` over the same 8 elements count each time",
    );
    exact(
        "elements-without-values",
        "max_elements",
        11,
        of(vec![block(range(0, 0, 3), (4, bytes().u8(0)), (1, bytes().u8(0))), constant(whole(1))]),
        "the elements of a scope count, with and without values",
    );
    exact(
        "elements-of-parts",
        "max_elements",
        8,
        {
            let (first, second) =
                (update(man, [constant(whole(0))]), update(man, [constant(whole(1))]).part(1));
            stream().manifest(man).part(&first, 0).part(&second, LAST).done()
        },
        "each part of an update counts by itself",
    );
    exact(
        "elements-of-a-set",
        "max_elements",
        8,
        {
            let set = super::frames::set(man, whole(0), (4, bytes().u8(1)));
            stream().manifest(man).frame(SET, 0, set).done()
        },
        "the elements of the set's scope",
    );
    let factor = |count: usize| (1, bytes().u8(3).raw(vec![0; 2 * count]));
    let low_rank = {
        let (p, q) = (factor(2 * 3), factor(4 * 3));
        (12, bytes().v(2).v(4).v(3).v(p.0).text(p.1).v(q.0).raw(q.1))
    };
    exact(
        "low-rank",
        "max_elements",
        8 + 3 * (2 + 4) + 3 * 8,
        of(vec![block(whole(0), ALL(), low_rank)]),
        "a matrix of 2 x 4 of rank 3: its elements, the factors, a multiplication per element and rank",
    );
    let latent = (11, bytes().raw([0xab; 32]).v(2).v(3).v(4).v(4).u16(0).u8(0).packed(0, &[]).u8(0));
    exact(
        "latent",
        "max_elements",
        8 + 12,
        of(vec![block(whole(0), ALL(), latent)]),
        "8 elements and 12 codes",
    );
    let dct = |rows: u64, cols: u64, tall: u64, wide: u64| {
        (13, bytes().v(rows).v(cols).v(tall).v(wide).v(4).v(1).u8(0).v(2).raw(scale(1.0)))
    };
    exact(
        "transforms",
        "max_elements",
        2 * 8 + 3 + 1,
        of(vec![block(whole(0), ALL(), dct(2, 4, 2, 4)), block(whole(1), ALL(), dct(1, 8, 1, 1))]),
        "8 x 6 / 16 and 8 x 2 / 16",
    );
    exact(
        "transforms-rounded-up",
        "max_elements",
        2 * 8 + 2 + 2,
        of(vec![block(whole(0), ALL(), dct(2, 4, 1, 2)), block(whole(1), ALL(), dct(2, 4, 2, 1))]),
        "8 x 3 / 16 = 1.5, rounded up for each block",
    );
    exact(
        "set-of-a-block",
        "max_elements",
        8,
        {
            let set = super::frames::set(man, whole(0), ALL());
            let block = block(whole(0), (8, bytes().raw(hash(&set))), ones());
            stream().manifest(man).frame(SET, 0, set).update(&update(man, [block])).done()
        },
        "the set counts in its frame, and the block its own elements",
    );
    exact(
        "blocks-of-several-tensors",
        "max_blocks",
        3,
        of(vec![constant(several(0, 2)), constant(adding(whole(1)))]),
        "a block counts once for each tensor of its scope",
    );
    let names = manifest(&[("layer.weight", F32, &[1]), ("layer.bias", F32, &[1])]);
    exact(
        "names",
        "max_inflated_bytes",
        22,
        stream().manifest(names).done(),
        "the names with their shared parts",
    );
}
