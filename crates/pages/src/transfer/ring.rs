//! Direct reads through io_uring, a ring for each thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, types};

use super::blocks::{self, Block};
use super::direct::Direct;
use super::threads::Reads;
use super::work::Work;
use super::{Engine, Fallback, Report, TransferError, threads};
use crate::Threads;
use crate::region::Region;

/// How often a read is put back into the ring without progress before a thread waits for it.
const TRIES: u32 = 4;

/// Reads the pieces that no thread has taken yet. If the system refuses io_uring, the report says so and pieces
/// remain.
pub(crate) fn run(work: &Work, direct: &Direct, report: &mut Report) -> Result<(), TransferError> {
    let count = work.options.threads.clamp(1, work.remaining().max(1));
    let depth = work.options.depth.div_ceil(count).clamp(1, 4096);
    let rings = match (0..count).map(|_| ring(depth)).collect::<io::Result<Vec<_>>>() {
        Ok(rings) => rings,
        Err(error) => {
            report.fallbacks.push(Fallback::NoRing { errno: errno(&error) });
            return Ok(());
        }
    };
    // Pieces that keep the ring full, and one that is being consumed.
    let block = work.block(work.options.block, direct.align);
    let flights = depth.saturating_mul(block).div_ceil(work.largest().max(1)).min(depth) + 1;
    let flights = flights.min(work.remaining().div_ceil(count)).max(1);
    let slot = work.slot_bytes(direct.align);
    let memory = |source| TransferError::Memory { path: work.path.into(), source };
    let slots = Region::new(slot.saturating_mul(flights).saturating_mul(count)).map_err(memory)?;
    direct.prepare(slots.as_mut_ptr(), slots.len());
    report.engine = Engine::IoUring;
    report.buffers = slots.len() as u64;

    let mut workers = Vec::new();
    report.registered = work.options.register;
    for (i, ring) in rings.into_iter().enumerate() {
        // In bounds: the region has `count` times `flights` slots.
        let first = slots.as_mut_ptr().wrapping_add(i * flights * slot);
        let mut worker = Worker::new(work, direct, ring, depth, block, flights, first, slot);
        if report.registered
            && let Err(error) = worker.register()
        {
            report.registered = false;
            report.fallbacks.push(Fallback::NotRegistered { errno: errno(&error) });
        }
        workers.push(worker);
    }
    let wanted = workers.len();
    let (broken, had) = thread::scope(|scope| {
        let own = workers.pop();
        // On as many threads as the system gives, and on this one in any case.
        let handles = workers.into_iter().map_while(|mut worker| {
            let read = move || {
                worker.read_pieces();
                worker.broken
            };
            thread::Builder::new().name("alight-read".into()).spawn_scoped(scope, read).ok()
        });
        let handles: Vec<_> = handles.collect();
        let had = handles.len() + 1;
        let own = own.and_then(|mut worker| {
            worker.read_pieces();
            worker.broken
        });
        let join = |handle: thread::ScopedJoinHandle<'_, Option<i32>>| match handle.join() {
            Ok(broken) => broken,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        (handles.into_iter().map(join).fold(own, Option::or), had)
    });
    report.threads = report.threads.or(Threads { wanted, had });
    if let Some(errno) = broken {
        report.fallbacks.push(Fallback::NoRing { errno });
        (report.engine, report.registered) = (Engine::Threads, false);
    }
    Ok(())
}

/// A ring that knows plain reads (since Linux 5.6).
fn ring(depth: usize) -> io::Result<IoUring> {
    let ring = IoUring::new(depth as u32)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    match probe.is_supported(opcode::Read::CODE) {
        true => Ok(ring),
        false => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A piece that is being read.
struct Flight {
    piece: usize,
    /// Blocks that are not complete.
    left: usize,
    bytes: *const u8,
    len: usize,
}

/// One thread with its ring and its slots.
struct Worker<'a> {
    work: &'a Work<'a>,
    direct: &'a Direct,
    ring: IoUring,
    block: usize,
    slots: Vec<*mut u8>,
    slot_bytes: usize,
    registered: bool,
    /// What each slot is used for.
    flights: Vec<Option<Flight>>,
    /// Blocks in the ring, by the number that comes back with their completion, and their slots.
    in_ring: Vec<Option<(usize, Block)>>,
    /// Numbers that are free.
    numbers: Vec<usize>,
    /// Numbers that are in the ring but not submitted yet, oldest first.
    unsubmitted: VecDeque<usize>,
    /// Blocks that are not in the ring yet, and their slots.
    waiting: VecDeque<(usize, Block)>,
    /// Slots whose piece is complete.
    ready: VecDeque<usize>,
    /// The ring does not take anything any more, and why.
    broken: Option<i32>,
}

// SAFETY: the pointers are to slots that this worker alone uses, and to targets, which
// `Target::new` promises to the transfer.
unsafe impl Send for Worker<'_> {}

impl<'a> Worker<'a> {
    #[allow(clippy::too_many_arguments)] // all of them numbers of the same plan
    fn new(
        work: &'a Work<'a>,
        direct: &'a Direct,
        ring: IoUring,
        depth: usize,
        block: usize,
        flights: usize,
        first: *mut u8,
        slot_bytes: usize,
    ) -> Worker<'a> {
        Worker {
            work,
            direct,
            ring,
            block,
            slots: (0..flights).map(|i| first.wrapping_add(i * slot_bytes)).collect(),
            slot_bytes,
            registered: false,
            flights: (0..flights).map(|_| None).collect(),
            in_ring: (0..depth).map(|_| None).collect(),
            numbers: (0..depth).rev().collect(),
            unsubmitted: VecDeque::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            broken: None,
        }
    }

    /// Registers the slots, so that the kernel need not look up their pages for each read.
    fn register(&mut self) -> io::Result<()> {
        let slice =
            |slot: &*mut u8| libc::iovec { iov_base: slot.cast(), iov_len: self.slot_bytes };
        let slots: Vec<_> = self.slots.iter().map(slice).collect();
        // SAFETY: the slots live longer than the ring, and are used only by this worker.
        unsafe { self.ring.submitter().register_buffers(&slots) }?;
        self.registered = true;
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_ring.len() - self.numbers.len()
    }

    /// Until there is no piece to take, or to take in this way, and all that were taken are done.
    fn read_pieces(&mut self) {
        loop {
            self.fill();
            self.submit(0);
            // The disk has work now, so the consumer gets its time, a piece at a time.
            if let Some(slot) = self.ready.pop_front() {
                self.consume(slot);
            } else if self.in_flight() > 0 {
                self.submit(1);
            } else if self.waiting.is_empty() {
                return;
            }
            self.reap();
        }
    }

    /// Takes pieces while the ring has free entries and slots are free.
    fn fill(&mut self) {
        if self.work.over() {
            self.waiting.clear();
            self.ready.clear();
        }
        while self.waiting.len() < self.numbers.len()
            && self.broken.is_none()
            && !self.work.direct_refused()
            && let Some(slot) = self.flights.iter().position(Option::is_none)
            && let Some(piece) = self.work.take()
        {
            let start = self.slots[slot];
            let plan = blocks::plan(&self.work.pieces[piece], start, self.direct.align, self.block);
            if plan.blocks.is_empty() {
                self.ready.push_back(slot);
            }
            let left = plan.blocks.len();
            self.flights[slot] = Some(Flight { piece, left, bytes: plan.bytes, len: plan.len });
            self.waiting.extend(plan.blocks.into_iter().map(|block| (slot, block)));
        }
        while let Some((slot, block)) = self.waiting.pop_front() {
            if self.broken.is_some() {
                self.wait_for(slot, block);
            } else if let Some(number) = self.numbers.pop() {
                self.push(number, slot, block);
            } else {
                self.waiting.push_front((slot, block));
                break;
            }
        }
    }

    /// Puts a read into the ring.
    fn push(&mut self, number: usize, slot: usize, block: Block) {
        let from = block.resume(self.direct.align);
        let to = block.to.wrapping_add(from);
        let len = (block.len - from) as u32;
        let offset = block.offset + from as u64;
        if !block.in_slot {
            self.direct.prepare(to, len as usize);
        }
        let file = types::Fd(self.direct.file.as_raw_fd());
        let entry = if self.registered && block.in_slot {
            opcode::ReadFixed::new(file, to, len, slot as u16).offset(offset).build()
        } else {
            opcode::Read::new(file, to, len).offset(offset).build()
        };
        // SAFETY: `len` bytes from `to` on are the transfer's until the completion, which `Drop`
        // waits for in any case; the file stays open as long.
        let pushed =
            unsafe { self.ring.submission().push(&entry.user_data(number as u64)) }.is_ok();
        if pushed {
            self.in_ring[number] = Some((slot, block));
            self.unsubmitted.push_back(number);
        } else {
            // Cannot be: the ring has as many entries as there are numbers.
            self.numbers.push(number);
            self.wait_for(slot, block);
        }
    }

    /// Gives the kernel what is in the ring and waits until `want` reads are complete.
    fn submit(&mut self, want: usize) {
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
                        if let Some((slot, block)) = self.in_ring[number].take() {
                            self.waiting.push_back((slot, block));
                        }
                        self.numbers.push(number);
                    }
                }
            },
        }
    }

    /// Takes what is complete out of the ring.
    fn reap(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            let number = entry.user_data() as usize;
            let Some((slot, mut block)) = self.in_ring.get_mut(number).and_then(Option::take)
            else {
                continue;
            };
            self.numbers.push(number);
            let from = block.resume(self.direct.align);
            let result = entry.result();
            #[cfg(test)]
            let result = match self.work.interpose {
                Some(interpose) => interpose(result, block.to.wrapping_add(from)),
                None => result,
            };
            match result {
                count if count > 0 => {
                    if block.advance(from, count as usize) {
                        block.tries = 0;
                    } else {
                        block.tries = TRIES;
                    }
                }
                result if result == -libc::EINTR || result == -libc::EAGAIN => block.tries += 1,
                // The end, or a refusal, or a failure: a plain read shows which.
                _ => block.tries = TRIES,
            }
            if block.complete() {
                self.landed(slot, &block);
            } else if block.tries >= TRIES {
                self.wait_for(slot, block);
            } else {
                self.waiting.push_front((slot, block));
            }
        }
    }

    /// Reads a block outside of the ring.
    fn wait_for(&mut self, slot: usize, mut block: Block) {
        if self.work.over() {
            return;
        }
        match threads::read_block(self.work, Some(self.direct), &mut block) {
            Ok(()) => self.landed(slot, &block),
            Err(error) => self.work.fail(error),
        }
    }

    fn landed(&mut self, slot: usize, block: &Block) {
        block.deliver();
        if let Some(flight) = &mut self.flights[slot] {
            flight.left -= 1;
            if flight.left == 0 {
                self.ready.push_back(slot);
            }
        }
    }

    fn consume(&mut self, slot: usize) {
        let Some(flight) = self.flights[slot].take() else { return };
        // SAFETY: all blocks of the piece are complete: as many bytes have been written there. The
        // slot is not used for another piece before the consumer returns.
        let bytes = unsafe { std::slice::from_raw_parts(flight.bytes, flight.len) };
        self.work.hand_over(flight.piece, bytes);
    }
}

impl Drop for Worker<'_> {
    /// Waits for whatever the kernel still writes to.
    fn drop(&mut self) {
        self.waiting.clear();
        while self.in_flight() > 0 {
            self.submit(1);
            // The result is of no use any more.
            let numbers: Vec<_> =
                self.ring.completion().map(|entry| entry.user_data() as usize).collect();
            for number in numbers {
                if self.in_ring.get_mut(number).and_then(Option::take).is_some() {
                    self.numbers.push(number);
                }
            }
            self.waiting.clear();
        }
    }
}
