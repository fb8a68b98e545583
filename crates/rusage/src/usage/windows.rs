//! Windows: the account of one process, through its handle.

use std::time::Duration;

use windows_sys::Win32::Foundation::{FILETIME, HANDLE};
use windows_sys::Win32::System::ProcessStatus::{GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Threading::GetProcessTimes;

use super::Usage;

impl Usage {
    /// Returns the usage of a process. Values that the system does not report are zero.
    pub(crate) fn of_process(process: HANDLE, wall: Duration) -> Usage {
        let none = FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 };
        let (mut created, mut exited, mut system, mut user) = (none, none, none, none);
        // SAFETY: a handle that the caller keeps open, and four valid places to write to.
        let timed =
            unsafe { GetProcessTimes(process, &mut created, &mut exited, &mut system, &mut user) };
        if timed == 0 {
            (system, user) = (none, none);
        }
        let mut memory = PROCESS_MEMORY_COUNTERS::default();
        let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
        // SAFETY: as above; the structure has the stated size.
        if unsafe { GetProcessMemoryInfo(process, &mut memory, size) } == 0 {
            memory = PROCESS_MEMORY_COUNTERS::default();
        }
        Usage {
            wall,
            user: duration(user),
            system: duration(system),
            max_rss_bytes: memory.PeakWorkingSetSize as u64,
            major_faults: u64::from(memory.PageFaultCount),
            ..Usage::default()
        }
    }
}

/// Converts from units of 100 ns.
fn duration(time: FILETIME) -> Duration {
    let units = u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    Duration::from_micros(units / 10) + Duration::from_nanos(units % 10 * 100)
}
