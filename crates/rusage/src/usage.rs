//! The counters themselves.

#[cfg(windows)]
mod windows;

use std::time::Duration;

use serde::{Serialize, Serializer};

/// Processor time from which its split into user and kernel time is meaningful: the split is sampled
/// at ticks of 1 to 10 ms, and 25 samples of 4 ms determine a share within ±10 %.
pub const SPLIT_RELIABLE: Duration = Duration::from_millis(100);

/// Resources used by a process from its start to its end, or between two moments of one.
///
/// Serialised flat, with times in microseconds (`wall_us`, `user_us`, `system_us`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Elapsed time, by a clock that cannot be set.
    #[serde(rename = "wall_us", serialize_with = "micros")]
    pub wall: Duration,
    /// Processor time in the program's own code.
    #[serde(rename = "user_us", serialize_with = "micros")]
    pub user: Duration,
    /// Processor time in the kernel on its behalf.
    #[serde(rename = "system_us", serialize_with = "micros")]
    pub system: Duration,
    /// Maximum number of bytes that were resident at a time; 0 where the system does not report it.
    pub max_rss_bytes: u64,
    /// Page faults that found their page in memory.
    pub minor_faults: u64,
    /// Page faults that had to read their page. On Windows, faults of both kinds are counted here.
    pub major_faults: u64,
    /// Number of times that the processor was given up, to wait for something.
    pub voluntary_switches: u64,
    /// Number of times that the processor was taken away.
    pub involuntary_switches: u64,
    /// Bytes that had to be read from storage; `None` where the system counts something else.
    pub read_bytes: Option<u64>,
    /// Bytes that the process caused to be written to storage.
    pub written_bytes: Option<u64>,
    /// Number of block reads, of any size, where the system counts these (macOS, the BSDs).
    pub read_operations: Option<u64>,
    /// Number of block writes.
    pub write_operations: Option<u64>,
    /// Messages received over sockets; counted only by the BSDs.
    pub messages_received: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Signals delivered; counted only by the BSDs.
    pub signals: u64,
    /// Number of times that it was swapped out as a whole; counted only by the BSDs.
    pub swaps: u64,
    /// Integrals over time, kilobytes × ticks: shared code, own data, own stack. Counted only by the
    /// BSDs.
    #[serde(skip)]
    pub integrals: [u64; 3],
}

/// Serialises a time as whole microseconds.
fn micros<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_micros() as u64)
}

impl Usage {
    /// Returns the usage of this process (all its threads) since it was started, without the wall
    /// time, which [`Mark`](crate::Mark) measures.
    pub fn of_self() -> Usage {
        #[cfg(unix)]
        {
            // SAFETY: the kernel fills the structure, which is of the right type.
            let raw = unsafe {
                let mut raw: libc::rusage = std::mem::zeroed();
                libc::getrusage(libc::RUSAGE_SELF, &mut raw);
                raw
            };
            Usage::from_raw(&raw, Duration::ZERO)
        }
        #[cfg(windows)]
        {
            // SAFETY: returns a number that denotes this process.
            let me = unsafe { windows_sys::Win32::System::Threading::GetCurrentProcess() };
            Usage::of_process(me, Duration::ZERO)
        }
    }

    /// The difference from an `earlier` account of the same process. The peak size is the later
    /// one's: a peak has no difference.
    pub fn since(&self, earlier: &Usage) -> Usage {
        let less = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_sub(b?));
        Usage {
            wall: self.wall.saturating_sub(earlier.wall),
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            max_rss_bytes: self.max_rss_bytes,
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
            read_bytes: less(self.read_bytes, earlier.read_bytes),
            written_bytes: less(self.written_bytes, earlier.written_bytes),
            read_operations: less(self.read_operations, earlier.read_operations),
            write_operations: less(self.write_operations, earlier.write_operations),
            messages_received: self.messages_received.saturating_sub(earlier.messages_received),
            messages_sent: self.messages_sent.saturating_sub(earlier.messages_sent),
            signals: self.signals.saturating_sub(earlier.signals),
            swaps: self.swaps.saturating_sub(earlier.swaps),
            integrals: std::array::from_fn(|i| {
                self.integrals[i].saturating_sub(earlier.integrals[i])
            }),
        }
    }

    /// Processor time of both kinds.
    pub fn cpu(&self) -> Duration {
        self.user + self.system
    }

    /// True if the split of the processor time is based on enough samples to be meaningful.
    pub fn split_is_reliable(&self) -> bool {
        self.cpu() >= SPLIT_RELIABLE
    }

    /// Converts the kernel's structure.
    #[cfg(unix)]
    pub(crate) fn from_raw(raw: &libc::rusage, wall: Duration) -> Usage {
        // Apple counts the peak in bytes, all others in kilobytes.
        let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
        let (reads, writes) = (count(raw.ru_inblock), count(raw.ru_oublock));
        // Linux counts units of 512 bytes here, whatever the block size; others count operations.
        let linux = cfg!(any(target_os = "linux", target_os = "android"));
        let (bytes, operations) = (|n: u64| linux.then(|| n * 512), |n: u64| (!linux).then_some(n));
        Usage {
            wall,
            user: duration(&raw.ru_utime),
            system: duration(&raw.ru_stime),
            max_rss_bytes: count(raw.ru_maxrss) * unit,
            minor_faults: count(raw.ru_minflt),
            major_faults: count(raw.ru_majflt),
            voluntary_switches: count(raw.ru_nvcsw),
            involuntary_switches: count(raw.ru_nivcsw),
            read_bytes: bytes(reads),
            written_bytes: bytes(writes),
            read_operations: operations(reads),
            write_operations: operations(writes),
            messages_received: count(raw.ru_msgrcv),
            messages_sent: count(raw.ru_msgsnd),
            signals: count(raw.ru_nsignals),
            swaps: count(raw.ru_nswap),
            integrals: [count(raw.ru_ixrss), count(raw.ru_idrss), count(raw.ru_isrss)],
        }
    }
}

/// A count, which the kernel stores as a signed number.
#[cfg(unix)]
fn count(raw: libc::c_long) -> u64 {
    u64::try_from(raw).unwrap_or(0)
}

#[cfg(unix)]
fn duration(raw: &libc::timeval) -> Duration {
    let (seconds, micros) = (u64::try_from(raw.tv_sec), u64::try_from(raw.tv_usec));
    Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_micros(micros.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_of_counters_but_not_of_the_peak() {
        let early = Usage {
            user: Duration::from_micros(5),
            max_rss_bytes: 10,
            minor_faults: 3,
            read_bytes: Some(512),
            ..Usage::default()
        };
        let late = Usage {
            user: Duration::from_micros(9),
            max_rss_bytes: 30,
            minor_faults: 7,
            read_bytes: Some(2048),
            ..Usage::default()
        };
        let d = late.since(&early);
        assert_eq!((d.user, d.max_rss_bytes), (Duration::from_micros(4), 30));
        assert_eq!((d.minor_faults, d.read_bytes, d.read_operations), (4, Some(1536), None));
    }

    #[test]
    #[cfg(unix)]
    fn this_process_has_used_something() {
        let before = Usage::of_self();
        let touched = vec![1u8; 64 << 20];
        assert!(std::hint::black_box(&touched).iter().all(|&b| b == 1));
        let used = Usage::of_self().since(&before);
        assert!(used.minor_faults > 0 && used.max_rss_bytes > 64 << 20, "{used:?}");
        assert!(used.cpu() > Duration::ZERO);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn units_of_512_bytes_become_bytes() {
        // SAFETY: all zeroes is a valid value of this structure of numbers.
        let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
        (raw.ru_inblock, raw.ru_maxrss, raw.ru_utime.tv_sec) = (4_194_304, 7, 2);
        raw.ru_stime.tv_usec = 30;
        let usage = Usage::from_raw(&raw, Duration::from_secs(1));
        assert_eq!(usage.read_bytes, Some(2048 << 20));
        assert_eq!(usage.max_rss_bytes, 7168);
        assert_eq!(usage.cpu(), Duration::from_micros(2_000_030));
    }
}
