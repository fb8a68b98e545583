//! Records which pages of a file were cached before a copy, so that the page cache can be left as it was.
//!
//! The file is checked in windows, each before the copy can have loaded any of it. The kernel reads
//! ahead, so the record runs ahead by the same distance. Pages that were not cached then and are now were
//! loaded by this copy and are dropped; pages that were cached stay. (Pages that another program reads
//! for the first time during the copy cannot be distinguished from ours.)

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;

use crate::residency::{self, ExactProbe};
use crate::sys;

/// The pages of one file that were cached before they were read.
pub(super) struct CacheRecord<'a> {
    file: &'a File,
    len: u64,
    window: u64,
    /// Bytes that the kernel may read ahead of a read.
    ahead: u64,
    exact_probe: Option<ExactProbe>,
    /// Windows that may contain pages loaded by this copy, in order.
    open: VecDeque<Recorded>,
    /// The offset up to which pages have been recorded.
    recorded: u64,
    pub dropped: u64,
    pub was_cached: u64,
}

struct Recorded {
    range: Range<u64>,
    /// The parts that were not cached.
    ours: Vec<Range<u64>>,
}

impl<'a> CacheRecord<'a> {
    pub fn new(file: &'a File, len: u64, window: u64) -> CacheRecord<'a> {
        // When a reader reaches pages that were read ahead, the kernel reads the same amount ahead again.
        let ahead = residency::readahead(file).unwrap_or(0).saturating_mul(2).max(window);
        let exact_probe = residency::exact_probe(file);
        let open = VecDeque::new();
        CacheRecord {
            file,
            len,
            window,
            ahead,
            exact_probe,
            open,
            recorded: 0,
            dropped: 0,
            was_cached: 0,
        }
    }

    /// True if the kernel reports what is cached. If not, nothing is dropped.
    pub fn is_told(&self) -> bool {
        self.exact_probe.is_some()
    }

    /// Must be called before any of `range` is read, with ranges in order.
    pub fn before(&mut self, range: &Range<u64>) {
        let Some(exact_probe) = self.exact_probe else { return };
        let end = range.end.saturating_add(self.ahead).min(self.len);
        let mut at = self.recorded.max(range.start / self.window * self.window);
        while at < end {
            let next = ((at / self.window + 1) * self.window).min(self.len);
            let range = at..next;
            // If the kernel stops reporting it, nothing is dropped.
            let ours =
                residency::not_cached(self.file, range.clone(), exact_probe).unwrap_or_default();
            let missing: u64 = ours.iter().map(|part| part.end - part.start).sum();
            self.was_cached += (next - at).saturating_sub(missing);
            self.open.push_back(Recorded { range, ours });
            at = next;
        }
        self.recorded = self.recorded.max(at);
    }

    /// True if a whole range was cached when it was recorded.
    pub fn is_cached(&self, range: &Range<u64>) -> bool {
        let first = self.open.partition_point(|window| window.range.end <= range.start);
        let mut windows = self.open.range(first..).take_while(|w| w.range.start < range.end);
        let apart = |a: &Range<u64>| a.end <= range.start || range.end <= a.start;
        self.recorded >= range.end && windows.all(|window| window.ours.iter().all(apart))
    }

    /// Must be called when everything before `done` has been read. Drops the pages that this loaded.
    pub fn after(&mut self, done: u64) {
        while self.open.front().is_some_and(|window| window.range.end <= done) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some(Recorded { ours, .. }) = self.open.pop_front() else { return };
        for part in ours {
            if sys::give_up(self.file, &part).is_ok() {
                self.dropped += part.end - part.start;
            }
        }
    }
}

impl Drop for CacheRecord<'_> {
    /// Restores the page cache, however the copy ends.
    fn drop(&mut self) {
        while !self.open.is_empty() {
            self.drop_first();
        }
    }
}
