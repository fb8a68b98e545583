//! Products of packed matrices.
//!
//! With AVX-512 VNNI a tile is multiplied in place, by a few 16-bit tokens or by a register block of twelve 8-bit ones; for long
//! prompts it is unpacked into a panel of bytes, if that is faster. With AVX2, NEON and in portable code (`dot/scalar.rs`) it is
//! multiplied in place by 16-bit tokens; for 8-bit ones weights are unpacked by the same code as canonical ones, which only reads
//! them from other places.

/// The code around the `quantized` and `float` of AVX2 and NEON, which compute the sums of a tile's rows for some 16-bit tokens.
///
/// The dispatch by type is compiled without the level's features, so that the types are separate functions: see `dot`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! driver {
    () => {
        /// # Safety
        /// As for `tiles::rows`; the tokens have 16 bits; the CPU has the level.
        pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
            $crate::matmul::sizes::tokens_together!(x.tokens(), t, T => {
                // SAFETY: by the caller's promise.
                unsafe { some::<T>(w, &rows, x, t, out) }
            });
        }

        /// Rows for `T` tokens from token `t` on.
        ///
        /// # Safety
        /// As for [`rows`].
        unsafe fn some<const T: usize>(
            w: &Matrix<'_>,
            rows: &Range<usize>,
            x: &Tokens<'_>,
            t: usize,
            out: Output<'_>,
        ) {
            let x: [Tokens<'_>; T] = std::array::from_fn(|i| x.one(t + i));
            let mut r = rows.start;
            while r < rows.end {
                let (i, first) = (r / TILE_ROWS, r % TILE_ROWS);
                let end = rows.end.min(TILE_ROWS * (i + 1));
                let mut sums = [[0f32; TILE_ROWS]; T];
                // SAFETY: a whole tile; the caller's CPU has the level.
                unsafe {
                    with_tiles!(
                        w.weight_type(),
                        Q => quantized::<Q, T>(w, i, &x, &mut sums),
                        for (sums, x) in sums.iter_mut().zip(&x) {
                            float(w, i, x.float(0), sums);
                        }
                    );
                }
                for (j, sums) in sums.iter().enumerate() {
                    // SAFETY: the elements are ours by the caller's promise.
                    let out = unsafe { out.row_mut(t + j, r..end) };
                    out.copy_from_slice(&sums[first..][..end - r]);
                }
                r = end;
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_panel;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx_vnni;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{MatmulScratch, Matrix, Output, Precision, Tokens, dot, gemm};
use crate::isa::SimdLevel;
use std::ops::Range;

/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours.
pub(super) unsafe fn rows(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    match x.isa().level() {
        // SAFETY: an `Isa` can run here; the rest by the caller's promise.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 | SimdLevel::AmxInt8 | SimdLevel::Amx => unsafe {
            avx512::rows(w, rows, x, out, scratch)
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 if x.precision() == Precision::Bits16 => unsafe {
            avx2::rows(w, rows, x, out)
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::AvxVnni if x.precision() == Precision::Bits16 => unsafe {
            avx_vnni::rows(w, rows, x, out)
        },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon | SimdLevel::I8mm if x.precision() == Precision::Bits16 => unsafe {
            neon::rows(w, rows, x, out)
        },
        // SAFETY: by the caller's promise.
        _ if x.precision() == Precision::Bits16 => unsafe { dot::rows(w, rows, x, out) },
        // SAFETY: as above.
        _ => unsafe { gemm::rows(w, rows, x, out, scratch) },
    }
}
