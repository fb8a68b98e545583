//! Packing with NEON.

use super::pack::{max_abs, scale_for};
use super::{ActSlots, Precision, TokenOffsets, WIDE};
use std::arch::aarch64::*;

impl ActSlots<'_> {
    /// Token `t` as planes of high and low bytes.
    #[target_feature(enable = "neon")]
    pub(super) unsafe fn put_planes_neon(&self, t: usize, x: &[f32]) {
        let first = t * self.cols.div_ceil(256);
        for (g, x) in x.chunks(256).enumerate() {
            let (g, (a, inv)) = (first + g, scale_for(max_abs(x), WIDE));
            // SAFETY: within the buffers, as in `put`.
            unsafe {
                *self.scale.add(g) = a;
                for (b, x) in x.chunks_exact(32).enumerate() {
                    let to = self.q.add(512 * g + 64 * b);
                    let mut sums = [0; 2];
                    for (h, sum) in sums.iter_mut().enumerate() {
                        let q = quantize_16(x.as_ptr().add(16 * h), inv, WIDE);
                        *sum = vaddlvq_s16(q[0]) + vaddlvq_s16(q[1]);
                        // q = 256·hi + lo with lo in −128..128: rounding gives hi the carry.
                        let high = vrshrn_high_n_s16::<8>(vrshrn_n_s16::<8>(q[0]), q[1]);
                        let low = vmovn_high_s16(vmovn_s16(q[0]), q[1]);
                        vst1q_s8(to.add(16 * h), high);
                        vst1q_s8(to.add(32 + 16 * h), low);
                    }
                    *self.s16.add(16 * g + 2 * b) = sums[0] as f32;
                    *self.s16.add(16 * g + 2 * b + 1) = sums[1] as f32;
                    *self.s32.add(8 * g + b) = (sums[0] + sums[1]) as f32;
                }
            }
        }
    }

    /// The `t`-th 8-bit token from the `first`-th group of 32 on; the integers are signed.
    #[target_feature(enable = "neon")]
    pub(super) unsafe fn put_bytes_neon(&self, t: usize, first: usize, x: &[f32]) {
        let at = TokenOffsets::of(self.rows, self.cols, Precision::Bits8, t);
        for (g, x) in (first..).zip(x.chunks_exact(32)) {
            let (a, inv) = scale_for(max_abs(x), 127.0);
            let mut sums = [0; 2];
            // SAFETY: within the buffers, as in `put`.
            unsafe {
                for (h, sum) in sums.iter_mut().enumerate() {
                    let q = quantize_16(x.as_ptr().add(16 * h), inv, 127.0);
                    let q = vmovn_high_s16(vmovn_s16(q[0]), q[1]);
                    *sum = i32::from(vaddlvq_s8(q));
                    vst1q_s8(self.q.add(at.bytes + 32 * g + 16 * h), q);
                }
                self.put_sums(at.scale + g, a, sums);
            }
        }
    }
}

/// 16 values times `inv`, clamped (NaN to 0) and rounded to nearest even.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn quantize_16(x: *const f32, inv: f32, limit: f32) -> [int16x8_t; 2] {
    let (least, most) = (vdupq_n_f32(-limit), vdupq_n_f32(limit));
    let mut q = [vdupq_n_s32(0); 4];
    for (i, q) in q.iter_mut().enumerate() {
        // SAFETY: the caller's pointer has 16 readable floats.
        let v = vmulq_n_f32(unsafe { vld1q_f32(x.add(4 * i)) }, inv);
        // A NaN stays NaN, and becomes 0 as an integer.
        *q = vcvtnq_s32_f32(vmaxq_f32(vminq_f32(v, most), least));
    }
    [vmovn_high_s32(vmovn_s32(q[0]), q[1]), vmovn_high_s32(vmovn_s32(q[2]), q[3])]
}
