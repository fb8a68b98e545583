//! The memory that experts in slots share with what is computed: keys and values, states, and buffers. A plan leaves memory for what a
//! sequence of the usual length needs. Where there is more than that (many sequences, long ones, prompts that are kept, large batches), slots
//! are closed, so that all of it stays within the budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alight_pages::slots::Slots;

/// Bytes that a program has anyway.
pub(crate) const PROGRAM: u64 = 96 << 20;

/// How the budget is divided.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    /// Bytes for slots, if no more is computed than was expected.
    slots: u64,
    /// Bytes for all else.
    expected: u64,
    /// Bytes that all else has.
    taken: AtomicU64,
}

/// What a session or an engine has of it, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct MemoryShare {
    of: Option<Arc<MemoryBudget>>,
    bytes: u64,
}

impl MemoryBudget {
    /// With so many bytes for slots, and for all else.
    pub(crate) fn new(slots: u64, expected: u64) -> MemoryBudget {
        MemoryBudget { slots, expected, taken: AtomicU64::new(PROGRAM) }
    }

    /// Nothing of it.
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
    /// It has so many bytes now.
    pub(crate) fn set(&mut self, bytes: u64, slots: &Slots) {
        if let Some(left) = self.change(bytes) {
            slots.set_budget(left);
        }
    }

    /// Bytes that are left for slots, if that has changed.
    fn change(&mut self, bytes: u64) -> Option<u64> {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let budget = self.of.as_ref().filter(|_| before != bytes)?;
        // It wraps where it is less, and the sum is right.
        budget.taken.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        Some(budget.left())
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        // The slots learn of it when somebody takes something.
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
