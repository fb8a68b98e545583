//! Syncs the destination to the disk window by window, and drops each window from the page cache at once.
//!
//! While a window is filled, the previous one is being written, and no other waits: at most a few windows
//! of pages are dirty or cached because of this copy, and all bytes reported as done are on the disk.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;

use super::report::Fallback;
use crate::sys;

/// Windows on their way to the disk while the next one is filled.
const IN_FLIGHT: usize = 1;

/// The pages of the destination in the page cache.
#[derive(Debug)]
pub struct WriteBehind<'a> {
    file: &'a File,
    in_flight: VecDeque<Range<u64>>,
    /// The reason why parts cannot be synced on their own, if they cannot.
    pub whole: Option<Fallback>,
    /// Bytes that are on the disk.
    pub durable: u64,
}

impl<'a> WriteBehind<'a> {
    /// Creates a `WriteBehind` for a file that is being written.
    pub fn new(file: &'a File) -> WriteBehind<'a> {
        WriteBehind { file, in_flight: VecDeque::new(), whole: None, durable: 0 }
    }

    /// Must be called after `range` has been written. Waits until the previous window is on the disk.
    ///
    /// # Errors
    /// Bytes cannot be written to the disk.
    pub fn wrote(&mut self, range: Range<u64>) -> io::Result<()> {
        if self.whole.is_none() {
            match sys::start_writing(self.file, &range) {
                Ok(()) => {}
                Err(error) => self.refused(error)?,
            }
        }
        self.in_flight.push_back(range);
        while self.in_flight.len() > IN_FLIGHT {
            self.land()?;
        }
        Ok(())
    }

    /// Waits until everything is on the disk.
    ///
    /// # Errors
    /// Bytes cannot be written to the disk.
    pub fn finish(&mut self) -> io::Result<()> {
        while !self.in_flight.is_empty() {
            self.land()?;
        }
        Ok(())
    }

    /// Waits for the oldest window, and drops its pages.
    fn land(&mut self) -> io::Result<()> {
        let Some(range) = self.in_flight.pop_front() else { return Ok(()) };
        if self.whole.is_none() {
            match sys::wait_written(self.file, &range) {
                Ok(()) => {}
                Err(error) => self.refused(error)?,
            }
        }
        if self.whole.is_some() {
            self.file.sync_data()?;
        }
        self.durable += range.end - range.start;
        // Whole pages: data next to the range is already on the disk, or its pages stay because they are
        // dirty.
        let pages = crate::fault::pages_around(&range);
        // A failure costs memory, not the copy.
        let _ = sys::give_up(self.file, &pages);
        Ok(())
    }

    fn refused(&mut self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(
                errno @ (libc::ENOSYS
                | libc::EINVAL
                | libc::EPERM
                | libc::EOPNOTSUPP
                | libc::ESPIPE),
            ) => {
                self.whole = Some(Fallback::WholeSyncs { errno });
                Ok(())
            }
            _ => Err(error),
        }
    }
}
