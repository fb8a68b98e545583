//! Tries a compilation in a process of its own, which can be ended: llguidance checks its limits only between steps, and one step can take hours
//! and gigabytes.
//!
//! The process is a copy of this one (`fork`), so it has the vocabulary and the request without any copying. It compiles under limits of time and
//! memory and answers with one line. Compilation is deterministic: if the copy ends in time, so does the same compilation here.
//!
//! Its time is processor time, where the system reports that: what is refused as too slow does not depend on what else the machine does.
//! A copy that uses none is waiting for a lock that another thread of this process held when it was copied, such as that of a value that
//! is made at its first use. It is ended, and another copy tries.
//!
//! Invariant: when [`run`] returns, the process is gone, and its memory with it.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getrlimit, kill_process, setrlimit,
    waitpid,
};

/// The limits of a trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Processor time; on systems that do not report that of a child, wall-clock time.
    pub time: Duration,
    /// Bytes of private memory beyond those that this process has. Enforced by Linux; macOS ignores the limit.
    pub memory: usize,
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It compiles, and takes this many bytes (0 where the system does not report them).
    Compiles(usize),
    /// The compiler refused it.
    Refused(String),
    /// It was ended after its time.
    TooSlow,
    /// It was ended at its limit of memory.
    TooLarge,
    /// It was ended because it is no longer needed.
    Cancelled,
    /// It panicked, was ended by another process, or stood still in each of its copies.
    Failed,
}

/// The first byte of an answer.
const COMPILES: u8 = b'+';
const REFUSED: u8 = b'-';
/// Bytes of an answer, at most: fewer than a pipe holds, so that the process never waits for its reader.
const MAX_ANSWER: usize = 4096;

/// How soon a cancelled trial is ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A copy stands still if it uses less than `MIN_TIME` of a processor in this time.
const STANDSTILL: Duration = Duration::from_secs(2);
const MIN_TIME: Duration = Duration::from_millis(10);
/// How many copies are tried if they stand still.
const MAX_COPIES: usize = 3;

/// Runs `work` in a copy of this process, until `cancelled` is set.
///
/// # Errors
/// The system creates no pipe or no process.
pub(super) fn run(
    limits: Limits,
    cancelled: &AtomicBool,
    work: impl Fn() -> Result<(), String>,
) -> io::Result<Outcome> {
    for _ in 0..MAX_COPIES {
        if let Some(outcome) = run_once(limits, cancelled, &work)? {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Failed)
}

/// Runs `work` in one copy; `None` if it stands still.
fn run_once(
    limits: Limits,
    cancelled: &AtomicBool,
    work: impl Fn() -> Result<(), String>,
) -> io::Result<Option<Outcome>> {
    let (read, write) = io::pipe()?;
    let signals = BlockedSignals::new();
    // SAFETY: the child calls only `serve`, which never returns. It takes no lock that another thread of the parent may have held, except the
    // allocator's, which the C libraries of the supported systems make usable in the child of a process with threads. A child that waits
    // for another lock stands still, and is ended.
    let forked = match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => serve(&write, limits, work),
        child => Ok(Child(Pid::from_raw(child))),
    };
    drop(signals);
    drop(write);
    let mut child = forked?;
    let answer = match read_answer(read, limits.time, &child, cancelled)? {
        Reading::All(answer) => answer,
        Reading::Late => return Ok(Some(Outcome::TooSlow)),
        Reading::Standstill => return Ok(None),
        Reading::Cancelled => return Ok(Some(Outcome::Cancelled)),
    };
    let signal = child.wait().and_then(WaitStatus::terminating_signal);
    let text = || String::from_utf8_lossy(&answer[1..]).into_owned();
    Ok(Some(match answer.first() {
        Some(&COMPILES) => Outcome::Compiles(text().parse().unwrap_or(0)),
        Some(&REFUSED) => Outcome::Refused(text()),
        // Rust's reaction to a failed allocation.
        None if signal == Some(Signal::ABORT.as_raw()) => Outcome::TooLarge,
        // The system's, at the limit of processor time.
        None if signal == Some(Signal::XCPU.as_raw()) => Outcome::TooSlow,
        _ => Outcome::Failed,
    }))
}

/// A child process, which is killed and reaped when dropped.
struct Child(Option<Pid>);

impl Child {
    /// Processor time that it has used; `None` where the system does not report it.
    fn time(&self) -> Option<Duration> {
        #[cfg(target_os = "linux")]
        {
            let mut clock = 0;
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: both are valid for writes; the process has not been reaped, so its number is its own.
            let read = unsafe {
                libc::clock_getcpuclockid(self.0?.as_raw_nonzero().get(), &mut clock) == 0
                    && libc::clock_gettime(clock, &mut time) == 0
            };
            read.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// Waits for its end. `None`: another part of this process has reaped it.
    fn wait(&mut self) -> Option<WaitStatus> {
        let child = self.0.take();
        let ended = child.map(|child| retry_on_intr(|| waitpid(Some(child), WaitOptions::empty())));
        ended?.ok().flatten().map(|(_, status)| status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(child) = self.0 {
            // It has not been waited for, so its number is not another one's.
            let _ = kill_process(child, Signal::KILL);
            self.wait();
        }
    }
}

/// Blocks all signals of this thread, and so of the child: handlers write into pipes that the child shares with its parent.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> BlockedSignals {
        // SAFETY: a set of signals is plain data; both are valid for writes.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            BlockedSignals(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is that which `pthread_sigmask` returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// The child: works, answers, and ends.
fn serve(answer: &PipeWriter, limits: Limits, work: impl FnOnce() -> Result<(), String>) -> ! {
    let answer = isolate(answer.as_raw_fd());
    // Here and not before the copy is made: meanwhile, another thread of the parent may map the memory of an engine.
    let before = private_memory();
    // A failed allocation ends this process by the signal that `run` looks for, however the parent handles it.
    // SAFETY: the default action is no function of ours.
    unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
    limit(Resource::Core, 0);
    // If the parent is killed, this process ends nevertheless.
    limit(Resource::Cpu, limits.time.as_secs() + 1);
    if let Some(before) = before {
        limit(Resource::Data, before.saturating_add(limits.memory) as u64);
    }
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut text = match work() {
            Ok(()) => {
                let grown = private_memory()
                    .zip(before)
                    .map_or(0, |(now, before)| now.saturating_sub(before));
                format!("{}{grown}", COMPILES as char)
            }
            Err(why) => format!("{}{why}", REFUSED as char),
        };
        text.truncate(text.floor_char_boundary(MAX_ANSWER));
        // SAFETY: `isolate` returned it, and nothing else owns it.
        unsafe { File::from_raw_fd(answer) }.write_all(text.as_bytes())
    }));
    // SAFETY: ends the process without running what the parent has registered for its own end.
    unsafe { libc::_exit(i32::from(!matches!(result, Ok(Ok(()))))) }
}

/// Closes everything that the parent has open, so that its clients see it close what it closes, except for the pipe, whose new number is
/// returned. Output goes nowhere.
fn isolate(answer: RawFd) -> RawFd {
    const KEPT: RawFd = 3;
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // SAFETY: none of these numbers is owned by anything that the child uses after this.
    unsafe {
        // First, since it may have one of the numbers that are replaced.
        let answer = libc::fcntl(answer, libc::F_DUPFD, KEPT + 1);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..KEPT {
            libc::dup2(null, fd);
        }
        libc::dup2(answer, KEPT);
        close_from(KEPT + 1);
    }
    KEPT
}

/// Closes all descriptors from this one on.
///
/// # Safety
/// Nothing uses them any more.
unsafe fn close_from(first: RawFd) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the call takes three numbers.
        let closed = unsafe {
            libc::syscall(libc::SYS_close_range, first as libc::c_uint, libc::c_uint::MAX, 0)
        };
        if closed == 0 {
            return;
        }
    }
    // An older kernel, or another system.
    // SAFETY: as the caller promises; a number that is not open is refused.
    unsafe {
        let open = libc::sysconf(libc::_SC_OPEN_MAX).clamp(256, 1 << 16) as RawFd;
        (first..open).for_each(|fd| {
            libc::close(fd);
        });
    }
}

/// Lowers a limit of this process.
fn limit(resource: Resource, most: u64) {
    let most = getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
    // If the system refuses, the parent still ends the process.
    let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
}

/// Bytes that `RLIMIT_DATA` counts, where the system reports them: private writable mappings, touched or not.
fn private_memory() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(5)?.parse().ok()?;
    pages.checked_mul(alight_pages::page_size())
}

/// The outcome of waiting for an answer.
#[derive(Debug, PartialEq)]
enum Reading {
    /// The other end is closed; this was written before.
    All(Vec<u8>),
    /// The process has used up its time.
    Late,
    /// The process uses no processor time.
    Standstill,
    Cancelled,
}

/// Reads what a process writes until it closes its end.
fn read_answer(
    mut from: PipeReader,
    time: Duration,
    child: &Child,
    cancelled: &AtomicBool,
) -> io::Result<Reading> {
    let begun = Instant::now();
    let mut all = Vec::new();
    let mut part = [0; MAX_ANSWER];
    // The processor time that it had used at a moment, and that moment.
    let (mut used, mut seen) = (Duration::ZERO, begun);
    loop {
        if cancelled.load(Ordering::Relaxed) {
            return Ok(Reading::Cancelled);
        }
        match child.time() {
            Some(now) if now >= time => return Ok(Reading::Late),
            Some(now) if now >= used + MIN_TIME => (used, seen) = (now, Instant::now()),
            Some(_) if seen.elapsed() >= STANDSTILL => return Ok(Reading::Standstill),
            None if begun.elapsed() >= time => return Ok(Reading::Late),
            _ => {}
        }
        let interval = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.subsec_nanos().into() };
        let ready =
            retry_on_intr(|| poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&interval)))?;
        if ready == 0 {
            continue;
        }
        match from.read(&mut part) {
            Ok(0) => return Ok(Reading::All(all)),
            Ok(n) => all.extend_from_slice(&part[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const LIMITS: Limits = Limits { time: Duration::from_secs(20), memory: 64 << 20 };
    static NEVER: AtomicBool = AtomicBool::new(false);

    #[test]
    fn a_trial_answers_as_the_work_does() {
        assert!(matches!(run(LIMITS, &NEVER, || Ok(())).unwrap(), Outcome::Compiles(_)));
        let refused = run(LIMITS, &NEVER, || Err("a rule is missing: é".to_owned())).unwrap();
        assert_eq!(refused, Outcome::Refused("a rule is missing: é".to_owned()));
        let long = run(LIMITS, &NEVER, || Err("é".repeat(MAX_ANSWER))).unwrap();
        assert!(
            matches!(long, Outcome::Refused(why) if why.len() < MAX_ANSWER && why.starts_with("éé"))
        );
        assert_eq!(run(LIMITS, &NEVER, || panic!("as a compiler may")).unwrap(), Outcome::Failed);
    }

    #[test]
    fn work_that_does_not_end_is_ended() {
        let begun = Instant::now();
        let limits = Limits { time: Duration::from_millis(300), ..LIMITS };
        let forever = || loop {
            std::hint::spin_loop();
        };
        assert_eq!(run(limits, &NEVER, forever).unwrap(), Outcome::TooSlow);
        assert!(begun.elapsed() < LIMITS.time, "{:?}", begun.elapsed());
    }

    /// A lock that another thread holds at the time of the copy is never released in the copy.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_copy_that_waits_for_a_lock_is_replaced() {
        let lock = Mutex::new(());
        let takes_it = || {
            drop(lock.lock());
            Ok(())
        };
        std::thread::scope(|scope| {
            let (send, held) = std::sync::mpsc::channel();
            let lock = &lock;
            scope.spawn(move || {
                let guard = lock.lock().unwrap();
                send.send(()).unwrap();
                std::thread::sleep(STANDSTILL / 2);
                drop(guard);
            });
            held.recv().unwrap();
            let outcome = run(LIMITS, &NEVER, takes_it).unwrap();
            assert!(matches!(outcome, Outcome::Compiles(_)), "{outcome:?}");
        });
        let guard = lock.lock();
        assert_eq!(run(LIMITS, &NEVER, takes_it).unwrap(), Outcome::Failed);
        drop(guard);
    }

    /// The processor time that this process has used.
    #[cfg(target_os = "linux")]
    fn processor_time() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it is valid for writes.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Other work on the same processor takes none of the time of a trial.
    #[cfg(target_os = "linux")]
    #[test]
    fn time_is_processor_time() {
        let ended = AtomicBool::new(false);
        let (outcome, used) = std::thread::scope(|scope| {
            let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from);
            for _ in 0..threads {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let limits = Limits { time: Duration::from_secs(1), ..LIMITS };
            let begun = Instant::now();
            let half = || {
                while processor_time() < Duration::from_millis(500) {}
                Ok(())
            };
            let outcome = run(limits, &NEVER, half).unwrap();
            ended.store(true, Ordering::Relaxed);
            (outcome, begun.elapsed())
        });
        assert!(matches!(outcome, Outcome::Compiles(_)), "{outcome:?} after {used:?}");
    }

    #[test]
    fn a_trial_can_be_cancelled() {
        let begun = Instant::now();
        let cancelled = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let forever = || loop {
                std::hint::spin_loop();
            };
            let flag = &cancelled;
            let trial = scope.spawn(move || run(LIMITS, flag, forever));
            std::thread::sleep(Duration::from_millis(100));
            cancelled.store(true, Ordering::Relaxed);
            assert_eq!(trial.join().unwrap().unwrap(), Outcome::Cancelled);
        });
        assert!(begun.elapsed() < LIMITS.time);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_is_limited_and_reported() {
        let grow = |bytes: usize| {
            move || {
                let kept = std::hint::black_box(vec![1u8; bytes]);
                std::mem::forget(kept);
                Ok(())
            }
        };
        assert_eq!(run(LIMITS, &NEVER, grow(256 << 20)).unwrap(), Outcome::TooLarge);
        // More than an allocator takes from what it has kept.
        let taken = run(LIMITS, &NEVER, grow(40 << 20)).unwrap();
        assert!(matches!(taken, Outcome::Compiles(40_000_000..=60_000_000)), "{taken:?}");
    }

    /// A client whose connection the parent closes must see it closed.
    #[test]
    fn the_child_holds_nothing_open() {
        let (read, write) = io::pipe().unwrap();
        let (begun, wait) = io::pipe().unwrap();
        let trial = std::thread::spawn(move || {
            let limits = Limits { time: Duration::from_secs(5), ..LIMITS };
            let _ = &wait;
            run(limits, &NEVER, || {
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            })
        });
        std::thread::sleep(Duration::from_millis(300));
        drop(write);
        let mut all = Vec::new();
        let closed = std::thread::spawn(move || {
            let mut read = read;
            read.read_to_end(&mut all).map(|_| all)
        });
        let late = Instant::now() + STANDSTILL / 2;
        while !closed.is_finished() {
            assert!(Instant::now() < late, "it is still open in the child");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(closed.join().unwrap().unwrap(), b"");
        assert_eq!(trial.join().unwrap().unwrap(), Outcome::Failed);
        drop(begun);
    }
}
