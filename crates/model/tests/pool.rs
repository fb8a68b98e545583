//! The pool under stress: every unit once, panics that go on in the caller, nested and concurrent
//! regions, more threads than cores.

use alight_model::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn every_unit_runs_exactly_once() {
    for threads in [1, 2, 3, 8, 33] {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads);
        let hits: Vec<AtomicU32> = (0..1000).map(|_| AtomicU32::new(0)).collect();
        for round in 0..2000u32 {
            let units = [1, 2, 3, 7, 64, 999, 1000][round as usize % 7];
            let take = [1, 5, usize::MAX][round as usize % 3];
            pool.run(units, take, &|range, thread| {
                assert!(thread < threads);
                assert!(range.len() <= take && !range.is_empty());
                for unit in range {
                    hits[unit].fetch_add(1, Ordering::Relaxed);
                }
            });
            for (unit, hit) in hits.iter().enumerate() {
                let expected = u32::from(unit < units);
                assert_eq!(hit.swap(0, Ordering::Relaxed), expected, "unit {unit} of {units}");
            }
        }
    }
}

#[test]
fn thread_indices_never_overlap() {
    let pool = Pool::new(6);
    let inside: Vec<AtomicU32> = (0..6).map(|_| AtomicU32::new(0)).collect();
    for _ in 0..500 {
        pool.run_each(40, &|unit, thread| {
            assert_eq!(inside[thread].fetch_add(1, Ordering::SeqCst), 0);
            if unit % 13 == 0 {
                std::thread::yield_now();
            }
            inside[thread].fetch_sub(1, Ordering::SeqCst);
        });
    }
}

#[test]
fn results_written_by_units_are_visible_to_the_caller_and_to_the_next_region() {
    let pool = Pool::new(4);
    let cells: Vec<AtomicUsize> = (0..257).map(|_| AtomicUsize::new(0)).collect();
    for round in 1..3000 {
        pool.run_each(cells.len(), &|unit, _| {
            // Relaxed on purpose: the region's own ordering has to carry the value.
            assert_eq!(cells[unit].load(Ordering::Relaxed), round - 1);
            cells[unit].store(round, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_panic_in_a_unit_reaches_the_caller_and_the_pool_lives_on() {
    for threads in [1, 2, 9] {
        let pool = Pool::new(threads);
        for bad in [0, 17, 63] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run_each(64, &|unit, _| assert!(unit != bad, "unit {bad} is bad"));
            }));
            let payload = caught.expect_err("the panic must not be lost");
            let text = payload.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
            assert!(text.contains(&format!("unit {bad} is bad")), "{text}");
            let sum = AtomicUsize::new(0);
            pool.run_each(64, &|unit, _| {
                sum.fetch_add(unit, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 64 * 63 / 2);
        }
    }
}

#[test]
fn nested_and_concurrent_regions_run_and_do_not_deadlock() {
    let pool = Pool::new(3);
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..300 {
                    pool.run_each(8, &|_, _| {
                        pool.run_each(4, &|_, thread| {
                            assert_eq!(thread, 0);
                            total.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 3 * 300 * 8 * 4);
}

#[test]
fn parked_workers_wake_up_and_the_caller_wakes_up_for_a_late_unit() {
    let pool = Pool::new(2);
    for _ in 0..20 {
        // Long enough for the worker to park.
        std::thread::sleep(Duration::from_millis(2));
        let helped = AtomicUsize::new(0);
        let began = Instant::now();
        pool.run_each(2, &|_, thread| {
            // The thread that comes first holds its unit until the other one has come, or for long.
            helped.fetch_add(1, Ordering::SeqCst);
            while helped.load(Ordering::SeqCst) < 2 && began.elapsed() < Duration::from_secs(5) {
                std::thread::yield_now();
            }
            if thread != 0 {
                // Longer than the caller spins: it has to park, and to be woken.
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        assert!(began.elapsed() < Duration::from_secs(5), "the parked worker never came");
    }
}

#[test]
fn pools_come_and_go() {
    for round in 0..200 {
        let pool = Pool::new(1 + round % 5);
        if round % 2 == 0 {
            pool.run_each(10, &|_, _| {});
        }
    }
    assert!(Pool::default_threads() >= 1);
}
