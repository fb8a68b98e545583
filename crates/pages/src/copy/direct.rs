//! Copies around the page cache: large blocks are read through io_uring and written as they arrive. They
//! are never cached, and no byte is copied in memory. Parts of the source that are already cached are
//! read from the page cache.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::report::{Fallback, Method};
use super::steps::{Files, refusal};
use super::{CopyError, OnProgress, Progress};
use crate::Threads;
use crate::around::{Around, BLOCK, blocks_fit, is_plain_disk};
use crate::transfer::{self, Piece, TransferError, direct, transfer};

/// Bytes of one write.
const PIECE: u64 = 4 << 20;
/// Threads that write. They mostly wait, and each has memory for some pieces.
const THREADS: usize = 4;
/// Bytes of one read from the page cache.
const WARM_BLOCK: usize = 4 << 20;
/// Time between two reports of progress.
const PAUSE: Duration = Duration::from_millis(20);

/// A destination that can be written around the page cache.
pub(super) struct DirectWriter {
    dest: Around,
}

/// Opens `dest` around the page cache, if both files allow it and it makes sense for these parts of the
/// source.
pub(super) fn open(files: &Files<'_>, segments: &[Range<u64>]) -> Result<DirectWriter, Fallback> {
    let no = |why| Err(Fallback::NotDirect { why });
    if !is_plain_disk(files.source) || !is_plain_disk(files.dest) {
        return no("only for files of ext4 and xfs");
    }
    if segments.iter().any(|part| part.start % BLOCK != 0) {
        return no("holes end within a block");
    }
    for (file, path) in [(files.source, files.from), (files.dest, files.to)] {
        match direct::open(file, path) {
            Ok(open) if blocks_fit(&open) => {}
            Ok(_) => return no("the filesystem asks for larger blocks"),
            Err(_) => return no("the filesystem refuses it"),
        }
    }
    match Around::open(files.dest) {
        Ok(dest) => Ok(DirectWriter { dest }),
        Err(_) => no("the filesystem refuses it"),
    }
}

impl DirectWriter {
    /// Copies all of `segments`, the `cached` ones from the page cache, and returns the number of threads used;
    /// or the reason why not, if nothing was copied.
    pub fn copy(
        &self,
        files: &Files<'_>,
        segments: &[Range<u64>],
        cached: impl Fn(&Range<u64>) -> bool,
        (len, total): (u64, u64),
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Result<Threads, Fallback>, CopyError> {
        // Writes within the file's length run in parallel.
        files.dest.set_len(len).map_err(|error| files.write(len, error))?;
        let (warm, cold): (Vec<_>, Vec<_>) =
            segments.iter().flat_map(pieces).partition(|range| cached(range));
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let failed: Mutex<Option<(u64, io::Error)>> = Mutex::new(None);
        let mut options = transfer::TransferOptions::default();
        options.threads = options.threads.min(THREADS);
        (options.readers, options.reader_block) = (options.threads, WARM_BLOCK);
        let put = |at: u64, bytes: &[u8]| {
            match self.dest.write(files.dest, at, bytes) {
                Ok(()) => {
                    done.fetch_add(bytes.len() as u64, Relaxed);
                }
                Err(error) => {
                    stop.store(true, Relaxed);
                    // The first error counts. (Nothing panics while it holds the lock.)
                    if let Ok(mut failed) = failed.lock() {
                        failed.get_or_insert((at, error));
                    }
                }
            }
        };
        let read = thread::scope(|scope| {
            let read = || {
                let mut threads = Threads::ONE;
                for (ranges, method) in [
                    (&cold, transfer::TransferMethod::Direct),
                    (&warm, transfer::TransferMethod::Read),
                ] {
                    let jobs: Vec<Piece> = ranges.iter().cloned().map(Piece::slot).collect();
                    let put = |piece: usize, bytes: &[u8]| put(ranges[piece].start, bytes);
                    let read =
                        transfer(files.source, files.from, &jobs, method, &options, &stop, &put);
                    threads = threads.or(read?.threads);
                }
                Ok(threads)
            };
            let mut stopped = false;
            let reader = thread::Builder::new().name("alight-copy".into());
            let Ok(reader) = reader.spawn_scoped(scope, read) else {
                // The system allows no more threads: do the work here, and report progress at the end.
                let read = read();
                let now = Progress { durable: done.load(Relaxed), total };
                let stopped = on_progress(now) == ControlFlow::Break(());
                // The refused thread would have been one more.
                let read = read.map(|t| Threads { wanted: t.wanted + 1, had: t.had });
                return if stopped { Err(None) } else { read.map_err(Some) };
            };
            while !reader.is_finished() {
                thread::park_timeout(PAUSE);
                let now = Progress { durable: done.load(Relaxed), total };
                if !stopped && on_progress(now) == ControlFlow::Break(()) {
                    stopped = true;
                    stop.store(true, Relaxed);
                }
            }
            let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if stopped { Err(None) } else { read.map_err(Some) }
        });
        if let Ok(Some((at, error))) = failed.into_inner() {
            return match refusal(&error) {
                Some(errno) if done.load(Relaxed) == 0 => {
                    Ok(Err(Fallback::Refused { method: Method::Direct, errno }))
                }
                _ => Err(files.write(at, error)),
            };
        }
        read.map(Ok).map_err(|error| failed_read(files, error, len))
    }
}

/// Why a source of `len` bytes was not read to its end; `error` is `None` if the caller stopped the copy.
fn failed_read(files: &Files<'_>, error: Option<TransferError>, len: u64) -> CopyError {
    match error {
        None | Some(TransferError::Stopped { .. }) => CopyError::Stopped,
        Some(TransferError::EndOfFile { found, .. }) => {
            CopyError::CutShort { path: files.from.into(), at: found, expected: len }
        }
        Some(TransferError::Read { at, source, .. }) => files.read(at, source),
        Some(other) => files.read(0, io::Error::other(other)),
    }
}

/// Splits a part of the file into pieces that begin on multiples of their size.
fn pieces(segment: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, end) = (segment.start, segment.end);
    (start / PIECE..end.div_ceil(PIECE))
        .map(move |i| (i * PIECE).max(start)..((i + 1) * PIECE).min(end))
}
