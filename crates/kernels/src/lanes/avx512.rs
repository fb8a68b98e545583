//! 16 lanes: AVX-512 F, BW, VL, DQ.

use std::arch::x86_64::*;

use super::{Lanes, Outlined, ops};
use crate::fit::levels::LEVELS;

/// The AVX-512 level.
pub(crate) struct Avx512;

impl Lanes for Avx512 {
    const N: usize = 16;
    type V = __m512;

    #[inline(always)]
    unsafe fn outline<F: Outlined>(f: F) -> F::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
        fn with_features<F: Outlined>(f: F) -> F::Output {
            // SAFETY: this function has the features.
            unsafe { f.run::<Avx512>() }
        }
        // A function in between, because `inline(never)` of a function with target features is lost on callers that have none, as
        // this one has none before it is inlined (Rust 1.95).
        #[inline(never)]
        unsafe fn apart<F: Outlined>(f: F) -> F::Output {
            // SAFETY: the caller runs on a CPU with the level's features.
            unsafe { with_features(f) }
        }
        // SAFETY: as above.
        unsafe { apart(f) }
    }

    ops! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        fn store(p: *mut f32, v: __m512) -> () = _mm512_storeu_ps(p, v);
        fn prefetch(p: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(p.cast());
        fn load_i8(p: *const i8) -> __m512 = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
        // An index of the table is the lowest four bits of a lane.
        fn load_levels(p: *const u8) -> [__m512; 2] = {
            let table = _mm512_loadu_ps(LEVELS.as_ptr());
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            [
                _mm512_permutexvar_ps(bytes, table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(bytes), table),
            ]
        };
        fn load_n(p: *const f32, n: usize) -> __m512 = _mm512_maskz_loadu_ps(first(n), p);
        fn store_n(p: *mut f32, v: __m512, n: usize) -> () = _mm512_mask_storeu_ps(p, first(n), v);
        fn load_f16(p: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        fn load_f16_n(p: *const u16, n: usize) -> __m512 =
            _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p.cast()));
        fn store_f16(p: *mut u16, v: __m512) -> () = _mm256_storeu_si256(p.cast(), narrow(v));
        fn store_f16_n(p: *mut u16, v: __m512, n: usize) -> () =
            _mm256_mask_storeu_epi16(p.cast(), first(n), narrow(v));
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn abs(a: __m512) -> __m512 = _mm512_abs_ps(a);
        // Bit select: sign bit from the second, the rest from the first.
        fn copysign(a: __m512, sign: __m512) -> __m512 =
            _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xd8>(
                _mm512_castps_si512(a),
                _mm512_castps_si512(sign),
                _mm512_set1_epi32(i32::MIN),
            ));
        fn select_lt(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x);
        fn round(a: __m512) -> __m512 =
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        fn ldexp(a: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(a, n);
        // (The order of `_mm512_reduce_add_ps` is not specified.)
        fn sum(a: __m512) -> f32 = {
            let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        };
        fn largest(a: __m512) -> f32 = _mm512_reduce_max_ps(a);
        fn rotate_pairs(x: __m512, cos: *const f32, sin: *const f32) -> __m512 = {
            let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            let cos = _mm512_castps256_ps512(_mm256_loadu_ps(cos));
            let sin = _mm512_castps256_ps512(_mm256_loadu_ps(sin));
            let cos = _mm512_permutexvar_ps(twice, cos);
            let sin = _mm512_permutexvar_ps(twice, sin);
            let swapped = _mm512_permute_ps::<0b10_11_00_01>(x);
            _mm512_fmaddsub_ps(x, cos, _mm512_mul_ps(swapped, sin))
        };
    }
}

/// Returns a mask of the first `n < 16` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

#[inline(always)]
unsafe fn narrow(v: __m512) -> __m256i {
    // SAFETY: the caller runs on a CPU with AVX-512.
    unsafe { _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
}

/// Returns the same value; the compiler keeps the order of all values computed this way.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn in_order(mut v: __m512) -> __m512 {
    // SAFETY: no instruction.
    unsafe {
        std::arch::asm!("/* {0} */", inout(zmm_reg) v, options(nomem, nostack, preserves_flags));
    }
    v
}
