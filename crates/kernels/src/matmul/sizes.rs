//! Sizes that more than one part of the matrix product keeps to.

use crate::tiles::TILE_ROWS;

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 32;

/// Tokens whose activations lie together for tiles, and that are computed together.
pub(super) const TOKEN_BLOCK: usize = 12;

/// Columns of a panel of integers or of bf16 at most. A multiple of 256.
pub(super) const MAX_K: usize = 768;

/// Bytes of a panel of bf16.
pub(super) const PANEL_BYTES: usize = 2 * MAX_K * PANEL_ROWS;

/// Panels of bf16 that are made before they are multiplied: 256 rows, in the second-level cache.
pub(super) const PANELS: usize = 8;

/// Tokens whose activations lie together as bf16.
pub(super) const WIDE_TOKEN_BLOCK: usize = 16;

/// Tiles that all blocks of tokens pass over before the next: 256 rows, whose weights stay in the
/// second-level cache.
pub(super) const TILES_TOGETHER: usize = 16;

/// Sums that are kept meanwhile.
pub(super) const SUMS: usize = TILES_TOGETHER * TOKEN_BLOCK * TILE_ROWS;
