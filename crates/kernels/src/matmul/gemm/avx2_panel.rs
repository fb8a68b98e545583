//! Filling a panel of the AVX2 product: from tiles, whose lines are what a panel holds but for the
//! zero point, and from rows, 32 weights at a time.

use super::Panel;
use crate::blocks::avx2_rows::RowsAvx2;
use crate::blocks::avx2_tiles::TilesAvx2;
use crate::matmul::Matrix;
use crate::matmul::sizes::PANEL_ROWS;
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

/// Whether [`fill_tiles`] can fill the panel of `rows`: whole tiles from a tile's beginning.
pub(super) fn fits(rows: &Range<usize>) -> bool {
    rows.start.is_multiple_of(TILE_ROWS) && rows.end.is_multiple_of(TILE_ROWS)
}

/// # Safety
/// `w` is packed, `rows` are at most those of a panel and [`fits`], `k` is a stretch of whole
/// blocks; the CPU has AVX2, FMA and F16C.
#[inline(always)]
pub(super) unsafe fn fill_tiles<Q: TilesAvx2>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    let per_unit = Q::BLOCK / 32;
    // SAFETY: inside the tiles and the panel, by the caller's promise.
    unsafe {
        let zero = _mm256_set1_epi8(Q::ZERO as u8 as i8);
        for (first, i) in (rows.start / TILE_ROWS..rows.end / TILE_ROWS).enumerate() {
            let tile = w.tile(i).as_ptr();
            for half in 0..2 {
                let row = TILE_ROWS * first + 8 * half;
                for (g, b) in (k.start / 32..k.end / 32).enumerate() {
                    let unit = tile.add(b / per_unit * TILE_ROWS * Q::BYTES);
                    let group = Q::begin(unit, b % per_unit, half);
                    let mut sums = [_mm256_setzero_si256(); 2];
                    for j in 0..8 {
                        let q = Q::line(unit, &group, b % per_unit, j, half);
                        let q = _mm256_sub_epi8(q, zero);
                        let to = p.q.as_mut_ptr().add(((8 * g + j) * PANEL_ROWS + row) * 4);
                        _mm256_storeu_si256(to.cast(), q);
                        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
                        let four = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                        sums[j / 4] = _mm256_add_epi32(sums[j / 4], four);
                    }
                    // −128 · Σ q
                    let z =
                        |sum| _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32::<7>(sum));
                    let scales = Q::scales(unit, &group, b % per_unit, half);
                    if Q::SCALES == 2 {
                        for part in 0..2 {
                            let at = (2 * g + part) * PANEL_ROWS + row;
                            _mm256_storeu_ps(p.d.as_mut_ptr().add(at), scales.d[part]);
                            _mm256_storeu_si256(p.z.as_mut_ptr().add(at).cast(), z(sums[part]));
                        }
                    } else {
                        let at = g * PANEL_ROWS + row;
                        let sum = _mm256_add_epi32(sums[0], sums[1]);
                        _mm256_storeu_ps(p.d.as_mut_ptr().add(at), scales.d[0]);
                        _mm256_storeu_si256(p.z.as_mut_ptr().add(at).cast(), z(sum));
                    }
                    for h in 0..Q::OFFSETS {
                        let at = (Q::OFFSETS * g + h) * PANEL_ROWS + row;
                        _mm256_storeu_ps(p.m.as_mut_ptr().add(at), scales.m[h]);
                    }
                }
            }
        }
    }
}

/// # Safety
/// `w` is not packed, `rows` are at most those of a panel, `k` is a stretch of whole blocks; the CPU has
/// AVX2, FMA and F16C.
#[inline(always)]
pub(super) unsafe fn fill_rows<Q: RowsAvx2>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    // SAFETY: inside the rows and the panel, by the caller's promise.
    unsafe {
        let zero = _mm256_set1_epi8(Q::ZERO as u8 as i8);
        let ones = _mm256_set1_epi16(1);
        for (i, r) in rows.enumerate() {
            let row = w.row(r).as_ptr();
            for (g, b) in (k.start / 32..k.end / 32).enumerate() {
                let u = Q::group256(row, b);
                let q = _mm256_sub_epi8(u.q, zero);
                let mut lines = [0i32; 8];
                _mm256_storeu_si256(lines.as_mut_ptr().cast(), q);
                let to = p.q.as_mut_ptr().cast::<i32>().add(8 * g * PANEL_ROWS + i);
                for (j, line) in lines.iter().enumerate() {
                    *to.add(j * PANEL_ROWS) = *line;
                }
                // Sums of four weights in each lane, the first 16 weights in the lower half.
                let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
                let four = _mm256_madd_epi16(pairs, ones);
                let sums = [_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four)];
                let sums = sums.map(|v| {
                    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
                    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
                });
                if Q::SCALES == 2 {
                    for h in 0..2 {
                        p.d[(2 * g + h) * PANEL_ROWS + i] = u.d[h];
                        p.z[(2 * g + h) * PANEL_ROWS + i] = -128 * sums[h];
                    }
                } else {
                    p.d[g * PANEL_ROWS + i] = u.d[0];
                    p.z[g * PANEL_ROWS + i] = -128 * (sums[0] + sums[1]);
                }
                for h in 0..Q::OFFSETS {
                    p.m[(Q::OFFSETS * g + h) * PANEL_ROWS + i] = u.m[h];
                }
            }
        }
    }
}
