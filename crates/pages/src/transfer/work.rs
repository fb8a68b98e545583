//! State that the threads of one transfer share: the next piece, the error, when to stop.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::blocks::Align;
use super::threads::Reads;
use super::{Piece, TransferError, TransferFallback, TransferOptions};

pub(crate) struct Work<'a> {
    pub file: &'a File,
    pub path: &'a Path,
    pub pieces: &'a [Piece],
    pub options: &'a TransferOptions,
    stop: &'a AtomicBool,
    each: &'a (dyn Fn(usize, &[u8]) + Sync),
    next: AtomicUsize,
    /// True if a thread failed or panicked.
    halted: AtomicBool,
    error: Mutex<Option<TransferError>>,
    /// The error with which a direct read was refused, or 0.
    refused: AtomicI32,
    /// Changes the outcome of a read through a ring, in memory too. For tests: disks rarely do it.
    #[cfg(all(test, target_os = "linux"))]
    pub interpose: Option<&'a super::flights::Interpose<'a>>,
}

impl<'a> Work<'a> {
    pub fn new(
        file: &'a File,
        path: &'a Path,
        pieces: &'a [Piece],
        options: &'a TransferOptions,
        stop: &'a AtomicBool,
        each: &'a (dyn Fn(usize, &[u8]) + Sync),
    ) -> Work<'a> {
        Work {
            file,
            path,
            pieces,
            options,
            stop,
            each,
            next: AtomicUsize::new(0),
            halted: AtomicBool::new(false),
            error: Mutex::new(None),
            refused: AtomicI32::new(0),
            #[cfg(all(test, target_os = "linux"))]
            interpose: None,
        }
    }

    /// Fails if the file is already too short.
    pub fn check_length(&self) -> Result<(), TransferError> {
        let wanted = self.pieces.iter().filter(|piece| piece.len() > 0).map(|p| p.range.end).max();
        let wanted = wanted.unwrap_or(0);
        let metadata = self.file.metadata().map_err(|source| TransferError::Read {
            path: self.path.into(),
            at: 0,
            len: wanted,
            source,
        })?;
        let found = metadata.len();
        if metadata.is_file() && found < wanted {
            return Err(TransferError::EndOfFile { path: self.path.into(), wanted, found });
        }
        Ok(())
    }

    /// The outcome of a read through a ring.
    #[cfg(target_os = "linux")]
    pub fn seen(&self, result: i32, to: *mut u8) -> i32 {
        #[cfg(test)]
        if let Some(interpose) = self.interpose {
            return interpose(result, to);
        }
        let _ = to;
        result
    }

    /// Returns the next piece that no thread has taken.
    pub fn take(&self) -> Option<usize> {
        if self.over() {
            return None;
        }
        // Bounded: each thread goes past the end at most once and then stops.
        let next = self.next.fetch_add(1, Relaxed);
        (next < self.pieces.len()).then_some(next)
    }

    /// True if there are pieces to take.
    pub fn remains(&self) -> bool {
        !self.over() && self.next.load(Relaxed) < self.pieces.len()
    }

    /// Number of pieces that no thread has taken.
    pub fn remaining(&self) -> usize {
        self.pieces.len().saturating_sub(self.next.load(Relaxed))
    }

    /// Hands a complete piece to the consumer.
    pub fn hand_over(&self, piece: usize, bytes: &[u8]) {
        if !self.over() {
            let guard = HaltOnPanic(&self.halted);
            (self.each)(piece, bytes);
            std::mem::forget(guard);
        }
    }

    /// Stops all threads because of `error`; the first error counts.
    pub fn fail(&self, error: TransferError) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.halted.store(true, Relaxed);
    }

    pub fn refusal(&self) -> Option<TransferFallback> {
        match self.refused.load(Relaxed) {
            0 => None,
            errno => Some(TransferFallback::DirectNotRead { errno }),
        }
    }

    /// Bytes of a slot that any piece fits in; a multiple of every required alignment.
    pub fn slot_bytes(&self, align: Align) -> usize {
        let largest = self.pieces.iter().map(|piece| super::blocks::slot_bytes(piece, align)).max();
        largest.unwrap_or(0).max(1).next_multiple_of(align.offset.max(align.memory).max(4096))
    }

    /// Bytes of the largest piece.
    #[cfg(target_os = "linux")]
    pub fn largest(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len() as usize).max().unwrap_or(0)
    }

    /// Bytes of one read, from the requested size and the required alignment.
    pub fn block(&self, wanted: usize, align: Align) -> usize {
        wanted.clamp(4096, 1 << 30).next_multiple_of(align.offset.max(4096))
    }

    /// The result of the transfer.
    pub fn finish(&self) -> Result<(), TransferError> {
        match self.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None if self.stop.load(Relaxed) => {
                Err(TransferError::Stopped { path: self.path.into() })
            }
            None => Ok(()),
        }
    }
}

impl Reads for Work<'_> {
    fn file(&self) -> &File {
        self.file
    }

    fn path(&self) -> &Path {
        self.path
    }

    /// True if a stop was requested, or an error stopped the transfer.
    fn over(&self) -> bool {
        self.halted.load(Relaxed) || self.stop.load(Relaxed)
    }

    fn refuse_direct(&self, errno: i32) {
        let _ = self.refused.compare_exchange(0, errno, Relaxed, Relaxed);
    }

    fn direct_refused(&self) -> bool {
        self.refused.load(Relaxed) != 0
    }
}

/// Stops the other threads when a consumer panics.
struct HaltOnPanic<'a>(&'a AtomicBool);

impl Drop for HaltOnPanic<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
