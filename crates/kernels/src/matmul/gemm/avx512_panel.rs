//! Filling a panel with AVX-512: 16 rows × 64 columns at a time, transposed in registers.

use super::{PANEL_ROWS, Panel};
use crate::matmul::Matrix;
use crate::matmul::unpack::avx512::Unpack;
use crate::quant::{self, Quant};
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows that are transposed together: the 32-bit lanes of a register.
const TILE: usize = 16;

/// Unpacks rows `rows` (1..=32 of them) × columns `k` into the panel. Rows past the end repeat
/// the last one; their products are never stored.
///
/// # Safety
/// The rows and columns are inside the matrix; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn fill<Q: Unpack>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    for tile in 0..rows.len().div_ceil(TILE) {
        let mut row = [std::ptr::null(); TILE];
        for (i, row) in row.iter_mut().enumerate() {
            *row = w.row((rows.start + tile * TILE + i).min(rows.end - 1)).as_ptr();
        }
        for g in 0..k.len().div_ceil(256) {
            // SAFETY: k starts at a multiple of 256, and group g has columns left.
            unsafe {
                let mut group = [Q::begin(row[0], k.start / 256 + g); TILE];
                for i in 1..TILE {
                    group[i] = Q::begin(row[i], k.start / 256 + g);
                }
                let left = (k.len() - 256 * g).min(256);
                for j in 0..left / 64 {
                    step::<Q, false>(&group, j, 4 * g + j, tile, p);
                }
                if !left.is_multiple_of(64) {
                    step::<Q, true>(&group, left / 64, 4 * g + left / 64, tile, p);
                }
            }
        }
    }
}

/// 16 rows × 64 columns (`HALF`: 32); `s` is the position of these columns in the panel, in 64s.
///
/// # Safety
/// As for `fill`.
#[inline(always)]
unsafe fn step<Q: Unpack, const HALF: bool>(
    group: &[Q::Group; TILE],
    j: usize,
    s: usize,
    tile: usize,
    p: &mut Panel,
) {
    // SAFETY: step s ends at column 64·(s + 1) ≤ MAX_K, a multiple of 64; by the caller's promise.
    unsafe {
        // Q6_K, the only one with a scale per 16.
        let two_scales = Q::ZERO == quant::Q6K::ZERO;
        let mut v = [_mm512_setzero_si512(); TILE];
        let mut d = [_mm512_setzero_ps(); 4];
        let mut m = [_mm512_setzero_ps(); 2];
        for i in 0..TILE {
            let w = Q::step::<HALF>(&group[i], j);
            v[i] = _mm512_sub_epi8(w.q, _mm512_set1_epi8(Q::ZERO as u8 as i8));
            // The scales of row i are needed in lane i of one line per group. Every lane of a
            // group holds its scale, so a masked move puts it where a shuffle will find it.
            if two_scales {
                let at = 0x1111 << (i % 4);
                d[i / 4] = _mm512_mask_mov_ps(d[i / 4], at, w.d);
            } else {
                let at = 0x0101 << (i % 8);
                d[i / 8] = _mm512_mask_mov_ps(d[i / 8], at, w.d);
                if Q::MIN {
                    m[i / 8] = _mm512_mask_mov_ps(m[i / 8], at, w.m);
                }
            }
        }
        let lines = p.q.as_mut_ptr().add(s * 16 * PANEL_ROWS * 4 + tile * 64);
        transpose(&mut v);
        for (l, v) in v.iter().enumerate() {
            if !HALF || l < 8 {
                _mm512_store_si512(lines.add(l * PANEL_ROWS * 4).cast(), *v);
            }
        }
        // −128·Σq of each row, per group of `lines_each` lines.
        let lines_each = if two_scales { 4 } else { 8 };
        for g in 0..(if HALF { 8 } else { 16 }) / lines_each {
            let mut sum = _mm512_setzero_si512();
            for l in 0..lines_each {
                sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), v[g * lines_each + l]);
            }
            let z = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<7>(sum));
            let to = (s * 16 / lines_each + g) * PANEL_ROWS + tile * TILE;
            _mm512_store_si512(p.z.as_mut_ptr().add(to).cast(), z);
        }
        let put = |to: *mut f32, group: usize, v: __m512| {
            _mm512_store_ps(to.add(group * PANEL_ROWS + tile * TILE), v);
        };
        if two_scales {
            // Four registers of [4 rows of group 0 | … of group 3]: transpose the quarters.
            let a = _mm512_shuffle_f32x4::<0x88>(d[0], d[1]);
            let b = _mm512_shuffle_f32x4::<0xdd>(d[0], d[1]);
            let c = _mm512_shuffle_f32x4::<0x88>(d[2], d[3]);
            let e = _mm512_shuffle_f32x4::<0xdd>(d[2], d[3]);
            let to = p.d.as_mut_ptr();
            put(to, 4 * s, _mm512_shuffle_f32x4::<0x88>(a, c));
            put(to, 4 * s + 1, _mm512_shuffle_f32x4::<0x88>(b, e));
            put(to, 4 * s + 2, _mm512_shuffle_f32x4::<0xdd>(a, c));
            put(to, 4 * s + 3, _mm512_shuffle_f32x4::<0xdd>(b, e));
        } else {
            let to = p.d.as_mut_ptr();
            put(to, 2 * s, _mm512_shuffle_f32x4::<0x44>(d[0], d[1]));
            if !HALF {
                put(to, 2 * s + 1, _mm512_shuffle_f32x4::<0xee>(d[0], d[1]));
            }
            if Q::MIN {
                let to = p.m.as_mut_ptr();
                put(to, 2 * s, _mm512_shuffle_f32x4::<0x44>(m[0], m[1]));
                if !HALF {
                    put(to, 2 * s + 1, _mm512_shuffle_f32x4::<0xee>(m[0], m[1]));
                }
            }
        }
    }
}

/// Transposes a 16 × 16 matrix of 32-bit lanes.
#[inline(always)]
pub(super) unsafe fn transpose(v: &mut [__m512i; 16]) {
    // SAFETY: the callers' CPU has the tier.
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
