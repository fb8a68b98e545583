//! The barrier under loom: every order of events, up to a number of preemptions, and every value that the memory model lets
//! a load return. Memory that ranks share is in loom's cells, which fail on an unordered access.
//!
//! The ranks here do what `thread_group` does: write a slot, meet, read all slots; or lend an operand, meet, read what the
//! last rank computed from all of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};

use crate::barrier::{Barrier, Missed, Patience, Rules};
use crate::word::Word;

/// Loom's atomic, with a futex as its manual page describes it: the comparison and going to sleep are one step.
///
/// With `ORDERS` false, every operation on it is relaxed: a control.
struct Modelled<const ORDERS: bool> {
    value: loom::sync::atomic::AtomicU32,
    queue: (Mutex<()>, Condvar),
}

const fn order<const ORDERS: bool>(order: Ordering) -> Ordering {
    if ORDERS { order } else { Ordering::Relaxed }
}

impl<const ORDERS: bool> Word for Modelled<ORDERS> {
    const YIELDS: u32 = 0;

    fn new(value: u32) -> Modelled<ORDERS> {
        let queue = (Mutex::new(()), Condvar::new());
        Modelled { value: loom::sync::atomic::AtomicU32::new(value), queue }
    }

    fn load(&self, order: Ordering) -> u32 {
        self.value.load(self::order::<ORDERS>(order))
    }

    fn store(&self, value: u32, order: Ordering) {
        self.value.store(value, self::order::<ORDERS>(order));
    }

    fn add(&self, value: u32, order: Ordering) -> u32 {
        self.value.fetch_add(value, self::order::<ORDERS>(order))
    }

    fn or(&self, bits: u32, order: Ordering) -> u32 {
        self.value.fetch_or(bits, self::order::<ORDERS>(order))
    }

    fn replace(&self, current: u32, new: u32, order: Ordering) -> bool {
        self.value
            .compare_exchange(current, new, self::order::<ORDERS>(order), Ordering::Relaxed)
            .is_ok()
    }

    fn wait(&self, expected: u32, _time: Duration) {
        let queue = self.queue.0.lock().unwrap();
        // The kernel reads the current value, as a read-modify-write does.
        if self.value.fetch_or(0, Ordering::Relaxed) == expected {
            drop(self.queue.1.wait(queue).unwrap());
        }
    }

    fn wake(&self, most: u32) {
        drop(self.queue.0.lock().unwrap());
        match most {
            1 => self.queue.1.notify_one(),
            _ => self.queue.1.notify_all(),
        }
    }

    fn yield_now() {
        loom::thread::yield_now();
    }
}

/// Endless patience, or none.
#[derive(Clone, Copy)]
struct Waits(bool);

impl Patience for Waits {
    fn left(&mut self) -> Option<Duration> {
        self.0.then_some(Duration::MAX)
    }
}

/// The state that ranks share.
struct Shared<const ORDERS: bool = true> {
    ranks: u32,
    barrier: Barrier<Modelled<ORDERS>>,
    /// `[buffers][ranks]`.
    slots: Vec<Vec<UnsafeCell<u32>>>,
    result: UnsafeCell<u32>,
}

// SAFETY: this is what loom checks: its cells fail on an unordered access.
unsafe impl<const ORDERS: bool> Sync for Shared<ORDERS> {}

impl<const ORDERS: bool> Shared<ORDERS> {
    fn new(ranks: u32, buffers: usize, first: u32) -> Arc<Self> {
        let row = || (0..ranks).map(|_| UnsafeCell::new(0)).collect();
        let slots = (0..buffers).map(|_| row()).collect();
        let barrier = Barrier::new(first);
        Arc::new(Shared { ranks, barrier, slots, result: UnsafeCell::new(0) })
    }

    /// Passes the barrier without blocks of work.
    fn pass<E>(
        &self,
        call: u32,
        patience: &mut Waits,
        last: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), Missed<E>> {
        self.barrier.pass(Rules::new(self.ranks, 0, 0), call, patience, last, |_| ())
    }

    /// Returns the values that the rank reads.
    fn one_shot(&self, rank: usize, call: u32, meets: bool) -> Vec<u32> {
        let slots = &self.slots[call as usize % self.slots.len()];
        // SAFETY: loom checks that the access is exclusive.
        slots[rank].with_mut(|slot| unsafe { *slot = call + rank as u32 });
        if meets {
            self.pass::<()>(call, &mut Waits(true), || Ok(())).unwrap();
        }
        // SAFETY: loom checks that there are no writers.
        slots.iter().map(|slot| slot.with(|slot| unsafe { *slot })).collect()
    }

    fn one_shots(&self, rank: usize, calls: u32) {
        for call in 0..calls {
            let expected: Vec<_> = (call..call + self.slots[0].len() as u32).collect();
            assert_eq!(self.one_shot(rank, call, true), expected);
        }
    }

    fn combine(&self, rank: usize, call: u32, operands: &[UnsafeCell<u32>]) {
        let ranks = operands.len() as u32;
        // SAFETY: loom checks that the access is exclusive.
        operands[rank].with_mut(|own| unsafe { *own = call + rank as u32 });
        let all = || {
            // SAFETY: loom checks that no other rank writes to an operand, or accesses the result.
            let sum = operands.iter().map(|one| one.with(|one| unsafe { *one })).sum();
            // SAFETY: as above.
            self.result.with_mut(|result| unsafe { *result = sum });
            Ok(())
        };
        self.pass::<()>(call, &mut Waits(true), all).unwrap();
        // SAFETY: loom checks that there are no writers.
        let sum = self.result.with(|result| unsafe { *result });
        assert_eq!(sum, ranks * call + ranks * (ranks - 1) / 2);
    }
}

/// Ranks that do blocks of work for each other.
struct Split<const ORDERS: bool> {
    barrier: Barrier<Modelled<ORDERS>>,
    /// One per rank, which writes to it before and after the call: the callers' memory.
    operands: Vec<UnsafeCell<u32>>,
    /// `[ranks][blocks]`, likewise.
    results: Vec<Vec<UnsafeCell<u32>>>,
    rules: Rules,
}

// SAFETY: as above.
unsafe impl<const ORDERS: bool> Sync for Split<ORDERS> {}

impl<const ORDERS: bool> Split<ORDERS> {
    fn new(rules: Rules) -> Arc<Self> {
        let cells = |count: u32| (0..count).map(|_| UnsafeCell::new(0)).collect::<Vec<_>>();
        Arc::new(Split {
            barrier: Barrier::new(0),
            operands: cells(rules.ranks),
            results: (0..rules.ranks).map(|_| cells(rules.blocks)).collect(),
            rules,
        })
    }

    fn call(&self, rank: usize, call: u32, patience: bool) -> Result<(), Missed<()>> {
        // SAFETY: loom checks that the access is exclusive.
        self.operands[rank].with_mut(|own| unsafe { *own = call + rank as u32 });
        let work = |block: u32| {
            // SAFETY: loom checks that there are no writers.
            let sum = self.operands.iter().map(|one| one.with(|one| unsafe { *one })).sum::<u32>();
            for results in &self.results {
                // SAFETY: loom checks that the access is exclusive.
                results[block as usize].with_mut(|one| unsafe { *one = sum + block });
            }
        };
        let met = self.barrier.pass(self.rules, call, &mut Waits(patience), || Ok(()), work);
        // The caller has its memory back, whatever the outcome.
        // SAFETY: loom checks that the access is exclusive.
        self.operands[rank].with_mut(|own| unsafe { *own = 0 });
        let ranks = self.rules.ranks;
        for (block, result) in self.results[rank].iter().enumerate() {
            // SAFETY: loom checks that the access is exclusive.
            let found = result.with_mut(|one| unsafe { std::mem::take(&mut *one) });
            let expected = ranks * call + ranks * (ranks - 1) / 2 + block as u32;
            assert!(met.is_err() || found == expected, "block {block}: {found}");
        }
        met
    }
}

/// Runs `rank` as every rank, in every order with at most `preemptions` preemptions.
fn every_order<S: Send + Sync + 'static>(
    preemptions: usize,
    ranks: usize,
    shared: impl Fn() -> Arc<S> + Send + Sync + 'static,
    rank: impl Fn(&S, usize) + Copy + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let shared = shared();
        let others: Vec<_> = (1..ranks)
            .map(|other| {
                let shared = shared.clone();
                loom::thread::spawn(move || rank(&shared, other))
            })
            .collect();
        rank(&shared, 0);
        for other in others {
            other.join().unwrap();
        }
    });
}

type Ordered = Shared<true>;

#[test]
fn one_shot_of_two_ranks() {
    every_order(3, 2, || Ordered::new(2, 2, 0), |shared, rank| shared.one_shots(rank, 3));
}

#[test]
fn one_shot_of_three_ranks() {
    every_order(2, 3, || Ordered::new(3, 2, 0), |shared, rank| shared.one_shots(rank, 1));
    every_order(1, 3, || Ordered::new(3, 2, 0), |shared, rank| shared.one_shots(rank, 3));
}

/// The single buffer of operands stands in for the callers' memory, which they write to again as soon as they have
/// returned.
#[test]
fn combine_once() {
    let calls = |shared: &Shared, rank: usize| {
        (0..3).for_each(|call| shared.combine(rank, call, &shared.slots[0]));
    };
    every_order(3, 2, || Ordered::new(2, 1, 0), calls);
}

fn splits<const ORDERS: bool>(split: &Split<ORDERS>, rank: usize, calls: u32) {
    (0..calls).for_each(|call| split.call(rank, call, true).unwrap());
}

#[test]
fn split_of_two_ranks() {
    every_order(
        3,
        2,
        || Split::<true>::new(Rules::new(2, 2, 1)),
        |split, rank| splits(split, rank, 1),
    );
    every_order(
        2,
        2,
        || Split::<true>::new(Rules::new(2, 2, 1)),
        |split, rank| splits(split, rank, 2),
    );
    every_order(
        2,
        2,
        || Split::<true>::new(Rules::new(2, 1, 0)),
        |split, rank| splits(split, rank, 3),
    );
}

#[test]
fn split_of_three_ranks() {
    every_order(
        1,
        3,
        || Split::<true>::new(Rules::new(3, 2, 1)),
        |split, rank| splits(split, rank, 2),
    );
}

/// Ranks without patience: all pass or none does, and no rank takes its memory back while another works on it.
#[test]
fn split_with_ranks_that_give_up() {
    let rank = |split: &Split<true>, rank: usize| {
        let met = split.call(rank, 0, rank != 0);
        assert_eq!(met.is_err(), split.barrier.is_poisoned());
    };
    every_order(3, 2, || Split::new(Rules::new(2, 2, 1)), rank);
}

/// Without lending, a waiting rank may leave while others work, as when one of those was killed: then no rank passes.
#[test]
fn split_without_lending() {
    struct Common(Barrier<Modelled<true>>);
    let rank = |common: &Common, rank: usize| {
        let rules = Rules { lends: false, ..Rules::new(2, 2, 1) };
        let met = common.0.pass::<()>(rules, 0, &mut Waits(rank == 0), || Ok(()), |_| ());
        // Either no rank gave up, or none passed.
        assert_eq!(met.is_err(), common.0.is_poisoned());
    };
    every_order(3, 2, || Arc::new(Common(Barrier::new(0))), rank);
}

#[test]
#[should_panic(expected = "ausal")]
fn split_without_the_second_barrier_is_a_race() {
    let rules = || Rules { leaves_early: true, ..Rules::new(2, 2, 1) };
    every_order(
        2,
        2,
        move || Split::<true>::new(rules()),
        |split, rank| {
            drop(split.call(rank, 0, true));
        },
    );
}

#[test]
#[should_panic(expected = "ausal")]
fn split_without_acquire_and_release_is_a_race() {
    every_order(
        2,
        2,
        || Split::<false>::new(Rules::new(2, 2, 1)),
        |split, rank| splits(split, rank, 1),
    );
}

#[test]
#[should_panic(expected = "ausal")]
fn without_the_barrier_there_is_a_race() {
    let call = |shared: &Shared, rank| drop(shared.one_shot(rank, 0, false));
    every_order(2, 2, || Ordered::new(2, 2, 0), call);
}

#[test]
#[should_panic(expected = "ausal")]
fn without_the_second_buffer_there_is_a_race() {
    let calls = |shared: &Shared, rank| {
        (0..2).for_each(|call| drop(shared.one_shot(rank, call, true)));
    };
    every_order(2, 2, || Ordered::new(2, 1, 0), calls);
}

#[test]
#[should_panic(expected = "ausal")]
fn without_acquire_and_release_there_is_a_race() {
    let call = |shared: &Shared<false>, rank| drop(shared.one_shot(rank, 0, true));
    every_order(2, 2, || Shared::new(2, 2, 0), call);
}

/// One rank has no patience: both pass or neither does, and the rank that leaves takes its operand with it.
#[test]
fn a_rank_that_gives_up() {
    let rank = |shared: &Shared, rank: usize| {
        let operands = &shared.slots[0];
        let all = || {
            for one in operands {
                // SAFETY: loom checks that there are no writers.
                one.with(|one| unsafe { std::hint::black_box(*one) });
            }
            Ok(())
        };
        let met = shared.pass::<()>(0, &mut Waits(rank == 0), all);
        // SAFETY: loom checks that the access is exclusive.
        operands[rank].with_mut(|own| unsafe { *own = 1 + u32::from(met.is_ok()) });
        let again = met.is_ok().then(|| shared.pass::<()>(1, &mut Waits(true), || Ok(())));
        // If one of the two ranks gave up, neither got here with a success.
        assert_ne!(again, Some(Err(Missed::Poisoned)));
        assert_eq!(met.is_err(), shared.barrier.is_poisoned());
    };
    every_order(3, 2, || Ordered::new(2, 1, 0), rank);
}

/// Of three ranks, one waits, one has no patience, and one never arrives.
#[test]
fn who_gives_up_wakes_the_others() {
    let rank = |shared: &Shared, rank: usize| {
        let met = shared.pass::<()>(0, &mut Waits(rank == 0), || Ok(()));
        assert!(matches!(met, Err(Missed::Poisoned | Missed::TimedOut)));
    };
    every_order(2, 2, || Ordered::new(3, 1, 0), rank);
}

/// Poisoned from outside, at any moment: no rank stays asleep.
#[test]
fn poison_wakes_everybody() {
    let rank = |shared: &Shared, rank: usize| {
        if rank == 2 {
            shared.barrier.poison();
            // Permanently: a last rank that is working at this moment does not undo it.
            assert!(shared.barrier.is_poisoned());
            return;
        }
        for call in 0..2 {
            if shared.pass::<()>(call, &mut Waits(true), || Ok(())).is_err() {
                assert!(shared.barrier.is_poisoned());
                return;
            }
        }
    };
    every_order(2, 3, || Ordered::new(2, 1, 0), rank);
}

/// The last rank's work fails: all ranks get an error.
#[test]
fn work_that_fails() {
    let rank = |shared: &Shared, _| {
        let met = shared.pass(0, &mut Waits(true), || Err("no"));
        assert!(matches!(met, Err(Missed::Poisoned | Missed::Failed("no"))));
    };
    every_order(3, 2, || Ordered::new(2, 1, 0), rank);
}

/// Call numbers that wrap around on the way.
#[test]
fn numbers_wrap() {
    const FIRST: u32 = (1 << 28) - 1;
    let calls = |shared: &Shared, _| {
        for call in [FIRST, FIRST + 1, FIRST + 2] {
            shared.pass::<()>(call, &mut Waits(true), || Ok(())).unwrap();
        }
    };
    every_order(2, 2, || Ordered::new(2, 1, FIRST), calls);
}
