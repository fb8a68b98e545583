//! Reads of blocks that are in flight at the same time, through one io_uring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::blocks::Block;
use super::direct::Direct;

/// Number of times that a read is put back into the ring without progress before a thread waits for it.
const TRIES: u32 = 4;

/// Changes the outcome of a read, in memory too: called with its result and its address, returns another result. For tests: disks rarely
/// do it.
#[cfg(test)]
pub(crate) type Interpose<'a> = dyn Fn(i32, *mut u8) -> i32 + Send + Sync + 'a;

/// Reads that are in flight. Each has a tag `T` that identifies it for its owner.
pub(crate) struct Flights<T> {
    ring: IoUring,
    /// Blocks in the ring, by the number that comes back with their completion.
    in_ring: Vec<Option<Flight<T>>>,
    /// Numbers that are free.
    numbers: Vec<usize>,
    /// Numbers that are in the ring but not submitted yet, oldest first.
    unsubmitted: VecDeque<usize>,
    /// Why the ring accepts nothing any more, if it is broken.
    broken: Option<i32>,
}

struct Flight<T> {
    tag: T,
    block: Block,
    /// Where the read continues within the block.
    from: usize,
}

/// The next step for a block whose read has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landing {
    /// Nothing: all of it has arrived.
    Complete,
    /// It must be put into the ring again.
    Again,
    /// It must be read outside of the ring, which shows the cause: the end, a refusal, a failure.
    Alone,
}

/// The thread that does the work of a read before the disk gets it: finding its memory, and clearing it if it has not been touched yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handing {
    /// The thread that submits it.
    Here,
    /// A thread of the system.
    Apart,
}

// SAFETY: the pointers of blocks are to memory that their owner reserves for the reads, whichever thread submits them.
unsafe impl<T: Send> Send for Flights<T> {}
// SAFETY: a shared reference allows only reading numbers, and registering memory, which the kernel accepts from any thread.
unsafe impl<T: Sync> Sync for Flights<T> {}

impl<T> Flights<T> {
    /// Creates space for `depth` reads, in a ring that supports plain reads (since Linux 5.6).
    ///
    /// # Errors
    /// The system refuses it.
    pub(crate) fn new(depth: usize) -> io::Result<Flights<T>> {
        let ring = IoUring::new(depth as u32)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Flights {
            ring,
            in_ring: (0..depth).map(|_| None).collect(),
            numbers: (0..depth).rev().collect(),
            unsubmitted: VecDeque::with_capacity(depth),
            broken: None,
        })
    }

    /// Registers memory, so that the kernel need not look up its pages for each read.
    ///
    /// # Errors
    /// The system refuses it, mostly because too little memory may be locked.
    ///
    /// # Safety
    /// The memory lives longer than the ring.
    pub(crate) unsafe fn register(&self, memory: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.ring.submitter().register_buffers(memory) }
    }

    /// Number of reads in flight.
    pub(crate) fn count(&self) -> usize {
        self.in_ring.len() - self.numbers.len()
    }

    /// Number of further reads that fit.
    pub(crate) fn free(&self) -> usize {
        self.numbers.len()
    }

    /// Why the ring accepts nothing any more, if it is broken.
    pub(crate) fn broken(&self) -> Option<i32> {
        self.broken
    }

    /// Puts a read of the rest of a block into the ring; into registered memory, if `registered` is its index. Returns the read if there
    /// is no space.
    ///
    /// # Safety
    /// The block's memory belongs to the read until it has completed, or this is dropped. The file stays open until then.
    pub(crate) unsafe fn push(
        &mut self,
        direct: &Direct,
        registered: Option<u16>,
        handing: Handing,
        (tag, block): (T, Block),
    ) -> Result<(), (T, Block)> {
        let number = match self.broken {
            None => self.numbers.pop(),
            Some(_) => None,
        };
        let Some(number) = number else { return Err((tag, block)) };
        let from = block.resume(direct.align);
        let to = block.to.wrapping_add(from);
        let len = (block.len - from) as u32;
        let offset = block.offset + from as u64;
        if !block.in_slot {
            direct.prepare(to, len as usize);
        }
        let file = types::Fd(direct.file.as_raw_fd());
        let entry = match registered {
            Some(buffer) => opcode::ReadFixed::new(file, to, len, buffer).offset(offset).build(),
            None => opcode::Read::new(file, to, len).offset(offset).build(),
        };
        let entry = match handing {
            Handing::Here => entry,
            Handing::Apart => entry.flags(squeue::Flags::ASYNC),
        };
        // SAFETY: `len` bytes from `to` on belong to this read until its completion, which `Drop` waits for in any case; the file stays
        // open until then.
        let pushed =
            unsafe { self.ring.submission().push(&entry.user_data(number as u64)) }.is_ok();
        if !pushed {
            // Cannot happen: the ring has as many entries as there are numbers.
            self.numbers.push(number);
            return Err((tag, block));
        }
        self.in_ring[number] = Some(Flight { tag, block, from });
        self.unsubmitted.push_back(number);
        Ok(())
    }

    /// Submits the entries of the ring to the kernel and waits until `want` reads are complete. Calls `back` with those that it will never
    /// accept.
    pub(crate) fn submit(&mut self, want: usize, mut back: impl FnMut(T, Block)) {
        if self.broken.is_some() {
            if want > 0 {
                // The kernel completes the reads that it has accepted, even if it accepts no more.
                thread::sleep(Duration::from_micros(200));
            }
            return;
        }
        if want == 0 && self.unsubmitted.is_empty() {
            return;
        }
        match self.ring.submit_and_wait(want) {
            Ok(count) => drop(self.unsubmitted.drain(..count.min(self.unsubmitted.len()))),
            Err(error) => match errno(&error) {
                libc::EINTR => {}
                // Too many at once: completions have to be taken first.
                libc::EAGAIN | libc::EBUSY => thread::sleep(Duration::from_micros(100)),
                errno => {
                    self.broken = Some(errno);
                    // The kernel never sees these, since nothing is submitted any more.
                    while let Some(number) = self.unsubmitted.pop_front() {
                        if let Some(flight) = self.in_ring[number].take() {
                            back(flight.tag, flight.block);
                        }
                        self.numbers.push(number);
                    }
                }
            },
        }
    }

    /// Returns a completed read, if there is one, and what must be done with it. `seen(result, address)` is its outcome.
    pub(crate) fn next(
        &mut self,
        seen: impl FnOnce(i32, *mut u8) -> i32,
    ) -> Option<(T, Block, Landing)> {
        loop {
            let entry = self.ring.completion().next()?;
            let number = entry.user_data() as usize;
            let Some(flight) = self.in_ring.get_mut(number).and_then(Option::take) else {
                continue;
            };
            self.numbers.push(number);
            let Flight { tag, mut block, from } = flight;
            match seen(entry.result(), block.to.wrapping_add(from)) {
                count if count > 0 => {
                    block.tries = if block.advance(from, count as usize) { 0 } else { TRIES };
                }
                result if result == -libc::EINTR || result == -libc::EAGAIN => block.tries += 1,
                _ => block.tries = TRIES,
            }
            let landing = match block.tries {
                _ if block.complete() => Landing::Complete,
                TRIES.. => Landing::Alone,
                _ => Landing::Again,
            };
            return Some((tag, block, landing));
        }
    }
}

pub(crate) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl<T> Drop for Flights<T> {
    /// Waits for all memory that the kernel still writes to.
    fn drop(&mut self) {
        while self.count() > 0 {
            self.submit(1, |_, _| {});
            // The results are no longer needed.
            while self.next(|_, _| 0).is_some() {}
        }
    }
}
