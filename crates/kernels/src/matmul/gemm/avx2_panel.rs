//! Fills a panel of the AVX2 product: from tiles, whose lines are those of a panel, and from rows, eight at a time.
//!
//! The panel holds the codes as they are, or minus the zero point if the type is [`signed`]; for AVX-VNNI always [as they
//! are](as_they_are).

use super::Panel;
use super::avx2::signed;
use crate::blocks::BlockFormat;
use crate::blocks::avx2_rows::RowsAvx2;
use crate::blocks::avx2_tiles::TilesAvx2;
use crate::matmul::Matrix;
use crate::matmul::sizes::PANEL_ROWS;
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

/// Stores line `line` of eight rows, starting at the panel's row `row`.
///
/// # Safety
/// The panel has the line and the rows, `row` is a multiple of 8; the CPU has AVX2.
#[inline(always)]
unsafe fn put_line<Q: BlockFormat>(
    p: &mut Panel,
    line: usize,
    row: usize,
    codes: __m256i,
    less: i8,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        // Only these types have a zero point to subtract, at one of the levels.
        let codes =
            if signed::<Q>() { _mm256_sub_epi8(codes, _mm256_set1_epi8(less)) } else { codes };
        let to = p.q.as_mut_ptr().add((line * PANEL_ROWS + row) * 4);
        _mm256_store_si256(to.cast(), codes);
    }
}

/// The two functions that fill a panel of one level, with `$less` subtracted from the codes of a type.
macro_rules! fill {
    (|$Q:ident| $less:expr) => {
        /// # Safety
        /// As for [`tiles_less`].
        pub(in crate::matmul::gemm) unsafe fn fill_tiles<$Q: TilesAvx2>(
            w: &Matrix<'_>,
            rows: Range<usize>,
            k: Range<usize>,
            p: &mut Panel,
        ) {
            // SAFETY: by the caller's promise.
            unsafe { tiles_less::<$Q>(w, rows, k, p, $less) }
            p.zero = if $less == 0 { $Q::ZERO } else { 0 };
        }

        /// # Safety
        /// As for [`rows_less`].
        pub(in crate::matmul::gemm) unsafe fn fill_rows<$Q: RowsAvx2>(
            w: &Matrix<'_>,
            rows: Range<usize>,
            k: Range<usize>,
            p: &mut Panel,
        ) {
            // SAFETY: by the caller's promise.
            unsafe { rows_less::<$Q>(w, rows, k, p, $less) }
            p.zero = if $less == 0 { $Q::ZERO } else { 0 };
        }
    };
}

fill!(|Q| if signed::<Q>() { Q::ZERO as u8 as i8 } else { 0 });

/// The same for AVX-VNNI: the codes as they are, for every type.
pub(super) mod as_they_are {
    use super::*;

    fill!(|Q| 0);
}

/// # Safety
/// `w` is packed, `rows` are whole tiles and at most those of a panel, `k` is a stretch of whole
/// blocks; the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles_less<Q: TilesAvx2>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
    less: i8,
) {
    let per_unit = Q::BLOCK / 32;
    // SAFETY: inside the tiles and the panel, by the caller's promise.
    unsafe {
        for (first, i) in (rows.start / TILE_ROWS..rows.end / TILE_ROWS).enumerate() {
            let tile = w.tile(i).as_ptr();
            for half in 0..2 {
                let row = TILE_ROWS * first + 8 * half;
                for (g, b) in (k.start / 32..k.end / 32).enumerate() {
                    let unit = tile.add(b / per_unit * TILE_ROWS * Q::BYTES);
                    let group = Q::begin(unit, b % per_unit, half);
                    for j in 0..8 {
                        let codes = Q::line(unit, &group, b % per_unit, j, half);
                        put_line::<Q>(p, 8 * g + j, row, codes, less);
                    }
                    let scales = Q::scales(unit, &group, b % per_unit, half);
                    for h in 0..Q::SCALES {
                        let at = (Q::SCALES * g + h) * PANEL_ROWS + row;
                        _mm256_store_ps(p.d.as_mut_ptr().add(at), scales.d[h]);
                    }
                    for h in 0..Q::OFFSETS {
                        let at = (Q::OFFSETS * g + h) * PANEL_ROWS + row;
                        _mm256_store_ps(p.m.as_mut_ptr().add(at), scales.m[h]);
                    }
                }
            }
        }
    }
}

/// The last row is repeated up to a multiple of eight.
///
/// # Safety
/// `w` is not packed, `rows` are at least one and at most those of a panel, `k` is a stretch of whole blocks; the CPU has AVX2,
/// FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_less<Q: RowsAvx2>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
    less: i8,
) {
    // SAFETY: inside the rows and the panel, by the caller's promise.
    unsafe {
        for first in (0..rows.len()).step_by(8) {
            let row: [*const u8; 8] =
                std::array::from_fn(|i| w.row((rows.start + first + i).min(rows.end - 1)).as_ptr());
            for (g, b) in (k.start / 32..k.end / 32).enumerate() {
                let mut codes = [_mm256_setzero_si256(); 8];
                for (i, (codes, row)) in codes.iter_mut().zip(row).enumerate() {
                    let u = Q::group256(row, b);
                    *codes = u.q;
                    for h in 0..Q::SCALES {
                        p.d[(Q::SCALES * g + h) * PANEL_ROWS + first + i] = u.d[h];
                    }
                    for h in 0..Q::OFFSETS {
                        p.m[(Q::OFFSETS * g + h) * PANEL_ROWS + first + i] = u.m[h];
                    }
                }
                for (j, line) in transposed(codes).into_iter().enumerate() {
                    put_line::<Q>(p, 8 * g + j, first, line, less);
                }
            }
        }
    }
}

/// `[8 rows][8 lines]` of 32 bits → `[8 lines][8 rows]`.
#[inline(always)]
unsafe fn transposed(v: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the callers' CPU has AVX2.
    unsafe {
        let [a, b, c, d, e, f, g, h] = v;
        // Pairs of rows, then four rows: lines l and l + 4 in the halves of a register.
        let two = |a, b| [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
        let four = |[a, b]: [__m256i; 2], [c, d]: [__m256i; 2]| {
            [
                _mm256_unpacklo_epi64(a, c),
                _mm256_unpackhi_epi64(a, c),
                _mm256_unpacklo_epi64(b, d),
                _mm256_unpackhi_epi64(b, d),
            ]
        };
        let upper = four(two(a, b), two(c, d));
        let lower = four(two(e, f), two(g, h));
        let mut out = v;
        for l in 0..4 {
            out[l] = _mm256_permute2x128_si256::<0x20>(upper[l], lower[l]);
            out[l + 4] = _mm256_permute2x128_si256::<0x31>(upper[l], lower[l]);
        }
        out
    }
}
