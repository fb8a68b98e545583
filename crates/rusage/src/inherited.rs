//! What this process was started with: signals that are to stay ignored, and streams that are closed.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// True if `signal` is ignored now. Asked before a handler is installed, that is how the process was
/// started (by `nohup`, or by a shell's `&`): such a signal is to stay ignored.
pub fn is_ignored(signal: c_int) -> bool {
    crate::signals::action(signal, None).is_some_and(|now| now.sa_sigaction == libc::SIG_IGN)
}

/// True if standard stream `stream` (0, 1 or 2) was closed when the process was started. Rust's
/// runtime opens `/dev/null` in its place before `main`, and what is written there is lost without an
/// error. Systems other than Linux and macOS are not asked, and it is `false` there.
pub fn was_closed(stream: c_int) -> bool {
    (0..3).contains(&stream) && CLOSED.load(Relaxed) & 1 << stream != 0
}

/// A bit for each standard stream that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Called by the C library before `main`, which is before Rust's runtime.
#[used]
// SAFETY: the sections hold pointers to functions that the C library calls before `main`, with three
// arguments that a C function may leave alone; `look` needs nothing that is made later.
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for stream in 0..3 {
        // SAFETY: asks about a descriptor, by its number.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << stream, Relaxed);
        }
    }
}
