//! Asking for memory ahead of its use. A prefetch never faults: the address may point anywhere.

use std::arch::x86_64::*;

/// Asks for `bytes` from `p` on, into the first-level cache.
#[inline(always)]
pub(super) fn near(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: SSE is part of the architecture.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(64 * line).cast()) }
    }
}

/// Asks for `bytes` from `p` on, into the second-level cache.
#[inline(always)]
pub(super) fn far(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(64 * line).cast()) }
    }
}
