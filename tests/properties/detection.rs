//! Sum digests detect structured errors as often as random ones: cut to a few bits, they miss each kind of
//! error as often as chance does.
//!
//! `GCODEC_TRIALS` sets the number of trials of each kind, for example 1000000 in a build with `--release`.

use gcodec::compress::random::word;
use gcodec::digest::SumDigest;
use gcodec::frame::TensorInfo;
use gcodec::{Dtype, TensorBuf, TensorView};

const ROWS: usize = 24;
const COLUMNS: usize = 64;
const SHAPE: [u64; 2] = [ROWS as u64, COLUMNS as u64];

/// Random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        u64::from(word(5, 1, self.0)) << 32 | u64::from(word(5, 2, self.0))
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// A weight in bf16.
    fn weight(&mut self) -> u16 {
        let uniform = (0..4).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32 - 0.5).sum::<f32>();
        half::bf16::from_f32(0.03 * uniform).to_bits()
    }

    fn weights(&mut self) -> Vec<u16> {
        (0..ROWS * COLUMNS).map(|_| self.weight()).collect()
    }
}

fn bytes(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn digest(words: &[u16]) -> SumDigest {
    SumDigest::of(TensorView::new(Dtype::Bf16, &SHAPE, &bytes(words)).unwrap())
}

/// Makes an error in a tensor of [`SHAPE`].
type MakeError = fn(&mut [u16], &mut Random);

/// Kinds of errors.
const ERRORS: [(&str, MakeError); 18] = [
    ("one bit", |x, r| x[r.below(ROWS * COLUMNS)] ^= 1 << r.below(16)),
    ("the same bit of two elements", |x, r| {
        let (row, other) = two(r, ROWS);
        let (column, of_other, bit) = (r.below(COLUMNS), r.below(COLUMNS), 1 << r.below(16));
        x[row * COLUMNS + column] ^= bit;
        x[other * COLUMNS + of_other] ^= bit;
    }),
    ("one more here, one less there", |x, r| {
        let (one, other) = two(r, ROWS * COLUMNS);
        x[one] = x[one].wrapping_add(1);
        x[other] = x[other].wrapping_sub(1);
    }),
    ("one more, two less, one more in a row", |x, r| {
        let (row, distance) = (r.below(ROWS), 1 + r.below(20));
        let first = row * COLUMNS + r.below(COLUMNS - 2 * distance);
        for (place, change) in [(0, 1), (1, u16::MAX - 1), (2, 1)] {
            let at = first + place * distance;
            x[at] = x[at].wrapping_add(change);
        }
    }),
    ("a rectangle", |x, r| {
        let ((row, other_row), (column, other)) = (two(r, ROWS), two(r, COLUMNS));
        let change = 1 + r.below(100) as u16;
        for (at, change) in [
            (row * COLUMNS + column, change),
            (row * COLUMNS + other, change.wrapping_neg()),
            (other_row * COLUMNS + column, change.wrapping_neg()),
            (other_row * COLUMNS + other, change),
        ] {
            x[at] = x[at].wrapping_add(change);
        }
    }),
    ("two rows swapped", |x, r| {
        let (row, other) = two(r, ROWS);
        (0..COLUMNS).for_each(|column| x.swap(row * COLUMNS + column, other * COLUMNS + column));
    }),
    ("two columns swapped", |x, r| {
        let (column, other) = two(r, COLUMNS);
        (0..ROWS).for_each(|row| x.swap(row * COLUMNS + column, row * COLUMNS + other));
    }),
    ("rows reversed", |x, r| {
        let rows: Vec<Vec<u16>> =
            x.chunks(COLUMNS).take(2 + r.below(ROWS - 2)).map(<[u16]>::to_vec).collect();
        x.chunks_mut(COLUMNS).zip(rows.iter().rev()).for_each(|(row, from)| row.copy_from_slice(from));
    }),
    ("columns off by some", |x, r| {
        let by = 1 + r.below(COLUMNS - 1);
        x.chunks_mut(COLUMNS).for_each(|row| row.rotate_left(by));
    }),
    ("rows off by some", |x, r| x.rotate_left(COLUMNS * (1 + r.below(ROWS - 1)))),
    ("elements off by some", |x, r| x.rotate_left(1 + r.below(COLUMNS - 1))),
    ("a row twice, another missing", |x, r| {
        let (row, other) = two(r, ROWS);
        x.copy_within(row * COLUMNS..(row + 1) * COLUMNS, other * COLUMNS);
    }),
    ("signs of a row", |x, r| {
        let row = r.below(ROWS);
        x[row * COLUMNS..][..COLUMNS].iter_mut().for_each(|word| *word ^= 0x8000);
    }),
    ("many signs", |x, r| {
        let every = 1 + r.below(16);
        x.iter_mut().step_by(every).for_each(|word| *word ^= 0x8000);
    }),
    ("zeros of a row", |x, r| {
        let row = r.below(ROWS);
        x[row * COLUMNS..][..COLUMNS].fill(0);
    }),
    ("order of bytes", |x, r| {
        let count = 1 + r.below(ROWS * COLUMNS);
        x[..count].iter_mut().for_each(|word| *word = word.swap_bytes());
    }),
    ("another tensor", |x, r| x.iter_mut().for_each(|word| *word = r.weight())),
    ("zeros", |x, _| x.fill(0)),
];

/// Two different numbers below `n`.
fn two(r: &mut Random, n: usize) -> (usize, usize) {
    let one = r.below(n);
    (one, (one + 1 + r.below(n - 1)) % n)
}

fn trials(default: usize) -> usize {
    std::env::var("GCODEC_TRIALS").ok().map_or(default, |count| count.parse().expect("a number"))
}

/// Digests of 16 bits: four of each lane, and those of the first lane.
fn cut(digest: SumDigest) -> [u64; 2] {
    let lanes = digest.to_bytes();
    let lanes = lanes.as_chunks::<4>().0.iter().map(|lane| u64::from(u32::from_le_bytes(*lane)));
    [lanes.clone().fold(0, |all, lane| all << 4 | lane & 15), lanes.take(1).sum::<u64>() & 0xffff]
}

/// Whether chance explains so many misses in as many trials: the mean is 1 in 65,536, and six deviations more
/// do not happen.
fn is_chance(misses: usize, trials: usize) -> bool {
    let mean = trials as f64 / 65_536.0;
    misses as f64 <= mean + 6.0 * mean.sqrt().max(1.0)
}

#[test]
fn structured_errors_are_missed_as_often_as_random_ones() {
    let trials = trials(1000);
    let (mut all, mut tried) = ([0; 2], 0);
    for (name, error) in ERRORS {
        let mut random = Random(name.len() as u64 * 1_000_003);
        let (mut misses, mut changed, mut x, mut before) = ([0; 2], 0, Vec::new(), SumDigest::ZERO);
        for trial in 0..trials {
            // The error "zeros" makes the same tensor each time.
            if trial % 16 == 0 || name == "zeros" {
                x = random.weights();
                before = digest(&x);
            }
            let mut y = x.clone();
            error(&mut y, &mut random);
            if y == x {
                continue;
            }
            let after = digest(&y);
            assert_ne!(before, after, "{name}: 124 bits are equal");
            changed += 1;
            let equal =
                cut(before).into_iter().zip(cut(after)).map(|(before, after)| usize::from(before == after));
            misses.iter_mut().zip(equal).for_each(|(misses, equal)| *misses += equal);
        }
        assert!(changed > trials / 2, "{name}: {changed} changes");
        assert!(misses.iter().all(|misses| is_chance(*misses, changed)), "{name}: {misses:?} of {changed}");
        println!("{name:<40}{misses:?} misses of {changed}, expected {:.1}", changed as f64 / 65_536.0);
        (0..2).for_each(|which| all[which] += misses[which]);
        tried += changed;
    }
    assert!(all.iter().all(|misses| is_chance(*misses, tried)), "{all:?} of {tried}");
    // A digest that misses nothing although it has 16 bits would not be cut.
    assert!(tried < 1_000_000 || all.iter().all(|misses| *misses > 0), "{all:?} of {tried}");
}

#[test]
fn errors_between_tensors_are_missed_as_often_as_random_ones() {
    let trials = trials(1000);
    let infos = ["a", "b", "c"].map(|name| TensorInfo::new(name, Dtype::Bf16, SHAPE));
    let sum = |tensors: [&[u16]; 3]| -> SumDigest {
        let shares = infos.iter().zip(tensors).map(|(info, words)| {
            let tensor = TensorBuf::new(Dtype::Bf16, SHAPE.to_vec(), bytes(words)).unwrap();
            info.sum_digest(tensor.view()).unwrap()
        });
        shares.sum()
    };
    let (mut random, mut misses) = (Random(77), [[0; 2]; 3]);
    for _ in 0..trials {
        let [a, b, c] = std::array::from_fn(|_| random.weights());
        let before = sum([&a, &b, &c]);
        let wrong = [("two swapped", [&b, &a, &c]), ("one twice", [&a, &a, &c]), ("all moved", [&c, &a, &b])];
        for ((name, tensors), misses) in wrong.into_iter().zip(&mut misses) {
            let after = sum(tensors.map(Vec::as_slice));
            assert_ne!(before, after, "{name}");
            let equal =
                cut(before).into_iter().zip(cut(after)).map(|(before, after)| usize::from(before == after));
            misses.iter_mut().zip(equal).for_each(|(misses, equal)| *misses += equal);
        }
    }
    assert!(misses.as_flattened().iter().all(|misses| is_chance(*misses, trials)), "{misses:?} of {trials}");
}

#[test]
fn missing_and_repeated_zeros_count() {
    let zeros = vec![0; ROWS * COLUMNS];
    let tensor = TensorBuf::new(Dtype::Bf16, SHAPE.to_vec(), bytes(&zeros)).unwrap();
    let part = |first: u64, end: u64| {
        SumDigest::of_part(tensor.view(), &[end - first, COLUMNS as u64], &[first, 0]).unwrap()
    };
    let whole = SumDigest::of(tensor.view());
    assert_eq!(whole, part(0, 12) + part(12, 24));
    for wrong in
        [SumDigest::ZERO, part(0, 12), part(0, 12) + part(0, 12), whole + part(23, 24), whole + whole]
    {
        assert_ne!(whole, wrong);
    }
    // The same elements in another shape.
    let other = TensorView::new(Dtype::Bf16, &[48, 32], tensor.data()).unwrap();
    assert_ne!(whole, SumDigest::of(other));
    // A tensor and its transpose, as row and column of ones elsewhere zero.
    let at = |places: &dyn Fn(usize) -> usize| {
        let mut words = vec![0; 24 * 24];
        (0..24).for_each(|i| words[places(i)] = 1);
        let data = bytes(&words);
        SumDigest::of(TensorView::new(Dtype::Bf16, &[24, 24], &data).unwrap())
    };
    assert_ne!(at(&|i| 24 * 3 + i), at(&|i| 24 * i + 3));
}
