//! The portable panel and its product.

use super::Panel;
use crate::blocks::{BlockFormat, MAX_BYTES, with_block};
use crate::dequant::dequantize_row;
use crate::matmul::sizes::PANEL_ROWS;
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::Layout;
use std::ops::Range;

/// # Safety
/// As for `gemm::rows`.
pub(super) unsafe fn panel(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &mut Panel,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        with_block!(
            w.weight_type(),
            Q => {
                fill::<Q>(w, rows.clone(), k.clone(), p);
                multiply::<Q>(rows, k, x, out, p);
            },
            {
                fill_float(w, rows.clone(), k.clone(), p);
                multiply_float(rows, k, x, out, p);
            }
        )
    }
}

/// Unpacks the panel.
#[inline(never)]
fn fill<Q: BlockFormat>(w: &Matrix<'_>, rows: Range<usize>, k: Range<usize>, p: &mut Panel) {
    let per_block = Q::BLOCK / 32;
    for (i, r) in rows.enumerate() {
        let mut buffer = [0; MAX_BYTES];
        for (n, at) in (k.start / Q::BLOCK..k.end / Q::BLOCK).enumerate() {
            let block = w.block::<Q>(r, at, &mut buffer);
            for g in 0..per_block {
                group::<Q>(block, g, per_block * n + g, i, p);
            }
        }
    }
}

/// Group `g` of a block, which is group `b` of the panel, of the panel's row `i`.
#[inline(always)]
fn group<Q: BlockFormat>(block: &[u8], g: usize, b: usize, i: usize, p: &mut Panel) {
    let u = Q::group(block, g);
    let mut sums = [0i32; 2];
    for (j, q) in u.q.chunks_exact(4).enumerate() {
        for (l, &q) in q.iter().enumerate() {
            let q = q as i32 - Q::ZERO;
            sums[j / 4] += q;
            p.q[((8 * b + j) * PANEL_ROWS + i) * 4 + l] = q as i8;
        }
    }
    if Q::SCALES == 2 {
        for h in 0..2 {
            p.d[(2 * b + h) * PANEL_ROWS + i] = u.d[h];
            p.z[(2 * b + h) * PANEL_ROWS + i] = -128 * sums[h];
        }
    } else {
        p.d[b * PANEL_ROWS + i] = u.d[0];
        p.z[b * PANEL_ROWS + i] = -128 * (sums[0] + sums[1]);
    }
    for h in 0..Q::OFFSETS {
        p.m[(Q::OFFSETS * b + h) * PANEL_ROWS + i] = u.m[h];
    }
}

/// # Safety
/// As for `gemm::rows`.
#[inline(never)]
unsafe fn multiply<Q: BlockFormat>(
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &Panel,
) {
    let (cols, n) = (x.cols(), rows.len());
    for t in 0..x.tokens() {
        // SAFETY: by the caller's promise.
        let out = unsafe { out.row_mut(t, rows.clone()) };
        let mut acc = [0f32; PANEL_ROWS];
        for (b, g) in (k.start / 32..k.end / 32).enumerate() {
            // SAFETY: the integers of token t.
            let xq = unsafe { std::slice::from_raw_parts(x.q8().add(t * cols + 32 * g), 32) };
            let a = x.scale()[t * cols / 32 + g];
            for i in 0..n {
                let mut sums = [0i32; 2];
                for (j, &xq) in xq.iter().enumerate() {
                    let q = p.q[((8 * b + j / 4) * PANEL_ROWS + i) * 4 + j % 4];
                    sums[j / 16] += q as i32 * (xq as u8 as i32 - 128);
                }
                acc[i] += if Q::SCALES == 2 {
                    a * (p.d[2 * b * PANEL_ROWS + i] * sums[0] as f32
                        + p.d[(2 * b + 1) * PANEL_ROWS + i] * sums[1] as f32)
                } else {
                    a * p.d[b * PANEL_ROWS + i] * (sums[0] + sums[1]) as f32
                };
                for h in 0..Q::OFFSETS {
                    let s = x.sums_for(Q::OFFSETS)[Q::OFFSETS * (t * cols / 32 + g) + h];
                    acc[i] += p.m[(Q::OFFSETS * b + h) * PANEL_ROWS + i] * s;
                }
            }
        }
        for (out, acc) in out.iter_mut().zip(acc) {
            *out = if k.start == 0 { acc } else { *out + acc };
        }
    }
}

/// Unpacks a float panel `[K][32]`.
pub(super) fn fill_float(w: &Matrix<'_>, rows: Range<usize>, k: Range<usize>, p: &mut Panel) {
    let size = w.weight_type().block_bytes();
    let mut row = [0f32; super::MAX_K_FLOAT];
    for (i, r) in rows.enumerate() {
        let row = &mut row[..k.len()];
        match w.layout() {
            Layout::Rows => {
                let bytes = &w.row(r)[k.start * size..k.end * size];
                dequantize_row(w.weight_type(), bytes, row);
            }
            Layout::Tiles => {
                for (v, k) in row.iter_mut().zip(k.clone()) {
                    *v = w.tile_float(r, k);
                }
            }
        }
        for (j, &v) in row.iter().enumerate() {
            p.float[j * PANEL_ROWS + i] = v;
        }
    }
}

/// # Safety
/// As for `gemm::rows`.
#[inline(always)]
pub(super) unsafe fn multiply_float(
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &Panel,
) {
    for t in 0..x.tokens() {
        // SAFETY: by the caller's promise.
        let out = unsafe { out.row_mut(t, rows.clone()) };
        let mut acc = [0f32; PANEL_ROWS];
        for (w, &x) in p.float.chunks_exact(PANEL_ROWS).zip(&x.float(t)[k.clone()]) {
            for (acc, &w) in acc.iter_mut().zip(w) {
                *acc += w * x;
            }
        }
        for (out, acc) in out.iter_mut().zip(acc) {
            *out = if k.start == 0 { acc } else { *out + acc };
        }
    }
}
