//! A call of one rank. The shared-memory core: which rank may access which bytes between which barriers.
//!
//! A rank may access:
//! - its own arguments, at any time of its call;
//! - its seat, while it has taken it (one call at a time for each rank);
//! - its slot of the staging buffer `call % 2`, before the barrier of `call`; all ranks' slots there, after that barrier and
//!   until it arrives at the next call. A slot is written again two calls later, after a barrier at which all ranks had to
//!   arrive, so it is no longer read: that is why one barrier in a call is enough, and why there are two buffers;
//! - all ranks' cards and operands and the common result, as the last to arrive, while the others are held;
//! - all ranks' cards and operands, for reading, and the rows of a block that it has taken in all ranks' results, while all
//!   are held: a result may overwrite an operand, since its rows are read in their own block only;
//! - the common result, for reading, after the barrier. It is written again at the next call's barrier at the earliest, when
//!   all have arrived there: one buffer is enough.

use std::ptr::{copy_nonoverlapping, null};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::barrier::{Missed, Patience, Rules};
use crate::choose::{Algorithm, BEST, blocks, helpers};
use crate::error::CollectiveError;
use crate::rows::{Arrays, compute};
use crate::spec::{Args, Spec};
#[cfg(test)]
use crate::tests::hooks::Phase;
use crate::thread_group::{Card, RANKS, Seat, ThreadGroup};

impl ThreadGroup {
    /// Makes a call with checked arguments. The caller has taken the seat of `rank`.
    pub(crate) fn call(
        &self,
        rank: usize,
        run: i64,
        spec: &Spec,
        bytes: usize,
        args: Args<'_>,
    ) -> Result<(), CollectiveError> {
        let seat = &self.seats[rank];
        let (normed, new_residual) = (args.normed.as_mut_ptr(), args.new_residual.as_mut_ptr());
        // SAFETY: the seat is taken, so only this thread accesses its cells, except for the last rank of a barrier, which
        // reads the card while we wait in `pass`.
        let call = unsafe { *seat.next.get() };
        let card = Card {
            run,
            spec: *spec,
            bytes,
            partial: args.partial.map_or(normed.cast_const(), <[u8]>::as_ptr),
            residual: args.residual.map_or(new_residual.cast_const(), <[u8]>::as_ptr),
            weight: args.weight.as_ptr(),
            post_weight: args.post_weight.map_or(null(), <[u8]>::as_ptr),
            normed,
            new_residual,
        };
        if self.options.ranks == 1 {
            // SAFETY: lengths were checked; the results are borrowed exclusively.
            unsafe { compute(self.options.isa, spec, &card.arrays(&[card.partial])) };
            return Ok(());
        }
        let algorithm = self.options.algorithm.unwrap_or(BEST);
        let (rows, blocks) = match algorithm {
            Algorithm::Split => blocks(spec, self.options.block),
            _ => (0, 0),
        };
        // SAFETY: as above.
        unsafe { *seat.card.get() = Some(card) };
        #[cfg(test)]
        self.hooks.at(rank, call, Phase::Entered);
        if algorithm == Algorithm::OneShot {
            let slot = self.staged(call, rank);
            // SAFETY: the slot is ours before the barrier, and is large enough (`check`); the operand is `bytes` long.
            unsafe { copy_nonoverlapping(card.partial, slot, bytes) };
        }
        #[cfg(test)]
        self.hooks.at(rank, call, Phase::Staged);
        seat.arrived.store(call.wrapping_add(1), Ordering::Relaxed);
        let last = || {
            self.compare()?;
            if algorithm == Algorithm::CombineOnce {
                // SAFETY: we are the last: all others are held in `pass` until we return, with the arguments on their cards
                // borrowed, and have finished with the common result of the previous call. The cards are equal.
                unsafe { self.combine(spec) };
            }
            Ok(())
        };
        let work = |block: u32| {
            #[cfg(test)]
            self.hooks.at(rank, call, Phase::Working);
            let first = block as usize * rows;
            // SAFETY: all are held in `pass` until every block is done; the cards are equal; and the block is ours.
            unsafe { self.share(rank, spec, first, rows.min(spec.rows - first)) };
        };
        self.meet(rank, run, call, blocks, last, work)?;
        #[cfg(test)]
        self.hooks.at(rank, call, Phase::Passed);
        match algorithm {
            Algorithm::OneShot => {
                let mut partials = [null::<u8>(); RANKS];
                for (other, partial) in partials.iter_mut().enumerate().take(self.options.ranks) {
                    *partial = self.staged(call, other);
                }
                let arrays = card.arrays(&partials[..self.options.ranks]);
                // SAFETY: after the barrier every rank's slot of this call holds `bytes` bytes, which are not written before
                // we arrive at the next call; lengths were checked; the results are borrowed exclusively.
                unsafe { compute(self.options.isa, spec, &arrays) };
            }
            Algorithm::CombineOnce => {
                // SAFETY: after the barrier the common result is this call's, and is not written before we arrive at the next
                // call; lengths were checked.
                unsafe {
                    copy_nonoverlapping(self.result.at(0), normed, bytes);
                    copy_nonoverlapping(self.result.at(self.slot), new_residual, bytes);
                }
            }
            Algorithm::Split => {}
        }
        #[cfg(test)]
        self.hooks.at(rank, call, Phase::Computed);
        // SAFETY: as above.
        unsafe { *seat.next.get() = call.wrapping_add(1) };
        Ok(())
    }

    /// Returns where `rank` puts its operand in `call`.
    fn staged(&self, call: u32, rank: usize) -> *mut u8 {
        let buffer = call as usize % 2;
        #[cfg(test)]
        let buffer = self.hooks.buffer(buffer);
        self.staging.at((buffer * self.options.ranks + rank) * self.slot)
    }

    fn meet(
        &self,
        rank: usize,
        run: i64,
        call: u32,
        blocks: u32,
        last: impl FnOnce() -> Result<(), CollectiveError>,
        work: impl FnMut(u32),
    ) -> Result<(), CollectiveError> {
        #[cfg(test)]
        if self.hooks.no_barrier() {
            return Ok(());
        }
        let helpers = helpers(blocks, self.cores);
        let rules = Rules::new(self.options.ranks as u32, blocks, helpers);
        #[cfg(test)]
        let rules = Rules { leaves_early: self.hooks.leaves_early(), ..rules };
        let mut patience = Clock::new(self.options.limit);
        match self.barrier.pass(rules, call, &mut patience, last, work) {
            Ok(()) => Ok(()),
            Err(Missed::Poisoned) => Err(self.poisoned()),
            Err(Missed::Failed(error)) => {
                // The barrier is already poisoned; for a moment others may find no reason.
                let _ = self.because.set(error.clone());
                Err(error)
            }
            Err(Missed::TimedOut) => {
                let here = call.wrapping_add(1);
                let absent =
                    |(_, seat): &(usize, &Seat)| seat.arrived.load(Ordering::Relaxed) != here;
                let missing = self.seats.iter().enumerate().filter(absent).map(|(i, _)| i);
                let missing = missing.collect();
                let limit = self.options.limit;
                let error = CollectiveError::TimedOut { rank, run, limit, missing };
                let _ = self.because.set(error.clone());
                Err(error)
            }
        }
    }

    /// Checks that all ranks are in the same call. Called by the last to arrive.
    fn compare(&self) -> Result<(), CollectiveError> {
        // SAFETY: the others have written their cards before they arrived, and are held.
        let card = |rank: usize| unsafe { *self.seats[rank].card.get() };
        let Some(first) = card(0) else { return Ok(()) };
        for rank in 1..self.options.ranks {
            let Some(other) = card(rank) else { continue };
            if (other.run, other.spec) != (first.run, first.spec) {
                return Err(CollectiveError::Differ {
                    first: 0,
                    first_run: first.run,
                    first_shape: first.spec.to_string(),
                    second: rank,
                    second_run: other.run,
                    second_shape: other.spec.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Computes the common result from all ranks' operands, with the residual and weights of rank 0, so that it does not
    /// depend on which rank arrives last.
    ///
    /// # Safety
    /// All cards are of held calls with this spec, and the common result is not being read.
    unsafe fn combine(&self, spec: &Spec) {
        let mut partials = [null::<u8>(); RANKS];
        let mut first = None;
        for (seat, partial) in self.seats.iter().zip(&mut partials) {
            // SAFETY: by the contract.
            let Some(card) = (unsafe { *seat.card.get() }) else { return };
            debug_assert!(card.bytes <= self.slot);
            *partial = card.partial;
            first.get_or_insert(card);
        }
        let Some(first) = first else { return };
        let arrays = Arrays {
            normed: self.result.at(0),
            new_residual: self.result.at(self.slot),
            ..first.arrays(&partials[..self.options.ranks])
        };
        // SAFETY: lengths were checked by every rank, and the result is large enough for the capacity.
        unsafe { compute(self.options.isa, spec, &arrays) };
    }

    /// Computes `count` rows from row `first` on, from all ranks' operands, with the residual and weights of `rank`, whose
    /// thread runs this and has them in its cache, into its results; and copies them into all ranks' results.
    ///
    /// # Safety
    /// All cards are of held calls with this spec, and nothing else accesses these rows of the results.
    unsafe fn share(&self, rank: usize, spec: &Spec, first: usize, count: usize) {
        let row = spec.hidden * spec.element.size();
        let (start, bytes) = (first * row, count * row);
        let mut partials = [null::<u8>(); RANKS];
        // SAFETY: by the contract; rows are inside the arrays, whose lengths every rank has checked.
        unsafe {
            let card = |rank: usize| *self.seats[rank].card.get();
            let Some(own) = card(rank) else { return };
            for (other, partial) in partials.iter_mut().enumerate().take(self.options.ranks) {
                let Some(card) = card(other) else { return };
                *partial = card.partial.add(start);
            }
            let (normed, new_residual) = (own.normed.add(start), own.new_residual.add(start));
            let arrays = Arrays {
                residual: own.residual.add(start),
                normed,
                new_residual,
                ..own.arrays(&partials[..self.options.ranks])
            };
            compute(self.options.isa, &Spec { rows: count, ..*spec }, &arrays);
            for other in (0..self.options.ranks).filter(|other| *other != rank) {
                let Some(card) = card(other) else { return };
                copy_nonoverlapping(normed, card.normed.add(start), bytes);
                copy_nonoverlapping(new_residual, card.new_residual.add(start), bytes);
            }
        }
    }
}

/// The limit on waiting. It reads the clock only when a rank is about to sleep.
pub(crate) struct Clock {
    limit: Duration,
    end: Option<Instant>,
}

impl Clock {
    pub(crate) fn new(limit: Duration) -> Clock {
        Clock { limit, end: None }
    }
}

impl Patience for Clock {
    fn left(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let end = match self.end {
            Some(end) => end,
            // A limit beyond the clock's range becomes a year.
            None => {
                now.checked_add(self.limit).unwrap_or_else(|| now + Duration::from_secs(31_536_000))
            }
        };
        self.end = Some(end);
        end.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}
