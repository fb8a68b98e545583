//! Files whose matrices are stored as the kernels like to read them.
//!
//! `alight pack` writes them. The type ids of packed tensors and what a tile is are said in
//! [`alight_types::packed`] and `docs/reference/packed-layout.md`; two keys of the file say which layout it is
//! and of which version.

pub use alight_types::packed::{
    LAYOUT, LAYOUT_VERSION, PACKED_BASE, TILE_ROWS, has_tiles, packed_id, type_of,
};

/// A packed tensor begins at a multiple of this many bytes: a page, so that it is used in place.
pub const PACKED_ALIGNMENT: u64 = 4096;
/// Key of the layout's name.
pub const LAYOUT_KEY: &str = "alight.layout";
/// Key of the layout's version.
pub const LAYOUT_VERSION_KEY: &str = "alight.layout.version";
