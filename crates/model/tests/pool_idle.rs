//! An idle pool costs nothing: its workers are parked. Alone in its file, because it measures the
//! CPU time of the whole process.

#![cfg(target_os = "linux")]

use alight_model::Pool;
use std::time::Duration;

fn cpu_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which is alive.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    assert_eq!(rc, 0);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

#[test]
fn idle_workers_are_parked() {
    let pool = Pool::new(8);
    for _ in 0..100 {
        pool.run_each(64, &|_, _| {});
    }
    std::thread::sleep(Duration::from_millis(20));
    let before = cpu_time();
    std::thread::sleep(Duration::from_millis(500));
    let spent = cpu_time() - before;
    // Seven spinning workers would burn one to seven half-seconds.
    assert!(spent < Duration::from_millis(10), "idle workers burnt {spent:?}");
}
