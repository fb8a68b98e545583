//! Work of one call on several of XLA's threads.
//!
//! Units of work are taken off a counter. Who calls takes them too, and waits for those that somebody else is at work on, but
//! never for a thread that has not begun: XLA promises none. A task that starts late, after the call has returned if need be,
//! finds no units and touches nothing but the counter, which lives as long as any task.
//!
//! Results must not depend on who computes which unit.

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

/// A thread is asked to help for each so many nanoseconds of work: waking one takes some 10 µs.
const SHARE: usize = 15_000;

/// The longest that a caller spins for units that others are at work on, before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// More threads than this are not asked for, whatever an attribute says.
const MAX_THREADS: usize = 256;

/// The threads that a call may use.
pub(crate) struct Team<'a> {
    frame: Frame<'a>,
    threads: usize,
    /// True if small work is left to the caller.
    thrifty: bool,
}

/// A function of some units.
type Job<'a> = dyn Fn(Range<usize>) + Sync + 'a;

impl<'a> Team<'a> {
    /// As many threads as `threads` says; if it is 0, those that are worth it, of the cores that are left when each of `devices`
    /// devices does the same.
    pub(crate) fn new(frame: Frame<'a>, threads: i64, devices: usize) -> Result<Team<'a>, Refusal> {
        let threads = usize::try_from(threads).map_err(|_| {
            Refusal::argument(format!("the attribute 'threads' is {threads}, expected 0 or more"))
        })?;
        let thrifty = threads == 0;
        let threads = if thrifty { cores() / devices.max(1) } else { threads };
        Ok(Team { frame, threads: threads.clamp(1, MAX_THREADS), thrifty })
    }

    /// Runs `job` over disjoint ranges that together are `0..units`, and returns when all of them are done. All of it takes
    /// about `nanoseconds` on one thread.
    ///
    /// # Panics
    /// As `job` does; no unit is running then.
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
            // SAFETY: the task may be called once, whenever: it owns a part in the region.
            if !unsafe { self.frame.schedule(help, data.cast_mut().cast()) } {
                // SAFETY: the task will not be called, so its part is ours.
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

// SAFETY: units are taken off a counter, each by one thread, and `Team::run` returns when all are done.
unsafe impl Threads for Team<'_> {
    type Scratch = OfThread;

    fn run(&mut self, units: usize, cost: Cost, f: &(dyn Fn(Range<usize>, &mut OfThread) + Sync)) {
        Team::run(self, units, cost.nanoseconds, &|range| f(range, &mut OfThread));
    }
}

/// What the calling thread keeps between calls.
pub(crate) struct OfThread;

impl Scratch for OfThread {
    fn with_products(&mut self, count: usize, f: impl FnOnce(&mut MatmulScratch, &mut [f32])) {
        with_matmul(|scratch| with_floats(count, |floats| f(scratch, floats)));
    }

    fn with_attention(&mut self, limits: AttentionLimits, f: impl FnOnce(&mut AttentionScratch)) {
        with_attention(limits, f);
    }
}

/// Cores that this process may run on.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()))
}

/// Takes the lifetime off a job's reference.
fn erase<'a>(job: &'a Job<'a>) -> *const Job<'static> {
    let pointer: *const Job<'a> = job;
    // SAFETY: only the lifetime bound of the trait object changes, not the pointer's layout; who dereferences it answers for the
    // lifetime.
    unsafe { std::mem::transmute::<*const Job<'a>, *const Job<'static>>(pointer) }
}

/// What XLA's threads are asked to run.
unsafe extern "C" fn help(region: *mut c_void) {
    // SAFETY: scheduled with a part in a region, for one call of this function.
    let region = unsafe { Arc::from_raw(region.cast_const().cast::<Region>()) };
    region.work();
}

/// Units, and who is to be told when they are done.
struct Region {
    /// The first unit that nobody has taken.
    next: AtomicUsize,
    /// How many have been run.
    done: AtomicUsize,
    units: usize,
    /// Who could be at work on it.
    threads: usize,
    /// Alive while there are units that have not been run, and perhaps no longer.
    job: *const Job<'static>,
    caller: Thread,
    asleep: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the job is called only by who has taken units that are not done yet. The caller of `Team::run` waits for those,
// so the job is alive; and it may be called on any thread, being Sync.
unsafe impl Send for Region {}
// SAFETY: as above; the other fields are Sync by themselves.
unsafe impl Sync for Region {}

impl Region {
    /// The next units, fewer at a time towards the end, so that nobody waits long for anybody.
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

    /// Runs units until there are none to take.
    fn work(&self) {
        while let Some(range) = self.take() {
            let count = range.len();
            // SAFETY: these units have been taken and are not done, so the job is alive.
            let job = unsafe { &*self.job };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(range))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            // What the units have written is seen by who reads that they are done. From here on the job may be gone.
            let done = self.done.fetch_add(count, Ordering::SeqCst) + count;
            // The caller says that it is asleep and looks again: it sees our units, or we see that it is.
            if done == self.units && self.asleep.load(Ordering::SeqCst) {
                self.caller.unpark();
            }
        }
    }

    /// Returns when all units are done; all have been taken.
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
