//! The memory that a run uses: a note beforehand if there is too little, and a line in the statistics.

use alight_model::{KvType, Model};
use rusage::Memory;

use crate::needs::{Held, fits};
use crate::{say, units};

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
    let needed = held.all();
    if needed <= available {
        return None;
    }
    let what = if mapped > available {
        "weights are read from the disk again for each token, which is slow: take a model of a smaller \
         type (`alight quantize`), or close other programs"
    } else {
        "that is for a conversation that fills the context: give a smaller -c, or --cache-type q8_0 or q4r"
    };
    Some(format!(
        "this needs {} (weights {}, {} tokens {}), {}: {what}",
        units::bytes(needed),
        units::bytes(mapped),
        units::grouped(context),
        units::bytes(keys_and_values),
        fits(needed, Some(available)),
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
            "this needs 3.90 GB (weights 3.00 GB, 32,768 tokens 900 MB), more than the memory available, 2.10 GB: weights"
        ));
        assert!(too_much(held, 32768, 3_500_000_000).unwrap().contains("smaller -c"));
    }
}
