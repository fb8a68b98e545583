//! The packed layout: tiles of 16 rows, interleaved so that one 64-byte line holds four consecutive weights of each of the 16 rows.
//!
//! One `vpdpbusd` multiplies a line with four broadcast activations: sixteen rows advance together, no sum over lanes is needed at a row's
//! end, and memory is read in one stream.
//!
//! The layout is a permutation of the bits of GGUF's blocks: a packed matrix takes exactly as many bytes as the canonical one, and unpacking
//! restores them. Rows `16i .. 16i + 16` are at byte `16i · row_bytes`, as in the canonical layout, so a tile can be packed and located
//! independently.
//!
//! A tile is a sequence of units, one for the blocks at the same index of its 16 rows. In a unit every field of the block is transposed:
//! element by element, with the elements of the 16 rows contiguous.
//!
//! | type | unit |
//! |---|---|
//! | Q4_0 | `d[16]` f16 · 4 lines of nibbles |
//! | Q4_1 | `d[16]`, `m[16]` f16 · 4 lines of nibbles |
//! | Q5_0 | `d[16]` f16 · 8 masks of fifth bits · 4 lines of nibbles |
//! | Q5_1 | `d[16]`, `m[16]` f16 · 8 masks · 4 lines |
//! | Q8_0 | `d[16]` f16 · 8 lines of q + 128 |
//! | Q4_K | `d[16]`, `dmin[16]` f16 · the 12 bytes of scales `[12][16]` · 32 lines of nibbles |
//! | Q5_K | `d[16]`, `dmin[16]` f16 · `[12][16]` · 64 masks · 32 lines of nibbles |
//! | Q6_K | `d[16]` f16 · scales `[16][16]` i8 · 16 lines of bit pairs · 32 lines of nibbles |
//! | F16, BF16 | one weight of 16 rows |
//!
//! A line of nibbles or bit pairs holds bytes `4l .. 4l + 4` of the block's field of each row: byte
//! `4r + j` of the line is byte `4l + j` of row `r`. A mask is 64 bits, bit `4r + j` belonging to
//! byte `4r + j` of a line's low (even masks) or high (odd masks) nibbles.
//!
//! F32 has no packed form: no large tensor is F32. Types with a code book have none either: looking up their rows one by one is faster.

use crate::blocks::{BlockFormat, WeightType, with_tiles};
use crate::fields;
pub use crate::fields::TILE_ROWS;
use crate::fields::{Field, halves};
use crate::planes;
use alight_types::packed::{Packing, has_tiles};

/// How the weights of a matrix are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// GGUF's: row after row of blocks.
    Rows,
    /// Packed: tiles of 16 interleaved rows, see [this module](self).
    Tiles,
    /// Packed: the high bits in tiles, apart from the low ones in rows, see [`planes`].
    Planes,
}

impl From<Option<Packing>> for Layout {
    fn from(packing: Option<Packing>) -> Layout {
        match packing {
            None => Layout::Rows,
            Some(Packing::Tiles) => Layout::Tiles,
            Some(Packing::Planes) => Layout::Planes,
        }
    }
}

impl Layout {
    /// Returns the number of rows of `cols` weights that are stored together; the last ones may be fewer by a multiple of 16. They have as many bytes as in
    /// GGUF's layout.
    pub const fn rows_together(self, ty: WeightType, cols: usize) -> usize {
        match self {
            Layout::Rows => 1,
            Layout::Tiles => TILE_ROWS,
            Layout::Planes => planes::group_rows(ty, cols),
        }
    }

    /// Packs canonical rows of `cols` weights, which begin with rows that are stored together; `dst` has the same number of bytes.
    ///
    /// # Panics
    /// If the type has no such form, a row is not a whole number of blocks, or the bytes are not whole tiles of the same number.
    pub fn pack(self, ty: WeightType, cols: usize, src: &[u8], dst: &mut [u8]) {
        match self {
            Layout::Rows => dst.copy_from_slice(src),
            Layout::Tiles => pack(ty, cols, src, dst),
            Layout::Planes => planes::pack(ty, cols, src, dst),
        }
    }

    /// The inverse of [`Layout::pack`].
    ///
    /// # Panics
    /// As [`Layout::pack`].
    pub fn unpack(self, ty: WeightType, cols: usize, src: &[u8], dst: &mut [u8]) {
        match self {
            Layout::Rows => dst.copy_from_slice(src),
            Layout::Tiles => unpack(ty, cols, src, dst),
            Layout::Planes => planes::unpack(ty, cols, src, dst),
        }
    }
}

/// Returns true if a matrix `[rows, cols]` of type `ty` has a packed form.
pub const fn packable(ty: WeightType, rows: usize, cols: usize) -> bool {
    has_tiles(ty.ggml())
        && rows > 0
        && rows.is_multiple_of(TILE_ROWS)
        && cols > 0
        && cols.is_multiple_of(ty.block_len())
}

/// The field of F16 and BF16.
pub(crate) const FLOAT: &[Field] = &[halves(0, 1)];

/// Returns the fields of a block, and its bytes. (The code that moves them iterates over this table; a separate function for each type would
/// be no faster.)
fn fields_of(ty: WeightType) -> (&'static [Field], usize) {
    with_tiles!(ty, Q => (Q::FIELDS, Q::BYTES), (FLOAT, 2))
}

/// Packs whole tiles: `src` are canonical rows of `cols` weights, `dst` has the same number of bytes.
///
/// # Panics
/// If the type has no packed form, a row is not a whole number of blocks, or the bytes are not whole tiles of the same number.
pub fn pack(ty: WeightType, cols: usize, src: &[u8], dst: &mut [u8]) {
    let row = check(ty, cols, src, dst);
    let (fields, block) = fields_of(ty);
    let tile = TILE_ROWS * row;
    for (src, dst) in src.chunks_exact(tile).zip(dst.chunks_exact_mut(tile)) {
        for (b, unit) in dst.chunks_exact_mut(TILE_ROWS * block).enumerate() {
            fields::pack(fields, &src[b * block..], row, unit);
        }
    }
}

/// The inverse of [`pack`].
///
/// # Panics
/// As [`pack`].
pub fn unpack(ty: WeightType, cols: usize, src: &[u8], dst: &mut [u8]) {
    let row = check(ty, cols, src, dst);
    let (fields, block) = fields_of(ty);
    let tile = TILE_ROWS * row;
    for (src, dst) in src.chunks_exact(tile).zip(dst.chunks_exact_mut(tile)) {
        for (b, unit) in src.chunks_exact(TILE_ROWS * block).enumerate() {
            fields::unpack(fields, unit, &mut dst[b * block..], row);
        }
    }
}

/// Returns the bytes of a row.
fn check(ty: WeightType, cols: usize, src: &[u8], dst: &[u8]) -> usize {
    assert!(packable(ty, TILE_ROWS, cols), "rows of {cols} {ty} weights have no packed form");
    let row = cols / ty.block_len() * ty.block_bytes();
    let whole = src.len().is_multiple_of(TILE_ROWS * row);
    assert!(src.len() == dst.len() && whole, "not whole tiles");
    row
}
