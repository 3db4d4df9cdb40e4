//! Values that are decoded by a computation: latent codes, low-rank factors, cosine transforms
//! (values/latent.md, low-rank.md, dct.md).

use super::Area;
use super::build::*;
use super::update::stored_f32;
use super::values::noise;

pub(super) fn add(area: &mut Area) {
    latent(area);
    low_rank(area);
    dct(area);
}

fn latent(area: &mut Area) {
    let of = |shape: &[u64], id: u64, values: Bytes| {
        let head = shape.iter().fold(bytes().raw([0xab; 32]).v(shape.len() as u64), |out, &d| out.v(d));
        (11, head.v(id).raw(values))
    };
    let nested = [
        ("f32", 1, stored_f32(&[0x7f80_0001, 0x8000_0000]).1),
        ("bf16", 1, bytes().u8(4).u16(0x7f81).u16(1)),
        ("pow2", 4, bytes().u16(0).u8(0).packed(2, &[1, 2]).u8(0).u8(2)),
        ("levels", 5, bytes().u8(0).v(2).u8(2).raw(scale(1.0)).packed(3, &[3, 4])),
        ("affine", 6, bytes().u8(2).u8(0).raw(scale(1.0)).packed(2, &[3, 1])),
        ("codebook", 7, bytes().u8(1).u32(1).u32(2).u8(0).v(0).packed(1, &[1, 0])),
        ("minifloat", 8, bytes().u8(9).v(2).u8(2).f32(1.0).packed(4, &[15, 1])),
    ];
    for (id, kind, values) in &nested {
        let bytes = dense(F32, &[10], of(&[2, 1], *kind, values.clone()));
        area.valid(&format!("latent-{id}"), "LAT-1 LAT-2", bytes).notes("the codes, without the model");
    }
    area.valid("latent-scalar", "LAT-1", dense(BF16, &[10], of(&[], 1, stored_f32(&[7]).1)));
    area.valid("latent-none", "LAT-1", dense(F32, &[10], of(&[3, 0], 4, bytes().u16(0).u8(0).u8(0))));
    area.valid(
        "latent-sparse",
        "LAT-1",
        one(F32, &[8], (4, bytes().u8(0x91)), of(&[2], 1, nested[0].2.clone())),
    );
    area.invalid(
        "latent-tensors",
        "LAT-2",
        "unknown_reference",
        dense(F32, &[10], of(&[2], 1, nested[0].2.clone())),
    )
    .late();
    area.invalid(
        "latent-source",
        "LAT-1",
        "out_of_range",
        dense(F32, &[10], of(&[2], 1, bytes().u8(0).u64(0))),
    );
    for kind in [0, 2, 3, 9, 10, 11, 12, 13] {
        area.invalid(
            &format!("latent-of-values-{kind}"),
            "LAT-1",
            "out_of_range",
            dense(F32, &[10], of(&[2], kind, scale(1.0))),
        );
    }
    area.invalid(
        "latent-groups-by-tensor",
        "GRP-1",
        "out_of_range",
        dense(F32, &[10], of(&[2], 8, bytes().u8(9).v(1).u8(2).f32(1.0).packed(4, &[15, 1]))),
    );
    area.invalid(
        "latent-rank-33",
        "CNV-4",
        "out_of_range",
        dense(F32, &[10], of(&[1; 33], 1, stored_f32(&[7]).1)),
    );
    area.valid("latent-none-of-a-large-shape", "LAT-3", {
        dense(F32, &[10], of(&[1 << 32, 1 << 32, 0], 4, bytes().u16(0).u8(0).u8(0)))
    })
    .notes("a dimension of 0: no codes, whatever the product of the others");
    area.invalid("latent-65-bits", "LAT-3", "out_of_range", {
        dense(F32, &[10], of(&[1 << 32, 1 << 32], 4, bytes().u16(0).u8(0).packed(0, &[]).u8(0)))
    });
    area.invalid("latent-63-bits", "LAT-3 LIM-3", "limit", {
        dense(F32, &[10], of(&[1 << 32, 1 << 31], 4, bytes().u16(0).u8(0).packed(0, &[]).u8(0)))
    });
    area.invalid(
        "latent-short",
        "FLT-1",
        "length_mismatch",
        dense(F32, &[10], of(&[3], 1, nested[0].2.clone())),
    );
    area.invalid(
        "latent-integers",
        "BLK-5",
        "out_of_range",
        dense(I16, &[10], of(&[2], 1, nested[0].2.clone())),
    );
}

fn low_rank(area: &mut Area) {
    let factor = |values: &[f32]| values.iter().fold(bytes().u8(2), |out, &x| out.f32(x));
    let of = |rows: u64, cols: u64, rank: u64, p: (u64, Bytes), q: (u64, Bytes)| {
        (12, bytes().v(rows).v(cols).v(rank).v(p.0).text(p.1).v(q.0).raw(q.1))
    };
    let (p, q) = (|| (1, factor(&[1.0, 2.5, -0.5])), || (1, factor(&[3.0, -0.0])));
    area.valid("low-rank", "LRK-1 LRK-2", dense(F32, &[3, 2], of(3, 2, 1, p(), q()))).tensors();
    area.valid("low-rank-2", "LRK-1", {
        let p = (1, factor(&[1.0, f32::MAX, 0.1, 0.2, 1e-30, 3.0]));
        dense(F32, &[6], of(3, 2, 2, p, (1, factor(&[0.3, f32::MAX, 1e-30, -4.0]))))
    })
    .tensors();
    area.valid("low-rank-infinite", "LRK-1", {
        dense(BF16, &[2], of(1, 2, 1, (1, factor(&[f32::INFINITY])), (1, factor(&[0.0, -1.0]))))
    })
    .tensors()
    .notes("0 times infinity is the NaN of arithmetic");
    area.valid("low-rank-of-others", "LRK-2", {
        let p = (8, bytes().u8(66).v(0).u8(64).u8(126).packed(6, &[1, 33, 12]));
        let q = (5, bytes().u8(1).v(3).u8(2).v(2).u8(3).u16(0x3c00).packed(3, &[3, 6]));
        dense(F32, &[3, 2], of(3, 2, 1, p, q))
    })
    .tensors();
    area.valid("low-rank-of-nothing", "LRK-1", dense(F32, &[0], of(0, 2, 1, (1, factor(&[])), q())))
        .tensors();
    area.valid("low-rank-range", "LRK-1", {
        let man = manifest(&[("w", F32, &[8])]);
        stream()
            .manifest(&man)
            .update(&update(&man, [block(range(0, 1, 6), ALL(), of(3, 2, 1, p(), q()))]))
            .done()
    })
    .tensors();
    area.invalid("low-rank-other-size", "LRK-1", "count_mismatch", dense(F32, &[5], of(3, 2, 1, p(), q())));
    area.invalid(
        "low-rank-sparse",
        "LRK-1",
        "count_mismatch",
        one(F32, &[6], (4, bytes().u8(0x3f)), of(3, 2, 1, p(), q())),
    );
    area.invalid(
        "low-rank-rank-0",
        "CNV-4",
        "out_of_range",
        dense(F32, &[6], of(3, 2, 0, (1, factor(&[])), (1, factor(&[])))),
    );
    area.invalid(
        "low-rank-rank-of-65-bits",
        "LRK-3",
        "out_of_range",
        dense(F32, &[6], of(3, 2, 1 << 63, p(), q())),
    );
    area.invalid(
        "low-rank-source",
        "LRK-2",
        "out_of_range",
        dense(F32, &[6], of(3, 2, 1, (1, bytes().u8(0).raw([0; 12])), q())),
    );
    for kind in [0, 2, 3, 9, 11, 12, 13] {
        area.invalid(&format!("low-rank-of-values-{kind}"), "LRK-2", "out_of_range", {
            dense(F32, &[6], of(3, 2, 1, p(), (kind, scale(1.0))))
        });
    }
    area.invalid("low-rank-factor-long", "CNV-6", "length_mismatch", {
        dense(F32, &[6], of(3, 2, 1, (1, factor(&[1.0; 3]).u8(0)), q()))
    });
    area.invalid(
        "low-rank-factor-short",
        "CNV-6",
        "length_mismatch",
        dense(F32, &[6], of(3, 2, 1, p(), (1, factor(&[1.0])))),
    );
    area.invalid("low-rank-groups-by-tensor", "GRP-1", "out_of_range", {
        let p = (8, bytes().u8(66).v(1).u8(64).u8(126).packed(6, &[1, 33, 12]));
        dense(F32, &[6], of(3, 2, 1, p, q()))
    });
    area.invalid("low-rank-integers", "BLK-5", "out_of_range", dense(I16, &[6], of(3, 2, 1, p(), q())));
}

fn dct(area: &mut Area) {
    let of = |sizes: [u64; 4], support: (u64, Bytes), values: (u64, Bytes)| {
        let head = sizes.iter().fold(bytes(), |out, &s| out.v(s));
        (13, head.v(support.0).text(support.1).v(values.0).raw(values.1))
    };
    let f32s = |values: &[f32]| (1, values.iter().fold(bytes().u8(2), |out, &x| out.f32(x)));
    let some = |count: u64| -> Vec<f32> {
        (0..count).map(|i| (noise(9, i) as i32 as f32) * 2f32.powi((noise(10, i) % 60) as i32 - 60)).collect()
    };
    let all = |count: u64| f32s(&some(count));
    let (four, six) = ([2, 2, 2, 2], [2, 3, 2, 3]);
    area.valid(
        "dct",
        "DCT-1 DCT-2 DCT-3 DCT-4",
        dense(F32, &[2, 2], of(four, ALL(), f32s(&[4.0, 0.0, 2.0, 0.0]))),
    )
    .tensors();
    for (id, [rows, cols, tall, wide]) in [
        ("vector", [1, 12, 1, 12]),
        ("column", [7, 1, 7, 1]),
        ("of-ones", [2, 3, 1, 1]),
        ("chunks", [6, 10, 3, 5]),
        ("powers", [16, 8, 8, 4]),
        ("128", [1, 128, 1, 128]),
        ("127-by-2", [127, 2, 127, 2]),
        ("100-by-9", [100, 9, 100, 9]),
    ] {
        let values = of([rows, cols, tall, wide], ALL(), all(rows * cols));
        area.valid(&format!("dct-{id}"), "DCT-1 DCT-2", dense(F32, &[rows, cols], values)).tensors();
    }
    area.valid("dct-sparse", "DCT-3", {
        let support = rice(&[0, 1, 17, 63, 64, 130, 191], 4);
        dense(F32, &[24, 8], of([24, 8, 8, 8], support, f32s(&some(7))))
    })
    .tensors();
    area.valid("dct-chunked-signs", "DCT-3 DCT-4", {
        let support = bytes().v(64).v(3).fields(6, &[0, 1, 9, 5, 6, 7, 0, 8, 63, 1, 2, 3]);
        dense(F32, &[16, 16], of([16, 16, 8, 8], (5, support), (3, scale(0.375).u8(0).u16(0b0110_1001_1010))))
    })
    .tensors()
    .notes("DeMo's message: 6 bits a position and a sign");
    let each = |m: u64| (0..m).map(|i| 1 + i % 2).collect::<Vec<_>>();
    let supports = [
        ("gaps-tokens", (3, bytes().v(3).raw(token_entropy(&gaps(&[0, 2, 5]), 0))), 3),
        ("bitmap", (4, bytes().u8(0b11_0001)), 3),
        ("rows", (6, bytes().v(3).v(4).u8(0b10)), 3),
        ("seeded", (7, bytes().v(3).u64(5)), 3),
    ];
    for (id, support, m) in supports {
        let values = (4, bytes().u16(0).u8(0).packed(2, &each(m)).u8(0).u8(0b101));
        area.valid(&format!("dct-{id}"), "DCT-3 DCT-4", dense(BF16, &[6], of(six, support, values)))
            .tensors();
    }
    let kinds = [
        ("constant", 2, scale(-0.5)),
        ("levels", 5, bytes().u8(0).v(2).u8(2).raw(scale(1.0)).packed(3, &[3, 4, 0, 1, 2, 0])),
        ("affine", 6, bytes().u8(2).u8(0).raw(scale(1.0)).packed(2, &[3, 1, 0, 2, 2, 2])),
        ("codebook", 7, bytes().u8(1).u32(1).f32(2.0).u8(0).v(0).packed(1, &[1, 0, 1, 1, 0, 0])),
        ("minifloat", 8, bytes().u8(9).v(0).u8(2).f32(1.0).packed(4, &[15, 1, 0, 0, 7, 8])),
        ("f16", 1, bytes().u8(3).u16(0x3c00).u16(1).u16(0).u16(0x8000).u16(0x7bff).u16(2)),
    ];
    for (id, kind, values) in kinds {
        area.valid(&format!("dct-{id}"), "DCT-4", dense(F32, &[6], of(six, ALL(), (kind, values)))).tensors();
    }
    area.valid("dct-infinite", "DCT-1", {
        dense(F32, &[2, 3], of(six, (4, bytes().u8(0b11_0000)), f32s(&[f32::INFINITY, 1.0])))
    })
    .tensors()
    .notes("infinities of both signs, and the NaN of arithmetic where the cosine is 0");
    area.valid("dct-largest", "DCT-1", {
        dense(F32, &[2, 2], of(four, ALL(), f32s(&[f32::MAX, f32::MAX, 1e-45, -1e-45])))
    })
    .tensors()
    .notes("sums beyond binary32 become infinity");
    area.valid("dct-nothing-kept", "DCT-3", dense(F32, &[2, 3], of(six, (4, bytes().u8(0)), f32s(&[]))))
        .tensors();
    area.valid("dct-of-nothing", "DCT-1", dense(F32, &[0, 4], of([0, 4, 128, 4], ALL(), f32s(&[]))))
        .tensors();
    area.valid("dct-added-range", "DCT-1", {
        let man = manifest(&[("w", F32, &[8])]);
        let values = || of(six, ALL(), all(6));
        let blocks = [block(range(0, 1, 6), ALL(), values()), block(adding(range(0, 2, 6)), ALL(), values())];
        stream().manifest(&man).update(&update(&man, blocks)).done()
    })
    .tensors();
    let mut refuse = |id: &str, requirements: &'static str, kind: &'static str, bytes: Vec<u8>| {
        area.invalid(&format!("dct-{id}"), requirements, kind, bytes);
    };
    refuse("other-size", "DCT-1", "count_mismatch", dense(F32, &[7], of(six, ALL(), all(6))));
    refuse("65-bits", "DCT-1", "count_mismatch", dense(F32, &[0], of([1 << 63, 2, 1, 1], ALL(), all(0))));
    refuse("on-a-sparse-support", "DCT-1", "count_mismatch", {
        one(F32, &[6], (4, bytes().u8(0x3f)), of(six, ALL(), all(6)))
    });
    refuse("rows-not-divided", "DCT-2", "out_of_range", dense(F32, &[6], of([3, 2, 2, 2], ALL(), all(6))));
    refuse("cols-not-divided", "DCT-2", "out_of_range", dense(F32, &[6], of([2, 3, 2, 2], ALL(), all(6))));
    for (id, sides) in [("0-rows", [0, 3]), ("0-cols", [2, 0])] {
        refuse(id, "CNV-4", "out_of_range", dense(F32, &[6], of([2, 3, sides[0], sides[1]], ALL(), all(6))));
    }
    refuse("129", "CNV-4", "out_of_range", dense(F32, &[129], of([1, 129, 1, 129], ALL(), all(129))));
    refuse("129-rows", "CNV-4", "out_of_range", dense(F32, &[129], of([129, 1, 129, 1], ALL(), all(129))));
    for kind in [0, 8, 9, 0x8000] {
        let support = (kind, bytes().raw([0; 32]));
        refuse(
            &format!("support-{kind}"),
            "DCT-3",
            "out_of_range",
            dense(F32, &[6], of(six, support, all(6))),
        );
    }
    refuse("position-beyond", "RIC-2", "position_out_of_range", {
        dense(F32, &[6], of(six, rice(&[6], 2), all(1)))
    });
    for kind in [0, 9, 10, 11, 12, 13, 14] {
        refuse(&format!("of-values-{kind}"), "DCT-4", "out_of_range", {
            dense(F32, &[6], of(six, ALL(), (kind, scale(1.0))))
        });
    }
    refuse("of-dct", "DCT-4", "out_of_range", dense(F32, &[6], of(six, ALL(), of(six, ALL(), all(6)))));
    refuse("source", "DCT-4", "out_of_range", {
        dense(F32, &[6], of(six, ALL(), (1, bytes().u8(0).raw([0; 24]))))
    });
    refuse("groups-by-tensor", "GRP-1", "out_of_range", {
        dense(F32, &[6], of(six, ALL(), (3, bytes().v(1).u8(2).f32(1.0).u8(0))))
    });
    refuse("short", "FLT-1", "length_mismatch", dense(F32, &[6], of(six, ALL(), all(5))));
    refuse("long", "FLT-1", "length_mismatch", dense(F32, &[6], of(six, ALL(), all(7))));
    refuse("support-long", "ALL-1", "length_mismatch", {
        dense(F32, &[6], of(six, (1, bytes().u8(0)), all(6)))
    });
    refuse("integers", "BLK-5", "out_of_range", dense(I16, &[6], of(six, ALL(), all(6))));
}
