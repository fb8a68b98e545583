//! Builds a file from ranges of other files and leaves the page cache as it was.
//!
//! Several threads fill the new file in pieces, in order. Each thread makes a piece in memory and writes
//! it: around the page cache where possible, otherwise through it, in windows that are synced to the disk
//! and dropped. A [`Reader`] reads the sources of pieces. Each thread uses memory for one piece and for
//! the state of its maker. Small files go through the page cache and stay there, because they are likely
//! to be used next.

mod reader;
mod record;

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use thiserror::Error;

pub use reader::{Buffer, Parts, Reader};
pub use record::Record;

use crate::around::{self, Around};
use crate::copy::WriteBehind;
use crate::transfer::direct;
use crate::{Region, Threads};

/// Maximum bytes of a piece: larger writes are no faster.
const PIECE: u64 = 4 << 20;
/// Minimum bytes of a piece, when there are many threads.
const MIN_PIECE: u64 = 1 << 20;
/// Bytes of all threads' pieces together, if that leaves enough for each.
const PIECES: u64 = 48 << 20;
/// Files of at least this size bypass the page cache.
const LARGE: u64 = 16 << 20;
/// Time between two reports of progress.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a file was not made. Its contents are invalid then.
#[derive(Debug, Error)]
pub enum AssembleError<E> {
    /// A piece could not be made.
    #[error(transparent)]
    Piece(E),
    /// The file cannot be written.
    #[error("cannot write at byte {at}: {source}")]
    Write {
        /// Offset in the file.
        at: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The callback requested it.
    #[error("stopped")]
    Stopped,
}

/// Makes pieces of the file on one thread.
pub trait Maker {
    /// Why a piece could not be made.
    type Error: Send;

    /// Writes the bytes of `range` of the new file into `out`. It must fill all of `out`, which holds
    /// stale bytes.
    ///
    /// # Errors
    /// Any error ends the whole job.
    fn make(&mut self, range: Range<u64>, out: &mut [u8]) -> Result<(), Self::Error>;
}

/// Fills `dest`, which is new and open for writing, with `len` bytes from `threads` makers, one made by
/// `maker` on each thread. `on_progress` is called with the number of bytes written. Returns the number
/// of threads requested and started.
///
/// On return the bytes are in the file, and those of large files are on their way to the disk. Syncing is
/// left to the caller.
///
/// # Errors
/// See [`AssembleError`].
pub fn assemble<M: Maker>(
    dest: &File,
    len: u64,
    threads: NonZero<usize>,
    maker: impl Fn() -> M + Sync,
    on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Threads, AssembleError<M::Error>> {
    let failed = |source| AssembleError::Write { at: 0, source };
    // Writes within the file's length run in parallel.
    dest.set_len(len).map_err(failed)?;
    let share = PIECES / threads.get() as u64;
    let piece = share.clamp(MIN_PIECE, PIECE).next_power_of_two().min(PIECE);
    let job = Assembly {
        writer: Writer::new(dest, len),
        len,
        piece,
        next: AtomicU64::new(0),
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        failed: Mutex::new(None),
    };
    // At least one, and at most one for each piece.
    let wanted = (threads.get() as u64).min(len.div_ceil(piece)).max(1) as usize;
    let (stopped, had) = thread::scope(|scope| {
        let start = |_| {
            let thread = thread::Builder::new().name("alight-make".into());
            thread.spawn_scoped(scope, || job.work(&mut maker())).ok()
        };
        // As many threads as the system allows.
        let running: Vec<_> = (0..wanted).map_while(start).collect();
        let had = running.len().max(1);
        // The callback runs before the work starts, so that it can refuse even a very short job.
        let mut stopped = on_progress(0).is_break();
        job.stop.fetch_or(stopped, Relaxed);
        if running.is_empty() {
            // No thread could be started: do the work here, and report progress at the end.
            job.work(&mut maker());
            stopped |= on_progress(job.done.load(Relaxed)).is_break();
        }
        while !running.iter().all(|thread| thread.is_finished()) {
            thread::park_timeout(PAUSE);
            if !stopped && on_progress(job.done.load(Relaxed)).is_break() {
                stopped = true;
                job.stop.store(true, Relaxed);
            }
        }
        for thread in running {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        (stopped, had)
    });
    if let Ok(Some(error)) = job.failed.into_inner() {
        return Err(error);
    }
    if stopped {
        return Err(AssembleError::Stopped);
    }
    job.writer.finish().map_err(failed)?;
    Ok(Threads { wanted, had })
}

/// State shared by the threads.
struct Assembly<'f, E> {
    writer: Writer<'f>,
    len: u64,
    piece: u64,
    /// Number of the next piece.
    next: AtomicU64,
    /// Bytes written.
    done: AtomicU64,
    stop: AtomicBool,
    failed: Mutex<Option<AssembleError<E>>>,
}

impl<E: Send> Assembly<'_, E> {
    fn work(&self, maker: &mut impl Maker<Error = E>) {
        let mut memory = match Region::new(self.piece as usize) {
            Ok(memory) => memory,
            Err(error) => {
                let source = io::Error::new(io::ErrorKind::OutOfMemory, error.to_string());
                return self.fail(AssembleError::Write { at: 0, source });
            }
        };
        while !self.stop.load(Relaxed) {
            let start = self.next.fetch_add(1, Relaxed).saturating_mul(self.piece);
            if start >= self.len {
                return;
            }
            let range = start..(start + self.piece).min(self.len);
            let bytes = &mut memory.bytes_mut()[..(range.end - range.start) as usize];
            if let Err(error) = maker.make(range.clone(), bytes) {
                return self.fail(AssembleError::Piece(error));
            }
            if let Err(source) = self.writer.write(start, bytes) {
                return self.fail(AssembleError::Write { at: start, source });
            }
            self.done.fetch_add(range.end - range.start, Relaxed);
        }
    }

    fn fail(&self, error: AssembleError<E>) {
        self.stop.store(true, Relaxed);
        // The first error counts. (Nothing panics while it holds the lock.)
        if let Ok(mut failed) = self.failed.lock() {
            failed.get_or_insert(error);
        }
    }
}

/// Writes bytes to the new file.
struct Writer<'f> {
    file: &'f File,
    method: WriteMethod<'f>,
}

enum WriteMethod<'f> {
    Around(Around),
    Windows(Mutex<WriteBehind<'f>>),
    Plain,
}

impl<'f> Writer<'f> {
    fn new(file: &'f File, len: u64) -> Writer<'f> {
        let method = if len < LARGE {
            WriteMethod::Plain
        } else {
            match around(file) {
                Some(around) => WriteMethod::Around(around),
                None => WriteMethod::Windows(Mutex::new(WriteBehind::new(file))),
            }
        };
        Writer { file, method }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.method {
            WriteMethod::Around(around) => around.write(self.file, at, bytes),
            WriteMethod::Plain => around::write_all(self.file, at, bytes),
            WriteMethod::Windows(dest) => {
                around::write_all(self.file, at, bytes)?;
                match dest.lock() {
                    Ok(mut dest) => dest.wrote(at..at + bytes.len() as u64),
                    // Another thread has panicked, which ends everything.
                    Err(_) => Ok(()),
                }
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        match self.method {
            WriteMethod::Windows(dest) => {
                dest.into_inner().map_or(Ok(()), |mut dest| dest.finish())
            }
            WriteMethod::Around(_) | WriteMethod::Plain => Ok(()),
        }
    }
}

/// Opens `file` for writes around the page cache, if that is possible and useful here.
fn around(file: &File) -> Option<Around> {
    // The path matters only without /proc, where this is not possible anyway.
    let open = direct::open(file, std::path::Path::new("")).ok()?;
    (around::is_plain_disk(file) && around::blocks_fit(&open)).then(|| Around::open(file).ok())?
}
