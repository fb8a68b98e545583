//! 8 lanes: AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::{Lanes, Outlined, ops};
use crate::fit::levels::IQ4_LEVELS;

/// The AVX2 level.
pub(crate) struct Avx2;

impl Lanes for Avx2 {
    const N: usize = 8;
    type V = __m256;

    #[inline(always)]
    unsafe fn outline<F: Outlined>(f: F) -> F::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn with_features<F: Outlined>(f: F) -> F::Output {
            // SAFETY: this function has the features.
            unsafe { f.run::<Avx2>() }
        }
        // A function in between, because `inline(never)` of a function with target features is lost on callers that have none, as this
        // one has none before it is inlined (Rust 1.95).
        #[inline(never)]
        unsafe fn apart<F: Outlined>(f: F) -> F::Output {
            // SAFETY: the caller runs on a CPU with the level's features.
            unsafe { with_features(f) }
        }
        // SAFETY: as above.
        unsafe { apart(f) }
    }

    ops! {
        fn splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        fn load(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        fn store(p: *mut f32, v: __m256) -> () = _mm256_storeu_ps(p, v);
        fn prefetch(p: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(p.cast());
        fn load_i8(p: *const i8) -> __m256 = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
        fn load_levels(p: *const u8) -> [__m256; 2] = {
            let table = _mm_loadu_si128(IQ4_LEVELS.as_ptr().cast());
            let (bytes, mask) = (_mm_loadl_epi64(p.cast()), _mm_set1_epi8(15));
            let low = _mm_shuffle_epi8(table, _mm_and_si128(bytes, mask));
            let high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask));
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
            ]
        };
        fn load_n(p: *const f32, n: usize) -> __m256 = _mm256_maskload_ps(p, first(n));
        fn store_n(p: *mut f32, v: __m256, n: usize) -> () = _mm256_maskstore_ps(p, first(n), v);
        fn load_f16(p: *const u16) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        // There is no masked load of 16-bit elements: go through the stack.
        fn load_f16_n(p: *const u16, n: usize) -> __m256 = {
            let mut eight = [0u16; 8];
            std::ptr::copy_nonoverlapping(p, eight.as_mut_ptr(), n);
            Self::load_f16(eight.as_ptr())
        };
        fn store_f16(p: *mut u16, v: __m256) -> () = _mm_storeu_si128(
            p.cast(),
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v),
        );
        fn store_f16_n(p: *mut u16, v: __m256, n: usize) -> () = {
            let mut eight = [0u16; 8];
            Self::store_f16(eight.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(eight.as_ptr(), p, n);
        };
        fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn fnma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fnmadd_ps(a, b, c);
        fn max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        fn abs(a: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        fn copysign(a: __m256, sign: __m256) -> __m256 = {
            let bit = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(bit, a), _mm256_and_ps(bit, sign))
        };
        fn select_lt(a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 =
            _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        fn round(a: __m256) -> __m256 =
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        // In two steps, as 2^n itself may be out of range. Only the second can round.
        fn ldexp(a: __m256, n: __m256) -> __m256 = {
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let a = _mm256_mul_ps(a, power(half));
            _mm256_mul_ps(a, power(_mm256_sub_epi32(n, half)))
        };
        fn times_power(a: __m256, n: __m256) -> __m256 = _mm256_mul_ps(a, power(_mm256_cvtps_epi32(n)));
        fn sum(a: __m256) -> f32 = {
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        };
        fn largest(a: __m256) -> f32 = {
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        };
        fn rotate_pairs(x: __m256, cos: *const f32, sin: *const f32) -> __m256 = {
            let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
            let cos = _mm256_castps128_ps256(_mm_loadu_ps(cos));
            let sin = _mm256_castps128_ps256(_mm_loadu_ps(sin));
            let cos = _mm256_permutevar8x32_ps(cos, twice);
            let sin = _mm256_permutevar8x32_ps(sin, twice);
            let swapped = _mm256_permute_ps::<0b10_11_00_01>(x);
            _mm256_fmaddsub_ps(x, cos, _mm256_mul_ps(swapped, sin))
        };
    }
}

/// Returns a mask of the first `n < 8` lanes.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    const ONES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: n <= 8, so eight elements follow; the caller runs on a CPU with AVX2.
    unsafe { _mm256_loadu_si256(ONES.as_ptr().add(8 - n).cast()) }
}

/// Returns `2^n` for `n` in -126..=127.
#[inline(always)]
unsafe fn power(n: __m256i) -> __m256 {
    // SAFETY: the caller runs on a CPU with AVX2.
    unsafe {
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
    }
}

/// Returns the value itself, opaque to the compiler: it then does not replace the operations on this value and on those that follow by
/// others that it considers cheaper.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn opaque(mut v: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) v, options(pure, nomem, nostack, preserves_flags));
    }
    v
}

/// The same; the compiler also keeps the order of all values computed this way.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn in_order(mut v: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) v, options(nomem, nostack, preserves_flags));
    }
    v
}
