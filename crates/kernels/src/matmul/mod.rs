//! `y[t, n] = Σ_k W[n, k] · x[t, k]` with `W` in place: in GGUF's blocks, or packed in tiles.
//!
//! There are two ways, by the [`Precision`] that the activations were packed in:
//!
//! - **16 bits** ([`dot`]), a few tokens at a time: sixteen rows of blocks are packed into units of a tile in the first-level cache, or multiplied as
//!   they are and their lanes added. The activations are rounded to 16-bit integers with one scale per 256, which costs no more than 8 bits would when
//!   memory is the limit, and is several hundred times more exact.
//! - **8 bits** ([`gemm`]), any number of tokens: a panel of 32 rows is unpacked into a cache-sized buffer of interleaved bytes,
//!   then a register-blocked integer kernel runs over all tokens. Activations are 8-bit with one scale per 32.
//!
//! Packed matrices ([`tiles`]) need neither rows nor panels: a tile is multiplied in place, with
//! the same activations in both cases.
//!
//! With AMX, 8-bit products use tiles of bytes, which have the same bits; on request a prompt's activations and weights are
//! rounded to bf16 instead ([`amx`]).
//!
//! Otherwise weights and their scales are used exactly as stored; sums are exact integers within a group of 32 (16 for a type
//! with a scale per 16) and f32 across groups. F32, F16 and BF16 weights are multiplied in f32 with unrounded activations.
//!
//! A product that is not finite is NaN: an infinite one could become an ordinary number in what follows (a sigmoid, a clamp), and a weight
//! that is not finite would change an answer without a trace.
//!
//! A piece of work is a range of rows for all tokens; pieces write disjoint elements of the output and are pure functions of
//! their inputs.

// The kernels index several arrays with one counter; iterators over one of them would hide that.
#![allow(clippy::needless_range_loop)]

mod activations;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub mod best;
mod dot;
mod gemm;
mod matrix;
#[cfg(target_arch = "x86_64")]
mod prefetch;
mod sizes;
mod tiles;

pub use activations::{ActSlots, ActivationFormats, Activations, Precision, RowCounts, Tokens};
pub use gemm::MatmulScratch;
pub use matrix::{Matrix, MatrixError, Output};
pub(crate) use sizes::{MAX_K, cut_at_multiples};

use crate::tiles::{Layout, TILE_ROWS};
use crate::vec;
use std::ops::Range;

/// Number of rows of a sensible piece of work: small enough to balance a slow thread, large enough (about 64 KiB of weights) to
/// amortise taking it. A multiple of 32.
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
/// If `x` does not have as many columns as `w`, was packed without the format that `w` needs ([`ActivationFormats`]), cannot be
/// multiplied together ([`Activations::tokens_in`]), `rows` exceeds the matrix, or `out` is too small.
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
    if w.layout() == Layout::Planes {
        // SAFETY: by the caller's promise.
        return unsafe { in_planes(w, rows, x, out, scratch) };
    }
    let all = rows.clone();
    match x.precision() {
        // SAFETY: sizes were checked above, the elements are ours by the caller's promise; `Activations::begin` has checked that
        // the CPU has the level.
        #[cfg(target_arch = "x86_64")]
        Precision::Bits8 if x.as_bf16(w.kind()) => unsafe {
            amx::bf16::rows(w, rows, x, out, scratch);
        },
        // SAFETY: sizes were checked above, the elements are ours by the caller's promise.
        Precision::Bits16 => unsafe { few(w, rows, x, out, scratch) },
        // SAFETY: as above.
        Precision::Bits8 if w.layout() == Layout::Tiles => unsafe {
            tiles::rows(w, rows, x, out, scratch);
        },
        // SAFETY: as above.
        Precision::Bits8 => unsafe { gemm::rows(w, rows, x, out, scratch) },
    }
    for t in 0..x.tokens() {
        // SAFETY: as above; no other references to the elements are left.
        let out = unsafe { out.row_mut(t, all.clone()) };
        if w.scale != 1.0 {
            vec::scale(x.isa(), out, w.scale);
        }
        vec::infinite_to_nan(x.isa(), out);
    }
}

/// Multiplies with rows in planes, a panel at a time as tiles.
///
/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours.
unsafe fn in_planes(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    let mut memory = std::mem::take(&mut scratch.tiles);
    for rows in sizes::cut_at_multiples(rows, sizes::PANEL_ROWS) {
        let first = rows.start / TILE_ROWS * TILE_ROWS;
        let tiles = w.as_tiles(x.isa(), first..rows.end.next_multiple_of(TILE_ROWS), &mut memory);
        // SAFETY: by the caller's promise.
        unsafe {
            matmul(
                &tiles,
                rows.start - first..rows.end - first,
                *x,
                out.beginning_at(first),
                scratch,
            );
        }
    }
    scratch.tiles = memory;
}

/// Rows that all 16-bit tokens are multiplied with before the next rows: they stay in the second-level cache. A multiple of the
/// rows of a tile.
const ROWS_OF_FEW: usize = 64;

/// Multiplies 16-bit tokens, none of which depends on the others.
///
/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours.
unsafe fn few(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    let together = if x.tokens() == 1 { usize::MAX } else { ROWS_OF_FEW };
    for rows in sizes::cut_at_multiples(rows, together) {
        // SAFETY: the elements are ours by the caller's promise.
        unsafe {
            match w.layout() {
                Layout::Tiles => tiles::rows(w, rows, x, out, scratch),
                Layout::Rows => dot::rows(w, rows, x, out),
                Layout::Planes => unreachable!("planes are multiplied as tiles"),
            }
        }
    }
}
