//! Rows of 16-bit tokens with AVX2, with the arithmetic of tiles (see `tiles/avx2.rs`). There are two ways to get the sums of several rows over the same
//! columns into one register:
//!
//! - Sixteen rows × 256 columns are packed into units of a tile, in the first-level cache, which are multiplied by the code of tiles.
//! - Types without tiles, and those whose products do not fit 16 bits: 16-bit weights against 16-bit activations with `vpmaddwd`, which cannot saturate
//!   here (|q − ZERO| ≤ 128, |x| ≤ 32512). Eight rows share each load of activations, several tokens the unpacked weights; then the lanes of each row's
//!   integers are added.

use super::scalar;
use super::units::{Blocks, Columns};
use crate::blocks::avx2_rows::{Eight, RowsAvx2};
use crate::blocks::avx2_tiles::TilesAvx2;
use crate::blocks::units::pack;
use crate::blocks::{BlockFormat, WeightType, with_rows, with_tiles};
use crate::lanes::Avx2;
use crate::matmul::gemm::avx2::lines_together;
use crate::matmul::prefetch::RowsAhead;
use crate::matmul::sizes::cut_at_multiples;
use crate::matmul::tiles::avx2::{ByteSums, LOW_BYTE, Narrow, both_halves};
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

/// True if the products of a type's codes do not fit 16 bits: words are multiplied then, and packing does not pay.
const fn in_words<Q: BlockFormat>() -> bool {
    lines_together::<Q>(LOW_BYTE) == 0
}

units_driver!("avx2,fma,f16c", TilesAvx2, RowsAvx2, in_words, tokens_together, Narrow);
driver!(@quantized "avx2,fma,f16c", RowsAvx2, 8);

/// Rows for tokens `x`, those with the numbers `tokens`: sixteen rows × 256 columns at a time are packed into units of a tile, and multiplied by the code
/// of tiles.
///
/// # Safety
/// As for `dot::rows`; the CPU has AVX2, FMA and F16C and what `S` needs.
#[inline(always)]
pub(super) unsafe fn units<S: ByteSums, Q: TilesAvx2, const T: usize>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &[Tokens<'_>; T],
    tokens: Range<usize>,
    out: Output<'_>,
) {
    let groups = x[0].cols() / 32;
    let (mut units, mut copy) = (Columns::EMPTY, Columns::EMPTY);
    let units = units.as_mut_ptr();
    for wanted in cut_at_multiples(rows, TILE_ROWS) {
        // Sixteen rows of the matrix, of which those wanted are stored.
        let first = Blocks::first_row(w, wanted.start);
        let mut ahead = RowsAhead::new(w.row(first).as_ptr(), TILE_ROWS, w, x[0].cols());
        let mut sums = [[0f32; TILE_ROWS]; T];
        for g in 0..groups.div_ceil(8) {
            let of = 8 * g..groups.min(8 * g + 8);
            let blocks = Blocks::of::<Q>(w, first, g, of.len(), &mut copy);
            // SAFETY: sixteen rows, and the units of at most 256 of their columns; the rest by the caller's promise.
            unsafe {
                for u in 0..of.len() * 32 / Q::BLOCK {
                    let unit = units.add(TILE_ROWS * Q::BYTES * u);
                    pack::<Avx2, Q>(blocks.first.add(u * Q::BYTES), blocks.stride, unit);
                }
                let ahead = &mut |_: *const u8, bytes, _| ahead.ask(bytes);
                both_halves::<S, Q, T>(units, of, x, &mut sums, ahead);
            }
        }
        for (t, sums) in tokens.clone().zip(&sums) {
            // SAFETY: the elements are ours by the caller's promise.
            let out = unsafe { out.row_mut(t, wanted.clone()) };
            out.copy_from_slice(&sums[wanted.start - first..][..wanted.len()]);
        }
    }
}

/// Rows of floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn floats(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    // SAFETY: by the caller's promise.
    unsafe {
        match w.weight_type() {
            WeightType::F32 => float::<PairsOfF32>(rows, w, x, out),
            WeightType::F16 => float::<PairsOfF16>(rows, w, x, out),
            _ => float::<PairsOfBf16>(rows, w, x, out),
        }
    }
}

/// Expands `$body` for each number below `$n`, at most 4, which is a constant in each expansion.
macro_rules! each {
    ($n:expr, $i:ident => $body:expr) => {
        each!(@ $n, $i => $body; 0 1 2 3)
    };
    (@ $n:expr, $i:ident => $body:expr; $($k:literal)*) => {
        $(if $k < $n {
            let $i = $k;
            $body
        })*
    };
}

/// `R` rows for `T` tokens. The operations of each row and token, and their order, are the same for any `T`, and those of tiles.
#[inline(always)]
unsafe fn dot<Q: RowsAvx2, const R: usize, const T: usize>(
    row: [*const u8; R],
    w: &Matrix<'_>,
    x: &[Tokens<'_>; T],
) -> [[f32; R]; T] {
    const { assert!(R == 8) };
    // SAFETY: the caller passes whole rows of x.cols() weights, a multiple of 32.
    unsafe {
        let xq: [&[i16]; T] = std::array::from_fn(|t| x[t].q16());
        let count = xq[0].len() / 32;
        let mut total = [_mm256_setzero_ps(); T];
        let mut ahead = RowsAhead::new(row[0], R, w, 32 * count);
        let mut scales = Scales { d: [[0.0; 8]; 16], m: [[0.0; 8]; 16] };
        for g in 0..count.div_ceil(8) {
            ahead.ask(R * 256 / Q::BLOCK * Q::BYTES);
            let groups = 8 * g..count.min(8 * g + 8);
            scales.read::<Q, R>(&row, groups.clone());
            let mut acc = [_mm256_setzero_ps(); T];
            if groups.len() == 8 {
                for first in (0..8).step_by(Q::PHASES) {
                    // Each has its own code: the bits that a group uses of its bytes are a constant.
                    each!(Q::PHASES / Q::TOGETHER, part => {
                        let first = first + Q::TOGETHER * part;
                        add::<Q, R, T>(&row, g, first..first + Q::TOGETHER, &xq, x, &scales, &mut acc);
                    });
                }
            } else {
                for i in 0..groups.len() {
                    add::<Q, R, T>(&row, g, i..i + 1, &xq, x, &scales, &mut acc);
                }
            }
            for t in 0..T {
                total[t] = _mm256_fmadd_ps(acc[t], _mm256_set1_ps(x[t].scale()[g]), total[t]);
            }
        }
        let mut out = [[0.0; R]; T];
        for t in 0..T {
            _mm256_storeu_ps(out[t].as_mut_ptr(), total[t]);
        }
        out
    }
}

/// The scales and offsets of eight rows × 256 weights.
#[repr(align(32))]
struct Scales {
    /// `[group][scale][row]`
    d: [[f32; 8]; 16],
    /// `[group][offset][row]`
    m: [[f32; 8]; 16],
}

impl Scales {
    /// Reads those of groups `b` of the rows.
    #[inline(always)]
    unsafe fn read<Q: RowsAvx2, const R: usize>(&mut self, row: &[*const u8; R], b: Range<usize>) {
        // SAFETY: the rows have these groups; the callers' CPU has AVX2.
        unsafe {
            if Q::EIGHT && b.len() == 8 {
                // In loops: closures passed to the standard library are not compiled for AVX2.
                let mut eight = [Eight::NONE; 8];
                for r in 0..8 {
                    eight[r] = Q::eight(row[r], b.start / 8);
                }
                let mut v = [_mm256_setzero_ps(); 8];
                for half in 0..Q::SCALES {
                    for r in 0..8 {
                        v[r] = _mm256_loadu_ps(eight[r].d.as_ptr().add(8 * half));
                    }
                    put_transposed(v, &mut self.d[8 * half..]);
                }
                if Q::OFFSETS != 0 {
                    for r in 0..8 {
                        v[r] = _mm256_loadu_ps(eight[r].m.as_ptr());
                    }
                    put_transposed(v, &mut self.m);
                }
                return;
            }
            for (i, b) in b.enumerate() {
                for r in 0..R {
                    let group = Q::group256(row[r], b);
                    for part in 0..Q::SCALES {
                        self.d[Q::SCALES * i + part][r] = group.d[part];
                    }
                    for h in 0..Q::OFFSETS {
                        self.m[Q::OFFSETS * i + h][r] = group.m[h];
                    }
                }
            }
        }
    }
}

/// Stores an 8 × 8 matrix of floats, transposed.
#[inline(always)]
unsafe fn put_transposed(v: [__m256; 8], to: &mut [[f32; 8]]) {
    assert!(to.len() >= 8);
    // SAFETY: eight rows of eight, as asserted; the callers' CPU has AVX2.
    unsafe {
        // Pairs of rows, then fours, then both halves.
        let mut a = v;
        for i in 0..4 {
            a[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
            a[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
        }
        let mut b = a;
        for i in 0..2 {
            for h in 0..2 {
                let (low, high) = (a[4 * i + h], a[4 * i + 2 + h]);
                b[4 * i + 2 * h] = _mm256_shuffle_ps::<0b01_00_01_00>(low, high);
                b[4 * i + 2 * h + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(low, high);
            }
        }
        for c in 0..4 {
            let low = _mm256_permute2f128_ps::<0x20>(b[c], b[4 + c]);
            let high = _mm256_permute2f128_ps::<0x31>(b[c], b[4 + c]);
            _mm256_storeu_ps(to[c].as_mut_ptr(), low);
            _mm256_storeu_ps(to[4 + c].as_mut_ptr(), high);
        }
    }
}

/// Adds groups `which` of the `g`-th 256 weights, at most two of them: their products with the integers `xq` of the tokens, and offsets times the
/// sums of these.
#[inline(always)]
unsafe fn add<Q: RowsAvx2, const R: usize, const T: usize>(
    row: &[*const u8; R],
    g: usize,
    which: Range<usize>,
    xq: &[&[i16]; T],
    x: &[Tokens<'_>; T],
    scales: &Scales,
    acc: &mut [__m256; T],
) {
    // SAFETY: by the caller's promise; tokens have as many sums as groups.
    unsafe {
        // `[group][part]`, four rows and then the other four.
        let mut halves = [[[[_mm256_setzero_si256(); 2]; 2]; 2]; T];
        for half in 0..2 {
            let mut p = [[[[_mm256_setzero_si256(); 4]; 2]; 2]; T];
            for r in 0..4 {
                for (n, i) in which.clone().enumerate() {
                    let w = Q::words(row[4 * half + r], 8 * g + i);
                    for t in 0..T {
                        let at = xq[t].as_ptr().add(32 * (8 * g + i));
                        let p0 = _mm256_madd_epi16(w[0], _mm256_loadu_si256(at.cast()));
                        let p1 = _mm256_madd_epi16(w[1], _mm256_loadu_si256(at.add(16).cast()));
                        if Q::SCALES == 2 {
                            (p[t][n][0][r], p[t][n][1][r]) = (p0, p1);
                        } else {
                            p[t][n][0][r] = _mm256_add_epi32(p0, p1);
                        }
                    }
                }
            }
            for t in 0..T {
                for n in 0..which.len() {
                    for part in 0..Q::SCALES {
                        halves[t][n][part][half] = lanes_added(p[t][n][part]);
                    }
                }
            }
        }
        for t in 0..T {
            for (n, i) in which.clone().enumerate() {
                let b = 8 * g + i;
                for part in 0..Q::SCALES {
                    let [a, c] = halves[t][n][part];
                    let sums = _mm256_add_epi32(
                        _mm256_permute2x128_si256::<0x20>(a, c),
                        _mm256_permute2x128_si256::<0x31>(a, c),
                    );
                    let of = *x[t].sums_for(Q::SCALES).get_unchecked(Q::SCALES * b + part);
                    let f = without_zero::<Q>(sums, of);
                    let d = _mm256_loadu_ps(scales.d[Q::SCALES * i + part].as_ptr());
                    acc[t] = _mm256_fmadd_ps(f, d, acc[t]);
                }
                for h in 0..Q::OFFSETS {
                    let of = *x[t].sums_for(Q::OFFSETS).get_unchecked(Q::OFFSETS * b + h);
                    let m = _mm256_loadu_ps(scales.m[Q::OFFSETS * i + h].as_ptr());
                    acc[t] = _mm256_fmadd_ps(m, _mm256_set1_ps(of), acc[t]);
                }
            }
        }
    }
}

/// The sums of each half of four registers: half `i` of the result has those of half `i` of all four.
#[inline(always)]
unsafe fn lanes_added(v: [__m256i; 4]) -> __m256i {
    // SAFETY: the callers' CPU has AVX2.
    unsafe {
        let [a, b, c, d] = v;
        let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd))
    }
}

/// The float of sums of codes without their zero point times activations, whose sum is `of`: of the codes themselves, rounded, minus the zero point
/// times `of`.
#[inline(always)]
unsafe fn without_zero<Q: RowsAvx2>(sums: __m256i, of: f32) -> __m256 {
    // SAFETY: the callers' CPU has AVX2.
    unsafe {
        if Q::ZERO == 0 {
            return _mm256_cvtepi32_ps(sums);
        }
        let sums = _mm256_add_epi32(sums, _mm256_set1_epi32(Q::ZERO * of as i32));
        let zero = _mm256_set1_ps(Q::ZERO as f32);
        _mm256_fnmadd_ps(zero, _mm256_set1_ps(of), _mm256_cvtepi32_ps(sums))
    }
}

/// Four columns of two rows.
trait FloatPairs {
    /// `[row][4 columns]`
    ///
    /// # Safety
    /// The columns exist, the CPU has AVX2 and F16C.
    unsafe fn load(row: [*const u8; 2]) -> __m256;
}

struct PairsOfF32;
struct PairsOfF16;
struct PairsOfBf16;

impl FloatPairs for PairsOfF32 {
    #[inline(always)]
    unsafe fn load(row: [*const u8; 2]) -> __m256 {
        // SAFETY: by the caller's promise.
        unsafe { _mm256_loadu2_m128(row[1].cast(), row[0].cast()) }
    }
}

impl FloatPairs for PairsOfF16 {
    #[inline(always)]
    unsafe fn load(row: [*const u8; 2]) -> __m256 {
        // SAFETY: by the caller's promise.
        unsafe { _mm256_cvtph_ps(eight_bytes(row)) }
    }
}

impl FloatPairs for PairsOfBf16 {
    #[inline(always)]
    unsafe fn load(row: [*const u8; 2]) -> __m256 {
        // SAFETY: by the caller's promise.
        unsafe {
            let v = _mm256_cvtepu16_epi32(eight_bytes(row));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v))
        }
    }
}

/// Eight bytes of each of two rows.
#[inline(always)]
unsafe fn eight_bytes(row: [*const u8; 2]) -> __m128i {
    // SAFETY: by the caller's promise.
    unsafe { _mm_unpacklo_epi64(_mm_loadl_epi64(row[0].cast()), _mm_loadl_epi64(row[1].cast())) }
}

/// Rows of floats that are multiplied together: as many as there are registers for their addresses.
const FLOAT_ROWS: usize = 8;

/// Float rows: four sums over every fourth column, as in tiles.
#[inline(always)]
unsafe fn float<F: FloatPairs>(
    rows: Range<usize>,
    w: &Matrix<'_>,
    x: &Tokens<'_>,
    out: Output<'_>,
) {
    let (ty, cols) = (w.weight_type(), w.cols());
    let size = ty.block_bytes();
    let whole = cols / 4 * 4;
    for first in rows.clone().step_by(FLOAT_ROWS) {
        let end = rows.end.min(first + FLOAT_ROWS);
        for t in 0..x.tokens() {
            let x = x.float(t);
            let mut sums = [[0f32; 4]; FLOAT_ROWS];
            // SAFETY: k + 4 ≤ cols, the number of weights of each row and of the token; the callers' CPU has AVX2, and the elements are ours by their
            // promise.
            unsafe {
                let mut row = [[std::ptr::null(); 2]; FLOAT_ROWS / 2];
                for (i, row) in row.as_flattened_mut().iter_mut().enumerate() {
                    *row = w.row(end.min(first + i + 1) - 1).as_ptr();
                }
                let mut acc = [_mm256_setzero_ps(); FLOAT_ROWS / 2];
                let mut ahead = RowsAhead::new(row[0][0], FLOAT_ROWS, w, cols);
                for k in (0..whole).step_by(4) {
                    if k % 256 == 0 {
                        ahead.ask(FLOAT_ROWS * size * (cols - k).min(256));
                    }
                    let x = _mm256_broadcast_ps(&*x.as_ptr().add(k).cast());
                    for i in 0..FLOAT_ROWS / 2 {
                        let [a, b] = row[i];
                        let v = F::load([a.add(k * size), b.add(k * size)]);
                        acc[i] = _mm256_fmadd_ps(v, x, acc[i]);
                    }
                }
                for (i, acc) in acc.into_iter().enumerate() {
                    _mm256_storeu_ps(sums[2 * i..].as_mut_ptr().cast(), acc);
                }
                let out = out.row_mut(t, first..end);
                for (i, (out, sums)) in out.iter_mut().zip(&mut sums).enumerate() {
                    let rest = &w.row(first + i)[whole * size..];
                    *out = scalar::finish_float(ty, rest, &x[whole..], sums, f32::mul_add);
                }
            }
        }
    }
}
