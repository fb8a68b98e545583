//! The barrier: the only place where ranks wait for each other.
//!
//! One word holds the number of the open call, and four bits. The last rank to arrive may do something while all others are
//! held, and then opens the next call; or it offers work in blocks, which all ranks that are awake take one by one, and the rank
//! that finishes the last block opens the next call. Always: all ranks pass a call, or none does; and while there is work, no
//! rank leaves, so that the work may use the memory that the others lent.
//!
//! Writes made before arriving are seen by every rank that works or has passed. Arrivals are read-modify-writes of one counter,
//! released and acquired, so the last one sees all ranks' writes; it releases the word, which all others acquire. Finished
//! blocks are counted likewise, so the rank that counts the last one sees all of them, and releases the word again.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Duration;

use crate::word::Word;

/// Poisoned: no rank passes any more.
const POISON: u32 = 1;
/// The last rank has arrived, and the call is not over: waiting ranks stay, whatever happens.
const BUSY: u32 = 2;
/// A rank sleeps, and must be woken.
const SLEEPERS: u32 = 4;
/// There are blocks to take.
const WORK: u32 = 8;
/// The number of the call is stored above the bits. It wraps; equal numbers are 2^28 calls apart.
const SHIFT: u32 = 4;
/// In the count of blocks: one of them panicked.
const FAILED: u32 = 1 << 31;

/// How long a rank continues to wait, decided by a clock or by a test.
pub(crate) trait Patience {
    /// Returns the time left, or `None` if it is over.
    fn left(&mut self) -> Option<Duration>;
}

/// Why a rank did not pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed<E> {
    /// The barrier is poisoned.
    Poisoned,
    /// The time was over, and this rank has poisoned the barrier.
    TimedOut,
    /// This rank was the last, its work failed, and the barrier is poisoned.
    Failed(E),
}

/// The rules that all ranks of a barrier agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Number of ranks.
    pub(crate) ranks: u32,
    /// Number of blocks of work in this call, below 2^31; 0: there is only the work of the last rank.
    pub(crate) blocks: u32,
    /// Number of sleepers that are woken to take blocks.
    pub(crate) helpers: u32,
    /// True if the work uses memory of the ranks' own: then no rank leaves before it is over. Else the limit on waiting also
    /// holds during the work, since a working rank may have been killed.
    pub(crate) lends: bool,
    /// A control experiment: ranks do not wait until the others' blocks are done.
    #[cfg(test)]
    pub(crate) leaves_early: bool,
}

impl Rules {
    /// Rules for ranks that lend the memory that is worked on.
    pub(crate) fn new(ranks: u32, blocks: u32, helpers: u32) -> Rules {
        Rules {
            ranks,
            blocks,
            helpers,
            lends: true,
            #[cfg(test)]
            leaves_early: false,
        }
    }
}

/// Where ranks meet, once per call. Plain numbers, so that it can be placed in memory that processes share.
#[repr(C)]
pub(crate) struct Barrier<W> {
    word: W,
    // Separate cache lines, as far as the allocator allows: arrivals and claims do not disturb ranks that read the word.
    _padding_word: [u32; 31],
    arrived: W,
    /// Number of finished blocks, and [`FAILED`].
    done: W,
    _padding_done: [u32; 30],
    /// The next block to take.
    next: W,
}

impl<W: Word> Barrier<W> {
    /// Creates a barrier whose first call is number `first`.
    pub(crate) fn new(first: u32) -> Barrier<W> {
        Barrier {
            word: W::new(first << SHIFT),
            _padding_word: [0; 31],
            arrived: W::new(0),
            done: W::new(0),
            _padding_done: [0; 30],
            next: W::new(0),
        }
    }

    /// Returns true if no rank passes any more.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.word.load(Relaxed) & POISON != 0
    }

    /// Returns true if no rank has arrived at the open call.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.arrived.load(Acquire) == 0
    }

    /// From now on no rank passes; waiting ranks are woken. A call whose last rank has arrived still ends for all ranks that
    /// lent it something.
    pub(crate) fn poison(&self) {
        self.word.or(POISON, AcqRel);
        self.word.wake(u32::MAX);
    }

    /// Arrives at call number `call`, which follows the one that this rank passed before, and waits for the others. The last to
    /// arrive does `last` before any other work starts; then the blocks of `work` are done, each once, by the ranks that are
    /// awake. After an error of `last` there is no work.
    pub(crate) fn pass<E>(
        &self,
        rules: Rules,
        call: u32,
        patience: &mut impl Patience,
        last: impl FnOnce() -> Result<(), E>,
        mut work: impl FnMut(u32),
    ) -> Result<(), Missed<E>> {
        if self.arrived.add(1, AcqRel) + 1 == rules.ranks {
            self.begin(rules, call, last)?;
        }
        self.wait(rules, call, patience, &mut work)
    }

    /// The work of the last rank.
    fn begin<E>(
        &self,
        rules: Rules,
        call: u32,
        last: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), Missed<E>> {
        loop {
            let word = self.word.load(Relaxed);
            if word & POISON != 0 {
                return Err(Missed::Poisoned);
            }
            // From here on no waiting rank can leave because its time is over.
            if self.word.replace(word, word | BUSY, AcqRel) {
                break;
            }
        }
        let mut end = End { barrier: self, rules, call, good: false };
        last().map_err(Missed::Failed)?;
        end.good = true;
        if rules.blocks == 0 {
            return Ok(());
        }
        std::mem::forget(end);
        // The blocks of the previous call are finished: all ranks have passed it.
        self.done.store(0, Relaxed);
        self.next.store(0, Relaxed);
        loop {
            let word = self.word.load(Relaxed);
            if self.word.replace(word, word | WORK, AcqRel) {
                if word & SLEEPERS != 0 && rules.helpers != 0 {
                    self.word.wake(rules.helpers);
                }
                return Ok(());
            }
        }
    }

    fn wait<E>(
        &self,
        rules: Rules,
        call: u32,
        patience: &mut impl Patience,
        work: &mut impl FnMut(u32),
    ) -> Result<(), Missed<E>> {
        let (mut yields, mut helped) = (0, false);
        loop {
            let word = self.word.load(Acquire);
            if word >> SHIFT != call << SHIFT >> SHIFT {
                return Ok(());
            }
            // Ranks stay held only if they lent something.
            let held = word & BUSY != 0 && rules.lends;
            if word & POISON != 0 && !held {
                return Err(Missed::Poisoned);
            }
            if word & WORK != 0 && !helped {
                helped = true;
                self.help(rules, call, work);
                #[cfg(test)]
                if rules.leaves_early {
                    return Ok(());
                }
                continue;
            }
            if yields < W::YIELDS {
                yields += 1;
                W::yield_now();
                continue;
            }
            let left = patience.left();
            if left.is_none() && !held {
                // Fails if the last rank arrived, or another rank gave up, at this moment.
                if self.word.replace(word, word | POISON, AcqRel) {
                    self.word.wake(u32::MAX);
                    return Err(Missed::TimedOut);
                }
                continue;
            }
            if word & SLEEPERS == 0 && !self.word.replace(word, word | SLEEPERS, Relaxed) {
                continue;
            }
            // The work of a call is short; the limit only protects against a wake-up lost through another process.
            self.word.wait(word | SLEEPERS, left.unwrap_or(Duration::from_millis(10)));
        }
    }

    /// Takes blocks while there are any. A rank that is late takes none of a later call: that call has no work before this rank
    /// has arrived at it.
    fn help(&self, rules: Rules, call: u32, work: &mut impl FnMut(u32)) {
        loop {
            let block = self.next.add(1, Relaxed);
            if block >= rules.blocks {
                return;
            }
            let mut done = Done { barrier: self, rules, call, good: false };
            work(block);
            done.good = true;
        }
    }
}

/// A block that was taken. It is counted in any case, so that no rank is held for ever.
struct Done<'a, W: Word> {
    barrier: &'a Barrier<W>,
    rules: Rules,
    call: u32,
    good: bool,
}

impl<W: Word> Drop for Done<'_, W> {
    fn drop(&mut self) {
        let Done { barrier, rules, call, good } = *self;
        let one = if good { 1 } else { 1 + FAILED };
        let done = barrier.done.add(one, AcqRel).wrapping_add(one);
        if done & !FAILED == rules.blocks {
            drop(End { barrier, rules, call, good: done & FAILED == 0 });
        }
    }
}

/// The end of a call, in any case, including a panic or an error.
struct End<'a, W: Word> {
    barrier: &'a Barrier<W>,
    rules: Rules,
    call: u32,
    good: bool,
}

impl<W: Word> Drop for End<'_, W> {
    fn drop(&mut self) {
        let word = &self.barrier.word;
        // Before the word is released: a rank that passes must find no arrivals at the next call.
        self.barrier.arrived.store(0, Relaxed);
        loop {
            let old = word.load(Relaxed);
            // Poisoned meanwhile from outside the call: that holds from the next call on. Without lending, waiting ranks may
            // have left, so no rank passes.
            let good = self.good && (self.rules.lends || old & POISON == 0);
            let new = match good {
                true => (self.call.wrapping_add(1) << SHIFT) | (old & POISON),
                false => (self.call << SHIFT) | POISON,
            };
            // A read-modify-write, so that earlier writes to this word stay in one release sequence.
            if word.replace(old, new, AcqRel) {
                if old & SLEEPERS != 0 {
                    word.wake(u32::MAX);
                }
                return;
            }
        }
    }
}
