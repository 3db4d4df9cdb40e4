use super::*;
use crate::block::{Based, Bits, Groups, ScaleFormat, Scales, Sparse, Support};
use crate::codes::Entropy;
use crate::limits::Limits;

/// The space of `count` elements that are all of two tensors.
pub(super) fn space(dtype: Dtype, count: u64) -> ValueSpace<'static> {
    ValueSpace {
        count,
        is_all: true,
        tensors: Some(2),
        dtype,
        row_lens: &[],
        group_counts: &[],
        elements: None,
    }
}

pub(super) fn budget(memory: u64) -> Budget {
    Budget::new(&Limits::default().with_max_alloc_bytes(memory))
}

/// Writes values with packed codes.
pub(super) fn write(values: &Values, space: &ValueSpace<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    values.write(&mut out, &mut Coder::new(Entropy::Packed, &[], None), space)?;
    Ok(out)
}

/// Reads values with `memory` bytes of memory.
pub(super) fn read(bytes: &[u8], id: ValuesId, space: &ValueSpace<'_>, memory: u64) -> Result<Values> {
    let (cursor, budget) = (Cursor::new(bytes, 0, "values"), budget(memory));
    Values::read(cursor, &mut Decoder { tables: &[], budget: &budget }, id, space)
}

/// Reads values as elements, with `memory` bytes of memory.
pub(super) fn read_into(bytes: &[u8], id: ValuesId, space: &ValueSpace<'_>, memory: u64) -> Result<Vec<u8>> {
    let (cursor, budget) = (Cursor::new(bytes, 0, "values"), budget(memory));
    let mut out = vec![0; in_memory(space.dtype.bytes_for(space.count).unwrap())];
    Values::read_into(cursor, &Decoder { tables: &[], budget: &budget }, id, space, &mut out)?;
    Ok(out)
}

pub(super) fn scales(count: usize) -> Scales {
    Scales::from_f32s(ScaleFormat::F32, &vec![1.5; count])
}

fn floats(stored: Stored, len: usize) -> Values {
    Values::Floats(Floats { stored, bytes: vec![3; len] })
}

fn sign(groups: Groups, signs: usize) -> Values {
    let scales = scales(if groups == Groups::Block { 1 } else { 3 });
    Values::Sign(Sign { groups, scales, negative: (0..signs).map(|i| i % 3 == 0).collect() })
}

fn pow2(min_exponent: i16, codes: usize, signs: usize) -> Values {
    let negative: Bits = (0..signs).map(|i| i % 5 == 1).collect();
    Values::Pow2(Pow2 { min_exponent, underflow: Underflow::Zero, codes: vec![2; codes], negative })
}

fn levels(spacing: Spacing, max_level: u32, levels: Vec<i32>) -> Values {
    let (groups, norms) = (Groups::Block, scales(1));
    Values::Levels(Levels { spacing, max_level, norm: Norm::L2, groups, norms, levels: levels.into() })
}

fn affine(bits: u8, zero: Zero, codes: Vec<u8>) -> Values {
    Values::Affine(Affine { bits, groups: Groups::Tensor, scales: scales(2), zero, codes })
}

fn codebook(entries: usize, codes: Vec<u8>) -> Values {
    let (table, groups, scales) = (vec![0.5; entries], Groups::Tensor, Some(scales(2)));
    Values::Codebook(Codebook { table, groups, scales, shifts: None, codes })
}

fn minifloat(format: MinifloatFormat, codes: Vec<u8>) -> Values {
    Values::Minifloat(Minifloat { format, groups: Groups::Tensor, scales: scales(2), codes })
}

fn latent(shape: &[u64], codes: Values) -> Values {
    Values::Latent(Latent { model: ModelId([1; 32]), shape: shape.to_vec(), codes: Box::new(codes) })
}

fn low_rank(rows: u64, cols: u64, rank: u64, left: Values, right: Values) -> Values {
    Values::LowRank(LowRank { rows, cols, rank, left: Box::new(left), right: Box::new(right) })
}

fn dct(rows: u64, cols: u64, support: Support, coefficients: Values) -> Values {
    let coefficients = Box::new(coefficients);
    Values::Dct(Dct { rows, cols, chunk_rows: 2, chunk_cols: 1, support, coefficients })
}

/// 144 values of each kind, their label, their weight, and about their bytes in memory.
fn each_kind() -> Vec<(Values, &'static str, u64, u64)> {
    let three = Support::Sparse(Sparse { positions: vec![1, 2, 77] });
    let constant = Constant { groups: Groups::Len(60), scales: scales(3) };
    vec![
        (floats(Stored::Source, 576), "raw", 576, 576),
        (floats(Stored::F32, 576), "f32", 576, 576),
        (floats(Stored::F16, 288), "f16", 288, 288),
        (floats(Stored::Bf16, 288), "bf16", 288, 288),
        (Values::Constant(constant), "constant", 12, 12),
        (sign(Groups::Len(60), 144), "sign", 18, 30),
        (pow2(-9, 144, 144), "pow2", 144, 162),
        (levels(Spacing::Uniform, 7, vec![-7; 144]), "levels s=7", 144, 148),
        (levels(Spacing::Natural, 9, vec![9; 144]), "natural levels s=9", 144, 148),
        (levels(Spacing::Uniform, 300, vec![-300; 144]), "levels s=300", 144, 580),
        (affine(4, Zero::Offset(scales(2)), vec![15; 144]), "affine 4 bit", 144, 160),
        (codebook(3, vec![2; 144]), "codebook 3", 144, 160),
        (minifloat(MinifloatFormat::F4E2M1, vec![15; 144]), "f4e2m1", 144, 160),
        (minifloat(MinifloatFormat::Int8, vec![200; 144]), "mxint8", 144, 160),
        (Values::Planes(Planes { bytes: vec![5; 576] }), "planes", 576, 576),
        (Values::Ulp(Ulp { diffs: vec![-2; 144] }), "ulp", 144, 1152),
        (latent(&[3, 4], floats(Stored::F16, 24)), "latent", 24, 24),
        (low_rank(12, 12, 1, floats(Stored::F16, 24), floats(Stored::F32, 48)), "low-rank 1", 72, 72),
        (dct(12, 12, three, floats(Stored::F16, 6)), "dct of f16", 12, 30),
    ]
}

#[test]
fn each_kind_tells_its_label_weight_and_memory() {
    let space = space(Dtype::F32, 144);
    for (values, label, weight, memory) in each_kind() {
        let facts = values.facts();
        assert_eq!((values.label().as_str(), facts.weight, facts.memory), (label, weight, memory));
        // As do its bytes.
        let (bytes, id) = (write(&values, &space).unwrap(), values.id());
        let validated = Values::validate(Cursor::new(&bytes, 0, "values"), id, &space).unwrap();
        assert_eq!((validated.weight, validated.is_bits), (weight, facts.content.is_bits()), "{label}");
        assert_eq!(validated.is_matrix, facts.structure == Structure::Matrix, "{label}");
        assert_eq!(read(&bytes, id, &space, u64::MAX).unwrap(), values);
    }
}

#[test]
fn values_whose_fields_disagree_are_refused() {
    use {MinifloatFormat::F4E2M1, Spacing::Natural, Spacing::Uniform};
    let space = space(Dtype::F32, 4);
    let half = |n: usize| floats(Stored::F16, 2 * n);
    let zero_points = |points: &[u8]| affine(2, Zero::Point(points.to_vec()), vec![3; 4]);
    let based = |ranks| Support::Based(Based { bounds: vec![], ranks: vec![ranks] });
    let right = [
        half(4),
        sign(Groups::Block, 4),
        pow2(-1074, 4, 4),
        pow2(1023, 4, 4),
        levels(Uniform, 1, vec![0, 1, -1, 0]),
        levels(Uniform, 65_535, vec![65_535, -65_535, 0, 0]),
        levels(Natural, 255, vec![255; 4]),
        affine(1, Zero::Centre, vec![1, 0, 0, 0]),
        affine(8, Zero::Centre, vec![255; 4]),
        zero_points(&[3, 0]),
        codebook(2, vec![1; 4]),
        codebook(256, vec![255; 4]),
        minifloat(F4E2M1, vec![15; 4]),
        Values::Planes(Planes { bytes: vec![0; 16] }),
        Values::Ulp(Ulp { diffs: vec![0; 4] }),
        latent(&[1; 32], half(1)),
        low_rank(2, 2, 1, half(2), half(2)),
        dct(2, 2, Support::All, half(4)),
    ];
    for values in right {
        write(&values, &space).unwrap();
    }
    let wrong = [
        half(3),
        sign(Groups::Block, 3),
        sign(Groups::Block, 5),
        pow2(-1075, 4, 4),
        pow2(1024, 4, 4),
        pow2(0, 3, 3),
        pow2(0, 4, 1),
        levels(Uniform, 0, vec![0; 4]),
        levels(Uniform, 65_536, vec![0; 4]),
        levels(Natural, 256, vec![0; 4]),
        levels(Uniform, 9, vec![10, 0, 0, 0]),
        affine(0, Zero::Centre, vec![0; 4]),
        affine(9, Zero::Centre, vec![0; 4]),
        affine(2, Zero::Centre, vec![0; 3]),
        affine(2, Zero::Centre, vec![0, 4, 0, 0]),
        affine(2, Zero::Offset(scales(1)), vec![0; 4]),
        zero_points(&[0]),
        zero_points(&[0, 4]),
        codebook(1, vec![0; 4]),
        codebook(257, vec![0; 4]),
        codebook(3, vec![0; 5]),
        codebook(3, vec![0, 3, 0, 0]),
        minifloat(F4E2M1, vec![0; 3]),
        minifloat(F4E2M1, vec![0, 16, 0, 0]),
        Values::Planes(Planes { bytes: vec![0; 15] }),
        Values::Ulp(Ulp { diffs: vec![0; 3] }),
        latent(&[1; 33], half(1)),
        latent(&[1 << 40, 1 << 40], half(1)),
        low_rank(2, 2, 0, half(0), half(0)),
        low_rank(2, 3, 1, half(2), half(3)),
        dct(2, 3, Support::All, half(4)),
        dct(2, 2, based(vec![0, 2]), half(2)),
    ];
    for values in wrong {
        let refused = write(&values, &space);
        assert!(matches!(refused, Err(Error::Input(_))), "{values:?}: {refused:?}");
    }
}

#[test]
fn the_unused_half_of_a_byte_is_zero() {
    let space = space(Dtype::F4E2M1, 3);
    for (bytes, fits) in [(vec![0x11, 1], true), (vec![0x11, 0x11], false)] {
        let raw = Values::Floats(Floats { stored: Stored::Source, bytes: bytes.clone() });
        for values in [raw, Values::Planes(Planes { bytes })] {
            assert_eq!(write(&values, &space).is_ok(), fits, "{values:?}");
        }
    }
}

#[test]
fn bits_of_elements_are_no_numbers() {
    for (values, label, ..) in each_kind().into_iter().filter(|(values, ..)| values.gives_bits()) {
        let refused = values.numbers(&[], &budget(u64::MAX), &mut [0.0; 144]);
        assert!(matches!(refused, Err(Error::Input(_))), "{label}: {refused:?}");
    }
}

/// Elements of 8 bits and more are read without memory for the values.
#[test]
fn elements_are_those_of_the_values_that_they_are_read_from() {
    let codes: Vec<u8> = (0..144).collect();
    let numbers = [
        sign(Groups::Len(60), 144),
        pow2(-9, 144, 144),
        levels(Spacing::Uniform, 127, (-17..127).collect()),
        affine(8, Zero::Centre, codes),
    ];
    for dtype in Dtype::ALL {
        let space = ValueSpace { tensors: Some(1), ..space(dtype, 144) };
        let bytes = vec![1; in_memory(dtype.bytes_for(144).unwrap())];
        let planes = Values::Planes(Planes { bytes: bytes.clone() });
        let raw = Values::Floats(Floats { stored: Stored::Source, bytes: bytes.clone() });
        for elements in [planes, raw] {
            let can = Values::can_read_into(elements.id(), dtype);
            assert_eq!(can, dtype != Dtype::F4E2M1, "{dtype}");
            if can {
                let written = write(&elements, &space).unwrap();
                assert_eq!(read_into(&written, elements.id(), &space, 1 << 20).unwrap(), bytes, "{dtype}");
            }
        }
        for stored in [Stored::F32, Stored::F16, Stored::Bf16] {
            let bytes = vec![3; in_memory(stored.dtype(dtype).bytes_for(144).unwrap())];
            let other = Values::Floats(Floats { stored, bytes });
            let written = write(&other, &ValueSpace { dtype: Dtype::F32, ..space }).unwrap();
            match dtype.is_float() {
                true if dtype == Dtype::F4E2M1 => {}
                true => {
                    let (mut exact, mut elements) =
                        (vec![0.0; 144], vec![0; 144 * in_memory(dtype.bits().into()) / 8]);
                    other.numbers(&[144], &budget(0), &mut exact).unwrap();
                    element::encode_f32s(dtype, &exact, 0, &mut elements).unwrap();
                    assert_eq!(read_into(&written, other.id(), &space, 0).unwrap(), elements, "{dtype}");
                }
                false => {
                    assert_eq!(read_into(&written, other.id(), &space, 0).unwrap_err().name(), "out_of_range")
                }
            }
        }
        for values in &numbers {
            let values = match values.clone() {
                Values::Affine(values) => Values::Affine(Affine { scales: scales(1), ..values }),
                other => other,
            };
            let can = Values::can_read_into(values.id(), dtype);
            assert_eq!(can, dtype.is_float() && dtype != Dtype::F4E2M1, "{dtype} {}", values.label());
            if can {
                let (mut exact, mut elements) = (vec![0.0; 144], bytes.clone());
                values.numbers(&[144], &budget(0), &mut exact).unwrap();
                element::encode_f32s(dtype, &exact, 0, &mut elements).unwrap();
                let written = write(&values, &space).unwrap();
                let found = read_into(&written, values.id(), &space, 0).unwrap();
                assert_eq!(found, elements, "{dtype} {}", values.label());
            }
        }
    }
}
