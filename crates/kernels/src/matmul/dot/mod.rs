//! 16-bit tokens: dot products of rows with activations. A few tokens share the unpacked weights; the operations of each token, and their order, are
//! the same as for one alone, and those of tiles.

/// The code around a SIMD level's `dot`, whose operations of each row and token, and their order, are the same for any number of
/// tokens. Parameters: the level's features, its trait of block types, and the number of rows computed together.
///
/// The dispatch by type and number is compiled without the level's features. So the compiler does not inline the functions that
/// it calls: all types in one function would take it minutes. (With `target_feature`, `inline(never)` has no effect in Rust
/// 1.95.)
macro_rules! driver {
    ($features:literal, $level:ident, $rows:literal) => {
        /// # Safety
        /// As for `dot::rows`; the CPU has the level.
        pub(super) unsafe fn rows(
            w: &Matrix<'_>,
            rows: Range<usize>,
            x: &Tokens<'_>,
            out: Output<'_>,
        ) {
            // SAFETY: by the caller's promise.
            unsafe {
                with_block!(
                    w.weight_type(),
                    Q => quantized::<Q>(w, rows, x, out),
                    floats(w, rows, x, out)
                )
            }
        }

        driver!(@quantized $features, $level, $rows);
    };
    (@quantized $features:literal, $level:ident, $rows:literal) => {
        /// All tokens, as many at a time as fit.
        pub(super) unsafe fn quantized<Q: $level>(
            w: &Matrix<'_>,
            rows: Range<usize>,
            x: &Tokens<'_>,
            out: Output<'_>,
        ) {
            $crate::matmul::sizes::tokens_together!(x.tokens(), t, T => {
                // SAFETY: by the caller's promise.
                unsafe { some::<Q, $rows, T>(w, rows.clone(), x, t, out) }
            });
        }

        /// Computes rows for `T` tokens from token `t` on, `R` rows at a time. (A separate function for each `T`, so that registers are
        /// allocated for each.)
        ///
        /// # Safety
        /// As for [`rows`].
        #[target_feature(enable = $features)]
        unsafe fn some<Q: $level, const R: usize, const T: usize>(
            w: &Matrix<'_>,
            rows: Range<usize>,
            x: &Tokens<'_>,
            t: usize,
            out: Output<'_>,
        ) {
            let x: [Tokens<'_>; T] = std::array::from_fn(|i| x.one(t + i));
            // SAFETY: `dot` reads whole rows of w and the activations of the tokens; the elements are ours by the caller's promise.
            unsafe {
                for first in rows.clone().step_by(R) {
                    // If fewer rows are left, the last one is computed again for each missing row: a separate version for this
                    // case would double this code.
                    let row = std::array::from_fn(|j| w.row(rows.end.min(first + j + 1) - 1).as_ptr());
                    for (j, sums) in dot::<Q, R, T>(row, w, &x).into_iter().enumerate() {
                        let out = out.row_mut(t + j, first..rows.end.min(first + R));
                        match out.first_chunk_mut() {
                            Some(out) => *out = sums,
                            None => out.copy_from_slice(&sums[..out.len()]),
                        }
                    }
                }
            }
        }
    };
}

/// The code around a level's `units`, the products of rows that are packed into units of a tile (`units.rs`). Parameters: the level's features, its traits
/// of tiles and of rows, the function of a type that is true if its rows are computed by [`driver`]'s code instead, as are those of types without tiles,
/// the macro that cuts the tokens, and what `units` is generic over beside the type and the number of tokens.
#[cfg(target_arch = "x86_64")]
macro_rules! units_driver {
    ($features:literal, $tiles:ident, $rows:ident, $row_by_row:ident, $together:ident $(, $sums:ty)?) => {
        /// # Safety
        /// As for `dot::rows`; the CPU has the level.
        pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
            let ty = w.weight_type();
            // SAFETY: by the caller's promise.
            unsafe {
                if ty.is_float() {
                    return floats(w, rows, x, out);
                }
                if !alight_types::packed::has_tiles(ty.ggml()) {
                    return with_rows!(ty, Q => quantized::<Q>(w, rows, x, out));
                }
                with_tiles!(ty, Q => as_tiles::<Q>(w, rows, x, out), unreachable!("floats"))
            }
        }

        /// Rows of a type that has tiles.
        unsafe fn as_tiles<Q: $tiles + $rows>(
            w: &Matrix<'_>,
            rows: Range<usize>,
            x: &Tokens<'_>,
            out: Output<'_>,
        ) {
            if const { $row_by_row::<Q>() } {
                // SAFETY: by the caller's promise.
                return unsafe { quantized::<Q>(w, rows, x, out) };
            }
            $crate::matmul::sizes::$together!(x.tokens(), t, T => {
                // SAFETY: by the caller's promise.
                unsafe { some_as_tiles::<Q, T>(w, rows.clone(), x, t, out) }
            });
        }

        /// Rows for `T` tokens from token `t` on; the last one stands for those that do not exist.
        ///
        /// # Safety
        /// As for [`rows`].
        #[target_feature(enable = $features)]
        unsafe fn some_as_tiles<Q: $tiles + $rows, const T: usize>(
            w: &Matrix<'_>,
            rows: Range<usize>,
            x: &Tokens<'_>,
            t: usize,
            out: Output<'_>,
        ) {
            let last = x.tokens() - 1;
            let tokens = t..x.tokens().min(t + T);
            let x: [Tokens<'_>; T] = std::array::from_fn(|i| x.one(last.min(t + i)));
            // SAFETY: by the caller's promise.
            unsafe { units::<$($sums,)? Q, T>(w, rows, &x, tokens, out) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(super) mod units;

use super::{Matrix, Output, Tokens};
use crate::isa::SimdLevel;
use std::ops::Range;

/// `out[t, i] = Σ_k w[i, k] · x[t, k]` for `i` in `rows`; shapes were checked by the caller.
///
/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours.
pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    // SAFETY: an `Isa` can run here; the rest by the caller's promise.
    unsafe {
        match x.isa().level() {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 | SimdLevel::AmxInt8 | SimdLevel::Amx => {
                avx512::rows(w, rows, x, out)
            }
            #[cfg(target_arch = "x86_64")]
            SimdLevel::AvxVnni => avx_vnni::rows(w, rows, x, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => avx2::rows(w, rows, x, out),
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon | SimdLevel::I8mm => neon::rows(w, rows, x, out),
            _ => scalar::rows(w, rows, x, out),
        }
    }
}
