//! Packing with AVX-512.

use super::pack::scale_for;
use super::{ActSlots, Precision, TOKEN_BLOCK, TokenOffsets, USUAL_ZEROS, WIDE, bf16_line};
use std::arch::x86_64::*;

impl ActSlots<'_> {
    /// Token `t` as planes of high and low bytes.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn put_planes_avx512(&self, t: usize, x: &[f32]) {
        // SAFETY: within the buffers, as in `put`; masked loads stay inside x.
        unsafe {
            let k = x.len();
            let ones = _mm512_set1_epi8(1);
            for i in 0..k.div_ceil(256) {
                let n = (k - 256 * i).min(256);
                let xp = x.as_ptr().add(256 * i);
                let g = t * k.div_ceil(256) + i;
                let mut max = _mm512_setzero_si512();
                for i in 0..16 {
                    max = _mm512_max_epu32(magnitude(load(xp, 16 * i, n)), max);
                }
                let (a, inv) = scale_for(largest(max), WIDE);
                *self.scale.add(g) = a;
                let inv = _mm512_set1_ps(inv);
                for s in 0..n.div_ceil(64) {
                    let out = self.q.add(512 * g + 128 * s);
                    let mut lo = [_mm_setzero_si128(); 4];
                    let mut hi = [_mm_setzero_si128(); 4];
                    for i in 0..4 {
                        let v = _mm512_mul_ps(load(xp, 64 * s + 16 * i, n), inv);
                        let v = quantize(v, WIDE);
                        // q = 256·hi + lo with lo in −128..128: hi takes the carry.
                        let h = _mm512_srai_epi32::<8>(_mm512_add_epi32(v, _mm512_set1_epi32(128)));
                        lo[i] = _mm512_cvtepi32_epi8(v);
                        hi[i] = _mm512_cvtepi32_epi8(h);
                    }
                    let hi = join(hi);
                    let lo = join(lo);
                    _mm512_storeu_si512(out.cast(), hi);
                    _mm512_storeu_si512(out.add(64).cast(), lo);
                    let sum = |v| _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, v);
                    let s4 = _mm512_add_epi32(_mm512_slli_epi32::<8>(sum(hi)), sum(lo));
                    // Four lanes of s4 are 16 values.
                    let s8 = _mm512_add_epi32(s4, _mm512_shuffle_epi32::<0b1011_0001>(s4));
                    let s16 = _mm512_add_epi32(s8, _mm512_shuffle_epi32::<0b0100_1110>(s8));
                    let s16 = _mm512_maskz_compress_epi32(0x1111, s16);
                    let s16 = _mm_cvtepi32_ps(_mm512_castsi512_si128(s16));
                    _mm_storeu_ps(self.s16.add(16 * g + 4 * s), s16);
                    let s32 = _mm_hadd_ps(s16, s16);
                    _mm_storel_pd(self.s32.add(8 * g + 2 * s).cast(), _mm_castps_pd(s32));
                }
            }
        }
    }

    /// The `t`-th token of a prompt from the `first`-th group of 32 on as bf16, rounded to nearest even.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn put_bf16(&self, t: usize, first: usize, x: &[f32]) {
        for (g, x) in (first..).zip(x.chunks_exact(32)) {
            // SAFETY: within the buffers, as in `put`.
            unsafe {
                let [a, b] = [0, 16].map(|i| _mm512_loadu_ps(x.as_ptr().add(i)));
                let both = _mm512_cvtne2ps_pbh(b, a);
                let to = self.bf16.add(bf16_line(t, g, self.cols));
                to.cast::<__m512bh>().write(both);
            }
        }
    }

    /// The `t`-th 8-bit token from the `first`-th group of 32 on, as bytes.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn put_bytes_avx512(&self, t: usize, first: usize, x: &[f32]) {
        let at = TokenOffsets::of(self.rows, self.cols, Precision::Bits8, t);
        // SAFETY: within the buffers, as in `put`.
        unsafe {
            for (g, x) in (first..).zip(x.chunks_exact(32)) {
                let (a, i0, i1) = quantize_32(x.as_ptr());
                let out = self.q.add(at.bytes + 32 * g);
                let [b0, b1] = [i0, i1].map(|v| unsigned(_mm512_cvtepi32_epi8(v)));
                _mm_storeu_si128(out.cast(), b0);
                _mm_storeu_si128(out.add(16).cast(), b1);
                self.put_sums(at.scale + g, a, sums_of_16(b0, b1));
            }
        }
    }

    /// The `t`-th 8-bit token from the `first`-th group of 32 on, for packed weights.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn put_tiles_avx512(&self, t: usize, first: usize, x: &[f32]) {
        let groups = self.cols / 32;
        let (block, t) = (t / TOKEN_BLOCK, t % TOKEN_BLOCK);
        // SAFETY: within the buffers, as in `put`.
        unsafe {
            for (g, x) in (first..).zip(x.chunks_exact(32)) {
                let (a, i0, i1) = quantize_32(x.as_ptr());
                let at = (block * groups + g) * TOKEN_BLOCK;
                let out = self.tiles.q.add(32 * (at + t));
                let [b0, b1] = [i0, i1].map(|v| _mm512_cvtepi32_epi8(v));
                _mm_storeu_si128(out.cast(), b0);
                _mm_storeu_si128(out.add(16).cast(), b1);
                let [s0, s1] = sums_of_16(unsigned(b0), unsigned(b1));
                *self.tiles.scale.add(at + t) = a;
                *self.tiles.s32.add(at + t) = a * (s0 + s1) as f32;
                let [one, two] = USUAL_ZEROS;
                *self.tiles.z32.add(at + t) = -one * (s0 + s1);
                *self.tiles.z16.add(2 * at + t) = -two * s0;
                *self.tiles.z16.add(2 * at + TOKEN_BLOCK + t) = -two * s1;
            }
        }
    }
}

/// 16 values of `x[n]` from `i` on, zeros past the end.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(x: *const f32, i: usize, n: usize) -> __m512 {
    let left = n.saturating_sub(i).min(16);
    // SAFETY: masked lanes are not read.
    unsafe { _mm512_maskz_loadu_ps(((1u32 << left) - 1) as __mmask16, x.wrapping_add(i)) }
}

/// The bits of |x|, which are compared as in [`max_abs`](super::pack::max_abs).
#[inline]
#[target_feature(enable = "avx512f")]
fn magnitude(x: __m512) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX))
}

/// The float with the largest bits of all lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn largest(v: __m512i) -> f32 {
    f32::from_bits(_mm512_reduce_max_epu32(v))
}

/// Clamps (NaN to 0) and rounds to nearest even.
#[inline]
#[target_feature(enable = "avx512f")]
fn quantize(v: __m512, limit: f32) -> __m512i {
    let ordered = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(v, v);
    let v = _mm512_min_ps(v, _mm512_set1_ps(limit));
    let v = _mm512_max_ps(v, _mm512_set1_ps(-limit));
    _mm512_maskz_cvtps_epi32(ordered, v)
}

/// Signed bytes plus 128 each.
#[inline]
#[target_feature(enable = "avx512f")]
fn unsigned(bytes: __m128i) -> __m128i {
    _mm_xor_si128(bytes, _mm_set1_epi8(-128))
}

/// The sums of 16 and of 16 signed bytes, given with 128 added to each byte.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of_16(b0: __m128i, b1: __m128i) -> [i32; 2] {
    let [s0, s1] = [b0, b1].map(|b| _mm_sad_epu8(b, _mm_setzero_si128()));
    let both = _mm_add_epi64(_mm_unpacklo_epi64(s0, s1), _mm_unpackhi_epi64(s0, s1));
    [_mm_cvtsi128_si32(both) - 16 * 128, _mm_extract_epi32::<2>(both) - 16 * 128]
}

/// 32 values of `x` as 8-bit integers, 16 to a register, and their scale.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn quantize_32(x: *const f32) -> (f32, __m512i, __m512i) {
    // SAFETY: the caller's pointer has 32 readable floats.
    let (v0, v1) = unsafe { (_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))) };
    let max = _mm512_max_epu32(magnitude(v0), magnitude(v1));
    let (a, inv) = scale_for(largest(max), 127.0);
    let inv = _mm512_set1_ps(inv);
    let i0 = quantize(_mm512_mul_ps(v0, inv), 127.0);
    let i1 = quantize(_mm512_mul_ps(v1, inv), 127.0);
    (a, i0, i1)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn join(v: [__m128i; 4]) -> __m512i {
    let v01 = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(v[0]), v[1]);
    _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(v01, v[2]), v[3])
}
