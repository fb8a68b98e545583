//! Fills a panel of the NEON product: from tiles, whose lines are those of a panel, and from rows, four at a time. The panel
//! holds codes minus their zero point, in one of two orders: [`FourColumns`] for `sdot`, and that of `neon_pairs` for `smmla`.

use super::Panel;
use crate::blocks::neon_rows::{RowsNeon, less_zero};
use crate::blocks::neon_tiles::TilesNeon;
use crate::matmul::Matrix;
use crate::matmul::sizes::PANEL_ROWS;
use crate::tiles::TILE_ROWS;
use std::arch::aarch64::*;
use std::ops::Range;

/// The arrangement of a panel. Rows are those of the panel; a line is four columns.
///
/// # Safety
/// For all functions: the panel has the lines and the rows, the first row is a multiple of four, and the panel has the scales and
/// offsets at `at`; the CPU has NEON.
pub(super) trait Order {
    /// Stores four rows of line `line`, which is even, and of the next line, as signed bytes.
    unsafe fn put_lines(p: &mut Panel, line: usize, row: usize, two: [uint8x16_t; 2]);

    /// Stores lines `line .. line + 4` of four rows, likewise.
    unsafe fn put_rows(p: &mut Panel, line: usize, row: usize, four: [uint8x16_t; 4]);

    /// Stores scales `at` of four rows.
    unsafe fn put_scales(p: &mut Panel, at: usize, row: usize, four: float32x4_t);

    /// Stores offsets `at` of four rows.
    unsafe fn put_offsets(p: &mut Panel, at: usize, row: usize, four: float32x4_t);
}

/// Lines of four columns with the rows one after the other.
pub(super) struct FourColumns;

impl Order for FourColumns {
    #[inline(always)]
    unsafe fn put_lines(p: &mut Panel, line: usize, row: usize, two: [uint8x16_t; 2]) {
        for (i, codes) in two.into_iter().enumerate() {
            // SAFETY: by the caller's promise.
            unsafe {
                let to = p.q.as_mut_ptr().add(((line + i) * PANEL_ROWS + row) * 4);
                vst1q_u8(to.cast(), codes);
            }
        }
    }

    #[inline(always)]
    unsafe fn put_rows(p: &mut Panel, line: usize, row: usize, four: [uint8x16_t; 4]) {
        // SAFETY: by the caller's promise.
        unsafe {
            let [a, b, c, d] = transposed(four);
            FourColumns::put_lines(p, line, row, [a, b]);
            FourColumns::put_lines(p, line + 2, row, [c, d]);
        }
    }

    #[inline(always)]
    unsafe fn put_scales(p: &mut Panel, at: usize, row: usize, four: float32x4_t) {
        // SAFETY: by the caller's promise.
        unsafe { vst1q_f32(p.d.as_mut_ptr().add(at * PANEL_ROWS + row), four) }
    }

    #[inline(always)]
    unsafe fn put_offsets(p: &mut Panel, at: usize, row: usize, four: float32x4_t) {
        // SAFETY: by the caller's promise.
        unsafe { vst1q_f32(p.m.as_mut_ptr().add(at * PANEL_ROWS + row), four) }
    }
}

/// # Safety
/// As for [`tiles`]; the CPU has NEON with dotprod.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn fill_tiles<Q: TilesNeon>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    // SAFETY: by the caller's promise.
    unsafe { tiles::<Q, FourColumns>(w, rows, k, p) }
}

/// # Safety
/// As for [`rows`]; the CPU has NEON with dotprod.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn fill_rows<Q: RowsNeon>(
    w: &Matrix<'_>,
    range: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    // SAFETY: by the caller's promise.
    unsafe { rows::<Q, FourColumns>(w, range, k, p) }
}

/// Fills a panel from tiles.
///
/// # Safety
/// `w` is packed, `rows` are whole tiles and at most those of a panel, `k` is a stretch of whole
/// blocks; the CPU has NEON.
#[inline(always)]
pub(super) unsafe fn tiles<Q: TilesNeon, O: Order>(
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
                    for j in (0..8).step_by(2) {
                        let a = Q::line(unit, &group, b % per_unit, j, half);
                        let b = Q::line(unit, &group, b % per_unit, j + 1, half);
                        for i in 0..2 {
                            let two = [less_zero::<Q>(a[i]), less_zero::<Q>(b[i])];
                            O::put_lines(p, 8 * g + j, row + 4 * i, two);
                        }
                    }
                    let scales = Q::scales(unit, &group, b % per_unit, half);
                    for i in 0..2 {
                        for h in 0..Q::SCALES {
                            O::put_scales(p, Q::SCALES * g + h, row + 4 * i, scales.d[h][i]);
                        }
                        for h in 0..Q::OFFSETS {
                            O::put_offsets(p, Q::OFFSETS * g + h, row + 4 * i, scales.m[h][i]);
                        }
                    }
                }
            }
        }
    }
}

/// Fills a panel from rows. The last row is repeated up to a multiple of eight.
///
/// # Safety
/// `w` is not packed, `rows` are at least one and at most those of a panel, `k` is a stretch of whole blocks; the CPU has NEON.
#[inline(always)]
pub(super) unsafe fn rows<Q: RowsNeon, O: Order>(
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
                let (mut d, mut m) = ([[0f32; 4]; 2], [[0f32; 4]; 2]);
                for (i, row) in row.into_iter().enumerate() {
                    let u = Q::group128(row, b);
                    for h in 0..2 {
                        codes[h][i] = less_zero::<Q>(u.q[h]);
                        (d[h][i], m[h][i]) = (u.d[h], u.m[h]);
                    }
                }
                for h in 0..2 {
                    O::put_rows(p, 8 * g + 4 * h, first, codes[h]);
                }
                for h in 0..Q::SCALES {
                    O::put_scales(p, Q::SCALES * g + h, first, vld1q_f32(d[h].as_ptr()));
                }
                for h in 0..Q::OFFSETS {
                    O::put_offsets(p, Q::OFFSETS * g + h, first, vld1q_f32(m[h].as_ptr()));
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
