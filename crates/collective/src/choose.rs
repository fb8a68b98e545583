//! Chooses the algorithm and how its work is cut, from measurements: the only place that decides.

use crate::spec::Spec;

/// How the ranks compute their results. All algorithms give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Every rank copies its operand to where all can read it, meets the others, and computes the whole result for itself. N times the
    /// work, all in parallel: for as many cores as ranks.
    OneShot,
    /// The last rank to arrive computes the result from all operands while the others wait; then each copies it. For ranks that share
    /// cores, and little work.
    CombineOnce,
    /// When all have arrived, every rank that is awake takes blocks of rows, computes them, and writes them into all ranks' results; no
    /// rank leaves before all blocks are done. For work that is worth sharing.
    Split,
}

/// The best algorithm in every cell of the table in docs/explanation/collective.md, which was measured on two cores. Ranks with a core
/// each have not been measured; where one-shot wins there, this becomes a function of ranks, cores and bytes.
pub(crate) const BEST: Algorithm = Algorithm::Split;

/// Bytes of an operand's rows in a block: some microseconds of work, small enough to stay in the nearest cache.
pub(crate) const BLOCK: usize = 16 << 10;

/// Returns the rows of a block of `bytes` bytes, and the number of blocks.
pub(crate) fn blocks(spec: &Spec, bytes: usize) -> (usize, u32) {
    let row = (spec.hidden * spec.element.size()).max(1);
    // At most as many blocks as can be counted.
    let rows = (bytes / row).max(1).max(spec.rows / (1 << 30));
    (rows, spec.rows.div_ceil(rows) as u32)
}

/// Returns the number of sleepers to wake for `blocks` blocks, if there are enough cores: waking one costs as much as a block or two.
pub(crate) fn helpers(blocks: u32, cores: usize) -> u32 {
    (blocks / 4).min(cores.saturating_sub(1) as u32)
}
