//! How AVX-512 reads the quantised formats: in groups of 256 weights, a superblock of the K-quants
//! or eight blocks of the others. The scales of a group are gathered once into one register; its
//! integers come in four steps of 64, one register of bytes each.

use crate::quant::{Quant, two_scales};
use std::arch::x86_64::*;

/// 256 weights of a row.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Group {
    /// Where the group's bytes begin.
    pub at: *const u8,
    /// Eight scales, one per 32 weights, then eight offsets (what is added; zero where the format
    /// has none). Q6_K: sixteen scales, one per 16 weights.
    pub scales: __m512,
}

/// A format as AVX-512 reads it.
pub(in crate::matmul) trait Unpack: Quant {
    /// Group `g` of a row, of which `count` ≤ 8 runs of 32 weights exist; nothing past them is
    /// read, their scales and offsets are zero.
    ///
    /// # Safety
    /// The row holds these weights; the CPU has the tier.
    unsafe fn begin(row: *const u8, g: usize, count: usize) -> Group;

    /// Weights `64·j .. 64·j + 64` of a group as unsigned bytes in their order, or with `HALF`
    /// only the first 32 of them: the row ends there.
    ///
    /// # Safety
    /// The row holds these weights; the CPU has the tier.
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i;
}

/// The scale of each lane of step `j`; a lane is four weights.
#[inline(always)]
pub(in crate::matmul) unsafe fn lane_scales<Q: Quant>(scales: __m512, j: usize) -> __m512 {
    // SAFETY: the callers' CPU has the tier.
    unsafe {
        let (first, lanes) = if two_scales::<Q>() {
            (4 * j, _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0))
        } else {
            (2 * j, _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0))
        };
        let at = _mm512_add_epi32(_mm512_set1_epi32(first as i32), lanes);
        _mm512_permutexvar_ps(at, scales)
    }
}
