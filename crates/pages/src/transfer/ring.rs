//! Direct reads through io_uring, one ring per thread.

use std::collections::VecDeque;
use std::io;
use std::thread;

use super::blocks::{self, Block};
use super::direct::Direct;
use super::flights::{Flights, Handing, Landing, errno};
use super::threads::Reads;
use super::work::Work;
use super::{Engine, TransferError, TransferFallback, TransferReport, threads};
use crate::Threads;
use crate::region::Region;

/// Reads the pieces that no thread has taken yet. If the system refuses io_uring, the report states it and pieces remain.
pub(crate) fn run(
    work: &Work,
    direct: &Direct,
    report: &mut TransferReport,
) -> Result<(), TransferError> {
    let count = work.options.threads.clamp(1, work.remaining().max(1));
    let depth = work.options.depth.div_ceil(count).clamp(1, 4096);
    let rings = match (0..count).map(|_| Flights::new(depth)).collect::<io::Result<Vec<_>>>() {
        Ok(rings) => rings,
        Err(error) => {
            report.fallbacks.push(TransferFallback::NoRing { errno: errno(&error) });
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
        let mut worker = Worker::new(work, direct, ring, block, flights, first, slot);
        if report.registered
            && let Err(error) = worker.register()
        {
            report.registered = false;
            report.fallbacks.push(TransferFallback::NotRegistered { errno: errno(&error) });
        }
        workers.push(worker);
    }
    let wanted = workers.len();
    let (broken, had) = thread::scope(|scope| {
        let own = workers.pop();
        // On as many threads as the system provides, and on this one in any case.
        let handles = workers.into_iter().map_while(|mut worker| {
            let read = move || {
                worker.read_pieces();
                worker.ring.broken()
            };
            thread::Builder::new().name("alight-read".into()).spawn_scoped(scope, read).ok()
        });
        let handles: Vec<_> = handles.collect();
        let had = handles.len() + 1;
        let own = own.and_then(|mut worker| {
            worker.read_pieces();
            worker.ring.broken()
        });
        let join = |handle: thread::ScopedJoinHandle<'_, Option<i32>>| match handle.join() {
            Ok(broken) => broken,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        (handles.into_iter().map(join).fold(own, Option::or), had)
    });
    report.threads = report.threads.or(Threads { wanted, had });
    if let Some(errno) = broken {
        report.fallbacks.push(TransferFallback::NoRing { errno });
        (report.engine, report.registered) = (Engine::Threads, false);
    }
    Ok(())
}

/// A piece that is being read.
struct PieceInFlight {
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
    /// Blocks that are being read, and their slots.
    ring: Flights<usize>,
    block: usize,
    slots: Vec<*mut u8>,
    slot_bytes: usize,
    registered: bool,
    /// The piece in each slot.
    flights: Vec<Option<PieceInFlight>>,
    /// Blocks that are not in the ring yet, and their slots.
    waiting: VecDeque<(usize, Block)>,
    /// Slots whose piece is complete.
    ready: VecDeque<usize>,
}

// SAFETY: the pointers are to slots that only this worker uses, and to targets, which `Piece::at` reserves for the transfer.
unsafe impl Send for Worker<'_> {}

impl<'a> Worker<'a> {
    #[allow(clippy::too_many_arguments)] // all of them numbers of the same plan
    fn new(
        work: &'a Work<'a>,
        direct: &'a Direct,
        ring: Flights<usize>,
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
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// Registers the slots, so that the kernel need not look up their pages for each read.
    fn register(&mut self) -> io::Result<()> {
        let slice =
            |slot: &*mut u8| libc::iovec { iov_base: slot.cast(), iov_len: self.slot_bytes };
        let slots: Vec<_> = self.slots.iter().map(slice).collect();
        // SAFETY: the slots live longer than the ring, and are used only by this worker.
        unsafe { self.ring.register(&slots) }?;
        self.registered = true;
        Ok(())
    }

    /// Reads until there is no piece to take, or to take in this way, and all taken pieces are done.
    fn read_pieces(&mut self) {
        loop {
            self.fill();
            self.submit(0);
            // The disk has work now, so the consumer gets time, one piece at a time.
            if let Some(slot) = self.ready.pop_front() {
                self.consume(slot);
            } else if self.ring.count() > 0 {
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
        while self.waiting.len() < self.ring.free()
            && self.ring.broken().is_none()
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
            self.flights[slot] =
                Some(PieceInFlight { piece, left, bytes: plan.bytes, len: plan.len });
            self.waiting.extend(plan.blocks.into_iter().map(|block| (slot, block)));
        }
        while let Some((slot, block)) = self.waiting.pop_front() {
            let registered = (self.registered && block.in_slot).then_some(slot as u16);
            // SAFETY: the bytes of the block belong to the transfer until it is complete, which dropping the ring waits for in any case,
            // and the file stays open until then.
            match unsafe { self.ring.push(self.direct, registered, Handing::Here, (slot, block)) } {
                Ok(()) => {}
                Err((slot, block)) if self.ring.broken().is_some() => self.wait_for(slot, block),
                Err(full) => {
                    self.waiting.push_front(full);
                    break;
                }
            }
        }
    }

    /// Submits the entries of the ring to the kernel and waits until `want` reads are complete.
    fn submit(&mut self, want: usize) {
        self.ring.submit(want, |slot, block| self.waiting.push_back((slot, block)));
    }

    /// Takes completed reads out of the ring.
    fn reap(&mut self) {
        let seen = |result, to| self.work.seen(result, to);
        while let Some((slot, block, landing)) = self.ring.next(seen) {
            match landing {
                Landing::Complete => self.landed(slot, &block),
                Landing::Again => self.waiting.push_front((slot, block)),
                Landing::Alone => self.wait_for(slot, block),
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
        // SAFETY: all blocks of the piece are complete, so this many bytes have been written there. The slot is not used for another
        // piece before the consumer returns.
        let bytes = unsafe { std::slice::from_raw_parts(flight.bytes, flight.len) };
        self.work.hand_over(flight.piece, bytes);
    }
}
