//! Linux: a child that shares this process's memory until it execs, as vfork does.
//!
//! That is the cheapest way to make one, and its failure to exec can be told through memory. The
//! child runs on a stack of its own, so nothing here returns twice. Between clone and exec it calls
//! only what a signal handler may call.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::time::Duration;

use super::floor::{self, Floor};
use super::unix::{end_of, reap};
use super::{Command, Ended, IoBytes, Options, RunError, signals};
use crate::counters::Counters;
use crate::tree::{Cgroup, Sampler};

/// Bytes of the child's stack: execvp puts a path together on it (4 KiB and a name).
const STACK: usize = 32 << 10;

/// What runs files that are executable but not of a format that the kernel knows, as execvp(3) of
/// glibc has it (musl's has not).
const SHELL: &CStr = c"/bin/sh";

/// What the child needs, and what it answers.
struct Task {
    /// The program and its arguments, null at the end.
    arguments: *const *const c_char,
    /// The signals that were blocked before.
    mask: libc::sigset_t,
    /// `cgroup.procs` of the group to be in, or -1.
    group: RawFd,
    /// It could not be brought into the group.
    outside: bool,
    /// errno, if the program could not be executed.
    error: c_int,
}

pub(super) fn run(command: &Command, options: &Options) -> Result<Ended, RunError> {
    let counters = if options.counters { Counters::open() } else { None };
    let mut group = if options.tree { Cgroup::make() } else { None };
    let procs = group.as_ref().map_or(-1, |group| group.procs().as_raw_fd());
    let small = options.small.then(Floor::prepare);
    let Spawned { pid, began, outside } = match spawn(&command.arguments, procs, small.as_ref())? {
        Ok(child) => child,
        Err(libc::ENOEXEC) => {
            let script = in_path(&command.arguments[0]);
            let mut words = vec![SHELL.to_owned(), script];
            words.extend_from_slice(&command.arguments[1..]);
            spawn(&words, procs, small.as_ref())?.map_err(|_| exec_error(command, libc::ENOEXEC))?
        }
        Err(error) => return Err(exec_error(command, error)),
    };
    if outside {
        group = None;
    }
    let sampled = if options.tree && group.is_none() { Sampler::watch(pid) } else { None };
    let ended = end_of(pid).then(|| now().saturating_sub(began));
    let io = if options.io { IoBytes::of(pid) } else { None };
    // From here on the number may become another's.
    signals::pass_to(0);
    let (status, usage) = reap(pid, ended.unwrap_or_else(|| now().saturating_sub(began)))
        .map_err(|source| RunError::System { what: "wait for the program", source })?;
    Ok(Ended {
        io,
        tree_peak: group.and_then(Cgroup::peak).or(sampled),
        counters: counters.map_or_else(Vec::new, |counters| counters.read()),
        ..Ended::new(status, usage, floor::peak())
    })
}

fn exec_error(command: &Command, error: c_int) -> RunError {
    command.failed(io::Error::from_raw_os_error(error))
}

/// A child that runs its program.
struct Spawned {
    pid: libc::pid_t,
    began: Duration,
    /// It is not in the group that it should be in.
    outside: bool,
}

/// Makes the child, to whom signals are passed from then on. Returns errno if the program could not
/// be executed.
fn spawn(
    words: &[CString],
    group: RawFd,
    small: Option<&Floor>,
) -> Result<Result<Spawned, c_int>, RunError> {
    let mut arguments: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    arguments.push(ptr::null());
    // SAFETY: all zeroes is a value of these.
    let (all, mask) = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        (all, std::mem::zeroed())
    };
    let mut task = Task { arguments: arguments.as_ptr(), mask, group, outside: false, error: 0 };
    // Not on this stack, all of whose pages the compiler would touch.
    let mut stack = Box::<Stack>::new_uninit();
    // SAFETY: the task and the stack live until clone returns, which with CLONE_VFORK is when the
    // child has execed or ended: until then this thread does not run, and the child is the only one
    // to touch them. No signal handler of this process runs in the child: signals are blocked until
    // it has taken the handlers back. The stack grows down, from an aligned end.
    let (pid, error, began) = unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &all, &mut task.mask);
        if let Some(small) = small {
            small.lower();
        }
        let top = stack.as_mut_ptr().cast::<u8>().add(STACK).cast::<c_void>();
        let began = now();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let pid = libc::clone(child, top, flags, ptr::from_mut(&mut task).cast());
        let error = *libc::__errno_location();
        // Before anything that came meanwhile is handled.
        signals::pass_to(pid.max(0));
        libc::sigprocmask(libc::SIG_SETMASK, &task.mask, ptr::null_mut());
        (pid, error, began)
    };
    if pid < 0 {
        return Err(RunError::System {
            what: "make a process",
            source: io::Error::from_raw_os_error(error),
        });
    }
    // SAFETY: the child wrote it, if it did, behind the compiler's back.
    match unsafe { (ptr::read_volatile(&task.error), ptr::read_volatile(&task.outside)) } {
        (0, outside) => Ok(Ok(Spawned { pid, began, outside })),
        (error, _) => {
            signals::pass_to(0);
            // It has ended; nobody wants its account.
            let _ = reap(pid, now().saturating_sub(began));
            Ok(Err(error))
        }
    }
}

/// The first executable file of this name in `PATH`, as execvp(3) finds it; the name itself if it has
/// a slash or is not found.
fn in_path(name: &CString) -> CString {
    let bytes = name.as_bytes();
    if bytes.contains(&b'/') {
        return name.clone();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter_map(|folder| {
            let file = folder.join(OsStr::from_bytes(bytes));
            CString::new(file.into_os_string().into_vec()).ok()
        })
        // SAFETY: a string with a zero at its end.
        .find(|file| unsafe { libc::access(file.as_ptr(), libc::X_OK) } == 0)
        .unwrap_or_else(|| name.clone())
}

/// By the clock that [`Instant`](std::time::Instant) reads, but here and now: the standard library's
/// code is not in memory when the child is made (see [`floor`]).
#[inline(always)]
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills it. This clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

#[repr(C, align(16))]
struct Stack([u8; STACK]);

/// In the child.
extern "C" fn child(task: *mut c_void) -> c_int {
    // SAFETY: it is the task of `spawn`, which waits.
    let task = unsafe { &mut *task.cast::<Task>() };
    signals::forget_in_child();
    // SAFETY: system calls with valid pointers; the vectors end with null.
    unsafe {
        if task.group >= 0 && libc::write(task.group, c"0".as_ptr().cast(), 1) != 1 {
            ptr::write_volatile(&mut task.outside, true);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &task.mask, ptr::null_mut());
        libc::execvp(*task.arguments, task.arguments);
        ptr::write_volatile(&mut task.error, *libc::__errno_location());
    }
    127
}
