//! Sixteen numbers in two AVX2 registers, or in one of AVX-512.
//!
//! There are no closures here: a closure has none of the features of the function around it, so that each of its instructions would be a call, and
//! sums would take up to 28 times as long. `python -m evidence check inlined` sees that.

use std::arch::x86_64::*;

use super::lanes::{LANES, Lanes};

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// AVX2 and F16C.
pub(super) struct Avx2;

#[inline(always)]
unsafe fn bf16_bits_8(v: __m256) -> __m256i {
    // SAFETY: AVX2, by the caller's contract.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, up));
        let nan = _mm256_or_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(0x40));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        _mm256_blendv_epi8(rounded, nan, is_nan)
    }
}

/// Bits of bf16, a 32-bit lane each, as f32.
#[inline(always)]
unsafe fn bf16_numbers_8(bits: __m256i) -> __m256 {
    // SAFETY: AVX2, by the caller's contract.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)) }
}

// SAFETY of everything below: the CPU features and the elements at the pointers are the trait's contract.
impl Lanes for Avx2 {
    type V = [__m256; 2];
    type Squares = [__m256d; 4];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }

    #[inline(always)]
    unsafe fn store_f32(p: *mut f32, v: Self::V) {
        // SAFETY: the trait's contract.
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe {
            let p = p.cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))]
        }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::V) {
        // SAFETY: the trait's contract.
        unsafe {
            let p = p.cast::<__m128i>();
            _mm_storeu_si128(p, _mm256_cvtps_ph::<NEAREST>(v[0]));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<NEAREST>(v[1]));
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe {
            let p = p.cast::<__m128i>();
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(1)));
            [bf16_numbers_8(low), bf16_numbers_8(high)]
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: Self::V) {
        // SAFETY: the trait's contract.
        unsafe {
            let both = _mm256_packus_epi32(bf16_bits_8(v[0]), bf16_bits_8(v[1]));
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(both));
        }
    }

    #[inline(always)]
    unsafe fn keep_bf16(p: *mut u16, v: Self::V) {
        // SAFETY: the trait's contract.
        unsafe {
            let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(v[0]));
            let high = _mm256_srli_epi32::<16>(_mm256_castps_si256(v[1]));
            let both = _mm256_packus_epi32(low, high);
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(both));
        }
    }

    #[inline(always)]
    unsafe fn round_f16(v: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe {
            let [low, high] = [_mm256_cvtps_ph::<NEAREST>(v[0]), _mm256_cvtps_ph::<NEAREST>(v[1])];
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { [bf16_numbers_8(bf16_bits_8(v[0])), bf16_numbers_8(bf16_bits_8(v[1]))] }
    }

    #[inline(always)]
    unsafe fn no_squares() -> Self::Squares {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_setzero_pd(); 4] }
    }

    #[inline(always)]
    unsafe fn square(s: Self::Squares, v: Self::V) -> Self::Squares {
        // SAFETY: the trait's contract.
        unsafe {
            let wide = [
                _mm256_cvtps_pd(_mm256_castps256_ps128(v[0])),
                _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(v[0])),
                _mm256_cvtps_pd(_mm256_castps256_ps128(v[1])),
                _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(v[1])),
            ];
            // Fused or not makes no difference: the product is exact.
            [
                _mm256_fmadd_pd(wide[0], wide[0], s[0]),
                _mm256_fmadd_pd(wide[1], wide[1], s[1]),
                _mm256_fmadd_pd(wide[2], wide[2], s[2]),
                _mm256_fmadd_pd(wide[3], wide[3], s[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn spread(s: Self::Squares) -> [f64; LANES] {
        let mut lanes = [0.0; LANES];
        for (i, quarter) in s.into_iter().enumerate() {
            // SAFETY: the trait's contract; four of the sixteen elements.
            unsafe { _mm256_storeu_pd(lanes.as_mut_ptr().add(4 * i), quarter) };
        }
        lanes
    }
}

/// AVX-512 F, BW, DQ and VL.
pub(super) struct Avx512;

#[inline(always)]
unsafe fn bf16_bits_16(v: __m512) -> __m512i {
    // SAFETY: AVX-512, by the caller's contract.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, up));
        let nan = _mm512_or_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(0x40));
        _mm512_mask_blend_epi32(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v), rounded, nan)
    }
}

// SAFETY of everything below: as above.
impl Lanes for Avx512 {
    type V = __m512;
    type Squares = [__m512d; 2];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store_f32(p: *mut f32, v: Self::V) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::V) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<NEAREST>(v)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: Self::V) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(bf16_bits_16(v))) }
    }

    #[inline(always)]
    unsafe fn keep_bf16(p: *mut u16, v: Self::V) {
        // SAFETY: the trait's contract.
        unsafe {
            let bits = _mm512_srli_epi32::<16>(_mm512_castps_si512(v));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(bits));
        }
    }

    #[inline(always)]
    unsafe fn round_f16(v: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtph_ps(_mm512_cvtps_ph::<NEAREST>(v)) }
    }

    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bf16_bits_16(v))) }
    }

    #[inline(always)]
    unsafe fn no_squares() -> Self::Squares {
        // SAFETY: the trait's contract.
        unsafe { [_mm512_setzero_pd(); 2] }
    }

    #[inline(always)]
    unsafe fn square(s: Self::Squares, v: Self::V) -> Self::Squares {
        // SAFETY: the trait's contract.
        unsafe {
            let low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
            let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(v));
            // Fused or not makes no difference: the product is exact.
            [_mm512_fmadd_pd(low, low, s[0]), _mm512_fmadd_pd(high, high, s[1])]
        }
    }

    #[inline(always)]
    unsafe fn spread(s: Self::Squares) -> [f64; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: the trait's contract; eight of the sixteen elements, twice.
        unsafe {
            _mm512_storeu_pd(lanes.as_mut_ptr(), s[0]);
            _mm512_storeu_pd(lanes.as_mut_ptr().add(8), s[1]);
        }
        lanes
    }
}
