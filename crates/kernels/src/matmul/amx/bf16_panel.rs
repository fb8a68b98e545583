//! Fills a panel of bf16 weights: `[K/32][2 tiles][16 pairs of columns][16 rows][2]`.

use super::GROUP;
use super::tile::{LINE, TILE};
use crate::blocks::avx512_tiles::{Scales, TilesAvx512};
use crate::blocks::{BlockFormat, with_block, with_tiles};
use crate::matmul::Matrix;
use crate::matmul::gemm::{Panel, avx512_panel};
use crate::matmul::prefetch::{self, PrefetchAddress};
use crate::matmul::sizes::PANEL_ROWS;
use crate::matmul::tiles::avx512::{AHEAD, COLUMN, ask};
use crate::tiles::{Layout, TILE_ROWS};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of a tile of one group.
const TILE_BYTES: usize = TILE * LINE;

/// Fills the panel at `to` with columns `k` of up to 32 rows from row `base` on, where a tile of packed weights begins. Rows from
/// `end` on are unspecified.
///
/// # Safety
/// There is memory for a panel, which begins at a cache line; the rows and columns are inside the matrix, which is bf16 or
/// quantised; the CPU has the level.
pub(super) unsafe fn fill(
    w: &Matrix<'_>,
    base: usize,
    end: usize,
    k: Range<usize>,
    p: &mut Panel,
    to: *mut u8,
) {
    let rows = base..end.min(base + PANEL_ROWS);
    // SAFETY: by the caller's promise.
    unsafe {
        match w.layout() {
            Layout::Tiles => {
                for (half, i) in (rows.start / TILE..rows.end.div_ceil(TILE)).enumerate() {
                    let tile = w.tile(i).as_ptr();
                    let ahead = &PrefetchAddress::of_tile(w, tile, AHEAD);
                    let to = to.add(TILE_BYTES * half);
                    with_tiles!(
                        w.weight_type(),
                        Q => tile_of::<Q>(tile, ahead, k.clone(), to),
                        columns(tile, ahead, k.clone(), to)
                    );
                }
            }
            Layout::Rows => with_block!(
                w.weight_type(),
                Q => {
                    avx512_panel::fill::<Q>(w, rows.clone(), k.clone(), p);
                    for half in 0..rows.len().div_ceil(TILE) {
                        tile_of_bytes::<Q>(k.len(), half, p, to);
                    }
                },
                float_rows(w, rows, k, to)
            ),
            Layout::Planes => unreachable!("planes are multiplied as tiles"),
        }
    }
}

/// Columns `k` of a packed tile of quantised weights.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512bf16,fma,f16c"
)]
unsafe fn tile_of<Q: TilesAvx512>(
    tile: *const u8,
    ahead: &PrefetchAddress,
    k: Range<usize>,
    to: *mut u8,
) {
    let bytes = TILE_ROWS * Q::BYTES;
    let per_unit = Q::BLOCK / GROUP;
    // SAFETY: by the caller's promise.
    unsafe {
        let mut b = k.start / GROUP;
        let mut to = to;
        while b < k.end / GROUP {
            let unit = tile.add(b / per_unit * bytes);
            let head = Q::head(unit);
            let mut g = 0;
            while g < per_unit {
                group_of::<Q, 0>(unit, ahead, &head, g, &mut to);
                if Q::PHASES > 1 {
                    group_of::<Q, 1>(unit, ahead, &head, g + 1, &mut to);
                }
                if Q::PHASES > 2 {
                    group_of::<Q, 2>(unit, ahead, &head, g + 2, &mut to);
                    group_of::<Q, 3>(unit, ahead, &head, g + 3, &mut to);
                }
                g += Q::PHASES;
            }
            b += per_unit;
        }
    }
}

/// Converts group `g` of a unit, and advances `to` to the place of the next one.
#[inline(always)]
unsafe fn group_of<Q: TilesAvx512, const P: usize>(
    unit: *const u8,
    ahead: &PrefetchAddress,
    head: &Q::Head,
    g: usize,
    to: &mut *mut u8,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        ask::<Q>(unit, ahead, g);
        let scales = Q::scales(unit, head, g);
        group::<Q>(|j| Q::line::<P>(unit, head, g, j), scales, *to);
        *to = to.add(2 * TILE_BYTES);
    }
}

/// Tile `half` of a panel of signed bytes, of `columns` columns.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512bf16,fma,f16c"
)]
unsafe fn tile_of_bytes<Q: BlockFormat>(columns: usize, half: usize, p: &Panel, to: *mut u8) {
    // SAFETY: columns are in the panel, by the caller's promise.
    unsafe {
        let zero = _mm512_set1_epi8(Q::ZERO as u8 as i8);
        let sixteen = |of: &[f32], per_group: usize, g: usize, part: usize| {
            let part = part * per_group / 2;
            _mm512_load_ps(of.as_ptr().add((per_group * g + part) * PANEL_ROWS + TILE * half))
        };
        for g in 0..columns / GROUP {
            let mut scales = Scales { d: [_mm512_setzero_ps(); 2], m: [_mm512_setzero_ps(); 2] };
            for part in 0..2 {
                scales.d[part] = sixteen(&p.d, Q::SCALES, g, part);
                if Q::OFFSETS > 0 {
                    scales.m[part] = sixteen(&p.m, Q::OFFSETS, g, part);
                }
            }
            let bytes = p.q.as_ptr().add(8 * g * PANEL_ROWS * 4 + LINE * half);
            let line = |j: usize| {
                let signed = _mm512_load_si512(bytes.add(j * PANEL_ROWS * 4).cast());
                _mm512_add_epi8(signed, zero)
            };
            group::<Q>(line, scales, to.add(TILE_BYTES * (2 * g + half)));
        }
    }
}

/// 32 columns × 16 rows, given as lines of 4 columns, unsigned codes.
#[inline(always)]
unsafe fn group<Q: BlockFormat>(line: impl Fn(usize) -> __m512i, scales: Scales, to: *mut u8) {
    // SAFETY: the callers' CPU has the level; the panel has memory for the group.
    unsafe {
        for part in 0..2 {
            let (d, m) = (scales.d[part], scales.m[part]);
            // A code becomes a float f, and a weight is f·slope + start. Codes of seven bits are put into the upper bits of the
            // mantissa, f = 1 + q/128, which needs no conversion.
            let small = Q::MAX_CODE < 128;
            let (slope, zero) = match small {
                true => (_mm512_mul_ps(d, _mm512_set1_ps(128.0)), 128.0 + Q::ZERO as f32),
                false => (d, Q::ZERO as f32),
            };
            let start = _mm512_fnmadd_ps(_mm512_set1_ps(zero), d, m);
            for j in 4 * part..4 * part + 4 {
                let codes = line(j);
                let floats = if small { mantissas(codes) } else { converted(codes) };
                let [a, b, c, d] = floats.map(|f| _mm512_fmadd_ps(f, slope, start));
                _mm512_store_si512(to.add(LINE * 2 * j).cast(), pairs(a, b));
                _mm512_store_si512(to.add(LINE * (2 * j + 1)).cast(), pairs(c, d));
            }
        }
    }
}

/// 1 + q/128 of the four bytes of each lane, none of which is above 127.
#[inline(always)]
unsafe fn mantissas(codes: __m512i) -> [__m512; 4] {
    // SAFETY: the callers' CPU has the level.
    unsafe {
        // Bits 23 to 29 are the exponent of 1, and bit 23 is the upper one of a code's byte.
        let codes = _mm512_or_si512(codes, _mm512_set1_epi8(-128));
        let (byte, one) = (_mm512_set1_epi32(0x00ff_0000), _mm512_set1_epi32(0x3f00_0000));
        // (v & byte) | one
        let float = |v| _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xea>(v, byte, one));
        [
            float(_mm512_slli_epi32::<16>(codes)),
            float(_mm512_slli_epi32::<8>(codes)),
            float(codes),
            float(_mm512_srli_epi32::<8>(codes)),
        ]
    }
}

/// The four bytes of each lane.
#[inline(always)]
unsafe fn converted(codes: __m512i) -> [__m512; 4] {
    // SAFETY: the callers' CPU has the level.
    unsafe {
        let byte = _mm512_set1_epi32(0xff);
        [
            _mm512_and_si512(codes, byte),
            _mm512_and_si512(_mm512_srli_epi32::<8>(codes), byte),
            _mm512_and_si512(_mm512_srli_epi32::<16>(codes), byte),
            _mm512_srli_epi32::<24>(codes),
        ]
        .map(|v| _mm512_cvtepi32_ps(v))
    }
}

/// bf16 of `a` and of `b`, side by side in each lane, rounded to nearest, ties away from zero, in four operations; rounding to
/// nearest even would need ten, or with the CPU's conversion and a permutation 20 % more time.
#[inline(always)]
unsafe fn pairs(a: __m512, b: __m512) -> __m512i {
    // SAFETY: the callers' CPU has the level.
    unsafe {
        let half = _mm512_set1_epi32(0x8000);
        let [a, b] = [a, b].map(|v| _mm512_add_epi32(_mm512_castps_si512(v), half));
        _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(a), b)
    }
}

/// Columns `k` of a packed tile of bf16 weights, which has 16 rows of a column side by side.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512bf16,fma,f16c"
)]
unsafe fn columns(tile: *const u8, ahead: &PrefetchAddress, k: Range<usize>, to: *mut u8) {
    // SAFETY: by the caller's promise.
    unsafe {
        for (i, k) in k.step_by(2).enumerate() {
            let at = tile.add(COLUMN * k);
            prefetch::far(ahead.of(at), 2 * COLUMN);
            let [a, b] =
                [at, at.add(COLUMN)].map(|at| _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())));
            let line = _mm512_or_si512(a, _mm512_slli_epi32::<16>(b));
            let to = to.add(2 * TILE_BYTES * (i / TILE) + LINE * (i % TILE));
            _mm512_store_si512(to.cast(), line);
        }
    }
}

/// Columns `k` of rows of bf16 weights.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512bf16,fma,f16c"
)]
unsafe fn float_rows(w: &Matrix<'_>, rows: Range<usize>, k: Range<usize>, to: *mut u8) {
    for half in 0..rows.len().div_ceil(TILE) {
        for g in 0..k.len() / GROUP {
            // SAFETY: 32 columns of each row; lines of the panel.
            unsafe {
                // Rows past the end repeat the last one.
                let mut v = [_mm512_setzero_si512(); TILE];
                for (i, v) in v.iter_mut().enumerate() {
                    let row = w.row((rows.start + TILE * half + i).min(rows.end - 1));
                    *v = _mm512_loadu_si512(row.as_ptr().add(2 * (k.start + GROUP * g)).cast());
                }
                avx512_panel::transpose(&mut v);
                for (i, v) in v.iter().enumerate() {
                    let to = to.add(TILE_BYTES * (2 * g + half) + LINE * i);
                    _mm512_store_si512(to.cast(), *v);
                }
            }
        }
    }
}
