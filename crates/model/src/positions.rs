//! Positions of a sequence, with keys and values kept in memory and in prompt files.

use alight_kernels::attention::PAGE_UNIT;

/// Number of positions of a page: those that attention reads at a time.
pub(crate) const POSITIONS: usize = PAGE_UNIT;

/// Returns the length of the common prefix of two token sequences.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
