//! Linux: a child that shares this process's memory until it execs, as vfork does.
//!
//! That is the cheapest way to make one, and a failure to exec can be reported through memory. The
//! child runs on a stack of its own, so nothing here returns twice. Between clone and exec it calls
//! only functions that a signal handler may call.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::time::Duration;

use super::floor::Floor;
use super::unix::{at_end, reap};
use super::{Command, Ended, IoBytes, Options, RunError, path, signals};
use crate::Usage;
use crate::counters::Counters;
use crate::tree::{Cgroup, Sampler};

/// Bytes of the child's stack. It makes a few system calls.
const STACK: usize = 8 << 10;

/// The shell that runs executable files in a format that the kernel does not know, as execvp(3) does.
const SHELL: &CStr = c"/bin/sh";

/// The input of the child, and its results.
struct Task {
    /// The files to try, terminated by null.
    candidates: *const *const c_char,
    /// The program and its arguments, terminated by null.
    arguments: *const *const c_char,
    /// The signals that were blocked before.
    mask: libc::sigset_t,
    /// `cgroup.procs` of the group to join, or -1.
    group: RawFd,
    /// True if it could not join the group.
    outside: bool,
    /// The peak size that exec carries over, in bytes.
    floor: u64,
    /// errno, if the program could not be executed, and the index of the file that it is about.
    error: c_int,
    tried: usize,
}

pub(super) fn run(command: &Command, options: &Options) -> Result<Ended, RunError> {
    let counters = if options.counters { Counters::open() } else { None };
    let mut group = if options.tree { Cgroup::make() } else { None };
    let procs = group.as_ref().map_or(-1, |group| group.procs().as_raw_fd());
    let mut sampler = (options.tree && group.is_none()).then(Sampler::new);
    let small = options.small.then(Floor::prepare);
    let path = std::env::var_os("PATH");
    let candidates = path::candidates(&command.arguments[0], path.as_deref().map(OsStr::as_bytes));
    let Spawned { pid, began, floor, outside } =
        match spawn(&candidates, &command.arguments, procs, small.as_ref())? {
            Ok(child) => child,
            Err(Refused { error: libc::ENOEXEC, tried }) => {
                let mut words = vec![SHELL.to_owned(), candidates[tried].clone()];
                words.extend_from_slice(&command.arguments[1..]);
                let shell = spawn(&words[..1], &words, procs, small.as_ref())?;
                shell.map_err(|_| exec_error(command, libc::ENOEXEC))?
            }
            Err(Refused { error, .. }) => return Err(exec_error(command, error)),
        };
    if outside {
        group = None;
        sampler = Some(Sampler::new());
    }
    let io = if options.io { IoBytes::open(pid) } else { None };
    let sampled = sampler.and_then(|sampler| sampler.watch(pid));
    let ended = at_end(pid, floor, || now().saturating_sub(began), io)
        .map_err(|source| RunError::System { what: "wait for the program", source })?;
    // A size that it may have inherited from its maker is not known to be its own.
    let largest = Some(ended.usage.max_rss_bytes).filter(|bytes| *bytes > ended.floor).unwrap_or(0);
    Ok(Ended {
        tree_peak: group.and_then(Cgroup::peak).or(sampled).map(|peak| peak.at_least(largest)),
        counters: counters.map_or_else(Vec::new, |counters| counters.read()),
        ..ended
    })
}

fn exec_error(command: &Command, error: c_int) -> RunError {
    command.failed(io::Error::from_raw_os_error(error))
}

/// A child that runs its program.
struct Spawned {
    pid: libc::pid_t,
    began: Duration,
    /// Its peak size before exec, in bytes.
    floor: u64,
    /// True if it is not in the group that it should be in.
    outside: bool,
}

/// Why a program was not executed: errno, and the index of the candidate.
struct Refused {
    error: c_int,
    tried: usize,
}

/// Makes the child, to which signals are passed from then on.
fn spawn(
    candidates: &[CString],
    words: &[CString],
    group: RawFd,
    small: Option<&Floor>,
) -> Result<Result<Spawned, Refused>, RunError> {
    let mut pointers = Vec::with_capacity(candidates.len() + words.len() + 2);
    for strings in [candidates, words] {
        pointers.extend(strings.iter().map(|string| string.as_ptr()));
        pointers.push(ptr::null());
    }
    let (candidates, arguments) = pointers.split_at(candidates.len() + 1);
    // SAFETY: all zeroes is a valid value of these.
    let (all, mask) = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        (all, std::mem::zeroed())
    };
    let mut task = Task {
        candidates: candidates.as_ptr(),
        arguments: arguments.as_ptr(),
        mask,
        group,
        outside: false,
        floor: 0,
        error: 0,
        tried: 0,
    };
    let mut stack = MaybeUninit::<Stack>::uninit();
    // SAFETY: the task and the stack live until clone returns, which with CLONE_VFORK is when the
    // child has execed or ended: until then this thread does not run, and only the child accesses
    // them. No signal handler of this process runs in the child: signals are blocked until it has
    // reset the handlers. The stack grows down, from an aligned end.
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
        // Before any signal that arrived meanwhile is handled.
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
    // SAFETY: our own task; volatile, since the child may have written it without the compiler's knowledge.
    let task = unsafe { ptr::read_volatile(&task) };
    match task.error {
        0 => Ok(Ok(Spawned { pid, began, floor: task.floor, outside: task.outside })),
        error => {
            signals::pass_to(0);
            // It has ended; its account is not needed.
            let _ = reap(pid, now().saturating_sub(began));
            Ok(Err(Refused { error, tried: task.tried }))
        }
    }
}

/// Reads the clock of [`Instant`](std::time::Instant), but by a plain system call: the code of the
/// standard library and of the vDSO is not in memory when the child is made (see [`Floor`]), and
/// loading it costs more.
#[inline(always)]
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills it. This clock always exists.
    unsafe {
        #[cfg(target_pointer_width = "64")]
        libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &mut time);
        // Elsewhere the kernel's structure and the library's may differ.
        #[cfg(not(target_pointer_width = "64"))]
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
    }
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

#[repr(C, align(16))]
struct Stack([u8; STACK]);

/// Runs in the child.
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
        // Its own account, just begun, contains only the size of the image that exec replaces, which
        // is the size that exec carries over.
        ptr::write_volatile(&mut task.floor, Usage::of_self().max_rss_bytes);
        let error = execute(task);
        ptr::write_volatile(&mut task.error, error);
        // If an emulator has made this a fork (qemu does), the writes are not visible outside: then
        // only the status is reported.
        if error == libc::ENOENT { 127 } else { 126 }
    }
}

/// Tries one candidate after another; returns errno if none of them can be executed.
///
/// # Safety
/// The pointers of the task are to vectors of strings that are terminated by null.
unsafe fn execute(task: &mut Task) -> c_int {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    let mut refused = libc::ENOENT;
    let mut tried = 0;
    // SAFETY: the caller's contract; the C library's own variable; nothing else runs in this memory.
    unsafe {
        while !(*task.candidates.add(tried)).is_null() {
            libc::execve(*task.candidates.add(tried), task.arguments, environ);
            match *libc::__errno_location() {
                // Another candidate may work.
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                // A folder that may not be searched counts as empty, as one that is missing.
                libc::EACCES => {
                    if libc::access(*task.candidates.add(tried), libc::F_OK) == 0 {
                        refused = libc::EACCES;
                    }
                }
                error => {
                    task.tried = tried;
                    return error;
                }
            }
            tried += 1;
        }
    }
    refused
}
