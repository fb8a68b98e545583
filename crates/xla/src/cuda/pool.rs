//! Pieces of files in slots of a GPU's memory: a tier above the slots of `alight-pages`, which are page-locked once, and read from
//! the file the pieces that neither has.
//!
//! A visit ([`Pool::hold`]) requests pieces of a group. Those on the GPU can be used at once; the others are copied from the host's
//! slots on a stream of the pool, in the order in which they arrive there. [`Shelf`] chooses the piece to evict, as in the host's
//! slots. Kernels find a piece through a table on the GPU, `i32[pieces of the group]`: its slot, or [`NOWHERE`].
//!
//! Nothing is allocated after [`Pool::new`], and nothing waits for a kernel, except for those of a visit so long ago that its table
//! is written again.
//!
//! **Invariant:** a slot on the GPU is written after all kernels of all previous visits, and read after its copy: the copy stream
//! waits for the end of each visit, and a visit's stream waits for the copies and for the previous visit. A slot of the host is
//! written after its copy: the host waits for the copies of the previous visit. A piece whose arrival the visit has not seen is in
//! no slot afterwards.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alight_pages::slots::{HeldGroup, Layout, Shelf, SlotCounts, SlotSizes, Slots, SlotsError};
use alight_pages::transfer::TransferError;
use alight_pages::{Region, RegionError};
use thiserror::Error;

use super::driver::{Driver, Event, Memory, Stream};
use super::error::CudaError;
use super::locked::LockedPages;

/// The alignment of a span in a slot: kernels read 16 bytes at a time.
pub const ALIGN: usize = 256;
/// The table entry of a piece that the visit does not request.
pub const NOWHERE: i32 = -1;
/// The number of the host's tables: while one is copied, the next is written.
const TABLES: usize = 2;

/// The reason pieces are not on a GPU.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The slots on the GPU could not be created.
    #[error("slots on GPU {ordinal}: {source}")]
    Slots {
        /// The GPU.
        ordinal: i64,
        /// The reason.
        source: Arc<SlotsError>,
    },
    /// The host has no memory for tables.
    #[error(transparent)]
    Memory(Arc<RegionError>),
    /// Pieces of a group are not of one size, so no table can locate them.
    #[error("slots on GPU {ordinal}: pieces of group {group} are of several sizes, expected one")]
    Sizes {
        /// The GPU.
        ordinal: i64,
        /// The group.
        group: usize,
    },
    /// The driver refuses a call.
    #[error("slots on GPU {ordinal}: {source}")]
    Driver {
        /// The GPU.
        ordinal: i64,
        /// The error.
        source: CudaError,
    },
    /// A file cannot be read.
    #[error(transparent)]
    Read(Arc<TransferError>),
}

/// Counts of a pool so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Pieces that were requested.
    pub wanted: u64,
    /// Those of them that were on the GPU.
    pub hits: u64,
    /// Pieces that were copied to the GPU.
    pub copied: u64,
    /// Bytes of these.
    pub copied_bytes: u64,
}

/// Pieces in slots of a GPU.
pub struct Pool {
    driver: &'static Driver,
    ordinal: i64,
    layout: Layout,
    memory: Memory,
    table: Memory,
    /// The stream of the copies to the GPU.
    copies: Stream,
    /// The end of the copies issued so far, on `copies`; and the end of the last visit, on its stream.
    sent: Event,
    used: Event,
    state: Mutex<PoolState>,
    // Fields are dropped in this order: pages are unlocked before they are freed.
    locked: LockedPages,
    host: Slots,
}

struct PoolState {
    shelf: Shelf,
    tables: Tables,
    /// By piece of the visit's group: its slot, if it is requested.
    slot_of: Vec<Option<usize>>,
    /// By piece of the visit's group: true if the visit's stream may use it.
    here: Vec<bool>,
    /// Pieces of the group that the host does not have yet, and those whose copies the visit's stream does not wait for yet.
    coming: Vec<usize>,
    sending: Vec<usize>,
    counts: PoolCounts,
    /// Set if streams may not wait for one another as required: no further visit is permitted.
    failed: Option<CudaError>,
}

/// Tables of the host, page-locked.
struct Tables {
    // Dropped before the region.
    locked: LockedPages,
    region: Region,
    /// Entries of each table.
    entries: usize,
    next: usize,
    /// The end of the last copy of each table.
    copied: [Event; TABLES],
}

/// A visit: its pieces stay in their slots until it is dropped.
pub struct Held<'p> {
    pool: &'p Pool,
    state: MutexGuard<'p, PoolState>,
    host: Option<HeldGroup<'p>>,
    group: usize,
    stream: Stream,
}

/// The information with which kernels find a matrix of each piece of a group.
#[derive(Clone, Copy, Debug)]
pub struct DeviceStack {
    /// `i32[pieces]`, on the GPU.
    pub table: u64,
    /// Pieces of the group.
    pub pieces: u32,
    /// The address of the matrix in slot 0, the bytes of a slot, and the number of slots.
    pub first: u64,
    /// See `first`.
    pub stride: u64,
    /// See `first`.
    pub slots: u32,
    /// Bytes from there to the end of the span.
    pub bytes: u64,
}

impl Pool {
    /// Creates slots on GPU `ordinal`, which use at most `budget` bytes, for the pieces of `host`. All memory of the host's slots
    /// is page-locked, and therefore resident, from now on.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn new(host: Slots, ordinal: i64, budget: u64) -> Result<Pool, PoolError> {
        let failed = |source| PoolError::Driver { ordinal, source };
        let driver = Driver::get().map_err(failed)?;
        let layout = host
            .layout()
            .elsewhere(ALIGN, budget)
            .map_err(|source| PoolError::Slots { ordinal, source: Arc::new(source) })?;
        let several = |group: &usize| {
            let mut sizes = layout.pieces_of(*group).map(|piece| layout.slots_for(piece));
            let first = sizes.next();
            sizes.any(|size| Some(size) != first)
        };
        if let Some(group) = (0..layout.groups()).find(several) {
            return Err(PoolError::Sizes { ordinal, group });
        }
        let entries =
            (0..layout.groups()).map(|group| layout.pieces_of(group).len()).max().unwrap_or(0);
        let memory = driver.allocate(ordinal, layout.bytes()).map_err(failed)?;
        let table = driver.allocate(ordinal, 4 * entries.max(1)).map_err(failed)?;
        let (start, bytes) = host.memory();
        // SAFETY: the memory lives as long as `host`, which is dropped after the lock.
        let locked = unsafe { driver.lock_pages(ordinal, start, bytes) }.map_err(failed)?;
        let state = PoolState {
            shelf: Shelf::new(&layout),
            tables: Tables::new(driver, ordinal, entries)?,
            slot_of: vec![None; entries],
            here: vec![false; entries],
            coming: Vec::with_capacity(entries),
            sending: Vec::with_capacity(entries),
            counts: PoolCounts::default(),
            failed: None,
        };
        Ok(Pool {
            driver,
            ordinal,
            layout,
            memory,
            table,
            copies: driver.stream(ordinal).map_err(failed)?,
            sent: driver.mark(ordinal).map_err(failed)?,
            used: driver.mark(ordinal).map_err(failed)?,
            state: Mutex::new(state),
            locked,
            host,
        })
    }

    /// The number of slots on the GPU.
    pub fn slots(&self) -> usize {
        self.layout.slots()
    }

    /// The counts so far.
    pub fn counts(&self) -> PoolCounts {
        self.state().counts
    }

    /// The slots of the host, and their counts.
    pub fn host(&self) -> (SlotSizes, SlotCounts) {
        (self.host.sizes(), self.host.counts())
    }

    /// The stream of the copies: for tests.
    pub fn copies(&self) -> Stream {
        self.copies
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, source: CudaError) -> PoolError {
        PoolError::Driver { ordinal: self.ordinal, source }
    }

    fn on(&self, run: impl FnOnce() -> Result<(), CudaError>) -> Result<(), CudaError> {
        self.driver.on(self.ordinal, run)
    }

    /// Begins a visit: the pieces `wanted` of `group` stay in their slots, or are brought into some. Kernels that use them must be
    /// put on `stream`, a stream of the GPU, before the returned value is dropped. A piece may be named twice.
    ///
    /// # Errors
    /// See [`PoolError`]. A piece that could not be brought is in no slot.
    ///
    /// # Panics
    /// If there is no such group or piece.
    pub fn hold(
        &self,
        group: usize,
        wanted: impl Iterator<Item = usize>,
        stream: Stream,
    ) -> Result<Held<'_>, PoolError> {
        let mut guard = self.state();
        let state = &mut *guard;
        if let Some(error) = &state.failed {
            return Err(self.failed(error.clone()));
        }
        let pieces = self.layout.pieces_of(group);
        state.slot_of.fill(None);
        state.here.fill(false);
        state.coming.clear();
        state.shelf.begin(group);
        // Resident pieces first, so that they stay.
        for index in wanted {
            assert!(index < pieces.len(), "piece {index} of {}", pieces.len());
            if state.slot_of[index].is_some() || state.coming.contains(&index) {
                continue;
            }
            state.counts.wanted += 1;
            state.slot_of[index] = state.shelf.want(pieces.start + index);
            match state.slot_of[index] {
                Some(_) => state.here[index] = true,
                None => state.coming.push(index),
            }
            state.counts.hits += u64::from(state.here[index]);
        }
        for index in &state.coming {
            let piece = pieces.start + index;
            let slot = state.shelf.victim(&self.layout, piece, |_| false);
            let slot = slot.expect("a layout has slots for all pieces of a group");
            state.shelf.give(piece, slot);
            state.slot_of[*index] = Some(slot);
        }
        // From here on, any failure ends the visit.
        let mut held = Held { pool: self, state: guard, host: None, group, stream };
        held.begin()?;
        Ok(held)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // After all visits and copies. If the wait fails, the driver executes nothing more.
        let _ = self.driver.wait(self.ordinal, self.copies);
    }
}

impl Tables {
    fn new(driver: &'static Driver, ordinal: i64, entries: usize) -> Result<Tables, PoolError> {
        let failed = |source| PoolError::Driver { ordinal, source };
        let region = Region::new(4 * TABLES * entries.max(1));
        let region = region.map_err(|source| PoolError::Memory(Arc::new(source)))?;
        // SAFETY: the region is dropped after the lock.
        let locked = unsafe { driver.lock_pages(ordinal, region.as_mut_ptr(), region.len()) };
        let mark = || driver.mark(ordinal).map_err(failed);
        let copied = [mark()?, mark()?];
        Ok(Tables { locked: locked.map_err(failed)?, region, entries, next: 0, copied })
    }

    /// Copies a table to `to`, in stream order.
    fn send(
        &mut self,
        driver: &Driver,
        to: &Memory,
        stream: Stream,
        entries: impl Iterator<Item = i32>,
    ) -> Result<(), CudaError> {
        let (at, copied) = (4 * self.next * self.entries, self.copied[self.next]);
        driver.reached(copied)?;
        self.next = (self.next + 1) % TABLES;
        for (i, entry) in entries.take(self.entries).enumerate() {
            // SAFETY: within the region, in the part of this table, which is not being read: its last copy has ended.
            unsafe { self.region.as_mut_ptr().add(at).cast::<i32>().add(i).write(entry) };
        }
        let bytes = &self.region.bytes()[at..at + 4 * self.entries];
        // SAFETY: it is written again after `copied`; the GPU's table is read only by this stream, and others wait for it.
        unsafe { to.copy_locked_later(0, &self.locked, bytes, stream)? };
        driver.record(copied, stream)
    }
}

impl Held<'_> {
    fn begin(&mut self) -> Result<(), PoolError> {
        let (pool, stream) = (self.pool, self.stream);
        let first = pool.layout.pieces_of(self.group).next();
        let first = first.map_or(0, |piece| pool.layout.slots_for(piece).0.start);
        let state = &mut *self.state;
        let PoolState { tables, slot_of, .. } = state;
        let entries = slot_of.iter().map(|slot| slot.map_or(NOWHERE, |slot| (slot - first) as i32));
        pool.on(|| {
            pool.driver.wait_for(stream, pool.used)?;
            tables.send(pool.driver, &pool.table, stream, entries)?;
            match state.coming.is_empty() {
                true => Ok(()),
                // Slots of the host may be written from here on.
                false => pool.driver.reached(pool.sent),
            }
        })
        .map_err(|error| pool.failed(error))?;
        if !self.state.coming.is_empty() {
            self.host = Some(pool.host.hold(self.group, self.state.coming.iter().copied()));
            self.send()?;
        }
        Ok(())
    }

    /// Starts copies of the pieces that the host has.
    fn send(&mut self) -> Result<(), PoolError> {
        let (pool, state) = (self.pool, &mut *self.state);
        let Some(host) = &self.host else { return Ok(()) };
        if !state.coming.iter().any(|piece| host.is_here(*piece)) {
            return Ok(());
        }
        // A piece that could not be read counts as here, too.
        if let Some(failure) = host.failure() {
            return Err(PoolError::Read(failure));
        }
        let first = pool.layout.pieces_of(self.group).start;
        let mut copied = Ok(());
        for index in state.coming.iter().filter(|piece| host.is_here(**piece)) {
            let (piece, slot) = (first + index, state.slot_of[*index].unwrap_or_default());
            for span in 0..pool.layout.spans_of(piece) {
                let to = pool.layout.place_of(slot, piece, span).start;
                let bytes = host.bytes(*index, span);
                // SAFETY: the host's slot is written again after `sent`; the GPU's slot is not in use: this stream waits for all
                // previous visits, and that of this visit waits for this stream.
                let copy = || unsafe {
                    pool.memory.copy_locked_later(to, &pool.locked, bytes, pool.copies)
                };
                copied = copied.and_then(|()| copy());
                state.counts.copied_bytes += bytes.len() as u64;
            }
            state.counts.copied += 1;
        }
        // This includes copies that were started before one was refused.
        let recorded = pool.on(|| pool.driver.record(pool.sent, pool.copies));
        if let Err(error) = &recorded {
            state.failed = Some(error.clone());
        }
        copied.and(recorded).map_err(|error| pool.failed(error))?;
        let sending = &mut state.sending;
        state.coming.retain(|piece| {
            let is_here = host.is_here(*piece);
            if is_here {
                sending.push(*piece);
            }
            !is_here
        });
        Ok(())
    }

    /// Makes the visit's stream wait for the copies in progress.
    fn arrive(&mut self) -> Result<(), PoolError> {
        let (pool, stream) = (self.pool, self.stream);
        let waits = pool.on(|| pool.driver.wait_for(stream, pool.sent));
        waits.map_err(|error| pool.failed(error))?;
        let PoolState { sending, here, .. } = &mut *self.state;
        sending.drain(..).for_each(|piece| here[piece] = true);
        Ok(())
    }

    /// True if kernels that are put on the stream now may use the piece.
    pub fn is_here(&self, piece: usize) -> bool {
        self.state.here[piece]
    }

    /// True if they may use all pieces.
    pub fn all_here(&self) -> bool {
        self.state.coming.is_empty() && self.state.sending.is_empty()
    }

    /// Returns when more pieces are here than before, in any order of arrival; at once, if all are. Work that was put on the stream
    /// before does not wait for them.
    ///
    /// # Errors
    /// See [`PoolError`]. The visit must end.
    pub fn wait_for_more(&mut self) -> Result<(), PoolError> {
        if self.state.sending.is_empty()
            && let Some(host) = &mut self.host
            && !self.state.coming.is_empty()
        {
            host.wait_for_more();
            self.send()?;
        }
        match self.state.sending.is_empty() {
            true => Ok(()),
            false => self.arrive(),
        }
    }

    /// The location, for kernels, of the bytes from `at` on of a span of each piece.
    ///
    /// # Panics
    /// If there is no such span, or `at` is beyond its end.
    pub fn stack(&self, span: usize, at: usize) -> DeviceStack {
        let (layout, pieces) = (&self.pool.layout, self.pool.layout.pieces_of(self.group));
        let (slots, _, stride) = layout.slots_for(pieces.start);
        let place = layout.place_of(slots.start, pieces.start, span);
        assert!(
            span < layout.spans_of(pieces.start) && at <= place.len(),
            "byte {at} of span {span}"
        );
        DeviceStack {
            table: self.pool.table.address(),
            pieces: pieces.len() as u32,
            first: self.pool.memory.address() + (place.start + at) as u64,
            stride: stride as u64,
            slots: slots.len() as u32,
            bytes: (place.len() - at) as u64,
        }
    }

    /// The address, for kernels, of the bytes of a span of a piece.
    ///
    /// # Panics
    /// If the piece is not here, or has no such span.
    pub fn address(&self, piece: usize, span: usize) -> u64 {
        assert!(self.is_here(piece), "piece {piece} of group {} is not there", self.group);
        let (layout, slot) = (&self.pool.layout, self.state.slot_of[piece].unwrap_or_default());
        let of_all = layout.pieces_of(self.group).start + piece;
        assert!(span < layout.spans_of(of_all), "span {span}");
        self.pool.memory.address() + layout.place_of(slot, of_all, span).start as u64
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The next visit may use pieces that are being copied; it waits for their copies because it waits for this visit.
        if !self.state.sending.is_empty() {
            let _ = self.arrive();
        }
        let (pool, stream) = (self.pool, self.stream);
        let first = pool.layout.pieces_of(self.group).start;
        let PoolState { shelf, coming, sending, failed, .. } = &mut *self.state;
        coming.drain(..).chain(sending.drain(..)).for_each(|piece| shelf.forget(first + piece));
        let ended = pool.on(|| {
            pool.driver.record(pool.used, stream)?;
            pool.driver.wait_for(pool.copies, pool.used)
        });
        if let Err(error) = ended {
            failed.get_or_insert(error);
        }
    }
}
