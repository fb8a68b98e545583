//! The quantised block formats in portable code: the one place that knows how bytes become
//! integers, scales and offsets. Dequantising, the scalar kernels and the tests of every SIMD
//! kernel stand on it.
//!
//! Every format is seen the same way: a group of 32 weights is 32 unsigned integers `q`, one or
//! two scales `d` (one per 16 weights) and an offset `m`, and a weight is `d·(q − ZERO) + m`.

use crate::half::f16_to_f32;

/// 32 consecutive weights, unpacked: weight `i` is `d[i / 16]·(q[i] − ZERO) + m`.
#[derive(Clone, Copy, Debug)]
pub struct Group32 {
    /// The integers, in the order of the weights.
    pub q: [u8; 32],
    /// One scale per 16 weights (twice the same where the format has one per 32).
    pub d: [f32; 2],
    /// The offset of all 32 weights; 0 where the format has none.
    pub m: f32,
}

/// A quantised block format.
pub trait Quant {
    /// Weights per block.
    const BLOCK: usize;
    /// Bytes per block.
    const BYTES: usize;
    /// What is subtracted from the unsigned integer.
    const ZERO: i32;
    /// Whether the format has an offset.
    const MIN: bool;

    /// Unpacks weights `32·g .. 32·g + 32` of a block.
    fn group(block: &[u8], g: usize) -> Group32;
}

/// Whether a format has a scale per 16 weights rather than per 32.
pub const fn two_scales<Q: Quant>() -> bool {
    Q::ZERO == Q6K::ZERO
}

#[inline(always)]
fn f16_at(b: &[u8], i: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([b[i], b[i + 1]]))
}

/// 16 bytes of nibbles: byte `j` holds weight `j` (low) and `j + 16` (high).
#[inline(always)]
fn nibbles(qs: &[u8]) -> [u8; 32] {
    let mut q = [0; 32];
    for j in 0..16 {
        q[j] = qs[j] & 15;
        q[j + 16] = qs[j] >> 4;
    }
    q
}

/// As [`nibbles`], with bit `i` of `qh` as the fifth bit of weight `i`.
#[inline(always)]
fn nibbles_and_fifth(qs: &[u8], qh: &[u8]) -> [u8; 32] {
    let h = u32::from_le_bytes([qh[0], qh[1], qh[2], qh[3]]);
    let mut q = nibbles(qs);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= ((h >> i) as u8 & 1) << 4;
    }
    q
}

/// w = (q − 8)·d
pub struct Q4_0;
impl Quant for Q4_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 18;
    const ZERO: i32 = 8;
    const MIN: bool = false;
    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        Group32 { q: nibbles(&b[2..18]), d: [f16_at(b, 0); 2], m: 0.0 }
    }
}

/// w = q·d + m
pub struct Q4_1;
impl Quant for Q4_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 20;
    const ZERO: i32 = 0;
    const MIN: bool = true;
    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        Group32 { q: nibbles(&b[4..20]), d: [f16_at(b, 0); 2], m: f16_at(b, 2) }
    }
}

/// w = (q − 16)·d
pub struct Q5_0;
impl Quant for Q5_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 22;
    const ZERO: i32 = 16;
    const MIN: bool = false;
    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        Group32 { q: nibbles_and_fifth(&b[6..22], &b[2..6]), d: [f16_at(b, 0); 2], m: 0.0 }
    }
}

/// w = q·d + m
pub struct Q5_1;
impl Quant for Q5_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 24;
    const ZERO: i32 = 0;
    const MIN: bool = true;
    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        Group32 { q: nibbles_and_fifth(&b[8..24], &b[4..8]), d: [f16_at(b, 0); 2], m: f16_at(b, 2) }
    }
}

/// w = q·d with signed q, held here as q + 128.
pub struct Q8_0;
impl Quant for Q8_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 34;
    const ZERO: i32 = 128;
    const MIN: bool = false;
    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        let mut q = [0; 32];
        for (q, &b) in q.iter_mut().zip(&b[2..34]) {
            *q = b ^ 0x80;
        }
        Group32 { q, d: [f16_at(b, 0); 2], m: 0.0 }
    }
}

/// The 6-bit scale and minimum of group `g` of a Q4_K or Q5_K block; `s` are its 12 bytes.
#[inline(always)]
pub(crate) fn scale_min_k(s: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (s[g] & 63, s[g + 4] & 63)
    } else {
        ((s[g + 4] & 15) | (s[g - 4] >> 6) << 4, (s[g + 4] >> 4) | (s[g] >> 6) << 4)
    }
}

/// w = q·(d·sc) − dmin·m, 8 groups of 32
pub struct Q4K;
impl Quant for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;
    const ZERO: i32 = 0;
    const MIN: bool = true;
    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let (sc, m) = scale_min_k(&b[4..16], g);
        // Groups 2j and 2j+1 are the low and the high nibbles of the same 32 bytes.
        let qs = &b[16 + 32 * (g / 2)..][..32];
        let mut q = [0; 32];
        for (q, &b) in q.iter_mut().zip(qs) {
            *q = (b >> (4 * (g & 1))) & 15;
        }
        Group32 { q, d: [f16_at(b, 0) * sc as f32; 2], m: -(f16_at(b, 2) * m as f32) }
    }
}

/// As [`Q4K`] with bit `g` of 32 more bytes as the fifth bit.
pub struct Q5K;
impl Quant for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;
    const ZERO: i32 = 0;
    const MIN: bool = true;
    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let (sc, m) = scale_min_k(&b[4..16], g);
        let (qh, qs) = (&b[16..48], &b[48 + 32 * (g / 2)..][..32]);
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = ((qs[i] >> (4 * (g & 1))) & 15) | ((qh[i] >> g) & 1) << 4;
        }
        Group32 { q, d: [f16_at(b, 0) * sc as f32; 2], m: -(f16_at(b, 2) * m as f32) }
    }
}

/// w = (q − 32)·(d·sc), 16 groups of 16
pub struct Q6K;
impl Quant for Q6K {
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
    const ZERO: i32 = 32;
    const MIN: bool = false;
    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        // A half of 128 weights has 64 bytes of nibbles and 32 bytes of bit pairs. Its groups 0
        // and 1 are the low nibbles of those 64 bytes, 2 and 3 the high ones; bit pair g of
        // byte i belongs to weight i of group g.
        let (half, g4) = (g / 4, g % 4);
        let ql = &b[64 * half + 32 * (g4 & 1)..][..32];
        let qh = &b[128 + 32 * half..][..32];
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = ((ql[i] >> (4 * (g4 / 2))) & 15) | ((qh[i] >> (2 * g4)) & 3) << 4;
        }
        let d = f16_at(b, 208);
        let sc = [b[192 + 2 * g] as i8, b[193 + 2 * g] as i8];
        Group32 { q, d: [d * sc[0] as f32, d * sc[1] as f32], m: 0.0 }
    }
}

/// Runs `$body` with `$q` standing for the [`Quant`] of a quantised [`crate::WeightType`], and
/// `$float` for the others.
macro_rules! with_quant {
    ($ty:expr, $q:ident => $body:expr, $float:expr) => {{
        use $crate::WeightType as W;
        match $ty {
            W::Q4_0 => {
                type $q = $crate::quant::Q4_0;
                $body
            }
            W::Q4_1 => {
                type $q = $crate::quant::Q4_1;
                $body
            }
            W::Q5_0 => {
                type $q = $crate::quant::Q5_0;
                $body
            }
            W::Q5_1 => {
                type $q = $crate::quant::Q5_1;
                $body
            }
            W::Q8_0 => {
                type $q = $crate::quant::Q8_0;
                $body
            }
            W::Q4_K => {
                type $q = $crate::quant::Q4K;
                $body
            }
            W::Q5_K => {
                type $q = $crate::quant::Q5K;
                $body
            }
            W::Q6_K => {
                type $q = $crate::quant::Q6K;
                $body
            }
            W::F32 | W::F16 | W::BF16 => $float,
        }
    }};
}
pub(crate) use with_quant;
