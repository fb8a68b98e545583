//! Portable reading of tiles: the meaning that the SIMD kernels must reproduce.

use super::TILE_ROWS;
use super::fields::{mask_at, mask256};
use crate::half::f16_to_f32;
use crate::quant::{self, Group32, Quant, scale_min_k};

/// A quantised format in its packed layout.
pub(crate) trait Tiled: Quant {
    /// Unpacks weights `32·g .. 32·g + 32` of row `r` of a unit.
    fn tile_group(unit: &[u8], r: usize, g: usize) -> Group32;
}

/// The f16 of row `r` in field `field` of the f16 fields that begin every unit.
#[inline(always)]
fn half(unit: &[u8], field: usize, r: usize) -> f32 {
    let at = 2 * (TILE_ROWS * field + r);
    f16_to_f32(u16::from_le_bytes([unit[at], unit[at + 1]]))
}

/// Byte `i` of the field at `lines`, of row `r`.
#[inline(always)]
fn byte(unit: &[u8], lines: usize, r: usize, i: usize) -> u8 {
    unit[lines + 64 * (i / 4) + 4 * r + i % 4]
}

/// 32 nibbles from four lines: byte `j` holds weight `j` (low) and `j + 16` (high).
#[inline(always)]
fn nibbles(unit: &[u8], lines: usize, r: usize) -> [u8; 32] {
    let mut q = [0; 32];
    for j in 0..16 {
        let b = byte(unit, lines, r, j);
        q[j] = b & 15;
        q[j + 16] = b >> 4;
    }
    q
}

/// As [`nibbles`], with fifth bits from eight masks.
#[inline(always)]
fn nibbles_and_fifth(unit: &[u8], masks: usize, lines: usize, r: usize) -> [u8; 32] {
    let mut q = nibbles(unit, lines, r);
    for (i, q) in q.iter_mut().enumerate() {
        let mask = mask_at(&unit[masks..], 2 * (i % 16 / 4) + i / 16);
        *q |= ((mask >> (4 * r + i % 4)) as u8 & 1) << 4;
    }
    q
}

impl Tiled for quant::Q4_0 {
    #[inline(always)]
    fn tile_group(u: &[u8], r: usize, _: usize) -> Group32 {
        Group32 { q: nibbles(u, 32, r), d: [half(u, 0, r); 2], m: 0.0 }
    }
}

impl Tiled for quant::Q4_1 {
    #[inline(always)]
    fn tile_group(u: &[u8], r: usize, _: usize) -> Group32 {
        Group32 { q: nibbles(u, 64, r), d: [half(u, 0, r); 2], m: half(u, 1, r) }
    }
}

impl Tiled for quant::Q5_0 {
    #[inline(always)]
    fn tile_group(u: &[u8], r: usize, _: usize) -> Group32 {
        Group32 { q: nibbles_and_fifth(u, 32, 96, r), d: [half(u, 0, r); 2], m: 0.0 }
    }
}

impl Tiled for quant::Q5_1 {
    #[inline(always)]
    fn tile_group(u: &[u8], r: usize, _: usize) -> Group32 {
        Group32 { q: nibbles_and_fifth(u, 64, 128, r), d: [half(u, 0, r); 2], m: half(u, 1, r) }
    }
}

impl Tiled for quant::Q8_0 {
    #[inline(always)]
    fn tile_group(u: &[u8], r: usize, _: usize) -> Group32 {
        let mut q = [0; 32];
        for (i, q) in q.iter_mut().enumerate() {
            *q = byte(u, 32, r, i);
        }
        Group32 { q, d: [half(u, 0, r); 2], m: 0.0 }
    }
}

/// Scale and offset of group `g` of a Q4_K or Q5_K unit.
#[inline(always)]
fn scale_and_offset(u: &[u8], r: usize, g: usize) -> (f32, f32) {
    let mut bytes = [0; 12];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = u[64 + TILE_ROWS * i + r];
    }
    let (sc, m) = scale_min_k(&bytes, g);
    (half(u, 0, r) * sc as f32, -(half(u, 1, r) * m as f32))
}

impl Tiled for quant::Q4K {
    #[inline(always)]
    fn tile_group(u: &[u8], r: usize, g: usize) -> Group32 {
        let (d, m) = scale_and_offset(u, r, g);
        let mut q = [0; 32];
        for (i, q) in q.iter_mut().enumerate() {
            *q = (byte(u, 256, r, 32 * (g / 2) + i) >> (4 * (g % 2))) & 15;
        }
        Group32 { q, d: [d; 2], m }
    }
}

impl Tiled for quant::Q5K {
    #[inline(always)]
    fn tile_group(u: &[u8], r: usize, g: usize) -> Group32 {
        let (d, m) = scale_and_offset(u, r, g);
        let mut q = [0; 32];
        for (i, q) in q.iter_mut().enumerate() {
            let low = (byte(u, 768, r, 32 * (g / 2) + i) >> (4 * (g % 2))) & 15;
            let fifth = mask_at(&u[256..], mask256(g, i / 4)) >> (4 * r + i % 4);
            *q = low | (fifth as u8 & 1) << 4;
        }
        Group32 { q, d: [d; 2], m }
    }
}

impl Tiled for quant::Q6K {
    #[inline(always)]
    fn tile_group(u: &[u8], r: usize, g: usize) -> Group32 {
        let (half_block, g4) = (g / 4, g % 4);
        let mut q = [0; 32];
        for (i, q) in q.iter_mut().enumerate() {
            let low = byte(u, 1312, r, 64 * half_block + 32 * (g4 & 1) + i) >> (4 * (g4 / 2));
            let high = byte(u, 288, r, 32 * half_block + i) >> (2 * g4);
            *q = (low & 15) | (high & 3) << 4;
        }
        let sc = |h: usize| u[32 + TILE_ROWS * (2 * g + h) + r] as i8 as f32;
        let d = half(u, 0, r);
        Group32 { q, d: [d * sc(0), d * sc(1)], m: 0.0 }
    }
}
