//! A file that is read from for as long as the slots exist.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::fault::pages_around;
#[cfg(target_os = "linux")]
use crate::region::Region;
use crate::residency::{give_up_range, without_readahead};
use crate::transfer::TransferError;
use crate::transfer::blocks::{Align, Block};
use crate::transfer::direct::{self, Direct};
use crate::transfer::threads::{Reads, read_block};

/// An open file.
pub(super) struct OpenFile {
    file: File,
    path: PathBuf,
    direct: Option<Direct>,
    /// True if direct reads turned out to be refused.
    refused: AtomicBool,
}

impl OpenFile {
    pub(super) fn new(file: &File, path: PathBuf, direct: bool) -> io::Result<OpenFile> {
        let direct = if direct { direct::open(file, &path).ok() } else { None };
        // Pages that the system reads ahead of a piece would stay in the page cache, since nothing drops them.
        let apart = if direct.is_none() { without_readahead(file) } else { None };
        let file = match apart {
            Some(apart) => apart,
            None => file.try_clone()?,
        };
        Ok(OpenFile { file, path, direct, refused: AtomicBool::new(false) })
    }

    /// Returns the alignment that reads need.
    pub(super) fn align(&self) -> usize {
        let Align { offset, memory } =
            self.direct.as_ref().map_or(Align::NONE, |direct| direct.align);
        offset.max(memory)
    }

    /// Returns the handle for reads around the page cache, unless they turned out to be refused.
    pub(super) fn direct(&self) -> Option<&Direct> {
        self.direct.as_ref().filter(|_| !self.direct_refused())
    }

    /// True if it can be read through a ring. Not if a program serves it (FUSE), since a ring would only hand its reads to threads. Reads
    /// a first block to find out.
    #[cfg(target_os = "linux")]
    pub(super) fn suits_ring(&self) -> bool {
        let Some(direct) = self.direct().filter(|direct| !direct.fuse) else { return false };
        let Ok(first) = Region::new(self.align()) else { return false };
        let mut block = Block::new(0, first.len(), 1, first.as_mut_ptr());
        read_block(self, Some(direct), &mut block).is_ok() && !self.direct_refused()
    }

    /// Reads the part of a block that has not arrived yet.
    ///
    /// # Safety
    /// The block's memory belongs to this call.
    pub(super) unsafe fn read(&self, mut block: Block) -> Result<(), TransferError> {
        let done = read_block(self, self.direct.as_ref(), &mut block);
        if self.direct().is_none() {
            // Bytes read through the page cache are in memory twice: here and there. This includes the pages at both ends: neighbours
            // that are still wanted have been read by then, or are read once more.
            let bytes = block.offset..block.offset + block.len as u64;
            give_up_range(&self.file, pages_around(&bytes));
        }
        done
    }

    /// The error of a read that failed.
    #[cfg(test)]
    pub(super) fn failed(&self, at: u64, errno: i32) -> TransferError {
        let source = io::Error::from_raw_os_error(errno);
        TransferError::Read { path: self.path.clone(), at, len: 1, source }
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
