//! The packed layout of an output matrix: the high four bits of its codes apart from the low four, for each group of rows.
//!
//! The most likely tokens are found by the high bits alone, and a bound for what the low bits can add ([`matmul::best`](crate::matmul::best)): only the
//! rows that it leaves are read whole.
//!
//! A code `q` of Q8_0, from 0 to 255, is `16·h + l`. Rows are in groups of [`group_rows`], the last of which may be shorter. A group begins with
//! its high bits: tiles with the scales and `h`, which are those of Q4_0. Its low bits follow row by row. A row has 16 bytes for each block of 32
//! weights: byte `j` has `l` of weight `j`, and in its upper half that of weight `j + 16`.
//!
//! As tiles, planes are a permutation of the bits of GGUF's blocks: a group has as many bytes as in the canonical layout.

use crate::blocks::q4_0::Q4_0;
use crate::blocks::q8_0::Q8_0;
use crate::blocks::{BlockFormat, WeightType};
use crate::fields::{self, TILE_ROWS};
use crate::isa::Isa;
use crate::lanes::{Lanes, by_level};
use alight_types::packed::{self, has_planes};
use std::ops::Range;

/// Bytes of the low bits of a block.
pub(crate) const LOW: usize = 16;

/// Bytes of the scale and the high bits of a block.
pub(crate) const HIGH: usize = Q4_0::BYTES;

/// The type that the high bits are tiles of: its scale is a sixteenth of the weights' own.
pub(crate) const HIGH_TYPE: WeightType = WeightType::Q4_0;

/// Maximum number of columns: a tile fits the memory of a thread.
pub const MAX_COLS: usize = 8192;

/// Returns true if a matrix `[rows, cols]` of type `ty` can be stored in planes.
pub const fn has_planes_for(ty: WeightType, rows: usize, cols: usize) -> bool {
    let whole = rows.is_multiple_of(TILE_ROWS) && cols.is_multiple_of(ty.block_len());
    has_planes(ty.ggml()) && rows > 0 && cols > 0 && cols <= MAX_COLS && whole
}

/// Returns the number of rows of a group.
pub const fn group_rows(ty: WeightType, cols: usize) -> usize {
    match ty.row_bytes(cols) {
        Some(bytes) => packed::group_rows(bytes as u64) as usize,
        None => 32,
    }
}

/// The sizes in bytes of the two planes of `rows` rows of `cols` weights.
pub(crate) const fn sizes(rows: usize, cols: usize) -> [usize; 2] {
    [rows * (cols / Q8_0::BLOCK) * HIGH, rows * (cols / Q8_0::BLOCK) * LOW]
}

/// Returns the bytes of the high bits of `rows` rows of `cols` weights.
pub const fn high_bytes(rows: usize, cols: usize) -> usize {
    sizes(rows, cols)[0]
}

/// Returns the places of the first `blocks` blocks of the tile of rows that begins with row `first`, in the bytes of a matrix `[rows, cols]`: their high
/// bits, and the low bits of each row.
pub fn places(
    ty: WeightType,
    [rows, cols, blocks]: [usize; 3],
    first: usize,
) -> impl Iterator<Item = Range<usize>> {
    let together = group_rows(ty, cols);
    let (group, row) = (first / together * together, first % together);
    let start = group * ty.row_bytes(cols).unwrap_or(0);
    let low = start + sizes(together.min(rows - group), cols)[0];
    let place = |start, len| start..start + len;
    let high = place(start + sizes(row, cols)[0], TILE_ROWS * HIGH * blocks);
    let low = (row..row + TILE_ROWS).map(move |row| place(low + sizes(row, cols)[1], LOW * blocks));
    std::iter::once(high).chain(low)
}

/// Packs whole groups of canonical rows of `cols` weights, the last of which may be shorter; `dst` has the same number of bytes.
///
/// # Panics
/// If the type has no planes, a row is not a whole number of blocks, or the bytes are not whole tiles of the same number.
pub(crate) fn pack(ty: WeightType, cols: usize, src: &[u8], dst: &mut [u8]) {
    let row = check(ty, cols, src, dst);
    let group = group_rows(ty, cols) * row;
    for (src, dst) in src.chunks(group).zip(dst.chunks_mut(group)) {
        let (high, low) = dst.split_at_mut(sizes(src.len() / row, cols)[0]);
        let [high_tile, low_tile] = sizes(TILE_ROWS, cols);
        let tiles = high.chunks_exact_mut(high_tile).zip(low.chunks_exact_mut(low_tile));
        for (src, (high, low)) in src.chunks_exact(TILE_ROWS * row).zip(tiles) {
            for (b, unit) in high.chunks_exact_mut(TILE_ROWS * HIGH).enumerate() {
                let mut blocks = [0; TILE_ROWS * HIGH];
                for (r, block) in blocks.chunks_exact_mut(HIGH).enumerate() {
                    let from = &src[r * row + b * Q8_0::BYTES..][..Q8_0::BYTES];
                    let low = &mut low[r * low_tile / TILE_ROWS + b * LOW..][..LOW];
                    block[..2].copy_from_slice(&from[..2]);
                    let codes = from[2..].iter().zip(&from[2 + LOW..]);
                    for ((high, low), (a, b)) in block[2..].iter_mut().zip(low).zip(codes) {
                        let (a, b) = (a ^ 0x80, b ^ 0x80);
                        (*high, *low) = (a >> 4 | b & 0xf0, a & 15 | b << 4);
                    }
                }
                fields::pack(Q4_0::FIELDS, &blocks, HIGH, unit);
            }
        }
    }
}

/// The inverse of [`pack`].
///
/// # Panics
/// As [`pack`].
pub(crate) fn unpack(ty: WeightType, cols: usize, src: &[u8], dst: &mut [u8]) {
    let row = check(ty, cols, src, dst);
    let group = group_rows(ty, cols) * row;
    for (src, dst) in src.chunks(group).zip(dst.chunks_mut(group)) {
        let (high, low) = src.split_at(sizes(src.len() / row, cols)[0]);
        let [high_tile, low_row] = [sizes(TILE_ROWS, cols)[0], sizes(1, cols)[1]];
        let rows = dst.chunks_exact_mut(row).zip(low.chunks_exact(low_row));
        for (r, (dst, low)) in rows.enumerate() {
            let tile = &high[r / TILE_ROWS * high_tile..][..high_tile];
            put_row(Isa::SCALAR, tile, r % TILE_ROWS, low, dst);
        }
    }
}

/// Writes row `r` of a tile of high bits, and its low bits, as canonical blocks.
pub(crate) fn put_row(isa: Isa, tile: &[u8], r: usize, low: &[u8], to: &mut [u8]) {
    by_level!(isa, (tile: &[u8], r: usize, low: &[u8], to: &mut [u8]) -> (), put_row_lanes);
}

/// (Compiled for each level: the compiler vectorises it.)
///
/// # Safety
/// None is needed; [`by_level!`] calls it so.
#[inline(always)]
unsafe fn put_row_lanes<S: Lanes>(tile: &[u8], r: usize, low: &[u8], to: &mut [u8]) {
    let units = tile.as_chunks::<{ TILE_ROWS * HIGH }>().0.iter();
    let blocks = to.as_chunks_mut::<{ Q8_0::BYTES }>().0.iter_mut();
    for ((unit, low), block) in units.zip(low.as_chunks::<LOW>().0).zip(blocks) {
        put_block(unit, r, low, block);
    }
}

/// Writes the block of row `r` of a unit of high bits.
#[inline(always)]
pub(crate) fn put_block(
    unit: &[u8; TILE_ROWS * HIGH],
    r: usize,
    low: &[u8; LOW],
    block: &mut [u8; Q8_0::BYTES],
) {
    let (scales, lines) = unit.split_at(2 * TILE_ROWS);
    let scales = scales.as_chunks::<2>().0;
    let lines = lines.as_chunks::<4>().0.as_chunks::<TILE_ROWS>().0;
    block[..2].copy_from_slice(&scales[r]);
    let mut high = [0; LOW];
    for (four, line) in high.as_chunks_mut::<4>().0.iter_mut().zip(lines) {
        *four = line[r];
    }
    let mut codes = [0; 32];
    join(&high, low, &mut codes);
    block[2..].copy_from_slice(&codes.map(|code| code ^ 0x80));
}

/// Joins nibbles to codes: those of the lower nibbles, then those of the upper ones.
#[inline(always)]
fn join(high: &[u8], low: &[u8], codes: &mut [u8]) {
    let (first, second) = codes.split_at_mut(high.len());
    for (code, (h, l)) in first.iter_mut().zip(high.iter().zip(low)) {
        *code = h << 4 | l & 15;
    }
    for (code, (h, l)) in second.iter_mut().zip(high.iter().zip(low)) {
        *code = h & 0xf0 | l >> 4;
    }
}

/// Writes the rows of a tile of high bits, and their low bits, as a tile of Q8_0.
pub(crate) fn put_tile(isa: Isa, high: &[u8], low: &[u8], to: &mut [u8]) {
    by_level!(isa, (high: &[u8], low: &[u8], to: &mut [u8]) -> (), put_tile_lanes);
}

/// (Compiled for each level: the compiler vectorises it.)
///
/// # Safety
/// None is needed; [`by_level!`] calls it so.
#[inline(always)]
unsafe fn put_tile_lanes<S: Lanes>(high: &[u8], low: &[u8], to: &mut [u8]) {
    let units = high.as_chunks::<{ TILE_ROWS * HIGH }>().0;
    let blocks = to.as_chunks_mut::<{ TILE_ROWS * Q8_0::BYTES }>().0;
    let stride = LOW * units.len();
    for (b, (unit, to)) in units.iter().zip(blocks).enumerate() {
        let (scales, lines) = unit.split_at(2 * TILE_ROWS);
        let (to_scales, to_lines) = to.split_at_mut(2 * TILE_ROWS);
        to_scales.copy_from_slice(scales);
        let mut low_lines = [0; TILE_ROWS * LOW];
        fields::transpose(&low[LOW * b..], [stride, 4], &mut low_lines, [4, 64], LOW / 4);
        join(lines, &low_lines, to_lines);
    }
}

/// Returns the bytes of a row.
fn check(ty: WeightType, cols: usize, src: &[u8], dst: &[u8]) -> usize {
    assert!(has_planes_for(ty, TILE_ROWS, cols), "rows of {cols} {ty} weights have no planes");
    let row = cols / Q8_0::BLOCK * Q8_0::BYTES;
    let whole = src.len().is_multiple_of(TILE_ROWS * row);
    assert!(src.len() == dst.len() && whole, "not whole tiles");
    row
}
