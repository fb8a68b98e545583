//! The account of this process, interval by interval.

use std::fs;
#[cfg(unix)]
use std::io::Read;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Usage;

/// A moment in the life of this process.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    at: Instant,
    used: Usage,
}

impl Mark {
    /// Returns the current moment.
    pub fn now() -> Mark {
        Mark { at: Instant::now(), used: Usage::of_self() }
    }

    /// Returns the usage since then, by all threads.
    pub fn elapsed(&self) -> Usage {
        Mark::now().since(self)
    }

    /// Returns the usage between an `earlier` moment and this one.
    pub fn since(&self, earlier: &Mark) -> Usage {
        let wall = self.at.saturating_duration_since(earlier.at);
        Usage { wall, ..self.used.since(&earlier.used) }
    }
}

/// A named interval of this process and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Its usage. The peak size is that of the process up to the end of the phase.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The account of this process by contiguous phases.
#[derive(Debug)]
pub struct Phases {
    last: Mark,
    phases: Vec<Phase>,
}

impl Phases {
    /// Begins the first phase. Up to 16 phases are kept without another allocation.
    pub fn start() -> Phases {
        Phases { last: Mark::now(), phases: Vec::with_capacity(16) }
    }

    /// Ends the current phase, names it, and begins the next. Costs two system calls, less than a
    /// microsecond.
    pub fn end(&mut self, name: &'static str) -> Usage {
        let now = Mark::now();
        let usage = now.since(&self.last);
        self.phases.push(Phase { name, usage });
        self.last = now;
        usage
    }

    /// The phases that have ended, in order.
    pub fn list(&self) -> &[Phase] {
        &self.phases
    }
}

/// The resident memory of a process, in bytes. `None` where the system does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Anonymous memory, of this process alone.
    pub rss_anon: Option<u64>,
    /// Mapped pages of files, shared with the page cache.
    pub rss_file: Option<u64>,
    /// Shared memory, including files on tmpfs.
    pub rss_shmem: Option<u64>,
    /// All of it, with pages that several processes use counted in part.
    pub pss: Option<u64>,
    /// The maximum that was resident at a time.
    pub peak_rss: Option<u64>,
}

impl Memory {
    /// Returns the memory of this process, now. Available on Linux. For the proportional sum, the
    /// kernel walks all page tables: milliseconds per gigabyte of small pages.
    pub fn of_self() -> Memory {
        let status = status();
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        Memory {
            rss_anon: kilobytes(&status, "RssAnon:"),
            rss_file: kilobytes(&status, "RssFile:"),
            rss_shmem: kilobytes(&status, "RssShmem:"),
            pss: kilobytes(&rollup, "Pss:"),
            peak_rss: kilobytes(&status, "VmHWM:"),
        }
    }

    /// Returns the bytes of address space that this process uses, now. Available on Linux. Allocates nothing.
    #[cfg(unix)]
    pub fn address_space_of_self() -> Option<u64> {
        let mut text = [0; 128];
        let len = fs::File::open("/proc/self/statm").ok()?.read(&mut text).ok()?;
        let pages: u64 = str::from_utf8(&text[..len]).ok()?.split(' ').next()?.parse().ok()?;
        pages.checked_mul(alight_pages::page_size() as u64)
    }
}

/// The current peak size of this process's image, in bytes; 0 if unknown. (Its ru_maxrss is no help:
/// it includes the peak of the process that started this one.)
#[cfg(target_os = "linux")]
pub(crate) fn own_peak() -> u64 {
    kilobytes(&status(), "VmHWM:").unwrap_or(0)
}

/// The kernel's status of this process; the program's name in it may be anything.
fn status() -> String {
    let text = fs::read("/proc/self/status").unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// Parses the bytes in a line such as `RssAnon:   123 kB`.
pub(crate) fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Converts a time to the unit of the reports.
pub(crate) fn whole_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let status = "VmHWM:\t  1164 kB\nRssAnon:\t      88 kB\nRssFile: x kB\n";
        assert_eq!(kilobytes(status, "RssAnon:"), Some(88 * 1024));
        assert_eq!(kilobytes(status, "RssFile:"), None);
        assert_eq!(kilobytes(status, "Pss:"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_tells() {
        let memory = Memory::of_self();
        assert!(memory.rss_anon.unwrap() > 0 && memory.peak_rss >= memory.rss_anon);
        assert!(memory.pss.unwrap() > 0 && memory.rss_shmem.is_some());
        assert!(Memory::address_space_of_self() > memory.rss_file);
    }
}
