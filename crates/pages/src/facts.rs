//! Facts that decide how best to read a file, gathered in less than a millisecond when it is opened.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use crate::filesystem::{self, Filesystem};
use crate::limits::{self, LimitSource};
use crate::residency::{self, CacheProbe};

/// Facts about a file at one moment.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Size of the file in bytes.
    pub len: u64,
    /// Bytes of the file in the page cache (whole pages, cut at the file's end). Estimated for a large
    /// file.
    pub cached: u64,
    /// How `cached` was determined; `None`: the system did not report it, and 0 is assumed.
    pub cached_probe: Option<CacheProbe>,
    /// The file system of the file.
    pub filesystem: Filesystem,
    /// Alignment required for direct reads (O_DIRECT) of this file. `None`: the file system does not
    /// report it, or see `direct_refused`.
    pub direct: Option<DirectAlign>,
    /// The file system reports that this file cannot be read directly.
    pub direct_refused: bool,
    /// Bytes of memory that this process can get without swapping, including clean pages of files (also
    /// of this file); `u64::MAX` if the system does not report it.
    pub available: u64,
    /// The source of the limit on `available`.
    pub limit_source: LimitSource,
    /// Time it took to gather the facts.
    pub took: Duration,
}

/// Alignments of direct reads, in bytes, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlign {
    /// Alignment of addresses in memory.
    pub memory: u32,
    /// Alignment of offsets in the file and of lengths.
    pub offset: u32,
}

impl Facts {
    /// Gathers the facts about a file.
    ///
    /// # Errors
    /// The file cannot be inspected. Facts that the system does not report are no error.
    pub fn of(file: &File) -> io::Result<Facts> {
        let began = Instant::now();
        let len = file.metadata()?.len();
        let filesystem = filesystem::of(file);
        let residency = residency::estimate(file, 0..len).ok();
        let (direct, direct_refused) = direct(file);
        let (available, limit_source) = limits::available();
        Ok(Facts {
            len,
            cached: residency.map_or(0, |residency| residency.cached_bytes(len)),
            cached_probe: residency.map(|r| r.probe),
            filesystem,
            direct,
            direct_refused,
            available,
            limit_source,
            took: began.elapsed(),
        })
    }

    /// The part of the file that is in the page cache, 0 to 1.
    pub fn cached_share(&self) -> f64 {
        if self.len == 0 { 1.0 } else { self.cached as f64 / self.len as f64 }
    }
}

/// Returns what statx(2) reports about direct reads (since Linux 6.1): their alignment, and true if they
/// are refused. `(None, false)` if it reports nothing.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn direct(file: &File) -> (Option<DirectAlign>, bool) {
    use std::os::fd::AsRawFd;
    const STATX_DIOALIGN: u32 = 0x2000;
    /// The parts of the kernel's struct that matter: 256 bytes. Older C libraries do not name the two
    /// fields at offset 152.
    #[repr(C, align(8))]
    struct Statx {
        mask: u32,
        before: [u8; 148],
        memory: u32,
        offset: u32,
        after: [u8; 96],
    }
    let mut found = Statx { mask: 0, before: [0; 148], memory: 0, offset: 0, after: [0; 96] };
    // SAFETY: an empty path and AT_EMPTY_PATH mean the open file. The kernel fills 256 bytes, the size of
    // the struct, which outlives the call.
    let status = unsafe {
        libc::syscall(
            libc::SYS_statx,
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            STATX_DIOALIGN,
            std::ptr::from_mut(&mut found),
        )
    };
    if status != 0 || found.mask & STATX_DIOALIGN == 0 {
        return (None, false);
    }
    let (memory, offset) = (found.memory, found.offset);
    if memory.is_power_of_two() && offset.is_power_of_two() {
        (Some(DirectAlign { memory, offset }), false)
    } else {
        (None, true)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn direct(_: &File) -> (Option<DirectAlign>, bool) {
    (None, true)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::filesystem::Kind;
    use std::io::Write;

    #[test]
    fn a_file_on_disk_cold_and_warm() {
        let exe = std::env::current_exe().unwrap();
        let mut file = tempfile::tempfile_in(exe.parent().unwrap()).unwrap();
        let len = (16 << 20) + 100;
        file.write_all(&vec![1; len]).unwrap();
        residency::evict(&file).unwrap();
        let cold = Facts::of(&file).unwrap();
        assert_eq!((cold.len, cold.cached), (len as u64, 0), "{cold:?}");
        residency::warm(&file, 0..len as u64).unwrap();
        let warm = Facts::of(&file).unwrap();
        assert_eq!((warm.cached, warm.cached_share()), (len as u64, 1.0), "{warm:?}");
        assert!(warm.available > 1 << 20, "{warm:?}");
        if warm.filesystem.name == "ext2/3/4" {
            // The alignment comes from the disk's blocks; no disk requires more than a page.
            let direct = warm.direct.unwrap();
            assert!((512..=4096).contains(&direct.offset) && direct.memory <= 4096, "{direct:?}");
        }
    }

    #[test]
    fn a_file_in_memory() {
        let Ok(mut file) = tempfile::tempfile_in("/dev/shm") else {
            eprintln!("skipped: no /dev/shm to write to");
            return;
        };
        file.write_all(&[1; 10_000]).unwrap();
        let facts = Facts::of(&file).unwrap();
        if facts.filesystem.name == "tmpfs" {
            assert_eq!(facts.filesystem.kind, Kind::Memory);
            assert_eq!((facts.cached, facts.direct), (10_000, None), "{facts:?}");
        }
    }

    #[test]
    fn facts_take_less_than_a_millisecond() {
        // Large enough to be sampled.
        let exe = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(exe.parent().unwrap()).unwrap();
        file.set_len(1 << 30).unwrap();
        let best = (0..20).map(|_| Facts::of(&file).unwrap().took).min().unwrap();
        assert!(best < Duration::from_millis(1), "{best:?}");
    }
}
