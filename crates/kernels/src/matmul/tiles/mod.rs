//! Products of packed matrices.
//!
//! With AVX-512 VNNI a tile is multiplied as it lies, by one token or by a register block of
//! twelve. With AVX2 it is too for one token; for several, and in portable code always, weights
//! are unpacked by the same code as canonical ones, which only reads them from elsewhere.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_lines;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2_panel;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_lines;

use super::{Activations, MatmulScratch, Matrix, Output, dot, gemm};
use crate::isa::Isa;
use crate::tiles::TILE_ROWS;
use std::ops::Range;

/// Tokens whose activations lie together, and that are computed together.
pub(super) const BLOCK: usize = 12;

/// Tiles that all blocks of tokens pass over before the next: 256 rows, whose weights stay in the
/// second-level cache.
const TOGETHER: usize = 16;

/// Sums that are kept meanwhile.
pub(super) const SUMS: usize = TOGETHER * BLOCK * TILE_ROWS;

/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours.
pub(super) unsafe fn rows(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Activations,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    match x.isa() {
        // SAFETY: `Activations::begin` has checked that the CPU has the tier; the rest by the
        // caller's promise.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512::rows(w, rows, x, out, scratch.sums()) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if x.tokens() == 1 => unsafe { avx2::rows(w, rows, x, out) },
        _ if x.tokens() == 1 => {
            // SAFETY: the elements are ours by the caller's promise.
            dot::rows(w, rows.clone(), x, unsafe { out.row_mut(0, rows) });
        }
        // SAFETY: by the caller's promise.
        _ => unsafe { gemm::rows(w, rows, x, out, scratch) },
    }
}
