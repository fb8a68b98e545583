//! The number of open slots, limited by the memory that they may use.

use super::Slots;
use super::state::{Shared, State};
use crate::limits;
use crate::policy::FITS_SHARE;

impl Slots {
    /// Limits the memory of slots to `budget` bytes from the next visit on, but keeps space for all pieces of a group. With a smaller
    /// budget, pieces are evicted and the memory of their slots is returned; with a larger one, slots reopen, up to the initial number.
    pub fn set_budget(&self, budget: u64) {
        let mut state = self.shared.state();
        state.fitted &= state.budget == budget;
        state.budget = budget;
    }
}

impl Shared {
    /// Closes and opens slots until they use the permitted memory. Called between two visits. Slots that are being filled, or that hold
    /// pieces read ahead for the next visit, are left to the visit after that.
    pub(super) fn fit(&self, state: &mut State) {
        state.fitted = true;
        // Pieces in the page cache take no memory of slots.
        if state.shared {
            state.available = room_now().min(state.budget);
            self.drop_beyond(state);
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

    /// Drops pieces from the page cache until they take no more than what is available. Those of the last visit are left to the next one.
    fn drop_beyond(&self, state: &mut State) {
        let classes = 0..self.layout.classes.len();
        while state.in_cache > state.available {
            let elsewhere = |slot: usize| !state.slots[slot].cached;
            let victim = |class| state.shelf.victim_of(&self.layout, class, elsewhere);
            let Some(slot) = classes.clone().find_map(victim) else { return };
            let piece = state.shelf.piece_in(slot).expect("a piece in the page cache");
            self.drop_cached(state, slot);
            state.shelf.forget(piece);
        }
    }

    /// Closes a slot that is not being filled, between two visits.
    pub(super) fn close(&self, state: &mut State, slot: usize) {
        if let Some(piece) = state.shelf.piece_in(slot) {
            state.shelf.forget(piece);
        }
        let memory = self.layout.memory_of(slot);
        state.slots[slot].closed = true;
        state.closed.0 += 1;
        state.closed.1 += memory.len() as u64;
        // SAFETY: no visit is running, so there are no references to the slot; nothing is read into it, and nothing will be while it is
        // closed.
        unsafe { self.region.give_back_range(memory) };
    }
}

/// Bytes of the page cache that pieces may use where other processes share them: the available memory, which includes those pages.
pub(super) fn room_now() -> u64 {
    (FITS_SHARE * limits::available().0 as f64) as u64
}
