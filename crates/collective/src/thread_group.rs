//! Ranks that call together: the memory that they share, how a group is made, and when it becomes unusable. `call` has what
//! happens in a call.

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use alight_kernels::Isa;

use crate::barrier::Barrier;
use crate::choose::{Algorithm, BLOCK};
use crate::error::CollectiveError;
use crate::region::{LINE, Region};
use crate::rows::Arrays;
use crate::spec::{Args, Spec, check};
#[cfg(test)]
use crate::tests::hooks::Hooks;

/// Maximum number of ranks of a group.
pub(crate) const RANKS: usize = 64;

/// How a [`ThreadGroup`] is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of ranks, 1 to 64.
    pub ranks: usize,
    /// Maximum bytes of a rank's operand. Memory: 2 × ranks + 2 times that, of which only the part in use becomes resident.
    pub capacity: usize,
    /// The longest that a rank waits for the others. It has to cover anything that can delay a rank: a compilation, a debugger.
    pub limit: Duration,
    /// The algorithm; `None`: the one that measured best.
    pub algorithm: Option<Algorithm>,
    /// Bytes of an operand's rows in a block of [`Algorithm::Split`].
    pub block: usize,
    /// The SIMD level of the arithmetic.
    pub isa: Isa,
    /// Number of the first call. Numbers wrap; set by tests.
    pub first_call: u32,
}

impl Options {
    /// Options for `ranks` ranks and operands of at most `capacity` bytes; ranks wait for at most 30 seconds.
    pub fn new(ranks: usize, capacity: usize) -> Options {
        let limit = Duration::from_secs(30);
        let (algorithm, block) = (None, BLOCK);
        Options { ranks, capacity, limit, algorithm, block, isa: Isa::best(), first_call: 0 }
    }
}

/// The data that a rank passes to the others.
#[derive(Clone, Copy)]
pub(crate) struct Card {
    pub(crate) run: i64,
    pub(crate) spec: Spec,
    pub(crate) bytes: usize,
    pub(crate) partial: *const u8,
    pub(crate) residual: *const u8,
    pub(crate) weight: *const u8,
    pub(crate) post_weight: *const u8,
    pub(crate) normed: *mut u8,
    pub(crate) new_residual: *mut u8,
}

impl Card {
    /// Returns the arrays of a call of this rank with these operands.
    pub(crate) fn arrays<'a>(&self, partials: &'a [*const u8]) -> Arrays<'a> {
        Arrays {
            partials,
            residual: self.residual,
            weight: self.weight,
            post_weight: self.post_weight,
            normed: self.normed,
            new_residual: self.new_residual,
        }
    }
}

/// A rank's state, on its own cache lines.
#[repr(align(128))]
pub(crate) struct Seat {
    /// True if the rank is in a call.
    pub(crate) taken: AtomicBool,
    /// The number of the last call that it arrived at, plus one; only for reporting missing ranks.
    pub(crate) arrived: AtomicU32,
    /// The number of its next call.
    pub(crate) next: UnsafeCell<u32>,
    pub(crate) card: UnsafeCell<Option<Card>>,
}

/// Ranks that share memory and make the same calls in the same order.
pub struct ThreadGroup {
    pub(crate) barrier: Barrier<AtomicU32>,
    pub(crate) seats: Box<[Seat]>,
    /// `[2][ranks]` slots.
    pub(crate) staging: Region,
    /// The norm, then the new residual, a slot each.
    pub(crate) result: Region,
    /// Bytes of a slot.
    pub(crate) slot: usize,
    pub(crate) cores: usize,
    pub(crate) options: Options,
    pub(crate) because: OnceLock<CollectiveError>,
    #[cfg(test)]
    pub(crate) hooks: Hooks,
}

// SAFETY: the cells of a seat, and the regions, are accessed by one rank at a time or are not written, by the rules at the top
// of `call`; a seat is taken and left with acquire and release.
unsafe impl Sync for ThreadGroup {}
// SAFETY: nothing in it belongs to a thread; the pointers in cards are used only within the calls that brought them.
unsafe impl Send for ThreadGroup {}

impl ThreadGroup {
    /// Makes a group.
    pub fn new(options: Options) -> Result<ThreadGroup, CollectiveError> {
        let (ranks, capacity) = (options.ranks, options.capacity);
        let wrong = |problem| CollectiveError::Options { ranks, capacity, problem };
        if ranks == 0 || ranks > RANKS {
            return Err(wrong("there must be 1 to 64 ranks"));
        }
        let too_large = || wrong("the operands are larger than any memory");
        let slot = capacity.max(1).checked_next_multiple_of(LINE).ok_or_else(too_large)?;
        let region = |slots: usize| slot.checked_mul(slots).and_then(Region::new);
        let seat = |_| Seat {
            taken: AtomicBool::new(false),
            arrived: AtomicU32::new(options.first_call),
            next: UnsafeCell::new(options.first_call),
            card: UnsafeCell::new(None),
        };
        Ok(ThreadGroup {
            barrier: Barrier::new(options.first_call),
            seats: (0..ranks).map(seat).collect(),
            staging: region(2 * ranks).ok_or_else(too_large)?,
            result: region(2).ok_or_else(too_large)?,
            slot,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            options,
            because: OnceLock::new(),
            #[cfg(test)]
            hooks: Hooks::default(),
        })
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.options.ranks
    }

    /// Returns true if calls fail because an earlier one did.
    pub fn is_poisoned(&self) -> bool {
        self.barrier.is_poisoned()
    }

    /// Sums `partial` over the ranks and returns, on each, the new residual and its norm:
    ///
    /// ```text
    /// s            = round(partial[0] + partial[1] + … )               in f32, in this order
    /// p            = round(s · f32(1/√(mean s² + ε)) · (bias + post_weight))   or s, without post-norm
    /// new_residual = round(residual + p)
    /// normed       = round(new_residual · f32(1/√(mean new_residual² + ε)) · (bias + weight))
    /// ```
    ///
    /// `round` is to the element type, to nearest, ties to even. `rank` is the caller's; `run` is the run of the program that
    /// this call belongs to, and must be the same on all ranks. After an error the contents of the results are unspecified.
    ///
    /// Calls block until all ranks have made theirs. A failed call poisons the group: it and all later calls fail on every rank.
    /// The exception is a call that is refused because its rank does not exist or is in a call.
    pub fn allreduce_norm(
        &self,
        rank: usize,
        run: i64,
        spec: &Spec,
        args: Args<'_>,
    ) -> Result<(), CollectiveError> {
        let seat = self
            .seats
            .get(rank)
            .ok_or(CollectiveError::Rank { rank, ranks: self.options.ranks })?;
        if seat.taken.swap(true, Ordering::Acquire) {
            return Err(CollectiveError::InUse { rank });
        }
        let _leave = Leave(&seat.taken);
        let bytes = check(rank, spec, &args, self.options.capacity)
            .inspect_err(|error| self.poison(error.clone()))?;
        if self.is_poisoned() {
            return Err(self.poisoned());
        }
        self.call(rank, run, spec, bytes, args)
    }

    /// Poisons the group: no rank passes any more, because of `error`.
    fn poison(&self, error: CollectiveError) {
        let _ = self.because.set(error);
        self.barrier.poison();
    }

    pub(crate) fn poisoned(&self) -> CollectiveError {
        CollectiveError::poisoned(|| self.because.get().map(CollectiveError::to_string))
    }
}

/// Leaves a seat, on every way out.
pub(crate) struct Leave<'a>(pub(crate) &'a AtomicBool);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
