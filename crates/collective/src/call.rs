//! A call of one rank. The shared-memory core: who may touch which bytes between which meetings.
//!
//! What a rank may touch:
//! - its own arguments, at any time of its call;
//! - its seat, while it has taken it (one call at a time for each rank);
//! - its slot of the staging buffer `call % 2`, before it meets in `call`; everybody's slots there, after it has met and until
//!   it arrives at the next call. A slot is written again two calls later, after a meeting for which everybody had to
//!   come, so nobody reads any more: that is why one meeting in a call is enough, and why there are two buffers;
//! - everybody's cards and operands and the common result, as the last to arrive, while the others are held;
//! - the common result, reading, after it has met. It is written again at the next call's meeting at the earliest, when all
//!   have arrived there: one buffer is enough.

use std::ptr::{copy_nonoverlapping, null};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::choose::{Algorithm, BEST};
use crate::clique::{Card, Clique, RANKS, Seat};
use crate::error::CollectiveError;
use crate::meeting::{Missed, Patience};
use crate::rows::{Arrays, compute};
use crate::spec::{Args, Spec};
#[cfg(test)]
use crate::tests::hooks::Phase;

impl Clique {
    /// A call with arguments that were checked, by who has taken the seat of `rank`.
    pub(crate) fn call(
        &self,
        rank: usize,
        run: i64,
        spec: &Spec,
        bytes: usize,
        args: Args<'_>,
    ) -> Result<(), CollectiveError> {
        let seat = &self.seats[rank];
        let algorithm = self.options.algorithm.unwrap_or(BEST);
        // SAFETY: the seat is taken, so this thread is alone with its cells but for the last rank of a meeting, which reads
        // the card while we wait in `pass`.
        let call = unsafe { *seat.next.get() };
        let card = Card {
            run,
            spec: *spec,
            bytes,
            partial: args.partial.as_ptr(),
            residual: args.residual.as_ptr(),
            weight: args.weight.as_ptr(),
            post_weight: args.post_weight.map_or(null(), <[u8]>::as_ptr),
        };
        // SAFETY: as above.
        unsafe { *seat.card.get() = Some(card) };
        #[cfg(test)]
        self.hooks.at(rank, call, Phase::Entered);
        if algorithm == Algorithm::OneShot {
            let slot = self.staged(call, rank);
            // SAFETY: the slot is ours before we meet, and has room (`check`); the operand is `bytes` long.
            unsafe { copy_nonoverlapping(card.partial, slot, bytes) };
        }
        #[cfg(test)]
        self.hooks.at(rank, call, Phase::Staged);
        seat.arrived.store(call.wrapping_add(1), Ordering::Relaxed);
        self.meet(rank, run, call, || {
            self.compare()?;
            if algorithm == Algorithm::CombineOnce {
                // SAFETY: we are the last: all others are held in `pass` until we return, with the arguments on their cards
                // borrowed, and have left the common result of the call before. The cards are equal.
                unsafe { self.combine(spec) };
            }
            Ok(())
        })?;
        #[cfg(test)]
        self.hooks.at(rank, call, Phase::Passed);
        match algorithm {
            Algorithm::OneShot => {
                let mut partials = [null::<u8>(); RANKS];
                for (other, partial) in partials.iter_mut().enumerate().take(self.options.ranks) {
                    *partial = self.staged(call, other);
                }
                let arrays = Arrays {
                    partials: &partials[..self.options.ranks],
                    residual: card.residual,
                    weight: card.weight,
                    post_weight: card.post_weight,
                    normed: args.normed.as_mut_ptr(),
                    new_residual: args.new_residual.as_mut_ptr(),
                };
                // SAFETY: after the meeting everybody's slot of this call holds `bytes` bytes, which nobody writes before we
                // arrive at the next call; lengths were checked; the results are borrowed exclusively.
                unsafe { compute(self.options.isa, spec, &arrays) };
            }
            Algorithm::CombineOnce => {
                // SAFETY: after the meeting the common result holds this call's, which nobody writes before we arrive at
                // the next call; lengths were checked.
                unsafe {
                    copy_nonoverlapping(self.result.at(0), args.normed.as_mut_ptr(), bytes);
                    let new_residual = args.new_residual.as_mut_ptr();
                    copy_nonoverlapping(self.result.at(self.slot), new_residual, bytes);
                }
            }
        }
        #[cfg(test)]
        self.hooks.at(rank, call, Phase::Computed);
        // SAFETY: as above.
        unsafe { *seat.next.get() = call.wrapping_add(1) };
        Ok(())
    }

    /// Where `rank` puts its operand in `call`.
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
        last: impl FnOnce() -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        #[cfg(test)]
        if self.hooks.no_barrier() {
            return Ok(());
        }
        let mut patience = Clock { limit: self.options.limit, end: None };
        match self.meeting.pass(call, &mut patience, last) {
            Ok(()) => Ok(()),
            Err(Missed::Poisoned) => Err(self.poisoned()),
            Err(Missed::Failed(error)) => {
                // The meeting is poisoned already; others may find no reason for a moment.
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

    /// Whether all ranks are in the same call. By the last to arrive.
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

    /// Computes the common result out of all ranks' operands, with the residual and weights of rank 0, so that it does not
    /// depend on who comes last.
    ///
    /// # Safety
    /// All cards are of calls with this spec that are held, and nobody reads the common result.
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
            partials: &partials[..self.options.ranks],
            residual: first.residual,
            weight: first.weight,
            post_weight: first.post_weight,
            normed: self.result.at(0),
            new_residual: self.result.at(self.slot),
        };
        // SAFETY: lengths were checked by every rank, and the result has room for its capacity.
        unsafe { compute(self.options.isa, spec, &arrays) };
    }
}

/// The limit on waiting. It looks at the clock only when a rank is about to sleep.
struct Clock {
    limit: Duration,
    end: Option<Instant>,
}

impl Patience for Clock {
    fn left(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let end = match self.end {
            Some(end) => end,
            // A limit beyond the clock's end is a year.
            None => {
                now.checked_add(self.limit).unwrap_or_else(|| now + Duration::from_secs(31_536_000))
            }
        };
        self.end = Some(end);
        end.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}
