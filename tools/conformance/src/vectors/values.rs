//! Values (values/*.md), groups and scales (gcodec.md, section 5.1).

use std::sync::Arc;

use gcodec::Dtype;
use gcodec::block::{
    Affine, Bits, Block, BlockOptions, Codebook, Constant, Dct, Floats, Groups, Levels, LowRank, Minifloat,
    MinifloatFormat, Norm, Planes, Positions, Pow2, ScaleFormat, Scales, Scope, Sign, Spacing, Sparse,
    Stored, Support, Underflow, Values, Zero,
};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::{EncodeOptions, Encoder};

use super::Area;
use super::build::*;
use super::update::{TRYING, stored_f32};

/// Returns a stream of a block at these positions in a tensor of `n` elements, by the library's encoder.
pub(crate) fn encoded_sparse(positions: &[u64], n: u64, choice: Positions) -> Vec<u8> {
    let values = Values::Constant(Constant { groups: Groups::Block, scales: f32s(&[0.5]) });
    let support = Support::Sparse(Sparse { positions: positions.to_vec() });
    let block = Block { scope: Scope::Tensor(0), add: false, support, values };
    encoded(Dtype::F32, &[n], &block, BlockOptions::default().with_positions(choice))
}

/// Returns a stream of one block, written by the library's encoder.
fn encoded(dtype: Dtype, shape: &[u64], block: &Block, options: BlockOptions) -> Vec<u8> {
    let manifest = Arc::new(Manifest::new(vec![TensorInfo::new("w", dtype, shape)]).expect("a manifest"));
    let mut encoder = Encoder::new(EncodeOptions::default().with_index(false));
    let mut out = Vec::new();
    let update = encoder.update(&mut out, &UpdateHeader::default(), &manifest, &[(block, options)]);
    update.expect("a block that holds together");
    encoder.finish(&mut out);
    out
}

/// Returns the same for values of a whole tensor, with default choices.
fn encoded_values(dtype: Dtype, shape: &[u64], values: Values) -> Vec<u8> {
    let block = Block { scope: Scope::Tensor(0), add: false, support: Support::All, values };
    encoded(dtype, shape, &block, BlockOptions::default())
}

fn f32s(values: &[f32]) -> Scales {
    Scales::from_f32s(ScaleFormat::F32, values)
}

/// Returns pseudo-random numbers, equal on every machine.
fn noise(seed: u64, i: u64) -> u32 {
    gcodec::compress::random::word(seed, 0, i)
}

pub(crate) fn add(area: &mut Area) {
    floats(area);
    groups(area);
    constants_and_signs(area);
    pow2(area);
    levels(area);
    affine(area);
    codebook(area);
    minifloat(area);
    planes(area);
    latent(area);
    low_rank(area);
    dct(area);
    encoded_kinds(area);
}

fn floats(area: &mut Area) {
    for dtype in Dtype::ALL {
        for (what, shape) in [("", &[3, 3][..]), ("-scalar", &[]), ("-empty", &[0, 4])] {
            let count: u64 = shape.iter().product();
            let mut data: Vec<u8> =
                (0..dtype.bytes_for(count).unwrap_or(0)).map(|i| noise(1, i) as u8).collect();
            if let Some(last) = data.last_mut().filter(|_| dtype.bits() == 4 && count % 2 == 1) {
                *last &= 15;
            }
            let values = (1, bytes().u8(0).raw(&data));
            area.valid(&format!("source-{dtype}{what}"), "FLT-1 BLK-5", dense(dtype.id(), shape, values))
                .tensors();
        }
    }
    let of = |n: u64, dtype: u8, values: Bytes| dense(dtype, &[n], (1, values));
    let mut refuse = |id: &str, bytes: Vec<u8>| {
        area.invalid(id, "FLT-1", "length_mismatch", bytes);
    };
    refuse("floats-short", of(2, F32, bytes().u8(2).u32(0)));
    refuse("floats-long", of(2, F32, bytes().u8(3).u16(0).u16(0).u8(0)));
    refuse("source-short", of(2, BF16, bytes().u8(0).u16(0).u8(0)));
    refuse("source-long", of(2, 9, bytes().u8(0).u16(0)));
    for stored in [1, 5, 64] {
        area.invalid(&format!("stored-{stored}"), "CNV-4", "out_of_range", of(0, F32, bytes().u8(stored)));
    }
    area.invalid("source-f4-padding", "CNV-1", "nonzero_padding", of(3, 9, bytes().u8(0).u16(0x1000)));
}

fn groups(area: &mut Area) {
    let man = manifest(&[("a", F32, &[2]), ("z", F32, &[0]), ("b", F32, &[5])]);
    let of = |support: (u64, Bytes), values: Bytes| {
        stream().manifest(&man).update(&update(&man, [block(several(0, 3), support, (2, values))])).done()
    };
    let each = |out: Bytes, count: u16| (0..count).fold(out, |out, i| out.u16(0x3f80 + i));
    area.valid("groups-by-tensor", "GRP-1 CST-1", of(ALL(), each(bytes().v(1).u8(4), 3))).tensors();
    area.valid(
        "groups-by-tensor-sparse",
        "GRP-1",
        of((4, bytes().u8(0b1000100)), each(bytes().v(1).u8(4), 3)),
    )
    .tensors()
    .notes("three scales, the first two of them without values");
    area.valid("groups-of-2", "CST-1", of(ALL(), each(bytes().v(2).u8(4), 4))).tensors();
    area.valid("groups-of-many", "CST-1", of(ALL(), each(bytes().v(u64::MAX).u8(4), 1))).tensors();
    area.valid("groups-of-2-none", "CST-1", of((4, bytes().u8(0)), bytes().v(2).u8(4)))
        .tensors()
        .notes("no groups, but their format");
    area.valid("groups-by-tensor-of-one", "GRP-1", dense(F32, &[3], (2, bytes().v(1).u8(2).f32(2.0))))
        .tensors();
    area.valid("one-group-none", "CST-1", one(F32, &[4], (4, bytes().u8(0)), ones())).tensors();
    area.invalid("scales-too-few", "CST-1", "length_mismatch", of(ALL(), each(bytes().v(1).u8(4), 2)));
    area.invalid("scales-too-many", "CST-1", "length_mismatch", of(ALL(), each(bytes().v(1).u8(4), 4)));
    for format in [0, 1, 5, 63, 65] {
        let values = bytes().v(0).u8(format).u32(0);
        area.invalid(
            &format!("scale-format-{format}"),
            "CNV-4",
            "unsupported",
            dense(F32, &[3], (2, values)),
        );
    }
}

fn constants_and_signs(area: &mut Area) {
    let f16s = [0x3c00u16, 0x8000, 0x7c00, 0xfc00, 0x7c01, 0xfe00, 0x0001, 0x7bff];
    let bf16s = [0x3f80u16, 0x8000, 0x7f80, 0xff80, 0x7f81, 0xffc1, 0x0001, 0x7f7f];
    let f32s: Vec<u32> = TRYING[..16].to_vec();
    let e8m0s = [0u8, 1, 126, 127, 128, 253, 254, 255];
    let formats = [
        ("f32", 16, f32s.iter().fold(bytes().u8(2), |out, &s| out.u32(s))),
        ("f16", 8, f16s.iter().fold(bytes().u8(3), |out, &s| out.u16(s))),
        ("bf16", 8, bf16s.iter().fold(bytes().u8(4), |out, &s| out.u16(s))),
        ("e8m0", 8, bytes().u8(64).raw(e8m0s)),
    ];
    for (format, count, scales) in formats {
        let scales = bytes().v(2).raw(scales);
        area.valid(&format!("constant-{format}"), "CST-1", dense(F32, &[count * 2], (2, scales.clone())))
            .tensors()
            .notes("infinities, NaN, minus zero, subnormals");
        let signs = (0..count / 4).fold(scales.u8(0), |out, i| out.u8(0xa6 ^ i as u8));
        area.valid(&format!("sign-{format}"), "SGN-1", dense(F32, &[count * 2], (3, signs)))
            .tensors()
            .notes("negation is of the sign bit, of NaN too");
    }
    area.valid("sign-padded", "SGN-1", dense(BF16, &[5], (3, scale(2.0).u8(0).u8(0b10010)))).tensors();
    area.valid("sign-none", "SGN-1", dense(F32, &[0], (3, scale(2.0).u8(0)))).tensors();
    area.invalid("sign-short", "SGN-1", "length_mismatch", dense(F32, &[9], (3, scale(2.0).u8(0).u8(0))));
    area.invalid("sign-long", "SGN-1", "length_mismatch", dense(F32, &[8], (3, scale(2.0).u8(0).u16(0))));
    area.invalid(
        "sign-padding",
        "CNV-1",
        "nonzero_padding",
        dense(F32, &[5], (3, scale(2.0).u8(0).u8(0b100000))),
    );
}

fn pow2(area: &mut Area) {
    let of = |min: i16, underflow: u8, codes: &[u64], signs: Bytes| {
        let values = bytes().u16(min as u16).u8(underflow).packed(8, codes).u8(0).raw(signs);
        dense(F32, &[codes.len() as u64], (4, values))
    };
    let codes = [0, 1, 2, 127, 128, 254, 255, 0];
    for (id, min) in [("least", -1074), ("subnormal", -150), ("f32", -149), ("zero", 0), ("greatest", 1023)] {
        area.valid(&format!("pow2-{id}"), "PW2-1", of(min, 0, &codes, bytes().u8(0b10_1010)))
            .tensors()
            .notes("beyond binary32 it is infinity or zero, with the sign; the zeros at both ends have none");
    }
    for underflow in [1, 2] {
        area.valid(
            &format!("pow2-underflow-{underflow}"),
            "PW2-1",
            of(-3, underflow, &[3, 0, 5], bytes().u8(0b01)),
        )
        .tensors();
    }
    area.valid("pow2-none", "PW2-1", dense(F32, &[0], (4, bytes().u16(5).u8(0).u8(0))))
        .notes("not even the coding of no integers");
    area.valid("pow2-zeros", "PW2-1", of(-3, 0, &[0; 9], bytes())).tensors().notes("zeros have no signs");
    area.invalid("pow2-sign-of-zero", "PW2-1", "length_mismatch", of(-3, 0, &[0; 8], bytes().u8(0)));
    area.invalid("pow2-signs-padding-of-zero", "CNV-1", "nonzero_padding", of(0, 0, &[0, 1], bytes().u8(2)));
    area.invalid("pow2-none-with-coding", "PW2-1", "length_mismatch", {
        dense(F32, &[0], (4, bytes().u16(0).u8(0).packed(0, &[]).u8(0)))
    });
    area.invalid("pow2-min-too-small", "CNV-4", "out_of_range", of(-1075, 0, &[1], bytes().u8(0)));
    area.invalid("pow2-min-too-great", "CNV-4", "out_of_range", of(1024, 0, &[1], bytes().u8(0)));
    area.invalid("pow2-underflow-3", "CNV-4", "out_of_range", of(0, 3, &[1], bytes().u8(0)));
    area.invalid("pow2-signs-short", "PW2-1", "length_mismatch", of(0, 0, &[1; 9], bytes().u8(0)));
    area.invalid("pow2-signs-long", "PW2-1", "length_mismatch", of(0, 0, &[1; 8], bytes().u16(0)));
    area.invalid("pow2-signs-padding", "CNV-1", "nonzero_padding", of(0, 0, &[1; 3], bytes().u8(8)));
    area.invalid("pow2-code-256", "INT-3", "out_of_range", {
        dense(F32, &[1], (4, bytes().u16(0).u8(0).packed(9, &[256]).u8(0).u8(0)))
    });
}

fn levels(area: &mut Area) {
    let of = |spacing: u8, s: u64, norm: u8, scales: Bytes, zigzags: &[u64]| {
        let values = bytes().u8(spacing).v(s).u8(norm).raw(scales).packed(17, zigzags);
        dense(F32, &[zigzags.len() as u64], (5, values))
    };
    let levels = [0, 1, 2, 3, 4, 5, 6];
    area.valid("levels-uniform", "LEV-1", of(0, 3, 2, scale(0.7), &levels)).tensors();
    area.valid("levels-natural", "LEV-1", of(1, 3, 255, scale(-0.7), &levels)).tensors();
    area.valid("levels-ternary", "LEV-1", of(0, 1, 1, scale(2.5), &[0, 1, 2])).tensors();
    area.valid("levels-65535", "LEV-1", of(0, 65535, 2, scale(1.0), &[131_069, 131_070, 7])).tensors();
    area.valid("levels-natural-255", "LEV-1", of(1, 255, 2, scale(f32::MAX), &[1, 510, 509, 210])).tensors();
    area.valid("levels-norm-infinite", "LEV-1", of(0, 3, 2, scale(f32::INFINITY), &[0, 1, 2]))
        .tensors()
        .notes("0 times infinity is the NaN of arithmetic; natural spacing gives 0 for level 0");
    area.valid("levels-natural-norm-infinite", "LEV-1", of(1, 3, 2, scale(f32::INFINITY), &[0, 1, 2]))
        .tensors();
    let nan = bytes().v(0).u8(2).u32(0xff80_0001);
    area.valid("levels-norm-nan", "LEV-1", of(0, 3, 2, nan.clone(), &[0, 1])).tensors();
    area.valid("levels-natural-norm-nan", "LEV-1", of(1, 3, 2, nan, &[0, 1])).tensors();
    area.valid("levels-minus-zero", "LEV-1", of(0, 3, 2, scale(-0.0), &[0, 1, 2])).tensors();
    area.invalid("level-beyond", "LEV-1", "out_of_range", of(0, 3, 2, scale(1.0), &[7]));
    area.invalid("level-beyond-up", "LEV-1", "out_of_range", of(1, 3, 2, scale(1.0), &[8]));
    area.invalid("levels-spacing-2", "CNV-4", "out_of_range", of(2, 3, 2, scale(1.0), &[0]));
    area.invalid("levels-s-0", "CNV-4", "out_of_range", of(0, 0, 2, scale(1.0), &[0]));
    area.invalid("levels-s-65536", "CNV-4", "out_of_range", of(0, 65536, 2, scale(1.0), &[0]));
    area.invalid("levels-natural-s-256", "CNV-4", "out_of_range", of(1, 256, 2, scale(1.0), &[0]));
    for norm in [0, 3, 254] {
        area.invalid(
            &format!("levels-norm-{norm}"),
            "CNV-4",
            "out_of_range",
            of(0, 3, norm, scale(1.0), &[0]),
        );
    }
}

fn affine(area: &mut Area) {
    let of = |bits: u8, zero: u8, scales: Bytes, width: u8, codes: &[u64]| {
        let values = bytes().u8(bits).u8(zero).raw(scales).packed(width, codes);
        dense(F32, &[codes.len() as u64], (6, values))
    };
    area.valid("affine-centre", "AFF-1", of(4, 0, scale(0.3), 4, &[0, 7, 8, 15])).tensors();
    area.valid("affine-1-bit", "AFF-1", of(1, 0, scale(0.3), 1, &[0, 1])).tensors();
    area.valid("affine-8-bits", "AFF-1", of(8, 0, scale(-0.1), 8, &[0, 127, 128, 255])).tensors();
    area.valid("affine-point", "AFF-1", of(3, 1, scale(0.3).u8(2), 3, &[0, 1, 2, 7])).tensors();
    area.valid("affine-offset", "AFF-1", of(2, 2, scale(0.3).u8(4).u16(0xbf80), 2, &[0, 1, 2, 3])).tensors();
    let many = |count: u64| (0..count).map(|i| u64::from(noise(2, i) & 255)).collect::<Vec<_>>();
    area.valid("affine-long-groups", "AFF-1", of(8, 0, scale(1.0e-3), 8, &many(300))).tensors();
    area.valid("affine-groups", "AFF-1", {
        of(2, 1, bytes().v(3).u8(2).f32(1.0).f32(f32::INFINITY).u8(1).u8(3), 2, &[0, 1, 2, 3, 0])
    })
    .tensors()
    .notes("0 times infinity is the NaN of arithmetic");
    area.valid(
        "affine-offset-overflow",
        "AFF-1",
        of(8, 2, scale(f32::MAX).u8(2).f32(f32::MIN), 8, &[0, 1, 2, 255]),
    )
    .tensors();
    area.invalid("affine-code-beyond", "AFF-1 INT-3", "out_of_range", of(3, 0, scale(1.0), 4, &[8]));
    area.invalid("affine-point-beyond", "AFF-1", "out_of_range", of(3, 1, scale(1.0).u8(8), 3, &[0]));
    area.invalid("affine-bits-0", "CNV-4", "out_of_range", of(0, 0, scale(1.0), 0, &[0]));
    area.invalid("affine-bits-9", "CNV-4", "out_of_range", of(9, 0, scale(1.0), 9, &[0]));
    area.invalid("affine-zero-3", "CNV-4", "out_of_range", of(3, 3, scale(1.0), 3, &[0]));
    area.invalid("affine-offset-format", "CNV-4", "unsupported", of(2, 2, scale(1.0).u8(6).u32(0), 2, &[0]));
}

fn codebook(area: &mut Area) {
    let entries = [0x3f80_0000, 0xbf80_0000, 0x7f80_0001, 0x8000_0000];
    let of = |entries: &[u32], flags: u8, scales: Bytes, width: u8, codes: &[u64]| {
        let table =
            entries.iter().fold(bytes().u8(entries.len().wrapping_sub(1) as u8), |out, &e| out.u32(e));
        dense(F32, &[codes.len() as u64], (7, table.u8(flags).raw(scales).packed(width, codes)))
    };
    let all = [0, 1, 2, 3, 0];
    area.valid("codebook-plain", "CBK-1", of(&entries, 0, bytes().v(0), 2, &all))
        .tensors()
        .notes("an entry's NaN becomes that of arithmetic");
    area.valid("codebook-scales", "CBK-1", of(&entries, 1, bytes().v(2).u8(64).raw([127, 0, 254]), 2, &all))
        .tensors();
    area.valid("codebook-shifts", "CBK-1", of(&entries, 2, scale(0.1), 2, &all)).tensors();
    area.valid("codebook-both", "CBK-1", of(&entries, 3, scale(0.1).u8(3).u16(0x3c00), 2, &all)).tensors();
    let full: Vec<u32> = (0..256).map(|i| noise(3, i)).collect();
    area.valid("codebook-256", "CBK-1", of(&full, 0, bytes().v(0), 8, &[0, 255, 128])).tensors();
    area.invalid(
        "codebook-code-beyond",
        "CBK-1 INT-3",
        "out_of_range",
        of(&entries[..3], 0, bytes().v(0), 2, &[3]),
    );
    area.invalid("codebook-of-one", "CNV-4", "out_of_range", of(&entries[..1], 0, bytes().v(0), 1, &[0]));
    area.invalid("codebook-flags", "CNV-5", "reserved_bits", of(&entries, 4, bytes().v(0), 2, &[0]));
}

fn minifloat(area: &mut Area) {
    for (format, name) in MinifloatFormat::REGISTERED {
        let codes: Vec<u64> = (0..1 << format.bits()).collect();
        let values = bytes().u8(format as u8).raw(scale(1.5)).packed(format.bits() as u8, &codes);
        area.valid(&format!("minifloat-{name}"), "MFL-1", dense(F32, &[codes.len() as u64], (8, values)))
            .tensors()
            .notes("every bit pattern");
        if format.bits() < 8 {
            let values = bytes().u8(format as u8).raw(scale(1.0)).packed(7, &[1 << format.bits()]);
            area.invalid(
                &format!("minifloat-{name}-beyond"),
                "MFL-1 INT-3",
                "out_of_range",
                dense(F32, &[1], (8, values)),
            );
        }
    }
    let mx = bytes()
        .u8(9)
        .v(32)
        .u8(64)
        .raw([120, 254, 255])
        .packed(4, &(0..70).map(|i| i % 16).collect::<Vec<_>>());
    area.valid("minifloat-mxfp4", "MFL-1", dense(BF16, &[70], (8, mx))).tensors();
    for format in [0, 4, 10, 64, 69] {
        let values = bytes().u8(format).raw(scale(1.0)).packed(1, &[0]);
        area.invalid(
            &format!("minifloat-format-{format}"),
            "MFL-2",
            "unsupported",
            dense(F32, &[1], (8, values)),
        );
    }
}

fn planes(area: &mut Area) {
    for dtype in Dtype::ALL {
        let count = if dtype.bits() == 4 { 4 } else { 5 * u64::from(dtype.bits() / 8) };
        let width = (dtype.bits() / 8).max(1);
        let plane = count / u64::from(width);
        let m = if dtype.bits() == 4 { 7 } else { plane };
        let symbol = |i: u64| noise(4, i) as u8 & if dtype.bits() == 4 && i == 3 { 15 } else { 255 };
        let values = (0..u64::from(width))
            .fold(bytes(), |out, p| (0..plane).fold(out.u8(0), |out, i| out.u8(symbol(p * plane + i))));
        area.valid(&format!("planes-{dtype}"), "PLN-1", dense(dtype.id(), &[m], (9, values))).tensors();
    }
    let coded = bytes().u8(1).u8(2).raw(entropy(&[9, 9, 9, 200], 0)).u8(1).packed(3, &[1, 2, 3, 4]);
    area.valid("planes-coded", "PLN-1 PLN-2", dense(F16, &[4], (9, coded))).tensors();
    let large = bytes().u8(0).raw([1, 2]).u8(1).packed(64, &[254, 255]);
    area.valid("planes-packed-wide", "PLN-2", dense(BF16, &[2], (9, large))).tensors();
    area.valid("planes-none", "PLN-1", dense(F32, &[0], (9, bytes().u8(0).u8(1).u8(1).u8(0)))).tensors();
    area.valid("planes-f4-coded", "PLN-2", dense(9, &[3], (9, bytes().u8(1).packed(8, &[0xf2, 0x07]))))
        .tensors();
    let of = |values: Bytes| dense(BF16, &[2], (9, values));
    area.invalid(
        "planes-symbol-256",
        "PLN-2",
        "out_of_range",
        of(bytes().u8(0).u16(0).u8(1).packed(9, &[0, 256])),
    );
    area.invalid("planes-short", "PLN-1", "length_mismatch", of(bytes().u8(0).u16(0).u8(0).u8(0)));
    area.invalid("planes-one-missing", "PLN-1", "length_mismatch", of(bytes().u8(0).u16(0)));
    area.invalid("planes-long", "PLN-1", "length_mismatch", of(bytes().u8(0).u16(0).u8(0).u16(0).u8(0)));
    area.invalid("planes-coded-2", "CNV-4", "out_of_range", of(bytes().u8(2).u16(0).u8(0).u16(0)));
    area.invalid(
        "planes-f4-padding",
        "CNV-1",
        "nonzero_padding",
        dense(9, &[3], (9, bytes().u8(0).u16(0x1000))),
    );
    area.invalid("planes-f4-padding-coded", "CNV-1", "nonzero_padding", {
        dense(9, &[3], (9, bytes().u8(1).packed(8, &[0xf2, 0x17])))
    });
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

/// Adds one vector of each kind, written by the library's encoder with default choices.
fn encoded_kinds(area: &mut Area) {
    let n = 400u64;
    let skewed = |i: u64, most: u32| (noise(5, i).leading_zeros() % most) as u8;
    let codes = |most: u32| (0..n).map(|i| skewed(i, most)).collect::<Vec<_>>();
    let signs = || (0..n).map(|i| noise(6, i) & 1 == 1).collect::<Bits>();
    let kinds: Vec<(&str, Values)> = vec![
        (
            "floats-source",
            Values::Floats(Floats {
                stored: Stored::Source,
                bytes: (0..n * 4).map(|i| noise(7, i) as u8).collect(),
            }),
        ),
        (
            "floats-f16",
            Values::Floats(Floats {
                stored: Stored::F16,
                bytes: (0..n * 2).map(|i| noise(7, i) as u8).collect(),
            }),
        ),
        (
            "constant",
            Values::Constant(Constant {
                groups: Groups::Len(100),
                scales: f32s(&[1.0, -0.0, f32::NAN, 1e-40]),
            }),
        ),
        ("sign", Values::Sign(Sign { groups: Groups::Tensor, scales: f32s(&[0.25]), negative: signs() })),
        (
            "pow2",
            Values::Pow2(Pow2 {
                min_exponent: -40,
                underflow: Underflow::Zero,
                negative: codes(20).iter().enumerate().map(|(i, &c)| c != 0 && signs().get(i)).collect(),
                codes: codes(20),
            }),
        ),
        (
            "levels",
            Values::Levels(Levels {
                spacing: Spacing::Uniform,
                max_level: 7,
                norm: Norm::L2,
                groups: Groups::Len(64),
                norms: f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
                levels: (0..n).map(|i| i32::from(skewed(i, 8)) * (1 - 2 * (i as i32 & 1))).collect(),
            }),
        ),
        (
            "affine",
            Values::Affine(Affine {
                bits: 4,
                groups: Groups::Block,
                scales: Scales::from_f32s(ScaleFormat::Bf16, &[0.125]),
                zero: Zero::Point(vec![8]),
                codes: codes(16),
            }),
        ),
        (
            "codebook",
            Values::Codebook(Codebook {
                table: vec![-1.0, -0.25, 0.25, 1.0],
                groups: Groups::Block,
                scales: Some(f32s(&[3.0])),
                shifts: None,
                codes: codes(4),
            }),
        ),
        (
            "minifloat",
            Values::Minifloat(Minifloat {
                format: MinifloatFormat::F6E2M3,
                groups: Groups::Len(32),
                scales: Scales { format: ScaleFormat::E8M0, bytes: (110..123).collect() },
                codes: codes(32),
            }),
        ),
        (
            "planes",
            Values::Planes(Planes {
                bytes: (0..n)
                    .flat_map(|i| (noise(8, i) as f32 / f32::from(1 + u16::from(skewed(i, 9)))).to_le_bytes())
                    .collect(),
            }),
        ),
        (
            "low-rank",
            Values::LowRank(LowRank {
                rows: 20,
                cols: 20,
                rank: 1,
                left: Box::new(Values::Floats(Floats {
                    stored: Stored::Bf16,
                    bytes: (0..40).map(|i| i | 1).collect(),
                })),
                right: Box::new(Values::Floats(Floats { stored: Stored::F32, bytes: (0..80).collect() })),
            }),
        ),
        (
            "dct",
            Values::Dct(Dct {
                rows: 20,
                cols: 20,
                chunk_rows: 10,
                chunk_cols: 20,
                support: Support::Sparse(Sparse { positions: vec![0, 1, 20, 21, 199, 200, 201, 399] }),
                coefficients: Box::new(Values::Sign(Sign {
                    groups: Groups::Block,
                    scales: f32s(&[0.125]),
                    negative: (0..8).map(|i| i % 3 == 0).collect(),
                })),
            }),
        ),
    ];
    for (id, values) in kinds {
        area.valid(&format!("encoded-{id}"), "CAN-1", encoded_values(Dtype::F32, &[20, 20], values))
            .encoded();
    }
    let exponents: Vec<u8> =
        (0..4096u64).map(|i| 60 + (i / 64 * 7 % 30) as u8 + (i % 64 * 5 % 13) as u8 + skewed(i, 3)).collect();
    let matrix = Values::Pow2(Pow2 {
        min_exponent: -100,
        underflow: Underflow::Unbiased,
        codes: exponents,
        negative: (0..4096).map(|i| i % 3 == 0).collect(),
    });
    area.valid("encoded-referenced", "CAN-1 INT-5", encoded_values(Dtype::F32, &[64, 64], matrix))
        .encoded()
        .notes("exponents that are a sum of a row's and a column's part: the coding is `referenced`");
}
