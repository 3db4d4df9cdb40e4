//! Bit planes: fields of fixed width side by side, and unary codes, from the lowest bit of each byte on.

use crate::arch::{self, Kernel};
use crate::error::{Error, FormatErrorKind, Result};
use crate::limits::in_memory;

/// Returns the bytes of a plane of `count` fields of `width` bits; `None` if that exceeds 64 bits.
pub(crate) fn packed_bytes(count: u64, width: u32) -> Option<u64> {
    let bits = u128::from(count) * u128::from(width);
    u64::try_from(bits.div_ceil(8)).ok()
}

/// Packs 64 bytes that are 0 or 1 into bits, the first byte into the lowest bit.
#[inline(always)]
pub(crate) fn pack_bits(bytes: &[u8; 64]) -> u64 {
    let mut packed = [0; 8];
    for (eight, byte) in bytes.as_chunks::<8>().0.iter().zip(&mut packed) {
        // The factor 2^(56 - 7j) moves bit 8j to bit 56 + j; no two products meet.
        *byte = (u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
    }
    u64::from_le_bytes(packed)
}

/// Packs the bits of `word` where `mask` has ones side by side, from the lowest on.
#[inline]
pub(crate) fn gather_bits(mut word: u64, mask: u64) -> u64 {
    // The places of zeros are closed, the highest first.
    let mut zeros = !mask;
    if zeros.count_ones() <= FEW_ZEROS {
        while zeros != 0 {
            let below = (1u64 << zeros.ilog2()) - 1;
            word = word & below | word >> 1 & !below;
            zeros &= below;
        }
        return word;
    }
    let (mut gathered, mut at, mut ones) = (0, 0, mask);
    while ones != 0 {
        gathered |= (word >> ones.trailing_zeros() & 1) << at;
        at += 1;
        ones &= ones - 1;
    }
    gathered
}

/// Inverts [`gather_bits`]: moves the lowest bits of `word` to where `mask` has ones; the other bits are
/// zero.
#[inline]
pub(crate) fn scatter_bits(mut word: u64, mask: u64) -> u64 {
    // Places are opened for zeros, the lowest first.
    let mut zeros = !mask;
    if zeros.count_ones() <= FEW_ZEROS {
        while zeros != 0 {
            let below = (1u64 << zeros.trailing_zeros()) - 1;
            word = word & below | (word & !below) << 1;
            zeros &= zeros - 1;
        }
        return word;
    }
    let (mut scattered, mut ones) = (0, mask);
    while ones != 0 {
        scattered |= (word & 1) << ones.trailing_zeros();
        word >>= 1;
        ones &= ones - 1;
    }
    scattered
}

/// Zeros of a mask up to which closing their places is faster than moving each bit.
const FEW_ZEROS: u32 = 24;

/// Appends fields of `width` <= 8 bits, which must hold the symbols, and zeros up to a whole byte.
pub(crate) fn put_packed(out: &mut Vec<u8>, symbols: &[u8], width: u32) {
    match width {
        0 => {}
        1 => pack::<1>(out, symbols),
        2 => pack::<2>(out, symbols),
        3 => pack::<3>(out, symbols),
        4 => pack::<4>(out, symbols),
        5 => pack::<5>(out, symbols),
        6 => pack::<6>(out, symbols),
        7 => pack::<7>(out, symbols),
        _ => out.extend_from_slice(symbols),
    }
}

fn pack<const WIDTH: usize>(out: &mut Vec<u8>, symbols: &[u8]) {
    debug_assert!(symbols.iter().all(|s| s >> WIDTH == 0));
    let start = out.len();
    out.resize(start + (symbols.len() * WIDTH).div_ceil(8), 0);
    let (mut start, mut symbols) = (start, symbols);
    if matches!(WIDTH, 1 | 2 | 4) {
        let (rows, rest) = symbols.as_chunks::<64>();
        let end = start + rows.len() * 8 * WIDTH;
        arch::run(PackRows { width: WIDTH, rows, out: &mut out[start..end] });
        (start, symbols) = (end, rest);
    }
    let (eights, rest) = symbols.as_chunks::<8>();
    let (whole, tail) = out[start..].split_at_mut(eights.len() * WIDTH);
    let word = |symbols: &[u8]| symbols.iter().rev().fold(0, |word, &s| word << WIDTH | u64::from(s));
    for (eight, bytes) in eights.iter().zip(whole.as_chunks_mut::<WIDTH>().0) {
        bytes.copy_from_slice(&word(eight).to_le_bytes()[..WIDTH]);
    }
    tail.copy_from_slice(&word(rest).to_le_bytes()[..tail.len()]);
}

/// Packs rows of 64 symbols of 1, 2 or 4 bits.
struct PackRows<'a> {
    width: usize,
    rows: &'a [[u8; 64]],
    out: &'a mut [u8],
}

impl Kernel for PackRows<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, rows, out } = self;
        let (mut twos, mut fours) = ([0; 32], [0; 16]);
        match width {
            4 => rows.iter().zip(out.as_chunks_mut::<32>().0).for_each(|(row, out)| pack_pairs(row, 4, out)),
            2 => {
                for (row, out) in rows.iter().zip(out.as_chunks_mut::<16>().0) {
                    pack_pairs(row, 2, &mut twos);
                    pack_pairs(&twos, 4, out);
                }
            }
            _ => {
                for (row, out) in rows.iter().zip(out.as_chunks_mut::<8>().0) {
                    pack_pairs(row, 1, &mut twos);
                    pack_pairs(&twos, 2, &mut fours);
                    pack_pairs(&fours, 4, out);
                }
            }
        }
    }
}

/// Packs pairs of symbols of `width` bits.
#[inline(always)]
fn pack_pairs<const N: usize>(symbols: &[u8], width: u32, out: &mut [u8; N]) {
    for (packed, pair) in out.iter_mut().zip(symbols.as_chunks::<2>().0) {
        *packed = pair[0] | pair[1] << width;
    }
}

/// Inverts [`PackRows`].
struct UnpackRows<'a> {
    width: usize,
    bytes: &'a [u8],
    out: &'a mut [[u8; 64]],
}

impl Kernel for UnpackRows<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, bytes, out } = self;
        let (mut twos, mut fours) = ([0; 32], [0; 16]);
        match width {
            4 => out.iter_mut().zip(bytes.as_chunks::<32>().0).for_each(|(row, b)| unpack_pairs(b, 4, row)),
            2 => {
                for (row, bytes) in out.iter_mut().zip(bytes.as_chunks::<16>().0) {
                    unpack_pairs(bytes, 4, &mut twos);
                    unpack_pairs(&twos, 2, row);
                }
            }
            _ => {
                for (row, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    unpack_pairs(bytes, 4, &mut fours);
                    unpack_pairs(&fours, 2, &mut twos);
                    unpack_pairs(&twos, 1, row);
                }
            }
        }
    }
}

/// Inverts [`pack_pairs`].
#[inline(always)]
fn unpack_pairs<const N: usize>(bytes: &[u8], width: u32, out: &mut [u8; N]) {
    for (pair, packed) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *pair = [packed & ((1 << width) - 1), packed >> width];
    }
}

/// Inverts [`put_packed`]: reads the fields of `bytes` into `out`. Missing bytes are zeros.
pub(crate) fn unpack(bytes: &[u8], width: u32, out: &mut [u8]) {
    match width {
        0 => out.fill(0),
        1 => unpack_fields::<1>(bytes, out),
        2 => unpack_fields::<2>(bytes, out),
        3 => unpack_fields::<3>(bytes, out),
        4 => unpack_fields::<4>(bytes, out),
        5 => unpack_fields::<5>(bytes, out),
        6 => unpack_fields::<6>(bytes, out),
        7 => unpack_fields::<7>(bytes, out),
        _ => out.copy_from_slice(bytes),
    }
}

fn unpack_fields<const WIDTH: usize>(bytes: &[u8], out: &mut [u8]) {
    let mask = (1u64 << WIDTH) - 1;
    let put = |bytes: &[u8], out: &mut [u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        out.iter_mut().zip(0..).for_each(|(s, i)| *s = (word >> (WIDTH * i) & mask) as u8);
    };
    let (mut bytes, mut out) = (bytes, out);
    if matches!(WIDTH, 1 | 2 | 4) {
        let (rows, _) = out.as_chunks_mut::<64>();
        let whole = rows.len().min(bytes.len() / (8 * WIDTH));
        arch::run(UnpackRows { width: WIDTH, bytes, out: &mut rows[..whole] });
        (bytes, out) = (&bytes[whole * 8 * WIDTH..], &mut out[whole * 64..]);
    }
    let (eights, rest) = out.as_chunks_mut::<8>();
    let (whole, tail) = bytes.split_at(bytes.len().min(eights.len() * WIDTH));
    for (eight, bytes) in eights.iter_mut().zip(whole.as_chunks::<WIDTH>().0) {
        put(bytes, eight);
    }
    put(tail, rest);
}

/// Writes a bit plane, from the least significant bit on.
pub(crate) struct PlaneWriter<'a> {
    out: &'a mut Vec<u8>,
    word: u64,
    filled: u32,
}

impl<'a> PlaneWriter<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, word: 0, filled: 0 }
    }

    /// Appends the `width` <= 64 low bits of `value`; its other bits must be zero.
    #[inline]
    pub(crate) fn put(&mut self, value: u64, width: u32) {
        debug_assert!(width == 64 || value >> width == 0);
        self.word |= value << self.filled;
        let filled = self.filled + width;
        if filled >= 64 {
            self.out.extend_from_slice(&self.word.to_le_bytes());
            // The bits of `value` that did not fit; none if it began at the start of a word.
            self.word = if self.filled == 0 { 0 } else { value >> (64 - self.filled) };
            self.filled = filled - 64;
        } else {
            self.filled = filled;
        }
    }

    /// Appends the `width` <= 64 low bits of each value, without its other bits.
    pub(crate) fn put_all(&mut self, values: &[u64], width: u32) {
        match width {
            0 => {}
            1..=8 => self.put_joined::<8>(values, width),
            9..=16 => self.put_joined::<4>(values, width),
            17..=32 => self.put_joined::<2>(values, width),
            _ => self.put_joined::<1>(values, width),
        }
    }

    /// As [`Self::put_all`], for `N * width` <= 64: joins `N` values, so that only every `N`th waits for the
    /// one before.
    fn put_joined<const N: usize>(&mut self, values: &[u64], width: u32) {
        let mut words = [0; 64];
        let (rows, rest) = values.as_chunks::<N>();
        for rows in rows.chunks(words.len()) {
            let words = &mut words[..rows.len()];
            arch::run(Join { rows, width, words });
            words.iter().for_each(|&word| self.put(word, N as u32 * width));
        }
        rest.iter().for_each(|value| self.put(value & low_bits(width), width));
    }

    /// Appends `zeros` zero bits and a one.
    #[inline]
    pub(crate) fn put_unary(&mut self, mut zeros: u64) {
        while zeros >= 63 {
            self.put(0, 63);
            zeros -= 63;
        }
        self.put(1 << zeros, zeros as u32 + 1);
    }

    /// Appends each value shifted right, as [`Self::put_unary`] does.
    pub(crate) fn put_all_unary(&mut self, values: &[u64], shift: u32) {
        let (fours, rest) = values.as_chunks::<4>();
        for four in fours {
            let zeros = four.map(|value| value >> shift);
            if zeros.iter().fold(0, |all, zeros| all | zeros) < 16 {
                // At most 64 bits: only every fourth value waits for the one before.
                let [a, b, c, d] = zeros;
                let ends = [a, a + b + 1, a + b + c + 2, a + b + c + d + 3];
                self.put(ends.iter().fold(0, |all, end| all | 1 << end), ends[3] as u32 + 1);
            } else {
                zeros.iter().for_each(|&zeros| self.put_unary(zeros));
            }
        }
        rest.iter().for_each(|value| self.put_unary(value >> shift));
    }

    /// Pads to a whole byte.
    pub(crate) fn finish(self) {
        let bytes = in_memory(self.filled.div_ceil(8).into());
        self.out.extend_from_slice(&self.word.to_le_bytes()[..bytes]);
    }
}

/// The `width` lowest bits, from 1 to 64.
fn low_bits(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

/// Joins the low bits of the numbers of each row, the first in the lowest.
struct Join<'a, const N: usize> {
    rows: &'a [[u64; N]],
    width: u32,
    words: &'a mut [u64],
}

impl<const N: usize> Kernel for Join<'_, N> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { rows, width, words } = self;
        for (row, word) in rows.iter().zip(words) {
            let places = (0..).map(|place| place * width);
            *word = row.iter().zip(places).fold(0, |all, (value, at)| all | (value & low_bits(width)) << at);
        }
    }
}

/// Returns the number of fewer than 8 bytes.
#[cold]
fn last_word(bytes: &[u8]) -> u64 {
    let mut chunk = [0; 8];
    chunk.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(chunk)
}

/// Reads a bit plane whose length has been checked.
pub(crate) struct PlaneReader<'a> {
    bytes: &'a [u8],
    bit: u64,
    offset: u64,
}

impl<'a> PlaneReader<'a> {
    /// Returns a reader of all of `bytes`, which start at `offset`.
    pub(crate) fn new(bytes: &'a [u8], offset: u64) -> Self {
        Self { bytes, bit: 0, offset }
    }

    /// Reads the next `width` <= 64 bits. Past the end of the plane it reads zeros, which [`Self::finish`]
    /// reports.
    #[inline]
    pub(crate) fn get(&mut self, width: u32) -> u64 {
        let (shift, start) = ((self.bit % 8) as u32, in_memory(self.bit / 8));
        let mut value = self.ahead(0);
        if width + shift > 64 {
            value |= u64::from(self.bytes.get(start + 8).copied().unwrap_or(0)) << (64 - shift);
        }
        self.skip(width.into());
        if width == 64 { value } else { value & ((1 << width) - 1) }
    }

    /// Returns the next 57 bits or more, `from` bits further on. Past the end of the plane they are zeros.
    #[inline(always)]
    pub(crate) fn ahead(&self, from: u64) -> u64 {
        let bit = self.bit + from;
        let tail = self.bytes.get(in_memory(bit / 8)..).unwrap_or_default();
        let word =
            tail.first_chunk::<8>().map_or_else(|| last_word(tail), |chunk| u64::from_le_bytes(*chunk));
        word >> (bit % 8)
    }

    /// Skips `bits`.
    #[inline(always)]
    pub(crate) fn skip(&mut self, bits: u64) {
        self.bit += bits;
    }

    /// Checks that the last byte of a plane of `count` fields of `width` bits is padded with zeros. The
    /// length of `bytes` must match.
    pub(crate) fn check_padding(bytes: &[u8], count: u64, width: u32, offset: u64) -> Result<()> {
        let used = (count % 8) * u64::from(width) % 8;
        match bytes.last() {
            Some(last) if used != 0 && last >> used != 0 => {
                Err(Error::format(FormatErrorKind::NonzeroPadding, offset + bytes.len() as u64 - 1))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the plane ends here, apart from zero padding to a whole byte (CNV-1).
    pub(crate) fn finish(self, field: &'static str) -> Result<()> {
        let len = self.bytes.len() as u64;
        if self.bit.div_ceil(8) != len {
            return Err(Error::format(FormatErrorKind::LengthMismatch { field }, self.offset));
        }
        let used = self.bit % 8;
        match self.bytes.last() {
            Some(last) if used != 0 && last >> used != 0 => {
                Err(Error::format(FormatErrorKind::NonzeroPadding, self.offset + len - 1))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_width_come_back() {
        for width in 0..=64u32 {
            let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
            let fields: Vec<u64> = (0..50u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask).collect();
            let mut bytes = Vec::new();
            let mut writer = PlaneWriter::new(&mut bytes);
            writer.put(1, 1);
            fields.iter().for_each(|&f| writer.put(f, width));
            // Bits above the width are left out.
            writer.put_all(&fields.iter().map(|&f| f | !mask).collect::<Vec<_>>(), width);
            writer.put_unary(u64::from(width) * 3);
            writer.finish();
            let mut reader = PlaneReader::new(&bytes, 0);
            assert_eq!(reader.get(1), 1);
            fields.iter().chain(&fields).for_each(|&f| assert_eq!(reader.get(width), f));
            (0..width * 3).for_each(|_| assert_eq!(reader.get(1), 0));
            assert_eq!(reader.get(1), 1);
            reader.finish("t").unwrap();
        }
    }

    #[test]
    fn unary_codes_of_many_are_those_of_each() {
        let word = |i: u64| u64::from(crate::random::word(5, 0, i));
        for (len, most) in [(0, 1), (3, 9), (400, 3), (401, 17), (402, 18), (403, 90)] {
            let values: Vec<u64> = (0..len).map(|i| 8 * (word(i) % most) + word(i) % 8).collect();
            let write = |f: &dyn Fn(&mut PlaneWriter<'_>)| {
                let mut bytes = Vec::new();
                let mut writer = PlaneWriter::new(&mut bytes);
                f(&mut writer);
                writer.finish();
                bytes
            };
            let each = write(&|writer| values.iter().for_each(|value| writer.put_unary(value >> 3)));
            assert_eq!(write(&|writer| writer.put_all_unary(&values, 3)), each, "{len} below {most}");
        }
    }

    #[test]
    fn packed_symbols_come_back() {
        for width in 0..=8u32 {
            for len in [0, 1, 7, 8, 9, 64, 77, 128, 200] {
                let symbols: Vec<u8> = (0..len).map(|i: u32| (i * 151 % (1 << width)) as u8).collect();
                let (mut bytes, mut expected) = (Vec::new(), Vec::new());
                put_packed(&mut bytes, &symbols, width);
                let mut plane = PlaneWriter::new(&mut expected);
                symbols.iter().for_each(|&s| plane.put(s.into(), width));
                plane.finish();
                assert_eq!(bytes, expected, "{width} {len}");
                let mut back = vec![0xff; symbols.len()];
                unpack(&bytes, width, &mut back);
                assert_eq!(back, symbols, "{width} {len}");
            }
        }
    }

    #[test]
    fn bytes_of_fields_never_wrap() {
        for width in 0..=64u32 {
            for shift in 0..64 {
                for count in [(1u64 << shift) - 1, 1 << shift, !(1 << shift), u64::MAX - shift] {
                    let bytes = (u128::from(count) * u128::from(width)).div_ceil(8);
                    assert_eq!(
                        packed_bytes(count, width).map(u128::from),
                        (bytes < 1 << 64).then_some(bytes)
                    );
                }
            }
        }
    }

    #[test]
    fn gathered_bits_scatter_to_their_places() {
        let word = 0x9e37_79b9_7f4a_7c15u64;
        let random =
            |i| u64::from(crate::random::word(1, 2, i)) << 32 | u64::from(crate::random::word(3, 4, i));
        // From no ones over half of them and a few zeros to no zeros.
        let masks = (0..64).flat_map(|i| {
            [random(i), random(i) | !random(i + 64), !(random(i) & random(i + 64) & random(i + 128))]
        });
        for mask in [0, 1, u64::MAX, u64::MAX >> 1, 1 << 63, !1, !(1 << 63)].into_iter().chain(masks) {
            let gathered = gather_bits(word, mask);
            let places: Vec<u32> = (0..64).filter(|place| mask >> place & 1 == 1).collect();
            let expected = places.iter().zip(0..).fold(0, |bits, (place, i)| bits | (word >> place & 1) << i);
            assert_eq!(gathered, expected, "{mask:x}");
            assert_eq!(scatter_bits(gathered, mask), word & mask, "{mask:x}");
            assert_eq!(scatter_bits(u64::MAX, mask), mask);
        }
        let bytes = std::array::from_fn(|i| (word >> i & 1) as u8);
        assert_eq!(pack_bits(&bytes), word);
    }

    #[test]
    fn padding_must_be_zero_and_length_exact() {
        let mut reader = PlaneReader::new(&[0b1000_0001], 7);
        reader.get(3);
        let e = reader.finish("t").unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("nonzero_padding", 7));
        let mut reader = PlaneReader::new(&[0xff, 0xff, 0b100], 7);
        reader.get(17);
        let e = reader.finish("t").unwrap_err();
        assert_eq!((e.name(), e.location().unwrap().offset), ("nonzero_padding", 9));
        let mut reader = PlaneReader::new(&[0, 0], 0);
        reader.get(3);
        assert_eq!(reader.finish("t").unwrap_err().name(), "length_mismatch");
        let mut reader = PlaneReader::new(&[], 0);
        assert_eq!(reader.get(64), 0);
        assert_eq!(reader.finish("t").unwrap_err().name(), "length_mismatch");
    }
}
