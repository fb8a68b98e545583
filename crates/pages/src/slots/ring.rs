//! Reads into slots through one ring, for as long as the slots exist. The visiting thread submits them and takes completed ones: no
//! thread is woken for that.

use std::collections::VecDeque;
use std::time::Instant;

use super::state::{Shared, SlotRead, State};
use crate::transfer::blocks::Block;
use crate::transfer::flights::{Flights, Handing, Landing};

/// Maximum number of reads in flight. A disk needs few at a time. But nothing is submitted while a visit computes, and with a long
/// prompt that takes as long as reading all experts of a layer: hundreds of reads of at most 1 MiB.
const DEPTH: usize = 512;

pub(super) struct Ring {
    flights: Flights<SlotRead>,
    /// Reads that have to be continued.
    again: VecDeque<(SlotRead, Block)>,
    /// The time since which no read is known to be in progress.
    idle_since: Option<Instant>,
}

// SAFETY: the pointers are to slots that belong to reads, whichever thread submits them.
unsafe impl Send for Ring {}
// SAFETY: a shared reference allows only counting.
unsafe impl Sync for Ring {}

impl Ring {
    /// `None`: the system refuses it, or a file cannot be read that way.
    pub(super) fn new(shared: &Shared) -> Option<Ring> {
        let suits = shared.files.iter().all(|file| file.suits_ring());
        let flights = suits.then(|| Flights::new(DEPTH).ok()).flatten()?;
        Some(Ring { flights, again: VecDeque::with_capacity(DEPTH), idle_since: None })
    }

    /// True if nothing is being read.
    pub(super) fn is_idle(&self) -> bool {
        self.flights.count() == 0 && self.again.is_empty()
    }

    /// Waits until a read has completed.
    pub(super) fn wait(&mut self) {
        let want = self.flights.count().min(1);
        self.flights.submit(want, |job, block| self.again.push_back((job, block)));
    }

    /// Takes completed reads, and submits pending ones.
    pub(super) fn turn(&mut self, shared: &Shared, state: &mut State) {
        self.hand_in(shared, state);
        let mut any = false;
        while let Some((job, block, landing)) =
            self.flights.next(|result, to| shared.seen(result, to))
        {
            any = true;
            match landing {
                Landing::Complete => state.ended(job.slot, Ok(())),
                Landing::Again => self.again.push_back((job, block)),
                Landing::Alone => shared.read_alone(state, job, block),
            }
        }
        if any {
            self.hand_in(shared, state);
            if self.is_idle() {
                self.idle_since = Some(Instant::now());
            }
        }
    }

    fn hand_in(&mut self, shared: &Shared, state: &mut State) {
        while self.flights.free() > 0 {
            let next = self.again.pop_front();
            let next = next.or_else(|| state.queue.pop_front().map(|job| (job, shared.block(job))));
            let Some((job, block)) = next else { break };
            let file = &shared.files[shared.layout.spans[job.span].span.file];
            let pushed = match file.direct() {
                // SAFETY: the bytes of the block are in the job's slot, which belongs to the readers until all of its piece has arrived.
                // The region and the file live as long as `shared`, and the ring ends before that.
                Some(direct) => unsafe {
                    // The kernel's own threads clear the memory, on as many CPUs as are free, while this one computes.
                    let how = if job.clears { Handing::Apart } else { Handing::Here };
                    self.flights.push(direct, None, how, (job, block))
                },
                None => Err((job, block)),
            };
            if let Err((job, block)) = pushed {
                shared.read_alone(state, job, block);
            }
        }
        if self.flights.count() > 0
            && let Some(since) = self.idle_since.take()
        {
            state.counts.idle += since.elapsed();
        }
        self.flights.submit(0, |job, block| self.again.push_back((job, block)));
    }
}
