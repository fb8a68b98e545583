//! The portable product of several tokens, in loops that compilers vectorise for any CPU.
//!
//! 256 columns of 32 rows are unpacked into words, pairs of columns with the rows side by side; then all tokens pass over each
//! group of 32 of them. Integers are exact, so that the order of their sums is free; the order of floating-point operations for a
//! row and a token is the same for any number of rows and tokens.

use super::Panel;
use crate::blocks::{MAX_BYTES_OF_256, with_block};
use crate::dequant::dequantize_row;
use crate::fields;
use crate::lanes::portable::fma;
use crate::matmul::dot::scalar::{OfType, Words};
use crate::matmul::sizes::PANEL_ROWS;
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::{Layout, TILE_ROWS};
use std::ops::Range;

/// Number of tokens whose sums are kept between groups.
const TOKENS: usize = super::MAX_K_FLOAT;

/// Rows whose sums are in a register of 128 bits.
const LANES: usize = 4;

/// Registers of a panel's rows.
const VECTORS: usize = PANEL_ROWS / LANES;

/// 32 columns of a panel's rows.
#[repr(align(16))]
struct PanelGroup {
    /// Codes minus their zero point: `[columns / 2][rows / 4][4 rows][2 columns]`.
    q: [[[i16; 2 * LANES]; VECTORS]; 16],
    d: [[f32; PANEL_ROWS]; 2],
    m: [[f32; PANEL_ROWS]; 2],
}

/// # Safety
/// As for `gemm::rows`.
pub(super) unsafe fn panel(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &mut Panel,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        with_block!(
            w.weight_type(),
            Q => {
                for first in (0..x.tokens()).step_by(TOKENS) {
                    let tokens = first..x.tokens().min(first + TOKENS);
                    let sums = &mut p.float.as_chunks_mut().0[..tokens.len()];
                    begin(rows.clone(), k.start == 0, tokens.clone(), sums, out);
                    multiply(&OfType::of::<Q>(), w, rows.clone(), k.clone(), x, tokens.clone(), sums);
                    store(rows.clone(), tokens, sums, out);
                }
            },
            {
                fill_float(w, rows.clone(), k.clone(), p);
                multiply_float(rows, k, x, out, p, fma);
            }
        )
    }
}

/// Reads the sums of the previous stretches of columns; zeros before the first.
///
/// # Safety
/// As for `gemm::rows`.
unsafe fn begin(
    rows: Range<usize>,
    is_first: bool,
    tokens: Range<usize>,
    sums: &mut [[f32; PANEL_ROWS]],
    out: Output<'_>,
) {
    sums.fill([0.0; PANEL_ROWS]);
    if !is_first {
        for (t, sums) in tokens.zip(sums) {
            // SAFETY: by the caller's promise.
            let out = unsafe { out.row_mut(t, rows.clone()) };
            sums[..out.len()].copy_from_slice(out);
        }
    }
}

/// Writes the sums of a stretch of columns and those before it.
///
/// # Safety
/// As for `gemm::rows`.
unsafe fn store(
    rows: Range<usize>,
    tokens: Range<usize>,
    sums: &[[f32; PANEL_ROWS]],
    out: Output<'_>,
) {
    for (t, sums) in tokens.zip(sums) {
        // SAFETY: by the caller's promise.
        let out = unsafe { out.row_mut(t, rows.clone()) };
        out.copy_from_slice(&sums[..out.len()]);
    }
}

/// Adds a stretch of columns to the sums of `tokens`.
#[inline(never)]
fn multiply(
    ty: &OfType,
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    tokens: Range<usize>,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let first = rows.start / TILE_ROWS * TILE_ROWS;
    let mut tiles = [0; PANEL_ROWS * MAX_BYTES_OF_256];
    let mut words = Words::NONE;
    let mut groups = [const { PanelGroup::NONE }; 8];
    for start in k.clone().step_by(256) {
        let columns = (k.end - start).min(256);
        let (at, count) = (start / ty.block, columns / ty.block);
        let row_bytes = count * ty.bytes;
        if w.layout() == Layout::Tiles {
            let tiles = tiles.chunks_exact_mut(TILE_ROWS * row_bytes);
            for (i, to) in (first / TILE_ROWS..rows.end.div_ceil(TILE_ROWS)).zip(tiles) {
                for b in 0..count {
                    let unit = w.unit(i, at + b, ty.bytes);
                    fields::unpack(ty.fields, unit, &mut to[b * ty.bytes..], row_bytes);
                }
            }
        }
        for (i, r) in rows.clone().enumerate() {
            let blocks = match w.layout() {
                Layout::Rows => &w.row(r)[at * ty.bytes..][..row_bytes],
                Layout::Tiles => &tiles[(r - first) * row_bytes..][..row_bytes],
                Layout::Planes => unreachable!("planes are multiplied as tiles"),
            };
            (ty.unpack)(&mut words, blocks, count);
            for (g, group) in groups[..columns / 32].iter_mut().enumerate() {
                group.put(i, &words, g);
            }
        }
        for (g, group) in groups[..columns / 32].iter().enumerate() {
            for (t, sums) in tokens.clone().zip(&mut *sums) {
                group.multiply([ty.scales, ty.offsets], start / 32 + g, x, t, sums);
            }
        }
    }
}

impl PanelGroup {
    /// No weights.
    const NONE: PanelGroup = PanelGroup {
        q: [[[0; 2 * LANES]; VECTORS]; 16],
        d: [[0.0; PANEL_ROWS]; 2],
        m: [[0.0; PANEL_ROWS]; 2],
    };

    /// Row `i`: group `g` of its words.
    #[inline(always)]
    fn put(&mut self, i: usize, words: &Words, g: usize) {
        let (v, lane) = (i / LANES, i % LANES);
        let pairs = words.q[2 * g..][..2].as_flattened().as_chunks::<2>().0;
        for (q, pair) in self.q.iter_mut().zip(pairs) {
            q[v].as_chunks_mut::<2>().0[lane] = *pair;
        }
        for h in 0..2 {
            self.d[h][i] = words.d[2 * g + h];
            self.m[h][i] = words.m[2 * g + h];
        }
    }

    /// Adds the products with token `t` for its group `g`. One function for all types with the same numbers of scales and offsets
    /// per 32 weights.
    #[inline(never)]
    fn multiply(
        &self,
        [scales, offsets]: [usize; 2],
        g: usize,
        x: &Tokens<'_>,
        t: usize,
        out: &mut [f32; PANEL_ROWS],
    ) {
        let at = t * (x.cols() / 32) + g;
        let a = x.scale()[at];
        // SAFETY: the integers of token t, which has a scale for them.
        let q: &[i8; 32] = unsafe { &*x.q8().add(32 * at).cast() };
        let mut words = [[0i16; 2]; 16];
        for i in 0..32 {
            words[i / 2][i % 2] = i16::from(q[i]);
        }
        for part in 0..scales {
            let columns = 16 / scales;
            let at = columns * part;
            let sums = products(&self.q[at..][..columns], &words[at..][..columns]);
            for i in 0..PANEL_ROWS {
                out[i] = fma(sums[i] as f32, self.d[part][i] * a, out[i]);
            }
        }
        for h in 0..offsets {
            let s = x.sums_for(offsets)[offsets * at + h];
            for i in 0..PANEL_ROWS {
                out[i] = fma(self.m[h][i], s, out[i]);
            }
        }
    }
}

/// Σ w·x over pairs of columns.
#[inline(always)]
fn products(w: &[[[i16; 2 * LANES]; VECTORS]], x: &[[i16; 2]]) -> [i32; PANEL_ROWS] {
    let mut sums = [[0; LANES]; VECTORS];
    for (w, x) in w.iter().zip(x) {
        for v in 0..VECTORS {
            add_pairs(&mut sums[v], &w[v], *x);
        }
    }
    let mut all = [0; PANEL_ROWS];
    all.copy_from_slice(sums.as_flattened());
    all
}

/// Adds to each sum the products of two words with those of `x`: one SSE2 instruction, which LLVM 21 does not find here by itself
/// (it multiplies and shuffles instead, six times as slowly).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn add_pairs(sums: &mut [i32; LANES], w: &[i16; 2 * LANES], x: [i16; 2]) {
    use std::arch::x86_64::*;
    // SAFETY: whole registers of the arrays; SSE2 is part of the architecture.
    unsafe {
        let x = _mm_set1_epi32(i32::from(x[0] as u16) | i32::from(x[1]) << 16);
        let two = _mm_madd_epi16(_mm_loadu_si128(w.as_ptr().cast()), x);
        let sum = _mm_add_epi32(_mm_loadu_si128(sums.as_ptr().cast()), two);
        _mm_storeu_si128(sums.as_mut_ptr().cast(), sum);
    }
}

/// The same in portable code.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn add_pairs(sums: &mut [i32; LANES], w: &[i16; 2 * LANES], x: [i16; 2]) {
    for i in 0..LANES {
        for h in 0..2 {
            sums[i] += i32::from(w[2 * i + h]) * i32::from(x[h]);
        }
    }
}

/// Unpacks a float panel `[K][32]`.
pub(super) fn fill_float(w: &Matrix<'_>, rows: Range<usize>, k: Range<usize>, p: &mut Panel) {
    if w.layout() == Layout::Tiles {
        return fill_float_tiles(w, rows, k, p);
    }
    let size = w.weight_type().block_bytes();
    let mut row = [0f32; super::MAX_K_FLOAT];
    for (i, r) in rows.enumerate() {
        let row = &mut row[..k.len()];
        dequantize_row(w.weight_type(), &w.row(r)[k.start * size..k.end * size], row);
        for (j, &v) in row.iter().enumerate() {
            p.float[j * PANEL_ROWS + i] = v;
        }
    }
}

/// The same from tiles, whose columns are those of a panel.
fn fill_float_tiles(w: &Matrix<'_>, rows: Range<usize>, k: Range<usize>, p: &mut Panel) {
    for tile in rows.start / TILE_ROWS..rows.end.div_ceil(TILE_ROWS) {
        let wanted = rows.start.max(TILE_ROWS * tile)..rows.end.min(TILE_ROWS * (tile + 1));
        let (from, to) = (wanted.start % TILE_ROWS, wanted.start - rows.start);
        for (j, k) in k.clone().enumerate() {
            let v = w.tile_floats(tile, k);
            p.float[j * PANEL_ROWS + to..][..wanted.len()]
                .copy_from_slice(&v[from..][..wanted.len()]);
        }
    }
}

/// One sum over all columns; `fma` is the fused multiply-add of the level.
///
/// # Safety
/// As for `gemm::rows`.
#[inline(always)]
pub(super) unsafe fn multiply_float(
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &Panel,
    fma: impl Fn(f32, f32, f32) -> f32,
) {
    for t in 0..x.tokens() {
        // SAFETY: by the caller's promise.
        let out = unsafe { out.row_mut(t, rows.clone()) };
        let mut acc = [0f32; PANEL_ROWS];
        if k.start != 0 {
            acc[..out.len()].copy_from_slice(out);
        }
        for (w, &x) in p.float.chunks_exact(PANEL_ROWS).zip(&x.float(t)[k.clone()]) {
            for (acc, &w) in acc.iter_mut().zip(w) {
                *acc = fma(w, x, *acc);
            }
        }
        out.copy_from_slice(&acc[..out.len()]);
    }
}
