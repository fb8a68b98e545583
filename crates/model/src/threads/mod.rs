//! A pool of threads for regions of microseconds.
//!
//! One token of a small model is a few hundred parallel regions of 5–50 µs each, so speed depends on the cost of starting and
//! ending a region, and on the behaviour when a thread is not running.
//!
//! How it works:
//! - A region is a number of *units* and a function of a range of units. Units are handed out by compare-and-swap on one word, in
//!   parts that shrink with the remaining units (guided self-scheduling): the first parts are long enough to stream through
//!   memory, the last ones short enough that no thread waits long for another. The caller works too.
//! - A slow or descheduled thread delays only the units that it holds.
//! - A thread that waits (a worker for the next region, the caller for the last units) spins for a few microseconds and then
//!   parks on a futex. Parking limits the damage of a busy neighbour: it releases the core, and the kernel then moves the
//!   descheduled thread there.
//!
//! Invariants:
//! - A unit is run exactly once. [`Pool::run`] returns after every unit has been run; a panic in a
//!   unit continues in the caller once no unit is running any more.
//! - No call allocates (except to carry a panic). With one thread there is no synchronisation.
//! - At most one region is in flight. A region started during another, from inside a unit or from another thread, runs only on
//!   its caller, as thread 0.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod cores;
mod park;
mod per_thread;

pub(crate) use park::Parking;
pub(crate) use per_thread::PerThread;

/// Runs a range of units on a thread (0 is the caller, workers count from 1).
type Job = dyn Fn(Range<usize>, usize) + Sync;

/// The maximum number of threads: there would be too few units for more.
pub const MAX_THREADS: usize = 256;

/// The bounds for the adaptive time that a waiting thread spins before it parks.
const SPIN_MIN: Duration = Duration::from_micros(4);
const SPIN_MAX: Duration = Duration::from_micros(50);
/// The duration of each sleep of the caller while the last units are late.
const NAP: Duration = Duration::from_micros(250);

/// A value with cache lines of its own (two, because x86 prefetches lines in pairs).
#[repr(align(128))]
struct Alone<T>(T);

struct Shared {
    /// Units not handed out yet: `end << 32 | next`. Nothing is left when `next == end`.
    work: Alone<AtomicU64>,
    /// Units that have been run in this region; the caller waits for it to reach the total.
    done: Alone<Parking>,
    /// Set while the caller is parked, or about to be.
    caller_parked: AtomicBool,
    /// Counts regions (and the end of the pool); parked workers wait for it to change.
    epoch: Alone<Parking>,
    /// Workers that are parked, or about to be.
    sleepers: AtomicU32,
    stop: AtomicBool,
    /// The longest range handed out at once in this region. Only a hint, so it may be stale.
    max_take: AtomicUsize,
    threads: usize,
    /// Written by the caller before `work` is, read only by threads that hold units.
    job: UnsafeCell<*const Job>,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not Sync by itself. It is written only by the thread
// that holds `Pool::busy`, while no unit is handed out, and read only between taking a unit and
// counting it as done, which the writer waits for.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointed-to closure is Sync, so it may be called from any thread.
unsafe impl Send for Shared {}

/// Threads for regions of microseconds. See the module's documentation.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    wanted: usize,
    busy: AtomicBool,
}

impl Pool {
    /// Creates a pool of `threads` threads in total, including the caller; at least 1, at most [`MAX_THREADS`].
    ///
    /// The pool is smaller if the system refuses to start a thread.
    pub fn new(threads: usize) -> Pool {
        let threads = threads.clamp(1, MAX_THREADS);
        let shared = Arc::new(Shared {
            work: Alone(AtomicU64::new(0)),
            done: Alone(Parking::new(0)),
            caller_parked: AtomicBool::new(false),
            epoch: Alone(Parking::new(0)),
            sleepers: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            max_take: AtomicUsize::new(1),
            threads,
            job: UnsafeCell::new(std::ptr::null::<fn(Range<usize>, usize)>() as *const Job),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("alight-{index}"))
                    .spawn(move || shared.serve(index))
                    .ok()
            })
            .collect();
        Pool { shared, workers, wanted: threads, busy: AtomicBool::new(false) }
    }

    /// The default number of threads: the physical cores that this process may run on (scheduler affinity), at most as many as
    /// its cgroup's CPU quota allows.
    pub fn default_threads() -> usize {
        cores::available()
    }

    /// The number of threads that run units, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The requested number of threads: more than [`Pool::threads`] if the system refused some.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Runs `f(range, thread)` on all threads, over disjoint ranges that together cover `0..units`, none longer than `max_take`,
    /// and returns when every unit has been run.
    ///
    /// `thread` is below [`Pool::threads`], and no two calls with the same `thread` overlap in
    /// time (within one call of `run`): it can index per-thread scratch.
    ///
    /// # Panics
    /// Resumes with the payload of a unit that panicked; no unit is running then.
    pub fn run(&self, units: usize, max_take: usize, f: &(dyn Fn(Range<usize>, usize) + Sync)) {
        if units == 0 {
            return;
        }
        let alone = units == 1 || self.workers.is_empty() || units > u32::MAX as usize;
        if alone || self.busy.swap(true, Ordering::Acquire) {
            let step = max_take.clamp(1, units);
            let mut at = 0;
            while at < units {
                let end = units.min(at.saturating_add(step));
                f(at..end, 0);
                at = end;
            }
            return;
        }
        let shared = &*self.shared;
        shared.done.0.word.store(0, Ordering::Relaxed);
        shared.max_take.store(max_take.max(1), Ordering::Relaxed);
        // SAFETY: no units are handed out, so no worker reads the cell, and `busy` keeps other callers out. The cast removes the
        // lifetime; waiting below until every unit is done upholds it: nothing calls through the pointer after that.
        unsafe { *shared.job.get() = erase(f) };
        shared.work.0.store((units as u64) << 32, Ordering::SeqCst);
        shared.epoch.0.word.fetch_add(1, Ordering::SeqCst);
        let sleepers = shared.sleepers.load(Ordering::SeqCst);
        if sleepers > 0 {
            shared.epoch.0.wake(sleepers.min(units as u32 - 1));
        }
        let taken = shared.work_on(0);
        shared.wait_for_rest(taken, units as u32);
        self.busy.store(false, Ordering::Release);
        if shared.panicked.load(Ordering::Relaxed) {
            shared.panicked.store(false, Ordering::Relaxed);
            let payload = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            resume_unwind(payload.unwrap_or_else(|| Box::new("a unit of a region panicked")));
        }
    }

    /// [`Pool::run`] with one unit at a time, for units that are few or of unequal cost.
    pub fn run_each(&self, units: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        self.run(units, 1, &|range, thread| range.for_each(|unit| f(unit, thread)));
    }
}

/// Removes the lifetime from a job's reference.
fn erase<'a>(f: &'a (dyn Fn(Range<usize>, usize) + Sync + 'a)) -> *const Job {
    let pointer: *const (dyn Fn(Range<usize>, usize) + Sync + 'a) = f;
    // SAFETY: only the lifetime bound of the trait object changes, not the pointer's layout; the code that dereferences it is
    // responsible for the lifetime.
    unsafe {
        std::mem::transmute::<*const (dyn Fn(Range<usize>, usize) + Sync + 'a), *const Job>(pointer)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.0.word.fetch_add(1, Ordering::SeqCst);
        self.shared.epoch.0.wake(u32::MAX);
        for worker in self.workers.drain(..) {
            // A worker catches the panics of units, so this cannot fail.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The next range of units of the region in flight, if any is left.
    fn take(&self) -> Option<Range<usize>> {
        let mut seen = self.work.0.load(Ordering::SeqCst);
        loop {
            let (end, next) = (seen >> 32, seen & 0xffff_ffff);
            if next >= end {
                return None;
            }
            let left = (end - next) as usize;
            let take = (left / (2 * self.threads))
                .clamp(1, self.max_take.load(Ordering::Relaxed))
                .min(left) as u64;
            // Success means that the units belong to the region in flight now, even if the word was read during an earlier one:
            // the word states which units are left, and the job is read only afterwards.
            match self.work.0.compare_exchange_weak(
                seen,
                seen + take,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return Some(next as usize..(next + take) as usize),
                Err(now) => seen = now,
            }
        }
    }

    /// Runs units until none is left to take; returns the number it ran. They are not counted in `done` yet.
    fn work_on(&self, thread: usize) -> u32 {
        let mut ran = 0;
        while let Some(range) = self.take() {
            ran += range.len() as u32;
            // SAFETY: this thread holds units that are not counted as done, so the caller is
            // inside `run`, the job is this region's, and the closure is alive.
            let job = unsafe { &**self.job.get() };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(range, thread))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
                self.panicked.store(true, Ordering::Relaxed);
            }
        }
        ran
    }

    /// The caller's side of the end of a region: counts its own units and waits for the others'.
    fn wait_for_rest(&self, ran: u32, units: u32) {
        let done = &self.done.0;
        if done.word.fetch_add(ran, Ordering::SeqCst) + ran == units {
            return;
        }
        let began = Instant::now();
        loop {
            for _ in 0..32 {
                if done.word.load(Ordering::Acquire) == units {
                    return;
                }
                hint::spin_loop();
            }
            if began.elapsed() >= SPIN_MAX {
                break;
            }
        }
        // The last units are late: most likely their thread is not running. Release this core.
        self.caller_parked.store(true, Ordering::SeqCst);
        loop {
            let now = done.word.load(Ordering::SeqCst);
            if now == units {
                break;
            }
            // Linux moves a waiting thread to a core that becomes idle, but not a thread that ran there less than half a
            // millisecond ago: so become idle repeatedly.
            done.wait(now, Some(NAP));
        }
        self.caller_parked.store(false, Ordering::Relaxed);
    }

    /// Runs a worker until the pool ends.
    fn serve(&self, thread: usize) {
        let mut patience = SPIN_MAX;
        loop {
            let ran = self.work_on(thread);
            if ran > 0 {
                self.done.0.word.fetch_add(ran, Ordering::SeqCst);
                // The caller sets this flag before it parks, and then reads the count again, so either it sees our units or we
                // see its flag.
                if self.caller_parked.load(Ordering::SeqCst) {
                    self.done.0.wake(1);
                }
            }
            if !self.spin_for_work(patience) {
                patience = (patience / 2).max(SPIN_MIN);
                self.park_for_work();
            } else {
                patience = (patience * 2).min(SPIN_MAX);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    fn has_work(&self) -> bool {
        let seen = self.work.0.load(Ordering::SeqCst);
        (seen & 0xffff_ffff) < (seen >> 32)
    }

    /// Spins until there is work or `patience` has elapsed; returns true if there is work.
    fn spin_for_work(&self, patience: Duration) -> bool {
        let began = Instant::now();
        loop {
            for _ in 0..16 {
                if self.has_work() {
                    return true;
                }
                hint::spin_loop();
            }
            if began.elapsed() >= patience {
                return false;
            }
        }
    }

    fn park_for_work(&self) {
        // The order matters: announce, read the epoch, look for work, sleep if the epoch has not changed. A region started after
        // the look changes the epoch; one started before it is seen.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        loop {
            let epoch = self.epoch.0.word.load(Ordering::SeqCst);
            if self.has_work() || self.stop.load(Ordering::SeqCst) {
                break;
            }
            self.epoch.0.wait(epoch, None);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
