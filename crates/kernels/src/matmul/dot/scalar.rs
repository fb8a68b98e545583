//! Portable dot products: the reference that the SIMD levels must reproduce, in loops that compilers vectorise for any CPU.
//!
//! Only the unpacking of weights has code of its own for each type, see [`OfType`].

use crate::blocks::{BlockFormat, Group32, Line, TileGroup, WeightType, with_block, with_tiles};
use crate::fields::Field;
use crate::half::{bf16_to_f32, f16_to_f32};
use crate::lanes::portable::fma;
use crate::matmul::sizes::cut_at_multiples;
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::{Layout, TILE_ROWS};
use std::ops::Range;

/// Tokens that share the unpacked weights.
const TOKENS: usize = 4;

/// # Safety
/// As for `dot::rows`.
pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    let ty = w.weight_type();
    // Tiles are multiplied whole.
    let together = if w.layout() == Layout::Tiles { TILE_ROWS } else { 1 };
    for first in (0..x.tokens()).step_by(TOKENS) {
        let count = TOKENS.min(x.tokens() - first);
        let mut some = [x.one(first); TOKENS];
        for (i, one) in some[..count].iter_mut().enumerate() {
            *one = x.one(first + i);
        }
        let some = &some[..count];
        for Range { start: r, end } in cut_at_multiples(rows.clone(), together) {
            // Sums of the row, or of the rows of its tile.
            let mut sums = [[0f32; TILE_ROWS]; TOKENS];
            match w.layout() {
                Layout::Rows => with_block!(
                    ty,
                    Q => row(&OfType::of::<Q>(), w, r, some, &mut sums),
                    for (x, sums) in some.iter().zip(&mut sums) {
                        sums[0] = float(ty, w.row(r), x.float(0));
                    }
                ),
                Layout::Tiles => with_tiles!(
                    ty,
                    Q => tile(&OfType::of::<Q>(), unpack_group::<Q>, w, r / TILE_ROWS, some, &mut sums),
                    for (x, sums) in some.iter().zip(&mut sums) {
                        float_tile(w, r / TILE_ROWS, x.float(0), sums);
                    }
                ),
                Layout::Planes => unreachable!("planes are multiplied as tiles"),
            }
            for (t, sums) in sums[..count].iter().enumerate() {
                // SAFETY: the elements are ours by the caller's promise.
                let out = unsafe { out.row_mut(first + t, r..end) };
                out.copy_from_slice(&sums[r % together..][..end - r]);
            }
        }
    }
}

/// A block type as portable products see it: its [constants](BlockFormat), and the function that unpacks a row's weights.
pub(in crate::matmul) struct OfType {
    pub(in crate::matmul) block: usize,
    pub(in crate::matmul) bytes: usize,
    pub(in crate::matmul) zero: i32,
    pub(in crate::matmul) scales: usize,
    pub(in crate::matmul) offsets: usize,
    pub(in crate::matmul) fields: &'static [Field],
    /// Unpacks the given number of blocks, at most 256 weights.
    pub(in crate::matmul) unpack: fn(&mut Words, &[u8], usize),
}

impl OfType {
    #[inline(always)]
    pub(in crate::matmul) const fn of<Q: BlockFormat>() -> OfType {
        OfType {
            block: Q::BLOCK,
            bytes: Q::BYTES,
            zero: Q::ZERO,
            scales: Q::SCALES,
            offsets: Q::OFFSETS,
            fields: Q::FIELDS,
            unpack: Words::unpack::<Q>,
        }
    }
}

/// Σ_g a_g Σ_b (d_b·Σ (q − ZERO)·x + m_b·Σ x), g over 256 values, b over 32 or 16, of a row.
#[inline(never)]
fn row(
    ty: &OfType,
    w: &Matrix<'_>,
    r: usize,
    x: &[Tokens<'_>],
    sums: &mut [[f32; TILE_ROWS]; TOKENS],
) {
    let cols = x[0].cols();
    let mut words = Words::NONE;
    for g in 0..cols.div_ceil(256) {
        let blocks = 256 * g / ty.block..cols.min(256 * g + 256) / ty.block;
        (ty.unpack)(&mut words, &w.row(r)[blocks.start * ty.bytes..], blocks.len());
        for (x, sums) in x.iter().zip(&mut *sums) {
            sums[0] = fma(words.products(ty, g, x), x.scale()[g], sums[0]);
        }
    }
}

/// The float of an integer sum Σ (q − zero)·x, if Σ x is `of`: as the SIMD levels compute it, which multiply the codes q themselves.
#[inline(always)]
fn without_zero(sum: i32, zero: i32, of: f32) -> f32 {
    if zero == 0 {
        return sum as f32;
    }
    fma(-zero as f32, of, (sum + zero * of as i32) as f32)
}

/// As [`row`], for all rows of tile `i`: the operations of each, and their order, are the same.
#[inline(never)]
fn tile(
    ty: &OfType,
    unpack_group: fn(&[u8], usize, &mut TileGroup),
    w: &Matrix<'_>,
    i: usize,
    x: &[Tokens<'_>],
    sums: &mut [[f32; TILE_ROWS]; TOKENS],
) {
    let (groups, per_unit) = (x[0].cols() / 32, ty.block / 32);
    let mut acc = [[0f32; TILE_ROWS]; TOKENS];
    let mut unpacked = TileGroup::NONE;
    for (n, unit) in w.tile(i).chunks_exact(TILE_ROWS * ty.bytes).enumerate() {
        for g in 0..per_unit {
            let b = per_unit * n + g;
            unpack_group(unit, g, &mut unpacked);
            for (t, x) in x.iter().enumerate() {
                add_group(ty, &unpacked, b, x, &mut acc[t]);
                if b % 8 == 7 || b + 1 == groups {
                    for (sum, acc) in sums[t].iter_mut().zip(&mut acc[t]) {
                        *sum = fma(std::mem::take(acc), x.scale()[b / 8], *sum);
                    }
                }
            }
        }
    }
}

/// Unpacks group `g` of a unit: separate code for each `g`, in which shifts and positions are constants.
#[inline(never)]
fn unpack_group<Q: BlockFormat>(unit: &[u8], g: usize, to: &mut TileGroup) {
    macro_rules! one_of {
        ($($g:literal)*) => {
            match g {
                $($g if $g < Q::BLOCK / 32 => Q::tile_group(unit, $g, to),)*
                _ => unreachable!("group {g} of a unit"),
            }
        };
    }
    one_of!(0 1 2 3 4 5 6 7)
}

/// Adds the products of group `b` of each row with a token.
#[inline(never)]
fn add_group(ty: &OfType, w: &TileGroup, b: usize, x: &Tokens<'_>, acc: &mut [f32; TILE_ROWS]) {
    let (halves, xq) = (w.q.as_chunks::<4>().0, x.q16()[32 * b..].as_chunks::<16>().0);
    let mut parts =
        [sums_of_rows(&halves[0], ty.zero, &xq[0]), sums_of_rows(&halves[1], ty.zero, &xq[1])];
    if ty.scales == 1 {
        let [first, second] = &mut parts;
        first.iter_mut().zip(second).for_each(|(sum, more)| *sum += *more);
    }
    for (part, sums) in parts[..ty.scales].iter().enumerate() {
        let of = x.sums_for(ty.scales)[ty.scales * b + part];
        for r in 0..TILE_ROWS {
            acc[r] = fma(without_zero(sums[r], ty.zero, of), w.d[part][r], acc[r]);
        }
    }
    let sums = &x.sums_for(ty.offsets)[ty.offsets * b..][..ty.offsets];
    for (h, sum) in sums.iter().enumerate() {
        for r in 0..TILE_ROWS {
            acc[r] = fma(w.m[h][r], *sum, acc[r]);
        }
    }
}

/// 256 weights, or the rest at the end of a row.
#[repr(align(16))]
pub(in crate::matmul) struct Words {
    /// Codes minus their zero point.
    pub(in crate::matmul) q: [[i16; 16]; 16],
    pub(in crate::matmul) d: [f32; 16],
    pub(in crate::matmul) m: [f32; 16],
}

impl Words {
    /// No weights.
    pub(in crate::matmul) const NONE: Words =
        Words { q: [[0; 16]; 16], d: [0.0; 16], m: [0.0; 16] };

    /// Unpacks `count` blocks. A separate function, so that the compiler knows that no store changes a block: it would otherwise
    /// recompute the values shared by all groups of a block for each of them.
    #[inline(never)]
    fn unpack<Q: BlockFormat>(&mut self, blocks: &[u8], count: usize) {
        let per_block = Q::BLOCK / 32;
        for n in 0..count {
            let block = &blocks[n * Q::BYTES..][..Q::BYTES];
            // Separate code for each group, so that its number, and with it its shifts and the positions of its scales, are
            // constants.
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

    /// Stores the `b`-th group of 32.
    #[inline(always)]
    fn put(&mut self, b: usize, zero: i32, u: &Group32) {
        let (codes, _) = u.q.as_chunks::<16>();
        for h in 0..2 {
            widen(&codes[h], zero as i16, &mut self.q[2 * b + h]);
            self.d[2 * b + h] = u.d[h];
            self.m[2 * b + h] = u.m[h];
        }
    }

    /// The products with values `256·g ..` of a token, before the scale of the token's values is applied.
    #[inline(never)]
    fn products(&self, ty: &OfType, g: usize, x: &Tokens<'_>) -> f32 {
        let xq = x.q16()[256 * g..].as_chunks::<16>().0;
        match xq.first_chunk() {
            Some(xq) => self.group(ty, g, xq, 8, x),
            None => {
                // The end of a row, padded with zeros.
                let mut all = [[0; 16]; 16];
                all[..xq.len()].copy_from_slice(xq);
                self.group(ty, g, &all, xq.len() / 2, x)
            }
        }
    }

    /// The products of `groups` groups of 32.
    #[inline(always)]
    fn group(
        &self,
        ty: &OfType,
        g: usize,
        xq: &[[i16; 16]; 16],
        groups: usize,
        x: &Tokens<'_>,
    ) -> f32 {
        let mut sums = [[0; 4]; 4];
        let fours = self.q.as_chunks::<4>().0.iter().zip(xq.as_chunks::<4>().0);
        for (sums, (w, x)) in sums.iter_mut().zip(fours) {
            *sums = four_sums(w, x);
        }
        let sums = sums.as_flattened();
        let mut acc = 0f32;
        for b in 0..groups {
            for part in 0..ty.scales {
                let sum = match ty.scales {
                    2 => sums[2 * b + part],
                    _ => sums[2 * b] + sums[2 * b + 1],
                };
                let of = x.sums_for(ty.scales)[ty.scales * (8 * g + b) + part];
                acc = fma(without_zero(sum, ty.zero, of), self.d[2 * b + part], acc);
            }
            for h in 0..ty.offsets {
                let of = x.sums_for(ty.offsets)[ty.offsets * (8 * g + b) + h];
                acc = fma(self.m[2 * b + h], of, acc);
            }
        }
        acc
    }
}

/// Codes minus their zero point as words. Uses SSE2 instructions, because LLVM 21 splits the loop and moves bytes one at a time.
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

/// The same in portable code.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn widen(codes: &[u8; 16], zero: i16, to: &mut [i16; 16]) {
    for (to, code) in to.iter_mut().zip(codes) {
        *to = i16::from(*code) - zero;
    }
}

/// Four sums of 16 products each, which fit 32 bits. Uses SSE2 instructions, because LLVM 21 sums the lanes of each separately.
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

/// The same in portable code.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn four_sums(w: &[[i16; 16]; 4], x: &[[i16; 16]; 4]) -> [i32; 4] {
    let mut sums = [0; 4];
    for (sum, (w, x)) in sums.iter_mut().zip(w.iter().zip(x)) {
        for i in 0..16 {
            *sum += i32::from(w[i]) * i32::from(x[i]);
        }
    }
    sums
}

/// Σ (q − zero)·x of four lines of each row.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sums_of_rows(lines: &[Line; 4], zero: i32, x: &[i16; 16]) -> [i32; TILE_ROWS] {
    use std::arch::x86_64::*;
    let mut out = [0; TILE_ROWS];
    // SAFETY: whole registers of the arrays; SSE2 is part of the architecture.
    unsafe {
        // For each line two pairs of activations, the same for every row: its even and its odd columns.
        let mut pairs = [[_mm_setzero_si128(); 2]; 4];
        for (l, pairs) in pairs.iter_mut().enumerate() {
            let four = _mm_loadl_epi64(x.as_ptr().add(4 * l).cast());
            let sorted = _mm_shufflelo_epi16::<0b11_01_10_00>(four);
            *pairs = [_mm_shuffle_epi32::<0>(sorted), _mm_shuffle_epi32::<0b01_01_01_01>(sorted)];
        }
        let even = _mm_set1_epi16(255);
        // Zero point times activations, in every lane.
        let zeros = |at: usize| {
            _mm_madd_epi16(_mm_loadu_si128(x[at..].as_ptr().cast()), _mm_set1_epi16(zero as i16))
        };
        let of_zeros = _mm_add_epi32(zeros(0), zeros(8));
        let of_zeros = _mm_add_epi32(of_zeros, _mm_shuffle_epi32::<0b01_00_11_10>(of_zeros));
        let of_zeros = _mm_add_epi32(of_zeros, _mm_shuffle_epi32::<0b10_11_00_01>(of_zeros));
        for r in (0..TILE_ROWS).step_by(4) {
            let mut sums = _mm_sub_epi32(_mm_setzero_si128(), of_zeros);
            for (line, [x_even, x_odd]) in lines.iter().zip(pairs) {
                let codes = _mm_loadu_si128(line[r..].as_ptr().cast());
                let even = _mm_madd_epi16(_mm_and_si128(codes, even), x_even);
                let odd = _mm_madd_epi16(_mm_srli_epi16::<8>(codes), x_odd);
                sums = _mm_add_epi32(sums, _mm_add_epi32(even, odd));
            }
            _mm_storeu_si128(out[r..].as_mut_ptr().cast(), sums);
        }
    }
    out
}

/// The same in portable code.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn sums_of_rows(lines: &[Line; 4], zero: i32, x: &[i16; 16]) -> [i32; TILE_ROWS] {
    let mut sums = [0; TILE_ROWS];
    for (line, x) in lines.iter().zip(x.as_chunks::<4>().0) {
        for (sum, codes) in sums.iter_mut().zip(line) {
            for (code, x) in codes.iter().zip(x) {
                *sum += (i32::from(*code) - zero) * i32::from(*x);
            }
        }
    }
    sums
}

/// As [`float`], for all rows of tile `i`.
#[inline(never)]
fn float_tile(w: &Matrix<'_>, i: usize, x: &[f32], out: &mut [f32]) {
    let mut sums = [[0f32; TILE_ROWS]; 4];
    for (k, &x) in x.iter().enumerate() {
        let w = w.tile_floats(i, k);
        for (sum, w) in sums[k % 4].iter_mut().zip(w) {
            *sum = fma(w, x, *sum);
        }
    }
    for (r, out) in out.iter_mut().enumerate() {
        *out = four_added(sums.map(|sums| sums[r]));
    }
}

/// Σ w·x in four sums over every fourth column.
fn float(ty: WeightType, row: &[u8], x: &[f32]) -> f32 {
    finish_float(ty, row, x, &mut [0.0; 4], fma)
}

/// Adds a multiple of four columns onwards to four sums of a row of floats, and returns the whole; `fma` is the fused multiply-add of the level.
#[inline(always)]
pub(super) fn finish_float(
    ty: WeightType,
    row: &[u8],
    x: &[f32],
    sums: &mut [f32; 4],
    fma: impl Fn(f32, f32, f32) -> f32,
) -> f32 {
    match ty {
        WeightType::F32 => add_floats(row, x, sums, f32::from_le_bytes, fma),
        WeightType::F16 => add_floats(row, x, sums, |b| f16_to_f32(u16::from_le_bytes(b)), fma),
        _ => add_floats(row, x, sums, |b| bf16_to_f32(u16::from_le_bytes(b)), fma),
    }
    four_added(*sums)
}

#[inline(always)]
fn add_floats<const B: usize>(
    row: &[u8],
    x: &[f32],
    sums: &mut [f32; 4],
    value: impl Fn([u8; B]) -> f32,
    fma: impl Fn(f32, f32, f32) -> f32,
) {
    for (k, (w, x)) in row.as_chunks::<B>().0.iter().zip(x).enumerate() {
        sums[k % 4] = fma(value(*w), *x, sums[k % 4]);
    }
}

#[inline(always)]
fn four_added([a, b, c, d]: [f32; 4]) -> f32 {
    (a + b) + (c + d)
}
