//! Ranks in several processes of one host that call together, over shared memory.
//!
//! As [`ThreadGroup`](crate::ThreadGroup) with its algorithm `Split`, but nothing is lent, since no process sees another's memory:
//! each rank copies its operand into its slot and arrives; when all have, every rank that is awake takes blocks of rows and
//! computes them into the common result, from all slots and its own residual and weights; when all blocks are done, each copies
//! the result. One buffer of each is enough: no rank passes before all blocks are done, so no slot is being read when its rank
//! writes it for the next call; and the result is not written before all have arrived at the next call, having copied this one's.
//!
//! A process can be killed at any point, even in the middle of its blocks. Then the others wait up to the limit, and no rank
//! passes any more: that is safe because blocks that are still being written do not go to the callers' memory.

use std::cell::UnsafeCell;
use std::ptr::{copy_nonoverlapping, null};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use alight_kernels::Isa;

use crate::barrier::{Barrier, Missed, Rules};
use crate::call::Clock;
use crate::choose::{BLOCK, blocks, helpers};
use crate::error::CollectiveError;
use crate::region::LINE;
use crate::rows::{Arrays, compute};
use crate::shared_segment::{Key, SharedRegion, SharedSegment};
use crate::spec::{Args, Element, Spec, check};
use crate::thread_group::{Leave, RANKS};
use crate::word::Shared;

/// How to join a [`ProcessGroup`]. All except `processes` as in [`Options`](crate::Options).
#[derive(Clone, Debug)]
pub struct ProcessGroupOptions {
    /// Identifies the group: the same in all processes.
    pub key: Key,
    /// Number of ranks, 1 to 64.
    pub ranks: usize,
    /// Number of processes.
    pub processes: usize,
    /// Maximum bytes of a rank's operand. Memory: ranks + 2 times that.
    pub capacity: usize,
    /// The longest that a rank waits for the others.
    pub limit: Duration,
    /// Bytes of an operand's rows in a block.
    pub block: usize,
    /// The SIMD level of the arithmetic, which every process chooses for itself: results do not depend on it.
    pub isa: Isa,
}

impl ProcessGroupOptions {
    /// Options for `ranks` ranks in `processes` processes and operands of at most `capacity` bytes; ranks wait for at most 30
    /// seconds.
    pub fn new(key: Key, ranks: usize, processes: usize, capacity: usize) -> ProcessGroupOptions {
        let limit = Duration::from_secs(30);
        ProcessGroupOptions {
            key,
            ranks,
            processes,
            capacity,
            limit,
            block: BLOCK,
            isa: Isa::best(),
        }
    }
}

/// The start of a group's region. Initially zeros.
#[repr(C)]
struct Table {
    barrier: Barrier<Shared>,
    seats: [ProcessSeat; RANKS],
    note: Note,
}

/// The data that a rank passes to the others; written by it before it arrives, read by the last to arrive.
#[repr(C, align(128))]
struct ProcessSeat {
    /// The number of the last call that it arrived at, plus one; only for reporting missing ranks.
    arrived: AtomicU32,
    card: UnsafeCell<SpecNumbers>,
}

/// A spec as plain numbers. Only ever compared.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct SpecNumbers {
    rows: u64,
    hidden: u64,
    epsilon: u32,
    kinds: [u8; 4],
}

impl SpecNumbers {
    fn new(spec: &Spec) -> SpecNumbers {
        let kind = |element| match element {
            Element::Bf16 => 0,
            Element::F16 => 1,
            Element::F32 => 2,
        };
        let flags = [u8::from(spec.bias), u8::from(spec.post_norm)];
        SpecNumbers {
            rows: spec.rows as u64,
            hidden: spec.hidden as u64,
            epsilon: spec.epsilon.to_bits(),
            kinds: [kind(spec.element), kind(spec.weight), flags[0], flags[1]],
        }
    }
}

const NOTE: usize = 500;

/// The first failure, as text, for the other processes.
#[repr(C)]
struct Note {
    /// 0: no failure; 1: being written; otherwise the length plus two.
    state: AtomicU32,
    text: UnsafeCell<[u8; NOTE]>,
}

impl Note {
    fn write(&self, text: &str) {
        if self.state.compare_exchange(0, 1, AcqRel, Relaxed).is_err() {
            return;
        }
        let mut end = text.len().min(NOTE);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        // SAFETY: only we have made it 1, there are no reads before it is larger, and the text is long enough.
        unsafe { copy_nonoverlapping(text.as_ptr(), self.text.get().cast(), end) };
        self.state.store(end as u32 + 2, Release);
    }

    fn read(&self) -> Option<String> {
        let length = (self.state.load(Acquire) as usize).checked_sub(2)?.min(NOTE);
        // SAFETY: written once, before the length.
        let text = unsafe { std::slice::from_raw_parts(self.text.get().cast::<u8>(), length) };
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

/// This process's state for one of its own ranks.
struct Own {
    taken: AtomicBool,
    next: UnsafeCell<u32>,
}

/// Ranks in several processes that make the same calls in the same order.
pub struct ProcessGroup {
    place: SharedRegion,
    own: Box<[Own]>,
    slot: usize,
    cores: usize,
    options: ProcessGroupOptions,
    because: OnceLock<CollectiveError>,
}

// SAFETY: the number of a rank's next call is accessed only by the thread that has taken the rank; shared memory, by the rules at
// the top of this file.
unsafe impl Sync for ProcessGroup {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for ProcessGroup {}

impl ProcessGroup {
    /// Joins a group, as one of its processes. The first process creates it.
    pub fn join(
        segment: &Arc<SharedSegment>,
        options: ProcessGroupOptions,
    ) -> Result<ProcessGroup, CollectiveError> {
        let (ranks, capacity) = (options.ranks, options.capacity);
        let wrong = |problem| CollectiveError::Options { ranks, capacity, problem };
        if ranks == 0 || ranks > RANKS {
            return Err(wrong("there must be 1 to 64 ranks"));
        }
        let slot = capacity.max(1).checked_next_multiple_of(LINE);
        let bytes = slot
            .and_then(|slot| slot.checked_mul(ranks + 2)?.checked_add(size_of::<Table>()))
            .ok_or_else(|| wrong("the operands are larger than any memory"))?;
        let place = segment.place(options.key, bytes, options.processes as u32, options.limit)?;
        let own = |_| Own { taken: AtomicBool::new(false), next: UnsafeCell::new(0) };
        Ok(ProcessGroup {
            place,
            own: (0..ranks).map(own).collect(),
            slot: slot.unwrap_or(LINE),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            options,
            because: OnceLock::new(),
        })
    }

    /// Number of ranks, in all processes.
    pub fn ranks(&self) -> usize {
        self.options.ranks
    }

    fn table(&self) -> &Table {
        // SAFETY: a region begins with its table, at the start of a page; it consists of atomics and of cells that are used by the
        // rules at the top of this file.
        unsafe { &*self.place.at(0).cast::<Table>() }
    }

    /// The slots of the operands, then the norm and the new residual.
    fn slot(&self, number: usize) -> *mut u8 {
        self.place.at(size_of::<Table>() + number * self.slot)
    }

    /// As [`ThreadGroup::allreduce_norm`](crate::ThreadGroup::allreduce_norm).
    pub fn allreduce_norm(
        &self,
        rank: usize,
        spec: &Spec,
        args: Args<'_>,
    ) -> Result<(), CollectiveError> {
        let ranks = self.options.ranks;
        let own = self.own.get(rank).ok_or(CollectiveError::Rank { rank, ranks })?;
        if own.taken.swap(true, Acquire) {
            return Err(CollectiveError::InUse { rank });
        }
        let _leave = Leave(&own.taken);
        let bytes = check(rank, spec, &args, self.options.capacity).inspect_err(|error| {
            self.record(error);
            self.table().barrier.poison();
        })?;
        if self.table().barrier.is_poisoned() {
            return Err(self.poisoned());
        }
        self.call(rank, own, spec, bytes, args)
    }

    fn call(
        &self,
        rank: usize,
        own: &Own,
        spec: &Spec,
        bytes: usize,
        args: Args<'_>,
    ) -> Result<(), CollectiveError> {
        let (table, ranks) = (self.table(), self.options.ranks);
        let (rows, blocks) = blocks(spec, self.options.block);
        let row = spec.hidden * spec.element.size();
        // SAFETY: the rank is taken.
        let call = unsafe { *own.next.get() };
        let seat = &table.seats[rank];
        let (normed, new_residual) = (args.normed.as_mut_ptr(), args.new_residual.as_mut_ptr());
        let partial = args.partial.map_or(normed.cast_const(), <[u8]>::as_ptr);
        let residual = args.residual.map_or(new_residual.cast_const(), <[u8]>::as_ptr);
        // SAFETY: the slot and the card are ours until we arrive, and the slot is large enough (`check`).
        unsafe {
            copy_nonoverlapping(partial, self.slot(rank), bytes);
            *seat.card.get() = SpecNumbers::new(spec);
        }
        seat.arrived.store(call.wrapping_add(1), Relaxed);
        let work = |block: u32| {
            let first = block as usize * rows;
            let (start, count) = (first * row, rows.min(spec.rows - first));
            let mut partials = [null::<u8>(); RANKS];
            // SAFETY: all have arrived with this spec, so all slots hold `bytes` bytes, which are not written before all blocks
            // are done; the block's rows of the result are ours; lengths were checked.
            unsafe {
                for (other, partial) in partials.iter_mut().enumerate().take(ranks) {
                    *partial = self.slot(other).add(start);
                }
                let arrays = Arrays {
                    partials: &partials[..ranks],
                    residual: residual.add(start),
                    weight: args.weight.as_ptr(),
                    post_weight: args.post_weight.map_or(null(), <[u8]>::as_ptr),
                    normed: self.slot(ranks).add(start),
                    new_residual: self.slot(ranks + 1).add(start),
                };
                compute(self.options.isa, &Spec { rows: count, ..*spec }, &arrays);
            }
        };
        let helpers = helpers(blocks, self.cores);
        let rules = Rules { lends: false, ..Rules::new(ranks as u32, blocks, helpers) };
        let mut patience = Clock::new(self.options.limit);
        let met = table.barrier.pass(rules, call, &mut patience, || self.compare(), work);
        if let Err(missed) = met {
            return Err(self.missed(rank, call, missed));
        }
        // SAFETY: after the barrier the common result is this call's, and is not written before we arrive at the next; lengths
        // were checked.
        unsafe {
            copy_nonoverlapping(self.slot(ranks), normed, bytes);
            copy_nonoverlapping(self.slot(ranks + 1), new_residual, bytes);
            *own.next.get() = call.wrapping_add(1);
        }
        Ok(())
    }

    /// Checks that all ranks are in the same call. Called by the last to arrive.
    fn compare(&self) -> Result<(), CollectiveError> {
        let seats = &self.table().seats[..self.options.ranks];
        // SAFETY: the others wrote their cards before they arrived, and write them again only after this call.
        let card = |rank: usize| unsafe { *seats[rank].card.get() };
        match (1..seats.len()).find(|rank| card(*rank) != card(0)) {
            None => Ok(()),
            Some(second) => {
                let shape = |card: SpecNumbers| format!("[{}, {}]", card.rows, card.hidden);
                let error = CollectiveError::Differ {
                    first: 0,
                    first_run: 0,
                    first_shape: shape(card(0)),
                    second,
                    second_run: 0,
                    second_shape: shape(card(second)),
                };
                // Before the barrier is poisoned, which is when the others look for it.
                self.record(&error);
                Err(error)
            }
        }
    }

    fn missed(&self, rank: usize, call: u32, missed: Missed<CollectiveError>) -> CollectiveError {
        match missed {
            Missed::Poisoned => self.poisoned(),
            Missed::Failed(error) => error,
            Missed::TimedOut => {
                let here = call.wrapping_add(1);
                let seats = self.table().seats[..self.options.ranks].iter().enumerate();
                let absent = seats.filter(|(_, seat)| seat.arrived.load(Relaxed) != here);
                let missing = absent.map(|(rank, _)| rank).collect();
                let (run, limit) = (i64::from(call), self.options.limit);
                let error = CollectiveError::TimedOut { rank, run, limit, missing };
                self.record(&error);
                error
            }
        }
    }

    /// Records the first failure, for later calls in all processes.
    fn record(&self, error: &CollectiveError) {
        let _ = self.because.set(error.clone());
        self.table().note.write(&error.to_string());
    }

    fn poisoned(&self) -> CollectiveError {
        CollectiveError::poisoned(|| {
            let because = self.because.get().map(CollectiveError::to_string);
            because.or_else(|| self.table().note.read())
        })
    }
}
