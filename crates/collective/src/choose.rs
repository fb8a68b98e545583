//! Which algorithm, from measurements: the only place that decides.

/// How the ranks compute their results. Both give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Every rank copies its operand to where all can read it, meets the others, and computes the whole result for
    /// itself. N times the work, all of it side by side: for as many cores as ranks.
    OneShot,
    /// The last rank to arrive computes the result out of everybody's operands while they wait; then each copies it. For ranks
    /// that share cores.
    CombineOnce,
}

/// What is best in every cell of the table in docs/collective.md, which was measured on two cores. Ranks with a core each
/// have not been measured; where one-shot wins there, this becomes a function of ranks, cores and bytes.
pub(crate) const BEST: Algorithm = Algorithm::CombineOnce;
