//! Reads tiles in portable code: 32 weights of every row of a unit at once.
//!
//! Everything here is a loop over the bytes of a line or over the rows, which compilers vectorise on any CPU. (The closures of
//! `array::map` and `array::from_fn` may stay calls.)

use crate::fields::TILE_ROWS;
use crate::half::f16_to_f32;

/// `R` rows × 32 weights of a unit of a tile: the [`Group32`](super::Group32) of each.
#[derive(Clone, Copy)]
pub(crate) struct TileGroup<const R: usize = TILE_ROWS> {
    /// Lines of four codes for each row.
    pub q: [Line<R>; 8],
    /// The scales of the first and of the second 16 weights of each row.
    pub d: [[f32; R]; 2],
    /// The offsets, likewise; zeros if the type has none.
    pub m: [[f32; R]; 2],
}

/// Four codes of each row.
pub(crate) type Line<const R: usize = TILE_ROWS> = [[u8; 4]; R];

impl<const R: usize> TileGroup<R> {
    /// No weights.
    pub(crate) const NONE: TileGroup<R> =
        TileGroup { q: [[[0; 4]; R]; 8], d: [[0.0; R]; 2], m: [[0.0; R]; 2] };
}

/// Writes the codes of line `l` of the lines at byte `at` of a unit: `code` of each byte.
#[inline(always)]
pub(super) fn line(unit: &[u8], at: usize, l: usize, q: &mut Line, code: impl Fn(u8) -> u8) {
    let bytes = &unit[at + size_of::<Line>() * l..][..size_of::<Line>()];
    for (q, byte) in q.as_flattened_mut().iter_mut().zip(bytes) {
        *q = code(*byte);
    }
}

/// Adds upper bits to codes: `bits` of the bytes of line `l` of the lines at byte `at` of a unit.
#[inline(always)]
pub(super) fn add_bits(unit: &[u8], at: usize, l: usize, q: &mut Line, bits: impl Fn(u8) -> u8) {
    let bytes = &unit[at + size_of::<Line>() * l..][..size_of::<Line>()];
    for (q, byte) in q.as_flattened_mut().iter_mut().zip(bytes) {
        *q |= bits(*byte);
    }
}

/// Group `g` of a field of bit pairs, see `pairs` in [`shared`](super::shared).
#[inline(always)]
pub(super) fn pairs(unit: &[u8], at: usize, g: usize, q: &mut [Line; 8]) {
    for (j, q) in q.iter_mut().enumerate() {
        line(unit, at, 8 * (g / 4) + j, q, |byte| byte >> (2 * (g % 4)) & 3);
    }
}

/// Writes the codes of 16 bytes of nibbles of each row: four lines, starting at line `l` of those at byte `at` of a unit; low
/// nibbles first.
#[inline(always)]
pub(super) fn nibbles(
    unit: &[u8],
    at: usize,
    l: usize,
    q: &mut [Line; 8],
    code: impl Fn(u8) -> u8,
) {
    for i in 0..4 {
        line(unit, at, l + i, &mut q[i], |byte| code(byte & 15));
        line(unit, at, l + i, &mut q[4 + i], |byte| code(byte >> 4));
    }
}

/// Adds fifth bits to a line's codes: mask `i` of the masks at byte `at` of a unit.
#[inline(always)]
pub(super) fn add_fifth(unit: &[u8], at: usize, i: usize, q: &mut Line) {
    let (eights, _) = q.as_flattened_mut().as_chunks_mut::<8>();
    for (codes, bits) in eights.iter_mut().zip(&unit[at + 8 * i..][..8]) {
        // Bit b in byte b; a byte other than 0 then carries into its highest bit, and no further.
        let bits = (u64::from(*bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let fifth = ((bits + 0x7f7f_7f7f_7f7f_7f7f) >> 3) & 0x1010_1010_1010_1010;
        *codes = (u64::from_le_bytes(*codes) | fifth).to_le_bytes();
    }
}

/// Line `l` of the lines at byte `at` of a unit, four bytes of each row as a number.
#[inline(always)]
pub(super) fn numbers(unit: &[u8], at: usize, l: usize) -> [u32; TILE_ROWS] {
    let line: &Line = &unit[at + size_of::<Line>() * l..].as_chunks().0.as_chunks().0[0];
    each(|r| u32::from_le_bytes(line[r]))
}

/// A number for each row.
#[inline(always)]
pub(super) fn each<T: Copy + Default>(of_row: impl Fn(usize) -> T) -> [T; TILE_ROWS] {
    let mut all = [T::default(); TILE_ROWS];
    for (r, one) in all.iter_mut().enumerate() {
        *one = of_row(r);
    }
    all
}

/// A byte of each row, from byte `at` of a unit on.
#[inline(always)]
pub(super) fn bytes(unit: &[u8], at: usize) -> &[u8; TILE_ROWS] {
    &unit[at..].as_chunks().0[0]
}

/// A word of each row, likewise.
#[inline(always)]
pub(super) fn words(unit: &[u8], at: usize) -> [u16; TILE_ROWS] {
    let pairs: &[[u8; 2]; TILE_ROWS] = &unit[at..].as_chunks().0.as_chunks().0[0];
    each(|r| u16::from_le_bytes(pairs[r]))
}

/// An f16 of each row, likewise.
#[inline(always)]
pub(super) fn halves(unit: &[u8], at: usize) -> [f32; TILE_ROWS] {
    let words = words(unit, at);
    each(|r| f16_to_f32(words[r]))
}
