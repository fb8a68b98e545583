//! Files whose matrices are stored in the layout that the kernels read.
//!
//! `alight pack` writes them. The type ids of packed tensors and the tiles are described in
//! [`alight_types::packed`] and `docs/reference/packed-layout.md`; two keys of the file give the layout's name and version.

pub use alight_types::packed::{
    LAYOUT, LAYOUT_VERSION, PACKED_BASE, PLANES_BASE, PLANES_VERSION, Packing, TILE_ROWS,
    group_rows, has_planes, has_tiles, packed_id, type_of,
};

/// A packed tensor begins at a multiple of this many bytes: a page, so that it is used in place.
pub const PACKED_ALIGNMENT: u64 = 4096;
/// Key of the layout's name.
pub const LAYOUT_KEY: &str = "alight.layout";
/// Key of the layout's version.
pub const LAYOUT_VERSION_KEY: &str = "alight.layout.version";
/// Key of the tensors whose experts are stored side by side: u32, for each run of such tensors the index of the
/// first and their number.
pub const EXPERTS_KEY: &str = "alight.layout.experts";
/// The first version of the layout that has that key.
pub const EXPERTS_VERSION: u64 = 2;
/// After one tensor's part of an expert, the next part begins at a multiple of this many bytes: pairs of cache lines.
pub const PART_ALIGNMENT: u64 = 128;

/// The layout of experts of several tensors side by side: all parts of the first expert, all of the second, and
/// so on. Each expert begins on a page, so that it is read in one run, without bytes of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SideBySide {
    /// By tensor: the offset of its part of the first expert, from the start of the experts.
    pub(crate) starts: Vec<u64>,
    /// The bytes from the start of an expert to the start of the next.
    pub(crate) stride: u64,
    /// The end of the last part of the last expert, from the start of the experts.
    pub(crate) len: u64,
}

/// The bytes that the parts of `experts` experts use side by side, including the gaps. `None` if that does not
/// fit into 63 bits, or if there are no experts.
pub fn side_by_side_len(experts: u64, parts: impl Iterator<Item = u64>) -> Option<u64> {
    SideBySide::new(experts, parts).map(|all| all.len)
}

impl SideBySide {
    /// The layout of `experts` experts with parts of these sizes. `None` if it does not fit into 63 bits, or if
    /// there are no experts.
    pub(crate) fn new(experts: u64, parts: impl Iterator<Item = u64>) -> Option<SideBySide> {
        let (mut starts, mut end) = (Vec::new(), 0_u64);
        for part in parts {
            let start = end.checked_next_multiple_of(PART_ALIGNMENT)?;
            starts.push(start);
            end = start.checked_add(part)?;
        }
        let stride = end.checked_next_multiple_of(PACKED_ALIGNMENT)?;
        let len = experts.checked_sub(1)?.checked_mul(stride)?.checked_add(end)?;
        i64::try_from(len).is_ok().then_some(SideBySide { starts, stride, len })
    }
}
