//! The number of cores that this process may use.

/// The physical cores within the scheduler affinity, bounded by the cgroup's CPU quota; at least 1. If the system does not report
/// physical cores, logical processors are counted.
pub(super) fn available() -> usize {
    // The standard library respects affinity and both versions of cgroup quotas, but counts hardware threads: two on one core
    // share its vector units, which are the limit here.
    let logical = std::thread::available_parallelism().map_or(1, |n| n.get());
    physical().map_or(logical, |cores| cores.min(logical)).max(1)
}

#[cfg(target_os = "linux")]
fn physical() -> Option<usize> {
    // SAFETY: cpu_set_t is plain bits, for which all zeros is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the given size into the set, which is alive.
    let rc = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if rc != 0 {
        return None;
    }
    let mut cores = Vec::new();
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: `cpu` is below CPU_SETSIZE, the number of bits of the set.
        if !unsafe { libc::CPU_ISSET(cpu, &set) } {
            continue;
        }
        // Hardware threads of one core have the same list here.
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let core = std::fs::read_to_string(path).ok()?;
        if !cores.contains(&core) {
            cores.push(core);
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(not(target_os = "linux"))]
fn physical() -> Option<usize> {
    None
}
