//! Products of signed bytes on aarch64: dot products (`sdot`, of the dotprod extension), and products of small matrices (`smmla`, of
//! i8mm).
//!
//! In assembly, because in Rust 1.95 the functions for it (`vdotq_s32`, `vdotq_laneq_s32`, `vmmlaq_s32`) are unstable. This is the
//! only place that depends on that.

use std::arch::aarch64::*;
use std::arch::asm;

/// Adds to each lane of `sums` the sum of four products: bytes `4i .. 4i + 4` of `a` with those of `b`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: registers only; the function has the feature that the instruction belongs to.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums,
            in(vreg) a,
            in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// As [`sdot`], with bytes `4 · LANE .. 4 · LANE + 4` of `b` for all lanes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn sdot_lane<const LANE: usize>(
    mut sums: int32x4_t,
    a: int8x16_t,
    b: int8x16_t,
) -> int32x4_t {
    const { assert!(LANE < 4) };
    // SAFETY: as above.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{lane}]",
            inout(vreg) sums,
            in(vreg) a,
            in(vreg) b,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Adds to lane `2i + j` of `sums` the sum of eight products: bytes `8i .. 8i + 8` of `a` with bytes `8j .. 8j + 8` of `b`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(crate) fn smmla(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: as above.
    unsafe {
        asm!(
            "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums,
            in(vreg) a,
            in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
