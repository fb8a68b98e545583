//! A file whose bytes are still being received: which of them are there, and which come next.
//!
//! One side receives: it [takes](Incoming::take) ranges, writes them into the file at their place, and [counts](Incoming::received)
//! them. The other side reads: it asks for ranges, those that it needs [now](Incoming::ask_now) and those that it will need
//! [soon](Incoming::ask), and [waits](Incoming::wait) for them. The rest is left until [`Incoming::take_rest`]: before
//! that it would only delay the other ranges.
//!
//! A byte of a map of the file ([`Map::of_incoming`](crate::Map::of_incoming)) is its final value once its range is there, and zero
//! before. The unit is a [`BLOCK`].
//!
//! **Invariant:** a thread that has found a range to be there sees every byte of it: blocks are counted after they are written.
//!
//! **Invariant:** a failure wakes all who wait, and stays: no thread waits for bytes that will not come.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::MapError;

/// Bytes that are counted at once; the last block of a file may have fewer.
pub const BLOCK: u64 = 4096;
/// Most bytes of a range that is taken while a reader waits for it: several connections share what it waits for.
const MAX_URGENT: u64 = 1 << 20;
/// Most bytes of another range that is taken.
const MAX_TAKEN: u64 = 4 << 20;
/// How often a waiting reader looks if it should give up.
const INTERVAL: Duration = Duration::from_millis(50);

/// The state of a file that is being received.
#[derive(Debug)]
pub struct Incoming {
    path: PathBuf,
    len: u64,
    here: Blocks,
    /// Bytes that are not there.
    missing: AtomicU64,
    state: Mutex<IncomingState>,
    /// Blocks have come, were asked for, or will not come.
    changed: Condvar,
}

/// The order in which ranges are taken.
#[derive(Debug)]
struct IncomingState {
    /// Ranges that readers need now.
    urgent: VecDeque<Range<u64>>,
    /// Ranges that they will need soon.
    soon: VecDeque<Range<u64>>,
    /// The rest of the file, from its first byte that was not looked at; `None` while it is left.
    rest: Option<u64>,
    /// The blocks that are there or were taken.
    taken: Blocks,
    /// Why the others will not come.
    failure: Option<Arc<str>>,
}

/// The next range to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Whole blocks, none of which is there or was taken before.
    Range(Range<u64>),
    /// Nothing is asked for at the moment.
    Nothing,
    /// Everything was taken, or the file will not be complete.
    Over,
}

impl Incoming {
    /// Creates the state of a file of `len` bytes that has none of them. Errors call it `path`.
    pub fn new(path: &Path, len: u64) -> Incoming {
        let state = IncomingState {
            urgent: VecDeque::new(),
            soon: VecDeque::new(),
            rest: None,
            taken: Blocks::of(len),
            failure: None,
        };
        Incoming {
            path: path.into(),
            len,
            here: Blocks::of(len),
            missing: AtomicU64::new(len),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The name of the file in errors.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes that the file will have.
    #[allow(clippy::len_without_is_empty)] // no question of this type
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that are not there.
    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Acquire)
    }

    /// True if all bytes are there.
    pub fn is_complete(&self) -> bool {
        self.missing() == 0
    }

    /// True if all bytes of `range` are there. What is past the end counts as there.
    pub fn is_here(&self, range: &Range<u64>) -> bool {
        self.is_complete() || self.first_missing(range).is_none()
    }

    /// The first missing blocks of `range` that follow one another, cut to its blocks.
    pub fn first_missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        self.here.first_unset(&self.blocks_of(range)).map(|blocks| self.bytes_of(&blocks))
    }

    /// Counts `range`, which has been written: the blocks that end in it, or with the file. A block that began before must have been
    /// written up to there by the same thread. Returns the bytes that were not counted before.
    pub fn received(&self, range: Range<u64>) -> u64 {
        let end = if range.end >= self.len { self.len.div_ceil(BLOCK) } else { range.end / BLOCK };
        let blocks = range.start / BLOCK..end;
        let new = self.here.set(&blocks, &mut |block| {
            let bytes = self.bytes_of(&(block..block + 1));
            bytes.end - bytes.start
        });
        if new > 0 {
            // Release: a thread that finds the file complete sees its bytes.
            self.missing.fetch_sub(new, Ordering::AcqRel);
            // Held, so that no thread that has just looked falls asleep now.
            drop(self.state());
            self.changed.notify_all();
        }
        new
    }

    /// Forgets everything that was received. No map of the file may be in use.
    pub fn reset(&self) {
        let state = self.state();
        self.here.clear();
        state.taken.clear();
        self.missing.store(self.len, Ordering::Release);
    }

    /// Asks for `range`, after what was asked for before, and after everything that is needed now.
    pub fn ask(&self, range: Range<u64>) {
        if !self.is_here(&range) {
            self.state().soon.push_back(range);
            self.changed.notify_all();
        }
    }

    /// Asks for `range`, before everything that is not needed now.
    pub fn ask_now(&self, range: Range<u64>) {
        if !self.is_here(&range) {
            self.state().urgent.push_back(range);
            self.changed.notify_all();
        }
    }

    /// Returns true when `range`, which has been asked for, is there, or false if `give_up` returned true before that, which is called
    /// several times a second.
    ///
    /// # Errors
    /// Bytes of it will not come.
    pub fn wait(&self, range: &Range<u64>, give_up: &dyn Fn() -> bool) -> Result<bool, MapError> {
        if self.is_here(range) {
            return Ok(true);
        }
        let mut state = self.state();
        loop {
            let Some(missing) = self.first_missing(range) else { return Ok(true) };
            if let Some(reason) = &state.failure {
                return Err(self.error(missing.start.max(range.start), reason));
            }
            if give_up() {
                return Ok(false);
            }
            state = self.sleep(state, INTERVAL);
        }
    }

    /// From now on everything is received, after what is asked for.
    pub fn take_rest(&self) {
        self.state().rest.get_or_insert(0);
        self.changed.notify_all();
    }

    /// Takes the next range, for the thread that receives it. Waits for one, but not longer than `patience`.
    pub fn take(&self, patience: Duration) -> Taken {
        let mut state = self.state();
        let next = self.next(&mut state);
        if next != Taken::Nothing {
            return next;
        }
        state = self.sleep(state, patience);
        self.next(&mut state)
    }

    fn next(&self, state: &mut IncomingState) -> Taken {
        if state.failure.is_some() || self.is_complete() {
            return Taken::Over;
        }
        for (queue, most) in [(&mut state.urgent, MAX_URGENT), (&mut state.soon, MAX_TAKEN)] {
            while let Some(range) = queue.front_mut() {
                if let Some(blocks) = self.take_of(&mut state.taken, range, most) {
                    range.start = blocks.end.min(range.end);
                    return Taken::Range(blocks);
                }
                queue.pop_front();
            }
        }
        let Some(from) = &mut state.rest else { return Taken::Nothing };
        let Some(blocks) = self.take_of(&mut state.taken, &(*from..self.len), MAX_TAKEN) else {
            return Taken::Over;
        };
        *from = blocks.end;
        Taken::Range(blocks)
    }

    /// Takes the first blocks of `range` that are neither there nor taken, at most `most` bytes of them.
    fn take_of(&self, taken: &mut Blocks, range: &Range<u64>, most: u64) -> Option<Range<u64>> {
        let mut within = self.blocks_of(range);
        loop {
            let free = taken.first_unset(&within)?;
            // They may have been there before this program began.
            let missing = self.here.first_unset(&free);
            let Some(blocks) = missing else {
                within.start = free.end;
                continue;
            };
            let blocks = blocks.start..blocks.end.min(blocks.start + most / BLOCK);
            taken.set(&blocks, &mut |_| 0);
            return Some(self.bytes_of(&blocks));
        }
    }

    /// The bytes that are not there will not come. The first reason is kept.
    pub fn fail(&self, reason: &str) {
        self.state().failure.get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }

    /// Checks that the bytes that are not there may still come, and that those that are there are as promised.
    ///
    /// # Errors
    /// They will not, or are not.
    pub fn check(&self) -> Result<(), MapError> {
        match &self.state().failure {
            Some(reason) => {
                let missing = self.first_missing(&(0..self.len));
                Err(self.error(missing.map_or(self.len, |missing| missing.start), reason))
            }
            None => Ok(()),
        }
    }

    fn error(&self, at: u64, reason: &str) -> MapError {
        let (path, reason) = (self.path.clone(), reason.to_owned());
        MapError::NotReceived { path, at, len: self.len, reason }
    }

    fn blocks_of(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.min(self.len);
        if range.start >= end { 0..0 } else { range.start / BLOCK..end.div_ceil(BLOCK) }
    }

    fn bytes_of(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start * BLOCK..(blocks.end * BLOCK).min(self.len)
    }

    fn state(&self) -> MutexGuard<'_, IncomingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'s>(
        &self,
        state: MutexGuard<'s, IncomingState>,
        time: Duration,
    ) -> MutexGuard<'s, IncomingState> {
        let waited = self.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The blocks of `range` that are there, as bits: eight in a byte, the lowest first, beginning with the byte that has the first of
    /// them; for a record of what was received.
    pub fn bits(&self, range: &Range<u64>) -> (usize, Vec<u8>) {
        let blocks = self.blocks_of(range);
        let bytes = blocks.start / 8..blocks.end.div_ceil(8);
        (bytes.start as usize, bytes.map(|byte| self.here.byte(byte)).collect())
    }

    /// Counts the blocks whose bits are set in a record of the whole file. Bits past the end are ignored.
    pub fn restore(&self, bits: &[u8]) {
        let blocks = self.len.div_ceil(BLOCK);
        let is_set = |block: u64| {
            bits.get((block / 8) as usize).is_some_and(|byte| byte >> (block % 8) & 1 == 1)
        };
        let mut at = 0;
        while at < blocks {
            let end = (at..blocks).find(|block| !is_set(*block)).unwrap_or(blocks);
            if end > at {
                self.received(self.bytes_of(&(at..end)));
            }
            at = (end..blocks).find(|block| is_set(*block)).unwrap_or(blocks);
        }
    }
}

/// A bit for each block of a file.
#[derive(Debug)]
struct Blocks(Box<[AtomicU64]>);

impl Blocks {
    fn of(len: u64) -> Blocks {
        let words = len.div_ceil(BLOCK).div_ceil(64);
        Blocks((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn word(&self, block: u64) -> u64 {
        self.0[(block / 64) as usize].load(Ordering::Acquire)
    }

    /// Eight bits.
    fn byte(&self, byte: u64) -> u8 {
        (self.word(byte * 8) >> (byte % 8 * 8)) as u8
    }

    /// The first blocks within `blocks` that are not set and follow one another.
    fn first_unset(&self, blocks: &Range<u64>) -> Option<Range<u64>> {
        let start = self.next_with(blocks, false)?;
        let end = self.next_with(&(start..blocks.end), true).unwrap_or(blocks.end);
        Some(start..end)
    }

    /// The first of `blocks` whose bit is `set`.
    fn next_with(&self, blocks: &Range<u64>, set: bool) -> Option<u64> {
        let mut at = blocks.start;
        while at < blocks.end {
            let word = if set { self.word(at) } else { !self.word(at) };
            let left = word >> (at % 64);
            if left != 0 {
                return Some(at + u64::from(left.trailing_zeros())).filter(|at| *at < blocks.end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Sets `blocks`; returns the sum of `weight` over those that were not set.
    fn set(&self, blocks: &Range<u64>, weight: &mut dyn FnMut(u64) -> u64) -> u64 {
        let (mut at, mut sum) = (blocks.start, 0);
        while at < blocks.end {
            let end = blocks.end.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (end - at))) << (at % 64);
            let mut new = mask & !self.0[(at / 64) as usize].fetch_or(mask, Ordering::AcqRel);
            while new != 0 {
                sum += weight(at / 64 * 64 + u64::from(new.trailing_zeros()));
                new &= new - 1;
            }
            at = end;
        }
        sum
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    const NOW: Duration = Duration::ZERO;
    const NEVER: &dyn Fn() -> bool = &|| false;

    fn of(blocks: u64) -> Incoming {
        Incoming::new(Path::new("m.gguf"), blocks * BLOCK - 5)
    }

    #[test]
    fn blocks_are_counted_when_they_are_whole() {
        let incoming = of(200);
        assert_eq!(incoming.received(0..BLOCK - 1), 0);
        assert_eq!(incoming.received(BLOCK - 1..BLOCK + 7), BLOCK);
        assert!(incoming.is_here(&(5..BLOCK)) && !incoming.is_here(&(5..BLOCK + 1)));
        assert_eq!(incoming.received(0..2 * BLOCK), BLOCK, "once");
        let len = incoming.len();
        assert_eq!(incoming.received(198 * BLOCK..len - 1), BLOCK);
        assert_eq!(incoming.received(199 * BLOCK..len), BLOCK - 5, "the last one is shorter");
        assert_eq!(incoming.first_missing(&(7..len)), Some(2 * BLOCK..198 * BLOCK));
        assert_eq!(incoming.missing(), 196 * BLOCK);
        assert!(incoming.is_here(&(len..len + 10)));
        incoming.received(0..len);
        assert!(incoming.is_complete() && incoming.first_missing(&(0..len)).is_none());
        assert_eq!(incoming.take(NOW), Taken::Over);
    }

    #[test]
    fn what_is_waited_for_comes_first_and_the_rest_when_it_is_wanted() {
        let incoming = of(5000);
        let len = incoming.len();
        assert_eq!(incoming.take(NOW), Taken::Nothing);
        incoming.received(10 * BLOCK..12 * BLOCK);
        incoming.ask(9 * BLOCK..13 * BLOCK);
        incoming.ask_now(100 * BLOCK + 1..100 * BLOCK + 2);
        let blocks = |range: Range<u64>| Taken::Range(range.start * BLOCK..range.end * BLOCK);
        for expected in [100..101, 9..10, 12..13] {
            assert_eq!(incoming.take(NOW), blocks(expected));
        }
        incoming.ask(9 * BLOCK..13 * BLOCK);
        assert_eq!(incoming.take(NOW), Taken::Nothing, "it is on its way");
        incoming.take_rest();
        assert_eq!(incoming.take(NOW), blocks(0..9));
        assert_eq!(incoming.take(NOW), blocks(13..100));
        assert_eq!(incoming.take(NOW), blocks(101..101 + 1024));
        incoming.ask_now(0..len);
        assert_eq!(incoming.take(NOW), blocks(1125..1125 + 256), "shared by connections");
        let mut all = 9 + 87 + 1024 + 256 + 3 + 2;
        while let Taken::Range(range) = incoming.take(NOW) {
            all += (range.end - range.start).div_ceil(BLOCK);
        }
        assert_eq!((all, incoming.take(NOW)), (5000, Taken::Over));
    }

    #[test]
    fn a_reader_waits_until_it_is_there_gives_up_or_is_told_why_not() {
        let incoming = of(10);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            incoming.ask_now(5..2 * BLOCK);
            incoming.ask(5 * BLOCK..6 * BLOCK);
            let waiting = scope.spawn(|| incoming.wait(&(5..2 * BLOCK), NEVER));
            let bored = scope
                .spawn(|| incoming.wait(&(5 * BLOCK..6 * BLOCK), &|| over.load(Ordering::Relaxed)));
            let mut left = 3;
            while left > 0 {
                if let Taken::Range(range) = incoming.take(INTERVAL) {
                    left -= (range.end - range.start) / BLOCK;
                    if range.start < 2 * BLOCK {
                        incoming.received(range);
                    }
                }
            }
            assert!(waiting.join().unwrap().unwrap());
            over.store(true, Ordering::Relaxed);
            assert!(!bored.join().unwrap().unwrap());
            let failing = scope.spawn(|| incoming.wait(&(BLOCK + 1..3 * BLOCK), NEVER));
            incoming.fail("the network is gone");
            incoming.fail("another reason");
            let error = failing.join().unwrap().unwrap_err().to_string();
            assert_eq!(error, "m.gguf: byte 8192 of 40955 was not received: the network is gone");
        });
        assert!(incoming.check().is_err());
        assert!(incoming.wait(&(0..2 * BLOCK), NEVER).unwrap(), "what is there is there");
        assert_eq!(incoming.take(NOW), Taken::Over);
    }

    #[test]
    fn a_record_restores_what_was_received() {
        let incoming = of(100);
        incoming.received(3 * BLOCK..20 * BLOCK);
        incoming.received(99 * BLOCK..incoming.len());
        let (at, all) = incoming.bits(&(0..incoming.len()));
        assert_eq!((at, all.len(), all[0], all[1]), (0, 13, 0b1111_1000, 0xff));
        let (at, part) = incoming.bits(&(17 * BLOCK..18 * BLOCK));
        assert_eq!((at, &part[..]), (2, &all[2..3]));
        let again = of(100);
        again.restore(&all);
        assert_eq!(again.missing(), incoming.missing());
        assert_eq!(again.first_missing(&(3 * BLOCK..again.len())), Some(20 * BLOCK..99 * BLOCK));
        again.restore(&[0xff; 13]);
        assert!(again.is_complete(), "bits past the end change nothing");
        again.reset();
        assert_eq!(again.missing(), again.len());
    }
}
