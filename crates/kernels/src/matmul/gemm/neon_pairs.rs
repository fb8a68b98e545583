//! The panel product with i8mm: `smmla` multiplies two rows × 8 columns with two tokens × 8 columns, twice as many products as
//! `sdot`. 8 rows × 4 tokens in registers, as in `neon`; a lane of sums belongs to a row and a token.
//!
//! The sums are the same integers as with `sdot`, and the floating-point operations for a row and a token and their order are the
//! same, so results are bit-identical.
//!
//! Both operands and the factors of the sums are rearranged for it beforehand, because an instruction that moves lanes within the
//! loop would cost as much time as a product. The panel has bytes `[K/8][32 rows][8]`, and each scale `[K/32][32 rows][2]` and
//! offset (`[K/16]…` for a type with one per 16) twice, in the memory of its floats. The activations of four tokens are
//! rearranged likewise for each panel, see [`Four`].
//!
//! For 32 columns, 8 rows and 4 tokens there are 32 `smmla` (64 `sdot`), and as many operations as with `sdot` that turn sums
//! into floats: "NEON" in `docs/explanation/performance.md` counts them.
//!
//! 16-bit tokens stay with `sdot`: pairs of lines would have to be brought together first, which costs as much as `smmla` saves, except for an
//! eighth of it with four tokens.

use super::neon_panel::{self, Order};
use super::{MAX_K_FLOAT, Panel, copy};
use crate::blocks::neon_rows::RowsNeon;
use crate::blocks::neon_tiles::TilesNeon;
use crate::blocks::{BlockFormat, with_block, with_tiles};
use crate::matmul::sizes::{MAX_K, PANEL_ROWS};
use crate::matmul::{Matrix, Output, Tokens};
use crate::sdot::smmla;
use crate::tiles::{Layout, TILE_ROWS};
use std::arch::aarch64::*;
use std::ops::Range;

/// Rows and tokens whose sums are in registers at the same time: 8 registers of integers and 8 of floats, out of 32.
const ROWS: usize = 8;
const TOKENS: usize = 4;

/// Start of the offsets among the panel's floats, after all scales.
const OFFSETS: usize = 2 * (MAX_K / 16) * PANEL_ROWS;

const _: () = assert!(2 * OFFSETS <= MAX_K_FLOAT * PANEL_ROWS);

/// Two rows side by side, eight columns of each.
struct Pairs;

impl Pairs {
    /// Stores each of four numbers twice, for rows `row ..`.
    ///
    /// # Safety
    /// `first` floats, followed by the scales or offsets up to `at`, are in the panel; the CPU has NEON.
    #[inline(always)]
    unsafe fn put_twice(p: &mut Panel, first: usize, at: usize, row: usize, four: float32x4_t) {
        // SAFETY: by the caller's promise.
        unsafe {
            let to = p.float.as_mut_ptr().add(first + 2 * (at * PANEL_ROWS + row));
            vst1q_f32(to, vzip1q_f32(four, four));
            vst1q_f32(to.add(4), vzip2q_f32(four, four));
        }
    }
}

impl Order for Pairs {
    #[inline(always)]
    unsafe fn put_lines(p: &mut Panel, line: usize, row: usize, two: [uint8x16_t; 2]) {
        // SAFETY: by the caller's promise.
        unsafe {
            let [a, b] = two.map(|v| vreinterpretq_u32_u8(v));
            let to = p.q.as_mut_ptr().add((line / 2 * PANEL_ROWS + row) * 8);
            vst1q_u32(to.cast(), vzip1q_u32(a, b));
            vst1q_u32(to.add(16).cast(), vzip2q_u32(a, b));
        }
    }

    #[inline(always)]
    unsafe fn put_rows(p: &mut Panel, line: usize, row: usize, four: [uint8x16_t; 4]) {
        // SAFETY: by the caller's promise.
        unsafe {
            let [a, b, c, d] = four.map(|v| vreinterpretq_u64_u8(v));
            let to = p.q.as_mut_ptr().add((line / 2 * PANEL_ROWS + row) * 8);
            let next = to.add(8 * PANEL_ROWS);
            vst1q_u64(to.cast(), vzip1q_u64(a, b));
            vst1q_u64(to.add(16).cast(), vzip1q_u64(c, d));
            vst1q_u64(next.cast(), vzip2q_u64(a, b));
            vst1q_u64(next.add(16).cast(), vzip2q_u64(c, d));
        }
    }

    #[inline(always)]
    unsafe fn put_scales(p: &mut Panel, at: usize, row: usize, four: float32x4_t) {
        // SAFETY: by the caller's promise.
        unsafe { Pairs::put_twice(p, 0, at, row, four) }
    }

    #[inline(always)]
    unsafe fn put_offsets(p: &mut Panel, at: usize, row: usize, four: float32x4_t) {
        // SAFETY: by the caller's promise.
        unsafe { Pairs::put_twice(p, OFFSETS, at, row, four) }
    }
}

/// # Safety
/// As for `gemm::rows`; `w` is of a quantised type, and the CPU has NEON with dotprod and i8mm.
pub(super) unsafe fn panel(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &mut Panel,
) {
    // SAFETY: by the caller's promise. A packed matrix has whole tiles, and a panel ends where they do: see `gemm::rows`.
    unsafe {
        let mut first = rows.start;
        match w.layout() {
            Layout::Rows => with_block!(
                w.weight_type(),
                Q => fill_rows::<Q>(w, rows.clone(), k.clone(), p),
                unreachable!("floats have a panel of floats")
            ),
            Layout::Tiles => {
                // Tiles are filled as a whole.
                first = rows.start / TILE_ROWS * TILE_ROWS;
                let whole = first..rows.end.next_multiple_of(TILE_ROWS);
                debug_assert!(whole.len() <= PANEL_ROWS);
                with_tiles!(
                    w.weight_type(),
                    Q => fill_tiles::<Q>(w, whole, k.clone(), p),
                    unreachable!("floats have a panel of floats")
                )
            }
            Layout::Planes => unreachable!("planes are multiplied as tiles"),
        }
        with_block!(
            w.weight_type(),
            Q => tokens::<Q>(first, rows, k, x, out, p),
            unreachable!("floats have a panel of floats")
        )
    }
}

/// # Safety
/// As for `neon_panel::rows`; the CPU has the features.
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn fill_rows<Q: RowsNeon>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    // SAFETY: by the caller's promise.
    unsafe { neon_panel::rows::<Q, Pairs>(w, rows, k, p) }
}

/// # Safety
/// As for `neon_panel::tiles`; the CPU has the features.
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn fill_tiles<Q: TilesNeon>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    p: &mut Panel,
) {
    // SAFETY: by the caller's promise.
    unsafe { neon_panel::tiles::<Q, Pairs>(w, rows, k, p) }
}

/// All tokens; row `first` of the matrix is the panel's first.
///
/// # Safety
/// As for [`panel`].
#[inline(never)]
unsafe fn tokens<Q: BlockFormat>(
    first: usize,
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &Panel,
) {
    let mut four = Four::NONE;
    for t in (0..x.tokens()).step_by(TOKENS) {
        let count = TOKENS.min(x.tokens() - t);
        // SAFETY: by the caller's promise; this many tokens exist from t on.
        unsafe {
            four.gather(x, t..t + count, &k, Q::OFFSETS);
            for part in (first..rows.end).step_by(ROWS) {
                // A range of rows may begin within a tile.
                let wanted = part.max(rows.start)..rows.end.min(part + ROWS);
                if wanted.is_empty() {
                    continue;
                }
                let mut sums = [[0f32; ROWS]; TOKENS];
                let inside = wanted.start - part..wanted.end - part;
                if k.start != 0 {
                    for (c, sums) in sums[..count].iter_mut().enumerate() {
                        copy::<ROWS>(out.row_mut(t + c, wanted.clone()), &mut sums[inside.clone()]);
                    }
                }
                match count {
                    1 | 2 => columns::<Q, 1>(part - first, k.len() / 32, &four, p, &mut sums),
                    _ => columns::<Q, 2>(part - first, k.len() / 32, &four, p, &mut sums),
                }
                for (c, sums) in sums[..count].iter().enumerate() {
                    copy::<ROWS>(&sums[inside.clone()], out.row_mut(t + c, wanted.clone()));
                }
            }
        }
    }
}

/// Two pairs of tokens, over the columns of a panel. A single remaining token is paired with itself.
#[repr(C, align(16))]
struct Four {
    /// Bytes `[K/8][2 tokens][8]` of each pair.
    q: [[i8; 2 * MAX_K]; TOKENS / 2],
    /// `[K/32]`, each scale of a pair twice.
    scale: [[[f32; 4]; MAX_K / 32]; TOKENS / 2],
    /// `[K/32][OFFSETS]`, likewise: the factors of offsets.
    sums: [[[f32; 4]; MAX_K / 16]; TOKENS / 2],
}

impl Four {
    const NONE: Four = Four {
        q: [[0; 2 * MAX_K]; TOKENS / 2],
        scale: [[[0.0; 4]; MAX_K / 32]; TOKENS / 2],
        sums: [[[0.0; 4]; MAX_K / 16]; TOKENS / 2],
    };

    /// # Safety
    /// The tokens and the columns exist, and fit this struct; the CPU has NEON.
    #[target_feature(enable = "neon")]
    unsafe fn gather(
        &mut self,
        x: &Tokens<'_>,
        tokens: Range<usize>,
        k: &Range<usize>,
        offsets: usize,
    ) {
        let (cols, groups) = (x.cols(), x.cols() / 32);
        for (i, t) in tokens.clone().step_by(2).enumerate() {
            let two = [t, (t + 1).min(tokens.end - 1)];
            // SAFETY: the integers of two tokens from column `k.start` on; `q` has as many bytes as both.
            unsafe {
                let from = two.map(|t| x.q8().add(t * cols + k.start));
                let to = self.q[i].as_mut_ptr();
                for at in (0..k.len()).step_by(16) {
                    let [a, b] = from.map(|from| vreinterpretq_s64_s8(vld1q_s8(from.add(at))));
                    vst1q_s64(to.add(2 * at).cast(), vzip1q_s64(a, b));
                    vst1q_s64(to.add(2 * at + 16).cast(), vzip2q_s64(a, b));
                }
            }
            let (g, sums) = (k.start / 32, x.sums_for(offsets));
            let [a, b] = two.map(|t| t * groups + g);
            for g in 0..k.len() / 32 {
                let [a, b] = [x.scale()[a + g], x.scale()[b + g]];
                self.scale[i][g] = [a, b, a, b];
            }
            for g in 0..offsets * (k.len() / 32) {
                let [a, b] = [sums[offsets * a + g], sums[offsets * b + g]];
                self.sums[i][g] = [a, b, a, b];
            }
        }
    }
}

/// Adds the products of [`ROWS`] rows, starting at the panel's row `row`, with `P` pairs of tokens over `groups` groups of 32 columns.
///
/// # Safety
/// The panel has the rows and the columns, `four` was gathered for them; the CPU has NEON with dotprod and i8mm.
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn columns<Q: BlockFormat, const P: usize>(
    row: usize,
    groups: usize,
    four: &Four,
    p: &Panel,
    out: &mut [[f32; ROWS]; TOKENS],
) {
    let (scales, offsets) = (Q::SCALES, Q::OFFSETS);
    const { assert!(2 * P <= TOKENS) };
    assert!(groups <= MAX_K / 32 && row + ROWS <= PANEL_ROWS);
    // SAFETY: inside the panel and the four tokens, as asserted.
    unsafe {
        let mut acc = [[vdupq_n_f32(0.0); ROWS / 2]; P];
        for c in 0..P {
            for i in (0..ROWS / 2).step_by(2) {
                let a = vld1q_f32(out[2 * c].as_ptr().add(2 * i));
                let b = vld1q_f32(out[2 * c + 1].as_ptr().add(2 * i));
                (acc[c][i], acc[c][i + 1]) = (vzip1q_f32(a, b), vzip2q_f32(a, b));
            }
        }
        for g in 0..groups {
            for h in 0..scales {
                let mut sums = [[vdupq_n_s32(0); ROWS / 2]; P];
                for eight in 0..4 / scales {
                    let eight = 4 * g + 4 / scales * h + eight;
                    let w = p.q.as_ptr().add((eight * PANEL_ROWS + row) * 8);
                    for i in 0..ROWS / 2 {
                        let w = vld1q_s8(w.add(16 * i));
                        for c in 0..P {
                            let x = vld1q_s8(four.q[c].as_ptr().add(16 * eight));
                            sums[c][i] = smmla(sums[c][i], w, x);
                        }
                    }
                }
                let d = p.float.as_ptr().add(2 * ((scales * g + h) * PANEL_ROWS + row));
                for c in 0..P {
                    let scale = vld1q_f32(four.scale[c].get_unchecked(g).as_ptr());
                    for i in 0..ROWS / 2 {
                        let a = vmulq_f32(vld1q_f32(d.add(4 * i)), scale);
                        acc[c][i] = vfmaq_f32(acc[c][i], vcvtq_f32_s32(sums[c][i]), a);
                    }
                }
            }
            for h in 0..offsets {
                let at = offsets * g + h;
                let m = p.float.as_ptr().add(OFFSETS + 2 * (at * PANEL_ROWS + row));
                for c in 0..P {
                    let s = vld1q_f32(four.sums[c].get_unchecked(at).as_ptr());
                    for i in 0..ROWS / 2 {
                        acc[c][i] = vfmaq_f32(acc[c][i], vld1q_f32(m.add(4 * i)), s);
                    }
                }
            }
        }
        for c in 0..P {
            for i in (0..ROWS / 2).step_by(2) {
                // Lanes are two rows, with the first and the second token of each.
                let (a, b) = (acc[c][i], acc[c][i + 1]);
                vst1q_f32(out[2 * c].as_mut_ptr().add(2 * i), vuzp1q_f32(a, b));
                vst1q_f32(out[2 * c + 1].as_mut_ptr().add(2 * i), vuzp2q_f32(a, b));
            }
        }
    }
}
