//! Supports (supports/*.md).

use gcodec::block::Positions;

use super::Area;
use super::build::*;
use super::frames::set;
use super::values::encoded_sparse;

/// Returns clustered positions, like real ones.
fn clustered(count: u64) -> Vec<u64> {
    (0..count).map(|i| i * 3 + i / 16 * 40 + i * i % 3).collect()
}

pub(crate) fn add(area: &mut Area) {
    simple(area);
    rice_gaps(area);
    token_gaps(area);
    chunked(area);
    rows(area);
    seeded(area);
    sets(area);
    huge(area);
}

fn simple(area: &mut Area) {
    for (id, shape) in [("scalar", &[][..]), ("one-element", &[1]), ("empty", &[0]), ("matrix", &[2, 3])] {
        area.valid(&format!("all-{id}"), "ALL-1", one(F32, shape, ALL(), ones())).tensors();
    }
    area.invalid("all-with-bytes", "ALL-1", "length_mismatch", placed(4, (1, bytes().u8(0))));
    area.valid("bitmap", "BMP-1", placed(11, (4, bytes().u16(0x0581)))).tensors();
    area.valid("bitmap-whole-bytes", "BMP-1", placed(16, (4, bytes().u16(0x8001)))).tensors();
    area.valid("bitmap-none", "BMP-1", placed(3, (4, bytes().u8(0)))).tensors();
    area.valid("bitmap-of-nothing", "BMP-1", placed(0, (4, bytes()))).tensors();
    area.invalid("bitmap-short", "BMP-1 LIM-2", "length_mismatch", placed(11, (4, bytes().u8(1))));
    area.invalid("bitmap-long", "BMP-1", "length_mismatch", placed(8, (4, bytes().u16(1))));
    area.invalid("bitmap-padding", "CNV-1", "nonzero_padding", placed(11, (4, bytes().u16(0x0800))));
    let choices = [
        ("auto", Positions::Auto),
        ("rice", Positions::Rice),
        ("rice-one", Positions::RiceOne),
        ("tokens", Positions::Tokens),
        ("bitmap", Positions::Bitmap),
    ];
    for (id, choice) in choices {
        let bytes = encoded_sparse(&clustered(150), 900, choice);
        let vector = area.valid(&format!("encoded-{id}"), "CAN-1", bytes);
        if choice == Positions::Auto {
            vector.encoded();
        }
    }
}

fn rice_gaps(area: &mut Area) {
    let positions = [0, 6, 24, 27, 68];
    for k in [0, 2, 6] {
        area.valid(&format!("rice-k{k}"), "RIC-2 RIC-3", placed(69, rice(&positions, k))).tensors();
    }
    area.valid("rice-k63", "RIC-2 RIC-3", placed(69, rice(&positions, 63)));
    area.valid("rice-none", "RIC-1", placed(5, (2, bytes().v(0)))).tensors();
    area.valid("rice-none-of-nothing", "RIC-1", placed(0, (2, bytes().v(0)))).tensors();
    area.valid("rice-all", "RIC-1", placed(9, rice(&[0, 1, 2, 3, 4, 5, 6, 7, 8], 0))).tensors();
    area.valid("rice-one-of-one", "RIC-1", placed(1, rice(&[0], 0))).tensors();
    let long = clustered(300);
    let n = long[299] + 1;
    let keep = |_: usize, _: &mut (u8, u64, u64)| {};
    area.valid("rice-chunks-7", "RIC-4 RIC-5", placed(n, rice_chunks(&long, 7, 2, keep)));
    area.valid("rice-chunks-8", "RIC-4 RIC-5", placed(n, rice_chunks(&long, 8, 0, keep)));
    area.valid("rice-last-chunk-of-one", "RIC-4", placed(n, rice_chunks(&long[..129], 7, 1, keep)));

    area.invalid("rice-more-than-elements", "RIC-1", "count_mismatch", placed(4, rice(&positions, 2)));
    area.invalid("rice-beyond", "RIC-2", "position_out_of_range", placed(68, rice(&positions, 2)));
    area.invalid(
        "rice-far-beyond",
        "RIC-2",
        "position_out_of_range",
        placed(69, (2, { bytes().v(1).u8(0).u8(63).fields(63, &[(1 << 63) - 1]).u8(0b10) })),
    )
    .notes("the gap is 2^64 - 1");
    let sums = bytes().v(3).u8(0).u8(63).fields(63, &[(1 << 63) - 1; 3]).u8(0b111);
    area.invalid("rice-sum-of-65-bits", "RIC-2", "position_out_of_range", placed(69, (2, sums)));
    let edited = |edit: &dyn Fn(&mut Vec<u8>)| {
        let (kind, mut support) = rice(&positions, 2);
        edit(&mut support.0);
        placed(69, (kind, support))
    };
    area.invalid("rice-byte-left-over", "RIC-3", "length_mismatch", edited(&|b| b.push(0)));
    area.invalid(
        "rice-one-in-padding",
        "RIC-3",
        "length_mismatch",
        edited(&|b| {
            let last = b.len() - 1;
            b[last] |= 0x80;
        }),
    );
    area.invalid(
        "rice-one-too-few",
        "RIC-3",
        "length_mismatch",
        edited(&|b| {
            let last = b.len() - 1;
            b[last] = 0;
        }),
    );
    area.invalid(
        "rice-second-plane-short",
        "RIC-3",
        "length_mismatch",
        edited(&|b| {
            b.pop();
        }),
    );
    area.invalid("rice-low-plane-padding", "CNV-1", "nonzero_padding", edited(&|b| b[4] |= 0x80));
    area.invalid("rice-k-64", "CNV-4", "out_of_range", edited(&|b| b[2] = 64));
    for log in [1, 6, 17] {
        area.invalid(&format!("rice-chunk-log-{log}"), "CNV-4", "out_of_range", edited(&|b| b[1] = log));
    }
    area.invalid(
        "rice-more-than-bits",
        "LIM-2",
        "length_mismatch",
        placed(1 << 20, (2, bytes().v(1 << 20).u8(0).u8(0).u8(1))),
    );
    area.invalid(
        "rice-one-chunk-of-many",
        "RIC-4",
        "not_canonical",
        placed(n, rice_chunks(&long[..128], 7, 1, keep)),
    );
    let wrong = |edit: fn(&mut (u8, u64, u64))| {
        move |n: u64, long: &[u64]| {
            placed(
                n,
                rice_chunks(long, 7, 2, |i, head| {
                    if i == 1 {
                        edit(head)
                    }
                }),
            )
        }
    };
    area.invalid("rice-span-too-long", "RIC-5", "count_mismatch", wrong(|h| h.2 += 1)(n, &long));
    area.invalid("rice-span-too-short", "RIC-5", "count_mismatch", wrong(|h| h.2 -= 1)(n, &long));
    area.invalid("rice-span-beyond", "RIC-5", "count_mismatch", wrong(|h| h.2 = u64::MAX)(n, &long));
    area.invalid("rice-unary-len", "RIC-3", "length_mismatch", wrong(|h| h.1 += 1)(n, &long));
    area.invalid(
        "rice-chunks-beyond",
        "RIC-2",
        "position_out_of_range",
        placed(n - 1, rice_chunks(&long, 7, 2, keep)),
    )
    .notes("the spans are right");
}

/// Returns a token support.
fn token_support(positions: &[u64], lanes_log: u8) -> (u64, Bytes) {
    (3, bytes().v(positions.len() as u64).raw(token_entropy(&gaps(positions), lanes_log)))
}

fn token_gaps(area: &mut Area) {
    let positions = [0, 6, 24, 27, 68];
    for lanes_log in [0, 2, 5] {
        area.valid(
            &format!("tokens-lanes-{lanes_log}"),
            "GTK-2",
            placed(69, token_support(&positions, lanes_log)),
        )
        .tensors();
    }
    area.valid("tokens-none", "GTK-1", placed(3, (3, bytes().v(0)))).tensors();
    area.valid("tokens-all", "GTK-1", placed(40, (3, bytes().v(40).raw(entropy(&[0; 40], 0)))))
        .notes("one symbol: no words at all");
    area.invalid(
        "tokens-more-than-elements",
        "GTK-1",
        "count_mismatch",
        placed(4, token_support(&positions, 0)),
    );
    area.invalid("tokens-beyond", "GTK-2", "position_out_of_range", placed(68, token_support(&positions, 0)));
    area.invalid(
        "tokens-of-65-bits",
        "GTK-2",
        "position_out_of_range",
        placed(69, (3, bytes().v(2).raw(token_entropy(&[u64::MAX, u64::MAX], 0)))),
    );
    area.invalid(
        "tokens-that-wrap",
        "GTK-2",
        "position_out_of_range",
        placed(69, (3, bytes().v(2).raw(token_entropy(&[60, u64::MAX - 57], 0)))),
    )
    .notes("modulo 2^64 the second position would be 3");
    area.invalid(
        "tokens-left-over",
        "CNV-6",
        "length_mismatch",
        placed(69, {
            let (kind, support) = token_support(&positions, 0);
            (kind, support.u8(0))
        }),
    );
}

fn chunked(area: &mut Area) {
    let of = |n: u64, len: u64, kept: u64, width: u32, positions: &[u64]| {
        placed(n, (5, bytes().v(len).v(kept).fields(width, positions)))
    };
    area.valid("chunked", "CHK-1 CHK-2", of(12, 5, 2, 3, &[0, 4, 1, 2, 0, 1])).tensors();
    area.valid("chunked-short-chunk", "CHK-1", of(13, 5, 4, 3, &[0, 1, 2, 3, 1, 2, 3, 4, 0, 1, 2])).tensors();
    area.valid("chunked-of-one", "CHK-1", of(3, 1, 1, 0, &[])).tensors().notes("no bits: everything");
    area.valid("chunked-longer-than-the-tensor", "CHK-2", of(3, 1 << 32, 2, 32, &[0, 2])).tensors();
    area.valid("chunked-of-nothing", "CHK-1", of(0, 4, 1, 2, &[])).tensors();
    area.invalid("chunked-descends", "CHK-1", "not_ascending", of(12, 5, 2, 3, &[4, 0, 1, 2, 0, 1]));
    area.invalid("chunked-twice", "CHK-1", "not_ascending", of(12, 5, 2, 3, &[0, 4, 2, 2, 0, 1]));
    area.invalid("chunked-beyond", "CHK-2", "position_out_of_range", of(12, 5, 2, 3, &[0, 5, 1, 2, 0, 1]));
    area.invalid(
        "chunked-beyond-the-last",
        "CHK-2",
        "position_out_of_range",
        of(12, 5, 2, 3, &[0, 4, 1, 2, 0, 2]),
    );
    area.invalid("chunked-len-0", "CNV-4", "out_of_range", of(12, 0, 1, 0, &[]));
    area.invalid("chunked-len-33-bits", "CNV-4", "out_of_range", of(12, (1 << 32) + 1, 1, 33, &[0]));
    area.invalid("chunked-kept-0", "CNV-4", "out_of_range", of(12, 5, 0, 3, &[]));
    area.invalid("chunked-kept-too-many", "CNV-4", "out_of_range", of(12, 5, 6, 3, &[0]));
    area.invalid("chunked-short", "CNV-6 LIM-2", "length_mismatch", of(12, 5, 2, 3, &[0, 4]));
    area.invalid(
        "chunked-padding",
        "CNV-1",
        "nonzero_padding",
        placed(
            12,
            (5, { bytes().v(5).v(2).plane([(0, 3), (4, 3), (1, 3), (2, 3), (0, 3), (1, 3), (1, 1)]) }),
        ),
    );
}

fn rows(area: &mut Area) {
    let of = |n: u64, row_len: u64, inner: (u64, Bytes)| {
        placed(n, (6, bytes().v(row_len).v(inner.0).raw(inner.1)))
    };
    area.valid("rows-bitmap", "ROW-1 ROW-2", of(12, 3, (4, bytes().u8(0b1010)))).tensors();
    area.valid("rows-rice", "ROW-2", of(12, 3, rice(&[0, 3], 1))).tensors();
    area.valid("rows-tokens", "ROW-2", of(12, 2, token_support(&[1, 2, 5], 0))).tensors();
    area.valid("rows-of-one", "ROW-1", of(3, 1, (4, bytes().u8(0b101)))).tensors();
    area.valid("rows-of-nothing", "ROW-1", of(0, 7, (4, bytes()))).tensors();
    area.invalid("rows-do-not-divide", "ROW-1", "out_of_range", of(12, 5, (4, bytes().u8(1))));
    area.invalid("rows-of-0", "CNV-4 ROW-1", "out_of_range", of(12, 0, (4, bytes().u8(1))));
    for inner in [0, 1, 5, 6, 8] {
        area.invalid(
            &format!("rows-inner-{inner}"),
            "ROW-2",
            "out_of_range",
            of(12, 3, (inner, bytes().u8(1))),
        );
    }
    area.invalid("rows-beyond", "RIC-2", "position_out_of_range", of(12, 3, rice(&[0, 4], 1)));
}

fn seeded(area: &mut Area) {
    let of = |n: u64, count: u64, seed: u64| placed(n, (7, bytes().v(count).u64(seed)));
    area.valid("seeded", "SED-1", of(1000, 20, 0x0123_4567_89ab_cdef));
    area.valid("seeded-none", "SED-1", of(10, 0, 1)).tensors();
    area.valid("seeded-all", "SED-1", of(10, 10, u64::MAX)).tensors();
    area.valid("seeded-one-of-one", "SED-1", of(1, 1, 5)).tensors();
    area.valid("seeded-of-nothing", "SED-1", of(0, 0, 5)).tensors();
    area.valid("seeded-most", "SED-1", of(64, 60, 9)).tensors();
    area.invalid("seeded-too-many", "SED-1", "count_mismatch", of(10, 11, 1));
    area.invalid("seeded-short", "CNV-6", "length_mismatch", placed(10, (7, bytes().v(1).u32(0))));
}

fn sets(area: &mut Area) {
    let man = manifest(&[("a", F32, &[8]), ("b", F32, &[8])]);
    let other = manifest(&[("a", F32, &[8])]);
    let chosen = set(&man, whole(0), (4, bytes().u8(0b1000_0101)));
    let of = |scope: Bytes| {
        let one = update(&man, [block(scope, (8, bytes().raw(hash(&chosen))), ones())]);
        stream().manifest(&man).frame(SET, 0, &chosen).update(&one)
    };
    area.valid("set", "SET-1 SET-2", of(whole(0)).done()).tensors();
    area.valid("set-of-all", "SET-1", {
        let chosen = set(&man, several(0, 2), ALL());
        let one = update(&man, [block(several(0, 2), (8, bytes().raw(hash(&chosen))), ones())]);
        stream().manifest(&man).frame(SET, 0, &chosen).update(&one).done()
    })
    .tensors();
    area.valid("set-with-add", "SET-2", of(adding(whole(0))).done())
        .tensors()
        .notes("the flag add is not part of the scope's comparison");
    area.invalid("set-unknown", "SET-1", "unknown_reference", placed(8, (8, bytes().raw([9; 32]))));
    area.invalid("set-later", "SET-1", "unknown_reference", {
        let one = update(&man, [block(whole(0), (8, bytes().raw(hash(&chosen))), ones())]);
        stream().manifest(&man).update(&one).frame(SET, 0, &chosen).done()
    });
    area.invalid("set-of-another-tensor", "SET-2", "count_mismatch", of(whole(1)).done());
    area.invalid("set-of-another-scope", "SET-2", "count_mismatch", of(range(0, 0, 7)).done());
    area.invalid("set-of-another-manifest", "SET-2", "count_mismatch", {
        let one = update(&other, [block(whole(0), (8, bytes().raw(hash(&chosen))), ones())]);
        stream().manifest(&man).manifest(&other).frame(SET, 0, &chosen).update(&one).done()
    });
    area.invalid("set-id-short", "CNV-6", "length_mismatch", placed(8, (8, bytes().raw([9; 31]))));
}

fn huge(area: &mut Area) {
    let n = (1 << 33) + 5;
    let far = [0, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 33) + 4];
    let supports =
        [("seeded", (7, bytes().v(5).u64(42))), ("rice", rice(&far, 31)), ("tokens", token_support(&far, 0))];
    for (id, support) in supports {
        area.valid(&format!("beyond-32-bits-{id}"), "RIC-2 GTK-2 SED-1", placed(n, support))
            .limit("max_elements", 1 << 34)
            .notes("a tensor of more than 2^33 elements: positions need 64 bits; do not make it dense");
    }
    let man = manifest(&[("w", BF16, &[1 << 20, 1 << 14])]);
    let block = block(range(0, (1 << 34) - 3, 3), ALL(), ones());
    area.valid(
        "beyond-32-bits-range",
        "BLK-1",
        stream().manifest(&man).update(&update(&man, [block])).done(),
    );
}
