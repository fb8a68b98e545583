//! Code shared by the portable decoding of several types.

use super::IQ4_CODES;
use crate::half::f16_to_f32;

/// The f16 at byte `i`.
#[inline(always)]
pub(super) fn f16_at(b: &[u8], i: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([b[i], b[i + 1]]))
}

/// 16 bytes of nibbles: byte `j` holds weight `j` (low) and `j + 16` (high).
#[inline(always)]
pub(super) fn nibbles(qs: &[u8]) -> [u8; 32] {
    codes(qs, |nibble| nibble)
}

/// As [`nibbles`], each replaced by its code.
#[inline(always)]
pub(super) fn codes(qs: &[u8], code: impl Fn(u8) -> u8) -> [u8; 32] {
    let mut q = [0; 32];
    for j in 0..16 {
        q[j] = code(qs[j] & 15);
        q[j + 16] = code(qs[j] >> 4);
    }
    q
}

/// Group `g` of 32 weights in 64 bytes of bit pairs: a half of 128 weights has 32 bytes, of which pair `t` of byte `i` is weight
/// `i` of the half's `t`-th group.
#[inline(always)]
pub(super) fn pairs(qs: &[u8], g: usize) -> [u8; 32] {
    let mut q = [0; 32];
    for (q, b) in q.iter_mut().zip(&qs[32 * (g / 4)..][..32]) {
        *q = b >> (2 * (g % 4)) & 3;
    }
    q
}

/// The code of a nibble: [`IQ4_CODES`] as the sum of the steps up to it, because the compiler vectorises loops of comparisons and
/// additions, but not loops of table lookups.
#[inline(always)]
pub(super) fn iq4_code(nibble: u8) -> u8 {
    macro_rules! steps {
        ($($i:literal)*) => {
            $(if nibble >= $i { IQ4_CODES[$i] - IQ4_CODES[$i - 1] } else { 0 } +)* 0
        };
    }
    IQ4_CODES[0] + steps!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
}

/// As [`nibbles`], with bit `i` of `qh` as the fifth bit of weight `i`.
#[inline(always)]
pub(super) fn nibbles_and_fifth(qs: &[u8], qh: &[u8]) -> [u8; 32] {
    let h = u32::from_le_bytes([qh[0], qh[1], qh[2], qh[3]]);
    let mut q = nibbles(qs);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= ((h >> i) as u8 & 1) << 4;
    }
    q
}

/// The 6-bit scale and minimum of group `g` of a Q4_K or Q5_K block; `s` are its 12 bytes.
#[inline(always)]
pub(super) fn scale_min_k(s: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (s[g] & 63, s[g + 4] & 63)
    } else {
        ((s[g + 4] & 15) | (s[g - 4] >> 6) << 4, (s[g + 4] >> 4) | (s[g] >> 6) << 4)
    }
}

/// The scale and the offset of group `g` of a Q4_K or Q5_K block.
#[inline(always)]
pub(super) fn scale_and_offset_k(b: &[u8], g: usize) -> (f32, f32) {
    let (sc, m) = scale_min_k(&b[4..16], g);
    (f16_at(b, 0) * sc as f32, -(f16_at(b, 2) * m as f32))
}

/// Scales and minima of all eight groups of a Q4_K or Q5_K block, a byte for each group; `words` are its
/// 12 bytes. Groups 0 to 3 have their six bits in place; 4 to 7 take four from the third word and two
/// from the top of the first (scale) or second (minimum).
#[inline(always)]
pub(super) fn scales_and_minima_k([u0, u1, u2]: [u32; 3]) -> (u64, u64) {
    let sc =
        (u0 & 0x3f3f_3f3f) as u64 | (((u2 & 0x0f0f_0f0f) | ((u0 >> 2) & 0x3030_3030)) as u64) << 32;
    let m = (u1 & 0x3f3f_3f3f) as u64
        | ((((u2 >> 4) & 0x0f0f_0f0f) | ((u1 >> 2) & 0x3030_3030)) as u64) << 32;
    (sc, m)
}
