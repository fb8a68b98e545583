//! How AVX-512 reads the quantised formats: 64 weights (one register of bytes) a step, four steps
//! a group of 256, the group being a superblock of the K-quants and eight blocks of the others.
//!
//! Byte `i` of a step is weight `i`; lane `l` of its scales and offsets belongs to the weights
//! `4l .. 4l + 4`, which is what `vpdpbusd` sums into lane `l`.

use crate::quant::Quant;
use std::arch::x86_64::*;

/// 64 weights.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Step {
    /// 64 unsigned bytes.
    pub q: __m512i,
    /// Scale of each lane of four weights.
    pub d: __m512,
    /// Offset of each lane; meaningless unless the format has one.
    pub m: __m512,
}

/// A format as AVX-512 reads it.
pub(in crate::matmul) trait Unpack: Quant {
    /// What the steps of one group of 256 share.
    type Group: Copy;

    /// Starts group `g` of a row.
    ///
    /// # Safety
    /// The row holds at least one weight of the group; the CPU has the tier.
    unsafe fn begin(row: *const u8, g: usize) -> Self::Group;

    /// Unpacks weights `64·j .. 64·j + 64` of the group, or with `HALF` only the first 32 of
    /// them: the row ends there, the other lanes' scales and offsets are zero, and nothing past
    /// the row is read.
    ///
    /// # Safety
    /// The row holds these weights; the CPU has the tier.
    unsafe fn step<const HALF: bool>(group: &Self::Group, j: usize) -> Step;

    /// Where offsets are cheaper for 256 weights at once: `acc` plus, in any lanes, the products
    /// of the offsets with the sums `s32[0..8]` of 32 activations each. `None` where the steps'
    /// own offsets have to be used.
    ///
    /// # Safety
    /// `s32` points to 8 floats; the CPU has the tier.
    #[inline(always)]
    unsafe fn add_offsets(_: &Self::Group, _: *const f32, _: __m512) -> Option<__m512> {
        None
    }
}
