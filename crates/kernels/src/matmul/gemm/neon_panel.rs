//! Filling a panel of the NEON product: from tiles, whose lines are what a panel holds, and from rows, four at a time. The panel
//! holds codes less their zero point.

use super::Panel;
use crate::blocks::BlockFormat;
use crate::blocks::neon_rows::{RowsNeon, less_zero};
use crate::blocks::neon_tiles::TilesNeon;
use crate::matmul::Matrix;
use crate::matmul::sizes::PANEL_ROWS;
use crate::tiles::TILE_ROWS;
use std::arch::aarch64::*;
use std::ops::Range;

/// Stores line `line` of four rows from the panel's row `row` on.
///
/// # Safety
/// The panel has the line and the rows; the CPU has NEON.
#[inline(always)]
unsafe fn put_line<Q: BlockFormat>(p: &mut Panel, line: usize, row: usize, codes: uint8x16_t) {
    // SAFETY: by the caller's promise.
    unsafe {
        let to = p.q.as_mut_ptr().add((line * PANEL_ROWS + row) * 4);
        vst1q_u8(to.cast(), less_zero::<Q>(codes));
    }
}

/// # Safety
/// `w` is packed, `rows` are whole tiles and at most those of a panel, `k` is a stretch of whole
/// blocks; the CPU has NEON.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn fill_tiles<Q: TilesNeon>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    let per_unit = Q::BLOCK / 32;
    // SAFETY: inside the tiles and the panel, by the caller's promise.
    unsafe {
        for (first, i) in (rows.start / TILE_ROWS..rows.end / TILE_ROWS).enumerate() {
            let tile = w.tile(i).as_ptr();
            for (g, b) in (k.start / 32..k.end / 32).enumerate() {
                let unit = tile.add(b / per_unit * TILE_ROWS * Q::BYTES);
                for half in 0..2 {
                    let row = TILE_ROWS * first + 8 * half;
                    let group = Q::begin(unit, b % per_unit, half);
                    for j in 0..8 {
                        let codes = Q::line(unit, &group, b % per_unit, j, half);
                        put_line::<Q>(p, 8 * g + j, row, codes[0]);
                        put_line::<Q>(p, 8 * g + j, row + 4, codes[1]);
                    }
                    let scales = Q::scales(unit, &group, b % per_unit, half);
                    for h in 0..Q::SCALES {
                        let at = (Q::SCALES * g + h) * PANEL_ROWS + row;
                        vst1q_f32(p.d.as_mut_ptr().add(at), scales.d[h][0]);
                        vst1q_f32(p.d.as_mut_ptr().add(at + 4), scales.d[h][1]);
                    }
                    for h in 0..Q::OFFSETS {
                        let at = (Q::OFFSETS * g + h) * PANEL_ROWS + row;
                        vst1q_f32(p.m.as_mut_ptr().add(at), scales.m[h][0]);
                        vst1q_f32(p.m.as_mut_ptr().add(at + 4), scales.m[h][1]);
                    }
                }
            }
        }
    }
}

/// The last rows are repeated up to a multiple of eight.
///
/// # Safety
/// `w` is not packed, `rows` are at most those of a panel and not none, `k` is a stretch of whole blocks; the CPU has
/// NEON.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn fill_rows<Q: RowsNeon>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    // SAFETY: inside the rows and the panel, by the caller's promise.
    unsafe {
        for first in (0..rows.len().next_multiple_of(8)).step_by(4) {
            let row: [*const u8; 4] =
                std::array::from_fn(|i| w.row((rows.start + first + i).min(rows.end - 1)).as_ptr());
            for (g, b) in (k.start / 32..k.end / 32).enumerate() {
                let mut codes = [[vdupq_n_u8(0); 4]; 2];
                for (i, row) in row.into_iter().enumerate() {
                    let u = Q::group128(row, b);
                    (codes[0][i], codes[1][i]) = (u.q[0], u.q[1]);
                    for h in 0..Q::SCALES {
                        p.d[(Q::SCALES * g + h) * PANEL_ROWS + first + i] = u.d[h];
                    }
                    for h in 0..Q::OFFSETS {
                        p.m[(Q::OFFSETS * g + h) * PANEL_ROWS + first + i] = u.m[h];
                    }
                }
                for (part, codes) in codes.into_iter().enumerate() {
                    for (j, line) in transposed(codes).into_iter().enumerate() {
                        put_line::<Q>(p, 8 * g + 4 * part + j, first, line);
                    }
                }
            }
        }
    }
}

/// `[4 rows][4 lines]` of 32 bits → `[4 lines][4 rows]`.
#[inline(always)]
unsafe fn transposed(v: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    // SAFETY: the callers' CPU has NEON.
    unsafe {
        let [a, b, c, d] = v.map(|v| vreinterpretq_u32_u8(v));
        // Lines 0 and 2, or 1 and 3, of two rows.
        let (ab, cd) = ([vtrn1q_u32(a, b), vtrn2q_u32(a, b)], [vtrn1q_u32(c, d), vtrn2q_u32(c, d)]);
        let wide = |v: uint32x4_t| vreinterpretq_u64_u32(v);
        let line = |l: usize| {
            let (ab, cd) = (wide(ab[l % 2]), wide(cd[l % 2]));
            let both = if l < 2 { vtrn1q_u64(ab, cd) } else { vtrn2q_u64(ab, cd) };
            vreinterpretq_u8_u64(both)
        };
        [line(0), line(1), line(2), line(3)]
    }
}
