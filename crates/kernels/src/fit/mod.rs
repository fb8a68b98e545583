//! How the scales, offsets and codes of a block are chosen for its weights: what the quantisers of several block types share.

pub(crate) mod levels;
pub(crate) mod search;
pub(crate) mod simple;
