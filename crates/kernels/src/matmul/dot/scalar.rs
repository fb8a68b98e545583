//! Portable dot products: the meaning that the SIMD levels must reproduce, in loops that compilers vectorise for any CPU.

use crate::blocks::{BlockFormat, Group32, WeightType, with_block};
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::{Layout, TILE_ROWS};
use std::ops::Range;

/// Tokens that share what is made of the weights.
const TOKENS: usize = 4;

/// # Safety
/// As for `dot::rows`.
pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    let ty = w.weight_type();
    // Blocks are unpacked from a tile for all of its rows.
    let together = if w.layout() == Layout::Tiles { TILE_ROWS } else { 1 };
    for first in (0..x.tokens()).step_by(TOKENS) {
        let count = TOKENS.min(x.tokens() - first);
        let mut some = [x.one(first); TOKENS];
        for (i, one) in some[..count].iter_mut().enumerate() {
            *one = x.one(first + i);
        }
        let mut r = rows.start;
        while r < rows.end {
            let end = rows.end.min((r / together + 1) * together);
            let mut sums = [[0f32; TILE_ROWS]; TOKENS];
            with_block!(
                ty,
                Q => quantized::<Q>(w, r..end, &some[..count], &mut sums),
                for (x, sums) in some[..count].iter().zip(&mut sums) {
                    match w.layout() {
                        Layout::Rows => sums[0] = float(ty, w.row(r), x.float(0)),
                        Layout::Tiles => float_tile(w, r, x.float(0), &mut sums[..end - r]),
                    }
                }
            );
            for (t, sums) in sums[..count].iter().enumerate() {
                // SAFETY: the elements are ours by the caller's promise.
                let out = unsafe { out.row_mut(first + t, r..end) };
                out.copy_from_slice(&sums[..end - r]);
            }
            r = end;
        }
    }
}

/// Bytes that 256 weights take at most.
const MOST_BYTES: usize = 288;

/// Σ_g a_g Σ_b (d_b·Σ (q − ZERO)·x + m_b·Σ x), g over 256 values, b over 32 or 16, of rows of one tile, or of one row.
#[inline(never)]
fn quantized<Q: BlockFormat>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &[Tokens<'_>],
    sums: &mut [[f32; TILE_ROWS]; TOKENS],
) {
    const { assert!(256 / Q::BLOCK * Q::BYTES <= MOST_BYTES) };
    let (cols, per_block) = (x[0].cols(), Q::BLOCK / 32);
    let mut unpacked = [0; TILE_ROWS * MOST_BYTES];
    let mut words = Words { q: [[0; 16]; 16], d: [0.0; 16], m: [0.0; 16] };
    for g in 0..cols.div_ceil(256) {
        let blocks = 256 * g / Q::BLOCK..cols.min(256 * g + 256) / Q::BLOCK;
        if w.layout() == Layout::Tiles {
            let units = unpacked.chunks_exact_mut(TILE_ROWS * Q::BYTES);
            for (at, unit) in blocks.clone().zip(units) {
                w.unpack_unit::<Q>(rows.start / TILE_ROWS, at, unit);
            }
        }
        for (i, r) in rows.clone().enumerate() {
            for (n, at) in blocks.clone().enumerate() {
                let block = match w.layout() {
                    Layout::Rows => &w.row(r)[at * Q::BYTES..][..Q::BYTES],
                    Layout::Tiles => {
                        &unpacked[(TILE_ROWS * n + r % TILE_ROWS) * Q::BYTES..][..Q::BYTES]
                    }
                };
                for b in 0..per_block {
                    words.put(per_block * n + b, Q::ZERO, &Q::group(block, b));
                }
            }
            for (x, sums) in x.iter().zip(&mut *sums) {
                sums[i] += words.products(Q::OFFSETS, g, x);
            }
        }
    }
}

/// 256 weights, or those that are left at the end of a row.
struct Words {
    /// Codes less their zero point.
    q: [[i16; 16]; 16],
    d: [f32; 16],
    m: [f32; 16],
}

impl Words {
    /// Group `b` of 32.
    #[inline(always)]
    fn put(&mut self, b: usize, zero: i32, u: &Group32) {
        for h in 0..2 {
            for i in 0..16 {
                self.q[2 * b + h][i] = i16::from(u.q[16 * h + i]) - zero as i16;
            }
            self.d[2 * b + h] = u.d[h];
            self.m[2 * b + h] = u.m[h];
        }
    }

    /// The products with values `256·g ..` of a token. A function of its own for all types, which have `offsets` for 32 weights.
    #[inline(never)]
    fn products(&self, offsets: usize, g: usize, x: &Tokens<'_>) -> f32 {
        let xq = x.q16()[256 * g..].as_chunks::<16>().0;
        let xq = &xq[..xq.len().min(16)];
        let mut terms = [0f32; 16];
        for ((term, (w, x)), d) in terms.iter_mut().zip(self.q.iter().zip(xq)).zip(&self.d) {
            let mut sum = 0;
            for i in 0..16 {
                sum += i32::from(w[i]) * i32::from(x[i]);
            }
            *term = d * sum as f32;
        }
        let sums = &x.sums_for(offsets)[8 * offsets * g..];
        let mut group = 0f32;
        for b in 0..xq.len() / 2 {
            group += terms[2 * b] + terms[2 * b + 1];
            for h in 0..offsets {
                group += self.m[2 * b + h] * sums[offsets * b + h];
            }
        }
        x.scale()[g] * group
    }
}

/// As [`float`], for rows from row `r` on, which are of one tile.
#[inline(never)]
fn float_tile(w: &Matrix<'_>, r: usize, x: &[f32], out: &mut [f32]) {
    let mut sums = [[0f32; TILE_ROWS]; 8];
    for (k, &x) in x.iter().enumerate() {
        let w = w.tile_floats(r / TILE_ROWS, k);
        for (sum, w) in sums[k % 8].iter_mut().zip(w) {
            *sum += w * x;
        }
    }
    for (i, out) in out.iter_mut().enumerate() {
        *out = sums.iter().map(|sums| sums[r % TILE_ROWS + i]).sum();
    }
}

/// Σ w·x in eight partial sums.
#[inline(always)]
pub(super) fn float(ty: WeightType, row: &[u8], x: &[f32]) -> f32 {
    match ty {
        WeightType::F32 => eight_sums(row, x, f32::from_le_bytes),
        WeightType::F16 => eight_sums(row, x, |b| f16_to_f32(u16::from_le_bytes(b))),
        _ => eight_sums(row, x, |b| bf16_to_f32(u16::from_le_bytes(b))),
    }
}

#[inline(always)]
fn eight_sums<const B: usize>(row: &[u8], x: &[f32], value: impl Fn([u8; B]) -> f32) -> f32 {
    let mut sums = [0f32; 8];
    let (eights, rest) = row.as_chunks::<B>().0.as_chunks::<8>();
    let (x_eights, x_rest) = x.as_chunks::<8>();
    for (w, x) in eights.iter().zip(x_eights) {
        for i in 0..8 {
            sums[i] += value(w[i]) * x[i];
        }
    }
    for (i, (w, x)) in rest.iter().zip(x_rest).enumerate() {
        sums[i] += value(*w) * x;
    }
    sums.iter().sum()
}
