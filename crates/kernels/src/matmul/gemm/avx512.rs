//! The panel product with AVX-512 VNNI: 32 rows × 6 tokens in registers.
//!
//! Per 32 columns a tile needs 96 `vpdpbusd`, 12 conversions and 24 (with offsets 36) f32 operations: on a core with one 512-bit
//! multiplier at best 80 % (73 %) of its peak.

use super::{Panel, avx512_panel};
use crate::blocks::{BlockFormat, Formula, WeightType, with_formula, with_rows, with_tiles};
use crate::lanes::align_stack;
use crate::matmul::amx;
use crate::matmul::sizes::PANEL_ROWS;
use crate::matmul::{Matrix, Output, Tokens};
use std::arch::x86_64::*;
use std::ops::Range;

/// Tokens of a full tile.
const TOKENS: usize = 6;

/// (The dispatch by type is compiled without the level's features, so that the types are separate functions: see `dot`.)
///
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
    let ty = w.weight_type();
    // SAFETY: by the caller's promise.
    unsafe {
        if ty.is_float() {
            fill_float(w, rows.clone(), k.clone(), p);
            return tokens::<Float>(rows, k, x, out, p);
        }
        if alight_types::packed::has_tiles(ty.ggml()) {
            return with_tiles!(
                ty,
                Q => {
                    avx512_panel::fill_as_tiles::<Q>(w, rows.clone(), k.clone(), p);
                    quantized::<Q>(rows, k, x, out, p);
                },
                unreachable!("floats")
            );
        }
        with_rows!(
            ty,
            Q => {
                avx512_panel::fill::<Q>(w, rows.clone(), k.clone(), p);
                quantized::<Q>(rows, k, x, out, p);
            }
        )
    }
}

/// # Safety
/// As for [`panel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn fill_float(w: &Matrix<'_>, rows: Range<usize>, k: Range<usize>, p: &mut Panel) {
    // SAFETY: by the caller's promise.
    unsafe {
        match w.weight_type() {
            WeightType::F32 => avx512_panel::fill_float(w, rows, k, p, |at, n| {
                _mm512_maskz_loadu_ps(first(n), at.cast())
            }),
            WeightType::F16 => avx512_panel::fill_float(w, rows, k, p, |at, n| {
                _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), at.cast()))
            }),
            _ => avx512_panel::fill_float(w, rows, k, p, |at, n| {
                let v = _mm256_maskz_loadu_epi16(first(n), at.cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(v)))
            }),
        }
    }
}

/// A mask of the first `n` ≤ 16 lanes.
#[inline(always)]
fn first(n: u32) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// Multiplies a panel that has been filled.
unsafe fn quantized<Q: BlockFormat>(
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &Panel,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        with_formula!(
            Q,
            F => if F::SCALES == 1 && x.rows_in_blocks() {
                amx::bytes::multiply::<F>(&rows, rows.start, k, x, out, p);
            } else {
                tokens::<IntegerSums<F>>(rows, k, x, out, p);
            }
        )
    }
}

/// The way in which a tile of `C` tokens adds its products.
trait TokenTile {
    /// Adds the products of columns `k` of tokens `t .. t + C` to `acc[token][16 rows]`.
    ///
    /// # Safety
    /// The tokens exist, the panel holds these columns, the CPU has the level.
    unsafe fn add<const C: usize>(
        k: Range<usize>,
        x: &Tokens<'_>,
        t: usize,
        p: &Panel,
        acc: &mut [[__m512; 2]; C],
    );
}

/// All tokens, six at a time.
unsafe fn tokens<T: TokenTile>(
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &Panel,
) {
    let n = x.tokens();
    let mut t = 0;
    // SAFETY: by the caller's promise; t + C ≤ n in every call.
    unsafe {
        while t + TOKENS <= n {
            tile::<T, TOKENS>(rows.clone(), k.clone(), x, t, out, p);
            t += TOKENS;
        }
        match n - t {
            1 => tile::<T, 1>(rows, k, x, t, out, p),
            2 => tile::<T, 2>(rows, k, x, t, out, p),
            3 => tile::<T, 3>(rows, k, x, t, out, p),
            4 => tile::<T, 4>(rows, k, x, t, out, p),
            5 => tile::<T, 5>(rows, k, x, t, out, p),
            _ => {}
        }
    }
}

/// # Safety
/// As for `gemm::rows`; the CPU has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn tile<T: TokenTile, const C: usize>(
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    t: usize,
    out: Output<'_>,
    p: &Panel,
) {
    align_stack();
    // SAFETY: masked lanes are neither read nor written; the others are ours by the caller's
    // promise.
    unsafe {
        let n = rows.len();
        let mask = [first(n.min(16) as u32), first(n.saturating_sub(16) as u32)];
        let mut acc = [[_mm512_setzero_ps(); 2]; C];
        if k.start != 0 {
            for c in 0..C {
                let at = out.at(t + c, rows.start);
                acc[c][0] = _mm512_maskz_loadu_ps(mask[0], at);
                acc[c][1] = _mm512_maskz_loadu_ps(mask[1], at.wrapping_add(16));
            }
        }
        T::add::<C>(k, x, t, p, &mut acc);
        for c in 0..C {
            let at = out.at(t + c, rows.start);
            _mm512_mask_storeu_ps(at, mask[0], acc[c][0]);
            _mm512_mask_storeu_ps(at.wrapping_add(16), mask[1], acc[c][1]);
        }
    }
}

/// Quantised weights.
struct IntegerSums<F>(std::marker::PhantomData<F>);

impl<F: Formula> TokenTile for IntegerSums<F> {
    #[inline(always)]
    unsafe fn add<const C: usize>(
        k: Range<usize>,
        x: &Tokens<'_>,
        t: usize,
        p: &Panel,
        acc: &mut [[__m512; 2]; C],
    ) {
        let cols = x.cols();
        let parts = F::SCALES;
        // SAFETY: by the caller's promise.
        unsafe {
            let xq = x.q8().add(t * cols + k.start);
            let groups = cols / 32;
            let at = t * groups + k.start / 32;
            let scale = x.scale().as_ptr().add(at);
            let offset_sums = x.sums_for(F::OFFSETS).as_ptr().wrapping_add(F::OFFSETS * at);
            let mut w = p.q.as_ptr();
            for g in 0..k.len() / 32 {
                for part in 0..parts {
                    let at = (parts * g + part) * PANEL_ROWS;
                    let xq = xq.add(32 * g + 32 / parts * part);
                    let z = p.z.as_ptr().add(at);
                    let sums = if parts == 2 {
                        products::<C, 4>(w, xq, cols, z)
                    } else {
                        products::<C, 8>(w, xq, cols, z)
                    };
                    w = w.add(8 / parts * PANEL_ROWS * 4);
                    let d = p.d.as_ptr().add(at);
                    let d = [_mm512_load_ps(d), _mm512_load_ps(d.add(16))];
                    for c in 0..C {
                        let a = _mm512_set1_ps(*scale.add(c * groups + g));
                        for i in 0..2 {
                            let f = _mm512_cvtepi32_ps(sums[c][i]);
                            acc[c][i] = _mm512_fmadd_ps(f, _mm512_mul_ps(d[i], a), acc[c][i]);
                        }
                    }
                }
                for h in 0..F::OFFSETS {
                    let m = p.m.as_ptr().add((F::OFFSETS * g + h) * PANEL_ROWS);
                    let m = [_mm512_load_ps(m), _mm512_load_ps(m.add(16))];
                    for c in 0..C {
                        let s = offset_sums.add(F::OFFSETS * (c * groups + g) + h);
                        let s = _mm512_set1_ps(*s);
                        for i in 0..2 {
                            acc[c][i] = _mm512_fmadd_ps(m[i], s, acc[c][i]);
                        }
                    }
                }
            }
        }
    }
}

/// Integer sums over `LINES` × 4 columns, starting from `z` `[32 rows]`.
#[inline(always)]
unsafe fn products<const C: usize, const LINES: usize>(
    w: *const i8,
    x: *const i8,
    cols: usize,
    z: *const i32,
) -> [[__m512i; 2]; C] {
    // SAFETY: by the caller's promise.
    unsafe {
        let start = [_mm512_load_si512(z.cast()), _mm512_load_si512(z.add(16).cast())];
        let mut sums = [start; C];
        for l in 0..LINES {
            let w0 = _mm512_load_si512(w.add(l * PANEL_ROWS * 4).cast());
            let w1 = _mm512_load_si512(w.add(l * PANEL_ROWS * 4 + 64).cast());
            for c in 0..C {
                let x = x.add(c * cols + 4 * l).cast::<i32>();
                let x = _mm512_set1_epi32(x.read_unaligned());
                sums[c][0] = _mm512_dpbusd_epi32(sums[c][0], x, w0);
                sums[c][1] = _mm512_dpbusd_epi32(sums[c][1], x, w1);
            }
        }
        sums
    }
}

/// Float weights.
struct Float;

impl TokenTile for Float {
    #[inline(always)]
    unsafe fn add<const C: usize>(
        k: Range<usize>,
        x: &Tokens<'_>,
        t: usize,
        p: &Panel,
        acc: &mut [[__m512; 2]; C],
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            let mut xp = [std::ptr::null(); C];
            for (c, xp) in xp.iter_mut().enumerate() {
                *xp = x.float(t + c).as_ptr().add(k.start);
            }
            for j in 0..k.len() {
                let w = p.float.as_ptr().add(j * PANEL_ROWS);
                let w = [_mm512_load_ps(w), _mm512_load_ps(w.add(16))];
                for c in 0..C {
                    let x = _mm512_set1_ps(*xp[c].add(j));
                    acc[c][0] = _mm512_fmadd_ps(w[0], x, acc[c][0]);
                    acc[c][1] = _mm512_fmadd_ps(w[1], x, acc[c][1]);
                }
            }
        }
    }
}
