//! Reads of blocks that are in flight at the same time, through one io_uring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::blocks::Block;
use super::direct::Direct;

/// How often a read is put back into the ring without progress before a thread waits for it.
const TRIES: u32 = 4;

/// Changes what came of a read, in memory too: called with its result and its address, returns another result. For tests: disks
/// rarely do it.
#[cfg(test)]
pub(crate) type Interpose<'a> = dyn Fn(i32, *mut u8) -> i32 + Send + Sync + 'a;

/// Reads that are in flight. Each has a tag `T`, by which its owner knows it.
pub(crate) struct Flights<T> {
    ring: IoUring,
    /// Blocks in the ring, by the number that comes back with their completion.
    in_ring: Vec<Option<Flight<T>>>,
    /// Numbers that are free.
    numbers: Vec<usize>,
    /// Numbers that are in the ring but not submitted yet, oldest first.
    unsubmitted: VecDeque<usize>,
    /// The ring does not take anything any more, and why.
    broken: Option<i32>,
}

struct Flight<T> {
    tag: T,
    block: Block,
    /// Where the read continues within the block.
    from: usize,
}

/// What is to be done with a block that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landing {
    /// All of it is there.
    Complete,
    /// It is to be put into the ring again.
    Again,
    /// It is to be read outside of the ring, which shows what is the matter: the end, a refusal, a failure.
    Alone,
}

/// Which thread does what a read takes before the disk has it: finding its memory, and clearing that if nothing has touched it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handing {
    /// The one that hands it in.
    Here,
    /// One of the system's.
    Apart,
}

// SAFETY: the pointers of blocks are to memory that their owner promises to the reads, whichever thread asks for them.
unsafe impl<T: Send> Send for Flights<T> {}
// SAFETY: a shared reference lets look at numbers, and register memory, which the kernel takes from any thread.
unsafe impl<T: Sync> Sync for Flights<T> {}

impl<T> Flights<T> {
    /// Room for `depth` reads, in a ring that knows plain reads (since Linux 5.6).
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
    /// The system refuses it, mostly since too little memory may be locked.
    ///
    /// # Safety
    /// The memory lives longer than the ring.
    pub(crate) unsafe fn register(&self, memory: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.ring.submitter().register_buffers(memory) }
    }

    /// How many reads are in flight.
    pub(crate) fn count(&self) -> usize {
        self.in_ring.len() - self.numbers.len()
    }

    /// How many more may be.
    pub(crate) fn free(&self) -> usize {
        self.numbers.len()
    }

    /// Why the ring takes nothing any more, if so.
    pub(crate) fn broken(&self) -> Option<i32> {
        self.broken
    }

    /// Puts a read into the ring: what of the block has not come yet; into registered memory, if `registered` says which. Gives it back if
    /// there is no room.
    ///
    /// # Safety
    /// The block's memory is the read's until it has come back, or this is dropped. The file stays open as long.
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
        // SAFETY: `len` bytes from `to` on are this read's until its completion, which `Drop` waits for in any case; the file stays open
        // as long.
        let pushed =
            unsafe { self.ring.submission().push(&entry.user_data(number as u64)) }.is_ok();
        if !pushed {
            // Cannot be: the ring has as many entries as there are numbers.
            self.numbers.push(number);
            return Err((tag, block));
        }
        self.in_ring[number] = Some(Flight { tag, block, from });
        self.unsubmitted.push_back(number);
        Ok(())
    }

    /// Gives the kernel what is in the ring and waits until `want` reads are complete. Calls `back` with what it will never take.
    pub(crate) fn submit(&mut self, want: usize, mut back: impl FnMut(T, Block)) {
        if self.broken.is_some() {
            if want > 0 {
                // What the kernel has accepted it completes, also if it takes no more orders.
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
                // Too much at once: completions have to be taken first.
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

    /// A read that has come back, if one has, and what is to be done with it. `seen(result, address)` is what came of it.
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
    /// Waits for whatever the kernel still writes to.
    fn drop(&mut self) {
        while self.count() > 0 {
            self.submit(1, |_, _| {});
            // The results are of no use any more.
            while self.next(|_, _| 0).is_some() {}
        }
    }
}
