//! What the processor itself counts, where the kernel lets one ask: on Linux.
//!
//! In virtual machines there is often nothing; then there is nothing here, and no error. Counters
//! begin at exec and hold for all processes that come of it. They make every switch between
//! processes a little dearer, so they are only there if asked for.

#[cfg(target_os = "linux")]
mod perf;

use serde::Serialize;

#[cfg(target_os = "linux")]
pub(crate) use perf::Counters;

/// What may be counted, each under the name that its [`Counter`] has.
pub const NAMES: [&str; 4] = ["instructions", "cycles", "cache misses", "branch misses"];

/// One counter of a program that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// What is counted.
    pub name: &'static str,
    /// How often it happened; estimated from `share` of the time if the processor had not enough
    /// counters for all.
    pub count: u64,
    /// The part of the time that it was counted, in percent.
    pub share: u8,
    /// True if the kernel's work on behalf of the program is left out, because this user may not
    /// see it.
    pub user_only: bool,
}
