//! Ranks that share nothing but a segment: each opens it for itself, as processes do, at an address of its own. Real
//! processes, and what happens when one is killed: `bindings/python/tests/test_processes.py`.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use alight_collective::{
    CollectiveError, Element, Key, Options, ProcessGroup, ProcessGroupOptions, SharedSegment, Spec,
};

use crate::common::{self, Inputs, Random};

const SPEC: Spec = Spec {
    rows: 5,
    hidden: 24,
    element: Element::Bf16,
    weight: Element::F32,
    bias: true,
    epsilon: 1e-6,
    post_norm: true,
};

/// A name that is not used yet, and is taken away in any case.
struct Name(String);

impl Name {
    fn new() -> Name {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        Name(format!("/alight-test-{}-{next}", std::process::id()))
    }

    fn path(&self) -> std::path::PathBuf {
        format!("/dev/shm{}", self.0).into()
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = SharedSegment::unlink(&self.0);
    }
}

/// A segment for each of so many "processes"; the name is gone.
fn segments(processes: usize) -> Vec<Arc<SharedSegment>> {
    let name = Name::new();
    let first = SharedSegment::create(&name.0).unwrap();
    let others = (1..processes).map(|_| SharedSegment::open(&name.0).unwrap());
    std::iter::once(first).chain(others).map(Arc::new).collect()
}

fn options(ranks: usize) -> ProcessGroupOptions {
    let mut options = ProcessGroupOptions::new(Key([1, 2]), ranks, ranks, 4096);
    options.block = 0;
    options
}

fn call(
    group: &ProcessGroup,
    rank: usize,
    spec: &Spec,
    inputs: &Inputs,
) -> Result<common::Results, CollectiveError> {
    // Every other rank.
    let in_place = rank.is_multiple_of(2);
    common::with_args(rank, spec, inputs, in_place, |args| group.allreduce_norm(rank, spec, args))
}

/// Does something as each rank, with a group that it joins through a segment of its own.
fn groups<T: Send>(
    options: &ProcessGroupOptions,
    one: impl Fn(usize, &ProcessGroup) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = segments(options.ranks)
            .into_iter()
            .enumerate()
            .map(|(rank, segment)| {
                scope.spawn(move || {
                    one(rank, &ProcessGroup::join(&segment, options.clone()).unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn results_are_those_of_threads() {
    for (ranks, element) in [(1, Element::F32), (2, Element::Bf16), (3, Element::F16)] {
        let shapes = [(5, 24, true), (1, 100, false), (3, 7, true), (0, 8, false)];
        let cases: Vec<_> = shapes
            .into_iter()
            .map(|(rows, hidden, post_norm)| {
                let spec = Spec { rows, hidden, element, post_norm, ..SPEC };
                let inputs = Inputs::random(ranks, &spec, hidden as u64);
                let expected = common::run(Options::new(ranks, 4096), &spec, &inputs);
                (spec, inputs, expected)
            })
            .collect();
        groups(&options(ranks), |rank, group| {
            let mut random = Random(rank as u64);
            for turn in 0..3000 {
                let (spec, inputs, expected) = &cases[turn % cases.len()];
                if random.next().is_multiple_of(128) {
                    std::thread::sleep(Duration::from_micros(random.next() % 300));
                }
                assert_eq!(call(group, rank, spec, inputs), expected[rank].clone(), "{turn}");
            }
        });
    }
}

#[test]
fn a_process_that_never_comes() {
    let mut options = options(3);
    options.limit = Duration::from_millis(300);
    let inputs = Inputs::random(3, &SPEC, 1);
    let start = Instant::now();
    let errors = groups(&options, |rank, group| {
        if rank == 1 {
            // Comes too late, and hears at once what was wrong.
            std::thread::sleep(Duration::from_secs(2));
        }
        [0, 1].map(|_| call(group, rank, &SPEC, &inputs).unwrap_err().to_string())
    });
    assert!(start.elapsed() < Duration::from_secs(20));
    // On a busy machine others may be late as well.
    let found = |error: &String| error.contains("did not come: [") && error.contains('1');
    assert!(errors.iter().flatten().all(found), "{errors:?}");
}

#[test]
fn ranks_in_different_calls() {
    let (left, right) = (SPEC, Spec { rows: 4, ..SPEC });
    let inputs = [&left, &right].map(|spec| Inputs::random(2, spec, 1));
    let errors = groups(&options(2), |rank, group| {
        call(group, rank, [&left, &right][rank], &inputs[rank]).unwrap_err().to_string()
    });
    assert!(
        errors.iter().all(|error| error.contains("ranks met in different calls")),
        "{errors:?}"
    );
}

#[test]
fn arguments_that_cannot_work_end_it_for_all() {
    let inputs = Inputs::random(2, &SPEC, 1);
    let errors = groups(&options(2), |rank, group| {
        let spec = Spec { epsilon: if rank == 0 { -1.0 } else { 1.0 }, ..SPEC };
        call(group, rank, &spec, &inputs).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("epsilon must be")), "{errors:?}");
}

#[test]
fn only_this_user_may_open_it_and_nothing_is_left() {
    let name = Name::new();
    let missing = SharedSegment::open(&name.0).err().unwrap();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    let segment = Arc::new(SharedSegment::create(&name.0).unwrap());
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let found = std::fs::metadata(name.path()).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    // Address space is not memory.
    assert!(found.blocks() * 512 < 1 << 20);
    assert!(SharedSegment::create(&name.0).is_err(), "made twice");
    let other = Arc::new(SharedSegment::open(&name.0).unwrap());
    let blocks = || std::fs::metadata(name.path()).map(|found| found.blocks());
    let before = blocks().unwrap();
    let large = ProcessGroupOptions { capacity: 1 << 20, ..options(2) };
    let joined =
        [&segment, &other].map(|segment| ProcessGroup::join(segment, large.clone()).unwrap());
    assert!(blocks().unwrap() >= before + (4 << 20) / 512);
    drop(joined);
    assert_eq!(blocks().unwrap(), before, "memory of a group that everybody has left");
    std::fs::set_permissions(name.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(SharedSegment::open(&name.0).err().unwrap().to_string().contains("expected user"));
    SharedSegment::unlink(&name.0).unwrap();
    SharedSegment::unlink(&name.0).unwrap();
    assert!(!name.path().exists());
    // What is mapped stays.
    assert!(
        ProcessGroup::join(&segment, ProcessGroupOptions { key: Key([3, 3]), ..options(1) })
            .is_ok()
    );
}

#[test]
fn parties_that_cannot_be() {
    let segment = &segments(1)[0];
    for (ranks, capacity) in [(0, 8), (65, 8), (2, usize::MAX), (2, 1 << 40)] {
        let options = ProcessGroupOptions { capacity, ..options(ranks) };
        assert!(ProcessGroup::join(segment, options).is_err(), "{ranks} {capacity}");
    }
    // Places do run out, and it is said.
    let error = (0..5000).find_map(|i| {
        let options = ProcessGroupOptions { key: Key([7, i]), ..options(1) };
        ProcessGroup::join(segment, options).err()
    });
    assert!(error.is_some_and(|error| error.to_string().contains("4096 have been made")));
}
