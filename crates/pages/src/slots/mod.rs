//! Pieces of files that are read when they are wanted, into a fixed number of slots of memory.
//!
//! Pieces belong to groups, which are visited in a cycle: a visit ([`Slots::hold`]) says which pieces of a group are wanted now.
//! Those that are in a slot can be used at once. The others are read meanwhile, around the page cache where that is possible: through
//! one ring that the visits themselves hand reads to and take them from, or by threads where there is no ring. They are there in the order
//! in which they come. Where no slot is free, the piece goes whose next use is expected last (`expected`).
//!
//! Memory is taken when a slot is used for the first time, and kept; what else a process has come to need may take some of it
//! ([`Slots::set_budget`]), and then slots are closed, those first whose pieces are expected last. Nothing is allocated after [`Slots::new`].
//!
//! Where the maps of the files are given too ([`Slots::of_maps`]), a piece may stay in the page cache instead, and is used from there
//! (`cached`) as soon as another process has pieces of the same files. It is dropped when its slot goes to another piece, so there is
//! never more of them than there are slots.
//!
//! **Invariant:** a slot is written by the readers alone, and only between the moment at which a visit gave it to a piece and the
//! moment at which all of the piece has come; its bytes are handed out after that, by a visit that holds it, and no other visit begins
//! before that one has ended. Visits and reading threads share the state of slots behind one lock: `orders` tries that under loom, in
//! every order of events.

mod cached;
mod expected;
mod guesses;
mod layout;
#[cfg(all(loom, test))]
mod orders;
mod reader;
pub mod replay;
#[cfg(target_os = "linux")]
mod ring;
mod shelf;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::limits;
use crate::map::Map;
use crate::mark;
use crate::policy::FITS_SHARE;
use crate::region::{Region, RegionError};
use crate::transfer::TransferError;
use crate::transfer::blocks::Block;
use cached::Cached;
use guesses::Guesses;
pub use layout::Layout;
use layout::Piece;
use reader::OpenFile;
#[cfg(target_os = "linux")]
use ring::Ring;
pub use shelf::Shelf;
use sync::{Builder, Condvar, JoinHandle, Mutex, MutexGuard, Watch};

/// Bytes of a read, at most: several in flight keep a disk busy, and none takes long.
const BLOCK: usize = 1 << 20;
/// Threads that read. They mostly wait, and each has one read in flight.
const READERS: usize = if cfg!(all(loom, test)) { 2 } else { 8 };
/// Pieces that a visit may guess: a disk that has nothing to do has time for so many before the next visit.
const MAX_GUESSES: usize = 2;
/// One byte of so many that are read may have been read ahead for nothing.
const ONE_UNWANTED_IN: u64 = 50;
/// So many visits apart it is seen whether another process has come, and how much memory there is for what both have.
const LOOK: u64 = 256;
/// No slot, or no piece.
const NONE: u32 = u32::MAX;
/// A slot that is to be found yet.
const COMING: u32 = NONE - 1;

/// A part of a piece: bytes of one of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which file.
    pub file: usize,
    /// Which bytes of it.
    pub range: Range<u64>,
}

/// The spans of a piece that has these parts, and for each part which span it is in and where in it. A part that may follow (`true`)
/// is of the same span as one that ends fewer than `near` bytes before it, what is in between included.
pub fn join(parts: &[(Span, bool)], near: u64) -> (Vec<Span>, Vec<(usize, usize)>) {
    let (mut spans, mut places) = (Vec::<Span>::new(), Vec::with_capacity(parts.len()));
    for (part, may_follow) in parts {
        let start = part.range.start;
        let before = spans.iter_mut().enumerate().find(|(_, span)| {
            let is_near = start >= span.range.end && start - span.range.end < near;
            *may_follow && span.file == part.file && is_near
        });
        match before {
            Some((index, span)) => {
                places.push((index, (start - span.range.start) as usize));
                span.range.end = part.range.end;
            }
            None => {
                places.push((spans.len(), 0));
                spans.push(part.clone());
            }
        }
    }
    (spans, places)
}

/// The spans of every piece of every group.
pub type Groups = Vec<Vec<Vec<Span>>>;

/// How pieces are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotOptions {
    /// Around the page cache, where the file system allows it.
    pub direct: bool,
    /// Through a ring, where there is one; otherwise by threads.
    pub ring: bool,
    /// True if pieces stay in the page cache from the beginning, for other processes to share; only [`Slots::of_maps`] can do it.
    pub shared: bool,
    /// True if pieces are guessed.
    pub guess: bool,
    /// For tests: pieces are there late, one by one, and in an order that follows from this number.
    pub shuffled: Option<u64>,
}

impl Default for SlotOptions {
    fn default() -> SlotOptions {
        SlotOptions { direct: true, ring: true, shared: false, guess: true, shuffled: None }
    }
}

/// Why there are no slots.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SlotsError {
    /// Not all pieces of a group have room at the same time.
    #[error("{budget} bytes of slots are too few: {least} are needed for the largest group")]
    TooFew {
        /// Bytes that slots may take.
        budget: u64,
        /// Bytes that they have to take.
        least: u64,
    },
    /// The system does not give the memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The system gives no thread, or no other handle of a file.
    #[error("slots cannot be filled: {0}")]
    System(#[from] io::Error),
}

/// Counts of slots so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Pieces that were wanted, and those of them that were there.
    pub wanted: u64,
    /// Of these.
    pub hits: u64,
    /// Bytes of the pieces that had to be read for a visit, in it or ahead of it.
    pub missed_bytes: u64,
    /// Bytes that were read: whole blocks of the disk, and also what was read ahead and never wanted.
    pub read_bytes: u64,
    /// Of these, what was read ahead and has not been wanted since.
    pub unwanted_bytes: u64,
    /// Pieces that were read, and the reads that it took: at least one for each span.
    pub brought: u64,
    /// Of these.
    pub reads: u64,
    /// How long visits had to wait.
    pub waited: Duration,
    /// How long nothing was being read, from when a visit noticed it until the next read; only where reads go through a ring.
    pub idle: Duration,
    /// Pieces of those brought that stayed in the page cache.
    pub cached: u64,
    /// Pieces that were read because they might be wanted, and those of them that were.
    pub guessed: u64,
    /// Of these.
    pub guessed_right: u64,
}

/// What a visit has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Pieces that it wants.
    pub wanted: u32,
    /// Of these, how many were there, and had not been guessed.
    pub hits: u32,
    /// Of these, how many had been read ahead for it, or were being read.
    pub guessed: u32,
}

impl Found {
    /// Pieces that had to be read, or that an earlier visit had not waited for.
    pub fn missed(&self) -> u32 {
        self.wanted - self.hits - self.guessed
    }
}

/// Pieces in slots.
pub struct Slots {
    shared: Arc<Shared>,
    visit: Mutex<Visit>,
    readers: Vec<JoinHandle<()>>,
    sizes: SlotSizes,
}

/// How many slots there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSizes {
    /// Pieces of all groups.
    pub pieces: usize,
    /// Of them, how many have room at the same time.
    pub slots: usize,
    /// Bytes of all slots.
    pub bytes: u64,
    /// Spans of a piece, at most: places of the files that it is in.
    pub spans: usize,
}

impl SlotSizes {
    /// Bytes of a slot: those of a piece, where all pieces are as large.
    pub fn slot_bytes(&self) -> f64 {
        self.bytes as f64 / self.slots.max(1) as f64
    }
}

/// What a visit knows.
struct Visit {
    /// By piece of the group: its slot; [`NONE`] if it is not wanted.
    slot_of: Vec<u32>,
    /// By piece of the group: whether all of it is there.
    here: Vec<bool>,
    /// By piece of the group: whether it is in the page cache.
    cached: Vec<bool>,
    /// True if all that are wanted are.
    all_here: bool,
    /// What was there at its beginning.
    found: Found,
    /// What reads, where threads of their own do not.
    #[cfg(target_os = "linux")]
    ring: Option<Ring>,
    /// See [`SlotOptions`].
    shuffled: Option<u64>,
    guess: bool,
}

/// A visit of a group, whose pieces stay where they are until it ends.
pub struct Held<'s> {
    slots: &'s Slots,
    group: usize,
    visit: MutexGuard<'s, Visit>,
}

/// What the readers share with the visits.
struct Shared {
    files: Vec<OpenFile>,
    /// What pieces in the page cache are used from.
    cached: Option<Cached>,
    region: Region,
    layout: Layout,
    state: Mutex<State>,
    /// Something is to be read.
    work: Condvar,
    /// A piece has come.
    arrived: Condvar,
    failure: OnceLock<Arc<TransferError>>,
    watch: Watch,
    /// Changes what comes of reads.
    #[cfg(test)]
    interpose: Option<tests::Interpose>,
}

struct State {
    shelf: Shelf,
    slots: Vec<Slot>,
    queue: VecDeque<Job>,
    /// Slots whose pieces the system reads into the page cache, oldest first.
    asked: VecDeque<u32>,
    /// True if all pieces stay in the page cache.
    shared: bool,
    /// Bytes of the pieces in the page cache, and of those that should be there at most.
    in_cache: u64,
    room: u64,
    /// Bytes that slots of memory may take, and that as many are open.
    budget: u64,
    fitted: bool,
    /// How many slots are closed, and their bytes.
    closed: (usize, u64),
    counts: SlotCounts,
    /// What was guessed for the group that comes next.
    guesses: Guesses,
    stop: bool,
}

/// How far the piece of a slot has come.
#[derive(Clone, Copy)]
struct Slot {
    /// Reads that are not done.
    left: u32,
    /// It was read ahead, and no visit has wanted it yet.
    ahead: bool,
    /// Its piece is in the page cache.
    cached: bool,
    /// It has no piece and no memory, since there is less room than there was at first.
    closed: bool,
}

/// A read: a block of a span, into a slot.
#[derive(Clone, Copy)]
struct Job {
    slot: usize,
    span: usize,
    block: usize,
    /// No piece was in the slot, so the system clears its memory first, which takes longer than many a read.
    clears: bool,
}

impl Slots {
    /// Slots for pieces of `files`, which take `budget` bytes at most. Nothing is read yet, but for a block of each file to see how it
    /// can be read.
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

    /// As [`Slots::new`], for files that are mapped: their pieces may stay in the page cache, where they are read around it otherwise.
    /// The files are [marked](mark::mark), so that other processes see that there are slots for them.
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
            // Where there are no such marks, nobody sees them.
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
            |piece: &Piece| piece.spans.clone().map(|span| layout.blocks(span)).sum::<usize>();
        // No slot waits for two pieces.
        let most = slots * layout.pieces.iter().map(reads).max().unwrap_or(0);
        let widest = layout.groups.iter().map(Range::len).max().unwrap_or(0);
        let sizes = SlotSizes { pieces, slots, bytes: region.len() as u64, spans };
        let shared = options.shared && cached.is_some();
        let state = State {
            shelf: Shelf::new(&layout),
            slots: vec![Slot { left: 0, ahead: false, cached: false, closed: false }; slots],
            queue: VecDeque::with_capacity(most),
            asked: VecDeque::with_capacity(slots),
            shared,
            in_cache: 0,
            room: if shared { room_now() } else { u64::MAX },
            budget,
            fitted: true,
            closed: (0, 0),
            counts: SlotCounts::default(),
            guesses: Guesses::new(),
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
            failure: OnceLock::new(),
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
            #[cfg(target_os = "linux")]
            ring: options.ring.then(|| Ring::new(&shared)).flatten(),
            shuffled,
            guess,
        };
        let readers = if visit.has_ring() { 0 } else { READERS };
        let mut all =
            Slots { shared, visit: Mutex::new(visit), readers: Vec::with_capacity(readers), sizes };
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

    /// Bytes of slots that these groups need at least, if reads are aligned to `align`: the most that is wanted at once.
    pub fn least(groups: &Groups, align: usize) -> u64 {
        match Layout::fitting(groups, align, 0) {
            Err(SlotsError::TooFew { least, .. }) => least,
            _ => 0,
        }
    }

    /// How many there are at the moment.
    pub fn sizes(&self) -> SlotSizes {
        let (slots, bytes) = self.shared.state().closed;
        SlotSizes { slots: self.sizes.slots - slots, bytes: self.sizes.bytes - bytes, ..self.sizes }
    }

    /// Slots of memory take `budget` bytes at most from the next visit on, but have room for all pieces of a group. With less than before,
    /// pieces go, and the memory of their slots is given back; with more, there are more slots again, up to as many as at first.
    pub fn set_budget(&self, budget: u64) {
        let mut state = self.shared.state();
        state.fitted &= state.budget == budget;
        state.budget = budget;
    }

    /// Where their pieces are.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// The memory of all slots, for page-locking: where it begins, and its bytes. It is there, and nowhere else, as long as the slots are.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.shared.region.as_mut_ptr(), self.shared.region.len())
    }

    /// Its counts so far.
    pub fn counts(&self) -> SlotCounts {
        self.shared.state().counts
    }

    /// Which pieces of a group are there, all of each. That may change at any time.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn here(&self, group: usize) -> Vec<bool> {
        let state = self.shared.state();
        let there = |piece: usize| {
            state.shelf.slot_of(piece).is_some_and(|slot| state.slots[slot].left == 0)
        };
        self.shared.layout.groups[group].clone().map(there).collect()
    }

    /// The first read that failed, if one did: what was handed out since may be anything.
    pub fn failure(&self) -> Option<&Arc<TransferError>> {
        let shared = &*self.shared;
        // What is used from a map may be gone from its file at any time.
        let used = shared.cached.as_ref().filter(|_| shared.state().in_cache > 0);
        if let Some(Err(error)) = used.map(Cached::check) {
            let _ = shared.failure.set(Arc::new(error));
        }
        shared.failure.get()
    }

    /// True if pieces stay in the page cache, for other processes to share.
    pub fn are_shared(&self) -> bool {
        self.shared.state().shared
    }

    /// Begins a visit: pieces `wanted` of `group` stay in their slots, or are read into some. A piece may be named twice.
    ///
    /// # Panics
    /// If there is no such group or piece.
    pub fn hold(&self, group: usize, wanted: impl Iterator<Item = usize>) -> Held<'_> {
        let mut visit = self.visit.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let pieces = shared.layout.groups[group].clone();
        visit.slot_of.fill(NONE);
        visit.here.fill(false);
        visit.all_here = true;
        visit.found = Found::default();
        let mut state = shared.state();
        visit.turn(shared, &mut state);
        if state.shelf.visits().is_multiple_of(LOOK) && shared.cached.is_some() {
            state = visit.look_around(shared, state);
        }
        if !state.fitted {
            shared.fit(&mut state);
        }
        state.shelf.begin(group);
        // First what is there, so that it stays.
        for index in wanted {
            assert!(index < pieces.len(), "piece {index} of {}", pieces.len());
            if visit.slot_of[index] != NONE {
                continue;
            }
            let piece = pieces.start + index;
            state.counts.wanted += 1;
            visit.found.wanted += 1;
            let Some(slot) = state.shelf.want(piece) else {
                state.counts.missed_bytes += shared.layout.pieces[piece].bytes;
                visit.slot_of[index] = COMING;
                continue;
            };
            let held = &mut state.slots[slot];
            let cached = held.cached;
            let there = held.left == 0 && visit.shuffled.is_none();
            if std::mem::take(&mut held.ahead) {
                state.counts.missed_bytes += shared.layout.pieces[piece].bytes;
                state.counts.unwanted_bytes -= shared.read_len(piece, cached);
                visit.found.guessed += 1;
            } else {
                visit.found.hits += u32::from(there);
            }
            state.counts.hits += u64::from(there);
            visit.slot_of[index] = slot as u32;
            visit.cached[index] = cached;
            visit.here[index] = there;
            visit.all_here &= there;
        }
        for (index, piece) in pieces.enumerate() {
            if visit.slot_of[index] == COMING {
                let slot = loop {
                    match shared.victim(&state, piece) {
                        Some(slot) => break slot,
                        // What an earlier visit wanted and did not wait for. There is room for all pieces of a group, so it is some of
                        // that, and will arrive.
                        None => state = visit.wait(shared, state),
                    }
                };
                shared.bring(&mut state, piece, slot, false);
                // The disk has work while room is sought for the next.
                visit.turn(shared, &mut state);
                visit.slot_of[index] = slot as u32;
                visit.cached[index] = state.slots[slot].cached;
                visit.all_here = false;
            }
        }
        state.judge_guesses(group, &shared.layout, &visit);
        drop(state);
        Held { slots: self, group, visit }
    }
}

impl Held<'_> {
    /// True if a piece is there.
    pub fn is_here(&self, piece: usize) -> bool {
        self.visit.here[piece]
    }

    /// True if all are.
    pub fn all_here(&self) -> bool {
        self.visit.all_here
    }

    /// What was there when it began.
    pub fn found(&self) -> Found {
        self.visit.found
    }

    /// Returns when all have come, or could not: see [`Slots::failure`].
    pub fn wait(&mut self) {
        while !self.visit.all_here {
            self.wait_for_more();
        }
    }

    /// Returns when more of them are there than before, in whichever order they come; at once, if all are. What could not be read
    /// counts as there: see [`Slots::failure`].
    pub fn wait_for_more(&mut self) {
        if self.visit.all_here {
            return;
        }
        let shared = &*self.slots.shared;
        let mut state = shared.state();
        let mut began = None;
        self.visit.turn(shared, &mut state);
        while !self.visit.look(&state) {
            began.get_or_insert_with(Instant::now);
            state = self.visit.wait(shared, state);
        }
        state.counts.waited += began.map_or(Duration::ZERO, |began| began.elapsed());
    }

    /// True if it would be of use to say what may be wanted next: the disk has nothing to do, and little was read for nothing.
    pub fn may_guess(&mut self) -> bool {
        if !self.visit.guess {
            return false;
        }
        let shared = &*self.slots.shared;
        let mut state = shared.state();
        self.visit.turn(shared, &mut state);
        let idle = state.queue.is_empty()
            && state.asked.is_empty()
            && self.visit.all_here
            && self.visit.is_idle();
        idle && state.may_be_unwanted(0)
    }

    /// Says which pieces the next visit may want, of which group; the likeliest first, and how sure that is, as a class from 0
    /// to 31. A few that are not there are read ahead, of classes that were mostly right before. No piece of this visit goes for that.
    ///
    /// # Panics
    /// If there is no such group or piece.
    pub fn guess(&mut self, group: usize, pieces: impl Iterator<Item = (usize, u8)>) {
        let shared = &*self.slots.shared;
        let mut state = shared.state();
        state.guesses.clear();
        let first = shared.layout.groups[group].start;
        let mut left = MAX_GUESSES;
        for (piece, class) in pieces {
            let piece = first + piece;
            assert!(shared.layout.groups[group].contains(&piece), "a piece of the group");
            if state.shelf.slot_of(piece).is_some() {
                continue;
            }
            let bytes = shared.read_len(piece, state.shared);
            let suits = left > 0 && state.guesses.trusts(class) && state.may_be_unwanted(bytes);
            // This visit may hold all slots.
            let slot = suits.then(|| shared.victim(&state, piece)).flatten();
            // What is not read is judged too.
            state.guesses.add(piece, class, slot.is_some());
            if let Some(slot) = slot {
                left -= 1;
                state.counts.guessed += 1;
                shared.bring(&mut state, piece, slot, true);
                self.visit.turn(shared, &mut state);
            }
        }
    }

    /// Has pieces of another group read that the next visit will want, behind what this one waits for. Those of them that are there
    /// stay until then, and no piece of this visit goes for that; what finds no room is left to the next visit.
    ///
    /// # Panics
    /// If there is no such group or piece.
    pub fn read_ahead(&mut self, group: usize, pieces: impl Iterator<Item = usize> + Clone) {
        let shared = &*self.slots.shared;
        let mut state = shared.state();
        let of_group = shared.layout.groups[group].clone();
        let piece_of = |index: usize| {
            let piece = of_group.start + index;
            assert!(of_group.contains(&piece), "a piece of the group");
            piece
        };
        for piece in pieces.clone().map(piece_of) {
            state.shelf.keep(piece);
        }
        for piece in pieces.map(piece_of) {
            if state.shelf.slot_of(piece).is_some() {
                continue;
            }
            let Some(slot) = shared.victim(&state, piece) else { break };
            shared.bring(&mut state, piece, slot, true);
            self.visit.turn(shared, &mut state);
        }
    }

    /// The bytes of a span of a piece.
    ///
    /// # Panics
    /// If the piece is not there.
    pub fn bytes(&self, piece: usize, span: usize) -> &[u8] {
        assert!(self.visit.here[piece], "piece {piece} of group {} is not there", self.group);
        let shared = &*self.slots.shared;
        let info = &shared.layout.pieces[shared.layout.groups[self.group].start + piece];
        let slot = self.visit.slot_of[piece] as usize;
        assert!(span < info.spans.len(), "span {span} of {}", info.spans.len());
        if let (true, Some(cached)) = (self.visit.cached[piece], &shared.cached) {
            return cached.bytes(&shared.layout, info.spans.start + span);
        }
        let place = shared.layout.place(slot, info.spans.start + span, info.class);
        shared.watch.read(slot, info.spans.start + span);
        assert!(place.start <= place.end && place.end <= shared.region.len());
        // SAFETY: within the region, which lives as long as `shared`. Nothing writes to the slot: all of it has come, and it is given to
        // another piece by another visit only. What is being read goes to other slots, of which this makes no reference.
        unsafe {
            let start = shared.region.as_mut_ptr().add(place.start);
            std::slice::from_raw_parts(start, place.len())
        }
    }
}

impl Visit {
    fn has_ring(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.ring.is_some();
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// True if more is there than before.
    fn look(&mut self, state: &State) -> bool {
        let come = |slot: u32| slot != NONE && state.slots[slot as usize].left == 0;
        if self.shuffled.is_some() {
            return self.look_shuffled(&come);
        }
        let (mut more, mut all) = (false, true);
        for (slot, here) in self.slot_of.iter().zip(&mut self.here) {
            if *slot != NONE && !*here {
                *here = come(*slot);
                more |= *here;
                all &= *here;
            }
        }
        self.all_here = all;
        more
    }

    /// [`Visit::look`], for tests: when all have come, one after the other is there.
    fn look_shuffled(&mut self, come: &dyn Fn(u32) -> bool) -> bool {
        let late = || (0..self.here.len()).filter(|i| self.slot_of[*i] != NONE && !self.here[*i]);
        let count = late().count();
        if count == 0 || !late().all(|i| come(self.slot_of[i])) {
            return false;
        }
        let seed = self.shuffled.unwrap_or(0).wrapping_mul(6_364_136_223_846_793_005) + 1;
        let next = late().nth((seed >> 33) as usize % count);
        next.into_iter().for_each(|i| self.here[i] = true);
        (self.shuffled, self.all_here) = (Some(seed), count == 1);
        true
    }

    /// Takes what has come, and hands in what is to be read, if threads of their own do not.
    fn turn(&mut self, shared: &Shared, state: &mut State) {
        #[cfg(target_os = "linux")]
        if let Some(ring) = &mut self.ring {
            ring.turn(shared, state);
        }
        let _ = (shared, state);
    }

    /// Looks whether another process has come that has pieces of the same files, and how much memory there is for what both have.
    fn look_around<'s>(
        &mut self,
        shared: &'s Shared,
        mut state: MutexGuard<'s, State>,
    ) -> MutexGuard<'s, State> {
        let Some(cached) = &shared.cached else { return state };
        if !state.shared && state.shelf.visits() > 0 && cached.are_others() {
            // Nothing may be written to memory that is given back.
            while state.slots.iter().any(|slot| slot.left > 0) {
                state = self.wait(shared, state);
            }
            for slot in 0..state.slots.len() {
                if let (Some(piece), false) = (state.shelf.piece_in(slot), state.slots[slot].cached)
                {
                    state.shelf.forget(piece);
                }
            }
            // SAFETY: no visit goes on, so nobody has a reference to a slot; all reads are done, and others begin with this lock held.
            unsafe { shared.region.give_back() };
            state.shared = true;
        }
        if state.shared {
            state.room = room_now();
        }
        state
    }

    /// Waits until something has come, perhaps not all of a piece.
    fn wait<'s>(
        &mut self,
        shared: &'s Shared,
        mut state: MutexGuard<'s, State>,
    ) -> MutexGuard<'s, State> {
        // Of those in the page cache first what this visit wants.
        let wants = |slot: &u32| self.slot_of.contains(slot);
        let next = state.asked.iter().position(wants).unwrap_or(0);
        if let (Some(slot), Some(cached)) = (state.asked.remove(next), &shared.cached) {
            let piece = state.shelf.piece_in(slot as usize).expect("a slot that is being filled");
            drop(state);
            if let Err(error) = cached.fetch(&shared.layout, piece) {
                let _ = shared.failure.set(Arc::new(error));
            }
            let mut state = shared.state();
            state.slots[slot as usize].left -= 1;
            self.turn(shared, &mut state);
            return state;
        }
        #[cfg(target_os = "linux")]
        if let Some(ring) = &mut self.ring {
            drop(state);
            ring.wait();
            let mut state = shared.state();
            ring.turn(shared, &mut state);
            return state;
        }
        shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nothing is being read.
    fn is_idle(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.ring.as_ref().is_none_or(Ring::is_idle);
        #[cfg(not(target_os = "linux"))]
        true
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are read for a piece.
    fn read_len(&self, piece: usize, cached: bool) -> u64 {
        let Piece { spans, bytes, .. } = &self.layout.pieces[piece];
        match cached {
            true => *bytes,
            false => {
                let spans = self.layout.spans[spans.clone()].iter();
                spans.map(|span| self.layout.aligned(&span.span.range).len() as u64).sum()
            }
        }
    }

    /// Gives a piece the slot and has it read, for a visit or ahead of one.
    fn bring(&self, state: &mut State, piece: usize, slot: usize, ahead: bool) {
        let info = &self.layout.pieces[piece];
        self.drop_cached(state, slot);
        let clears = state.shelf.piece_in(slot).is_none();
        state.shelf.give(piece, slot);
        state.slots[slot].ahead = ahead;
        state.counts.brought += 1;
        let bytes = self.read_len(piece, state.shared);
        state.counts.read_bytes += bytes;
        state.counts.unwanted_bytes += if ahead { bytes } else { 0 };
        if let Some(cached) = self.cached.as_ref().filter(|_| state.shared) {
            cached.ask(&self.layout, piece);
            let held = &mut state.slots[slot];
            (held.cached, held.left) = (true, 1);
            state.asked.push_back(slot as u32);
            state.in_cache += info.bytes;
            state.counts.cached += 1;
            state.counts.reads += info.spans.len() as u64;
            return;
        }
        for span in info.spans.clone() {
            state.counts.reads += self.layout.blocks(span) as u64;
            for block in 0..self.layout.blocks(span) {
                state.slots[slot].left += 1;
                state.queue.push_back(Job { slot, span, block, clears });
            }
        }
        self.work.notify_all();
    }

    /// Closes and opens slots, until they take what they may. It is called between two visits. Slots that are being filled, or have what was
    /// read ahead for the next visit, are left to the visit after that.
    fn fit(&self, state: &mut State) {
        state.fitted = true;
        // What is in the page cache has a bound of its own.
        if state.shared {
            return;
        }
        let share = self.layout.share_in(state.budget).unwrap_or(0.0);
        for (number, class) in self.layout.classes.iter().enumerate() {
            let may = self.layout.slots_of(number, share);
            let mut open = class.slots.clone().filter(|slot| !state.slots[*slot].closed).count();
            while open > may {
                let busy = |slot: usize| state.slots[slot].left > 0 || state.slots[slot].closed;
                let Some(slot) = state.shelf.victim_of(&self.layout, number, busy) else {
                    state.fitted = false;
                    break;
                };
                self.close(state, slot);
                open -= 1;
            }
            for slot in class.slots.clone() {
                if open < may && std::mem::take(&mut state.slots[slot].closed) {
                    state.closed.0 -= 1;
                    state.closed.1 -= self.layout.memory_of(slot).len() as u64;
                    open += 1;
                }
            }
        }
    }

    /// Closes a slot that is not being filled, between two visits.
    fn close(&self, state: &mut State, slot: usize) {
        if let Some(piece) = state.shelf.piece_in(slot) {
            state.shelf.forget(piece);
        }
        let memory = self.layout.memory_of(slot);
        state.slots[slot].closed = true;
        state.closed.0 += 1;
        state.closed.1 += memory.len() as u64;
        // SAFETY: no visit goes on, so nobody has a reference to the slot; nothing is read into it, and nothing will be while it is closed.
        unsafe { self.region.give_back_range(memory) };
    }

    /// The slot that a piece may have, if not all others are wanted or being filled.
    fn victim(&self, state: &State, piece: usize) -> Option<usize> {
        // What is read into the page cache can be left alone at any time.
        let busy = |slot: usize| {
            let Slot { left, cached, closed, .. } = state.slots[slot];
            closed || left > 0 && !cached
        };
        // Where there is less memory than slots, another piece goes although there is a free one.
        let full = state.in_cache + self.layout.pieces[piece].bytes > state.room;
        let taken = |slot: usize| busy(slot) || state.shelf.piece_in(slot).is_none();
        let of_full = full.then(|| state.shelf.victim(&self.layout, piece, taken)).flatten();
        of_full.or_else(|| state.shelf.victim(&self.layout, piece, busy))
    }

    /// Drops the piece of a slot from the page cache, if it is there. Another process that uses it keeps it.
    fn drop_cached(&self, state: &mut State, slot: usize) {
        if !std::mem::take(&mut state.slots[slot].cached) {
            return;
        }
        if let (Some(cached), Some(piece)) = (&self.cached, state.shelf.piece_in(slot)) {
            state.in_cache -= self.layout.pieces[piece].bytes;
            cached.give_up(&self.layout, piece);
            if std::mem::take(&mut state.slots[slot].left) > 0 {
                state.asked.retain(|other| *other as usize != slot);
            }
        }
    }

    /// What a reader does, until the end.
    fn read(&self) {
        let mut state = self.state();
        loop {
            if state.stop {
                return;
            }
            let Some(job) = state.queue.pop_front() else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            self.read_block(job, self.block(job));
            state = self.state();
            let slot = &mut state.slots[job.slot];
            slot.left -= 1;
            if slot.left == 0 {
                self.arrived.notify_all();
            }
        }
    }

    /// What a job reads, and where to.
    fn block(&self, job: Job) -> Block {
        let read = self.layout.read(job);
        Block::new(read.offset, read.len, read.need, self.region.as_mut_ptr().wrapping_add(read.to))
    }

    /// Reads what of a job's block has not come yet. A failure is remembered.
    fn read_block(&self, job: Job, block: Block) {
        self.watch.written(job.slot, job.span);
        let file = &self.files[self.layout.spans[job.span].span.file];
        #[cfg(test)]
        let (at, to) = (block.offset, block.to);
        // SAFETY: the block is within the job's slot, which belongs to the readers until all of its piece has come; each read of it is
        // another part. The region lives as long as `self`.
        let done = unsafe { file.read(block) };
        #[cfg(test)]
        let done = done.and_then(|()| match &self.interpose {
            Some(interpose) if interpose(0, to) < 0 => Err(file.failed(at, -interpose(0, to))),
            _ => Ok(()),
        });
        if let Err(error) = done {
            let _ = self.failure.set(Arc::new(error));
        }
    }

    /// [`Shared::read_block`] by whoever visits, with all that follows from it.
    #[cfg(target_os = "linux")]
    fn read_alone(&self, state: &mut State, job: Job, block: Block) {
        self.read_block(job, block);
        state.slots[job.slot].left -= 1;
    }

    /// What came of a read through the ring.
    #[cfg(target_os = "linux")]
    fn seen(&self, result: i32, to: *mut u8) -> i32 {
        #[cfg(test)]
        if let Some(interpose) = &self.interpose {
            return interpose(result, to);
        }
        let _ = to;
        result
    }
}

/// Bytes of the page cache that pieces may take where other processes have them too: what is available, in which those pages count.
fn room_now() -> u64 {
    (FITS_SHARE * limits::available().0 as f64) as u64
}

impl State {
    /// True if as many bytes more may turn out to be read for nothing.
    fn may_be_unwanted(&self, bytes: u64) -> bool {
        let SlotCounts { read_bytes, unwanted_bytes, .. } = self.counts;
        (unwanted_bytes + bytes).saturating_mul(ONE_UNWANTED_IN) <= read_bytes
    }

    /// Counts what was right of what was guessed of a group whose visit begins.
    fn judge_guesses(&mut self, group: usize, layout: &Layout, visit: &Visit) {
        let pieces = &layout.groups[group];
        let is_wanted =
            |piece: usize| pieces.contains(&piece) && visit.slot_of[piece - pieces.start] != NONE;
        self.counts.guessed_right += self.guesses.judge(is_wanted);
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // Before anything else ends, whatever is written to the region does.
        #[cfg(target_os = "linux")]
        drop(self.visit.get_mut().unwrap_or_else(PoisonError::into_inner).ring.take());
        self.shared.state().stop = true;
        self.shared.work.notify_all();
        for reader in self.readers.drain(..) {
            // One that panicked has said so.
            let _ = reader.join();
        }
    }
}
