//! Pieces of files that are read when they are wanted, into a fixed number of slots of memory.
//!
//! Pieces belong to groups, which are visited in a cycle: a visit ([`Slots::hold`]) says which pieces of a group are wanted now.
//! Those that are in a slot can be used at once; the others are read meanwhile, by threads of their own, around the page cache
//! where that is possible. Where no slot is free, the piece goes whose next use is expected last (`expected`).
//!
//! Memory is taken when a slot is used for the first time, and kept. Nothing is allocated after [`Slots::new`].
//!
//! **Invariant:** a slot is written by the readers alone, and only between the moment at which a visit gave it to a piece and the
//! moment at which all of the piece has come; its bytes are handed out after that, by a visit that holds it, and no other visit begins
//! before that one has ended.

mod expected;
mod reader;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::region::{Region, RegionError};
use crate::transfer::TransferError;
use expected::Uses;
use reader::OpenFile;

/// Bytes of a read, at most: several in flight keep a disk busy, and none takes long.
const BLOCK: usize = 1 << 20;
/// Threads that read. They mostly wait, and each has one read in flight.
const READERS: usize = 8;
/// Pieces that a visit may guess: a disk that has nothing to do has time for so many before the next visit.
const MOST_GUESSES: usize = 2;
/// While fewer guesses than this share are right, few are made: a wrong one keeps the disk busy.
const LEAST_TRUST: f32 = 0.5;
/// So many visits apart.
const RETRY: u64 = 64;
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

/// The spans of every piece of every group.
pub type Groups = Vec<Vec<Vec<Span>>>;

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

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Pieces that were wanted, and those of them that were there.
    pub wanted: u64,
    /// Of these.
    pub hits: u64,
    /// Bytes of the pieces that were not.
    pub missed_bytes: u64,
    /// Bytes that were read for them: whole blocks of the disk.
    pub read_bytes: u64,
    /// How long visits had to wait.
    pub waited: Duration,
    /// Pieces that were read because they might be wanted, and those of them that were.
    pub guessed: u64,
    /// Of these.
    pub guessed_right: u64,
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
}

/// What a visit knows.
struct Visit {
    /// By piece of the group: its slot; [`NONE`] if it is not wanted.
    slot_of: Vec<u32>,
    /// By piece of the group: whether all of it is there.
    here: Vec<bool>,
    /// Whether all that are wanted are.
    all_here: bool,
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
    region: Region,
    layout: Layout,
    state: Mutex<State>,
    /// Something is to be read.
    work: Condvar,
    /// A piece has come.
    arrived: Condvar,
    failure: OnceLock<Arc<TransferError>>,
}

/// Where everything is. It never changes.
struct Layout {
    /// By group: its first piece, and the end.
    groups: Vec<Range<usize>>,
    pieces: Vec<Piece>,
    spans: Vec<Place>,
    classes: Vec<Class>,
    /// What reads are aligned to.
    align: usize,
}

struct Piece {
    group: usize,
    class: usize,
    spans: Range<usize>,
    bytes: u64,
}

/// A span, and where it is in a slot of its piece.
struct Place {
    span: Span,
    /// Where the block of the disk goes in which it begins.
    at: usize,
}

/// Slots of one size.
struct Class {
    slot_bytes: usize,
    /// Where they begin in the region.
    start: usize,
    /// Which of all slots they are.
    slots: Range<usize>,
}

struct State {
    slots: Vec<Slot>,
    /// By piece.
    slot_of: Vec<u32>,
    /// By piece.
    uses: Vec<Uses>,
    queue: VecDeque<Job>,
    /// How often the first groups have come again.
    cycle: u64,
    /// The group of the last visit, and how many there were.
    group: usize,
    visits: u64,
    counts: SlotCounts,
    /// The share of guesses that were right lately.
    trust: f32,
    /// What was guessed for the group that comes next.
    guesses: [u32; MOST_GUESSES],
    stop: bool,
}

#[derive(Clone, Copy)]
struct Slot {
    piece: u32,
    /// Reads that are not done.
    left: u32,
    /// The last visit that wanted it.
    visit: u64,
}

/// A read: a block of a span, into a slot.
#[derive(Clone, Copy)]
struct Job {
    slot: usize,
    span: usize,
    block: usize,
}

impl Layout {
    /// With slots for each size of pieces, which waste nothing; or with slots that take any piece, of which fewer may do, since those of
    /// one group are never wanted beside those of another.
    ///
    /// # Errors
    /// Not all pieces of a group have room in `budget` bytes.
    fn fitting(groups: &Groups, align: usize, budget: u64) -> Result<Layout, SlotsError> {
        let mut layout = Layout::new(groups, align);
        let Err(error) = layout.share(budget) else { return Ok(layout) };
        let largest = layout.classes.iter().map(|class| class.slot_bytes).max().unwrap_or(0);
        layout.classes = vec![Class { slot_bytes: largest, start: 0, slots: 0..0 }];
        layout.pieces.iter_mut().for_each(|piece| piece.class = 0);
        match (layout.share(budget), error) {
            (Ok(()), _) => Ok(layout),
            (Err(SlotsError::TooFew { least: one, .. }), SlotsError::TooFew { least, .. }) => {
                Err(SlotsError::TooFew { budget, least: one.min(least) })
            }
            (Err(error), _) => Err(error),
        }
    }

    fn new(groups: &Groups, align: usize) -> Layout {
        let mut layout = Layout {
            groups: Vec::new(),
            pieces: Vec::new(),
            spans: Vec::new(),
            classes: Vec::new(),
            align,
        };
        for (group, pieces) in groups.iter().enumerate() {
            let first = layout.pieces.len();
            for spans in pieces {
                let (mut at, first) = (0, layout.spans.len());
                for span in spans {
                    layout.spans.push(Place { span: span.clone(), at });
                    at += layout.aligned(&span.range).end - layout.aligned(&span.range).start;
                }
                let class = layout.classes.iter().position(|class| class.slot_bytes == at);
                let class = class.unwrap_or_else(|| {
                    layout.classes.push(Class { slot_bytes: at, start: 0, slots: 0..0 });
                    layout.classes.len() - 1
                });
                let bytes = spans.iter().map(|span| span.range.end - span.range.start).sum();
                let spans = first..layout.spans.len();
                layout.pieces.push(Piece { group, class, spans, bytes });
            }
            layout.groups.push(first..layout.pieces.len());
        }
        layout
    }

    /// The whole blocks of the disk that a range is in.
    fn aligned(&self, range: &Range<u64>) -> Range<usize> {
        let align = self.align as u64;
        (range.start / align * align) as usize..range.end.next_multiple_of(align) as usize
    }

    /// Reads of a span.
    fn blocks(&self, span: usize) -> usize {
        self.aligned(&self.spans[span].span.range).len().div_ceil(BLOCK)
    }

    /// How many pieces of a class there are, and the most of a group.
    fn counts(&self, class: usize) -> [usize; 2] {
        let of = |pieces: &[Piece]| pieces.iter().filter(|piece| piece.class == class).count();
        let most = self.groups.iter().map(|group| of(&self.pieces[group.clone()])).max();
        [of(&self.pieces), most.unwrap_or(0)]
    }

    /// Shares `budget` bytes among the classes, by what their pieces take, and at least as much as a group needs at once.
    fn share(&mut self, budget: u64) -> Result<(), SlotsError> {
        let counts: Vec<_> = (0..self.classes.len()).map(|class| self.counts(class)).collect();
        let bytes = |class: usize, slots: usize| (slots * self.classes[class].slot_bytes) as u64;
        let least = (0..counts.len()).map(|class| bytes(class, counts[class][1])).sum();
        if least > budget {
            return Err(SlotsError::TooFew { budget, least });
        }
        let beyond = |class: usize| bytes(class, counts[class][0] - counts[class][1]) as f64;
        let all: f64 = (0..counts.len()).map(beyond).sum();
        let share = ((budget - least) as f64 / all.max(1.0)).min(1.0);
        let (mut start, mut first) = (0, 0);
        for (class, [pieces, most]) in self.classes.iter_mut().zip(counts) {
            // A share of all of them is all of them.
            let slots = most + ((pieces - most) as f64 * share) as usize;
            class.start = start;
            class.slots = first..first + slots;
            (start, first) = (start + slots * class.slot_bytes, first + slots);
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.classes.last().map_or(0, |class| class.start + class.slots.len() * class.slot_bytes)
    }

    fn slots(&self) -> usize {
        self.classes.last().map_or(0, |class| class.slots.end)
    }

    /// Where the bytes of a span of a piece are in the region, if the piece is in that slot.
    fn place(&self, slot: usize, span: usize, class: usize) -> Range<usize> {
        let class = &self.classes[class];
        let place = &self.spans[span];
        let range = &place.span.range;
        let skipped = range.start as usize - self.aligned(range).start;
        let slot = class.start + (slot - class.slots.start) * class.slot_bytes;
        let start = slot + place.at + skipped;
        start..start + (range.end - range.start) as usize
    }
}

impl Slots {
    /// Slots for pieces of `files`, which take `budget` bytes at most. Nothing is read yet. Reads go around the page cache if `direct`
    /// is set and the file system allows it.
    ///
    /// # Errors
    /// See [`SlotsError`].
    pub fn new(
        files: &[(&File, PathBuf)],
        groups: &Groups,
        budget: u64,
        direct: bool,
    ) -> Result<Slots, SlotsError> {
        let open = |(file, path): &(&File, PathBuf)| OpenFile::new(file, path.clone(), direct);
        let files = files.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        let align = files.iter().map(OpenFile::align).max().unwrap_or(1);
        let layout = Layout::fitting(groups, align, budget)?;
        let region = Region::new(layout.bytes())?;
        let (pieces, slots) = (layout.pieces.len(), layout.slots());
        let reads =
            |piece: &Piece| piece.spans.clone().map(|span| layout.blocks(span)).sum::<usize>();
        // No slot waits for two pieces.
        let most = slots * layout.pieces.iter().map(reads).max().unwrap_or(0);
        let widest = layout.groups.iter().map(Range::len).max().unwrap_or(0);
        let sizes = SlotSizes { pieces, slots, bytes: region.len() as u64 };
        let state = State {
            slots: vec![Slot { piece: NONE, left: 0, visit: 0 }; slots],
            slot_of: vec![NONE; pieces],
            uses: vec![Uses::default(); pieces],
            queue: VecDeque::with_capacity(most),
            cycle: 1,
            group: 0,
            visits: 0,
            counts: SlotCounts::default(),
            trust: 1.0,
            guesses: [NONE; MOST_GUESSES],
            stop: false,
        };
        let shared = Arc::new(Shared {
            files,
            region,
            layout,
            state: Mutex::new(state),
            work: Condvar::new(),
            arrived: Condvar::new(),
            failure: OnceLock::new(),
        });
        let mut all = Slots {
            shared,
            visit: Mutex::new(Visit {
                slot_of: vec![NONE; widest],
                here: vec![false; widest],
                all_here: true,
            }),
            readers: Vec::with_capacity(READERS),
            sizes,
        };
        for _ in 0..READERS {
            let theirs = Arc::clone(&all.shared);
            let thread = std::thread::Builder::new().name("alight-slots".into());
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

    /// How many there are.
    pub fn sizes(&self) -> SlotSizes {
        self.sizes
    }

    /// What has happened so far.
    pub fn counts(&self) -> SlotCounts {
        self.shared.state().counts
    }

    /// Which pieces of a group are there, all of each. That may change at any time.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn here(&self, group: usize) -> Vec<bool> {
        let state = self.shared.state();
        let there = |piece: usize| match state.slot_of[piece] {
            NONE => false,
            slot => state.slots[slot as usize].left == 0,
        };
        self.shared.layout.groups[group].clone().map(there).collect()
    }

    /// The first read that failed, if one did: what was handed out since may be anything.
    pub fn failure(&self) -> Option<&Arc<TransferError>> {
        self.shared.failure.get()
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
        let mut state = shared.state();
        state.visits += 1;
        state.cycle += u64::from(state.visits > 1 && group <= state.group);
        state.group = group;
        // First what is there, so that it stays.
        for index in wanted {
            assert!(index < pieces.len(), "piece {index} of {}", pieces.len());
            if visit.slot_of[index] != NONE {
                continue;
            }
            let piece = pieces.start + index;
            let (cycle, now, slot) = (state.cycle, state.visits, state.slot_of[piece]);
            state.uses[piece].add(cycle);
            state.counts.wanted += 1;
            if slot == NONE {
                state.counts.missed_bytes += shared.layout.pieces[piece].bytes;
                visit.slot_of[index] = COMING;
                continue;
            }
            let held = &mut state.slots[slot as usize];
            held.visit = now;
            let there = held.left == 0;
            state.counts.hits += u64::from(there);
            visit.slot_of[index] = slot;
            visit.here[index] = there;
            visit.all_here &= there;
        }
        for (index, piece) in pieces.enumerate() {
            if visit.slot_of[index] == COMING {
                let slot = loop {
                    match shared.victim(&state, shared.layout.pieces[piece].class) {
                        Some(slot) => break slot,
                        // What an earlier visit wanted and did not wait for. There is room for all pieces of a group, so it is some of
                        // that, and will arrive.
                        None => {
                            let arrived = shared.arrived.wait(state);
                            state = arrived.unwrap_or_else(PoisonError::into_inner);
                        }
                    }
                };
                shared.bring(&mut state, piece, slot);
                visit.slot_of[index] = slot as u32;
                visit.all_here = false;
            }
        }
        state.judge_guesses(group, &shared.layout, &visit);
        drop(state);
        Held { slots: self, group, visit }
    }
}

impl Held<'_> {
    /// Whether a piece is there.
    pub fn is_here(&self, piece: usize) -> bool {
        self.visit.here[piece]
    }

    /// Whether all are.
    pub fn all_here(&self) -> bool {
        self.visit.all_here
    }

    /// Returns when all have come, or could not: see [`Slots::failure`].
    pub fn wait(&mut self) {
        if self.visit.all_here {
            return;
        }
        let began = Instant::now();
        let shared = &*self.slots.shared;
        let mut state = shared.state();
        let visit = &mut *self.visit;
        while visit.slot_of.iter().any(|slot| *slot != NONE && state.slots[*slot as usize].left > 0)
        {
            state = shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.counts.waited += began.elapsed();
        for (slot, here) in visit.slot_of.iter().zip(&mut visit.here) {
            *here = *slot != NONE;
        }
        visit.all_here = true;
    }

    /// Whether it would be of use to say what may be wanted next: the disk has nothing to do, and guesses were right lately.
    pub fn may_guess(&self) -> bool {
        let state = self.slots.shared.state();
        let idle = state.queue.is_empty() && self.visit.all_here;
        idle && (state.trust >= LEAST_TRUST || state.visits.is_multiple_of(RETRY))
    }

    /// Says which pieces the next visit may want, of which group; the likeliest first. A few that are not there are read ahead. No
    /// piece of this visit goes for that.
    ///
    /// # Panics
    /// If there is no such group or piece.
    pub fn guess(&mut self, group: usize, pieces: impl Iterator<Item = usize>) {
        let shared = &*self.slots.shared;
        let mut state = shared.state();
        state.guesses = [NONE; MOST_GUESSES];
        let first = shared.layout.groups[group].start;
        let mut count = 0;
        for piece in pieces {
            let piece = first + piece;
            assert!(shared.layout.groups[group].contains(&piece), "a piece of the group");
            if state.slot_of[piece] != NONE {
                continue;
            }
            // This visit may hold all slots.
            let slot = shared.victim(&state, shared.layout.pieces[piece].class);
            let (Some(slot), true) = (slot, count < MOST_GUESSES) else { return };
            state.guesses[count] = piece as u32;
            count += 1;
            state.counts.guessed += 1;
            shared.bring(&mut state, piece, slot);
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
        let place = shared.layout.place(slot, info.spans.start + span, info.class);
        // Nothing writes to the slot: all of it has come, and it is given to another piece by another visit only.
        &shared.region.bytes()[place]
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a piece the slot and has it read.
    fn bring(&self, state: &mut State, piece: usize, slot: usize) {
        let info = &self.layout.pieces[piece];
        let now = state.visits;
        let before = std::mem::replace(&mut state.slots[slot].piece, piece as u32);
        if before != NONE {
            state.slot_of[before as usize] = NONE;
        }
        state.slot_of[piece] = slot as u32;
        state.slots[slot].visit = now;
        for span in info.spans.clone() {
            state.counts.read_bytes +=
                self.layout.aligned(&self.layout.spans[span].span.range).len() as u64;
            for block in 0..self.layout.blocks(span) {
                state.slots[slot].left += 1;
                state.queue.push_back(Job { slot, span, block });
            }
        }
        self.work.notify_all();
    }

    /// The slot of a class that another piece may have: a free one, or that of the piece whose next use is expected last. `None`: all
    /// others are being filled.
    fn victim(&self, state: &State, class: usize) -> Option<usize> {
        let groups = self.layout.groups.len();
        let mut last: Option<(f32, usize)> = None;
        for slot in self.layout.classes[class].slots.clone() {
            let Slot { piece, left, visit } = state.slots[slot];
            if piece == NONE {
                return Some(slot);
            }
            if left > 0 || visit == state.visits {
                continue;
            }
            let ahead = self.layout.pieces[piece as usize].group + groups - state.group;
            // What this visit does not want, the next of this group may.
            let until = if ahead.is_multiple_of(groups) { groups } else { ahead % groups };
            let expected = state.uses[piece as usize].expected(state.cycle, until, groups);
            if last.is_none_or(|(most, _)| expected > most) {
                last = Some((expected, slot));
            }
        }
        last.map(|(_, slot)| slot)
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
            if let Err(error) = self.read_block(job) {
                let _ = self.failure.set(Arc::new(error));
            }
            state = self.state();
            let slot = &mut state.slots[job.slot];
            slot.left -= 1;
            if slot.left == 0 {
                self.arrived.notify_all();
            }
        }
    }

    fn read_block(&self, job: Job) -> Result<(), TransferError> {
        let place = &self.layout.spans[job.span];
        let span = &place.span;
        let blocks = self.layout.aligned(&span.range);
        let from = blocks.start + job.block * BLOCK;
        let len = BLOCK.min(blocks.end - from);
        // The last block of a file may be shorter than those of the disk.
        let need = len.min(span.range.end as usize - from);
        let class = self.layout.classes.iter().find(|class| class.slots.contains(&job.slot));
        let class = class.expect("a slot of some class");
        let start = class.start + (job.slot - class.slots.start) * class.slot_bytes;
        let to = start + place.at + job.block * BLOCK;
        assert!(
            to + len <= start + class.slot_bytes && start + class.slot_bytes <= self.region.len()
        );
        // SAFETY: within the slot, which belongs to the readers until all of its piece has come; each read of it is another part. The
        // region lives as long as `self`.
        unsafe {
            let to = self.region.as_mut_ptr().add(to);
            self.files[span.file].read(from as u64, len, need, to)
        }
    }
}

impl State {
    /// Learns from what was guessed of a group whose visit begins.
    fn judge_guesses(&mut self, group: usize, layout: &Layout, visit: &Visit) {
        for guess in std::mem::replace(&mut self.guesses, [NONE; MOST_GUESSES]) {
            if guess == NONE {
                continue;
            }
            let piece = &layout.groups[group];
            let right = piece.contains(&(guess as usize))
                && visit.slot_of[guess as usize - piece.start] != NONE;
            self.counts.guessed_right += u64::from(right);
            self.trust += (f32::from(u8::from(right)) - self.trust) / 32.0;
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.work.notify_all();
        for reader in self.readers.drain(..) {
            // One that panicked has said so.
            let _ = reader.join();
        }
    }
}
