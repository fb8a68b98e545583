//! Selects the slot of a piece, and handles the piece that was in it.

use super::layout::SlotPiece;
use super::state::{Shared, Slot, SlotRead, State};
use super::visit::Visit;
use super::{Layout, NONE, ONE_UNWANTED_IN, SlotCounts};

impl Shared {
    /// Returns the bytes that are read for a piece.
    pub(super) fn read_len(&self, piece: usize, cached: bool) -> u64 {
        let SlotPiece { spans, bytes, .. } = &self.layout.pieces[piece];
        match cached {
            true => *bytes,
            false => {
                let spans = self.layout.spans[spans.clone()].iter();
                spans.map(|span| self.layout.aligned(&span.span.range).len() as u64).sum()
            }
        }
    }

    /// Gives a piece the slot and has it read, for a visit or ahead of one.
    pub(super) fn bring(&self, state: &mut State, piece: usize, slot: usize, ahead: bool) {
        let info = &self.layout.pieces[piece];
        self.drop_cached(state, slot);
        let clears = state.shelf.piece_in(slot).is_none();
        state.shelf.give(piece, slot);
        (state.slots[slot].ahead, state.slots[slot].failed) = (ahead, false);
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
                state.queue.push_back(SlotRead { slot, span, block, clears });
            }
        }
        self.work.notify_all();
    }

    /// Returns the slot that a piece may have, unless all others are wanted or being filled.
    pub(super) fn victim(&self, state: &State, piece: usize) -> Option<usize> {
        // A read into the page cache can be abandoned at any time.
        let busy = |slot: usize| {
            let Slot { left, cached, closed, .. } = state.slots[slot];
            closed || left > 0 && !cached
        };
        // If there is less memory than slots, another piece is evicted even if a slot is free.
        let full = state.in_cache + self.layout.pieces[piece].bytes > state.available;
        let taken = |slot: usize| busy(slot) || state.shelf.piece_in(slot).is_none();
        let of_full = full.then(|| state.shelf.victim(&self.layout, piece, taken)).flatten();
        of_full.or_else(|| state.shelf.victim(&self.layout, piece, busy))
    }

    /// Takes a piece out of its slot if it could not be read, so that it is read again.
    pub(super) fn forget_failed(&self, state: &mut State, piece: usize) {
        let Some(slot) = state.shelf.slot_of(piece) else { return };
        let Slot { left: 0, failed: true, .. } = state.slots[slot] else { return };
        self.drop_cached(state, slot);
        state.shelf.forget(piece);
    }

    /// Drops the piece of a slot from the page cache, if it is there. It stays there if another process uses it.
    pub(super) fn drop_cached(&self, state: &mut State, slot: usize) {
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
}

impl State {
    /// True if this many more bytes may turn out to be read for nothing.
    pub(super) fn may_be_unwanted(&self, bytes: u64) -> bool {
        let SlotCounts { read_bytes, unwanted_bytes, .. } = self.counts;
        (unwanted_bytes + bytes).saturating_mul(ONE_UNWANTED_IN) <= read_bytes
    }

    /// Counts the right guesses for a group whose visit begins.
    pub(super) fn judge_guesses(&mut self, group: usize, layout: &Layout, visit: &Visit) {
        let pieces = &layout.groups[group];
        let is_wanted =
            |piece: usize| pieces.contains(&piece) && visit.slot_of[piece - pieces.start] != NONE;
        self.counts.guessed_right += self.guesses.judge(is_wanted);
    }
}
