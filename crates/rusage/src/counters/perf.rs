//! perf_event_open(2).

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;

use super::{Counter, NAMES};

/// An event as the kernel knows it.
struct Event {
    name: &'static str,
    /// PERF_TYPE_HARDWARE or PERF_TYPE_SOFTWARE.
    kind: u32,
    config: u64,
}

/// PERF_TYPE_HARDWARE and its first events, from linux/perf_event.h.
const HARDWARE: [Event; 4] = [
    Event { name: NAMES[0], kind: 0, config: 1 },
    Event { name: NAMES[1], kind: 0, config: 0 },
    Event { name: NAMES[2], kind: 0, config: 3 },
    Event { name: NAMES[3], kind: 0, config: 5 },
];

/// Open counters, which wait for a child's exec.
pub(crate) struct Counters(Vec<(&'static str, bool, File)>);

/// The first version of `struct perf_event_attr` (PERF_ATTR_SIZE_VER0), which every kernel accepts.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

/// Bits of `flags`.
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const ENABLE_ON_EXEC: u64 = 1 << 12;
/// Bits of `read_format`: the time that the event was enabled, and the time that it was counted.
const TIMES: u64 = 1 | 1 << 1;
/// PERF_FLAG_FD_CLOEXEC
const CLOSE_ON_EXEC: libc::c_ulong = 8;

impl Counters {
    /// Opens the counters that the kernel offers; `None` if there are none.
    pub(crate) fn open() -> Option<Counters> {
        Counters::of(&HARDWARE)
    }

    fn of(events: &[Event]) -> Option<Counters> {
        let open: Vec<_> = events
            .iter()
            .filter_map(|event| {
                let (user_only, file) = match event.open(0) {
                    Some(file) => (false, file),
                    None => (true, event.open(EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR)?),
                };
                Some((event.name, user_only, file))
            })
            .collect();
        (!open.is_empty()).then_some(Counters(open))
    }

    /// Returns the counts. A counter that never ran is left out.
    pub(crate) fn read(self) -> Vec<Counter> {
        let read = |(name, user_only, mut file): (_, _, File)| {
            let mut bytes = [0u8; 24];
            file.read_exact(&mut bytes).ok()?;
            let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|k| bytes[8 * i + k]));
            let (count, share) = scaled(word(0), word(1), word(2))?;
            Some(Counter { name, count, share, user_only })
        };
        self.0.into_iter().filter_map(read).collect()
    }
}

/// The estimate for the whole time, and the percentage of it that was counted.
fn scaled(count: u64, wanted: u64, counted: u64) -> Option<(u64, u8)> {
    if counted == 0 {
        return None;
    }
    let estimate = u128::from(count) * u128::from(wanted.max(counted)) / u128::from(counted);
    let share = u128::from(counted) * 100 / u128::from(wanted.max(counted));
    Some((u64::try_from(estimate).unwrap_or(u64::MAX), share as u8))
}

impl Event {
    /// Opens it for this process's children, from their exec on.
    fn open(&self, more: u64) -> Option<File> {
        let attributes = Attributes {
            kind: self.kind,
            size: size_of::<Attributes>() as u32,
            config: self.config,
            read_format: TIMES,
            flags: DISABLED | INHERIT | ENABLE_ON_EXEC | more,
            ..Attributes::default()
        };
        // SAFETY: the structure has the stated size, and the call returns a descriptor that is ours
        // alone, or -1.
        unsafe {
            let fd = libc::syscall(
                libc::SYS_perf_event_open,
                &attributes,
                0 as libc::pid_t,
                -1 as libc::c_int,
                -1 as libc::c_int,
                CLOSE_ON_EXEC,
            );
            (fd >= 0).then(|| File::from_raw_fd(fd as libc::c_int))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn counts_are_scaled_to_the_whole_time() {
        assert_eq!(scaled(10, 100, 50), Some((20, 50)));
        assert_eq!(scaled(10, 100, 100), Some((10, 100)));
        assert_eq!(scaled(u64::MAX, u64::MAX, 1), Some((u64::MAX, 0)));
        assert_eq!(scaled(0, 100, 0), None);
    }

    /// Hardware events do not exist on every machine, but the kernel's own do, and they are opened
    /// the same way.
    #[test]
    fn events_are_those_of_the_child_from_exec_on_and_of_its_children() {
        let faults = Event { name: "page faults", kind: 1, config: 2 };
        let Some(counters) = Counters::of(&[faults]) else {
            eprintln!("skipped: this user may not open performance events");
            return;
        };
        // Faults of this process are not counted.
        let mine = vec![1u8; 64 << 20];
        std::hint::black_box(&mine);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "true; (true); exit 0"]).arg0("sh");
        let ended = crate::wait(command.spawn().unwrap(), std::time::Instant::now()).unwrap();
        let [counter] = counters.read()[..] else { panic!() };
        let known = ended.usage.minor_faults + ended.usage.major_faults;
        // The kernel's account also includes the faults between fork and exec.
        assert!(counter.count > 0 && counter.count <= known, "{counter:?} of {known}");
        assert!(counter.count * 2 > known, "{counter:?} of {known}");
        assert_eq!(counter.share, 100);
    }
}
