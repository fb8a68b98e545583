//! The barrier: the only place where ranks wait for each other.
//!
//! One word holds the number of the call that is open, and four bits. Whoever arrives last may do something while all
//! others are held, and then opens the next call; or it offers work in blocks, which everybody who is awake takes one by
//! one, and whoever finishes the last block opens the next call. Always: all ranks pass a call, or none does; and while
//! there is work, nobody leaves, so that it may be done on what the others lent.
//!
//! What is written before arriving is seen by everybody who works or has passed. Arrivals are read-modify-writes of one counter,
//! released and acquired, so the last one sees what all wrote; it releases the word, which all others acquire. Blocks
//! that are done are counted likewise, so whoever counts the last one sees all of them, and releases the word again.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Duration;

use crate::word::Word;

/// Poisoned: no rank passes any more.
const POISON: u32 = 1;
/// The last rank has come, and the call is not over: who waits stays, whatever happens.
const BUSY: u32 = 2;
/// Somebody sleeps, and must be woken.
const SLEEPERS: u32 = 4;
/// There are blocks to take.
const WORK: u32 = 8;
/// The number of the call stands above the bits. It wraps; equal numbers are 2^28 calls apart.
const SHIFT: u32 = 4;
/// In the count of blocks: one of them panicked.
const FAILED: u32 = 1 << 31;

/// How long a rank waits on, told by a clock or by a test.
pub(crate) trait Patience {
    /// What is left, `None` if the time is over.
    fn left(&mut self) -> Option<Duration>;
}

/// Why a rank did not pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed<E> {
    /// The barrier is poisoned.
    Poisoned,
    /// Time was over, and this rank has poisoned the barrier.
    TimedOut,
    /// This rank was the last, its work failed, and the barrier is poisoned.
    Failed(E),
}

/// What all ranks of a barrier agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How many ranks there are.
    pub(crate) ranks: u32,
    /// How many blocks of work this call has, below 2^31; 0: what the last rank does is all.
    pub(crate) blocks: u32,
    /// How many sleepers are woken to take blocks.
    pub(crate) helpers: u32,
    /// True if the work is done on memory of the ranks' own: then nobody leaves before it is over. Else the limit on waiting
    /// holds then, too, since whoever works may have been killed.
    pub(crate) lends: bool,
    /// A control: nobody waits until the others' blocks are done.
    #[cfg(test)]
    pub(crate) leaves_early: bool,
}

impl Rules {
    /// For ranks that lend what is worked on.
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

/// Where ranks meet, once per call. Plain numbers, so that it can lie in memory that processes share.
#[repr(C)]
pub(crate) struct Barrier<W> {
    word: W,
    // Lines of their own, as far as the allocator lets it: who looks at the word is not disturbed by arrivals and claims.
    _padding_word: [u32; 31],
    arrived: W,
    /// Blocks that were done, and [`FAILED`].
    done: W,
    _padding_done: [u32; 30],
    /// The next block to take.
    next: W,
}

impl<W: Word> Barrier<W> {
    /// A barrier whose first call is number `first`.
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

    /// True if nobody passes any more.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.word.load(Relaxed) & POISON != 0
    }

    /// True if nobody has arrived at the call that is open.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.arrived.load(Acquire) == 0
    }

    /// From now on nobody passes; who waits is woken. A call whose last rank has come still ends for all that lent it
    /// something.
    pub(crate) fn poison(&self) {
        self.word.or(POISON, AcqRel);
        self.word.wake(u32::MAX);
    }

    /// Arrives at call number `call`, which is the successor of the one this rank passed before, and waits for the
    /// others. The last to arrive does `last` before anybody does anything else; then the blocks of `work` are done, each
    /// once, by whoever is there. After an error of `last` there is no work.
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

    /// The part of the last rank.
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
            // From here on nobody who waits can leave by its time being over.
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
        // Nobody is at the blocks of the call before: everybody has passed it.
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
            // What is held stays held only for those that lent something.
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
                // Fails if the last rank came, or somebody else gave up, in this moment.
                if self.word.replace(word, word | POISON, AcqRel) {
                    self.word.wake(u32::MAX);
                    return Err(Missed::TimedOut);
                }
                continue;
            }
            if word & SLEEPERS == 0 && !self.word.replace(word, word | SLEEPERS, Relaxed) {
                continue;
            }
            // The work of a call is short; the limit is only against a lost wake-up by somebody else's hand.
            self.word.wait(word | SLEEPERS, left.unwrap_or(Duration::from_millis(10)));
        }
    }

    /// Takes blocks while there are some. A rank that comes here late takes none of a later call: that one has no work
    /// before this rank has arrived at it.
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

/// A block that was taken. It is counted in any case, so that nobody is held for ever.
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

/// The end of a call, in any case: by a panic or an error, too.
struct End<'a, W: Word> {
    barrier: &'a Barrier<W>,
    rules: Rules,
    call: u32,
    good: bool,
}

impl<W: Word> Drop for End<'_, W> {
    fn drop(&mut self) {
        let word = &self.barrier.word;
        // Before the word is released: who passes finds nobody arrived at the next call.
        self.barrier.arrived.store(0, Relaxed);
        loop {
            let old = word.load(Relaxed);
            // Poisoned meanwhile by somebody outside the call: that holds from the next call on. Without lending, those
            // who waited may have left, so nobody passes.
            let good = self.good && (self.rules.lends || old & POISON == 0);
            let new = match good {
                true => (self.call.wrapping_add(1) << SHIFT) | (old & POISON),
                false => (self.call << SHIFT) | POISON,
            };
            // A read-modify-write, so that what came before it in this word stays in one sequence.
            if word.replace(old, new, AcqRel) {
                if old & SLEEPERS != 0 {
                    word.wake(u32::MAX);
                }
                return;
            }
        }
    }
}
