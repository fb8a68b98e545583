//! The memory that experts in slots share with everything else that is computed: keys and values, states, and buffers. A plan
//! leaves memory for a sequence of the usual length. If more is needed (many sequences, long ones, prompts that are kept, large
//! batches), slots are closed, so that the total stays within the budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alight_pages::slots::Slots;

/// Bytes that a program uses in any case.
pub(crate) const PROGRAM: u64 = 96 << 20;

/// The division of the budget.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    /// Bytes for slots, if everything else uses no more than expected.
    slots: u64,
    /// Expected bytes of everything else.
    expected: u64,
    /// Bytes that everything else uses.
    taken: AtomicU64,
}

/// The share of a session or an engine, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct MemoryShare {
    of: Option<Arc<MemoryBudget>>,
    bytes: u64,
}

impl MemoryBudget {
    /// Creates a budget with `slots` bytes for slots and `expected` bytes for everything else.
    pub(crate) fn new(slots: u64, expected: u64) -> MemoryBudget {
        MemoryBudget { slots, expected, taken: AtomicU64::new(PROGRAM) }
    }

    /// An empty share.
    pub(crate) fn nothing(self: &Arc<MemoryBudget>) -> MemoryShare {
        MemoryShare { of: Some(Arc::clone(self)), bytes: 0 }
    }

    /// Bytes that are left for slots.
    fn left(&self) -> u64 {
        let beyond = self.taken.load(Ordering::Relaxed).saturating_sub(self.expected);
        self.slots.saturating_sub(beyond)
    }
}

impl MemoryShare {
    /// Sets the share to `bytes`, and the budget of `slots` to the rest.
    pub(crate) fn set(&mut self, bytes: u64, slots: &Slots) {
        if let Some(left) = self.change(bytes) {
            slots.set_budget(left);
        }
    }

    /// Changes the share. Returns the bytes that are left for slots, if the share has changed.
    fn change(&mut self, bytes: u64) -> Option<u64> {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let budget = self.of.as_ref().filter(|_| before != bytes)?;
        // The difference wraps if the share shrinks; the sum is still correct.
        budget.taken.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        Some(budget.left())
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        // The slots are updated when another share changes.
        if let Some(budget) = &self.of {
            budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_costs_no_slots_and_all_else_does() {
        let budget = Arc::new(MemoryBudget::new(1000, PROGRAM + 100));
        let (mut one, mut other) = (budget.nothing(), budget.nothing());
        assert_eq!(
            [one.change(60), other.change(40), one.change(60)],
            [Some(1000), Some(1000), None]
        );
        assert_eq!([one.change(70), other.change(400)], [Some(990), Some(630)]);
        assert_eq!([one.change(60), other.change(4000)], [Some(640), Some(0)]);
        drop(other);
        assert_eq!(one.change(90), Some(1000));
    }
}
