//! Keys and values of 4 bits: 32 elements of one are a block of IQ4_NL, a scale and 32 codes of the levels of that type. They are elements of
//! heads that are rotated (`rotation.rs`), which makes all of them about as large.
//!
//! - keys: for each 16 positions `[k_dim / 2][16]` bytes, the code of element 2i in the low and that of 2i + 1 in the high half, then
//!   `[k_dim / 32][16]` f16 scales;
//! - values: `[v_dim / 32][capacity][16]` bytes, the code of element i of a group in the low and that of i + 16 in the high half, then
//!   `[v_dim / 32][capacity]` f16 scales.
//!
//! No byte has codes of two positions, which may be stored at the same time. Both are read in place, and scales are applied, as those of
//! bytes are (`bytes.rs`).

use std::ops::Range;

use super::{KvShape, LINE, bytes};
use crate::fit::levels;
use crate::half::{f16_to_f32, f32_to_f16};
use crate::lanes::Lanes;

/// Elements that share a scale.
pub(super) const GROUP: usize = bytes::GROUP;

/// Bytes of the codes of a group.
pub(super) const GROUP_BYTES: usize = GROUP / 2;

/// Returns the number of `u16` elements that a key or a value of `dim` elements occupies.
pub(super) const fn stored(dim: usize) -> usize {
    dim / 4 + dim / GROUP
}

/// Returns the scale of a group of elements, and their codes: the same at all levels.
///
/// # Safety
/// The CPU has the features of `S`.
#[inline(always)]
pub(super) unsafe fn round<S: Lanes>(x: &[f32; GROUP]) -> (u16, [u8; GROUP]) {
    // Codes cannot represent NaN or infinity: the scale does.
    if x.iter().any(|x| !x.is_finite()) {
        return (0x7e00, [0; GROUP]);
    }
    let scale = f32_to_f16(levels::fit_from(x, &[1.0; GROUP], -1..=1));
    (scale, levels::codes(x, f16_to_f32(scale)))
}

/// Returns where group `g` of a head's value at position `pos` of a page is stored: its codes, counted in bytes, and its scale, in
/// `u16`.
pub(super) fn value_group(shape: &KvShape, pos: usize, g: usize) -> (usize, usize) {
    let row = g * shape.capacity + pos;
    (row * GROUP_BYTES, shape.capacity * shape.v_dim / 4 + row)
}

/// Widens lines of keys to f32, `[lines][k_dim][16]`.
///
/// # Safety
/// The CPU has the features of `S`.
#[inline(always)]
pub(super) unsafe fn widen_keys<S: Lanes>(from: &[u16], k_dim: usize, to: &mut [f32]) {
    let lines = from.chunks_exact(LINE * stored(k_dim));
    assert!(to.len() >= lines.len() * LINE * k_dim);
    for (line, to) in lines.zip(to.chunks_exact_mut(LINE * k_dim)) {
        let (codes, scales) = line.split_at(LINE / 4 * k_dim);
        let codes = codes.as_ptr().cast::<u8>();
        for (g, to) in to.chunks_exact_mut(LINE * GROUP).enumerate() {
            for p in (0..LINE).step_by(S::N) {
                // SAFETY: a line has codes and scales of its 16 positions for each pair of elements and group; the caller's features.
                unsafe {
                    let scale = S::load_f16(scales[g * LINE..][..LINE].as_ptr().add(p));
                    for (d, to) in to.chunks_exact_mut(2 * LINE).enumerate() {
                        let both = S::load_levels(codes.add((g * GROUP / 2 + d) * LINE + p));
                        for (x, to) in both.into_iter().zip(to.chunks_exact_mut(LINE)) {
                            S::store(to.as_mut_ptr().add(p), S::mul(scale, x));
                        }
                    }
                }
            }
        }
    }
}

/// Widens a head's values at `positions` of a page to rows of f32 at distances of `pitch`.
///
/// # Safety
/// The CPU has the features of `S`.
#[inline(always)]
pub(super) unsafe fn widen_values<S: Lanes>(
    head: &[u16],
    shape: &KvShape,
    positions: Range<usize>,
    pitch: usize,
    to: &mut [f32],
) {
    for g in 0..shape.v_dim / GROUP {
        let (codes, scales) = value_group(shape, positions.start, g);
        let rows = head[codes / 2..][..positions.len() * GROUP_BYTES / 2].as_ptr().cast::<u8>();
        let scales = &head[scales..][..positions.len()];
        for (p, (scale, to)) in scales.iter().zip(to.chunks_mut(pitch)).enumerate() {
            let to = to[g * GROUP..][..GROUP].as_mut_ptr();
            // SAFETY: a row has a byte for two elements of the group, and `to` has space for it; the caller's features.
            unsafe {
                let scale = S::splat(f16_to_f32(*scale));
                for i in (0..GROUP_BYTES).step_by(S::N) {
                    let [low, high] = S::load_levels(rows.add(p * GROUP_BYTES + i));
                    S::store(to.add(i), S::mul(scale, low));
                    S::store(to.add(i + GROUP_BYTES), S::mul(scale, high));
                }
            }
        }
    }
}
