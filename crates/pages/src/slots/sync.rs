//! The locks and threads of slots: the standard library's, or loom's under loom, which tries every order of events (`orders`).

#[cfg(all(loom, test))]
pub(super) use loom::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle},
};
#[cfg(not(all(loom, test)))]
pub(super) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle},
};

/// Loom does not see the bytes of slots. So there is a cell for each span of a piece in a slot. It is written and read when those
/// bytes are, and fails on an unordered access. Under loom all pieces have the same number of spans. Otherwise this is empty.
pub(super) struct Watch {
    #[cfg(all(loom, test))]
    cells: Vec<Vec<loom::cell::UnsafeCell<()>>>,
}

#[cfg(all(loom, test))]
// SAFETY: this is what loom checks: its cells fail on an unordered access.
unsafe impl Sync for Watch {}

#[cfg(not(all(loom, test)))]
impl Watch {
    pub(super) fn new(_slots: usize, _spans: usize) -> Watch {
        Watch {}
    }

    pub(super) fn written(&self, _slot: usize, _span: usize) {}

    pub(super) fn read(&self, _slot: usize, _span: usize) {}
}

#[cfg(all(loom, test))]
impl Watch {
    pub(super) fn new(slots: usize, spans: usize) -> Watch {
        let of_slot = |_| (0..spans).map(|_| loom::cell::UnsafeCell::new(())).collect();
        Watch { cells: (0..slots).map(of_slot).collect() }
    }

    fn cell(&self, slot: usize, span: usize) -> &loom::cell::UnsafeCell<()> {
        &self.cells[slot][span % self.cells[slot].len()]
    }

    pub(super) fn written(&self, slot: usize, span: usize) {
        self.cell(slot, span).with_mut(|_| ());
    }

    pub(super) fn read(&self, slot: usize, span: usize) {
        self.cell(slot, span).with(|_| ());
    }
}
