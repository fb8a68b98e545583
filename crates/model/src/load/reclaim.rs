//! Returns the pages of a map to the system after threads have copied from them.
//!
//! Only whole pages can be given back, and pieces end anywhere: so contiguous pieces are merged first, and a page that two pieces share is given back
//! when the second of them is done. Bytes that are not read through the map (padding, vectors, other tensors) count as done from the start.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use alight_pages::Map;
use alight_pages::fault::page_size;

/// The ranges of one map that are no longer needed.
pub(super) struct Reclaim {
    /// Starts and ends of disjoint, non-adjacent ranges.
    done: Mutex<BTreeMap<usize, usize>>,
    /// Bytes given back.
    given: AtomicU64,
}

impl Reclaim {
    /// Creates the state for a map of `len` bytes; `pending` are the ranges to be copied, and `kept` those that stay in use. The bytes before all of
    /// them are the header, which stays.
    pub(super) fn new(
        pending: impl Iterator<Item = Range<usize>>,
        kept: &[Range<usize>],
        len: usize,
    ) -> Reclaim {
        let mut taken: Vec<_> = pending.chain(kept.iter().cloned()).collect();
        taken.sort_by_key(|range| range.start);
        let mut done = BTreeMap::new();
        let mut at = taken.first().map_or(len, |first| first.start);
        for range in taken {
            if at < range.start {
                done.insert(at, range.start);
            }
            at = at.max(range.end);
        }
        if at < len {
            done.insert(at, len);
        }
        Reclaim { done: Mutex::new(done), given: AtomicU64::new(0) }
    }

    /// Called when `range` has been copied: gives back the pages that are no longer needed.
    pub(super) fn done(&self, map: &Map, range: Range<usize>) {
        let joined = self.join(range.clone());
        // The ranges that it was merged with were given back before, except for the pages at the borders.
        let page = page_size();
        let start = joined.start.max(range.start / page * page);
        let end = joined.end.min(range.end.next_multiple_of(page));
        self.given.fetch_add(map.give_back(start..end) as u64, Ordering::Relaxed);
    }

    /// Adds a range and returns it merged with its neighbours.
    fn join(&self, range: Range<usize>) -> Range<usize> {
        let mut done = self.lock();
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &its_end)) = done.range(..=start).next_back()
            && its_end >= start
        {
            (start, end) = (before, end.max(its_end));
        }
        while let Some((&next, &its_end)) = done.range(start..=end).next() {
            end = end.max(its_end);
            done.remove(&next);
        }
        done.insert(start, end);
        start..end
    }

    /// Gives everything back again: faults near a piece map surrounding pages, including pages that were given back before.
    pub(super) fn sweep(&self, map: &Map) {
        for (&start, &end) in self.lock().iter() {
            map.give_back(start..end);
        }
    }

    /// Bytes given back so far.
    pub(super) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_whole_page_is_given_back_once_whatever_the_order() {
        let page = page_size();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let len = 64 * page + 100;
        std::fs::write(&path, vec![7u8; len]).unwrap();
        let map = Map::open(&path).unwrap();
        // A header, a tensor, a gap that is not read, contiguous tensors, one that stays.
        let mut pieces = vec![5 * page + 17..9 * page + 3, 12 * page..13 * page + 1];
        pieces.extend((0..97).map(|i| 14 * page + i * 1000..14 * page + (i + 1) * 1000));
        let kept = 50 * page + 5..60 * page;
        let kept = std::slice::from_ref(&kept);
        let last = pieces.last().unwrap().end;
        let whole = |from: usize, to: usize| to / page * page - from.next_multiple_of(page);
        let expected = whole(5 * page + 17, 50 * page + 5) + (65 - 60) * page;
        assert!(last < 50 * page);
        for order in 0..3 {
            let reclaim = Reclaim::new(pieces.iter().cloned(), kept, len);
            let mut pieces = pieces.clone();
            match order {
                0 => {}
                1 => pieces.reverse(),
                _ => pieces.rotate_left(40),
            }
            for piece in pieces {
                map.populate(piece.clone()).unwrap();
                reclaim.done(&map, piece);
            }
            // Gaps are done from the start: they are swept, but not counted.
            let gaps = reclaim.lock().clone();
            assert_eq!(
                gaps.into_iter().collect::<Vec<_>>(),
                [(5 * page + 17, 50 * page + 5), (60 * page, len)]
            );
            reclaim.sweep(&map);
            assert!(reclaim.given() as usize <= expected);
            assert!(
                reclaim.given() as usize
                    >= whole(5 * page + 17, 9 * page + 3) + whole(14 * page, last)
            );
        }
        assert!(map.bytes().iter().all(|&b| b == 7), "the map stays valid");
    }
}
