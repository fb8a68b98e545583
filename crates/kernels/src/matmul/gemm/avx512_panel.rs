//! Fills a panel with AVX-512. Rows of types that have tiles are packed into units of a tile, in the first-level cache, whose codes fewer instructions
//! move than bytes; of others 16 rows × 64 columns of bytes are transposed in registers.

use super::Panel;
use crate::blocks::avx512_rows::{Group256, Offsets, RowsAvx512};
use crate::blocks::avx512_tiles::TilesAvx512;
use crate::blocks::units::pack;
use crate::blocks::{BlockFormat, per_16};
use crate::lanes::Avx512;
use crate::matmul::Matrix;
use crate::matmul::dot::units::{Blocks, Columns};
use crate::matmul::prefetch::{self, CacheLines};
use crate::matmul::sizes::PANEL_ROWS;
use crate::matmul::tiles::avx512::{PrefetchAhead, each_group};
use crate::matmul::tiles::avx512_panel::PanelHalf;
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows that are transposed together: the 32-bit lanes of a register.
const TILE: usize = 16;

/// Unpacks rows `rows` (1..=32 of them) × columns `k` into the panel, of a type that has tiles. There are further rows after the last; their products are
/// never stored.
///
/// # Safety
/// The rows and columns are inside the matrix; the CPU has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
pub(in crate::matmul) unsafe fn fill_as_tiles<Q: TilesAvx512>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    let mut ahead = NextRows::new::<Q>(w, &rows, &k, 32);
    let (mut units, mut copy) = (Columns::EMPTY, Columns::EMPTY);
    let first = k.start / 32;
    for half in 0..rows.len().div_ceil(TILE) {
        for start in k.clone().step_by(256) {
            let k = start..k.end.min(start + 256);
            let row = rows.start + TILE * half;
            let blocks = Blocks::of::<Q>(w, row, start / 256, k.len() / 32, &mut copy);
            // SAFETY: sixteen rows, and the units of at most 256 of their columns, which the panel has memory for.
            unsafe {
                for u in 0..k.len() / Q::BLOCK {
                    let unit = units.as_mut_ptr().add(TILE * Q::BYTES * u);
                    pack::<Avx512, Q>(blocks.first.add(u * Q::BYTES), blocks.stride, unit);
                }
                let ahead = &mut ahead;
                let mut half = PanelHalf::<_, true, true> { first, half, ahead, p };
                each_group::<Q>(units.as_mut_ptr(), &k, &mut half);
            }
        }
    }
}

/// Prefetches the rows of the next panel in the order of the file while this one is unpacked, each step as many bytes as it reads. With few tokens,
/// unpacking is memory-bound, and 16 rows at once are more streams than the hardware follows.
struct NextRows {
    next: *const u8,
    /// Bytes of sixteen rows in a step.
    bytes: usize,
    /// If other columns lie in between, these columns of the next rows: a row's worth of cache lines for each row.
    lines: CacheLines,
    /// Lines of a step; 0 if rows are contiguous.
    per_step: usize,
}

impl NextRows {
    /// Follows the rows `rows`, of which columns `k` are read, `columns` of sixteen rows in a step.
    fn new<Q: BlockFormat>(
        w: &Matrix<'_>,
        rows: &Range<usize>,
        k: &Range<usize>,
        columns: usize,
    ) -> NextRows {
        let skipped = (k.start / Q::BLOCK) * Q::BYTES;
        let next = w.data.as_ptr().wrapping_add(rows.end * w.stride);
        let bytes = k.len() / Q::BLOCK * Q::BYTES;
        let lines = CacheLines::new(next.wrapping_add(skipped), bytes, w.stride - bytes);
        let steps = k.len().div_ceil(columns);
        NextRows {
            next: next.wrapping_add(skipped * rows.len()),
            bytes: TILE * columns * Q::BYTES / Q::BLOCK,
            per_step: if w.gap() == 0 { 0 } else { lines.per_row() * TILE / steps + 1 },
            lines,
        }
    }

    /// Prefetches a step.
    #[inline(always)]
    fn step(&mut self) {
        if self.per_step == 0 {
            prefetch::far(self.next, self.bytes);
            self.next = self.next.wrapping_add(self.bytes);
        }
        for _ in 0..self.per_step {
            prefetch::far(self.lines.next(), 64);
        }
    }
}

impl PrefetchAhead for &mut NextRows {
    #[inline(always)]
    fn ask<Q: TilesAvx512>(&mut self, _: *const u8, _: usize) {
        self.step();
    }
}

/// Unpacks rows `rows` (1..=32 of them) × columns `k` into the panel. Rows past the end repeat
/// the last one; their products are never stored.
///
/// # Safety
/// The rows and columns are inside the matrix; the CPU has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
pub(in crate::matmul) unsafe fn fill<Q: RowsAvx512>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    let mut ahead = NextRows::new::<Q>(w, &rows, &k, 64);
    for tile in 0..rows.len().div_ceil(TILE) {
        let mut row = [std::ptr::null(); TILE];
        for (i, row) in row.iter_mut().enumerate() {
            *row = w.row((rows.start + tile * TILE + i).min(rows.end - 1)).as_ptr();
        }
        for g in 0..k.len().div_ceil(256) {
            let left = (k.len() - 256 * g).min(256);
            // SAFETY: k starts at a multiple of 256, and group g has `left` columns.
            unsafe {
                let mut group = [Q::begin(row[0], k.start / 256 + g, left / 32); TILE];
                for i in 1..TILE {
                    group[i] = Q::begin(row[i], k.start / 256 + g, left / 32);
                }
                scales::<Q>(&group, g, tile, p);
                for j in 0..left / 64 {
                    ahead.step();
                    step::<Q, false>(&group, j, 4 * g + j, tile, p);
                }
                if !left.is_multiple_of(64) {
                    step::<Q, true>(&group, left / 64, 4 * g + left / 64, tile, p);
                }
            }
        }
    }
}

/// The scales and offsets of 16 rows × 256 columns: registers of 16 for each row, transposed.
///
/// # Safety
/// As for `fill`.
#[inline(always)]
unsafe fn scales<Q: RowsAvx512>(
    group: &[Group256<Q::Offsets>; TILE],
    g: usize,
    tile: usize,
    p: &mut Panel,
) {
    // Lanes of a register for 32 weights.
    let lanes = if per_16::<Q>() { 2 } else { 1 };
    // SAFETY: the lines of group g of the panel, which has memory for whole groups.
    unsafe {
        let mut v = [_mm512_setzero_si512(); TILE];
        for i in 0..TILE {
            v[i] = _mm512_castps_si512(group[i].scales);
        }
        transpose(&mut v);
        let to = p.d.as_mut_ptr().add(8 * Q::SCALES * g * PANEL_ROWS + tile * TILE);
        for l in 0..8 * Q::SCALES {
            _mm512_store_si512(to.add(l * PANEL_ROWS).cast(), v[l * lanes / Q::SCALES]);
        }
        if Q::OFFSETS == 0 {
            return;
        }
        let first = if per_16::<Q>() {
            for i in 0..TILE {
                v[i] = _mm512_castps_si512(group[i].offsets.lanes());
            }
            transpose(&mut v);
            0
        } else {
            8
        };
        let to = p.m.as_mut_ptr().add(8 * Q::OFFSETS * g * PANEL_ROWS + tile * TILE);
        for l in 0..8 * Q::OFFSETS {
            _mm512_store_si512(to.add(l * PANEL_ROWS).cast(), v[first + l * lanes / Q::OFFSETS]);
        }
    }
}

/// The integers of 16 rows × 64 columns (`HALF`: 32); `s` is the position of these columns in the panel, in steps of 64.
///
/// # Safety
/// As for `fill`.
#[inline(always)]
unsafe fn step<Q: RowsAvx512, const HALF: bool>(
    group: &[Group256<Q::Offsets>; TILE],
    j: usize,
    s: usize,
    tile: usize,
    p: &mut Panel,
) {
    // SAFETY: step s ends at column 64·(s + 1) ≤ MAX_K, a multiple of 64; by the caller's promise.
    unsafe {
        let mut v = [_mm512_setzero_si512(); TILE];
        for i in 0..TILE {
            let q = Q::quants::<HALF>(group[i].at, j);
            v[i] = _mm512_sub_epi8(q, _mm512_set1_epi8(Q::ZERO as u8 as i8));
        }
        transpose(&mut v);
        let lines = if HALF { 8 } else { 16 };
        let to = p.q.as_mut_ptr().add(s * 16 * PANEL_ROWS * 4 + tile * 64);
        for l in 0..lines {
            _mm512_store_si512(to.add(l * PANEL_ROWS * 4).cast(), v[l]);
        }
        // −128·Σq of each row, for every run of columns that shares a scale.
        let run = 8 / Q::SCALES;
        for r in 0..lines / run {
            let mut sum = _mm512_setzero_si512();
            for l in 0..run {
                sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), v[r * run + l]);
            }
            let z = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<7>(sum));
            let to = p.z.as_mut_ptr().add((s * 16 / run + r) * PANEL_ROWS + tile * TILE);
            _mm512_store_si512(to.cast(), z);
        }
    }
}

/// Transposes a 16 × 16 matrix of 32-bit lanes.
#[inline(always)]
pub(in crate::matmul) unsafe fn transpose(v: &mut [__m512i; 16]) {
    // SAFETY: the callers' CPU has the level.
    unsafe {
        // Pairs of rows, then fours: inside each quarter the lanes of four rows are in place.
        let mut a = *v;
        for i in 0..8 {
            a[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
            a[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
        }
        let mut b = a;
        for i in 0..4 {
            b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
            b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
            b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
            b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
        }
        // b[4f + c], quarter p: lane 4p + c of rows 4f .. 4f + 4. Transpose the quarters.
        for c in 0..4 {
            let x = _mm512_shuffle_i32x4::<0x88>(b[c], b[4 + c]);
            let y = _mm512_shuffle_i32x4::<0xdd>(b[c], b[4 + c]);
            let z = _mm512_shuffle_i32x4::<0x88>(b[8 + c], b[12 + c]);
            let w = _mm512_shuffle_i32x4::<0xdd>(b[8 + c], b[12 + c]);
            v[c] = _mm512_shuffle_i32x4::<0x88>(x, z);
            v[4 + c] = _mm512_shuffle_i32x4::<0x88>(y, w);
            v[8 + c] = _mm512_shuffle_i32x4::<0xdd>(x, z);
            v[12 + c] = _mm512_shuffle_i32x4::<0xdd>(y, w);
        }
    }
}

/// Unpacks a float panel `[K][32]`; `load` reads 16 weights, of `k` only the first `n`.
///
/// # Safety
/// As for `fill`.
#[inline(always)]
pub(super) unsafe fn fill_float(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
    load: impl Fn(*const u8, u32) -> __m512,
) {
    let size = w.weight_type().block_bytes();
    for tile in 0..rows.len().div_ceil(TILE) {
        for c in (0..k.len()).step_by(16) {
            let n = (k.len() - c).min(16);
            // SAFETY: n weights of each row from column k.start + c on; lines of the panel.
            unsafe {
                let mut v = [_mm512_setzero_si512(); TILE];
                for (i, v) in v.iter_mut().enumerate() {
                    let row = w.row((rows.start + tile * TILE + i).min(rows.end - 1));
                    let at = row.as_ptr().add((k.start + c) * size);
                    *v = _mm512_castps_si512(load(at, n as u32));
                }
                transpose(&mut v);
                for (j, v) in v.iter().enumerate().take(n) {
                    let to = p.float.as_mut_ptr().add((c + j) * PANEL_ROWS + tile * TILE);
                    _mm512_store_ps(to, _mm512_castsi512_ps(*v));
                }
            }
        }
    }
}
