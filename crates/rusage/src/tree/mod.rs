//! The peak memory of a program and of everything that it starts, at the same time. Linux only.
//!
//! The kernel's account of a process has the peak of its largest child, not the sum. There are two ways to
//! get the sum, and they do not measure the same:
//! - a control group of its own (cgroup version 2, kernel 5.19): the kernel records the exact peak of all
//!   memory that is charged to the group, which includes page cache that the program was the first to
//!   load, and the kernel's own structures;
//! - sampling the processes' proportional sizes (PSS), shared pages counted once: peaks between two
//!   samples are missed. Processes that detach themselves are adopted by this one until the program has
//!   ended, so that they are sampled: getppid(2) returns this process's number to them, and not 1.

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod sample;

use serde::Serialize;

#[cfg(target_os = "linux")]
pub(crate) use {cgroup::Cgroup, sample::Sampler};

/// The maximum memory that a tree of processes had at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TreePeak {
    /// Bytes.
    pub bytes: u64,
    /// How it was measured.
    pub how: PeakMethod,
    /// Number of samples; 0 for a control group, where the kernel records the peak.
    pub samples: u64,
    /// Number of processes that the program has left running at its end: daemons and background processes.
    /// Memory that they need afterwards is not in the peak.
    pub left: u64,
}

impl TreePeak {
    /// The peak, but no less than that of the largest process: samples may miss it, and they count a part of the pages that it shares.
    #[cfg(target_os = "linux")]
    pub(crate) fn at_least(self, largest: u64) -> TreePeak {
        TreePeak { bytes: self.bytes.max(largest), ..self }
    }
}

/// How the peak of a tree was measured; see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeakMethod {
    /// `memory.peak` of a control group, page cache included.
    Cgroup,
    /// The largest sum of PSS in the samples.
    Pss,
}
