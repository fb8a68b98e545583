//! Runs the work of one call on several of XLA's threads.
//!
//! Units of work are taken from a counter. The caller takes them too, and waits for units that another thread is computing, but
//! never for a thread that has not started: XLA does not guarantee that one does. A task that starts late, possibly after the call
//! has returned, finds no units and touches nothing but the counter, which lives as long as any task.
//!
//! Results must not depend on which thread computes which unit.

use std::any::Any;
use std::ffi::c_void;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use alight_kernels::MatmulScratch;
use alight_kernels::attention::{AttentionLimits, AttentionScratch};
use alight_kernels::parallel::{Cost, Scratch, Threads};

use crate::frame::{Frame, Refusal};
use crate::scratch::{with_attention, with_floats, with_matmul};

/// Nanoseconds of work for each thread that is used: waking one takes about 10 µs.
const SHARE: usize = 15_000;

/// The longest time that a caller spins for units that others are computing, before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// The maximum number of threads requested, for any value of the attribute.
const MAX_THREADS: usize = 256;

/// The threads that a call may use.
pub(crate) struct Team<'a> {
    frame: Frame<'a>,
    threads: usize,
    /// True if small work is left to the calling thread.
    thrifty: bool,
}

/// A function of some units.
type Job<'a> = dyn Fn(Range<usize>) + Sync + 'a;

impl<'a> Team<'a> {
    /// A team of `threads` threads; if that is 0, of as many as are worthwhile, from the cores that are left when each of `devices`
    /// devices does the same.
    pub(crate) fn new(frame: Frame<'a>, threads: i64, devices: usize) -> Result<Team<'a>, Refusal> {
        let threads = usize::try_from(threads).map_err(|_| {
            Refusal::argument(format!("the attribute 'threads' is {threads}, expected 0 or more"))
        })?;
        let thrifty = threads == 0;
        let threads = if thrifty { cores() / devices.max(1) } else { threads };
        Ok(Team { frame, threads: threads.clamp(1, MAX_THREADS), thrifty })
    }

    /// Runs `job` over disjoint ranges that together are `0..units`, and returns when all of them are done. The whole work is
    /// estimated at `nanoseconds` on one thread.
    ///
    /// # Panics
    /// If `job` does; no unit is running then.
    pub(crate) fn run(&self, units: usize, nanoseconds: usize, job: &Job<'_>) {
        let share = if self.thrifty { nanoseconds / SHARE } else { usize::MAX };
        let helpers = match share.min(self.threads).min(units) {
            0 | 1 => 0,
            threads => threads.min(self.frame.pool_threads()).saturating_sub(1),
        };
        if helpers == 0 {
            return job(0..units);
        }
        let region = Arc::new(Region {
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            units,
            threads: helpers + 1,
            job: erase(job),
            caller: std::thread::current(),
            asleep: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        for _ in 0..helpers {
            let data = Arc::into_raw(Arc::clone(&region));
            // SAFETY: the task may be called once, at any time: it owns a reference to the region.
            if !unsafe { self.frame.schedule(help, data.cast_mut().cast()) } {
                // SAFETY: the task will not be called, so its reference is dropped here.
                drop(unsafe { Arc::from_raw(data) });
                break;
            }
        }
        region.work();
        region.wait();
        let panic = region.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

// SAFETY: units are taken from a counter, each by one thread, and `Team::run` returns when all are done.
unsafe impl Threads for Team<'_> {
    type Scratch = OfThread;

    fn run(&mut self, units: usize, cost: Cost, f: &(dyn Fn(Range<usize>, &mut OfThread) + Sync)) {
        Team::run(self, units, cost.nanoseconds, &|range| f(range, &mut OfThread));
    }
}

/// Access to the scratch memory that the calling thread keeps between calls.
pub(crate) struct OfThread;

impl Scratch for OfThread {
    fn with_products(&mut self, count: usize, f: impl FnOnce(&mut MatmulScratch, &mut [f32])) {
        with_matmul(|scratch| with_floats(count, |floats| f(scratch, floats)));
    }

    fn with_attention(&mut self, limits: AttentionLimits, f: impl FnOnce(&mut AttentionScratch)) {
        with_attention(limits, f);
    }
}

/// The number of cores that this process may run on.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()))
}

/// Erases the lifetime of a job's reference.
fn erase<'a>(job: &'a Job<'a>) -> *const Job<'static> {
    let pointer: *const Job<'a> = job;
    // SAFETY: only the lifetime bound of the trait object changes, not the pointer's layout; code that dereferences it must ensure
    // the lifetime.
    unsafe { std::mem::transmute::<*const Job<'a>, *const Job<'static>>(pointer) }
}

/// The task that XLA's threads run.
unsafe extern "C" fn help(region: *mut c_void) {
    // SAFETY: scheduled with a reference to a region, for one call of this function.
    let region = unsafe { Arc::from_raw(region.cast_const().cast::<Region>()) };
    region.work();
}

/// Units of work, and the caller to wake when they are done.
struct Region {
    /// The first unit that has not been taken.
    next: AtomicUsize,
    /// The number of units that have been run.
    done: AtomicUsize,
    units: usize,
    /// The number of threads that may work on it.
    threads: usize,
    /// Alive while there are units that have not been run; it may be gone afterwards.
    job: *const Job<'static>,
    caller: Thread,
    asleep: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the job is called only by threads that have taken units that are not done yet. The caller of `Team::run` waits for those,
// so the job is alive; and it may be called on any thread, being Sync.
unsafe impl Send for Region {}
// SAFETY: as above; the other fields are Sync by themselves.
unsafe impl Sync for Region {}

impl Region {
    /// Takes the next units, fewer at a time towards the end, so that no thread waits long for another.
    fn take(&self) -> Option<Range<usize>> {
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let left = self.units.checked_sub(next).filter(|left| *left > 0)?;
            let end = next + (left / (2 * self.threads)).max(1);
            match self.next.compare_exchange_weak(next, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(next..end),
                Err(now) => next = now,
            }
        }
    }

    /// Runs units until none are left to take.
    fn work(&self) {
        while let Some(range) = self.take() {
            let count = range.len();
            // SAFETY: these units have been taken and are not done, so the job is alive.
            let job = unsafe { &*self.job };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(range))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            // Writes of the units are visible to a thread that reads that they are done. From here on the job may be gone.
            let done = self.done.fetch_add(count, Ordering::SeqCst) + count;
            // The caller sets `asleep` and checks again: either it sees these units, or this thread sees the flag.
            if done == self.units && self.asleep.load(Ordering::SeqCst) {
                self.caller.unpark();
            }
        }
    }

    /// Returns when all units, which have all been taken, are done.
    fn wait(&self) {
        let done = || self.done.load(Ordering::SeqCst) == self.units;
        let began = Instant::now();
        while !done() {
            if began.elapsed() > SPIN {
                self.asleep.store(true, Ordering::SeqCst);
                while !done() {
                    std::thread::park();
                }
                return;
            }
            std::hint::spin_loop();
        }
    }
}
