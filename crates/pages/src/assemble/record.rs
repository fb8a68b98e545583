//! Records which parts of a file were cached before it was read, so that the page cache can be left as it
//! was.

use std::fs::File;
use std::ops::Range;

use crate::residency;
use crate::sys;

/// Maximum number of recorded parts. Pages after them are not restored.
const PARTS: usize = 1 << 16;

/// The parts of a file that were not in the page cache when it was checked: usually all of it or nothing.
#[derive(Clone, Debug, Default)]
pub struct Record {
    missing: Vec<Range<u64>>,
}

impl Record {
    /// Checks `file` before any of it is read. The check is exact, and takes some milliseconds for each
    /// gigabyte that is partly cached. Records nothing where the kernel does not report it.
    pub fn of(file: &File) -> Record {
        let look = || {
            let (exact_probe, len) = (residency::exact_probe(file)?, file.metadata().ok()?.len());
            residency::not_cached(file, 0..len, exact_probe).ok()
        };
        let mut missing = look().unwrap_or_default();
        missing.truncate(PARTS);
        Record { missing }
    }

    /// Drops the pages that were not cached before, no matter which process loaded them. Mapped pages
    /// stay.
    pub fn restore(&self, file: &File) {
        for part in &self.missing {
            // If this fails it costs memory, which the system reclaims when it needs it.
            let _ = sys::give_up(file, part);
        }
    }
}
