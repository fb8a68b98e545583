//! Rows of 16-bit tokens with AVX-512: sixteen rows × 256 weights at a time, with the arithmetic of tiles (see `tiles/avx512.rs`). There are three ways
//! to get the sums of sixteen rows over the same columns into one register:
//!
//! - The rows are packed into units of a tile, in the first-level cache, which are multiplied by the code of tiles: transposing costs less than adding
//!   the lanes of every row.
//! - Blocks of 32 with one or two tokens: registers of four rows × 16 codes are multiplied with 16 activations, then lanes are added.
//! - Types without tiles: rows are decoded one by one, 64 weights at a time, and their lanes added.

use super::scalar;
use super::units::{Blocks, Columns, never};
use crate::blocks::avx512_rows::{Group256, Offsets, RowsAvx512};
use crate::blocks::avx512_tiles::TilesAvx512;
use crate::blocks::units::pack;
use crate::blocks::{WeightType, per_16, with_rows, with_tiles};
use crate::lanes::Avx512;
use crate::matmul::gemm::avx512_panel::transpose;
use crate::matmul::prefetch::RowsAhead;
use crate::matmul::sizes::cut_at_multiples;
use crate::matmul::tiles::avx512::{
    PrefetchAhead, add_offsets, add_part, few_columns, mask, scaled,
};
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

units_driver!(
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c",
    TilesAvx512,
    RowsAvx512,
    never,
    up_to_eight_together
);
driver!(@quantized "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c", RowsAvx512, 16);

/// Number of tokens that are multiplied together; of more, each as many share what was packed. (Measured with eight: the compiler computes one token after
/// the other, whose sums are too few to hide the latency.)
const FEW: usize = 4;

impl PrefetchAhead for Option<&mut RowsAhead> {
    #[inline(always)]
    fn ask<Q: TilesAvx512>(&mut self, unit: *const u8, g: usize) {
        if let Some(ahead) = self {
            PrefetchAhead::ask::<Q>(*ahead, unit, g);
        }
    }
}

impl PrefetchAhead for RowsAhead {
    #[inline(always)]
    fn ask<Q: TilesAvx512>(&mut self, _: *const u8, _: usize) {
        RowsAhead::ask(self, TILE_ROWS * Q::BYTES * 32 / Q::BLOCK);
    }
}

/// Rows for tokens `x`, those with the numbers `tokens`: there may be fewer of these, of which the last is repeated.
///
/// # Safety
/// As for `dot::rows`; the CPU has the level.
#[inline(always)]
unsafe fn units<Q: TilesAvx512 + RowsAvx512, const T: usize>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &[Tokens<'_>; T],
    tokens: Range<usize>,
    out: Output<'_>,
) {
    let groups = x[0].cols() / 32;
    let (mut units, mut copy) = (Columns::EMPTY, Columns::EMPTY);
    for wanted in cut_at_multiples(rows, TILE_ROWS) {
        // Sixteen rows of the matrix, of which those wanted are stored.
        let first = Blocks::first_row(w, wanted.start);
        let mut ahead = RowsAhead::new(w.row(first).as_ptr(), TILE_ROWS, w, x[0].cols());
        // SAFETY: sixteen rows, and the units of at most 256 of their columns; the elements are ours by the caller's promise.
        unsafe {
            let mut total = [_mm512_setzero_ps(); T];
            for g in 0..groups.div_ceil(8) {
                let count = (groups - 8 * g).min(8);
                let blocks = Blocks::of::<Q>(w, first, g, count, &mut copy);
                if Q::IN_ROWS && T <= 2 {
                    in_rows::<Q, T>(blocks, g, count, x, &mut ahead, &mut total);
                    continue;
                }
                for u in 0..count * 32 / Q::BLOCK {
                    let unit = units.as_mut_ptr().add(TILE_ROWS * Q::BYTES * u);
                    pack::<Avx512, Q>(blocks.first.add(u * Q::BYTES), blocks.stride, unit);
                }
                let units = units.as_mut_ptr();
                if T <= FEW {
                    few_columns::<Q, T>(units, &mut ahead, g, count, x, &mut total);
                    continue;
                }
                let totals = total.as_chunks_mut::<FEW>().0.iter_mut();
                // The first of them wait for memory.
                let mut ahead = Some(&mut ahead);
                for (x, total) in x.as_chunks::<FEW>().0.iter().zip(totals) {
                    few_columns::<Q, FEW>(units, &mut ahead, g, count, x, total);
                    ahead = None;
                }
            }
            for (t, total) in tokens.clone().zip(total) {
                _mm512_mask_storeu_ps(out.at(t, first), mask(&wanted, first), total);
            }
        }
    }
}

/// Adds the products of `count` groups of sixteen rows, the `g`-th 256 columns, to `total`: codes are read from the rows.
///
/// # Safety
/// The blocks exist, the tokens have these columns, the CPU has the level.
#[inline(always)]
unsafe fn in_rows<Q: TilesAvx512 + RowsAvx512, const T: usize>(
    Blocks { first, stride }: Blocks,
    g: usize,
    count: usize,
    x: &[Tokens<'_>; T],
    ahead: &mut RowsAhead,
    total: &mut [__m512; T],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let row: [*const u8; TILE_ROWS] = std::array::from_fn(|r| first.wrapping_add(r * stride));
        let scales = Scales::of::<Q, TILE_ROWS>(&begin::<Q, TILE_ROWS>(&row, 0, count));
        let mut acc = [_mm512_setzero_ps(); T];
        for i in 0..count {
            RowsAhead::ask(ahead, TILE_ROWS * Q::BYTES);
            let (b, block) = (8 * g + i, first.add(i * Q::BYTES));
            // Of each four rows.
            let mut h = [[_mm512_setzero_si512(); 4]; T];
            let mut l = [[_mm512_setzero_si512(); 4]; T];
            for half in 0..2 {
                let mut q = [[_mm512_setzero_si512(); 2]; T];
                for t in 0..T {
                    // 64 high bytes, then 64 low bytes.
                    let at = x[t].q8().add(128 * (b / 2) + 32 * (b % 2) + 16 * half);
                    q[t] = [sixteen(at), sixteen(at.add(64))];
                }
                for r in 0..4 {
                    let w = Q::columns(block.add(r * stride), stride, half);
                    for t in 0..T {
                        h[t][r] = _mm512_dpbusd_epi32(h[t][r], w, q[t][0]);
                        l[t][r] = _mm512_dpbusd_epi32(l[t][r], w, q[t][1]);
                    }
                }
            }
            for t in 0..T {
                let mut p = l[t];
                for r in 0..4 {
                    p[r] = _mm512_add_epi32(_mm512_slli_epi32::<8>(h[t][r]), l[t][r]);
                }
                add_part::<Q>(lanes_added(p), &x[t], b, 0, scales.d[i], &mut acc[t]);
                add_offsets::<Q>(&x[t], b, &[scales.m[i]; 2], &mut acc[t]);
            }
        }
        scaled(g, x, &acc, total);
    }
}

/// The sixteen bytes at `p`, in every quarter.
#[inline(always)]
unsafe fn sixteen(p: *const i8) -> __m512i {
    // SAFETY: inside the callers' activations.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast())) }
}

/// Rows of floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn floats(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    // SAFETY: by the caller's promise.
    unsafe {
        match w.weight_type() {
            WeightType::F32 => float::<FoursOfF32>(rows, w, x, out),
            WeightType::F16 => float::<FoursOfF16>(rows, w, x, out),
            _ => float::<FoursOfBf16>(rows, w, x, out),
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
        // Of each four rows, for each token: a quarter of the register has the sums of a quarter of the columns.
        let mut fours = [[_mm512_setzero_si512(); 4]; T];
        for four in 0..4 {
            let mut w = [_mm512_setzero_si512(); 4];
            for r in 0..4 {
                w[r] = Q::quants::<HALF>(group[4 * four + r].at, j);
            }
            for t in 0..T {
                let at = x[t].q8().add(512 * g + 128 * j);
                let high = _mm512_load_si512(at.cast());
                let low = _mm512_load_si512(at.add(64).cast());
                let mut p = w;
                for r in 0..4 {
                    let h = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[r], high);
                    p[r] = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(h), w[r], low);
                }
                fours[t][four] = lanes_added(p);
            }
        }
        for t in 0..T {
            let quarters = quarters_of_rows(fours[t]);
            for half in 0..if HALF { 1 } else { 2 } {
                let of = [quarters[2 * half], quarters[2 * half + 1]];
                let parts = if Q::SCALES == 2 { of } else { [_mm512_add_epi32(of[0], of[1]); 2] };
                let (i, b) = (2 * j + half, 8 * g + 2 * j + half);
                for part in 0..Q::SCALES {
                    let d = scales.d[position::<Q>(i, part)];
                    add_part::<Q>(parts[part], &x[t], b, part, d, &mut acc[t]);
                }
                let mut m = [_mm512_setzero_ps(); 2];
                for h in 0..Q::OFFSETS {
                    m[h] = scales.m[position::<Q>(i, h)];
                }
                add_offsets::<Q>(&x[t], b, &m, &mut acc[t]);
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
trait FloatFours {
    /// `[columns / 4][row][4 columns]`.
    ///
    /// # Safety
    /// The columns exist, the CPU has the level.
    unsafe fn load(row: [*const u8; 4]) -> [__m512; 2];
}

struct FoursOfF32;
struct FoursOfF16;
struct FoursOfBf16;

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

impl FloatFours for FoursOfF32 {
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

impl FloatFours for FoursOfF16 {
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

impl FloatFours for FoursOfBf16 {
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
unsafe fn float<F: FloatFours>(
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
