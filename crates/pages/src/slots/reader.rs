//! One file that is read from for as long as there are slots.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::transfer::TransferError;
use crate::transfer::blocks::{Align, Block};
use crate::transfer::direct::{self, Direct};
use crate::transfer::threads::{Reads, read_block};

/// An open file.
pub(super) struct OpenFile {
    file: File,
    path: PathBuf,
    direct: Option<Direct>,
    /// Whether direct reads turned out to be refused.
    refused: AtomicBool,
}

impl OpenFile {
    pub(super) fn new(file: &File, path: PathBuf, direct: bool) -> io::Result<OpenFile> {
        let direct = if direct { direct::open(file, &path).ok() } else { None };
        Ok(OpenFile { file: file.try_clone()?, path, direct, refused: AtomicBool::new(false) })
    }

    /// What reads must be aligned to.
    pub(super) fn align(&self) -> usize {
        let Align { offset, memory } =
            self.direct.as_ref().map_or(Align::NONE, |direct| direct.align);
        offset.max(memory)
    }

    /// Reads `len` bytes at `offset`, of which `need` have to come.
    ///
    /// # Safety
    /// `len` bytes from `to` on are this call's.
    pub(super) unsafe fn read(
        &self,
        offset: u64,
        len: usize,
        need: usize,
        to: *mut u8,
    ) -> Result<(), TransferError> {
        let mut block = Block::new(offset, len, need, to);
        let done = read_block(self, self.direct.as_ref(), &mut block);
        if self.direct.is_none() || self.refused.load(Relaxed) {
            self.drop_behind(offset, len);
        }
        done
    }

    /// What was read through the page cache is in it twice: here and there.
    fn drop_behind(&self, offset: u64, len: usize) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use std::os::fd::AsRawFd;
            let (offset, len) = (offset as libc::off_t, len as libc::off_t);
            // SAFETY: takes numbers. That it is refused is no error.
            unsafe {
                libc::posix_fadvise(self.file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED);
            }
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = (offset, len);
    }
}

impl Reads for OpenFile {
    fn file(&self) -> &File {
        &self.file
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn over(&self) -> bool {
        false
    }

    fn refuse_direct(&self, _: i32) {
        self.refused.store(true, Relaxed);
    }

    fn direct_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }
}
