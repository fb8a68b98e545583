//! Portable dot products: the meaning that the SIMD levels must reproduce.

use crate::blocks::{BlockFormat, MAX_BYTES, WeightType, with_block};
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::Layout;
use std::ops::Range;

/// # Safety
/// As for `dot::rows`.
pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    let ty = w.weight_type();
    for t in 0..x.tokens() {
        let x = &x.one(t);
        // SAFETY: the elements are ours by the caller's promise.
        let out = unsafe { out.row_mut(t, rows.clone()) };
        for (r, out) in rows.clone().zip(out) {
            *out = with_block!(ty, Q => quantized::<Q>(w, r, x), float_row(w, r, x.float(0)));
        }
    }
}

/// Σ_g a_g Σ_b (d_b·Σ (q − ZERO)·x + m_b·Σ x), g over 256 values, b over 32 or 16.
#[inline(never)]
fn quantized<Q: BlockFormat>(w: &Matrix<'_>, r: usize, x: &Tokens<'_>) -> f32 {
    let (xq, scale) = (x.q16(), x.scale());
    let per_block = Q::BLOCK / 32;
    let mut buffer = [0; MAX_BYTES];
    let mut total = 0f32;
    let mut group = 0f32;
    let count = xq.len() / 32;
    for i in 0..count / per_block {
        let block = w.block::<Q>(r, i, &mut buffer);
        for g in 0..per_block {
            let b = per_block * i + g;
            let u = Q::group(block, g);
            let xb = &xq[32 * b..][..32];
            let mut sums = [0i32; 2];
            for (i, &xq) in xb.iter().enumerate() {
                sums[i / 16] += (u.q[i] as i32 - Q::ZERO) * xq as i32;
            }
            group += u.d[0] * sums[0] as f32 + u.d[1] * sums[1] as f32;
            for h in 0..Q::OFFSETS {
                group += u.m[h] * x.sums_for(Q::OFFSETS)[Q::OFFSETS * b + h];
            }
            if b % 8 == 7 || b + 1 == count {
                total += scale[b / 8] * group;
                group = 0.0;
            }
        }
    }
    total
}

/// As [`float`], for a row in either layout.
fn float_row(w: &Matrix<'_>, r: usize, x: &[f32]) -> f32 {
    if w.layout() == Layout::Rows {
        return float(w.weight_type(), w.row(r), x);
    }
    let mut acc = [0f32; 8];
    for (k, &x) in x.iter().enumerate() {
        acc[k % 8] += w.tile_float(r, k) * x;
    }
    acc.iter().sum()
}

/// Σ w·x in eight partial sums.
#[inline(always)]
pub(super) fn float(ty: WeightType, row: &[u8], x: &[f32]) -> f32 {
    let mut acc = [0f32; 8];
    let size = ty.block_bytes();
    for (i, (b, &x)) in row.chunks_exact(size).zip(x).enumerate() {
        let w = match ty {
            WeightType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            WeightType::F16 => f16_to_f32(u16::from_le_bytes([b[0], b[1]])),
            _ => bf16_to_f32(u16::from_le_bytes([b[0], b[1]])),
        };
        acc[i % 8] += w * x;
    }
    acc.iter().sum()
}
