//! Threads: their number, and the note if the system refuses some.

use std::num::NonZero;
use std::sync::Once;
use std::thread::available_parallelism;

use alight_model::MAX_THREADS;
use alight_pages::Threads;

use crate::say;

/// Parses a number of threads.
pub fn number(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=MAX_THREADS) => Ok(n),
        _ => Err(format!("expected a number from 1 to {MAX_THREADS}")),
    }
}

/// Returns the given number, or one for each processor.
pub fn or_all(given: Option<usize>) -> usize {
    given.unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get))
}

/// Prints, once for the whole command, that the system provided fewer threads than requested.
pub fn note(threads: Threads) {
    static SAID: Once = Once::new();
    if threads.is_short() {
        SAID.call_once(|| {
            say::note(&format!(
                "the system gave {} of {} threads: a limit on processes (ulimit -u, or of the control \
                 group) or on the address space (ulimit -v) is reached; the result is the same, and takes longer",
                threads.had, threads.wanted
            ));
        });
    }
}
