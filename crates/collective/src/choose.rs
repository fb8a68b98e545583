//! Which algorithm, and how its work is cut, from measurements: the only place that decides.

use crate::spec::Spec;

/// How the ranks compute their results. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Every rank copies its operand to where all can read it, meets the others, and computes the whole result for
    /// itself. N times the work, all of it side by side: for as many cores as ranks.
    OneShot,
    /// The last rank to arrive computes the result out of everybody's operands while they wait; then each copies it. For ranks
    /// that share cores, and little work.
    CombineOnce,
    /// When all have arrived, whoever is awake takes blocks of rows, computes them, and writes them into everybody's results;
    /// nobody leaves before all are done. For work that is worth sharing.
    Split,
}

/// What is best in every cell of the table in docs/explanation/collective.md, which was measured on two cores. Ranks with a core each have
/// not been measured; where one-shot wins there, this becomes a function of ranks, cores and bytes.
pub(crate) const BEST: Algorithm = Algorithm::Split;

/// Bytes of an operand's rows that make a block: some microseconds of work, which stay in the nearest cache.
pub(crate) const BLOCK: usize = 16 << 10;

/// Rows of a block of `bytes` bytes, and how many blocks there are.
pub(crate) fn blocks(spec: &Spec, bytes: usize) -> (usize, u32) {
    let row = (spec.hidden * spec.element.size()).max(1);
    // No more blocks than can be counted.
    let rows = (bytes / row).max(1).max(spec.rows / (1 << 30));
    (rows, spec.rows.div_ceil(rows) as u32)
}

/// How many sleepers are woken for so many blocks, if there are as many cores: waking one costs as much as a block or two.
pub(crate) fn helpers(blocks: u32, cores: usize) -> u32 {
    (blocks / 4).min(cores.saturating_sub(1) as u32)
}
