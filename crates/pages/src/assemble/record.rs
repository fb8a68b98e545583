//! Which parts of a file were cached before it was read, so that the page cache can be left as it was.

use std::fs::File;
use std::ops::Range;

use crate::residency;
use crate::sys;

/// Most parts that are remembered; pages after them are left as they are then.
const PARTS: usize = 1 << 16;

/// The parts of a file that were not in the page cache when they were looked at: all of it, mostly, or
/// nothing.
#[derive(Clone, Debug, Default)]
pub struct Record {
    missing: Vec<Range<u64>>,
}

impl Record {
    /// Looks at `file`, before anything of it is read: exactly, which takes some milliseconds for each
    /// gigabyte that is cached in part. Where the kernel does not tell, nothing is recorded.
    pub fn of(file: &File) -> Record {
        let look = || {
            let (exact_probe, len) = (residency::exact_probe(file)?, file.metadata().ok()?.len());
            residency::not_cached(file, 0..len, exact_probe).ok()
        };
        let mut missing = look().unwrap_or_default();
        missing.truncate(PARTS);
        Record { missing }
    }

    /// Takes out of the page cache what was not in it, whichever process loaded it. Pages that are mapped
    /// stay.
    pub fn restore(&self, file: &File) {
        for part in &self.missing {
            // If it cannot be done, that costs memory, which the system takes when it needs it.
            let _ = sys::give_up(file, part);
        }
    }
}
