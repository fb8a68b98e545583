//! The panel product with AVX-VNNI: that of [`avx2`](super::avx2), whose sums of four products are one `vpdpbusd` each.
//!
//! Nothing can saturate: four products of an unsigned and a signed byte are added in 32 bits. So the panel has the codes as they
//! are for every type. Results are bit-identical to AVX2.

use super::avx2::{
    ByteProducts, ROWS, TOKENS, columns_by, columns_with, four_columns, two_vectors,
};
use super::{Panel, avx2_panel::as_they_are, scalar};
use crate::blocks::{Formula, with_block, with_formula, with_tiles};
use crate::matmul::sizes::PANEL_ROWS;
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::{Layout, TILE_ROWS};
use std::arch::x86_64::*;
use std::ops::Range;

/// With `vpdpbusd`, whose 256-bit form needs no AVX-512.
struct Dpbusd;

impl<F: Formula> ByteProducts<F> for Dpbusd {
    const SIGNED: bool = false;

    #[inline(always)]
    unsafe fn sums<const C: usize>(w: *const i8, x: [*const i8; C]) -> [[__m256i; 2]; C] {
        // SAFETY: by the caller's promise.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; C];
            for line in 0..8 / F::SCALES {
                let w = two_vectors(w, line);
                for c in 0..C {
                    let x = four_columns(x[c], line);
                    for i in 0..2 {
                        sums[c][i] = _mm256_dpbusd_avx_epi32(sums[c][i], w[i], x);
                    }
                }
            }
            sums
        }
    }
}

driver!("avx2,fma,f16c,avxvnni", as_they_are, Formula, with_formula);

columns_with!("avx2,fma,f16c,avxvnni", Formula, Dpbusd);
