//! What this process has taken so far, as the system tells it. Where it does not, there is nothing.

use std::fs;

use serde::Serialize;

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Memory {
    /// Of this process alone.
    pub rss_anon: Option<u64>,
    /// Mapped pages of files, shared with the page cache.
    pub rss_file: Option<u64>,
    /// All of it, pages that several processes use counted in part.
    pub pss: Option<u64>,
    /// The most that was resident at a time.
    pub peak_rss: Option<u64>,
}

/// Page faults since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// That found their page in memory.
    pub minor: u64,
    /// That had to read it from a disk.
    pub major: u64,
}

/// The memory in use now.
pub fn memory() -> Memory {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    Memory {
        rss_anon: kilobytes(&status, "RssAnon:"),
        rss_file: kilobytes(&status, "RssFile:"),
        pss: kilobytes(&rollup, "Pss:"),
        peak_rss: kilobytes(&status, "VmHWM:"),
    }
}

/// The page faults of all threads.
pub fn faults() -> Option<Faults> {
    Some(stat("self")?.faults)
}

/// Bytes that this process made the system read from disks.
pub fn bytes_read() -> Option<u64> {
    bytes_read_by("self")
}

/// Bytes that a process (its number, or `self`) made the system read from disks.
pub fn bytes_read_by(process: &str) -> Option<u64> {
    let io = fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

/// What the system says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// It has ended, and nobody has taken its exit status yet.
    pub ended: bool,
    /// Its page faults, of all threads.
    pub faults: Faults,
}

/// Of a process (its number, or `self`).
pub fn stat(process: &str) -> Option<Stat> {
    stat_in(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// The bytes in a line such as `RssAnon:   123 kB`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// From the line of `/proc/PID/stat`: `pid (name) state …`.
fn stat_in(line: &str) -> Option<Stat> {
    // The name may hold anything; behind it, the state is the first field, and the eighth and the
    // tenth count faults.
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let minor = fields.nth(6)?.parse().ok()?;
    let major = fields.nth(1)?.parse().ok()?;
    Some(Stat { ended, faults: Faults { minor, major } })
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
        let stat = "12 (a) b) c) R 1 2 3 4 5 4194304 77 0 5 0 10";
        let faults = Faults { minor: 77, major: 5 };
        assert_eq!(stat_in(stat), Some(Stat { ended: false, faults }));
        assert_eq!(stat_in("12 (a"), None);
        let ended = stat_in("7 (a) Z 1 2) Z 1 2 3 4 5 6 701 8 901 10 11").unwrap();
        assert!(ended.ended);
        assert_eq!((ended.faults.minor, ended.faults.major), (701, 901));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_tells() {
        let (before, memory) = (faults().unwrap(), memory());
        assert!(memory.rss_anon.unwrap() > 0 && memory.peak_rss >= memory.rss_anon);
        let touched = vec![1u8; 64 << 20];
        assert!(std::hint::black_box(&touched).iter().all(|&b| b == 1));
        assert!(faults().unwrap().minor > before.minor);
    }
}
