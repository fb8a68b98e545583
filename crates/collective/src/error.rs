//! Errors, with what was found and how to fix it.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A group cannot be made with these options.
    #[error("a collective of {ranks} ranks and {capacity} bytes cannot be made: {problem}")]
    Options {
        /// Number of ranks requested.
        ranks: usize,
        /// Maximum bytes of a rank's operand.
        capacity: usize,
        /// The mistake.
        problem: &'static str,
    },
    /// The rank does not exist.
    #[error("rank {rank} of a collective of {ranks} ranks: ranks are 0 to {}", ranks - 1)]
    Rank {
        /// The rank that was given.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// The arguments of a call do not fit each other.
    #[error("rank {rank}: {what} has {found} bytes, expected {expected} ({shape})")]
    Length {
        /// The rank that was called.
        rank: usize,
        /// The argument.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The expected length.
        expected: usize,
        /// The shape that the length follows from.
        shape: String,
    },
    /// The shape itself is impossible.
    #[error("rank {rank}: {problem} ({shape})")]
    Shape {
        /// The rank that was called.
        rank: usize,
        /// The mistake.
        problem: &'static str,
        /// The shape.
        shape: String,
    },
    /// An operand is larger than the group's capacity.
    #[error(
        "rank {rank}: an operand of {found} bytes in a collective made for {capacity}; make it for the largest ({shape})"
    )]
    Capacity {
        /// The rank that was called.
        rank: usize,
        /// Bytes of the operand.
        found: usize,
        /// Capacity in bytes.
        capacity: usize,
        /// The shape.
        shape: String,
    },
    /// A rank was called while an earlier call of the same rank had not returned.
    #[error(
        "rank {rank} is in a call already: two calls in flight need two collectives, or an order between them"
    )]
    InUse {
        /// The rank.
        rank: usize,
    },
    /// Ranks met with different calls.
    #[error(
        "ranks met in different calls: rank {first} in run {first_run} with {first_shape}, rank {second} in run {second_run} with {second_shape}; every rank must make the same calls in the same order"
    )]
    Differ {
        /// A rank.
        first: usize,
        /// Its run.
        first_run: i64,
        /// Its shape.
        first_shape: String,
        /// Another rank.
        second: usize,
        /// Its run.
        second_run: i64,
        /// Its shape.
        second_shape: String,
    },
    /// Not all ranks arrived in time.
    #[error(
        "rank {rank} waited {limit:?} in run {run}; these ranks did not come: {missing:?}. Nothing was computed, and this collective is not usable any more"
    )]
    TimedOut {
        /// The rank that waited.
        rank: usize,
        /// Its run.
        run: i64,
        /// How long it waited.
        limit: Duration,
        /// The ranks that had not arrived.
        missing: Vec<usize>,
    },
    /// Memory that processes can share is not available.
    #[error(
        "{bytes} bytes of memory shared with other processes: {problem}; /dev/shm needs more space, or the operands have to be smaller"
    )]
    Memory {
        /// Number of bytes requested.
        bytes: usize,
        /// The mistake.
        problem: String,
    },
    /// Another rank failed, in this call or in an earlier one.
    #[error("this collective is not usable any more, since an earlier call failed: {because}")]
    Poisoned {
        /// The first failure.
        because: String,
    },
}

/// How long to wait for the reason of another rank's failure: it has failed, and is about to report why.
const REASON: Duration = Duration::from_millis(500);

impl CollectiveError {
    /// Returns the error of a rank that finds the collective poisoned, with the first failure as soon as `because`
    /// knows it.
    pub(crate) fn poisoned(because: impl Fn() -> Option<String>) -> CollectiveError {
        let start = Instant::now();
        loop {
            if let Some(because) = because() {
                return CollectiveError::Poisoned { because };
            }
            if start.elapsed() > REASON {
                // The rank that failed may have been killed.
                return CollectiveError::Poisoned { because: "a rank gave up".into() };
            }
            sleep(Duration::from_millis(1));
        }
    }
}
