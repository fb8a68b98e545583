//! Signal handling in a program that wraps another.
//!
//! The measured program gets the signals that it would have got without the wrapper, and the wrapper survives to report:
//! - Ctrl-C, Ctrl-\, a hang-up, a new window size and the like come from the terminal to all processes in the foreground, so to the
//!   program too: the wrapper merely does not die of them. Ctrl-Z stops both.
//! - Signals to the wrapper alone (from `kill`, `timeout`, a supervisor, or a timer that was set for it before it was executed) are
//!   passed on; SIGTSTP stops the wrapper as well, and SIGCONT lets both continue. SIGSTOP and SIGKILL cannot be handled, and
//!   SIGSEGV and the like concern the process in which they happen.
//! - Signals that were ignored when the wrapper was started (`nohup`, a shell's `&`) stay ignored, for both.
//! - A report that has no reader, or that exceeds a limit on sizes, is a write error, and never ends the wrapper: a SIGPIPE or
//!   SIGXFSZ that it causes itself is ignored.

use std::io;
use std::os::unix::process::CommandExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

use libc::{c_int, c_void, pid_t, siginfo_t};

/// The signals that can be handled and concern the program, except for real-time signals. Of the others, faults and SIGCHLD are the
/// wrapper's own, and SIGTTIN and SIGTTOU stop it as they should.
const SIGNALS: &[c_int] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGABRT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGURG,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGWINCH,
    libc::SIGIO,
    #[cfg(target_os = "linux")]
    libc::SIGPWR,
];
/// The signals among these that a terminal sends, to the program as well; any other signal from the kernel goes only to the wrapper.
const OF_TERMINALS: [c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH];
/// The signals that would not end a process.
const HARMLESS: [c_int; 4] = [libc::SIGCONT, libc::SIGTSTP, libc::SIGURG, libc::SIGWINCH];

/// All of them, and the real-time signals.
fn signals() -> impl Iterator<Item = c_int> {
    #[cfg(target_os = "linux")]
    let of_real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    #[cfg(not(target_os = "linux"))]
    let of_real_time = [];
    SIGNALS.iter().copied().chain(of_real_time)
}

/// The process that signals are passed to; 0 if there is none.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// True if SIGCHLD was ignored before, which must be so again in the program.
static CHILD_IGNORED: AtomicBool = AtomicBool::new(false);
/// The last signal that arrived and would have ended this process, 0 if none.
static CAME: AtomicI32 = AtomicI32::new(0);
/// A bit for each handled signal, by its number minus one.
static HANDLED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Returns the word of [`HANDLED`] for this signal, and the bit in it.
fn bit(signal: c_int) -> (&'static AtomicU64, u64) {
    let number = signal as usize - 1;
    (&HANDLED[number / 64 % 2], 1 << (number % 64))
}

/// As long as this lives, signals are handled as the [module](self) describes. One at a time.
///
/// A child inherits the default for signals handled here, because exec resets handlers.
#[derive(Debug)]
pub struct Passed {
    /// The previous actions, where they were not the default.
    before: Vec<(c_int, Before)>,
    /// The action of SIGCHLD, if that was ignored: then the end of a child could not be waited for.
    child: Option<Before>,
}

struct Before(libc::sigaction);

impl std::fmt::Debug for Before {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Before({:#x})", self.0.sa_sigaction)
    }
}

impl Passed {
    /// Starts handling signals.
    pub fn on() -> Passed {
        CAME.store(0, Relaxed);
        let ours = handler();
        let mut before = Vec::new();
        for signal in signals() {
            let Some(old) = action(signal, Some(&ours)) else { continue };
            if old.sa_sigaction == libc::SIG_IGN {
                action(signal, Some(&old));
                continue;
            }
            let (word, bit) = bit(signal);
            word.fetch_or(bit, Relaxed);
            if old.sa_sigaction != libc::SIG_DFL {
                before.push((signal, Before(old)));
            }
        }
        let child = action(libc::SIGCHLD, None)
            .filter(|old| {
                old.sa_sigaction == libc::SIG_IGN || old.sa_flags & libc::SA_NOCLDWAIT != 0
            })
            .and_then(|_| action(libc::SIGCHLD, Some(&default())).map(Before));
        let ignored = child.as_ref().is_some_and(|old| old.0.sa_sigaction == libc::SIG_IGN);
        CHILD_IGNORED.store(ignored, Relaxed);
        Passed { before, child }
    }

    /// The last signal that arrived at this process since [`on`](Passed::on) and would have ended it.
    pub fn came(&self) -> Option<i32> {
        Some(CAME.load(Relaxed)).filter(|&signal| signal != 0)
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        CHILD_IGNORED.store(false, Relaxed);
        restore();
        for word in &HANDLED {
            word.store(0, Relaxed);
        }
        let child = self.child.take().map(|before| (libc::SIGCHLD, before));
        for (signal, Before(before)) in self.before.drain(..).chain(child) {
            action(signal, Some(&before));
        }
    }
}

/// Resets handled signals to their default. Allowed in signal handlers and in a child that shares this process's memory.
fn restore() {
    for signal in signals() {
        let (word, bit) = bit(signal);
        if word.load(Relaxed) & bit != 0 {
            action(signal, Some(&default()));
        }
    }
}

/// Sets the process that signals are passed to from now on; 0 for none.
pub(crate) fn pass_to(child: pid_t) {
    CHILD.store(child, Relaxed);
}

/// Stops passing signals, if they are passed to `child`.
pub(crate) fn pass_no_more(child: pid_t) {
    let _ = CHILD.compare_exchange(child, 0, Relaxed, Relaxed);
}

/// For a child between fork and exec: handlers of this process must not run there, because it shares this process's memory (exec
/// would reset them, but slightly later); and SIGCHLD must be as it was.
#[cfg(target_os = "linux")]
pub(crate) fn forget_in_child() {
    restore();
    if CHILD_IGNORED.load(Relaxed) {
        let ignore = libc::sigaction { sa_sigaction: libc::SIG_IGN, ..default() };
        action(libc::SIGCHLD, Some(&ignore));
    }
}

/// Ends this process as `signal` would have, so that its parent sees that; returns if the signal does not end processes. No core is
/// written: that would be this process's and not the program's.
pub fn die_by(signal: i32) {
    // SAFETY: system calls with numbers and valid pointers; no handler of ours runs afterwards.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::sigaction(signal, &default(), ptr::null_mut());
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
        libc::raise(signal);
    }
}

/// Calls `work` where this process aborts, on the thread that does. If `work` returns, the process ends by SIGABRT, as it would have.
///
/// `work` may use atomics and make system calls, and must not allocate or lock.
pub fn before_abort(work: fn()) {
    if BEFORE_ABORT.set(work).is_ok() {
        let mut ours = default();
        ours.sa_sigaction = aborting as extern "C" fn(c_int) as usize;
        ours.sa_flags = libc::SA_RESETHAND;
        action(libc::SIGABRT, Some(&ours));
    }
}

static BEFORE_ABORT: OnceLock<fn()> = OnceLock::new();

extern "C" fn aborting(signal: c_int) {
    if let Some(work) = BEFORE_ABORT.get() {
        work();
    }
    // Also where another process has sent it. It arrives after this handler, with its default action.
    // SAFETY: a system call with a valid number.
    unsafe { libc::raise(signal) };
}

/// Makes the command, and all that it starts, begin with `signal` ignored.
pub fn ignored_by(command: &mut std::process::Command, signal: i32) {
    let ignore = move || {
        let ignored = libc::sigaction { sa_sigaction: libc::SIG_IGN, ..default() };
        action(signal, Some(&ignored)).map(drop).ok_or_else(io::Error::last_os_error)
    };
    // SAFETY: it makes a system call that is allowed between fork and exec, and nothing else.
    unsafe { command.pre_exec(ignore) };
}

/// The default action, with an empty mask and no flags.
fn default() -> libc::sigaction {
    // SAFETY: all zeroes is a valid value of this structure, and SIG_DFL is zero.
    unsafe { std::mem::zeroed() }
}

/// The action that passes a signal on.
fn handler() -> libc::sigaction {
    let mut ours = default();
    ours.sa_sigaction = pass as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // See `stop`.
    // SAFETY: a valid set.
    unsafe { libc::sigaddset(&mut ours.sa_mask, libc::SIGTSTP) };
    ours
}

/// Sets the action of a signal, if one is given, and returns the previous one.
pub(crate) fn action(signal: c_int, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let mut old = default();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both pointers are valid or null.
    (unsafe { libc::sigaction(signal, new, &mut old) } == 0).then_some(old)
}

/// The handler: only atomics and functions that POSIX allows in handlers; errno is kept.
extern "C" fn pass(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid structure to a handler with SA_SIGINFO.
    let whence = Whence::of(signal, unsafe { &*info });
    if whence == Whence::Ourselves {
        return;
    }
    let error = io::Error::last_os_error().raw_os_error();
    if !HARMLESS.contains(&signal) {
        CAME.store(signal, Relaxed);
    }
    let child = CHILD.load(Relaxed);
    if child > 0 && whence == Whence::Somebody {
        // SAFETY: takes numbers. The child has not been waited for, so its number is still its own.
        unsafe { libc::kill(child, signal) };
    }
    if signal == libc::SIGTSTP {
        stop();
    }
    if let Some(error) = error {
        set_errno(error);
    }
}

/// Stops this process as an unhandled SIGTSTP does, until it is continued.
fn stop() {
    let signal = libc::SIGTSTP;
    action(signal, Some(&default()));
    // SAFETY: system calls with numbers and valid pointers, all allowed in handlers. The signal is pending until pselect unblocks it
    // for the time of its check, where the process stops. SIGCONT, whose handler has the signal blocked, ends that: a signal that
    // arrives before that handler discards SIGCONT, and a later one is pending until ours is the handler again.
    unsafe {
        libc::raise(signal);
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
        libc::sigdelset(&mut mask, signal);
        let none = ptr::null_mut();
        libc::pselect(0, none, none, none, &std::mem::zeroed(), &mask);
    }
    action(signal, Some(&handler()));
}

/// The process that sent a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whence {
    /// The terminal, which sends it to the program too.
    Terminal,
    /// This process itself, by a write without a reader or beyond a limit, or by its processor time.
    Ourselves,
    /// Another process, or a timer: to this process alone.
    Somebody,
}

impl Whence {
    fn of(signal: c_int, info: &siginfo_t) -> Whence {
        if sent_by_a_process(info) {
            // SAFETY: signals of processes have the number of their sender.
            #[cfg(target_os = "linux")]
            let own = unsafe { info.si_pid() } as u32 == std::process::id();
            // On these systems such signals have other codes.
            #[cfg(not(target_os = "linux"))]
            let own = false;
            return if own { Whence::Ourselves } else { Whence::Somebody };
        }
        match signal {
            libc::SIGPIPE | libc::SIGXFSZ | libc::SIGXCPU => Whence::Ourselves,
            signal if OF_TERMINALS.contains(&signal) => Whence::Terminal,
            _ => Whence::Somebody,
        }
    }
}

/// True if a signal comes from kill(2) and the like, not from the terminal.
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
