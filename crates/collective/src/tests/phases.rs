//! Ranks that are delayed at one phase of a call: results stay right with the whole protocol, and go wrong without its
//! barrier or its second buffer. The second half shows that the first would detect an error.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::hooks::{Hooks, Phase, Without};
use crate::barrier::{Barrier, Missed, Patience, Rules};
use crate::{Algorithm, Args, Element, Options, Spec, ThreadGroup};

const ROWS: usize = 5;
/// Elements of an operand.
const COUNT: usize = 40;
const SPEC: Spec = Spec {
    rows: ROWS,
    hidden: COUNT / ROWS,
    element: Element::F32,
    weight: Element::F32,
    bias: true,
    epsilon: 1e-6,
    post_norm: false,
};

/// The operand of `rank` in `call`: small integers, so that sums are exact.
fn operand(rank: usize, call: u32) -> Vec<u8> {
    (0..COUNT)
        .flat_map(|i| (((rank * 7 + call as usize * 3 + i) % 50) as f32).to_ne_bytes())
        .collect()
}

fn sum(ranks: usize, call: u32) -> Vec<u8> {
    let at = |rank: usize, i: usize| ((rank * 7 + call as usize * 3 + i) % 50) as f32;
    (0..COUNT).flat_map(|i| (0..ranks).map(|r| at(r, i)).sum::<f32>().to_ne_bytes()).collect()
}

/// Returns the number of wrong results of `calls` calls, over all ranks.
fn wrong(ranks: usize, calls: u32, algorithm: Algorithm, hooks: Hooks) -> usize {
    let mut options = Options::new(ranks, COUNT * 4);
    (options.algorithm, options.block) = (Some(algorithm), 0);
    let mut group = ThreadGroup::new(options).unwrap();
    group.hooks = hooks;
    let (zeros, weights) = (vec![0; COUNT * 4], vec![0; COUNT / ROWS * 4]);
    let one = |rank: usize, [normed, new_residual]: &mut [Vec<u8>; 2]| {
        let mut wrong = 0;
        for call in 0..calls {
            let mut partial = operand(rank, call);
            let args = Args {
                partial: Some(&partial),
                residual: Some(&zeros),
                weight: &weights,
                post_weight: None,
                normed,
                new_residual,
            };
            group.allreduce_norm(rank, i64::from(call), &SPEC, args).unwrap();
            // A rank that still reads it gets NaN.
            partial.fill(0xff);
            std::hint::black_box(&partial);
            wrong += usize::from(*new_residual != sum(ranks, call));
        }
        wrong
    };
    // They outlive all ranks: without its second barrier, split writes to them after their rank has returned.
    let mut results: Vec<_> = (0..ranks).map(|_| [zeros.clone(), zeros.clone()]).collect();
    std::thread::scope(|scope| {
        let one = &one;
        let results = results.iter_mut().enumerate();
        let ranks: Vec<_> =
            results.map(|(rank, results)| scope.spawn(move || one(rank, results))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).sum()
    })
}

/// Delays `rank` at `phase` of every call.
fn slow(rank: usize, phase: Phase, without: Without) -> Hooks {
    let pause = move |r: usize, _: u32, p: Phase| {
        if (r, p) == (rank, phase) {
            std::thread::sleep(Duration::from_millis(3));
        }
    };
    Hooks { without, pause: Some(Box::new(pause)) }
}

#[test]
fn a_slow_rank_at_any_phase_changes_nothing() {
    let phases = [Phase::Entered, Phase::Staged, Phase::Working, Phase::Passed, Phase::Computed];
    for algorithm in [Algorithm::OneShot, Algorithm::CombineOnce, Algorithm::Split] {
        for phase in phases {
            for rank in [0, 2] {
                let wrong = wrong(3, 12, algorithm, slow(rank, phase, Without::Nothing));
                assert_eq!(wrong, 0, "{algorithm:?}, rank {rank} slow at {phase:?}");
            }
        }
    }
}

#[test]
fn without_the_barrier_results_are_wrong() {
    let wrong = wrong(3, 12, Algorithm::OneShot, slow(0, Phase::Entered, Without::Barrier));
    assert!(wrong > 0, "nothing tells a protocol without its barrier");
}

#[test]
fn without_the_second_buffer_results_are_wrong() {
    // Rank 0 is slow to read; the others are already in the next call.
    let wrong = wrong(3, 12, Algorithm::OneShot, slow(0, Phase::Passed, Without::SecondBuffer));
    assert!(wrong > 0, "nothing tells a protocol without its second buffer");
}

#[test]
fn split_without_the_second_barrier_results_are_wrong() {
    // Every block takes long, so that a rank that finds no more blocks leaves while another is still at the last one. One
    // call only: the next would find the ranks out of step.
    let pause = |_: usize, _: u32, phase: Phase| {
        if phase == Phase::Working {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let hooks = Hooks { without: Without::SecondBarrier, pause: Some(Box::new(pause)) };
    let wrong = wrong(3, 1, Algorithm::Split, hooks);
    assert!(wrong > 0, "nothing tells a protocol without its second barrier");
}

#[test]
fn split_without_any_barrier_results_are_wrong() {
    let wrong = wrong(3, 12, Algorithm::Split, slow(0, Phase::Entered, Without::Barrier));
    assert!(wrong > 0, "nothing tells a protocol without its barrier");
}

/// A block that panics: the call fails for all ranks, after the last of the others has finished with the lent memory.
#[test]
fn a_block_that_panics() {
    let barrier = Barrier::<AtomicU32>::new(0);
    let (rules, working) = (Rules::new(3, 6, 2), AtomicU32::new(0));
    let one = |_| {
        let mut patience = Until(Instant::now() + Duration::from_secs(20));
        let work = |block| {
            working.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(10));
            working.fetch_sub(1, Ordering::SeqCst);
            assert!(block != 2, "a block that panics");
        };
        let met = barrier.pass::<()>(rules, 0, &mut patience, || Ok(()), work);
        assert_eq!(working.load(Ordering::SeqCst), 0, "left while others work");
        met
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || one(rank))).collect();
        let met: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        assert_eq!(met.iter().filter(|met| met.is_err()).count(), 1, "one panics");
        assert!(met.iter().flatten().all(|met| *met == Err(Missed::Poisoned)), "{met:?}");
    });
}

/// Across processes nothing is lent, so no rank waits longer than the limit for one that was killed at its block. If that
/// one was only slow, it gets an error too: no rank passes.
#[test]
fn a_rank_that_stays_at_its_block() {
    let barrier = Barrier::<AtomicU32>::new(0);
    let rules = Rules { lends: false, ..Rules::new(2, 2, 1) };
    let start = Instant::now();
    let one = || {
        let mut patience = Until(Instant::now() + Duration::from_millis(300));
        let work = |block| {
            if block == 1 {
                std::thread::sleep(Duration::from_millis(2500));
            }
        };
        let met = barrier.pass::<()>(rules, 0, &mut patience, || Ok(()), work);
        (met, start.elapsed())
    };
    let met = std::thread::scope(|scope| {
        let ranks = [scope.spawn(one), scope.spawn(one)];
        ranks.map(|rank| rank.join().unwrap())
    });
    assert!(met.iter().all(|(met, _)| met.is_err()), "{met:?}");
    assert!(met.iter().any(|(_, time)| *time < Duration::from_millis(2400)), "{met:?}");
    assert!(barrier.is_poisoned());
}

/// Patience until a point in time.
struct Until(Instant);

impl Patience for Until {
    fn left(&mut self) -> Option<Duration> {
        self.0.checked_duration_since(Instant::now())
    }
}

/// If a rank gave up while the last one computes, it would withdraw its operand from under it, so it stays and passes. On
/// a machine so busy that it gave up before the last one arrived, no rank passes.
#[test]
fn nobody_leaves_while_the_last_rank_works() {
    let barrier = Barrier::<AtomicU32>::new(0);
    let (rules, working) = (Rules::new(2, 0, 0), AtomicBool::new(false));
    let (last, waiter) = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut patience = Until(Instant::now() + Duration::from_millis(50));
            let met = barrier.pass::<()>(rules, 0, &mut patience, || Ok(()), |_| ());
            (met, working.load(Ordering::SeqCst))
        });
        while barrier.is_empty() {
            std::thread::yield_now();
        }
        let work = || {
            working.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(150));
            working.store(false, Ordering::SeqCst);
            Ok(())
        };
        let last = barrier.pass::<()>(rules, 0, &mut Until(Instant::now()), work, |_| ());
        (last, waiter.join().unwrap())
    });
    assert!(!waiter.1, "left while the last rank was at work");
    assert_eq!(last.is_ok(), waiter.0.is_ok());
}
