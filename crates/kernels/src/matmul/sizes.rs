//! Sizes that more than one part of the matrix product keeps to.

use crate::tiles::TILE_ROWS;

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 32;

/// Tokens whose activations lie together for tiles, and that are computed together.
pub(super) const TOKEN_BLOCK: usize = 12;

/// Tiles that all blocks of tokens pass over before the next: 256 rows, whose weights stay in the
/// second-level cache.
pub(super) const TILES_TOGETHER: usize = 16;

/// Sums that are kept meanwhile.
pub(super) const SUMS: usize = TILES_TOGETHER * TOKEN_BLOCK * TILE_ROWS;
