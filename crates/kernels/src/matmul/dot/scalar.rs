//! Portable dot products: the meaning that the SIMD levels must reproduce, in loops that compilers vectorise for any CPU.

use crate::blocks::{BlockFormat, Group32, WeightType, with_block};
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::matmul::sizes::cut_at_multiples;
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::{Layout, TILE_ROWS};
use std::ops::Range;

/// Tokens that share what is made of the weights.
const TOKENS: usize = 4;

/// # Safety
/// As for `dot::rows`.
pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    let ty = w.weight_type();
    // Blocks are unpacked from a tile for all of its rows.
    let together = if w.layout() == Layout::Tiles { TILE_ROWS } else { 1 };
    let mut unpacked = [0; TILE_ROWS * MOST_BYTES];
    for first in (0..x.tokens()).step_by(TOKENS) {
        let count = TOKENS.min(x.tokens() - first);
        let mut some = [x.one(first); TOKENS];
        for (i, one) in some[..count].iter_mut().enumerate() {
            *one = x.one(first + i);
        }
        for Range { start: r, end } in cut_at_multiples(rows.clone(), together) {
            let mut sums = [[0f32; TILE_ROWS]; TOKENS];
            with_block!(
                ty,
                Q => quantized::<Q>(w, r..end, &some[..count], &mut unpacked, &mut sums),
                for (x, sums) in some[..count].iter().zip(&mut sums) {
                    match w.layout() {
                        Layout::Rows => sums[0] = float(ty, w.row(r), x.float(0)),
                        Layout::Tiles => float_tile(w, r, x.float(0), &mut sums[..end - r]),
                    }
                }
            );
            for (t, sums) in sums[..count].iter().enumerate() {
                // SAFETY: the elements are ours by the caller's promise.
                let out = unsafe { out.row_mut(first + t, r..end) };
                out.copy_from_slice(&sums[..end - r]);
            }
        }
    }
}

/// Bytes that 256 weights take at most.
const MOST_BYTES: usize = 288;

/// Σ_g a_g Σ_b (d_b·Σ (q − ZERO)·x + m_b·Σ x), g over 256 values, b over 32 or 16, of rows of one tile, or of one row.
/// The blocks of a tile are unpacked into `unpacked`.
#[inline(never)]
fn quantized<Q: BlockFormat>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &[Tokens<'_>],
    unpacked: &mut [u8; TILE_ROWS * MOST_BYTES],
    sums: &mut [[f32; TILE_ROWS]; TOKENS],
) {
    const { assert!(256 / Q::BLOCK * Q::BYTES <= MOST_BYTES) };
    let cols = x[0].cols();
    let mut words = Words { q: [[0; 16]; 16], d: [0.0; 16], m: [0.0; 16] };
    for g in 0..cols.div_ceil(256) {
        let blocks = 256 * g / Q::BLOCK..cols.min(256 * g + 256) / Q::BLOCK;
        if w.layout() == Layout::Tiles {
            let units = unpacked.chunks_exact_mut(TILE_ROWS * Q::BYTES);
            for (at, unit) in blocks.clone().zip(units) {
                w.unpack_unit::<Q>(rows.start / TILE_ROWS, at, unit);
            }
        }
        for (i, r) in rows.clone().enumerate() {
            // The first block of the row, and how far it is to the next.
            let (first, apart) = match w.layout() {
                Layout::Rows => (&w.row(r)[blocks.start * Q::BYTES..], Q::BYTES),
                Layout::Tiles => (&unpacked[r % TILE_ROWS * Q::BYTES..], TILE_ROWS * Q::BYTES),
            };
            words.unpack::<Q>(first, apart, blocks.len());
            for (x, sums) in x.iter().zip(&mut *sums) {
                sums[i] += match Q::OFFSETS {
                    0 => words.products::<0>(g, x),
                    1 => words.products::<1>(g, x),
                    _ => words.products::<2>(g, x),
                };
            }
        }
    }
}

/// 256 weights, or those that are left at the end of a row.
#[repr(align(16))]
struct Words {
    /// Codes less their zero point.
    q: [[i16; 16]; 16],
    d: [f32; 16],
    m: [f32; 16],
}

impl Words {
    /// `count` blocks, which begin so many bytes `apart`. A function of its own, so that the compiler knows that no store changes a block: it
    /// would otherwise make what all groups of a block have in common for each of them.
    #[inline(never)]
    fn unpack<Q: BlockFormat>(&mut self, blocks: &[u8], apart: usize, count: usize) {
        let per_block = Q::BLOCK / 32;
        for n in 0..count {
            let block = &blocks[n * apart..][..Q::BYTES];
            // A copy for each group, in which it is a constant: so its shifts and the places of its scales are, too.
            macro_rules! put {
                ($($b:literal)*) => {
                    $(self.put(per_block * n + $b, Q::ZERO, &Q::group(block, $b));)*
                };
            }
            put!(0);
            if per_block > 1 {
                put!(1);
            }
            if per_block > 2 {
                put!(2 3);
            }
            if per_block > 4 {
                put!(4 5 6 7);
            }
        }
    }

    /// Group `b` of 32.
    #[inline(always)]
    fn put(&mut self, b: usize, zero: i32, u: &Group32) {
        let (codes, _) = u.q.as_chunks::<16>();
        for h in 0..2 {
            widen(&codes[h], zero as i16, &mut self.q[2 * b + h]);
            self.d[2 * b + h] = u.d[h];
            self.m[2 * b + h] = u.m[h];
        }
    }

    /// The products with values `256·g ..` of a token. A function of its own for all types, which have `OFFSETS` for 32 weights.
    #[inline(never)]
    fn products<const OFFSETS: usize>(&self, g: usize, x: &Tokens<'_>) -> f32 {
        let xq = x.q16()[256 * g..].as_chunks::<16>().0;
        let sums = &x.sums_for(OFFSETS)[8 * OFFSETS * g..];
        let group = match xq.first_chunk() {
            Some(xq) => self.group::<OFFSETS>(xq, 8, sums),
            None => {
                // The end of a row, and zeros.
                let mut all = [[0; 16]; 16];
                all[..xq.len()].copy_from_slice(xq);
                self.group::<OFFSETS>(&all, xq.len() / 2, sums)
            }
        };
        x.scale()[g] * group
    }

    /// The products of `groups` groups of 32, which have `sums` `[groups][OFFSETS]`.
    #[inline(always)]
    fn group<const OFFSETS: usize>(
        &self,
        xq: &[[i16; 16]; 16],
        groups: usize,
        sums: &[f32],
    ) -> f32 {
        let mut terms = [[0f32; 4]; 4];
        let (w, x) = (self.q.as_chunks::<4>().0, xq.as_chunks::<4>().0);
        let d = self.d.as_chunks::<4>().0;
        for i in 0..4 {
            let sums = four_sums(&w[i], &x[i]);
            for j in 0..4 {
                terms[i][j] = d[i][j] * sums[j] as f32;
            }
        }
        let (terms, sums) = (terms.as_flattened(), &sums[..OFFSETS * groups]);
        let mut group = 0f32;
        for b in 0..groups {
            group += terms[2 * b] + terms[2 * b + 1];
            for h in 0..OFFSETS {
                group += self.m[2 * b + h] * sums[OFFSETS * b + h];
            }
        }
        group
    }
}

/// Codes less their zero point as words: by instructions of SSE2, since LLVM 21 takes the loop apart, and moves bytes one at a time.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn widen(codes: &[u8; 16], zero: i16, to: &mut [i16; 16]) {
    use std::arch::x86_64::*;
    // SAFETY: whole registers of the arrays; SSE2 is part of the architecture.
    unsafe {
        let (v, zero) = (_mm_loadu_si128(codes.as_ptr().cast()), _mm_set1_epi16(zero));
        let none = _mm_setzero_si128();
        let words = [_mm_unpacklo_epi8(v, none), _mm_unpackhi_epi8(v, none)];
        for (i, words) in words.into_iter().enumerate() {
            let to = to.as_mut_ptr().add(8 * i);
            _mm_storeu_si128(to.cast(), _mm_sub_epi16(words, zero));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn widen(codes: &[u8; 16], zero: i16, to: &mut [i16; 16]) {
    widen_by_loops(codes, zero, to);
}

/// What [`widen`] computes.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn widen_by_loops(codes: &[u8; 16], zero: i16, to: &mut [i16; 16]) {
    for (to, code) in to.iter_mut().zip(codes) {
        *to = i16::from(*code) - zero;
    }
}

/// Four times the sum of 16 products, which fit 32 bits. By instructions of SSE2, since LLVM 21 sums the lanes of each alone.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn four_sums(w: &[[i16; 16]; 4], x: &[[i16; 16]; 4]) -> [i32; 4] {
    use std::arch::x86_64::*;
    // SAFETY: whole registers of the arrays; SSE2 is part of the architecture.
    unsafe {
        let load = |v: &[i16; 16], at: usize| _mm_loadu_si128(v.as_ptr().add(at).cast());
        let products = |i: usize, at: usize| _mm_madd_epi16(load(&w[i], at), load(&x[i], at));
        let one = |i: usize| _mm_add_epi32(products(i, 0), products(i, 8));
        let two = |a, b| _mm_add_epi32(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
        let (a, b) = (two(one(0), one(1)), two(one(2), one(3)));
        let sums = _mm_add_epi32(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
        let mut out = [0; 4];
        _mm_storeu_si128(out.as_mut_ptr().cast(), sums);
        out
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn four_sums(w: &[[i16; 16]; 4], x: &[[i16; 16]; 4]) -> [i32; 4] {
    four_sums_by_loops(w, x)
}

/// What [`four_sums`] computes.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn four_sums_by_loops(w: &[[i16; 16]; 4], x: &[[i16; 16]; 4]) -> [i32; 4] {
    let mut sums = [0; 4];
    for (sum, (w, x)) in sums.iter_mut().zip(w.iter().zip(x)) {
        for i in 0..16 {
            *sum += i32::from(w[i]) * i32::from(x[i]);
        }
    }
    sums
}

/// As [`float`], for rows from row `r` on, which are of one tile.
#[inline(never)]
fn float_tile(w: &Matrix<'_>, r: usize, x: &[f32], out: &mut [f32]) {
    let mut sums = [[0f32; TILE_ROWS]; 8];
    for (k, &x) in x.iter().enumerate() {
        let w = w.tile_floats(r / TILE_ROWS, k);
        for (sum, w) in sums[k % 8].iter_mut().zip(w) {
            *sum += w * x;
        }
    }
    for (i, out) in out.iter_mut().enumerate() {
        *out = sums.iter().map(|sums| sums[r % TILE_ROWS + i]).sum();
    }
}

/// Σ w·x in eight partial sums.
#[inline(always)]
pub(super) fn float(ty: WeightType, row: &[u8], x: &[f32]) -> f32 {
    match ty {
        WeightType::F32 => eight_sums(row, x, f32::from_le_bytes),
        WeightType::F16 => eight_sums(row, x, |b| f16_to_f32(u16::from_le_bytes(b))),
        _ => eight_sums(row, x, |b| bf16_to_f32(u16::from_le_bytes(b))),
    }
}

#[inline(always)]
fn eight_sums<const B: usize>(row: &[u8], x: &[f32], value: impl Fn([u8; B]) -> f32) -> f32 {
    let mut sums = [0f32; 8];
    let (eights, rest) = row.as_chunks::<B>().0.as_chunks::<8>();
    let (x_eights, x_rest) = x.as_chunks::<8>();
    for (w, x) in eights.iter().zip(x_eights) {
        for i in 0..8 {
            sums[i] += value(w[i]) * x[i];
        }
    }
    for (i, (w, x)) in rest.iter().zip(x_rest).enumerate() {
        sums[i] += value(*w) * x;
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that fill their bits, and those beside them.
    fn ends(n: usize) -> [[i16; 16]; 4] {
        let ends = [-32512, -32511, -128, -1, 0, 1, 127, 128, 32511, 32512];
        let value = |i: usize| ends[(i * 7 + n * (1 + i / 10)) % ends.len()];
        std::array::from_fn(|i| std::array::from_fn(|j| value(16 * i + j)))
    }

    #[test]
    fn instructions_compute_what_loops_do() {
        for n in 0..100 {
            // A code less its zero point is a signed byte.
            let w = ends(n).map(|w| w.map(|v| v.clamp(-128, 127)));
            assert_eq!(four_sums(&w, &ends(3 * n)), four_sums_by_loops(&w, &ends(3 * n)));
            let codes = w[n % 4].map(|v| (v + 128) as u8);
            for zero in [0, 8, 128] {
                let (mut words, mut expected) = ([1; 16], [2; 16]);
                widen(&codes, zero, &mut words);
                widen_by_loops(&codes, zero, &mut expected);
                assert_eq!(words, expected, "{codes:?} less {zero}");
            }
        }
    }
}
