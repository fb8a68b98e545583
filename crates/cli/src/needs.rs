//! The memory that a model and a conversation need.

use alight_model::{KvType, Model, ModelSpec, Stored};
use serde::Serialize;

use crate::units;

/// The memory that a model and a conversation hold, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Mapped files.
    pub mapped: u64,
    /// Keys, values and states of the given positions.
    pub keys_and_values: u64,
}

impl Held {
    /// Returns the memory for this number of positions.
    pub fn of(model: &Model, positions: usize, cache: KvType) -> Held {
        Held::of_spec(model.spec(), model.file_bytes(), positions, cache)
    }

    /// The same of a model that is not open, whose files have `mapped` bytes.
    pub fn of_spec(spec: &ModelSpec, mapped: u64, positions: usize, cache: KvType) -> Held {
        Held { mapped, keys_and_values: stored(spec, positions, cache) }
    }

    /// Returns the sum.
    pub fn all(&self) -> u64 {
        self.mapped.saturating_add(self.keys_and_values)
    }
}

/// Returns a clause about this much memory, and what is available on this machine; `None`: the system does not report it.
pub fn fits(needed: u64, available: Option<u64>) -> String {
    match available {
        None => "this system does not report its memory".to_owned(),
        Some(available) if needed <= available => {
            format!("fits in memory: {} available", units::bytes(available))
        }
        Some(available) => format!("more than the memory available, {}", units::bytes(available)),
    }
}

/// Returns the memory that is available on this machine; `None`: the system does not report it.
pub fn available() -> Option<u64> {
    Some(alight_pages::available_memory().0).filter(|available| *available != u64::MAX)
}

/// Returns the bytes of keys, values and states.
fn stored(spec: &ModelSpec, positions: usize, cache: KvType) -> u64 {
    let of_layer = |stored: Stored| stored.kept_of(positions).saturating_mul(stored.bytes) as u64;
    let halves = spec.stored().map(of_layer).fold(0, u64::saturating_add);
    let kept = match cache {
        KvType::F16 => halves,
        KvType::F32 => halves.saturating_mul(2),
        // 32 bytes and a two-byte scale for 32 values of two bytes.
        KvType::Q8_0 => halves / 64 * 34,
        // 16 bytes and the scale.
        KvType::Q4R => halves / 64 * 18,
    };
    let states: usize = spec.states().sum();
    kept.saturating_add(states as u64)
}
