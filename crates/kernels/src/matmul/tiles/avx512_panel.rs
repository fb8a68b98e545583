//! Tiles with AVX-512 VNNI for long prompts: the codes of two tiles are unpacked into bytes once, and multiplied with all tokens,
//! six at a time.
//!
//! In place, a tile's codes are unpacked again for every block of twelve tokens, and each `vpdpbusd` reads its four activations
//! itself: for 32 columns of 16 rows 96 products and 104 reads, plus those of the codes. Here two tiles share the activations: 96
//! products and 64 reads. That is faster if a core has two 512-bit multipliers, as Intel's servers do, and on every core if codes
//! are more complex than nibbles or bytes. The operations for a token and their order are those in place, so the sums have the
//! same bits.

use super::avx512::{AHEAD, Block, Groups, PrefetchAhead, at, each_group, four, mask, times_zero};
use crate::blocks::avx512_tiles::{Scales, TilesAvx512};
use crate::blocks::with_formula;
use crate::isa::SimdLevel;
use crate::matmul::activations::MANY;
use crate::matmul::amx;
use crate::matmul::gemm::{Panel, stretches};
use crate::matmul::prefetch::PrefetchAddress;
use crate::matmul::sizes::{MAX_K, PANEL_ROWS, ROWS_TOGETHER, TOKEN_BLOCK, cut_at_multiples};
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::OnceLock;

/// Tokens that are multiplied together: half a block.
const TOKENS: usize = TOKEN_BLOCK / 2;

/// Number of tokens from which a panel costs less than it saves.
const FROM: usize = 2 * TOKEN_BLOCK + 1;

/// Maximum number of activations that stay in the second-level cache as a whole, with their scales. With more, those of some
/// columns do: then panels of several rows are filled with these columns before those of the next columns. Otherwise a tile is
/// read to its end first.
const ACTIVATIONS_IN_CACHE: usize = 512 * 1024;

/// Tiles of a panel.
const TILES: usize = PANEL_ROWS / TILE_ROWS;

const _: () = assert!(TILES == 2);

/// True if `tokens` tokens are multiplied with a panel.
pub(super) fn suits<Q: TilesAvx512>(tokens: usize) -> bool {
    tokens >= FROM && (Q::PHASES > 2 || has_two_multipliers())
}

/// True if a core has two 512-bit multipliers: the CPU's features do not report this, so it is inferred from the vendor.
fn has_two_multipliers() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let vendor = __cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        name.as_flattened() == b"GenuineIntel"
    })
}

/// # Safety
/// As for `tiles::rows`; the CPU has the level; the tokens are of 8 bits.
pub(super) unsafe fn rows<Q: TilesAvx512>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &mut Panel,
) {
    let amx = Q::SCALES == 1 && x.isa().level() == SimdLevel::AmxInt8 && x.tokens() >= MANY;
    let by_columns = x.tokens() * w.cols() > ACTIVATIONS_IN_CACHE;
    let together = if by_columns { ROWS_TOGETHER } else { PANEL_ROWS };
    for rows in cut_at_multiples(rows, together) {
        for k in stretches(w.cols(), MAX_K) {
            for rows in cut_at_multiples(rows.clone(), PANEL_ROWS) {
                let tiles = rows.start / TILE_ROWS..rows.end.div_ceil(TILE_ROWS);
                let first = tiles.start;
                // SAFETY: by the caller's promise. If the panel has only one tile, the sums of its other half are not stored.
                unsafe {
                    if amx {
                        fill::<Q, true>(w, tiles, k.clone(), by_columns, p);
                        with_formula!(
                            Q,
                            F => amx::bytes::multiply::<F>(&rows, TILE_ROWS * first, k.clone(), x, out, p)
                        );
                    } else {
                        fill::<Q, false>(w, tiles, k.clone(), by_columns, p);
                        multiply::<Q>(&rows, first, k.clone(), x, out, p);
                    }
                }
            }
        }
    }
}

/// Unpacks columns `k` of one or two tiles into a panel. The next panel has the same columns if `by_columns`, otherwise the
/// columns that follow. A panel is `q` `[K/4][2 tiles][16 rows][4]` codes as they are, unsigned, or if `SIGNED` minus their zero
/// point; `d` and `m` `[K/32][1 or 2][2 tiles][16 rows]`.
///
/// # Safety
/// The tiles are whole, `k` begins at a multiple of 256 and has at most [`MAX_K`] columns, the CPU has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn fill<Q: TilesAvx512, const SIGNED: bool>(
    w: &Matrix<'_>,
    tiles: Range<usize>,
    k: Range<usize>,
    by_columns: bool,
    p: &mut Panel,
) {
    // The next columns read are the same ones of the next tile, or those that follow in this one.
    let read = if by_columns { k.clone() } else { 0..w.cols() };
    let [before, bytes, gap] = w.in_tile(&read);
    for (half, i) in tiles.enumerate() {
        let tile = w.tile(i).as_ptr();
        let ahead = PrefetchAddress::new(tile.wrapping_add(before), AHEAD, bytes, gap);
        // SAFETY: by the caller's promise.
        unsafe {
            let first = k.start / 32;
            let units = tile.add(k.start / Q::BLOCK * TILE_ROWS * Q::BYTES);
            let ahead = &ahead;
            each_group::<Q>(
                units,
                &k,
                &mut PanelHalf::<_, SIGNED, false> { first, half, ahead, p },
            );
        }
    }
}

/// Stores the groups of a tile in its half of a panel; with `SUMS` also those that compensate for the bias of unsigned activations.
pub(in crate::matmul) struct PanelHalf<'a, A, const SIGNED: bool, const SUMS: bool> {
    /// The panel's first group.
    pub(in crate::matmul) first: usize,
    /// The tile's number in the panel.
    pub(in crate::matmul) half: usize,
    pub(in crate::matmul) ahead: A,
    pub(in crate::matmul) p: &'a mut Panel,
}

impl<Q: TilesAvx512, A: PrefetchAhead, const SIGNED: bool, const SUMS: bool> Groups<Q>
    for PanelHalf<'_, A, SIGNED, SUMS>
{
    #[inline(always)]
    unsafe fn group<const P: usize>(
        &mut self,
        unit: *const u8,
        head: &Q::Head,
        g: usize,
        b: usize,
    ) {
        let (b, half, p) = (b - self.first, self.half, &mut *self.p);
        // SAFETY: lines of the panel, by the caller's promise.
        unsafe {
            self.ahead.ask::<Q>(unit, g);
            let Scales { d, m } = Q::scales(unit, head, g);
            for part in 0..Q::SCALES {
                let at = (Q::SCALES * b + part) * PANEL_ROWS + TILE_ROWS * half;
                _mm512_store_ps(p.d.as_mut_ptr().add(at), d[part]);
            }
            for part in 0..Q::OFFSETS {
                let at = (Q::OFFSETS * b + part) * PANEL_ROWS + TILE_ROWS * half;
                _mm512_store_ps(p.m.as_mut_ptr().add(at), m[part]);
            }
            let mut sum = _mm512_setzero_si512();
            for j in 0..8 {
                let at = 4 * ((8 * b + j) * PANEL_ROWS + TILE_ROWS * half);
                let mut line = Q::line::<P>(unit, head, g, j);
                if SIGNED && Q::ZERO != 0 {
                    line = _mm512_sub_epi8(line, _mm512_set1_epi8(Q::ZERO as u8 as i8));
                }
                _mm512_store_si512(p.q.as_mut_ptr().add(at).cast(), line);
                if !SUMS {
                    continue;
                }
                sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), line);
                if (j + 1).is_multiple_of(8 / Q::SCALES) {
                    // −128·Σq of each row, for the columns that share a scale.
                    let z = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<7>(sum));
                    let part = Q::SCALES * b + j * Q::SCALES / 8;
                    let at = part * PANEL_ROWS + TILE_ROWS * half;
                    _mm512_store_si512(p.z.as_mut_ptr().add(at).cast(), z);
                    sum = _mm512_setzero_si512();
                }
            }
        }
    }
}

/// Multiplies the panel's columns `k` with all tokens: overwrites the outputs with the first columns, adds the others.
///
/// # Safety
/// As for [`rows`]; tile `first` is the panel's first.
unsafe fn multiply<Q: TilesAvx512>(
    rows: &Range<usize>,
    first: usize,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &Panel,
) {
    for t in (0..x.tokens()).step_by(TOKENS) {
        let b = Block::of(x, t / TOKEN_BLOCK);
        // SAFETY: by the caller's promise. `Activations` allocates whole blocks of tokens.
        unsafe { some::<Q>(rows, first, &k, &b, t, x.tokens(), out, p) };
    }
}

/// Six tokens from token `t` on; those before `n` exist.
///
/// # Safety
/// As for [`multiply`]; the CPU has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
#[allow(clippy::too_many_arguments)]
unsafe fn some<Q: TilesAvx512>(
    rows: &Range<usize>,
    first: usize,
    k: &Range<usize>,
    x: &Block,
    t: usize,
    n: usize,
    out: Output<'_>,
    p: &Panel,
) {
    let masks = [first, first + 1].map(|i| mask(rows, TILE_ROWS * i));
    // SAFETY: masked lanes are neither read nor written; the others are ours by the caller's promise.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); TILES]; TOKENS];
        if k.start != 0 {
            for c in 0..TOKENS.min(n - t) {
                for i in 0..TILES {
                    acc[c][i] = _mm512_maskz_loadu_ps(masks[i], at(out, t + c, first + i));
                }
            }
        }
        columns::<Q>(k, x, t % TOKEN_BLOCK, p, &mut acc);
        for c in 0..TOKENS.min(n - t) {
            for i in 0..TILES {
                _mm512_mask_storeu_ps(at(out, t + c, first + i), masks[i], acc[c][i]);
            }
        }
    }
}

/// Adds columns `k` of both tiles with six tokens, from token `t` of a block on.
///
/// # Safety
/// As for [`some`].
#[inline(always)]
unsafe fn columns<Q: TilesAvx512>(
    k: &Range<usize>,
    x: &Block,
    t: usize,
    p: &Panel,
    acc: &mut [[__m512; TILES]; TOKENS],
) {
    let parts = Q::SCALES;
    // SAFETY: by the caller's promise.
    unsafe {
        let mut w = p.q.as_ptr();
        for g in 0..k.len() / 32 {
            let b = k.start / 32 + g;
            let q = x.q.add(32 * (TOKEN_BLOCK * b + t));
            let scale = x.scale.add(TOKEN_BLOCK * b + t);
            for part in 0..parts {
                let mut sums = [[_mm512_setzero_si512(); TILES]; TOKENS];
                if Q::ZERO != 0 {
                    let z = match parts {
                        1 => x.z32.add(TOKEN_BLOCK * b + t),
                        _ => x.z16.add(TOKEN_BLOCK * (2 * b + part) + t),
                    };
                    for c in 0..TOKENS {
                        sums[c] = [times_zero::<Q>(_mm512_set1_epi32(*z.add(c))); TILES];
                    }
                }
                for j in part * 4..(part * 4 + 8 / parts) {
                    let lines = [_mm512_load_si512(w.cast()), _mm512_load_si512(w.add(64).cast())];
                    w = w.add(4 * PANEL_ROWS);
                    for c in 0..TOKENS {
                        let x = four(q.add(32 * c + 4 * j));
                        for i in 0..TILES {
                            sums[c][i] = _mm512_dpbusd_epi32(sums[c][i], lines[i], x);
                        }
                    }
                }
                let d = p.d.as_ptr().add((parts * g + part) * PANEL_ROWS);
                let d = [_mm512_load_ps(d), _mm512_load_ps(d.add(TILE_ROWS))];
                for c in 0..TOKENS {
                    let a = _mm512_set1_ps(*scale.add(c));
                    for i in 0..TILES {
                        let f = _mm512_cvtepi32_ps(sums[c][i]);
                        acc[c][i] = _mm512_fmadd_ps(f, _mm512_mul_ps(d[i], a), acc[c][i]);
                    }
                }
            }
            for part in 0..Q::OFFSETS {
                let m = p.m.as_ptr().add((Q::OFFSETS * g + part) * PANEL_ROWS);
                let m = [_mm512_load_ps(m), _mm512_load_ps(m.add(TILE_ROWS))];
                for c in 0..TOKENS {
                    let sum = _mm512_set1_ps(x.offset_sum(Q::OFFSETS, b, part, t + c));
                    for i in 0..TILES {
                        acc[c][i] = _mm512_fmadd_ps(m[i], sum, acc[c][i]);
                    }
                }
            }
        }
    }
}
