//! Tokens of 16 bits: dot products of rows with activations, the blocks read in place. What is made of the weights is shared by
//! a few tokens; the operations of each, and their order, are those of one alone.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
mod scalar;

use super::{Matrix, Output, Tokens};
use crate::isa::Isa;
use std::ops::Range;

/// `out[t, i] = Σ_k w[i, k] · x[t, k]` for `i` in `rows`; shapes were checked by the caller.
///
/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours.
pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    // SAFETY: `Activations::begin` has checked that the CPU has the level; the rest by the caller's promise.
    unsafe {
        match x.isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => avx512::rows(w, rows, x, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::rows(w, rows, x, out),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::rows(w, rows, x, out),
            _ => scalar::rows(w, rows, x, out),
        }
    }
}
