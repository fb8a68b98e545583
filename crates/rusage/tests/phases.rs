//! The account of a process by phases. Alone in its file: the counters are those of the whole process.

#![cfg(unix)]

use std::time::Duration;

use rusage::Phases;

#[test]
fn a_phase_holds_what_happened_in_it_and_nothing_else() {
    let mut phases = Phases::start();
    std::thread::sleep(Duration::from_millis(20));
    phases.end("sleep");
    let touched = vec![1u8; 32 << 20];
    assert!(std::hint::black_box(&touched).iter().all(|&b| b == 1));
    phases.end("touch");
    let [sleep, touch] = phases.list() else { panic!("{phases:?}") };
    assert_eq!((sleep.name, touch.name), ("sleep", "touch"));
    assert!(sleep.usage.wall >= Duration::from_millis(20));
    // With huge pages, 32 MiB are 16 faults.
    assert!(touch.usage.minor_faults >= 16, "{touch:?}");
    assert!(sleep.usage.voluntary_switches >= 1 && sleep.usage.minor_faults < 16, "{sleep:?}");
}
