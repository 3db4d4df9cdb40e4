use super::*;
use crate::digest::SumChange;
use crate::digest::change::BATCH;
use crate::digest::keys::{BIAS, add, fold, key};
use crate::random::word;
use crate::tensor::TensorBuf;

/// The definition: a sum over all units, without tables or pieces. `start`: indices of the first element.
fn defined(tensor: TensorView<'_>, start: &[u64]) -> SumDigest {
    let dtype = tensor.dtype();
    let (shape, start) = if start.is_empty() { (&[1][..], &[0][..]) } else { (tensor.shape(), start) };
    let per_element = (u64::from(dtype.bits()) / 16).max(1);
    let mut sum = [0; LANES];
    for element in 0..tensor.elements() {
        let bits = crate::tensor::element::bits_at(dtype, tensor.data(), element).unwrap();
        let (mut keys, mut rest) = ([1; LANES], element);
        let mut last = 0;
        for (axis, (&len, &first)) in shape.iter().zip(start).rev().enumerate() {
            let index = first.wrapping_add(rest % len);
            rest /= len;
            match axis {
                0 => last = index,
                _ => keys = mul(keys, key(axis, index)),
            }
        }
        for part in 0..per_element {
            let value = match dtype.bits() {
                4 => bits as i64,
                8 => i64::from(bits as i8),
                _ => i64::from((bits >> (16 * part)) as i16),
            };
            let keys = mul(keys, key(0, last.wrapping_mul(per_element).wrapping_add(part)));
            sum = add(sum, keys.map(|key| fold(key * (value + BIAS as i64) as u64)));
        }
    }
    SumDigest::from_lanes(sum)
}

fn tensor(dtype: Dtype, shape: &[u64], seed: u64) -> TensorBuf {
    let elements: u64 = shape.iter().product();
    let bytes = dtype.bytes_for(elements).unwrap();
    let mut data: Vec<u8> = (0..bytes).map(|at| word(seed, 7, at) as u8).collect();
    if dtype.bits() == 4 && elements % 2 == 1 {
        *data.last_mut().unwrap() &= 15;
    }
    TensorBuf::new(dtype, shape.to_vec(), data).unwrap()
}

fn words(count: u32, shape: &[u64]) -> TensorBuf {
    let data = (0..count).flat_map(|i| ((i * 40_503 + 17) as u16).to_le_bytes()).collect();
    TensorBuf::new(Dtype::Bf16, shape.to_vec(), data).unwrap()
}

#[test]
fn known_answers() {
    let hex = |tensor: &TensorBuf, offsets: &[u64]| {
        SumDigest::of_shard(tensor.view(), offsets).unwrap().to_string()
    };
    assert_eq!(hex(&words(185, &[5, 37]), &[0, 0]), "d0142e754846d92d7d8084166ac8201b");
    assert_eq!(hex(&words(120, &[4, 5, 6]), &[0; 3]), "5e02814ed6228e58aa281d4f01a97659");
    assert_eq!(hex(&words(120, &[20, 6]), &[65_530, 3]), "5d5aee13304999795c935b23a79b5339");
    let bytes = (0..185u32).map(|i| (i * 97 + 5) as u8).collect();
    let bytes = TensorBuf::new(Dtype::I8, vec![5, 37], bytes).unwrap();
    assert_eq!(hex(&bytes, &[0, 0]), "3d7f5c6bcab886245395b60fbf42cb65");
    let singles = (0..20u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let singles = TensorBuf::new(Dtype::F32, vec![4, 5], singles).unwrap();
    assert_eq!(hex(&singles, &[0, 0]), "c98fe56fbffd4d2185ea5335df471428");
    let nibble = |i: u8| (7 * i + 3) & 15;
    let nibbles = (0..8).map(|i| nibble(2 * i) | if i < 7 { nibble(2 * i + 1) << 4 } else { 0 }).collect();
    let nibbles = TensorBuf::new(Dtype::F4E2M1, vec![3, 5], nibbles).unwrap();
    assert_eq!(hex(&nibbles, &[0, 0]), "4b1b9260834bf86c0d03bd3270056d01");
    let scalar = TensorBuf::new(Dtype::F64, vec![], 1.5f64.to_le_bytes().to_vec()).unwrap();
    assert_eq!(hex(&scalar, &[]), "13e35d7754c2f955f43c1d24a1252322");
    let share = SumDigest::of(scalar.view()).weighted("s", Dtype::F64, &[]);
    assert_eq!(share.to_string(), "6d3a3859f681f7049171266dd5842e23");
}

#[test]
fn every_type_and_rank_follows_the_definition() {
    for dtype in Dtype::ALL {
        for shape in [&[][..], &[0], &[1], &[3, 0], &[7], &[3, 5], &[2, 3, 5], &[1, 2, 1, 3, 2]] {
            let tensor = tensor(dtype, shape, 1);
            let found = SumDigest::of(tensor.view());
            assert_eq!(found, defined(tensor.view(), &vec![0; shape.len()]), "{dtype} {shape:?}");
            let start: Vec<u64> = (0..shape.len() as u64).map(|i| 65_534 - 3 * i).collect();
            let found = SumDigest::of_shard(tensor.view(), &start).unwrap();
            assert_eq!(found, defined(tensor.view(), &start), "{dtype} {shape:?} at {start:?}");
        }
        let scalar = tensor(dtype, &[], 2);
        let vector = TensorBuf::new(dtype, vec![1], scalar.data().to_vec()).unwrap();
        assert_eq!(SumDigest::of(scalar.view()), SumDigest::of(vector.view()), "{dtype}");
    }
    // Long rows, many rows, rows that are put together; enough for several tasks of the threads.
    for (dtype, shape, start) in [
        (Dtype::Bf16, &[200_001][..], &[65_500][..]),
        (Dtype::U8, &[3, 66_000], &[0, 65_500]),
        (Dtype::U8, &[2, 600_000], &[5, u64::MAX - 99_999]),
        (Dtype::I16, &[66_000, 3], &[65_530, 1]),
        (Dtype::F4E2M1, &[66_000, 5], &[3, 65_533]),
        (Dtype::F32, &[70, 4, 3, 3], &[1, 65_534, 65_535, 2]),
        (Dtype::F8E5M2, &[9, 5, 40], &[0; 3]),
        (Dtype::U16, &[4, 1, 1100], &[65_533, 7, 9]),
        (Dtype::F4E2M1, &[301, 333], &[0, 0]),
    ] {
        let long = tensor(dtype, shape, 3);
        let found = SumDigest::of_shard(long.view(), start).unwrap();
        assert_eq!(found, defined(long.view(), start), "{dtype} {shape:?}");
        // Differences of many units, and of the last.
        let mut other = tensor(dtype, shape, 4);
        let bytes = other.data().len();
        other.data_mut()[..bytes / 3].copy_from_slice(&long.data()[..bytes / 3]);
        let mut change = SumChange::new(dtype, shape, start).unwrap();
        change.add_difference(long.view(), other.view()).unwrap();
        let expected = SumDigest::of_shard(other.view(), start).unwrap();
        assert_eq!(found + change.finish(), expected, "{dtype} {shape:?}");
    }
    // Indices of units wrap at 2^64.
    let far = tensor(Dtype::F64, &[2, 3], 4);
    let start = [u64::MAX - 2, u64::MAX / 4];
    assert_eq!(SumDigest::of_shard(far.view(), &start).unwrap(), defined(far.view(), &start));
}

#[test]
fn shards_of_any_axes_add_up() {
    for dtype in Dtype::ALL {
        let whole = tensor(dtype, &[4, 6, 10], 5);
        let expected = SumDigest::of(whole.view());
        for (axis, cut) in [(0, 1), (0, 4), (1, 5), (2, 2), (2, 7), (2, 10)] {
            let mut shapes = [[4, 6, 10], [4, 6, 10]];
            (shapes[0][axis], shapes[1][axis]) = (cut, shapes[1][axis] - cut);
            let mut offsets = [[0; 3]; 2];
            offsets[1][axis] = cut;
            let parts = shapes.iter().zip(&offsets);
            let parts = parts.map(|(shape, at)| SumDigest::of_part(whole.view(), shape, at).unwrap());
            assert_eq!(parts.sum::<SumDigest>(), expected, "{dtype} axis {axis} at {cut}");
        }
        // A shard of a shard, as a tensor of its own.
        let part = SumDigest::of_part(whole.view(), &[2, 6, 10], &[1, 0, 0]).unwrap();
        let bytes = whole.data().len() / 4;
        let own = TensorBuf::new(dtype, vec![2, 6, 10], whole.data()[bytes..3 * bytes].to_vec()).unwrap();
        assert_eq!(SumDigest::of_shard(own.view(), &[1, 0, 0]).unwrap(), part, "{dtype}");
    }
}

#[test]
fn parts_outside_the_tensor_are_refused() {
    let whole = tensor(Dtype::F32, &[4, 6], 6);
    for (shape, offsets) in [
        (&[4, 6][..], &[0, 1][..]),
        (&[4, 6], &[1, 0]),
        (&[1, 1], &[u64::MAX, 0]),
        (&[4], &[0, 0]),
        (&[4, 6], &[0]),
    ] {
        assert!(SumDigest::of_part(whole.view(), shape, offsets).is_err(), "{shape:?} {offsets:?}");
    }
    assert!(SumDigest::of_shard(whole.view(), &[0]).is_err());
    assert_eq!(SumDigest::of_part(whole.view(), &[0, 6], &[4, 0]).unwrap(), SumDigest::ZERO);
}

#[test]
fn a_change_adds_what_its_elements_determine() {
    use crate::tensor::element::{bits_at, set_bits_at};
    for dtype in Dtype::ALL {
        for (shape, offsets) in
            [(&[40][..], &[65_520][..]), (&[4, 10], &[9, 3]), (&[2, 2, 10], &[0; 3]), (&[], &[])]
        {
            let old = tensor(dtype, shape, 8);
            let (mut new, mut change) = (old.clone(), SumChange::new(dtype, shape, offsets).unwrap());
            let elements = old.view().elements();
            // Elements of several rows, not in order; one does not change.
            let at = [0, 3, 39, 13, 12, 25].map(|at| at % elements);
            for (i, element) in at.into_iter().enumerate() {
                let before = bits_at(dtype, new.data(), element).unwrap();
                let random = u64::from(word(9, i as u64, element)) * 0x1_0000_0001;
                let after = before ^ (random & (u64::MAX >> (64 - dtype.bits())));
                set_bits_at(dtype, new.data_mut(), element, after);
                change.add(element, before, after).unwrap();
            }
            let [before, after] = [&old, &new].map(|t| SumDigest::of_shard(t.view(), offsets).unwrap());
            // Changes that are waiting are counted once, and the way back takes all of them away.
            let mut back = change.clone();
            back.add_difference(new.view(), old.view()).unwrap();
            assert_eq!(back.finish(), SumDigest::ZERO, "{dtype} {shape:?}");
            let change = change.finish();
            let mut difference = SumChange::new(dtype, shape, offsets).unwrap();
            difference.add_difference(old.view(), new.view()).unwrap();
            assert_eq!(difference.finish(), change, "{dtype} {shape:?}");
            assert_eq!((before + change, change), (after, after - before), "{dtype} {shape:?}");
        }
    }
    // More changes in one piece than are summed at once.
    let (len, all) = (300 * BATCH as u64, u64::MAX);
    let mut change = SumChange::new(Dtype::I16, &[len], &[0]).unwrap();
    (0..len).for_each(|at| change.add(at, 0x8000, 0x7fff).unwrap());
    let of = |byte: [u8; 2]| TensorBuf::new(Dtype::I16, vec![len], byte.repeat(len as usize)).unwrap();
    let [old, new] = [[0, 0x80], [0xff, 0x7f]].map(|byte| SumDigest::of(of(byte).view()));
    assert_eq!(old + change.finish(), new);
    let mut short = SumChange::new(Dtype::I16, &[2, 3], &[0, 0]).unwrap();
    assert!(short.add(5, 0, 1).is_ok() && short.add(6, 0, 1).is_err() && short.add(all, 0, 1).is_err());
    assert!(SumChange::new(Dtype::I16, &[2, 3], &[0]).is_err());
    for (dtype, other) in [(Dtype::F32, &[2, 3][..]), (Dtype::I16, &[3, 2]), (Dtype::I16, &[6])] {
        let [own, other] = [tensor(Dtype::I16, &[2, 3], 1), tensor(dtype, other, 1)];
        assert!(short.add_difference(own.view(), other.view()).is_err());
        assert!(short.add_difference(other.view(), other.view()).is_err());
    }
    assert!(SumChange::new(Dtype::I16, &[u64::MAX, 3], &[0, 0]).is_err());
}

#[test]
fn digests_are_four_numbers_below_the_prime() {
    let digest = SumDigest::of(words(185, &[5, 37]).view());
    assert_eq!(SumDigest::from_bytes(digest.to_bytes()), Some(digest));
    assert_eq!(digest - digest, SumDigest::ZERO);
    assert_eq!(SumDigest::ZERO - digest + digest, SumDigest::ZERO);
    let mut bytes = digest.to_bytes();
    for lane in 0..4 {
        let mut wrong = bytes;
        wrong[4 * lane..][..4].copy_from_slice(&(P as u32).to_le_bytes());
        assert_eq!(SumDigest::from_bytes(wrong), None);
        bytes[4 * lane..][..4].copy_from_slice(&(P as u32 - 1).to_le_bytes());
        assert!(SumDigest::from_bytes(bytes).is_some());
    }
    // The weight depends on name, type and shape.
    let weighted = [
        digest.weighted("w", Dtype::Bf16, &[5, 37]),
        digest.weighted("v", Dtype::Bf16, &[5, 37]),
        digest.weighted("w", Dtype::F16, &[5, 37]),
        digest.weighted("w", Dtype::Bf16, &[37, 5]),
        digest.weighted("w", Dtype::Bf16, &[]),
    ];
    let different: std::collections::HashSet<_> = weighted.iter().collect();
    assert_eq!(different.len(), weighted.len());
    assert_eq!(
        digest.weighted("model.q", Dtype::Bf16, &[5, 37]).to_string(),
        "9843d13a407b3d4767bf0a5f8c36441a"
    );
}

#[test]
fn digits_are_read_as_they_are_written() {
    let digest = SumDigest::from_bytes(std::array::from_fn(|i| i as u8 * 7)).unwrap();
    assert_eq!(digest.to_string().parse::<SumDigest>().unwrap(), digest);
    for wrong in [
        "",
        "0",
        "0001020304050607080910111213141",
        "000102030405060708091011121314155",
        "ffffff7f000000000000000000000000",
        "zz112233445566778899aabbccddeeff",
        "+0112233445566778899001122334455",
        "00112233445566778899aabbccddee\u{e9}",
    ] {
        assert!(wrong.parse::<SumDigest>().is_err(), "{wrong}");
    }
}
