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
use super::transforms;
use super::update::TRYING;

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
pub(super) fn noise(seed: u64, i: u64) -> u32 {
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
    transforms::add(area);
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
    area.invalid("pow2-code-256", "INT-4", "out_of_range", {
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
    area.invalid("affine-code-beyond", "AFF-1 INT-4", "out_of_range", of(3, 0, scale(1.0), 4, &[8]));
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
        "CBK-1 INT-4",
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
                "MFL-1 INT-4",
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
    area.valid("encoded-referenced", "CAN-1 INT-7", encoded_values(Dtype::F32, &[64, 64], matrix))
        .encoded()
        .notes("exponents that are a sum of a row's and a column's part: the coding is `referenced`");
}
