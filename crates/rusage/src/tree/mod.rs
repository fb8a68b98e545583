//! The peak memory of a program and of everything that it starts, at the same time. Linux tells; elsewhere
//! there is nothing here.
//!
//! The kernel's account of a process has the peak of its largest child, not the sum. Two ways lead to
//! the sum, and they do not measure the same:
//! - a control group of its own (cgroup version 2, kernel 5.19): the kernel keeps the peak, exactly, of
//!   all memory that is charged to the group, which includes page cache that the program was the first
//!   to bring in, and the kernel's own structures;
//! - sampling the processes' proportional sizes (PSS), shared pages counted once: what peaks between
//!   two samples is missed. Processes that detach themselves are adopted by this one until the program
//!   has ended, so that they are seen: getppid(2) tells them this process's number, and not 1.

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod sample;

use serde::Serialize;

#[cfg(target_os = "linux")]
pub(crate) use {cgroup::Cgroup, sample::Sampler};

/// The most memory that a tree of processes had at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TreePeak {
    /// Bytes.
    pub bytes: u64,
    /// How that is known.
    pub how: PeakMethod,
    /// Times that it was looked at; 0 for a control group, where the kernel does.
    pub samples: u64,
    /// Processes that the program has left running at its end: daemons, and what it put into the
    /// background. What they need afterwards is not in the peak.
    pub left: u64,
}

/// How the peak of a tree is known; see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeakMethod {
    /// `memory.peak` of a control group, page cache included.
    Cgroup,
    /// The largest sum of PSS that was seen.
    Pss,
}
