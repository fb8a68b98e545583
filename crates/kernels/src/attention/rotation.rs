//! The rotation of keys, queries and values that are kept in four bits: a Hadamard matrix, divided by the root of its size, times each block of
//! a head. A head's few large elements are spread over all elements of their block, and four bits hold these better.
//!
//! The matrix is symmetric and orthogonal, so it is its own inverse: queries and keys that are both rotated have the same products as before,
//! and a weighted sum of rotated values is rotated back once. A block is the largest power of two that divides the length of a head, but at most
//! [`MAX_BLOCK`]; where values are the beginnings of keys, the largest that divides both.
//!
//! **Invariant:** every level computes the same bits: each element is a sum in a fixed order.

use super::{KvShape, KvType};
use crate::Isa;
use crate::lanes::{Lanes, WIDEST, by_level};

/// The longest block.
pub(super) const MAX_BLOCK: usize = 256;

/// Element `(i, j)` of a Hadamard matrix of 16 rows, which is symmetric: −1 where `i` and `j` have an odd number of ones in common.
const SIGNS: [[f32; WIDEST]; WIDEST] = {
    let mut signs = [[1.0; WIDEST]; WIDEST];
    let mut at = 0;
    while at < WIDEST * WIDEST {
        let (i, j) = (at / WIDEST, at % WIDEST);
        if (i & j).count_ones() % 2 == 1 {
            signs[i][j] = -1.0;
        }
        at += 1;
    }
    signs
};

/// Returns the blocks of keys and of values that are rotated; 1: none are.
pub(super) fn blocks(shape: &KvShape) -> [usize; 2] {
    if shape.ty != KvType::Q4R {
        return [1; 2];
    }
    let block = |dim: usize| (1 << dim.trailing_zeros()).min(MAX_BLOCK);
    match [shape.k_dim, shape.v_dim].map(block) {
        [k, v] if shape.shared => [k.min(v); 2],
        both => both,
    }
}

/// Rotates rows whose lengths are multiples of `block`, a power of two that is 1 or at least 16.
pub(super) fn rotate(isa: Isa, block: usize, rows: &mut [f32]) {
    by_level!(isa, (block: usize, rows: &mut [f32]) -> (), rotate_lanes)
}

/// [`rotate`].
///
/// # Safety
/// The CPU has the features of `S`.
#[inline(always)]
pub(super) unsafe fn rotate_lanes<S: Lanes>(block: usize, rows: &mut [f32]) {
    if block == 1 {
        return;
    }
    // For 16 to 256 elements: exact for every other power, and rounded in the same way everywhere.
    let factor = 1.0 / (block as f32).sqrt();
    for x in rows.chunks_exact_mut(block) {
        for sixteen in x.chunks_exact_mut(WIDEST) {
            // SAFETY: 16 elements each; the caller's features.
            unsafe {
                let mut sums = [S::splat(0.0); WIDEST / 8];
                for (x, signs) in sixteen.iter().zip(&SIGNS) {
                    let x = S::splat(*x);
                    for (v, sum) in sums[..WIDEST / S::N].iter_mut().enumerate() {
                        *sum = S::fma(x, S::load(signs.as_ptr().add(v * S::N)), *sum);
                    }
                }
                for (v, sum) in sums[..WIDEST / S::N].iter().enumerate() {
                    let p = sixteen.as_mut_ptr().add(v * S::N);
                    S::store(p, S::mul(*sum, S::splat(factor)));
                }
            }
        }
        let mut half = WIDEST;
        while half < block {
            for both in x.chunks_exact_mut(2 * half) {
                let (a, b) = both.split_at_mut(half);
                for i in (0..half).step_by(S::N) {
                    // SAFETY: both have N elements from there on; the caller's features.
                    unsafe {
                        let (p, q) = (a.as_mut_ptr().add(i), b.as_mut_ptr().add(i));
                        let (x, y) = (S::load(p), S::load(q));
                        S::store(p, S::add(x, y));
                        S::store(q, S::sub(x, y));
                    }
                }
            }
            half *= 2;
        }
    }
}
