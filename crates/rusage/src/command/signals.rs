//! What a program that wraps another does with signals.
//!
//! The program that is measured gets what it would have got without the wrapper, and the wrapper
//! lives to tell:
//! - Ctrl-C, Ctrl-\ and a hang-up come from the terminal to all processes in front of it, so to the
//!   program too: the wrapper only does not die of them.
//! - What somebody sends to the wrapper alone (`kill`, `timeout`, a supervisor) is passed on.
//! - What was ignored when the wrapper was started (`nohup`, a shell's `&`) stays ignored, for both.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

use libc::{c_int, c_void, pid_t, siginfo_t};

/// The signals that would end the wrapper and that somebody may mean for the program.
const SIGNALS: [c_int; 6] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// To whom signals are passed; 0 if nobody is there.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// Whether SIGCHLD was ignored before, which the program is to find again.
static CHILD_IGNORED: AtomicBool = AtomicBool::new(false);
/// The last signal that came, 0 if none.
static CAME: AtomicI32 = AtomicI32::new(0);

/// As long as this lives, signals are handled as the [module](self) says. One at a time.
///
/// A child inherits the default for what is handled here, because exec forgets handlers.
#[derive(Debug)]
pub struct Passed {
    /// What was there before, and whether it has been replaced.
    before: [Option<Before>; SIGNALS.len()],
    /// SIGCHLD, if it was ignored: then nobody's end could be waited for.
    child: Option<Before>,
}

struct Before(libc::sigaction);

impl std::fmt::Debug for Before {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Before({:#x})", self.0.sa_sigaction)
    }
}

impl Passed {
    /// Begins.
    pub fn on() -> Passed {
        CAME.store(0, Relaxed);
        let before = SIGNALS.map(|signal| {
            let old = action(signal, None)?;
            if old.sa_sigaction == libc::SIG_IGN {
                return None;
            }
            // SAFETY: all zeroes is an empty mask and no flags.
            let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
            new.sa_sigaction = pass as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
            new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            action(signal, Some(&new)).map(Before)
        });
        let child = action(libc::SIGCHLD, None)
            .filter(|old| {
                old.sa_sigaction == libc::SIG_IGN || old.sa_flags & libc::SA_NOCLDWAIT != 0
            })
            .and_then(|_| {
                // SAFETY: all zeroes is the default action, an empty mask and no flags.
                action(libc::SIGCHLD, Some(&unsafe { std::mem::zeroed() })).map(Before)
            });
        let ignored = child.as_ref().is_some_and(|old| old.0.sa_sigaction == libc::SIG_IGN);
        CHILD_IGNORED.store(ignored, Relaxed);
        Passed { before, child }
    }

    /// The last of these signals that came to this process since [`on`](Passed::on).
    pub fn came(&self) -> Option<i32> {
        Some(CAME.load(Relaxed)).filter(|&signal| signal != 0)
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        CHILD_IGNORED.store(false, Relaxed);
        let handled = SIGNALS.iter().zip(&self.before);
        let all = handled.chain([(&libc::SIGCHLD, &self.child)]);
        for (&signal, before) in all {
            if let Some(Before(before)) = before {
                action(signal, Some(before));
            }
        }
    }
}

/// Says to whom signals are to be passed from now on; 0 for nobody.
pub(crate) fn pass_to(child: pid_t) {
    CHILD.store(child, Relaxed);
}

/// If that was `child`, then to nobody.
pub(crate) fn pass_no_more(child: pid_t) {
    let _ = CHILD.compare_exchange(child, 0, Relaxed, Relaxed);
}

/// In a child between fork and exec: handlers of this process must not run there, because it shares
/// this process's memory (exec would forget them, but a moment later); and SIGCHLD is as it was.
#[cfg(target_os = "linux")]
pub(crate) fn forget_in_child() {
    for signal in SIGNALS {
        let ours = pass as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
        if action(signal, None).is_some_and(|now| now.sa_sigaction == ours) {
            // SAFETY: all zeroes is the default action.
            action(signal, Some(&unsafe { std::mem::zeroed() }));
        }
    }
    if CHILD_IGNORED.load(Relaxed) {
        // SAFETY: all zeroes is an empty mask and no flags.
        let mut ignore: libc::sigaction = unsafe { std::mem::zeroed() };
        ignore.sa_sigaction = libc::SIG_IGN;
        action(libc::SIGCHLD, Some(&ignore));
    }
}

/// Ends this process as `signal` would have, so that whoever waits for it sees that; returns if the
/// signal does not end processes. No core is written: that would be this process's and not the
/// program's.
pub fn die_by(signal: i32) {
    // SAFETY: system calls with numbers and valid pointers; no handler of ours runs afterwards.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, ptr::null_mut());
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
        libc::raise(signal);
    }
}

/// Sets the action of a signal, if one is given, and returns what it was.
fn action(signal: c_int, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: all zeroes is a value of the structure; the kernel fills it.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both pointers are valid or null.
    (unsafe { libc::sigaction(signal, new, &mut old) } == 0).then_some(old)
}

/// The handler: only atomics and kill(2), both allowed in handlers; errno is kept.
extern "C" fn pass(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    CAME.store(signal, Relaxed);
    let child = CHILD.load(Relaxed);
    // SAFETY: the kernel hands a valid structure to a handler with SA_SIGINFO.
    let by_a_process = unsafe { sent_by_a_process(&*info) };
    if child > 0 && by_a_process {
        let error = io::Error::last_os_error().raw_os_error();
        // SAFETY: takes numbers. The child has not been waited for: its number is its own.
        unsafe { libc::kill(child, signal) };
        if let Some(error) = error {
            set_errno(error);
        }
    }
}

/// Whether a signal comes from kill(2) and the like, not from the terminal.
fn sent_by_a_process(info: &siginfo_t) -> bool {
    #[cfg(target_os = "linux")]
    return info.si_code <= 0;
    #[cfg(not(target_os = "linux"))]
    return info.si_code == SI_USER;
}

/// From signal.h of each system; the `libc` crate does not have it for all.
#[cfg(not(target_os = "linux"))]
const SI_USER: c_int =
    if cfg!(any(target_os = "netbsd", target_os = "openbsd")) { 0 } else { 0x10001 };

fn set_errno(error: i32) {
    #[cfg(any(target_os = "linux", target_os = "dragonfly"))]
    // SAFETY: points to this thread's errno.
    unsafe {
        *libc::__errno_location() = error;
    }
    #[cfg(not(any(target_os = "linux", target_os = "dragonfly")))]
    let _ = error;
}
