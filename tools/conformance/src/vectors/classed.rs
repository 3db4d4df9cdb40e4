//! Classed supports (supports/classed.md), views and predicted signs (gcodec.md, sections 7.6 and 7.7), and
//! the digests of runs (section 6).

use gcodec::{Dtype, TensorView, frame};
use serde_json::{Value, json};

use super::Area;
use super::build::*;
use super::describe::hex;
use super::frames::set;

const ROWS: u64 = 1 << 6;
const COLUMNS: u64 = 1 << 7;
/// The view of a matrix as its rows and columns.
const MATRIX: u64 = ROWS | COLUMNS | 2 << 3 | 1;

pub(crate) fn add(area: &mut Area) {
    rows_and_columns(area);
    groups(area);
    views(area);
    by_base(area);
    signs(area);
    runs(area);
    let base = Tensor::bf16(&EXAMPLE_BASE).json();
    area.valid("example-by-base", "CLS-4 CLS-5 CLS-9", example_by_base())
        .base(json!({ "w": base }))
        .tensors()
        .notes("spec/examples.md");
    area.valid("example-by-rows-and-columns", "CLS-4 CLS-5", example_by_rows_and_columns())
        .tensors()
        .notes("spec/examples.md");
}

/// Elements of bf16 that the worked example of the spec changes.
pub(crate) const EXAMPLE_BASE: [u16; 10] =
    [0x3f00, 0x3d00, 0xbe80, 0x3c00, 0x3f80, 0xbc40, 0x3ea0, 0x3cc0, 0xbf40, 0x3bc0];

/// Returns the worked example of rule 1: class 0 has the elements 0, 4 and 8, class 1 has 1, 2 and 6, and
/// class 2 has 3, 5, 7 and 9.
pub(crate) fn example_by_base() -> Vec<u8> {
    let groups = [
        Group(1, 1, false, &[(2, 1)]),
        Group(1, 0, false, &[(1, 0)]),
        Group(1, 0, false, &[(0, 0), (0, 0), (1, 0)]),
    ];
    let changed = [(8, 0xbf3f), (2, 0xbe81), (3, 0x3c01), (5, 0xbc3e), (9, 0x3bbf)];
    let mut new = EXAMPLE_BASE;
    changed.into_iter().for_each(|(element, bits): (usize, u16)| new[element] = bits);
    let man = manifest(&[("w", BF16, &[10])]);
    let support = bounds(&[126, 122]).raw(coded(&groups));
    let block = block(whole(0), (9, support), (10, bytes().packed(3, &[2, 1, 2, 4, 1])));
    let entry = delta(&[(0, 0, Tensor::bf16(&EXAMPLE_BASE).digest(), Tensor::bf16(&new).digest())]);
    stream().manifest(&man).update(&update(&man, [block]).attribute(2, entry)).done()
}

/// Returns the worked example of rule 2: a matrix with the row symbols 0, 1 and the column symbols 0, 1, 0,
/// 0, 1.
pub(crate) fn example_by_rows_and_columns() -> Vec<u8> {
    let freqs = Freqs { freqs: vec![(0, 2560), (1, 1536)], rest: 0 };
    let (states, words) = freqs.rans(&[0, 1, 0, 1, 0, 0, 1], 0);
    assert!(words.is_empty(), "the example is shorter without words");
    let lists = bytes().u8(2).u8(3).packed(8, &[MATRIX]).packed(6, &[0]).u8(1).raw(freqs.table());
    let lists = lists.packed(0, &[0, 0]).v(0).u32(states[0]);
    // Ranks of the first group: elements 0, 2, 3 of class 0, and 1, 4, 5, 7, 8 of class 1.
    let groups = [Group(2, 1, false, &[(5, 1), (1, 0)]), Group(1, 0, false, &[(0, 0), (0, 0)])];
    let values = [-0.5, 2.0, 0.25, 1.5].into_iter().fold(bytes().u8(0), Bytes::f32);
    one(F32, &[2, 5], (9, lists.raw(coded(&groups))), (1, values))
}

/// A group: number of classes, shift, quotients as tokens, and its gaps with the bits that each has below the
/// quotient.
struct Group<'a>(u64, u8, bool, &'a [(u64, u32)]);

impl Group<'_> {
    fn quotients(&self) -> Bytes {
        let quotients: Vec<u64> = self.3.iter().map(|(gap, low)| gap >> low).collect();
        match self.2 {
            true => bytes().raw(token_entropy(&quotients, 0)),
            false => bytes().plane(quotients.iter().map(|&q| (1 << q, q as u32 + 1))),
        }
    }
}

fn coded(groups: &[Group<'_>]) -> Bytes {
    let mut out = bytes().v(groups.len() as u64);
    for Group(classes, shift, tokens, gaps) in groups {
        out = out.v(*classes).v(gaps.len() as u64);
        if !gaps.is_empty() {
            out = out.u8(shift | u8::from(*tokens) << 6);
        }
    }
    let with_gaps = groups.iter().filter(|g| !g.3.is_empty());
    let out = with_gaps.fold(out, |out, group| out.raw(group.quotients()));
    let low = groups.iter().flat_map(|g| g.3).map(|&(gap, low)| (gap & ((1 << low) - 1), low));
    out.plane(low)
}

/// Returns the fields of rule 2 before the groups. All lists have one table.
fn levels(classes: u8, views: &[u64], levels: &[u64], lists: &[&[u8]]) -> Bytes {
    let out = bytes().u8(2).u8(classes).packed(8, views).packed(6, levels).u8(u8::from(!lists.is_empty()));
    if lists.is_empty() {
        return out;
    }
    let symbols = lists.concat();
    let freqs = freqs_of(&symbols);
    let (states, words) = freqs.rans(&symbols, 0);
    let out = out.raw(freqs.table()).packed(0, &vec![0; lists.len()]);
    let out = out.v(words.len() as u64).u32(states[0]);
    words.iter().fold(out, |out, &word| out.u16(word))
}

/// A matrix of 4 rows and 6 columns, whose denser rows and columns have the symbol 1.
const SHAPE: &[u64] = &[4, 6];
const LISTS: [&[u8]; 2] = [&[0, 1, 1, 0], &[1, 0, 0, 1, 0, 1]];

fn matrix() -> Bytes {
    levels(3, &[MATRIX], &[0], &LISTS)
}

/// Classes 0 to 2 have 6, 12 and 6 elements.
fn some() -> [Group<'static>; 2] {
    [Group(2, 1, false, &[(3, 1), (1, 1), (8, 0)]), Group(1, 0, false, &[(0, 0), (2, 0), (1, 0)])]
}

fn floats(count: usize) -> (u64, Bytes) {
    (1, (0..count).fold(bytes().u8(0), |out, i| out.f32(i as f32 - 1.5)))
}

fn rows_and_columns(area: &mut Area) {
    let of = |support: Bytes, count| one(F32, SHAPE, (9, support), floats(count));
    area.valid("rows-and-columns", "CLS-2 CLS-3 CLS-4 CLS-5 CLS-11", of(matrix().raw(coded(&some())), 6))
        .tensors();
    let lists = of(matrix().raw(coded(&some())), 6);
    area.valid("lists-just-so", "LIM-3", lists.clone()).limit("max_elements", 24 + 4 * 10);
    area.invalid("lists-one-more", "LIM-3", "limit", lists).limit("max_elements", 24 + 4 * 10 - 1);
    let tokens = [Group(3, 2, true, &[(3, 2), (5, 1), (2, 1), (0, 0)])];
    area.valid("tokens", "CLS-4 CLS-5", of(matrix().raw(coded(&tokens)), 4)).tensors();
    let none = [Group(1, 0, false, &[]), Group(2, 0, false, &[])];
    area.valid("no-positions", "CLS-2", of(matrix().raw(coded(&none)), 0)).tensors();
    let all = [Group(3, 63, true, &[(0, 63); 6])];
    area.valid("shift-63", "CLS-5", of(matrix().raw(coded(&all)), 6)).tensors();
    let rows = levels(2, &[ROWS | 1 << 3 | 1], &[0], &LISTS[..1]);
    let two = [Group(1, 0, false, &[(1, 0)]), Group(1, 2, false, &[(9, 2)])];
    area.valid("rows-alone", "CLS-11", of(rows.raw(coded(&two)), 2)).tensors();
    let columns = levels(2, &[COLUMNS | 2 << 3 | 1], &[0], &LISTS[1..]);
    area.valid("columns-alone", "CLS-11", of(columns.raw(coded(&two)), 2)).tensors();
    let flat = levels(1, &[0], &[0], &[]);
    area.valid("one-class", "CLS-10", of(flat.raw(coded(&[Group(1, 1, false, &[(4, 1), (17, 1)])])), 2))
        .tensors();
    area.valid("two-tensors", "CLS-11 VIW-1", {
        let man = manifest(&[("a", F32, SHAPE), ("b", F32, &[5]), ("c", F32, &[0, 3])]);
        let support = levels(4, &[MATRIX, 0, 0], &[1, 3, 0], &LISTS);
        // Classes 1 and 2 have 6 and 12 elements of `a`, class 3 six of `a` and all of `b`.
        let three = [Group(3, 2, false, &[(2, 1), (9, 1)]), Group(1, 0, false, &[(5, 0), (4, 0)])];
        let block = block(several(0, 3), (9, support.raw(coded(&three))), floats(4));
        stream().manifest(&man).update(&update(&man, [block])).done()
    })
    .tensors();
    let of_set = {
        let man = manifest(&[("w", F32, SHAPE)]);
        let body = set(&man, whole(0), (9, matrix().raw(coded(&some()))));
        let block = block(whole(0), (8, bytes().raw(hash(&body))), floats(6));
        stream().manifest(&man).frame(SET, 0, body).update(&update(&man, [block])).done()
    };
    area.valid("of-an-index-set", "CLS-7", of_set.clone()).tensors();
    area.valid("lists-of-a-set-just-so", "LIM-3", of_set.clone())
        .limit("max_elements", 24 + 4 * 10)
        .notes("the lists count in the set's frame, and not in the block");
    area.invalid("lists-of-a-set-one-more", "LIM-3", "limit", of_set).limit("max_elements", 24 + 4 * 10 - 1);
    let bad = |support: Bytes| one(F32, SHAPE, (9, support), floats(1));
    let position = [Group(3, 0, false, &[(0, 0)])];
    area.invalid("rule-0", "CLS-1", "unsupported", bad(bytes().u8(0).u8(1)));
    area.invalid("rule-3", "CLS-1", "unsupported", bad(bytes().u8(3).u8(1)));
    area.invalid(
        "no-classes",
        "CNV-4",
        "out_of_range",
        bad(levels(0, &[0], &[0], &[]).raw(coded(&position))),
    );
    area.invalid(
        "classes-65",
        "CNV-4",
        "out_of_range",
        bad(levels(65, &[0], &[0], &[]).raw(coded(&position))),
    );
    area.invalid("level-64", "CNV-4", "out_of_range", {
        bad(bytes().u8(2).u8(64).packed(8, &[0]).packed(7, &[64]).u8(0).raw(coded(&[Group(
            64,
            0,
            false,
            &[(0, 0)],
        )])))
    });
    area.invalid("class-beyond", "CLS-11", "out_of_range", {
        bad(levels(2, &[MATRIX], &[0], &LISTS).raw(coded(&[Group(2, 0, false, &[(0, 0)])])))
    });
    area.invalid("tables-17", "CLS-10", "out_of_range", {
        bad(bytes().u8(2).u8(3).packed(8, &[MATRIX]).packed(6, &[0]).u8(17))
    });
    area.invalid("tables-without-lists", "CLS-10", "count_mismatch", {
        let table = freqs_of(&[0]).table();
        bad(bytes().u8(2).u8(1).packed(8, &[0]).packed(6, &[0]).u8(1).raw(table))
    });
    area.invalid("lists-without-tables", "CLS-10", "count_mismatch", {
        bad(bytes().u8(2).u8(3).packed(8, &[MATRIX]).packed(6, &[0]).u8(0))
    });
    area.invalid("number-of-a-table", "CNV-4", "out_of_range", {
        let table = freqs_of(&[0]).table();
        bad(bytes().u8(2).u8(3).packed(8, &[MATRIX]).packed(6, &[0]).u8(1).raw(table).packed(1, &[0, 1]))
    });
    area.invalid("lists-left-over", "ANS-2", "bad_code", {
        bad(levels(3, &[MATRIX], &[0], &[LISTS[0], LISTS[1], &[1; 3]]).raw(coded(&position)))
    });
}

fn groups(area: &mut Area) {
    let bad = |groups: Bytes| one(F32, SHAPE, (9, matrix().raw(groups)), floats(1));
    area.invalid("groups-none", "CNV-4", "out_of_range", bad(bytes().v(0)));
    area.invalid("groups-4", "CNV-4", "out_of_range", bad(bytes().v(4)));
    area.invalid("group-of-none", "CNV-4", "out_of_range", bad(bytes().v(1).v(0).v(0)));
    area.invalid("classes-left", "CLS-2", "count_mismatch", bad(coded(&[Group(2, 0, false, &[(0, 0)])])));
    area.invalid("classes-too-many", "CLS-2", "count_mismatch", {
        bad(coded(&[Group(2, 0, false, &[(0, 0)]), Group(2, 0, false, &[])]))
    });
    area.invalid("more-than-elements", "CLS-3", "count_mismatch", {
        bad(coded(&[Group(2, 0, false, &[(0, 0); 12]), Group(1, 0, false, &[(0, 0); 13])]))
    });
    area.invalid("counts-beyond-64-bits", "CLS-3", "count_mismatch", {
        bad(bytes().v(2).v(2).v(1).u8(0).v(1).v(u64::MAX).u8(0))
    });
    area.invalid("code-reserved", "CNV-5", "reserved_bits", bad(bytes().v(1).v(3).v(1).u8(0x80).u8(1)));
    area.invalid("rank-beyond", "CLS-4", "position_out_of_range", {
        bad(coded(&[Group(2, 0, false, &[(17, 0)]), Group(1, 0, false, &[(6, 0)])]))
    });
    area.invalid("more-than-the-group", "CLS-4", "position_out_of_range", {
        bad(coded(&[Group(2, 0, false, &[]), Group(1, 0, false, &[(0, 0); 7])]))
    });
    area.invalid("quotient-beyond", "CLS-4", "position_out_of_range", {
        bad(bytes().v(1).v(3).v(1).u8(63 | 1 << 6).raw(token_entropy(&[2], 0)).raw([0; 8]))
    });
    area.invalid("low-bits-short", "CLS-5", "length_mismatch", bad(bytes().v(1).v(3).v(1).u8(3).u8(1)));
    area.invalid("low-bits-long", "CLS-5", "length_mismatch", {
        bad(coded(&[Group(3, 2, false, &[(1, 2)])]).u8(0))
    });
    area.invalid("low-bits-padding", "CNV-1", "nonzero_padding", {
        bad(bytes().v(1).v(3).v(1).u8(3).u8(1).u8(0b1000))
    });
    area.invalid("quotients-padding", "CNV-1", "nonzero_padding", {
        bad(bytes().v(1).v(3).v(1).u8(0).u8(0b11))
    });
    area.invalid("quotients-short", "LIM-2", "length_mismatch", bad(bytes().v(1).v(3).v(9).u8(0).u8(0xff)));
}

fn views(area: &mut Area) {
    let group = || coded(&[Group(3, 0, false, &[(0, 0)])]);
    let of = |shape: &[u64], view: u64| {
        let rows: u64 = shape.iter().take(1).product();
        let columns: u64 = shape.iter().skip(1).take(1).product();
        let lists = [vec![0; rows as usize], vec![0; columns as usize]].concat();
        let support = levels(3, &[view], &[0], &[&lists]);
        one(F32, shape, (9, support.raw(group())), floats(1))
    };
    area.invalid("view-without-flags", "VIW-1", "not_canonical", of(SHAPE, 2 << 3 | 1));
    area.invalid("view-of-nothing", "VIW-1", "not_canonical", {
        let support = bytes().u8(2).u8(1).packed(8, &[MATRIX]).packed(6, &[0]).u8(0);
        one(F32, &[0, 6], (9, support.raw(coded(&[Group(1, 0, false, &[])]))), floats(0))
    });
    area.invalid("view-descends", "VIW-2", "out_of_range", of(SHAPE, ROWS | COLUMNS | 1 << 3 | 2));
    area.invalid("view-beyond-the-rank", "VIW-2", "out_of_range", of(SHAPE, ROWS | COLUMNS | 3 << 3 | 1));
    area.invalid("view-without-a-matrix", "VIW-2", "out_of_range", of(SHAPE, 0xff));
    area.invalid("view-half-a-matrix", "VIW-2", "out_of_range", of(SHAPE, ROWS | COLUMNS | 2 << 3 | 7));
    let kernels = |view, lists: &[&[u8]]| {
        let support =
            levels(3, &[view], &[0], lists).raw(coded(&[Group(3, 1, false, &[(1, 1), (5, 1), (2, 0)])]));
        one(F32, &[2, 3, 2, 2], (9, support), floats(3))
    };
    area.valid("kernels", "VIW-2", kernels(MATRIX, &[&[1, 0], &[0, 1, 1]])).tensors();
    area.valid(
        "kernels-by-input-channel",
        "VIW-2",
        kernels(ROWS | COLUMNS | 3 << 3 | 2, &[&[1, 0, 0, 1, 0, 0], &[0, 1]]),
    )
    .tensors();
    area.valid("matrix-view", "VIW-2", {
        let man = bytes().v(1).v(0).text("w").raw(tensor(F32, &[2, 12])).u8(1).v(4).v(6);
        let support = levels(3, &[0xff], &[0], &LISTS).raw(coded(&some()));
        let update = update(&man, [block(whole(0), (9, support), floats(6))]);
        stream().manifest(&man).update(&update).done()
    })
    .tensors();
    let part = |start, len, rows: &[u8]| {
        let man = manifest(&[("w", F32, SHAPE)]);
        let support = levels(3, &[MATRIX], &[0], &[rows, LISTS[1]]).raw(group());
        let update = update(&man, [block(range(0, start, len), (9, support), floats(1))]);
        stream().manifest(&man).update(&update).done()
    };
    area.valid("rows-of-a-range", "VIW-3", part(6, 12, &[1, 0])).tensors();
    area.invalid("range-inside-a-row", "VIW-3", "out_of_range", part(5, 12, &[1, 0]));
    area.invalid("range-ends-in-a-row", "VIW-3", "out_of_range", part(6, 13, &[1, 0]));
}

/// Element type, shape and bytes of a tensor.
struct Tensor(u8, Vec<u64>, Vec<u8>);

impl Tensor {
    fn bf16(patterns: &[u16]) -> Self {
        Self(BF16, vec![patterns.len() as u64], patterns.iter().flat_map(|p| p.to_le_bytes()).collect())
    }

    fn digest(&self) -> [u8; 16] {
        let dtype = Dtype::from_id(self.0).expect("an element type");
        frame::tensor_digest(TensorView::new(dtype, &self.1, &self.2).expect("a tensor"))
    }

    fn json(&self) -> Value {
        let dtype = Dtype::from_id(self.0).expect("an element type");
        json!({ "dtype": dtype.name(), "shape": self.1, "data": hex(&self.2) })
    }
}

fn delta(entries: &[(u64, u64, [u8; 16], [u8; 16])]) -> Bytes {
    let count = bytes().v(entries.len() as u64);
    entries
        .iter()
        .fold(count, |out, (first, more, base, result)| out.v(*first).v(*more).raw(base).raw(result))
}

/// Returns the fields of rule 1 before the groups.
fn bounds(bounds: &[u8]) -> Bytes {
    bytes().u8(1).u8(bounds.len() as u8 + 1).raw(bounds)
}

fn by_base(area: &mut Area) {
    // Exponents 127, 126, 125, 127, 0, 126, 127, 125.
    let old = Tensor::bf16(&[0x3f80, 0x3f00, 0xbe80, 0xbfff, 0x0001, 0x3f7f, 0x3f90, 0x3e81]);
    let new = Tensor::bf16(&[0x3f80, 0x3f01, 0xbe80, 0xbffe, 0x0001, 0x3f80, 0x3f90, 0x3e83]);
    let man = manifest(&[("w", BF16, &[8])]);
    let of = |support: Bytes, values: (u64, Bytes)| {
        let block = block(whole(0), (9, support), values);
        let entry = delta(&[(0, 0, old.digest(), new.digest())]);
        stream().manifest(&man).update(&update(&man, [block]).attribute(2, entry)).done()
    };
    let base = || json!({ "w": old.json() });
    // Class 0: exponent 127; class 1: 126; class 2: below.
    let classes = || {
        let groups = [
            Group(1, 0, false, &[(1, 0)]),
            Group(1, 1, false, &[(0, 1), (0, 1)]),
            Group(1, 0, true, &[(2, 0)]),
        ];
        bounds(&[127, 126]).raw(coded(&groups))
    };
    // A bit pattern with the sign set is nearer to zero by one, so its order is one higher.
    let values = |ints: Bytes| (10, ints);
    let diffs = [2, 2, 2, 4];
    area.valid("base", "CLS-6 CLS-7", of(classes(), values(bytes().packed(3, &diffs))))
        .base(base())
        .tensors();
    let by_group = |coding: u8, segment: &dyn Fn(&[u64]) -> Bytes| {
        let segments = [&diffs[..1], &diffs[1..3], &diffs[3..]].map(segment);
        segments.iter().fold(bytes().u8(coding).u8(1), |out, s| out.raw(s))
    };
    let tokens = by_group(1, &|values| Bytes(token_entropy(values, 0).0[1..].to_vec()));
    area.valid("values-by-group", "INT-3", of(classes(), values(tokens))).base(base()).tensors();
    let symbols = by_group(2, &|values| {
        let symbols: Vec<u8> = values.iter().map(|&v| v as u8).collect();
        Bytes(entropy(&symbols, 0).0[1..].to_vec())
    });
    area.valid("symbols-by-group", "INT-3", of(classes(), values(symbols.clone()))).base(base()).tensors();
    area.valid("base-overwritten", "CLS-7", {
        of(classes(), (1, bytes().u8(0).u16(0xbffe).u16(0x3f01).u16(0x3f80).u16(0x3e83)))
    })
    .base(base())
    .tensors()
    .notes("values in the order of classes");
    let one_class = bounds(&[]).raw(coded(&[Group(1, 0, false, &[(1, 0), (1, 0), (1, 0), (1, 0)])]));
    area.valid("base-of-one-class", "CLS-6", of(one_class.clone(), values(bytes().packed(3, &[2, 2, 2, 4]))))
        .base(base())
        .tensors();
    area.invalid("group-segments-of-one", "INT-3", "out_of_range", {
        of(one_class, values(bytes().u8(2).u8(1).raw(&entropy(&[2, 2, 2, 4], 0).0[1..])))
    });
    area.invalid("group-segments-of-planes", "INT-3", "out_of_range", {
        let plane = bytes().u8(1).raw(symbols);
        of(classes(), (9, plane.clone().raw(plane)))
    });
    area.invalid("group-segments-of-joined", "INT-3", "out_of_range", {
        of(classes(), values(bytes().u8(4).u8(2).u8(1).raw(&entropy(&[0x22, 0x42], 0).0[1..])))
    });
    let trees = by_group(2, &|values| {
        let symbols: Vec<u8> = values.iter().map(|&v| v as u8).collect();
        freqs_of(&symbols).tree(&symbols)
    });
    area.invalid("group-segments-of-trees", "INT-3", "out_of_range", {
        of(classes(), values(bytes().u8(5).raw(trees)))
    });
    area.invalid("group-segments-elsewhere", "INT-3", "out_of_range", {
        dense(
            F32,
            &[4],
            (4, bytes().u16(0).u8(0).u8(2).u8(1).raw(&entropy(&[1, 1, 1, 1], 0).0[1..]).u8(0).u8(0)),
        )
    });
    area.invalid("rank-beyond-the-class", "CLS-4", "position_out_of_range", {
        let groups = [Group(1, 0, false, &[(4, 0)]), Group(1, 0, false, &[])];
        of(bounds(&[127]).raw(coded(&groups)), values(bytes().packed(3, &[2])))
    })
    .base(base())
    .late();
    let few = || coded(&[Group(1, 0, false, &[(1, 0)]), Group(1, 0, false, &[]), Group(1, 0, false, &[])]);
    let one = || values(bytes().packed(3, &[2]));
    area.invalid("bounds-ascend", "CLS-6", "not_ascending", of(bounds(&[126, 127]).raw(few()), one()));
    area.invalid("bounds-equal", "CLS-6", "not_ascending", of(bounds(&[126, 126]).raw(few()), one()));
    area.invalid("bound-0", "CLS-6", "not_ascending", of(bounds(&[126, 0]).raw(few()), one()));
    area.invalid("base-and-numbers", "CLS-7", "out_of_range", of(bounds(&[9, 3]).raw(few()), ones()));
    area.invalid("base-rank-beyond", "CLS-4", "position_out_of_range", {
        of(bounds(&[]).raw(coded(&[Group(1, 0, false, &[(8, 0)])])), one())
    });
    let in_two_runs = |id: u64| {
        let man = manifest(&[("a", BF16, &[4]), ("b", BF16, &[4])]);
        let support = bounds(&[9, 3]).raw(few());
        let block = block(several(0, 2), (9, support), values(bytes().packed(3, &[2])));
        let entries = delta(&[(0, 0, [1; 16], [2; 16]), (1, 0, [1; 16], [2; 16])]);
        stream().manifest(&man).update(&update(&man, [block]).attribute(id, entries)).done()
    };
    area.invalid("base-in-two-runs", "CLS-8", "unknown_reference", in_two_runs(2));
    area.invalid("base-in-two-runs-of-sums", "CLS-8", "unknown_reference", in_two_runs(4));
    area.invalid("base-group-of-two", "CLS-9", "out_of_range", {
        let groups = [Group(2, 0, false, &[(0, 0)]), Group(1, 0, false, &[])];
        of(bounds(&[127, 126]).raw(coded(&groups)), one())
    });
    area.invalid("base-and-add", "CLS-7", "out_of_range", {
        let block = block(adding(whole(0)), (9, bounds(&[9, 3]).raw(few())), ones());
        let entry = delta(&[(0, 0, [1; 16], [2; 16])]);
        stream().manifest(&man).update(&update(&man, [block]).attribute(2, entry)).done()
    });
    area.invalid("base-without-delta", "CLS-7", "unknown_reference", {
        let overwrite = (1, bytes().u8(0).u16(7));
        stream()
            .manifest(&man)
            .update(&update(&man, [block(whole(0), (9, bounds(&[9, 3]).raw(few())), overwrite)]))
            .done()
    });
    area.invalid("base-in-an-index-set", "CLS-7", "out_of_range", {
        stream().manifest(&man).frame(SET, 0, set(&man, whole(0), (9, bounds(&[9, 3]).raw(few())))).done()
    });
    every_type(area);
}

/// The class of each element type's patterns.
fn every_type(area: &mut Area) {
    for dtype in Dtype::ALL {
        let width = dtype.bits();
        let count = 1u64 << width.min(4);
        let element = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - width);
        let mut data = vec![0; dtype.bytes_for(count).expect("few elements") as usize];
        (0..count).for_each(|i| {
            gcodec::internal::element::set_bits_at(dtype, &mut data, i, element(i)).expect("an element");
        });
        let key = |bits: u64| {
            let magnitude = if dtype.is_float() { width - 1 } else { width };
            let bits = bits & (u64::MAX >> (64 - magnitude));
            (bits >> magnitude.saturating_sub(8)) as u8
        };
        let mut keys: Vec<u8> = (0..count).map(|i| key(element(i))).collect();
        keys.sort_unstable();
        let bound = keys[keys.len() / 2].max(1);
        let dense = keys.iter().filter(|&&k| k < bound).count() as u64;
        let (high, low) = (count - dense, dense);
        // The last element of each class that has elements.
        let group = |elements: u64| if elements > 0 { vec![(elements - 1, 0)] } else { vec![] };
        let (first, second) = (group(high), group(low));
        let support = bounds(&[bound]).raw(coded(&[Group(1, 0, false, &first), Group(1, 0, false, &second)]));
        let old = Tensor(dtype.id(), vec![count], data.clone());
        let is_high = |i: &u64| key(element(*i)) >= bound;
        let changed = [(0..count).rev().find(is_high), (0..count).rev().find(|i| !is_high(i))];
        for i in changed.into_iter().flatten() {
            let bits = gcodec::internal::element::ulp_step(dtype, element(i), 1);
            gcodec::internal::element::set_bits_at(dtype, &mut data, i, bits).expect("an element");
        }
        let new = Tensor(dtype.id(), vec![count], data);
        let diffs = vec![2; first.len() + second.len()];
        let man = manifest(&[("w", dtype.id(), &[count])]);
        let block = block(whole(0), (9, support), (10, bytes().packed(2, &diffs)));
        let entry = delta(&[(0, 0, old.digest(), new.digest())]);
        let stream = stream().manifest(&man).update(&update(&man, [block]).attribute(2, entry)).done();
        area.valid(&format!("base-{dtype}"), "CLS-6", stream).base(json!({ "w": old.json() })).tensors();
    }
}

fn signs(area: &mut Area) {
    let scale = || bytes().v(0).u8(2).f32(2.0);
    let of = |signs: Bytes| one(F32, &[2, 3], ALL(), (3, scale().raw(signs)));
    let predicted = |views: &[u64], bits: Bytes, width: u8, symbols: &[u8]| {
        bytes().u8(1).packed(8, views).raw(bits).u8(width).raw(entropy(symbols, 0))
    };
    let plane = |bits: &[u64]| bytes().fields(1, bits);
    let matrix = || plane(&[0, 1, 1, 0, 1]);
    area.valid("signs", "SIG-1 SIG-2 SIG-3", of(predicted(&[MATRIX], matrix(), 4, &[0b0100, 0b01])))
        .tensors();
    area.valid("signs-of-rows", "SIG-3", {
        of(predicted(&[ROWS | 1 << 3 | 1], plane(&[1, 0]), 1, &[0, 0, 1, 0, 0, 0]))
    })
    .tensors();
    area.valid("signs-of-columns", "SIG-3", {
        of(predicted(&[COLUMNS | 2 << 3 | 1], plane(&[1, 0, 1]), 8, &[0b10_0001]))
    })
    .tensors();
    area.valid("signs-without-views", "SIG-2", of(predicted(&[0], bytes(), 3, &[0b101, 0b010]))).tensors();
    let of_some = {
        // Rows 0 and 2 of three, columns 1 and 3 of four.
        let values = (3, scale().raw(predicted(&[MATRIX], plane(&[1, 0, 0, 1]), 2, &[0b01, 0b1])));
        one(F32, &[3, 4], (4, bytes().u16(0b1010_0000_0010)), values)
    };
    area.valid("signs-of-some", "SIG-3", of_some.clone())
        .tensors()
        .notes("rows and columns without a sign have no bit");
    area.valid("signs-just-so", "LIM-3", of_some.clone())
        .limit("max_elements", 12 + 3 + 4)
        .notes("rows and columns without a sign count, too");
    area.invalid("signs-one-more", "LIM-3", "limit", of_some).limit("max_elements", 12 + 3 + 4 - 1);
    let of_rows = of(predicted(&[ROWS | 1 << 3 | 1], plane(&[1, 0]), 1, &[0, 0, 1, 0, 0, 0]));
    area.valid("signs-of-rows-just-so", "LIM-3", of_rows.clone()).limit("max_elements", 6 + 2);
    area.invalid("signs-of-rows-one-more", "LIM-3", "limit", of_rows).limit("max_elements", 6 + 1);
    area.valid("signs-of-powers", "SIG-3", {
        let signs = predicted(&[MATRIX], plane(&[1, 1, 0]), 8, &[0b01]);
        dense(F32, &[2, 3], (4, bytes().u16(0).u8(0).packed(2, &[0, 0, 3, 1, 0, 0]).raw(signs)))
    })
    .tensors()
    .notes("two codes above 0: rows 0 and 1, columns 0 and 2");
    area.valid("signs-of-two-tensors", "SIG-3", {
        let man = manifest(&[("a", F32, &[2, 2]), ("b", F32, &[2, 3])]);
        let bits = plane(&[1, 0, 0, 1, 0, 1]);
        let signs = predicted(&[MATRIX, ROWS | 1 << 3 | 1], bits, 5, &[0b1_0110, 0b0_0001]);
        let block = block(several(0, 2), ALL(), (3, scale().raw(signs)));
        stream().manifest(&man).update(&update(&man, [block])).done()
    })
    .tensors();
    let refuse = |area: &mut Area, id: &str, requirements: &'static str, error: &'static str, stream| {
        area.invalid(id, requirements, error, stream);
    };
    refuse(area, "signs-coding-2", "SIG-1", "unsupported", of(bytes().u8(2).u8(0)));
    refuse(area, "signs-of-none", "SIG-1", "out_of_range", {
        one(F32, &[2, 3], (4, bytes().u8(0)), (3, scale().raw(bytes().u8(1).packed(0, &[0]).u8(1))))
    });
    refuse(area, "signs-of-a-seeded-support", "SIG-1", "out_of_range", {
        let signs = predicted(&[0], bytes(), 1, &[0, 1]);
        one(F32, &[2, 3], (7, bytes().v(2).u64(1)), (3, scale().raw(signs)))
    });
    refuse(area, "signs-nested", "SIG-1", "out_of_range", {
        let codes = bytes().u16(0).u8(0).packed(1, &[1, 1]).raw(predicted(&[0], bytes(), 1, &[0, 1]));
        dense(F32, &[2], (11, bytes().raw([7; 32]).v(1).v(2).v(4).raw(codes)))
    });
    refuse(
        area,
        "signs-symbol-beyond",
        "SIG-2",
        "out_of_range",
        of(predicted(&[MATRIX], matrix(), 2, &[4, 0, 0])),
    );
    refuse(area, "signs-symbol-padding", "SIG-2", "nonzero_padding", {
        of(predicted(&[MATRIX], matrix(), 4, &[0, 0b100]))
    });
    refuse(area, "signs-plane-padding", "SIG-3", "nonzero_padding", {
        of(predicted(&[MATRIX], bytes().u8(0b10_0000), 4, &[0, 0]))
    });
    refuse(area, "signs-width-0", "CNV-4", "out_of_range", of(predicted(&[MATRIX], matrix(), 0, &[0, 0])));
    refuse(area, "signs-width-9", "CNV-4", "out_of_range", of(predicted(&[MATRIX], matrix(), 9, &[0])));
    refuse(area, "signs-left-over", "SGN-1", "length_mismatch", {
        of(predicted(&[MATRIX], matrix(), 4, &[0b0100, 0b01]).u8(0))
    });
}

fn runs(area: &mut Area) {
    let tensors = [Tensor::bf16(&[1, 2]), Tensor::bf16(&[3]), Tensor::bf16(&[4, 5])];
    let after = [Tensor::bf16(&[1, 9]), Tensor::bf16(&[3]), Tensor::bf16(&[8, 5])];
    let man = manifest(&[("a", BF16, &[2]), ("b", BF16, &[1]), ("c", BF16, &[2])]);
    let run = |tensors: &[Tensor]| -> [u8; 16] {
        let digests: Vec<u8> = tensors.iter().flat_map(Tensor::digest).collect();
        hash(digests)[..16].try_into().expect("16 bytes")
    };
    let base = || json!({ "a": tensors[0].json(), "b": tensors[1].json(), "c": tensors[2].json() });
    let of = |entries: &[(u64, u64, [u8; 16], [u8; 16])]| {
        let a = block(whole(0), (4, bytes().u8(0b10)), (1, bytes().u8(0).u16(9)));
        let c = block(whole(2), (4, bytes().u8(0b01)), (1, bytes().u8(0).u16(8)));
        stream().manifest(&man).update(&update(&man, [a, c]).attribute(2, delta(entries))).done()
    };
    area.valid("run", "DEL-1 DEL-2 DEL-4", of(&[(0, 2, run(&tensors), run(&after))])).base(base()).tensors();
    area.valid("run-and-one", "DEL-1 DEL-2 DEL-4", {
        of(&[(0, 1, run(&tensors[..2]), run(&after[..2])), (2, 0, tensors[2].digest(), after[2].digest())])
    })
    .base(base())
    .tensors();
    area.invalid("run-base", "DEL-4", "checksum_mismatch", of(&[(0, 2, run(&after), run(&after))]))
        .base(base())
        .late();
    area.invalid("run-result", "DEL-4", "checksum_mismatch", of(&[(0, 2, run(&tensors), run(&tensors))]))
        .base(base())
        .late();
    let entry = |first, more| (first, more, [1; 16], [2; 16]);
    area.valid("runs-just-so", "LIM-3", of(&[(0, 2, run(&tensors), run(&after))])).limit("max_blocks", 5);
    area.invalid("runs-one-more", "LIM-3", "limit", of(&[(0, 2, run(&tensors), run(&after))]))
        .limit("max_blocks", 4);
    area.invalid("runs-of-two-parts-overlap", "DEL-5", "checksum_mismatch", {
        let part = |number: u64, tensor, positions: u8, value, base, result| {
            let block = block(whole(tensor), (4, bytes().u8(positions)), (1, bytes().u8(0).u16(value)));
            update(&man, [block]).part(number).attribute(2, delta(&[(number, 1, base, result)]))
        };
        let one = part(0, 0, 0b10, 9, run(&tensors[..2]), run(&after[..2]));
        let two = part(1, 2, 0b01, 8, run(&tensors[1..]), run(&after[1..]));
        stream().manifest(&man).part(&one, 0).update(&two).done()
    })
    .base(base())
    .late();
    area.invalid("runs-overlap", "DEL-1", "not_ascending", of(&[entry(0, 1), entry(1, 1)]));
    area.invalid("run-beyond", "DEL-1", "out_of_range", of(&[entry(0, 3)]));
    area.invalid("run-beyond-64-bits", "DEL-1", "out_of_range", of(&[entry(2, u64::MAX)]));
    area.invalid("run-with-a-gap", "DEL-2", "unknown_reference", {
        let several = block(several(0, 3), ALL(), (1, (0..5).fold(bytes().u8(0), |out, i| out.u16(i))));
        let entries = delta(&[entry(0, 0), entry(2, 0)]);
        stream().manifest(&man).update(&update(&man, [several]).attribute(2, entries)).done()
    });
}
