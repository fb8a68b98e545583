//! Keys and values of 8 bits: 32 elements of one are a block of Q8_0, a scale and 32 signed bytes, stored separately so that
//! vectors of each can be loaded.
//!
//! - keys: for each 16 positions `[k_dim][16]` bytes, then `[k_dim / 32][16]` f16 scales;
//! - values: `[v_dim / 32][capacity][32]` bytes, then `[v_dim / 32][capacity]` f16 scales, so that a group of columns is read
//!   sequentially, and its scales are vectors along the positions.
//!
//! In decode both are read in place: a group of a key's elements is summed as bytes, and its sums are multiplied by the scales; a
//! value's scales are multiplied into the weights of its positions. In prefill a block is widened once for all rows.

use std::ops::Range;

use super::{KvShape, LINE};
use crate::blocks::BlockFormat;
use crate::blocks::q8_0::Q8_0;
use crate::half::f16_to_f32;
use crate::lanes::Lanes;

/// Elements that share a scale.
pub(super) const GROUP: usize = Q8_0::BLOCK;

/// Returns the number of `u16` elements that a key or a value of `dim` elements occupies.
pub(super) const fn stored(dim: usize) -> usize {
    dim / 2 + dim / GROUP
}

/// Rounds elements to bytes and scales, and passes them to `put_byte(element, byte)` and `put_scale(group, scale)`.
pub(super) fn round(
    x: &[f32],
    mut put_byte: impl FnMut(usize, u8),
    mut put_scale: impl FnMut(usize, u16),
) {
    let mut block = [0u8; Q8_0::BYTES];
    for (g, group) in x.chunks_exact(GROUP).enumerate() {
        Q8_0::quantize(group, &[], &mut block);
        // A group with a NaN gets a NaN scale: bytes cannot represent it.
        let nan = group.iter().any(|x| x.is_nan());
        put_scale(g, if nan { 0x7e00 } else { u16::from_le_bytes([block[0], block[1]]) });
        block[2..].iter().enumerate().for_each(|(i, byte)| put_byte(g * GROUP + i, *byte));
    }
}

/// Returns where group `g` of a head's value at position `pos` of a page is stored: its bytes, counted in bytes, and its scale, in
/// `u16`.
pub(super) fn value_group(shape: &KvShape, pos: usize, g: usize) -> (usize, usize) {
    let row = g * shape.capacity + pos;
    (row * GROUP, shape.capacity * shape.v_dim / 2 + row)
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
        let (bytes, scales) = line.split_at(LINE / 2 * k_dim);
        let bytes = bytes.as_ptr().cast::<i8>();
        for (g, to) in to.chunks_exact_mut(LINE * GROUP).enumerate() {
            for p in (0..LINE).step_by(S::N) {
                // SAFETY: a line has bytes and scales of its 16 positions for each element and group; the caller's features.
                unsafe {
                    let scale = S::load_f16(scales[g * LINE..][..LINE].as_ptr().add(p));
                    for (d, to) in to.chunks_exact_mut(LINE).enumerate() {
                        let x = S::load_i8(bytes.add((g * GROUP + d) * LINE + p));
                        S::store(to.as_mut_ptr().add(p), S::mul(scale, x));
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
        let (bytes, scales) = value_group(shape, positions.start, g);
        let rows = head[bytes / 2..][..positions.len() * GROUP / 2].as_ptr().cast::<i8>();
        let scales = &head[scales..][..positions.len()];
        for (p, (scale, to)) in scales.iter().zip(to.chunks_mut(pitch)).enumerate() {
            let to = to[g * GROUP..][..GROUP].as_mut_ptr();
            // SAFETY: a row has a byte for each element of the group, and `to` has space for it; the caller's features.
            unsafe {
                let scale = S::splat(f16_to_f32(*scale));
                for i in (0..GROUP).step_by(S::N) {
                    let x = S::load_i8(rows.add(p * GROUP + i));
                    S::store(to.add(i), S::mul(scale, x));
                }
            }
        }
    }
}
