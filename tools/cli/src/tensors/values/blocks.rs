//! Values of the quantised types of llama.cpp: a block of elements with its scales.
//!
//! In each block, `d` is the scale, a half float unless a type says otherwise, and `q` the small numbers.

use super::f16;

/// Values of the 4-bit floats E2M1, doubled.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Values of the types iq4.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Returns the low four bits of element `i`, and of the element half a group behind it.
fn nibble(q: &[u8], i: usize) -> u8 {
    let half = q.len();
    if i < half { q[i] & 15 } else { q[i - half] >> 4 }
}

fn bit(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 8] >> (i % 8) & 1
}

/// Two bits of element `i`: groups of 128 elements share 32 bytes.
fn pair(q: &[u8], i: usize) -> u8 {
    q[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

/// Four bits of element `i`: groups of 64 elements share 32 bytes.
fn quad(q: &[u8], i: usize) -> u8 {
    q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15
}

fn fill(out: &mut [f32], value: impl Fn(usize) -> f32) {
    out.iter_mut().enumerate().for_each(|(i, out)| *out = value(i));
}

/// d | q: 4 bits each
pub(super) fn q4_0(b: &[u8], out: &mut [f32]) {
    let d = f16(b, 0);
    fill(out, |i| d * (f32::from(nibble(&b[2..], i)) - 8.0));
}

/// d | smallest | q: 4 bits each
pub(super) fn q4_1(b: &[u8], out: &mut [f32]) {
    let (d, least) = (f16(b, 0), f16(b, 2));
    fill(out, |i| d * f32::from(nibble(&b[4..], i)) + least);
}

/// d | fifth bits | q: 4 bits each
pub(super) fn q5_0(b: &[u8], out: &mut [f32]) {
    let d = f16(b, 0);
    fill(out, |i| d * (f32::from(nibble(&b[6..], i) | bit(&b[2..6], i) << 4) - 16.0));
}

/// d | smallest | fifth bits | q: 4 bits each
pub(super) fn q5_1(b: &[u8], out: &mut [f32]) {
    let (d, least) = (f16(b, 0), f16(b, 2));
    fill(out, |i| d * f32::from(nibble(&b[8..], i) | bit(&b[4..8], i) << 4) + least);
}

/// d | q: bytes
pub(super) fn q8_0(b: &[u8], out: &mut [f32]) {
    let d = f16(b, 0);
    fill(out, |i| d * f32::from(b[2 + i] as i8));
}

/// d | d times the sum | q: bytes
pub(super) fn q8_1(b: &[u8], out: &mut [f32]) {
    let d = f16(b, 0);
    fill(out, |i| d * f32::from(b[4 + i] as i8));
}

/// d: f32 | q: bytes | sums of 16
pub(super) fn q8_k(b: &[u8], out: &mut [f32]) {
    let d = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    fill(out, |i| d * f32::from(b[4 + i] as i8));
}

/// scales and smallest of 16 elements, 4 bits each | q: 2 bits each | d | scale of the smallest
pub(super) fn q2_k(b: &[u8], out: &mut [f32]) {
    let (d, least) = (f16(b, 80), f16(b, 82));
    fill(out, |i| {
        let scale = b[i / 16];
        d * f32::from(scale & 15) * f32::from(pair(&b[16..80], i)) - least * f32::from(scale >> 4)
    });
}

/// third bits | q: 2 bits each | scales of 16 elements, 6 bits each | d
pub(super) fn q3_k(b: &[u8], out: &mut [f32]) {
    let (d, packed) = (f16(b, 108), &b[96..108]);
    let scale = |i: usize| {
        let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        f32::from(low | high << 4) - 32.0
    };
    fill(out, |i| {
        let is_high = b[i % 32] >> (i / 32) & 1 == 1;
        d * scale(i / 16) * (f32::from(pair(&b[32..96], i)) - if is_high { 0.0 } else { 4.0 })
    });
}

/// Returns the scale and the smallest of the `i`-th 32 elements, 6 bits each, of q4_K and q5_K.
fn scales(s: &[u8], i: usize) -> (f32, f32) {
    let (scale, least) = match i {
        0..4 => (s[i] & 63, s[i + 4] & 63),
        _ => (s[i + 4] & 15 | s[i - 4] >> 6 << 4, s[i + 4] >> 4 | s[i] >> 6 << 4),
    };
    (f32::from(scale), f32::from(least))
}

/// d | scale of the smallest | scales and smallest of 32 elements | q: 4 bits each
pub(super) fn q4_k(b: &[u8], out: &mut [f32]) {
    let (d, least) = (f16(b, 0), f16(b, 2));
    fill(out, |i| {
        let (scale, of_least) = scales(&b[4..16], i / 32);
        d * scale * f32::from(quad(&b[16..], i)) - least * of_least
    });
}

/// d | scale of the smallest | scales and smallest of 32 elements | fifth bits | q: 4 bits each
pub(super) fn q5_k(b: &[u8], out: &mut [f32]) {
    let (d, least) = (f16(b, 0), f16(b, 2));
    fill(out, |i| {
        let (scale, of_least) = scales(&b[4..16], i / 32);
        let high = b[16 + i % 32] >> (i / 32) & 1;
        d * scale * f32::from(quad(&b[48..], i) | high << 4) - least * of_least
    });
}

/// q: low 4 bits | q: high 2 bits | scales of 16 elements: bytes | d
pub(super) fn q6_k(b: &[u8], out: &mut [f32]) {
    let d = f16(b, 208);
    fill(out, |i| {
        let low = b[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
        let q = low | pair(&b[128..192], i) << 4;
        d * f32::from(b[192 + i / 16] as i8) * (f32::from(q) - 32.0)
    });
}

/// q: five digits to base 3 in a byte, then four | d
pub(super) fn tq1_0(b: &[u8], out: &mut [f32]) {
    let d = f16(b, 52);
    fill(out, |i| {
        let (byte, digit) = match i {
            0..160 => (b[i % 32], i / 32),
            160..240 => (b[32 + (i - 160) % 16], (i - 160) / 16),
            _ => (b[48 + (i - 240) % 4], (i - 240) / 4),
        };
        let shifted = byte.wrapping_mul([1, 3, 9, 27, 81][digit]);
        d * (f32::from(((u16::from(shifted) * 3) >> 8) as u8) - 1.0)
    });
}

/// q: 2 bits each | d
pub(super) fn tq2_0(b: &[u8], out: &mut [f32]) {
    let d = f16(b, 64);
    fill(out, |i| d * (f32::from(pair(&b[..64], i)) - 1.0));
}

/// d | q: 4 bits each, places in a table
pub(super) fn iq4_nl(b: &[u8], out: &mut [f32]) {
    let d = f16(b, 0);
    fill(out, |i| d * f32::from(IQ4[usize::from(nibble(&b[2..], i))]));
}

/// d | high bits of the scales of 32 elements | their low bits | q: 4 bits each, places in a table
pub(super) fn iq4_xs(b: &[u8], out: &mut [f32]) {
    let (d, high) = (f16(b, 0), u16::from_le_bytes([b[2], b[3]]));
    fill(out, |i| {
        let group = i / 32;
        let low = b[4 + group / 2] >> (group % 2 * 4) & 15;
        let scale = f32::from(low | ((high >> (2 * group) & 3) as u8) << 4) - 32.0;
        let q = nibble(&b[8 + group * 16..24 + group * 16], i % 32);
        d * scale * f32::from(IQ4[usize::from(q)])
    });
}

/// exponent of the scale: a byte | q: E2M1
pub(super) fn mxfp4(b: &[u8], out: &mut [f32]) {
    // The table has doubled values.
    let d = super::e8m0(b[0]) * 0.5;
    fill(out, |i| d * f32::from(E2M1[usize::from(nibble(&b[1..], i))]));
}

/// scales of 16 elements: floats of 8 bits without a sign | q: E2M1
pub(super) fn nvfp4(b: &[u8], out: &mut [f32]) {
    fill(out, |i| {
        let group = i / 16;
        let q = nibble(&b[4 + group * 8..12 + group * 8], i % 16);
        // The table has doubled values.
        0.5 * ue4m3(b[group]) * f32::from(E2M1[usize::from(q)])
    });
}

/// Returns a scale of NVFP4: 4 bits of exponent, 3 of the fraction. What is NaN there is 0 for llama.cpp.
fn ue4m3(x: u8) -> f32 {
    let (exponent, fraction) = (i32::from(x >> 3 & 15), f32::from(x & 7));
    match exponent {
        _ if x == 0x7f => 0.0,
        0 => fraction * 2f32.powi(-9),
        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    }
}

/// d | signs
pub(super) fn q1_0(b: &[u8], out: &mut [f32]) {
    let d = f16(b, 0);
    fill(out, |i| if bit(&b[2..], i) == 1 { d } else { -d });
}
