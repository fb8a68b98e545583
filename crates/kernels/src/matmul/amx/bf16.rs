//! Products of bf16 numbers, 16 tokens × 16 rows × 32 columns in one instruction.
//!
//! Panels of 32 rows × up to [`MAX_K`] columns are converted to bf16, scales and offsets included, from GGUF's rows or from
//! packed tiles, and stay in the second-level cache while all tokens pass over them. Both operands are rounded to nearest (ties
//! of activations to even, of weights away from zero); sums are f32, of 32 columns at a time. So there is no scale to apply to a
//! sum, on which integer products spend most of their time here, and the errors are smaller than those of 8-bit integers: 2⁻⁹ of
//! each factor, not of the largest in a group.
//!
//! A sum depends only on its token and its row, not on neighbouring tokens and rows or on the layout of the weights.

use super::bf16_panel;
use super::tile::{LINE, Registers, TILE};
use super::{GROUP, WHOLE};
use crate::matmul::gemm::stretches;
use crate::matmul::sizes::{MAX_K, PANEL_BYTES, PANEL_ROWS, PANELS, WIDE_TOKEN_BLOCK};
use crate::matmul::tiles::avx512::mask;
use crate::matmul::{MatmulScratch, Matrix, Output, Tokens};
use crate::tiles::Layout;
use std::arch::x86_64::*;
use std::ops::Range;

const _: () = assert!(WIDE_TOKEN_BLOCK == TILE && PANEL_ROWS == 2 * TILE);

/// Sums of two blocks of tokens with a panel's rows.
#[repr(align(64))]
struct BlockSums([[f32; PANEL_ROWS]; 2 * TILE]);

/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours; the CPU has the level; the tokens were packed
/// as bf16.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512bf16,fma,f16c"
)]
pub(in crate::matmul) unsafe fn rows(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    let MatmulScratch { panel, bf16, .. } = scratch;
    let bf16 = bf16.as_mut_ptr().cast::<u8>();
    let blocks = x.tokens().div_ceil(TILE);
    // A few tokens pass over a panel while it is in the first-level cache. With more tokens, the current ones are in that cache,
    // while several panels pass over them from the second-level cache.
    let together = if blocks <= 2 { 1 } else { PANELS };
    // Packed weights start at a tile.
    let first = match w.layout() {
        Layout::Tiles => rows.start / TILE * TILE,
        Layout::Rows => rows.start,
        Layout::Planes => unreachable!("planes are multiplied as tiles"),
    };
    // SAFETY: by the caller's promise; the scratch has the size of `PANELS` panels.
    unsafe {
        let registers = Registers::take(&WHOLE);
        for first in (first..rows.end).step_by(together * PANEL_ROWS) {
            let end = rows.end.min(first + together * PANEL_ROWS);
            let panels = || (first..end).step_by(PANEL_ROWS).enumerate();
            for k in stretches(w.cols(), MAX_K) {
                for (i, base) in panels() {
                    bf16_panel::fill(w, base, end, k.clone(), panel, bf16.add(PANEL_BYTES * i));
                }
                for block in (0..blocks).step_by(2) {
                    for (i, base) in panels() {
                        let rows = base.max(rows.start)..end.min(base + PANEL_ROWS);
                        let panel = bf16.add(PANEL_BYTES * i).cast_const();
                        let what = PanelOperands { base, rows, k: k.clone(), block, panel };
                        if block + 1 < blocks {
                            part::<2>(&registers, &what, x, out);
                        } else {
                            part::<1>(&registers, &what, x, out);
                        }
                    }
                }
            }
        }
    }
}

/// The operands of one step: some rows of a panel with one or two blocks of tokens.
struct PanelOperands {
    /// The panel's first row.
    base: usize,
    rows: Range<usize>,
    k: Range<usize>,
    /// The first block of tokens.
    block: usize,
    panel: *const u8,
}

/// Adds the products of `B` blocks of tokens to the output; those of the first columns overwrite it.
#[inline(always)]
unsafe fn part<const B: usize>(
    registers: &Registers,
    part: &PanelOperands,
    x: &Tokens<'_>,
    out: Output<'_>,
) {
    let PanelOperands { base, ref rows, ref k, block, .. } = *part;
    let tokens = (x.tokens() - TILE * block).min(B * TILE);
    // SAFETY: by the caller's promise: the output has these rows of these tokens.
    unsafe {
        if tokens == B * TILE && *rows == (base..base + PANEL_ROWS) {
            let to = out.at(TILE * block, base);
            products::<B>(registers, part, x, to.cast(), out.row_bytes());
            return;
        }
        // Part of it is outside the output.
        let mut sums = BlockSums([[0.0; PANEL_ROWS]; 2 * TILE]);
        if k.start != 0 {
            for (t, sums) in sums.0.iter_mut().enumerate().take(tokens) {
                for first in [0, TILE] {
                    let at = out.at(TILE * block + t, base + first);
                    let there = _mm512_maskz_loadu_ps(mask(rows, base + first), at);
                    _mm512_store_ps(sums[first..].as_mut_ptr(), there);
                }
            }
        }
        // Missing tokens have arbitrary values, whose sums are never read.
        products::<B>(registers, part, x, sums.0.as_mut_ptr().cast(), size_of_val(&sums.0[0]));
        for (t, sums) in sums.0.iter().enumerate().take(tokens) {
            for first in [0, TILE] {
                let at = out.at(TILE * block + t, base + first);
                let sums = _mm512_load_ps(sums[first..].as_ptr());
                _mm512_mask_storeu_ps(at, mask(rows, base + first), sums);
            }
        }
    }
}

/// As [`part`], for whole blocks and panels, where a token's sums begin `stride` bytes after those of the one before.
///
/// # Safety
/// `to` points to the sums of this many tokens, which hold the totals of the columns before.
#[inline(always)]
unsafe fn products<const B: usize>(
    registers: &Registers,
    part: &PanelOperands,
    x: &Tokens<'_>,
    to: *mut u8,
    stride: usize,
) {
    // Registers 0 to 3: sums of two blocks of tokens with two tiles of rows. 4, 5: tokens. 6, 7: rows.
    let PanelOperands { ref k, block, panel, .. } = *part;
    let at = |b: usize, half: usize| to.wrapping_add(TILE * stride * b + LINE * half);
    // SAFETY: by the caller's promise; there are only whole blocks of tokens and whole groups of columns.
    unsafe {
        if k.start == 0 {
            registers.zero::<0>();
            registers.zero::<1>();
            registers.zero::<2>();
            registers.zero::<3>();
        } else {
            registers.load::<0>(at(0, 0), stride);
            registers.load::<1>(at(0, 1), stride);
            if B == 2 {
                registers.load::<2>(at(1, 0), stride);
                registers.load::<3>(at(1, 1), stride);
            }
        }
        let first = x.bf16_block(block, k.start / GROUP);
        let second = if B == 2 { x.bf16_block(block + 1, k.start / GROUP) } else { first };
        for g in 0..k.len() / GROUP {
            let (x, w) = (TILE * LINE * g, 2 * TILE * LINE * g);
            registers.load::<4>(first.wrapping_add(x), LINE);
            registers.load::<6>(panel.add(w), LINE);
            registers.multiply::<0, 4, 6>();
            registers.load::<7>(panel.add(w + TILE * LINE), LINE);
            registers.multiply::<1, 4, 7>();
            if B == 2 {
                registers.load::<5>(second.wrapping_add(x), LINE);
                registers.multiply::<2, 5, 6>();
                registers.multiply::<3, 5, 7>();
            }
        }
        registers.store::<0>(at(0, 0), stride);
        registers.store::<1>(at(0, 1), stride);
        if B == 2 {
            registers.store::<2>(at(1, 0), stride);
            registers.store::<3>(at(1, 1), stride);
        }
    }
}
