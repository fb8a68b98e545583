//! Ranks that are held up at one phase of a call: results stay right with the whole protocol, and go wrong without its
//! barrier or its second buffer. The second half shows that the first can see.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::hooks::{Hooks, Phase, Without};
use crate::meeting::{Meeting, Patience};
use crate::{Algorithm, Args, Clique, Element, Options, Spec};

const HIDDEN: usize = 40;
const SPEC: Spec = Spec {
    rows: 1,
    hidden: HIDDEN,
    element: Element::F32,
    weight: Element::F32,
    bias: true,
    epsilon: 1e-6,
    post_norm: false,
};

/// What rank `rank` brings in `call`: small integers, so that sums are exact.
fn operand(rank: usize, call: u32) -> Vec<u8> {
    (0..HIDDEN)
        .flat_map(|i| (((rank * 7 + call as usize * 3 + i) % 50) as f32).to_ne_bytes())
        .collect()
}

fn sum(ranks: usize, call: u32) -> Vec<u8> {
    let at = |rank: usize, i: usize| ((rank * 7 + call as usize * 3 + i) % 50) as f32;
    (0..HIDDEN).flat_map(|i| (0..ranks).map(|r| at(r, i)).sum::<f32>().to_ne_bytes()).collect()
}

/// How many results of `calls` calls were wrong, on all ranks together.
fn wrong(ranks: usize, calls: u32, algorithm: Algorithm, hooks: Hooks) -> usize {
    let mut options = Options::new(ranks, HIDDEN * 4);
    options.algorithm = Some(algorithm);
    let mut clique = Clique::new(options).unwrap();
    clique.hooks = hooks;
    let zeros = vec![0; HIDDEN * 4];
    let one = |rank: usize| {
        let mut wrong = 0;
        let (mut normed, mut new_residual) = (zeros.clone(), zeros.clone());
        for call in 0..calls {
            let mut partial = operand(rank, call);
            let args = Args {
                partial: &partial,
                residual: &zeros,
                weight: &zeros,
                post_weight: None,
                normed: &mut normed,
                new_residual: &mut new_residual,
            };
            clique.allreduce_norm(rank, i64::from(call), &SPEC, args).unwrap();
            // Whoever still reads it gets NaN.
            partial.fill(0xff);
            std::hint::black_box(&partial);
            wrong += usize::from(new_residual != sum(ranks, call));
        }
        wrong
    };
    std::thread::scope(|scope| {
        let one = &one;
        let ranks: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || one(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).sum()
    })
}

/// Holds `rank` up at `phase` of every call.
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
    for algorithm in [Algorithm::OneShot, Algorithm::CombineOnce] {
        for phase in [Phase::Entered, Phase::Staged, Phase::Passed, Phase::Computed] {
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

/// Patience up to a moment.
struct Until(Instant);

impl Patience for Until {
    fn left(&mut self) -> Option<Duration> {
        self.0.checked_duration_since(Instant::now())
    }
}

/// A rank that gave up while the last one computes would pull its operand from under that one's hands: it stays, and
/// passes. On a machine so busy that it gave up before the last one came, nobody passes.
#[test]
fn nobody_leaves_while_the_last_rank_works() {
    let meeting = Meeting::<AtomicU32>::new(2, 0);
    let working = AtomicBool::new(false);
    let (last, waiter) = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut patience = Until(Instant::now() + Duration::from_millis(50));
            let met = meeting.pass::<()>(0, &mut patience, || Ok(()));
            (met, working.load(Ordering::SeqCst))
        });
        while meeting.is_empty() {
            std::thread::yield_now();
        }
        let last = meeting.pass::<()>(0, &mut Until(Instant::now()), || {
            working.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(150));
            working.store(false, Ordering::SeqCst);
            Ok(())
        });
        (last, waiter.join().unwrap())
    });
    assert!(!waiter.1, "left while the last rank was at work");
    assert_eq!(last.is_ok(), waiter.0.is_ok());
}
