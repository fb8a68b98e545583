//! 8 lanes: two registers of NEON. There are 32 registers of half the size of AVX2's 16, so that the same sums fit in
//! registers, and are added in the same order.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Lanes, Outlined, ops};
use crate::fit::levels::IQ4_LEVELS;

/// The NEON level.
pub(crate) struct Neon;

type V = [float32x4_t; 2];

impl Lanes for Neon {
    const N: usize = 8;
    type V = V;

    #[inline(always)]
    unsafe fn outline<F: Outlined>(f: F) -> F::Output {
        #[target_feature(enable = "neon")]
        #[inline(never)]
        fn with_features<F: Outlined>(f: F) -> F::Output {
            // SAFETY: this function has the features.
            unsafe { f.run::<Neon>() }
        }
        // SAFETY: the caller runs on a CPU with the level's features.
        unsafe { with_features(f) }
    }

    ops! {
        fn splat(x: f32) -> V = [vdupq_n_f32(x); 2];
        fn load(p: *const f32) -> V = [vld1q_f32(p), vld1q_f32(p.add(4))];
        fn store(p: *mut f32, v: V) -> () = {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
        };
        // The function for it (`_prefetch`) is unstable in Rust 1.95. A prefetch never faults.
        fn prefetch(p: *const u8) -> () =
            asm!("prfm pldl2keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
        fn load_i8(p: *const i8) -> V = {
            let v = vmovl_s8(vld1_s8(p));
            [vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))]
        };
        fn load_levels(p: *const u8) -> [V; 2] = {
            let (bytes, table) = (vld1_u8(p), vld1q_s8(IQ4_LEVELS.as_ptr()));
            let widened = |codes| {
                let v = vmovl_s8(vqtbl1_s8(table, codes));
                [vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))]
            };
            [widened(vand_u8(bytes, vdup_n_u8(15))), widened(vshr_n_u8::<4>(bytes))]
        };
        // There are no masked loads and stores: go through the stack.
        fn load_n(p: *const f32, n: usize) -> V = {
            let mut eight = [0f32; 8];
            std::ptr::copy_nonoverlapping(p, eight.as_mut_ptr(), n);
            Self::load(eight.as_ptr())
        };
        fn store_n(p: *mut f32, v: V, n: usize) -> () = {
            let mut eight = [0f32; 8];
            Self::store(eight.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(eight.as_ptr(), p, n);
        };
        fn load_f16(p: *const u16) -> V = {
            let v = vreinterpretq_f16_u16(vld1q_u16(p));
            [vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)]
        };
        fn load_f16_n(p: *const u16, n: usize) -> V = {
            let mut eight = [0u16; 8];
            std::ptr::copy_nonoverlapping(p, eight.as_mut_ptr(), n);
            Self::load_f16(eight.as_ptr())
        };
        // Rounded according to the control register, which is to nearest even when a program starts.
        fn store_f16(p: *mut u16, v: V) -> () = {
            let both = vcvt_high_f16_f32(vcvt_f16_f32(v[0]), v[1]);
            vst1q_u16(p, vreinterpretq_u16_f16(both));
        };
        fn store_f16_n(p: *mut u16, v: V, n: usize) -> () = {
            let mut eight = [0u16; 8];
            Self::store_f16(eight.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(eight.as_ptr(), p, n);
        };
        fn add(a: V, b: V) -> V = [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])];
        fn sub(a: V, b: V) -> V = [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])];
        fn mul(a: V, b: V) -> V = [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])];
        fn div(a: V, b: V) -> V = [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])];
        fn fma(a: V, b: V, c: V) -> V = [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])];
        fn fnma(a: V, b: V, c: V) -> V = [vfmsq_f32(c[0], a[0], b[0]), vfmsq_f32(c[1], a[1], b[1])];
        // `fmax` and `fmin` would return NaN if either is: compare and select instead.
        fn max(a: V, b: V) -> V = {
            let one = |i: usize| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]);
            [one(0), one(1)]
        };
        fn min(a: V, b: V) -> V = Self::select_lt(a, b, a, b);
        fn abs(a: V) -> V = [vabsq_f32(a[0]), vabsq_f32(a[1])];
        fn copysign(a: V, sign: V) -> V = {
            let bit = vdupq_n_u32(1 << 31);
            [vbslq_f32(bit, sign[0], a[0]), vbslq_f32(bit, sign[1], a[1])]
        };
        fn select_lt(a: V, b: V, x: V, y: V) -> V = {
            let one = |i: usize| vbslq_f32(vcltq_f32(a[i], b[i]), x[i], y[i]);
            [one(0), one(1)]
        };
        fn round(a: V) -> V = [vrndnq_f32(a[0]), vrndnq_f32(a[1])];
        fn ldexp(a: V, n: V) -> V = [ldexp(a[0], n[0]), ldexp(a[1], n[1])];
        fn times_power(a: V, n: V) -> V = {
            let power = |n| power(vcvtnq_s32_f32(n));
            [vmulq_f32(a[0], power(n[0])), vmulq_f32(a[1], power(n[1]))]
        };
        fn sum(a: V) -> f32 = {
            let four = vaddq_f32(a[0], a[1]);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vaddv_f32(two)
        };
        fn largest(a: V) -> f32 = vmaxvq_f32(vmaxq_f32(a[0], a[1]));
        fn rotate_pairs(x: V, cos: *const f32, sin: *const f32) -> V = {
            let (cos, sin) = (vld1q_f32(cos), vld1q_f32(sin));
            [
                rotate(x[0], vzip1q_f32(cos, cos), vzip1q_f32(sin, sin)),
                rotate(x[1], vzip2q_f32(cos, cos), vzip2q_f32(sin, sin)),
            ]
        };
    }
}

/// In two steps, as 2^n itself may be out of range. Only the second can round.
#[inline(always)]
unsafe fn ldexp(a: float32x4_t, n: float32x4_t) -> float32x4_t {
    // SAFETY: the caller runs on a CPU with NEON.
    unsafe {
        let n = vcvtnq_s32_f32(n);
        let half = vshrq_n_s32::<1>(n);
        let a = vmulq_f32(a, power(half));
        vmulq_f32(a, power(vsubq_s32(n, half)))
    }
}

/// Returns `2^n` for `n` in -126..=127.
#[inline(always)]
unsafe fn power(n: int32x4_t) -> float32x4_t {
    // SAFETY: the caller runs on a CPU with NEON.
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127)))) }
}

/// Rotates two pairs, with each cosine and sine given twice.
#[inline(always)]
unsafe fn rotate(x: float32x4_t, cos: float32x4_t, sin: float32x4_t) -> float32x4_t {
    // SAFETY: the caller runs on a CPU with NEON.
    unsafe {
        // The sign bit of even lanes, whose product is subtracted.
        let even = vreinterpretq_u32_u64(vdupq_n_u64(1 << 31));
        let product = vreinterpretq_u32_f32(vmulq_f32(vrev64q_f32(x), sin));
        vfmaq_f32(vreinterpretq_f32_u32(veorq_u32(product, even)), x, cos)
    }
}
