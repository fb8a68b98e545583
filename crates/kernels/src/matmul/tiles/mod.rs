//! Products of packed matrices.
//!
//! With AVX-512 VNNI a tile is multiplied in place, by a few tokens of 16 bits or by a register block of
//! twelve of 8. With AVX2 and NEON it is too for those of 16 bits; for the others, and in portable code always, weights
//! are unpacked by the same code as canonical ones, which only reads them from elsewhere.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{MatmulScratch, Matrix, Output, Precision, Tokens, dot, gemm};
use crate::isa::Isa;
use std::ops::Range;

/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours.
pub(super) unsafe fn rows(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    match x.isa() {
        // SAFETY: `Activations::begin` has checked that the CPU has the level; the rest by the
        // caller's promise.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => unsafe { avx512::rows(w, rows, x, out, scratch.sums()) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if x.precision() == Precision::Bits16 => unsafe { avx2::rows(w, rows, x, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if x.precision() == Precision::Bits16 => unsafe { neon::rows(w, rows, x, out) },
        // SAFETY: by the caller's promise.
        _ if x.precision() == Precision::Bits16 => unsafe { dot::rows(w, rows, x, out) },
        // SAFETY: as above.
        _ => unsafe { gemm::rows(w, rows, x, out, scratch) },
    }
}
