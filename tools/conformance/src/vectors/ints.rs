//! Integer codes (gcodec.md, section 7), through values that contain them: `ulp` for integers of any size,
//! 8-bit `affine` for symbols.

use super::Area;
use super::build::*;
use super::delta::ulps;

/// Returns a stream with these `ints`, all below 256.
fn symbols(count: u64, ints: Bytes) -> Vec<u8> {
    coded(count, ints, &[])
}

fn coded(count: u64, ints: Bytes, tables: &[Bytes]) -> Vec<u8> {
    let man = manifest(&[("w", F32, &[count])]);
    let values = (6, bytes().u8(8).u8(0).raw(scale(1.0)).raw(ints));
    let update = update(&man, [block(whole(0), ALL(), values)]);
    stream().manifest(&man).update(&tables.iter().fold(update, |u, t| u.table(t.clone()))).done()
}

pub(crate) fn add(area: &mut Area) {
    packed(area);
    tokens_and_symbols(area);
    segments(area);
    tables(area);
    rans(area);
    referenced(area);
    joined(area);
    trees(area);
}

fn packed(area: &mut Area) {
    area.valid("packed", "INT-4", symbols(5, bytes().packed(3, &[0, 1, 7, 2, 5])));
    area.valid("packed-width-0", "LIM-2", symbols(5, bytes().packed(0, &[0; 5])));
    area.valid("packed-wider-than-needed", "INT-4", symbols(3, bytes().packed(64, &[0, 1, 255])));
    let extremes = [0, 1, 1 << 63, u64::MAX, u64::MAX - 1];
    area.valid("packed-64", "ULP-1", ulps(19, bytes().packed(64, &extremes), 5));
    area.invalid("packed-width-65", "CNV-4", "out_of_range", symbols(1, bytes().u8(0).u8(65).raw([0; 9])));
    area.invalid("packed-short", "LIM-2 CNV-6", "length_mismatch", symbols(5, bytes().packed(40, &[0])));
    area.invalid("packed-padding", "CNV-1", "nonzero_padding", symbols(2, bytes().u8(0).u8(3).u8(0x40)));
    area.invalid("packed-beyond", "INT-4", "out_of_range", symbols(2, bytes().packed(9, &[0, 256])));
    for coding in [6, 255] {
        area.invalid(
            &format!("coding-{coding}"),
            "CNV-4",
            "unsupported",
            symbols(2, bytes().u8(coding).u8(0)),
        );
    }
}

fn tokens_and_symbols(area: &mut Area) {
    let small: Vec<u64> = (0..256).collect();
    let wide: Vec<u64> =
        (0..64).flat_map(|e| [1u64 << e, (1 << e) | (1 << e >> 1), u64::MAX >> (63 - e)]).collect();
    for lanes_log in [0, 2, 5] {
        let tokens = bytes().u8(1).raw(token_entropy(&small, lanes_log));
        area.valid(&format!("tokens-lanes-{lanes_log}"), "INT-4 INT-5 ANS-2", symbols(256, tokens));
        let plain: Vec<u8> = (0..300).map(|i| (i * i % 7) as u8).collect();
        let plain = bytes().u8(2).raw(entropy(&plain, lanes_log));
        area.valid(&format!("symbols-lanes-{lanes_log}"), "ANS-1 ANS-2", symbols(300, plain));
        let few = bytes().u8(2).raw(entropy(&[3, 1, 3], lanes_log));
        area.valid(&format!("fewer-than-lanes-{lanes_log}"), "ANS-2", symbols(3, few));
    }
    area.valid(
        "tokens-of-every-size",
        "INT-5",
        ulps(19, bytes().u8(1).raw(token_entropy(&wide, 2)), wide.len() as u64),
    )
    .notes("up to token 127, which has 62 raw bits");
    let every: Vec<u8> = (0..=255).chain(0..=255).collect();
    area.valid("every-symbol", "TAB-1", symbols(512, bytes().u8(2).raw(entropy(&every, 2))));
    area.valid("one-symbol", "TAB-3 LIM-2", symbols(2000, bytes().u8(2).raw(entropy(&[77; 2000], 0))))
        .notes("2000 integers in 13 bytes");
    area.invalid("lanes-1", "CNV-4", "out_of_range", {
        symbols(3, bytes().u8(2).u8(0).v(0).raw(freqs_of(&[1]).table()).u8(1).v(0).u32(1 << 16).u32(1 << 16))
    });
    area.invalid("token-128", "INT-5", "out_of_range", symbols(1, bytes().u8(1).raw(entropy(&[128], 0))));
    area.invalid(
        "token-255",
        "INT-5",
        "out_of_range",
        symbols(2, bytes().u8(1).raw(entropy(&[0, 255], 0)).raw([0; 40])),
    );
    area.invalid(
        "tokens-beyond",
        "INT-4",
        "out_of_range",
        symbols(2, bytes().u8(1).raw(token_entropy(&[0, 256], 0))),
    );
    area.invalid("raw-bits-padding", "CNV-1", "nonzero_padding", {
        symbols(1, bytes().u8(1).raw(entropy(&tokens(&[4]), 0)).u8(0b10))
    });
    area.invalid("raw-bits-missing", "CNV-6", "length_mismatch", {
        ulps(19, bytes().u8(1).raw(entropy(&tokens(&[1 << 40]), 0)), 1)
    });
    area.invalid("lanes-cut", "CNV-6", "length_mismatch", {
        ulps(19, bytes().u8(2).u8(0).v(0).raw(freqs_of(&[1]).table()).u8(5).v(0).u32(1 << 16), 1)
    });
    area.invalid("words-beyond-the-block", "CNV-6 LIM-2", "length_mismatch", {
        symbols(3, bytes().u8(2).u8(0).v(0).raw(freqs_of(&[1]).table()).u8(0).v(u64::MAX).u32(1 << 16))
    });
}

fn segments(area: &mut Area) {
    let many: Vec<u8> = (0..2100u64).map(|i| (gcodec::compress::random::word(11, 0, i) % 5) as u8).collect();
    let freqs = freqs_of(&[0, 1, 2, 3, 4]);
    let shared = |part: &[u8]| bytes().v(1).raw(freqs.code(part, 2));
    let own = |part: &[u8]| freqs_of(part).segment(part, 0);
    let join = |log: u8, parts: Vec<Bytes>| parts.iter().fold(bytes().u8(2).u8(log), |out, p| out.text(p));
    let cut = |log: u8, f: &dyn Fn(&[u8]) -> Bytes| join(log, many.chunks(1 << log).map(f).collect());
    let tables = [freqs.table()];
    area.valid("segments-of-1024", "INT-1", symbols(2100, cut(10, &own)));
    area.valid("segments-of-2048", "INT-1", symbols(2100, cut(11, &own)));
    area.valid("segments-with-shared-table", "INT-2", coded(2100, cut(10, &shared), &tables));
    area.valid(
        "shared-table-0-and-own",
        "INT-2",
        coded(2100, join(11, vec![shared(&many[..2048]), own(&many[2048..])]), &tables),
    );
    area.valid("last-of-two-shared-tables", "INT-2", {
        let other = freqs_of(&[9]).table();
        let code = bytes().u8(2).u8(0).v(2).raw(freqs.code(&many, 5));
        coded(2100, code, &[other, tables[0].clone()])
    });
    let tokens = bytes().u8(1).u8(10);
    let values: Vec<u64> = many.iter().map(|&s| 5 + u64::from(s)).collect();
    let tokens = values.chunks(1024).fold(tokens, |out, part| {
        let part_tokens = super::build::tokens(part);
        out.text(freqs_of(&part_tokens).segment(&part_tokens, 2).raw(raw_bits(part)))
    });
    area.valid("token-segments", "INT-1", symbols(2100, tokens)).notes("each segment has its own raw bits");
    area.invalid(
        "one-segment-of-many",
        "INT-1",
        "not_canonical",
        symbols(1024, join(10, vec![own(&many[..1024])])),
    );
    area.invalid(
        "one-short-segment-of-many",
        "INT-1",
        "not_canonical",
        symbols(3, join(24, vec![own(&many[..3])])),
    );
    for log in [1, 9, 25] {
        area.invalid(
            &format!("segment-log-{log}"),
            "CNV-4",
            "out_of_range",
            symbols(2100, bytes().u8(2).u8(log).raw([0; 99])),
        );
    }
    area.invalid("segment-too-long", "CNV-6", "length_mismatch", {
        symbols(2100, join(11, vec![own(&many[..2048]).u8(0), own(&many[2048..])]))
    });
    area.invalid("segment-too-short", "CNV-6", "length_mismatch", {
        let mut first = own(&many[..2048]);
        first.0.pop();
        symbols(2100, join(11, vec![first, own(&many[2048..])]))
    });
    area.invalid("shared-table-missing", "INT-2", "unknown_reference", coded(2100, cut(10, &shared), &[]));
    area.invalid("shared-table-beyond", "INT-2", "unknown_reference", {
        coded(3, bytes().u8(2).u8(0).v(u64::MAX).raw(freqs.code(&many[..3], 0)), &tables)
    });
}

fn tables(area: &mut Area) {
    // The table alone, as an unused shared table.
    let of = |table: Bytes| coded(0, bytes(), &[table]);
    let fields = |fields: &[(u64, u32)]| of(bytes().plane(fields.iter().copied()));
    area.valid("table-of-one", "TAB-1 TAB-3", fields(&[(255, 8), (0, 8), (0, 8)]));
    area.valid(
        "table-rest-in-the-middle",
        "TAB-2",
        fields(&[(5, 8), (2, 8), (1, 8), (1, 4), (12, 4), (7, 3)]),
    );
    area.valid("table-of-all-symbols", "TAB-1", {
        of(bytes().plane([(0, 8), (255, 8), (128, 8)].into_iter().chain([(1, 4)].repeat(255))))
    });
    area.valid("table-rest-1", "TAB-2", {
        // 2^11 + 7 * 2^8 = 3840, 2^7 + 7 * 2^4 = 240, 2^3 + 7 = 15: their sum is 4095.
        fields(&[(0, 8), (3, 8), (0, 8), (12, 4), (7, 3), (8, 4), (7, 3), (4, 4), (7, 3)])
    });
    // Each frequency that a table can encode, used, from its smallest exponent: fewer than three bits follow
    // the first three.
    for (id, exponents) in [("frequencies-below-256", 0..8), ("frequencies-from-256", 8..9)] {
        let freqs = |e: u32| (0..1 << e.min(3)).map(move |y| (1 << e) + (y << (e - e.min(3))));
        let freqs: Vec<u32> = exponents.flat_map(freqs).collect();
        let rest = freqs.len() as u8;
        let left = 4096 - freqs.iter().sum::<u32>();
        let freqs = Freqs { freqs: (0..).zip(freqs.iter().copied().chain([left])).collect(), rest };
        let every: Vec<u8> = (0..=rest).chain((0..=rest).rev()).collect();
        let count = every.len() as u64;
        area.valid(&format!("{id}-shared"), "TAB-2 INT-2", {
            coded(count, bytes().u8(2).u8(0).v(1).raw(freqs.code(&every, 0)), &[freqs.table()])
        });
        let own = bytes().u8(2).u8(0).raw(freqs.segment(&every, 2));
        area.valid(&format!("{id}-own"), "TAB-2", symbols(count, own));
    }
    let mut refuse = |id: &str, requirements, bytes: Vec<u8>| {
        area.invalid(id, requirements, "bad_table", bytes);
    };
    refuse("table-last-256", "TAB-1", fields(&[(200, 8), (56, 8), (0, 8), (0, 8)]));
    refuse("table-rest-beyond", "TAB-1", fields(&[(0, 8), (1, 8), (2, 8), (0, 8)]));
    refuse("table-rest-256", "TAB-1", fields(&[(255, 8), (0, 8), (1, 8)]));
    for x in [13, 14, 15] {
        refuse(&format!("table-x-{x}"), "TAB-2", fields(&[(0, 8), (1, 8), (0, 8), (x, 4), (0, 4)]));
    }
    refuse("table-4096", "TAB-2", fields(&[(0, 8), (2, 8), (0, 8), (12, 4), (0, 3), (12, 4), (0, 3)]));
    refuse("table-first-0", "TAB-3", fields(&[(0, 8), (1, 8), (1, 8), (0, 4)]));
    refuse("table-last-0", "TAB-3", fields(&[(0, 8), (1, 8), (0, 8), (0, 4)]));
    area.invalid(
        "table-padding",
        "CNV-1",
        "nonzero_padding",
        fields(&[(0, 8), (1, 8), (0, 8), (1, 4), (1, 1)]),
    );
    area.invalid("table-cut", "CNV-6", "length_mismatch", {
        let man = manifest(&[("w", F32, &[1])]);
        let body = bytes().raw(hash(&man)).raw([0; 9]).v(1).plane([(0, 8), (9, 8), (0, 8), (1, 4), (1, 4)]);
        stream().manifest(&man).frame(UPDATE, LAST, body).done()
    });
}

fn rans(area: &mut Area) {
    let many: Vec<u8> = (0..500u64).map(|i| (gcodec::compress::random::word(12, 0, i) % 9) as u8).collect();
    let freqs = freqs_of(&many);
    let of = |count: u64, edit: &dyn Fn(&mut Vec<u32>, &mut Vec<u16>)| {
        let (mut states, mut words) = freqs.rans(&many, 2);
        edit(&mut states, &mut words);
        let head = bytes().u8(2).u8(0).v(0).raw(freqs.table()).u8(2).v(words.len() as u64);
        let code = states.into_iter().fold(head, Bytes::u32);
        symbols(count, words.into_iter().fold(code, Bytes::u16))
    };
    area.valid("rans", "ANS-1 ANS-2", of(500, &|_, _| {}));
    let mut refuse = |id: &str, requirements, bytes: Vec<u8>| {
        area.invalid(id, requirements, "bad_code", bytes);
    };
    refuse("state-0", "ANS-1", of(500, &|s, _| s[1] = 0));
    refuse("state-below", "ANS-1", of(500, &|s, _| s[3] = 0xffff));
    refuse("state-other", "ANS-2", of(500, &|s, _| s[0] ^= 1 << 20));
    refuse("word-other", "ANS-2", of(500, &|_, w| w[0] ^= 1));
    refuse(
        "word-missing",
        "ANS-2",
        of(500, &|_, w| {
            w.pop();
        }),
    );
    refuse("word-left-over", "ANS-2", of(500, &|_, w| w.push(0)));
    refuse("fewer-integers", "ANS-2", of(499, &|_, _| {}));
    refuse("more-integers", "ANS-2", of(504, &|_, _| {}));
}

fn referenced(area: &mut Area) {
    let of = |count: u64, row_len: u64, flags: u8, parts: &[&[u8]]| {
        let head = bytes().u8(3).v(row_len).u8(flags);
        symbols(count, parts.iter().fold(head, |out, part| out.raw(entropy(part, 0))))
    };
    area.valid("referenced-rows", "INT-7", of(7, 3, 0, &[&[0, 10, 250], &[0, 1, 2, 255, 4, 5, 6]]))
        .notes("modulo 256");
    area.valid(
        "referenced-columns",
        "INT-7",
        of(7, 3, 1, &[&[0, 10, 200], &[0, 1, 100], &[0, 1, 2, 255, 4, 5, 6]]),
    );
    area.valid("referenced-zero-apart", "INT-7", of(7, 3, 2, &[&[0, 10, 254], &[0, 1, 2, 255, 0, 5, 6]]))
        .notes("modulo 255");
    area.valid(
        "referenced-both",
        "INT-7",
        of(7, 3, 3, &[&[0, 254, 3], &[254, 0, 9], &[0, 1, 2, 255, 0, 5, 0]]),
    );
    area.valid("referenced-one-row", "INT-7", of(4, 4, 0, &[&[3], &[0, 1, 2, 3]]));
    area.valid("referenced-rows-of-one", "INT-7", of(3, 1, 1, &[&[1, 2, 3], &[9], &[0, 1, 2]]));
    area.valid("references-of-255", "INT-7", of(2, 2, 1, &[&[255], &[255, 0], &[1, 1]]))
        .notes("allowed without zero apart");
    area.invalid("reference-row-255", "INT-7", "out_of_range", of(4, 2, 2, &[&[0, 255], &[0, 0, 0, 0]]));
    area.invalid(
        "reference-column-255",
        "INT-7",
        "out_of_range",
        of(4, 2, 3, &[&[0, 1], &[255, 0], &[0, 0, 0, 0]]),
    );
    area.invalid("referenced-flags", "CNV-5", "reserved_bits", of(4, 2, 4, &[&[0, 1], &[0, 0, 0, 0]]));
    area.invalid("row-len-0", "CNV-4", "out_of_range", of(4, 0, 0, &[&[0, 1], &[0, 0, 0, 0]]));
    area.invalid("row-len-beyond", "CNV-4", "out_of_range", of(4, 5, 0, &[&[0], &[0, 0, 0, 0]]));
    area.invalid("referenced-beyond", "INT-4", "out_of_range", {
        let ints = bytes().u8(3).v(2).u8(0).raw(entropy(&[8], 0)).raw(entropy(&[0, 0], 0));
        dense(F32, &[2], (6, bytes().u8(3).u8(0).raw(scale(1.0)).raw(ints)))
    });
}

fn joined(area: &mut Area) {
    // The symbols of integers below 2^(8 / per).
    let symbols_of = |per: u8, ints: &[u8]| -> Vec<u8> {
        let symbol =
            |of: &[u8]| of.iter().rev().fold(0, |symbol, v| (u32::from(symbol) << (8 / per)) as u8 | v);
        ints.chunks(per.into()).map(symbol).collect()
    };
    let draw = |count: u64, below: u32| -> Vec<u8> {
        (0..count).map(|i| (gcodec::compress::random::word(13, 0, i) % below) as u8).collect()
    };
    let few = [1, 0, 1, 1, 0, 0, 0, 0, 1];
    for (per, lanes_log) in [(2, 0), (4, 2), (8, 5)] {
        let of = |ints: &[u8]| bytes().u8(4).u8(per).raw(entropy(&symbols_of(per, ints), lanes_log));
        area.valid(&format!("joined-{per}"), "INT-6 INT-4", symbols(203, of(&draw(203, 1 << (8 / per)))))
            .notes("the last symbol holds three integers");
        area.valid(&format!("joined-{per}-of-one"), "INT-6", symbols(1, of(&[1])));
        area.valid(&format!("joined-{per}-whole"), "INT-6", symbols(8, of(&few[..8])));
        let count = u64::from(per) + 1;
        let mut padded = symbols_of(per, &few[..count as usize]);
        padded[1] |= 1 << (8 / per);
        area.invalid(&format!("joined-{per}-padding"), "INT-6", "nonzero_padding", {
            symbols(count, bytes().u8(4).u8(per).raw(entropy(&padded, 0)))
        });
        padded[1] = 0x80;
        area.invalid(&format!("joined-{per}-last-bit"), "INT-6", "nonzero_padding", {
            symbols(count, bytes().u8(4).u8(per).raw(entropy(&padded, 0)))
        });
    }
    for per in [0, 1, 3, 16] {
        area.invalid(&format!("joined-per-{per}"), "CNV-4", "out_of_range", {
            symbols(4, bytes().u8(4).u8(per).raw(entropy(&[0; 4], 0)))
        });
    }
    area.invalid("joined-beyond", "INT-4", "out_of_range", {
        let ints = bytes().u8(4).u8(2).raw(entropy(&[0x87], 0));
        dense(F32, &[2], (6, bytes().u8(3).u8(0).raw(scale(1.0)).raw(ints)))
    });
    area.valid("joined-wide", "INT-6", ulps(19, bytes().u8(4).u8(2).raw(entropy(&[0xf1, 0x2], 2)), 3));
    // 2,100 symbols, the last of one integer.
    let many = symbols_of(4, &draw(8397, 3));
    let freqs = freqs_of(&many);
    let join = |parts: Vec<Bytes>| parts.iter().fold(bytes().u8(4).u8(4).u8(10), |out, p| out.text(p));
    let own = |part: &[u8]| freqs_of(part).segment(part, 5);
    let shared = |part: &[u8]| bytes().v(1).raw(freqs.code(part, 2));
    area.valid("joined-segments", "INT-1 INT-6", symbols(8397, join(many.chunks(1024).map(own).collect())))
        .notes("segments of 2^10 symbols");
    area.valid("joined-segments-with-shared-table", "INT-2 INT-6", {
        coded(8397, join(many.chunks(1024).map(shared).collect()), &[freqs.table()])
    });
    area.invalid("joined-one-segment-of-many", "INT-1", "not_canonical", {
        symbols(4096, join(vec![own(&many[..1024])]))
    });
    area.invalid("joined-shared-table-missing", "INT-2", "unknown_reference", {
        symbols(8, bytes().u8(4).u8(4).u8(0).raw(shared(&many[..2])))
    });
    area.invalid("joined-by-group", "INT-3", "out_of_range", {
        symbols(8, bytes().u8(4).u8(4).u8(1).raw(own(&many[..2])))
    });
}

fn trees(area: &mut Area) {
    let of = |inner: u8, tree: Bytes| bytes().u8(5).u8(inner).u8(0).raw(tree);
    // Each symbol is half as likely as the one before.
    let halving = Freqs { freqs: (0..13).map(|s| (40 + s, 2048 >> s.min(11))).collect(), rest: 40 };
    let draw = |count: u64| -> Vec<u8> {
        let word = |i| gcodec::compress::random::word(17, 0, i);
        (0..count).map(|i| 40 + word(i).leading_zeros().min(12) as u8).collect()
    };
    let some = draw(203);
    area.valid("tree", "TRE-1 INT-4", symbols(203, of(2, halving.tree(&some))));
    area.valid("tree-all-symbols", "TRE-1", {
        let all: Vec<u8> = (40..53).collect();
        symbols(13, of(2, halving.tree(&all)))
    })
    .notes("the longest codes have 12 bits");
    for count in [2, 3, 5, 6, 7, 33] {
        let kinds: Vec<u8> = (0..count).map(|s| 7 * s).collect();
        let many: Vec<u8> = kinds.iter().cycle().take(70).copied().collect();
        area.valid(
            &format!("tree-equal-weights-{count}"),
            "TRE-1",
            symbols(70, of(2, freqs_of(&many).tree(&many))),
        )
        .notes("all symbols but the first are equally likely");
    }
    area.valid("tree-of-one", "TRE-1", symbols(300, of(2, freqs_of(&[9]).tree(&[9; 300]))))
        .notes("a leaf has no bits");
    area.valid("tree-missing-symbols", "TRE-1", symbols(12, of(2, halving.tree(&[44; 12]))))
        .notes("nodes that no symbol passes have no bits");
    // The planes of both inner nodes of a stretch come before those of the next one.
    let three = Freqs { freqs: vec![(3, 3968), (5, 64), (9, 64)], rest: 3 };
    let long: Vec<u8> =
        (0..(1 << 15) + 77).map(|i| if i % 290 == 0 { 5 + 4 * (i / 290 % 2) as u8 } else { 3 }).collect();
    area.valid("tree-stretches", "TRE-1", symbols(long.len() as u64, of(2, three.tree(&long))))
        .notes("the second stretch has 77 symbols");
    let deep = [1, 1, 1, 3, 4, 7, 11, 18, 30, 48, 80, 128, 208, 352, 576, 896, 1732];
    let deep = Freqs { freqs: (0..).zip(deep).collect(), rest: 16 };
    let each: Vec<u8> = (0..17).cycle().take(40).collect();
    area.valid("tree-of-16-levels", "TRE-1", symbols(40, of(2, deep.tree(&each))))
        .notes("no table has a deeper tree");
    let rows = entropy(&[1, 2, 3], 0);
    area.valid("tree-referenced", "TRE-1", {
        symbols(12, bytes().u8(5).u8(3).v(4).u8(0).raw(rows.clone()).u8(0).raw(halving.tree(&some[..12])))
    });
    area.valid("tree-referenced-columns", "TRE-1", {
        let columns = entropy(&[0, 9, 8, 7], 0);
        let ints = bytes().u8(5).u8(3).v(4).u8(3).raw(rows).raw(columns);
        symbols(12, ints.u8(0).raw(halving.tree(&some[..12])))
    });
    let many = draw(2500);
    let segments = |parts: Vec<Bytes>| parts.iter().fold(bytes().u8(5).u8(2).u8(10), |out, p| out.text(p));
    let shared = |part: &[u8]| {
        let planes = halving.planes(part);
        bytes().v(1).v(planes.0.len() as u64).raw(planes)
    };
    let own = |part: &[u8]| halving.tree(part);
    area.valid("tree-segments", "INT-1 TRE-1", symbols(2500, segments(many.chunks(1024).map(own).collect())));
    area.valid("tree-segments-with-shared-table", "INT-2 TRE-1", {
        coded(2500, segments(many.chunks(1024).map(shared).collect()), &[halving.table()])
    });
    let with =
        |planes: &[u8], len: u64| symbols(203, of(2, bytes().v(0).raw(halving.table()).v(len).raw(planes)));
    let planes = halving.planes(&some).0;
    let len = planes.len() as u64;
    area.invalid("tree-short", "TRE-1", "bad_code", with(&planes[..planes.len() - 1], len - 1));
    area.invalid("tree-empty", "TRE-1", "bad_code", with(&[], 0));
    area.invalid("tree-long", "TRE-1", "bad_code", with(&[planes.as_slice(), &[0]].concat(), len + 1));
    area.invalid("tree-of-one-long", "TRE-1", "bad_code", {
        symbols(3, of(2, bytes().v(0).raw(freqs_of(&[9]).table()).v(1).u8(0)))
    });
    area.invalid("tree-len-beyond", "CNV-6 LIM-2", "length_mismatch", with(&planes, len + 1));
    // The root has 203 bits: the last five of its 26 bytes are padding.
    let mut padded = planes.clone();
    padded[25] |= 0x80;
    area.invalid("tree-padding", "CNV-1", "nonzero_padding", with(&padded, len));
    for inner in [0, 1, 4, 5, 255] {
        area.invalid(&format!("tree-inner-{inner}"), "CNV-4", "out_of_range", {
            symbols(203, of(inner, halving.tree(&some)))
        });
    }
    area.invalid("tree-beyond", "INT-4", "out_of_range", {
        dense(F32, &[203], (6, bytes().u8(3).u8(0).raw(scale(1.0)).raw(of(2, halving.tree(&some)))))
    });
    area.invalid("tree-one-segment-of-many", "INT-1", "not_canonical", {
        symbols(1024, segments(vec![own(&many[..1024])]))
    });
    area.invalid("tree-shorter-than-its-segment", "CNV-6", "length_mismatch", {
        let with_rest = |part: &[u8]| own(part).u8(0);
        symbols(2500, segments(many.chunks(1024).map(with_rest).collect()))
    });
    area.invalid("tree-beyond-its-segment", "CNV-6 LIM-2", "length_mismatch", {
        let planes = halving.planes(&many[..1024]).0;
        let longer = bytes().v(0).raw(halving.table()).v(planes.len() as u64 + 1).raw(planes);
        symbols(2500, segments([longer].into_iter().chain(many[1024..].chunks(1024).map(own)).collect()))
    });
    area.invalid("tree-shared-table-missing", "INT-2", "unknown_reference", {
        symbols(2, of(2, shared(&many[..2])))
    });
    area.invalid("tree-by-group", "INT-3", "out_of_range", {
        symbols(2, bytes().u8(5).u8(2).u8(1).raw(own(&many[..2])))
    });
}
