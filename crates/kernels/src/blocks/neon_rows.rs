//! Reads rows of blocks with NEON, 32 weights at a time, in the order of the weights; also code shared by several types.

use super::BlockFormat;
use super::shared::scales_and_minima_k;
use std::arch::aarch64::*;

/// 32 weights of one group as bytes, and the scales and offsets that turn their products into floats.
pub(crate) struct Group {
    /// 32 unsigned codes.
    pub q: [uint8x16_t; 2],
    /// Scales of the first and the second 16.
    pub d: [f32; 2],
    /// Offsets of the first and the second 16.
    pub m: [f32; 2],
}

/// Scales and offsets of eight consecutive groups, as in [`Group`].
#[derive(Clone, Copy)]
pub(crate) struct Eight {
    /// `[8][SCALES]`, in the first `8 · SCALES`.
    pub d: [f32; 16],
    pub m: [f32; 8],
}

impl Eight {
    pub(crate) const NONE: Eight = Eight { d: [0.0; 16], m: [0.0; 8] };
}

/// A block type's rows.
pub(crate) trait RowsNeon: BlockFormat {
    /// Unpacks weights `32·b .. 32·b + 32` of a row.
    ///
    /// # Safety
    /// `row` holds group `b`; the CPU has NEON.
    unsafe fn group128(row: *const u8, b: usize) -> Group;

    /// True if blocks have 256 weights whose scales are computed faster together, by [`Self::eight`].
    const EIGHT: bool = false;

    /// Scales and offsets of block `g`, bit-identical to those of [`Self::group128`].
    ///
    /// # Safety
    /// `row` holds block `g`; the CPU has NEON.
    unsafe fn eight(_row: *const u8, _g: usize) -> Eight {
        unreachable!("scales are made group by group")
    }
}

/// True if codes are too large for signed bytes, so that the zero point is subtracted from each of them. Otherwise it is
/// subtracted from their sums.
pub(crate) const fn too_large<Q: BlockFormat>() -> bool {
    Q::MAX_CODE > i8::MAX as i32
}

/// Codes as signed bytes: minus the zero point if they are [`too_large`].
#[inline(always)]
pub(crate) unsafe fn signed<Q: BlockFormat>(codes: uint8x16_t) -> int8x16_t {
    // SAFETY: the callers' CPU has NEON.
    unsafe { vreinterpretq_s8_u8(if too_large::<Q>() { less_zero::<Q>(codes) } else { codes }) }
}

/// Codes minus the zero point, in the bits of signed bytes.
#[inline(always)]
pub(crate) unsafe fn less_zero<Q: BlockFormat>(codes: uint8x16_t) -> uint8x16_t {
    // SAFETY: the callers' CPU has NEON.
    unsafe { if Q::ZERO == 0 { codes } else { vsubq_u8(codes, vdupq_n_u8(Q::ZERO as u8)) } }
}

#[inline(always)]
pub(super) unsafe fn f16_at(p: *const u8) -> f32 {
    // SAFETY: the caller's pointer has two readable bytes, and the CPU has NEON.
    unsafe {
        let bits = vdup_n_u16(p.cast::<u16>().read_unaligned());
        vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(bits)))
    }
}

/// 16 bytes at `p` → 16 low nibbles, 16 high nibbles.
#[inline(always)]
pub(super) unsafe fn nibbles(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's pointer has 16 readable bytes and the CPU has NEON.
    unsafe {
        let v = vld1q_u8(p);
        [vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8::<4>(v)]
    }
}

/// 32 bytes.
#[inline(always)]
pub(crate) unsafe fn load(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's pointer has 32 readable bytes and the CPU has NEON.
    unsafe { [vld1q_u8(p), vld1q_u8(p.add(16))] }
}

/// Bits `from ..` of each byte, moved to its low end and masked with `mask`.
#[inline(always)]
pub(super) unsafe fn bits(v: [uint8x16_t; 2], from: usize, mask: u8) -> [uint8x16_t; 2] {
    // SAFETY: the callers' CPU has NEON.
    unsafe {
        let (by, mask) = (vdupq_n_s8(-(from as i8)), vdupq_n_u8(mask));
        [vandq_u8(vshlq_u8(v[0], by), mask), vandq_u8(vshlq_u8(v[1], by), mask)]
    }
}

/// The entries in `table` of 32 nibbles in bytes.
#[inline(always)]
pub(super) unsafe fn looked_up(table: &[u8; 16], nibbles: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    // SAFETY: the callers' CPU has NEON.
    unsafe {
        let table = vld1q_u8(table.as_ptr());
        [vqtbl1q_u8(table, nibbles[0]), vqtbl1q_u8(table, nibbles[1])]
    }
}

/// Bitwise or of `a` and `b`.
#[inline(always)]
pub(super) unsafe fn or(a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    // SAFETY: the callers' CPU has NEON.
    unsafe { [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])] }
}

/// 32 bits at `p` → 32 bytes of 0 or 16.
#[inline(always)]
pub(super) unsafe fn fifth_bits(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's pointer has 4 readable bytes and the CPU has NEON.
    unsafe {
        let v = vreinterpretq_u8_u32(vdupq_n_u32(p.cast::<u32>().read_unaligned()));
        // Byte i of the result tests bit i % 8 of byte i / 8.
        let first = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
        let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        let sixteen = vdupq_n_u8(16);
        let a = vtstq_u8(vqtbl1q_u8(v, first), bit);
        let b = vtstq_u8(vqtbl1q_u8(v, vaddq_u8(first, vdupq_n_u8(2))), bit);
        [vandq_u8(a, sixteen), vandq_u8(b, sixteen)]
    }
}

/// Eight unsigned bytes as floats.
#[inline(always)]
pub(super) unsafe fn floats_u8(v: uint8x8_t) -> [float32x4_t; 2] {
    // SAFETY: the callers' CPU has NEON.
    unsafe {
        let v = vmovl_u8(v);
        [vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), vcvtq_f32_u32(vmovl_high_u16(v))]
    }
}

/// Eight signed bytes as floats.
#[inline(always)]
pub(super) unsafe fn floats_s8(v: int8x8_t) -> [float32x4_t; 2] {
    // SAFETY: the callers' CPU has NEON.
    unsafe {
        let v = vmovl_s8(v);
        [vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))]
    }
}

/// Scales and offsets of all groups of a Q4_K or Q5_K block.
#[inline(always)]
pub(super) unsafe fn eight_k(block: *const u8) -> Eight {
    // SAFETY: by the callers' contract the block is whole, and the CPU has NEON.
    unsafe {
        let words = block.add(4).cast::<[u32; 3]>().read_unaligned();
        let (sc, m) = scales_and_minima_k(words);
        let (sc, m) = (floats_u8(vcreate_u8(sc)), floats_u8(vcreate_u8(m)));
        let (d, min) = (f16_at(block), f16_at(block.add(2)));
        let mut all = Eight::NONE;
        for i in 0..2 {
            vst1q_f32(all.d.as_mut_ptr().add(4 * i), vmulq_n_f32(sc[i], d));
            vst1q_f32(all.m.as_mut_ptr().add(4 * i), vnegq_f32(vmulq_n_f32(m[i], min)));
        }
        all
    }
}
