//! The state that this process was started with: signals that must stay ignored, and streams that are
//! closed.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// True if `signal` is ignored now. Before a handler is installed, that is how the process was
/// started (by `nohup`, or by a shell's `&`): such a signal must stay ignored.
pub fn is_ignored(signal: c_int) -> bool {
    crate::signals::action(signal, None).is_some_and(|now| now.sa_sigaction == libc::SIG_IGN)
}

/// True if standard stream `stream` (0, 1 or 2) was closed when the process was started. Rust's
/// runtime opens `/dev/null` in its place before `main`, and output written there is lost without an
/// error. Always `false` on systems other than Linux and macOS.
pub fn was_closed(stream: c_int) -> bool {
    (0..3).contains(&stream) && CLOSED.load(Relaxed) & 1 << stream != 0
}

/// A bit for each standard stream that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Called by the C library before `main`, which is before Rust's runtime.
#[used]
// SAFETY: the sections hold pointers to functions that the C library calls before `main`, with three
// arguments that a C function may ignore; `look` needs nothing that is initialised later.
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for stream in 0..3 {
        // SAFETY: queries a descriptor, by its number.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << stream, Relaxed);
        }
    }
}
