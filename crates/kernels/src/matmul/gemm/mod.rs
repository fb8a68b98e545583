//! Several tokens: panels of 32 rows, unpacked on the fly, multiplied with all tokens.
//!
//! A panel holds a stretch of up to [`MAX_K`] columns, so that it stays in the first-level cache
//! while all tokens pass over it. Its layout is the same for every type:
//! - `q` `[K/4][32 rows][4]` signed bytes: `vpdpbusd` multiplies one line of 16 rows with four broadcast (unsigned) activations;
//!   with AVX2 unsigned codes, see `avx2`;
//! - `d` `[K/32][32 rows]` f32 scales and `z` the integers −128·Σq that compensate for the activations' bias of 128 (both
//!   `[K/16][32 rows]` for a type with a scale per 16); AVX2 and NEON do not need `z`;
//! - `m` `[K/32][32 rows]` f32 offsets (`[K/16][32 rows]` for a type with an offset per 16).
//!
//! With i8mm all of them are arranged differently, see `neon_pairs`.
//!
//! Float weights: `[K][32 rows]` f32.
//!
//! Portable code keeps the sums of all tokens in the memory of the floats, and processes them with one group of 32 columns after
//! the other, see `scalar`.
//!
//! With AMX the panel is multiplied as it is, see `amx::bytes`, or converted to bf16, see `amx::bf16`.

/// The code around the `columns` of AVX2 and NEON, which add the products of `ROWS` rows of a panel with up to `TOKENS` tokens. Parameters:
/// the level's features, the module that fills a panel, and the macro for the [`Formula`](crate::blocks::Formula) of a type.
///
/// The dispatch by type is compiled without the level's features, so that the types are separate functions: see `dot`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! driver {
    ($features:literal, $panel:ident, $formula:ident, $with_formula:ident) => {
        /// # Safety
        /// As for `gemm::rows`; the CPU has the level.
        pub(super) unsafe fn panel(
            w: &Matrix<'_>,
            rows: Range<usize>,
            k: Range<usize>,
            x: &Tokens<'_>,
            out: Output<'_>,
            p: &mut Panel,
        ) {
            // Tiles are filled as a whole.
            let whole = match w.layout() {
                Layout::Rows => rows.clone(),
                Layout::Tiles => rows.start / TILE_ROWS * TILE_ROWS..rows.end.next_multiple_of(TILE_ROWS),
                Layout::Planes => unreachable!("planes are multiplied as tiles"),
            };
            debug_assert!(whole.len() <= PANEL_ROWS);
            // SAFETY: by the caller's promise. A packed matrix has whole tiles, and a panel ends where they do: see `gemm::rows`.
            unsafe {
                with_block!(
                    w.weight_type(),
                    Q => {
                        match w.layout() {
                            Layout::Rows => $panel::fill_rows::<Q>(w, whole.clone(), k.clone(), p),
                            Layout::Tiles => fill_tiles(w, whole.clone(), k.clone(), p),
                            Layout::Planes => unreachable!("planes are multiplied as tiles"),
                        }
                        $with_formula!(Q, F => tokens::<F>(whole.start, rows, k, x, out, p));
                    },
                    floats(w, rows, k, x, out, p)
                )
            }
        }

        /// The portable code for floats, compiled for the level.
        ///
        /// # Safety
        /// As for [`panel`].
        #[target_feature(enable = $features)]
        unsafe fn floats(
            w: &Matrix<'_>,
            rows: Range<usize>,
            k: Range<usize>,
            x: &Tokens<'_>,
            out: Output<'_>,
            p: &mut Panel,
        ) {
            scalar::fill_float(w, rows.clone(), k.clone(), p);
            // SAFETY: by the caller's promise.
            unsafe { scalar::multiply_float(rows, k, x, out, p, f32::mul_add) }
        }

        /// # Safety
        /// As for [`panel`].
        unsafe fn fill_tiles(w: &Matrix<'_>, rows: Range<usize>, k: Range<usize>, p: &mut Panel) {
            with_tiles!(
                w.weight_type(),
                // SAFETY: by the caller's promise.
                Q => unsafe { $panel::fill_tiles::<Q>(w, rows, k, p) },
                unreachable!("floats have a panel of floats")
            )
        }

        /// All tokens; row `first` of the matrix is the panel's first.
        #[inline(never)]
        unsafe fn tokens<F: $formula>(
            first: usize,
            rows: Range<usize>,
            k: Range<usize>,
            x: &Tokens<'_>,
            out: Output<'_>,
            p: &Panel,
        ) {
            let mut t = 0;
            while t < x.tokens() {
                // SAFETY: by the caller's promise; this many tokens exist from t on.
                t += unsafe {
                    match x.tokens() - t {
                        1 => some::<F, 1>(first, &rows, &k, x, t, out, p),
                        few if few < TOKENS => some::<F, 2>(first, &rows, &k, x, t, out, p),
                        _ => some::<F, TOKENS>(first, &rows, &k, x, t, out, p),
                    }
                };
            }
        }

        /// `C` tokens from token `t` on; returns the number of tokens.
        #[inline(always)]
        unsafe fn some<F: $formula, const C: usize>(
            first: usize,
            rows: &Range<usize>,
            k: &Range<usize>,
            x: &Tokens<'_>,
            t: usize,
            out: Output<'_>,
            p: &Panel,
        ) -> usize {
            // SAFETY: by the caller's promise.
            unsafe {
                for part in (first..rows.end).step_by(ROWS) {
                    // A range of rows may begin within a tile.
                    let wanted = part.max(rows.start)..rows.end.min(part + ROWS);
                    if wanted.is_empty() {
                        continue;
                    }
                    let mut sums = [[0f32; ROWS]; C];
                    let inside = wanted.start - part..wanted.end - part;
                    if k.start != 0 {
                        for (c, sums) in sums.iter_mut().enumerate() {
                            super::copy::<ROWS>(out.row_mut(t + c, wanted.clone()), &mut sums[inside.clone()]);
                        }
                    }
                    columns::<F, C>(part - first, k, x, t, p, &mut sums);
                    for (c, sums) in sums.iter().enumerate() {
                        super::copy::<ROWS>(&sums[inside.clone()], out.row_mut(t + c, wanted.clone()));
                    }
                }
            }
            C
        }
    };
}

/// Copies sums, usually `N` of them: a copy of another length is a call, which takes a twentieth of the time of the products.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn copy<const N: usize>(from: &[f32], to: &mut [f32]) {
    match (<&[f32; N]>::try_from(from), <&mut [f32; N]>::try_from(&mut *to)) {
        (Ok(from), Ok(to)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_panel;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_panel;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_pairs;
#[cfg(target_arch = "aarch64")]
mod neon_panel;
mod scalar;

use super::activations::AlignedBytes;
use super::sizes::{MAX_K, PANEL_BYTES, PANEL_ROWS, PANELS, SUMS, cut_at_multiples};
use super::{Matrix, Output, Tokens};
use crate::blocks::BlockFormat;
use crate::blocks::q8_0::Q8_0;
use crate::isa::SimdLevel;
use crate::planes;
use std::ops::Range;

/// Maximum number of columns of a float panel: 32 KiB of floats.
const MAX_K_FLOAT: usize = 256;

const _: () = assert!(MAX_K_FLOAT * PANEL_ROWS >= SUMS);

/// One thread's panel, allocated once.
pub struct MatmulScratch {
    pub(super) panel: Box<Panel>,
    /// Panels of bf16, see `amx::bf16`; the pages stay untouched if that is not used.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) bf16: AlignedBytes,
    /// Rows of planes: a panel in tiles, or rows that are multiplied whole; untouched if there are none.
    pub(super) tiles: Vec<u8>,
}

impl MatmulScratch {
    /// Allocates about 75 KiB, regardless of the model; AMX with prompts uses 384 KiB more.
    pub fn new() -> MatmulScratch {
        MatmulScratch {
            panel: Box::new(Panel {
                q: [0; MAX_K * PANEL_ROWS],
                z: [0; MAX_K / 16 * PANEL_ROWS],
                float: [0.0; MAX_K_FLOAT * PANEL_ROWS],
                d: [0.0; MAX_K / 16 * PANEL_ROWS],
                m: [0.0; MAX_K / 16 * PANEL_ROWS],
                zero: 0,
            }),
            bf16: AlignedBytes::new(PANELS * PANEL_BYTES),
            tiles: vec![0; PANEL_ROWS * (planes::MAX_COLS / Q8_0::BLOCK) * Q8_0::BYTES],
        }
    }
}

impl MatmulScratch {
    /// Memory for the sums of packed matrices: at least [`SUMS`] floats.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn sums(&mut self) -> &mut [f32] {
        &mut self.panel.float
    }
}

impl Default for MatmulScratch {
    fn default() -> Self {
        MatmulScratch::new()
    }
}

/// See the module's documentation.
#[repr(C, align(64))]
// Portable code uses only the floats, and NEON does not use `z`.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(in crate::matmul) struct Panel {
    pub(in crate::matmul) q: [i8; MAX_K * PANEL_ROWS],
    pub(in crate::matmul) z: [i32; MAX_K / 16 * PANEL_ROWS],
    float: [f32; MAX_K_FLOAT * PANEL_ROWS],
    pub(in crate::matmul) d: [f32; MAX_K / 16 * PANEL_ROWS],
    pub(in crate::matmul) m: [f32; MAX_K / 16 * PANEL_ROWS],
    /// The difference between codes and weights, if `z` does not compensate for it.
    zero: i32,
}

/// Splits `cols` into stretches of nearly equal length, at most `max` and multiples of 256 except for the last.
pub(in crate::matmul) fn stretches(cols: usize, max: usize) -> impl Iterator<Item = Range<usize>> {
    let count = cols.div_ceil(max).max(1);
    let len = cols.div_ceil(count).next_multiple_of(256).min(max);
    (0..cols).step_by(len).map(move |k| k..cols.min(k + len))
}

/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours.
pub(super) unsafe fn rows(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    let panel = &mut *scratch.panel;
    // A panel begins or ends at a multiple of its rows, so that whole tiles fit.
    for part in cut_at_multiples(rows, PANEL_ROWS) {
        let max = if w.weight_type().is_float() { MAX_K_FLOAT } else { MAX_K };
        for k in stretches(w.cols(), max) {
            match x.isa().level() {
                // SAFETY: an `Isa` can run here; the rest by the caller's promise.
                #[cfg(target_arch = "x86_64")]
                SimdLevel::Avx512 | SimdLevel::AmxInt8 | SimdLevel::Amx => unsafe {
                    avx512::panel(w, part.clone(), k, x, out, panel)
                },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                SimdLevel::AvxVnni => unsafe { avx_vnni::panel(w, part.clone(), k, x, out, panel) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                SimdLevel::Avx2 => unsafe { avx2::panel(w, part.clone(), k, x, out, panel) },
                // SAFETY: as above.
                #[cfg(target_arch = "aarch64")]
                SimdLevel::I8mm if !w.weight_type().is_float() => unsafe {
                    neon_pairs::panel(w, part.clone(), k, x, out, panel)
                },
                // SAFETY: as above.
                #[cfg(target_arch = "aarch64")]
                SimdLevel::Neon | SimdLevel::I8mm => unsafe {
                    neon::panel(w, part.clone(), k, x, out, panel)
                },
                // SAFETY: by the caller's promise.
                _ => unsafe { scalar::panel(w, part.clone(), k, x, out, panel) },
            }
        }
    }
}
