//! The memory that a run uses: a note beforehand if there is too little, and a line in the statistics.

use alight_model::spec::ModelSpec;
use alight_model::{KvType, Model};
use rusage::Memory;
use serde::Serialize;

use crate::{say, units};

/// The memory that a model and a conversation hold, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Mapped files.
    pub mapped: u64,
    /// Keys, values and states of the given positions.
    pub keys_and_values: u64,
}

impl Held {
    /// Returns the memory for this number of positions. Layers with a sliding window may hold less.
    pub fn of(model: &Model, positions: usize, cache: KvType) -> Held {
        Held { mapped: model.file_bytes(), keys_and_values: stored(model.spec(), positions, cache) }
    }
}

/// Returns the bytes of keys, values and states.
fn stored(spec: &ModelSpec, positions: usize, cache: KvType) -> u64 {
    let halves: usize = spec.stored_per_position().sum();
    let position = match cache {
        KvType::F16 => halves,
        // 32 bytes and a two-byte scale for 32 values of two bytes.
        KvType::Q8_0 => halves * 34 / 64,
    };
    let states: usize = spec.states().sum();
    (positions as u64).saturating_mul(position as u64).saturating_add(states as u64)
}

/// Prints a note if a model and a whole context need more memory than is available.
pub fn note(model: &Model, context: usize, cache: KvType) {
    let report = model.load_report();
    let available = report.files.iter().map(|file| file.facts.available).min().unwrap_or(u64::MAX);
    // Experts that are read when they are chosen never exceed the available memory.
    if report.slots.is_none()
        && let Some(text) = too_much(Held::of(model, context, cache), context, available)
    {
        say::note(&text);
    }
}

/// Returns the note if `held` is more than `available`; the advice depends on which part is too large.
fn too_much(held: Held, context: usize, available: u64) -> Option<String> {
    let Held { mapped, keys_and_values } = held;
    let needed = mapped.saturating_add(keys_and_values);
    if needed <= available {
        return None;
    }
    let what = if mapped > available {
        "weights are read from the disk again for each token, which is slow: take a model of a smaller \
         type (`alight quantize`), or close other programs"
    } else {
        "that is for a conversation that fills the context: give a smaller -c, or --cache-type q8_0"
    };
    Some(format!(
        "this needs {} (weights {}, {} tokens {}), {} available: {what}",
        units::bytes(needed),
        units::bytes(mapped),
        units::grouped(context),
        units::bytes(keys_and_values),
        units::bytes(available),
    ))
}

/// Returns the line of the statistics.
pub fn line(held: Held) -> String {
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), units::bytes);
    let Memory { rss_anon, rss_file, peak_rss, .. } = Memory::of_self();
    format!(
        "memory       {} mapped, {} of files resident; {} anonymous, with keys and values of {}; peak {}",
        units::bytes(held.mapped),
        known(rss_file),
        known(rss_anon),
        units::bytes(held.keys_and_values),
        known(peak_rss),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_said_with_what_to_do() {
        let held = Held { mapped: 3_000_000_000, keys_and_values: 900_000_000 };
        assert_eq!(too_much(held, 32768, 3_900_000_000), None);
        let small = too_much(held, 32768, 2_100_000_000).unwrap();
        assert!(small.starts_with(
            "this needs 3.90 GB (weights 3.00 GB, 32,768 tokens 900 MB), 2.10 GB available: weights"
        ));
        assert!(too_much(held, 32768, 3_500_000_000).unwrap().contains("smaller -c"));
    }
}
