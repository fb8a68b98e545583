//! `y[t, n] = Σ_k W[n, k] · x[t, k]` with `W` in place: in GGUF's blocks, or packed in tiles.
//!
//! Two ways, by the [`Precision`] that the activations were packed in:
//!
//! - **16 bits**, one token ([`dot`]): rows of blocks are multiplied in place. The activations are
//!   rounded to 16-bit integers with one scale per 256, which costs no more than 8 bits would
//!   where memory is the limit, and is some hundred times more exact.
//! - **8 bits**, several tokens ([`gemm`]): a panel of 32 rows is unpacked into a cache-sized buffer of
//!   interleaved bytes, then a register-blocked integer kernel runs over all tokens. Activations
//!   are 8-bit with one scale per 32.
//!
//! Packed matrices ([`tiles`]) need neither rows nor panels: a tile is multiplied in place, with
//! the same activations in both cases.
//!
//! Weights and their scales are used exactly as stored in both; sums are exact integers within a
//! group of 32 (16 where a type has a scale for each) and f32 across groups. F32, F16 and BF16 weights are multiplied in
//! f32 with unrounded activations.
//!
//! A piece of work is a range of rows for all tokens; pieces write disjoint elements of the
//! output and are pure functions of their inputs.

// The kernels index several arrays with one counter; iterators over one of them would hide that.
#![allow(clippy::needless_range_loop)]

mod activations;
mod dot;
mod gemm;
mod matrix;
#[cfg(target_arch = "x86_64")]
mod prefetch;
mod sizes;
mod tiles;

pub use activations::{ActSlots, ActivationFormats, Activations, Precision, Tokens};
pub use gemm::MatmulScratch;
pub use matrix::{Matrix, MatrixError, Output};

use crate::tiles::Layout;
use std::ops::Range;

/// How many rows make a sensible piece of work: small enough to balance a slow thread, large
/// enough (some 64 KiB of weights) to amortise taking it. A multiple of 32.
pub fn piece_rows(w: &Matrix<'_>, tokens: usize) -> usize {
    if tokens > 1 {
        return sizes::PANEL_ROWS;
    }
    let rows = (64 * 1024 / w.row_bytes.max(1)).clamp(32, 1024);
    rows.next_multiple_of(32)
}

/// Computes `out[t, n]` for `n` in `rows` and every token `t` of `x`.
///
/// # Safety
/// While it runs, no other thread may access the elements `rows` of `out`.
///
/// # Panics
/// If `x` has not as many columns as `w`, was packed without the format that `w` needs
/// ([`ActivationFormats`]), is not what the kernels take together ([`Activations::tokens_in`]), `rows` exceeds the matrix, or `out` is too small.
pub unsafe fn matmul<'a>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: impl Into<Tokens<'a>>,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    let x = &x.into();
    assert!(rows.start <= rows.end && rows.end <= w.rows(), "rows outside the matrix");
    assert_eq!(w.cols(), x.cols(), "the activations do not fit the matrix");
    let packed = x.formats().covers(w.kind());
    assert!(packed, "the activations were not packed for {}", w.weight_type());
    assert!(x.suit(w.kind()), "tokens that cannot be multiplied together");
    assert!(out.covers(x.tokens(), &rows), "the output does not have these rows");
    let all = rows.clone();
    if w.layout() == Layout::Tiles {
        // SAFETY: sizes were checked above, the elements are ours by the caller's promise.
        unsafe { tiles::rows(w, rows, x, out, scratch) };
    } else if x.precision() == Precision::Bits16 {
        // SAFETY: the elements are ours by the caller's promise.
        let out = unsafe { out.row_mut(0, rows.clone()) };
        dot::rows(w, rows, x, out);
    } else {
        // SAFETY: sizes were checked above, the elements are ours by the caller's promise.
        unsafe { gemm::rows(w, rows, x, out, scratch) };
    }
    if w.scale != 1.0 {
        for t in 0..x.tokens() {
            // SAFETY: as above; nothing else refers to the elements any more.
            let out = unsafe { out.row_mut(t, all.clone()) };
            out.iter_mut().for_each(|y| *y *= w.scale);
        }
    }
}
