//! Reading by threads that wait: without io_uring, and through the page cache.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::blocks::{self, Align, Block};
use super::direct::Direct;
use super::work::Work;
use super::{Engine, TransferError, TransferReport};
use crate::Threads;
use crate::region::Region;

/// Reads the pieces that no thread has taken yet, around the page cache if `direct` is given, otherwise
/// through it.
pub(crate) fn run(
    work: &Work,
    direct: Option<&Direct>,
    report: &mut TransferReport,
) -> Result<(), TransferError> {
    let align = direct.map_or(Align::NONE, |direct| direct.align);
    let consumers = work.options.threads.max(1);
    let readers = work.options.readers.max(consumers).min(work.remaining());
    let slot = work.slot_bytes(align);
    let memory = |source| TransferError::Memory { path: work.path.into(), source };
    let slots = Region::new(slot.saturating_mul(readers)).map_err(memory)?;
    if let Some(direct) = direct {
        direct.prepare(slots.as_mut_ptr(), slots.len());
    }
    report.engine = Engine::Threads;
    report.buffers = report.buffers.max(slots.len() as u64);
    let turnstile = Turnstile { free: Mutex::new(consumers), changed: Condvar::new() };
    thread::scope(|scope| {
        let turnstile = &turnstile;
        // In bounds: the region has `readers` slots.
        let slot = |reader: usize| ThreadSlot(slots.as_mut_ptr().wrapping_add(reader * slot));
        let start = |reader| {
            let slot = slot(reader);
            let read = move || read_pieces(work, direct, align, slot, turnstile);
            thread::Builder::new().name("alight-read".into()).spawn_scoped(scope, read)
        };
        // On as many threads as the system provides, and on this one in any case.
        let handles: Vec<_> = (1..readers).map_while(|reader| start(reader).ok()).collect();
        report.threads = report.threads.or(Threads { wanted: readers, had: handles.len() + 1 });
        read_pieces(work, direct, align, slot(0), turnstile);
        for handle in handles {
            if let Err(panic) = handle.join() {
                // The consumer's own panic, passed to the caller.
                std::panic::resume_unwind(panic);
            }
        }
    });
    Ok(())
}

/// One thread's slot.
struct ThreadSlot(*mut u8);

// SAFETY: each slot is made for one thread, and only that thread uses it.
unsafe impl Send for ThreadSlot {}

impl ThreadSlot {
    /// A method, so that closures capture the whole struct and not the pointer in it.
    fn start(&self) -> *mut u8 {
        self.0
    }
}

/// Lets only a limited number of threads through at a time.
struct Turnstile {
    free: Mutex<usize>,
    changed: Condvar,
}

impl Turnstile {
    fn pass(&self, through: impl FnOnce()) {
        struct Leave<'a>(&'a Turnstile);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                self.0.changed.notify_one();
            }
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        drop(free);
        let _leave = Leave(self);
        through();
    }
}

fn read_pieces(
    work: &Work,
    direct: Option<&Direct>,
    align: Align,
    slot: ThreadSlot,
    turnstile: &Turnstile,
) {
    let size = work.block(work.options.reader_block, align);
    while let Some(piece) = work.take() {
        let plan = blocks::plan(&work.pieces[piece], slot.start(), align, size);
        for mut block in plan.blocks {
            if work.over() {
                return;
            }
            if let Err(error) = read_block(work, direct, &mut block) {
                return work.fail(error);
            }
            block.deliver();
        }
        // SAFETY: all blocks of the piece are complete, so this many bytes have been written there, and
        // nothing writes until the consumer returns.
        let bytes = unsafe { std::slice::from_raw_parts(plan.bytes, plan.len) };
        turnstile.pass(|| work.hand_over(piece, bytes));
    }
}

/// A file that is being read, and its state.
pub(crate) trait Reads {
    fn file(&self) -> &File;
    fn path(&self) -> &Path;
    /// True if nothing more is needed.
    fn over(&self) -> bool;
    /// Records the error with which direct reads are refused.
    fn refuse_direct(&self, errno: i32);
    fn direct_refused(&self) -> bool;
}

/// Completes one block, however much of it has been read already, and waits as long as necessary.
///
/// A direct read without progress is followed by one through the page cache, which shows
/// whether the file ends there or the filesystem only stopped at an odd offset.
pub(crate) fn read_block(
    work: &impl Reads,
    direct: Option<&Direct>,
    block: &mut Block,
) -> Result<(), TransferError> {
    let mut direct = direct.filter(|_| !work.direct_refused());
    let mut pause = Duration::from_micros(50);
    while !block.complete() {
        let (file, from, until) = match direct {
            Some(direct) => {
                let from = block.resume(direct.align);
                if !block.in_slot {
                    direct.prepare(block.to.wrapping_add(from), block.len - from);
                }
                (&direct.file, from, block.len)
            }
            None => (work.file(), block.done, block.need),
        };
        let at = block.offset + from as u64;
        // SAFETY: `from..until` is within the block's bytes, which this transfer may write.
        let count = unsafe {
            let to = block.to.add(from);
            libc::pread(file.as_raw_fd(), to.cast(), until - from, at as libc::off_t)
        };
        if let Ok(count) = usize::try_from(count) {
            if block.advance(from, count) {
                pause = Duration::from_micros(50);
            } else if direct.take().is_none() {
                return Err(end_of_file(work, block));
            }
            continue;
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EINTR) => {}
            // Doubled each time: seven seconds in all.
            Some(libc::EAGAIN) if pause < Duration::from_secs(5) && !work.over() => {
                thread::sleep(pause);
                pause *= 2;
            }
            Some(errno @ (libc::EINVAL | libc::EOPNOTSUPP)) if direct.is_some() => {
                work.refuse_direct(errno);
                direct = None;
            }
            _ => {
                let len = (until - from) as u64;
                return Err(TransferError::Read { path: work.path().into(), at, len, source });
            }
        }
    }
    Ok(())
}

fn end_of_file(work: &impl Reads, block: &Block) -> TransferError {
    let wanted = block.offset + block.need as u64;
    // The end of the file, unless it has grown meanwhile.
    let found = match work.file().metadata() {
        Ok(metadata) if metadata.len() < wanted => metadata.len(),
        _ => block.offset + block.done as u64,
    };
    TransferError::EndOfFile { path: work.path().into(), wanted, found }
}
