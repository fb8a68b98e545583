//! A set of huge pages of a file.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use alight_pages::HUGE_PAGE;

/// Huge pages of a file, by their number. Any thread may add pages; this does not allocate.
pub(crate) struct HugePages {
    bits: Box<[AtomicU64]>,
}

impl HugePages {
    /// Creates an empty set for a file of `len` bytes.
    pub(crate) fn of(len: usize) -> HugePages {
        let words = len.div_ceil(HUGE_PAGE).div_ceil(64);
        HugePages { bits: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Adds the pages that overlap `range`.
    pub(crate) fn mark(&self, range: Range<usize>) {
        for page in range.start / HUGE_PAGE..range.end.div_ceil(HUGE_PAGE) {
            if let Some(word) = self.bits.get(page / 64) {
                word.fetch_or(1 << (page % 64), Ordering::Relaxed);
            }
        }
    }

    /// Empties the set, and returns the bytes of each page, in order.
    pub(crate) fn take(&self) -> impl Iterator<Item = Range<usize>> {
        self.bits.iter().enumerate().flat_map(|(word, bits)| {
            let bits = bits.swap(0, Ordering::Relaxed);
            let pages = (0..64).filter(move |page| bits >> page & 1 == 1);
            pages
                .map(move |page| (64 * word + page) * HUGE_PAGE..(64 * word + page + 1) * HUGE_PAGE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_have_some_of_a_range() {
        let set = HugePages::of(200 * HUGE_PAGE - 1);
        set.mark(HUGE_PAGE - 1..HUGE_PAGE + 1);
        set.mark(HUGE_PAGE..2 * HUGE_PAGE);
        set.mark(3 * HUGE_PAGE..3 * HUGE_PAGE);
        set.mark(199 * HUGE_PAGE + 5..200 * HUGE_PAGE - 1);
        let pages: Vec<usize> = set.take().map(|page| page.start / HUGE_PAGE).collect();
        assert_eq!(pages, [0, 1, 199]);
        assert_eq!(set.take().count(), 0);
        HugePages::of(0).mark(0..10);
    }
}
