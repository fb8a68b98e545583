//! Tiles with AVX-VNNI: those of [`avx2`](super::avx2), whose sums of four products are one `vpdpbusd` each, for codes of any size.
//! The bits are those of AVX2.

use super::avx2::{Lines, Sums, float, halves, quantized_with};
use crate::blocks::avx2_tiles::TilesAvx2;
use crate::blocks::with_tiles;
use crate::matmul::gemm::avx2::four_columns;
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

driver!();

quantized_with!("avx2,fma,f16c,avxvnni", Whole);

/// By `vpdpbusd`, whose form for 256 bits needs no AVX-512.
struct Whole;

impl Sums for Whole {
    #[inline(always)]
    unsafe fn sums<Q: TilesAvx2, const T: usize, const H: usize>(
        lines: &Lines<Q, H>,
        x: &[Tokens<'_>; T],
        b: usize,
        part: usize,
    ) -> [[__m256i; H]; T] {
        // SAFETY: by the caller's promise.
        unsafe {
            let each = Lines::<Q, H>::EACH;
            // Of the high and of the low bytes.
            let mut s = [[[_mm256_setzero_si256(); 2]; H]; T];
            for j in each * part..each * (part + 1) {
                for h in 0..H {
                    let w = lines.at(j, h);
                    for t in 0..T {
                        for (plane, s) in s[t][h].iter_mut().enumerate() {
                            let x = four_columns(x[t].planes(b).add(32 * plane), j);
                            *s = _mm256_dpbusd_avx_epi32(*s, w, x);
                        }
                    }
                }
            }
            let mut sums = [[_mm256_setzero_si256(); H]; T];
            for t in 0..T {
                for h in 0..H {
                    let [high, low] = s[t][h];
                    sums[t][h] = _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low);
                }
            }
            sums
        }
    }
}
