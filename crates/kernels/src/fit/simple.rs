//! One scale, or a scale and an offset, for a whole block: shared by Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, MXFP4 and the types of
//! one and two bits.
//!
//! Every operation is in f32 and in the reference's order, because the result must match bit for bit: the scale is rounded
//! to f16 only for storing, the integers are computed with the unrounded one.

use crate::half::f32_to_f16;

/// Returns the reciprocal of a scale; 0 for a block of zeroes.
#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

#[inline(always)]
pub(crate) fn put_f16(out: &mut [u8], value: f32) {
    out[..2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
}

/// Stores the low four bits of 32 integers in 16 bytes: `j` (low) and `j + 16` (high).
#[inline(always)]
pub(crate) fn put_nibbles(out: &mut [u8], q: &[u8; 32]) {
    for (j, out) in out[..16].iter_mut().enumerate() {
        *out = (q[j] & 15) | (q[j + 16] << 4);
    }
}

/// Stores the fifth bits: bit `i` belongs to weight `i`.
#[inline(always)]
pub(crate) fn put_fifth(out: &mut [u8], q: &[u8; 32]) {
    let bits = q.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4 & 1) << i);
    out[..4].copy_from_slice(&bits.to_le_bytes());
}

/// Stores the lowest two bits of 256 codes in 64 bytes: weight `i` of group `t` of 32 of each half is pair `t` of byte
/// `i`.
#[inline(always)]
pub(crate) fn put_pairs(out: &mut [u8], q: &[u8]) {
    for (q, out) in q.chunks_exact(128).zip(out.chunks_exact_mut(32)) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = (0..4).fold(0, |pairs, t| pairs | (q[i + 32 * t] & 3) << (2 * t));
        }
    }
}

/// Returns the weight farthest from zero; of several, the first.
#[inline(always)]
pub(crate) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |far, &x| if x.abs() > far.abs() { x } else { far })
}

/// w = q·d, with signed bytes.
#[inline(always)]
pub(crate) fn signed(x: &[f32], out: &mut [u8]) {
    let d = extreme(x).abs() / 127.0;
    let id = inverse(d);
    put_f16(out, d);
    for (x, out) in x.iter().zip(&mut out[2..]) {
        *out = (x * id).round() as i8 as u8;
    }
}

/// w = (q − half)·d. The weight farthest from zero becomes −half exactly.
#[inline(always)]
pub(crate) fn symmetric(x: &[f32], half: f32, out: &mut [u8]) -> [u8; 32] {
    let d = extreme(x) / -half;
    let id = inverse(d);
    put_f16(out, d);
    let most = (2.0 * half - 1.0) as u8;
    std::array::from_fn(|i| ((x[i] * id + (half + 0.5)) as u8).min(most))
}

/// w = q·d + m, from the smallest weight to the largest.
#[inline(always)]
pub(crate) fn affine(x: &[f32], most: u8, out: &mut [u8]) -> [u8; 32] {
    let (low, high) =
        x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &x| (l.min(x), h.max(x)));
    let d = (high - low) / f32::from(most);
    let id = inverse(d);
    put_f16(out, d);
    put_f16(&mut out[2..], low);
    std::array::from_fn(|i| (((x[i] - low) * id + 0.5) as u8).min(most))
}

/// w = (q − 1)·d with q of 0 to 2: the weights farthest from zero become −d or d, and those below half of them 0.
#[inline(always)]
pub(crate) fn ternary<const N: usize>(x: &[f32], out: &mut [u8]) -> [u8; N] {
    let d = extreme(x).abs();
    let id = inverse(d);
    put_f16(out, d);
    std::array::from_fn(|i| {
        let value = x[i] * id;
        u8::from(value > -0.5) + u8::from(value >= 0.5)
    })
}
