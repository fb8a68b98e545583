//! Carries out a plan: the threads that read, touch and pack.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use alight_kernels::{WeightType, tiles};
use alight_pages::transfer::{self, Piece, TransferMethod, TransferOptions, transfer};
use alight_pages::{Advice, Map, Prefetch, ReadMethod, Region};

use super::LoadState;
use super::plan::{LoadJob, LoadMethod, Work};
use crate::store::LoadError;

/// If the pieces read again in small pages outnumber those in huge pages by this, huge pages are not available.
const MAX_IN_VAIN: i32 = 16;

/// The number of pieces of a file that is being received, and read around the map, that are waited for together: enough for all connections.
const RECEIVED_AT_ONCE: usize = 16;

/// A job that is still to be done.
#[derive(Clone, Copy)]
struct Left<'p> {
    job: &'p LoadJob,
    done: &'p AtomicBool,
}

impl LoadState {
    /// Carries out what is left of the plan, in order; returns when it is done, has failed, or was stopped.
    pub(super) fn carry_out(&self) -> Result<(), LoadError> {
        let (methods, jobs) = (&self.methods, self.plan.jobs.iter().zip(&self.done));
        let left: Vec<Left<'_>> = jobs
            .filter(|(_, done)| !done.load(Ordering::Relaxed))
            .map(|(job, done)| Left { job, done })
            .collect();
        let lane = |left: &Left<'_>| {
            let LoadMethod { read, is_incoming, .. } = methods[left.job.shard];
            // Files that are being received come in one order, and none waits for the end of another.
            let file =
                if is_incoming && read == ReadMethod::Mmap { None } else { Some(left.job.shard) };
            (file, read)
        };
        for jobs in left.chunk_by(|a, b| lane(a) == lane(b)) {
            let Some(first) = jobs.first() else { continue };
            match methods[first.job.shard].read {
                ReadMethod::Mmap => self.by_map(jobs, methods[first.job.shard])?,
                ReadMethod::Direct => self.by_transfer(jobs, TransferMethod::Direct)?,
                ReadMethod::Read => self.by_transfer(jobs, TransferMethod::Read)?,
            }
        }
        for (reclaim, map) in self.reclaim.iter().zip(self.store.maps()) {
            if let Some(reclaim) = reclaim {
                reclaim.sweep(map);
            }
        }
        Ok(())
    }

    /// Carries out jobs of one file whose bytes come through its map, or of several that are being received.
    fn by_map(&self, jobs: &[Left<'_>], method: LoadMethod) -> Result<(), LoadError> {
        let packs = jobs.iter().any(|left| matches!(left.job.work, Work::Pack { .. }));
        let readers = match method.prefetch {
            Prefetch::ReadThreads(n) => {
                // The page cache keeps data in the pages in which it was read. In small ones the file would be slow to map from then on (3B, warm:
                // 140 ms compared with 4). Where huge pages are not available, small ones suffice.
                if let Some(first) = jobs.first().filter(|_| !method.is_incoming) {
                    let map = &self.store.maps()[first.job.shard];
                    match method.prefetch_chosen {
                        // The weights left out exceed memory, so a fault in them should not load a huge page.
                        Prefetch::None => jobs.iter().for_each(|left| {
                            let _ = map.advise(left.job.source.clone(), Advice::HugePages);
                        }),
                        _ => drop(map.advise(0..map.len(), Advice::HugePages)),
                    }
                }
                n
            }
            Prefetch::Populate | Prefetch::None => 1,
        };
        let threads = if packs { readers.max(TransferOptions::default().threads) } else { readers };
        self.crew(threads.min(jobs.len()), jobs.len(), &|i| {
            let job = jobs[i].job;
            let map = &self.store.maps()[job.shard];
            if self.plan.is_behind(job) {
                self.store.priority().let_pass();
            }
            ask(map, &job.source);
            self.receive(map, &job.source)?;
            match job.work {
                Work::Pack { ty, cols, to } => {
                    // Populating the whole piece at once is cheaper than faults, and touches no page beyond it.
                    map.populate(job.source.clone())?;
                    self.pack(ty, cols, &map.bytes()[job.source.clone()], to);
                    // If the file has been truncated, these are zeros: an error.
                    map.check()?;
                    if let Some(reclaim) = &self.reclaim[job.shard] {
                        reclaim.done(map, job.source.clone());
                    }
                }
                Work::Touch => {
                    let range = job.source.clone();
                    let loaded = match method.prefetch {
                        Prefetch::ReadThreads(_) => map.populate(range),
                        // It is cached, and in the meantime other threads read the vocabulary and create the buffers of a sequence.
                        Prefetch::Populate | Prefetch::None => map.touch(range),
                    };
                    // Pieces that no section waits for may fail: the error appears when the page is read later.
                    if job.section.is_some() {
                        loaded?;
                    }
                }
                Work::Copy => unreachable!("a plan copies from files that are read"),
            }
            self.end(jobs[i]);
            Ok(())
        })
    }

    /// Returns when a range of a file that was asked for has been received, if the file still is.
    fn receive(&self, map: &Map, range: &Range<usize>) -> Result<(), LoadError> {
        let Some(incoming) = map.incoming() else { return Ok(()) };
        let range = range.start as u64..range.end as u64;
        match incoming.wait(&range, &|| self.stop.load(Ordering::Relaxed))? {
            true => Ok(()),
            false => Err(LoadError::Stopped),
        }
    }

    /// Experts that were chosen before they were loaded in the background were read in small pages. Once everything is loaded, their ranges are read
    /// again, while no step waits for the disk: decoding from huge pages is faster, and so is the start of the next process.
    pub(super) fn read_anew(&self) {
        let mut in_vain = 0;
        for (map, asked) in self.store.maps().iter().zip(self.store.asked()) {
            for unit in asked.take() {
                if self.stop.load(Ordering::Relaxed) || in_vain > MAX_IN_VAIN {
                    return;
                }
                self.store.priority().let_pass();
                in_vain += if map.read_anew(unit) { -1 } else { 1 };
            }
        }
    }

    /// Records that a job is done.
    fn end(&self, Left { job, done }: Left<'_>) {
        done.store(true, Ordering::Relaxed);
        self.store.get_on();
        if let Some(section) = job.section {
            self.store.arrival().arrived(section, job.source.len());
        }
    }

    /// Carries out jobs of one file that is read.
    fn by_transfer(&self, jobs: &[Left<'_>], method: TransferMethod) -> Result<(), LoadError> {
        let Some(first) = jobs.first() else { return Ok(()) };
        let map = &self.store.maps()[first.job.shard];
        if map.incoming().is_none() {
            return self.transfer(map, jobs, method);
        }
        // A transfer reads whatever is there.
        for jobs in jobs.chunks(RECEIVED_AT_ONCE) {
            jobs.iter().for_each(|left| ask(map, &left.job.source));
            jobs.iter().try_for_each(|left| self.receive(map, &left.job.source))?;
            self.transfer(map, jobs, method)?;
        }
        Ok(())
    }

    fn transfer(
        &self,
        map: &Map,
        jobs: &[Left<'_>],
        method: TransferMethod,
    ) -> Result<(), LoadError> {
        let range = |range: &Range<usize>| range.start as u64..range.end as u64;
        let pieces: Vec<Piece> = jobs
            .iter()
            .map(|Left { job, .. }| match (job.work, self.store.image(job.shard)) {
                (Work::Copy, Some(image)) => {
                    assert!(job.source.end <= image.len());
                    // SAFETY: within the image, which lives as long as the store. Pieces of a plan are disjoint, and nothing reads one before it is
                    // counted as arrived.
                    unsafe {
                        let address = image.as_mut_ptr().add(job.source.start);
                        Piece::at(range(&job.source), address)
                    }
                }
                _ => Piece::slot(range(&job.source)),
            })
            .collect();
        let each = |i: usize, bytes: &[u8]| {
            if let Work::Pack { ty, cols, to } = jobs[i].job.work {
                self.pack(ty, cols, bytes, to);
            }
            self.end(jobs[i]);
        };
        let options = transfer::TransferOptions::default();
        let report =
            transfer(map.file(), map.path(), &pieces, method, &options, &self.stop, &each)?;
        self.report().add(&report);
        Ok(())
    }

    /// Packs whole tiles into the region of tiles, `to` bytes from its start.
    fn pack(&self, ty: WeightType, cols: usize, source: &[u8], to: usize) {
        let region = self.store.tiles().map(Region::as_mut_ptr).zip(self.store.tiles());
        let Some((start, region)) = region else { return };
        assert!(to + source.len() <= region.len());
        // SAFETY: within the region. Pieces of a plan are packed to disjoint ranges, and nothing reads
        // one before it is counted as arrived.
        let target = unsafe { std::slice::from_raw_parts_mut(start.add(to), source.len()) };
        tiles::pack(ty, cols, source, target);
        self.repacked.fetch_add(source.len() as u64, Ordering::Relaxed);
    }

    /// Runs `f(i)` for every `i` below `count`, approximately in order, on `threads` threads, this one included. The first error ends it.
    fn crew(
        &self,
        threads: usize,
        count: usize,
        f: &(dyn Fn(usize) -> Result<(), LoadError> + Sync),
    ) -> Result<(), LoadError> {
        let next = AtomicUsize::new(0);
        let halted = AtomicBool::new(false);
        let error = Mutex::new(None);
        let work = || {
            while !halted.load(Ordering::Relaxed) {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    return;
                }
                let result = match self.stop.load(Ordering::Relaxed) {
                    true => Err(LoadError::Stopped),
                    false => f(i),
                };
                if let Err(why) = result {
                    halted.store(true, Ordering::Relaxed);
                    // No answer will begin, for which the others wait.
                    self.store.priority().release();
                    error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                // With fewer threads than requested it takes longer.
                let _ = thread::Builder::new().name("alight-load".into()).spawn_scoped(scope, work);
            }
            work();
        });
        match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Asks for a range of a file, if it is still being received.
fn ask(map: &Map, range: &Range<usize>) {
    if let Some(incoming) = map.incoming() {
        incoming.ask(range.start as u64..range.end as u64);
    }
}
