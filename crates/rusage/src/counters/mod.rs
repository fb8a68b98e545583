//! Hardware counters of the processor, where the kernel gives access to them: on Linux.
//!
//! Virtual machines often have none; then there are none here, and no error. Counters begin at
//! exec and include all processes that descend from it. They make every switch between processes
//! slightly more expensive, so they are only used on request.

#[cfg(target_os = "linux")]
mod perf;

use serde::Serialize;

#[cfg(target_os = "linux")]
pub(crate) use perf::Counters;

/// The possible counters, each under the name that its [`Counter`] has.
pub const NAMES: [&str; 4] = ["instructions", "cycles", "cache misses", "branch misses"];

/// One counter of a program that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// The name of the event.
    pub name: &'static str,
    /// Number of events; estimated from `share` of the time if the processor did not have enough
    /// counters for all.
    pub count: u64,
    /// The part of the time that it was counted, in percent.
    pub share: u8,
    /// True if the kernel's work on behalf of the program is left out, because this user may not
    /// observe it.
    pub user_only: bool,
}
