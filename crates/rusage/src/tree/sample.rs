//! Samples the sizes of all processes of a tree again and again.
//!
//! A process whose parent ends gets another parent, and would leave the tree without having been sampled:
//! daemons detach themselves like that. So this process adopts them while it samples ([`Adoption`]): then
//! they are its children, next to the root of the tree.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libc::pid_t;

use super::{PeakMethod, TreePeak};
use crate::account::kilobytes;

/// Minimum time between two samples.
const PAUSE: Duration = Duration::from_millis(5);
/// For a sample the kernel walks the processes' page tables, during which they cannot map anything: the
/// pause is this many times the processor time of that.
const REST: u32 = 20;

/// The known processes of a tree, by number, with the times of their start, since numbers are reused.
#[derive(Debug)]
pub(crate) struct Sampler {
    known: HashMap<pid_t, u64>,
    adoption: Adoption,
}

impl Sampler {
    /// To be created before the root of the tree is.
    pub(crate) fn new() -> Sampler {
        Sampler { known: HashMap::new(), adoption: Adoption::begin() }
    }

    /// Samples the tree of the child `pid` until it has ended (it is not waited for). `None` if the end
    /// cannot be detected (before Linux 5.3), or there was no sample.
    pub(crate) fn watch(mut self, pid: pid_t) -> Option<TreePeak> {
        // SAFETY: takes numbers, returns a descriptor that is ours alone, or -1.
        let ended = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            if fd < 0 {
                return None;
            }
            OwnedFd::from_raw_fd(fd as libc::c_int)
        };
        let mut peak = TreePeak { bytes: 0, how: PeakMethod::Pss, samples: 0, left: 0 };
        loop {
            let began = processor_time();
            if let Some(bytes) = self.look(pid) {
                peak.bytes = peak.bytes.max(bytes);
                peak.samples += 1;
            }
            let pause =
                PAUSE.max(processor_time().saturating_sub(began) * REST).as_millis() as libc::c_int;
            let mut poll = libc::pollfd { fd: ended.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid structure. A signal ends it early, which is harmless.
            if unsafe { libc::poll(&mut poll, 1, pause) } > 0 {
                self.look(pid);
                peak.left = self.known.keys().filter(|&&known| known != pid).count() as u64;
                return (peak.samples > 0).then_some(peak);
            }
        }
    }

    /// Returns the current sum of the proportional sizes, of known processes and of new children.
    fn look(&mut self, root: pid_t) -> Option<u64> {
        self.add(root);
        for orphan in self.adoption.adopted(root) {
            self.add(orphan);
        }
        let mut found: Vec<pid_t> = self.known.keys().copied().collect();
        while let Some(pid) = found.pop() {
            for child in children(pid) {
                if self.add(child) {
                    found.push(child);
                }
            }
        }
        let mut sum = None;
        // Processes that have ended, or whose number was reused, are forgotten.
        self.known.retain(|&pid, &mut start| start_of(pid) == Some(start));
        for pid in self.known.keys() {
            if let Some(bytes) = pss(*pid) {
                sum = Some(sum.unwrap_or(0) + bytes);
            }
        }
        sum
    }

    /// Adds a process. Returns true if it is new.
    fn add(&mut self, pid: pid_t) -> bool {
        !self.known.contains_key(&pid)
            && start_of(pid).is_some_and(|start| self.known.insert(pid, start).is_none())
    }
}

/// As long as this lives, this process is the parent of processes that its descendants leave behind.
#[derive(Debug)]
struct Adoption {
    /// Children that existed before.
    others: HashSet<pid_t>,
    /// The previous setting of this process.
    before: libc::c_int,
}

impl Adoption {
    fn begin() -> Adoption {
        let mut before = 0;
        // SAFETY: prctl(2) writes one number, and takes one.
        unsafe {
            libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &mut before);
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as libc::c_ulong);
        }
        Adoption { others: own_children().into_iter().collect(), before }
    }

    /// Returns the children that were added since, except for `root`. Those that have ended are reaped, as
    /// their new parent would do without us: some programs wait for a daemon's number to vanish.
    fn adopted(&self, root: pid_t) -> Vec<pid_t> {
        let is_adopted = |pid: &pid_t| *pid != root && !self.others.contains(pid);
        let lives = |pid: &pid_t| {
            // SAFETY: takes numbers; the exit status is written nowhere.
            unsafe { libc::waitpid(*pid, std::ptr::null_mut(), libc::WNOHANG) == 0 }
        };
        own_children().into_iter().filter(is_adopted).filter(lives).collect()
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        // SAFETY: takes numbers.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, self.before as libc::c_ulong) };
    }
}

fn own_children() -> Vec<pid_t> {
    children(std::process::id() as pid_t)
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

fn pss(pid: pid_t) -> Option<u64> {
    kilobytes(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:")
}

/// The children of all threads of a process.
fn children(pid: pid_t) -> Vec<pid_t> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<pid_t>>()
        })
        .collect()
}

/// When a process was started, in ticks since the machine's start: field 22 of its `stat`.
fn start_of(pid: pid_t) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}
