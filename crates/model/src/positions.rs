//! Positions of a sequence, of which keys and values are kept: in memory, and in files of prompts.

use alight_kernels::attention::PAGE_UNIT;

/// Positions of a page: as many as attention reads at a time.
pub(crate) const POSITIONS: usize = PAGE_UNIT;

/// How many tokens two sequences begin with alike.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
