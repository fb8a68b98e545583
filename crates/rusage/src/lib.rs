//! The cost of a process, from the kernel's own counters.
//!
//! [`Command::run`] runs a program to its end and returns its account, [`Ended`]; [`wait`] does the same
//! for a child that was started elsewhere. [`Mark`] and [`Phases`] account for this process, interval by
//! interval; [`Memory`] splits its resident memory. [`Summary`] is the median and spread of repeated
//! measurements. [`ReportingAllocator`] is for a process that says so when the system refuses it memory, and [`release_free_memory`] for one that
//! works in bursts.
//!
//! **Invariant:** the library prints nothing; the command `rusage` prints only on stderr or into the file
//! of `-o`.
//!
//! **Invariant:** a command's standard streams, signal dispositions, blocked signals and open files are
//! those that it would have without us. A signal that a terminal sends reaches it directly; any other that
//! can be handled is passed on. The wrapper outlives the command, and ends as the command did.
//!
//! **Invariant:** nothing is guessed. The clock is monotonic, times are durations, sizes are bytes; a
//! value that a system does not report is `None` or zero, as documented at each field, and a file that
//! must be cold is proven cold, or the command is not run.
//!
//! # Accuracy of the numbers
//! - The kernel's share of processor time is sampled at clock ticks on most systems: below
//!   [`SPLIT_RELIABLE`] of processor time it means little (the sum is exact).
//! - The peak size of a child begins at the size of the process that made it, because exec folds the old
//!   image's peak into the new one's. [`Ended::floor`] is that size; a peak at or below it means only "at
//!   most this". A measuring program must be small to measure small programs.
//! - The counters of a child contain those of its own children that it has waited for, and no others; the
//!   peak size is that of the largest single one, not of their sum ([`tree`] has that).

#![cfg(any(unix, windows))]

mod account;
mod allocator;
mod command;
pub mod counters;
#[cfg(unix)]
pub mod inherited;
mod lines;
mod summary;
pub mod tree;
mod usage;

pub use account::{Mark, Memory, Phase, Phases};
pub use allocator::{ReportingAllocator, release_free_memory};
pub use command::signals;
pub use command::{Command, Ended, IoBytes, Options, RunError, Status, wait};
pub use lines::{TimeUnit, lines, thousands};
pub use summary::{Summary, quantile};
pub use usage::{SPLIT_RELIABLE, Usage};
