//! AVX-512 dot products with VNNI: unsigned weight bytes against the signed high and low bytes of the 16-bit activations.
//!
//! Sixteen rows at a time. Per 64 weights of a row: unpack (4–5 operations), two `vpdpbusd` joined by a shift. Then the lanes of each row's integers
//! are added, so that the sums of sixteen rows over the same columns end in one register, like those of a tile: some three operations per row. What
//! follows is the arithmetic of tiles, see `tiles/avx512.rs`.

use super::scalar;
use crate::blocks::avx512_rows::{Group256, Offsets, RowsAvx512};
use crate::blocks::{WeightType, per_16, with_block};
use crate::matmul::gemm::avx512_panel::transpose;
use crate::matmul::prefetch::RowsAhead;
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

driver!("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c", RowsAvx512, 16);

/// Rows of floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn floats(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    // SAFETY: by the caller's promise.
    unsafe {
        match w.weight_type() {
            WeightType::F32 => float::<F32>(rows, w, x, out),
            WeightType::F16 => float::<F16>(rows, w, x, out),
            _ => float::<Bf16>(rows, w, x, out),
        }
    }
}

/// `R` rows for `T` tokens. The operations of each row and token, and their order, are the same for any `T`, and those of tiles.
#[inline(always)]
unsafe fn dot<Q: RowsAvx512, const R: usize, const T: usize>(
    row: [*const u8; R],
    w: &Matrix<'_>,
    x: &[Tokens<'_>; T],
) -> [[f32; R]; T] {
    const { assert!(R == TILE_ROWS) };
    // SAFETY: the caller passes whole rows of x.cols() weights, a multiple of 32; the packed activations are padded to whole steps.
    unsafe {
        let groups = x[0].cols() / 32;
        let mut ahead = RowsAhead::new(row[0], R, w, x[0].cols());
        let mut total = [_mm512_setzero_ps(); T];
        for g in 0..groups.div_ceil(8) {
            let count = (groups - 8 * g).min(8);
            let group = begin::<Q, R>(&row, g, count);
            let scales = Scales::of::<Q, R>(&group);
            let mut acc = [_mm512_setzero_ps(); T];
            for j in 0..count / 2 {
                ahead.ask(64 * Q::BYTES * R / Q::BLOCK);
                step::<Q, R, T, false>(&group, &scales, g, j, x, &mut acc);
            }
            if Q::BLOCK == 32 && !count.is_multiple_of(2) {
                step::<Q, R, T, true>(&group, &scales, g, count / 2, x, &mut acc);
            }
            for t in 0..T {
                let a = _mm512_set1_ps(x[t].scale()[g]);
                total[t] = _mm512_fmadd_ps(acc[t], a, total[t]);
            }
        }
        let mut out = [[0.0; R]; T];
        for t in 0..T {
            _mm512_storeu_ps(out[t].as_mut_ptr(), total[t]);
        }
        out
    }
}

/// The scales and offsets of sixteen rows × 256 weights, `[part][rows]`.
struct Scales {
    d: [__m512; 16],
    m: [__m512; 16],
}

impl Scales {
    #[inline(always)]
    unsafe fn of<Q: RowsAvx512, const R: usize>(group: &[Group256<Q::Offsets>; R]) -> Scales {
        // SAFETY: the callers' CPU has the level.
        unsafe {
            let mut all = Scales { d: [_mm512_setzero_ps(); 16], m: [_mm512_setzero_ps(); 16] };
            let mut v = [_mm512_setzero_si512(); TILE_ROWS];
            for r in 0..R {
                v[r] = _mm512_castps_si512(group[r].scales);
            }
            transpose(&mut v);
            for i in 0..16 {
                all.d[i] = _mm512_castsi512_ps(v[i]);
            }
            if Q::OFFSETS == 0 {
                return all;
            }
            if !per_16::<Q>() {
                for i in 0..8 {
                    all.m[i] = all.d[8 + i];
                }
                return all;
            }
            for r in 0..R {
                v[r] = _mm512_castps_si512(group[r].offsets.lanes());
            }
            transpose(&mut v);
            for i in 0..16 {
                all.m[i] = _mm512_castsi512_ps(v[i]);
            }
            all
        }
    }
}

/// Group `g` of every row. (A loop, not a closure: closures do not inherit the level's features.)
#[inline(always)]
unsafe fn begin<Q: RowsAvx512, const R: usize>(
    row: &[*const u8; R],
    g: usize,
    count: usize,
) -> [Group256<Q::Offsets>; R] {
    // SAFETY: as for `dot`.
    unsafe {
        let mut group = [Q::begin(row[0], g, count); R];
        for r in 1..R {
            group[r] = Q::begin(row[r], g, count);
        }
        group
    }
}

/// Adds 64 weights (`HALF`: 32) of each row, those of step `j` of group `g`, for each token. The activations of a step are 64
/// high and 64 low bytes.
#[inline(always)]
unsafe fn step<Q: RowsAvx512, const R: usize, const T: usize, const HALF: bool>(
    group: &[Group256<Q::Offsets>; R],
    scales: &Scales,
    g: usize,
    j: usize,
    x: &[Tokens<'_>; T],
    acc: &mut [__m512; T],
) {
    // SAFETY: whole steps of padded activations; see `dot`.
    unsafe {
        let mut q = [[_mm512_setzero_si512(); 2]; T];
        for t in 0..T {
            let at = x[t].q8().add(512 * g + 128 * j);
            q[t] = [_mm512_load_si512(at.cast()), _mm512_load_si512(at.add(64).cast())];
        }
        // Of each four rows, for each token: a quarter of the register has the sums of a quarter of the columns.
        let mut fours = [[_mm512_setzero_si512(); 4]; T];
        for four in 0..4 {
            let mut p = [[_mm512_setzero_si512(); 4]; T];
            for r in 0..4 {
                let w = Q::quants::<HALF>(group[4 * four + r].at, j);
                for t in 0..T {
                    let [high, low] = q[t];
                    let h = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, high);
                    p[t][r] = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(h), w, low);
                }
            }
            for t in 0..T {
                fours[t][four] = lanes_added(p[t]);
            }
        }
        let zero = _mm512_set1_ps(Q::ZERO as f32);
        for t in 0..T {
            let quarters = quarters_of_rows(fours[t]);
            let b = 8 * g + 2 * j;
            for half in 0..if HALF { 1 } else { 2 } {
                let of = [quarters[2 * half], quarters[2 * half + 1]];
                let parts = if Q::SCALES == 2 { of } else { [_mm512_add_epi32(of[0], of[1]); 2] };
                let b = b + half;
                for part in 0..Q::SCALES {
                    let mut f = _mm512_cvtepi32_ps(parts[part]);
                    if Q::ZERO != 0 {
                        let sums = if Q::SCALES == 2 { x[t].s16() } else { x[t].s32() };
                        let s = _mm512_set1_ps(*sums.as_ptr().add(Q::SCALES * b + part));
                        f = _mm512_fnmadd_ps(zero, s, f);
                    }
                    let d = scales.d[position::<Q>(2 * j + half, part)];
                    acc[t] = _mm512_fmadd_ps(f, d, acc[t]);
                }
                for h in 0..Q::OFFSETS {
                    let s =
                        _mm512_set1_ps(*x[t].sums_for(Q::OFFSETS).as_ptr().add(Q::OFFSETS * b + h));
                    let m = scales.m[position::<Q>(2 * j + half, h)];
                    acc[t] = _mm512_fmadd_ps(m, s, acc[t]);
                }
            }
        }
    }
}

/// The position in [`Scales`] of part `part` of group `g` of 256 weights.
#[inline(always)]
fn position<Q: RowsAvx512>(g: usize, part: usize) -> usize {
    if per_16::<Q>() { 2 * g + part } else { g }
}

/// The sums of each quarter of four registers: quarter `i` of the result has those of quarter `i` of all four.
#[inline(always)]
unsafe fn lanes_added(v: [__m512i; 4]) -> __m512i {
    // SAFETY: the callers' CPU has the level.
    unsafe {
        let [a, b, c, d] = v;
        let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    }
}

/// Four registers of four rows, `[quarter][4 rows]`, as one of sixteen rows for each quarter.
#[inline(always)]
unsafe fn quarters_of_rows(v: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the callers' CPU has the level.
    unsafe {
        const EVEN: i32 = 0x88;
        const ODD: i32 = 0xdd;
        let even =
            [_mm512_shuffle_i32x4::<EVEN>(v[0], v[1]), _mm512_shuffle_i32x4::<EVEN>(v[2], v[3])];
        let odd =
            [_mm512_shuffle_i32x4::<ODD>(v[0], v[1]), _mm512_shuffle_i32x4::<ODD>(v[2], v[3])];
        [
            _mm512_shuffle_i32x4::<EVEN>(even[0], even[1]),
            _mm512_shuffle_i32x4::<EVEN>(odd[0], odd[1]),
            _mm512_shuffle_i32x4::<ODD>(even[0], even[1]),
            _mm512_shuffle_i32x4::<ODD>(odd[0], odd[1]),
        ]
    }
}

/// Eight columns of four rows.
trait EightColumns {
    /// `[columns / 4][row][4 columns]`.
    ///
    /// # Safety
    /// The columns exist, the CPU has the level.
    unsafe fn load(row: [*const u8; 4]) -> [__m512; 2];
}

struct F32;
struct F16;
struct Bf16;

/// 16 bytes of each of four rows.
#[inline(always)]
unsafe fn sixteen_bytes(row: [*const u8; 4]) -> __m512i {
    // SAFETY: by the caller's promise.
    unsafe {
        let v = _mm512_castsi128_si512(_mm_loadu_si128(row[0].cast()));
        let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(row[1].cast()));
        let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(row[2].cast()));
        _mm512_inserti32x4::<3>(v, _mm_loadu_si128(row[3].cast()))
    }
}

impl EightColumns for F32 {
    #[inline(always)]
    unsafe fn load(row: [*const u8; 4]) -> [__m512; 2] {
        let mut next = row;
        for row in &mut next {
            *row = row.wrapping_add(16);
        }
        // SAFETY: by the caller's promise.
        unsafe {
            [_mm512_castsi512_ps(sixteen_bytes(row)), _mm512_castsi512_ps(sixteen_bytes(next))]
        }
    }
}

impl EightColumns for F16 {
    #[inline(always)]
    unsafe fn load(row: [*const u8; 4]) -> [__m512; 2] {
        // SAFETY: by the caller's promise.
        unsafe {
            let halves = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
            let v = _mm512_permutexvar_epi64(halves, sixteen_bytes(row));
            [
                _mm512_cvtph_ps(_mm512_castsi512_si256(v)),
                _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(v)),
            ]
        }
    }
}

impl EightColumns for Bf16 {
    #[inline(always)]
    unsafe fn load(row: [*const u8; 4]) -> [__m512; 2] {
        // SAFETY: by the caller's promise.
        unsafe {
            let v = sixteen_bytes(row);
            // The upper half of each float, zeros below it.
            let first = _mm_set_epi8(7, 6, -1, -1, 5, 4, -1, -1, 3, 2, -1, -1, 1, 0, -1, -1);
            let last = _mm_set_epi8(15, 14, -1, -1, 13, 12, -1, -1, 11, 10, -1, -1, 9, 8, -1, -1);
            [
                _mm512_castsi512_ps(_mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(first))),
                _mm512_castsi512_ps(_mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(last))),
            ]
        }
    }
}

/// Rows of floats that are multiplied together: their sums keep a multiplier busy.
const FLOAT_ROWS: usize = 8;

/// Float rows: four sums over every fourth column, as in tiles.
#[inline(always)]
unsafe fn float<F: EightColumns>(
    rows: Range<usize>,
    w: &Matrix<'_>,
    x: &Tokens<'_>,
    out: Output<'_>,
) {
    let (ty, cols) = (w.weight_type(), w.cols());
    let size = ty.block_bytes();
    let whole = cols / 8 * 8;
    for first in rows.clone().step_by(FLOAT_ROWS) {
        let end = rows.end.min(first + FLOAT_ROWS);
        for t in 0..x.tokens() {
            let x = x.float(t);
            let mut chains = [[0f32; 4]; FLOAT_ROWS];
            // SAFETY: k + 8 ≤ cols, the number of weights of each row and of the token; the caller's CPU has the level, and the elements are ours by
            // its promise.
            unsafe {
                let mut acc = [_mm512_setzero_ps(); FLOAT_ROWS / 4];
                let mut row = [[std::ptr::null(); 4]; FLOAT_ROWS / 4];
                for (i, row) in row.as_flattened_mut().iter_mut().enumerate() {
                    *row = w.row(end.min(first + i + 1) - 1).as_ptr();
                }
                let mut ahead = RowsAhead::new(row[0][0], FLOAT_ROWS, w, cols);
                for k in (0..whole).step_by(8) {
                    if k % 256 == 0 {
                        ahead.ask(FLOAT_ROWS * size * (cols - k).min(256));
                    }
                    let x = x.as_ptr().add(k);
                    let x = [
                        _mm512_broadcast_f32x4(_mm_loadu_ps(x)),
                        _mm512_broadcast_f32x4(_mm_loadu_ps(x.add(4))),
                    ];
                    for i in 0..FLOAT_ROWS / 4 {
                        let mut at = row[i];
                        for at in &mut at {
                            *at = at.add(k * size);
                        }
                        let v = F::load(at);
                        acc[i] = _mm512_fmadd_ps(v[0], x[0], acc[i]);
                        acc[i] = _mm512_fmadd_ps(v[1], x[1], acc[i]);
                    }
                }
                for (i, acc) in acc.into_iter().enumerate() {
                    _mm512_storeu_ps(chains[4 * i..].as_mut_ptr().cast(), acc);
                }
                let out = out.row_mut(t, first..end);
                for (i, (out, chains)) in out.iter_mut().zip(&mut chains).enumerate() {
                    let rest = &w.row(first + i)[whole * size..];
                    *out = scalar::finish_float(ty, rest, &x[whole..], chains, f32::mul_add);
                }
            }
        }
    }
}
