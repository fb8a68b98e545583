//! Pieces of files, read on demand into a fixed number of slots of memory.
//!
//! Pieces belong to groups, which are visited in a cycle: a visit ([`Slots::hold`]) names the pieces of a group that are wanted now. Those that are
//! in a slot can be used at once. The others are read meanwhile, around the page cache where possible: through one ring, to which the visits
//! themselves submit reads and from which they take them, or by threads where there is no ring. They become available in the order in which they
//! arrive. If no slot is free, the piece whose next use is expected last is evicted (`expected`).
//!
//! Memory is allocated when a slot is first used, and kept. If a process needs memory for something else, it can take some of it back
//! ([`Slots::set_budget`]); then slots are closed, first those whose pieces are expected last. Nothing is allocated after [`Slots::new`].
//!
//! If the maps of the files are given too ([`Slots::of_maps`]), a piece may stay in the page cache instead, and is used from there (`cached`) as soon
//! as another process has pieces of the same files. It is dropped when its slot goes to another piece, so there are never more of them than slots.
//!
//! Visits (`visit`) and reading threads (`reader`) share a state (`state`). `policy` selects the slot of a piece, `budget` how many slots are open.
//!
//! **Invariant:** a slot is written only by the readers, and only between the moment at which a visit gave it to a piece and the moment at which all
//! of the piece has arrived; its bytes are handed out after that, by a visit that holds it, and no other visit begins before that one has ended.
//! Visits and reading threads share the state of slots behind one lock: `orders` tests that under loom, in every order of events.

mod budget;
mod cached;
mod expected;
mod guesses;
mod layout;
mod open_file;
#[cfg(all(loom, test))]
mod orders;
mod policy;
mod reader;
pub mod replay;
#[cfg(target_os = "linux")]
mod ring;
mod shelf;
mod spans;
mod state;
mod sync;
#[cfg(test)]
mod tests;
mod visit;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use alight_types::units;
use thiserror::Error;

use self::cached::Cached;
use self::guesses::Guesses;
pub use self::layout::Layout;
use self::layout::SlotPiece;
use self::open_file::OpenFile;
#[cfg(target_os = "linux")]
use self::ring::Ring;
pub use self::shelf::Shelf;
pub use self::spans::{Groups, Span, join};
use self::state::{Shared, Slot, State};
use self::sync::{Builder, Condvar, JoinHandle, Mutex, Watch};
use self::visit::Visit;
pub use self::visit::{Found, HeldGroup};
use crate::map::Map;
use crate::mark;
use crate::region::{Region, RegionError};
use crate::transfer::TransferError;

/// Maximum bytes of a read: several in flight keep a disk busy, and none takes long.
const BLOCK: usize = 1 << 20;
/// Number of reading threads. They mostly wait, and each has one read in flight.
const READERS: usize = if cfg!(all(loom, test)) { 2 } else { 8 };
/// Maximum number of pieces that a visit may guess: an idle disk has time for this many before the next visit.
const MAX_GUESSES: usize = 2;
/// One in this many bytes read may have been read ahead for nothing.
const ONE_UNWANTED_IN: u64 = 50;
/// Number of visits between checks for other processes with pieces of the same files, and for the memory available to the shared files.
const LOOK: u64 = 256;
/// No slot, or no piece.
const NONE: u32 = u32::MAX;
/// A slot that is yet to be found.
const COMING: u32 = NONE - 1;

/// Options for reading pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotOptions {
    /// True to read around the page cache, where the file system allows it.
    pub direct: bool,
    /// True to read through a ring, where there is one; otherwise threads read.
    pub ring: bool,
    /// True if pieces stay in the page cache from the beginning, for other processes to share; only for [`Slots::of_maps`].
    pub shared: bool,
    /// True if pieces are guessed.
    pub guess: bool,
    /// True if each visit wants all pieces of its group, so that the next use of every piece is known.
    pub whole: bool,
    /// For tests: pieces become available late, one by one, in an order that follows from this number.
    pub shuffled: Option<u64>,
}

impl Default for SlotOptions {
    fn default() -> SlotOptions {
        SlotOptions {
            direct: true,
            ring: true,
            shared: false,
            guess: true,
            whole: false,
            shuffled: None,
        }
    }
}

/// Why slots could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SlotsError {
    /// The budget does not hold all pieces of a group at the same time.
    #[error("{} of slots are too few: {} are needed for the largest group", units::bytes(*.budget), units::bytes(*.least))]
    TooFew {
        /// Maximum bytes of slots.
        budget: u64,
        /// Minimum bytes of slots.
        least: u64,
    },
    /// The system does not provide the memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The system refuses a thread, or another handle of a file.
    #[error("slots cannot be filled: {0}")]
    System(#[from] io::Error),
}

/// Counts of slots so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Number of pieces that were wanted.
    pub wanted: u64,
    /// Number of those that were resident.
    pub hits: u64,
    /// Bytes of the pieces that had to be read for a visit, during it or ahead of it.
    pub missed_bytes: u64,
    /// Bytes that were read: whole disk blocks, including those read ahead and never wanted.
    pub read_bytes: u64,
    /// Bytes of those that were read ahead and have not been wanted since.
    pub unwanted_bytes: u64,
    /// Number of pieces that were read.
    pub brought: u64,
    /// Number of reads for them: at least one for each span.
    pub reads: u64,
    /// The time that visits had to wait.
    pub waited: Duration,
    /// The time in which nothing was being read, from when a visit noticed it until the next read; only if reads go through a ring.
    pub idle: Duration,
    /// Number of the pieces read that stayed in the page cache.
    pub cached: u64,
    /// Number of pieces that were read because they might be wanted.
    pub guessed: u64,
    /// Number of those that were wanted.
    pub guessed_right: u64,
}

/// Pieces in slots.
pub struct Slots {
    shared: Arc<Shared>,
    visit: Mutex<Visit>,
    readers: Vec<JoinHandle<()>>,
    sizes: SlotSizes,
    whole: bool,
}

/// The number and sizes of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSizes {
    /// Number of pieces of all groups.
    pub pieces: usize,
    /// Number of pieces that fit at the same time.
    pub slots: usize,
    /// Bytes of all slots.
    pub bytes: u64,
    /// Maximum number of spans of a piece: the places in the files that it consists of.
    pub spans: usize,
}

impl SlotSizes {
    /// Bytes of a slot: those of a piece, if all pieces have the same size.
    pub fn slot_bytes(&self) -> f64 {
        self.bytes as f64 / self.slots.max(1) as f64
    }
}

impl Slots {
    /// Creates slots for pieces of `files`, which use at most `budget` bytes. Nothing is read yet, except for a block of each file, to find out how
    /// it can be read.
    ///
    /// # Errors
    /// See [`SlotsError`].
    pub fn new(
        files: &[(&File, PathBuf)],
        groups: &Groups,
        budget: u64,
        options: SlotOptions,
    ) -> Result<Slots, SlotsError> {
        Slots::build(
            files,
            None,
            groups,
            budget,
            options,
            #[cfg(test)]
            None,
        )
    }

    /// As [`Slots::new`], for mapped files: their pieces may stay in the page cache, where they would otherwise be read around it. The files are
    /// [marked](mark::mark), so that other processes see that there are slots for them.
    ///
    /// # Errors
    /// See [`SlotsError`].
    pub fn of_maps(
        maps: &[Arc<Map>],
        groups: &Groups,
        budget: u64,
        options: SlotOptions,
    ) -> Result<Slots, SlotsError> {
        let files: Vec<_> = maps.iter().map(|map| (map.file(), map.path().to_owned())).collect();
        let cached = options.direct.then(|| {
            // On systems without such marks, other processes see none.
            maps.iter().for_each(|map| drop(mark::mark(map.file())));
            Cached::new(maps)
        });
        Slots::build(
            &files,
            cached,
            groups,
            budget,
            options,
            #[cfg(test)]
            None,
        )
    }

    fn build(
        files: &[(&File, PathBuf)],
        cached: Option<Cached>,
        groups: &Groups,
        budget: u64,
        options: SlotOptions,
        #[cfg(test)] interpose: Option<tests::Interpose>,
    ) -> Result<Slots, SlotsError> {
        let SlotOptions { direct, guess, shuffled, .. } = options;
        let open = |(file, path): &(&File, PathBuf)| OpenFile::new(file, path.clone(), direct);
        let files = files.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        let align = files.iter().map(OpenFile::align).max().unwrap_or(1);
        let layout = Layout::fitting(groups, align, budget)?;
        let region = Region::new(layout.bytes())?;
        let (pieces, slots) = (layout.pieces.len(), layout.slots());
        let spans = layout.pieces.iter().map(|piece| piece.spans.len()).max().unwrap_or(0);
        let watch = Watch::new(slots, spans);
        let reads =
            |piece: &SlotPiece| piece.spans.clone().map(|span| layout.blocks(span)).sum::<usize>();
        // A slot never waits for two pieces.
        let most = slots * layout.pieces.iter().map(reads).max().unwrap_or(0);
        let widest = layout.groups.iter().map(Range::len).max().unwrap_or(0);
        let sizes = SlotSizes { pieces, slots, bytes: region.len() as u64, spans };
        let shared = options.shared && cached.is_some();
        let state = State {
            shelf: if options.whole { Shelf::of_cycle(&layout) } else { Shelf::new(&layout) },
            slots: vec![
                Slot { left: 0, ahead: false, cached: false, closed: false, failed: false };
                slots
            ],
            queue: VecDeque::with_capacity(most),
            asked: VecDeque::with_capacity(slots),
            shared,
            in_cache: 0,
            available: if shared { budget::room_now().min(budget) } else { u64::MAX },
            budget,
            fitted: true,
            closed: (0, 0),
            counts: SlotCounts::default(),
            guesses: Guesses::new(),
            error: None,
            failures: 0,
            failure: None,
            stop: false,
        };
        let shared = Arc::new(Shared {
            files,
            cached,
            region,
            layout,
            state: Mutex::new(state),
            work: Condvar::new(),
            arrived: Condvar::new(),
            watch,
            #[cfg(test)]
            interpose,
        });
        let visit = Visit {
            slot_of: vec![NONE; widest],
            here: vec![false; widest],
            cached: vec![false; widest],
            all_here: true,
            found: Found::default(),
            failure: None,
            #[cfg(target_os = "linux")]
            ring: options.ring.then(|| Ring::new(&shared)).flatten(),
            shuffled,
            guess,
        };
        let readers = if visit.has_ring() { 0 } else { READERS };
        let mut all = Slots {
            shared,
            visit: Mutex::new(visit),
            readers: Vec::with_capacity(readers),
            sizes,
            whole: options.whole,
        };
        for _ in 0..readers {
            let theirs = Arc::clone(&all.shared);
            let thread = Builder::new().name("alight-slots".into());
            match thread.spawn(move || theirs.read()) {
                Ok(thread) => all.readers.push(thread),
                // One is enough.
                Err(error) if all.readers.is_empty() => return Err(error.into()),
                Err(_) => break,
            }
        }
        Ok(all)
    }

    /// Returns the minimum bytes of slots for these groups, if reads are aligned to `align`: the maximum that is wanted at once.
    pub fn least(groups: &Groups, align: usize) -> u64 {
        match Layout::fitting(groups, align, 0) {
            Err(SlotsError::TooFew { least, .. }) => least,
            _ => 0,
        }
    }

    /// The sizes at the moment.
    pub fn sizes(&self) -> SlotSizes {
        let (slots, bytes) = self.shared.state().closed;
        SlotSizes { slots: self.sizes.slots - slots, bytes: self.sizes.bytes - bytes, ..self.sizes }
    }

    /// The places of the pieces.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// The memory of all slots, for page-locking: its address and its bytes. It stays allocated, and in place, as long as the slots exist.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.shared.region.as_mut_ptr(), self.shared.region.len())
    }

    /// The counts so far.
    pub fn counts(&self) -> SlotCounts {
        self.shared.state().counts
    }

    /// Returns for each piece of a group whether all of it is resident. That may change at any time.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn here(&self, group: usize) -> Vec<bool> {
        let state = self.shared.state();
        let there = |piece: usize| {
            let arrived = |slot: usize| state.slots[slot].left == 0 && !state.slots[slot].failed;
            state.shelf.slot_of(piece).is_some_and(arrived)
        };
        self.shared.layout.groups[group].clone().map(there).collect()
    }

    /// The number of pieces that a visit waited for and that could not be read, so far. If it is larger after some visits than before them, bytes
    /// that they have seen may be anything. A piece that could not be read is not resident: the next visit that wants it has it read again.
    pub fn failures(&self) -> u64 {
        self.shared.state().failures
    }

    /// The reason of the last failure that [`Slots::failures`] counts; or why data used from a map cannot be relied on at the moment.
    pub fn failure(&self) -> Option<Arc<TransferError>> {
        let last = self.shared.state().failure.clone();
        self.shared.check_used().map(Arc::new).or(last)
    }

    /// True if each visit wants all pieces of its group: see [`SlotOptions::whole`].
    pub fn are_whole(&self) -> bool {
        self.whole
    }

    /// True if pieces stay in the page cache, for other processes to share.
    pub fn are_shared(&self) -> bool {
        self.shared.state().shared
    }
}

impl Shared {
    /// Checks the maps, if pieces are used from them: data may be gone from a file at any time.
    fn check_used(&self) -> Option<TransferError> {
        let used = self.cached.as_ref().filter(|_| self.state().in_cache > 0);
        used.and_then(|cached| cached.check().err())
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // Everything that writes to the region must end before anything else does.
        #[cfg(target_os = "linux")]
        drop(self.visit.get_mut().unwrap_or_else(PoisonError::into_inner).ring.take());
        self.shared.state().stop = true;
        self.shared.work.notify_all();
        for reader in self.readers.drain(..) {
            // A reader that panicked has already reported it.
            let _ = reader.join();
        }
    }
}
