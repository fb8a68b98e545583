//! The barrier: the only place where ranks wait for each other.
//!
//! One word holds the number of the call that is open, and three bits. Whoever arrives last may do something while all
//! others are held, and then opens the next call. Always: all ranks pass a call, or none does; and while the last one
//! is at work, nobody leaves, so that it may read what the others lent it.
//!
//! What is written before arriving is seen by everybody who has passed. Arrivals are read-modify-writes of one counter,
//! released and acquired, so the last one sees what all wrote; it releases the word, which all others acquire.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Duration;

use crate::word::Word;

/// Nobody passes any more.
const POISON: u32 = 1;
/// The last rank is at work: who waits stays, whatever happens.
const BUSY: u32 = 2;
/// Somebody sleeps, and must be woken.
const SLEEPERS: u32 = 4;
/// The number of the call stands above the bits. It wraps; equal numbers are 2^29 calls apart.
const SHIFT: u32 = 3;

/// How long a rank waits on, told by a clock or by a test.
pub(crate) trait Patience {
    /// What is left, `None` if the time is over.
    fn left(&mut self) -> Option<Duration>;
}

/// Why a rank did not pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed<E> {
    /// The meeting is poisoned.
    Poisoned,
    /// Time was over, and this rank has poisoned the meeting.
    TimedOut,
    /// This rank was the last, its work failed, and the meeting is poisoned.
    Failed(E),
}

/// Where ranks meet, once per call.
pub(crate) struct Meeting<W> {
    word: W,
    // On a line of its own, as far as the allocator lets it: arrivals do not disturb those who look at the word.
    _apart: [u64; 15],
    arrived: W,
    ranks: u32,
}

impl<W: Word> Meeting<W> {
    /// A meeting of `ranks`, whose first call is number `first`.
    pub(crate) fn new(ranks: u32, first: u32) -> Meeting<W> {
        Meeting { word: W::new(first << SHIFT), _apart: [0; 15], arrived: W::new(0), ranks }
    }

    /// Whether nobody passes any more.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.word.load(Relaxed) & POISON != 0
    }

    /// Whether nobody has arrived at the call that is open.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.arrived.load(Acquire) == 0
    }

    /// From now on nobody passes; who waits is woken. A last rank that is at work still ends its call for all.
    pub(crate) fn poison(&self) {
        self.word.or(POISON, AcqRel);
        self.word.wake();
    }

    /// Arrives at call number `call`, which is the successor of the one this rank passed before, and waits for the
    /// others. The last to arrive does `last` before anybody passes.
    pub(crate) fn pass<E>(
        &self,
        call: u32,
        patience: &mut impl Patience,
        last: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), Missed<E>> {
        if self.arrived.add(1, AcqRel) + 1 == self.ranks {
            self.finish(call, last)
        } else {
            self.wait(call, patience)
        }
    }

    fn finish<E>(&self, call: u32, last: impl FnOnce() -> Result<(), E>) -> Result<(), Missed<E>> {
        loop {
            let word = self.word.load(Relaxed);
            if word & POISON != 0 {
                return Err(Missed::Poisoned);
            }
            // From here on nobody who waits can leave by its time being over.
            if self.word.replace(word, word | BUSY, AcqRel) {
                break;
            }
        }
        let mut work = Work { meeting: self, call, done: false };
        last().map_err(Missed::Failed)?;
        work.done = true;
        Ok(())
    }

    fn wait<E>(&self, call: u32, patience: &mut impl Patience) -> Result<(), Missed<E>> {
        let mut yields = 0;
        loop {
            let word = self.word.load(Acquire);
            if word >> SHIFT != call << SHIFT >> SHIFT {
                return Ok(());
            }
            let busy = word & BUSY != 0;
            if word & POISON != 0 && !busy {
                return Err(Missed::Poisoned);
            }
            if yields < W::YIELDS {
                yields += 1;
                W::yield_now();
                continue;
            }
            let left = patience.left();
            if left.is_none() && !busy {
                // Fails if the last rank came, or somebody else gave up, in this moment.
                if self.word.replace(word, word | POISON, AcqRel) {
                    self.word.wake();
                    return Err(Missed::TimedOut);
                }
                continue;
            }
            if word & SLEEPERS == 0 && !self.word.replace(word, word | SLEEPERS, Relaxed) {
                continue;
            }
            // The last rank's work is short; the limit is only against a lost wake-up by somebody else's hand.
            self.word.wait(word | SLEEPERS, left.unwrap_or(Duration::from_millis(10)));
        }
    }
}

/// The work of the last rank. Ends the call in any case, by a panic too.
struct Work<'a, W: Word> {
    meeting: &'a Meeting<W>,
    call: u32,
    done: bool,
}

impl<W: Word> Drop for Work<'_, W> {
    fn drop(&mut self) {
        let word = &self.meeting.word;
        // Before the word is released: who passes finds nobody arrived at the next call.
        self.meeting.arrived.store(0, Relaxed);
        loop {
            let old = word.load(Relaxed);
            let new = match self.done {
                // Poisoned meanwhile by somebody outside the call: that holds from the next call on.
                true => (self.call.wrapping_add(1) << SHIFT) | (old & POISON),
                false => (self.call << SHIFT) | POISON,
            };
            // A read-modify-write, so that what came before it in this word stays in one sequence.
            if word.replace(old, new, AcqRel) {
                if old & SLEEPERS != 0 {
                    word.wake();
                }
                return;
            }
        }
    }
}
