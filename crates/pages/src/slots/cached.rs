//! Pieces that stay in the page cache, and are used from the maps of their files.
//!
//! Other processes that use the same files share these pages, and would not share slots. The cost is the kernel's: requesting a piece,
//! mapping its small pages and dropping them again takes 2.7 ms for 2.9 MB (measured on a virtual machine, while builds were running);
//! reading it into a slot that was used before takes 1.2 ms.

use std::sync::Arc;

use super::layout::Layout;
use crate::map::{Advice, Map};
use crate::mark;
use crate::residency;
use crate::transfer::TransferError;

/// The maps that pieces are used from.
pub(super) struct Cached {
    maps: Vec<Arc<Map>>,
}

impl Cached {
    pub(super) fn new(maps: &[Arc<Map>]) -> Cached {
        Cached { maps: maps.to_vec() }
    }

    /// Requests that the system read a piece, without waiting for it.
    pub(super) fn ask(&self, layout: &Layout, piece: usize) {
        for (file, range) in layout.ranges(piece) {
            // A refusal costs only time.
            let _ = self.maps[file].advise(range, Advice::WillNeed);
        }
    }

    /// Returns when a piece is in the page cache.
    pub(super) fn fetch(&self, layout: &Layout, piece: usize) -> Result<(), TransferError> {
        layout.ranges(piece).try_for_each(|(file, range)| Ok(self.maps[file].populate(range)?))
    }

    /// Gives a piece up. Pages that another process has mapped stay in the page cache, and so do pages that another piece has a part of.
    pub(super) fn give_up(&self, layout: &Layout, piece: usize) {
        for (file, range) in layout.ranges(piece) {
            let map = &self.maps[file];
            map.give_back(range.clone());
            residency::give_up_range(map.file(), range.start as u64..range.end as u64);
        }
    }

    /// The bytes of a span.
    pub(super) fn bytes(&self, layout: &Layout, span: usize) -> &[u8] {
        let (file, range) = layout.range_of(span);
        &self.maps[file].bytes()[range]
    }

    /// True if another process uses pieces of one of the files.
    pub(super) fn are_others(&self) -> bool {
        self.maps.iter().any(|map| mark::is_marked_by_others(map.file()))
    }

    /// Checks that everything used from maps is still in the files.
    pub(super) fn check(&self) -> Result<(), TransferError> {
        self.maps.iter().try_for_each(|map| Ok(map.check()?))
    }
}
