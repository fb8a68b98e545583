//! Which piece is in which slot, and which one is evicted when another needs its slot: pure bookkeeping, independent of where the slots are.

use std::ops::Range;

use super::NONE;
use super::expected::{Uses, until};
use super::layout::Layout;

/// The pieces in slots.
pub struct Shelf {
    slots: Vec<ShelfSlot>,
    /// By piece.
    slot_of: Vec<u32>,
    /// By piece.
    uses: Vec<Uses>,
    /// Pieces that this visit wants. They are added to the uses at the next visit, when their number is known.
    wanted: Vec<u32>,
    /// By group: the number of its pieces.
    groups: Vec<u32>,
    /// Number of the current cycle.
    cycle: u64,
    /// The group of the last visit, and the number of visits.
    group: usize,
    visits: u64,
    /// True if each visit wants all pieces of its group: past uses say nothing more.
    whole: bool,
}

#[derive(Clone, Copy)]
struct ShelfSlot {
    piece: u32,
    /// The last visit that wanted it.
    visit: u64,
}

impl Shelf {
    /// Creates a shelf with empty slots.
    pub fn new(layout: &Layout) -> Shelf {
        Shelf {
            slots: vec![ShelfSlot { piece: NONE, visit: 0 }; layout.slots()],
            slot_of: vec![NONE; layout.pieces.len()],
            uses: vec![Uses::default(); layout.pieces.len()],
            wanted: Vec::with_capacity(layout.groups.iter().map(Range::len).max().unwrap_or(0)),
            groups: layout.groups.iter().map(|group| group.len() as u32).collect(),
            cycle: 1,
            group: 0,
            visits: 0,
            whole: false,
        }
    }

    /// Creates a shelf for groups of which each visit wants all pieces. The piece that is wanted last is then that of the group that was just
    /// visited, so that of a cycle that does not fit, only what does not fit is read again.
    pub fn of_cycle(layout: &Layout) -> Shelf {
        Shelf { whole: true, ..Shelf::new(layout) }
    }

    /// Returns in how many visits the group of a piece comes.
    pub(super) fn until(&self, layout: &Layout, piece: usize) -> usize {
        until(layout.pieces[piece].group, self.group, layout.groups.len())
    }

    /// Returns the number of visits so far.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// Begins a visit of a group: pieces that only earlier visits wanted may be evicted.
    pub fn begin(&mut self, group: usize) {
        let (wanted, all) = (self.wanted.len(), self.groups[self.group] as usize);
        for piece in self.wanted.drain(..) {
            self.uses[piece as usize].add(self.cycle, wanted, all);
        }
        self.visits += 1;
        self.cycle += u64::from(self.visits > 1 && group <= self.group);
        self.group = group;
    }

    /// Records that the visit wants a piece. Returns its slot, if it is in one, where it stays.
    pub fn want(&mut self, piece: usize) -> Option<usize> {
        self.wanted.push(piece as u32);
        self.keep(piece)
    }

    /// Keeps a piece in its slot for this visit. Returns the slot, if it is in one.
    pub fn keep(&mut self, piece: usize) -> Option<usize> {
        let slot = self.slot_of(piece)?;
        self.slots[slot].visit = self.visits;
        Some(slot)
    }

    /// Returns the slot of a piece, if it is in one.
    pub fn slot_of(&self, piece: usize) -> Option<usize> {
        match self.slot_of[piece] {
            NONE => None,
            slot => Some(slot as usize),
        }
    }

    /// Returns the piece in a slot.
    pub fn piece_in(&self, slot: usize) -> Option<usize> {
        match self.slots[slot].piece {
            NONE => None,
            piece => Some(piece as usize),
        }
    }

    /// Returns the slot that a piece may have: a free one, or that of the piece whose next use is expected last. `None`: this visit wants all
    /// others, or they are `busy`.
    pub fn victim(
        &self,
        layout: &Layout,
        piece: usize,
        busy: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        self.victim_of(layout, layout.pieces[piece].class, busy)
    }

    /// [`Shelf::victim`] for any piece of a class.
    pub(super) fn victim_of(
        &self,
        layout: &Layout,
        class: usize,
        busy: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let groups = layout.groups.len();
        let mut last: Option<(f32, usize)> = None;
        for slot in layout.classes[class].slots.clone() {
            let ShelfSlot { piece, visit } = self.slots[slot];
            if piece == NONE && !busy(slot) {
                return Some(slot);
            }
            if piece == NONE || visit == self.visits || busy(slot) {
                continue;
            }
            let until = self.until(layout, piece as usize);
            let expected = match self.whole {
                true => until as f32,
                false => self.uses[piece as usize].expected(self.cycle, until, groups),
            };
            if last.is_none_or(|(most, _)| expected > most) {
                last = Some((expected, slot));
            }
        }
        last.map(|(_, slot)| slot)
    }

    /// Gives a slot to a piece, which stays there for this visit. The piece that was there is no longer in any slot.
    pub fn give(&mut self, piece: usize, slot: usize) {
        let given = ShelfSlot { piece: piece as u32, visit: self.visits };
        let before = std::mem::replace(&mut self.slots[slot], given).piece;
        if before != NONE {
            self.slot_of[before as usize] = NONE;
        }
        self.slot_of[piece] = slot as u32;
    }

    /// Removes a piece from its slot.
    pub fn forget(&mut self, piece: usize) {
        if let Some(slot) = self.slot_of(piece) {
            self.slots[slot].piece = NONE;
            self.slot_of[piece] = NONE;
        }
    }
}
