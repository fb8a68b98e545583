//! Brings the destination to the disk window by window, and drops it from the page cache at once.
//!
//! While a window is filled the one before is being written, and none waits longer: pages that are
//! dirty or cached because of this copy are at most a few windows, and what counts as done is on the
//! disk.

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
    /// Why parts cannot be synced by themselves, if that is so.
    pub whole: Option<Fallback>,
    /// Bytes that are on the disk.
    pub durable: u64,
}

impl<'a> WriteBehind<'a> {
    /// Of a file that is written.
    pub fn new(file: &'a File) -> WriteBehind<'a> {
        WriteBehind { file, in_flight: VecDeque::new(), whole: None, durable: 0 }
    }

    /// To be called when `range` has been written. Waits until the window before is on the disk.
    ///
    /// # Errors
    /// Bytes cannot be brought to the disk.
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

    /// Waits for everything.
    ///
    /// # Errors
    /// Bytes cannot be brought to the disk.
    pub fn finish(&mut self) -> io::Result<()> {
        while !self.in_flight.is_empty() {
            self.land()?;
        }
        Ok(())
    }

    /// Waits for the oldest window, and gives up its pages.
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
        // Whole pages: what is next to it is on the disk, or stays because it is not.
        let pages = crate::fault::pages_around(&range);
        // That it cannot be done costs memory, not the copy.
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
