//! A visit of a group: the pieces that it finds, waits for, reads ahead and guesses.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::budget::room_now;
#[cfg(target_os = "linux")]
use super::ring::Ring;
use super::state::{Shared, Slot, State};
use super::sync::MutexGuard;
use super::{COMING, LOOK, MAX_GUESSES, NONE, Slots};
use crate::transfer::TransferError;

/// Counts of the pieces that a visit has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of pieces that it wants.
    pub wanted: u32,
    /// Number of those that were resident, and had not been guessed.
    pub hits: u32,
    /// Number of those that had been read ahead for it, or were being read.
    pub guessed: u32,
}

impl Found {
    /// Number of pieces that had to be read, or that an earlier visit had not waited for.
    pub fn missed(&self) -> u32 {
        self.wanted - self.hits - self.guessed
    }
}

/// The state of a visit.
pub(super) struct Visit {
    /// By piece of the group: its slot; [`NONE`] if it is not wanted.
    pub(super) slot_of: Vec<u32>,
    /// By piece of the group: true if all of it is resident.
    pub(super) here: Vec<bool>,
    /// By piece of the group: true if it is in the page cache.
    pub(super) cached: Vec<bool>,
    /// True if all wanted pieces are resident.
    pub(super) all_here: bool,
    /// The counts at its beginning.
    pub(super) found: Found,
    /// The ring that reads, unless separate threads do.
    #[cfg(target_os = "linux")]
    pub(super) ring: Option<Ring>,
    /// The reason why one of the pieces could not be read.
    pub(super) failure: Option<Arc<TransferError>>,
    /// See [`SlotOptions`].
    pub(super) shuffled: Option<u64>,
    pub(super) guess: bool,
}

/// A visit of a group, whose pieces stay in place until it ends.
pub struct HeldGroup<'s> {
    slots: &'s Slots,
    group: usize,
    visit: MutexGuard<'s, Visit>,
}

impl Slots {
    /// Begins a visit: pieces `wanted` of `group` stay in their slots, or are read into slots. A piece may be named twice.
    ///
    /// # Panics
    /// If there is no such group or piece.
    pub fn hold(&self, group: usize, wanted: impl Iterator<Item = usize>) -> HeldGroup<'_> {
        let mut visit = self.visit.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let pieces = shared.layout.groups[group].clone();
        visit.slot_of.fill(NONE);
        visit.here.fill(false);
        visit.all_here = true;
        visit.found = Found::default();
        visit.failure = None;
        let mut state = shared.state();
        visit.turn(shared, &mut state);
        if state.shelf.visits().is_multiple_of(LOOK) && shared.cached.is_some() {
            state = visit.look_around(shared, state);
        }
        if !state.fitted {
            shared.fit(&mut state);
        }
        state.shelf.begin(group);
        // First the resident pieces, so that they stay.
        for index in wanted {
            assert!(index < pieces.len(), "piece {index} of {}", pieces.len());
            if visit.slot_of[index] != NONE {
                continue;
            }
            let piece = pieces.start + index;
            state.counts.wanted += 1;
            visit.found.wanted += 1;
            shared.forget_failed(&mut state, piece);
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
                        // The slots are busy with pieces that an earlier visit wanted and did not wait for. All pieces of a group fit, so
                        // these will arrive.
                        None => state = visit.wait(shared, state),
                    }
                };
                shared.bring(&mut state, piece, slot, false);
                // The disk has work while a slot is sought for the next piece.
                visit.turn(shared, &mut state);
                visit.slot_of[index] = slot as u32;
                visit.cached[index] = state.slots[slot].cached;
                visit.all_here = false;
            }
        }
        state.judge_guesses(group, &shared.layout, &visit);
        drop(state);
        HeldGroup { slots: self, group, visit }
    }
}

impl HeldGroup<'_> {
    /// True if a piece is resident.
    pub fn is_here(&self, piece: usize) -> bool {
        self.visit.here[piece]
    }

    /// True if all wanted pieces are resident.
    pub fn all_here(&self) -> bool {
        self.visit.all_here
    }

    /// The counts at the beginning of the visit.
    pub fn found(&self) -> Found {
        self.visit.found
    }

    /// The reason why a piece that is resident could not be read, if there is one: its bytes may be anything. It is read again when another visit
    /// wants it.
    pub fn failure(&self) -> Option<Arc<TransferError>> {
        self.visit.failure.clone().or_else(|| self.slots.shared.check_used().map(Arc::new))
    }

    /// Returns when all pieces have arrived, or have failed: see [`HeldGroup::failure`].
    pub fn wait(&mut self) {
        while !self.visit.all_here {
            self.wait_for_more();
        }
    }

    /// Returns when more of the pieces are resident than before, in whatever order they arrive; at once, if all are. A piece that could
    /// not be read counts as resident: see [`HeldGroup::failure`].
    pub fn wait_for_more(&mut self) {
        if self.visit.all_here {
            return;
        }
        let shared = &*self.slots.shared;
        let mut state = shared.state();
        let mut began = None;
        self.visit.turn(shared, &mut state);
        while !self.visit.look(&mut state) {
            began.get_or_insert_with(Instant::now);
            state = self.visit.wait(shared, state);
        }
        state.counts.waited += began.map_or(Duration::ZERO, |began| began.elapsed());
    }

    /// True if naming the pieces that may be wanted next is useful: the disk is idle, and little was read for nothing.
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

    /// Names the pieces of a group that the next visit may want, likeliest first, each with a class from 0 to 31 for how sure that is. A
    /// few non-resident ones are read ahead, of classes that were mostly right before. No piece of this visit is evicted for that.
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
            // There may be none: this visit may hold all slots.
            let slot = suits.then(|| shared.victim(&state, piece)).flatten();
            // Pieces that are not read are judged too.
            state.guesses.add(piece, class, slot.is_some());
            if let Some(slot) = slot {
                left -= 1;
                state.counts.guessed += 1;
                shared.bring(&mut state, piece, slot, true);
                self.visit.turn(shared, &mut state);
            }
        }
    }

    /// Has pieces of another group read that the next visit will want, after those that this one waits for. Those that are resident stay
    /// until then, and no piece of this visit is evicted for them; pieces that find no slot are left to the next visit.
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

    /// Has missing pieces of the groups that are visited next read, in that order, as long as no more than `bytes` are on their way, or one piece. A
    /// piece is only read ahead into the slot of one that is wanted later. For groups of which each visit wants all pieces: see
    /// [`SlotOptions::whole`](super::SlotOptions::whole).
    pub fn read_on(&mut self, bytes: u64) {
        let shared = &*self.slots.shared;
        let layout = &shared.layout;
        let mut state = shared.state();
        let size = |piece: usize| layout.pieces[piece].bytes;
        // Including those that have arrived, until they are wanted.
        let coming = |(slot, held): (usize, &Slot)| match held.left > 0 || held.ahead {
            true => state.shelf.piece_in(slot).map(size),
            false => None,
        };
        let mut coming: u64 = state.slots.iter().enumerate().filter_map(coming).sum();
        for ahead in 1..layout.groups.len() {
            for piece in layout.groups[(self.group + ahead) % layout.groups.len()].clone() {
                if state.shelf.slot_of(piece).is_some() {
                    continue;
                }
                if coming > 0 && coming + size(piece) > bytes {
                    return;
                }
                let Some(slot) = shared.victim(&state, piece) else { return };
                let until = |piece: usize| state.shelf.until(layout, piece);
                if state.shelf.piece_in(slot).is_some_and(|other| until(other) <= until(piece)) {
                    return;
                }
                shared.bring(&mut state, piece, slot, true);
                coming += size(piece);
                self.visit.turn(shared, &mut state);
            }
        }
    }

    /// The bytes of a span of a piece.
    ///
    /// # Panics
    /// If the piece is not resident.
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
        // SAFETY: within the region, which lives as long as `shared`. Nothing writes to the slot: all of it has arrived, and only another
        // visit gives it to another piece. Pending reads go to other slots, to which this creates no reference.
        unsafe {
            let start = shared.region.as_mut_ptr().add(place.start);
            std::slice::from_raw_parts(start, place.len())
        }
    }
}

impl Visit {
    pub(super) fn has_ring(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.ring.is_some();
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Returns true if more pieces have arrived than before.
    pub(super) fn look(&mut self, state: &mut State) -> bool {
        if self.shuffled.is_some() {
            let come = |slot: u32| slot != NONE && state.slots[slot as usize].left == 0;
            let next = self.look_shuffled(&come);
            return next.map(|slot| self.note(state, slot)).is_some();
        }
        let (mut more, mut all) = (false, true);
        for index in 0..self.slot_of.len() {
            let slot = self.slot_of[index];
            if slot != NONE && !self.here[index] {
                let here = state.slots[slot as usize].left == 0;
                if here {
                    self.note(state, slot);
                }
                self.here[index] = here;
                more |= here;
                all &= here;
            }
        }
        self.all_here = all;
        more
    }

    /// Records it if the piece in a slot, which has arrived for this visit, could not be read.
    fn note(&mut self, state: &mut State, slot: u32) {
        if state.slots[slot as usize].failed {
            self.failure.clone_from(&state.error);
            state.failure.clone_from(&state.error);
            state.failures += 1;
        }
    }

    /// [`Visit::look`], for tests: once all have arrived, they become available one after another.
    /// Returns the slot of the piece that has become available.
    fn look_shuffled(&mut self, come: &dyn Fn(u32) -> bool) -> Option<u32> {
        let late = || (0..self.here.len()).filter(|i| self.slot_of[*i] != NONE && !self.here[*i]);
        let count = late().count();
        if count == 0 || !late().all(|i| come(self.slot_of[i])) {
            return None;
        }
        let seed = self.shuffled.unwrap_or(0).wrapping_mul(6_364_136_223_846_793_005) + 1;
        let next = late().nth((seed >> 33) as usize % count)?;
        self.here[next] = true;
        (self.shuffled, self.all_here) = (Some(seed), count == 1);
        Some(self.slot_of[next])
    }

    /// Takes completed reads, and submits pending ones, unless separate threads read.
    pub(super) fn turn(&mut self, shared: &Shared, state: &mut State) {
        #[cfg(target_os = "linux")]
        if let Some(ring) = &mut self.ring {
            ring.turn(shared, state);
        }
        let _ = (shared, state);
    }

    /// Checks whether another process has pieces of the same files by now, and how much memory there is for the shared files.
    pub(super) fn look_around<'s>(
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
            // SAFETY: no visit is running, so there are no references to slots; all reads are done, and new ones begin with this lock
            // held.
            unsafe { shared.region.give_back() };
            state.shared = true;
        }
        if state.shared {
            state.available = room_now().min(state.budget);
        }
        state
    }

    /// Waits until something has arrived, perhaps not all of a piece.
    pub(super) fn wait<'s>(
        &mut self,
        shared: &'s Shared,
        mut state: MutexGuard<'s, State>,
    ) -> MutexGuard<'s, State> {
        // Of the pieces in the page cache, those that this visit wants come first.
        let wants = |slot: &u32| self.slot_of.contains(slot);
        let next = state.asked.iter().position(wants).unwrap_or(0);
        if let (Some(slot), Some(cached)) = (state.asked.remove(next), &shared.cached) {
            let piece = state.shelf.piece_in(slot as usize).expect("a slot that is being filled");
            drop(state);
            let read = cached.fetch(&shared.layout, piece);
            let mut state = shared.state();
            state.ended(slot as usize, read);
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
    pub(super) fn is_idle(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.ring.as_ref().is_none_or(Ring::is_idle);
        #[cfg(not(target_os = "linux"))]
        true
    }
}
