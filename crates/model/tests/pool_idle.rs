//! An idle pool costs nothing: its workers are parked.

#![cfg(target_os = "linux")]

use alight_model::Pool;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The clock that counts the CPU time of this thread, for any thread to read.
fn own_clock() -> libc::clockid_t {
    let mut clock = 0;
    // SAFETY: of the thread that asks; one number is written.
    let rc = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
    assert_eq!(rc, 0);
    clock
}

fn cpu_time(clock: libc::clockid_t) -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which is alive.
    let rc = unsafe { libc::clock_gettime(clock, &mut t) };
    assert_eq!(rc, 0);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

#[test]
fn idle_workers_are_parked() {
    let pool = Pool::new(8);
    // One unit for each thread, all held at once.
    let (clocks, here) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    pool.run_each(8, &|_, _| {
        clocks.lock().unwrap().push(own_clock());
        here.fetch_add(1, Ordering::SeqCst);
        while here.load(Ordering::SeqCst) < 8 {
            std::thread::yield_now();
        }
    });
    let clocks = clocks.into_inner().unwrap();
    for _ in 0..100 {
        pool.run_each(64, &|_, _| {});
    }
    std::thread::sleep(Duration::from_millis(20));
    let all = || clocks.iter().map(|clock| cpu_time(*clock)).sum::<Duration>();
    let before = all();
    std::thread::sleep(Duration::from_millis(500));
    let spent = all() - before;
    // Seven spinning workers would burn one to seven half-seconds.
    assert!(spent < Duration::from_millis(10), "idle workers burnt {spent:?}");
}
