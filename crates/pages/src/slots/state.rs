//! The state that visits and readers share.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use super::cached::Cached;
use super::guesses::Guesses;
use super::open_file::OpenFile;
use super::sync::{Condvar, Mutex, MutexGuard, Watch};
#[cfg(test)]
use super::tests;
use super::{Layout, Shelf, SlotCounts};
use crate::region::Region;
use crate::transfer::TransferError;

/// The state of slots that readers and visits share.
pub(super) struct Shared {
    pub(super) files: Vec<OpenFile>,
    /// The maps from which pieces in the page cache are used.
    pub(super) cached: Option<Cached>,
    pub(super) region: Region,
    pub(super) layout: Layout,
    pub(super) state: Mutex<State>,
    /// Notified when there is something to read.
    pub(super) work: Condvar,
    /// Notified when a piece has arrived.
    pub(super) arrived: Condvar,
    pub(super) watch: Watch,
    /// Changes the results of reads.
    #[cfg(test)]
    pub(super) interpose: Option<tests::Interpose>,
}

pub(super) struct State {
    pub(super) shelf: Shelf,
    pub(super) slots: Vec<Slot>,
    pub(super) queue: VecDeque<SlotRead>,
    /// Slots whose pieces the system is reading into the page cache, oldest first.
    pub(super) asked: VecDeque<u32>,
    /// True if all pieces stay in the page cache.
    pub(super) shared: bool,
    /// Bytes of the pieces in the page cache, and the memory that is available for them.
    pub(super) in_cache: u64,
    pub(super) available: u64,
    /// Bytes that slots in memory may use, and whether the open slots match that.
    pub(super) budget: u64,
    pub(super) fitted: bool,
    /// Number of closed slots, and their bytes.
    pub(super) closed: (usize, u64),
    pub(super) counts: SlotCounts,
    /// Guesses for the group that comes next.
    pub(super) guesses: Guesses,
    /// The last read that failed.
    pub(super) error: Option<Arc<TransferError>>,
    /// The number of pieces that a visit waited for and that could not be read, and the reason of the last one.
    pub(super) failures: u64,
    pub(super) failure: Option<Arc<TransferError>>,
    pub(super) stop: bool,
}

/// The state of a slot and its piece.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// Reads that are not done yet.
    pub(super) left: u32,
    /// It was read ahead, and no visit has wanted it yet.
    pub(super) ahead: bool,
    /// Its piece is in the page cache.
    pub(super) cached: bool,
    /// It has no piece and no memory, because there is less memory than at first.
    pub(super) closed: bool,
    /// A read of its piece has failed, so its bytes may be anything.
    pub(super) failed: bool,
}

/// A read: a block of a span, into a slot.
#[derive(Clone, Copy)]
pub(super) struct SlotRead {
    pub(super) slot: usize,
    pub(super) span: usize,
    pub(super) block: usize,
    /// No piece was in the slot, so the system clears its memory first, which takes longer than many reads.
    pub(super) clears: bool,
}

impl State {
    /// Counts a read of a slot that has ended.
    pub(super) fn ended(&mut self, slot: usize, read: Result<(), TransferError>) {
        let slot = &mut self.slots[slot];
        slot.left -= 1;
        if let Err(error) = read {
            slot.failed = true;
            self.error = Some(Arc::new(error));
        }
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
