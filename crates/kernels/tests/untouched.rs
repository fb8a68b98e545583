//! Room for activations takes no memory before it is used. It has a process of its own, in which nothing else takes any.
#![cfg(target_os = "linux")]

use alight_kernels::matmul::Activations;

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn room_for_activations_is_untouched() {
    const MIB: usize = 1 << 20;
    let before = resident();
    let room = Activations::new(2048, 32768);
    let taken = resident().saturating_sub(before);
    assert!(taken < 4 * MIB, "{taken} bytes of more than 400 MB of room");
    drop(room);
}
