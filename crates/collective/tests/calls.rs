//! Sequences of calls, and everything that can be wrong with one.

use std::time::{Duration, Instant};

use alight_collective::{Algorithm, Args, CollectiveError, Element, Options, Spec, ThreadGroup};

use crate::common::{self, Inputs, Random, call, ranks};

fn spec(rows: usize, hidden: usize) -> Spec {
    Spec {
        rows,
        hidden,
        element: Element::Bf16,
        weight: Element::Bf16,
        bias: true,
        epsilon: 1e-6,
        post_norm: true,
    }
}

/// What one rank on its own would get for the same sum: the operands of all, in f32.
fn alone(spec: &Spec, inputs: &Inputs) -> (Vec<u8>, Vec<u8>) {
    let mut options = Options::new(inputs.partials.len(), spec.bytes().unwrap());
    options.algorithm = Some(Algorithm::OneShot);
    common::run(options, spec, inputs).remove(0).unwrap()
}

/// Thousands of calls of changing shapes with ranks that dawdle, each rank's operand overwritten with NaN on return.
fn many(count: i64, size: usize, options: Options) {
    let shapes = [spec(1, 48), spec(3, 16), spec(2, 100), spec(1, 7)];
    let cases: Vec<_> = shapes
        .iter()
        .map(|spec| {
            let inputs = Inputs::random(size, spec, spec.hidden as u64);
            (*spec, alone(spec, &inputs), inputs)
        })
        .collect();
    let group = ThreadGroup::new(options).unwrap();
    ranks(&group, |rank| {
        let mut random = Random(rank as u64);
        let (mut normed, mut new_residual) = (vec![], vec![]);
        for run in 0..count {
            let (spec, expected, inputs) = &cases[run as usize % cases.len()];
            let mut partial = inputs.partials[rank].clone();
            normed.resize(partial.len(), 0);
            new_residual.resize(partial.len(), 0);
            if random.next().is_multiple_of(256) {
                std::thread::sleep(Duration::from_micros(random.next() % 300));
            }
            let args = Args {
                partial: Some(&partial),
                residual: Some(&inputs.residual),
                weight: &inputs.weight,
                post_weight: Some(&inputs.post_weight),
                normed: &mut normed,
                new_residual: &mut new_residual,
            };
            group.allreduce_norm(rank, run, spec, args).unwrap();
            partial.fill(0xff);
            std::hint::black_box(&partial);
            assert!(
                (&new_residual, &normed) == (&expected.0, &expected.1),
                "rank {rank}, run {run}"
            );
        }
    });
}

#[test]
fn thousands_of_calls_with_one_shot() {
    let mut options = Options::new(3, 1024);
    options.algorithm = Some(Algorithm::OneShot);
    many(8000, 3, options);
}

#[test]
fn thousands_of_calls_with_combine_once() {
    let mut options = Options::new(3, 1024);
    options.algorithm = Some(Algorithm::CombineOnce);
    many(8000, 3, options);
}

#[test]
fn thousands_of_calls_with_split() {
    let mut options = Options::new(3, 1024);
    (options.algorithm, options.block) = (Some(Algorithm::Split), 0);
    many(8000, 3, options);
}

#[test]
fn numbers_of_calls_wrap_around() {
    for algorithm in [Algorithm::OneShot, Algorithm::CombineOnce, Algorithm::Split] {
        // The word keeps 28 bits of the number, seats keep 32.
        for first in [(1 << 28) - 50, u32::MAX - 50] {
            let mut options = Options::new(2, 1024);
            (options.algorithm, options.first_call) = (Some(algorithm), first);
            many(100, 2, options);
        }
    }
}

#[test]
fn more_ranks_than_cores() {
    many(300, 32, Options::new(32, 1024));
}

#[test]
fn a_rank_that_never_comes() {
    let mut options = Options::new(3, 1024);
    options.limit = Duration::from_secs(2);
    let limit = options.limit;
    let group = ThreadGroup::new(options).unwrap();
    let (spec, start) = (spec(1, 16), Instant::now());
    let inputs = Inputs::random(3, &spec, 1);
    let errors = ranks(&group, |rank| {
        (rank != 1).then(|| call(&group, rank, 5, &spec, &inputs).unwrap_err())
    });
    assert!(start.elapsed() < Duration::from_secs(20));
    let missing = errors.iter().flatten().find_map(|error| match error {
        CollectiveError::TimedOut { missing, run: 5, .. } => Some(missing.clone()),
        _ => None,
    });
    // On a busy machine the second rank may come after the first has given up.
    assert!(missing.is_some_and(|missing| missing.contains(&1)), "{errors:?}");
    // Who was woken by the other's giving up says why, too.
    assert!(
        errors.iter().flatten().all(|error| error.to_string().contains("did not come")),
        "{errors:?}"
    );
    // It comes too late, and is told why at once; so is everybody afterwards.
    let start = Instant::now();
    for rank in 0..3 {
        let late = call(&group, rank, 6, &spec, &inputs).unwrap_err();
        let CollectiveError::Poisoned { because } = late else { panic!("{late}") };
        assert!(because.contains("did not come"), "{because}");
    }
    assert!(start.elapsed() < limit);
    assert!(group.is_poisoned());
}

#[test]
fn ranks_in_different_calls() {
    let (left, right) = (spec(1, 16), spec(2, 8));
    let inputs = Inputs::random(2, &left, 1);
    // Different shapes, then different runs.
    for (runs, specs) in [([1, 1], [left, right]), ([1, 2], [left, left])] {
        let group = ThreadGroup::new(Options::new(2, 1024)).unwrap();
        let errors = ranks(&group, |rank| {
            let mut inputs = inputs.clone();
            inputs.weight.truncate(specs[rank].hidden * 2);
            inputs.post_weight.truncate(specs[rank].hidden * 2);
            call(&group, rank, runs[rank], &specs[rank], &inputs).unwrap_err()
        });
        let differ = |error: &CollectiveError| matches!(error, CollectiveError::Differ { .. });
        let poisoned = |error: &CollectiveError| matches!(error, CollectiveError::Poisoned { .. });
        assert_eq!(errors.iter().filter(|e| differ(e)).count(), 1, "{errors:?}");
        assert_eq!(errors.iter().filter(|e| poisoned(e)).count(), 1, "{errors:?}");
    }
}

#[test]
fn arguments_that_cannot_work() {
    let good = spec(1, 16);
    let inputs = Inputs::random(1, &good, 1);
    let error = |spec: &Spec, inputs: &Inputs, capacity| {
        let group = ThreadGroup::new(Options::new(1, capacity)).unwrap();
        let error = call(&group, 0, 0, spec, inputs).unwrap_err();
        // Others must not wait for a rank that was refused.
        assert!(group.is_poisoned());
        error.to_string()
    };
    let short = Inputs { weight: vec![0; 30], ..inputs.clone() };
    assert!(error(&good, &short, 1024).contains("the norm's weight has 30 bytes, expected 32"));
    assert!(error(&good, &inputs, 31).contains("32 bytes in a collective made for 31"));
    let spec = |change: fn(&mut Spec)| {
        let mut spec = good;
        change(&mut spec);
        spec
    };
    assert!(error(&spec(|s| s.hidden = 0), &inputs, 1024).contains("without elements"));
    assert!(
        error(&spec(|s| s.rows = usize::MAX), &inputs, 1024).contains("larger than any memory")
    );
    assert!(error(&spec(|s| s.epsilon = f32::NAN), &inputs, 1024).contains("epsilon"));
    assert!(error(&spec(|s| s.weight = Element::F16), &inputs, 1024).contains("type"));
    assert!(
        error(&spec(|s| s.rows = 2), &inputs, 1024)
            .contains("the operand has 32 bytes, expected 64")
    );

    let group = ThreadGroup::new(Options::new(1, 1024)).unwrap();
    let mut two = inputs.clone();
    two.partials.push(vec![]);
    let error = call(&group, 1, 0, &good, &two).unwrap_err();
    assert_eq!(error, CollectiveError::Rank { rank: 1, ranks: 1 });
    assert!(!group.is_poisoned());
    // No rows are fine.
    let none = Inputs { partials: vec![vec![]], residual: vec![], ..inputs };
    assert_eq!(call(&group, 0, 0, &spec(|s| s.rows = 0), &none), Ok((vec![], vec![])));
}

#[test]
fn a_rank_cannot_be_in_two_calls() {
    let group = ThreadGroup::new(Options::new(2, 1024)).unwrap();
    let spec = spec(1, 16);
    let inputs = Inputs::random(2, &spec, 1);
    std::thread::scope(|scope| {
        // Whoever comes second is refused, while the first waits; then rank 1 comes.
        let both = [0, 0].map(|rank| {
            let (group, spec, inputs) = (&group, &spec, &inputs);
            scope.spawn(move || call(group, rank, 0, spec, inputs))
        });
        while !both.iter().any(|call| call.is_finished()) {
            std::thread::yield_now();
        }
        assert!(call(&group, 1, 0, &spec, &inputs).is_ok());
        let results = both.map(|call| call.join().unwrap());
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        assert!(results.contains(&Err(CollectiveError::InUse { rank: 0 })));
    });
}

#[test]
fn cliques_that_cannot_be() {
    for (ranks, capacity) in [(0, 8), (65, 8), (2, usize::MAX), (64, usize::MAX / 64)] {
        assert!(ThreadGroup::new(Options::new(ranks, capacity)).is_err(), "{ranks} {capacity}");
    }
}
