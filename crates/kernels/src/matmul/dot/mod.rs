//! One token: dot products of rows with 16-bit activations, the blocks read in place.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use super::{Matrix, Tokens};
use crate::isa::Isa;
use std::ops::Range;

/// `out[i] = Σ_k w[rows.start + i, k] · x[0, k]`; shapes were checked by the caller.
pub(super) fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: &mut [f32]) {
    match x.isa() {
        // SAFETY: `Activations::begin` has checked that the CPU has the level.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512::rows(w, rows, x, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::rows(w, rows, x, out) },
        _ => scalar::rows(w, rows, x, out),
    }
}
