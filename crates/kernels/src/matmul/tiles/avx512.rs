//! Tiles with AVX-512 VNNI: one line of weights (unsigned bytes, 16 rows × 4) against four
//! broadcast activations (signed bytes) is one `vpdpbusd`.
//!
//! 16 bits: activations as high and low bytes, so sixteen products for 32 weights of 16 rows; at best 18 bytes of Q4_0 nibbles
//! per cycle. Up to four tokens share the unpacked weights; the operations of each token, and their order, are the same as for
//! one alone.
//!
//! 8 bits, twelve tokens at a time: eight products per token and group, one conversion, one multiplication and one (with offsets
//! two) fused multiply-adds. On a core with one 512-bit multiplier that is at best 80 % (73 %) of its peak. The sums start at the
//! zero points.

use super::avx512_panel;
use crate::blocks::avx512_tiles::{Scales, TilesAvx512};
use crate::blocks::{BlockFormat, WeightType, with_tiles};
use crate::matmul::activations::USUAL_ZEROS;
use crate::matmul::prefetch::{self, PrefetchAddress};
use crate::matmul::sizes::{TILES_TOGETHER, TOKEN_BLOCK};
use crate::matmul::{MatmulScratch, Matrix, Output, Precision, Tokens};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

/// Prefetch distance into the second-level cache, in bytes of the tiles' columns. (Measured with Q4_K and Q6_K from memory: 26
/// and 21 GB/s; into the first level, or 2 KiB ahead, 22 and 10.)
pub(in crate::matmul) const AHEAD: usize = 8192;

/// Number of columns that [`TILES_TOGETHER`] tiles process before the next ones, so that a block's activations for them stay in
/// the first-level cache. A multiple of 256.
const STRETCH: usize = 1024;

/// Number of 16-bit tokens that are multiplied together: their sums stay in registers.
const FEW: usize = 4;

/// (The dispatch by type is compiled without the level's features, so that the types are separate functions: see `dot`.)
///
/// # Safety
/// As for `tiles::rows`; the CPU has the level.
pub(super) unsafe fn rows(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        with_tiles!(
            w.weight_type(),
            Q => match x.precision() {
                Precision::Bits8 if avx512_panel::suits::<Q>(x.tokens()) => {
                    avx512_panel::rows::<Q>(w, rows, x, out, &mut scratch.panel);
                }
                _ => each_tile::<Integer<Q>>(w, rows, x, out, scratch.sums()),
            },
            match w.weight_type() {
                WeightType::F16 => each_tile::<Half>(w, rows, x, out, scratch.sums()),
                _ => each_tile::<Bf16>(w, rows, x, out, scratch.sums()),
            }
        )
    }
}

/// The multiplication of a tile's weights.
trait TileProduct {
    /// Multiplies all columns with `T` 16-bit tokens.
    ///
    /// # Safety
    /// `tile` is a whole tile, the activations fit it, the CPU has the level.
    unsafe fn few<const T: usize>(
        tile: *const u8,
        ahead: &PrefetchAddress,
        x: &[Tokens<'_>; T],
    ) -> [__m512; T];

    /// Multiplies columns `k` with the first `T` tokens of block `block`, and adds the products to `acc`.
    ///
    /// # Safety
    /// As for `few`; the buffers hold the activations of whole blocks.
    unsafe fn block<const T: usize>(
        tile: *const u8,
        ahead: &PrefetchAddress,
        k: Range<usize>,
        x: &Tokens<'_>,
        block: usize,
        acc: &mut [__m512; T],
    );
}

unsafe fn each_tile<W: TileProduct>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    sums: &mut [f32],
) {
    let tiles = rows.start / TILE_ROWS..rows.end.div_ceil(TILE_ROWS);
    // SAFETY: by the caller's promise; masked lanes are neither read nor written.
    unsafe {
        if x.precision() == Precision::Bits16 {
            for t in (0..x.tokens()).step_by(FEW) {
                match x.tokens() - t {
                    1 => few::<W, 1>(w, tiles.clone(), &rows, x, t, out),
                    2 => few::<W, 2>(w, tiles.clone(), &rows, x, t, out),
                    3 => few::<W, 3>(w, tiles.clone(), &rows, x, t, out),
                    _ => few::<W, FEW>(w, tiles.clone(), &rows, x, t, out),
                }
            }
            return;
        }
        let (sums, _) = sums.as_chunks_mut::<{ TOKEN_BLOCK * TILE_ROWS }>();
        let blocks = x.tokens().div_ceil(TOKEN_BLOCK);
        let stretch = if blocks == 1 { w.cols() } else { STRETCH };
        for first in tiles.clone().step_by(TILES_TOGETHER) {
            let tiles = first..tiles.end.min(first + TILES_TOGETHER);
            for block in 0..blocks {
                let tokens = (x.tokens() - TOKEN_BLOCK * block).min(TOKEN_BLOCK);
                for start in (0..w.cols()).step_by(stretch) {
                    let k = start..w.cols().min(start + stretch);
                    let [before, bytes, gap] = w.in_tile(&k);
                    for (i, sums) in tiles.clone().zip(sums.iter_mut()) {
                        let tile = w.tile(i).as_ptr();
                        let ahead = &PrefetchAddress::new(tile.add(before), AHEAD, bytes, gap);
                        // The smallest of these that suffices: results for tokens that do not exist are not stored.
                        match tokens {
                            1 | 2 => add::<W, 2>(tile, ahead, k.clone(), x, block, sums),
                            3 | 4 => add::<W, 4>(tile, ahead, k.clone(), x, block, sums),
                            5 | 6 => add::<W, 6>(tile, ahead, k.clone(), x, block, sums),
                            7 | 8 => add::<W, 8>(tile, ahead, k.clone(), x, block, sums),
                            _ => add::<W, TOKEN_BLOCK>(tile, ahead, k.clone(), x, block, sums),
                        }
                    }
                }
                for (i, sums) in tiles.clone().zip(sums.iter()) {
                    store(sums, &rows, i, TOKEN_BLOCK * block, tokens, out);
                }
            }
        }
    }
}

/// Stores the sums `[tokens][16 rows]` of those rows of tile `i` that are in `rows`; the first token is `t`.
///
/// # Safety
/// As for `tiles::rows`; the CPU has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn store(
    sums: &[f32; TOKEN_BLOCK * TILE_ROWS],
    rows: &Range<usize>,
    i: usize,
    t: usize,
    tokens: usize,
    out: Output<'_>,
) {
    for (j, sums) in sums.chunks_exact(TILE_ROWS).take(tokens).enumerate() {
        // SAFETY: masked lanes are not written; the others are ours by the caller's promise.
        unsafe {
            let sums = _mm512_loadu_ps(sums.as_ptr());
            _mm512_mask_storeu_ps(at(out, t + j, i), mask(rows, TILE_ROWS * i), sums);
        }
    }
}

/// Products of some tiles with `T` 16-bit tokens from token `t` on.
///
/// # Safety
/// As for `tiles::rows`; the CPU has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn few<W: TileProduct, const T: usize>(
    w: &Matrix<'_>,
    tiles: Range<usize>,
    rows: &Range<usize>,
    x: &Tokens<'_>,
    t: usize,
    out: Output<'_>,
) {
    let x: [Tokens<'_>; T] = std::array::from_fn(|i| x.one(t + i));
    for i in tiles {
        let tile = w.tile(i).as_ptr();
        // SAFETY: by the caller's promise; masked lanes are not written.
        unsafe {
            let sums = W::few::<T>(tile, &PrefetchAddress::of_tile(w, tile, AHEAD), &x);
            for (j, sums) in sums.into_iter().enumerate() {
                _mm512_mask_storeu_ps(at(out, t + j, i), mask(rows, TILE_ROWS * i), sums);
            }
        }
    }
}

/// The address of the first row of tile `i` for token `t`. Part of the tile may be outside the output.
#[inline(always)]
pub(super) fn at(out: Output<'_>, t: usize, i: usize) -> *mut f32 {
    out.at(t, TILE_ROWS * i)
}

/// Mask of those of the 16 rows from row `first` on that are in `rows`.
#[inline(always)]
pub(in crate::matmul) fn mask(rows: &Range<usize>, first: usize) -> __mmask16 {
    let below = |r: usize| (1u32 << r.saturating_sub(first).min(TILE_ROWS)) - 1;
    (below(rows.end) & !below(rows.start)) as __mmask16
}

/// Adds the products of columns `k` to `sums` `[T][16 rows]`, which the first columns overwrite.
///
/// # Safety
/// As for `TileProduct::block`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn add<W: TileProduct, const T: usize>(
    tile: *const u8,
    ahead: &PrefetchAddress,
    k: Range<usize>,
    x: &Tokens<'_>,
    block: usize,
    sums: &mut [f32; TOKEN_BLOCK * TILE_ROWS],
) {
    // SAFETY: by the caller's promise; T is at most TOKEN_BLOCK.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); T];
        if k.start != 0 {
            for t in 0..T {
                acc[t] = _mm512_loadu_ps(sums.as_ptr().add(TILE_ROWS * t));
            }
        }
        W::block::<T>(tile, ahead, k, x, block, &mut acc);
        for t in 0..T {
            _mm512_storeu_ps(sums.as_mut_ptr().add(TILE_ROWS * t), acc[t]);
        }
    }
}

/// The four bytes at `p`, in every lane.
#[inline(always)]
pub(super) unsafe fn four(p: *const i8) -> __m512i {
    // SAFETY: inside the callers' activations.
    unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
}

/// Quantised weights.
struct Integer<Q>(std::marker::PhantomData<Q>);

impl<Q: TilesAvx512> TileProduct for Integer<Q> {
    #[inline(always)]
    unsafe fn few<const T: usize>(
        tile: *const u8,
        ahead: &PrefetchAddress,
        x: &[Tokens<'_>; T],
    ) -> [__m512; T] {
        let groups = x[0].cols() / 32;
        let each = TILE_ROWS * (256 / Q::BLOCK) * Q::BYTES;
        // SAFETY: by the caller's promise.
        unsafe {
            let mut total = [_mm512_setzero_ps(); T];
            for g in 0..groups.div_ceil(8) {
                let units = tile.add(g * each);
                few_columns::<Q, T>(units, &mut &*ahead, g, (groups - 8 * g).min(8), x, &mut total);
            }
            total
        }
    }

    #[inline(always)]
    unsafe fn block<const T: usize>(
        tile: *const u8,
        ahead: &PrefetchAddress,
        k: Range<usize>,
        x: &Tokens<'_>,
        block: usize,
        acc: &mut [__m512; T],
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            // The first block brings the weights into the cache for the others.
            let ahead = (block == 0).then_some(ahead);
            let units = tile.add(k.start / Q::BLOCK * TILE_ROWS * Q::BYTES);
            each_group::<Q>(units, &k, &mut Twelve { x: Block::of(x, block), ahead, acc });
        }
    }
}

/// The prefetches between the products of a few tokens.
pub(in crate::matmul) trait PrefetchAhead {
    /// Prefetches the size of a group; group `g` of this unit is multiplied next.
    fn ask<Q: TilesAvx512>(&mut self, unit: *const u8, g: usize);
}

impl PrefetchAhead for &PrefetchAddress {
    #[inline(always)]
    fn ask<Q: TilesAvx512>(&mut self, unit: *const u8, g: usize) {
        ask::<Q>(unit, self, g);
    }
}

/// Adds the products of `count` groups, at most 256 columns, with `T` 16-bit tokens to `total`; `g` is the number of these columns.
///
/// # Safety
/// `units` are whole units of these columns, the tokens have them, the CPU has the level.
#[inline(always)]
pub(in crate::matmul) unsafe fn few_columns<Q: TilesAvx512, const T: usize>(
    units: *const u8,
    ahead: &mut impl PrefetchAhead,
    g: usize,
    count: usize,
    x: &[Tokens<'_>; T],
    total: &mut [__m512; T],
) {
    let k = 256 * g..256 * g + 32 * count;
    // SAFETY: by the caller's promise.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); T];
        each_group::<Q>(units, &k, &mut Few { x, ahead, acc: &mut acc });
        scaled(g, x, &acc, total);
    }
}

/// Adds the sums of the `g`-th 256 columns, times the tokens' scale for them.
#[inline(always)]
pub(in crate::matmul) unsafe fn scaled<const T: usize>(
    g: usize,
    x: &[Tokens<'_>; T],
    acc: &[__m512; T],
    total: &mut [__m512; T],
) {
    // SAFETY: the callers' CPU has the level.
    unsafe {
        for t in 0..T {
            let a = _mm512_set1_ps(x[t].scale()[g]);
            total[t] = _mm512_fmadd_ps(acc[t], a, total[t]);
        }
    }
}

/// Adds the products of a few 16-bit tokens.
struct Few<'a, A, const T: usize> {
    x: &'a [Tokens<'a>; T],
    ahead: &'a mut A,
    acc: &'a mut [__m512; T],
}

impl<A: PrefetchAhead, Q: TilesAvx512, const T: usize> Groups<Q> for Few<'_, A, T> {
    #[inline(always)]
    unsafe fn group<const P: usize>(
        &mut self,
        unit: *const u8,
        head: &Q::Head,
        g: usize,
        b: usize,
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            self.ahead.ask::<Q>(unit, g);
            few_group::<Q, P, T>(unit, head, g, b, self.x, self.acc);
        }
    }
}

/// An operation on the groups of 32 columns of a tile.
pub(in crate::matmul) trait Groups<Q: TilesAvx512> {
    /// Group `g` of a unit, group `b` of the row; its number modulo [`PHASES`](TilesAvx512::PHASES) is `P`.
    ///
    /// # Safety
    /// As for `TileProduct::block`.
    unsafe fn group<const P: usize>(&mut self, unit: *const u8, head: &Q::Head, g: usize, b: usize);
}

/// Visits the groups of columns `k`, in order; `units` are those of these columns.
///
/// # Safety
/// As for `TileProduct::block`.
#[inline(always)]
pub(in crate::matmul) unsafe fn each_group<Q: TilesAvx512>(
    units: *const u8,
    k: &Range<usize>,
    to: &mut impl Groups<Q>,
) {
    let bytes = TILE_ROWS * Q::BYTES;
    let per_unit = Q::BLOCK / 32;
    // SAFETY: by the caller's promise.
    unsafe {
        let mut b = k.start / 32;
        while b < k.end / 32 {
            let unit = units.add((b - k.start / 32) / per_unit * bytes);
            let head = Q::head(unit);
            let mut g = 0;
            while g < per_unit {
                to.group::<0>(unit, &head, g, b + g);
                if Q::PHASES > 1 {
                    to.group::<1>(unit, &head, g + 1, b + g + 1);
                }
                if Q::PHASES > 2 {
                    to.group::<2>(unit, &head, g + 2, b + g + 2);
                    to.group::<3>(unit, &head, g + 3, b + g + 3);
                }
                g += Q::PHASES;
            }
            b += per_unit;
        }
    }
}

/// Adds the products of a block of tokens.
struct Twelve<'a, const T: usize> {
    x: Block,
    /// Set if the weights are read from memory.
    ahead: Option<&'a PrefetchAddress>,
    acc: &'a mut [__m512; T],
}

impl<Q: TilesAvx512, const T: usize> Groups<Q> for Twelve<'_, T> {
    #[inline(always)]
    unsafe fn group<const P: usize>(
        &mut self,
        unit: *const u8,
        head: &Q::Head,
        g: usize,
        b: usize,
    ) {
        // SAFETY: by the caller's promise.
        unsafe { group::<Q, P, T>(unit, self.ahead, head, g, b, &self.x, self.acc) }
    }
}

/// Prefetches the size of a group, ahead of group `g` of a unit: prefetched all at once, long units would occupy every buffer
/// that waits for memory.
#[inline(always)]
pub(in crate::matmul) fn ask<Q: TilesAvx512>(unit: *const u8, ahead: &PrefetchAddress, g: usize) {
    let group = TILE_ROWS * Q::BYTES / (Q::BLOCK / 32);
    prefetch::far(ahead.of(unit).wrapping_add(group * g), group);
}

/// Adds group `g` of a unit, group `b` of the row, for each of `T` 16-bit tokens.
#[inline(always)]
unsafe fn few_group<Q: TilesAvx512, const P: usize, const T: usize>(
    unit: *const u8,
    head: &Q::Head,
    g: usize,
    b: usize,
    x: &[Tokens<'_>; T],
    acc: &mut [__m512; T],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let Scales { d, m } = Q::scales(unit, head, g);
        // Sums with the high and with the low bytes; separate ones for the first and the second 16 weights, to hide the latency,
        // unless scales and offsets need the registers. (Measured with four tokens: half as fast when they are spilled.)
        let apart = T <= 2 || Q::SCALES == 1 && Q::OFFSETS == 0;
        let mut h = [[_mm512_setzero_si512(); 2]; T];
        let mut l = [[_mm512_setzero_si512(); 2]; T];
        for part in 0..2 {
            let own = if apart { part } else { 0 };
            for j in 4 * part..4 * part + 4 {
                let w = Q::line::<P>(unit, head, g, j);
                for t in 0..T {
                    // 64 high bytes, then 64 low bytes.
                    let hi = x[t].q8().add(128 * (b / 2) + 32 * (b % 2) + 4 * j);
                    h[t][own] = _mm512_dpbusd_epi32(h[t][own], w, four(hi));
                    l[t][own] = _mm512_dpbusd_epi32(l[t][own], w, four(hi.add(64)));
                }
            }
            if Q::SCALES == 1 {
                continue;
            }
            for t in 0..T {
                let p = _mm512_add_epi32(_mm512_slli_epi32::<8>(h[t][own]), l[t][own]);
                (h[t][own], l[t][own]) = (_mm512_setzero_si512(), _mm512_setzero_si512());
                add_part::<Q>(p, &x[t], b, part, d[part], &mut acc[t]);
            }
        }
        for t in 0..T {
            if Q::SCALES == 1 {
                let (h, l) = (h[t], l[t]);
                let h = _mm512_add_epi32(h[0], h[1]);
                let l = _mm512_add_epi32(l[0], l[1]);
                let p = _mm512_add_epi32(_mm512_slli_epi32::<8>(h), l);
                add_part::<Q>(p, &x[t], b, 0, d[0], &mut acc[t]);
            }
            add_offsets::<Q>(&x[t], b, &m, &mut acc[t]);
        }
    }
}

/// Adds the integer sums `p` of codes over the columns of group `b` that share the scales `d`, its part `part`, of a 16-bit token.
///
/// # Safety
/// The token has this group; the CPU has the level.
#[inline(always)]
pub(in crate::matmul) unsafe fn add_part<Q: BlockFormat>(
    p: __m512i,
    x: &Tokens<'_>,
    b: usize,
    part: usize,
    d: __m512,
    acc: &mut __m512,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut f = _mm512_cvtepi32_ps(p);
        if Q::ZERO != 0 {
            let of = _mm512_set1_ps(*x.sums_for(Q::SCALES).as_ptr().add(Q::SCALES * b + part));
            f = _mm512_fnmadd_ps(_mm512_set1_ps(Q::ZERO as f32), of, f);
        }
        *acc = _mm512_fmadd_ps(f, d, *acc);
    }
}

/// Adds the offsets of group `b` times the sums of a 16-bit token.
///
/// # Safety
/// As for [`add_part`].
#[inline(always)]
pub(in crate::matmul) unsafe fn add_offsets<Q: BlockFormat>(
    x: &Tokens<'_>,
    b: usize,
    m: &[__m512; 2],
    acc: &mut __m512,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        for i in 0..Q::OFFSETS {
            let of = _mm512_set1_ps(*x.sums_for(Q::OFFSETS).as_ptr().add(Q::OFFSETS * b + i));
            *acc = _mm512_fmadd_ps(m[i], of, *acc);
        }
    }
}

/// A block of tokens' activations, see `activations`.
pub(in crate::matmul) struct Block {
    /// `[K/32][TOKEN_BLOCK][32]`
    pub(in crate::matmul) q: *const i8,
    /// `[K/32][TOKEN_BLOCK]`
    pub(in crate::matmul) scale: *const f32,
    /// `[K/32][TOKEN_BLOCK]`
    pub(super) s32: *const f32,
    /// `[K/32][TOKEN_BLOCK]`, minus the sums of 32 integers, times the first of [`USUAL_ZEROS`]
    pub(super) z32: *const i32,
    /// `[K/32][2][TOKEN_BLOCK]`, minus the sums of 16, times the second
    pub(super) z16: *const i32,
}

impl Block {
    #[inline(always)]
    pub(in crate::matmul) fn of(x: &Tokens<'_>, block: usize) -> Block {
        let (tiles, block) = x.tiles(block);
        let at = block * TOKEN_BLOCK * (x.cols() / 32);
        Block {
            q: tiles.q.as_ptr().cast::<i8>().wrapping_add(32 * at),
            scale: tiles.scale.as_ptr().wrapping_add(at),
            s32: tiles.s32.as_ptr().wrapping_add(at),
            z32: tiles.z32.as_ptr().wrapping_add(at),
            z16: tiles.z16.as_ptr().wrapping_add(2 * at),
        }
    }

    /// The factor for token `t` of offset `h` of the `offsets` of group `b`: the sum of the activations that have this offset.
    ///
    /// # Safety
    /// The group, the offset and the token exist.
    #[inline(always)]
    pub(in crate::matmul) unsafe fn offset_sum(
        &self,
        offsets: usize,
        b: usize,
        h: usize,
        t: usize,
    ) -> f32 {
        // SAFETY: by the caller's promise.
        unsafe {
            match offsets {
                1 => *self.s32.add(TOKEN_BLOCK * b + t),
                _ => {
                    let z16 = *self.z16.add(TOKEN_BLOCK * (2 * b + h) + t);
                    *self.scale.add(TOKEN_BLOCK * b + t)
                        * (-z16 >> USUAL_ZEROS[1].trailing_zeros()) as f32
                }
            }
        }
    }
}

/// Sums times ZERO, of those that are stored times the usual zero point: by a shift, which is cheaper, if their quotient is a power of two.
#[inline(always)]
pub(super) unsafe fn times_zero<Q: TilesAvx512>(v: __m512i) -> __m512i {
    let usual = USUAL_ZEROS[Q::SCALES - 1];
    let power = |n: i32| (n as u32).is_power_of_two();
    // SAFETY: the callers' CPU has the level.
    unsafe {
        if power(Q::ZERO) {
            let by = Q::ZERO.trailing_zeros() as i32 - usual.trailing_zeros() as i32;
            match by {
                0 => v,
                1.. => _mm512_sll_epi32(v, _mm_cvtsi32_si128(by)),
                _ => _mm512_sra_epi32(v, _mm_cvtsi32_si128(-by)),
            }
        } else {
            let v = _mm512_sra_epi32(v, _mm_cvtsi32_si128(usual.trailing_zeros() as i32));
            _mm512_mullo_epi32(v, _mm512_set1_epi32(Q::ZERO))
        }
    }
}

/// Adds group `g` of a unit, group `b` of the row, for `T` tokens.
#[inline(always)]
unsafe fn group<Q: TilesAvx512, const P: usize, const T: usize>(
    unit: *const u8,
    ahead: Option<&PrefetchAddress>,
    head: &Q::Head,
    g: usize,
    b: usize,
    x: &Block,
    acc: &mut [__m512; T],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        if let Some(ahead) = ahead {
            ask::<Q>(unit, ahead, g);
        }
        let q = x.q.add(32 * TOKEN_BLOCK * b);
        let scale = x.scale.add(TOKEN_BLOCK * b);
        let z = if Q::SCALES == 2 {
            x.z16.add(2 * TOKEN_BLOCK * b)
        } else {
            x.z32.add(TOKEN_BLOCK * b)
        };
        let Scales { d, m } = Q::scales(unit, head, g);
        let parts = Q::SCALES;
        for part in 0..parts {
            let mut sums = [_mm512_setzero_si512(); T];
            if Q::ZERO != 0 {
                for t in 0..T {
                    sums[t] = times_zero::<Q>(_mm512_set1_epi32(*z.add(TOKEN_BLOCK * part + t)));
                }
            }
            for j in part * 4..(part * 4 + 8 / parts) {
                let w = Q::line::<P>(unit, head, g, j);
                for t in 0..T {
                    sums[t] = _mm512_dpbusd_epi32(sums[t], w, four(q.add(32 * t + 4 * j)));
                }
            }
            for t in 0..T {
                let a = _mm512_mul_ps(d[part], _mm512_set1_ps(*scale.add(t)));
                acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[t]), a, acc[t]);
            }
        }
        for h in 0..Q::OFFSETS {
            for t in 0..T {
                let sum = _mm512_set1_ps(x.offset_sum(Q::OFFSETS, b, h, t));
                acc[t] = _mm512_fmadd_ps(m[h], sum, acc[t]);
            }
        }
    }
}

/// F16 weights.
struct Half;
/// BF16 weights.
struct Bf16;

/// The weights of a column of 16 rows.
trait Column {
    /// # Safety
    /// 32 bytes can be read at `p`; the CPU has the level.
    unsafe fn load(p: *const u8) -> __m512;
}

impl Column for Half {
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
}

impl Column for Bf16 {
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe {
            let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v))
        }
    }
}

impl<C: Column> TileProduct for C {
    #[inline(always)]
    unsafe fn few<const T: usize>(
        tile: *const u8,
        ahead: &PrefetchAddress,
        x: &[Tokens<'_>; T],
    ) -> [__m512; T] {
        let x: [&[f32]; T] = std::array::from_fn(|t| x[t].float(0));
        let cols = x[0].len();
        // SAFETY: by the caller's promise.
        unsafe {
            // Independent sums hide the latency.
            let mut acc = [[_mm512_setzero_ps(); 4]; T];
            for k in (0..cols).step_by(4) {
                let column = tile.add(COLUMN * k);
                prefetch::far(ahead.of(column), 4 * COLUMN);
                for i in 0..4.min(cols - k) {
                    let w = C::load(column.add(COLUMN * i));
                    for t in 0..T {
                        let x = _mm512_set1_ps(*x[t].get_unchecked(k + i));
                        acc[t][i] = _mm512_fmadd_ps(w, x, acc[t][i]);
                    }
                }
            }
            let mut sums = [_mm512_setzero_ps(); T];
            for (sum, [a, b, c, d]) in sums.iter_mut().zip(acc) {
                *sum = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn block<const T: usize>(
        tile: *const u8,
        ahead: &PrefetchAddress,
        k: Range<usize>,
        x: &Tokens<'_>,
        block: usize,
        acc: &mut [__m512; T],
    ) {
        // Tokens that do not exist are arbitrary values inside the buffer, and are not used.
        let stride = x.cols();
        let x = x.float_block(TOKEN_BLOCK * block, T).wrapping_add(k.start);
        // SAFETY: by the caller's promise.
        unsafe {
            let tile = tile.add(COLUMN * k.start);
            for (i, acc) in acc.chunks_mut(TOGETHER_FLOAT).enumerate() {
                let x = x.add(i * TOGETHER_FLOAT * stride);
                match acc.len() {
                    2 => columns::<C, 2>(tile, ahead, k.len(), x, stride, acc),
                    4 => columns::<C, 4>(tile, ahead, k.len(), x, stride, acc),
                    _ => columns::<C, TOGETHER_FLOAT>(tile, ahead, k.len(), x, stride, acc),
                }
            }
        }
    }
}

/// Adds `n` columns times `N` tokens that are `stride` floats apart to `acc`, one for each.
#[inline(always)]
unsafe fn columns<C: Column, const N: usize>(
    tile: *const u8,
    ahead: &PrefetchAddress,
    n: usize,
    x: *const f32,
    stride: usize,
    acc: &mut [__m512],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); N];
        sums.copy_from_slice(acc);
        for k in 0..n {
            let column = tile.add(COLUMN * k);
            prefetch::far(ahead.of(column), COLUMN);
            let w = C::load(column);
            for t in 0..N {
                let x = _mm512_set1_ps(*x.add(stride * t + k));
                sums[t] = _mm512_fmadd_ps(w, x, sums[t]);
            }
        }
        acc.copy_from_slice(&sums);
    }
}

/// Number of tokens that are multiplied with float weights at a time: more would need more addresses than there are registers for
/// them.
const TOGETHER_FLOAT: usize = 6;

/// Bytes of a column of a tile of 16-bit floats.
pub(in crate::matmul) const COLUMN: usize = 2 * TILE_ROWS;
