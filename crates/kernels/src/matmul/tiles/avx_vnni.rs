//! Tiles with AVX-VNNI: those of [`avx2`](super::avx2), whose sums of four products are one `vpdpbusd` each, for codes of any
//! size. Results are bit-identical to AVX2.

use super::avx2::{AHEAD, ByteSums, both_halves, float, quantized_with};
use crate::blocks::avx2_tiles::TilesAvx2;
use crate::blocks::with_tiles;
use crate::matmul::prefetch::{self, PrefetchAddress};
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

driver!();

quantized_with!("avx2,fma,f16c,avxvnni", Whole);

/// With `vpdpbusd`, whose 256-bit form needs no AVX-512.
pub(in crate::matmul) struct Whole;

impl ByteSums for Whole {
    fn together<Q: TilesAvx2>(_: usize) -> usize {
        8 / Q::SCALES
    }

    #[inline(always)]
    unsafe fn add(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: by the caller's promise.
        unsafe { _mm256_dpbusd_avx_epi32(sum, w, x) }
    }

    #[inline(always)]
    unsafe fn join(high: __m256i, low: __m256i) -> __m256i {
        // SAFETY: by the caller's promise.
        unsafe { _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low) }
    }
}
