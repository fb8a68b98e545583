//! Packing with AVX2.

use super::pack::scale_for;
use super::{ActSlots, Precision, TokenOffsets, WIDE};
use std::arch::x86_64::*;

impl ActSlots<'_> {
    /// Token `t` as i16, and as planes of high and low bytes.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn put_words_avx2(&self, t: usize, x: &[f32]) {
        let first = t * self.cols.div_ceil(256);
        for (g, x) in x.chunks(256).enumerate() {
            // SAFETY: within the buffers, as in `put`; a group of 32 is whole.
            unsafe {
                let g = first + g;
                let values = |b: usize| -> [__m256; 4] {
                    let x = x.as_ptr().add(32 * b);
                    [0, 8, 16, 24].map(|i| _mm256_loadu_ps(x.add(i)))
                };
                let mut max = _mm256_setzero_si256();
                for b in 0..x.len() / 32 {
                    max = _mm256_max_epu32(largest(values(b)), max);
                }
                let (a, inv) = scale_for(largest_of_8(max), WIDE);
                *self.scale.add(g) = a;
                let inv = _mm256_set1_ps(inv);
                for b in 0..x.len() / 32 {
                    let q = words(values(b).map(|v| quantize(_mm256_mul_ps(v, inv), WIDE)));
                    let at = 512 * g + 64 * b;
                    let to = self.q.add(at).cast::<__m256i>();
                    to.write_unaligned(q[0]);
                    to.add(1).write_unaligned(q[1]);
                    let to = self.planes.add(at).cast::<__m256i>();
                    let [high, low] = planes(q);
                    to.write_unaligned(high);
                    to.add(1).write_unaligned(low);
                    let sums = q.map(|q| sum_of_16(_mm256_madd_epi16(q, _mm256_set1_epi16(1))));
                    *self.s16.add(16 * g + 2 * b) = sums[0] as f32;
                    *self.s16.add(16 * g + 2 * b + 1) = sums[1] as f32;
                    *self.s32.add(8 * g + b) = (sums[0] + sums[1]) as f32;
                }
            }
        }
    }

    /// The `t`-th 8-bit token from the `first`-th group of 32 on; the integers are signed.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn put_bytes_avx2(&self, t: usize, first: usize, x: &[f32]) {
        let at = TokenOffsets::of(self.rows, self.cols, Precision::Bits8, t);
        for (g, x) in (first..).zip(x.chunks_exact(32)) {
            // SAFETY: within the buffers, as in `put`.
            unsafe {
                let v: [__m256; 4] =
                    std::array::from_fn(|i| _mm256_loadu_ps(x.as_ptr().add(8 * i)));
                let (a, inv) = scale_for(largest_of_8(largest(v)), 127.0);
                let inv = _mm256_set1_ps(inv);
                let q = bytes(v.map(|v| quantize(_mm256_mul_ps(v, inv), 127.0)));
                _mm256_storeu_si256(self.q.add(at.bytes + 32 * g).cast(), q);
                let sums = sums_of_16(q);
                *self.pairs.add(at.scale + g) = sums[0] & 0xffff | sums[1] << 16;
                self.put_sums(at.scale + g, a, sums);
            }
        }
    }
}

/// 32 words as 32 high and 32 low bytes: q = 256·hi + lo with lo in −128..128, so hi takes the carry.
#[inline]
#[target_feature(enable = "avx2")]
fn planes([a, b]: [__m256i; 2]) -> [__m256i; 2] {
    let carry = _mm256_set1_epi16(128);
    let [ha, hb] = [a, b].map(|v| _mm256_srai_epi16::<8>(_mm256_add_epi16(v, carry)));
    let [la, lb] = [a, b].map(|v| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(v)));
    // Each half of a packed register has eight of a and eight of b.
    [_mm256_packs_epi16(ha, hb), _mm256_packs_epi16(la, lb)]
        .map(|v| _mm256_permute4x64_epi64::<0b11_01_10_00>(v))
}

/// 32 integers as words, in their order.
#[inline]
#[target_feature(enable = "avx2")]
fn words([a, b, c, d]: [__m256i; 4]) -> [__m256i; 2] {
    // Each half of a packed register has four of a and four of b.
    [_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)]
        .map(|v| _mm256_permute4x64_epi64::<0b11_01_10_00>(v))
}

/// The bits of max |x| of each lane, compared as in [`max_abs`](super::pack::max_abs).
#[inline]
#[target_feature(enable = "avx2")]
fn largest(v: [__m256; 4]) -> __m256i {
    let no_sign = _mm256_set1_epi32(i32::MAX);
    let [a, b, c, d] = v.map(|v| _mm256_and_si256(_mm256_castps_si256(v), no_sign));
    _mm256_max_epu32(_mm256_max_epu32(a, b), _mm256_max_epu32(c, d))
}

/// The float with the largest bits of all lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn largest_of_8(v: __m256i) -> f32 {
    let v = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_max_epu32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    let v = _mm_max_epu32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v));
    f32::from_bits(_mm_cvtsi128_si32(v) as u32)
}

/// Clamps (NaN to 0) and rounds to nearest even.
#[inline]
#[target_feature(enable = "avx2")]
fn quantize(v: __m256, limit: f32) -> __m256i {
    let ordered = _mm256_cmp_ps::<_CMP_ORD_Q>(v, v);
    let v = _mm256_min_ps(v, _mm256_set1_ps(limit));
    let v = _mm256_max_ps(v, _mm256_set1_ps(-limit));
    _mm256_cvtps_epi32(_mm256_and_ps(ordered, v))
}

/// 32 integers as bytes, in their order.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    // Each half has four of a, b, c and d.
    _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// The sum of all lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn sum_of_16(v: __m256i) -> i32 {
    let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
}

/// The sums of the first and the last 16 signed bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_16(q: __m256i) -> [i32; 2] {
    let four =
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
    let two = _mm256_add_epi32(four, _mm256_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm256_add_epi32(two, _mm256_shuffle_epi32::<0b10_11_00_01>(two));
    [_mm256_extract_epi32::<0>(one), _mm256_extract_epi32::<4>(one)]
}
