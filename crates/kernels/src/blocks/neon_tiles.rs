//! Reads tiles with NEON: half lines of 8 rows × 4 unsigned codes, and their scales; also code shared by several types.

use super::BlockFormat;
use super::neon_rows::{self, fifth_bits, floats_u8};
use crate::fields::TILE_ROWS;
use std::arch::aarch64::*;

/// The scales and offsets that turn the sums of a group of 32 weights into floats, for each of 8 rows.
pub(crate) struct Scales {
    /// Scales of the first and of the second 16 weights; the same if the type has one per 32.
    pub d: [[float32x4_t; 2]; 2],
    /// The offsets, likewise; zeros if the type has none.
    pub m: [[float32x4_t; 2]; 2],
}

impl Scales {
    /// One scale per 32 weights, and no offset.
    #[inline(always)]
    pub(super) unsafe fn one(d: [float32x4_t; 2]) -> Scales {
        // SAFETY: the callers' CPU has NEON.
        unsafe { Scales { d: [d; 2], m: [[vdupq_n_f32(0.0); 2]; 2] } }
    }
}

/// A block type's units; `half` are rows 0 to 7 or 8 to 15.
///
/// # Safety
/// For all functions: `unit` points to a whole unit, the groups and lines exist, and the CPU has NEON.
pub(crate) trait TilesNeon: BlockFormat {
    /// Data computed once per group; `()` if lines are read as they are.
    type Group;

    /// Called before the other functions for group `g`.
    unsafe fn begin(unit: *const u8, g: usize, half: usize) -> Self::Group;

    /// The scales and offsets of group `g`.
    unsafe fn scales(unit: *const u8, group: &Self::Group, g: usize, half: usize) -> Scales;

    /// Weights `32g + 4j .. 32g + 4j + 4` of the rows, as unsigned codes.
    unsafe fn line(
        unit: *const u8,
        group: &Self::Group,
        g: usize,
        j: usize,
        half: usize,
    ) -> [uint8x16_t; 2];
}

/// 8 f16 at `p`.
#[inline(always)]
pub(super) unsafe fn halves(p: *const u8) -> [float32x4_t; 2] {
    // SAFETY: inside the caller's unit.
    unsafe {
        let v = vreinterpretq_f16_u16(vld1q_u16(p.cast()));
        [vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)]
    }
}

/// Elementwise products for eight rows.
#[inline(always)]
pub(super) unsafe fn times(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
    // SAFETY: the callers' CPU has NEON.
    unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
}

/// Bits `from ..` of each byte of line `l` of `lines`, masked with `mask`.
#[inline(always)]
pub(super) unsafe fn bits(
    lines: *const u8,
    l: usize,
    half: usize,
    from: usize,
    mask: u8,
) -> [uint8x16_t; 2] {
    // SAFETY: inside the caller's unit.
    unsafe { neon_rows::bits(neon_rows::load(lines.add(64 * l + 32 * half)), from, mask) }
}

/// Bits `from .. from + 4` of line `l` of `lines`.
#[inline(always)]
pub(super) unsafe fn nibbles(
    lines: *const u8,
    l: usize,
    half: usize,
    from: usize,
) -> [uint8x16_t; 2] {
    // SAFETY: inside the caller's unit.
    unsafe { bits(lines, l, half, from, 15) }
}

/// Adds fifth bits: mask `i` of `masks`.
#[inline(always)]
pub(super) unsafe fn with_fifth(
    q: [uint8x16_t; 2],
    masks: *const u8,
    i: usize,
    half: usize,
) -> [uint8x16_t; 2] {
    // SAFETY: inside the caller's unit.
    unsafe { neon_rows::or(q, fifth_bits(masks.add(8 * i + 4 * half))) }
}

/// The scales of a type with one per block of 32, and one offset if it has any.
#[inline(always)]
pub(super) unsafe fn one_scale<Q: BlockFormat>(unit: *const u8, half: usize) -> Scales {
    // SAFETY: inside the caller's unit.
    unsafe {
        let mut scales = Scales::one(halves(unit.add(16 * half)));
        if Q::OFFSETS != 0 {
            scales.m = [halves(unit.add(32 + 16 * half)); 2];
        }
        scales
    }
}

/// Scales and offsets of group `g` of a Q4_K or Q5_K unit.
#[inline(always)]
pub(super) unsafe fn scales_k(unit: *const u8, g: usize, half: usize) -> Scales {
    // SAFETY: inside the caller's unit.
    unsafe {
        // Byte i of the twelve, for 8 rows: see `scale_min_k` in `shared` for the bits.
        let at = |i: usize| unit.add(64 + TILE_ROWS * i + 8 * half);
        let (six, four) = (vdup_n_u8(63), vdup_n_u8(15));
        let (sc, min) = if g < 4 {
            (vand_u8(vld1_u8(at(g)), six), vand_u8(vld1_u8(at(g + 4)), six))
        } else {
            // The upper two bits of one byte, moved to bits 4 and 5 of another.
            let v = vld1_u8(at(g + 4));
            let sc_high = vshl_n_u8::<4>(vshr_n_u8::<6>(vld1_u8(at(g - 4))));
            let min_high = vshl_n_u8::<4>(vshr_n_u8::<6>(vld1_u8(at(g))));
            (vorr_u8(vand_u8(v, four), sc_high), vorr_u8(vshr_n_u8::<4>(v), min_high))
        };
        let d = times(halves(unit.add(16 * half)), floats_u8(sc));
        let m = times(halves(unit.add(32 + 16 * half)), floats_u8(min));
        Scales { d: [d; 2], m: [[vnegq_f32(m[0]), vnegq_f32(m[1])]; 2] }
    }
}
