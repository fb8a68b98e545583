//! The panel product with NEON: 8 rows × 4 tokens in registers, products of signed bytes with `sdot`.
//!
//! The panel holds codes minus their zero point, and activations are signed: the sums of 32 products (16 for a type with a scale
//! per 16) are those of the portable code, and exact.
//!
//! The order of floating-point operations for a row and a token is the same for any number of rows and tokens.

use super::{Panel, neon_panel, scalar};
use crate::blocks::{Formula, with_block, with_formula, with_tiles};
use crate::matmul::sizes::PANEL_ROWS;
use crate::matmul::{Matrix, Output, Tokens};
use crate::sdot::sdot_lane;
use crate::tiles::{Layout, TILE_ROWS};
use std::arch::aarch64::*;
use std::ops::Range;

/// Rows and tokens whose sums are in registers at the same time: 8 registers of integers and 8 of floats, out of 32.
const ROWS: usize = 8;
const TOKENS: usize = 4;

driver!("neon,dotprod", neon_panel, Formula, with_formula);

/// Adds the products of [`ROWS`] rows, starting at the panel's row `row`, with `C` tokens over all columns of the panel.
///
/// # Safety
/// The panel has the rows and the columns, the tokens exist, the CPU has NEON with dotprod.
#[target_feature(enable = "neon,dotprod")]
unsafe fn columns<F: Formula, const C: usize>(
    row: usize,
    k: &Range<usize>,
    x: &Tokens<'_>,
    t: usize,
    p: &Panel,
    out: &mut [[f32; ROWS]; C],
) {
    let (cols, groups) = (x.cols(), x.cols() / 32);
    let (scales, offsets) = (F::SCALES, F::OFFSETS);
    assert!((t + C) * groups <= x.scale().len());
    // SAFETY: by the caller's promise, and as asserted: all buffers of a token have this many groups.
    unsafe {
        let xq: [*const i8; C] = std::array::from_fn(|c| x.q8().add((t + c) * cols + k.start));
        let first: [usize; C] = std::array::from_fn(|c| (t + c) * groups + k.start / 32);
        let mut acc = [[vdupq_n_f32(0.0); 2]; C];
        for c in 0..C {
            acc[c] = [vld1q_f32(out[c].as_ptr()), vld1q_f32(out[c].as_ptr().add(4))];
        }
        for g in 0..k.len() / 32 {
            for h in 0..scales {
                let mut sums = [[vdupq_n_s32(0); 2]; C];
                for part in 0..2 / scales {
                    // Lines of four columns, four of them in a register of activations.
                    let line = 8 * g + 4 * (h + part);
                    let mut four = [vdupq_n_s8(0); C];
                    for c in 0..C {
                        four[c] = vld1q_s8(xq[c].add(4 * line));
                    }
                    macro_rules! line {
                        ($l:literal) => {
                            let w = p.q.as_ptr().add(((line + $l) * PANEL_ROWS + row) * 4);
                            let w = [vld1q_s8(w), vld1q_s8(w.add(16))];
                            for c in 0..C {
                                for i in 0..2 {
                                    sums[c][i] = sdot_lane::<$l>(sums[c][i], w[i], four[c]);
                                }
                            }
                        };
                    }
                    line!(0);
                    line!(1);
                    line!(2);
                    line!(3);
                }
                let d = p.d.as_ptr().add((scales * g + h) * PANEL_ROWS + row);
                let d = [vld1q_f32(d), vld1q_f32(d.add(4))];
                for c in 0..C {
                    let scale = *x.scale().get_unchecked(first[c] + g);
                    for i in 0..2 {
                        let a = vmulq_n_f32(d[i], scale);
                        acc[c][i] = vfmaq_f32(acc[c][i], vcvtq_f32_s32(sums[c][i]), a);
                    }
                }
            }
            for h in 0..offsets {
                let m = p.m.as_ptr().add((offsets * g + h) * PANEL_ROWS + row);
                let m = [vld1q_f32(m), vld1q_f32(m.add(4))];
                for c in 0..C {
                    let sums = x.sums_for(offsets);
                    let s = *sums.get_unchecked(offsets * (first[c] + g) + h);
                    for i in 0..2 {
                        acc[c][i] = vfmaq_n_f32(acc[c][i], m[i], s);
                    }
                }
            }
        }
        for (out, acc) in out.iter_mut().zip(acc) {
            vst1q_f32(out.as_mut_ptr(), acc[0]);
            vst1q_f32(out.as_mut_ptr().add(4), acc[1]);
        }
    }
}
