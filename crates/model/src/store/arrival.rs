//! Readiness: tracks the weights that a load in the background has brought, and waits for the others.
//!
//! The weights are split into sections (the embedding, each layer, the output). A section is ready when none of its pieces is
//! missing; the forward pass parks until a section is ready, and pays one atomic load per section once everything is loaded.
//!
//! Invariants:
//! - A thread that has waited for a section sees every byte of it: pieces are counted after they are
//!   written.
//! - A failure wakes all waiting threads, and stays until the load begins again: no thread waits for pieces that will not arrive.
//! - Neither waiting nor counting allocates.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::LoadError;
use crate::threads::Parking;

/// How often a waiting step looks if it should give up.
const INTERVAL: Duration = Duration::from_millis(50);

/// The progress of a load, for the weights that every step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loading {
    /// Bytes that have arrived.
    pub done: u64,
    /// Bytes in total.
    pub total: u64,
}

/// The section of the embedding.
pub(crate) const EMBEDDING: usize = 0;

/// The section of layer `index`.
pub(crate) fn layer(index: usize) -> usize {
    1 + index
}

/// The section of the output matrix, if it is not the embedding.
pub(crate) fn output(layers: usize) -> usize {
    1 + layers
}

/// The section of the experts of layer `index`, if they are loaded after the weights that every token reads. A step waits for it
/// only if it has chosen most of them.
pub(crate) fn experts(layers: usize, index: usize) -> usize {
    output(layers) + 1 + index
}

/// Counts the missing pieces, by section.
pub(crate) struct Arrival {
    /// Set once every piece that all steps wait for has arrived.
    complete: AtomicBool,
    missing: Box<[AtomicU32]>,
    /// The first of the sections that only some steps wait for.
    awaited: usize,
    /// Missing pieces of the sections before it.
    missing_in_all: AtomicU32,
    /// Bytes of their pieces that have arrived, and the total.
    bytes: AtomicU64,
    total: u64,
    /// The reason that the missing pieces will not arrive.
    failure: Mutex<Option<Arc<LoadError>>>,
    /// True if there is one.
    failed: AtomicBool,
    /// Set when the load has ended, complete or not.
    over: AtomicBool,
    /// Changes when a section becomes ready, and when the load ends.
    bell: Parking,
    /// Nanoseconds for which callers of [`Arrival::wait`] were parked.
    waited: AtomicU64,
}

impl Arrival {
    /// Creates the state of a load that brings `missing[section]` pieces. Every step waits for the first `awaited` sections,
    /// whose pieces have `total` bytes.
    pub(crate) fn new(missing: &[u32], awaited: usize, total: u64) -> Arrival {
        let all = missing[..awaited].iter().sum();
        Arrival {
            complete: AtomicBool::new(all == 0),
            missing: missing.iter().map(|&n| AtomicU32::new(n)).collect(),
            awaited,
            missing_in_all: AtomicU32::new(all),
            bytes: AtomicU64::new(0),
            total,
            failure: Mutex::default(),
            failed: AtomicBool::new(false),
            over: AtomicBool::new(false),
            bell: Parking::new(0),
            waited: AtomicU64::new(0),
        }
    }

    /// Returns true when `section`, which every step waits for, is ready; at once if all such sections are. Returns false if `give_up`
    /// returned true before that.
    ///
    /// # Errors
    /// The load has failed.
    #[inline]
    pub(crate) fn wait(
        &self,
        section: usize,
        give_up: &dyn Fn() -> bool,
    ) -> Result<bool, Arc<LoadError>> {
        debug_assert!(section < self.awaited);
        if self.complete.load(Ordering::Acquire) {
            return Ok(true);
        }
        self.wait_while(|| !self.is_ready(section), Some(give_up))
    }

    /// Like [`wait`](Arrival::wait) for the experts of a layer, where experts are loaded after the weights that every token reads.
    ///
    /// # Errors
    /// The load has failed.
    pub(crate) fn wait_for_experts(
        &self,
        layer: usize,
        give_up: &dyn Fn() -> bool,
    ) -> Result<bool, Arc<LoadError>> {
        self.wait_while(|| !self.is_ready(self.awaited + layer), Some(give_up))
    }

    /// True if `section` is ready.
    pub(crate) fn is_ready(&self, section: usize) -> bool {
        self.missing[section].load(Ordering::Acquire) == 0
    }

    /// True if all sections that every step waits for are ready.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// True if the load has ended, complete or not.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The progress of the load; `None` when nothing is missing any more, or no more pieces will arrive.
    pub(crate) fn loading(&self) -> Option<Loading> {
        if self.is_complete() || self.has_failed() {
            return None;
        }
        Some(Loading { done: self.bytes.load(Ordering::Relaxed), total: self.total })
    }

    /// Returns when the load has ended.
    ///
    /// # Errors
    /// The load has failed.
    pub(crate) fn wait_over(&self) -> Result<(), Arc<LoadError>> {
        self.wait_while(|| !self.is_over(), None).map(drop)
    }

    #[cold]
    fn wait_while(
        &self,
        missing: impl Fn() -> bool,
        give_up: Option<&dyn Fn() -> bool>,
    ) -> Result<bool, Arc<LoadError>> {
        let mut began = None;
        let result = loop {
            // Read before the state: a later change also changes the bell, so the wait returns.
            let bell = self.bell.word.load(Ordering::Acquire);
            if let Err(error) = self.check() {
                break Err(error);
            }
            if !missing() {
                break Ok(true);
            }
            if give_up.is_some_and(|give_up| give_up()) {
                break Ok(false);
            }
            began.get_or_insert_with(Instant::now);
            self.bell.wait(bell, give_up.map(|_| INTERVAL));
        };
        if let Some(began) = began {
            self.waited.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        result
    }

    /// Checks that the load has not failed.
    ///
    /// # Errors
    /// It has failed.
    pub(crate) fn check(&self) -> Result<(), Arc<LoadError>> {
        match self.has_failed().then(|| self.failure().clone()).flatten() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// True if the load has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    fn failure(&self) -> MutexGuard<'_, Option<Arc<LoadError>>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a piece of `section` of `bytes` bytes, which has been written.
    pub(crate) fn arrived(&self, section: usize, bytes: usize) {
        // AcqRel: the thread that counts the last piece publishes what the others wrote before counting theirs.
        let last_of_section = self.missing[section].fetch_sub(1, Ordering::AcqRel) == 1;
        if section < self.awaited {
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            if self.missing_in_all.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.complete.store(true, Ordering::Release);
            }
        }
        if last_of_section {
            self.ring();
        }
    }

    /// Ends the load with an error: the missing pieces will not arrive. The first error is kept.
    pub(crate) fn fail(&self, error: LoadError) {
        self.failure().get_or_insert_with(|| Arc::new(error));
        self.failed.store(true, Ordering::Release);
        self.ring();
    }

    /// A load that has failed and ended begins again: what is missing may still arrive.
    pub(crate) fn begin_again(&self) {
        let mut failure = self.failure();
        self.over.store(false, Ordering::Release);
        self.failed.store(false, Ordering::Release);
        *failure = None;
    }

    /// Marks the load as ended.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.ring();
    }

    /// The total time that the forward pass waited.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    fn ring(&self) {
        self.bell.word.fetch_add(1, Ordering::Release);
        self.bell.wake(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    const NEVER: &dyn Fn() -> bool = &|| false;

    #[test]
    fn sections_become_ready_one_by_one() {
        let arrival = Arrival::new(&[0, 2, 1], 3, 60);
        arrival.wait(0, NEVER).unwrap();
        thread::scope(|scope| {
            let one = scope.spawn(|| arrival.wait(1, NEVER));
            let two = scope.spawn(|| arrival.wait(2, NEVER));
            arrival.arrived(1, 10);
            thread::sleep(Duration::from_millis(5));
            assert!(!one.is_finished() && !two.is_finished());
            arrival.arrived(1, 20);
            one.join().unwrap().unwrap();
            assert!(!two.is_finished() && !arrival.complete.load(Ordering::Relaxed));
            assert_eq!(arrival.loading(), Some(Loading { done: 30, total: 60 }));
            arrival.arrived(2, 30);
            two.join().unwrap().unwrap();
        });
        assert!(arrival.complete.load(Ordering::Relaxed) && arrival.loading().is_none());
    }

    #[test]
    fn not_every_step_waits_for_what_comes_behind() {
        let arrival = Arrival::new(&[1, 1, 0], 1, 10);
        arrival.arrived(0, 10);
        arrival.wait(0, NEVER).unwrap();
        assert!(arrival.is_complete() && arrival.loading().is_none());
        assert!(!arrival.is_ready(1) && arrival.is_ready(2));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| arrival.wait_for_experts(0, NEVER));
            thread::sleep(Duration::from_millis(5));
            assert!(!waiting.is_finished());
            arrival.arrived(1, 20);
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn the_time_that_was_waited_is_counted() {
        // On a busy machine the other thread may start after everything has arrived, which proves nothing.
        let counted = [1, 30, 1000].into_iter().any(|patience| {
            let arrival = Arrival::new(&[1], 1, 0);
            thread::scope(|scope| {
                scope.spawn(|| arrival.wait(0, NEVER));
                thread::sleep(Duration::from_millis(patience));
                arrival.arrived(0, 0);
            });
            arrival.waited() > Duration::ZERO
        });
        assert!(counted);
    }

    #[test]
    fn nobody_waits_for_a_load_that_failed() {
        let arrival = Arrival::new(&[1, 1], 2, 0);
        thread::scope(|scope| {
            let waiting =
                [scope.spawn(|| arrival.wait(0, NEVER)), scope.spawn(|| arrival.wait(1, NEVER))];
            let over = scope.spawn(|| arrival.wait_over());
            thread::sleep(Duration::from_millis(2));
            arrival.fail(LoadError::Stopped);
            for waiting in waiting {
                assert!(
                    matches!(waiting.join().unwrap(), Err(error) if matches!(*error, LoadError::Stopped))
                );
            }
            assert!(over.join().unwrap().is_err());
        });
        // Sections that arrived earlier fail too: the model cannot be used.
        assert!(arrival.wait(0, NEVER).is_err() && arrival.check().is_err());
        assert_eq!(arrival.loading(), None);
    }

    /// The bytes may come from a network that sends nothing.
    #[test]
    fn a_step_that_is_cancelled_gives_up() {
        let arrival = Arrival::new(&[1, 1], 1, 0);
        let cancelled = AtomicBool::new(false);
        let is_cancelled: &(dyn Fn() -> bool + Sync) = &|| cancelled.load(Ordering::Relaxed);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| arrival.wait(0, is_cancelled));
            let for_experts = scope.spawn(|| arrival.wait_for_experts(0, is_cancelled));
            cancelled.store(true, Ordering::Relaxed);
            assert!(!waiting.join().unwrap().unwrap() && !for_experts.join().unwrap().unwrap());
        });
    }

    #[test]
    fn many_pieces_from_many_threads() {
        let arrival = Arrival::new(&[3000], 1, 3000);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| arrival.wait(0, NEVER));
            for _ in 0..3 {
                scope.spawn(|| (0..1000).for_each(|_| arrival.arrived(0, 1)));
            }
            waiting.join().unwrap().unwrap();
        });
        assert!(arrival.complete.load(Ordering::Relaxed));
        assert_eq!(arrival.bytes.load(Ordering::Relaxed), 3000);
    }
}
