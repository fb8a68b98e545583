//! Files whose bytes are still being received: which of them are there, and which come next.
//!
//! One side receives: it [takes](IncomingQueue::take) ranges, writes them into their file at their place, and
//! [counts](Incoming::received) them. The other side reads: it asks for ranges, those that it needs [now](Incoming::ask_now) and those
//! that it will need [soon](Incoming::ask), and [waits](Incoming::wait) for them. The rest is left until [`Incoming::take_rest`]:
//! before that it would only delay the other ranges. The files of a model have one queue: what is needed of any comes in order.
//!
//! A byte of a map of such a file ([`Map::of_incoming`](crate::Map::of_incoming)) is its final value once its range is there, and zero
//! before. The unit is a [`BLOCK`].
//!
//! **Invariant:** a thread that has found a range to be there sees every byte of it: blocks are counted after they are written.
//!
//! **Invariant:** a failure wakes all who wait, and stays: no thread waits for bytes that will not come. It is one of all files of the
//! queue, since a model needs all of them.

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
    here: Arc<Here>,
    queue: Arc<IncomingQueue>,
    /// Its number in the queue.
    no: usize,
}

/// The bytes of a file that are there.
#[derive(Debug)]
struct Here {
    len: u64,
    blocks: Blocks,
    /// Bytes that are not there.
    missing: AtomicU64,
}

/// The order in which ranges of files are taken that are received together.
#[derive(Debug, Default)]
pub struct IncomingQueue {
    state: Mutex<QueueState>,
    /// Blocks have come, were asked for, or will not come.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    files: Vec<QueuedFile>,
    /// Ranges that readers need now, each with the number of its file.
    urgent: VecDeque<(usize, Range<u64>)>,
    /// Ranges that they will need soon.
    soon: VecDeque<(usize, Range<u64>)>,
    /// The rest of the files, from the first file and byte that was not looked at; `None` while it is left.
    rest: Option<(usize, u64)>,
    /// Why what is not there will not come.
    failure: Option<Arc<str>>,
}

#[derive(Debug)]
struct QueuedFile {
    here: Arc<Here>,
    /// The blocks that are there or were taken.
    taken: Blocks,
}

/// The next range to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Whole blocks of the file of this number, none of which is there or was taken before.
    Range(usize, Range<u64>),
    /// Nothing is asked for at the moment.
    Nothing,
    /// Everything was taken, or a file will not be complete.
    Over,
}

impl Incoming {
    /// Creates the state of a file of `len` bytes that has none of them, after the files that are in the queue: the first has the number
    /// 0. Errors call it `path`.
    pub fn new(queue: &Arc<IncomingQueue>, path: &Path, len: u64) -> Incoming {
        let here = Here { len, blocks: Blocks::of(len), missing: AtomicU64::new(len) };
        let here = Arc::new(here);
        let mut state = queue.state();
        let no = state.files.len();
        state.files.push(QueuedFile { here: Arc::clone(&here), taken: Blocks::of(len) });
        drop(state);
        Incoming { path: path.into(), here, queue: Arc::clone(queue), no }
    }

    /// The name of the file in errors.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The order in which its ranges are taken.
    pub fn queue(&self) -> &Arc<IncomingQueue> {
        &self.queue
    }

    /// The bytes that the file will have.
    #[allow(clippy::len_without_is_empty)] // no question of this type
    pub fn len(&self) -> u64 {
        self.here.len
    }

    /// Bytes that are not there.
    pub fn missing(&self) -> u64 {
        self.here.missing.load(Ordering::Acquire)
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
        let here = &self.here;
        here.blocks.first_unset(&here.blocks_of(range)).map(|blocks| here.bytes_of(&blocks))
    }

    /// Counts `range`, which has been written: the blocks that end in it, or with the file. A block that began before must have been
    /// written up to there by the same thread. Returns the bytes that were not counted before.
    pub fn received(&self, range: Range<u64>) -> u64 {
        let here = &self.here;
        let end = if range.end >= here.len { here.len.div_ceil(BLOCK) } else { range.end / BLOCK };
        let blocks = range.start / BLOCK..end;
        let new = here.blocks.set(&blocks, &mut |block| {
            let bytes = here.bytes_of(&(block..block + 1));
            bytes.end - bytes.start
        });
        if new > 0 {
            // Release: a thread that finds the file complete sees its bytes.
            here.missing.fetch_sub(new, Ordering::AcqRel);
            // Held, so that no thread that has just looked falls asleep now.
            drop(self.queue.state());
            self.queue.changed.notify_all();
        }
        new
    }

    /// Forgets everything that was received. No map of the file may be in use.
    pub fn reset(&self) {
        let state = self.queue.state();
        self.here.blocks.clear();
        state.files[self.no].taken.clear();
        self.here.missing.store(self.here.len, Ordering::Release);
    }

    /// Asks for `range`, after what was asked for before, and after everything that is needed now.
    pub fn ask(&self, range: Range<u64>) {
        if !self.is_here(&range) {
            self.queue.state().soon.push_back((self.no, range));
            self.queue.changed.notify_all();
        }
    }

    /// Asks for `range`, before everything that is not needed now.
    pub fn ask_now(&self, range: Range<u64>) {
        if !self.is_here(&range) {
            self.queue.state().urgent.push_back((self.no, range));
            self.queue.changed.notify_all();
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
        let mut state = self.queue.state();
        loop {
            let Some(missing) = self.first_missing(range) else { return Ok(true) };
            if let Some(reason) = &state.failure {
                return Err(self.error(missing.start.max(range.start), reason));
            }
            if give_up() {
                return Ok(false);
            }
            state = self.queue.sleep(state, INTERVAL);
        }
    }

    /// From now on everything is received, of all files of the queue, after what is asked for.
    pub fn take_rest(&self) {
        self.queue.state().rest.get_or_insert((0, 0));
        self.queue.changed.notify_all();
    }

    /// Checks that the bytes that are not there may still come, and that those that are there are as promised.
    ///
    /// # Errors
    /// They will not, or are not; or that is so of another file of the queue.
    pub fn check(&self) -> Result<(), MapError> {
        match &self.queue.state().failure {
            Some(reason) => {
                let missing = self.first_missing(&(0..self.len()));
                Err(self.error(missing.map_or(self.len(), |missing| missing.start), reason))
            }
            None => Ok(()),
        }
    }

    fn error(&self, at: u64, reason: &str) -> MapError {
        let (path, reason) = (self.path.clone(), reason.to_owned());
        MapError::NotReceived { path, at, len: self.len(), reason }
    }

    /// The blocks of `range` that are there, as bits: eight in a byte, the lowest first, beginning with the byte that has the first of
    /// them; for a record of what was received.
    pub fn bits(&self, range: &Range<u64>) -> (usize, Vec<u8>) {
        let blocks = self.here.blocks_of(range);
        let bytes = blocks.start / 8..blocks.end.div_ceil(8);
        (bytes.start as usize, bytes.map(|byte| self.here.blocks.byte(byte)).collect())
    }

    /// Counts the blocks whose bits are set in a record of the whole file. Bits past the end are ignored.
    pub fn restore(&self, bits: &[u8]) {
        let blocks = self.len().div_ceil(BLOCK);
        let is_set = |block: u64| {
            bits.get((block / 8) as usize).is_some_and(|byte| byte >> (block % 8) & 1 == 1)
        };
        let mut at = 0;
        while at < blocks {
            let end = (at..blocks).find(|block| !is_set(*block)).unwrap_or(blocks);
            if end > at {
                self.received(self.here.bytes_of(&(at..end)));
            }
            at = (end..blocks).find(|block| is_set(*block)).unwrap_or(blocks);
        }
    }
}

impl Here {
    fn is_complete(&self) -> bool {
        self.missing.load(Ordering::Acquire) == 0
    }

    fn blocks_of(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.min(self.len);
        if range.start >= end { 0..0 } else { range.start / BLOCK..end.div_ceil(BLOCK) }
    }

    fn bytes_of(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start * BLOCK..(blocks.end * BLOCK).min(self.len)
    }
}

impl IncomingQueue {
    /// Takes the next range, for the thread that receives it. Waits for one, but not longer than `patience`.
    pub fn take(&self, patience: Duration) -> Taken {
        let mut state = self.state();
        let next = state.next();
        if next != Taken::Nothing {
            return next;
        }
        state = self.sleep(state, patience);
        state.next()
    }

    /// The bytes that are not there will not come. The first reason is kept.
    pub fn fail(&self, reason: &str) {
        self.state().failure.get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'s>(
        &self,
        state: MutexGuard<'s, QueueState>,
        time: Duration,
    ) -> MutexGuard<'s, QueueState> {
        let waited = self.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl QueueState {
    fn next(&mut self) -> Taken {
        if self.failure.is_some() || self.files.iter().all(|file| file.here.is_complete()) {
            return Taken::Over;
        }
        for (queue, most) in [(&mut self.urgent, MAX_URGENT), (&mut self.soon, MAX_TAKEN)] {
            while let Some((no, range)) = queue.front_mut() {
                if let Some(bytes) = self.files[*no].take_of(range, most) {
                    range.start = bytes.end.min(range.end);
                    return Taken::Range(*no, bytes);
                }
                queue.pop_front();
            }
        }
        let Some((first, from)) = self.rest else { return Taken::Nothing };
        for (no, file) in self.files.iter_mut().enumerate().skip(first) {
            let from = if no == first { from } else { 0 };
            if let Some(bytes) = file.take_of(&(from..file.here.len), MAX_TAKEN) {
                self.rest = Some((no, bytes.end));
                return Taken::Range(no, bytes);
            }
        }
        Taken::Over
    }
}

impl QueuedFile {
    /// Takes the first blocks of `range` that are neither there nor taken, at most `most` bytes of them.
    fn take_of(&mut self, range: &Range<u64>, most: u64) -> Option<Range<u64>> {
        let mut within = self.here.blocks_of(range);
        loop {
            let free = self.taken.first_unset(&within)?;
            // They may have been there before this program began.
            let missing = self.here.blocks.first_unset(&free);
            let Some(blocks) = missing else {
                within.start = free.end;
                continue;
            };
            let blocks = blocks.start..blocks.end.min(blocks.start + most / BLOCK);
            self.taken.set(&blocks, &mut |_| 0);
            return Some(self.here.bytes_of(&blocks));
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
        Incoming::new(&Arc::default(), Path::new("m.gguf"), blocks * BLOCK - 5)
    }

    fn blocks(file: usize, blocks: Range<u64>) -> Taken {
        Taken::Range(file, blocks.start * BLOCK..blocks.end * BLOCK)
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
        assert_eq!(incoming.queue.take(NOW), Taken::Over);
    }

    #[test]
    fn what_is_waited_for_comes_first_and_the_rest_when_it_is_wanted() {
        let incoming = of(5000);
        let len = incoming.len();
        assert_eq!(incoming.queue.take(NOW), Taken::Nothing);
        incoming.received(10 * BLOCK..12 * BLOCK);
        incoming.ask(9 * BLOCK..13 * BLOCK);
        incoming.ask_now(100 * BLOCK + 1..100 * BLOCK + 2);
        for expected in [100..101, 9..10, 12..13] {
            assert_eq!(incoming.queue.take(NOW), blocks(0, expected));
        }
        incoming.ask(9 * BLOCK..13 * BLOCK);
        assert_eq!(incoming.queue.take(NOW), Taken::Nothing, "it is on its way");
        incoming.take_rest();
        assert_eq!(incoming.queue.take(NOW), blocks(0, 0..9));
        assert_eq!(incoming.queue.take(NOW), blocks(0, 13..100));
        assert_eq!(incoming.queue.take(NOW), blocks(0, 101..101 + 1024));
        incoming.ask_now(0..len);
        assert_eq!(incoming.queue.take(NOW), blocks(0, 1125..1125 + 256), "shared by connections");
        let mut all = 9 + 87 + 1024 + 256 + 3 + 2;
        while let Taken::Range(_, range) = incoming.queue.take(NOW) {
            all += (range.end - range.start).div_ceil(BLOCK);
        }
        assert_eq!((all, incoming.queue.take(NOW)), (5000, Taken::Over));
    }

    #[test]
    fn files_of_one_queue_come_in_the_order_in_which_they_are_asked_for() {
        let queue = Arc::default();
        let [first, second, third] =
            ["a", "b", "c"].map(|name| Incoming::new(&queue, Path::new(name), 10 * BLOCK));
        second.ask(5 * BLOCK..7 * BLOCK);
        first.ask(0..2 * BLOCK);
        second.ask(1..2);
        third.ask_now(9 * BLOCK..10 * BLOCK);
        for expected in [blocks(2, 9..10), blocks(1, 5..7), blocks(0, 0..2), blocks(1, 0..1)] {
            assert_eq!(queue.take(NOW), expected);
        }
        assert_eq!(queue.take(NOW), Taken::Nothing);
        second.received(1..9 * BLOCK);
        third.take_rest();
        for expected in [blocks(0, 2..10), blocks(1, 9..10), blocks(2, 0..9)] {
            assert_eq!(queue.take(NOW), expected);
        }
        assert_eq!(queue.take(NOW), Taken::Over);
        // The file that is complete fails as well: the others are not.
        first.received(0..10 * BLOCK);
        second.received(0..10 * BLOCK);
        assert!(first.is_complete() && first.check().is_ok());
        queue.fail("the network is gone");
        let error = third.wait(&(0..1), NEVER).unwrap_err().to_string();
        assert_eq!(error, "c: byte 0 of 40960 was not received: the network is gone");
        assert!(first.check().is_err() && first.wait(&(0..9), NEVER).unwrap());
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
                if let Taken::Range(_, range) = incoming.queue.take(INTERVAL) {
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
            incoming.queue.fail("the network is gone");
            incoming.queue.fail("another reason");
            let error = failing.join().unwrap().unwrap_err().to_string();
            assert_eq!(error, "m.gguf: byte 8192 of 40955 was not received: the network is gone");
        });
        assert!(incoming.check().is_err());
        assert!(incoming.wait(&(0..2 * BLOCK), NEVER).unwrap(), "what is there is there");
        assert_eq!(incoming.queue.take(NOW), Taken::Over);
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
