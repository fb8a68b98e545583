//! Choice of the scales, offsets and codes of a block for its weights, shared by the quantisers of several block types.

pub(crate) mod levels;
pub(crate) mod search;
pub(crate) mod simple;
